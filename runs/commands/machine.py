"""`grpobench doctor` and `grpobench serve`: what this machine can do, and doing it for others."""

from __future__ import annotations

import argparse

from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, as_json, say
from grpobench.runs.inventory import doctor
from grpobench.runs.inventory.deep import examine, result
from grpobench.runs.sample.engines import server
from grpobench.runs.settings.config import SamplerConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.strict import ConfigError
from grpobench.runs.tools.ticker import Ticker


def doctor_command(options: argparse.Namespace) -> int:
    """0 when everything that is needed works, else 70; with `--deep` 2 where the user can mend what does
    not."""
    if options.deep:
        return deep_command(options)
    if options.sets:
        raise ConfigError(["--set: belongs to --deep RECIPE"])
    findings = doctor.examine(options.out)
    if options.json:
        say(as_json(doctor.as_rows(findings)))
    else:
        doctor.show(findings)
    return DONE if doctor.healthy(findings) else INFRASTRUCTURE


def deep_command(options: argparse.Namespace) -> int:
    """Say each verdict as soon as it is known."""
    recipe, ticker, found = read_recipe(options.deep, options.sets), Ticker(), []
    told = options.json or ticker.status  # the lines of the text say enough where there is no terminal
    results = examine.examine(recipe, options.out, ticker.tell if told else lambda text: None)
    while True:
        with ticker:  # not while lines are printed, which it would take for its own
            one = next(results, None)
        if one is None:
            break
        found.append(one)
        if not options.json:
            say("\n".join(result.as_lines(one)), flush=True)
    if options.json:
        say(as_json([one.row() for one in found]))
    return result.code(found)


def serve_command(options: argparse.Namespace) -> int:
    if lack := SamplerConfig(kind="vllm", rows=options.rows, cache_gb=options.cache_gb).missing():
        raise ConfigError([lack])
    server.serve(
        options.model,
        host=options.host,
        port=options.port,
        dtype=options.dtype,
        rows=options.rows,
        cache_gb=options.cache_gb,
        tell=lambda text: say(text, flush=True),
    )
    return DONE
