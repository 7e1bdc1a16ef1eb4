"""Peak memory of training steps on the device, and what the memory plan foretold of them."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import torch

from grpobench.benchmarks.gpu.equality import REAL, batch_of, load_or_skip, present, prompts
from grpobench.benchmarks.gpu.rows import Outcome, Report, judged, measured
from grpobench.benchmarks.memory_peaks import compare_plans
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.tools.machine import read_peak_memory_gb, reset_peak_memory

TOKENS = {True: (64, 128), False: (1024, 4096, 16384)}
"""Packed tokens of a micro-batch, by `Report.small`."""
COMPLETION = 60
CLOSE = {"cuda": (0.9, 1.1), "cpu": (0.8, 1.5)}
"""Least and largest plan ÷ peak, by device. A plan that says too little lets a run begin that does not fit.
On a GPU runs are refused by the plan, and torch counts every allocation. On a CPU nothing is refused, and
this part is only tried: its bounds find gross errors, and the test suite holds the plan to 6 %."""


def memory(report: Report) -> None:
    """The plan of whole steps; the peak of a forward and backward pass and an update, by tokens at once."""
    names = present(report, ("nano", REAL))
    for name in names:
        plans(report, name)
    for name, dtype in (("nano", "float32"), (REAL, "float32"), (REAL, "bfloat16")):
        for tokens in TOKENS[report.small] if name in names else ():
            label = f"{name} {dtype}, {tokens:,} tokens at once"
            report.attempt(label, partial(update, name, dtype, tokens))


def plans(report: Report, name: str) -> None:
    """A row for each case of a model."""
    comparisons: dict[str, Any] = {}

    def compared() -> Outcome:
        release()
        comparisons.update(compare_plans(name))
        return judged(bool(comparisons), f"{len(comparisons)} cases")

    report.attempt(f"{name}: memory plan against peaks", compared)
    low, high = CLOSE[report.device]
    for case, comparison in comparisons.items():
        ratios = ", ".join(f"{peak.phase} {peak.ratio:.2f}" for peak in comparison.peaks)
        largest = comparison.largest
        message = f"planned {largest.planned / 2**30:.2f}, measured {largest.measured / 2**30:.2f} GiB"
        message = f"{message}: plan ÷ peak {largest.ratio:.2f}, {low} to {high} allowed; by phase {ratios}"
        report.add(f"{name}: {case}", judged(low <= largest.ratio <= high, message), 0.0)


def update(name: str, dtype: str, tokens: int) -> Outcome:
    """One update of the policy over as many tokens in one micro-batch."""
    import numpy as np

    release()
    loaded = load_or_skip(name)
    models = RoleModels(loaded.model, ("policy",), dtype=dtype, budget=10 * tokens)
    models.optimize({"policy": 1e-6}, (0.9, 0.95), 0.0, 1.0)
    rng = np.random.default_rng(0)
    rollouts = [
        Rollout(
            prompts(loaded)[number % 4],
            tuple(int(token) for token in rng.integers(5, 50, COMPLETION)),
            np.zeros(COMPLETION, dtype=np.float32),
            True,
        )
        for number in range(max(4, tokens // COMPLETION))
    ]
    batch = batch_of(rollouts, loaded, str(models.device))
    weight_count = sum(p.numel() for p in models.language.parameters())
    before = read_peak_memory_gb()
    for _ in range(2):  # the optimizer's moments exist from the second update on
        reset_peak_memory()
        loss = -models.forward_train(("policy",), batch)["policy"].logp.mean()
        loss.backward()
        models.step(("policy",), 1.0)
    peak = read_peak_memory_gb()
    return measured(
        f"peak {peak:.2f} GiB ({before:.2f} before the first), {weight_count / 1e6:.1f} M weights"
    )


def release() -> None:
    """Free what earlier checks held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    reset_peak_memory()
