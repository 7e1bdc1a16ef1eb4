"""`grpobench doctor` and `grpobench serve`: what this machine can do, and doing it for others."""

from __future__ import annotations

import argparse

from grpobench.runs.commands.output import DONE, INFRASTRUCTURE, as_json, say
from grpobench.runs.inventory import doctor
from grpobench.runs.sample.engines import server
from grpobench.runs.settings.config import SamplerConfig
from grpobench.runs.tools.strict import ConfigError


def doctor_command(options: argparse.Namespace) -> int:
    """0 when everything that is needed works, else 70."""
    findings = doctor.examine(options.out)
    if options.json:
        say(as_json(doctor.as_rows(findings)))
    else:
        doctor.show(findings)
    return DONE if doctor.healthy(findings) else INFRASTRUCTURE


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
