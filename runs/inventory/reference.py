"""The pages of docs/reference that come from the code: settings of a recipe, metrics, and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import click
from jinja2 import Environment

from grpobench.runs.inventory import showing
from grpobench.runs.metrics import catalog
from grpobench.runs.settings import config
from grpobench.runs.settings.draft import Head
from grpobench.runs.settings.judge import JudgeConfig

JUDGES = "reward.judge]` and `[evaluate.judge"
"""Two sections in one heading."""
SETTINGS, METRICS, COMMANDS = (f"reference/{name}.md" for name in ("settings", "metrics", "commands"))
FAMILIES: Mapping[str, str] = {
    "Reward": r"reward/|score/",
    "Judge": r"judge/",
    "Groups and lengths": r"groups/|length/|tools/|distinct|diversity",
    "Credit of turns": r"credit/",
    "Outcomes of grading": r"outcome/",
    "Policy and gradients": r"policy/|grad|ratio|clip|kl|loss|learning_rate",
    "Critic": r"critic/",
    "What the updates used": r"trained/",
    "Sampler against trainer": r"gap/|sampler/|correction|staleness|lag/",
    "Evaluation": r"eval/|also/|reference/|contamination/",
    "Cost": r"time/|tokens|flops|memory|cost|spent",
    "Options around the algorithm": r"modify/",
    "Other libraries": r"trl/|other/",
}
"""Headings of the page of metrics, and how the names below begin; the others come last."""


def pages(environment: Environment) -> dict[str, str]:
    """Settings and metrics, by path under the folder of documents."""
    sections = [("", Head), *config.SECTIONS.items(), (JUDGES, JudgeConfig)]
    tables = [{"name": name, "about": about(cls), "rows": showing.settings(cls)} for name, cls in sections]
    return {
        SETTINGS: environment.get_template("settings.md.j2").render(sections=tables),
        METRICS: environment.get_template("metrics.md.j2").render(families=list(families())),
    }


def about(cls: type) -> str:
    """The first paragraph of a docstring."""
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def families() -> Iterator[tuple[str, list[Any]]]:
    """The metrics by heading, each once."""
    left = dict(catalog.catalog())
    for heading, pattern in FAMILIES.items():
        family_metrics = [metric for name, metric in left.items() if re.match(pattern, name)]
        left = {name: metric for name, metric in left.items() if metric not in family_metrics}
        if family_metrics:
            yield heading, family_metrics
    yield "Of single algorithms", list(left.values())


def commands_page(environment: Environment, app: click.Group) -> str:
    """Every command with its arguments and options."""
    return environment.get_template("commands.md.j2").render(commands=list(described(app, "grpobench")))


def described(group: click.Group, prefix: str) -> Iterator[dict[str, Any]]:
    """A command after the other; those of a group by their full names."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from described(command, f"{prefix} {name}")
            continue
        context = command.make_context(f"{prefix} {name}", [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        yield {
            "name": f"{prefix} {name}",
            "usage": f"{prefix} {name} {usage}",
            "summary": command.short_help or "",
            "more": more(command),
            "parameters": [
                record
                for parameter in command.get_params(context)
                if "--help" not in parameter.opts and (record := parameter.get_help_record(context))
            ],
        }


def more(command: click.Command) -> str:
    """What the help says after its summary."""
    return " ".join((command.help or "").partition("\n\n")[2].split())
