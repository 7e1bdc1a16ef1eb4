"""On-policy context distillation: a teacher that reads an instruction teaches the policy to do without it."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.algorithms.algorithm import TeacherPrompt
from grpobench.algorithms.self_distillation import SelfDistillation, Teacher


@dataclass(frozen=True)
class OPCD(SelfDistillation):
    """On-Policy Context Distillation (arXiv:2602.12275; context distillation: arXiv:2209.15189). The teacher
    is the initial policy, or another model, behind a template that adds an instruction, examples or, with
    ``{demonstration}``, the task's reference answer.

    Degenerate cases: at the start, with the template ``{prompt}``, divergence and gradient are 0, and then
    they hold the policy where it began; a group of one or of equal rewards learns like any other; an empty
    completion has no term.
    """

    name = "opcd"
    paper = "On-Policy Context Distillation for Language Models, arXiv:2602.12275"
    summary = "the initial policy with an instruction or a solution in its prompt teaches the policy without"
    claim = (
        "Learning on its own rollouts takes what a context teaches into the weights better than distillation "
        "on the teacher's completions, and keeps other abilities better (abstract; its numbers were not "
        "looked up)."
    )
    formula = (
        "loss = mean_i 1/|o_i| Σ_t { distill_weight·D_β(π_0(·|template with the prompt, o_<t), "
        "π(·|prompt, o_<t)) − task_weight·clipped objective of GRPO };  D_1 = KL(π‖π_0)"
    )
    departures = (
        "The template's instruction is ours: the paper distills optimized system prompts and lessons that a "
        "model has drawn from its own solutions, neither of which a task has; put yours into the template. "
        "The divergence covers the vocabulary; the paper, by accounts of it, takes the likeliest tokens. "
        "Instructions are in the user's message, not in one of the system. task_weight is ours."
    )
    evidence = (
        "reconstruction: of the paper the abstract and the beginning of the introduction were read (the "
        "policy's own completions, the reverse KL to a teacher with a context); the average and the frozen "
        "teacher are second-hand. Value and gradient of the divergence equal TRL 1.16's"
    )
    cost = "one forward pass of the initial policy over its longer prompts in each update"

    template: str = (
        "Work in small steps and check each of them. Then state the answer in the form that is asked for."
        "\n\n{prompt}"
    )
    teacher: Teacher = "initial"

    @property
    def teacher_prompt(self) -> TeacherPrompt | None:
        return TeacherPrompt(self.template, "reference" if "{demonstration}" in self.template else "nothing")
