"""Models of random weights: sizes of Qwen2.5 without files, drawn on the device, in the dtype of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpobench.benchmarks.cases import BenchmarkCase
from grpobench.benchmarks.sides import our_trainer, prompt_texts
from grpobench.runs.models.loading import load, load_outline
from grpobench.runs.models.model_files import missing
from grpobench.runs.models.model_shape import shape_of

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize(
    ("size", "parameters", "layers", "hidden", "key_heads", "tied"),
    [
        ("0.5b", 494_032_768, 24, 896, 2, True),
        ("1.5b", 1_543_714_304, 28, 1536, 2, True),
        ("7b", 7_615_616_512, 28, 3584, 4, False),
    ],
)
def test_sizes_are_those_of_qwen2_5(
    size: str, parameters: int, layers: int, hidden: int, key_heads: int, tied: bool
) -> None:
    """The numbers of parameters that the safetensors indices of Qwen2.5 state."""
    shape = shape_of(f"random:{size}")
    assert (shape.kind, shape.parameters, shape.tied) == ("qwen2", parameters, tied)
    assert (shape.layers, shape.hidden, shape.key_heads) == (layers, hidden, key_heads)
    assert shape.llama_like and shape.context == 32_768 == load_outline(f"random:{size}").context


@pytest.mark.parametrize(("size", "parameters"), [("0.1m", 113_152), ("1m", 1_015_360), ("10m", 9_626_880)])
def test_sizes_for_a_warm_start_are_those_that_pages_give(size: str, parameters: int) -> None:
    model = load(f"random:{size}").model
    assert sum(weights.numel() for weights in model.parameters()) == parameters
    assert f"{parameters:,}" in (DOCS / "data.md").read_text(encoding="utf-8")
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight  # tied, counted once


class CreatedTypes(TorchDispatchMode):
    """The dtypes of all tensors of the size of a weight that operators return."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        if isinstance(output, torch.Tensor) and output.numel() >= 64 * 64 and output.is_floating_point():
            self.dtypes.add(output.dtype)
        return output


def test_weights_are_drawn_in_their_dtype_from_a_seed_of_their_own() -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    with CreatedTypes() as created:
        first = load("random:tiny", weights_in="bfloat16")
    assert created.dtypes == {torch.bfloat16}
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    second = load("random:tiny", weights_in="bfloat16")
    pairs = zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert first.provenance["made"] == "seed 0, bfloat16 on cpu"
    # The vocabulary is larger than the tokenizer's: other tokens have no text.
    assert first.decode([5, 300, 66]) == first.decode([5, 66]) and first.model.config.vocab_size == 512


def test_a_step_and_prompts_of_a_fixed_length_work_with_them() -> None:
    texts = prompt_texts(load_outline("random:tiny").encode, 2, 8)
    trainer = our_trainer(BenchmarkCase("x", "random:tiny", 2, 2, 8, 4, 1, texts=texts))
    assert trainer.step(1)["cost/generated_tokens"] == 2 * 2 * 4


def test_a_size_that_does_not_exist_is_refused_with_those_that_do() -> None:
    sizes = "random:0.1m, random:0.5b, random:1.5b, random:10m, random:1m, random:7b, random:tiny"
    assert sizes in missing("random:3b")
