"""A step at full size on the device of the runs; checkpoints that come back unchanged; interrupted runs that
end like others."""

from __future__ import annotations

import fcntl
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from grpobench.runs.experiment import preflight
from grpobench.runs.experiment.merging import TIMED
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.inventory.deep.agreement import run, small, trainer, up_to_update
from grpobench.runs.inventory.deep.result import CheckInput, Finding, good, unknown, wrong
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.determinism import determinism, deterministic
from grpobench.runs.tools.files import finite, read_rows
from grpobench.runs.tools.machine import read_peak_memory_gb, reset_peak_memory
from grpobench.runs.train.trainer import Trainer
from grpobench.runs.train.trial import first_update
from grpobench.tasks.data import bounded

State = dict[str, dict[str, torch.Tensor]]
TIGHT = 0.9
"""Share of the memory above which longer completions may not fit."""


def step(check_input: CheckInput) -> Finding:
    """The loss is finite, the policy has a gradient, and there is enough memory."""
    reset_peak_memory()
    row, _, device = once(small(check_input.first, full_size=True))
    peak, there = read_peak_memory_gb(), memory_gb()
    norm = row.get("grad_norm/policy", math.nan)
    measurements = f"on {device}: gradient norm {norm:.3g}, peak memory {peak:.2f} of {there:.1f} GiB"
    if row.get("grad/nonfinite"):
        remedy = "see train.learning_rate and model.dtype"
        return wrong(f"loss, reward or gradient is not finite {measurements}", remedy, "yours")
    if not norm > 0:
        return unknown(
            f"no gradient from coin flips for rewards {measurements}", "this algorithm may need others"
        )
    if peak > TIGHT * there:
        return wrong(
            f"memory is nearly full {measurements}",
            "set sampler.max_batch_size and train.micro_batch_tokens lower, which changes no gradient",
            "yours",
        )
    return good(f"a step of the recipe's size {measurements}")


def repeated(check_input: CheckInput) -> Finding:
    """The same step twice gives the same bits."""
    config = small(check_input.first)
    first, weights, device = once(config)
    second, again, _ = once(config)
    names = [name for name in first if not name.startswith(TIMED) and not name.startswith("cost/")]
    differing = [name for name in names if not same(first[name], second.get(name, math.nan))]
    if differing_name := differing[0] if differing else other_bytes(weights, again):
        return wrong(f"on {device} a step made twice differs in {differing_name}", unsteady())
    settings_words = ", ".join(f"{name} {value}" for name, value in determinism().items())
    return good(f"on {device} a step made twice has the same bits ({settings_words})")


def once(config: RunConfig) -> tuple[dict[str, float], State, str]:
    """The first update of the policy: its row, every trained tensor after it, the device."""
    deterministic(config.model.deterministic)
    with trainer(config) as made:
        row = up_to_update(made)
        # Cloned: on the CPU, `.cpu()` returns the trainer's own tensor.
        state = {
            role: {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}
            for role, tensors in made.models.state().items()
        }
        return row, state, str(made.models.device)


def same(first: float, other: float) -> bool:
    return first == other or (math.isnan(first) and math.isnan(other))


def memory_gb() -> float:
    """Memory in GiB: of the GPU, else of the machine."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory / 2**30
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    except OSError:
        return math.inf
    return int(lines["MemTotal"].split()[0]) / 2**20


TRY = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"
ELSEWHERE = "name an --out on another file system (on NFS: version 4; on Lustre: mounted with flock)"


def storage(check_input: CheckInput) -> Finding:
    """Files can be written, synced, renamed and locked against other processes, and there is room."""
    preflight.probe(check_input.room)
    guarded = check_input.room / "locked"
    with guarded.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        other = subprocess.run(
            [sys.executable, "-I", "-S", "-c", TRY, str(guarded)],
            check=False,
            capture_output=True,
            timeout=60,
        )
    if other.returncode == 0:
        return wrong(f"a lock in {check_input.out} does not hold against another process", ELSEWHERE, "yours")
    short: list[str] = []
    runs = [ExperimentRun(config, check_input.room / config.folder) for config in check_input.configs]
    preflight.demand(runs, check_input.room, 1, short.append)
    if short:
        return wrong(short[0].replace(str(check_input.room), str(check_input.out)), "see there", "yours")
    return good(f"files in {check_input.out} are synced, renamed and locked; what the runs keep has room")


def round_trip(check_input: CheckInput) -> Finding:
    """Writing and reading a checkpoint gives the same bytes of weights, optimizers and state."""
    config = small(check_input.first)
    with (
        trainer(config) as made,
        RunFolder.open(check_input.room / "round-trip", config, threads=torch.get_num_threads()) as folder,
    ):
        up_to_update(made)
        folder.save(1, made.models.state(), made.state())
        checkpoint = folder.latest()
        if checkpoint is None:
            return wrong("the checkpoint is missing", ELSEWHERE)
        tensors_by_role = {name: checkpoint.tensors(name) for name in checkpoint.names()}
        if differing := other_bytes(made.models.state(), tensors_by_role):
            return wrong(f"{differing} came back from the disk with different bytes", ELSEWHERE)
        if checkpoint.state != json.loads(json.dumps(made.state())):
            return wrong("the state came back from the disk changed", "tell the developers")
        with trainer(config) as other:
            other.restore(tensors_by_role, checkpoint.state)
            differing = other_bytes(made.models.state(), other.models.state())
            if differing or plain(other) != plain(made):
                return wrong(
                    f"a trainer restored {differing or 'the state'} differently", "tell the developers"
                )
        count = sum(len(tensors) for tensors in tensors_by_role.values())
    return good(f"{count} tensors of {', '.join(tensors_by_role)} and the state, byte for byte")


def plain(made: Trainer) -> Any:
    return json.loads(json.dumps(made.state()))


def other_bytes(ours: dict[str, dict[str, torch.Tensor]], theirs: dict[str, dict[str, torch.Tensor]]) -> str:
    """The first tensor with different bits, by role and name; empty if there is none."""
    if ours.keys() != theirs.keys():
        return " and ".join(sorted(ours.keys() ^ theirs.keys()))
    for role, tensors in ours.items():
        if tensors.keys() != theirs[role].keys():
            return f"{role} {min(tensors.keys() ^ theirs[role].keys())}"
        for name, tensor in tensors.items():
            if bits(tensor) != bits(theirs[role][name]):
                return f"{role} {name}"
    return ""


def bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    # Bytes, not numbers: NaN equals itself, -0.0 differs from 0.0, and NumPy has no bfloat16.
    return tensor.shape, tensor.dtype, flat.view(torch.uint8).numpy().tobytes()


def resumed(check_input: CheckInput) -> Finding:
    """The recipe's first arm, interrupted after a step and resumed, against the same run without
    interruption."""
    config = small(check_input.first)
    uninterrupted, interrupted = check_input.room / "whole" / "run", check_input.room / "parts" / "run"
    run(config, uninterrupted)
    run(config, interrupted, stop_after=first_update(config))
    stopped = len(rows(interrupted)) - 1
    run(config, interrupted)
    run_words = f"{config.arm} on {config.task.name}, stopped after {stopped} of {config.train.steps} steps"
    for name in ("metrics.jsonl", "eval.jsonl"):
        ours, theirs = rows(uninterrupted, name), rows(interrupted, name)
        if ours != theirs:
            return wrong(f"{run_words}: {difference(ours, theirs)} in {name}", unsteady())
    ends = [
        bounded.read_bytes(run_folder / "final" / "policy.safetensors")
        for run_folder in (uninterrupted, interrupted)
    ]
    if ends[0] != ends[1]:
        return wrong(f"{run_words}: the final weights differ", unsteady())
    return good(f"{run_words}, has the undisturbed run's metrics and, byte for byte, its final weights")


def rows(path: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """A log without timings."""
    return [
        {key: value for key, value in finite(row).items() if not key.startswith(TIMED)}
        for row in read_rows(path / name)
    ]


def difference(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str:
    """The first number in which two logs differ, in words."""
    for our_row, their_row in zip(ours, theirs, strict=False):
        for key in dict.fromkeys([*our_row, *their_row]):
            if our_row.get(key) != their_row.get(key):
                values = f"{their_row.get(key)} instead of {our_row.get(key)}"
                return f"{key} at step {our_row.get('step')} is {values}"
    return f"{len(theirs)} rows instead of {len(ours)}"


def unsteady() -> str:
    """The remedy if equal steps give different bits."""
    if torch.cuda.is_available():
        return "set model.deterministic = true, which uses operators that add in a fixed order"
    return (
        "see whether memory and processor are sound: on any machine there is one result; tell the developers"
    )
