"""`--case scaling`: how the cost of our step grows with the work, along one axis at a time.

Starting from one base, the number of completions per prompt, their length, the vocabulary or the model's
width is doubled (the width is multiplied by about the square root of two, which doubles its weights), while
the rest stays. The models are untrained Llamas like `nano`, with its tokenizer; tokens of a longer vocabulary
have no text. Every point has its own process, so that its peak memory can be measured. Points are measured
in a mixed order, so that a machine that becomes slower or faster does not look like a trend.

The exponent is the slope b of log cost = a + b·log size, by least squares, with its standard error; 1 is
proportional. It holds for the measured sizes: a part of a step that does not grow with an axis (a fixed cost
of every operation, the trunk when the vocabulary grows) makes it less than 1, and attention over more tokens
makes it more. Memory is the peak minus the memory of the libraries before the model was loaded; it includes
weights and optimizer.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from grpobench.benchmarks.cases import UNKNOWN, Case, Tell, counted, warm_up
from grpobench.benchmarks.compare import REST, Facts
from grpobench.benchmarks.sides import MeasuredSide, Start, prompt_texts
from grpobench.tasks.workers.pool import cores

SECONDS: Final = 5.0
"""Seconds for the steps of a point."""
STEPS: Final = 12
"""Maximum number of steps of a point, including the warm-up."""


@dataclass(frozen=True)
class Point:
    """A step that is measured."""

    prompts: int = 8
    prompt_tokens: int = 16
    completions: int = 8
    """Completions of each prompt."""
    completion_tokens: int = 16
    vocabulary: int = 2048
    width: int = 128
    """Width of the model's hidden states."""


BASE: Final = Point()
AXES: Final[Mapping[str, tuple[Point, ...]]] = {
    "completions": tuple(replace(BASE, completions=n) for n in (4, 8, 16, 32)),
    "completion tokens": tuple(replace(BASE, completion_tokens=n) for n in (8, 16, 32, 64)),
    "vocabulary": tuple(replace(BASE, vocabulary=n) for n in (2048, 4096, 8192, 16384)),
    "parameters": tuple(replace(BASE, width=n) for n in (128, 192, 256, 384)),
}


@dataclass(frozen=True)
class Cost:
    """Costs of a point's step."""

    seconds: float
    """Median of the counted steps."""
    memory_gb: float
    counted: int
    """Steps."""


@dataclass(frozen=True)
class Fit:
    """The slope of log cost against log size."""

    exponent: float
    error: float
    """Its standard error; NaN with two points, which fit any line."""


def fit(sizes: Sequence[float], costs: Sequence[float]) -> Fit:
    """Least squares of log cost on log size."""
    from scipy.stats import linregress

    found = linregress([math.log(size) for size in sizes], [math.log(cost) for cost in costs])
    return Fit(float(found.slope), float(found.stderr) if len(sizes) > 2 else math.nan)


def scaling(
    start: Start, tell: Tell, axes: Mapping[str, Sequence[Point]] = AXES
) -> tuple[dict[str, Any], Facts]:
    """Measure every point of the axes once; returns the outcome, and facts about the machine."""
    points = list(dict.fromkeys(point for axis in axes.values() for point in axis))
    random.Random(0).shuffle(points)
    found: dict[Point, Cost] = {}
    sizes: dict[Point, int] = {}
    facts: Facts = {}
    began = time.monotonic()
    with TemporaryDirectory(prefix="grpobench-") as place:
        for number, point in enumerate(points):
            left = (time.monotonic() - began) / number * (len(points) - number) if number else UNKNOWN
            tell(f"point {number + 1} of {len(points)}: {words(point)}", left)
            folder, sizes[point] = model(Path(place), point)
            case = case_of(point, folder)
            with start("ours", case) as side:
                found[point] = cost(case, side)
                facts = dict(side.ready.facts)
    return {"base": asdict(BASE), "axes": [row(name, axes[name], found, sizes) for name in axes]}, facts


def words(point: Point) -> str:
    """What differs from the base."""
    differs = {name: value for name, value in asdict(point).items() if value != getattr(BASE, name)}
    return ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in differs.items()) or "the base"


def case_of(point: Point, folder: Path) -> Case:
    """The point as a case of our side."""
    from grpobench.runs.models.nano import character_tokenizer

    texts = prompt_texts(character_tokenizer().encode, point.prompts, point.prompt_tokens)
    return Case(
        "scaling",
        str(folder),
        point.prompts,
        point.completions,
        point.prompt_tokens,
        point.completion_tokens,
        STEPS,
        cores(),
        texts,
    )


def model(place: Path, point: Point) -> tuple[Path, int]:
    """(the folder of the point's model, created unless it exists, its number of parameters)."""
    import torch
    import transformers

    from grpobench.runs.models.nano import architecture, character_tokenizer

    folder = place / f"{point.width}-{point.vocabulary}"
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = {"hidden_size": point.width, "intermediate_size": 3 * point.width, "vocab_size": point.vocabulary}
    made = architecture("dense", **sizes)
    if not folder.exists():
        made.save_pretrained(folder)
        character_tokenizer().save_pretrained(folder)
    return folder, sum(parameter.numel() for parameter in made.parameters())


def cost(case: Case, side: MeasuredSide) -> Cost:
    """One step after the other, as many as the time allows."""
    steps = [side.step()]
    for _ in range(1, warm_up(steps[0].seconds)):
        steps.append(side.step())
    warm = len(steps)
    for _ in range(counted(steps[-1].seconds, sum(s.seconds for s in steps), case.steps - warm, SECONDS)):
        time.sleep(REST)
        steps.append(side.step())
    seconds = statistics.median(step.seconds for step in steps[warm:])
    return Cost(seconds, max(step.peak_gb for step in steps) - side.ready.before_gb, len(steps) - warm)


def row(
    axis: str, points: Sequence[Point], found: Mapping[Point, Cost], parameters: Mapping[Point, int]
) -> dict[str, Any]:
    """An axis of the outcome."""
    name = axis.replace(" ", "_")
    sizes = [parameters[point] if name == "parameters" else getattr(point, name) for point in points]
    costs = [found[point] for point in points]
    return {
        "axis": axis,
        "points": [
            {
                "size": size,
                "seconds": round(one.seconds, 4),
                "memory_gb": round(one.memory_gb, 4),
                "counted_steps": one.counted,
            }
            for size, one in zip(sizes, costs, strict=True)
        ],
        "seconds": rounded(fit(sizes, [one.seconds for one in costs])),
        "memory": rounded(fit(sizes, [one.memory_gb for one in costs])),
    }


def rounded(found: Fit) -> dict[str, float | None]:
    error = None if math.isnan(found.error) else round(found.error, 3)
    return {"exponent": round(found.exponent, 3), "error": error}
