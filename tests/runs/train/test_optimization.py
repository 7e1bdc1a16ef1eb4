"""Runs with other optimizers and schedules: what is logged, and that a killed one goes on exactly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.whole_runs import configure, run, run_until_killed, same, training

from grpobench.runs.models.optimizer import Optimizer
from grpobench.runs.models.stored_weights import StoredWeights
from grpobench.runs.runfolder.folder import FolderError, RunFolder
from grpobench.runs.runfolder.logs import status
from grpobench.runs.settings import optimizers, stored
from grpobench.runs.settings.config import (
    CheckpointConfig,
    EvaluateConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.strict import ConfigError

MINE = """
import torch

class Counting(torch.optim.Optimizer):
    '''Sign descent whose step shrinks with what it counts: in its groups, and as a number per parameter.'''
    def __init__(self, params, lr, power=1.0):
        super().__init__(params, {"lr": lr, "power": power, "updates": 0})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["updates"] += 1
            for p in group["params"]:
                own = self.state[p]
                own["seen"] = own.get("seen", 0.0) + 0.5
                size = group["lr"] / (group["updates"] + own["seen"]) ** group["power"]
                p.sub_(size * p.grad.sign())

class Hoarding(torch.optim.SGD):
    def step(self):
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["all"] = [p.grad]

class Closure(torch.optim.SGD):
    def step(self, closure):
        closure()

def down(step, steps):
    return 1 - step / steps
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    return folder


def config(policy: str, folder: Path, weights: str = "float32", **train: Any) -> RunConfig:
    model: Any = {"name": policy, "dtype": weights, "weights": weights}
    usual: dict[str, Any] = {"steps": 5, "prompts_per_step": 2, "group_size": 4, "num_minibatches": 2}
    train_config = TrainConfig(**{**usual, "learning_rate": {"policy": 1e-2}, **train})
    quiet = EvaluateConfig(every=0, problems=0, test_problems=0)
    return configure(
        policy,
        model=ModelConfig(**model),
        train=train_config,
        evaluate=quiet,
        checkpoint=CheckpointConfig(every=2),
        beside=str(folder),
    )


KINDS: dict[str, dict[str, Any]] = {
    "cosine and momentum": {
        "schedule": "cosine",
        "floor": 0.1,
        "warmup_steps": 1,
        "optimizer": "torch:SGD",
        "optimizer_settings": {"momentum": 0.9, "nesterov": True},
    },
    "stochastic rounding": {"weights": "bfloat16", "master_weights": False},
    "on the CPU": {"weights": "bfloat16", "offload_optimizer": True, "optimizer": "torch:Adafactor"},
    "one's own": {"optimizer": "mine:Counting", "schedule": "mine:down", "warmup_steps": 1},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_exactly(kind: str, policy: str, mine: Path, tmp_path: Path) -> None:
    """Killed while step 5 is logged, behind the checkpoint of the step before."""
    run_config = config(policy, mine, **KINDS[kind])
    undisturbed = run(run_config, tmp_path / "whole")
    run_until_killed(run_config, tmp_path / "parts", 5)
    run(run_config, tmp_path / "parts")
    assert same(tmp_path / "parts", tmp_path / "whole")
    assert len({row["grad_norm/policy"] for row in undisturbed[1:]}) == 5  # it moves


def test_the_rate_of_each_step_is_logged(policy: str, mine: Path, tmp_path: Path) -> None:
    run_config = config(policy, mine, schedule="cosine", warmup_steps=1, floor=0.5)
    rates = [row["learning_rate/policy"] for row in run(run_config, tmp_path / "run")[1:]]
    decay = [0.5 * (1 + math.cos(math.pi * done / 4)) for done in range(4)]
    assert rates == pytest.approx([1e-2, *(1e-2 * (0.5 + 0.5 * factor) for factor in decay)])


def test_the_optimizer_gets_the_rate_and_the_settings_of_the_recipe() -> None:
    """SGD with momentum 0.5 by hand: v = 0.5 v + g, p = p − rate · v, with g = 1 and rates 0.1 and 0.05."""
    parameter = torch.nn.Parameter(torch.ones(1))
    train = TrainConfig(optimizer="torch:SGD", optimizer_settings={"momentum": 0.5})
    make = optimizers.maker(train)
    assert make is not None
    made = Optimizer(StoredWeights({"weight": parameter}), make([parameter], 0.1), 0.1, math.inf)
    for scale in (1.0, 0.5):
        parameter.grad = torch.ones(1)
        made.update(scale)
    assert parameter.item() == pytest.approx(1 - 0.1 * 1 - 0.05 * 1.5, rel=1e-6)  # float32


def test_adamw_has_nothing_beside_its_tensors(policy: str, mine: Path, tmp_path: Path) -> None:
    """So that its settings at a resume are the recipe's, also where a change of them is allowed."""
    parameter = torch.nn.Parameter(torch.ones(2))
    made = Optimizer(StoredWeights({"weight": parameter}), torch.optim.AdamW([parameter], 1e-3), 1e-3, 1.0)
    parameter.grad = torch.ones(2)
    made.update(0.5)
    assert made.plain() == {}
    assert set(made.tensors()) == {
        "weight",
        *(f"optimizer:{k}:weight" for k in ("step", "exp_avg", "exp_avg_sq")),
    }


def test_ones_own_code_is_pinned(policy: str, mine: Path, tmp_path: Path) -> None:
    """A new process sees the changed file; here its hash as this process has first seen it is replaced."""
    run_config = config(policy, mine, optimizer="mine:Counting", schedule="mine:down")
    with RunFolder.open(tmp_path / "run", run_config) as folder:
        code = folder.provenance["attempts"][-1]["code"]
        assert "beside the recipe: mine.py" in code
        folder.provenance["attempts"][-1]["code"]["beside the recipe: mine.py"] = "another"
        folder.write_provenance()
        folder.save(1, {}, {})
    with pytest.raises(FolderError, match=r"mine\.py: another -> "):
        RunFolder.open(tmp_path / "run", run_config)


def test_trls_trainer_takes_both(policy: str, mine: Path, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="runs through TRL: pip install 'grpobench[trl]'")
    run_config = config(policy, mine, backend="trl", **KINDS["cosine and momentum"] | {"floor": 0.0})
    run_rows = run(run_config, tmp_path / "run")
    assert status(tmp_path / "run")["state"] == "finished"
    decay = [0.5 * (1 + math.cos(math.pi * done / 4)) for done in range(4)]
    rates = [row["learning_rate/policy"] for row in run_rows[1:]]
    assert rates == pytest.approx([1e-2, *(1e-2 * factor for factor in decay)])


# Recipes

RECIPE = 'tasks = ["arithmetic"]\n[[arm]]\nalgorithm = "grpo"\n[train]\n'


def read(folder: Path, *lines: str) -> RunConfig:
    (folder / "r.toml").write_text(RECIPE + "\n".join(lines))
    return read_recipe(str(folder / "r.toml")).configs[0]


def test_a_recipe_chooses_both_and_run_toml_keeps_them(mine: Path) -> None:
    run_config = read(
        mine, 'schedule = "mine:down"', 'optimizer = "torch:SGD"', "optimizer_settings.momentum = 0.9"
    )
    assert run_config.beside == str(mine)
    assert (run_config.train.schedule, run_config.train.optimizer) == ("mine:down", "torch:SGD")
    assert stored.load(stored.dump(run_config)) == run_config
    plain = read(mine, 'schedule = "cosine"', "floor = 0.1")
    assert plain.beside == "" and plain.train.floor == 0.1
    other = training(plain, floor=0.2)
    assert stored.differences(stored.dump(plain), stored.dump(other)) == ["train.floor: 0.1 -> 0.2"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('optimizer = "mine:Closure"', "missing 1 required positional argument: 'closure'"),
        ('optimizer = "mine:Hoarding"', "its state holds all, a list, which a checkpoint cannot keep"),
        ('optimizer = "mine:down"', "train.optimizer: mine:down cannot be used: TypeError"),
        ('optimizer = "mine:Conting"', "did you mean mine:Counting?"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(line: str, message: str, mine: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(mine, line)
    assert message in str(caught.value)
