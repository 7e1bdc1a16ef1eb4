"""Kill runs at random and hold what they come to against a run that nobody touched: `make torture`.

A cell is an algorithm on a number of threads, on an idle machine or beside a busy program. Its kills are
drawn from a seed: which process (worker, launcher, or the whole group), at which point of the code
(`runs/tools/faults.py`), and whether at once or some milliseconds later. Each run is also told to stop once.
Whatever ends before the run does is started again by the same command; then the run's metrics without times,
its answers, its events and its final weights must be those of the undisturbed run, byte for byte, nothing of
a killed process may be left, and every checksum must be right.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from unittest import mock

from grpobench.analysis.runfolder.load import load
from grpobench.runs.tools import faults

if TYPE_CHECKING:
    from grpobench.runs.experiment.experiment import ExperimentResult

ALGORITHMS = ("grpo", "ppo", "gspo", "dpo", "ngrpo", "ads", "dapo", "spo")
STEPS = 6
POINTS: Mapping[str, int] = {
    "rollout": 6,
    "update": 12,
    "step": 6,
    "log": 6,
    "log-row": 6,
    "save": 2,
    "save-manifest": 2,
    "save-renamed": 2,
    "evaluate": 6,
    "evaluated": 6,
    "begin": 1,
    "rewind": 2,
    "final": 1,
    "finish": 1,
    "finished": 1,
    "drop": 2,
}
"""Where a worker may die, and how often an undisturbed run comes there at least, more or less."""
LAUNCHER = 12
"""Looks of the launcher at its workers among which its own death is drawn."""
TARGETS = ("kill", "kill", "kill", "kill-launcher", "kill-group")
"""What dies; a third to a half of the kills comes later than its point."""
STOPS = ("terminate", "terminate-launcher")
"""Beside its kills each run is told to stop once, by SIGTERM to its worker or to its launcher."""
CHILDREN: list[subprocess.Popen[bytes]] = []
"""What was started and is there, each with a group of its own."""
MOST_STARTS = 40
"""Starts of one run; more mean that it comes no further."""
LAUNCH = """
import sys
from pathlib import Path
from grpobench.runs.tools.deferred import defer
if __name__ == "__main__":
    defer("torch")
    from grpobench.runs.experiment.experiment import run_experiment
    from grpobench.runs.settings.recipe import read_recipe
    folder = Path(sys.argv[1])
    sys.exit(run_experiment(read_recipe(str(folder / "torture.toml")), folder, 1).code)
"""
RECIPE = """
name = "torture"
seeds = [5]
tasks = [{{ name = "arithmetic", settings = {{ train = 48, validation = 16, test = 16 }} }}]
model.name = "nano"
[train]
steps = {steps}
prompts_per_step = 4
group_size = 4
num_minibatches = 2
learning_rate = 1e-3
[evaluate]
every = 2
problems = 4
samples = 1
test_problems = 4
[checkpoint]
every = 2
[[arm]]
algorithm = "{algorithm}"
{more}
"""
CRITIC = "settings.critic_warmup = 1\ntrain.learning_rate = { policy = 1e-3, critic = 1e-3 }"
TEACHER = 'model.teacher = "nano-moe"'
# The weight of the bonus rises in every step but those of the critic's warm-up: what is carried counts.
CARRIED = "modify.entropy_target = 9.0\nmodify.entropy_step = 0.01\nmodify.entropy_limit = 1.0"
MORE = {
    "ppo": f"{CRITIC}\n{CARRIED}",
    "vapo": CRITIC,
    "passk": "settings.k = 2",
    "opd": TEACHER,
    "gkd": TEACHER,
    "sdpo": "settings.threshold = 0.0",  # every group has a success
    "chord": "settings.expert_answers = 4",
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """Where kills are counted."""

    algorithm: str
    threads: int
    busy: bool

    def __str__(self) -> str:
        return f"{self.algorithm}-{self.threads}-{'busy' if self.busy else 'idle'}"


@dataclasses.dataclass
class Found:
    """What became of a cell."""

    kills: Counter[str] = dataclasses.field(default_factory=Counter)
    """By what died and where."""
    stops: int = 0
    """Times that a run was told to stop."""
    runs: int = 0
    identical: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)


def draw(chance: random.Random) -> str:
    """One fault, as the name of its file."""
    later = f"{faults.LATER}{chance.randrange(1, 250)}" if chance.random() < 0.4 else ""
    if chance.random() < 0.1:
        return f"launcher.{chance.randrange(1, LAUNCHER)}.kill{later}"
    return f"{somewhere(chance)}.{chance.choice(TARGETS)}{later}"


def somewhere(chance: random.Random) -> str:
    """A point of the code, and which time that a worker comes there."""
    name = chance.choice(list(POINTS))
    return f"{name}.{chance.randrange(1, POINTS[name] + 1)}"


def prepare(folder: Path, algorithm: str) -> None:
    folder.mkdir(parents=True)
    (folder / "launch.py").write_text(LAUNCH)
    text = RECIPE.format(algorithm=algorithm, steps=STEPS, more=MORE.get(algorithm, ""))
    (folder / "torture.toml").write_text(text)
    (folder / "faults").mkdir()


def start(folder: Path, threads: int) -> int:
    """One start of the launcher, in a group of its own; its exit code."""
    around = {**os.environ, "OMP_NUM_THREADS": str(threads), faults.VARIABLE: str(folder / "faults")}
    with (folder / "output.txt").open("a") as output:
        command = [sys.executable, str(folder / "launch.py"), str(folder)]
        child = subprocess.Popen(command, env=around, stdout=output, stderr=output, start_new_session=True)
        CHILDREN.append(child)
        try:
            return child.wait(600)
        finally:
            child.kill()
            CHILDREN.remove(child)


def carry(folder: Path, algorithm: str, planned: Sequence[str], sets: Sequence[str]) -> ExperimentResult:
    """The run under faults, started again by a launcher in this process until it is finished."""
    from rich.console import Console

    from grpobench.runs.experiment.experiment import run_experiment
    from grpobench.runs.settings.recipe import read_recipe

    if not folder.exists():
        prepare(folder, algorithm)
    for fault in planned:
        (folder / "faults" / fault).touch()
    with mock.patch.dict(os.environ, {faults.VARIABLE: str(folder / "faults")}):
        recipe = read_recipe(str(folder / "torture.toml"), sets)
        return run_experiment(recipe, folder, 1, console=Console(file=io.StringIO()))


def carried(folder: Path, algorithm: str, planned: Sequence[str], sets: Sequence[str]) -> dict[str, bytes]:
    """What the run comes to under faults, all of which must come about."""
    assert carry(folder, algorithm, planned, sets).code == 0
    assert struck(folder) == sorted(planned)
    return outcome(folder)


def struck(folder: Path) -> list[str]:
    """The faults that came about."""
    path = folder / "faults" / faults.STRUCK
    return sorted(path.read_text().split()) if path.exists() else []


def run_of(folder: Path) -> Path:
    (path,) = (folder / "torture").glob("*-s5")
    return path


def outcome(folder: Path) -> dict[str, bytes]:
    """What must not depend on kills."""
    path = run_of(folder)
    metric_rows = []
    for text in (path / "metrics.jsonl").read_text().splitlines():
        row = json.loads(text)
        metric_rows.append(
            {name: row[name] for name in row if not name.startswith(("time/", "cost/peak_memory_gb"))}
        )
    files = ["eval.jsonl", "events.jsonl", "final/policy.safetensors"]
    stored = [*path.glob("rollouts/*"), *path.glob("completions/*")]
    files += sorted(str(file.relative_to(path)) for file in stored)
    return {"metrics.jsonl": json.dumps(metric_rows).encode()} | {
        name: (path / name).read_bytes() for name in files
    }


def learned(files: Mapping[str, bytes]) -> bool:
    """Whether an outcome is of a run whose policy has moved in at least half of its steps: of one that
    stood still, equal weights would say nothing."""
    norms = [row.get("grad_norm/policy", 0.0) for row in json.loads(files["metrics.jsonl"])[1:]]
    return sum(norm > 0 for norm in norms) >= len(norms) / 2 > 0


def leftovers(folder: Path) -> list[str]:
    """Files that a killed process wrote aside."""
    hidden = [*folder.rglob(".*")]
    return [str(path.relative_to(folder)) for path in hidden if not path.name.endswith(".lock")]


def survivors(folder: Path) -> list[int]:
    """Processes that still have to do with a folder, some seconds after the last of their launchers ended."""
    deadline = time.monotonic() + 10
    while (processes := mentioning(str(folder))) and time.monotonic() < deadline:
        time.sleep(0.2)
    return processes


def mentioning(text: str) -> list[int]:
    pids = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if text.encode() in entry.read_bytes() and int(entry.parent.name) != os.getpid():
                pids.append(int(entry.parent.name))
    return pids


@contextlib.contextmanager
def company(busy: bool) -> Iterator[None]:
    """A program that keeps every core busy."""
    count = os.cpu_count() or 1 if busy else 0
    command = [sys.executable, "-c", "while True: pass"]
    spin = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    CHILDREN.extend(spin)
    try:
        yield
    finally:
        for child in spin:
            child.kill()
            child.wait()
            CHILDREN.remove(child)


def end(number: int, frame: FrameType | None) -> None:
    """Told to stop: what was started goes first."""
    for child in CHILDREN:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    os._exit(75)


def torture(cell: Cell, kills: int, root: Path, expected: Mapping[str, bytes], seed: int) -> Found:
    """Kill runs of a cell until `kills` have come about, four or so in each run."""
    chance, counts = random.Random(f"{seed} {cell}"), Found()
    with company(cell.busy):
        while sum(counts.kills.values()) < kills and counts.runs < 3 * kills:
            folder = root / f"{cell}-{counts.runs}"
            prepare(folder, cell.algorithm)
            for _ in range(min(5, kills - sum(counts.kills.values()))):
                (folder / "faults" / draw(chance)).touch()
            later = f"{faults.LATER}{chance.randrange(1, 250)}" if chance.random() < 0.8 else ""
            (folder / "faults" / f"{somewhere(chance)}.{chance.choice(STOPS)}{later}").touch()
            counts.runs += 1
            torture_run(folder, cell.threads, expected, counts)
    return counts


def torture_run(folder: Path, threads: int, expected: Mapping[str, bytes], counts: Found) -> None:
    """One run, started until it is finished, and held against the undisturbed one."""
    for _ in range(MOST_STARTS):
        if start(folder, threads) == 0:
            break
    else:
        counts.faults.append(f"{folder}: not finished after {MOST_STARTS} starts, see output.txt there")
        return
    struck = folder / "faults" / faults.STRUCK
    for line in struck.read_text().splitlines() if struck.exists() else []:
        name, _, kind = line.split(".")
        kind = kind.partition(faults.LATER)[0]
        if kind in STOPS:
            counts.stops += 1
        else:
            counts.kills[f"{kind} at {name}"] += 1
    files = outcome(folder)
    other = [name for name in expected if files[name] != expected[name]]
    wrong = [f"{name} differs" for name in other]
    wrong += [f"left behind: {name}" for name in leftovers(folder)]
    wrong += [f"still running: {number}" for number in survivors(folder)]
    wrong += load(folder / "torture").damage
    counts.identical += not other
    counts.faults += [f"{folder}: {fault}" for fault in wrong]
    if not wrong:
        shutil.rmtree(folder)


def undisturbed(algorithm: str, threads: int, root: Path) -> dict[str, bytes]:
    folder = root / f"{algorithm}-{threads}-whole"
    prepare(folder, algorithm)
    if start(folder, threads):
        raise RuntimeError(f"{algorithm}: the undisturbed run fails, see {folder / 'output.txt'}")
    files = outcome(folder)
    if not learned(files):
        raise RuntimeError(f"{algorithm}: the undisturbed run learns nothing, see {folder}")
    return files


def table(counts_by_cell: Mapping[Cell, Found]) -> str:
    """The counts, a line per cell, and what died where."""
    lines = [f"{'algorithm':<10} {'threads':>7} {'machine':>8} {'kills':>6} {'runs':>5} {'identical':>10}"]
    for cell, counts in counts_by_cell.items():
        load, kills = "busy" if cell.busy else "idle", sum(counts.kills.values())
        columns = f"{cell.algorithm:<10} {cell.threads:>7} {load:>8} {kills:>6} {counts.runs:>5}"
        lines.append(f"{columns} {counts.identical:>10}")
    every = sum((counts.kills for counts in counts_by_cell.values()), Counter())
    runs, same = (
        sum(counts.runs for counts in counts_by_cell.values()),
        sum(counts.identical for counts in counts_by_cell.values()),
    )
    lines += ["", *(f"{count:>5}  {event}" for event, count in every.most_common()), ""]
    stops = sum(counts.stops for counts in counts_by_cell.values())
    lines.append(
        f"{sum(every.values())} kills and {stops} stops in {runs} runs; "
        f"{same} of them identical to the undisturbed run"
    )
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Exit code 1 where a run was not identical, left something behind, or was not finished."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="kills per algorithm at least")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS))
    parser.add_argument("--threads", default="1,2", help="numbers of threads")
    parser.add_argument("--machine", default="idle,busy")
    parser.add_argument("--workers", type=int, default=1, help="cells at once")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    threads = [int(word) for word in options.threads.split(",")]
    loads = [word == "busy" for word in options.machine.split(",")]
    cells = [
        Cell(name, count, busy)
        for name in options.algorithms.split(",")
        for count in threads
        for busy in loads
    ]
    each = -(-options.kills // (len(threads) * len(loads)))
    root = Path(tempfile.mkdtemp(prefix="grpobench-torture-"))
    signal.signal(signal.SIGTERM, end)
    counts_by_cell: dict[Cell, Found] = {}
    with ThreadPoolExecutor(options.workers) as pool:
        pairs = list(dict.fromkeys((cell.algorithm, cell.threads) for cell in cells))
        expected = dict(zip(pairs, pool.map(lambda pair: undisturbed(*pair, root), pairs), strict=True))
        jobs = {
            cell: pool.submit(torture, cell, each, root, expected[cell.algorithm, cell.threads], options.seed)
            for cell in cells
        }
        for cell, job in jobs.items():
            counts_by_cell[cell] = job.result()
            print(f"{cell}: {sum(counts_by_cell[cell].kills.values())} kills", file=sys.stderr, flush=True)
    print(table(counts_by_cell))
    wrong = [fault for counts in counts_by_cell.values() for fault in counts.faults]
    print("\n".join(wrong), file=sys.stderr)
    if not wrong:
        shutil.rmtree(root)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
