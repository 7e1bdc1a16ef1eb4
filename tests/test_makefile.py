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
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "ARGS"))}
    return subprocess.run(
        ["make", "demo", "PYTHON=./python"],
        cwd=folder,
        env=outside | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_the_demo_sets_up_once_and_runs_the_recipe_without_pips_words(clone: Path) -> None:
    done, again = make(clone), make(clone)
    assert (done.returncode, again.returncode) == (0, 0)
    assert "Collecting" not in done.stdout and len(done.stdout.splitlines()) < 10
    assert ".venv/setup.log" in done.stdout and "setup.log" not in again.stdout
    assert (clone / ".venv" / "setup.log").read_text().count("Collecting") == 600
    for output in (done.stdout, again.stdout):
        assert output.splitlines()[-1] == "grpobench run quickstart"


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
    assert {f"make {name}" for name in ("setup", "lint", "types", "test")} <= set(lines)
    assert lines[-1] == closing
