"""Renders chat templates in a worker process."""

# Imports no torch, whose CUDA build maps more memory than a template may take.

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

LONGEST: Final = 10_000_000
"""Characters of a rendered conversation."""


def renderer() -> Callable[[Any], Any]:
    """What the pool runs: transformers' own function. It is imported without torch, which it does not need
    and which would take seconds."""
    sys.modules["torch"] = None  # type: ignore[assignment]
    from transformers.utils.chat_template_utils import render_jinja_template

    def rendered(argument: Any) -> Any:
        conversations, settings = argument
        texts, spans = list(render_jinja_template(conversations, **settings))
        if sum(map(len, texts)) > LONGEST:
            raise ValueError(f"it makes more than {LONGEST:,} characters of it")
        return [texts, spans]

    return rendered
