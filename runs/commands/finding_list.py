"""`grpobench findings`: every finding with its verdict."""

from __future__ import annotations

from collections.abc import Mapping
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
from grpobench.runs.settings.findings import findings
from grpobench.tasks.data import bounded

scale_options = combine(
    click.option("--scale", type=click.Choice(("nano", "small", "full")), default="nano"),
    out_option("results/findings"),
)


@scale_options
@json_option
def list_command(options: Options) -> int:
    finding_paths = findings()
    if options.json:
        from grpobench.runs.api.findings import list_row

        say(as_json([list_row(name, options.scale, options.out) for name in finding_paths]))
        return DONE
    width = max(map(len, finding_paths))
    verdict_of = verdicts.known_verdicts(finding_paths, options.scale, options.out)
    for name, path in finding_paths.items():
        if verdict := verdict_of.get(name):
            say(f"{name:<{width}}  {verdict:<12}  {bounded.read_toml(path)['claim']}")
        else:
            from grpobench.runs.api.findings import summary

            say("\n".join(summary_lines(summary(name, options.scale, options.out), width)))
    return DONE


def summary_lines(row: Mapping[str, Any], width: int) -> list[str]:
    """A finding with its verdict, and below it what a rerun and contributions say."""
    from grpobench.runs.inventory.findings.records import rerun_words

    return [
        f"{row['name']:<{width}}  {row['verdict'] or verdicts.NOT_RUN:<12}  {row['claim']}",
        *([f"  {rerun_words(row['rerun'])}"] if row["rerun"] else []),
        *(
            f"  contributed by {theirs['contributor']} ({theirs['name']}): {theirs['verdict']}"
            for theirs in row["contributed"]
        ),
    ]
