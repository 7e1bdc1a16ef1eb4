"""The rows of `grpobench list`: everything that grpobench has, and plugins that a name can reach."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from grpobench.algorithms.algorithm import Algorithm
from grpobench.analysis.topics.figure_names import FIGURE_SUMMARIES
from grpobench.runs.inventory import showing
from grpobench.runs.inventory.showing import Row, described, differences
from grpobench.runs.metrics import catalog
from grpobench.runs.models import model_files, model_packages
from grpobench.runs.settings import recipe, registries
from grpobench.runs.settings.config import COMPONENTS
from grpobench.runs.settings.registries import BUILT_IN, Kind
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded, sources
from grpobench.tasks.task import Task

BASES: dict[Kind, type] = {"algorithm": Algorithm, "task": Task}
SUITE = "grpobench."


def rows(kind: Kind) -> list[Row]:
    """A row per name, with its source."""
    return [*from_packages(kind), *from_files(kind, Path())]


def from_packages(kind: Kind) -> Iterator[Row]:
    """Plugins of entry points. One that cannot be loaded gets the reason."""
    for name, point in sorted(registries.entry_points(kind).items()):
        try:
            plugin = registries.find(kind, name)
        except ConfigError as error:
            yield {
                "name": name,
                "summary": "; ".join(error.faults),
                "provenance": (f"entry point {point.value}"),
            }
        else:
            yield {"name": name, "summary": first_line(plugin.cls), "provenance": plugin.provenance}


def first_line(definition: object) -> str:
    """A class's own summary, or the first line of its or a function's docstring."""
    doc = str(getattr(definition, "__doc__", None) or "").strip()
    return str(getattr(definition, "summary", "") or doc.partition("\n")[0])


def from_files(kind: Kind, folder: Path) -> Iterator[Row]:
    """Definitions in the Python files of a folder; files that do not parse are skipped.

    Files are only parsed, not imported: an algorithm or a task shows in its base classes, and a reward
    function in its argument `completions`."""
    for path in sorted(folder.glob("*.py")):
        try:
            tree = ast.parse(bounded.read_bytes(path))
        except (SyntaxError, ValueError):  # The error comes when the file is named.
            continue
        for node in definitions(kind, tree):
            doc = ast.get_docstring(node) or ""
            provenance = str(path.resolve())
            yield {
                "name": f"{path.stem}:{node.name}",
                "summary": stated(node) or doc.partition("\n")[0],
                "provenance": provenance,
            }


def definitions(
    kind: Kind, tree: ast.Module
) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The definitions of a kind at the top level of a file."""
    base = BASES.get(kind)
    base_names = imported(tree, base) if base else set()
    for node in tree.body:
        if base is None and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            if "completions" in {argument.arg for argument in arguments}:
                yield node
        elif isinstance(node, ast.ClassDef) and base_names & set(map(plain, node.bases)):
            base_names.add(node.name)
            yield node


def plain(base: ast.expr) -> str:
    """The name of a base such as ``Algorithm[Advantage]``."""
    inner = base.value if isinstance(base, ast.Subscript) else base
    return inner.id if isinstance(inner, ast.Name) else ""


def imported(tree: ast.Module, base: type) -> set[str]:
    """The names under which a file imports `base` and classes of the suite derived from it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(SUITE):
            try:
                module = importlib.import_module(node.module or "")
            except ImportError:  # The error comes when the file is named.
                continue
            for alias in node.names:
                exported = getattr(module, alias.name, None)
                if isinstance(exported, type) and issubclass(exported, base):
                    names.add(alias.asname or alias.name)
    return names


def stated(node: ast.AST) -> str:
    """The text of ``summary = "..."`` in a class."""
    for statement in getattr(node, "body", ()):
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if names == ["summary"]:
                return str(statement.value.value)
    return ""


def algorithm_rows() -> list[Row]:
    """The suite's algorithms, then plugins."""
    built_in = [
        {"name": name, "paper": cls.paper, "summary": cls.summary, "provenance": BUILT_IN}
        for name, cls in registries.algorithms().items()
    ]
    return [*built_in, *({"paper": "", **row} for row in rows("algorithm"))]


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
    """The suite's tasks, then plugins."""
    built_in = [
        {"name": name, "source": cls.source, "summary": cls.summary, "provenance": BUILT_IN}
        for name, cls in registries.tasks().items()
    ]
    return [*built_in, *({"source": "", **row} for row in rows("task"))]


def reward_rows() -> list[Row]:
    """Names for `reward.weights` beside the scores of a task: the suite's own, then functions of plugins."""
    built_in = [{"name": name, "summary": text, "provenance": BUILT_IN} for name, text in COMPONENTS.items()]
    return [*built_in, *rows("reward")]


def recipe_rows() -> list[Row]:
    return [{"name": name, **recipe_summary(name)} for name in recipe.recipes()]


def recipe_summary(name: str) -> Row:
    """A recipe's one line, without resolving it (its task may be missing on this machine)."""
    table = bounded.read_toml(recipe.recipes()[name])
    arms = [arm.get("name", arm.get("algorithm", "?")) for arm in table.get("arm", [])]
    tasks = [task if isinstance(task, str) else task.get("name", "?") for task in table.get("tasks", [])]
    return {
        "summary": table.get("summary", ""),
        "arms": arms,
        "tasks": tasks,
        "seeds": table.get("seeds", [0]),
    }


def metric_rows() -> list[Row]:
    return [dataclasses.asdict(metric) for metric in catalog.catalog().values()]


def detector_rows() -> list[Row]:
    """Kinds of events, with rule, family and thresholds."""
    from grpobench.analysis.detectors.registry import DETECTORS  # imports NumPy

    rows: list[Row] = []
    for kind in DETECTORS:
        row = showing.row(kind)
        thresholds = {threshold["name"]: float(threshold["value"]) for threshold in row["thresholds"]}
        summary = row["about"].split(". ")[0]
        rows.append({"name": kind, "summary": summary, **row, "thresholds": thresholds})
    return rows


def figure_rows() -> list[Row]:
    """The figures that `grpobench figure` draws if the logs allow it."""
    return [{"name": name, "summary": summary} for name, summary in FIGURE_SUMMARIES.items()]


def model_rows() -> list[Row]:
    """Models by name (built in, in the user's model folder, in packages), then the two open kinds."""
    rows: list[Row] = []
    mine = model_files.in_model_folder()
    for name in model_files.names():
        source, summary, present = "built in", "small policy made by this project", True
        if name in mine:
            source, summary = "model folder", str(model_files.model_folder())
        elif name.startswith("random:"):
            source, summary = model_files.RANDOM, "weights drawn at random, for memory, speed and warm starts"
        elif name in model_packages.PACKAGED:
            weights = model_packages.PACKAGED[name]
            source, summary = f"package {weights.file.requirement}", f"{weights.label} ({weights.license})"
            root = sources.find(weights.file)
            present = root is not None and (root / weights.file.path).is_file()
        rows.append({"name": name, "source": source, "summary": summary, "present": present})
    any_model = "any causal language model that transformers reads"
    rows.append({"name": "PATH", "source": "local folder", "summary": any_model, "present": True})
    rows.append(
        {"name": "OWNER/NAME", "source": "hub", "summary": f"{any_model}, from the hub", "present": True}
    )
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
    """Rows as text: the name and its description; for a family such as ``gym:NAME`` only the names."""
    theirs = [row for row in rows if row.get("provenance", BUILT_IN) != BUILT_IN]
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
        text = f"{row['summary']} [{row['provenance']}]".strip()
        lines.append(f"{row['name']:<{width}}  {text}")
    return lines
