"""Rows of libraries that count otherwise than we do, put at our steps, which count batches from 1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import fmean

from grpobench.runs.handover.importing.log import as_step
from grpobench.runs.handover.importing.names.table import Rows

POLICY_VERSION = re.compile(r"eval/(.+?)/policy_version")


def merged(rows: dict[int, dict[str, float]], step: int, values: Mapping[str, float]) -> None:
    """Add numbers to a row."""
    rows.setdefault(step, {}).update(values)


def from_zero(rows: Rows) -> Rows:
    """The rows of a library whose first batch has the number 0."""
    return {step + 1: row for step, row in rows.items()}


def by_policy_version(rows: Rows) -> Rows:
    """prime-rl's rows with every evaluation at the number of updates that its policy has, where the log has
    that number."""
    placed: dict[int, dict[str, float]] = {}
    for step, row in rows.items():
        versions = {
            f"eval/{match[1]}/": version
            for name, value in row.items()
            if (match := POLICY_VERSION.fullmatch(name)) and (version := as_step(value)) is not None
        }
        for name, value in row.items():
            at = next((version for start, version in versions.items() if name.startswith(start)), step)
            merged(placed, at, {name: value})
    return dict(sorted(placed.items()))


def by_rollout(rows: Rows) -> Rows:
    """slime's rows by rollout, counted from 1: the mean over a rollout's updates, of learning rates the last.
    Evaluations with the number 0 stay there. Updates are `train/…`; all else has the number of its rollout,
    or, with `--wandb-always-use-train-step`, that of the rollout's first update."""
    updates = [step for step, row in rows.items() if any(name.startswith("train/") for name in row)]
    rollouts = [step for step, row in rows.items() if any(name.startswith("rollout/") for name in row)]
    each = max(1, round(len(updates) / len(rollouts))) if rollouts else 1
    spaced = each if each > 1 and all(step % each == 0 for step in rollouts) and len(rollouts) > 1 else 1
    placed: dict[int, dict[str, float]] = {}
    values: dict[tuple[int, str], list[float]] = {}
    for step, row in sorted(rows.items()):
        for name, value in row.items():
            if name.startswith("train/"):
                values.setdefault((step // each + 1, name), []).append(value)
            else:
                before = step == 0 and name.startswith("eval/")
                merged(placed, 0 if before else step // spaced + 1, {name: value})
    for (step, name), of_updates in values.items():
        merged(placed, step, {name: of_updates[-1] if "lr-pg_" in name else fmean(of_updates)})
    return dict(sorted(placed.items()))
