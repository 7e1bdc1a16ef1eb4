"""Options that several commands have."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from grpobench.runs.models import trust
from grpobench.runs.models.finding import FOLDER_VARIABLE as MODELS
from grpobench.runs.settings.overrides import parse_set
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.sources import FOLDER_VARIABLE as DATA
from grpobench.tasks.data.sources import SKIP_VARIABLE
from grpobench.tasks.sandbox.choose import allow_unsafe


def use_places(options: argparse.Namespace) -> None:
    """Put `--data-dir`, `--model-dir`, `--skip-bad`, `--trust-remote-code` and `--unsafe-exec` where worker
    processes see them too."""
    chosen = {DATA: "data_dir", MODELS: "model_dir", SKIP_VARIABLE: "skip_bad"}
    for variable, option in chosen.items():
        if value := getattr(options, option, None):
            os.environ[variable] = "1" if value is True else value
    if getattr(options, "trust_remote_code", False):
        trust.allow()
    if getattr(options, "unsafe_exec", False):
        allow_unsafe()


def assignments(sets: Sequence[str]) -> dict[str, Any]:
    """``FIELD=VALUE`` texts as a table. Raises `ConfigError`."""
    found = {}
    for text in sets:
        parsed = parse_set(text)
        if parsed is None or len(parsed[0]) != 1:
            raise ConfigError([f"--set {text}: write --set FIELD=VALUE with a field of the task"])
        found[parsed[0][0]] = parsed[1]
    return found
