"""Where a gain comes from: parts that add up, worked by hand; the word for them; policies that answer the
same to everything; what the report says of both."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.pages import words
from helpers.synthetic import toml
from hypothesis import given
from hypothesis import strategies as st

from grpobench.analysis.report.facts import as_json, gather
from grpobench.analysis.report.sources import describe_sources
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.statistics.decomposition import decides, decompose, problem_intervals
from grpobench.analysis.statistics.intervals import Estimate
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.sources import (
    ANSWERS,
    FORMAT,
    NOT_LOGGED,
    UNKNOWN,
    UNRESOLVED,
    constant_answers,
    name_origin,
)
from grpobench.runs.commands.reports import accuracy_lines

# Parts


def parts(before: Sequence[float], after: Sequence[float]) -> tuple[float, float, bool]:
    """The parts between two policies, each (answers, readable, correct, asked, likeliest)."""
    decomposed = decompose([before, after])
    return float(decomposed.readable), float(decomposed.answers), bool(decomposed.assumed)


def test_parts_by_hand() -> None:
    # r from 1/2 to 1, a from 1/5 to 3/5: .5 · (.2 + .6)/2 = .2 and .4 · 1.5/2 = .3; accuracy from .1 to .6
    assert parts((20, 10, 2, 0, 0), (20, 20, 12, 0, 0)) == (pytest.approx(0.2), pytest.approx(0.3), False)
    # all answers readable: everything is better answers
    assert parts((10, 10, 4, 0, 0), (10, 10, 7, 0, 0)) == (0.0, pytest.approx(0.3), False)
    # the same accuracy among readable ones: everything is readability
    assert parts((10, 4, 2, 0, 0), (10, 8, 4, 0, 0)) == (pytest.approx(0.2), 0.0, False)


def test_where_nothing_was_readable_likelihoods_stand_in() -> None:
    # 12 of 16 answers are B and 6 of 16 right after; 5 of 16 right by likelihood before:
    # 1 · (5/16 + 6/16)/2 and (6/16 − 5/16) · 1/2
    readable, answers, assumed = parts((16, 0, 0, 16, 5), (16, 16, 6, 16, 6))
    assert (readable, answers, assumed) == (pytest.approx(11 / 32), pytest.approx(1 / 32), False)
    # without likelihoods all of it is called readability, and marked
    assert parts((16, 0, 0, 0, 0), (16, 16, 6, 0, 0)) == (pytest.approx(6 / 16), 0.0, True)
    # a policy that can no longer be read, and one that never could
    assert parts((16, 16, 6, 0, 0), (16, 0, 0, 0, 0)) == (pytest.approx(-6 / 16), 0.0, True)
    assert parts((16, 0, 0, 0, 0), (16, 0, 0, 0, 0)) == (0.0, 0.0, False)


@st.composite
def policies(draw: st.DrawFn) -> list[float]:
    answers = draw(st.integers(1, 30))
    readable = draw(st.integers(0, answers))
    likelihood_rows = draw(st.integers(0, 30))
    return [
        answers,
        readable,
        draw(st.integers(0, readable)),
        likelihood_rows,
        draw(st.integers(0, likelihood_rows)),
    ]


@given(policies(), policies())
def test_parts_add_up_to_the_change_and_turn_with_it(before: list[float], after: list[float]) -> None:
    readable, answers, assumed = parts(before, after)
    # Sums of a few products of shares: nothing but rounding.
    assert readable + answers == pytest.approx(after[2] / after[0] - before[2] / before[0], abs=1e-12)
    back = parts(after, before)
    assert back[:2] == (pytest.approx(-readable, abs=1e-12), pytest.approx(-answers, abs=1e-12))
    assert back[2] == assumed


# Intervals


def test_interval_over_problems_of_one_readable_share_is_the_t_interval() -> None:
    """With the same accuracy among readable answers the part is linear in the problems, and the jackknife of
    a mean is s/√n."""
    became = np.array([1, 1, 0, 1, 0, 1, 1, 1, 0, 1], dtype=float)
    counts = np.zeros((1, len(became), 2, 5))
    counts[0, :, :, 0] = 1
    counts[0, :, 1, 1] = counts[0, :, 1, 2] = became  # whatever can be read is right
    counts[0, :, 0, 3] = counts[0, :, 0, 4] = 1  # and so was the likeliest option before
    readable, answers = problem_intervals(counts)
    error = became.std(ddof=1) / math.sqrt(len(became))
    assert readable.value == pytest.approx(0.7)
    assert readable.high - readable.value == pytest.approx(2.262157 * error, rel=1e-6)  # t, 9 df
    assert (answers.value, answers.low, answers.high) == (0, 0, 0)


def test_interval_over_problems_holds_its_level() -> None:
    """95 % intervals of the readable part over draws of 40 problems hold the population's value."""
    rng = np.random.default_rng(5)
    shares = {"before": (0.4, 0.3), "after": (0.9, 0.5)}
    true = (0.9 - 0.4) * (0.3 + 0.5) / 2
    covered = []
    for _ in range(400):
        counts = np.zeros((1, 40, 2, 5))
        counts[..., 0] = 1
        for when, (share, accuracy) in enumerate(shares.values()):
            counts[0, :, when, 1] = rng.random(40) < share
            counts[0, :, when, 2] = counts[0, :, when, 1] * (rng.random(40) < accuracy)
        readable, _ = problem_intervals(counts)
        covered.append(readable.low <= true <= readable.high)
    assert 0.92 <= np.mean(covered) <= 0.98  # 400 draws: a standard error of 1.1 points


def test_a_single_problem_has_no_interval() -> None:
    readable, answers = problem_intervals([[[[1, 0, 0, 1, 1], [1, 1, 1, 1, 1]]]])
    assert readable.value == 1.0 and math.isnan(readable.low) and math.isnan(answers.high)


# The word


@pytest.mark.parametrize(
    ("gain", "readable", "answers", "assumed", "word"),
    [
        (0.3, (0.25, 0.1, 0.4), (0.05, -0.1, 0.2), False, FORMAT),
        (0.3, (0.25, 0.1, 0.4), (0.05, -0.1, 0.2), True, UNKNOWN),
        (0.3, (0.25, -0.1, 0.6), (0.05, -0.1, 0.2), False, UNRESOLVED),  # the interval has 0 in it
        (0.3, (0.15, 0.1, 0.2), (0.15, 0.1, 0.2), False, UNRESOLVED),  # neither makes more than half
        (0.3, (0.05, 0.01, 0.09), (0.25, 0.1, 0.4), False, ANSWERS),
        (0.1, (0.3, 0.2, 0.4), (-0.2, -0.3, -0.1), False, FORMAT),
        (-0.3, (-0.25, -0.4, -0.1), (-0.05, -0.2, 0.1), False, FORMAT),  # answers became unreadable
        (-0.1, (0.2, 0.1, 0.3), (-0.3, -0.4, -0.2), False, ANSWERS),  # readable, and worse
        (0.3, (0.3, math.nan, math.nan), (0.0, math.nan, math.nan), False, UNRESOLVED),
        (0.0, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), False, UNRESOLVED),
    ],
)
def test_word_needs_more_than_half_and_an_interval_without_zero(
    gain: float, readable: tuple[Any, ...], answers: tuple[Any, ...], assumed: bool, word: str
) -> None:
    assert name_origin(gain, Estimate(*readable), Estimate(*answers), assumed) == word
    assert decides(Estimate(*readable), gain) == (word in (FORMAT, UNKNOWN))


# Reports

TRUTH = "ABC" * 5 + "B"
"""The right letters of sixteen questions: B in six."""
UNREADABLE: tuple[str | None, ...] = (None,) * 16
FORMAT_AFTER = "BBBBBBBBBBBBACCC"
"""What the policy answers after two updates: B to twelve, right in six."""


def folder_of(
    root: Path,
    before: Sequence[str | None] = UNREADABLE,
    after: Sequence[str | None] = FORMAT_AFTER,
    likely: str = "",
    seeds: Sequence[int] = (0,),
    truth: str = TRUTH,
    without: Sequence[str] = (),
) -> Path:
    """The folder of an experiment with one arm, whose greedy answers and likeliest options are given;
    `without` leaves columns out, as older versions did."""
    folder = root / "experiment"
    for seed in seeds:
        run = folder / f"grpo-bbq-s{seed}"
        run.mkdir(parents=True)
        config = {"arm": "grpo", "seed": seed, "task": {"name": "bbq"}, "train": {"steps": 2}}
        (run / "run.toml").write_text(toml(config))
        (run / "status.json").write_text(json.dumps({"state": "finished", "step": 2, "attempt": 1}))
        rows, metrics = [], []
        for step, answers in ((0, before), (2, after)):
            graded = [
                ("greedy", problem_answer)
                for problem_answer in zip(range(len(truth)), answers, truth, strict=True)
            ]
            graded += [
                ("likelihood", problem_answer)
                for problem_answer in zip(range(len(likely)), likely, truth, strict=False)
            ]
            for mode, (number, answer, right) in graded:
                row = {
                    "step": step,
                    "split": "test",
                    "mode": mode,
                    "problem": f"p{number}",
                    "sample": 0,
                    "scores": {"correct": float(answer == right)},
                    "answer": answer,
                    "outcome": "unparsable" if answer is None else "graded",
                }
                rows.append({name: value for name, value in row.items() if name not in without})
            share = sum(map(str.__eq__, map(str, answers), truth)) / len(truth)
            metrics.append({"step": step, "eval/test/greedy/correct": share})
        for name, lines in (("eval", rows), ("metrics", metrics)):
            (run / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_answers_cut_before_the_letter_are_a_format_gain_in_every_headline(tmp_path: Path) -> None:
    """Two updates "gained" 37.5 points: nothing could be read before, and most answers are B after."""
    root = folder_of(tmp_path, likely=FORMAT_AFTER)
    facts = gather(load(root))
    (row,) = facts.tables["sources"].frame.to_dict("records")
    assert (row["origin"], row["over"], row["seeds"]) == (FORMAT, "problems", 1)
    assert (row["readable_before"], row["readable_after"], row["gain"]) == (0.0, 1.0, 0.375)
    assert math.isnan(row["among_readable_before"]) and row["likelihood_before"] == 0.375
    assert (row["readable_part"], row["answers_part"]) == (pytest.approx(0.375), pytest.approx(0.0))
    assert row["commonest_share_after"] == 0.75
    sentence = "grpo on bbq: the gain of +37.5 points is format"
    page = words(facts)
    assert sentence in facts.headline and sentence in [warning.title for warning in facts.warnings]
    assert page.count(sentence) > 1
    assert "0.0 % of its answers could be read before training and 100.0 % after" in page
    assert "By likelihood 37.5 % were right before and 37.5 % after." in page
    assert f"The report warns: {sentence}." in accuracy_lines(facts)
    assert as_json(facts)["sources"]["format"][0]["bold"] == sentence
    assert list(as_json(facts)["sources"]["format"][0]) == ["bold", "rest"]
    assert as_json(facts)["tables"]["sources"][0]["origin"] == FORMAT


def test_without_likelihoods_the_gain_is_format_or_unknown(tmp_path: Path) -> None:
    (line,) = describe_sources(Numbers(load(folder_of(tmp_path)))).format
    assert line.bold == "grpo on bbq: the gain of +37.5 points is format or unknown"
    assert line.explanation.endswith("is unknown: the runs log no likelihoods.")


def test_better_answers_are_no_format_and_no_box(tmp_path: Path) -> None:
    root = folder_of(tmp_path, before="A" * 16, after="ABC" * 5 + "A")
    facts = gather(load(root))
    (row,) = facts.tables["sources"].frame.to_dict("records")
    assert (row["origin"], row["readable_part"]) == (ANSWERS, 0.0)
    assert not describe_sources(facts.numbers).lines


def test_a_gain_below_the_margin_is_in_the_table_alone(tmp_path: Path) -> None:
    root = folder_of(tmp_path, likely=FORMAT_AFTER)
    numbers = Numbers(load(root, margin=40))
    assert numbers.sources.arms["origin"][0] == FORMAT and not describe_sources(numbers).format


def test_three_seeds_have_an_interval_over_seeds(tmp_path: Path) -> None:
    root = folder_of(tmp_path, likely=TRUTH, seeds=(0, 1, 2))
    (row,) = Numbers(load(root)).sources.arms.to_dict("records")
    # before by likelihood all right, after 6 of 16: 1 · (1 + .375)/2 and (.375 − 1) · 1/2
    assert (row["over"], row["readable_low"]) == ("seeds", pytest.approx(0.6875))
    assert row["answers_part"] == pytest.approx(-0.3125) and row["origin"] == FORMAT


@pytest.mark.parametrize("column", ["outcome", "answer"])
def test_older_folders_say_not_logged(column: str, tmp_path: Path) -> None:
    root = folder_of(tmp_path, without=(column,))
    table = gather(load(root)).tables["sources"]
    assert [list(row) for row in table.rows] == [
        ["grpo" if i else "bbq" for i in range(2)] + ["–"] * 7 + [NOT_LOGGED]
    ]


def test_runs_without_a_second_evaluation_are_left_out(tmp_path: Path) -> None:
    root = folder_of(tmp_path)
    path = root / "grpo-bbq-s0" / "metrics.jsonl"
    path.write_text(path.read_text().splitlines()[1] + "\n")  # no accuracy before training
    numbers = Numbers(load(root))
    assert numbers.sources.runs.empty and "sources" not in gather(numbers).tables


# Answers that are all the same, saturated tasks


@pytest.mark.parametrize(
    ("after", "truth", "constant"),
    [
        ("B" * 16, TRUTH, True),
        ("B" * 15 + "A", TRUTH, True),
        ("B" * 14 + "AA", TRUTH, False),  # 87.5 %
        ("B" * 16, "B" * 16, False),  # B is the right answer to everything
        ("B" * 15 + "A", "B" * 15 + "A", False),
        ("B" * 16, "B" * 15 + "A", True),  # more often than it is right
        ((*"B" * 15, None), TRUTH, True),
        ((*"B" * 14, None, None), TRUTH, False),
        ("B" * 4, "ABCB", False),  # too few problems
    ],
)
def test_same_answer_to_everything_is_named_unless_it_is_right(
    after: Sequence[str | None], truth: str, constant: bool, tmp_path: Path
) -> None:
    root = folder_of(tmp_path, before="A" * len(truth), after=after, truth=truth)
    numbers = Numbers(load(root))
    assert len(constant_answers(numbers.sources)) == constant
    assert len(describe_sources(numbers).constant) == constant


def test_sentence_about_a_constant_answer(tmp_path: Path) -> None:
    root = folder_of(tmp_path, before="A" * 8 + "BCBCBCBC", after="B" * 15 + "A", seeds=(0, 1))
    (line,) = describe_sources(Numbers(load(root))).constant
    assert line.bold == "grpo on bbq answers B to 93.8 % of the problems (seeds 0, 1)"
    assert line.explanation == (
        "That is right in 33.3 % of these cases. Before training the commonest answer was A, 50.0 %."
    )


def test_long_answers_and_control_characters_do_not_reach_the_sentence(tmp_path: Path) -> None:
    root = folder_of(tmp_path, before="A" * 16, after=["\x1b[2J" + "x" * 100] * 16)
    (line,) = describe_sources(Numbers(load(root))).constant
    assert "\x1b" not in line.bold and len(line.bold) < 120
