"""An equal search: what runs, what it costs each arm, what is chosen and written, and what a stop loses."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.experiments import recorder

from grpobench.analysis.runfolder.search import SearchRecord, read_record
from grpobench.runs.experiment import searching
from grpobench.runs.experiment.experiment import ExperimentResult
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.search_plan import forecast, make_plan, stage_recipe
from grpobench.runs.experiment.searching import Searcher, target_of
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import Recipe, read_recipe
from grpobench.runs.tools.lock import FolderError
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError

RECIPE = """
name = "mine"
seeds = [0, 1]
tasks = ["sums"]
workers = 2

[train]
steps = 1
learning_rate = 1e-3

[[arm]]  # an arm with a comment
algorithm = "plain"
name = "one"

[[arm]]
algorithm = "plain"
name = "two"
settings.label = "1e-4"
"""
CRITIC = '[[arm]]\nalgorithm = "critic"\n'
ACCURACY, BASE = "eval/validation/greedy/correct", 0.3
"""The outcome, and what it is before training."""
Rate = Callable[[RunConfig], float | None]
"""The outcome of a run by its settings; None: it diverges."""


pytestmark = pytest.mark.usefixtures("stands", "warm")


def recipe_in(folder: Path, text: str = RECIPE, *sets: str) -> Recipe:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.toml").write_text(text)
    return read_recipe(str(folder / "mine.toml"), sets)


@dataclasses.dataclass
class Pretended(Searcher):
    """A search whose runs only have the outcomes that a function gives them."""

    outcome_of: Rate = lambda config: 0.5
    ran: list[tuple[str, float, int]] = dataclasses.field(default_factory=list)
    """(arm, policy's rate, seed) of each run that was new."""

    def run(self, recipe: Recipe) -> ExperimentResult:
        runs = []
        for config in recipe.runs():
            assert config.evaluate.test_problems == 0 and not config.checkpoint.weights
            assert config.evaluate.before
            run = ExperimentRun(config, self.folder / recipe.name / config.folder)
            outcome = self.outcome_of(config)
            run.state = "diverged" if outcome is None else "finished"
            if not run.path.exists():
                run.path.mkdir(parents=True)
                self.ran.append((config.arm, config.train.learning_rate["policy"], config.seed))
                row = {"step": 1, ACCURACY: outcome, "time/step": 0.5, "cost/generated_tokens": 100}
                base = {"step": 0, ACCURACY: BASE}
                (run.path / "metrics.jsonl").write_text(f"{json.dumps(base)}\n{json.dumps(row)}\n")
            runs.append(run)
        return ExperimentResult(self.folder / recipe.name, 0, tuple(runs))


def pretend(
    recipe: Recipe,
    outcome_of: Rate,
    *over: str,
    seeds: tuple[int, ...] = (10, 11, 12, 13),
    extensions: int | None = None,
) -> Pretended:
    plan = make_plan(recipe, over, seeds, extensions)
    return Pretended(plan, recipe.folder / "search", target_of(recipe), "mine.toml", outcome_of=outcome_of)


def by_rate(best: Mapping[str, float]) -> Rate:
    """The outcome is 1 at the best rate of an arm and falls away from it."""

    def outcome_of(config: RunConfig) -> float:
        arm = config.arm.partition("+")[0]
        return 1 / (1 + abs(config.train.learning_rate["policy"] / best[arm] - 1))

    return outcome_of


# The rule


def test_a_search_by_hand(tmp_path: Path) -> None:
    """The arm `one` is best at 9e-3, so that the grid grows above for both arms. At the refined rate 1.6e-2,
    which has the highest mean at first, two of four runs end below their base."""
    means = {
        "one": {3e-3: 0.5, 9e-3: 0.7, 1.6e-2: 0.75, 2.7e-2: 0.4, 5.2e-3: 0.6},
        "two": {1e-3: 0.7, 1.7e-3: 0.65, 5.7e-4: 0.6},
    }

    def outcome_of(config: RunConfig) -> float:
        arm, rate = config.arm.partition("+")[0], config.train.learning_rate["policy"]
        if rate == 1.6e-2 and config.seed > 11:
            return 0.2
        return means[arm].get(rate, 0.35)

    search_run = pretend(recipe_in(tmp_path), outcome_of)
    record = search_run.search().record
    assert record is not None
    stage = record.stages[0]
    grid = [1.1e-4, 3.3e-4, 1e-3, 3e-3, 9e-3, 2.7e-2, 8.1e-2]
    seeds = {
        arm: {rate: len(by_seed) for (rate,), by_seed in record.by_value(stage, arm).items()} for arm in means
    }
    assert seeds["one"] == dict.fromkeys(grid, 2) | {9e-3: 4, 1.6e-2: 4, 2.7e-2: 4, 5.2e-3: 2}
    assert seeds["two"] == dict.fromkeys(grid, 2) | {5.7e-4: 4, 1e-3: 4, 1.7e-3: 4}
    assert record.chosen() == {
        arm: {"train.learning_rate": rate} for arm, rate in (("one", 9e-3), ("two", 1e-3))
    }
    failed = [trial.seed for trial in record.trials if trial.failed]
    assert failed == [12, 13] and {trial.base for trial in record.trials} == {BASE}
    assert {trial.rung for trial in record.trials} == {1, 2, 3, 4, 5}
    assert {budget.runs for budget in record.budgets().values()} == {7 * 2 + 2 * 2 + 3 * 2}
    assert record.settings["one"]["sums"]["train.steps"] == 1
    assert search_run.plan.bounds(search_run.plan.stages[0]) == (5 * 2 + 4 + 6, 11 * 2 + 4 + 6)


def test_a_diverged_run_counts_as_zero_and_a_tie_goes_to_the_lower_rate(tmp_path: Path) -> None:
    def outcome_of(config: RunConfig) -> float | None:
        rate = config.train.learning_rate["policy"]
        return None if rate == 1e-2 and config.seed == 11 else 0.9 if rate == 1e-2 else 0.5

    over = "train.learning_rate=1e-2,1e-3"
    end = pretend(recipe_in(tmp_path), outcome_of, over, seeds=(10, 11), extensions=0).search()
    assert end.record is not None
    outcomes = end.record.by_value(end.record.stages[0], "one")
    assert outcomes[1e-2,] == {
        10: 0.9,
        11: 0.0,
    }  # below .5 on average, though better where it did not diverge
    assert [rate for (rate,) in outcomes] == [5.8e-4, 1e-3, 3.2e-3, 1e-2]
    assert end.record.chosen()["one"] == {"train.learning_rate": 5.8e-4}
    assert {trial.state for trial in end.record.trials} == {"finished", "diverged"}


def test_every_arm_costs_the_same_whatever_happens(tmp_path: Path) -> None:
    """`two` fails at all rates; the best of `one` and `critic` lie at opposite ends."""

    def outcome_of(config: RunConfig) -> float | None:
        arm, rates = config.arm.partition("+")[0], config.train.learning_rate
        if arm == "two":
            return None
        return 0.5 + (0.1 if arm == "one" else -0.1) * rates["policy"] + rates.get("critic", 0.0) / 10

    recipe = recipe_in(tmp_path, RECIPE + CRITIC)
    search_run = pretend(recipe, outcome_of, seeds=(10, 11, 12))
    end = search_run.search()
    record = end.record
    assert record is not None
    spent = Counter((trial.role, trial.arm) for trial in record.trials)
    most = {stage.role: search_run.plan.bounds(stage)[1] for stage in search_run.plan.stages}
    assert spent == {
        ("policy", "one"): most["policy"],
        ("policy", "two"): most["policy"],
        ("policy", "critic"): most["policy"],
        ("critic", "critic"): 7 * 2 + 2 * 2 + 3,  # a third extension would reach 2.4, and rates stay below 1
    }
    least = [search_run.plan.bounds(stage)[0] for stage in search_run.plan.stages]
    assert [len(stage.configs) for stage in forecast(search_run.plan)] == [3 * least[0], least[1]]
    assert end.recipe is not None and read_recipe(str(end.recipe)).record is not None


def test_the_critic_is_searched_at_the_policys_choice(tmp_path: Path) -> None:
    def outcome_of(config: RunConfig) -> float:
        rates = config.train.learning_rate
        return 0.5 + 0.2 * (rates["policy"] == 1e-2) + 0.1 * (rates.get("critic") == 3e-1)

    recipe = recipe_in(tmp_path, RECIPE + CRITIC)
    over = ("train.learning_rate=1e-3,1e-2", "train.learning_rate.critic=1e-2,1e-1,3e-1")
    record = pretend(recipe, outcome_of, *over, extensions=0).search().record
    assert record is not None
    policy, critic = record.stages
    assert policy.others == {"critic": {"critic": 1e-1}}  # the middle one, while the policy's is searched
    assert [*critic.arms] == ["critic"] and critic.others == {"critic": {"policy": 1e-2}}
    assert record.chosen()["critic"] == {"train.learning_rate": 1e-2, "train.learning_rate.critic": 3e-1}
    assert record.chosen()["one"] == {"train.learning_rate": 1e-2}


def test_a_recipe_that_runs_at_several_rates_is_searched_at_one(tmp_path: Path) -> None:
    plan = make_plan(recipe_in(tmp_path, "rates = [0.5, 1, 2]\n" + RECIPE))
    assert plan.stages == make_plan(recipe_in(tmp_path, RECIPE)).stages
    stage, labels = stage_recipe(plan, plan.stages[0], {})
    assert not stage.rate_arms and {arm for arm, _ in labels.values()} == {*plan.stages[0].arms}


def test_rates_by_default_are_five_around_the_recipes(tmp_path: Path) -> None:
    plan = make_plan(recipe_in(tmp_path, RECIPE + CRITIC))
    assert [list(stage.over.values()) for stage in plan.stages] == [
        [[1.1e-4, 3.3e-4, 1e-3, 3e-3, 9e-3]],
        [[1.1e-3, 3.3e-3, 1e-2, 3e-2, 9e-2]],
    ]
    stated = make_plan(recipe_in(tmp_path, RECIPE + CRITIC, "train.learning_rate.critic=0.02"))
    assert stated.stages[1].over["train.learning_rate.critic"][2] == 0.02
    assert stated.stages[0].others == {"critic": {"critic": 0.02}}
    assert plan.seeds == tuple(range(1000, 1008)) and plan.extensions == 3


def test_settings_are_searched_together_with_the_rate(tmp_path: Path) -> None:
    def outcome_of(config: RunConfig) -> float:
        return 0.5 + 0.1 * (getattr(config.algorithm, "clip", 0) == 0.3) * (
            config.train.learning_rate["policy"] == 1e-2
        )

    recipe = recipe_in(tmp_path)
    over = "train.learning_rate=1e-3,1e-2", "algorithm.clip=0.2,0.3"
    end = pretend(recipe, outcome_of, *over, extensions=0).search()
    assert end.record is not None and end.recipe is not None
    # Each clip has a curve of its own, with two rates, two refined ones and three finalists.
    by_seed = end.record.by_value(end.record.stages[0], "one")
    assert Counter(clip for _, clip in by_seed) == {0.2: 4, 0.3: 4}
    assert sorted(map(len, by_seed.values())) == [2, 2, 4, 4, 4, 4, 4, 4]
    written = read_recipe(str(end.recipe))
    assert {(run.algorithm.clip, run.train.learning_rate["policy"]) for run in written.runs()} == {
        (0.3, 1e-2)
    }  # type: ignore[attr-defined]


# What is refused


@pytest.mark.parametrize(
    ("added", "over", "message"),
    [
        ("", "evaluate.samples=1,2", "--over evaluate.samples: cannot be searched"),
        ("", "train.steps=1,2", "--over train.steps: says how much a run costs"),
        (CRITIC, "algorithm.value_clip=0.1,0.2", "one, two lack this setting and would get fewer values"),
        (CRITIC, "algorithm.value_clip=0.1,0.2", "search it in the others: --set arms=critic"),
        ("", "train.learning_rate=1e-3", "every setting has one value"),
        ("", "train.learning_rate=1e-3,1.1e-3", "0.001 and 0.0011 differ by less than a factor of 1.2"),
        ("train.steps = 3\n", "", "arm.two: has 3 steps and one 1"),
        ("[evaluate]\nproblems = 0\n", "", "not all runs on sums are evaluated on the validation"),
        ('[search]\noutcome = "end:eval/test/greedy/correct"\n', "", "is of the test split"),
        ('[search]\noutcome = "end:eval/validation/likelihood/correct"\n', "", "not every run is"),
        ('[search]\noutcome = "best:reward"\n', "", "search.outcome: unknown kind 'best'"),
        ('[search.over]\n"train.learning_rate" = [1, 1]\n', "", "search.over.train.learning_rate: two of"),
        ('[over]\n"train.learning_rate" = [1e-3, 1e-2]\n', "", "over: is a map's"),
    ],
)
def test_what_would_be_wrong_or_unequal_is_refused_with_the_remedy(
    added: str, over: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        make_plan(recipe_in(tmp_path, RECIPE + added), [over] if over else [])
    assert message in str(error.value)


def test_arms_on_other_tasks_are_refused(tmp_path: Path) -> None:
    text = RECIPE.replace('tasks = ["sums"]', 'tasks = ["sums", "proofs"]') + 'tasks = ["sums"]\n'
    with pytest.raises(ConfigError, match=r"arm\.two: runs on sums and one on sums, proofs.*--set tasks=…"):
        make_plan(recipe_in(tmp_path, text))


def test_options_come_before_the_recipes_table(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, RECIPE + "[search]\nseeds = [5, 6]\nextensions = 1\n")
    plan, other = make_plan(recipe), make_plan(recipe, seeds=(7, 8, 9), extensions=0)
    assert (plan.seeds, plan.extensions) == ((5, 6), 1) and (other.seeds, other.extensions) == ((7, 8, 9), 0)
    with pytest.raises(ConfigError, match="--seeds: the recipe compares its arms on 1 too"):
        make_plan(recipe, seeds=(1, 2))


# What is written


def test_the_written_recipe_is_the_original_with_the_choice_and_runs(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, RECIPE, "train.num_minibatches=2", "control=one")
    over = "train.learning_rate=1e-4,1e-3,1e-2"
    search_run = pretend(recipe, by_rate({"one": 1e-2, "two": 1e-4}), over, extensions=0)
    end = search_run.search()
    assert end.recipe == tmp_path / "mine-searched.toml"
    text = end.recipe.read_text()
    assert RECIPE.strip() in text  # with its comments
    written = read_recipe(str(end.recipe))
    assert written.head == dataclasses.replace(recipe.head, name="mine-searched")
    rates = {run.arm: run.train.learning_rate["policy"] for run in written.runs()}
    assert rates == {"one": 1e-2, "two": 1e-4}
    assert all(run.train.num_minibatches == 2 for run in written.runs())
    assert [dataclasses.replace(run, experiment="mine", train=old.train) for run, old in zip(
        written.runs(), recipe.runs(), strict=True)] == recipe.runs()  # fmt: skip
    assert written.record == dataclasses.replace(
        read_record(search_run.record_path), sha256=written.record.sha256
    )  # type: ignore[union-attr]
    assert search_run.command == (
        "grpobench search mine.toml --seeds 10,11,12,13 --extensions 0 "
        "--over train.learning_rate=0.0001,0.001,0.01 --set train.num_minibatches=2 --set control=one"
    )
    with pytest.raises(ConfigError, match="a search wrote this recipe"):
        make_plan(written)


def test_a_recipe_without_its_record_or_on_its_seeds_is_refused(tmp_path: Path) -> None:
    search_run = pretend(recipe_in(tmp_path), lambda config: 0.5, "train.learning_rate=1e-3,1e-2")
    path = str(search_run.search().recipe)
    with pytest.raises(ConfigError, match=r"seeds: 10, 11 chose the settings of this recipe"):
        read_recipe(path, ["seeds=[9, 10, 11]"])
    content = search_run.record_path.read_bytes()
    search_run.record_path.write_bytes(content.replace(b'"outcome": 0.5', b'"outcome": 0.6', 1))
    with pytest.raises(ConfigError, match=r"searched\.sha256: .*is not the record that chose these values"):
        read_recipe(path)
    search_run.record_path.unlink()
    with pytest.raises(
        ConfigError, match=r"searched\.record: .*search\.json: No such file.*remove \[searched\]"
    ):
        read_recipe(path)
    search_run.record_path.write_bytes(content)
    assert read_recipe(path).record


def test_a_file_that_no_search_wrote_is_not_replaced(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    search_run = pretend(recipe, lambda config: 0.5, "train.learning_rate=1e-3,1e-2")
    (tmp_path / "mine-searched.toml").write_text("mine")
    with pytest.raises(ConfigError, match="exists, and no search wrote it"):
        search_run.search()
    assert not search_run.ran and (tmp_path / "mine-searched.toml").read_text() == "mine"


def test_a_log_without_the_outcome_chooses_nothing(tmp_path: Path) -> None:
    search_run = pretend(recipe_in(tmp_path), lambda config: float("nan"), "train.learning_rate=1e-3,1e-2")
    with pytest.raises(DataError, match="logs no end:eval/validation/greedy/correct"):
        search_run.search()
    assert not search_run.record_path.exists()


# Stops and later searches


def test_values_may_be_added_to_a_search_and_the_record_says_so(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    best = by_rate({"one": 1e-2, "two": 1e-2})
    first = pretend(recipe, best, "train.learning_rate=1e-4,1e-3", extensions=0)
    assert not first.search().record.earlier  # type: ignore[union-attr]
    more = pretend(recipe, best, "train.learning_rate=1e-4,1e-3,1e-2", extensions=0)
    record: SearchRecord | None = more.search().record
    assert record is not None and len(record.earlier) == 1
    assert record.chosen()["one"] == {"train.learning_rate": 1e-2}
    assert not {1e-4, 3.2e-4, 1e-3} & {rate for _, rate, _ in more.ran}  # they had run
    for over, seeds, message in (
        ("train.learning_rate=1e-3,1e-2", (10, 11, 12, 13), "train.learning_rate without 0.0001"),
        ("train.learning_rate=1e-4,1e-3,1e-2", (10, 11), r"seeds \[10, 11, 12, 13\] -> \[10, 11\]"),
    ):
        with pytest.raises(FolderError, match=f"a search by another plan: .*{message}.*another --out"):
            pretend(recipe, best, over, seeds=seeds, extensions=0).search()


def searcher(recipe: Recipe, *over: str) -> Searcher:
    return Searcher(
        make_plan(recipe, over, (10, 11, 12), 0),
        recipe.folder / "search",
        target_of(recipe),
        "mine.toml",
        console=recorder(),
        execute="helpers.stand_ins.tuned",
    )


def test_a_stopped_search_chooses_nothing_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_in(tmp_path, RECIPE, "arms=two")
    over = "train.learning_rate=1e-4,1e-3,1e-1"
    plain = searching.run_experiment
    calls: list[int] = []

    def stopped(*words: Any, **options: Any) -> ExperimentResult:
        calls.append(1)
        outcome = plain(*words, **options)
        return dataclasses.replace(outcome, code=75) if len(calls) == 2 else outcome

    monkeypatch.setattr(searching, "run_experiment", stopped)
    end = searcher(recipe, over).search()
    assert (end.code, end.record, end.recipe) == (75, None, None)
    assert not (tmp_path / "mine-searched.toml").exists() and not searcher(recipe, over).record_path.exists()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("search/mine/policy/*/metrics.jsonl")}
    assert len(before) == 3 * 2 + 2 * 2  # the grid and its refinement; the finals are still to come
    end = searcher(recipe, over).search()
    assert end.code == 0 and end.record is not None
    # 1e-1 diverges; `two` is best at 1e-4 by its label.
    assert end.record.chosen() == {"two": {"train.learning_rate": 1e-4}}
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing ran again
    trial = next(row for row in end.record.trials if row.values == (1e-1,))
    assert (trial.state, trial.outcome, trial.seconds, trial.tokens) == ("diverged", 0.0, 2.0, 100)
    text = read_recipe(str(end.recipe)).record
    assert text is not None and text.chosen() == end.record.chosen()


def test_a_search_replaces_the_one_that_a_recipe_names(tmp_path: Path) -> None:
    (tmp_path / "before.toml").write_text(RECIPE + "[search]\nseeds = [10, 11]\n")
    recipe = recipe_in(tmp_path, RECIPE + '\n[searched] # by hand\nrecipe = "before.toml"\n')
    assert recipe.record is not None and recipe.record.seeds == (10, 11)
    with pytest.raises(ConfigError, match="seeds: 10 chose the settings of this recipe"):
        recipe_in(tmp_path, recipe.text, "seeds=[10]")
    end = pretend(recipe, lambda config: 0.5, "train.learning_rate=1e-3,1e-2", extensions=0).search()
    assert end.recipe is not None and end.recipe.read_text().count("[searched]") == 1 + 1  # and the heading
    record = read_recipe(str(end.recipe)).record
    assert record is not None and record.stages
    odd = recipe_in(tmp_path, 'searched = { recipe = "before.toml" }\n' + RECIPE)
    with pytest.raises(ConfigError, match=r"searched: write it as a table, \[searched\]"):
        make_plan(odd)
