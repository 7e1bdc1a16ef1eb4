"""What a reader must know before the numbers of a report: the result of every check of the logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from grpobench.analysis.checks.differences import (
    find_changes_within_runs,
    find_code_differences,
    find_data_differences,
    find_setting_differences,
    find_version_differences,
)
from grpobench.analysis.checks.gaps import (
    find_import_faults,
    find_imported_logs,
    find_incomplete_runs,
    find_leaked_problems,
    find_misplaced_folders,
    find_skipped_updates,
    find_unplanned_runs,
)
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.topics.search import find_unsearched_values

DAMAGED_TITLE = "Damaged, and counted nowhere until it is mended"
SPARED = "Damaged, and needed by no number"
IMPORTED = "Imported from logs of others"


def find_alarms(
    experiment: Experiment, damage: Sequence[str] = (), spared: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Everything that is damaged, not uniform, not as planned, or missing: the lines of each check that has
    some, by its title. `damage` and `spared` of `Numbers` list files that could not be read."""
    lines = {DAMAGED_TITLE: [*damage], SPARED: [*spared]}
    lines |= {title: [*find(experiment)] for title, find in CHECKS.items()}
    return {title: of_title for title, of_title in lines.items() if of_title}


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
