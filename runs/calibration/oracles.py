"""Arms of findings alone: oracles, which get what no algorithm can have, and ablations, which lack a part."""

# A comparison that finds no difference says something only if it would have found one.

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.ads import AdaptiveSchedule
from grpobench.algorithms.algorithm import Batch, Models, Rowwise, Tokenwise
from grpobench.algorithms.curriculum import Curriculum, Shuffled, Study
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.rgra import RGRA
from grpobench.algorithms.turns import turns_of
from grpobench.runs.models.nano import character_tokenizer
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.arithmetic import apply, parse
from grpobench.tasks.kinds.tool_use import Chances
from grpobench.tasks.task import Problem
from grpobench.tasks.tools import Tools, truth

STEP = re.compile(r"(-?\d+)([-+*])(\d+)=(-?\d+)")
"""One step of a chain: what is left of the sign, the sign, what is right of it, the result."""


@dataclass(frozen=True)
class UnsteadyBaseline(GRPO):
    """GRPO whose baseline is off by a random number, the same for the rollouts of a group: what the mean of a
    small group does, exaggerated."""

    name = "unsteady_baseline"
    summary = "GRPO with a random error of the baseline"
    formula = "A_i = (r_i − mean r) / (std r + ε) + error · z,  z standard normal for each group"
    departures = "worse on purpose; for findings only"

    error: float = 1.0
    """Standard deviation of the baseline's error, in those of a group's rewards."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(error=self.error)

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        advantage: Rowwise = super().advantage(batch, models)
        generator = torch.Generator().manual_seed(derive(int(batch.completion.sum()), "baseline", batch.step))
        _, group = batch.group.unique(return_inverse=True)
        errors = torch.randn(int(group.max()) + 1, generator=generator, dtype=advantage.dtype)
        return advantage + self.error * errors.to(advantage.device)[group]


@dataclass(frozen=True)
class RewardedSteps(GRPO):
    """GRPO on chains of arithmetic in characters, whose steps are graded where they are written.

    A completion is cut behind each comma and before ``#``. A step is right if it takes the result of the step
    before, as written, and the problem's next sign and number, and computes rightly: a mistake counts once,
    where it is made. A step's tokens get its grade, compared with the same step of the group's other
    completions. Those of the answer get the reward, compared likewise.

    Degenerate case: a step that a completion lacks counts as wrong and has no tokens.
    """

    name = "rewarded_steps"
    summary = "GRPO on arithmetic with a reward for each step at its own tokens"
    formula = "A_t = (c_k − mean c_k) / (std c_k + ε) for t in step k of the chain, c_k = 1 if it is right"
    departures = "an oracle; for findings only; reads the characters of the nano policies"

    def advantage(self, batch: Batch, models: Models) -> Tokenwise:
        graded = [graded_steps(*texts) for texts in zip(*texts_of(batch), strict=True)]
        steps = max((len(right) for right, _ in graded), default=0)
        grade = batch.reward.new_zeros(len(batch), steps + 1)
        step_of_token = torch.full(batch.completion.shape, steps)  # the last column is the answer's
        for row, (right, of_step) in enumerate(graded):
            grade[row, : len(right)] = grade.new_tensor(right)
            step_of_token[row, : len(of_step)] = torch.tensor(of_step, dtype=torch.long)
        grade[:, -1] = batch.reward
        advantage = [
            parts.group_advantage(column, batch.group, self.baseline, self.scale, self.ddof, self.epsilon)
            for column in grade.unbind(-1)
        ]
        # The indices are filled from lists on the CPU; the batch may be on a GPU.
        return torch.stack(advantage, -1).gather(1, step_of_token.to(grade.device))


def texts_of(batch: Batch) -> tuple[list[str], list[str]]:
    """Prompts and completions of a batch in the characters of the nano policies; what is no character, such
    as the end, is one blank, so that places in the text are tokens."""
    character_of = characters()
    prompts = zip(batch.prompt.tolist(), batch.prompt_length.tolist(), strict=True)
    completions = zip(batch.completion.tolist(), batch.length.tolist(), strict=True)
    return (
        ["".join(character_of.get(token, " ") for token in tokens[:length]) for tokens, length in prompts],
        [
            "".join(character_of.get(token, " ") for token in tokens[:length])
            for tokens, length in completions
        ],
    )


@cache
def characters() -> Mapping[int, str]:
    """The tokens of the nano policies that are a character."""
    return {number: text for text, number in character_tokenizer().get_vocab().items() if len(text) == 1}


def graded_steps(prompt: str, completion: str) -> tuple[list[bool], list[int]]:
    """(whether each step of a chain is right, the number of the step that each of its characters belongs to,
    with the comma behind it). The characters of the answer are left out."""
    numbers, signs = parse(prompt)
    chain = completion.partition("#")[0]
    value, right, of_step = numbers[0], [], []
    for number, text in enumerate(chain.split(",") if chain else ()):
        of_step += [number] * (len(text) + 1)
        step = STEP.fullmatch(text)
        if step is None or number >= len(signs):
            right.append(False)
            continue
        left, sign, by, result = int(step[1]), step[2], int(step[3]), int(step[4])
        is_next_operation = (left, sign, by) == (value, signs[number], numbers[number + 1])
        right.append(is_next_operation and result == apply(sign, left, by))
        value = result
    return right, of_step[: len(chain)]


CHAIN = re.compile(r"table ([a-z]+) start (\d+)")
"""The prompt of a problem of `tools` in the short notation."""


@dataclass(frozen=True)
class KnownValues(GRPO):
    """GRPO on chains of tool calls, whose critic is the oracle of the task `tools`: PPO's one-step advantage
    (λ = 0) with exact values instead of learned ones.

    A turn's advantage is its reward without luck, plus the value of the state after it, minus that of the
    state before (`ToolUse.credits`), whitened over the batch's tokens as PPO does. The values are those of a
    policy whose chances of right, wasted, malformed and wrong turns are the batch's own.

    Degenerate case: where all turns are worth the same, all advantages are 0.
    """

    name = "known_values"
    summary = "GRPO on chains of tool calls with the oracle's advantage of each turn"
    formula = "A_t = (c_k − mean c) / std c for t in turn k,  c_k = r_k + V_{k+1} − V_k without luck"
    departures = "an oracle; for findings only; reads the characters of the nano policies"

    horizon: int = 4
    """The task's, as the next four."""
    spare: int = 4
    luck: float = 0.0
    price: float = 0.0
    distractors: int = 0

    def advantage(self, batch: Batch, models: Models) -> Tokenwise:
        turns = turns_of(batch.completion_mask)
        prompts, texts = texts_of(batch)
        episodes = [
            turn_texts(text, written)
            for text, written in zip(texts, batch.completion_mask.tolist(), strict=True)
        ]
        credit = [number for of_episode in self.credits(prompts, episodes) for number in of_episode]
        return parts.whiten(turns.spread(batch.reward.new_tensor(credit)), batch.completion_mask)

    def credits(self, prompts: Sequence[str], episodes: Sequence[Sequence[str]]) -> Sequence[Sequence[float]]:
        """What each turn of each episode is worth."""
        task = Tools(
            horizon=self.horizon,
            spare=self.spare,
            luck=self.luck,
            price=self.price,
            distractors=self.distractors,
        )
        problems = []
        for prompt in prompts:
            if (match := CHAIN.search(prompt)) is None:
                raise ValueError(f"known_values: {prompt!r:.60} is no prompt of the task tools")
            problems.append(Problem(prompt, prompt, truth(match[1], int(match[2]), self.horizon)))
        moves: Counter[str] = Counter(
            step.move
            for problem, turns in zip(problems, episodes, strict=True)
            for _, step in task.steps(problem, turns)
        )
        chances = Chances(*(moves[move] / max(1, moves.total()) for move in Chances._fields))
        return [
            task.credits(problem, turns, chances) for problem, turns in zip(problems, episodes, strict=True)
        ]


def turn_texts(text: str, written: Sequence[bool]) -> list[str]:
    """The turns of an episode: the runs of its characters that the policy wrote."""
    runs = itertools.groupby(zip(text, written, strict=False), key=lambda at: at[1])
    return ["".join(character for character, _ in run) for by_policy, run in runs if by_policy]


@dataclass(frozen=True)
class OnlyCategories(GRPO):
    """GRPO that draws only problems of the given categories, uniformly without replacement."""

    name = "only_categories"
    summary = "GRPO on the problems of given categories alone"
    formula = "as GRPO"
    departures = "an oracle; for findings only"

    categories: tuple[str, ...] = ()
    """The values of the trait `category` that are drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.categories:
            raise ValueError("categories: must name at least one")

    def curriculum(
        self,
        traits: Sequence[Mapping[str, str | float]],
        prompts: int,
        seed: int,
        study: Study | None = None,
    ) -> Curriculum:
        index = [
            number
            for number, problem_traits in enumerate(traits)
            if problem_traits.get("category") in self.categories
        ]
        if len(index) < prompts:
            raise ValueError(
                f"categories: {len(index)} problems are of {', '.join(self.categories)}, fewer than "
                f"{prompts} prompts of a step"
            )
        return Among(index, prompts, seed)


@dataclass(frozen=True)
class KnownKinds(GRPO):
    """GRPO with the schedule of ADS, whose clusters hold problems of one category each.

    ADS finds its clusters in what the base policy makes of the problems. Here they are right by construction:
    the problems of a category are dealt to `clusters` of them."""

    name = "known_kinds"
    summary = "GRPO with the schedule of ADS on clusters of one category each"
    formula = "as ADS, with clusters that hold one category each"
    departures = "an oracle; for findings only"

    clusters: int = 8
    """Clusters of each category."""

    def curriculum(
        self,
        traits: Sequence[Mapping[str, str | float]],
        prompts: int,
        seed: int,
        study: Study | None = None,
    ) -> Curriculum:
        counts: dict[str, int] = {}
        cluster_of = []
        for problem_traits in traits:
            kind = str(problem_traits.get("category"))
            counts[kind] = counts.get(kind, -1) + 1
            cluster_of.append(self.clusters * [*counts].index(kind) + counts[kind] % self.clusters)
        clusters = self.clusters * len(counts)
        known_kinds = Study(torch.eye(clusters)[cluster_of], torch.zeros(len(traits)))
        return AdaptiveSchedule(known_kinds, prompts, seed, clusters=clusters)


class Among(Shuffled):
    """Uniform without replacement among some of the problems."""

    def __init__(self, index: Sequence[int], prompts: int, seed: int) -> None:
        super().__init__(len(index), prompts, seed)
        self.index = list(index)

    def draw(self, step: int, attempt: int) -> list[int]:
        return [self.index[number] for number in super().draw(step, attempt)]


@dataclass(frozen=True)
class OneSign(RGRA):
    """RGRA whose advantages of the other sign are 0: completions are reinforced alone, or discouraged alone.
    They still count in the average, so that what is left has the weight that it has in RGRA."""

    name = "one_sign"
    summary = "RGRA without its negative, or without its positive advantages"
    formula = "A_i = max(A, 0) or min(A, 0) with RGRA's A;  loss as RGRA's"
    departures = "an ablation; for findings only"

    sign: Literal["positive", "negative"] = "positive"
    """Which advantages stay."""

    def advantage(self, batch: Batch, models: Models) -> Rowwise:
        advantage: Rowwise = super().advantage(batch, models)
        return advantage.clamp(min=0) if self.sign == "positive" else advantage.clamp(max=0)
