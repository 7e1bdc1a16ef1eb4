"""Rerun two seeds of a contribution and compare what they measure with what was contributed."""

# A machine of another kind rounds differently, after which a run samples other completions. A contribution
# therefore need not return to the digit, but within what its seeds differ by among each other.

from __future__ import annotations

import hashlib
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpobench.runs.publishing import fileset
from grpobench.runs.publishing.fileset import Manifest, PublishedExperiment
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings import stored
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.installed import version_of
from grpobench.runs.tools.strict import ConfigError
from grpobench.runs.train.execute import execute
from grpobench.tasks.data import bounded

SEEDS = 2
"""Seeds of each experiment that are run again."""
WIDEST = 4.0
"""Standard errors of a difference that are accepted: a contribution has a hundred numbers, of which one
exceeds three by chance now and then."""
DEVIATION = 1.4826
"""A normal variable's standard deviation over its median absolute deviation."""
TOKENS = "cost/generated_tokens"
SMALLEST_SPREAD = 0.05
"""Standard deviation over seeds of the tokens that is assumed at least, as a share: two seeds may agree by
chance."""
VARYING = ("time/", "cost/peak_memory_gb")
"""Metrics that differ between two equal runs."""
Log = Mapping[int, Mapping[str, Any]]
"""Rows of metrics.jsonl by step."""


@dataclass(frozen=True)
class Verification:
    """What was run again, all of which agrees with the contribution."""

    seeds: Mapping[str, Sequence[int]]
    """By experiment, the seeds of every arm and task that were run again. A profile is not."""
    runs: int
    identical: int
    """Of these runs, those whose logs are equal in every number."""

    def plain(self) -> dict[str, Any]:
        """As verified.json holds it."""
        seeds = {name: list(chosen) for name, chosen in self.seeds.items()}
        return {
            "seeds": seeds,
            "runs": self.runs,
            "identical": self.identical,
            "grpobench": version_of("grpobench"),
        }


def verify(folder: Path, manifest: Manifest, tell: Callable[[str], None]) -> Verification:
    """Run two seeds of each experiment and finding of a checked file set again, as its settings say, one run
    after the other. `tell` gets a line for each. Raises ConfigError for a result that does not return, and
    for settings that cannot be run here, such as a class of the contributor's."""
    parts = [part for part in manifest.experiments if part.kind != "profile"]
    if not parts:
        raise ConfigError([f"{folder}: has profiles alone, which --verify does not run again; use --check"])
    faults: list[str] = []
    counts = [0, 0]
    chosen = {part.name: choose_seeds(folder, part) for part in parts}
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="grpobench-") as temporary:
            claimed = Path(temporary) / part.name
            fileset.unpack(folder / fileset.ARCHIVES / f"{part.name}.tar.zst", claimed)
            configs = {name: read_config(claimed / name) for name in part.runs}
            cells: dict[tuple[str, str], list[str]] = {}
            for name, config in configs.items():
                cells.setdefault((config.arm, config.task.name), []).append(name)
            for names in cells.values():
                pairs = []
                for name in (name for name in names if configs[name].seed in chosen[part.name]):
                    tell(f"{part.name}: running {name} again")
                    rerun = run_again(configs[name], claimed / name, Path(temporary) / "again" / name)
                    pairs.append((read_log(claimed / name), rerun))
                counts[0] += len(pairs)
                counts[1] += sum(equal(*pair) for pair in pairs)
                replicates = [read_log(claimed / name) for name in names]
                faults += list(departures(pairs, replicates, configs[names[0]]))
    if faults:
        raise ConfigError(faults, f"{folder}: does not return")
    return Verification(chosen, *counts)


def choose_seeds(folder: Path, part: PublishedExperiment) -> list[int]:
    """Two of an experiment's seeds, drawn by the checksums of the set: whoever changes a log draws anew."""
    drawn = random.Random(hashlib.sha256(bounded.read_bytes(folder / fileset.SUMS)).digest())
    return sorted(drawn.sample(part.seeds, min(SEEDS, len(part.seeds))))


def read_config(run: Path) -> RunConfig:
    """The settings of a run, without its callbacks. Raises ConfigError."""
    try:
        return replace(stored.load(bounded.read_text(run / "run.toml")), observe=())
    except ConfigError as error:
        raise ConfigError([f"{run.name}: {fault}" for fault in error.faults], "cannot be run here") from error


def read_log(run: Path) -> dict[int, Mapping[str, Any]]:
    return {int(row["step"]): row for row in bounded.read_rows(run / "metrics.jsonl")}


def run_again(config: RunConfig, claimed: Path, path: Path) -> dict[int, Mapping[str, Any]]:
    """The log of a new run with the threads of the `claimed` one, on which sums depend."""
    attempts = bounded.read_object(claimed / "provenance.json")["attempts"]
    threads = torch.get_num_threads()
    torch.set_num_threads(int(attempts[-1]["threads"]))
    try:
        with RunFolder.open(path, config) as folder:
            execute(config, folder, lambda progress: None, lambda: False)
    finally:
        torch.set_num_threads(threads)
    return read_log(path)


def equal(claimed: Log, rerun: Log) -> bool:
    """Whether two logs agree in every number but times and memory."""
    plain = [
        {
            step: {name: value for name, value in row.items() if not name.startswith(VARYING)}
            for step, row in log.items()
        }
        for log in (claimed, rerun)
    ]
    return plain[0] == plain[1]


def departures(
    pairs: Sequence[tuple[Log, Log]], replicates: Sequence[Log], config: RunConfig
) -> Iterator[str]:
    """The first number of an arm on a task that differs by more than chance between its logs and the new
    runs, given in pairs: accuracies at each evaluation, and generated tokens, as means over the pairs.

    A number's variance is that over the seeds of the arm (`replicates`), and that of the answered problems in
    an accuracy; the difference of two means of n runs has 2/n of it. The deviation over seeds is 1.4826 times
    the median absolute deviation, so that a few wild seeds cannot widen what is accepted."""
    where = f"{config.arm} on {config.task.name}"
    for claimed, rerun in pairs:
        if {*claimed} != {*rerun}:
            yield f"{where}: a log has {len(claimed)} rows, and {len(rerun)} when it is run again"
            return
    steps = sorted(set.intersection(*({*claimed} for claimed, _ in pairs)))
    for step in steps:
        for name in pairs[0][0][step]:
            is_accuracy = name.startswith("eval/") and name.endswith("/correct")
            if not (is_accuracy or name == TOKENS):
                continue
            logged, again = (mean_of([pair[side][step].get(name) for pair in pairs]) for side in (0, 1))
            if math.isnan(logged) and math.isnan(again):
                continue
            among = np.array([number(log.get(step, {}).get(name)) for log in replicates])
            if is_accuracy:
                least = math.sqrt(again * (1 - again) / answered(name, config))
            else:
                least = SMALLEST_SPREAD * again
            spread = DEVIATION * float(np.median(abs(among - np.median(among))))
            allowed = WIDEST * math.sqrt(2 / len(pairs)) * math.hypot(spread, least)
            if not abs(again - logged) <= allowed:
                yield (
                    f"{where}: {name} at step {step} is {logged:g} by {len(pairs)} logs, and {again:g} when "
                    f"they are run again; chance explains {allowed:.2g}"
                )
                return


def number(value: Any) -> float:
    """A number of a log; NaN for anything else."""
    return float(value) if isinstance(value, int | float) else math.nan


def mean_of(values: Sequence[Any]) -> float:
    return sum(map(number, values)) / len(values)


def answered(name: str, config: RunConfig) -> int:
    """Problems behind an accuracy."""
    problems = config.evaluate.test_problems if name.startswith("eval/test/") else config.evaluate.problems
    return max(1, problems)
