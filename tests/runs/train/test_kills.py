"""Killed at any point and started again, a run is byte for byte the undisturbed one, and nothing of a killed
process is left behind. `make torture` draws the points at random, for more algorithms.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import torture
from helpers.whole_runs import rows

from grpobench.analysis.runfolder.load import load
from grpobench.runs.experiment import launcher, watchdog
from grpobench.runs.runfolder.logs import status

SETS = ["train.steps=3", "checkpoint.every=1", "train.prompts_per_step=2", "evaluate.test_problems=2"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch, warm: None) -> None:
    """However often it dies, it is started again, and nobody waits."""
    monkeypatch.setattr(launcher, "MOST_AGAIN", 99)
    monkeypatch.setattr(launcher, "PAUSES", (0.0,) * 100)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an undisturbed run comes to."""
    with pytest.MonkeyPatch.context() as patch:
        from helpers.warm import Warm

        patch.setattr("grpobench.runs.experiment.pool.multiprocessing", Warm)
        folder = tmp_path_factory.mktemp("whole") / "w"
        outcome = torture.carried(folder, "ppo", (), SETS)
        assert torture.learned(outcome)
        weights = [row.get("modify/entropy_coefficient") for row in json.loads(outcome["metrics.jsonl"])]
        assert weights == [None, 0.0, 0.0, 0.01]  # the critic alone is trained in the first step
        return outcome


KILLS = (
    *("evaluated.1.kill", "rollout.1.kill", "log-row.2.kill", "rewind.1.kill"),
    *("save-manifest.1.kill", "final.1.kill", "finish.1.kill"),
)


def test_a_run_killed_everywhere_is_the_undisturbed_one(
    undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "k"
    assert torture.carried(folder, "ppo", KILLS, SETS) == undisturbed
    assert not torture.leftovers(folder) and not load(folder / "torture").damage
    assert len(rows(torture.run_of(folder))) == 4


def test_a_kill_behind_the_result_is_no_crash(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """The launcher never hears of the end; the run has its result all the same, and is not made again."""
    folder = tmp_path / "k"
    outcome = torture.carry(folder, "ppo", ("finished.1.kill",), SETS)
    assert outcome.code == 0 and [run.state for run in outcome.runs] == ["finished"]
    assert torture.outcome(folder) == undisturbed and load(folder / "torture").runs[0].attempt == 1


ENVIRONMENT = """
import os, signal
from pathlib import Path

KILL = Path(__file__).with_name("kill")

class Echo:
    name = "echo"
    turns, turn_tokens, turn_end, max_completion_tokens = 3, 6, "\\n", 48

    def problems(self, split):
        return [{"id": f"{split}-{n}"} for n in range(16)]

    def reset(self, problem, seed):
        self.count, self.kind = 0, seed % 3
        return f"{problem['id']} ", []

    def step(self, turn):
        self.count += 1
        if self.count == 2 and KILL.exists():  # in the midst of an episode
            KILL.unlink()
            keeper = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(keeper.rpartition(")")[2].split()[1]), signal.SIGKILL)
        return f"{len(turn.text) % 10}\\n", float(len(turn.text) % 3 == self.kind), False
"""


def test_a_run_killed_in_the_midst_of_an_environment_s_episode_is_the_undisturbed_one(
    tmp_path: Path,
) -> None:
    """The environment kills the trainer, which begins again and replays."""
    outcomes = []
    for kill in (False, True):
        folder = tmp_path / f"k{kill}"
        torture.prepare(folder, "grpo")
        recipe = folder / "torture.toml"
        entry = next(line for line in recipe.read_text().splitlines() if line.startswith("tasks"))
        recipe.write_text(recipe.read_text().replace(entry, 'tasks = ["env:echo:Echo"]'))
        (folder / "echo.py").write_text(ENVIRONMENT)
        (folder / "kill").touch() if kill else None
        outcomes.append(torture.carried(folder, "grpo", (), SETS))
        assert not (folder / "kill").exists() and not torture.leftovers(folder)
        assert (load(folder / "torture").runs[0].attempt > 1) == kill
    assert outcomes[0] == outcomes[1]


@pytest.mark.slow
@pytest.mark.parametrize("planned", ["rollout.2.hang", "update.3.stop"])
def test_a_run_that_hangs_or_is_halted_is_replaced_and_the_undisturbed_one(
    planned: str, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs its patience on the clock, and next to no work."""
    monkeypatch.setenv(watchdog.VARIABLE, "8")
    folder = tmp_path / "k"
    assert torture.carried(folder, "ppo", (planned,), SETS) == undisturbed
    # On a machine that has much to do an attempt may be taken to hang that only began slowly.
    stack_text = "".join(path.read_text() for path in torture.run_of(folder).glob("unresponsive-*.txt"))
    signs = (watchdog.NO_STACK,) if planned.endswith("stop") else ("in gather", "in execute")
    assert all(sign in stack_text for sign in signs)
    assert not torture.leftovers(folder) and not torture.survivors(folder)


def test_repeatedly_stopped_run_equals_the_undisturbed_one(
    undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    """By a signal, as a guard of memory sends it, while it samples and while it updates. It saves, and goes
    on in another process."""
    folder = tmp_path / "k"
    planned = ("rollout.1.terminate", "update.2.terminate")
    assert torture.carried(folder, "ppo", planned, SETS) == undisturbed
    # A run asks four times a second whether to stop: on a fast machine two of the signals are one request.
    assert status(torture.run_of(folder))["attempt"] > 1
    assert not torture.leftovers(folder) and not torture.survivors(folder)
