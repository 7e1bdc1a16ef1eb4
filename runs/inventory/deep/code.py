"""Whether every algorithm, task, reward, curriculum and sampler of a recipe works: each is called on real
data."""

from __future__ import annotations

import functools

from grpobench.runs.experiment.trial import described, distinct, tried
from grpobench.runs.inventory.deep.result import CheckInput, Finding, Look, good, unknown, wrong
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.process import output_to
from grpobench.runs.train.trial import calls, tiny


def trials(check_input: CheckInput) -> list[tuple[str, Look]]:
    """A check for each distinct arm, and for a task on which no arm was tried yet."""
    return [
        (described(config), functools.partial(tried_out, config))
        for config in distinct(check_input.configs, everything=True)
    ]


def tried_out(config: RunConfig, check_input: CheckInput) -> Finding:
    """A few tiny steps with the recipe's rewards, with different and with equal ones."""
    with output_to(check_input.room / "output.txt"):  # what the code prints is no verdict
        trial = tried(config, check_input.room)
    if trial.skipped:
        return unknown(trial.skipped, "see to what the message names", "the machine's")
    if trial.fault:
        return wrong(trial.fault, "mend the code that the message names", "yours")
    small = tiny(config)
    size = f"{small.train.prompts_per_step} problems × {small.train.group_size} completions"
    steps = ", ".join(str(step) for step, _ in calls(config)) or "none"
    return good(f"steps {steps} with {size} of up to {small.sampler.max_completion_tokens} tokens")
