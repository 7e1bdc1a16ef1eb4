"""Split asserts of a published test into calls for the sandbox and conditions on their values for outside."""

from __future__ import annotations

import ast
import functools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from types import CodeType
from typing import Any, Final

from grpobench.tasks.sandbox.wire import MOST_KEYS, ComparisonBudget, charge


def few(value: Any) -> Any:
    """The elements, unless equal hashes would make a set of them expensive. Raises ValueError."""
    elements = list(value)
    if len(elements) > MOST_KEYS:
        raise ValueError("too long")
    charge(elements, ComparisonBudget())
    return elements


def pairs(value: Any) -> Any:
    """The content of a dictionary, under the same condition."""
    few([key for key, _ in (value.items() if type(value) is dict else value)])
    return value


FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "abs": abs,
    "dict": lambda value: dict(pairs(value)),
    "float": float,
    "int": int,
    "len": len,
    "list": list,
    "max": max,
    "min": min,
    "round": round,
    "set": lambda value: set(few(value)),
    "sorted": sorted,
    "str": str,
    "sum": sum,
    "tuple": tuple,
}
"""Functions that a condition may call, with the built-in meaning."""
NODES: Final = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Call),
    *(ast.List, ast.Tuple, ast.Set, ast.Dict),
    *(ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp),
    *(ast.cmpop, ast.boolop, ast.unaryop, ast.operator),
)
"""Nodes that a condition may contain: no attribute, subscript, comprehension or lambda."""
HIGHEST: Final = 64
"""Largest exponent."""


class Inconvertible(ValueError):
    """A test that is not a list of asserts on calls, with the reason."""


def convert(test: str, functions: Collection[str]) -> tuple[list[str], list[str]]:
    """(calls, conditions) of a list of assert statements; ``_0``, ``_1``, … in a condition are the values of
    the calls, numbered through. A call is one of `functions`, by name, with any arguments. Raises
    Inconvertible.

    ``assert abs(f(1.5) - 0.5) < 1e-6`` becomes the call ``f(1.5)`` and the condition
    ``abs(_0 - 0.5) < 1e-06``: nothing of the condition, and so no expected value, enters the sandbox."""
    calls: list[str] = []
    conditions = []
    for statement in parse(test).body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant | ast.Name):
            continue  # a docstring, or a name alone, which does nothing
        if not isinstance(statement, ast.Assert):
            raise Inconvertible(f"line {statement.lineno}: {type(statement).__name__}, not an assert")
        calls_before = len(calls)
        condition = ast.Expression(Extract(functions, calls).visit(statement.test))
        if len(calls) == calls_before and not holds(ast.unparse(condition), ()):
            raise Inconvertible(f"line {statement.lineno}: an assert without a call, which fails")
        if len(calls) > calls_before:
            conditions.append(checked(condition, len(calls)))
    if not calls:
        raise Inconvertible("no call")
    return calls, conditions


def parse(source: str) -> ast.Module:
    """Parse source of a data set. Raises Inconvertible. Warnings about its escapes are hidden from the
    user."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Inconvertible(f"not Python: {error}") from None


def tested(test: str, reference: str) -> str:
    """The function that the asserts call and the reference defines. Raises Inconvertible."""
    called = [node.func for node in ast.walk(parse(test)) if isinstance(node, ast.Call)]
    defined = {n.name for n in ast.walk(parse(reference)) if isinstance(n, ast.FunctionDef)}
    names = {function.id for function in called if isinstance(function, ast.Name)}
    candidates = sorted(names & defined) or sorted(names - set(FUNCTIONS))
    if len(candidates) != 1:
        raise Inconvertible(f"asserts on {', '.join(candidates) or 'no function'}, not on one function")
    return candidates[0]


class Extract(ast.NodeTransformer):
    """Replaces calls of the program by names of their values."""

    def __init__(self, functions: Collection[str], calls: list[str]) -> None:
        self.functions, self.calls = functions, calls

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            self.calls.append(ast.unparse(node))
            return ast.Name(f"_{len(self.calls) - 1}", ast.Load())
        return self.generic_visit(node)


class Restore(ast.NodeTransformer):
    """Replaces names of values by the calls that gave them, and lists which."""

    def __init__(self, calls: Sequence[str]) -> None:
        self.calls, self.numbers = calls, list[int]()

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in FUNCTIONS:
            return node
        self.numbers.append(int(node.id[1:]))
        return ast.parse(self.calls[self.numbers[-1]], mode="eval").body


def restored(condition: str, calls: Sequence[str]) -> tuple[str, list[int]]:
    """(a condition of `convert` with its calls in the place of their values, the numbers of these calls)."""
    restore = Restore(calls)
    return ast.unparse(restore.visit(ast.parse(condition, mode="eval"))), restore.numbers


def checked(condition: ast.Expression, values: int) -> str:
    """The condition as text, made only of what `NODES` and `FUNCTIONS` allow."""
    called = {id(node.func) for node in ast.walk(condition) if isinstance(node, ast.Call)}
    names = {f"_{number}" for number in range(values)}
    for node in ast.walk(condition):
        if not isinstance(node, NODES):
            raise Inconvertible(f"a condition with {type(node).__name__}")
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name):
            raise Inconvertible("a condition that calls a value")
        if isinstance(node, ast.Name) and node.id not in (FUNCTIONS if id(node) in called else names):
            raise Inconvertible(f"a condition with the name {node.id}")
        if isinstance(node, ast.BinOp) and not frugal(node):
            raise Inconvertible(f"a condition with {type(node.op).__name__}")
    return ast.unparse(condition)


def frugal(node: ast.BinOp) -> bool:
    """Whether an operation takes little memory whatever the values are: sums, differences and quotients,
    and of constants also products and low powers. (Text times a number, or text as a format, can have any
    size.)"""
    if isinstance(node.op, ast.Add | ast.Sub | ast.Div):
        return True
    constant = not any(isinstance(part, ast.Name) for part in ast.walk(node))
    if constant and isinstance(node.op, ast.Pow):
        power = node.right
        return isinstance(power, ast.Constant) and isinstance(power.value, int) and power.value <= HIGHEST
    return constant and isinstance(node.op, ast.Mult)


def holds(condition: str, values: Sequence[Any]) -> bool:
    """Whether a condition of `convert` is true of these values, which are plain. Never raises."""
    names = {f"_{number}": value for number, value in enumerate(values)}
    try:
        return bool(eval(compiled(condition), {"__builtins__": {}, **FUNCTIONS}, names))
    except Exception:  # errors of operations on values of the wrong type
        return False


@functools.lru_cache(maxsize=4096)
def compiled(condition: str) -> CodeType:
    """Evaluate what `convert` has accepted, and nothing else."""
    tree = ast.parse(condition, mode="eval")
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in FUNCTIONS]
    checked(tree, 1 + max((int(name[1:]) for name in names), default=-1))
    return compile(tree, "condition", "eval")
