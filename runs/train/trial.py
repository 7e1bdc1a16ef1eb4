"""A trial of a run: a few tiny steps on real data, so that code that cannot work fails in seconds."""

# A trial builds what the run will build and calls all of it: the curriculum draws among the real problems,
# the sampler answers two of them in a few tokens, the task and the rewards grade, the algorithm computes
# signal and loss, the optimizer updates, the task is evaluated, callbacks hear of it. It writes nothing that
# a run reads.
#
# Code often fails not at once but where rewards are all equal (a deviation of 0) or at a later step. So a
# trial makes several steps, numbered 1, 2, 3, the first that updates the policy and the last, with the
# rewards as they are, with rewards that differ and with equal ones, and requires that all values are finite.

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from grpobench.algorithms import returned
from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.curriculum import Study
from grpobench.algorithms.returned import ReturnError
from grpobench.runs.models.token_budgets import explain_out_of_memory
from grpobench.runs.observe.observers import LATE, Link
from grpobench.runs.reward.verifier_check import verifier_checks
from grpobench.runs.sample.rollouts import Group
from grpobench.runs.settings import plugins, stored
from grpobench.runs.settings.config import RewardConfig, RunConfig
from grpobench.runs.settings.observe import TRACKERS, Observe
from grpobench.runs.tools import strict, toml
from grpobench.runs.tools.determinism import deterministic
from grpobench.runs.tools.process import environment
from grpobench.runs.train.parts import build
from grpobench.runs.train.prepare.base_rollouts import BaseRollouts
from grpobench.runs.train.rollouts import GroupSource, no_reward
from grpobench.runs.train.trainer import Trainer
from grpobench.tasks.task import Problem, Split, Verdict

PROMPTS, GROUP, TOKENS = 2, 4, 8
"""Most problems of a step, completions of a problem (unless an algorithm needs more), tokens of each."""
EVALUATED = 2
"""Most problems that are evaluated in a split."""
MOST_WARM_UP = 1000
CALLBACK_SECONDS = 60.0
"""Seconds that a callback gets, whose process may be slow to start on a busy machine. One that needs more is
not tried further: in a run it would only be dropped at the end."""
Rewards = Literal["real", "different", "equal"]
"""Which rewards the algorithm gets: the recipe's; 0, 1, 0, 1, ... in each group; 0 for all."""


def first_update(config: RunConfig) -> int:
    """The first step that updates the policy; later than 1 if a critic is warmed up first."""
    steps = range(1, MOST_WARM_UP)
    return next((step for step in steps if "policy" in config.algorithm.updated_roles(step)), 1)


def calls(config: RunConfig) -> list[tuple[int, Rewards]]:
    """The steps of a trial with their rewards. The numbers 1, 2 and 3 come first, as in a run."""
    last = config.train.steps
    if not last:
        return []
    steps_with_rewards: list[tuple[int, Rewards]] = [(1, "real"), (2, "different"), (3, "equal")]
    steps_with_rewards += [(first_update(config), "different"), (last, "equal")]
    if config.sampler.kind == "preferences":  # the file says which completion is better
        steps_with_rewards = [(step, "real") for step, _ in steps_with_rewards]
    return list(dict.fromkeys((min(step, last), rewards) for step, rewards in steps_with_rewards))


def tiny(config: RunConfig) -> RunConfig:
    """The run in the least size that calls all of its code, without warm start, engine or TRL's trainer."""
    train, sampler, evaluate = config.train, config.sampler, config.evaluate
    limit = sampler.max_completion_tokens or config.task.max_completion_tokens
    prompts = min(train.prompts_per_step, PROMPTS)
    group = min(train.group_size, max(GROUP, config.algorithm.minimum_group))
    engine = sampler.kind in ("vllm", "vllm-server")
    return dataclasses.replace(
        config,
        reward=unjudged(config.reward),
        model=dataclasses.replace(config.model, warm_start=0),
        train=dataclasses.replace(
            train,
            prompts_per_step=prompts,
            group_size=group,
            num_minibatches=min(train.num_minibatches, prompts),
            epochs=min(train.epochs, 2),
            backend="grpobench",
        ),
        sampler=dataclasses.replace(
            sampler,
            kind="hf" if engine else sampler.kind,
            max_completion_tokens=min(limit, TOKENS),
            problems=min(sampler.problems, 2 * PROMPTS),
        ),
        evaluate=dataclasses.replace(
            evaluate,
            problems=min(evaluate.problems, EVALUATED),
            test_problems=min(evaluate.test_problems, EVALUATED),
            samples=min(evaluate.samples, 2),
            kl_base=False,  # which needs a copy of the policy
            judge=None,
        ),
        observe=(),  # `call_back` tries them one by one
        stop_on=(),
    )


def unjudged(reward: RewardConfig) -> RewardConfig:
    """The reward without its judge, whose verdicts cost money: in its place stands a constant."""
    if reward.kind == "judge":
        return dataclasses.replace(reward, kind="constant")
    if "judge" not in reward.weights:
        return reward
    weights = {name: weight for name, weight in reward.weights.items() if name != "judge"}
    return dataclasses.replace(reward, weights={"constant": reward.weights["judge"], **weights})


def attempt(config: RunConfig, room: Path) -> None:
    """Try a run. Raises whatever its code raises, and ReturnError for what its code should not return.
    Callbacks get the folder `room`."""
    deterministic(config.model.deterministic)
    rows: list[dict[str, Any]] = []
    with explain_out_of_memory(), returned.finite_values():
        small = tiny(config)
        parts = build(small, learn=imagined, ask=imagined_answers)
        rewarded = Rewarded(parts.source)
        trainer = Trainer(small, dataclasses.replace(parts, source=rewarded))
        with contextlib.closing(trainer.sampler):
            check_verifier(config, parts.source.problems)
            summaries = evaluate(trainer)
            rows.append({"step": 0, **{k: v for summary in summaries.values() for k, v in summary.items()}})
            for step, rewards in calls(config):
                rewarded.rewards = rewards
                rows.append({"step": step, **trainer.step(step)})
                demand_trained(trainer, rows[-1])
                if absent := no_reward(parts.source):
                    raise ReturnError(absent)
                state = json.loads(json.dumps(trainer.state()))  # as a checkpoint keeps it
            if rows[1:]:
                trainer.curriculum.restore(state["curriculum"])
    for observer in config.observe:
        if plugins.is_reference(observer.name) and observer.name not in TRACKERS:
            call_back(config, observer, room, rows, summaries)


def imagined(models: object, loaded: object, task: object, problems: Sequence[Problem], *_: Any) -> Study:
    """In place of a study of all problems, which takes minutes: random embeddings and likelihoods."""
    draw = torch.Generator().manual_seed(0)
    count = len(problems)
    return Study(torch.randn(count, 8, generator=draw), torch.rand(count, generator=draw))


def imagined_answers(
    initial: object, grader: object, problems: Sequence[Problem], count: int, *_: Any
) -> BaseRollouts:
    """In place of the initial policy's completions of all problems: random rewards of 0 and 1."""
    draw = torch.Generator().manual_seed(0)
    return BaseRollouts(torch.randint(2, (len(problems), count), generator=draw).float(), 0, 0.0, 0.0)


class Rewarded:
    """A source whose groups have other rewards, as `rewards` says."""

    def __init__(self, inner: GroupSource) -> None:
        self.inner, self.on_policy, self.problems = inner, inner.on_policy, inner.problems
        self.rewards: Rewards = "real"
        self._count()

    def _count(self) -> None:
        self.generated, self.sampler_tokens = self.inner.generated, self.inner.sampler_tokens

    def gather(self, step: int, attempt: int, index: Sequence[int]) -> list[Group]:
        groups = self.inner.gather(step, attempt, index)
        self._count()
        if self.rewards == "real":
            return groups
        return [with_rewards(group, self.rewards == "different") for group in groups]


def with_rewards(group: Group, different: bool) -> Group:
    """The group with rewards 0, 1, 0, 1, ... or all 0. A completion that no reward applied to has one too, so
    that the algorithm is tried in any case."""
    rewards = [float(different and index % 2) for index in range(len(group.reward))]
    graded = [
        verdict if verdict.outcome != "infra_error" else Verdict(verdict.scores, verdict.answer)
        for verdict in group.verdicts
    ]
    return dataclasses.replace(group, reward=rewards, verdicts=graded)


def check_verifier(config: RunConfig, problems: Sequence[Problem]) -> None:
    """Let a task of others grade its own references. Whether they are right is checked when a run begins."""
    if not strict.foreign(type(config.task)) or config.sampler.kind == "preferences":
        return
    with contextlib.suppress(NotImplementedError):  # it has no references
        verifier_checks(config.task, problems)


def evaluate(trainer: Trainer) -> dict[Split, Mapping[str, float]]:
    """Evaluate the run's task and those beside it; the numbers of the run's own, by split."""
    settings = trainer.config.evaluate
    count_by_split: dict[Split, int] = {"validation": settings.problems, "test": settings.test_problems}
    summary_by_split: dict[Split, Mapping[str, float]] = {}
    for evaluator in (trainer.parts.evaluator, *trainer.parts.also):
        is_run_evaluator = evaluator is trainer.parts.evaluator
        for split in [
            requested
            for requested, count in count_by_split.items()
            if count and (is_run_evaluator or requested in evaluator.task.splits)
        ]:
            _, summary = evaluator.evaluate(0, split)
            if is_run_evaluator:
                summary_by_split[split] = summary
    return summary_by_split


def demand_trained(trainer: Trainer, row: Mapping[str, Any]) -> None:
    """Raises ReturnError if a step whose signal and loss were finite could not update its roles."""
    algorithm: Algorithm[Any] = trainer.algorithm
    if row.get("grad/nonfinite"):
        raise returned.refusal(algorithm, "loss", "terms whose gradient is not finite", "a finite gradient")
    if trainer.diverged:
        raise ReturnError(f"{type(algorithm.inner).__name__}: {trainer.diverged}")


def call_back(
    config: RunConfig,
    observer: Observe,
    room: Path,
    rows: Sequence[Mapping[str, Any]],
    summaries: Mapping[Split, Mapping[str, float]],
) -> None:
    """Let a callback of the user's hear of the trial, in a process of its own as in a run. Raises ReturnError
    if it fails. Trackers of the suite and of packages, which send what they hear elsewhere, are left out."""
    trial_config = dataclasses.replace(config, experiment=f"{config.experiment}-trial")
    with environment(WANDB_MODE="disabled"):  # which the callback's process inherits
        link = Link(observer, config.beside)
    for message in messages(toml.read(stored.dump(trial_config)), room, rows, summaries):
        link.tell(**message)
    link.close(time.monotonic() + CALLBACK_SECONDS, "finished", "")
    if link.failure and link.failure != LATE:
        when, _, why = link.failure.partition(": ")
        failure = f"{why} ({when})" if why else link.failure
        raise ReturnError(f"{failure}; the callback {observer.name} would be dropped from every run")


def messages(
    config: Mapping[str, Any],
    room: Path,
    rows: Sequence[Mapping[str, Any]],
    summaries: Mapping[Split, Mapping[str, float]],
) -> Iterator[dict[str, Any]]:
    """What a callback hears of a trial, in the order of a run."""
    yield {"tell": "begin", "config": config, "folder": str(room.resolve()), "done": 0}
    for split, summary in summaries.items():
        yield {"tell": "evaluation", "step": 0, "split": split, "summary": summary}
    for row in rows:
        yield {"tell": "step", "row": row}
