"""Everything that a run keeps has a sum: what is damaged is named with file, line and remedy, and nothing
else is lost.

Folders of versions that left no sums are read as before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from helpers import folders
from helpers.edits import flip, half
from helpers.whole_runs import rows

import grpobench
from grpobench.analysis.runfolder import checksums
from grpobench.analysis.runfolder import files as log_files
from grpobench.analysis.runfolder.experiment import read_rollouts
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import STATES
from grpobench.analysis.topics.runs import UNPROVED, run_provenance
from grpobench.runs.experiment.experiment import survey
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.run_status import run_status
from grpobench.runs.runfolder.folder import FolderError, RunFolder
from grpobench.runs.runfolder.logs import LogFile, State, mark, result_damage, settled, status
from grpobench.runs.settings import stored
from grpobench.runs.settings.config import CheckpointConfig, EvaluateConfig
from grpobench.runs.tools import files

STEPS = 6
CONFIG = dataclasses.replace(
    folders.CONFIG,
    train=dataclasses.replace(folders.CONFIG.train, steps=STEPS),
    evaluate=EvaluateConfig(problems=0, test_problems=0),
)


def run_path(folder: Path) -> Path:
    return folder / CONFIG.folder


def row(step: int) -> dict[str, Any]:
    return {"step": step, "reward/mean": 0.125 + step / 7, "time/wall": 3.0}


def answer(step: int, problem: str) -> dict[str, Any]:
    fields = {"step": step, "split": "test", "mode": "greedy", "problem": problem, "sample": 0}
    return {**fields, "scores": {"correct": 1.0}, "outcome": "pass"}


def go_on(run: RunFolder, done: int, last: int) -> None:
    for step in range(done + 1, last + 1):
        run.evaluations([answer(step, name) for name in "abc"])
        run.log(row(step))
        run.rollouts(step, [{"completions": [], "text": "incompressible"}])
        run.save(step, {"policy": {"weight": torch.full((3,), float(step))}}, {"step": step})


def begun(folder: Path, last: int = 3) -> Path:
    """A run that was stopped behind its checkpoint of step `last`; two are kept."""
    with RunFolder.open(run_path(folder), CONFIG) as run:
        run.rewind(0)
        go_on(run, 0, last)
    return run_path(folder)


def finished(folder: Path) -> Path:
    path = begun(folder)
    with RunFolder.open(path, CONFIG) as run:
        run.rewind(3)
        go_on(run, 3, STEPS)
        run.keep_final("policy", {"weight": torch.ones(40)})
        run.finish("finished")
    return path


def without_sums(path: Path) -> None:
    """As an older version left the folder."""
    for stray in [*path.glob(f"*{checksums.SIDE}"), path / checksums.SUMS_FILE]:
        stray.unlink(missing_ok=True)
    for file in [path / "provenance.json", *path.glob("checkpoints/*/manifest.json")]:
        table = json.loads(file.read_text())
        del table[checksums.SEAL]
        for name, recorded in table.get("logs", {}).items():
            table["logs"][name] = recorded["bytes"]
        file.write_text(json.dumps(table, indent=1))


def change_digit(path: Path, line: int) -> None:
    """The first digit behind a decimal point in a line becomes another."""
    lines = path.read_bytes().split(b"\n")
    before = lines[line - 1]
    lines[line - 1] = re.sub(rb"\.(\d)", lambda match: b".%d" % ((int(match[1]) + 1) % 10), before, count=1)
    assert lines[line - 1] != before
    path.write_bytes(b"\n".join(lines))


# Sums over lines


def test_a_line_s_sum_is_that_of_the_log_up_to_it(tmp_path: Path) -> None:
    path = begun(tmp_path)
    content = (path / "metrics.jsonl").read_bytes()
    marks = (path / "metrics.jsonl.sums").read_text().splitlines()
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    assert marks == [hashlib.sha256(content[:end]).hexdigest()[:16] for end in ends] and len(marks) == 3
    assert [json.loads(line)["step"] for line in content.splitlines()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        (lambda lines: [lines[0], b"other", *lines[2:]], 2),
        (lambda lines: [*lines[:3], lines[3].upper(), *lines[4:]], 4),
        (lambda lines: [lines[0], *lines[2:]], 2),
        (lambda lines: [lines[1], lines[0], *lines[2:]], 1),
        (lambda lines: lines[:-1], 5),
        (lambda lines: [], 1),
    ],
    ids=["changed", "last but one", "one lost", "two exchanged", "last lost", "all lost"],
)
def test_the_first_line_that_is_another_is_told(
    harm: Callable[[list[bytes]], list[bytes]], line: int
) -> None:
    lines = [b"a", b"b", b"c", b"d", b"e"]
    marks = checksums.marks_of(b"".join(row + b"\n" for row in lines))
    assert checksums.check(b"".join(row + b"\n" for row in harm(lines)), marks).line == line


def test_lines_after_the_sums_and_a_damaged_sum_are_no_fault() -> None:
    content = b"a\nb\nc\n"
    marks = checksums.marks_of(content)
    assert checksums.check(content + b"d\nhalf", marks) == checksums.LogCheck()
    assert checksums.check(content, marks.replace(marks[17:19], b"zz")) == checksums.LogCheck()
    assert checksums.check(content, marks[:20]) == checksums.LogCheck()  # the second sum is torn
    assert checksums.check(content, b"") == checksums.LogCheck()


def test_a_run_that_resumes_while_it_is_read_raises_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sums are read, then it cuts sums and log, and then the log is read."""
    log = LogFile(tmp_path / "metrics.jsonl")
    log.append([{"step": step} for step in range(6)])
    length, plain = len(b'{"step": 0}\n' * 4), log_files.read_bytes

    def resumes(path: Path) -> bytes:
        content = plain(path)
        if path.name.endswith(checksums.SIDE) and not list(tmp_path.glob("*.orphan-1.jsonl")):
            log.cut(length)
        return content

    monkeypatch.setattr(log_files, "read_bytes", resumes)
    read, cut = log_files.read_lines(log.path)
    assert [row["step"] for _, row in read] == [0, 1, 2, 3] and cut == 0
    monkeypatch.undo()
    log.path.write_bytes(log.path.read_bytes()[:-12])  # what is gone for good is named as ever
    with pytest.raises(LogError, match="line 4: 1 lines that were written are missing"):
        log_files.read_lines(log.path)


def test_a_kill_between_a_row_and_its_sum_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = begun(tmp_path)
    append = files.append

    def killed(descriptor: int, data: bytes, durable: bool = True) -> None:
        if not durable:
            raise KeyboardInterrupt
        append(descriptor, data, durable)

    with RunFolder.open(path, CONFIG) as run:
        monkeypatch.setattr(files, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            run.log(row(4))
        monkeypatch.undo()
    assert len(rows(path)) == 4 and len((path / "metrics.jsonl.sums").read_text().splitlines()) == 3
    assert not grpobench.load(tmp_path).damage
    with RunFolder.open(path, CONFIG) as run:
        run.log(row(5))
    assert (path / "metrics.jsonl.sums").read_bytes() == checksums.marks_of(
        (path / "metrics.jsonl").read_bytes()
    )


# Reports


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "digit of metrics": (lambda path: change_digit(path / "metrics.jsonl", 2), "metrics.jsonl, line 2: is"),
    "digit of an answer": (lambda path: change_digit(path / "eval.jsonl", 7), "eval.jsonl, line 7: is"),
    "row lost": (
        lambda path: (path / "metrics.jsonl").write_bytes(
            b"".join((path / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:-1])
        ),
        "metrics.jsonl, line 6: 1 lines that were written are missing",
    ),
    "row added": (
        lambda path: (path / "metrics.jsonl").open("a").write('{"step": 7}\n'),
        "metrics.jsonl: is not what was written, by sums.json",
    ),
    "settings": (
        lambda path: (path / "run.toml").write_text((path / "run.toml").read_text().replace("0.2", "0.3")),
        "run.toml: is not what was written",
    ),
    "provenance": (
        lambda path: (path / "provenance.json").write_text(
            (path / "provenance.json").read_text().replace('"threads": 1', '"threads": 2')
        ),
        "provenance.json: is not what was written, by its own `sha256`",
    ),
    "sums": (lambda path: flip(path / "sums.json", 60), "sums.json: damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_as_it_was_written_is_named_and_counts_nowhere(damage: str, tmp_path: Path) -> None:
    path = finished(tmp_path)
    assert not grpobench.load(tmp_path).damage
    harm, message = DAMAGES[damage]
    harm(path)
    loaded = grpobench.load(tmp_path)
    (line,) = loaded.damage
    assert line.startswith(f"{path}/{message}") and "restore" in line
    assert [run.state for run in loaded.experiment.runs] == ["damaged"]


def test_lost_weights_cost_a_report_nothing_and_are_named(tmp_path: Path) -> None:
    path = finished(tmp_path)
    (path / "final" / "policy.safetensors").unlink()
    loaded = grpobench.load(tmp_path)
    assert [run.state for run in loaded.experiment.runs] == ["finished"] and not loaded.damage
    (line,) = next(iter(loaded.facts.alarms.values()))
    assert f"{path}/final/policy.safetensors: is missing" in line


def test_rollouts_that_are_damaged_are_named(tmp_path: Path) -> None:
    """A byte of text within a frame changes nothing but the text: only the frame's own sum shows it."""
    path = finished(tmp_path) / "rollouts" / "step-2.jsonl.zst"
    assert len(read_rollouts(path, 9)) == 1
    flip(path, path.read_bytes().index(b"incompressible"))
    with pytest.raises(LogError, match=f"{path}: damaged .*restore or delete"):
        read_rollouts(path, 9)


# Starting again


def survey_of(path: Path) -> ExperimentRun:
    run = ExperimentRun(CONFIG, path)
    survey([run], allow_change=False)
    return run


@pytest.mark.parametrize("name", ["final/policy.safetensors", "metrics.jsonl", "run.toml"])
def test_a_result_of_which_something_is_gone_is_refused_by_name(name: str, tmp_path: Path) -> None:
    path = finished(tmp_path)
    (path / name).unlink()
    with pytest.raises(FolderError, match=rf"{name}: is missing.*or delete {path} to run it again"):
        survey_of(path)
    with pytest.raises(FolderError, match=f"{name}: is missing"):
        RunFolder.open(path, CONFIG)
    assert run_status(path).state == "damaged" and name in run_status(path).why
    assert settled(path), "nothing has been thrown away"


def test_weights_that_the_recipe_does_not_want_may_be_deleted(tmp_path: Path) -> None:
    """But not anything else, nor may they be of another size."""
    path = finished(tmp_path)
    lean = dataclasses.replace(CONFIG, checkpoint=CheckpointConfig(weights=False))
    (path / "final" / "policy.safetensors").unlink()
    run = ExperimentRun(lean, path)
    survey([run], allow_change=False)
    assert run.state == "finished"
    (path / "final" / "policy.safetensors").write_bytes(b"x")
    with pytest.raises(FolderError, match="holds 1 bytes"):
        survey([ExperimentRun(lean, path)], allow_change=False)
    (path / "final" / "policy.safetensors").unlink()
    (path / "metrics.jsonl").unlink()
    with pytest.raises(FolderError, match=r"metrics\.jsonl: is missing"):
        survey([ExperimentRun(lean, path)], allow_change=False)


UNTOLD: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "status lost": ("status.json", Path.unlink, ": missing, although the run had a result"),
    "status cut": ("status.json", half, ", line 1: not JSON"),
    "status of another state": (
        "status.json",
        lambda file: file.write_text(file.read_text().replace("finished", "finishes")),
        ": `state` is 'finishes'",
    ),
    "status with a word for the step": (
        "status.json",
        lambda file: file.write_text(file.read_text().replace('"step": 6', '"step": "x"')),
        ": `step` must be a whole number",
    ),
    "origin cut": ("provenance.json", half, ", line "),
    "origin of another shape": (
        "provenance.json",
        lambda file: file.write_text('{"fingerprints": 3}'),
        ": not the provenance",
    ),
}


@pytest.mark.parametrize("damage", UNTOLD)
def test_run_status_and_report_agree_on_result_its_files_do_not_mention(damage: str, tmp_path: Path) -> None:
    """It is not begun anew, and nobody advises to delete what tells of it."""
    path = finished(tmp_path)
    name, harm, message = UNTOLD[damage]
    harm(path / name)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    for begin in (lambda: survey_of(path), lambda: RunFolder.open(path, CONFIG)):
        with pytest.raises(FolderError) as refused:
            begin()
        assert str(refused.value).startswith(f"{path / name}{message}")
        assert "restore the file, or delete" in str(refused.value)
    assert run_status(path).state == "damaged" and run_status(path).why.startswith(f"{path / name}{message}")
    loaded = grpobench.load(tmp_path)
    (line,) = loaded.damage
    assert line.startswith(f"{path / name}{message}") and line.endswith("restore the file")
    assert [run.state for run in loaded.experiment.runs] == ["damaged"]
    after = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert {file: after.get(file) for file in before} == before


def test_a_result_that_was_never_written_is_not_believed(tmp_path: Path) -> None:
    """A status that was edited: the run has checkpoints and half its rows, but no final weights or sums."""
    path = begun(tmp_path)
    content = json.loads((path / "status.json").read_text())
    (path / "status.json").write_text(json.dumps(content | {"state": "finished"}))
    fault = f"{path / 'status.json'}: says `finished`, but sums.json"
    (refusal,) = result_damage(path)
    assert refusal.startswith(fault) and "or delete" in refusal
    with pytest.raises(FolderError, match="says `finished`"), RunFolder.open(path, CONFIG):
        pass
    loaded = grpobench.load(tmp_path)
    assert loaded.damage[0].startswith(fault) and [run.state for run in loaded.experiment.runs] == ["damaged"]
    (path / "status.json").write_text(json.dumps(content))
    assert not result_damage(path) and not grpobench.load(tmp_path).damage


@pytest.mark.parametrize(
    ("last", "lack"),
    [
        ({}, "its log ends at step 0 of 6"),
        (
            {"step": 6},
            "has no evaluation of 4 validation problems at step 6 and its log has no evaluation of 8",
        ),
        ({"step": 6, "eval/validation/greedy/correct": 1.0}, "no evaluation of 8 test problems at step 6"),
        ({"step": 6, "eval/test/greedy/correct": None, "eval/validation/greedy/correct": 1.0}, ""),
    ],
)
def test_a_result_of_the_first_versions_has_the_evaluations_of_its_last_step(
    last: dict[str, Any], lack: str, tmp_path: Path
) -> None:
    """They left no sums. A status that was edited is told from a result by the run's own settings."""
    config = dataclasses.replace(
        CONFIG, evaluate=dataclasses.replace(CONFIG.evaluate, problems=4, test_problems=8)
    )
    path = finished(tmp_path)
    without_sums(path)
    (path / "run.toml").write_text(stored.dump(config))
    (path / "metrics.jsonl").write_text(json.dumps(last) + "\n" if last else "")
    if not lack:
        assert not result_damage(path) and run_status(path).state == "finished"
        return
    (refusal,) = result_damage(path)
    assert refusal.startswith(f"{path / 'status.json'}: says `finished`, but its log ") and lack in refusal
    assert run_status(path).state == "damaged" and lack in run_status(path).why
    with pytest.raises(FolderError, match="says `finished`"), RunFolder.open(path, config):
        pass
    table = json.loads((path / "provenance.json").read_text())
    (path / "provenance.json").write_text(json.dumps(table | {"imported": {"format": "trl"}}))
    assert not result_damage(path)  # other libraries do not evaluate at the end


def test_what_a_status_can_say_is_the_same_to_those_who_write_and_read_it() -> None:
    assert get_args(State) == STATES


@pytest.mark.parametrize("point", ["finish", "begin"])
def test_kill_near_writing_of_sums_leaves_a_resumable_run(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sums.json is written before a result is, and removed after it is taken back."""
    path = finished(tmp_path) if point == "begin" else begun(tmp_path)

    def killed(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    monkeypatch.setattr("grpobench.runs.runfolder.folder.point", killed)
    with pytest.raises(KeyboardInterrupt), RunFolder.open(path, CONFIG, allow_change=True) as run:
        run.finish("finished")
    monkeypatch.undo()
    assert (
        (path / checksums.SUMS_FILE).exists()
        and status(path)["state"] == "running"
        and not result_damage(path)
    )
    with RunFolder.open(path, CONFIG):
        assert not (path / checksums.SUMS_FILE).exists()


def test_a_worker_s_death_behind_its_result_takes_nothing_back(tmp_path: Path) -> None:
    path = finished(tmp_path)
    mark(path, "crashed", "its worker process was killed by SIGKILL")
    assert status(path)["state"] == "finished"


# Resuming


@pytest.mark.parametrize("log", ["metrics.jsonl", "eval.jsonl"])
def test_log_damaged_after_older_checkpoint_is_remade_from_there(log: str, tmp_path: Path) -> None:
    path = begun(tmp_path)
    line = 3 if log == "metrics.jsonl" else 8
    change_digit(path / log, line)
    with RunFolder.open(path, CONFIG) as run:
        with pytest.warns(UserWarning, match=f"step-3: {path}/{log}, line {line}: is not what was written"):
            checkpoint = run.latest()
        assert checkpoint is not None and checkpoint.step == 2
        run.rewind(2)
        go_on(run, 2, 3)
    assert [row["step"] for row in rows(path)] == [1, 2, 3] and not grpobench.load(tmp_path).damage


def test_log_damaged_before_all_checkpoints_stops_run_by_file_and_line(tmp_path: Path) -> None:
    path = begun(tmp_path)
    change_digit(path / "metrics.jsonl", 1)
    with (
        RunFolder.open(path, CONFIG) as run,
        pytest.warns(UserWarning),
        pytest.raises(FolderError, match=rf"{path}/metrics\.jsonl, line 1: is not.*delete {path} to start"),
    ):
        run.latest()
    assert len(rows(path)) == 3


@pytest.mark.parametrize(
    "harm",
    [
        lambda text: text.replace('"bytes": ', '"bytes": 1', 1),
        lambda text: text.replace('"step": 3', '"step": 2'),
        lambda text: "[]",
    ],
    ids=["size", "step", "list"],
)
def test_a_manifest_with_a_changed_digit_is_passed_over(harm: Callable[[str], str], tmp_path: Path) -> None:
    path = begun(tmp_path)
    manifest = path / "checkpoints" / "step-3" / "manifest.json"
    changed = harm(manifest.read_text())
    assert changed != manifest.read_text()
    manifest.write_text(changed)
    with RunFolder.open(path, CONFIG) as run, pytest.warns(UserWarning, match="step-3: manifest"):
        checkpoint = run.latest()
        assert checkpoint is not None and checkpoint.step == 2


def test_foreign_files_are_ignored_and_named(tmp_path: Path) -> None:
    path = begun(tmp_path)
    checkpoint = path / "checkpoints" / "step-3"
    (checkpoint / "critic.safetensors").write_bytes(b"not one of ours")
    (checkpoint / "notes").mkdir()
    (path / "checkpoints" / "step-9").write_text("a file")
    (path / "checkpoints" / "step-²").mkdir()
    (path / "checkpoints" / ".DS_Store").write_text("a file")
    (path / "rollouts" / "step-x.jsonl.zst").write_text("mine")
    with RunFolder.open(path, CONFIG) as run:
        with pytest.warns(UserWarning, match=r"ignored files .*: \['critic.safetensors', 'notes'\]"):
            latest = run.latest()
        assert latest is not None and latest.step == 3 and latest.names() == ["policy"]
        run.rewind(3)
        go_on(run, 3, STEPS)
        assert run.steps() == [5, 6]


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    path = begun(tmp_path)
    (path / "final").mkdir()
    left = ["final/.policy.123", ".status.json.host.123.tmp", "rollouts/.step-1.jsonl.zst.host.1.tmp"]
    for name in left:
        (path / name).write_text("half")
    (path / "checkpoints" / ".step-4.99").mkdir()
    RunFolder.open(path, CONFIG).close()
    assert not [name for name in left if (path / name).exists()]
    assert sorted(checkpoint.name for checkpoint in (path / "checkpoints").iterdir()) == ["step-2", "step-3"]


def test_asides_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    living = files.beside(tmp_path / "a")
    dead = living.with_name(living.name.replace(f"-{os.getpid()}.", f"-{child.pid}."))
    older = living.with_name(living.name.replace(f".{living.name.split('.')[-2]}.", f".{child.pid}."))
    elsewhere = tmp_path / ".a.another-host.1.tmp"
    neighbor = tmp_path / f".a.{files.machine()}.1-{child.pid}.tmp"
    for aside in (living, dead, older, elsewhere, neighbor):
        aside.mkdir()
    files.sweep(tmp_path)
    left = [aside.exists() for aside in (living, dead, older, elsewhere, neighbor)]
    assert left == [True, False, False, True, True]
    with files.becoming(tmp_path / "a", alone=True):
        assert not elsewhere.exists() and not neighbor.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_containers_of_one_host_write_aside_under_different_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same pid, as process 1 of each is."""
    ours = files.beside(Path("a"))
    monkeypatch.setattr(files, "space", lambda: "pid:[4026599999]")
    assert files.beside(Path("a")) != ours and f".4026599999-{os.getpid()}." in files.beside(Path("a")).name


# Older folders


def test_folders_without_sums_are_read_and_it_is_said(tmp_path: Path) -> None:
    path = finished(tmp_path)
    assert run_provenance(grpobench.load(tmp_path).experiment)["checksums"] == [("right", 1)]
    without_sums(path)
    change_digit(path / "metrics.jsonl", 2)
    loaded = grpobench.load(tmp_path)
    assert not loaded.damage and run_provenance(loaded.experiment)["checksums"] == [(UNPROVED, 1)]
    assert not result_damage(path) and survey_of(path).state == "finished"


def test_a_run_of_an_older_version_is_resumed_and_has_sums_from_then_on(tmp_path: Path) -> None:
    path = begun(tmp_path)
    without_sums(path)
    with RunFolder.open(path, CONFIG) as run:
        checkpoint = run.latest()
        assert checkpoint is not None and checkpoint.step == 3
        run.rewind(3)
        go_on(run, 3, 4)
    assert (path / "metrics.jsonl.sums").read_bytes() == checksums.marks_of(
        (path / "metrics.jsonl").read_bytes()
    )
    assert [row["step"] for row in rows(path)] == [1, 2, 3, 4]
