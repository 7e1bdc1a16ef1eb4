"""The words of docs/glossary.md stand in all that users read: recipe keys, metrics, help, signatures,
names."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.shell import commands

import grpobench
from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms import algorithm as protocol
from grpobench.runs import cli
from grpobench.runs.metrics.catalog import catalog
from grpobench.runs.settings.config import SECTIONS
from grpobench.tasks import task

OLD = (
    *("optimiser", "behaviour", "neighbour", "normalise", "colour", "licence", "catalogue", "synchronise"),
    *(
        "largest_gap",
        "tokens_per_micro_batch",
        "max_new_tokens",
        "matrix",
        "matrices",
        "dose",
        "doses",
        "looks",
    ),
    *("doors", "origin", "origins", "pins", "canary", "weigh", "ration", "rations", "tally"),
    *("read_now", "behaviour_logp", "reference_logp", "standing", "silence", "hung", "halted"),
)
"""Words of earlier versions. What they stand for has another word now."""
KEYS = {"train": {"prompts", "group", "minibatches"}, "sampler": {"rows"}}
"""Keys that are ordinary words elsewhere."""


def words(text: str) -> set[str]:
    """The words of a name or text, whole and in the parts that underscores and slashes make."""
    names = set(re.findall(r"[A-Za-z_]+", text))
    return {part.lower() for name in names for part in (name, *re.split(r"_|(?<=[a-z])(?=[A-Z])", name))}


def demand_new(where: str, text: str) -> None:
    assert not (old := words(text) & set(OLD)), f"{where}: {', '.join(sorted(old))}"


@pytest.mark.parametrize("section", SECTIONS)
def test_recipe_keys(section: str) -> None:
    names = {field.name for field in dataclasses.fields(SECTIONS[section])}
    assert not names & KEYS.get(section, set())
    demand_new(section, " ".join(names))


def test_metric_names() -> None:
    for cls in ALGORITHMS.values():
        for name in catalog(cls()):
            demand_new("metric", name)


@pytest.mark.parametrize("command", [(), *(words for words, _ in commands())], ids=" ".join)
def test_help(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    cli.main([*command, "--help"])
    demand_new(" ".join(command), capsys.readouterr().out)


def public(owner: Any) -> Iterator[tuple[str, str]]:
    """(name, signature) of what a module or a class offers, with the fields and methods of its classes."""
    for name, value in vars(owner).items():
        if name.startswith("_"):
            continue
        mine = getattr(value, "__module__", "").startswith("grpobench")
        if inspect.isclass(value) and mine:
            yield name, " ".join(getattr(value, "__annotations__", {}))
            yield from public(value)
        elif inspect.isfunction(value) and mine:
            yield name, str(inspect.signature(value))
        elif isinstance(value, property):
            yield name, ""


@pytest.mark.parametrize("module", [protocol, task, grpobench], ids=lambda module: module.__name__)
def test_public_signatures(module: Any) -> None:
    offered = [*public(module)]
    if module is grpobench:
        offered = [
            (
                name,
                str(inspect.signature(value))
                if inspect.isfunction(value := getattr(grpobench, name))
                else "",
            )
            for name in grpobench.__all__
        ]
    assert offered
    for name, signature in offered:
        demand_new(f"{module.__name__}.{name}", f"{name} {signature}")


def test_an_old_word_would_be_seen() -> None:
    with pytest.raises(AssertionError, match="origin"):
        demand_new("a metric", "policy/origin_share")
