"""`grpobench list` and `grpobench show`."""

from __future__ import annotations

import argparse

from grpobench.runs.commands.output import DONE, as_json, say
from grpobench.runs.inventory import dialects, listing, showing
from grpobench.runs.tools.strict import ConfigError


def list_command(options: argparse.Namespace) -> int:
    rows = listing.LISTS[options.kind]()
    say(as_json(rows) if options.json else "\n".join(listing.as_lines(rows)))
    return DONE


def show_command(options: argparse.Namespace) -> int:
    every = options.kind == "dialects"
    if every == bool(options.name):
        raise ConfigError([f"show {options.kind}: " + ("takes no name" if every else "needs a name")])
    if options.library and options.kind != "algorithm":
        raise ConfigError([f"--as: write grpobench show algorithm NAME --as {options.library}"])
    if every:
        rows = dialects.show_dialects()
        text = "\n\n".join("\n".join(dialects.dialect_lines(row)) for row in rows)
        say(as_json(rows) if options.json else text)
        return DONE
    if options.library:
        row = dialects.show_as(options.name, options.library)
    else:
        row = showing.show(options.kind, options.name)
    differs = options.library or options.kind == "dialect"
    lines = dialects.dialect_lines(row) if differs else [showing.as_text(row)]
    say(as_json(row) if options.json else "\n".join(lines))
    return DONE
