"""Everything that a report says, computed before its layout, and the same as JSON (report.json)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from grpobench.analysis.checks.alarms import find_alarms
from grpobench.analysis.checks.pairing import Pairing, check_pairing
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.report.catalog import Tables
from grpobench.analysis.report.headline import describe_headline
from grpobench.analysis.report.sources import describe_sources
from grpobench.analysis.report.warnings import WarningInput, list_warnings
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.statistics.comparison import pairs_of
from grpobench.analysis.statistics.permutation import seeds_needed
from grpobench.analysis.statistics.verdicts import ALPHA
from grpobench.analysis.topics.accuracy import count_run_statuses
from grpobench.analysis.topics.guards import guard_row
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.runs import RecipeKey, all_settings, run_provenance
from grpobench.analysis.topics.warnings import ReportWarning


@dataclass(frozen=True)
class Facts:
    """All facts of a report, each computed when it is first used. Figures are drawn from `numbers`."""

    numbers: Numbers

    @property
    def experiment(self) -> Experiment:
        """The experiment that was loaded."""
        return self.numbers.experiment

    @cached_property
    def tables(self) -> Mapping[str, PrintedTable]:
        """The tables by name, in their order."""
        return Tables(self.numbers)

    @cached_property
    def settings(self) -> Sequence[RecipeKey]:
        """Every setting in all arms."""
        return all_settings(self.experiment)

    @cached_property
    def provenance(self) -> Mapping[str, Sequence[tuple[str, int]]]:
        """Where the runs come from; see `run_provenance`."""
        return run_provenance(self.experiment)

    @cached_property
    def pairing(self) -> Pairing:
        """Whether the runs of a seed begin alike."""
        return check_pairing(self.experiment.at_all_rates)

    @cached_property
    def accounting(self) -> Mapping[str, int]:
        """How many planned runs have each status."""
        return count_run_statuses(self.experiment.at_all_rates, self.numbers.runs_at_all_rates)

    @cached_property
    def alarms(self) -> Mapping[str, Sequence[str]]:
        """What is damaged, not uniform, not as planned, or missing: lines by title."""
        return find_alarms(self.experiment.at_all_rates, self.numbers.damage, self.numbers.spared)

    @cached_property
    def headline(self) -> str:
        """What happened, in one sentence."""
        return describe_headline(self.numbers)

    @cached_property
    def warnings(self) -> Sequence[ReportWarning]:
        """Everything to doubt, the gravest first; the alarms are among them."""
        return list_warnings(WarningInput(self.numbers, self.alarms, self.pairing))


def gather(logs: Experiment | Numbers) -> Facts:
    """The facts of an experiment."""
    return Facts(logs if isinstance(logs, Numbers) else Numbers(logs))


def as_json(facts: Facts) -> dict[str, Any]:
    """The content of report.json; accuracies are shares."""
    experiment = facts.experiment
    pairs = max(1, len(pairs_of(experiment.arms, experiment.control)))
    return {
        "experiment": {
            "name": experiment.name,
            "summary": experiment.summary,
            "arms": list(experiment.arms),
            "tasks": list(experiment.tasks),
            "seeds": list(experiment.seeds),
            "recipe": experiment.recipe,
        },
        "headline": facts.headline,
        "guards": [guard_row(change) for change in facts.numbers.guards],
        "warnings": [
            asdict(warning) | {"gravity": warning.gravity.name.lower()} for warning in facts.warnings
        ],
        "alpha": ALPHA,
        "seeds_needed": seeds_needed(ALPHA, pairs if experiment.plan else 1),
        "runs": facts.numbers.every.to_dict("records"),
        "margin": experiment.margin,
        "control": experiment.control or None,
        "plan": asdict(experiment.plan) if experiment.plan else None,
        "search": experiment.search.summary() if experiment.search else None,
        "comparisons": [asdict(pair) | {"text": pair.text} for pair in facts.numbers.compared],
        "learning_rates": facts.numbers.rates.rows() if facts.numbers.rates else None,
        "against_base": [asdict(pair) | {"text": pair.text} for pair in facts.numbers.against_base],
        "pairing": asdict(facts.pairing),
        "accounting": dict(facts.accounting),
        "alarms": dict(facts.alarms),
        "events": {
            name: {
                "events": [event.row() for event in findings.events],
                "not_applicable": dict(findings.not_applicable),
            }
            for name, findings in facts.numbers.findings.items()
        },
        "sources": describe_sources(facts.numbers).row(),
        "tables": {
            name: table.frame.to_dict("records")
            for name, table in facts.tables.items()
            if name not in ("comparisons", "against_base", "runs", "learning_rates", "guards")
        },
        "settings": {
            setting.key: {**setting.values, "differs": setting.differs, "changed": sorted(setting.changed)}
            for setting in facts.settings
        },
        "provenance": {
            key: [{"value": v, "runs": n} for v, n in values] for key, values in facts.provenance.items()
        },
        "configs": {name: dict(config) for name, config in experiment.configs.items()},
    }


def json_ready(value: Any) -> Any:
    """A value for JSON: numpy scalars become numbers, NaN and infinities null, other objects text."""
    if isinstance(value, Mapping):
        return {str(key): json_ready(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(entry) for entry in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
