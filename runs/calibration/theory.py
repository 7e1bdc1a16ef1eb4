"""Predict what estimators do and measure it, for the whole list or for single algorithms."""

from __future__ import annotations

import contextlib
import platform
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.modifiers import Modifiers
from grpobench.algorithms.returned import ReturnError
from grpobench.analysis.record import Provenance
from grpobench.analysis.theory.comparison import CheckedNumber, Theory, check
from grpobench.analysis.theory.moments import Moments
from grpobench.analysis.theory.predictions import (
    FORMULAS,
    OF_AN_ALGORITHM,
    PREDICTIONS,
    Prediction,
)
from grpobench.analysis.theory.scenarios import SCENARIOS
from grpobench.runs.calibration.batches import demand_enumerable
from grpobench.runs.calibration.measure import enumerated_moments, sampled_updates
from grpobench.runs.runfolder import provenance
from grpobench.runs.settings import plugins, registries
from grpobench.runs.tools import strict
from grpobench.runs.tools.frames import innermost
from grpobench.runs.tools.strict import ConfigError

BATCHES = 400
"""Batches that each prediction is measured on."""
SIZE = 8
"""Rollouts in a group of an algorithm on its own."""
SEED = 0


def theory(
    algorithms: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
    *,
    batches: int = BATCHES,
    seed: int = SEED,
) -> Theory:
    """Predicted numbers beside measured ones: of every prediction, or of these algorithms, each a name or
    ``MODULE:Class`` of a file in the current folder. `tell` hears what is measured. Raises ConfigError for an
    algorithm that is unknown or needs more than rewards, and for one of a file that fails."""
    began = time.monotonic()
    names = dict.fromkeys(algorithms)
    chosen = [p for name in names for p in predictions_of(name)] if names else PREDICTIONS
    numbers: list[CheckedNumber] = []
    for number, prediction in enumerate(chosen):
        tell(f"{prediction.name} on {prediction.scenario}")
        algorithm = algorithm_of(prediction.algorithm, prediction.settings)
        key = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        with blamed(algorithm.inner):
            moments = moments_of(algorithm, prediction)
            numbers += check(prediction, moments, *sampled_updates(algorithm, prediction, batches, key))
    return Theory(numbers, provenance_of(algorithms, batches, seed, time.monotonic() - began))


def predictions_of(name: str) -> list[Prediction]:
    """An algorithm with its defaults on each scenario that it can have."""
    cls = registries.find("algorithm", name, Path.cwd(), "theory").cls
    algorithm = algorithm_of(name, {})
    demand_enumerable(algorithm, name)
    formula = FORMULAS.get(cls.name) if not strict.foreign(cls) else None
    replaces = algorithm.curriculum([{}], 1, 0).attempts > 1
    predictions = []
    for scenario in OF_AN_ALGORITHM:
        several = len(SCENARIOS[scenario].logits) > 1
        if several and replaces:  # another question would take the place of one whose rewards are equal
            continue
        couples = several and formula is not None and formula.telling != "all"
        predictions.append(
            Prediction(name, scenario, name, None if couples else formula, size=SIZE, copies=1)
        )
    return predictions


def algorithm_of(name: str, settings: Mapping[str, Any]) -> Algorithm[Any]:
    """The algorithm with these settings and its own defaults of the section `modify`, as a recipe
    makes it."""
    cls = registries.find("algorithm", name, Path.cwd(), "theory").cls
    try:
        return Modifiers(**cls.modifiers).around(cls(**settings))
    except TypeError as error:
        raise ConfigError([f"theory {name}: {error}; give its settings defaults"]) from None


@contextlib.contextmanager
def blamed(algorithm: Algorithm[Any]) -> Iterator[None]:
    """Errors in it that went through the algorithm's file, if that is another's, name its line. Raises
    ConfigError."""
    try:
        yield
    except ReturnError as error:
        raise ConfigError([str(error)]) from error
    except Exception as error:
        own_files = plugins.files(type(algorithm)) if strict.foreign(type(algorithm)) else []
        frame = innermost(error, own_files)
        if frame is None:
            raise
        raise ConfigError([frame.message]) from error


def moments_of(algorithm: Algorithm[Any], prediction: Prediction) -> Moments:
    """By the formula if there is one, else by the algorithm's code over all groups."""
    if prediction.formula is None:
        return enumerated_moments(algorithm, prediction)
    scenario = SCENARIOS[prediction.scenario]
    return prediction.formula.moments(scenario, prediction.size, prediction.copies, prediction.flips)


def provenance_of(algorithms: Sequence[str], batches: int, seed: int, seconds: float) -> Provenance:
    words = ["grpobench", "theory", *algorithms]
    words += ["--batches", str(batches)] * (batches != BATCHES) + ["--seed", str(seed)] * (seed != SEED)
    commit = provenance.commit()
    name = str(commit.get("commit", "(none)"))[:12] + " and changes" * bool(commit.get("dirty"))
    versions = {key: [value] for key, value in provenance.versions().items() if key in ("python", "torch")}
    return Provenance(shlex.join(words), {name: 1}, versions, [f"CPU {platform.machine()}"], seconds)
