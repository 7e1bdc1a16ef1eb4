"""Run the missing parts of a profile: the search of learning rates, the probes of an algorithm, and their
controls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.algorithms.algorithm import Algorithm
from grpobench.analysis.profile import kept
from grpobench.analysis.profile.kept import ProbeOutcome, failure_of, outcome_of
from grpobench.analysis.profile.probe import Probe, ProbeControl
from grpobench.runs.experiment.experiment import ExperimentResult, run_experiment
from grpobench.runs.experiment.outcomes import CRITICS, results
from grpobench.runs.settings import probes as files_of_probes
from grpobench.runs.settings import registries
from grpobench.runs.settings.probes import GATE, NANO, arm_of, common, recipe_table
from grpobench.runs.settings.recipe import Recipe, read_table
from grpobench.runs.tools import files
from grpobench.runs.tools.strict import ConfigError

CRITIC_RATE = 1e-3
"""Rate of critics while the policy's is searched."""
NAN = math.nan


@dataclass(frozen=True)
class ProbeRun:
    """A run that is wanted: an arm of a recipe, and the probes that its outcome serves."""

    arm: Mapping[str, Any]
    algorithm: str
    """In the table of outcomes."""
    probes: tuple[Probe, ...]
    rates: Mapping[str, float]

    @property
    def critic(self) -> float:
        """Rate of the critic; NaN without one."""
        return next((self.rates[role] for role in CRITICS if role in self.rates), NAN)

    @property
    def key(self) -> tuple[str, float, float]:
        """Probe and rates as in the table of outcomes, with −1 where there is no critic."""
        return self.probes[0].name, self.rates["policy"], -1.0 if math.isnan(self.critic) else self.critic

    def rows(self, seed: int, metrics: Sequence[Mapping[str, float]], state: str) -> Iterator[ProbeOutcome]:
        seconds = metrics[-1].get("time/wall", NAN) if metrics else NAN
        for probe in self.probes:
            yield ProbeOutcome(
                algorithm=self.algorithm,
                probe=probe.name,
                learning_rate=self.rates["policy"],
                critic_rate=self.critic,
                seed=seed,
                outcome=outcome_of(probe, metrics, state),
                state=state,
                seconds=seconds,
                failed=failure_of(probe, metrics, state),
            )


class Profiler:
    """Runs parts into `out`; `folder` is where code of the user is looked for.

    Every part is an experiment of its own in the output folder, so that a stop loses nothing, and its
    outcomes are written to the tables as soon as it ends."""

    def __init__(
        self,
        out: Path,
        folder: Path,
        workers: int | None = None,
        scale: str = NANO,
    ):
        self.out, self.folder, self.workers = out, folder, workers
        self.scale = scale
        self.probes = dict(files_of_probes.probes(scale))
        self.shared = common(scale)
        self.stopped = False
        """Whether a signal ended an experiment."""

    def fitting(self, parts: Sequence[ProbeRun]) -> tuple[list[ProbeRun], dict[str, str]]:
        """The parts that can run, and why probes cannot: an algorithm that reads scores beside the reward,
        say, under doses that change the reward alone. Raises ConfigError if the gate is among these."""
        fit, refused = [], {}
        for part in parts:
            try:
                read_table(
                    recipe_table("fit", [part.arm], [0], self.scale), "", "fit", self.folder, source="fit"
                )
                fit.append(part)
            except ConfigError as error:
                if part.probes[0].name == GATE:
                    raise
                refused[part.probes[0].name] = "; ".join(error.faults)
        return fit, refused

    def run(self, name: str, parts: Sequence[ProbeRun], seeds: Sequence[int]) -> list[ProbeOutcome]:
        """The outcomes of all parts with all seeds. Runs that have a result are not repeated."""
        if not parts or not seeds or self.stopped:
            return []
        recipe = read_table(
            recipe_table(name, [part.arm for part in parts], seeds, self.scale),
            "",
            name,
            self.folder,
            source=name,
        )
        outcome = run_experiment(recipe, self.out / "runs", self.workers)
        self.stopped = outcome.code == 75
        return list(rows_of(outcome, recipe, parts))

    # What is run

    def search(self, algorithm: str) -> list[ProbeOutcome]:
        """Every rate of the search for the policy, then for the critic where there is one.

        Nothing of a search that was stopped: the best of some rates is not the searched one.
        """
        table, gate = self.shared["search"], self.probes[GATE]
        critics = [role for role in roles_of(algorithm, self.folder) if role in CRITICS]
        parts = [
            self._part(gate, algorithm, {"policy": rate} | dict.fromkeys(critics, CRITIC_RATE))
            for rate in table["rates"]
        ]
        rows = self.run(f"search-{safe(algorithm)}", parts, table["seeds"])
        if not critics or self.stopped:
            return [] if self.stopped else rows
        best = kept.chosen(rows)[algorithm]["policy"]
        parts = [
            self._part(gate, algorithm, {"policy": best} | dict.fromkeys(critics, rate))
            for rate in table["rates"]
            if rate != CRITIC_RATE
        ]
        rows += self.run(f"search-critic-{safe(algorithm)}", parts, table["seeds"])
        return [] if self.stopped else rows

    def parts_of(
        self, algorithm: str, rates: Mapping[str, float], chosen: Sequence[str], ladder: bool = True
    ) -> list[ProbeRun]:
        """The runs of the chosen probes at these rates, and with `ladder` those of the ladder. Without it the
        rates are no rungs: a ladder is averaged over the rates of the search."""
        probes = [self.probes[name] for name in chosen if self.probes[name].runs == "own"]
        parts = [self._part(probe, algorithm, rates, ladder) for probe in probes]
        if ladder and any(self.probes[name].runs == "ladder" for name in chosen):
            others = [rate for rate in self.shared["search"]["rates"] if rate != rates["policy"]]
            gate = self.probes[GATE]
            parts += [self._part(gate, algorithm, {**rates, "policy": rate}) for rate in others]
        return parts

    def control_parts(self, probe: Probe, rates: Mapping[str, Mapping[str, float]]) -> list[ProbeRun]:
        """The two controls of a probe, at their algorithms' searched rates."""
        if probe.positive is None or probe.negative is None:
            return []
        return [
            self._control(probe, "positive", probe.positive, rates),
            self._control(probe, "negative", probe.negative, rates),
        ]

    def _control(
        self, probe: Probe, name: str, control: ProbeControl, rates: Mapping[str, Mapping[str, float]]
    ) -> ProbeRun:
        settings = dict(control.settings)
        factor = float(settings.pop("rate", 1.0))
        searched = rates[control.algorithm]
        arm_rates = {**searched, "policy": factor * searched["policy"]}
        arm = arm_of(probe, f"{probe.name}-{name}", control.algorithm, arm_rates, settings)
        return ProbeRun(arm, name, (probe,), arm_rates)

    def _part(
        self, probe: Probe, algorithm: str, rates: Mapping[str, float], ladder: bool = True
    ) -> ProbeRun:
        label = "-".join(f"{rate:g}" for rate in rates.values()).replace(".", "_")
        bounds = bounds_of(probe, algorithm, self.folder)
        more = {"settings": bounds} if bounds else {}
        more |= {"model": teacher} if (teacher := self._teacher(probe, algorithm)) else {}
        if class_of(algorithm, self.folder)().weight_noise:  # a second update would need other rollouts
            more["train"] = {"num_minibatches": 1}
        arm = arm_of(probe, f"{probe.name}-{label}", algorithm, rates, more)
        return ProbeRun(arm, algorithm, served_by(probe, self.probes, ladder), rates)

    def _teacher(self, probe: Probe, algorithm: str) -> dict[str, Any]:
        """The teacher of an algorithm that distills one: the policy of the probe, which has learned its right
        answers. Empty for others, and where a scale has no teachers."""
        updates = self.shared["profile"]["teacher_warm_start"]
        if not updates or "teacher" not in class_of(algorithm, self.folder)().reference_roles:
            return {}
        name = probe.settings.get("model", {}).get("name", self.shared["model"]["name"])
        return {"teacher": name, "teacher_warm_start": updates}


def served_by(probe: Probe, probes: Mapping[str, Probe], ladder: bool) -> tuple[Probe, ...]:
    """The probes that a run of one serves: of the gate also those that share its runs, with those of the
    ladder where its rates are rungs."""
    shared = ("learn", "ladder") if ladder else ("learn",)
    others = [candidate for candidate in probes.values() if candidate.runs in shared]
    return (probe, *(others if probe.name == GATE else ()))


def rows_of(outcome: ExperimentResult, recipe: Recipe, parts: Sequence[ProbeRun]) -> Iterator[ProbeOutcome]:
    """The outcomes of the runs that have a result."""
    by_arm = {part.arm["name"]: part for part in parts}
    for run, steps in results(outcome):
        yield from by_arm[run.config.arm].rows(run.config.seed, steps, run.state)


def class_of(algorithm: str, folder: Path) -> type[Algorithm[Any]]:
    """The class of an algorithm. Raises ConfigError where there is none."""
    cls: type[Algorithm[Any]] = registries.find("algorithm", algorithm, folder, "algorithm").cls
    return cls


def roles_of(algorithm: str, folder: Path) -> tuple[str, ...]:
    """The roles that an algorithm trains with its default settings."""
    return tuple(class_of(algorithm, folder)().trained_roles)


def bounds_of(probe: Probe, algorithm: str, folder: Path) -> dict[str, float]:
    """The settings that tell an algorithm the least and the greatest reward of a probe; most need none."""
    names = class_of(algorithm, folder).reward_bounds
    return {name: bound for name, bound in zip(names, probe.rewards, strict=True) if name}


def safe(algorithm: str) -> str:
    """An algorithm's name as a part of a file's."""
    return algorithm.replace(":", "-").replace(".", "-")


def write(path: Path, rows: Sequence[ProbeOutcome]) -> None:
    """Add rows to a table of outcomes."""
    if rows:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, kept.text_of(kept.merge(kept.read(path), rows)).encode())
