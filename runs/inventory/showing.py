"""`grpobench show`: everything about one algorithm, dialect, task, recipe or metric."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from grpobench.runs.metrics import catalog
from grpobench.runs.settings import config, plugins, recipe, registries
from grpobench.runs.settings.registries import Kind, chosen, miss
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import ConfigError

if TYPE_CHECKING:
    from grpobench.algorithms.algorithm import Algorithm
    from grpobench.runs.inventory.claims import Standing

Row = dict[str, Any]
REQUIRED = "(required)"
"""Stands for the default of a setting without one."""


def plainly(value: Any) -> str:
    """A value as it appears in a list of settings, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if value == "" else str(value).replace("\n", "\\n")


@cache
def syntax(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def field_docs(cls: type) -> dict[str, str]:
    """The strings under the fields of a dataclass and its bases, by field."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        module = inspect.getmodule(base)
        if not dataclasses.is_dataclass(base) or module is None:
            continue
        for node in syntax(module).body:
            if isinstance(node, ast.ClassDef) and node.name == base.__name__:
                docs |= documented(node)
    return docs


def documented(node: ast.ClassDef) -> dict[str, str]:
    """Annotated names of a class body that a string follows."""
    docs = {}
    for statement, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                docs[statement.target.id] = " ".join(text.value.split())
    return docs


def settings(cls: type) -> list[Row]:
    """The fields of a dataclass: name, type, default, docstring."""
    docs, hints = field_docs(cls), strict.hints(cls)
    rows = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        rows.append(
            {
                "name": field.name,
                "type": readable(hints[field.name]),
                "default": default_of(field),
                "summary": docs.get(field.name, ""),
            }
        )
    return rows


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field as a plain value, or `REQUIRED`."""
    if field.default is not dataclasses.MISSING:
        return strict.plain(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return strict.plain(field.default_factory())
    return REQUIRED


@cache
def defaults(cls: Any) -> Mapping[str, Any]:
    """The fields of a dataclass with their defaults, as `settings` has them."""
    return {field.name: default_of(field) for field in dataclasses.fields(cls) if field.init}


def readable(hint: Any) -> str:
    """A type as it appears in a list of settings: the choices, or the type's name."""
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    return (
        hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")
    )


DEGENERATE = "Degenerate cases:"


def paragraphs(cls: type) -> tuple[str, str]:
    """(a docstring's sentences about degenerate cases, the rest of it)."""
    text = inspect.cleandoc(cls.__doc__ or "")
    before, _, after = text.partition(DEGENERATE)
    cases, _, after_cases = after.partition("\n\n")
    return " ".join(cases.split()), f"{before.rstrip()}\n\n{after_cases}".strip()


def degenerate(cls: type) -> str:
    return paragraphs(cls)[0]


def needs(cls: Any) -> list[str]:
    """What an algorithm requires of models, sampler, task and recipe with its defaults, then what each
    setting adds."""
    plain = demands(cls())
    lines = list(plain.values())
    for change, other in alternatives(cls):
        more = [text for key, text in demands(other).items() if plain.get(key) != text]
        lines += [f"with {change}: {text}" for text in more if f"with {change}: {text}" not in lines]
    return lines


def demands(algorithm: Algorithm[Any]) -> dict[str, str]:
    """What an algorithm with its settings requires, by kind."""
    roles = ", ".join(role.replace("_", " ") for role in algorithm.trained_roles)
    requirements = {"trains": f"trains {roles}"}
    if algorithm.reference_roles:
        requirements["reads"] = f"one more forward pass per step of: {', '.join(algorithm.reference_roles)}"
    sampler = "may use recorded rollouts or preferences" if algorithm.off_policy else "the policy's own only"
    requirements["sampler"] = f"rollouts: {sampler}"
    if algorithm.minimum_group > 1:
        requirements["group"] = f"at least {algorithm.minimum_group} completions per problem"
    if algorithm.scores:
        requirements["scores"] = f"task scores: {', '.join(sorted(algorithm.scores))}"
    shown = algorithm.teacher_prompt.shows if algorithm.teacher_prompt else ""
    conditions = {
        "a task with reference answers, which its teacher reads": shown == "reference",
        "a completion of the group with a high reward, which its teacher reads": shown == "success",
        "a greedy answer to every problem, decoded in addition to the group": algorithm.greedy_baseline,
        "a task of one turn with an answer marker": algorithm.locates_answers,
        'embeddings mixed while decoding: a task of one turn, sampler.kind = "hf"': algorithm.mixer()
        is not None,
        "noise in the weights that write rollouts, in place of backward passes": (
            algorithm.weight_noise is not None
        ),
        "a study of the training problems with the initial policy, once": algorithm.studies,
        "completions of the initial policy to all training problems, graded, once": (
            algorithm.base_rollouts > 0
        ),
        "expert completions in addition to rollouts: reference answers, or a file (train.experts)": (
            algorithm.expert_answers > 0
        ),
        "the gradient of the entropy": algorithm.differentiates_entropy,
    }
    return requirements | {text: text for text, holds in conditions.items() if holds}


def alternatives(cls: Any) -> list[tuple[str, Any]]:
    """The algorithm with one setting changed: each other choice, and a number that is 0 set to 1."""
    variants = []
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
                variants.append((text, cls(**{field: other})))
            except ValueError:  # invalid without another setting
                continue
    return variants


PAGE = "stability.md"
FAMILIES: Mapping[str, str] = {
    "collapse": "Collapse: what was learned is lost",
    "instability": "Instability: what often precedes or accompanies a collapse",
    "infrastructure": "Infrastructure: never the algorithm's",
}


def page_facts() -> Mapping[str, Any]:
    """The content of the page on detectors."""
    from grpobench.analysis.detectors.registry import DETECTORS

    return {"families": FAMILIES, "rows": [row(kind) for kind in DETECTORS]}


def row(kind: str) -> Mapping[str, Any]:
    """The page's entry for one kind of event."""
    from grpobench.analysis.detectors.registry import DETECTORS

    detector = DETECTORS[kind]
    about = field_docs(type(detector))
    return {
        "kind": kind,
        "about": " ".join(inspect.cleandoc(type(detector).__doc__ or "").split()),
        "rule": detector.rule,
        "source": detector.source,
        "needs": detector.needs,
        "family": detector.family,
        "stops": detector.stops,
        "thresholds": [
            {"name": field.name, "value": f"{getattr(detector, field.name):g}", "about": about[field.name]}
            for field in dataclasses.fields(detector)
        ],
    }


if TYPE_CHECKING:
    from grpobench.algorithms.libraries.dialect import Dialect

ABSENT = "–"
"""Stands in for a value: our algorithm of the name has no such setting."""


def described(rows: list[Row]) -> str:
    """Differences as one line."""
    return ", ".join(f"{row['setting']} = {plainly(row['theirs'])}" for row in rows) or "our defaults"


def show_as(name: str, library: str) -> Row:
    """How a library's algorithm of that name differs from ours. Raises `ConfigError` for unknown names."""
    cls = chosen(registries.algorithms(), name, "algorithm")
    dialect_by_library = {dialect.library: dialect for dialect in dialects_of(cls.name)}
    if library not in dialect_by_library:
        did = strict.did_you_mean(
            library, dialect_by_library, f"known for {name}: {', '.join(dialect_by_library) or 'none'}"
        )
        raise ConfigError([f"--as {library}: no dialect {name}@{library}; {did}"])
    return show_dialect(dialect_by_library[library])


def dialects_of(algorithm: str) -> list[Dialect]:
    return [dialect for dialect in registries.dialects().values() if dialect.algorithm == algorithm]


def show_dialects() -> list[Row]:
    """Every dialect with all its facts."""
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
    """Each value of a dialect beside the default of our algorithm of the name, if it has that setting."""
    cls = registries.algorithms()[dialect.algorithm]
    rows = []
    for fact in dialect.facts:
        section, name = fact.key_path
        ours = dict(defaults(config.SECTIONS.get(section, cls)))
        if section == "modify":
            ours |= cls.modifiers
        row = {"setting": fact.setting, "ours": ours.get(name, ABSENT), "theirs": fact.value}
        rows.append({**row, "source": fact.source, "note": fact.note})
    return rows


def dialect_lines(row: Row) -> list[str]:
    """A dialect as text: a table of what differs, then what is the same and what is unknown."""
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


def names_of(kind: str) -> Iterable[str]:
    """The names of a kind that come with the suite."""
    names_by_kind: Mapping[str, Callable[[], Iterable[str]]] = {
        "algorithm": registries.algorithms,
        "dialect": registries.dialects,
        "task": registries.tasks,
        "recipe": recipe.recipes,
        "metric": catalog.catalog,
    }
    return names_by_kind[kind]()


def show(kind: str, name: str) -> Row:
    """Everything about one algorithm, dialect, task, reward function, recipe or metric. Plugins may be named
    as `module:Name`, with the file in the current folder. Raises `ConfigError` for an unknown name."""
    if kind == "dialect":
        return show_dialect(chosen(registries.dialects(), name, kind))
    for extensible, described in EXTENSIBLE.items():
        if kind == extensible:
            registered = registries.find(extensible, name, Path.cwd())
            provenance = (
                {} if registered.provenance == registries.BUILT_IN else {"provenance": registered.provenance}
            )
            return {**provenance, **described(registered.cls)}
    if kind == "recipe":
        return show_recipe(name)
    metric = catalog.find(name)
    if metric is None:
        raise ConfigError([miss(kind, name, catalog.catalog())])
    return dataclasses.asdict(metric)


def show_algorithm(cls: Any, standing: Standing | None = None) -> Row:
    from grpobench.runs.inventory import claims

    return {
        "name": cls.name,
        "summary": cls.summary,
        "paper": cls.paper,
        "claim": cls.claim,
        **(standing or claims.standing()).of(cls),
        "formula": cls.formula,
        "departures": cls.departures,
        "evidence": cls.evidence,
        "degenerate": degenerate(cls),
        "cost": cls.cost,
        "needs": needs(cls) if not required(cls) else [],
        "settings": settings(cls),
        "modify": dict(cls.modifiers),
        "dialects": [dialect.name for dialect in dialects_of(cls.name)],
        "metrics": [dataclasses.asdict(metric) for metric in cls.metrics],
        "off_policy": cls.off_policy,
        **({} if required(cls) else {"minimum_group": cls().minimum_group}),
    }


def required(cls: type) -> list[str]:
    """The settings without a default; without values for them there is no instance to describe."""
    return [name for name, default in defaults(cls).items() if default == REQUIRED]


def show_task(cls: Any) -> Row:
    made = None if required(cls) else cls()
    return {
        "name": cls.name,
        "summary": cls.summary,
        "source": cls.source,
        "scores": list(cls.scores),
        "reward": dict(cls.reward),
        "max_completion_tokens": made.max_completion_tokens if made else cls.max_completion_tokens,
        **({"turns": made.turns} if made else {}),
        "splits": list(cls.splits),
        "modes": list(cls.modes),
        **({"caveat": cls.caveat} if cls.caveat else {}),
        "settings": settings(cls),
        **({"missing": made.missing()} if made else {}),
    }


def show_reward(function: Any) -> Row:
    return {
        "name": plugins.reference(function),
        "summary": inspect.getdoc(function) or "",
        "signature": f"{function.__name__}{inspect.signature(function)}",
    }


EXTENSIBLE: Mapping[Kind, Callable[[Any], Row]] = {
    "algorithm": show_algorithm,
    "task": show_task,
    "reward": show_reward,
}
"""Kinds that plugins may add to."""


def show_recipe(name: str) -> Row:
    path = recipe.locate(name)
    chosen_recipe = recipe.read_recipe(name)
    runs = chosen_recipe.runs()
    return {
        "name": chosen_recipe.name,
        "summary": chosen_recipe.summary,
        "path": str(path),
        "runs": [run.folder for run in runs],
        "arms": {run.arm: run.algorithm.name for run in runs},
        "tasks": list(dict.fromkeys(run.task.name for run in runs)),
        "seeds": list(chosen_recipe.head.seeds),
        "text": chosen_recipe.text,
    }


def as_text(row: Row) -> str:
    """One thing as text: a heading per part, lists as items."""
    lines_by_key: dict[str, Callable[[Any], list[str]]] = {"needs": list}
    if "here" in row:  # an algorithm; imports the rules of findings
        from grpobench.runs.inventory import claims

        lines_by_key |= {"here": claims.here_lines, "profile": claims.profile_lines}
    blocks = []
    for key, value in row.items():
        if value in ("", [], {}, None):
            continue
        if key in lines_by_key:
            body = "\n".join(lines_by_key[key](value))
        elif isinstance(value, list) and value and isinstance(value[0], dict):
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
