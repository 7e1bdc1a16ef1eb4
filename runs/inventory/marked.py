"""Kept tables inside documents, between markers that name the table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grpobench.analysis.runfolder.files import LogError
from grpobench.runs.inventory.claims_table import claims_table
from grpobench.runs.inventory.folders import FINDINGS, FOLDER
from grpobench.runs.inventory.templating import fold
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded

END = "<!-- end of kept -->"
MARKER = re.compile(r"<!-- kept (?P<asked>\S+ [^>]*?) -->\n(?P<body>.*?)" + re.escape(END), re.DOTALL)
EARLIER = "*Measured at commit {} and not made again since: today's code may give other numbers.*"
STAMP = re.compile(r"^\*Measured at commit [^*]*\*\n+")


@dataclass(frozen=True)
class MarkedBlock:
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
    texts = {}
    for path in sorted(folder.rglob("*.md")):
        text = bounded.read_text(path)
        if "<!-- kept " in text:
            texts[path.relative_to(folder).as_posix()] = filled(text, path, folder / FOLDER)
    return texts


def filled(text: str, path: Path, tables: Path) -> str:
    """The document's text with every marked block written anew.

    Markers are::

        <!-- kept NAME KIND option=value … -->
        <!-- end of kept -->

    `findings errors` asks for how many conclusions of findings are expected to be wrong, and `findings
    claims` for the table of all claims. The others ask for a table of `docs/results/NAME.json`.
    `analysis/kept_tables.py` has the kinds, `analysis/calibration/markdown.py` those for the calibration
    `analysis/readable.py` those for readable answers, and `analysis/theory/comparison.py` those for
    predictions. If the file is missing, `before=COMMIT` says at which commit the text between the markers was
    measured, and the page says so above it. Without either there must be no text between the markers."""
    counts = {text.count("<!-- kept "), text.count(END), len(MARKER.findall(text))}
    if len(counts) > 1:
        raise ConfigError([f"{path}: every `<!-- kept NAME KIND -->` needs a `{END}` behind it"])
    return MARKER.sub(
        lambda match: f"<!-- kept {match['asked']} -->\n{_body(_block(match), path, tables)}{END}", text
    )


def _block(match: re.Match[str]) -> MarkedBlock:
    name, kind, *options = match["asked"].split()
    return MarkedBlock(
        name, kind, dict(option.partition("=")[::2] for option in options), match["body"].strip()
    )


def _body(block: MarkedBlock, path: Path, tables: Path) -> str:
    if (block.name, block.kind) == (FINDINGS, "errors"):
        return f"\n{fold(expected_errors(tables / FINDINGS))}\n\n"
    if (block.name, block.kind) == (FINDINGS, "claims"):
        return "\n" + "\n".join(claims_table(tables / FINDINGS)) + "\n\n"
    table_path = tables / f"{block.name}.json"
    if table_path.exists():
        try:
            lines = _lines(block, table_path)
        except LogError as error:
            raise ConfigError([f"{path}: {error}"]) from error
        return "\n" + "\n".join(lines) + "\n\n"
    body = STAMP.sub("", block.body)
    if not body:
        return ""
    if not block.before:
        lack = f"text without a kept table {table_path.name} and without before=COMMIT"
        raise ConfigError([f"{path}: {lack}; make it with grpobench keep, or name the commit of its numbers"])
    return f"\n{EARLIER.format(block.before)}\n\n{body}\n\n"


def expected_errors(tables: Path) -> str:
    """How many of the kept conclusions are expected to be wrong."""
    from grpobench.analysis.findings.errors import count_secondary, error_words
    from grpobench.analysis.findings.record import read_kept

    records = [read_kept(path) for path in sorted(tables.glob("*.json"))]
    return error_words(
        [record.registration.finding for record in records], sum(map(count_secondary, records))
    )


def _lines(block: MarkedBlock, table_path: Path) -> list[str]:
    """The block that a kind makes of a kept table."""
    from grpobench.analysis import kept, kept_tables, readable
    from grpobench.analysis.calibration import markdown as calibration
    from grpobench.analysis.calibration import table
    from grpobench.analysis.theory import comparison

    if block.name == table.NAME:
        return calibration.render(table.read(table_path), block.kind)
    if block.name == readable.NAME:
        return readable.render(readable.read(table_path), block.kind)
    if block.name == comparison.NAME:
        return comparison.render(comparison.read(table_path), block.kind)
    return kept_tables.render(kept.read(table_path), block.kind, block.options)
