"""The comparison with TRL: its arithmetic, its prompts, its fairness checks, and one real run."""

from __future__ import annotations

import io

import pytest
from helpers.bench_sides import CASE, FLOOR, Stage, quiet
from rich.console import Console

from grpobench.benchmarks import compare
from grpobench.benchmarks.bench import show
from grpobench.benchmarks.cases import UNKNOWN, BenchmarkCase
from grpobench.benchmarks.sides import PHASES, FixedPrompts, process, prompt_texts, share, shares
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "REST", 0.0)


def test_medians_skip_two_warm_up_steps_and_ratios_are_of_them() -> None:
    case, _ = compare.compare(CASE, Stage().start, quiet)
    assert case["warm_up_steps"] == 2 and case["counted_steps"] == 4
    assert case["ours_s"] == 2.5  # of 1, 2, 3, 4
    assert case["trl_s"] == 10.0  # of 10, 10, 5, 50
    assert case["ratio"] == 4.0
    assert case["ours_to_floor"] == 5.0  # 2.5 s over .5 s
    assert case["floor"] == FLOOR.row() and (FLOOR.row()["gflop"], FLOOR.row()["gflop_per_s"]) == (20.0, 40.0)
    assert case["ours_cpu_s"] == 5.0
    assert case["ours_peak_gb"] == 5.0 and case["ours_before_gb"] == 0.5
    assert case["ours_steps_s"] == [1.0, 2.0, 3.0, 4.0]
    assert case["trl_steps_s"] == [10.0, 10.0, 5.0, 50.0]
    assert case["phases"] == dict.fromkeys(PHASES, 0.0) | {"sample": 1.25, "other": 1.25}
    assert list(case["phases"]) == ["sample", "verify", "forward", "backward", "optimize", "other"]


def test_long_steps_are_repeated_three_times_after_one_of_warm_up() -> None:
    stage = Stage(ours=[4.0] * 9, trl=[40.0] * 9)  # 44 s a pair: two of them fit into what is left of 120 s
    case, _ = compare.compare(CASE, stage.start, quiet)
    assert (case["warm_up_steps"], case["counted_steps"]) == (1, 3)
    assert len(case["ours_steps_s"]) == len(case["trl_steps_s"]) == 3


def test_what_is_left_is_told_from_the_warm_up_on() -> None:
    messages: list[tuple[str, float]] = []
    compare.compare(CASE, Stage().start, lambda activity, left: messages.append((activity, left)))
    words = [activity for activity, _ in messages]
    assert words[:4] == [
        "starting TRL",
        "starting ours",
        "first step of the warm-up",
        "step 2 of the warm-up",
    ]
    assert words[4:8] == [f"step {number} of 4" for number in (1, 2, 3, 4)]
    assert [left for _, left in messages[4:8]] == [16.0, 12.0, 8.0, 4.0]  # 2 + 2 s in the last of the warm-up
    assert all(left is UNKNOWN for _, left in messages[:4])


def test_sides_take_turns_and_neither_always_goes_first() -> None:
    stage = Stage()
    compare.compare(CASE, stage.start, quiet)
    steps = ["ours", "trl", "trl", "ours"] * 3
    assert stage.calls == [*steps, "floor of ours", "end ours", "end trl"]


def test_ours_gets_the_prompts_that_the_other_side_has() -> None:
    stage = Stage()
    compare.compare(CASE, stage.start, quiet)
    assert stage.given["trl"].texts == ()
    assert stage.given["ours"].texts == ("made by the first side",)


def test_a_side_that_works_on_other_tokens_stops_the_comparison() -> None:
    with pytest.raises(RuntimeError, match="ours worked on 7 tokens in a step of short, not on 320"):
        compare.compare(CASE, Stage(tokens=7).start, quiet)


def test_the_table_names_both_sides_the_ratio_and_the_floor() -> None:
    text = io.StringIO()
    case, facts = compare.compare(CASE, Stage().start, quiet)
    outcome = {"model": "nano", "precision": "float32", **facts, "cases": [case]}
    show(outcome, Console(file=text, width=120))
    shown = text.getvalue()
    assert "TRL 1.16.0" in shown and "2.500 s" in shown and "10.000 s" in shown and "4.00" in shown
    assert "1.250 s (50%)" in shown
    assert "20.0 GFLOP" in shown and "40 GFLOP/s" in shown and "5.0" in shown
    assert "without attention, softmax" in shown


def test_prompts_differ_and_have_exactly_the_wanted_tokens() -> None:
    def encode(text: str) -> list[int]:  # three tokens of template, then one per word
        return [0, 0, 0, *map(len, text.split())]

    texts = prompt_texts(encode, count=5, tokens=16)
    assert len(set(texts)) == 5
    assert {len(encode(text)) for text in texts} == {16}
    assert texts == prompt_texts(encode, count=5, tokens=16)


def test_a_template_longer_than_the_prompt_is_an_error_that_says_so() -> None:
    with pytest.raises(DataError, match="an empty one has 40"):
        prompt_texts(lambda text: [0] * (40 + len(text)), count=2, tokens=16)


def test_both_sides_reward_the_share_of_one_letter() -> None:
    assert share("eels") == 0.5 and share("") == 0.0
    task = FixedPrompts(texts=("a",))
    (verdict,) = task.verify(task.problems("train")[0], ["eels"])
    assert verdict.scores["share"] == 0.5
    assert shares(["eels", [{"role": "assistant", "content": "eels"}]], trainer_state=None) == [0.5, 0.5]


@pytest.mark.slow
def test_both_real_sides_work_on_the_same_tokens() -> None:
    pytest.importorskip("trl")
    case = BenchmarkCase("tiny", "nano", prompts=2, group=4, prompt_tokens=16, completion_tokens=4, steps=4)
    outcome, facts = compare.compare(case, process, quiet)
    assert len(outcome["ours_steps_s"]) == len(outcome["trl_steps_s"]) == 2
    assert outcome["ratio"] > 0 and outcome["ours_peak_gb"] >= outcome["ours_before_gb"] > 0
    assert sum(outcome["phases"].values()) == pytest.approx(
        outcome["ours_s"], rel=0.2
    )  # medians of two steps
    assert facts["threads"] == 1 and str(facts["trl"]).startswith("1.")
    assert outcome["floor"]["gflop"] > 0 and outcome["ours_to_floor"] > 1


@pytest.mark.slow
def test_a_side_that_cannot_load_its_model_says_why() -> None:
    pytest.importorskip("trl")
    with (
        pytest.raises(ConfigError, match="does not exist"),
        process("ours", BenchmarkCase("tiny", "./no-such-folder", 1, 2, 16, 4, 1, texts=("a",))),
    ):
        pass
