"""Carry out the experiment of a recipe: `grpobench run`, `map`, `compare` and `finding run`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from grpobench.runs.api.experiments import execute, interim_plan, preview
from grpobench.runs.api.outlook import outlook_lines
from grpobench.runs.commands.options import Options, execution
from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, PREEMPTED, as_json, complain, say
from grpobench.runs.commands.reports import FORMATS, write_report
from grpobench.runs.experiment.experiment import ExperimentResult
from grpobench.runs.runfolder.logs import RESULTS
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools.progress import duration
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.analysis.runfolder.interim import InterimPlan


def carry_out(recipe: Recipe, options: Options, outlook: Sequence[str] | None = None) -> int:
    """Run the experiment, tell how it ended and write its report. Say first what its seeds can resolve: the
    lines of `outlook`, or else what they can of pairs of arms."""
    if options.json and not options.dry_run:
        raise ConfigError(
            ["--json: needs --dry-run; `grpobench status DIR --json` shows runs that have begun"]
        )
    plan, how = plan_of(recipe, options), execution(options)
    lines = outlook_lines(recipe, options.out, plan) if outlook is None else outlook
    if options.dry_run:
        return dry_run(recipe, options, plan, lines)
    for line in (*(f"left out: {why}" for why in recipe.left_out), *lines):
        say(line, flush=True)
    try:
        outcome = execute(recipe, options.out, plan, **how)
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
    if bool(until) != bool(most) or (step and not until):
        raise ConfigError(
            ["--until resolved, --most-seeds N and --step-seeds K: give the first two together"]
        )
    return interim_plan(recipe, most, *([step] if step else []))


def dry_run(recipe: Recipe, options: Options, plan: InterimPlan | None, outlook: Sequence[str]) -> int:
    show = shown(options)
    if plan:
        show(plan.words)
    rehearsal = preview(recipe, options.out, plan, show, **execution(options))
    if options.json:
        say(as_json({**rehearsal.rows()[0], "outlook": outlook}))
    else:
        say("\n".join([*rehearsal.lines(), *([""] if outlook else []), *outlook]))
    rehearsal.demand()
    return DONE


def shown(options: Options) -> Callable[[str], None]:
    """What shows a text at once; with `--json` nothing but JSON is printed."""
    return (lambda text: None) if options.json else (lambda text: say(text, flush=True))


def tell(outcome: ExperimentResult) -> None:
    """How the runs ended, and where to look for those that did not finish."""
    counts: dict[str, int] = {}
    for run in outcome.runs:
        counts[run.state] = counts.get(run.state, 0) + 1
    took = duration(outcome.seconds)
    took = took and f"; took {took} with {outcome.workers} {'worker' if outcome.workers == 1 else 'workers'}"
    words = {"waiting": "not started"}
    ends = ", ".join(f"{count} {words.get(state, state)}" for state, count in counts.items())
    say(f"{len(outcome.runs)} {'run' if len(outcome.runs) == 1 else 'runs'}: {ends}{took}")
    # Why each failed was said when it ended.
    for run in outcome.runs_in_state("crashed") + outcome.runs_in_state("disk full"):
        report = run.path / "crash.txt"
        say(f"{run.name}: see {report if report.exists() else run.path / 'log.txt'}", file=sys.stderr)
    if outcome.code == PREEMPTED:
        say("stopped; the same command resumes", file=sys.stderr)
