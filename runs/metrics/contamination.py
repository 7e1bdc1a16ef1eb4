"""The contamination probe: how many test problems a policy completes word for word from their first part."""

# After arXiv:2507.10532, which gives a base model the first 60 % of each problem and decodes greedily. The
# prompt never has a chat template. Words that all problems share at their beginning or end are left out: they
# are the harness's template, not the problem. A problem counts if its ending is long and no other problem
# has the same ending, because short and shared endings are guessed, not remembered.

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from grpobench.runs.models.loading import Loaded
from grpobench.runs.sample.drawn import draw
from grpobench.runs.sample.sampler import Request, Sampler
from grpobench.tasks.task import Problem

FIRST = 0.6
"""Share of a problem's words that the policy reads."""
FEWEST_WORDS = 8
"""Shortest ending that says something."""
MOST_WORDS = 100
"""Words of a longer ending that are compared: enough to tell, and a bound on the cost."""
FEWEST_PROBLEMS = 50
"""Fewest problems with such an ending that give a number: of 50, a tenth or more are completed exactly with a
probability of 4 % where 3.8 % are to be expected, as of Llama-3.1-8B in the paper (binomial)."""
SLACK = 8
"""Tokens beyond the longest ending, for a policy that splits the same words into more tokens."""


@dataclass(frozen=True)
class PartialProblem:
    """A problem's text, cut in two."""

    first: str
    ending: tuple[str, ...]
    """The words after it, at most `MOST_WORDS`."""


def measure_contamination(problems: Sequence[Problem], loaded: Loaded, sampler: Sampler) -> dict[str, float]:
    """``contamination/<metric>`` of the policy that is sampled; with fewer than `FEWEST_PROBLEMS` problems
    that are long enough, only their number."""
    cut = cut_problems([_question(problem) for problem in problems])
    numbers = {"contamination/problems": float(len(cut))}
    if len(cut) < FEWEST_PROBLEMS:
        return numbers
    encode = loaded.tokenizer.encode
    prompts = [tuple(encode(problem.first)) for problem in cut]
    longest = max(len(encode(" " + " ".join(problem.ending), add_special_tokens=False)) for problem in cut)
    limit = min(longest + SLACK, loaded.context - max(map(len, prompts)))
    rollouts = draw(sampler, [Request(prompt, (0,)) for prompt in prompts], limit, temperature=0.0)
    written = [loaded.decode(rollout.completion).split() for (rollout,) in rollouts]
    endings = [problem.ending for problem in cut]
    half = len(endings) // 2
    # The chance level: the same completions beside endings that they cannot be remembered from.
    for suffix, compared in (("", endings), ("_chance", endings[half:] + endings[:half])):
        pairs = list(zip(written, compared, strict=True))
        exact = [begins_with(words, ending) for words, ending in pairs]
        overlap = [rouge_l(words[: len(ending)], ending) for words, ending in pairs]
        numbers[f"contamination/exact{suffix}"] = float(np.mean(exact))
        numbers[f"contamination/rouge_l{suffix}"] = float(np.mean(overlap))
    return numbers


def _question(problem: Problem) -> str:
    """A problem without a system message and examples, which stand in earlier messages."""
    return problem.prompt if isinstance(problem.prompt, str) else problem.prompt[-1].content


def cut_problems(texts: Sequence[str]) -> list[PartialProblem]:
    """The texts that say something, cut after `FIRST` of the words that not all of them share."""
    # White space stands before its word, as in most vocabularies, so that the first part ends with a word.
    split = [re.findall(r"\s*\S+", text) for text in texts]
    head, tail = _shared(split), _shared([words[::-1] for words in split])
    cut = []
    for words in (words[head : len(words) - tail] for words in split):
        read = round(FIRST * len(words))
        ending = tuple(word.strip() for word in words[read:][:MOST_WORDS])
        if len(ending) >= FEWEST_WORDS:
            cut.append(PartialProblem("".join(words[:read]).lstrip(), ending))
    counts = Counter(problem.ending for problem in cut)
    return [problem for problem in cut if counts[problem.ending] == 1]


def _shared(texts: Sequence[Sequence[str]]) -> int:
    """The number of words that all texts begin with."""
    alike = takewhile(lambda words: len({word.strip() for word in words}) == 1, zip(*texts, strict=False))
    return sum(1 for _ in alike)


def begins_with(words: Sequence[str], ending: Sequence[str]) -> bool:
    """Whether a completion begins with an ending, whatever the white space and what follows."""
    return " ".join(words).startswith(" ".join(ending))


def rouge_l(words: Sequence[str], reference: Sequence[str]) -> float:
    """ROUGE-L (Lin, 2004): F1 of the longest common subsequence of words; 0 if a side is empty."""
    longest = [0] * (len(reference) + 1)
    for word in words:
        diagonal = 0
        for j, other in enumerate(reference, 1):
            longer = diagonal + 1 if word == other else max(longest[j], longest[j - 1])
            diagonal, longest[j] = longest[j], longer
    return 2 * longest[-1] / max(1, len(words) + len(reference))
