"""Runs through TRL's trainers: the table of arguments, one update from the same rollouts, whole runs, refusals."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import Letters

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.modifiers import Modifiers
from grpobench.algorithms.trl_arguments import TABLE, Splitting, translate
from grpobench.runs import cli, loop
from grpobench.runs.config import (
    CheckpointConfig,
    EvaluateConfig,
    ModelConfig,
    RewardConfig,
    RunConfig,
    SamplerConfig,
    TrainConfig,
)
from grpobench.runs.folder import RunFolder, status
from grpobench.runs.metrics import known
from grpobench.runs.strict import ConfigError
from grpobench.runs.trl_settings import refusals
from grpobench.runs.recipe import read_recipe
from grpobench.runs.worker import Preempted
from grpobench.tasks.task import Verdict

TABLED = [name for name in TABLE if name in ALGORITHMS]
ONE = Splitting(minibatches=1, whole=True, updates=1)


# The table


@pytest.mark.parametrize("name", TABLED)
def test_every_setting_of_an_algorithm_has_a_rule(name: str) -> None:
    fields = {field.name for field in dataclasses.fields(ALGORITHMS[name])}
    assert fields <= TABLE[name].fields.keys()


@pytest.mark.parametrize("name", TABLED)
def test_defaults_become_arguments_that_trl_has(name: str, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="the arguments are TRL's")
    algorithm = ALGORITHMS[name](**{"compare": "token"} if name == "ipo" else {})
    arguments, faults = translate(algorithm, Modifiers(), ONE)
    assert not faults
    settings = getattr(trl, f"{TABLE[name].trainer}Config")
    made = settings(output_dir=str(tmp_path), report_to="none", use_cpu=True, bf16=False, **arguments)
    assert {key: getattr(made, key) for key in arguments} == arguments


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (GRPO(), {"loss_type": "grpo", "scale_rewards": "group", "beta": 0.0, "delta": None}),
        (GRPO(clip_low=0.1, clip_high=0.28), {"epsilon": 0.1, "epsilon_high": 0.28}),
        (GRPO(dual_clip=3.0), {"delta": 3.0}),
        (GRPO(averaging="constant", scale="none"), {"loss_type": "dr_grpo", "scale_rewards": "none"}),
        (GRPO(scale="none", ddof=0, epsilon=1.0), {"scale_rewards": "none"}),  # then neither matters
        (GRPO(beta=0.04), {"beta": 0.04, "use_bias_correction_kl": False}),
        (GRPO(beta=0.04, kl_estimator="k3_unbiased"), {"use_bias_correction_kl": True}),
    ],
)
def test_settings_become_arguments(algorithm: Algorithm[Any], expected: dict[str, Any]) -> None:
    arguments, faults = translate(algorithm, Modifiers(), ONE)
    assert not faults
    assert expected.items() <= arguments.items()


@pytest.mark.parametrize(
    ("splitting", "loss"),
    [
        (Splitting(1, True, 1), "dapo"),  # divides by the tokens of the batch, which is the minibatch
        (Splitting(1, False, 1), "dapo"),
        (Splitting(4, True, 4), "bnpo"),  # divides by the tokens of what goes forward at once
    ],
)
def test_mean_over_tokens_is_that_of_the_minibatch(splitting: Splitting, loss: str) -> None:
    arguments, _ = translate(GRPO(averaging="token_mean"), Modifiers(), splitting)
    assert arguments["loss_type"] == loss


# Runs


def configure(policy: str, algorithm: Algorithm[Any], **sections: Any) -> RunConfig:
    """One step of 4 problems × 4 completions in one update; `sections` override whole sections."""
    settings: dict[str, Any] = {
        "matrix": "m",
        "arm": "a",
        "seed": 3,
        "task": Letters(),
        "model": ModelConfig(name=policy),
        "sampler": SamplerConfig(),
        "reward": RewardConfig(),
        "train": train(),
        "evaluate": EvaluateConfig(every=2, problems=3, samples=2, test_problems=2),
        "checkpoint": CheckpointConfig(every=0),
    }
    return RunConfig(algorithm=algorithm, **{**settings, **sections})


def train(**settings: Any) -> TrainConfig:
    usual = {"steps": 1, "prompts": 4, "group": 4, "learning_rate": {"policy": 1e-3}}
    return TrainConfig(**{**usual, **settings})


def through_trl(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, backend="trl"))


def run(config: RunConfig, path: Path, stop: Callable[[], bool] = lambda: False) -> list[dict[str, Any]]:
    """Execute in a folder; the rows of metrics.jsonl."""
    assert not refusals(config) or config.train.backend == "grpobench"
    with RunFolder.open(path, config) as folder:
        loop.execute(config, folder, lambda progress: None, stop)
    return rows(path)


def rows(path: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(text) for text in (path / name).read_text().splitlines()]


def weights(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path / "final" / "policy.safetensors")


def norm(tensors: dict[str, torch.Tensor]) -> float:
    return math.sqrt(sum(tensor.double().square().sum().item() for tensor in tensors.values()))


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor - other[name] for name, tensor in one.items()}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a random Llama over characters."""
    import transformers

    from grpobench.runs.nano import VOCABULARY, character_tokenizer

    folder = tmp_path_factory.mktemp("policy")
    torch.manual_seed(0)
    small = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.1,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    transformers.LlamaForCausalLM(small).save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def backend() -> Any:
    pytest.importorskip("trl", reason="runs through TRL: pip install 'grpobench[trl]'")
    from grpobench.runs import trl_backend

    return trl_backend


@pytest.fixture
def our_rollouts(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's trainers get the completions that our sampler draws in our loop, instead of their own."""
    made = backend.Sampled.trainer

    def trainer(work: Any, place: Path) -> Any:
        theirs = made(work, place)

        def generate(prompt_ids: list[list[int]], *rest: Any) -> Any:
            config, step = work.ours.config, work.step + 1
            own = work.schedule[(step - 1) * config.train.prompts : step * config.train.prompts]
            groups = work.source.gather(step, 0, own)
            rollouts = [rollout for group in groups for rollout in group.rollouts]
            assert [tuple(ids) for ids in prompt_ids] == [rollout.prompt for rollout in rollouts]
            completions = [list(rollout.completion) for rollout in rollouts]
            return completions if TABLE[config.algorithm.name].trainer == "RLOO" else (completions, None)

        theirs._generate_single_turn = generate
        return theirs

    monkeypatch.setattr(backend.Sampled, "trainer", trainer)


UPDATE = 2e-3
"""Of the norm of the update. The gradients agree to 5e-5 of their norm (tests/test_against_trl.py); Adam divides
each entry by its own size, and so enlarges the error of the small ones."""

SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "grpo": ("grpo", {}, {}),
    "grpo, two passes": ("grpo", {"clip_low": 0.01, "clip_high": 0.02}, {"epochs": 2, "learning_rate": 1e-2}),
    "grpo, token mean": ("grpo", {"averaging": "token_mean"}, {}),
    "grpo, gradients accumulated": ("grpo", {"averaging": "token_mean"}, {"tokens_per_micro_batch": 60}),
    "grpo, batch std": ("grpo", {"scale": "batch"}, {}),
    "grpo, KL": ("grpo", {"beta": 0.1}, {"epochs": 2, "learning_rate": 1e-2}),
    "grpo, unbiased KL": ("grpo", {"beta": 0.1, "kl_estimator": "k3_unbiased"}, {"epochs": 2}),
    "gspo": ("gspo", {"clip_low": 1e-3, "clip_high": 2e-3}, {"epochs": 2, "learning_rate": 1e-2}),
    "dr_grpo": ("dr_grpo", {}, {}),
    "rloo": ("rloo", {}, {}),
    "rloo, KL": ("rloo", {"beta": 0.1}, {}),
    "lite_ppo": ("lite_ppo", {}, {}),
    "cispo": ("cispo", {"ratio_cap": 1.01}, {"epochs": 2, "learning_rate": 1e-2}),
    "sapo": ("sapo", {}, {"epochs": 2, "learning_rate": 1e-2}),
    "luspo": ("luspo", {}, {"epochs": 2, "learning_rate": 1e-2}),
    "vespo": ("vespo", {}, {"epochs": 2, "learning_rate": 1e-2}),
    "entropy_mask": ("entropy_mask", {}, {}),
}
SHARED = ("reward/", "score/", "length/", "outcome/", "groups/", "diversity/", "grad_norm/", "policy/clip")


@pytest.mark.usefixtures("our_rollouts")
@pytest.mark.parametrize("case", [name for name, (algorithm, _, _) in SAME.items() if algorithm in ALGORITHMS])
def test_the_same_rollouts_give_the_same_weights(case: str, policy: str, tmp_path: Path) -> None:
    name, settings, training = SAME[case]
    if "learning_rate" in training:
        training = {**training, "learning_rate": {"policy": training["learning_rate"]}}
    config = configure(policy, ALGORITHMS[name](**settings), train=train(**training))
    _, ours = run(config, tmp_path / "ours")
    _, theirs = run(through_trl(config), tmp_path / "trl")
    found = weights(tmp_path / "ours")
    before = load(policy)
    moved = norm(apart(found, before))
    assert moved > 0.01
    assert norm(apart(found, weights(tmp_path / "trl"))) < UPDATE * moved
    same = [key for key in ours if key.startswith(SHARED) and key in theirs]
    assert {key: theirs[key] for key in same} == pytest.approx({key: ours[key] for key in same}, rel=1e-3)
    assert "reward/mean" in same and "grad_norm/policy" in same
    assert theirs["policy/entropy"] == pytest.approx(ours["policy/entropy"], rel=1e-3)


def load(policy: str) -> dict[str, torch.Tensor]:
    from grpobench.runs.library import load as loaded

    return {name: p.detach() for name, p in loaded(policy).model.named_parameters()}
