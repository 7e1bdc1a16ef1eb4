"""A run's configuration as TOML: written, read back equal, and compared."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from grpobench.runs.settings import observe, plugins, registries
from grpobench.runs.settings.config import AUTO, CHOSEN, SECTIONS, RunConfig
from grpobench.runs.settings.judge import WITHOUT_EFFECT
from grpobench.runs.settings.registries import Kind
from grpobench.runs.tools import strict, toml
from grpobench.runs.tools.strict import ConfigError


def dump(config: RunConfig) -> str:
    """Every resolved value as TOML; `load` reads it back equal."""
    table: dict[str, Any] = {"experiment": config.experiment, "arm": config.arm, "seed": config.seed}
    table |= {"observe": [callback.plain() for callback in config.observe], "beside": config.beside}
    table["stop_on"] = list(config.stop_on)
    parts: tuple[Kind, ...] = ("algorithm", "task")
    for part in parts:
        chosen = getattr(config, part)
        table[part] = entry_of(part, chosen.name, type(chosen), portable(chosen, config.beside))
    if config.dialect:
        table["algorithm"]["dialect"] = config.dialect
    table |= {name: strict.plain(getattr(config, name)) for name in SECTIONS}
    return toml.write(table)


def entry_of(part: Kind, name: str, cls: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """An algorithm or task as run.toml has it, which `built` reads."""
    # Data of a recipe are a task of the suite's that no registry has; others' code has its reference even
    # where this process knows it by name, since another may not.
    in_registry = registries.built_in(part).get(name) is cls and not strict.foreign(cls)
    reference = {} if in_registry else {"class": plugins.reference(cls)}
    return {"name": name, "settings": dict(settings), **reference}


def load(text: str) -> RunConfig:
    """The configuration that `dump` wrote. Raises `ConfigError` where the text no longer fits the code."""
    table = strict.read_toml(text, "run.toml")
    faults: list[str] = []
    config_fields: dict[str, Any] = {}
    plain: Mapping[str, Any] = {"experiment": str, "arm": str, "seed": int, "beside": str}
    for key, hint in {**plain, "stop_on": tuple[str, ...]}.items():
        default = {"beside": "", "stop_on": []}.get(key)
        config_fields[key] = strict.convert(table.get(key, default), hint, key, faults)
    parts: tuple[Kind, ...] = ("algorithm", "task")
    for part in parts:
        config_fields[part] = built(part, table.get(part, {}), table.get("beside", ""), faults)
    dialect = table.get("algorithm", {}).get("dialect", "")
    config_fields["dialect"] = strict.convert(dialect, str, "algorithm.dialect", faults)
    entries = strict.convert(table.get("observe", []), list[observe.Entry], "observe", faults)
    config_fields["observe"] = () if entries is strict.BAD else observe.read(entries, faults)
    for section, cls in SECTIONS.items():
        config_fields[section] = strict.build(cls, table.get(section, {}), section, faults)
    field_names = {f.name for f in fields(RunConfig)} - {"dialect"}  # which stands with the algorithm
    faults += [strict.unknown("", key, field_names) for key in table if key not in field_names]
    if faults:
        raise ConfigError(faults, "run.toml")
    return RunConfig(**config_fields)


def portable(chosen: Any, beside: str) -> dict[str, Any]:
    """The settings of an algorithm or task, paths in the recipe's folder relative to it."""
    plain: dict[str, Any] = strict.plain(chosen)
    for name, path in vars(chosen).items():
        if beside and isinstance(path, Path) and path.is_relative_to(beside):
            plain[name] = str(path.relative_to(beside))
    return plain


def built(part: Kind, entry: Mapping[str, Any], beside: str, faults: list[str]) -> Any:
    """The algorithm or task of a run.toml's section, or `BAD`; `beside` is the recipe's folder."""
    folder = Path(beside) if beside else None
    try:
        if reference := entry.get("class", ""):
            cls: Any = plugins.load(reference, folder, f"{part}.class")
        else:
            cls = registries.find(part, str(entry.get("name")), folder, part).cls
    except ConfigError as error:
        faults += error.faults
        return strict.BAD
    return strict.build(cls, entry.get("settings", {}), f"{part}.settings", faults, Path(beside))


def differences(old: str, new: str, defaults: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """What changed between two TOML texts that can change a run's numbers, one line per value. What the old
    one lacks, because a newer version added it, is no change where it has its default; nor is the sampler
    that was chosen for `auto`."""
    before, after = (flatten(unobserved(toml.read(text))) for text in (old, new))
    kind = "sampler.kind"
    if after.get(kind) == toml.value(AUTO) and before.get(kind) in [*map(toml.value, CHOSEN)]:
        after[kind] = before[kind]
    absent = "(absent)"
    return [
        f"{key}: {before.get(key, absent)} -> {after.get(key, absent)}"
        for key in dict.fromkeys([*before, *after])
        if before.get(key, defaults.get(key, absent)) != after.get(key, absent)
    ]


def defaults(config: RunConfig) -> dict[str, str]:
    """What the settings of a run would be if nothing was said of them, as `flatten` has them."""
    settings = flatten({name: strict.plain(cls()) for name, cls in SECTIONS.items()})
    for part in ("algorithm", "task"):
        chosen = getattr(config, part)
        values = {f.name: default_of(f) for f in fields(chosen) if f.init and default_of(f) is not MISSING}
        with contextlib.suppress(TypeError, ValueError):  # others' code may refuse its own defaults
            plain = strict.plain(replace(chosen, **values))
            settings |= flatten({part: {"settings": {name: plain[name] for name in values}}})
    return settings


def default_of(setting: Field[Any]) -> Any:
    """The default of a field; `MISSING` for one that must be given."""
    return setting.default if setting.default_factory is MISSING else setting.default_factory()


def unobserved(table: Mapping[str, Any]) -> dict[str, Any]:
    """run.toml without what changes no number: who is told of the run, where its recipe stood, what is kept
    of it, what would stop it at its start, how a judge is asked, and a list of events to stop on that is
    empty, as every run's was before there were any."""
    no_part = ("observe", "beside", "checkpoint", "checks")
    effective = {key: value for key, value in table.items() if key not in no_part}
    if isinstance(evaluate := effective.get("evaluate"), Mapping):
        effective["evaluate"] = {key: value for key, value in evaluate.items() if key != "completions"}
    for section in ("reward", "evaluate"):
        judge = effective.get(section, {}).get("judge")
        if isinstance(judge, Mapping):
            judge = {key: value for key, value in judge.items() if key not in WITHOUT_EFFECT}
            effective[section] = {**effective[section], "judge": judge}
    return (
        effective
        if effective.get("stop_on")
        else {key: effective[key] for key in effective if key != "stop_on"}
    )


def flatten(table: Mapping[str, Any], key_path: str = "") -> dict[str, str]:
    """Dotted keys to values written as TOML."""
    toml_by_key: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            toml_by_key |= flatten(value, strict.join(key_path, key))
        else:
            toml_by_key[strict.join(key_path, key)] = toml.value(value)
    return toml_by_key
