"""Profiles over learning rates: which runs are made, which are not repeated, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from grpobench.analysis.profile import kept
from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.runs import cli
from grpobench.runs.api import profiles
from grpobench.runs.api.profiles import Profiled, profile
from grpobench.runs.experiment.profiling import ProbeRun, Profiler, write
from grpobench.runs.tools.strict import ConfigError

STEP = {"score/solved": 0.8, "score/format": 1.0, "policy/entropy": 1.0, "time/wall": 2.0}
Call = tuple[str, frozenset[tuple[str, float, int]]]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What would run, as (experiment, {(probe, rate, seed)}): every run ends at once, and those at 6e-3 lose
    the form. Nothing is kept but a search that chose 3e-3 for GRPO and 1e-3 for GSPO."""
    made: list[Call] = []

    def run(_: Profiler, name: str, parts: Sequence[ProbeRun], seeds: Sequence[int]) -> list[ProbeOutcome]:
        made.append((name, frozenset((part.key[0], part.key[1], seed) for part in parts for seed in seeds)))
        return [
            row
            for part in parts
            for seed in seeds
            for row in part.rows(
                seed,
                [STEP | {"score/solved": 0.8 + 0.01 * seed, "score/format": float(part.key[1] != 6e-3)}] * 10,
                "finished",
            )
        ]

    searched = [
        ProbeOutcome(name, "learn", rate, math.nan, 9100, 0.8, "finished", 1.0)
        for name, rate in (("grpo", 3e-3), ("gspo", 1e-3))
    ]
    write(tmp_path / "out/outcomes/search.csv", searched)
    monkeypatch.setattr(Profiler, "run", run)
    monkeypatch.setattr(kept, "shipped", lambda scale="nano": tmp_path / "none")
    monkeypatch.setattr(profiles, "draw", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    return made


def profiled(*algorithms: str, rates: Sequence[float] = (), against: Sequence[str] = ()) -> Profiled:
    return profile(
        algorithms, Path("out"), lambda _: None, seeds=4, probes=["offset"], rates=rates, against=against
    )


def runs(rate: float) -> set[tuple[str, float, int]]:
    return {(probe, rate, seed) for probe in ("learn", "offset") for seed in range(4)}


def test_rates_add_the_neighbors_of_the_best_rate_and_the_common_one(calls: list[Call]) -> None:
    profiled("grpo")
    assert calls == [("profile-grpo", runs(3e-3))]
    ended = profiled("grpo", rates=(0.5, 1, 2))
    assert calls[1:] == [("around-grpo", runs(1.5e-3) | runs(6e-3) | runs(1e-3))]
    assert ended.profile
    curve = ended.profile.curve("offset", "grpo")
    assert [(point.rate, point.failures) for point in curve.points] == [
        (1e-3, "0/4"),
        (1.5e-3, "0/4"),
        (3e-3, "0/4"),
        (6e-3, "4/4"),
    ]
    assert curve.loss(-1).value == pytest.approx(0) and math.isnan(curve.loss(1).value)
    profiled("grpo", rates=(0.5, 1, 2))
    assert len(calls) == 2  # nothing is repeated


def test_where_the_common_rate_is_the_best_one_it_runs_once(calls: list[Call]) -> None:
    profiled("gspo", rates=(0.5, 1, 2))
    assert calls == [("profile-gspo", runs(1e-3)), ("around-gspo", runs(5e-4) | runs(2e-3))]


def test_rows_that_do_not_record_failures_are_run_again_for_curves_alone(calls: list[Call]) -> None:
    profiled("grpo")
    path = Path("out/outcomes/grpo.csv")
    old = [replace(row, failed=None) for row in kept.read(path)]
    path.write_text(kept.text_of(old))
    profiled("grpo")
    assert len(calls) == 1
    profiled("grpo", rates=(1,))
    assert calls[1:] == [("profile-grpo", runs(3e-3)), ("around-grpo", runs(1e-3))]
    assert {row.failed for row in kept.read(path)} == {""}


def test_rungs_of_the_ladder_serve_the_common_rate_too(calls: list[Call]) -> None:
    profile(["grpo"], Path("out"), lambda _: None, seeds=1, probes=["ladder"], rates=(1, 2))
    ladder, beside = calls
    assert {rate for _, rate, _ in ladder[1]} == {3e-4, 1e-3, 3e-3, 1e-2, 3e-2}
    assert beside[1] == {("learn", 6e-3, 0)}


def test_json_has_curves_pairs_and_both_rates(calls: list[Call], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "grpo", "gspo", "--probes", "offset", "--seeds", "4", "--out", "out"]
    assert cli.main([*words, "--rates", "0.5,1,2", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    offset = shown["algorithms"]["grpo"]["probes"]["offset"]
    assert offset["best_rate"] == 3e-3 and offset["at_common"]["rate"] == 1e-3
    assert [point["failed"] for point in offset["points"]] == [[], [], [], [0, 1, 2, 3]]
    assert offset["loss"]["above"] == {"rate": 6e-3, "score": None, "low": None, "high": None}
    assert json.loads(Path("out/grpo/profile.json").read_text()) == shown["algorithms"]["grpo"]
    assert {(pair["first"], pair["second"], pair["probe"]) for pair in shown["pairs"]} >= {
        ("grpo", "gspo", "offset"),
        ("gspo", "grpo", "offset"),
    }
    assert cli.main([*words, "--against", "all"]) == 0
    assert "By score, at least one probe tells grpo from 0 of 1." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rates", "against", "message"),
    [
        ((0.5, 2), (), r"rates: must have 1.*write \[0.5, 1, 2\]"),
        ((1, -2), (), "must be above 0, not -2"),
        ((1, 1.001), (), "apart"),
        ((), ("gpro",), "--against: 'gpro' has no kept runs; did you mean grpo"),
        ((), ("cora",), "--against: 'cora' has no kept runs"),
        ((), ("grpo",), "another one after it"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(
    calls: list[Call], rates: Sequence[float], against: Sequence[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        profiled("grpo", rates=rates, against=against)
    assert not calls
