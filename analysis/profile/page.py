"""What an algorithm is good and bad at, in sentences that verdicts alone make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from grpobench.analysis.figures.table import plain
from grpobench.analysis.profile.kept import ProbeOutcome
from grpobench.analysis.profile.matrix import FailurePair, compare_failures
from grpobench.analysis.profile.probe import Probe
from grpobench.analysis.profile.scores import Profile
from grpobench.analysis.profile.table import (
    algorithms_with_runs,
    check_known,
    clean,
    gate_of,
    gated_text,
    loss_text,
    mean_known,
    mean_of,
    range_text,
    rate_text,
    scored_probes,
    scores_on,
    split_by_side,
)
from grpobench.analysis.statistics.moderated import FDR, RESOLUTION, AlgorithmPair, benjamini_hochberg
from grpobench.analysis.tools.text import NONE, fold, interval, listed, signed, two

MANY = 0.25
"""Share of the other algorithms from which a good or bad one is told apart."""
FEW = 0.1
"""Largest share of the others on the wrong side of it."""
Kind = Literal["good", "bad", "between", "unresolved"]
Verdict = Literal["higher", "lower", "not told apart"]


@dataclass(frozen=True)
class ProbePosition:
    """An algorithm's position on a probe: counts of others that it is told apart from."""

    probe: Probe
    others: int
    above: int
    """Others that score lower."""
    below: int
    """Others that score higher."""

    @property
    def kind(self) -> Kind:
        many, few = MANY * self.others, FEW * self.others
        if self.others and self.above >= many and self.below <= few:
            return "good"
        if self.others and self.below >= many and self.above <= few:
            return "bad"
        return "between" if self.others and self.above + self.below >= many else "unresolved"


@dataclass(frozen=True)
class Change:
    """An algorithm minus its baseline on a probe."""

    probe: Probe
    pair: AlgorithmPair | None
    """None where one of them has no score."""
    verdict: Verdict
    failures: FailurePair
    """Failing seeds of both."""


def judge(profile: Profile, algorithm: str) -> list[ProbePosition]:
    """The positions on all probes with a score, in the order of the profile."""
    judged = []
    for name, probe in profile.probes.items():
        if scores_on(profile, name, algorithm):
            pairs = profile.against(algorithm, name)
            higher_than, lower_than = split_by_side(pairs)
            judged.append(ProbePosition(probe, len(pairs), len(higher_than), len(lower_than)))
    return judged


def changes(profile: Profile, algorithm: str, baseline: str) -> list[Change]:
    """An algorithm against one other on all probes where both have a score, or where seeds fail.

    Verdicts are by Benjamini and Hochberg's q ≤ 0.05 over these probes, of differences larger than the
    resolution; failing seeds are compared apart. Raises ValueError for a baseline without runs, and for one
    that is the algorithm itself."""
    check_known(profile, baseline, "baseline")
    if baseline == algorithm:
        raise ValueError(f"baseline: {baseline!r} is the algorithm itself; name another one")
    pairs = {
        name: next((pair for pair in profile.against(algorithm, name) if pair.second == baseline), None)
        for name in profile.probes
    }
    points = {
        name: (profile.at_best(name, algorithm), profile.at_best(name, baseline)) for name in profile.probes
    }
    run = [name for name, (mine, other) in points.items() if mine.runs and other.runs]
    scored = [name for name in run if pairs[name]]
    q = benjamini_hochberg([pair.p for name in scored if (pair := pairs[name])]).tolist() if scored else []
    q_of = dict(zip(scored, q, strict=True))
    failures = compare_failures([points[name] for name in run])
    return [
        Change(profile.probes[name], pairs[name], _verdict(pairs[name], q_of.get(name, 1.0)), failure_pair)
        for name, failure_pair in zip(run, failures, strict=True)
        if pairs[name] or failure_pair.first.failed or failure_pair.second.failed
    ]


def _verdict(pair: AlgorithmPair | None, q: float) -> Verdict:
    if pair is None or q > FDR:
        return "not told apart"
    return "higher" if pair.difference > 0 else "lower"


def page(
    profile: Profile,
    algorithm: str,
    baseline: str = "",
    rows: Sequence[ProbeOutcome] = (),
    search: Sequence[ProbeOutcome] = (),
) -> str:
    """The Markdown page of an algorithm; `baseline` adds what it changes, `rows` (its kept ones) the cost,
    and `search` (those of the search) how its rates were chosen. Raises ValueError for names without runs."""
    check_known(profile, algorithm)
    judged = judge(profile, algorithm)
    text = [f"# {clean(algorithm)} on the probes", "", *_sentences(profile, algorithm, judged)]
    if baseline:
        text += ["", *_change_lines(profile, algorithm, baseline)]
    text += ["", *_rate_lines(profile, algorithm)]
    return "\n".join([*text, "", *_how(profile, algorithm, rows, search), ""])


def _sentences(profile: Profile, algorithm: str, judged: Sequence[ProbePosition]) -> list[str]:
    text: list[str] = []
    for kind, title in (("good", "Good at"), ("bad", "Bad at")):
        chosen = [judgment for judgment in judged if judgment.kind == kind]
        text += [f"## {title}", ""]
        text += [f"- {_sentence(profile, algorithm, judgment)}" for judgment in chosen] or [
            "Nothing that can be told."
        ]
        text.append("")
    for kind, start in (
        ("between", "In between, above some and below others"),
        ("unresolved", "Nothing can be told"),
    ):
        if chosen := [judgment for judgment in judged if judgment.kind == kind]:
            text += [
                f"{start}: {'; '.join(_position(profile, algorithm, judgment) for judgment in chosen)}.",
                "",
            ]
    without = [
        probe.title for name, probe in profile.probes.items() if algorithm in profile.gated.get(name, ())
    ]
    if without:
        text += [f"No score on {listed(without, len(without))}: {gated_text(profile)}", ""]
    return [fold(line) for line in text[:-1]]


def _sentence(profile: Profile, algorithm: str, judgment: ProbePosition) -> str:
    ending = judgment.probe.good if judgment.kind == "good" else judgment.probe.bad
    return f"It {ending}: {_position(profile, algorithm, judgment, 'algorithms')}."


def _position(profile: Profile, algorithm: str, judgment: ProbePosition, noun: str = "") -> str:
    name = judgment.probe.name
    score = range_text(profile.cell(name, algorithm), mean_of(profile, name, algorithm))
    of = f"{judgment.others} {noun}".strip()
    failed = profile.at_best(name, algorithm).failed
    fails = f", {len(failed)} of {profile.at_best(name, algorithm).runs} seeds fail" if failed else ""
    return f"{judgment.probe.title} {score}, above {judgment.above} of {of}, below {judgment.below}{fails}"


def _change_lines(profile: Profile, algorithm: str, baseline: str) -> list[str]:
    compared = changes(profile, algorithm, baseline)
    text = [f"## What it changes against {clean(baseline)}", ""]
    if not compared:
        return [*text, "No probe has a score of both."]
    rows = [
        [
            change.probe.title,
            (
                f"{signed(change.pair.difference)} ({interval(change.pair.low, change.pair.high, signed)})"
                if change.pair
                else NONE
            ),
            change.verdict if change.pair else NONE,
            f"{change.failures.text}{', told apart' if change.failures.told_apart else ''}",
            change.probe.mechanism if change.verdict != "not told apart" else "",
        ]
        for change in compared
    ]
    head = ["probe", "difference (95 % interval)", "verdict", "failing seeds", "mechanism"]
    note = (
        f"Verdict: q ≤ {FDR} over the probes of this table, of differences larger than {RESOLUTION}. Failing "
        f"seeds: told apart by Fisher's exact test at q ≤ {FDR}; a dash where they are not recorded."
    )
    return [
        *text,
        fold(_told_apart(compared, clean(baseline))),
        "",
        *plain(head, rows, len(head)).markdown(padded=True),
        "",
        fold(note),
    ]


def _told_apart(compared: Sequence[Change], baseline: str) -> str:
    """In a sentence, on which probes an algorithm is told from its baseline."""
    scored = [change for change in compared if change.pair]
    differing_titles = [
        f"{change.probe.title} ({change.verdict})" for change in scored if change.verdict != "not told apart"
    ]
    failing_titles = [
        f"{change.probe.title} ({change.failures.text})" for change in compared if change.failures.told_apart
    ]
    fails = (
        f" Failing seeds tell it from {baseline} on {listed(failing_titles, 20)}." if failing_titles else ""
    )
    if differing_titles:
        titles = listed(differing_titles, len(differing_titles))
        return f"Told apart on {len(differing_titles)} of {len(scored)} probes: {titles}.{fails}"
    return (
        f"None of {len(scored)} probes tells it from {baseline} by its score: either what it changes is "
        f"smaller than these intervals, or no probe shows it.{fails}"
    )


# Rates, seeds, cost


def _rate_lines(profile: Profile, algorithm: str) -> list[str]:
    """The scores over learning rates: a row for each rate of a probe, and what half and twice the best rate
    lose."""
    best = profile.rates.get(algorithm, {}).get("policy", math.nan)
    text = ["## At other learning rates", ""]
    curves = {name: profile.curve(name, algorithm) for name in scored_probes(profile)}
    rows = [
        [
            profile.probes[name].title,
            f"{rate_text(point.rate)}{' (best)' if point is curve.at(curve.best) else ''}",
            two(point.score.value),
            interval(point.score.low, point.score.high, two),
            point.failures,
        ]
        for name, curve in curves.items()
        if len(curve.points) > 1
        for point in curve.points
    ]
    if not rows:
        command = f"grpobench profile {clean(algorithm)} --rates 0.5,1,2"
        return [*text, f"All runs are at the best rate, {rate_text(best)}. `{command}` adds others."]
    text += plain(["probe", "rate", "score", "95 % interval", "failing seeds"], rows, 2).markdown(padded=True)
    losses = [
        f"{profile.probes[name].title} {side} {loss}"
        for name, curve in curves.items()
        for side, sign in (("below", -1), ("above", 1))
        if (loss := loss_text(curve, sign))
    ]
    beginning = f"Score that it loses beside its best rate, {rate_text(best)}, negative where it gains"
    return [*text, "", fold(f"{beginning}: {'; '.join(losses)}.")] if losses else text


def _how(
    profile: Profile, algorithm: str, rows: Sequence[ProbeOutcome], search: Sequence[ProbeOutcome]
) -> list[str]:
    text = ["## How it was measured", ""]
    text.append(f"- Learning rates: {rates_words(profile.rates.get(algorithm, {}))}.")
    text += [f"- {line}" for line in search_lines(profile, algorithm, search)]
    counts = {len(scores_on(profile, name, algorithm)) for name in profile.probes} - {0}
    if counts:
        seeds = str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
        text.append(
            f"- Seeds of a score: {seeds}. Other algorithms: {len(algorithms_with_runs(profile)) - 1}."
        )
    runs = run_seconds(profile, [row for row in rows if row.algorithm == algorithm])
    if runs:
        minutes = sum(runs) / 60
        text.append(f"- Cost: {len(runs)} runs, {minutes:.1f} minutes in sum, without the search.")
    return [fold(line) for line in text]


def rates_words(rates: Mapping[str, float]) -> str:
    """`3e−4 (policy), 1e−2 (critic)`."""
    return ", ".join(f"{rate_text(rate)} ({role})" for role, rate in rates.items()) or "unknown"


def search_lines(profile: Profile, algorithm: str, search: Sequence[ProbeOutcome]) -> list[str]:
    """How the rates were chosen: scores on the gate by rate; at most a line for each role."""
    gate = gate_of(profile)
    mine = [row for row in search if (row.algorithm, row.probe) == (algorithm, gate)]
    if not mine:
        return []
    normalize = profile.probes[gate].normalize
    best = profile.rates.get(algorithm, {}).get("policy", math.nan)
    seeds = len({row.seed for row in mine})
    policy = {
        rate: mean_known(r.outcome for r in mine if r.learning_rate == rate)
        for rate in sorted({r.learning_rate for r in mine})
    }
    critic = {
        rate: mean_known(r.outcome for r in mine if r.critic_rate == rate and r.learning_rate == best)
        for rate in sorted({r.critic_rate for r in mine if not math.isnan(r.critic_rate)})
    }
    text = []
    for role, means in (("policy", policy), ("critic", critic)):
        if means:
            scores = ", ".join(f"{rate_text(rate)}: {two(normalize(mean))}" for rate, mean in means.items())
            text.append(
                f"Search of the {role}'s rate by `{profile.probes[gate].title}`, {seeds} seeds used by "
                f"nothing else: {scores}."
            )
    return text


def run_seconds(profile: Profile, rows: Sequence[ProbeOutcome]) -> list[float]:
    """Seconds of each run. Rows of probes that share runs count once."""
    seconds: dict[tuple[object, ...], float] = {}
    for row in rows:
        probe = profile.probes.get(row.probe)
        shared = gate_of(profile) if probe and probe.runs != "own" else row.probe
        _, _, *key = row.key
        seconds[row.algorithm, shared, *key] = row.seconds
    return list(seconds.values())
