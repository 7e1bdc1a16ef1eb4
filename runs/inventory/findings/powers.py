"""The power of a finding's tests before its runs, with the standard deviations that earlier runs give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from grpobench.analysis.findings.contrasts import contrasts_of
from grpobench.analysis.findings.planned import LEAST, PlannedTest, deciding_tests
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.statistics.power import POWER
from grpobench.analysis.statistics.verdicts import spread_of
from grpobench.runs.inventory import folders
from grpobench.runs.inventory.findings.parts import read_part
from grpobench.runs.settings.findings import FindingFile
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.analysis.findings.record import Record
    from grpobench.analysis.findings.rule import Test


def planned_tests(study: FindingFile, scale: str, seeds: int, out: Path) -> list[PlannedTest]:
    """The deciding tests with so many seeds. The standard deviation of each is of the first of these that has
    it: a pilot below `out` or among the kept tables, the finding's kept table, its runs below `out`, the
    finding's file. A seed that several bases share counts once, and bases count as alike."""
    tests = deciding_tests(study.finding)
    bases, of_base = study.bases(scale), study.seeds_per_base.get(scale, seeds)
    planned = {
        test.name: PlannedTest(test, seeds, len(tests), bases=bases, seeds_per_base=of_base) for test in tests
    }
    unknown = list(tests)
    for record, origin in earlier_records(study.finding.name, scale, out) if tests else ():
        for test in unknown:
            contrasts = measured_contrasts(record, test)
            if len(contrasts) >= LEAST:
                # With more rates a test at best rates finds somewhat less (docs/comparisons.md).
                source = f"over {len(contrasts)} seeds of {origin}" + ", at own rates" * test.best_rate
                planned[test.name] = replace(planned[test.name], sd=spread_of(contrasts), source=source)
        unknown = [test for test in unknown if not planned[test.name].source]
        if not unknown:
            break
    for test in unknown:
        if sd := study.expected_sd.get(scale, {}).get(test.name):
            planned[test.name] = replace(planned[test.name], sd=sd, source="expected by the finding's file")
    return list(planned.values())


def earlier_records(name: str, scale: str, out: Path) -> Iterator[tuple[Record, str]]:
    """What has been measured of a finding, and where, in words. Damaged files are left out: `finding judge`
    says what is wrong with them."""
    from grpobench.analysis.findings.record import FILE, read_kept, record_of
    from grpobench.analysis.runfolder.load import load

    run_folders = [folder / f"{name}-{scale}" for folder in (out / folders.PILOT, out)]
    results = folders.results_folder()
    tables = [folders.kept_finding(results, name, scale, of) for of in (folders.PILOT, "")] if results else []
    for path in (run_folders[0], *tables, run_folders[1]):
        try:
            if path.suffix == ".json" and path.exists():
                yield read_kept(path), f"the kept {path.relative_to(results or path)}"
            elif (path / FILE).exists() and any(path.glob("*/run.toml")):
                yield record_of(load(path)), str(path)
        except LogError:
            continue


def measured_contrasts(record: Record, test: Test) -> Sequence[float]:
    """The contrasts of a test by seed; none if the record measures something else by its name."""
    registered = {measured.name: measured for measured in record.registration.finding.measured}
    same = registered.get(test.name)
    if same is None or (same.outcome, same.where) != (test.outcome, test.where):
        return ()
    by_seed = contrasts_of(test, record.values[test.name], waits=True)
    return [*by_seed.values()]


def demand_power(study: FindingFile, scale: str, planned: Sequence[PlannedTest], out: Path) -> None:
    """Raises ConfigError where a new rule has a test that is known to be weak, and does not say why it runs
    all the same."""
    weak = [test for test in planned if test.is_weak]
    if not weak or study.underpowered.get(scale) or is_registered(study, scale, out):
        return
    from grpobench.analysis.findings.description import power_words

    remedy = (
        "run more seeds, measure something that scatters less, or say in the file why it runs all the same: "
        f'underpowered.{scale} = "…"'
    )
    raise ConfigError(
        [
            f"{study.finding.name} at scale {scale}: test {test.test.name!r} has a power under {POWER:.0%}: "
            f"{power_words(test)}; {remedy}"
            for test in weak
        ]
    )


def is_registered(study: FindingFile, scale: str, out: Path) -> bool:
    """Whether this rule has runs already: below `out`, in a kept part or in the kept table."""
    from grpobench.analysis.findings.record import read_kept

    name = study.finding.name
    if read_part(name, scale) or any((out / f"{name}-{scale}").glob("*/run.toml")):
        return True
    results = folders.results_folder()
    path = folders.kept_finding(results, name, scale) if results else None
    if path is None or not path.exists():
        return False
    return read_kept(path).registration.finding.digest == study.finding.digest
