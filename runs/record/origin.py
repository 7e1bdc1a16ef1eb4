"""Where a run comes from: code, versions and machine, as `origin.json` records them."""

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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpobench.runs.settings import doors

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


def code(start: str, *parts: object, files: Iterable[Path] = ()) -> dict[str, str]:
    """Hash per source file that the numbers of a run can depend on: what is reached from `start`, such as
    ``runs/train/trainer.py``, and from the files of the classes of `parts` (an algorithm, a task).

    Read off the files' text, so that it depends neither on what else the process has loaded nor in which
    order. A class from outside this package counts with its own file, by its absolute path, and so do further
    `files` of others' code.
    """
    homes = [home for part in parts for home in sources(type(part))] + [str(file) for file in files]
    return {name: digest(name) for name in sorted({*reached(start, *homes)})}


def sources(cls: type) -> list[str]:
    """The files that define a class and the bases that it has in the rooms; of a class beside a recipe also
    those beside it that its file imports."""
    found = []
    for base in cls.__mro__:
        file = getattr(sys.modules.get(base.__module__), "__file__", None)
        path = Path(file).resolve() if file else None
        relative = path.relative_to(ROOMS).as_posix() if path and path.is_relative_to(ROOMS) else ""
        if relative.startswith(CODE_ROOMS):
            found.append(relative)
        elif path and base is cls:
            found += [str(one) for one in doors.files(cls)]
    return found


def reached(*names: str) -> set[str]:
    """The files of the rooms that some files name, those that these name, and so on; with the files."""
    found: set[str] = set()
    rest = list(names)
    while rest:
        if (name := rest.pop()) not in found:
            found.add(name)
            rest += named(name)
    return found


@functools.cache
def named(name: str) -> tuple[str, ...]:
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


def attempt(number: int, threads: int, code: Mapping[str, str]) -> dict[str, Any]:
    """What is recorded about one attempt at a run."""
    return {
        "attempt": number,
        "id": uuid.uuid4().hex,
        "pid": os.getpid(),
        "host": platform.node(),
        "platform": platform.platform(),
        "device": device(),
        "threads": threads,
        "command": sys.argv,
        "versions": dict(versions()),
        **commit(),
        "code": dict(code),
    }


def code_differences(attempt: Mapping[str, Any]) -> list[str]:
    """What can change a run's numbers and has changed since an attempt: its versions and its files."""
    now = versions()
    pairs = [(name, before, now.get(name, "(absent)")) for name, before in attempt["versions"].items()]
    pairs += [(name, before, digest(name)) for name, before in attempt["code"].items()]
    return [f"{name}: {before} -> {after}" for name, before, after in pairs if before != after]
