"""The protocol that every task follows: problems, a verifier, reference answers, scores."""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from grpobench.tasks.data.messages import Message, Prompt, as_text, parse_messages
from grpobench.tasks.data.tables import DataError, Package, Source, Table
from grpobench.tasks.thoughts import METHODS, reads_no_thoughts

Split = Literal["train", "validation", "test"]
Outcome = Literal["graded", "unparsable", "timeout", "crash", "infra_error"]
Reply = str | tuple[Message, ...]
"""What an environment answers to a turn: a text, which is a message of the user, or messages of the user and
of tools."""


@dataclass(frozen=True)
class Problem:
    """One question. `truth` is JSON that only the verifier reads; `traits` describe the question for
    analysis. Traits used across tasks: `category`, `difficulty` (a number), `condition` (`ambiguous` or
    `disambiguated`)."""

    id: str
    prompt: Prompt
    """A text, or messages, also as a list of ``{"role": ..., "content": ...}``. DataError is raised for a
    list that is no prompt."""
    truth: Any
    traits: Mapping[str, str | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str):
            try:
                object.__setattr__(self, "prompt", parse_messages(self.prompt))
            except ValueError as error:
                raise DataError(f"problem {self.id}: its prompt: {error}") from None

    @property
    def text(self) -> str:
        """The prompt as text."""
        return as_text(self.prompt)


@dataclass(frozen=True)
class Verdict:
    """The grade of one completion. `scores` are named numbers, among them every name in `Task.scores`. With
    outcome `infra_error` the completion was not graded: the sample is masked, and its scores mean nothing."""

    scores: Mapping[str, float]
    answer: str | None
    outcome: Outcome = "graded"
    turn_rewards: tuple[float, ...] = ()
    """The environment's reward for each of the policy's turns; empty if it rewards whole episodes alone."""
    fault: str = ""
    """What an environment did wrong, where the outcome is not `graded`."""
    failed_test: str = ""
    """The first test that a program failed, or at which it stopped: a line for people, of bounded length."""


@dataclass(frozen=True)
class Graded:
    """A problem with one completion's verdict, as input of `summarize`."""

    problem: Problem
    verdict: Verdict


@dataclass(frozen=True)
class Task(ABC):
    """A source of problems and their verifier; the fields are its settings."""

    name: ClassVar[str]
    source: ClassVar[str] = ""
    """Where the problems come from, with license."""
    summary: ClassVar[str] = ""
    """One line for `grpobench list tasks`."""
    scores: ClassVar[tuple[str, ...]] = ("correct",)
    """Names of the scores that `verify` gives."""
    reward: ClassVar[Mapping[str, float]] = {"correct": 1.0}
    """Default weights of the scores in the reward."""
    max_completion_tokens: ClassVar[int] = 256
    """Default completion budget, in tokens of the model that the task is meant for."""
    turn_tokens: ClassVar[int] = 0
    """Maximum number of tokens of one turn, if `turns` is more than 1."""
    turn_end: ClassVar[str] = ""
    """Text that ends a turn besides the model's end token, for example a newline; empty for none."""
    answer_marker: ClassVar[str] = ""
    """The text with which a completion begins to state its final answer; empty if the whole completion is the
    answer."""
    splits: ClassVar[tuple[Split, ...]] = ("train", "validation", "test")
    modes: ClassVar[tuple[str, ...]] = ("sampled", "greedy")
    """Evaluation modes: by what the policy writes (`sampled`, `greedy`), and by the `likelihood` that it
    gives to each of `candidates`."""
    caveat: ClassVar[str] = ""
    """Known problems with the task's numbers; reports print this beside them."""
    tables: ClassVar[tuple[Table, ...]] = ()
    """The data files that the task reads; empty for generated tasks."""
    license: ClassVar[str] = ""
    """License of the data in `tables`."""
    packages: ClassVar[tuple[Package, ...]] = ()
    """Other packages that must be installed."""
    replays: ClassVar[bool] = False
    """Whether `grpobench tasks check` replays episodes, because the environment is the code of others."""
    reads_thoughts: ClassVar[bool] = False
    """Whether `verify`, `verify_episodes`, `verify_all` and `reply` get completions with the thoughts of a
    reasoning model, for example to check their tags. By default thoughts are removed first."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for name in METHODS:
            if name in cls.__dict__:
                setattr(cls, name, reads_no_thoughts(cls.__dict__[name]))

    @abstractmethod
    def problems(self, split: Split) -> Sequence[Problem]:
        """All problems of a split, in a fixed order. Raises `DataError` with place and remedy."""

    @abstractmethod
    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        """Grade completions of one problem, in order. Never raises for anything that a model can write."""

    def verify_all(
        self, problems: Sequence[Problem], episodes: Sequence[Sequence[Sequence[str]]]
    ) -> list[list[Verdict]]:
        """`verify_episodes` of many problems. A task overrides this if its verifier works on several problems
        in parallel, so that one that hangs does not delay the others."""
        pairs = zip(problems, episodes, strict=True)
        return [self.verify_episodes(problem, samples) for problem, samples in pairs]

    @abstractmethod
    def demonstrate(self, problem: Problem) -> str:
        """A reference completion that `verify` accepts, for supervised warm starts and self-checks."""

    def columns(self, problem: Problem) -> Mapping[str, Any]:
        """The columns of a problem for reward functions of plugins: its traits, and its truth, as separate
        columns if it is a table."""
        truth = problem.truth if isinstance(problem.truth, Mapping) else {"truth": problem.truth}
        return {**problem.traits, **truth}

    def lessons(self) -> Sequence[Problem]:
        """The problems whose demonstrations a supervised warm start learns; by default the training split."""
        return self.problems("train")

    def corrupt(self, problem: Problem) -> str | None:
        """A wrong completion in the form of a right one, which `verify` must reject. If None, `grpobench
        tasks check` takes another problem's demonstration."""
        return None

    def replay_faults(self, problems: Sequence[Problem]) -> list[str]:
        """How episodes of these problems differ when the same turns are replayed: a message for each problem
        where they do."""
        return []

    def state(self, problem: Problem, answer: str) -> Sequence[str]:
        """The policy's turns in an episode with this text as its final answer; `grpobench tasks check` uses
        it to state constants."""
        return (f"{self.answer_marker}{answer}",)

    def right_besides(self, problem: Problem, episode: Sequence[str]) -> bool:
        """Whether an episode that does not give the reference answer is right anyway, determined without
        `verify`. `grpobench tasks check` treats any other accepted answer as a mistake of the verifier."""
        return False

    def defects(self) -> Mapping[str, str]:
        """Problems whose published reference answer is known to be graded as wrong: the reason, by id."""
        return {}

    # Tasks of several turns. The defaults are those of a task of one turn.

    @property
    def turns(self) -> int:
        """Maximum number of the policy's turns in an episode."""
        return 1

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply | None:
        """The environment's reply, never empty, to the last of the policy's `turns`; None ends the episode.
        It depends only on its arguments, so that `verify_episodes` can replay an episode. Calls of tools
        stand in a turn as `tasks.data.tools.CALL` says, whatever the model's notation is."""
        return None

    def reply_all(
        self, problems: Sequence[Problem], episodes: Sequence[Sequence[str]]
    ) -> Sequence[Reply | None]:
        """`reply` to many episodes, one of each problem. A task overrides this if its environments work in
        parallel."""
        return [self.reply(problem, turns) for problem, turns in zip(problems, episodes, strict=True)]

    def verify_episodes(self, problem: Problem, episodes: Sequence[Sequence[str]]) -> list[Verdict]:
        """Grade episodes of one problem, each given as the policy's turns; by default by the last turn."""
        return self.verify(problem, [turns[-1] if turns else "" for turns in episodes])

    def demonstrate_episode(self, problem: Problem) -> Sequence[str]:
        """The policy's turns in a reference episode that `verify_episodes` accepts."""
        return (self.demonstrate(problem),)

    def draw_episode(self, problem: Problem, rng: random.Random) -> Sequence[str]:
        """The policy's turns in an episode drawn from what a base policy may write, right or wrong, for warm
        starts from a distribution; by default the reference episode."""
        return self.demonstrate_episode(problem)

    def credits(self, problem: Problem, turns: Sequence[str]) -> Sequence[float]:
        """The true advantage of each of the policy's turns, without the environment's luck: its reward plus
        the expected rewards after it, less those before, for a policy that the task knows. Empty if it knows
        none."""
        return ()

    # Tasks that are evaluated by likelihood.

    def candidates(self, problem: Problem) -> tuple[str, ...]:
        """The continuations whose log-probabilities are compared; empty if the task has no such mode."""
        return ()

    def premise(self, problem: Problem) -> str | None:
        """Plain text that the candidates continue, given to the model without a chat template; empty if they
        are texts of their own. None: they answer the problem's prompt."""
        return None

    def choose(self, problem: Problem, logp: Sequence[float], tokens: Sequence[int]) -> Verdict:
        """The verdict on candidates with these total log-probabilities (nats) and lengths (tokens, at least
        1); by default that of the likeliest, as if the policy had written it."""
        likeliest = max(range(len(logp)), key=lambda i: logp[i])
        return self.verify(problem, [self.candidates(problem)[likeliest]])[0]

    def summarize(self, graded: Sequence[Graded]) -> dict[str, float]:
        """Metrics of an evaluation beyond the mean of each score, e.g. bias scores by category."""
        return {}

    def sources(self, split: Split) -> Sequence[Source]:
        """Where the rows of a split came from; empty for generated tasks."""
        return ()

    def sandbox(self) -> str:
        """Tier of the sandbox that runs answers on this machine; empty if none are run."""
        return ""

    def missing(self) -> str:
        """Why the task is not available on this machine, with the remedy; empty if it is."""
        if not self.tables and not self.packages:
            return ""
        from grpobench.tasks.data import sources

        return sources.missing(self.tables, sources.data_folder(), self.packages)


@dataclass(frozen=True)
class BatchTask(Task):
    """A task whose verifier works on the episodes of many problems together."""

    @abstractmethod
    def grade_episodes(self, pairs: Sequence[tuple[Problem, Sequence[str]]]) -> Sequence[Verdict]:
        """Grade episodes, each given with its problem."""

    def verify_all(
        self, problems: Sequence[Problem], episodes: Sequence[Sequence[Sequence[str]]]
    ) -> list[list[Verdict]]:
        pairs = [
            (problem, turns) for problem, samples in zip(problems, episodes, strict=True) for turns in samples
        ]
        graded = self.grade_episodes(pairs)
        if len(graded) != len(pairs):
            name = f"{type(self).__name__}.grade_episodes"
            raise ValueError(f"{name} returned {len(graded)} verdicts, and there are {len(pairs)} episodes")
        verdicts = iter(graded)
        return [[next(verdicts) for _ in samples] for samples in episodes]

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return self.verify_all([problem], [[(completion,) for completion in completions]])[0]

    def verify_episodes(self, problem: Problem, episodes: Sequence[Sequence[str]]) -> list[Verdict]:
        return self.verify_all([problem], [episodes])[0]


def identity(question: str) -> str:
    """The id of a problem with this question."""
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def family(name: str) -> str:
    """The part before the colon of names such as ``reasoning_gym:sudoku``; otherwise the whole name."""
    return name.partition(":")[0]
