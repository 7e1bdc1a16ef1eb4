"""What a report says of the search that chose its arms' settings."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.edits import edit
from helpers.pages import words
from helpers.synthetic import Synthetic

from grpobench.analysis.report.facts import Facts, as_json, gather
from grpobench.analysis.report.methods import describe_methods
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.runfolder.search import SearchRecord, Stage, Trial, read_record, record_of
from grpobench.analysis.topics.search import describe_choices, search_table, table_lines
from grpobench.analysis.topics.warnings import Gravity

RATES = [5e-5, 1e-4, 2e-4]
KEY = "train.learning_rate"
OUTCOMES = {
    "grpo": {5e-5: [0.50], 1e-4: [0.60, 0.62, 0.61], 2e-4: [0.70, 0.73, 0.70]},
    "gspo": {5e-5: [0.50], 1e-4: [0.66, 0.60, 0.63], 2e-4: [0.61, 0.62, 0.63]},
}
"""By arm and rate, the outcome of seeds 90, 91 and 92."""


def made(outcomes: dict[str, dict[float, list[float]]] = OUTCOMES, keep: float = 0.5) -> SearchRecord:
    trials = [
        Trial(
            "policy",
            arm,
            (rate,),
            1 if seed == 0 else 2,
            "arithmetic",
            90 + seed,
            value,
            "finished",
            7.5,
            900,
        )
        for arm, by_rate in outcomes.items()
        for rate, values in by_rate.items()
        for seed, value in enumerate(values)
    ]
    chosen = {"grpo": [2e-4], "gspo": [1e-4]}
    return SearchRecord(
        recipe="study",
        command="grpobench search study.toml",
        tasks=["arithmetic"],
        steps={"arithmetic": 8},
        outcomes={"arithmetic": "end:eval/validation/greedy/correct"},
        seeds=[90, 91, 92],
        rungs=[1, 3],
        keep=keep,
        stages=[Stage("policy", {KEY: RATES}, [*outcomes], {arm: chosen[arm] for arm in outcomes}, {})],
        trials=trials,
        sha256="ab" * 32,
    )


def facts_of(
    folder: Path, record: SearchRecord, arms: tuple[str, ...] = ("grpo", "gspo"), **changes: object
) -> Facts:
    """The report's facts of runs of made-up arms, whose rate is 1e-4 in their settings."""
    made_runs: dict[str, object] = {
        "arms": arms,
        "tasks": ("arithmetic",),
        "seeds": (1, 2),
        "steps": 8,
        "every": 4,
        "problems": 8,
        "test_problems": 8,
    }
    root = Synthetic(**{**made_runs, **changes}).write(folder)  # type: ignore[arg-type]
    search = record.table() | {"sha256": record.sha256}
    edit(root / "experiment.json", lambda described: described.update(search=search))
    return gather(load(root))


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "search.json").write_text(made().text())
    record = read_record(tmp_path / "search.json")
    assert record.by_value(record.stages[0], "grpo") == {
        (5e-5,): {90: 0.50},
        (1e-4,): {90: 0.60, 91: 0.62, 92: 0.61},
        (2e-4,): {90: 0.70, 91: 0.73, 92: 0.70},
    }
    assert record.text() == made().text()
    # The layout of a search by successive halving, without what is newer.
    old = json.loads(made().text())
    del old["settings"], old["extensions"], old["budgets"]
    old |= {"version": 1, "trials": [{k: v for k, v in row.items() if k != "base"} for row in old["trials"]]}
    assert record_of(old, "here").text() == made().text()
    assert sum('"seed": 9' in line for line in made().text().splitlines()) == len(record.trials) == 14
    table = made().table()
    table["stages"][0]["chosen"]["grpo"] = [1.0]
    with pytest.raises(LogError, match=r"here: no record of a search .*outside of the searched values"):
        record_of(table, "here")


def test_choices_say_whether_they_are_clear_and_at_the_edge() -> None:
    grpo, gspo = describe_choices(made())
    # Differences .10, .11, .09: mean .1, standard error .01/√3, t(2) = 4.303: ±.0248.
    assert grpo == (
        "grpo: policy's learning rate 2e−4; clear: 10.0 points above 1e−4 (7.5 to 12.5 over 3 seeds); "
        "at the edge: no larger learning rate than 2e−4 was tried"
    )
    # .05, −.02, 0: mean .01, standard error .0361/√3: ±.0896.
    assert gspo == (
        "gspo: policy's learning rate 1e−4; not clear: 1.0 points above 2e−4 (−8.0 to 10.0 over 3 seeds)"
    )


def test_two_seeds_and_a_single_value_are_no_clear_choice() -> None:
    two = made({"grpo": {1e-4: [0.5, 0.5], 2e-4: [0.9, 0.8]}})
    (text,) = describe_choices(two)
    assert "not clear: 35.0 points above 1e−4, and 2 seeds cannot tell that from 0" in text
    alone = dataclasses.replace(two, stages=[Stage("policy", {KEY: [2e-4]}, ["grpo"], {"grpo": [2e-4]}, {})])
    assert describe_choices(alone) == []  # nothing was searched


def test_the_table_has_every_value_and_marks_the_chosen(tmp_path: Path) -> None:
    lines = table_lines(made())
    assert lines[0].split() == ["rate", "of", "arm", "value", "seeds", "mean", "SD", "failed", "each", "seed"]
    assert [line.split()[1:6] for line in lines if "chosen" in line] == [
        ["grpo", "2e−4", "3", "71.0", "1.7"],
        ["gspo", "1e−4", "3", "63.0", "3.0"],
    ]
    frame = search_table(made()).frame
    assert list(frame["mean"]) == pytest.approx([0.50, 0.61, 0.71, 0.50, 0.63, 0.62])
    assert list(frame["chosen"]) == [False, False, True, False, True, False]


def test_the_report_says_how_equal_the_search_was_and_what_it_left_out(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, made(), arms=("grpo", "gspo", "dapo"))
    methods = describe_methods(facts, {})
    assert (
        "Settings were searched beforehand on arithmetic, with the same number of runs and steps for every "
        "arm and on seeds that these runs do not use: policy, 3 values (learning rate 5e−5, 1e−4, 2e−4), 7 "
        "runs of 8 steps for each of grpo, gspo. Values ran on rungs of 1 and 3 seeds (seeds 90, 91, 92). "
        "The best half of a rung, rounded up and at least two, went on to the next one."
    ) in methods
    (limits,) = next(
        warning.lines for warning in facts.warnings if warning.title == "The search of settings has limits"
    )
    assert limits.startswith("Settings were searched before these runs, on other seeds: policy, 3 values (")
    assert "The search took, for grpo: 7 runs, 56 steps, 6,300 tokens sampled in training, 0.9 min" in limits
    (edge,) = [warning for warning in facts.warnings if "the edge" in warning.title]
    assert edge.title == "The search chose the edge of what it tried for grpo (learning rate 2e−4)"
    assert edge.lines == ["grpo: at the edge: no larger learning rate than 2e−4 was tried"]
    assert edge.gravity == Gravity.DOUBT and f"{edge.title}." in methods
    assert "within noise for gspo (policy)" in limits
    assert "Not searched: the arms dapo; settings in which the arms differ: algorithm.clip_high" in limits
    assert as_json(facts)["search"]["sha256"] == "ab" * 32
    assert any(warning.title == "Learning rates were not searched for dapo" for warning in facts.warnings)
    assert facts.tables["search"].sentences[0][1].startswith("clear: 10.0 points above 1e−4")


def test_values_that_the_search_did_not_choose_are_an_alarm(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, made(), steps=12)
    line = "grpo: train.learning_rate.policy is 0.0001, and the search chose 2e−4"
    assert facts.alarms["Not what the search chose"] == [line]
    title = "Learning rates were searched under other settings: steps 8 (here 12)"
    assert title in [warning.title for warning in facts.warnings]


INTERIOR = {5.7e-5: [0.60] * 8, 1e-4: [0.70] * 8, 1.7e-4: [0.65] * 8, 3.3e-5: [0.4] * 2, 3e-4: [0.1] * 2}


def interior(failing: int = 0, **changes: Any) -> SearchRecord:
    """A search by today's rule, of which some runs at the chosen rate ended below their base."""
    trials = [
        Trial("policy", arm, (rate,), 1, "arithmetic", 90 + seed, value, "finished", 60.0, 900, base)
        for arm in ("grpo", "gspo")
        for rate, values in INTERIOR.items()
        for seed, value in enumerate(values)
        for base in [0.9 if seed < failing and rate == 1e-4 else 0.0]
    ]
    record = dataclasses.replace(
        made(), rungs=(), keep=0.0, extensions=3, seeds=[*range(90, 98)], trials=trials
    )
    stage = Stage("policy", {KEY: [*INTERIOR]}, ["grpo", "gspo"], {"grpo": [1e-4], "gspo": [1e-4]}, {})
    return dataclasses.replace(record, stages=[stage], **changes)


def titles(folder: Path, record: SearchRecord) -> list[str]:
    return [warning.title for warning in facts_of(folder, record).warnings]


def test_a_choice_that_is_interior_and_qualifies_raises_no_doubt(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, interior())
    assert not any(
        "search" in warning.title.lower() and warning.gravity > Gravity.NOTE for warning in facts.warnings
    )
    assert describe_choices(interior())[0] == (
        "grpo: policy's learning rate 1e−4; clear: 5.0 points above 1.7e−4 (5.0 to 5.0 over 8 seeds)"
    )
    rule = "It grew until the best of every arm had 2 rates beyond it on either side, by at most 3 on each."
    assert rule in describe_methods(facts, {}) and "rungs" not in describe_methods(facts, {})


def test_the_first_doubts_are_failing_choices_and_other_settings(tmp_path: Path) -> None:
    failing = titles(tmp_path / "failing", interior(failing=2))
    names = "grpo (learning rate 1e−4), gspo (learning rate 1e−4)"
    assert failing[0] == f"No rate that was searched qualified for {names}"
    text = "no rate qualified: 2 of 8 runs at the chosen one failed, the fewest of all"
    assert describe_choices(interior(failing=2))[0].endswith(text)
    assert not any("qualified" in title for title in titles(tmp_path / "passing", interior(failing=1)))
    settings = {"train.group_size": 4, "train.steps": 8, "train.no_longer": 3}
    under = {arm: {"arithmetic": settings} for arm in ("grpo", "gspo")}
    under["gspo"] = {"arithmetic": settings | {"train.steps": 24}}
    (text,) = [
        title for title in titles(tmp_path / "other", interior(settings=under)) if "other settings" in title
    ]
    assert text == (
        "Learning rates were searched under other settings: group_size 4 (here 8), steps 24 (here 8 for gspo)"
    )
    budget = interior()
    unequal = titles(tmp_path / "unequal", dataclasses.replace(budget, trials=budget.trials[:-1]))
    assert "The search gave the arms unequal budgets: policy: grpo 28 runs, gspo 27 runs" in unequal


def test_differences_at_one_searched_rate_are_doubted(tmp_path: Path) -> None:
    seeds, title = range(8), "1 of 1 pairs differs at one learning rate of each arm"
    apart = {"grpo": 0.5, "gspo": 0.25}
    facts = facts_of(tmp_path / "apart", made(), seeds=seeds, accuracy=lambda arm, task, seed: apart[arm])
    assert title in [warning.title for warning in facts.warnings if warning.gravity == Gravity.DOUBT]
    alike = facts_of(tmp_path / "alike", made(), seeds=seeds, accuracy=lambda arm, task, seed: 0.5)
    assert not any("one learning rate" in warning.title for warning in alike.warnings)


def test_a_search_that_a_recipe_only_names_tells_its_settings(tmp_path: Path) -> None:
    settings = {"grpo": {"arithmetic": {"train.steps": 24}}}
    record = dataclasses.replace(made(), stages=[], trials=[], settings=settings, sha256="")
    facts = facts_of(tmp_path, record)
    doubts = {warning.title: warning.lines for warning in facts.warnings}
    assert doubts["The learning rates are those of the search study, of which no record is kept here"] == [
        "Learning rates were not searched for gspo"
    ]
    assert "Learning rates were searched under other settings: steps 24 (here 8)" in doubts
    assert "search" not in facts.tables and as_json(facts)["search"]["recipe"] == "study"


def test_the_page_has_the_search_and_none_without_one(tmp_path: Path) -> None:
    facts = facts_of(tmp_path / "with", made())
    page = words(facts)
    assert 'id="search-of-settings"' in page and "Settings that were tried before these runs" in page
    assert not any("rates" in warning.title for warning in facts.warnings)
    assert facts.tables["search"].csv().count("\n") == 7
    plain = Synthetic(arms=("grpo",), tasks=("arithmetic",), seeds=(1,), steps=4, every=2, problems=8)
    none = gather(load(plain.write(tmp_path / "without")))
    assert "search" not in none.tables and as_json(none)["search"] is None
    assert "searched" not in describe_methods(none, {}) + " ".join(warning.title for warning in none.warnings)


def test_the_first_doubt_is_a_rate_that_was_not_searched(tmp_path: Path) -> None:
    root = Synthetic(
        arms=("grpo", "rloo"), tasks=("arithmetic",), seeds=range(6), steps=4, every=2, problems=8
    ).write(tmp_path / "borrowed")
    plain = "No search of learning rates is recorded: a difference may come from the rates"
    facts = gather(load(root))
    doubts = [warning for warning in facts.warnings if warning.gravity == Gravity.DOUBT]
    assert doubts[0].title == plain and f"{plain}." in describe_methods(facts, {})
    edit(root / "experiment.json", lambda described: described.update(borrowed_rates={"rloo": "grpo"}))
    facts = gather(load(root))
    title = "No learning rate was chosen for rloo: the rate is that of the arm grpo"
    assert facts.warnings[0].title == title == as_json(facts)["warnings"][0]["title"]
    assert facts.warnings[0].lines == [plain] and f"{title}. {plain}." in describe_methods(facts, {})


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ({"borrowed_rates": ["grpo"]}, r"experiment\.json: `borrowed_rates` must be a table"),
        ({"search": {"version": 9}}, r"experiment\.json: search: no record of a search"),
    ],
)
def test_damage_in_experiment_json_is_named_and_strict_refuses_it(
    written: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    root = Synthetic(arms=("grpo",), tasks=("arithmetic",), seeds=(1,), steps=4, every=2, problems=8).write(
        tmp_path
    )
    edit(root / "experiment.json", lambda described: described.update(written))
    experiment = load(root)
    assert experiment.search is None and any(re.search(fault, line) for line in experiment.damage)
    with pytest.raises(LogError, match=fault):
        load(root, strict=True)
