"""The memory plan: sizes counted by hand, what torch says that it keeps for the backward pass, and
properties."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.toys import rollouts
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from grpobench.benchmarks.memory_peaks import most_allocated
from grpobench.runs.experiment.memory_input import facts_of, input_of
from grpobench.runs.experiment.memory_input import recorded as recorded_of
from grpobench.runs.models import attention, model_shape
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.head import token_divergence, token_statistics
from grpobench.runs.models.memory_plan import (
    DIVERGENCE_COPIES,
    DRAW_BYTES,
    GRAPH_WORKSPACE,
    NOTHING,
    TRUNCATED_BYTES,
    Buffers,
    Decoded,
    MemoryInput,
    Packed,
    Recorded,
    activations,
    divergence_workspace,
    forward_workspace,
    head_workspace,
    layer_workspace,
    logit_bytes,
    plan,
    saved_for_backward,
)
from grpobench.runs.models.model_shape import adapter_weights as weights_of_adapter
from grpobench.runs.models.packing import Cost, pack, packed_size
from grpobench.runs.sample.draws import choose
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.truncation import FULL, Truncation

PARAMETERS = 7_615_616_512
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 3,
    "vocab_size": 99,
    "pad_token_id": None,
}
KINDS = ("llama", "qwen2", "qwen3")
TINY_WORK = {"training": Packed(1, 64, 32), "scoring": Packed(1, 64, 32)}
DECODED = Decoded(4, 2, 16, 8)


def shape(kind: str = "llama", **sizes: Any) -> model_shape.ModelShape:
    return model_shape.count(AutoConfig.for_model(kind, **{**SMALL, **sizes}))


def given_for(of: model_shape.ModelShape, **more: Any) -> MemoryInput:
    return MemoryInput(**{"shape": of, **TINY_WORK, "sampling": DECODED, "evaluating": DECODED, **more})


def large(**more: Any) -> MemoryInput:
    work = Packed(1, 1024, 512, several=True)
    return given_for(seven_billion(), training=work, scoring=work, **more)


@functools.cache
def seven_billion() -> model_shape.ModelShape:
    """The sizes of Qwen2.5-7B."""
    return model_shape.shape_of("random:7b")


def test_weights_of_a_7b_model_are_counted_without_any_memory() -> None:
    """Per layer: queries, keys, values with their biases, output, three feed-forward matrices, two norms."""
    model_shape = large().shape
    width, inner, keys = 3584, 18944, 4 * 128
    layer = width * (2 * width + 2 * keys) + width + 2 * keys + 3 * width * inner + 2 * width
    trunk = 28 * layer + width + 152064 * width
    assert (model_shape.trunk, model_shape.head) == (trunk, 152064 * width)
    assert model_shape.parameters == trunk + model_shape.head == PARAMETERS
    assert model_shape.multiplied == 28 * (layer - width - 2 * keys - 2 * width)
    assert (model_shape.layers, model_shape.keys) == (28, keys)
    assert (model_shape.attention, model_shape.intermediate) == (width, inner)


def test_rounded_weights_lie_beside_the_policys_while_it_samples_and_take_a_byte_in_an_engine() -> None:
    linear = large().shape.multiplied
    rounded = plan(large(quantized=True))
    parts = {phase.name: phase.parts.get("quantized weights", 0) for phase in rounded.phases}
    assert parts == {"sampling": 4 * linear, "scoring": 0, "training": 0, "evaluating": 0}
    engine = {"sampling": NOTHING, "evaluating": NOTHING, "engine_weight_bytes": 2}
    full, small = (
        plan(large(**engine, quantized=quantized)).phase("sampling").parts for quantized in (False, True)
    )
    assert full["engine weights"] - small["engine weights"] == linear and "quantized weights" not in small


def test_full_training_in_float32_takes_16_bytes_a_weight_and_2_under_autocast() -> None:
    parts = plan(large()).phase("training").parts
    assert [parts[name] / PARAMETERS for name in ("policy", "gradients", "optimizer")] == [4, 4, 8]
    casts = plan(large(compute_bytes=2)).phase("training").parts["weight casts"]
    assert casts == 2 * large().shape.multiplied
    more = plan(large(reference=True, critic=True)).phase("training").parts
    assert more["reference"] == 4 * PARAMETERS
    critic = large().shape.trunk + 3584 + 1
    assert more["critic"] == 4 * critic and more["gradients"] == 4 * (PARAMETERS + critic)


def test_what_is_stored_in_fewer_bytes_counts_so() -> None:
    low = {"weight_bytes": 2, "compute_bytes": 2}
    master = plan(large(**low, master=True)).phase("training").parts
    assert [master[name] / PARAMETERS for name in ("policy", "master weights", "gradients")] == [2, 4, 4]
    rounded = plan(large(**low, optimizer_bytes=2.0)).phase("training").parts
    assert [rounded[name] / PARAMETERS for name in ("policy", "gradients", "optimizer")] == [2, 2, 2]
    assert "master weights" not in rounded and "weight casts" not in rounded
    away = plan(large(**low, master=True, offload=True)).phase("training").parts
    assert not {"optimizer", "master weights"} & away.keys()
    assert away["gradients"] == 2 * 152064 * 3584  # the largest tensor, on its way


def test_an_adapter_trains_its_matrices_alone_and_shares_the_trunk_with_reference_and_critic() -> None:
    """Rank 16 on all linear layers of 28: Σ 16 · (in + out) of seven matrices."""
    width, inner, keys = 3584, 18944, 512
    sides = 2 * (width + width) + 2 * (width + keys) + 3 * (width + inner)
    adapter_weights = 28 * 16 * sides
    parts = plan(large(adapter=Adapter(16), reference=True)).phase("training").parts
    assert parts["policy"] == 4 * (PARAMETERS + adapter_weights) and "reference" not in parts
    assert (parts["gradients"], parts["optimizer"]) == (4 * adapter_weights, 8 * adapter_weights)
    some = Adapter(16, targets=("q_proj", "v_proj"))
    assert weights_of_adapter(some, large().shape) == 28 * 16 * (2 * width + width + keys)
    with_critic = plan(large(adapter=Adapter(16), critic=True)).phase("training").parts
    assert with_critic["critic"] == 4 * (adapter_weights + width + 1)


def test_a_7b_model_does_not_fit_into_80_gb_but_its_adapter_does() -> None:
    room = 80 * 2**30 * 0.95
    assert plan(large()).peak > room
    assert plan(large(compute_bytes=2, adapter=Adapter(16))).peak < room


def test_the_key_value_cache_by_hand() -> None:
    """8 rows of 2 prompts of 100 tokens, 50 more each, 28 layers of 512 keys and values in float32. The
    buffers of graphs hold the keys and values of the rows."""
    decoded = Decoded(8, 2, 100, 50)
    token = 28 * 512 * 8
    shared = plan(large(sampling=decoded)).phase("sampling").parts["key-value cache"]
    assert shared == (2 * 100 + 8 * 50) * token
    recorded = Recorded(Buffers(10), Buffers(), 0)
    parts = plan(large(sampling=decoded, recorded=recorded)).phase("sampling").parts
    assert (parts["key-value cache"], parts["decoding graphs"]) == (2 * 100 * token, 10)


def most_bytes(work: Callable[[], object]) -> int:
    """The most memory that torch holds for `work` at once."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profiler:
        work()
    return most_allocated(profiler)


@pytest.mark.parametrize(
    "limits", [Truncation(top_k=20), Truncation(min_p=0.1), Truncation(top_k=500, top_p=0.9)], ids=str
)
def test_a_truncated_draw_holds_no_more_than_the_plan_says(limits: Truncation) -> None:
    """Beside the log-probabilities that it gets, the logits and the tempered ones of 4 bytes each."""
    rows, vocabulary = 4, 10_000
    logp = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    uniform = torch.full((rows,), 0.5, dtype=torch.float64)
    most = most_bytes(lambda: choose(logp, uniform, None, limits)) / (rows * vocabulary)
    assert DRAW_BYTES < 12 + most <= DRAW_BYTES + TRUNCATED_BYTES


def test_a_truncated_distribution_takes_more_while_rollouts_are_sampled() -> None:
    recorded = recorded_of(large().shape, 8, DECODED, DECODED, Truncation(top_p=0.9))
    full = recorded_of(large().shape, 8, DECODED, DECODED, FULL)
    assert recorded.sampling.workspace == 20 * full.sampling.workspace  # 80 bytes a logit; kernels take 4
    assert recorded.evaluating == full.evaluating
    phases = [
        plan(large(sampling=dataclasses.replace(DECODED, truncated=truncated))) for truncated in (False, True)
    ]
    more = [phase.phase("sampling").parts["working memory"] for phase in phases]
    assert more[1] - more[0] == 4 * TRUNCATED_BYTES * large().shape.vocabulary
    assert phases[0].phase("evaluating") == phases[1].phase("evaluating")
    config = read_recipe("quickstart", ["tasks=arithmetic", "arms=grpo", "sampler.top_k=5"]).runs()[0]
    made = input_of(config, facts_of(config, gpu=False))
    assert made.sampling.truncated and not made.evaluating.truncated


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (111, {"sampling": 110, "scoring": 110, "training": 110, "evaluating": 110}),
        # All three are too much: they are dropped after the call that makes them so much.
        (109, {"sampling": 110, "scoring": 90, "training": 90, "evaluating": 110}),
        (89, {"sampling": 110, "scoring": 0, "training": 0, "evaluating": 70}),
        (69, {"sampling": 90, "scoring": 0, "training": 0, "evaluating": 70}),
        (49, {"sampling": 40, "scoring": 0, "training": 0, "evaluating": 20}),
    ],
)
def test_graphs_keep_weights_and_buffers_up_to_a_bound(most: int, expected: dict[str, int]) -> None:
    """A copy of the weights takes 50 parts, the buffers of rollouts 40 and those of evaluations 20."""
    of = shape_once()
    part = 2 * (of.multiplied + of.head) // 50
    grids = Recorded(Buffers(30 * part, 10 * part), Buffers(15 * part, 5 * part), most * part)
    memory_plan = plan(given_for(of, compute_bytes=2, recorded=grids))
    names = ("decoding graphs", GRAPH_WORKSPACE)
    counted = {phase.name: [phase.parts.get(name, 0) for name in names] for phase in memory_plan.phases}
    assert {phase: round(sum(sizes) / part) for phase, sizes in counted.items()} == expected
    workspace = {(111, "training"): 15, (109, "training"): 10, (69, "sampling"): 10, (69, "evaluating"): 5}
    for (bound, phase), size in workspace.items():
        assert most != bound or round(counted[phase][1] / part) == size  # type: ignore[index]
    without = plan(given_for(of, compute_bytes=2))
    assert not any(set(names) & set(phase.parts) for phase in without.phases)


def test_an_engine_that_sleeps_holds_nothing_while_the_trainer_computes() -> None:
    """So a run in which sampling takes less than training does not notice the engine."""
    engine = {"engine_weight_bytes": 2, "engine_cache": 4 * 2**30}
    nothing = {"sampling": NOTHING, "evaluating": NOTHING}
    awake, asleep = (plan(large(**nothing, **engine, engine_sleeps=sleeps)) for sleeps in (False, True))
    assert [phase.name for phase in awake.phases] == ["sampling", "scoring", "training"]
    assert awake.phase("sampling") == asleep.phase("sampling")
    for name in ("scoring", "training"):
        parts = awake.phase(name).parts
        assert (parts["engine weights"], parts["engine cache"]) == (2 * PARAMETERS, 4 * 2**30)
        assert not {"engine weights", "engine cache"} & asleep.phase(name).parts.keys()
    bare = plan(large(**nothing))
    assert asleep.phase("training") == bare.phase("training") and asleep.peak == bare.peak


def test_a_teachers_logits_and_states_by_hand() -> None:
    """512 targets of 152,064 logits, 1,000,000 logits at once: 6 tokens of a chunk, 3 where two models'
    logits are in it, so that no logits stay. Between two pieces there are two tensors of these and twice the
    gradient of the head, which is more than 5 tensors; the teacher's states are those of its own width."""
    work = {"teacher": shape(hidden_size=6400), "chunk": 1_000_000}
    head, states = 4 * 152064 * 3584, 4 * 6400 * 512
    alone = head_workspace(large(**work), large().training)
    assert alone == 2 * 4 * 6 * 152064 + 2 * head
    workspace = head_workspace(large(**work, divergence=1.0), large().training)
    assert workspace == 2 * 4 * 3 * 152064 + 2 * head + states
    # One chunk of a mixture: 9 tensors of it, and the policy's own logits.
    single_chunk = large(**work | {"chunk": 2 * 512 * 152064}, divergence=0.5)
    assert divergence_workspace(single_chunk, single_chunk.training) == (9 + 1) * 4 * 512 * 152064 + states


def test_a_teacher_is_read_where_its_divergence_is_differentiated() -> None:
    """Its weights are always there. As a reward it is read while scoring, in a loss while training."""
    wide = shape(hidden_size=6400, num_attention_heads=400, num_key_value_heads=400)
    teachers = ({}, {"teacher": wide}, {"teacher": wide, "divergence": 1.0})
    plain, reward, loss = (plan(given_for(shape_once(), **teacher)) for teacher in teachers)
    for memory_plan in (reward, loss):
        assert memory_plan.phase("sampling").parts["teacher"] == 4 * wide.parameters
    inner = forward_workspace(given_for(wide), 64, 64**2)
    assert reward.phase("scoring").parts["activations"] == inner > plain.phase("scoring").parts["activations"]
    assert loss.phase("scoring").total - 4 * wide.parameters == plain.phase("scoring").total
    training = loss.phase("training").parts
    assert training["logits"] + training["working memory"] == inner + 4 * 32 * 99


# Against torch


@pytest.mark.parametrize(("beta", "kind"), [(0.0, "kl"), (0.5, "mixed"), (1.0, "kl")])
def test_tensors_of_a_divergence_are_what_torch_allocates(beta: float, kind: str) -> None:
    rows, vocabulary = 32, 2000
    head, other = (torch.nn.Linear(8, vocabulary, bias=False) for _ in range(2))
    ours, theirs = torch.randn(rows, 8, requires_grad=True), torch.randn(rows, 8)

    def differentiate() -> None:
        token_divergence(ours, head, theirs, other, 0.7, 10**9, beta).sum().backward()

    tensors = most_bytes(differentiate) / (4 * rows * vocabulary)
    # The gradient of the head, a quarter of such a tensor, comes when others are gone.
    assert tensors == pytest.approx(DIVERGENCE_COPIES[kind], rel=0.01)


@pytest.mark.parametrize("gradient", [False, True], ids=["values", "gradient"])
def test_bytes_of_a_16_bit_logit_in_plain_torch_are_what_torch_allocates(gradient: bool) -> None:
    rows, vocabulary = 64, 2000
    head = torch.nn.Linear(8, vocabulary, bias=False, dtype=torch.bfloat16)
    states = torch.randn(rows, 8, dtype=torch.bfloat16, requires_grad=gradient)
    target = torch.zeros(rows, dtype=torch.long)

    def read() -> None:
        with torch.set_grad_enabled(gradient):
            logp, _ = token_statistics(states, head, target, 0.7, 10**9, False)
        if gradient:
            logp.sum().backward()

    planned = logit_bytes(large(compute_bytes=2, gpu=False), gradient)
    assert most_bytes(read) / (rows * vocabulary) == pytest.approx(planned, rel=0.01)


def test_kernels_of_the_head_hold_16_bit_logits_and_their_gradient_in_larger_pieces() -> None:
    """512 targets of 152,064 logits, 100 tokens at once in float32, 400 where a kernel reads them."""
    inputs = large(compute_bytes=2, chunk=100 * 152064)
    head, cast = 4 * 152064 * 3584, 2 * 152064 * 3584
    logits = 400 * 152064
    assert head_workspace(inputs, inputs.training) == 2 * logits + 2 * head + cast
    assert logit_bytes(inputs, gradient=False) == 2
    entropy = dataclasses.replace(inputs, entropy_gradient=True)
    assert head_workspace(entropy, inputs.training) == 2 * 4 * logits // 4 + 2 * head + cast
    frozen = dataclasses.replace(inputs, adapter=Adapter(16))
    assert head_workspace(frozen, inputs.training) == 4 * logits + cast


def measured_for_backward(model: Any, tokens: int, low: bool, mask: Any = None) -> int:
    """Bytes that torch's autograd keeps of a forward pass through the trunk, without weights and their
    casts. The mask is dense unless another is given."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes = {tuple(p.shape) for p in model.parameters()}
    tensor_by_address: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        address = tensor.untyped_storage().data_ptr()
        cast = (
            low
            and tensor.dtype == torch.bfloat16
            and {tuple(tensor.shape), tuple(tensor.shape)[::-1]} & sizes
        )
        if address not in weights and not cast:
            tensor_by_address[address] = tensor
        return tensor

    mask = torch.ones(1, 1, tokens, tokens, dtype=torch.bool).tril() if mask is None else mask
    fed = {"input_ids": torch.zeros(1, tokens, dtype=torch.long), "attention_mask": mask}
    fed["position_ids"] = torch.arange(tokens)[None]
    precision = torch.autocast("cpu", torch.bfloat16) if low else contextlib.nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), precision:
        model.base_model(**fed, use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in tensor_by_address.values())


def model_of(kind: str, **sizes: Any) -> Any:
    config = AutoConfig.for_model(kind, **{**SMALL, **sizes})
    with torch.random.fork_rng():
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def planned_activations(kind: str, tokens: int, num_hidden_layers: int = 3, **more: Any) -> int:
    inputs = given_for(
        shape(kind, num_hidden_layers=num_hidden_layers), training=Packed(1, tokens, 0), **more
    )
    return activations(inputs, inputs.training)


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_activations_are_what_torch_keeps_for_the_backward_pass(kind: str, low: bool) -> None:
    tokens = 57  # no size of a weight
    measured = measured_for_backward(model_of(kind).float().eval(), tokens, low)
    planned = planned_activations(kind, tokens, compute_bytes=2 if low else 4)
    # What is left out: token ids, and one number a norm and token.
    assert planned <= measured and planned == pytest.approx(measured, rel=0.015)


def test_activations_with_flash_attention_hold_no_mask_and_no_copied_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt of 19 tokens and two completions of 19 that are fed, with tensors of the kernel's sizes."""

    def flash(query: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
        log_sum_exp = torch.zeros(query.shape[1], query.shape[0])
        return torch.zeros_like(query), log_sum_exp, torch.zeros(0), torch.zeros(0)

    monkeypatch.setattr(attention, "flash", flash)
    model = model_of("llama").float().eval()
    attention.use(model.base_model)
    layout = pack(rollouts([[20, 20]], prompts=(19,), limit=20), Cost(1.0, 0.0), parts=True)
    measured = measured_for_backward(model, 57, low=True, mask=layout.parts)
    planned = planned_activations("llama", 57, compute_bytes=2, dense_mask=False)
    assert planned <= measured and planned == pytest.approx(measured, rel=0.015)


def test_copies_of_keys_are_planned_in_the_pass_that_makes_them() -> None:
    """1,000 copied tokens: two tensors of 2 key heads of 16 in float32 forward; twice that backward, and the
    gradients of each of 4 heads."""
    inputs = [
        given_for(shape(), training=Packed(1, 64, 0, keys=keys), dense_mask=False) for keys in (0, 1000)
    ]
    forward = [forward_workspace(each, 64, 0, keys=each.training.keys) for each in inputs]
    feed_forward, attention_bytes = 64 * 3 * 4 * 192, 64 * 4 * (3 * 64 + 2 * 32 + 64 + 32)
    assert forward[1] - forward[0] == attention_bytes + 2 * 4 * 32 * 1000 - max(feed_forward, attention_bytes)
    backward = [layer_workspace(each, each.training) for each in inputs]
    feed_forward, attention_bytes = 64 * 2 * 4 * 192, 64 * 4 * (64 + 2 * (64 + 32))
    copies = 1000 * 4 * (4 * 32 + 2 * 64)
    assert backward[1] - backward[0] == attention_bytes + copies - max(feed_forward, attention_bytes)


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("targets", [(), ("q_proj", "v_proj"), ("down_proj",)], ids=["all", "two", "one"])
def test_activations_beside_an_adapter_are_what_torch_keeps(targets: tuple[str, ...], low: bool) -> None:
    """Of one more layer: before the first adapter there is no gradient, which the plan leaves out of
    account."""
    peft = pytest.importorskip("peft")
    measured, planned = [], []
    for layers in (2, 3):
        model = model_of("llama", num_hidden_layers=layers).float().eval()
        every = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        config = peft.LoraConfig(r=8, target_modules=list(targets) or every, lora_dropout=0.0)
        peft.inject_adapter_in_model(config, model.base_model)
        measured.append(measured_for_backward(model, 57, low))
        more: dict[str, Any] = {"compute_bytes": 2 if low else 4, "adapter": Adapter(8, targets=targets)}
        planned.append(planned_activations("llama", 57, num_hidden_layers=layers, **more))
    assert planned[1] - planned[0] == pytest.approx(measured[1] - measured[0], rel=0.015)
    assert measured[1] <= planned[1]


def test_checkpointing_keeps_the_inputs_of_the_layers_and_one_layer_whole() -> None:
    inputs = given_for(shape(), training=Packed(1, 57, 0))
    saved_bytes = saved_for_backward(inputs, 57)
    rotary = 2 * 4 * 16
    checkpointed_bytes = activations(dataclasses.replace(inputs, checkpointing=True), inputs.training)
    assert checkpointed_bytes == 57 * (3 * 4 * 64 + rotary) + 57 * saved_bytes // 3


# Properties

SIZES = st.integers(1, 4)


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(1, 300), st.integers(1, 50), st.sampled_from((2, 4)), st.booleans(), st.booleans())
def test_more_work_takes_no_less(
    sequences: int, length: int, more: int, compute: int, critic: bool, reference: bool
) -> None:
    of = shape_once()
    small, wide = Packed(sequences, length, length), Packed(sequences, length + more, length + more)
    flags: dict[str, Any] = {"compute_bytes": compute, "critic": critic, "reference": reference}
    plans = [plan(given_for(of, training=packed, scoring=packed, **flags)) for packed in (small, wide)]
    assert all(
        before.total <= after.total for before, after in zip(plans[0].phases, plans[1].phases, strict=True)
    )
    saving = plan(given_for(of, training=wide, scoring=wide, checkpointing=True, **flags))
    adapted = plan(given_for(of, training=wide, scoring=wide, adapter=Adapter(1), **flags))
    for less in (saving, adapted):
        assert less.phase("training").total <= plans[1].phase("training").total
    assert plans[1].peak == max(phase.total for phase in plans[1].phases) == plans[1].largest.total


@functools.cache
def shape_once() -> model_shape.ModelShape:
    return shape(num_hidden_layers=8)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3), st.floats(0, 100)
)
def test_the_size_of_a_layout_is_that_of_its_tensors(lengths: list[list[int]], pair: float) -> None:
    batch, cost = rollouts(lengths, limit=9), Cost(1.0, pair)
    assert packed_size(batch, cost) == tuple(pack(batch, cost).tokens.shape)
