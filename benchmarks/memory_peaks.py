"""`grpobench bench --memory-plan`: the memory plan and the measured peaks of steps."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from grpobench.algorithms.algorithm import Algorithm
from grpobench.runs.experiment.memory import gib
from grpobench.runs.models.memory_plan import GRAPH_WORKSPACE, MemoryPlan, PhaseName, plan
from grpobench.runs.settings.config import RunConfig

if TYPE_CHECKING:
    from grpobench.algorithms.algorithm import Batch
    from grpobench.runs.models.loading import Loaded
    from grpobench.runs.models.roles import RoleModels
    from grpobench.runs.sample.rollouts import Rollout

STEPS = 2
"""The second is measured."""
SMALL_WORK = ("train.prompts_per_step=16", "train.group_size=8")
LARGE_WORK = ("train.prompts_per_step=2", "train.group_size=16")
SHAPES: Mapping[str, tuple[int, int]] = {"short": (16, 24), "long": (150, 8)}
"""Tokens of prompts and completions, by the length of the prompts."""
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "reference": ("algorithm.beta=0.04",),
    # Without a warm-up, in which the policy would not be updated.
    "critic": ("arms=ppo", "arm.ppo.settings.critic=separate", "arm.ppo.settings.critic_warmup=0"),
    "teacher": ("arms=gkd", "model.teacher=nano"),
    "4 minibatches": ("train.num_minibatches=4",),
    "bfloat16": ("model.dtype=bfloat16",),
    "checkpointing": ("train.activation_checkpointing=true",),
    "LoRA": ("model.adapter.rank=16",),
    "LoRA, checkpointing": ("model.adapter.rank=16", "train.activation_checkpointing=true"),
}
"""Settings that change what is held."""
OF_LARGE = ("", "bfloat16", "checkpointing", "LoRA", "LoRA, checkpointing")
"""The variants that a large model has."""


@dataclass(frozen=True)
class Peak:
    """A phase, planned and measured, in bytes."""

    phase: PhaseName
    planned: int
    measured: int

    @property
    def ratio(self) -> float:
        """The plan over the measurement: 1 is exact, above 1 the plan says too much."""
        return self.planned / self.measured

    def row(self) -> dict[str, float]:
        """For JSON."""
        return {"planned": self.planned, "measured": self.measured, "ratio": self.ratio}


@dataclass(frozen=True)
class PeakComparison:
    """The plan of a run against the peaks of its steps."""

    model: str
    device: str
    plan: MemoryPlan
    peaks: tuple[Peak, ...]

    @property
    def largest(self) -> Peak:
        """Of the whole run: the largest planned phase against the largest measured one."""
        planned = max(self.peaks, key=lambda peak: peak.planned)
        measured = max(peak.measured for peak in self.peaks)
        return replace(planned, measured=measured)

    def row(self) -> dict[str, Any]:
        """For JSON."""
        phases = {peak.phase: peak.row() for peak in self.peaks}
        return {"model": self.model, "device": self.device, "phases": phases, "peak": self.largest.row()}


def cases(model: str) -> Iterator[tuple[str, RunConfig, int]]:
    """(what it is, the run, tokens of its prompts) of each case of a model; large models have the long
    prompts alone, and `OF_LARGE`."""
    from grpobench.benchmarks.cases import SMALL
    from grpobench.runs.settings.recipe import read_recipe

    small = model in SMALL
    work = SMALL_WORK if small else LARGE_WORK
    for shape, (prompt, completion) in SHAPES.items():
        for variant, sets in VARIANTS.items():
            if (shape == "long" and variant and small) or (
                not small and (shape != "long" or variant not in OF_LARGE)
            ):
                continue
            lengths = (f"sampler.max_completion_tokens={completion}", "train.num_minibatches=1")
            arms = () if any(text.startswith("arms=") for text in sets) else ("arms=grpo",)
            chosen = (*arms, "tasks=arithmetic", f"model.name={model}")
            recipe = read_recipe("quickstart", [*chosen, *work, *lengths, *sets])
            yield ", ".join(filter(None, (shape, variant))), recipe.runs()[0], prompt


def compare_plans(model: str) -> dict[str, PeakComparison]:
    """The plan of each case of a model against its peak."""
    return {name: plan_against_peak(config, prompt) for name, config, prompt in cases(model)}


def plan_against_peak(config: RunConfig, prompt_tokens: int) -> PeakComparison:
    """Make steps of a run whose prompts all have `prompt_tokens` tokens, in this process and on its device,
    and hold their peaks against the plan. Evaluations are not made. Raises ModelError for a model that is not
    here.

    The steps are those of a run's roles, made by hand: prompts and completions of random tokens, all of one
    length, so that the plan's assumption (every completion has the maximum length) holds. Each phase is
    measured in the second step, when the optimizer has its state."""
    import torch

    from grpobench.runs.experiment.memory_input import PlanInput, input_of
    from grpobench.runs.models.loading import load
    from grpobench.runs.models.model_shape import shape_of
    from grpobench.runs.models.token_budgets import gpu_memory
    from grpobench.runs.train.parts import models_for, teacher_for

    # What a run keeps beside its steps, also of its evaluations, is left out of both.
    evaluate = replace(config.evaluate, kl_base=False, problems=0, test_problems=0)
    config = replace(config, evaluate=evaluate)
    gpu = torch.cuda.is_available()
    memory = gpu_memory(torch.device("cuda")) if gpu else None
    facts = PlanInput(shape_of(config.model.name), prompt_tokens, gpu, (), memory)
    planned = plan(input_of(config, facts))
    gc.collect()
    if gpu:
        load_libraries()
    before = held_bytes(gpu)
    loaded = load(config.model.name, weights_in=config.model.weights)
    algorithm = config.modify.around(config.algorithm)
    teacher = teacher_for(config, loaded, lambda _: None).model if config.reads_teacher else None
    models = models_for(config, algorithm, loaded, teacher)
    measured: dict[PhaseName, int] = {}
    for step in range(1, STEPS + 1):
        measured = make_step(config, algorithm, models, loaded, prompt_tokens, step)
    # Torch counts the memory of graphs as free, although only they can use it.
    peaks = tuple(
        Peak(
            phase.name,
            phase.total - phase.parts.get(GRAPH_WORKSPACE, 0),
            measured[phase.name] - before,
        )
        for phase in planned.phases
        if phase.name in measured
    )
    device = torch.cuda.get_device_name() if gpu else "cpu"
    return PeakComparison(config.model.name, device, planned, peaks)


def load_libraries() -> None:
    """Have cuBLAS take its workspace, which torch counts and no plan does."""
    import torch

    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(64, 64, dtype=dtype, device="cuda")
        torch.addmm(matrix[0], matrix, matrix)
    torch.cuda.synchronize()


def make_step(
    config: RunConfig,
    algorithm: Algorithm[Any],
    models: RoleModels,
    loaded: Loaded,
    prompt_tokens: int,
    step: int,
) -> dict[PhaseName, int]:
    """The peak of each phase of one step."""
    import torch

    from grpobench.runs.experiment.preflight import limit_of
    from grpobench.runs.sample.in_process import HFSampler
    from grpobench.runs.sample.sampler import Request

    train, limit = config.train, limit_of(config)
    # No token ends a completion.
    sampler = HFSampler(models, (), loaded.pad, config.sampler.max_batch_size, loaded.context)
    generator = torch.Generator().manual_seed(step)
    size = (train.prompts_per_step, prompt_tokens)
    prompts = torch.randint(0, loaded.model.config.vocab_size, size, generator=generator).tolist()
    seeds = tuple(range(train.group_size))
    requests = [Request(tuple(prompt), seeds) for prompt in prompts]
    peak_by_phase: dict[PhaseName, int] = {}
    with peak("sampling", peak_by_phase):
        groups = sampler.sample(requests, limit, config.sampler.temperature)
    batch = batch_of(groups, limit, step, str(models.device))
    with peak("scoring", peak_by_phase), torch.no_grad():
        models.forward("policy", batch)
        signal = algorithm.compute_signal(batch, models)
    with peak("training", peak_by_phase):
        update(config, algorithm, models, batch, signal, step)
    return peak_by_phase


def update(
    config: RunConfig, algorithm: Algorithm[Any], models: RoleModels, batch: Batch, signal: Any, step: int
) -> None:
    """All updates of a step, as the updater makes them."""
    from grpobench.runs.models.packing import micro_batches
    from grpobench.runs.train.update import minibatches

    roles = algorithm.updated_roles(step)
    for rows in minibatches(batch, signal.row_group, config.train.num_minibatches, seed=step):
        part, part_signal = batch[rows], signal[rows]
        weights = algorithm.loss_weights(part)
        for micro in micro_batches(part, part_signal.row_group, models.budget):
            now = models.forward_train(
                roles,
                part[micro],
                algorithm.differentiates_entropy,
                divergence=algorithm.teacher_divergence,
                teacher=algorithm.teacher_role,
            )
            loss = algorithm.loss(part[micro], part_signal[micro], now)
            (loss.terms * weights[micro]).sum().backward()
            del now, loss
        models.step(roles, 1.0)


def batch_of(groups: Sequence[Sequence[Rollout]], limit: int, step: int, device: str) -> Batch:
    """A batch of rollouts of equal lengths, every other one of which is right."""
    import torch

    from grpobench.algorithms.algorithm import Batch

    rollouts = [rollout for group in groups for rollout in group]
    rows = len(rollouts)
    logp = torch.tensor([rollout.sampler_logp.tolist() for rollout in rollouts])
    number = torch.arange(rows)
    zeros = torch.zeros(rows, dtype=torch.long)
    reward = (number % 2).float()
    batch = Batch(
        prompt=torch.tensor([rollout.prompt for rollout in rollouts]),
        prompt_length=zeros + len(rollouts[0].prompt),
        completion=torch.tensor([rollout.completion for rollout in rollouts]),
        length=zeros + limit,
        completion_mask=torch.ones(rows, limit, dtype=torch.bool),
        sampler_logp=logp,
        old_logp=logp,
        group=number // len(groups[0]),
        stopped=zeros.bool(),
        reward=reward,
        scores={"correct": reward},
        max_completion_tokens=limit,
        step=step,
    )
    moved: dict[str, Any] = {
        name: value.to(device) for name, value in vars(batch).items() if isinstance(value, torch.Tensor)
    }
    return replace(batch, **moved, scores={"correct": reward.to(device)})


# Output


def main(model: str, as_json: bool) -> None:
    """Measure every case of a model and print a table. Raises ModelError for a model that is not here."""
    comparisons = compare_plans(model)
    if as_json:
        print(json.dumps({name: comparison.row() for name, comparison in comparisons.items()}, indent=1))
    else:
        show(model, comparisons, Console())


def show(model: str, comparisons: Mapping[str, PeakComparison], console: Console) -> None:
    """A row for each case, a column for the plan over the measured peak of each phase."""
    phases = [peak.phase for peak in next(iter(comparisons.values())).peaks]
    table = Table(box=None, pad_edge=False)
    table.add_column(model)
    for heading in ("planned", "measured", "plan ÷ peak", *phases):
        table.add_column(heading, justify="right")
    for name, comparison in comparisons.items():
        largest = comparison.largest
        ratios = (f"{peak.ratio:.3f}" for peak in comparison.peaks)
        table.add_row(name, gib(largest.planned), gib(largest.measured), f"{largest.ratio:.3f}", *ratios)
    console.print(table)
    console.print(
        f"peaks of the second step on {next(iter(comparisons.values())).device}; plan ÷ peak also by phase"
    )


# Measuring


@contextlib.contextmanager
def peak(phase: PhaseName, peak_by_phase: dict[PhaseName, int]) -> Iterator[None]:
    """Measure the bytes that torch holds at most within, with those that were there before.

    On a GPU this is torch's own count. On a CPU it is what torch's profiler records of the allocator, added
    to the tensors that were there when the phase began: a process's resident size would also count libraries,
    buffers of BLAS and pages that the allocator keeps."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        yield
        torch.cuda.synchronize()
        peak_by_phase[phase] = torch.cuda.max_memory_allocated()
        return
    before = held_bytes(False)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        yield
    peak_by_phase[phase] = before + most_allocated(profiler)


def most_allocated(profiler: Any) -> int:
    """The largest sum of allocations so far, less what was freed."""
    events = profiler.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    now = most = 0
    for _, change in sorted(changes, key=lambda event: event[0]):
        now += change
        most = max(most, now)
    return most


def held_bytes(gpu: bool) -> int:
    """Bytes of the tensors of this process on its device."""
    import torch

    if gpu:
        return torch.cuda.memory_allocated()
    storages: dict[int, int] = {}
    for tracked in gc.get_objects():
        # isinstance would ask proxies for their class, and import what they stand for. Other subclasses have
        # no memory (a compiler's fake tensors) or are made of tensors that are counted here.
        if type(tracked) in (torch.Tensor, torch.nn.Parameter) and tracked.device.type == "cpu":
            storage = tracked.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
