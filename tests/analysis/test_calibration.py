"""How often detectors and verdicts are wrong: the counting, the choice of thresholds, the warning's limit."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest
from helpers.histories import BROKEN, healthy, history
from hypothesis import given, settings
from hypothesis import strategies as st

from grpobench.analysis.calibration import markdown, table
from grpobench.analysis.calibration.scores import Case, DetectorResult, Label, Library, Score, lost, score
from grpobench.analysis.calibration.table import either, goal, same_arm, verdicts
from grpobench.analysis.calibration.thresholds import (
    choose_setting,
    combine_thresholds,
    compute_distance,
    compute_largest_sum,
    draw_block_order,
    meets_goals,
    round_up_quantile,
    select_tried_thresholds,
    set_drift_limit,
)
from grpobench.analysis.detectors.accuracy import AccuracyCollapse
from grpobench.analysis.detectors.history import About, History, Series
from grpobench.analysis.detectors.policy import Drift, cusum
from grpobench.analysis.detectors.reward import RewardCollapse
from grpobench.analysis.record import Provenance, as_text, content_of

LABELS: tuple[Label, ...] = ("must", "may", "never")
OUTCOMES = st.builds(
    DetectorResult,
    label=st.sampled_from(LABELS),
    healthy=st.booleans(),
    detected=st.lists(st.integers(1, 99), max_size=3).map(lambda steps: tuple(sorted(steps))),
    since=st.integers(1, 9),
    lost=st.none() | st.integers(1, 99),
)

# Counting


def test_a_score_by_hand() -> None:
    """Five runs must show it and four do: recall .8. Of four others one shows it: precision 4/5. Two of them
    are healthy and one has two events: one false alarm per healthy run. Found at steps 5, 7, 9 and 11 of a
    fault since step 1: median delay 7. Accuracy was lost in two of the hits, 5 and 9 updates later."""
    must = [DetectorResult("must", False, (step,)) for step in (5, 7, 9, 11)] + [
        DetectorResult("must", False)
    ]
    must[0] = dataclasses.replace(must[0], lost=10)
    must[1] = dataclasses.replace(must[1], lost=16)
    never = [
        DetectorResult("never", True, (3, 8)),
        DetectorResult("never", True),
        DetectorResult("never", False),
    ]
    scores = score([*must, *never, DetectorResult("never", False), DetectorResult("may", False, (2,))])
    assert (scores.hits, scores.must, scores.false, scores.never) == (4, 5, 1, 4)
    assert (scores.recall, scores.precision) == (4 / 5, 4 / 5)
    assert (scores.healthy, scores.alarms, scores.per_healthy) == (2, 2, 1.0)
    assert (scores.delay, scores.lead, scores.leads) == (7.0, 7.0, 2)


@given(st.lists(OUTCOMES, max_size=30))
def test_counts_are_those_of_the_confusion_experiment(outcomes: list[DetectorResult]) -> None:
    scores = score(outcomes)
    expected = {
        (label, fired): sum(
            outcome.label == label and bool(outcome.detected) == fired for outcome in outcomes
        )
        for label, fired in itertools.product(LABELS, (True, False))
    }
    assert (scores.hits, scores.must - scores.hits) == (expected["must", True], expected["must", False])
    assert (scores.false, scores.never - scores.false) == (expected["never", True], expected["never", False])
    alarms = scores.hits + scores.false
    rates = [scores.hits / total if total else math.nan for total in (scores.must, alarms)]
    assert [scores.recall, scores.precision] == pytest.approx(rates, nan_ok=True)


@given(st.lists(OUTCOMES, max_size=20), st.randoms())
def test_a_score_does_not_depend_on_order_nor_on_runs_that_may_show_it(
    outcomes: list[DetectorResult], draw: Random
) -> None:
    shuffled = list(outcomes)
    draw.shuffle(shuffled)
    assert score(shuffled).row() == score(outcomes).row()
    score_row = score([outcome for outcome in outcomes if outcome.label != "may"]).row()
    assert score_row | {"healthy": 0, "per_healthy": 0} == score(outcomes).row() | {
        "healthy": 0,
        "per_healthy": 0,
    }


def test_nothing_to_divide_by_is_told_as_such() -> None:
    row = score([]).row()
    assert {row[name] for name in ("precision", "recall", "per_healthy", "delay", "lead")} == {None}


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ((0.5, 0.9, 0.4, 0.3), 20),  # below half of .9 from step 20 on
        ((0.5, 0.9, 0.4, 0.9), None),  # regained
        ((0.5, 0.9, 0.45, 0.3), 30),  # exactly half is not below
        ((0.6, 0.2, 0.1, 0.0), 10),  # the base was its best
        ((0.0, 0.0, 0.0, 0.0), None),  # nothing to lose
        ((), None),
    ],
)
def test_accuracy_is_lost_from_the_first_evaluation_that_nothing_follows(
    values: Sequence[float], step: int | None
) -> None:
    steps = np.arange(len(values)) * 10
    assert lost(Series("accuracy", steps, np.array(values, dtype=float))) == step


def test_the_published_cliff_is_lost_and_found_at_the_same_evaluation() -> None:
    """.96 to step 225, .74 at 250, .21 at 275: half of .96 is passed at 275, where the detector confirms what
    began at 250."""
    values = [0.96] * 10 + [0.74, 0.21]
    steps = [*range(0, 226, 25), 250, 275]
    rows = [
        {"step": step, "eval/validation/greedy/correct": v} for step, v in zip(steps, values, strict=True)
    ]
    run_history = history(rows, planned=400)
    (event,) = AccuracyCollapse().find(run_history)
    at = lost(run_history.evaluated()[1])
    assert at == 275
    scores = score([DetectorResult("must", False, (event.found,), since=250, lost=at)])
    assert (scores.recall, scores.delay, scores.lead) == (1.0, 25.0, 0.0)


def test_several_detectors_of_a_run_are_one() -> None:
    outcomes = [
        DetectorResult("may", False, (9,)),
        DetectorResult("must", False, (4,)),
        DetectorResult("never", False),
    ]
    assert either(outcomes) == DetectorResult("must", False, (4, 9))
    assert either([outcomes[0], outcomes[2]]).label == "may"


def test_what_is_not_defined_meets_no_goal() -> None:
    assert goal("x", 0.9, 0.9, True)["met"] and goal("x", 0.05, 0.05, False)["met"]
    assert not goal("x", math.nan, 0.9, True)["met"] and not goal("x", math.nan, 0.05, False)["met"]


# Thresholds


def made(precision: tuple[int, int], recall: tuple[int, int], alarms: int = 0) -> Score:
    """Of (hits, alarms) and (hits, runs), with ten healthy runs."""
    hits, raised = precision
    return Score(recall[1], hits, 50, raised - hits, 10, alarms, math.nan, math.nan, 0)


def test_the_default_stays_where_it_meets_the_goals() -> None:
    good, perfect = made((9, 10), (9, 10)), made((10, 10), (10, 10))
    assert meets_goals(good) and meets_goals(perfect)
    assert choose_setting([good, perfect], [0.0, 1.0]) == 0
    assert choose_setting([made((9, 10), (9, 10), alarms=1), good, perfect], [0.0, 2.0, 1.0]) == 2


def test_where_nothing_meets_the_goals_the_best_of_the_worst_is_taken() -> None:
    poor, fair = made((5, 10), (5, 10)), made((8, 10), (8, 10))
    assert choose_setting([poor, fair, fair], [0.0, 2.0, 1.0]) == 2


def test_every_combination_is_tried_once_and_the_default_first() -> None:
    tried = {"least": (0.1, 0.2), "errors": (3.0, 4.0)}
    detectors = list(combine_thresholds(AccuracyCollapse(), tried))
    assert [
        (detector.least, detector.errors) for detector in detectors if isinstance(detector, AccuracyCollapse)
    ] == [
        (0.1, 3.0),
        (0.1, 4.0),
        (0.2, 3.0),
        (0.2, 4.0),
    ]
    assert select_tried_thresholds(detectors[-1], detectors) == {"least": 0.2, "errors": 4.0}
    assert compute_distance(detectors[0], AccuracyCollapse()) == 0
    assert compute_distance(detectors[-1], detectors[0]) == pytest.approx(math.log(2) + math.log(4 / 3))


def test_seeds_are_in_one_half_and_labels_are_what_the_case_says() -> None:
    case = Case("broken", "x", must=("reward_collapse",), may=("drift",))
    library = Library((case,), "healthy")
    assert [library.half(seed) for seed in range(4)] == ["set", "scored", "set", "scored"]
    assert [case.label(kind) for kind in ("reward_collapse", "drift", "kl_blowup")] == list(LABELS)
    assert library.by_arm == {"broken": case}


# The early warning


def stream(values: Sequence[float], planned: int = 0) -> History:
    rows = [{"step": step, "reward/mean": value} for step, value in enumerate(values, 1)]
    return History.of_rows(rows, About(planned=planned or len(values)))


def test_cusum_by_hand() -> None:
    """Forty updates have a baseline of ten: median .5, and no spread, so that a deviation counts as 5 % of
    it, .025. Then −.5 is z = 20 and adds 19.5 a step, and the median itself takes off .5."""
    reward_stream = stream([0.5] * 10 + [0.0] * 2 + [0.5] * 28)
    sums = cusum(reward_stream, reward_stream.updates("reward/mean"), -1.0, 0.5)
    assert sums is not None
    expected = [0.0] * 10 + [19.5, 39.0] + [39.0 - 0.5 * k for k in range(1, 29)]
    np.testing.assert_allclose(sums, expected, rtol=1e-12)
    (event,) = dataclasses.replace(Drift(), limit=20.0).find(reward_stream)
    assert (event.onset, event.found, event.recovered) == (11, 12, None)
    assert not dataclasses.replace(Drift(), limit=39.0).find(reward_stream)


def test_a_warning_is_over_when_the_sum_is_back_at_nought() -> None:
    reward_stream = stream([0.5] * 10 + [0.0] * 2 + [1.0] * 28)  # each takes off 20.5 from 39
    (event,) = Drift().find(reward_stream)
    assert (event.onset, event.found, event.recovered) == (11, 12, 14)


@given(
    st.lists(st.floats(0, 1), min_size=12, max_size=40),
    st.floats(0.0, 2.0),
    st.floats(0.1, 10.0),
)
@settings(max_examples=50)
def test_cusum_is_its_recursion_and_knows_no_unit(values: list[float], slack: float, unit: float) -> None:
    reward_stream = stream(values)
    sums = cusum(reward_stream, reward_stream.updates("reward/mean"), -1.0, slack)
    scaled = stream([unit * value for value in values])
    again = cusum(scaled, scaled.updates("reward/mean"), -1.0, slack)
    assert (sums is None) == (again is None)
    if sums is None or again is None:
        return
    window = reward_stream.window
    median = float(np.median(values[:window]))
    spread = max(1.4826 * float(np.median(np.abs(np.array(values[:window]) - median))), 0.05 * median)
    total = 0.0
    for step, value in enumerate(values, 1):
        total = max(0.0, total + (median - value) / spread - slack) if step > window else 0.0
        assert sums[step - 1] == pytest.approx(total, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(again, sums, rtol=1e-6, atol=1e-6)  # the unit cancels but for rounding


def test_blocks_are_of_steps_that_follow_each_other() -> None:
    order = draw_block_order(40, 8, np.random.default_rng(0))
    assert order.shape == (40,) and set(order) <= set(range(40))
    inside = np.diff(order.reshape(5, 8), axis=1) % 40
    assert (inside == 1).all()
    assert len(draw_block_order(13, 8, np.random.default_rng(0))) == 13


def test_the_limit_is_passed_by_at_most_the_share() -> None:
    highs = np.arange(1.0, 101.0)
    assert round_up_quantile(highs, 0.05) == 95.0
    assert (highs > round_up_quantile(highs, 0.05)).mean() == 0.05
    assert round_up_quantile(np.full(100, 3.14), 0.05) == 3.2  # rounded up


def test_a_limit_set_on_healthy_runs_spares_others_and_finds_a_broken_one() -> None:
    limit = set_drift_limit([history(healthy(seed)) for seed in range(12)], draws=300)
    assert limit.runs == 12 and limit.above <= 3
    others = [compute_largest_sum(history(healthy(seed))) for seed in range(100, 140)]
    assert np.mean([high > limit.limit for high in others]) <= 0.2  # 8 of 40; 5 % is 2 on the mean
    assert compute_largest_sum(history(BROKEN["grader_failure"][0](0))) <= limit.limit
    # The next one is broken before the baseline.
    assert compute_largest_sum(history(BROKEN["reward_collapse"][0](0))) <= limit.limit
    assert compute_largest_sum(history(BROKEN["entropy_explosion"][0](0))) > limit.limit


def test_a_limit_is_the_same_each_time_and_refuses_nothing_to_stand_on() -> None:
    made = [history(healthy(seed)) for seed in range(3)]
    assert set_drift_limit(made, draws=50) == set_drift_limit(made, draws=50)
    # A run with fewer steps is left out.
    assert set_drift_limit([*made, history(healthy(9, steps=60))], draws=50).runs == 3
    with pytest.raises(ValueError, match="healthy runs"):
        set_drift_limit([])


# A/A


def test_the_share_of_false_positives_is_that_of_the_sign_patterns() -> None:
    """Six pairs: only the two patterns of equal signs have p ≤ .05, 2/64, and with distinct values each of
    the drawn differences is as likely to be of either sign."""
    pool = np.random.default_rng(1).normal(size=24)
    same_arm_rates = same_arm(pool, arms=2, seeds=6, comparisons=200)
    assert same_arm_rates.rate == pytest.approx(2 / 64, abs=4 * math.sqrt(2 / 64 * 62 / 64 / 200))


def test_arms_that_differ_are_called_different_and_alike_ones_equivalent() -> None:
    level = 0.9 + 0.0005 * np.arange(8)
    far = level - 0.4
    far[3] += 0.01
    assert verdicts([level, far]) == {(0, 1): "better"}
    assert verdicts([level, level[::-1]]) == {(0, 1): "equivalent"}
    assert verdicts([level, level[::-1], far]) == {(0, 1): "equivalent", (0, 2): "better", (1, 2): "better"}


def test_pool_without_spread_is_equivalent_until_arm_moves_by_margin() -> None:
    """Eight seeds that differ by a tenth of the margin at most: 1/256 is below 5 %. Moved by the margin, the
    differences are about as often above it as below, which no test takes for less than it."""
    same_arm_rates = same_arm(
        0.9 + np.random.default_rng(2).uniform(0, 0.002, size=40), 2, 8, comparisons=100
    )
    assert same_arm_rates.equivalent == 100 - same_arm_rates.false and same_arm_rates.false <= 10
    assert same_arm_rates.wrong_rate <= 0.12  # 5 %, and three standard errors of 100 are .065


# The table


def test_a_table_reads_back_and_shows_every_kind(tmp_path: Path) -> None:
    rows = score([DetectorResult("must", False, (5,)), DetectorResult("never", True)]).row()
    made = Provenance("grpobench calibrate", {"abc": 2}, {"python": ["3.11"]}, ["CPU"], 90)
    content = {
        "pool": "healthy",
        "cases": [
            {"arm": "healthy", "what": "sound", "must": [], "may": [], "runs": {"set": 1, "scored": 1}}
        ],
        "detectors": [
            {
                "kind": RewardCollapse.kind,
                "family": "collapse",
                "meets": True,
                "values": {"left": 0.2},
                "default": {"left": 0.1},
                "tried": 3,
                **dict.fromkeys(("set", "scored", "default_scored"), rows),
            }
        ],
        "warning": {"limit": 12.0, "runs": 5, "draws": 2000, "block": 8, "above": 1},
        "same_arm": [same_arm(np.arange(12.0), 2, 6, comparisons=20).row()],
        "goals": [goal("reward_collapse: recall", 1.0, 0.9, True)],
    }
    path = tmp_path / "calibration.json"
    path.write_text(as_text(content_of(table.NAME, table.NAME, made, content)), encoding="utf-8")
    assert table.read(path) == {"name": table.NAME, **made.plain(), **content}
    text = "\n".join(markdown.as_lines(table.read(path)))
    assert "| reward collapse | `left` 0.2 (set) | 1 of 1 | 1.00 | 0 of 1 | 1.00 | 0.00 | 4 | – |" in text
    assert "h = 12" in text and "| 2 | 6 | 20 |" in text and "wrongly" in text
    assert markdown.render(content, "cases")
