"""Profile algorithms on probes: run what is not kept yet, then write tables, pages and figures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from grpobench.analysis.profile import figures, kept, page, table
from grpobench.analysis.profile.agreement import agreement_lines, rate_agreements
from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.profile.matrix import Matrix, matrix, matrix_lines
from grpobench.analysis.profile.scores import COMMON_RATE, Profile, build
from grpobench.analysis.profile.table import algorithms_with_runs
from grpobench.runs.experiment.profiling import ProbeRun, Profiler, safe, write
from grpobench.runs.inventory import profiles_page
from grpobench.runs.settings import registries
from grpobench.runs.settings.draft import rate_faults
from grpobench.runs.settings.probes import GATE, NANO, common
from grpobench.runs.tools import strict
from grpobench.runs.tools.files import finite
from grpobench.runs.tools.strict import ConfigError

Say: TypeAlias = Callable[[str], None]
"""Is told what runs, and the tables."""
ALL = "all"
"""Stands for all algorithms with kept runs."""
QUICK_SEEDS = 4
QUICK_PROBES = (
    "learn",
    "ladder",
    "diversity",
    "imbalance",
    "length",
    "staleness",
    "outliers",
    "placebo",
)
"""What `--quick` runs: one probe of each kind."""


@dataclass(frozen=True)
class Profiled:
    """How a profile ended."""

    stopped: bool
    """Whether a signal ended it; the same call resumes."""
    folder: Path
    algorithms: tuple[str, ...]
    """Those that were asked for."""
    unscored: tuple[str, ...]
    """Of these: algorithms that have no score yet."""
    profile: Profile | None = None
    """All scores, over learning rates; None if it was stopped."""
    matrix: Matrix | None = None
    """The algorithms against others; None for one alone."""

    def row(self) -> dict[str, Any]:
        """The numbers as plain values: of the algorithms, or of all without any."""
        scores = self.profile
        if scores is None:
            return {}
        names = self.algorithms or algorithms_with_runs(scores)
        row = {
            "common_rate": COMMON_RATE,
            "algorithms": {name: scores.row(name) for name in names if name in scores.rates},
            "pairs": [
                pair.row()
                for of_pair in (self.matrix.pairs.values() if self.matrix else ())
                for pair in of_pair
            ],
            "best_against_common_rate": [agreement.row() for agreement in rate_agreements(scores)],
        }
        plain_values: dict[str, Any] = finite(row)
        return plain_values


def profile(
    algorithms: Sequence[str],
    out: Path,
    say: Say,
    *,
    scale: str = NANO,
    seeds: int | None = None,
    probes: Sequence[str] = (),
    quick: bool = False,
    baseline: str | None = None,
    controls: bool = False,
    rates: Sequence[float] = (),
    against: Sequence[str] = (),
    workers: int | None = None,
) -> Profiled:
    """Profile algorithms, each a name or ``module:Name`` of a file in the current folder, as ``grpobench
    profile`` does with the options of these names; without any, show what is kept. Raises ConfigError for an
    unknown algorithm or probe, for `rates` without 1, and for others in `against` without kept runs."""
    baseline = baseline or common()["profile"]["baseline"]
    profiler = Profiler(out if scale == NANO else out / scale, Path.cwd(), workers, scale=scale)
    chosen = chosen_probes(profiler.probes, probes, quick)
    demand_known(algorithms)
    demand_comparable(profiler, algorithms, against)
    factors = checked_factors(rates)
    numbers = profiler.shared["profile"]["seeds"][: seeds or (QUICK_SEEDS if quick else None)]
    for algorithm in algorithms:
        measure(profiler, algorithm, chosen, numbers, factors, say)
    if controls:
        run_controls(profiler, chosen)
    if profiler.stopped:
        return Profiled(True, profiler.out, tuple(algorithms), ())
    return show(profiler, algorithms, baseline, against, say)


def chosen_probes(known_probes: Iterable[str], names: Sequence[str], quick: bool) -> list[str]:
    """The names of the probes to run. Raises ConfigError for an unknown one."""
    if not names:
        return [name for name in known_probes if not quick or name in QUICK_PROBES]
    for name in names:
        if name not in known_probes:
            did = strict.did_you_mean(name, known_probes, f"known: {', '.join(known_probes)}")
            raise ConfigError([f"--probes: unknown probe {name!r}; {did}"])
    return list(dict.fromkeys([GATE, *names]))


def demand_known(algorithms: Sequence[str]) -> None:
    """Raise ConfigError for an algorithm that cannot be found, before anything runs."""
    faults: list[str] = []
    for name in algorithms:
        registries.find_class("algorithm", name, Path.cwd(), "profile", faults)
    if faults:
        raise ConfigError(faults)


def demand_comparable(profiler: Profiler, algorithms: Sequence[str], against: Sequence[str]) -> None:
    """Raise ConfigError for others to compare with that have no kept runs, before anything runs."""
    if against and (not algorithms or (ALL not in against and len({*algorithms, *against}) < 2)):
        raise ConfigError(["--against: name an algorithm before it and another one after it"])
    comparable = {*kept.read_all([kept.shipped(profiler.scale), profiler.out / "outcomes"]), *algorithms, ALL}
    for name in against:
        if name not in comparable:
            did = strict.did_you_mean(name, comparable, f"run grpobench profile {name} first")
            raise ConfigError([f"--against: {name!r} has no kept runs; {did}"])


def checked_factors(rates: Sequence[float]) -> list[float]:
    """The multiples of the best rate. Raises ConfigError for several without 1, and for others than positive
    numbers."""
    if any(not 0 < factor < math.inf for factor in rates):
        raise ConfigError([f"rates: multiples of a learning rate must be above 0, not {min(rates):g}"])
    if faults := [*rate_faults(rates)]:
        raise ConfigError(faults)
    return [*rates]


def measure(
    profiler: Profiler,
    algorithm: str,
    chosen: Sequence[str],
    seeds: Sequence[int],
    factors: Sequence[float],
    say: Say,
) -> None:
    """Run what is not kept of an algorithm, and write its outcomes. With `factors`, it also runs at these
    multiples of its best rate and at the common rate, and rows that do not record failures count as
    lacking."""
    table = profiler.out / "outcomes"
    folders = [kept.shipped(profiler.scale), table]
    if algorithm not in kept.read_rates(folders):
        say(f"{algorithm}: search of the learning rate")
        write(table / "search.csv", profiler.search(algorithm))
    rates = kept.read_rates(folders).get(algorithm)
    if profiler.stopped or rates is None:
        return
    parts, refused = profiler.fitting(profiler.parts_of(algorithm, rates, chosen))
    for probe, why in refused.items():
        say(f"{algorithm}: left out {probe}: {why}")
    name, best = safe(algorithm), rates["policy"]
    kinds = [(f"profile-{name}", f"{best:g}", parts)]
    if factors:
        others = dict.fromkeys(float(f"{rate:.6g}") for rate in (*(best * f for f in factors), COMMON_RATE))
        others.pop(best, None)
        beside = [
            part
            for rate in others
            for part in profiler.parts_of(algorithm, {**rates, "policy": rate}, chosen, ladder=False)
            if part.key not in {rung.key for rung in parts}
        ]
        kinds.append(
            (f"around-{name}", ", ".join(f"{rate:g}" for rate in others), profiler.fitting(beside)[0])
        )
    for experiment, at, kind_parts in kinds:
        rows = kept.read_all(folders).get(algorithm, [])
        if factors:
            rows = [row for row in rows if row.failed is not None]
        for lacking_parts, lacking_seeds in parts_by_seeds(kind_parts, seeds, rows):
            say(f"{algorithm}: {len(lacking_parts) * len(lacking_seeds)} runs at {at}")
            write(kept.file_of(table, algorithm), profiler.run(experiment, lacking_parts, lacking_seeds))


def parts_by_seeds(
    parts: Sequence[ProbeRun], seeds: Sequence[int], rows: Sequence[ProbeOutcome]
) -> list[tuple[list[ProbeRun], list[int]]]:
    """The parts that lack seeds in the kept rows, by the seeds that they lack."""
    have: dict[tuple[str, float, float], set[int]] = {}
    for row in rows:
        critic = -1.0 if math.isnan(row.critic_rate) else row.critic_rate
        have.setdefault((row.probe, row.learning_rate, critic), set()).add(row.seed)
    lacking_parts: dict[tuple[int, ...], list[ProbeRun]] = {}
    for part in parts:
        lacking_seeds = tuple(seed for seed in seeds if seed not in have.get(part.key, ()))
        if lacking_seeds:
            lacking_parts.setdefault(lacking_seeds, []).append(part)
    return [(group, list(lacking_seeds)) for lacking_seeds, group in lacking_parts.items()]


def run_controls(profiler: Profiler, chosen: Sequence[str]) -> None:
    """Run the controls of the probes at the kept rates of their algorithms."""
    table = profiler.out / "outcomes"
    rates = kept.read_rates([kept.shipped(profiler.scale), table])
    for name in chosen:
        probe = profiler.probes[name]
        needed = [control.algorithm for control in (probe.positive, probe.negative) if control]
        if lacking := [control for control in needed if control not in rates]:
            raise ConfigError(
                [
                    (
                        f"--controls: {lacking[0]} has no searched rate; run grpobench profile {lacking[0]} "
                        f"--scale {profiler.scale}"
                    )
                ]
            )
        parts = profiler.control_parts(probe, rates)
        rows = profiler.run(f"controls-{name}", parts, profiler.shared["profile"]["control_seeds"])
        write(table / f"{kept.CONTROLS}.csv", rows)


def show(
    profiler: Profiler, algorithms: Sequence[str], baseline: str, against: Sequence[str], say: Say
) -> Profiled:
    """Print the tables, and write pages and figures."""
    folders = [kept.shipped(profiler.scale), profiler.out / "outcomes"]
    rows, search = kept.read_all(folders), kept.read_beside(kept.SEARCH, folders)
    profile = build(rows, profiler.probes, kept.chosen(search))
    scored = [name for name in algorithms if name in profile.algorithms]
    if not algorithms:
        say("\n".join(table.lines(profile)))
        if profiler.scale == NANO and (theirs := profiles_page.contributed_lines(rows, kept.chosen(search))):
            say("\n".join(["", *theirs]))
        say("\n".join(["", *agreement_lines(profile, rate_agreements(profile))]))
    for algorithm in scored:
        say("\n".join(table.lines(profile, algorithm)))
        folder = profiler.out / algorithm.replace(":", "-")
        folder.mkdir(parents=True, exist_ok=True)
        other = baseline if baseline in profile.algorithms and baseline != algorithm else ""
        text = page.page(profile, algorithm, other, rows[algorithm], search)
        (folder / "profile.md").write_text(text, encoding="utf-8")
        numbers = json.dumps(finite(profile.row(algorithm)), indent=1)
        (folder / "profile.json").write_text(numbers + "\n", encoding="utf-8")
        say(f"page: {folder / 'profile.md'}")
    compared = None
    others = algorithms_with_runs(profile) if ALL in against else against
    if scored and len({*scored, *others}) > 1:
        compared = matrix(profile, scored, others)
        say("\n".join(["", *matrix_lines(compared)]))
    draw(profile, [*algorithms, baseline], profiler.out, say)
    unscored = tuple(name for name in algorithms if name not in scored)
    return Profiled(False, profiler.out, tuple(algorithms), unscored, profile, compared)


def draw(profile: Profile, algorithms: Sequence[str], out: Path, say: Say) -> None:
    """The radar of the first five of the algorithms, and the heat map of all."""
    shown = [name for name in dict.fromkeys(algorithms) if name in profile.algorithms]
    out.mkdir(parents=True, exist_ok=True)
    drawings = [figures.heatmap(profile)] if profile.scores else []
    if shown:
        drawings.append(figures.radar(profile, shown[: figures.MOST]))
    for drawing in drawings:
        for kind in ("pdf", "png"):
            drawing.figure.savefig(out / f"{drawing.name}.{kind}", dpi=300)
        say(f"figure: {out / drawing.name}.pdf")
