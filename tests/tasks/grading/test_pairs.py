"""Locks: the table of graded pairs. Ours says of each what it should, or what a stated exception says; what
the page tells of others is what they say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.rows import write_rows

from grpobench.runs import cli
from grpobench.runs.tools import files
from grpobench.tasks.grading import pairs
from grpobench.tasks.grading.final_answer import compare_all, decide

KEPT = pairs.load()
KINDS = {
    *("number", "expression", "several values", "chain", "interval", "inequality", "set", "tuple", "matrix"),
    *("unit", "percent and currency", "thousands", "mixed number", "scientific", "repeating decimal"),
    *("degrees", "complex", "hedged", "text", "base and ratio", "degenerate"),
}


def test_the_table_has_every_kind_and_no_pair_twice() -> None:
    assert len(KEPT) >= 300
    assert len({pair.key for pair in KEPT}) == len(KEPT)
    equal = Counter(pair.kind for pair in KEPT if pair.equal)
    different = Counter(pair.kind for pair in KEPT if not pair.equal)
    assert equal.keys() == different.keys() == KINDS


def test_ours_says_of_each_what_it_should_or_what_is_kept_with_its_reason() -> None:
    verdicts = compare_all([pair.key for pair in KEPT])
    now = [
        replace(pair, said={**pair.said, pairs.OURS: verdict})
        for pair, verdict in zip(KEPT, verdicts, strict=True)
    ]
    assert list(pairs.faults(KEPT, now)) == []
    assert [
        pair.key for pair, verdict in zip(KEPT, verdicts, strict=True) if pair.said[pairs.OURS] != verdict
    ] == []
    exceptions = [pair for pair in KEPT if not pair.right(pairs.OURS)]
    assert all(pair.note for pair in exceptions)
    assert [pair.key for pair in exceptions if not pair.equal] == []  # no wrong answer is accepted
    assert len(exceptions) <= 9


def test_most_answers_take_no_algebra() -> None:
    left = [pair for pair in KEPT if not isinstance(decide(*pair.key), str)]
    assert len(left) < len(KEPT) / 3  # and the table is made of hard ones


def test_every_difference_from_ours_has_a_reason_and_nothing_else_has() -> None:
    for pair in KEPT:
        apart = {grader.name for grader in pairs.GRADERS if pair.apart(grader.name)}
        assert apart == set(pair.why) and all(pair.why.values()), pair.key


def changed_verdicts(grader: pairs.LibraryGrader, some: list[pairs.Pair]) -> list[tuple[str, str]]:
    """Those of which it says now what is not kept."""
    if lack := grader.missing():
        pytest.skip(lack)
    verdicts = grader.ask([pair.key for pair in some])
    return [pair.key for pair, now in zip(some, verdicts, strict=True) if pair.said[grader.name] != now]


EACH = pytest.mark.parametrize("grader", pairs.GRADERS, ids=lambda grader: grader.name)


@EACH
def test_others_say_what_is_kept(grader: pairs.LibraryGrader) -> None:
    quick = [pair for pair in KEPT if pair.said[grader.name] != "timeout"]
    assert changed_verdicts(grader, quick[::7]) == []


@EACH
@pytest.mark.slow
def test_others_say_what_is_kept_of_all(grader: pairs.LibraryGrader) -> None:
    assert changed_verdicts(grader, KEPT) == []


def test_grader_that_is_not_here_says_what_to_install() -> None:
    absent = pairs.LibraryGrader("no_such", "no-such-package", "1.2", "never")
    assert (
        absent.missing()
        == "no_such: no-such-package is not here; it takes pip install 'no-such-package==1.2'"
    )
    other = replace(absent, package="pytest", version="0.1")
    assert other.missing().startswith("no_such: pytest is 9.")


def test_grader_that_can_not_start_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = pairs.LibraryGrader("no_such", "pytest", "", "never")
    with pytest.raises(OSError, match="no_such could not be asked"):
        broken.ask([("1", "1")])


def small(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> Path:
    """A table of one pair that ours gets right, and no other graders."""
    row = {"kind": "number", "truth": "1", "answer": "1.0", "equal": True, "note": "", "why": {}}
    row |= dict.fromkeys(pairs.EACH, "equal") | changes
    path = write_rows(folder / "pairs.jsonl", [row])
    monkeypatch.setattr(pairs, "TABLE", path)
    monkeypatch.setattr(pairs, "GRADERS", ())
    return path


def test_command_fails_where_ours_is_not_as_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small(tmp_path, monkeypatch)
    assert cli.main(["tasks", "pairs"]) == 0
    assert "ours: 1 of 1 verdicts as they should be" in capsys.readouterr().out
    small(tmp_path, monkeypatch, equal=False)
    assert cli.main(["tasks", "pairs"]) == 70  # the kept verdict is wrong too, and without a reason
    assert "number: '1.0' for '1' is equal, expected different" in capsys.readouterr().out
    small(tmp_path, monkeypatch, equal=False, note="a stated exception")
    assert cli.main(["tasks", "pairs"]) == 0
    small(tmp_path, monkeypatch, equal=False, note="a stated exception", ours="different")
    assert cli.main(["tasks", "pairs", "--json"]) == 70


def test_kept_verdicts_are_those_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small(tmp_path, monkeypatch, ours="different", note="kept", why={"math_verify": "gone"})
    assert cli.main(["tasks", "pairs", "--keep"]) == 0
    (pair,) = pairs.load()
    assert pair.said == dict.fromkeys(pairs.EACH, "equal")
    assert pair.why == {}
    files.write_atomic(path, pairs.as_text(pairs.load()).encode())
    assert pairs.load() == [pair]


def test_file_is_as_it_is_written() -> None:
    assert pairs.as_text(KEPT) == pairs.TABLE.read_text(encoding="utf-8")
