"""Made-up runs that are healthy or broken in one known way, as the detectors read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from grpobench.analysis.detectors.history import About, Answers, History

STEPS, EVERY, PROBLEMS = 200, 10, 128
Row = dict[str, Any]


def noise(rng: np.random.Generator, steps: int, spread: float, lag: float = 0.6) -> np.ndarray:
    """Autocorrelated noise of the given standard deviation, (steps + 1,)."""
    series = np.zeros(steps + 1)
    shocks = rng.standard_normal(steps + 1) * spread * np.sqrt(1 - lag**2)
    for step in range(1, steps + 1):
        series[step] = lag * series[step - 1] + shocks[step]
    return series


def healthy(seed: int, steps: int = STEPS) -> list[Row]:
    """A run that learns, with noise of the size and the persistence that small runs show."""
    rng = np.random.default_rng(seed)
    noises = {name: noise(rng, steps, 1.0) for name in ("reward", "entropy", "norm", "length", "gap", "kl")}
    rows: list[Row] = []
    for step in range(steps + 1):
        learned = 1 - np.exp(-3 * step / steps)
        level = 0.4 + 0.4 * learned
        row: Row = {"step": step}
        if step:
            reward = float(np.clip(level + 0.04 * noises["reward"][step], 0, 1))
            row |= {
                "reward/mean": reward,
                "reward/std": 0.45,
                "score/correct": reward,
                "policy/entropy": float((1.0 - 0.5 * learned) * np.exp(0.1 * noises["entropy"][step])),
                "trained/kl_old": float(abs(2e-3 * noises["kl"][step])),
                "policy/kl_reference_k3": 1e-3 * step,
                "grad_norm/policy": float(0.5 * np.exp(0.06 * noises["norm"][step])),
                "grad/nonfinite": 0.0,
                "length/mean": float(30 * np.exp(0.05 * noises["length"][step])),
                "length/truncated": 0.02,
                "diversity/repetition": 0.05,
                "outcome/unparsable": 0.03,
                "outcome/infra_error": 0.0,
                "groups/sampled": 16.0,
                "groups/zero_signal": float(np.clip(0.3 + 0.3 * learned, 0, 1)),
                "critic/explained_variance": float(0.4 * learned + 0.02 * noises["gap"][step]),
                "gap/k3": float(1e-5 * np.exp(0.3 * noises["gap"][step])),
                "gap/sync": 1e-5,
            }
        if step % EVERY == 0:
            row["eval/validation/greedy/correct"] = float(rng.binomial(PROBLEMS, level) / PROBLEMS)
        rows.append(row)
    return rows


def constant(steps: int = 40) -> list[Row]:
    """A healthy run in which nothing moves."""
    first = next(row for row in healthy(0, 40) if row["step"] == 20)
    values = {name: value for name, value in first.items() if name != "step"}
    return [{"step": step, **values} for step in range(steps + 1)]


def since(change: Mapping[str, Any], onset: int, seed: int = 0) -> list[Row]:
    """A healthy run in which some metrics change at a step: to a number, or by a function of (value, steps
    since)."""
    rows = healthy(seed)
    for row in rows:
        for name, new in change.items():
            if name in row and row["step"] >= onset:
                row[name] = new(row[name], row["step"] - onset) if callable(new) else new
    return rows


def fading(least: float) -> Callable[[float, int], float]:
    """What falls to `least` of itself within twenty steps."""
    return lambda value, steps: value * max(least, 1 - steps / 20)


def hacked(seed: int = 0) -> list[Row]:
    """Reward without the verdict that it stands for."""
    rng = np.random.default_rng([seed, 1])
    rows = healthy(seed)
    for row in rows:
        for name in ("score/correct", "eval/validation/greedy/correct"):
            if name in row:
                row[name] = float(np.clip(0.5 - 0.0005 * row["step"] + 0.03 * rng.standard_normal(), 0, 1))
    return rows


def second_step(seed: int = 0) -> list[Row]:
    """A reward that is there in the first step and never again."""
    return since({"reward/mean": 0.0, "score/correct": 0.0, "groups/zero_signal": 1.0}, 2, seed)


def spiking(seed: int = 0) -> list[Row]:
    """A norm ten times as large in every fifth step from the 100th on."""
    return since({"grad_norm/policy": lambda value, steps: value * (1 if steps % 5 else 10)}, 100, seed)


ONSET = 100
BROKEN: Mapping[str, tuple[Callable[[int], list[Row]], int]] = {
    "accuracy_collapse": (
        lambda seed: since({"eval/validation/greedy/correct": fading(0.2)}, ONSET, seed),
        ONSET,
    ),
    "reward_collapse": (second_step, 2),
    "entropy_collapse": (lambda seed: since({"policy/entropy": fading(0.01)}, ONSET, seed), ONSET),
    "entropy_explosion": (lambda seed: since({"policy/entropy": 5.0}, ONSET, seed), ONSET),
    "kl_blowup": (
        lambda seed: since({"policy/kl_reference_k3": lambda value, n: value * 1.3**n}, ONSET, seed),
        ONSET,
    ),
    "gradient_instability": (spiking, ONSET),
    "length_shift": (lambda seed: since({"length/mean": lambda v, _: 3 * v}, ONSET, seed), ONSET),
    "degeneration": (lambda seed: since({"diversity/repetition": 0.5}, ONSET, seed), ONSET),
    "reward_hacking": (hacked, EVERY * 4),
    "signal_starvation": (second_step, 2),
    "signal_saturation": (
        lambda seed: since({"groups/zero_signal": 0.97, "score/correct": 0.99}, ONSET, seed),
        ONSET,
    ),
    "critic_failure": (lambda seed: since({"critic/explained_variance": -100.0}, ONSET, seed), ONSET),
    "sampler_gap": (lambda seed: since({"gap/k3": 0.05}, ONSET, seed), ONSET),
    "drift": (lambda seed: since({"score/correct": lambda v, n: max(0.0, v - 0.02 * n)}, ONSET, seed), ONSET),
    "grader_failure": (lambda seed: since({"outcome/infra_error": 0.4}, ONSET, seed), ONSET),
    "grader_silent": (lambda seed: since({"reward/mean": 0.0, "score/correct": 0.0}, 1, seed), 1),
    "all_truncated": (lambda seed: since({"length/truncated": 1.0}, ONSET, seed), ONSET),
    "stale_weights": (lambda seed: since({"gap/sync": 2.0}, ONSET, seed), ONSET),
}
"""Kind of event -> (a run that has it, by seed; the step at which it begins)."""


def history(rows: list[Row], **about: int) -> History:
    """As a run of 200 updates with 128 validation problems and groups of 8, where nothing else is said."""
    defaults = {
        "planned": max(row["step"] for row in rows),
        "problems": PROBLEMS,
        "group": 8,
    }
    return History.of_rows(rows, About(**(defaults | about)))


def answered(accuracy: Mapping[int, float], problems: int = 100) -> Callable[[str, str], Answers]:
    """The first problems are right and the others wrong, one sample each: step -> share that is right."""
    answers = {
        step: {f"p{i}": [float(i < round(share * problems))] for i in range(problems)}
        for step, share in accuracy.items()
    }
    return lambda split, mode: answers
