"""Demonstrations of a task: its reference answers, or those of a file, as rollouts to learn from."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from grpobench.runs.models.loading import Loaded
from grpobench.runs.sample.episodes import demonstrated
from grpobench.runs.sample.rollouts import Group
from grpobench.runs.settings.config import ModelConfig
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.data import bounded
from grpobench.tasks.data.messages import Prompt, parse_prompt
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Task, Verdict


def demonstrations(loaded: Loaded, task: Task, config: ModelConfig) -> list[Group]:
    """The reference episodes of the updates, in order. They depend on `warm_start_seed` and not on the seed
    of a run: a warm start is part of the base, which all seeds of an arm share."""
    problems = task.lessons()
    order = list(range(len(problems)))
    random.Random(derive(config.warm_start_seed, "warm start")).shuffle(order)
    order = order[: config.warm_start_examples or len(order)]
    num_demonstrations = config.warm_start * config.warm_start_batch
    if config.warm_start_answers != "reference":
        draw = drawing(task, config.warm_start_answers)
        rng = random.Random(derive(config.warm_start_seed, "warm start answers"))
        drawn_problems = [problems[order[i % len(order)]] for i in range(num_demonstrations)]
        return [demonstration(loaded, task, problem, draw(problem, rng)) for problem in drawn_problems]
    groups = [demonstration(loaded, task, problems[index]) for index in order[:num_demonstrations]]
    return [groups[i % len(groups)] for i in range(num_demonstrations)]


Draw = Callable[[Problem, random.Random], Sequence[str]]


def drawing(task: Task, source: str) -> Draw:
    """Draws the turns of an episode: from the task's own distribution, or from the answers of a file. Raises
    DataError for a file that cannot be read."""
    if source == "distribution":
        return task.draw_episode
    answers = read_answers(Path(source).expanduser())

    def draw(problem: Problem, rng: random.Random) -> Sequence[str]:
        if problem.prompt not in answers:
            raise DataError(
                f"{source}: has no answer to problem {problem.id} of {task.name}; add a row with its prompt, "
                "or set model.warm_start_examples so that it is left out"
            )
        completions, weights = zip(*answers[problem.prompt], strict=True)
        return (rng.choices(completions, weights)[0],)

    return draw


def read_answers(
    path: Path, setting: str = "model.warm_start_answers", columns: Sequence[str] = ("completion",)
) -> dict[Prompt, list[tuple[str, float]]]:
    """The answers with their weights, by prompt, of a JSONL file that a setting names; an answer is in the
    first of the `columns` that a line has. Raises DataError with file and line."""
    answers: dict[Prompt, list[tuple[str, float]]] = {}
    try:
        for number, text in enumerate(bounded.utf8_lines(path), 1):
            if text.strip():
                prompt, completion, weight = read_answer(text, f"{path}:{number}", columns)
                answers.setdefault(prompt, []).append((completion, weight))
    except FileNotFoundError as error:
        raise DataError(f"{path}: cannot be read ({error}); check {setting}") from None
    except bounded.FileError as error:
        raise DataError(f"{error}; check {setting}") from None
    return answers


def read_answer(
    text: bytes, location: str, columns: Sequence[str] = ("completion",)
) -> tuple[Prompt, str, float]:
    """Prompt, answer and weight of a line."""
    try:
        row = bounded.parse_json(text)
    except ValueError as error:
        raise DataError(f"{location}: not JSON ({error}); mend or remove the line") from None
    answer_column = next((name for name in columns if isinstance(row, dict) and name in row), columns[0])
    if not isinstance(row, dict) or "prompt" not in row or not isinstance(row.get(answer_column), str):
        expected_columns = " or ".join(columns)
        raise DataError(f"{location}: needs the texts prompt and {expected_columns}; mend or remove the line")
    try:
        prompt = parse_prompt(row["prompt"])
    except ValueError as error:
        raise DataError(f"{location}: the prompt: {error}; mend or remove the line") from None
    weight = row.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
        raise DataError(
            f"{location}: weight must be a number above 0, not {weight!r}; mend or remove the line"
        )
    return prompt, row[answer_column], float(weight)


def demonstration(loaded: Loaded, task: Task, problem: Problem, turns: Sequence[str] | None = None) -> Group:
    """The reference episode, or that of these turns, as a rollout; replies of an environment are not part of
    the loss."""
    rollout = demonstrated(loaded, task, problem, turns)
    return Group(problem, [rollout], [Verdict({}, None)], [0.0])


def tokens_hash(lessons: Sequence[Group]) -> str:
    """A hash of the tokens of demonstrations, in order, and of which of them are learned."""
    hasher = hashlib.sha256()
    for group in lessons:
        rollout = group.rollouts[0]
        hasher.update(json.dumps([rollout.prompt, rollout.completion, rollout.completion_mask]).encode())
    return hasher.hexdigest()
