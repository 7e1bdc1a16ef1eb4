"""The pages on algorithms, dialects and detectors, written from docstrings, class attributes and presets, on
graded pairs and on programs read in completions; and tables of results inside other pages, from kept tables
(`runs/inventory/filled.py`)."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from grpobench.algorithms import modifiers
from grpobench.analysis.findings.record import FOLDER as FINDINGS
from grpobench.runs.importing.translate import VOCABULARIES
from grpobench.runs.inventory import describing, detectors, dialects, filled, gallery, showing
from grpobench.runs.settings import registries
from grpobench.runs.tools import files
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.grading import pairs, readings

TEMPLATES = Path(__file__).parent / "templates"
MARK = "<!-- Written by `grpobench docs`"
"""How every page begins."""


def own_folder(remedy: str = "name a folder: grpobench docs DIR") -> Path:
    """`docs` of the project's checkout, wherever one stands. Raises ConfigError where this is none, but an
    installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file() or not (root / "docs").is_dir():
        raise ConfigError([f"docs: this is no checkout of the project; {remedy}"])
    return root / "docs"


def write(folder: Path) -> list[Path]:
    """Write every page under a folder such as ``docs``, remove pages of algorithms that are gone, and write
    tables of results anew between their markers. Raises ConfigError rather than write over a file that is not
    such a page."""
    found = pages()
    if folder.exists() and not folder.is_dir():
        raise ConfigError([f"docs {folder}: is no folder; name one to write pages to"])
    for path in (folder / name for name in found):
        if path.exists() and not path.read_text(encoding="utf-8").startswith(MARK):
            raise ConfigError([f"{path} was not written by `grpobench docs`; move it or name another folder"])
    tabled = filled.documents(folder) | gallery.pages(templates(), folder / filled.FOLDER / FINDINGS)
    for path in (folder / "algorithms").glob("*.md"):
        ours = path.read_text(encoding="utf-8").startswith(MARK)
        if ours and path.relative_to(folder).as_posix() not in found:
            path.unlink()
    for name, text in (found | tabled).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(folder / name, text.encode())
    return [folder / name for name in found | tabled]


def templates() -> Environment:
    """What pages are rendered with."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {"cell": cell, "value": value, "sentence": sentence, "fold": fold, "lines": lines}
    return environment


def pages() -> dict[str, str]:
    """Text by path under the folder of documents."""
    environment = templates()
    algorithms = registries.algorithms()
    shown = {name: facts(cls) for name, cls in algorithms.items()}
    presets = dialects.show_dialects()
    found = {
        f"algorithms/{name}.md": environment.get_template("algorithm.md.j2").render(
            row, known={dialect["name"]: dialect for dialect in presets}
        )
        for name, row in shown.items()
    }
    found["algorithms/README.md"] = environment.get_template("algorithms.md.j2").render(rows=shown.values())
    by_algorithm = {name: [row for row in presets if row["algorithm"] == name] for name in algorithms}
    found["dialects.md"] = environment.get_template("dialects.md.j2").render(
        algorithms={name: rows for name, rows in by_algorithm.items() if rows},
        example=presets[0],
        note=registries.dialects_note(),
    )
    found["modify.md"] = environment.get_template("modify.md.j2").render(stands_around())
    found["import.md"] = environment.get_template("import.md.j2").render(vocabularies=VOCABULARIES.values())
    found[detectors.PAGE] = environment.get_template("stability.md.j2").render(detectors.shown())
    found[pairs.PAGE] = environment.get_template("pairs.md.j2").render(pairs.shown())
    found[readings.PAGE] = environment.get_template("readings.md.j2").render(readings.shown())
    return found


def facts(cls: Any) -> Mapping[str, Any]:
    """What the page of an algorithm says."""
    row = showing.show_algorithm(cls)
    return row | {
        "about": describing.paragraphs(cls)[1],
        "formula": parts(row["formula"]),
        "certainty": certainty(row["evidence"]),
    }


def stands_around() -> Mapping[str, Any]:
    """What the page of the section `modify` says: settings in groups, each with its evidence; metrics."""
    groups: list[dict[str, Any]] = []
    for row in describing.settings(modifiers.Modifiers):
        if row["name"] in modifiers.EVIDENCE:
            groups.append({"evidence": modifiers.EVIDENCE[row["name"]], "settings": []})
        groups[-1]["settings"].append(row)
    return {"groups": groups, "metrics": modifiers.METRICS}


def certainty(evidence: str) -> str:
    """What the index says of `evidence`."""
    kind = evidence.partition(":")[0]
    return f"{kind} in part" if kind == "verified" and "reconstruction:" in evidence else kind


def parts(formula: str) -> list[str]:
    """A formula's statements, which two spaces after a semicolon part, each from a new line and folded."""
    return [
        line
        for statement in formula.split(";  ")
        for line in textwrap.wrap(
            statement, 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    ]


def cell(text: Any) -> str:
    """Text as a table's cell holds it."""
    return " ".join(str(text).split()).replace("|", "\\|")


def lines(text: str) -> str:
    """Text of several lines as a table's cell holds it, its signs as they are."""
    shown = html.escape(text, quote=False).replace("|", "&#124;").replace("`", "&#96;").replace("\r", "")
    for sign in "*_~[]\\":
        shown = shown.replace(sign, f"&#{ord(sign)};")
    return "<pre>" + shown.replace("\n", "<br>") + "</pre>"


def value(item: Any) -> str:
    """A value as a recipe has it."""
    return dialects.ABSENT if item == dialects.ABSENT else f"`{describing.plainly(item)}`"


def fold(text: str) -> str:
    """Text in lines of 118 characters."""
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
