"""What runs inside a sandbox of the CPython tiers: limits itself, runs one program, writes its values.

Only its compiled code enters a sandbox (`tasks/sandbox_process.py` sends it), into an interpreter that has
imported nothing; it therefore imports next to nothing itself. The program shares the process with it and can
overwrite all of it. That gains nothing: what is written here is values, and no expected value is in here.

The answer is lines of ASCII: ``ready``; one ``value JSON`` per call; ``end``. A failure is ``failed KIND
TEXT`` in place of the rest. `tasks/sandbox_wire.py` reads it and fails whatever is not exactly this.
"""

import os
import resource
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes longer to import than most programs take to run
    from collections.abc import Callable
    from typing import Any


def main(job: "dict[str, Any]") -> None:
    """Run `job` and leave the process without finalisers: programs may have put theirs in the way."""
    channel, write, leave = private_channel(), os.write, os._exit

    def say(text: str) -> None:
        data = (text + "\n").encode("ascii")
        while data:
            data = data[write(channel, data) :]

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
    """Standard output by another number; what programs print goes nowhere, and their input is at its end."""
    channel = os.dup(1)
    os.set_inheritable(channel, False)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)
    return channel


def run(job: "dict[str, Any]", say: "Callable[[str], None]") -> None:
    """Define the program, evaluate each call in order, say each value."""
    try:
        program = compile(job["program"], "program", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, OverflowError) as error:
        return say(f"failed syntax {describe(error)}")
    if "random" in job["program"]:
        import random

        random.seed(0)  # a program that draws numbers gets the same ones in every run
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
    """Name and message in ASCII on one line, or only the name where the message fails."""
    try:
        text = (
            type(error).__name__ + ": " + str.__str__(error.args[0]) if error.args else type(error).__name__
        )
    except BaseException:
        text = type(error).__name__
    return ascii(text)[1:-1][:200]


class Encoder:
    """Values as JSON that keeps Python's types: null, true, false, a string for text, and ``[TAG, ...]`` for
    everything else, text and numbers in hexadecimal.

    Only exact built-in types (and the dictionaries of `collections`) are read, and those through their own
    methods, so that no method of a program is called. Raises TypeError for another type, OverflowError above
    `largest` characters in all or `deepest` levels.
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
        if kind in self.plain:
            size, write = self.plain[kind]
            self.charge(size(value))
            return write(value)
        if kind in dictionaries():
            kind = dict
        if kind not in self.many:
            raise TypeError("the value is not of a built-in type")
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


def dictionaries() -> "tuple[type, ...]":
    """The dictionary types of `collections`, which equal plain ones of the same content."""
    module = sys.modules.get("collections")
    names = ("Counter", "OrderedDict", "defaultdict")
    return tuple(getattr(module, name) for name in names) if module else ()
