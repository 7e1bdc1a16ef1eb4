"""What makes the updates: `train.optimiser` as the function that makes one, tried out before a run starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpobench.runs.settings import doors, schedules
from grpobench.runs.settings.config import TrainConfig
from grpobench.runs.tools.strict import ConfigError

ADAMW = "adamw"
"""The default: torch's, fused, with `train.betas` and `train.weight_decay`."""
LIBRARIES = ("torch:", "transformers:")
"""What begins like a module's name and is a library's own name: its code is pinned by its version."""
Maker = Callable[[list[Any], float], Any]
"""Makes a torch optimiser of parameters and a learning rate."""


def maker(train: TrainConfig, folder: Path | None = None) -> Maker | None:
    """What makes the optimiser of a role; None for the default. `folder` is the recipe's. Raises ConfigError
    for one that is not there."""
    if train.optimiser == ADAMW:
        return None
    found: Any = doors.load(train.optimiser.replace("torch:", "torch.optim:", 1), folder)
    settings = dict(train.optimiser_settings)
    return lambda parameters, rate: found(parameters, lr=rate, **settings)


def faults(train: TrainConfig, folder: Path | None) -> list[str]:
    """Why optimiser and schedule cannot be used as they are set, each with its place. Only those of others
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
        found += [f"train.optimiser: {one}" for one in error.faults]
    return found


def tried(make: Maker, train: TrainConfig) -> None:
    """Make one update of a small matrix. Raises ConfigError for what cannot: an optimiser that wants a
    closure or other gradients, settings that do not exist, a state that no checkpoint could hold."""
    import torch

    from grpobench.runs.models.optimiser import Optimiser

    # Every language model has matrices and, in its norms, vectors; some optimisers take only one of the two.
    parameters = {size: torch.nn.Parameter(torch.zeros(size)) for size in ((2, 2), (2,))}
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    try:
        made = make([*parameters.values()], 1e-3)
        if not isinstance(made, torch.optim.Optimizer):
            raise TypeError(f"it is {type(made).__name__}, no torch.optim.Optimizer")
        own = Optimiser({str(size): one for size, one in parameters.items()}, made, 1e-3, 1.0)
        own.update(1.0)
        own.plain()
    except Exception as error:  # of a library or of a user's own file: a mistake in the recipe either way
        given = f" with {dict(train.optimiser_settings)}" if train.optimiser_settings else ""
        why = f"{train.optimiser}{given} cannot be used: {type(error).__name__}: {error}"
        raise ConfigError([why]) from error


def foreign(train: TrainConfig) -> dict[str, str]:
    """By setting, the optimiser and the schedule of others, but for those of torch and transformers."""
    named = {"optimiser": train.optimiser, "schedule": train.schedule}
    return {key: name for key, name in named.items() if ":" in name and not name.startswith(LIBRARIES)}
