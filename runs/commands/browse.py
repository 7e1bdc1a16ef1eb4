"""`grpobench browse`: read what the policies of an experiment wrote."""

from __future__ import annotations

from typing import Any

import click

from grpobench.runs.commands.options import PATH, Options, combine, comma_list
from grpobench.runs.commands.output import DONE, say, warn

LISTS = ("arm", "task", "kind", "outcome", "change")
filter_options = combine(
    click.option("--arm", metavar="LIST", help="Only of these arms."),
    click.option("--task", metavar="LIST", help="Only of these tasks."),
    click.option("--seed", metavar="LIST", help="Only of these seeds, such as 0-4,9."),
    click.option("--step", metavar="LIST", help="Only of these steps, such as 1,40."),
    click.option(
        "--kind", metavar="LIST", help="Only these: rollout, or split and mode, such as 'test greedy'."
    ),
    click.option(
        "--problem",
        multiple=True,
        metavar="TEXT",
        help="Only this problem, or those whose name contains the text; several by repeating the option. "
        "Prints them unless --to or --inspect is there.",
    ),
    click.option("--outcome", metavar="LIST", help="Only these outcomes, such as wrong,unparsable."),
    click.option(
        "--change",
        metavar="LIST",
        help="Only lost or gained: right at the run's first stored step, now wrong; or the reverse.",
    ),
    click.option(
        "--contains", default="", metavar="TEXT", help="Only with this text in completion, answer or problem."
    ),
    click.option(
        "--pattern",
        default="",
        metavar="REGEX",
        help="Only completions that this regular expression matches.",
    ),
)


@click.argument("folder", type=PATH, metavar="DIR", help="Such as results/quickstart.")
@filter_options
@click.option("--to", type=PATH, metavar="FILE", help="Write one HTML file with the texts in it.")
@click.option(
    "--inspect", type=PATH, metavar="DIR", help="Write logs that inspect_ai's viewer opens into this folder."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Port of the local server. Default: a free one.",
)
def browse_command(options: Options) -> int:
    """Without --to, --inspect and --problem, serve the page to this machine's browser until Ctrl-C."""
    from grpobench.analysis.browse import browsing
    from grpobench.analysis.browse.store import Filters
    from grpobench.runs.settings.draft import read_seeds
    from grpobench.runs.tools.strict import ConfigError

    values: dict[str, list[Any]] = {
        name: comma_list(getattr(options, name)) for name in LISTS if getattr(options, name)
    }
    values |= {
        name: read_seeds(text, f"--{name} {text}")
        for name in ("seed", "step")
        if (text := getattr(options, name))
    }
    try:
        texts = {"contains": options.contains, "pattern": options.pattern}
        filters = Filters.of({**values, **texts, "problem": list(options.problem)})
    except ValueError as error:
        raise ConfigError([f"--pattern: {error}"]) from None
    if options.to or options.inspect:
        if options.to:
            count, faults = browsing.write_page(options.folder, filters, options.to)
            say(f"page: {options.to}, {count:,} completions")
        if options.inspect:
            count, faults = browsing.write_inspect(options.folder, filters, options.inspect)
            say(f"inspect_ai: {count:,} logs in {options.inspect}; inspect view --log-dir {options.inspect}")
        for fault in faults:
            warn(fault)
    elif options.problem:
        for text in browsing.print_texts(options.folder, filters, warn):
            say(text)
    else:
        browsing.serve_texts(
            options.folder,
            filters,
            options.port,
            lambda address: say(f"open {address}\nCtrl-C ends", flush=True),
        )
    return DONE
