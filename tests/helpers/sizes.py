"""Sizes of published models, for plans that need no weights."""

from __future__ import annotations

from typing import Any

QWEN_7B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
"""The sizes of Qwen2.5-7B, of which its authors state 7.61 billion parameters."""
