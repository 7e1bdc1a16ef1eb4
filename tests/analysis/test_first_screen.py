"""The first screen: the sentence, the overview, what would resolve a pair, and what to doubt."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.edits import edit, edit_rows
from helpers.pages import words
from helpers.synthetic import Synthetic

from grpobench.analysis.report.catalog import FIGURES
from grpobench.analysis.report.facts import Facts, as_json, gather
from grpobench.analysis.report.headline import arms_in_words, describe_headline, joined
from grpobench.analysis.report.pairs import pairs_by_task
from grpobench.analysis.report.sections import FIRST, SECTIONS, split_caption
from grpobench.analysis.runfolder.interim import InterimPlan
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.tools.text import interval, points
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.overview import make_overview
from grpobench.analysis.topics.unresolved import seeds_to_resolve
from grpobench.analysis.topics.warnings import Gravity

SMALL = {"steps": 4, "every": 2, "problems": 4, "test_problems": 4}
GAINS = {"a": (0.3, 0.3), "b": (0.3, 0.3), "c": (0.1, -0.1)}
ROOT = Path(__file__).parents[2]


def accuracy(arm: str, task: str, seed: int) -> float:
    """The accuracy before training, which `Synthetic` chooses, and a gain with noise of the arm's own."""
    index = ("arithmetic", "nanobias").index(task)
    noise = 0.001 * ((seed * (3 if arm == "a" else 5)) % 7 - 3)
    return 0.2 + 0.1 * index + 0.01 * seed + GAINS[arm][index] + noise


def root_of(tmp_path: Path, **changes: object) -> Path:
    """Three arms on two tasks: a and b are alike, c is worse on both."""
    made: dict[str, object] = {
        **SMALL,
        "arms": ("a", "b", "c"),
        "tasks": ("arithmetic", "nanobias"),
        "seeds": range(8),
        "accuracy": accuracy,
    }
    return Synthetic(**{**made, **changes}).write(tmp_path)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return gather(load(root_of(tmp_path_factory.mktemp("results"))))


@pytest.fixture(scope="module")
def page(facts: Facts) -> str:
    return words(facts)


def test_the_sentence_is_made_of_verdicts(facts: Facts) -> None:
    assert facts.headline == (
        "All 3 arms gain 10 to 30 points on arithmetic, a and b gain 30 points on nanobias, c loses 10 "
        "points on nanobias; at one learning rate of each arm 4 of 6 pairs differ: c is worse than all "
        "others on arithmetic and nanobias; "
        "no difference of 2 points or more between a and b on arithmetic and a and b on nanobias."
    )


def test_too_few_seeds_confirm_nothing(tmp_path: Path) -> None:
    facts = gather(load(root_of(tmp_path, seeds=range(3))))
    assert facts.headline.startswith("Mean accuracy changes by +10.0 to +30.0 points on arithmetic and ")
    assert facts.headline.endswith(
        "; 3 seeds confirm neither changes nor differences between arms (6 are needed)."
    )
    alone = gather(load(root_of(tmp_path / "alone", arms=("a",), seeds=(1, 2))))
    assert alone.headline.endswith(" on nanobias, which 2 seeds cannot confirm (6 are needed).")
    assert any(warning.title.startswith("3 seeds allow no verdict") for warning in facts.warnings)


def test_runs_that_collapsed_are_named(tmp_path: Path) -> None:
    falls = {("c", "nanobias", seed): 8 for seed in (1, 2, 5)}
    states = {("a", "arithmetic", 1): ("diverged", 4)}
    longer = {"steps": 12, "every": 2, "falls": falls, "states": states}
    headline = describe_headline(Numbers(load(root_of(tmp_path, **longer))))
    expected = "4 runs collapsed (1 of them diverged): c on nanobias 3 of 8, a on arithmetic 1 of 8."
    assert headline.endswith(expected)


def test_an_experiment_without_results_says_so(tmp_path: Path) -> None:
    states = {("a", "arithmetic", seed): ("running", 0) for seed in (1, 2)}
    root = root_of(tmp_path, arms=("a",), tasks=("arithmetic",), seeds=(1, 2), states=states)
    assert describe_headline(Numbers(load(root))) == "No run has a result yet."


def test_runs_without_evaluations_are_not_compared(tmp_path: Path) -> None:
    root = root_of(tmp_path, tasks=("arithmetic",), states={("a", "arithmetic", 1): ("diverged", 2)})
    experiment = load(root)
    trained = experiment.metrics[~experiment.metrics["metric"].str.startswith("eval/")]
    facts = gather(replace(experiment, metrics=trained))
    assert facts.headline == (
        "24 runs ended and none was evaluated, so no accuracies are compared; "
        "1 run diverged: a on arithmetic 1 of 8."
    )
    assert not facts.numbers.compared and not {"overview", "accuracy", "comparisons"} & {*facts.tables}


def test_lists_of_arms_in_words() -> None:
    assert joined(["a"]) == "a" and joined(["a", "b", "c"]) == "a, b and c"
    assert joined(list("abcdef")) == "a, b, c and 3 more"
    assert arms_in_words("ab", "ab") == "a and b" and arms_in_words("cab", "abc") == "all 3 arms"
    assert arms_in_words("abde", "abcde") == "all arms but c" and arms_in_words("e", "abcde") == "e"


def test_arms_share_a_letter_if_and_only_if_they_are_not_told_apart(facts: Facts) -> None:
    cells = facts.numbers.overview.cells
    for pair in facts.numbers.compared:
        marks = [set(cells[arm, pair.task].mark) for arm in (pair.first, pair.second)]
        assert bool(marks[0] & marks[1]) == (pair.verdict not in ("better", "worse"))
    cell = cells["c", "nanobias"]
    assert (cell.verdict, cell.mark) == ("worse", "b")
    # the mean of .3 + .01 · seed over seeds 0 to 7 is .335; c loses .1 and .003/8: its noise adds up to −.003
    assert cell.base == pytest.approx(0.335) and cell.text == "23.5 (−10.0 worse) b"
    assert facts.tables["overview"].rows[2][2] == cell.text


def test_differences_to_the_best_arm_or_to_the_control_stand_on_the_first_screen(
    facts: Facts, page: str, tmp_path: Path
) -> None:
    table = facts.tables["differences"]
    numbers = facts.numbers
    assert table.title == "Differences to the best arm" and "chosen by these results" in table.note
    for column, task in enumerate(("arithmetic", "nanobias"), 1):
        finals = {arm: numbers.overview.cells[arm, task].final for arm in "abc"}
        best = max(finals, key=lambda arm: finals[arm])
        assert [row[0] for row in table.rows if row[column] == "the best"] == [best]
        (pair,) = [
            comparison
            for comparison in numbers.compared
            if comparison.task == task and {comparison.first, comparison.second} == {best, "c"}
        ]
        shown = pair if pair.first == "c" else pair.turned()
        # c ends 20 or 40 points below the others; its interval and its word are those of the pair
        assert table.rows[2][column] == (
            f"{points(shown.effect)} ({interval(shown.low, shown.high, points)}) worse"
        )
        assert shown.effect == pytest.approx((-0.2, -0.4)[column - 1], abs=0.003)
        assert table.rows["ab".index("b" if best == "a" else "a")][column].endswith(" ≈")
    assert page.index('id="table-differences"') < page.index('<h2 id="warnings">')
    root = root_of(tmp_path, tasks=("arithmetic",))
    edit(root / "experiment.json", lambda described: described.update(control="c"))
    controlled = gather(load(root)).tables["differences"]
    assert controlled.title == "Differences to c" and "chosen by" not in controlled.note
    assert controlled.rows[2][1:] == ["the control"]
    assert all(cell.endswith("better") for row in controlled.rows[:2] for cell in row[1:])
    assert "differences" not in gather(load(root_of(tmp_path / "alone", arms=("a",), seeds=(1, 2)))).tables


def test_of_contrasts_with_one_arm_the_overview_has_verdicts_for_letters(facts: Facts) -> None:
    numbers = facts.numbers
    contrasts = [pair for pair in numbers.compared if "b" in (pair.first, pair.second)]
    overview = make_overview(numbers.experiment, numbers.runs, numbers.against_base, contrasts)
    marks = [overview.cells[arm, "arithmetic"].mark for arm in "abc"]
    assert marks == ["≈ b", "", "< b"] and overview.against == "b" and "< b: worse" in overview.key


def test_every_unresolved_pair_is_named_with_the_seeds_it_needs(tmp_path: Path) -> None:
    apart = (0.03, -0.01, 0.02, -0.02, 0.04, 0.01, -0.01, 0.02)
    root = root_of(
        tmp_path,
        arms=("a", "b"),
        tasks=("arithmetic",),
        accuracy=lambda arm, _, seed: 0.5 + apart[seed] * (arm == "b"),
    )
    facts = gather(load(root))
    (pair,) = facts.numbers.compared
    needed = seeds_to_resolve(pair)
    assert "about 38 seeds would find it" in pair.needs and needed.difference == 38
    # SD 2.14 points: seeds that rule out a margin of 2 points, .94 SD, in 80 % of repetitions; 11 do .95
    assert 11 <= needed.equivalence <= 13
    (row,) = facts.tables["unresolved"].rows
    assert row[4:6] == ["38", f"{needed.equivalence:.0f}"]
    content = as_json(facts)
    assert content["tables"]["unresolved"][0]["seeds_for_difference"] == 38
    assert list(content).index("headline") < list(content).index("warnings") < list(content).index("runs")


def test_what_a_pair_waits_for_stands_in_place_of_seeds(tmp_path: Path, facts: Facts) -> None:
    states = {("c", "nanobias", 2): ("crashed", 3)}
    waiting = Numbers(load(root_of(tmp_path, tasks=("nanobias",), states=states)))
    pairs = {row.text: row for row in pairs_by_task(waiting.compared)[0].rows}
    assert pairs["a ? c"].waits == "waits for runs without a result: c seed 2 (crashed)"
    pair = replace(facts.numbers.compared[0], verdict="unresolved", needs="adjusted p 0.2 > 0.05")
    plan = InterimPlan(tuple(range(12)), (8, 10, 12), (0.4, 0.3, 0.3), 0.05, pairs=6, margin=2.0, step=2)
    assert seeds_to_resolve(pair, plan).text == "waits for the interim analysis at 10 seeds"
    few = replace(pair, seeds=(0, 1, 2), differences=pair.differences[:3])
    assert seeds_to_resolve(few).to_find == "6 or more" and not math.isnan(seeds_to_resolve(few).equivalence)


# Warnings


def warned(root: Path) -> dict[str, list[str]]:
    return {warning.title: list(warning.lines) for warning in gather(load(root)).warnings}


def titles(root: Path, begin: str) -> list[str]:
    return [title for title in warned(root) if title.startswith(begin)]


def test_an_experiment_as_planned_warns_of_nothing_that_was_measured(facts: Facts) -> None:
    warning_titles = {warning.title for warning in facts.warnings}
    assert not {
        title for title in warning_titles if title.startswith(("Identical", "Little room", "Constant"))
    }


def test_identical_numbers_in_all_seeds_are_grave(tmp_path: Path) -> None:
    def same(arm: str, task: str, seed: int) -> float:
        return 0.2 + 0.01 * seed if arm == "c" else 0.5  # c ends where it began

    root = root_of(tmp_path, tasks=("arithmetic",), seeds=range(4), accuracy=same)
    (warning,) = [
        candidate for candidate in gather(load(root)).warnings if candidate.title.startswith("Identical")
    ]
    assert warning.gravity == Gravity.FAULT
    assert list(warning.lines) == [
        "a on arithmetic: 50.0 % in all 4 seeds",
        "b on arithmetic: 50.0 % in all 4 seeds",
        "c on arithmetic: the same as before training in all 4 seeds",
        "a, b on arithmetic: equal to each other in all 4 seeds",
    ]
    assert not titles(
        root_of(tmp_path / "two", tasks=("arithmetic",), seeds=range(2), accuracy=same), "Ident"
    )


@pytest.mark.parametrize(
    ("final", "expected"),
    [
        (lambda seed: 0.97 + 0.001 * seed, "arithmetic: all arms end at 97.1 %, so they cannot differ"),
        (lambda seed: 0.03 - 0.002 * seed, "arithmetic: all arms end at 2.7 %, so nothing was learned"),
        (lambda seed: 0.96 + 0.001 * seed, ""),
    ],
    ids=["ceiling", "floor", "room"],
)
def test_tasks_without_room_are_named(tmp_path: Path, final: Callable[[int], float], expected: str) -> None:
    root = root_of(tmp_path, tasks=("arithmetic",), seeds=(1, 2), accuracy=lambda arm, _, seed: final(seed))
    lines = [
        line for title, lines in warned(root).items() if title.startswith("Little room") for line in lines
    ]
    assert lines == [expected] * bool(expected)


def test_a_policy_with_one_answer_is_named_with_it(tmp_path: Path) -> None:
    root = root_of(tmp_path, tasks=("arithmetic",), seeds=(1, 2), test_problems=20)
    path = root / "b-arithmetic-s2" / "eval.jsonl"

    def repeat(row: dict[str, Any]) -> None:
        if row["step"] == 4 and row["split"] == "test" and row["problem"] != "p7":
            row["answer"] = "yes"

    edit_rows(path, repeat)
    sentence = "b on arithmetic answers yes to 95.0 % of the problems (seed 2)"
    (line,) = warned(root)[f"Constant answers: {sentence}"]
    assert line.startswith(f"{sentence}. That is right in ")


def test_the_gravest_warnings_stand_on_the_first_screen(tmp_path: Path) -> None:
    states = {("a", "arithmetic", 1): ("crashed", 2)}
    facts = gather(load(root_of(tmp_path, tasks=("arithmetic",), seeds=range(3), states=states)))
    gravities = [warning.gravity for warning in facts.warnings]
    assert gravities == sorted(gravities, reverse=True) and facts.warnings[0].gravity == Gravity.FAULT
    page = words(facts)
    first = page[: page.index('<h2 id="warnings">')]
    assert "1 of 9 runs has no final accuracy" in first
    assert page.index("1 of 9 runs has no final accuracy") < page.index("3 seeds allow no verdict")


# Nothing is lost


def test_every_figure_and_table_has_its_place(facts: Facts, page: str) -> None:
    """A new one that no section names would not be on the page."""
    placed_parts = {(part.kind, part.name) for section in SECTIONS for part in section.parts}
    assert set(FIGURES) == {name for kind, name in placed_parts if kind == "figure"} | set(FIRST)
    placed = {name for kind, name in placed_parts if kind == "table"} | {"overview", "differences", "runs"}
    assert not set(facts.tables) - placed
    assert all(f'id="table-{name}"' in page for name in facts.tables)


def test_a_caption_is_split_after_its_first_sentence() -> None:
    assert split_caption("Mean over seeds. The p is .05. More.") == (
        "Mean over seeds.",
        "The p is .05. More.",
    )
    assert split_caption("One sentence, val. best.") == ("One sentence, val. best.", "")
    long = f"{'word ' * 40}end. Next."
    assert split_caption(long) == ("", long)
