"""A run looks at itself: the detectors of `analysis/detectors` on the rows that it has logged so far.

What they find is written to events.jsonl, which is a function of the logs: a run that was resumed has the
file of one that was not. With `stop_on` an event ends the run, which is then its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpobench.analysis.detectors.history import About, Answers, History
from grpobench.analysis.detectors.registry import Findings, detect, is_read_by_detectors
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.files import read_rows

LOOKS = 100
"""With `stop_on`, a run of n steps looks after every ⌈n/100⌉ of them: all looks together cost as much as a
fixed number of looks at each row."""
SPLIT = "validation"


class Watch:
    """What a run has logged so far, as detectors read it."""

    def __init__(self, config: RunConfig) -> None:
        train = config.train
        self.stop_on = config.stop_on
        self.about = About(
            planned=train.steps,
            warmup=train.warmup_steps,
            problems=config.evaluate.problems,
            group=train.group_size,
            rollouts=train.prompts_per_step * train.group_size,
        )
        self.rows: dict[int, dict[str, Any]] = {}
        self.answered: dict[str, dict[int, dict[str, list[float]]]] = {}
        """By mode: step -> problem -> scores."""

    def read(self, folder: Path) -> None:
        """Take up the logs of a run that goes on."""
        self.evaluated(read_rows(folder / "eval.jsonl"))
        for row in read_rows(folder / "metrics.jsonl"):
            self.note(row)

    def note(self, row: Mapping[str, Any]) -> None:
        """A step's row, or a fuller one in the place of what was told before."""
        self.rows[int(row["step"])] = {
            name: value for name, value in row.items() if name == "step" or is_read_by_detectors(name)
        }

    def evaluated(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of eval.jsonl."""
        for row in rows:
            if row["split"] == SPLIT and row["outcome"] != "infra_error" and "correct" in row["scores"]:
                of_step = self.answered.setdefault(row["mode"], {}).setdefault(row["step"], {})
                of_step.setdefault(row["problem"], []).append(float(row["scores"]["correct"]))

    def findings(self) -> Findings:
        """Everything that the rows so far show."""
        return detect(History.of_rows(self.rows.values(), self.about, self._answers))

    def _answers(self, split: str, mode: str) -> Answers:
        return self.answered.get(mode, {}) if split == SPLIT else {}

    def due(self, step: int) -> bool:
        """Whether the rows so far are looked at after this step: after evaluations, and where a run may be
        stopped, after some others."""
        evaluated = any(name.startswith("eval/") for name in self.rows[step])
        return evaluated or (bool(self.stop_on) and step % -(-step // LOOKS) == 0)

    def stop(self, findings: Findings) -> str:
        """Why the run is to end; empty where it goes on."""
        for event in findings.events:
            if event.kind in self.stop_on and event.recovered is None:
                return f"{event.kind} from step {event.onset}: {event.evidence[-1]}"
        return ""
