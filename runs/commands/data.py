"""`grpobench data fetch` and `grpobench data list`."""

from __future__ import annotations

import argparse

from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, as_json, complain, say
from grpobench.runs.inventory import data


def fetch_command(options: argparse.Namespace) -> int:
    """0 when everything asked for is here with the right sums, 70 when pip fails."""
    try:
        say("\n".join(data.fetch(options.names)))
    except data.FetchError as error:
        return complain(str(error), INFRASTRUCTURE)
    return DONE


def list_command(options: argparse.Namespace) -> int:
    rows = data.rows()
    say(as_json(rows) if options.json else "\n".join(data.as_lines(rows)))
    return DONE
