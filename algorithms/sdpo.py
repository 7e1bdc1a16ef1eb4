"""Self-distillation policy optimization: a policy that has seen a success of the group teaches the policy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Advantage, Batch, Metric, TeacherPrompt
from grpobench.algorithms.gkd import DIVERGENCE_METRIC
from grpobench.algorithms.self_distillation import (
    SelfDistillation,
    demand_demonstration,
    taught,
)

THINKING = r"(?s)<think>.*?</think>\s*"


@dataclass(frozen=True)
class SDPO(SelfDistillation):
    """Self-Distillation Policy Optimization (arXiv:2601.20802): the teacher reads each completion behind a
    correct one of the same group, so that a reward for the whole becomes a signal for each token.

    Degenerate cases: without a success in its group, a completion is left out, and so is a group's only
    success, which would be shown to itself; a step without any success makes no update; groups in which all
    are right learn from each other. A teacher with the policy's weights and prompt has a divergence and a
    gradient of 0.
    """

    name = "sdpo"
    paper = "Reinforcement Learning via Self-Distillation, arXiv:2601.20802"
    summary = "the policy, shown a correct completion of the group, teaches the policy without it"
    claim = (
        "Turning feedback and successes into a teacher gives a dense signal, so that training needs fewer "
        "rollouts and ends more accurate than with verifiable rewards alone (abstract; its numbers were not "
        "looked up)."
    )
    formula = (
        "loss = 1/Σ|o_i| Σ_i Σ_t { distill_weight·min(π/π_old, ratio_cap)·D_β(π_φ(·|prompt, success of the "
        "group, o_i,<t), π(·|prompt, o_i,<t)) − task_weight·clipped objective of GRPO } over completions "
        "with another success in their group;  φ ← teacher_rate·θ + (1 − teacher_rate)·φ after each step"
    )
    departures = (
        "The divergence covers the whole vocabulary; the authors take the policy's 100 likeliest tokens and "
        "what is left as one more. What an environment says about a wrong answer is not shown: tasks here "
        "give a verdict and no such text. A success whose prompt would exceed the model's context is not "
        "shown, where they cut the prompt at 10,240 tokens. threshold is 1 as in their README and in TRL; "
        "their actor.yaml has 0.5. The template says what theirs says, in other words. Their trust-region "
        "teacher is not here. With task_weight above 0 completions without a teacher stay in the average."
    )
    evidence = (
        "verified: loss, masks, defaults and the choice of successes in the authors' code "
        "(lasgroup/SDPO@0e6d510, verl/trainer/ppo/core_algos.py, verl/trainer/ppo/ray_trainer.py, "
        "verl/trainer/config/actor/actor.yaml, verl/workers/actor/dp_actor.py), whose loss is restated in a "
        "test; value and gradient equal TRL 1.16's functions; the paper itself was not read"
    )
    cost = "one forward pass of the teacher over its longer prompts in each update; the average's weights"
    metrics = (
        *parts.CLIP_METRICS,
        *parts.KL_METRICS,
        DIVERGENCE_METRIC,
        Metric("sdpo/taught", "share of rows", "completions with another success in their group", "higher"),
    )

    averaging: parts.Averaging = "token_mean"
    template: str = (
        "{prompt}\n\nA correct answer to this:\n\n{demonstration}\n\nNow solve the problem as it was given "
        "above.\n"
    )
    divergence_beta: float = 0.5
    ratio_cap: float = 2.0
    threshold: float = 1.0
    """Least reward of a completion that is shown as a success."""
    cut_thinking: bool = True
    """Whether a success is shown without what it has between ``<think>`` and ``</think>``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_demonstration(self.template)
        parts.demand_finite(threshold=self.threshold)

    @property
    def minimum_group(self) -> int:  # type: ignore[override]
        return 2

    @property
    def teacher_prompt(self) -> TeacherPrompt | None:
        cut = THINKING if self.cut_thinking else ""
        return TeacherPrompt(self.template, "success", self.threshold, cut)

    def observe(self, batch: Batch, signal: Advantage) -> dict[str, float]:
        share = taught(batch).double().mean().item() if len(batch) else math.nan
        return {**super().observe(batch, signal), "sdpo/taught": share}
