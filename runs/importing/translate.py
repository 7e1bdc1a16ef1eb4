"""From the names of a log to ours: which table its names are of, and its rows under our names."""

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
"""Before the name of a metric that has no name of ours."""
STEP = "step"
DIVIDED = re.compile(r"(.+)/(\d+(?:\.\d+)?)")
ACCURACY = re.compile(r"score/correct|eval/[^/]+/[^/]+/(correct|accuracy\w*|(pass|maj)@\d+)(/.+)?")
ABOVE = 1 + 1e-6
"""What no share exceeds; the mean of ones in single precision may exceed 1."""
EVALUATION = re.compile(
    f"eval/({'|'.join(catalog.PLACEHOLDER_VALUES['split'])})/({'|'.join(catalog.PLACEHOLDER_VALUES['mode'])})/"
)
VITAL = ("grad_norm/policy", "policy/entropy", "reward/mean", "loss", "actor/pg_loss", "policy_loss")
"""Of ours and of theirs. One that is NaN or infinite to the end of the log says that the run diverged."""


@cache
def ours(name: str) -> bool:
    """Whether a name is one of the catalog's."""
    return catalog.find(name) is not None


@cache
def already(name: str) -> bool:
    """Whether a name in a log is taken for ours. Below ``eval/`` the catalog's pattern takes any words, as
    of ``eval/rewards/exact/std`` of TRL's trackers; our splits and modes are few."""
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
    """What --map may say instead of a name of theirs, ``THEIRS/NUMBER``: the name, and what its numbers are
    divided by; 1 for a mere name."""
    found = DIVIDED.fullmatch(theirs)
    return (found[1], float(found[2])) if found and float(found[2]) else (theirs, 1.0)


def mapped_name(name: str, mapped: Mapping[str, str]) -> str:
    """What --map says that a name of theirs is; empty where it does not say."""
    if name in mapped:
        return mapped[name]
    return next((own for theirs, own in mapped.items() if divided(theirs)[0] == name), "")


def requested_names(mapped: Mapping[str, str], names: Collection[str]) -> dict[str, tuple[str, float]]:
    """Of the names that a log has, what --map says that they are, and what their numbers are divided by. A
    name that itself ends in a number counts as it is where the log has it. Raises ConfigError for a name of
    theirs that is given twice."""
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
    """The table that a log's names are of: its library's, else the one that knows most of them; None where no
    table knows any, or two know as many."""
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
    """Ours -> what of theirs it is."""
    unmapped: dict[str, str] = field(default_factory=dict)
    """``other/…`` -> theirs, for what has no name of ours."""
    notes: list[str] = field(default_factory=list)
    task: str = ""
    """The data set that was evaluated, where there is one only."""


def translate(log: Log, vocabulary: Vocabulary | None, mapped: Mapping[str, str]) -> Translated:
    """Every number of a log under a name of ours or below `OTHER`. What `mapped` says counts before the
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
            f"evaluated on {', '.join(sorted(sources))}: no one of them is the accuracy of the report unless "
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
    """A name of theirs with what its numbers were divided by."""
    return f"{theirs} ÷ {by[theirs]:g}" if theirs in by else theirs


@cache
def share(name: str) -> bool:
    """Whether a metric of ours is a share, which is from 0 to 1: an accuracy, or what the catalog says."""
    metric = catalog.find(name)
    declared = metric is not None and metric.unit.partition(" ")[0] == "share"
    return declared or ACCURACY.fullmatch(name) is not None


def demand_shares(log: Log, chosen: Mapping[str, str], by: Mapping[str, float]) -> None:
    """Raise DataError where what is a share here has a number above 1: percent, or no share at all."""
    for theirs, own in chosen.items():
        if not share(own):
            continue
        above = ABOVE * by.get(theirs, 1.0)
        told = {step: row[theirs] for step, row in sorted(log.rows.items()) if theirs in row}
        first = next((step for step, value in told.items() if above < value < math.inf), None)
        if first is not None:
            after = f" (to be divided by {by[theirs]:g})" if theirs in by else ""
            percent = "" if after else f'percent are divided with --map "{theirs}/100={own}", and '
            raise DataError(
                f"{log.path}: `{theirs}` is {told[first]:g}{after} at step {first}, and {own} is a share, "
                f'from 0 to 1; {percent}what is no share is kept with --map "{theirs}={OTHER}{theirs}"'
            )


def choose(
    theirs: Sequence[str], vocabulary: Vocabulary | None, mapped: Mapping[str, str]
) -> tuple[dict[str, str], set[str]]:
    """Our name for each of theirs, no two the same, and the data sets that were evaluated. Where several have
    the same name of ours, the first of the table counts and the others are kept as they are."""
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
    """A name of theirs without what trackers put before it, so that a run is the same whatever logged it; as
    it is where the log has the shorter name too."""
    plain = vocabulary.bare(name) if vocabulary else name
    return name if plain in theirs else plain


def derive(rule: Derived, rows: Mapping[int, Mapping[str, float]], found: Translated) -> None:
    """Add a metric that follows from several of theirs, unless the log has it. `rows` are in the order of
    their steps, under the names that the library itself has."""
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
    """Why the log says that its run diverged: something vital is NaN or infinite from a step to its end.
    Empty where none is."""
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
    """Nested settings as dotted keys, with what TOML can hold; None and empty tables are left out."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value is not None:
            found[f"{prefix}{name}"] = value if isinstance(value, bool | int | float | str) else str(value)
    return found
