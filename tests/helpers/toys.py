"""Small builders that several test files share: tiny models, random batches, gradients of the real loop."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from grpobench.algorithms import returned
from grpobench.algorithms.algorithm import Algorithm, Batch, ModelOutput, Role, Signal
from grpobench.runs.metrics.catalog import catalog
from grpobench.runs.metrics.rollout_metrics import MetricAccumulator
from grpobench.runs.models import nano
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.shards import full_tensor, local_shard, shard_like
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.sample.engines.engine import EngineCompletion
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.sampler import Request
from grpobench.runs.settings.config import EvaluateConfig, ModelConfig, RunConfig, TrainConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.truncation import FULL, Truncation
from grpobench.runs.train import execute as whole
from grpobench.runs.train.corrections import Correction
from grpobench.runs.train.loss_scale import LossScale
from grpobench.runs.train.parts import build
from grpobench.runs.train.trainer import Trainer
from grpobench.runs.train.update import Updater
from grpobench.tasks.task import Graded, Problem, Split, Task, Verdict

VOCABULARY = 40
ARCHITECTURES = ("llama", "qwen2", "qwen3_moe", "gpt2")
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
    "tie_word_embeddings": False,
}
"""Of the models below, by the names of most configurations of transformers."""


def tiny(architecture: str = "llama", seed: int = 0, context: int = 128) -> Any:
    """A random causal language model of two layers, width 32 and 40 tokens, in the default dtype.

    Its weights are large (std 0.2), so that next-token distributions are far from uniform. The global
    generator is left as building it leaves it.
    """
    model, drawn = built(architecture, seed, context, torch.get_default_dtype())
    torch.set_rng_state(drawn)
    return copy.deepcopy(model)


@functools.cache
def built(architecture: str, seed: int, context: int, dtype: torch.dtype) -> tuple[Any, torch.Tensor]:
    """The model, to be copied in a third of the time, and the state of the global generator after it."""
    torch.manual_seed(seed)
    return make(architecture, context).eval(), torch.get_rng_state()


def make(architecture: str, context: int) -> Any:
    """The model, in the default dtype."""
    import transformers

    if architecture == "gpt2":
        small = transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=context,
            n_embd=32,
            n_layer=2,
            n_head=2,
            initializer_range=0.2,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
        )
        return transformers.GPT2LMHeadModel(small)
    shared = SIZES | {"max_position_embeddings": context}
    if architecture == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shared))
    if architecture == "qwen2":
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**shared))
    mixture = transformers.Qwen3MoeConfig(
        **shared,
        head_dim=8,
        moe_intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        output_router_logits=False,
    )
    return transformers.Qwen3MoeForCausalLM(mixture)


def characters(folder: Path, **sizes: Any) -> str:
    """The folder, with a random Llama over the characters of the nano policies in it; with other `sizes`, as
    LlamaConfig calls them."""
    import transformers

    torch.manual_seed(0)
    usual: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.1,
    }
    small = transformers.LlamaConfig(
        vocab_size=nano.VOCABULARY,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        **usual | sizes,
    )
    transformers.LlamaForCausalLM(small).save_pretrained(folder)
    nano.character_tokenizer().save_pretrained(folder)
    return str(folder)


def rollouts(
    lengths: Sequence[Sequence[int]],
    rewards: Sequence[Sequence[float]] | None = None,
    *,
    seed: int = 0,
    prompts: Sequence[int] = (5, 3, 7, 4),
    gaps: Mapping[int, Sequence[int]] | None = None,
    limit: int = 12,
    step: int = 1,
    pad: int = 0,
) -> Batch:
    """A batch of random tokens. `lengths` and `rewards` hold one list per group; group g has a prompt of
    ``prompts[g % len(prompts)]`` tokens; `gaps` names positions of a row that the policy did not write, so
    that the tokens on both sides are turns, which have rewards. A
    teacher with prompts of its own reads two in turn in each group, and not every third row."""
    generator = torch.Generator().manual_seed(seed)
    flat = [length for group in lengths for length in group]
    group = torch.tensor([g for g, members in enumerate(lengths) for _ in members])
    sizes = [prompts[g % len(prompts)] for g in range(len(lengths))]
    texts = [torch.randint(2, VOCABULARY, (size,), generator=generator) for size in sizes]
    prompt = torch.full((len(flat), max(sizes)), pad)
    for row, g in enumerate(group.tolist()):
        prompt[row, : sizes[g]] = texts[g]
    length = torch.tensor(flat)
    columns = torch.arange(max(1, *flat))
    inside = columns < length[:, None]
    completion = torch.randint(2, VOCABULARY, (len(flat), len(columns)), generator=generator)
    written = inside.clone()
    for row, positions in (gaps or {}).items():
        written[row, list(positions)] = False
    if rewards is None:
        reward = torch.rand(len(flat), generator=generator, dtype=torch.get_default_dtype())
    else:
        reward = torch.tensor([r for members in rewards for r in members], dtype=torch.get_default_dtype())
    nothing = torch.zeros(inside.shape)
    written &= inside
    ends = written & ~torch.nn.functional.pad(written, (0, 1))[:, 1:]
    return Batch(
        prompt=prompt,
        prompt_length=torch.tensor(sizes)[group],
        completion=completion.where(inside, pad),
        length=length,
        completion_mask=written,
        sampler_logp=nothing,
        old_logp=nothing,
        group=group,
        member=torch.tensor([member for members in lengths for member in range(len(members))]),
        stopped=length < limit,
        reward=reward,
        scores={"correct": reward, "consistent": (torch.arange(len(flat)) % 3 == 0).to(reward.dtype)},
        weights={"correct": 1.0},
        turn_reward=(0.25 * (1 + columns % 3)).to(reward.dtype) * ends,
        greedy_reward=0.25 * (1 + group % 3).to(reward.dtype),
        expected=0.25 + 0.125 * (texts_sum(texts)[group] % 4).to(reward.dtype),
        answer=(length * 2 + 2) // 3,
        breaks=(columns % 2 == 1) & (columns < ((length * 2 + 2) // 3)[:, None]),
        **teaching(lengths, pad, seed),
        max_completion_tokens=limit,
        step=step,
    )


def text_of(batch: Batch, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The prompt and the completion of a row, without padding."""
    return batch.prompt[row, : batch.prompt_length[row]], batch.completion[row, : batch.length[row]]


def plain_logp(
    language: Any,
    prompt: Sequence[int] | torch.Tensor,
    completion: Sequence[int] | torch.Tensor,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Log-probabilities (T, V) before each token of a completion, by one forward pass of the model's own."""
    ids = torch.cat([torch.as_tensor(part, dtype=torch.long) for part in (prompt, completion)])[None]
    logits = language(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)


def teaching(lengths: Sequence[Sequence[int]], pad: int, seed: int) -> dict[str, torch.Tensor]:
    """What a teacher reads before each row of `rollouts`."""
    generator = torch.Generator().manual_seed(1000 + seed)
    rows, sizes = [], []
    for members in lengths:
        pair = [torch.randint(2, VOCABULARY, (size,), generator=generator) for size in (9, 6)]
        for index in range(len(members)):
            text = pair[index % 3] if index % 3 < 2 else torch.zeros(0, dtype=torch.long)
            rows.append(torch.nn.functional.pad(text, (0, 11 - len(text)), value=pad))
            sizes.append(len(text))
    return {"teacher_prompt": torch.stack(rows), "teacher_prompt_length": torch.tensor(sizes)}


def untaught(batch: Batch) -> Batch:
    """The batch without prompts of a teacher's own."""
    return dataclasses.replace(batch, teacher_prompt=None, teacher_prompt_length=None)


def texts_sum(texts: Sequence[torch.Tensor]) -> torch.Tensor:
    """A number of each prompt, (P,), which does not depend on the numbers of groups."""
    return torch.stack([text.sum() for text in texts])


def off_policy(batch: Batch, models: RoleModels, spread: float = 0.3, seed: int = 0) -> Batch:
    """The batch with π_old = the policy's log-probabilities plus noise, so that ratios differ from 1."""
    noise = torch.randn(batch.completion_mask.shape, generator=torch.Generator().manual_seed(seed))
    old = models.forward("policy", batch).logp + spread * noise * (batch.completion != 0)
    return dataclasses.replace(batch, old_logp=old, sampler_logp=old)


class HasRoles(Protocol):
    """An algorithm, or no more than its roles."""

    @property
    def trained_roles(self) -> tuple[Role, ...]: ...

    @property
    def reference_roles(self) -> tuple[Role, ...]: ...


def models_for(algorithm: HasRoles, architecture: str, **settings: Any) -> RoleModels:
    """Models with every role of the algorithm and an optimizer for each trained one. Reference, critic and
    value head are moved away from the policy and from zero, so that each of them matters."""
    settings = {"budget": 10**9, **settings}
    if "teacher" in algorithm.reference_roles:
        settings["teacher"] = tiny(architecture, seed=7)
    models = RoleModels(tiny(architecture), algorithm.trained_roles, algorithm.reference_roles, **settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for role in ("reference", "critic"):
            if role in models.networks:
                for p in models.networks[role].parameters():
                    noise = 0.02 * torch.randn(p.shape, generator=generator)
                    local_shard(p).add_(local_shard(shard_like(noise, p)))
        for network in models.networks.values():
            if network.value is not None:
                weight = network.value.weight
                drawn = 0.2 * torch.randn(weight.shape, generator=generator)
                local_shard(weight).copy_(local_shard(shard_like(drawn, weight)))
    models.optimize(dict.fromkeys(algorithm.trained_roles, 1e-3), (0.9, 0.95), 0.0, 1.0)
    return models


def backward(
    algorithm: Algorithm[Any],
    models: RoleModels,
    batch: Batch,
    signal: Signal | None = None,
    correction: Correction | None = None,
    experts: Batch | None = None,
    loss_scale: LossScale | None = None,
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """(gradient by role and parameter, metrics) of one whole batch as a single minibatch, and of expert
    completions with it, accumulated by the training loop's own code. A parameter without a gradient counts as
    0. With `loss_scale` the loss is scaled and the gradient divided by the scale."""
    with torch.no_grad():
        signal = returned.compute_signal(algorithm, batch, models) if signal is None else signal
    tally = MetricAccumulator(catalog())
    models.clear()
    run = Updater.__new__(Updater)
    vars(run).update(
        algorithm=algorithm,
        models=models,
        clock=lambda phase: torch.enable_grad(),
        source=types.SimpleNamespace(on_policy=True),
        noise=None,  # a loss of the weights' density is one of the tokens' probabilities here
        trained=0,
        loss_scale=loss_scale,
    )
    roles = algorithm.updated_roles(batch.step)
    run.accumulate(batch, signal, roles, tally, None, correction, experts=experts)
    run.unscale(roles)
    gradients = {
        f"{role}/{name}": torch.zeros(p.shape, dtype=p.dtype)
        if p.grad is None
        else full_tensor(p.grad).clone()
        for role, optimizer in models.optimizers.items()
        for name, p in optimizer.parameters.items()
    }
    models.clear()
    return gradients, tally.numbers()


def norm(gradient: Mapping[str, torch.Tensor]) -> float:
    """Euclidean norm over all parameters."""
    return torch.stack([g.double().square().sum() for g in gradient.values()]).sum().sqrt().item()


def distance(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm of the second."""
    assert first.keys() == second.keys()
    return norm({name: first[name] - second[name] for name in first}) / max(norm(second), 1e-30)


def reading(logp: torch.Tensor, value: torch.Tensor | None = None) -> ModelOutput:
    """A reading made of numbers."""
    return ModelOutput(logp, torch.zeros_like(logp), logp[:, :0] if value is None else value)


EXACT: dict[str, float] = {"rtol": 1e-10, "atol": 1e-12}
"""float64 on both sides; only the order of operations differs."""


def close(actual: torch.Tensor, expected: Any, **tolerance: float) -> None:
    """Equal within `EXACT` or the tolerance given."""
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), **(tolerance or EXACT))


class Fixed:
    """A reader with fixed readings by role."""

    def __init__(self, **readings: ModelOutput) -> None:
        self.readings = readings

    def forward(self, role: Role, batch: Batch, *, squares: bool = False) -> ModelOutput:
        assert not squares or self.readings[role].squares is not None
        return self.readings[role]


class Copy:
    """An engine that decodes in process with a copy of a model. `deaf` are tensors that it does not take
    over; `broken` makes it fail."""

    dtype = torch.float32
    block = 4
    provenance: Mapping[str, Any] = types.MappingProxyType({"engine": "a copy"})
    adapts = asleep = False

    def __init__(self, language: Any, context: int = 128, deaf: Sequence[str] = ()) -> None:
        self.models, self.context, self.deaf = RoleModels(copy.deepcopy(language)), context, deaf
        self.broken = self.closed = False
        self.loads = 0
        self.sources: dict[tuple[int, ...], HFSampler] = {}
        """Made once for each set of end tokens, as an engine is: making one proves the weights of then."""

    def sample(
        self,
        jobs: Sequence[tuple[tuple[int, ...], int]],
        limit: int,
        temperature: float,
        end: Sequence[int],
        truncation: Truncation = FULL,
    ) -> list[EngineCompletion]:
        if self.broken:
            raise ArithmeticError("it does not work")
        ending = tuple(end) or (-1,)
        if ending not in self.sources:
            self.sources[ending] = HFSampler(self.models, ending, 0, 64, self.context)
        groups = self.sources[ending].sample(
            [Request(prompt, (seed,), truncation) for prompt, seed in jobs], limit, temperature
        )
        return [EngineCompletion(rollout.completion, rollout.sampler_logp) for (rollout,) in groups]

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.loads += 1
        parameters = dict(self.models.language.named_parameters())
        with torch.no_grad():
            for name, tensor in weights:
                if name not in self.deaf:
                    parameters[name].copy_(tensor)

    def load_adapter(self, config: str, tensors: Mapping[str, torch.Tensor]) -> None:
        raise NotImplementedError

    def sleep(self) -> None:
        """It has a process of its own, as behind a server."""

    def close(self) -> None:
        self.closed = True


@dataclasses.dataclass(frozen=True)
class Letters(Task):
    """Problems that a random policy solves half of the time: write more characters below "P" than not."""

    name = "letters"
    source = "this file"
    summary = "for tests of the loop"
    scores = ("correct", "short", "consistent")
    max_completion_tokens = 6
    faulty: bool = False
    """Whether completions that begin with a character below "P" fail for infrastructure reasons."""

    def problems(self, split: Split) -> Sequence[Problem]:
        size, first = {"train": (12, 0), "validation": (3, 12), "test": (2, 15)}[split]
        return [
            Problem(f"{split}-{i}", f"{i}:" * (1 + i % 3), i, {"category": "a"})
            for i in range(first, first + size)
        ]

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return [self.grade(text) for text in completions]

    def grade(self, text: str) -> Verdict:
        if self.faulty and text[:1] < "P":
            return Verdict({}, None, "infra_error")
        low = sum(c < "P" for c in text)
        scores = {"correct": 2 * low > len(text), "short": len(text) < 6, "consistent": text[-1:] < "P"}
        return Verdict({name: float(score) for name, score in scores.items()}, text[:1])

    def demonstrate(self, problem: Problem) -> str:
        return "AAA"

    def summarize(self, graded: Sequence[Graded]) -> dict[str, float]:
        return {"shouted": sum(g.verdict.scores["correct"] for g in graded) / max(1, len(graded))}


@dataclasses.dataclass(frozen=True)
class Scribbles(Letters):
    """The same under a name that no task of the suite has."""

    name = "scribbles"


def brief(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """The algorithm with a teacher's prompt that fits into the context of a tiny policy, and with any
    completion as a success."""
    if algorithm.teacher_prompt is None:
        return algorithm
    shows = "{demonstration}" in algorithm.template
    short = {"template": "{demonstration};{prompt}" if shows else "!{prompt}"}
    loose = {"threshold": 0.0} if algorithm.teacher_prompt.shows == "success" else {}
    return dataclasses.replace(algorithm, **short, **loose)


def arithmetic_run(algorithm: Algorithm[Any], steps: int = 2, **sections: Any) -> RunConfig:
    """A short run of the built-in policy on arithmetic, 4 problems × 6 completions a step, not evaluated;
    `sections` override whole sections."""
    config = dataclasses.replace(read_recipe("quickstart").configs[0], seed=0)
    assert config.task.name == "arithmetic"
    train = dataclasses.replace(
        config.train, steps=steps, prompts_per_step=4, group_size=6, num_minibatches=1
    )
    quiet = EvaluateConfig(every=0, problems=0, samples=0, test_problems=0)
    run = dataclasses.replace(config, algorithm=algorithm, **{"train": train, "evaluate": quiet} | sections)
    if "teacher" not in algorithm.reference_roles:
        return run
    return dataclasses.replace(run, model=dataclasses.replace(run.model, teacher="nano"))


def resting_run(algorithm: Algorithm[Any], epochs: int = 1) -> RunConfig:
    """A step of the mixture of experts in bfloat16 at learning rate 0, in two minibatches of micro-batches of
    256 tokens: with every other layout it rounds differently."""
    return arithmetic_run(
        algorithm,
        model=ModelConfig("nano-moe", dtype="bfloat16"),
        train=TrainConfig(
            steps=1,
            prompts_per_step=4,
            group_size=6,
            num_minibatches=2,
            epochs=epochs,
            learning_rate={"policy": 0.0},
            micro_batch_tokens=256,
        ),
    )


def trainer_for(config: RunConfig, tell: Callable[[str], None] = lambda phase: None) -> Trainer:
    """The trainer of a run, at its first step."""
    return Trainer(config, build(config, tell))


def execute(config: RunConfig, path: Path, stop: Callable[[], bool] = lambda: False) -> list[dict[str, Any]]:
    """Carry a run out in a folder; its metrics by step, without what depends on the machine."""
    with RunFolder.open(path, config) as folder:
        whole.execute(config, folder, lambda progress: None, stop)
    rows = [json.loads(text) for text in (path / "metrics.jsonl").read_text().splitlines()]
    machine = ("time/", "cost/peak_memory_gb")
    return [{key: value for key, value in row.items() if not key.startswith(machine)} for row in rows]
