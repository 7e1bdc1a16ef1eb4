"""Runs through TRL's trainers: arguments, one update from the same rollouts, whole runs, refusals."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import whole_runs
from helpers.logs import is_metric
from helpers.stops import Told, stopped
from helpers.toys import Letters, norm
from helpers.whole_runs import rows, run_until_stopped, timeless, training, transcript

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.libraries.dialects import DIALECTS
from grpobench.algorithms.libraries.trl_arguments import TABLE, Splitting, translate
from grpobench.algorithms.modifiers import Modifiers
from grpobench.runs import cli
from grpobench.runs.models import loading
from grpobench.runs.models.flops import weights_per_token
from grpobench.runs.models.roles import trunk_and_head
from grpobench.runs.runfolder.logs import status
from grpobench.runs.settings.config import (
    CheckpointConfig,
    ModelConfig,
    RewardConfig,
    RunConfig,
    SamplerConfig,
    TrainConfig,
)
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.trl import refusals
from grpobench.runs.tools.strict import ConfigError
from grpobench.runs.train import stopping
from grpobench.runs.train.trainer import Trainer
from grpobench.tasks.task import Verdict

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")  # of TRL in transformers

TABLED = [name for name in TABLE if name in ALGORITHMS]
ONE = Splitting(minibatches=1, single_pass=True, updates=1)


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


@pytest.mark.parametrize("name", ["grpo@trl", "rloo@trl", "dpo@trl"])
def test_what_trl_means_by_a_name_becomes_its_own_defaults(name: str, tmp_path: Path) -> None:
    """Two readings of TRL that know nothing of each other: the dialect, and this table."""
    trl = pytest.importorskip("trl", reason="the defaults are TRL's")
    dialect = DIALECTS[name]
    algorithm = ALGORITHMS[dialect.algorithm](**dialect.values["settings"])
    arguments, faults = translate(algorithm, Modifiers(), ONE)
    assert not faults
    settings = getattr(trl, f"{TABLE[dialect.algorithm].trainer}Config")
    usual = settings(output_dir=str(tmp_path), report_to="none", use_cpu=True, bf16=False)
    defaults = {key: getattr(usual, key) for key in arguments}
    if "epsilon_high" in defaults:  # None stands for epsilon
        defaults["epsilon_high"] = defaults["epsilon_high"] or defaults["epsilon"]
    assert arguments == defaults


# Runs


def configure(policy: str, algorithm: Algorithm[Any], **sections: Any) -> RunConfig:
    """One step of 4 problems × 4 completions in one update; `sections` override whole sections."""
    short: dict[str, Any] = {"train": train(), "checkpoint": CheckpointConfig(every=0)}
    return whole_runs.configure(policy, algorithm, **{**short, **sections})


def train(**settings: Any) -> TrainConfig:
    usual = {"steps": 1, "prompts_per_step": 4, "group_size": 4, "learning_rate": {"policy": 1e-3}}
    return TrainConfig(**{**usual, **settings})


def run(config: RunConfig, path: Path, stop: Callable[[], bool] = lambda: False) -> list[dict[str, Any]]:
    """Execute in a folder; the rows of metrics.jsonl."""
    assert not refusals(config) or config.train.backend == "grpobench"
    return whole_runs.run(config, path, stop)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return whole_runs.weights(path / "final" / "policy.safetensors")


def apart(first: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() - other[name].cpu() for name, tensor in first.items()}


@pytest.fixture
def backend() -> Any:
    pytest.importorskip("trl", reason="runs through TRL: pip install 'grpobench[trl]'")
    from grpobench.runs.train.trl import trainer as trl_backend

    return trl_backend


@pytest.fixture
def our_rollouts(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's trainers get the completions that our sampler draws in our loop, instead of their own."""
    made = backend.Sampled.trainer

    def trainer(work: Any, output_folder: Path) -> Any:
        theirs = made(work, output_folder)

        def generate(prompt_ids: list[list[int]], *arguments: Any) -> Any:
            config, step = work.ours.config, work.step + 1
            indices = work.schedule[
                (step - 1) * config.train.prompts_per_step : step * config.train.prompts_per_step
            ]
            groups = work.source.gather(step, 0, indices)
            rollouts = [rollout for group in groups for rollout in group.rollouts]
            assert [tuple(ids) for ids in prompt_ids] == [rollout.prompt for rollout in rollouts]
            completions = [list(rollout.completion) for rollout in rollouts]
            return completions if TABLE[config.algorithm.name].trainer == "RLOO" else (completions, None)

        theirs._generate_single_turn = generate
        return theirs

    monkeypatch.setattr(backend.Sampled, "trainer", trainer)


UPDATE = 5e-4
"""Of the norm of the update: the gradients agree to 5e-5 of theirs (test_against_trl.py says why),
and Adam divides each entry by its own size, which enlarges the error of the small ones. Seen: 7e-5."""

SAME: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "grpo": ("grpo", {}, {}),
    "grpo, two passes": ("grpo", {"clip_low": 0.01, "clip_high": 0.02}, {"epochs": 2, "learning_rate": 1e-2}),
    "grpo, token mean": ("grpo", {"averaging": "token_mean"}, {}),
    "grpo, gradients accumulated": ("grpo", {"averaging": "token_mean"}, {"micro_batch_tokens": 60}),
    "grpo, batch std": ("grpo", {"scale": "batch"}, {}),
    "grpo, KL": ("grpo", {"beta": 0.1}, {"epochs": 2, "learning_rate": 1e-2}),
    "grpo, unbiased KL": ("grpo", {"beta": 0.1, "kl_estimator": "k3_unbiased"}, {"epochs": 2}),
    "gspo": ("gspo", {"clip_low": 1e-3, "clip_high": 2e-3}, {"epochs": 2, "learning_rate": 1e-2}),
    "gspo, token form": (
        "gspo",
        {"level": "token", "averaging": "token_mean", "clip_low": 1e-3, "clip_high": 2e-3},
        {"epochs": 2, "learning_rate": 1e-2},
    ),
    "dr_grpo": ("dr_grpo", {}, {}),
    "rgra": ("rgra", {}, {}),
    "rloo": ("rloo", {}, {}),
    "rloo, KL": ("rloo", {"beta": 0.1}, {}),
    "lite_ppo": ("lite_ppo", {}, {}),
    "gdpo": ("gdpo", {}, {}),
    "cispo": ("cispo", {"ratio_cap": 1.01}, {"epochs": 2, "learning_rate": 1e-2}),
    "sapo": ("sapo", {}, {"epochs": 2, "learning_rate": 1e-2}),
    "luspo": ("luspo", {}, {"epochs": 2, "learning_rate": 1e-2}),
    "vespo": ("vespo", {}, {"epochs": 2, "learning_rate": 1e-2}),
    "entropy_mask": ("entropy_mask", {}, {}),
    "dapo, masked and with a bonus": (
        "dapo",
        {"modify": {"off_policy_mask": 1e-4, "entropy_bonus": 0.1}},
        {"epochs": 2, "learning_rate": 1e-2},
    ),
}
SHARED = ("reward/", "score/", "length/", "outcome/", "groups/", "diversity/", "grad_norm/", "policy/clip")
SHARED += ("trained/share", "trained/groups", "trained/zero_signal", "trained/reward", "trained/length")


FIRST = (
    "grpo",
    "grpo, two passes",
    "grpo, gradients accumulated",
    "grpo, KL",
    "gspo",
    "dr_grpo",
    "rloo",
    "gdpo",
)
FIRST += ("dapo, masked and with a bonus",)
"""Each way in which a step can differ; the others' losses are held against TRL's in test_against_trl.py, and
their whole steps in `make test-long`."""


@pytest.mark.usefixtures("our_rollouts")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in FIRST))
        for name, (algorithm, _, _) in SAME.items()
        if algorithm in ALGORITHMS
    ],
)
def test_the_same_rollouts_give_the_same_weights(case: str, policy: str, tmp_path: Path) -> None:
    name, settings, train_settings = SAME[case]
    if "learning_rate" in train_settings:
        train_settings = {**train_settings, "learning_rate": {"policy": train_settings["learning_rate"]}}
    settings = dict(settings)
    modify = Modifiers(**settings.pop("modify", {}))
    several = RewardConfig(kind="sum", weights={"correct": 1.0, "short": 0.5, "proxy": 0.25})
    reward = several if name == "gdpo" else RewardConfig()
    algorithm = ALGORITHMS[name](**settings)
    config = configure(policy, algorithm, train=train(**train_settings), reward=reward, modify=modify)
    _, ours = run(config, tmp_path / "ours")
    _, theirs = run(training(config, backend="trl"), tmp_path / "trl")
    our_weights = weights(tmp_path / "ours")
    moved = norm(apart(our_weights, whole_runs.weights(Path(policy) / "model.safetensors")))
    assert moved > 0.01
    assert norm(apart(our_weights, weights(tmp_path / "trl"))) < UPDATE * moved
    same = agree(ours, theirs, SHARED)
    assert {"reward/mean", "grad_norm/policy", "trained/share"} <= same
    for name in ("policy/entropy", "trained/entropy"):  # read before the update by us, in it by TRL
        assert theirs[name] == pytest.approx(ours[name], rel=1e-3), name


@pytest.mark.usefixtures("our_rollouts")
def test_prompts_go_through_the_chat_template_alike(policy: str, tmp_path: Path) -> None:
    """The prompts' tokens are compared where TRL's sampler is replaced."""
    from transformers import AutoTokenizer

    folder = tmp_path / "chat"
    shutil.copytree(policy, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turns = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    tokenizer.chat_template = turns + "{% if add_generation_prompt %}>{% endif %}"
    tokenizer.save_pretrained(folder)
    config = configure(str(folder), GRPO(), train=train(backend="trl"))
    _, row = run(config, tmp_path / "run")
    assert row["trl/reward"] == pytest.approx(row["reward/mean"])


def agree(ours: dict[str, Any], theirs: dict[str, Any], names: tuple[str, ...]) -> set[str]:
    """The metrics with these beginnings that both rows have; they must be equal to what the weights allow."""
    same = {key for key in ours if key.startswith(names) and key in theirs}
    for key in same:
        assert theirs[key] == (None if ours[key] is None else pytest.approx(ours[key], rel=1e-3, abs=1e-6)), (
            key
        )
    return same


def offline(policy: str, name: str, minibatches: int = 2, **settings: Any) -> RunConfig:
    """Three steps of two passes over pairs of one round of answers."""
    return configure(
        policy,
        ALGORITHMS[name](**settings),
        sampler=SamplerConfig(kind="replay", problems=6),
        train=train(steps=3, num_minibatches=minibatches, epochs=2),
    )


@pytest.mark.parametrize(
    ("name", "settings", "minibatches"), [("dpo", {}, 1), ("ipo", {"compare": "token"}, 2)]
)
def test_whole_runs_on_recorded_pairs_are_the_same(
    name: str, settings: dict[str, Any], minibatches: int, policy: str, backend: Any, tmp_path: Path
) -> None:
    """Nothing is sampled after the first round, so that both backends see the same minibatches to the end."""
    config = offline(policy, name, minibatches, **settings)
    ours, theirs = run(config, tmp_path / "ours"), run(training(config, backend="trl"), tmp_path / "trl")
    our_weights = weights(tmp_path / "ours")
    moved = norm(apart(our_weights, whole_runs.weights(Path(policy) / "model.safetensors")))
    assert norm(apart(our_weights, weights(tmp_path / "trl"))) < UPDATE * moved
    shared = ("reward/", "score/", "length/", "groups/", "grad_norm/", "preference/pairs", "policy/entropy")
    shared += ("trained/share", "trained/groups", "trained/reward", "trained/length")
    if minibatches == 1:  # else ours are means over pairs, and TRL's over minibatches of unlike size
        shared += ("preference/",)
    for our_row, other in zip(ours[1:], theirs[1:], strict=True):
        if (
            our_row["step"] == 1
        ):  # half of its margins are nought but for rounding, which decides about accuracy
            other.pop("preference/accuracy", None)
        same = agree(our_row, other, shared)
        assert {"preference/pairs", "grad_norm/policy", "policy/entropy", "trained/share"} <= same
        assert {"preference/chosen_logp", "preference/rejected_logp", "trained/entropy"} <= other.keys()


def test_preference_file_goes_through_trl(policy: str, backend: Any, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    pairs = [{"prompt": f"p{i}", "chosen": "aa", "rejected": "bbb"} for i in range(5)]
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    config = configure(
        policy,
        ALGORITHMS["dpo"](),
        sampler=SamplerConfig(kind="preferences", path=str(file)),
        train=train(steps=4, backend="trl"),
    )
    run_rows = run(config, tmp_path / "run")
    assert [row["preference/pairs"] for row in run_rows[1:]] == [4.0] * 4
    assert run_rows[4]["preference/margin"] > run_rows[1]["preference/margin"] == 0


def test_a_step_without_pairs_makes_no_update(
    policy: str, backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps 1 and 3 of 4 have only equal rewards."""
    made = backend.RecordedPairs._minibatches
    monkeypatch.setattr(
        backend.RecordedPairs, "_minibatches", lambda work, step: [] if step % 2 else made(work, step)
    )
    config = configure(
        policy,
        ALGORITHMS["dpo"](),
        sampler=SamplerConfig(kind="replay", problems=6),
        train=train(steps=4, backend="trl"),
    )
    run_rows = run(config, tmp_path)
    assert [row["step"] for row in run_rows] == [0, 1, 2, 3, 4]
    assert ["grad_norm/policy" in row for row in run_rows] == [False, False, True, False, True]
    assert status(tmp_path)["state"] == "finished"


# What a run leaves behind


def test_run_folder_is_ours(policy: str, backend: Any, tmp_path: Path) -> None:
    config = configure(policy, GRPO(), train=train(steps=3, num_minibatches=2, backend="trl"))
    run_rows = run(config, tmp_path)
    assert [row["step"] for row in run_rows] == [0, 1, 2, 3]
    assert not {key for row in run_rows for key in row if not is_metric(key)}
    first = {f"eval/{s}/{m}/correct" for s in ("validation", "test") for m in ("sampled", "greedy")}
    evaluated = [
        {key for key in row if key.startswith("eval/") and key.endswith("/correct")} for row in run_rows
    ]
    assert evaluated == [first, set(), {key for key in first if "/validation/" in key}, first]
    for row in run_rows[1:]:
        assert row["trl/reward"] == pytest.approx(row["reward/mean"])  # TRL's mean of what we graded
        assert row["trl/completions/mean_length"] == pytest.approx(row["length/mean"])
        # this random policy writes pad tokens too, and TRL takes one at the end for an end token
        assert row["trl/completions/clipped_ratio"] <= row["length/truncated"]
        assert row["trl/frac_reward_zero_std"] == pytest.approx(row["groups/zero_signal"])
        assert {
            "policy/entropy",
            "trained/entropy",
            "policy/clip_low",
            "policy/clip_high",
            "trl/loss",
        } <= row.keys()
        assert not {"gap/mean", "trained/ratio_mean"} & row.keys()  # what TRL does not tell
    assert run_rows[1]["cost/generated_tokens"] == pytest.approx(16 * run_rows[1]["length/mean"])
    assert run_rows[3]["cost/trained_tokens"] == run_rows[3]["cost/generated_tokens"]
    loaded = loading.load(policy)
    weights = weights_per_token(*trunk_and_head(loaded.model), loaded.model.config)
    prompts = sum(len(loaded.encode(group["prompt"])) for group in transcript(tmp_path, 1))
    assert run_rows[1]["cost/flops"] == 8 * weights * (run_rows[1]["cost/generated_tokens"] + prompts)
    assert {row["step"] for row in rows(tmp_path, "eval.jsonl")} == {0, 2, 3}
    assert sorted(path.name for path in (tmp_path / "rollouts").iterdir()) == [
        "step-1.jsonl.zst",
        "step-2.jsonl.zst",
        "step-3.jsonl.zst",
    ]
    provenance = json.loads((tmp_path / "provenance.json").read_text())
    recorded = provenance["attempts"][0]["trl"]
    assert recorded["version"] == importlib.metadata.version("trl") == provenance["fingerprints"]["trl"]
    assert recorded["trainer"] == "GRPOTrainer" and recorded["arguments"]["loss_type"] == "grpo"
    assert status(tmp_path)["state"] == "finished"


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in timeless(row).items() if key != "trl/step_time"}


@pytest.mark.parametrize("name", ["grpo", "dpo"])
def test_stopped_and_resumed_run_equals_an_uninterrupted_one(
    name: str, policy: str, backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a warm-up, a moving reference and several updates per step, all of which must go on. Told to stop
    between steps, before a step's first update, in an evaluation, and where a step begins."""
    if name == "dpo":
        config = training(offline(policy, "dpo"), backend="trl")
    else:
        config = configure(
            policy,
            GRPO(beta=0.1),
            train=train(steps=3, num_minibatches=2, warmup_steps=3, backend="trl"),
            modify=Modifiers(reference_every=1, reference_mix=0.5),
        )
    undisturbed = run(config, tmp_path / "whole")
    run_until_stopped(config, tmp_path / "parts", 1)
    monkeypatch.setattr(stopping, "ASK", 0.0)
    inside = [(1, "training", [1]), (2, "evaluating on validation", [1, 2]), (2, "sampling", [1, 2])]
    for step, phase, saved in inside if name == "grpo" else inside[:1]:
        assert stopped(config, tmp_path / "parts", Told(step, phase, 1)) == saved
    parts = run(config, tmp_path / "parts")
    assert [untimed(row) for row in parts] == [untimed(row) for row in undisturbed]
    undisturbed_weights, other = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(tensor, other[key]) for key, tensor in undisturbed_weights.items())


def test_bfloat16_trains_float32_weights(policy: str, backend: Any, tmp_path: Path) -> None:
    config = configure(
        policy, GRPO(), train=train(backend="trl"), model=ModelConfig(policy, dtype="bfloat16")
    )
    _, row = run(config, tmp_path)
    assert row["grad_norm/policy"] > 0
    assert {tensor.dtype for tensor in weights(tmp_path).values()} == {torch.float32}


def test_an_update_that_is_not_finite_is_a_divergence(
    policy: str, backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL applies such an update, so that the run cannot go on; what came before stays."""
    made = backend.Sampled.trainer

    def trainer(work: Any, output_folder: Path) -> Any:
        theirs = made(work, output_folder)
        plain = theirs._compute_loss
        theirs._compute_loss = lambda model, inputs: (
            plain(model, inputs) * (math.nan if theirs.state.global_step == 1 else 1.0)
        )
        return theirs

    monkeypatch.setattr(backend.Sampled, "trainer", trainer)
    run_rows = run(configure(policy, GRPO(), train=train(steps=4, backend="trl")), tmp_path)
    assert [row["step"] for row in run_rows] == [0, 1, 2]
    assert run_rows[2]["grad/nonfinite"] == 1 and run_rows[2]["trl/loss"] is None
    run_status = status(tmp_path)
    assert run_status["state"] == "diverged" and "in step 2" in run_status["why"]
    assert (tmp_path / "rollouts" / "step-2.jsonl.zst").exists()
    assert not [*tmp_path.glob("final/*")], "TRL has written NaN into every weight"


def test_nonfinite_weights_diverge_though_loss_and_gradient_are_finite(
    policy: str, backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last step of all; its checkpoint before stays."""
    made, updates = backend.Sampled.trainer, []

    def spoil(adam: Any, *_: Any) -> None:
        updates.append(1)
        if len(updates) == 2:
            adam.param_groups[0]["params"][0].data.view(-1)[-1] = math.inf

    def trainer(work: Any, output_folder: Path) -> Any:
        work.ours.models.optimizers["policy"].inner.register_step_post_hook(spoil)
        return made(work, output_folder)

    monkeypatch.setattr(backend.Sampled, "trainer", trainer)
    settings = {"train": train(steps=2, backend="trl"), "checkpoint": CheckpointConfig(every=1)}
    run_rows = run(configure(policy, GRPO(), **settings), tmp_path)
    assert run_rows[2]["step"] == 2 and run_rows[2]["grad/nonfinite"] == 0
    assert not any(key.startswith("eval/") for key in run_rows[2])
    assert status(tmp_path)["why"] == "weights of the policy are not finite after step 2"
    assert status(tmp_path)["state"] == "diverged"
    assert [path.name for path in tmp_path.glob("checkpoints/*")] == ["step-1"]
    assert not [*tmp_path.glob("final/*")]


def test_an_event_to_stop_on_ends_trls_trainer_too(
    policy: str, backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reward of the first of twelve steps is .5 and then 0: three in a row are there after step 4."""
    plain, steps = Trainer.finish_step, []

    def lost(self: Any, row: dict[str, float], *arguments: Any) -> dict[str, float]:
        steps.append(1)
        return plain(self, row, *arguments) | {"reward/mean": 0.5 * (len(steps) == 1), "reward/std": 0.1}

    monkeypatch.setattr(Trainer, "finish_step", lost)
    config = configure(policy, GRPO(), train=train(steps=12, backend="trl"))
    run_rows = run(dataclasses.replace(config, stop_on=("reward_collapse",)), tmp_path)
    assert run_rows[-1]["step"] == 4 and any(name.startswith("eval/test/") for name in run_rows[-1])
    assert status(tmp_path)["state"] == "collapsed"
    assert (tmp_path / "final" / "policy.safetensors").exists()


class Ungraded(Letters):
    """The first completion of every problem cannot be graded."""

    def verify(self, problem: Any, completions: Any) -> list[Verdict]:
        graded = super().verify(problem, completions)
        return [Verdict({}, None, "infra_error"), *graded[1:]]


def test_what_was_not_graded_has_no_reward(policy: str, backend: Any, tmp_path: Path) -> None:
    config = configure(policy, GRPO(), task=Ungraded(), train=train(backend="trl"))
    rewards: list[Any] = []
    made = backend.Sampled.reward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            backend.Sampled, "reward", lambda work, **kw: rewards.append(made(work, **kw)) or rewards[-1]
        )
        _, row = run(config, tmp_path)
    assert [reward is None for reward in rewards[0]] == [True, False, False, False] * 4
    assert row["outcome/infra_error"] == 0.25
    assert row["trl/reward"] == pytest.approx(row["reward/mean"])


def test_overlong_completions_are_punished_in_the_reward(policy: str, backend: Any, tmp_path: Path) -> None:
    config = configure(
        policy,
        GRPO(),
        train=train(backend="trl"),
        sampler=SamplerConfig(max_completion_tokens=8),
        modify=Modifiers(overlong_buffer=4, overlong_penalty=2.0),
    )
    _, row = run(config, tmp_path)
    assert row["modify/overlong"] < 0
    assert row["trl/reward"] == pytest.approx(row["reward/mean"] + row["modify/overlong"], abs=1e-6)


# What TRL cannot do


@pytest.mark.parametrize(
    ("sets", "remedy"),
    [
        (["algorithm.baseline=median"], 'set settings.baseline = "mean"'),
        (["algorithm.ddof=0"], "set settings.ddof = 1"),
        (["algorithm.epsilon=1e-6"], "set settings.epsilon = 0.0001"),
        (
            ["algorithm.beta=0.1", "algorithm.kl_estimator=k2"],
            'set settings.kl_estimator = "k3" or "k3_unbiased"',
        ),
        (["algorithm.beta=0.1", "algorithm.kl_placement=reward"], 'set settings.kl_placement = "loss"'),
        (["modify.dynamic_sampling=2"], "modify.dynamic_sampling"),
        (["modify.mask_truncated=true"], 'set settings.averaging = "token_mean"'),
        (["modify.zero_variance_filter=true"], "modify.zero_variance_filter"),
        (["modify.entropy_target=0.2"], "modify.entropy_target"),
        (["modify.entropy_bonus=0.1"], 'set settings.averaging = "token_mean"'),
        (
            [
                "modify.entropy_bonus=0.1",
                "algorithm.averaging=token_mean",
                "train.micro_batch_tokens=2048",
            ],
            "set train.micro_batch_tokens = 0",
        ),
        (["arms=entropy_mask", "modify.entropy_bonus=0.1"], "set it to 0"),
        (["arms=rloo", "modify.off_policy_mask=0.1"], "RLOOTrainer does not have it"),
        (["sampler.kind=vllm"], 'set it to "hf"'),
        (["sampler.old_logp=sampler"], 'set it to "auto"'),
        (["sampler.correction=tis"], 'set it to "none"'),
        (["model.dtype=bfloat16", "model.weights=bfloat16"], 'set it to "float32"'),
        (["train.offload_optimizer=true"], "set it to false"),
        (["tasks=horizon"], "to tasks of one turn"),
        (["arms=dpo", "sampler.kind=replay", "sampler.temperature=0.7"], "set it to 1"),
        (["arms=dpo", "sampler.kind=replay", "algorithm.nll=1"], "set settings.nll = 0.0"),
        (["arms=sapo", "algorithm.averaging=constant"], 'set settings.averaging = "sequence_mean"'),
    ],
)
def test_what_trl_cannot_express_is_refused_with_the_remedy(sets: list[str], remedy: str) -> None:
    chosen = [] if sets[0].startswith("arms") else ["arms=grpo"]
    tasks = [] if sets[0].startswith("tasks") else ["tasks=arithmetic"]
    with pytest.raises(ConfigError) as refused:
        read_recipe("quickstart", ["train.backend=trl", *chosen, *tasks, *sets])
    faults = refused.value.faults
    assert any(remedy in fault and 'train.backend = "grpobench"' in fault for fault in faults), faults


def test_every_offered_setting_is_accepted() -> None:
    pytest.importorskip("trl")
    for sets in (["arms=grpo,gspo"], ["arms=dpo", "sampler.kind=replay"]):
        read = read_recipe("quickstart", ["train.backend=trl", *sets])
        assert all(config.train.backend == "trl" for config in read.runs())
    read = read_recipe("quickstart", ["arms=grpo,ppo", "arm.grpo.train.backend=trl"])
    assert {config.arm: config.train.backend for config in read.runs()} == {"grpo": "trl", "ppo": "grpobench"}


@pytest.mark.parametrize(
    ("release", "message"), [(None, "trl is not installed"), ("1.17.2", "trl 1.17.2 is installed")]
)
def test_a_machine_without_the_release_is_told_so(
    release: str | None, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if release is None else object())
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: release if name == "trl" and release else real(name)
    )
    words = [
        "run",
        "quickstart",
        "--set",
        "train.backend=trl",
        "--set",
        "arms=grpo",
        "--set",
        "tasks=arithmetic",
    ]
    assert cli.main(words) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error and "pip install 'trl==1.16.*'" in error


# The command

RECIPE = """
name = "both"
tasks = ["arithmetic"]
[train]
steps = 30
prompts_per_step = 2
group_size = 2
[evaluate]
problems = 2
samples = 1
test_problems = 2
every = 0
[checkpoint]
every = 0
[[arm]]
algorithm = "grpo"
[[arm]]
name = "grpo-trl"
algorithm = "grpo"
train.backend = "trl"
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """The command that runs both arms in the test's folder."""
    pytest.importorskip("trl")
    (tmp_path / "both.toml").write_text(RECIPE)
    return ["run", str(tmp_path / "both.toml"), "--out", str(tmp_path), "--workers", "1"]


@pytest.mark.slow
def test_both_backends_stand_in_one_report(words: list[str], tmp_path: Path) -> None:
    assert cli.main([*words, "--set", "train.steps=2"]) == 0
    report = (tmp_path / "both" / "report" / "tables" / "accuracy.csv").read_text()
    assert "grpo," in report and "grpo-trl," in report
    for arm, backend in (("grpo", "grpobench"), ("grpo-trl", "trl")):
        text = (tmp_path / "both" / f"{arm}-arithmetic-s0" / "run.toml").read_text()
        assert f'backend = "{backend}"' in text


@pytest.mark.slow
def test_sigterm_saves_and_the_next_start_goes_on(words: list[str], tmp_path: Path) -> None:
    program = "import sys; from grpobench.runs.cli import main; sys.exit(main())"
    words += ["--set", "arms=grpo-trl"]
    child = subprocess.Popen([sys.executable, "-c", program, *words], stderr=subprocess.DEVNULL)
    path = tmp_path / "both" / "grpo-trl-arithmetic-s0"
    deadline = time.monotonic() + 120
    while not (path / "metrics.jsonl").exists() or len(rows(path)) < 3:
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 75
    run_status = status(path)
    assert run_status["state"] == "preempted" and 0 < run_status["step"] < 30
    assert [saved.name for saved in (path / "checkpoints").iterdir()] == [f"step-{run_status['step']}"]
    assert cli.main(words) == 0
    final_status = status(path)
    assert (final_status["state"], final_status["attempt"]) == ("finished", 2)
    assert [row["step"] for row in rows(path)] == list(range(31))
