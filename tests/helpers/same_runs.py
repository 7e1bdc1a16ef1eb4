"""Experiments of short nano runs on several engines, and what two of them must have in common."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from grpobench.runs.experiment import watchdog
from grpobench.runs.tools import faults
from helpers import torture
from helpers.whole_runs import rows, timeless

PROGRAM = """
import sys
from pathlib import Path
if __name__ == "__main__":
    from grpobench.runs.experiment.engines import Where
    from grpobench.runs.experiment.experiment import run_experiment
    from grpobench.runs.settings.recipe import read_recipe
    recipe, out, workers, on, address = sys.argv[1:]
    where = Where(on=on, address=address)
    sys.exit(run_experiment(read_recipe(recipe), Path(out), int(workers), where=where).code)
"""
HEAD = """
name = "m"
tasks = ["arithmetic", "nanobias"]
[model]
name = "nano"
[evaluate]
every = 2
problems = 4
test_problems = 8
[checkpoint]
every = 1
"""


def write(folder: Path, seeds: int, steps: int, *arms: str) -> Path:
    """A recipe of arms × two tasks × seeds."""
    text = f"seeds = {list(range(seeds))}\n{HEAD}[train]\nsteps = {steps}\nprompts = 2\ngroup = 4\n"
    text += "".join(f'[[arm]]\nalgorithm = "{arm}"\n' for arm in arms)
    (folder / "m.toml").write_text(text)
    return folder / "m.toml"


def begin(
    recipe: Path, out: Path, workers: int, on: str, address: str = "", **around: Any
) -> subprocess.Popen[str]:
    """`run_experiment` in a process of its own."""
    program = recipe.with_name("launch.py")
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(recipe), str(out), str(workers), on, address]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **around)


def unresponsive_and_halted(folder: Path, on: str, address: str = "") -> None:
    """An experiment of two runs, of which one hangs and one is halted (SIGSTOP), has the results of the
    pool's
    that nothing happened to."""
    recipe, plan = write(folder, 1, 3, "grpo"), folder / "faults"
    plan.mkdir()
    for fault in ("hang", "stop"):
        (plan / f"rollout.2.{fault}").touch()
    around = {**os.environ, faults.VARIABLE: str(plan), watchdog.VARIABLE: "45"}
    child = begin(recipe, folder / "struck", 2, on, address, env=around)
    output = child.communicate(timeout=900)[0]
    assert child.returncode == 0, output
    assert output.count("unresponsive: no report for ") == 2 == output.count("resuming from step 1"), output
    assert not torture.survivors(plan)
    stack_notes = sorted(path.read_text() for path in (folder / "struck" / "m").glob("*/unresponsive-1.txt"))
    assert len(stack_notes) == 2 and sum(watchdog.NO_STACK in text for text in stack_notes) == 1
    assert sum("in gather" in text for text in stack_notes) == 1
    alone = begin(recipe, folder / "local", 2, "local")
    assert alone.communicate(timeout=900) and alone.returncode == 0
    assert results(folder / "struck") == results(folder / "local")


def results(out: Path) -> dict[str, tuple[Any, ...]]:
    """Of every run, what must be the same wherever it ran: metrics without time, and all other results."""
    results_by_run = {}
    for config_file in sorted((out / "m").glob("*/run.toml")):
        run = config_file.parent
        files = [*run.glob("final/*.safetensors"), run / "eval.jsonl", run / "events.jsonl", run / "run.toml"]
        content_by_file = {str(path.relative_to(run)): path.read_bytes() for path in files}
        metrics = [json.dumps(timeless(row), sort_keys=True) for row in rows(run)]
        state = json.loads((run / "status.json").read_text())["state"]
        results_by_run[run.name] = (state, metrics, content_by_file)
    return results_by_run
