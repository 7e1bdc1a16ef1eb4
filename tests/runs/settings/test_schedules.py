"""Learning rates over a run: today's constant one bit for bit, others as their libraries have them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from transformers import get_scheduler

from grpobench.runs.settings.config import TrainConfig
from grpobench.runs.settings.optimizers import schedule
from grpobench.runs.tools.strict import ConfigError

SAME: dict[str, float] = {"rel": 1e-12, "abs": 1e-12}
"""float64 on both sides; only the order of operations differs."""


def scales(folder: Path | None = None, **settings: Any) -> list[float]:
    train = TrainConfig(**settings)
    factor = schedule(train, folder)
    return [factor(step) for step in range(1, train.steps + 1)]


def theirs(make: Any, steps: int) -> list[float]:
    """The factors of a library's scheduler, driven as a training loop drives it."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    scheduler, factors = make(optimizer), []
    for _ in range(steps):
        factors.append(optimizer.param_groups[0]["lr"] / 0.01)
        optimizer.step()
        scheduler.step()
    return factors


def of_transformers(name: str, steps: int, warmup: int, **settings: Any) -> list[float]:
    def make(optimizer: Any) -> Any:
        return get_scheduler(name, optimizer, warmup, steps, settings)

    return theirs(make, steps)


def test_constant_is_as_it_always_was() -> None:
    for warmup in (0, 1, 3, 7):
        before = [min(1.0, step / warmup) if warmup else 1.0 for step in range(1, 21)]
        assert scales(steps=20, warmup_steps=warmup) == before


def test_linear_and_cosine_by_hand() -> None:
    assert scales(steps=4, schedule="linear") == [1.0, 0.75, 0.5, 0.25]
    assert scales(steps=6, warmup_steps=2, schedule="linear") == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert scales(steps=4, schedule="linear", floor=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4], **SAME)
    half = math.sqrt(0.5) / 2
    assert scales(steps=4, schedule="cosine") == pytest.approx([1.0, 0.5 + half, 0.5, 0.5 - half], **SAME)


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (10, 0), (10, 3), (10, 10), (37, 5)])
@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_decays_are_those_of_transformers_behind_the_warmup(name: str, steps: int, warmup: int) -> None:
    factors = scales(steps=steps, warmup_steps=warmup, schedule=name)
    assert factors[warmup:] == pytest.approx(of_transformers(name, steps, warmup)[warmup:], **SAME)
    assert factors[:warmup] == [(step + 1) / warmup for step in range(warmup)]


def test_floor_is_that_of_both_libraries() -> None:
    cosine = of_transformers("cosine_with_min_lr", 20, 4, min_lr_rate=0.1)
    factors = scales(steps=20, warmup_steps=4, schedule="cosine", floor=0.1)
    assert factors[4:] == pytest.approx(cosine[4:], **SAME)
    linear = theirs(lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 20), 20)
    assert scales(steps=20, schedule="linear", floor=0.1) == pytest.approx(linear, **SAME)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("cosine_with_restarts", {"num_cycles": 3}),
        ("polynomial", {"power": 2.0, "lr_end": 1e-7}),
        ("inverse_sqrt", {"timescale": 5}),
        ("warmup_stable_decay", {"num_decay_steps": 6}),
        ("constant", {}),
    ],
)
@pytest.mark.parametrize("warmup", [0, 4])
def test_those_of_transformers(name: str, settings: dict[str, Any], warmup: int) -> None:
    without_lr_end = {key: value for key, value in settings.items() if key != "lr_end"}
    factors = scales(
        steps=20, warmup_steps=warmup, schedule=f"transformers:{name}", schedule_settings=settings
    )
    expected = of_transformers(
        name, 20, warmup, **({"lr_end": 1e-9} if "lr_end" in settings else {}), **without_lr_end
    )
    assert factors[warmup:] == pytest.approx(
        expected[warmup:], **SAME
    )  # lr_end is a fraction of the rate, 0.01
    assert factors[:warmup] == [(step + 1) / warmup for step in range(warmup)]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("StepLR", {"step_size": 3, "gamma": 0.5}),
        ("CosineAnnealingLR", {"T_max": 10}),
        ("ExponentialLR", {"gamma": 0.9}),
        ("MultiStepLR", {"milestones": [2, 5], "gamma": 0.1}),
        ("CosineAnnealingWarmRestarts", {"T_0": 4}),
    ],
)
def test_those_of_torch_begin_behind_the_warmup(name: str, settings: dict[str, Any]) -> None:
    expected = theirs(lambda optimizer: getattr(lr_scheduler, name)(optimizer, **settings), 10)
    for warmup in (0, 4):
        factors = scales(
            steps=10 + warmup, warmup_steps=warmup, schedule=f"torch:{name}", schedule_settings=settings
        )
        assert factors[warmup:] == pytest.approx(expected, **SAME)


def test_a_step_of_torchs_by_hand() -> None:
    train_settings = {"schedule": "torch:StepLR", "schedule_settings": {"step_size": 2, "gamma": 0.5}}
    assert scales(steps=7, warmup_steps=2, **train_settings) == [0.5, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25]


def test_ones_own_is_asked_for_the_steps_behind_the_warmup(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def stairs(step, steps, height):\n    return 1 - height * step / steps\n"
    )
    train_settings = {"schedule": "mine:stairs", "schedule_settings": {"height": 0.5}}
    assert scales(tmp_path, steps=4, **train_settings) == [1.0, 0.875, 0.75, 0.625]
    assert scales(tmp_path, steps=5, warmup_steps=1, **train_settings) == [1.0, 1.0, 0.875, 0.75, 0.625]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("transformers:cosine_with_restarts", {"cycles": 2}, "unexpected keyword argument 'cycles'"),
        ("mine:down", {}, "gives the factor -1.0 at step 3; it must be 0 or more"),
        ("mine:dwon", {}, "did you mean mine:down?"),
        ("mine:raises", {}, "ZeroDivisionError"),
    ],
)
def test_one_that_cannot_be_used_is_named(
    name: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    text = "def down(step, steps):\n    return 1.0 - step\ndef raises(step, steps):\n    return 1 / 0\n"
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        scales(tmp_path, steps=5, schedule=name, schedule_settings=settings)
    assert message in str(caught.value)
