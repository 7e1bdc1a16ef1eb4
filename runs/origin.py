"""Where a run comes from: code, versions and machine, as `origin.json` records them."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "numpy", "safetensors", "math-verify", "sympy", "grpobench")
ROOMS = Path(__file__).resolve().parent.parent
CODE_ROOMS = ("algorithms/", "tasks/", "runs/")
"""The sub-packages that a run's numbers can depend on."""
BYSTANDERS = ("runs/cli.py", "runs/deferred.py")
"""Loaded in every process, and of no effect on a run."""
LONGEST_DIFF = 200_000


def code() -> dict[str, str]:
    """Hash per source file of this package that the process has loaded and a run can depend on."""
    found = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None) if name.startswith("grpobench.") else None
        if file:
            path = Path(file).resolve()
            relative = path.relative_to(ROOMS).as_posix() if path.is_relative_to(ROOMS) else ""
            if relative.startswith(CODE_ROOMS) and relative not in BYSTANDERS:
                found[relative] = digest(relative)
    return found


@functools.cache
def digest(name: str) -> str:
    """Short hash of a source file as this process first saw it, which is as it was loaded."""
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


def attempt(number: int, threads: int) -> dict[str, Any]:
    """What is recorded about one attempt at a run."""
    return {
        "attempt": number,
        "pid": os.getpid(),
        "host": platform.node(),
        "platform": platform.platform(),
        "device": device(),
        "threads": threads,
        "command": sys.argv,
        "versions": dict(versions()),
        **commit(),
        "code": code(),
    }


def code_differences(attempt: Mapping[str, Any]) -> list[str]:
    """What can change a run's numbers and has changed since an attempt: versions, and the files it loaded."""
    now = versions()
    pairs = [(name, before, now.get(name, "(absent)")) for name, before in attempt["versions"].items()]
    pairs += [(name, before, digest(name)) for name, before in attempt["code"].items()]
    return [f"{name}: {before} -> {after}" for name, before, after in pairs if before != after]
