"""Every optimizer and every schedule of torch and transformers, by its name in a recipe: it is usable, or the
recipe is refused with the reason. Each library is read as a user's command reads it, in a process in which
nothing has used torch before."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest
from torch import optim
from torch.optim import lr_scheduler
from transformers import SchedulerType

OPTIMIZERS: dict[str, str] = {
    "LBFGS": "TypeError: LBFGS.step() missing 1 required positional argument: 'closure'",
    "SparseAdam": "RuntimeError: SparseAdam does not support dense gradients",
    "Muon": "ValueError: Muon only supports 2D parameters",
}
"""Why some of torch's optimizers cannot be used; the others can."""

SCHEDULES: dict[str, tuple[dict[str, object], str]] = {
    "torch:StepLR": ({"step_size": 2}, ""),
    "torch:MultiStepLR": ({"milestones": [2, 3]}, ""),
    "torch:ExponentialLR": ({"gamma": 0.9}, ""),
    "torch:CosineAnnealingLR": ({"T_max": 4}, ""),
    "torch:CyclicLR": ({"base_lr": 0.1, "max_lr": 1.0, "cycle_momentum": False}, ""),
    "torch:CosineAnnealingWarmRestarts": ({"T_0": 2}, ""),
    "torch:OneCycleLR": ({"max_lr": 1.0, "total_steps": 5, "cycle_momentum": False}, ""),
    # A recipe holds neither functions nor other schedulers.
    "torch:LambdaLR": ({}, "missing 1 required positional argument: 'lr_lambda'"),
    "torch:MultiplicativeLR": ({}, "missing 1 required positional argument: 'lr_lambda'"),
    "torch:SequentialLR": ({}, "missing 2 required positional arguments: 'schedulers' and 'milestones'"),
    "torch:ChainedScheduler": ({}, "has no len()"),
    "torch:ReduceLROnPlateau": ({}, "is no schedule that depends on the step alone"),
    "torch:LRScheduler": ({}, "torch has no schedule 'LRScheduler'"),
    "transformers:reduce_lr_on_plateau": ({}, "depends on the step alone"),
    "transformers:greedy": ({}, "depends on the step alone"),
    "transformers:cosine_with_min_lr": ({"min_lr_rate": 0.1}, ""),
    "transformers:cosine_warmup_with_min_lr": ({"min_lr_rate": 0.1}, ""),
    "transformers:warmup_stable_decay": ({"num_decay_steps": 2}, ""),
}
"""By schedule the settings that it needs, and why some cannot be used; the others need none."""

READ = """
import json, sys
from grpobench.runs.tools.deferred import defer
defer("torch")
import torch
from grpobench.runs.settings import optimizers
from grpobench.runs.settings.config import TrainConfig
asked = json.load(sys.stdin)
said = [optimizers.faults(TrainConfig(steps=5, **train), None) for train in asked]
assert torch.optim is sys.modules["torch.optim"] is sys.modules["torch"].optim
json.dump(said, sys.stdout)
"""


def names(library: str) -> list[str]:
    """What a library calls its optimizers or schedules."""
    if library == "optimizers":
        made = [name for name in dir(optim) if isinstance(getattr(optim, name), type) and name != "Optimizer"]
        return [f"torch:{name}" for name in made]
    if library == "torch":
        return [f"torch:{name}" for name in lr_scheduler.__all__]
    return [f"transformers:{kind.value}" for kind in SchedulerType]


def faults(library: str) -> dict[str, list[str]]:
    """Why each cannot be used, of all that a library has."""
    return dict(zip(names(library), all_faults()[library], strict=True))


def train_tables_of(library: str) -> list[dict[str, object]]:
    if library == "optimizers":
        return [{"optimizer": name} for name in names(library)]
    return [
        {"schedule": name, "schedule_settings": SCHEDULES.get(name, ({}, ""))[0]} for name in names(library)
    ]


@cache
def all_faults() -> dict[str, list[list[str]]]:
    """One process reads them one after the other: what each imports takes longer than all that it reads."""
    libraries = ("optimizers", "torch", "transformers")
    train_tables = [train_table for library in libraries for train_table in train_tables_of(library)]
    words = [sys.executable, "-c", READ]
    done = subprocess.run(words, input=json.dumps(train_tables), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fault_lists = iter(json.loads(done.stdout))
    return {library: [next(fault_lists) for _ in names(library)] for library in libraries}


@pytest.mark.parametrize("name", names("optimizers"))
def test_an_optimizer_can_be_used_or_says_why_not(name: str) -> None:
    reason = OPTIMIZERS.get(name.removeprefix("torch:"))
    if reason is None:
        assert faults("optimizers")[name] == []
    else:
        (message,) = faults("optimizers")[name]
        assert message.startswith(f"train.optimizer: {name} cannot be used: ") and reason in message


@pytest.mark.parametrize("name", [*names("torch"), *names("transformers")])
def test_a_schedule_can_be_used_or_says_why_not(name: str) -> None:
    messages = faults(name.partition(":")[0])[name]
    _, reason = SCHEDULES.get(name, ({}, ""))
    if not reason:
        assert messages == []
    else:
        assert len(messages) == 1 and messages[0].startswith("train.schedule: ") and reason in messages[0]
