"""Kept outcomes of profiles: one CSV file per algorithm, with a row for every run and probe."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from grpobench.analysis.measure import Measure, Rows
from grpobench.analysis.profile.probe import Probe
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.statistics.rate_choice import rank
from grpobench.tasks.data import bounded

FOLDER = Path(__file__).parent / "kept"
"""The outcomes that come with the suite: those at nano scale, and a folder for each other scale."""
CONTROLS, SEARCH = "controls", "search"
"""The files of the probes' controls, and of the search of learning rates."""
FORM = Measure.read("tenth:score/format")
"""How far answers keep the form that the prompt asks for, over the last tenth of the steps; 1 of the base."""
LEAST_FORM = 0.8
"""Below it a run has lost the form. One letter of eight too many or too few in every answer leaves .875."""
FAILURES = ("diverged", "lost form", "no number")
"""Why a run failed."""
UNRECORDED = "?"
"""In a table: the row does not record whether its run failed."""


@dataclass(frozen=True)
class ProbeOutcome:
    """The outcome of a run on a probe."""

    algorithm: str
    """For a control: its name, positive or negative."""
    probe: str
    learning_rate: float
    """The policy's."""
    critic_rate: float
    """NaN without a critic."""
    seed: int
    outcome: float
    """NaN where the run does not have it."""
    state: str
    seconds: float
    failed: str | None = None
    """Why the run failed: `diverged`, `lost form` or `no number`. Empty for a run that did not fail; None for
    a row from before failures were recorded."""

    @property
    def key(self) -> tuple[str, str, float, float, int]:
        critic = -1.0 if math.isnan(self.critic_rate) else self.critic_rate
        return self.algorithm, self.probe, self.learning_rate, critic, self.seed


NAMES = [field.name for field in fields(ProbeOutcome)]
BEFORE_FAILURES = NAMES[:-1]
"""The columns of tables that do not record failures."""


def outcome_of(probe: Probe, rows: Rows, state: str) -> float:
    """The outcome of a run; that of score 0 for a run that diverged."""
    if state == "diverged":
        return probe.zero
    return Measure.read(probe.outcome).of(rows)


def failure_of(probe: Probe, rows: Rows, state: str) -> str:
    """Why a run failed, as in `ProbeOutcome.failed`; empty if it did not.

    A run fails if it diverges, if its answers lose the form (`FORM` below `LEAST_FORM`), or if its outcome is
    no number. A run that never reaches the level of a `when` outcome has no outcome and does not fail."""
    if state == "diverged":
        return "diverged"
    measure = Measure.read(probe.outcome)
    form = FORM.of(rows)
    if math.isnan(form) or (measure.kind != "when" and math.isnan(measure.of(rows))):
        return "no number"
    return "" if form >= LEAST_FORM else "lost form"


def shipped(scale: str = "nano") -> Path:
    """The folder of the outcomes that come with the suite, of a scale."""
    return FOLDER if scale == "nano" else FOLDER / scale


def file_of(folder: Path, algorithm: str) -> Path:
    """The file of an algorithm; ``mine:Half`` becomes mine-Half.csv."""
    return folder / f"{algorithm.replace(':', '-')}.csv"


def read(path: Path) -> list[ProbeOutcome]:
    """The rows of a file; none without one. A file without the column `failed` is older than that column.
    Raises LogError for a damaged file."""
    if not path.exists():
        return []
    try:
        reader = csv.DictReader(io.StringIO(bounded.read_text(path), newline=""))
    except bounded.FileError as error:
        raise LogError(str(error)) from error
    if reader.fieldnames not in (NAMES, BEFORE_FAILURES):
        raise LogError(f"{path}: the columns must be {', '.join(NAMES)}; remove the file to make it anew")
    try:
        return [
            ProbeOutcome(
                row["algorithm"],
                row["probe"],
                float(row["learning_rate"]),
                float(row["critic_rate"]),
                int(row["seed"]),
                float(row["outcome"]),
                row["state"],
                float(row["seconds"]),
                None if (failed := row.get("failed", UNRECORDED)) == UNRECORDED else _failure(failed),
            )
            for row in reader
        ]
    except (TypeError, ValueError, csv.Error) as error:
        raise LogError(f"{path}:{reader.line_num}: {error}; remove the line") from None


def _failure(text: str | None) -> str:
    if text not in ("", *FAILURES):
        raise ValueError(f"failed must be empty, {UNRECORDED}, {', '.join(FAILURES)}, not {text!r}")
    return str(text)


def read_all(folders: Iterable[Path]) -> dict[str, list[ProbeOutcome]]:
    """The rows by algorithm; a later folder's run replaces an earlier one's."""
    row_by_key: dict[tuple[str, str, float, float, int], ProbeOutcome] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.csv")):
            if path.stem not in (CONTROLS, SEARCH):
                row_by_key |= {row.key: row for row in read(path)}
    by_algorithm: dict[str, list[ProbeOutcome]] = {}
    for row in row_by_key.values():
        by_algorithm.setdefault(row.algorithm, []).append(row)
    return by_algorithm


def text_of(rows: Sequence[ProbeOutcome]) -> str:
    """Rows as CSV, sorted, with six digits."""
    lines = [",".join(NAMES)]
    for row in sorted(rows, key=lambda kept_row: kept_row.key):
        critic = "nan" if math.isnan(row.critic_rate) else f"{row.critic_rate:g}"
        lines.append(
            f"{row.algorithm},{row.probe},{row.learning_rate:g},{critic},{row.seed},{row.outcome:.6g},"
            f"{row.state},{row.seconds:.1f},{UNRECORDED if row.failed is None else row.failed}"
        )
    return "\n".join(lines) + "\n"


def read_beside(name: str, folders: Iterable[Path]) -> list[ProbeOutcome]:
    """The runs of the probes' `CONTROLS`, or of the `SEARCH` of learning rates."""
    rows: list[ProbeOutcome] = []
    for folder in folders:
        rows = merge(rows, read(folder / f"{name}.csv"))
    return rows


def read_rates(folders: Iterable[Path]) -> dict[str, dict[str, float]]:
    """The searched rates by algorithm and role."""
    return chosen(read_beside(SEARCH, folders))


def chosen(rows: Sequence[ProbeOutcome], gate: str = "learn") -> dict[str, dict[str, float]]:
    """The rates with the highest mean outcome over the seeds of the search, smaller ones first where equal:
    first the policy's, and at it the critic's."""
    outcomes: dict[str, dict[tuple[float, float], dict[int, float]]] = {}
    for row in rows:
        if row.probe == gate:
            cell = outcomes.setdefault(row.algorithm, {}).setdefault((row.learning_rate, row.key[3]), {})
            cell[row.seed] = -math.inf if math.isnan(row.outcome) else row.outcome
    rates: dict[str, dict[str, float]] = {}
    for algorithm, cells in outcomes.items():
        best = rank(dict(sorted(cells.items())))[0]
        rates[algorithm] = {"policy": best[0]} | ({"critic": best[1]} if best[1] >= 0 else {})
    return rates


def merge(before: Sequence[ProbeOutcome], now: Sequence[ProbeOutcome]) -> list[ProbeOutcome]:
    """Rows with those of now in the place of earlier ones of the same run."""
    return list(({row.key: row for row in before} | {row.key: row for row in now}).values())
