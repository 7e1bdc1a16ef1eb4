"""A run that is told to stop does so at the next safe point of whatever it does, leaves nothing half done,
and comes, when it is started again, to the very same bytes."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest
from helpers.stops import Told, carry, stopped
from helpers.toys import Letters
from helpers.whole_runs import configure, last_step

from grpobench.algorithms.ads import ADS
from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.modifiers import Modifiers
from grpobench.algorithms.ppo import PPO
from grpobench.runs.models.loading import load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.runfolder import checkpoints
from grpobench.runs.settings.config import (
    CheckpointConfig,
    ModelConfig,
    RunConfig,
    SamplerConfig,
    TrainConfig,
)
from grpobench.runs.tools.lock import FolderError
from grpobench.runs.tools.process import asking, safe_point
from grpobench.runs.train import stopping
from grpobench.runs.train.prepare.study import study
from grpobench.runs.train.prepare.warmstart import alone
from grpobench.runs.train.progress import Preempted, Progress
from grpobench.runs.train.rollouts import OnPolicy
from grpobench.runs.train.stopping import Stopping


@pytest.fixture(autouse=True)
def at_every_safe_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run looks at each of them, not now and then."""
    monkeypatch.setattr(stopping, "ASK", 0.0)
    monkeypatch.setenv("GRPOBENCH_CACHE", str(tmp_path / "cache"))


def rare(config: RunConfig) -> RunConfig:
    """Without checkpoints but those of a stop."""
    return dataclasses.replace(config, checkpoint=CheckpointConfig(every=0))


@pytest.mark.parametrize(
    ("algorithm", "stops"),
    [
        (
            GRPO(beta=0.1),
            [
                (Told(0, "evaluating on validation", 3), [], -1),
                (Told(0, "sampling", 2), [], 0),
                (Told(1, "sampling", 4), [1], 1),
                (Told(1, "training", 1), [1], 1),
                (Told(2, "evaluating on validation", 2), [1, 2], 1),
                (Told(2, "sampling", 1), [1, 2], 2),
                (Told(3, "evaluating on test", 2), [2, 3], 2),
            ],
        ),
        (PPO(), [(Told(1, "training", 1), [1], 1)]),
        (DPO(), [(Told(0, "loading", 2), [], -1), (Told(1, "training", 1), [1], 1)]),
    ],
    ids=["grpo", "ppo", "dpo"],
)
def test_a_run_stopped_in_every_phase_is_the_undisturbed_one(
    algorithm: Algorithm[Any], stops: list[tuple[Told, list[int], int]], policy: str, tmp_path: Path
) -> None:
    """(where, checkpoints behind it, last row behind it), one start after the other."""
    sampler = SamplerConfig(kind="replay", problems=6) if algorithm.off_policy else SamplerConfig()
    config = rare(configure(policy, algorithm, sampler=sampler))
    for listener, saved, row in stops:
        assert stopped(config, tmp_path / "parts", listener) == saved, listener.where
        assert last_step(tmp_path / "parts") == row, listener.where
    assert carry(config, tmp_path / "parts") == carry(config, tmp_path / "whole")
    assert not [*(tmp_path / "parts").glob("checkpoints/.*")]


def test_a_stop_between_refills_keeps_what_was_before_the_first(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the first draw of the step has changed the curriculum and the count of tokens."""
    train = TrainConfig(steps=3, prompts_per_step=4, group_size=2, learning_rate={"policy": 1e-3})
    config = rare(configure(policy, ADS(), modify=Modifiers(dynamic_sampling=3), train=train))
    undisturbed = carry(config, tmp_path / "whole")
    refills, plain, listener = list[int](), OnPolicy.gather, Told()

    def gather(self: Any, step: int, attempt: int, index: Any) -> Any:
        refills.extend([step] * (attempt > 0 and step > 1))
        return plain(self, step, attempt, index)

    monkeypatch.setattr(OnPolicy, "gather", gather)
    monkeypatch.setattr(listener, "stop", lambda: bool(refills))
    saved = stopped(config, tmp_path / "parts", listener)
    assert saved == [refills[0] - 1]
    assert carry(config, tmp_path / "parts") == undisturbed


@pytest.mark.parametrize(("patience", "saved", "row"), [(60.0, [1], 1), (0.0, [], 0)])
def test_a_step_that_has_changed_weights_is_finished_or_made_again(
    patience: float, saved: list[int], row: int, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told behind the first of two updates of step 1. Where the rest takes long, the last checkpoint counts:
    here none."""
    config = rare(configure(policy))
    undisturbed = carry(config, tmp_path / "whole")
    updates, plain, listener = list[Any](), RoleModels.step, Told()
    with monkeypatch.context() as patch:
        patch.setattr(stopping, "FINISH", patience)
        patch.setattr(listener, "stop", lambda: bool(updates))
        patch.setattr(
            RoleModels, "step", lambda *arguments: (updates.append(arguments), plain(*arguments))[1]
        )
        assert stopped(config, tmp_path / "parts", listener) == saved
    assert last_step(tmp_path / "parts") == row
    assert carry(config, tmp_path / "parts") == undisturbed


def test_a_warm_start_that_is_stopped_leaves_nothing_and_is_made_again(policy: str, tmp_path: Path) -> None:
    model = ModelConfig(policy, warm_start=4, warm_start_batch=4, warm_start_learning_rate=1e-3)
    config = rare(configure(policy, model=model))
    cache = tmp_path / "cache" / "warm"
    assert stopped(config, tmp_path / "parts", Told(0, "warm start 2/4", 1)) == []
    assert [path.name[-5:] for path in cache.iterdir()] == [".lock"] and last_step(tmp_path / "parts") == -1
    outcome = carry(config, tmp_path / "parts")
    (made,) = (path for path in cache.iterdir() if path.is_dir())
    made.rename(tmp_path / "first")
    assert outcome == carry(config, tmp_path / "whole")


def give_up() -> None:
    raise Preempted


def test_a_study_that_is_stopped_leaves_nothing(policy: str, tmp_path: Path) -> None:
    loaded, task = load(policy), Letters()
    models = RoleModels(loaded.model, ("policy",))
    with asking(give_up), pytest.raises(Preempted):
        study(models, loaded, task, task.problems("train"))
    assert [path.name[-5:] for path in (tmp_path / "cache" / "study").iterdir()] == [".lock"]


def test_who_waits_for_anothers_warm_start_can_be_stopped(tmp_path: Path) -> None:
    locked, over = threading.Event(), threading.Event()

    def other() -> None:
        with alone(tmp_path / "x"):
            locked.set()
            over.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    locked.wait(30)
    try:
        with asking(give_up), pytest.raises(Preempted), alone(tmp_path / "x"):
            raise AssertionError("two have it")
    finally:
        over.set()
        thread.join()


def test_a_long_phase_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now[0])
    listener = Told()
    run = Stopping(listener.report, listener.stop)
    run.report(Progress(1, 3, 0.5, 10.0, "sampling"))
    with run.heeded():
        for second in range(1, 21):
            now[0] = float(second)
            safe_point()
    assert len(listener.heard) == 1 + int(20 // stopping.BEAT)
    assert set(listener.heard) == {Progress(1, 3, 0.5, 10.0, "sampling")}


def test_a_checkpoint_that_was_about_to_be_replaced_has_its_name_again(policy: str, tmp_path: Path) -> None:
    """Killed between the two renames: the one that was there is there again."""
    config = rare(configure(policy))
    listener = Told(2, "evaluating on validation", 2)
    assert stopped(config, tmp_path / "parts", listener) == [2]
    checkpoint_folder = tmp_path / "parts" / "checkpoints"
    (checkpoint_folder / "step-2").rename(checkpoint_folder / f".step-2{checkpoints.REPLACED}")
    assert carry(config, tmp_path / "parts") == carry(config, tmp_path / "whole")
    assert not checkpoint_folder.exists() or not [*checkpoint_folder.iterdir()]


def test_a_checkpoint_with_nan_is_refused_though_its_sums_are_right(policy: str, tmp_path: Path) -> None:
    config = rare(configure(policy))
    assert stopped(config, tmp_path / "parts", Told(2, "evaluating on validation", 2)) == [2]
    checkpoint = checkpoints.checkpoint_path(tmp_path / "parts", 2)
    weights, table = checkpoints.tensors_of(checkpoint, "policy"), checkpoints.manifest(checkpoint)
    next(iter(weights.values())).view(-1)[0] = float("nan")
    checkpoints.write_tensors(checkpoint / "policy.safetensors", weights)
    (checkpoint / checkpoints.MANIFEST).unlink()
    checkpoints.write_manifest(checkpoint, table["step"], table["attempt"], table["logs"])
    assert not checkpoints.damage(checkpoint)
    with pytest.raises(FolderError, match=r"step-2: weights of the policy are not finite; .*delete it"):
        carry(config, tmp_path / "parts")
