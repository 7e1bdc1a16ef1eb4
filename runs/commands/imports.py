"""`grpobench import`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from grpobench.runs.commands.options import NATURAL, PATH, Options, flag, json_option
from grpobench.runs.commands.output import DONE, as_json, say, warn

if TYPE_CHECKING:
    from grpobench.runs.handover.importing.importing import Imported, ReadRun

LIBRARIES = (
    *("trl", "verl", "openrlhf", "prime-rl", "nemo-rl", "skyrl", "slime", "areal", "ms-swift"),
    *("wandb", "tensorboard", "csv", "jsonl"),
)
MOST = 20
"""Lines of runs, and of faults, that are printed; provenance.json of each run has all."""


@click.argument(
    "sources",
    type=PATH,
    nargs=-1,
    required=True,
    metavar="SOURCE...",
    help="A log, the folder of one log, or a folder of such folders.",
)
@click.argument("out", type=PATH, metavar="OUT", help="The experiment folder; it may hold imported runs.")
@click.option(
    "--from",
    "form",
    type=click.Choice(LIBRARIES),
    metavar="FORMAT",
    help=f"Format of the logs, {', '.join(LIBRARIES)}. Default: detected from each log.",
)
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="THEIRS=OURS",
    help="Read their metric as ours (grpobench list metrics), or COLUMN=step. THEIRS/100=OURS divides "
    "percentages by 100. May be repeated.",
)
@click.option("--arm", default="", metavar="NAME", help="Default: from names of folders or logs.")
@click.option("--task", default="", metavar="NAME", help="Default: the data set that the log names.")
@click.option("--seed", type=NATURAL, metavar="N", help="Default: from names, else from the log.")
@click.option(
    "--experiment", default="", metavar="NAME", help="Name of the experiment. Default: the name of OUT."
)
@click.option(
    "--beside",
    type=PATH,
    multiple=True,
    metavar="DIR",
    help="Copy the runs of our experiment DIR into OUT, so that one report shows both. May be repeated.",
)
@flag("--strict", "Import nothing if any log is damaged.")
@json_option
def import_command(options: Options) -> int:
    from grpobench.runs.api.importing import import_runs

    imported = import_runs(
        options.sources,
        options.out,
        form=options.form or "",
        maps=options.maps,
        arm=options.arm,
        task=options.task,
        seed=options.seed,
        experiment=options.experiment,
        strict=options.strict,
        beside=options.beside,
    )
    for theirs in imported.unused:
        warn(f"--map {theirs}: no log has it")
    if options.json:
        say(as_json(table(imported)))
    else:
        say("\n".join(lines(imported)))
    return DONE


def lines(imported: Imported) -> list[str]:
    """What was imported, what has no name of ours, and what could not be read."""
    from grpobench.analysis.tools.text import listed

    shown = [
        f"{run.target.folder}: {run.log.state}, {len(run.translated.rows)} rows to step "
        f"{max(run.translated.rows)}, "
        f"{len(run.translated.names)} metrics known and {len(run.translated.unmapped)} others, from "
        f"{run.log.path}"
        for run in imported.runs[:MOST]
    ]
    if len(imported.runs) > MOST:
        shown.append(f"and {len(imported.runs) - MOST} more runs")
    shown += list(dict.fromkeys(map(spoken, imported.runs)))
    unmapped_names = sorted({name for run in imported.runs for name in run.translated.unmapped})
    if unmapped_names:
        shown.append(f"without a name of ours: {listed(unmapped_names, 40)}")
    notes: dict[str, list[str]] = {}
    for run in imported.runs:
        for note in [*run.log.notes, *run.translated.notes]:
            notes.setdefault(note, []).append(run.target.folder)
    shown += [f"note: {note} ({listed(names, 4)})" for note, names in notes.items()]
    faults = imported.every_fault
    shown += [f"left out: {fault}" for fault in faults[:MOST]]
    if len(faults) > MOST:
        shown.append(f"and {len(faults) - MOST} more that were left out")
    return [*shown, f"grpobench report {imported.experiment}"]


def spoken(run: ReadRun) -> str:
    """Whose names a run's metrics have."""
    from grpobench.runs.handover.importing.names.vocabularies import VOCABULARIES

    if run.library:
        vocabulary = VOCABULARIES[run.library]
        return f"names of {vocabulary.title}, as in {vocabulary.read}"
    return "names of an unknown library"


def table(result: Imported) -> dict[str, Any]:
    """The same for programs."""
    return {
        "experiment": str(result.experiment),
        "runs": [
            {
                "run": run.target.folder,
                "source": str(run.log.path),
                "format": run.log.format,
                "names": run.library,
                "state": run.log.state,
                "why": run.log.why,
                "rows": len(run.translated.rows),
                "metrics": run.translated.names,
                "other": run.translated.unmapped,
                "notes": [*run.log.notes, *run.translated.notes],
            }
            for run in result.runs
        ],
        "faults": [str(fault) for fault in result.every_fault],
    }
