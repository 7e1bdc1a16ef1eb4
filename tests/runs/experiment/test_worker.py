"""What a worker tells its launcher, and does with a run whose folder another process has taken over."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import stand_ins
from helpers.experiments import recipe
from helpers.memory import in_a_fresh_process
from helpers.warm import LOADED, tell_loaded

from grpobench.runs.experiment.worker import STOP, RunJob, WorkerPipe, run
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.tools import lock
from grpobench.runs.tools.process import without_interrupts
from grpobench.runs.train.progress import SAVING, Preempted, Progress
from grpobench.runs.train.stopping import Stopping


def test_a_run_whose_folder_was_taken_over_ends_without_another_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins.register(monkeypatch)
    monkeypatch.setenv(lock.SECONDS, "0.2")
    (config,) = recipe(tmp_path, "fine").runs()
    run_folder = tmp_path / "run"

    def execute(config: Any, folder: RunFolder, report: Any, stop: Any) -> None:
        folder.log({"step": 1})
        lease = lock.parse(lock.file_text(folder.lock.path))
        assert lease is not None
        folder.lock.path.write_text(dataclasses.replace(lease, token="another's").text())
        before.update({path.name: path.read_bytes() for path in run_folder.iterdir() if path.is_file()})
        time.sleep(0.3)
        folder.log({"step": 2})

    before: dict[str, bytes] = {}
    ended = run(RunJob(config, run_folder, False), execute, stand_ins.Nobody(), 1, lambda _: None)
    assert ended.fate == "refused" and "has taken it over" in ended.why
    assert before["metrics.jsonl"] == b'{"step": 1}\n'
    assert {path.name: path.read_bytes() for path in run_folder.iterdir() if path.is_file()} == before


def test_a_log_that_is_not_a_file_refuses_the_run_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins.register(monkeypatch)
    (config,) = recipe(tmp_path, "fine").runs()
    run_folder = tmp_path / "run"

    def execute(config: Any, folder: RunFolder, report: Any, stop: Any) -> None:
        os.mkfifo(run_folder / "metrics.jsonl")
        folder.log({"step": 1})

    ended = run(RunJob(config, run_folder, False), execute, stand_ins.Nobody(), 1, lambda _: None)
    assert ended.fate == "refused" and "metrics.jsonl: not a regular file" in ended.why


def test_launcher_hears_that_run_saves_however_much_it_heard_before() -> None:
    """A run is found to be told to stop right after it has said something."""
    ours, theirs = multiprocessing.Pipe()
    line = WorkerPipe(theirs)
    stopping = Stopping(line.report, line.stop)
    stopping.last_asked = -1.0
    ours.send(STOP)
    for phase in ("sampling", "training"):
        stopping.report(Progress(3, 9, 0.5, 9.0, phase))
    with pytest.raises(Preempted):
        stopping.ask()
    stopping.report(Progress(3, 9, 0.5, 9.0, SAVING))
    heard = []
    while ours.poll():
        heard.append(ours.recv().phase)
    assert heard == ["sampling", SAVING]


def test_a_process_that_begins_keeps_a_ctrl_c_until_it_asks_for_it() -> None:
    """Else one that is still importing ends with a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    look = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with without_interrupts():
        output = subprocess.check_output([sys.executable, "-c", look], text=True)
    assert output == "True\n" and signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_a_forked_process_has_what_its_server_imported() -> None:
    """A server that does not find the helpers says nothing, and each run is a second longer."""
    assert in_a_fresh_process(tell_loaded) == LOADED
