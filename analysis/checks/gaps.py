"""What is missing from the logs of runs, or is not as planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpobench.analysis.runfolder.experiment import (
    DAMAGED,
    RUN_KEYS,
    Experiment,
    Run,
    attempts,
    by_run,
    import_record,
    read_digests,
)
from grpobench.analysis.tools.text import listed
from grpobench.analysis.topics.accuracy import headline_of
from grpobench.analysis.topics.runs import resolved_settings

PROMPT = 10
"""Characters of a problem's digest that identify its prompt."""


NONFINITE = "grad/nonfinite"
"""Number of updates in a step that were skipped because a loss, reward or gradient was not finite."""


def find_incomplete_runs(experiment: Experiment, weights: bool = True) -> Iterable[str]:
    """Runs with a result whose folder lacks files or rows that every run writes. Without `weights`, which may
    have stayed on the machine that trained them, only what is read here counts."""
    steps = experiment.metrics.groupby(RUN_KEYS, sort=False)["step"].unique()
    evaluated = by_run(experiment.metrics[experiment.metrics["metric"].isin(experiment.names("eval/"))])
    answered = by_run(experiment.evaluations)
    for run in experiment.runs:
        if run.state in ("missing", DAMAGED):
            continue
        lost = [line for line in run.lost if weights or "/final/" not in line.partition(": ")[0]]
        faults = lost if run.provenance else ["provenance.json is missing", *lost]
        key = (run.arm, run.task, run.seed)
        if run.settled:
            logged = {int(step) for step in steps[key]} if key in steps.index else set()
            faults += _lost_steps(run, logged)
            faults += _lost_evaluations(run, evaluated(run), answered(run))
        if faults:
            yield f"{run.name}: {'; '.join(faults)}"


def _lost_steps(run: Run, logged: set[int]) -> list[str]:
    if not logged:
        return ["metrics.jsonl is missing or empty, so the run is not counted"]
    if record := import_record(run):  # other libraries may log only some steps
        lost_rows = int(record.get("rows", 0)) - len(logged)
        return [f"metrics.jsonl lacks {lost_rows} of {record['rows']} rows"] if lost_rows > 0 else []
    last = resolved_settings(run).get("train.steps", run.step) if run.finished else run.step
    lost = sorted({*range(int(last) + 1)} - logged)
    return (
        [f"metrics.jsonl lacks {len(lost)} of {last + 1} rows, the first of step {lost[0]}"] if lost else []
    )


def _lost_evaluations(run: Run, summaries: Any, rows: Any) -> list[str]:
    """Evaluations whose summary is in metrics.jsonl and whose answers are not in eval.jsonl."""
    # Other libraries may log only summaries of evaluations.
    if (record := import_record(run)) and not record.get("answers"):
        return []
    summed = {
        (int(step), *str(metric).split("/")[1:3])
        for step, metric in summaries[["step", "metric"]].drop_duplicates().itertuples(index=False)
    }
    answered = {*rows[["step", "split", "mode"]].itertuples(index=False, name=None)} if len(rows) else set()
    if summed and not answered:
        return ["eval.jsonl is missing or empty"]
    lost_evaluations = sorted(summed - answered)
    return [f"eval.jsonl lacks {' '.join(map(str, evaluation))}" for evaluation in lost_evaluations[:1]] + (
        [f"and {len(lost_evaluations) - 1} more evaluations"] if len(lost_evaluations) > 1 else []
    )


def find_skipped_updates(experiment: Experiment) -> Iterable[str]:
    """Finished runs that skipped updates; the page lists diverged runs separately."""
    frame = experiment.select(NONFINITE)
    skipped = by_run(frame[frame["value"] > 0])
    for run in experiment.runs:
        steps = skipped(run)["step"]
        if run.finished and len(steps):
            last = resolved_settings(run).get("train.steps", run.step)
            yield f"{run.name}: in {len(steps)} of {last} steps, the last of them {steps.max()}"


def is_copied(experiment: Experiment, run: Run) -> bool:
    """Whether ``import --beside`` copied the run from another experiment."""
    return experiment.imported and run.planned and not import_record(run)


def find_misplaced_folders(experiment: Experiment) -> Iterable[str]:
    """Folders that contain another run than their name says, or a copy of a run."""
    for name, actual_run in experiment.strangers.items():
        yield f"{name} contains {actual_run}, according to its run.toml; it is not counted"
    for run in experiment.runs:
        made_for = run.config.get("experiment", experiment.name)
        if made_for != experiment.name and not is_copied(experiment, run):
            yield f"{run.name} was made for experiment {made_for}, according to its run.toml; it is counted"
    owners: dict[tuple[Any, ...], list[str]] = {}
    for run in experiment.runs:
        for attempt in attempts(run):
            mark = (
                (attempt["id"],)
                if "id" in attempt
                else (attempt.get("pid"), attempt.get("host"), attempt.get("started"))
            )
            if any(mark):
                owners.setdefault(mark, []).append(run.name)
    for names in dict.fromkeys(tuple(sorted(set(names))) for names in owners.values()):
        if len(names) > 1:
            yield f"{listed(names)} come from the same process, so all but one are copies; all are counted"


def find_unplanned_runs(experiment: Experiment) -> Iterable[str]:
    """Runs that were not planned, and seeds that only some arms of a task have."""
    if not experiment.described:
        yield "experiment.json is missing or damaged, so it is unknown which runs were planned"
    if extra := [run.name for run in experiment.runs if not run.planned]:
        yield f"not planned in experiment.json, but counted: {listed(extra)}"
    for task in experiment.tasks:
        arms: dict[str, set[int]] = {}
        for run in experiment.runs:
            if run.task == task:
                arms.setdefault(run.arm, set()).add(run.seed)
        for group in groups_that_share_seeds(experiment, arms):
            everything = set().union(*group.values())
            for arm, seeds in group.items():
                if missing_seeds := sorted(everything - seeds):
                    yield f"{arm} on {task} has no run of seed {listed(missing_seeds)}, which other arms have"


def groups_that_share_seeds(
    experiment: Experiment, arms: Mapping[str, set[int]]
) -> Sequence[Mapping[str, set[int]]]:
    """The arms with their seeds, apart by sweep value where no two sweep values share a seed, as the bases of
    a finding with `seeds_per_base`; else in one group."""
    groups: dict[str, dict[str, set[int]]] = {}
    for arm, seeds in arms.items():
        point = experiment.sweep_values.get(arm)
        groups.setdefault(repr(point and sorted(point.values.items())), {})[arm] = seeds
    seeds_of_groups = [set().union(*group.values()) for group in groups.values()]
    apart = sum(map(len, seeds_of_groups)) == len(set().union(*seeds_of_groups))
    return [*groups.values()] if apart else [arms]


def find_leaked_problems(experiment: Experiment) -> Iterable[str]:
    """Evaluated problems that the same run could train on, according to the digests that it stored."""
    leaks: dict[str, list[str]] = {}
    for name, by_split in read_digests(experiment)[0].items():
        training_digests = {*by_split.get("train", {}).values()}
        for split, problems in by_split.items():
            leaked_keys = [
                key
                for key, digest in problems.items()
                if digest in training_digests or digest[:PROMPT] in training_digests
            ]
            if split != "train" and leaked_keys:
                share = f"{len(leaked_keys)} of {len(problems)} {split} problems"
                leak = f"{share} are training problems, such as {leaked_keys[0]}"
                leaks.setdefault(leak, []).append(name)
    for leak, names in leaks.items():
        yield f"{leak}: {listed(names)}"


MOST = 3
"""Faults of a run that are listed; provenance.json has all."""


def find_imported_logs(experiment: Experiment) -> Iterable[str]:
    """The libraries that wrote the imported logs, the experiments of copied runs, and runs whose final
    accuracy is from before the last update."""
    kinds: Counter[str] = Counter()
    for run in experiment.runs:
        if record := import_record(run):
            names = f"names of {record['names']}" if record.get("names") else "names of no known library"
            writer = f", written by {record['writer']}" if record.get("writer") else ""
            kinds[f"{record.get('format', 'unknown')} logs with {names}{writer}"] += 1
    for kind, count in kinds.most_common():
        runs = "1 run" if count == 1 else f"{count} runs"
        yield f"{runs} from {kind}: provenance.json says what each metric means there"
    copied: dict[str, list[str]] = {}
    for run in experiment.runs:
        if is_copied(experiment, run):
            copied.setdefault(str(run.config.get("experiment", "")), []).append(run.name)
    for origin, names_of_copies in copied.items():
        yield f"copied from experiment {origin} by import --beside: {listed(names_of_copies)}"
    early: dict[str, list[str]] = {}
    for task in experiment.tasks:
        frame = experiment.select(headline_of(experiment, task).metric)
        last = frame[frame["task"] == task].groupby(["arm", "seed"])["step"].max()
        for run in experiment.runs:
            key = (run.arm, run.seed)
            if run.task != task or not run.finished or not import_record(run) or key not in last.index:
                continue
            if 0 < int(last[key]) < run.step:
                early.setdefault(f"step {last[key]} of {run.step}", []).append(run.name)
    for when, run_names in early.items():
        yield f"the final accuracy is from {when}, the last evaluation in the log: {listed(run_names)}"


def find_import_faults(experiment: Experiment) -> Iterable[str]:
    """Logs that could not be imported, and the rows that each imported run left out: file, line and
    reason."""
    yield from experiment.unimported
    for run in experiment.runs:
        faults = [str(fault) for fault in import_record(run).get("faults", ())]
        if faults:
            more = f"; and {len(faults) - MOST} more, in its provenance.json" if len(faults) > MOST else ""
            yield f"{run.name}: {'; '.join(faults[:MOST])}{more}"
