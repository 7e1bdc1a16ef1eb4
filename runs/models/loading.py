"""Loading a model and its tokenizer, wherever they are, and refusing those that could not be trusted."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from grpobench.runs.models import chat_templates, packages, sizes, trust
from grpobench.runs.models.errors import USUAL, ModelError, told
from grpobench.runs.models.finding import folder_of, hub_origin, missing, place_of, silent
from grpobench.runs.models.packages import source_of
from grpobench.tasks.data.errors import DataError

WINDOWS = ("sliding_window", "attention_window_size", "attention_chunk_size", "window_size")
"""Names in a model's configuration of how many tokens back some of its layers see."""


def window(config: Any) -> int:
    """Tokens that every attention layer of a model sees: sequences up to it are read as without a window. 0
    for a model without one."""
    settings = config.get_text_config()
    kinds = getattr(settings, "layer_types", None)
    if kinds and set(kinds) <= {"full_attention", "attention"}:
        return 0
    found = [getattr(settings, name, None) for name in WINDOWS]
    return min((reach for reach in found if isinstance(reach, int) and reach > 0), default=0)


@dataclass(frozen=True)
class Loaded:
    """A model ready for a run: float32 weights, its tokenizer, and where both came from."""

    model: Any
    tokenizer: Any
    origin: dict[str, str]
    end: tuple[int, ...] = field(default=())
    """Token ids that end a completion."""

    @property
    def context(self) -> int:
        """Tokens of the longest sequence that is read and written as the model means it."""
        most = int(getattr(self.model.config, "max_position_embeddings", 0) or 2**20)
        return min(most, window(self.model.config) or most)

    @property
    def bound(self) -> str:
        """What bounds a sequence, with its tokens, in words."""
        if self.context == window(self.model.config):
            return f"attention window of {self.context} tokens (longer sequences are not served)"
        return f"context of {self.context}"

    @property
    def pad(self) -> int:
        return int(self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.end[0])

    def encode(self, prompt: str) -> tuple[int, ...]:
        """Token ids of a prompt; through the tokenizer's chat template where it has one."""
        if getattr(self.tokenizer, "chat_template", None):
            message = [{"role": "user", "content": prompt}]
            ids = self.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
        else:
            ids = self.tokenizer.encode(prompt)
        return tuple(ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a completion, without its end token."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def load(name: str, device: str | None = None) -> Loaded:
    """Load a model and its tokenizer in float32. Raises ModelError naming the remedy."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if why := missing(name):
        raise ModelError(why)
    place, origin = place_of(name)
    where: dict[str, Any] = {"local_files_only": origin["from"] != "hub" or silent(name)}
    weights = _fitting(name, place, where)
    tokenizer = _tokenizer(name, place, where)
    try:
        settings = {"attn_implementation": "sdpa", "trust_remote_code": trust.trusted()}
        if weights is not None:
            config = AutoConfig.from_pretrained(place, trust_remote_code=trust.trusted(), **where)
            with torch.device("meta"):
                sizes.check_model(AutoModelForCausalLM.from_config(config, **settings), config, weights)
        settings |= {"dtype": torch.float32, "output_loading_info": True}
        read: Any = AutoModelForCausalLM.from_pretrained(place, **settings, **where)
        model, info = read
        if lost := sorted(info["missing_keys"]):  # these would be random numbers
            raise ValueError(
                f"{len(lost)} of its tensors are missing from the weight files, such as {lost[0]}"
            )
    except Exception as error:  # damaged files raise what their reader likes
        from grpobench.runs.models.rations import gave_out

        if gave_out(error):
            raise
        why = trust.remedy(error) or f"{told(error)}; {USUAL}"
        raise ModelError(f"model {name!r} could not be loaded from {place}: {why}") from error
    _demand_finite(name, place, model)
    if origin["from"] == "hub":
        origin |= hub_origin(name)
    origin |= trust.recorded()
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    ends = model.generation_config.eos_token_id if model.generation_config else None
    ends = ends if isinstance(ends, list) else [ends]
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
    return Loaded(model, tokenizer, origin, tuple(end))


def _fitting(name: str, place: str, where: Mapping[str, Any]) -> sizes.Held | None:
    """`sizes.fitting`; None for the file of a package, which is known. Raises ModelError."""
    if "gguf_file" in where:
        return None
    try:
        return sizes.fitting(place, **where)
    except Exception as error:  # damaged files raise what their reader likes
        raise ModelError(
            f"model {name!r} could not be loaded from {place}: {told(error)}; {USUAL}"
        ) from error


def _tokenizer(name: str, place: str, where: Mapping[str, Any]) -> Any:
    """The model's tokenizer, whose chat template is tried. Raises ModelError, also for one that knows no
    letter: that is what transformers makes of a folder whose tokenizer files are absent."""
    from transformers import AutoTokenizer

    files = f"{place} has no files of a tokenizer that fit; save them beside the weights (save_pretrained)"
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(place, trust_remote_code=trust.trusted(), **where)
    except Exception as error:  # damaged files raise what their reader likes
        why = trust.remedy(error) or f"{files} ({told(error)})"
        raise ModelError(f"the tokenizer of model {name!r} could not be loaded: {why}") from error
    if getattr(tokenizer, "chat_template", None):
        chat_templates.bound()
        try:
            tokenizer.apply_chat_template(
                [{"role": "user", "content": "?"}], add_generation_prompt=True, tokenize=False
            )
        except DataError as error:
            raise ModelError(f"model {name!r} in {place}: {error}") from error
    if not {*tokenizer.encode(string.printable, add_special_tokens=False)} - {tokenizer.unk_token_id}:
        raise ModelError(f"the tokenizer of model {name!r} knows no letter: {files}")
    return tokenizer


def _demand_finite(name: str, place: str, model: Any) -> None:
    """Raise ModelError for weights that are not numbers: everything computed from them would not be one."""
    import torch

    bad = [key for key, tensor in model.state_dict().items() if not torch.isfinite(tensor).all()]
    if bad:
        raise ModelError(
            f"model {name!r}: {len(bad)} of its tensors in {place} hold NaN or infinity, such as {bad[0]}; "
            "save the model again from a healthy state"
        )


def outline(name: str) -> Loaded:
    """A model's configuration and tokenizer alone: enough to encode prompts and to know its context. Reads no
    weights and writes nothing. Raises ModelError naming the remedy."""
    from transformers import AutoConfig

    if why := missing(name):
        raise ModelError(why)
    found = folder_of(name)
    where: dict[str, Any] = {
        "local_files_only": name in packages.PACKAGED or found is not None or silent(name)
    }
    place = str(found[1]) if found else name
    if not found and name in packages.PACKAGED:
        source = source_of(packages.PACKAGED[name].file)
        place, where["gguf_file"] = str(source.parent), source.name
    _fitting(name, place, where)
    tokenizer = _tokenizer(name, place, where)
    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=trust.trusted(), **where)
    except Exception as error:  # damaged files raise what their reader likes
        why = trust.remedy(error) or f"config.json cannot be read ({told(error)})"
        raise ModelError(f"{place}: {why}") from error
    return Loaded(SimpleNamespace(config=config), tokenizer, {"name": name, "place": place})
