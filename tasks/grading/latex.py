"""Bring LaTeX and plain answers to one spelling without changing their meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from grpobench.tasks.grading.notation import FONTS, as_latex, with_names, with_scales

COMMANDS: Mapping[str, str] = {
    "dfrac": "\\frac",
    "tfrac": "\\frac",
    "cfrac": "\\frac",
    "dbinom": "\\binom",
    "tbinom": "\\binom",
    "leq": "\\le",
    "leqslant": "\\le",
    "geq": "\\ge",
    "geqslant": "\\ge",
    "neq": "\\ne",
    "lbrace": "\\{",
    "rbrace": "\\}",
    "lt": "<",
    "gt": ">",
    "varnothing": "\\emptyset",
    **dict.fromkeys(FONTS, "\\text"),
}
"""Commands with the same meaning."""
SIZES = (
    "left|right|bigl|bigr|Bigl|Bigr|biggl|biggr|Biggl|Biggr|big|Big|bigg|Bigg|displaystyle|textstyle|limits"
)
_SIZE = re.compile(rf"\\(?:left|right)\s*\.|\\(?:{SIZES})(?![A-Za-z])")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_SPACE = re.compile(r"(?<!\\)\\[,;:!> ]|\\q?quad(?![A-Za-z])|~|\s+")
_THIN_THOUSANDS = re.compile(r"(?<=[0-9])(?:,\\!|\\!,|\{,\}|\\,)(?=[0-9]{3}(?![0-9]))")
_SPACED_THOUSANDS = re.compile(  # Not separated by a plain space, which may also separate two numbers.
    r"(?<![0-9A-Za-z.,_^])[0-9]{1,3}(\\[ ;:]|~)[0-9]{3}(?![0-9])(?:\1[0-9]{3}(?![0-9]))*"
    r"(?!(?:\\[ ,;:]|~)[0-9])"
)
_THOUSANDS = re.compile(r"(?<![0-9A-Za-z.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9]|,[0-9])")
_DEGREES = re.compile(r"\^\s*\{?\s*(?:\\(?:circ|degree)(?![A-Za-z])|°)\s*\}?|\\degree(?![A-Za-z])")
_CURRENCY = re.compile(r"\\?[$]|[€£]")
_ENDS = re.compile(r"^(?:[\s,;:*_`]|\.(?![0-9]|\\(?:overline|bar|dot)))+|[\s.,;:*_`]+$")
_ALONE = re.compile(r"([\^_])\{([A-Za-z0-9])\}(?![A-Za-z0-9])")
_LONG_POWER = re.compile(r"(?<=[\^_])[0-9]{2,}")
_FUNCTION = re.compile(r"\\(frac|binom|sqrt|overline|bar|dot)(?![A-Za-z])")
_NAME = re.compile(r"\\[A-Za-z]+")
_TEXT = re.compile(r"\\text ?\{[^{}]*\}")
MOST_PASSES = 20


@lru_cache(maxsize=4096)
def clean(text: str) -> str:
    """One spelling of an answer. Idempotent; meant for at most a few hundred characters.

    Removed are: ``$`` in every role, a box around the whole, spaces that typesetting ignores, the size of
    brackets, thousands separators outside of brackets (also thin spaces, as in ``1\\ 234\\ 567``),
    punctuation and emphasis at both ends. Words stay in ``\\text{...}``; every degree sign becomes ``°``.

    It does no mathematics: 0.5 and one half as a fraction stay different."""
    for _ in range(MOST_PASSES):  # Removing one thing can expose another.
        before, text = text, _once(text)
        if text == before:
            break
    return text


def _once(text: str) -> str:
    text = _unwrap(_CURRENCY.sub("", as_latex(text)).strip())
    text = _SPACED_THOUSANDS.sub(lambda match: match.group().replace(match[1], ""), text)
    text = _THIN_THOUSANDS.sub("", text)
    text = _SIZE.sub(" ", text)
    text = _DEGREES.sub("°", text)
    text = _COMMAND.sub(lambda match: COMMANDS.get(match[1], match.group()), text)
    text = without_thousands(with_scales(with_names(_SPACE.sub(" ", text))))
    text = "".join(_tight(piece) for piece in _pieces(text))
    text = _ALONE.sub(r"\1\2", _LONG_POWER.sub(r"{\g<0>}", _braced(text)))
    return _ENDS.sub("", text)


def _unwrap(text: str) -> str:
    """The text without math delimiters and a box around the whole."""
    if text.startswith("\\boxed{") and closing(text, len("\\boxed")) == len(text) - 1:
        return text[len("\\boxed{") : -1].strip()
    for opening, end in (("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(opening) and text.endswith(end):
            return text[2:-2]
    while text.startswith("{") and closing(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def _pieces(text: str) -> Iterator[str]:
    """The text cut into ``\\text{...}`` and what is between. Content without a letter is not text, and is
    unwrapped."""
    start = 0
    for match in _TEXT.finditer(text):
        yield text[start : match.start()]
        inside = " ".join(match.group().partition("{")[2].removesuffix("}").split())
        yield "\\text{" + inside + "}" if any(map(str.isalpha, inside)) else f" {inside} "
        start = match.end()
    yield text[start:]


def _tight(piece: str) -> str:
    """The text without spaces, except those that separate two digits or a command from a letter."""
    if piece.startswith("\\text{"):
        return piece
    piece = re.sub(r" +", " ", piece)
    piece = re.sub(r"(\\[A-Za-z]+) (?=[A-Za-z])", "\\1\0", piece)
    piece = re.sub(r"(?<=[0-9],) (?=[0-9]{3}(?![0-9]))", "\0", piece)  # 5, 125 are two numbers
    piece = re.sub(r"(?<=[0-9]) (?=[0-9.])", "\0", piece)
    piece = re.sub(r"(?<=[A-Za-z]{2}) (?=[A-Za-z0-9])|(?<=[A-Za-z0-9]) (?=[A-Za-z]{2})", "\0", piece)
    return piece.replace(" ", "").replace("\0", " ")


def _braced(text: str) -> str:
    """``\\frac12`` as ``\\frac{1}{2}`` and ``\\sqrt2`` as ``\\sqrt{2}``; unbalanced text stays as it is."""
    parts, position = [], 0
    while match := _FUNCTION.search(text, position):
        parts.append(text[position : match.end()])
        position = match.end()
        if match[1] == "sqrt" and text[position : position + 1] == "[":
            close = text.find("]", position)
            if close < 0:
                break
            parts.append(text[position : close + 1])
            position = close + 1
        for _ in range(2 if match[1] in ("frac", "binom") else 1):
            argument, position = _argument(text, position)
            parts.append(argument)
    parts.append(text[position:])
    return "".join(parts)


def _argument(text: str, position: int) -> tuple[str, int]:
    """The argument of a command in braces, and where it ends; nothing if there is none."""
    while text[position : position + 1] == " ":
        position += 1
    if position >= len(text) or text[position] in "(}])&,^_=+*/":
        return "", position
    if text[position] == "{":
        end = closing(text, position)
        return ("", position) if end < 0 else ("{" + _braced(text[position + 1 : end]) + "}", end + 1)
    if command := _NAME.match(text, position):
        if command.group() in ("\\frac", "\\sqrt", "\\binom", "\\text"):
            return "", position
        return "{" + command.group() + "}", command.end()
    return ("", position) if text[position] == "\\" else ("{" + text[position] + "}", position + 1)


def closing(text: str, position: int) -> int:
    """The position at which the brace at `position` is closed; −1 if it is not. A brace after a backslash
    does not count."""
    depth = 0
    for i in range(position, len(text)):
        if text[i] in "{}" and (i == 0 or text[i - 1] != "\\"):
            depth += 1 if text[i] == "{" else -1
            if depth == 0:
                return i
    return -1


def balanced(text: str) -> bool:
    """Whether every brace is closed, and none is closed that was not opened."""
    depth = 0
    for sign in re.sub(r"\\[\\{}]", "", text):
        depth += (sign == "{") - (sign == "}")
        if depth < 0:
            return False
    return depth == 0


def without_thousands(text: str) -> str:
    """1,234 as 1234, except inside brackets, where the comma may separate two numbers."""
    parts, start = [], 0
    for match in _THOUSANDS.finditer(text):
        inside = sum(text.count(sign, 0, match.start()) for sign in "([{") - sum(
            text.count(sign, 0, match.start()) for sign in ")]}"
        )
        if not inside:
            parts.append(text[start : match.start()] + match.group().replace(",", ""))
            start = match.end()
    return "".join(parts) + text[start:]
