"""Work shared out among processes: results in the order of the jobs, errors as if one process did all."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from helpers.shared_work import LONGEST, half_a_second, met, met_here
from helpers.synthetic import Synthetic
from helpers.torn import TornNumbers

from grpobench.analysis.report import figures
from grpobench.analysis.report.crew import drawing_crew
from grpobench.analysis.report.report import write_report
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.tools import processes as crews
from grpobench.analysis.tools.processes import Crew, crew


def share(team: Crew, function: Callable[..., Any], jobs: Sequence[Any]) -> list[Any]:
    team.ask(function, jobs)
    return team.finish()


@pytest.mark.parametrize("processes", [1, 3])
def test_results_stand_in_the_order_of_the_jobs(processes: int) -> None:
    jobs = [float(number) for number in range(200)]
    with crew(processes, "math") as team:
        assert share(team, math.sqrt, jobs) == [math.sqrt(job) for job in jobs]


def test_helpers_work_beside_this_process(tmp_path: Path) -> None:
    with crew(2, "helpers.shared_work") as team:
        ids = share(team, partial(met, tmp_path), [0, 1])
    assert len(set(ids)) == 2 and os.getpid() in ids


def test_helpers_begin_when_they_are_asked(tmp_path: Path) -> None:
    with crew(2, "helpers.shared_work") as team:
        team.ask(partial(half_a_second, tmp_path), [0])
        wait_until(lambda: any(tmp_path.iterdir()))  # while this process does something else
        assert team.finish() == [None]
    assert [path.name for path in tmp_path.iterdir()] != [str(os.getpid())]


def test_what_helpers_import_takes_no_second_for_what_they_do_not_use() -> None:
    script = "import sys, grpobench.analysis.report.figures; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {"matplotlib", "pandas"} <= {*done.stdout.split()}
    assert not {"scipy.stats", "scipy.optimize", "seaborn", "torch"} & {*done.stdout.split()}


@pytest.mark.parametrize("how", ["killed", "raises"])
def test_what_a_helper_does_not_finish_is_done_here(tmp_path: Path, how: str) -> None:
    with crew(2, "helpers.shared_work") as team:
        assert share(team, partial(met_here, tmp_path, os.getpid(), how), [7, 8, 9]) == [7, 8, 9]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_error_raised_is_that_of_the_first_job_that_fails(processes: int) -> None:
    with crew(processes, "operator") as team, pytest.raises(ZeroDivisionError, match="modulo"):
        share(team, partial(divmod, 1), [3, 0, "text"])  # a text would raise TypeError


def test_without_room_for_files_this_process_does_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with crew(3, "math") as team:
        monkeypatch.setattr(crews.pickle, "dump", full)
        assert share(team, math.sqrt, [4.0, 9.0]) == [2.0, 3.0]
    monkeypatch.setattr(crews.tempfile, "TemporaryFile", full)
    with crew(3, "math") as team:
        assert share(team, math.sqrt, [4.0, 9.0]) == [2.0, 3.0]


def test_helpers_end_when_nothing_is_asked_of_them_or_this_process_fails() -> None:
    made = Crew(2, "math")
    ((helper, _),) = made._helpers
    made.close()
    assert helper.returncode is not None


ASKER = """
import sys
from functools import partial
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from grpobench.analysis.tools.processes import crew
from helpers.shared_work import half_a_second
with crew(2, "helpers.shared_work") as team:
    team.ask(partial(half_a_second, Path(sys.argv[2])), range(200))
    team.finish()
"""


def test_a_helper_ends_when_who_asked_is_killed(tmp_path: Path) -> None:
    tests = str(Path(__file__).parent.parent)
    asker = subprocess.Popen([sys.executable, "-c", ASKER, tests, str(tmp_path)])
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    asker.kill()
    asker.wait()
    (helper,) = {int(path.name) for path in tmp_path.iterdir()} - {asker.pid}
    wait_until(lambda: not alive(helper))  # the calls that are left would take it another minute


def wait_until(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(process: int) -> bool:
    """Whether it is there and has not ended; nobody may be left to fetch how."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_helpers_import_no_program_and_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pickle.py").write_text('raise AssertionError("this is not the pickle that was meant")\n')
    monkeypatch.chdir(tmp_path)
    (tmp_path / "met").mkdir()
    with crew(2, "helpers.shared_work") as team:
        assert len(set(share(team, partial(met, tmp_path / "met"), [0, 1]))) == 2


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Synthetic(
        tasks=("arithmetic",), arms=("grpo", "ppo"), steps=6, every=3, problems=4, test_problems=4
    )
    return made.write(tmp_path_factory.mktemp("results"))


def files(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def idle(*_: object) -> tuple[dict[int, object], set[int]]:
    """What this process does where helpers are to do everything."""
    return {}, set()


def test_a_report_is_the_same_whichever_process_draws_its_figures(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "names_of", lambda _: ["reward", "sampling"])
    formats = ("svg", "pdf")
    alone = files(write_report(root, formats).parent)
    monkeypatch.setattr(crews, "_draw_all", idle)
    elsewhere = files(write_report(root, formats, processes=2).parent)
    assert len([name for name in alone if name.endswith(".pdf")]) == 1  # nothing was sampled
    assert alone == elsewhere


@pytest.mark.parametrize("processes", [1, 2])
def test_a_figure_that_raises_in_a_helper_raises_here(
    root: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if processes > 1:
        monkeypatch.setattr(crews, "_draw_all", idle)
    with drawing_crew(["svg"], processes) as drawers:
        underway = figures.begin(TornNumbers(load(root)), ["svg"], drawers)
        with pytest.raises(RuntimeError, match="torn numbers"):
            underway.finish()
