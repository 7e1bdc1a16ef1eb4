"""Figures of profiles fit a column of a paper and can be read there."""

from __future__ import annotations

import re
from typing import Any

import matplotlib
import numpy as np
import pytest
from helpers.profiles import probe, profile
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from grpobench.analysis.figures.drawing import Drawing, pdf_bytes, png_bytes
from grpobench.analysis.figures.style import STYLE
from grpobench.analysis.profile.figures import heatmap, radar, short, similar_order
from grpobench.analysis.profile.scores import Profile

TITLES = ("learn", "sparse success", "credit", "imbalance", "diversity", "flips", "staleness", "hacking")


def large(algorithms: int) -> Profile:
    rng = np.random.default_rng(1)
    probes = [probe(name, against="learn" if name == "flips" else "") for name in TITLES]
    means = {
        f"algorithm_{i}": {name: float(rng.uniform(-0.1, 1.2)) for name in TITLES} for i in range(algorithms)
    }
    means["algorithm_0"] |= {"learn": 0.1}  # does not learn: no score on flips
    return profile(means, probes, seeds=4)


@pytest.fixture(scope="module")
def made() -> Profile:
    return large(36)


def texts(figure: Figure) -> list[Text]:
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


def check(drawing: Drawing) -> None:
    """All text is inside the figure and at least 6 points high, and no two texts overlap."""
    with matplotlib.rc_context(STYLE):
        canvas: Any = FigureCanvasAgg(drawing.figure)
        canvas.draw()
        shown = texts(drawing.figure)
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in shown]
    width, height = canvas.get_width_height()
    assert min(float(text.get_fontsize()) for text in shown) >= 6
    for text, box in zip(shown, boxes, strict=True):
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
        assert inside, text.get_text()
    for i, box in enumerate(boxes):
        for j in range(i):
            assert not box.overlaps(boxes[j]), (shown[i].get_text(), shown[j].get_text())


def media_box(pdf: bytes) -> list[float]:
    match = re.search(rb"/MediaBox \[([^\]]*)\]", pdf)
    assert match
    return [float(number) for number in match[1].split()]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_radar_is_a_column_wide_with_all_text_inside(made: Profile, count: int) -> None:
    drawing = radar(made, [f"algorithm_{i}" for i in range(count)])
    check(drawing)
    assert media_box(pdf_bytes(drawing))[2] == pytest.approx(3.25 * 72)
    assert png_bytes(drawing).startswith(b"\x89PNG")


def test_a_heat_map_is_a_column_wide_with_all_text_inside(made: Profile) -> None:
    drawing = heatmap(made)
    check(drawing)
    size = media_box(pdf_bytes(drawing))
    assert size[2] == pytest.approx(3.25 * 72)
    assert size[3] < 8.8 * 72


def test_a_heat_map_shows_every_score_and_hatches_the_gated(made: Profile) -> None:
    figure = heatmap(made).figure
    shown = [text.get_text() for text in figure.axes[0].texts]
    scores = [value for of in made.scores.values() for value in of]
    assert sum(bool(text) for text in shown) == len(scores)
    assert len(figure.axes[0].patches) == sum(map(len, made.gated.values())) > 0


def test_a_radar_marks_scores_beyond_the_circle() -> None:
    probes = [probe(name) for name in TITLES[:3]]
    inside = profile({"a": dict.fromkeys(TITLES[:3], 0.5), "b": dict.fromkeys(TITLES[:3], 0.4)}, probes)
    beyond = profile({"a": dict.fromkeys(TITLES[:3], 1.3), "b": dict.fromkeys(TITLES[:3], 0.4)}, probes)
    labels = [
        [text.get_text() for text in radar(made, ["a"]).figure.legends[0].texts] for made in (inside, beyond)
    ]
    assert labels == [["a"], ["a", "beyond 0 or 1"]]
    lines = radar(beyond, ["a"]).figure.axes[0].lines
    assert max(np.asarray(line.get_ydata(), dtype=float).max(initial=0) for line in lines) == 1.0


def test_a_radar_has_a_gap_without_a_score(made: Profile) -> None:
    axes = radar(made, ["algorithm_0", "algorithm_1"]).figure.axes[0]
    gaps = [int(np.isnan(np.asarray(line.get_ydata(), dtype=float)).sum()) for line in axes.lines]
    assert max(gaps) == len([name for name, names in made.gated.items() if "algorithm_0" in names]) == 1


def test_wrong_numbers_of_algorithms_are_refused(made: Profile) -> None:
    for names in ([], [f"algorithm_{i}" for i in range(6)]):
        with pytest.raises(ValueError, match=f"needs 1 to 5 algorithms, got {len(names)}"):
            radar(made, names)
    with pytest.raises(ValueError, match="'gone' has no kept runs"):
        radar(made, ["gone"])


def test_similar_rows_are_neighbors_with_the_higher_first() -> None:
    rows = np.array([[0.1, 0.1], [0.9, 0.9], [0.1, 0.2], [0.9, 0.8], [np.nan, 0.85]])
    assert sorted(similar_order(rows)[:3]) == [1, 3, 4]


def test_scores_have_three_characters_at_most() -> None:
    shown = {
        0.52: ".52",
        0.999: "1",
        1.3: "1.3",
        -0.13: "−.1",
        -0.001: "0",
        0.0: "0",
        -2.5: "−2.5",
        12.3: "12",
    }
    assert {value: short(value) for value in shown} == shown | {0.0: short(0.0)}
    assert short(float("nan")) == ""
