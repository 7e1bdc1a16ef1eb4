"""Two checkers of whether a chain of reasoning supports its answer, for rewards and for evaluations."""

# `consistent` may be rewarded: the chain's last value is the answer. `supported` evaluates a policy trained
# on the first: a chain can end in the answer without having derived it, and only `supported` notices that.
#
# Both read plain arithmetic: decimals, percentages, `+ - * / ×`, brackets, with units and words in between.
# Equations with powers, roots or unknowns are skipped. The checkers serve tasks in which the chain reaches
# its value before the answer is stated. In MATH it does not: the box is the right side of the last equation.

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

LONGEST = 8192
"""Characters at the end of a chain that are read."""
MOST = 64
"""Numbers, signs and words of one side of an equation that are read."""
REMEMBERED = 8192
"""Chains whose result is cached: answers to one problem are often the same."""
CURRENCIES = "$£€¢"
_NUMBER = r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]{1,15})?|[0-9]{1,15}(?:\.[0-9]{1,15})?|\.[0-9]{1,15}"
_TOKEN = re.compile(
    rf"(?P<number>[{CURRENCIES}]?(?:{_NUMBER}))(?P<percent>\s?%)?(?![0-9])"
    r"|(?P<sign>[-+*/×÷·−–])|(?P<bracket>[()])|(?P<word>[A-Za-z]+)|(?P<other>\S)"
)
_STATEMENT = re.compile(r"[^\n;:!?]+")
_WORD_OPERATORS = re.compile(
    r"\b(?:(plus)|(minus)|(times(?= +[$0-9])|multiplied by)|(divided by)|(?:is equal to|equals?))\b"
)
_UNIT_SLASH = re.compile(r"(?<=[A-Za-z0-9])/(?=[A-Za-z])")
_SIGNS = {"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/"}
_UNITS = frozenset("aghlmps")
"""Single letters that do not stand for numbers."""


@dataclass(frozen=True)
class _Token:
    kind: str
    """`number`, `sign`, `bracket`, `word` or `other`."""
    text: str
    value: Fraction = Fraction(0)
    decimals: int = 0
    percent: bool = False


@dataclass(frozen=True)
class Equation:
    """One equation of a chain: the value of its left side, and the value written on the right."""

    left: Fraction | None
    """None if it divides by 0."""
    right: Fraction
    decimals: int
    """Decimals of the value on the right."""
    percent: bool
    """Whether that value is written as a percentage."""

    @property
    def holds(self) -> bool:
        """Whether both sides are equal, or differ by less than one unit of the last written decimal: rounded
        or cut off."""
        left = self.left
        if left is None:
            return False
        unit = Fraction(int(self.decimals > 0), 10**self.decimals)
        values = _meant(self.right, self.percent)
        units = (unit / 100, unit) if self.percent else (unit,)
        return any(left == value or abs(left - value) < u for value, u in zip(values, units, strict=True))


@functools.lru_cache(REMEMBERED)
def consistent(chain: str, answer: Fraction | None) -> float:
    """1 if the chain's last value is the answer; 0 if it is not or if there is none."""
    last = _last(chain)
    return float(answer is not None and last is not None and answer in _meant(last.value, last.percent))


@functools.lru_cache(REMEMBERED)
def supported(chain: str, answer: Fraction | None) -> float:
    """1 if the chain has equations, all of them hold, and the last one gives the answer."""
    chain_equations = equations(chain)
    if answer is None or not chain_equations or not all(equation.holds for equation in chain_equations):
        return 0.0
    last = chain_equations[-1]
    return float(answer in _meant(last.right, last.percent))


def _meant(value: Fraction, percent: bool) -> tuple[Fraction, ...]:
    """``75%`` may stand for 0.75 and for 75."""
    return (value, value * 100) if percent else (value,)


def _last(chain: str) -> _Token | None:
    """The chain's last value: in its last line with a number, the number after the last ``=``, else the last
    number."""
    for line in reversed(_written(chain).splitlines()):
        tokens = _tokens(line)
        numbers = [token for token in tokens if token.kind == "number"]
        if numbers:
            signs = [index for index, token in enumerate(tokens) if token.text == "="]
            behind = tokens[signs[-1] + 1 :][:1] if signs else []
            return behind[0] if behind and behind[0].kind == "number" else numbers[-1]
    return None


def _written(chain: str) -> str:
    """The end of a chain, with signs instead of words."""
    signs = "+-*/="
    return _WORD_OPERATORS.sub(lambda match: signs[(match.lastindex or 5) - 1], chain[-LONGEST:])


def equations(chain: str) -> list[Equation]:
    """The equations of a chain that can be computed: arithmetic on the left, a value on the right."""
    chain_equations = []
    for statement in _STATEMENT.findall(_written(chain)):
        if "=" not in statement:
            continue
        sides = [_tokens(side) for side in statement.split("=")]
        for before, after in itertools.pairwise(sides):
            left, right = _ending(before[-MOST:]), _beginning(after[:MOST])
            if len(left) > 1 and right and (value := _value(right)) is not None:
                single = right[0] if len(right) == 1 else None
                decimals = single.decimals if single else 0
                chain_equations.append(
                    Equation(_value(left), value, decimals, bool(single and single.percent))
                )
    return chain_equations


def _tokens(text: str) -> list[_Token]:
    """The tokens of a text. A minus belongs to a following number if it touches it and follows neither a
    number nor, directly, a word. A bracket directly after a number multiplies."""
    tokens: list[_Token] = []
    text = _UNIT_SLASH.sub(" ", text)
    for match in _TOKEN.finditer(text):
        kind, spelling = match.lastgroup or "", match.group()
        if kind not in ("number", "percent"):
            if spelling == "(" and tokens and text[match.start() - 1] in "0123456789)":
                tokens.append(_Token("sign", "*"))
            tokens.append(_Token(kind, _SIGNS.get(spelling, spelling)))
            continue
        digits = match["number"].lstrip(CURRENCIES).replace(",", "")
        value, percent = Fraction(digits), match["percent"] is not None
        if tokens and tokens[-1].text == "-" and text[match.start() - 1] in "-−–":
            before = tokens[-2] if len(tokens) > 1 else _Token("other", "")
            apart = before.kind == "word" and text[match.start() - 2 : match.start() - 1] == " "
            if apart or not (before.kind in ("number", "word") or before.text == ")"):
                tokens.pop()
                value = -value
        decimals = len(digits.partition(".")[2])
        tokens.append(_Token("number", digits, value / 100 if percent else value, decimals, percent))
    return tokens


def _unknown(token: _Token) -> bool:
    return token.text == "^" or (token.kind == "word" and len(token.text) == 1 and token.text not in _UNITS)


def _ending(tokens: Sequence[_Token]) -> list[_Token]:
    """The longest expression that the tokens end in; empty if it has an unknown or a power.

    This walks from right to left and either expects an operand or, left of one, an operator.
    """
    taken: list[_Token] = []
    complete, depth, has_operand = 0, 0, False
    for i in range(len(tokens) - 1, -1, -1):
        token = tokens[i]
        if token.text == "^" or (_unknown(token) and not has_operand):
            return []
        if not has_operand and token.kind == "word":
            continue  # a unit behind a number
        part = _left_of_operand(tokens, i, depth) if has_operand else _operand_end(token)
        if part is None:
            break
        taken.append(part)
        depth += (part.text == ")") - (part.text == "(")
        has_operand = part.kind == "number" or part.text == "("
        if has_operand and not depth:
            complete = len(taken)
    return taken[:complete][::-1]


def _operand_end(token: _Token) -> _Token | None:
    """The token if an operand can end with it."""
    return token if token.kind == "number" or token.text == ")" else None


def _left_of_operand(tokens: Sequence[_Token], i: int, depth: int) -> _Token | None:
    """What may stand left of an operand: an operator, a word that multiplies, or its opening bracket."""
    token = tokens[i]
    if token.kind == "sign" or (token.text == "(" and depth):
        return token
    return _Token("sign", "*") if _times(tokens, i) else None


def _times(tokens: Sequence[_Token], index: int) -> bool:
    """Whether a word multiplies: ``x`` after a number and its unit, "of" after a share of the whole."""
    word, before = tokens[index].text, tokens[max(0, index - 2) : index]
    if word in ("x", "X"):
        return any(token.kind == "number" for token in before)
    share = word == "of" and len(before) > 0 and before[-1].kind == "number"
    return share and (before[-1].percent or before[0].text == "/")


def _beginning(tokens: Sequence[_Token]) -> list[_Token]:
    """The longest expression that the tokens begin with, without units."""
    complete, depth, operand = 0, 0, False
    for index, token in enumerate(tokens):
        if not operand and token.kind == "number":
            operand = True
        elif not operand and token.text == "(":
            depth += 1
        elif operand and token.text == ")" and depth:
            depth -= 1
        elif operand and token.kind == "sign":
            operand = False
        else:
            return [] if _unknown(token) and index == complete else list(tokens[:complete])
        if operand and not depth:
            complete = index + 1
    return list(tokens[:complete])


def _value(tokens: Sequence[_Token]) -> Fraction | None:
    """The value of an expression, products before sums, from left to right; None for a division by 0."""
    values: list[Fraction] = []
    signs: list[str] = []

    def work(rank: int) -> None:
        while signs and signs[-1] != "(" and _RANK[signs[-1]] >= rank:
            right, left = values.pop(), values.pop()
            values.append(_APPLY[signs.pop()](left, right))

    try:
        for token in tokens:
            if token.kind == "number":
                values.append(token.value)
            elif token.text == "(":
                signs.append("(")
            elif token.text == ")":
                work(0)
                signs.pop()
            else:
                work(_RANK[token.text])
                signs.append(token.text)
        work(0)
    except ZeroDivisionError:
        return None
    return values[0]


_RANK = {"+": 1, "-": 1, "*": 2, "/": 2}
_APPLY = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
}
