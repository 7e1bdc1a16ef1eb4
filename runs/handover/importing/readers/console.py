"""Console output of libraries that print a step's numbers in one line, among other output, or in several."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grpobench.runs.handover.importing.log import Log, as_step, text_of
from grpobench.runs.handover.importing.readers.console_blocks import (
    AREAL_STEP,
    NEMO_STEP,
    SKYRL_STEP,
    ARealReader,
    NeMoReader,
    SkyRLReader,
    StepReader,
)
from grpobench.tasks.data.tables import DataError

COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
VERL = re.compile(r"(?:^|\s)step:(\d+) - (\S.*)$")
OPENRLHF = re.compile(r"Global step (\d+): (\{.*)$")
OPENRLHF_EVAL = re.compile(r"global_step (\d+), eval_metrics: (\{.*)$")
SLIME = re.compile(r"\] (?:train_metric_utils|rollout_metrics|model)\.py:\d+ - [\w-]+ (\d+): (\{.*)$")
PAIR = re.compile(r"'([^']+)': ([^,{}]+)")
NUMBER = re.compile(r"(?:np\.\w+\(|tensor\()?([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|\.\d+|nan|inf))\)?")
PLANNED = re.compile(r"Total training steps: (\d+)")
SIGNS: Mapping[str, Sequence[re.Pattern[str]]] = {
    "verl": (VERL,),
    "openrlhf": (OPENRLHF, OPENRLHF_EVAL),
    "slime": (SLIME,),
    "skyrl": (SKYRL_STEP,),
    "areal": (AREAL_STEP,),
    "nemo-rl": (NEMO_STEP,),
}
"""Library -> lines that only it prints."""
LIBRARIES = tuple(SIGNS)
STEP_READERS: Mapping[str, type[StepReader]] = {
    "skyrl": SkyRLReader,
    "areal": ARealReader,
    "nemo-rl": NeMoReader,
}
BROKE = "Traceback (most recent call last)"


def speaks(line: str) -> str:
    """The library that writes such a line; empty for any other line."""
    plain = COLOR.sub("", line)
    return next((name for name, signs in SIGNS.items() if any(sign.search(plain) for sign in signs)), "")


def read(file: Path, library: str) -> Log:
    """The run of a console's text. Raises DataError if no line has a step."""
    log = Log(file, library, library=library, files=[file])
    lines = text_of(file).split("\n")
    step_reader = STEP_READERS.get(library, StepReader)()
    broke = None
    for number, line in enumerate(lines, start=1):
        plain = COLOR.sub("", line).rstrip("\r")
        cut = number == len(lines) and bool(plain) and not plain.endswith("}")
        if planned_match := PLANNED.search(plain):
            log.planned = counted(planned_match[1])
        if BROKE in plain:
            broke = number
        digits, values = (
            step_reader.read(plain, cut) if library in STEP_READERS else LINES[library](plain, cut)
        )
        if not digits:
            continue
        if (step := counted(digits)) is None:
            log.fault(file, number, f"no step: {digits[:40]}; the line is left out")
            continue
        broke = None
        log.add(step, parsed_numbers(values, log, number), f"line {number}")
        if cut:
            log.fault(file, number, "the last line is cut; its last number is left out")
    if not log.rows:
        raise DataError(f"{file}: no line reports a step as {library} does; name the format with --from")
    log.planned = step_reader.planned or log.planned
    done = max(log.rows) + (library == "areal")  # which counts from 0
    if broke is not None:
        log.state, log.why = "crashed", f"{file.name}, line {broke}: a traceback follows the last step"
    elif log.planned and done < log.planned:
        log.state = "preempted"
        log.why = f"the log ends at step {done} of {log.planned}"
    return log


def parsed_numbers(values: Mapping[str, str], log: Log, line: int) -> dict[str, float]:
    """The numbers among texts; what is none is noted in the log."""
    number_by_name = {}
    for name, value in values.items():
        if (number := as_number(value)) is not None:
            number_by_name[name] = number
        elif value not in ("None", "True", "False"):
            log.fault(log.path, line, f"`{name}` is not a number: {value[:40]!r}; it is left out")
    return number_by_name


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
    return dictionary(OPENRLHF.search(line) or OPENRLHF_EVAL.search(line), cut)


def slime(line: str, cut: bool) -> tuple[str, dict[str, str]]:
    """The same for slime, which prints a dictionary for each part of a step, with the step's number in it."""
    digits, values = dictionary(SLIME.search(line), cut)
    return digits, {name: value for name, value in values.items() if not name.endswith("/step")}


def dictionary(match: re.Match[str] | None, cut: bool) -> tuple[str, dict[str, str]]:
    """The step and the values of a dictionary behind it; without the last value of one that was cut."""
    if not match:
        return "", {}
    pairs = PAIR.findall(match[2])
    return match[1], {name: value.strip() for name, value in pairs[: -1 if cut else None]}


LINES: Mapping[str, Callable[[str, bool], tuple[str, dict[str, str]]]] = {
    "verl": verl,
    "openrlhf": openrlhf,
    "slime": slime,
}
"""Library -> what reads a step in one line."""
