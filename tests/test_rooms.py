"""The layout: a room imports only from the rooms before it, no files import each other in a ring, and nothing
grows beyond what can be read. Every import counts, also those inside functions and for type checkers only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = (
    *("analysis/tools", "algorithms", "tasks/data", "tasks/thoughts.py", "tasks/task.py"),
    *("tasks/workers", "tasks/sandbox", "tasks/grading", "tasks/prompts", "tasks/kinds", "tasks"),
    *(
        "analysis/runfolder",
        "analysis/statistics",
        "analysis/detectors",
        "analysis/measure.py",
        "analysis/record.py",
        "analysis/figures",
        "analysis/theory",
    ),
    *(
        "analysis/topics",
        "analysis/checks",
        "analysis/report",
        "analysis/browse",
        "analysis/kept.py",
        "analysis/kept_tables.py",
        "analysis/calibration",
    ),
    *("analysis/findings", "analysis"),
    *("runs/tools", "runs/models", "runs/settings", "runs/sample", "runs/reward", "runs/metrics"),
    *("runs/runfolder", "runs/observe", "runs/train", "runs/experiment", "runs/evaluation"),
    *("runs/calibration", "runs/handover", "runs/inventory", "runs/api", "benchmarks"),
    *("runs/commands", "runs"),
)
"""From left to right. A folder holds its own files and those of its subfolders that are no rooms."""
LONGEST_FILE = 600
LONGEST_FUNCTION = 60
MOST_ROOMS_OF_RUNS = 16


def modules() -> dict[str, Path]:
    """Every module of the package by its name without `grpobench.`."""
    path_by_module = {}
    for top in ("algorithms", "tasks", "runs", "analysis", "benchmarks"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            path_by_module[name.removesuffix(".__init__")] = path
    return path_by_module


MODULES = modules()


def room(module: str) -> str:
    """The room of a module: the longest entry of `ROOMS` that its path lies in."""
    path = MODULES[module].relative_to(ROOT).as_posix()
    return max((name for name in ROOMS if path == name or path.startswith(name + "/")), key=len)


def imported(path: Path) -> list[tuple[str, int]]:
    """(module, line) for everything of the package that a file imports, wherever in the file."""
    return parsed(path)[0]


@cache
def parsed(path: Path) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """What a file imports, and the lines of each of its functions."""
    imports, lengths = [], {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lengths[node.name] = max(lengths.get(node.name, 0), (node.end_lineno or 0) - node.lineno + 1)
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            full_names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [
                name if name.removeprefix("grpobench.") in MODULES else node.module for name in full_names
            ]
        for name in names:
            if name.startswith("grpobench."):
                imports.append((name.removeprefix("grpobench."), node.lineno))
    return imports, lengths


def graph() -> dict[str, set[str]]:
    """What each module imports. Not read while tests are collected, which every worker does."""
    return {name: {module for module, _ in imported(path)} - {name} for name, path in MODULES.items()}


def test_every_import_of_the_package_is_a_module_of_it() -> None:
    assert {module for imports in graph().values() for module in imports} <= set(MODULES)


def test_a_room_imports_only_from_rooms_before_it() -> None:
    room_index = {name: ROOMS.index(room(name)) for name in MODULES}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for module, path in MODULES.items()
        for name, line in imported(path)
        if room_index[name] > room_index[module]
    ]
    assert not wrong


def test_runs_has_few_rooms_and_every_folder_of_it_is_in_one() -> None:
    rooms = {name for name in ROOMS if name.startswith("runs/")}
    folders = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "runs").glob("*/") if any(path.glob("*.py"))
    }
    assert folders == rooms
    assert len(rooms) <= MOST_ROOMS_OF_RUNS


def test_no_files_import_each_other_in_a_ring() -> None:
    assert not list(rings(graph()))


def test_a_ring_would_be_found() -> None:
    assert list(rings({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()})) == [["b", "c"]]


def rings(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Every set of modules that can be reached from each other, sorted."""
    reach = {name: reached(graph, name) for name in graph}
    visited: set[str] = set()
    for name in graph:
        if name in reach[name] and name not in visited:
            ring = sorted(other for other in reach[name] if name in reach[other])
            visited |= set(ring)
            yield ring


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Whatever a module imports, directly or not."""
    visited: set[str] = set()
    left = [start]
    while left:
        for name in graph[left.pop()] - visited:
            visited.add(name)
            left.append(name)
    return visited


def test_no_test_imports_from_another_test() -> None:
    """What they share is in `tests/helpers/`."""
    tests = {path.stem: path for path in (ROOT / "tests").rglob("test_*.py")}
    borrowed = re.compile(r"^\s*(?:from|import) (?:[\w.]*\.)?(test_\w+)", re.MULTILINE)
    wrong = {
        path.name: set(borrowed.findall(path.read_text(encoding="utf-8"))) & tests.keys()
        for path in tests.values()
    }
    assert not {name: borrowed_names for name, borrowed_names in wrong.items() if borrowed_names}


def test_files_have_one_subject() -> None:
    lines = {p.relative_to(ROOT).as_posix(): len(p.read_text().splitlines()) for p in MODULES.values()}
    long = {name: count for name, count in lines.items() if count > LONGEST_FILE}
    assert not long


def test_functions_fit_on_a_screen() -> None:
    long = {
        f"{module}.{name}": lines
        for module, path in MODULES.items()
        for name, lines in parsed(path)[1].items()
        if lines > LONGEST_FUNCTION
    }
    assert not long
