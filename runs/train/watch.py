"""A run watches itself: the detectors of `analysis/detectors` on the rows that it has logged so far."""

# Their events go to events.jsonl, which is a function of the logs: a resumed run has the same file as one
# that was never interrupted. With `stop_on` an event ends the run, and is its result.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpobench.analysis.detectors.history import About, Answers, History
from grpobench.analysis.detectors.registry import Findings, detect, is_read_by_detectors
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.files import read_rows

LOOKS = 100
"""With `stop_on`, the detectors of a run of n steps are called after every ⌈n/100⌉ of them, so that their
cost grows with n and not with its square."""
SPLIT = "validation"


class Watch:
    """The logs of a run so far, as detectors need them."""

    def __init__(self, config: RunConfig) -> None:
        train = config.train
        self.stop_on = config.stop_on
        self.about = About(
            planned=train.steps,
            warmup=train.warmup_steps,
            problems=config.evaluate.problems,
            group=train.group_size,
        )
        self.rows: dict[int, dict[str, Any]] = {}
        self.answered: dict[str, dict[int, dict[str, list[float]]]] = {}
        """By mode: step -> problem -> scores."""

    def read(self, folder: Path) -> None:
        """Load the logs of a run that is resumed."""
        self.evaluated(read_rows(folder / "eval.jsonl"))
        for row in read_rows(folder / "metrics.jsonl"):
            self.note(row)

    def note(self, row: Mapping[str, Any]) -> None:
        """Add a step's row, or replace it by a fuller one."""
        self.rows[int(row["step"])] = {
            name: value for name, value in row.items() if name == "step" or is_read_by_detectors(name)
        }

    def evaluated(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows of eval.jsonl."""
        for row in rows:
            if row["split"] == SPLIT and row["outcome"] != "infra_error" and "correct" in row["scores"]:
                of_step = self.answered.setdefault(row["mode"], {}).setdefault(row["step"], {})
                of_step.setdefault(row["problem"], []).append(float(row["scores"]["correct"]))

    def findings(self) -> Findings:
        """The events in the rows so far."""
        return detect(History.of_rows(self.rows.values(), self.about, self._answers))

    def _answers(self, split: str, mode: str) -> Answers:
        return self.answered.get(mode, {}) if split == SPLIT else {}

    def due(self, step: int) -> bool:
        """Whether to call the detectors after this step: after evaluations and, if an event may stop the run,
        after some other steps."""
        evaluated = any(name.startswith("eval/") for name in self.rows[step])
        return evaluated or (bool(self.stop_on) and step % -(-step // LOOKS) == 0)

    def stop(self, findings: Findings) -> str:
        """Why the run must end; empty if it goes on."""
        for event in findings.events:
            # An event that is over by now is no reason to end the run.
            if event.kind in self.stop_on and event.recovered is None:
                return f"{event.kind} from step {event.onset}: {event.evidence[-1]}"
        return ""
