"""`grpobench profile`: what an algorithm is good and bad at, on probes in which algorithms can differ."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from grpobench.runs.commands.beginning import names_of
from grpobench.runs.commands.options import POSITIVE, Options, flag, out_option, workers_option
from grpobench.runs.commands.output import DONE, PREEMPTED, say
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.analysis.profile.kept import Row
    from grpobench.analysis.profile.scores import Profile
    from grpobench.runs.experiment.profiling import Part, Profiler

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
EXIT = {True: PREEMPTED, False: DONE}


@click.argument(
    "algorithms",
    nargs=-1,
    metavar="[ALGORITHM]...",
    help="Of grpobench list algorithms, or MODULE:Class.",
    shell_complete=names_of("algorithms"),
)
@out_option("results/profile")
@click.option(
    "--scale",
    type=click.Choice(("nano", "small")),
    default="nano",
    help="small: SmolLM2-135M in the place of the built-in policies. Default: nano.",
)
@click.option("--seeds", type=POSITIVE, metavar="N", help="The first N seeds. Default: 8, with --quick 4.")
@click.option("--probes", metavar="LIST", help="Run these only. Default: all.")
@flag("--quick", "Four seeds and half of the probes.")
@click.option("--baseline", metavar="NAME", help="What a page compares with. Default: that of the probes.")
@flag("--controls", "Run the probes' controls too.")
@flag("--no-around", "Leave out the learning rates above and below the searched one.")
@workers_option
def profile_command(options: Options) -> int:
    """Without an ALGORITHM, shows what is kept. mine:Half is the class Half of mine.py in this folder. What
    has a result is not run again."""
    from grpobench.runs.experiment.profiling import Profiler
    from grpobench.runs.settings.probes import common

    options.baseline = options.baseline or common()["profile"]["baseline"]
    chosen = chosen_probes(options)
    demand_known(options.algorithms)
    out = options.out if options.scale == "nano" else options.out / options.scale
    profiler = Profiler(out, Path.cwd(), options.workers, scale=options.scale)
    shared = profiler.shared["profile"]
    seeds = shared["seeds"][: options.seeds or (QUICK_SEEDS if options.quick else None)]
    for algorithm in options.algorithms:
        measure(profiler, algorithm, chosen, seeds, around=not (options.quick or options.no_around))
    if options.controls:
        run_controls(profiler, chosen)
    if not profiler.stopped:
        show(profiler, options)
    else:
        say("stopped; the same command goes on", file=sys.stderr)
    return EXIT[profiler.stopped]


def chosen_probes(options: Options) -> list[str]:
    """The names of the probes to run. Raises ConfigError for an unknown one."""
    from grpobench.runs.settings.probes import GATE, probes
    from grpobench.runs.tools import strict

    known = probes(options.scale)
    if not options.probes:
        return [name for name in known if not options.quick or name in QUICK_PROBES]
    names = [part.strip() for part in options.probes.split(",") if part.strip()]
    for name in names:
        if name not in known:
            did = strict.did_you_mean(name, known, f"known: {', '.join(known)}")
            raise ConfigError([f"--probes: unknown probe {name!r}; {did}"])
    return list(dict.fromkeys([GATE, *names]))


def demand_known(algorithms: Sequence[str]) -> None:
    """Raise ConfigError for an algorithm that cannot be found, before anything runs."""
    from grpobench.runs.settings import registries

    faults: list[str] = []
    for name in algorithms:
        registries.find_class("algorithm", name, Path.cwd(), "profile", faults)
    if faults:
        raise ConfigError(faults)


def measure(
    profiler: Profiler, algorithm: str, chosen: Sequence[str], seeds: Sequence[int], around: bool
) -> None:
    """Run what is not kept of an algorithm, and write its outcomes."""
    from grpobench.analysis.profile import kept
    from grpobench.runs.experiment.profiling import safe, write

    table = profiler.out / "outcomes"
    folders = [kept.shipped(profiler.scale), table]
    if algorithm not in kept.read_rates(folders):
        say(f"{algorithm}: search of the learning rate", flush=True)
        write(table / "search.csv", profiler.search(algorithm))
    rates = kept.read_rates(folders).get(algorithm)
    if profiler.stopped or rates is None:
        return
    rows = kept.read_all(folders).get(algorithm, [])
    path = kept.file_of(table, algorithm)
    name = safe(algorithm)
    parts, refused = profiler.fitting(profiler.parts_of(algorithm, rates, chosen))
    for probe, why in refused.items():
        say(f"{algorithm}: left out {probe}: {why}", flush=True)
    for wanted, left in parts_by_seeds(parts, seeds, rows):
        words = f"{len(wanted) * len(left)} runs at {rates['policy']:g}"
        say(f"{algorithm}: {words}", flush=True)
        write(path, profiler.run(f"profile-{name}", wanted, left))
    for factor in (1 / AROUND, AROUND) if around else ():
        near = {**rates, "policy": float(f"{rates['policy'] * factor:.1g}")}
        parts, _ = profiler.fitting(profiler.parts_of(algorithm, near, chosen, ladder=False))
        for wanted, left in parts_by_seeds(parts, seeds[:AROUND_SEEDS], rows):
            write(path, profiler.run(f"around-{name}", wanted, left))


def parts_by_seeds(
    parts: Sequence[Part], seeds: Sequence[int], rows: Sequence[Row]
) -> list[tuple[list[Part], list[int]]]:
    """The parts that lack seeds in the kept rows, by the seeds that they lack."""
    have: dict[tuple[str, float, float], set[int]] = {}
    for row in rows:
        critic = -1.0 if math.isnan(row.critic_rate) else row.critic_rate
        have.setdefault((row.probe, row.learning_rate, critic), set()).add(row.seed)
    wanted: dict[tuple[int, ...], list[Part]] = {}
    for part in parts:
        left = tuple(seed for seed in seeds if seed not in have.get(part.key, ()))
        if left:
            wanted.setdefault(left, []).append(part)
    return [(own, list(left)) for left, own in wanted.items()]


def run_controls(profiler: Profiler, chosen: Sequence[str]) -> None:
    """Run the controls of the probes at the kept rates of their algorithms."""
    from grpobench.analysis.profile import kept
    from grpobench.runs.experiment.profiling import write

    table = profiler.out / "outcomes"
    rates = kept.read_rates([kept.shipped(profiler.scale), table])
    for name in chosen:
        probe = profiler.probes[name]
        needed = [one.algorithm for one in (probe.positive, probe.negative) if one]
        if lacking := [one for one in needed if one not in rates]:
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


def show(profiler: Profiler, options: Options) -> None:
    """Print the tables, and write pages and figures."""
    from grpobench.analysis.profile import kept, page, table
    from grpobench.analysis.profile.scores import build
    from grpobench.runs.inventory import profiles_page
    from grpobench.runs.settings.probes import NANO

    folders = [kept.shipped(profiler.scale), profiler.out / "outcomes"]
    rows, search = kept.read_all(folders), kept.read_search(folders)
    profile = build(rows, profiler.probes, kept.chosen(search))
    if not options.algorithms:
        say("\n".join(table.lines(profile)))
        if profiler.scale == NANO and (theirs := profiles_page.contributed_lines(rows, kept.chosen(search))):
            say("\n".join(["", *theirs]))
    for algorithm in options.algorithms:
        if algorithm not in profile.algorithms:
            say(f"{algorithm}: no score yet; see {profiler.out / 'runs'}", file=sys.stderr)
            continue
        say("\n".join(table.lines(profile, algorithm)))
        folder = profiler.out / algorithm.replace(":", "-")
        folder.mkdir(parents=True, exist_ok=True)
        baseline = options.baseline if options.baseline in profile.algorithms else ""
        text = page.page(
            profile, algorithm, "" if baseline == algorithm else baseline, rows[algorithm], search
        )
        (folder / "profile.md").write_text(text, encoding="utf-8")
        say(f"page: {folder / 'profile.md'}")
    draw(profile, [*options.algorithms, options.baseline], profiler.out)


def draw(profile: Profile, algorithms: Sequence[str], out: Path) -> None:
    """The radar of the first five of the algorithms, and the heat map of all."""
    from grpobench.analysis.profile import figures

    shown = [name for name in dict.fromkeys(algorithms) if name in profile.algorithms]
    out.mkdir(parents=True, exist_ok=True)
    drawings = [figures.heatmap(profile)] if profile.scores else []
    if shown:
        drawings.append(figures.radar(profile, shown[: figures.MOST]))
    for drawing in drawings:
        for kind in ("pdf", "png"):
            drawing.figure.savefig(out / f"{drawing.name}.{kind}", dpi=300)
        say(f"figure: {out / drawing.name}.pdf")
