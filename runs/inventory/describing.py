"""What the code says of itself: settings with their docstrings, degenerate cases, an algorithm's needs."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from grpobench.runs.tools import strict

if TYPE_CHECKING:
    from grpobench.algorithms.algorithm import Algorithm

Row = dict[str, Any]


def plainly(value: Any) -> str:
    """A value as a reader of settings wants it."""
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if value == "" else str(value)


@cache
def syntax(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def field_docs(cls: type) -> dict[str, str]:
    """The strings under the fields of a dataclass and its bases, by field."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        module = inspect.getmodule(base)
        if not dataclasses.is_dataclass(base) or module is None:
            continue
        for node in syntax(module).body:
            if isinstance(node, ast.ClassDef) and node.name == base.__name__:
                found |= documented(node)
    return found


def documented(node: ast.ClassDef) -> dict[str, str]:
    """Annotated names of a class body that a string follows."""
    found = {}
    for statement, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[statement.target.id] = " ".join(text.value.split())
    return found


def settings(cls: type) -> list[Row]:
    """The fields of a dataclass: name, type, default, docstring."""
    docs, hints = field_docs(cls), strict.hints(cls)
    rows = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        default: Any = "(required)"
        if field.default is not dataclasses.MISSING:
            default = strict.plain(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            default = strict.plain(field.default_factory())
        rows.append(
            {
                "name": field.name,
                "type": readable(hints[field.name]),
                "default": default,
                "summary": docs.get(field.name, ""),
            }
        )
    return rows


def readable(hint: Any) -> str:
    """A type as a reader of settings wants it: the choices, or the type's name."""
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    return (
        hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")
    )


DEGENERATE = "Degenerate cases:"


def paragraphs(cls: type) -> tuple[str, str]:
    """(what a docstring says about degenerate cases, the rest of it)."""
    text = inspect.cleandoc(cls.__doc__ or "")
    before, _, after = text.partition(DEGENERATE)
    cases, _, rest = after.partition("\n\n")
    return " ".join(cases.split()), f"{before.rstrip()}\n\n{rest}".strip()


def degenerate(cls: type) -> str:
    return paragraphs(cls)[0]


def needs(cls: Any) -> list[str]:
    """What an algorithm asks of models, sampler, task and recipe with its defaults, then what a setting
    adds to that."""
    plain = demands(cls())
    lines = list(plain.values())
    for change, other in alternatives(cls):
        more = [text for key, text in demands(other).items() if plain.get(key) != text]
        lines += [f"with {change}: {text}" for text in more if f"with {change}: {text}" not in lines]
    return lines


def demands(algorithm: Algorithm[Any]) -> dict[str, str]:
    """What an algorithm with its settings asks for, by kind."""
    roles = ", ".join(role.replace("_", " ") for role in algorithm.trains)
    found = {"trains": f"trains {roles}"}
    if algorithm.reads:
        found["reads"] = f"one more forward pass per step of: {', '.join(algorithm.reads)}"
    sampler = "may use recorded rollouts or preferences" if algorithm.off_policy else "the policy's own only"
    found["sampler"] = f"rollouts: {sampler}"
    if algorithm.minimum_group > 1:
        found["group"] = f"at least {algorithm.minimum_group} completions per problem"
    if algorithm.scores:
        found["scores"] = f"task scores: {', '.join(sorted(algorithm.scores))}"
    asked = {
        "a greedy answer to every problem, decoded beside the group": algorithm.greedy_baseline,
        "a task of one turn with an answer marker": algorithm.locates_answers,
        'embeddings mixed while decoding: a task of one turn, sampler.kind = "hf"': algorithm.mixer()
        is not None,
        "a study of the training problems with the initial policy, once": algorithm.studies,
        "the gradient of the entropy": algorithm.differentiates_entropy,
    }
    return found | {text: text for text, holds in asked.items() if holds}


def alternatives(cls: Any) -> list[tuple[str, Any]]:
    """The algorithm with one setting changed: each other choice, and a number that is 0 made 1."""
    found = []
    for field, hint in strict.hints(cls).items():
        default = getattr(cls(), field)
        others: tuple[Any, ...] = ()
        if get_origin(hint) is Literal:
            others = tuple(choice for choice in get_args(hint) if choice != default)
        elif isinstance(default, bool):
            others = (not default,)
        elif default == 0:
            others = (1,)
        for other in others:
            text = f"{field} = {plainly(other)}"
            if default == 0 and not isinstance(default, bool):
                text = f"{field} above 0"
            try:
                found.append((text, cls(**{field: other})))
            except ValueError:  # Not on its own.
                continue
    return found
