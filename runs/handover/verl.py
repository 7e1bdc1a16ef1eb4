"""A part as a configuration of verl 0.9, for its hydra files."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpobench.algorithms.algorithm import Role
from grpobench.algorithms.libraries import verl_arguments
from grpobench.algorithms.libraries.verl_arguments import ACTOR, RELEASE, UNBOUNDED
from grpobench.runs.handover.plan import TranslatedPart
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded

KEYS = Path(__file__).parent / "verl_keys.txt"
"""Every key of the configuration that `ppo_trainer.yaml` composes, and its version in the first line."""
OPEN = ("reward.reward_kwargs.", "reward.custom_reward_function.reward_kwargs.")
"""Tables that verl's files do not declare and its code reads."""
MODEL, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
TOKENS_AT_ONCE = 16_384
"""Tokens that a GPU takes forward and backward at once, as in our own loop."""
PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""The chat template for models that have none: the prompt itself."""
DIFFERS = (
    "completions are sampled by vLLM with its own generator, and log π_old is computed again by the trainer",
    "a step's completions are cut into minibatches as they are balanced over GPUs; ours deals whole groups",
    "a completion that could not be graded ends the run there; ours leaves it out",
)
"""Whatever the recipe says."""

PLAYED = "episodes are played one by one by an agent loop; ours plays those of a step turn by turn together"
AGENT = "grpobench"
"""Name of the agent loop that plays episodes of several turns."""
AGENT_LOOPS = f"- name: {AGENT}\n  _target_: grpobench.runs.handover.verl_episodes.EpisodeLoop\n"
"""The file of agent loops."""


@functools.cache
def configuration_keys() -> frozenset[str]:
    """The keys of verl's configuration."""
    return frozenset(bounded.read_text(KEYS).splitlines()[1:])


def unknown(settings: Mapping[str, Any]) -> list[str]:
    """Keys that verl's configuration does not have."""
    return [key for key in settings if key not in configuration_keys() and not key.startswith(OPEN)]


def translate(config: RunConfig) -> TranslatedPart:
    """A run's settings in verl's terms, without what depends on the seed and on where files are."""
    limit = config.sampler.max_completion_tokens or config.task.max_completion_tokens
    translated = verl_arguments.translate(config.algorithm, config.modify, limit)
    if not translated.settings:
        return TranslatedPart({}, translated.refused)
    settings = {
        **batch_settings(config, limit),
        **optimizer_settings(config, translated.critic),
        **precision_settings(config, translated.critic),
        **evaluation_settings(config),
        **translated.settings,
    }
    if config.task.turns != 1:
        settings[f"{ROLLOUT}.agent.default_agent_loop"] = AGENT
    if lost := unknown(settings):
        raise ConfigError([f"verl {RELEASE} has no setting {', '.join(lost)}"])
    played = [PLAYED] if config.task.turns != 1 else []
    differs = [*translated.differs, *DIFFERS, *played, *training_differences(config)]
    return TranslatedPart(settings, [*translated.refused, *refusals(config)], differs)


def refusals(config: RunConfig) -> Iterator[str]:
    """What of a run's training verl cannot express, each with its remedy."""
    train, task = config.train, config.task
    if task.turns != 1 and config.modify.overlong_buffer:
        yield (
            f"modify.overlong_buffer is the reward manager's, and the agent loop that plays {task.name} "
            "gives rewards itself; set it to 0"
        )
    if train.backend != "grpobench":
        yield f'train.backend is "{train.backend}"; set it to "grpobench"'
    if config.algorithm.name in grouped() and train.group_size <= 1:
        yield (
            "train.group_size is 1, and verl's advantage of a group of one is its reward; set it to 2 or more"
        )
    if train.prompts_per_step % train.num_minibatches != 0:
        yield (
            f"train.num_minibatches = {train.num_minibatches} does not divide train.prompts_per_step = "
            f"{train.prompts_per_step}, and verl's minibatches have one number of prompts"
        )
    if config.model.dtype == "float16":
        yield (
            'model.dtype is "float16", and its scale of the losses is not handed over; set it to "bfloat16"'
        )
    if train.schedule not in ("constant", "cosine"):
        yield f'train.schedule is "{train.schedule}", and verl has "constant" and "cosine"'


def grouped() -> list[str]:
    """The algorithms whose advantages are those of groups."""
    return [name for name, entry in verl_arguments.TABLE.items() if not entry.critic]


def batch_settings(config: RunConfig, limit: int) -> dict[str, Any]:
    """Numbers of prompts, completions and updates, the sampler, and where a run ends."""
    train, checkpoint = config.train, config.checkpoint
    tokens = train.micro_batch_tokens or TOKENS_AT_ONCE
    return {
        "data.train_batch_size": train.prompts_per_step,
        "data.max_response_length": limit,
        "data.shuffle": False,  # the file has the order of our own schedule
        "data.filter_overlong_prompts": False,
        "data.truncation": "error",
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.n": train.group_size,
        f"{ROLLOUT}.temperature": config.sampler.temperature,
        f"{ROLLOUT}.top_p": 1.0,
        f"{ROLLOUT}.top_k": -1,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ACTOR}.ppo_mini_batch_size": train.prompts_per_step // train.num_minibatches,
        f"{ACTOR}.ppo_epochs": train.epochs,
        f"{ACTOR}.shuffle": train.epochs > 1,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": tokens,
        "critic.ppo_max_token_len_per_gpu": tokens,
        f"{MODEL}.enable_gradient_checkpointing": train.activation_checkpointing,
        "critic.model.enable_gradient_checkpointing": train.activation_checkpointing,
        "trainer.total_training_steps": train.steps,
        "trainer.total_epochs": 1,  # the file holds all steps
        "trainer.project_name": config.experiment,
        "trainer.logger": ["console", "file"],
        "trainer.save_freq": checkpoint.every or -1,
        "trainer.max_actor_ckpt_to_keep": checkpoint.keep,
        "trainer.max_critic_ckpt_to_keep": checkpoint.keep,
    }


def optimizer_settings(config: RunConfig, critic: bool) -> dict[str, Any]:
    """AdamW and its rate, for the policy and the critic."""
    train = config.train
    settings: dict[str, Any] = {}
    roles: dict[Role, str] = {"policy": ACTOR}
    if critic:
        roles["critic"] = "critic"
    most = min(train.max_grad_norm, UNBOUNDED)
    for role, section in roles.items():
        settings |= {
            f"{section}.optim.optimizer": "AdamW",
            f"{section}.optim.optimizer_impl": "torch.optim",
            f"{section}.optim.lr": train.learning_rate.get(role, train.learning_rate["policy"]),
            f"{section}.optim.betas": list(train.betas),
            f"{section}.optim.weight_decay": train.weight_decay,
            f"{section}.optim.clip_grad": most,
            f"{section}.grad_clip": most,
            f"{section}.optim.lr_scheduler_type": train.schedule,
            f"{section}.optim.min_lr_ratio": train.floor,
            f"{section}.optim.lr_warmup_steps": train.warmup_steps,
            f"{section}.optim.lr_warmup_steps_ratio": 0.0,
        }
    return settings


def precision_settings(config: RunConfig, critic: bool) -> dict[str, Any]:
    """Types of weights and of forward passes. Flash attention computes no float32, and verl packs sequences
    only with it."""
    dtype = config.model.dtype
    sections = [f"{ACTOR}.fsdp_config", "actor_rollout_ref.ref.fsdp_config", *(["critic.fsdp"] * critic)]
    settings: dict[str, Any] = {f"{ROLLOUT}.dtype": dtype}
    for section in sections:
        settings |= {f"{section}.dtype": dtype, f"{section}.model_dtype": "fp32"}
    if dtype == "float32":
        for model in (MODEL, *(["critic.model"] * critic)):
            settings |= {
                f"{model}.override_config": {"attn_implementation": "sdpa"},
                f"{model}.use_remove_padding": False,
            }
    return settings


def evaluation_settings(config: RunConfig) -> dict[str, Any]:
    """How validation answers are sampled, and when."""
    evaluate = config.evaluate
    sampled = not evaluate.greedy
    return {
        f"{ROLLOUT}.val_kwargs.do_sample": sampled,
        f"{ROLLOUT}.val_kwargs.temperature": evaluate.temperature if sampled else 0,
        f"{ROLLOUT}.val_kwargs.n": max(1, evaluate.samples) if sampled else 1,
        f"{ROLLOUT}.val_kwargs.top_p": 1.0,
        "trainer.val_before_train": evaluate.before,
        "trainer.test_freq": evaluate.every or config.train.steps,
    }


def training_differences(config: RunConfig) -> list[str]:
    """What of a run's training and evaluation is near to ours and not equal."""
    differences, evaluate = [], config.evaluate
    if config.train.warmup_steps:
        differences.append("train.warmup_steps: the rate of a step is that of ours one step before")
    if evaluate.greedy and evaluate.samples:
        differences.append("evaluate.samples: answers are greedy there, sampled ones are left out")
    if evaluate.test_problems and "test" in config.task.splits:
        differences.append("evaluate.test_problems: answered whenever validation problems are")
    if config.model.dtype == "float32":
        differences.append(
            'model.dtype is "float32": attention is torch\'s and sequences are padded, since flash attention '
            "computes no float32"
        )
    return differences


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted key as tables."""
    root: dict[str, Any] = {}
    for key, value in settings.items():
        *tables, name = key.split(".")
        branch = root
        for table in tables:
            branch = branch.setdefault(table, {})
        branch[name] = value
    return root


def document(settings: Mapping[str, Any]) -> str:
    """A hydra file that lays the settings over verl's own."""
    import yaml

    head = {
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "defaults": ["ppo_trainer", "_self_"],
    }
    text = yaml.safe_dump(head, sort_keys=False) + yaml.safe_dump(nested(settings), sort_keys=True)
    return f"# Laid over verl {RELEASE}'s ppo_trainer.yaml; run.sh adds seed, files and machines.\n{text}"
