"""Short runs under strict determinism, one undisturbed, one killed and resumed."""

# Their metrics and final weights must be equal byte for byte.

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpobench.benchmarks.gpu.rows import Outcome, Report, Skip, judged, measured
from grpobench.benchmarks.gpu.speed import bench
from grpobench.runs.settings.config import RunConfig

STEPS = 4
KILLED_AFTER = 2
"""Steps after which the process of a run kills itself; it makes the third again when it is resumed."""
TINY = (
    "seeds=[0]",
    'tasks=["arithmetic"]',
    'arms=["grpo"]',
    f"train.steps={STEPS}",
    "train.num_minibatches=2",
    "evaluate.every=0",
    "evaluate.problems=4",
    "evaluate.test_problems=4",
    "checkpoint.every=1",
    "model.deterministic=true",
    "model.warm_start=0",
)
SIZES = {
    True: ("train.prompts_per_step=2", "train.group_size=4", "sampler.max_completion_tokens=8"),
    False: ("train.prompts_per_step=8", "train.group_size=8", "sampler.max_completion_tokens=48"),
}
"""Settings for `Report.small`."""
LONG = ("train.prompts_per_step=16", "train.group_size=8", "sampler.max_completion_tokens=256")
LARGE = {True: "random:tiny", False: "random:0.5b"}
RANDOM = ("reward.kind=random", "checks.start=off")
"""Random weights give no right answer."""


def full_run(report: Report) -> None:
    """A 0.5 B model in bfloat16, all weights trained. It keeps no checkpoint, which would take 6 GB."""
    settings = run_settings(report.small)
    with tempfile.TemporaryDirectory(prefix="grpobench-") as temporary:
        label = f"{LARGE[report.small]} bfloat16: {STEPS} steps"
        report.attempt(label, lambda: undisturbed(Path(temporary) / "whole", settings))


def run_settings(small: bool) -> list[str]:
    """The settings of `full_run`."""
    settings = [*TINY, *(SIZES[True] if small else LONG), *RANDOM, f"model.name={LARGE[small]}"]
    settings += ["model.dtype=bfloat16", "model.deterministic=false"]
    return [*settings, "checkpoint.every=0", "checkpoint.weights=false"]


def adapter_run(report: Report) -> None:
    """The same model with a low-rank adapter, killed and resumed."""
    model = LARGE[report.small]
    check(report, f"{model} bfloat16 with LoRA", model, "bfloat16", (*RANDOM, "model.adapter.rank=16"))


def nano(report: Report) -> None:
    """The built-in policy in float32, killed and resumed, and its steps against TRL's."""
    check(report, "nano float32", "nano", "float32")
    if not report.small:  # which the part `step` does there
        bench(report, "nano")


def check(report: Report, name: str, model: str, dtype: str, more: Sequence[str] = ()) -> None:
    """Make both runs and compare them."""
    settings = [*TINY, *SIZES[report.small], f"model.name={model}", f"model.dtype={dtype}", *more]
    with tempfile.TemporaryDirectory(prefix="grpobench-") as temporary:
        reference, parts = Path(temporary) / "whole", Path(temporary) / "parts"
        report.attempt(f"{name}: {STEPS} steps", lambda: undisturbed(reference, settings))
        report.attempt(f"{name}: killed and resumed", lambda: killed_and_resumed(reference, parts, settings))


def undisturbed(path: Path, settings: Sequence[str]) -> Outcome:
    """Make the run, and say what a step took and held."""
    code, message = execute(path, settings)
    if code:
        return judged(False, message)
    rows = log(path)
    row = rows[-1]
    if len(rows) != STEPS + 1:
        return judged(False, f"{len(rows) - 1} of {STEPS} steps in metrics.jsonl")
    gap = f"gap {row.get('gap/mean', float('nan')):.2g} nats"
    # The last step also measures the distance to the base policy.
    seconds = ", ".join(f"{each.get('time/step', float('nan')):.2f}" for each in rows[1:])
    memory = row.get("cost/peak_memory_gb", float("nan"))
    return measured(f"steps of {seconds} s, peak {memory:.2f} GiB, {gap}")


def killed_and_resumed(reference: Path, path: Path, settings: Sequence[str]) -> Outcome:
    """Kill the run by SIGKILL, resume it, and hold it against the undisturbed one."""
    if not (reference / "final" / "policy.safetensors").exists():
        raise Skip("the undisturbed run has no final weights")
    code, message = execute(path, settings, kill_after=KILLED_AFTER)
    if code != -signal.SIGKILL:
        return judged(False, f"the run was to be killed and ended with {code}: {message}")
    code, message = execute(path, settings)
    if code:
        return judged(False, f"resuming failed: {message}")
    for row, other in zip(log(reference), log(path), strict=True):
        if names := [name for name in row if row[name] != other.get(name) and not timed(name)]:
            return judged(False, f"step {row.get('step')} differs in {', '.join(names[:5])}")
    final = [(run_folder / "final" / "policy.safetensors").read_bytes() for run_folder in (reference, path)]
    content = f"metrics of {STEPS} steps and {len(final[0]) / 1e6:.1f} MB of final weights"
    return judged(final[0] == final[1], f"{content} {'are equal' if final[0] == final[1] else 'differ'}")


def timed(name: str) -> bool:
    """Whether a metric may differ between two executions."""
    from grpobench.runs.experiment.merging import TIMED

    return name.startswith(TIMED)


def log(path: Path) -> list[dict[str, Any]]:
    """The rows of a run. NaN becomes None, which equals itself."""
    lines = (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line, parse_constant=lambda name: None if name == "NaN" else name) for line in lines]


def execute(path: Path, settings: Sequence[str], kill_after: int = 0) -> tuple[int, str]:
    """Execute the run in a process of its own: (its exit code, the last line that it printed)."""
    words = [sys.executable, "-m", __name__, str(path), str(kill_after), *settings]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout, flush=True)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return done.returncode, lines[-1][:300] if lines else "it said nothing"


def process(path: Path, kill_after: int, settings: Sequence[str]) -> None:
    """Make or continue the run of a recipe with these settings; with `kill_after`, this process kills itself
    when it has logged so many steps."""
    import torch

    from grpobench.runs.runfolder.folder import RunFolder
    from grpobench.runs.settings.recipe import read_recipe
    from grpobench.runs.train.execute import execute

    (config,) = read_recipe("quickstart", list(settings)).runs()
    plain: RunConfig = dataclasses.replace(config, stop_on=())
    with RunFolder.open(path, plain, threads=torch.get_num_threads()) as folder:

        def stop() -> bool:
            if 0 < kill_after <= folder.step:
                os.kill(os.getpid(), signal.SIGKILL)
            return False

        execute(plain, folder, lambda progress: None, stop)


if __name__ == "__main__":
    process(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
