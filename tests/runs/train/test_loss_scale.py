"""Training in float16: gradients are those of float32, overflows are skipped and counted, and a resumed run
has the same bits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import backward, distance, models_for, rollouts, trainer_for
from helpers.whole_runs import configure, run, run_until_killed, same

from grpobench.algorithms.algorithm import Algorithm, Loss
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.ppo import PPO
from grpobench.runs.handover import verl
from grpobench.runs.runfolder import checkpoints
from grpobench.runs.settings import trl
from grpobench.runs.settings.config import (
    CheckpointConfig,
    EvaluateConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from grpobench.runs.train import loss_scale
from grpobench.runs.train.loss_scale import INITIAL, LossScale
from grpobench.runs.train.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Faint(Algorithm[Any]):
    """Its gradient is as small as that of a long completion in a large batch."""

    factor: float = 1e-5

    def loss(self, batch: Any, signal: Any, now: Any) -> Loss:
        loss = super().loss(batch, signal, now)
        return dataclasses.replace(loss, terms=loss.terms * self.factor)


@dataclasses.dataclass(frozen=True)
class FaintGRPO(Faint, GRPO): ...


@dataclasses.dataclass(frozen=True)
class FaintPPO(Faint, PPO):
    """The same of two roles."""


@pytest.mark.parametrize("faint", [FaintGRPO(), FaintPPO()], ids=["grpo", "ppo"])
def test_scaled_gradients_are_those_of_float32_where_unscaled_ones_vanish(faint: Any) -> None:
    batch = rollouts([[4, 6], [3, 5], [6, 2], [5, 5]], [[1, 0], [0, 1], [1, 0], [0.5, 0]])

    def gradient(dtype: str, scale: LossScale | None = None) -> dict[str, torch.Tensor]:
        return backward(faint, models_for(faint, "llama", dtype=dtype), batch, loss_scale=scale)[0]

    exact = gradient("float32")
    # float16 has 11 binary digits, so that each number is off by up to 2^-11 = 5e-4, in some ten products.
    assert distance(gradient("float16", LossScale()), exact) < 5e-3
    assert distance(gradient("float16"), exact) > 0.5
    # bfloat16 has 8 digits, and the range of float32.
    assert 5e-3 < distance(gradient("bfloat16"), exact) < 5e-2
    # Both the multiplication and the division by a power of 2 are exact.
    scaled = gradient("float32", LossScale())
    assert all(torch.equal(scaled[name], exact[name]) for name in exact)


def test_a_scale_halves_with_an_overflow_and_doubles_after_updates_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 3)
    scale = LossScale()
    for value in (2**16, 2**16, 2**17):
        scale.grow()
        assert scale.value == value
    scale.grow()
    assert scale.shrink() and scale.state() == [2**16, 0]  # the count begins again
    again = LossScale()
    again.restore([8.0, 2.0])
    again.grow()
    assert (again.value, again.finite) == (16, 0)
    assert not LossScale(1.0).shrink()


def config(policy: str, dtype: Any = "float16", algorithm: Any = None, **train: Any) -> RunConfig:
    usual: dict[str, Any] = {"steps": 5, "prompts_per_step": 2, "group_size": 4, "num_minibatches": 2}
    return configure(
        policy,
        algorithm or GRPO(),
        model=ModelConfig(policy, dtype=dtype),
        train=TrainConfig(**{**usual, "learning_rate": {"policy": 1e-2}, **train}),
        evaluate=EvaluateConfig(every=0, problems=0, test_problems=0),
        checkpoint=CheckpointConfig(every=2),
    )


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.models.optimizers["policy"].parameters.values()]


def test_an_overflow_skips_the_update_halves_the_scale_and_is_counted(policy: str) -> None:
    trainer = trainer_for(config(policy, num_minibatches=1))
    scale = trainer.updater.loss_scale
    assert scale is not None
    before = weights(trainer)
    scale.value = 2.0**120  # of which no gradient has a float16
    row = trainer.step(1)
    assert (row["grad/overflow"], row["grad/nonfinite"], row["grad/loss_scale"]) == (1, 0, 2.0**119)
    assert "grad_norm/policy" not in row
    assert all(torch.equal(old, new) for old, new in zip(before, weights(trainer), strict=True))
    scale.value = INITIAL
    row = trainer.step(2)
    assert (row["grad/overflow"], row["grad/loss_scale"], scale.finite) == (0, INITIAL, 1)
    assert row["grad_norm/policy"] > 0
    assert not trainer.diverged and trainer.skipped == 0


def test_a_gradient_that_no_scale_makes_finite_is_no_overflow(policy: str) -> None:
    """At a scale of 1 the scale is not to blame."""
    endless = FaintGRPO(factor=1e30)  # a finite loss whose gradient no float16 holds
    trainer = trainer_for(config(policy, algorithm=endless, num_minibatches=1))
    scale = trainer.updater.loss_scale
    assert scale is not None
    scale.value = 1.0
    row = trainer.step(1)
    assert (row["grad/overflow"], row["grad/nonfinite"], row["grad/loss_scale"]) == (0, 1, 1)
    assert trainer.skipped == 1


def test_logged_norms_and_noise_are_those_without_a_scale(policy: str) -> None:
    """Of the first update, whose weights and drawn tokens are equal: the norms differ by what float16 rounds,
    some thousandths, and a scale of 65,536 would show."""
    rows = [
        trainer_for(config(policy, dtype, num_minibatches=1, gradient_noise=1)).step(1)
        for dtype in ("float32", "float16")
    ]
    for name in ("grad_norm/policy", "grad/variance"):
        assert rows[1][name] == pytest.approx(rows[0][name], rel=2e-2)
    assert "grad/loss_scale" not in rows[0] and "grad/overflow" not in rows[0]


def test_a_killed_run_in_float16_goes_on_exactly(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a scale that falls and grows, and that the checkpoints between hold."""
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 3)
    monkeypatch.setattr(loss_scale.LossScale.__init__, "__defaults__", (2.0**40, 0))
    run_config = config(policy)
    undisturbed = run(run_config, tmp_path / "whole")
    run_until_killed(run_config, tmp_path / "parts", 3)
    step = checkpoints.steps(tmp_path / "parts")[-1]
    scale_state = checkpoints.read(tmp_path / "parts", step).state["loss_scale"]
    assert scale_state[0] < 2.0**40
    run(run_config, tmp_path / "parts")
    assert same(tmp_path / "parts", tmp_path / "whole")
    assert sum(row["grad/overflow"] for row in undisturbed[1:]) > 0


def test_nothing_is_scaled_in_other_precisions(policy: str) -> None:
    for dtype in ("float32", "bfloat16"):
        trainer = trainer_for(config(policy, dtype))
        assert trainer.updater.loss_scale is None and "loss_scale" not in trainer.state()


def test_float16_has_float32_weights_and_is_not_handed_over(policy: str) -> None:
    with pytest.raises(ValueError, match='set dtype = "bfloat16"'):
        ModelConfig(policy, dtype="float16", weights="bfloat16")
    for refused in (trl.refusals(config(policy)), verl.refusals(config(policy))):
        assert any('model.dtype is "float16"' in refusal for refusal in refused)
