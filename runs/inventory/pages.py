"""The gallery of findings: docs/findings.md and its figures, from kept tables.

`grpobench docs`: write generated pages and tables.

Pages on algorithms, dialects and detectors come from docstrings, class attributes and presets; others from
graded pairs and from programs in completions. Tables of results inside other pages stand between markers::

    <!-- kept NAME KIND option=value … -->
    <!-- end of kept -->

This asks for a table of `docs/results/NAME.json`. `analysis/kept_tables.py` has the kinds,
`analysis/calibration/markdown.py` those for the calibration and `analysis/readable.py` those for readable
answers. If the file is missing, `before=COMMIT` says at which commit the text between the markers was
measured, and the page says so above it. Without either there must be no text between the markers.
"""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from grpobench.algorithms import modifiers
from grpobench.analysis.findings.record import FOLDER as FINDINGS
from grpobench.analysis.runfolder.files import LogError
from grpobench.runs.importing.translate import VOCABULARIES
from grpobench.runs.inventory import profiles_page, reference, showing, transfer_page
from grpobench.runs.inventory.labels import algorithm_labels, labels_of
from grpobench.runs.publishing.contributed import ContributedRecord, contributed_records
from grpobench.runs.settings import registries
from grpobench.runs.settings.findings import SCALES, Study, findings, read_finding
from grpobench.runs.tools import files
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.grading import pairs, readings

if TYPE_CHECKING:
    import click

    from grpobench.analysis.findings.record import Record
    from grpobench.analysis.findings.result import Result

PAGE = "findings.md"
AGAIN = "again"
"""Folder beside the kept findings, with the same structure, for reruns on other seeds."""
SET_ASIDE = "earlier"
"""Folder beside the kept findings, with the same structure, for tables that an earlier rule was asked of."""
PARTS = "parts"
"""Folder beside the kept findings, with the same structure, for findings whose other runs are yet to come."""
FIGURES = "figures/findings"
"""Folder of figures below the documents: one for each kept table, and `all.svg`."""

TITLES = {
    "a-a": "A/A",
    "critic-free-compute": "critic-free compute",
    "long-run-collapse": "long-run collapse",
    "one-shot-bias": "one-shot bias",
    "one-shot-susceptibility": "one-shot susceptibility",
    "sampler-gap-collapse": "sampler-gap collapse",
    "std-bias": "SD and length bias",
}
"""Findings whose names in the figure are not the words of their names."""


@dataclass(frozen=True)
class FindingEntry:
    """A finding at a scale with its kept table."""

    study: Study
    record: Record
    result: Result
    again: Record | None = None
    """The same finding with other seeds."""
    earlier: Record | None = None
    """What was kept of it by an earlier rule."""
    contributed: Sequence[ContributedRecord] = ()
    """What others' runs say."""

    @property
    def survival(self) -> bool:
        """Whether how long runs last is shown by dose."""
        return bool(self.result.series) and self.result.primary.test.outcome == "lasting"

    @property
    def curves(self) -> bool:
        """Whether its arms sweep one setting over several values."""
        from grpobench.analysis.findings.curves import swept

        return bool(swept(self.record, self.result)[0])

    @property
    def name(self) -> str:
        return f"{self.study.finding.name}-{self.record.registration.scale}"


def gallery_pages(environment: Environment, tables: Path) -> dict[str, str]:
    """Text by path under the folder of documents; `tables` are the kept tables of findings. Empty if there
    are none. Raises ConfigError for a damaged table."""
    found = finding_entries(tables)
    if not found:
        return {}
    from grpobench.analysis.figures.drawing import svg_text
    from grpobench.analysis.findings.curves import draw_curves
    from grpobench.analysis.findings.figures import draw_all, draw_arms
    from grpobench.analysis.findings.survival import draw_survival

    nano = [one for one in found if one.record.registration.scale == "nano"]
    drawn = {}
    for one in found:
        names = {name for run in one.record.states for name in run[:2]}
        figure = draw_arms(one.record, one.result, labels_of(names))
        drawn[f"{FIGURES}/{one.name}.svg"] = svg_text(figure)
        if one.survival:
            drawn[f"{FIGURES}/{one.name}-survival.svg"] = svg_text(draw_survival(one.record, one.result))
        if one.curves:
            drawn[f"{FIGURES}/{one.name}-curves.svg"] = svg_text(draw_curves(one.record, one.result))
    figure = draw_all([one.result for one in nano], {**algorithm_labels(), **TITLES})
    drawn[f"{FIGURES}/all.svg"] = svg_text(figure)
    known = {one.study.finding.name for one in found}
    changes = [change(one) for one in nano if one.earlier]
    text = environment.get_template("findings.md.j2").render(
        rows=[row(one) for one in nano],
        others=[row(one) for one in found if one not in nano],
        missing=[name for name in findings() if name not in known],
        changes=changes,
        changed=sum(one["before"] != one["now"] for one in changes),
        counted=counted([one.result.verdict for one in nano]),
        figures=FIGURES,
    )
    rules = {one.record.registration.finding.digest for one in nano}
    small = [
        one.result
        for one in found
        if one.record.registration.scale == "small" and one.record.registration.finding.digest in rules
    ]
    pages = transfer_page.transfer_pages(
        environment, [one.result for one in nano], small, profiles_page.scale_transfers()
    )
    return {PAGE: text, **drawn, **pages}


def counted(verdicts: Sequence[str]) -> str:
    """`5 supported, 2 contradicted and 3 unresolved`."""
    from grpobench.analysis.findings.result import VERDICTS

    told = [f"{verdicts.count(name)} {name}" for name in VERDICTS if name in verdicts]
    return " and ".join(filter(None, [", ".join(told[:-1]), *told[-1:]]))


def finding_entries(tables: Path) -> list[FindingEntry]:
    """The kept tables, in the order of names and scales."""
    from grpobench.analysis.findings.record import read_kept
    from grpobench.analysis.runfolder.files import LogError

    found = []
    for name in findings():
        study = read_finding(name)
        for scale in SCALES:
            folders = (tables, *(tables.parent / other / tables.name for other in (AGAIN, SET_ASIDE)))
            places = [folder / f"{name}-{scale}.json" for folder in folders]
            try:
                record, again, earlier = (read_kept(place) if place.exists() else None for place in places)
                theirs = contributed_records(tables.parent, name, scale)
            except LogError as error:
                raise ConfigError([str(error)]) from error
            if record and again and again.registration.finding.digest != record.registration.finding.digest:
                again = None  # a rerun by an earlier rule
            if record:
                found.append(FindingEntry(study, record, record.result(), again, earlier, theirs))
    return found


def row(one: FindingEntry) -> Mapping[str, Any]:
    """The page's entry for a finding."""
    from grpobench.analysis.findings.description import (
        arm_means,
        arm_words,
        check_words,
        effect_words,
        matters_words,
        result_words,
        series_words,
    )
    from grpobench.analysis.findings.result import as_row

    told = as_row(one.result)
    registration = one.record.registration
    for test in (*told["tests"], *told["control"]):
        test |= {"effect": effect_words(test), "least": matters_words(test)}
    for check in told["checks"]:
        check["words"] = check_words(check)
    primary = told["tests"][0]
    means = [mean for mean in arm_means(one.record, primary["name"]) if mean.values]
    arms = [{"arm": own.arm, "task": own.task, "mean": arm_words(own, primary["unit"])} for own in means]
    states = list(one.record.states.values())
    return told | {
        "published": registration.finding.published,
        "stands_for": registration.finding.stands_for if registration.scale == "nano" else "",
        "scale": registration.scale,
        "key": one.name,
        "doses": [series_words(series, one.result) for series in one.result.series],
        "survival": one.survival,
        "curves": one.curves,
        "primary": primary,
        "deciding": next(test for test in told["tests"] if test["name"] == one.result.deciding.test.name),
        "arms": arms,
        "horizon": max((own.horizon for own in means), default=math.nan),
        "seeds": len({run[2] for run in one.record.states}),
        "runs": len(states),
        "ended": {state: states.count(state) for state in dict.fromkeys(states) if state != "finished"},
        "minutes": one.record.seconds / 60,
        "registered": registration.registered,
        "commit": registration.commit,
        "rule": registration.finding.digest,
        "departures": one.record.departed(one.study.finding),
        "words": result_words(one.result),
        "again": again(one.again, one.study) if one.again else None,
        "contributed": [
            {"name": theirs.name, "contributor": theirs.contributor, **again(theirs.record, one.study)}
            for theirs in one.contributed
        ],
    }


def change(one: FindingEntry) -> Mapping[str, str]:
    """A finding's conclusion by its earlier rule and its kept one, and what changed in between."""
    assert one.earlier is not None
    return {
        "name": one.study.finding.name,
        "before": one.earlier.result().unchecked,
        "now": one.result.verdict,
        "why": one.study.redesign,
    }


def again(record: Record, study: Study) -> Mapping[str, Any]:
    """The result of a rerun: its verdict, its primary effect, and its seeds."""
    from grpobench.analysis.findings.description import effect_words
    from grpobench.analysis.findings.result import as_row

    told = as_row(record.result())
    seeds = sorted({run[2] for run in record.states})
    return {
        "verdict": told["verdict"],
        "effect": effect_words(told["tests"][0]),
        "seeds": f"{seeds[0]}-{seeds[-1]}",
        "departures": record.departed(study.finding),
    }


FOLDER = "results"
"""Folder of the kept tables, below the documents."""
END = "<!-- end of kept -->"
MARKER = re.compile(r"<!-- kept (?P<asked>\S+ [^>]*?) -->\n(?P<body>.*?)" + re.escape(END), re.DOTALL)
EARLIER = "*Measured at commit {} and not made again since: today's code may give other numbers.*"
STAMP = re.compile(r"^\*Measured at commit [^*]*\*\n+")


@dataclass(frozen=True)
class Block:
    """A pair of markers in a document."""

    name: str
    kind: str
    options: Mapping[str, str]
    body: str

    @property
    def before(self) -> str:
        """The commit at which the text was measured if there is no kept table."""
        return self.options.get("before", "")


def documents(folder: Path) -> dict[str, str]:
    """The new text of every document with markers, by path under `folder`. Raises ConfigError."""
    found = {}
    for path in sorted(folder.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if "<!-- kept " in text:
            found[path.relative_to(folder).as_posix()] = filled(text, path, folder / FOLDER)
    return found


def filled(text: str, path: Path, tables: Path) -> str:
    """The document's text with every marked block written anew."""
    counts = {text.count("<!-- kept "), text.count(END), len(MARKER.findall(text))}
    if len(counts) > 1:
        raise ConfigError([f"{path}: every `<!-- kept NAME KIND -->` needs a `{END}` behind it"])
    return MARKER.sub(
        lambda match: f"<!-- kept {match['asked']} -->\n{_body(_block(match), path, tables)}{END}", text
    )


def blocks(text: str) -> Iterator[Block]:
    """The marked blocks of a document."""
    yield from map(_block, MARKER.finditer(text))


def _block(match: re.Match[str]) -> Block:
    name, kind, *options = match["asked"].split()
    return Block(name, kind, dict(option.partition("=")[::2] for option in options), match["body"].strip())


def _body(block: Block, path: Path, tables: Path) -> str:
    place = tables / f"{block.name}.json"
    if place.exists():
        try:
            lines = _lines(block, place)
        except LogError as error:
            raise ConfigError([f"{path}: {error}"]) from error
        return "\n" + "\n".join(lines) + "\n\n"
    body = STAMP.sub("", block.body)
    if not body:
        return ""
    if not block.before:
        what = f"text without a kept table {place.name} and without before=COMMIT"
        raise ConfigError([f"{path}: {what}; make it with grpobench keep, or name the commit of its numbers"])
    return f"\n{EARLIER.format(block.before)}\n\n{body}\n\n"


def _lines(block: Block, place: Path) -> list[str]:
    """The block that a kind makes of a kept table."""
    from grpobench.analysis import kept, kept_tables, readable
    from grpobench.analysis.calibration import markdown as calibration
    from grpobench.analysis.calibration import table

    if block.name == table.NAME:
        return calibration.render(table.read(place), block.kind)
    if block.name == readable.NAME:
        return readable.render(readable.read(place), block.kind)
    return kept_tables.render(kept.read(place), block.kind, block.options)


TEMPLATES = Path(__file__).parent / "templates"
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
COMMON = 2
"""Algorithms that must share a setting or metric before the index explains it."""
USUAL_NEEDS = (
    "trains policy",
    "rollouts: the policy's own only",
    "with beta above 0: one more forward pass per step of: reference",
)
"""Needs that the index lists once. Each page lists another line where one of them does not hold."""
MARK = "<!-- Written by `grpobench docs`"
"""How every page begins."""


def docs_folder(remedy: str = "name a folder: grpobench docs DIR") -> Path:
    """The folder `docs` of the project's checkout. Raises ConfigError for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file() or not (root / "docs").is_dir():
        raise ConfigError([f"docs: not a checkout of the project; {remedy}"])
    return root / "docs"


def write(folder: Path, app: click.Group | None = None) -> list[Path]:
    """Write every page under a folder such as ``docs``, that of the commands of `app` among them, remove
    pages of algorithms that no longer exist, and renew tables of results between their markers. Raises
    ConfigError instead of overwriting a file that is not such a page."""
    found = pages()
    if app:
        found[reference.COMMANDS] = reference.commands_page(templates(), app)
    if folder.exists() and not folder.is_dir():
        raise ConfigError([f"docs {folder}: not a folder; name one to write pages to"])
    for path in (folder / name for name in found):
        if path.exists() and not path.read_text(encoding="utf-8").startswith(MARK):
            raise ConfigError([f"{path} was not written by `grpobench docs`; move it or name another folder"])
    tabled = documents(folder) | gallery_pages(templates(), folder / FOLDER / FINDINGS)
    for path in (folder / "algorithms").glob("*.md"):
        ours = path.read_text(encoding="utf-8").startswith(MARK)
        if ours and path.relative_to(folder).as_posix() not in found:
            path.unlink()
    for name, text in (found | tabled).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(folder / name, text.encode())
    return [folder / name for name in found | tabled]


def templates() -> Environment:
    """The Jinja environment of the pages."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {"cell": cell, "value": value, "sentence": sentence, "fold": fold, "lines": lines}
    environment.filters["plainly"] = showing.plainly
    return environment


def pages() -> dict[str, str]:
    """Text by path under the folder of documents."""
    environment = templates()
    algorithms = registries.algorithms()
    shown = {name: facts(cls) for name, cls in algorithms.items()}
    common = {part: collect_common(row[part] for row in shown.values()) for part in ("settings", "metrics")}
    presets = showing.show_dialects()
    texts = {
        f"algorithms/{name}.md": environment.get_template("algorithm.md.j2").render(
            {
                **row,
                **{part: part_rows(row[part], rows) for part, rows in common.items()},
                "needs": [line for line in row["needs"] if line not in USUAL_NEEDS],
            }
        )
        for name, row in shown.items()
    }
    texts["algorithms/README.md"] = environment.get_template("algorithms.md.j2").render(
        rows=shown.values(), common=common, needs=USUAL_NEEDS
    )
    texts["dialects.md"] = environment.get_template("dialects.md.j2").render(collect_dialects(presets))
    texts["modify.md"] = environment.get_template("modify.md.j2").render(stands_around())
    texts["import.md"] = environment.get_template("import.md.j2").render(vocabularies=VOCABULARIES.values())
    texts[showing.PAGE] = environment.get_template("stability.md.j2").render(showing.page_facts())
    texts[pairs.PAGE] = environment.get_template("pairs.md.j2").render(pairs.page_facts())
    texts[readings.PAGE] = environment.get_template("readings.md.j2").render(readings.page_facts())
    return texts | reference.pages(environment) | profiles_page.pages()


def facts(cls: Any) -> Mapping[str, Any]:
    """The content of an algorithm's page."""
    row = showing.show_algorithm(cls)
    return row | {
        "about": showing.paragraphs(cls)[1],
        "formula": parts(row["formula"]),
        "certainty": certainty(row["evidence"]),
        "arxiv": list(dict.fromkeys(ARXIV.findall(row["paper"]))),
    }


def drop_default(row: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A setting or metric for comparison across algorithms, which may differ in their defaults."""
    return tuple((key, value) for key, value in row.items() if key != "default")


def collect_common(algorithms: Iterable[list[Mapping[str, Any]]]) -> dict[str, Mapping[str, Any]]:
    """By name, the settings or metrics that at least `COMMON` algorithms describe in the same words, with the
    most frequent default: the index explains them once. Of two descriptions of one name the more frequent
    one counts."""
    every = [row for rows in algorithms for row in rows]
    common: dict[str, Mapping[str, Any]] = {}
    for described, count in Counter(map(drop_default, every)).most_common():
        row = dict(described)
        if count >= COMMON and row["name"] not in common:
            defaults = Counter(
                str(other.get("default")) for other in every if drop_default(other) == described
            )
            common[row["name"]] = {**row, "default": defaults.most_common(1)[0][0]}
    return common


def part_rows(
    rows: list[Mapping[str, Any]], common: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[Mapping[str, Any]]]:
    """An algorithm's settings or metrics: those that its page explains, those that the index explains with
    another default, and those that are as the index has them."""
    kinds: dict[str, list[Mapping[str, Any]]] = {"special": [], "changed": [], "usual": []}
    for row in rows:
        shared = common.get(row["name"])
        if shared is None or drop_default(shared) != drop_default(row):
            kinds["special"].append(row)
        else:
            kinds["usual" if str(row.get("default")) == shared["default"] else "changed"].append(row)
    return kinds


@dataclass(frozen=True)
class Library:
    """What several presets of one library share."""

    facts: list[Mapping[str, Any]]
    gaps: Mapping[tuple[str, str], str]
    """A label by (what, source)."""


def collect_library(name: str, presets: list[showing.Row]) -> Library:
    """The facts and gaps that at least two presets of a library share word for word. Of two sources for one
    value the more frequent one counts."""
    facts = [fact for row in presets for fact in (*row["differences"], *row["equal"])]
    counts = Counter((fact["setting"], fact["theirs"], fact["source"], fact["note"]) for fact in facts)
    shared: dict[tuple[str, Any], Mapping[str, Any]] = {}
    for (setting, theirs, source, note), count in counts.most_common():
        if count > 1:
            row = {"setting": setting, "theirs": theirs, "source": source, "note": note}
            shared.setdefault((setting, theirs), row)
    gaps = Counter((gap["what"], gap["source"]) for row in presets for gap in row["not_expressed"])
    repeated = [gap for gap, count in gaps.items() if count > 1]
    return Library(
        sorted(shared.values(), key=lambda fact: str(fact["setting"])),
        {gap: f"{name}-{number}" for number, gap in enumerate(repeated, 1)},
    )


def collect_dialects(presets: list[showing.Row]) -> Mapping[str, Any]:
    """What the page of dialects says. What several presets of a library share stands in one table per
    library, and the presets refer to it."""
    names = dict.fromkeys(row["library"] for row in presets)
    libraries = {
        name: collect_library(name, [row for row in presets if row["library"] == name]) for name in names
    }
    by_algorithm: dict[str, list[showing.Row]] = {}
    for row in presets:
        by_algorithm.setdefault(row["algorithm"], []).append(mark_shared(row, libraries[row["library"]]))
    return {
        "algorithms": {name: by_algorithm[name] for name in registries.algorithms() if name in by_algorithm},
        "libraries": {name: library for name, library in libraries.items() if library.facts or library.gaps},
        "example": presets[0],
        "note": registries.dialects_note(),
        "meanings": registries.distillation_meanings(),
    }


def mark_shared(row: showing.Row, library: Library) -> showing.Row:
    """A preset whose facts say whether the library's table has them, and whose shared gaps are labels."""

    def mark(fact: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**fact, "shared": {key: item for key, item in fact.items() if key != "ours"} in library.facts}

    gaps = [(gap, library.gaps.get((gap["what"], gap["source"]), "")) for gap in row["not_expressed"]]
    return row | {
        "differences": [mark(fact) for fact in row["differences"]],
        "equal": [mark(fact) for fact in row["equal"]],
        "not_expressed": [gap for gap, label in gaps if not label],
        "shared_gaps": [label for _, label in gaps if label],
    }


def stands_around() -> Mapping[str, Any]:
    """The content of the page of the section `modify`: settings in groups, each with its evidence;
    metrics."""
    groups: list[dict[str, Any]] = []
    for row in showing.settings(modifiers.Modifiers):
        if row["name"] in modifiers.EVIDENCE:
            groups.append({"evidence": modifiers.EVIDENCE[row["name"]], "settings": []})
        groups[-1]["settings"].append(row)
    return {"groups": groups, "metrics": modifiers.METRICS}


def certainty(evidence: str) -> str:
    """The index's summary of `evidence`."""
    kind = evidence.partition(":")[0]
    return f"{kind} in part" if kind == "verified" and "reconstruction:" in evidence else kind


def parts(formula: str) -> list[str]:
    """The statements of a formula, which are separated by a semicolon and two spaces, each on new, folded
    lines."""
    return [
        line
        for statement in formula.split(";  ")
        for line in textwrap.wrap(
            statement, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    ]


def cell(text: Any) -> str:
    """Text as a table cell."""
    return " ".join(str(text).split()).replace("|", "\\|")


def lines(text: str) -> str:
    """Text of several lines as a table cell, with its characters unchanged."""
    shown = html.escape(text, quote=False).replace("|", "&#124;").replace("`", "&#96;").replace("\r", "")
    for sign in "*_~[]\\":
        shown = shown.replace(sign, f"&#{ord(sign)};")
    return "<pre>" + shown.replace("\n", "<br>") + "</pre>"


def value(item: Any) -> str:
    """A value as in a recipe."""
    return showing.ABSENT if item == showing.ABSENT else f"`{showing.plainly(item)}`"


def fold(text: str) -> str:
    """Text in lines of 118 characters."""
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
