"""Additions that any algorithm can be run with: the recipe's section `modify`.

What changes an objective (a KL penalty, a dual clip) is a setting of the algorithms that have one; what
corrects the sampler's probabilities is in the section `sampler`. Here is what stands around an algorithm:
which problems it is given, which completions it sees, how its reference moves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch

from grpobench.algorithms import ads, parts
from grpobench.algorithms.algorithm import (
    Algorithm,
    Batch,
    Loss,
    Metric,
    Mixer,
    Reader,
    Reading,
    Role,
    Rowwise,
    Signal,
)
from grpobench.algorithms.curriculum import Curriculum, Study

METRICS = (
    Metric("modify/overlong", "reward", "mean penalty for overlong completions", "higher"),
    Metric("modify/left_out", "share of rows", "truncated completions that were left out of the update"),
    Metric(
        "modify/in_band",
        "share of groups",
        "groups whose success rate keeps their problem in an adaptive schedule",
        "higher",
    ),
)


@dataclass(frozen=True)
class Modifiers:
    """What stands around the algorithm; nothing by default, except where an algorithm has its own."""

    overlong_buffer: int = 0
    """Soft overlong punishment (DAPO, arXiv:2503.14476, eq. 13): the last so many tokens before the limit
    cost linearly up to `overlong_penalty`; 0 turns it off."""
    overlong_penalty: float = 1.0
    """Reward taken from a completion that reaches the limit."""
    mask_truncated: bool = False
    """Leave completions cut by the length limit out of the update; they still count in their group's
    statistics (overlong filtering, arXiv:2503.14476)."""
    dynamic_sampling: int = 0
    """How often a step may draw further problems in place of groups whose rewards are all equal
    (DAPO, arXiv:2503.14476); 0 trains on them as they are."""
    reference_every: int = 0
    """Steps between moves of the reference towards the policy (TR-DPO, arXiv:2404.09656); 0 keeps it."""
    reference_mix: float = 1.0
    """How far it moves: 1 is a copy of the policy, less is ref ← mix·policy + (1 − mix)·ref."""
    schedule: Literal["uniform", "ads"] = "uniform"
    """Which problems a step has: each once per pass in a random order, or by clusters and difficulty near a
    success rate of one half (ADS, arXiv:2606.22305), to which the settings that begin with ads_ belong."""
    ads_clusters: int = 64
    """Clusters of problems; fewer where there are fewer different problems."""
    ads_components: int = 128
    """Principal components of the problems' embeddings that are clustered."""
    ads_at_once: int = 4
    """Clusters that a step's problems come from."""
    ads_smoothing: float = 0.3
    """α, how fast a cluster's probability follows its share of the success rates."""
    ads_success: float = 0.5
    """r_init, the success rate of a cluster that has not been sampled."""
    ads_band: float = 0.17
    """A problem whose success rate is so far from one half gives its place to an easier or harder one."""
    ads_epochs: bool = True
    """Begin anew after each pass over the data, so that what an earlier policy could do does not count."""

    def __post_init__(self) -> None:
        parts.demand_not_negative(
            overlong_buffer=self.overlong_buffer,
            overlong_penalty=self.overlong_penalty,
            dynamic_sampling=self.dynamic_sampling,
            reference_every=self.reference_every,
        )
        if not 0 < self.reference_mix <= 1:
            raise ValueError("reference_mix: must be above 0 and at most 1")
        for name in ("ads_clusters", "ads_components", "ads_at_once"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1")
        if not 0 < self.ads_success <= 1:
            raise ValueError("ads_success: must be above 0 and at most 1")
        for name, most in (("ads_smoothing", 1.0), ("ads_band", 0.5)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name}: must be from 0 to {most:g}")

    def around(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """The algorithm with these modifiers; the very same object where there are none."""
        idle = not (
            self.overlong_buffer
            or self.mask_truncated
            or self.dynamic_sampling
            or self.reference_every
            or self.schedule != "uniform"
        )
        return algorithm if idle else Modified(algorithm, self)


S = TypeVar("S", bound=Signal)


@dataclass(frozen=True)
class Modified(Algorithm[S]):
    """An algorithm with modifiers, which is an algorithm again."""

    name = "modified"
    paper = summary = formula = departures = ""

    plain: Algorithm[S]
    modify: Modifiers

    @property
    def differentiates_entropy(self) -> bool:
        return self.plain.differentiates_entropy

    @property
    def trains(self) -> tuple[Role, ...]:
        return self.plain.trains

    @property
    def reads(self) -> tuple[Role, ...]:
        return self.plain.reads

    @property
    def greedy_baseline(self) -> bool:
        return self.plain.greedy_baseline

    @property
    def locates_answers(self) -> bool:
        return self.plain.locates_answers

    @property
    def studies(self) -> bool:
        return self.plain.studies or self.modify.schedule == "ads"

    @property
    def scores(self) -> frozenset[str]:
        return self.plain.scores

    def updates(self, step: int) -> tuple[Role, ...]:
        return self.plain.updates(step)

    def synchronise(self, step: int) -> float:
        every = self.modify.reference_every
        return self.modify.reference_mix if every and step % every == 0 else self.plain.synchronise(step)

    def credit(self, batch: Batch, models: Reader) -> S:
        signal = self.plain.credit(self._shaped(batch), models)
        if not self.modify.mask_truncated:
            return signal
        return dataclasses.replace(signal, unit=without(signal.unit, ~batch.stopped))

    def _penalty(self, batch: Batch) -> Rowwise:
        return self.modify.overlong_penalty * overlong(
            batch.written.sum(-1), batch.limit, self.modify.overlong_buffer
        )

    def _shaped(self, batch: Batch) -> Batch:
        if not self.modify.overlong_buffer:
            return batch
        return dataclasses.replace(batch, reward=batch.reward + self._penalty(batch))

    def observe(self, batch: Batch, signal: S) -> dict[str, float]:
        row = self.plain.observe(self._shaped(batch), signal)
        if self.modify.overlong_buffer:
            row["modify/overlong"] = self._penalty(batch).double().mean().item() if len(batch) else math.nan
        if self.modify.mask_truncated:
            row["modify/left_out"] = (~batch.stopped).double().mean().item() if len(batch) else math.nan
        if self.modify.schedule == "ads":
            groups = [batch.reward[batch.group == number] for number in batch.group.unique()]
            kept = [ads.direction(ads.success(group.tolist()), self.modify.ads_band) == 0 for group in groups]
            row["modify/in_band"] = sum(kept) / len(kept) if kept else math.nan
        return row

    def loss(self, batch: Batch, signal: S, now: Mapping[Role, Reading]) -> Loss:
        return self.plain.loss(batch, signal, now)

    def weigh(self, batch: Batch) -> torch.Tensor:
        return self.plain.weigh(batch)

    def curriculum(
        self,
        traits: Sequence[Mapping[str, str | float]],
        prompts: int,
        seed: int,
        study: Study | None = None,
    ) -> Curriculum:
        inner = self.plain.curriculum(traits, prompts, seed, study)
        if self.modify.schedule == "ads":
            assert study is not None
            inner = self._adaptive(study, prompts, seed)
        return Refilled(inner, self.modify.dynamic_sampling) if self.modify.dynamic_sampling else inner

    def _adaptive(self, study: Study, prompts: int, seed: int) -> Curriculum:
        modify = self.modify
        return ads.AdaptiveSchedule(
            study,
            prompts,
            seed,
            clusters=modify.ads_clusters,
            components=modify.ads_components,
            at_once=modify.ads_at_once,
            smoothing=modify.ads_smoothing,
            initial=modify.ads_success,
            band=modify.ads_band,
            epochs=modify.ads_epochs,
        )

    def mixer(self, embeddings: torch.Tensor | None = None) -> Mixer | None:
        return self.plain.mixer(embeddings)


def overlong(length: torch.Tensor, limit: int, buffer: int) -> Rowwise:
    """Soft overlong punishment of completions of `length` (B,) tokens, from −1 to 0 (DAPO, eq. 13): 0 up to
    limit − buffer, then falling linearly to −1 at the limit."""
    penalty: Rowwise = ((limit - buffer - length).double() / max(1, buffer)).clamp(-1, 0)
    return penalty.to(torch.get_default_dtype())


def without(unit: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`unit` (B,) with −1 for every unit that one of `rows` (bool, (B,)) belongs to."""
    gone = unit[rows & (unit >= 0)]
    return torch.where(torch.isin(unit, gone), torch.full_like(unit, -1), unit)


class Refilled:
    """Another curriculum whose groups of equal rewards are replaced by further draws (dynamic sampling)."""

    def __init__(self, inner: Curriculum, refills: int) -> None:
        self.inner, self.refills = inner, refills

    @property
    def attempts(self) -> int:
        return self.inner.attempts + self.refills

    def draw(self, step: int, attempt: int) -> list[int]:
        return self.inner.draw(step, attempt)

    def accept(self, step: int, index: Sequence[int], reward: Sequence[Sequence[float]]) -> list[bool]:
        kept = self.inner.accept(step, index, reward)
        return [keep and len(set(group)) > 1 for keep, group in zip(kept, reward, strict=True)]

    def state(self) -> Any:
        return self.inner.state()

    def restore(self, state: Any) -> None:
        self.inner.restore(state)
