"""GAGPO: GAE over turns, with the mean return of the turns that began in a state as its value."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Loss, ModelOutput, Models, Tokenwise
from grpobench.algorithms.gigpo import AnchoredTurns
from grpobench.algorithms.turns import Credit, states_of, turns_of


@dataclass(frozen=True)
class GAGPO(AnchoredTurns):
    """Generalized Advantage Grouped Policy Optimization (arXiv:2605.13217), for tasks of several turns.

    A state's value is the mean return of the group's turns that began in it, so no critic is trained. With
    C_k = R_k − V_k, the return above the value, Â_k = C_k − γ(1 − λ) Σ_{l≥1} (γλ)^(l−1) C_k+l: what later
    turns did is taken from the earlier ones.
    Degenerate cases: with trace = 1, Â_k is C_k; in tasks of one turn it equals GSPO with these settings up
    to rounding; C_k is 0 for a turn whose state no other one shares, so that without recurring states the
    only first turns learn; equal rewards with discount = 1 and turn_rewards = 0 have advantage 0, and so
    does a group of one episode that returns to no state.
    """

    name = "gagpo"
    label = "GAGPO"
    paper = "GAGPO: Generalized Advantage Grouped Policy Optimization, arXiv:2605.13217"
    summary = "GAE over turns, where a state's value is the mean return of turns that began in it"
    claim = (
        "Temporal credit without a critic beats PPO, RLOO, GRPO and GiGPO: 93.5 % on ALFWorld with "
        "Qwen2.5-1.5B, where the best of them has 88.1, and 95.6 with 7B against 88.8; 78.1 against 66.4 and "
        "77.5 against 73.3 on WebShop (numbers second-hand)."
    )
    formula = (
        "R_ik = Σ_{j≥k} discount^(j − k)·ρ_ij for turn k of K_i, with ρ as in gigpo;  V_ik = mean R over all "
        "turns of the group's episodes that began in the state of turn k, 0 after the last;  δ_ik = ρ_ik + "
        "discount·V_i,k+1 − V_ik;  Â_ik = δ_ik + discount·trace·Â_i,k+1;  A_ik = (Â_ik − mean Â)/(std Â + ε) "
        "over all turns of the group;  s_ik = exp(1/|o_ik| Σ_t log ρ_t) over the turn's tokens;  "
        "loss = −1/N Σ_ik min(s_ik A_ik, clip(s_ik, 1−clip_low, 1+clip_high) A_ik) over N turns"
    )
    departures = (
        "A state is known by what stands before the turn, as in gigpo, whose page says how that and episodes "
        "as rows differ from verl-agent. A KL that is subtracted from advantages stays that of each token. "
        "γ and λ are the defaults of UCOB, a repository of others that has GAGPO; the deviation has one "
        "degree of freedom less (ddof = 1), UCOB's none; clip range and β are those of GiGPO's script, since "
        "the paper's could not be read. UCOB's trainer hands the estimator the reward of the whole episode "
        "as that of each of its turns; here, as its formula says, a turn has its own."
    )
    evidence = (
        "reconstruction: the paper's abstract, and a summary that has the mean return as value, the "
        "recursion, groupwise normalization and the length-normalized ratio of actions; value and gradient "
        "equal another's code (TU2021/UCOB@d38292c, gigpo/core_gigpo.py: compute_gagpo_outcome_advantage, "
        "verl/trainer/ppo/core_algos.py: compute_policy_loss_gspo on turns as rows), restated in the tests; "
        "SirjanSingh/zombiee-v2@9e7cf48, training/train_closed_loop.py has the same recursion, with states "
        "shared by groups. The authors' code was not found"
    )

    averaging: parts.Averaging = "turn_mean"
    trace: float = 0.8
    """λ: with 0 a turn is credited with the rise of the value until the next turn, with 1 with its return
    less its state's value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parts.demand_unit(trace=self.trace)

    def advantage(self, batch: Batch, models: Models) -> Tokenwise:
        turns = turns_of(batch.completion_mask)
        returns = Credit("anchored", self.discount, self.turn_rewards).returns(batch, turns)
        state = states_of(batch, turns, self.anchor)
        # δ of these equals ρ_k + γV_k+1 − V_k, and is exactly 0 for states that are alone: what rounding left
        # of it, a division by the deviation of a group of such turns would blow up.
        surplus = turns.spread(parts.centered(returns, state, parts.group_mean(returns, state)))
        temporal = parts.generalized_advantage(
            torch.zeros_like(surplus), -surplus, turns.first, self.discount, self.trace
        )
        return turns.spread(
            parts.group_advantage(
                temporal[turns.first],
                batch.group[turns.row],
                self.baseline,
                self.scale,
                self.ddof,
                self.epsilon,
            )
        )

    def objective(self, batch: Batch, signal: Advantage, now: ModelOutput) -> Loss:
        ratio = parts.turn_mean(now.logp - batch.old_logp, batch.completion_mask).exp()
        terms = parts.clipped_objective(
            ratio, signal.advantage, self.clip_low, self.clip_high, self.dual_clip
        )
        return Loss(terms, parts.clip_shares(ratio, signal.advantage, self.clip_low, self.clip_high))
