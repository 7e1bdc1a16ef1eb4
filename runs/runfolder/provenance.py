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
from grpobench.runs.tools import installed
from grpobench.tasks.data import bounded

PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "numpy",
    "safetensors",
    "math-verify",
    "sympy",
    "torchao",
    "bitsandbytes",
    "grpobench",
)
ROOMS = Path(__file__).resolve().parents[2]
CODE_ROOMS = ("algorithms/", "tasks/", "runs/")
"""The sub-packages that can affect a run's numbers."""
PACKAGE = (".src", "algorithms", "analysis", "runs", "tasks", "pyproject.toml")
"""What a commit must have for its name to stand for the package."""
BYSTANDERS = ("runs/observe/",)
"""Modules that a run's code names but that cannot change its numbers: callbacks run in processes of their
own."""
DOTTED = re.compile(r"\bgrpobench((?:\.\w+)+)")
IMPORTED = re.compile(r"^\s*from grpobench((?:\.\w+)+) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
"""How a source file names another one: with dots (also in imports inside functions and in strings), or as a
name imported from a room."""
BESIDE = re.compile(r"[\"'](\w+\.py)[\"']")
"""A file of the same room that is run as a program."""
LONGEST_DIFF = 200_000
ABSENT = "(absent)"
FOREIGN = ": "
"""In the names of plugins' files, between whose they are and the file."""


def code(start: str, *parts: object) -> dict[str, str]:
    """Hash per source file that can affect a run's numbers: all files reached from `start`, such as
    ``runs/train/trainer.py``, and from the files of `parts` (an algorithm, a task, classes and functions of
    plugins). The files' text is scanned, so the result does not depend on what the process has loaded, or in
    which order. Files outside this package get the names that `foreign` gives them, wherever they lie."""
    definitions = [class_of(part) for part in parts]
    homes = [home for part in definitions for home in sources(part)]
    hashes = {name: digest(name) for name in sorted({*reached(start, *homes)})}
    return hashes | {name: digest(str(path)) for part in definitions for name, path in foreign(part).items()}


def room(name: str) -> dict[str, str]:
    """Hash per source file of a folder inside the rooms."""
    paths = sorted((ROOMS / name).glob("*.py"))
    return {f"{name}/{path.name}": digest(f"{name}/{path.name}") for path in paths}


def sources(definition: type | FunctionType) -> list[str]:
    """The files inside the rooms that define a class and its bases, or a function."""
    names = []
    for base in getattr(definition, "__mro__", (definition,)):
        file = getattr(sys.modules.get(base.__module__), "__file__", None)
        path = Path(file).resolve() if file else None
        relative = path.relative_to(ROOMS).as_posix() if path and path.is_relative_to(ROOMS) else ""
        if relative.startswith(CODE_ROOMS):
            names.append(relative)
    return names


def foreign(definition: type | FunctionType) -> dict[str, Path]:
    """The files of plugins by their name in provenance.json: ``beside the recipe: FILE``, together with the
    files beside it that it imports, or ``PACKAGE: FILE``."""
    path_by_name = {}
    for base in plugins.foreign_bases(definition):
        package = plugins.distribution(base.__module__)
        whose = (
            ("beside the recipe") if plugins.stands_in_file(base) else package[0] if package else "elsewhere"
        )
        for path in plugins.files(base):
            home = plugins.home(base) or path.parent
            shown = path.relative_to(home) if path.is_relative_to(home) else path
            path_by_name[f"{whose}{FOREIGN}{shown}"] = path
    return path_by_name


def foreign_code(*parts: object) -> dict[str, str]:
    """The hashes of the plugins in `parts` as their files are now, whatever this process has loaded. A worker
    will load them as they are now."""
    hashes = {}
    for part in parts:
        for name, path in foreign(class_of(part)).items():
            hashes[name] = short_hash(path) if path.is_file() else ABSENT
    return hashes


def class_of(part: object) -> type | FunctionType:
    """What has a module: a class or function itself, else its class."""
    return part if isinstance(part, type | FunctionType) else type(part)


def reached(*names: str) -> set[str]:
    """These files, the files of the rooms that they name, the files that those name, and so on."""
    visited: set[str] = set()
    unvisited = list(names)
    while unvisited:
        if (name := unvisited.pop()) not in visited:
            visited.add(name)
            unvisited += files_named_in(name)
    return visited


@functools.cache
def files_named_in(name: str) -> tuple[str, ...]:
    """The files of the rooms that a file's text names. Registries in ``__init__.py`` name all algorithms and
    tasks and are not followed."""
    try:
        text = bounded.read_text(ROOMS / name)
    except FileNotFoundError:
        return ()
    names = DOTTED.findall(text)
    names += [
        f"{room}.{module}"
        for room, modules in IMPORTED.findall(text)
        for module in re.findall(r"\w+", modules)
    ]
    candidates = [name.removeprefix(".").replace(".", "/") + ".py" for name in names]
    # ``grpobench.ROOM.MODULE.NAME`` names a module too
    candidates += [f"{Path(file).parent}.py" for file in candidates]
    candidates += [f"{Path(name).parent}/{file}" for file in BESIDE.findall(text)]
    code_files = [
        file for file in candidates if file.startswith(CODE_ROOMS) and not file.startswith(BYSTANDERS)
    ]
    return tuple(file for file in code_files if (ROOMS / file).is_file())


@functools.cache
def digest(name: str) -> str:
    """Short hash of a source file, inside the rooms or absolute, as this process first saw it, which is how
    it was loaded."""
    try:
        return short_hash(ROOMS / name)
    except FileNotFoundError:
        return ABSENT


def short_hash(path: Path) -> str:
    return hashlib.sha256(bounded.read_bytes(path)).hexdigest()[:12]


def engine_version(kind: str) -> dict[str, str]:
    """The version of the engine that samples in a run's process, by the run's `sampler.kind`: another one has
    other kernels, and may draw other tokens from the same seed. Empty without such an engine."""
    version = installed.version_of(*installed.VLLM) if kind == "vllm" else ""
    return {"vllm": version} if version else {}


@functools.cache
def versions() -> Mapping[str, str]:
    """Versions of Python and of the packages that affect a run's numbers."""
    version_by_name = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            version_by_name[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return version_by_name


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
    """Commit of the checkout, whether files of the package differ from it, and how; empty outside of a
    checkout. Documents, tests and results may differ. So may plugins: a record has their hashes in `code`."""
    tracked = git("ls-files", "--error-unmatch", str(ROOMS / "runs/runfolder/provenance.py"))
    head = git("rev-parse", "HEAD") if tracked else None
    if head is None:
        return {}
    package = [str(ROOMS / name) for name in PACKAGE]
    changes = git("status", "--porcelain", "--untracked-files=normal", "--", *package)
    dirty = changes is None or bool(changes.strip())
    diff = (git("diff", "HEAD", "--", *package) or "") if dirty else ""
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


@functools.cache
def vectors() -> str:
    """The vector instructions of torch's own kernels, such as `AVX512`: sums round otherwise with others.
    Empty where a GPU trains. Imports torch."""
    import torch

    return "" if torch.cuda.is_available() else str(torch.backends.cpu.get_cpu_capability())


def packages(*parts: object) -> dict[str, str]:
    """Versions of the installed packages that plugins come from, by name."""
    distributions = [
        plugins.distribution(part.__module__) for part in parts if not plugins.stands_in_file(part)
    ]
    return dict(distribution for distribution in distributions if distribution)


def attempt(
    number: int, threads: int, code: Mapping[str, str], more: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The record of one attempt at a run; `more` are additional versions."""
    return {
        "attempt": number,
        "id": uuid.uuid4().hex,
        "pid": os.getpid(),
        "host": platform.node(),
        "platform": platform.platform(),
        "device": device(),
        "vectors": vectors(),
        "threads": threads,
        "command": sys.argv,
        "versions": {**(more or {}), **versions()},
        **commit(),
        "code": dict(code),
    }


def code_differences(attempt: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Versions and files that differ between an attempt and the current one (`now`) and can change a run's
    numbers."""
    pairs = [(name, old, now["versions"].get(name, ABSENT)) for name, old in attempt["versions"].items()]
    pairs += [(name, old, now["code"].get(name) or digest(name)) for name, old in attempt["code"].items()]
    return [f"{name}: {before} -> {after}" for name, before, after in pairs if before != after]


def foreign_differences(attempt: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Files of plugins that an attempt was made with and that differ `now`. A result stays when the suite
    itself changes, but not when the code does that it is about."""
    before = {name: old for name, old in (attempt.get("code") or {}).items() if FOREIGN in name}
    return [
        f"{name}: {old} -> {now.get(name, ABSENT)}"
        for name, old in before.items()
        if now.get(name, ABSENT) != old
    ]
