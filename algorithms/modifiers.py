"""Options for any algorithm: the recipe's section `modify`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import FunctionType
from typing import Any, Literal, TypeVar

import torch

from grpobench.algorithms import ads, parts, returned
from grpobench.algorithms.algorithm import (
    Algorithm,
    Batch,
    Loss,
    Metric,
    ModelOutput,
    Models,
    Role,
    Rowwise,
    Signal,
    State,
    Tokenwise,
)
from grpobench.algorithms.curriculum import Curriculum, Informed, Study, expected_value, is_cumulative
from grpobench.algorithms.turns import Anchor, Credit, CreditKind, anchored_share, mean_turns

METRICS = (
    Metric("modify/overlong", "reward", "mean penalty for overlong completions", "higher"),
    Metric("modify/left_out", "share of rows", "truncated completions left out of the update"),
    Metric(
        "modify/equal",
        "share of groups",
        "groups of equal rewards, left out of the update",
        "lower",
    ),
    Metric(
        "modify/off_policy_masked",
        "share of tokens",
        "tokens of negative advantage without policy term, in completions that became too improbable",
    ),
    Metric("modify/anchored", "share of turns", "turns that share their state with another one", "higher"),
    Metric("modify/turns", "turns", "mean turns of an episode"),
    Metric(
        "modify/entropy_coefficient",
        "weight",
        "weight of the entropy bonus in this step's updates under an entropy target; 0 while it is off",
    ),
    Metric(
        "modify/in_band",
        "share of groups",
        "groups whose success rate keeps their problem in an adaptive schedule",
        "higher",
    ),
)

EVIDENCE: Mapping[str, str] = {
    "overlong_buffer": "verified: eq. 13 of the paper, worked by hand",
    "mask_truncated": (
        "verified: loss and gradient equal TRL 1.16's mask_truncated_completions with a mean over tokens; "
        "means over completions divide by those that are left, TRL's by all"
    ),
    "dynamic_sampling": "verified: the paper's text; as in DAPO, which has it by default",
    "zero_variance_filter": (
        "verified: the paper's text (section 3.2 and the condition 0 < mean r < 1 of its objective). Groups "
        "of equal rewards are left out, which is this condition if the reward is the verdict alone. The "
        "deviation of a batch covers all its rewards, which the text leaves open. Open-instruct has it by "
        "default (filter_zero_std_samples)"
    ),
    "off_policy_mask": (
        "verified: loss and gradient equal TRL 1.16's off_policy_mask_threshold, which names the paper's eq. "
        "9; the equation itself was read second-hand. Only the policy's term is masked, never the KL, and "
        "averages still count the masked tokens, as in both. TRL uses the sampler's probabilities with vLLM "
        "and π_old otherwise; here they are always the sampler's, as in the paper. verl has no such mask: "
        "its rejection by the geometric mean of a completion's ratios (rollout_rs) leaves out both signs"
    ),
    "entropy_bonus": (
        "verified: loss and gradient equal TRL 1.16's entropy_coef with a mean over tokens; the entropy's "
        "gradient in closed form. verl averages the bonus like the policy's terms (loss_agg_mode), as here; "
        "TRL always averages it over tokens, so a coefficient has another meaning unless averaging is "
        "token_mean"
    ),
    "entropy_target": (
        "verified: the controller and its place in the step, restated in a test from the authors' code "
        "(SkyworkAI/Skywork-OR1@64e96af, verl/trainer/ppo/core_algos.py: EntController; "
        "verl/trainer/ppo/ray_trainer.py: fit; verl/workers/actor/dp_actor.py: update_policy, "
        "get_entropy_metric); step and limit are those of all their scripts, whose target is 0.2 "
        "(or1_scripts/train). As there, the entropy of a step's rollouts decides about the next step, is "
        "−log π_old averaged over tokens, and the bonus begins at `entropy_bonus`, which is 0 in the "
        "scripts. It is that of all groups that the step accepted; theirs leaves out those that a filter of "
        "equal rewards then removes. Steps that do not update the policy change nothing. In the paper (eq. "
        "3.2) the bonus is on in a step whose own rollouts have at most the target's entropy, its step is "
        "0.005 and it has no limit; the target is 0.2 as well"
    ),
    "reference_every": (
        "verified: the documented rule of TRL 1.16's sync_ref_model; the moved weights in closed form. The "
        "paper was not read"
    ),
    "credit": (
        "verified: `anchored` is GiGPO's advantage, which equals its authors' (page of gigpo); `discounted` "
        "with γ = 1 and without rewards of turns equals `outcome` bit for bit, and its returns are checked "
        "in closed form. Reconstruction: comparing turns by their number, which no implementation read here "
        "does"
    ),
    "schedule": ads.ADS.evidence,
}
"""What each group of settings was checked against, by its first field, which turns the group on."""


@dataclass(frozen=True)
class Modifiers:
    """Options around the algorithm; all off by default, unless an algorithm has other defaults.

    A change of the objective (a KL penalty, a dual clip) is a setting of the algorithms that have it;
    corrections of the sampler's probabilities are in the section `sampler`."""

    overlong_buffer: int = 0
    """Soft overlong punishment (DAPO, arXiv:2503.14476, eq. 13): over this many last tokens before the
    limit a penalty grows linearly to `overlong_penalty`; 0 turns it off."""
    overlong_penalty: float = 1.0
    """Penalty of a completion that reaches the limit."""
    mask_truncated: bool = False
    """Leave completions cut by the length limit out of the update (overlong filtering, arXiv:2503.14476).
    They still count in their group's statistics."""
    dynamic_sampling: int = 0
    """Most further draws of a step that replace groups of equal rewards (DAPO, arXiv:2503.14476); 0 trains on
    such groups."""
    zero_variance_filter: bool = False
    """Leave groups of equal rewards out of the update, so that averages cover the other groups (ScaleRL,
    arXiv:2510.13786, section 3.2). They still count in a batch's statistics. Unlike dynamic_sampling this
    does not replace them."""
    off_policy_mask: float = 0.0
    """δ of off-policy sequence masking (DeepSeek-V3.2, arXiv:2512.02556, eq. 9): a token of negative
    advantage has no policy term if the mean of log μ/π_θ over its completion exceeds δ, where μ is the
    sampler's probability; 0 turns it off. The paper gives no δ."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy in the objective, averaged like the algorithm's terms. It adds to an
    algorithm's setting `entropy_bonus`."""
    entropy_target: float = 0.0
    """Entropy in nats per token that the bonus is to keep (adaptive entropy control, Skywork-OR1,
    arXiv:2505.22312): `entropy_bonus` is then only the weight of the first step; after each step it rises by
    `entropy_step` if the entropy was below the target and else falls by it, and it is on only after a step
    below the target. 0 keeps the weight."""
    entropy_step: float = 1e-4
    """How far the weight of the bonus moves after a step."""
    entropy_limit: float = 5e-3
    """Greatest weight that it moves to; the least is 0."""
    reference_every: int = 0
    """Steps between moves of the reference toward the policy (TR-DPO, arXiv:2404.09656); 0 keeps it."""
    reference_mix: float = 1.0
    """How far it moves: 1 is a copy of the policy, less is ref ← mix·policy + (1 − mix)·ref."""
    schedule: Literal["uniform", "ads"] = "uniform"
    """Which problems a step has: each once per pass in random order (uniform), or by cluster and
    difficulty near a success rate of one half (ads, arXiv:2606.22305), with the settings that begin with
    ads_."""
    ads_clusters: int = 64
    """Clusters of problems; fewer if there are fewer different problems."""
    ads_components: int = 128
    """Principal components of the problems' embeddings for clustering."""
    ads_at_once: int = 4
    """Clusters that a step's problems come from."""
    ads_smoothing: float = 0.3
    """α, how fast a cluster's probability follows its share of the success rates."""
    ads_success: float = 0.5
    """r_init, the success rate of a cluster that has not been sampled."""
    ads_band: float = 0.17
    """A problem whose success rate is further than this from one half is replaced by an easier or harder
    one."""
    ads_epochs: bool = True
    """Start again after each pass over the data, so that success rates of earlier policies do not count."""
    credit: CreditKind = "outcome"
    """How the turns of an episode are credited. outcome: all have the episode's advantage. discounted: the
    k-th turns of a group are compared by their discounted returns, and an episode of fewer turns stands with
    its last one. anchored: the advantage among turns that began in the same state is added to the episode's
    (GiGPO, arXiv:2505.10978). PPO has a setting of its own, `gae`."""
    credit_discount: float = 0.95
    """γ: what a reward loses by each turn that it is away."""
    credit_rewards: float = 1.0
    """Weight of the environment's rewards of single turns in the episode's reward: as much of it is taken
    from the last turn to theirs, so that their sum stays the reward. 1 if the reward is the score `return`;
    0 gives all to the last turn."""
    credit_anchor: Anchor = "exchange"
    """What tells the state before a turn: the environment's last reply, the exchange of the policy's last
    turn and the reply to it, or the whole history."""
    credit_weight: float = 1.0
    """Weight of the advantage among turns of one state; the episode's has weight 1."""

    def __post_init__(self) -> None:
        parts.demand_not_negative(
            overlong_buffer=self.overlong_buffer,
            overlong_penalty=self.overlong_penalty,
            dynamic_sampling=self.dynamic_sampling,
            off_policy_mask=self.off_policy_mask,
            entropy_bonus=self.entropy_bonus,
            entropy_target=self.entropy_target,
            entropy_step=self.entropy_step,
            entropy_limit=self.entropy_limit,
            reference_every=self.reference_every,
            credit_rewards=self.credit_rewards,
            credit_weight=self.credit_weight,
        )
        parts.demand_unit(credit_discount=self.credit_discount)
        parts.demand_fraction(reference_mix=self.reference_mix, ads_success=self.ads_success)
        parts.demand_count(
            ads_clusters=self.ads_clusters,
            ads_components=self.ads_components,
            ads_at_once=self.ads_at_once,
        )
        for name, most in (("ads_smoothing", 1.0), ("ads_band", 0.5)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name}: must be from 0 to {most:g}")

    def next_bonus(self, bonus: Mapping[str, Any], entropy: float) -> dict[str, Any]:
        """The next step's `weight` of the entropy bonus and whether it is `on`, after one of this entropy."""
        low = entropy < self.entropy_target
        moved = bonus["weight"] + (self.entropy_step if low else -self.entropy_step)
        return {"weight": min(max(moved, 0.0), self.entropy_limit), "on": low}

    def around(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """The algorithm with these modifiers; the same object if there are none."""
        idle = all(getattr(self, name) == getattr(Modifiers, name) for name in EVIDENCE)
        return algorithm if idle else Modified(algorithm, self)


S = TypeVar("S", bound=Signal)
ENTROPY = "modify.entropy_target"
"""What an entropy target carries from step to step stands in the state under this name."""


@dataclass(frozen=True)
class Modified(Algorithm[S]):
    """An algorithm with modifiers, which is itself an algorithm. The properties and methods that it does not
    define are those of the plain algorithm: the loop below the class replaces the defaults of `Algorithm`."""

    name = "modified"

    plain: Algorithm[S]
    modify: Modifiers

    @property
    def differentiates_entropy(self) -> bool:
        bonus = self.modify.entropy_bonus > 0 or self.modify.entropy_target > 0
        return self.plain.differentiates_entropy or bonus

    @property
    def studies(self) -> bool:
        return self.plain.studies or self.modify.schedule == "ads"

    def synchronize(self, step: int) -> float:
        every = self.modify.reference_every
        return self.modify.reference_mix if every and step % every == 0 else self.plain.synchronize(step)

    def initial_state(self) -> State:
        plain = self.plain.initial_state()
        if not self.modify.entropy_target:
            return plain
        return {**(plain or {}), ENTROPY: {"weight": self.modify.entropy_bonus, "on": True}}

    def next_state(self, batch: Batch, models: Models) -> State:
        plain = returned.next_state(self.plain, self._shaped(batch), models)
        if not self.modify.entropy_target:
            return plain
        bonus, written = self._bonus(batch), batch.completion_mask
        if "policy" in self.updated_roles(batch.step) and written.any():
            entropy = -batch.old_logp[written].double().mean().item()
            bonus = self.modify.next_bonus(bonus, entropy)
        return {**(plain or {}), ENTROPY: bonus}

    def _bonus(self, batch: Batch) -> Mapping[str, Any]:
        """The weight of the entropy bonus and whether it is on, which an entropy target moves."""
        state = (self.modify.entropy_target and batch.state) or {}
        bonus: Mapping[str, Any] = state.get(ENTROPY) or {"weight": self.modify.entropy_bonus, "on": True}
        return bonus

    def _entropy_weight(self, batch: Batch) -> float:
        """The weight of the entropy bonus in this step."""
        bonus = self._bonus(batch)
        return float(bonus["weight"]) if bonus["on"] else 0.0

    def compute_signal(self, batch: Batch, models: Models) -> S:
        shaped = self._shaped(batch)
        signal = returned.compute_signal(self.plain, shaped, models)
        gone = torch.zeros_like(batch.stopped)
        if self.modify.mask_truncated:
            gone = gone | ~batch.stopped
        if self.modify.zero_variance_filter:
            gone = gone | parts.group_equal(shaped.reward, batch.group)
        return (
            dataclasses.replace(signal, row_group=exclude_rows(signal.row_group, gone))
            if gone.any()
            else signal
        )

    def _penalty(self, batch: Batch) -> Rowwise:
        return self.modify.overlong_penalty * overlong(
            batch.completion_mask.sum(-1), batch.max_completion_tokens, self.modify.overlong_buffer
        )

    def _shaped(self, batch: Batch) -> Batch:
        modify = self.modify
        if modify.credit != "outcome":
            if not self.plain.credits_turns:
                raise ValueError(
                    f"modify.credit: {self.plain.name} does not make advantages of each turn's return"
                )
            credit = Credit(
                modify.credit,
                modify.credit_discount,
                modify.credit_rewards,
                modify.credit_anchor,
                modify.credit_weight,
            )
            batch = dataclasses.replace(batch, credit=credit)
        if not modify.overlong_buffer:
            return batch
        return dataclasses.replace(batch, reward=batch.reward + self._penalty(batch))

    def observe(self, batch: Batch, signal: S) -> dict[str, float]:
        shaped = self._shaped(batch)
        row = {**returned.observe(self.plain, shaped, signal)}
        if self.modify.overlong_buffer:
            row["modify/overlong"] = self._penalty(batch).double().mean().item() if len(batch) else math.nan
        if self.modify.mask_truncated:
            row["modify/left_out"] = (~batch.stopped).double().mean().item() if len(batch) else math.nan
        if self.modify.zero_variance_filter:
            row["modify/equal"] = equal_groups(shaped)
        if self.modify.credit == "anchored":
            row["modify/anchored"] = anchored_share(batch, self.modify.credit_anchor)
        if self.modify.credit != "outcome":
            row["modify/turns"] = mean_turns(batch)
        if self.modify.entropy_target:
            row["modify/entropy_coefficient"] = self._entropy_weight(batch)
        if self.modify.schedule == "ads":
            groups = [batch.reward[batch.group == number] for number in batch.group.unique()]
            in_band = [
                ads.move_direction(ads.success_rate(group.tolist()), self.modify.ads_band) == 0
                for group in groups
            ]
            row["modify/in_band"] = sum(in_band) / len(in_band) if in_band else math.nan
        return row

    def loss(self, batch: Batch, signal: S, now: Mapping[Role, ModelOutput]) -> Loss:
        weight = self._entropy_weight(batch)
        moves = "policy" in now  # absent while a critic is warmed up
        masks = moves and self.modify.off_policy_mask
        plain = self._masked(batch, signal, now) if masks else returned.loss(self.plain, batch, signal, now)
        if moves and weight:
            entropy = now["policy"].entropy * batch.completion_mask  # none for replies that are learned
            if plain.terms.dim() == 1:
                entropy = parts.sequence_mean(entropy, batch.completion_mask)
            plain = Loss(plain.terms - weight * entropy, plain.metrics)
        return plain

    def _masked(self, batch: Batch, signal: S, now: Mapping[Role, ModelOutput]) -> Loss:
        """The loss without the policy term of tokens that off-policy sequence masking leaves out. Its other
        parts (a KL, a critic's error) stay, and metrics cover all tokens."""
        advantage = getattr(signal, "advantage")  # noqa: B009 - `has_advantages` says that there is one
        stale = off_policy(batch, now["policy"].logp.detach(), advantage, self.modify.off_policy_mask)
        with torch.no_grad():
            metrics = returned.loss(self.plain, batch, signal, now).metrics
        masked_fields: Any = {"advantage": advantage.masked_fill(stale, 0.0)}
        masked = returned.loss(self.plain, batch, dataclasses.replace(signal, **masked_fields), now)
        return Loss(masked.terms, {**metrics, "modify/off_policy_masked": stale.float()})

    def loss_weights(self, batch: Batch) -> torch.Tensor:
        return returned.loss_weights(self.plain, batch)

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


for member, value in vars(Algorithm).items():
    is_plain = not member.startswith("_") and member not in vars(Modified)
    if is_plain and isinstance(value, property | FunctionType):
        setattr(Modified, member, property(attrgetter(f"plain.{member}")))
del member, value, is_plain


def overlong(length: torch.Tensor, limit: int, buffer: int) -> Rowwise:
    """Soft overlong punishment of completions of `length` (B,) tokens, from −1 to 0 (DAPO, eq. 13): 0 up to
    limit − buffer, then falling linearly to −1 at the limit."""
    penalty: Rowwise = ((limit - buffer - length).double() / max(1, buffer)).clamp(-1, 0)
    return penalty.to(torch.get_default_dtype())


def equal_groups(batch: Batch) -> float:
    """Share of groups whose rewards are all equal; NaN without any group."""
    share = 1 / parts.group_size(batch.group).double()
    equal = parts.group_equal(batch.reward, batch.group)
    return (share * equal).sum().item() / share.sum().item() if len(batch) else math.nan


def off_policy(batch: Batch, logp: Tokenwise, advantage: Tokenwise, most: float) -> torch.Tensor:
    """Bool (B, T): tokens of negative advantage in completions of which the mean of log μ/π_θ over what the
    policy wrote is above `most`, with π_θ's `logp` (DeepSeek-V3.2, arXiv:2512.02556, eq. 9)."""
    drift = parts.sequence_mean(batch.sampler_logp - logp, batch.completion_mask)
    return (advantage < 0) & (drift > most)[:, None]


def exclude_rows(row_group: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`row_group` (B,) with −1 for every row group that has one of `rows` (bool, (B,))."""
    gone = row_group[rows & (row_group >= 0)]
    return torch.where(torch.isin(row_group, gone), torch.full_like(row_group, -1), row_group)


class Refilled:
    """Another curriculum whose groups of equal rewards are replaced by further draws (dynamic sampling)."""

    def __init__(self, inner: Curriculum, refills: int) -> None:
        self.inner, self.refills = inner, refills

    @property
    def attempts(self) -> int:
        return self.inner.attempts + self.refills

    @property
    def cumulative(self) -> bool:
        return is_cumulative(self.inner)

    def inform(self, state: State) -> None:
        if isinstance(self.inner, Informed):
            self.inner.inform(state)

    def draw(self, step: int, attempt: int) -> list[int]:
        return self.inner.draw(step, attempt)

    def accept(self, step: int, index: Sequence[int], reward: Sequence[Sequence[float]]) -> list[bool]:
        accepted = self.inner.accept(step, index, reward)
        if self.cumulative:
            return accepted  # the group that ends a problem's draws is a part of what is trained on
        return [keep and len(set(group)) > 1 for keep, group in zip(accepted, reward, strict=True)]

    def expected(self, problem: int) -> float:
        return expected_value(self.inner, problem)

    def state(self) -> Any:
        return self.inner.state()

    def restore(self, state: Any) -> None:
        self.inner.restore(state)
