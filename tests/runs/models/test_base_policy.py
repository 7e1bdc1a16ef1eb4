"""The KL of the policy to its base: exact, of every arm, and no number of the run depends on it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.logs import is_metric
from helpers.toys import models_for, plain_logp, rollouts, text_of
from helpers.whole_runs import after, configure, run, timeless

from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.modifiers import Modifiers
from grpobench.runs.models.base_policy import BasePolicy
from grpobench.runs.settings.config import EvaluateConfig, ModelConfig, RunConfig, SamplerConfig, TrainConfig
from grpobench.runs.train.progress import Preempted

KL = "policy/kl_base"


def moved(models: Any, size: float = 0.05) -> None:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in models.language.parameters():
            p += size * torch.randn(p.shape, generator=generator)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("chunk", [2**25, 300])
def test_kl_is_torchs_own_of_the_two_models_logits(architecture: str, chunk: int) -> None:
    """Against whole forward passes of one row at a time, and torch.nn.functional.kl_div."""
    models = models_for(GRPO(), architecture, temperature=0.7, budget=60, chunk=chunk)
    base = BasePolicy(models, fixed_reference=False)
    before = copy.deepcopy(models.language)
    batch = rollouts([[3, 5], [4, 1], [6, 2]], gaps={0: [1]})
    assert base.kl(batch) == 0.0
    moved(models)
    expected, kl = [], models.kl_to
    for row in range(len(batch)):
        with torch.no_grad():
            ours, theirs = (
                plain_logp(model, *text_of(batch, row), 0.7) for model in (models.language, before)
            )
        each = torch.nn.functional.kl_div(theirs, ours, reduction="none", log_target=True).sum(-1)
        expected.append(each[batch.completion_mask[row, : len(each)]])
    assert base.kl(batch) == pytest.approx(torch.cat(expected).mean().item(), rel=1e-4)
    assert torch.cat(expected).min() > 1e-3
    with base.network() as network:
        assert (kl(network, batch)[~batch.completion_mask] == 0).all()


def test_reference_that_stays_is_the_base_and_takes_no_memory() -> None:
    models = models_for(GRPO(beta=0.1), "llama")
    with torch.no_grad():
        for ours, theirs in zip(
            models.networks["reference"].parameters(), models.networks["policy"].parameters(), strict=True
        ):
            ours.copy_(theirs)
    batch = rollouts([[3, 5], [4, 1]])
    copied, shared = BasePolicy(models, fixed_reference=False), BasePolicy(models, fixed_reference=True)
    assert shared.cpu_copy is None
    moved(models)
    assert copied.kl(batch) == shared.kl(batch) > 0


# Whole runs


def config(policy: str, algorithm: Algorithm[Any] | None = None, **sections: Any) -> RunConfig:
    defaults = {
        "train": TrainConfig(steps=4, prompts_per_step=4, group_size=4, learning_rate={"policy": 3e-3}),
        "evaluate": EvaluateConfig(every=3, problems=2, samples=1, test_problems=0),
        "seed": 4,
    }
    return configure(policy, algorithm, **{**defaults, **sections})


def column(rows: list[dict[str, Any]]) -> dict[int, float]:
    return {row["step"]: row[KL] for row in rows if KL in row}


def test_every_arm_has_it_where_an_evaluation_is_due_and_at_the_end(policy: str, tmp_path: Path) -> None:
    arms: dict[str, RunConfig] = {
        "plain": config(policy),
        "reference": config(policy, GRPO(beta=1e-9)),
        "moving": config(policy, GRPO(beta=1e-9), modify=Modifiers(reference_every=1)),
        "recorded": config(policy, DPO(), sampler=SamplerConfig(kind="replay", problems=4)),
        "warm": config(policy, model=ModelConfig(policy, warm_start=2, warm_start_batch=2)),
    }
    rows_by_arm = {name: run(arm_config, tmp_path / name) for name, arm_config in arms.items()}
    for rows in rows_by_arm.values():
        assert column(rows).keys() == {3, 4} and all(value > 0 for value in column(rows).values())
        assert all(is_metric(name) for row in rows for name in row)
    # a penalty of 1e-9 changes the weights by less than can be seen here
    assert column(rows_by_arm["reference"]) == pytest.approx(column(rows_by_arm["plain"]), rel=0.01)
    assert column(rows_by_arm["moving"]) == pytest.approx(column(rows_by_arm["plain"]), rel=0.01)


def test_it_is_nought_before_the_first_update(policy: str, tmp_path: Path) -> None:
    every = EvaluateConfig(every=1, problems=2, samples=1, test_problems=0)
    assert column(run(config(policy, evaluate=every), tmp_path))[1] == 0.0


@pytest.mark.parametrize("warm", [0, 2])
def test_resumed_run_knows_its_base(policy: str, tmp_path: Path, warm: int) -> None:
    model = ModelConfig(policy, warm_start=warm, warm_start_batch=2)
    run_config = config(policy, model=model, modify=Modifiers())
    undisturbed = run(run_config, tmp_path / "whole")
    with pytest.raises(Preempted):
        run(run_config, tmp_path / "parts", after(tmp_path / "parts", 2))
    resumed = run(run_config, tmp_path / "parts")
    assert [timeless(row) for row in resumed] == [timeless(row) for row in undisturbed]
    assert len(column(resumed)) == 2


def test_without_it_no_other_number_differs(policy: str, tmp_path: Path) -> None:
    quiet = EvaluateConfig(every=3, problems=2, samples=1, test_problems=0, kl_base=False)
    on, off = run(config(policy), tmp_path / "on"), run(config(policy, evaluate=quiet), tmp_path / "off")
    assert not column(off)
    for row, other in zip(on, off, strict=True):
        assert {name: value for name, value in timeless(row).items() if name != KL} == timeless(other)
    ends = [(tmp_path / name / "final" / "policy.safetensors").read_bytes() for name in ("on", "off")]
    assert ends[0] == ends[1]
