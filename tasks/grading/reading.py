"""Extract a Python program from a completion: the last complete definition of the requested function."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import textwrap
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

LONGEST: Final = 200_000
"""Characters of code that is parsed here; no sandbox runs longer code."""
FIRST: Final = 5
LAST: Final = 40
"""How many parts at the ends of a stretch of lines may be dropped until it parses."""
EFFORT: Final = 4
LEAST_EFFORT: Final = 20_000
"""Characters that may be parsed for this: this many per character of the stretch, plus a constant."""
BUILT_IN: Final = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}


def program(completion: str, truth: Mapping[str, Any]) -> str | None:
    """The program in a completion; None if nothing defines the function and nothing can be its body.
    `truth` has ``entry``, ``before``, ``header`` and ``after``, as `grpobench.tasks.kinds.programs`
    describes them.

    Thoughts are removed before (`tasks/thoughts.py`).

    1. Code is in fences of three or more backticks or tildes, also within lists and quotations and also
       unclosed. If no fence defines the function, code is in stretches of lines that begin like code. Fences
       of another language than Python count only if no other fence defines the function.
    2. A definition is `def`, `async def`, `class` or an assignment (for example of a lambda) at the top level
       of code that parses. It is complete if its body is more than a docstring, `pass` or ``...``; an import
       does not count. If none is complete, the last one counts, so that it fails as itself.
    3. Names that the last definition uses and does not define come from the rest of the completion: imports,
       functions, classes and constants, each from the nearest place before it, else after it.
    4. If nothing defines the function and the prompt has begun it, the completion is its body."""
    text = completion.replace("\r\n", "\n")
    blocks = fenced(text)
    python_blocks = [block for block in blocks if block.python]
    for candidates in (python_blocks, blocks if len(blocks) > len(python_blocks) else [], stretches(text)):
        pieces = [piece(block.code, block.open) for block in candidates]
        chosen = last(pieces, truth["entry"])
        if chosen is not None:
            return assembled(pieces, chosen, truth)
    body = bodies(text, blocks, truth["header"])
    if body is None:
        return None
    return f"{truth['header']}{body}\n{truth['after']}"


# Code blocks

LISTED: Final = r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*+"
FENCE: Final = re.compile(
    rf"(?:(?P<before>{LISTED})(?P<fence>`{{3,}}+|~{{3,}}+)|(?P<words>[^`\n]*+)(?P<behind>`{{3,}}+))"
    r"[ \t]*(?P<language>[^\s`]*+)(?P<rest>[^`\n]*)"
)
"""An opening fence: at the left edge, indented, quoted, in a list, or after words."""
INLINE: Final = re.compile(r"(?<!`)`{3,}+(?:(?:python|py)\s)?([^`\n]++)`{3,}")
CLOSING: Final = re.compile(r"(?P<indent>[ \t>]*)(?P<fence>`{3,}|~{3,})[ \t]*")
CLOSED_BEHIND: Final = re.compile(r"([^`]*[^`\s])`{3,}[ \t]*")
QUOTED: Final = re.compile(r"^[ \t]*(?:>[ \t]?)+")
OTHERS: Final = 4
"""A fence that is indented this much more than the opening one does not close it (CommonMark's rule): it
belongs to the code, for example to a function's docstring."""


@dataclass(frozen=True)
class CodeBlock:
    """The content of a code block."""

    code: str
    python: bool
    """Whether its language is Python or not given."""
    open: bool = False
    """Whether the completion ends before the block does."""


def fenced(text: str) -> list[CodeBlock]:
    """All code blocks, in order."""
    blocks: list[CodeBlock] = []
    opening: re.Match[str] | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        if opening is None:
            if inline := INLINE.search(line):
                blocks.append(CodeBlock(inline[1].strip(), True))
            elif opening := opened(line):
                lines = []
            continue
        ending = ends(line, opening)
        if ending is None:
            lines.append(line)
            continue
        lines += [ending] * bool(ending)
        blocks.append(block(opening, lines))
        opening, lines = opened(line) if CLOSING.fullmatch(line) is None and not ending else None, []
    if opening is not None:
        blocks.append(block(opening, lines, open=True))
    return blocks


def opened(line: str) -> re.Match[str] | None:
    """The fence that a line opens. After words, only the language's name may follow it."""
    fence = FENCE.fullmatch(line)
    return None if fence is None or (fence["behind"] and fence["rest"].strip()) else fence


def ends(line: str, opening: re.Match[str]) -> str | None:
    """The text that a line that ends a block still adds to it, mostly empty; None if it ends none. A block
    ends with a fence of its kind and at least its length, with a fence that opens another block of Python,
    and with backticks after code."""
    fence = opening["fence"] or opening["behind"]
    closing = CLOSING.fullmatch(line)
    if closing and closing["fence"][0] == fence[0] and len(closing["fence"]) >= len(fence):
        indent = len(line) - len(line.lstrip(" \t>"))
        return "" if indent < len(opening["before"] or "") + OTHERS else None
    again = opened(line)
    if again and again["fence"] == fence and again["language"]:
        return "" if is_python(again["language"]) and not again["before"].strip(" \t>") else None
    behind = CLOSED_BEHIND.fullmatch(line)
    return behind[1] if behind and fence[0] == "`" else None


def block(opening: re.Match[str], lines: Sequence[str], open: bool = False) -> CodeBlock:
    """A block's content without quotation marks at line starts and the indentation of a list."""
    before = opening["before"] or ""
    if ">" in before:
        lines = [QUOTED.sub("", line, count=1) for line in lines]
    code = "\n".join(lines)
    return CodeBlock(textwrap.dedent(code) if before else code, is_python(opening["language"]), open)


def is_python(language: str) -> bool:
    return language.strip("{.}").casefold().startswith(("py", "ipy")) or not language


# Code without a fence

CODE: Final = re.compile(
    r"(?:async )?def |class |import |from [\w.]+ import |@\w|[A-Za-z_]\w*(?: ?: ?[^=]+)? ?= ?[^=]"
)
"""How a line in the first column begins if it is code instead of prose."""
BESIDE: Final = re.compile(r"$|[ \t#)\]}]")
"""Lines that may be between code."""


def stretches(text: str) -> Iterator[CodeBlock]:
    """Stretches from a line of code at the left edge to the last line before something that is not code."""
    lines = text.split("\n")
    first = 0
    while first < len(lines):
        last = first
        if CODE.match(lines[first]):
            while last < len(lines) and (CODE.match(lines[last]) or BESIDE.match(lines[last])):
                last += 1
            yield CodeBlock("\n".join(lines[first:last]), True, True)
        first = max(last, first + 1)


# The choice of a piece


@dataclass(frozen=True)
class Piece:
    """A stretch of code; without `tree` if it does not parse."""

    code: str
    tree: ast.Module | None


def piece(code: str, shorten: bool) -> Piece:
    """Code as it is, or without a common indentation, or, if it may be cut off or run into prose, without the
    fewest parts at its end or start that make it parse."""
    for text in (code, textwrap.dedent(code)):
        if (tree := parsed(text)) is not None:
            return Piece(text, tree)
    parts = re.split(r"\n(?=\S)", code) if shorten else []
    left = EFFORT * len(code) + LEAST_EFFORT
    for first in range(min(len(parts), FIRST)):
        for last in range(len(parts) - (not first), max(first, len(parts) - LAST), -1):
            text = "\n".join(parts[first:last])
            left -= len(text)
            if left < 0:
                break
            if (tree := parsed(text)) is not None:
                return Piece(text, tree)
    return Piece(code, None)


def parsed(code: str) -> ast.Module | None:
    """The tree of a program; None if it does not parse. Nothing is run."""
    if len(code) > LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def last(pieces: Sequence[Piece], entry: str) -> int | None:
    """The index of the last piece that defines the function completely, else in any way at all."""
    ranks = [rank(piece, entry) for piece in pieces]
    best = max(ranks, default=0)
    return len(ranks) - 1 - ranks[::-1].index(best) if best else None


def rank(piece: Piece, entry: str) -> int:
    """3 for a complete definition, 2 for one without a body, 1 for text that looks like one and does not
    parse."""
    if piece.tree is None:
        looks = re.search(rf"^(?:async\s+def|def|class)\s+{re.escape(entry)}\b", piece.code, re.MULTILINE)
        return int(looks is not None)
    return max(
        (2 + has_effect(node) for node in defining(piece.tree.body) if entry in bound(node)), default=0
    )


def has_effect(node: ast.stmt) -> bool:
    """Whether a definition does anything."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return not isinstance(node, ast.Import | ast.ImportFrom)
    return not all(
        isinstance(part, ast.Pass) or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
        for part in node.body
    )


def defining(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module that may bind names, also under `if`, `try` and `with`."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from defining(getattr(node, name, ()))


def bound(node: ast.stmt) -> set[str]:
    """The names that a statement itself binds in its module."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    targets: Sequence[ast.expr] = ()
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


# Putting a program together


def assembled(pieces: Sequence[Piece], chosen: int, truth: Mapping[str, Any]) -> str:
    """The chosen piece after its imports from the future, the prompt's code, and what it needs of the other
    pieces."""
    future, code = hoisted(pieces[chosen])
    before = parsed(truth["before"])
    defined_names = BUILT_IN | names(before) | {truth["entry"]}
    helpers = needed(pieces, chosen, defined_names)
    return "\n".join([*future, truth["before"], *helpers, code, truth["after"]])


def hoisted(piece: Piece) -> tuple[list[str], str]:
    """Imports from ``__future__``, which must come first in a program, and the rest, line for line."""
    lines = piece.code.split("\n")
    future = []
    for node in piece.tree.body if piece.tree else ():
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            import_lines = slice(node.lineno - 1, node.end_lineno)
            if "".join(lines[import_lines]).startswith("from") and ";" not in "".join(lines[import_lines]):
                future += lines[import_lines]
                lines[import_lines] = [""] * len(lines[import_lines])
    return future, "\n".join(lines)


def names(tree: ast.Module | None) -> set[str]:
    return set().union(*map(bound, defining(tree.body))) if tree else set()


def needed(pieces: Sequence[Piece], chosen: int, defined_names: Collection[str]) -> list[str]:
    """Statements of the other pieces that define names that the chosen one uses and does not define, and
    recursively what these use."""
    trees = [piece.tree for piece in pieces]
    order = [*range(chosen - 1, -1, -1), *range(chosen + 1, len(pieces))]
    missing = sorted(free(pieces[chosen].code) - set(defined_names))
    statements: dict[tuple[int, int], str] = {}
    visited_names = set(defined_names) | set(missing)
    while missing:
        name = missing.pop()
        for index in order:
            tree = trees[index]
            nodes = [node for node in tree.body if name in bound(node)] if tree else []
            if nodes:
                source = statement(pieces[index].code, nodes[-1])
                statements[index, nodes[-1].lineno] = source
                more = free(source) - visited_names
                visited_names |= more
                missing += sorted(more)
                break
    return [statements[key] for key in sorted(statements)]


def statement(code: str, node: ast.stmt) -> str:
    """The lines of a statement, with its decorators."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n".join(code.split("\n")[first - 1 : node.end_lineno])


def free(code: str) -> set[str]:
    """The names that a program uses and does not bind."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            top = symtable.symtable(code, "program", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    used: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table is top or symbol.is_global())
        }
    return used - {
        symbol.get_name()
        for symbol in top.get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }


# A function's body


def bodies(text: str, blocks: Sequence[CodeBlock], header: str) -> str | None:
    """The body in a completion that continues the prompt's function: its own beginning if that is indented,
    else the last block that returns something, else the first block, else its beginning."""
    if not header:
        return None
    beginning = until_prose(text)
    python_code = [block.code for block in blocks if block.python and block.code.strip()]
    returning = [code for code in python_code if returns(header + indented(code))]
    fits = beginning[:1] in (" ", "\t") and parsed(header + indented(beginning)) is not None
    start = [beginning] if fits else []
    body = next((code for code in (*start, *returning[::-1], *python_code, beginning) if code.strip()), None)
    return None if body is None else indented(body)


def returns(source: str) -> bool:
    """Whether the last function of a program has a return statement with a value."""
    tree = parsed(source)
    return tree is not None and any(
        isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in ast.walk(tree.body[-1])
    )


def until_prose(text: str) -> str:
    """A function's body: up to the first line, except the very first, that begins at the left edge."""
    lines = text.split("\n")
    start = next((i for i, line in enumerate(lines) if line.strip()), 0)
    end = next((i for i in range(start + 1, len(lines)) if lines[i][:1].strip()), len(lines))
    return "\n".join(lines[start:end])


def indented(body: str) -> str:
    """Restore the indentation of a body whose first line, or all of it, has lost it."""
    lines = [line for line in body.split("\n") if line.strip()]
    if not lines or lines[0][0] in " \t":
        return body
    later_unindented = any(line[0] not in " \t" for line in lines[1:])
    return textwrap.indent(body, "    ") if later_unindented else "    " + body.lstrip("\n")
