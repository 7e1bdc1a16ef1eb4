"""The page docs/profiles.md, from the outcomes that come with the suite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from grpobench.analysis.profile import kept
from grpobench.analysis.profile.document import document
from grpobench.analysis.profile.kept import Row
from grpobench.analysis.profile.scores import Profile, build
from grpobench.analysis.profile.table import algorithms_with_runs
from grpobench.runs.publishing.contributed import contributed_rows
from grpobench.runs.settings.probes import SCALES, probes
from grpobench.runs.settings.registries import algorithms

if TYPE_CHECKING:
    from grpobench.analysis.profile.transfer import ProbeTransfer

PAGE = "profiles.md"
FEWEST = 5
"""Algorithms from which on a page says something."""


def contributed() -> tuple[dict[str, list[Row]], list[Row]]:
    """Outcomes and searches of contributions, as CONTRIBUTION/ALGORITHM; none outside of a checkout."""
    docs = Path(__file__).resolve().parents[2] / "docs"
    return contributed_rows(docs / "results")


def shipped() -> tuple[Profile, dict[str, list[Row]]]:
    """The profile of what is kept and contributed, and its outcomes."""
    theirs, search = contributed()
    rows = {**kept.read_all([kept.FOLDER]), **theirs}
    return build(rows, probes(), kept.read_rates([kept.FOLDER]) | kept.chosen(search)), rows


def scale_transfers() -> list[ProbeTransfer]:
    """The probes that are kept at nano scale and of SmolLM2."""
    from grpobench.analysis.profile.transfer import transfers

    rows, known, rates = zip(
        *(
            (kept.read_all([kept.shipped(scale)]), probes(scale), kept.read_rates([kept.shipped(scale)]))
            for scale in SCALES
        ),
        strict=True,
    )
    return transfers(rows, known, rates)


def pages() -> dict[str, str]:
    """The page by its path; none while few algorithms are kept."""
    profile, rows = shipped()
    if len(profile.algorithms) < FEWEST:
        return {}
    without = sorted({*algorithms()} - {*algorithms_with_runs(profile)})
    text = document(profile, kept.read_controls([kept.FOLDER]), rows, without=without)
    theirs = sorted(name for name in profile.algorithms if "/" in name)
    if theirs:
        listed = ", ".join(f"`{name}`" for name in theirs)
        text += (
            f"\n## Contributions\n\nOthers ran and published these, as CONTRIBUTION/ALGORITHM: {listed}.\n"
        )
    return {PAGE: text}
