"""The most memory that a run takes, part by part and phase by phase, computed before anything is loaded."""

# Everything is counted in bytes at the moment of a phase when most is held, for completions of the maximum
# length. Not counted: libraries and the CUDA context, gaps between allocations, the workspace of an engine.
# docs/memory.md has the formulas, which follow the code of `roles.py`, `decoding.py` and transformers'
# models, whose modules each keep their own input for the backward pass.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.model_shape import AFTER_ATTENTION, ModelShape, adapter_weights, has_adapter
from grpobench.runs.models.token_budgets import LARGER_PIECES

FLOAT32: Final = 4
"""Bytes of a number."""
PhaseName = Literal["sampling", "scoring", "training", "evaluating"]
LOGIT_COPIES: Final = 5
"""Tensors of the size of a chunk of logits in its backward pass: the logits, and in turn the gradient of the
chosen token's logit, the shifted logits, their exponential and its product with the gradient."""
ENTROPY_COPIES: Final = 2
"""More of them where the entropy has a gradient: the probabilities, and the gradient through them."""
FORWARD_LOGIT_COPIES: Final = 2
"""Without gradient: the logits, and tempered ones or their probabilities."""
DIVERGENCE_COPIES: Final = {"kl": 5, "mixed": 9}
"""Tensors of the size of half a chunk of logits in the backward pass of a divergence: both log-probabilities,
probabilities, the difference, and its product with them; a mixture has probabilities of its own, and two
products."""
KL_COPIES: Final = 5
"""The same of the distance between two policies, of which half as many tokens go at once too."""
DRAW_BYTES: Final = 36
"""Bytes per logit while tokens are drawn: three tensors in float32 (logits, tempered, log-probabilities) and
three in float64 (log-probabilities, probabilities, their sum; on a CPU of some rows at a time)."""
TRUNCATED_BYTES: Final = 20
"""More of them where the distribution is truncated, on a CPU too for all rows at a time."""
ENGINE: Final = ("engine weights", "engine cache")  # which an engine gives back while it sleeps
TEMPORARY_WEIGHTS: Final = 3
"""Float32 tensors of one parameter's size while stochastic rounding updates it."""


@dataclass(frozen=True)
class Packed:
    """The largest micro-batch: S sequences of L tokens, of which `targets` tokens are predicted."""

    sequences: int
    length: int
    targets: int
    several: bool = False
    """Whether there are more micro-batches of the same update, whose gradients are added up."""
    keys: int = 0
    """Copied for attention without a dense mask: a prompt's once more for each completion."""

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    @property
    def pairs(self) -> int:
        """Entries of the attention mask."""
        return self.sequences * self.length**2


@dataclass(frozen=True)
class Decoded:
    """Sequences that are decoded at once."""

    rows: int
    """0 where this process decodes nothing."""
    prompts: int
    """Different prompts among them."""
    prompt_tokens: int
    completion_tokens: int
    truncated: bool = False
    """Whether improbable tokens are excluded before a token is drawn."""


NOTHING: Final = Decoded(0, 0, 0, 0)
GRAPH_WORKSPACE: Final = "graph workspace"
"""The part of a plan for what CUDA graphs compute on their way, which torch counts as free."""


@dataclass(frozen=True)
class Buffers:
    """Bytes that decoding by CUDA graphs needs for a batch; 0 where this process decodes nothing."""

    cache: int = 0
    workspace: int = 0
    """Of its graphs."""

    @property
    def total(self) -> int:
        return self.cache + self.workspace


@dataclass(frozen=True)
class Recorded:
    """Decoding by CUDA graphs."""

    sampling: Buffers
    evaluating: Buffers
    most_kept: int
    """Bytes that stay from one call of the sampler to the next, with a copy of the weights; where it would be
    more, nothing stays."""


@dataclass(frozen=True)
class MemoryInput:
    """Everything that the memory of a run depends on."""

    shape: ModelShape
    training: Packed
    scoring: Packed
    sampling: Decoded
    evaluating: Decoded
    reference: bool = False
    critic: bool = False
    """A copy of the trunk with a value head, trained like the policy."""
    value_head: bool = False
    """On the policy's trunk."""
    devices: int = 1
    """Ranks of the run, each of which holds a part of the weights."""
    gpu: bool = True
    weight_bytes: int = FLOAT32
    """Of a stored weight of every role."""
    compute_bytes: int = FLOAT32
    """Of a number in a linear layer: 2 computes float32 weights under autocast."""
    master: bool = False
    """Whether weights of fewer bytes have a float32 copy, to which their gradients are added."""
    optimizer_bytes: float = 8.0
    """State of the optimizer for each trained weight; AdamW has two moments in float32."""
    offload: bool = False
    """Whether master weights, gradients and the optimizer's state lie in the memory of the CPU."""
    checkpointing: bool = False
    """Whether of each layer only the input is kept for the backward pass."""
    dense_mask: bool = True
    """Whether attention gets a mask of every pair, for which keys and values are repeated for each head."""
    adapter: Adapter | None = None
    past: int = 0
    """Copies of earlier weights for a sampler that lags behind."""
    base_policy: bool = False
    """Whether the base policy is kept apart, to measure the policy's distance to it."""
    measures_kl: bool = False
    """Whether that distance is measured, to a base policy that is kept apart or to the reference."""
    fused_copy: bool = False
    """Whether decoding copies the policy's weights in its own layout."""
    cache_bytes: int = 2 * FLOAT32
    """Of a key and a value together, as decoding stores them."""
    prefill: int = 2**15
    """Most tokens of prompts that go forward at once."""
    chunk: int = 2**25
    """Most logits at once."""
    entropy_gradient: bool = False
    recorded: Recorded | None = None
    """None where a token is not decoded as a CUDA graph."""
    gradient_sum: bool = False
    """Whether gradients of parts of a step are added up beside the current one, to measure their noise."""
    quantized: bool = False
    """Whether rollouts have rounded linear weights: of a byte in an engine, in this process in a copy."""
    engine_weight_bytes: int = 0
    """Of a weight of an engine in the same process; 0 without one."""
    engine_cache: int = 0
    """Bytes of that engine's key-value cache."""
    engine_sleeps: bool = False
    """Whether that engine holds neither while the trainer computes."""
    reward_model: int = 0
    """Bytes of the weights of a learned reward model."""
    teacher: ModelShape | None = None
    """A teacher of its own, whose weights are stored like the policy's."""
    divergence: float | None = None
    """β of the divergence to the teacher that an update differentiates; None if it differentiates none."""
    taught: Packed | None = None
    """What the teacher reads at once in an update, if it has prompts of its own."""

    @property
    def frozen(self) -> bool:
        """Whether the weights of the trunk have no gradient."""
        return self.adapter is not None

    @property
    def casts(self) -> bool:
        """Whether autocast makes copies of float32 weights."""
        return self.compute_bytes < self.weight_bytes

    @property
    def trained(self) -> tuple[int, int]:
        """Trained weights of the policy's network and of the critic's."""
        shape = self.shape
        critic = int(self.critic) * (shape.hidden + 1)  # weights and bias of its value head
        policy = int(self.value_head) * (shape.hidden + 1)
        if self.adapter is not None:
            lora_size = adapter_weights(self.adapter, shape)
            return policy + lora_size, critic + lora_size * self.critic
        return policy + shape.parameters, critic + shape.trunk * self.critic

    @property
    def chunk_rows(self) -> int:
        """Tokens whose logits are computed at once."""
        return max(1, self.chunk // self.shape.vocabulary)

    @property
    def rounded(self) -> bool:
        """Whether `RoundedLogits` reads the policy's logits, on a GPU by its kernels."""
        return self.compute_bytes < FLOAT32 and not self.entropy_gradient

    @property
    def policy_rows(self) -> int:
        """Tokens whose logits are computed at once for log-probabilities of tokens."""
        larger = LARGER_PIECES if self.rounded and self.gpu else 1
        return max(1, self.chunk * larger // self.shape.vocabulary)


@dataclass(frozen=True)
class Phase:
    """The moment of a phase when most is held."""

    name: PhaseName
    parts: Mapping[str, int]
    """Bytes by what they hold."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of a run on its device, by phase."""

    phases: tuple[Phase, ...]
    notes: tuple[str, ...] = field(default=())
    """What is not counted or was assumed."""

    @property
    def largest(self) -> Phase:
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def peak(self) -> int:
        return self.largest.total

    def phase(self, name: PhaseName) -> Phase:
        return next(phase for phase in self.phases if phase.name == name)


def plan(setup: MemoryInput) -> MemoryPlan:
    """The bytes of each phase. What is asleep is not there while the trainer computes."""
    resident = standing(setup)
    asleep = {"sampler's copy", "quantized weights", *(ENGINE if setup.engine_sleeps else ())}
    beside = {name: size for name, size in resident.items() if name not in asleep}
    resident.pop("gathered weights", None)  # nothing is, while the sampler has the whole policy
    between = beside | decoding_graphs(setup)
    phases = [Phase("scoring", between | scoring(setup)), Phase("training", between | training(setup))]
    if setup.sampling.rows or setup.engine_weight_bytes:
        phases.insert(0, Phase("sampling", resident | decoding(setup, setup.sampling, "sampling")))
    resident.pop("quantized weights", None)  # evaluations have the trainer's weights
    if setup.evaluating.rows:
        phases.append(Phase("evaluating", resident | decoding(setup, setup.evaluating, "evaluating")))
    return MemoryPlan(tuple(phases))


def standing(setup: MemoryInput) -> dict[str, int]:
    """What is held in every phase once the first update is made."""
    shape, weight, engine = setup.shape, setup.weight_bytes, setup.engine_weight_bytes
    policy, critic = setup.trained
    trained = policy + critic
    lora_size = adapter_weights(setup.adapter, shape) if setup.adapter else 0
    copied = setup.critic * (shape.trunk + shape.hidden + 1)
    masters = setup.master and not setup.offload and weight < FLOAT32 and not setup.adapter
    parts = {
        "policy": weight * shape.parameters + FLOAT32 * (lora_size + setup.value_head * (shape.hidden + 1)),
        # Policy, reference and critic share the weights beside their adapters.
        "reference": weight * shape.parameters * (setup.reference and not setup.adapter),
        "critic": FLOAT32 * critic if setup.adapter else weight * copied,
        "master weights": FLOAT32 * trained * masters,
        "optimizer": round(setup.optimizer_bytes * trained) * (not setup.offload),
        "earlier weights": setup.past * (FLOAT32 * lora_size if setup.adapter else weight * shape.parameters),
        "base policy": weight * shape.parameters * (setup.base_policy and not setup.gpu),
        "engine weights": engine * shape.parameters - max(0, engine - 1) * shape.multiplied * setup.quantized,
        "quantized weights": 0 if engine else weight * shape.multiplied * setup.quantized,
        "engine cache": setup.engine_cache,
        "reward model": setup.reward_model,
        "teacher": weight * setup.teacher.parameters if setup.teacher else 0,
    }
    parts |= sharded(setup, parts) if setup.devices > 1 else {}
    return {name: size for name, size in parts.items() if size}


def sharded(setup: MemoryInput, unsharded: Mapping[str, int]) -> dict[str, int]:
    """What one of several ranks holds of the parts in which these differ from a single one."""
    shape, weight = setup.shape, setup.weight_bytes
    bases = {**unsharded, "base policy": weight * shape.parameters * setup.measures_kl}
    if setup.adapter:  # one part of a weight cannot belong to two networks, so that each has its own
        bases["reference"] = weight * shape.parameters * setup.reference
        bases["critic"] += weight * shape.trunk * setup.critic
    names = ("policy", "reference", "critic", "master weights", "optimizer", "teacher", "base policy")
    parts = {name: -(-bases[name] // setup.devices) for name in names}
    # Embeddings and heads are whole while one network computes, and so are a layer and the next one.
    networks = 1 + setup.reference + setup.critic + setup.measures_kl + (setup.teacher is not None)
    ends = shape.head if shape.tied else 2 * shape.head
    layer = (shape.trunk - shape.head) // max(1, shape.layers)
    parts["gathered weights"] = weight * (networks * ends + 2 * layer)
    return parts | {"sampler's copy": unsharded["policy"]}


# Training


def training(setup: MemoryInput) -> dict[str, int]:
    """Gradients, and what a forward pass keeps for the backward pass.

    Most is held when the backward pass begins, and the gradients of earlier micro-batches are there; or, with
    one micro-batch, when it has ended and all gradients are there.
    """
    shape, packed = setup.shape, setup.training
    gradients = gradient_bytes(setup)
    begins = {
        "gradients": gradients if packed.several or setup.gradient_sum else 0,
        "activations": activations(setup, packed),
        # Copies of float32 weights of the trunks, which autocast makes and the backward pass needs.
        "weight casts": setup.casts * setup.compute_bytes * shape.multiplied * (1 + setup.critic),
        "logits": head_workspace(setup, packed),
    }
    other = max(layer_workspace(setup, packed), teacher_workspace(setup, packed))
    if other > begins["logits"]:
        begins["working memory"] = other - begins["logits"]
    rounds = not setup.master and setup.weight_bytes < FLOAT32 and not setup.frozen
    # The embeddings' gradient is complete last; the sum of earlier micro-batches is there beside it.
    embeddings = setup.weight_bytes * shape.head * packed.several * (not setup.frozen) + _tied_sum(setup)
    ends = {
        "gradients": gradients,
        "working memory": max(TEMPORARY_WEIGHTS * FLOAT32 * shape.largest * rounds, embeddings),
    }
    return max((_some(begins), _some(ends)), key=lambda parts: sum(parts.values()))


def gradient_bytes(setup: MemoryInput) -> int:
    """Of all trained weights on the device."""
    if setup.offload:  # each leaves as soon as it is complete
        return setup.weight_bytes * setup.shape.largest
    full = setup.master or setup.adapter is not None or setup.weight_bytes == FLOAT32
    trained_bytes = (FLOAT32 if full else setup.weight_bytes) * sum(setup.trained)
    if setup.devices > 1:  # the part of this rank, and the whole gradient of what is computed now
        ends = setup.shape.head * (2 - setup.shape.tied) * (not setup.frozen)
        return -(-trained_bytes // setup.devices) + setup.weight_bytes * ends * (1 + setup.critic)
    return trained_bytes + FLOAT32 * setup.trained[0] * setup.gradient_sum


def activations(setup: MemoryInput, packed: Packed) -> int:
    """What the trunks keep for the backward pass, and the states that the heads read."""
    shape = setup.shape
    trunks = 1 + setup.critic
    saved_bytes = packed.tokens * saved_for_backward(setup, packed.length)
    if setup.checkpointing:
        stream = setup.weight_bytes * shape.hidden
        # The inputs of all layers, and everything that one of them keeps while it is run again.
        saved_bytes = packed.tokens * shape.layers * stream + saved_bytes // max(1, shape.layers)
    rotary = 2 * FLOAT32 * shape.head_size * packed.tokens
    states = setup.weight_bytes * shape.hidden * packed.targets
    if setup.casts:
        states += setup.compute_bytes * shape.hidden * min(packed.targets, setup.policy_rows)
    return trunks * (saved_bytes + rotary + states)


def saved_for_backward(setup: MemoryInput, length: int) -> int:
    """Bytes that all layers keep of one token in a sequence of `length`."""
    shape, compute = setup.shape, setup.compute_bytes
    saved_bytes = 0.0
    for norm in shape.norms:
        # Its input in float32, and the normalized input, which is multiplied with the norm's weights.
        norm_bytes = FLOAT32 + (compute if norm.of_heads else setup.weight_bytes) * (not setup.frozen)
        saved_bytes += norm.count * norm.width * (setup.weight_bytes if norm.fused else norm_bytes)
    saved_bytes += _kept_inputs(setup)
    # Queries, keys, values, the result, its log-sum-exp, and the mask's row.
    keys = shape.attention if setup.dense_mask else shape.keys  # a dense mask repeats them for each head
    attention = 2 * shape.attention + 2 * keys + length * setup.dense_mask
    saved_bytes += shape.layers * (compute * attention + FLOAT32 * shape.heads)
    # A gate before and behind its activation function, and what it is multiplied with.
    gated = any(linear.name in ("gate_proj", "gate_up_proj", "w1") for linear in shape.linears)
    saved_bytes += shape.layers * compute * shape.intermediate * (3 if gated else 1)
    return round(saved_bytes)


def _kept_inputs(setup: MemoryInput) -> float:
    """Bytes of one token's inputs that linear layers keep for the gradients of their weights. Under autocast
    each layer has a copy of its own."""
    shape, compute, adapter = setup.shape, setup.compute_bytes, setup.adapter
    saved_bytes = 0.0
    counted: set[tuple[str, ...]] = set()
    for linear in shape.linears:
        adapted = adapter is not None and has_adapter(linear, adapter)
        if adapter is not None and adapted:
            saved_bytes += linear.count * compute * adapter.rank
        elif setup.frozen:
            continue
        after_attention = linear.name in AFTER_ATTENTION
        # The matrices of an adapter are float32 whatever the weights are.
        copied = (adapted and compute < FLOAT32) or (setup.casts and not after_attention)
        if copied or (not after_attention and linear.kind not in counted):
            counted.add(linear.kind)
            saved_bytes += linear.count * compute * linear.inputs
    return saved_bytes


def head_workspace(setup: MemoryInput, packed: Packed) -> int:
    """What the output head holds at most in its backward pass: logits, and the gradient of its weights."""
    shape = setup.shape
    rows = min(packed.targets, setup.policy_rows)
    logits = rows * shape.vocabulary
    behind = setup.compute_bytes if setup.rounded else 2 * FLOAT32  # when the gradient of the logits is there
    weight = 0 if setup.frozen else setup.weight_bytes * shape.head
    cast = setup.compute_bytes * shape.head if setup.casts else 0
    # The gradients of the pieces are added up beside that of the micro-batches before, and so is that of the
    # divergence, which comes first.
    added = packed.targets > rows or setup.divergence is not None
    most = logit_bytes(setup, gradient=True)
    alone = max(most * logits + weight * added, behind * logits + weight * (1 + added)) + cast
    return max(alone, divergence_workspace(setup, packed) + cast)


def logit_bytes(setup: MemoryInput, gradient: bool) -> int:
    """Bytes of each logit of a piece while log-probabilities of tokens or their `gradient` are computed."""
    if not setup.rounded:
        copies = LOGIT_COPIES + ENTROPY_COPIES * setup.entropy_gradient
        return FLOAT32 * (copies if gradient else FORWARD_LOGIT_COPIES)
    # Kernels hold the logits and their gradient; plain torch two tensors in float32 beside the logits.
    return setup.compute_bytes * (1 + gradient) if setup.gpu else setup.compute_bytes + 2 * FLOAT32


def divergence_workspace(setup: MemoryInput, packed: Packed) -> int:
    """What the divergence to a teacher holds at most in its backward pass, beside the logits kept for the
    policy's own log-probabilities: tensors of a chunk, which has half as many tokens because two models'
    logits are in it, the gradient of the output head, and the teacher's states."""
    if setup.divergence is None:
        return 0
    shape, teacher = setup.shape, setup.teacher or setup.shape
    rows = min(packed.targets, max(1, setup.chunk_rows // 2))
    copies = DIVERGENCE_COPIES["kl" if setup.divergence in (0, 1) else "mixed"]
    logits = FLOAT32 * rows * shape.vocabulary
    weight = 0 if setup.frozen else setup.weight_bytes * shape.head
    pieces = packed.targets > rows
    states = setup.weight_bytes * teacher.hidden * packed.targets
    working_bytes = max(copies * logits + weight * pieces, 2 * logits + weight * (1 + pieces))
    return working_bytes + kept_logits(setup, packed) + states


def kept_logits(setup: MemoryInput, packed: Packed) -> int:
    """Logits that stay from the forward pass to the backward pass: all of them if they are one chunk, and
    otherwise none."""
    if packed.targets > setup.policy_rows:
        return 0
    each = setup.compute_bytes if setup.rounded else FLOAT32
    return each * packed.targets * setup.shape.vocabulary


def teacher_workspace(setup: MemoryInput, packed: Packed) -> int:
    """What the teacher's forward pass in an update holds at most, while the policy's is kept."""
    if setup.divergence is None:
        return 0
    teacher = setup.teacher or setup.shape
    read = setup.taught or packed
    inner = forward_workspace(setup, read.tokens, read.pairs, teacher, read.keys)
    cast = setup.casts * setup.compute_bytes * teacher.largest
    return inner + cast + kept_logits(setup, packed)


def layer_workspace(setup: MemoryInput, packed: Packed) -> int:
    """What the backward pass of one layer holds beside what was kept: gradients of the feed-forward layer's
    inner states or of attention without a dense mask, and of the residual stream, and of one weight."""
    shape, compute = setup.shape, setup.compute_bytes
    # Copied keys and values, their gradients, also by head; those of the queries in float32, and of all four.
    heads = shape.attention * (shape.heads > shape.key_heads)
    copies = 2 * compute * packed.keys * (2 * shape.keys + heads)
    attention = (FLOAT32 * shape.attention + 2 * compute * (shape.attention + shape.keys)) * packed.tokens
    feed_forward = 2 * compute * shape.intermediate * packed.tokens
    inner = max(feed_forward, (copies + attention) * (not setup.dense_mask))
    sizes = (linear.inputs * linear.outputs for linear in shape.linears)
    weight = 0 if setup.frozen else setup.weight_bytes * max(sizes, default=0)
    return inner + 2 * FLOAT32 * shape.hidden * packed.tokens + weight + _tied_sum(setup)


def _tied_sum(setup: MemoryInput) -> int:
    """The gradient of the output head waits for that of the embeddings, if both are the same weights."""
    return setup.weight_bytes * setup.shape.head * (setup.shape.tied and not setup.frozen)


# Without gradient


def scoring(setup: MemoryInput) -> dict[str, int]:
    """A forward pass without gradient over the largest micro-batch, also through reference and base policy:
    most is held in a layer of the trunk, or at the output head."""
    packed, shape = setup.scoring, setup.shape
    # A teacher whose divergence is differentiated is read in the updates.
    other = setup.teacher if setup.divergence is None else None
    logits = logit_bytes(setup, gradient=False) * min(packed.targets, setup.policy_rows)
    if setup.measures_kl:
        logits = max(logits, FLOAT32 * KL_COPIES * min(packed.targets, max(1, setup.chunk_rows // 2)))
    # Autocast keeps the copies of trained weights until the end of the trunk, and of others one at a time.
    cast_weights = shape.largest if setup.frozen else shape.multiplied
    moments = [
        {
            "activations": forward_workspace(setup, packed.tokens, packed.pairs, keys=packed.keys),
            "weight casts": setup.casts * setup.compute_bytes * cast_weights,
        },
        {
            "logits": logits * shape.vocabulary,
            "weight casts": setup.casts * setup.compute_bytes * shape.head,
        },
    ]
    if other:
        inner = forward_workspace(setup, packed.tokens, packed.pairs, other, packed.keys)
        casts = setup.casts * setup.compute_bytes * other.largest
        moments.append({"activations": inner, "weight casts": casts})
    parts = max(moments, key=lambda parts: sum(parts.values()))
    if setup.base_policy and setup.gpu:
        parts["base policy"] = setup.weight_bytes * shape.parameters
    return _some(parts)


def forward_workspace(
    setup: MemoryInput, tokens: int, pairs: int, of: ModelShape | None = None, keys: int = 0
) -> int:
    """What a forward pass without gradient holds at most, through the policy or a model `of` another shape:
    the inner states of one layer, copied `keys`, the residual stream, and the mask in two types."""
    shape, compute = of or setup.shape, setup.compute_bytes
    stream, feed_forward = (2 * FLOAT32 + compute) * shape.hidden, 3 * compute * shape.intermediate
    attention = compute * (3 * shape.attention + 2 * shape.keys) + FLOAT32 * (shape.attention + shape.keys)
    inner = max(tokens * feed_forward, tokens * attention + 2 * compute * shape.keys * keys)
    return tokens * stream + inner + pairs * (1 + compute) * setup.dense_mask


def decoding(setup: MemoryInput, decoded: Decoded, phase: PhaseName) -> dict[str, int]:
    """What decoding in this process holds at most: while the prompts go forward, when only they have keys and
    values, or at the last token."""
    if not decoded.rows:
        return {}
    shape, rows, prompts = setup.shape, decoded.rows, decoded.prompts
    before, behind = decoded.prompt_tokens, decoded.completion_tokens
    each = shape.layers * shape.keys * setup.cache_bytes
    first = prompts * before * each  # a prompt once, however many completions
    # A CUDA graph has a cache of its own, beside that of the prompts.
    last = first + (0 if setup.recorded else rows * behind * each)
    at_once = min(prompts, max(1, setup.prefill // max(1, before)))
    logits = FLOAT32 * (prompts + rows) * shape.vocabulary  # of each prompt, then repeated for its rows
    copied = setup.compute_bytes * (shape.multiplied + setup.casts * shape.head) * setup.fused_copy
    # Under inference mode autocast keeps no copy of a weight beyond its product.
    casts = {"weight casts": copied or setup.casts * setup.compute_bytes * shape.largest}
    moments = [
        {
            "key-value cache": first,
            "working memory": forward_workspace(setup, at_once * before, at_once * before**2) + logits,
        },
        {"key-value cache": last, "working memory": token_workspace(setup, decoded, before + behind)},
    ]
    most = max(moments, key=lambda parts: sum(parts.values()))
    return decoding_graphs(setup, phase) | _some(most | casts)


def decoding_graphs(setup: MemoryInput, phase: PhaseName | None = None) -> dict[str, int]:
    """What decoding by CUDA graphs holds while it samples or evaluates (`phase`), and what it keeps from call
    to call: a copy of the weights, and the buffers of both batches if all that is not too much."""
    recorded, shape = setup.recorded, setup.shape
    if recorded is None:
        return {}
    sampling, evaluating, most = recorded.sampling, recorded.evaluating, recorded.most_kept
    weights = setup.compute_bytes * (shape.multiplied + shape.head)

    def stays(*buffers: Buffers) -> bool:
        return weights + sum(batch.total for batch in buffers) <= most

    if phase in ("sampling", "evaluating"):
        current, other = (sampling, evaluating) if phase == "sampling" else (evaluating, sampling)
        resident: tuple[Buffers, ...] = (current, other) if stays(other) else (current,)
        copied = stays()
    else:
        both, alone = (sampling, evaluating), (sampling,)
        resident = both if stays(*both) else alone if stays(*alone) else ()
        copied = bool(resident)
    cache = copied * weights + sum(batch.cache for batch in resident)
    return _some({"decoding graphs": cache, GRAPH_WORKSPACE: sum(batch.workspace for batch in resident)})


def token_workspace(setup: MemoryInput, decoded: Decoded, columns: int) -> int:
    """What one token of each row holds: the choice among all logits, and attention over so many columns."""
    shape, rows = setup.shape, decoded.rows
    scores = 3 * FLOAT32 * rows * shape.heads * columns
    # Autocast casts the cache of a layer, for attention in one type.
    cache = setup.casts * 2 * setup.compute_bytes * rows * columns * shape.keys
    logits = (DRAW_BYTES + TRUNCATED_BYTES * decoded.truncated) * rows * shape.vocabulary
    return logits + scores + cache + forward_workspace(setup, rows, 0)


def _some(parts: Mapping[str, int]) -> dict[str, int]:
    return {name: round(size) for name, size in parts.items() if size}
