"""Our graders behind the reward functions of other libraries: one completion at a time, without a model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from grpobench.runs.reward.doses import dosed
from grpobench.runs.reward.grader import applies, weighted
from grpobench.runs.reward.proxy import proxy
from grpobench.runs.reward.verdicts import demand_verdicts
from grpobench.runs.settings import stored
from grpobench.runs.settings.config import RewardConfig, RunConfig
from grpobench.tasks.data import bounded
from grpobench.tasks.data.messages import Message, as_line, offered_tools, parse_prompt
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.data.tools import Tool
from grpobench.tasks.task import Problem, Verdict

RECIPES = "recipes"
"""Folder of a hand-over with the settings of each part, as in a run's run.toml."""
TRIES = 3
"""How often a completion is graded that the machine failed to grade."""
ALONE = ("flipped", "proxy", "constant")
"""Components beside a task's scores that one completion's text and verdict give."""


class GradingError(RuntimeError):
    """The machine failed to grade a completion, again and again."""


def refusals(config: RunConfig) -> Iterator[str]:
    """What of a run's reward needs more than a completion alone, each with its remedy."""
    reward, task = config.reward, config.task
    for name in reward.components(task):
        if name not in task.scores and name not in ALONE:
            yield (
                f"reward {name} needs more than one completion's text (its group, a model or a plugin), "
                "which a reward function elsewhere does not have; weigh other components"
            )
    for name in ("flip", "outliers"):
        if getattr(reward, name):
            yield (
                f"reward.{name} draws by step and place in the group, which a reward function elsewhere does "
                f"not know; set reward.{name} = 0"
            )


def as_columns(problem: Problem) -> dict[str, str]:
    """A problem as texts that `problem_of` reads back. Raises DataError for a truth that JSON changes."""
    truth = json.dumps(problem.truth, ensure_ascii=False)
    if bounded.parse_json(truth) != problem.truth:
        raise DataError(f"problem {problem.id}: its truth is no JSON, so that no file can hold it")
    traits = json.dumps(dict(problem.traits), ensure_ascii=False)
    columns = {"id": problem.id, "prompt": as_line(problem.prompt), "truth": truth, "traits": traits}
    if tools := offered_tools(problem.prompt):
        columns["tools"] = json.dumps([asdict(tool) for tool in tools], ensure_ascii=False)
    return columns


def problem_of(columns: Mapping[str, Any]) -> Problem:
    """The problem that `as_columns` wrote."""
    prompt = parse_prompt(str(columns["prompt"]))
    if columns.get("tools"):
        tools = tuple(Tool(**tool) for tool in bounded.parse_json(columns["tools"]))
        messages = (Message("user", prompt),) if isinstance(prompt, str) else prompt
        # A system message without text is not among the prompt's messages.
        first = messages[0] if messages[0].role == "system" else Message("system", "")
        prompt = (replace(first, tools=tools), *messages[messages[0].role == "system" :])
    return Problem(
        str(columns["id"]),
        prompt,
        bounded.parse_json(columns["truth"]),
        bounded.parse_json(columns["traits"]),
    )


def grade(config: RunConfig, problem: Problem, turns: Sequence[str]) -> Verdict:
    """The verdict on an episode, given as the policy's turns. Raises GradingError if the machine cannot grade
    it: no reward would be right, and 0 would be a wrong one."""
    verdict = Verdict({}, None, "infra_error")
    for _ in range(TRIES):
        episodes = [[turns]]
        judged = config.task.verify_all([problem], episodes)
        verdict = demand_verdicts(config.task, [problem], episodes, judged)[0][0]
        if verdict.outcome != "infra_error":
            return verdict
    raise GradingError(
        f"problem {problem.id} of task {config.task.name} could not be graded in {TRIES} tries: "
        f"{verdict.answer or 'see `grpobench tasks check`'}"
    )


def rewarded(config: RunConfig, problem: Problem, completion: str, verdict: Verdict) -> float:
    """The recipe's reward of a graded completion."""
    reward = config.reward
    weights = reward.components(config.task)
    measured = {name: component(name, reward, verdict, completion) for name in weights}
    plain = weighted(measured, weights) if applies(measured, weights) else 0.0
    # Only `scale` and `offset` can be on here, which draw nothing.
    return dosed(plain, reward, weights, config.seed, ("", problem.id, 0)).reward


def component(name: str, reward: RewardConfig, verdict: Verdict, completion: str) -> float:
    """A component of the reward, before its weight; see `ALONE`."""
    if name == "flipped":
        return 1 - verdict.scores.get("correct", 0.0)
    if name == "proxy":
        return proxy(completion, reward.proxy, reward.proxy_half)
    if name == "constant":
        return 1.0
    return float(verdict.scores.get(name, 0.0))


class Graders:
    """The graders of a hand-over's parts, read when first asked for. Safe to use from several threads.

    A hand-over's `reward.py` calls `Graders.score`, whose name and arguments stay as they are. The reward is
    the one that our own loop would give: the task's verifier with its limits of time and memory, the recipe's
    components and weights, its scale and offset."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._configs: dict[str, RunConfig] = {}
        self._lock = threading.Lock()

    def config(self, part: str) -> RunConfig:
        """The settings of a part. Raises DataError if the hand-over has none of the name."""
        with self._lock:
            if part not in self._configs:
                path = self.folder / RECIPES / f"{part}.toml"
                if not path.is_file():
                    raise DataError(f"{path}: no such part of the hand-over; write it again")
                self._configs[part] = stored.load(bounded.read_text(path))
            return self._configs[part]

    def score(
        self, part: str, columns: Mapping[str, Any], completion: str, turns: Sequence[str] = ()
    ) -> dict[str, float]:
        """`score` is the recipe's reward of a completion, `acc` whether it is right, and every other score
        of the task stands under its name. `columns` are those of `as_columns`, `turns` what the policy wrote
        if there are several. Raises GradingError."""
        config, problem = self.config(part), problem_of(columns)
        with self._lock:  # A verifier may keep a pool of workers, and reward loops call from many threads.
            verdict = grade(config, problem, turns or (completion,))
        others = (name for name in config.task.scores if name not in ("correct", "score", "acc"))
        return {
            "score": rewarded(config, problem, completion, verdict),
            "acc": float(verdict.scores.get("correct", 0.0)),
            **{name: float(verdict.scores.get(name, 0.0)) for name in others},
        }
