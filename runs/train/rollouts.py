"""Sources of a step's groups: sampled from the policy, replayed from the base, or loaded from a file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.past_weights import PastWeights
from grpobench.runs.models.weight_noise import NoisyWeights
from grpobench.runs.reward.grader import Grader
from grpobench.runs.sample.context import Room
from grpobench.runs.sample.drawn import demand_routes
from grpobench.runs.sample.episodes import episodes
from grpobench.runs.sample.rollouts import Group, Rollout, count_sampled_tokens
from grpobench.runs.sample.sampler import GREEDY, Mixing, Sampler, StepRequest
from grpobench.runs.sample.stop_strings import end_after
from grpobench.runs.sample.teacher_prompts import demand_room, teacher_prompts
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.truncation import truncation_of
from grpobench.runs.tools.progress import Clock
from grpobench.runs.tools.seeds import derive
from grpobench.runs.train.answer_locations import announces, locate
from grpobench.tasks.data import bounded
from grpobench.tasks.data.flaws import find_flaw
from grpobench.tasks.data.messages import PAIR, parse_pair
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Verdict


class GroupSource(Protocol):
    """Gives the groups of a step."""

    @property
    def problems(self) -> Sequence[Problem]:
        """What the curriculum chooses from."""
        ...

    on_policy: bool
    """Whether the current policy wrote the rollouts."""
    generated: int
    """Tokens sampled so far for training."""
    sampler_tokens: float
    """Tokens that went through the policy to sample them: completions with replies, and each prompt once."""

    def gather(self, step: int, attempt: int, index: Sequence[int]) -> list[Group]:
        """Groups of the problems at `index`, in order."""
        ...


def no_reward(source: GroupSource) -> str:
    """Why nothing can be learned from a source whose reward functions gave None for every completion so far;
    empty otherwise."""
    grader = getattr(source, "grader", None)
    if not isinstance(grader, Grader) or grader.rewarded or not grader.masked:
        return ""
    names = ", ".join(name for name in grader.weights if name == "judge" or name in grader.functions)
    return (
        f"the reward {names} gave None for all of {grader.masked} completions, so that none has a reward; "
        "return a number for those to which the reward applies"
    )


def demand_problems(prompts: int, count: int) -> None:
    """Raise DataError where a single step would have to ask one of the `count` problems twice."""
    if prompts > count:
        raise DataError(
            f"train.prompts_per_step is {prompts:,}, and there are {count:,} problems to train on: "
            f"a step would ask some of them twice; set train.prompts_per_step = {count} or less"
        )


class OnPolicy:
    """Samples with the policy's current weights or, where `past` keeps earlier ones, with the oldest."""

    on_policy = True

    def __init__(
        self,
        config: RunConfig,
        loaded: Loaded,
        sampler: Sampler,
        grader: Grader,
        clock: Clock,
        algorithm: Algorithm[Any],
        embeddings: torch.Tensor | None = None,
        past: PastWeights | None = None,
        noise: NoisyWeights | None = None,
    ) -> None:
        self.config, self.loaded, self.sampler, self.grader = config, loaded, sampler, grader
        self.clock, self.algorithm, self.embeddings = clock, algorithm, embeddings
        self.past, self.noise = past or PastWeights({}, 0), noise
        self.announced = announces(loaded, config.task.answer_marker)
        self.limit = config.sampler.max_completion_tokens or config.task.max_completion_tokens
        room = Room(loaded, self.limit, config.model.long_prompts)
        self.problems = room.fitting(config.task.problems("train"), "train")
        if shown := algorithm.teacher_prompt:
            self.problems = demand_room(room, config.task, shown, self.problems)
        self.generated = 0
        self.sampler_tokens = 0.0

    def gather(self, step: int, attempt: int, index: Sequence[int]) -> list[Group]:
        return self.answer(f"{step}/{attempt}", [self.problems[i] for i in index], step)

    def answer(self, stream: str, problems: Sequence[Problem], step: int = 0) -> list[Group]:
        """Sample and grade `train.group_size` completions of each problem, with the noise of the step if the
        weights have any."""
        problem_streams = streams(stream, problems)
        extra = self.algorithm.greedy_baseline
        seeds = self.seeds_of(stream, problems)
        with self.clock("sample"):
            if self.noise:
                sampled = self.sample_noisily(self.noise, step, problems, seeds)
            else:
                with self.lagging():
                    sampled = self.sample(problems, seeds)
        if self.config.sampler.router_replay == "R3":
            demand_routes(self.sampler, sampled)
        # Before the cut below: tokens behind a stop string were decoded, too.
        self.generated += sum(rollout.length for rollouts in sampled for rollout in rollouts)
        # With noise every completion is of other weights, and no two share the pass over their prompt.
        passes = [[rollout] for group in sampled for rollout in group] if self.noise else sampled
        self.sampler_tokens += count_sampled_tokens(passes)
        if strings := self.config.sampler.stop:
            sampled = [
                [end_after(rollout, strings, self.loaded.decode) for rollout in group] for group in sampled
            ]
        with self.clock("verify"):
            groups = self.grader.groups(problem_streams, problems, sampled)
        if extra:
            # After grading, because the baseline is the reward of the greedy rollout.
            groups = [set_apart(group) for group in groups]
        if self.algorithm.locates_answers:
            marker = self.config.task.answer_marker
            groups = [
                dataclasses.replace(
                    group, answers=[locate(self.loaded, marker, rollout) for rollout in group.rollouts]
                )
                for group in groups
            ]
        if shown := self.algorithm.teacher_prompt:
            task = self.config.task
            groups = [
                dataclasses.replace(group, teacher_prompts=teacher_prompts(self.loaded, task, shown, group))
                for group in groups
            ]
        return groups

    def seeds_of(self, stream: str, problems: Sequence[Problem]) -> list[tuple[int, ...]]:
        """The seeds of each problem's completions."""
        extra = (GREEDY,) if self.algorithm.greedy_baseline else ()  # last: see `set_apart`
        pairs = zip(streams(stream, problems), problems, strict=True)
        return [self.seeds(*pair) + extra for pair in pairs]

    def sample(self, problems: Sequence[Problem], seeds: Sequence[tuple[int, ...]]) -> list[list[Rollout]]:
        """The rollouts of each problem, with the weights that are in the models now."""
        # The oldest ones, which `lagging` has put into the models.
        version, _ = self.past.before(self.past.lag)
        request = self.step_request(problems, seeds, version)
        if (rollouts := self.sampler.take_next(request, lambda: self.past.parameters)) is not None:
            return rollouts
        temperature = self.config.sampler.temperature
        truncation = truncation_of(self.config.sampler)
        episode_arguments = (
            self.config.task,
            problems,
            seeds,
            self.limit,
            temperature,
            self.mixing(),
            truncation,
        )
        return episodes(self.sampler, self.loaded, *episode_arguments)

    def sample_noisily(
        self, noise: NoisyWeights, step: int, problems: Sequence[Problem], seeds: Sequence[tuple[int, ...]]
    ) -> list[list[Rollout]]:
        """The rollouts of each problem, each from the weights of its place. Their seeds are those that they
        have without noise."""
        by_member = []
        for member in range(self.config.train.group_size):
            with noise.added(step, member):
                self.sampler.sync()  # an engine has weights of its own
                with self.sampler.rollout_weights():
                    by_member.append(self.sample(problems, [(row[member],) for row in seeds]))
        self.sampler.sync()
        return [[rollouts[number][0] for rollouts in by_member] for number in range(len(problems))]

    def step_request(
        self, problems: Sequence[Problem], seeds: Sequence[tuple[int, ...]], version: int
    ) -> StepRequest:
        temperature = self.config.sampler.temperature
        return StepRequest(tuple(problems), tuple(seeds), self.limit, temperature, version)

    def begin_next(self, step: int, index: Sequence[int]) -> None:
        """Let a sampler that works ahead begin with the problems of the next `step`, before the updates of
        this one."""
        if not self.config.sampler.ahead:
            return
        train = self.config.train
        # The next step samples with the weights of `lag` updates before it, of which this step makes some.
        version, weights = self.past.before(self.past.lag - train.num_minibatches * train.epochs)
        problems = [self.problems[i] for i in index]
        request = self.step_request(problems, self.seeds_of(f"{step}/0", problems), version)
        self.sampler.begin_next(request, weights)

    @contextlib.contextmanager
    def lagging(self) -> Iterator[None]:
        """Within, the sampler uses the weights of rollouts, the oldest that are kept; outside, for
        evaluations, the current ones."""
        if not self.past.staleness:
            with self.sampler.rollout_weights():
                yield
            return
        with self.past.swapped_in():
            self.sampler.sync()  # an engine has weights of its own
            with self.sampler.rollout_weights():
                yield
        self.sampler.sync()

    def mixing(self) -> Mixing | None:
        """How embeddings are mixed while decoding, with the current embedding table. The mixing ends when a
        completion begins to state its answer."""
        self.sampler.wake()  # the table may be its own
        mixer = self.algorithm.mixer(self.embeddings)
        return None if mixer is None else Mixing(mixer, self.announced)

    def seeds(self, stream: str, problem: Problem) -> tuple[int, ...]:
        """One derived seed per completion."""
        group = range(self.config.train.group_size)
        # By the problem's id: a completion does not depend on which others its step has.
        return tuple(derive(self.config.seed, "sample", stream, problem.id, i) for i in group)


def streams(stream: str, problems: Sequence[Problem]) -> list[str]:
    """The random stream of each problem. A problem that a step draws twice (where two passes over the data
    meet) gets a second stream, so that its groups are not copies."""
    count_by_problem: Counter[str] = Counter()
    names = []
    for problem in problems:
        names.append(f"{stream}/{count_by_problem[problem.id]}" if count_by_problem[problem.id] else stream)
        count_by_problem[problem.id] += 1
    return names


def set_apart(group: Group) -> Group:
    """The group without its last rollout, the greedy one, whose reward becomes the group's `greedy`."""
    graded = group.verdicts[-1].outcome != "infra_error"
    return dataclasses.replace(
        group,
        rollouts=group.rollouts[:-1],
        verdicts=group.verdicts[:-1],
        reward=group.reward[:-1],
        components={name: column[:-1] for name, column in group.components.items()},
        doses={name: column[:-1] for name, column in group.doses.items()},
        judgments=group.judgments[:-1],
        greedy=group.reward[-1] if graded else math.nan,
    )


class Replay:
    """One round of answers by the base policy: sampled before training, and the only rollouts of the run."""

    on_policy = False

    def __init__(self, base: OnPolicy, problems: int) -> None:
        order = list(range(len(base.problems)))
        random.Random(derive(base.config.seed, "replay")).shuffle(order)
        self.problems = [base.problems[i] for i in order[:problems]]
        self.groups = base.answer("base", self.problems)
        self.generated = base.generated
        self.sampler_tokens = base.sampler_tokens
        self.grader = base.grader

    def gather(self, step: int, attempt: int, index: Sequence[int]) -> list[Group]:
        return [self.groups[i] for i in index]


class Preferences:
    """Pairs from a JSONL file of ``{"prompt": …, "chosen": …, "rejected": …}``, as texts or messages; chosen
    is rewarded 1."""

    on_policy = False

    def __init__(self, path: Path, loaded: Loaded) -> None:
        self.groups = [preference(row, f"{path}:{line}", loaded) for line, row in _rows(path)]
        if not self.groups:
            raise DataError(
                f"{path} holds no preference pair; give a JSONL file with prompt, chosen and rejected"
            )
        self.problems = [group.problem for group in self.groups]
        self.generated = 0
        self.sampler_tokens = 0.0

    def gather(self, step: int, attempt: int, index: Sequence[int]) -> list[Group]:
        return [self.groups[i] for i in index]


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    for number, text in enumerate(bounded.lines(path), 1):
        if text.strip():
            try:
                row = bounded.parse_json(text.decode())
            except UnicodeDecodeError as error:
                why = f"not UTF-8 (byte 0x{text[error.start]:02x} at {error.start + 1})"
                raise DataError(f"{path}:{number}: {why}; save the file as UTF-8") from None
            except ValueError as error:
                why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                raise DataError(f"{path}:{number}: not JSON ({why}); mend or remove the line") from None
            if flaw := find_flaw(row):
                raise DataError(f"{path}:{number}: {flaw}; mend or remove the line")
            yield number, row


def preference(row: Any, location: str, loaded: Loaded) -> Group:
    """A preference pair, from FILE:LINE, as a group of two rollouts that another policy wrote."""
    if not isinstance(row, dict) or not all(key in row for key in PAIR):
        raise DataError(f"{location}: needs the keys prompt, {', '.join(PAIR)}; mend or remove the line")
    try:
        parsed_prompt, *completions = parse_pair(row)
    except ValueError as error:
        raise DataError(f"{location}: {error}; mend or remove the line") from None
    prompt = loaded.encode(parsed_prompt)
    rollouts = []
    for key, text in zip(PAIR, completions, strict=True):
        # Without special tokens: the prompt begins with those already.
        completion = (*loaded.tokenizer.encode(text, add_special_tokens=False), loaded.end[0])
        if (length := len(prompt) + len(completion)) > loaded.context:
            raise DataError(
                f"{location}: prompt and {key} completion have {length} tokens, beyond the model's "
                f"{loaded.context_description}; shorten or remove the line"
            )
        unknown = np.zeros(len(completion), dtype=np.float32)  # nobody recorded the log-probabilities
        rollouts.append(Rollout(prompt, completion, unknown, stopped=True))
    verdicts = [
        Verdict({"preferred": reward}, text) for text, reward in zip(completions, (1.0, 0.0), strict=True)
    ]
    return Group(Problem(str(row.get("id", location)), parsed_prompt, None), rollouts, verdicts, [1.0, 0.0])
