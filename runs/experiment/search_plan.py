"""The plan of `grpobench search`: the values of each stage, the rule, and the reasons for which it is
unequal."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, TypeAlias

from grpobench.algorithms.algorithm import Role
from grpobench.analysis.measure import OF_STEPS, Measure
from grpobench.analysis.runfolder.search import (
    ACCURACY,
    RATE,
    Combination,
    Stage,
    Value,
    is_accuracy,
    rate_key,
)
from grpobench.analysis.statistics.rate_choice import (
    BEYOND,
    Outcomes,
    Round,
    around,
    rounds,
    runs_of_rounds,
)
from grpobench.runs.experiment.outcomes import CRITICS
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.expand import MOST, read_over_text
from grpobench.runs.settings.recipe import Recipe, read_text
from grpobench.runs.settings.search import SEARCHED, SEEDS, Search
from grpobench.runs.tools import strict, toml
from grpobench.runs.tools.strict import ConfigError

CLOSEST = 1.2
"""Factor between two rates of a grid at least: a rate between them must differ from both."""
CRITIC_FACTOR = 10.0
"""Learning rate of critics to the policy's, where the recipe says none."""
SECTIONS = ("algorithm", "model", "modify", "reward", "sampler", "train")
"""First words of the keys that may be searched. Evaluation, checks and tasks say what is compared."""
BUDGET = ("train.steps", "train.prompts_per_step", "train.group_size")
"""Keys that say how much a run costs."""
MODES = ("greedy", "sampled", "likelihood")
"""Evaluation modes in the order in which reports prefer them."""


@dataclass(frozen=True)
class SearchPlan:
    """A search that can begin."""

    recipe: Recipe
    """With the arms to be searched."""
    seeds: tuple[int, ...]
    """In the order in which they are used."""
    extensions: int
    """Rates that the grid can gain on each side."""
    outcomes: Mapping[str, str]
    """The measure of each task."""
    stages: tuple[Stage, ...]
    """Without choices; the rates are those that the grid begins with."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(config.task.name for config in self.recipe.configs))

    @property
    def steps(self) -> dict[str, int]:
        """Steps of a run, by task."""
        return {config.task.name: config.train.steps for config in self.recipe.configs}

    def bounds(self, stage: Stage) -> tuple[int, int]:
        """The fewest and the most runs of an arm in a stage, over all tasks. The fewest are those of a grid
        whose middle rate is the best."""
        if len(stage.combinations) < 2:
            return 0, 0
        rates, seeds = len(rates_of(stage)), len(self.seeds)
        most = rates + 2 * self.extensions * (rates > 1)
        least = min(most, max(rates, 2 * BEYOND + 1))
        curves = len(curves_of(stage)) // len(stage.arms) * len(self.tasks)
        return curves * runs_of_rounds(least, seeds), curves * runs_of_rounds(most, seeds)

    def table(self) -> dict[str, Any]:
        """What is fixed before the first run."""
        return {
            "tasks": list(self.tasks),
            "steps": self.steps,
            "outcomes": dict(self.outcomes),
            "seeds": list(self.seeds),
            "extensions": self.extensions,
            "over": {
                stage.role: {key: list(values) for key, values in stage.over.items()} for stage in self.stages
            },
        }


def make_plan(
    recipe: Recipe,
    over: Sequence[str] = (),
    seeds: Sequence[int] = (),
    extensions: int | None = None,
) -> SearchPlan:
    """The search of a recipe's arms. Arguments come before what its table `search` says; `over` holds texts
    ``KEY=VALUE,VALUE``. Raises ConfigError with everything that is wrong, or that would make it unequal."""
    faults: list[str] = []
    table = recipe.search
    values_by_key = {**table.over}
    for text in over:
        values_by_key |= read_over_text(text, faults)
    values_by_key = {
        RATE if key == f"{RATE}.policy" else key: values for key, values in values_by_key.items()
    }
    settings = rule_of(table, seeds, extensions, faults)
    faults += rule_faults(recipe, settings)
    recipe = without_named_search(recipe, faults)
    recipe = dataclasses.replace(recipe, configs=tuple(recipe.runs_at_own_rates()), rate_arms={})
    faults += unequal(recipe)
    faults += [fault for key, values in values_by_key.items() for fault in unsearchable(recipe, key, values)]
    outcomes = measures(recipe, settings.outcome, faults)
    if faults:
        raise ConfigError(faults, f"search of {recipe.name}")
    stages = stages_of(recipe, values_by_key)
    return SearchPlan(recipe, settings.seeds, settings.extensions, outcomes, stages)


def rule_of(table: Search, seeds: Sequence[int], extensions: int | None, faults: list[str]) -> Search:
    """The table of a recipe with the arguments in its places and defaults in those that nobody fills."""
    chosen = tuple(seeds) or table.seeds or SEEDS
    bound = table.extensions if extensions is None else extensions
    values = {"seeds": chosen, "extensions": bound, "outcome": table.outcome}
    read: Search | strict.Bad = strict.convert(values, Search, lambda name: f"--{name}", faults)
    if isinstance(read, strict.Bad):
        raise ConfigError(faults)
    return read


# What is wrong with a search


def rule_faults(recipe: Recipe, settings: Search) -> list[str]:
    """Faults of seeds, and of a recipe that cannot be searched."""
    faults = []
    if recipe.record and recipe.record.sha256:
        faults.append(f"{SEARCHED}: a search wrote this recipe; search the one that it was written from")
    if recipe.sweep_values:
        faults.append("over: is a map's; write the values into [search.over], or give them with --over")
    if shared := sorted({*settings.seeds} & {*recipe.head.seeds}):
        names = ", ".join(map(str, shared[:8])) + (", …" if len(shared) > 8 else "")
        complaint = f"the recipe compares its arms on {names} too, which would favor what they chose"
        faults.append(
            f"--seeds: {complaint}; give others, such as {settings_seeds(recipe, len(settings.seeds))}"
        )
    return faults


def without_named_search(recipe: Recipe, faults: list[str]) -> Recipe:
    """The recipe without a table `searched` that names the search of its rates: this search replaces it."""
    if recipe.record is None:
        return recipe
    text = re.sub(rf"(?ms)^\[{SEARCHED}\].*?(?=^\[|\Z)", "", recipe.text)
    if SEARCHED in toml.read(text):
        faults.append(f"{SEARCHED}: write it as a table, [{SEARCHED}], which the search can replace")
    return dataclasses.replace(recipe, text=text, record=None)


def settings_seeds(recipe: Recipe, count: int) -> str:
    """Seeds that the recipe does not use, as an example."""
    first = 100 * (max(recipe.head.seeds) // 100 + 1)
    return f"{first}-{first + count - 1}" if count > 1 else str(first)


def unequal(recipe: Recipe) -> list[str]:
    """Why the arms would not get the same number of runs and steps."""
    cells: dict[str, dict[str, int]] = {}
    for config in recipe.configs:
        cells.setdefault(config.arm, {})[config.task.name] = config.train.steps
    first, first_steps = next(iter(cells.items()))
    faults = []
    for arm, steps in cells.items():
        if steps.keys() != first_steps.keys():
            has, others = ", ".join(steps), ", ".join(first_steps)
            faults.append(
                f"arm.{arm}: runs on {has} and {first} on {others}, and an equal search needs equal tasks; "
                "choose arms or tasks with --set arms=… or --set tasks=…"
            )
        elif steps != first_steps:
            faults.append(
                f"arm.{arm}: has {listed_steps(steps)} steps and {first} {listed_steps(first_steps)}, and "
                "an equal search needs the same; set train.steps"
            )
    return faults


def listed_steps(steps: Mapping[str, int]) -> str:
    """Steps by task, or the one number that all have."""
    if len({*steps.values()}) == 1:
        return str(next(iter(steps.values())))
    return ", ".join(f"{count} ({task})" for task, count in steps.items())


def unsearchable(recipe: Recipe, key: str, values: Sequence[Value]) -> list[str]:
    """Why a key cannot be searched in all arms, or not with these values; empty where it can."""
    section, _, name = key.partition(".")
    if section not in SECTIONS:
        examples = ", ".join(f"{listed_section}.FIELD" for listed_section in SECTIONS)
        return [f"--over {key}: cannot be searched; known: {examples}"]
    if key in BUDGET:
        return [f"--over {key}: says how much a run costs, which must be equal; set it with --set {key}=…"]
    if section == "algorithm" and (lack := lacking_arms(recipe, key, name)):
        return [lack]
    if recipe.sweep_values:
        return []
    if key.startswith(RATE) and (close := too_close(values)):
        low, high = (toml.value(rate) for rate in close)
        gap = f"{low} and {high} differ by less than a factor of {CLOSEST:g}"
        return [f"--over {key}: {gap}, which leaves no room for a rate between them; leave one out"]
    try:
        read_again(recipe, [], [f"{key}={toml.value(list(values))}"])
    except ConfigError as error:
        return [fault.replace("--set ", "--over ", 1) for fault in error.faults]
    return []


def too_close(rates: Sequence[Value]) -> tuple[float, float] | None:
    """Two rates between which the search could not place another one."""
    rising = sorted(float(rate) for rate in rates if isinstance(rate, int | float))
    pairs = itertools.pairwise(rising)
    return next(((low, high) for low, high in pairs if high < CLOSEST * low), None)


def lacking_arms(recipe: Recipe, key: str, name: str) -> str:
    """Why the arms would not get equally many values of a setting of algorithms; empty where they would, and
    for a setting that no arm has."""
    arms = {config.arm: type(config.algorithm) for config in recipe.configs}
    lacking = [arm for arm, cls in arms.items() if name.partition(".")[0] not in strict.hints(cls)]
    having = ",".join(arm for arm in arms if arm not in lacking)
    if not lacking or not having:
        return ""
    remedy = f"search it in the others: --set arms={having}"
    verb = "lacks" if len(lacking) == 1 else "lack"
    return f"--over {key}: {', '.join(lacking)} {verb} this setting and would get fewer values; {remedy}"


def measures(recipe: Recipe, outcome: str, faults: list[str]) -> dict[str, str]:
    """By task, what a run's outcome is. The test split is never read."""
    if outcome:
        try:
            measure = Measure.read(outcome, OF_STEPS)
        except ValueError as error:
            faults.append(f"search.{error}")
            return {}
        faults += measure_faults(recipe.configs, measure.metrics)
        return dict.fromkeys((config.task.name for config in recipe.configs), measure.text)
    chosen = {}
    for task, configs in by_task(recipe).items():
        mode = next((mode for mode in MODES if all(evaluates(config, mode) for config in configs)), "")
        chosen[task] = f"{ACCURACY}{mode}/correct"
        if not mode:
            faults.append(
                f"evaluate: not all runs on {task} are evaluated on the validation split, which chooses; set "
                "evaluate.problems above 0 and evaluate.greedy = true, or choose another task"
            )
    return chosen


def measure_faults(configs: Sequence[RunConfig], metrics: Sequence[str]) -> list[str]:
    """What is wrong with the metrics that an outcome reads."""
    faults = [
        f"search.outcome: {name} is of the test split, which no search may read; write eval/validation/…"
        for name in metrics
        if "/test/" in name
    ]
    for name in metrics:
        mode = name.removeprefix("eval/validation/").partition("/")[0]
        if name.startswith("eval/validation/") and not all(evaluates(config, mode) for config in configs):
            faults.append(
                f"search.outcome: not every run is evaluated by {mode} answers on the validation split"
            )
    return faults


def by_task(recipe: Recipe) -> dict[str, list[RunConfig]]:
    """The runs of each task."""
    configs_by_task: dict[str, list[RunConfig]] = {}
    for config in recipe.configs:
        configs_by_task.setdefault(config.task.name, []).append(config)
    return configs_by_task


def evaluates(config: RunConfig, mode: str) -> bool:
    """Whether a run is evaluated on the validation split in a mode."""
    settings, task = config.evaluate, config.task
    evaluated_modes = {
        "greedy": settings.greedy,
        "sampled": settings.samples > 0,
        "likelihood": settings.likelihood,
    }
    return (
        settings.problems > 0
        and "validation" in task.splits
        and mode in task.modes
        and evaluated_modes.get(mode, False)
    )


# Stages


def stages_of(recipe: Recipe, over: Mapping[str, Sequence[Value]]) -> tuple[Stage, ...]:
    """The policy's stage, then those of critics. Raises ConfigError if nothing has two values.

    A stage searches the learning rate of one role in every arm that trains it: the policy's together with all
    other keys of `--over`, then a critic's at the policy's chosen values. The rates of every
    arm, with each combination of other values, are a curve of `rate_choice`. Every curve of a stage has the
    same number of rates, seeds and steps."""
    arms = {config.arm: config for config in recipe.configs}
    center = median_low([config.train.learning_rate["policy"] for config in arms.values()])
    first = {RATE: list(over.get(RATE, around(center)))}
    critics = {rate_key(role) for role in CRITICS}
    first |= {key: list(values) for key, values in over.items() if key not in critics and key != RATE}
    stages = [Stage("policy", first, tuple(arms), {}, {})]
    pins: dict[str, dict[str, float]] = {}
    for role in CRITICS:
        training = [arm for arm, config in arms.items() if role in config.train.learning_rate]
        if not training:
            continue
        stated = said_rates(recipe, role)
        middle = median_low([*stated.values()]) if stated else CRITIC_FACTOR * center
        values = list(over.get(rate_key(role), around(middle)))
        stages.append(Stage(role, {rate_key(role): values}, tuple(training), {}, {}))
        meanwhile = median_low(values)
        for arm in training:
            pins.setdefault(arm, {})[role] = float(stated.get(arm, meanwhile))
    stages[0] = dataclasses.replace(stages[0], others=pins)
    counts = [len(stage.combinations) for stage in stages]
    if max(counts) < 2:
        raise ConfigError(["--over: every setting has one value, so there is nothing to choose"])
    if max(counts) > MOST:
        raise ConfigError([f"--over: more than {MOST} combinations of values; give fewer"])
    return tuple(stages)


def said_rates(recipe: Recipe, role: Role) -> dict[str, float]:
    """By arm, the learning rate of a role that the recipe sets. One that is left out takes the policy's."""
    other = 0.5
    moved = read_again(recipe, [f"{rate_key('policy')}={other}"])
    follows = {config.arm for config in moved.configs if config.train.learning_rate.get(role) == other}
    rates = {config.arm: config.train.learning_rate for config in recipe.configs}
    return {
        arm: arm_rates[role] for arm, arm_rates in rates.items() if role in arm_rates and arm not in follows
    }


def read_again(
    recipe: Recipe, sets: Sequence[str], over: Sequence[str] = (), folder: Path | None = None
) -> Recipe:
    """A recipe with more assignments. Each arm runs at one learning rate, which the search gives it."""
    home = recipe.folder if folder is None else folder
    one_rate = ["rates=[]"] if recipe.head.rates else []
    return read_text(recipe.text, recipe.name, home, [*recipe.sets, *sets, *one_rate], recipe.name, over)


def stage_recipe(
    plan: SearchPlan, stage: Stage, chosen: Mapping[str, Mapping[str, Value]]
) -> tuple[Recipe, dict[str, tuple[str, Combination]]]:
    """The recipe of all runs of a stage, and by its arms' names the searched arm and the values. `chosen`
    has the values that earlier stages chose. The test split is not evaluated."""
    sets = ["evaluate.test_problems=0", f"seeds={toml.value(list(plan.seeds))}"]
    if all(map(is_accuracy, plan.outcomes.values())):
        sets.append("evaluate.before=true")  # a run that ends below its base fails
    for arm in stage.arms:
        rates = {rate_key(role): rate for role, rate in stage.others.get(arm, {}).items()}
        sets += assignments(arm, {**rates, **chosen.get(arm, {})})
    over = [f"{key}={toml.value(list(values))}" for key, values in stage.over.items()]
    recipe = read_again(plan.recipe, sets, over)
    labels = {
        label: (point.arm, tuple(point.values[key] for key in stage.over))
        for label, point in recipe.sweep_values.items()
        if point.arm in stage.arms
    }
    head = dataclasses.replace(recipe.head, name=stage.role, control="")
    # Of the runs of a search only the logs are read: a hundred policies would fill a disk.
    configs = tuple(
        dataclasses.replace(
            config,
            experiment=stage.role,
            checkpoint=dataclasses.replace(config.checkpoint, weights=False),
        )
        for config in recipe.configs
    )
    renamed = dataclasses.replace(recipe, head=head, configs=configs, over=())
    return only(renamed, [*labels], plan.seeds), labels


def assignments(arm: str, values: Mapping[str, Value]) -> list[str]:
    """Values of an arm as `--set` takes them."""
    texts = []
    for key, value in values.items():
        section, _, setting = key.partition(".")
        path = f"settings.{setting}" if section == "algorithm" else key
        texts.append(f"arm.{arm}.{path}={toml.value(value)}")
    return texts


def only(recipe: Recipe, labels: Sequence[str], seeds: Sequence[int]) -> Recipe:
    """The runs of some of a recipe's arms and seeds."""
    label_set = {*labels}
    return dataclasses.replace(
        recipe,
        head=dataclasses.replace(recipe.head, seeds=tuple(seeds)),
        configs=tuple(
            config for config in recipe.configs if config.arm in label_set and config.seed in {*seeds}
        ),
        sweep_values={name: point for name, point in recipe.sweep_values.items() if name in label_set},
    )


# Rounds

Curve: TypeAlias = tuple[str, Combination]
"""An arm, and the values of the keys other than the rate."""


def curves_of(stage: Stage) -> list[Curve]:
    """The curves of a stage. The rate is the first key of its values."""
    others = dict.fromkeys(values[1:] for values in stage.combinations)
    return [(arm, values) for arm in stage.arms for values in others]


def rates_of(stage: Stage) -> list[float]:
    """The rates of a stage, rising."""
    return sorted(float(rate) for rate in stage.over[rate_key(stage.role)])


def with_rates(stage: Stage, rates: Iterable[float]) -> Stage:
    """A stage with these rates."""
    return dataclasses.replace(stage, over={**stage.over, rate_key(stage.role): sorted(rates)})


def rounds_of(plan: SearchPlan, stage: Stage, outcomes: Mapping[Curve, Outcomes]) -> Iterator[Round[Curve]]:
    """The rounds of a stage (`rate_choice.rounds`). `outcomes` has all of its curves."""
    return rounds(outcomes, rates_of(stage), len(plan.seeds), plan.extensions)


def forecast(plan: SearchPlan) -> list[Recipe]:
    """By stage, a recipe with the fewest runs that it can have. Which rates the search will try is not known
    yet; those around the middle of the grid stand in, since all cost the same."""
    recipes = []
    for stage in plan.stages:
        if len(stage.combinations) < 2:
            continue
        first = plan.stages[0]
        stand_in = dict(zip(first.over, first.combinations[0], strict=True))
        chosen = {} if stage is first else dict.fromkeys(stage.arms, stand_in)
        seeds_by_value: dict[tuple[str, Combination], int] = {}
        center = math.log(median_low(rates_of(stage)))
        outcomes: dict[Curve, dict[float, dict[int, float]]] = {curve: {} for curve in curves_of(stage)}
        for part in rounds_of(plan, stage, outcomes):
            for (arm, others), rates in part.rates.items():
                for rate in rates:
                    seeds_by_value[arm, (rate, *others)] = part.seeds
                    outcomes[arm, others][rate] = {0: -abs(math.log(rate) - center)}
        tried = with_rates(stage, {float(values[0]) for _, values in seeds_by_value})
        recipe, labels = stage_recipe(plan, tried, chosen)
        configs = [
            config
            for config in recipe.configs
            if config.seed in plan.seeds[: seeds_by_value.get(labels[config.arm], 0)]
        ]
        recipes.append(dataclasses.replace(recipe, configs=tuple(configs)))
    return recipes
