"""Verdicts of kept findings, which `grpobench findings` shows without judging each of them again."""

# `grpobench docs` writes them next to the kept tables, each with the checksum of the table that it was judged
# from.

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from grpobench.runs.inventory.folders import FOLDER, PARTS, kept_finding, results_folder
from grpobench.tasks.data import bounded

FILE = "verdicts.toml"
PAGE = f"{FOLDER}/{FILE}"
"""Where it is, below the documents."""
NOT_RUN = "not run"


def as_text(verdicts: Iterable[tuple[str, str]], tables: Path) -> str:
    """The file: verdicts by NAME-SCALE, with the sums of the kept tables in the folder `tables`."""
    lines = ["# Written by `grpobench docs`: the verdict of each kept table, and the sha256 of the table."]
    for key, verdict in sorted(verdicts):
        lines += [
            "",
            f"[{key}]",
            f'verdict = "{verdict}"',
            f'table = "{bounded.sha256(tables / f"{key}.json")}"',
        ]
    return "\n".join([*lines, ""])


def known_verdicts(names: Iterable[str], scale: str, out: Path) -> dict[str, str]:
    """By finding, what a listing says of it at a scale if nothing has to be judged for it: the verdict of its
    kept table, or `NOT_RUN`. Findings are left out beside whose table runs, a part or contributions may
    stand, or whose table has changed since its verdict was written."""
    results, verdicts = results_folder(), {}
    path = results and results / FILE
    stored_verdicts = bounded.read_toml(path) if path and path.exists() else {}
    for name in names:
        key = f"{name}-{scale}"
        if (out / key).exists():
            continue
        if results is None:
            verdicts[name] = NOT_RUN
            continue
        table = kept_finding(results, name, scale)
        if kept_finding(results, name, scale, PARTS).exists() or (results / "contributed").exists():
            continue
        if not table.exists():
            verdicts[name] = NOT_RUN
        elif stored_verdicts.get(key, {}).get("table") == bounded.sha256(table):
            verdicts[name] = str(stored_verdicts[key]["verdict"])
    return verdicts
