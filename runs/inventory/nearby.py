"""Others' algorithms, tasks and rewards that a name reaches from here: in packages, in files of this folder.

Packages' entry points are loaded. Files are only read: what in them is an algorithm or a task shows in its
bases, and a reward function in an argument `completions`.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.inventory.describing import Row
from grpobench.runs.settings import registries
from grpobench.runs.settings.registries import Kind
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.task import Task

BASES: dict[Kind, type] = {"algorithm": Algorithm, "task": Task}
SUITE = "grpobench."


def rows(kind: Kind) -> list[Row]:
    """A row per name, with its origin."""
    return [*from_packages(kind), *from_files(kind, Path())]


def from_packages(kind: Kind) -> Iterator[Row]:
    """What entry points give. One that cannot be loaded says why."""
    for name, point in sorted(registries.entry_points(kind).items()):
        try:
            found = registries.find(kind, name)
        except ConfigError as error:
            yield {"name": name, "summary": "; ".join(error.faults), "origin": f"entry point {point.value}"}
        else:
            yield {"name": name, "summary": first_line(found.cls), "origin": found.origin}


def first_line(thing: object) -> str:
    """What a class says of itself, or the first line of its docstring or of a function's."""
    doc = str(getattr(thing, "__doc__", None) or "").strip()
    return str(getattr(thing, "summary", "") or doc.partition("\n")[0])


def from_files(kind: Kind, folder: Path) -> Iterator[Row]:
    """What stands in the Python files of a folder; one that is no Python is passed over."""
    for path in sorted(folder.glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # whoever names it hears of it
            continue
        for node in named(kind, tree):
            doc = ast.get_docstring(node) or ""
            origin = str(path.resolve())
            yield {
                "name": f"{path.stem}:{node.name}",
                "summary": stated(node) or doc.partition("\n")[0],
                "origin": origin,
            }


def named(kind: Kind, tree: ast.Module) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The definitions of a kind at the top of a file."""
    base = BASES.get(kind)
    known = imported(tree, base) if base else set()
    for node in tree.body:
        if base is None and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            if "completions" in {argument.arg for argument in arguments}:
                yield node
        elif isinstance(node, ast.ClassDef) and known & set(map(plain, node.bases)):
            known.add(node.name)
            yield node


def plain(base: ast.expr) -> str:
    """The name of a base such as ``Algorithm[Advantage]``."""
    inner = base.value if isinstance(base, ast.Subscript) else base
    return inner.id if isinstance(inner, ast.Name) else ""


def imported(tree: ast.Module, base: type) -> set[str]:
    """The names under which a file imports `base`, and classes of the suite that are made from it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(SUITE):
            try:
                module = importlib.import_module(node.module or "")
            except ImportError:  # whoever names the file hears of it
                continue
            for alias in node.names:
                thing = getattr(module, alias.name, None)
                if isinstance(thing, type) and issubclass(thing, base):
                    found.add(alias.asname or alias.name)
    return found


def stated(node: ast.AST) -> str:
    """The text of ``summary = "..."`` in a class."""
    for statement in getattr(node, "body", ()):
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if names == ["summary"]:
                return str(statement.value.value)
    return ""
