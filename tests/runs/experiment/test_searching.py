"""An equal search: what runs, what it costs each arm, what is chosen and written, and what a stop loses."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers import stand_ins
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from grpobench.analysis.runfolder.search import SearchRecord, read_record
from grpobench.runs.experiment import searching
from grpobench.runs.experiment.experiment import ExperimentResult
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.search_plan import forecast, make_plan
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
Rate = Callable[[RunConfig], float | None]
"""The outcome of a run by its settings; None: it diverges."""


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch, warm: None) -> None:
    monkeypatch.setattr("grpobench.algorithms.ALGORITHMS", stand_ins.ALGORITHMS)
    monkeypatch.setattr("grpobench.tasks.TASKS", stand_ins.TASKS)


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
            run = ExperimentRun(config, self.folder / recipe.name / config.folder)
            outcome = self.outcome_of(config)
            run.state = "diverged" if outcome is None else "finished"
            if not run.path.exists():
                run.path.mkdir(parents=True)
                self.ran.append((config.arm, config.train.learning_rate["policy"], config.seed))
                row = {"step": 1, "eval/validation/greedy/correct": outcome, "time/step": 0.5}
                (run.path / "metrics.jsonl").write_text('{"step": 0}\n' + json.dumps(row) + "\n")
            runs.append(run)
        return ExperimentResult(self.folder / recipe.name, 0, tuple(runs))


def pretend(
    recipe: Recipe, outcome_of: Rate, *over: str, seeds: tuple[int, ...] = (10, 11, 12, 13)
) -> Pretended:
    plan = make_plan(recipe, over, seeds)
    return Pretended(plan, recipe.folder / "search", target_of(recipe), "mine.toml", outcome_of=outcome_of)


def by_rate(best: Mapping[str, float]) -> Rate:
    """The outcome is 1 at the best rate of an arm and falls away from it."""

    def outcome_of(config: RunConfig) -> float:
        arm = config.arm.partition("+")[0]
        return 1 / (1 + abs(config.train.learning_rate["policy"] / best[arm] - 1))

    return outcome_of


# The rule


def test_halving_by_hand(tmp_path: Path) -> None:
    """Three rates, seeds 10 and 11. Seed 10 drops 1e-2; seed 11 turns the other two around."""
    table = {
        (1e-4, 10): 0.70, (1e-3, 10): 0.75, (1e-2, 10): 0.60,
        (1e-4, 11): 0.80, (1e-3, 11): 0.70, (1e-2, 11): 1.00,
    }  # fmt: skip
    search_run = pretend(
        recipe_in(tmp_path, RECIPE, "arms=one"),
        lambda config: table[config.train.learning_rate["policy"], config.seed],
        "train.learning_rate=1e-2,1e-4,1e-3",
        seeds=(10, 11),
    )
    end = search_run.search()
    assert sorted(search_run.ran)[:1] and {(rate, seed) for _, rate, seed in search_run.ran} == set(table) - {
        (1e-2, 11)
    }
    record = end.record
    assert record is not None
    assert record.chosen() == {"one": {"train.learning_rate": 1e-4}}  # .75 on average, before .725
    stage = record.stages[0]
    assert record.by_value(stage, "one") == {
        (1e-4,): {10: 0.70, 11: 0.80},
        (1e-3,): {10: 0.75, 11: 0.70},
        (1e-2,): {10: 0.60},
    }
    assert [trial.rung for trial in record.trials] == [1, 1, 1, 2, 2]


def test_a_diverged_run_counts_as_zero_and_a_tie_goes_to_the_lower_rate(tmp_path: Path) -> None:
    def outcome_of(config: RunConfig) -> float | None:
        rate = config.train.learning_rate["policy"]
        return None if rate == 1e-1 and config.seed == 11 else 0.9 if rate == 1e-1 else 0.5

    end = pretend(
        recipe_in(tmp_path), outcome_of, "train.learning_rate=1e-1,1e-2,1e-3", seeds=(10, 11)
    ).search()
    assert end.record is not None
    outcomes = end.record.by_value(end.record.stages[0], "one")
    assert outcomes[1e-1,] == {
        10: 0.9,
        11: 0.0,
    }  # below .5 on average, though better where it did not diverge
    assert end.record.chosen()["one"] == {"train.learning_rate": 1e-3}
    assert {trial.state for trial in end.record.trials} == {"finished", "diverged"}


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    outcomes=st.dictionaries(
        st.tuples(st.sampled_from(["one", "two", "critic"]), st.integers(0, 4), st.integers(0, 4)),
        st.none() | st.floats(0, 1),
    ),
    rates=st.integers(2, 5),
    count=st.integers(1, 4),
)
def test_every_arm_costs_the_same_whatever_happens(
    outcomes: dict[tuple[str, int, int], float | None],
    rates: int,
    count: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    recipe = recipe_in(tmp_path_factory.mktemp("equal"), RECIPE + CRITIC)
    listed = [10.0**-exponent for exponent in range(2, 2 + rates)]

    def outcome_of(config: RunConfig) -> float | None:
        exponent = round(-2 - math.log10(config.train.learning_rate["policy"]))
        return outcomes.get((config.arm.partition("+")[0], exponent, config.seed - 10), 0.5)

    over = f"train.learning_rate={','.join(map(str, listed))}"
    critic = f"train.learning_rate.critic={','.join(map(str, listed))}"
    search_run = pretend(recipe, outcome_of, over, critic, seeds=tuple(range(10, 10 + count)))
    record = search_run.search().record
    assert record is not None
    spent = Counter((trial.role, trial.arm) for trial in record.trials)
    assert len({*spent.values()}) == 1 and set(spent) == {
        ("policy", "one"),
        ("policy", "two"),
        ("policy", "critic"),
        ("critic", "critic"),
    }
    assert [len(stage.configs) for stage in forecast(search_run.plan)] == [
        3 * min(spent.values()),
        min(spent.values()),
    ]


def test_the_critic_is_searched_at_the_policys_choice(tmp_path: Path) -> None:
    def outcome_of(config: RunConfig) -> float:
        rates = config.train.learning_rate
        return 0.5 + 0.2 * (rates["policy"] == 1e-2) + 0.1 * (rates.get("critic") == 3e-1)

    recipe = recipe_in(tmp_path, RECIPE + CRITIC)
    over = ("train.learning_rate=1e-3,1e-2", "train.learning_rate.critic=1e-2,1e-1,3e-1")
    record = pretend(recipe, outcome_of, *over).search().record
    assert record is not None
    policy, critic = record.stages
    assert policy.others == {"critic": {"critic": 1e-1}}  # the middle one, while the policy's is searched
    assert [*critic.arms] == ["critic"] and critic.others == {"critic": {"policy": 1e-2}}
    assert record.chosen()["critic"] == {"train.learning_rate": 1e-2, "train.learning_rate.critic": 3e-1}
    assert record.chosen()["one"] == {"train.learning_rate": 1e-2}


def test_rates_by_default_are_five_around_the_recipes(tmp_path: Path) -> None:
    plan = make_plan(recipe_in(tmp_path, RECIPE + CRITIC))
    assert [list(stage.over.values()) for stage in plan.stages] == [
        [[1e-4, 3.2e-4, 1e-3, 3.2e-3, 1e-2]],
        [[1e-3, 3.2e-3, 1e-2, 3.2e-2, 1e-1]],
    ]
    stated = make_plan(recipe_in(tmp_path, RECIPE + CRITIC, "train.learning_rate.critic=0.02"))
    assert stated.stages[1].over["train.learning_rate.critic"][2] == 0.02
    assert stated.stages[0].others == {"critic": {"critic": 0.02}}
    assert plan.halving.seeds == (1000, 1001, 1002, 1003) and plan.halving.rungs == (1, 2, 4)


def test_settings_are_searched_together_with_the_rate(tmp_path: Path) -> None:
    def outcome_of(config: RunConfig) -> float:
        return 0.5 + 0.1 * (getattr(config.algorithm, "clip", 0) == 0.3) * (
            config.train.learning_rate["policy"] == 1e-2
        )

    recipe = recipe_in(tmp_path)
    end = pretend(recipe, outcome_of, "train.learning_rate=1e-3,1e-2", "algorithm.clip=0.2,0.3").search()
    assert end.record is not None and end.recipe is not None
    assert len(end.record.stages[0].combinations) == 4
    written = read_recipe(str(end.recipe))
    assert {(run.algorithm.clip, run.train.learning_rate["policy"]) for run in written.runs()} == {
        (0.3, 1e-2)
    }  # type: ignore[attr-defined]


# What is refused


@pytest.mark.parametrize(
    ("added", "over", "seeds", "message"),
    [
        ("", (), (1, 2), "--seeds: the recipe compares its arms on 1 too"),
        ("", (), (7, 7), "--seeds: must differ"),
        ("", ("evaluate.samples=1,2",), (), "--over evaluate.samples: cannot be searched"),
        ("", ("train.steps=1,2",), (), "--over train.steps: says how much a run costs"),
        (
            CRITIC,
            ("algorithm.value_clip=0.1,0.2",),
            (),
            "one, two lack this setting and would get fewer values",
        ),
        (CRITIC, ("algorithm.value_clip=0.1,0.2",), (), "search it in the others: --set arms=critic"),
        ("", ("train.learning_rate=1e-3",), (), "every setting has one value"),
        ("train.steps = 3\n", (), (), "arm.two: has 3 steps and one 1"),
        ("[evaluate]\nproblems = 0\n", (), (), "not all runs on sums are evaluated on the validation"),
        ('[search]\noutcome = "end:eval/test/greedy/correct"\n', (), (), "is of the test split"),
        ('[search]\noutcome = "end:eval/validation/likelihood/correct"\n', (), (), "not every run is"),
        ('[search]\noutcome = "best:reward"\n', (), (), "search.outcome: unknown kind 'best'"),
        ("[search]\nseeds = [5, 6]\nrungs = [1]\n", (), (), "--rungs: must end with the number of seeds, 2"),
        ("[search]\nsed = [5]\n", (), (), "search.sed: unknown key; did you mean search.seeds?"),
        (
            '[search.over]\n"train.learning_rate" = [1, 1]\n',
            (),
            (),
            "search.over.train.learning_rate: two of",
        ),
        ('[over]\n"train.learning_rate" = [1e-3, 1e-2]\n', (), (), "over: is a map's"),
    ],
)
def test_what_would_be_wrong_or_unequal_is_refused_with_the_remedy(
    added: str, over: tuple[str, ...], seeds: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        make_plan(recipe_in(tmp_path, RECIPE + added), over, seeds)
    assert message in str(error.value)


def test_arms_on_other_tasks_are_refused(tmp_path: Path) -> None:
    text = RECIPE.replace('tasks = ["sums"]', 'tasks = ["sums", "proofs"]') + 'tasks = ["sums"]\n'
    with pytest.raises(ConfigError, match=r"arm\.two: runs on sums and one on sums, proofs.*--set tasks=…"):
        make_plan(recipe_in(tmp_path, text))


def test_other_seeds_than_the_recipes_table_names_get_rungs_of_their_own(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, RECIPE + "[search]\nseeds = [5, 6]\nrungs = [2]\nkeep = 0.25\n")
    assert make_plan(recipe).halving.rungs == (2,)
    assert make_plan(recipe, seeds=(7, 8)).halving.rungs == (2,)
    other = make_plan(recipe, seeds=(7, 8, 9)).halving
    assert (other.rungs, other.keep) == ((1, 2, 3), 0.25)
    assert make_plan(recipe, rungs=(1, 2), keep=1.0).halving.counts(4) == (4, 4)


# What is written


def test_the_written_recipe_is_the_original_with_the_choice_and_runs(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, RECIPE, "train.num_minibatches=2", "control=one")
    search_run = pretend(recipe, by_rate({"one": 1e-2, "two": 1e-4}), "train.learning_rate=1e-4,1e-3,1e-2")
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
        "grpobench search mine.toml --seeds 10,11,12,13 --rungs 1,2,4 --keep 0.5 "
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
    first = pretend(recipe, best, "train.learning_rate=1e-4,1e-3")
    assert not first.search().record.earlier  # type: ignore[union-attr]
    more = pretend(recipe, best, "train.learning_rate=1e-4,1e-3,1e-2")
    record: SearchRecord | None = more.search().record
    assert record is not None and len(record.earlier) == 1
    assert record.chosen()["one"] == {"train.learning_rate": 1e-2}
    assert {rate for _, rate, _ in more.ran} == {1e-2}  # the others had run
    for over, seeds, message in (
        ("train.learning_rate=1e-3,1e-2", (10, 11, 12, 13), "train.learning_rate without 0.0001"),
        ("train.learning_rate=1e-4,1e-3,1e-2", (10, 11), r"seeds \[10, 11, 12, 13\] -> \[10, 11\]"),
    ):
        with pytest.raises(FolderError, match=f"a search by another plan: .*{message}.*another --out"):
            pretend(recipe, best, over, seeds=seeds).search()


def searcher(recipe: Recipe, *over: str) -> Searcher:
    plan = make_plan(recipe, over, (10, 11))
    console = Console(file=io.StringIO(), width=200)
    made_searcher = Searcher(plan, recipe.folder / "search", target_of(recipe), "mine.toml", console=console)
    made_searcher.execute = "helpers.stand_ins.tuned"
    return made_searcher


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
    assert len(before) == 3 + 2
    end = searcher(recipe, over).search()
    assert end.code == 0 and end.record is not None
    # 1e-1 diverges, so the others go on; `two` is best at 1e-4 by its label.
    assert end.record.chosen() == {"two": {"train.learning_rate": 1e-4}}
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing ran again
    trial = next(row for row in end.record.trials if row.values == (1e-1,))
    assert (trial.state, trial.outcome, trial.seconds, trial.tokens) == ("diverged", 0.0, 2.0, 100)
    text = read_recipe(str(end.recipe)).record
    assert text is not None and text.chosen() == end.record.chosen()
