"""The line of others' code where an error was raised, with which a message about that code begins."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Frame:
    """A line of a file that an error went through."""

    path: Path
    line: int
    function: str
    """Qualified name, such as ``Half.compute_signal``; empty at the top level of a file."""
    error: BaseException
    """The error that was raised there: the one that was caught, or one behind it."""

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line} {self.function}".rstrip()

    @property
    def message(self) -> str:
        """The line and what was raised there: ``mine.py:12 Half.compute_signal raised KeyError: 'x'``. An
        error without a message, as of an assert, is told with the text of the line."""
        text = "" if str(self.error).strip() else linecache.getline(str(self.path), self.line).strip()
        return f"{self} raised {describe_error(self.error)}" + (f" in `{text}`" if text else "")


def describe_error(error: BaseException) -> str:
    """Type and message of an error; the type alone if it has no message."""
    message = str(error.msg) if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {message}" if message.strip() else type(error).__name__


def innermost(error: BaseException, owned: Collection[Path] | Callable[[Path], bool]) -> Frame | None:
    """The last line in files of the owner that an error went through or, without one, that the error behind
    it went through, and so on. `owned` are these files, resolved, or says whether one is among them.

    A traceback ends in the library that was called last; its user wants the last line of the code that he
    wrote."""
    owns = owned if callable(owned) else owned.__contains__
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, SyntaxError) and behind.filename and owns(Path(behind.filename).resolve()):
            return Frame(Path(behind.filename).resolve(), behind.lineno or 1, "", behind)
        for frame, line in reversed(list(traceback.walk_tb(behind.__traceback__))):
            path = Path(frame.f_code.co_filename).resolve()
            if owns(path):
                name = frame.f_code.co_qualname.replace("<locals>.", "")
                return Frame(path, line, "" if name == "<module>" else name, behind)
        behind = behind.__cause__ or behind.__context__
    return None
