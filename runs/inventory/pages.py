"""`grpobench docs`: write generated pages and tables."""

# Pages on algorithms, dialects and detectors come from docstrings, class attributes and presets, and those of
# algorithms from kept findings and profiles too; others from graded pairs and from programs in completions.
# `marked` renews the tables of results inside other pages, `gallery` the pages of findings.

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment

from grpobench.algorithms import modifiers
from grpobench.analysis.findings.record import FOLDER as FINDINGS
from grpobench.analysis.theory import comparison
from grpobench.runs.handover.importing.names.vocabularies import VOCABULARIES
from grpobench.runs.inventory import (
    dialects_page,
    gallery,
    marked,
    profiles_page,
    records_page,
    reference,
    showing,
)
from grpobench.runs.inventory.claims import Standing, standing
from grpobench.runs.inventory.folders import FOLDER
from grpobench.runs.inventory.templating import templates
from grpobench.runs.settings import registries
from grpobench.runs.tools import files
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded
from grpobench.tasks.grading import pairs, readings

if TYPE_CHECKING:
    import click

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
COMMON = 2
"""Algorithms that must share a setting or metric before the index explains it."""
USUAL_NEEDS = (
    "trains policy",
    "rollouts: the policy's own only",
    "with beta above 0: one more forward pass per step of: reference",
)
"""Needs that the index lists once. Each page lists another line where one of them does not hold."""
THEORY_FIGURE = "figures/theory.svg"
MARK = "<!-- Written by `grpobench docs`"
"""How every page begins."""


def write(folder: Path, app: click.Group | None = None) -> list[Path]:
    """Write every page under a folder such as ``docs``, that of the commands of `app` among them, remove
    pages of algorithms and findings that no longer exist, and renew tables of results between their markers.
    Raises ConfigError instead of overwriting a file that is not such a page."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError([f"docs {folder}: not a folder; name one to write pages to"])
    tables = folder / FOLDER / FINDINGS
    texts = pages(tables if tables.is_dir() else None)
    if app:
        texts[reference.COMMANDS] = reference.commands_page(templates(), app)
    texts |= gallery.gallery_pages(templates(), tables)
    texts[records_page.PAGE] = records_page.records_page(templates(), tables.parent)
    for path in (folder / name for name in texts if name.endswith(".md")):
        if path.exists() and not bounded.read_text(path).startswith(MARK):
            raise ConfigError([f"{path} was not written by `grpobench docs`; move it or name another folder"])
    texts |= theory_figure(folder / FOLDER / f"{comparison.NAME}.json")
    tabled = marked.documents(folder)
    for path in [*(folder / "algorithms").glob("*.md"), *(folder / gallery.PAGES).glob("*.md")]:
        ours = bounded.read_text(path).startswith(MARK)
        if ours and path.relative_to(folder).as_posix() not in texts:
            path.unlink()
    for name, text in (texts | tabled).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(folder / name, text.encode())
    return [folder / name for name in texts | tabled]


def theory_figure(path: Path) -> dict[str, str]:
    """The figure of docs/theory.md from its kept table; none without one."""
    from grpobench.analysis.figures.drawing import svg_text
    from grpobench.analysis.theory.figure import draw

    return {THEORY_FIGURE: svg_text(draw(comparison.read(path)))} if path.exists() else {}


def pages(tables: Path | None = None) -> dict[str, str]:
    """Text by path under the folder of documents. `tables` are the kept tables of findings; None: those of
    the checkout."""
    environment = templates()
    presets = showing.show_dialects()
    texts = algorithm_pages(environment, standing(tables))
    texts["dialects.md"] = environment.get_template("dialects.md.j2").render(
        dialects_page.collect_dialects(presets)
    )
    texts["modify.md"] = environment.get_template("modify.md.j2").render(stands_around())
    texts["import.md"] = environment.get_template("import.md.j2").render(vocabularies=VOCABULARIES.values())
    texts[showing.PAGE] = environment.get_template("stability.md.j2").render(showing.page_facts())
    texts[pairs.PAGE] = environment.get_template("pairs.md.j2").render(pairs.page_facts())
    texts[readings.PAGE] = environment.get_template("readings.md.j2").render(readings.page_facts())
    return texts | reference.pages(environment) | profiles_page.pages()


def algorithm_pages(environment: Environment, standing: Standing) -> dict[str, str]:
    """The page of each algorithm, and the index."""
    shown = {name: facts(cls, standing) for name, cls in registries.algorithms().items()}
    common = {part: collect_common(row[part] for row in shown.values()) for part in ("settings", "metrics")}
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
    return texts


def facts(cls: Any, standing: Standing) -> Mapping[str, Any]:
    """The content of an algorithm's page."""
    row = showing.show_algorithm(cls, standing)
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
