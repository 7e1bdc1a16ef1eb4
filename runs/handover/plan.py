"""What is handed over: the parts of a recipe, an arm on a task each, and what of them is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpobench.algorithms.libraries.rules import format_value
from grpobench.runs.handover import grading
from grpobench.runs.settings.config import AUTO, RunConfig
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools.strict import ConfigError


@dataclass(frozen=True)
class TranslatedPart:
    """A part in a library's terms."""

    settings: dict[str, Any]
    """By the library's own names."""
    refused: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)
    """What the library does differently, harmless enough to be listed."""


@dataclass(frozen=True)
class Part:
    """An arm on a task, for all of its seeds."""

    config: RunConfig
    """Of the first seed; the others differ in the seed alone."""
    seeds: tuple[int, ...]
    translated: TranslatedPart

    @property
    def name(self) -> str:
        return f"{self.config.arm}-{self.task}"

    @property
    def task(self) -> str:
        """The task's name as folders have it."""
        return self.config.task.name.replace(":", "-")

    def run(self, seed: int) -> str:
        """The name of a run, as our own folder of it would have."""
        return f"{self.name}-s{seed}"


@dataclass(frozen=True)
class Plan:
    """What a hand-over holds, and what it leaves out."""

    library: str
    experiment: str
    parts: tuple[Part, ...]
    refused: tuple[str, ...] = ()
    """Parts that the library cannot run, with every reason."""


def make(
    recipe: Recipe, library: str, translate: Callable[[RunConfig], TranslatedPart], leave_out: bool
) -> Plan:
    """The plan of a recipe. Raises ConfigError with every reason if the library cannot express a part, unless
    these shall be left out and others remain."""
    seeds: dict[tuple[str, str], list[int]] = {}
    first: dict[tuple[str, str], RunConfig] = {}
    for config in recipe.runs():
        key = config.arm, config.task.name
        first.setdefault(key, config)
        seeds.setdefault(key, []).append(config.seed)
    parts: list[Part] = []
    refused: list[str] = []
    for key, config in first.items():
        translation = translate(config)
        why = [*common(config), *grading.refusals(config), *translation.refused]
        if why:
            refused.append(f"arm {config.arm} on {config.task.name}: {'; '.join(dict.fromkeys(why))}")
        else:
            listed = dict.fromkeys([*translation.differs, *different(config)])
            translated = TranslatedPart(translation.settings, [], list(listed))
            parts.append(Part(config, tuple(seeds[key]), translated))
    if refused and not (leave_out and parts):
        more = "" if leave_out else "; --leave-out hands over the rest"
        last = f"{len(refused)} of {len(first)} parts cannot be handed over to {library}{more}"
        raise ConfigError([*refused, last])
    return Plan(library, recipe.name, tuple(parts), tuple(refused))


def common(config: RunConfig) -> Iterator[str]:
    """What no other library is asked for, each with its remedy."""
    sampler, train, task = config.sampler, config.train, config.task
    evaluated = {"validation": config.evaluate.problems, "test": config.evaluate.test_problems}
    if sampler.kind not in (AUTO, "hf", "vllm", "vllm-server"):
        yield f'sampler.kind is "{sampler.kind}", and the policy itself must sample; set it to "hf"'
    if not any(count and split in task.splits for split, count in evaluated.items()):
        yield f"nothing of {task.name} is evaluated; set evaluate.problems or evaluate.test_problems"
    if train.curriculum:
        yield f"train.curriculum is {train.curriculum!r}; leave it away"
    yield from must_be(
        {
            "sampler.lag": (sampler.lag, 0),
            "sampler.correction": (sampler.correction, "none"),
            "sampler.top_k": (sampler.top_k, 0),
            "sampler.top_p": (sampler.top_p, 1.0),
            "sampler.min_p": (sampler.min_p, 0.0),
            "sampler.stop": (list(sampler.stop), []),
            "sampler.router_replay": (sampler.router_replay, "none"),
            "sampler.weights": (sampler.weights, "trainer"),
            "model.adapter": (config.model.adapter, None),
            "model.weights": (config.model.weights, "float32"),
            "train.optimizer": (train.optimizer, "adamw"),
        }
    )
    if sampler.old_logp == "sampler":
        yield 'sampler.old_logp is "sampler", and it is recomputed there; set it to "auto"'


def must_be(settings: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    """Why settings that are handed over with one value alone are not: (value, that value) by key."""
    for key, (value, required) in settings.items():
        if value != required:
            yield f"{key} is {format_setting(value)}; set it to {format_setting(required)}"


def format_setting(value: Any) -> str:
    return '"none"' if value is None else format_value(value)


def different(config: RunConfig) -> list[str]:
    """What the suite does around a run and nobody does elsewhere."""
    differences = []
    if config.stop_on:
        differences.append(f"stop_on: nothing ends a run at {', '.join(config.stop_on)} there")
    if config.evaluate.also:
        differences.append(f"evaluate.also: {', '.join(config.evaluate.also)} is not evaluated there")
    if config.evaluate.likelihood and "likelihood" in config.task.modes:
        differences.append("evaluate.likelihood: candidates are not compared there")
    if config.train.gradient_noise:
        differences.append("train.gradient_noise: the gradient's noise is not measured there")
    if config.train.log_tokens != "none":
        differences.append("train.log_tokens: no numbers of tokens are stored there")
    if config.model.warm_start:
        differences.append("model.warm_start: made here; models/ holds the policy after it")
    if config.observe:
        differences.append("observe: callbacks are not called there")
    return differences
