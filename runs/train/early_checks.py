"""The first steps of a run: whether anything can come of it.

As long as nothing that is sampled gives a gradient the policy stays what it was, and every step asks that
same policy again. After n completions without an exception the share of exceptions is below 3/n at 95 % (the
rule of three): that much is known after the steps that are asked for here, and no sooner.

Only the policy's gradient says whether an algorithm has nothing to learn from: one that learns from groups of
failures, or has a bonus on the entropy, has a gradient. Steps that warm up a critic do not count. Recorded
rollouts and rewards that are constant by design are not looked at.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.analysis.tools.text import visible
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.files import read_rows
from grpobench.runs.train.trainer import Trainer
from grpobench.tasks.data.tables import DataError

STILL = 1e-6
"""Norm of the policy's gradient up to which there is none: what float32 leaves where equal rewards are taken
from their mean."""
LATEST = 200
"""Step after which a run's start is not looked at any more."""
MOST_SHOWN = 160
"""Characters of the completion that is shown."""
BASE = tuple(f"eval/validation/{mode}/correct" for mode in ("sampled", "greedy"))
Row = Mapping[str, Any]
"""Of metrics.jsonl."""


class NothingToLearn(DataError):
    """The first steps of a run show that nothing will come of it; the message names cause and remedy."""


@dataclass(frozen=True)
class Least:
    """What must have been seen before anything is said."""

    steps: int
    completions: int

    def met(self, steps: Sequence[Row], group: int) -> bool:
        return len(steps) >= self.steps and completions(steps, group) >= self.completions


UNGRADED = Least(3, 0)
"""No completion graded: the machine's fault, which has been tried again each time."""
CUT = Least(3, 100)
"""Every completion cut by the limit: fewer than 3 in 100 would end."""
SILENT = Least(16, 2000)
"""Every reward equal: fewer than 3 in 2,000 completions would earn another. Runs on long chains that learned
in the end have begun with hundreds."""


@dataclass(frozen=True)
class Trouble:
    """Why nothing is learned, and what may be done."""

    cause: str
    certain: bool
    """Whether a run is stopped for it; else it is only told."""


def judge(trainer: Trainer, folder: RunFolder, step: int, row: Row) -> None:
    """Look at the run's first steps after one that changed nothing. Raises NothingToLearn where the recipe
    has runs stopped."""
    config = trainer.config
    last = step > LATEST or step >= config.train.steps or trainer.over
    if config.checks.start == "off" or last or not trainer.source.on_policy or not still(row):
        return
    found = trouble(read_rows(folder.path / "metrics.jsonl"), config, trainer.limit)
    if found is None:
        return
    text = " ".join([found.cause, f'checks.start = "{go_on(found)}" goes on all the same.', *sample(trainer)])
    if found.certain and config.checks.start == "stop":
        anew = f" With other settings: delete {folder.path} first, which has checkpoints."
        raise NothingToLearn(text + (anew if folder.steps() else ""))
    if "start" not in folder.provenance["attempts"][-1]:
        folder.note(start=found.cause)
        warnings.warn(text, stacklevel=2)


def go_on(found: Trouble) -> str:
    """The setting with which nothing more is said."""
    return "warn" if found.certain else "off"


def trouble(rows: Sequence[Row], config: RunConfig, limit: int) -> Trouble | None:
    """What keeps a run with these rows from learning; None where something moves or too little was seen."""
    algorithm = config.modify.around(config.algorithm)
    steps = [row for row in rows if row["step"] and "policy" in algorithm.updated_roles(row["step"])]
    weights = config.reward.components(config.task)
    if {name for name, weight in weights.items() if weight} <= {"constant"} or not all(map(still, steps)):
        return None
    group = config.train.group_size
    told = describe_sampled(steps, group) + share_cut(steps)
    right = max((number(row, "score/correct") or 0.0 for row in steps), default=0.0)
    if UNGRADED.met(steps, group) and all(number(row, "outcome/infra_error") == 1 for row in steps):
        return Trouble(f"{told}, and none could be graded: {UNGRADED_REMEDY.format(config.task.name)}", True)
    if CUT.met(steps, group) and all(number(row, "length/truncated") == 1 for row in steps):
        certain = not right or config.modify.mask_truncated
        cause = (
            f"{describe_sampled(steps, group)}, every one of them cut by the limit of {limit:,} "
            f"tokens or of turns"
        )
        return Trouble(f"{cause}, and no update had a gradient: {CUT_REMEDY}", certain)
    same = {number(row, "reward/mean") for row in steps}
    equal = len(same) == 1 and None not in same and all(number(row, "reward/std") == 0 for row in steps)
    if not equal or not SILENT.met(steps, group):
        return None
    cause = f"{told}, all with the reward {same.pop():g}, and no update had a gradient"
    if right:
        return Trouble(f"{cause}: up to {right:.0%} of a step were right, {RIGHT_REMEDY}", False)
    return Trouble(f"{cause}: none was right. {silent_remedy(rows, config)}", True)


UNGRADED_REMEDY = (
    "the verifier, its sandbox or the reward does not work here. See `grpobench tasks check {}`, `grpobench "
    "doctor` and log.txt in the run's folder."
)
CUT_REMEDY = (
    "the policy does not end its answers, or not so soon. Raise sampler.max_completion_tokens, take "
    "a model that "
    "knows the prompt's format and its end token, or teach it both (model.warm_start)."
)
RIGHT_REMEDY = (
    "and what is rewarded does not tell the completions apart. Take harder problems, or look at reward.kind "
    "and reward.weights."
)


def silent_remedy(rows: Sequence[Row], config: RunConfig) -> str:
    """What to do where nothing is right, by what the base could do."""
    base = [value for row in rows if not row["step"] for name in BASE if (value := number(row, name))]
    if base:
        return (
            f"Before training the policy was right on up to {max(base):.0%} of the validation problems: look "
            f"at the training problems and their answers (`grpobench tasks check {config.task.name}`)."
        )
    return (
        "The problems are too hard for the policy, or the verifier cannot read its answers. Look at one "
        "below; take easier problems, a warm start (model.warm_start), larger groups "
        "(train.group_size), or an "
        "algorithm that learns from failures."
    )


def describe_sampled(steps: Sequence[Row], group: int) -> str:
    """How much was sampled, and how long it was."""
    lengths = [length for row in steps if (length := number(row, "length/mean")) is not None]
    count = completions(steps, group)
    text = f"nothing was learned in the first {len(steps)} steps of the policy: {count:,} completions"
    return text + (f" of {sum(lengths) / len(lengths):.1f} tokens" if lengths else "")


def share_cut(steps: Sequence[Row]) -> str:
    """How many of them the limit cut."""
    cut = [share for row in steps if (share := number(row, "length/truncated")) is not None]
    return f", {sum(cut) / len(cut):.0%} cut by the limit" if cut else ""


def sample(trainer: Trainer) -> list[str]:
    """A completion of the last step, with its escapes."""
    for row in trainer.transcript:
        for one in row["completions"]:
            text = one["text"]
            cut = " …" if len(text) > MOST_SHOWN else ""
            return [f"A completion, to problem {row['problem']}: {visible(repr(text[:MOST_SHOWN]))}{cut}"]
    return []


def completions(steps: Sequence[Row], group: int) -> int:
    """How many were sampled."""
    return round(sum(number(row, "groups/sampled") or 0.0 for row in steps)) * group


def still(row: Row) -> bool:
    """Whether a step left the policy as it was: it had no update, or only updates without a gradient."""
    norm = number(row, "grad_norm/policy")
    return not number(row, "grad/nonfinite") and (norm is None or norm <= STILL)


def number(row: Row, name: str) -> float | None:
    """A metric; None where it is absent or not finite."""
    value = row.get(name)
    return value if isinstance(value, int | float) and math.isfinite(value) else None
