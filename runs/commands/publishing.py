"""`grpobench publish` and `contribute`: raw results for others, and others' next to ours."""

from __future__ import annotations

import click

from grpobench.runs.commands.options import PATH, Options, flag
from grpobench.runs.commands.output import DONE, say


@click.argument(
    "folders",
    type=PATH,
    nargs=-1,
    required=True,
    metavar="DIR...",
    help="Experiments such as results/quickstart, findings, or a profile such as results/profile.",
)
@click.option("--out", type=PATH, required=True, metavar="OUT", help="The folder to write; new or empty.")
@click.option("--contributor", required=True, metavar="WHO", help="Your name, or your group's.")
@click.option("--name", metavar="NAME", help="Name of the file set. Default: the name of OUT.")
@click.option("--license", default="CC-BY-4.0", metavar="ID", help="SPDX identifier. Default: CC-BY-4.0.")
def publish_command(options: Options) -> int:
    """Logs, settings and provenance of every run, without weights, completions of rollouts and names of your
    machine; tables that datasets.load_dataset reads; a data card and checksums."""
    from grpobench.runs.handover.publishing.publish import publish

    name = options.name or options.out.resolve().name
    manifest, published_folder = publish(
        options.folders, options.out, name, options.contributor, options.license
    )
    count = len(manifest.kinds)
    say(f"{published_folder}: {count} experiment{'s' * (count > 1)}, {len(manifest.runs)} runs")
    say(f"grpobench contribute {published_folder} --check makes the checks that others will make")
    return DONE


@click.argument("folder", type=PATH, metavar="DIR", help="A file set that grpobench publish wrote.")
@flag("--check", "Only check it.")
@flag(
    "--verify",
    "Also run two seeds of each experiment again, and refuse what does not return. Read the settings first: "
    "a run may import code and read files of this machine that they name.",
)
@click.option(
    "--to",
    type=PATH,
    metavar="DIR",
    help="The folder of kept results. Default: docs/results of the project's checkout.",
)
def contribute_command(options: Options) -> int:
    """Refuses a file set whose checksums, logs, tables, settings, seeds or provenance do not agree, and names
    the fault. Findings and profiles show an accepted file set under its own name, never among our results."""
    from grpobench.runs.api.keeping import contribute

    written = contribute(options.folder, options.to, only_check=options.check, rerun=options.verify, tell=say)
    say("\n".join(map(str, written)) if written else f"{options.folder}: good")
    return DONE
