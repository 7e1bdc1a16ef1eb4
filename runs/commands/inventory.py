"""`grpobench list`, `show`, `data` and `tasks`: what there is, and whether it is right."""

from __future__ import annotations

import click

from grpobench.runs.commands.options import Options, data_options, flag, json_option, unsafe_option
from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, as_json, complain, say, say_each

KINDS = ("algorithms", "dialects", "tasks", "rewards", "recipes", "metrics", "detectors", "figures", "models")
SHOWN = ("algorithm", "dialect", "dialects", "task", "reward", "recipe", "metric")


class KindParameter(click.Choice[str]):
    """The kind in `grpobench list KIND` or `show KIND NAME`. The error for another suggests a command."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in self.choices:
            return str(value)
        kinds_text = f"known: {', '.join(self.choices)}"
        command = right_command(value, "list" if "algorithms" in self.choices else "show")
        meant = f"did you mean `grpobench {command}`?" if command else kinds_text
        return str(self.fail(f"unknown kind {value!r}; {meant}", param, ctx))


def right_command(word: str, command: str) -> str:
    """The command that is meant by `list WORD` or `show WORD`, after `grpobench`; empty if none is near."""
    from grpobench.runs.inventory import showing
    from grpobench.runs.tools.strict import nearest

    if kind := nearest(word, KINDS if command == "list" else SHOWN):
        return f"list {kind}" if command == "list" else f"show {kind}" + " NAME" * (kind != "dialects")
    names = {kind: showing.names_of(kind) for kind in SHOWN if kind not in ("dialects", "reward")}
    for kind, kind_names in names.items():
        if word in kind_names:
            return f"show {kind} {word}"
    if kind := nearest(word, KINDS):
        return f"list {kind}"
    kind_by_name = {name: kind for kind, kind_names in reversed(names.items()) for name in kind_names}
    return f"show {kind_by_name[name]} {name}" if (name := nearest(word, kind_by_name)) else ""


@click.argument("kind", type=KindParameter(KINDS), metavar="KIND", help=f"One of {', '.join(KINDS)}.")
@json_option
@data_options
def list_command(options: Options) -> int:
    from grpobench.runs.inventory import listing

    rows = listing.LISTS[options.kind]()
    say(as_json(rows) if options.json else "\n".join(listing.as_lines(rows)))
    return DONE


@click.argument("kind", type=KindParameter(SHOWN), metavar="KIND", help=f"One of {', '.join(SHOWN)}.")
@click.argument(
    "name",
    required=False,
    metavar="[NAME]",
    help="Required for every kind except dialects, which shows all of them.",
)
@click.option(
    "--as",
    "library",
    metavar="LIBRARY",
    help="Show how the library's algorithm of the same name differs from ours, such as trl.",
)
@json_option
@data_options
def show_command(options: Options) -> int:
    from grpobench.runs.inventory import showing
    from grpobench.runs.tools.strict import ConfigError

    all_dialects = options.kind == "dialects"
    if all_dialects == bool(options.name):
        raise ConfigError([f"show {options.kind}: " + ("takes no name" if all_dialects else "needs a name")])
    if options.library and options.kind != "algorithm":
        raise ConfigError([f"--as: write grpobench show algorithm NAME --as {options.library}"])
    if all_dialects:
        rows = showing.show_dialects()
        text = "\n\n".join("\n".join(showing.dialect_lines(row)) for row in rows)
        say(as_json(rows) if options.json else text)
        return DONE
    if options.library:
        row = showing.show_as(options.name, options.library)
    else:
        row = showing.show(options.kind, options.name)
    differs = options.library or options.kind == "dialect"
    lines = showing.dialect_lines(row) if differs else [showing.as_text(row)]
    say(as_json(row) if options.json else "\n".join(lines))
    return DONE


@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", help="Names of grpobench data list, or all."
)
def fetch_command(options: Options) -> int:
    """Exits with 0 when all that packages have of it is here with the right sums, with 70 when pip fails."""
    from grpobench.runs.inventory import data

    try:
        say("\n".join(data.fetch(options.names)))
    except data.FetchError as error:
        return complain(str(error), INFRASTRUCTURE)
    return DONE


@json_option
@data_options
def list_data_command(options: Options) -> int:
    from grpobench.runs.inventory import data

    rows = data.rows()
    say(as_json(rows) if options.json else "\n".join(data.as_lines(rows)))
    return DONE


@click.argument(
    "names",
    nargs=-1,
    metavar="[NAME]...",
    help="A task, module:Name, or FILE.toml for the tasks of a recipe. Default: every task.",
)
@flag("--all", "Check every task; the default without NAME.")
@click.option(
    "--problems",
    type=int,
    metavar="N",
    help="Check at most N problems of a task; 0 for all. Default: 10,000.",
)
@json_option
@data_options
@unsafe_option
def check_command(options: Options) -> int:
    """Every task shall accept its references and reject corrupted answers and constants. Exits with 70 if one
    fails, else with 0. A task whose data is absent does not fail."""
    from grpobench.runs.inventory import check
    from grpobench.runs.tools.strict import ConfigError

    if options.all and options.names:
        raise ConfigError(["tasks check: --all takes every task; remove it or the names"])
    most = check.MOST if options.problems is None else options.problems
    task_checks = say_each(lambda tell: check.checks(options.names, most, tell), check.as_lines, options.json)
    return INFRASTRUCTURE if any(task_check.state == "failed" for task_check in task_checks) else DONE


@flag("--keep", "Keep the graders' verdicts in the project's checkout.")
@json_option
def pairs_command(options: Options) -> int:
    """Exits with 0 when every verdict of ours is the expected one or a kept exception, else with 70."""
    return compare_graders("pairs", options)


@flag("--keep", "Keep the readings in the project's checkout.")
@json_option
def readings_command(options: Options) -> int:
    """Exits with 0 when ours reads the right program from every completion, else with 70."""
    return compare_graders("readings", options)


def compare_graders(table: str, options: Options) -> int:
    """Ask ours and others about the rows of a kept table, and say or keep what they answer now."""
    from grpobench.runs.inventory.graders import compare

    compared = compare(table, options.keep)
    say(as_json([row.row() for row in compared.rows]) if options.json else "\n".join(compared.lines))
    return INFRASTRUCTURE if compared.faults else DONE
