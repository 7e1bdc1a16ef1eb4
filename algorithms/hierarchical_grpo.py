"""Hierarchical GRPO: proposals are compared within the group, attempts at one within their episode."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Metric, Models, Rowwise, Tokenwise
from grpobench.algorithms.policy_gradient import ClippedRatio
from grpobench.algorithms.turns import turns_of

ATTEMPTS_METRIC = Metric(
    "advantage/attempts", "share of turns", "turns of attempts that have an advantage other than 0", "higher"
)


@dataclass(frozen=True)
class HierarchicalGRPO(ClippedRatio):
    """GRPO for a proposer and its solvers, as prime-rl has it: one policy proposes a problem and attempts it
    several times. The first turns of an episode are the proposal, each later one is an attempt. The proposal
    earns the recipe's reward of the episode and is compared with the group's other proposals; an attempt
    earns the environment's reward of its turn and is compared with the episode's other attempts.

    Degenerate cases: in tasks of one turn it is `dr_grpo` with this averaging, bit for bit; the only attempt
    of an episode has advantage 0, and so have equal attempts and the only proposal of a group; attempts of a
    task that rewards no turns have advantage 0 (`advantage/attempts` is 0).
    """

    name = "hierarchical_grpo"
    label = "hierarchical GRPO"
    paper = "Algorithms: Hierarchical GRPO, documentation of PrimeIntellect-ai/prime-rl@559b447"
    summary = (
        "proposals compared with the group's other proposals, attempts with the episode's other attempts"
    )
    claim = (
        "Proposed problems differ in difficulty and roles in rewards, so that each is to be compared with "
        "its like; no number is published."
    )
    formula = (
        "turn k of episode i, from 0:  A_ik = r_i − mean_j r_j over the group's episodes if k < "
        "proposal_turns;  else A_ik = r_ik − mean_l r_il over the episode's turns l ≥ proposal_turns, r_ik "
        "the environment's reward of the turn;  objective as PPO's"
    )
    departures = (
        "There proposer and solvers are traces with contexts of their own, and an attempt may have several "
        "turns; here they are turns of one episode, so that an attempt reads the proposal and the attempts "
        "before it, and has one turn. Roles have names there, of which a setting says which are compared "
        "within an episode (episode_agents = ['solver']); here the turn's number tells the role. prime-rl's "
        "objective is `dppo`'s with a penalty."
    )
    evidence = (
        "verified: what is compared with what, and centering without division "
        "(PrimeIntellect-ai/prime-rl@559b447, src/prime_rl/orchestrator/algo/hierarchical_grpo.py); "
        "advantages equal that code, and on policy loss and gradient those of "
        "src/prime_rl/trainer/rl/loss.py, restated in the tests"
    )
    metrics = (*parts.CLIP_METRICS, *parts.KL_METRICS, ATTEMPTS_METRIC)
    credits_turns = False  # it credits turns by itself

    averaging: parts.Averaging = "token_mean"
    proposal_turns: int = 1
    """Turns of the policy, from an episode's first, that make the proposal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_count(proposal_turns=self.proposal_turns)
        if self.beta and self.kl_placement == "reward":
            raise ValueError(
                "kl_placement: must be loss or advantage, since the whole episode's KL is no turn's"
            )

    def advantage(self, batch: Batch, models: Models) -> Tokenwise:
        turns = turns_of(batch.completion_mask)
        attempts = turns.before >= self.proposal_turns
        advantage = centered(batch.reward, batch.group)[turns.row]
        if batch.turn_reward is None:
            return turns.spread(advantage.where(~attempts, 0.0))
        reward = turns.total(batch.turn_reward).to(advantage.dtype)[attempts]
        advantage[attempts] = centered(reward, turns.row[attempts])
        return turns.spread(advantage)

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        turns = turns_of(batch.completion_mask)
        advantage = signal.advantage[turns.first][turns.before >= self.proposal_turns]
        return {ATTEMPTS_METRIC.name: (advantage != 0).double().mean().item()}


def centered(reward: Rowwise, group: torch.Tensor) -> Rowwise:
    """Each reward less the mean of its group, (B,)."""
    return parts.centered(reward, group, parts.group_mean(reward, group))
