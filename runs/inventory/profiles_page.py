"""The page docs/profiles.md, from the outcomes that come with the suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpobench.analysis.profile import kept
from grpobench.analysis.profile.document import document
from grpobench.analysis.profile.scores import Profile, build
from grpobench.analysis.profile.table import algorithms_with_runs
from grpobench.runs.settings.probes import SCALES, probes
from grpobench.runs.settings.registries import algorithms

if TYPE_CHECKING:
    from grpobench.analysis.profile.transfer import ProbeTransfer

PAGE = "profiles.md"
FEWEST = 5
"""Algorithms from which on a page says something."""


def shipped() -> Profile:
    """The profile of what is kept."""
    folders = [kept.FOLDER]
    return build(kept.read_all(folders), probes(), kept.read_rates(folders))


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
    profile = shipped()
    if len(profile.algorithms) < FEWEST:
        return {}
    folders = [kept.FOLDER]
    without = sorted({*algorithms()} - {*algorithms_with_runs(profile)})
    return {PAGE: document(profile, kept.read_controls(folders), kept.read_all(folders), without=without)}
