"""The outcomes on probes by the logs of a run, and whether the run is one of the probe."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpobench.analysis.profile.kept import ProbeOutcome, failure_of, outcome_of
from grpobench.analysis.profile.probe import Probe
from grpobench.analysis.runfolder.experiment import Experiment, Run
from grpobench.runs.experiment.outcomes import CRITICS
from grpobench.runs.settings import stored
from grpobench.runs.settings.probes import GATE, NANO, SCALES, arm_of, common, probes, recipe_table
from grpobench.runs.settings.recipe import read_table
from grpobench.tasks.data import bounded

KINDS = ("profile-", "around-", "search-critic-", "search-")
"""How experiments of an algorithm are called; its name follows. Those of controls are CONTROLS-PROBE."""
CONTROLS = "controls-"
SHARED = ("learn", "ladder")
FREE = (
    *("experiment", "arm", "beside", "observe", "algorithm", "modify"),
    *("train.learning_rate", "model.teacher"),
)
"""Settings that are the algorithm's, or that change no number of another one."""


def scale_of(run: Run) -> str:
    """The scale of a probe's run, by its model."""
    name = run.config.get("model", {}).get("name")
    return next((scale for scale in SCALES if common(scale)["model"]["name"] == name), NANO)


def probe_of(run: Run) -> Probe | None:
    """The probe that an arm is of; None for another's arm."""
    names = [name for name in probes(scale_of(run)) if run.arm.startswith(name + "-")]
    return probes(scale_of(run))[max(names, key=len)] if names else None


def algorithm_of(experiment: Experiment, run: Run) -> str:
    """The algorithm, as `safe` writes it, or the control."""
    name = experiment.folder.name
    if name.startswith(CONTROLS):
        return run.arm.rpartition("-")[2]
    kind = next((prefix for prefix in KINDS if name.startswith(prefix)), "")
    return name.removeprefix(kind)


def rows_of_run(experiment: Experiment, run: Run) -> Iterator[ProbeOutcome]:
    """A row per probe that the run serves, that of its own first; none for a run of no probe."""
    own_probe = probe_of(run)
    if own_probe is None:
        return
    log = bounded.read_rows(experiment.folder / run.name / "metrics.jsonl")
    rows = [row for row in log if row["step"] > 0]
    others = (
        [candidate for candidate in probes(scale_of(run)).values() if candidate.runs in SHARED]
        if own_probe.name == GATE
        else []
    )
    rates: dict[str, Any] = run.config["train"]["learning_rate"]
    critic = next((rates[role] / own_probe.rate for role in CRITICS if role in rates), math.nan)
    for probe in (own_probe, *others):
        yield ProbeOutcome(
            algorithm=algorithm_of(experiment, run),
            probe=probe.name,
            learning_rate=float(f"{rates['policy'] / own_probe.rate:.6g}"),
            critic_rate=float(f"{critic:.6g}"),
            seed=run.seed,
            outcome=outcome_of(probe, rows, run.state),
            state=run.state,
            seconds=rows[-1].get("time/wall", math.nan) if rows else math.nan,
            failed=failure_of(probe, rows, run.state),
        )


def changed_settings(experiment: Experiment, run: Run) -> list[str]:
    """Settings in which a run differs from what its probe asks of GRPO, the algorithm's own left out."""
    probe, scale = probe_of(run), scale_of(run)
    if probe is None:
        return [f"{run.arm} is an arm of no probe"]
    if experiment.folder.name.startswith(CONTROLS):
        return []  # a control changes what it exaggerates
    arm = arm_of(probe, run.arm, "grpo", {"policy": 1e-3})
    recipe = read_table(recipe_table("probe", [arm], [run.seed], scale), "", "probe", Path(), source="probe")
    (config,) = recipe.runs()
    text = bounded.read_text(experiment.folder / run.name / "run.toml")
    changes = stored.differences(text, stored.dump(config), stored.defaults(config))
    return [line for line in changes if not line.startswith(FREE)]
