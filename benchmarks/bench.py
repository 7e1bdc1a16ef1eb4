"""`grpobench bench`: run the chosen cases, show progress, and print the outcome as tables or JSON."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from grpobench.benchmarks.cases import KEEPING, LAUNCHER, SCALING, STEPPED, Course, chosen, shape
from grpobench.benchmarks.compare import Facts, compare
from grpobench.benchmarks.grid import grid
from grpobench.benchmarks.keeping import keeping
from grpobench.benchmarks.launching import launching
from grpobench.benchmarks.scaling import scaling
from grpobench.benchmarks.shown import show
from grpobench.benchmarks.sides import Start, facts, process
from grpobench.runs.models.model_files import missing
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.settings.trl import version
from grpobench.runs.tools.strict import ConfigError


def main(model: str, wanted: Sequence[str] = (), as_json: bool = False) -> None:
    """Bench one model and print the outcome. Raises ConfigError or DataError for errors that the user can
    correct, ChildProcessError if a side dies."""
    names = chosen(model, wanted)
    if set(names) - {SCALING, LAUNCHER, KEEPING} and importlib.util.find_spec("trl") is None:
        raise ConfigError(["bench compares with TRL, which is not installed: pip install 'trl==1.16.*'"])
    if why := missing(model):
        raise ModelError(why)
    with Course(Console(stderr=True), len(names)) as course:
        outcome = measure(model, names, process, course)
    if as_json:
        print(json.dumps(outcome, indent=1))
    else:
        show(outcome, Console())


def measure(model: str, names: Sequence[str], start: Start, course: Course) -> dict[str, Any]:
    """All cases, and facts about the machine."""
    cases: list[dict[str, Any]] = []
    found: Facts = {}
    more: dict[str, Any] = {}
    for name in names:
        course.begin(name)
        if name in STEPPED:
            result, seen = compare(shape(name, model), start, course.tell)
            cases.append(result)
        elif name == SCALING:
            more[name], seen = scaling(start, course.tell)
        elif name == LAUNCHER:
            more[name], seen = launching(course.tell), {**facts(), "threads": 1}
        elif name == KEEPING:
            more[name], seen = keeping(course.tell), {**facts(), "threads": 1}
        else:
            more[name] = grid(course.tell, [f"model.name={model}"])
            seen = {**facts(), "threads": 1, "trl": version()}
        found = {**seen, **found}
    return {
        "model": model,
        "precision": "float32",
        "trl_gradient_checkpointing": False,
        **found,
        "cases": cases,
        **more,
    }
