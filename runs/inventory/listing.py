"""What the suite knows, as rows: for `grpobench list` and `grpobench show`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from grpobench.runs.measure import catalogue
from grpobench.runs.settings import config, recipe, registries
from grpobench.runs.settings.registries import miss
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.algorithms.algorithm import Algorithm
    from grpobench.algorithms.dialects import Dialect

Row = dict[str, Any]
ABSENT = "–"
"""In the place of a value: our algorithm of the name has no such setting."""


def algorithm_rows() -> list[Row]:
    return [
        {"name": name, "paper": cls.paper, "summary": cls.summary}
        for name, cls in registries.algorithms().items()
    ]


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


def described(rows: list[Row]) -> str:
    """Differences as one line."""
    return ", ".join(f"{row['setting']} = {plainly(row['theirs'])}" for row in rows) or "our defaults"


def plainly(value: Any) -> str:
    """A value as a reader of settings wants it."""
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if value == "" else str(value)


def task_rows() -> list[Row]:
    return [
        {"name": name, "source": cls.source, "summary": cls.summary}
        for name, cls in registries.tasks().items()
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
    return [dataclasses.asdict(metric) for metric in catalogue.catalogue().values()]


def model_rows() -> list[Row]:
    """Models by name (built in, in the user's model folder, in packages), then the two open kinds."""
    from grpobench.runs.models import loading
    from grpobench.tasks.data import sources

    rows: list[Row] = []
    mine = loading.in_model_folder()
    for name in loading.names():
        source, summary, present = "built in", "small policy made by this project", True
        if name in mine:
            source, summary = "model folder", str(loading.model_folder())
        elif name in loading.PACKAGED:
            weights = loading.PACKAGED[name]
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
    """Everything about one algorithm, dialect, task, recipe or metric. Raises `ConfigError` for an unknown
    name."""
    if kind == "dialect":
        return show_dialect(chosen(registries.dialects(), name, kind))
    if kind == "algorithm":
        return show_algorithm(chosen(registries.algorithms(), name, kind))
    if kind == "task":
        return show_task(chosen(registries.tasks(), name, kind))
    if kind == "recipe":
        return show_recipe(name)
    metric = catalogue.find(name)
    if metric is None:
        raise ConfigError([miss(kind, name, catalogue.catalogue())])
    return dataclasses.asdict(metric)


def show_as(name: str, library: str) -> Row:
    """How a library's algorithm of that name differs from ours. Raises `ConfigError` for what is unknown."""
    cls = chosen(registries.algorithms(), name, "algorithm")
    known = {dialect.library: dialect for dialect in dialects_of(cls.name)}
    if library not in known:
        guess = strict.nearest(library, known)
        did = f"did you mean {guess}?" if guess else f"known for {name}: {', '.join(known) or 'none'}"
        raise ConfigError([f"--as {library}: no dialect {name}@{library}; {did}"])
    return show_dialect(known[library])


def dialects_of(algorithm: str) -> list[Dialect]:
    return [dialect for dialect in registries.dialects().values() if dialect.algorithm == algorithm]


def show_dialects() -> list[Row]:
    """Every dialect with every fact."""
    return [show_dialect(dialect) for dialect in registries.dialects().values()]


def show_dialect(dialect: Dialect) -> Row:
    rows = facts(dialect)
    return {
        "name": dialect.name,
        "algorithm": dialect.algorithm,
        "base": dialect.base,
        "library": dialect.library,
        "version": dialect.version,
        "ask": dialect.ask,
        "remark": dialect.remark,
        "differences": [row for row in rows if row["ours"] != row["theirs"]],
        "equal": [row for row in rows if row["ours"] == row["theirs"]],
        "not_expressed": [dataclasses.asdict(gap) for gap in dialect.gaps],
    }


def differences(dialect: Dialect) -> list[Row]:
    return [row for row in facts(dialect) if row["ours"] != row["theirs"]]


def facts(dialect: Dialect) -> list[Row]:
    """Each value that a dialect sets beside the default of our algorithm of the name, where it has one."""
    cls = registries.algorithms()[dialect.algorithm]
    rows = []
    for fact in dialect.facts:
        section, name = fact.place
        ours = {row["name"]: row["default"] for row in settings(config.SECTIONS.get(section, cls))}
        if section == "modify":
            ours |= cls.modifiers
        row = {"setting": fact.setting, "ours": ours.get(name, ABSENT), "theirs": fact.value}
        rows.append({**row, "source": fact.source, "note": fact.note})
    return rows


def dialect_lines(row: Row) -> list[str]:
    """A dialect as text: a table of what differs, what is the same, what cannot be said."""
    lines = [f"{row['name']}: {row['library']} {row['version']}, {row['ask']}", ""]
    if row["remark"]:
        base = "" if row["base"] == row["algorithm"] else f"; the settings are those of our {row['base']}"
        lines.insert(1, f"{row['remark']}{base}")
    head = {"setting": "setting", "ours": "ours", "theirs": "theirs", "source": "read in", "note": ""}
    table = [head, *row["differences"]] if row["differences"] else []
    width = {key: max((len(plainly(entry[key])) for entry in table), default=0) for key in head}
    for entry in table:
        cells = (f"{plainly(entry[key]):<{width[key]}}" for key in ("setting", "ours", "theirs"))
        lines.append(f"{'  '.join(cells)}  {entry['source']}")
        if entry["note"]:
            lines += indented(entry["note"])
    if not table:
        lines.append("no setting differs")
    if row["equal"]:
        same = ", ".join(f"{entry['setting']} = {plainly(entry['theirs'])}" for entry in row["equal"])
        lines += ["", "the same:", *indented(same)]
    if row["not_expressed"]:
        lines += ["", "not expressed:"]
        for gap in row["not_expressed"]:
            lines += indented(f"{gap['what']} ({gap['source']})")
    return lines


def indented(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)


def chosen(registry: Mapping[str, Any], name: str, kind: str) -> Any:
    if name not in registry:
        raise ConfigError([miss(kind, name, registry)])
    return registry[name]


def show_algorithm(cls: Any) -> Row:
    return {
        "name": cls.name,
        "summary": cls.summary,
        "paper": cls.paper,
        "formula": cls.formula,
        "departures": cls.departures,
        "evidence": cls.evidence,
        "degenerate": degenerate(cls),
        "cost": cls.cost,
        "needs": needs(cls),
        "settings": settings(cls),
        "modify": dict(cls.modifiers),
        "dialects": [dialect.name for dialect in dialects_of(cls.name)],
        "metrics": [dataclasses.asdict(metric) for metric in cls.metrics],
        "off_policy": cls.off_policy,
        "minimum_group": cls().minimum_group,
    }


DEGENERATE = "Degenerate cases:"


def paragraphs(cls: type) -> tuple[str, str]:
    """(what a docstring says about degenerate cases, the rest of it)."""
    text = inspect.cleandoc(cls.__doc__ or "")
    before, _, after = text.partition(DEGENERATE)
    cases, _, rest = after.partition("\n\n")
    return " ".join(cases.split()), f"{before.rstrip()}\n\n{rest}".strip()


def degenerate(cls: type) -> str:
    return paragraphs(cls)[0]


def needs(cls: Any) -> list[str]:
    """What an algorithm asks of models, sampler, task and recipe with its defaults, then what a setting
    adds to that."""
    plain = demands(cls())
    lines = list(plain.values())
    for change, other in alternatives(cls):
        more = [text for key, text in demands(other).items() if plain.get(key) != text]
        lines += [f"with {change}: {text}" for text in more if f"with {change}: {text}" not in lines]
    return lines


def demands(algorithm: Algorithm[Any]) -> dict[str, str]:
    """What an algorithm with its settings asks for, by kind."""
    roles = ", ".join(role.replace("_", " ") for role in algorithm.trains)
    found = {"trains": f"trains {roles}"}
    if algorithm.reads:
        found["reads"] = f"one more forward pass per step of: {', '.join(algorithm.reads)}"
    sampler = "may use recorded rollouts or preferences" if algorithm.off_policy else "the policy's own only"
    found["sampler"] = f"rollouts: {sampler}"
    if algorithm.minimum_group > 1:
        found["group"] = f"at least {algorithm.minimum_group} completions per problem"
    if algorithm.scores:
        found["scores"] = f"task scores: {', '.join(sorted(algorithm.scores))}"
    asked = {
        "a greedy answer to every problem, decoded beside the group": algorithm.greedy_baseline,
        "a task of one turn with an answer marker": algorithm.locates_answers,
        'embeddings mixed while decoding: a task of one turn, sampler.kind = "hf"': algorithm.mixer()
        is not None,
        "a study of the training problems with the initial policy, once": algorithm.studies,
        "the gradient of the entropy": algorithm.differentiates_entropy,
    }
    return found | {text: text for text, holds in asked.items() if holds}


def alternatives(cls: Any) -> list[tuple[str, Any]]:
    """The algorithm with one setting changed: each other choice, and a number that is 0 made 1."""
    found = []
    for field, hint in strict.hints(cls).items():
        default = getattr(cls(), field)
        others: tuple[Any, ...] = ()
        if get_origin(hint) is Literal:
            others = tuple(choice for choice in get_args(hint) if choice != default)
        elif isinstance(default, bool):
            others = (not default,)
        elif default == 0:
            others = (1,)
        for other in others:
            text = f"{field} = {plainly(other)}"
            if default == 0 and not isinstance(default, bool):
                text = f"{field} above 0"
            try:
                found.append((text, cls(**{field: other})))
            except ValueError:  # Not on its own.
                continue
    return found


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
        elif key == "needs":
            body = "\n".join(value)
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
