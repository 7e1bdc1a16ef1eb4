"""The protocol that every task follows: problems, a verifier, reference answers, scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from grpobench.tasks.data.tables import Package, Source, Table

Split = Literal["train", "validation", "test"]
Outcome = Literal["graded", "unparsable", "timeout", "crash", "infra_error"]


@dataclass(frozen=True)
class Problem:
    """One question. `truth` is JSON that only the verifier reads; `traits` describe it for analysis.

    Traits used across tasks: `category`, `difficulty` (a number), `condition` (`ambiguous` or
    `disambiguated`).
    """

    id: str
    prompt: str
    truth: Any
    traits: Mapping[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The grade of one completion.

    `scores` are named numbers, among them every name in `Task.scores`. With outcome `infra_error` the
    completion was not graded: the sample is masked, and its scores mean nothing.
    """

    scores: Mapping[str, float]
    answer: str | None
    outcome: Outcome = "graded"


@dataclass(frozen=True)
class Graded:
    """A problem with one completion's verdict, as `summarize` sees it."""

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
    """Default completion budget in tokens of the model that the task is meant for."""
    turn_tokens: ClassVar[int] = 0
    """Most tokens of one turn, where `turns` is more than 1."""
    turn_end: ClassVar[str] = ""
    """What ends a turn beside the model's end token, for example a newline; empty for nothing else."""
    answer_marker: ClassVar[str] = ""
    """The text with which a completion begins to state its final answer; empty where the whole completion is
    the answer."""
    splits: ClassVar[tuple[Split, ...]] = ("train", "validation", "test")
    modes: ClassVar[tuple[str, ...]] = ("sampled", "greedy")
    """How an evaluation may ask: by what the policy writes (`sampled`, `greedy`), and by the `likelihood`
    that it gives to each of `candidates`."""
    caveat: ClassVar[str] = ""
    """What is known to be wrong with the task's numbers; reports print it beside them."""
    tables: ClassVar[tuple[Table, ...]] = ()
    """The data files that the task reads; nothing for generated tasks."""
    license: ClassVar[str] = ""
    """License of the data in `tables`."""
    packages: ClassVar[tuple[Package, ...]] = ()
    """What else must be installed."""

    @abstractmethod
    def problems(self, split: Split) -> Sequence[Problem]:
        """All problems of a split, in a fixed order. Raises `DataError` naming the place and remedy."""

    @abstractmethod
    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        """Grade completions of one problem, in order. Never raises for anything a model can write."""

    def verify_all(
        self, problems: Sequence[Problem], episodes: Sequence[Sequence[Sequence[str]]]
    ) -> list[list[Verdict]]:
        """`verify_episodes` of many problems. A task overrides it where its verifier works on several
        problems side by side, so that what hangs in one does not hold up the others."""
        pairs = zip(problems, episodes, strict=True)
        return [self.verify_episodes(problem, own) for problem, own in pairs]

    @abstractmethod
    def demonstrate(self, problem: Problem) -> str:
        """A reference completion that `verify` accepts, for supervised warm starts and self-checks."""

    def columns(self, problem: Problem) -> Mapping[str, Any]:
        """What is known of a problem, by name, as reward functions from elsewhere are given it: its traits,
        and its truth, which is spread where that is a table."""
        truth = problem.truth if isinstance(problem.truth, Mapping) else {"truth": problem.truth}
        return {**problem.traits, **truth}

    def lessons(self) -> Sequence[Problem]:
        """The problems whose demonstrations a supervised warm start learns; by default the training split."""
        return self.problems("train")

    def corrupt(self, problem: Problem) -> str | None:
        """A wrong completion in a right one's form, which `verify` must reject. None leaves it to
        `grpobench tasks check`, which takes another problem's demonstration."""
        return None

    def state(self, problem: Problem, answer: str) -> Sequence[str]:
        """The policy's turns in an episode whose final answer is this text, whatever it is; `grpobench tasks
        check` states constants so."""
        return (f"{self.answer_marker}{answer}",)

    def right_besides(self, problem: Problem, episode: Sequence[str]) -> bool:
        """Whether an episode that does not give the reference answer is right all the same: found without
        `verify`, for `grpobench tasks check`, which takes for fooled a verifier that accepts any other."""
        return False

    def defects(self) -> Mapping[str, str]:
        """Problems whose published reference answer is known to be graded as wrong: the reason, by id."""
        return {}

    # Tasks of several turns. The defaults are those of a task of one turn.

    @property
    def turns(self) -> int:
        """Most turns of the policy in an episode."""
        return 1

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        """The environment's answer, never empty, to the last of the policy's `turns`; None ends the episode.
        A function of its arguments alone, so that `verify_episodes` can play an episode again."""
        return None

    def verify_episodes(self, problem: Problem, episodes: Sequence[Sequence[str]]) -> list[Verdict]:
        """Grade episodes of one problem, each given as the policy's turns; by default by the last turn."""
        return self.verify(problem, [turns[-1] if turns else "" for turns in episodes])

    def demonstrate_episode(self, problem: Problem) -> Sequence[str]:
        """The policy's turns in a reference episode that `verify_episodes` accepts."""
        return (self.demonstrate(problem),)

    # Tasks that are evaluated by likelihood.

    def candidates(self, problem: Problem) -> tuple[str, ...]:
        """The continuations whose log-probabilities are compared; none where the task has no such mode."""
        return ()

    def premise(self, problem: Problem) -> str | None:
        """Plain text that the candidates continue, given to the model as it is, with no chat template; empty
        where they are texts of their own. None: they answer the problem's prompt."""
        return None

    def choose(self, problem: Problem, logp: Sequence[float], tokens: Sequence[int]) -> Verdict:
        """The verdict on candidates of these total log-probabilities (nats) and lengths (tokens, at least 1);
        by default that on the likeliest, had it been written."""
        likeliest = max(range(len(logp)), key=lambda i: logp[i])
        return self.verify(problem, [self.candidates(problem)[likeliest]])[0]

    def summarize(self, graded: Sequence[Graded]) -> dict[str, float]:
        """Metrics of an evaluation beyond the mean of each score, e.g. bias scores by category."""
        return {}

    def sources(self, split: Split) -> Sequence[Source]:
        """Where the rows of a split came from; nothing for generated tasks."""
        return ()

    def sandbox(self) -> str:
        """Tier of the sandbox that answers are run in on this machine; empty where none is run."""
        return ""

    def missing(self) -> str:
        """Why the task cannot be served on this machine, with the remedy; empty when it can."""
        if not self.tables and not self.packages:
            return ""
        from grpobench.tasks.data import sources

        return sources.missing(self.tables, sources.data_folder(), self.packages)


def family(name: str) -> str:
    """What stands before the colon of names such as ``reasoning_gym:sudoku``; otherwise the whole name."""
    return name.partition(":")[0]
