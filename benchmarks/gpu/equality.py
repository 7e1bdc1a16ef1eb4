"""Checks that all ways to compute the same numbers agree on the device: decoding, packing, kernels, and draws
by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from grpobench.algorithms.algorithm import Batch
from grpobench.benchmarks.decoding import plainly, ways_of
from grpobench.benchmarks.gpu.rows import Outcome, Report, Skip, judged
from grpobench.benchmarks.sides import WORDS
from grpobench.runs.models import head
from grpobench.runs.models.attention import MOST_APART, difference, use
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.decoding import Decoding
from grpobench.runs.sample.draws import uniforms
from grpobench.runs.sample.fused import Fused, fits
from grpobench.runs.sample.graphs import Graphs, are_rounding, gaps_to_fused, step_kernels
from grpobench.runs.sample.in_process import LARGEST_GAP, LARGEST_ROUNDED_GAP, HFSampler
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups
from grpobench.runs.sample.sampler import Request
from grpobench.tasks.task import Problem, Verdict

LARGE = {True: "random:tiny", False: "random:0.5b"}
"""The model beside `nano`, by `Report.small`."""
LARGEST_GRADIENT = 1e-4
"""Relative distance of two gradients in float32 that differ only in the order of sums."""
SHIFTED_QUANTILE = 1e-4
"""How far in float32 the number in [0, 1) that is drawn may lie from the part of the cumulative distribution
that a token holds, where two completions of a seed part. Rounding moves the bounds of these parts, and most
tokens of a large vocabulary hold little: with SmolLM2's 49,152, 5 of 18 completions of up to 96 tokens parted
on an H200."""
QWEN_VOCABULARY = 151_936
LARGEST_NATS = 1e-4
"""Between two sums in float32 of 151,936 exponentials in different orders: some 1e-6 of about 12 nats, and a
few roundings of logits of up to 30 divided by a temperature."""
LARGEST_ROUNDED_GRADIENT = 2**-8
"""Relative distance of two gradients that differ by the last digit of float32 before they are rounded to
bfloat16: at most that rounding, if every number of them fell on the other side."""
Way = Callable[[], torch.Tensor]


def equality(report: Report) -> None:
    """All checks, for the built-in model and a large one."""
    report.attempt("strict operators decode and draw", lambda: strict(report))
    report.attempt("head: kernel and plain torch", lambda: head_kernels(report))
    for name, dtype in (("nano", "float32"), ("nano", "bfloat16"), (LARGE[report.small], "bfloat16")):
        model = ModelUnderTest(name, dtype, report)
        report.attempt(f"{model}: shared and fused decoding", model.decoding)
        report.attempt(f"{model}: recorded steps", model.recorded)
        report.attempt(f"{model}: samplers' ways", model.samplers)
        report.attempt(f"{model}: a call repeated", model.repeated)
        report.attempt(f"{model}: alone and in a batch", model.alone)
        if dtype == "float32":
            report.attempt(f"{name}: packed and padded", model.packing)
        else:
            report.attempt(f"{model}: FlashAttention and a dense mask", model.attention)


class ModelUnderTest:
    """A model in a precision, loaded at the first check that needs it."""

    def __init__(self, name: str, dtype: str, report: Report) -> None:
        self.name, self.dtype = name, dtype
        self.samples, self.tokens = (4, 16) if report.small else (16, 96)
        self.limit = LARGEST_GAP if dtype == "float32" else LARGEST_ROUNDED_GAP

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}"

    @cached_property
    def models(self) -> tuple[Loaded, RoleModels]:
        loaded = load(self.name)
        return loaded, RoleModels(loaded.model, dtype=self.dtype)

    def sampler(self) -> tuple[Loaded, HFSampler]:
        """A sampler that decodes as on a GPU."""
        loaded, models = self.models
        made = HFSampler(models, loaded.end, loaded.pad, 256, loaded.context)
        if made.fuses and models.device.type == "cpu":
            made.graphs = Graphs(models)  # its steps, which are not recorded here
        return loaded, made

    def decoding(self) -> Outcome:
        """The same tokens are fed in every way."""
        loaded, models = self.models
        texts = prompts(loaded)
        owner = torch.tensor([row % len(texts) for row in range(self.samples)], device=models.device)
        tokens = torch.randint(5, 50, (8, self.samples), generator=torch.Generator().manual_seed(1))
        tokens = tokens.to(models.device)

        @torch.inference_mode()
        def forced(share: bool, fused: Fused | None) -> torch.Tensor:
            run = Decoding(models, texts, owner, len(tokens) + 1, loaded.pad, share, fused=fused)
            logps = [run.logits.log_softmax(-1)]
            for drawn in tokens:
                run.advance(drawn, None, None)
                logps.append(run.logits.log_softmax(-1))
            return torch.stack(logps)

        plain = forced(False, None)
        ways: dict[str, Way] = {"shared": lambda: forced(True, None)}
        if fits(models):
            ways["fused"] = lambda: forced(True, Fused(models))
        gap_texts, passes = [], True
        for name, way in ways.items():
            other = way()
            # In the mean over the distribution: far down its tail rounding is large, and nothing is drawn.
            gap = ((other - plain).abs() * plain.exp()).sum(-1)
            passes &= float(gap.max()) <= self.limit
            gap_texts.append(f"{name} {float(gap.mean()):.2g} (largest {float(gap.max()):.2g})")
        gap_texts += [] if "fused" in ways else ["fused: not for this model"]
        return judged(passes, f"E|Δ log p| to plain decoding: {', '.join(gap_texts)}; {self.limit:g} allowed")

    def recorded(self) -> Outcome:
        """Steps in tensors that never move, recorded as CUDA graphs if there is a GPU."""
        loaded, models = self.models
        if not fits(models):
            raise Skip("this model has no fused step")
        with torch.inference_mode():
            gaps = gaps_to_fused(Graphs(models, step_kernels(models.device)), loaded.pad)
        message = (
            f"|Δ log p| to fused decoding {float(gaps.mean()):.2g} nats (largest {float(gaps.max()):.2g})"
        )
        return judged(are_rounding(gaps, models.dtype), message)

    def samplers(self) -> Outcome:
        """Whole completions of the sampler as it is, and of one that decodes plainly."""
        loaded, sampler = self.sampler()
        sampler_requests = requests(loaded, self.samples)
        ours = flat(sampler.sample(sampler_requests, self.tokens, 1.0))
        ways = ", ".join(ways_of(sampler))
        plainly(sampler)
        theirs = flat(sampler.sample(sampler_requests, self.tokens, 1.0))
        agree, compared = self.agreement(ours, theirs, seeds_of(sampler_requests))
        gap = gap_of(sampler, loaded, ours)
        passes = agree and gap <= self.limit
        return judged(passes, f"{ways} against plain: {compared}; gap to the trainer {gap:.2g} nats")

    def agreement(
        self, ours: Sequence[Rollout], theirs: Sequence[Rollout], seeds: Sequence[int]
    ) -> tuple[bool, str]:
        """Whether two calls drew the same completions, or parted where a number lay on a bound between two
        tokens. In bfloat16, whose rounding is larger than most probabilities, nothing is asked."""
        _, models = self.models
        same = sum(first.completion == other.completion for first, other in zip(ours, theirs, strict=True))
        summary = f"{same} of {len(ours)} equal"
        if self.dtype != "float32" or same == len(ours):
            return True, summary
        numbers = uniforms(seeds, self.tokens).double()
        off = max(map(partial(shifted_quantile, models), ours, theirs, numbers))
        summary += f", the others parted within {off:.1g} of a bound between two tokens"
        return off <= SHIFTED_QUANTILE, summary

    def repeated(self) -> Outcome:
        """The same call twice gives the same tokens and the same bits of their log-probabilities."""
        loaded, sampler = self.sampler()
        sampler_requests = requests(loaded, self.samples)
        first, other = (flat(sampler.sample(sampler_requests, self.tokens, 1.0)) for _ in range(2))
        same = sum(map(same_bits, first, other))
        return judged(same == len(first), f"{same} of {len(first)} completions equal to the bit")

    def alone(self) -> Outcome:
        """A completion does not depend on what else is in the batch."""
        loaded, sampler = self.sampler()
        sampler_requests = requests(loaded, self.samples)
        together = flat(sampler.sample(sampler_requests, self.tokens, 1.0))
        single = [Request(request.prompt, (seed,)) for request in sampler_requests for seed in request.seeds]
        single, together = single[:6], together[:6]
        apart = [flat(sampler.sample([request], self.tokens, 1.0))[0] for request in single]
        return judged(*self.agreement(together, apart, seeds_of(single)))

    def attention(self) -> Outcome:
        """States and gradients of a pack that attends without a dense mask, and with one."""
        _, models = self.models
        if not models.attention.flash:
            raise Skip("FlashAttention does not serve this device")
        trunk = models.networks["policy"].trunk
        use(trunk)
        with models.precision():
            apart = difference(trunk)
        return judged(apart <= MOST_APART, f"relative difference {apart:.2g}; {MOST_APART:g} allowed")

    def packing(self) -> Outcome:
        """Log-probabilities and gradients of packed rows, and of rows that the model reads one by one."""
        loaded, models = self.models
        models.language.requires_grad_(True)
        batch = random_batch(loaded, models, 4 if self.samples < 16 else 8)
        logp_and_gradients = []
        for way in (packed, padded):
            models.language.zero_grad(set_to_none=True)
            logp = way(models, batch)
            (logp * batch.completion_mask).sum().backward()
            gradient = [p.grad.detach().clone() for p in models.language.parameters() if p.grad is not None]
            logp_and_gradients.append((logp.detach(), gradient))
        (ours, ours_gradient), (theirs, theirs_gradient) = logp_and_gradients
        gap = float(((ours - theirs).abs() * batch.completion_mask).max())
        far = sum(float((a - b).square().sum()) for a, b in zip(ours_gradient, theirs_gradient, strict=True))
        far = (far / sum(float(b.square().sum()) for b in theirs_gradient)) ** 0.5
        passes = gap <= LARGEST_GAP and far <= LARGEST_GRADIENT
        return judged(passes, f"largest |Δ log p| {gap:.2g}, relative distance of gradients {far:.2g}")


def shifted_quantile(models: RoleModels, first: Rollout, other: Rollout, numbers: torch.Tensor) -> float:
    """Where two completions of a prompt part, how far the number drawn there, of `numbers` (T,), lies from
    what the two tokens hold of the trainer's cumulative distribution: the larger distance, 0 where the
    completions are equal. 1 if one is the other's beginning, which no rounding explains."""
    pairs = [*zip(first.completion, other.completion, strict=False)]
    position = next((number for number, (a, b) in enumerate(pairs) if a != b), None)
    if position is None:
        return float(len(first.completion) != len(other.completion))
    text = torch.tensor([[*first.prompt, *first.completion[:position]]], device=models.device)
    with torch.inference_mode():
        logits: Any = models.language(input_ids=text, use_cache=False).logits[0, -1]
    probability = logits.double().softmax(-1)
    upper, drawn = probability.cumsum(-1), float(numbers[position])
    ends = [(float(upper[x] - probability[x]), float(upper[x])) for x in pairs[position]]
    return max(max(low - drawn, drawn - high, 0.0) for low, high in ends)


def strict(report: Report) -> Outcome:
    """Sampling with operators that refuse any order of sums but one."""
    from grpobench.runs.tools.determinism import determinism_restored, deterministic

    with determinism_restored():
        deterministic(True)
        loaded, sampler = ModelUnderTest("nano", "float32", report).sampler()
        count = len(flat(sampler.sample(requests(loaded, 4), 8, 1.0)))
    return judged(count > 0, f"{count} completions; no operator was refused")


def head_kernels(report: Report) -> Outcome:
    """Log-probabilities, entropies and gradients of bfloat16 logits, of which some are −∞, by the kernels and
    by plain torch."""
    kernels = head.HeadKernels()
    if not kernels.serve(torch.device(report.device)):
        raise Skip("Triton has kernels for CUDA devices alone")
    generator = torch.Generator(report.device).manual_seed(0)
    logits = 4 * torch.randn(512, QWEN_VOCABULARY, generator=generator, device=report.device)
    logits[::2, : QWEN_VOCABULARY // 2] = -torch.inf
    logits = logits.bfloat16()
    tokens = torch.randint(
        QWEN_VOCABULARY // 2, QWEN_VOCABULARY, (512,), generator=generator, device=report.device
    )
    ours = kernels.launch("row_statistics", logits, tokens, 0.7)
    if ours is None:
        return judged(False, "the kernel failed; its warning says why")
    theirs = head.row_statistics(logits, tokens, 0.7)
    nats = max(float((a - b).abs().max()) for a, b in zip(ours[:2], theirs[:2], strict=True))
    arguments = (logits, tokens, *ours[2:], torch.ones_like(ours[0]), 0.7)
    gradient = kernels.launch("row_gradient", *arguments)
    if gradient is None:
        return judged(False, "the kernel of the gradient failed; its warning says why")
    plain = head.row_gradient(*arguments).float()
    # Of the whole: a number that lies between two of bfloat16 may become either.
    far = float((gradient.float() - plain).norm() / plain.norm())
    passes = nats <= LARGEST_NATS and far <= LARGEST_ROUNDED_GRADIENT
    return judged(passes, f"largest difference {nats:.2g} nats, relative distance of gradients {far:.2g}")


def prompts(loaded: Loaded) -> list[tuple[int, ...]]:
    """Four prompts of different lengths."""
    return [loaded.encode(" ".join(WORDS[: 2 + 3 * number])) for number in range(4)]


def requests(loaded: Loaded, samples: int) -> list[Request]:
    """`samples` completions in groups of different sizes."""
    texts = prompts(loaded)
    sizes = [samples // len(texts) + (number % 2) for number in range(len(texts))]
    return [
        Request(text, tuple(1000 * number + index for index in range(size)))
        for number, (text, size) in enumerate(zip(texts, sizes, strict=True))
    ]


def seeds_of(requests: Sequence[Request]) -> list[int]:
    return [seed for request in requests for seed in request.seeds]


def flat(groups: Sequence[Sequence[Rollout]]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group]


def same_bits(first: Rollout, other: Rollout) -> bool:
    return (
        first.completion == other.completion and first.sampler_logp.tobytes() == other.sampler_logp.tobytes()
    )


def batch_of(rollouts: Sequence[Rollout], loaded: Loaded, device: str) -> Batch:
    """The rollouts, grouped by prompt."""
    groups: list[Group] = []
    for prompt in dict.fromkeys(rollout.prompt for rollout in rollouts):
        group_rollouts = [rollout for rollout in rollouts if rollout.prompt == prompt]
        verdicts, rewards = [Verdict({}, None)] * len(group_rollouts), [0.0] * len(group_rollouts)
        groups.append(Group(Problem(str(len(groups)), "", None), group_rollouts, verdicts, rewards))
    longest = max(len(rollout.completion) for rollout in rollouts)
    return pack_groups(groups, longest, 1, loaded.pad, device, include_ungraded=True)


def gap_of(sampler: HFSampler, loaded: Loaded, rollouts: Sequence[Rollout]) -> float:
    """Mean |Δ log p| in nats per token between what the sampler recorded and the trainer's forward pass."""
    models = sampler.models
    batch = batch_of(rollouts, loaded, str(models.device))
    with torch.no_grad():
        logp = models.forward("policy", batch).logp
    mask = batch.completion_mask
    return float((logp - batch.sampler_logp)[mask].abs().mean())


def random_batch(loaded: Loaded, models: RoleModels, rows: int) -> Batch:
    """Groups of random completions of different lengths."""
    import numpy as np

    rng = np.random.default_rng(2)
    rollouts = []
    for prompt in prompts(loaded):
        for _ in range(rows // 2):
            tokens = tuple(int(token) for token in rng.integers(5, 50, rng.integers(3, 24)))
            rollouts.append(Rollout(prompt, tokens, np.zeros(len(tokens), dtype=np.float32), True))
    return batch_of(rollouts, loaded, str(models.device))


def packed(models: RoleModels, batch: Batch) -> torch.Tensor:
    """Log-probabilities (B, T), prompts shared in packed sequences."""
    return models.forward_train(("policy",), batch)["policy"].logp


def padded(models: RoleModels, batch: Batch) -> torch.Tensor:
    """Log-probabilities (B, T) by the model's own forward pass over one row after another."""
    template = torch.zeros_like(batch.sampler_logp)
    rows = []
    for row in range(len(batch)):
        before, count = int(batch.prompt_length[row]), int(batch.length[row])
        text = torch.cat([batch.prompt[row, :before], batch.completion[row, :count]])
        logits: Any = models.language(input_ids=text[None], use_cache=False).logits[0].float()
        logp = logits[before - 1 : -1].log_softmax(-1).gather(-1, text[before:, None]).squeeze(-1)
        rows.append(torch.nn.functional.pad(logp, (0, template.shape[1] - count)))
    return torch.stack(rows)
