"""Plain English sentences, whose loss shows what training does to a policy's language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from grpobench.tasks.data import bounded
from grpobench.tasks.task import Problem, Split, Task, Verdict

SENTENCES = Path(__file__).with_name("sentences.txt")


@dataclass(frozen=True)
class PlainText(Task):
    """A sentence, and the same with two neighboring words exchanged. By likelihood alone, after the start
    token: `loss` is −log p / tokens of the sentence in nats, and `correct` is 1 if the policy finds it
    likelier than the other."""

    name = "text"
    source = "100 sentences written for grpobench (Apache-2.0)"
    summary = "the loss on plain English sentences; evaluation only"
    max_completion_tokens = 64
    splits = ("validation", "test")
    modes = ("likelihood",)

    def problems(self, split: Split) -> Sequence[Problem]:
        """Lines of sentences.txt in turn: every second one is of validation, the others of test."""
        return _problems()[self.splits.index(split) :: 2] if split in self.splits else ()

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        answers = [completion.strip() for completion in completions]
        return [Verdict({"correct": float(answer == problem.truth)}, answer) for answer in answers]

    def demonstrate(self, problem: Problem) -> str:
        return str(problem.truth)

    def corrupt(self, problem: Problem) -> str:
        return exchanged(str(problem.truth))

    def premise(self, problem: Problem) -> str:
        return ""

    def candidates(self, problem: Problem) -> tuple[str, ...]:
        return self.demonstrate(problem), self.corrupt(problem)

    def choose(self, problem: Problem, logp: Sequence[float], tokens: Sequence[int]) -> Verdict:
        verdict = super().choose(problem, logp, tokens)
        return replace(verdict, scores={**verdict.scores, "loss": -logp[0] / tokens[0]})


def exchanged(sentence: str) -> str:
    """The sentence with its middle word and the one before it exchanged."""
    words = sentence.split()
    middle = len(words) // 2
    words[middle - 1 : middle + 1] = words[middle], words[middle - 1]
    return " ".join(words)


@cache
def _problems() -> tuple[Problem, ...]:
    sentences = bounded.read_text(SENTENCES).splitlines()
    return tuple(
        Problem(f"sentence-{number}", f"Exchange two words: {exchanged(sentence)}", sentence)
        for number, sentence in enumerate(sentences, 1)
    )
