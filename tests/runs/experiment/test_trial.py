"""The trial before an experiment: code that cannot work is named with file, line and what is expected, before
anything is started."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.toys import arithmetic_run

from grpobench.algorithms.dapo import DAPO
from grpobench.algorithms.ppo import PPO
from grpobench.runs import cli
from grpobench.runs.experiment import trial
from grpobench.runs.experiment.trial import TrialResult, choices, distinct
from grpobench.runs.settings.config import RunConfig, SamplerConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.train.trial import GROUP, PROMPTS, TOKENS, calls, tiny

HEAD = """
from dataclasses import dataclass, replace
import torch
from grpobench.algorithms.curriculum import Shuffled
from grpobench.algorithms.grpo import GRPO
from grpobench.runs.sample.in_process import HFSampler
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.task import Verdict


def scaled(signal, advantage):
    return replace(signal, advantage=advantage)

"""
ALGORITHM = (
    HEAD
    + """
@dataclass(frozen=True)
class Half(GRPO):
    name = "half"
    factor: float = 0.5

    def compute_signal(self, batch, models):  # HERE
        signal = super().compute_signal(batch, models)
        return {}
"""
)
RECIPE = """
seeds = [0, 1, 2]
tasks = [{{ name = "{task}", settings = {{ train = 16, validation = 4, test = 4 }} }}]
{top}
[model]
name = "nano"
[train]
steps = 5
prompts_per_step = 4
group_size = 4
num_minibatches = 2
{train}
[evaluate]
problems = 0
test_problems = 0
{sections}
[[arm]]
algorithm = "grpo"
[[arm]]
algorithm = "{arm}"
"""
REWARD = '[reward]\nkind = "sum"\nweights = {{ correct = 1.0, "mine:brevity" = 0.1 }}\n'.format()


@dataclasses.dataclass(frozen=True)
class Faulty:
    """A module with a fault, the recipe that uses it, and what must be said of it. The line is that of the
    comment HERE."""

    code: str
    message: str
    arm: str = "rloo"
    task: str = "arithmetic"
    top: str = ""
    train: str = ""
    sections: str = ""

    @property
    def line(self) -> int:
        before, here, _ = self.code.partition("HERE")
        assert here
        return before.count("\n") + 1

    def write(self, folder: Path) -> Path:
        (folder / "mine.py").write_text(self.code)
        path = folder / "study.toml"
        path.write_text(RECIPE.format(**vars(self)))
        return path


def algorithm(body: str, message: str) -> Faulty:
    """An algorithm whose `compute_signal` ends with this line."""
    return Faulty(ALGORITHM.format(body), f"Half.compute_signal {message}", arm="mine:Half")


def method(text: str, message: str) -> Faulty:
    """An algorithm with another method, in which HERE stands."""
    head = f'{HEAD}\n@dataclass(frozen=True)\nclass Half(GRPO):\n    name = "half"\n'
    return Faulty(f"{head}    {text}\n", message, arm="mine:Half")


def reward(text: str, message: str) -> Faulty:
    return Faulty(f"{HEAD}{text}\n", message, sections=REWARD)


def task(text: str, message: str) -> Faulty:
    head = f'{HEAD}\n@dataclass(frozen=True)\nclass Riddles(Arithmetic):\n    name = "riddles"\n    {text}\n'
    return Faulty(head, message, task="mine:Riddles")


def curriculum(text: str, message: str) -> Faulty:
    return Faulty(f"{HEAD}\n{text}\n", message, train='curriculum = "mine:Easy"')


def sampler(text: str, message: str) -> Faulty:
    code = f"{HEAD}\nclass Mine(HFSampler):\n    {text}\n\n\ndef engine(config, models, loaded):\n"
    code += "    most = config.sampler.max_batch_size\n"
    code += "    return Mine(models, loaded.end, loaded.pad, most, loaded.context)\n"
    return Faulty(code, message, sections='[sampler]\nkind = "mine:engine"')


EASY = """class Easy(Shuffled):
    def __init__(self, problems, prompts, seed):
        super().__init__(len(problems), prompts, seed)
"""
FAULTS = {
    # Of an algorithm; wrong shapes and types are in test_returned.py, of algorithms and of the loop
    "no return": algorithm("None", "returned None of type NoneType, expected a Signal"),
    "a division by the deviation of equal rewards": algorithm(
        "scaled(signal, signal.advantage / signal.advantage.abs().max())",
        r"returned advantage with nan in \d+ of \d+ values, first at \[0, 0\], expected finite numbers",
    ),
    "a generator": algorithm(
        "signal\n        yield", r"returned a generator \(write `return`, not `yield`\)"
    ),
    "raises at step 3": method(
        "def loss(self, batch, signal, now):\n        if batch.step == 3:\n            "
        "raise IndexError('the third')  # HERE\n        return super().loss(batch, signal, now)",
        r"Half\.loss raised IndexError: the third",
    ),
    "raises at the last step": method(
        "def loss(self, batch, signal, now):\n        assert batch.step < 5  # HERE\n"
        "        return super().loss(batch, signal, now)",
        r"Half\.loss raised AssertionError in `assert batch\.step < 5",
    ),
    "a gradient of a root of 0": method(
        "def loss(self, batch, signal, now):  # HERE\n        made = super().loss(batch, signal, now)\n"
        "        return replace(made, terms=made.terms + (now['policy'].logp * 0).sqrt())",
        r"Half\.loss returned terms whose gradient is not finite, expected a finite gradient",
    ),
    # Wrong rewards, verdicts, draws and samples are in the tests of what checks them
    "a reward that raises in its second step": reward(
        "def brevity(completions, trainer_state, **columns):\n    if trainer_state.global_step:\n"
        "        return [columns['size'][0]] * len(completions)  # HERE\n    return [0.0] * len(completions)",
        "brevity the reward mine:brevity raised KeyError: 'size'; fix it",
    ),
    "a verifier that raises": task(
        "def verify(self, problem, completions):\n        return problem.truth['none']  # HERE",
        r"Riddles\.verify raised TypeError: ",
    ),
    "a state that is no JSON": curriculum(
        EASY + "    def state(self):  # HERE\n        return {1, 2}",
        r"mine:Easy\.state returned \{1, 2\} of type set, expected what JSON can hold",
    ),
    "attempts that is a method": curriculum(
        EASY.replace("(Shuffled):", "(Shuffled):  # HERE") + "    def attempts(self):\n        return 1",
        r"mine:Easy\.attempts is <bound method .*, expected a whole number from 1 \(as a @property",
    ),
    "a sampler that raises": sampler(
        "def sample(self, requests, *more):\n        raise OSError('no engine')  # HERE",
        r"Mine\.sample raised OSError: no engine",
    ),
    "a callback that raises": Faulty(
        f"{HEAD}\nclass Printer:\n    def step(self, row):\n        print(row['reward'])  # HERE\n",
        r"Printer\.step raised KeyError: 'reward' \(in step\); the callback mine:Printer would be dropped",
        top='observe = ["mine:Printer"]',
    ),
}
UNREADABLE = {
    "a setting without a default": Faulty(
        f"{HEAD}from dataclasses import field\n\n@dataclass(frozen=True)  # HERE\nclass Half(GRPO):\n"
        '    name = "half"\n    factor: float = field(kw_only=True)\n',
        r"arm\.half\.settings: missing factor, which mine\.py:{line} Half gives no default",
        arm="mine:Half",
    ),
    "a constructor that raises": Faulty(
        f'{HEAD}\n@dataclass(frozen=True)\nclass Half(GRPO):\n    name = "half"\n\n'
        "    def __post_init__(self):\n        self.nothing + 1  # HERE\n",
        r"mine\.py:{line} Half\.__post_init__ raised AttributeError: 'Half' object has no attribute",
        arm="mine:Half",
    ),
    "a constructor of other arguments": Faulty(
        f'{HEAD}\nclass Half(GRPO):  # HERE\n    name = "half"\n\n'
        "    def __init__(self, scale):\n        pass\n",
        r"mine\.py:{line} Half cannot be made with its settings: TypeError: Half\.__init__\(\) missing 1",
        arm="mine:Half",
    ),
    "a curriculum without arguments": curriculum(
        "class Easy(Shuffled):  # HERE\n    def __init__(self, problems):\n        pass",
        r"mine:Easy: takes \(problems\) and is called with \(problems, prompts, seed\): too many positional "
        r"arguments; let it take \(problems, prompts, seed\) \(mine\.py:{line}\)",
    ),
    "a reward of other arguments": reward(
        "def brevity(texts):  # HERE\n    return [0.0 for _ in texts]",
        r"mine:brevity: takes \(texts\) and is called with \(prompts=\.\.\., completions=.*; write `def "
        r"brevity\(prompts, completions, \*\*columns\)` \(mine\.py:{line}\)",
    ),
}
"""What is found while the recipe is read, before anything is called."""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials are made in this process, and leave torch's operators as they were."""
    monkeypatch.setattr("torch.use_deterministic_algorithms", lambda *_, **__: None)

    def carry_out(chosen: Sequence[RunConfig], gpus: float | None = None) -> list[TrialResult]:
        return [trial.tried(config, tmp_path) for config in chosen]

    monkeypatch.setattr(trial, "carry_out", carry_out)
    monkeypatch.setattr(trial, "PASSED", set())


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `grpobench run` complains of a recipe, of which it starts nothing."""
    out = path.parent / "out"
    began = time.process_time()  # whatever else the machine does
    assert cli.main(["run", str(path), "--out", str(out), "--workers", "1"]) == 2
    assert time.process_time() - began < 20
    assert not [*out.glob("*/*/run.toml"), *out.glob("*/experiment.json")]
    return capsys.readouterr().err


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_with_line_and_expectation_before_any_run(
    fault: Faulty, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stderr = refused(fault.write(tmp_path), capsys)
    assert "the trial before the first run found 1 fault, and nothing was started" in stderr
    line = stderr.partition("nothing was started:\n")[2].splitlines()[0]
    assert re.match(rf"  mine\.py:{fault.line} {fault.message}.*\(arm .* on ", line), line
    assert stderr.count(f"mine.py:{fault.line}") == 1 and "--no-trial" in stderr
    match = re.search(r"tracebacks are in (\S+);", stderr)
    assert match and "Traceback (most recent call last)" in Path(match[1]).read_text()
    Path(match[1]).unlink()


@pytest.mark.parametrize("fault", UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_made_is_named_while_the_recipe_is_read(
    fault: Faulty, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stderr = refused(fault.write(tmp_path), capsys)
    assert re.search(fault.message.replace("{line}", str(fault.line)), stderr), stderr
    assert str(tmp_path / "mine.py") in stderr or f"mine.py:{fault.line}" in stderr


# What is tried


def study(folder: Path, arms: str = "") -> Path:
    """A recipe of GRPO and an algorithm of the user's that is sound, with a reward of the user's."""
    code = ALGORITHM.format("scaled(signal, signal.advantage * self.factor)")
    code += (
        "\n\ndef brevity(completions, **columns):\n    return [-len(text) / 100 for text in completions]\n"
    )
    path = Faulty(code, "", arm="mine:Half").write(folder)
    path.write_text(path.read_text() + arms)
    return path


def run_names(configs: Sequence[RunConfig]) -> list[str]:
    return [f"{config.arm} on {config.task.name}, seed {config.seed}" for config in configs]


def test_each_piece_of_the_users_code_is_tried_once_on_every_task(tmp_path: Path) -> None:
    factors = "".join(
        f'[[arm]]\nname = "half-{n}"\nalgorithm = "mine:Half"\nsettings.factor = {f}\n'
        for n, f in enumerate((0.25, 0.75, 0.0))
    )
    path = study(tmp_path, factors)
    runs = read_recipe(str(path)).runs()
    assert len(runs) == 3 * 5
    # Seeds make no difference, nor does another factor; a factor of 0 may go another way through the code.
    assert run_names(distinct(runs)) == ["half on arithmetic, seed 0", "half-2 on arithmetic, seed 0"]
    assert run_names(distinct(runs, everything=True)) == [
        *("grpo on arithmetic, seed 0", "half on arithmetic, seed 0", "half-2 on arithmetic, seed 0"),
    ]
    path.write_text(path.read_text().replace("tasks = [", 'tasks = ["nanobias", '))
    assert run_names(distinct(read_recipe(str(path), ["arms=half"]).runs())) == [
        *("half on nanobias, seed 0", "half on arithmetic, seed 0"),
    ]
    plain = read_recipe("quickstart", ["tasks=arithmetic"]).runs()
    assert distinct(plain) == []  # nothing of the user's


def test_a_large_model_is_loaded_once_for_each_piece_of_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "is_large", lambda model: True)
    arms = '[[arm]]\nname = "none"\nalgorithm = "mine:Half"\nsettings.factor = 0.0\n'
    path = study(tmp_path, arms)
    path.write_text(path.read_text().replace("tasks = [", 'tasks = ["nanobias", '))
    runs = read_recipe(str(path)).runs()
    for everything in (False, True):
        assert run_names(distinct(runs, everything)) == ["half on nanobias, seed 0"]
    there = trial.moved(runs[0])  # where another machine has the model
    assert there.model.name == "nano"
    assert trial.described(there) == "arm grpo on nanobias with nano for its model"


def test_a_trial_is_tiny_and_takes_the_steps_in_which_code_differs() -> None:
    config = arithmetic_run(PPO(critic_warmup=6), steps=40)
    small = tiny(config)
    assert (small.train.prompts_per_step, small.train.group_size) == (PROMPTS, GROUP)
    assert small.sampler.max_completion_tokens == TOKENS and small.model.warm_start == 0
    assert calls(config) == [
        *((1, "real"), (2, "different"), (3, "equal")),
        *((7, "different"), (40, "equal")),  # the first update of the policy, and the last
    ]
    short = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=1))
    assert calls(short) == [(1, "real"), (1, "different"), (1, "equal")]
    assert calls(dataclasses.replace(config, train=dataclasses.replace(config.train, steps=0))) == []
    pairs = dataclasses.replace(config, sampler=SamplerConfig(kind="preferences", path="x"))
    assert {rewards for _, rewards in calls(pairs)} == {"real"}
    # 0 and 1 are two ways through the code, 1 and 2 are one
    first, second, third = (
        choices(arithmetic_run(DAPO(clip_high=high, beta=beta)))
        for high, beta in ((0.3, 0.0), (0.4, 0.0), (0.4, 0.1))
    )
    assert first == second != third


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The trials that are asked for, none of which is made."""
    names: list[str] = []

    def carry_out(chosen: Sequence[RunConfig], gpus: float | None = None) -> list[TrialResult]:
        names.extend(run_names(chosen))
        return [TrialResult(trial.described(config)) for config in chosen]

    monkeypatch.setattr(trial, "carry_out", carry_out)
    return names


def demand(path: Path, folder: Path, *sets: str) -> list[str]:
    """What is said of a trial before the runs of a recipe."""
    messages: list[str] = []
    recipe = read_recipe(str(path), sets)
    trial.demand(recipe.runs(), folder, trial.Where(), messages.append)
    return messages


def test_what_passed_is_tried_again_only_where_code_or_settings_changed(
    tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = study(tmp_path), tmp_path / "out"
    folder.mkdir()
    once = ["half on arithmetic, seed 0"]
    assert demand(path, folder)[0] == "trial of the recipe's own code: arm half on arithmetic"
    assert counted == once
    for _ in range(2):  # in this process, and in the next, which reads what the folder holds
        assert demand(path, folder) == [] and counted == once
        monkeypatch.setattr(trial, "PASSED", set())
    assert demand(path, folder, "seeds=[7]") == [] and counted == once
    demand(path, folder, "algorithm.factor=0.75")
    assert counted == 2 * once
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text().replace("self.factor", "0.5"))
    demand(path, folder)
    assert counted == 3 * once
    assert len(json.loads((folder / trial.MEMORY).read_text())) == 3


def test_what_could_not_be_tried_is_said_and_starts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def carry_out(chosen: Sequence[RunConfig], gpus: float | None = None) -> list[TrialResult]:
        return [TrialResult(trial.described(config), skipped="the process has ended") for config in chosen]

    monkeypatch.setattr(trial, "carry_out", carry_out)
    messages = demand(study(tmp_path), tmp_path)
    assert messages[1:] == ["arm half on arithmetic was not tried: the process has ended"]
    assert json.loads((tmp_path / trial.MEMORY).read_text()) == []


def test_equal_faults_are_one_with_all_of_their_arms() -> None:
    trials = [
        TrialResult("arm a on t", "mine.py:3 f raised KeyError"),
        TrialResult("arm b on t", "mine.py:3 f raised KeyError"),
    ]
    assert str(trial.TrialError([*trials, TrialResult("arm c on t")])).splitlines()[:2] == [
        "the trial before the first run found 1 fault, and nothing was started:",
        "  mine.py:3 f raised KeyError (arm a on t, arm b on t)",
    ]


# The commands


def test_a_dry_run_tries_the_suites_own_too_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = study(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    command = ["run", str(path), "--out", str(tmp_path / "out"), "--dry-run"]
    assert cli.main(command) == 0
    captured = capsys.readouterr().out
    assert "\ntrial: passed; tried arm grpo on arithmetic, arm half on arithmetic\n" in captured
    assert cli.main([*command, "--json", "--no-trial"]) == 0
    assert json.loads(capsys.readouterr().out)["trial"] == []
    made = {file for file in tmp_path.rglob("*") if "__pycache__" not in str(file)}
    assert made == {*before}
    (tmp_path / "other").mkdir()  # a process reads a file once
    path = FAULTS["no return"].write(tmp_path / "other")
    assert cli.main(["run", str(path), "--out", str(tmp_path / "out"), "--dry-run", "--json"]) == 2
    captured = capsys.readouterr()
    assert "Half.compute_signal returned None of type NoneType" in captured.err
    faults = [row["fault"] for row in json.loads(captured.out)["trial"]]
    assert faults[0] == "" and faults[1].startswith("mine.py:")
