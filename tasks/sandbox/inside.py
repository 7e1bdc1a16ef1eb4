"""The program inside a sandbox of the CPython tiers, which limits itself, runs one program, writes its
values."""

# Only the compiled code of this file enters a sandbox (`tasks/sandbox/process.py` sends it), into an
# interpreter that has imported nothing, so it imports next to nothing itself. The program shares the process
# with it and can overwrite all of it. That gains nothing: only values are written here, and no expected value
# is available here.
#
# The answer is lines of ASCII: `ready`; one `value JSON` per call; `end`. A failure is `failed KIND TEXT`
# instead of the rest. `transcript.py` reads it and fails whatever is not exactly this.

import os
import resource
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:  # Importing `typing` takes longer than most programs take to run.
    from collections.abc import Callable
    from typing import Any


def main(job: "dict[str, Any]") -> None:
    """Run `job` and leave the process without finalizers, because programs may have installed their own."""
    channel, write, leave = private_channel(), os.write, os._exit

    def say(text: str) -> None:
        unsent = (text + "\n").encode("ascii")
        while unsent:
            unsent = unsent[write(channel, unsent) :]

    say("ready")
    for name, amount in job["limits"].items():
        resource.setrlimit(getattr(resource, name), (amount, amount))
    try:
        run(job, say)
    except MemoryError:
        say("failed oom")
    except BaseException as error:
        say(f"failed error {describe(error)}")
    leave(0)


def private_channel() -> int:
    """Move standard output to another descriptor; the program's prints go nowhere, and its input is empty."""
    channel = os.dup(1)
    os.set_inheritable(channel, False)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    return channel


def run(job: "dict[str, Any]", say: "Callable[[str], None]") -> None:
    """Define the program, evaluate each call in order, write each value."""
    try:
        program = compile(job["program"], "program", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, OverflowError) as error:
        return say(f"failed syntax {describe(error)}")
    if "random" in job["program"]:
        import random

        random.seed(0)  # A program that draws random numbers gets the same ones in every run.
    encoder = Encoder(job["largest"], job["deepest"])
    module = sys.modules["program"] = types.ModuleType("program")
    exec(program, module.__dict__)
    for call in job["calls"]:
        value = eval(compile(call, "call", "eval", dont_inherit=True), module.__dict__)
        try:
            text = encoder.text(value)
        except OverflowError:
            return say("failed output_limit")
        say(f"value {text}")
    return say("end")


def describe(error: BaseException) -> str:
    """Name and message in ASCII on one line, or only the name if the message fails."""
    try:
        text = (
            type(error).__name__ + ": " + str.__str__(error.args[0]) if error.args else type(error).__name__
        )
    except BaseException:
        text = type(error).__name__
    return ascii(text)[1:-1][:200]


class Encoder:
    """Values as JSON that keeps Python's types: null, true, false, a string for text, and ``[TAG, ...]`` for
    everything else, with text and numbers in hexadecimal.

    Built-in types, fractions and decimals are supported. Subclasses are written as their built-in type (a
    named tuple as a tuple, a member of an IntEnum as a number). Only methods of the built-in type are called,
    so no method or comparison of a program has any influence. Raises TypeError for another type,
    OverflowError above `largest` characters in all or `deepest` levels.
    """

    def __init__(self, largest: int, deepest: int) -> None:
        self.left, self.deepest = largest, deepest
        self.plain: dict[type, tuple[Callable[[Any], int], Callable[[Any], str]]] = {
            # type: (about its size in characters, its text)
            type(None): (lambda value: 4, lambda value: "null"),
            bool: (lambda value: 5, lambda value: "true" if value else "false"),
            int: (lambda value: 9 + value.bit_length() // 4, lambda value: f'["i","{value:x}"]'),
            float: (lambda value: 32, lambda value: f'["f","{value.hex()}"]'),
            complex: (lambda value: 64, lambda value: f'["c","{value.real.hex()}","{value.imag.hex()}"]'),
            str: (lambda value: 2 + 2 * len(value), lambda value: f'"{utf8(value).hex()}"'),
            bytes: (lambda value: 9 + 2 * len(value), lambda value: f'["b","{value.hex()}"]'),
        }
        self.many: dict[type, tuple[str, Callable[[Any], Any]]] = {
            list: ("l", list.__iter__),
            tuple: ("t", tuple.__iter__),
            set: ("s", set.__iter__),
            frozenset: ("z", frozenset.__iter__),
            dict: ("d", dict.items),
        }

    def text(self, value: object, depth: int = 0) -> str:
        kind: type = type(value)
        if kind not in self.plain and kind not in self.many:
            if (number := exact_number(value)) is not None:
                self.charge(len(number))
                return number
            kind, value = built_in(value, (*BUILT_ON, *self.many))
        if kind in self.plain:
            size, write = self.plain[kind]
            self.charge(size(value))
            return write(value)
        if depth == self.deepest:
            raise OverflowError
        self.charge(8)
        tag, walk = self.many[kind]
        if kind is dict:
            parts = [f"[{self.text(k, depth + 1)},{self.text(v, depth + 1)}]" for k, v in walk(value)]
        else:
            parts = [self.text(item, depth + 1) for item in walk(value)]
        return f'["{tag}",[{",".join(parts)}]]'

    def charge(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise OverflowError


def utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


BUILT_ON: "dict[type, Callable[[Any], Any]]" = {
    int: lambda value: int.__add__(value, 0),
    float: lambda value: float.__add__(value, 0.0),
    str: lambda value: str.__add__("", value),
    bytes: lambda value: bytes.__add__(b"", value),
}
"""How to get the built-in value from an instance of a subclass."""


def built_in(value: object, kinds: "tuple[type, ...]") -> "tuple[type, Any]":
    """The built-in type behind a value's type, and the value converted to it for a number or text; containers
    are walked as they are."""
    for kind in kinds:
        if issubclass(type(value), kind):
            return kind, BUILT_ON[kind](value) if kind in BUILT_ON else value
    raise TypeError("the value is not of a built-in type")


LONGEST_NUMBER = 1000
"""Digits of a fraction's parts or of a decimal; exponents of a decimal."""


def exact_number(value: "Any") -> "str | None":
    """The text of a fraction or decimal; None for anything else. No method of a subclass is called."""
    fractions, decimal = sys.modules.get("fractions"), sys.modules.get("decimal")
    if fractions and type(value) is fractions.Fraction:
        above, below = value._numerator, value._denominator
        if type(above) is not int or type(below) is not int:
            return None
        if max(above.bit_length(), below.bit_length()) > 4 * LONGEST_NUMBER:
            raise OverflowError
        return f'["q","{above:x}","{below:x}"]'
    if decimal and type(value) is decimal.Decimal:
        sign, digits, exponent = value.as_tuple()
        if type(exponent) is int:
            if len(digits) > LONGEST_NUMBER or abs(exponent) > LONGEST_NUMBER:
                raise OverflowError
            return f'["m","{"-" * sign}{"".join(map(str, digits))}","{exponent}"]'
    return None
