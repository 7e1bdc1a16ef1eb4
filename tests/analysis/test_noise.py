"""A report says which outcome of its runs is quiet, from the spread of paired differences alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.synthetic import Synthetic
from scipy import stats

from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.noise import PART, noise_table, outcome_noise
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.warnings import have_no_room

ACCURACY = {
    "a": (0.60, 0.64, 0.62, 0.70, 0.58, 0.61),
    "b": (0.55, 0.66, 0.60, 0.64, 0.59, 0.50),
    "c": (0.70, 0.71, 0.69, 0.80, 0.66, 0.72),
}


def numbers_of(folder: Path, **changes: object) -> Numbers:
    settings: dict[str, Any] = {"accuracy": lambda arm, task, seed: ACCURACY[arm][seed], **changes}
    made = Synthetic(
        arms=tuple(ACCURACY),
        tasks=("sums",),
        seeds=range(6),
        steps=20,
        every=10,
        gain=dict.fromkeys(ACCURACY, 0.3),
        **settings,
    )
    return Numbers(load(made.write(folder)))


def test_the_deviation_is_pooled_over_pairs_and_seeds_follow_from_it(tmp_path: Path) -> None:
    numbers = numbers_of(tmp_path)
    frame = outcome_noise(numbers.experiment, numbers.runs).set_index("outcome")
    final = frame.loc["final accuracy, greedy"]
    pairs = [
        np.subtract(ACCURACY[first_arm], ACCURACY[second_arm]) for first_arm, second_arm in ("ab", "ac", "bc")
    ]
    deviation = math.sqrt(np.mean([pair.var(ddof=1) for pair in pairs]))
    assert final["deviation"] == pytest.approx(deviation) and (final["pairs"], final["seeds"]) == (3, 6)
    base = numbers.runs["base"].mean()
    gain = np.mean([*ACCURACY.values()]) - base
    assert final["gain"] == pytest.approx(gain) and final["noise"] == pytest.approx(deviation / gain)
    # A t test, corrected by Šidák over three pairs, has 80 % power there; ours is a permutation test.
    needed, level = final["needed"], 1 - 0.95 ** (1 / 3)
    for seeds, least in ((1.25 * needed, True), (0.75 * needed, False)):
        limit = stats.t.ppf(1 - level / 2, seeds - 1)
        power = stats.nct.sf(limit, seeds - 1, PART * gain / deviation * math.sqrt(seeds))
        assert (power > 0.8) == least


def test_other_outcomes_are_those_of_the_logs(tmp_path: Path) -> None:
    numbers = numbers_of(tmp_path)
    frame = outcome_noise(numbers.experiment, numbers.runs).set_index("outcome")
    verdicts = numbers.experiment.select("score/correct").groupby(["arm", "seed"], observed=True)["value"]
    mean = verdicts.mean().unstack("seed")
    pairs = [mean.loc[first_arm] - mean.loc[second_arm] for first_arm, second_arm in ("ab", "ac", "bc")]
    expected = math.sqrt(np.mean([pair.var() for pair in pairs]))
    assert frame.loc["verdicts on rollouts, mean over training", "deviation"] == pytest.approx(expected)
    first = verdicts.first().unstack("seed")
    gain = float((mean - first).to_numpy().mean())
    assert frame.loc["verdicts on rollouts, mean over training", "gain"] == pytest.approx(gain)
    assert "final accuracy, sampled" in frame.index


def test_runs_that_failed_do_not_count_and_two_seeds_say_nothing(tmp_path: Path) -> None:
    states = {("a", "sums", seed): ("diverged", 10) for seed in (0, 1)}
    numbers = numbers_of(tmp_path / "one", states=states)
    frame = outcome_noise(numbers.experiment, numbers.runs).set_index("outcome")
    pairs = [np.subtract(ACCURACY["a"][2:], ACCURACY[second_arm][2:]) for second_arm in "bc"]
    pairs.append(np.subtract(ACCURACY["b"], ACCURACY["c"]))
    expected = math.sqrt(np.mean([pair.var(ddof=1) for pair in pairs]))
    assert frame.loc["final accuracy, greedy", "deviation"] == pytest.approx(expected)
    states = {(arm, "sums", seed): ("diverged", 10) for arm in "abc" for seed in range(4)}
    numbers = numbers_of(tmp_path / "two", states=states)
    assert not noise_table(numbers.experiment, numbers.runs).rows


def test_equal_arms_count_in_the_mean_and_no_gain_needs_endless_seeds(tmp_path: Path) -> None:
    """The pair a − b differs by the same in every seed; c ends lower than it began."""
    base = numbers_of(tmp_path / "first").runs["base"].iloc[0]
    noise = (0.02, -0.02, 0.01, -0.01, 0.03, -0.03)
    values = {"a": [base] * 6, "b": [base] * 6, "c": [base - 0.1 + x for x in noise]}
    made = Synthetic(
        arms=("a", "b", "c"),
        tasks=("sums",),
        seeds=range(6),
        steps=20,
        every=10,
        gain=dict.fromkeys("abc", 0.0),
        accuracy=lambda arm, task, seed: values[arm][seed],
    )
    numbers = Numbers(load(made.write(tmp_path / "second")))
    final = outcome_noise(numbers.experiment, numbers.runs).set_index("outcome").loc["final accuracy, greedy"]
    assert final["deviation"] == pytest.approx(math.sqrt(2 / 3 * np.var(noise, ddof=1)), rel=0.05)
    assert final["pairs"] == 3
    assert final["gain"] < 0 and math.isinf(final["needed"]) and math.isinf(final["noise"])


def test_an_outcome_that_is_quiet_for_want_of_room_gets_no_number_of_seeds(tmp_path: Path) -> None:
    """All arms end within a point of 99 %: few seeds would find a difference that cannot be there."""
    numbers = numbers_of(tmp_path, accuracy=lambda arm, task, seed: 0.98 + ACCURACY[arm][seed] / 50)
    frame = outcome_noise(numbers.experiment, numbers.runs).set_index("outcome")
    assert frame.loc["final accuracy, greedy", "saturated"]
    assert not frame.loc["verdicts on rollouts, mean over training", "saturated"]
    seeds = {row[1]: row[-1] for row in noise_table(numbers.experiment, numbers.runs).rows}
    assert seeds["final accuracy, greedy"] == "no room"
    assert seeds["verdicts on rollouts, mean over training"] != "no room"


def test_arms_at_opposite_ends_have_room() -> None:
    assert have_no_room([0.99, 0.98]) and have_no_room([0.0, 0.02])
    assert not have_no_room([0.99, 0.01]) and not have_no_room([0.99, 0.9])


def test_the_table_shows_no_difference_between_arms(tmp_path: Path) -> None:
    numbers = numbers_of(tmp_path)
    table = noise_table(numbers.experiment, numbers.runs)
    assert not {"a", "b", "c"} & {cell for row in table.rows for cell in row}
    assert table.rows[0][:4] == ["sums", "final accuracy, greedy", "3", "6"]
