"""Later evaluations that `grpobench eval` made of runs: ``<folder>/*/evals/*.json`` and the rows of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.files import LogError, read_json, read_lines


@dataclass(frozen=True)
class LaterEvaluation:
    """One evaluation of a run or a model on one question."""

    path: Path
    """The JSON file."""
    arm: str
    """The run's arm, or the model's name."""
    trained_task: str
    """The task that the run was trained on; empty for a model."""
    seed: int
    through: str
    content: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...]

    @property
    def task(self) -> str:
        """The task that was evaluated."""
        return str(self.content["settings"]["task"])

    @property
    def split(self) -> str:
        """The split that was evaluated."""
        return str(self.content["settings"]["split"])

    @property
    def question(self) -> str:
        """Identifies the settings: equal for all evaluations with the same settings."""
        return self.path.stem.removesuffix(f"-{self.through}")

    @property
    def label(self) -> str:
        """Label in tables: the task, and the task of training if that differs."""
        return (
            self.task
            if self.trained_task in ("", self.task)
            else (f"{self.task} (trained on {self.trained_task})")
        )

    def of(self, policy: str, mode: str) -> list[Mapping[str, Any]]:
        """Graded rows of a policy (`base`, `final`, `model`) in a mode."""
        return [
            row
            for row in self.rows
            if row["policy"] == policy and row["mode"] == mode and row["outcome"] != "infra_error"
        ]


def read_later(experiment: Experiment, faults: list[str] | None = None) -> tuple[LaterEvaluation, ...]:
    """Every evaluation below the experiment's folder: first of runs in their order, then of models. A damaged
    one is added to `faults` and not counted; without `faults` it raises LogError."""
    runs = {run.name: run for run in experiment.runs}
    models = [folder.name for folder in evaluated_models(experiment.folder) if folder.name not in runs]
    evaluations = []
    for name in [*runs, *models]:
        run = runs.get(name)
        for path in record_files(experiment.folder / name):
            try:
                head = read_head(path, (run.arm, run.task, run.seed) if run else None)
                evaluations.append(replace(head, rows=read_answers(head)))
            except LogError as error:
                if faults is None:
                    raise
                faults.append(str(error))
    return tuple(evaluations)


def evaluated_models(folder: Path) -> list[Path]:
    """The folders of evaluated models in a folder: those with evaluations and without a run, by name."""
    folders = {path.parent.parent for path in folder.glob("*/evals/*.json")}
    return sorted(model for model in folders if not (model / "run.toml").exists())


def record_files(subject: Path) -> list[Path]:
    """The evaluations of a run or a model."""
    return sorted((subject / "evals").glob("*.json"))


def read_head(path: Path, run: tuple[str, str, int] | None) -> LaterEvaluation:
    """An evaluation without its rows; `run` is the run's arm, task and seed, None for a model. Raises
    LogError."""
    content = read_json(path, "restore the file, or delete it and evaluate again")
    try:
        subject, through, _ = str(content["subject"]), str(content["through"]), content["rows"]
        _ = content["settings"]["task"], content["settings"]["split"]
        _ = {policy: int(record["step"]) for policy, record in content["policies"].items()}
    except KeyError as error:
        raise LogError(f"{path}: lacks {error}; evaluate again with `grpobench eval`") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise LogError(f"{path}: {error}; evaluate again with `grpobench eval`") from None
    return LaterEvaluation(path, *(run or (subject, "", 0)), through, content, ())


def read_answers(head: LaterEvaluation) -> tuple[Mapping[str, Any], ...]:
    """The rows of an evaluation. Raises LogError."""
    path, count = head.path.with_suffix(".jsonl"), head.content["rows"]
    lines, cut = read_lines(path, str(head.content.get("rows_sum", "")))
    if cut or len(lines) != count:
        raise LogError(
            f"{path}: holds {len(lines)} rows and {head.path.name} counts on {count}; "
            "evaluate again with `grpobench eval --again`"
        )
    return tuple(row for _, row in lines)
