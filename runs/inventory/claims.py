"""The start of an algorithm's page: the findings that test its authors' claim, and its profile."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpobench.runs.inventory.findings.judging import departed, judging_rule
from grpobench.runs.inventory.folders import results_folder
from grpobench.runs.settings import plugins, registries
from grpobench.runs.settings.findings import SCALES, FindingFile, findings, read_finding
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded

if TYPE_CHECKING:
    from grpobench.analysis.findings.record import Record
    from grpobench.analysis.findings.result import Result
    from grpobench.analysis.profile.scores import Profile
    from grpobench.runs.settings.config import RunConfig

Row = dict[str, Any]
MARKS = {
    "good": "good",
    "bad": "bad",
    "between": "in between",
    "unresolved": "not told apart",
    "gated": "no score",
}
"""How an algorithm stands on a probe, in the order of the table."""
SECONDARY = "secondary test"
"""What is said of the conclusion of a test that does not decide its finding, and has 5 % of its own."""
UNTESTED = "No finding here tests this claim."


def findings_folder() -> Path | None:
    """The folder of the kept tables of findings; None where there is none."""
    from grpobench.analysis.findings.record import FOLDER as KEPT

    results = results_folder()
    return results and results / KEPT


def standing(tables: Path | None = None) -> Standing:
    """By the kept tables in a folder, or those of the checkout. They are read again only where a file of them
    has changed."""
    from grpobench.analysis.profile import kept

    tables_folder = tables or findings_folder()
    folders = [folder for folder in (tables_folder, kept.FOLDER) if folder and folder.is_dir()]
    read = [*findings().values(), *(path for folder in folders for path in sorted(folder.iterdir()))]
    states = [path.stat() for path in read]
    stamps = [(path, state.st_mtime_ns, state.st_size) for path, state in zip(read, states, strict=True)]
    return _standing(tables_folder, tuple(stamps))


@cache
def _standing(tables: Path | None, stamps: tuple[object, ...]) -> Standing:
    return Standing(tables)


@dataclass(frozen=True)
class Standing:
    """How algorithms stand by kept tables, each of which is read once."""

    tables: Path | None
    """Folder of the kept tables of findings; None without any."""

    @cached_property
    def finding_tables(self) -> dict[str, Mapping[str, Any]]:
        """The files of the findings by name. Few of them are about an algorithm: only those are built."""
        return {name: bounded.read_toml(path) for name, path in findings().items()}

    @cached_property
    def profile(self) -> Profile:
        from grpobench.runs.inventory.profiles_page import shipped

        return shipped()

    @cached_property
    def results(self) -> dict[Path, tuple[Record, Result] | None]:
        """What was read so far."""
        return {}

    @cached_property
    def rows(self) -> dict[Any, Row]:
        """What was asked so far, by class."""
        return {}

    def of(self, cls: Any) -> Row:
        """The rows `here` and `profile` of an algorithm, read once."""
        if cls not in self.rows:
            self.rows[cls] = self.read(cls)
        return self.rows[cls]

    def read(self, cls: Any) -> Row:
        """The rows `here` and `profile` of an algorithm. Nothing is known of a class that is not the suite's
        own, whatever its name is."""
        ours = registries.algorithms().get(cls.name) is cls
        name = cls.name if ours else plugins.reference(cls)
        here: Row = {"findings": list(self.findings_about(name)), "arm_of": self.arm_of(name)}
        if not (cls.claim or any(here.values())):
            here = {}
        return {"here": here, "profile": self.scores(name)}

    def findings_about(self, name: str) -> Iterator[Row]:
        """The findings about an algorithm, at each scale with a kept table or, without any, once."""
        for finding_name, table in self.finding_tables.items():
            if name in table.get("about", ()):
                study = read_finding(finding_name)
                rows = [row for scale in SCALES if (row := self.conclusion(study, scale, study.about[name]))]
                yield from rows or [self.not_kept(study)]

    def not_kept(self, study: FindingFile) -> Row:
        """A finding without a kept table, or whose tables do not come with the package."""
        name, claim = study.finding.name, study.finding.claim
        why = "no result is kept" if self.tables else "kept results come with a checkout of the project"
        return {"finding": name, "scale": "", "claim": claim, "why": why}

    def conclusion(self, study: FindingFile, scale: str, test: str) -> Row | None:
        """What a kept table concludes: the whole finding, or one test of it; None without one. Raises
        ConfigError for a damaged table."""
        from grpobench.analysis.findings.description import effect_words, meaning_words
        from grpobench.analysis.findings.result import test_row

        kept_result = self.read_result(study, scale)
        if kept_result is None:
            return None
        record, result = kept_result
        judged_by_name = {judged.test.name: judged for judged in result.tests}
        if test and test not in judged_by_name:
            return None  # the table is of a rule without it
        judged = judged_by_name[test] if test else result.deciding
        return {
            "finding": study.finding.name,
            "scale": scale,
            "claim": "" if test else study.finding.claim,
            "conclusion": judged.label if test else result.label,
            "meaning": judged.needs if test else meaning_words(result),
            "test": judged.test.name,
            "decides": not test or not judged.test.also,
            "effect": effect_words(test_row(judged)),
            "departures": departed(study, record),
        }

    def read_result(self, study: FindingFile, scale: str) -> tuple[Record, Result] | None:
        from grpobench.analysis.findings.record import read_kept
        from grpobench.analysis.runfolder.files import LogError

        if self.tables is None:
            return None
        path = self.tables / f"{study.finding.name}-{scale}.json"
        if path not in self.results:
            try:
                record = read_kept(path) if path.exists() else None
            except LogError as error:
                raise ConfigError([str(error)]) from error
            self.results[path] = (record, record.result(judging_rule(study, record))) if record else None
        return self.results[path]

    def arm_of(self, name: str) -> list[str]:
        """The other findings with a run of the algorithm."""
        return [
            finding_name
            for finding_name, table in self.finding_tables.items()
            if name not in table.get("about", ())
            and any(arm.get("algorithm") == name for scale in SCALES for arm in arms_of(table, scale))
        ]

    def scores(self, name: str) -> Row:
        """The probes by how the algorithm stands on them; empty without a profile."""
        from grpobench.analysis.profile.page import judge
        from grpobench.analysis.profile.table import algorithms_with_runs, mean_of, score_text

        algorithms = algorithms_with_runs(self.profile)
        row: Row = {"name": name, "others": len(algorithms) - 1, "marks": {}}
        if name not in algorithms:
            return row
        marks: dict[str, list[str]] = {mark: [] for mark in MARKS.values()}
        for judgment in judge(self.profile, name):
            probe = judgment.probe.name
            text = score_text(self.profile.cell(probe, name), mean_of(self.profile, probe, name))
            marks[MARKS[judgment.kind]].append(f"{judgment.probe.title} {text}")
        for probe, without in self.profile.gated.items():
            if name in without:
                marks[MARKS["gated"]].append(self.profile.probes[probe].title)
        return row | {"marks": {mark: shown for mark, shown in marks.items() if shown}}


def arms_of(table: Mapping[str, Any], scale: str) -> Sequence[Mapping[str, Any]]:
    """The arms of a finding's recipe at a scale; none without one."""
    arms: Sequence[Mapping[str, Any]] = table.get(scale, {}).get("arm", [])
    return arms


def here_lines(here: Mapping[str, Any]) -> list[str]:
    """What findings say of an algorithm, as text for a terminal."""
    lines: list[str] = []
    for row in here["findings"]:
        lines += folded(finding_words(row))
    if not here["findings"]:
        lines.append(UNTESTED)
    if here["arm_of"]:
        lines += folded(f"It also runs in the findings {', '.join(here['arm_of'])}.")
    return lines


def finding_words(row: Mapping[str, Any]) -> str:
    """A finding with its conclusion, in a line."""
    if not row["scale"]:
        command = f"grpobench finding run {row['finding']}"
        return f"{row['finding']}: {row['why']}; {command} makes one. {row['claim']}"
    return (
        f"{row['finding']} ({row['scale']}): {row['conclusion']}{reservations(row)}, {row['meaning']}. "
        f"{row['claim']} {effect_sentence(row)}".replace("  ", " ")
    )


def reservations(row: Mapping[str, Any]) -> str:
    """Why a conclusion is less than that of a finding as it was registered."""
    departures = f"exploratory: {'; '.join(row['departures'])}" if row["departures"] else ""
    parts = [*[SECONDARY] * (not row["decides"]), *[departures] * bool(departures)]
    return f" ({'; '.join(parts)})" if parts else ""


def effect_sentence(row: Mapping[str, Any]) -> str:
    """The effect that decides, with its interval."""
    subject = "A secondary test"
    if row["decides"]:
        subject = "Deciding test" if row["claim"] else "One of its deciding tests"
    return f'{subject}, "{row["test"]}": {row["effect"]}.'


def profile_lines(profile: Mapping[str, Any]) -> list[str]:
    """A profile as text for a terminal."""
    if not profile["marks"]:
        return [no_profile(profile["name"])]
    lines: list[str] = []
    for mark, shown in profile["marks"].items():
        lines += folded(f"{mark}: {', '.join(shown)}")
    return lines


def no_profile(name: str, code: str = "") -> str:
    """The sentence of an algorithm without a profile; `code` surrounds a command."""
    if why := unprofiled(name):
        return f"It has none: it {why}."
    from grpobench.algorithms import ALGORITHMS

    alternative = "" if name in ALGORITHMS else ", or says why it cannot"
    return f"It has no profile yet: {code}grpobench profile {name}{code} makes one{alternative}."


def unprofiled(name: str) -> str:
    """Why the probes cannot run an algorithm of the suite, without the remedy; empty if they can."""
    from grpobench.algorithms import ALGORITHMS  # which needs torch, and most of this page does not
    from grpobench.runs.settings.rules import unserved

    if name not in ALGORITHMS:
        return ""
    config = replace(_probing(), algorithm=ALGORITHMS[name]())
    return next((fault.partition(";")[0] for fault in unserved(config)), "")


@cache
def _probing() -> RunConfig:
    """A run on the task of the probe that all others depend on."""
    from grpobench.runs.settings.probes import GATE, probes
    from grpobench.runs.settings.recipe import read_recipe
    from grpobench.tasks import TASKS

    (task,) = probes()[GATE].settings["tasks"]
    return replace(read_recipe("quickstart").configs[0], task=TASKS[task]())


def standing_cell(rows: Sequence[Mapping[str, Any]]) -> str:
    """The conclusions of an algorithm's findings for the index, with links; that of nano scale where there
    are several."""
    by_finding: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row["scale"]:
            by_finding.setdefault(row["finding"], row)
    return ", ".join(
        f"[{row['conclusion']}]({link(row)}){'' if row['decides'] else f' ({SECONDARY})'}"
        for row in by_finding.values()
    )


def link(row: Mapping[str, Any]) -> str:
    """From an algorithm's page to the finding's."""
    anchor = "" if row["scale"] == "nano" else f"#{row['scale']}-scale"
    return f"../findings/{row['finding']}.md{anchor}"


def folded(text: str) -> list[str]:
    return textwrap.wrap(text, 98, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
