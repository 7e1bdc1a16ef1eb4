"""A hand-over in verl's own hands: its hydra files, dataclasses, data set, reward manager and losses."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.handed import ARMS, hand_over
from helpers.toys import Fixed, close, reading, rollouts

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Algorithm, Batch, ModelOutput
from grpobench.runs.handover import data
from grpobench.runs.handover.folder import overrides
from grpobench.runs.handover.plan import Plan
from grpobench.runs.models.loading import load
from grpobench.runs.runfolder.logs import status
from grpobench.tasks.task import Problem

pytest.importorskip("verl")
pytestmark = pytest.mark.verl

MORE = ("arm.grpo.settings.beta=0.04", "arm.grpo.settings.kl_estimator=k3", "arm.gspo.settings.beta=0.02")
"""A KL in the loss for two arms, so that its part is compared too."""
# float32: verl computes these losses in it, and ours follows.
NEAR = {"rtol": 2e-5, "atol": 2e-6}


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    return hand_over(tmp_path_factory.mktemp("verl"), "verl", *ARMS, sets=MORE)


def runs(folder: Path) -> dict[str, Any]:
    recorded_runs: dict[str, Any] = json.loads((folder / "provenance.json").read_text())["hand_over"]["runs"]
    return recorded_runs


def composed(folder: Path, name: str) -> Any:
    """The configuration of a run as verl's hydra files compose it with the arguments of run.sh."""
    from hydra import compose, initialize_config_dir

    run = runs(folder)[name]
    machines = ["trainer.nnodes=1", "trainer.n_gpus_per_node=1"]
    with initialize_config_dir(str(folder / "configs"), version_base=None):
        return compose(run["part"], [*overrides(name, run, str(folder)), *machines])


@pytest.mark.parametrize("arm", ARMS)
def test_verl_composes_and_validates_every_run(arm: str, handed: tuple[Plan, Path]) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    for seed in (3, 4):
        config = composed(handed[1], f"{arm}-arithmetic-s{seed}")
        assert need_critic(config) is (arm == "ppo")
        assert need_reference_policy(config) is (arm in ("grpo", "gspo"))
        validate_config(config, need_reference_policy(config), need_critic(config))
        for section in ("actor_rollout_ref.rollout", "algorithm", "critic", "actor_rollout_ref.model"):
            node = config
            for name in section.split("."):
                node = node[name]
            assert dataclasses.is_dataclass(omega_conf_to_dataclass(node))
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        assert actor.ppo_mini_batch_size == 2  # of 4 prompts in 2 minibatches
        assert actor.optim.lr == 1e-4
        assert config.data.seed == seed
        assert config.trainer.total_training_steps == 2


def test_verls_data_set_reads_the_rows_in_our_order_and_encodes_prompts_as_we_do(
    handed: tuple[Plan, Path],
) -> None:
    from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
    from verl.utils.config import omega_conf_to_dataclass

    plan, folder = handed
    config = composed(folder, "grpo-arithmetic-s4")
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    rows = create_rl_dataset(config.data.train_files, config.data, model.tokenizer, model.processor)
    drawn = [rows[index] for index in create_rl_sampler(config.data, rows)]
    ours = load("nano")
    problems = data.Problems(plan.parts[0].config, ours, 40)
    expected = [problems.train[index] for index in problems.schedule(4)]
    assert [row["extra_info"]["id"] for row in drawn] == [problem.id for problem in expected]
    assert len(drawn) == 2 * 4  # steps, prompts
    for row, problem in zip(drawn, expected, strict=True):
        ids = model.tokenizer.apply_chat_template(
            row["raw_prompt"], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert tuple(ids) == ours.encode(problem.prompt)
        assert len(ids) <= config.data.max_prompt_length
    evaluated_rows = create_rl_dataset(config.data.val_files, config.data, model.tokenizer, model.processor)
    assert [row["data_source"] for row in evaluated_rows] == ["arithmetic-validation"] * 6 + [
        "arithmetic-test"
    ] * 8


def test_verls_reward_manager_gives_our_verdicts_on_a_hundred_completions_of_a_run(
    handed: tuple[Plan, Path], stored: list[tuple[Problem, str, dict[str, Any]]]
) -> None:
    """Token ids in, reward out: verl decodes, calls reward.py in a thread and keeps every score."""
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager
    from verl.utils.config import omega_conf_to_dataclass

    plan, folder = handed
    config = composed(folder, "grpo-arithmetic-s3")
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    manager = load_reward_manager(config, model.tokenizer)
    assert len(stored) >= 100
    correctness = set()
    for problem, text, ours in stored:
        row = data.row(plan.parts[0].config, problem, "train", 0)
        tokens = model.tokenizer.encode(text, add_special_tokens=False)
        width = len(tokens) + 3
        proto = DataProto.from_dict(
            tensors={
                "responses": torch.tensor([tokens + [0] * 3]),
                "attention_mask": torch.tensor([[1] * len(tokens) + [0] * 3]),
            },
            non_tensors={
                name: np.array([row[name]], dtype=object)
                for name in ("data_source", "reward_model", "extra_info")
            },
        )
        assert proto.batch["responses"].shape == (1, width)
        graded = manager.loop.run_until_complete(manager.run_single(proto))
        assert graded["reward_score"] == pytest.approx(ours["reward"])
        scores = graded["reward_extra_info"]
        assert scores["acc"] == ours["scores"]["correct"]
        for name, value in ours["scores"].items():
            if name != "correct":
                assert scores[name] == value
        correctness.add(ours["scores"]["correct"])
    assert correctness == {0.0, 1.0}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Problem, str, dict[str, Any]]]:
    """Problem, completion, and reward and scores that our loop gave, from the rollouts of a run of it."""
    from helpers.handed import stored_completions

    folder = tmp_path_factory.mktemp("ours")
    completions = stored_completions(folder)
    assert status(next(folder.rglob("status.json")).parent)["state"] == "finished"
    return completions


# Losses


def lesson() -> tuple[Batch, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Groups of four and three completions, current and reference log-probabilities, and values of a critic
    before and now. Ratios reach far beyond every clip range."""
    batch = rollouts([[7, 4, 2, 1], [9, 5, 1]], [[1.0, 0.0, 0.5, 0.0], [0.0, 1.0, 1.0]], limit=13)
    draw = torch.Generator().manual_seed(5)
    shape = batch.completion_mask.shape

    def around(center: torch.Tensor | float, spread: float) -> torch.Tensor:
        return center + spread * torch.randn(shape, generator=draw)

    batch = dataclasses.replace(batch, old_logp=around(-1.5, 0.5))
    now = around(batch.old_logp, 0.6)
    return batch, now, around(batch.old_logp, 0.3), around(0.4, 0.3), around(0.4, 0.5)


def of_ours(
    algorithm: Algorithm[Any], batch: Batch, now: torch.Tensor, reference: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Loss of the policy, its gradient with respect to log π, and the signal."""
    leaf = now.clone().requires_grad_()
    readers = Fixed(
        reference=reading(reference), critic=reading(batch.old_logp, value), policy=reading(batch.old_logp)
    )
    signal = algorithm.compute_signal(batch, readers)
    fixed = {"policy": reading(leaf), "critic": reading(now, value)}
    loss = algorithm.loss(batch, signal, fixed)
    terms = (loss.terms * algorithm.loss_weights(batch)).sum()
    return terms.detach(), torch.autograd.grad(terms, leaf)[0], signal


def nested(rows: torch.Tensor, batch: Batch) -> torch.Tensor:
    """(B, T) without its padding, as verl's trainer hands it on."""
    return torch.nested.as_nested_tensor(
        [row[:length] for row, length in zip(rows, batch.length.tolist(), strict=True)], layout=torch.jagged
    )


def sequences(rows: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Numbers of the completions' tokens as a model gives them: for whole sequences, one place earlier."""
    shifted = []
    for row, prompt, length in zip(rows, batch.prompt_length.tolist(), batch.length.tolist(), strict=True):
        shifted.append(torch.cat([torch.zeros(prompt - 1), row[:length], torch.zeros(1)]))
    return torch.nested.as_nested_tensor(shifted, layout=torch.jagged)


def advantages(config: Any, batch: Batch, reference: torch.Tensor, value: torch.Tensor) -> Any:
    """verl's advantages and returns for a batch, by its own dispatch."""
    from verl import DataProto
    from verl.trainer.ppo.core_algos import get_kl_controller
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty, compute_advantage

    mask = batch.completion_mask.float()
    scores = batch.reward[:, None] * parts.last_written(batch.completion_mask)
    proto = DataProto.from_dict(
        tensors={
            "token_level_scores": scores,
            "token_level_rewards": scores,
            "response_mask": mask,
            "old_log_probs": batch.old_logp * mask,
            "ref_log_prob": reference * mask,
            "values": value * mask,
        },
        non_tensors={"uid": np.array([str(group) for group in batch.group.tolist()], dtype=object)},
    )
    settings = config.algorithm
    if settings.use_kl_in_reward:
        proto, _ = apply_kl_penalty(proto, get_kl_controller(settings.kl_ctrl), settings.kl_penalty)
    return compute_advantage(
        proto,
        settings.adv_estimator,
        settings.gamma,
        settings.lam,
        4,
        settings.norm_adv_by_std_in_grpo,
        settings,
    ).batch


def lesson_data(batch: Batch, **fields: torch.Tensor) -> Any:
    """A minibatch as verl's engine gives it to its losses."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    token_ids = [
        torch.arange(prompt + length)
        for prompt, length in zip(batch.prompt_length.tolist(), batch.length.tolist(), strict=True)
    ]
    tensors = TensorDict(
        {
            "prompts": torch.nested.as_nested_tensor(
                [ids[:prompt] for ids, prompt in zip(token_ids, batch.prompt_length.tolist(), strict=True)],
                layout=torch.jagged,
            ),
            "responses": nested(batch.completion, batch),
            "response_mask": nested(batch.completion_mask.float(), batch),
            **{name: nested(rows, batch) for name, rows in fields.items()},
        },
        batch_size=len(batch),
    )
    tu.assign_non_tensor(
        tensors, dp_size=1, batch_num_tokens=int(batch.completion_mask.sum()), global_batch_size=len(batch)
    )
    return tensors


def of_verl(
    config: Any, batch: Batch, now: torch.Tensor, reference: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """verl's `ppo_loss` with a run's configuration, and its gradient with respect to log π."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    signal = advantages(config, batch, reference, value)
    lesson_tensors = lesson_data(
        batch, old_log_probs=batch.old_logp, ref_log_prob=reference, advantages=signal["advantages"]
    )
    leaf = now.clone().requires_grad_()
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    loss, _ = ppo_loss(actor, {"log_probs": sequences(leaf, batch)}, lesson_tensors)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def exact(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """With verl's constant beside the deviation, whose effect is listed; see the test after."""
    names = {field.name for field in dataclasses.fields(algorithm)}
    return dataclasses.replace(algorithm, epsilon=1e-6) if "epsilon" in names else algorithm


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm != "ppo"])
def test_verls_loss_and_gradient_on_a_stored_batch_are_ours(arm: str, handed: tuple[Plan, Path]) -> None:
    plan, folder = handed
    config = composed(folder, f"{arm}-arithmetic-s3")
    algorithm = next(part.config.algorithm for part in plan.parts if part.config.arm == arm)
    batch, now, reference, value, _ = lesson()
    batch = dataclasses.replace(batch, max_completion_tokens=config.data.max_response_length)
    ours, slope, _ = of_ours(exact(algorithm), batch, now, reference, value)
    theirs, their_slope = of_verl(config, batch, now, reference, value)
    close(theirs, ours, **NEAR)
    close(their_slope, slope * batch.completion_mask, **NEAR)
    assert their_slope.abs().max() > 1e-3


@pytest.mark.parametrize("arm", ["grpo", "dapo", "gspo", "cispo", "sapo"])
def test_the_recipes_constant_beside_the_deviation_changes_as_much_as_is_listed(
    arm: str, handed: tuple[Plan, Path]
) -> None:
    """Advantages times (s + 1e-4)/(s + 1e-6) in each group, s its deviation; 2.1e-4 more at most here."""
    plan, folder = handed
    config = composed(folder, f"{arm}-arithmetic-s3")
    algorithm = next(part.config.algorithm for part in plan.parts if part.config.arm == arm)
    batch, now, reference, value, _ = lesson()
    _, _, signal = of_ours(algorithm, batch, now, reference, value)
    their_advantages = advantages(config, batch, reference, value)["advantages"]
    for group in batch.group.unique():
        rows = batch.group == group
        deviation = batch.reward[rows].std()
        factor = (deviation + 1e-4) / (deviation + 1e-6)
        close(their_advantages[rows], signal.advantage[rows] * factor, rtol=1e-5, atol=1e-6)


def test_verls_loss_of_a_policy_with_a_critic_is_ours_up_to_bessels_correction(
    handed: tuple[Plan, Path],
) -> None:
    """Its advantages are ours times √((n − 1)/n), and a clipped objective is proportional to them."""
    plan, folder = handed
    config = composed(folder, "ppo-arithmetic-s3")
    algorithm = next(part.config.algorithm for part in plan.parts if part.config.arm == "ppo")
    batch, now, reference, value, _ = lesson()
    ours, slope, signal = of_ours(
        dataclasses.replace(algorithm, value_coefficient=0.0), batch, now, reference, value
    )
    theirs, their_slope = of_verl(config, batch, now, reference, value)
    tokens = int(batch.completion_mask.sum())
    factor = ((tokens - 1) / tokens) ** 0.5
    their_signal = advantages(config, batch, reference, value)
    close(their_signal["advantages"] * batch.completion_mask, signal.advantage * factor, **NEAR)
    close(their_signal["returns"][batch.completion_mask], signal.returns[batch.completion_mask], **NEAR)
    close(theirs, ours * factor, **NEAR)
    close(their_slope, slope * factor * batch.completion_mask, **NEAR)


def test_verls_loss_of_a_critic_is_ours(handed: tuple[Plan, Path]) -> None:
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import value_loss

    plan, folder = handed
    config = composed(folder, "ppo-arithmetic-s3")
    algorithm = next(part.config.algorithm for part in plan.parts if part.config.arm == "ppo")
    batch, now, reference, value, after = lesson()
    their_signal = advantages(config, batch, reference, value)
    lesson_tensors = lesson_data(batch, values=value, returns=their_signal["returns"])
    leaf = after.clone().requires_grad_()
    critic = omega_conf_to_dataclass(config.critic)
    theirs, _ = value_loss(critic, {"values": sequences(leaf, batch)}, lesson_tensors)
    their_slope = torch.autograd.grad(theirs, leaf)[0]

    mine = after.clone().requires_grad_()
    readers = Fixed(critic=reading(batch.old_logp, value), policy=reading(batch.old_logp))
    signal = algorithm.compute_signal(batch, readers)
    both = {"policy": reading(now), "critic": ModelOutput(now, torch.zeros_like(now), mine)}
    loss = algorithm.loss(batch, signal, both)
    ours = (loss.terms * algorithm.loss_weights(batch)).sum()
    slope = torch.autograd.grad(ours, mine)[0]
    close(their_slope, slope * batch.completion_mask, **NEAR)
    unclipped = dataclasses.replace(algorithm, value_coefficient=0.0).loss(batch, signal, both)
    policy = (unclipped.terms * algorithm.loss_weights(batch)).sum()
    close(theirs.detach(), (ours - policy).detach(), **NEAR)


def test_the_parts_of_a_split_minibatch_add_up_to_verls_loss_of_the_whole() -> None:
    """Two halves with the counts of the whole add up to it, as in our loop: `use_dynamic_bsz` splits."""
    from verl.trainer.ppo.core_algos import agg_loss

    batch, now, *_ = lesson()
    mask = batch.completion_mask.float()
    tokens, rows = int(mask.sum()), len(batch)
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"):
        counts = {"batch_num_tokens": tokens, "global_batch_size": rows, "loss_scale_factor": 13}
        full_loss = agg_loss(now, mask, mode, dp_size=1, **counts)
        halves = sum(
            agg_loss(now[part], mask[part], mode, dp_size=1, **counts) for part in ([0, 1, 2], [3, 4, 5, 6])
        )
        close(halves, full_loss, **NEAR)


def test_the_kept_list_of_keys_is_that_of_this_release(handed: tuple[Plan, Path]) -> None:
    """Every kept key is in what verl composes, and every key of it is kept."""
    from omegaconf import DictConfig

    from grpobench.runs.handover.verl import configuration_keys

    def leaves(table: Any, prefix: str = "") -> set[str]:
        keys = set()
        for key in table:
            value = table._get_node(key)
            if isinstance(value, DictConfig) and len(value):
                keys |= leaves(value, f"{prefix}{key}.")
            elif key != "_target_":
                keys.add(f"{prefix}{key}")
        return keys

    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer")
    assert leaves(config) == set(configuration_keys())


def test_a_coroutine_may_ask_the_reward_function_from_many_threads(handed: tuple[Plan, Path]) -> None:
    from verl.trainer.ppo.reward import get_custom_reward_fn

    plan, folder = handed
    config = composed(folder, "grpo-arithmetic-s3")
    function = get_custom_reward_fn(config)
    task = plan.parts[0].config.task
    problems = task.problems("train")[:20]

    async def all_of_them() -> list[Any]:
        loop = asyncio.get_running_loop()
        calls = []
        for problem in problems:
            row = data.row(plan.parts[0].config, problem, "train", 0)
            arguments = {
                "data_source": row["data_source"],
                "solution_str": task.demonstrate(problem),
                "ground_truth": row["reward_model"]["ground_truth"],
                "extra_info": row["extra_info"] | {"num_turns": 2},
            }
            calls.append(loop.run_in_executor(None, lambda arguments=arguments: function(**arguments)))
        return await asyncio.gather(*calls)

    graded = asyncio.run(all_of_them())
    assert [scores["acc"] for scores in graded] == [1.0] * 20
