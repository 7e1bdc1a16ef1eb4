"""JSON as the files of a run hold it: rows as lines, exact numbers, torn files read as absent."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def line(row: Mapping[str, Any]) -> bytes:
    """A row as one line of ASCII JSON: lone surrogates and NULs survive, floats are exact."""
    return json.dumps(finite(row), allow_nan=False).encode() + b"\n"


def finite(value: Any) -> Any:
    """The value with every number that is not finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    return value


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def read_rows(path: Path) -> list[Any]:
    """The rows of a file of whole lines; none where it is absent."""
    if not path.exists():
        return []
    return [json.loads(text) for text in path.read_bytes().splitlines()]


def read_json(path: Path) -> Any:
    """The content of a JSON file; None when it is absent or torn."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
