"""Mixtures of tasks: their recipes, shares, grading, accounting by task and resume."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.whole_runs import configure, rows, run, run_until_killed, same, transcript
from hypothesis import given
from hypothesis import strategies as st

from grpobench.runs.handover.grading import as_columns, problem_of
from grpobench.runs.settings import others
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.stored import dump, load
from grpobench.runs.settings.task_mixture import TaskMixture
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.nanobias import NanoBias
from grpobench.tasks.task import Graded, Verdict

SMALL = {"train": 70, "validation": 14, "test": 21}
ARM = '[model]\nname = "nano"\n[[arm]]\nalgorithm = "grpo"\n'
BOTH = "{ arithmetic = 0.7, nanobias = 0.3 }"
RECIPE = (
    f'tasks = [{{ name = "both", mixture = {BOTH}, tasks = [{{ name = "arithmetic", '
    f"settings = {{ train = 70, validation = 14, test = 21 }} }}] }}]\n{ARM}"
)


def config_of(folder: Path, text: str = RECIPE, *sets: str) -> RunConfig:
    (folder / "mixed.toml").write_text(text)
    return read_recipe(str(folder / "mixed.toml"), [*sets, "seeds=[0]"]).runs()[0]


def mixture(**shares: float) -> TaskMixture:
    parts: dict[str, Any] = {name: {"name": name, "settings": SMALL} for name in shares}
    return TaskMixture(name="both", mixture=shares, parts=parts)


# Recipes


def test_run_toml_of_a_mixture_reads_back_equal_and_names_no_folder(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert load(dump(config)) == config and config.folder == "grpo-both-s0"
    assert str(tmp_path) not in dump(config)  # nothing of the recipe's folder is used
    assert isinstance(config.task, TaskMixture)
    assert config.task.tasks == {"arithmetic": Arithmetic(**SMALL), "nanobias": NanoBias()}


def test_shares_and_settings_of_parts_can_be_set(tmp_path: Path) -> None:
    sets = (
        "task.both.settings.mixture.nanobias=0.7",
        "task.both.settings.parts.arithmetic.settings.train=35",
    )
    problems = config_of(tmp_path, RECIPE, *sets).task.problems("train")
    assert Counter(problem.traits["category"] for problem in problems) == {"arithmetic": 35, "nanobias": 35}


def test_tasks_of_a_file_and_of_a_module_beside_the_recipe_are_mixed(tmp_path: Path) -> None:
    lines = [json.dumps({"q": f"{a}+{a}=", "answer": 2 * a}) for a in range(100)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    (tmp_path / "mine.py").write_text(
        "from grpobench.tasks.letters import Letters\nclass Mine(Letters):\n    name = 'mine'\n"
    )
    entry = '{ name = "sums", jsonl = "sums.jsonl", prompt = "q", verify = "exact" }'
    text = f'tasks = [{{ name = "m", mixture = {{ sums = 2, "mine:Mine" = 1 }}, tasks = [{entry}] }}]\n{ARM}'
    config = config_of(tmp_path, text)
    assert load(dump(config)) == config and "mine:Mine" in others.others(config)
    problems = config.task.problems("train")
    counts = Counter(problem.traits["category"] for problem in problems)
    assert counts["mine"] == -(-len(problems) // 3) or counts["mine"] == len(problems) // 3
    for problem in (problems[0], next(p for p in problems if p.id.startswith("mine/"))):
        (verdict,) = config.task.verify(problem, [config.task.demonstrate(problem)])
        assert verdict.scores["correct"] == 1


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("mixture = { arithmetic = 1 }", "tasks[0].mixture: needs two tasks or more"),
        ("mixture = { arithmetic = 1, letters = 0 }", "mixture.letters: must be above 0 and finite, not 0"),
        ("mixture = { arithmetic = 1, horizon = 1 }", "mixture.horizon: has several turns"),
        ("mixture = { arithmetic = 1, leters = 1 }", "tasks[0].mixture.leters: unknown task 'leters'"),
        ("mixture = 3", "tasks[0].mixture: must be a table, not 3"),
        (f"mixture = {BOTH}, tasks = ['letters']", "tasks[0].tasks: letters has no share in mixture"),
        (f"mixture = {BOTH}, tasks = 3", "tasks[0].tasks: must be a list, not 3"),
        (f"mixture = {BOTH}, settings = {{}}", "tasks[0].settings: unknown key"),
        (f"name = 'letters', mixture = {BOTH}", "tasks[0].name: the suite has another task 'letters'"),
    ],
)  # fmt: skip
def test_wrong_mixture_is_refused_with_its_place(tmp_path: Path, entry: str, why: str) -> None:
    name = "" if "name" in entry else 'name = "both", '
    with pytest.raises(ConfigError) as error:
        config_of(tmp_path, f"tasks = [{{ {name}{entry} }}]\n{ARM}")
    assert why in "\n".join(error.value.faults)


# Problems


@given(
    shares=st.lists(st.floats(0.05, 10), min_size=2, max_size=3),
    sizes=st.lists(st.integers(5, 60), min_size=3, max_size=3),
)
def test_every_beginning_of_a_split_has_the_shares_and_no_problem_twice(
    shares: list[float], sizes: list[int]
) -> None:
    """A task is never a whole problem ahead of its share; so among k it is less than k − 1 behind it."""
    names = ("arithmetic", "letters", "nanobias")[: len(shares)]
    mixed = mixture(**dict(zip(names, shares, strict=True)))
    available = {
        name: mixed.tasks[name].problems("train")[:size] for name, size in zip(names, sizes, strict=False)
    }
    problems = mixed.mixed(available)
    assert len({problem.id for problem in problems}) == len(problems)
    of_task = {name: share / sum(shares) for name, share in zip(names, shares, strict=True)}
    room = min(len(available[name]) / share for name, share in of_task.items())
    assert len(problems) == int(room + 1e-9)
    for count in range(1, len(problems) + 1):
        drawn = Counter(problem.traits["category"] for problem in problems[:count])
        for name, share in of_task.items():
            assert -(len(names) - 1) < drawn[name] - share * count < 1


def test_splits_share_no_problem_and_have_those_of_the_tasks() -> None:
    mixed = mixture(arithmetic=7.0, nanobias=3.0)
    assert [len(mixed.problems(split)) for split in mixed.splits] == [100, 20, 30]
    for split in mixed.splits:
        for name, task in mixed.tasks.items():
            ids = {problem.id for problem in task.problems(split)}
            mine = [p for p in mixed.problems(split) if p.id.startswith(f"{name}/")]
            assert {mixed.inner(problem)[1].id for problem in mine} <= ids


def test_grades_are_those_of_the_problems_own_task_also_after_a_hand_over() -> None:
    mixed = mixture(arithmetic=1.0, nanobias=1.0)
    problems = mixed.problems("test")[:8]
    texts = [[mixed.demonstrate(problem), mixed.corrupt(problem) or "", "?"] for problem in problems]
    judged = mixed.verify_all(problems, [[[text] for text in of_problem] for of_problem in texts])
    for problem, of_problem, verdicts in zip(problems, texts, judged, strict=True):
        name, _, key = problem.id.partition("/")
        task = {"arithmetic": Arithmetic(**SMALL), "nanobias": NanoBias(**SMALL)}[name]
        inner = next(p for p in task.problems("test") if p.id == key)
        assert mixed.inner(problem) == (task, inner) == mixed.inner(problem_of(as_columns(problem)))
        assert verdicts == task.verify(inner, of_problem) == mixed.verify(problem, of_problem)
        assert [verdict.scores["correct"] for verdict in verdicts] == [1, 0, 0]


def test_scores_and_reward_are_what_the_tasks_share() -> None:
    mixed = mixture(arithmetic=1.0, nanobias=1.0)
    assert set(mixed.scores) == set(Arithmetic.scores) & set(NanoBias.scores)
    assert mixed.reward == {"correct": 1.0}
    budgets = [task.max_completion_tokens for task in (Arithmetic(**SMALL), NanoBias(**SMALL))]
    assert mixed.max_completion_tokens == max(budgets)


def test_summary_has_accuracy_by_task_and_what_a_task_says_itself() -> None:
    mixed = mixture(arithmetic=1.0, nanobias=1.0)
    problems = mixed.problems("test")[:20]
    correct = {"arithmetic": [1, 0, 0, 1, 0, 0, 1, 0, 0, 1], "nanobias": [1, 1, 1, 0, 1, 1, 1, 0, 1, 1]}
    graded = []
    for name, values in correct.items():
        mine = [problem for problem in problems if problem.traits["category"] == name]
        right = Verdict({"correct": 1.0, "format": 1.0, "biased": 0.0, "unknown": 0.0}, "a")
        wrong = Verdict({"correct": 0.0, "format": 1.0, "biased": 0.0, "unknown": 0.0}, "b")
        graded += [
            Graded(problem, right if value else wrong) for problem, value in zip(mine, values, strict=True)
        ]
    summary = mixed.summarize(graded)
    assert (summary["accuracy/arithmetic"], summary["accuracy/nanobias"]) == (0.4, 0.8)
    inner = [
        Graded(mixed.inner(row.problem)[1], row.verdict)
        for row in graded
        if row.problem.traits["category"] == "nanobias"
    ]
    expected = NanoBias(**SMALL).summarize(inner)
    assert expected and expected == {
        name.removeprefix("nanobias/"): v for name, v in summary.items() if name.startswith("nanobias/")
    }


# Whole runs


def test_run_accounts_for_each_task_and_goes_on_after_a_kill_as_if_there_was_none(
    policy: str, tmp_path: Path
) -> None:
    config = configure(policy, task=mixture(letters=1.0, arithmetic=1.0))
    run(config, tmp_path / "whole")
    run_until_killed(config, tmp_path / "resumed", 2)
    run(config, tmp_path / "resumed")
    assert same(tmp_path / "whole", tmp_path / "resumed")
    trained = Counter[str]()
    for step, row in enumerate(rows(tmp_path / "whole")[1:], 1):
        groups = transcript(tmp_path / "whole", step)
        for name in ("letters", "arithmetic"):
            mine = [group for group in groups if group["problem"].startswith(f"{name}/")]
            assert row[f"groups/sampled/{name}"] == len(mine)
            scores = [c["scores"]["correct"] for group in mine for c in group["completions"]]
            rewards = [{c["reward"] for c in group["completions"]} for group in mine]
            if mine:
                assert row[f"score/correct/{name}"] == pytest.approx(np.mean(scores))
                assert row[f"groups/zero_signal/{name}"] == np.mean([len(of) == 1 for of in rewards])
            trained[name] += len(mine)
    assert sum(trained.values()) == 12 and min(trained.values()) > 0
    answers = rows(tmp_path / "whole", "eval.jsonl")
    last = rows(tmp_path / "whole")[-1]
    for name in ("letters", "arithmetic"):
        sampled = [
            row["scores"]["correct"]
            for row in answers
            if (row["step"], row["split"], row["mode"]) == (3, "test", "sampled")
            and row["traits"]["category"] == name
        ]
        assert len(sampled) == 2  # one of the two test problems, sampled twice
        assert last[f"eval/test/sampled/accuracy/{name}"] == np.mean(sampled)
