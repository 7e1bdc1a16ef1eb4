"""Triton's kernels without a GPU: interpreted on the CPU, or compiled for one that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


def interpret(program: str) -> None:
    """Run a program in a process whose Triton interprets its kernels, as it decides once, at its import."""
    pytest.importorskip("triton")
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def compile_for_h100(
    kernel: Any, kinds: Mapping[str, str], constants: Mapping[str, Any], options: Mapping[str, Any]
) -> None:
    """Compile a kernel whose arguments have these `kinds`, but for those that are `constants`."""
    triton = pytest.importorskip("triton")
    compiler = pytest.importorskip("triton.compiler")
    backend = pytest.importorskip("triton.backends.compiler")
    signature = {name: "constexpr" if name in constants else kinds[name] for name in kernel.arg_names}
    values = {(n,): constants[name] for n, name in enumerate(kernel.arg_names) if name in constants}
    source = compiler.ASTSource(fn=kernel, signature=signature, constexprs=values)
    target = backend.GPUTarget("cuda", 90, 32)
    assert triton.compile(source, target=target, options=dict(options)).asm["cubin"]
