"""Profile algorithms on probes: run what is not kept yet, then write tables, pages and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from grpobench.analysis.profile import figures, kept, page, table
from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.profile.scores import Profile, build
from grpobench.runs.experiment.profiling import ProbeRun, Profiler, safe, write
from grpobench.runs.inventory import profiles_page
from grpobench.runs.settings import registries
from grpobench.runs.settings.probes import GATE, NANO, common
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import ConfigError

Say: TypeAlias = Callable[[str], None]
"""Is told what runs, and the tables."""
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
AROUND_SEEDS = 2
"""Seeds at the rates above and below the searched one."""
AROUND = 3.0
"""Factor between these rates."""


@dataclass(frozen=True)
class Profiled:
    """How a profile ended."""

    stopped: bool
    """Whether a signal ended it; the same call goes on."""
    folder: Path
    unscored: tuple[str, ...]
    """Algorithms that have no score yet."""


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
    around: bool = True,
    workers: int | None = None,
) -> Profiled:
    """Profile algorithms, each a name or ``module:Name`` of a file in the current folder, as ``grpobench
    profile`` does with the options of these names; without any, show what is kept. Raises ConfigError for an
    unknown algorithm or probe."""
    baseline = baseline or common()["profile"]["baseline"]
    profiler = Profiler(out if scale == NANO else out / scale, Path.cwd(), workers, scale=scale)
    chosen = chosen_probes(profiler.probes, probes, quick)
    demand_known(algorithms)
    numbers = profiler.shared["profile"]["seeds"][: seeds or (QUICK_SEEDS if quick else None)]
    for algorithm in algorithms:
        measure(profiler, algorithm, chosen, numbers, around and not quick, say)
    if controls:
        run_controls(profiler, chosen)
    unscored = () if profiler.stopped else show(profiler, algorithms, baseline, say)
    return Profiled(profiler.stopped, profiler.out, unscored)


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


def measure(
    profiler: Profiler, algorithm: str, chosen: Sequence[str], seeds: Sequence[int], around: bool, say: Say
) -> None:
    """Run what is not kept of an algorithm, and write its outcomes."""
    table = profiler.out / "outcomes"
    folders = [kept.shipped(profiler.scale), table]
    if algorithm not in kept.read_rates(folders):
        say(f"{algorithm}: search of the learning rate")
        write(table / "search.csv", profiler.search(algorithm))
    rates = kept.read_rates(folders).get(algorithm)
    if profiler.stopped or rates is None:
        return
    rows = kept.read_all(folders).get(algorithm, [])
    path = kept.file_of(table, algorithm)
    name = safe(algorithm)
    parts, refused = profiler.fitting(profiler.parts_of(algorithm, rates, chosen))
    for probe, why in refused.items():
        say(f"{algorithm}: left out {probe}: {why}")
    for lacking_parts, lacking_seeds in parts_by_seeds(parts, seeds, rows):
        words = f"{len(lacking_parts) * len(lacking_seeds)} runs at {rates['policy']:g}"
        say(f"{algorithm}: {words}")
        write(path, profiler.run(f"profile-{name}", lacking_parts, lacking_seeds))
    for factor in (1 / AROUND, AROUND) if around else ():
        near = {**rates, "policy": float(f"{rates['policy'] * factor:.1g}")}
        parts, _ = profiler.fitting(profiler.parts_of(algorithm, near, chosen, ladder=False))
        for lacking_parts, lacking_seeds in parts_by_seeds(parts, seeds[:AROUND_SEEDS], rows):
            write(path, profiler.run(f"around-{name}", lacking_parts, lacking_seeds))


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


def show(profiler: Profiler, algorithms: Sequence[str], baseline: str, say: Say) -> tuple[str, ...]:
    """Print the tables, and write pages and figures. Returns the algorithms without a score."""
    folders = [kept.shipped(profiler.scale), profiler.out / "outcomes"]
    rows, search = kept.read_all(folders), kept.read_beside(kept.SEARCH, folders)
    profile = build(rows, profiler.probes, kept.chosen(search))
    if not algorithms:
        say("\n".join(table.lines(profile)))
        if profiler.scale == NANO and (theirs := profiles_page.contributed_lines(rows, kept.chosen(search))):
            say("\n".join(["", *theirs]))
    for algorithm in algorithms:
        if algorithm not in profile.algorithms:
            continue
        say("\n".join(table.lines(profile, algorithm)))
        folder = profiler.out / algorithm.replace(":", "-")
        folder.mkdir(parents=True, exist_ok=True)
        other = baseline if baseline in profile.algorithms and baseline != algorithm else ""
        text = page.page(profile, algorithm, other, rows[algorithm], search)
        (folder / "profile.md").write_text(text, encoding="utf-8")
        say(f"page: {folder / 'profile.md'}")
    draw(profile, [*algorithms, baseline], profiler.out, say)
    return tuple(algorithm for algorithm in algorithms if algorithm not in profile.algorithms)


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
