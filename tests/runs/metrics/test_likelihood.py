"""Locks: log-probabilities of candidates equal those of plain forward passes, whatever the run's temperature
and micro-batches; what a candidate follows; the rows and numbers of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from grpobench.runs.metrics.evaluator import (
    Evaluator,
    Row,
    Scored,
    continuation,
    continuations,
    judge,
    prompt,
    score,
)
from grpobench.runs.metrics.reference import measure_reference
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.episodes import demonstrated
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.settings.config import EvaluateConfig
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.horizon import Horizon
from grpobench.tasks.task import Problem, Split, Task, Verdict


@pytest.fixture(scope="module", params=["nano", "nano-moe"])
def loaded(request: pytest.FixtureRequest) -> Loaded:
    return load(request.param)


@dataclass(frozen=True)
class Choice(Task):
    """Two problems; `behind` is what their candidates follow."""

    name = "choice"
    source = summary = "none"
    scores = ("correct",)
    max_completion_tokens = 4
    splits = ("test",)
    modes = ("likelihood", "greedy")
    behind: str | None = None

    def problems(self, split: Split) -> Sequence[Problem]:
        return [
            Problem("sum", "3+4=", " 7", {"category": "a"}),
            Problem("word", "Who was polite? Ash/Elm/unknown\n", "Elm", {"category": "b"}),
        ]

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return [Verdict({"correct": float(text == problem.truth)}, text) for text in completions]

    def demonstrate(self, problem: Problem) -> str:
        return str(problem.truth)

    def premise(self, problem: Problem) -> str | None:
        return self.behind

    def candidates(self, problem: Problem) -> tuple[str, ...]:
        return (str(problem.truth), "Ash", "a long and unlikely answer")


@torch.no_grad()
def plain(loaded: Loaded, before: Sequence[int], text: Sequence[int]) -> float:
    """Total log-probability by an ordinary forward pass over one sequence, in float64 from the logits on."""
    ids = torch.tensor([[*before, *text]], device=loaded.model.device)
    logp = loaded.model(input_ids=ids).logits[0].double().log_softmax(-1)
    return sum(float(logp[len(before) + i - 1, token]) for i, token in enumerate(text))


@pytest.mark.parametrize("behind", [None, "", "Ash was rude."])
def test_log_probabilities_are_those_of_plain_forward_passes(loaded: Loaded, behind: str | None) -> None:
    task = Choice(behind)
    models = RoleModels(loaded.model, temperature=0.7, budget=24)  # several micro-batches, a tempered policy
    judged = judge(models, loaded, task, task.problems("test"))
    for problem, (verdict, scored) in zip(task.problems("test"), judged, strict=True):
        before = prompt(loaded, problem, behind)
        texts = [continuation(loaded, problem, text) for text in task.candidates(problem)]
        expected = [plain(loaded, before, text) for text in texts]
        # The same float32 logits; only the order of summation differs.
        assert scored.logp == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert scored.tokens == tuple(map(len, texts))
        assert verdict.answer == task.candidates(problem)[expected.index(max(expected))]
    assert models.temperature == 0.7


def test_a_candidate_of_no_premise_follows_the_start_token(loaded: Loaded) -> None:
    start = loaded.tokenizer.bos_token_id
    assert prompt(loaded, Problem("x", "3+4=", None), "")[-1] == (loaded.end[0] if start is None else start)
    assert prompt(loaded, Problem("x", "3+4=", None), None) == loaded.encode("3+4=")


def test_problems_of_unlike_shape_do_not_disturb_each_other(loaded: Loaded) -> None:
    models = RoleModels(loaded.model)
    questions = [((5, 6, 7), [(8,), (9, 10, 11)]), ((4,), [(5, 6, 7, 8)])]
    together, alone = (
        score(models, loaded, questions),
        [score(models, loaded, [question])[0] for question in questions],
    )
    for batched, other in zip(together, alone, strict=True):
        assert batched.logp == pytest.approx(other.logp, abs=1e-5)  # only the shapes of the sums differ
        assert batched.tokens == other.tokens


def test_a_candidate_without_tokens_or_beyond_the_context_is_refused(loaded: Loaded) -> None:
    with pytest.raises(DataError, match="problem x: the candidate '' has no token"):
        continuation(loaded, Problem("x", "", None), "")
    with pytest.raises(DataError, match=f"beyond the model's context of {loaded.context}"):
        score(RoleModels(loaded.model), loaded, [((5,) * loaded.context, [(6,)])])


def evaluate(loaded: Loaded, **settings: Any) -> tuple[list[Row], dict[str, float]]:
    """Rows and numbers of the two problems."""
    models = RoleModels(loaded.model)
    sampler = HFSampler(models, loaded.end, loaded.pad, 8, loaded.context)
    config = EvaluateConfig(test_problems=2, **settings)
    return Evaluator(Choice(), loaded, sampler, config, 0, 4, models=models).evaluate(3, "test")


def test_an_evaluation_has_rows_from_which_its_numbers_follow(loaded: Loaded) -> None:
    rows, summary = evaluate(loaded, samples=2)
    assert [row["mode"] for row in rows] == ["greedy", "greedy", "likelihood", "likelihood"]
    likely = [row for row in rows if row["mode"] == "likelihood"]
    assert summary["eval/test/likelihood/correct"] == sum(row["scores"]["correct"] for row in likely) / 2
    assert "eval/test/likelihood/length" not in summary
    judged = judge(RoleModels(loaded.model), loaded, Choice(), Choice().problems("test"))
    for row, (_, scored) in zip(likely, judged, strict=True):
        assert Scored(tuple(row["logp"]), tuple(row["tokens"])).tokens == scored.tokens
        assert row["logp"] == pytest.approx(scored.logp)
        assert all(math.isfinite(value) and value < 0 for value in row["logp"])
    rows, _ = evaluate(loaded, samples=2, likelihood=False)
    assert {row["mode"] for row in rows} == {"greedy"}


@pytest.mark.parametrize("task", [Choice(), Horizon(train=1)], ids=["one turn", "several turns"])
def test_the_log_probability_of_references_is_that_of_plain_forward_passes(
    loaded: Loaded, task: Task
) -> None:
    """Per token of the policy's turns with their end tokens, each problem alike; at temperature 1."""
    models = RoleModels(loaded.model, temperature=0.7, budget=64)
    problems = task.problems("test")[:3]
    expected = []
    for problem in problems:
        rollout = demonstrated(loaded, task, problem)
        ids = torch.tensor([[*rollout.prompt, *rollout.completion]])
        with torch.no_grad():
            logp = loaded.model(input_ids=ids).logits[0].double().log_softmax(-1)
        start = len(rollout.prompt)
        written = rollout.completion_mask or (True,) * rollout.length
        values = [
            float(logp[start + i - 1, token]) for i, token in enumerate(rollout.completion) if written[i]
        ]
        expected.append(sum(values) / len(values))
    # The same float32 logits; only the order of summation differs.
    value = measure_reference(models, loaded, task, problems)
    assert value == pytest.approx(sum(expected) / len(expected), rel=1e-4)
    assert models.temperature == 0.7


def test_an_evaluation_has_the_log_probability_of_references_if_it_is_asked_for(loaded: Loaded) -> None:
    rows, summary = evaluate(loaded, samples=0, reference_likelihood=True)
    problems = Choice().problems("test")
    expected = measure_reference(RoleModels(loaded.model), loaded, Choice(), problems)
    assert summary.pop("reference/test/logp") == expected
    assert evaluate(loaded, samples=0) == (rows, summary)


def test_answers_of_chat_models_begin_without_a_space() -> None:
    """Candidates and demonstrations alike. A premise is no conversation: its candidates keep the space."""
    plain, chat = load("nano"), load("nano")
    chat.tokenizer.chat_template = "{{ messages[0].content }}\n"
    problem, task = Choice().problems("test")[0], Choice()
    assert continuations(plain, task, problem)[0] == " 7" and continuations(chat, task, problem)[0] == "7"
    assert continuations(chat, Choice("a premise"), problem)[0] == " 7"
    written = [loaded.decode(demonstrated(loaded, task, problem).completion) for loaded in (plain, chat)]
    assert written == [" 7", "7"]
