"""Dialects beside our algorithms of the same name: what differs, what is the same, what cannot be said."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import TYPE_CHECKING

from grpobench.runs.inventory.describing import Row, plainly, settings
from grpobench.runs.settings import config, registries
from grpobench.runs.settings.registries import chosen
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.algorithms.dialects import Dialect

ABSENT = "–"
"""In the place of a value: our algorithm of the name has no such setting."""


def described(rows: list[Row]) -> str:
    """Differences as one line."""
    return ", ".join(f"{row['setting']} = {plainly(row['theirs'])}" for row in rows) or "our defaults"


def show_as(name: str, library: str) -> Row:
    """How a library's algorithm of that name differs from ours. Raises `ConfigError` for what is unknown."""
    cls = chosen(registries.algorithms(), name, "algorithm")
    known = {dialect.library: dialect for dialect in dialects_of(cls.name)}
    if library not in known:
        guess = strict.nearest(library, known)
        did = f"did you mean {guess}?" if guess else f"known for {name}: {', '.join(known) or 'none'}"
        raise ConfigError([f"--as {library}: no dialect {name}@{library}; {did}"])
    return show_dialect(known[library])


def dialects_of(algorithm: str) -> list[Dialect]:
    return [dialect for dialect in registries.dialects().values() if dialect.algorithm == algorithm]


def show_dialects() -> list[Row]:
    """Every dialect with every fact."""
    return [show_dialect(dialect) for dialect in registries.dialects().values()]


def show_dialect(dialect: Dialect) -> Row:
    rows = facts(dialect)
    return {
        "name": dialect.name,
        "algorithm": dialect.algorithm,
        "base": dialect.base,
        "library": dialect.library,
        "version": dialect.version,
        "ask": dialect.ask,
        "remark": dialect.remark,
        "differences": [row for row in rows if row["ours"] != row["theirs"]],
        "equal": [row for row in rows if row["ours"] == row["theirs"]],
        "not_expressed": [dataclasses.asdict(gap) for gap in dialect.gaps],
    }


def differences(dialect: Dialect) -> list[Row]:
    return [row for row in facts(dialect) if row["ours"] != row["theirs"]]


def facts(dialect: Dialect) -> list[Row]:
    """Each value that a dialect sets beside the default of our algorithm of the name, where it has one."""
    cls = registries.algorithms()[dialect.algorithm]
    rows = []
    for fact in dialect.facts:
        section, name = fact.place
        ours = {row["name"]: row["default"] for row in settings(config.SECTIONS.get(section, cls))}
        if section == "modify":
            ours |= cls.modifiers
        row = {"setting": fact.setting, "ours": ours.get(name, ABSENT), "theirs": fact.value}
        rows.append({**row, "source": fact.source, "note": fact.note})
    return rows


def dialect_lines(row: Row) -> list[str]:
    """A dialect as text: a table of what differs, what is the same, what cannot be said."""
    lines = [f"{row['name']}: {row['library']} {row['version']}, {row['ask']}", ""]
    if row["remark"]:
        base = "" if row["base"] == row["algorithm"] else f"; the settings are those of our {row['base']}"
        lines.insert(1, f"{row['remark']}{base}")
    head = {"setting": "setting", "ours": "ours", "theirs": "theirs", "source": "read in", "note": ""}
    table = [head, *row["differences"]] if row["differences"] else []
    width = {key: max((len(plainly(entry[key])) for entry in table), default=0) for key in head}
    for entry in table:
        cells = (f"{plainly(entry[key]):<{width[key]}}" for key in ("setting", "ours", "theirs"))
        lines.append(f"{'  '.join(cells)}  {entry['source']}")
        if entry["note"]:
            lines += indented(entry["note"])
    if not table:
        lines.append("no setting differs")
    if row["equal"]:
        same = ", ".join(f"{entry['setting']} = {plainly(entry['theirs'])}" for entry in row["equal"])
        lines += ["", "the same:", *indented(same)]
    if row["not_expressed"]:
        lines += ["", "not expressed:"]
        for gap in row["not_expressed"]:
            lines += indented(f"{gap['what']} ({gap['source']})")
    return lines


def indented(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
