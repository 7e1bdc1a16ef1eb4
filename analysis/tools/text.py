"""Text: untrusted text made safe to show, text for LaTeX, and numbers in words."""

from __future__ import annotations

import difflib
import math
import os.path
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

# Untrusted text

HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tab and line feed
    "\u00ad\u061c\u180e\u200b\u200e\u200f"  # invisible, and marks of direction
    "\u2028-\u202e\u2060-\u206f"  # separators of lines, embeddings, overrides and isolates of direction
    "\ud800-\udfff"  # halves of characters, which no file can hold
    "\ufeff\ufff9-\ufffb\ufffe\uffff"  # marks of order and annotation, and no characters
    "\U000e0000-\U000e0fff]"  # tags, which nobody sees
)
FORMULA: Final = ("=", "+", "-", "@", "\t", "\n")
NUMBERS: Final = re.compile(r"[+-]?[\d.,eE\s()\[\]%;:–−+-]*")


def visible(text: str) -> str:
    """The text with hidden characters as Python escapes; tabs and line feeds stay.

    Untrusted text is what a model wrote, the name of an arm or a run, or the message of an error. A control
    character in it can move the cursor of a terminal, make an SVG file invalid, or reverse the direction of
    the text that follows."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text  # ten times as fast as the search
    return HIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


def cell(value: Any) -> Any:
    """A value for a table that a spreadsheet may open. Text that begins like a formula and is not a number
    gets an apostrophe in front. Other values stay as they are.

    A spreadsheet runs a cell that begins like a formula."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBERS.fullmatch(text) else text


def json_text(text: str) -> str:
    """JSON text with hidden characters in its strings as JSON escapes."""
    return HIDDEN.sub(lambda match: "".join(f"\\u{unit:04x}" for unit in units(match[0])), text)


def units(character: str) -> list[int]:
    """The UTF-16 code units of a character."""
    data = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2)]


def json_number(value: Any, digits: int) -> Any:
    """A value for JSON: a float rounded, or None if it is not finite; anything else as it is."""
    if not isinstance(value, float):
        return value
    return round(float(value), digits) if math.isfinite(value) else None


def number_of(value: float | None) -> float:
    """A number that JSON holds; NaN for None."""
    return math.nan if value is None else float(value)


# Text for LaTeX

TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "−": "$-$",
    "–": "--",
    "→": r"$\to$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "½": r"$\tfrac12$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "←": r"$\leftarrow$",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    **{
        letter: rf"$\{name}$"
        for letter, name in {
            "Σ": "Sigma",
            "Δ": "Delta",
            "α": "alpha",
            "β": "beta",
            "λ": "lambda",
            "π": "pi",
            "ρ": "rho",
            "σ": "sigma",
            "φ": "varphi",
            "χ": "chi",
        }.items()
    },
    **{raised: f"$^{{{plain}}}$" for raised, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ", "0123456789-n", strict=True)},
}


def escape(text: str) -> str:
    """Text with every character that TeX reads as a command made printable."""
    return "".join(TEX.get(character, character) for character in visible(str(text)))


# Names for readers

ACRONYMS = {name.lower(): name for name in ("KL", "TIS", "MIS", "LR", "MoE", "SD", "AUC", "SFT")}
"""Words of names that are written in another way than in lower case."""


def human(name: str, labels: Mapping[str, str] | None = None) -> str:
    """The name of an arm, a task or a metric as a paper writes it: `grpo-rate-x9` is `GRPO rate x9` where
    `labels` has `grpo`. Names of sweeps lose their keys: `grpo+learning_rate-1e-4+name-nano` is `GRPO,
    learning rate 1e-4, nano`."""
    parts = [part.removeprefix("name-") for part in name.split("+")]
    return ", ".join(_human(part, labels or {}) for part in parts)


def _human(name: str, labels: Mapping[str, str]) -> str:
    start = max(
        (
            prefix
            for prefix in labels
            if re.fullmatch(rf"{re.escape(prefix)}(?![A-Za-z0-9]).*", name, re.DOTALL)
        ),
        key=len,
        default="",
    )
    remainder = re.sub(r"(?<=\d)_(?=\d)", ".", name[len(start) :])  # 0_001 is a number
    words = re.sub(r"(?<!\de)[-_]+", " ", remainder).strip().split(" ")
    return " ".join(filter(None, [labels.get(start, ""), *(ACRONYMS.get(word, word) for word in words)]))


def nearest(name: str, choices: Iterable[str]) -> str:
    """What a message says about an unknown name: the known name that is most similar, or all of them."""
    names = list(choices)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"choose from {listed(names, 40)}"


# Numbers and names in words

NONE = "–"
"""Printed for a number that does not exist."""


def number(value: float, digits: int) -> str:
    """A number with `digits` decimals; zero has no sign."""
    if value is None or not math.isfinite(value):
        return NONE
    text = f"{value:.{digits}f}"
    return text.replace("-", "−" if float(text) else "")


def small(value: float) -> str:
    """A number that may be tiny: 4.1e-07."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.1e}".replace("-", "−")


def percent(share: float) -> str:
    """A share in percent with one decimal, without a percent sign."""
    return number(100 * share, 1)


def points(share: float) -> str:
    """A difference of shares in points, with its sign."""
    text = number(100 * share, 1)
    return text if text == NONE or text.startswith("−") else f"+{text}"


def signed(value: float) -> str:
    """A number with two decimals and always a sign."""
    text = two(value)
    return text if text == NONE or text.startswith("−") else f"+{text}"


def two(value: float) -> str:
    """A number with two decimals."""
    return number(value, 2)


UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
"""Units of large numbers, each with its letter."""


def count(value: float) -> str:
    """A large number with three digits: 157k, 1.20M."""
    if value is None or not math.isfinite(value):
        return NONE
    for unit, letter in UNITS:
        if value >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def p_value(value: float) -> str:
    """A p value with three decimals, four below .01."""
    return f"{value:.4f}" if value < 0.01 else f"{value:.3f}"


def interval(low: float, high: float, show: Any = percent) -> str:
    """`low to high`, each as `show` prints it."""
    return NONE if math.isnan(low) or math.isnan(high) else f"{show(low)} to {show(high)}"


MOST_SEEDS = 10
"""Most seeds whose values a cell shows one by one."""


def each_seed(values: Sequence[float]) -> str:
    """Shares in percent in the given order; for more than `MOST_SEEDS`, the smallest and the largest."""
    if len(values) <= MOST_SEEDS:
        return "  ".join(map(percent, values))
    finite = [value for value in values if math.isfinite(value)]
    return interval(min(finite), max(finite)) if finite else NONE


def listed(names: Sequence[Any], most: int = 8) -> str:
    """The first `most` names, separated by commas, and how many more there are."""
    text = ", ".join(map(str, names[:most]))
    return f"{text} and {len(names) - most} more" if len(names) > most else text


def and_list(names: Sequence[Any]) -> str:
    """`a, b and c`."""
    *before, last = map(str, names)
    return f"{', '.join(before)} and {last}" if before else last


RATE_SUFFIX = "+rate-x"
"""Between the name of an arm and a multiple of its learning rate, in the name of the arm at that rate."""


def sweep_value(value: Any) -> str:
    """A value of a map: 3e-4, 16, word."""
    if isinstance(value, float) and 0 < abs(value) < 0.01:
        digits, power = f"{value:e}".split("e")
        return f"{float(digits):g}e−{abs(int(power))}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def level_name(level: Sequence[Any]) -> str:
    """A combination of values of a map."""
    return ", ".join(map(sweep_value, level)) or "all"


def sweep_values_in_words(keys: Sequence[str]) -> str:
    """Keys such as train.learning_rate as axis labels."""
    return ", ".join(key.rpartition(".")[2].removeprefix("num_").replace("_", " ") for key in keys)


def shorten_paths(text: str) -> str:
    """Text with paths shortened to their last part, so that it does not reveal folders of a machine."""
    return re.sub(r"(?<![\w.])~?/(?:[^\s/'\"]+/)*", "", text)


def why_no_folder(path: Path) -> str:
    """Why a path is not a folder: it does not exist, or it is a file."""
    return "a file, not a folder" if path.exists() else "no such folder"


def why_no_experiment(path: Path) -> str:
    """Why a path is not the folder of an experiment, with the most similar one beside it or in results/."""
    folders = [str(folder) for parent in {path.parent, Path("results")} for folder in experiments_in(parent)]
    near = difflib.get_close_matches(path.name, map(os.path.basename, folders), n=1)
    if path.exists() or not near:
        return f"{path}: {why_no_folder(path)}; give an experiment folder such as results/quickstart"
    likely = min(folder for folder in folders if os.path.basename(folder) == near[0])
    return f"{path}: no such folder; did you mean {likely}?"


def experiments_in(folder: Path) -> list[Path]:
    """The folders of experiments in a folder, by name; none if it cannot be read."""
    try:
        return sorted(path.parent for path in folder.glob("*/experiment.json"))
    except OSError:
        return []
