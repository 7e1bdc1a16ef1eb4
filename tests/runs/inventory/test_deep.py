"""`grpobench doctor --deep`: what is sound is called good, what is broken is found, and nothing is left."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import Letters
from helpers.whole_runs import configure

from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.ppo import PPO
from grpobench.runs import cli
from grpobench.runs.calibration.faults import Sums
from grpobench.runs.inventory.deep import agreement, grading, result, resuming
from grpobench.runs.inventory.deep.agreement import small
from grpobench.runs.inventory.deep.result import CheckInput, DeepResult
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.settings.config import RunConfig, SamplerConfig
from grpobench.runs.train.trial import first_update
from grpobench.tasks import TASKS
from grpobench.tasks.task import Verdict


@pytest.fixture(autouse=True)
def order() -> Any:
    """Runs leave torch with deterministic operators."""
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before)


def input_of(config: RunConfig, folder: Path) -> CheckInput:
    return CheckInput([config], folder / "results", folder)


def verdict(look: Any, config: RunConfig, folder: Path) -> tuple[str, str]:
    finding = look(input_of(config, folder))
    return finding[0], finding[1]


# The run that is tried


def test_trial_has_gradient_for_any_policy_and_ends_after_first_update() -> None:
    config = small(configure("nano", PPO(critic_warmup=4)))
    assert first_update(config) == 5 and config.train.steps == 7
    assert config.reward.kind == "random" and config.model.warm_start == 0
    assert small(config, 0.0).train.learning_rate == dict.fromkeys(config.train.learning_rate, 0.0)
    assert small(configure("nano"), full_size=True).train.group_size == configure("nano").train.group_size


# Sampler and trainer


def test_on_unmoved_weights_sampler_and_trainer_agree(policy: str, tmp_path: Path) -> None:
    state, message = verdict(agreement.gap, configure(policy), tmp_path)
    assert state == "good" and "every ratio is" in message


def test_a_sampler_that_reads_something_else_is_found(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = agreement.pack_groups

    def skewed(*args: Any, **settings: Any) -> Any:
        batch = plain(*args, **settings)
        return dataclasses.replace(batch, sampler_logp=batch.sampler_logp - 0.01)

    monkeypatch.setattr(agreement, "pack_groups", skewed)
    state, message = verdict(agreement.gap, configure(policy), tmp_path)
    assert state == "wrong" and "0.01 nats per token" in message


@pytest.mark.parametrize("lag", [0, 3])
def test_sampler_checkpoint_and_resume_are_sound(lag: int, policy: str, tmp_path: Path) -> None:
    """A sampler that lags on purpose is no fault."""
    config = configure(policy, sampler=SamplerConfig(lag=lag))
    for look in (agreement.gap, agreement.synchronized, resuming.round_trip, resuming.resumed):
        state, message = verdict(look, config, tmp_path)
        assert state == "good", message


def test_a_sampler_that_keeps_old_weights_is_found(policy: str, tmp_path: Path) -> None:
    """It says nothing, and bounds no gap."""
    stale = SamplerConfig(kind="grpobench.runs.calibration.faults:stale")
    state, message = verdict(agreement.synchronized, configure(policy, sampler=stale), tmp_path)
    assert state == "wrong" and "it has kept these" in message


def test_recorded_rollouts_have_no_sampler_to_compare(policy: str, tmp_path: Path) -> None:
    config = configure(policy, DPO(), sampler=SamplerConfig(kind="replay"))
    for look in (agreement.gap, agreement.synchronized):
        assert verdict(look, config, tmp_path) == ("good", agreement.RECORDED)


# The device


def test_a_step_is_made_and_repeated_to_the_bit(policy: str, tmp_path: Path) -> None:
    state, message = verdict(resuming.step, configure(policy), tmp_path)
    assert state == "good" and "gradient norm" in message and "GiB" in message
    assert verdict(resuming.repeated, configure(policy), tmp_path)[0] == "good"


def test_a_step_that_differs_from_itself_is_found(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, steps = resuming.up_to_update, []

    def moved(made: Any) -> dict[str, float]:
        row = plain(made)
        steps.append(made)
        if len(steps) == 2:
            with torch.no_grad():
                weight = next(made.models.language.parameters())
                weight[-1, -1] = weight[-1, -1].nextafter(torch.tensor(torch.inf))
        return row

    monkeypatch.setattr(resuming, "up_to_update", moved)
    state, message = verdict(resuming.repeated, configure(policy), tmp_path)
    assert state == "wrong" and "policy model.embed_tokens.weight" in message


# What is kept


def test_storage_is_sound(policy: str, tmp_path: Path) -> None:
    state, message = verdict(resuming.storage, configure(policy), tmp_path)
    assert state == "good", message


def test_a_lock_that_does_not_hold_is_found(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming.fcntl, "flock", lambda file, how: None)
    state, message = verdict(resuming.storage, configure(policy), tmp_path)
    assert state == "wrong" and "does not hold against another process" in message


def test_a_checkpoint_of_which_a_weight_is_another_is_found(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpobench.runs.runfolder import checkpoints

    plain = checkpoints.write_tensors

    def flipped(path: Path, tensors: Any) -> None:
        name = next(iter(tensors))
        plain(path, {**tensors, name: tensors[name] + 1e-3})

    monkeypatch.setattr(checkpoints, "write_tensors", flipped)
    state, message = verdict(resuming.round_trip, configure(policy), tmp_path)
    assert state == "wrong" and "came back from the disk with different bytes" in message


def test_a_resume_that_forgets_the_optimizer_is_found(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpobench.runs.models.optimizer import Optimizer

    monkeypatch.setattr(Optimizer, "restore", lambda *_: None)
    assert verdict(resuming.resumed, configure(policy), tmp_path)[0] == "wrong"


# Graders and sandboxes


def test_graders_of_the_suite_are_sound(policy: str, tmp_path: Path) -> None:
    for name in ("arithmetic", "nanobias"):
        finding = grading.grader(TASKS[name](), input_of(configure(policy), tmp_path))
        assert finding[0] == "good" and f"{grading.PROBLEMS_PER_TASK} reference" in finding[1], finding


def test_answers_of_another_column_are_found(policy: str, tmp_path: Path) -> None:
    finding = grading.grader(Sums(misread=True), input_of(configure(policy), tmp_path))
    assert (finding[0], finding[3]) == ("wrong", "yours") and "graded wrongly" in finding[1]


def test_a_verifier_that_raises_or_takes_anything_is_found(policy: str, tmp_path: Path) -> None:
    class Raising(Letters):
        def grade(self, text: str) -> Verdict:
            return Verdict({"correct": float(text.encode() == b"AAA")}, text)

    class Lax(Letters):
        def grade(self, text: str) -> Verdict:
            return Verdict({"correct": float(bool(text))}, text)

    check_input = input_of(configure(policy), tmp_path)
    assert "the verifier raised UnicodeEncodeError" in grading.grader(Raising(), check_input)[1]
    assert "accepts text that is not an answer" in grading.grader(Lax(), check_input)[1]


def test_a_sandbox_ends_what_does_not_end(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "SECONDS", 0.3)
    config = configure(policy, task=TASKS["nanocode"]())
    state, message = verdict(grading.sandbox, config, tmp_path)
    assert state == "good" and message.startswith("monty ran a program and ended one without end after")
    assert "no task" in verdict(grading.sandbox, configure(policy), tmp_path)[1]


def test_a_sandbox_that_runs_on_is_found(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives up on the program, and leaves its process to itself."""
    import subprocess

    from grpobench.tasks.sandbox.monty import MontySandbox
    from grpobench.tasks.sandbox.protocol import Execution

    left: list[subprocess.Popen[bytes]] = []

    def forgetful(self: Any, program: str, calls: Any) -> Execution:
        if program != grading.LOOP:
            return plain(self, program, calls)
        left.append(subprocess.Popen(["sleep", "60"]))
        return Execution("timeout")

    plain = MontySandbox.run
    monkeypatch.setattr(MontySandbox, "run", forgetful)
    monkeypatch.setattr(grading, "GONE", 0.2)
    try:
        state, message = verdict(grading.sandbox, configure(policy, task=TASKS["nanocode"]()), tmp_path)
    finally:
        for process in left:
            process.kill()
            process.wait()
    assert state == "wrong" and f"1 processes of monty are left: [{left[0].pid}]" in message


# Verdicts


def test_whatever_a_check_raises_is_a_verdict(policy: str, tmp_path: Path) -> None:
    errors = [
        ModelError("no weights"),
        OSError(errno.EIO, "Input/output error"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        ZeroDivisionError("division by zero"),
    ]

    def raising(error: Exception) -> Any:
        def look(_: CheckInput) -> Any:
            raise error

        return look

    messages: list[str] = []
    made = [(type(error).__name__, raising(error)) for error in errors]
    results = [*result.carry_out(made, input_of(configure(policy), tmp_path), messages.append)]
    assert [check_result.verdict for check_result in results] == [
        "wrong",
        "wrong",
        "wrong",
        "could not be checked",
    ]
    assert [check_result.whose for check_result in results] == ["yours", *["the machine's"] * 3]
    assert "train.micro_batch_tokens" in results[2].remedy
    assert messages[0] == "ModelError, check 1 of 4"


def test_the_exit_code_says_whose_it_is_to_mend() -> None:
    good = DeepResult("a", "good", "")
    mine, theirs = DeepResult("b", "wrong", ""), DeepResult("c", "wrong", "", whose="the machine's")
    absent = DeepResult("d", "could not be checked", "")
    codes = [result.code(results) for results in ([good], [good, mine], [good, absent], [mine, theirs])]
    assert codes == [0, 2, 2, 70]


@pytest.mark.slow
def test_the_command_says_every_verdict_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    assert cli.main(["doctor", "--deep", "--json", "--out", str(out)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["verdict"] for row in rows} == {"good"} and len(rows) >= 10
    assert not [*tmp_path.iterdir()]
    assert cli.main(["doctor", "--deep", "--out", str(out), "--set", "model.name=nowhere"]) == 2
    assert "unknown model 'nowhere'" in capsys.readouterr().err
