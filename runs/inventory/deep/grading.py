"""Whether verifiers distinguish right from wrong, and sandboxes end programs that do not end."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from grpobench.runs.inventory.deep.result import CheckInput, Finding, Look, good, unknown, wrong
from grpobench.runs.reward.verifier_check import VerifierCheck, accepted, verifier_checks
from grpobench.tasks.sandbox import choose
from grpobench.tasks.sandbox.protocol import PATIENCE, Limits, Tier
from grpobench.tasks.task import Problem, Task

PROBLEMS_PER_TASK = 8
"""Problems of each task."""
PATIENT = 30.0
"""Seconds that grading these few may take."""
MALFORMED: Sequence[str] = (
    "\x00",
    "\ud800 half a character",
    "\u202e\u202a from right to left",
    "```python\nwhile True: pass",
    "((((" * 2000,
    "\\frac{" * 500,
    "9" * 5000,
    "#" * 3 + "1e999",
    "nan",
    "a long answer " * 20_000,
)
"""Texts that a policy may write and that are not answers."""
LOOP = "def f():\n    while True:\n        pass"
SECONDS = 1.0
"""Processor seconds for the program that does not end."""
GONE = 10.0
"""Seconds in which the processes of a closed sandbox must be gone."""


def tasks(check_input: CheckInput) -> list[tuple[str, Look]]:
    """A check for each task of the recipe."""
    task_by_settings = {str(config.task): config.task for config in check_input.configs}
    names: dict[str, Task] = {}
    for task in task_by_settings.values():  # an arm may change settings of a task
        names[f"grader of {task if f'grader of {task.name}' in names else task.name}"] = task
    return [(name, functools.partial(grader, task)) for name, task in names.items()]


def grader(task: Task, check_input: CheckInput) -> Finding:
    """The verifier accepts right answers, rejects wrong, empty and malformed ones, and is fast."""
    if lack := task.missing():
        return unknown(lack, "put the data or the package where the message says")
    split = "train" if "train" in task.splits else task.splits[0]
    problems = task.problems(split)
    began = time.monotonic()
    try:
        checks = verifier_checks(task, problems, PROBLEMS_PER_TASK)
        odd = malformed(task, problems[0])
    except Exception as error:  # A verifier must not raise for anything that a policy can write.
        message = f"the verifier raised {type(error).__name__}: {error}"
        return wrong(message, "fix the task's `verify`", "yours")
    took = time.monotonic() - began
    remedy = f"`grpobench tasks check {task.name}` says more"
    if bad := [check for check in checks if not check.graded]:
        return wrong(f"not graded: {bad[0].described()}", f"`grpobench doctor` tries the sandboxes; {remedy}")
    if bad := [check for check in checks if not check.right]:
        return wrong(
            (f"{len(bad)} of {len(checks)} graded wrongly, such as {bad[0].described()}"), remedy, "yours"
        )
    if odd:
        return wrong(f"accepts text that is not an answer: {odd[0]!r:.80}", remedy, "yours")
    if took > PATIENT:
        return wrong(f"{len(checks) + len(MALFORMED)} answers took {took:.0f} s", remedy)
    counted = [
        f"{sum(check.kind == kind for check in checks)} {kind}" for kind in ("reference", "wrong", "empty")
    ]
    return good(f"correct on {', '.join(counted)} and {len(MALFORMED)} malformed answers")


def malformed(task: Task, problem: Problem) -> list[str]:
    """The texts of `MALFORMED` that the verifier accepts."""
    verdicts = task.verify_all([problem], [[(text,) for text in MALFORMED]])[0]
    reference: list[VerifierCheck] = []  # A truth that looks like one of them is not the verifier's fault.
    reference += [check for check in verifier_checks(task, [problem], 1) if check.kind == "reference"]
    right = {str(check.verdict.answer) for check in reference}
    pairs = zip(MALFORMED, verdicts, strict=True)
    return [text for text, verdict in pairs if accepted(verdict) and str(verdict.answer) not in right]


def sandbox(check_input: CheckInput) -> Finding:
    """In every tier that a task uses, a program runs, one that does not end is stopped, and nothing is
    left."""
    tiers = sorted({tier for config in check_input.configs if (tier := config.task.sandbox())})
    tier_findings = [tried(cast(Tier, tier)) for tier in tiers]
    if bad := [finding for finding in tier_findings if finding[0] != "good"]:
        return bad[0]
    return good(
        "; ".join(finding[1] for finding in tier_findings) or "no task of the recipe runs programs here"
    )


def tried(tier: Tier) -> Finding:
    """What a sandbox of its own makes of two programs."""
    before = descendants()
    fresh_sandbox = choose.start.__wrapped__(tier, Limits(SECONDS))  # not the sandbox that this process keeps
    try:
        plain = fresh_sandbox.run("def f():\n    return [1, 2]", ["f()"])
        began = time.monotonic()
        endless = fresh_sandbox.run(LOOP, ["f()"])
        took = time.monotonic() - began
    finally:
        fresh_sandbox.close()
    if plain.outcome != "pass" or plain.values != ([1, 2],):
        return wrong(f"a plain program in {tier} gave {plain.outcome} {plain.detail}", choose.FIX)
    if endless.outcome != "timeout":
        return wrong(f"a program without end in {tier} gave {endless.outcome}", choose.FIX)
    if took > PATIENCE * SECONDS + PATIENT:
        return wrong(
            f"a program without end in {tier} was ended after {took:.0f} s", "see what else runs here"
        )
    if left := outlive(before):
        return wrong(f"{len(left)} processes of {tier} are left: {left}", "end them; tell the developers")
    return good(f"{tier} ran a program and ended one without end after {took:.1f} s; nothing is left")


def outlive(before: set[int]) -> list[int]:
    """Processes below this one that were not there before and do not exit."""
    until = time.monotonic() + GONE
    while (left := descendants() - before) and time.monotonic() < until:
        time.sleep(0.05)
    return sorted(left)


def descendants() -> set[int]:
    """Process ids below this process, without dead ones; none if the kernel does not say."""
    parents: dict[int, int] = {}
    for stat_file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat_file.read_text().rpartition(") ")[2].split()[:2]
        except OSError:  # it has exited
            continue
        if state != "Z":
            parents[int(stat_file.parent.name)] = int(parent)
    pids = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return pids - {os.getpid()}
