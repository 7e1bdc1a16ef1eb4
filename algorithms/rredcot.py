"""RREDCoT: spreads the reward of a chain of thought over its segments by the policy's expectation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Metric, Models, Tokenwise
from grpobench.algorithms.policy_gradient import ClippedRatio

Answer = tuple[int, ...]
"""The tokens with which a completion states its answer, the end token included."""


@dataclass(frozen=True)
class RREDCoT(ClippedRatio):
    """Reward redistribution for chains of thought (arXiv:2606.06475).

    A chain is cut into segments. V̂_k is the expected reward if the policy stated its answer after
    segment k: V̂_k = Σ_y p̃(y | q, o_≤k)·u(y) over the group's different answers y. p̃ is the policy's
    probability of y's tokens at that point, normalized over those answers; u(y) is the mean reward of the
    completions that gave y. V̂_0 is the value after the prompt, and V̂_end = R. Segment k earns V̂_k −
    V̂_{k−1}. The advantage of its tokens is what is earned from segment k to the end, R − V̂_{k−1},
    centered over the group.

    Centering subtracts, for each k, the mean over the group of the returns from segment k on; a
    completion with fewer segments counts with its last. So the first segment's advantage is R − mean R,
    as without redistribution. A value that is too low or too high for all completions at one stage (a
    policy that is made to answer early answers worse) shifts no advantage.

    Degenerate cases: a group of equal rewards, a group in which no completion states an answer, and a
    group of one have advantage exactly 0. A completion without an answer takes part with the others'
    answers. With one segment, or if all answers of a group are worth the same, it is Dr. GRPO's R − mean
    R.
    """

    name = "rredcot"
    label = "RREDCoT"
    paper = "RREDCoT: Segment-Level Reward Redistribution for Reasoning Models, arXiv:2606.06475"
    summary = "credit by segment: how far each moves the policy's expectation of the group's answers"
    claim = (
        "The model's own probabilities say which segments brought the answer nearer, without further "
        "generation. Credit by segment is to lower the variance that one reward for a long chain has "
        "(abstract, which gives no number)."
    )
    formula = (
        "V̂_k = Σ_y p̃(y | q, o_≤k)·u(y), V̂_end = R;  segment k earns V̂_k − V̂_{k−1};  "
        "A_t = (R − V̂_{k−1}) − mean of the same over the group, for t in segment k;  loss as GRPO's"
    )
    departures = (
        "Only the paper's abstract could be read. Ours are: the words that cut a chain and the use of "
        "entropy, at most 6 segments, the statement of the answer as the last one, u(y) as a mean over the "
        "group, probabilities that are not divided by an answer's length, the first 32 tokens of an answer, "
        "the subtracted mean, no division by a standard deviation, and GRPO's clipped objective without KL."
    )
    evidence = (
        "reconstruction: the abstract was read; segments from keywords and entropy, values from "
        "teacher-forced probabilities of the group's answers, and their differences as segment rewards are "
        "second-hand. The values equal Monte-Carlo continuations on a policy whose answers can be "
        "enumerated"
    )
    cost = (
        "one forward pass without gradient over the rollouts for their entropies (not with cut = breaks), "
        "and one over each chain with (segments · different answers in its group) answers branching off it; "
        "groups without a signal, or with equally good answers, are left out"
    )
    minimum_group = 2
    credits_turns = False  # it credits segments by itself
    metrics = (
        *parts.CLIP_METRICS,
        *parts.KL_METRICS,
        Metric(
            "advantage/segments",
            "segments",
            "stretches of a completion whose tokens share an advantage, mean over completions",
        ),
        Metric(
            "advantage/explained",
            "share",
            "1 − Σ A²(last segment) / Σ A²(first segment): how much of the completions' advantage the values "
            "before the last segment already explain; NaN without a signal",
            "higher",
        ),
        Metric(
            "advantage/answered",
            "share of rows",
            "completions that state an answer behind the marker",
            "higher",
        ),
    )

    segments: int = 6
    """Most segments of a completion, including the statement of the answer; 1 redistributes nothing."""
    cut: Literal["both", "breaks", "entropy"] = "both"
    """Where a chain is cut. breaks: where a line, sentence or turn of thought begins, evenly chosen if
    there are too many. entropy: at the tokens that the policy was least sure of. both: at breaks, and at
    uncertain tokens if there are too few."""
    longest_answer: int = 32
    """Tokens of an answer that are compared; later tokens do not tell answers apart."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_count(segments=self.segments, longest_answer=self.longest_answer)

    @property
    def locates_answers(self) -> bool:
        return True

    def advantage(self, batch: Batch, models: Models) -> Tokenwise:
        answers = answer_values(batch, self.longest_answer)
        answered = torch.tensor([group in answers for group in batch.group.tolist()], dtype=torch.bool)
        rows = answered.to(batch.group.device) & ~parts.group_equal(batch.reward, batch.group)
        advantage = torch.zeros_like(batch.old_logp)
        if rows.any():
            advantage[rows] = self.redistribute(batch[rows], answers, models)
        return advantage

    def redistribute(
        self, batch: Batch, answers: Mapping[int, Mapping[Answer, float]], models: Models
    ) -> Tokenwise:
        """Advantages of rows in groups with answers and different rewards."""
        starts = self.starts(batch, models)
        returns = batch.reward[:, None] - segment_values(batch, starts, answers, models)
        means = [parts.group_mean(column, batch.group) for column in returns.unbind(-1)]
        return (returns - torch.stack(means, -1)).gather(1, starts.cumsum(-1))

    def starts(self, batch: Batch, models: Models) -> torch.Tensor:
        """Bool (B, T): the first tokens of all segments but the first."""
        assert batch.answer is not None and batch.breaks is not None
        if self.segments == 1:
            return torch.zeros_like(batch.completion_mask)
        position = batch.completion_mask.cumsum(-1) - 1  # among the tokens that the policy wrote
        behind = torch.arange(batch.completion_mask.shape[1], device=position.device) >= batch.answer[:, None]
        answer = batch.completion_mask & behind
        answer &= answer.cumsum(-1) == 1
        inside = batch.completion_mask & ~behind & (position > 0)
        breaks = inside & batch.breaks
        most = self.segments - 2
        if self.cut == "breaks":
            chosen = thin_out(breaks, most)
        else:
            entropy = models.forward("policy", batch).entropy
            first = breaks if self.cut == "both" else torch.zeros_like(breaks)
            chosen = choose_first([first, inside], entropy, most)
        return chosen | (answer & (position > 0))

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        assert batch.answer is not None
        written, advantage = batch.completion_mask, signal.advantage.double()
        rows = written.any(-1)
        first = (advantage * (written & (written.cumsum(-1) == 1))).sum(-1)
        last = (advantage * parts.last_written(written)).sum(-1)
        before = torch.nn.functional.pad(latest_mark(written)[:, :-1], (1, 0))
        preceding = torch.cat([first[:, None], advantage], -1).gather(1, before)
        segments = (written & (advantage != preceding)).sum(-1) + 1
        total = first.square().sum()
        return {
            "advantage/segments": segments[rows].double().mean().item(),
            "advantage/explained": (1 - last.square().sum() / total).item() if total else float("nan"),
            "advantage/answered": (batch.answer < batch.length).double().mean().item(),
        }


def answer_values(batch: Batch, longest: int) -> dict[int, dict[Answer, float]]:
    """The different answers of each group and what they are worth: u(y), the mean reward of their rows."""
    assert batch.answer is not None
    rewards: dict[int, dict[Answer, list[float]]] = {}
    rows = zip(batch.group.tolist(), batch.answer.tolist(), batch.reward.tolist(), strict=True)
    for row, (group, start, reward) in enumerate(rows):
        answer_tokens = batch.completion[row, start:][batch.completion_mask[row, start:]]
        if len(answer_tokens):
            answer = tuple(answer_tokens[:longest].tolist())
            rewards.setdefault(group, {}).setdefault(answer, []).append(reward)
    # Sorted, so that the order of rows does not change how the sums round.
    return {
        group: {answer: sum(sorted(r)) / len(r) for answer, r in sorted(rewards_by_answer.items())}
        for group, rewards_by_answer in rewards.items()
    }


def segment_values(
    batch: Batch,
    starts: torch.Tensor,
    answers: Mapping[int, Mapping[Answer, float]],
    models: Models,
) -> torch.Tensor:
    """V̂ before each segment, (B, most segments); a row with fewer repeats its last."""
    groups = batch.group.tolist()
    stands: dict[
        tuple[int, tuple[int, ...]], tuple[int, int]
    ] = {}  # one (row, position) for equal beginnings
    prefixes_by_row: list[list[tuple[int, int]]] = []
    for row, (tokens, marked) in enumerate(zip(batch.completion.tolist(), starts.tolist(), strict=True)):
        boundaries = [0, *(position for position, begins in enumerate(marked) if begins)]
        keys = [(groups[row], tuple(tokens[:position])) for position in boundaries]
        prefixes_by_row.append(
            [stands.setdefault(k, (row, p)) for k, p in zip(keys, boundaries, strict=True)]
        )
    expected = expected_rewards(batch, list(stands.values()), answers, models)
    rows = [[expected[prefix] for prefix in prefixes] for prefixes in prefixes_by_row]
    most = max(map(len, rows))
    return batch.reward.new_tensor([row + row[-1:] * (most - len(row)) for row in rows])


def expected_rewards(
    batch: Batch,
    prefixes: list[tuple[int, int]],
    answers: Mapping[int, Mapping[Answer, float]],
    models: Models,
) -> dict[tuple[int, int], float]:
    """V̂ if the policy answers before token `position` of `row`, for each (row, position)."""
    groups = batch.group.tolist()
    expected = {}
    continuations: list[tuple[int, int, Answer]] = []
    for row, position in prefixes:
        worth = answers[groups[row]]
        if len(set(worth.values())) == 1:  # the policy's probabilities change nothing
            expected[row, position] = next(iter(worth.values()))
        else:
            continuations += [(row, position, answer) for answer in worth]
    if not continuations:
        return expected
    forced = build_continuations(batch, continuations)
    logps = (models.forward("policy", forced).logp * forced.completion_mask).sum(-1).tolist()
    weighed: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for (row, position, answer), logp in zip(continuations, logps, strict=True):
        weighed.setdefault((row, position), []).append((logp, answers[groups[row]][answer]))
    for key, pairs in weighed.items():
        answer_logps, rewards = torch.tensor(pairs, dtype=torch.float64).unbind(-1)
        expected[key] = (answer_logps.softmax(-1) * rewards).sum().item()
    return expected


def build_continuations(batch: Batch, continuations: list[tuple[int, int, Answer]]) -> Batch:
    """Rows with prompt plus the first `position` tokens of a completion as prompt, and an answer as
    completion. Those of one completion form a group: their prompts are prefixes of each other and are
    computed once."""
    lengths = batch.prompt_length.tolist()
    sequences = {
        row: [*batch.prompt[row, : lengths[row]].tolist(), *batch.completion[row].tolist()]
        for row in {row for row, _, _ in continuations}
    }
    prompts = [torch.tensor(sequences[row][: lengths[row] + position]) for row, position, _ in continuations]
    texts = [torch.tensor(answer) for _, _, answer in continuations]
    pad = torch.nn.utils.rnn.pad_sequence
    device = batch.completion.device
    length = torch.tensor([len(text) for text in texts], device=device)
    completion = pad(texts, batch_first=True).to(device)
    nothing = batch.old_logp.new_zeros(completion.shape)
    return Batch(
        prompt=pad(prompts, batch_first=True).to(device),
        prompt_length=torch.tensor([len(prompt) for prompt in prompts], device=device),
        completion=completion,
        length=length,
        completion_mask=torch.arange(completion.shape[1], device=device) < length[:, None],
        sampler_logp=nothing,
        old_logp=nothing,
        group=torch.tensor([row for row, _, _ in continuations], device=device),
        stopped=torch.ones_like(length, dtype=torch.bool),
        reward=nothing[:, 0],
        scores={},
        max_completion_tokens=completion.shape[1],
        step=batch.step,
    )


def thin_out(marked: torch.Tensor, most: int) -> torch.Tensor:
    """At most `most` of each row's marks (B, T), evenly spread."""
    number, total = marked.cumsum(-1), marked.sum(-1, keepdim=True).clamp(min=1)
    return marked & ((total <= most) | (number * most // total > (number - 1) * most // total))


def choose_first(kinds: list[torch.Tensor], by: Tokenwise, most: int) -> torch.Tensor:
    """At most `most` tokens of each row: those of the first kind by the greatest `by`, then others."""
    rank = sum((kind.to(torch.int64) for kind in kinds), torch.zeros_like(kinds[0], dtype=torch.int64))
    order = by.argsort(dim=-1, descending=True, stable=True)
    order = order.gather(-1, rank.gather(-1, order).argsort(dim=-1, descending=True, stable=True))
    chosen = torch.zeros_like(kinds[0]).scatter(-1, order[:, :most], True)
    return chosen & (rank > 0)


def latest_mark(marked: torch.Tensor) -> torch.Tensor:
    """Long (B, T): 1 + the place of the last mark up to each token; 0 where there is none."""
    return (torch.arange(1, marked.shape[1] + 1, device=marked.device) * marked).cummax(-1).values
