"""Figures for papers: legible without color, not flattened by outliers, numbers without corner factors."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import seaborn as sns
from helpers.synthetic import Synthetic
from matplotlib.backends import _backend_pdf_ps
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from matplotlib.ft2font import FT2Font
from matplotlib.text import Annotation
from scipy import stats

from grpobench.analysis.figures import drawing as files
from grpobench.analysis.figures.drawing import Drawing, svg_text
from grpobench.analysis.figures.scales import plain, scale_of, ticks_at
from grpobench.analysis.figures.style import COLUMN, PALETTE, STYLE, TEXT, _Cutter, cut_in_two_steps, look
from grpobench.analysis.report.catalog import FIGURES
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.tools.text import escape
from grpobench.runs import cli
from grpobench.runs.metrics.catalog import catalog

SMALL = {"steps": 6, "every": 3, "problems": 4, "test_problems": 8}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 arms × 2 tasks × 3 seeds; in one run the critic explains −100 once."""
    spiked = {("arithmetic", 2, 4): -100.0}
    made = Synthetic(
        **SMALL,  # type: ignore[arg-type]
        arms=("grpo", "dapo", "ppo"),
        tasks=("arithmetic", "nanobias"),
        explained=lambda task, seed, step: spiked.get((task, seed, step), 0.1 * seed + 0.01 * step),
    )
    return made.write(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def experiment(root: Path) -> Experiment:
    return load(root)


def drawn(experiment: Experiment, name: str, sheet: object = TEXT) -> Drawing:
    drawing = FIGURES[name](experiment, sheet)  # type: ignore[arg-type]
    assert drawing is not None
    return drawing


def test_style_and_colors_are_seaborns_but_for_what_is_ours() -> None:
    ours = {"font.family", "axes.grid", "grid.color", "axes.spines.right", "axes.spines.top"}
    unused = {"font.sans-serif", "image.cmap"}
    theirs = {name: value for name, value in sns.axes_style("ticks").items() if name not in ours | unused}
    assert {name: STYLE[name] for name in theirs} == theirs
    assert list(PALETTE) == sns.color_palette("colorblind", 10).as_hex()


def test_no_two_of_fifty_arms_look_the_same_and_ten_differ_without_color() -> None:
    arms = [f"arm {index}" for index in range(50)]
    style = look(arms)
    assert len({(to_rgb(style.color[arm]), style.dash[arm]) for arm in arms}) == 50
    assert len({(style.dash[arm], style.marker[arm]) for arm in arms[:10]}) == 10
    assert all(style.dash[a] != style.dash[b] for a, b in itertools.pairwise(arms[:10]))


def test_curves_of_arms_differ_in_line_style_and_marker(experiment: Experiment) -> None:
    axes = drawn(experiment, "reward").figure.axes[0]
    labeled_lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    looks = {(str(line.get_linestyle()), line.get_marker(), line.is_dashed()) for line in labeled_lines}
    assert len(labeled_lines) == len(looks) == 3


@pytest.mark.parametrize("letters", ["a", "fi ffl: 10⁻⁵ ± ½, “Ünïcode” ≤ ÅÉ", "−ﬀ"])
def test_a_font_cut_in_two_steps_has_the_bytes_of_one_cut_at_once(letters: str) -> None:
    path = findfont("DejaVu Sans")
    glyph_by_letter = FT2Font(path).get_charmap()

    def cut() -> tuple[bytes, dict[int, int]]:
        with _backend_pdf_ps.get_glyphs_subset(
            path, {glyph_by_letter[ord(letter)] for letter in letters}
        ) as subset:  # type: ignore[arg-type]
            return _backend_pdf_ps.font_as_file(subset.font).getvalue(), dict(subset.glyph_index_map)

    at_once = cut()
    with cut_in_two_steps():
        assert isinstance(_backend_pdf_ps.get_glyphs_subset, _Cutter)  # what pdf_bytes will call
        assert cut() == at_once
        letters += "Ж"  # which the first cut has not
        beside = cut()
    assert beside == cut()


def test_an_outlier_does_not_flatten_a_panel() -> None:
    scale = scale_of(np.r_[np.linspace(0, 0.5, 60), -100.0])
    assert -0.1 < scale.low < 0 and 0.5 < scale.high < 0.6  # 6 % of room on either side
    # ten values of which one is far off are more than a twentieth: they are what the panel shows
    assert scale_of([0.0] * 8 + [50.0] * 2).high > 50


def test_the_figure_says_where_and_how_far_means_lie_outside(experiment: Experiment) -> None:
    """One seed of three explains −100 at step 4, the others .14 and .34: a mean of −33."""
    drawing = drawn(experiment, "explained_variance")
    axes = drawing.figure.axes[0]
    assert axes.get_ylim()[0] > -2
    assert "down to −33" in [text.get_text() for text in axes.texts]
    assert "A triangle at an edge marks means beyond it." in drawing.caption
    marks = [line for line in axes.get_lines() if line.get_marker() == "v" and not line.get_clip_on()]
    assert [list(np.asarray(line.get_xdata())) for line in marks] == [[4.0]]


def test_numbers_of_an_axis_need_no_factor_in_the_corner() -> None:
    assert [plain(v) for v in (0, 0.25, 4000, 2e-5, -1e-5, 1e6)] == [
        "0",
        "0.25",
        "4,000",
        "2·10⁻⁵",
        "−10⁻⁵",
        "10⁶",
    ]


def test_panels_of_one_metric_have_one_scale(experiment: Experiment) -> None:
    assert len({axes.get_ylim() for axes in drawn(experiment, "kl").figure.axes}) == 1
    panels = drawn(experiment, "entropy").figure.axes
    assert panels[0].get_ylim() == panels[2].get_ylim()  # the same row, another task


def test_figures_keep_their_width_legible_letters_and_words_for_metrics(
    experiment: Experiment,
) -> None:
    for name in FIGURES:
        for sheet in (COLUMN, TEXT) if name in ("final_accuracy", "bias", "kl") else (COLUMN,):
            drawing = FIGURES[name](experiment, sheet)
            if drawing is None:
                continue
            figure = drawing.figure
            assert figure.get_figwidth() == sheet.width
            assert figure.get_figheight() <= 9, name  # with its caption, what a page has room for
            slug = r"\b(policy|trained|groups|reward|length|critic|grad_norm)/"
            assert not re.search(slug, drawing.caption), name
            for axes in figure.axes:  # no 1e−5 in the corner
                assert (
                    axes.yaxis.get_offset_text().get_text() == axes.xaxis.get_offset_text().get_text() == ""
                )
            sizes = [
                label.get_fontsize()
                for axes in figure.axes
                for label in [*axes.get_xticklabels(), axes.xaxis.label, axes.title, *axes.texts]
                if label.get_text()
            ]
            assert min(sizes) >= 6.5, name
            box = figure.get_tightbbox(figure.canvas.get_renderer())  # type: ignore[attr-defined]
            # text may stand over the edge by the line that renderers add, not by a letter
            assert box.x0 > -0.03 and box.x1 < figure.get_figwidth() + 0.03, name


def test_arms_are_named_in_a_legend_and_no_line_leads_to_a_name(experiment: Experiment) -> None:
    for name in ("accuracy_updates", "reward"):
        figure = drawn(experiment, name).figure
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["grpo", "dapo", "ppo"]
        assert not [text for axes in figure.axes for text in axes.texts if isinstance(text, Annotation)]


def test_a_band_is_the_t_interval_of_the_mean_and_no_seed_has_a_line(experiment: Experiment) -> None:
    axes = drawn(experiment, "reward").figure.axes[0]
    assert len(axes.collections) == 3 and len(axes.get_lines()) == 3  # a band and a mean per arm
    rows = experiment.select("reward/mean").query("arm == 'grpo' and task == 'arithmetic' and step == 4")
    values = rows["value"].to_numpy()
    low, high = stats.t.interval(0.95, 2, values.mean(), stats.sem(values))
    (band,) = axes.collections[0].get_paths()
    heights = sorted({float(y) for x, y in band.vertices if x == 4})
    assert [heights[0], heights[-1]] == pytest.approx([low, high], rel=1e-9)


def test_few_evaluations_have_bars_and_ticks_at_their_steps(experiment: Experiment) -> None:
    drawing = drawn(experiment, "accuracy_updates")
    axes = drawing.figure.axes[0]
    assert list(axes.get_xticks()) == [0, 3, 6]
    bars = [
        collection.get_segments() for collection in axes.collections if isinstance(collection, LineCollection)
    ]
    assert [len(segments) for segments in bars] == [3, 3, 3]
    assert "Bars are 95% t intervals of the mean over seeds" in drawing.caption


@pytest.mark.parametrize(
    ("steps", "most", "ticks"),
    [
        ([0, 5, 10], 5, [0, 5, 10]),
        (list(range(0, 101, 10)), 6, [0, 20, 40, 60, 80, 100]),  # every second, with the last
        (list(range(0, 71, 10)), 4, [0, 30, 60]),  # 7 steps: every third, though the last has no tick
        ([0, 2, 3, 40], 3, [0, 40]),  # where data stand, however uneven
    ],
)
def test_ticks_stand_at_data(steps: list[float], most: int, ticks: list[float]) -> None:
    axes = Figure().add_subplot()
    axes.plot(steps, steps)
    ticks_at(axes, steps, most)
    assert list(axes.get_xticks()) == ticks


def test_svg_tells_the_values_of_a_curve_and_of_a_mean(experiment: Experiment) -> None:
    titles = re.findall(r"<title>([^<]*)</title>", svg_text(drawn(experiment, "accuracy_updates")))
    assert len(titles) == 6
    frame = experiment.select("eval/validation/greedy/correct").query(
        "arm == 'grpo' and task == 'arithmetic'"
    )
    mean = frame.groupby("step")["value"].mean()
    value_text = ", ".join(f"{step}: {plain(float(f'{100 * value:.3g}'))}" for step, value in mean.items())
    assert titles[0] == f"grpo on arithmetic, mean of 3 seeds. {value_text}"
    assert 'id="tip' not in svg_text(drawn(experiment, "final_accuracy"))


def test_the_command_writes_figures_with_captions_in_order_of_a_list(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "paper"
    words = ["--width", "column", "--format", "pdf,svg", "--out", str(out)]
    assert cli.main(["figure", "kl", str(root), *words]) == 0
    endings = ("pdf", "svg", "tex", "txt")
    assert capsys.readouterr().out.split() == [str(out / f"kl.{ending}") for ending in endings]
    tex = (out / "kl.tex").read_text()
    assert r"\includegraphics{kl.pdf}" in tex and r"\label{fig:kl}" in tex and "3.4 inches" in tex
    assert r"\caption{Divergence of the policy. KL to old policy (nats/token): " in tex
    assert "figure*" not in tex and r"% \graphicspath{{figures/}}" in tex
    first = (out / "kl.pdf").read_bytes()
    assert cli.main(["figure", "kl", str(root), *words]) == 0
    assert (out / "kl.pdf").read_bytes() == first
    assert 'width="244.8pt"' in (out / "kl.svg").read_text()  # 3.4 inches of 72 points


def test_the_command_names_what_it_cannot_draw(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, message in (
        (["kll", str(root)], "figure: unknown name 'kll'; did you mean kl?"),
        (["kl", str(tmp_path / "none")], "no such folder"),
        (["kl", str(root), "--format", "pdff"], "--format: unknown format 'pdff'; did you mean pdf?"),
        (["survival", str(root)], "the logs have no data for survival"),
    ):
        assert cli.main(["figure", *words, "--out", str(tmp_path / "out")]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr(files.shutil, "which", lambda name: None)
    assert cli.main(["figure", "kl", str(root), "--format", "pgf", "--out", str(tmp_path / "out")]) == 2
    assert "pgf needs LaTeX (lualatex, xelatex, pdflatex)" in capsys.readouterr().err


def test_the_list_of_figures_is_that_of_the_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "figures"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(FIGURES)


def test_captions_hold_no_letter_that_latex_has_only_as_a_command() -> None:
    for metric in catalog().values():
        assert escape(metric.definition).isascii(), metric
    assert escape("π_old ≥ 2·10⁻⁵") == r"$\pi$\_old $\geq$ 2$\cdot$10$^{-}$$^{5}$"


def test_values_beyond_what_a_scale_can_be_computed_from_are_drawn(experiment: Experiment) -> None:
    """As of a run on its way to a divergence."""
    frame = experiment.metrics.copy()
    ours = (frame["metric"] == "reward/mean") & (frame["step"] > 4)
    frame.loc[ours & (frame["seed"] == 1), "value"] = 1e308
    frame.loc[ours & (frame["seed"] == 2), "value"] = -1e308
    drawing = FIGURES["reward"](replace(experiment, metrics=frame))
    assert drawing is not None
    low, high = drawing.figure.axes[0].get_ylim()
    assert math.isfinite(low) and math.isfinite(high) and svg_text(drawing)
