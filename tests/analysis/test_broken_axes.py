"""Axes that are broken beside an arm that failed, and panels that stay on a page."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from grpobench.analysis.figures.panels import TALLEST, break_axis, far_rows, rows_of_names
from grpobench.analysis.figures.sheets import sheet_of
from grpobench.analysis.topics.results import broken_words


@pytest.mark.parametrize(
    ("extents", "far"),
    [
        ([(70, 72), (71, 74), (2, 4)], [2]),  # a gap of 66 points beside 4
        ([(70, 72), (71, 74), (60, 62)], []),  # 8 points are not three times 4
        ([(70, 71), (70, 71), (60, 62)], [2]),  # they are three times 2 points, the least that an axis shows
        ([(0, 1), (70, 71)], []),  # of two rows none is the other's exception
        ([(0, 1), (1, 2), (70, 71), (70, 72)], []),  # half of the rows are no exception
        ([(50, 51), (50, 52), (51, 52), (51, 52), (2, 3), (9, 12)], [4, 5]),
        ([(0, 1), (0, 2), (98, 99)], [2]),  # an arm that is far better is as far
    ],
)
def test_few_rows_far_from_the_others_are_found(extents: list[tuple[float, float]], far: list[int]) -> None:
    assert (
        sorted(far_rows({row: (low, (low + high) / 2, high) for row, (low, high) in enumerate(extents)}))
        == far
    )


def test_a_broken_axis_shows_the_close_rows_and_the_number_of_the_far_one() -> None:
    axes = Figure().add_subplot()
    assert break_axis(axes, {0: (70, 71, 72), 1: (71, 73, 74), 2: (2, 3.5, 5)}) == [2]
    low, high = axes.get_xlim()
    assert 69 < low < 70 and 74 < high < 75
    (note,) = axes.texts
    assert note.get_text() == "◂ 3.5" and note.get_position()[1] == 2
    assert "ppo on t lies beyond" in broken_words(["ppo on t"]) and broken_words([]) == ""
    unbroken = Figure().add_subplot()
    assert break_axis(unbroken, {0: (70, 71, 72), 1: (60, 70, 74)}) == [] and not unbroken.texts


@pytest.mark.parametrize("width", ["acl", "acl-text", "text"])
@pytest.mark.parametrize(("tasks", "arms"), [(1, 20), (2, 20), (3, 12)])
def test_panels_of_names_stay_on_a_page(width: str, tasks: int, arms: int) -> None:
    names = [f"arm {number}" for number in range(arms)]
    figure, _ = rows_of_names([f"t{n}" for n in range(tasks)], names, sheet_of(width), above=0.45)
    assert figure.get_figheight() <= TALLEST
