"""The grader, which turns a completion into its reward: the verdict, the weighted sum of components, the
doses."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grpobench.algorithms.returned import ReturnError
from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.ranks import ALONE, DeviceRanks
from grpobench.runs.reward.doses import Dosed, dosed
from grpobench.runs.reward.functions import RewardFunction, RewardInput
from grpobench.runs.reward.judge import Judge, graded_text
from grpobench.runs.reward.model import Scorer
from grpobench.runs.reward.proxy import proxy
from grpobench.runs.reward.verdicts import demand_verdicts
from grpobench.runs.sample.episodes import policy_turns
from grpobench.runs.sample.rollouts import Group, Judgment, Rollout
from grpobench.runs.settings.config import RewardConfig
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Task, Verdict

WINDOW = 200
"""Number of completions over which failures of the verifier and the reward are counted."""
MOST_FAILURES = 2
"""Tolerated failures among these: 1 %."""
JUDGE = "judge"
"""The component that a language model gives. Where it gives none, other components do not count either: a
reward that lacks its part would be too low."""
CUT = "model_cut"
"""Logged beside the component `model`: 1 if the text was too long for the reward model."""
MASKED = Dosed(0.0, flipped=False, outlier=False)
"""In the place of a reward that a completion does not have."""
A = TypeVar("A")
B = TypeVar("B")


class RewardError(RuntimeError):
    """The verifier or the reward fails too often to continue."""


@dataclass(frozen=True)
class GradedCompletion:
    """A completion with everything that a component may use."""

    stream: str
    index: int
    """Index in its group."""
    problem: Problem
    rollout: Rollout
    verdict: Verdict
    majority: str | None = None
    """The answer that most completions of the group give, as the verifier reads it; of equally frequent ones
    the first; None if none can be read."""
    judgment: Judgment | None = None
    """None if nobody judges."""


class Grader:
    """Verifies completions and turns them into rewards.

    If the verifier or a component raises for a completion, or returns a number that is not finite, the
    completion is masked, like one that the machine failed to grade, and counted. More than 1 % of the last
    200 stop the run. The count starts anew when a run is resumed. `functions` are the reward functions of
    plugins, by name; an exception in one ends the run. A completion to which no component applies is masked,
    and is not a failure, nor is one that the `judge` gives no readable verdict on. `steps` is the run's
    number of steps, for functions that use it. Of several `ranks` each verifies its share of the problems,
    and rank 0 computes the rewards: all must see the same.

    Rewards of turns (`Verdict.turn_rewards`) are multiplied by `reward.scale`, and no other weight or dose
    changes them. An episode's reward contains them as far as a score of the task does, such as `return`.
    Rewards that replace the task's (`reward.kind` other than `task` and `sum`) leave them out, so that no
    control learns from the environment.

    Components are scores of the task, a learned reward model, a flawed proxy, functions of plugins, and
    controls. The task's verdict is always recorded too, whatever is rewarded."""

    def __init__(
        self,
        task: Task,
        reward: RewardConfig,
        loaded: Loaded,
        seed: int,
        functions: Mapping[str, RewardFunction] | None = None,
        steps: int = 0,
        ranks: DeviceRanks = ALONE,
        judge: Judge | None = None,
    ) -> None:
        self.ranks, self.judge = ranks, judge
        self.task, self.reward, self.loaded, self.seed = task, reward, loaded, seed
        self.functions, self.steps = functions or {}, steps
        self.weights = reward.components(task)
        self.scorer: Scorer | None = None
        if "model" in self.weights:
            self.scorer = Scorer(reward, task, ranks.device or loaded.model.device)
        self.recent: deque[bool] = deque(maxlen=WINDOW)
        self.last: Exception | None = None
        self.masked = self.rewarded = 0
        """Completions of the steps so far to which no component applied, and those with a reward."""

    @property
    def provenance(self) -> dict[str, str]:
        """Provenance of the reward model; empty without one."""
        return self.scorer.provenance if self.scorer else {}

    def verify_all(
        self, problems: Sequence[Problem], sampled: Sequence[Sequence[Rollout]]
    ) -> list[list[Verdict]]:
        """The task's verdicts on the completions of each problem; where it raises, verdicts of outcome
        `infra_error`."""
        judged = self._verify(problems, sampled)
        self._watch([verdict is None for verdicts in judged for verdict in verdicts])
        return [[verdict or Verdict({}, None, "infra_error") for verdict in verdicts] for verdicts in judged]

    def groups(
        self, streams: Sequence[str], problems: Sequence[Problem], sampled: Sequence[Sequence[Rollout]]
    ) -> list[Group]:
        """Verify and reward the completions of a step. `streams` name the random streams of each problem."""
        judged = self._verify(problems, sampled)
        graded = [
            GradedCompletion(stream, index, problem, rollout, verdict, most_frequent(verdicts))
            for stream, problem, rollouts, verdicts in zip(streams, problems, sampled, judged, strict=True)
            for index, (rollout, verdict) in enumerate(zip(rollouts, verdicts, strict=True))
            if verdict is not None
        ]
        graded = self._judged(graded)
        parts = iter(self.ranks.broadcast(lambda: guarded(self._measure, graded, self._note)))
        judgments = iter([completion.judgment for completion in graded])
        groups, failed = [], []
        for stream, problem, rollouts, verdicts in zip(streams, problems, sampled, judged, strict=True):
            components = [next(parts) if verdict is not None else None for verdict in verdicts]
            failed += [measured is None for measured in components]
            applied = [measured is not None and applies(measured, self.weights) for measured in components]
            self.rewarded += sum(applied)
            self.masked += sum(measured is not None for measured in components) - sum(applied)
            components = [
                measured if there else None for measured, there in zip(components, applied, strict=True)
            ]
            group = self._group(stream, problem, rollouts, verdicts, components)
            of_group = [next(judgments) if verdict is not None else None for verdict in verdicts]
            groups.append(dataclasses.replace(group, judgments=of_group if self.judge else ()))
        self._watch(failed)
        return groups

    def _judged(self, graded: Sequence[GradedCompletion]) -> list[GradedCompletion]:
        """The completions with their judgments, if one of the components is the judge's."""
        if JUDGE not in self.weights:
            return list(graded)
        judge = self.judge
        assert judge is not None
        answers = [
            (completion.problem, graded_text(self.task, self.loaded, completion.rollout))
            for completion in graded
        ]
        stage = graded[0].stream if graded else ""
        judgments = self.ranks.broadcast(lambda: judge.judge(answers, stage))
        return [
            dataclasses.replace(completion, judgment=judgment)
            for completion, judgment in zip(graded, judgments, strict=True)
        ]

    def _group(
        self,
        stream: str,
        problem: Problem,
        rollouts: Sequence[Rollout],
        verdicts: Sequence[Verdict | None],
        measured: Sequence[Mapping[str, float] | None],
    ) -> Group:
        masked = Verdict({}, None, "infra_error")
        final_verdicts = [
            dataclasses.replace(verdict or masked, outcome="infra_error") if parts is None else verdict
            for verdict, parts in zip(verdicts, measured, strict=True)
        ]
        names = [*self.weights, *([CUT] if self.scorer else [])]
        nothing = dict.fromkeys(names, math.nan)
        rewards = [
            self._dosed(weighted(parts, self.weights), (stream, problem.id, index)) if parts else MASKED
            for index, parts in enumerate(measured)
        ]
        drawn = [dosed_reward.columns for dosed_reward in rewards]
        flip_columns = ("flipped_share", "false_positive_rate", "false_negative_rate")
        doses = (flip_columns if self.reward.flip else ()) + (
            ("outlier_share",) if self.reward.outliers else ()
        )
        return Group(
            problem,
            rollouts,
            [verdict or masked for verdict in final_verdicts],
            [dosed_reward.reward for dosed_reward in rewards],
            {name: [(parts or nothing)[name] for parts in measured] for name in names},
            # What an algorithm that weighs the components for itself is told, so that it is scaled too.
            {name: self.reward.scale * weight for name, weight in self.weights.items()},
            {name: [columns[name] for columns in drawn] for name in doses},
            turn_rewards=[self._turn_rewards(verdict or masked) for verdict in final_verdicts],
        )

    def _turn_rewards(self, verdict: Verdict) -> tuple[float, ...]:
        rewarded = verdict.turn_rewards if self.reward.kind in ("task", "sum") else ()
        return tuple(self.reward.scale * turn_reward for turn_reward in rewarded)

    def _dosed(self, reward: float, completion_key: tuple[str, str, int]) -> Dosed:
        return dosed(reward, self.reward, self.weights, self.seed, completion_key)

    def _verify(
        self, problems: Sequence[Problem], sampled: Sequence[Sequence[Rollout]]
    ) -> list[list[Verdict | None]]:
        def judge(chosen: Sequence[tuple[int, Rollout]]) -> list[Verdict]:
            episodes: dict[int, list[Sequence[str]]] = {}
            for i, rollout in chosen:
                episodes.setdefault(i, []).append(policy_turns(self.loaded, problems[i], rollout))
            judged_problems = [problems[i] for i in episodes]
            problem_episodes = list(episodes.values())
            judged = demand_verdicts(
                self.task,
                judged_problems,
                problem_episodes,
                self.task.verify_all(judged_problems, problem_episodes),
            )
            for problem, verdicts in zip(judged_problems, judged, strict=True):
                demand_share(self.task, problem, verdicts)
            return [verdict for verdicts in judged for verdict in verdicts]

        def judge_all(share: Sequence[int]) -> list[list[Verdict | None]]:
            flat = [(i, rollout) for i in share for rollout in sampled[i]]
            verdicts = iter(guarded(judge, flat, self._note))
            return [[next(verdicts) for _ in sampled[i]] for i in share]

        return self.ranks.dealt(range(len(problems)), judge_all)

    def _measure(self, graded: Sequence[GradedCompletion]) -> list[dict[str, float]]:
        """Every component of every completion, before its weight."""
        columns = {name: self._component(name, graded) for name in self.weights if name != "model"}
        if self.scorer:
            pairs = [
                (completion.problem.prompt, self.loaded.decode(completion.rollout.completion))
                for completion in graded
            ]
            scores = self.scorer.score(pairs)
            columns["model"] = [score.value for score in scores]
            columns[CUT] = [float(score.cut) for score in scores]
        for name, column in columns.items():
            if name == JUDGE or name in self.functions:
                continue  # NaN: it gives no reward
            if bad := [value for value in column if not math.isfinite(value)]:
                raise ArithmeticError(f"the reward {name} gave {bad[0]}")
        return [{name: float(column[i]) for name, column in columns.items()} for i in range(len(graded))]

    def _component(self, name: str, graded: Sequence[GradedCompletion]) -> list[float]:
        if name in self.task.scores:
            return [completion.verdict.scores.get(name, 0.0) for completion in graded]
        if name in self.functions:
            function_rewards = self.functions[name](
                list(map(self._reward_input, graded)), steps_done(graded), self.steps
            )
            return [math.nan if value is None else value for value in function_rewards]
        return [CONTROLS[name](self, completion) for completion in graded]

    def _reward_input(self, graded: GradedCompletion) -> RewardInput:
        completion = graded.rollout.completion
        columns = self.task.columns(graded.problem)
        return RewardInput(graded.problem.prompt, self.loaded.decode(completion), completion, columns)

    def _note(self, error: Exception) -> None:
        self.last = error

    def _watch(self, failed: Iterable[bool]) -> None:
        self.recent.extend(failed)
        if sum(self.recent) > MOST_FAILURES:
            last_error = f"{type(self.last).__name__}: {self.last}" if self.last else ""
            rank_errors = [
                rank_error for rank_error in self.ranks.all_gather(last_error, stops=False) if rank_error
            ]
            raise RewardError(
                f"the verifier or the reward failed for {sum(self.recent)} of the last {len(self.recent)} "
                f"completions, more than {MOST_FAILURES} of {WINDOW}; the last time with "
                f"{rank_errors[0]}"
            ) from self.last


def demand_share(task: Task, problem: Problem, verdicts: Iterable[Verdict]) -> None:
    """Raise DataError for a score `correct` outside of 0 to 1: every accuracy of a report is its mean."""
    for verdict in verdicts:
        score = verdict.scores.get("correct", 0.0)
        if verdict.outcome != "infra_error" and not 0 <= score <= 1:
            raise DataError(
                f"task {task.name}: the score `correct` must be from 0 to 1, but its verifier gave {score:g} "
                f"for problem {problem.id}; fix its `verify`"
            )


def applies(measured: Mapping[str, float], weights: Mapping[str, float]) -> bool:
    """Whether any component gives a reward to a completion, and the judge does if it is asked."""
    return not all(math.isnan(measured[name]) for name in weights) and not (
        JUDGE in weights and math.isnan(measured[JUDGE])
    )


def weighted(measured: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The reward: components that do not apply (NaN) count as 0, as in TRL."""
    return sum(w * measured[name] for name, w in weights.items() if not math.isnan(measured[name]))


def steps_done(graded: Sequence[GradedCompletion]) -> int:
    """The number of steps before these completions, from their stream; 0 for rollouts of the base model."""
    step = graded[0].stream.partition("/")[0] if graded else ""
    return int(step) - 1 if step.isdigit() else 0


def flipped(grader: Grader, completion: GradedCompletion) -> float:
    return 1 - completion.verdict.scores.get("correct", 0.0)


def coin(grader: Grader, completion: GradedCompletion) -> float:
    """Heads with the probability in the recipe, by a seed of its own."""
    seed = derive(grader.seed, "placebo", completion.stream, completion.problem.id, completion.index)
    return float(random.Random(seed).random() < grader.reward.probability)


def surface(grader: Grader, completion: GradedCompletion) -> float:
    """The proxy of what the policy wrote, without a tool's replies."""
    return proxy(
        grader.loaded.decode(completion.rollout.written_tokens), grader.reward.proxy, grader.reward.proxy_half
    )


def most_frequent(verdicts: Iterable[Verdict | None]) -> str | None:
    """The answer that most of a group give; of equally frequent ones the first; None without one."""
    answers = [verdict.answer for verdict in verdicts if verdict is not None and verdict.answer is not None]
    return Counter(answers).most_common(1)[0][0] if answers else None


def judged(grader: Grader, completion: GradedCompletion) -> float:
    """The judge's score; NaN if it cannot be read."""
    return completion.judgment.score if completion.judgment else math.nan


def agrees(grader: Grader, completion: GradedCompletion) -> float:
    """Whether it gives its group's most frequent answer, right or wrong (arXiv:2504.16084, section 2)."""
    return float(completion.verdict.answer is not None and completion.verdict.answer == completion.majority)


CONTROLS: Mapping[str, Callable[[Grader, GradedCompletion], float]] = {
    "flipped": flipped,
    "random": coin,
    "majority": agrees,
    JUDGE: judged,
    "proxy": surface,
    "constant": lambda grader, completion: 1.0,
}
"""The components that are neither a score of the task nor a model."""


def guarded(
    function: Callable[[Sequence[A]], Sequence[B]], items: Sequence[A], note: Callable[[Exception], None]
) -> list[B | None]:
    """`function(items)`; if it raises, each item alone, and None for items that still raise. A DataError or
    ReturnError is for the user to fix and passes. `note` gets every other error."""
    try:
        return list(function(items)) if items else []
    except (DataError, ReturnError):
        raise
    except Exception as error:
        note(error)
        if len(items) == 1:
            return [None]
    return [result for item in items for result in guarded(function, [item], note)]
