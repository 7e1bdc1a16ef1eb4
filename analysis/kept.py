"""What the repository keeps of a finished experiment: a small file from which pages of results are written.

A kept table holds what each run measured before and after training and how it was made, and no path of the
machine. Documents are rendered from it, so each of their numbers can be traced to runs of a named commit.

Kept tables as Markdown: the kinds of table that a document can ask for.

A kind is a function of a kept table and the options of the request, and gives lines of Markdown. Shares are
printed in %, means are over seeds.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from grpobench.analysis.checks import (
    find_changes_within_runs,
    find_data_differences,
    find_incomplete_runs,
    find_misplaced_folders,
    find_setting_differences,
)
from grpobench.analysis.runfolder.experiment import DIVERGED, MARGIN, Experiment, SweepPoint, by_run
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.interim import plan_of
from grpobench.analysis.statistics.comparison import compare
from grpobench.analysis.statistics.intervals import Estimate, seed_mean
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.verdicts import ALPHA
from grpobench.analysis.tools.text import (
    NONE,
    interval,
    number,
    p_value,
    percent,
    points,
    shorten_paths,
    signed,
    two,
)
from grpobench.analysis.topics.accuracy import finals, headline_of
from grpobench.analysis.topics.compute import (
    compute_table,
    coverage,
    fit_curves,
    kept_trajectories,
    spent_by_run,
)
from grpobench.analysis.topics.sweep import axes_of, classify_runs, frontier_table, group_cells, map_table
from grpobench.analysis.topics.training import LAST_TENTH, LITTLE, critic_explained

VERSION = 1
"""Version of the file's layout."""
SHARED = ("torch", "transformers")
"""Packages whose versions are kept, as well as Python's."""
RELEASE = re.compile(r"\d+(\.\d+)+[\w.+]*$")
"""Fingerprints of this form are releases of packages, which are kept as well."""
TRAINING = (
    *("reward/", "score/", "groups/zero_signal", "groups/sampled"),
    *("policy/entropy", "length/mean", "critic/"),
    *("trained/share", "trained/zero_signal"),
)
"""Prefixes of training metrics whose first and last values are kept."""
MIXTURES = (find_changes_within_runs, find_misplaced_folders, find_setting_differences, find_data_differences)
"""Checks that must find nothing: otherwise the experiment does not compare what its settings say."""
MODES = ("sampled", "greedy", "likelihood")
DECIMALS = 6


@dataclass(frozen=True)
class KeptTable:
    """The content of a kept table."""

    name: str
    command: str
    """The command that repeats the runs."""
    commits: Mapping[str, int]
    """Commit -> number of runs; `(none)` without a checkout, and ` and changes` after a commit with
    uncommitted changes."""
    versions: Mapping[str, Sequence[str]]
    machine: Sequence[str]
    """Machines in general words."""
    settings: str
    """Digest of the resolved settings of all runs."""
    seconds: float
    """Total seconds of training and evaluation of all runs."""
    headline: Mapping[str, str]
    """Task -> mode in which the report compares arms."""
    arms: Sequence[str]
    tasks: Sequence[str]
    runs: Sequence[Mapping[str, Any]]
    """arm, task, seed, state, and outcome of a map; accuracy: mode -> [split, before, after, best and last
    validation]; measured: mode/metric -> [before, after]; training: metric -> [first update, mean of the
    last tenth]; validation: mode -> [[step, accuracy], …]; explained: by the critic over the last quarter, or
    null; spent: [[step, tokens, FLOPs, seconds], …] at the evaluations on validation; collapsed_at: the step,
    or null."""
    sweep_values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For a map: by arm, the recipe's `arm` and its `values`."""
    plan: Mapping[str, Any] | None = None
    """The plan by which seeds were added, as in interim.json."""
    margin: float = 100 * MARGIN
    """Points within which arms may be called equivalent."""
    control: str = ""
    """The arm that all others are compared with, if there is one."""

    def of(self, arm: str, task: str) -> list[Mapping[str, Any]]:
        """Runs of an arm on a task, by seed."""
        runs = [run for run in self.runs if run["arm"] == arm and run["task"] == task]
        return sorted(runs, key=lambda run: int(run["seed"]))


def keep(experiment: Experiment) -> dict[str, Any]:
    """The content of an experiment's kept table. Raises LogError if a run has no result, if logs are
    incomplete, or if runs were not made the same way."""
    lacking = [run for run in experiment.runs if not run.settled]
    if lacking:
        names = ", ".join(f"{run.name} ({run.state})" for run in lacking[:5])
        raise LogError(
            f"{experiment.folder}: only whole experiments are kept; {len(lacking)} without result: {names}"
        )
    if faults := [*find_incomplete_runs(experiment)]:
        raise LogError(f"{experiment.folder}: only whole logs are kept; {'; '.join(faults[:5])}")
    if faults := [line for find in MIXTURES for line in find(experiment)]:
        raise LogError(f"{experiment.folder}: only runs of one making are kept; {'; '.join(faults[:5])}")
    explained = by_run(critic_explained(experiment))
    accuracies = {mode: _accuracies(experiment, mode) for mode in MODES}
    ends = _both_ends(experiment)
    outcome, spent = _outcomes(experiment), spent_by_run(experiment)
    collapses = {_key(run): run for run in finals(experiment).itertuples() if math.isfinite(run.collapsed_at)}
    rows = []
    for run in experiment.runs:
        shares = explained(run)["explained"]
        rows.append(
            {
                "arm": run.arm,
                "task": run.task,
                "seed": run.seed,
                "state": run.state,
                **outcome.get(_key(run), {}),
                "accuracy": {
                    mode: by_key[_key(run)] for mode, by_key in accuracies.items() if _key(run) in by_key
                },
                **ends[_key(run)],
                "explained": _rounded(shares.iloc[0]) if len(shares) else None,
                "spent": [[int(step), *map(_rounded, costs)] for step, *costs in spent.get(_key(run), ())],
                "collapsed_at": int(collapses[_key(run)].collapsed_at) if _key(run) in collapses else None,
            }
        )
    return {
        "version": VERSION,
        "name": experiment.name,
        "command": _command(experiment),
        **provenance_of(experiment),
        "settings": _digest(experiment),
        "seconds": round(
            sum(experiment.select(name)["value"].sum() for name in ("time/step", "time/evaluate"))
        ),
        "headline": {task: headline_of(experiment, task).mode for task in experiment.tasks},
        **(
            {"sweep_values": {arm: asdict(point) for arm, point in experiment.sweep_values.items()}}
            if experiment.sweep_values
            else {}
        ),
        "arms": list(experiment.arms),
        "tasks": list(experiment.tasks),
        "margin": round(100 * experiment.margin, DECIMALS),
        **({"control": experiment.control} if experiment.control else {}),
        **({"plan": json.loads(experiment.plan.text())} if experiment.plan else {}),
        "runs": rows,
    }


def as_text(content: Mapping[str, Any]) -> str:
    """JSON with one line per run, so that a change of a run is a change of one line."""
    head = {key: value for key, value in content.items() if key != "runs"}
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}," for key, value in head.items()]
    runs = ",\n".join(f"  {json.dumps(run, ensure_ascii=False)}" for run in content["runs"])
    return "\n".join(["{", *lines, ' "runs": [', runs, " ]", "}", ""])


def read(path: Path) -> KeptTable:
    """Read a kept table. Raises LogError if the file is not one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("version") != VERSION:
            raise ValueError("another version")
        return KeptTable(**content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogError(f"{path}: no kept table ({error}); write it again with grpobench keep") from error


def partial(before: KeptTable, content: Mapping[str, Any]) -> list[str]:
    """Why new content is no substitute for a kept table: it was made by another command, with other settings
    on it, or runs are missing. More runs are no fault, nor are other settings in the recipe itself."""
    told = []
    if content["command"] != before.command:
        told.append(f"it was made by `{content['command']}` and the kept one by `{before.command}`")
    there = {(run["arm"], run["task"], run["seed"]) for run in content["runs"]}
    lost = [one for run in before.runs if (one := (run["arm"], run["task"], run["seed"])) not in there]
    if lost:
        arm, task, seed = lost[0]
        what = f"{len(lost)} of {len(before.runs)} kept runs are missing"
        told.append(f"{what}, such as {arm} on {task}, seed {seed}")
    return told


def _key(run: Any) -> tuple[str, str, int]:
    """(task, arm, seed) of a run, or of its row."""
    return run.task, run.arm, run.seed


def _accuracies(experiment: Experiment, mode: str) -> dict[tuple[str, str, int], list[Any]]:
    """(task, arm, seed) -> split, base, counted, best and last validation, where the mode was evaluated."""
    if not any(name.startswith("eval/") and f"/{mode}/correct" in name for name in experiment.names("eval/")):
        return {}
    columns = ("base", "counted", "validation_best", "validation_last")
    by_run_key = {}
    for row in finals(experiment, mode).to_dict("records"):
        values = [_rounded(row[column]) for column in columns]
        if any(value is not None for value in values):
            by_run_key[row["task"], row["arm"], int(row["seed"])] = [row["split"], *values]
    return by_run_key


def _outcomes(experiment: Experiment) -> dict[tuple[str, str, int], dict[str, str]]:
    """(task, arm, seed) -> outcome of a run of a map."""
    if not experiment.sweep_values:
        return {}
    rows = classify_runs(experiment, finals(experiment)).to_dict("records")
    return {(row["task"], row["arm"], int(row["seed"])): {"outcome": row["outcome"]} for row in rows}


def _both_ends(experiment: Experiment) -> dict[tuple[str, str, int], dict[str, Any]]:
    """(task, arm, seed) -> measured, training and validation, as `Kept.runs` describes them."""
    ends: dict[tuple[str, str, int], dict[str, Any]] = {
        _key(run): {"measured": {}, "training": {}, "validation": {}} for run in experiment.runs
    }
    keys = ["task", "arm", "seed"]
    for name in experiment.names("eval/"):
        _, split, mode, metric = name.split("/", 3)
        for key, rows in experiment.select(name).sort_values("step").groupby(keys, sort=False):
            if split == "validation" and metric == "correct":
                pairs = zip(rows["step"], rows["value"], strict=True)
                ends[key]["validation"][mode] = [[int(step), _rounded(value)] for step, value in pairs]
            elif "/" not in metric and metric != "correct" and split == headline_of(experiment, key[0]).split:
                ends[key]["measured"][f"{mode}/{metric}"] = _base_and_last(rows)
    for name in (name for stem in TRAINING for name in experiment.names(stem)):
        for key, rows in experiment.select(name).sort_values("step").groupby(keys, sort=False):
            values = rows["value"].to_numpy()
            last = max(1, round(LAST_TENTH * len(values)))
            ends[key]["training"][name] = [_rounded(values[0]), _rounded(values[-last:].mean())]
    return ends


def _base_and_last(rows: pd.DataFrame) -> list[float | None]:
    before, after = rows.loc[rows["step"] == 0, "value"], rows.loc[rows["step"] > 0, "value"]
    return [
        _rounded(before.iloc[0]) if len(before) else None,
        _rounded(after.iloc[-1]) if len(after) else None,
    ]


def _rounded(value: float) -> float | None:
    return round(float(value), DECIMALS) if math.isfinite(value) else None


def _command(experiment: Experiment) -> str:
    """The command with its options; paths are shortened to their last part."""
    described = json.loads((experiment.folder / "experiment.json").read_bytes())
    if command := described.get("command"):
        return shorten_paths(str(command))
    sets = [part for text in described.get("sets", ()) for part in ("--set", shorten_paths(str(text)))]
    over = [part for text in described.get("over", ()) for part in ("--over", str(text))]
    if over:  # the experiment then has its own name
        return shlex.join(["grpobench", "map", experiment.name.removesuffix("-map"), *sets, *over])
    plan = experiment.plan.options if experiment.plan else ()
    return shlex.join(
        ["grpobench", "map" if experiment.sweep_values else "run", experiment.name, *sets, *plan]
    )


def provenance_of(experiment: Experiment) -> dict[str, Any]:
    """Commits, versions and machines of the runs' last attempts."""
    commits: Counter[str] = Counter()
    versions: dict[str, set[str]] = {}
    machines = set()
    for run in experiment.runs:
        attempts = run.provenance.get("attempts") or [{}]
        attempt = attempts[-1]
        commit = str(attempt.get("commit", "(none)"))[:12]
        commits[commit + (" and changes" if attempt.get("dirty") else "")] += 1
        pinned = {
            k: str(v) for k, v in (run.provenance.get("fingerprints") or {}).items() if RELEASE.match(str(v))
        }
        packages = {
            name: v for name, v in (attempt.get("versions") or {}).items() if name in ("python", *SHARED)
        }
        for name, version in {**packages, **pinned}.items():
            versions.setdefault(name, set()).add(str(version))
        machines.add(_machine(attempt))
    kept = {name: sorted(releases) for name, releases in versions.items()}
    return {"commits": dict(commits), "versions": kept, "machine": sorted(machines)}


def _machine(attempt: Mapping[str, Any]) -> str:
    """Kind of device and threads; an accelerator by its name, a processor by its architecture."""
    device, platform = str(attempt.get("device", "")), str(attempt.get("platform", ""))
    architecture = next((name for name in ("x86_64", "aarch64", "arm64") if name in platform), "")
    accelerator = device if re.search(r"NVIDIA|AMD Instinct", device) else ""
    threads = attempt.get("threads")
    run = f", {threads} thread{'s' * (threads != 1)} a run" if threads else ""
    return f"{accelerator or ' '.join(filter(None, ('CPU', architecture)))}{run}"


def _digest(experiment: Experiment) -> str:
    text = json.dumps(dict(experiment.configs), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


Options: TypeAlias = Mapping[str, str]
Kind: TypeAlias = Callable[[KeptTable, Options], list[str]]


def render(kept: KeptTable, kind: str, options: Options) -> list[str]:
    """The lines of one table. Raises LogError for an unknown kind or an option that it needs."""
    if kind not in KINDS:
        raise LogError(f"unknown kind {kind!r}; known: {', '.join(KINDS)}")
    try:
        return KINDS[kind](kept, options)
    except KeyError as error:
        raise LogError(f"{kind} of {kept.name}: lacks {error}, as an option or in the kept table") from error


def provenance(kept: KeptTable, options: Options) -> list[str]:
    """Command, commit, versions and machine in a sentence."""
    commits = " and ".join(
        f"`{commit}`" + (f" ({runs} runs)" if len(kept.commits) > 1 else "")
        for commit, runs in kept.commits.items()
    )
    versions = ", ".join(f"{name} {' and '.join(found)}" for name, found in kept.versions.items())
    seeds = len({run["seed"] for run in kept.runs})
    text = (
        f"Made by `{kept.command}`: {len(kept.runs)} runs, {seeds} seed{'s' * (seeds > 1)}, at commit "
        f"{commits} with {versions}; {' and '.join(kept.machine)}; {duration(kept.seconds)} of run time."
    )
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


def accuracy(kept: KeptTable, options: Options) -> list[str]:
    """Before and after training on the split that the report takes, every seed, with the t interval. `mode`;
    `best=yes` adds the best validation."""
    best = options.get("best") == "yes"
    header = ["task", "arm", "before", "after", "each seed", "95 % interval", *["best on validation"] * best]
    rows = []
    for task, arm, runs in _cells(kept):
        values = [run["accuracy"][options["mode"]] for run in runs if options["mode"] in run["accuracy"]]
        if not values:
            continue
        after = seed_mean([value[2] for value in values if value[2] is not None])
        rows.append(
            [
                *(task, arm, percent(_mean(value[1] for value in values)), percent(after.value)),
                " ".join(_percent(value[2]) for value in values),
                _bounded(after),
                *[percent(_mean(value[3] for value in values))] * best,
            ]
        )
    splits = dict.fromkeys(
        run["accuracy"][options["mode"]][0] for run in kept.runs if options["mode"] in run["accuracy"]
    )
    lead = f"Accuracy in %, {options['mode']}, {' and '.join(splits)} split:"
    return table(lead, header, rows, named=2)


def measured(kept: KeptTable, options: Options) -> list[str]:
    """Metrics of the evaluation, before → after training. `mode`, `metrics=a,b`; `correct` is accuracy."""
    names = options["metrics"].split(",")
    rows = []
    for task, arm, runs in _cells(kept):
        cells = []
        for name in names:
            pairs = [_both(run, options["mode"], name) for run in runs]
            before, after = (_mean(pair[i] for pair in pairs) for i in (0, 1))
            cells.append(f"{_measure(name, before)} → {_measure(name, after)}")
        rows.append([task, arm, *cells])
    lead = f"Before → after training, {options['mode']}, shares in %:"
    return table(lead, ["task", "arm", *(name.replace("_", " ") for name in names)], rows, named=2)


def training(kept: KeptTable, options: Options) -> list[str]:
    """Metrics of training: the first update → the mean over the last tenth of updates. `metrics=a,b`."""
    names = options["metrics"].split(",")
    rows = []
    for task, arm, runs in _cells(kept):
        pairs = [[run["training"].get(name, (None, None)) for run in runs] for name in names]
        cells = [f"{two(_mean(p[0] for p in own))} → {two(_mean(p[1] for p in own))}" for own in pairs]
        rows.append([task, arm, *cells])
    lead = "Training, first update → mean over the last tenth of the updates:"
    return table(lead, ["task", "arm", *(f"`{name}`" for name in names)], rows, named=2)


def explained(kept: KeptTable, options: Options) -> list[str]:
    """What critics explained of the returns' variance over the last quarter of the updates, in %."""
    rows = []
    for task, arm, runs in _cells(kept):
        if not any(name.startswith("critic/") for run in runs for name in run["training"]):
            continue
        values = [math.nan if run["explained"] is None else run["explained"] for run in runs]
        little = sum(not value >= LITTLE for value in values)
        each = " ".join(map(percent, values))
        rows.append([task, arm, percent(_mean(values)), each, f"{little} of {len(values)}"])
    lead = "Variance of the returns that the critic explained, in %, over the last quarter of the updates:"
    header = ["task", "arm", "explained", "each seed", f"below {LITTLE:.0%}"]
    return table(lead, header, rows, named=2)


def comparisons(kept: KeptTable, options: Options) -> list[str]:
    """The pairs of arms that the report compares, as it does."""
    rows = []
    margin = kept.margin / 100
    plan = plan_of(kept.plan, Path(kept.name)) if kept.plan else None
    for task in kept.tasks:
        values = {
            arm: {
                run["seed"]: run["accuracy"][kept.headline[task]][2]
                for run in kept.of(arm, task)
                if run["accuracy"][kept.headline[task]][2] is not None
            }
            for arm in kept.arms
            if kept.of(arm, task)
        }
        for pair in compare(task, values, alpha=ALPHA, margin=margin, plan=plan, control=kept.control):
            few = len(pair.seeds) < seeds_needed(ALPHA)
            rows.append(
                [
                    *(task, f"{pair.first} − {pair.second}", points(pair.effect)),
                    *(interval(pair.low, pair.high, points), p_value(pair.p_adjusted)),
                    *(p_value(pair.p_equivalence_holm), "none" if few else number(100 * pair.detectable, 1)),
                    pair.verdict,
                ]
            )
    header = [
        "task",
        "pair",
        "difference",
        "95 % interval",
        "adjusted p",
        "equivalence",
        "detectable",
        "verdict",
    ]
    modes = " and ".join(dict.fromkeys(kept.headline.values()))
    lead = (
        f"Differences of accuracy ({modes}) in points, inside each seed; equivalence is Holm's p within "
        f"{kept.margin:g} points:"
    )
    return table(lead, header, rows, named=2)


def grid(kept: KeptTable, options: Options) -> list[str]:
    """One row per arm and one column per task, with their mean. `of=validation` (last, with `mode`) or
    `of=explained`."""
    leads = {
        "validation": f"Validation accuracy at the end in %, {options.get('mode')}:",
        "explained": "Variance of the returns that the critic explained, %, last quarter of the updates:",
    }
    if options["of"] not in leads:
        raise LogError(f"grid of={options['of']}: known: {', '.join(leads)}")
    rows = []
    for arm in kept.arms:
        values = []
        for task in kept.tasks:
            runs = kept.of(arm, task)
            if options["of"] == "explained":
                values.append(_mean(run["explained"] for run in runs))
            else:
                values.append(_mean(run["accuracy"][options["mode"]][4] for run in runs))
        if not all(map(math.isnan, values)):
            rows.append([arm, *map(percent, values), percent(_mean(values))])
    return table(leads[options["of"]], ["arm", *kept.tasks, "mean"], rows, named=1)


def curve(kept: KeptTable, options: Options) -> list[str]:
    """Validation accuracy at every evaluation, a column per arm: mean and range of seeds. `mode`, `task`."""
    task = options.get("task", kept.tasks[0])
    points_of = {
        arm: [dict(map(tuple, run["validation"].get(options["mode"], ()))) for run in kept.of(arm, task)]
        for arm in kept.arms
    }
    steps = sorted({step for runs in points_of.values() for run in runs for step in run})
    rows = []
    for step in steps:
        cells = []
        for runs in points_of.values():
            values = [run[step] for run in runs if run.get(step) is not None]
            spread = f" ({percent(min(values))} to {percent(max(values))})" if len(values) > 1 else ""
            cells.append(percent(_mean(values)) + spread)
        rows.append([str(step), *cells])
    lead = f"Validation accuracy in %, {options['mode']}, {task}, mean (and range) of the seeds:"
    return table(lead, ["updates", *kept.arms], rows, named=0)


def compute(kept: KeptTable, options: Options) -> list[str]:
    """Accuracy against compute: fitted on the first half, held against the rest. `of=why` gives the reasons
    and misses alone."""
    found = [kept_trajectories(task, arm, runs, kept.headline[task]) for task, arm, runs in _cells(kept)]
    curves = fit_curves(found, kept.margin / 100)
    made = compute_table(curves)
    if options.get("of") == "why":
        return [f"- {name}: {sentence}" for name, sentence in made.sentences] or ["Every curve was fitted."]
    rows = [row[: made.columns] for row in made.rows]
    return [*table(f"{made.title}:", made.header[: made.columns], rows, named=2), "", coverage(curves)]


def mapped(kept: KeptTable, options: Options) -> list[str]:
    """The grid of a map, or with `of=frontier` how far each arm goes without a collapse. `mode`."""
    sweep_values = {arm: SweepPoint(own["arm"], own["values"]) for arm, own in kept.sweep_values.items()}
    axes = axes_of(sweep_values)
    if axes is None:
        raise LogError(f"map of {kept.name}: the kept table is of no map")
    grid = group_cells(sweep_values, kept.tasks, [_counted(run, options["mode"]) for run in kept.runs])
    found = (frontier_table if options.get("of") == "frontier" else map_table)(axes, grid)
    lines = table(f"{found.title}:", found.header, found.rows, named=3)
    return [*lines, "", *textwrap.wrap(found.note, 118)]


def _counted(run: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """A run of a map with the accuracy that counts: 0 of one that diverged."""
    value = run["accuracy"][mode][2] if mode in run["accuracy"] else None
    counted = 0.0 if run["state"] == DIVERGED else math.nan if value is None else float(value)
    return {**run, "counted": counted}


KINDS: Mapping[str, Kind] = {
    "provenance": provenance,
    "accuracy": accuracy,
    "measured": measured,
    "training": training,
    "explained": explained,
    "comparisons": comparisons,
    "grid": grid,
    "curve": curve,
    "compute": compute,
    "map": mapped,
}


def _cells(kept: KeptTable) -> Iterator[tuple[str, str, list[Mapping[str, Any]]]]:
    """Task, arm and runs, in the order of the recipe."""
    for task in kept.tasks:
        for arm in kept.arms:
            if runs := kept.of(arm, task):
                yield task, arm, runs


def _both(run: Mapping[str, Any], mode: str, metric: str) -> Sequence[float | None]:
    if metric == "correct":
        return run["accuracy"][mode][1:3] if mode in run["accuracy"] else (None, None)
    found: Sequence[float | None] = run["measured"].get(f"{mode}/{metric}", (None, None))
    return found


def _measure(metric: str, value: float) -> str:
    """A share in %, a bias from −1 to 1, or a length in tokens."""
    if metric.startswith(("bias_", "lean")):
        return signed(value)
    return number(value, 1) if metric == "length" else percent(value)


def _mean(values: Any) -> float:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return float(np.mean(finite)) if finite else math.nan


def _percent(value: float | None) -> str:
    return NONE if value is None else percent(value)


def _bounded(mean: Estimate) -> str:
    """An interval of an accuracy, which is from 0 to 1."""
    return interval(max(mean.low, 0.0), min(mean.high, 1.0)) if math.isfinite(mean.low) else NONE


def duration(seconds: float) -> str:
    """Minutes, or hours where they are more than one and a half."""
    minutes = seconds / 60
    return f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{max(1, round(minutes))} min"


def table(lead: str, header: Sequence[str], rows: Sequence[Sequence[str]], named: int) -> list[str]:
    """A Markdown table below a line that says what it holds; the first `named` columns are flush left."""
    ruler = ["---" if i < named else "---:" for i in range(len(header))]
    lines = [header, ruler, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [lead, "", *("| " + " | ".join(cells) + " |" for cells in lines)]
