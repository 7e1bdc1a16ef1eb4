"""Base of the tasks whose completions end in an answer that has a value."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from grpobench.tasks.grading.algebra import OUTCOMES, Comparison
from grpobench.tasks.grading.extraction import ExtractedAnswer, How, extract
from grpobench.tasks.grading.final_answer import compare_all, normalize, number
from grpobench.tasks.grading.latex import clean
from grpobench.tasks.prompts.templates import template, template_fault
from grpobench.tasks.task import BatchTask, Problem, Verdict


@dataclass(frozen=True)
class Valued(BatchTask):
    """A problem's truth is ``{"answer": ..., ...}``. The scores are `correct` and `format`, plus the task's
    own."""

    scores: ClassVar[tuple[str, ...]] = ("correct", "format")
    ways: ClassVar[tuple[How, ...]]
    """Where to look for the final answer, in this order."""

    @abstractmethod
    def formatted(self, extracted: ExtractedAnswer) -> bool:
        """Whether an answer is where the prompt asks for it."""

    def find(self, completion: str) -> ExtractedAnswer | None:
        """The final answer of a completion."""
        return extract(completion, self.ways)

    def opening(self) -> str:
        """The words with which a prompt begins to state its problem; empty if they are not known."""
        return ""

    def answer_part(self, completion: str, opening: str) -> str:
        """A completion without what follows its answer from a line that opens another problem: a base model
        knows no end of its turn and goes on with the next problem, whose answer is none to this one."""
        first, separator, _ = completion.partition(f"\n{opening}") if opening else (completion, "", "")
        return first if separator and self.find(first) else completion

    def reasoned(self, completion: str, extracted: ExtractedAnswer) -> Mapping[str, float]:
        """Further scores of the reasoning before an answer; all 0 if there is no answer."""
        return {}

    def grade_episodes(self, pairs: Sequence[tuple[Problem, Sequence[str]]]) -> list[Verdict]:
        """Questions that need algebra are asked for all problems at once."""
        opening = self.opening()
        texts = [self.answer_part(turns[-1] if turns else "", opening) for _, turns in pairs]
        answers = [self.find(text) for text in texts]
        stated = [
            (str(problem.truth["answer"]), answer.text)
            for (problem, _), answer in zip(pairs, answers, strict=True)
            if answer is not None
        ]
        compared = iter(compare_all(stated))
        return [
            self._verdict(text, answer, next(compared) if answer else "different")
            for text, answer in zip(texts, answers, strict=True)
        ]

    def _verdict(self, completion: str, extracted: ExtractedAnswer | None, comparison: Comparison) -> Verdict:
        if extracted is None:
            return Verdict(dict.fromkeys(self.scores, 0.0), None, "unparsable")
        scores = {"correct": float(comparison == "equal"), "format": float(self.formatted(extracted))}
        scores |= self.reasoned(completion, extracted)
        spelling = clean(extracted.text)
        value = number(normalize(spelling))
        return Verdict(scores, spelling if value is None else str(value), OUTCOMES[comparison])


@dataclass(frozen=True)
class Answered(Valued):
    """The same with a prompt from a template."""

    template: str = "boxed"
    """The prompt: a file of `tasks/prompts` by name, or your own by its path ending in .txt."""

    def opening(self) -> str:
        return template(self.template).opening

    def missing(self) -> str:
        """Missing data, or an invalid template."""
        return template_fault(self.template) or super().missing()
