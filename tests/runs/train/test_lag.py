"""`sampler.lag`: rollouts come from the weights of so many updates ago, everything else from today's, and an
interrupted run goes on with the same weights of both."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.stops import Told, carry, stopped
from helpers.toys import Copy, trainer_for
from helpers.whole_runs import configure, rows, run, training, weights

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.ngrpo import NGRPO
from grpobench.algorithms.ppo import PPO
from grpobench.algorithms.remax import ReMax
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.runfolder import checkpoints
from grpobench.runs.sample.engines.sampler import EngineSampler
from grpobench.runs.sample.rollouts import Group, pack_groups
from grpobench.runs.settings.config import (
    CheckpointConfig,
    RunConfig,
    SamplerConfig,
    TrainConfig,
)
from grpobench.runs.settings.rules import incompatible
from grpobench.runs.train import parts, stopping
from grpobench.runs.train.trainer import Trainer

UPDATES = 2
"""Updates of a step in these runs."""
Weights = list[torch.Tensor]


def lagged(policy: str, lag: int, algorithm: Algorithm[Any] | None = None, **sampler: Any) -> RunConfig:
    return configure(
        policy,
        algorithm,
        sampler=SamplerConfig(lag=lag, **sampler),
        train=TrainConfig(
            steps=4,
            prompts_per_step=4,
            group_size=4,
            num_minibatches=UPDATES,
            learning_rate={"policy": 1e-2},
        ),
    )


class Recorded:
    """A trainer whose policy is written down before each of its updates."""

    def __init__(self, config: RunConfig) -> None:
        self.trainer: Trainer = trainer_for(config)
        self.before: list[Weights] = []
        models = self.trainer.models
        step = models.step

        def recording(roles: Any, scale: float) -> dict[str, float]:
            norms = step(roles, scale)
            if "policy" in norms or "grad_norm/policy" in norms:
                self.before.append(policy_of(self.trainer))
            return norms

        self.before.append(policy_of(self.trainer))
        models.step = recording  # type: ignore[method-assign]


def policy_of(trainer: Trainer) -> Weights:
    return [p.detach().clone() for p in trainer.models.language.parameters()]


def put(trainer: Trainer, values: Weights) -> None:
    with torch.no_grad():
        for p, value in zip(trainer.models.language.parameters(), values, strict=True):
            p.copy_(value)


def same(first_weights: Weights, other: Weights) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first_weights, other, strict=True))


def texts(groups: list[Group]) -> list[Any]:
    """What was sampled, with its log-probabilities and entropies, to the bit."""
    return [
        (r.completion, r.sampler_logp.tobytes(), None if r.entropy is None else r.entropy.tobytes())
        for group in groups
        for r in group.rollouts
    ]


# Which weights sample


@pytest.mark.parametrize(
    ("algorithm", "lag"),
    [
        (GRPO(), 1),
        (GRPO(), 3),
        (GRPO(), 99),
        (PPO(), 1),
        (PPO(critic="shared"), 1),
        (NGRPO(), 1),
        (ReMax(), 1),
    ],
    ids=lambda part: str(part)[:24],
)
def test_rollouts_are_those_of_the_weights_of_so_many_updates_ago(
    policy: str, algorithm: Algorithm[Any], lag: int
) -> None:
    """A second, current sampler with the recorded weights draws the same tokens with the same bits. Also with
    other roles, with mixtures of embeddings and with greedy answers."""
    recorded = Recorded(lagged(policy, lag, algorithm))
    trainer, fresh = recorded.trainer, trainer_for(lagged(policy, 0, algorithm))
    for step in range(1, 5):
        updates = len(recorded.before) - 1
        row = trainer.step(step)
        assert row["sampler/lag"] == min(lag, updates)
        put(fresh, recorded.before[max(0, updates - lag)])
        groups = fresh.source.gather(step, 0, fresh.curriculum.draw(step, 0))
        assert texts(list(trainer.groups)) == texts(groups)
        moved = row["gap/mean"] > 1e-3
        assert moved or not updates or algorithm != GRPO(), (
            "the weights have moved: current ones would differ"
        )
    assert len(recorded.before) == 1 + 4 * UPDATES if algorithm == GRPO() else len(recorded.before) > 1
    assert same(policy_of(trainer), recorded.before[-1])


def test_without_a_lag_nothing_is_kept_or_logged(policy: str) -> None:
    trainer = trainer_for(lagged(policy, 0))
    assert "sampler/lag" not in trainer.step(1)
    assert not trainer.models.past.staleness and trainer.models.state().keys() == {"policy"}


def test_evaluations_and_final_weights_are_of_the_current_policy(policy: str, tmp_path: Path) -> None:
    """With no update left out: the answers after the last step are those of the weights that are kept."""
    config = lagged(policy, 3)
    run(config, tmp_path / "run")
    last = [row for row in rows(tmp_path / "run", "eval.jsonl") if row["step"] == 4]
    fresh = trainer_for(lagged(policy, 0))
    final = weights(tmp_path / "run" / "final" / "policy.safetensors")
    parameters = fresh.models.named_parameters("policy")
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(final[name])
    evaluated = [
        {name: value for name, value in row.items() if name != "completion"}  # kept in a file of its own
        for split in ("validation", "test")
        for row in fresh.parts.evaluator.evaluate(4, split)[0]
    ]
    assert last == evaluated and len(last) == 3 * 3 + 2 * 3
    base = [row | {"step": 4} for row in rows(tmp_path / "run", "eval.jsonl") if row["step"] == 0]
    assert base != evaluated, "the policy has learned, so older weights would answer differently"


# What is trained with


def ratios(policy: str, **sampler: Any) -> list[dict[str, float]]:
    config = lagged(policy, 2, GRPO(), **sampler)
    # One update a step: all of its ratios are measured before it.
    train = dataclasses.replace(config.train, num_minibatches=1)
    trainer = trainer_for(dataclasses.replace(config, train=train))
    return [trainer.step(step) for step in (1, 2, 3)]


def test_old_probabilities_are_the_current_policys_unless_the_sampler_is_asked(policy: str) -> None:
    for row in ratios(policy, old_logp="auto"):
        assert row["trained/ratio_max"] == pytest.approx(1, abs=1e-4)
        assert row["trained/ratio_min"] == pytest.approx(1, abs=1e-4)
    stale = ratios(policy, old_logp="sampler")
    assert stale[0]["trained/ratio_max"] == pytest.approx(1, abs=1e-4)
    assert stale[2]["trained/ratio_max"] > 1.01
    assert stale[2]["trained/ratio_min"] < 0.99


def test_corrections_weigh_rollouts_of_earlier_weights(policy: str) -> None:
    run_rows = ratios(policy, correction="tis", correction_cap=math.inf)
    assert run_rows[0]["correction/weight_mean"] == pytest.approx(1, abs=1e-5)
    assert abs(run_rows[2]["correction/weight_mean"] - 1) > 1e-4
    tight = ratios(policy, correction="tis", correction_cap=1.0)
    assert tight[2]["correction/clipped"] > 0.05


def test_gap_is_that_between_recorded_and_current_weights(policy: str) -> None:
    """By the trainer's own forward passes with both."""
    recorded = Recorded(lagged(policy, 2))
    trainer = recorded.trainer
    for step in (1, 2, 3):
        row = trainer.step(step)
    old, now = recorded.before[2], recorded.before[4]
    batch = pack_groups(trainer.groups, trainer.limit, 3, trainer.loaded.pad)
    logp = {}
    for name, values in (("old", old), ("now", now)):
        put(trainer, values)
        logp[name] = trainer.models.forward("policy", batch).logp[batch.completion_mask].double()
    expected = (logp["now"] - logp["old"]).abs().mean().item()
    assert row["gap/mean"] == pytest.approx(expected, rel=1e-3) and expected > 1e-3


# An engine with weights of its own


def engine_trainer(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[Trainer, Copy]:
    engines: list[Copy] = []

    def connect(config: RunConfig, models: Any, loaded: Any, decoded: Any = None) -> EngineSampler:
        engines.append(Copy(models.language, context=loaded.context))
        prompt = loaded.encode("0:")
        return EngineSampler(
            engines[-1], models, end=loaded.end, pad=loaded.pad, context=loaded.context, prompt=prompt
        )

    monkeypatch.setattr(parts, "sampler_for", connect)
    return trainer_for(config), engines[-1]


def test_an_engine_lags_alike_and_evaluates_the_current_policy(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens as in process, with each hand-over verified by the probe."""
    ours = Recorded(lagged(policy, 1, old_logp="trainer"))
    in_process = [ours.trainer.step(step) for step in (1, 2, 3)]
    trainer, engine = engine_trainer(lagged(policy, 1, old_logp="trainer"), monkeypatch)
    for step, row in zip((1, 2, 3), in_process, strict=True):
        engine_row = trainer.step(step)
        assert engine_row["sampler/lag"] == row["sampler/lag"]
        for name in ("reward/mean", "length/mean", "policy/entropy", "gap/mean"):
            assert engine_row[name] == pytest.approx(row[name], rel=1e-3, abs=1e-5), name
        current = policy_of(trainer)
        assert same([p.detach() for p in engine.models.language.parameters()], current)


# Interruptions


@pytest.fixture
def at_every_safe_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "ASK", 0.0)


def test_a_run_stopped_while_it_samples_and_updates_is_the_undisturbed_one(
    policy: str, tmp_path: Path, at_every_safe_point: None
) -> None:
    """While it samples the parameters hold earlier weights, and the checkpoint must hold both."""
    config = dataclasses.replace(lagged(policy, 3, PPO()), checkpoint=CheckpointConfig(every=0))
    undisturbed = carry(config, tmp_path / "whole")
    path = tmp_path / "stopped"
    assert stopped(config, path, Told(2, "sampling", 2)) == [2]
    checkpoint = checkpoints.read(path, 2)
    assert {name.partition(":")[0] for name in checkpoint.tensors("past")} == {str(age) for age in (1, 2, 3)}
    stopped(config, path, Told(3, "training", 2))
    assert carry(config, path) == undisturbed


def test_a_run_that_lost_its_last_steps_is_the_undisturbed_one(policy: str, tmp_path: Path) -> None:
    """As after a kill: from the last checkpoint on, its steps are made again."""
    config = dataclasses.replace(lagged(policy, 3), checkpoint=CheckpointConfig(every=2, keep=9))
    undisturbed = carry(config, tmp_path / "whole")

    class Killed(BaseException):
        pass

    def kill(progress: Any) -> None:
        if progress.step == 3 and progress.phase == "sampling":
            raise Killed

    listener = Told()
    listener.report = kill  # type: ignore[method-assign]
    with pytest.raises(Killed):
        carry(config, tmp_path / "killed", listener)
    assert checkpoints.steps(tmp_path / "killed") == [2]
    assert carry(config, tmp_path / "killed") == undisturbed


# In recipes


def test_lag_needs_rollouts_of_the_policy(policy: str) -> None:
    for cls in ALGORITHMS.values():
        refused = any("sampler.lag" in why for why in incompatible(lagged(policy, 2, cls())))
        assert refused == (cls().weight_noise is not None)  # the noise is in today's weights


def test_a_lag_that_this_machine_has_no_memory_for_ends_before_the_first_step(policy: str) -> None:
    """No machine holds a thousand million copies, even of a tiny model."""
    config = lagged(policy, 10**9)
    trainer_for(config)  # of a few updates, which never have as many copies
    long = training(config, steps=10**9)
    with pytest.raises(ModelError, match=r"1000000000 copies .* GB are free; set sampler\.lag = \d+ or"):
        trainer_for(long)
