"""Search settings of a recipe's arms from a script or a notebook."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from grpobench.analysis.runfolder.search import SearchRecord, Value
from grpobench.runs.api.experiments import PREEMPTED, Progress, RunError, console_for, demand_no_import
from grpobench.runs.api.recipes import Sets, Source, plain, recipe
from grpobench.runs.experiment.engines import Where
from grpobench.runs.experiment.experiment import line_on
from grpobench.runs.experiment.search_plan import make_plan
from grpobench.runs.experiment.searching import Searcher, target_of
from grpobench.runs.experiment.worker import On
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools import toml
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    import pandas as pd

Over: TypeAlias = Mapping[str, Iterable[Any]] | Sequence[str]
"""Values by key: ``{"train.learning_rate": [1e-4, 1e-3]}``, or ``["train.learning_rate=1e-4,1e-3"]`` as after
``--over``."""


@dataclass(frozen=True, repr=False)
class SearchResults:
    """A search that came to its end."""

    record: SearchRecord
    """Its rule, every run and the chosen values, as in search.json."""
    path: Path
    """The recipe with the chosen values, for `grpobench.run`."""

    @property
    def chosen(self) -> Mapping[str, Mapping[str, Value]]:
        """By arm, the chosen value of each key."""
        return self.record.chosen()

    @property
    def runs(self) -> pd.DataFrame:
        """A row per run of the search: role, arm, values, rung (the round), task, seed, outcome (None for a
        run that diverged and has no worst value), state, seconds, tokens, base (the outcome before
        training)."""
        import pandas as pd

        return pd.DataFrame([asdict(trial) for trial in self.record.trials])

    @property
    def table(self) -> pd.DataFrame:
        """A row per arm and value: seeds, mean outcome, standard deviation, failed runs, each seed, whether
        it was chosen."""
        from grpobench.analysis.topics.search import search_table

        return search_table(self.record).frame

    @property
    def notes(self) -> Sequence[str]:
        """A sentence for each choice: whether it is clear, and whether it lies at the edge of what was
        tried."""
        from grpobench.analysis.topics.search import describe_choices

        return describe_choices(self.record)

    def __repr__(self) -> str:
        """The table and the notes, as the command line prints them."""
        from grpobench.analysis.topics.search import table_lines

        return "\n".join([*table_lines(self.record), "", *self.notes, f"recipe: {self.path}"])


def search(
    source: Source,
    out: str | os.PathLike[str] = "results/search",
    *,
    over: Over = (),
    seeds: Iterable[int] = (),
    extensions: int | None = None,
    to: str | os.PathLike[str] | None = None,
    set: Sets = (),
    arms: Iterable[str] | None = None,
    tasks: Iterable[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: Progress = "auto",
    trial: bool = True,
    on: On = "local",
    address: str = "",
    gpus_per_run: float | None = None,
    cpus_per_run: int | None = None,
    job: Iterable[str] = (),
    gpu_memory: float | None = None,
) -> SearchResults:
    """Choose learning rates, and the settings in `over`, for every arm of a recipe by equal budgets. Writes a
    recipe with the chosen values. The same call goes on after a stop.

    `seeds` are those of the search, none of them the recipe's; the first two prune. `extensions` is how
    often the grid may be extended on each side. What is left out comes from the recipe's table ``search``, or
    is that of ``grpobench search``. `to` is the recipe to write; the default is
    NAME-searched.toml next to the recipe. The other arguments are those of `grpobench.run`.

    Raises `ConfigError` for errors in the recipe and for a search that would not be equal, `FolderError` if
    the folder holds a search by another plan, `RunError` if runs crashed, and KeyboardInterrupt when stopped:
    then nothing is chosen.
    """
    demand_no_import()
    parsed_recipe = recipe(source, set=set, arms=arms, tasks=tasks, folder=folder)
    console = console_for(progress)
    search_end = searcher(
        parsed_recipe,
        parsed_recipe.name,
        Path(out),
        texts_of(over),
        tuple(seeds),
        extensions,
        to,
        workers=workers,
        console=console,
        where=Where(on, address, gpus_per_run, cpus_per_run, tuple(job)),
        try_code=trial,
        say=line_on(console),
        gpu_memory=gpu_memory,
    ).search()
    if search_end.code == PREEMPTED:
        raise KeyboardInterrupt("stopped; the same call goes on")
    if search_end.record is None or search_end.recipe is None:
        assert search_end.last is not None
        raise RunError(search_end.last)
    return SearchResults(search_end.record, search_end.recipe)


def searcher(
    recipe: Recipe,
    name: str,
    out: Path,
    over: Sequence[str],
    seeds: Sequence[int],
    extensions: int | None,
    to: str | os.PathLike[str] | None,
    **options: Any,
) -> Searcher:
    """The search of a recipe that the user calls `name`, for `search` and the command line. `options` are
    further fields of `Searcher`. Raises `ConfigError` for a search that would not be equal."""
    plan = make_plan(recipe, over, seeds, extensions)
    return Searcher(plan, out, target_of(recipe) if to is None else Path(to), name, **options)


def texts_of(over: Over) -> list[str]:
    """``KEY=VALUE,VALUE`` texts as `--over` takes them. Raises `ConfigError` for what TOML cannot hold."""
    if not isinstance(over, Mapping):
        return [over] if isinstance(over, str) else list(over)
    faults: list[str] = []
    texts = [f"{key}={toml.value(plain(list(values), key, faults))}" for key, values in over.items()]
    if faults:
        raise ConfigError(faults, "over")
    return texts
