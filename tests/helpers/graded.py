"""What a grader needs without a policy: completions by their texts, and a tokenizer."""

from __future__ import annotations

import types

import numpy as np

from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.nano import character_tokenizer
from grpobench.runs.sample.rollouts import Rollout

TOKENIZER = character_tokenizer()
LOADED = Loaded(types.SimpleNamespace(device="cpu"), TOKENIZER, {}, (1,))


def make_rollouts(*texts: str) -> list[Rollout]:
    """A completion of each text, behind a prompt of one token."""
    encoded = [tuple(TOKENIZER.encode(text)) for text in texts]
    return [Rollout((5,), tokens, np.zeros(len(tokens), np.float32), stopped=True) for tokens in encoded]
