"""Translate a log to our metric names: choose the table for its names, and rename its rows."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from grpobench.runs.importing.log import Log
from grpobench.runs.importing.names.openrlhf import OPENRLHF
from grpobench.runs.importing.names.table import SOURCE, Derived, Name, Settled, Vocabulary
from grpobench.runs.importing.names.trl import TRL
from grpobench.runs.importing.names.verl import VERL
from grpobench.runs.metrics import catalog
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError

VOCABULARIES: Mapping[str, Vocabulary] = {one.library: one for one in (TRL, VERL, OPENRLHF)}
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
    found: dict[str, str] = {}
    faults = []
    for text in texts:
        theirs, equals, name = text.rpartition("=")
        if not equals or not theirs or not name:
            faults.append(f"--map {text}: write --map THEIRS=OURS")
        elif name != STEP and (not ours(name) or catalog.misspelled(name)):
            guess = catalog.misspelled(name) or strict.nearest(name, catalog.catalog())
            did = f"did you mean {guess}?" if guess else "`grpobench list metrics` shows them"
            faults.append(f"--map {text}: no metric {name!r}; {did}")
        elif name != STEP and name in found.values():
            faults.append(f"--map {text}: {name} is given twice; give each metric once")
        else:
            found[theirs] = name
    if faults:
        raise ConfigError(faults)
    return found


def divided(theirs: str) -> tuple[str, float]:
    """The original name and its divisor in ``THEIRS/NUMBER``; the divisor is 1 for a plain name."""
    found = DIVIDED.fullmatch(theirs)
    return (found[1], float(found[2])) if found and float(found[2]) else (theirs, 1.0)


def mapped_name(name: str, mapped: Mapping[str, str]) -> str:
    """Our name for theirs by --map; empty if --map does not have it."""
    if name in mapped:
        return mapped[name]
    return next((own for theirs, own in mapped.items() if divided(theirs)[0] == name), "")


def requested_names(mapped: Mapping[str, str], names: Collection[str]) -> dict[str, tuple[str, float]]:
    """For the names in a log: our name by --map, and the divisor. A name that itself ends in a number counts
    as it is if the log has it. Raises ConfigError for a name that is given twice."""
    found = {theirs: (own, 1.0) for theirs, own in mapped.items() if theirs in names}
    for theirs, own in mapped.items():
        name, by = divided(theirs)
        if theirs in found or name not in names:
            continue
        if name in found:
            raise ConfigError([f"--map {theirs}={own}: {name} is given twice; give each name once"])
        found[name] = own, by
    return found


def language(log: Log) -> Vocabulary | None:
    """The table for a log's names: its library's, else the one that knows most names; None if no table knows
    any, or two know equally many."""
    if log.library:
        return VOCABULARIES.get(log.library)
    names = {name for row in log.rows.values() for name in row}
    known = {one.library: sum(one.find(name) is not None for name in names) for one in VOCABULARIES.values()}
    best = max(known.values())
    leading = [library for library, count in known.items() if count == best]
    return VOCABULARIES[leading[0]] if best and len(leading) == 1 else None


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
    theirs = list(dict.fromkeys(name for row in log.rows.values() for name in row))
    told = requested_names(mapped, theirs)
    by = {name: number for name, (_, number) in told.items() if number != 1}
    chosen, sources = choose(theirs, vocabulary, {name: own for name, (own, _) in told.items()})
    demand_shares(log, chosen, by)
    found = Translated(
        rows={
            step: {chosen[name]: value / by.get(name, 1.0) for name, value in row.items()}
            for step, row in sorted(log.rows.items())
        },
        names={name: spelled(own, by) for own, name in chosen.items() if not name.startswith(OTHER)},
        unmapped={name: spelled(own, by) for own, name in chosen.items() if name.startswith(OTHER)},
        task=next(iter(sources)) if len(sources) == 1 else "",
    )
    if len(sources) > 1:
        found.notes.append(
            f"evaluated on {', '.join(sorted(sources))}: none of them is the report's accuracy unless "
            "--map says which, such as THEIRS=eval/validation/greedy/correct"
        )
    if vocabulary and vocabulary.derived:
        plain = {name: bare(name, vocabulary, theirs) for name in theirs}
        rows = {
            step: {plain[name]: value for name, value in row.items()}
            for step, row in sorted(log.rows.items())
        }
        for rule in vocabulary.derived:
            derive(rule, rows, found)
    return found


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
    for theirs, own in chosen.items():
        if not share(own):
            continue
        above = ABOVE * by.get(theirs, 1.0)
        told = {step: row[theirs] for step, row in sorted(log.rows.items()) if theirs in row}
        first = next((step for step, value in told.items() if above < value < math.inf), None)
        if first is not None:
            after = f" (to be divided by {by[theirs]:g})" if theirs in by else ""
            percent = "" if after else f'divide percent with --map "{theirs}/100={own}", and '
            raise DataError(
                f"{log.path}: `{theirs}` is {told[first]:g}{after} at step {first}, and {own} is a share, "
                f'from 0 to 1; {percent}keep anything else with --map "{theirs}={OTHER}{theirs}"'
            )


def choose(
    theirs: Sequence[str], vocabulary: Vocabulary | None, mapped: Mapping[str, str]
) -> tuple[dict[str, str], set[str]]:
    """Our unique name for each of theirs, and the evaluated data sets. If several have the same name of ours,
    the first in the table gets it and the others keep their own."""
    known: dict[str, tuple[int, Name, dict[str, str]]] = {}
    for name in theirs:
        if name not in mapped and vocabulary and (found := vocabulary.find(name)):
            known[name] = (found[0], vocabulary.names[found[0]], found[1])
    sources = {parts["source"] for _, _, parts in known.values() if "source" in parts}
    chosen = {name: mapped[name] for name in theirs if name in mapped}
    taken = set(chosen.values())
    for name, (_, row, parts) in sorted(known.items(), key=lambda entry: entry[1][0]):
        wanted = row.our_name(parts)
        if SOURCE in row.theirs and len(sources) > 1:
            wanted = f"{wanted}/{parts['source']}"
        if wanted not in taken:
            chosen[name] = wanted
            taken.add(wanted)
    for name in theirs:
        if name not in chosen:
            plain = name if already(name) else bare(name, vocabulary, theirs)
            own = name not in known and already(plain) and plain not in taken
            if not own and (plain := f"{OTHER}{plain.removeprefix(OTHER)}") in taken:
                plain = f"{OTHER}{name.removeprefix(OTHER)}"
            chosen[name] = plain
            taken.add(chosen[name])
    return chosen, sources


def bare(name: str, vocabulary: Vocabulary | None, theirs: Collection[str]) -> str:
    """An original name without a tracker's prefix, so that a run is the same whatever logged it. Unchanged if
    the log has the short name too."""
    plain = vocabulary.bare(name) if vocabulary else name
    return name if plain in theirs else plain


def derive(rule: Derived, rows: Mapping[int, Mapping[str, float]], found: Translated) -> None:
    """Add a metric that is computed from several of theirs, unless the log has it. `rows` are in the order of
    their steps, under the library's own names."""
    if rule.ours in found.names:
        return
    whole = {
        step: row
        for step, row in rows.items()
        if step and all(math.isfinite(row.get(name, math.nan)) for name in rule.of)
    }
    if not whole:
        return
    settled = rule.settle(list(whole.values())) if rule.settle else Settled(rule.formula, rule.compute)
    if settled.note:
        found.notes.append(f"{rule.ours}: {settled.note}")
    values = {step: settled.compute(row) for step, row in whole.items()}
    if rule.running:
        last = max(values)
        if len(values) != last:
            found.notes.append(
                f"{rule.ours} is left out: {last - len(values)} of {last} steps lack {rule.of[0]}"
            )
            return
        total = 0.0
        for step, value in values.items():
            total += value
            values[step] = total
    for step, value in values.items():
        found.rows[step][rule.ours] = value
    found.names[rule.ours] = settled.formula


def diverged(found: Translated) -> str:
    """Why the log says that its run diverged: a vital metric is NaN or infinite from a step to the end. Empty
    if none is."""
    vital = (name for name in (*VITAL, *(f"{OTHER}{name}" for name in VITAL)))
    for name in vital:
        steps = [(step, row[name]) for step, row in found.rows.items() if name in row]
        bad = 0
        while bad < len(steps) and not math.isfinite(steps[-1 - bad][1]):
            bad += 1
        if bad:
            theirs = found.names.get(name) or found.unmapped.get(name, name)
            return f"{theirs} is {steps[-1][1]:g} from step {steps[-bad][0]} to the end"
    return ""


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted keys, limited to what TOML can hold; None and empty tables are left out."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[f"{prefix}{name}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return found
