"""A verifier is asked about answers of which it is known whether they are right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.toys import Letters
from helpers.whole_runs import configure, run

from grpobench.runs.reward.verifier_check import demand, faults, verifier_checks
from grpobench.runs.settings.checks import ChecksConfig
from grpobench.runs.settings.config import EvaluateConfig, TrainConfig
from grpobench.runs.settings.findings import findings, read_finding
from grpobench.runs.settings.recipe import Recipe, read_recipe, recipes
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks import TASKS
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Split, Task, Verdict


@dataclass(frozen=True)
class Thirds(Task):
    """Nine problems with the truths 0, 1, 2, 0, 1, 2, ..."""

    name = "thirds"
    rule: Callable[[Problem, str], bool] = lambda problem, text: text == str(problem.truth)

    def problems(self, split: Split) -> Sequence[Problem]:
        return [Problem(f"p{n}", f"{n} modulo 3?", n % 3) for n in range(9)]

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return [Verdict({"correct": float(self.rule(problem, text))}, text) for text in completions]

    def demonstrate(self, problem: Problem) -> str:
        return str(problem.truth)


def find_faults(task: Task) -> list[str]:
    return faults(verifier_checks(task, task.problems("train")))


def test_a_sound_verifier_is_asked_about_three_problems_and_has_no_faults() -> None:
    checks = verifier_checks(Thirds(), Thirds().problems("train"))
    assert [check.problem for check in checks if check.kind == "reference"] == ["p0", "p3", "p6"]
    assert [check.text for check in checks if check.kind == "wrong"] == ["1"] * 3
    assert all(check.right for check in checks) and not faults(checks)


@pytest.mark.parametrize("name", ["arithmetic", "nanocode", "nanobias", "horizon", "nano_one_shot"])
def test_tasks_of_the_suite_have_no_faults(name: str) -> None:
    assert not find_faults(TASKS[name]())


@pytest.mark.slow
def test_no_shipped_recipe_is_stopped_for_its_grader() -> None:
    """Of recipes and findings of every scale whose data is here."""
    asked_about = {}
    loaded_recipes: list[Recipe] = []
    for name in recipes():
        with contextlib.suppress(ConfigError):  # data or packages that are not here
            loaded_recipes.append(read_recipe(name))
    for name in findings():
        study = read_finding(name)
        for scale in study.scales:
            with contextlib.suppress(ConfigError):
                loaded_recipes.append(study.recipe(scale))
    for config in (config for recipe in loaded_recipes for config in recipe.runs()):
        if config.checks.grader == "stop" and not config.task.missing():
            asked_about[str(config.task)] = config.task
    assert len(asked_about) > 10
    assert {
        name: task_faults for name, task in asked_about.items() if (task_faults := find_faults(task))
    } == {}


def test_what_is_wrong_on_every_problem_is_a_fault_with_an_example() -> None:
    [fault] = find_faults(Thirds(lambda problem, text: False))
    assert fault.startswith("rejects every reference answer") and "problem p0, the answer '0'" in fault
    accepts = find_faults(Thirds(lambda problem, text: True))
    assert [fault.split()[:2] for fault in accepts] == [["accepts", "a"], ["accepts", "every"]]


def test_one_sound_answer_of_a_kind_is_no_fault() -> None:
    """A published reference may be wrong, and another answer right by accident."""
    assert not find_faults(Thirds(lambda problem, text: problem.id != "p3" and text == str(problem.truth)))
    assert not find_faults(Thirds(lambda problem, text: problem.id != "p6" or text == str(problem.truth)))


def test_what_the_machine_kept_from_being_graded_is_no_fault() -> None:
    class Down(Thirds):
        def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
            return [Verdict({}, None, "infra_error") for _ in completions]

    assert not find_faults(Down())


def test_known_defects_and_tasks_without_references_are_not_asked_about() -> None:
    class Marred(Thirds):
        def defects(self) -> Mapping[str, str]:
            return {"p0": "a misprint", "p1": "another"}

    class Bare(Thirds):
        def demonstrate(self, problem: Problem) -> str:
            raise NotImplementedError

    assert {check.problem for check in verifier_checks(Marred(), Marred().problems("train"))} == {
        "p2",
        "p5",
        "p8",
    }
    demand(Bare(lambda problem, text: False), Bare().problems("train"), "stop")


def test_a_verifier_that_raises_is_left_to_the_run_which_counts_that() -> None:
    class Brittle(Thirds):
        def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
            raise ArithmeticError("no sum")

    with pytest.warns(UserWarning, match=r"thirds could not be checked.*ArithmeticError: no sum"):
        demand(Brittle(), Brittle().problems("train"), "stop")


def test_a_run_stops_warns_or_goes_on_as_its_recipe_says(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Verdict({"correct": 0.0, "short": 0.0, "consistent": 0.0}, None)
    monkeypatch.setattr(Letters, "grade", lambda self, text: nothing)
    quiet = EvaluateConfig(every=0, problems=0, samples=0, test_problems=0)
    short = {"train": TrainConfig(steps=1, prompts_per_step=2, group_size=2), "evaluate": quiet}
    with pytest.raises(DataError, match=r"letters rejects every reference answer.*checks.grader = \"warn\""):
        run(configure(policy, **short), tmp_path / "stop")
    assert not (tmp_path / "stop" / "metrics.jsonl").exists()
    with pytest.warns(UserWarning, match="rejects every reference answer"):
        run(configure(policy, **short, checks=ChecksConfig(grader="warn")), tmp_path / "warn")
    assert len(run(configure(policy, **short, checks=ChecksConfig(grader="off")), tmp_path / "off")) == 2
