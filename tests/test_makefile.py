"""What `make` shows while it sets up, where pip is a stand-in that says as much; what `.ci/run` runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
case "$1 $2 $3" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; cp grpobench "$3/bin/grpobench";;
  "-m pip --version") ;;
  "-m pip install") i=0; while [ $i -lt 300 ]; do echo "Collecting package-$i"; i=$((i+1)); done
    if [ -n "$NO_NETWORK" ]; then echo "ERROR: No matching distribution found" >&2; exit 1; fi;;
  "--version  ") echo Python 3.11.7;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The Makefile and what it reads, with a Python that installs nothing."""
    for name in ("Makefile", "pyproject.toml", ".ci/lock.txt", ".src/grpobench/version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in (("python", PYTHON), ("grpobench", '#!/bin/sh\necho "grpobench $@"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def make(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    outside = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    return subprocess.run(
        ["make", "demo", "PYTHON=./python"],
        cwd=folder,
        env=outside | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_the_demo_says_what_it_does_in_a_line_per_phase(clone: Path) -> None:
    packages = (ROOT / ".ci" / "lock.txt").read_text().count("==")
    done = make(clone)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "Setting up .venv with Python 3.11.7.",
        f"Installing {packages} packages into .venv, which takes some minutes (see .venv/setup.log).",
        "Installing grpobench itself, from this folder.",
        "Running the recipe quickstart. Interrupt it whenever you like; the same command goes on from there.",
        "grpobench run quickstart",
    ]
    assert (clone / ".venv" / "setup.log").read_text().count("Collecting") == 600
    assert make(clone).stdout.splitlines() == done.stdout.splitlines()[-2:]


def test_what_pip_fails_of_is_shown_and_where_the_rest_is(clone: Path) -> None:
    failed = make(clone, NO_NETWORK="1")
    assert failed.returncode != 0
    lines = failed.stdout.splitlines()
    assert "ERROR: No matching distribution found" in lines and len(lines) < 50
    assert any("All that pip said is in .venv/setup.log" in line for line in lines)
    assert "grpobench run quickstart" not in lines
    assert make(clone).returncode == 0  # the same command tries again


@pytest.mark.parametrize("broken", ["", "lint", "types", "test"])
def test_whole_check_runs_everything_and_ends_with_pytest_closing_line(tmp_path: Path, broken: str) -> None:
    closing = "= 3 passed in 0.10s ="
    (tmp_path / "make").write_text(
        f'#!/bin/sh\necho "make $1"\nif [ "$1" = test ]; then echo "{closing}"; echo "cleaned up"; fi\n'
        f'[ "$1" != "{broken}" ]\n'
    )
    (tmp_path / "bwrap").write_text("#!/bin/sh\n")  # nothing to install
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    done = subprocess.run(
        [ROOT / ".ci" / "run"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert (done.returncode != 0) == bool(broken)
    assert [line for line in lines if line.startswith("make")] == [
        f"make {name}" for name in ("setup", "data-bbq", "lint", "types", "test")
    ]
    assert lines[-1] == closing
