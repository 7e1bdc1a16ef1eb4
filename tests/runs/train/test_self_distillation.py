"""Runs whose teacher reads a prompt of its own: their costs, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from helpers.toys import backward, models_for, off_policy, rollouts, trainer_for
from helpers.whole_runs import configure, is_unmoved, run, run_until_stopped

from grpobench.algorithms.algorithm import RoutedExperts
from grpobench.algorithms.opcd import OPCD
from grpobench.algorithms.sdft import SDFT
from grpobench.algorithms.sdpo import SDPO
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.flops import tokens_of
from grpobench.runs.models.teaching import as_taught
from grpobench.runs.settings.config import ModelConfig
from grpobench.runs.settings.recipe import read_recipe, read_text
from grpobench.runs.tools.strict import ConfigError

RECIPE = """
name = "self"
tasks = [{ name = "arithmetic", settings = { train = 32, validation = 16, test = 16 } }]
[model]
name = "nano"
[train]
steps = 2
prompts_per_step = 4
group_size = 4
num_minibatches = 2
learning_rate = 1e-4
[evaluate]
problems = 2
samples = 1
test_problems = 2
[[arm]]
algorithm = "sdft"
[[arm]]
algorithm = "sdpo"
settings.threshold = 0.0
[[arm]]
algorithm = "opcd"
"""


def test_two_steps_on_arithmetic_with_the_default_templates() -> None:
    for config in read_text(RECIPE, "self", Path()).runs():
        trainer = trainer_for(config)
        step_rows = [trainer.step(step) for step in (1, 2)]
        assert all(row["distill/divergence"] > 1e-3 and row["grad_norm/policy"] > 0 for row in step_rows)
        assert config.arm != "sdpo" or all(row["sdpo/taught"] > 0.9 for row in step_rows)


def test_only_an_average_is_kept_in_checkpoints(policy: str, tmp_path: Path) -> None:
    for name, algorithm in {"average": SDFT(), "initial": OPCD(), "policy": SDPO(teacher="policy")}.items():
        path = tmp_path / name
        run_until_stopped(configure(policy, algorithm), path, 2)
        (checkpoint,) = path.glob("checkpoints/step-2")
        saved_roles = {file.stem for file in checkpoint.glob("*.safetensors")}
        assert "policy" in saved_roles and ("reference" in saved_roles) == (name == "average")


def test_a_step_without_any_success_makes_no_update(policy: str, tmp_path: Path) -> None:
    """A threshold that no reward of Letters reaches: nothing is taught, and the policy stays what it was."""
    config = configure(policy, SDPO())
    config = dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, threshold=9.0))
    run_rows = run(config, tmp_path)
    assert all(row["sdpo/taught"] == 0 for row in run_rows if row["step"])
    assert is_unmoved(policy, tmp_path)


@pytest.mark.parametrize("algorithm", [SDFT(), SDPO(teacher="policy"), SDFT(teacher="model")])
def test_flops_count_the_prompts_that_the_teacher_reads(algorithm: SDFT | SDPO) -> None:
    """6N of each token that is trained on, and 2N of each that the teacher reads: its two prompts of each
    group, 9 and 6 tokens, and the completions behind them."""
    models = models_for(algorithm, "llama")
    batch = off_policy(rollouts([[4, 2], [3, 5]]), models)
    with models.flops.counting():
        backward(algorithm, models, batch)
    assert tokens_of(as_taught(batch)) == 14 + 2 * (9 + 6)
    trained = 6 * models.flops.weights["policy"] * tokens_of(batch)
    read = 2 * models.flops.weights[algorithm.teacher_role] * (14 + 30)
    assert models.flops.total == pytest.approx(trained + read)


def test_a_live_teacher_of_a_mixture_of_experts_chooses_its_own_routes() -> None:
    """Replayed routes are of the policy's prompt; behind the teacher's they would belong to others."""
    batch = rollouts([[4, 2], [3, 5]])
    routes = RoutedExperts(
        torch.zeros(*batch.prompt.shape, 2, 2, dtype=torch.int16),
        torch.zeros(*batch.completion.shape, 2, 2, dtype=torch.int16),
    )
    taught = as_taught(dataclasses.replace(batch, routed_experts=routes))
    assert taught.prompt.shape != batch.prompt.shape and taught.routed_experts is None


def test_an_average_needs_weights_of_its_own() -> None:
    """Under an adapter the reference shares the policy's frozen weights, and cannot follow."""
    sets = ("arms=sdft", "tasks=arithmetic", "model.adapter.rank=4")
    with pytest.raises(ConfigError, match=r"its reference follows the policy, .* or model\.adapter"):
        read_recipe("quickstart", sets).runs()
    live = read_recipe("quickstart", (*sets, "arm.sdft.settings.teacher=policy")).runs()[0]
    assert live.model.adapter is not None


def test_a_live_teacher_has_the_policys_adapter(policy: str) -> None:
    model = ModelConfig(policy, adapter=Adapter(rank=4, alpha=8.0))
    trainer = trainer_for(configure(policy, SDFT(teacher="policy", skip_tokens=0), model=model))
    assert trainer.step(1)["grad_norm/policy"] > 0


def test_a_named_model_can_teach_with_a_prompt_of_its_own(policy: str, tmp_path: Path) -> None:
    run_rows = run(configure(policy, OPCD(teacher="model")), tmp_path)
    assert all(row["distill/divergence"] > 0 for row in run_rows if row["step"])
    (attempt,) = json.loads((tmp_path / "provenance.json").read_text())["attempts"]
    assert attempt["teacher"]["model"]["name"] == "nano"
    with pytest.raises(ConfigError, match=r"distills a teacher, and model\.teacher is empty"):
        read_recipe("quickstart", ("arms=opcd", "arm.opcd.settings.teacher=model")).runs()
