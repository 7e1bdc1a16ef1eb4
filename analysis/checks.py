"""Checks of runs that are compared: whether they are made the same way, and whether anything is missing.

The first half finds differences in settings, versions, code, data and models. The second half finds files and
rows that are missing, folders that are in the wrong place, runs that were not planned, and evaluated problems
that were also trained on.

Everything that a reader must know before the numbers, and whether runs are paired as planned.

`find_alarms` applies all checks to the logs. It returns nothing for an experiment that one launcher ran to
its end on one machine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpobench.analysis.runfolder.experiment import (
    DAMAGED,
    Experiment,
    Run,
    attempts,
    by_run,
    describe,
    histories,
    import_record,
    plain_value,
    read_digests,
)
from grpobench.analysis.tools.text import listed
from grpobench.analysis.topics.accuracy import headline_of
from grpobench.analysis.topics.runs import IDENTITY, digests, resolved_settings
from grpobench.analysis.topics.search import find_unsearched_values

# Differences between runs

WITHOUT_EFFECT = ("checkpoint.", "checks.")
"""Prefixes of settings that do not change results."""
PINNED_BY: Mapping[str, Sequence[str]] = {
    "train problems": ("task",),
    "validation problems": ("task", "evaluate", "model.long_prompts"),
    "test problems": ("task", "evaluate", "model.long_prompts"),
    "model weights": ("model.name",),
    "model configuration": ("model.name",),
    "tokenizer": ("model.name",),
    "warm start": ("task", "model"),
    "reward model": ("task", "reward"),
    "preference file": ("sampler.path",),
    "trl": ("train.backend",),
}
"""Fingerprint -> the settings that determine it. Runs with equal settings must have equal fingerprints."""
HASH_DIGITS = 12
"""Characters of a hash that are shown."""


def find_changes_within_runs(experiment: Experiment) -> Iterable[str]:
    """Runs in which something changed between attempts."""
    for run in experiment.runs:
        changes = [f"{name} {describe(stretches)}" for name, stretches in histories(run).items()]
        if changes:
            yield f"{run.name}: {'; '.join(changes)}"


def find_setting_differences(experiment: Experiment) -> Iterable[str]:
    """Seeds of an arm that differ in a setting."""
    cells: dict[tuple[str, str], list[Run]] = {
        (t, arm): [] for t in experiment.tasks for arm in experiment.arms
    }
    for run in experiment.runs:
        cells[run.task, run.arm].append(run)
    for (task, arm), cell_runs in cells.items():
        runs = [run for run in cell_runs if run.config]
        flat = {run.seed: resolved_settings(run) for run in runs}
        for key in dict.fromkeys(key for config in flat.values() for key in config):
            if key in IDENTITY or key.startswith(WITHOUT_EFFECT):
                continue
            values = _by({seed: _text(config.get(key)) for seed, config in flat.items()})
            if len(values) > 1:
                values_text = ", ".join(f"{value} in seed {listed(seeds)}" for value, seeds in values.items())
                yield f"{arm} on {task}: {key} is {values_text}"


def find_version_differences(experiment: Experiment) -> Iterable[str]:
    """Versions and devices that differ between the last attempts of runs."""
    last_attempts = {run.name: tried[-1] for run in experiment.runs if (tried := attempts(run))}
    installed = {
        name: {**record.get("versions", {}), "device": record.get("device")}
        for name, record in last_attempts.items()
    }
    for key in dict.fromkeys(key for record in installed.values() for key in record):
        yield from _difference_lines(
            key, {name: _text(record.get(key)) for name, record in installed.items()}
        )


def find_code_differences(experiment: Experiment) -> Iterable[str]:
    """Source files that differ between runs that depend on them."""
    for file, runs_by_digest in sorted(digests(experiment).items()):
        yield from _difference_lines(
            file, {name: digest for digest, names in runs_by_digest.items() for name in names}
        )


def find_data_differences(experiment: Experiment) -> Iterable[str]:
    """Problems and models that differ between runs with the same settings."""
    for fingerprint, settings in PINNED_BY.items():
        groups: dict[str, dict[str, str]] = {}
        for run in experiment.runs:
            fingerprints = run.provenance.get("fingerprints", {})
            if fingerprint in fingerprints:
                chosen = [
                    (k, v) for k, v in resolved_settings(run).items() if f"{k}.".startswith(_dots(settings))
                ]
                groups.setdefault(json.dumps(chosen, default=str), {})[run.name] = str(
                    fingerprints[fingerprint]
                )[:HASH_DIGITS]
        for group in groups.values():
            yield from _difference_lines(fingerprint, group)


def _dots(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{name}." for name in names)


def _difference_lines(what: str, values: Mapping[str, str]) -> Iterable[str]:
    """One line if runs differ: each value with its runs; for the most frequent value only their number."""
    runs_by_value = sorted(_by(values).items(), key=lambda pair: -len(pair[1]))
    if len(runs_by_value) > 1:
        parts = [
            f"{value} in {listed(names) if n else f'{len(names)} runs'}"
            for n, (value, names) in enumerate(runs_by_value)
        ]
        yield f"{what}: {'; '.join(parts)}"


def _by(values: Mapping[Any, str]) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for name, value in values.items():
        grouped.setdefault(value, []).append(name)
    return grouped


def _text(value: Any) -> str:
    return "absent" if value is None else plain_value(str(value))


# Missing, misplaced and unplanned files and runs

PROMPT = 10
"""Characters of a problem's digest that identify its prompt."""
NONFINITE = "grad/nonfinite"
"""Number of updates in a step that were skipped because a loss, reward or gradient was not finite."""


def find_incomplete_runs(experiment: Experiment, weights: bool = True) -> Iterable[str]:
    """Runs with a result whose folder lacks files or rows that every run writes. Without `weights`, which may
    have stayed on the machine that trained them, only what is read here counts."""
    steps = experiment.metrics.groupby(["arm", "task", "seed"], sort=False)["step"].unique()
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
    if (record := import_record(run)) and not record.get(
        "answers"
    ):  # other libraries may log only summaries of evaluations
        return []
    summed = {
        (int(step), *str(metric).split("/")[1:3])
        for step, metric in summaries[["step", "metric"]].drop_duplicates().itertuples(index=False)
    }
    answered = {*rows[["step", "split", "mode"]].itertuples(index=False, name=None)} if len(rows) else set()
    if summed and not answered:
        return ["eval.jsonl is missing or empty"]
    lost = sorted(summed - answered)
    return [f"eval.jsonl lacks {' '.join(map(str, one))}" for one in lost[:1]] + (
        [f"and {len(lost) - 1} more evaluations"] if len(lost) > 1 else []
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
    for name, who in experiment.strangers.items():
        yield f"{name} contains {who}, according to its run.toml; it is not counted"
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
        everything = set().union(*arms.values()) if arms else set()
        for arm, seeds in arms.items():
            if lost := sorted(everything - seeds):
                yield f"{arm} on {task} has no run of seed {listed(lost)}, which other arms have"


def find_leaked_problems(experiment: Experiment) -> Iterable[str]:
    """Evaluated problems that the same run could train on, according to the digests that it stored."""
    leaks: dict[str, list[str]] = {}
    for name, by_split in read_digests(experiment)[0].items():
        trained = {*by_split.get("train", {}).values()}
        for split, problems in by_split.items():
            both = [key for key, one in problems.items() if one in trained or one[:PROMPT] in trained]
            if split != "train" and both:
                share = f"{len(both)} of {len(problems)} {split} problems"
                what = f"{share} are training problems, such as {both[0]}"
                leaks.setdefault(what, []).append(name)
    for what, names in leaks.items():
        yield f"{what}: {listed(names)}"


MOST = 3
"""Faults of a run that are listed; provenance.json has all."""
SAME_VALUE = 1e-9
"""Values closer than this are equal: they are sums of floats."""

# Runs that were imported from logs of other libraries


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


# Whether runs are paired: the same start inside a seed


@dataclass(frozen=True)
class Pairing:
    """What the logs say about the paired design."""

    base_agrees: int
    """Of `base_groups`, how many have equal accuracies before training."""
    base_groups: int
    """(task, seed) groups of at least two arms."""
    first_agrees: int
    first_groups: int
    """The same for the mean score of the first update's rollouts."""
    odd: Sequence[str]
    """The groups that disagree, in words."""


def check_pairing(experiment: Experiment) -> Pairing:
    """Compare the arms of each seed where they must be equal: equal initial weights give equal accuracies
    before training, and equal schedules and seeds give equal scores of the first rollouts. A different warm
    start, sampler or curriculum breaks this."""
    base: list[tuple[str, bool]] = []
    first: list[tuple[str, bool]] = []
    for task in experiment.tasks:
        base += _compare_seeds(experiment, task, headline_of(experiment, task).metric, step=0)
        first += _compare_seeds(experiment, task, "score/correct", step=1)
    differing = [f"{group}: accuracy before training" for group, is_equal in base if not is_equal]
    differing += [f"{group}: first rollouts" for group, is_equal in first if not is_equal]
    return Pairing(_count_equal(base), len(base), _count_equal(first), len(first), differing)


def _compare_seeds(experiment: Experiment, task: str, metric: str, step: int) -> list[tuple[str, bool]]:
    """Each seed of a task that several arms ran, and whether their values of a metric are equal at a step."""
    frame = experiment.select(metric)
    at_step = frame[(frame["task"] == task) & (frame["step"] == step)]
    return [
        (f"{task} seed {seed}", float(arms["value"].max() - arms["value"].min()) < SAME_VALUE)
        for seed, arms in at_step.groupby("seed")
        if len(arms) > 1
    ]


def _count_equal(groups: Sequence[tuple[str, bool]]) -> int:
    return sum(is_equal for _, is_equal in groups)


# Everything that a reader must know first


@dataclass(frozen=True)
class Alarm:
    """A fact that a reader must know before the numbers, with its details."""

    title: str
    lines: Sequence[str]


DAMAGED_TITLE = "Damaged, and counted nowhere until it is mended"
SPARED = "Damaged, and needed by no number"
IMPORTED = "Imported from logs of others"


def find_alarms(
    experiment: Experiment, damage: Sequence[str] = (), spared: Sequence[str] = ()
) -> list[Alarm]:
    """Everything that is damaged, not uniform, not as planned, or missing. `damage` and `spared` of `Numbers`
    list files that could not be read."""
    alarms = [Alarm(title, lines) for title, lines in ((DAMAGED_TITLE, damage), (SPARED, spared)) if lines]
    return alarms + [Alarm(title, lines) for title, find in CHECKS.items() if (lines := [*find(experiment)])]


CHECKS: Mapping[str, Callable[[Experiment], Iterable[str]]] = {
    "Changed while the run ran": find_changes_within_runs,
    "Evaluated on problems that were trained on": find_leaked_problems,
    "Updates left out for a loss, reward or gradient that is not finite": find_skipped_updates,
    "Logs that lack something": find_incomplete_runs,
    "Left out of what was imported": find_import_faults,
    IMPORTED: find_imported_logs,
    "Folders that are not what they say": find_misplaced_folders,
    "Not as planned": find_unplanned_runs,
    "Not what the search chose": find_unsearched_values,
    "Seeds of one arm with different settings": find_setting_differences,
    "Different data or models under the same settings": find_data_differences,
    "Different versions or devices": find_version_differences,
    "Different code": find_code_differences,
}
"""Title in the report -> the check that returns its lines."""
