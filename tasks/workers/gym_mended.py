"""Generators of Reasoning Gym whose own scorer is not enough, and why."""

# Each scorer here was fooled by an answer that knows nothing of its problem; `grpobench tasks check` tries
# such answers on every generator.

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

REFUSED: Final[Mapping[str, str]] = {
    "propositional_logic": "its scorer takes any conclusion that follows: (P ∨ Q), whatever the premises, is "
    "right for most of its problems",
}
"""Generators that are refused, and why."""
NEAR: Final = 1e-4
"""Maximum error of a probability: the package's, and here at most a hundredth of the probability."""


def same_word(answer: str, entry: Mapping[str, Any], package_score: float) -> float:
    """1 for the reference in any case. The package's scorer compares truth values of two texts, and so
    accepts any text."""
    return float(answer.strip().casefold() == str(entry["answer"]).strip().casefold())


def finite(answer: str, entry: Mapping[str, Any], package_score: float) -> float:
    """The package's score of a number. For nan that scorer computes min(1, nan), which is 1."""
    return 0.0 if re.search("nan|inf", answer, re.IGNORECASE) else package_score


def probability(answer: str, entry: Mapping[str, Any], package_score: float) -> float:
    """1 for the probability, as a decimal or a ratio. The package's scorer gives 1 to any beginning of its
    digits, such as 0, and to 0 if the probability is small."""
    rational = entry["metadata"]["rational"]
    truth = Fraction(rational["numerator"], rational["denominator"])
    try:
        value = Fraction(answer.replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return 0.0
    return float(abs(value - truth) <= min(Fraction(NEAR), truth / 100))


def sorted_numbers(answer: str, entry: Mapping[str, Any], package_score: float) -> float:
    """1 for the same numbers in the same order. The package's scorer accepts a list of NaN of the right
    length, and numbers that are off by 1."""
    try:
        numbers = [float(number) for number in json.loads(answer.replace("'", '"'))]
    except (ValueError, TypeError):
        return 0.0
    return float(numbers == [float(number) for number in entry["metadata"]["sorted_numbers"]])


def solutions(answer: str, entry: Mapping[str, Any], package_score: float) -> float:
    """The package's score of a list of finite numbers. That scorer ignores whatever is not a number."""
    parts = [part.strip() for part in answer.strip().strip('"').split(",")]
    try:
        read = [float(part) for part in parts] if parts != [""] else []
    except ValueError:
        return 0.0
    return package_score if all(map(math.isfinite, read)) else 0.0


def words_in_order(answer: str, entry: Mapping[str, Any], package_score: float) -> float:
    """The package's score, but 1 only for the reference's words alone: that scorer ignores what follows
    them."""
    same = answer.casefold().split() == str(entry["answer"]).casefold().split()
    return float(same) if same or package_score >= 1 else package_score


def arithmetic(answer: str, entry: Mapping[str, Any], package_score: float) -> float:
    """The package's score, but 1 only for an expression of the given numbers, each used as often as given,
    with + - * / and brackets. The scorer of puzzle24 accepts any four numbers (1*2*3*4 for every problem) and
    drops a fraction; both scorers read 2.4 as the numbers 2 and 4."""
    plain = re.fullmatch(r"[-+*/()\s\d]*", answer) and not re.search(r"\*\s*\*|/\s*/", answer)
    used = sorted(int(number) for number in re.findall(r"\d+", answer)) if plain else []
    if used == sorted(entry["metadata"]["numbers"]) and package_score >= 1:
        value = worked_out(answer)
        return float(value == entry["metadata"].get("target", 24))
    return min(package_score, 0.05)


SIGNS: Final[Mapping[type, Callable[[Fraction], Fraction]]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
OPERATORS: Final[Mapping[type, Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def worked_out(text: str) -> Fraction | None:
    """The exact value of an expression of integers, + - * / and brackets; None for anything else."""

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return Fraction(node.value)
        if isinstance(node, ast.UnaryOp) and type(node.op) in SIGNS:
            return SIGNS[type(node.op)](value(node.operand))
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


Mended = Callable[[str, Mapping[str, Any], float], float]
MENDED: Final[Mapping[str, Mended]] = {
    "coin_flip": probability,
    "complex_arithmetic": finite,
    "countdown": arithmetic,
    "game_of_life_halting": same_word,
    "letter_jumble": words_in_order,
    "number_sorting": sorted_numbers,
    "polynomial_equations": solutions,
    "puzzle24": arithmetic,
}
"""The score of an answer to a problem, given the package's score."""


# Answers that are right and not the reference


def prove(generator: str, answer: str, entry: Mapping[str, Any]) -> bool:
    """Whether an answer solves a problem of several solutions, by a check that is independent of the
    package's. False for every other generator."""
    proof = PROOFS.get(generator)
    return proof is not None and proof(answer, entry["metadata"])


def colors(answer: str, metadata: Mapping[str, Any]) -> bool:
    """Every vertex has one of the colors, and the ends of every edge have different ones."""
    puzzle, color_by_vertex = metadata["puzzle"], json.loads(answer)
    if set(color_by_vertex) != {str(vertex) for vertex in puzzle["vertices"]}:
        return False
    apart = all(color_by_vertex[str(start)] != color_by_vertex[str(end)] for start, end in puzzle["edges"])
    return apart and set(color_by_vertex.values()) <= set(puzzle["color_options"])


def pours(answer: str, metadata: Mapping[str, Any]) -> bool:
    """The moves are possible, and one of the jugs holds the target at the end."""
    sizes = metadata["puzzle"]["jug_capacities"]
    volumes = dict.fromkeys((chr(ord("A") + i) for i in range(len(sizes))), 0)
    most = dict(zip(volumes, sizes, strict=True))
    for move in json.loads(answer):
        verb, _, jugs = move.partition(" ")
        source, _, target = jugs.partition("->")
        if verb == "pour" and source != target:
            moved = min(volumes[source], most[target] - volumes[target])
            volumes[source], volumes[target] = volumes[source] - moved, volumes[target] + moved
        elif verb in ("fill", "empty") and not target:
            volumes[source] = most[source] if verb == "fill" else 0
        else:
            return False
    return metadata["puzzle"]["target"] in volumes.values()


def buttons(answer: str, metadata: Mapping[str, Any]) -> bool:
    """The buttons reach the target with the minimum number of presses; each toggles the light."""
    pressed = re.findall("[A-C]", answer)
    acts = {button["name"]: button for button in metadata["buttons"]}
    value, light = metadata["initial_value"], metadata["initial_state"]
    for name in pressed:
        act = acts[name]
        if act["active_state"] in ("any", light):
            by = act["value"]
            value = {"add": value + by, "subtract": value - by, "multiply": value * by}[act["type"]]
        light = "green" if light == "red" else "red"
    return value == metadata["target_value"] and len(pressed) == len(metadata["solution_path"])


def queens(answer: str, metadata: Mapping[str, Any]) -> bool:
    """The board keeps the given queens, has one in each row, and no two attack each other."""
    rows = [row.split() for row in answer.split("\n")]
    set_before = [row.split() if isinstance(row, str) else row for row in metadata["puzzle"]]
    size = len(set_before)
    if [len(row) for row in rows] != [size] * size or {sign for row in rows for sign in row} != {"Q", "_"}:
        return False
    placed = [(i, j) for i, row in enumerate(rows) for j, sign in enumerate(row) if sign == "Q"]
    givens_kept = all(
        rows[i][j] == "Q" for i, row in enumerate(set_before) for j, sign in enumerate(row) if sign == "Q"
    )
    lines = [
        {i for i, _ in placed},
        {j for _, j in placed},
        {i + j for i, j in placed},
        {i - j for i, j in placed},
    ]
    return givens_kept and len(placed) == size and all(len(line) == size for line in lines)


STEPS: Final = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}


def boxes_pushed(answer: str, metadata: Mapping[str, Any]) -> bool:
    """Step by step, boxes are pushed only to free squares; at the end every goal has its box."""
    cells = {
        (i, j): sign
        for i, row in enumerate(metadata["gamestr"].split("\n"))
        for j, sign in enumerate(row.split())
    }
    at = {
        sign: {cell for cell, symbol in cells.items() if symbol in signs}
        for sign, signs in {"wall": "+", "box": "@$", "goal": "X$%", "player": "*%"}.items()
    }
    (i, j), boxes = at["player"].pop(), at["box"]
    for step in answer:
        down, right = STEPS[step]
        ahead, beyond = (i + down, j + right), (i + 2 * down, j + 2 * right)
        if ahead in at["wall"] or ahead not in cells:
            continue
        if ahead in boxes:
            if beyond in at["wall"] or beyond in boxes or beyond not in cells:
                continue
            boxes = (boxes - {ahead}) | {beyond}
        i, j = ahead
    return boxes == at["goal"]


def reckoned(answer: str, metadata: Mapping[str, Any]) -> bool:
    """An expression of the problem's numbers has the target's value; problems with the same numbers may
    differ in the target."""
    used = sorted(int(number) for number in re.findall(r"\d+", answer))
    return used == sorted(metadata["numbers"]) and worked_out(answer) == metadata.get("target", 24)


PROOFS: Final[Mapping[str, Callable[[str, Mapping[str, Any]], bool]]] = {
    "countdown": reckoned,
    "graph_color": colors,
    "jugs": pours,
    "n_queens": queens,
    "puzzle24": reckoned,
    "quantum_lock": buttons,
    "sokoban": boxes_pushed,
}
