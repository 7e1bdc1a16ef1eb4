"""Parts of a finding: the runs that have a result, kept in the repository before the others have run."""

# A finding may take longer than a machine lives. `grpobench keep DIR --part` keeps what is finished;
# `grpobench finding run` then runs the rest on any machine, under the same registration, and `grpobench keep`
# joins both into the kept table.

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from grpobench.analysis.findings.record import (
    Registration,
    joined,
    read_kept,
    read_registration,
    record_of,
)
from grpobench.runs.inventory import folders
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpobench.analysis.findings.record import Record
    from grpobench.analysis.runfolder.experiment import Experiment


def part_path(name: str, scale: str) -> Path | None:
    """Where a finding's part is kept, or would be; None without a checkout, as in an installed package."""
    try:
        docs = folders.docs_folder()
    except ConfigError:
        return None
    return folders.kept_finding(docs / folders.FOLDER, name, scale, folders.PARTS)


def read_part(name: str, scale: str) -> Record | None:
    """What is kept of an unfinished finding; None if nothing is. Raises LogError."""
    path = part_path(name, scale)
    return None if path is None or not path.exists() else read_kept(path)


def announced(part: Record | None, rule: str, settings: dict[str, str]) -> Registration | None:
    """The registration that a part's other runs belong to. Raises DataError where rule or settings changed
    since."""
    if part is None:
        return None
    registration = part.registration
    if (registration.finding.digest, dict(registration.settings)) != (rule, settings):
        path = part_path(registration.finding.name, registration.scale)
        why = "these runs were registered with another rule or other settings"
        raise DataError(f"{path}: {why}; delete the file to begin anew")
    return registration


def without_part(recipe: Recipe, part: Record | None) -> Recipe:
    """The recipe without the runs that a part holds."""
    return replace(recipe, configs=tuple(config for config in recipe.configs if not is_in(part, config)))


def is_in(part: Record | None, config: RunConfig) -> bool:
    return part is not None and (config.arm, config.task.name, config.seed) in part.states


def with_part(
    experiment: Experiment, part: Record | None, measure: Callable[[Experiment], Record] = record_of
) -> Record:
    """The runs of an experiment, as `measure` records them, and those of a part as one record. A run of both
    is the part's. The experiment alone if it was registered apart, such as with other seeds. Raises LogError
    without a registration."""
    if part is None or part.registration != read_registration(experiment.folder):
        return measure(experiment)
    others = tuple(run for run in experiment.runs if (run.arm, run.task, run.seed) not in part.states)
    return joined(part, measure(replace(experiment, runs=others)))


def part_words(part: Record) -> str:
    """What is said before the rest runs."""
    registration = part.registration
    count = f"{len(part.states)} of {len(registration.settings)} runs"
    path = part_path(registration.finding.name, registration.scale)
    return f"{count} are kept in {path}, registered {registration.registered}; the others run here"
