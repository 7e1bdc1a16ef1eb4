"""`grpobench finding`, and `grpobench findings`, which lists."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from grpobench.runs.api.findings import announce, judge, powers, rerun_of, verdict
from grpobench.runs.commands.beginning import names_of
from grpobench.runs.commands.finding_list import list_command, scale_options
from grpobench.runs.commands.options import (
    Options,
    combine,
    execution_options,
    flag,
    gpu_memory_option,
    json_option,
    no_trial_option,
    rates_option,
    set_option,
    sets_and_seeds,
    workers_option,
)
from grpobench.runs.commands.output import DONE, PREEMPTED, as_json, say
from grpobench.runs.inventory.findings.parts import part_words
from grpobench.runs.inventory.findings.records import rerun_words
from grpobench.runs.inventory.findings.remaining import Remaining, remaining, time_left
from grpobench.runs.inventory.folders import PILOT
from grpobench.runs.settings.findings import FindingFile, findings, read_finding

if TYPE_CHECKING:
    from grpobench.analysis.findings.planned import PlannedTest
    from grpobench.analysis.findings.rule import Check, Test

PILOT_SEEDS = 6
"""Seeds of the pilot that is proposed: their standard deviation is within .62 to 2.5 times of it."""
ALL = "all"
"""What stands for every finding behind `finding run`."""

name_argument = click.argument(
    "name",
    metavar="NAME",
    help="One of grpobench finding list, or a TOML file.",
    shell_complete=names_of("findings"),
)
run_options = combine(
    scale_options,
    click.option(
        "--seeds", metavar="LIST", help="Run these seeds instead of the registered ones, in another --out."
    ),
    rates_option,
    workers_option,
    set_option("Override a value, as with run. May be repeated."),
    flag("--allow-change", "As with run."),
    flag("--dry-run", "As with run; registers nothing."),
    no_trial_option,
    gpu_memory_option,
    execution_options,
)


@name_argument
@scale_options
@json_option
def show_command(options: Options) -> int:
    study = read_finding(options.name)
    planned = powers(study, options.scale, options.out)
    if options.json:
        from grpobench.analysis.findings.planned import power_row

        rows = [power_row(planned_test) for planned_test in planned]
        scales = {"rule": study.finding.digest, "scales": dict(study.scales)}
        say(as_json({**study.finding.plain(), **scales, "power": rows}))
        return DONE
    say("\n".join([*describe_rule(study), *describe_power(study, planned, options)]))
    row = verdict(study, options.scale, options.out, "kept")
    say("\n".join(answer(row)) if row else f"not run at scale {options.scale}")
    return DONE


def _remarks(title: str, by_scale: Mapping[str, str], scales: Collection[str]) -> list[str]:
    """A line for each text, with its scales where it is not for all."""
    scales_by_text: dict[str, list[str]] = {}
    for scale, text in by_scale.items():
        scales_by_text.setdefault(text, []).append(scale)
    return [
        f"{title}: {text}" if len(of) == len(scales) else f"{title} ({', '.join(of)}): {text}"
        for text, of in scales_by_text.items()
    ]


def describe_rule(study: FindingFile) -> list[str]:
    finding = study.finding
    lines = [finding.claim, f"source: {finding.source}"]
    lines += [f"published: {finding.published}"] * bool(finding.published)
    lines += [f"design: {finding.stands_for}"] * bool(finding.stands_for)
    lines += [f"correction: {study.correction}"] * bool(study.correction)
    lines += _remarks("caveat", study.caveat, study.scales)
    lines += _remarks("runs with too little power", study.underpowered, study.scales)
    for test in finding.test:
        dose = f" at {finding.dose} {test.dose:g}" if test.dose is not None else ""
        parts = f"; two parts, {test.two_part}" * bool(test.two_part)
        lines.append(
            f"test: {f'{test.part}: ' * bool(test.part)}{test.name}: {test.outcome} ({_weights(test)}) is "
            f"{test.expect}{dose}; {test.matters:g} matters{parts}"
        )
    for check in finding.check:
        bounds = [("at least", check.at_least), ("at most", check.at_most)]
        condition = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)
        lines.append(f"check: {check.name}: {check.outcome} ({_weights(check)}) is {condition}")
    for control in finding.control:
        condition = f"is {control.expect} by {control.matters:g} or more"
        lines.append(f"control: {control.name}: {control.outcome} ({_weights(control)}) {condition}")
    lines += [f"bases: the values of {finding.bases}; intervals are over them"] * bool(finding.bases)
    return [*lines, f"scales: {', '.join(study.scales)}; rule {finding.digest}"]


def _weights(criterion: Test | Check) -> str:
    return ", ".join(f"{weight:+g} {name}" for name, weight in criterion.contrast.items())


@click.argument(
    "name",
    metavar="NAME",
    help="One of grpobench finding list, a TOML file, or all.",
    shell_complete=names_of("findings"),
)
@run_options
@flag("--json", "With --dry-run: print JSON.")
def run_finding(options: Options) -> int:
    return run_all(options) if options.name == ALL else run_one(read_finding(options.name), options)


def describe_power(study: FindingFile, planned: Sequence[PlannedTest], options: Options) -> list[str]:
    """The power of each test. Where no earlier runs tell it, the command of a pilot, which the next
    `finding run` looks for."""
    from grpobench.analysis.findings.description import power_lines

    first = max(study.seeds(options.scale), default=-1) + 1 if planned else 0
    chosen = f"--scale {options.scale} --seeds {first}-{first + PILOT_SEEDS - 1}"
    pilot = f"grpobench finding run {options.name} {chosen} --out {options.out / PILOT}"
    return power_lines(planned, pilot)


def run_one(study: FindingFile, options: Options) -> int:
    """Register, run what has no result yet, write the report and say the verdict."""
    from grpobench.runs.commands.run import carry_out  # loads what executes runs, which no listing needs

    recipe, part, planned = announce(
        study, options.scale, options.out, sets_and_seeds(options), registers=not options.dry_run
    )
    if part is not None:
        say(part_words(part))
    code = carry_out(recipe, options, outlook=describe_power(study, planned, options))
    if options.dry_run:
        return code
    if code == PREEMPTED:
        if rerun := rerun_of(study, options.scale, options.out):
            say(f"{study.finding.name}: {rerun_words(rerun)}")
    elif row := verdict(study, options.scale, options.out, "runs" if sets_and_seeds(options) else "whole"):
        say("\n".join(answer(row)))
    return code


@name_argument
@scale_options
@json_option
def judge_command(options: Options) -> int:
    row = judge(options.name, options.scale, options.out, powers=options.json)
    say(as_json(row) if options.json else "\n".join(answer(row)))
    return DONE


def run_all(options: Options) -> int:
    """Run every finding that has the scale, one after the other, and say how long is left; the worst exit
    code."""
    codes = []
    studies = [study for study in map(read_finding, findings()) if options.scale in study.scales]

    def estimate_remaining(study: FindingFile) -> Remaining:
        return remaining(study.finding.name, options.scale, options.out, sets_and_seeds(options))

    estimates = [] if options.json else [estimate_remaining(study) for study in studies]
    for number, study in enumerate(studies):
        if estimates:
            estimates[number] = estimate_remaining(study)  # another machine may have run some of it meanwhile
            time_text = time_left(estimates[number:], options.workers)
            progress = f"{number + 1} of {len(studies)}, {estimates[number].runs} runs to go; {time_text}"
            say(f"== {study.finding.name}: {progress}", flush=True)
        codes.append(run_one(study, options))
        if codes[-1] == PREEMPTED:
            break
    if not options.dry_run:
        list_command(options)
    return max(codes, default=DONE)


def answer(row: Mapping[str, Any]) -> list[str]:
    """The verdict and its tests as a terminal shows them."""
    from grpobench.analysis.findings.description import bases_words, check_words, effect_words, parts_words

    lines = [f"{row['name']} at {row['scale']} scale: {row['label'].upper()}"]
    for test in row["tests"]:
        name = f"{test['part']}: {test['name']}" if test["part"] else test["name"]
        lines.append(f"  {name}: {test['label']}; {effect_words(test)}; {test['needs']}")
        lines += [f"    {parts_words(test)}"] * bool(test["two_parts"])
    lines.append(f"  {bases_words(row['tests'][0])}")
    if row["waits"]:
        row = {**row, "checks": [], "control": []}  # nothing is known of them yet
    for check in row["checks"]:
        lines.append(
            f"  check, {'passed' if check['passed'] else 'FAILED'}: {check['name']}; {check_words(check)}"
        )
    for control in row["control"]:
        shown = "shows its effect" if control["shown"] else "SHOWS NOTHING"
        lines.append(f"  control, {shown}: {control['name']}; {effect_words(control)}")
        lines += [f"    {parts_words(control)}"] * bool(control["two_parts"])
    lines += [f"  exploratory: {departure}" for departure in row["departures"]]
    lines += [f"  by today's rule: {row['exploratory']}"] * bool(row["exploratory"])
    lines += [f"  waits for {len(row['waits'])} runs"] * bool(row["waits"])
    lines += [f"  {rerun_words(row['rerun'])}"] if row["rerun"] else []
    return [
        *lines,
        f"  registered {row['registered']} at {row['commit'][:12] or 'no commit'}, rule {row['rule']}",
    ]
