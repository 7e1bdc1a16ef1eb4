"""Values that settings need beside others, each with the reason and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools import toml

Need = tuple[str, Any, str]
"""(setting, value, why it must have this value). In the reason {} stands for the setting, and {is} for the
setting with the value that it has."""


def needs(config: RunConfig, off: str, *needed: Need) -> Iterator[str]:
    """For each setting that does not have the value it needs, the reason and the remedy; `off` is another
    remedy of all of them."""
    for setting, value, why in needed:
        section, _, key = setting.partition(".")
        current = getattr(getattr(config, section), key)
        if current != value:
            reason = why.replace("{}", setting).replace("{is}", f"{setting} is {toml.value(current)}")
            remedy = "set it to" if why.endswith("{is}") and not off else f"set {setting} ="
            yield f"{reason}; {remedy} {toml.value(value)}{f' or {off}' if off else ''}"
