"""Read a recipe: a TOML file that spans an experiment of arms, tasks and seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.search import SearchRecord, read_record
from grpobench.runs.settings import guard, observe, optimizers, others
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.draft import Head, read_draft
from grpobench.runs.settings.expand import RateOrigin, SweepOrigin, expand
from grpobench.runs.settings.search import (
    SEARCHED,
    SEARCHES,
    SEEDS,
    Search,
    load_record,
    read_search,
    seed_faults,
    settings_by_arm,
)
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import ConfigError

RECIPES = Path(__file__).parents[1] / "recipes"


@dataclass(frozen=True, repr=False)
class Recipe:
    """An experiment of runs, resolved and checked."""

    head: Head
    summary: str
    text: str
    """The recipe file."""
    sets: tuple[str, ...]
    configs: tuple[RunConfig, ...]
    left_out: tuple[str, ...] = ()
    """Optional arms on tasks that they do not fit, with the reason."""
    folder: Path = Path()
    """Where the files of a `module:Name` are looked for first."""
    sweep_values: Mapping[str, SweepOrigin] = field(default_factory=dict)
    """Where each arm of a map comes from; empty: the recipe has no sweep values."""
    rate_arms: Mapping[str, RateOrigin] = field(default_factory=dict)
    """Where each arm at another learning rate than its own comes from; empty: the recipe has no `rates`."""
    over: tuple[str, ...] = ()
    """What `--over` said."""
    settings_of: str = ""
    """The recipe of the suite that the settings are those of; empty for a recipe of others."""
    command: str = ""
    """The command that made the recipe; empty where it is a file."""
    borrowed_rates: Mapping[str, str] = field(default_factory=dict)
    """Arm -> the arm whose learning rate it has because none was chosen for it."""
    samplers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By model, the `kind` that replaced `sampler.kind = "auto"`, and `why`; empty before it is chosen."""
    search: Search = field(default_factory=Search)
    """How `grpobench search` chooses settings of the arms."""
    record: SearchRecord | None = None
    """The search that chose settings of the arms, if one did."""

    @property
    def name(self) -> str:
        return self.head.name

    def runs(self) -> list[RunConfig]:
        """Every run, arms outermost, seeds innermost."""
        return list(self.configs)

    def runs_at_own_rates(self) -> list[RunConfig]:
        """The runs whose arms are the recipe's, at the learning rates that it gives them."""
        return [config for config in self.configs if config.arm not in self.rate_arms]

    def __repr__(self) -> str:
        """Its arms, tasks, seeds and updates, a line each."""
        columns: dict[str, list[Any]] = {
            "arms": [config.arm for config in self.runs_at_own_rates()],
            "rates": [f"{factor:g}" for factor in sorted(self.head.rates)],
            "tasks": [config.task.name for config in self.configs],
            "seeds": [config.seed for config in self.configs],
            "updates": [config.train.steps for config in self.configs],
            "model": [config.model.name for config in self.configs],
        }
        count = len(self.configs)
        lines = [
            f"Recipe {self.name}: {count} run{'s' * (count != 1)}",
            *([self.summary] * bool(self.summary)),
        ]
        lines += [
            f"{key:<7}  {', '.join(map(str, dict.fromkeys(values)))}"
            for key, values in columns.items()
            if values
        ]
        return "\n".join([*lines, *(f"left out: {why}" for why in self.left_out)])


def recipes() -> dict[str, Path]:
    """The recipes that come with the suite, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.toml"))}


def read_recipe(source: str, sets: Sequence[str] = (), over: Sequence[str] = ()) -> Recipe:
    """The recipe of a name or path, with `--set` and `--over` applied. Reads the recipe and nothing else.

    Raises `ConfigError` with every error of the recipe and the assignments at once.

    A value is looked for in layers, the last one wins: the dataclass's default, the preset of another
    library's defaults where an arm names one (``algorithm = "ALGORITHM@LIBRARY"``), the recipe's section,
    ``[on.TASK.section]``, the arm's ``[arm.section]``, ``[arm.on.TASK.section]``, what a search chose
    (``searched.set``), ``--set`` in the order given. Tables merge key by key; everything else is replaced.
    Settings of a task likewise: its entry in ``tasks``, the arm's ``[arm.task]``, ``--set task.FIELD`` and
    ``--set arm.NAME.task.FIELD``."""
    path, text, folder = open_recipe(source)
    recipe = read_text(text, path.stem, folder, sets, str(path), over)
    return dataclasses.replace(recipe, settings_of=path.stem) if source in recipes() else recipe


def open_recipe(source: str) -> tuple[Path, str, Path]:
    """The file of a recipe's name or path, its text, and the folder of what it names. Raises ConfigError for
    a file that cannot be read."""
    path = locate(source)
    text = strict.read_text(path, "recipe")
    return path, text, Path.cwd() if source in recipes() else path.parent  # the suite's: where the user is


def read_text(
    text: str,
    stem: str,
    folder: Path,
    sets: Sequence[str] = (),
    source: str = "",
    over: Sequence[str] = (),
) -> Recipe:
    """The recipe that a text in TOML is, as `read_recipe` reads it from a file called `stem` in `folder`;
    `source` stands before the errors."""
    return read_table(strict.read_toml(text, source), text, stem, folder, sets, source, over)


def read_table(
    table: Mapping[str, Any],
    text: str,
    stem: str,
    folder: Path,
    sets: Sequence[str] = (),
    source: str = "",
    over: Sequence[str] = (),
) -> Recipe:
    """The recipe that a table is; `text` is kept of the file that it stands in."""
    faults: list[str] = []
    search, searched = read_search(table, faults)
    draft = read_draft(table, stem, folder, [*(searched.set if searched else ()), *sets], faults)
    expansion = expand(draft, table.get("over", {}), over, faults)
    head = expansion.head
    configs = open_plugins(head, expansion.configs, folder, faults)
    if not faults and isinstance(head, Head):
        faults += guard.unmeasured(head.guard, configs)
    record = None
    if searched and searched.recipe:
        record = named_search(searched.recipe, folder, faults)
    elif searched:
        record = load_record(searched, folder, faults)
    if record and isinstance(head, Head):
        faults += seed_faults(record, head.seeds)
    if faults or isinstance(head, strict.Bad):
        raise ConfigError(faults, source)
    return Recipe(
        head,
        head.summary,
        text,
        tuple(sets),
        tuple(configs),
        tuple(expansion.left_out),
        folder,
        expansion.sweep_values,
        expansion.rate_arms,
        tuple(over),
        search=search,
        record=record,
    )


def named_search(source: str, folder: Path, faults: list[str]) -> SearchRecord | None:
    """What is known of the search of a recipe that a recipe in `folder` names: its record where
    searches/NAME.json is beside it, else its settings and seeds; None, with a fault, for a recipe that cannot
    be read or has searched rates itself."""
    try:
        is_path = source.endswith(".toml") or "/" in source
        path, text, home = open_recipe(str(folder / source) if is_path else source)
        if SEARCHED in strict.read_toml(text, str(path)):
            raise ConfigError([f"{source} has searched rates itself; name the recipe that was searched"])
        recipe = read_text(text, path.stem, home, source=str(path))
    except ConfigError as error:
        # Without the data or the model of the search its settings cannot be told; the runs need neither.
        if not all(fault.startswith(("task ", "model.name: ")) for fault in error.faults):
            faults += [f"{SEARCHED}.recipe: {fault}" for fault in error.faults]
        return None
    record = path.parent / SEARCHES / f"{recipe.name}.json"
    if record.exists():
        try:
            return read_record(record)
        except LogError as error:
            faults.append(f"{SEARCHED}.recipe: {error}")
            return None
    steps = {config.task.name: config.train.steps for config in recipe.configs}
    return SearchRecord(
        recipe=recipe.name,
        command=f"grpobench search {path.name if is_path else source}",
        tasks=tuple(steps),
        steps=steps,
        outcomes={},
        seeds=recipe.search.seeds or SEEDS,
        stages=(),
        trials=(),
        settings=settings_by_arm(recipe.configs),
    )


def open_plugins(
    head: Head | strict.Bad, configs: Sequence[RunConfig], folder: Path, faults: list[str]
) -> list[RunConfig]:
    """The runs with the recipe's callbacks, and with `folder`, the recipe's, where they need it. Optimizers
    and schedules of others are tried."""
    entries = [] if isinstance(head, strict.Bad) else head.observe
    callbacks, observed = observe.open_callbacks(entries, folder, faults)
    for train in {str(config.train): config.train for config in configs}.values():
        faults += optimizers.faults(train, folder)
    if faults:
        return list(configs)
    opened = []
    for config in configs:
        used = observed or others.stands_beside(config)
        beside = config.beside if used else ""
        opened.append(dataclasses.replace(config, observe=callbacks, beside=beside))
    return opened


def locate(source: str, kind: str = "recipe", by_name: Mapping[str, Path] | None = None) -> Path:
    """A recipe, or what else `kind` is, by path (anything with a slash or ending in .toml) or by name."""
    if source.endswith(".py"):
        compare = f"grpobench compare {Path(source).stem}:CLASS --with grpo --task arithmetic"
        raise ConfigError([f"{source} is Python and no recipe; to compare a class in it: {compare}"])
    if source.endswith(".toml") or "/" in source:
        return Path(source).expanduser()
    by_name = recipes() if by_name is None else by_name
    if source not in by_name:
        file = strict.nearest_file(source)
        others = f"known: {', '.join(by_name)}; or give the path of a TOML file"
        others = f"did you mean {file}?" if file else others
        raise ConfigError([f"unknown {kind} {source!r}; {strict.did_you_mean(source, by_name, others)}"])
    return by_name[source]
