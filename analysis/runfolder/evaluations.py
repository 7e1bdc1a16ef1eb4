"""Later evaluations that `grpobench eval` made of runs: ``<folder>/*/evals/*.json`` and the rows of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.analysis.runfolder.experiment import Experiment, Run
from grpobench.analysis.runfolder.files import LogError, read_json, read_lines


@dataclass(frozen=True)
class LaterEvaluation:
    """One evaluation of a run or a model on one question."""

    path: Path
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
    models = sorted(
        {path.parent.parent.name for path in experiment.folder.glob("*/evals/*.json")}
        - runs.keys()
        - experiment.strangers.keys()
    )
    evaluations = []
    for name in [*runs, *models]:
        for path in sorted((experiment.folder / name / "evals").glob("*.json")):
            try:
                evaluations.append(_evaluation(path, runs.get(name)))
            except LogError as error:
                if faults is None:
                    raise
                faults.append(str(error))
    return tuple(evaluations)


def _evaluation(path: Path, run: Run | None) -> LaterEvaluation:
    content = read_json(path, "restore the file, or delete it and evaluate again")
    try:
        rows = _rows(path, int(content["rows"]), str(content.get("rows_sum", "")))
        subject, through = str(content["subject"]), str(content["through"])
        _ = content["policies"], content["settings"]["task"], content["settings"]["split"]
    except KeyError as error:
        raise LogError(f"{path}: lacks {error}; evaluate again with `grpobench eval`") from None
    except (TypeError, ValueError) as error:
        raise LogError(f"{path}: {error}; evaluate again with `grpobench eval`") from None
    run_names = (run.arm, run.task, run.seed) if run else (subject, "", 0)
    return LaterEvaluation(path, *run_names, through, content, rows)


def _rows(path: Path, count: int, expected_sum: str) -> tuple[Mapping[str, Any], ...]:
    lines, cut = read_lines(path.with_suffix(".jsonl"), expected_sum)
    if cut or len(lines) != count:
        raise LogError(
            f"{path.with_suffix('.jsonl')}: holds {len(lines)} rows and {path.name} counts on {count}; "
            "evaluate again with `grpobench eval --again`"
        )
    return tuple(row for _, row in lines)
