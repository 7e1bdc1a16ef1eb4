"""Where a completion states its answer and where its parts begin, as indices of its tokens.

A curriculum whose return values are checked.

Sources of a step's groups: sampled from the policy, replayed from the base, or loaded from a file.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import json
import math
import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from grpobench.algorithms.algorithm import Algorithm, State
from grpobench.algorithms.curriculum import Curriculum, Informed, Shuffled, Valued, expected_value
from grpobench.algorithms.modifiers import Refilled
from grpobench.algorithms.returned import ReturnError, described, line_of
from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.past_weights import PastWeights
from grpobench.runs.reward.grader import Grader
from grpobench.runs.sample.context import Room
from grpobench.runs.sample.drawn import demand_routes
from grpobench.runs.sample.episodes import episodes
from grpobench.runs.sample.rollouts import (
    GREEDY,
    Group,
    Located,
    Mixing,
    Rollout,
    Sampler,
    count_sampled,
)
from grpobench.runs.sample.stop_strings import end_after
from grpobench.runs.sample.teacher_prompts import demand_room, teacher_prompts
from grpobench.runs.settings import plugins
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.truncation import truncation_of
from grpobench.runs.tools.progress import Clock
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.data.messages import parse_prompt
from grpobench.tasks.data.sources import find_flaw
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Verdict

if TYPE_CHECKING:
    from grpobench.runs.train.ahead import Work

BREAK = re.compile(
    r"(?<=\n)(?=\S)|(?<=[.!?;] )(?=\S)|(?<=,)(?=-?\d+ ?[-+*/])"
    r"|\b(?=(?:but|hmm|wait|so|then|therefore|thus|hence|however|alternatively|next|first|second|finally"
    r"|let me|because|since|check)\b)",
    re.IGNORECASE,
)
"""Places between characters at which a line, a sentence, an equation or a turn of thought begins."""


def locate(loaded: Loaded, marker: str, rollout: Rollout) -> Located:
    """The last statement of the final answer, and the breaks before it. An empty marker finds no answer."""
    text = loaded.decode(rollout.completion)
    start = text.rfind(marker) if marker else -1
    length = len(rollout.completion)
    places = [match.start() for match in BREAK.finditer(text, 0, start if start >= 0 else len(text))]
    wanted = sorted({*places, *([start] if start >= 0 else [])} - {0})
    tokens = dict(zip(wanted, begins(loaded, rollout.completion, wanted), strict=True))
    answer = length if start < 0 else tokens.get(start, 0)
    return Located(answer, tuple(sorted({tokens[p] for p in places if p} - {0, answer, length})))


def begins(loaded: Loaded, completion: tuple[int, ...], places: Sequence[int]) -> list[int]:
    """For each of these ascending positions in the text, the token that holds the character."""
    if not places:
        return []
    pieces = [loaded.decode((token,)) for token in completion]
    ends = list(itertools.accumulate(map(len, pieces)))
    if "".join(pieces) != loaded.decode(completion):  # characters of several tokens, or spaces left out
        ends = []
        while not ends or (ends[-1] <= places[-1] and len(ends) < len(completion)):
            ends.append(len(loaded.decode(completion[: len(ends) + 1])))
        ends = list(itertools.accumulate(ends, max))
    return [min(bisect.bisect_right(ends, position), len(completion) - 1) for position in places]


def announces(loaded: Loaded, marker: str) -> Callable[[Sequence[int]], bool] | None:
    """A function that says whether tokens state `marker`, to be called at every new token; None for an empty
    marker. It decodes the text only if the last token can end the marker."""
    if not marker:
        return None
    ends: dict[int, bool] = {}
    last = marker[-1]

    def said(tokens: Sequence[int]) -> bool:
        token = tokens[-1]
        if token not in ends:
            text = loaded.decode((token,))
            ends[token] = last in text or "\ufffd" in text or last.isspace()
        return ends[token] and marker in loaded.decode(tokens)

    return said


METHODS = ("draw", "accept", "state", "restore")


class Checked:
    """Wraps a curriculum, which chooses among so many problems. An index that no problem has raises
    ReturnError with the name of its class: Python would take −1 for the last problem."""

    def __init__(self, inner: Curriculum, problems: int) -> None:
        self.inner, self.problems = inner, problems
        if lacks := [name for name in ("attempts", *METHODS) if not hasattr(inner, name)]:
            what = f"{plugins.reference(type(inner))} is no curriculum: it lacks {', '.join(lacks)}"
            raise ReturnError(f"{line_of(type(inner))} {what}".lstrip())
        self._state = ""
        """The state as text, once it was found to be JSON."""

    @property
    def attempts(self) -> int:
        attempts: Any = self.inner.attempts
        if not isinstance(attempts, int) or attempts < 1:
            what = f"{plugins.reference(self._whose)}.attempts is {attempts!r:.80}"
            expected = "a whole number from 1 (as a @property or an attribute)"
            raise ReturnError(f"{line_of(self._whose)} {what}, expected {expected}".lstrip())
        return attempts

    def inform(self, state: State) -> None:
        if isinstance(self.inner, Informed):
            self.inner.inform(state)

    def foreseen(self, step: int) -> list[int] | None:
        """What the first draw of a later step will be; None if that depends on what comes before."""
        plain = self.inner.inner if isinstance(self.inner, Refilled) else self.inner
        return plain.draw(step, 0) if type(plain) in (Shuffled, Valued) else None

    def draw(self, step: int, attempt: int) -> list[int]:
        drawn: Any = self.inner.draw(step, attempt)
        if isinstance(drawn, str | bytes) or not hasattr(drawn, "__iter__"):
            raise self._refusal("draw", step, described(drawn), "a list of indices")
        found = [self._index(one, step) for one in drawn]
        if not found and not attempt:
            raise self._refusal("draw", step, "no index", "at least one, or the step has nothing to train on")
        return found

    def _index(self, value: Any, step: int) -> int:
        """The index of a problem. A bool is refused: it comes from a mask of problems."""
        try:
            index = -1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            index = -1
        if not 0 <= index < self.problems:
            expected = f"whole numbers from 0 to {self.problems - 1}, one for each problem"
            raise self._refusal("draw", step, f"the index {value!r:.80}", expected)
        return index

    def accept(self, step: int, index: Sequence[int], reward: Sequence[Sequence[float]]) -> list[bool]:
        accepted: Any = self.inner.accept(step, index, reward)
        count = len(accepted) if hasattr(accepted, "__len__") else -1
        if count != len(index) or any(one not in (True, False) for one in accepted):
            expected = f"True or False for each of {len(index)} problems"
            raise self._refusal("accept", step, described(accepted), expected)
        return [bool(one) for one in accepted]

    def expected(self, problem: int) -> float:
        """The value of a problem that the curriculum knows; NaN without one."""
        value: Any = expected_value(self.inner, problem)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._refusal("expected", 0, described(value), "a number, NaN where there is none")
        return float(value)

    def state(self) -> Any:
        state = self.inner.state()
        if not self._state:
            try:
                self._state = json.dumps(state)
            except (TypeError, ValueError) as error:
                raise self._refusal("state", 0, described(state), f"what JSON can hold ({error})") from None
        return state

    def restore(self, state: Any) -> None:
        self.inner.restore(state)

    def _refusal(self, method: str, step: int, returned: str, expected: str) -> ReturnError:
        when = f" at step {step}" if step else ""
        what = f"{plugins.reference(self._whose)}.{method} returned {returned}{when}, expected {expected}"
        return ReturnError(f"{line_of(getattr(self._whose, method))} {what}".lstrip())

    @property
    def _whose(self) -> type:
        """The class of the curriculum itself."""
        return type(self.inner.inner if isinstance(self.inner, Refilled) else self.inner)


class Source(Protocol):
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


def no_reward(source: Source) -> str:
    """Why nothing can be learned from a source whose reward functions gave None for every completion so far;
    empty otherwise."""
    grader = getattr(source, "grader", None)
    if not isinstance(grader, Grader) or grader.rewarded or not grader.masked:
        return ""
    names = ", ".join(name for name in grader.weights if name in grader.functions)
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
    ) -> None:
        self.config, self.loaded, self.sampler, self.grader = config, loaded, sampler, grader
        self.clock, self.algorithm, self.embeddings = clock, algorithm, embeddings
        self.past = past or PastWeights({}, 0)
        self.announced = announces(loaded, config.task.answer_marker)
        self.limit = config.sampler.max_completion_tokens or config.task.max_completion_tokens
        room = Room(loaded, self.limit, config.model.long_prompts)
        self.problems = room.fitting(config.task.problems("train"), "train")
        if shown := algorithm.teacher_prompt:
            self.problems = demand_room(room, config.task, shown, self.problems)
        self.generated = 0
        self.sampler_tokens = 0.0

    def gather(self, step: int, attempt: int, index: Sequence[int]) -> list[Group]:
        return self.answer(f"{step}/{attempt}", [self.problems[i] for i in index])

    def answer(self, stream: str, problems: Sequence[Problem]) -> list[Group]:
        """Sample and grade `train.group_size` completions of each problem."""
        problem_streams = streams(stream, problems)
        extra = self.algorithm.greedy_baseline
        seeds = self.seeds_of(stream, problems)
        with self.clock("sample"), self.lagging():
            sampled = self.sample(problems, seeds)
        if self.config.sampler.router_replay == "R3":
            demand_routes(self.sampler, sampled)
        self.generated += sum(rollout.length for rollouts in sampled for rollout in rollouts)
        self.sampler_tokens += count_sampled(sampled)
        if strings := self.config.sampler.stop:
            sampled = [
                [end_after(rollout, strings, self.loaded.decode) for rollout in group] for group in sampled
            ]
        with self.clock("verify"):
            groups = self.grader.groups(problem_streams, problems, sampled)
        if extra:
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
        extra = (GREEDY,) if self.algorithm.greedy_baseline else ()
        pairs = zip(streams(stream, problems), problems, strict=True)
        return [self.seeds(*pair) + extra for pair in pairs]

    def sample(self, problems: Sequence[Problem], seeds: Sequence[tuple[int, ...]]) -> list[list[Rollout]]:
        """The rollouts of each problem, with the weights that are in the models now."""
        from grpobench.runs.train.ahead import AheadSampler  # here, so that recipes are read without torch

        if isinstance(self.sampler, AheadSampler):
            version, _ = self.past.before(self.past.lag)
            return self.sampler.take(self.work(problems, seeds, version), lambda: self.past.parameters)
        temperature = self.config.sampler.temperature
        truncation = truncation_of(self.config.sampler)
        given = self.config.task, problems, seeds, self.limit, temperature, self.mixing(), truncation
        return episodes(self.sampler, self.loaded, *given)

    def work(self, problems: Sequence[Problem], seeds: Sequence[tuple[int, ...]], version: int) -> Work:
        from grpobench.runs.train.ahead import Work

        return Work(tuple(problems), tuple(seeds), self.limit, self.config.sampler.temperature, version)

    def sample_ahead(self, step: int, index: Sequence[int]) -> None:
        """Let a sampler that works ahead begin with the problems of the next `step`, before the updates of
        this one."""
        from grpobench.runs.train.ahead import AheadSampler

        if not isinstance(self.sampler, AheadSampler):
            return
        train = self.config.train
        # The next step samples with the weights of `lag` updates before it, of which this step makes some.
        version, weights = self.past.before(self.past.lag - train.num_minibatches * train.epochs)
        problems = [self.problems[i] for i in index]
        self.sampler.begin(self.work(problems, self.seeds_of(f"{step}/0", problems), version), weights)

    @contextlib.contextmanager
    def lagging(self) -> Iterator[None]:
        """Within, the sampler uses the oldest weights that are kept; outside, for evaluations, the current
        ones."""
        if not self.past.staleness:
            yield
            return
        with self.past.swapped_in():
            self.sampler.sync()  # an engine has weights of its own
            yield
        self.sampler.sync()

    def mixing(self) -> Mixing | None:
        """How embeddings are mixed while decoding, with the current embedding table. The mixing ends when a
        completion begins to state its answer."""
        from grpobench.runs.sample.dealt import DealtSampler

        if isinstance(self.sampler, DealtSampler):
            self.sampler.wake()  # the table is its own
        mixer = self.algorithm.mixer(self.embeddings)
        return None if mixer is None else Mixing(mixer, self.announced)

    def seeds(self, stream: str, problem: Problem) -> tuple[int, ...]:
        """One derived seed per completion."""
        group = range(self.config.train.group_size)
        return tuple(derive(self.config.seed, "sample", stream, problem.id, i) for i in group)


def streams(stream: str, problems: Sequence[Problem]) -> list[str]:
    """The random stream of each problem. A problem that a step draws twice (where two passes over the data
    meet) gets a second stream, so that its groups are not copies."""
    seen: Counter[str] = Counter()
    names = []
    for problem in problems:
        names.append(f"{stream}/{seen[problem.id]}" if seen[problem.id] else stream)
        seen[problem.id] += 1
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
    """Pairs from a JSONL file of ``{"prompt": …, "chosen": …, "rejected": …}``; chosen is rewarded 1."""

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
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if text.strip():
                try:
                    row = json.loads(text.decode())
                except UnicodeDecodeError as error:
                    why = f"not UTF-8 (byte 0x{text[error.start]:02x} at {error.start + 1})"
                    remedy = "save the file as UTF-8"
                    raise DataError(f"{path}:{number}: {why}; {remedy}") from None
                except (ValueError, RecursionError) as error:
                    why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                    raise DataError(f"{path}:{number}: not JSON ({why}); mend or remove the line") from None
                if flaw := find_flaw(row):
                    raise DataError(f"{path}:{number}: {flaw}; mend or remove the line")
                yield number, row


def preference(row: Any, location: str, loaded: Loaded) -> Group:
    """A preference pair, from FILE:LINE, as a group of two rollouts that another policy wrote."""
    keys = ("prompt", "chosen", "rejected")
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in keys[1:]):
        raise DataError(f"{location}: needs the texts {', '.join(keys)}; mend or remove the line")
    try:
        asked = parse_prompt(row.get("prompt"))
    except ValueError as error:
        raise DataError(f"{location}: the prompt: {error}; mend or remove the line") from None
    prompt = loaded.encode(asked)
    rollouts = []
    for key in ("chosen", "rejected"):
        completion = (*loaded.tokenizer.encode(row[key], add_special_tokens=False), loaded.end[0])
        if (length := len(prompt) + len(completion)) > loaded.context:
            raise DataError(
                f"{location}: prompt and {key} completion have {length} tokens, beyond the model's "
                f"{loaded.bound}; shorten or remove the line"
            )
        unknown = np.zeros(len(completion), dtype=np.float32)  # nobody recorded the log-probabilities
        rollouts.append(Rollout(prompt, completion, unknown, stopped=True))
    verdicts = [
        Verdict({"preferred": reward}, row[key]) for key, reward in (("chosen", 1.0), ("rejected", 0.0))
    ]
    return Group(Problem(str(row.get("id", location)), asked, None), rollouts, verdicts, [1.0, 0.0])
