"""Prompt templates: text files in which ``{question}`` is replaced by a problem's question."""

# The model's chat template, if it has one, is applied later to the whole prompt, when it becomes tokens.

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass
from pathlib import Path

from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError, Source

PROMPTS = Path(__file__).parent
PLACEHOLDER = "{question}"


@dataclass(frozen=True)
class Template:
    """The text of a template, and its file."""

    text: str
    source: Source

    @property
    def opening(self) -> str:
        """The words before the question on its line, such as ``Question:``; empty without any."""
        return self.text.partition(PLACEHOLDER)[0].rpartition("\n")[2].strip()

    def prompt(self, question: str) -> str:
        """The prompt. Other braces, in the question or in the template, have no meaning."""
        return self.text.replace(PLACEHOLDER, question)


def packaged() -> list[str]:
    """Names of the templates that come with the suite."""
    return sorted(path.stem for path in PROMPTS.glob("*.txt"))


def template(name: str) -> Template:
    """A template by the name of a packaged one, or by the path of a text file (with a slash, or ending in
    .txt). Raises DataError for an unknown one, and for one that does not have ``{question}`` exactly once."""
    is_path = "/" in name or name.endswith(".txt")
    path = Path(name).expanduser() if is_path else PROMPTS / f"{name}.txt"
    try:
        content = bounded.as_utf8(bounded.read_bytes(path, bounded.max_text()))
        text = content.decode("utf-8")
    except FileNotFoundError as error:
        if is_path:
            raise DataError(f"template {name}: cannot be read ({error.strerror}); correct the path") from None
        near = difflib.get_close_matches(name, packaged(), n=1)
        did = f"did you mean {near[0]}?" if near else f"known: {', '.join(packaged())}"
        raise DataError(f"template {name!r}: unknown; {did} A path ending in .txt names your own") from None
    except UnicodeDecodeError as error:
        raise DataError(f"template {path}: not UTF-8 text ({error}); fix the file") from None
    except bounded.FileError as error:
        raise DataError(f"template {error}") from None
    if text.count(PLACEHOLDER) != 1:
        raise DataError(
            f"template {path}: must contain {PLACEHOLDER} once, not {text.count(PLACEHOLDER)} times; "
            "fix the file"
        )
    location = str(path) if is_path else f"grpobench: prompts/{path.name}"
    digest, table = hashlib.sha256(content).hexdigest(), f"prompts/{path.name}"
    return Template(text, Source("folder" if is_path else "package", location, digest, table=table))


def template_fault(name: str) -> str:
    """Why a template cannot be read; empty for one that can."""
    try:
        template(name)
    except DataError as error:
        return str(error)
    return ""
