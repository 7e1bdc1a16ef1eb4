"""Loading a model and its tokenizer, wherever they are, and refusing those that could not be trusted."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

from grpobench.runs.models import model_packages, sizes, trust
from grpobench.runs.models.model_files import folder_of, hub_provenance, locate_model, missing, silent
from grpobench.runs.models.model_packages import outline_of, read_outline
from grpobench.runs.models.templates import bound
from grpobench.runs.models.token_budgets import USUAL, ModelError, first_line
from grpobench.tasks.data.messages import Prompt, as_messages, as_text
from grpobench.tasks.data.tables import DataError

WINDOWS = ("sliding_window", "attention_window_size", "attention_chunk_size", "window_size")
"""Names in a model's configuration of how many tokens back some of its layers see."""


def window(config: Any) -> int:
    """Tokens that every attention layer of a model sees: sequences up to it are read as without a window. 0
    for a model without one."""
    # A multimodal configuration states the language model's values in a part of its own.
    settings = config.get_text_config()
    kinds = getattr(settings, "layer_types", None)
    # A configuration may state a window that none of its layers has.
    if kinds and set(kinds) <= {"full_attention", "attention"}:
        return 0
    reaches = [getattr(settings, name, None) for name in WINDOWS]
    return min((reach for reach in reaches if isinstance(reach, int) and reach > 0), default=0)


@dataclass(frozen=True)
class Loaded:
    """A model ready for a run: its weights, its tokenizer, and where both came from."""

    model: Any
    tokenizer: Any
    provenance: dict[str, str]
    end: tuple[int, ...] = field(default=())
    """Token ids that end a completion."""
    appended: tuple[int, ...] = field(init=False, default=())
    """Token ids that the tokenizer put behind every text, until this class stopped it."""

    def __post_init__(self) -> None:
        # Before anything is encoded; through `object`, because the class is frozen.
        object.__setattr__(self, "appended", append_nothing(self.tokenizer))

    @property
    def context(self) -> int:
        """Tokens of the longest sequence that is read and written as the model means it."""
        most = int(getattr(self.model.config, "max_position_embeddings", 0) or 2**20)
        return min(most, window(self.model.config) or most)  # 0: no window

    @property
    def bound(self) -> str:
        """What bounds a sequence, with its tokens, in words."""
        if self.context == window(self.model.config):
            return f"attention window of {self.context} tokens (longer sequences are not served)"
        return f"context of {self.context}"

    @property
    def pad(self) -> int:
        return int(self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.end[0])

    @property
    def templated(self) -> bool:
        """Whether prompts go through a chat template."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def reply(self, text: str) -> str:
        """A task's answer as the model would begin it. A chat template ends in a line of its own, after which
        the space that separates the answer from a plain prompt is a token that chat models do not write."""
        return text.lstrip(" ") if self.templated else text

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt; through the tokenizer's chat template where it has one, else of its text."""
        if self.templated:
            messages = as_messages(prompt)
            # transformers 5 returns a dictionary unless it is told not to.
            ids = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        else:
            ids = self.tokenizer.encode(as_text(prompt))
        return tuple(ids)

    def render(self, prompt: Prompt) -> str:
        """A prompt through the chat template, which the tokenizer must have, as text."""
        return str(
            self.tokenizer.apply_chat_template(
                as_messages(prompt), add_generation_prompt=True, tokenize=False
            )
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a completion, without its end token."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


Template = bool | Mapping[str, Any]
"""Whether prompts go through a tokenizer's chat template, or values for variables of that template."""


def fix_variables(name: str, tokenizer: Any, variables: Mapping[str, Any]) -> None:
    """Write values of variables into a tokenizer's chat template: whoever renders it, also from a saved
    tokenizer, renders it with them. Raises ModelError for variables that it does not mention."""
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
    # JSON is a part of Jinja's syntax. Jinja removes a newline after a block, and here no other one.
    values = "".join(f"{{% set {key} = {json.dumps(value)} %}}\n" for key, value in variables.items())
    tokenizer.chat_template = values + template


PROBE: Final = "7"
"""A text whose special tokens are looked at."""


def specials(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Token ids that a tokenizer puts before and behind every text."""
    ids, bare = (list(tokenizer.encode(PROBE, add_special_tokens=special)) for special in (True, False))
    starts = (start for start in range(len(ids)) if ids[start : start + len(bare)] == bare)
    start = next(starts, None) if bare else None
    return ([], []) if start is None else (ids[:start], ids[start + len(bare) :])


def append_nothing(tokenizer: Any) -> tuple[int, ...]:
    """Change a tokenizer that puts tokens behind every text, such as its end token or [SEP]: a policy would
    read them as the end of its prompt, and of what it is to continue. Tokens before the text stay. Returns
    the ids it appended. Raises ModelError where it still appends them. Only tokenizers of transformers are
    looked at."""
    from transformers import PreTrainedTokenizerBase

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return ()
    before, appended = specials(tokenizer)
    if not appended:
        return ()
    if "add_eos_token" in tokenizer.init_kwargs:  # saved beside trained weights, it must not come back
        tokenizer.init_kwargs["add_eos_token"] = False
        tokenizer.add_eos_token = False
    # Some append by the post-processor of their backend, whatever that setting says.
    if specials(tokenizer)[1] and (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        from tokenizers.processors import TemplateProcessing

        names = tokenizer.convert_ids_to_tokens(before)
        backend.post_processor = TemplateProcessing(
            single=[*names, "$A"],
            pair=[*names, "$A", "$B"],
            special_tokens=[*zip(names, before, strict=True)],
        )
    if specials(tokenizer) != (before, []):
        raise ModelError(
            f"the tokenizer puts {tokenizer.convert_ids_to_tokens(appended)} behind every prompt, which the "
            "policy would read as its end; set add_eos_token = false in tokenizer_config.json, or correct "
            "post_processor in tokenizer.json"
        )
    return tuple(appended)


def load(
    name: str, device: str | None = None, weights_in: str = "float32", chat_template: Template = True
) -> Loaded:
    """Load a model and its tokenizer, in float32 or ``bfloat16``, with the chat template that the tokenizer
    may have, with values for its variables, or without (False). Raises ModelError naming the remedy."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if why := missing(name):
        raise ModelError(why)
    location, provenance = locate_model(name)
    where: dict[str, Any] = {"local_files_only": provenance["from"] != "hub" or silent(name)}
    weights = _fitting(name, location, where)
    tokenizer = _tokenizer(name, location, where, chat_template)
    try:
        # The masks of packs are boolean: eager attention would add them to the scores as 0 and 1.
        settings = {"attn_implementation": "sdpa", "trust_remote_code": trust.trusted()}
        if weights is not None:
            config = AutoConfig.from_pretrained(location, trust_remote_code=trust.trusted(), **where)
            # Before any weight is read: transformers would make tensors of whatever sizes config.json states.
            with torch.device("meta"):
                sizes.check_model(AutoModelForCausalLM.from_config(config, **settings), config, weights)
        settings |= {"dtype": getattr(torch, weights_in), "output_loading_info": True}
        read: Any = AutoModelForCausalLM.from_pretrained(location, **settings, **where)
        model, info = read
        if lost := sorted(info["missing_keys"]):  # these would be random numbers
            raise ValueError(
                f"{len(lost)} of its tensors are missing from the weight files, such as {lost[0]}"
            )
    except Exception as error:  # damaged files raise what their reader likes
        from grpobench.runs.models.token_budgets import is_out_of_memory

        if is_out_of_memory(error):
            raise
        why = trust.remedy(error) or f"{first_line(error)}; {USUAL}"
        raise ModelError(f"model {name!r} could not be loaded from {location}: {why}") from error
    _demand_finite(name, location, model)
    # Only now: loading may have fetched the files that this hashes.
    if provenance["from"] == "hub":
        provenance |= hub_provenance(name)
    provenance |= trust.recorded()
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    # Chat models name further ends here, such as that of a turn, beside the tokenizer's one.
    ends = model.generation_config.eos_token_id if model.generation_config else None
    ends = ends if isinstance(ends, list) else [ends]
    # In a fixed order: the first one pads, and closes demonstrations.
    end = sorted({e for e in [*ends, tokenizer.eos_token_id] if e is not None})
    if not end:
        raise ModelError(f"model {name!r} has no end-of-sequence token; set eos_token in its tokenizer")
    logits = int(model.get_output_embeddings().weight.shape[0])
    if min(end) >= logits:
        raise ModelError(
            f"model {name!r} could never end a completion: its end token {tokenizer.eos_token!r} has the id "
            f"{min(end)}, and the model knows {logits} tokens; set eos_token in its tokenizer_config.json to "
            "one of these, or resize the model's embeddings"
        )
    return Loaded(model, tokenizer, provenance, tuple(end))


def _fitting(name: str, location: str, where: Mapping[str, Any]) -> sizes.Held | None:
    """`sizes.fitting`; None for the file of a package, which is known. Raises ModelError."""
    if "gguf_file" in where:
        return None
    try:
        return sizes.fitting(location, **where)
    except Exception as error:  # damaged files raise what their reader likes
        raise ModelError(
            f"model {name!r} could not be loaded from {location}: {first_line(error)}; {USUAL}"
        ) from error


def _tokenizer(name: str, location: str, where: Mapping[str, Any], chat_template: Template) -> Any:
    """The model's tokenizer, whose chat template is tried, or removed. Raises ModelError, also for one that
    knows no letter: that is what transformers makes of a folder whose tokenizer files are absent."""
    from transformers import AutoTokenizer

    files = f"{location} has no files of a tokenizer that fit; save them beside the weights (save_pretrained)"
    try:
        tokenizer = read_outline(AutoTokenizer, location, trust_remote_code=trust.trusted(), **where)
    except Exception as error:  # damaged files raise what their reader likes
        why = trust.remedy(error) or f"{files} ({first_line(error)})"
        raise ModelError(f"the tokenizer of model {name!r} could not be loaded: {why}") from error
    # Before the template is tried below, so that it is tried with these values.
    if isinstance(chat_template, Mapping):
        fix_variables(name, tokenizer, chat_template)
    if not chat_template:
        tokenizer.chat_template = None  # Saved beside trained weights, it still reads the prompts they know.
    elif getattr(tokenizer, "chat_template", None):
        bound()  # before the first rendering, which may never end
        try:
            tokenizer.apply_chat_template(
                [{"role": "user", "content": "?"}], add_generation_prompt=True, tokenize=False
            )
        except DataError as error:
            raise ModelError(f"model {name!r} in {location}: {error}") from error
    # Without special tokens, which say nothing about letters.
    if not {*tokenizer.encode(string.printable, add_special_tokens=False)} - {tokenizer.unk_token_id}:
        raise ModelError(f"the tokenizer of model {name!r} knows no letter: {files}")
    return tokenizer


def _demand_finite(name: str, location: str, model: Any) -> None:
    """Raise ModelError for weights that are not numbers: everything computed from them would not be one."""
    import torch

    # Both ends say it, since NaN is passed on, and need no tensor of truths as large as the weights.
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


def outline(name: str, weights: bool = True, chat_template: Template = True) -> Loaded:
    """A model's configuration and tokenizer alone: enough to encode prompts and to know its context. Loads no
    weights and writes nothing. `chat_template` is as for `load`. With `weights` the configuration must fit
    their files, which are then fetched if they are on the hub. Raises ModelError naming the remedy."""
    from transformers import AutoConfig

    if why := missing(name):
        raise ModelError(why)
    local = folder_of(name)
    where: dict[str, Any] = {
        "local_files_only": name in model_packages.PACKAGED or local is not None or silent(name)
    }
    location = str(local[1]) if local else name
    if not local and name in model_packages.PACKAGED:
        location, more = outline_of(name, model_packages.PACKAGED[name].file)
        where |= more
    if weights:
        _fitting(name, location, where)
    tokenizer = _tokenizer(name, location, where, chat_template)
    try:
        config = read_outline(AutoConfig, location, trust_remote_code=trust.trusted(), **where)
    except Exception as error:  # damaged files raise what their reader likes
        why = trust.remedy(error) or f"config.json cannot be read ({first_line(error)})"
        raise ModelError(f"{location}: {why}") from error
    return Loaded(SimpleNamespace(config=config), tokenizer, {"name": name, "place": location})
