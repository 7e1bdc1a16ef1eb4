"""Whether every algorithm, task, reward, curriculum and sampler of a recipe works: each is called on real
data."""

from __future__ import annotations

import functools

from grpobench.runs.experiment.trial import described, distinct, tried
from grpobench.runs.inventory.deep.result import CheckInput, Finding, Look, good, unknown, wrong
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.process import output_to
from grpobench.runs.train.trial import calls, tiny


def trials(given: CheckInput) -> list[tuple[str, Look]]:
    """A check for each distinct arm, and for a task on which no arm was tried yet."""
    return [
        (described(config), functools.partial(tried_out, config))
        for config in distinct(given.configs, everything=True)
    ]


def tried_out(config: RunConfig, given: CheckInput) -> Finding:
    """A few tiny steps with the recipe's rewards, with different and with equal ones."""
    with output_to(given.room / "output.txt"):  # what the code prints is no verdict
        found = tried(config, given.room)
    if found.skipped:
        return unknown(found.skipped, "see to what the message names", "the machine's")
    if found.fault:
        return wrong(found.fault, "mend the code that the message names", "yours")
    small = tiny(config)
    size = f"{small.train.prompts_per_step} problems × {small.train.group_size} completions"
    steps = ", ".join(str(step) for step, _ in calls(config)) or "none"
    return good(f"steps {steps} with {size} of up to {small.sampler.max_completion_tokens} tokens")
