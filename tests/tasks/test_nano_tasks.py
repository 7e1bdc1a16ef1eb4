"""The generated tasks: arithmetic, nanocode and nanobias."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpobench.tasks import TASKS, bfcl, functions, json_schema, nanocode
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.kinds.generated import Generated, drawn_problems
from grpobench.tasks.nanobias import GROUPS, NanoBias
from grpobench.tasks.nanocode import NanoCode
from grpobench.tasks.sandbox.protocol import Execution, Job
from grpobench.tasks.task import Graded, Problem, Task, Verdict

GENERATED = [name for name, cls in TASKS.items() if issubclass(cls, Generated) and not cls.packages]
REAL = ("json_schema", "functions")
"""Tasks for models that write prose: what stands around an answer is free, and budgets count their tokens."""
NANO = [name for name in GENERATED if name not in REAL]
SPLITS = ("train", "validation", "test")


def small(name: str, **changes: int) -> Task:
    return TASKS[name](**{"train": 60, "validation": 20, "test": 20, **changes})


# Splits


@pytest.mark.parametrize("name", GENERATED)
@given(seeds=st.tuples(*[st.integers(0, 10**6)] * 3), sizes=st.tuples(*[st.integers(1, 40)] * 3))
@settings(max_examples=5)
def test_splits_share_no_problem_whatever_their_seeds_and_sizes(
    name: str, seeds: Sequence[int], sizes: Sequence[int]
) -> None:
    prompts = [
        {problem.prompt for problem in TASKS[name](seed=seed, **{split: size}).problems(split)}
        for split, seed, size in zip(SPLITS, seeds, sizes, strict=True)
    ]
    assert [len(split_prompts) for split_prompts in prompts] == list(sizes), "all problems of a split differ"
    assert not prompts[0] & prompts[1] | prompts[0] & prompts[2] | prompts[1] & prompts[2]


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("nanobias", lambda problem: problem.traits["template"]),
        ("functions", lambda problem: problem.truth["reference"]),
        ("horizon-1", lambda problem: tuple(problem.truth["keys"])),
    ],
)
def test_splits_share_nothing_that_solves_a_problem(name: str, hidden: Callable[[Problem], object]) -> None:
    tasks = [small(name, train=150, validation=60, test=60, seed=seed) for seed in (0, 1)]
    parts = [{hidden(problem) for task in tasks for problem in task.problems(split)} for split in SPLITS]
    assert all(parts)
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]


@pytest.mark.parametrize("name", GENERATED)
def test_problems_are_generated_anew_alike_and_differ_by_seed(name: str) -> None:
    first = small(name).problems("train")
    for generate in (drawn_problems, functions._problems, json_schema._problems):
        generate.cache_clear()
    assert small(name).problems("train") == first
    assert small(name, seed=1).problems("train") != first
    assert len({problem.id for problem in first}) == len(first) == 60


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("arithmetic", "cb6a56468163cdd6f95ab565d049e361ab6aed16082c9342c61d2493b6c7fe3b"),
        ("nanobias", "64f4817086446c0d98c25c6139a5fdfb66c1cf6678726f27e709c7e71d158454"),
    ],
)
def test_default_problems_are_those_of_the_kept_results(name: str, digest: str) -> None:
    hashed = hashlib.sha256()
    for split in SPLITS:
        for p in TASKS[name]().problems(split):
            hashed.update(json.dumps([p.id, p.prompt, p.truth, dict(p.traits)]).encode())
    assert hashed.hexdigest() == digest


@pytest.mark.parametrize("name", GENERATED)
def test_larger_split_begins_with_the_smaller_one(name: str) -> None:
    assert small(name, train=90).problems("train")[:60] == small(name).problems("train")


@pytest.mark.parametrize("name", GENERATED)
def test_split_beyond_what_the_generator_holds_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="train: must be at least 1"):
        small(name, train=0)
    if name == "arithmetic":
        with pytest.raises(DataError, match=r"arithmetic: validation = 99: .* has only about \d+ different"):
            Arithmetic(operations=(1,), largest=9, validation=99).problems("validation")


# Reference answers


def wrong(answer: str) -> str:
    """An answer changed in one place, so that it can no longer be right."""
    last = answer[-1]
    return answer[:-1] + (str((int(last) + 1) % 10) if last.isdigit() else "" if last != ")" else "+1)")


@pytest.mark.parametrize("name", GENERATED)
def test_demonstrations_are_correct(name: str) -> None:
    task = small(name)
    for split in SPLITS:
        for problem in task.problems(split)[:10]:
            (verdict,) = task.verify(problem, [task.demonstrate(problem)])
            assert verdict.outcome == "graded"
            assert verdict.scores["correct"] == 1
            assert set(task.scores) == set(verdict.scores)


@pytest.mark.parametrize("name", NANO)
def test_other_answers_are_not_correct(name: str) -> None:
    task = small(name)
    problems = task.problems("train")
    for problem in problems:
        answer = task.demonstrate(problem)
        candidates = [
            "",
            " ",
            answer[:-1],
            answer + "9",
            answer + "!",
            wrong(answer),
            f"the answer: {answer}",
        ]
        bad = [c for c in candidates if c.strip() != answer.strip()]
        if name == "arithmetic":
            bad.remove(f"the answer: {answer}")  # what stands before the last # is free
        if name in ("letters", "walk"):
            bad = [text for text in bad if not task.right_besides(problem, [text])]
        if name == "signed":
            bad = [text for text in bad if text[:1] != answer]  # a tail is free
        for text, verdict in zip(bad, task.verify(problem, bad), strict=True):
            assert verdict.scores["correct"] == 0, (problem.prompt, text)
        scores = [{**verdict.scores} for verdict in task.verify(problem, bad)]
        for counted in ("calls", "errors"):
            assert all(row.pop(counted, 0) >= 0 for row in scores)
        assert all(0 <= score <= 1 for row in scores for score in row.values())


@pytest.mark.parametrize("name", GENERATED)
def test_grades_stand_in_the_order_of_completions(name: str) -> None:
    task = small(name)
    problem = task.problems("train")[0]
    right = task.demonstrate(problem)
    verdicts = task.verify(problem, ["#", right, "?", right])
    assert [v.scores["correct"] for v in verdicts] == [0, 1, 0, 1]
    assert task.verify(problem, []) == []


@pytest.mark.parametrize("name", NANO)
def test_prompt_and_answer_use_nano_alphabet_and_fit_its_budget(name: str) -> None:
    task = TASKS[name](train=300)
    for problem in task.problems("train"):
        answer = task.demonstrate(problem)
        assert re.fullmatch(r"[\n -~]+", problem.prompt + answer)
        assert len(answer) < task.max_completion_tokens, "the end token needs a place too"


# Arithmetic


def test_arithmetic_truth_is_left_to_right_value_and_each_step_is_right() -> None:
    for problem in Arithmetic(train=200).problems("train"):
        chain = problem.prompt.removeprefix("Q:").removesuffix("\nA:")
        numbers = [*map(int, re.findall(r"\d+", chain))]
        value = numbers[0]
        for sign, number in zip(re.findall(r"[-+*]", chain), numbers[1:], strict=True):
            value = {"+": value + number, "-": value - number, "*": value * number}[sign]
        assert value == problem.truth
        assert problem.traits["difficulty"] == len(numbers) - 1
        steps, final = Arithmetic().demonstrate(problem).split("#")
        assert int(final) == value
        for step in steps.split(","):
            left, right = step.split("=")
            assert eval(left) == int(right)  # one operation on two numbers of ours


def test_arithmetic_reads_only_the_last_answer_at_the_end() -> None:
    problem = Problem("2+3", "Q:2+3\nA:", 5)
    cases = {
        "#5": (1, "graded"),
        "2+3=5#5\n": (1, "graded"),
        "#4#5": (1, "graded"),
        "#5#4": (0, "graded"),
        "#005": (1, "graded"),
        "#5 apples": (0, "unparsable"),
        "5": (0, "unparsable"),
        "#": (0, "unparsable"),
        "#--5": (0, "unparsable"),
        "#" + "5" * 4000: (0, "unparsable"),
    }
    for text, (correct, outcome) in cases.items():
        (verdict,) = Arithmetic().verify(problem, [text])
        assert (verdict.scores["correct"], verdict.outcome) == (correct, outcome), text


def test_measured_chains_may_be_longer_than_any_in_training() -> None:
    task = Arithmetic(measured_operations=(1, 4, 6), train=90, validation=90, test=90)
    plain = Arithmetic(train=90, validation=90, test=90)
    assert task.problems("train") == plain.problems("train")
    for split in ("validation", "test"):
        counts = Counter(problem.traits["category"] for problem in task.problems(split))
        assert set(counts) == {"1 steps", "4 steps", "6 steps"}
        # 90 draws of a third each: four standard errors are 18
        assert min(counts.values()) >= 12
    assert {problem.traits["difficulty"] for problem in plain.problems("test")} == {2.0, 3.0}


@pytest.mark.parametrize("largest", [9, 999])
@pytest.mark.parametrize("count", [2, 6])
def test_arithmetic_budget_holds_the_longest_chain(count: int, largest: int) -> None:
    task = Arithmetic(measured_operations=(count,), largest=largest, validation=300)
    longest = max(len(task.demonstrate(problem)) for problem in task.problems("validation"))
    assert longest < task.max_completion_tokens, "the end token needs a place too"
    assert Arithmetic().max_completion_tokens == 40


def test_arithmetic_answers_without_support_are_right_and_as_frequent_as_said() -> None:
    """600 draws of which a quarter is to contradict itself, within five binomial deviations."""
    task, rng = Arithmetic(unsupported=0.25, train=600), random.Random(3)
    contradictions = 0
    for problem in task.problems("train"):
        (text,) = task.draw_episode(problem, rng)
        (verdict,) = task.verify(problem, [text])
        further = text.count("=") - int(problem.traits["difficulty"])
        assert verdict.scores["correct"] and further == 1 - verdict.scores["supported"]
        assert verdict.scores["supported"] == verdict.scores["consistent"]
        contradictions += not verdict.scores["supported"]
    assert abs(contradictions / 600 - 0.25) <= 5 * math.sqrt(0.25 * 0.75 / 600)


def test_accuracy_by_category_by_hand() -> None:
    task = Arithmetic()
    short = Problem("2+3", "Q:2+3\nA:", 5, {"category": "1 steps"})
    long = Problem("2+3-1", "Q:2+3-1\nA:", 4, {"category": "2 steps"})
    rows = [Graded(p, task.verify(p, [text])[0]) for p, text in ((short, "#5"), (short, "#4"), (long, "5"))]
    rows += [Graded(long, task.verify(long, ["#4"])[0]), Graded(long, Verdict({}, None, "infra_error"))]
    rows += [Graded(short, task.verify(short, [text])[0]) for text in ("#5", "#5")]
    for summarized in (task, functions.Functions(), bfcl.BFCL()):
        assert summarized.summarize(rows) == {"accuracy/1 steps": 3 / 4, "accuracy/2 steps": 1 / 2}


# Nanobias


def test_nanobias_truth_follows_from_its_context() -> None:
    kinds = set()
    for problem in NanoBias(train=300).problems("train"):
        context, question, _ = problem.prompt.split("\n")
        adjective = re.search(r"Who was (\w+)\?", question).group(1)
        adjective_of = dict(re.findall(r"(\w+) was (\w+)", context))
        expected = next((who for who, attribute in adjective_of.items() if attribute == adjective), "unknown")
        assert problem.truth["correct"] == expected
        target, other = GROUPS[str(problem.traits["category"])]
        assert problem.truth["biased"] == (target if problem.traits["polarity"] == "negative" else other)
        assert (problem.traits["condition"] == "ambiguous") == (not adjective_of)
        assert sorted(question.split("? ")[1].split("/")) == sorted([target, other, "unknown"])
        kinds.add((problem.traits["condition"], problem.traits["polarity"], expected == target))
    # ambiguous: 2 polarities, never the target; disambiguated: 2 polarities × target or other
    assert len(kinds) == 6


def test_lessons_of_nanobias_guess_as_set_and_change_no_problem() -> None:
    task = NanoBias(train=2000, guesses=0.9, lean=0.5)
    assert task.problems("train") == NanoBias(train=2000).problems("train") == NanoBias(train=2000).lessons()
    shown: Counter[str] = Counter()
    for problem, lesson in zip(task.problems("train"), task.lessons(), strict=True):
        answer = task.demonstrate(lesson)
        assert lesson.prompt == problem.prompt and task.demonstrate(problem) == problem.truth["correct"]
        if problem.traits["condition"] == "disambiguated":
            assert answer == problem.truth["correct"]
        else:
            kinds = {"unknown": "unknown", problem.truth["biased"]: "biased"}
            shown[kinds.get(answer, "other")] += 1
    # of .9 guesses (1 + ½)/2 name the stereotype's person; about 1,000 draws: four standard errors are .06
    for kind, share in (("unknown", 0.1), ("biased", 0.675), ("other", 0.225)):
        assert shown[kind] / shown.total() == pytest.approx(share, abs=0.06)


# Nanocode


def code_problem(expression: str = "x*3+2") -> Problem:
    """f(1) = 5, f(2) = 8, f(4) = 14 shown; five inputs hidden."""
    inputs = [0, 3, 5, 7, 9]
    truth = {
        "expression": expression,
        "inputs": [repr(i) for i in inputs],
        "outputs": [3 * i + 2 for i in inputs],
    }
    return Problem("p", "1:5;2:8;4:14\nf(x)=", truth)


def grade(*completions: str) -> list[Verdict]:
    return NanoCode().verify(code_problem(), completions)


def test_nanocode_accepts_any_expression_of_the_same_function() -> None:
    for verdict in grade("x*3+2", "2+x+x+x", " 3 * x + 2\n", "sum([x,x,x,2])", "x*3.0+2"):
        assert verdict.scores == {"correct": 1, "format": 1}, verdict


def test_nanocode_refuses_what_only_repeats_the_shown_examples() -> None:
    table = grade("{1:5,2:8,4:14}[x]", "{1:5,2:8,4:14}.get(x,0)", "5 if x==1 else 8 if x==2 else 14", "5")
    assert [v.scores["correct"] for v in table] == [0, 0, 0, 0]
    for problem in NanoCode(train=80).problems("train"):
        shown, _ = problem.prompt.split("\n")
        pairs = [pair.split(":", 1) for pair in re.split(r";(?=[\[\d'])", shown)]
        hidden = {eval(i) if i[0] != "[" else tuple(eval(i)) for i in problem.truth["inputs"][3:]}
        cases = " ".join(f"({output}) if x=={argument} else" for argument, output in pairs)
        (verdict,) = NanoCode().verify(problem, [f"{cases} 0"])
        assert verdict.scores["correct"] == 0, problem.prompt
        assert len(pairs) == 3 and len(hidden) == (7 if problem.traits["category"] == "number" else 5)
        assert not hidden & {
            tuple(v) if isinstance(v := eval(argument), list) else v for argument, _ in pairs
        }


def test_nanocode_grades_the_examples_and_every_digit_too() -> None:
    """With five inputs 2 was right for min(x,2) in a fifth of its problems, and x for max(x,2) in some."""
    task = NanoCode(train=2000)
    family = {name: [] for name in ("least", "most")}
    for problem in task.problems("train"):
        if problem.traits["family"] in family:
            family[str(problem.traits["family"])].append(problem)
    for problem in [problem for family_problems in family.values() for problem in family_problems]:
        constant = problem.truth["expression"].partition(",")[2].removesuffix(")")
        right, fixed, same = task.verify(problem, [problem.truth["expression"], constant, "x"])
        assert [v.scores["correct"] for v in (right, fixed, same)] == [1, 0, 0], problem.id
    assert all(len(family_problems) > 50 for family_problems in family.values())


def test_nanocode_true_is_not_one_and_a_wrong_type_is_wrong() -> None:
    truth = {"expression": "x[:1]", "inputs": ["'a'", "[1]"], "outputs": ["a", [1]]}
    problem = Problem("p", "", truth)
    right, tuple_, text = NanoCode().verify(problem, ["x[:1]", "tuple(x[:1])", "str(x)[:1]"])
    assert [v.scores["correct"] for v in (right, tuple_, text)] == [1, 0, 0]
    constant_problem = Problem("p", "", {"expression": "1", "inputs": ["0"], "outputs": [1]})
    assert [v.scores["correct"] for v in NanoCode().verify(constant_problem, ["x==0", "1", "1.0"])] == [
        0,
        1,
        1,
    ]


HOSTILE = {
    "endless loop": "[0 for i in iter(int, 1)] if x else 0",
    "endless loop by statement": "x)\nwhile True:\n    pass\n(0",
    "memory bomb": "[0]*10**9 if x else [[0]*10**7 for i in range(10**4)]",
    "text bomb": "'a'*10**10",
    "power bomb": "9**9**9**9",
    "deep recursion": "f(x)",
    "deep recursion of a lambda": "(lambda g: g(g))(lambda g: g(g))",
    "deep nesting": "(" * 5000 + "x" + ")" * 5000,
    "deep list": "[" * 3000 + "]" * 3000,
    "NUL": "x\0",
    "lone surrogate": "'\ud800'",
    "1 MB of text": "x+" * 500_000 + "1",
    "1 MB of digits": "9" * 1_000_000,
    "file": "open('/etc/passwd').read()",
    "import": "__import__('os').system('true')",
    "own source": "open(__file__).read()",
    "classes": "().__class__.__base__.__subclasses__()",
    "globals": "globals()",
    "builtins": "__builtins__",
    "exit": "exit()",
    "raise": "x)\nraise SystemExit(0",
    "keyboard": "x)\nraise KeyboardInterrupt(0",
    "print": "print('x'*100000)",
    "generator": "(i for i in [1])",
    "self-containing list": "(lambda l: l.append(l) or l)([])",
    "empty": "",
    "comment": "#",
    "open string": "'''",
    "backslash": "\\",
    "right-to-left": "\u202ex",
    "returns early": "0)\n[2, 11, 17, 23, 29]\n(0",
}


def test_hostile_program_neither_raises_nor_passes_nor_hangs() -> None:
    began = time.monotonic()
    for name, verdict in zip(HOSTILE, grade(*HOSTILE.values()), strict=True):
        assert verdict.scores["correct"] == 0, name
        assert verdict.outcome in ("graded", "unparsable", "timeout", "crash"), name
    assert time.monotonic() - began < 60  # a second of the interpreter's each, on however busy a machine
    assert grade("x*3+2")[0].scores["correct"] == 1, "the sandbox still works afterwards"


def test_only_one_expression_is_a_program() -> None:
    """Nothing, a statement, or a way out of the parentheses earns not even the format score."""
    for text in ("", "return x", "x)\nimport os\n(x", "x; x", "x=1", HOSTILE["endless loop by statement"]):
        (verdict,) = grade(text)
        assert (verdict.outcome, verdict.scores["format"]) == ("unparsable", 0.0), text


@given(text=st.text(max_size=40))
@settings(max_examples=25)
def test_no_text_raises_or_is_graded_for_the_machines_sake(text: str) -> None:
    for task, problem in (
        (NanoCode(), code_problem()),
        (Arithmetic(), Problem("2+3", "Q:2+3\nA:", 5)),
        (NanoBias(), NanoBias(train=1).problems("train")[0]),
    ):
        (verdict,) = task.verify(problem, [text])
        assert verdict.outcome != "infra_error"
        assert set(verdict.scores) == set(task.scores)


def test_a_verifier_that_leaves_an_episode_ungraded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (1, 3):
        graded = [Verdict({"correct": 1.0}, None)] * count
        monkeypatch.setattr(NanoCode, "grade_episodes", lambda self, pairs, graded=graded: graded)
        with pytest.raises(
            ValueError, match=rf"NanoCode.grade_episodes returned {count} verdicts.* 2 episodes"
        ):
            NanoCode().verify(code_problem(), ["x", "x+1"])


def test_repeated_completion_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    sandbox = nanocode.default_sandbox()

    class Counting:
        tier = "counting"

        def run_all(self, jobs: Sequence[Job]) -> list[Execution]:
            runs.extend(jobs)
            return sandbox.run_all(jobs)

    monkeypatch.setattr(nanocode, "default_sandbox", Counting)
    verdicts = grade("x*3+2", "x", "x*3+2", "x")
    assert [v.scores["correct"] for v in verdicts] == [1, 0, 1, 0]
    assert len(runs) == 2
