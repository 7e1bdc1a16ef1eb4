"""Records: arms in the order of the tokens until a level, and the paired verdict, both by hand."""

from __future__ import annotations

from typing import Any

import pytest

from grpobench.analysis.kept import KeptTable
from grpobench.analysis.record import Provenance
from grpobench.analysis.records import Target, rank


def table(
    arms: dict[str, list[list[tuple[float, float]]]], base: float = 0.4, command: str = ""
) -> KeptTable:
    """A table of arms, each with a list of (tokens, accuracy) at its evaluations for every seed."""
    runs: list[dict[str, Any]] = [
        {
            "arm": arm,
            "task": "sums",
            "seed": seed,
            "validation": {
                "greedy": [[0, base], *([5 * n + 5, accuracy] for n, (_, accuracy) in enumerate(curve))]
            },
            "spent": [[5 * n + 5, tokens, 0.0, 0.0] for n, (tokens, _) in enumerate(curve)],
        }
        for arm, curves in arms.items()
        for seed, curve in enumerate(curves)
    ]
    made = Provenance(command=command, commits={}, versions={}, machine=["CPU"])
    return KeptTable("t", made, "", {"sums": "greedy"}, list(arms), ["sums"], runs)


FAST = [[(100 + seed, 0.55), (200 + seed, 0.75)] for seed in range(6)]
SLOW = [[(150 + seed, 0.45), (300 + seed, 0.60)] for seed in range(6)]


def test_the_first_evaluation_at_the_level_counts_and_the_next_record_is_compared_in_pairs() -> None:
    """Six pairs, in each of which the same arm is faster: p = 2/2⁶."""
    ranked = rank({"ours": table({"slow": SLOW, "fast": FAST})})
    assert [*ranked] == [Target("sums", 0.4, 0.5), Target("sums", 0.4, 0.7)]
    half, most = ranked.values()
    assert [(row.entry.arm, row.entry.median) for row in half] == [("fast", 102.5), ("slow", 302.5)]
    assert (half[0].p, half[0].wins, half[0].shared, half[0].verdict) == (2 / 64, 6, 6, "faster")
    assert half[1].verdict == "not compared"
    assert [(row.entry.arm, row.entry.median) for row in most] == [("fast", 202.5)]  # slow never gets there


def test_a_contribution_stands_in_the_same_target_only_where_the_base_is_equal() -> None:
    tables = {
        "ours": table({"slow": SLOW}),
        "lab/t": table({"new": FAST}),
        "far/t": table({"far": FAST}, 0.41),
    }
    ranked = rank(tables)
    assert [row.entry.source for row in ranked[Target("sums", 0.4, 0.5)]] == ["lab/t", "ours"]
    assert [row.entry.source for row in ranked[Target("sums", 0.41, 0.5)]] == ["far/t"]


def test_too_few_shared_seeds_searches_and_seeds_left_out_give_no_rank() -> None:
    few = rank({"a": table({"x": FAST[:5]}), "b": table({"y": SLOW})})
    assert [row.verdict for row in few[Target("sums", 0.4, 0.5)]] == ["not compared"] * 2
    assert not rank({"a": table({"x": FAST}, command="grpobench search quickstart")})
    assert not rank({"a": table({"x": FAST[:2]})})
    gap = table({"x": FAST})
    del gap.runs[0]["spent"]  # type: ignore[attr-defined]
    assert not rank({"a": gap})


@pytest.mark.parametrize("reached", range(7))
def test_an_arm_is_ranked_if_more_than_half_of_its_seeds_reach_the_level(reached: int) -> None:
    curves = [[(100.0, 0.6 if seed < reached else 0.45)] for seed in range(6)]
    assert bool(rank({"a": table({"x": curves})})) == (reached > 3)


def test_a_lower_median_with_fewer_wins_is_not_faster() -> None:
    """`first` has the lower median, 100 against 101, and loses four of six pairs."""
    first = [[(count, 0.6)] for count in (100.0, 100.0, 100.0, 100.0, 900.0, 900.0)]
    second = [[(count, 0.6)] for count in (99.0, 99.0, 103.0, 103.0, 800.0, 800.0)]
    (rows,) = rank({"a": table({"first": first, "second": second})}).values()
    assert [row.entry.arm for row in rows] == ["first", "second"]
    assert (rows[0].wins, rows[0].shared, rows[0].verdict) == (2, 6, "undecided")
