"""A part as arguments of TRL's trainers, for `accelerate launch`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from grpobench.algorithms.libraries import trl_arguments
from grpobench.algorithms.libraries.trl_arguments import OVER_TOKENS, STAY, TABLE
from grpobench.runs.handover.plan import TranslatedPart
from grpobench.runs.settings import trl as settings
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.train.trl import arguments

SAMPLED = "completions are sampled by transformers, with one generator per process"
PLAYED = (
    "episodes are played by our own sampler as TRL's `rollout_func`, which is experimental there, with other "
    "random numbers than here"
)
DIFFERS = (
    "minibatches are dealt by completions, once per batch; ours deals whole groups, anew in each epoch",
    "AdamW is transformers': it decays no biases and no norms",
)
"""Whatever the recipe says; docs/backends.md has more of TRL's loop."""


def translate(config: RunConfig) -> TranslatedPart:
    """A run's settings as `train.py` of a hand-over reads them, without what depends on the seed."""
    entry = TABLE.get(config.algorithm.name)
    arguments, _ = trl_arguments.translate(config.algorithm, config.modify, settings.splitting(config))
    refused = [without_remedy(why) for why in settings.refusals(config, plays=True)]
    if entry is None:
        return TranslatedPart({}, refused)
    train, modify = config.train, config.modify
    limit = config.sampler.max_completion_tokens or config.task.max_completion_tokens
    part_settings = {
        "trainer": entry.trainer,
        "rows": train.prompts_per_step * train.group_size // train.num_minibatches,
        "minibatches": train.num_minibatches,
        "chat_template": config.model.chat_template,
        "overlong": {"buffer": modify.overlong_buffer, "penalty": modify.overlong_penalty, "limit": limit},
        "evaluate": {
            "every": config.evaluate.every * settings.splitting(config).updates,
            "before": config.evaluate.before,
            "greedy": config.evaluate.greedy,
            "samples": config.evaluate.samples,
            "temperature": config.evaluate.temperature,
            "limit": limit,
        },
        "arguments": {**training_arguments(config, limit), **arguments},
    }
    sampled = SAMPLED if config.task.turns == 1 else PLAYED
    differs = [sampled, *DIFFERS, *differences(config, arguments)]
    return TranslatedPart(part_settings, [*refused, *refusals(config, entry)], differs)


def without_remedy(why: str) -> str:
    """A reason without the remedy that needs our own loop."""
    return why.removesuffix(STAY).rstrip(" ,;").removesuffix(" or").rstrip(" ,;")


def refusals(config: RunConfig, entry: trl_arguments.TRLTrainer) -> Iterator[str]:
    """What of a run a hand-over to TRL cannot express beyond `train.backend = "trl"`."""
    if entry.pairs:
        yield "its trainer of TRL's takes recorded pairs, which are not handed over"
    if entry.separate:
        yield "its trainer of TRL's takes each part of the reward by itself, which is not handed over"
    if config.task.turns != 1:
        yield from of_episodes(config, entry)
    if config.train.schedule != "constant":
        yield (
            f'train.schedule is "{config.train.schedule}", which TRL\'s trainers count in updates; set '
            'it to "constant"'
        )


def of_episodes(config: RunConfig, entry: trl_arguments.TRLTrainer) -> Iterator[str]:
    """What of a task of several turns its trainer of TRL's cannot express."""
    task, modify = config.task, config.modify
    if entry.trainer != "GRPO":
        yield (
            f"TRL's {entry.trainer}Trainer takes no `rollout_func`, and {task.name} has {task.turns} turns; "
            "take an algorithm of its GRPOTrainer or a task of one turn"
        )
    if modify.mask_truncated:
        yield (
            f"modify.mask_truncated goes by end tokens there, and an episode of {task.name} may end without "
            "one; set it to false"
        )


def training_arguments(config: RunConfig, limit: int) -> dict[str, Any]:
    """Of every trainer that samples, in TRL's names."""
    train, updates = config.train, settings.splitting(config).updates
    plain = arguments.plain_arguments("")
    return {
        **{name: value for name, value in plain.items() if name not in ("output_dir", "disable_tqdm")},
        "gradient_checkpointing": train.activation_checkpointing,
        "learning_rate": train.learning_rate["policy"],
        "lr_scheduler_type": "constant_with_warmup" if train.warmup_steps else "constant",
        "warmup_steps": train.warmup_steps * updates,
        "adam_beta1": train.betas[0],
        "adam_beta2": train.betas[1],
        "weight_decay": train.weight_decay,
        "max_grad_norm": min(train.max_grad_norm, 1e9),
        "bf16": config.model.dtype == "bfloat16",
        "disable_dropout": True,
        "remove_unused_columns": False,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "num_iterations": train.epochs,
        "num_generations": train.group_size,
        "max_steps": train.steps * updates,
        "max_completion_length": limit,
        "temperature": config.sampler.temperature,
        "shuffle_dataset": False,  # the file has the order of our own schedule
    }


def differences(config: RunConfig, arguments: Mapping[str, Any]) -> list[str]:
    """What depends on the recipe."""
    departures = []
    if config.train.warmup_steps:
        departures.append("train.warmup_steps: the rate rises with each update there, with each step here")
    if arguments.get("loss_type") in (*OVER_TOKENS, None) and config.train.num_minibatches > 1:
        departures.append(
            "settings.averaging: with several processes or parts of a minibatch (`--parts`), each divides by "
            "its own tokens or by the whole batch's; ours divides by the minibatch's"
        )
    if config.train.micro_batch_tokens:
        departures.append("train.micro_batch_tokens: `train.py --parts N` splits minibatches there")
    return departures


def document(part_settings: Mapping[str, Any]) -> str:
    """The file of a part that `train.py` reads."""
    return json.dumps(dict(part_settings), indent=1) + "\n"
