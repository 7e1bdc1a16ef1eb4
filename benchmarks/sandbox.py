"""`grpobench bench --sandbox`: how many small programs per minute each tier of the sandbox runs here."""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections.abc import Mapping
from typing import Any, Final

from grpobench.tasks.sandbox.choose import TIERS, start, trouble
from grpobench.tasks.sandbox.protocol import Job, Limits, Sandbox, Tier
from grpobench.tasks.workers.pool import cores

PROGRAMS: Final[Mapping[str, str]] = {
    "plain": "def double(x):\n    return 2 * x",
    "imports": "import math\nfrom typing import List\ndef double(x: int) -> int:\n    return 2 * x",
}
CALLS: Final = ("double(1)", "double(21)", "double(-3)")
SINGLE: Final = 20
SECONDS: Final = 6.0
"""Seconds of each measurement."""


def main(as_json: bool) -> None:
    """Measure and print every tier that works here."""
    tiers = {tier: measure(tier) for tier in TIERS}
    outcome = {"cores": cores(), "load": os.getloadavg()[0], "tiers": tiers}
    print(json.dumps(outcome, indent=1) if as_json else "\n".join(lines(tiers)))


def measure(tier: Tier) -> dict[str, Any]:
    """Programs per minute with every worker busy, the processor time of one, and the median time of one
    alone. ``at_full_use`` is the rate that this processor time allows if nothing else runs on the machine."""
    if reason := trouble(tier):
        return {"absent": reason}
    chosen = start(tier, Limits())
    found: dict[str, Any] = {"workers": chosen.workers}
    for name, program in PROGRAMS.items():
        job = Job(program, CALLS)
        alone = [timed(chosen, job) for _ in range(SINGLE)]
        began, used, count = time.perf_counter(), processor(), 0
        while time.perf_counter() - began < SECONDS:
            count += together(chosen, job)
        seconds = time.perf_counter() - began
        spent = (processor() - used) / count
        found[name] = {
            "programs_per_minute": round(60 * count / seconds),
            "median_ms": round(1000 * statistics.median(alone), 2),
            **({"processor_ms": round(1000 * spent, 2)} if tier != "monty" else {}),
            **({"at_full_use": round(60 * chosen.workers / spent)} if tier != "monty" else {}),
        }
    return found


def timed(chosen: Sandbox, job: Job) -> float:
    began = time.perf_counter()
    chosen.run(job.program, job.calls)
    return time.perf_counter() - began


def together(chosen: Sandbox, job: Job) -> int:
    """Run a batch on all workers; returns its size. Raises RuntimeError for a wrong value."""
    executions = chosen.run_all([job] * 50)
    if any(execution.values != (2, 42, -6) for execution in executions):
        raise RuntimeError(f"{chosen.tier} failed on a small program: {executions}")
    return len(executions)


def processor() -> float:
    """Processor seconds of this process and the children that have ended (Monty's workers have not)."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def lines(tiers: Mapping[Tier, Mapping[str, Any]]) -> list[str]:
    found = [f"load of the machine: {os.getloadavg()[0]:.1f} (below the number of cores for true figures)"]
    for tier, entry in tiers.items():
        if "absent" in entry:
            found.append(f"{tier:<10}  not here: {entry['absent']}")
            continue
        for name in PROGRAMS:
            row = entry[name]
            full = f", {row['at_full_use']:,} with the cores to itself" if "at_full_use" in row else ""
            found.append(
                f"{tier:<10}  {name:<8} {row['programs_per_minute']:>8,} programs a minute on "
                f"{entry['workers']} workers{full}; one alone takes {row['median_ms']} ms"
            )
    return found
