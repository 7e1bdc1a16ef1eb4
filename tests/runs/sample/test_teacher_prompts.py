"""What a teacher reads: which answers it is shown, by whose rule, and what happens where there are none or no
room."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Letters

from grpobench.algorithms.algorithm import TeacherPrompt
from grpobench.algorithms.sdpo import SDPO
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.sample.context import Room
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups
from grpobench.runs.sample.teacher_prompts import demand_room, filled, reference_answer, teacher_prompts
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.horizon import Horizon
from grpobench.tasks.task import Problem, Verdict

PLAIN = TeacherPrompt("{prompt}|{demonstration}", "success")


@functools.cache
def loaded() -> Loaded:
    return load("nano")


def group_of(texts: Sequence[str], rewards: Sequence[float], failed: Sequence[int] = ()) -> Group:
    """A group of one-turn completions that were graded, but for those that `failed` names."""
    problem = Problem("p", "Q", None)
    rollouts = []
    for text in texts:
        tokens = tuple(loaded().tokenizer.encode(text, add_special_tokens=False))
        rollouts.append(Rollout((5,), tokens, np.zeros(len(tokens), dtype=np.float32), True))
    verdicts = [
        Verdict({"correct": r}, None, "infra_error" if i in failed else "graded")
        for i, r in enumerate(rewards)
    ]
    return Group(problem, rollouts, verdicts, rewards)


def shown(group: Group, settings: TeacherPrompt = PLAIN) -> list[str]:
    """The text before each completion; empty for one that no teacher reads."""
    return [loaded().decode(prompt) for prompt in teacher_prompts(loaded(), Arithmetic(), settings, group)]


def test_a_completion_is_shown_the_first_other_success_of_its_group() -> None:
    group = group_of(["a", "b", "c", "d"], [0.0, 1.0, 0.0, 1.0])
    assert shown(group) == ["Q|b", "Q|d", "Q|b", "Q|b"]


def test_without_another_success_there_is_no_teacher() -> None:
    assert shown(group_of(["a", "b"], [0.0, 1.0])) == ["Q|b", ""]
    assert shown(group_of(["a", "b"], [0.0, 0.5])) == ["", ""]
    half = dataclasses.replace(PLAIN, threshold=0.5)
    assert shown(group_of(["a", "b"], [0.0, 0.5]), half) == ["Q|b", ""]


def test_what_was_not_graded_or_is_empty_is_no_success() -> None:
    assert shown(group_of(["a", "b", "", "d"], [1.0, 1.0, 1.0, 0.0], failed=[0])) == ["Q|b", "", "Q|b", "Q|b"]


def test_thinking_is_cut_from_a_success() -> None:
    cut = SDPO(template=PLAIN.template).teacher_prompt
    with_thinking = SDPO(template=PLAIN.template, cut_thinking=False).teacher_prompt
    assert cut is not None and with_thinking is not None
    group = group_of(["<think>1+1\nis 2</think> 2", "3"], [1.0, 0.0])
    assert shown(group, cut)[1] == "Q|2"
    assert shown(group, with_thinking)[1] == "Q|<think>1+1\nis 2</think> 2"


def test_a_success_that_leaves_no_room_is_not_shown() -> None:
    """The context of nano has 1,024 tokens: 902 and a completion of 200 do not fit, another success does."""
    group = group_of(["a" * 900, "b", "c" * 200], [1.0, 1.0, 0.0])
    assert shown(group) == ["Q|b", "Q|" + "a" * 900, "Q|b"]


def test_successes_are_those_of_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """SuccessfulRolloutTeacherContextBuilder of TRL 1.16 on two groups of four, without feedback."""
    from trl.experimental.sdpo import sdpo_trainer

    monkeypatch.setattr(sdpo_trainer, "gather_object", lambda value: value)
    texts, rewards = ["a", "b", "c", "d", "e", "f", "g", "h"], [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    groups = [group_of(texts[i : i + 4], rewards[i : i + 4]) for i in (0, 4)]
    tokenized_prompts: list[str] = []

    def tokenize(prompts: list[str]) -> list[list[int]]:
        tokenized_prompts.extend(prompts)
        return [[1] for _ in prompts]

    args = types.SimpleNamespace(
        reprompt_template="{prompt}{solution}{feedback}",
        solution_template="|{successful_previous_attempt}",
        success_reward_threshold=1.0,
        dont_reprompt_on_self_success=True,
        environment_feedback_only_without_solution=False,
        use_successful_as_teacher=True,
        include_environment_feedback=False,
        remove_thinking_from_demonstration=False,
        max_reprompt_len=100,
    )
    accelerator = types.SimpleNamespace(
        device="cpu",
        process_index=0,
        gather=lambda value: value,
        pad_across_processes=lambda value, dim, pad_index: value,
    )
    trainer: Any = types.SimpleNamespace(
        args=args,
        accelerator=accelerator,
        model=types.SimpleNamespace(training=True),
        num_generations=4,
        _tokenizer=loaded().tokenizer,
        processing_class=loaded().tokenizer,
        _tokenize_prompts_untruncated=tokenize,
    )
    batch = pack_groups(groups, 4, 1, loaded().pad)
    output = {"completion_ids": batch.completion, "completion_mask": batch.completion_mask.long()}
    builder = sdpo_trainer.SuccessfulRolloutTeacherContextBuilder(trainer)
    made = builder.build(output, ["Q"] * 8, torch.tensor(rewards))
    ours = [text for group in groups for text in shown(group)]
    assert [text or "Q" for text in ours] == tokenized_prompts
    assert [float(bool(text)) for text in ours] == made["self_distillation_mask"].tolist()


def test_braces_of_a_prompt_or_an_answer_stay() -> None:
    text = filled('{"a": 1} {prompt} {demonstration}', "{demonstration}{x}", "{prompt}")
    assert text == '{"a": 1} {demonstration}{x} {prompt}'


def test_a_reference_answer_has_the_turns_of_its_episode() -> None:
    arithmetic, horizon = Arithmetic(), Horizon()
    problem = arithmetic.problems("train")[0]
    assert reference_answer(arithmetic, problem) == arithmetic.demonstrate(problem)
    several = horizon.problems("train")[0]
    turns = horizon.demonstrate_episode(several)
    assert len(turns) > 1
    assert reference_answer(horizon, several) == "\n".join(turns).strip()


class Wordless(Letters):
    """A task without reference answers."""

    def demonstrate(self, problem: Problem) -> str:
        raise NotImplementedError


class Silent(Letters):
    """A task whose reference answers are empty."""

    def demonstrate(self, problem: Problem) -> str:
        return "  "


@pytest.mark.parametrize("task", [Wordless(), Silent()])
def test_a_task_without_reference_answers_is_refused(task: Letters) -> None:
    settings = TeacherPrompt("{prompt}{demonstration}", "reference")
    with pytest.raises(DataError, match=r"has no reference answer to problem .* take a task with"):
        demand_room(Room(loaded(), 6), task, settings, task.problems("train"))
    hint = TeacherPrompt("think! {prompt}")
    assert demand_room(Room(loaded(), 6), task, hint, task.problems("train")) == task.problems("train")


def test_prompts_that_leave_no_room_are_refused_or_dropped() -> None:
    task = Arithmetic()
    problems = task.problems("train")[:4]
    longest = max(len(problem.prompt) for problem in problems)
    settings = TeacherPrompt("x" * (1024 - 40 - longest) + "{prompt}")
    assert len(demand_room(Room(loaded(), 40), task, settings, problems)) == 4
    one_more = dataclasses.replace(settings, template="x" + settings.template)
    with pytest.raises(
        DataError, match=r"as the teacher reads them, leave no room for 40 .* shorten the template"
    ):
        demand_room(Room(loaded(), 40), task, one_more, problems)
    left = demand_room(Room(loaded(), 40, "drop"), task, one_more, problems)
    assert left == [problem for problem in problems if len(problem.prompt) < longest]


def test_a_batch_has_the_prompts_of_its_graded_rows() -> None:
    group = group_of(["a", "b", "c"], [1.0, 0.0, 1.0], failed=[1])
    group = dataclasses.replace(group, teacher_prompts=[(3, 4, 5), (6,), ()])
    batch = pack_groups([group], 4, 1, pad=0)
    assert batch.teacher_prompt is not None and batch.teacher_prompt_length is not None
    assert batch.teacher_prompt.tolist() == [[3, 4, 5], [0, 0, 0]]
    assert batch.teacher_prompt_length.tolist() == [3, 0]
    assert pack_groups([group_of(["a"], [1.0])], 4, 1, pad=0).teacher_prompt is None
