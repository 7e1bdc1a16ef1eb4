"""Documents with tables that are written from kept tables: what stands between their markers.

    <!-- kept NAME KIND option=value … -->
    <!-- end of kept -->

asks for a table of `docs/results/NAME.json`; the kinds are those of `analysis/kept/markdown.py`, and for the
calibration those of `analysis/calibration/markdown.py`. Where that
file is not there, `before=COMMIT` says that the text between the markers was measured at that commit; the
page then says so above it. Without either nothing may stand there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from grpobench.analysis.logs.files import LogError
from grpobench.runs.tools.strict import ConfigError

FOLDER = "results"
"""Below the folder of documents: the kept tables."""
END = "<!-- end of kept -->"
MARKER = re.compile(r"<!-- kept (?P<asked>\S+ [^>]*?) -->\n(?P<body>.*?)" + re.escape(END), re.DOTALL)
EARLIER = "*Measured at commit {} and not made again since: today's code may give other numbers.*"
SAID = re.compile(r"^\*Measured at commit [^*]*\*\n+")


@dataclass(frozen=True)
class Block:
    """A place in a document."""

    name: str
    kind: str
    options: Mapping[str, str]
    body: str

    @property
    def before(self) -> str:
        """Commit at which the text was measured that stands there without a kept table."""
        return self.options.get("before", "")


def documents(folder: Path) -> dict[str, str]:
    """Text by path under `folder`, of every document with markers, as it is to be. Raises ConfigError."""
    found = {}
    for path in sorted(folder.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if "<!-- kept " in text:
            found[path.relative_to(folder).as_posix()] = filled(text, path, folder / FOLDER)
    return found


def filled(text: str, path: Path, tables: Path) -> str:
    """The document's text with every marked place written anew."""
    counts = {text.count("<!-- kept "), text.count(END), len(MARKER.findall(text))}
    if len(counts) > 1:
        raise ConfigError([f"{path}: every `<!-- kept NAME KIND -->` needs a `{END}` behind it"])
    return MARKER.sub(
        lambda match: f"<!-- kept {match['asked']} -->\n{_body(_block(match), path, tables)}{END}", text
    )


def blocks(text: str) -> Iterator[Block]:
    """The marked places of a document."""
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
    body = SAID.sub("", block.body)
    if not body:
        return ""
    if not block.before:
        what = f"text without a kept table {place.name} and without before=COMMIT"
        raise ConfigError([f"{path}: {what}; make it with grpobench keep, or name the commit of its numbers"])
    return f"\n{EARLIER.format(block.before)}\n\n{body}\n\n"


def _lines(block: Block, place: Path) -> list[str]:
    """What a kept table's kind makes of it."""
    from grpobench.analysis.calibration import markdown as calibration
    from grpobench.analysis.calibration import table
    from grpobench.analysis.kept import kept, markdown

    if block.name == table.NAME:
        return calibration.render(table.read(place), block.kind)
    return markdown.render(kept.read(place), block.kind, block.options)
