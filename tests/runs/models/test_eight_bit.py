"""8-bit Adam of torchao and bitsandbytes by its name in a recipe, where they are installed.

    pip install torchao bitsandbytes

Both run on a CPU too. torchao compiles its update; here it runs as it is written.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from grpobench.runs.models.optimizer import Optimizer
from grpobench.runs.models.stored_weights import StoredWeights, stored
from grpobench.runs.runfolder.checkpoints import write_tensors
from grpobench.runs.settings import optimizers
from grpobench.runs.settings.config import TrainConfig
from grpobench.runs.tools.strict import ConfigError

NAMES = ("torchao:AdamW8bit", "torchao:AdamW4bit", "torchao:AdamWFp8", "bitsandbytes:AdamW8bit")
RATE = 1e-2
EIGHT_BIT = 8192
"""Weights of the toy, in one tensor; both libraries keep less than 4,096 in float32."""


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    library = request.param.partition(":")[0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    with torch.compiler.set_stance("force_eager"):
        yield request.param


def made(name: str, **how: Any) -> Optimizer:
    """For a large tensor, whose state is quantized, and a small one."""
    make = optimizers.maker(TrainConfig(optimizer=name, optimizer_settings={"weight_decay": 0.0}))
    assert make is not None
    dtype = torch.bfloat16 if how else torch.float32
    large = torch.linspace(-1, 1, EIGHT_BIT).view(64, 128)
    parameters = {"large": nn.Parameter(large.to(dtype)), "small": nn.Parameter(torch.ones(8, dtype=dtype))}
    weights: StoredWeights = stored(parameters, "policy", **how)
    return Optimizer(weights, make(list(weights.targets.values()), RATE), RATE, 1.0)


def updates(optimizer: Optimizer, first: int, last: int) -> None:
    for number in range(first, last):
        for p in optimizer.parameters.values():
            weight = torch.randn(p.shape, generator=torch.Generator().manual_seed(number))
            (p.float() * (weight + 0.5)).sum().backward()
        optimizer.clip()
        optimizer.update(0.5)
        optimizer.clear()


def test_it_moves_weights_as_adam_of_torch_does(name: str) -> None:
    """Within the quantization of moments: 5 updates of half of the rate each move a weight by at most 2.5
    rates and a little."""
    ours, theirs = made(name), made("torch:AdamW")
    updates(ours, 0, 5)
    updates(theirs, 0, 5)
    moved = theirs.parameters["large"] - torch.linspace(-1, 1, EIGHT_BIT).view(64, 128)
    apart = ours.parameters["large"] - theirs.parameters["large"]
    assert 0.5 * RATE < moved.abs().mean().item() < 3 * RATE
    assert apart.norm() < 0.25 * moved.norm()
    assert apart.any()
    torch.testing.assert_close(ours.parameters["small"], theirs.parameters["small"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", [{}, {"master": True}, {"master": False, "seed": 3}, {"offload": True}])
def test_its_state_is_small_and_comes_back_from_a_file_byte_for_byte(
    name: str, how: dict[str, Any], tmp_path: Path
) -> None:
    undisturbed, first, second = (made(name, **how) for _ in range(3))
    updates(undisturbed, 0, 5)
    updates(first, 0, 3)
    write_tensors(tmp_path / "policy.safetensors", first.tensors())
    stored_tensors = load_file(tmp_path / "policy.safetensors")
    state = [
        tensor for key, tensor in stored_tensors.items() if key.startswith("optimizer:") and "large" in key
    ]
    master_weights = [
        tensor for key, tensor in stored_tensors.items() if key.startswith("optimizer:master:large")
    ]
    size = sum(t.numel() * t.element_size() for t in state) - sum(t.numel() * 4 for t in master_weights)
    assert size < 3.5 * EIGHT_BIT  # two moments of a byte, scales and tables; in float32 eight bytes
    plain = json.loads(json.dumps(first.plain()))
    with torch.no_grad():
        for key, p in second.parameters.items():
            p.copy_(stored_tensors[key])
    second.restore(stored_tensors, plain)
    updates(second, 3, 5)
    tensors, expected = second.tensors(), undisturbed.tensors()
    assert tensors.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(tensors[key], tensor), key
    assert second.plain() == undisturbed.plain()


def test_a_recipe_may_name_it(name: str) -> None:
    assert optimizers.faults(TrainConfig(optimizer=name), None) == []
    assert optimizers.foreign(TrainConfig(optimizer=name)) == {}


def test_a_checkpoint_may_not_name_classes_of_other_packages() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = Optimizer(StoredWeights({"w": p}), torch.optim.SGD([p], lr=1.0), 1.0, 1.0)
    parts = {"optimizer:m.codes:w": torch.ones(2)}
    composed = {"w": {"m": {"class": "subprocess:Popen", "parts": ["codes"], "context": []}}}
    with pytest.raises(ValueError, match="which is not of the optimizer"):
        optimizer.restore(parts, {"composed": composed})


@pytest.mark.parametrize("library", ["torchao", "bitsandbytes"])
def test_a_package_that_is_missing_is_named_with_the_command(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == library else plain(name))
    with pytest.raises(ConfigError, match=f"{library}:AdamW8bit is in a package .* pip install {library}"):
        optimizers.maker(TrainConfig(optimizer=f"{library}:AdamW8bit"))
