"""How much memory a run takes at most, part by part and phase by phase, computed before anything is loaded.

Everything is counted in bytes at the moment of a phase when most is held, for completions of the maximum
length. What is not counted: libraries and the CUDA context, gaps between allocations, the workspace of an
engine. The formulas stand in docs/memory.md and follow the code of `roles.py`, `decoding.py` and
transformers' models, whose modules are not replaced: norms and activation functions each keep their own input
for the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from grpobench.runs.models.model_shape import AFTER_ATTENTION, Linear, ModelShape

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
class AdapterSize:
    """A low-rank adapter: the trunk's weights are frozen, and each of `targets` gets two small matrices."""

    rank: int
    targets: tuple[str, ...] = ()
    """Names of linear layers; empty: all of the trunk."""

    def has(self, linear: Linear) -> bool:
        return not self.targets or linear.name in self.targets

    def weights(self, shape: ModelShape) -> int:
        """Trained weights."""
        each = (
            one.weights // (one.inputs * one.outputs) * (one.inputs + one.outputs)
            for one in shape.linears
            if self.has(one)
        )
        return self.rank * sum(each)


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
    adapter: AdapterSize | None = None
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
        critic = int(self.critic) * (shape.hidden + 1)
        policy = int(self.value_head) * (shape.hidden + 1)
        if self.adapter is not None:
            own = self.adapter.weights(shape)
            return policy + own, critic + own * self.critic
        return policy + shape.parameters, critic + shape.trunk * self.critic

    @property
    def chunk_rows(self) -> int:
        """Tokens whose logits are computed at once."""
        return max(1, self.chunk // self.shape.vocabulary)


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


def plan(given: MemoryInput) -> MemoryPlan:
    """The bytes of each phase."""
    held = standing(given)
    asleep = {"sampler's copy", *(ENGINE if given.engine_sleeps else ())}  # while the trainer computes
    beside = {name: size for name, size in held.items() if name not in asleep}
    held.pop("gathered weights", None)  # nothing is, while the sampler has the whole policy
    between = beside | decoding_graphs(given)
    found = [Phase("scoring", between | scoring(given)), Phase("training", between | training(given))]
    decoded: Sequence[tuple[PhaseName, Decoded]] = (
        ("sampling", given.sampling),
        ("evaluating", given.evaluating),
    )
    for name, work in decoded:
        if work.rows:
            found.append(Phase(name, held | decoding_graphs(given, name) | decoding(given, work)))
        elif name == "sampling" and given.engine_weight_bytes:
            found.append(Phase("sampling", held))
    order = ("sampling", "scoring", "training", "evaluating")
    return MemoryPlan(tuple(sorted(found, key=lambda phase: order.index(phase.name))))


def standing(given: MemoryInput) -> dict[str, int]:
    """What is held in every phase once the first update is made."""
    shape, weight = given.shape, given.weight_bytes
    policy, critic = given.trained
    trained = policy + critic
    own = given.adapter.weights(shape) if given.adapter else 0
    here = not given.offload
    parts = {
        "policy": weight * shape.parameters + FLOAT32 * (own + given.value_head * (shape.hidden + 1)),
        # Policy, reference and critic share the weights beside their adapters.
        "reference": weight * shape.parameters * (given.reference and not given.adapter),
        "critic": FLOAT32 * critic
        if given.adapter
        else given.critic * weight * (shape.trunk + shape.hidden + 1),
        "master weights": FLOAT32
        * trained
        * (given.master and here and weight < FLOAT32 and not given.adapter),
        "optimizer": round(given.optimizer_bytes * trained) * here,
        "earlier weights": given.past * (FLOAT32 * own if given.adapter else weight * shape.parameters),
        "base policy": weight * shape.parameters * (given.base_policy and not given.gpu),
        "engine weights": given.engine_weight_bytes * shape.parameters,
        "engine cache": given.engine_cache,
        "reward model": given.reward_model,
        "teacher": weight * given.teacher.parameters if given.teacher else 0,
    }
    parts |= sharded(given, parts) if given.devices > 1 else {}
    return {name: size for name, size in parts.items() if size}


def sharded(given: MemoryInput, whole: Mapping[str, int]) -> dict[str, int]:
    """What one of several ranks holds of the parts in which these differ from a single one."""
    shape, weight = given.shape, given.weight_bytes
    bases = {**whole, "base policy": weight * shape.parameters * given.measures_kl}
    if given.adapter:  # one part of a weight cannot belong to two networks, so that each has its own
        bases["reference"] = weight * shape.parameters * given.reference
        bases["critic"] += weight * shape.trunk * given.critic
    names = ("policy", "reference", "critic", "master weights", "optimizer", "teacher", "base policy")
    parts = {name: -(-bases[name] // given.devices) for name in names}
    # Embeddings and heads are whole while one network computes, and so are a layer and the next one.
    networks = 1 + given.reference + given.critic + given.measures_kl + (given.teacher is not None)
    ends = shape.head if shape.tied else 2 * shape.head
    layer = (shape.trunk - shape.head) // max(1, shape.layers)
    parts["gathered weights"] = weight * (networks * ends + 2 * layer)
    return parts | {"sampler's copy": whole["policy"]}


# Training


def training(given: MemoryInput) -> dict[str, int]:
    """Gradients, and what a forward pass keeps for the backward pass.

    Most is held when the backward pass begins, and the gradients of earlier micro-batches are there; or, with
    one micro-batch, when it has ended and all gradients are there.
    """
    shape, packed = given.shape, given.training
    gradients = gradient_bytes(given)
    begins = {
        "gradients": gradients if packed.several or given.gradient_sum else 0,
        "activations": activations(given, packed),
        "weight casts": cast_bytes(given),
        "logits": head_workspace(given, packed),
    }
    other = max(layer_workspace(given, packed), teacher_workspace(given, packed))
    if other > begins["logits"]:
        begins["working memory"] = other - begins["logits"]
    rounds = not given.master and given.weight_bytes < FLOAT32 and not given.frozen
    # The embeddings' gradient is complete last; the sum of earlier micro-batches is there beside it.
    embeddings = given.weight_bytes * shape.head * packed.several * (not given.frozen) + _tied_sum(given)
    ends = {
        "gradients": gradients,
        "working memory": max(TEMPORARY_WEIGHTS * FLOAT32 * shape.largest * rounds, embeddings),
    }
    return max((_some(begins), _some(ends)), key=lambda parts: sum(parts.values()))


def gradient_bytes(given: MemoryInput) -> int:
    """Of all trained weights on the device."""
    if given.offload:  # each leaves as soon as it is complete
        return given.weight_bytes * given.shape.largest
    full = given.master or given.adapter is not None or given.weight_bytes == FLOAT32
    own = (FLOAT32 if full else given.weight_bytes) * sum(given.trained)
    if given.devices > 1:  # the part of this rank, and the whole gradient of what is computed now
        ends = given.shape.head * (2 - given.shape.tied) * (not given.frozen)
        return -(-own // given.devices) + given.weight_bytes * ends * (1 + given.critic)
    return own + FLOAT32 * given.trained[0] * given.gradient_sum


def activations(given: MemoryInput, packed: Packed) -> int:
    """What the trunks keep for the backward pass, and the states that the heads read."""
    shape = given.shape
    trunks = 1 + given.critic
    whole = packed.tokens * saved_for_backward(given, packed.length)
    if given.checkpointing:
        stream = given.weight_bytes * shape.hidden
        # The inputs of all layers, and everything that one of them keeps while it is run again.
        whole = packed.tokens * shape.layers * stream + whole // max(1, shape.layers)
    rotary = 2 * FLOAT32 * shape.head_size * packed.tokens
    states = given.weight_bytes * shape.hidden * packed.targets
    if given.casts:
        states += given.compute_bytes * shape.hidden * min(packed.targets, given.chunk_rows)
    return trunks * (whole + rotary + states)


def saved_for_backward(given: MemoryInput, length: int) -> int:
    """Bytes that all layers keep of one token in a sequence of `length`."""
    shape, compute = given.shape, given.compute_bytes
    kept = 0.0
    for norm in shape.norms:
        # Its input in float32, and the normalized input, which is multiplied with the norm's weights.
        own = FLOAT32 + (compute if norm.of_heads else given.weight_bytes) * (not given.frozen)
        kept += norm.count * norm.width * (given.weight_bytes if norm.fused else own)
    kept += _kept_inputs(given)
    # Queries, keys, values, the result, its log-sum-exp, and the mask's row.
    keys = shape.attention if given.dense_mask else shape.keys
    row = length * given.dense_mask
    kept += shape.layers * (compute * (2 * shape.attention + 2 * keys + row) + FLOAT32 * shape.heads)
    # A gate before and behind its activation function, and what it is multiplied with.
    gated = any(one.name in ("gate_proj", "gate_up_proj", "w1") for one in shape.linears)
    kept += shape.layers * compute * shape.intermediate * (3 if gated else 1)
    return round(kept)


def _kept_inputs(given: MemoryInput) -> float:
    """Bytes of one token's inputs that linear layers keep for the gradients of their weights. Under autocast
    each layer has a copy of its own."""
    shape, compute, adapter = given.shape, given.compute_bytes, given.adapter
    kept = 0.0
    counted: set[tuple[str, ...]] = set()
    for linear in shape.linears:
        adapted = adapter is not None and adapter.has(linear)
        if adapter is not None and adapted:
            kept += linear.count * compute * adapter.rank
        elif given.frozen:
            continue
        after_attention = linear.name in AFTER_ATTENTION
        # The matrices of an adapter are float32 whatever the weights are.
        copied = (adapted and compute < FLOAT32) or (given.casts and not after_attention)
        if copied or (not after_attention and linear.kind not in counted):
            counted.add(linear.kind)
            kept += linear.count * compute * linear.inputs
    return kept


def cast_bytes(given: MemoryInput) -> int:
    """Copies of float32 weights of the trunks, which autocast makes and the backward pass needs."""
    return given.casts * given.compute_bytes * given.shape.multiplied * (1 + given.critic)


def head_workspace(given: MemoryInput, packed: Packed) -> int:
    """What the output head holds at most in its backward pass: logits, and the gradient of its weights."""
    shape = given.shape
    rows = min(packed.targets, given.chunk_rows)
    copies = LOGIT_COPIES + ENTROPY_COPIES * given.entropy_gradient
    logits = FLOAT32 * rows * shape.vocabulary
    weight = 0 if given.frozen else given.weight_bytes * shape.head
    cast = given.compute_bytes * shape.head if given.casts else 0
    # The gradients of the pieces are added up beside that of the micro-batches before, and so is that of the
    # divergence, which comes first.
    added = packed.targets > rows or given.divergence is not None
    alone = max(copies * logits + weight * added, 2 * logits + weight * (1 + added)) + cast
    return max(alone, divergence_workspace(given, packed) + cast)


def divergence_workspace(given: MemoryInput, packed: Packed) -> int:
    """What the divergence to a teacher holds at most in its backward pass, beside the logits kept for the
    policy's own log-probabilities: tensors of a chunk, which has half as many tokens because two models'
    logits are in it, the gradient of the output head, and the teacher's states."""
    if given.divergence is None:
        return 0
    shape, teacher = given.shape, given.teacher or given.shape
    rows = min(packed.targets, max(1, given.chunk_rows // 2))
    copies = DIVERGENCE_COPIES["kl" if given.divergence in (0, 1) else "mixed"]
    logits = FLOAT32 * rows * shape.vocabulary
    weight = 0 if given.frozen else given.weight_bytes * shape.head
    pieces = packed.targets > rows
    states = given.weight_bytes * teacher.hidden * packed.targets
    own = max(copies * logits + weight * pieces, 2 * logits + weight * (1 + pieces))
    return own + kept_logits(given, packed) + states


def kept_logits(given: MemoryInput, packed: Packed) -> int:
    """Logits that stay from the forward pass to the backward pass: all of them if they are one chunk, and
    otherwise none."""
    if packed.targets > given.chunk_rows:
        return 0
    of = FLOAT32 if given.entropy_gradient else given.compute_bytes
    return of * packed.targets * given.shape.vocabulary


def teacher_workspace(given: MemoryInput, packed: Packed) -> int:
    """What the teacher's forward pass in an update holds at most, while the policy's is kept."""
    if given.divergence is None:
        return 0
    teacher = given.teacher or given.shape
    read = given.taught or packed
    inner = forward_workspace(given, read.tokens, read.pairs, teacher)
    cast = given.casts * given.compute_bytes * teacher.largest
    return inner + cast + kept_logits(given, packed)


def layer_workspace(given: MemoryInput, packed: Packed) -> int:
    """What the backward pass of one layer holds beside what was kept: gradients of the feed-forward layer's
    inner states and of the residual stream, and the gradient of one weight."""
    shape = given.shape
    inner = 2 * given.compute_bytes * shape.intermediate + 2 * FLOAT32 * shape.hidden
    weight = (
        0
        if given.frozen
        else given.weight_bytes * max((one.inputs * one.outputs for one in shape.linears), default=0)
    )
    return packed.tokens * inner + weight + _tied_sum(given)


def _tied_sum(given: MemoryInput) -> int:
    """The gradient of the output head waits for that of the embeddings, if both are the same weights."""
    return given.weight_bytes * given.shape.head * (given.shape.tied and not given.frozen)


# Without gradient


def scoring(given: MemoryInput) -> dict[str, int]:
    """A forward pass without gradient over the largest micro-batch, also through reference and base policy:
    most is held in a layer of the trunk, or at the output head."""
    packed, shape = given.scoring, given.shape
    # A teacher whose divergence is differentiated is read in the updates.
    other = given.teacher if given.divergence is None else None
    logits = FORWARD_LOGIT_COPIES * min(packed.targets, given.chunk_rows)
    if given.measures_kl:
        logits = max(logits, KL_COPIES * min(packed.targets, max(1, given.chunk_rows // 2)))
    # Autocast keeps the copies of trained weights until the end of the trunk, and of others one at a time.
    kept = shape.largest if given.frozen else shape.multiplied
    moments = [
        {
            "activations": forward_workspace(given, packed.tokens, packed.pairs),
            "weight casts": given.casts * given.compute_bytes * kept,
        },
        {
            "logits": FLOAT32 * logits * shape.vocabulary,
            "weight casts": given.casts * given.compute_bytes * shape.head,
        },
    ]
    if other:
        moments.append(
            {
                "activations": forward_workspace(given, packed.tokens, packed.pairs, other),
                "weight casts": given.casts * given.compute_bytes * other.largest,
            }
        )
    parts = max(moments, key=lambda parts: sum(parts.values()))
    if given.base_policy and given.gpu:
        parts["base policy"] = given.weight_bytes * shape.parameters
    return _some(parts)


def forward_workspace(given: MemoryInput, tokens: int, pairs: int, of: ModelShape | None = None) -> int:
    """What a forward pass without gradient holds at most, through the policy or a model `of` another shape:
    the inner states of one layer, the residual stream, and the mask in two types."""
    shape, compute = of or given.shape, given.compute_bytes
    stream = (2 * FLOAT32 + compute) * shape.hidden
    feed_forward = 3 * compute * shape.intermediate
    attention = compute * (3 * shape.attention + 2 * shape.keys) + FLOAT32 * (shape.attention + shape.keys)
    return tokens * (stream + max(feed_forward, attention)) + pairs * (1 + compute) * given.dense_mask


def decoding(given: MemoryInput, decoded: Decoded) -> dict[str, int]:
    """What decoding holds at most: while the prompts go forward, when only they have keys and values, or at
    the last token."""
    shape, rows, prompts = given.shape, decoded.rows, decoded.prompts
    before, behind = decoded.prompt_tokens, decoded.completion_tokens
    each = shape.layers * shape.keys * given.cache_bytes
    first = prompts * before * each
    # A CUDA graph has a cache of its own, beside that of the prompts.
    last = first + (0 if given.recorded else rows * behind * each)
    at_once = min(prompts, max(1, given.prefill // max(1, before)))
    logits = FLOAT32 * (prompts + rows) * shape.vocabulary
    copied = given.compute_bytes * (shape.multiplied + given.casts * shape.head) * given.fused_copy
    # Under inference mode autocast keeps no copy of a weight beyond its product.
    casts = {"weight casts": copied or given.casts * given.compute_bytes * shape.largest}
    moments = [
        {
            "key-value cache": first,
            "working memory": forward_workspace(given, at_once * before, at_once * before**2) + logits,
        },
        {"key-value cache": last, "working memory": token_workspace(given, decoded, before + behind)},
    ]
    return _some(max(moments, key=lambda parts: sum(parts.values())) | casts)


def decoding_graphs(given: MemoryInput, phase: PhaseName | None = None) -> dict[str, int]:
    """What decoding by CUDA graphs holds while it samples or evaluates (`phase`), and what it keeps from call
    to call: a copy of the weights, and the buffers of both batches if all that is not too much."""
    recorded, shape = given.recorded, given.shape
    if recorded is None:
        return {}
    sampling, evaluating, most = recorded.sampling, recorded.evaluating, recorded.most_kept
    weights = given.compute_bytes * (shape.multiplied + shape.head)

    def stays(*buffers: Buffers) -> bool:
        return weights + sum(one.total for one in buffers) <= most

    if phase in ("sampling", "evaluating"):
        own, other = (sampling, evaluating) if phase == "sampling" else (evaluating, sampling)
        held: tuple[Buffers, ...] = (own, other) if stays(other) else (own,)
        copied = stays()
    else:
        both, one = (sampling, evaluating), (sampling,)
        held = both if stays(*both) else one if stays(*one) else ()
        copied = bool(held)
    cache = copied * weights + sum(one.cache for one in held)
    return _some({"decoding graphs": cache, GRAPH_WORKSPACE: sum(one.workspace for one in held)})


def token_workspace(given: MemoryInput, decoded: Decoded, columns: int) -> int:
    """What one token of each row holds: the choice among all logits, and attention over so many columns."""
    shape, rows = given.shape, decoded.rows
    scores = 3 * FLOAT32 * rows * shape.heads * columns
    # Autocast casts the cache of a layer, for attention in one type.
    cache = given.casts * 2 * given.compute_bytes * rows * columns * shape.keys
    logits = (DRAW_BYTES + TRUNCATED_BYTES * decoded.truncated) * rows * shape.vocabulary
    return logits + scores + cache + forward_workspace(given, rows, 0)


def _some(parts: Mapping[str, int]) -> dict[str, int]:
    return {name: round(size) for name, size in parts.items() if size}
