"""`pip install grpobench` without an extra: no torch, and yet reports, figures, imports and findings.

The commands run in an interpreter that sees no site-packages, only links to the packages that the plain
install brings.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.foreign_logs import trainer_state, trl_row
from helpers.synthetic import Synthetic
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
Say = Callable[..., subprocess.CompletedProcess[str]]


def closure(name: str, visited: set[str] | None = None) -> set[str]:
    """Distributions that a plain install of one brings, itself included."""
    visited = set() if visited is None else visited
    if name in visited:
        return visited
    visited.add(name)
    for text in importlib.metadata.requires(name) or []:
        need = Requirement(text)
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            closure(re.sub(r"[-_.]+", "-", need.name).lower(), visited)
    return visited


PROGRAM = """
import json, os, sys, traceback
import matplotlib.pyplot, pandas, scipy.special
from grpobench.analysis.report import figures
from grpobench.runs.cli import main
if os.environ.get("HYPOTHESIS_PROFILE") != "long":
    figures.names_of = lambda numbers: ["final_accuracy"]  # drawing takes most of a report's time
for line in sys.stdin:
    words, folder, out, err = json.loads(line)
    if not (child := os.fork()):
        code = 1
        try:
            os.chdir(folder)
            for stream, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            code = main(words)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Executes each command in a fork of its own, which need not import again what most commands import."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Say]:
    """Executes a grpobench command where only the plain install is importable."""
    site = tmp_path_factory.mktemp("site")
    names = closure("grpobench")
    assert "torch" not in names and {"pandas", "seaborn", "python-dateutil"} <= names
    for name in names:
        for file in importlib.metadata.files(name) or []:
            top = Path(file.parts[0])
            if str(top) not in ("..", "__pycache__") and top.suffix != ".pth":
                link = site / top
                if not link.exists():
                    link.symlink_to(Path(str(importlib.metadata.distribution(name).locate_file(top))))
    path = f"{ROOT / '.src'}{os.pathsep}{site}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    work_folder = tmp_path_factory.mktemp("told")
    with subprocess.Popen(
        [sys.executable, "-S", "-c", PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        requests, answers = server.stdin, server.stdout

        def say(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
            out, err = work_folder / "out.txt", work_folder / "err.txt"
            requests.write(json.dumps([words, str(folder or work_folder), str(out), str(err)]) + "\n")
            requests.flush()
            code = int(answers.readline())
            return subprocess.CompletedProcess(
                words, code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8")
            )

        yield say
        requests.close()


def test_reports_and_figures_need_no_torch(plain: Say, tmp_path: Path) -> None:
    few = {"steps": 4, "every": 2, "problems": 4, "test_problems": 4}
    folder = Synthetic(arms=("grpo", "ppo"), tasks=("arithmetic",), **few).write(tmp_path)
    done = plain("report", str(folder), "--format", "html")
    assert done.returncode == 0, done.stderr
    assert "<svg" in (folder / "report/index.html").read_text(encoding="utf-8")
    done = plain("figure", "final_accuracy", str(folder), "--format", "pdf", folder=tmp_path)
    assert done.returncode == 0 and list((tmp_path / "figures").glob("*.pdf")), done.stderr


def test_logs_of_other_libraries_are_imported_without_torch(plain: Say, tmp_path: Path) -> None:
    log = tmp_path / "trl" / "trainer_state.json"
    log.parent.mkdir()
    log.write_text(trainer_state([trl_row(1, 0.25), trl_row(2, 0.5)], 2, 2), encoding="utf-8")
    done = plain("import", str(log), "imported", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert plain("report", "imported", "--format", "tex,csv,json", folder=tmp_path).returncode == 0


@pytest.mark.parametrize(
    "words",
    [("findings",), ("list", "algorithms"), ("list", "tasks")],
)
def test_what_trains_nothing_needs_no_torch(plain: Say, words: tuple[str, ...], tmp_path: Path) -> None:
    done = plain(*words, folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_doctor_says_what_the_plain_install_can_run(plain: Say, tmp_path: Path) -> None:
    done = plain("doctor", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    ending = done.stdout.partition("What you can run here:")[2]
    assert "grpobench report DIR" in ending and "pip install '.[train]'" in ending
    assert "quickstart" not in ending


@pytest.mark.parametrize(
    "words",
    [("eval", "nano", "--task", "arithmetic"), ("bench",), ("warmstart", "nano", "--task", "arithmetic")],
)
def test_what_trains_names_the_extra(plain: Say, words: tuple[str, ...], tmp_path: Path) -> None:
    done = plain(*words, folder=tmp_path)
    assert done.returncode == 70 and "Traceback" not in done.stderr
    assert "pip install '.[train]'" in done.stderr
