"""Rerun two seeds of a contribution and compare what they measure with what was contributed."""

# A machine of another kind rounds differently, after which a run samples other completions. A contribution
# therefore need not return to the digit, but within what its seeds differ by among each other.

from __future__ import annotations

import hashlib
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from grpobench.analysis.runfolder.experiment import Experiment, Run
from grpobench.analysis.runfolder.load import load
from grpobench.runs.handover.publishing import fileset
from grpobench.runs.handover.publishing.contribute import CheckedFileSet
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
COMPARED = "eval/.*/correct|cost/generated_tokens"
"""Metrics that must return."""
SMALLEST_SPREAD = 0.05
"""Standard deviation over seeds of the tokens that is assumed at least, as a share: two seeds may agree by
chance."""
VARYING = ("time/", "cost/peak_memory_gb")
"""Metrics that differ between two equal runs."""
KEYS = ["arm", "task", "step", "metric"]


def verify(checked: CheckedFileSet, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run two seeds of each experiment and finding of a checked file set again, as its settings say, one run
    after the other. `tell` gets a line for each. Raises ConfigError for a result that does not return, and
    for settings that cannot be run here, such as a class of the contributor's.

    Returns what verified.json holds: by experiment the `seeds` of every arm and task that were run again, the
    number of these `runs`, and of those that are `identical` in every number."""
    kinds = checked.manifest.kinds
    claims = {name: claim for name, claim in checked.experiments.items() if kinds[name] != "profile"}
    if not claims:
        why = "has profiles alone, which --verify does not run again; use --check"
        raise ConfigError([f"{checked.folder}: {why}"])
    chosen = {name: choose_seeds(checked.folder, claim.seeds) for name, claim in claims.items()}
    faults: list[str] = []
    runs = identical = 0
    for name, claim in claims.items():
        with tempfile.TemporaryDirectory(prefix="grpobench-") as temporary:
            configs = {run.name: read_config(claim.folder / run.name) for run in claim.runs}
            for run in claim.runs:
                if run.seed in chosen[name]:
                    tell(f"{name}: running {run.name} again")
                    run_again(configs[run.name], run, Path(temporary) / run.name)
            rerun = load(Path(temporary), strict=True)
        pairs = paired(claim, rerun)
        faults += departures(claim, pairs)
        runs += len(rerun.runs)
        identical += count_identical(pairs)
    if faults:
        raise ConfigError(faults, f"{checked.folder}: does not return")
    return {"seeds": chosen, "runs": runs, "identical": identical, "grpobench": version_of("grpobench")}


def choose_seeds(folder: Path, seeds: Sequence[int]) -> list[int]:
    """Two of an experiment's seeds, drawn by the checksums of the set: whoever changes a log draws anew."""
    drawn = random.Random(hashlib.sha256(bounded.read_bytes(folder / fileset.SUMS)).digest())
    return sorted(drawn.sample(seeds, min(SEEDS, len(seeds))))


def read_config(run: Path) -> RunConfig:
    """The settings of a run, without its callbacks. Raises ConfigError."""
    try:
        return replace(stored.load(bounded.read_text(run / "run.toml")), observe=())
    except ConfigError as error:
        raise ConfigError([f"{run.name}: {fault}" for fault in error.faults], "cannot be run here") from error


def run_again(config: RunConfig, claimed: Run, path: Path) -> None:
    """Run into the folder `path` with the threads of the `claimed` run, on which sums depend."""
    threads = torch.get_num_threads()
    torch.set_num_threads(int(claimed.provenance["attempts"][-1]["threads"]))
    try:
        with RunFolder.open(path, config) as folder:
            execute(config, folder, lambda progress: None, lambda: False)
    finally:
        torch.set_num_threads(threads)


def paired(claimed: Experiment, rerun: Experiment) -> pd.DataFrame:
    """The numbers of the runs of both: KEYS, seed, `value` and `value_again`, NaN where one lacks it."""
    logged, again = (
        log[~log["metric"].astype(str).str.startswith(VARYING)] for log in (claimed.metrics, rerun.metrics)
    )
    logged = logged[logged["seed"].isin(rerun.seeds)]
    pairs = logged.merge(again, how="outer", on=[*KEYS, "seed"], suffixes=("", "_again"))
    return pairs.astype({"metric": str})


def count_identical(pairs: pd.DataFrame) -> int:
    """How many runs return in every number."""
    same = (pairs["value"] == pairs["value_again"]) | (pairs["value"].isna() & pairs["value_again"].isna())
    return int(same.groupby([pairs["arm"], pairs["task"], pairs["seed"]]).all().sum())


def departures(claimed: Experiment, pairs: pd.DataFrame) -> Iterator[str]:
    """The numbers that differ by more than chance between logs and rerun, the first of each arm on a task:
    accuracies at each evaluation, and generated tokens, as means over the seeds that were run again.

    A number's variance is that over the seeds of the arm, and that of the answered problems in an accuracy;
    the difference of two means of n runs has 2/n of it. The deviation over seeds is 1.4826 times the median
    absolute deviation, so that a few wild seeds cannot widen what is accepted."""
    evaluate = {(run.arm, run.task): run.config["evaluate"] for run in claimed.runs}
    values = claimed.metrics.astype({"metric": str}).groupby(KEYS)["value"]
    departed = set()
    for key, rows in pairs[pairs["metric"].str.fullmatch(COMPARED)].groupby(KEYS):
        arm, task, step, metric = key
        logged, again = rows[["value", "value_again"]].mean(skipna=False)
        if (arm, task) in departed or (math.isnan(logged) and math.isnan(again)):
            continue
        among = (values.get_group(key) if key in values.groups else rows["value"]).fillna(math.inf)
        spread = DEVIATION * (among - among.median()).abs().median()
        least = SMALLEST_SPREAD * again
        if metric.startswith("eval/"):
            problems = "test_problems" if metric.startswith("eval/test/") else "problems"
            least = math.sqrt(again * (1 - again) / max(1, evaluate[arm, task][problems]))
        allowed = WIDEST * math.sqrt(2 / len(rows)) * math.hypot(spread, least)
        if not abs(again - logged) <= allowed:  # a number that one of them lacks departs too
            departed.add((arm, task))
            yield (
                f"{arm} on {task}: {metric} at step {step} is {logged:g} by {len(rows)} logs, and {again:g} "
                f"when they are run again; chance explains {allowed:.2g}"
            )
