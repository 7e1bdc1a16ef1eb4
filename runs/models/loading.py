"""Load a model and its tokenizer, and refuse those that cannot work or cannot be trusted."""

# `load` loads both, `load_outline` the configuration and the tokenizer alone. A model is a built-in name, a
# folder or a hub id; `model_files` finds it.

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from grpobench.runs.models import sizes, trust
from grpobench.runs.models.model_files import (
    RANDOM,
    SHAPES,
    hub_provenance,
    is_hub_silent,
    locate_model,
    locate_outline,
)
from grpobench.runs.models.model_packages import read_outline
from grpobench.runs.models.templates import bound
from grpobench.runs.models.token_budgets import USUAL, ModelError, first_line, is_out_of_memory
from grpobench.runs.models.tool_notation import ANCHOR, ToolSupport, recognize
from grpobench.tasks.data.messages import (
    Message,
    Prompt,
    as_messages,
    as_text,
    offered_tools,
    with_described_tools,
)
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.data.tools import Tool

WINDOW_SETTINGS = ("sliding_window", "attention_window_size", "attention_chunk_size", "window_size")
"""Names, in models' configurations, of how many tokens back some layers attend."""
Template = bool | Mapping[str, Any]
"""Whether prompts use the tokenizer's chat template; or values for the template's variables, which it then
uses."""
RANDOM_SEED: Final = 0
"""Seed of the weights of `random:` models."""
PROBE_TEXT: Final = "7"
"""A text that shows which special tokens a tokenizer adds."""


@dataclass(frozen=True)
class Loaded:
    """A model ready for a run: its weights, its tokenizer, and where both came from."""

    model: Any
    """A causal language model of transformers. From `load_outline` an object with `config` alone."""
    tokenizer: Any
    provenance: dict[str, str]
    """Where the model came from: its name, place and hash, for provenance.json."""
    end: tuple[int, ...] = field(default=())
    """Token ids that end a completion."""
    suppressed_tokens: tuple[int, ...] = field(init=False, default=())
    """Token ids that the tokenizer appended to every text, until this class stopped it."""

    def __post_init__(self) -> None:
        # Before anything is encoded; through `object`, because the class is frozen.
        object.__setattr__(self, "suppressed_tokens", stop_appending(self.tokenizer))

    @property
    def context(self) -> int:
        """The longest sequence in tokens: the model's positions, or its attention window if smaller."""
        positions = int(getattr(self.model.config, "max_position_embeddings", 0) or 2**20)
        return min(positions, read_attention_window(self.model.config) or positions)  # 0: no window

    @property
    def context_description(self) -> str:
        """`context` in words, for messages."""
        if self.context == read_attention_window(self.model.config):
            return f"attention window of {self.context} tokens (longer sequences are not served)"
        return f"context of {self.context}"

    @property
    def pad(self) -> int:
        """The token id that fills padded positions."""
        return int(self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.end[0])

    @property
    def has_chat_template(self) -> bool:
        """Whether prompts are rendered with a chat template."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def format_answer(self, text: str) -> str:
        """A task's answer as it follows a prompt. With a chat template it loses the space at its start, which
        only separates it from a plain prompt."""
        return text.lstrip(" ") if self.has_chat_template else text

    @cached_property
    def tool_support(self) -> ToolSupport:
        """What the chat template does with tools."""
        if not self.has_chat_template:
            return ToolSupport()
        bound()
        return recognize(lambda messages, tools: self._templated(messages, tools, False, tokenize=False))

    def effective(self, prompt: Prompt) -> Prompt:
        """A prompt as the model reads it: the system message describes the tools in words, unless the chat
        template states them."""
        is_stated = not offered_tools(prompt) or self.tool_support.offers
        return prompt if is_stated else with_described_tools(prompt)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt, rendered with the chat template if the tokenizer has one."""
        if not self.has_chat_template:
            return tuple(self.tokenizer.encode(as_text(prompt)))
        # By default transformers 5 returns a dictionary.
        return tuple(self._rendered(prompt, return_dict=False))

    def render(self, prompt: Prompt) -> str:
        """The text of a prompt, rendered with the chat template, which the tokenizer must have."""
        return str(self._rendered(prompt, tokenize=False))

    def render_reply(self, reply: Sequence[Message]) -> str:
        """What the chat template writes between two turns of the policy: the end of the first, the messages
        of the environment and the cue for the second."""
        # Templates refuse a conversation that does not begin with the user and alternate. Tools are left
        # out, because some templates state them again with the last message.
        tools = any(message.role == "tool" for message in reply)
        support = self.tool_support if tools else ToolSupport()
        messages = as_messages((Message("user", "."), Message("assistant", ANCHOR)))
        rendered = self._templated([*messages, *support.reply_messages(reply)], (), True, tokenize=False)
        return str(rendered).partition(ANCHOR)[2]

    def _rendered(self, prompt: Prompt, **options: bool) -> Any:
        prompt = self.effective(prompt)
        return self._templated(as_messages(prompt), offered_tools(prompt), True, **options)

    def _templated(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], cue: bool, **options: bool
    ) -> Any:
        stated = {"tools": [tool.as_function() for tool in tools]} if tools else {}
        return self.tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=cue, **stated, **options
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a completion, without special tokens such as the end token."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def read_turn(self, tokens: Sequence[int], tools: Sequence[Tool]) -> str:
        """The text of a policy's turn, whose calls of the offered tools stand as `tasks.data.tools.CALL`
        says. Without tools it is that of `decode`."""
        if not tools:
            return self.decode(tokens)
        notation = self.tool_support.notation
        dropped = {
            number
            for number, token in self.tokenizer.added_tokens_decoder.items()
            if token.special and token.content not in notation.markers
        }
        kept_tokens = [token for token in tokens if token not in dropped]
        text = self.tokenizer.decode(kept_tokens, skip_special_tokens=False)
        return notation.canonical(str(text), tools)


def load(
    name: str, device: str | None = None, weights_in: str = "float32", chat_template: Template = True
) -> Loaded:
    """Load a model and its tokenizer.

    Args:
        device: the default is the GPU if there is one.
        weights_in: the dtype of the weights, ``float32`` or ``bfloat16``.
        chat_template: True keeps the template that the tokenizer may have, False removes it, a mapping sets
            the template's variables.

    Raises:
        ModelError: the model cannot be loaded or used; the message says what to do.
    """
    import torch

    location, provenance = locate_model(name)
    options: dict[str, Any] = {"local_files_only": provenance["from"] != "hub" or is_hub_silent(name)}
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    weights = _count_weights(name, location, options)
    tokenizer = _load_tokenizer(name, location, options, chat_template)
    # Masks of packed sequences are boolean: eager attention would add them to the scores as 0 and 1.
    settings = {
        "attn_implementation": "sdpa",
        "trust_remote_code": trust.trusted(),
        "dtype": getattr(torch, weights_in),
    }
    try:
        if provenance["from"] == RANDOM:
            provenance["made"] = f"seed {RANDOM_SEED}, {weights_in} on {torch.device(device).type}"
            model = _draw_weights(location, device, settings)
        else:
            model = _read_weights(location, weights, settings, options)
    except Exception as error:  # the readers of damaged files raise errors of any class
        if is_out_of_memory(error):
            raise
        reason = trust.remedy(error) or f"{first_line(error)}; {USUAL}"
        raise ModelError(f"model {name!r} could not be loaded from {location}: {reason}") from error
    _require_finite(name, location, model)
    # Only now, because this hashes files that loading may have fetched.
    if provenance["from"] == "hub":
        provenance |= hub_provenance(name)
    provenance |= trust.recorded()
    model.to(device)
    return Loaded(model, tokenizer, provenance, _find_end_tokens(name, model, tokenizer))


def _read_weights(
    location: str,
    weights: sizes.WeightCounts | None,
    settings: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Any:
    """The model of a folder or hub id. Raises ValueError for absent tensors, and the readers' errors."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if weights is not None:
        config = AutoConfig.from_pretrained(location, trust_remote_code=trust.trusted(), **options)
        # Before any weight is read: transformers would make tensors of whatever sizes config.json states.
        with torch.device("meta"):
            sizes.check_model(AutoModelForCausalLM.from_config(config, **settings), config, weights)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        location, output_loading_info=True, **settings, **options
    )
    model, loading_info = loaded
    if absent := sorted(loading_info["missing_keys"]):  # transformers fills these with random numbers
        raise ValueError(
            f"{len(absent)} of its tensors are missing from the weight files, such as {absent[0]}"
        )
    return model


def _draw_weights(location: str, device: str, settings: Mapping[str, Any]) -> Any:
    """A model of random weights, as transformers initializes the configuration of a folder. They are drawn on
    the device and in their dtype, so that nothing else takes memory. The caller's random numbers stay as they
    were."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(location, local_files_only=True)
    devices = [] if torch.device(device).type == "cpu" else [device]
    with torch.random.fork_rng(devices), torch.device(device):
        torch.manual_seed(RANDOM_SEED)
        model: Any = AutoModelForCausalLM.from_config(config, **settings)
    # The folder, as from_pretrained sets it: engines read configuration and tokenizer there.
    model.config.name_or_path = model.name_or_path = location
    return model


def load_outline(name: str, check_weights: bool = True, chat_template: Template = True) -> Loaded:
    """Load a model's configuration and tokenizer alone: enough to encode prompts and to know its context.

    Args:
        check_weights: check that the configuration fits the weight files. This fetches those on the hub.
        chat_template: as in `load`.

    Raises:
        ModelError: as in `load`.
    """
    from transformers import AutoConfig

    location, options = locate_outline(name)
    if check_weights:
        _count_weights(name, location, options)
    tokenizer = _load_tokenizer(name, location, options, chat_template)
    try:
        config = read_outline(AutoConfig, location, trust_remote_code=trust.trusted(), **options)
    except Exception as error:  # the readers of damaged files raise errors of any class
        reason = trust.remedy(error) or f"config.json cannot be read ({first_line(error)})"
        raise ModelError(f"{location}: {reason}") from error
    return Loaded(SimpleNamespace(config=config), tokenizer, {"name": name, "place": location})


def _count_weights(name: str, location: str, options: Mapping[str, Any]) -> sizes.WeightCounts | None:
    """`sizes.count_weights`, with a ModelError for every error. None for the GGUF file of a package, which is
    trusted, and for random weights, which have no files."""
    if "gguf_file" in options or Path(location).parent == SHAPES:
        return None
    try:
        return sizes.count_weights(location, **options)
    except Exception as error:  # the readers of damaged files raise errors of any class
        raise ModelError(
            f"model {name!r} could not be loaded from {location}: {first_line(error)}; {USUAL}"
        ) from error


def _load_tokenizer(name: str, location: str, options: Mapping[str, Any], chat_template: Template) -> Any:
    """Load the tokenizer, and try or remove its chat template.

    Raises:
        ModelError: the tokenizer or its template does not work, or it knows no letter: transformers returns
            such a tokenizer for a folder without tokenizer files.
    """
    from transformers import AutoTokenizer

    files = f"{location} has no files of a tokenizer that fit; save them beside the weights (save_pretrained)"
    try:
        tokenizer = read_outline(AutoTokenizer, location, trust_remote_code=trust.trusted(), **options)
    except Exception as error:  # the readers of damaged files raise errors of any class
        reason = trust.remedy(error) or f"{files} ({first_line(error)})"
        raise ModelError(f"the tokenizer of model {name!r} could not be loaded: {reason}") from error
    # Before the template is tried below, so that it is tried with these values.
    if isinstance(chat_template, Mapping):
        set_template_variables(name, tokenizer, chat_template)
    if not chat_template:
        # Removed, not ignored: a tokenizer saved with trained weights must encode prompts as in training.
        tokenizer.chat_template = None
    elif getattr(tokenizer, "chat_template", None):
        bound()  # Gives renderings a time limit; the first one may never end.
        try:
            tokenizer.apply_chat_template(
                [{"role": "user", "content": "?"}], add_generation_prompt=True, tokenize=False
            )
        except DataError as error:
            raise ModelError(f"model {name!r} in {location}: {error}") from error
    # Without special tokens, which even such a tokenizer adds.
    if not {*tokenizer.encode(string.printable, add_special_tokens=False)} - {tokenizer.unk_token_id}:
        raise ModelError(f"the tokenizer of model {name!r} knows no letter: {files}")
    return tokenizer


def _find_end_tokens(name: str, model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Token ids that end a completion, ascending. Raises ModelError if the model can write none of them."""
    # Chat models name further end tokens here, such as the end of a turn.
    ends = model.generation_config.eos_token_id if model.generation_config else None
    ends = ends if isinstance(ends, list) else [ends]
    # Sorted, because the first one pads and ends demonstrations.
    end = sorted({token for token in [*ends, tokenizer.eos_token_id] if token is not None})
    if not end:
        raise ModelError(f"model {name!r} has no end-of-sequence token; set eos_token in its tokenizer")
    vocabulary_size = int(model.get_output_embeddings().weight.shape[0])
    if min(end) >= vocabulary_size:
        raise ModelError(
            f"model {name!r} could never end a completion: its end token {tokenizer.eos_token!r} has the id "
            f"{min(end)}, and the model knows {vocabulary_size} tokens; set eos_token in its "
            "tokenizer_config.json to one of these, or resize the model's embeddings"
        )
    return tuple(end)


def _require_finite(name: str, location: str, model: Any) -> None:
    """Raise ModelError if any weight is NaN or infinite."""
    import torch

    # aminmax propagates NaN, and unlike isfinite() of all weights needs no mask as large as them.
    bad = [
        key
        for key, tensor in model.state_dict().items()
        if tensor.numel() and not torch.stack(torch.aminmax(tensor)).isfinite().all()
    ]
    if bad:
        raise ModelError(
            f"model {name!r}: {len(bad)} of its tensors in {location} hold NaN or infinity, "
            f"such as {bad[0]}; save the model again from a healthy state"
        )


def set_template_variables(name: str, tokenizer: Any, variables: Mapping[str, Any]) -> None:
    """Write values of variables into a tokenizer's chat template, from which a saved tokenizer has them, too.

    Args:
        name: the model's name, for messages.
        variables: variable of the template -> a value that JSON can express.

    Raises:
        ModelError: the tokenizer does not have exactly one template, or the template does not mention a
            variable, or every prompt sets the variable.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str):
        several = "several chat templates" if template else "no chat template"
        raise ModelError(
            f"model {name!r}: its tokenizer has {several}; remove model.chat_template_settings or take "
            "a model with one chat template"
        )
    if missing := [key for key in variables if not re.search(rf"\b{re.escape(key)}\b", template)]:
        raise ModelError(
            f"model.chat_template_settings: the chat template of model {name!r} does not mention "
            f"{', '.join(missing)}; correct the name or remove it"
        )
    if reserved := [key for key in variables if key in ("messages", "add_generation_prompt")]:
        raise ModelError(
            f"model.chat_template_settings: {', '.join(reserved)} cannot be set, since every prompt sets it; "
            "remove it"
        )
    # JSON is valid Jinja. Jinja removes the newline after a block, so the prompt does not change.
    values = "".join(f"{{% set {key} = {json.dumps(value)} %}}\n" for key, value in variables.items())
    tokenizer.chat_template = values + template


def stop_appending(tokenizer: Any) -> tuple[int, ...]:
    """Change a tokenizer that appends tokens to every text, such as its end token or [SEP], so that it stops.

    After them a policy would take the text as complete and not continue it. Tokens before the text stay. Only
    tokenizers of transformers are changed. Returns the token ids that it appended.

    Raises:
        ModelError: the tokenizer still appends tokens.
    """
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return ()
    before, appended = find_special_tokens(tokenizer)
    if not appended:
        return ()
    if "add_eos_token" in tokenizer.init_kwargs:  # also what a saved tokenizer loads
        tokenizer.init_kwargs["add_eos_token"] = False
        tokenizer.add_eos_token = False
    # Some append by the post-processor of their backend, whatever that setting says.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if find_special_tokens(tokenizer)[1] and backend is not None:
        from tokenizers.processors import TemplateProcessing

        names = tokenizer.convert_ids_to_tokens(before)
        backend.post_processor = TemplateProcessing(
            single=[*names, "$A"],
            pair=[*names, "$A", "$B"],
            special_tokens=[*zip(names, before, strict=True)],
        )
    if find_special_tokens(tokenizer) != (before, []):
        raise ModelError(
            f"the tokenizer puts {tokenizer.convert_ids_to_tokens(appended)} behind every prompt, which the "
            "policy would read as its end; set add_eos_token = false in tokenizer_config.json, or correct "
            "post_processor in tokenizer.json"
        )
    return tuple(appended)


def find_special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Token ids that a tokenizer puts before every text, and those that it appends to it."""
    ids, bare = (list(tokenizer.encode(PROBE_TEXT, add_special_tokens=special)) for special in (True, False))
    starts = (start for start in range(len(ids)) if ids[start : start + len(bare)] == bare)
    start = next(starts, None) if bare else None
    return ([], []) if start is None else (ids[:start], ids[start + len(bare) :])


def read_attention_window(config: Any) -> int:
    """The smallest attention window of a model's layers, in tokens; 0 without any.

    In a sequence up to this length every token attends to all tokens before it.
    """
    # A multimodal configuration has a separate part for the language model.
    text_config = config.get_text_config()
    layer_types = getattr(text_config, "layer_types", None)
    # A configuration may state a window that none of its layers has.
    if layer_types and set(layer_types) <= {"full_attention", "attention"}:
        return 0
    windows = [getattr(text_config, name, None) for name in WINDOW_SETTINGS]
    return min((window for window in windows if isinstance(window, int) and window > 0), default=0)
