"""What the memory plan needs to know of a run: the settings of its recipe as numbers."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpobench.runs.experiment import preflight
from grpobench.runs.models import loading
from grpobench.runs.models.memory_plan import (
    FLOAT32,
    NOTHING,
    Buffers,
    Decoded,
    MemoryInput,
    Packed,
    Recorded,
)
from grpobench.runs.models.model_shape import ModelShape, shape_of
from grpobench.runs.models.token_budgets import MICRO_BATCH_TOKENS, ModelError, most_logits
from grpobench.runs.settings import others
from grpobench.runs.settings.config import TINY, RunConfig, TrainConfig
from grpobench.runs.settings.optimizers import ADAMW, maker
from grpobench.runs.settings.truncation import FULL, Truncation, truncation_of
from grpobench.tasks.data.messages import Prompt, as_text

BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
LONGEST_ENCODED = 16
"""So many prompts are encoded to find the longest: those with the most bytes."""
BYTES_OF_A_TOKEN = 3
"""Bytes of text of a token where no tokenizer is there: fewer than usual, so that prompts are not taken for
shorter than they are."""
TRIED = 256
"""Rows and columns of the parameter with which an optimizer's state is measured."""


@dataclass(frozen=True)
class PlanInput:
    """What a plan needs beside the settings."""

    shape: ModelShape
    prompt_tokens: int
    """Of the longest prompt."""
    gpu: bool
    notes: tuple[str, ...] = ()
    """What was assumed."""
    memory: int | None = None
    """Bytes of the GPU's memory, which decides how many logits are held at once; None if unknown."""
    taught_tokens: int = 0
    """Of the longest prompt of a teacher that has prompts of its own."""


def facts_of(config: RunConfig, gpu: bool, memory: int | None = None) -> PlanInput:
    """The facts of a run, from config.json, the tokenizer and the problems. Raises ModelError or
    DataError."""
    name, task = config.model.name, config.task
    shape, loaded = shape_of(name), None
    with contextlib.suppress(ModelError):
        loaded = loading.load_outline(name, check_weights=False, chat_template=config.model.template)

    def tokens_of(prompt: Prompt) -> int:
        return len(loaded.encode(prompt)) if loaded else 1 + size(prompt) // BYTES_OF_A_TOKEN

    prompts = {problem.prompt for split in task.splits for problem in task.problems(split)}
    tokens = max(map(tokens_of, longest(prompts)), default=1)
    taught = max(map(tokens_of, longest(prompts_of_teacher(config))), default=0)
    assumed = f"no tokenizer: the longest prompt is taken for {tokens:,} tokens"
    notes = () if loaded else (assumed,)
    return PlanInput(shape, tokens, gpu, notes, memory, taught and taught + success_tokens(config))


def longest(prompts: Iterable[Prompt]) -> Sequence[Prompt]:
    """The prompts with the most bytes."""
    return sorted(prompts, key=lambda prompt: -size(prompt))[:LONGEST_ENCODED]


def prompts_of_teacher(config: RunConfig) -> Sequence[Prompt]:
    """The prompts that a teacher reads; none if it reads what the policy reads."""
    teacher_prompt = config.algorithm.teacher_prompt
    if teacher_prompt is None:
        return []
    from grpobench.runs.sample.teacher_prompts import as_read

    read = as_read(config.task, teacher_prompt, config.task.problems("train"))
    return [problem.prompt for problem in read]


def success_tokens(config: RunConfig) -> int:
    """Tokens of the longest success that a teacher may be shown."""
    teacher_prompt = config.algorithm.teacher_prompt
    return preflight.limit_of(config) if teacher_prompt and teacher_prompt.shows == "success" else 0


def size(prompt: Prompt) -> int:
    return len(as_text(prompt).encode("utf-8", "surrogatepass"))


def input_of(config: RunConfig, facts: PlanInput) -> MemoryInput:
    """A run as the plan sees it."""
    from grpobench.runs.models.roles import CHUNK
    from grpobench.runs.sample.decoding import PREFILL

    algorithm, shape = config.modify.around(config.algorithm), facts.shape
    trained, read = algorithm.trained_roles, algorithm.reference_roles
    compute, weight = BYTES[config.model.dtype], BYTES[config.model.weights]
    sampling, evaluating = sampled(config, facts), evaluated(config, facts)
    adapter = config.model.adapter
    vllm = config.sampler.kind == "vllm"
    return MemoryInput(
        shape=shape,
        training=packed(
            config, facts, math.ceil(config.train.prompts_per_step / config.train.num_minibatches)
        ),
        scoring=packed(config, facts, config.train.prompts_per_step),
        sampling=sampling,
        evaluating=evaluating,
        reference="reference" in {*trained, *read},
        critic="critic" in trained,
        value_head="value_head" in trained,
        devices=config.train.devices,
        gpu=facts.gpu,
        weight_bytes=weight,
        compute_bytes=compute,
        master=weight < FLOAT32 and config.train.master_weights,
        optimizer_bytes=optimizer_bytes(config.train, config.beside),
        offload=config.train.offload_optimizer,
        checkpointing=config.train.activation_checkpointing,
        dense_mask=not is_flash(config, facts),
        adapter=adapter,
        past=config.sampler.lag,
        measures_kl=config.evaluate.kl_base,
        base_policy=config.evaluate.kl_base
        and "reference" not in {*trained, *read}
        and adapter is None
        and config.train.devices == 1,
        prefill=PREFILL,
        chunk=most_logits(facts.memory if facts.gpu else None, CHUNK),
        entropy_gradient=algorithm.differentiates_entropy,
        gradient_sum=bool(config.train.gradient_noise),
        quantized=config.sampler.weights != "trainer",
        engine_weight_bytes=compute if vllm else 0,
        engine_cache=int(config.sampler.cache_gb * 2**30) if vllm else 0,
        engine_sleeps=vllm and config.sampler.sleep and facts.gpu,
        reward_model=reward_model_bytes(config),
        teacher=shape_of(config.model.teacher) if config.reads_teacher else None,
        divergence=algorithm.teacher_divergence,
        taught=taught(config, facts),
        **decoding_of(facts, compute, sampling, evaluating, truncation_of(config.sampler)),
    )


def decoding_of(
    facts: PlanInput, compute: int, sampling: Decoded, evaluating: Decoded, truncation: Truncation
) -> dict[str, Any]:
    """How a model is decoded in this process. The copy of a Llama-like model's weights counts in float32, and
    where the graphs' own copy stays, which is then refreshed from it; other copies in bfloat16 do not count,
    because decoding does without them where memory lacks."""
    from grpobench.runs.sample.fused import MOST_COPIED

    shape, small = facts.shape, compute == FLOAT32 and facts.shape.trunk <= MOST_COPIED
    fuses = shape.llama_like and (small or compute < FLOAT32) and (sampling.rows or evaluating.rows)
    work = (sampling, evaluating, truncation)
    graphs = recorded(shape, 2 * compute, *work, facts.memory) if facts.gpu and fuses else None
    refreshed = graphs is not None and compute * (shape.multiplied + shape.head) <= graphs.most_kept
    return {
        "fused_copy": shape.llama_like and (small or refreshed),
        "cache_bytes": 2 * compute,
        "recorded": graphs,
    }


def recorded(
    shape: ModelShape,
    cache_bytes: int,
    sampling: Decoded,
    evaluating: Decoded,
    truncation: Truncation,
    memory: int | None = None,
) -> Recorded:
    """The buffers of CUDA graphs for batches whose completions all have the maximum length, so that none
    moves to a smaller grid, on a GPU with so many bytes of `memory`. Only rollouts are drawn from a truncated
    distribution."""
    from grpobench.runs.sample.graphs import grid_for, most_kept

    def buffers(work: Decoded, limits: Truncation) -> Buffers:
        if not work.rows:
            return Buffers()
        most = math.ceil(work.rows / work.prompts)
        grid = grid_for(work.prompts, most, work.prompt_tokens, work.completion_tokens, 1.0, False, limits)
        token_bytes = shape.layers * shape.keys * cache_bytes
        return Buffers(grid.cache_bytes(token_bytes), grid.graph_bytes(shape.vocabulary, kernels=True))

    return Recorded(buffers(sampling, truncation), buffers(evaluating, FULL), most_kept(memory))


def notes_of(config: RunConfig, facts: PlanInput) -> tuple[str, ...]:
    """What a plan leaves out or assumes."""
    notes = list(facts.notes)
    if config.sampler.kind == "vllm":
        notes.append("vLLM's own workspace is not counted")
    if uses_reward_model(config) and not reward_model_bytes(config):
        notes.append("the reward model is not counted: its files are not on this machine")
    return tuple(notes)


def is_flash(config: RunConfig, facts: PlanInput) -> bool:
    """Whether packed sequences attend without a dense mask, on a GPU that has the kernel."""
    from grpobench.runs.models.attention import serves_heads

    model = config.model
    able = facts.gpu and model.dtype != "float32" and serves_heads(facts.shape.head_size)
    return able and model.attention != "sdpa" and config.train.devices == 1


def budget_of(config: RunConfig, gpu: bool) -> int:
    """Most tokens of a micro-batch."""
    return config.train.micro_batch_tokens or MICRO_BATCH_TOKENS["gpu" if gpu else "cpu"]


# Shapes of the work


def taught(config: RunConfig, facts: PlanInput) -> Packed | None:
    """What a teacher with prompts of its own reads at once."""
    if not facts.taught_tokens:
        return None
    teacher_facts = replace(facts, prompt_tokens=facts.taught_tokens)
    return packed(
        config, teacher_facts, math.ceil(config.train.prompts_per_step / config.train.num_minibatches)
    )


def packed(config: RunConfig, facts: PlanInput, prompts: int) -> Packed:
    """The largest micro-batch of so many prompts, all of whose completions have the maximum length."""
    per_row_group = 1 if config.algorithm.has_advantages else 2  # a preference pair is never split
    return packed_sizes(
        facts.shape,
        prompts,
        config.train.group_size,
        facts.prompt_tokens,
        preflight.limit_of(config),
        budget_of(config, facts.gpu),
        per_row_group,
        is_flash(config, facts),
    )


@functools.lru_cache(maxsize=256)
def packed_sizes(
    shape: ModelShape,
    prompts: int,
    group_size: int,
    prompt_tokens: int,
    completion: int,
    budget: int,
    per_row_group: int,
    flash: bool,
) -> Packed:
    """The largest micro-batch as `packing.py` makes it. With `flash` a group is one sequence whatever
    attention costs, and each completion has its prompt's keys."""
    import torch

    from grpobench.runs.models.packing import Cost, micro_batches, packed_size

    # More prompts than this would only make more micro-batches of the same size.
    prompts = min(prompts, 2 + budget // max(1, prompt_tokens + completion))
    batch = lengths_alone(prompts, group_size, prompt_tokens, completion)
    number = torch.arange(len(batch))
    row_group = batch.group * group_size + (number % group_size) // per_row_group
    parts = micro_batches(batch, row_group, budget)
    rows = max(parts, key=len)
    pair = 0.0 if flash else 2.0 * shape.hidden * shape.layers
    cost = Cost(token=shape.used, pair=pair)
    sequences, length = packed_size(batch[rows], cost)
    keys = sequences * length + len(rows) * prompt_tokens if flash else 0
    return Packed(sequences, length, len(rows) * completion, len(parts) > 1, keys)


def lengths_alone(prompts: int, group_size: int, prompt_tokens: int, completion: int) -> Any:
    """A batch of rows of equal lengths, without their tokens."""
    import torch

    from grpobench.algorithms.algorithm import Batch

    rows = prompts * group_size
    nothing = torch.zeros(rows, 0)
    zeros = torch.zeros(rows, dtype=torch.long)
    return Batch(
        prompt=nothing.long(),
        prompt_length=zeros + prompt_tokens,
        completion=nothing.long(),
        length=zeros + completion,
        completion_mask=nothing.bool(),
        sampler_logp=nothing,
        old_logp=nothing,
        group=torch.arange(prompts).repeat_interleave(group_size),
        stopped=zeros.bool(),
        reward=zeros.float(),
        scores={},
        max_completion_tokens=completion,
        step=1,
    )


def sampled(config: RunConfig, facts: PlanInput) -> Decoded:
    """What the training steps decode in this process."""
    if config.sampler.kind not in ("hf", "replay"):
        return NOTHING
    answers = config.train.group_size + config.algorithm.greedy_baseline
    work = decoded(config, facts, config.train.prompts_per_step, answers, preflight.limit_of(config))
    return replace(work, truncated=truncation_of(config.sampler).active)


def evaluated(config: RunConfig, facts: PlanInput) -> Decoded:
    """The largest batch that evaluations decode in this process."""
    settings = config.evaluate
    problems = max(settings.problems, settings.test_problems)
    answers = settings.samples + settings.greedy
    if config.sampler.kind in ("vllm", "vllm-server") or config.sampler.foreign or not problems * answers:
        return NOTHING
    tasks = (config.task, *others.tasks_beside(config))
    most = max(config.sampler.max_completion_tokens or task.max_completion_tokens for task in tasks)
    return decoded(config, facts, problems, answers, most)


def decoded(config: RunConfig, facts: PlanInput, prompts: int, answers: int, completion: int) -> Decoded:
    prompts = math.ceil(prompts / config.train.devices)
    rows = min(config.sampler.max_batch_size, prompts * answers)
    return Decoded(rows, min(prompts, math.ceil(rows / answers)), facts.prompt_tokens, completion)


# Sizes that are measured


MEASURED: dict[tuple[str, str], float] = {}
"""By optimizer and its settings, what was measured in this process."""


def optimizer_bytes(train: TrainConfig, beside: str = "") -> float:
    """Bytes of state that the optimizer keeps for each weight: known of AdamW, measured of others."""
    if train.optimizer == ADAMW:
        return 2.0 * FLOAT32
    key = train.optimizer, json.dumps(dict(train.optimizer_settings), sort_keys=True, default=str)
    if key not in MEASURED:
        MEASURED[key] = measured_state(train, beside)
    return MEASURED[key]


def measured_state(train: TrainConfig, beside: str) -> float:
    """The state after one update of one matrix, per weight. AdamW's where the optimizer cannot be made
    here."""
    from pathlib import Path

    import torch

    parameter = torch.nn.Parameter(torch.zeros(TRIED, TRIED))
    parameter.grad = torch.ones_like(parameter)
    try:
        make = maker(train, Path(beside) if beside else None)
        assert make is not None
        made = make([parameter], 1e-3)
        made.step()
    except Exception:  # of a library or of a user's own file; reading the recipe has already told of it
        return 2.0 * FLOAT32
    state = made.state.get(parameter, {}).values()
    tensors = [value for value in state if isinstance(value, torch.Tensor) and value.numel() > 1]
    return sum(map(tensor_bytes, tensors)) / parameter.numel()


def tensor_bytes(tensor: Any) -> int:
    """Bytes of a tensor, also of one that is made of others, as those of 8-bit optimizers."""
    if hasattr(tensor, "__tensor_flatten__"):
        return sum(tensor_bytes(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    return int(tensor.numel() * tensor.element_size())


def uses_reward_model(config: RunConfig) -> bool:
    return "model" in config.reward.components(config.task) and config.reward.model != TINY


def reward_model_bytes(config: RunConfig) -> int:
    """Of the weights of a learned reward model, if its files are on this machine; the suite's own is tiny."""
    if not uses_reward_model(config):
        return 0
    return BYTES[config.reward.model_dtype] * preflight.weights(config.reward.model)
