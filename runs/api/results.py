"""The results of an experiment for notebooks and scripts: data frames, tables, figures, the report."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from grpobench.analysis.figures.drawing import Drawing, png_bytes, save, write_files
from grpobench.analysis.figures.sheets import sheet_of, takes_both_columns
from grpobench.analysis.figures.style import Sheet
from grpobench.analysis.figures.table import PrintedTable
from grpobench.analysis.report.catalog import FIGURES
from grpobench.analysis.report.crew import FORMATS, drawing_crew
from grpobench.analysis.report.facts import Facts, gather
from grpobench.analysis.report.figures import begin
from grpobench.analysis.report.report import demand_known, write
from grpobench.analysis.runfolder import load as logs
from grpobench.analysis.runfolder.experiment import (
    Experiment,
    completion_files,
    read_completions,
    read_rollouts,
    rollout_steps,
)
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.several import combine_experiments
from grpobench.analysis.tools.processes import Crew, usable_cores
from grpobench.analysis.topics.figure_names import FIGURE_SUMMARIES
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.parts import Shown
from grpobench.analysis.topics.rates import RateStudy
from grpobench.analysis.topics.runs import run_settings
from grpobench.analysis.topics.training import list_constant
from grpobench.runs.inventory.labels import labels_of
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import ConfigError

DPI = 150
"""Dots per inch on the screen."""


def show_figures() -> None:
    """In a notebook, register an image format for figures, which would otherwise be printed by name: IPython
    normally learns of figures through pyplot, which the report does not use. The registration stays."""
    if "IPython" not in sys.modules:
        return
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return
    formatter = shell.display_formatter.formatters["image/png"]
    try:
        formatter.lookup_by_type(Figure)
    except KeyError:
        formatter.for_type(Figure, image)


def image(figure: Figure) -> bytes:
    """A figure as PNG."""
    return png_bytes(Drawing("", "", "", figure), DPI)


KEYS = ["arm", "task", "seed", "step"]
COMPLETION = ["mode", "problem", "sample", "completion"]
ROLLOUT = ["problem", "sample", "prompt", "completion", "length", "stopped", "outcome", "reward"]


def load(
    folder: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    margin: float | None = None,
    strict: bool = False,
    targets: Sequence[float] = (),
) -> Results:
    """Load the results in the folder of an experiment, such as ``results/quickstart``, whatever state its
    runs are in. With `more` folders, the runs of all are one set of results, in which arms of different
    experiments are not compared.

    A run with a damaged file has the state `damaged` and does not count; `Results.damage` gives the file, the
    line and the remedy. Raises `LogError` if there is nothing to read and, with `strict`, for any damage.
    `margin` is the smallest difference of accuracy that matters, in points; `targets` are validation
    accuracies, as shares, of which the report says how soon runs reach them. Both are the recipe's by
    default.
    """
    if wrong := [target for target in targets if not 0 < target <= 1]:
        raise ConfigError([f"targets: must be shares above 0 and at most 1, such as 0.6, not {wrong[0]:g}"])
    experiments = [logs.load(Path(path), margin, strict) for path in (folder, *more)]
    if targets:
        experiments = [replace(experiment, targets=tuple(targets)) for experiment in experiments]
    results = Results(combine_experiments(experiments))
    if strict and results.damage:
        raise LogError("\n".join(results.damage))
    return results


@dataclass(frozen=True, repr=False)
class Results:
    """The logs of an experiment's runs, and everything that the report computes from them. A frame is built
    when it is first used, from the logs as they were when the results were loaded."""

    experiment: Experiment

    @cached_property
    def facts(self) -> Facts:
        """Every number of the report, computed once."""
        return gather(self._numbers)

    @cached_property
    def _numbers(self) -> Numbers:
        return Numbers(self.experiment, Shown(labels=labels_of([*self._shown_arms, *self.tasks])))

    @property
    def _shown_arms(self) -> tuple[str, ...]:
        """The arms that figures name: those of the recipe, also for a map."""
        return Numbers(self.experiment).recipe_arms

    @property
    def folder(self) -> Path:
        """Where the runs are."""
        return self.experiment.folder

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.experiment.name

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms in the recipe's order."""
        return self.experiment.arms

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks in the recipe's order."""
        return self.experiment.tasks

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of all runs, sorted."""
        return self.experiment.seeds

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row per run: arm, task, seed; state and why; `base`, `final` and `counted` accuracy (shares; a
        run that diverged counts as 0, one without a result as NaN), their split and mode; validation
        accuracies; the number of evaluated problems, with the interval over them; and every setting in a
        column named as for ``--set``, such as ``train.learning_rate.policy``."""
        accuracies = self._numbers.every
        settings = pd.DataFrame(run_settings(self.experiment))
        return accuracies.merge(settings, on="name", how="left", validate="one_to_one")

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row per run and step: arm, task, seed, step, and a column per logged metric (NaN if it is not
        logged). Units and definitions: ``grpobench.list("metrics")``."""
        wide = self.experiment.metrics.pivot(index=KEYS, columns="metric", values="value")
        wide.columns = pd.Index([str(name) for name in wide.columns])
        return wide.reset_index()

    @property
    def evaluations(self) -> pd.DataFrame:
        """A row per evaluated problem and sample: arm, task, seed, step, split, mode, problem, sample,
        answer, outcome, length in tokens, stopped, and a column each ``score/NAME`` and ``trait/NAME``."""
        return self.experiment.evaluations

    @cached_property
    def completions(self) -> pd.DataFrame:
        """A row per evaluated completion whose text is stored: arm, task, seed, step, split, mode, problem,
        sample and `completion`. ``results.evaluations.merge(results.completions)`` puts each beside its
        answer and scores. Raises `LogError` for a damaged file."""
        rows = [
            {**run, "step": step, "split": split, **{key: row[key] for key in COMPLETION}}
            for run, path in self._folders()
            for (split, step), file in completion_files(path).items()
            for row in read_completions(file)
        ]
        return pd.DataFrame(rows, columns=[*KEYS, "split", *COMPLETION])

    @cached_property
    def rollouts(self) -> pd.DataFrame:
        """A row per stored completion that was trained on: arm, task, seed, step, problem, sample, prompt,
        `completion`, length in tokens, stopped, outcome, reward and a column for each ``score/NAME``. Runs
        store those of the first step, of steps with an evaluation and of the last. Raises `LogError` for a
        damaged file."""
        rows = [
            {
                **run,
                "step": step,
                "problem": row.get("problem"),
                "sample": sample,
                "prompt": row.get("prompt"),
                "completion": completion.get("text"),
                "length": completion.get("tokens"),
                **{key: completion.get(key) for key in ("stopped", "outcome", "reward")},
                **{f"score/{name}": value for name, value in completion.get("scores", {}).items()},
            }
            for run, path in self._folders()
            for step, file in rollout_steps(path).items()
            for row in read_rollouts(file)
            for sample, completion in enumerate(row["completions"])
        ]
        return pd.DataFrame(rows, columns=None if rows else [*KEYS, *ROLLOUT])

    def _folders(self) -> list[tuple[dict[str, object], Path]]:
        """Arm, task and seed of each run that is not damaged, and its folder."""
        return [
            ({"arm": run.arm, "task": run.task, "seed": run.seed}, self.folder / run.name)
            for run in self.experiment.runs
            if run.state not in ("missing", "damaged")
        ]

    @cached_property
    def settings(self) -> pd.DataFrame:
        """A row per setting and a column per arm, as texts, those that differ first; `differs` and `changed`
        (whether a run changed it midway)."""
        setting_rows = self.facts.settings
        rows = [
            {**setting.values, "differs": setting.differs, "changed": bool(setting.changed)}
            for setting in setting_rows
        ]
        return pd.DataFrame(rows, index=pd.Index([setting.key for setting in setting_rows], name="setting"))

    @property
    def damage(self) -> Sequence[str]:
        """Files that could not be read: file, line if there is one, fault and remedy."""
        return [*self._numbers.damage, *self._numbers.spared]

    @property
    def headline(self) -> str:
        """What happened, in the report's first sentence."""
        return self.facts.headline

    @property
    def warnings(self) -> Mapping[str, Sequence[str]]:
        """Everything that the report tells a reader to doubt, the gravest first: title -> details. The
        `alarms` are among them."""
        return {warning.title: tuple(warning.lines) for warning in self.facts.warnings}

    @property
    def alarms(self) -> Mapping[str, Sequence[str]]:
        """Warnings about the runs themselves: runs that are not uniform, logs that lack rows."""
        return {title: tuple(lines) for title, lines in self.facts.alarms.items()}

    @property
    def rates(self) -> RateStudy | None:
        """The arms over learning rates: their `curves`, and their `pairs`, compared at best, own and equal
        rates. None where each arm ran at one rate. All else of these results is at the arms' own rates."""
        return self._numbers.rates

    @property
    def tables(self) -> Mapping[str, str]:
        """The names of the report's tables, each with its title."""
        return {name: table.title for name, table in self.facts.tables.items()}

    def table(self, name: str) -> pd.DataFrame:
        """A table of the report as numbers, the same as in its csv; accuracies are shares. Raises ValueError
        for a name that is not in `tables`."""
        return self._table(name).frame.copy()

    def summary(self, name: str = "accuracy") -> pd.DataFrame:
        """A table of the report as it is printed there, with accuracies in percent; by default the table of
        final accuracies per task and arm. Empty if no run was evaluated."""
        if name == "accuracy" and name not in self.facts.tables:
            return pd.DataFrame()
        table = self._table(name)
        return pd.DataFrame(list(table.rows), columns=list(table.header))

    def _table(self, name: str) -> PrintedTable:
        tables = self.facts.tables
        if name not in tables:
            raise ValueError(unknown("table", name, tables))
        return tables[name]

    @cached_property
    def figures(self) -> Mapping[str, str]:
        """The names of the figures that these logs allow, each with what it shows."""
        drawn = [name for name, kind in FIGURES.items() if kind.serves(self._numbers)]
        return {name: FIGURE_SUMMARIES[name] for name in drawn}

    def figure(
        self,
        name: str,
        path: str | os.PathLike[str] | None = None,
        width: str | float = "text",
        *,
        tasks: Iterable[str] = (),
        arms: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        font: str = "",
    ) -> Figure:
        """One figure of the report, drawn for a width: inches, `text` or `column` of a two-column page (7 or
        3.4 inches), `neurips`, `icml`, `icml-text`, `acl`, `acl-text`.

        `tasks` and `arms` choose what is drawn, in the recipe's order; p values stay corrected for all pairs.
        `labels` are names of arms and tasks in the figure. `font` is a family, a size in points or both, such
        as ``serif 9``. If `path` ends in .pdf, .svg, .png or .pgf the figure is also saved: PDF and SVG of
        text width with the report's bytes, PNG with 300 dots per inch. Raises ValueError for a name that is
        not in `figures`, an unknown task, arm, width or font and another ending, and RuntimeError for .pgf if
        LaTeX is not installed."""
        drawing = self._drawing(name, sheet_of(width, font), self._showing(tasks, arms, labels))
        if drawing is None:
            raise ValueError(unknown("figure", name, self.figures))
        if path is not None:
            save(drawing, Path(path))
        show_figures()
        return drawing.figure

    def _showing(
        self, tasks: Iterable[str], arms: Iterable[str], labels: Mapping[str, str] | None
    ) -> Numbers:
        """The numbers, of which figures show these arms and tasks under these names. Raises ValueError."""
        chosen = Shown(tuple(arms), tuple(tasks), {**self._numbers.shown.labels, **(labels or {})})
        for kind, names, valid_names in (
            ("arm", chosen.arms, self._shown_arms),
            ("task", chosen.tasks, self.tasks),
            ("arm or task", labels or {}, [*self._shown_arms, *self.tasks]),
        ):
            for name in names:
                if name not in valid_names:
                    raise ValueError(unknown(kind, name, dict.fromkeys(valid_names)))
        twins = [label for label, count in Counter(chosen.labels.values()).items() if count > 1]
        if twins and labels:
            raise ValueError(f"labels: two arms or tasks are called {twins[0]!r}; give them different names")
        return self._numbers if chosen == self._numbers.shown else self._numbers.showing(chosen)

    def _drawing(self, name: str, sheet: Sheet, numbers: Numbers) -> Drawing | None:
        if name not in FIGURES:
            raise ValueError(unknown("figure", name, FIGURES))
        return FIGURES[name](numbers, sheet)

    def write_figures(
        self,
        folder: str | os.PathLike[str],
        names: Iterable[str] | None = None,
        formats: Sequence[str] = ("pdf",),
        width: str | float = "text",
        *,
        tasks: Iterable[str] = (),
        arms: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        font: str = "",
    ) -> list[Path]:
        """Save figures for a paper, each with a `.tex` file that includes it and a `.txt` file of its
        caption. The default is all figures that the logs allow; of several `names`, those that the logs do
        not allow are left out. The other arguments are those of `figure`. Returns what was written. Raises as
        `figure` does."""
        figure_names = list(FIGURES) if names is None else list(names)
        sheet, numbers = sheet_of(width, font), self._showing(tasks, arms, labels)
        drawn = [
            drawing for name in figure_names if (drawing := self._drawing(name, sheet, numbers)) is not None
        ]
        if not drawn:
            raise ValueError(f"{self.folder}: {self._why_nothing(figure_names, numbers)}")
        Path(folder).mkdir(parents=True, exist_ok=True)
        wide = takes_both_columns(width)
        return [path for drawing in drawn for path in write_files(drawing, Path(folder), formats, wide)]

    def _why_nothing(self, figure_names: Sequence[str], numbers: Numbers) -> str:
        """Why none of these figures can be drawn."""
        among = " of experiments that nothing pairs" if self.experiment.apart else ""
        text = f"the logs have no data for {', '.join(figure_names)}{among}"
        constant = list_constant(numbers.drawn[0].experiment, figure_names)
        return f"{text}, or only constant values. {' '.join(constant)}" if constant else text

    def report(self, path: str | os.PathLike[str] | None = None, formats: Sequence[str] = FORMATS) -> Path:
        """Write the report, byte for byte as ``grpobench report`` does (except for links to the files of
        runs, whose relative paths differ in another folder), and return its index.html, or the folder if html
        is not requested. It goes to the folder `report` of the experiment unless `path` names another, which
        must be new, empty or hold an earlier report. Raises ValueError for an unknown format and for a folder
        with other content."""
        demand_known(formats)
        with drawing_crew(formats, usable_cores()) as drawers:
            return self.write(drawers, path, formats)

    def write(
        self, drawers: Crew, path: str | os.PathLike[str] | None = None, formats: Sequence[str] = FORMATS
    ) -> Path:
        """`report` whose figures are drawn by `drawers` processes."""
        from grpobench.runs.settings.registries import algorithms

        figures = begin(self._numbers, formats, drawers)
        papers = {name: cls.paper for name, cls in algorithms().items()}
        return write(self.facts, figures, formats, None if path is None else Path(path), papers)

    def _head(self) -> list[str]:
        """The state of the runs, the report's first sentence, and its warnings."""
        experiment = self.experiment
        counts = experiment.at_all_rates.statuses["state"].value_counts()
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        warned = [f"The report warns: {title}." for title in self.warnings]
        return [
            f"Results {experiment.name}: {sum(counts)} runs, {states}; {experiment.folder}",
            self.headline,
            *warned,
        ]

    def __repr__(self) -> str:
        """The state of its runs, and the report's accuracies."""
        table = self.summary()
        return "\n".join([*self._head(), *([] if table.empty else [table.to_string(index=False)])])

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        return "".join(f"<p>{escape(line)}</p>" for line in self._head()) + str(
            self.summary().to_html(index=False)
        )


def unknown(kind: str, name: str, valid_names: Mapping[str, object]) -> str:
    """The message for a name that these results do not have."""
    did = strict.did_you_mean(name, valid_names, f"there are: {', '.join(valid_names) or 'none'}", "{!r}")
    return f"no {kind} {name!r} in these results; {did}"
