"""The page docs/profiles.md, from the outcomes that come with the suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grpobench.analysis.profile import kept
from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.profile.scores import Profile, build
from grpobench.analysis.profile.table import algorithms_with_runs, lines
from grpobench.runs.handover.publishing.contributed import contributions
from grpobench.runs.settings.probes import SCALES, probes
from grpobench.runs.settings.registries import algorithms

if TYPE_CHECKING:
    from grpobench.analysis.profile.transfer import ProbeTransfer

PAGE = "profiles.md"
FEWEST = 5
"""Algorithms from which on a page says something."""


def contributed() -> tuple[dict[str, list[ProbeOutcome]], list[ProbeOutcome]]:
    """Outcomes and searches of contributions, as CONTRIBUTION/ALGORITHM; none outside of a checkout."""
    outcomes: dict[str, list[ProbeOutcome]] = {}
    search: list[ProbeOutcome] = []
    for contribution in contributions(Path(__file__).resolve().parents[2] / "docs/results"):
        outcomes |= contribution.outcomes
        search += contribution.search
    return outcomes, search


def shipped() -> Profile:
    """The profile of what is kept."""
    return build(kept.read_all([kept.FOLDER]), probes(), kept.read_rates([kept.FOLDER]))


def contributed_lines(
    ours: Mapping[str, Sequence[ProbeOutcome]], rates: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Tables of the contributed algorithms alone; empty without any. The variances of their intervals are
    moderated over all algorithms, those of ours without theirs: one more algorithm changes every interval."""
    theirs, search = contributed()
    if not theirs:
        return []
    joint_profile = build({**ours, **theirs}, probes(), {**rates, **kept.chosen(search)})
    # A table's row begins with the algorithm; headings and rulers are no algorithm of ours.
    rows = (line for line in lines(joint_profile) if line.startswith("|"))
    shown = [line for line in rows if line.split("|")[1].strip() not in ours]
    introduction = (
        "Contributions, as CONTRIBUTION/ALGORITHM: others ran and published them. Nothing above counts them. "
        "Verified: tables, settings and seeds agree with the logs. Taken on trust: the logs and who ran them."
    )
    return [introduction, "", *shown]


def scale_transfers() -> list[ProbeTransfer]:
    """The probes that are kept at nano scale and of SmolLM2."""
    from grpobench.analysis.profile.transfer import transfers

    rows, scale_probes, rates = zip(
        *(
            (kept.read_all([kept.shipped(scale)]), probes(scale), kept.read_rates([kept.shipped(scale)]))
            for scale in SCALES
        ),
        strict=True,
    )
    return transfers(rows, scale_probes, rates)


def uncompared_probes(compared: Sequence[ProbeTransfer]) -> dict[str, str]:
    """Why a probe with outcomes of SmolLM2 is not among these, by its title."""
    from grpobench.analysis.profile.transfer import FEWEST as ALGORITHMS

    measured = []
    for scale in SCALES:
        rows = kept.read_all([kept.shipped(scale)])
        measured.append({(name, row.probe) for name, by_seed in rows.items() for row in by_seed})
    compared_names = {transfer.probe.name for transfer in compared}
    reasons = {}
    for name, probe in probes(SCALES[1]).items():
        algorithms_there = sorted(algorithm for algorithm, of in measured[1] if of == name)
        count = sum((algorithm, name) in measured[0] for algorithm in algorithms_there)
        if algorithms_there and name not in compared_names:
            reasons[probe.title] = (
                f"SmolLM2 has outcomes of {' and '.join(algorithms_there)}; a comparison needs {ALGORITHMS} "
                f"algorithms at both scales, and there are {count}"
            )
    return reasons


def pages() -> dict[str, str]:
    """The page by its path; none while few algorithms are kept."""
    from grpobench.analysis.profile.document import document

    profile = shipped()
    if len(profile.algorithms) < FEWEST:
        return {}
    rows, rates = kept.read_all([kept.FOLDER]), kept.read_rates([kept.FOLDER])
    without = sorted({*algorithms()} - {*algorithms_with_runs(profile)})
    text = document(profile, kept.read_beside(kept.CONTROLS, [kept.FOLDER]), rows, without=without)
    if theirs := contributed_lines(rows, rates):
        text += "\n".join(["", "## Contributions", "", *theirs, ""])
    return {PAGE: text}
