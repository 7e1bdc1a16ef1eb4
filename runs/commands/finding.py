"""`grpobench finding`, and `grpobench findings`, which lists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from grpobench.runs.commands.beginning import names_of
from grpobench.runs.commands.finding_parts import describe_part, read_part, without_part
from grpobench.runs.commands.finding_records import Records, find_records, kept_path, register, rerun_words
from grpobench.runs.commands.finding_time import Remaining, remaining, time_left
from grpobench.runs.commands.options import (
    Options,
    combine,
    data_options,
    flag,
    gpu_memory_option,
    json_option,
    no_trial_option,
    out_option,
    remote_options,
    seed_list,
    set_option,
    trust_option,
    unsafe_option,
    workers_option,
)
from grpobench.runs.commands.output import DONE, PREEMPTED, as_json, say
from grpobench.runs.inventory import folders
from grpobench.runs.settings.findings import Study, findings, read_finding
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError

if TYPE_CHECKING:
    from grpobench.analysis.findings.record import Record
    from grpobench.analysis.findings.result import Result
    from grpobench.analysis.findings.rule import Check, Test

ALL = "all"
"""What stands for every finding behind `finding run`."""

name_argument = click.argument(
    "name",
    metavar="NAME",
    help="One of grpobench finding list, or a TOML file.",
    shell_complete=names_of("findings"),
)
scale_options = combine(
    click.option("--scale", type=click.Choice(("nano", "small", "full")), default="nano"),
    out_option("results/findings"),
)
run_options = combine(
    scale_options,
    click.option("--seeds", metavar="LIST", help="Other seeds than registered, in another --out."),
    workers_option,
    set_option("Override a value, as with run. May be repeated."),
    flag("--allow-change", "As with run."),
    flag("--dry-run", "As with run; registers nothing."),
    no_trial_option,
    gpu_memory_option,
    remote_options,
    data_options,
    trust_option,
    unsafe_option,
)


@scale_options
@json_option
def list_command(options: Options) -> int:
    known = findings()
    if options.json:
        say(as_json([row_of(name, options.scale, options.out) for name in known]))
        return DONE
    width = max(map(len, known))
    for name in known:
        say("\n".join(lines_of(name, options.scale, options.out, width)))
    return DONE


def lines_of(name: str, scale: str, out: Path, width: int) -> list[str]:
    """A finding with its verdict as text, which needs less than its row: no power is computed."""
    study = read_finding(name)
    records = find_records(study, scale, out)
    verdict = judged_as_registered(study, records.listed).verdict if records.listed else "not run"
    return [
        f"{name:<{width}}  {verdict:<12}  {study.finding.claim}",
        *([f"  {rerun_words(records.rerun)}"] if records.rerun else []),
        *(
            f"  contributed by {theirs['contributor']} ({theirs['name']}): {theirs['verdict']}"
            for theirs in contributed(study, scale)
        ),
    ]


def row_of(name: str, scale: str, out: Path) -> dict[str, Any]:
    """A finding with its verdict at a scale, null where it has none."""
    study = read_finding(name)
    row: dict[str, Any] = {
        "name": name,
        "claim": study.finding.claim,
        "source": study.finding.source,
        "scales": list(study.scales),
        "scale": scale,
        "verdict": None,
        "checks": [{"name": one.name, "passed": None} for one in study.finding.check],
        "control": [{"name": one.name, "shown": None} for one in study.finding.control],
        "rerun": None,
        "contributed": contributed(study, scale),
    }
    records = find_records(study, scale, out)
    if records.listed is None:
        return row
    return row | described(study, records.listed, records)


def contributed(study: Study, scale: str) -> list[dict[str, Any]]:
    """What contributions say of a finding."""
    from grpobench.runs.publishing.contributed import contributed_records

    results = folders.results_folder()
    if results is None:
        return []
    return [
        {
            "name": theirs.name,
            "contributor": theirs.contributor,
            "verdict": theirs.record.result().verdict,
            "departures": theirs.record.departed(study.finding),
        }
        for theirs in contributed_records(results, study.finding.name, scale)
    ]


def described(study: Study, record: Record, records: Records) -> dict[str, Any]:
    """The verdict of one of the records by the registered rule, how far it is exploratory, and the rerun
    beside it. Raises DataError."""
    from grpobench.analysis.findings.result import as_row

    row = as_row(judged_as_registered(study, record)) | {"rerun": records.rerun}
    seeds = {run[2] for run in record.states}
    row |= {
        "scale": record.registration.scale,
        "seeds": len(seeds),
        "registered": record.registration.registered,
        "commit": record.registration.commit,
        "rule": record.registration.finding.digest,
        "departures": record.departed(study.finding),
        "exploratory": None,
        "contributed": contributed(study, record.registration.scale),
    }
    if study.finding.digest != record.registration.finding.digest:
        row["exploratory"] = exploratory(study, record)
    return row


def judged_as_registered(study: Study, record: Record) -> Result:
    """Judge a record by its registered rule. Raises DataError."""
    from grpobench.analysis.runfolder.files import LogError

    try:
        return record.result()
    except LogError as error:  # analysis/ knows nothing of the errors of other rooms
        raise DataError(f"{study.finding.name}: {error}; run the finding anew in another --out") from error


def exploratory(study: Study, record: Record) -> str:
    """The verdict by today's rule, where what it asks for was measured."""
    from grpobench.analysis.runfolder.files import LogError

    asked = {one.name: one for one in study.finding.measured}
    known = {one.name: one for one in record.registration.finding.measured}
    same = all(
        name in known and (test.outcome, test.where) == (known[name].outcome, known[name].where)
        for name, test in asked.items()
    )
    if not same:
        return "measures something else; run it anew"
    try:
        return record.result(study.finding).verdict
    except LogError as error:
        return f"{error}; run it anew"


@name_argument
@scale_options
@json_option
def show_command(options: Options) -> int:
    study = read_finding(options.name)
    if options.json:
        say(as_json({**study.finding.plain(), "rule": study.finding.digest, "scales": dict(study.scales)}))
        return DONE
    say("\n".join(describe_rule(study)))
    records = find_records(study, options.scale, options.out)
    if records.listed:
        say("\n".join(answer(described(study, records.listed, records))))
    else:
        say(f"not run at scale {options.scale}")
    return DONE


def describe_rule(study: Study) -> list[str]:
    finding = study.finding
    lines = [finding.claim, f"source: {finding.source}"]
    lines += [f"published: {finding.published}"] * bool(finding.published)
    lines += [f"stands for it: {finding.stands_for}"] * bool(finding.stands_for)
    lines += [f"caveat: {study.caveat}"] * bool(study.caveat)
    for test in finding.test:
        dose = f" at {finding.dose} {test.dose:g}" if test.dose is not None else ""
        lines.append(
            f"test: {test.name}: {test.outcome} ({_weights(test)}) is {test.expect}{dose}; "
            f"{test.matters:g} matters"
        )
    for check in finding.check:
        bounds = [("at least", check.at_least), ("at most", check.at_most)]
        told = " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)
        lines.append(f"check: {check.name}: {check.outcome} ({_weights(check)}) is {told}")
    for control in finding.control:
        told = f"is {control.expect} by {control.matters:g} or more"
        lines.append(f"control: {control.name}: {control.outcome} ({_weights(control)}) {told}")
    return [*lines, f"scales: {', '.join(study.scales)}; rule {finding.digest}"]


def _weights(asked: Test | Check) -> str:
    return ", ".join(f"{weight:+g} {name}" for name, weight in asked.contrast.items())


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


def overrides(options: Options) -> list[str]:
    """`--set` and `--seeds`."""
    return [*options.sets, *([f"seeds={seed_list(options.seeds)}"] if options.seeds else [])]


def run_one(study: Study, options: Options) -> int:
    """Register, run what has no result yet, write the report and say the verdict."""
    recipe = study.recipe(options.scale, overrides(options))
    part = None if options.sets or options.seeds else read_part(study.finding.name, options.scale)
    if not options.dry_run:
        register(study.finding, options.scale, recipe, options.out, part)
    if part is not None:
        say(describe_part(part))
        recipe = without_part(recipe, part)
    from grpobench.runs.commands.run import carry_out  # loads what executes runs, which no listing needs

    code = carry_out(recipe, options, by_pairs=False)  # but by the finding's rule
    if options.dry_run or (code == PREEMPTED and not kept_path(study, options.scale)):
        return code
    records = find_records(study, options.scale, options.out)
    if code == PREEMPTED:
        if rerun := records.rerun:
            say(f"{study.finding.name}: {rerun_words(rerun)}")
    elif records.judged:
        say("\n".join(answer(described(study, records.judged, records))))
    return code


@name_argument
@scale_options
@json_option
def judge_command(options: Options) -> int:
    study = read_finding(options.name)
    records = find_records(study, options.scale, options.out)
    if records.judged is None:
        where = f"{options.out / study.finding.name}-{options.scale}"
        raise ConfigError(
            [f"{study.finding.name}: neither runs in {where} nor a kept table; run `grpobench finding run`"]
        )
    row = described(study, records.judged, records)
    say(as_json(row) if options.json else "\n".join(answer(row)))
    return DONE


def run_all(options: Options) -> int:
    """Run every finding that has the scale, one after the other, and say how long is left; the worst exit
    code."""
    codes = []
    studies = [study for study in map(read_finding, findings()) if options.scale in study.scales]

    def rest(study: Study) -> Remaining:
        return remaining(study.finding.name, options.scale, options.out, overrides(options))

    left = [] if options.json else [rest(study) for study in studies]
    for number, study in enumerate(studies):
        if left:
            left[number] = rest(study)  # another machine may have run some of it meanwhile
            still = time_left(left[number:], options.workers)
            told = f"{number + 1} of {len(studies)}, {left[number].runs} runs to go; {still}"
            say(f"== {study.finding.name}: {told}", flush=True)
        codes.append(run_one(study, options))
        if codes[-1] == PREEMPTED:
            break
    if not options.dry_run:
        list_command(options)
    return max(codes, default=DONE)


def answer(row: Mapping[str, Any]) -> list[str]:
    """The verdict and its tests as a terminal shows them."""
    from grpobench.analysis.findings.description import check_words, effect_words

    lines = [f"{row['name']} at {row['scale']} scale: {row['verdict'].upper()}"]
    for test in row["tests"]:
        lines.append(f"  {test['name']}: {test['verdict']}; {effect_words(test)}; {test['needs']}")
    if row["waits"]:
        row = {**row, "checks": [], "control": []}  # nothing is known of them yet
    for check in row["checks"]:
        lines.append(
            f"  check, {'passed' if check['passed'] else 'FAILED'}: {check['name']}; {check_words(check)}"
        )
    for control in row["control"]:
        shown = "shows its effect" if control["shown"] else "SHOWS NOTHING"
        lines.append(f"  control, {shown}: {control['name']}; {effect_words(control)}")
    lines += [f"  exploratory: {told}" for told in row["departures"]]
    lines += [f"  by today's rule: {row['exploratory']}"] * bool(row["exploratory"])
    lines += [f"  waits for {len(row['waits'])} runs"] * bool(row["waits"])
    lines += [f"  {rerun_words(row['rerun'])}"] if row["rerun"] else []
    return [
        *lines,
        f"  registered {row['registered']} at {row['commit'][:12] or 'no commit'}, rule {row['rule']}",
    ]
