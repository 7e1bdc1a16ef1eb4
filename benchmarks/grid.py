"""`--case grid`: the time of the same twelve GRPO runs in our experiment and in scripts that use TRL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from grpobench.algorithms.libraries.trl_arguments import translate
from grpobench.analysis.runfolder.files import read_lines
from grpobench.benchmarks.cases import UNKNOWN, Tell
from grpobench.benchmarks.grid_ours import AT_ONCE
from grpobench.benchmarks.grid_trl import DONE, GridResult, TRLJob
from grpobench.runs.models.model_files import locate_model
from grpobench.runs.runfolder.logs import settled, status
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.trl import splitting
from grpobench.runs.tools import machine
from grpobench.runs.train.trl.arguments import plain_arguments

POLL: Final = 0.02
"""Seconds between two checks of the programs, which is negligible beside their seconds."""
TAIL: Final = 1500
"""Characters of a failed program's output that its error shows."""


@dataclass(frozen=True)
class Program:
    """A command, and the file that gets its output."""

    words: Sequence[str]
    log: Path


def together(
    programs: Sequence[Program], at_once: int, variables: Mapping[str, str], notify: Callable[[int], None]
) -> float:
    """Run all programs, `at_once` at a time, in order; returns the seconds from the first start to the last
    end. `notify` gets the number of those that have ended. Raises ChildProcessError, with the end of its
    output, for a program that fails; the others are then stopped."""
    waiting, running, ended = list(programs), list[tuple[subprocess.Popen[bytes], Program]](), 0
    began = time.monotonic()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                program = waiting.pop(0)
                running.append((begin(program, variables), program))
            notify(ended)
            time.sleep(POLL)
            for pair in [pair for pair in running if pair[0].poll() is not None]:
                running.remove(pair)
                demand_success(*pair)
                ended += 1
    finally:
        for process, _ in running:
            process.kill()
            process.wait()
    return time.monotonic() - began


def begin(program: Program, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with program.log.open("wb") as log:
        return subprocess.Popen(
            program.words,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def demand_success(process: subprocess.Popen[bytes], program: Program) -> None:
    if process.returncode:
        tail = program.log.read_text(encoding="utf-8", errors="replace")[-TAIL:]
        raise ChildProcessError(f"{' '.join(program.words)} ended with {process.returncode}:\n{tail}")


RECIPE: Final = "bench-grid"
LOOK: Final = 1.0
"""Seconds between two counts of the finished runs of an experiment."""


@dataclass
class SideProgress:
    """What a side has done so far."""

    wall: float = 0.0
    runs: list[GridResult] = field(default_factory=list)


def grid(tell: Tell, sets: Sequence[str] = ()) -> dict[str, Any]:
    """Both sides' runs of the recipe, in blocks. `sets` are the recipe's assignments, as in ``--set``. Raises
    ChildProcessError if a side fails, RuntimeError if the two did not do the same work.

    Both sides train the same policy on the same tasks with the same seeds, steps, prompts, completions,
    objective and optimizer, get rewards from the same verifier, and evaluate at the same steps the same
    number of answers to the same problems (`demand_same_work` refuses anything else). Completions differ:
    each policy ends its own, so the numbers of tokens are reported but not equal. The problems that the seeds
    choose from the training split differ too. Each side runs two runs at a time with one thread each, while
    the other side is idle, and keeps the final weights.

    The time is wall time from the start of the first process to the end of the last, so each side pays for
    its way of working: a TRL script loads Python, torch, transformers and TRL for every run; our launcher
    starts two workers for a block. The runs are done in two blocks of half the seeds, in the order ours, TRL,
    TRL, ours, so a machine that becomes slower or faster affects both sides alike. More blocks would charge
    us for more starts of experiments than a user has, and a single block per side would leave the drift in.
    """
    configs = read_recipe(RECIPE, sets).runs()
    taken = {"ours": SideProgress(), "trl": SideProgress()}
    parts = halves(sorted({config.seed for config in configs}))
    order = [(side, part) for n, part in enumerate(parts) for side in sorted(taken, reverse=bool(n % 2))]
    with TemporaryDirectory(prefix="grpobench-") as temporary:
        for number, (side, seeds) in enumerate(order):
            folder = Path(temporary) / f"{number}-{side}"
            folder.mkdir()
            block = SideRuns(folder, [config for config in configs if config.seed in seeds], tuple(sets))
            block_name = f"block {number + 1} of {len(order)}, {'ours' if side == 'ours' else 'TRL'}"
            left = estimate(taken, order[number:], len(block.configs))
            seconds, runs = SIDES[side](block, progress_of(tell, block_name, len(block.configs), left))
            taken[side].wall += seconds
            taken[side].runs += runs
    demand_same_work(taken["ours"].runs, taken["trl"].runs)
    return summary(taken, len(order))


def halves(seeds: Sequence[int]) -> list[Sequence[int]]:
    """Two blocks of seeds; one block if there is only one seed."""
    middle = (len(seeds) + 1) // 2
    return [part for part in (seeds[:middle], seeds[middle:]) if part]


def estimate(
    taken: Mapping[str, SideProgress], order: Sequence[tuple[str, Sequence[int]]], runs: int
) -> float:
    """Estimated seconds of the blocks of `order`, each with about this many runs, from the finished ones."""
    if not all(side.runs for side in taken.values()):
        return UNKNOWN
    return sum(runs * taken[side].wall / len(taken[side].runs) for side, _ in order)


def progress_of(tell: Tell, block_name: str, runs: int, left: float) -> Callable[[int], None]:
    """Receives how many runs of a block have ended."""
    began = time.monotonic()

    def news(ended: int) -> None:
        still = left - (time.monotonic() - began)  # UNKNOWN stays UNKNOWN
        tell(f"{block_name}: {ended} of {runs} runs ended", 0.0 if still < 0 else still)

    return news


# The sides


@dataclass(frozen=True)
class SideRuns:
    """Runs that one side does without a break."""

    folder: Path
    configs: Sequence[RunConfig]
    sets: tuple[str, ...]


Side = Callable[[SideRuns, Callable[[int], None]], tuple[float, list[GridResult]]]


def variables() -> dict[str, str]:
    """Environment of each process: one thread, and threads that do not hold the core while they wait."""
    return {**machine.make_worker_environment(AT_ONCE, 0), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def ours(block: SideRuns, news: Callable[[int], None]) -> tuple[float, list[GridResult]]:
    """An experiment of the block's runs."""
    seeds = f"seeds={sorted({config.seed for config in block.configs})}"
    module = "grpobench.benchmarks.grid_ours"
    words = [sys.executable, "-m", module, str(block.folder), RECIPE, *block.sets, seeds]
    runs = [block.folder / config.experiment / config.folder for config in block.configs]
    looked = [0.0, 0]

    def look(_: int) -> None:
        if time.monotonic() - looked[0] > LOOK:
            looked[:] = [time.monotonic(), sum(map(settled, runs))]
            news(int(looked[1]))

    log = block.folder / "log.txt"
    seconds = together([Program(words, log)], 1, variables(), look)
    return seconds, [recorded(path, config) for path, config in zip(runs, block.configs, strict=True)]


def recorded(path: Path, config: RunConfig) -> GridResult:
    """What one of our runs did, from its folder. Raises ChildProcessError for an unfinished one."""
    if status(path).get("state") != "finished":
        raise ChildProcessError(f"our run {path.name} has not finished: {status(path).get('why', '')}")
    rows = [row for _, row in read_lines(path / "metrics.jsonl")[0]]
    steps = [row for row in rows if row["step"]]
    outcome = GridResult(config.task.name, config.seed)
    outcome.train_s = sum(row["time/step"] for row in steps)
    outcome.evaluate_s = sum(row.get("time/evaluate", 0.0) for row in rows)
    outcome.completions = int(sum(row["groups/sampled"] for row in steps)) * config.train.group_size
    outcome.tokens = int(steps[-1]["cost/generated_tokens"])
    correct: dict[str, list[float]] = {}
    for _, row in read_lines(path / "eval.jsonl")[0]:
        name = f"{row['step']}/{row['split']}/{row['mode']}"
        correct.setdefault(name, []).append(row["scores"]["correct"])
    for name, values in correct.items():
        outcome.add(name, values)
    return outcome


def trl(block: SideRuns, news: Callable[[int], None]) -> tuple[float, list[GridResult]]:
    """A script for each of the block's runs, two at a time."""
    programs, folders = [], []
    for config in block.configs:
        folder = block.folder / config.folder
        folder.mkdir()
        path = folder / "job.json"
        path.write_text(json.dumps(asdict(job(config, folder))), encoding="utf-8")
        words = [sys.executable, "-m", "grpobench.benchmarks.grid_trl", str(path)]
        programs.append(Program(words, folder / "log.txt"))
        folders.append(folder)
    seconds = together(programs, AT_ONCE, variables(), news)
    return seconds, [GridResult(**json.loads((folder / DONE).read_text("utf-8"))) for folder in folders]


SIDES: Final[Mapping[str, Side]] = {"ours": ours, "trl": trl}


def job(config: RunConfig, folder: Path) -> TRLJob:
    """The settings of one of our runs for TRL's script. Raises RuntimeError for settings that it does not
    have."""
    train, evaluate = config.train, config.evaluate
    arguments, faults = translate(config.algorithm, config.modify, splitting(config))
    if faults or train.num_minibatches * train.epochs != 1 or train.optimizer != "adamw":
        raise RuntimeError(f"the script has no settings for the recipe {RECIPE}: {faults}")
    plain = plain_arguments(str(folder))
    del plain["output_dir"]
    return TRLJob(
        task=config.task.name,
        seed=config.seed,
        model=locate_model(config.model.name)[0],
        folder=str(folder),
        steps=train.steps,
        prompts=train.prompts_per_step,
        group=train.group_size,
        limit=config.sampler.max_completion_tokens or config.task.max_completion_tokens,
        temperature=config.sampler.temperature,
        arguments={
            **plain,
            "learning_rate": train.learning_rate["policy"],
            "adam_beta1": train.betas[0],
            "adam_beta2": train.betas[1],
            "weight_decay": train.weight_decay,
            "max_grad_norm": train.max_grad_norm,
            "bf16": config.model.dtype == "bfloat16",
            "disable_dropout": True,
            **arguments,
        },
        every=evaluate.every,
        problems={"validation": evaluate.problems, "test": evaluate.test_problems},
        samples=evaluate.samples,
        greedy=evaluate.greedy,
        sampled_at=evaluate.temperature,
    )


# The outcome


def demand_same_work(ours: Sequence[GridResult], theirs: Sequence[GridResult]) -> None:
    """Raises RuntimeError unless both sides made the same runs with as many completions and answers."""

    def work(runs: Sequence[GridResult]) -> dict[str, Any]:
        work_by_run = {
            f"{run.task} seed {run.seed}": (run.completions, dict(sorted(run.answers.items())))
            for run in runs
        }
        doubled = [
            name for name, count in Counter(f"{r.task} seed {r.seed}" for r in runs).items() if count > 1
        ]
        return {**work_by_run, **({"twice": doubled} if doubled else {})}

    our_work, other = work(ours), work(theirs)
    differing = [name for name in sorted({*our_work, *other}) if our_work.get(name) != other.get(name)]
    if differing:
        name = differing[0]
        raise RuntimeError(
            f"the sides did not do the same work in {name}: ours {our_work.get(name)}, TRL {other.get(name)} "
            "(completions trained on, answers evaluated); the comparison would not be fair"
        )


def summary(taken: Mapping[str, SideProgress], blocks: int) -> dict[str, Any]:
    """The grid's part of the outcome."""
    ours, trl = taken["ours"], taken["trl"]
    tasks = dict.fromkeys(run.task for run in ours.runs)
    first = ours.runs[0]
    return {
        "recipe": RECIPE,
        "runs": len(ours.runs),
        "at_once": AT_ONCE,
        "blocks": blocks,
        "completions_per_run": first.completions,
        "answers_per_run": sum(first.answers.values()),
        "ratio": round(trl.wall / ours.wall, 3),
        **{name: side_summary(side) for name, side in taken.items()},
        "tasks": [
            {
                "task": task,
                **{
                    name: learned([run for run in side.runs if run.task == task])
                    for name, side in taken.items()
                },
            }
            for task in tasks
        ],
    }


def side_summary(side: SideProgress) -> dict[str, Any]:
    """Wall seconds, and what the processes did in them; `rest_s` is start, loading, saving and waiting."""
    train, evaluate = sum(run.train_s for run in side.runs), sum(run.evaluate_s for run in side.runs)
    return {
        "wall_s": round(side.wall, 2),
        "train_s": round(train, 2),
        "evaluate_s": round(evaluate, 2),
        "rest_s": round(AT_ONCE * side.wall - train - evaluate, 2),
    }


def learned(runs: Sequence[GridResult]) -> dict[str, Any]:
    """Mean test accuracy before and after training, of sampled answers or, without any, of greedy ones."""
    mode = "sampled" if any(name.endswith("/sampled") for name in runs[0].accuracy) else "greedy"

    def ends(run: GridResult) -> tuple[float, float]:
        tested = [name for name in run.accuracy if f"/test/{mode}" in name]
        tested.sort(key=lambda name: int(name.partition("/")[0]))
        return run.accuracy[tested[0]], run.accuracy[tested[-1]]

    before, after = zip(*map(ends, runs), strict=True)
    return {
        "before": round(sum(before) / len(runs), 4),
        "after": round(sum(after) / len(runs), 4),
        "tokens": sum(run.tokens for run in runs),
    }
