"""Decide with many digits whether two expressions are equal, in a process that can be killed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mpmath import mp

from grpobench.tasks.grading.expressions import Expression, bits, exact

BITS = 128
MOST_BITS = 20_000
"""Sums that need more digits than this, and exponents of more bits than `MOST_EXPONENT`, are not computed."""
MOST_EXPONENT = 60
LARGEST_FACTORIAL = 10**6
POINTS = 5
LEAST = 3
"""Minimum number of points that must give a number."""
BARE_LOG = "\\log"
"""The variable for the base of a logarithm without one: e to some, 10 to others."""


class UndefinedExpression(ArithmeticError):
    """The expression has no value there, or none that is computed."""


Point = Mapping[str, Any]


class Computing:
    """Values at one point with one precision; `lost` is the number of bits that sums lost by adding small to
    large numbers."""

    def __init__(self, point: Point) -> None:
        self.point, self.lost = point, 0

    def value(self, tree: Expression) -> Any:
        """A finite real or complex number, or Undefined."""
        parts = [self.value(part) for part in tree.parts]
        try:
            number = _OPERATIONS[tree.kind](self, tree, parts)
        except (ZeroDivisionError, ValueError, OverflowError) as error:
            raise UndefinedExpression(str(error)) from error
        if not mp.isfinite(number):
            raise UndefinedExpression(tree.kind)
        return number

    def number(self, tree: Expression, parts: Sequence[Any]) -> Any:
        return mp.mpf(tree.value.numerator) / tree.value.denominator

    def variable(self, tree: Expression, parts: Sequence[Any]) -> Any:
        return self.point[tree.name]

    def constant(self, tree: Expression, parts: Sequence[Any]) -> Any:
        if tree.name == "infinity":
            raise UndefinedExpression("infinity")
        return {"pi": +mp.pi, "e": +mp.e, "i": mp.j}[tree.name]

    def sum(self, tree: Expression, parts: Sequence[Any]) -> Any:
        sizes = [mp.mag(part) for part in parts if part]
        if sizes:
            self.lost = max(self.lost, int(max(sizes) - min(sizes)))
        return mp.fsum(parts)

    def product(self, tree: Expression, parts: Sequence[Any]) -> Any:
        return mp.fprod(parts)

    def quotient(self, tree: Expression, parts: Sequence[Any]) -> Any:
        return parts[0] / parts[1]

    def opposite(self, tree: Expression, parts: Sequence[Any]) -> Any:
        return -parts[0]

    def degrees(self, tree: Expression, parts: Sequence[Any]) -> Any:
        return parts[0] * mp.pi / 180

    def power(self, tree: Expression, parts: Sequence[Any]) -> Any:
        base, exponent = parts
        if not base and (not exponent or mp.re(exponent) < 0):
            raise UndefinedExpression("0^0")
        if exponent and mp.mag(exponent) + mp.mag(mp.mag(base) or 1) > MOST_EXPONENT:
            raise UndefinedExpression("too large")
        return mp.power(base, exponent)

    def root(self, tree: Expression, parts: Sequence[Any]) -> Any:
        """The real root of a negative number if the degree is odd; else the principal one."""
        inside, degree = parts
        if mp.im(degree) or degree != int(mp.re(degree)) or not 1 < degree < 1000:
            return mp.power(inside, 1 / degree)
        if not mp.im(inside) and mp.re(inside) < 0 and int(degree) % 2:
            return -mp.root(-mp.re(inside), int(degree))
        return mp.root(inside, int(degree))

    def factorial(self, tree: Expression, parts: Sequence[Any]) -> Any:
        if mp.im(parts[0]) or not -1 < mp.re(parts[0]) < LARGEST_FACTORIAL:
            raise UndefinedExpression("a factorial of that")
        return mp.factorial(parts[0])

    def binomial(self, tree: Expression, parts: Sequence[Any]) -> Any:
        if any(mp.im(part) or abs(part) > LARGEST_FACTORIAL for part in parts):
            raise UndefinedExpression("a binomial coefficient of that")
        return mp.binomial(*parts)

    def call(self, tree: Expression, parts: Sequence[Any]) -> Any:
        argument = parts[0]
        if tree.name == "log":
            base = parts[1] if len(parts) > 1 else self.point[BARE_LOG]
            return mp.log(argument) / mp.log(base)
        if argument and mp.mag(argument) > MOST_EXPONENT:  # It only has digits before the point.
            raise UndefinedExpression("too large")
        return _FUNCTIONS[tree.name](argument)


_OPERATIONS: Mapping[str, Callable[[Computing, Expression, Sequence[Any]], Any]] = {
    "number": Computing.number,
    "name": Computing.variable,
    "constant": Computing.constant,
    "+": Computing.sum,
    "*": Computing.product,
    "/": Computing.quotient,
    "-": Computing.opposite,
    "°": Computing.degrees,
    "^": Computing.power,
    "root": Computing.root,
    "factorial": Computing.factorial,
    "binomial": Computing.binomial,
    "call": Computing.call,
}
_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "sin": mp.sin,
    "cos": mp.cos,
    "tan": mp.tan,
    "cot": mp.cot,
    "sec": mp.sec,
    "csc": mp.csc,
    "arcsin": mp.asin,
    "arccos": mp.acos,
    "arctan": mp.atan,
    "sinh": mp.sinh,
    "cosh": mp.cosh,
    "tanh": mp.tanh,
    "exp": mp.exp,
    "ln": mp.log,
    "lg": mp.log10,
    "abs": abs,
}


def equal(first: Expression, second: Expression) -> bool:
    """Whether both have the same value at every point where they have one. False if too few points do.

    A difference of two constants is computed with 128 bits and with two and four times as many. If it is only
    rounding, it shrinks with them, else it stays. Digits are added if a sum would lose some, as in 10^{60}+1.
    Two expressions in the same variables are compared at a few points of 64 random bits, of both signs. Two
    polynomials of degree d agree there by accident with a probability of d/2^{64} (Schwartz, 1980)."""
    if first == second:
        return True
    names = first.names | second.names
    logs = any(
        node.name == "log" and len(node.parts) == 1 for tree in (first, second) for node in tree.walk()
    )
    difference = Expression("+", (first, Expression("-", (second,))))
    if not names and not logs:
        return vanishes(difference, {}) is True
    zero_flags = [vanishes(difference, point) for point in points(names | ({BARE_LOG} if logs else set()))]
    return zero_flags.count(True) >= LEAST and False not in zero_flags


def vanishes(tree: Expression, point: Point) -> bool | None:
    """Whether an expression is 0 there; None if its value is not computed."""
    try:
        first = _bits(tree)
        sizes = [_size(tree, point, first << i) for i in range(3)]
        if sizes[-1] and not any(sizes[:-1]):
            sizes.append(_size(tree, point, first << 3))
    except UndefinedExpression:
        return None
    nonzero_sizes = [size for size in sizes if size]
    return not sizes[-1] or (
        len(nonzero_sizes) > 1 and bool(nonzero_sizes[-1] < nonzero_sizes[-2] * mp.mpf(2) ** (-BITS // 2))
    )


def order(first: Expression, second: Expression) -> int | None:
    """−1, 0 or 1 if one real constant is smaller than, equal to or larger than another; else None."""
    difference = Expression("+", (first, Expression("-", (second,))))
    if zero := vanishes(difference, {}):
        return 0
    if zero is None:
        return None
    with mp.workprec(_bits(difference)):
        difference_value = _precise(difference, {}, _bits(difference))
        return None if mp.im(difference_value) else (-1 if difference_value < 0 else 1)


def ratio(first: Expression, second: Expression) -> int | None:
    """1 or −1 if one expression is a positive or negative constant multiple of another at every point; None
    if it is not, or if the multiple is 0 or not real."""
    if first.names != second.names:
        return None
    ratios = []
    for point in points(first.names) if first.names else [{}]:
        try:
            with mp.workprec(4 * BITS):
                ratios.append(_precise(first, point, 4 * BITS) / _precise(second, point, 4 * BITS))
        except (UndefinedExpression, ZeroDivisionError):
            continue
    if len(ratios) < LEAST or not ratios[0] or mp.im(ratios[0]):
        return None
    with mp.workprec(2 * BITS):
        same = all(abs(value - ratios[0]) <= abs(ratios[0]) * mp.mpf(2) ** (-BITS) for value in ratios)
    return (1 if ratios[0] > 0 else -1) if same else None


def points(names: frozenset[str] | set[str]) -> list[Point]:
    """A few values for each name, between 0.3 and 3.3, every other point negative in every other name."""
    return [{name: _coordinate(name, i) for name in sorted(names)} for i in range(POINTS)]


def _coordinate(name: str, i: int) -> Any:
    drawn = int.from_bytes(hashlib.sha256(f"{i} {name}".encode()).digest()[:8])
    with mp.workprec(BITS):
        size = mp.mpf(drawn) / 2**64 * 3 + mp.mpf("0.3")
    return -size if i > 1 and drawn % 2 and name != BARE_LOG else size


def _size(tree: Expression, point: Point, precision: int) -> Any:
    with mp.workprec(precision):
        return abs(_precise(tree, point, precision))


def _precise(tree: Expression, point: Point, precision: int) -> Any:
    """The value with `precision` bits, and more if its sums lose some. A part that shrinks with every further
    bit, such as \\sin\\pi, is rounding and is dropped."""
    for _ in range(3):
        with mp.workprec(precision):
            computing = Computing(point)
            value = computing.value(tree)
        needed = computing.lost + BITS
        if needed > MOST_BITS:
            raise UndefinedExpression("too many digits")
        if needed <= precision:
            break
        precision = 2 * needed
    return value


def _bits(tree: Expression) -> int:
    """The initial precision: enough for every number in the expression."""
    return BITS + max((bits(node.value) for node in tree.walk()), default=0)


def rounds_to(tree: Expression, written: Expression, decimal_places: int) -> bool:
    """Whether a constant, rounded or cut to so many decimals, is the number as written."""
    target = exact(written)
    try:
        with mp.workprec(2 * BITS):
            value = _precise(tree, {}, 2 * BITS)
            if target is None or mp.im(value):
                return False
            gap = abs(value - mp.mpf(target.numerator) / target.denominator)
            return bool(gap < mp.mpf(10) ** -decimal_places)
    except UndefinedExpression:
        return False
