"""The runs of a profile: what is run, what is kept, and what a second start leaves alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from grpobench.analysis.profile import kept
from grpobench.runs.experiment import profiling
from grpobench.runs.experiment.profiling import Profiler, roles_of, write
from grpobench.runs.settings import probes as files_of_probes
from grpobench.runs.tools.strict import ConfigError

SEARCH = {"rates": [1e-4, 1e-3], "seeds": [1]}


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None) -> Profiler:
    """A profiler whose runs have two steps and whose search has two rates."""
    table: dict[str, Any] = files_of_probes.common() | {"search": SEARCH}
    table["train"] = {"steps": 2, "prompts_per_step": 2, "group_size": 4}
    monkeypatch.setattr(files_of_probes, "common", lambda scale="nano": table)
    monkeypatch.setattr(profiling, "common", lambda scale="nano": table)
    monkeypatch.chdir(tmp_path)
    return Profiler(tmp_path / "profile", tmp_path, workers=1)


def test_the_critic_is_searched_at_the_policys_best_rate(profiler: Profiler) -> None:
    rows = profiler.search("ppo")
    assert {row.probe for row in rows} == {"learn", "ladder", "diversity"}
    pairs = {(row.learning_rate, row.critic_rate) for row in rows if row.probe == "learn"}
    best = kept.chosen([row for row in rows if row.critic_rate == 1e-3])["ppo"]["policy"]
    assert pairs == {(1e-4, 1e-3), (1e-3, 1e-3), (best, 1e-4)}
    assert all(row.seed == 1 and 0 <= row.outcome <= 1 for row in rows if row.probe == "learn")


def test_what_is_kept_is_not_run_again(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"policy": 1e-3}
    parts = profiler.parts_of("grpo", rates, ["learn", "length", "staleness"], ladder=False)
    assert [part.probes[0].name for part in parts] == ["learn", "length", "staleness"]
    rows = profiler.run("profile-grpo", parts, [0])
    assert {(row.probe, row.seed) for row in rows} == {
        (probe.name, 0) for part in parts for probe in part.probes
    }
    write(profiler.out / "grpo.csv", rows)
    before = kept.read(profiler.out / "grpo.csv")
    assert {row.key for row in before} == {row.key for row in rows}
    assert all(0 <= row.outcome <= 1 for row in before if row.probe in ("learn", "staleness"))
    monkeypatch.setattr(profiling, "rows_of", lambda outcome, *_: [run.attempts for run in outcome.runs])
    assert profiler.run("profile-grpo", parts, [0]) == [0, 0, 0]  # no attempt was made
    write(profiler.out / "grpo.csv", rows)
    assert kept.text_of(kept.read(profiler.out / "grpo.csv")) == kept.text_of(before)


def test_a_search_that_was_stopped_chooses_no_rate(
    profiler: Profiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = profiler.search("grpo")
    assert len([row for row in searched if row.probe == "learn"]) == 2
    plain = profiling.run_experiment

    def stopped(*arguments: Any, **more: Any) -> Any:
        return dataclasses.replace(plain(*arguments, **more), code=75)

    monkeypatch.setattr(profiling, "run_experiment", stopped)
    assert profiler.search("grpo") == [] and profiler.stopped


def test_ladders_and_controls_are_arms_of_their_own(profiler: Profiler) -> None:
    parts = profiler.parts_of("grpo", {"policy": 1e-3}, list(profiler.probes))
    rates = [part.rates["policy"] for part in parts if part.probes[0].name == "learn"]
    assert sorted(rates) == [1e-4, 1e-3]
    assert len({part.arm["name"] for part in parts}) == len(parts)
    controls = profiler.control_parts(profiler.probes["placebo"], {"grpo": {"policy": 1e-3}})
    assert [part.algorithm for part in controls] == ["positive", "negative"]
    assert [part.rates["policy"] for part in controls] == [pytest.approx(1e-5), pytest.approx(1e-2)]
    assert not profiler.control_parts(profiler.probes["ladder"], {})


def test_an_algorithm_of_a_file_is_found_and_another_one_named(tmp_path: Path) -> None:
    (tmp_path / "mine_profiled.py").write_text(
        "import dataclasses\nfrom grpobench.algorithms.grpo import GRPO\n\n\n"
        "@dataclasses.dataclass(frozen=True)\nclass Half(GRPO):\n    name = 'half'\n    summary = 'half'\n"
    )
    assert roles_of("mine_profiled:Half", tmp_path) == ("policy",)
    with pytest.raises(ConfigError, match="did you mean"):
        roles_of("grpa", tmp_path)


def test_rates_around_the_searched_one_are_no_rungs_of_the_ladder(profiler: Profiler) -> None:
    """9e-3 is no rate of the search: a seed that has it would have a rung more than the others."""
    for ladder, expected in ((True, True), (False, False)):
        parts = profiler.parts_of("grpo", {"policy": 9e-3}, ["learn", "ladder"], ladder=ladder)
        served = [probe.name for part in parts if part.rates["policy"] == 9e-3 for probe in part.probes]
        assert ("ladder" in served) == expected and "learn" in served


def test_an_algorithm_that_must_know_its_rewards_is_told_their_bounds(profiler: Profiler) -> None:
    """BNPO and NGRPO refuse a reward beyond what they were told; 1.5 is the most that `learn` pays, and
    outliers of 20 go beyond it on both sides."""
    names_by_algorithm = {"bnpo": {"lowest", "highest"}, "negative_grpo": {"max_reward"}, "grpo": set()}
    for algorithm, names in names_by_algorithm.items():
        parts = profiler.parts_of(algorithm, {"policy": 1e-3}, ["learn", "outliers"], ladder=False)
        assert all(set(part.arm.get("settings", {})) == names for part in parts)
    for algorithm in ("bnpo", "negative_grpo"):
        parts = profiler.parts_of(algorithm, {"policy": 1e-3}, ["outliers"], ladder=False)
        assert {row.state for row in profiler.run(f"profile-{algorithm}", parts, [0, 1])} == {"finished"}


def test_a_probe_that_an_algorithm_cannot_run_is_left_out_with_the_reason(profiler: Profiler) -> None:
    """VAPO reads the score `correct` beside the reward, which flips of the reward do not reach."""
    rates = {"policy": 1e-3, "critic": 1e-3}
    profiling.common()["train"]["steps"] = 20  # its critic warms up for ten
    parts = profiler.parts_of("vapo", rates, ["learn", "flips", "offset"], ladder=False)
    fit, refused = profiler.fitting(parts)
    assert [part.probes[0].name for part in fit] == ["learn", "offset"]
    assert list(refused) == ["flips"] and "reward.flip does not reach" in refused["flips"]
    broken = profiler.parts_of("grpo", {"policy": -1.0}, ["learn"], ladder=False)
    with pytest.raises(ConfigError, match="learning_rate"):
        profiler.fitting(broken)


def test_an_algorithm_that_learns_by_noise_makes_one_update_a_step(profiler: Profiler) -> None:
    """A second one would need rollouts from noise around its weights; rollouts of old weights have other
    noise."""
    profiling.common()["train"]["num_minibatches"] = 2
    fit, refused = profiler.fitting(profiler.parts_of("es", {"policy": 1e-2}, ["learn", "staleness"]))
    assert {part.probes[0].name for part in fit} == {"learn"} and list(refused) == ["staleness"]
    assert "sampler.lag" in refused["staleness"]
    rows = profiler.run("profile-es", fit[:1], [0])
    assert {row.state for row in rows} == {"finished"}
    (other,) = profiler.parts_of("grpo", {"policy": 1e-2}, ["learn"], ladder=False)
    assert "num_minibatches" not in other.arm["train"]
