"""Parse the text of one expression, LaTeX or plain, into a tree, or reject it."""

# The grammar covers written answers: numbers, names, arithmetic, roots, powers, the common functions,
# degrees, absolute values, factorials and binomials. It rejects ambiguous text (`\sin x/2`, `f(2)`, `x2`) and
# text that is not an expression (`7\cup 3`, `5\bmod 3`, `3 7`, words). The text comes from a model:
# `3^{10^{12}}` is a tree of five nodes here, and only short numbers are computed.

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any, Literal, NoReturn

Kind = Literal[
    "number", "name", "constant", "+", "*", "/", "^", "-", "°", "root", "factorial", "binomial", "call"
]
TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
FUNCTIONS = frozenset(
    (*TRIGONOMETRIC, "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "log", "ln", "lg", "exp")
)
CONSTANTS = {"pi": "pi", "infty": "infinity", "e": "e", "i": "i"}
DEEPEST = 40
"""Maximum nesting of brackets, roots and exponents."""
MOST_BITS = 4096
"""Longer numbers are not computed here."""

_REPEATED = r"\\(?:overline|bar)\{[0-9]{1,60}\}|\\dot\{[0-9]\}(?:[0-9]{0,60}\\dot\{[0-9]\})?"
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>[0-9]*\.[0-9]*(?:{_REPEATED})|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
    r"|\\(?P<command>[A-Za-z]+)|(?P<word>[A-Za-z]+)|(?P<sign>\\[{}|]|[-+*/^_!°=(){}\[\]|]))"
)
_REPEATING = re.compile(rf"([0-9]*)\.([0-9]*)({_REPEATED})")
_SUBSCRIPT = re.compile(r"_(?:\{(\w{1,12})\}|([A-Za-z0-9]))")
GREEK = re.compile("alpha|beta|gamma|delta|epsilon|theta|lambda|mu|nu|phi|psi|rho|sigma|tau|omega")
_CLOSING = {"(": ")", "[": "]", "{": "}", "|": "|"}
_CALLED = frozenset("fghFGHP")
"""Names before a bracket that are functions, not factors."""


class Unreadable(ValueError):
    """The text is not one expression of this grammar."""


@dataclass(frozen=True)
class Expression:
    """A tree. `parts` are the operands. A number has its value; a name, constant or call has its `name`.
    ``+`` and ``*`` have two or more parts; ``-`` is the sign of one. A root has the radicand and the degree;
    a call of ``log`` has the argument and, if written, the base."""

    kind: Kind
    parts: tuple[Expression, ...] = ()
    name: str = ""
    value: Fraction = Fraction(0)

    def walk(self) -> Iterator[Expression]:
        """This node and all below."""
        yield self
        for part in self.parts:
            yield from part.walk()

    @property
    def names(self) -> frozenset[str]:
        """The variables in it."""
        return frozenset(node.name for node in self.walk() if node.kind == "name")


@lru_cache(maxsize=4096)
def read(text: str) -> Expression | None:
    """The expression in a cleaned text (`latex.clean`); None if the grammar rejects it."""
    try:
        return _Reader(text).only_expression()
    except Unreadable:
        return None


def repeating(text: str) -> Fraction | None:
    """The value of ``0.1\\overline{6}``, ``0.\\bar{3}`` or ``0.\\dot{1}4285\\dot{7}``; None for others."""
    match = _REPEATING.fullmatch(text)
    if match is None:
        return None
    integer, fixed, period = match[1], match[2], re.sub(r"\D", "", match[3])
    scale = 10 ** len(fixed)
    ninths = Fraction(int(period), (10 ** len(period) - 1) * scale)
    return Fraction(int((integer + fixed) or "0"), scale) + ninths


def numeral(value: int | Fraction) -> Expression:
    """The tree of a number."""
    return Expression("number", value=Fraction(value))


def literal(tree: Expression) -> Fraction | None:
    """The value of a number or of a quotient of two, with or without a sign; None for anything that must be
    computed."""
    if tree.kind == "/":
        above, below = map(literal, tree.parts)
        return above / below if above is not None and below else None
    inside = literal(tree.parts[0]) if tree.kind == "-" else None
    return tree.value if tree.kind == "number" else None if inside is None else -inside


def exact(tree: Expression) -> Fraction | None:
    """The value of an expression of arithmetic on numbers; None for anything else, if it is undefined, and if
    it has more than `MOST_BITS`."""
    if tree.kind == "number":
        return tree.value
    operation = _ARITHMETIC.get(tree.kind)
    parts = [exact(part) for part in tree.parts] if operation else [None]
    operands = [part for part in parts if part is not None]
    if operation is None or len(operands) < len(parts):
        return None
    if tree.kind == "^" and (operands[1].denominator > 1 or bits(operands[0]) * abs(operands[1]) > MOST_BITS):
        return None
    if (tree.kind == "^" and not operands[0] and operands[1] <= 0) or (tree.kind == "/" and not operands[1]):
        return None
    value = reduce(operation, operands) if len(operands) > 1 else -operands[0]
    return Fraction(value) if bits(value) <= MOST_BITS else None


def bits(value: Fraction) -> int:
    """The bits of the numerator or the denominator, whichever has more."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


_ARITHMETIC: Mapping[Kind, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "*": operator.mul,
    "/": operator.truediv,
    "^": lambda base, exponent: base ** int(exponent),
    "-": operator.sub,
}


def unfinished(tree: Expression) -> bool:
    """Whether it contains an open sum or product of plain numbers."""
    return any(
        node.kind in "+*" and sum(literal(part) is not None for part in node.parts) > 1
        for node in tree.walk()
    )


def _no(text: str) -> NoReturn:
    raise Unreadable(text)


class _Reader:
    """A recursive-descent parser from left to right, without backtracking."""

    def __init__(self, text: str) -> None:
        self.text, self.position, self.depth = text, 0, 0
        self.bars = 0
        """Absolute values that are open at this depth of brackets."""
        self.kind, self.token = "", ""
        self.advance()

    def advance(self) -> str:
        """Consume the token and look at the next; an empty one is the end."""
        taken = self.token
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            if self.text[self.position :].strip():
                _no("no token")
            self.kind, self.token = "", ""
            return taken
        self.position = match.end()
        self.kind, self.token = str(match.lastgroup), str(match[str(match.lastgroup)])
        if self.kind == "word":
            self._word(match.start("word"))
        return taken

    def _word(self, start: int) -> None:
        """A run of letters is a function, π without its backslash, or up to three factors."""
        if self.token in FUNCTIONS or self.token in ("sqrt", "pi"):
            self.kind = "command"
        elif len(self.token) > 3:
            _no("a word")
        else:
            self.kind, self.token, self.position = "letter", self.token[0], start + 1

    def expect(self, sign: str) -> None:
        if self.advance() != sign:
            _no(f"no {sign}")

    def only_expression(self) -> Expression:
        tree = self.sum()
        return tree if not self.token else _no("more than one expression")

    def sum(self) -> Expression:
        self.depth += 1
        if self.depth > DEEPEST:
            _no("too deep")
        terms = [self.product()]
        while self.kind == "sign" and self.token in "+-":
            sign = self.advance()
            term = self.product()
            terms.append(term if sign == "+" else Expression("-", (term,)))
        self.depth -= 1
        return terms[0] if len(terms) == 1 else Expression("+", tuple(terms))

    def product(self) -> Expression:
        if self.kind == "sign" and self.token in ("+", "-"):
            sign = self.advance()
            if self.kind == "sign" and self.token in ("+", "-"):
                _no("two signs")
            inside = self.product()
            return inside if sign == "+" else Expression("-", (inside,))
        factors = [self.power()]
        while True:
            if self.token in ("*", "cdot", "times"):
                self.advance()
                factors.append(self.signed())
            elif self.token in ("/", "div"):
                self.advance()
                numerator = _times(factors)
                factors = [Expression("/", (numerator, self.signed()))]
                if self.starts_factor():  # Some read 1/2x as half of x, others as one over 2x.
                    _no("a factor behind a quotient")
            elif self.starts_factor():
                if self.kind == "number" and not self.behind_bracket():
                    _no("a number right behind a factor")
                factors.append(self.power())
            else:
                return _times(factors)

    def signed(self) -> Expression:
        if self.kind == "sign" and self.token == "-":
            self.advance()
            return Expression("-", (self.power(),))
        return self.power()

    def starts_factor(self) -> bool:
        if self.kind in ("number", "letter"):
            return True
        if self.kind == "command":
            return self.token not in ("cdot", "times", "div", "rvert")
        return self.token in ("(", "[", "{") or (self.token == "|" and not self.bars)

    def behind_bracket(self) -> bool:
        """Whether the token follows a closing bracket directly, as in ``(x+1)2``."""
        before = self.text[: self.position - len(self.token)].rstrip()
        return before.endswith(")")

    def power(self) -> Expression:
        base = self.postfixed(self.atom())
        if self.token != "^":
            return base
        self.advance()
        exponent = self.group()
        raised = self.postfixed(Expression("^", (base, exponent)))
        return raised if self.token != "^" else _no("two exponents")

    def postfixed(self, tree: Expression) -> Expression:
        while self.kind == "sign" and self.token in ("!", "°"):
            if self.advance() == "!":
                tree = Expression("factorial", (tree,)) if self.token != "!" else _no("5!! is not (5!)!")
            else:
                tree = Expression("°", (tree,))
        return tree

    def group(self) -> Expression:
        """The argument of a command, or an exponent: in braces, or one sign."""
        if self.token == "{":
            return self.bracketed()
        if self.kind == "number" and len(self.token) > 1:
            _no("several digits without braces")
        if self.token == "-":
            self.advance()
            return Expression("-", (self.atom(),))
        return self.atom()

    def bracketed(self) -> Expression:
        opening = self.advance()
        bars, self.bars = self.bars, int(opening == "|")
        inside = self.sum()
        self.bars = bars
        self.expect(_CLOSING[opening])
        return inside

    def atom(self) -> Expression:
        if self.kind == "number":
            return self.mixed(self.numeral())
        if self.kind == "letter":
            return self.symbol(self.token)
        if self.kind == "command":
            return self.command()
        if self.token == "|":
            return Expression("call", (self.bracketed(),), "abs")
        if self.token in ("(", "[", "{"):
            return self.bracketed()
        _no("no operand")

    def numeral(self) -> Expression:
        text = self.advance()
        value = repeating(text)
        return numeral(Fraction(text) if value is None else value)

    def mixed(self, number: Expression) -> Expression:
        """A number, with a following fraction if both make a mixed number, such as ``1\\frac{1}{2}``."""
        behind = re.match(r"\s*\{([0-9]{1,9})\}\{([0-9]{1,9})\}", self.text[self.position :])
        if self.token != "frac" or behind is None or number.value.denominator > 1:
            return number
        above, below = int(behind[1]), int(behind[2])
        if above >= below:  # a product, or a slip
            _no("an improper fraction behind a number")
        self.position += behind.end()
        self.advance()
        return numeral(number.value + Fraction(above, below))

    def symbol(self, name: str) -> Expression:
        remaining = self.text[self.position :]
        if subscript := _SUBSCRIPT.match(remaining):
            self.position += subscript.end()
            name += "_" + (subscript[1] or subscript[2])
        self.advance()
        if self.token == "(" and name in _CALLED:
            _no("a function of that name")
        if self.token in ("_", "'"):
            _no("an index")
        if name in ("e", "i"):
            return Expression("constant", name=name)
        return Expression("name", name=name)

    def command(self) -> Expression:
        name = self.token
        if GREEK.fullmatch(name):
            return self.symbol(name)
        self.advance()
        if name in CONSTANTS:
            return Expression("constant", name=CONSTANTS[name])
        if name in ("frac", "binom"):
            parts = (self.group(), self.group())
            return Expression("/" if name == "frac" else "binomial", parts)
        if name == "sqrt":
            return self.root()
        if name == "lvert":
            bars, self.bars = self.bars, 0
            inside = self.sum()
            self.bars = bars
            self.expect("rvert")
            return Expression("call", (inside,), "abs")
        return self.call(name) if name in FUNCTIONS else _no("a command of another kind")

    def root(self) -> Expression:
        degree = numeral(2)
        if self.token == "[":
            degree = self.bracketed()
        inside = self.bracketed() if self.token == "(" else self.group()
        return Expression("root", (inside, degree))

    def call(self, name: str) -> Expression:
        """A function, its power (``\\sin^2 x``; ``\\sin^{-1}`` is the inverse) and its argument."""
        base: tuple[Expression, ...] = ()
        if name == "log" and self.token == "_":
            self.advance()
            base = (self.group(),)
        power = None
        if self.token == "^":
            self.advance()
            power = self.group()
        if power is not None and exact(power) == -1:
            if name not in ("sin", "cos", "tan"):
                _no("an inverse")
            name, power = f"arc{name}", None
        applied = Expression("call", (self.argument(), *base), name)
        return applied if power is None else Expression("^", (applied, power))

    def argument(self) -> Expression:
        """An argument in brackets, or the factors up to the next sign, function or bracket."""
        if self.token in ("(", "[", "{", "|"):
            inside = self.bracketed() if self.token != "|" else self.atom()
            return self.postfixed(inside)
        negative = self.kind == "sign" and self.token == "-"
        if negative:
            self.advance()
        factors = [self.power()]
        while self.starts_factor() and self.token not in ("(", "[", "{", "|") and self.token not in FUNCTIONS:
            if self.kind == "number":
                _no("a number inside an argument")
            factors.append(self.power())
        if self.token in ("/", "div"):
            _no("a quotient behind an argument without brackets")
        return Expression("-", (_times(factors),)) if negative else _times(factors)


def _times(factors: list[Expression]) -> Expression:
    return factors[0] if len(factors) == 1 else Expression("*", tuple(factors))
