"""`grpobench findings`: every finding with its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from grpobench.runs.commands.options import (
    Options,
    combine,
    json_option,
    out_option,
)
from grpobench.runs.commands.output import DONE, as_json, say
from grpobench.runs.inventory import verdicts
from grpobench.runs.settings.findings import SCALES, findings
from grpobench.tasks.data import bounded

scale_options = combine(
    click.option("--scale", type=click.Choice(("nano", "small", "full")), default="nano"),
    out_option("results/findings"),
)


@scale_options
@json_option
def list_command(options: Options) -> int:
    rows = summaries(options.scale, options.out)
    if options.json:
        say(as_json(list(rows)))
        return DONE
    width = max(map(len, findings()))
    for row in rows:
        say("\n".join(summary_lines(row, width)))
    return DONE


def summaries(scale: str, out: Path) -> Iterator[dict[str, Any]]:
    """Every finding with its verdict, which is judged only where it is not known."""
    finding_paths = findings()
    verdict_by_name = verdicts.known_verdicts(finding_paths, scale, out)
    for name, path in finding_paths.items():
        if name not in verdict_by_name:
            from grpobench.runs.api.findings import summary

            yield summary(name, scale, out)
            continue
        table, verdict = bounded.read_toml(path), verdict_by_name[name]
        yield {
            "name": name,
            "claim": table["claim"],
            "source": table["source"],
            "scales": [scale_name for scale_name in SCALES if scale_name in table],
            "scale": scale,
            "verdict": None if verdict == verdicts.NOT_RUN else verdict,
            "rerun": None,
            "contributed": [],
        }


def summary_lines(row: Mapping[str, Any], width: int) -> list[str]:
    """A finding with its verdict, and below it what a rerun and contributions say."""
    without = verdicts.NOT_RUN if row["scale"] in row["scales"] else f"only {', '.join(row['scales'])}"
    lines = [f"{row['name']:<{width}}  {row['verdict'] or without:<12}  {row['claim']}"]
    if row["rerun"]:
        from grpobench.runs.inventory.findings.records import rerun_words

        lines.append(f"  {rerun_words(row['rerun'])}")
    lines += [
        f"  contributed by {theirs['contributor']} ({theirs['name']}): {theirs['verdict']}"
        for theirs in row["contributed"]
    ]
    return lines
