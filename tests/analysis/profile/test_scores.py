"""From kept outcomes to scores: gates, ratios inside a seed, ladders, and the tables themselves."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.analysis.profile import kept
from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.profile.probe import Probe
from grpobench.analysis.profile.scores import build, neighbor
from grpobench.analysis.runfolder.files import LogError


def probe(name: str, **changes: object) -> Probe:
    settings: dict[str, object] = {
        "title": name,
        "mechanism": "",
        "source": "",
        "dose": "",
        "score": "",
        "outcome": "mean:score/solved",
        "zero": 0.125,
        "one": 1.0,
        "rewards": (0.0, 1.5),
        "expect": "",
    }
    return Probe(name, **{**settings, **changes})  # type: ignore[arg-type]


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
    assert profile.below["offset"]["a"] == pytest.approx(0.2)
    assert profile.above["offset"]["a"] == pytest.approx(0.075 / 0.875)
    assert neighbor(rows, 1e-3, -1) == 3e-4
    assert neighbor([], 1e-3, 1) is None


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
    path.write_text(",".join(kept.NAMES) + "\ngrpo,learn,0.001,nan,zero,0.5,finished,1\n")
    with pytest.raises(LogError, match=r"a\.csv:2: .*remove the line"):
        kept.read(path)


def test_a_diverged_run_has_the_outcome_of_score_zero() -> None:
    assert kept.outcome_of(PROBES["learn"], [{"score/solved": 0.9}], "diverged") == 0.125
