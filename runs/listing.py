"""What the suite knows, as rows: for `grpobench list` and `grpobench show`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

from grpobench.runs import config as runs_config
from grpobench.runs import metrics, recipe, strict
from grpobench.runs.strict import ConfigError

Row = dict[str, Any]


def algorithm_rows() -> list[Row]:
    return [
        {"name": name, "paper": cls.paper, "summary": cls.summary}
        for name, cls in runs_config.algorithms().items()
    ]


def task_rows() -> list[Row]:
    return [
        {"name": name, "source": cls.source, "summary": cls.summary}
        for name, cls in runs_config.tasks().items()
    ]


def recipe_rows() -> list[Row]:
    return [{"name": name, **recipe_summary(name)} for name in recipe.recipes()]


def recipe_summary(name: str) -> Row:
    """A recipe's one line, without resolving it (its task may be missing on this machine)."""
    import tomllib

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
    return [dataclasses.asdict(metric) for metric in metrics.catalogue().values()]


def model_rows() -> list[Row]:
    """Models by name (built in, in the user's model folder, in packages), then the two open kinds."""
    from grpobench.runs import library
    from grpobench.tasks import sources

    rows: list[Row] = []
    mine = library.in_model_folder()
    for name in library.names():
        source, summary, present = "built in", "small policy made by this project", True
        if name in mine:
            source, summary = "model folder", str(library.model_folder())
        elif name in library.PACKAGED:
            weights = library.PACKAGED[name]
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
    "tasks": task_rows,
    "recipes": recipe_rows,
    "metrics": metric_rows,
    "models": model_rows,
}


@cache
def syntax(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def field_docs(cls: type) -> dict[str, str]:
    """The strings under the fields of a dataclass and its bases, by field."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        module = inspect.getmodule(base)
        if not dataclasses.is_dataclass(base) or module is None:
            continue
        for node in syntax(module).body:
            if isinstance(node, ast.ClassDef) and node.name == base.__name__:
                found |= documented(node)
    return found


def documented(node: ast.ClassDef) -> dict[str, str]:
    """Annotated names of a class body that a string follows."""
    found = {}
    for statement, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[statement.target.id] = " ".join(text.value.split())
    return found


def settings(cls: type) -> list[Row]:
    """The fields of a dataclass: name, type, default, docstring."""
    docs, hints = field_docs(cls), strict.hints(cls)
    rows = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        default: Any = "(required)"
        if field.default is not dataclasses.MISSING:
            default = strict.plain(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            default = strict.plain(field.default_factory())
        rows.append(
            {
                "name": field.name,
                "type": readable(hints[field.name]),
                "default": default,
                "summary": docs.get(field.name, ""),
            }
        )
    return rows


def readable(hint: Any) -> str:
    """A type as a reader of settings wants it: the choices, or the type's name."""
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    return (
        hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")
    )


def show(kind: str, name: str) -> Row:
    """Everything about one algorithm, task, recipe or metric. Raises `ConfigError` for an unknown name."""
    if kind == "algorithm":
        return show_algorithm(chosen(runs_config.algorithms(), name, kind))
    if kind == "task":
        return show_task(chosen(runs_config.tasks(), name, kind))
    if kind == "recipe":
        return show_recipe(name)
    metric = metrics.find(name)
    if metric is None:
        raise ConfigError([miss(kind, name, metrics.catalogue())])
    return dataclasses.asdict(metric)


def chosen(registry: Mapping[str, type], name: str, kind: str) -> Any:
    if name not in registry:
        raise ConfigError([miss(kind, name, registry)])
    return registry[name]


def miss(kind: str, name: str, valid: Mapping[str, Any]) -> str:
    guess = strict.nearest(name, valid)
    did = f"did you mean {guess}?" if guess else f"`grpobench list {kind}s` shows the known ones"
    return f"unknown {kind} {name!r}; {did}"


def show_algorithm(cls: Any) -> Row:
    return {
        "name": cls.name,
        "summary": cls.summary,
        "paper": cls.paper,
        "formula": cls.formula,
        "departures": cls.departures,
        "settings": settings(cls),
        "metrics": [dataclasses.asdict(metric) for metric in cls.metrics],
        "off_policy": cls.off_policy,
        "minimum_group": cls().minimum_group,
    }


def show_task(cls: Any) -> Row:
    return {
        "name": cls.name,
        "summary": cls.summary,
        "source": cls.source,
        "scores": list(cls.scores),
        "reward": dict(cls.reward),
        "max_new_tokens": cls().max_new_tokens,
        "turns": cls().turns,
        "splits": list(cls.splits),
        "modes": list(cls.modes),
        **({"caveat": cls.caveat} if cls.caveat else {}),
        "settings": settings(cls),
        "missing": cls().missing(),
    }


def show_recipe(name: str) -> Row:
    path = recipe.locate(name)
    found = recipe.read_recipe(name)
    runs = found.runs()
    return {
        "name": found.name,
        "summary": found.summary,
        "path": str(path),
        "runs": [run.folder for run in runs],
        "arms": {run.arm: run.algorithm.name for run in runs},
        "tasks": list(dict.fromkeys(run.task.name for run in runs)),
        "seeds": list(found.head.seeds),
        "text": found.text,
    }


def as_lines(rows: list[Row]) -> list[str]:
    """Rows as text: the name, then what is said about it; of a family such as ``gym:NAME`` only the names."""
    kin: dict[str, list[str]] = {}
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
    return lines


def as_text(row: Row) -> str:
    """One thing as text: a heading per part, lists as items."""
    blocks = []
    for key, value in row.items():
        if value in ("", [], {}, None):
            continue
        if isinstance(value, list) and value and isinstance(value[0], dict):
            body = "\n".join(setting_line(entry) for entry in value)
        elif isinstance(value, list):
            body = textwrap.fill(", ".join(map(str, value)), 100)
        elif isinstance(value, dict):
            body = "\n".join(f"{name} = {entry}" for name, entry in value.items())
        else:
            body = str(value) if key == "text" else textwrap.fill(str(value), 100)
        blocks.append(f"{key}\n{textwrap.indent(body, '  ')}")
    return "\n".join(blocks)


def setting_line(entry: Row) -> str:
    """A setting or a metric of a list."""
    if "default" in entry:
        head = f"{entry['name']} = {entry['default']!r}  ({entry['type']})"
    else:
        head = f"{entry['name']} [{entry['unit']}]"
    text = entry.get("summary") or entry.get("definition", "")
    return (
        f"{head}\n{textwrap.fill(text, 96, initial_indent='    ', subsequent_indent='    ')}"
        if text
        else head
    )
