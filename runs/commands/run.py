"""Carry out the experiment of a recipe, for the commands that do: `run`, `map` and `finding run`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpobench.runs.commands.options import Options
from grpobench.runs.commands.outlook import outlook_lines
from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, PREEMPTED, as_json, complain, say
from grpobench.runs.commands.reports import FORMATS, write_report
from grpobench.runs.experiment import memory
from grpobench.runs.experiment.dry_run import as_lines, preview
from grpobench.runs.experiment.engines import Where, with_devices
from grpobench.runs.experiment.experiment import Outcome, run_experiment
from grpobench.runs.experiment.interim import STEP, demand_unplanned, plan_looks, run_until, with_seeds
from grpobench.runs.experiment.memory_table import plan_lines
from grpobench.runs.experiment.trial import TrialError
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.runfolder.logs import RESULTS
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools import machine
from grpobench.runs.tools.progress import duration
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.analysis.runfolder.interim import InterimPlan


def carry_out(recipe: Recipe, options: Options, by_pairs: bool = True) -> int:
    """Run the experiment, tell how it ended and write its report. Say first what its seeds can resolve,
    unless it is judged otherwise than `by_pairs` of arms."""
    if options.json and not options.dry_run:
        raise ConfigError(["--json: belongs to --dry-run; of runs that have begun, `grpobench status` tells"])
    plan = plan_of(recipe, options)
    where = where_of(options)
    lines = outlook_lines(recipe, options.out, plan) if by_pairs else []
    if options.dry_run:
        return dry_run(recipe, options, plan, lines)
    for line in (*(f"left out: {why}" for why in recipe.left_out), *lines):
        say(line, flush=True)
    try:
        outcome = start(recipe, options, plan, where)
    except RuntimeError as error:
        return complain(str(error), INFRASTRUCTURE)
    tell(outcome)
    if outcome.code != PREEMPTED and not outcome.runs_in_state("disk full"):
        results = [run for run in outcome.runs if run.state in RESULTS]
        if results:
            path, table = write_report(outcome.folder, FORMATS)
            say("\n".join([*table, f"report: {path}"]))
    return outcome.code


def plan_of(recipe: Recipe, options: Options) -> InterimPlan | None:
    """The plan of looks that the options ask for. Raises ConfigError where they do not belong together."""
    until, most, step = (getattr(options, name, None) for name in ("until", "most_seeds", "step_seeds"))
    if until and most:
        return plan_looks(recipe, most, step or STEP)
    if until or most or step:
        raise ConfigError(
            ["--until resolved, --most-seeds N and --step-seeds K: give the first two together"]
        )
    return None


def where_of(options: Options) -> Where:
    """Where the options say that runs are executed."""
    gpus, cpus = options.gpus_per_run, options.cpus_per_run
    return Where(options.on, options.address, gpus, cpus, tuple(options.job))


def start(recipe: Recipe, options: Options, plan: InterimPlan | None, where: Where) -> Outcome:
    more: dict[str, Any] = {"allow_change": options.allow_change, "where": where}
    more |= {"try_code": not options.no_trial, "gpu_memory": options.gpu_memory}
    if plan:
        return run_until(recipe, options.out, plan, options.workers, **more)
    demand_unplanned(options.out / recipe.name)
    return run_experiment(recipe, options.out, options.workers, **more)


def dry_run(recipe: Recipe, options: Options, plan: InterimPlan | None, outlook: Sequence[str]) -> int:
    if plan:
        recipe = with_seeds(recipe, plan.seeds)  # the most that there can be
        if not options.json:
            say(plan.words)
    where = with_devices(where_of(options), recipe.runs())
    workers = options.workers or recipe.head.workers or machine.worker_slots(where.gpus_per_run)
    device = memory.device(options.gpu_memory, where, workers)
    plans, why = memory.attempt(recipe.runs(), device)
    demand_room(plans, not options.json)
    try:
        found = preview(recipe, options.out, workers, options.allow_change, not options.no_trial)
    except ModelError:  # without a tokenizer nothing can run, but config.json told the memory
        if not options.json:
            say("\n".join(plan_lines(plans, why)))
        raise
    if options.json:
        say(as_json({**found.row(), "memory": [one.row() for one in plans], "outlook": outlook}))
    else:
        say("\n".join([*as_lines(found), "", *plan_lines(plans, why), *([""] if outlook else []), *outlook]))
    if any(one.fault for one in found.trial):
        raise TrialError(found.trial)
    return DONE


def demand_room(plans: Sequence[memory.Planned], shows: bool) -> None:
    """Raise ConfigError where runs cannot fit into memory, after their plan if it `shows`."""
    if shows and any(one.verdict == "does not fit" for one in plans):
        say("\n".join(plan_lines(plans, "")))
    memory.demand(plans)


def tell(outcome: Outcome) -> None:
    """How the runs ended, and where to look for those that did not finish."""
    counts: dict[str, int] = {}
    for run in outcome.runs:
        counts[run.state] = counts.get(run.state, 0) + 1
    took = duration(outcome.seconds)
    took = took and f"; took {took} with {outcome.workers} {'worker' if outcome.workers == 1 else 'workers'}"
    words = {"waiting": "not started"}
    ends = ", ".join(f"{count} {words.get(place, place)}" for place, count in counts.items())
    say(f"{len(outcome.runs)} {'run' if len(outcome.runs) == 1 else 'runs'}: {ends}{took}")
    # Why each failed was said when it ended.
    for run in outcome.runs_in_state("crashed") + outcome.runs_in_state("disk full"):
        seen = run.path / "crash.txt"
        say(f"{run.name}: see {seen if seen.exists() else run.path / 'log.txt'}", file=sys.stderr)
    if outcome.code == PREEMPTED:
        say("stopped; the same command resumes", file=sys.stderr)
