"""Self-distillation fine-tuning: the policy that has seen a reference answer teaches the one without."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms.algorithm import TeacherPrompt
from grpobench.algorithms.self_distillation import (
    SelfDistillation,
    demand_demonstration,
)


@dataclass(frozen=True)
class SDFT(SelfDistillation):
    """Self-Distillation Fine-Tuning (arXiv:2601.19897): learning from reference answers on the policy's own
    completions. No reward is needed, and no second model: the teacher is an average of the policy's weights.

    Degenerate cases: a teacher with the policy's weights and prompt has a divergence and a gradient of 0; a
    group of one or of equal rewards learns like any other; a completion of no more than skip_tokens tokens
    has no term.
    """

    name = "sdft"
    paper = "Self-Distillation Enables Continual Learning, arXiv:2601.19897"
    summary = "the policy, shown the reference answer, teaches the policy without it; no reward needed"
    claim = (
        "A policy that learns from itself, shown a demonstration, learns new skills more accurately than by "
        "supervised fine-tuning and forgets far less of what it could (abstract; its numbers were not looked "
        "up)."
    )
    formula = (
        "loss = mean_i 1/|o_i| Σ_t { distill_weight·D_β(π_φ(·|prompt, reference answer, o_<t), "
        "π(·|prompt, o_<t)) − task_weight·clipped objective of GRPO };  φ ← teacher_rate·θ + "
        "(1 − teacher_rate)·φ after each step;  D_0 = KL(teacher‖π), D_1 = KL(π‖teacher)"
    )
    departures = (
        "The paper derives the reverse KL; its authors later stated in their repository that all its results "
        "come from the forward KL, the default here (divergence_beta = 1 is the reverse KL; "
        "TRL's default is 0.5). skip_tokens = 3 and teacher_rate = 0.01 are those of the authors' script; "
        "the paper searched 0.01, 0.02 and 0.05. The template says what theirs says, in other words. "
        "They sample one completion of a problem; groups are what the recipe asks for. The correction of "
        "their sampler's probabilities is sampler.correction here. Both distributions have the sampling "
        "temperature. task_weight is ours."
    )
    evidence = (
        "verified: the paper's text (eqs. 1 and 2, appendix A.1, algorithm 1, table 3) in a transcript, and "
        "the authors' script, loss and README in copies (RohanAwhad/idan-Self-Distillation@2458e3a and "
        "@f802028), since their own repository could not be read; value and gradient equal TRL 1.16's "
        "functions, and the loss as a whole that of its SDFTTrainer"
    )
    cost = "one forward pass of the teacher over its longer prompts in each update; the average's weights"

    template: str = (
        "{prompt}\n\nAn example of an answer to this:\n{demonstration}\n\nNow give an answer of your own, "
        "with the thinking that leads to it:\n"
    )
    teacher_rate: float = 0.01
    divergence_beta: float = 0.0
    skip_tokens: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        demand_demonstration(self.template)

    @property
    def teacher_prompt(self) -> TeacherPrompt | None:
        return TeacherPrompt(self.template, "reference")
