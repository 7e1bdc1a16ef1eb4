"""The evaluator, which runs and `grpobench eval` share, and evaluation by likelihood."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from grpobench.analysis.statistics.samples import majority_curve, overconfidence, pass_curve, solved
from grpobench.runs.metrics.contamination import measure_contamination
from grpobench.runs.metrics.reference import PROBLEMS, measure_reference, untempered
from grpobench.runs.metrics.turns import count_turns, mean_by_name
from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.ranks import ALONE, DeviceRanks
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.reward.grader import JUDGE, Grader
from grpobench.runs.reward.judge import Judge, graded_text, judge_metrics
from grpobench.runs.reward.verdicts import demand_summary
from grpobench.runs.sample.context import Room
from grpobench.runs.sample.episodes import conversation, episodes
from grpobench.runs.sample.rollouts import Group, Judgment, Rollout, pack_groups
from grpobench.runs.sample.sampler import GREEDY, Sampler
from grpobench.runs.settings.config import EvaluateConfig, LongPrompts, RewardConfig
from grpobench.runs.tools.process import safe_point
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.data.messages import as_json
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Graded, Problem, Split, Task, Verdict


@dataclass(frozen=True)
class Scored:
    """The likelihoods of a problem's candidates, in order."""

    logp: tuple[float, ...]
    """Total log-probability of each, nats."""
    tokens: tuple[int, ...]
    """Length of each."""


def judge(
    models: RoleModels, loaded: Loaded, task: Task, problems: Sequence[Problem]
) -> list[tuple[Verdict, Scored]]:
    """The task's verdict on the candidates of each problem, with their likelihoods. Raises DataError for a
    candidate that is empty or does not fit into the model's context."""
    prompts_with_continuations = [
        (
            prompt(loaded, problem, task.premise(problem)),
            [continuation(loaded, problem, text) for text in continuations(loaded, task, problem)],
        )
        for problem in problems
    ]
    return [
        (task.choose(problem, scored.logp, scored.tokens), scored)
        for problem, scored in zip(problems, score(models, loaded, prompts_with_continuations), strict=True)
    ]


def prompt(loaded: Loaded, problem: Problem, premise: str | None) -> tuple[int, ...]:
    """Token ids that the candidates of a problem continue. If there are none, the first token of a candidate
    is predicted from the start token or, in a model without one, from the end token."""
    if premise is None:
        return loaded.encode(problem.prompt)
    start = loaded.tokenizer.bos_token_id
    return tuple(loaded.tokenizer.encode(premise)) or (loaded.end[0] if start is None else int(start),)


def continuations(loaded: Loaded, task: Task, problem: Problem) -> tuple[str, ...]:
    """The candidates of a problem as they follow its prompt or its premise."""
    texts = task.candidates(problem)
    return texts if task.premise(problem) is not None else tuple(map(loaded.format_answer, texts))


def continuation(loaded: Loaded, problem: Problem, text: str) -> tuple[int, ...]:
    """Token ids of a candidate, encoded by itself like a demonstration."""
    ids = tuple(loaded.tokenizer.encode(text, add_special_tokens=False))
    if not ids:
        raise DataError(f"problem {problem.id}: the candidate {text!r} has no token; mend the task's data")
    return ids


def score(
    models: RoleModels,
    loaded: Loaded,
    prompts_with_continuations: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
) -> list[Scored]:
    """Log-probabilities of the continuations of each (prompt, continuations).

    The candidates of a problem go through the model like the rollouts of a group, after one copy of their
    prompt. Log-probabilities are those of the untempered softmax, summed over a candidate's tokens; an end
    token is not part of a candidate."""
    models = untempered(models)
    scores: list[Scored] = []
    for start in range(0, len(prompts_with_continuations), PROBLEMS):
        part = prompts_with_continuations[start : start + PROBLEMS]
        groups = [_group(loaded, prompt, texts) for prompt, texts in part]
        batch = pack_groups(groups, 0, 0, loaded.pad, str(models.device))
        totals = iter(models.forward("policy", batch).logp.double().sum(-1).tolist())
        for _, texts in part:
            lengths = tuple(len(text) for text in texts)
            scores.append(Scored(tuple(next(totals) for _ in texts), lengths))
    return scores


def _group(loaded: Loaded, prompt: tuple[int, ...], texts: Sequence[tuple[int, ...]]) -> Group:
    """Continuations as the rollouts of a group, of which only the tokens are used."""
    longest = len(prompt) + max(len(text) for text in texts)
    if longest > loaded.context:
        raise DataError(
            f"a prompt with its candidate has {longest} tokens, beyond the model's "
            f"{loaded.context_description}; take another model"
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
    """Tokens that the policy wrote; None if unknown."""
    stopped: bool | None
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of the row."""
    counts: Mapping[str, float] = field(default_factory=dict)
    """What an episode of several turns consists of; see `count_turns`."""
    judgment: Judgment | None = None
    """None if nobody judges, or the verifier failed."""


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
    """Sequences between two calls of `tell`; 0: all problems go to the sampler in one call."""
    tell: Callable[[int, int], None] = lambda done, of: None
    """Called with the problems answered and their number."""
    texts: bool = False
    """Whether rows hold what the policy wrote."""
    models: RoleModels | None = None
    """The models for likelihoods; None leaves that mode out."""
    long_prompts: LongPrompts = "refuse"
    judge: Judge | None = None
    """Gives answers that the policy writes the score `judge`, unless it has no readable verdict on them."""

    def evaluate(self, step: int, split: Split) -> tuple[list[Row], dict[str, float]]:
        """(rows of eval.jsonl, ``eval/<split>/<mode>/<metric>``, ``reference/<split>/logp`` and
        ``contamination/<metric>`` numbers)."""
        problems = self.problems(split)
        ranks = self.models.ranks if self.models else ALONE
        grader = Grader(self.task, RewardConfig(), self.loaded, self.seed, ranks=ranks)
        by_mode: dict[Mode, list[Sequence[Answer]]] = {}
        per_problem = self.settings.samples + self.settings.greedy
        stride = max(1, self.at_once // max(1, per_problem)) if self.at_once else max(1, len(problems))
        for start in range(0, len(problems), stride):
            part = problems[start : start + stride]
            for mode, written in self._write(split, part).items():
                graded = self._grade(grader, part, written)
                stage = f"evaluate/{self.task.name}/{split}/{mode}/{step}"
                by_mode.setdefault(mode, []).extend(self._judged(ranks, stage, part, written, graded))
                safe_point()
            if self.models and self.settings.likelihood and "likelihood" in self.task.modes:
                judged = judge(self.models, self.loaded, self.task, part)
                by_mode.setdefault("likelihood", []).extend(
                    [Answer(verdict, None, None, asdict(scored))] for verdict, scored in judged
                )
            self.tell(start + len(part), len(problems))
        rows: list[Row] = []
        summary: dict[str, float] = {}
        for mode, answers in by_mode.items():
            rows += rows_of(step, split, mode, problems, answers)
            numbers = summarize(self.task, problems, answers)
            summary |= {f"eval/{split}/{mode}/{name}": value for name, value in numbers.items()}
        if self.models and self.settings.reference_likelihood and problems:
            summary[f"reference/{split}/logp"] = measure_reference(
                self.models, self.loaded, self.task, problems
            )
        if self.settings.contamination and split == "test" and step == 0:
            summary |= measure_contamination(problems, self.loaded, self.sampler)
        return rows, summary

    def problems(self, split: Split) -> Sequence[Problem]:
        count = self.settings.test_problems if split == "test" else self.settings.problems
        room = Room(self.loaded, self.limit, self.long_prompts)
        return room.first(count, self.task.problems(split), split)

    def _write(self, split: Split, problems: Sequence[Problem]) -> dict[Mode, list[list[Rollout]]]:
        """The rollouts of each mode that the settings ask for. An in-process sampler decodes a problem's
        greedy answer along with the sampled ones: one prefill of the prompt serves both."""
        samples = self.settings.samples if "sampled" in self.task.modes else 0
        greedy = self.settings.greedy and "greedy" in self.task.modes
        seeds = [
            tuple(derive(self.seed, "evaluate", split, problem.id, i) for i in range(samples))
            for problem in problems
        ]
        if samples and greedy and self.task.turns == 1 and self.sampler.mixes_greedy:
            both = self._sample(problems, [(*sampled, GREEDY) for sampled in seeds])
            return {"sampled": [row[:-1] for row in both], "greedy": [row[-1:] for row in both]}
        by_mode: dict[Mode, list[list[Rollout]]] = {}
        if samples:
            by_mode["sampled"] = self._sample(problems, seeds)
        if greedy:
            by_mode["greedy"] = self._sample(problems, [(0,)] * len(problems), temperature=0.0)
        return by_mode

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
            [self._answer(problem, *pair) for pair in zip(rollouts, of_problem, strict=True)]
            for problem, rollouts, of_problem in zip(problems, written, verdicts, strict=True)
        ]

    def _judged(
        self,
        ranks: DeviceRanks,
        stage: str,
        problems: Sequence[Problem],
        written: Sequence[Sequence[Rollout]],
        graded: Sequence[Sequence[Answer]],
    ) -> Sequence[Sequence[Answer]]:
        """The answers with the judge's scores, if there is a judge."""
        if (judge_of_answers := self.judge) is None:
            return graded
        texts = [
            (problem, graded_text(self.task, self.loaded, rollout))
            for problem, rollouts, answers in zip(problems, written, graded, strict=True)
            for rollout, answer in zip(rollouts, answers, strict=True)
            if answer.verdict.outcome != "infra_error"
        ]
        judgments = iter(ranks.broadcast(lambda: judge_of_answers.judge(texts, stage)))
        return [
            [
                answer if answer.verdict.outcome == "infra_error" else with_judgment(answer, next(judgments))
                for answer in answers
            ]
            for answers in graded
        ]

    def _answer(self, problem: Problem, rollout: Rollout, verdict: Verdict) -> Answer:
        text: dict[str, Any] = {}
        if self.texts:
            text["completion"] = self.loaded.decode(rollout.completion)
            if turns := conversation(self.loaded, problem, rollout).get("turns"):
                text["conversation"] = turns
        counts = count_turns(self.loaded, problem, rollout)
        return Answer(verdict, rollout.length, rollout.stopped, text, counts)


def with_judgment(answer: Answer, judgment: Judgment) -> Answer:
    """The answer with the judge's score, if there is one, and its verdicts in the row."""
    scores = dict(answer.verdict.scores)
    if not math.isnan(judgment.score):
        scores[JUDGE] = judgment.score
    return dataclasses.replace(
        answer,
        verdict=dataclasses.replace(answer.verdict, scores=scores),
        more={**answer.more, "judge": list(judgment.scores)},
        judgment=judgment,
    )


def prompts_of(task: Task, split: Split, rows: Sequence[Row]) -> dict[str, Any]:
    """The prompts of the problems of `rows`, by problem, as JSON holds them; empty without texts."""
    absent = {row["problem"] for row in rows if "completion" in row}
    prompts: dict[str, Any] = {}
    for problem in task.problems(split) if absent else ():
        if problem.id in absent:
            prompts[problem.id] = as_json(problem.prompt)
            if len(prompts) == len(absent):
                break
    return prompts


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
            **({"fault": answer.verdict.fault} if answer.verdict.fault else {}),
            **({"failed_test": answer.verdict.failed_test} if answer.verdict.failed_test else {}),
            "length": answer.length,
            "stopped": answer.stopped,
            "traits": dict(problem.traits),
            **answer.counts,
            **answer.more,
        }
        for problem, of_problem in zip(problems, answers, strict=True)
        for number, answer in enumerate(of_problem)
    ]


def summarize(
    task: Task, problems: Sequence[Problem], answers: Sequence[Sequence[Answer]]
) -> dict[str, float]:
    """The mean of every score, the task's own summary, the mean length and counts of turns, and the metrics
    of several samples per problem. Answers that the machine could not grade are left out."""
    graded = [
        [Graded(problem, answer.verdict) for answer in of_problem if answer.verdict.outcome != "infra_error"]
        for problem, of_problem in zip(problems, answers, strict=True)
    ]
    flat = [graded_answer for of_problem in graded for graded_answer in of_problem]
    numbers = dict(sorted(mean_by_name(graded_answer.verdict.scores for graded_answer in flat).items()))
    lengths = [answer.length for of_problem in answers for answer in of_problem if answer.length is not None]
    numbers |= demand_summary(task, task.summarize(flat))
    numbers |= {"length": float(np.mean(lengths))} if lengths else {}
    counts = mean_by_name(answer.counts for of_problem in answers for answer in of_problem)
    judgments = [answer.judgment for of_problem in answers for answer in of_problem if answer.judgment]
    numbers |= {f"{JUDGE}_{name}": value for name, value in judge_metrics(judgments).items()}
    # A score of the task may have the name of a count.
    numbers |= {name: value for name, value in counts.items() if name not in numbers}
    return numbers | several(
        [[graded_answer.verdict for graded_answer in of_problem] for of_problem in graded if of_problem]
    )


def several(verdicts: Sequence[Sequence[Verdict]]) -> dict[str, float]:
    """``pass@k`` for k = 2, 4, … up to half the samples and ``maj@n``, the vote of the largest power of two
    of samples, and `overconfidence`, where there are at least four and the task scores `correct`."""
    fewest = min(map(len, verdicts), default=0)
    if fewest < 4 or not all(
        "correct" in verdict.scores for of_problem in verdicts for verdict in of_problem
    ):
        return {}
    correct = [[verdict.scores["correct"] for verdict in of_problem] for of_problem in verdicts]
    curve = pass_curve(
        [len(of_problem) for of_problem in correct], [solved(of_problem) for of_problem in correct]
    )
    answers = [[verdict.answer for verdict in of_problem] for of_problem in verdicts]
    votes = majority_curve(answers, correct)
    numbers = {f"pass@{k}": value for k, value in curve.items() if k > 1}
    numbers |= {f"maj@{k}": value for k, value in list(votes.items())[-1:]}
    gap = overconfidence(answers, correct)
    return numbers if gap is None else {**numbers, "overconfidence": gap}
