"""Reward functions with TRL's signature: what they are given, what they may answer, and TRL's own numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.graded import LOADED, TOKENIZER, make_rollouts
from helpers.toys import characters, close, rollouts

from grpobench.algorithms.gdpo import GDPO
from grpobench.runs.reward.functions import FunctionError, RewardFunction, RewardInput
from grpobench.runs.reward.grader import Grader
from grpobench.runs.sample.rollouts import Group
from grpobench.runs.settings.config import RewardConfig
from grpobench.tasks.kinds.jsonl import ExactRows
from grpobench.tasks.task import Task

ROWS = '{"question": "1+1", "answer": "2", "level": 1}\n{"question": "2+2", "answer": "4", "level": 2}\n'


def brevity(prompts: Any, completions: Any, completion_ids: Any, level: Any, **_: Any) -> list[float | None]:
    """Fewer tokens, and characters of the prompt; nothing for the second level."""
    pairs = zip(prompts, completions, completion_ids, level, strict=True)
    return [
        None if n == 2 and text.startswith("a") else len(p) / 8 - len(ids) - len(text) / 4
        for p, text, ids, n in pairs
    ]


def of_messages(prompts: Any, completions: Any, **_: Any) -> list[float]:
    assert [prompt[0]["role"] for prompt in prompts] == ["user"] * len(prompts)
    return [float(len(completion[0]["content"])) for completion in completions]


async def later(completions: Any, trainer_state: Any, log_metric: Any, log_extra: Any, **_: Any) -> Any:
    log_metric("length", 1.0)
    log_extra("kept", completions)
    return [trainer_state.global_step / trainer_state.max_steps for _ in completions]


def make_reward_inputs(*texts: str, level: int = 1) -> list[RewardInput]:
    return [
        RewardInput("Q", text, tuple(range(len(text))), {"level": level, "completions": "hidden"})
        for text in texts
    ]


def task(folder: Path) -> Task:
    (folder / "problems.jsonl").write_text(ROWS)
    return ExactRows(name="mine", jsonl=folder / "problems.jsonl", prompt="{question}=", validation=0, test=0)


def groups(task: Task, weights: dict[str, float], function: Any, *texts: str) -> list[Group]:
    """Each text as an answer to each problem of the task."""
    problems = task.problems("train")
    sampled = [make_rollouts(*texts) for _ in problems]
    functions = {"mine:f": RewardFunction("mine:f", function)}
    reward = RewardConfig(kind="sum", weights=weights)
    return Grader(task, reward, LOADED, 0, functions, 10).groups(["3/0", "3/0"], problems, sampled)


def test_rewards_are_those_of_trls_own_trainer(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="trl is the reference: pip install 'grpobench[trl]'")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM

    mine = task(tmp_path)
    ours = groups(mine, {"mine:f": 1.0}, brevity, "2", "a4", "aaa", "44")
    problems = [problem for problem in mine.problems("train") for _ in range(4)]
    texts = ["2", "a4", "aaa", "44"] * 2
    inputs = [{"prompt": problem.prompt, **mine.columns(problem)} for problem in problems]
    trainer = trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(characters(tmp_path / "policy")),
        reward_funcs=brevity,
        args=trl.GRPOConfig(output_dir=str(tmp_path), report_to="none", use_cpu=True, bf16=False),
        train_dataset=Dataset.from_list(inputs),
        processing_class=TOKENIZER,
    )
    tokens = [TOKENIZER.encode(text) for text in texts]
    theirs = trainer._calculate_rewards(inputs, [trl_input["prompt"] for trl_input in inputs], texts, tokens)
    our_rewards = [value for group in ours for value in group.components["mine:f"]]
    assert sum(map(math.isnan, our_rewards)) == 2  # where the function answered None
    torch.testing.assert_close(torch.tensor(our_rewards), theirs[:, 0], equal_nan=True, rtol=0, atol=0)


def test_what_does_not_apply_counts_for_nothing(tmp_path: Path) -> None:
    def picky(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float | None]:
        return [None if a == "2" else 3.0 for a in answer]

    first, second = groups(task(tmp_path), {"correct": 1.0, "mine:f": 0.5}, picky, "2", "4")
    assert [list(first.reward), list(second.reward)] == [[1.0, 0.0], [1.5, 2.5]]
    assert all(map(math.isnan, first.components["mine:f"]))
    assert [verdict.outcome for verdict in first.verdicts] == ["graded", "graded"]
    # with nothing that applies a completion is left out, like one that TRL cannot score
    first, second = groups(task(tmp_path), {"mine:f": 0.5}, picky, "2", "4")
    assert [verdict.outcome for verdict in first.verdicts] == ["infra_error", "infra_error"]
    assert list(second.reward) == [1.5, 1.5]


def test_leaving_out_what_does_not_apply_is_no_failure(tmp_path: Path) -> None:
    nothing = lambda completions, **_: [None] * len(completions)  # noqa: E731
    for _ in range(100):  # more than the failures that a run bears
        groups(task(tmp_path), {"mine:f": 1.0}, nothing, "2", "4", "5")


def test_gdpo_normalizes_a_reward_where_it_applies(tmp_path: Path) -> None:
    """A score of NaN says nothing; the others of its group are normalized among themselves."""
    nan = math.nan
    batch = rollouts([[2, 2, 2, 2]], [[1.0, 3.0, 0.0, 4.0]])
    scores = {"one": torch.tensor([1.0, 3.0, nan, nan]), "two": torch.tensor([nan, nan, nan, 4.0])}
    scores["none"] = torch.full((4,), nan)
    scored_batch = dataclasses.replace(batch, scores=scores, weights=dict.fromkeys(scores, 1.0))
    advantage = GDPO(epsilon=1e-9).advantage(scored_batch, None)  # type: ignore[arg-type]
    # (1 − 2)/√2 and (3 − 2)/√2; one value alone has no spread; then over √(Σ S²/3) = √(1/3)
    close(advantage, [-math.sqrt(1.5), math.sqrt(1.5), 0.0, 0.0], rtol=1e-6, atol=1e-7)  # float32


def test_messages_and_coroutines_are_served() -> None:
    function = RewardFunction("mine:f", of_messages, "messages")
    assert function(make_reward_inputs("abc", "")) == [3.0, 0.0]
    assert RewardFunction("mine:f", later)(make_reward_inputs("a", "b"), done=2, steps=8) == [0.25, 0.25]


def test_a_step_tells_how_many_came_before(tmp_path: Path) -> None:
    first, _ = groups(task(tmp_path), {"mine:f": 1.0}, later, "2")
    assert first.components["mine:f"] == [0.2]  # 2 of 10 steps, in the stream 3/0


def failing(completions: Any, **_: Any) -> list[float]:
    return [1 / 0 for _ in completions]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (failing, "the reward mine:f raised ZeroDivisionError: division by zero"),
        (lambda prompts: [1.0], "got an unexpected keyword argument"),
        (lambda completions, **_: [1.0], "returned 1 rewards for 2 completions"),
        (lambda completions, **_: [1.0, math.nan], "returned nan for the completion 'b'"),
        (lambda completions, **_: [1.0, math.inf], "returned inf for the completion 'b'"),
        (lambda completions, **_: [1.0, "high"], "returned 'high' for the completion 'b'"),
        (lambda completions, **_: [1.0, "1.0"], "returned '1.0' for the completion 'b'"),
        (lambda completions, **_: [b"1", 1.0], "returned b'1' for the completion 'a'"),
        (
            lambda completions, **_: "12",
            "returned '12' of type str; return a list of 2 numbers, one for each",
        ),
        (lambda completions, **_: {1.0, 2.0}, "returned {1.0, 2.0} of type set; return a list of 2 numbers"),
        (lambda completions, **_: dict.fromkeys((0.5, 1)), "of type dict; return a list of 2 numbers"),
        (lambda completions, **_: None, "returned None of type NoneType; return a list of 2 numbers"),
        (lambda completions, **_: 1.0, "returned 1.0 of type float; return a list of 2 numbers"),
        (lambda completions, **_: torch.tensor(1.0), "returned tensor(1.) of type Tensor; return a list"),
        (lambda completions, **_: (1 / 0 for _ in completions), "raised ZeroDivisionError"),
    ],
)
def test_a_fault_of_a_function_is_no_reward_and_ends_the_run(function: Any, message: str) -> None:
    with pytest.raises(FunctionError) as caught:
        RewardFunction("mine:f", function)(make_reward_inputs("a", "b"))
    assert message in str(caught.value)


def of_text(completions: Sequence[str], **_: Any) -> list[str]:
    return [str(len(text)) for text in completions]


def test_an_answer_that_is_none_is_named_with_the_line_of_its_function() -> None:
    """Texts of digits, which Python reads as numbers, once trained as rewards."""
    line = of_text.__code__.co_firstlineno
    with pytest.raises(FunctionError) as caught:
        RewardFunction("mine:of_text", of_text)(make_reward_inputs("a", "b"))
    assert str(caught.value) == (
        f"test_functions.py:{line} the reward mine:of_text returned '1' for the completion 'a'; "
        "return a finite number, or None if the reward does not apply"
    )


def test_whatever_numbers_stand_in_are_rewards() -> None:
    """As TRL has them: a tensor, an array, a generator, truth values."""
    import numpy as np

    first_input, other = make_reward_inputs("a", "b")
    for answer in (
        (1, 0),
        np.array([1.0, 0.0]),
        torch.tensor([1.0, 0.0]),
        [True, False],
        (x for x in (1, 0)),
    ):
        assert RewardFunction("mine:f", lambda answer=answer, **_: answer)([first_input, other]) == [1.0, 0.0]


def test_a_grader_does_not_swallow_the_fault_of_a_function(tmp_path: Path) -> None:
    with pytest.raises(FunctionError, match="mine:f raised ZeroDivisionError"):
        groups(task(tmp_path), {"correct": 1.0, "mine:f": 0.0}, failing, "2", "4")
