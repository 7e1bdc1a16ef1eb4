"""Prompts of messages where models, libraries, rewards and reports read them: as they are, or as text."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from grpobench.algorithms.algorithm import TeacherPrompt
from grpobench.analysis.report.samples import prompt_text
from grpobench.runs.evaluation import export, lm_eval
from grpobench.runs.handover import base, grading, verl
from grpobench.runs.handover.data import row
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.templates import bound
from grpobench.runs.reward.functions import RewardInput, arguments
from grpobench.runs.sample.context import Room
from grpobench.runs.sample.rollouts import Group, Rollout
from grpobench.runs.sample.teacher_prompts import teacher_prompts
from grpobench.runs.train.prepare.experts import experts
from grpobench.runs.train.progress import transcript
from grpobench.runs.train.rollouts import preference
from grpobench.runs.train.trl.arguments import prompts
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.data.messages import as_messages, parse_prompt
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.kinds.jsonl import FROM_DATA
from grpobench.tasks.task import Problem, Verdict

CHAT = [
    {"role": "system", "content": "Add."},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": " 3+3 "},
]
PROBLEM = Problem("p", parse_prompt(CHAT), {"answer": "6"})
TEXT = Problem("t", "5+5", {"answer": "10"})
MARKED = (
    "{% for m in messages %}[{{ m.role[0] }}{{ m.content | trim }}]{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + MARKED
)
SILENT = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}>"


@functools.cache
def model(template: str = "") -> Loaded:
    """The built-in policy with a chat template, if one is given."""
    nano = load("nano")
    tokenizer = copy.deepcopy(nano.tokenizer)
    tokenizer.chat_template = template or None
    return dataclasses.replace(nano, tokenizer=tokenizer)


@pytest.mark.parametrize("problem", [PROBLEM, TEXT])
def test_a_template_gets_the_messages_as_they_are_and_trl_reads_the_same_tokens(problem: Problem) -> None:
    chat = model(MARKED)
    template_ids = chat.tokenizer.apply_chat_template(
        as_messages(problem.prompt), add_generation_prompt=True, return_dict=False
    )
    assert chat.encode(problem.prompt) == tuple(template_ids)
    trl = pytest.importorskip("trl.trainer.grpo_trainer")
    prompt_rows = prompts(chat, [problem.prompt])
    assert trl.is_conversational({"prompt": prompt_rows[0]})
    trainer = SimpleNamespace(
        processing_class=chat.tokenizer, _is_vlm=False, environment_factories=None, tools=None,
        chat_template=None, chat_template_kwargs={},
    )  # fmt: skip
    assert tuple(trl.GRPOTrainer._tokenize_prompts(trainer, prompt_rows)[0][0]) == chat.encode(problem.prompt)


def test_without_a_template_a_model_reads_the_contents() -> None:
    plain = model()
    assert plain.encode(PROBLEM.prompt) == plain.encode("Add.\n\n2+2 4\n\n 3+3 ")
    assert prompts(plain, [PROBLEM.prompt, TEXT.prompt]) == ["Add.\n\n2+2 4\n\n 3+3 ", "5+5"]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (NO_SYSTEM, "does not take this conversation: TemplateError: System role not supported"),
        (SILENT, "the model's chat template leaves out the message of the system, 'Add.'"),
    ],
)
def test_a_template_without_a_system_role_is_refused_before_a_run(template: str, message: str) -> None:
    bound()  # as whatever loads a tokenizer with a template
    room = Room(model(template), 8)
    with pytest.raises(DataError) as caught:
        room.fitting([TEXT, PROBLEM, TEXT], "train")
    assert "problem p: " in str(caught.value) and message in str(caught.value)
    assert "write the system message into the user's" in str(caught.value)
    assert room.fitting([TEXT, Problem("q", PROBLEM.prompt[1:], None)], "train")  # type: ignore[arg-type]


@pytest.mark.parametrize("template", ["", MARKED])
def test_exactly_the_messages_that_leave_no_room_are_too_long(template: str) -> None:
    chat = model(template)
    problems = [
        Problem(str(n), parse_prompt([*CHAT[:3], {"role": "user", "content": "1+" * n + "1"}]), None)
        for n in (1, 20, 40)
    ]
    lengths = [len(chat.encode(problem.prompt)) for problem in problems]
    for limit in (chat.context - lengths[1], chat.context - lengths[1] + 1, chat.context - lengths[0]):
        expected = {p.id: n for p, n in zip(problems, lengths, strict=True) if n + limit > chat.context}
        assert Room(chat, limit).too_long(problems) == expected


def test_handed_over_rows_have_the_messages_and_come_back_equal() -> None:
    config = SimpleNamespace(task=SimpleNamespace(name="mine"))
    made = {
        template: row(SimpleNamespace(config=config, loaded=model(template)), PROBLEM, "train", 0)  # type: ignore[arg-type]
        for template in ("", MARKED)
    }
    assert made[MARKED]["prompt"] == CHAT
    assert made[""]["prompt"] == [{"role": "user", "content": PROBLEM.text}]
    for columns in made.values():
        assert grading.problem_of(columns["extra_info"]) == PROBLEM
    assert base.plain_template(model(), [PROBLEM, TEXT], verl.PLAIN_TEMPLATE) is not None


def test_reward_functions_get_messages_or_their_text() -> None:
    inputs = [RewardInput(problem.prompt, "6", (1,), {}) for problem in (PROBLEM, TEXT)]
    assert arguments(inputs, "messages", 0, 1)["prompts"] == [CHAT, [{"role": "user", "content": "5+5"}]]
    assert arguments(inputs, "text", 0, 1)["prompts"] == [PROBLEM.text, "5+5"]


def test_a_teacher_reads_its_template_in_place_of_the_last_message() -> None:
    chat, none = model(MARKED), np.zeros(1, dtype=np.float32)
    group = Group(
        PROBLEM, [Rollout((5,), (5,), none, True)] * 2, [Verdict({"correct": 1.0}, None)] * 2, [1.0, 1.0]
    )
    teacher_ids = teacher_prompts(
        chat, Arithmetic(), TeacherPrompt("{prompt}#{demonstration}", "success"), group
    )
    question = f" 3+3 #{chat.decode((5,))}"
    assert teacher_ids[0] == chat.encode(parse_prompt([*CHAT[:3], {"role": "user", "content": question}]))


def test_logs_keep_messages_and_pages_show_their_roles() -> None:
    group = Group(PROBLEM, [], [], [])
    assert transcript(group, model(), [None])["prompt"] == CHAT
    assert prompt_text(CHAT) == "system: Add.\nuser: 2+2\nassistant: 4\nuser:  3+3 "
    assert prompt_text("2+2") == "2+2"


def test_files_of_pairs_and_of_expert_answers_may_have_messages(tmp_path: Path) -> None:
    chat = model(MARKED)
    pair = preference({"prompt": CHAT, "chosen": "6", "rejected": "7"}, "f:1", chat)
    path = tmp_path / "experts.jsonl"
    path.write_text(json.dumps({"prompt": CHAT, "completion": "6"}) + "\n")
    (group,) = experts(Arithmetic(), chat, str(path), 1, 0).draw(1)
    for rollout_group in (pair, group):
        assert rollout_group.problem.prompt == PROBLEM.prompt
        assert rollout_group.rollouts[0].prompt == chat.encode(PROBLEM.prompt)
    with pytest.raises(DataError, match="f:1: the prompt: the last message has the role assistant"):
        preference({"prompt": CHAT[:3], "chosen": "6", "rejected": "7"}, "f:1", chat)


SIX, SEVEN = ([{"role": "assistant", "content": digit}] for digit in "67")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": CHAT, "chosen": SIX, "rejected": SEVEN},
        {"chosen": [*CHAT, *SIX], "rejected": [*CHAT, *SEVEN]},
        {"prompt": CHAT, "chosen": [*CHAT, *SIX], "rejected": [*CHAT, *SEVEN]},
        {"prompt": CHAT[-1]["content"], "chosen": [*CHAT, *SIX], "rejected": [*CHAT, *SEVEN]},
        {"prompt": json.dumps(CHAT), "chosen": json.dumps(SIX), "rejected": "7"},
    ],
    ids=["explicit", "implicit", "both", "text beside", "as JSON"],
)
def test_conversational_preferences_are_the_pairs_that_texts_are(row: dict[str, Any]) -> None:
    """TRL's formats, with and without a prompt of its own."""
    chat = model(MARKED)
    ours = preference({"prompt": CHAT, "chosen": "6", "rejected": "7"}, "f:1", chat)
    theirs = preference(row, "f:1", chat)
    assert theirs.problem.prompt == ours.problem.prompt
    assert [rollout.completion for rollout in theirs.rollouts] == [
        rollout.completion for rollout in ours.rollouts
    ]
    assert [rollout.prompt for rollout in theirs.rollouts] == [rollout.prompt for rollout in ours.rollouts]
    assert [verdict.answer for verdict in theirs.verdicts] == ["6", "7"]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"chosen": [*CHAT, *SIX], "rejected": SEVEN}, "chosen and rejected answer different messages"),
        ({"prompt": CHAT, "chosen": [], "rejected": SEVEN}, "chosen: must be text or messages that end"),
        ({"prompt": CHAT, "chosen": 6, "rejected": SEVEN}, "chosen: must be text or messages that end"),
        ({"prompt": CHAT, "chosen": SIX, "rejected": CHAT}, "rejected: the last message has the role user"),
        ({"prompt": "3", "chosen": [*CHAT, *SIX], "rejected": [*CHAT, *SEVEN]}, "the prompt: differs from"),
        ({"chosen": SIX, "rejected": SEVEN}, "the prompt: must be text or a list of messages, not None"),
        ({"chosen": [*SIX, *SIX], "rejected": [*SIX, *SEVEN]}, "the prompt: the last message has the role"),
        ({"prompt": CHAT, "chosen": '[{"role": ', "rejected": "7"}, "chosen: is a list of messages, but not"),
    ],
)
def test_a_pair_that_is_none_names_place_and_fault(row: dict[str, Any], fault: str) -> None:
    with pytest.raises(DataError, match=f"^f:1: {re.escape(fault)}.*; mend or remove the line$"):
        preference(row, "f:1", model(MARKED))


@pytest.mark.parametrize("template", ["", MARKED])
def test_the_harness_gets_the_prompt_that_our_sampler_reads(template: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"prompt": CHAT, "answer": 6, "split": "test"}) + "\n")
    task = FROM_DATA["math"](name="mine", jsonl=path, prompt="prompt")
    problems, decoding = task.problems("test"), lm_eval.PromptFormat(8, 0, True, 1.0, 0)
    name = lm_eval.write(tmp_path / "out", model(template), task, "test", problems, "greedy", decoding)
    (prompt,) = [
        json.loads(line)["prompt"] for line in (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()
    ]
    ids = model(template).tokenizer.encode(prompt, add_special_tokens=not template)
    assert tuple(ids) == model(template).encode(problems[0].prompt)


def test_the_example_of_a_model_card_has_the_messages() -> None:
    other = ("algorithm", "task", "seed", "caution", "model", "steps", "facts", "folder", "base", "limit")
    facts: dict[str, Any] = dict.fromkeys(other, "") | {"front": {}, "templated": True}
    template = export.TEMPLATES.get_template("model_card.md.j2")
    card = template.render(facts, messages=as_messages(PROBLEM.prompt))
    code = "inputs = " + card.partition("inputs = ")[2].partition("answer = ")[0]
    captured: dict[str, Any] = {}
    tokenizer = SimpleNamespace(apply_chat_template=lambda messages, **_: captured.update(messages=messages))
    exec(code, {"tokenizer": tokenizer})
    assert captured["messages"] == CHAT
