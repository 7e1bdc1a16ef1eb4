"""From kept outcomes to scores: gates, ratios inside a seed, ladders, and the tables themselves."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import RATE, rows
from helpers.profiles import probe as helper
from hypothesis import given
from hypothesis import strategies as st

from grpobench.analysis.profile import kept
from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.profile.probe import Probe
from grpobench.analysis.profile.scores import Profile, build
from grpobench.analysis.runfolder.files import LogError
from grpobench.runs.settings.probes import probes as shipped
from grpobench.tasks import TASKS


def probe(name: str, **changes: Any) -> Probe:
    return replace(helper(name), outcome="mean:score/solved", zero=0.125, **changes)


PROBES = {
    "learn": probe("learn"),
    "ladder": probe("ladder", runs="ladder"),
    "offset": probe("offset", against="learn"),
}


def row(algorithm: str, name: str, seed: int, outcome: float, rate: float = 1e-3) -> ProbeOutcome:
    return ProbeOutcome(algorithm, name, rate, math.nan, seed, outcome, "finished", 1.0)


def rows_of(algorithm: str, clean: list[float], dosed: list[float]) -> list[ProbeOutcome]:
    return [row(algorithm, "learn", seed, x) for seed, x in enumerate(clean)] + [
        row(algorithm, "offset", seed, x) for seed, x in enumerate(dosed)
    ]


def test_a_dose_that_changes_nothing_scores_one_in_every_seed() -> None:
    rows = {
        "a": rows_of("a", [0.5, 0.7, 0.9, 0.8], [0.5, 0.7, 0.9, 0.8]),
        "b": rows_of("b", [0.5, 0.6, 0.7, 0.6], [0.3] * 4),
    }
    profile = build(rows, PROBES, {"a": {"policy": 1e-3}, "b": {"policy": 1e-3}})
    assert list(profile.scores["offset"]["a"].values()) == [1.0, 1.0, 1.0, 1.0]
    assert profile.scores["offset"]["b"][0] == pytest.approx(1 - 0.2 / 0.475)
    assert sum(profile.scores["offset"]["b"].values()) / 4 == pytest.approx(0.175 / 0.475)


def test_what_does_not_learn_has_no_robustness() -> None:
    rows = {"idle": rows_of("idle", [0.13, 0.12, 0.14, 0.13], [0.13, 0.12, 0.14, 0.13])}
    profile = build(rows, PROBES, {"idle": {"policy": 1e-3}})
    assert "offset" not in profile.scores
    assert profile.gated["offset"] == {"idle"}
    assert len(profile.scores["learn"]["idle"]) == 4


def test_a_seed_that_happens_not_to_learn_is_divided_by_the_mean() -> None:
    """The clean gains are 0, 1, 1 and 1: their mean is 3/4."""
    rows = {"a": rows_of("a", [0.125, 1.0, 1.0, 1.0], [1.0] * 4)}
    scores = build(rows, PROBES, {"a": {"policy": 1e-3}}).scores["offset"]["a"]
    assert scores == {0: pytest.approx(1 + 4 / 3), 1: 1.0, 2: 1.0, 3: 1.0}


def test_a_ladder_is_the_mean_over_rates_of_seeds_that_have_all() -> None:
    rates = (1e-4, 1e-3, 1e-2)
    rows = [
        row("a", "ladder", seed, 1.0 if rate < 1e-2 else 0.125, rate) for seed in range(4) for rate in rates
    ]
    rows.append(row("a", "ladder", 4, 1.0, 1e-3))
    scores = build({"a": rows}, PROBES, {"a": {"policy": 1e-3}}).scores["ladder"]["a"]
    assert scores == {seed: pytest.approx(2 / 3) for seed in range(4)}


def test_only_runs_at_the_searched_rate_count_and_its_neighbors_are_told() -> None:
    rows = [row("a", "offset", s, x, r) for s in range(4) for r, x in ((3e-4, 0.3), (1e-3, 1.0), (3e-3, 0.2))]
    rows += [row("a", "learn", s, 1.0, r) for s in range(4) for r in (3e-4, 1e-3, 3e-3)]
    profile = build({"a": rows}, PROBES, {"a": {"policy": 1e-3}})
    assert set(profile.scores["offset"]["a"].values()) == {1.0}
    curve = profile.curve("offset", "a")
    assert curve.loss(-1).value == pytest.approx(1 - 0.2) and curve.beside(-1).rate == 3e-4
    assert curve.loss(1).value == pytest.approx(1 - 0.075 / 0.875) and curve.beside(1).rate == 3e-3


def test_rates_are_chosen_by_the_mean_and_the_critic_with_them() -> None:
    rows = [
        ProbeOutcome("a", "learn", r, math.nan, s, x, "finished", 1.0)
        for r, xs in ((1e-3, (0.9, 0.1)), (3e-4, (0.6, 0.6)))
        for s, x in enumerate(xs)
    ]
    assert kept.chosen(rows) == {"a": {"policy": 3e-4}}
    critic = [
        ProbeOutcome("c", "learn", 1e-3, c, 0, x, "finished", 1.0) for c, x in ((1e-3, 0.4), (1e-2, 0.8))
    ]
    assert kept.chosen(critic) == {"c": {"policy": 1e-3, "critic": 1e-2}}
    lost = [
        ProbeOutcome("d", "learn", 1e-3, math.nan, 0, math.nan, "diverged", 1.0),
        ProbeOutcome("d", "learn", 1e-4, math.nan, 0, 0.2, "finished", 1.0),
    ]
    assert kept.chosen(lost)["d"] == {"policy": 1e-4}


names = st.sampled_from(["grpo", "mine:Half", "dr_grpo"])
kept_rows = st.builds(
    ProbeOutcome,
    names,
    st.sampled_from(["learn", "length"]),
    st.sampled_from([1e-4, 3e-4, 1e-3]),
    st.sampled_from([math.nan, 1e-3]),
    st.integers(0, 9),
    st.sampled_from([0.5, 0.25, -1.5, math.nan]),
    st.sampled_from(["finished", "diverged"]),
    st.sampled_from([1.5, 2.0]),
    st.sampled_from([None, "", *kept.FAILURES]),
)


@given(st.lists(kept_rows, max_size=20))
def test_tables_survive_being_written_and_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[ProbeOutcome]
) -> None:
    path = tmp_path_factory.mktemp("kept") / "a.csv"
    once = kept.merge([], rows)
    path.write_text(kept.text_of(once))
    again = kept.read(path)
    assert kept.text_of(again) == kept.text_of(once)
    assert {row.key for row in again} == {row.key for row in rows}


def test_a_damaged_table_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("what,ever\n")
    with pytest.raises(LogError, match="the columns must be"):
        kept.read(path)
    for row in ("grpo,learn,0.001,nan,zero,0.5,finished,1,", "grpo,learn,0.001,nan,0,0.5,finished,1,perhaps"):
        path.write_text(",".join(kept.NAMES) + f"\n{row}\n")
        with pytest.raises(LogError, match=r"a\.csv:2: .*remove the line"):
            kept.read(path)


def test_a_table_from_before_failures_were_recorded_is_read_and_stays_without_them(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",".join(kept.BEFORE_FAILURES) + "\ngrpo,learn,0.001,nan,0,0.5,finished,1.0\n")
    (row,) = kept.read(path)
    assert row.failed is None
    path.write_text(kept.text_of([row]))
    assert kept.read(path)[0].failed is None
    assert path.read_text().endswith(",1.0,?\n")


def test_a_diverged_run_has_the_outcome_of_score_zero() -> None:
    assert kept.outcome_of(PROBES["learn"], [{"score/solved": 0.9}], "diverged") == 0.125


STEPS = [{"score/solved": 0.9, "score/format": 1.0, "policy/entropy": 1.0}] * 10


@pytest.mark.parametrize(
    ("name", "last", "state", "failed"),
    [
        ("learn", {}, "finished", ""),
        ("learn", {"score/format": 0.875}, "finished", ""),  # one letter of eight too many in every answer
        ("learn", {"score/format": 0.75}, "finished", "lost form"),
        ("learn", {"score/format": 0.75}, "diverged", "diverged"),
        ("learn", {"score/solved": math.nan}, "finished", "no number"),
        ("diversity", {"score/solved": 0.1}, "finished", ""),  # never learns: no outcome, and no failure
    ],
)
def test_a_run_fails_if_it_diverges_loses_the_form_or_has_no_number(
    name: str, last: dict[str, float], state: str, failed: str
) -> None:
    steps = [step | last for step in STEPS]
    assert kept.failure_of(shipped()[name], steps, state) == failed


def test_the_form_is_judged_by_the_end_of_the_run() -> None:
    lost = {"score/format": 0.2}
    recovers, ends = [STEPS[0] | lost, *STEPS], [*STEPS * 2, STEPS[0] | lost, STEPS[0] | lost]
    assert kept.failure_of(shipped()["learn"], recovers, "finished") == ""
    assert kept.failure_of(shipped()["learn"], ends, "finished") == "lost form"


def test_every_probe_logs_the_form() -> None:
    for a_probe in shipped().values():
        for task in a_probe.settings.get("tasks", []):
            assert "format" in TASKS[task].scores, a_probe.name


def test_seeds_that_fail_are_counted_and_not_averaged() -> None:
    """Five seeds of .8 and three that fail near .3: the score is .8, not .61 with an interval of ± .2."""
    outcomes = [0.8, 0.3, 0.8, 0.8, 0.2, 0.8, 0.3, 0.8]
    made = made_profile(
        {"a": rows("a", "learn", outcomes, failed=(1, 4, 6)), "b": rows("b", "learn", [0.5] * 8)}
    )
    cell = made.cell("learn", "a")
    assert cell and (cell.mean, cell.seeds) == (pytest.approx(0.8), 5) and cell.high - cell.low < 0.03
    assert made.at_best("learn", "a").failures == "3/8" and made.at_best("learn", "b").failures == "0/8"


def test_old_rows_average_over_all_seeds_and_say_nothing_of_failures() -> None:
    point = made_profile({"a": rows("a", "learn", [0.8, 0.2] * 2, failed=None)}).at_best("learn", "a")
    assert (point.failed, point.failures, point.score.value) == (None, "–", pytest.approx(0.5))


def test_with_too_few_seeds_that_do_not_fail_there_is_a_share_of_failures_and_no_score() -> None:
    made = made_profile({"a": rows("a", "learn", [0.8] * 8, failed=(0, 1, 2, 3, 4))})
    assert made.gated["learn"] == {"a"} and "learn" not in made.scores
    assert made.at_best("learn", "a").failures == "5/8"


def test_a_dose_is_measured_on_seeds_that_fail_neither_with_nor_without_it() -> None:
    """Clean gains of .8 but for a failed seed; under the dose .4, of which another seed fails."""
    a = rows("a", "learn", [0.8] * 5 + [0.1], failed=(5,)) + rows(
        "a", "flips", [0.4] * 5 + [0.0], failed=(0,)
    )
    point = made_profile({"a": a}).at_best("flips", "a")
    assert point.scores == {seed: pytest.approx(0.5) for seed in (1, 2, 3, 4)}
    assert point.failures == "1/6"  # of the dosed runs


def test_a_ladder_counts_runs_as_they_end() -> None:
    a = [row for rate in (1e-4, 1e-3) for row in rows("a", "ladder", [1.0, 0.0], rate, failed=(1,))]
    probes = {"ladder": replace(helper("ladder"), runs="ladder")}
    assert build({"a": a}, probes, {"a": {"policy": 1e-3}}).best.points["ladder"]["a"].scores == {
        0: 1.0,
        1: 0.0,
    }


def made_profile(by_algorithm: dict[str, list[ProbeOutcome]]) -> Profile:
    probes = {name: helper(name, against="learn" if name == "flips" else "") for name in ("learn", "flips")}
    return build(by_algorithm, probes, {name: {"policy": RATE} for name in by_algorithm})
