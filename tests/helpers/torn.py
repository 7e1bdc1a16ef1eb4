"""Numbers of which no figure can be drawn."""

from __future__ import annotations

from typing import Any

from grpobench.analysis.topics.numbers import Numbers


class TornNumbers(Numbers):
    """They raise in whichever process draws."""

    @property
    def drawn(self) -> Any:  # type: ignore[override]
        raise RuntimeError("torn numbers")
