"""The task of plain sentences: its splits, its verdicts, and the loss against transformers' own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers.whole_runs import configure, run
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpobench.runs.models import nano
from grpobench.runs.settings.config import EvaluateConfig, TrainConfig
from grpobench.tasks.text import PlainText, exchanged

TASK = PlainText()
NANO = Path(nano.__file__).parent / "policies" / "nano"


def test_sentences_are_plain_short_and_in_one_split_each() -> None:
    validation, test = TASK.problems("validation"), TASK.problems("test")
    assert (len(validation), len(test), len(TASK.problems("train"))) == (50, 50, 0)
    sentences = [str(problem.truth) for problem in (*validation, *test)]
    assert len({*sentences}) == 100
    assert all(text.isascii() and text.endswith(".") and 7 <= len(text.split()) <= 16 for text in sentences)


def test_the_other_candidate_has_the_same_words_in_another_order() -> None:
    assert exchanged("a b c d e") == "a c b d e"
    for problem in TASK.problems("test"):
        sentence, other = TASK.candidates(problem)
        assert sentence != other and sorted(sentence.split()) == sorted(other.split())


def test_the_loss_is_that_of_the_sentence_and_the_likelier_one_decides() -> None:
    problem = TASK.problems("test")[0]
    assert TASK.choose(problem, [-10.0, -12.0], [4, 4]).scores == {"correct": 1.0, "loss": 2.5}
    assert TASK.choose(problem, [-12.0, -10.0], [4, 5]).scores == {"correct": 0.0, "loss": 3.0}


def test_a_run_logs_the_loss_that_transformers_computes(tmp_path: Path) -> None:
    """Before training. The policy has no start token, so that a sentence follows the end token."""
    evaluate = EvaluateConfig(problems=3, samples=0, test_problems=2, also={"text": {}})
    steps = TrainConfig(steps=0, prompts_per_step=4, group_size=4)
    (row,) = run(configure("nano", evaluate=evaluate, train=steps), tmp_path / "run")
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(NANO, dtype=torch.float32),
        AutoTokenizer.from_pretrained(NANO),
    )
    for split, count in (("validation", 3), ("test", 2)):
        losses = []
        for problem in TASK.problems(split)[:count]:  # type: ignore[arg-type]
            ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer.encode(problem.truth)]])
            with torch.no_grad():
                losses.append(model(ids, labels=ids).loss.item())
        expected = math.fsum(losses) / count
        # Both in float32; only the order of sums differs.
        assert row[f"also/text/{split}/likelihood/loss"] == pytest.approx(expected, rel=1e-5)
