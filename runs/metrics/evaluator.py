"""Evaluation by likelihood: how probable the policy finds each candidate of a problem.

Candidates are read like the rollouts of a group, behind one copy of their prompt. Log-probabilities are those
of the untempered softmax, summed over a candidate's tokens; an end token is no part of a candidate.

The evaluator: the same code inside runs and for `grpobench eval`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from grpobench.analysis.statistics.samples import majority_curve, pass_curve, solved
from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.reward.grader import Grader
from grpobench.runs.sample.context import Room
from grpobench.runs.sample.episodes import episodes
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups
from grpobench.runs.sample.sampler import GREEDY, Sampler
from grpobench.runs.settings.config import EvaluateConfig, LongPrompts, RewardConfig
from grpobench.runs.tools.process import safe_point
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Graded, Problem, Split, Task, Verdict

PROBLEMS = 256
"""Problems that are laid out in one batch; the batch is read in micro-batches."""


@dataclass(frozen=True)
class Scored:
    """What the policy says about a problem's candidates, in order."""

    logp: tuple[float, ...]
    """Total log-probability of each, nats."""
    tokens: tuple[int, ...]
    """Length of each."""


def judge(
    models: RoleModels, loaded: Loaded, task: Task, problems: Sequence[Problem]
) -> list[tuple[Verdict, Scored]]:
    """The task's verdict on the candidates of each problem, and what it rests on. Raises DataError for a
    candidate that is empty or does not fit into the model's context."""
    asked = [
        (
            prompt(loaded, problem, task.premise(problem)),
            [continuation(loaded, problem, text) for text in task.candidates(problem)],
        )
        for problem in problems
    ]
    found = score(models, loaded, asked)
    return [
        (task.choose(problem, scored.logp, scored.tokens), scored)
        for problem, scored in zip(problems, found, strict=True)
    ]


def prompt(loaded: Loaded, problem: Problem, premise: str | None) -> tuple[int, ...]:
    """Token ids that the candidates of a problem continue. Where these are none, the first token of a
    candidate is predicted from the start token, or from the end token of a model that has no other."""
    if premise is None:
        return loaded.encode(problem.prompt)
    start = loaded.tokenizer.bos_token_id
    return tuple(loaded.tokenizer.encode(premise)) or (loaded.end[0] if start is None else int(start),)


def continuation(loaded: Loaded, problem: Problem, text: str) -> tuple[int, ...]:
    """Token ids of a candidate, encoded by itself like a demonstration."""
    ids = tuple(loaded.tokenizer.encode(text, add_special_tokens=False))
    if not ids:
        raise DataError(f"problem {problem.id}: the candidate {text!r} has no token; mend the task's data")
    return ids


def score(
    models: RoleModels, loaded: Loaded, asked: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]]
) -> list[Scored]:
    """Log-probabilities of the continuations of each (prompt, continuations)."""
    untempered = copy.copy(models)
    untempered.temperature = 1.0
    found: list[Scored] = []
    for start in range(0, len(asked), PROBLEMS):
        part = asked[start : start + PROBLEMS]
        groups = [_group(loaded, prompt, texts) for prompt, texts in part]
        batch = pack_groups(groups, 0, 0, loaded.pad, str(models.device))
        totals = iter(untempered.forward("policy", batch).logp.double().sum(-1).tolist())
        for _, texts in part:
            lengths = tuple(len(text) for text in texts)
            found.append(Scored(tuple(next(totals) for _ in texts), lengths))
    return found


def _group(loaded: Loaded, prompt: tuple[int, ...], texts: Sequence[tuple[int, ...]]) -> Group:
    """Continuations laid out as the rollouts of a group; nothing but their tokens is of use."""
    longest = len(prompt) + max(len(text) for text in texts)
    if longest > loaded.context:
        raise DataError(
            f"a prompt with its candidate has {longest} tokens, beyond the model's "
            f"{loaded.bound}; take another model"
        )
    rollouts = [Rollout(prompt, text, np.zeros(len(text), np.float32), True) for text in texts]
    return Group(Problem("", "", None), rollouts, [Verdict({}, None)] * len(texts), [0.0] * len(texts))


Mode = Literal["sampled", "greedy", "likelihood"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """One answer to a problem, graded."""

    verdict: Verdict
    length: int | None
    """Tokens that the policy wrote; None where it is not known."""
    stopped: bool | None
    more: Mapping[str, Any] = field(default_factory=dict)
    """What else stands in the row."""


@dataclass(frozen=True)
class Evaluator:
    """Answers the first problems of a split and grades them.

    Random numbers depend on seed, problem and sample but not on the step: two evaluations of a run answer
    the same problems with the same numbers, so that their difference is the policy's.
    """

    task: Task
    loaded: Loaded
    sampler: Sampler
    settings: EvaluateConfig
    seed: int
    limit: int
    at_once: int = 0
    """Sequences after which `tell` hears of it; 0: all problems go to the sampler in one call."""
    tell: Callable[[int, int], None] = lambda done, of: None
    """Called with the problems answered and their number."""
    texts: bool = False
    """Whether rows hold what the policy wrote."""
    models: RoleModels | None = None
    """Where likelihoods are read; None leaves that mode out."""
    long_prompts: LongPrompts = "refuse"

    def evaluate(self, step: int, split: Split) -> tuple[list[Row], dict[str, float]]:
        """(rows of eval.jsonl, ``eval/<split>/<mode>/<metric>`` numbers)."""
        problems = self.problems(split)
        grader = Grader(self.task, RewardConfig(), self.loaded, self.seed)
        found: dict[Mode, list[Sequence[Answer]]] = {}
        per_problem = self.settings.samples + self.settings.greedy
        stride = max(1, self.at_once // max(1, per_problem)) if self.at_once else max(1, len(problems))
        for start in range(0, len(problems), stride):
            part = problems[start : start + stride]
            for mode, written in self._write(split, part).items():
                found.setdefault(mode, []).extend(self._grade(grader, part, written))
                safe_point()
            if self.models and self.settings.likelihood and "likelihood" in self.task.modes:
                judged = judge(self.models, self.loaded, self.task, part)
                found.setdefault("likelihood", []).extend(
                    [Answer(verdict, None, None, asdict(scored))] for verdict, scored in judged
                )
            self.tell(start + len(part), len(problems))
        rows: list[Row] = []
        summary: dict[str, float] = {}
        for mode, answers in found.items():
            rows += rows_of(step, split, mode, problems, answers)
            numbers = summarize(self.task, problems, answers)
            summary |= {f"eval/{split}/{mode}/{name}": value for name, value in numbers.items()}
        return rows, summary

    def problems(self, split: Split) -> Sequence[Problem]:
        count = self.settings.test_problems if split == "test" else self.settings.problems
        room = Room(self.loaded, self.limit, self.long_prompts)
        return room.first(count, self.task.problems(split), split)

    def _write(self, split: Split, problems: Sequence[Problem]) -> dict[Mode, list[list[Rollout]]]:
        """What the policy writes in each mode that is asked for. An in-process sampler takes a problem's
        greedy answer along with the sampled ones: one prefill of the prompt serves both."""
        samples = self.settings.samples if "sampled" in self.task.modes else 0
        greedy = self.settings.greedy and "greedy" in self.task.modes
        seeds = [
            tuple(derive(self.seed, "evaluate", split, problem.id, i) for i in range(samples))
            for problem in problems
        ]
        if samples and greedy and self.task.turns == 1 and isinstance(self.sampler, HFSampler):
            both = self._sample(problems, [(*own, GREEDY) for own in seeds])
            return {"sampled": [own[:-1] for own in both], "greedy": [own[-1:] for own in both]}
        found: dict[Mode, list[list[Rollout]]] = {}
        if samples:
            found["sampled"] = self._sample(problems, seeds)
        if greedy:
            found["greedy"] = self._sample(problems, [(0,)] * len(problems), temperature=0.0)
        return found

    def _sample(
        self,
        problems: Sequence[Problem],
        seeds: Sequence[tuple[int, ...]],
        temperature: float | None = None,
    ) -> list[list[Rollout]]:
        chosen = self.settings.temperature if temperature is None else temperature
        return episodes(self.sampler, self.loaded, self.task, problems, seeds, self.limit, chosen)

    def _grade(
        self, grader: Grader, problems: Sequence[Problem], written: Sequence[Sequence[Rollout]]
    ) -> list[list[Answer]]:
        verdicts = grader.verify_all(problems, written)
        return [
            [self._answer(*pair) for pair in zip(rollouts, own, strict=True)]
            for rollouts, own in zip(written, verdicts, strict=True)
        ]

    def _answer(self, rollout: Rollout, verdict: Verdict) -> Answer:
        text = {"completion": self.loaded.decode(rollout.completion)} if self.texts else {}
        return Answer(verdict, rollout.length, rollout.stopped, text)


def rows_of(
    step: int, split: Split, mode: Mode, problems: Sequence[Problem], answers: Sequence[Sequence[Answer]]
) -> list[Row]:
    """Rows of eval.jsonl, one per answer."""
    return [
        {
            "step": step,
            "split": split,
            "mode": mode,
            "problem": problem.id,
            "sample": number,
            "scores": dict(answer.verdict.scores),
            "answer": answer.verdict.answer,
            "outcome": answer.verdict.outcome,
            "length": answer.length,
            "stopped": answer.stopped,
            "traits": dict(problem.traits),
            **answer.more,
        }
        for problem, own in zip(problems, answers, strict=True)
        for number, answer in enumerate(own)
    ]


def summarize(
    task: Task, problems: Sequence[Problem], answers: Sequence[Sequence[Answer]]
) -> dict[str, float]:
    """The mean of every score, the task's own summary, the mean length, and what several samples of a
    problem tell. Answers that could not be graded for reasons of the machine are left out."""
    graded = [
        [Graded(problem, answer.verdict) for answer in own if answer.verdict.outcome != "infra_error"]
        for problem, own in zip(problems, answers, strict=True)
    ]
    flat = [entry for own in graded for entry in own]
    numbers = {
        name: float(np.mean([e.verdict.scores[name] for e in flat if name in e.verdict.scores]))
        for name in sorted({name for entry in flat for name in entry.verdict.scores})
    }
    lengths = [answer.length for own in answers for answer in own if answer.length is not None]
    numbers |= task.summarize(flat)
    numbers |= {"length": float(np.mean(lengths))} if lengths else {}
    return numbers | several([[entry.verdict for entry in own] for own in graded if own])


def several(verdicts: Sequence[Sequence[Verdict]]) -> dict[str, float]:
    """``pass@k`` for k = 2, 4, … up to half the samples and ``maj@n``, the vote of the largest power of two
    of samples, where there are at least four and the task scores `correct`."""
    fewest = min(map(len, verdicts), default=0)
    if fewest < 4 or not all("correct" in verdict.scores for own in verdicts for verdict in own):
        return {}
    correct = [[verdict.scores["correct"] for verdict in own] for own in verdicts]
    curve = pass_curve([len(own) for own in correct], [solved(own) for own in correct])
    votes = majority_curve([[verdict.answer for verdict in own] for own in verdicts], correct)
    numbers = {f"pass@{k}": value for k, value in curve.items() if k > 1}
    return numbers | {f"maj@{k}": value for k, value in list(votes.items())[-1:]}
