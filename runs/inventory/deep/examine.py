"""All checks of `grpobench doctor --deep`, and the folder that they work in."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from grpobench.runs.inventory.deep import agreement, code, grading, resuming
from grpobench.runs.inventory.deep.result import CheckInput, DeepResult, Look, carry_out
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools.determinism import determinism_restored


def examine(recipe: Recipe, out: Path, tell: Callable[[str], None]) -> Iterator[DeepResult]:
    """The verdict of each check on a recipe whose results would go to `out`, which is left as it was. `tell`
    gets a message before each check."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # `tell` has the line
    out = out.resolve()
    there = next(path for path in (out, *out.parents) if path.is_dir())
    with (
        determinism_restored(),
        tempfile.TemporaryDirectory(prefix=".grpobench-doctor-", dir=there) as room,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # A check's verdict contains what matters.
        check_input = CheckInput(recipe.runs(), out, Path(room))
        yield from carry_out(looks(check_input), check_input, tell)


def looks(check_input: CheckInput) -> list[tuple[str, Look]]:
    """The checks by name, the cheapest first."""
    return [
        ("results folder", resuming.storage),
        *grading.tasks(check_input),
        ("sandbox", grading.sandbox),
        *code.trials(check_input),
        ("device", resuming.step),
        ("same step, same bits", resuming.repeated),
        ("sampler and trainer", agreement.gap),
        ("weights reach the sampler", agreement.synchronized),
        ("checkpoint", resuming.round_trip),
        ("resume", resuming.resumed),
    ]
