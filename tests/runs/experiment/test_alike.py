"""Two runs that crash alike: what shares their cause is not started, and the same command starts it later."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from helpers import stand_ins
from helpers.experiments import Engine, launch, launched, states_by_arm

from grpobench.algorithms.returned import ReturnError
from grpobench.runs.experiment import launcher
from grpobench.runs.experiment.executor import News
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.worker import Ended, Fault, fault_of
from grpobench.runs.reward.functions import FunctionError, RewardFunction, RewardInput
from grpobench.runs.settings import others
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import read_recipe

CODE = """
from dataclasses import dataclass
from grpobench.algorithms.grpo import GRPO

class Base(GRPO):
    def fail(self, size):
        if size == 1:
            raise KeyError("one")
        raise ValueError(f"{size} rows at {id(self):#x}")

@dataclass(frozen=True)
class Half(Base):
    name = "half"
    factor: float = 0.5

@dataclass(frozen=True)
class Third(Base):
    name = "third"

def brevity(prompts, completions, **columns):
    return [0.0 for text in completions if text != "x"]
"""
RECIPE = """
seeds = [0, 1, 2, 3]
tasks = ["arithmetic"]
[[arm]]
algorithm = "mine:Half"
[[arm]]
name = "half-2"
algorithm = "mine:Half"
settings.factor = 2.0
[[arm]]
algorithm = "mine:Third"
[[arm]]
algorithm = "grpo"
[[arm]]
name = "brief"
algorithm = "grpo"
reward.kind = "sum"
reward.weights = { correct = 1.0, "mine:brevity" = 1.0 }
[[arm]]
name = "brief-rloo"
algorithm = "rloo"
reward.kind = "sum"
reward.weights = { correct = 1.0, "mine:brevity" = 1.0 }
"""
ARMS = ("half", "half-2", "third", "grpo", "brief", "brief-rloo")


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, list[RunConfig]]:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "study.toml").write_text(RECIPE)
    runs = read_recipe(str(tmp_path / "study.toml")).runs()
    return {arm: [config for config in runs if config.arm == arm] for arm in ARMS}


@dataclasses.dataclass
class Crashing(Engine):
    """Runs of these arms crash, and others finish."""

    faults: Mapping[str, Fault]

    def __post_init__(self) -> None:
        super().__init__()

    def news(self, seconds: float) -> list[News]:
        run = self.begun[-1]
        fault = self.faults.get(run.config.arm)
        return [(run, Ended("crashed", "why", fault=fault) if fault else Ended("finished", ""))]


def launch_all(
    configs: Sequence[RunConfig], folder: Path, faults: dict[str, Fault], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, str], str]:
    """The states of the runs by arm, a letter each, where the runs of these arms crash; and what is said."""
    monkeypatch.setattr(launcher, "POLL", 0.0)
    runs = [ExperimentRun(config, folder / config.folder) for config in configs]
    output = launched(runs, Crashing(faults))
    letters = {"crashed": "c", "finished": "f", "waiting": "-"}
    states: dict[str, str] = {}
    for run in runs:
        states[run.config.arm] = states.get(run.config.arm, "") + letters[run.state]
    return states, output


def alternating(configs: dict[str, list[RunConfig]], *arms: str) -> list[RunConfig]:
    """The runs of these arms, seed by seed."""
    return [config for of_seed in zip(*(configs[arm] for arm in arms), strict=True) for config in of_seed]


def test_two_equal_crashes_of_an_arm_stop_its_runs_and_no_others(
    configs: dict[str, list[RunConfig]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault("ValueError", str(tmp_path / "mine.py"), "mine:Half")
    states, output = launch_all(
        alternating(configs, "half", "half-2", "third", "grpo"), tmp_path, {"half": fault}, monkeypatch
    )
    # half-2 has the same class with other settings; third is in the same file
    assert states == {"half": "cc--", "half-2": "ffff", "third": "ffff", "grpo": "ffff"}
    assert (
        "2 runs crashed alike (half-arithmetic-s0, half-arithmetic-s1); 2 runs of the same kind were not "
        "started: mend the cause and run the same command" in output
    )
    assert output.count("crashed alike") == 1


def test_crashes_that_differ_stop_nothing(
    configs: dict[str, list[RunConfig]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"half": Fault("one"), "third": Fault("two")}
    first = alternating(configs, "half", "third", "grpo")[:3]
    assert launch_all(first, tmp_path, faults, monkeypatch)[0] == {"half": "c", "third": "c", "grpo": "f"}


def test_two_arms_that_crash_alike_stop_whatever_uses_the_code(
    configs: dict[str, list[RunConfig]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Fault("ValueError", str(tmp_path / "mine.py"))  # in a base class, which no recipe names
    every = alternating(configs, "half", "third", "half-2", "brief", "grpo")
    states, _ = launch_all(every, tmp_path, {"half": shared, "third": shared}, monkeypatch)
    assert states == {"half": "c---", "third": "c---", "half-2": "----", "brief": "----", "grpo": "ffff"}


def test_two_arms_that_crash_alike_in_no_ones_code_stop_everything(
    configs: dict[str, list[RunConfig]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Fault("RuntimeError: CUDA error: device-side assert triggered")
    every = alternating(configs, "half", "grpo", "third")
    states, _ = launch_all(every, tmp_path, {"half": shared, "grpo": shared}, monkeypatch)
    assert states == {"half": "c---", "grpo": "c---", "third": "----"}


def test_a_reward_that_fails_twice_stops_every_arm_that_it_rewards(
    configs: dict[str, list[RunConfig]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other of its file, whether one arm met it twice or two arms once each."""
    fault = Fault("KeyError", str(tmp_path / "mine.py"), "mine:brevity")
    faults = {"brief": fault, "brief-rloo": fault}
    beside = alternating(configs, "half", "grpo")
    later = [*configs["brief"], *configs["brief-rloo"][2:], *beside]
    states, _ = launch_all(later, tmp_path / "one", faults, monkeypatch)
    assert states == {"brief": "cc--", "brief-rloo": "--", "half": "ffff", "grpo": "ffff"}
    every = [*configs["brief"], *configs["brief-rloo"], *beside]
    states, _ = launch_all(every, tmp_path / "two", faults, monkeypatch)
    assert states == {"brief": "c---", "brief-rloo": "c---", "half": "ffff", "grpo": "ffff"}


# Which crashes are equal


def raised(config: RunConfig, size: int) -> Fault:
    algorithm: object = config.algorithm
    try:
        algorithm.fail(size)  # type: ignore[attr-defined]
    except Exception as error:
        return fault_of(config, error, others.why(config, error))
    raise AssertionError


def test_crashes_are_equal_by_type_line_and_message_without_numbers(
    configs: dict[str, list[RunConfig]], tmp_path: Path
) -> None:
    half, third = configs["half"][0], configs["third"][0]
    assert raised(half, 63) == raised(half, 24)  # another batch, another address
    assert raised(half, 63).signature == raised(third, 63).signature  # the same line of their base class
    assert raised(half, 63).signature != raised(half, 1).signature
    assert raised(half, 63).file == str(tmp_path / "mine.py")


def test_what_returns_something_wrong_is_known_by_the_line_in_its_message(
    configs: dict[str, list[RunConfig]], tmp_path: Path
) -> None:
    config = configs["brief"][0]
    path = str(tmp_path / "mine.py")

    def fault(error: Exception) -> Fault:
        return fault_of(config, error, others.why(config, error))

    reward = RewardFunction("mine:brevity", others.others(config)["mine:brevity"].cls)
    with pytest.raises(FunctionError) as caught:
        reward([RewardInput("", "x", (), {})])
    crash = fault(caught.value)
    assert (crash.file, crash.owner) == (path, "mine:brevity")
    returned = ReturnError("mine.py:20 Half.compute_signal returned advantage (3, 8), expected (4, 8)")
    other = ReturnError("mine.py:20 Half.compute_signal returned advantage (3, 7), expected (4, 7)")
    config = configs["half"][0]
    assert fault(returned) == fault(other) and (fault(returned).file, fault(returned).owner) == (
        path,
        "mine:Half",
    )
    assert fault(RuntimeError("of the suite")).file == ""


# As a user meets it


def test_held_runs_are_begun_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    stand_ins.register(monkeypatch)
    arm = '[[arm]]\nalgorithm = "plain"\n'
    arms = f'{arm}name = "fine"\n{arm}settings.label = "raise"\n'
    path = tmp_path / "m.toml"
    path.write_text(f'name = "m"\ntasks = ["sums"]\nseeds = [0, 1, 2, 3, 4]\n[train]\nsteps = 1\n{arms}')
    outcome, output = launch(read_recipe(str(path)), tmp_path, workers=1)
    states = [run.state for run in outcome.runs]
    assert states == ["finished"] * 5 + ["crashed"] * 2 + ["waiting"] * 3 and outcome.code == 70
    assert len(outcome.held_messages) == 1 and outcome.held_messages[0] in output
    assert not (tmp_path / "m" / "plain-sums-s2").exists()
    (tmp_path / "m" / "mended").touch()
    again, _ = launch(read_recipe(str(path)), tmp_path, workers=1)
    assert set(states_by_arm(again).values()) == {"finished"} and again.code == 0 and not again.held_messages
