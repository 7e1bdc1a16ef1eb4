"""What the policy does with a problem: from prompts and derived seeds to rollouts."""

from __future__ import annotations

from collections.abc import Sequence

from grpobench.algorithms.algorithm import Mixer
from grpobench.runs.batch import Rollout
from grpobench.runs.library import Loaded
from grpobench.runs.sampler import Request, Sampler
from grpobench.tasks.task import Problem


def episodes(
    sampler: Sampler,
    loaded: Loaded,
    problems: Sequence[Problem],
    seeds: Sequence[tuple[int, ...]],
    limit: int,
    temperature: float,
    mixer: Mixer | None = None,
) -> list[list[Rollout]]:
    """Rollouts of each problem, one for each of its seeds, of at most `limit` tokens."""
    requests = [
        Request(loaded.encode(problem.prompt), own) for problem, own in zip(problems, seeds, strict=True)
    ]
    return sampler.sample(requests, limit, temperature, mixer)
