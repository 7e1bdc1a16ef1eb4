"""A finding's registration, written before its first run, and the small table that is kept of its runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from grpobench.analysis.findings.horizons import Horizons, Key, Values, horizons_of_finished
from grpobench.analysis.findings.judge import judge
from grpobench.analysis.findings.outcomes import collapses_of, horizons_of, values_of
from grpobench.analysis.findings.result import Result
from grpobench.analysis.findings.rule import DIGEST, Finding, from_plain, measures_all_rates, outcome_of
from grpobench.analysis.measure import OF_RATES, Measure
from grpobench.analysis.record import Provenance, as_text, content_of, provenance_of, read
from grpobench.analysis.runfolder.experiment import COLLAPSED, DIVERGED, Experiment, run_name
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.tools.text import json_number, number_of
from grpobench.tasks.data import bounded

FILE = "registration.json"
"""File in the folder of a finding's experiment."""
FOLDER = "findings"
"""Folder of the kept tables, below docs/results."""
KIND = "finding"
"""Kind of the file of a kept table, as `analysis/record.py` has it."""
VERSION = 1
"""Version of a registration."""
DECIMALS = 9


@dataclass(frozen=True)
class Registration:
    """The facts that were fixed before the first run."""

    finding: Finding
    scale: str
    seeds: tuple[int, ...]
    settings: Mapping[str, str]
    """Digest of run.toml by run."""
    commit: str
    """With ` and changes` behind it where the checkout had uncommitted ones; empty outside of one."""
    registered: str
    """UTC, as `2026-11-22T13:33:16+0000`."""

    @property
    def command(self) -> str:
        return f"grpobench finding run {self.finding.name} --scale {self.scale}"

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        fields = asdict(self) | {"seeds": list(self.seeds), "settings": dict(self.settings)}
        return {"version": VERSION, **fields, "finding": self.finding.plain(), "rule": self.finding.digest}


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]


def anonymous(settings: str) -> str:
    """run.toml without the folder that its recipe stood in, which is another one on another machine."""
    return re.sub(r"^beside = .*$", 'beside = ""', settings, flags=re.M)


LATER = frozenset(
    {
        "correction_normalize = false",
        'router_replay = "none"',
        'weights = "trainer"',
        'teacher = ""',
        "teacher_warm_start = 0",
        'experts = "reference"',
        "entropy_target = 0.0",
        "entropy_step = 0.0001",
        "entropy_limit = 0.005",
        "devices = 1",
        "ahead = false",
        "weights = true",  # of checkpoint: whether weights are kept, which no result depends on
        "weights = false",
        "completions = true",  # of evaluate: whether completions are stored
        "completions = false",
        "contamination = false",
        "reference_likelihood = false",
        'log_tokens = "none"',  # of train: of which rollouts the numbers of tokens are stored
        'log_tokens = "last"',
        'log_tokens = "all"',
        "top_k = 0",
        "top_p = 1.0",
        "min_p = 0.0",
        "stop = []",
        "chat_template_settings = {}",
        "warm_start_seed = 0",
        'credit = "outcome"',
        "credit_discount = 0.95",
        "credit_rewards = 1.0",
        'judge = "none"',  # of reward and of evaluate
        'credit_anchor = "exchange"',
        "credit_weight = 1.0",
    }
)
"""Lines of run.toml for settings that came after findings had been registered, with the values that change
nothing: a run without them is the same run, and other machines may go on with a registered finding."""
LATER_FIELDS = (', gae = "token"', ", turn_rewards = 0.0")
"""The same for settings of algorithms, which stand in one line of run.toml."""
FINAL = "final = true"
"""A line of run.toml that was the default when older findings were registered; no result depends on it."""


def settings_digest(text: str, hashed_line: str = "") -> str:
    """The digest of run.toml that a registration holds; with `hashed_line`, of one that was made when that
    line was not yet in `LATER`, or, of `final = true`, when that was the default of `checkpoint.final`."""
    text = re.sub("|".join(map(re.escape, LATER_FIELDS)), "", anonymous(text))
    if hashed_line == FINAL:
        text = re.sub(r"^final = false$", FINAL, text, flags=re.M)
    lines = text.splitlines(keepends=True)
    return text_digest(
        "".join(line for line in lines if line.strip() not in LATER or line.strip() == hashed_line)
    )


def read_registration(folder: Path) -> Registration:
    """Raises LogError where there is none, or its rule is not the one whose digest it holds."""
    path = folder / FILE
    try:
        content = bounded.read_object(path, "choose another folder and run the finding anew")
    except bounded.FileError as error:
        if not path.exists():
            why = f"{path}: missing; `grpobench finding run` writes it before the first run"
            raise LogError(why) from error
        raise LogError(str(error)) from error
    return registration_of(content, str(path))


def registration_of(content: Mapping[str, Any], path: str) -> Registration:
    """From what `plain` wrote. Raises LogError."""
    try:
        fields = dict(content)
        version, rule = fields.pop("version"), fields.pop("rule")
        finding = from_plain(fields.pop("finding"))
        if version != VERSION:
            raise ValueError("of another version")
        if finding.digest != rule:
            raise ValueError("its rule was edited after it was written")
        _instant(fields["registered"])
        return Registration(finding=finding, **{**fields, "seeds": tuple(fields["seeds"])})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LogError(
            f"{path}: no registration ({error}); run the finding anew in another folder"
        ) from error


def departures(experiment: Experiment, registration: Registration) -> list[str]:
    """Differences between the runs and their registration. With any difference the verdict is exploratory."""
    differences = []
    other = [
        run.name
        for run in experiment.runs
        if run.name in registration.settings and _altered(experiment, registration, run.name)
    ]
    if other:
        differences.append(f"other settings than registered in {_joined_names(other)}")
    more = [run.name for run in experiment.runs if run.name not in registration.settings]
    if more:
        differences.append(f"not registered: {_joined_names(more)}")
    early = [
        run.name
        for run in experiment.runs
        if _instant((run.provenance.get("attempts") or [{}])[0].get("started", registration.registered))
        < _instant(registration.registered)
    ]
    if early:
        differences.append(f"begun before the registration: {_joined_names(early)}")
    return differences


def _altered(experiment: Experiment, registration: Registration, name: str) -> bool:
    path = experiment.folder / name / "run.toml"
    if not path.exists():
        return False
    text = bounded.read_text(path)  # before version 0.3 the digest was of the whole text
    as_registered = {settings_digest(text, hashed_line) for hashed_line in ("", FINAL, *LATER)}
    return registration.settings[name] not in {*as_registered, text_digest(text)}


def _instant(text: str) -> datetime:
    """An instant from a run's local time with its offset from UTC; without an offset it is UTC."""
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _joined_names(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


@dataclass(frozen=True)
class Record:
    """The measurements of a finding at one scale, from its folder or from its kept table."""

    registration: Registration
    values: Values
    waits: tuple[str, ...]
    departures: tuple[str, ...]
    states: Mapping[Key, str]
    provenance: Provenance
    horizons: Horizons = field(default_factory=dict)
    collapsed_at: Mapping[Key, int | None] = field(default_factory=dict)
    """The runs that collapsed or diverged, with the step from which on; None where it was not kept."""
    judged: list[tuple[Finding, Result]] = field(default_factory=list, init=False, repr=False, compare=False)
    """Results so far, by rule: the pages of one command ask for each of them several times."""

    def result(self, rule: Finding | None = None) -> Result:
        """By the registered rule, or by another one, whose outcomes must be among those of the registered
        one."""
        rule = rule or self.registration.finding
        result = next((result for earlier, result in self.judged if earlier == rule), None)
        if result is None:
            result = self._judge(rule)
            self.judged.append((rule, result))
        return result

    def _judge(self, rule: Finding) -> Result:
        registered = self.registration.finding
        names = {outcome_of(measured): measured.name for measured in reversed(registered.measured)}
        same = {(measured.name, outcome_of(measured)) for measured in registered.measured}
        sources = {
            measured.name: measured.name
            if (measured.name, outcome_of(measured)) in same
            else names[outcome_of(measured)]
            for measured in rule.measured
        }
        values = {name: self.values[source] for name, source in sources.items()}
        ends = {name: self.horizons[source] for name, source in sources.items() if source in self.horizons}
        return judge(rule, values, self.waits, ends, self.collapsed_at)

    def departed(self, today: Finding) -> list[str]:
        """How runs and rule differ from what was registered, where `today` is the finding as its file has it:
        with any difference the verdict is exploratory."""
        changed = today.digest != self.registration.finding.digest
        return [*self.departures, *["the rule was changed after the registration"] * changed]

    def plain(self) -> dict[str, Any]:
        """The kept table."""
        rows = []
        kinds = {test.name: Measure.read(test.outcome).kind for test in self.registration.finding.measured}
        for run, state in self.states.items():
            value_by_test = {test: by_run[run] for test, by_run in self.values.items() if run in by_run}
            measured = {test: json_number(value, DECIMALS) for test, value in value_by_test.items()}
            row = {"arm": run[0], "task": run[1], "seed": run[2], "state": state, "values": measured}
            ends = {test: by_run[run] for test, by_run in self.horizons.items() if run in by_run}
            # All outcomes that end with the run have one horizon; each target has its own.
            planned = [end for test, end in ends.items() if kinds[test] == "lasting"]
            budgets = {test: end for test, end in ends.items() if kinds[test] != "lasting"}
            row |= {"horizon": planned[0]} if planned else {}
            row |= {"horizons": budgets} if budgets else {}
            collapsed_at = self.collapsed_at.get(run)
            rows.append(row if collapsed_at is None else {**row, "collapsed_at": collapsed_at})
        content = {
            "registration": self.registration.plain(),
            "departures": list(self.departures),
            "waits": list(self.waits),
            "runs": rows,
        }
        name = f"{self.registration.finding.name}-{self.registration.scale}"
        return content_of(KIND, name, self.provenance, content)


def record_of(experiment: Experiment) -> Record:
    """Measure the runs of a finding's experiment. Raises LogError without a registration."""
    registration = read_registration(experiment.folder)
    measured_runs = experiment.at_all_rates if registration.finding.over_rates else experiment
    waits = [run.name for run in measured_runs.runs if not run.settled]
    waits += sorted(set(registration.settings) - {run.name for run in measured_runs.runs})
    values = {
        test.name: values_of(
            measured_runs if measures_all_rates(test) else experiment, test.outcome, test.where
        )
        for test in registration.finding.measured
    }
    return Record(
        registration=registration,
        values={
            name: {run: round(value, DECIMALS) for run, value in measured.items()}
            for name, measured in values.items()
        },
        waits=tuple(waits),
        departures=tuple(departures(measured_runs, registration)),
        states={(run.arm, run.task, run.seed): run.state for run in measured_runs.runs},
        provenance=replace(provenance_of(measured_runs), command=registration.command),
        horizons={
            test.name: {run: round(end, DECIMALS) for run, end in ends.items()}
            for test in registration.finding.measured
            if (ends := horizons_of(experiment, test.outcome))
        },
        collapsed_at=collapses_of(experiment),
    )


def part_of(experiment: Experiment) -> Record:
    """The record of the runs that have a result, where others are yet to run, perhaps elsewhere.

    Raises LogError for a finding with an outcome that compares runs at what all of them have spent, or at
    several learning rates."""
    record = record_of(replace(experiment, runs=tuple(run for run in experiment.runs if run.settled)))
    for test in record.registration.finding.measured:
        measure = Measure.read(test.outcome)
        budgeted = measure.kind in ("equal", "reach") and not measure.argument.endswith("updates")
        if measure.kind in OF_RATES or budgeted:
            why = f"{test.outcome} is measured over all runs at once"
            raise LogError(f"{experiment.folder}: no part of it can be kept: {why}")
    return record


def joined(part: Record, other: Record) -> Record:
    """Two parts of a finding as one record; no run is of both. Raises LogError where they were registered
    apart."""
    if part.registration != other.registration:
        raise LogError(
            f"{part.registration.finding.name}: the kept part and these runs were registered apart, on "
            f"{part.registration.registered} and {other.registration.registered}"
        )
    done = set(part.registration.settings) - set(part.waits)
    # In the order of the registration, in which tables and figures show arms.
    positions = {name: position for position, name in enumerate(part.registration.settings)}
    states = {**part.states, **other.states}
    in_order = sorted(states, key=lambda run: positions.get(run_name(*run), len(positions)))
    return Record(
        registration=part.registration,
        values=_both(part.values, other.values),
        waits=tuple(name for name in other.waits if name not in done),
        departures=tuple(dict.fromkeys([*part.departures, *other.departures])),
        states={run: states[run] for run in in_order},
        provenance=part.provenance.joined(other.provenance),
        horizons=_both(part.horizons, other.horizons),
        collapsed_at={**part.collapsed_at, **other.collapsed_at},
    )


def _both(part: Values, other: Values) -> Values:
    return {name: {**part.get(name, {}), **other.get(name, {})} for name in {**part, **other}}


def record_text(record: Record) -> str:
    """The text of the kept table."""
    return as_text(record.plain())


def read_kept(path: Path) -> Record:
    """Read a kept table. Raises LogError if the file is not one.

    A file that did not change since is not read again: a record is not to be changed.
    """
    state = path.stat() if path.exists() else None
    return _read_kept(path, (state.st_ino, state.st_size, state.st_mtime_ns) if state else ())


@lru_cache(maxsize=256)
def _read_kept(path: Path, state: tuple[int, ...]) -> Record:
    """`state`: of the file, so that one that changed is read again."""
    return read(path, KIND, lambda content: _kept(content, str(path)))


def _kept(content: dict[str, Any], path: str) -> Record:
    keys = {(str(row["arm"]), str(row["task"]), int(row["seed"])): row for row in content["runs"]}
    registration = registration_of(content["registration"], path)
    names = [test.name for test in registration.finding.measured]
    values = {
        name: {run: number_of(row["values"][name]) for run, row in keys.items() if name in row["values"]}
        for name in names
    }
    states = {run: str(row["state"]) for run, row in keys.items()}
    ends = {run: float(row["horizon"]) for run, row in keys.items() if "horizon" in row}
    horizons = {
        test.name: ends or horizons_of_finished(values[test.name], states)
        for test in registration.finding.measured
        if Measure.read(test.outcome).kind == "lasting"
    }
    for run, row in keys.items():
        for test, end in row.get("horizons", {}).items():
            horizons.setdefault(test, {})[run] = float(end)
    return Record(
        registration=registration,
        values=values,
        waits=tuple(content["waits"]),
        departures=tuple(content["departures"]),
        states=states,
        provenance=replace(Provenance.pop(content), command=registration.command),
        horizons=horizons,
        collapsed_at={
            run: row.get("collapsed_at")
            for run, row in keys.items()
            if "collapsed_at" in row or states[run] in (COLLAPSED, DIVERGED)
        },
    )
