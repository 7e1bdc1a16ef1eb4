"""What commands print, and the exit codes that they end with."""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

from grpobench.analysis.tools.text import json_text, visible

DONE, BAD_INPUT, INFRASTRUCTURE, PREEMPTED = 0, 2, 70, 75


def say(text: object, file: TextIO | None = None, flush: bool = False) -> None:
    """Print, with nothing in it that a terminal would obey: names, answers and errors may be of others."""
    print(visible(str(text)), file=file, flush=flush)


def complain(message: str, code: int) -> int:
    say(f"grpobench: {message}", file=sys.stderr)
    return code


def as_json(value: Any) -> str:
    return json_text(json.dumps(value, indent=1, ensure_ascii=False))
