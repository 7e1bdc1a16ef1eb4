"""A command reads its arguments, calls the Python interface or one module, and prints what it returns.

What somebody can do on the command line is then there for a script as well, and both do the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from grpobench.runs import cli

ROOT = Path(__file__).parents[2]
COMMANDS = "grpobench.runs.commands"
INTERFACE = "grpobench.runs.api."
READING = (
    *("runs.settings.recipe", "runs.settings.layers", "runs.settings.draft", "runs.settings.findings"),
    *("runs.experiment.engines", "runs.tools.strict", "runs.inventory.folders", "tasks.data.bounded"),
    "runs.evaluation.question.read_judge",
)
"""Modules and functions that read arguments: what a name, a list or an assignment stands for."""
PRINTING = (
    *("analysis.tools.text", "analysis.figures.table", "analysis.report.terminal", "analysis.topics.search"),
    *("analysis.calibration.markdown", "analysis.findings.description", "analysis.readable"),
    "analysis.theory.comparison",
    *("runs.inventory.findings.parts.part_words", "runs.inventory.findings.records.rerun_words"),
    *("runs.evaluation.text", "runs.tools.progress", "runs.tools.toml"),
    "runs.tools.machine.slow_precisions",
)
"""Modules and functions that make text of what a command returns, or show how far it is."""
EXCEPTIONS = {
    "machine.doctor_command": "the checks of --deep are shown one by one, after the memory plan",
    "machine.bench_command": "--memory-plan is a benchmark of its own",
    "finding.run_finding": "of all findings it says how long the rest takes, and then lists them",
}


def functions() -> list[str]:
    """The functions of all commands, such as `run.run_command`."""
    names: list[str] = []
    groups = [cli.app]
    while groups:
        for command in groups.pop().commands.values():
            if isinstance(command, cli.Command):
                names.append(command.function)
            else:
                groups.append(command)  # type: ignore[arg-type]
    return sorted(set(names))


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((ROOT / "runs/commands" / f"{module}.py").read_text(encoding="utf-8"))


def imported(nodes: list[ast.stmt]) -> dict[str, tuple[str, str]]:
    """Names -> (module, name) of the package's imports in a body, but not those for type checkers alone."""
    imports = {}
    for top in nodes:
        if isinstance(top, ast.If) and ast.unparse(top.test) == "TYPE_CHECKING":
            continue
        for node in ast.walk(top):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpobench."):
                for alias in node.names:
                    imports[alias.asname or alias.name] = (str(node.module), alias.name)
    return imports


def uses(module: str, function: str, visited: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(module, name) of what a function of a command's module uses of other rooms, also through functions of
    other commands' modules."""
    if (module, function) in visited:
        return
    visited.add((module, function))
    tops = [node for node in tree(module).body if not isinstance(node, ast.FunctionDef)]
    defined = {node.name: node for node in tree(module).body if isinstance(node, ast.FunctionDef)}
    body = defined.get(function)
    if body is None:
        return  # a constant, or an option's declaration
    imports = imported(tops) | imported(body.body)
    for name in sorted({node.id for node in ast.walk(body) if isinstance(node, ast.Name)}):
        if name in imports:
            home, original = imports[name]
            if home.startswith(COMMANDS):
                yield from uses(home.removeprefix(f"{COMMANDS}."), original, visited)
            else:
                yield home, original
        elif name in defined:
            yield from uses(module, name, visited)


def work(command: str) -> set[str]:
    """The modules of rooms that do the work of a command: no types, errors and constants, and nothing of the
    interface, of what reads arguments, and of what prints."""
    module, function = command.split(".")
    modules = set()
    for home, name in uses(module, function, set()):
        path = ROOT / f"{home.removeprefix('grpobench.').replace('.', '/')}/{name}.py"
        source = f"{home}.{name}" if path.exists() else home
        short = source.removeprefix("grpobench.")
        allowed = {short, f"{short}.{name}"} & {*READING, *PRINTING}
        if not (allowed or source.startswith(INTERFACE) or name[0].isupper()):
            modules.add(short)
    return modules


@pytest.mark.parametrize("command", functions())
def test_a_command_does_its_work_through_the_interface_or_one_module(command: str) -> None:
    modules = work(command)
    assert (len(modules) > 1) == (command in EXCEPTIONS), modules


def test_commands_that_do_their_own_work_would_be_found() -> None:
    assert {"runs.inventory.deep.examine", "runs.experiment.memory"} <= work("machine.doctor_command")
    assert work("hand_over.hand_over_command") == {"runs.handover.folder"}
    assert not work("search.search_command")
