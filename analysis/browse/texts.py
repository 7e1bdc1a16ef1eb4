"""The stored texts of an experiment, a row per completion, read file by file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grpobench.analysis.report.samples import prompt_text
from grpobench.analysis.runfolder.evaluations import (
    evaluated_models,
    read_answers,
    read_head,
    record_files,
)
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
"""The kind of a completion that was trained on. That of an evaluation is split and mode: ``test greedy``; of
`grpobench eval` also the way and the settings: ``eval test greedy 1a2b3c4d``."""


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
    policy: str = ""
    """Whose answers in a record of `grpobench eval` these are: `base`, `final` or `model`."""

    @property
    def series(self) -> tuple[Path, str]:
        """Equal for the files of all steps with the same problems."""
        return self.path if self.policy else self.path.parent, self.split


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
    """The files with texts of an experiment, or of evaluated models, a run's in order of steps with later
    evaluations behind them, and the faults of what cannot be identified. Reads no log. Raises LogError for a
    folder without either."""
    models, faults = evaluated_models(folder), list[str]()
    try:
        runs, faults = list_runs(folder)
    except LogError:
        if record_files(folder) and not (folder / "run.toml").exists():
            raise LogError(
                f"{folder}: this is one model; pass the folder above it, {folder.parent}"
            ) from None
        if not models:
            raise
        runs = []
    files = []
    for run_folder, arm, task, seed in runs:
        evaluated = [(step, split, path) for (split, step), path in completion_files(run_folder).items()]
        trained = [(step, "", path) for step, path in rollout_steps(run_folder).items()]
        files += [TextFile(arm, task, seed, *entry) for entry in sorted(trained + evaluated)]
        files += _later_files(run_folder, (arm, task, seed), faults)
    for model in models:
        files += _later_files(model, None, faults)
    return files, faults


def _later_files(subject: Path, run: tuple[str, str, int] | None, faults: list[str]) -> Iterator[TextFile]:
    """The evaluations of `grpobench eval` of a run or a model, apart for each policy."""
    for path in record_files(subject):
        try:
            head = read_head(path, run)
        except LogError as error:
            faults.append(str(error))
            continue
        for policy, record in head.content["policies"].items():
            yield TextFile(head.arm, head.label, head.seed, int(record["step"]), head.split, path, policy)


def read_texts(files: list[TextFile], faults: list[str]) -> Iterator[list[StoredText]]:
    """The rows of each file in turn. Damaged files are added to `faults` and give no rows; with a damaged
    eval.jsonl, which is read once a run, the texts of its evaluations have no answers."""
    answers: dict[tuple[Any, ...], dict[str, Any]] = {}
    answered_run: Path | None = None
    for file in files:
        run = file.path.parent.parent
        if file.split and not file.policy and run != answered_run:
            answered_run = run
            try:
                answers = _answers(run)
            except LogError as error:
                answers = {}
                faults.append(str(error))
        try:
            evaluated = _later(file) if file.policy else _evaluated(file, answers)
            yield list(evaluated if file.split else _trained(file))
        except LogError as error:
            if str(error) not in faults:  # of a record with two policies
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


def _later(file: TextFile) -> Iterator[StoredText]:
    """The texts of a policy in a record of `grpobench eval`. Their kind ends with the hash of the settings,
    because answers to two questions are not to be compared."""
    head = read_head(file.path, (file.arm, "", file.seed))
    rows = read_answers(head)
    prompts = {str(row.get("problem")): prompt_text(row["prompt"]) for row in rows if "prompt" in row}
    way = "eval" if head.through == "grpobench" else head.through
    question = head.question.rpartition("-")[2]
    for row in rows:
        if row.get("policy") == file.policy and "completion" in row:  # a likelihood has no text
            problem, kind = str(row.get("problem")), f"{way} {file.split} {row.get('mode')} {question}"
            yield _stored(file, kind, problem, int(_number(row.get("sample")) or 0), {
                **row, "prompt": prompts.get(problem, ""), "text": row["completion"],
                "turns": row.get("conversation"),
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
