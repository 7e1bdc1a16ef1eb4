"""Completions that were trained on, from the folder `rollouts` of a run."""

from __future__ import annotations

import io
import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import zstandard

from grpobench.analysis.logs.files import LogError

NAME = re.compile(r"step-(\d+)\.jsonl\.zst")


def rollout_steps(run: Path) -> dict[int, Path]:
    """The steps of which a run kept rollouts, in order, and their files."""
    found = [(NAME.fullmatch(path.name), path) for path in (run / "rollouts").glob("step-*.jsonl.zst")]
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def read_rollouts(path: Path, most: int) -> list[dict[str, Any]]:
    """The first `most` rows of a file, a row per problem: `problem`, `prompt`, and `completions` with text,
    tokens, scores and reward. Raises LogError for a damaged file."""
    rows: list[dict[str, Any]] = []
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as stream:
            for line in islice(io.TextIOWrapper(stream, encoding="utf-8"), most):
                row = json.loads(line)
                if not (isinstance(row, dict) and isinstance(row.get("completions"), list)):
                    raise ValueError("no completions")
                rows.append(row)
    except (zstandard.ZstdError, ValueError, OSError) as error:
        raise LogError(
            f"{path}, line {len(rows) + 1}: damaged ({error}); restore or delete the file"
        ) from error
    return rows
