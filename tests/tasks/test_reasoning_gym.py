"""Locks: every generator is a task; splits share nothing; scorers run apart, within limits, and no code."""

from __future__ import annotations

import base64
import json
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpobench.runs.inventory import listing, showing
from grpobench.runs.settings import stored
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks import TASKS, reasoning_gym
from grpobench.tasks.data import sources
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.reasoning_gym import ReasoningGym, answered, sum_in_steps
from grpobench.tasks.task import Problem, Verdict
from grpobench.tasks.workers.gym_mended import PROOFS
from grpobench.tasks.workers.pool import Pool, Reply


@pytest.fixture(scope="module", autouse=True)
def two_workers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        workers = Pool("grpobench.tasks.workers.gym:gym", workers=2)
        patch.setattr(reasoning_gym, "POOL", workers)
        yield
        workers.close()


@pytest.fixture
def installed() -> None:
    if lack := ReasoningGym().missing():
        pytest.skip(lack)


def small(name: str, **settings: object) -> ReasoningGym:
    return reasoning_gym.TASKS[f"reasoning_gym:{name}"](
        **{"train": 6, "validation": 1, "test": 2, **settings}
    )


def some(name: str) -> tuple[ReasoningGym, list[Problem]]:
    """24 problems, of one size in all tests: puzzles that take long are then made once."""
    task = small(name, train=24)
    return task, list(task.problems("train"))


def all_of(task: ReasoningGym) -> list[Problem]:
    return [problem for split in task.splits for problem in task.problems(split)]


def graded(task: ReasoningGym, *answers: str) -> list[Verdict]:
    return task.verify(task.problems("train")[0], [f"<answer>{answer}</answer>" for answer in answers])


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("so <answer>42</answer>", "42"),
        ("<answer> 4\n2 </answer>.", "4\n2"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1 <answer>2</answer>", "2"),
        ("<answer></answer>", ""),
        ("</answer><answer>1", None),
        ("<answer>1", None),
        ("42", None),
        ("", None),
        ("<answer>" + "1" * 30_000 + "</answer>", None),
        ("<answer>" * 100_000 + "</answer>" * 100_000, None),
    ],
)
def test_answer_stands_between_the_last_tags(completion: str, answer: str | None) -> None:
    assert answered(completion) == answer


@given(
    st.lists(st.tuples(st.sampled_from("+-"), st.integers(0, 99)), min_size=1, max_size=5), st.integers(0, 99)
)
def test_steps_of_a_sum_end_at_its_value(terms: list[tuple[str, int]], first: int) -> None:
    """Python's own arithmetic is the reference, for every line and for the whole."""
    chain = f"{first}" + "".join(f" {sign} {number}" for sign, number in terms)
    steps = sum_in_steps(
        f"State the final answer to the following arithmetic problem: {chain} ="
    ).splitlines()
    assert len(steps) == len(terms)
    for line in steps:
        left, right = line.split(" = ")
        assert eval(left) == int(right)
    assert int(steps[-1].split(" = ")[1]) == eval(chain)


def test_a_warm_start_of_sums_has_answers_with_steps_and_without(installed: None) -> None:
    task = small("chain_sum")
    rng = random.Random(0)
    drawn = [task.draw_episode(problem, rng) for problem in task.problems("train") for _ in range(4)]
    worked = [episode for episode in drawn if "=" in episode[0]]
    assert 0.25 < len(worked) / len(drawn) < 0.75
    for problem in task.problems("train"):
        episode = task.draw_episode(problem, rng)
        assert task.verify(problem, episode)[0].scores["correct"] == 1.0
    plain = small("gcd")
    (problem, *_) = plain.problems("train")
    assert plain.draw_episode(problem, rng) == (plain.demonstrate(problem),)


def test_every_generator_of_the_package_is_a_task(installed: None) -> None:
    code = (
        "import reasoning_gym, json; from reasoning_gym.factory import DATASETS as found; "
        "from grpobench.tasks.workers.gym import parts; "
        "print(json.dumps({name: kind.__module__.split('.')[1] for name, (kind, _) in found.items()})); "
        "print(json.dumps([part['name'] for part in parts('{}')]))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    category_by_name, mixed = map(json.loads, shown.splitlines())
    package = {**category_by_name, "composite": "several kinds"}
    ours = {name: category for category, names in reasoning_gym.GENERATORS.items() for name in names.split()}
    assert ours == package
    assert {f"reasoning_gym:{name}" for name in ours} == {name for name in TASKS if ":" in name}
    assert len(ours) == 106
    assert set(mixed) == ours.keys() - {"composite"} - reasoning_gym.REFUSED.keys()


PLAIN = ["chain_sum", "leg_counting", "knights_knaves", "maze", "coin_flip", "acre", "list_functions"]
ODD = [
    "ab",
    "boxnet",
    "game_of_life_halting",
    "graph_color",
    "rush_hour",
    "time_intervals",
]


@pytest.mark.parametrize("name", [*PLAIN, *ODD])
def test_references_are_accepted_and_corrupted_ones_are_not(installed: None, name: str) -> None:
    """The odd ones take an empty answer, have no reference or keep it elsewhere, or take too much."""
    task = small(name)
    problems = all_of(task)
    assert [len(task.problems(split)) for split in task.splits] == [6, 1, 2]
    assert len({problem.id for problem in problems}) == len({problem.prompt for problem in problems}) == 9
    answers = [[[task.demonstrate(problem)], [task.corrupt(problem)], ["?"]] for problem in problems]
    for right, wrong, none in task.verify_all(problems, answers):
        assert (right.scores, right.outcome) == ({"correct": 1.0, "score": 1.0, "format": 1.0}, "graded")
        assert wrong.outcome == "graded" and wrong.scores["correct"] == 0.0
        assert 0 <= wrong.scores["score"] < 1
        assert (none.scores["format"], none.answer, none.outcome) == (0.0, None, "unparsable")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for names in reasoning_gym.GENERATORS.values()
        for name in names.split()
        if name not in reasoning_gym.REFUSED
    ),
)
def test_every_generator_accepts_its_references(installed: None, name: str) -> None:
    task = small(name)
    problems = all_of(task)
    answers = [[[task.demonstrate(problem)], [task.corrupt(problem)], [""]] for problem in problems]
    for right, wrong, none in task.verify_all(problems, answers):
        assert [verdict.scores["correct"] for verdict in (right, wrong, none)] == [1.0, 0.0, 0.0]
        assert right.outcome == "graded"


FOOLING = {
    "complex_arithmetic": ["nan", "-nan", "NaN+NaNi", "nanj"],
    "coin_flip": ["0", "0.0", "0/1", "0.", "1e-9", "0.3"],
    "countdown": ["1.0", "2.4*10", "100", "10**2"],
    "letter_jumble": ["{answer} and more"],
    "number_sorting": ["{nan}", "{shifted}"],
    "polynomial_equations": ["yes, {answer}", "{answer}, or not", "nan", "inf"],
    "puzzle24": ["1*2*3*4", "24", "8+8+8+0", "3*8*1*1*1"],
}


@pytest.mark.parametrize("name", FOOLING)
def test_answers_that_fool_a_generators_own_scorer_are_wrong(installed: None, name: str) -> None:
    task, problems = some(name)
    for problem in problems:
        reference = (answered(task.demonstrate(problem)) or "").replace("'", "")
        numbers = reference.strip("[]").split(", ")
        filled = {
            "{answer}": reference,
            "{nan}": str(["nan"] * len(numbers)),
            "{shifted}": str([number + "1" if "." in number else number + ".5" for number in numbers]),
        }
        for text in FOOLING[name]:
            for hole, value in filled.items():
                text = text.replace(hole, value)
            (verdict,) = task.verify(problem, [f"<answer>{text}</answer>"])
            assert verdict.scores["correct"] == 0.0 and verdict.scores["score"] < 1, (text, reference)
    right = task.verify_all(problems, [[[task.demonstrate(problem)]] for problem in problems])
    assert {verdict.scores["correct"] for (verdict,) in right} == {1.0}


@pytest.mark.parametrize(
    ("name", "spelling"),
    [
        ("coin_flip", "{numerator}/{denominator}"),
        ("coin_flip", "{decimal}"),
        ("puzzle24", "({answer})"),
        ("countdown", " ( {answer} ) "),
        ("complex_arithmetic", "({answer})"),
    ],
)
def test_other_spellings_of_a_right_answer_stay_right(installed: None, name: str, spelling: str) -> None:
    task, problems = some(name)
    for problem in problems[:8]:
        metadata = pickle.loads(base64.b64decode(problem.truth["entry"]))["metadata"]
        rational = metadata.get("rational", {"numerator": 0, "denominator": 1})
        decimal = f"{rational['numerator'] / rational['denominator']:.6g}"
        reference = answered(task.demonstrate(problem))
        text = spelling.format(answer=reference, decimal=decimal, **rational)
        (verdict,) = task.verify(problem, [f"<answer>{text}</answer>"])
        assert verdict.scores["correct"] == 1.0, (text, reference)


PROVEN = {
    "countdown": lambda text: f"{text} + 1",
    "graph_color": lambda text: json.dumps(dict.fromkeys(json.loads(text), 1)),
    "jugs": lambda text: json.dumps(json.loads(text)[:-1]),
    "n_queens": lambda text: text.replace("Q", "_", 1),
    "puzzle24": lambda text: f"{text} + 1 - 1",
    "quantum_lock": lambda text: f"{text} → {text}",
    "sokoban": lambda text: text[:-1],
}


@pytest.mark.parametrize("name", PROVEN)
def test_non_reference_solutions_are_proven_independently_of_scorer(installed: None, name: str) -> None:
    """What the scorer takes is right by a check that shares nothing with it, and of other problems' answers
    both take the same."""
    assert PROVEN.keys() == PROOFS.keys()
    task, problems = some(name)
    problems = problems[:12]
    references = [task.demonstrate(problem) for problem in problems]
    for problem, reference in zip(problems, references, strict=True):
        assert task.right_besides(problem, (reference,))
        wrong = PROVEN[name](answered(reference) or "")
        assert not task.right_besides(problem, (f"<answer>{wrong}</answer>",))
        assert not task.right_besides(problem, ("<answer>{}</answer>",))
        for other, verdict in zip(references, task.verify(problem, references), strict=True):
            assert task.right_besides(problem, (other,)) == (verdict.scores["correct"] == 1.0)


def test_a_generator_that_a_constant_fools_is_refused_with_the_reason(installed: None) -> None:
    refused = small("propositional_logic", train=24)
    assert "(P ∨ Q)" in refused.missing()
    taken = [refused.verify(p, ["<answer>(P ∨ Q)</answer>"])[0] for p in refused.problems("train")]
    assert sum(verdict.scores["correct"] for verdict in taken) > 0.7 * len(taken)
    with pytest.raises(ValueError, match=r"datasets: propositional_logic: .*\(P ∨ Q\)"):
        small("composite", config={"datasets": [{"name": "propositional_logic"}]})
    kinds = {problem.traits["category"] for problem in some("composite")[1]}
    assert "propositional_logic" not in kinds and len(kinds) > 10


def test_prompt_asks_for_the_answer_between_tags(installed: None) -> None:
    problem = small("leg_counting").problems("test")[0]
    assert problem.prompt.endswith("write only the final answer between <answer> and </answer>.\n")
    assert problem.traits == {"category": "leg_counting"}
    assert "legs" in problem.prompt
    bare = small("leg_counting", template="answer_only").problems("test")[0]
    assert bare.id == problem.id
    assert bare.prompt.endswith("between <answer> and </answer> and nothing else.\n")


def test_splits_do_not_depend_on_each_others_sizes_or_number_of_cores(
    installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = small("gcd", train=20, validation=3, test=5)
    second = small("gcd", train=10, validation=6, test=9)
    assert second.problems("train") == first.problems("train")[:10]
    assert first.problems("test") == second.problems("test")[:5]
    ids = [{problem.id for problem in task.problems(s)} for task in (first, second) for s in task.splits]
    assert not (ids[0] | ids[3]) & (ids[1] | ids[2] | ids[4] | ids[5])
    problems_before = {split: first.problems(split) for split in first.splits}
    sums = first.sources("train")
    reasoning_gym._stream.cache_clear()
    monkeypatch.setattr(reasoning_gym, "worker_slots", lambda: 5)
    assert {split: first.problems(split) for split in first.splits} == problems_before
    assert first.sources("train") == sums
    assert [source.table for source in sums] == ["reasoning_gym/gcd/train", "prompts/reasoning_gym.txt"]
    assert sums[0].rows == 20 and sums[0].location == "reasoning-gym 0.1.25: gcd"


def test_seeds_of_neighboring_streams_share_no_problem(installed: None) -> None:
    """The package's own data sets of seeds 0 and 1 share all problems but one."""
    seed_0, seed_1 = ({p.prompt for p in all_of(small("chain_sum", train=40, seed=seed))} for seed in (0, 1))
    assert len(seed_0) == len(seed_1) == 43
    assert not seed_0 & seed_1


def test_generator_with_few_problems_gives_what_it_has(installed: None) -> None:
    few = small("products", config={"min_digits": 1, "max_digits": 1}, train=200, validation=20, test=50)
    sizes = [len(few.problems(split)) for split in few.splits]
    assert all(0 < size < most for size, most in zip(sizes, (200, 20, 50), strict=True))
    assert sum(sizes) <= 100
    with pytest.raises(DataError, match=r"512 problems, and none of them for .*set another `config`"):
        small("prime_factorization", config={"min_value": 2, "max_value": 3}).problems("train")


ATTACKS = [
    "__import__('pathlib').Path({mark!r}).touch()",
    "open({mark!r}, 'w')",
    "[__import__('os').mkdir({mark!r})]",
    "().__class__.__base__.__subclasses__()",
    "entry['answer']",
    "self._get_answer(entry['metadata']['string'])",
    "list(entry['answer'])",
    "exit()",
    "exec('import os; os.mkdir({mark!r})')",
    "(lambda: open({mark!r}, 'w'))()",
    "x.diff.__globals__",
    "S('__import__(1)')",
    "sympify('1')",
    "print(1)",
]


@pytest.mark.parametrize(
    "name",
    [
        *("binary_matrix", "n_queens", "number_sorting", "spiral_matrix", "string_insertion"),
        *("countdown", "polynomial_multiplication", "puzzle24", "simple_integration"),
    ],
)
def test_no_scorer_evaluates_what_a_model_wrote(installed: None, tmp_path: Path, name: str) -> None:
    """These scorers hand the answer to Python's eval or to sympy's parser, which does the same."""
    mark = tmp_path / "touched"
    task, (problem, *_) = some(name)
    answers = [attack.format(mark=str(mark)) for attack in ATTACKS]
    verdicts = graded(task, *answers)
    assert [verdict.scores["correct"] for verdict in verdicts] == [0.0] * len(answers)
    assert {verdict.outcome for verdict in verdicts} <= {"graded", "crash"}
    assert list(tmp_path.iterdir()) == []
    (reference,) = task.verify(problem, [task.demonstrate(problem)])
    assert reference.scores["correct"] == 1.0  # formulas and lists are still read


def test_scorer_that_hangs_or_raises_is_told_apart_from_a_wrong_answer(
    installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reasoning_gym.POOL, "cpu_seconds", 0.5)
    hung, wrong = graded(small("rush_hour"), "A+" + "9" * 15, "B-1")
    assert (hung.outcome, hung.scores["correct"], hung.scores["score"]) == ("timeout", 0.0, 0.0)
    assert (wrong.outcome, wrong.scores["correct"]) == ("graded", 0.0)
    (raised,) = graded(small("boxnet"), "[1]")
    assert (raised.outcome, raised.scores["correct"]) == ("crash", 0.0)


@pytest.mark.parametrize(
    ("reply", "outcome", "score"),
    [
        (Reply("done", 0.3), "graded", 0.3),
        (Reply("done", 1.0), "graded", 1.0),
        (Reply("done", 1.5), "crash", 0.0),
        (Reply("done", float("nan")), "crash", 0.0),
        (Reply("done", None), "crash", 0.0),
        (Reply("raised", "x"), "crash", 0.0),
        (Reply("crash"), "crash", 0.0),
        (Reply("timeout"), "timeout", 0.0),
        (Reply("infra_error"), "infra_error", 0.0),
    ],
)
def test_outcomes(reply: Reply, outcome: str, score: float) -> None:
    verdict = reasoning_gym.verdict("7", reply)
    assert verdict == Verdict({"correct": float(score == 1), "score": score, "format": 1.0}, "7", outcome)


@pytest.mark.parametrize(
    "answer", ["", "\ud800\x00", "9" * 15_000, "nan", "1e999999", "((((", "{" * 5_000, "٣"]
)
def test_odd_texts_are_wrong_and_no_more(installed: None, answer: str) -> None:
    for name in ("chain_sum", "countdown", "rubiks_cube", "number_sorting"):
        (verdict,) = graded(small(name, train=1, validation=1, test=1), answer)
        assert verdict.scores["correct"] == 0.0
        assert verdict.outcome in ("graded", "crash", "timeout")


@pytest.mark.parametrize(
    ("name", "config", "reason"),
    [
        ("gcd", {"numbers": 3}, "numbers.*; its settings: min_numbers, max_numbers"),
        ("gcd", {"min_numbers": 1}, "config: min_numbers must be at least 2"),
        ("composite", {"datasets": [{"name": "nonesuch"}]}, "'nonesuch' not registered"),
    ],
)
def test_bad_configurations_say_what_is_known(
    installed: None, name: str, config: dict[str, object], reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        small(name, config=config).problems("train")


def test_composite_mixes_what_it_is_told(installed: None) -> None:
    parts = [{"name": "gcd"}, {"name": "lcm", "weight": 2.0, "config": {"max_value": 20}}]
    task = small("composite", config={"datasets": parts}, train=30)
    kinds = [problem.traits["category"] for problem in all_of(task)]
    assert set(kinds) == {"gcd", "lcm"} and kinds.count("lcm") > kinds.count("gcd")
    verdicts = task.verify_all(all_of(task), [[[task.demonstrate(p)]] for p in all_of(task)])
    assert {verdict.scores["correct"] for (verdict,) in verdicts} == {1.0}


RECIPE = """
tasks = ["reasoning_gym:gcd", { name = "reasoning_gym:composite", settings = { train = 9, \
config = { datasets = [{ name = "lcm", config = { max_value = 9 } }] } } }]
on."reasoning_gym:gcd".train.steps = 3
[[arm]]
algorithm = "grpo"
"""


def test_names_and_settings_in_recipes_survive_their_run_files(installed: None, tmp_path: Path) -> None:
    path = tmp_path / "mix.toml"
    path.write_text(RECIPE)
    runs = read_recipe(str(path), ["task.reasoning_gym:gcd.settings.seed=5"]).runs()
    assert [run.task.name for run in runs] == ["reasoning_gym:gcd", "reasoning_gym:composite"]
    assert [run.folder for run in runs] == ["grpo-reasoning_gym-gcd-s0", "grpo-reasoning_gym-composite-s0"]
    assert (runs[0].train.steps, runs[0].task.seed) == (3, 5)
    for run in runs:
        assert stored.load(stored.dump(run)) == run
        assert pickle.loads(pickle.dumps(run)) == run
    with pytest.raises(ConfigError, match=r"did you mean reasoning_gym:gcd\?"):
        read_recipe(str(path), ["tasks=reasoning_gym:gdc"])


def test_lists_name_every_kind_once() -> None:
    rows = listing.task_rows()
    assert len([row for row in rows if row["name"].startswith("reasoning_gym:")]) == 106
    lines = listing.as_lines(rows)
    assert [line for line in lines if "reasoning_gym" in line] == [
        "reasoning_gym:NAME  NAME is one of these 106:"
    ]
    words = " ".join(lines).split()
    assert words.count("sudoku") == words.count("zebra_puzzles") == 1
    assert showing.show("task", "reasoning_gym:gcd")["scores"] == ["correct", "score", "format"]


def test_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find", lambda package: None)
    assert "reasoning-gym==0.1.25" in small("gcd").missing()
    assert "template 'none': unknown" in small("gcd", template="none").missing()


def test_package_that_cannot_be_imported_is_a_data_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasoning_gym, "POOL", Pool("no_such_module:gym"))
    with pytest.raises(DataError, match="reasoning_gym:gcd: problems could not be made: infra_error"):
        small("gcd", seed=77).problems("train")
