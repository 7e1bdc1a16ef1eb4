"""Tokenizers as they are loaded: prompts end as they are written, templates have the recipe's variables."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from grpobench.runs.models.loading import Loaded, set_template_variables
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.train.trl.arguments import prompts

CHAT = "{% for m in messages %}<s>{{ m['content'] }}{% endfor %}"


def appending(single: str, start: str = "<s>", end: str = "</s>", **more: Any) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes whose post-processor is `single`."""
    letters = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=letters, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True) for name in (start, end)])
    backend.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(name, backend.token_to_id(name)) for name in (start, end)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=start, eos_token=end, **more)


def loaded(tokenizer: Any) -> Loaded:
    return Loaded(SimpleNamespace(config=SimpleNamespace()), tokenizer, {}, (tokenizer.eos_token_id,))


@pytest.mark.parametrize(
    ("single", "start", "end", "expected"),
    [
        ("<s> $A </s>", "<s>", "</s>", ("<s>", "7", "=")),
        ("$A </s>", "<s>", "</s>", ("7", "=")),
        ("$A </s> </s>", "<s>", "</s>", ("7", "=")),
        ("[CLS] $A [SEP]", "[CLS]", "[SEP]", ("[CLS]", "7", "=")),
        ("<s> $A", "<s>", "</s>", ("<s>", "7", "=")),
        ("$A", "<s>", "</s>", ("7", "=")),
    ],
)
def test_prompt_ends_as_written_in_both_backends_and_from_a_saved_tokenizer(
    single: str, start: str, end: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    tokenizer = appending(single, start, end)
    ours = loaded(tokenizer)
    assert tuple(tokenizer.convert_ids_to_tokens(list(ours.encode("7=")))) == expected
    assert bool(ours.suppressed_tokens) == single.endswith(end)
    (text,) = prompts(ours, ["7="])
    assert tuple(tokenizer(text=[text])["input_ids"][0]) == ours.encode("7="), "as TRL encodes it"
    tokenizer.save_pretrained(tmp_path)
    assert tuple(AutoTokenizer.from_pretrained(tmp_path).encode("7=")) == ours.encode("7=")


def test_chat_model_reads_the_same_with_its_template_and_without() -> None:
    plain, chat = appending("<s> $A </s>"), appending("<s> $A </s>", chat_template=CHAT)
    assert loaded(chat).has_chat_template and not loaded(plain).has_chat_template
    assert loaded(chat).encode("7=") == loaded(plain).encode("7=")


THINKING = (
    "\n{% if enable_thinking is defined and enable_thinking is false %}off{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ style | default('') }}"
)


def test_variables_of_a_template_reach_every_renderer_and_the_saved_tokenizer(tmp_path: Path) -> None:
    """As transformers renders the untouched template with the same variables as arguments."""
    variables = {"enable_thinking": False, "style": 'a "b" \n \u00e9 {{ x }}'}
    tokenizer = appending("$A", chat_template=THINKING)
    talk = [{"role": "user", "content": "7="}]
    expected = tokenizer.apply_chat_template(talk, tokenize=False, **variables)
    assert "off7=" in expected
    set_template_variables("mine", tokenizer, variables)
    assert tokenizer.apply_chat_template(talk, tokenize=False) == expected
    tokenizer.save_pretrained(tmp_path)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    assert saved.apply_chat_template(talk, tokenize=False) == expected


def test_variables_that_nothing_reads_are_refused() -> None:
    with pytest.raises(ModelError, match="template of model 'mine' does not mention enable_thinkin; correct"):
        set_template_variables("mine", appending("$A", chat_template=THINKING), {"enable_thinkin": False})
    with pytest.raises(ModelError, match="messages cannot be set"):
        set_template_variables("mine", appending("$A", chat_template=THINKING), {"messages": []})
    with pytest.raises(ModelError, match="no chat template; remove"):
        set_template_variables("mine", appending("$A"), {"enable_thinking": False})
