"""Tiny reward models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from grpobench.runs.models.nano import VOCABULARY, character_tokenizer


def save_scorer(folder: Path, kind: str = "llama", labels: int = 1, template: str = "") -> str:
    """A random sequence classifier of width 32 over characters."""
    import transformers

    torch.manual_seed(1)
    tokenizer = character_tokenizer()
    ids: dict[str, Any] = {"pad_token_id": 0, "num_labels": labels, "initializer_range": 0.3}
    if kind == "bert":
        from tokenizers.processors import TemplateProcessing

        special = [("[CLS]", VOCABULARY), ("[SEP]", VOCABULARY + 1)]
        tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
        )
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
        config: Any = transformers.BertConfig(
            vocab_size=len(tokenizer), max_position_embeddings=48, **sizes, **ids
        )
    elif kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=48, n_embd=32, n_layer=2, n_head=2, eos_token_id=1, **ids
        )
    else:
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY, max_position_embeddings=48, eos_token_id=1, **sizes, **ids
        )
    if template:
        tokenizer.chat_template = template
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
