"""The initial policy's completions of the training problems: what they cost, what they are, and that a run
which stops goes on from them."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from helpers.stops import Told, carry, stopped
from helpers.toys import Letters
from helpers.whole_runs import QUIET, configure, rows, run, timeless

from grpobench.algorithms.a_star_po import AStarPO
from grpobench.algorithms.modifiers import Modifiers
from grpobench.runs.models.flops import FORWARD
from grpobench.runs.settings.config import EvaluateConfig, RewardConfig, RunConfig, TrainConfig
from grpobench.runs.settings.rules import incompatible
from grpobench.runs.train.parts import RunParts, build
from grpobench.runs.train.prepare import base_rollouts
from grpobench.tasks.data.tables import DataError

SAMPLES = 3
SINGLE = TrainConfig(steps=3, prompts_per_step=4, group_size=1, learning_rate={"policy": 1e-3})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRPOBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(base_rollouts, "AT_ONCE", 5)  # of 12 problems: three files
    monkeypatch.setattr("grpobench.runs.train.base_evaluation.Base.shares", lambda self: False)
    return tmp_path / "cache" / "base"


def config_of(policy: str, **sections: object) -> RunConfig:
    algorithm = AStarPO(value_samples=SAMPLES)
    return configure(policy, algorithm, **{"train": SINGLE, "evaluate": QUIET, **sections})


def files(cache: Path) -> dict[str, bytes]:
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.glob("*/*.safetensors")}


def test_rollouts_before_training_are_counted_in_the_costs_and_kept(
    policy: str, cache: Path, tmp_path: Path
) -> None:
    config = config_of(policy)
    zero, first, *_ = run(config, tmp_path / "one")
    (attempt,) = json.loads((tmp_path / "one" / "provenance.json").read_text())["attempts"]
    base_record = attempt["base_rollouts"]
    assert (base_record["problems"], base_record["each"]) == (12, SAMPLES)
    assert zero["time/study"] == base_record["seconds"] > 0
    parts = build(config)
    assert parts.source.generated == base_record["generated_tokens"] > 12 * SAMPLES
    # One completion for each of four problems, and what came before.
    step = first["cost/generated_tokens"] - base_record["generated_tokens"]
    assert 0 < step <= 4 * Letters.max_completion_tokens
    # Each prompt once, and every completion: more than the completions alone.
    assert parts.source.sampler_tokens > base_record["generated_tokens"]
    spent = FORWARD * parts.models.flops.weights["policy"] * parts.source.sampler_tokens
    assert first["cost/flops"] > spent
    made = files(cache)
    assert len(made) == 3
    again = run(config, tmp_path / "two")
    assert [*map(timeless, again)] == [*map(timeless, rows(tmp_path / "one"))]
    assert again[0]["time/study"] == zero["time/study"], "what it took when it was sampled"
    assert files(cache) == made


def build_with_rewards(config: RunConfig) -> tuple[RunParts, torch.Tensor]:
    """The parts of a run, and the rewards of the initial policy that they were built with."""
    rewards = []

    def look(*arguments: object) -> base_rollouts.BaseRollouts:
        answered = base_rollouts.base_rollouts(*arguments)  # type: ignore[arg-type]
        rewards.append(answered.reward)
        return answered

    return build(config, ask=look), *rewards


def test_values_are_made_of_the_rewards_of_the_initial_policy(policy: str, cache: Path) -> None:
    parts, reward = build_with_rewards(config_of(policy))
    assert reward.shape == (12, SAMPLES) and reward.std() > 0
    expected = 0.5 * (torch.logsumexp(reward.double() / 0.5, -1) - math.log(SAMPLES))
    assert [parts.curriculum.expected(i) for i in range(12)] == pytest.approx(expected.tolist())  # type: ignore[attr-defined]
    # Other rewards, of the same completions
    made = files(cache)
    _, flipped = build_with_rewards(config_of(policy, reward=RewardConfig(kind="flipped")))
    assert torch.equal(flipped, 1 - reward) and files(cache) == made
    _, other = build_with_rewards(dataclasses.replace(config_of(policy), seed=4))
    assert not torch.equal(other, reward) and len(files(cache)) == 6


def test_the_value_reaches_the_rows_of_its_problem(policy: str, tmp_path: Path) -> None:
    run_rows = run(config_of(policy), tmp_path)
    parts = build(config_of(policy))
    drawn = parts.curriculum.draw(1, 0)
    values = [parts.curriculum.expected(i) for i in drawn]  # type: ignore[attr-defined]
    assert run_rows[1]["optimal/value"] == pytest.approx(sum(values) / 4)
    assert run_rows[1]["optimal/advantage"] == pytest.approx(run_rows[1]["reward/mean"] - sum(values) / 4)
    assert run_rows[1]["optimal/unknown"] == 0 and run_rows[1]["trained/share"] == 1


def test_a_run_that_is_stopped_meanwhile_goes_on_and_is_the_undisturbed_one(
    policy: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpobench.runs.train.stopping.ASK", 0.0)
    config = config_of(policy, evaluate=EvaluateConfig(every=0, problems=2, samples=1, test_problems=0))
    meanwhile = Told(0, "answering the problems before training 5/12", 1)
    assert stopped(config, tmp_path / "parts", meanwhile) == []
    cached_files = files(cache)
    assert 1 <= len(cached_files) <= 2
    assert stopped(config, tmp_path / "parts", Told(1, "sampling", 1)) == [1]
    outcome = carry(config, tmp_path / "parts")
    assert cached_files.items() <= files(cache).items()
    (cache.parent / "base").rename(cache.parent / "first")
    assert carry(config, tmp_path / "whole") == outcome


def test_a_damaged_file_is_sampled_anew(policy: str, cache: Path) -> None:
    curriculum_state = build(config_of(policy)).curriculum.state()
    made = files(cache)
    path = next(cache.glob("*/*.safetensors"))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.warns(UserWarning, match="sampled anew"):
        assert build(config_of(policy)).curriculum.state() == curriculum_state
    assert [len(content) for content in files(cache).values()] == [len(content) for content in made.values()]


def test_completions_that_cannot_be_graded_have_no_value(policy: str, tmp_path: Path) -> None:
    parts, reward = build_with_rewards(config_of(policy, task=Letters(faulty=True)))
    assert 0 < reward.isnan().sum() < reward.numel(), "those that begin below P"
    unknown = [math.isnan(parts.curriculum.expected(i)) for i in range(12)]  # type: ignore[attr-defined]
    assert unknown == reward.isnan().all(-1).tolist() and any(unknown)
    run_rows = run(config_of(policy, task=Letters(faulty=True)), tmp_path)
    assert all(row["optimal/value"] >= 0 for row in run_rows[1:] if row["trained/share"] > 0)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"modify": Modifiers(schedule="ads")}, r"modify\.schedule = \"uniform\""),
        ({"modify": Modifiers(overlong_buffer=2)}, r"modify\.overlong_buffer = 0"),
        ({"train": dataclasses.replace(SINGLE, curriculum="mine:Mine")}, r"train\.curriculum chooses"),
    ],
)
def test_what_would_lose_or_falsify_the_values_is_refused(
    sections: dict[str, object], message: str, policy: str
) -> None:
    import re

    faults = incompatible(config_of(policy, **sections))
    assert any(re.search(message, fault) for fault in faults), faults


def test_too_few_solved_problems_stop_the_run_with_the_remedy(policy: str) -> None:
    config = config_of(policy, reward=RewardConfig(scale=0.0))
    unsolved = dataclasses.replace(config, algorithm=AStarPO(value_samples=2, skip_unsolved=True))
    with pytest.raises(
        DataError, match=r"a_star_po: skip_unsolved: leaves 0 problems, and .* set it to false"
    ):
        build(unsolved)
