"""The page docs/profiles.md: scores of all algorithms, and what each probe can tell."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpobench.analysis.figures.table import plain
from grpobench.analysis.profile.agreement import agreement_lines, rate_agreements
from grpobench.analysis.profile.controls import ControlScores, Separation, judge
from grpobench.analysis.profile.curves import RatePoint
from grpobench.analysis.profile.kept import LEAST_FORM, ProbeOutcome
from grpobench.analysis.profile.page import run_seconds
from grpobench.analysis.profile.probe import Probe
from grpobench.analysis.profile.scores import COMMON_RATE, GATE_SCORE, Profile
from grpobench.analysis.profile.table import (
    algorithms_with_runs,
    common_text,
    gate_of,
    lines,
    loss_text,
    mean_of,
    rate_text,
    scored_probes,
    scores_on,
)
from grpobench.analysis.statistics.moderated import DEALT_SEEDS, RESOLUTION, RankedAlgorithms, deal
from grpobench.analysis.tools.text import NONE, fold, listed, two

MARK = "<!-- Written by `grpobench docs` from the kept outcomes of profiles; do not edit. -->"
DEALS = 200
"""A/A deals of a probe."""
MOST_PAIRS = 5
"""Most reversed orders that are named."""
INTRO = """# Profiles

Read here what each algorithm is good and bad at. A probe isolates one mechanism on a small policy, with runs
of seconds. A profile is the scores of one algorithm on all probes.

- **Score**: 0 and 1 are stated below for every probe. Scores may leave this range.{robust}
- **Interval**: 95 %, over seeds, from a moderated variance. ± is half its width.
- **Failing seeds**: a run fails if it diverges, has no outcome, or loses the form that its prompt asks for
  (less than {form} over the last tenth of the steps; the base has 1). `2/8 fail` follows the score,
  which averages over the other seeds. On `rates` alone, runs count as they end.
- **Told apart**: q ≤ 0.05, over all pairs of the probe, that the means differ by more than {resolution}.
  `grpobench profile grpo ppo --against gspo,dapo` shows which probes tell algorithms apart that you name.
- **Rates**: scores are those at the best rate, by the same search for every algorithm ([rates](#rates)).
  `grpobench profile NAME --rates 0.5,1,2` adds half and twice of it, and {common}, at which all algorithms
  are [compared too](#best-rates-and-the-common-rate).

A score says how an algorithm reacts to a mechanism on these policies, not how it trains a large model.
Self-distillation shows the policy an answer in its prompt, which these policies have not learned to use: it
teaches them nothing here.
"""


@dataclass(frozen=True)
class ExpectedOrder:
    """An order of two algorithms that theory expects."""

    higher: str
    lower: str


def expected_orders(probe: Probe, algorithms: Sequence[str]) -> list[ExpectedOrder]:
    """Every algorithm of `high` above every other one, and every one of `low` below every other one. None
    among those of `high` and among those of `low`."""
    orders = {
        (first, second)
        for first in algorithms
        for second in algorithms
        if (first in probe.high and second not in probe.high)
        or (second in probe.low and first not in probe.low)
    }
    return [ExpectedOrder(*pair) for pair in sorted(orders)]


@dataclass(frozen=True)
class Seen:
    """Expected orders by what the comparisons of all pairs say."""

    hold: Sequence[ExpectedOrder]
    reversed: Sequence[ExpectedOrder]
    unresolved: Sequence[ExpectedOrder]


def judge_orders(orders: Sequence[ExpectedOrder], compared: RankedAlgorithms) -> Seen:
    """Which orders hold. Those of algorithms without a score must not be among them."""
    signs: dict[tuple[str, str], float] = {}
    for pair in compared.pairs:
        signs[pair.first, pair.second] = pair.told_apart * math.copysign(1, pair.difference)
        signs[pair.second, pair.first] = -signs[pair.first, pair.second]
    kinds: dict[float, list[ExpectedOrder]] = {1: [], 0: [], -1: []}
    for order in orders:
        kinds[signs[order.higher, order.lower]].append(order)
    return Seen(kinds[1], kinds[-1], kinds[0])


def document(
    profile: Profile,
    controls: Sequence[ProbeOutcome],
    rows: Mapping[str, Sequence[ProbeOutcome]] | None = None,
    deals: int = DEALS,
    without: Sequence[str] = (),
) -> str:
    """The Markdown page. `controls` are the rows of the probes' controls, `rows` the kept ones by algorithm
    for the costs, `without` the algorithms of the suite that have no profile. Raises ValueError for a profile
    without scores and for a control of an unknown probe."""
    words = {
        "robust": _robust(profile),
        "form": two(LEAST_FORM),
        "resolution": RESOLUTION,
        "common": rate_text(COMMON_RATE),
    }
    text = [MARK, INTRO.format(**words)]
    text += ["## Scores", "", *lines(profile), ""]
    if without:
        text += [fold(f"No profile: {listed(without, len(without))}. `grpobench profile NAME` says why."), ""]
    text += _probe_lines(profile, judge(controls, profile), deals)
    text += ["## Best rates and the common rate", "", *agreement_lines(profile, rate_agreements(profile))]
    text += _curve_lines(profile)
    text += _theory_lines(profile)
    text += _rate_lines(profile, rows or {})
    return "\n".join(text) + "\n"


def _robust(profile: Profile) -> str:
    gated = [probe.title for probe in profile.probes.values() if probe.against]
    if not gated:
        return ""
    learn = profile.probes[gate_of(profile)].title
    text = (
        f"On {listed(gated, len(gated))}, a score is the share of the gain without the dose that is left. It "
        f"exists only for algorithms with {two(GATE_SCORE)} or more on `{learn}`."
    )
    return "\n" + textwrap.indent(fold(text, 116), "  ")


# What a probe can tell


def _probe_lines(profile: Profile, controls: Mapping[str, Separation], deals: int) -> list[str]:
    names = scored_probes(profile)
    head = ["probe", "algorithms", "seeds", "told apart", "A/A", "positive", "negative", "separated"]
    rows = [
        [
            profile.probes[name].title,
            str(len(profile.scores.get(name, {}))),
            _seeds(len(scores) for scores in profile.scores.get(name, {}).values()),
            _percent(profile.compared[name].share) if name in profile.compared else NONE,
            _percent(_aa(profile, name, deals)),
            *_control_cells(controls.get(name)),
        ]
        for name in names
    ]
    text = [
        "## What each probe can tell",
        "",
        fold(
            "Told apart: share of all pairs of algorithms. A/A: share of deals in which one algorithm "
            "under two names differs from itself, with half of its seeds each; a dash where no algorithm has "
            f"{DEALT_SEEDS} seeds. The positive control must score higher than the negative one. They "
            "are separated if Welch's t test, one-sided, says at p ≤ 0.05 that the difference is larger "
            f"than {RESOLUTION}."
        ),
        "",
        *plain(head, rows, 1, wide=3).markdown(padded=True),
        "",
    ]
    for name in names:
        text += _description(profile.probes[name])
    return text


def _description(probe: Probe) -> list[str]:
    text = [f"### {probe.title}", "", f"{probe.mechanism} {probe.score}", ""]
    text.append(f"- Dose: {probe.dose}. Source: {probe.source}.")
    if probe.positive and probe.negative:
        text.append(f"- Positive control: {probe.positive.text}. Negative control: {probe.negative.text}.")
    if probe.expect:
        text.append(f"- Expected: {probe.expect}")
    return [*map(fold, text), ""]


def _control_cells(separation: Separation | None) -> list[str]:
    if separation is None:
        return [NONE] * 3
    answer = {None: "not tested", True: "yes", False: "no"}[separation.separated]
    return [
        _arm(separation.positive),
        _arm(separation.negative),
        answer if separation.positive or separation.negative else NONE,
    ]


def _arm(arm: ControlScores | None) -> str:
    if arm is None:
        return NONE
    return two(arm.mean) if math.isnan(arm.low) else f"{two(arm.mean)} ± {two((arm.high - arm.low) / 2)}"


def _aa(profile: Profile, probe: str, deals: int) -> float:
    """The share of A/A deals that are told apart among all pairs; NaN without enough seeds."""
    scores = profile.scores.get(probe, {})
    seed_counts = [sum(not math.isnan(score) for score in of.values()) for of in scores.values()]
    return deal(scores, deals, 0) if max(seed_counts, default=0) >= DEALT_SEEDS else math.nan


def _percent(share: float) -> str:
    return NONE if math.isnan(share) else f"{100 * share:.0f} %"


def _seeds(counts: object) -> str:
    distinct = sorted(set(counts))  # type: ignore[call-overload]
    return (
        NONE if not distinct else str(distinct[0]) if len(distinct) == 1 else f"{distinct[0]}–{distinct[-1]}"
    )


# Theory


def _theory_lines(profile: Profile) -> list[str]:
    text = [
        "## What theory expects",
        "",
        fold(
            "An order pairs an algorithm that theory expects above (or below) the others with one of them. "
            "It holds or is reversed if the tests tell the pair apart; else it is unresolved."
        ),
        "",
    ]
    rows = []
    for name in scored_probes(profile):
        probe = profile.probes[name]
        compared = profile.compared.get(name)
        if compared is None:
            continue
        result = judge_orders(expected_orders(probe, list(compared.cells)), compared)
        rows.append(
            [
                probe.title,
                *(", ".join(names) or NONE for names in (probe.high, probe.low)),
                *(str(len(orders)) for orders in (result.hold, result.reversed, result.unresolved)),
                listed([f"{order.lower} > {order.higher}" for order in result.reversed], MOST_PAIRS),
            ]
        )
    head = ["probe", "expected high", "expected low", "hold", "reversed", "unresolved", "seen instead"]
    return [*text, *plain(head, rows, 3, wide=1).markdown(padded=True), ""]


# Rates


def _curve_lines(profile: Profile) -> list[str]:
    """A table for each probe of the scores at the best and the common rate, and of what other rates lose."""
    rate = rate_text(COMMON_RATE)
    text = [
        "## Scores over learning rates",
        "",
        fold(
            f"Score at the best rate and at {rate}, and how much lower it is at the nearest rate tried of "
            "half the best one or less (below), and of twice it or more (above), with the 95 % interval over "
            "the seeds that fail at neither. A negative loss: that rate is better. Algorithms with runs at "
            "the best rate only are left out."
        ),
        "",
    ]
    for name in scored_probes(profile):
        curves = profile.curves.get(name, {})
        rows = [
            [
                algorithm,
                rate_text(curve.best),
                _point(curve.at(curve.best)),
                common_text(profile, name, algorithm),
                *(loss_text(curve, side) for side in (-1, 1)),
            ]
            for algorithm, curve in sorted(curves.items())
            if any(point is not curve.at(curve.best) for point in curve.points)
        ]
        if rows:
            head = ["algorithm", "best rate", "score", f"at {rate}", "loss below", "loss above"]
            table = plain(head, rows, len(head)).markdown(padded=True)
            text += [f"### {profile.probes[name].title} over learning rates", "", *table, ""]
    lacking = [
        profile.probes[name].title
        for name, curves in profile.curves.items()
        if not any(len(curve.points) > 1 for curve in curves.values())
    ]
    if lacking:
        text += [fold(f"All kept runs are at the best rate: {', '.join(lacking)}."), ""]
    return text


def _point(point: RatePoint) -> str:
    fails = f", {point.failures} fail" if point.failed else ""
    return f"{two(point.score.value)}{fails}"


def _rate_lines(profile: Profile, rows: Mapping[str, Sequence[ProbeOutcome]]) -> list[str]:
    gate = gate_of(profile)
    head = ["algorithm", "policy", "critic", f"`{profile.probes[gate].title}`", "seeds", "runs", "minutes"]
    table = []
    for name in algorithms_with_runs(profile):
        rates = profile.rates.get(name, {})
        seconds = run_seconds(profile, rows.get(name, ()))
        table.append(
            [
                name,
                *(rate_text(rates[role]) if role in rates else NONE for role in ("policy", "critic")),
                two(mean_of(profile, gate, name)),
                _seeds(
                    len(scores_on(profile, probe, name))
                    for probe in profile.probes
                    if scores_on(profile, probe, name)
                ),
                str(len(seconds)) if seconds else NONE,
                f"{sum(seconds) / 60:.1f}" if seconds else NONE,
            ]
        )
    return [
        "## Rates",
        "",
        fold(
            f"Best rates by the search on `{profile.probes[gate].title}`, with seeds that nothing else uses, "
            "and the score on it. Minutes are summed over runs."
        ),
        "",
        *plain(head, table).markdown(padded=True),
    ]
