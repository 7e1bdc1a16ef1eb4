"""A learned reward model: any `AutoModelForSequenceClassification` with one output scores prompt and answer.

It reads text with its own tokenizer, so that policy and reward model need not share a vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from grpobench.runs.models import chat_templates, sizes, trust
from grpobench.runs.models.errors import USUAL, ModelError
from grpobench.runs.models.hashes import weights_hash
from grpobench.runs.models.packages import cache_folder
from grpobench.runs.models.rations import Ration, portions
from grpobench.runs.settings.config import TINY, RewardConfig
from grpobench.runs.settings.rules import missing_reward_model
from grpobench.runs.tools.safe_points import safe_point
from grpobench.tasks.data.errors import DataError
from grpobench.tasks.task import Task

Input = Literal["chat", "pair", "text"]


@dataclass(frozen=True)
class Score:
    """What the reward model says about one completion."""

    value: float
    cut: bool
    """Whether the beginning of the prompt was left out because the text is longer than the context."""


class Scorer:
    """Scores completions in batches, without gradient, on the device of the policy."""

    def __init__(self, reward: RewardConfig, task: Task, device: torch.device | str) -> None:
        if why := missing_reward_model(reward.model):
            raise ModelError(f"reward.model: {why}")
        place = self._place(reward.model, task)
        self.model, self.tokenizer = read(place, reward.model_dtype)
        self.origin = origin(reward.model, place, self.model.config)
        self.model.to(device).eval().requires_grad_(False)
        self.ration = Ration("completions scored (reward.model_batch)", reward.model_batch)
        self.input: Input = fitting(self.tokenizer, reward.model_input)
        self.limit = context(self.model.config, self.tokenizer)

    def _place(self, name: str, task: Task) -> str:
        if name != TINY:
            return str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name
        from grpobench.runs.reward.tiny import made

        return str(made(task, cache_folder() / "reward"))

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """One score per (prompt, completion), in order."""
        encoded = [self.encode(prompt, completion) for prompt, completion in pairs]
        order = sorted(
            range(len(pairs)), key=lambda i: len(encoded[i][0]["input_ids"])
        )  # alike lengths pad little
        found: dict[int, float] = {}

        def read(some: range) -> None:
            safe_point()
            chosen = order[some.start : some.stop]
            batch = self.tokenizer.pad([encoded[i][0] for i in chosen], return_tensors="pt")
            with torch.no_grad():
                logits = self.model(**batch.to(self.model.device)).logits
            found.update(zip(chosen, logits[:, 0].float().tolist(), strict=True))

        portions(self.ration, len(order), read, "a completion to be scored by the reward model")
        return [Score(found[i], encoded[i][1]) for i in range(len(pairs))]

    def encode(self, prompt: str, completion: str) -> tuple[dict[str, list[int]], bool]:
        """What the model is fed, and whether it was cut. A text that does not fit loses its beginning; of a
        pair the longer segment does."""
        fed = self._tokens(prompt, completion)
        cut = len(fed["input_ids"]) > self.limit
        if cut:
            fed = self._tokens(prompt, completion, truncation=True, max_length=self.limit)
        return {name: list(values) for name, values in fed.items()}, cut

    def _tokens(self, prompt: str, completion: str, **limits: Any) -> Any:
        if self.input == "chat":
            messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
            return self.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **limits)
        if self.input == "pair":
            return self.tokenizer(prompt, completion, **limits)
        return self.tokenizer(prompt + completion + (self.tokenizer.eos_token or ""), **limits)


def read(place: str, dtype: str) -> tuple[Any, Any]:
    """A reward model and its tokenizer. Raises ModelError naming the remedy."""
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    chat_templates.bound()
    own = {"trust_remote_code": trust.trusted()}
    try:
        weights = sizes.fitting(place)
        tokenizer = AutoTokenizer.from_pretrained(place, padding_side="right", truncation_side="left", **own)
        if weights is not None:
            config = AutoConfig.from_pretrained(place, **own)
            with torch.device("meta"):
                model = AutoModelForSequenceClassification.from_config(config, **own)
            sizes.check_model(model, config, weights)
        model, info = AutoModelForSequenceClassification.from_pretrained(
            place, dtype=getattr(torch, dtype), output_loading_info=True, **own
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        why = trust.remedy(error) or f"{error}; {USUAL}"
        raise ModelError(f"reward.model: {place!r} could not be loaded: {why}") from error
    if getattr(tokenizer, "chat_template", None):
        try:
            talk = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
            tokenizer.apply_chat_template(talk, tokenize=False)
        except DataError as error:
            raise ModelError(f"reward.model: {place}: {error}") from error
    if absent := sorted(info["missing_keys"]):
        raise ModelError(
            f"reward.model: {place} has no trained weights for {', '.join(absent[:3])}; a reward model is "
            "trained with a scalar head and saved with it, a language model has none"
        )
    if model.config.num_labels != 1:
        raise ModelError(
            f"reward.model: {place} has {model.config.num_labels} outputs, a reward model has one; train a "
            "head with num_labels=1"
        )
    config = model.config.get_text_config()
    # A decoder reads its score off the last token that is not `config.pad_token_id`. Padding with that very
    # token makes a completion's score the same in any batch.
    if config.pad_token_id is None:
        own = tokenizer.pad_token_id
        config.pad_token_id = own if own is not None else tokenizer.eos_token_id
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)
    return model, tokenizer


def origin(name: str, place: str, config: Any) -> dict[str, str]:
    """Where a reward model came from: the sha256 of a folder's weights, or the hub's commit."""
    if Path(place).is_dir():
        return {"name": name, "from": "folder", "sha256": weights_hash(Path(place))} | trust.recorded()
    commit = str(getattr(config, "_commit_hash", None) or "")
    return {"name": name, "from": "hub", "commit": commit} | trust.recorded()


def fitting(tokenizer: Any, wanted: str) -> Input:
    """How the model is fed. Raises ModelError where its tokenizer cannot do what was asked for."""
    able: dict[Input, bool] = {
        "chat": bool(getattr(tokenizer, "chat_template", None)),
        "pair": tokenizer.sep_token_id is not None,
        "text": True,
    }
    if wanted == "auto":
        return next(name for name, can in able.items() if can)
    for name, can in able.items():
        if name == wanted and can:
            return name
    lack = "chat template" if wanted == "chat" else "separator token"
    raise ModelError(f'reward.model_input: the reward model\'s tokenizer has no {lack}; set it to "auto"')


def context(config: Any, tokenizer: Any) -> int:
    """Most tokens that the model reads. Tokenizers without a limit state a huge number."""
    stated = getattr(config, "max_position_embeddings", 0) or 2**20
    return int(min(stated, tokenizer.model_max_length))
