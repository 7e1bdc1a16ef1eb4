"""The initial policy's completions of the training problems, graded: sampled before the first step,
cached."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.model_packages import cache_folder
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.reward.grader import Grader
from grpobench.runs.sample.episodes import episodes
from grpobench.runs.sample.rollouts import Rollout, count_sampled_tokens
from grpobench.runs.sample.sampler import Sampler
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools import files, strict
from grpobench.runs.tools.process import safe_point
from grpobench.runs.tools.seeds import derive
from grpobench.runs.train.prepare.warmstart import alone
from grpobench.tasks.task import Problem

RECIPE = 1
"""Version of this procedure; changing it makes cached completions stale."""
AT_ONCE = 64
"""Problems of a file of the cache, so that an interrupted run goes on from the last one."""
STREAM = "base"
"""The random stream of rewards that are drawn."""
SECONDS = "seconds"
Tell = Callable[[int, int], None]
"""Called with the number of answered problems and the total."""


@dataclass(frozen=True)
class BaseRollouts:
    """Rewards of N problems and what it cost to have them, whichever run of the cache paid for it."""

    reward: torch.Tensor
    """Float (N, n), NaN where a completion could not be graded."""
    generated: int
    """Tokens that the policy wrote."""
    sampler_tokens: float
    """Tokens that went through the policy, as `Source.sampler_tokens` counts them."""
    seconds: float
    """Of sampling, when the completions were sampled."""

    @property
    def provenance(self) -> dict[str, Any]:
        problems, each = self.reward.shape
        return {
            "problems": problems,
            "each": each,
            "generated_tokens": self.generated,
            "seconds": self.seconds,
            "mean_reward": self.reward.nanmean().item(),
        }


@dataclass(frozen=True)
class InitialPolicy:
    """Who samples, and how."""

    config: RunConfig
    loaded: Loaded
    models: RoleModels
    """Still the initial policy."""
    sampler: Sampler
    limit: int
    """Most tokens of a completion."""
    warm_start: str = ""
    """What the policy learned before."""


def base_rollouts(
    initial: InitialPolicy,
    grader: Grader,
    problems: Sequence[Problem],
    count: int,
    tell: Tell = lambda done, of: None,
) -> BaseRollouts:
    """`count` completions of each problem with their rewards; the completions from the cache if the same
    policy was asked the same before.

    The cache holds tokens, which are what costs. Each run grades them itself, so that arms with other rewards
    share them."""
    folder = cache_folder() / "base" / f"{initial.config.task.name.replace(':', '-')}-{key(initial, count)}"
    rewards, generated, tokens, seconds = [], 0, 0.0, 0.0
    # The lock is the run's: of several ranks one takes it.
    with alone(folder) if initial.models.ranks.writes else contextlib.nullcontext():
        folder.mkdir(parents=True, exist_ok=True)
        for start in range(0, len(problems), AT_ONCE):
            tell(start, len(problems))
            safe_point()  # what is sampled so far is kept
            part = problems[start : start + AT_ONCE]
            sampled, took = completions(initial, folder, part, count)
            generated += sum(rollout.length for rollouts in sampled for rollout in rollouts)
            tokens += count_sampled_tokens(sampled)
            seconds += took
            for group in grader.groups([STREAM] * len(part), part, sampled):
                pairs = zip(group.verdicts, group.reward, strict=True)
                rewards.append([math.nan if v.outcome == "infra_error" else r for v, r in pairs])
    return BaseRollouts(torch.tensor(rewards), generated, tokens, seconds)


def key(initial: InitialPolicy, count: int) -> str:
    """A cache key that changes with anything that changes a completion, except the problems: these name the
    files."""
    config, models = initial.config, initial.models
    facts = {
        "recipe": RECIPE,
        "model": initial.loaded.provenance,
        "warm_start": initial.warm_start,
        "task": strict.plain(config.task),
        "count": count,
        "seed": config.seed,
        "limit": initial.limit,
        "temperature": config.sampler.temperature,
        "sampler": [config.sampler.kind, config.sampler.max_batch_size],
        "dtype": str(models.dtype),
        "weights": [config.model.weights, config.model.attention, strict.plain(config.model.adapter)],
        "device": models.device.type,
        "torch": str(torch.__version__),
        # Left out at its default, so that rollouts from before the setting are found.
        **({} if config.model.template is True else {"chat_template": config.model.template}),
        # They decide what is decoded together, and so how it is rounded.
        **({"devices": models.ranks.size} if not models.ranks.alone else {}),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def completions(
    initial: InitialPolicy, folder: Path, problems: Sequence[Problem], count: int
) -> tuple[list[list[Rollout]], float]:
    """The completions of some problems, and the seconds that sampling them took when it was done."""
    prompts = [initial.loaded.encode(problem.prompt) for problem in problems]
    texts = json.dumps([[problem.id for problem in problems], prompts])
    path = folder / f"{hashlib.sha256(texts.encode()).hexdigest()[:16]}.safetensors"
    ranks = initial.models.ranks
    if ranks.broadcast(lambda: not path.exists() or damaged(path)):
        began = time.perf_counter()
        sampled = episodes(
            initial.sampler,
            initial.loaded,
            initial.config.task,
            problems,
            [seeds(initial.config.seed, problem, count) for problem in problems],
            initial.limit,
            initial.config.sampler.temperature,
        )
        took = time.perf_counter() - began
        ranks.broadcast(lambda: files.write_atomic(path, stored(sampled, took)))
    return read(path, prompts, count)


def seeds(seed: int, problem: Problem, count: int) -> tuple[int, ...]:
    """One derived seed per completion, none of which a step of the run has."""
    return tuple(derive(seed, "base rollouts", problem.id, index) for index in range(count))


def stored(sampled: Sequence[Sequence[Rollout]], seconds: float) -> bytes:
    """Completions as the content of a file, one behind the other."""
    rollouts = [rollout for problem_rollouts in sampled for rollout in problem_rollouts]
    written = [
        w for rollout in rollouts for w in rollout.completion_mask or (True,) * len(rollout.completion)
    ]
    tensors = {
        "token": torch.tensor(
            [token for rollout in rollouts for token in rollout.completion], dtype=torch.int32
        ),
        "written": torch.tensor(written, dtype=torch.bool),
        "length": torch.tensor([len(rollout.completion) for rollout in rollouts], dtype=torch.int32),
        "stopped": torch.tensor([rollout.stopped for rollout in rollouts], dtype=torch.bool),
    }
    return save(tensors, {SECONDS: repr(seconds)})


def damaged(path: Path) -> bool:
    """Whether a file of the cache cannot be read; then it warns, and the completions are sampled anew."""
    try:
        with safe_open(path, "pt"):
            return False
    except SafetensorError as error:
        warnings.warn(f"{path}: cannot be read ({error}); its completions are sampled anew", stacklevel=2)
        return True


def read(path: Path, prompts: Sequence[tuple[int, ...]], count: int) -> tuple[list[list[Rollout]], float]:
    """The inverse of `stored`, without log-probabilities (NaN), for completions of these prompts."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name).tolist() for name in file.keys()}  # noqa: SIM118 - no mapping
        seconds = float(file.metadata()[SECONDS])
    ends = np.cumsum(tensors["length"]).tolist()
    rollouts_by_problem: list[list[Rollout]] = [[] for _ in prompts]
    for number, (end, length) in enumerate(zip(ends, tensors["length"], strict=True)):
        written = tuple(tensors["written"][end - length : end])
        rollouts_by_problem[number // count].append(
            Rollout(
                prompts[number // count],
                tuple(tensors["token"][end - length : end]),
                np.full(length, np.nan, dtype=np.float32),
                tensors["stopped"][number],
                () if all(written) else written,
            )
        )
    return rollouts_by_problem, seconds
