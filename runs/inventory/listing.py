"""What the suite knows, a row for each thing: for `grpobench list`."""

from __future__ import annotations

import dataclasses
import textwrap
import tomllib
from collections.abc import Callable, Mapping

from grpobench.analysis.detect.registry import DETECTORS
from grpobench.runs.inventory import detectors, nearby
from grpobench.runs.inventory.describing import Row
from grpobench.runs.inventory.dialects import described, differences
from grpobench.runs.measure import catalogue
from grpobench.runs.models import finding, packages
from grpobench.runs.settings import recipe, registries
from grpobench.runs.settings.config import COMPONENTS
from grpobench.runs.settings.registries import BUILT_IN
from grpobench.tasks.data import sources


def algorithm_rows() -> list[Row]:
    """Those of the suite, then others'."""
    own = [
        {"name": name, "paper": cls.paper, "summary": cls.summary, "origin": BUILT_IN}
        for name, cls in registries.algorithms().items()
    ]
    return [*own, *({"paper": "", **row} for row in nearby.rows("algorithm"))]


def dialect_rows() -> list[Row]:
    return [
        {
            "name": name,
            "library": dialect.library,
            "version": dialect.version,
            "summary": f"{dialect.library} {dialect.version}: {described(differences(dialect))}",
        }
        for name, dialect in registries.dialects().items()
    ]


def task_rows() -> list[Row]:
    """Those of the suite, then others'."""
    own = [
        {"name": name, "source": cls.source, "summary": cls.summary, "origin": BUILT_IN}
        for name, cls in registries.tasks().items()
    ]
    return [*own, *({"source": "", **row} for row in nearby.rows("task"))]


def reward_rows() -> list[Row]:
    """What `reward.weights` may name beside the scores of a task: the suite's own, then others' functions."""
    own = [{"name": name, "summary": text, "origin": BUILT_IN} for name, text in COMPONENTS.items()]
    return [*own, *nearby.rows("reward")]


def recipe_rows() -> list[Row]:
    return [{"name": name, **recipe_summary(name)} for name in recipe.recipes()]


def recipe_summary(name: str) -> Row:
    """A recipe's one line, without resolving it (its task may be missing on this machine)."""
    table = tomllib.loads(recipe.recipes()[name].read_text(encoding="utf-8"))
    arms = [arm.get("name", arm.get("algorithm", "?")) for arm in table.get("arm", [])]
    tasks = [task if isinstance(task, str) else task.get("name", "?") for task in table.get("tasks", [])]
    return {
        "summary": table.get("summary", ""),
        "arms": arms,
        "tasks": tasks,
        "seeds": table.get("seeds", [0]),
    }


def metric_rows() -> list[Row]:
    return [dataclasses.asdict(metric) for metric in catalogue.catalogue().values()]


def detector_rows() -> list[Row]:
    """Kinds of events, with rule, family and thresholds."""
    rows: list[Row] = []
    for kind in DETECTORS:
        row = detectors.row(kind)
        told = {one["name"]: float(one["value"]) for one in row["thresholds"]}
        summary = row["about"].split(". ")[0]
        rows.append({"name": kind, "summary": summary, **row, "thresholds": told})
    return rows


def figure_rows() -> list[Row]:
    """What `grpobench figure` draws where the logs allow it."""
    from grpobench.analysis.figures.catalogue import FIGURES  # loads pandas and matplotlib

    return [{"name": name, "summary": kind.about} for name, kind in FIGURES.items()]


def model_rows() -> list[Row]:
    """Models by name (built in, in the user's model folder, in packages), then the two open kinds."""
    rows: list[Row] = []
    mine = finding.in_model_folder()
    for name in finding.names():
        source, summary, present = "built in", "small policy made by this project", True
        if name in mine:
            source, summary = "model folder", str(finding.model_folder())
        elif name in packages.PACKAGED:
            weights = packages.PACKAGED[name]
            source, summary = f"package {weights.file.requirement}", f"{weights.label} ({weights.licence})"
            root = sources.find(weights.file)
            present = root is not None and (root / weights.file.path).is_file()
        rows.append({"name": name, "source": source, "summary": summary, "present": present})
    what = "any causal language model that transformers reads"
    rows.append({"name": "PATH", "source": "local folder", "summary": what, "present": True})
    rows.append({"name": "OWNER/NAME", "source": "hub", "summary": f"{what}, from the hub", "present": True})
    return rows


LISTS: Mapping[str, Callable[[], list[Row]]] = {
    "algorithms": algorithm_rows,
    "dialects": dialect_rows,
    "tasks": task_rows,
    "rewards": reward_rows,
    "recipes": recipe_rows,
    "metrics": metric_rows,
    "detectors": detector_rows,
    "figures": figure_rows,
    "models": model_rows,
}


def as_lines(rows: list[Row]) -> list[str]:
    """Rows as text: the name, then what is said about it; of a family such as ``gym:NAME`` only the names."""
    theirs = [row for row in rows if row.get("origin", BUILT_IN) != BUILT_IN]
    rows = [row for row in rows if row not in theirs]
    kin: dict[str, list[str]] = {row["name"]: [] for row in theirs}
    for row in rows:
        head, colon, member = row["name"].partition(":")
        kin.setdefault(f"{head}:NAME" if colon else row["name"], []).append(member)
    width = max(map(len, kin), default=0)
    lines = []
    for row in rows:
        head, colon, _ = row["name"].partition(":")
        if colon:
            if members := kin.pop(f"{head}:NAME", []):
                lines.append(f"{f'{head}:NAME':<{width}}  NAME is one of these {len(members)}:")
                lines += textwrap.wrap(
                    " ".join(members), 100, initial_indent="    ", subsequent_indent="    "
                )
            continue
        text = row.get("summary") or row.get("definition", "")
        unit = f" [{row['unit']}]" if "unit" in row else ""
        absent = "" if row.get("present", True) else " (not installed)"
        lines.append(f"{row['name']:<{width}}  {text}{unit}{absent}")
    for row in theirs:
        text = f"{row['summary']} [{row['origin']}]".strip()
        lines.append(f"{row['name']:<{width}}  {text}")
    return lines
