"""Contamination: test problems that a base completes word for word before training."""

from __future__ import annotations

import math
from collections.abc import Iterator

from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.tools.text import listed, number, percent
from grpobench.analysis.topics.warnings import Gravity, ReportWarning

HIGH = 0.10
"""Share above the chance level from which a base is suspected. In arXiv:2507.10532 Qwen2.5-Math-7B completes
54.6 % of MATH-500, which it is taken to have seen; Llama-3.1-8B completes 3.8 % of it, and both complete 0 %
of problems published after them."""


def warn_of_contamination(experiment: Experiment) -> Iterator[ReportWarning]:
    """Tasks whose test problems a base knows, and tasks whose problems do not show it."""
    recited: list[str] = []
    lines: list[str] = []
    unknown: list[str] = []
    for task in experiment.tasks:
        count = f"{_mean(experiment, task, 'problems'):.0f}"
        exact, chance = (_mean(experiment, task, name) for name in ("exact", "exact_chance"))
        if exact - chance >= HIGH:
            recited.append(f"{percent(exact)} % on {task}")
            overlap, at_chance = (
                number(_mean(experiment, task, name), 2) for name in ("rouge_l", "rouge_l_chance")
            )
            lines.append(
                f"{task}: {percent(exact)} % of {count} problems (chance: {percent(chance)} %), with a mean "
                f"ROUGE-L of {overlap} (chance: {at_chance})"
            )
        elif math.isnan(exact) and count != "nan":
            unknown.append(f"{task} ({count} test problems are long enough)")
    if recited:
        yield ReportWarning(
            f"The base recites test problems: {listed(recited, 3)}",
            lines,
            Gravity.DOUBT,
            "Given the first 60 % of a problem, it writes the rest word for word. It has read these problems "
            "and perhaps their answers, so that a gain may be memory. Random or wrong rewards may then help "
            "as well; compare with controls and with a generated task.",
        )
    if unknown:
        yield ReportWarning(
            f"Contamination could not be measured on {listed(unknown, 3)}",
            [],
            Gravity.NOTE,
            "The probe needs 50 test problems with distinct endings of 8 words or more. Shorter ones are "
            "guessed.",
        )


def _mean(experiment: Experiment, task: str, name: str) -> float:
    """A number of the probe, mean over the runs of a task; NaN if no run has it."""
    rows = experiment.select(f"contamination/{name}")
    return float(rows.loc[rows["task"] == task, "value"].mean())
