"""The task files: the disk's tools, its bounds, and the end state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpobench.tasks.data.messages import Message
from grpobench.tasks.data.tools import ToolCall
from grpobench.tasks.files import MOST_FILES, MOST_PATH, MOST_TEXT, REQUESTS, Disk, Files
from grpobench.tasks.task import Problem


def by_hand(goal: dict[str, str] | None = None, **changes: Any) -> tuple[Files, Problem]:
    """A disk with three files, of which two hold cat and are to be deleted."""
    files = {"a/k": "cat", "b/m": "cat", "c/n": "dog"}
    calls = [["find", {"text": "cat"}], ["delete", {"path": "a/k"}], ["delete", {"path": "b/m"}]]
    truth = {"files": files, "goal": {"c/n": "dog"} if goal is None else goal, "calls": calls}
    return Files(**changes), Problem("x", "disk x: delete cat\n", truth)


def play(turns: list[str]) -> list[Any]:
    task, problem = by_hand()
    return [task.reply(problem, turns[: end + 1]) for end in range(len(turns))]


def test_replies_by_hand() -> None:
    assert play(["l", "la", "la/", "lz", "fcat", "fo", "rc/n", "."]) == [
        "a/k b/m c/n\n",
        "a/k\n",
        "a/k\n",
        "none\n",
        "a/k b/m\n",
        "c/n\n",
        "dog\n",
        None,
    ]
    assert play(["wz/q big cat", "rz/q", "mz/q a/q", "rz/q", "da/q", "da/q"]) == [
        "ok\n",
        "big cat\n",
        "ok\n",
        "error: no such file\n",
        "ok\n",
        "error: no such file\n",
    ]
    assert play(["da/k;db/m;l"]) == ["ok;ok;c/n\n"]
    empty = ToolCall("write", {"path": "z/q", "text": ""}), ToolCall("read", {"path": "z/q"})
    task, problem = by_hand(notation="tools")
    assert task.reply(problem, [task.write(*empty)]) == (Message("tool", "ok"), Message("tool", "empty"))
    assert play(["ma/k b/m", "wa x", "wa/k/k x", "w../x x", "ma/k a/k/k", "x", ".."]) == [
        "error: the target exists\n",
        "error: that is a folder\n",
        "error: a folder of the path is a file\n",
        "error: a path has names with / between them, at most 40 characters\n",
        "ok\n",  # a/k is a file no longer
        "error: not an action\n",
        "error: not an action\n",
    ]


@pytest.mark.parametrize(
    ("turns", "correct", "progress", "outcome"),
    [
        (["fcat", "da/k", "db/m", "."], 1, 1, "graded"),
        (["db/m", "l", "da/k", "."], 1, 1, "graded"),  # any way to the goal
        (["mb/m z/z", "dz/z", "da/k;."], 1, 1, "graded"),
        (["fcat", "da/k", "."], 0, 2 / 3, "graded"),
        (["fcat", "da/k", "db/m", "wz/z x", "."], 0, 2 / 3, "graded"),
        (["fcat", "da/k", "db/m"], 0, 1, "unparsable"),  # it never said that it was done
        (["fcat", "da/k", "db/m", "wc/n cow", "."], 0, 2 / 3, "graded"),
        ([], 0, 0, "unparsable"),
    ],
)
def test_the_files_in_the_end_decide(turns: list[str], correct: float, progress: float, outcome: str) -> None:
    task, problem = by_hand()
    (verdict,) = task.verify_episodes(problem, [turns])
    assert (verdict.scores["correct"], verdict.scores["progress"]) == (correct, pytest.approx(progress))
    assert verdict.outcome == outcome


@pytest.mark.parametrize("request_kind", REQUESTS)
def test_each_request_is_fulfilled_by_its_reference_and_by_nothing_less(request_kind: str) -> None:
    task = Files(train=40, requests=(request_kind,), matching=3)
    for problem in task.problems("train"):
        turns = list(task.demonstrate_episode(problem))
        assert problem.traits == {"difficulty": len(turns), "category": request_kind}
        assert task.verify_episodes(problem, [turns])[0].scores["correct"] == 1
        assert [step.remaining for _, step in task.steps(problem, turns)] == [*reversed(range(len(turns)))]
        for left_out, turn in enumerate(turns[:-1]):
            part = [*turns[:left_out], *turns[left_out + 1 :]]
            right = task.verify_episodes(problem, [part])[0].scores["correct"]
            assert right == turn.startswith(("f", "r")), "only what is looked at may be left out"


@given(
    calls=st.lists(
        st.one_of(
            st.builds(lambda p, t: ToolCall("write", {"path": p, "text": t}), st.text("ab/."), st.text()),
            st.builds(
                lambda p, t: ToolCall("move", {"path": p, "target": t}), st.text("ab/."), st.text("ab/.")
            ),
            st.builds(lambda p: ToolCall("delete", {"path": p}), st.text("ab/.")),
        ),
        max_size=40,
    )
)
@settings(max_examples=80, deadline=None)
def test_no_file_is_a_folder_and_bounds_hold_after_any_calls(calls: list[ToolCall]) -> None:
    _, problem = by_hand()
    disk = Disk(problem.truth)
    for call in calls:
        before = dict(disk.files)
        try:
            disk.call(call, 0)
        except ValueError:
            assert disk.files == before, "a call that fails changes nothing"
    assert not any(other.startswith(f"{path}/") for path in disk.files for other in disk.files)
    assert len(disk.files) <= MOST_FILES and disk.remaining >= 1


def test_bounds_by_hand() -> None:
    _, problem = by_hand()
    disk = Disk(problem.truth)
    for number in range(MOST_FILES - 3):
        disk.call(ToolCall("write", {"path": f"n/{number}", "text": "x" * MOST_TEXT}), 0)
    for path, text, message in (
        ("n/99", "x", "the disk is full: it has 32 files"),
        ("n/1", "x" * (MOST_TEXT + 1), "a text has at most 200 printable characters"),
        ("n/1", "two\nlines", "a text has at most 200 printable characters"),
        ("n" * (MOST_PATH + 1), "x", "at most 40 characters"),
    ):
        with pytest.raises(ValueError, match=message):
            disk.call(ToolCall("write", {"path": path, "text": text}), 0)
    disk.call(ToolCall("write", {"path": "n/1", "text": "y"}), 0)  # a file that exists takes no room
