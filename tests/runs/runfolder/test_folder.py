"""The run folder: nothing is lost by a kill, a full disk or a flipped bit, and one process writes."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard
from helpers import stand_ins
from helpers.edits import flip
from helpers.folders import CONFIG, saving
from helpers.whole_runs import rows

from grpobench.algorithms.grpo import GRPO
from grpobench.runs.runfolder import checkpoints, folder, provenance
from grpobench.runs.runfolder.folder import FolderError, RunFolder
from grpobench.runs.runfolder.logs import settled, status
from grpobench.runs.settings.config import TrainConfig
from grpobench.runs.tools import files, lock
from grpobench.runs.tools.lock import Lock, Owner
from grpobench.tasks.data.bounded import FileError


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.open(tmp_path / "run", CONFIG) as opened:
        yield opened


def save(run: RunFolder, step: int) -> Path:
    return run.save(step, {"policy": {"weight": torch.full((3,), float(step))}}, {"step": step})


# Logs


def test_row_is_read_back_equal_and_nan_becomes_null(run: RunFolder) -> None:
    run.log({"step": 1, "x": 0.1 + 0.2, "nan": math.nan, "inf": -math.inf})
    assert rows(run.path) == [{"step": 1, "x": 0.30000000000000004, "nan": None, "inf": None}]


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "\u202eabc", "", "line\nline\u2028", "x" * 1_000_000])
def test_any_text_a_model_writes_is_read_back_unchanged(run: RunFolder, text: str) -> None:
    run.evaluations([{"step": 0, "answer": text}])
    assert rows(run.path, "eval.jsonl")[0]["answer"] == text
    packed = run.rollouts(3, [{"completion": text}]).read_bytes()
    assert json.loads(zstandard.ZstdDecompressor().decompress(packed))["completion"] == text


def test_short_write_leaves_no_bad_row(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run.log({"step": 1})
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    with pytest.raises(OSError, match="wrote 5 of") as caught:
        run.log({"step": 2, "reward/mean": 0.5})
    assert caught.value.errno == 28
    monkeypatch.setattr(os, "write", write)
    run.log({"step": 3})
    assert [row["step"] for row in rows(run.path)] == [1, 3]


def test_rewind_moves_what_lies_behind_the_checkpoint_to_an_orphan(run: RunFolder) -> None:
    for step in (1, 2, 3):
        run.log({"step": step})
        run.evaluations([{"step": step, "problem": "a"}])
        run.rollouts(step, [])
        if step == 2:
            save(run, 2)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "tor')  # a row torn by a power cut
    run.rewind(2)
    assert [row["step"] for row in rows(run.path)] == [1, 2]
    assert [row["step"] for row in rows(run.path, "eval.jsonl")] == [1, 2]
    assert (run.path / "metrics.orphan-1.jsonl").read_text() == '{"step": 3}\n{"step": 4, "tor'
    assert rows(run.path, "eval.orphan-1.jsonl") == [{"step": 3, "problem": "a"}]
    assert sorted(path.name for path in run.path.glob("rollouts/*")) == [
        "step-1.jsonl.zst",
        "step-2.jsonl.zst",
    ]
    run.log({"step": 3})
    run.rewind(0)
    assert (run.path / "metrics.jsonl").read_bytes() == b""
    assert [row["step"] for row in rows(run.path, "metrics.orphan-2.jsonl")] == [1, 2, 3]
    assert run.latest() is None


def test_log_shorter_than_the_checkpoint_counts_on_is_refused(run: RunFolder) -> None:
    run.log({"step": 1})
    save(run, 1)
    os.truncate(run.path / "metrics.jsonl", 3)
    with pytest.raises(FolderError, match="rows were lost"):
        run.rewind(1)


# Checkpoints


def test_checkpoint_gives_back_what_was_saved_and_old_ones_go(run: RunFolder) -> None:
    assert run.latest() is None
    for step in (1, 2, 3):
        save(run, step)
    assert run.steps() == [2, 3]
    checkpoint = run.latest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.state, checkpoint.names()) == (3, {"step": 3}, ["policy"])
    assert torch.equal(checkpoint.tensors("policy")["weight"], torch.full((3,), 3.0))


def test_tied_tensors_are_saved_under_both_names(run: RunFolder) -> None:
    weight = torch.arange(4.0)
    run.save(1, {"policy": {"in": weight, "out": weight, "part": weight[1:]}}, None)
    checkpoint = run.latest()
    assert checkpoint is not None
    assert torch.equal(checkpoint.tensors("policy")["out"], weight)
    assert torch.equal(checkpoint.tensors("policy")["part"], weight[1:])


def of_another_step(checkpoint: Path) -> None:
    """As if another step's checkpoint had this one's name, with sums that are right."""
    table = checkpoints.manifest(checkpoint)
    (checkpoint / "manifest.json").unlink()
    (checkpoint / "state.json").write_text('{"step": 7}')
    checkpoints.write_manifest(checkpoint, table["step"], table["attempt"], table["logs"])


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda checkpoint: flip(checkpoint / "policy.safetensors"), "sha256 of policy.safetensors"),
        (
            lambda checkpoint: os.truncate(checkpoint / "policy.safetensors", 10),
            "policy.safetensors has 10 bytes",
        ),
        (lambda checkpoint: (checkpoint / "policy.safetensors").unlink(), "policy.safetensors is missing"),
        (lambda checkpoint: (checkpoint / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda checkpoint: os.truncate(checkpoint / "manifest.json", 10), "missing, torn or changed"),
        (lambda checkpoint: flip(checkpoint / "state.json"), "sha256 of state.json"),
        (of_another_step, "state.json is of step 7"),
    ],
)
def test_damaged_checkpoint_is_passed_over_and_named(run: RunFolder, harm: Any, why: str) -> None:
    save(run, 1)
    harm(save(run, 2))
    with pytest.warns(UserWarning, match=why):
        checkpoint = run.latest()
    assert checkpoint is not None and checkpoint.step == 1
    run.rewind(1)
    save(run, 2)
    assert run.steps() == [1, 2]
    harm(run.checkpoint_path(1))
    harm(run.checkpoint_path(2))
    with pytest.warns(UserWarning), pytest.raises(FolderError, match=r"every checkpoint is damaged.*delete"):
        run.latest()


def test_failed_save_leaves_the_last_checkpoint(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    save(run, 1)

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "sync_file", full)
    with pytest.raises(OSError, match="No space"):
        save(run, 2)
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["step-1"]
    assert run.latest() is not None


def test_full_disk_while_writing_tensors_is_told_as_such(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors
    import safetensors.torch

    def full(*_: Any) -> None:
        raise safetensors.SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space") as caught:
        save(run, 1)
    assert caught.value.errno == 28
    assert run.latest() is None


def test_kill_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path: Path) -> None:
    run_folder, chance, last = tmp_path / "run", random.Random(0), 0
    for _ in range(3):
        child = saving(run_folder)
        time.sleep(0.05 + 0.3 * chance.random())
        child.kill()
        child.join()
        with RunFolder.open(run_folder, CONFIG, allow_change=True) as run:
            checkpoint = run.latest()
            assert checkpoint is not None and checkpoint.step > last
            last = checkpoint.step
            assert torch.equal(checkpoint.tensors("policy")["weight"], torch.full((50_000,), float(last)))
            run.rewind(last)
            assert [row["step"] for row in rows(run_folder)] == list(range(1, last + 1))


# One writer


def test_folder_of_a_living_process_is_refused_by_name(tmp_path: Path) -> None:
    child = saving(tmp_path / "run")
    try:
        with pytest.raises(FolderError, match=f"in use by process {child.pid}"):
            RunFolder.open(tmp_path / "run", CONFIG)
    finally:
        child.kill()
        child.join()
    with RunFolder.open(tmp_path / "run", CONFIG, allow_change=True) as run:
        assert run.attempt == 2


def test_folder_is_refused_to_the_process_that_has_it(run: RunFolder) -> None:
    with pytest.raises(FolderError, match=f"in use by process {os.getpid()}"):
        RunFolder.open(run.path, CONFIG)
    run.close()
    RunFolder.open(run.path, CONFIG).close()


@pytest.mark.parametrize(
    "change",
    [{"pid": 2**22 + 1}, {"start": "0"}, {"boot": "another boot"}],
    ids=["pid", "reused pid", "boot"],
)
def test_lock_of_a_dead_owner_is_taken_over(tmp_path: Path, change: dict[str, Any]) -> None:
    dead = dataclasses.replace(Owner.me(), **change)
    (tmp_path / "lock").write_text(json.dumps(dataclasses.asdict(dead)))
    assert Lock(tmp_path).take() == dead
    assert Lock(tmp_path).owner() == Owner.me()
    Lock(tmp_path).release()
    assert Lock(tmp_path).owner() is None


def test_torn_lock_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"pid": 1, ')
    assert Lock(tmp_path).take() is None


def test_weights_without_a_header_are_named(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(FileError, match=r"policy\.safetensors: not a safetensors file .*restore"):
        checkpoints.read_tensors(path)


def test_process_has_one_start_time_and_a_dead_one_none() -> None:
    assert lock.start(os.getpid()) == lock.start(os.getpid()) != ""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert lock.start(child.pid)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert lock.start(child.pid) == ""  # a zombie
    child.wait()


# Resuming


def test_changed_configuration_is_refused_with_the_difference(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG) as run:
        run.log({"step": 1})
    other = dataclasses.replace(CONFIG, train=TrainConfig(steps=39))
    with pytest.raises(FolderError, match=r"train\.steps: 40 -> 39"):
        RunFolder.open(tmp_path, other)
    with RunFolder.open(tmp_path, other, allow_change=True) as run:
        assert run.provenance["attempts"][-1]["changes"] == ["train.steps: 40 -> 39"]
    RunFolder.open(tmp_path, other).close()


@pytest.mark.parametrize("trace", ["row", "checkpoint", "result"])
def test_settings_may_change_until_something_of_the_run_is_there(trace: str, tmp_path: Path) -> None:
    """An attempt that came to no step, which the base model's row is not, mixes with nothing; nor do its
    fingerprints stay behind."""
    with RunFolder.open(tmp_path, CONFIG) as run:
        run.fingerprint({"warm start": "aaa"})
        run.log({"step": 0})
        run.finish("crashed", "out of memory in the first step")
    other = dataclasses.replace(CONFIG, train=TrainConfig(steps=41))
    with RunFolder.open(tmp_path, other) as run:
        assert "changes" not in run.provenance["attempts"][-1] and run.provenance["fingerprints"] == {}
        assert "steps = 41" in (tmp_path / "run.toml").read_text()
        if trace == "row":
            run.log({"step": 1})
        elif trace == "checkpoint":
            save(run, 1)
        else:
            run.finish("diverged", "at once")
    with pytest.raises(FolderError, match=r"train\.steps: 41 -> 40"):
        RunFolder.open(tmp_path, CONFIG)


def test_a_diverged_run_that_is_run_again_with_other_settings_begins_anew(tmp_path: Path) -> None:
    """Its last checkpoint is of the run that diverged."""
    with RunFolder.open(tmp_path, CONFIG) as run:
        save(run, 2)
        run.finish("diverged", "at step 3")
    other = dataclasses.replace(CONFIG, train=TrainConfig(weight_decay=0.1))
    with pytest.raises(FolderError, match=r"weight_decay(.|\n)*moves the result to"):
        RunFolder.open(tmp_path, other)
    assert settled(tmp_path) and (tmp_path / "checkpoints" / "step-2").exists()
    with RunFolder.open(tmp_path, other, allow_change=True) as run:
        assert run.latest() is None


def test_a_result_never_stands_beside_settings_that_did_not_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunFolder.open(tmp_path, CONFIG) as run:
        run.finish("finished")
    write = files.write_atomic

    def killed(path: Path, content: bytes, durable: bool = True) -> None:
        write(path, content, durable)
        if path.name == "run.toml":
            raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_atomic", killed)
    other = dataclasses.replace(CONFIG, train=TrainConfig(weight_decay=0.1))
    with pytest.raises(KeyboardInterrupt):
        RunFolder.open(tmp_path, other, allow_change=True)
    assert "weight_decay = 0.1" in (tmp_path / "run.toml").read_text() and not settled(tmp_path)


def test_changed_code_is_refused_once_there_is_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        provenance,
        "code",
        lambda *_, **__: {"runs/train/execute.py": provenance.digest("runs/train/execute.py")},
    )
    monkeypatch.setattr(provenance, "digest", lambda name: "aaa")
    RunFolder.open(tmp_path, CONFIG).close()
    monkeypatch.setattr(provenance, "digest", lambda name: "bbb")
    with RunFolder.open(tmp_path, CONFIG) as run:  # Nothing is there that could be mixed.
        save(run, 1)
    monkeypatch.setattr(provenance, "digest", lambda name: "ccc")
    with pytest.raises(FolderError, match=r"runs/train/execute\.py: bbb -> ccc"):
        RunFolder.open(tmp_path, CONFIG)
    with RunFolder.open(tmp_path, CONFIG, allow_change=True) as run:
        assert run.provenance["attempts"][-1]["changes"] == ["runs/train/execute.py: bbb -> ccc"]


def test_pinned_value_may_not_change_behind_a_checkpoint(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, CONFIG) as run:
        run.fingerprint({"problems": "aaa", "model weights": "ddd"})
        run.fingerprint({"problems": "bbb", "model weights": "ddd"})
        save(run, 1)
        run.fingerprint({"problems": "bbb", "tokenizer": "fff"})  # what was not known before is no change
        with pytest.raises(FolderError, match="problems: bbb -> ccc\n  model weights: ddd -> eee"):
            run.fingerprint({"problems": "ccc", "model weights": "eee"})
        assert run.provenance["fingerprints"] == {
            "problems": "bbb",
            "model weights": "ddd",
            "tokenizer": "fff",
        }
        assert "changes" not in run.provenance["attempts"][-1]
    with RunFolder.open(tmp_path, CONFIG, allow_change=True) as run:
        run.fingerprint({"problems": "c" * 64})
        run.rewind(1)
    attempt = json.loads((tmp_path / "provenance.json").read_text())["attempts"][-1]
    assert attempt["changes"] == [f"problems: bbb -> {'c' * 12}"] and attempt["resumed_at"] == 1


def test_run_code_depends_on_algorithm_and_task_not_on_what_is_loaded() -> None:
    program = "import json; from grpobench.runs.runfolder.provenance import code; "
    program += "made = __import__('grpobench.algorithms.grpo').algorithms.grpo.GRPO(); "
    program += "print(json.dumps(code('runs/train/execute.py', made)))"
    hash_by_file = json.loads(subprocess.check_output([sys.executable, "-c", program], text=True))
    assert hash_by_file == provenance.code("runs/train/execute.py", GRPO())
    assert {
        "runs/train/trainer.py",
        "runs/models/roles.py",
        "algorithms/grpo.py",
        "algorithms/parts.py",
    } <= set(hash_by_file)
    assert not {
        "runs/cli.py",
        "runs/experiment/experiment.py",
        "algorithms/cora.py",
        "algorithms/__init__.py",
    } & set(hash_by_file)
    assert not [name for name in hash_by_file if name.startswith(("tasks/__init__", "analysis/", "tests/"))]
    # functions named in strings, and files run by name
    gym = provenance.code(
        "runs/train/execute.py", importlib.import_module("grpobench.tasks").TASKS["humaneval"]()
    )
    assert {"tasks/humaneval.py", "tasks/sandbox/choose.py", "tasks/sandbox/process.py"} <= set(gym)


def test_code_of_a_class_from_elsewhere_counts() -> None:
    hash_by_file = provenance.code("runs/train/execute.py", stand_ins.Plain())
    assert hash_by_file["elsewhere: helpers/stand_ins.py"] == provenance.digest(stand_ins.__file__)


def test_threads_of_the_first_attempt_hold_for_all(tmp_path: Path) -> None:
    RunFolder.open(tmp_path, CONFIG, threads=3).close()
    with RunFolder.open(tmp_path, CONFIG, threads=8) as run:
        assert (run.threads, run.attempt) == (3, 2)


def test_finished_run_keeps_the_final_weights_alone(run: RunFolder) -> None:
    save(run, 1)
    assert status(run.path) == {"state": "running", "why": "", "step": 1, "attempt": 1}
    assert not settled(run.path)
    run.keep_final("policy", {"weight": torch.ones(2)})
    run.finish("finished")
    assert settled(run.path)
    assert not (run.path / "checkpoints").exists()
    assert sorted(path.name for path in (run.path / "final").iterdir()) == ["policy.safetensors"]


def test_run_marked_from_outside_keeps_its_step(run: RunFolder) -> None:
    save(run, 4)
    folder.mark(run.path, "crashed", "killed")
    assert status(run.path) == {"state": "crashed", "why": "killed", "step": 4, "attempt": 1}


def test_another_version_of_an_engine_is_a_difference() -> None:
    attempt = {"versions": {"vllm": "0.30.0"}, "code": {}}
    assert provenance.code_differences(attempt, {"versions": {"vllm": "0.31.0"}, "code": {}}) == [
        "vllm: 0.30.0 -> 0.31.0"
    ]
    assert not provenance.code_differences(attempt, attempt)


def test_provenance_names_versions_and_code(run: RunFolder) -> None:
    run.note(sandbox="monty")
    attempt = json.loads((run.path / "provenance.json").read_text())["attempts"][0]
    assert attempt["sandbox"] == "monty"
    assert attempt["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert (
        "runs/runfolder/folder.py" in attempt["code"] and attempt["id"] != provenance.attempt(1, 1, {})["id"]
    )
