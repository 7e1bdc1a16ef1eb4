"""Console output of verl and OpenRLHF, and verl's file logger: a line per step among other output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from grpobench.runs.importing.log import Log, as_step, parsed, text_of
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
VERL = re.compile(r"(?:^|\s)step:(\d+) - (\S.*)$")
OPENRLHF = re.compile(r"Global step (\d+): (\{.*)$")
OPENRLHF_EVAL = re.compile(r"global_step (\d+), eval_metrics: (\{.*)$")
PAIR = re.compile(r"'([^']+)': ([^,{}]+)")
NUMBER = re.compile(r"(?:np\.\w+\(|tensor\()?([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|\.\d+|nan|inf))\)?")
PLANNED = re.compile(r"Total training steps: (\d+)")
LIBRARIES = ("verl", "openrlhf")
BROKE = "Traceback (most recent call last)"


def speaks(line: str) -> str:
    """The library that writes such a line; empty for any other line."""
    plain = COLOR.sub("", line)
    if VERL.search(plain):
        return "verl"
    return "openrlhf" if OPENRLHF.search(plain) or OPENRLHF_EVAL.search(plain) else ""


def read(file: Path, library: str) -> Log:
    """The run of a console's text. Raises DataError if no line has a step."""
    log = Log(file, library, library=library, files=[file])
    lines = text_of(file).split("\n")
    broke = None
    for number, line in enumerate(lines, start=1):
        plain = COLOR.sub("", line).rstrip("\r")
        cut = number == len(lines) and bool(plain) and not plain.endswith("}")
        if planned_match := PLANNED.search(plain):
            log.planned = counted(planned_match[1])
        if BROKE in plain:
            broke = number
        digits, values = verl(plain, cut) if library == "verl" else openrlhf(plain, cut)
        if not digits:
            continue
        if (step := counted(digits)) is None:
            log.fault(file, number, f"no step: {digits[:40]}; the line is left out")
            continue
        broke = None
        numbers = {}
        for name, value in values.items():
            if (parsed_number := as_number(value)) is not None:
                numbers[name] = parsed_number
            elif value not in ("None", "True", "False"):
                log.fault(file, number, f"`{name}` is not a number: {value[:40]!r}; it is left out")
        if cut:
            log.fault(file, number, "the last line is cut; its last number is left out")
        log.add(step, numbers, f"line {number}")
    if not log.rows:
        raise DataError(f"{file}: no line reports a step as {library} does; name the format with --from")
    if broke is not None:
        log.state, log.why = "crashed", f"{file.name}, line {broke}: a traceback follows the last step"
    elif log.planned and max(log.rows) < log.planned:
        log.state = "preempted"
        log.why = f"the log ends at step {max(log.rows)} of {log.planned}"
    return log


def counted(digits: str) -> int | None:
    """A step from its digits; None if it is too large."""
    return as_step(float(digits))


def as_number(text: str) -> float | None:
    """The number in a value as Python, NumPy or torch print it; None for anything else."""
    match = NUMBER.fullmatch(text)
    try:
        return float(match[1]) if match else None
    except ValueError:  # 1.2.3
        return None


def verl(line: str, cut: bool) -> tuple[str, dict[str, str]]:
    """The step of a line of verl's and its values, all as texts; without the last value of a line that was
    cut. Empty for any other line."""
    match = VERL.search(line)
    if not match:
        return "", {}
    pieces = [piece.rpartition(":") for piece in match[2].split(" - ")[: -1 if cut else None]]
    return match[1], {name: value.strip() for name, _, value in pieces}


def openrlhf(line: str, cut: bool) -> tuple[str, dict[str, str]]:
    """The same for OpenRLHF, which prints a dictionary."""
    match = OPENRLHF.search(line) or OPENRLHF_EVAL.search(line)
    if not match:
        return "", {}
    pairs = PAIR.findall(match[2])
    return match[1], {name: value.strip() for name, value in pairs[: -1 if cut else None]}


def read_file_logger(file: Path) -> Log:
    """verl's file logger: ``{"step": 1, "data": {…}}`` per line."""
    log = Log(file, "verl", library="verl", files=[file])
    for number, line in enumerate(bounded.utf8_lines(file), start=1):
        if not line.strip():
            continue
        try:
            row = parsed(line)
        except ValueError as error:
            log.fault(file, number, f"not JSON ({error}); the line is left out")
            continue
        step = as_step(row.get("step")) if isinstance(row, Mapping) else None
        if step is None or not isinstance(row.get("data"), Mapping):
            log.fault(file, number, "no `step` with `data` as verl writes them; the line is left out")
            continue
        log.add(step, log.numbers(row["data"], number), f"line {number}")
    if not log.rows:
        raise DataError(f"{file}: has no row of verl's file logger")
    return log
