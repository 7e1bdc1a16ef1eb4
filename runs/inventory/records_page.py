"""The page docs/records.md: kept and contributed results ranked by target and task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment

from grpobench.analysis import kept
from grpobench.analysis.kept import KeptTable
from grpobench.analysis.records import ALPHA, FEWEST_PAIRS, FEWEST_SEEDS, RankedRecord, rank
from grpobench.analysis.tools.text import NONE
from grpobench.runs.handover.publishing.contributed import Contribution, contributions
from grpobench.runs.handover.publishing.verify import WIDEST
from grpobench.tasks.data import bounded

PAGE = "records.md"


def records_page(environment: Environment, results: Path) -> str:
    """The page of the kept results in a folder. Raises LogError for a damaged table."""
    by_name = {contribution.folder.name: contribution for contribution in contributions(results)}
    tables = our_tables(results)
    for name, contribution in by_name.items():
        tables |= {f"{name}/{table}": content for table, content in contribution.tables.items()}
    targets = [
        (target, [_row(record, by_name) for record in records]) for target, records in rank(tables).items()
    ]
    text = environment.get_template("records.md.j2").render(
        targets=targets,
        contributions=[*map(_contribution, by_name.values())],
        fewest=FEWEST_SEEDS,
        pairs=FEWEST_PAIRS,
        alpha=ALPHA,
        widest=f"{WIDEST:g}",
        percent=lambda share: f"{100 * share:.1f} %".replace(".0 %", " %"),
    )
    return text.rstrip("\n") + "\n"


def our_tables(results: Path) -> dict[str, KeptTable]:
    """The kept tables of experiments in a folder, by name."""
    paths = sorted(results.glob("*.json"))
    return {
        path.stem: kept.read(path) for path in paths if bounded.read_object(path).get("kind") == kept.KIND
    }


def _row(record: RankedRecord, by_name: Mapping[str, Contribution]) -> dict[str, Any]:
    entry = record.entry
    name, slash, table = entry.source.partition("/")
    checked = "ours"
    if slash:
        seeds = by_name[name].verified.get("seeds", {}).get(table, ())
        checked = f"rerun: seeds {' and '.join(map(str, seeds))}" if seeds else "trust"
    compared = f"{record.verdict}, {record.wins} of {record.shared}, p {record.p:.2g}"
    return {
        "arm": f"`{entry.arm}`",
        "source": f"`{entry.source}`",
        "tokens": f"{entry.median:,.0f}",
        "reached": f"{sum(entry.reached.values())} of {len(entry.reached)}",
        "verdict": NONE if record.verdict == "not compared" else compared,
        "rate": NONE if entry.rate is None else f"{entry.rate:g}",
        "machine": " and ".join(entry.machine),
        "checked": checked,
    }


def _contribution(theirs: Contribution) -> dict[str, Any]:
    verified = theirs.verified
    return {
        "name": f"`{theirs.folder.name}`",
        "contributor": theirs.manifest.contributor,
        "published": theirs.manifest.published,
        "again": f"{verified['runs']} runs" if verified else NONE,
        "identical": str(verified["identical"]) if verified else NONE,
    }
