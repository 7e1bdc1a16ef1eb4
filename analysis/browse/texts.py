"""The stored texts of an experiment, a row per completion, read file by file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grpobench.analysis.report.samples import prompt_text
from grpobench.analysis.runfolder.experiment import (
    completion_files,
    read_completions,
    read_rollouts,
    rollout_steps,
)
from grpobench.analysis.runfolder.files import LogError, read_lines
from grpobench.analysis.runfolder.load import list_runs

TOKEN_NUMBERS = ("logp", "entropy", "advantage", "ratio")
"""Stored with `train.log_tokens`."""
ROLLOUT = "rollout"
"""The kind of a completion that was trained on. That of an evaluation is split and mode: ``test greedy``."""


@dataclass(frozen=True)
class TextFile:
    """A file of completions of one step of a run."""

    arm: str
    task: str
    seed: int
    step: int
    split: str
    """Empty for rollouts."""
    path: Path


class StoredText(NamedTuple):
    """One completion, as it was stored. What a file does not say is None or empty."""

    arm: str
    task: str
    seed: int
    step: int
    kind: str
    problem: str
    sample: int
    outcome: str
    """`right`, `wrong` or `partly right` by the score `correct`; else the grader's outcome: `unparsable`,
    `timeout`, `crash`, `infra_error`, `graded`."""
    correct: float | None
    reward: float | None
    length: int | None
    """Tokens."""
    stop: str
    """Why the completion ended: `end`, or `limit` of tokens."""
    answer: str | None
    """What the grader extracted."""
    failed_test: str
    """The first test that a program failed."""
    prompt: str
    text: str
    scores: tuple[tuple[str, float], ...]
    """(name, value) of each score."""
    turns: tuple[tuple[str, str], ...]
    """(author, text) of each turn, for a task of several turns."""
    tokens: Mapping[str, tuple[float | None, ...]] | None = None
    """`characters` of `text` that each token brings, and what is stored of the numbers of `TOKEN_NUMBERS`;
    None where none are."""


def list_text_files(folder: Path) -> tuple[list[TextFile], list[str]]:
    """The files with texts of an experiment, a run's in order of steps, and the faults of runs that cannot be
    identified. Reads no log. Raises LogError for a folder without runs."""
    runs, faults = list_runs(folder)
    files = []
    for run_folder, arm, task, seed in runs:
        evaluated = [(step, split, path) for (split, step), path in completion_files(run_folder).items()]
        trained = [(step, "", path) for step, path in rollout_steps(run_folder).items()]
        files += [TextFile(arm, task, seed, *entry) for entry in sorted(trained + evaluated)]
    return files, faults


def read_texts(files: list[TextFile], faults: list[str]) -> Iterator[list[StoredText]]:
    """The rows of each file in turn. Damaged files are added to `faults` and give no rows; with a damaged
    eval.jsonl, which is read once a run, the texts of its evaluations have no answers."""
    answers: dict[tuple[Any, ...], dict[str, Any]] = {}
    answered_run: Path | None = None
    for file in files:
        run = file.path.parent.parent
        if file.split and run != answered_run:
            answered_run = run
            try:
                answers = _answers(run)
            except LogError as error:
                answers = {}
                faults.append(str(error))
        try:
            yield list(_evaluated(file, answers) if file.split else _trained(file))
        except LogError as error:
            faults.append(str(error))
            yield []


def _answers(run: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows of a run's eval.jsonl by their identity. Raises LogError for a damaged file."""
    lines, _ = read_lines(run / "eval.jsonl")
    keys = ("step", "split", "mode", "problem", "sample")
    return {tuple(str(row.get(key)) for key in keys): row for _, row in lines}


def _evaluated(file: TextFile, answers: Mapping[tuple[Any, ...], dict[str, Any]]) -> Iterator[StoredText]:
    rows = read_completions(file.path)
    prompts = {str(row.get("problem")): prompt_text(row["prompt"]) for row in rows if "prompt" in row}
    for row in rows:
        mode, problem, sample = (str(row.get(key)) for key in ("mode", "problem", "sample"))
        graded = answers.get((str(file.step), file.split, mode, problem, sample), {})
        yield _stored(file, f"{file.split} {mode}", problem, int(_number(row.get("sample")) or 0), {
            **graded, **row, "prompt": prompts.get(problem, ""), "text": row["completion"]
        })  # fmt: skip


def _trained(file: TextFile) -> Iterator[StoredText]:
    for row in read_rollouts(file.path):
        problem, prompt = str(row.get("problem", "")), prompt_text(row.get("prompt", ""))
        for sample, completion in enumerate(row["completions"]):
            if not isinstance(completion, dict):
                raise LogError(f"{file.path}: a completion is no object; restore or delete the file")
            graded = {**completion, "length": completion.get("tokens"), "prompt": prompt}
            yield _stored(file, ROLLOUT, problem, sample, graded)


def _stored(file: TextFile, kind: str, problem: str, sample: int, row: Mapping[str, Any]) -> StoredText:
    scores = row["scores"] if isinstance(row.get("scores"), dict) else {}
    graded = row.get("outcome") != "infra_error"  # else the scores mean nothing
    correct, length = _number(scores.get("correct")) if graded else None, _number(row.get("length"))
    turns = row["turns"] if isinstance(row.get("turns"), list) else []
    return StoredText(
        file.arm,
        file.task,
        file.seed,
        file.step,
        kind,
        problem,
        sample,
        _outcome(str(row.get("outcome") or ""), correct),
        correct,
        _number(row.get("reward")),
        None if length is None else int(length),
        {True: "end", False: "limit"}.get(row.get("stopped"), ""),  # type: ignore[arg-type]
        None if row.get("answer") is None else str(row["answer"]),
        str(row.get("failed_test") or ""),
        str(row["prompt"]),
        str(row.get("text", "")),
        tuple([(name, number) for name, value in scores.items() if (number := _number(value)) is not None]),
        tuple((str(turn.get("by")), str(turn.get("text"))) for turn in turns if isinstance(turn, dict)),
        _tokens(file, row),
    )


def _tokens(file: TextFile, row: Mapping[str, Any]) -> Mapping[str, tuple[float | None, ...]] | None:
    """The numbers of a completion's tokens. Raises LogError where they do not fit its text."""
    if (stored := row.get("token_numbers")) is None:
        return None
    try:
        tokens = {
            name: tuple(map(_number, stored[name]))
            for name in ("characters", *TOKEN_NUMBERS)
            if name in stored
        }
        characters = [int(count or 0) for count in tokens["characters"]]
        if sum(characters) != len(str(row.get("text", ""))) or min([*characters, 0]) < 0:
            raise ValueError("they do not cover the text")
        if any(len(values) != len(characters) for values in tokens.values()):
            raise ValueError("lists of several lengths")
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LogError(
            f"{file.path}: damaged numbers of tokens ({error}); restore or delete the file"
        ) from error
    return tokens


def _outcome(outcome: str, correct: float | None) -> str:
    if outcome not in ("", "graded") or correct is None:
        return outcome
    return "right" if correct == 1 else "wrong" if correct == 0 else "partly right"


def _number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    if type(value) is not float and type(value) is not int:
        return None
    return float(value) if math.isfinite(value) else None
