"""NGU: problems that nothing solved are asked again within the step, and easy ones are left out."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Metric, Models, Rowwise
from grpobench.algorithms.curriculum import Curriculum, Shuffled, Study
from grpobench.algorithms.policy_gradient import ClippedRatio, GroupNormalized

ROUNDS_METRIC = Metric(
    "ngu/rounds", "rounds", "mean over the problems that are trained on of the times they were asked"
)


@dataclass(frozen=True)
class NGU(GroupNormalized, ClippedRatio):
    """Never Give Up (arXiv:2609.13443): few completions of each problem are sampled. If they differ in reward
    the problem is trained on; if all succeed it is left out; if all fail equally it is asked again with the
    chance `again`, until one is better than all before. Then all its completions are its group.

    Degenerate cases: with again = 0 it is dynamic sampling with these settings; a problem that is given up,
    or not yet solved when the step has made `rounds` draws, is not trained on; a step without any solved
    problem makes no update; of a draw's last problems those beyond the step's number are dropped.
    """

    name = "ngu"
    label = "NGU"
    paper = "Learning to Solve Hard Problems in RL for LLMs by Never Giving Up, arXiv:2609.13443"
    summary = (
        "problems whose completions all fail are sampled again until one succeeds; solved ones are dropped"
    )
    claim = (
        "Training makes easy problems easier and leaves hard ones unsolved. Few completions of easy problems "
        "and many of hard ones solve more of the hardest at the same compute, in mathematics with Qwen2.5 of "
        "0.5B and Qwen3 of 4B and in code (the authors' post; its numbers are in figures)."
    )
    formula = (
        "k completions a round, m_j the greatest reward of round j;  trained on if m_1 is above the least "
        "reward of round 1, or m_j above all before;  left out if all of round 1 reach success;  else "
        "another round with the chance again, at most rounds in all;  A_i = r_i − mean r over all "
        "completions of the problem in the step;  loss as GRPO's"
    )
    departures = (
        "The authors' sampler is asynchronous: completions of earlier rounds are from older weights, and "
        "those beyond an age are left out, though their rewards count in the baseline. Here the rounds of a "
        "step are from the same weights, all completions are trained on, and what is unsolved at the step's "
        "end is forgotten. They bound no number of rounds; with the chance 0.9 a problem that is never "
        "solved has 10 on average. Whether they divide by a deviation and how they average could not be "
        "read: the post's example only centers, as here. train.group_size is k: 4 in GSM8K, 16 in DeepScaleR."
    )
    evidence = (
        "reconstruction: from the authors' post (mnoukhov.github.io/posts/ngu), which tells the method in "
        "words; paper and code could not be read. The number of rounds and the chance that a problem is "
        "trained on equal their closed forms, and advantages the post's example"
    )
    cost = "further rollouts in place of groups that are solved, and of those that failed"
    metrics = (*parts.CLIP_METRICS, *parts.KL_METRICS, ROUNDS_METRIC)

    scale: parts.Scale = "none"
    again: float = 0.9
    """p: chance that a problem of which nothing succeeded is sampled again."""
    rounds: int = 16
    """Most draws of a step."""
    success: float = 1.0
    """Least reward of a success."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_unit(again=self.again)
        parts.demand_count(rounds=self.rounds)
        parts.demand_finite(success=self.success)

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        return super().advantage(dataclasses.replace(batch, group=problems_of(batch)), models)

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        rounds = torch.stack([problems_of(batch), batch.group], -1).unique(dim=0)[:, 0]
        count = len(rounds.unique())
        return {ROUNDS_METRIC.name: len(rounds) / count if count else math.nan}

    def curriculum(
        self,
        traits: Sequence[Mapping[str, str | float]],
        prompts: int,
        seed: int,
        study: Study | None = None,
    ) -> Curriculum:
        return Persistent(len(traits), prompts, seed, self.again, self.rounds, self.success)


class Persistent(Shuffled):
    """Draws problems that failed again within the step, and fresh ones in place of those that are solved,
    too easy or given up."""

    cumulative = True

    def __init__(
        self, problems: int, prompts: int, seed: int, again: float, rounds: int, success: float
    ) -> None:
        super().__init__(problems, prompts, seed)
        self.again, self.rounds, self.success = again, rounds, success
        self.best: dict[int, float] = {}
        """The greatest reward so far of each problem that is to be asked again."""
        self.drawn: set[int] = set()
        self.missing, self.attempt = prompts, 0

    @property
    def attempts(self) -> int:
        return self.rounds

    def draw(self, step: int, attempt: int) -> list[int]:
        self.attempt = attempt
        if not attempt:
            self.best, self.missing = {}, self.prompts
            index = super().draw(step, 0)
            self.drawn = set(index)
            return index
        index = list(self.best)
        order = list(range(self.problems))
        random.Random(f"{self.seed}/fresh/{step}/{attempt}").shuffle(order)
        fresh = [problem for problem in order if problem not in self.drawn]
        index += fresh[: max(0, self.missing - len(index))]
        self.drawn |= set(index)
        return index

    def accept(self, step: int, index: Sequence[int], reward: Sequence[Sequence[float]]) -> list[bool]:
        accepted = []
        for problem, rewards in zip(index, reward, strict=True):
            before = self.best.pop(problem, None)
            keep = bool(rewards) and max(rewards) > (min(rewards) if before is None else before)
            accepted.append(keep)
            self.missing -= keep
            # Without a graded completion nothing is known of the problem.
            best = max([*rewards, *([] if before is None else [before])], default=self.success)
            if not keep and best < self.success and self.goes_on(step, problem):
                self.best[problem] = best
        return accepted

    def goes_on(self, step: int, problem: int) -> bool:
        """Whether a problem is asked again after this draw."""
        return random.Random(f"{self.seed}/again/{step}/{self.attempt}/{problem}").random() < self.again


def problems_of(batch: Batch) -> torch.Tensor:
    """What completions are compared within, long (B,): the problem, whatever the draw; where it is unknown,
    the group."""
    if batch.problem is None:
        return batch.group
    return torch.where(batch.problem >= 0, batch.problem, -1 - batch.group)
