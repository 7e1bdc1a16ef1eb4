"""`grpobench compare`: settings, resuming, what is refused before runs, what is said before and after them.

Locked here: an algorithm takes the settings of its arm, or the training of its nearest relative, and a critic
a critic's rate; the first N seeds; too few seeds and stray runs are refused before anything is written;
another arm or more seeds run only what is missing; the lines at the end are the report's numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import stand_ins
from helpers.shell import run_cli

from grpobench.analysis import resolution
from grpobench.analysis.report.terminal import describe_task, verdict_lines
from grpobench.analysis.resolution import PlannedPairs, Spread, resolution_lines
from grpobench.analysis.statistics import power
from grpobench.analysis.statistics.comparison import compare
from grpobench.runs import cli
from grpobench.runs.api.contrasts import seeds_of
from grpobench.runs.experiment.experiment import write_experiment
from grpobench.runs.settings.comparing import compose, shared_settings
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools import toml
from grpobench.runs.tools.strict import ConfigError, nearest

MINE = """
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.gspo import GSPO
from grpobench.algorithms.ppo import PPO
from grpobench.algorithms.rft import RFT

class Half(GRPO):
    name = "half"

class Sequence(GSPO):
    name = "sequence"

class Valued(PPO):
    name = "valued"

class Other(RFT):
    name = "other"
"""
SMALL = "train = { steps = 1, prompts_per_step = 4, group_size = 4 }\n"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of classes, as the current one."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def composed(candidate: str, *others: str, **more: Any) -> Recipe:
    settings = {"tasks": ("arithmetic",), "seeds": range(6), "command": "grpobench compare ..."} | more
    return compose(candidate, others, **settings)


def rates(recipe: Recipe) -> dict[str, dict[str, float]]:
    return {config.arm: dict(config.train.learning_rate) for config in recipe.runs()}


# Settings


def test_arms_take_the_settings_of_the_recipe_or_train_like_a_relative(mine: Path) -> None:
    user_classes = ("mine:Sequence", "mine:Valued", "mine:Other")
    recipe = composed("mine:Half", "grpo", "gspo", "ppo", "rloo", *user_classes)
    assert rates(recipe) == {
        "half": {"policy": 5.7e-5},  # like grpo, from which it is derived
        "grpo": {"policy": 5.7e-5},
        "gspo": {"policy": 1.7e-4},  # its arm
        "ppo": {"policy": 5.7e-5, "critic": 1e-3},
        "rloo": {"policy": 5.7e-5},  # like the first arm
        "sequence": {"policy": 1.7e-4},  # like gspo
        "valued": {"policy": 5.7e-5, "critic": 1e-3},  # like ppo
        "other": {"policy": 5.7e-5},
    }
    relatives = {"half": "grpo", "rloo": "grpo", "sequence": "gspo", "valued": "ppo", "other": "grpo"}
    assert recipe.borrowed_rates == relatives
    chosen = composed("mine:Half", "rloo", sets=("arm.rloo.train.learning_rate=1e-5",))
    assert chosen.borrowed_rates == {"half": "grpo"}
    first = recipe.runs()[0]
    assert (first.arm, first.train.steps, first.train.num_minibatches) == ("half", 10, 8)
    assert vars(first.task)["operations"] == (2, 3, 4) and first.evaluate.test_problems == 512
    ppo = next(config for config in recipe.runs() if config.arm == "ppo")
    assert vars(ppo.algorithm)["critic_warmup"] == 1
    assert (recipe.name, recipe.head.control, recipe.settings_of) == ("compare-half", "half", "quickstart")
    assert recipe.summary == "half against 7 algorithms"
    assert recipe.text.startswith("# Made by `grpobench compare")
    assert {config.seed for config in recipe.runs()} == {*range(6)}


def test_a_critic_has_a_critics_rate_where_the_relative_has_none(mine: Path) -> None:
    (mine / "bare.toml").write_text(
        f'tasks = ["arithmetic"]\n{SMALL}[[arm]]\nalgorithm = "grpo"\ntrain.learning_rate = 2e-4\n'
        '[[arm]]\nalgorithm = "reinforce_pp"\ntrain.learning_rate = { policy = 7e-4, critic = 3e-3 }\n'
    )
    recipe = composed("mine:Valued", "grpo", source="bare.toml")
    assert rates(recipe) == {"valued": {"policy": 2e-4, "critic": 3e-3}, "grpo": {"policy": 2e-4}}
    assert (recipe.name, recipe.settings_of) == ("compare-valued-bare", "")


def test_a_recipe_gives_tasks_arms_by_name_and_settings_on_tasks(mine: Path) -> None:
    (mine / "own.toml").write_text(
        'tasks = [{ name = "arithmetic", settings = { largest = 50 } }, "nanobias"]\nmargin = 1.0\n'
        "train = { steps = 7, learning_rate = 3e-4 }\n[on.nanobias.train]\nsteps = 9\n[on.arithmetic.train]\n"
        'prompts_per_step = 4\n[[arm]]\nalgorithm = "grpo"\nname = "slow"\ntasks = ["nanobias"]\n'
        'train.learning_rate = 1e-5\non.arithmetic.train.learning_rate = 2e-5\n[[arm]]\nalgorithm = "*"\n'
    )
    recipe = composed("slow", "rloo", source="own.toml", sets=("train.group_size=4",))
    configs = {config.arm: config for config in recipe.runs()}
    assert {config.task.name for config in configs.values()} == {"arithmetic"}
    assert {vars(config.task)["largest"] for config in configs.values()} == {50}
    assert [configs[arm].train.steps for arm in ("slow", "rloo")] == [7, 7]
    assert rates(recipe) == {"slow": {"policy": 2e-5}, "rloo": {"policy": 3e-4}}  # "*" has the recipe's rate
    assert configs["rloo"].train.prompts_per_step == 4 == configs["rloo"].train.group_size
    assert recipe.head.margin == 1.0 and "nanobias" not in recipe.text


def test_the_folder_keeps_the_arms_without_a_rate_of_their_own(mine: Path) -> None:
    for other in ("rloo", "dapo"):
        write_experiment(mine, composed("grpo", other))
        (mine / f"{other}-arithmetic-s0").mkdir()
        (mine / f"{other}-arithmetic-s0/run.toml").touch()
    described = json.loads((mine / "experiment.json").read_text())
    assert described["borrowed_rates"] == {"rloo": "grpo", "dapo": "grpo"}


def test_all_are_the_algorithms_that_the_task_serves(mine: Path) -> None:
    recipe = composed("mine:Half", "all")
    arms = {config.arm for config in recipe.runs()}
    assert {"half", "grpo", "dapo", "ppo", "dpo"} <= arms and len(arms) > 20
    left_out = recipe.left_out
    assert any(why.startswith("vapo on arithmetic: updates its policy in none") for why in left_out)
    assert "half" not in {why.split()[0] for why in left_out}


@pytest.mark.parametrize(
    ("candidate", "others", "fault"),
    [
        ("gpro", ("rloo",), "compare: unknown algorithm 'gpro'; did you mean grpo?"),
        ("grpo", ("dpao", "rlo"), "--with: unknown algorithm 'dpao'; did you mean dpo?"),
        ("mine:Half", ("mine:Hlaf",), "has no 'Hlaf'; did you mean mine:Half?"),
        ("grpo", ("grpo",), "--with: grpo is grpo itself; name another algorithm"),
    ],
)
def test_wrong_names_are_refused_with_the_nearest(
    mine: Path, candidate: str, others: tuple[str, ...], fault: str
) -> None:
    with pytest.raises(ConfigError) as error:
        composed(candidate, *others)
    assert any(fault in message for message in error.value.faults)


def test_without_a_task_the_first_of_the_recipe_is_compared(mine: Path) -> None:
    recipe = compose("mine:Half", ("grpo",), (), (0, 1), sets=("rates=[0.5, 1, 2]",))
    assert {config.task.name for config in recipe.runs()} == {"arithmetic"}
    assert [config.arm for config in recipe.runs() if config.seed == 0] == [
        f"{name}{ending}" for name in ("half", "grpo") for ending in ("", "+rate-x0.5", "+rate-x2")
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "rloo", "--with", "gpro", "--task", "arithmetik"],
        ["profile", "gpro"],
        ["show", "algorithm", "gpro"],
        ["doctor", "--deep", "slip.toml"],
    ],
    ids=" ".join,
)
def test_a_slip_of_the_keyboard_is_grpo_everywhere(mine: Path, words: list[str], capsys: Capture) -> None:
    (mine / "slip.toml").write_text('tasks = ["arithmetic"]\n[[arm]]\nalgorithm = "gpro"\n')
    assert cli.main(words) == 2
    message = capsys.readouterr().err.replace("'", "")
    assert "gpro" in message and "did you mean grpo?" in message
    if "arithmetik" in words:  # all errors at once
        assert "--task: unknown task arithmetik; did you mean arithmetic?" in message


def test_of_equally_near_words_that_of_the_same_letters_is_meant() -> None:
    words = ["gspo", "grpo", "gdpo", "ppo"]  # gpro shares three letters in order with three of them
    assert nearest("gpro", words) == "grpo"


def test_a_number_is_the_first_seeds_and_a_list_those_in_it() -> None:
    assert seeds_of("3") == [0, 1, 2] and seeds_of("4-6") == [4, 5, 6] and seeds_of("1,5") == [1, 5]
    for wrong in ("x", "-2", "3-1"):
        with pytest.raises(ConfigError):
            seeds_of(wrong)


# As a command


BASE = """
tasks = [{ name = "listed", settings = { path = "listed.txt" } }]
train = { steps = 1, prompts_per_step = 1 }
[[arm]]
algorithm = "plain"
name = "fine1"
[[arm]]
algorithm = "plain"
name = "fine2"
[[arm]]
algorithm = "plain"
name = "fine3"
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Runs take no time: fine1 ends 10 points above fine2, and fine3 is 5 points above or below in turn."""
    stand_ins.run_graded(monkeypatch)
    monkeypatch.setattr("grpobench.runs.commands.run.FORMATS", ("json",))
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "listed.txt").write_text("train 1+1= 2\nvalidation 1+2= 3\ntest 2+2= 4\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path


WORDS = ("compare", "fine1", "--task", "listed", "--recipe", "base.toml", "--workers", "1")


def verdicts(lines: list[str]) -> list[str]:
    return [line.removeprefix("listed: ") for line in lines if line.startswith("listed: ")]


def test_another_arm_and_more_seeds_run_only_what_is_missing(workspace: Path, capsys: Capture) -> None:
    lines = run_cli(capsys, *WORDS, "--with", "fine2", "--seeds", "6")
    assert lines[:2] == [
        "settings: those of the recipe base (1 steps of 1 × 8 completions, model nano)",
        "learning rates: 1e-05 (fine1, fine2)",
    ]
    assert lines[2].startswith("6 seeds find a difference of") and "no earlier runs" in lines[2]
    # fine1 − fine2 is 10, 10.1, …, 10.5 points: mean 10.25, all of one sign, p = 2/64
    assert verdicts(lines) == ["fine1 is better than fine2 by 10.2 points (+10.1 to +10.4), adjusted p 0.031"]
    folder = workspace / "results" / "compare-fine1-base"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/status.json")}
    assert len(before) == 12
    # runs of an arm that the command leaves out must have been made alike
    other = [*WORDS, "--with", "fine3", "--seeds", "6"]
    fault = run_cli(capsys, *other, "--set", "train.group_size=4", code=2)[1]
    assert "has runs of fine2 with other settings (train.group_size: not set -> 4)" in fault
    assert "add fine2 to --with, keep the settings, or choose another --out" in fault
    lines = run_cli(capsys, *other)
    assert "6 of 12 runs already have a result" in lines
    assert any("points in earlier runs of this folder" in line for line in lines)
    pairs = [line.split(" by ")[0] for line in verdicts(lines)]
    assert pairs == ["fine1 is better than fine3", "fine1 is better than fine2"]
    # one more seed
    lines = run_cli(capsys, *WORDS, "--with", "fine2,fine3", "--seeds", "7")
    assert "18 of 21 runs already have a result" in lines and len(verdicts(lines)) == 2
    assert len(list(folder.glob("*/status.json"))) == 21
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    experiment = json.loads((folder / "experiment.json").read_text())
    assert experiment["control"] == "fine1"
    assert experiment["command"].startswith("grpobench compare fine1 --with fine2,fine3")
    assert toml.read(experiment["recipe"])["control"] == "fine1"
    report = json.loads((folder / "report" / "report.json").read_text())
    assert [(pair["second"], pair["pairs"]) for pair in report["comparisons"]] == [("fine2", 2), ("fine3", 2)]


def test_too_few_seeds_are_refused_before_anything_is_written(workspace: Path, capsys: Capture) -> None:
    fault = run_cli(capsys, *WORDS, "--with", "fine2", "--seeds", "5", code=2)[1]
    assert "--seeds 5: the smallest p of 5 seeds is 0.0625" in fault and "write --seeds 6 or more" in fault
    assert not (workspace / "results").exists()


def test_run_says_that_few_seeds_give_no_verdict_and_goes_on(workspace: Path, capsys: Capture) -> None:
    words = ("run", "base.toml", "--workers", "1", "--seeds", "3,4")
    lines = run_cli(capsys, *words, "--dry-run", "--no-trial")
    assert lines[-2:] == [
        "2 seeds can never show a difference at 5%, whatever the accuracies are: that takes 6 seeds, 4 more",
        "so these runs end without verdicts; --seeds 3-8 makes them possible",
    ]
    assert (
        json.loads("\n".join(run_cli(capsys, *words, "--dry-run", "--json", "--no-trial")))["outlook"]
        == lines[-2:]
    )
    done = run_cli(capsys, *words)
    assert done[:2] == lines[-2:]
    assert "listed: unresolved: all 3 pairs (a difference takes 6 seeds)" in done


# What is said


def test_resolution_in_points_where_the_spread_is_known_and_else_in_standard_deviations() -> None:
    effect = power.detectable(8, 3, correction="max-t")
    (line,) = resolution_lines([PlannedPairs("a", 8, 3)])
    enough = power.seeds_for(effect / 2, 3, correction="max-t")
    assert line.startswith(f"8 seeds find a difference of {effect:.1f} SD of a paired difference in 80%")
    assert line.endswith(f"half of it takes about {enough:.0f} seeds, {enough - 8:.0f} more")
    first, second = resolution_lines(
        [PlannedPairs("a", 8, 3, Spread(0.03, "in x")), PlannedPairs("b", 8, 3, Spread(0.001, "in x"))]
    )
    assert first.startswith(f"a: 8 seeds find a difference of {3 * effect:.1f} points in 80% of repetitions")
    enough = power.seeds_for(0.02 / 0.03, 3, correction="max-t")
    assert "(3 pairs a task; SD 3.0 points in x)" in first
    assert first.endswith(f"; the margin of 2 points takes about {enough:.0f} seeds, {enough - 8:.0f} more")
    assert second.startswith(f"b: 8 seeds find a difference of {0.1 * effect:.1f} points")
    assert "margin" not in second  # which is resolved already
    assert resolution_lines([PlannedPairs("a", 8, 0)]) == []
    assert len(resolution_lines([PlannedPairs("a", 8, 1), PlannedPairs("b", 8, 1)])) == 1


def test_the_typical_spread_is_the_median_of_pairs_with_three_seeds() -> None:
    scores = {
        "a": {0: 0.5, 1: 0.5, 2: 0.5},
        "b": {0: 0.4, 1: 0.5, 2: 0.6},  # differences .1, 0, −.1: SD .1
        "c": {0: 0.3, 1: 0.5, 2: 0.7},  # .2
        "d": {0: 0.1},
    }
    spread = resolution.spread_of_runs(scores, "a", "here")
    assert spread.value == pytest.approx(0.15) and spread.source == "here"
    assert resolution.spread_of_runs(scores, "new", "").value == pytest.approx(0.1)  # b − c has .1 as well
    assert math.isnan(resolution.spread_of_runs({"a": {0: 0.5}, "b": {0: 0.4}}, "", "").value)


def test_verdict_lines_say_who_is_better_by_how_much() -> None:
    noise = [0.01, -0.02, 0.015, -0.01, 0.02, -0.005]
    values = {
        "mine": {s: 0.5 + noise[s] for s in range(6)},
        "low": {s: 0.4 + noise[s] + 0.01 * (s % 2) for s in range(6)},  # 10 and 9 points: mean 9.5
        "high": {s: 0.6 + noise[s] for s in range(6)},  # always 10 above
        "wide": {s: 0.5 + noise[s] + (0.1 if s == 0 else -0.03) for s in range(6)},
    }
    low, high, wide = verdict_lines(compare("t", values, control="mine"), "mine")
    assert low == "t: mine is better than low by 9.5 points (+8.9 to +10.1), adjusted p 0.031"
    assert high == "t: mine is worse than high by 10.0 points (+10.0 to +10.0), adjusted p 0.031"
    assert wide.startswith("t: mine and wide are unresolved: difference +0.8 points (") and " seeds " in wide
    task = describe_task("t", compare("t", {key: values[key] for key in ("mine", "low", "wide")}))
    assert task.startswith("t: mine > low by 9.5") and "unresolved: mine − wide" in task
    close = {"a": {s: 0.5 + s / 1000 for s in range(6)}, "b": {s: 0.505 - s / 1000 for s in range(6)}}
    (equal,) = verdict_lines(compare("t", close, control="a"), "a")
    assert equal.startswith(
        "t: no difference of 2 points or more between a and b: difference +0.0 points (−0.4 to +0.4)"
    )
    assert equal.endswith("Holm p 0.016")  # one pattern of 2^6
    assert verdict_lines(compare("t", close)) == ["t: no difference of 2 points or more: a ≈ b"]


def test_shared_settings_are_those_of_every_arm() -> None:
    text = 'name = "x"\n[train]\nsteps = 2\n[[arm]]\nalgorithm = "grpo"\ntrain.learning_rate = 1e-4\n'
    sets = ["train.steps=3", "arm.grpo.train.steps=9", "seeds=0-4", "on.t.train.steps=1"]
    assert shared_settings(text, sets) == {"train.steps": "3", "on.t.train.steps": "1"}
    assert shared_settings("not TOML [", sets[:1]) == {}
