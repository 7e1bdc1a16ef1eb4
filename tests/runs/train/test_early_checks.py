"""The first steps of a run: one that can come to nothing is stopped with its cause, and no other is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.stops import Told
from helpers.toys import Letters
from helpers.whole_runs import QUIET, configure, rows, run

from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.negative_grpo import NegativeGRPO
from grpobench.algorithms.ppo import PPO
from grpobench.algorithms.returned import ReturnError
from grpobench.runs.experiment import worker
from grpobench.runs.runfolder.logs import status
from grpobench.runs.settings.checks import ChecksConfig
from grpobench.runs.settings.config import (
    CheckpointConfig,
    RewardConfig,
    RunConfig,
    SamplerConfig,
    TrainConfig,
)
from grpobench.runs.tools.files import read_json
from grpobench.runs.train.early_checks import CUT, Least, NothingToLearn, Trouble, still, trouble
from grpobench.runs.train.execute import execute
from grpobench.runs.train.trial import attempt
from grpobench.tasks.task import Verdict

STEPS = 6
WIDE = TrainConfig(steps=STEPS, prompts_per_step=4, group_size=9, learning_rate={"policy": 1e-3})
"""36 completions a step."""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal rewards are told of after 4 steps of 36 completions, not after 16 of 125."""
    monkeypatch.setattr("grpobench.runs.train.early_checks.SILENT", Least(4, 144))


def wide(policy: str, algorithm: Any = None, **sections: Any) -> RunConfig:
    defaults = {"train": WIDE, "evaluate": QUIET, "checks": ChecksConfig(grader="off")}
    return configure(
        policy, algorithm, **{**defaults, "checkpoint": CheckpointConfig(every=0, final=False)} | sections
    )


def graded(monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> None:
    """Every completion gets this verdict."""
    monkeypatch.setattr(Letters, "grade", lambda self, text: verdict)


def fails(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, Verdict({"correct": 0.0, "short": 0.0, "consistent": 0.0}, None))


# What is stopped


def test_equal_rewards_and_nothing_right_stop_run_once_enough_was_seen(
    soon: None, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch)
    with pytest.raises(NothingToLearn) as raised:
        run(wide(policy), tmp_path)
    assert [row["step"] for row in rows(tmp_path)] == [0, 1, 2, 3, 4]
    text = str(raised.value)
    assert "first 4 steps of the policy: 144 completions" in text and "the reward 0" in text
    assert "none was right" in text and "model.warm_start" in text
    assert 'checks.start = "warn"' in text
    assert re.search(r"A completion, to problem train-\d+: '", text)


def test_a_limit_that_cuts_everything_stops_a_run_after_three_steps(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch)
    config = wide(policy, sampler=SamplerConfig(max_completion_tokens=1))
    monkeypatch.setattr("grpobench.runs.sample.draws.WrittenTokens.rollouts", unfinished())
    with pytest.raises(NothingToLearn, match="every one of them cut by the limit of 1 tokens") as raised:
        run(config, tmp_path)
    assert len(rows(tmp_path)) == 1 + CUT.steps
    assert "sampler.max_completion_tokens" in str(raised.value)


def unfinished() -> Any:
    """`Written.rollouts` of a policy that never ends its completions."""
    from grpobench.runs.sample.draws import WrittenTokens

    plain = WrittenTokens.rollouts

    def rollouts(self: Any, *args: Any) -> Any:
        return [dataclasses.replace(rollout, stopped=False) for rollout in plain(self, *args)]

    return rollouts


def test_a_run_of_which_nothing_is_graded_stops(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graded(monkeypatch, Verdict({}, None, "infra_error"))
    with pytest.raises(NothingToLearn, match=r"none could be graded.*grpobench tasks check letters"):
        run(wide(policy), tmp_path)
    assert len(rows(tmp_path)) == 1 + 3


def test_a_run_whose_environment_fails_in_every_episode_stops(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {"correct": 0.0, "short": 0.0, "consistent": 0.0}
    graded(monkeypatch, Verdict(scores, None, "crash", fault="Guess.step raised"))
    monkeypatch.setattr(Letters, "replays", True)
    with pytest.raises(NothingToLearn, match=r"environment failed in every episode: `fault` in the run's"):
        run(wide(policy), tmp_path)
    assert len(rows(tmp_path)) == 1 + 3


def test_steps_that_warm_up_a_critic_do_not_count(
    soon: None, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its value of nought is right where every reward is nought: there is no advantage."""
    fails(monkeypatch)
    train = dataclasses.replace(WIDE, steps=STEPS + 2)
    with pytest.raises(NothingToLearn, match="first 4 steps of the policy"):
        run(wide(policy, PPO(critic="shared", critic_warmup=2), train=train), tmp_path)
    assert len(rows(tmp_path)) == 1 + 2 + 4


def test_the_run_is_refused_and_begins_anew_with_other_settings(
    soon: None, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path = wide(policy), tmp_path / "run"
    with monkeypatch.context() as broken:
        fails(broken)
        ended = worker.run(worker.RunJob(config, path, False), execute, Told(), 1, lambda threads: None)
    assert ended.fate == "refused" and not ended.machine
    assert status(path)["state"] == "crashed" and status(path)["why"] == ended.why
    mended = dataclasses.replace(config, train=dataclasses.replace(WIDE, steps=2, group_size=4))
    ended = worker.run(worker.RunJob(mended, path, False), execute, Told(), 1, lambda threads: None)
    assert ended.fate == "finished"


# What is not


def test_an_algorithm_that_learns_from_failures_goes_on(
    soon: None, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch)
    run_rows = run(wide(policy, NegativeGRPO()), tmp_path)
    assert len(run_rows) == 1 + STEPS
    assert all(row["reward/std"] == 0 and row["grad_norm/policy"] > 0.01 for row in run_rows[1:])


def test_rewards_that_are_constant_by_design_go_on(soon: None, policy: str, tmp_path: Path) -> None:
    run_rows = run(wide(policy, reward=RewardConfig("constant")), tmp_path)
    assert len(run_rows) == 1 + STEPS
    assert all(row["reward/std"] == 0 for row in run_rows[1:])


@pytest.mark.parametrize(("start", "warns"), [("warn", True), ("off", False)])
def test_a_recipe_may_go_on_all_the_same(
    start: Any, warns: bool, soon: None, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch)
    config = wide(policy, checks=ChecksConfig(start, "off"))
    if warns:
        with pytest.warns(UserWarning, match="nothing was learned in the first 4 steps") as warned:
            run_rows = run(config, tmp_path)
        assert len([warning for warning in warned if "nothing was learned" in str(warning.message)]) == 1
    else:
        run_rows = run(config, tmp_path)
    assert len(run_rows) == 1 + STEPS and status(tmp_path)["state"] == "finished"
    attempt = read_json(tmp_path / "provenance.json")["attempts"][-1]
    assert ("none was right" in attempt.get("start", "")) == warns


def test_a_policy_that_solves_everything_is_only_told_of(
    soon: None, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control whose base is right from the start is a run like any other."""
    graded(monkeypatch, Verdict({"correct": 1.0, "short": 0.0, "consistent": 0.0}, None))
    with pytest.warns(UserWarning, match="up to 100% of a step were right"):
        run_rows = run(wide(policy), tmp_path)
    assert len(run_rows) == 1 + STEPS


# The rule on rows


def still_rows(count: int, **values: float) -> list[dict[str, Any]]:
    row: Mapping[str, float] = {
        "groups/sampled": 4.0,
        "reward/mean": 0.0,
        "reward/std": 0.0,
        "score/correct": 0.0,
        "length/truncated": 0.2,
        "length/mean": 5.0,
        "grad_norm/policy": 0.0,
        "grad/nonfinite": 0.0,
    }
    return [{"step": 0}, *({"step": step, **row, **values} for step in range(1, count + 1))]


def find_trouble(rows: list[dict[str, Any]], algorithm: Any = None) -> Trouble | None:
    """What is found with 32 completions of each of 4 problems a step."""
    config = wide("nano", algorithm or GRPO(), train=dataclasses.replace(WIDE, group_size=32))
    return trouble(rows, config, 6)


def test_one_step_with_a_gradient_is_enough() -> None:
    silent = still_rows(16)
    assert find_trouble(silent) is not None
    for step in (1, 9, 16):
        moved = [row | ({"grad_norm/policy": 0.01} if row["step"] == step else {}) for row in silent]
        assert find_trouble(moved) is None


def test_nothing_is_said_before_enough_was_seen() -> None:
    assert find_trouble(still_rows(15)) is None, "15 steps"
    assert find_trouble(still_rows(16, **{"groups/sampled": 3.0})) is None, "1,536 completions"
    assert find_trouble(still_rows(2, **{"length/truncated": 1.0})) is None, "2 steps"
    assert find_trouble(still_rows(3, **{"length/truncated": 1.0})) is not None
    assert find_trouble(still_rows(3, **{"length/truncated": 0.99})) is None, "one that ended"


@pytest.mark.parametrize(
    "other", [{"reward/std": 0.1}, {"reward/mean": 0.5}, {"grad/nonfinite": 1.0}, {"reward/mean": None}]
)
def test_rewards_that_differ_anywhere_are_not_equal(other: dict[str, Any]) -> None:
    silent = still_rows(16)
    silent[7] |= other
    assert find_trouble(silent) is None


def test_base_that_solves_such_problems_points_at_training_answers() -> None:
    silent = still_rows(16)
    assert "too hard" in str(find_trouble(silent))
    silent[0]["eval/validation/sampled/correct"] = 0.4
    assert "right on up to 40% of the validation problems" in str(find_trouble(silent))


def test_step_without_update_moves_nothing_and_nonfinite_step_may() -> None:
    assert still({"step": 1, "grad_norm/policy": None}) and still({"step": 1})
    assert not still({"step": 1, "grad/nonfinite": 1.0}) and not still({"step": 1, "grad_norm/policy": 1e-5})


def test_a_reward_that_never_applies_is_the_first_warning_and_fails_the_trial(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpobench.runs.reward.grader.applies", lambda measured, weights: False)
    config = wide(policy)
    with (
        pytest.warns(UserWarning, match="gave None for all of 36 completions"),
        pytest.raises(NothingToLearn, match="gave None for all of 108 completions"),
    ):
        run(config, tmp_path / "run")
    with pytest.raises(ReturnError, match="gave None for all of 8 completions"):
        attempt(config, tmp_path)
