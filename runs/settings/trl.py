"""Which settings TRL's trainers can express, and which release they are matched to."""

# Reading this imports no TRL, so that a recipe is checked on machines without it.

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator

from grpobench.algorithms.libraries import trl_arguments
from grpobench.algorithms.libraries.trl_arguments import STAY, TABLE, Splitting
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.needs import needs
from grpobench.runs.settings.truncation import truncation_of

RELEASE = "1.16"
"""The release whose arguments and metrics `algorithms/libraries/trl_arguments.py` knows."""
INSTALL = f"pip install 'trl=={RELEASE}.*'"


def missing() -> str:
    """Why TRL cannot run here, with the remedy, found without importing it."""
    if importlib.util.find_spec("trl") is None:
        return f"trl is not installed: {INSTALL}"
    installed_version = version()
    if installed_version.split(".")[:2] != RELEASE.split("."):
        return f"trl {installed_version} is installed, and the settings are matched to {RELEASE}: {INSTALL}"
    return ""


def version() -> str:
    return importlib.metadata.version("trl")


def splitting(config: RunConfig) -> Splitting:
    train = config.train
    return Splitting(
        train.num_minibatches, not train.micro_batch_tokens, train.num_minibatches * train.epochs
    )


def refusals(config: RunConfig, plays: bool = False) -> list[str]:
    """What of a run TRL cannot express, each with its remedy. `plays`: whether its trainer gets a function of
    ours that plays episodes of several turns."""
    _, faults = trl_arguments.translate(config.algorithm, config.modify, splitting(config))
    entry = TABLE.get(config.algorithm.name)
    if entry is None:
        return faults
    sampled = [*(() if plays else of_turns(config)), *of_samples(config)]
    rules = [*(of_pairs(config) if entry.pairs else sampled), *of_memory(config)]
    return faults + [f"TRL's {entry.trainer}Trainer {message}, or {STAY}" for message in rules]


def of_pairs(config: RunConfig) -> Iterator[str]:
    """What a trainer of recorded pairs demands."""
    if config.sampler.on_policy:
        yield (
            f'trains on recorded pairs, and sampler.kind is "{config.sampler.kind}"; set sampler.kind = '
            '"replay" or "preferences"'
        )
    yield from needs(
        config,
        "",
        ("sampler.temperature", 1, "knows no temperature, and {is}"),
        ("train.micro_batch_tokens", 0, "gets each minibatch whole (raise train.num_minibatches), and {is}"),
    )


def of_turns(config: RunConfig) -> Iterator[str]:
    """What a trainer without a function of ours for its rollouts demands."""
    if config.task.turns != 1:
        yield (
            f"plays one turn, and {config.task.name} has {config.task.turns}; restrict the arm with "
            "`tasks = [...]` to tasks of one turn"
        )


def of_samples(config: RunConfig) -> Iterator[str]:
    """What a trainer that samples demands."""
    sampler, train = config.sampler, config.train
    completions, parts = train.prompts_per_step * train.group_size, train.num_minibatches
    if train.group_size < 2:
        yield (
            f"compares at least 2 completions, and train.group_size is {train.group_size}; set "
            f"train.group_size = 2"
        )
    if completions > sampler.max_batch_size:
        yield (
            f"decodes all {completions} completions of a step at once, and sampler.max_batch_size allows "
            f"{sampler.max_batch_size}; set sampler.max_batch_size = {completions} or lower "
            f"train.prompts_per_step"
        )
    if completions % parts != 0:
        divisor = max(part for part in range(1, parts + 1) if completions % part == 0)
        yield (
            f"makes minibatches of one size, and train.num_minibatches = {parts} does not divide "
            f"{completions} completions; set it to {divisor}"
        )
    if sampler.old_logp == "sampler":
        yield 'recomputes its old log-probabilities, and sampler.old_logp is "sampler"; set it to "auto"'
    if truncation_of(sampler).active or sampler.stop:
        yield "draws from all tokens up to an end token; remove sampler.top_k, top_p, min_p and stop"
    yield from needs(
        config,
        "",
        ("sampler.kind", "hf", "samples with transformers, and {is}"),
        ("train.curriculum", "", "is given all problems before its first step, and {is}"),
        ("sampler.correction", "none", "corrects vLLM only, and {is}"),
        ("sampler.router_replay", "none", "replays no routes, and {is}"),
        ("sampler.weights", "trainer", "samples with the weights that it trains, and {is}"),
        ("sampler.lag", 0, "samples with its current weights, and {is}"),
    )


def of_memory(config: RunConfig) -> Iterator[str]:
    """What no trainer of TRL's does to save memory."""
    if config.model.dtype == "float16":
        yield (
            'does not get the loss scale of our loop, and model.dtype is "float16"; set it to "bfloat16" or '
            '"float32"'
        )
    yield from needs(
        config,
        "",
        ("train.gradient_noise", 0, "measures no gradient noise, and {is}"),
        ("train.log_tokens", "none", "stores no numbers of tokens, and {is}"),
        ("model.weights", "float32", "has no master weights, and {is}"),
        ("train.offload_optimizer", False, "keeps its optimizer beside the model, and {is}"),
    )
