"""Whole runs that train a LoRA adapter: stopped and resumed they are the undisturbed run byte for byte, and
what they keep is the adapter alone.

The trial with a real model is the slow test at the end; it needs `make data`:

    pytest -m slow tests/runs/train/test_adapter_runs.py
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import torture
from helpers.whole_runs import configure, run, run_until_stopped, same, training, weights

from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.opcd import OPCD
from grpobench.algorithms.ppo import PPO
from grpobench.runs.experiment import launcher
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.settings.config import ModelConfig, RunConfig, SamplerConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.rules import missing, missing_data
from grpobench.runs.train.parts import build

CORE = {"grpo": GRPO(beta=0.1), "ppo": PPO(critic_warmup=0), "opcd": OPCD()}


def config(policy: str, algorithm: Algorithm[Any] | None = None, **sections: Any) -> RunConfig:
    model = ModelConfig(policy, adapter=Adapter(rank=4, alpha=8.0))
    made = configure(policy, algorithm, **{"model": model, **sections})
    return training(made, learning_rate={"policy": 1e-2})


@pytest.mark.parametrize("name", CORE)
def test_a_stopped_and_resumed_run_is_the_undisturbed_one_and_keeps_the_adapter_alone(
    name: str, policy: str, tmp_path: Path
) -> None:
    run_config = config(policy, CORE[name])
    undisturbed = run(run_config, tmp_path / "whole")
    run_until_stopped(run_config, tmp_path / "parts", 2)
    for path in (tmp_path / "parts" / "checkpoints" / "step-2").glob("*.safetensors"):
        tensor_names = [name.rpartition(":")[2] for name in weights(path)]
        assert all(".lora_" in name or name in ("value.weight", "value.bias") for name in tensor_names)
    run(run_config, tmp_path / "parts")
    assert same(tmp_path / "parts", tmp_path / "whole")
    moved = weights(tmp_path / "whole" / "final" / "policy.safetensors")
    assert all(".lora_" in key for key in moved) and any(
        tensor.abs().sum() > 0 for key, tensor in moved.items() if "lora_B" in key
    )
    assert all(row["gap/mean"] < 1e-4 for row in undisturbed if "gap/mean" in row)


def test_with_a_lag_the_copies_are_of_the_adapter(policy: str, tmp_path: Path) -> None:
    run_config = config(policy, sampler=SamplerConfig(lag=1))
    run(run_config, tmp_path / "whole")
    run_until_stopped(run_config, tmp_path / "parts", 2)
    past = weights(tmp_path / "parts" / "checkpoints" / "step-2" / "past.safetensors")
    assert past and all(".lora_" in key for key in past)
    run(run_config, tmp_path / "parts")
    assert same(tmp_path / "parts", tmp_path / "whole")


def test_an_adapter_lies_on_the_warm_started_policy(policy: str, tmp_path: Path) -> None:
    model = ModelConfig(policy, adapter=Adapter(4, 8.0), warm_start=2, warm_start_batch=2)
    run_config = config(policy, model=model)
    plain = dataclasses.replace(model, adapter=None)
    warm = build(dataclasses.replace(run_config, model=plain)).models.language
    beneath = build(run_config).models.plain
    assert all(torch.equal(p, q) for p, q in zip(warm.parameters(), beneath.parameters(), strict=True))


# By SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "ppo", "gspo", "dpo"])
def test_smollm2_with_an_adapter_learns_bbq_and_survives_kills(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    monkeypatch.setattr(launcher, "PAUSES", (0.0,))
    sets = [
        *("model.name=smollm2-135m", "model.adapter.rank=16", 'tasks=["bbq"]', "train.steps=10"),
        *("model.warm_start=10", "model.warm_start_batch=8", "model.warm_start_learning_rate=5e-5"),
        *("train.learning_rate.policy=1e-4", "train.prompts_per_step=2", "sampler.max_completion_tokens=4"),
        *("evaluate.every=0", "evaluate.problems=2", "evaluate.test_problems=2", "checkpoint.every=4"),
    ]
    torture.prepare(tmp_path / "asked", name)
    configs = read_recipe(str(tmp_path / "asked" / "torture.toml"), sets).configs
    if lack := [*missing(configs[0]), *filter(None, [missing_data(configs[0].task)])]:
        pytest.skip("; ".join(lack))
    undisturbed = torture.carried(tmp_path / "whole", name, (), sets)
    rows = json.loads(undisturbed["metrics.jsonl"])
    assert rows[-1]["step"] == 10 and torture.learned(undisturbed)
    assert torture.carried(tmp_path / "killed", name, ("update.9.kill", "log.7.kill~3"), sets) == undisturbed
