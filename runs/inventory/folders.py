"""Where the documents of a checkout and the kept tables below them are."""

from __future__ import annotations

from pathlib import Path

from grpobench.runs.tools.strict import ConfigError

AGAIN = "again"
"""Folder beside the kept findings, with the same structure, for reruns on other seeds."""
SET_ASIDE = "earlier"
"""Folder beside the kept findings, with the same structure, for tables that an earlier rule was asked of."""
PARTS = "parts"
"""Folder beside the kept findings, with the same structure, for findings whose other runs are yet to come."""
PILOT = "pilot"
"""Folder beside the kept findings, with the same structure, and below the folder of a finding's runs: for
runs on other seeds that only tell how far contrasts scatter."""
FINDINGS = "findings"
"""Folder of the kept tables of findings, in that of kept tables."""
FOLDER = "results"
"""Folder of the kept tables, below the documents."""


def kept_finding(results: Path, name: str, scale: str, beside: str = "") -> Path:
    """The kept table of a finding at a scale, below the folder of result tables; `beside` is `AGAIN`,
    `SET_ASIDE`, `PARTS` or `PILOT`. The finding's page and figures are `docs/findings/NAME*`."""
    return results / beside / FINDINGS / f"{name}-{scale}.json"


def docs_folder(remedy: str = "name a folder: grpobench docs DIR") -> Path:
    """The folder `docs` of the project's checkout. Raises ConfigError for an installed package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").is_file() or not (root / "docs").is_dir():
        raise ConfigError([f"docs: not a checkout of the project; {remedy}"])
    return root / "docs"


def results_folder() -> Path | None:
    """The folder of result tables: in a checkout below the documents, in an installed package a copy."""
    try:
        return docs_folder() / FOLDER
    except ConfigError:
        copy = Path(__file__).resolve().parents[2] / FOLDER
        return copy if copy.is_dir() else None
