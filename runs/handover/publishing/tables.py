"""What a file set says of its archives: tables and manifest, from the logs of the experiments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd

from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.profile.probe import Probe
from grpobench.analysis.record import Provenance, provenance_of
from grpobench.analysis.runfolder.experiment import Experiment, Run
from grpobench.runs.experiment.outcomes import CRITICS
from grpobench.runs.experiment.profiling import ProbeRun, served_by
from grpobench.runs.handover.publishing.fileset import TABLES, Kind, Manifest
from grpobench.runs.settings import stored
from grpobench.runs.settings.probes import NANO, SCALES, arm_of, common, probes, recipe_table
from grpobench.runs.settings.recipe import read_table
from grpobench.tasks.data import bounded

COLUMNS = (
    *("arm", "task", "seed", "step", "split", "mode", "problem", "sample"),
    *("answer", "outcome", "length", "stopped"),
)
"""Columns of every evaluated answer; scores and traits differ by task and are JSON."""
CONTROLS, AROUND, SEARCH = "controls-", "around-", "search-"
"""How experiments of a profile begin: the controls of a probe, an algorithm at other rates than its own, and
the search of its rate."""
FREE = (
    *("experiment", "arm", "beside", "observe", "algorithm", "modify"),
    *("train.learning_rate", "model.teacher"),
)
"""Settings that are the algorithm's, or that change no number of another one."""


def manifest_of(
    head: Mapping[str, Any], kinds: Mapping[str, Kind], experiments: Mapping[str, Experiment]
) -> Manifest:
    """The manifest of experiments by name; `head` has name, contributor, license and date. Raises ValueError
    with every fault."""
    provenance = reduce(Provenance.joined, map(provenance_of, experiments.values()))
    runs = [f"{name}/{run.name}" for name, experiment in experiments.items() for run in experiment.runs]
    return Manifest(**head, kinds=dict(kinds), runs=runs, provenance=provenance)


def tables_of(experiments: Mapping[str, Experiment], kinds: Mapping[str, Kind]) -> dict[str, pd.DataFrame]:
    """The tables of experiments by name that have rows. Only profiles have outcomes on probes."""
    frames: dict[str, list[pd.DataFrame]] = {table: [] for table in TABLES}
    for name, experiment in experiments.items():
        probed = outcomes(name, experiment) if kinds[name] == "profile" else ()
        parts = (
            run_rows(experiment),
            experiment.metrics,
            answer_rows(experiment),
            pd.DataFrame(asdict(outcome) for _, outcome in probed),
        )
        for table, frame in zip(TABLES, parts, strict=True):
            frames[table] += [frame.assign(experiment=name)] if len(frame) else []
    return {name: pd.concat(parts, ignore_index=True) for name, parts in frames.items() if parts}


def text_of(frame: pd.DataFrame) -> str:
    """JSON lines; equal frames give equal text. NaN is null."""
    text: str = frame.to_json(orient="records", lines=True, double_precision=15, force_ascii=False)
    return text


def run_rows(experiment: Experiment) -> pd.DataFrame:
    """A row per run; settings and provenance as JSON."""
    return pd.DataFrame(
        {
            **{name: getattr(run, name) for name in ("arm", "task", "seed", "state", "step")},
            "settings": json.dumps(run.config, ensure_ascii=False, sort_keys=True, default=str),
            "provenance": json.dumps(run.provenance, ensure_ascii=False, sort_keys=True, default=str),
        }
        for run in experiment.runs
    )


def answer_rows(experiment: Experiment) -> pd.DataFrame:
    """A row per evaluated answer."""
    frame = experiment.evaluations
    answers = frame[[name for name in COLUMNS if name in frame]].copy()
    for column, prefix in (("scores", "score/"), ("traits", "trait/")):
        names = {name: name.removeprefix(prefix) for name in frame.columns if name.startswith(prefix)}
        # Not splitlines, which also splits at characters that JSON leaves as they are, such as U+2028.
        texts = text_of(frame[[*names]].rename(columns=names)).split("\n")[: len(frame)]
        answers[column] = texts if names else "{}"
    return answers


# Profiles


def scale_of(run: Run) -> str:
    """The scale of a probe's run, by its model."""
    name = run.config.get("model", {}).get("name")
    return next((scale for scale in SCALES if common(scale)["model"]["name"] == name), NANO)


def probe_of(run: Run) -> Probe | None:
    """The probe that an arm is of; None for another's arm."""
    names = [name for name in probes(scale_of(run)) if run.arm.startswith(name + "-")]
    return probes(scale_of(run))[max(names, key=len)] if names else None


def outcomes(name: str, experiment: Experiment) -> Iterator[tuple[Run, ProbeOutcome]]:
    """The runs of an experiment of a profile, each with an outcome on every probe that it serves."""
    for run in experiment.runs:
        probe = probe_of(run)
        if probe is None or name.startswith(CONTROLS):
            continue
        algorithm, logged_rates = run.config["algorithm"], run.config["train"]["learning_rate"]
        roles = [role for role in ("policy", *CRITICS) if role in logged_rates]
        part = ProbeRun(
            arm={},
            algorithm=algorithm.get("class") or algorithm["name"],
            probes=served_by(probe, probes(scale_of(run)), ladder=not name.startswith(AROUND)),
            rates={role: float(f"{logged_rates[role] / probe.rate:.6g}") for role in roles},
        )
        log = bounded.read_rows(experiment.folder / run.name / "metrics.jsonl")
        for outcome in part.rows(run.seed, [row for row in log if row["step"] > 0], run.state):
            yield run, outcome


def changed_settings(experiment: Experiment, run: Run) -> list[str]:
    """Settings in which a run differs from what its probe asks of GRPO, the algorithm's own left out."""
    probe, scale = probe_of(run), scale_of(run)
    if probe is None:
        return [f"{run.arm} is an arm of no probe"]
    arm = arm_of(probe, run.arm, "grpo", {"policy": 1e-3})
    recipe = read_table(recipe_table("probe", [arm], [run.seed], scale), "", "probe", Path(), source="probe")
    (config,) = recipe.runs()
    text = bounded.read_text(experiment.folder / run.name / "run.toml")
    changes = stored.differences(text, stored.dump(config), stored.defaults(config))
    return [line for line in changes if not line.startswith(FREE)]
