"""From a completion to its reward: the task's verdict, and what the recipe makes of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from grpobench.runs.batch import Rollout
from grpobench.runs.config import RewardConfig
from grpobench.runs.episodes import policy_turns
from grpobench.runs.library import Loaded
from grpobench.runs.seeds import derive
from grpobench.tasks.task import Problem, Task, Verdict


class Grader:
    """Verifies completions and turns scores into rewards."""

    def __init__(self, task: Task, reward: RewardConfig, loaded: Loaded, seed: int) -> None:
        self.task, self.reward, self.loaded, self.seed = task, reward, loaded, seed

    def verify(self, problem: Problem, rollouts: Sequence[Rollout]) -> list[Verdict]:
        return self.task.verify_episodes(
            problem, [policy_turns(self.loaded, rollout) for rollout in rollouts]
        )

    def rewards(self, stream: str, problem: Problem, verdicts: Sequence[Verdict]) -> list[float]:
        """One number per completion; a placebo draws its own, by a derived seed."""
        if self.reward.kind == "constant":
            return [1.0] * len(verdicts)
        if self.reward.kind == "random":
            seeds = (derive(self.seed, "placebo", stream, problem.id, i) for i in range(len(verdicts)))
            return [float(random.Random(seed).random() < self.reward.probability) for seed in seeds]
        weights: Mapping[str, float] = self.reward.weights or self.task.reward
        return [sum(w * verdict.scores.get(name, 0.0) for name, w in weights.items()) for verdict in verdicts]
