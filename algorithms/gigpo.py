"""GiGPO: GRPO with a second advantage for each turn, among turns that began in the same state."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Metric, Models, Rowwise, Tokenwise
from grpobench.algorithms.policy_gradient import ClippedRatio, GroupNormalized
from grpobench.algorithms.turns import Anchor, Credit, CreditKind, anchored_share, mean_turns


@dataclass(frozen=True)
class AnchoredTurns(GroupNormalized, ClippedRatio):
    """Algorithms that compare turns of a group's episodes that began in the same state."""

    cost = "the reference's forward pass, unless beta is 0"
    credits_turns = False  # it credits turns by itself
    metrics = (
        *parts.CLIP_METRICS,
        *parts.KL_METRICS,
        Metric(
            "advantage/anchored", "share of turns", "turns that share their state with another one", "higher"
        ),
        Metric("advantage/turns", "turns", "mean turns of an episode"),
    )

    beta: float = 0.01
    """Weight of the KL penalty; 0 reads no reference model."""
    epsilon: float = 1e-6
    """Added to the standard deviation."""
    discount: float = 0.95
    """γ: what a reward loses by each turn that it is away."""
    anchor: Anchor = "exchange"
    """What tells the state before a turn: the environment's last reply, the exchange of the policy's last
    turn and the reply to it, or the whole history."""
    turn_rewards: float = 0.0
    """Weight of the environment's rewards of single turns in the episode's reward: as much of it is taken
    from the last turn to theirs. 1 if the reward is the score `return`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(turn_rewards=self.turn_rewards)
        parts.demand_unit(discount=self.discount)

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        return {
            "advantage/anchored": anchored_share(batch, self.anchor),
            "advantage/turns": mean_turns(batch),
        }


@dataclass(frozen=True)
class GiGPO(AnchoredTurns):
    """Group-in-Group Policy Optimization (arXiv:2505.10978), for tasks of several turns.

    Episodes of a problem pass through equal states. What became of the turns that began in one of them, their
    discounted rewards, is normalized like the rewards of episodes, and says which action was the better one.
    Degenerate cases: with step_weight = 0 it is GRPO with these settings, bit for bit; in tasks of one turn
    all turns begin in one state, and the advantage is GRPO's times 1 + step_weight; a turn whose state no
    other one shares has the episode's advantage alone; a group of one episode has advantage 0 unless the
    episode returns to a state; equal rewards other than 0 still prefer the turn with fewer to follow.
    """

    name = "gigpo"
    label = "GiGPO"
    paper = "Group-in-Group Policy Optimization for LLM Agent Training, arXiv:2505.10978"
    summary = "GRPO with a second advantage of each turn among turns that began in the same state"
    claim = (
        "Credit for single turns adds over 12 % on ALFWorld and over 9 % on WebShop to GRPO, at the same "
        "memory and the same rollouts, with Qwen2.5 of 1.5B and 7B (abstract)."
    )
    formula = (
        "R_ik = Σ_{j≥k} discount^(j − k)·ρ_ij for turn k of K_i;  ρ_ij = turn_rewards·r_ij with rewards r_ij "
        "of single turns, ρ_iK besides r_i − turn_rewards·Σ_j r_ij;  A_ikt = (r_i − mean r)/(std r + ε) + "
        "step_weight · (R_ik − mean R)/(std R + ε), the second over all turns of the group's episodes that "
        "began in the state of turn k;  loss as GRPO's, with this advantage"
    )
    departures = (
        "A state is known by what stands before the turn. The authors compare the environment's last "
        "observation (anchor = 'reply') or, as an option, similar ones; our tools answer a call, so that "
        "call and reply together say more (anchor = 'exchange'). With turn_rewards = "
        "0 the last turn has all of the reward; the authors' episode has the sum of its turns' rewards. "
        "Invalid actions cost nothing. They "
        "train on turns as rows of their own, which shows the policy part of its past; here an episode is "
        "one row. They average tokens in each micro-batch; here over the minibatch. verl's dual clip of 3 is "
        "off (dual_clip = 3). A group of one episode has advantage 0, theirs its reward. "
        "A turn in which the policy wrote no token is none here: the replies before and after it are one "
        "reply, it is in no group of turns, and a reward loses nothing by it; the authors have a row for "
        "every step of the environment."
    )
    evidence = (
        "verified: both advantages, discounted returns, the groups of states and ε in the authors' code "
        "(langfengQ/DrMAS@3b556f2, gigpo/core_gigpo.py) and the same in alibaba/ROLL@51e5358, "
        "roll/pipeline/agentic/utils.py; defaults in a copy of the authors' script "
        "(vanzll/verl-agent@3553474, examples/gigpo_trainer/run_alfworld.sh); advantages equal theirs, "
        "restated in the tests; of the paper only the abstract was read"
    )
    averaging: parts.Averaging = "token_mean"
    step_weight: float = 1.0
    """ω, weight of the turn's advantage; 0 is GRPO."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_not_negative(step_weight=self.step_weight)

    def advantage(self, batch: Batch, models: Models) -> Rowwise | Tokenwise:
        kind: CreditKind = "anchored" if self.step_weight else "outcome"
        credit = Credit(kind, self.discount, self.turn_rewards, self.anchor, self.step_weight)
        return credit(super().advantage, batch, models)

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        return super().observe(batch, signal) if self.step_weight else {}
