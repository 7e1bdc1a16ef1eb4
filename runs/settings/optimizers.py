"""The learning rate over a run (`train.schedule`) and the optimizer (`train.optimizer`), tried before a run
starts."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpobench.runs.settings import plugins
from grpobench.runs.settings.config import TrainConfig
from grpobench.runs.tools.strict import ConfigError, did_you_mean

DECAYS: Mapping[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
}
"""From 1 to 0 as progress goes from 0 to 1; `train.floor` lifts the end."""


Schedule = Callable[[int], float]
"""The factor of the learning rate at step 1, 2, ... It depends on the settings alone: a schedule keeps no
state, and is the same at every resume."""


def schedule(train: TrainConfig, folder: Path | None = None) -> Schedule:
    """The schedule of a run: it rises linearly to 1 over the warm-up, whatever comes then. `folder` is the
    recipe's. Those of torch and transformers are asked for all steps at the start, with an optimizer of their
    own whose rate is 1. Raises ConfigError for one that cannot be made."""
    warmup, after = train.warmup_steps, after_warmup(train, folder)
    return lambda step: step / warmup if step < warmup else after(step)


def after_warmup(train: TrainConfig, folder: Path | None) -> Schedule:
    """The factor of a step behind the warm-up, counted from 1 over the whole run."""
    name, warmup = train.schedule, train.warmup_steps
    if name == "constant":
        return lambda step: 1.0
    if name in DECAYS:
        return decaying(DECAYS[name], train)
    factors = foreign_factors(train, folder)
    for step, factor in enumerate(factors, warmup + 1):
        if not (math.isfinite(factor) and factor >= 0):
            raise ConfigError([f"{name} gives the factor {factor} at step {step}; it must be 0 or more"])
    return lambda step: factors[step - warmup - 1] if step > warmup else 1.0


def decaying(decay: Callable[[float], float], train: TrainConfig) -> Schedule:
    """A decay over the steps behind the warm-up, to `train.floor` of the peak. As transformers counts, the
    first of them has the peak and the last is one short of the end."""
    left = max(1, train.steps - train.warmup_steps)

    def factor(step: int) -> float:
        progress = min(1.0, max(0, step - 1 - train.warmup_steps) / left)
        return train.floor + (1.0 - train.floor) * decay(progress)

    return factor


def foreign_factors(train: TrainConfig, folder: Path | None) -> list[float]:
    """The factors of a schedule of others, for the steps behind the warm-up. Imports torch where it is one of
    torch's or transformers'."""
    library, _, name = train.schedule.partition(":")
    settings, left = dict(train.schedule_settings), max(0, train.steps - train.warmup_steps)
    try:
        if library == "transformers":
            from transformers import SchedulerType, get_scheduler

            demand_schedule(library, name, [kind.value for kind in SchedulerType])
            steps = {"num_warmup_steps": train.warmup_steps, "num_training_steps": train.steps}
            arguments: dict[str, Any] = {**steps, "scheduler_specific_kwargs": settings}
            make = functools.partial(get_scheduler, name, **arguments)
            return stepped(make, train.steps)[train.warmup_steps :]
        if library == "torch":
            from torch.optim import lr_scheduler

            demand_schedule(library, name, [key for key in lr_scheduler.__all__ if key != "LRScheduler"])
            factory: Any = getattr(lr_scheduler, name)
        else:
            factory = plugins.load(train.schedule, folder)
        if isinstance(factory, type):
            return stepped(functools.partial(factory, **settings), left)
        return [float(factory(step, left, **settings)) for step in range(left)]
    except ConfigError as error:
        raise ConfigError(["; ".join(error.faults)]) from None
    except Exception as error:
        raise unusable(train.schedule, settings, error) from error


def demand_schedule(library: str, name: str, valid: Sequence[str]) -> None:
    if name not in valid:
        did = did_you_mean(name, valid, f"it has {', '.join(sorted(valid))}", f"{library}:{{}}")
        raise ConfigError([f"{library} has no schedule {name!r}; {did}"])


def unusable(name: str, settings: Mapping[str, Any], error: Exception) -> ConfigError:
    """What an error of a library or of a user's own file is: a mistake in the recipe either way."""
    options = f" with {dict(settings)}" if settings else ""
    return ConfigError([f"{name}{options} cannot be used: {type(error).__name__}: {error}"])


def stepped(make: Callable[[Any], Any], steps: int) -> list[float]:
    """What a scheduler, made for an optimizer of torch's, makes of a rate of 1 at each step."""
    import torch
    from torch.optim.lr_scheduler import LRScheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    if not isinstance(scheduler, LRScheduler) or "metrics" in inspect.signature(scheduler.step).parameters:
        raise TypeError(f"{type(scheduler).__name__} is no schedule that depends on the step alone")
    rates = []
    for _ in range(steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


ADAMW = "adamw"
"""The default: torch's, fused, with `train.betas` and `train.weight_decay`."""
LIBRARIES = ("torch:", "transformers:", "torchao:", "bitsandbytes:")
"""What begins like a module's name and is a library's own name: its code is pinned by its version."""
MODULES = {"torch": "torch.optim", "torchao": "torchao.optim", "bitsandbytes": "bitsandbytes.optim"}
"""Where libraries keep their optimizers."""
Maker = Callable[[list[Any], float], Any]
"""Makes a torch optimizer of parameters and a learning rate."""


def maker(train: TrainConfig, folder: Path | None = None) -> Maker | None:
    """What makes the optimizer of a role; None for the default. `folder` is the recipe's. Raises ConfigError
    for one that is not there."""
    if train.optimizer == ADAMW:
        return None
    library, _, name = train.optimizer.partition(":")
    if library in MODULES and importlib.util.find_spec(library) is None:
        lack = f"{train.optimizer} is in a package that is not installed: pip install {library}"
        raise ConfigError([lack])
    factory: Any = plugins.load(f"{MODULES.get(library, library)}:{name}", folder)
    settings = dict(train.optimizer_settings)
    return lambda parameters, rate: factory(parameters, lr=rate, **settings)


def faults(train: TrainConfig, folder: Path | None) -> list[str]:
    """Why optimizer and schedule cannot be used as they are set, each with its place. Only those of others
    are tried, for which torch is imported."""
    messages = []
    try:
        schedule(train, folder)
    except ConfigError as error:
        messages += [f"train.schedule: {message}" for message in error.faults]
    try:
        if make := maker(train, folder):
            tried(make, train)
    except ConfigError as error:
        messages += [f"train.optimizer: {message}" for message in error.faults]
    return messages


def tried(make: Maker, train: TrainConfig) -> None:
    """Make one update of a small experiment. Raises ConfigError for what cannot: an optimizer that wants a
    closure or other gradients, settings that do not exist, a state that no checkpoint could hold."""
    import torch

    from grpobench.runs.models.optimizer import Optimizer
    from grpobench.runs.models.stored_weights import StoredWeights

    # Every language model has matrices and, in its norms, vectors; some optimizers take only one of the two,
    # and those of 8 bits keep the state of less than 4,096 weights as it is.
    parameters = {size: torch.nn.Parameter(torch.zeros(size)) for size in ((64, 64), (2,))}
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    try:
        made = make([*parameters.values()], 1e-3)
        if not isinstance(made, torch.optim.Optimizer):
            raise TypeError(f"it is {type(made).__name__}, no torch.optim.Optimizer")
        weights = StoredWeights({str(size): parameter for size, parameter in parameters.items()})
        optimizer = Optimizer(weights, made, 1e-3, 1.0)
        with torch.compiler.set_stance("force_eager"):  # one small update is not worth compiling
            optimizer.update(1.0)
        optimizer.plain()
    except Exception as error:
        raise unusable(train.optimizer, train.optimizer_settings, error) from error


def foreign(train: TrainConfig) -> dict[str, str]:
    """By setting, the optimizer and the schedule of others, but for those of torch and transformers."""
    name_by_setting = {"optimizer": train.optimizer, "schedule": train.schedule}
    return {
        key: name for key, name in name_by_setting.items() if ":" in name and not name.startswith(LIBRARIES)
    }
