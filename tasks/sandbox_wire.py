"""Reading what came out of a sandbox: bytes that anybody inside may have written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from grpobench.tasks.sandbox import Execution, ExecutionOutcome

DEEPEST: Final = 32
"""Levels of containers in a value."""
LARGEST: Final = 1_000_000
"""Characters of all values of a program together, on the wire."""
MOST_KEYS: Final = 3_000
"""Elements of a set or dictionary: with equal hashes, building one takes the square of their number."""
FAILURES: Final[tuple[ExecutionOutcome, ...]] = ("error", "syntax", "oom", "output_limit")
"""What the program of `sandbox_inside` may say went wrong."""


class Malformed(ValueError):
    """The bytes are not what an honest run writes."""


def read(answer: bytes, calls: int) -> Execution | None:
    """The execution that an answer tells of; None where it stops early, as that of a process that died.

    Exactly one value per call, in order, then the end: a line too many, one twice, one of another form, or
    anything behind the end is an error. Never raises.
    """
    try:
        lines = answer.decode("ascii").split("\n")
        if lines.pop() or not lines:  # the last line is not whole
            return None
        if lines.pop(0) != "ready":
            raise Malformed("it does not begin with ready")
        return _lines(lines, calls)
    except (ValueError, RecursionError) as error:
        return Execution("error", detail=f"malformed answer: {error}"[:200])


def _lines(lines: list[str], calls: int) -> Execution | None:
    values: list[Any] = []
    for number, line in enumerate(lines):
        word, _, rest = line.partition(" ")
        last = number == len(lines) - 1
        if word == "value" and len(values) < calls:
            values.append(decode(json.loads(rest)))
        elif line == "end" and last and len(values) == calls:
            return Execution("pass", tuple(values))
        elif word == "failed" and last:
            kind, _, detail = rest.partition(" ")
            for known in FAILURES:
                if kind == known:
                    return Execution(known, detail=detail[:200])
            raise Malformed("unknown failure")
        else:
            raise Malformed(f"line {number + 2} is out of place")
    return None


def value(text: str) -> Any:
    """What one value's text stands for; `Malformed` itself where it is no such text."""
    try:
        return decode(json.loads(text))
    except (ValueError, RecursionError):
        return Malformed


def decode(node: Any, depth: int = 0) -> Any:
    """The value that a parsed JSON node stands for. Raises ValueError for any other."""
    if node is None or node is True or node is False:
        return node
    if type(node) is str:
        return bytes.fromhex(node).decode("utf-8", "surrogatepass")
    if type(node) is not list or not node or type(node[0]) is not str:
        raise Malformed("not a value")
    tag, *content = node
    if tag in SINGLE and all(type(part) is str for part in content):
        return _single(tag, content)
    if tag not in MANY or len(content) != 1 or type(content[0]) is not list or depth == DEEPEST:
        raise Malformed("not a value")
    try:
        return _many(tag, content[0], depth + 1)
    except TypeError:
        raise Malformed("an element cannot be hashed") from None


def _single(tag: str, content: list[str]) -> Any:
    if len(content) != (2 if tag == "c" else 1):
        raise Malformed("not a value")
    try:
        return SINGLE[tag](*content)
    except OverflowError:
        raise Malformed("a number too large") from None


def _many(tag: str, content: list[Any], depth: int) -> Any:
    if tag in "szd" and len(content) > MOST_KEYS:
        raise Malformed("too many elements in a set or dictionary")
    if tag == "d":
        if any(type(pair) is not list or len(pair) != 2 for pair in content):
            raise Malformed("not a pair")
        value: Any = {decode(key, depth): decode(item, depth) for key, item in content}
    else:
        value = MANY[tag]([decode(item, depth) for item in content])
    if len(value) != len(content):
        raise Malformed("the same element twice")
    return value


SINGLE: Final[Mapping[str, Callable[..., Any]]] = {
    "i": lambda text: int(text, 16),
    "f": float.fromhex,
    "r": float,
    "c": lambda real, imaginary: complex(float.fromhex(real), float.fromhex(imaginary)),
    "b": bytes.fromhex,
}
MANY: Final[Mapping[str, Callable[[list[Any]], Any]]] = {
    "l": list,
    "t": tuple,
    "s": set,
    "z": frozenset,
    "d": dict,
}
