"""`grpobench figure`."""

from __future__ import annotations

import argparse

from grpobench.analysis.tools.text import why_no_folder
from grpobench.runs.commands.arguments import FIGURE_FORMATS
from grpobench.runs.commands.output import DONE, say
from grpobench.runs.tools.strict import ConfigError, nearest
from grpobench.tasks.data.errors import DataError


def figure_command(options: argparse.Namespace) -> int:
    # These load pandas and matplotlib.
    from grpobench.analysis.figures.catalogue import FIGURES
    from grpobench.analysis.logs.files import LogError
    from grpobench.analysis.logs.load import load
    from grpobench.analysis.logs.together import together
    from grpobench.runs.interface.results import Results

    formats = [part.strip() for part in options.format.split(",") if part.strip()]
    faults = [wrong("--format", name, FIGURE_FORMATS) for name in formats if name not in FIGURE_FORMATS]
    if not formats:
        faults.append(f"--format: names no format; known: {', '.join(FIGURE_FORMATS)}")
    if options.name not in ("all", *FIGURES):
        faults.append(wrong("figure", options.name, ("all", *FIGURES)))
    for folder in options.folders:
        if not folder.is_dir():
            why = why_no_folder(folder)
            faults.append(f"{folder}: {why}; give a matrix folder such as results/quickstart")
    if faults:
        raise ConfigError(faults)
    names = FIGURES if options.name == "all" else [options.name]
    try:
        results = Results(together([load(folder) for folder in options.folders]))
        written = results.write_figures(options.out, names, formats, options.width)
    except (LogError, ValueError, RuntimeError) as error:  # a folder, nothing to draw, no LaTeX for pgf
        raise DataError(str(error)) from error
    say("\n".join(map(str, written)))
    return DONE


def wrong(place: str, name: str, known: tuple[str, ...]) -> str:
    """The message for a name that there is not."""
    guess = nearest(name, known)
    did = f"did you mean {guess}?" if guess else f"known: {', '.join(known)}"
    return f"{place}: unknown {'format' if place == '--format' else 'name'} {name!r}; {did}"
