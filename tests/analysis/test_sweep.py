"""The map: outcomes of runs over sweep values, and the largest sweep value that an arm bears."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.edits import edit
from helpers.pages import drawing
from helpers.synthetic import Synthetic
from hypothesis import given
from hypothesis import strategies as st

from grpobench.analysis.checks.alarms import find_alarms
from grpobench.analysis.figures.style import TEXT
from grpobench.analysis.kept import keep, read
from grpobench.analysis.kept_tables import render
from grpobench.analysis.record import as_text
from grpobench.analysis.report.facts import gather
from grpobench.analysis.report.headline import describe_headline
from grpobench.analysis.report.report import write_report
from grpobench.analysis.report.text import describe_frontiers, describe_head, describe_subtitle
from grpobench.analysis.runfolder.experiment import Experiment, SweepPoint
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.statistics.intervals import Estimate
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.parts import Shown
from grpobench.analysis.topics.stability import panels_of
from grpobench.analysis.topics.sweep import (
    SweepAxes,
    SweepCell,
    axes_of,
    classify_runs,
    draw_map,
    exact_share,
    find_frontiers,
    group_cells,
    quantile_ranks,
    tolerances,
)

RATES, LEVELS, SEEDS = (1e-4, 2e-4, 4e-4), (1, 8), (1, 2, 3)
BEARS = {"grpo": 1e-4, "gspo": 2e-4, "dpo": 4e-4}
"""What two of three seeds bear at one minibatch; the third bears half of it, and at eight all do."""


def bears(arm: str, level: int, seed: int) -> float:
    return BEARS[arm] / (2 if seed == 3 or level == 8 else 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map of made-up runs: above what it bears a run falls; below it gains what the sweep value
    promises."""
    sweep_values = {
        f"{arm}-{index}-{level}": {
            "arm": arm,
            "values": {"train.learning_rate": rate, "train.num_minibatches": level},
        }
        for arm in BEARS
        for index, rate in enumerate(RATES)
        for level in LEVELS
    }
    values = {name: (point["arm"], *point["values"].values()) for name, point in sweep_values.items()}
    root = Synthetic(
        arms=tuple(sweep_values),
        tasks=("arithmetic",),
        seeds=SEEDS,
        gain=dict.fromkeys(sweep_values, 0.2),
        falls={
            (name, "arithmetic", seed): 20
            for name, (arm, rate, level) in values.items()
            for seed in SEEDS
            if rate > bears(arm, level, seed) * 1.01
        },
        accuracy=lambda name, task, seed: 0.6 + 500 * values[name][1],
        problems=16,
        samples=1,
        name="map",
    ).write(tmp_path_factory.mktemp("maps"))
    edit(root / "experiment.json", lambda described: described.update(sweep_values=sweep_values))
    return root


@pytest.fixture(scope="module")
def numbers(folder: Path) -> Numbers:
    return Numbers(load(folder))


def test_the_grid_is_read_from_the_logs(numbers: Numbers) -> None:
    axes = axes_of(numbers.experiment.sweep_values)
    assert axes is not None
    assert (axes.key, axes.sweep_values, axes.others) == (
        "train.learning_rate",
        RATES,
        ("train.num_minibatches",),
    )
    assert (axes.levels, axes.arms) == (((1,), (8,)), tuple(BEARS))
    assert len(numbers.grid) == len(BEARS) * len(RATES) * len(LEVELS)


def test_every_run_has_the_outcome_that_it_was_made_with(numbers: Numbers) -> None:
    for cell in numbers.grid:
        expected = [
            "collapses" if cell.sweep_value > bears(cell.arm, cell.level[0], s) * 1.01 else "learns"
            for s in SEEDS
        ]
        assert list(cell.outcomes) == expected, cell


def test_frontiers_are_the_sweep_values_that_two_of_three_seeds_bear(numbers: Numbers) -> None:
    axes = axes_of(numbers.experiment.sweep_values)
    assert axes is not None
    frontiers = {(edge.arm, edge.level[0]): edge for edge in find_frontiers(axes, numbers.grid)}
    at = {key: frontier.at.sweep_value if frontier.at else None for key, frontier in frontiers.items()}
    assert at == {
        ("grpo", 1): 1e-4,
        ("grpo", 8): None,
        ("gspo", 1): 2e-4,
        ("gspo", 8): 1e-4,
        ("dpo", 1): 4e-4,
        ("dpo", 8): 2e-4,
    }
    assert frontiers["dpo", 1].beyond and not frontiers["gspo", 1].beyond
    assert (frontiers["grpo", 1].low, frontiers["grpo", 1].high) == (None, 1e-4)
    assert frontiers["gspo", 1].coverage == pytest.approx(1 - (2 / 3) ** 3 - (1 / 3) ** 3)
    best = frontiers["gspo", 1].best
    assert best is not None and best.sweep_value == 1e-4  # at 2e-4 a third of the seeds fell


def test_run_ending_below_base_drifts_and_one_within_noise_stalls(
    numbers: Numbers,
) -> None:
    runs = numbers.runs.copy()
    first = runs.index[runs["collapsed_at"].isna()][0]
    arm, seed = runs.loc[first, "arm"], runs.loc[first, "seed"]
    run_row = classify_runs(numbers.experiment, runs).set_index(["arm", "seed"]).loc[(arm, seed)]
    bound = 2 * run_row["error"]
    assert bound > 0
    for change, outcome in ((1.01, "learns"), (0.99, "stalls"), (-0.99, "stalls"), (-1.01, "drifts")):
        runs.loc[first, "final"] = runs.loc[first, "base"] + change * bound
        classified = classify_runs(numbers.experiment, runs).set_index(["arm", "seed"])
        assert classified.loc[(arm, seed), "outcome"] == outcome
    runs.loc[first, "final"] = math.nan
    assert (
        classify_runs(numbers.experiment, runs).set_index(["arm", "seed"]).loc[(arm, seed), "outcome"]
        == "no result"
    )


def test_the_error_is_that_of_paired_answers(numbers: Numbers) -> None:
    """Against scipy, from the rows of eval.jsonl."""
    from scipy import stats

    classified = classify_runs(numbers.experiment, numbers.runs)
    row = classified.iloc[0]
    answers = numbers.experiment.evaluations
    run_answers = answers[
        (answers["arm"] == row["arm"])
        & (answers["seed"] == row["seed"])
        & (answers["split"] == row["split"])
        & (answers["mode"] == row["mode"])
    ].pivot_table(index="problem", columns="step", values="score/correct")
    difference = run_answers[run_answers.columns.max()] - run_answers[0]
    assert row["error"] == pytest.approx(stats.sem(difference), rel=1e-12)  # the same sum in float64


def test_the_report_of_a_map_is_the_map(folder: Path) -> None:
    with drawing("map", "survival"):
        page = write_report(folder).read_text(encoding="utf-8")
    page_text = re.sub(r"<[^>]+>", "", page)
    assert "Stability map" in page_text and "How far each arm goes without a collapse" in page_text
    assert (
        "gspo at minibatches 1, arithmetic: the highest learning rate at which at most a third of the seeds "
        "collapse is 2e−4; there 1 of 3 collapsed and 2 of 3 learned"
    ) in page_text
    assert (
        "dpo at minibatches 1, arithmetic: the highest learning rate at which at most a third of the seeds "
        "collapse is 4e−4, the largest of the grid; there 1 of 3 collapsed and 2 of 3 learned"
    ) in page_text
    assert (
        "grpo at minibatches 8, arithmetic: more than a third of the seeds collapse at the smallest "
        "learning rate"
    ) in page_text
    assert (
        "Where grpo, gspo and dpo learn, stall, drift and collapse on arithmetic, by learning rate and "
        "minibatches"
    ) in page_text
    assert "comparisons resolved" not in page_text
    assert "learning rate 1e−4, 2e−4, 4e−4; minibatches 1, 8" in page_text
    assert (folder / "report/figures/map.svg").exists()
    assert (folder / "report/figures/survival.svg").exists()
    assert {path.stem for path in (folder / "report/tables").glob("*.csv")} == {"map", "frontier", "runs"}


def test_survival_has_a_panel_per_combination_with_the_recipe_arms(numbers: Numbers) -> None:
    arms, panels = panels_of(numbers.experiment, numbers.findings)
    assert tuple(arms) == tuple(BEARS)
    assert set(panels) == {f"{level}, {rate}" for level in LEVELS for rate in ("1e−4", "2e−4", "4e−4")}
    for title, lifetimes in panels.items():
        level, rate = title.split(", ")
        for arm, lasts in lifetimes.items():
            sweep_value = float(rate.replace("−", "-"))
            fell = [sweep_value > bears(arm, int(level), run.seed) * 1.01 for run in lasts.runs]
            assert list(lasts.ended) == fell


def test_its_kept_table_gives_the_same_tables_again(folder: Path, numbers: Numbers, tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(as_text(keep(load(folder))), encoding="utf-8")
    table = read(tmp_path / "map.json")
    tables = gather(numbers).tables
    for name, options in (("map", {}), ("frontier", {"of": "frontier"})):
        lines = render(table, "map", {"mode": "greedy", **options})
        cells = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")
        ]
        assert cells[0] == list(tables[name].header)
        assert cells[2:] == [list(row) for row in tables[name].rows]
    assert render(table, "provenance", {})[0].startswith("Made by `grpobench map map`")


def row(*outcomes_by_sweep_value: str) -> list[SweepCell]:
    """Cells of one arm; a letter per seed: c collapses, l learns, - no result."""
    words = {"c": "collapses", "l": "learns", "-": "no result"}
    nothing = Estimate(math.nan, math.nan, math.nan)
    return [
        SweepCell(
            "arm",
            "task",
            (),
            sweep_value,
            tuple(words[letter] for letter in letters),
            tuple(range(len(letters))),
            nothing,
        )
        for sweep_value, letters in enumerate(outcomes_by_sweep_value)
    ]


def test_a_seed_bears_a_sweep_value_only_if_it_bears_all_smaller_ones() -> None:
    assert tolerances(row("ll", "cl", "lc")) == [0, 1]
    assert tolerances(row("cl", "ll")) == [-1, 1]
    assert tolerances(row("l-", "ll")) == [1]  # a seed without a result tells nothing
    axes = SweepAxes("train.learning_rate", (0, 1, 2), (), ((),), ("arm",))
    broken = find_frontiers(axes, row("lll", "ccl", "lll"))[0]
    assert broken.at is not None and broken.at.sweep_value == 0  # what stands behind a break is not borne
    assert find_frontiers(axes, row("---"))[0].at is None


@pytest.mark.parametrize(
    ("key", "values"),
    [("model.warm_start_seed", (0, 1)), ("model.name", ("a", "b")), ("train.shuffle", (False, True))],
)
def test_bases_and_names_have_no_frontier(key: str, values: tuple[object, ...]) -> None:
    axes = SweepAxes(key, values, (), ((),), ("arm",))
    assert not find_frontiers(axes, row("lll", "ccc"))


@given(st.integers(1, 25), st.floats(0.05, 0.95))
def test_ranks_cover_a_quantile_as_often_as_they_say(n: int, share: float) -> None:
    """The coverage by counting which of the values' ranks lie below the quantile, without the closed form."""
    ranks = quantile_ranks(n, share)
    assert 0 <= ranks.low <= ranks.high < n
    chances = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    coverage = sum(chances[k] for k in range(n + 1) if ranks.low < k <= ranks.high)
    assert ranks.coverage == pytest.approx(coverage, abs=1e-9)
    largest_coverage = 1 - share**n - (1 - share) ** n if n > 1 else 0.0
    assert ranks.coverage >= min(0.95, largest_coverage) - 1e-9


def test_ranks_hold_the_quantile_of_drawn_values() -> None:
    rng = np.random.default_rng(0)
    ranks = quantile_ranks(20, 1 / 3)
    drawn = np.sort(rng.random((4000, 20)), axis=1)
    coverage = np.mean((drawn[:, ranks.low] <= 1 / 3) & (drawn[:, ranks.high] >= 1 / 3))
    assert coverage == pytest.approx(ranks.coverage, abs=0.015)  # three standard errors of 4,000 draws


def test_exact_shares_have_their_closed_form_at_the_ends() -> None:
    """Clopper–Pearson of 0 of n: 1 − (α/2)^(1/n)."""
    assert exact_share(0, 3) == (0.0, pytest.approx(1 - 0.025 ** (1 / 3)))
    assert exact_share(3, 3) == (pytest.approx(0.025 ** (1 / 3)), 1.0)
    assert all(map(math.isnan, exact_share(0, 0)))


def test_an_experiment_without_sweep_values_is_no_map(tmp_path: Path) -> None:
    plain: Experiment = load(
        Synthetic(arms=("grpo", "ppo"), tasks=("arithmetic",), seeds=(1,)).write(tmp_path)
    )
    assert axes_of(plain.sweep_values) is None
    assert Numbers(plain).grid == ()
    assert "map" not in gather(plain).tables


def dead(tmp_path: Path, missing: tuple[str, ...] = ()) -> Path:
    """A map of two arms, one key and three seeds: at 1e-3 nothing collapses and nothing learns. Runs of the
    arms of `missing` were planned and are not there."""
    sweep_values = {
        f"{arm}-{rate:g}": {"arm": arm, "values": {"train.learning_rate": rate}}
        for arm in ("grpo", "ppo")
        for rate in (1e-4, 1e-3)
    }
    learns = {name: point["values"]["train.learning_rate"] == 1e-4 for name, point in sweep_values.items()}  # type: ignore[index]
    root = Synthetic(
        arms=tuple(sweep_values),
        tasks=("arithmetic",),
        seeds=(1, 2, 3),
        gain={name: 0.3 if has_learned else 0.0 for name, has_learned in learns.items()},
        accuracy=lambda name, task, seed: 0.9 if learns[name] else 0.2 + 0.01 * seed,  # as before
        problems=16,
        samples=1,
        name="dead-map",
    ).write(tmp_path)
    more = {"sweep_values": sweep_values, "summary": "Where GRPO, PPO, GSPO and DPO learn"}
    edit(root / "experiment.json", lambda described: described.update(more))
    for run in root.glob("*/run.toml"):
        if run.parent.name.startswith(missing or ("none",)):
            shutil.rmtree(run.parent)
    return root


def test_sweep_value_without_collapse_or_learning_says_both(tmp_path: Path) -> None:
    root = dead(tmp_path)
    numbers = Numbers(load(root))
    (line, _) = describe_frontiers(gather(numbers))
    assert line.startswith(
        "grpo, arithmetic: the highest learning rate at which at most a third of the seeds collapse is "
        "1e−3, the largest of the grid; there 0 of 3 collapsed, but none of 3 learned (accuracy 22.0 %); "
        "the highest accuracy is at 1e−4, 90.0 %."
    )
    table = gather(numbers).tables["frontier"]
    learned = table.header.index("learned")
    assert [row[learned] for row in table.rows] == ["0 of 3", "0 of 3"]
    assert list(table.frame["learned"]) == [0, 0]


def test_a_map_s_page_and_figure_name_only_arms_that_were_run(tmp_path: Path) -> None:
    """The recipe's own summary names four arms; ppo was planned, and none of its runs is there."""
    root = dead(tmp_path, missing=("ppo",))
    facts = gather(load(root))
    assert describe_subtitle(facts) == (
        "Where grpo learns, stalls, drifts and collapses on arithmetic, by learning rate"
    )
    assert describe_head(facts)["arms"] == "grpo"
    assert len(describe_frontiers(facts)) == 1 and describe_frontiers(facts)[0].startswith("grpo")
    rows = {row[1]: row[3:6] for row in facts.tables["frontier"].rows}
    assert rows["ppo"] == ["–", "–", "–"]  # not "below the grid": nothing is known of it
    drawing = draw_map(facts.experiment, facts.numbers.grid, TEXT)
    assert drawing is not None
    assert [axes.get_title() for axes in drawing.figure.axes] == ["grpo"]


def test_accuracies_of_a_map_have_intervals_within_0_and_1() -> None:
    """Of .9, .99 and 1: the t interval reaches 1.1."""
    sweep_values = {"a": SweepPoint("a", {"train.learning_rate": 1e-4})}
    runs = [
        {"task": "t", "arm": "a", "seed": seed, "outcome": "learns", "counted": value}
        for seed, value in enumerate((0.9, 0.99, 1.0))
    ]
    (cell,) = group_cells(sweep_values, ["t"], runs)
    assert cell.accuracy.high == 1.0 and 0.8 < cell.accuracy.low < 0.9


def test_bases_with_seeds_of_their_own_are_as_planned_and_have_a_headline(tmp_path: Path) -> None:
    """Two bases with three seeds each, which the other base lacks. A run that is gone is still named."""
    bases = {f"{arm}+base-{base}": (arm, base) for arm in ("grpo", "ppo") for base in (0, 1)}
    root = Synthetic(
        arms=tuple(bases),
        tasks=("arithmetic",),
        seeds=(1, 2, 3, 4, 5, 6),
        gain=dict.fromkeys(bases, 0.2),
        accuracy=lambda name, task, seed: 0.6 + 0.1 * bases[name][1],
        problems=16,
        samples=1,
        name="bases",
    ).write(tmp_path)
    sweep_values = {
        name: {"arm": arm, "values": {"model.warm_start_seed": base}} for name, (arm, base) in bases.items()
    }
    of_other_base = [f"{name}-arithmetic-s{seed}" for name in bases for seed in _seeds(1 - bases[name][1])]
    described = json.loads((root / "experiment.json").read_text()) | {"sweep_values": sweep_values}

    def unplan(names: list[str]) -> list[str]:
        for name in names:
            shutil.rmtree(root / name)
            described["runs"].remove(name)
        (root / "experiment.json").write_text(json.dumps(described))
        return find_alarms(load(root)).get("Not as planned", [])

    assert not unplan(of_other_base)
    headline = "Mean final accuracy is 60.0 to 70.0 % on arithmetic."
    labeled = Numbers(load(root), Shown(labels={"grpo": "GRPO", "arithmetic": "Sums"})).labeled
    assert describe_headline(Numbers(load(root))) == headline
    assert describe_headline(labeled) == headline.replace("arithmetic", "Sums")
    (line,) = unplan(["ppo+base-1-arithmetic-s5"])
    assert line == "ppo+base-1 on arithmetic has no run of seed 5, which other arms have"


def _seeds(base: int) -> tuple[int, ...]:
    return (1, 2, 3) if base == 0 else (4, 5, 6)
