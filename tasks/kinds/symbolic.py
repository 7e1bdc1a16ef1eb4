"""Word problems with variables: a question and its solution, the values that the variables may take, and the
conditions that these values meet (GSM-Symbolic, arXiv:2410.05229)."""

# All arithmetic is exact, on whole numbers and fractions. With floating-point numbers int(0.29 * 100) is 28,
# and a solution would end in another number than its problem has.

from __future__ import annotations

import ast
import math
import operator
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

Number = int | Fraction
Value = Any
"""A number, a text, a truth value, or a list of values."""
Values = Mapping[str, Value]
Compiled = Callable[[Values], Value]
Function = Callable[..., Value]

ATTEMPTS = 20_000
"""Draws of a template's values before it counts as one without any that meet its conditions."""
LARGEST_RANGE, LARGEST_POWER = 100_000, 64
SECTIONS = re.compile(r"^#(init|conditions|answer):[ \t]*", re.MULTILINE)
ASSIGNED = re.compile(r"\A([\w$][\w\s$,]*)=(?!=)(.+)\Z", re.DOTALL)
VARIABLE = re.compile(r"\{(\w+),[^{}]*\}")
EXPRESSION = re.compile(r"\{([^{}]+)\}")
QUOTIENT = re.compile(r"(\d{1,9})/([1-9]\d{0,8})")
DECIMAL = re.compile(r"\d{1,9}(\.\d{1,9})?")
SENTENCE = re.compile(r"(\A|[.!?]\s+)([a-z])")
BINARY: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: simplest(Fraction(a) / b),
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
UNARY: Mapping[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
}


class TemplateError(ValueError):
    """A template that does not follow the notation, or whose conditions no values meet."""


@dataclass(frozen=True)
class SymbolicProblem:
    """A template with values for its variables."""

    question: str
    solution: str


@dataclass(frozen=True)
class SymbolicTemplate:
    """A template in the notation of GSM-Symbolic.

    `question` is the text, with ``{variable,example}`` where a value goes, and then the sections ``#init:``
    (a line ``- variable = range(2, 10)`` or ``- word, value = sample([...])`` for each variable) and
    ``#conditions:``. `solution` has ``{expression}`` where its value goes. `lists` are the
    lists of words that expressions may name.
    """

    question: str
    solution: str
    lists: Mapping[str, Value]

    def draw(self, rng: random.Random) -> SymbolicProblem:
        """The problem with random values that meet the conditions. Each set of values is as probable as its
        draw in the order of the lines is, given that the conditions hold. Raises TemplateError if none is
        found."""
        for _ in range(ATTEMPTS):
            values = self._values(rng)
            if values is not None:
                return self.fill(values)
        raise TemplateError(f"{ATTEMPTS:,} draws of values do not meet the conditions")

    def fill(self, values: Values) -> SymbolicProblem:
        """The problem with these values. Raises TemplateError for an expression that has no value."""
        try:
            question = VARIABLE.sub(lambda match: written(values[match[1]]), self._text)
            solution = EXPRESSION.sub(lambda match: written(self._solution[match[1]](values)), self.solution)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise TemplateError(f"cannot be filled with {dict(values)}: {error}") from error
        return SymbolicProblem(capitals(question.strip()), capitals(solution.strip()))

    def _values(self, rng: random.Random) -> dict[str, Value] | None:
        """Values in the order of the lines; None as soon as one of the conditions does not hold."""
        values: dict[str, Value] = {"": rng}
        for names, draw, conditions in self._lines:
            try:
                drawn = draw(values)
                parts = _spread(drawn, len(names)) if len(names) > 1 else [drawn]
                values |= zip(names, map(as_number, parts), strict=True)
                if not all(condition(values) for condition in conditions):
                    return None
            except TemplateError:
                raise
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                raise TemplateError(f"{', '.join(names)}: no value or condition: {error}") from error
        del values[""]
        return values

    @cached_property
    def _text(self) -> str:
        return SECTIONS.split(self.question)[0]

    @cached_property
    def _sections(self) -> Mapping[str, str]:
        parts = SECTIONS.split(self.question)
        return dict(zip(parts[1::2], parts[2::2], strict=True))

    @cached_property
    def _solution(self) -> Mapping[str, Compiled]:
        return {text: self._compile(text) for text in set(EXPRESSION.findall(self.solution))}

    @cached_property
    def _lines(self) -> list[tuple[list[str], Compiled, list[Compiled]]]:
        """The variables of each line, what draws their values, and the conditions that can be tested then.
        Lines on which a condition depends come first, so that few values are drawn in vain."""
        lines = [*map(_assignment, _listed(self._sections.get("init", "")))]
        conditions = [*map(_parsed, _listed(self._sections.get("conditions", "")))]
        needed = {name for condition in conditions for name in _names(condition)}
        for names, tree in reversed(lines):
            if needed & {*names}:
                needed |= _names(tree)
        rows: list[tuple[list[str], Compiled, list[Compiled]]] = []
        assigned = {*FUNCTIONS, *self.lists}
        for names, tree in sorted(lines, key=lambda line: not needed & {*line[0]}):
            assigned |= {*names}
            ready = [condition for condition in conditions if _names(condition) <= assigned]
            conditions = [condition for condition in conditions if condition not in ready]
            rows.append((names, self._compiled(tree), [self._compiled(condition) for condition in ready]))
        if conditions:
            raise TemplateError(f"#conditions: {ast.unparse(conditions[0])!r} names an unknown variable")
        return rows

    def _compile(self, text: str) -> Compiled:
        return self._compiled(_parsed(text))

    def _compiled(self, node: ast.expr) -> Compiled:
        """A function of the values. Raises TemplateError for anything but arithmetic, comparisons, lists and
        calls of `FUNCTIONS`."""
        match node:
            case ast.Constant(value=bool()):
                raise TemplateError(f"{ast.unparse(node)!r}: truth values are not part of the notation")
            case ast.Constant(value=int() | float() | str() as value):
                constant = Fraction(str(value)) if isinstance(value, float) else value
                return lambda values: constant
            case ast.Name(id=name):
                lists = self.lists
                return lambda values: values[name] if name in values else lists[name]
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                parts = [self._compiled(element) for element in elements]
                return lambda values: [part(values) for part in parts]
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                base, exponent = self._compiled(left), self._compiled(right)
                return lambda values: power(base(values), exponent(values))
            case ast.BinOp(left=left, op=kind, right=right) if type(kind) in BINARY:
                return _applied(BINARY[type(kind)], self._compiled(left), self._compiled(right))
            case ast.Compare(left=left, ops=kinds, comparators=others) if {*map(type, kinds)} <= {*BINARY}:
                operands = [self._compiled(operand) for operand in (left, *others)]
                return _compared([BINARY[type(kind)] for kind in kinds], operands)
            case ast.UnaryOp(op=sign, operand=operand) if type(sign) in UNARY:
                return _applied(UNARY[type(sign)], self._compiled(operand))
            case ast.IfExp(test=test, body=body, orelse=other):
                chosen, then, otherwise = map(self._compiled, (test, body, other))
                return lambda values: then(values) if chosen(values) else otherwise(values)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
                return _applied(FUNCTIONS[name], *map(self._compiled, arguments))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in DRAWS:
                function, inputs = DRAWS[name], [self._compiled(argument) for argument in arguments]
                return lambda values: function(values[""], *(part(values) for part in inputs))
        raise TemplateError(f"{ast.unparse(node)!r} is not part of the notation")


def _applied(function: Function, *parts: Compiled) -> Compiled:
    if len(parts) == 2:  # Most are operations on two numbers; without a loop they take half the time.
        left, right = parts
        return lambda values: function(left(values), right(values))
    return lambda values: function(*[part(values) for part in parts])


def _compared(tests: Sequence[Function], operands: Sequence[Compiled]) -> Compiled:
    def hold(values: Values) -> bool:
        numbers = [operand(values) for operand in operands]
        return all(map(lambda test, a, b: test(a, b), tests, numbers, numbers[1:]))

    return hold


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise TemplateError(f"{text.strip()!r} is no expression") from error


def _assignment(line: str) -> tuple[list[str], ast.expr]:
    """The variables of a line of ``#init:``, and what draws their values."""
    match = ASSIGNED.match(line)
    if match is None:
        raise TemplateError(f"#init: {line!r}: write VARIABLE = EXPRESSION")
    return [name.strip(" $") for name in match[1].split(",")], _parsed(match[2])


def _names(tree: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _listed(section: str) -> list[str]:
    """The lines of a section, which begin with a hyphen."""
    return [line.strip().removeprefix("-").strip() for line in section.splitlines() if line.strip(" -")]


def _spread(drawn: Value, count: int) -> list[Value]:
    parts = drawn if isinstance(drawn, list) else [drawn]
    if len(parts) != count:
        raise TemplateError(f"{count} variables for {len(parts)} values")
    return parts


def simplest(value: Fraction) -> Number:
    return value.numerator if value.denominator == 1 else value


def as_number(value: Value) -> Value:
    """A text such as ``3/4`` or ``0.25`` as its number; any other value as it is."""
    if not isinstance(value, str):
        return value
    if quotient := QUOTIENT.fullmatch(value):
        return simplest(Fraction(int(quotient[1]), int(quotient[2])))
    return simplest(Fraction(value)) if DECIMAL.fullmatch(value) else value


def written(value: Value) -> str:
    """A value as a text has it: finite decimals in digits, other fractions as a/b."""
    if not isinstance(value, Fraction) or value.denominator == 1:
        return str(value)
    for digits in range(1, 7):
        scaled = value * 10**digits
        if scaled.denominator == 1:
            units, fraction = divmod(abs(scaled.numerator), 10**digits)
            return f"{'-' * (value < 0)}{units}.{fraction:0{digits}}"
    return f"{value.numerator}/{value.denominator}"


def capitals(text: str) -> str:
    """The text with a capital letter at the start of each sentence."""
    return SENTENCE.sub(lambda match: match[1] + match[2].upper(), text)


def power(base: Number, exponent: Number) -> Number:
    if exponent.denominator != 1 or not -LARGEST_POWER <= exponent <= LARGEST_POWER:
        raise ArithmeticError(f"exponent {exponent}: must be a whole number up to {LARGEST_POWER}")
    return simplest(Fraction(Fraction(base) ** int(exponent)))


def rounded(value: Number, digits: int = 0) -> Number:
    return simplest(Fraction(round(Fraction(value), digits)))


def ensure_int(value: Number) -> int:
    if value.denominator != 1:
        raise ArithmeticError(f"{value} is no whole number")
    return int(value)


def range_list(start: int, end: int) -> list[int]:
    """From `start` up to but not including `end`."""
    if end - start > LARGEST_RANGE:
        raise ArithmeticError(f"a list of {end - start:,} values; {LARGEST_RANGE:,} are the most")
    return list(range(start, end))


def arange(rng: random.Random, start: Number, end: Number, step: Number) -> Number:
    """A number from `start` up to `end`, both included."""
    return simplest(Fraction(start + step * rng.randrange(math.floor((end - start) / Fraction(step)) + 1)))


def sample(rng: random.Random, values: Sequence[Value], count: int = 1) -> Value:
    """One of the values, or a list of several different ones."""
    return rng.choice(values) if count == 1 else rng.sample(values, count)


def sample_sequential(rng: random.Random, values: Sequence[Value], count: int) -> list[Value]:
    """Values that follow each other, such as days of the week."""
    first = rng.randrange(len(values))
    return [values[(first + index) % len(values)] for index in range(count)]


def range_str(rng: random.Random, start: int, end: int, step: int, words: Sequence[str]) -> list[Value]:
    """A number in words, and the number."""
    number = rng.randrange(start, end, step)
    return [words[number - 1], number]


FUNCTIONS: Mapping[str, Function] = {
    "is_int": lambda value: value.denominator == 1,
    "divides": lambda a, b: b != 0 and a % b == 0,
    "int": math.trunc,
    "float": lambda value: value,
    "round": rounded,
    "Fraction": str,  # A quotient stays one in the text.
    "ensure_int": ensure_int,
    "range_list": range_list,
}
DRAWS: Mapping[str, Function] = {
    "sample": sample,
    "sample_sequential": sample_sequential,
    "range": random.Random.randrange,
    "range_str": range_str,
    "arange": arange,
}
"""Functions of a generator of random numbers and further arguments, for ``#init:``."""
