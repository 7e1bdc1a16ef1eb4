"""The memory plan against the peaks of real steps."""

from __future__ import annotations

import gc
import io
from typing import Any

import pytest
import torch
from rich.console import Console

from grpobench.benchmarks import memory_peaks
from grpobench.benchmarks.memory_peaks import Peak, PeakComparison, held_bytes, plan_against_peak
from grpobench.runs.models.memory_plan import MemoryPlan
from grpobench.runs.models.model_files import missing
from grpobench.runs.settings.recipe import read_recipe

TOLERANCE = 0.06
"""Relative. The plan leaves out tensors of a few numbers a token (positions, log-probabilities, masks of
rows) and takes each phase at its largest moment, of which some parts never meet."""
CASES = {
    "short prompts": (16, ("sampler.max_completion_tokens=24",)),
    "long prompts, a reference, small micro-batches": (
        80,
        ("sampler.max_completion_tokens=8", "algorithm.beta=0.04", "train.micro_batch_tokens=512"),
    ),
    "a teacher's divergence": (
        16,
        ("arms=gkd", "model.teacher=nano", "sampler.max_completion_tokens=24"),
    ),
}


@pytest.fixture(autouse=True)
def others() -> None:
    """What other tests have left is in neither peak, and need not be searched for tensors a dozen times."""
    gc.collect()
    gc.freeze()


def compared(model: str, prompt: int, *sets: str) -> PeakComparison:
    torch.manual_seed(0)
    chosen = ("arms=grpo", "tasks=arithmetic", f"model.name={model}", "train.num_minibatches=1")
    return plan_against_peak(read_recipe("quickstart", [*chosen, *sets]).runs()[0], prompt)


@pytest.mark.parametrize("name", CASES)
def test_the_plan_of_the_built_in_policy_is_what_its_steps_take(name: str) -> None:
    prompt, sets = CASES[name]
    comparison = compared("nano", prompt, "train.prompts_per_step=4", "train.group_size=4", *sets)
    assert [peak.phase for peak in comparison.peaks] == ["sampling", "scoring", "training"]
    assert {peak.phase: peak.ratio for peak in comparison.peaks} == {
        peak.phase: pytest.approx(1, abs=TOLERANCE) for peak in comparison.peaks
    }
    assert comparison.largest.ratio == pytest.approx(1, abs=TOLERANCE)


@pytest.mark.slow
def test_the_plan_of_smollm2_is_what_its_steps_take() -> None:
    if why := missing("smollm2-135m"):
        pytest.skip(why)
    work = ("sampler.max_completion_tokens=8", "train.prompts_per_step=1", "train.group_size=4")
    comparison = compared("smollm2-135m", 100, *work)
    assert comparison.largest.phase == "training"
    assert comparison.largest.ratio == pytest.approx(1, abs=TOLERANCE)


# What measures


def test_a_peak_is_what_was_there_and_what_was_allocated_at_once() -> None:
    """4 MB stay, and of three times 8 MB two are there together."""
    lasting = torch.zeros(2**20)
    gc.collect()
    peak_by_phase: dict[Any, int] = {}
    before = held_bytes(False)
    with memory_peaks.peak("training", peak_by_phase):
        first = torch.zeros(2**21)
        second = torch.zeros(2**21)
        del first, second
        third = torch.zeros(2**21)
        del third
    assert peak_by_phase["training"] == before + 2 * 2**23
    assert lasting.numel() == 2**20


def test_tensors_that_share_their_memory_count_once() -> None:
    before = held_bytes(False)
    storage = torch.zeros(2**20)
    views = [storage[:10], storage.view(2, -1)]
    assert held_bytes(False) - before == 2**22 and len(views) == 2


def test_the_table_has_a_row_for_each_case_and_the_largest_phase() -> None:
    peaks = (Peak("sampling", 2**21, 2**20), Peak("training", 3 * 2**30, 4 * 2**30))
    comparison = PeakComparison("nano", "cpu", MemoryPlan(()), peaks)
    assert comparison.row()["peak"] == {"planned": 3 * 2**30, "measured": 4 * 2**30, "ratio": 0.75}
    text = io.StringIO()
    memory_peaks.show("nano", {"short": comparison}, Console(file=text, width=120))
    assert text.getvalue().splitlines()[1].split() == [
        "short",
        "3.0",
        "GiB",
        "4.0",
        "GiB",
        "0.750",
        "2.000",
        "0.750",
    ]


def test_cases_of_a_model_are_runs_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name: config for name, config, _ in memory_peaks.cases("nano")}
    assert list(names)[:2] == ["short", "short, reference"]
    assert names["short, critic"].algorithm.trained_roles == ("policy", "critic")
    assert {config.model.name for config in names.values()} == {"nano"}
    monkeypatch.setattr("grpobench.benchmarks.cases.SMALL", ())  # as for large models
    names = ["long", *(f"long, {variant}" for variant in memory_peaks.OF_LARGE if variant)]
    assert [name for name, *_ in memory_peaks.cases("nano")] == names
