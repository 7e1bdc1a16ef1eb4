"""`grpobench merge`."""

from __future__ import annotations

import argparse
from collections import Counter

from grpobench.runs.commands.output import DONE, say
from grpobench.runs.matrix.merging import merge
from grpobench.runs.tools.strict import ConfigError


def merge_command(options: argparse.Namespace) -> int:
    if len(options.folders) < 2:
        raise ConfigError(["merge: give at least two matrix folders and the new one: merge DIR DIR OUT"])
    made = merge(options.folders, options.out)
    counts = Counter(str(path.parent) for path in made.taken.values())
    for folder, count in counts.items():
        say(f"{count} {'run' if count == 1 else 'runs'} from {folder}")
    if made.missing:
        names = ", ".join(made.missing[:5]) + (", ..." if len(made.missing) > 5 else "")
        say(f"{len(made.missing)} planned and begun nowhere: {names}")
    say(f"{made.folder}: {len(made.taken)} runs; grpobench report {made.folder}")
    return DONE
