"""Turns with tools under the chat templates of model families: what the policy reads, what tasks read of its
turns, and that an episode's log-probabilities are those of the tokens as they were sampled.

TRL brings the templates of Qwen3, Llama 3, Llama 3.2, GLM and Qwen3.5 word for word, and that of SmolLM2
stands here. The one called MISTRAL only has the structure of Mistral's.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.sampling import logps
from tokenizers import AddedToken

from grpobench.runs.models.loading import Loaded, load_outline
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.context import Room
from grpobench.runs.sample.episodes import (
    Episode,
    ask_environments,
    conversation,
    episodes,
    policy_turns,
    reply_tokens,
)
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups
from grpobench.tasks.data.messages import Message
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.data.tools import Tool, ToolCall, parse_turn
from grpobench.tasks.task import Problem, Reply, Split, Task, Verdict

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}}
TOOLS = (Tool("look_up", "Looks up.", SCHEMA), Tool("stop"))
PROMPT = (Message("system", "", TOOLS), Message("user", "Ask 7."))
PROBLEM = Problem("p", PROMPT, None)

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
    "trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST]{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}{{ (c.function | tojson)[:-1] }}"
    "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    ', "id": "{{ c.id }}"}{{ ", " if not loop.last }}{% endfor %}]{{ eos_token }}'
    "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    "[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ raise_exception('no role ' + m.role) }}{% endif %}{% endfor %}"
)
FORGETFUL = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n{{ m.content if loop.last else m.content.split('</think>')[-1] }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Strips thoughts from every turn but the last."""
SPECIAL = (
    "<s>",
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
    ),
    *("[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "</s>"),
)
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Tokens that are not special, as in Qwen3's tokenizer."""


def template(name: str) -> str:
    if name in ("SMOLLM2", "MISTRAL", "FORGETFUL", ""):
        return str(globals().get(name, ""))
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("TRL, which brings the template, is not installed")
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


END = {"llama3": "<|eot_id|>", "llama3_2": "<|eot_id|>", "MISTRAL": "</s>"}


@functools.cache
def chatting(name: str) -> Loaded:
    """A tokenizer of characters with the special tokens of all families, under a template."""
    tokenizer = copy.deepcopy(load_outline("nano").tokenizer)
    tokenizer.add_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens(list(MARKS))
    tokenizer.bos_token = "<s>"
    tokenizer.eos_token = END.get(name, "<|im_end|>")
    tokenizer.chat_template = template(name) or None
    config = load_outline("random:tiny").model.config
    config.max_position_embeddings, config.vocab_size = 4096, len(tokenizer)
    return Loaded(SimpleNamespace(config=config), tokenizer, {}, (tokenizer.eos_token_id,))


def tokens(loaded: Loaded, text: str) -> tuple[int, ...]:
    return tuple(loaded.tokenizer.encode(text, add_special_tokens=False))


# What a task reads of a turn

ARGUMENTS = '{"text": "7", "count": 1}'
FUNCTION = (
    "<function=look_up>\n<parameter=text>\n7\n</parameter>\n<parameter=count>\n1\n</parameter>\n</function>"
)
KEYS = (
    "look_up\n<arg_key>text</arg_key>\n<arg_value>7</arg_value>\n"
    "<arg_key>count</arg_key>\n<arg_value>1</arg_value>"
)
CALLS = [
    ("qwen3", f'<tool_call>\n{{"name": "look_up", "arguments": {ARGUMENTS}}}\n</tool_call>'),
    ("qwen3", f'<tool_call>[{{"name": "look_up", "arguments": {ARGUMENTS}}}]</tool_call>'),
    ("SMOLLM2", f'<tool_call>[{{"name": "look_up", "arguments": {ARGUMENTS}}}]</tool_call>'),
    ("", f'<tool_call>{{"name": "look_up", "parameters": {ARGUMENTS}}}</tool_call>'),
    ("llama3_2", f'{{"name": "look_up", "parameters": {ARGUMENTS}}}'),
    ("llama3_2", f'<tool_call>{{"name": "look_up", "arguments": {ARGUMENTS}}}</tool_call>'),
    ("llama3_2", f'<|python_tag|>{{"type": "function", "name": "look_up", "parameters": {ARGUMENTS}}}'),
    ("MISTRAL", f'[TOOL_CALLS] [{{"name": "look_up", "arguments": {ARGUMENTS}, "id": "abcdefghi"}}]'),
    ("MISTRAL", f"[TOOL_CALLS]look_up[ARGS]{ARGUMENTS}"),
    ("qwen3_5_nothink", f"<tool_call>\n{FUNCTION}\n</tool_call>"),
    ("glm4moe", f"<tool_call>{KEYS}\n</tool_call>"),
]
"""Calls of `look_up` with ARGUMENTS."""


@pytest.mark.parametrize(("name", "text"), CALLS)
def test_a_call_in_the_notation_of_the_template_is_read_by_tasks(name: str, text: str) -> None:
    loaded = chatting(name)
    turn = parse_turn(loaded.read_turn((*tokens(loaded, text), *loaded.end), TOOLS))
    assert turn.calls == (ToolCall("look_up", {"text": "7", "count": 1}),) and not turn.faults


STOP = '{"name": "stop", "arguments": {}}'
LOOK_UP = "<tool_call><function=look_up><parameter=text>a};{b</parameter></function></tool_call>"
SEVERAL = [
    ("llama3_2", '{"name": "stop", "parameters": {}}; {"name": "look_up", "parameters": {"text": "a};{b"}}'),
    ("MISTRAL", 'Well. [TOOL_CALLS]stop[ARGS]{}[TOOL_CALLS]look_up[ARGS]{"text": "a};{b"}'),
    ("qwen3", f'Well. <tool_call>[{STOP}, {{"name": "look_up", "arguments": {{"text": "a}};{{b"}}}}]'),
    ("qwen3_5_nothink", "Well. <tool_call><function=stop></function></tool_call>" + LOOK_UP),
]


@pytest.mark.parametrize(("name", "text"), SEVERAL)
def test_several_calls_are_read_in_order_and_text_stays(name: str, text: str) -> None:
    turn = parse_turn(chatting(name).read_turn(tokens(chatting(name), text), TOOLS))
    assert turn.calls == (ToolCall("stop"), ToolCall("look_up", {"text": "a};{b"})), name
    assert turn.text == ("" if name == "llama3_2" else "Well.") and not turn.faults


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3", '<tool_call>{"name": "look_up", "argum'),
        ("qwen3", "<tool_call>7</tool_call>"),
        ("llama3_2", '{"name": "look_up", "parameters": {"te'),
        ("llama3_2", "<|python_tag|>look_up.call(7)"),
        ("MISTRAL", '[TOOL_CALLS] [{"name": "look_up", "argum'),
        ("MISTRAL", "[TOOL_CALLS]look_up[ARGS]7"),
        ("qwen3_5_nothink", "<tool_call><function=look_up><parameter=text>7"),
        ("glm4moe", "<tool_call>look_up\n<arg_key>text</arg_key>\n7</tool_call>"),
        ("", "<tool_call>[]</tool_call>"),
    ],
)
def test_a_malformed_call_remains_one(name: str, text: str) -> None:
    turn = parse_turn(chatting(name).read_turn(tokens(chatting(name), text), TOOLS))
    assert len(turn.faults) == 1 and not turn.calls


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_2", '{"name": "Ada", "age": 36}'),
        ("llama3_2", 'It is {"name": "look_up", "parameters": {}}.'),
        ("qwen3", '{"name": "look_up", "parameters": {}}'),
        ("qwen3", '<think>No.</think>\n<tool_call>\n{"name": "stop",  "arguments": {}}\n</tool_call>'),
    ],
)
def test_what_is_no_call_or_is_canonical_stays_as_it_was_written(name: str, text: str) -> None:
    assert chatting(name).read_turn(tokens(chatting(name), text), TOOLS) == text


def test_without_tools_a_turn_is_its_decoded_text() -> None:
    loaded = chatting("MISTRAL")
    ids = tokens(loaded, '[TOOL_CALLS] [{"name": "stop", "arguments": {}}]</s>')
    assert loaded.read_turn(ids, ()) == loaded.decode(ids) == ' [{"name": "stop", "arguments": {}}]'


# What the policy reads


@pytest.mark.parametrize("name", ["qwen3", "llama3_2", "glm4moe", "qwen3_5_nothink", "FORGETFUL"])
def test_a_template_with_tools_states_them(name: str) -> None:
    loaded = chatting(name)
    messages = [{"role": "user", "content": "Ask 7."}]
    functions = [tool.as_function() for tool in TOOLS]
    rendered = loaded.tokenizer.apply_chat_template(
        messages, tools=functions, add_generation_prompt=True, tokenize=False
    )
    assert loaded.render(PROMPT) == rendered and "look_up" in rendered


@pytest.mark.parametrize("name", ["llama3", "SMOLLM2", ""])
def test_without_tools_in_the_template_the_system_message_describes_them(name: str) -> None:
    text = chatting(name).tokenizer.decode(chatting(name).encode(PROMPT))
    assert "To call a tool, write <tool_call>" in text and '"look_up"' in text


@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_prompts_with_tools_leave_room_for_the_completion(name: str) -> None:
    """Two prompts of the same roles whose tools differ in length."""
    loaded, many = chatting(name), tuple(Tool(f"tool_{i}", "Does something else.") for i in range(20))
    problems = [Problem("long", (Message("system", "", many), PROMPT[1]), None), PROBLEM]
    length = len(loaded.encode(problems[0].prompt))
    assert Room(loaded, loaded.context - length).fitting(problems, "train") == problems
    with pytest.raises(DataError, match=r"1 of 2 train prompts .*problem long has"):
        Room(loaded, loaded.context - length + 1).fitting(problems, "train")
    with pytest.raises(DataError, match=r"2 of 2 train prompts .*problem long has"):
        Room(loaded, loaded.context - len(loaded.encode(PROMPT)) + 1).fitting(problems[::-1], "train")


def test_tools_that_neither_template_nor_system_message_can_state_are_refused() -> None:
    silent = copy.copy(chatting("SMOLLM2").tokenizer)
    silent.chat_template = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    loaded = dataclasses.replace(chatting("SMOLLM2"), tokenizer=silent)
    with pytest.raises(DataError, match=r"problem p: .*leaves out the message of the system, 'Tools:.*tools"):
        Room(loaded, 8).fitting([PROBLEM], "train")


TWO = (Message("tool", "one"), Message("tool", "two"))


TWICE = "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
CHATML = f"<|im_end|>\n<|im_start|>user\n{TWICE}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("qwen3", CHATML),
        ("SMOLLM2", CHATML),
        ("llama3_2", '<|eot_id|>[ipython]"one"<|eot_id|>[ipython]"two"<|eot_id|>[assistant]'),
        ("llama3", f"<|eot_id|>[user]{TWICE}<|eot_id|>[assistant]"),
        ("MISTRAL", "</s>[TOOL_RESULTS]one[/TOOL_RESULTS][TOOL_RESULTS]two[/TOOL_RESULTS]"),
        ("", "<|im_end|>one\ntwo"),
    ],
)
def test_replies_of_tools_are_messages_of_the_template(name: str, written: str) -> None:
    if name.startswith("llama3"):
        written = re.sub(r"\[(\w+)\]", "<|start_header_id|>\\1<|end_header_id|>\n\n", written)
    assert reply_tokens(chatting(name), TWO) == tokens(chatting(name), written)


def test_tasks_graders_and_transcripts_read_the_same_turns() -> None:
    """A special token marks this call, which `decode` drops."""
    loaded = chatting("MISTRAL")
    episode = Episode(loaded, Asking(), PROBLEM, loaded.encode(PROMPT), reply=TWO)
    for text in ('[TOOL_CALLS] [{"name": "stop", "arguments": {}}]</s>', "Done.</s>"):
        turn = tokens(loaded, text)
        episode.take(turn, [0.0] * len(turn))
        if len(episode.turns) == 1:
            assert episode.answer(2000)
    call = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
    assert policy_turns(loaded, PROBLEM, episode.rollout()) == episode.turns == [call, "Done."]
    shown = conversation(loaded, PROBLEM, episode.rollout())["turns"]
    assert [turn["text"] for turn in shown if turn["by"] == "policy"] == [call, "Done."]


# Whole episodes


@dataclasses.dataclass(frozen=True)
class Asking(Task):
    """Answers whatever is called, ten times."""

    name = "asking"
    turn_tokens = 12
    max_completion_tokens = 2000
    answer: Reply | None = TWO

    @property
    def turns(self) -> int:
        return 10

    def problems(self, split: Split) -> Sequence[Problem]:
        return [PROBLEM, dataclasses.replace(PROBLEM, id="q", prompt=(PROMPT[0], Message("user", "Ask 8.")))]

    def reply(self, problem: Problem, turns: Sequence[str]) -> Reply | None:
        return self.answer

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return [Verdict({"correct": 0.0}, None) for _ in completions]

    def demonstrate(self, problem: Problem) -> str:
        return ""


def random_policy(loaded: Loaded) -> Any:
    """Weights so large that every token of the history matters."""
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(loaded.model.config)
    config.initializer_range = 0.15
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()


@functools.cache
def played(name: str) -> tuple[Loaded, Any, list[list[Rollout]]]:
    loaded, task = chatting(name), Asking()
    model = random_policy(loaded)
    sampler = HFSampler(RoleModels(model), loaded.end, loaded.pad, 256, loaded.context)
    rows = episodes(sampler, loaded, task, task.problems("train"), [(1,), (2, 3)], 2000, 1.0)
    return loaded, model, rows


@pytest.mark.parametrize("name", ["qwen3", "llama3", "llama3_2", "SMOLLM2", "MISTRAL", "FORGETFUL"])
def test_ten_turns_have_the_log_probabilities_of_one_forward_pass(name: str) -> None:
    loaded, model, rows = played(name)
    assert all(rollout.turns == 10 and not rollout.stopped for row in rows for rollout in row)
    groups = [
        Group(problem, rollouts, Asking().verify(problem, [""] * len(rollouts)), [0.0] * len(rollouts))
        for problem, rollouts in zip(Asking().problems("train"), rows, strict=True)
    ]
    batch = pack_groups(groups, 2000, 1, loaded.pad)
    logp = RoleModels(model).forward("policy", batch).logp
    gap = ((logp - batch.sampler_logp) * batch.completion_mask).abs()
    # float32, cached and uncached; 3e-6 in the first turn alone, where a shifted history would give nats.
    assert 0 < gap.max() < 2e-5


@pytest.mark.parametrize("name", ["qwen3", "FORGETFUL"])
def test_thoughts_that_the_template_would_strip_stay_in_the_history(name: str) -> None:
    """Without the first turn's thought, the later turns have other log-probabilities."""
    loaded, model, rows = played(name)
    (end_of_thought,) = tokens(loaded, "</think>")
    rollout = next(
        rollout
        for row in rows
        for rollout in row
        if end_of_thought in rollout.completion[: len(rollout.completion) // 2]
    )
    mask = rollout.completion_mask
    position = rollout.completion.index(end_of_thought)
    start = max((i + 1 for i in range(position) if not mask[i]), default=0)
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": loaded.decode(rollout.completion[start : position + 1]) + "!"},
        {"role": "user", "content": "?"},
    ]
    assert "</think>" not in loaded.tokenizer.apply_chat_template(messages, tokenize=False), (
        "the template strips"
    )
    last = len(mask) - mask[::-1].index(False)
    exact = logps(model, rollout)[last:]
    stripped = (*rollout.completion[:start], *rollout.completion[position + 1 :])
    other = logps(model, dataclasses.replace(rollout, completion=stripped))[-len(exact) :]
    sampled = torch.tensor(rollout.sampler_logp[last:])
    assert (exact - sampled).abs().max() < 2e-5
    assert (other - sampled).abs().max() > 0.01


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((), "reply must not be empty, and neither must a message of it; where a tool returns nothing"),
        (
            (Message("tool", "one"), Message("tool", "")),
            "must not be empty, and neither must a message of it",
        ),
        (
            (Message("assistant", "one"),),
            "replied with a message of the assistant; its messages are of the user",
        ),
    ],
)
def test_a_reply_without_content_or_of_another_role_is_refused(answer: Reply, message: str) -> None:
    task = Asking(answer=answer)
    with pytest.raises(ValueError, match=f"task asking: .*{message}"):
        ask_environments(task, [Episode(chatting("qwen3"), task, PROBLEM, ())])
