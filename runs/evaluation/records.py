"""`grpobench eval`: evaluate a model, a run before and after training, or every run of an experiment."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.analysis.runfolder import checksums
from grpobench.runs.evaluation import lm_eval
from grpobench.runs.evaluation.question import (
    ALL,
    EvalRequest,
    EvaluationPlan,
    Policy,
    Subject,
    Through,
    resolve,
    subjects,
)
from grpobench.runs.metrics.evaluator import Evaluator, Row, prompts_of, rows_of, summarize
from grpobench.runs.models import adapters, model_files
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.hashes import weights_hash
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.model_files import locate
from grpobench.runs.models.optimizer import MOMENT
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.reward import verdict_file
from grpobench.runs.reward.judge import Judge
from grpobench.runs.runfolder import checkpoints, fingerprints, provenance
from grpobench.runs.runfolder.logs import result_damage, settled, status
from grpobench.runs.sample.context import Room
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.settings.config import EvaluateConfig, ModelConfig
from grpobench.runs.tools import files, strict
from grpobench.runs.tools.progress import Ticker
from grpobench.runs.tools.strict import ConfigError
from grpobench.runs.train.prepare.warmstart import warm_start
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Split

Numbers = Mapping[str, float]
BENEATH = ("model weights", "warm start")
"""Fingerprints of the weights that an adapter was trained on."""
ROWS = 256
"""Sequences that our sampler decodes at once."""


@dataclass(frozen=True)
class EvaluationRecord:
    """The result for one subject in one of the two ways."""

    subject: Subject
    path: Path
    """The JSON file."""
    content: Mapping[str, Any]
    rows: Sequence[Row]
    was_cached: bool = False
    """Whether it already existed."""

    @property
    def numbers(self) -> dict[str, Numbers]:
        """Numbers by policy."""
        return {
            policy: policy_record["numbers"] for policy, policy_record in self.content["policies"].items()
        }

    @property
    def question(self) -> str:
        """The same for all records of the same settings."""
        return self.path.stem.removesuffix(f"-{self.content['through']}")

    @property
    def summary(self) -> dict[str, Any]:
        """For machines: the question and the numbers."""
        question = {"subject": self.subject.name, "through": self.content["through"], "path": str(self.path)}
        return {**question, "settings": self.content["settings"], "numbers": self.numbers}


def assess(
    target: str, wish: EvalRequest, say: Callable[[str], None] = lambda line: None
) -> Iterator[EvaluationRecord]:
    """Evaluate, write and yield one record after the other. Raises ConfigError and DataError. `say` gets a
    message for each run that is skipped because it has no weights yet.

    Results go next to the logs of a run and never into them::

        <run folder>/evals/<task>-<split>-<settings>-<through>.jsonl    one row per answer, as in eval.jsonl
        <run folder>/evals/<task>-<split>-<settings>-<through>.json     the question, the weights; numbers

    `settings` is a short hash of the question: the same question replaces its earlier answer, and another one
    gets files of its own. The JSON is written last, so rows without it do not count."""
    if "lm-eval" in wish.through and (lack := lm_eval.missing()):
        raise ConfigError([lack])
    chosen = subjects(target, wish.out, ModelConfig(chat_template=wish.template, dtype=wish.dtype))
    desk = EvaluationCache(wish)
    damaged = []
    for subject in chosen:
        if subject.run and (fault := weights_damage(subject.evals_parent)):
            damaged.append(fault)
            continue
        if subject.run and not newest(subject.evals_parent):
            message = lack_of_weights(subject.evals_parent)
            if len(chosen) == 1:
                raise DataError(message)
            say(message)
            continue
        plan = resolve(wish, subject)
        for through in wish.through:
            yield desk.examine(subject, plan, through)
    if damaged:
        raise DataError("not evaluated:\n" + "\n".join(damaged))


class EvaluationCache:
    """Keeps what several runs share: the loaded model, and the answers of their common base."""

    def __init__(self, wish: EvalRequest) -> None:
        self.wish = wish
        self.loaded: tuple[tuple[str, str], Loaded] | None = None
        self.bases: dict[str, tuple[list[Row], Numbers, Mapping[str, Any]]] = {}

    def examine(self, subject: Subject, plan: EvaluationPlan, through: Through) -> EvaluationRecord:
        """The record of a subject; the existing one if nothing has changed since."""
        path = subject.evals_parent / "evals" / f"{plan.stem}-{through}.json"
        current_identity = identity(subject, plan, self.wish.base)
        before = files.read_json(path)
        code = provenance.code("runs/evaluation/records.py", *([plan.task] if plan.task else []))
        if before and not self.wish.again and unchanged(before, current_identity, code):
            stored = path.with_suffix(".jsonl")
            if before.get("rows_sum") in (None, bounded.sha256(stored)):
                rows = bounded.read_rows(stored)
                return EvaluationRecord(subject, path, before, rows, was_cached=True)
        began = time.monotonic()
        rows = []
        policies: dict[str, Any] = {}
        for policy in current_identity["policies"]:
            policy_rows, numbers, extra = self._policy(subject, plan, through, policy)
            step = current_identity["policies"][policy]["step"]
            rows += [{**row, "step": step, "policy": policy} for row in policy_rows]
            policies[policy] = {**current_identity["policies"][policy], "numbers": dict(numbers), **extra}
        prompts = prompts_of(plan.task, plan.settings["split"], rows) if plan.task else {}
        for row in rows:  # each prompt once, for readers
            if row["problem"] in prompts and "completion" in row:
                row["prompt"] = prompts.pop(row["problem"])
        data = b"".join(files.line(row) for row in rows)
        about = {
            **current_identity,
            "policies": policies,
            "through": through,
            "subject": subject.name,
            "ours": plan.task is not None,
            "caveat": plan.task.caveat if plan.task else "",
            "sandbox": plan.task.sandbox() if plan.task else "",
            "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "seconds": round(time.monotonic() - began, 3),
            "rows": len(rows),
            "rows_sum": hashlib.sha256(data).hexdigest(),
            "versions": dict(provenance.versions()),
            "harness": lm_eval.version() if through == "lm-eval" else "",
            "code": code,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        files.write_atomic(path.with_suffix(".jsonl"), data)
        text = json.dumps(checksums.seal(files.finite(about)), indent=1)
        files.write_atomic(path, text.encode())
        return EvaluationRecord(subject, path, bounded.parse_json(text), rows)

    def _policy(
        self, subject: Subject, plan: EvaluationPlan, through: Through, policy: Policy
    ) -> tuple[list[Row], Numbers, Mapping[str, Any]]:
        """Rows and numbers of one policy; a base that several runs share is evaluated once."""
        name = f"{subject.name} ({policy})" if subject.run else subject.name
        judge = None
        if self.wish.judge:
            path = subject.evals_parent / "evals" / verdict_file.NAME
            judge = Judge(self.wish.judge, "--judge", path, policy)
        if policy == "model":
            return self._ask(self._model(subject), plan, through, name, judge)
        if policy == "base":
            shared = json.dumps([_base(subject), plan.stem, through], sort_keys=True, default=str)
            if shared not in self.bases:
                self.bases[shared] = self._ask(self._base_model(subject), plan, through, name, judge)
            return self.bases[shared]
        trained, adapter = newest(subject.evals_parent), subject.model.adapter
        assert trained is not None
        # An adapter belongs to the weights that training began with; others are replaced one by one.
        loaded = self._base_model(subject) if adapter else self._model(subject)
        put(loaded, trained[1], adapter)
        if adapter:
            self.loaded = None  # The model has an adapter now, which the next subject's may not.
        return self._ask(loaded, plan, through, name, judge)

    def _model(self, subject: Subject) -> Loaded:
        """The model, with whatever weights it last had."""
        key = subject.model.name, json.dumps(subject.model.template, sort_keys=True)
        if self.loaded is None or self.loaded[0] != key:
            self.loaded = (key, load(subject.model.name, chat_template=subject.model.template))
        return self.loaded[1]

    def _base_model(self, subject: Subject) -> Loaded:
        self.loaded = None  # The weights in memory may be a trained policy's.
        loaded = self._model(subject)
        warm_up(subject, loaded)
        return loaded

    def _ask(
        self, loaded: Loaded, plan: EvaluationPlan, through: Through, name: str, judge: Judge | None
    ) -> tuple[list[Row], Numbers, Mapping[str, Any]]:
        if plan.task is None:
            return self._ask_theirs(loaded, plan)
        if through == "lm-eval":
            return self._ask_lm_eval(loaded, plan)  # The harness shows its own progress.
        with Ticker() as ticker:
            label = f"{name}: {plan.settings['task']}"
            return self._ask_ours(
                loaded, plan, judge, lambda done, of: ticker.tell(f"{label}, {done} of {of} problems")
            )

    def _ask_ours(
        self,
        loaded: Loaded,
        plan: EvaluationPlan,
        judge: Judge | None,
        tell: Callable[[int, int], None],
    ) -> tuple[list[Row], Numbers, Mapping[str, Any]]:
        question, task = plan.settings, plan.task
        assert task is not None
        count = question["problems"] or ALL
        settings = EvaluateConfig(
            samples=question["samples"],
            greedy=question["greedy"],
            problems=count,
            test_problems=count,
            temperature=question["temperature"],
        )
        models = RoleModels(loaded.model, dtype=question["dtype"])
        evaluator = Evaluator(
            task,
            loaded,
            HFSampler(models, loaded.end, loaded.pad, ROWS, loaded.context),
            settings,
            question["seed"],
            question["max_completion_tokens"],
            at_once=ROWS,
            tell=tell,
            texts=True,
            models=models,
            long_prompts=question["long_prompts"],
            judge=judge,
        )
        extra = {"model": loaded.provenance, "chat_template": loaded.has_chat_template}
        return *evaluator.evaluate(0, question["split"]), extra

    def _ask_lm_eval(
        self, loaded: Loaded, plan: EvaluationPlan
    ) -> tuple[list[Row], Numbers, Mapping[str, Any]]:
        question, task = plan.settings, plan.task
        assert task is not None
        split: Split = question["split"]
        room = Room(loaded, question["max_completion_tokens"], question["long_prompts"])
        problems = room.first(question["problems"] or ALL, task.problems(split), split)
        decoding = lm_eval.PromptFormat(
            question["max_completion_tokens"],
            question["samples"],
            question["greedy"],
            question["temperature"],
            question["seed"],
            question["dtype"],
        )
        with contextlib.ExitStack() as stack:
            tasks_folder = self.wish.tasks_folder
            if tasks_folder is None:
                tasks_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grpobench-")))
            answers_by_mode, means = lm_eval.ask(loaded, task, split, problems, decoding, tasks_folder)
        rows: list[Row] = []
        numbers: dict[str, float] = {}
        for mode, answers in answers_by_mode.items():
            rows += rows_of(0, split, mode, problems, answers)
            summary = summarize(task, problems, answers)
            numbers |= {f"eval/{split}/{mode}/{name}": value for name, value in summary.items()}
        return rows, numbers | means, {"model": loaded.provenance}

    def _ask_theirs(
        self, loaded: Loaded, plan: EvaluationPlan
    ) -> tuple[list[Row], Numbers, Mapping[str, Any]]:
        question = plan.settings
        rows, numbers = lm_eval.ask_theirs(
            loaded,
            question["task"],
            question["problems"],
            question["fewshot"],
            question["chat_template"],
            question["seed"],
            question["dtype"],
            self.wish.include,
        )
        return rows, numbers, {"model": loaded.provenance}


# Which weights


def newest(run_folder: Path) -> tuple[int, Path] | None:
    """(step, file) of a run's final weights, else of its newest checkpoint; None without either. Of a
    checkpoint that several ranks have written it is the folder."""
    final = run_folder / "final" / "policy.safetensors"
    if final.exists():
        return int(status(run_folder).get("step", 0)), final
    saved = [
        (int(path.parent.name[5:]), path) for path in run_folder.glob("checkpoints/step-*/policy.safetensors")
    ]
    several = [path for path in run_folder.glob("checkpoints/step-*") if checkpoints.is_sharded(path)]
    return max(saved + [(int(path.name[5:]), path) for path in several], default=None)


def lack_of_weights(run_folder: Path) -> str:
    """Why a run has no weights, and the remedy."""
    table = bounded.read_toml(run_folder / "run.toml")
    if settled(run_folder) and not table.get("checkpoint", {}).get("weights", True):
        return (
            f"{run_folder} kept no weights (checkpoint.weights = false); delete it and run it again with them"
        )
    return f"{run_folder} has neither final weights nor a checkpoint; run it first"


def weights_damage(run_folder: Path) -> str:
    """Why the newest weights of a run are damaged; empty if they are whole, or if an older version left no
    checksums."""
    if faults := result_damage(run_folder):
        return "\n".join(faults)
    trained = newest(run_folder)
    if trained is None:
        return ""
    _, path = trained
    if path.is_dir():
        why = checkpoints.damage(path)
        return why and f"{path}: {why}; restore it, or delete {path}"
    try:
        recorded_sum = checkpoints.written(path)
    except ValueError as error:
        return str(error)
    if recorded_sum in ("", bounded.sha256(path)):
        return ""
    remedy = (
        f"delete {run_folder} to run it again" if path.parent.name == "final" else f"delete {path.parent}"
    )
    return f"{path}: was changed since it was written (its sha256 differs); restore it, or {remedy}"


def warm_up(subject: Subject, loaded: Loaded) -> None:
    """Give a run's model the weights that training began with. Raises DataError where only an adapter was
    trained, and the weights beneath it are not the run's any more."""
    warm_fingerprint = {}
    if subject.model.warm_start:
        task = subject.trained_task
        assert task is not None
        warm_fingerprint["warm start"] = weights_hash(
            warm_start(loaded, task, subject.model, lambda *_: None)
        )
    if subject.model.adapter is None:
        return
    run_provenance = bounded.object_or_empty(subject.evals_parent / "provenance.json")
    fingerprint_by_name = run_provenance.get("fingerprints", {})
    now = warm_fingerprint | model_files.fingerprint(subject.model.name)
    changes = fingerprints.differences(
        {name: fingerprint_by_name[name] for name in BENEATH if name in fingerprint_by_name}, now
    )
    if changes:
        raise DataError(
            f"{subject.evals_parent} trained an adapter, and the weights beneath it are others now "
            f"({'; '.join(changes)}); put the model's files back, or the warm start's folder in the cache"
        )


def put(loaded: Loaded, path: Path, adapter: Adapter | None = None) -> None:
    """Load a run's weights into its model, without the optimizer's moments; with an `adapter`, into one that
    the model then has. Raises DataError for weights of another model."""
    import torch

    tensors = checkpoints.tensors_of(path, "policy") if path.is_dir() else checkpoints.read_tensors(path)
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith(MOMENT)}
    if adapter:
        adapters.attach(loaded.model, adapter)
    parameters = adapters.trained(loaded.model) if adapter else dict(loaded.model.named_parameters())
    if weights.keys() != parameters.keys():
        raise DataError(f"{path} has the weights of another model; restore the run folder")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def _base(subject: Subject) -> dict[str, Any]:
    """What decides a model, or a run's base model: its files (for a model of the hub its id) and warm
    start."""
    model_folder = locate(subject.model.name)
    weights = [*Path(model_folder).glob("*.safetensors"), *Path(model_folder).glob("*.bin")]
    return {
        "model": strict.plain(subject.model),
        "files": {path.name: bounded.sha256(path) for path in sorted(weights)},
        "task": subject.run.get("task") if subject.model.warm_start else None,
    }


def identity(subject: Subject, plan: EvaluationPlan, base: bool) -> dict[str, Any]:
    """What decides the answers, as a record keeps it: the question and, by policy, the weights."""
    policies: dict[str, Any] = {}
    if not subject.run:
        policies["model"] = {"step": 0, "weights": _base(subject)}
    else:
        if base:
            policies["base"] = {"step": 0, "weights": _base(subject)}
        trained = newest(subject.evals_parent)
        assert trained is not None
        step, path = trained
        digest = weights_hash(path) if path.is_dir() else bounded.sha256(path)
        policies["final"] = {"step": step, "weights": digest}
    plain: dict[str, Any] = json.loads(json.dumps({"settings": plan.settings, "policies": policies}))
    return plain


def unchanged(
    before: Mapping[str, Any], current_identity: Mapping[str, Any], code: Mapping[str, str]
) -> bool:
    """Whether a record answers the question with weights, code and versions as they are now. For a model of
    the hub only its name is compared."""
    policies = {
        name: {key: policy_record.get(key) for key in ("step", "weights")}
        for name, policy_record in before.get("policies", {}).items()
    }
    return (
        not checksums.broken(before)
        and before.get("settings") == current_identity["settings"]
        and before.get("harness") in ("", lm_eval.version())
        and policies == current_identity["policies"]
        and not provenance.code_differences(before, {"versions": provenance.versions(), "code": code})
    )
