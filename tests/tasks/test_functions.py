"""Generated functions: every operation by hand, problems that only the right function solves, the sandbox."""

from __future__ import annotations

import builtins
import collections
import json
import keyword
import random
from typing import Any

import pytest

from grpobench.tasks.functions import HIDDEN, Functions, third_person
from grpobench.tasks.grading.asserts import convert, holds
from grpobench.tasks.kinds import compositions
from grpobench.tasks.kinds.compositions import OPERATIONS, Step, Undefined
from grpobench.tasks.kinds.programs import in_block
from grpobench.tasks.prompts.templates import template
from grpobench.tasks.sandbox import choose
from grpobench.tasks.sandbox.protocol import Tier

TASK = Functions(train=150, validation=30, test=30)
LONG = Functions(operations=(3,), shown=3, train=40, validation=10, test=10)

NUMBERS, WORDS, TEXT = [3, -2, 8, 3], ["pan", "island", "Eve"], "Eve got a tree"
BY_HAND: dict[str, tuple[Any, Any, Any]] = {
    # operation: constant, argument, result
    "evens": (None, NUMBERS, [-2, 8]),
    "odds": (None, [*NUMBERS, -5], [3, 3, -5]),
    "positives": (None, [*NUMBERS, 0], [3, 8, 3]),
    "above": (3, NUMBERS, [8]),
    "below": (3, NUMBERS, [-2]),
    "times": (4, NUMBERS, [12, -8, 32, 12]),
    "plus": (4, NUMBERS, [7, 2, 12, 7]),
    "minus": (4, NUMBERS, [-1, -6, 4, -1]),
    "squares": (None, NUMBERS, [9, 4, 64, 9]),
    "negated": (None, NUMBERS, [-3, 2, -8, -3]),
    "absolutes": (None, NUMBERS, [3, 2, 8, 3]),
    "ascending": (None, NUMBERS, [-2, 3, 3, 8]),
    "descending": (None, NUMBERS, [8, 3, 3, -2]),
    "backwards": (None, NUMBERS, [3, 8, -2, 3]),
    "distinct": (None, NUMBERS, [3, -2, 8]),
    "without_first": (None, NUMBERS, [-2, 8, 3]),
    "without_last": (None, NUMBERS, [3, -2, 8]),
    "head": (2, NUMBERS, [3, -2]),
    "alternate": (None, NUMBERS, [3, 8]),
    "total": (None, NUMBERS, 12),
    "count": (None, NUMBERS, 4),
    "largest": (None, NUMBERS, 8),
    "smallest": (None, NUMBERS, -2),
    "first": (None, [5, 6], 5),
    "last": (None, [5, 6], 6),
    "spread": (None, NUMBERS, 10),
    "add": (7, 5, 12),
    "subtract": (7, 5, -2),
    "multiply": (7, 5, 35),
    "square": (None, -5, 25),
    "remainder": (4, 11, 3),
    "quotient": (4, 11, 2),
    "digit_sum": (None, 407, 11),
    "digits": (None, 407, [4, 0, 7]),
    "count_up": (None, 3, [1, 2, 3]),
    "upper": (None, TEXT, "EVE GOT A TREE"),
    "lower": (None, TEXT, "eve got a tree"),
    "mirrored": (None, TEXT, "eert a tog evE"),
    "twice": (None, "ab c", "ab cab c"),
    "closed_up": (None, TEXT, "Evegotatree"),
    "no_vowels": (None, TEXT, "v gt  tr"),
    "dashed": ("e", TEXT, "Ev- got a tr--"),
    "start": (3, TEXT, "Eve"),
    "length": (None, TEXT, 14),
    "vowels": (None, TEXT, 6),
    "letters": ("e", TEXT, 3),
    "split": (None, TEXT, ["Eve", "got", "a", "tree"]),
    "sorted_words": (None, WORDS, ["Eve", "island", "pan"]),
    "by_length": (None, WORDS, ["pan", "Eve", "island"]),
    "words_backwards": (None, WORDS, ["Eve", "island", "pan"]),
    "long_words": (3, WORDS, ["island"]),
    "shouted": (None, WORDS, ["PAN", "ISLAND", "EVE"]),
    "mirrored_words": (None, WORDS, ["nap", "dnalsi", "evE"]),
    "rest": (None, WORDS, ["island", "Eve"]),
    "lengths": (None, WORDS, [3, 6, 3]),
    "joined": ("+", WORDS, "pan+island+Eve"),
    "initials": (None, WORDS, "piE"),
    "number_of_words": (None, WORDS, 3),
}
STEPS = {
    operation.name: Step(operation, operation.constants[0] if operation.constants else None)
    for operation in OPERATIONS
}


def step(name: str, constant: Any = None) -> Step:
    return Step(STEPS[name].operation, constant)


# Operations


@pytest.mark.parametrize("name", BY_HAND)
def test_operations_by_hand(name: str) -> None:
    constant, argument, result = BY_HAND[name]
    single_step = step(name, constant)
    assert compositions.value((single_step,), argument) == result
    assert (constant in single_step.operation.constants) or not single_step.operation.constants
    assert (
        ("{k}" in single_step.operation.phrase)
        == ("{k}" in single_step.operation.code)
        == bool(single_step.operation.constants)
    )


def test_every_operation_is_worked_by_hand_under_a_name_of_its_own() -> None:
    names = [operation.name for operation in OPERATIONS]
    assert sorted(names) == sorted(BY_HAND) and len(set(names)) == len(names)
    assert not [name for name in names if hasattr(builtins, name) or keyword.iskeyword(name)]


def test_a_function_is_written_and_described_step_by_step() -> None:
    composition = (step("evens"), step("times", 3), step("total"))
    assert compositions.source(composition) == (
        "def evens_times_total(numbers):\n"
        "    numbers = [n for n in numbers if n % 2 == 0]\n"
        "    numbers = [n * 3 for n in numbers]\n"
        "    return sum(numbers)"
    )
    assert [part.phrase for part in composition] == [
        "keep only the even numbers",
        "multiply each number by 3",
        "add up all numbers",
    ]
    assert third_person("multiply each number by 3") == "multiplies each number by 3"
    assert third_person("add up all numbers") == "adds up all numbers"
    left_out = [len(rival) for rival in compositions.rivals(composition)]
    # the argument itself, one step left out, seven other constants
    assert sorted(left_out) == [0, 2, 2, 2, *[3] * 7]
    with pytest.raises(Undefined):
        compositions.value((step("evens"), step("largest")), [1, 3])
    with pytest.raises(Undefined, match="large"):
        compositions.value((step("count_up"),), 61)


# Problems


@pytest.mark.parametrize("task", [TASK, LONG])
def test_hidden_inputs_tell_the_function_from_constants_and_near_ones(task: Functions) -> None:
    """Constants by the conditions that grade; near functions by running sources that this test writes."""
    for problem in task.problems("train"):
        conditions, count = problem.truth["conditions"], len(problem.truth["calls"])
        results = [json.loads(condition.partition(" == ")[2].replace("'", '"')) for condition in conditions]
        hidden = conditions[task.shown :]
        assert count == len(conditions) == task.shown + HIDDEN
        for constant in [*results, 0, 1, "", [], None, True]:
            assert not all(holds(condition, [constant] * count) for condition in hidden)
        lines = problem.truth["reference"].split("\n")
        shorter = ["\n".join(lines[:i] + lines[i + 1 :]) for i in range(1, len(lines) - 1)]
        argument = lines[0].partition("(")[2].removesuffix("):")
        for program in [f"{lines[0]}\n    return {argument}", *shorter]:
            values = [run(program, call) for call in problem.truth["calls"]]
            assert not all(holds(condition, values) for condition in hidden), (program, problem.prompt)
        right = [run(problem.truth["reference"], call) for call in problem.truth["calls"]]
        assert right == results


def run(program: str, call: str) -> Any:
    """The value of a call in plain Python; None for an error. The program is ours."""
    names: dict[str, Any] = {}
    exec(program, names)
    try:
        return eval(call, names)
    except Exception:
        return None


def test_a_step_without_an_effect_makes_no_problem() -> None:
    """Sorting before a sum: no input tells the function from the sum alone."""
    clusters = {str(p.traits["cluster"]) for p in Functions(operations=(2,), train=400).problems("train")}
    assert len(clusters) > 200
    useless = compositions.source((step("ascending"), step("total")))
    assert useless not in clusters
    for cluster in clusters:
        assert "sorted" not in cluster or not cluster.endswith(("return sum(numbers)", "return len(numbers)"))


def test_the_prompt_shows_the_sentence_and_as_many_examples_as_set() -> None:
    for task in (TASK, LONG):
        for problem in task.problems("train"):
            asserts = [line for line in problem.prompt.split("\n") if line.startswith("assert ")]
            pairs = zip(problem.truth["calls"], problem.truth["conditions"], strict=True)
            published = [f"assert {call} == {condition.partition(' == ')[2]}" for call, condition in pairs]
            assert asserts == published[: task.shown]
            assert not any(call in problem.prompt for call in problem.truth["calls"][task.shown :])
            calls, conditions = convert("\n".join(published), {problem.truth["entry"]})
            assert (calls, conditions) == (problem.truth["calls"], problem.truth["conditions"])
            assert int(problem.traits["difficulty"]) == problem.truth["reference"].count("\n")
            assert str(problem.traits["category"]).startswith(f"{problem.traits['difficulty']:.0f} operation")
    assert "return the result" in TASK.problems("train")[0].prompt.replace("returns", "return")


def test_every_operation_occurs() -> None:
    """Of 900 problems with one operation each of 58 has fifteen; none is dropped for lack of inputs."""
    entries = collections.Counter(
        problem.truth["entry"]
        for split in ("train", "validation", "test")
        for problem in Functions(operations=(1,), train=900, validation=100, test=100).problems(split)
    )
    assert set(entries) == set(BY_HAND)


# Grading


def test_references_pass_and_others_fail_in_every_tier(tier: Tier) -> None:
    task = Functions(tier=tier, train=12, operations=(1, 2, 3))
    problems = task.problems("train")
    assert task.missing() == "" and task.sandbox() == tier
    episodes = []
    for problem in problems:
        entry, example = problem.truth["entry"], problem.truth["conditions"][0].partition(" == ")[2]
        episodes.append(
            [
                (task.demonstrate(problem),),
                (task.corrupt(problem),),
                (in_block(f"def {entry}(value):\n    return {example}"),),
                (in_block(f"def {entry}(value):\n    return value"),),
                ("",),
                ("I cannot write programs.",),
            ]
        )
    verdicts = task.verify_all(problems, episodes)
    assert [[v.scores["correct"] for v in problem_verdicts] for problem_verdicts in verdicts] == [
        [1, 0, 0, 0, 0, 0]
    ] * len(problems)
    assert {problem_verdicts[-1].outcome for problem_verdicts in verdicts} == {"unparsable"}


def test_every_operation_runs_in_every_tier(tier: Tier) -> None:
    """Monty lacks parts of Python; what references use it has."""
    programs = [compositions.source((step(name, constant),)) for name, (constant, _, _) in BY_HAND.items()]
    calls = [f"{name}({argument!r})" for name, (_, argument, _) in BY_HAND.items()]
    execution = choose.sandbox(tier).run("\n\n\n".join(programs), calls)
    assert execution.outcome == "pass", execution.detail
    assert execution.values == tuple(result for _, _, result in BY_HAND.values())


def test_the_template_is_a_source() -> None:
    assert "unknown" in Functions(template="nope").missing()
    assert TASK.sources("train") == (template("mbpp").source,)


def test_budget_holds_the_longest_reference() -> None:
    """In characters over two: a token of a real tokenizer is rarely shorter in code."""
    problems = Functions(operations=(3,), train=60).problems("train")
    chosen = random.Random(0).sample(problems, 40)
    assert max(len(TASK.demonstrate(problem)) for problem in chosen) / 2 < Functions.max_completion_tokens
