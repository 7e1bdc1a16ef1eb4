"""What goes into a paper: figures of exact widths under names of one's own, captions, the table, the
methods."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from helpers.synthetic import Synthetic
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font
from scipy import stats

from grpobench.algorithms import ALGORITHMS
from grpobench.analysis.figures.sheets import FAMILIES, WIDTHS, takes_both_columns
from grpobench.analysis.figures.style import use_bundled_fonts
from grpobench.analysis.report.catalog import FIGURES
from grpobench.analysis.report.facts import gather
from grpobench.analysis.report.methods import describe_methods, methods_tex
from grpobench.analysis.report.text import make_bibtex
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.statistics.comparison import compare
from grpobench.analysis.statistics.intervals import seed_mean, seed_means
from grpobench.analysis.statistics.survival import kaplan_meier, restricted_mean
from grpobench.analysis.tools.text import human
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.paper import FinalAccuracy, accuracy_tex, entries, unbeaten, width_of
from grpobench.analysis.topics.parts import Shown
from grpobench.analysis.topics.training import list_constant
from grpobench.runs import cli
from grpobench.runs.api.results import Results
from grpobench.runs.commands.reports import labels_in
from grpobench.runs.inventory.labels import algorithm_labels, labels_of

SMALL = {"steps": 6, "every": 3, "problems": 4, "test_problems": 8}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 arms × 2 tasks × 3 seeds."""
    made = Synthetic(**SMALL, arms=("grpo", "gspo-hot", "ppo"), tasks=("arithmetic", "nanobias"))  # type: ignore[arg-type]
    return made.write(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def results(root: Path) -> Results:
    return Results(load(root))


def box(path: Path) -> tuple[float, float]:
    """Width and height of a PDF's page in inches."""
    match = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", path.read_bytes())
    assert match
    return float(match[1]) / 72, float(match[2]) / 72


# Widths and fonts


@pytest.mark.parametrize(("name", "width"), [("final_accuracy", "text"), ("accuracy_updates", "2")])
def test_a_pdf_is_as_wide_as_asked(results: Results, tmp_path: Path, name: str, width: str) -> None:
    results.figure(name, tmp_path / "one.pdf", width)
    assert box(tmp_path / "one.pdf")[0] == pytest.approx(WIDTHS.get(width) or float(width), abs=1e-6)


@pytest.mark.parametrize(("width", "tasks"), [("text", ("arithmetic",)), ("column", ())])
def test_few_tasks_fill_the_width_as_well(results: Results, width: str, tasks: Sequence[str]) -> None:
    for name in ("final_accuracy", "entropy", "seconds"):
        figure = results.figure(name, width=width, tasks=tasks)
        assert figure.get_figwidth() == WIDTHS[width]
        right = max(axes.get_position().x1 for axes in figure.axes)
        left = min(axes.get_position().x0 for axes in figure.axes)
        assert right > 0.93 and left < 0.4, name  # panels, not space, take the width


def test_panels_stand_side_by_side_where_they_fit_and_below_each_other_elsewhere(results: Results) -> None:
    def columns(width: str) -> int:
        figure = results.figure("accuracy_updates", width=width)
        return len({round(axes.get_position().x0, 2) for axes in figure.axes})

    assert (columns("text"), columns("3.4"), columns("2.4")) == (2, 2, 1)
    one_task = results.figure("entropy", width="text", tasks=["arithmetic"])  # two metrics of one task
    assert len({round(axes.get_position().x0, 2) for axes in one_task.axes}) == 2


def test_letters_have_the_size_and_the_font_asked_for_and_six_points_at_least(results: Results) -> None:
    for font, family, size in (("serif 10", "STIXGeneral", 10.0), ("7.5", "DejaVu Sans", 7.5)):
        for name in ("accuracy_updates", "differences"):
            figure = results.figure(name, width="column", font=font)
            axes = figure.axes[0]
            assert axes.xaxis.label.get_fontsize() == size
            assert axes.xaxis.label.get_fontfamily()[0] == family
            texts = figure.findobj(match=lambda artist: hasattr(artist, "get_fontsize"))
            assert min(text.get_fontsize() for text in texts if text.get_text()) >= 6, name  # type: ignore[attr-defined]


def test_only_widths_of_both_columns_are_floats_of_both(root: Path, tmp_path: Path) -> None:
    assert [name for name in WIDTHS if takes_both_columns(name)] == ["text", "icml-text", "acl-text"]
    for width, float_name in (("neurips", "figure"), ("acl-text", "figure*")):
        assert cli.main(["figure", "reward", str(root), "--width", width, "--out", str(tmp_path)]) == 0
        assert f"\\begin{{{float_name}}}[t]" in (tmp_path / "reward.tex").read_text()


# Names and parts


def test_algorithms_are_called_as_papers_write_them() -> None:
    labels = algorithm_labels()
    assert set(labels) == set(ALGORITHMS) and len(set(labels.values())) == len(labels)
    chosen = {name: labels[name] for name in ("grpo", "dr_grpo", "reinforce_pp", "ngrpo")}
    assert [*chosen.values()] == ["GRPO", "Dr. GRPO", "REINFORCE++", "N-GRPO"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grpo", "GRPO"),
        ("grpo-rate-x9", "GRPO rate x9"),
        ("grpos", "grpos"),  # another name
        ("dr_grpo", "Dr. GRPO"),  # the longest name that begins it
        ("kl-0_001", "KL 0.001"),
        ("grpo+learning_rate-1e-4+name-nano-moe", "GRPO, learning rate 1e-4, nano MoE"),
        ("shared-trunk", "shared trunk"),
    ],
)
def test_names_become_words(name: str, words: str) -> None:
    assert human(name, {"grpo": "GRPO", "dr_grpo": "Dr. GRPO", "dr": "?"}) == words


def test_two_names_never_become_one() -> None:
    assert labels_of(["a-b", "a_b", "grpo"]) == {"a-b": "a-b", "a_b": "a_b", "grpo": "GRPO"}


def test_labels_are_read_with_commas_inside() -> None:
    assert labels_in("grpo=GRPO,ppo=PPO (critic)") == {"grpo": "GRPO", "ppo": "PPO (critic)"}
    assert labels_in("ppo=PPO, with critic, grpo=GRPO") == {"ppo": "PPO, with critic", "grpo": "GRPO"}


def test_the_command_draws_a_part_under_other_names(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--tasks", "nanobias", "--arms", "ppo,grpo", "--labels", "ppo=PPO (critic),nanobias=Bias"]
    command = ["figure", "accuracy_updates", str(root), *words, "--format", "svg", "--out", str(tmp_path)]
    assert cli.main(command) == 0
    capsys.readouterr()
    titles = re.findall(r"<title>([^<]*)</title>", (tmp_path / "accuracy_updates.svg").read_text())
    assert [title.partition(",")[0] for title in titles] == ["GRPO on Bias", "PPO (critic) on Bias"]


def test_a_part_keeps_colors_in_order_and_p_values_of_all_pairs(root: Path) -> None:
    numbers = Numbers(load(root))
    part, _ = numbers.showing(Shown(("grpo", "ppo"), ("arithmetic",), {"ppo": "P", "arithmetic": "A"})).drawn
    assert part.experiment.arms == ("grpo", "P") and part.experiment.tasks == ("A",)
    (mine,) = part.compared
    (full_pair,) = (
        p for p in numbers.compared if (p.task, p.first, p.second) == ("arithmetic", "grpo", "ppo")
    )
    assert repr(mine) == repr(replace(full_pair, task="A", second="P"))  # NaN is not equal to itself
    assert set(part.runs["arm"]) == {"grpo", "P"} and set(part.costs["task"]) == {"A"}
    ours = numbers.runs.query("arm == 'ppo' and task == 'arithmetic'")["final"].to_numpy()
    np.testing.assert_array_equal(part.runs.query("arm == 'P'")["final"], ours)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "nanobais"], "no task 'nanobais' in these results; did you mean 'nanobias'?"),
        (["--arms", "grpo,gppo"], "no arm 'gppo' in these results; did you mean"),
        (["--labels", "pppo=PPO"], "no arm or task 'pppo' in these results; did you mean 'ppo'?"),
        (["--labels", "ppo"], "--labels: 'ppo' is no NAME=LABEL"),
        (["--labels", "ppo=GRPO"], "two arms or tasks are called 'GRPO'"),
        (["--width", "txt"], "unknown width 'txt' (did you mean 'text'?); a number is inches"),
        (["--width", "1"], "width 1: a figure is drawn from 2 to 20 inches wide"),
        (["--font", "sreif"], "no font 'sreif' is installed; did you mean 'serif'?"),
        (["--font", "5"], "font: 5 pt; choose 7.5 to 16"),
    ],
)
def test_the_command_refuses_unknown_names_and_says_the_nearest(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(["figure", "reward", str(root), *words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()


# Captions


def test_captions_say_seeds_problems_intervals_and_units(results: Results) -> None:
    drawn = [kind(results._numbers) for kind in FIGURES.values()]
    captions = {drawing.name: drawing.caption for drawing in drawn if drawing is not None}
    assert len(captions) > 14
    for name, text in captions.items():
        assert re.search(r"\b3 (paired )?seeds\b", text), name
        assert re.search(r"interval", text), name
        assert re.search(r"%|share|nats|tokens|seconds|points|reward|norm|groups|GB", text), name
        assert "policy/" not in text and "gspo-hot" not in text, name
    evaluated = ("final_accuracy", "accuracy_updates", "accuracy_tokens", "accuracy_seconds", "bias_updates")
    problems = {"final_accuracy": "8 test problems"}
    for name in evaluated:
        assert problems.get(name, "4 validation problems") in captions[name], name
    assert "each over 8 shared problems" in captions["differences"]
    assert "16 prompts × 8 completions" in captions["entropy"]
    assert "Bands are pointwise 95% t intervals of the mean over seeds" in captions["entropy"]


def test_one_seed_has_no_interval_to_speak_of(tmp_path: Path) -> None:
    made = Synthetic(**SMALL, arms=("a",), tasks=("arithmetic",), seeds=(1,))  # type: ignore[arg-type]
    assert cli.main(["figure", "reward", str(made.write(tmp_path)), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "reward.txt").read_text()
    assert "means over 1 seed per arm and task. One seed has no interval." in text


# What never changes is left out


def constant_run(folder: Path, **values: float) -> Path:
    """Two arms on two tasks; metrics with a constant value."""
    made = Synthetic(**SMALL, arms=("grpo", "dapo"), tasks=("arithmetic", "function"))  # type: ignore[arg-type]
    root = made.write(folder)
    for path in root.glob("*/metrics.jsonl"):
        text = path.read_text()
        for name, value in values.items():
            metric = name.replace("__", "/")
            text = re.sub(rf'"{metric}": [-\d.e]+', f'"{metric}": {value}', text)
        path.write_text(text)
    return root


def test_a_constant_panel_is_left_out_and_the_caption_names_it(tmp_path: Path) -> None:
    results = Results(load(constant_run(tmp_path, policy__clip_low=0.0)))
    figure = results.figure("clip")
    assert [axes.get_ylabel() for axes in figure.axes if axes.get_ylabel()] == [
        "clipped high\n(share of tokens)"
    ]
    results.write_figures(tmp_path / "out", ["clip"])
    note = "Left out, because the same at every update of every run: clipped low (0)."
    assert note in (tmp_path / "out" / "clip.txt").read_text()


def test_a_constant_figure_is_not_drawn_and_the_report_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = constant_run(tmp_path, policy__clip_low=0.0, policy__clip_high=0.25)
    note = "Clipped tokens: not drawn. Left out, because the same at every update of every run: "
    assert list_constant(load(root)) == [f"{note}clipped low (0), clipped high (0.25)."]
    assert cli.main(["figure", "clip", str(root), "--out", str(tmp_path / "out")]) == 2
    assert note in capsys.readouterr().err


def test_a_panel_that_is_constant_on_one_task_says_its_value(tmp_path: Path) -> None:
    root = constant_run(tmp_path)
    for path in root.glob("*-function-*/metrics.jsonl"):
        path.write_text(re.sub(r'"reward/mean": [-\d.e]+', '"reward/mean": 0.5', path.read_text()))
    axes = {panel.get_title(): panel for panel in Results(load(root)).figure("reward").axes}
    assert [text.get_text() for text in axes["function"].texts] == ["0.5 throughout"]
    assert not axes["function"].get_lines() and axes["arithmetic"].get_lines()


# Axes


def test_the_base_does_not_squeeze_the_axis(tmp_path: Path) -> None:
    """Arms end at 60 to 70 %, 40 points above their base: the title and an upper axis tell the base."""
    made = Synthetic(
        **SMALL,  # type: ignore[arg-type]
        arms=("a", "b"),
        tasks=("arithmetic",),
        accuracy=lambda arm, task, seed: 0.6 + 0.02 * seed + 0.04 * (arm == "b"),
    )
    results = Results(load(made.write(tmp_path)))
    (axes,) = results.figure("final_accuracy").axes
    base = 100 * results.runs["base"].mean()
    assert axes.get_xlim()[0] > 55 and base < 25
    assert axes.get_title() == f"arithmetic\nbefore training: {100 * results.runs['base'].min():.1f} %" or (
        "before training" in axes.get_title()
    )
    (upper,) = (child for child in axes.child_axes)
    low, high = axes.get_xlim()
    assert upper.get_xlim() == pytest.approx((low - base, high - base), abs=1e-6)


def test_bands_of_a_reward_that_is_the_verdict_stay_between_0_and_1(tmp_path: Path) -> None:
    """Two seeds far apart: their t interval is wider than what a share can be."""
    made = Synthetic(
        **SMALL,  # type: ignore[arg-type]
        arms=("a",),
        tasks=("arithmetic",),
        seeds=(1, 2),
        accuracy=lambda arm, task, seed: 0.9 if seed == 1 else 0.3,
    )
    root = made.write(tmp_path)
    (axes,) = Results(load(root)).figure("reward").axes
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == 0 and heights.max() == 1
    for path in root.glob("*/metrics.jsonl"):  # another reward, whose bounds no log has
        path.write_text(path.read_text().replace('"reward/mean": 0.', '"reward/mean": 7.'))
    (axes,) = Results(load(root)).figure("reward").axes
    assert axes.collections[0].get_paths()[0].vertices[:, 1].max() > 7.9


def test_intervals_of_many_steps_are_those_of_each() -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(6, 5))
    table[2, 1:] = np.nan
    table[3, :2] = np.nan
    mean, low, high = seed_means(table)
    for row, *step_interval in zip(table, mean, low, high, strict=True):
        expected = seed_mean(row[np.isfinite(row)])
        np.testing.assert_allclose(step_interval, [expected.value, expected.low, expected.high], rtol=1e-12)
    assert np.isnan(low[2]) and np.isfinite(mean[2])


# How long runs last


def test_restricted_mean_is_the_area_below_kaplan_meier() -> None:
    """Collapses at 5 and 8 of four runs, one censored at 8, one at the horizon 10: .75 from 5 on, .5 from 8
    on, so 5 + 3·.75 + 2·.5 = 8.25. Greenwood: 3.25²/(4·3) + 1²/(3·2) = 1.0469, times 4/3."""
    steps, collapsed = [5, 8, 8, 10], [True, False, True, False]
    mean = restricted_mean(steps, collapsed, 10)
    assert mean.value == 8.25
    error = (1.046875 * 4 / 3) ** 0.5 * 10 / (8.25 * 1.75)
    center = np.log(8.25 / 1.75)
    ends = [center - stats.t.ppf(0.975, 3) * error, center + stats.t.ppf(0.975, 3) * error]
    assert [mean.low, mean.high] == pytest.approx([10 / (1 + np.exp(-end)) for end in ends], rel=1e-4)
    curve = kaplan_meier(steps, collapsed)
    assert list(curve.shares) == [0.75, 0.5]


def test_restricted_mean_of_runs_that_collapse_has_the_error_of_a_mean() -> None:
    """Without censoring before the horizon Greenwood's variance is that of a mean of the runs."""
    lasted = [12.0, 30.0, 44.0, 60.0, 60.0]
    restricted = restricted_mean(lasted, [True, True, True, False, False], 60)
    assert restricted.value == pytest.approx(np.mean(lasted))
    mean, error = np.mean(lasted), stats.sem(lasted)
    half = stats.t.ppf(0.975, 4) * error * 60 / (mean * (60 - mean))
    logit = np.log(mean / (60 - mean))
    assert restricted.high == pytest.approx(60 / (1 + np.exp(-logit - half)))


@pytest.mark.parametrize("seed", range(6))
def test_an_interval_of_lifetimes_lies_within_the_horizon(seed: int) -> None:
    """135 of 120 updates was printed once: the t interval of these runs goes there."""
    rng = np.random.default_rng(seed)
    lasted = np.minimum(rng.exponential(150, size=8), 120).round()
    mean = restricted_mean(lasted, lasted < 120, 120)
    assert 0 < mean.value <= 120
    if np.isfinite(mean.low):
        assert 0 < mean.low < mean.value < mean.high < 120


# The table


def by_seed(**arms: Sequence[float]) -> dict[str, dict[int, float]]:
    return {arm: dict(enumerate(scores)) for arm, scores in arms.items()}


def test_the_best_is_marked_by_the_tests_and_not_by_its_digits() -> None:
    """By hand, eight seeds: b has the highest mean, but a beats it on half of the seeds, so the test cannot
    tell them apart, and both are marked. c is below each of them on every seed: p = 2/2⁸, worse, and not
    marked."""
    scores = by_seed(
        a=[0.60, 0.66, 0.62, 0.68, 0.61, 0.67, 0.63, 0.69],
        b=[0.66, 0.61, 0.68, 0.63, 0.67, 0.62, 0.70, 0.64],
        c=[0.50, 0.51, 0.52, 0.53, 0.51, 0.52, 0.53, 0.54],
    )
    means = {arm: np.mean([*values.values()]) for arm, values in scores.items()}
    assert max(means, key=lambda arm: means[arm]) == "b" and means["a"] < means["b"]
    pairs = compare("task", scores)
    assert {(p.first, p.second): p.verdict for p in pairs} == {
        ("a", "b"): "unresolved",
        ("a", "c"): "better",
        ("b", "c"): "better",
    }
    assert unbeaten(scores, pairs) == {"a", "b"}


def test_nothing_is_marked_where_the_tests_tell_nothing_apart() -> None:
    scores = by_seed(a=[0.9, 0.8, 0.9], b=[0.1, 0.2, 0.1])  # three seeds can show nothing
    assert unbeaten(scores, compare("task", scores)) == set()


@pytest.mark.parametrize(
    ("entry", "cell"),
    [
        (FinalAccuracy(0.665, 0.654, 0.676, 8, 0, True), r"\textbf{66.5} $\pm$ 1.1"),
        (FinalAccuracy(0.665, 0.654, 0.676, 8, 1, False), r"66.5 $\pm$ 1.1$^\dagger$"),
        (FinalAccuracy(0.985, 0.954, 1.0, 8, 0, False), r"98.5 $^{+1.5}_{-3.1}$"),  # cut at 100 %
        (FinalAccuracy(0.5, float("nan"), float("nan"), 1, 0, False), "50.0"),
        (FinalAccuracy(float("nan"), float("nan"), float("nan"), 0, 3, False), "--"),
    ],
)
def test_cells_of_the_table(entry: FinalAccuracy, cell: str) -> None:
    assert entry.tex == cell


def marked_experiment(folder: Path, **changes: object) -> Path:
    """Eight seeds; `low` is below the others on every seed."""

    def accuracy(arm: str, task: str, seed: int) -> float:
        noise = 0.01 * ((seed * (3 if arm == "grpo" else 5)) % 8)
        return (0.4 if arm == "low" else 0.6) + noise

    shape = {"arms": ("grpo", "ppo", "low"), "tasks": ("arithmetic",), "seeds": tuple(range(1, 9))}
    return Synthetic(**SMALL, **{**shape, "accuracy": accuracy, **changes}).write(folder)  # type: ignore[arg-type]


def test_the_table_of_an_experiment_marks_means_and_says_why(tmp_path: Path) -> None:
    root = marked_experiment(tmp_path, states={("ppo", "arithmetic", 3): ("crashed", 2)})
    numbers = Numbers(load(root), Shown(labels={"grpo": "GRPO", "arithmetic": "Sums"}))
    text = accuracy_tex(numbers)
    cells = {line.split("&")[0].strip(): line for line in text.splitlines() if line.endswith(r"\\")}
    assert r"\textbf" in cells["GRPO"] and r"\textbf" not in cells["low"]
    assert r"$^\dagger$" in cells["ppo"] and r"\textbf" not in cells["ppo"]  # its pairs wait for a run
    assert "before training" in cells and "Sums" in text
    assert r"Final accuracy in \%, mean over 7 to 8 seeds per arm $\pm$ half of the 95\% t interval" in text
    assert "8 test problems" in text and "no arm that it is compared with is better" in text
    shown = entries(numbers.drawn[0])
    assert [entry.waiting for entry in shown.values()] == [0, 1, 0]


def test_many_tasks_stand_in_tables_below_each_other(tmp_path: Path) -> None:
    tasks = tuple(f"task{number}" for number in range(7))
    root = Synthetic(**SMALL, arms=("grpo", "ppo"), tasks=tasks, seeds=(1, 2)).write(tmp_path)  # type: ignore[arg-type]
    text = accuracy_tex(Numbers(load(root)))
    heads = re.findall(r"\\begin\{tabular\}\{@\{\}l(r+)@\{\}\}", text)
    assert len(heads) > 1 and sum(map(len, heads)) == 7
    for lines in re.findall(r"\\toprule(.*?)\\bottomrule", text, re.DOTALL):
        rows = [line.removesuffix(r"\\").split("&") for line in lines.splitlines() if line.endswith(r"\\")]
        plain = [[plainly(cell) for cell in row] for row in rows]
        width = sum(max(map(width_of, column)) for column in zip(*plain, strict=True))
        assert width + (len(plain[0]) - 1) * 8 / 72 <= min(WIDTHS.values())


def plainly(cell: str) -> str:
    """A cell as it is printed; both ends of a cut interval stand above each other in smaller letters."""
    text = re.sub(r"\\textbf\{(.*?)\}", r"\1", cell).replace(r"$\pm$", "±").strip()
    return re.sub(r" \$\^\{\+(.*?)\}_\{-(.*?)\}\$", lambda ends: " ±" + max(ends[1], ends[2], key=len), text)


# The methods paragraph


def test_methods_name_what_a_reader_needs(tmp_path: Path) -> None:
    root = marked_experiment(tmp_path, states={("low", "arithmetic", 2): ("diverged", 4)})
    facts = gather(Numbers(load(root), Shown(labels={"grpo": "GRPO"})))
    text = describe_methods(facts, {"grpo": "DeepSeekMath, arXiv:2402.03300"})
    for words in (
        "We trained GRPO, ppo, low on arithmetic with 8 seeds (1 to 8) per arm, from the policy nano in ",
        "Sources of algorithms: GRPO (DeepSeekMath, arXiv:2402.03300).",
        "A step samples 16 prompts with 8 completions each",
        "a run has 6 steps",
        "generated tokens and",
        "Learning rates: policy 0.0001 (GRPO, low), 5e-05 (ppo)",
        "Rewards: task with weights correct 1",
        "exact two-sided sign-flip permutation test at 5%",
        "Arms show no difference of 2 points or more if two one-sided tests of the same kind",
        "and the 95% t interval over seeds lies inside the margin",
        "A run that diverges counts as 0. 1 of 24 runs diverged and count as 0.",
        "torch 2.13.0",
    ):
        assert words in text, words


def test_every_citation_of_the_methods_is_an_entry_and_every_entry_is_cited(tmp_path: Path) -> None:
    experiment = load(marked_experiment(tmp_path))
    papers = {"grpo": "Deep_Seek & Math, arXiv:2402.03300", "ppo": "an unpublished note"}
    tex = methods_tex(gather(Numbers(experiment)), papers)
    cited = set(re.findall(r"~\\cite\{(.*?)\}", tex))
    assert cited == set(re.findall(r"@misc\{(.*?),", make_bibtex(experiment, papers)))
    assert "grpo~\\cite{arxiv-2402.03300}" in tex and "torch 2.13.0" in tex and "Deep" not in tex
    assert "ppo (an unpublished note)" in tex


def test_methods_and_figures_name_the_control_by_its_label(tmp_path: Path) -> None:
    experiment = replace(load(marked_experiment(tmp_path)), control="ppo")
    numbers = Numbers(experiment, Shown(labels={"ppo": "PPO"}))
    assert "Each arm is compared with PPO in pairs of equal seeds" in describe_methods(gather(numbers), {})
    assert numbers.drawn[0].experiment.control == "PPO"
    assert {pair.first for pair in numbers.drawn[0].compared} == {"PPO"}


# LaTeX


def document(width: float, parts: Sequence[str]) -> str:
    """A paper of two columns of `width` inches."""
    return "\n".join(
        [
            r"\documentclass[10pt,twocolumn]{article}",
            r"\usepackage{graphicx,booktabs}",
            rf"\setlength{{\columnsep}}{{0.25in}}\setlength{{\textwidth}}{{{2 * width + 0.25}in}}",
            r"\setlength{\oddsidemargin}{-0.5in}",
            r"\begin{document}",
            *(rf"\input{{{part}}}" for part in parts),
            r"\end{document}",
        ]
    )


def compiled(folder: Path, width: float, parts: Sequence[str]) -> str:
    (folder / "paper.tex").write_text(document(width, parts))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_a_paper_of_two_figures_and_the_table_has_no_overfull_box(tmp_path: Path) -> None:
    root = marked_experiment(tmp_path)
    out = tmp_path / "paper"
    for name in ("final_accuracy", "accuracy_tokens"):
        assert cli.main(["figure", name, str(root), "--width", "acl", "--out", str(out)]) == 0
    facts = gather(Numbers(load(root)))
    (out / "table.tex").write_text(accuracy_tex(facts.numbers))
    log = compiled(out, WIDTHS["acl"], ["final_accuracy", "accuracy_tokens", "table"])
    assert "Overfull" not in log


def test_kept_figures_were_drawn_with_the_bundled_fonts() -> None:
    """`grpobench docs` draws the same bytes on every machine: another copy of DejaVu Sans, which a machine
    may have too, numbers its glyphs otherwise."""
    bundled = FT2Font(str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")))
    minus = f'"DejaVuSans-{bundled.get_char_index(ord("−")):x}"'
    texts = {
        path: path.read_text(encoding="utf-8") for path in (Path(__file__).parents[2] / "docs").rglob("*.svg")
    }
    signed = [path for path, text in texts.items() if "<!-- −" in text]
    assert signed and [path for path in signed if minus not in texts[path]] == []


def test_bundled_fonts_win_over_a_cache_that_lacks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A font that the machine has too comes first in such a cache, as where another installation wrote it."""
    manager, folder = font_manager.fontManager, matplotlib.get_data_path()
    bundled = [font for font in manager.ttflist if font.fname.startswith(folder)]
    elsewhere = [replace(font, fname="/elsewhere.ttf") for font in bundled if "DejaVu" in font.name]
    monkeypatch.setattr(manager, "ttflist", elsewhere)
    use_bundled_fonts()
    for family in FAMILIES.values():
        assert manager.findfont(family, rebuild_if_missing=False).startswith(folder)
    before = list(manager.ttflist)
    use_bundled_fonts()
    assert manager.ttflist == before
