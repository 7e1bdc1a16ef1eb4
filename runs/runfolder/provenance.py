"""Where a run comes from: code, versions and machine, as `provenance.json` records them."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from grpobench.runs.settings import plugins

PACKAGES = ("torch", "transformers", "numpy", "safetensors", "math-verify", "sympy", "grpobench")
ROOMS = Path(__file__).resolve().parents[2]
CODE_ROOMS = ("algorithms/", "tasks/", "runs/")
"""The sub-packages that a run's numbers can depend on."""
BYSTANDERS = ("runs/observe/",)
"""What is named from a run's code and can change no number of it: callbacks have processes of their own."""
DOTTED = re.compile(r"\bgrpobench((?:\.\w+)+)")
IMPORTED = re.compile(r"^\s*from grpobench((?:\.\w+)+) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
"""How a source file names another one: with dots (imports inside functions and names of functions in strings
too), or as what is imported from a room."""
BESIDE = re.compile(r"[\"'](\w+\.py)[\"']")
"""A file of the same room that is run by its name."""
LONGEST_DIFF = 200_000


def code(start: str, *parts: object) -> dict[str, str]:
    """Hash per source file that the numbers of a run can depend on: what is reached from `start`, such as
    ``runs/train/trainer.py``, and from the files of `parts` (an algorithm, a task, others' classes and
    functions).

    Read off the files' text, so that it depends neither on what else the process has loaded nor in which
    order. Files from outside this package are called as `foreign` says, wherever they lie.
    """
    known = [part if isinstance(part, type | FunctionType) else type(part) for part in parts]
    homes = [home for part in known for home in sources(part)]
    found = {name: digest(name) for name in sorted({*reached(start, *homes)})}
    return found | {name: digest(str(path)) for part in known for name, path in foreign(part).items()}


def room(name: str) -> dict[str, str]:
    """Hash per source file of a folder below the rooms."""
    paths = sorted((ROOMS / name).glob("*.py"))
    return {f"{name}/{path.name}": digest(f"{name}/{path.name}") for path in paths}


def sources(thing: type | FunctionType) -> list[str]:
    """The files below the rooms that define a class, with its bases, or a function."""
    found = []
    for base in getattr(thing, "__mro__", (thing,)):
        file = getattr(sys.modules.get(base.__module__), "__file__", None)
        path = Path(file).resolve() if file else None
        relative = path.relative_to(ROOMS).as_posix() if path and path.is_relative_to(ROOMS) else ""
        if relative.startswith(CODE_ROOMS):
            found.append(relative)
    return found


def foreign(thing: type | FunctionType) -> dict[str, Path]:
    """The files of others' code, by the name that they have in provenance.json: ``beside the recipe:
    FILE``, with
    those that such a file imports beside it, or ``PACKAGE: FILE``."""
    found = {}
    for base in getattr(thing, "__mro__", (thing,)):
        if base.__module__.partition(".")[0] in ("grpobench", *sys.stdlib_module_names):
            continue
        package = plugins.distribution(base.__module__)
        whose = (
            ("beside the recipe") if plugins.stands_in_file(base) else package[0] if package else "elsewhere"
        )
        for path in plugins.files(base):
            home = plugins.home(base) or path.parent
            shown = path.relative_to(home) if path.is_relative_to(home) else path
            found[f"{whose}: {shown}"] = path
    return found


def reached(*names: str) -> set[str]:
    """The files of the rooms that some files name, those that these name, and so on; with the files."""
    found: set[str] = set()
    rest = list(names)
    while rest:
        if (name := rest.pop()) not in found:
            found.add(name)
            rest += files_named_in(name)
    return found


@functools.cache
def files_named_in(name: str) -> tuple[str, ...]:
    """The files of the rooms that a file's text names. The registries in ``__init__.py``, which name all
    algorithms and tasks, are not followed."""
    try:
        text = (ROOMS / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    names = DOTTED.findall(text)
    names += [
        f"{room}.{module}"
        for room, modules in IMPORTED.findall(text)
        for module in re.findall(r"\w+", modules)
    ]
    asked = [name.removeprefix(".").replace(".", "/") + ".py" for name in names]
    # ``grpobench.ROOM.MODULE.NAME`` names a module too
    asked += [f"{Path(file).parent}.py" for file in asked]
    asked += [f"{Path(name).parent}/{file}" for file in BESIDE.findall(text)]
    own = [file for file in asked if file.startswith(CODE_ROOMS) and not file.startswith(BYSTANDERS)]
    return tuple(file for file in own if (ROOMS / file).is_file())


@functools.cache
def digest(name: str) -> str:
    """Short hash of a source file, below the rooms or absolute, as this process first saw it, which is as it
    was loaded."""
    try:
        return hashlib.sha256((ROOMS / name).read_bytes()).hexdigest()[:12]
    except FileNotFoundError:
        return "(absent)"


@functools.cache
def versions() -> Mapping[str, str]:
    """Versions of Python and the packages that decide a run's numbers."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git(*arguments: str) -> str | None:
    """Output of git in the checkout of this package; None outside of one."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOMS / "runs"), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


@functools.cache
def commit() -> Mapping[str, Any]:
    """Commit of the checkout, whether files differ from it, and how; empty outside of a checkout."""
    tracked = git("ls-files", "--error-unmatch", str(Path(__file__).resolve()))
    head = git("rev-parse", "HEAD") if tracked else None
    if head is None:
        return {}
    dirty = bool((git("status", "--porcelain") or "").strip())
    diff = (git("diff", "HEAD") or "") if dirty else ""
    return {"commit": head.strip(), "dirty": dirty, "diff": diff[:LONGEST_DIFF]}


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


@functools.cache
def device() -> str:
    """The accelerator if there is one, else the processor. Imports torch."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else cpu()


def packages(*parts: object) -> dict[str, str]:
    """The versions of the installed packages that others' classes and functions are from, by name."""
    found = [plugins.distribution(part.__module__) for part in parts if not plugins.stands_in_file(part)]
    return dict(one for one in found if one)


def attempt(
    number: int, threads: int, code: Mapping[str, str], more: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What is recorded about one attempt at a run; `more` are versions beside the usual ones."""
    return {
        "attempt": number,
        "id": uuid.uuid4().hex,
        "pid": os.getpid(),
        "host": platform.node(),
        "platform": platform.platform(),
        "device": device(),
        "threads": threads,
        "command": sys.argv,
        "versions": {**(more or {}), **versions()},
        **commit(),
        "code": dict(code),
    }


def code_differences(attempt: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What can change a run's numbers and differs between an attempt and the one that is made `now`: its
    versions and its files."""
    absent = "(absent)"
    pairs = [(name, old, now["versions"].get(name, absent)) for name, old in attempt["versions"].items()]
    pairs += [(name, old, now["code"].get(name) or digest(name)) for name, old in attempt["code"].items()]
    return [f"{name}: {before} -> {after}" for name, before, after in pairs if before != after]
