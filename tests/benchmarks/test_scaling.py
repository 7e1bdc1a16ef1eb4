"""How a step's cost grows: the exponent, the points, and what is made of them."""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from helpers.bench_sides import FACTS, Stub
from rich.console import Console

from grpobench.benchmarks import scaling
from grpobench.benchmarks.bench import show_scaling
from grpobench.benchmarks.cases import Case, quiet
from grpobench.benchmarks.scaling import AXES, BASE, fit
from grpobench.benchmarks.sides import Step, process


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "REST", 0.0)


def test_a_power_law_has_its_exponent_and_no_error() -> None:
    found = fit([1, 2, 4, 8], [3.0, 3 * 2**1.5, 3 * 4**1.5, 3 * 8**1.5])
    assert found.exponent == pytest.approx(1.5)
    assert found.error == pytest.approx(0.0, abs=1e-7)  # float64 logarithms


def test_the_standard_error_is_that_of_least_squares() -> None:
    sizes, costs = [4, 8, 16, 32], [0.11, 0.18, 0.41, 0.73]
    found = fit(sizes, costs)
    (slope, _), covariance = np.polyfit(np.log(sizes), np.log(costs), 1, cov=True)
    assert found.exponent == pytest.approx(slope)
    assert found.error == pytest.approx(math.sqrt(covariance[0, 0]))


def test_two_sizes_leave_no_error_to_tell() -> None:
    assert math.isnan(fit([1, 2], [1.0, 2.0]).error)
    assert scaling.rounded(fit([1, 2], [1.0, 2.0])) == {"exponent": 1.0, "error": None}


def test_axes_double_one_thing_three_times_from_one_base() -> None:
    for name, points in AXES.items():
        assert BASE in points and len(points) == 4
        changed = [{k for k in vars(p) if getattr(p, k) != getattr(BASE, k)} for p in points]
        assert len(set().union(*changed)) == 1, name
    sizes = [point.completions for point in AXES["completions"]]
    assert sizes == [4, 8, 16, 32]


class Costly(Stub):
    """A step takes a millisecond a completion, and .1 GiB beyond the .5 before the model."""

    def step(self) -> Step:
        step = super().step()
        return replace(step, peak_gb=0.6)


class Counted:
    """Starts sides and keeps their cases."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    @contextlib.contextmanager
    def start(self, name: str, case: Case) -> Iterator[Stub]:
        assert name == "ours"
        self.cases.append(case)
        yield Costly(name, case, [case.rows / 1000], [])


def test_points_are_measured_once_and_exponents_are_those_of_costs() -> None:
    started, told = Counted(), list[tuple[str, float]]()
    axes = {
        "completions": [replace(BASE, completions=n) for n in (2, 8, 32)],
        "parameters": [replace(BASE, width=n) for n in (64, 128)],
    }
    found, facts = scaling.scaling(started.start, lambda what, left: told.append((what, left)), axes)
    assert json.loads(json.dumps(found)) == found and facts == FACTS
    assert len(started.cases) == len(told) == 4  # the base once, although both axes have it
    completions, parameters = found["axes"]
    assert [point["size"] for point in completions["points"]] == [2, 8, 32]
    assert [point["seconds"] for point in completions["points"]] == [0.016, 0.064, 0.256]
    assert completions["seconds"] == {"exponent": 1.0, "error": 0.0}
    assert completions["memory"]["exponent"] == 0.0
    assert completions["points"][0]["memory_gb"] == pytest.approx(0.1)
    assert parameters["seconds"] == {"exponent": 0.0, "error": None}
    # Embeddings, per layer four of attention, three of the feed-forward network and two norms, and a norm.
    width = 64
    weights = 2048 * width + 4 * (4 * width**2 + 3 * width * 3 * width + 2 * width) + width
    assert parameters["points"][0]["size"] == weights
    (base,) = [case for case in started.cases if case.group == 8 and "128-2048" in case.model]
    assert len(base.texts) == 8 and {len(text) for text in base.texts} == {16}  # characters are tokens
    assert [what.partition(": ")[0] for what, _ in told] == [f"point {n} of 4" for n in (1, 2, 3, 4)]
    text = io.StringIO()
    show_scaling(found, Console(file=text, width=140))
    assert "1.00 ± 0.00" in text.getvalue() and "0.016 0.064 0.256" in text.getvalue()


@pytest.mark.slow
def test_real_points_cost_something() -> None:
    axes = {"vocabulary": [replace(BASE, prompts=2, completions=2, vocabulary=n) for n in (512, 1024)]}
    found, facts = scaling.scaling(process, quiet, axes)
    (axis,) = found["axes"]
    assert all(point["seconds"] > 0 and point["memory_gb"] > 0 for point in axis["points"])
    assert facts["device"]
