"""What makes the updates: `train.optimizer` as the function that makes one, tried out before a run starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpobench.runs.settings import plugins, schedules
from grpobench.runs.settings.config import TrainConfig
from grpobench.runs.tools.strict import ConfigError

ADAMW = "adamw"
"""The default: torch's, fused, with `train.betas` and `train.weight_decay`."""
LIBRARIES = ("torch:", "transformers:")
"""What begins like a module's name and is a library's own name: its code is pinned by its version."""
Maker = Callable[[list[Any], float], Any]
"""Makes a torch optimizer of parameters and a learning rate."""


def maker(train: TrainConfig, folder: Path | None = None) -> Maker | None:
    """What makes the optimizer of a role; None for the default. `folder` is the recipe's. Raises ConfigError
    for one that is not there."""
    if train.optimizer == ADAMW:
        return None
    found: Any = plugins.load(train.optimizer.replace("torch:", "torch.optim:", 1), folder)
    settings = dict(train.optimizer_settings)
    return lambda parameters, rate: found(parameters, lr=rate, **settings)


def faults(train: TrainConfig, folder: Path | None) -> list[str]:
    """Why optimizer and schedule cannot be used as they are set, each with its place. Only those of others
    are tried, for which torch is imported."""
    found = []
    try:
        schedules.schedule(train, folder)
    except ConfigError as error:
        found += [f"train.schedule: {one}" for one in error.faults]
    try:
        if make := maker(train, folder):
            tried(make, train)
    except ConfigError as error:
        found += [f"train.optimizer: {one}" for one in error.faults]
    return found


def tried(make: Maker, train: TrainConfig) -> None:
    """Make one update of a small experiment. Raises ConfigError for what cannot: an optimizer that wants a
    closure or other gradients, settings that do not exist, a state that no checkpoint could hold."""
    import torch

    from grpobench.runs.models.optimizer import Optimizer

    # Every language model has experiments and, in its norms, vectors; some optimizers take only one of the
    # two.
    parameters = {size: torch.nn.Parameter(torch.zeros(size)) for size in ((2, 2), (2,))}
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    try:
        made = make([*parameters.values()], 1e-3)
        if not isinstance(made, torch.optim.Optimizer):
            raise TypeError(f"it is {type(made).__name__}, no torch.optim.Optimizer")
        own = Optimizer({str(size): one for size, one in parameters.items()}, made, 1e-3, 1.0)
        own.update(1.0)
        own.plain()
    except Exception as error:  # of a library or of a user's own file: a mistake in the recipe either way
        given = f" with {dict(train.optimizer_settings)}" if train.optimizer_settings else ""
        why = f"{train.optimizer}{given} cannot be used: {type(error).__name__}: {error}"
        raise ConfigError([why]) from error


def foreign(train: TrainConfig) -> dict[str, str]:
    """By setting, the optimizer and the schedule of others, but for those of torch and transformers."""
    named = {"optimizer": train.optimizer, "schedule": train.schedule}
    return {key: name for key, name in named.items() if ":" in name and not name.startswith(LIBRARIES)}
