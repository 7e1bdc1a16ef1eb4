"""Translate a log to our metric names: choose the table for its names, and rename its rows."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from grpobench.runs.handover.importing.log import Log
from grpobench.runs.handover.importing.names.table import SOURCE, Derived, Name, Settled, Vocabulary
from grpobench.runs.handover.importing.names.vocabularies import VOCABULARIES
from grpobench.runs.metrics import catalog
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError

OTHER = "other/"
"""Prefix of metrics that have no name of ours."""
STEP = "step"
DIVIDED = re.compile(r"(.+)/(\d+(?:\.\d+)?)")
ACCURACY = re.compile(r"score/correct|eval/[^/]+/[^/]+/(correct|accuracy\w*|(pass|maj)@\d+)(/.+)?")
ABOVE = 1 + 1e-6
"""Upper bound of a share; the mean of ones in single precision may exceed 1."""
EVALUATION = re.compile(
    f"eval/({'|'.join(catalog.PLACEHOLDER_VALUES['split'])})/({'|'.join(catalog.PLACEHOLDER_VALUES['mode'])})/"
)
VITAL = ("grad_norm/policy", "policy/entropy", "reward/mean", "loss", "actor/pg_loss", "policy_loss")
"""Metrics, ours and theirs. If one is NaN or infinite to the end of the log, the run diverged."""


@cache
def ours(name: str) -> bool:
    """Whether a name is in the catalog."""
    return catalog.find(name) is not None


@cache
def already(name: str) -> bool:
    """Whether a name in a log counts as ours. Below ``eval/`` the catalog's pattern accepts any words, also
    ``eval/rewards/exact/std`` of TRL's trackers, but we have only few splits and modes."""
    return ours(name) and (not name.startswith("eval/") or EVALUATION.match(name) is not None)


def mapping(texts: Iterable[str]) -> dict[str, str]:
    """``THEIRS=OURS`` texts as a table. Raises ConfigError for a name that the catalog lacks."""
    our_names: dict[str, str] = {}
    faults = []
    for text in texts:
        theirs, equals, name = text.rpartition("=")
        if not equals or not theirs or not name:
            faults.append(f"--map {text}: write --map THEIRS=OURS")
        elif name != STEP and (not ours(name) or catalog.misspelled(name)):
            guess = catalog.misspelled(name) or strict.nearest(name, catalog.catalog())
            did = f"did you mean {guess}?" if guess else "`grpobench list metrics` shows them"
            faults.append(f"--map {text}: no metric {name!r}; {did}")
        elif name != STEP and name in our_names.values():
            faults.append(f"--map {text}: {name} is given twice; give each metric once")
        else:
            our_names[theirs] = name
    if faults:
        raise ConfigError(faults)
    return our_names


def divided(theirs: str) -> tuple[str, float]:
    """The original name and its divisor in ``THEIRS/NUMBER``; the divisor is 1 for a plain name."""
    match = DIVIDED.fullmatch(theirs)
    return (match[1], float(match[2])) if match and float(match[2]) else (theirs, 1.0)


def mapped_name(name: str, mapped: Mapping[str, str]) -> str:
    """Our name for theirs by --map; empty if --map does not have it."""
    if name in mapped:
        return mapped[name]
    return next((our_name for theirs, our_name in mapped.items() if divided(theirs)[0] == name), "")


def requested_names(mapped: Mapping[str, str], names: Collection[str]) -> dict[str, tuple[str, float]]:
    """For the names in a log: our name by --map, and the divisor. A name that itself ends in a number counts
    as it is if the log has it. Raises ConfigError for a name that is given twice."""
    requested = {theirs: (our_name, 1.0) for theirs, our_name in mapped.items() if theirs in names}
    for theirs, our_name in mapped.items():
        name, by = divided(theirs)
        if theirs in requested or name not in names:
            continue
        if name in requested:
            raise ConfigError([f"--map {theirs}={our_name}: {name} is given twice; give each name once"])
        requested[name] = our_name, by
    return requested


def language(log: Log) -> Vocabulary | None:
    """The table for a log's names: its library's, else the one that knows most names; None if no table knows
    any, or two know equally many."""
    if log.library:
        return VOCABULARIES.get(log.library)
    names = {name for row in log.rows.values() for name in row}
    known_counts = {
        vocabulary.library: sum(vocabulary.find(name) is not None for name in names)
        for vocabulary in VOCABULARIES.values()
    }
    best = max(known_counts.values())
    leading = {library for library, count in known_counts.items() if count == best}
    leading -= {library for library in leading if VOCABULARIES[library].like in leading}
    return VOCABULARIES[leading.pop()] if best and len(leading) == 1 else None


@dataclass
class Translated:
    """A log under our names."""

    rows: dict[int, dict[str, float]]
    names: dict[str, str]
    """Our name -> theirs."""
    unmapped: dict[str, str] = field(default_factory=dict)
    """``other/…`` -> theirs, for metrics without a name of ours."""
    notes: list[str] = field(default_factory=list)
    task: str = ""
    """The evaluated data set, if there is exactly one."""


def translate(log: Log, vocabulary: Vocabulary | None, mapped: Mapping[str, str]) -> Translated:
    """Every number of a log under our name or below `OTHER`. `mapped` (--map) takes precedence over the
    table, and names that are ours already stay. Raises DataError for a share above 1."""
    placed = vocabulary.steps(log.rows) if vocabulary and vocabulary.steps else log.rows
    theirs = list(dict.fromkeys(name for row in log.rows.values() for name in row))
    requested = requested_names(mapped, theirs)
    by = {name: number for name, (_, number) in requested.items() if number != 1}
    chosen, sources = choose(
        theirs, vocabulary, {name: our_name for name, (our_name, _) in requested.items()}
    )
    demand_shares(log, chosen, by)
    translated = Translated(
        rows={
            step: {chosen[name]: value / by.get(name, 1.0) for name, value in row.items()}
            for step, row in sorted(placed.items())
        },
        names={
            name: spelled(original, by) for original, name in chosen.items() if not name.startswith(OTHER)
        },
        unmapped={name: spelled(original, by) for original, name in chosen.items() if name.startswith(OTHER)},
        task=next(iter(sources)) if len(sources) == 1 else "",
    )
    if len(sources) > 1:
        translated.notes.append(
            f"evaluated on {', '.join(sorted(sources))}: none of them is the report's accuracy unless "
            "--map says which, such as THEIRS=eval/validation/greedy/correct"
        )
    if vocabulary and vocabulary.derived:
        plain = {name: bare(name, vocabulary, theirs) for name in theirs}
        rows = {
            step: {plain[name]: value for name, value in row.items()} for step, row in sorted(placed.items())
        }
        for rule in vocabulary.derived:
            derive(rule, rows, translated)
    return translated


def spelled(theirs: str, by: Mapping[str, float]) -> str:
    """An original name with its divisor."""
    return f"{theirs} ÷ {by[theirs]:g}" if theirs in by else theirs


@cache
def share(name: str) -> bool:
    """Whether a metric is a share from 0 to 1: an accuracy, or one that the catalog declares as such."""
    metric = catalog.find(name)
    declared = metric is not None and metric.unit.partition(" ")[0] == "share"
    return declared or ACCURACY.fullmatch(name) is not None


def demand_shares(log: Log, chosen: Mapping[str, str], by: Mapping[str, float]) -> None:
    """Raise DataError if a share has a number above 1: it is in percent, or not a share."""
    for theirs, our_name in chosen.items():
        if not share(our_name):
            continue
        above = ABOVE * by.get(theirs, 1.0)
        value_by_step = {step: row[theirs] for step, row in sorted(log.rows.items()) if theirs in row}
        first = next((step for step, value in value_by_step.items() if above < value < math.inf), None)
        if first is not None:
            after = f" (to be divided by {by[theirs]:g})" if theirs in by else ""
            percent = "" if after else f'divide percent with --map "{theirs}/100={our_name}", and '
            raise DataError(
                f"{log.path}: `{theirs}` is {value_by_step[first]:g}{after} at step {first}, and {our_name} "
                f'is a share, from 0 to 1; {percent}keep anything else with --map "{theirs}={OTHER}{theirs}"'
            )


def choose(
    theirs: Sequence[str], vocabulary: Vocabulary | None, mapped: Mapping[str, str]
) -> tuple[dict[str, str], set[str]]:
    """Our unique name for each of theirs, and the evaluated data sets. If several have the same name of ours,
    the first in the table gets it and the others keep their own."""
    matches: dict[str, tuple[int, Name, dict[str, str]]] = {}
    for name in theirs:
        if name not in mapped and vocabulary and (match := vocabulary.find(name)):
            matches[name] = (match[0], vocabulary.names[match[0]], match[1])
    sources = {parts["source"] for _, _, parts in matches.values() if "source" in parts}
    chosen = {name: mapped[name] for name in theirs if name in mapped}
    taken = set(chosen.values())
    for name, (_, row, parts) in sorted(matches.items(), key=lambda entry: entry[1][0]):
        our_name = row.our_name(parts)
        if SOURCE in row.theirs and len(sources) > 1:
            our_name = f"{our_name}/{parts['source']}"
        if our_name not in taken:
            chosen[name] = our_name
            taken.add(our_name)
    for name in theirs:
        if name not in chosen:
            plain = name if already(name) else bare(name, vocabulary, theirs)
            is_ours = name not in matches and already(plain) and plain not in taken
            if not is_ours and (plain := f"{OTHER}{plain.removeprefix(OTHER)}") in taken:
                plain = f"{OTHER}{name.removeprefix(OTHER)}"
            chosen[name] = plain
            taken.add(chosen[name])
    return chosen, sources


def bare(name: str, vocabulary: Vocabulary | None, theirs: Collection[str]) -> str:
    """An original name without a tracker's prefix, so that a run is the same whatever logged it. Unchanged if
    the log has the short name too."""
    plain = vocabulary.bare(name) if vocabulary else name
    return name if plain in theirs else plain


def derive(rule: Derived, rows: Mapping[int, Mapping[str, float]], translated: Translated) -> None:
    """Add a metric that is computed from several of theirs, unless the log has it. `rows` are in the order of
    their steps, under the library's own names."""
    if rule.ours in translated.names:
        return
    complete_rows = {
        step: row
        for step, row in rows.items()
        if step and all(math.isfinite(row.get(name, math.nan)) for name in rule.of)
    }
    if not complete_rows:
        return
    settled = (
        rule.settle(list(complete_rows.values())) if rule.settle else Settled(rule.formula, rule.compute)
    )
    if settled.note:
        translated.notes.append(f"{rule.ours}: {settled.note}")
    values = {step: settled.compute(row) for step, row in complete_rows.items()}
    if rule.running:
        last = max(values)
        if len(values) != last:
            translated.notes.append(
                f"{rule.ours} is left out: {last - len(values)} of {last} steps lack {rule.of[0]}"
            )
            return
        total = 0.0
        for step, value in values.items():
            total += value
            values[step] = total
    for step, value in values.items():
        translated.rows[step][rule.ours] = value
    translated.names[rule.ours] = settled.formula


def diverged(translated: Translated) -> str:
    """Why the log says that its run diverged: a vital metric is NaN or infinite from a step to the end. Empty
    if none is."""
    vital = (name for name in (*VITAL, *(f"{OTHER}{name}" for name in VITAL)))
    for name in vital:
        steps = [(step, row[name]) for step, row in translated.rows.items() if name in row]
        bad = 0
        while bad < len(steps) and not math.isfinite(steps[-1 - bad][1]):
            bad += 1
        if bad:
            theirs = translated.names.get(name) or translated.unmapped.get(name, name)
            return f"{theirs} is {steps[-1][1]:g} from step {steps[-bad][0]} to the end"
    return ""


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys, limited to what TOML can hold; None and empty tables are left out."""
    dotted: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            dotted |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            dotted[f"{prefix}{name}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return dotted
