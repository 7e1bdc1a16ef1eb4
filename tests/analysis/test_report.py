"""The report from logs alone: failures counted, no claim beyond the seeds, a page that stands by itself."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.edits import edit_rows
from helpers.logs import is_metric
from helpers.pages import drawing
from helpers.synthetic import Synthetic

from grpobench.analysis.checks.pairing import check_pairing
from grpobench.analysis.figures.drawing import pdf_bytes, svg_text
from grpobench.analysis.report.catalog import FIGURES, figure
from grpobench.analysis.report.facts import gather
from grpobench.analysis.report.page import inline
from grpobench.analysis.report.report import write_report
from grpobench.analysis.report.text import describe_decidable, describe_head, describe_verdict
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.tools.metrics import Metric, find
from grpobench.analysis.topics.accuracy import answers_at_ends, describe_decoding, finals
from grpobench.analysis.topics.budgets import mean_at_equal_budgets, sum_costs, with_axis
from grpobench.analysis.topics.figure_names import TRAINING
from grpobench.analysis.topics.numbers import Numbers
from grpobench.analysis.topics.runs import all_settings, run_provenance
from grpobench.analysis.topics.sampling import sample_curves

PAIR = {"arms": ("a", "b"), "tasks": ("arithmetic",)}
SMALL = {"steps": 6, "every": 3, "problems": 4, "test_problems": 8}


def written(tmp_path: Path, **changes: Any) -> Path:
    return Synthetic(**{**SMALL, **changes}).write(tmp_path)


def experiment_of(tmp_path: Path, **changes: Any) -> Experiment:
    return load(written(tmp_path, **changes))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 arms × 2 tasks × 3 seeds with one diverged, one crashed and one unfinished run; four figures in all
    formats. Every figure is drawn in test_paper.py."""
    states = {
        ("gspo", "nanobias", 2): ("diverged", 4),
        ("dapo", "arithmetic", 1): ("crashed", 2),
        ("ppo", "arithmetic", 3): ("running", 5),
    }
    tasks = ("arithmetic", "nanobias")
    root = Synthetic(**SMALL, tasks=tasks, states=states).write(tmp_path_factory.mktemp("results"))  # type: ignore[arg-type]
    with drawing("final_accuracy", "reward", "differences", "bias"):
        return write_report(root).parent


def test_page_stands_by_itself(report: Path) -> None:
    page = (report / "index.html").read_text()
    links = set(re.findall(r'(?:src|href)="(?!#|data:)([^"]*)"', page))
    assert links and all(
        (report / link).exists() for link in links
    )  # files of the runs beside it, nothing else
    assert "@import" not in page and "<script src" not in page and "url(http" not in page
    figures = len(list((report / "figures").glob("*.svg")))
    assert page.count('<div class="wide"><svg ') == page.count('<div class="narrow"><svg ') == figures >= 4


def test_no_two_figures_of_the_page_share_an_id(report: Path) -> None:
    ids = re.findall(r'\bid="([^"]+)"', (report / "index.html").read_text())
    doubled = {name for name in ids if ids.count(name) > 1}
    assert not doubled


def test_page_names_failures_and_what_the_seeds_can_decide(report: Path) -> None:
    page = (report / "index.html").read_text()
    assert "3 of 24 runs have no final accuracy" in page
    assert "24 planned: 21 finished, 1 diverged, 1 crashed, 1 running" in page
    assert "Not as planned" not in page
    assert "gspo on nanobias, seed 2: diverged at update 4, policy/entropy became NaN" in page
    assert "3 seeds allow no verdict on two arms" in page
    assert "0 of 12 comparisons resolved" in page
    assert "smallest two-sided p of the exact test is 0.25" in page
    assert "equal accuracy before training in 6 of 6 task × seed groups" in page
    assert "mean reward of all graded rollouts of the step, with doses" in page  # as the catalog defines it
    assert not re.search(r"grpo &gt; \w+", page)


def test_json_holds_runs_comparisons_and_no_nan(report: Path) -> None:
    content = json.loads((report / "report.json").read_text(), parse_constant=pytest.fail)
    assert len(content["runs"]) == 24 and len(content["comparisons"]) == 12
    failed = {run["name"]: run for run in content["runs"] if run["final"] is None}
    assert {name: (run["state"], run["counted"]) for name, run in failed.items()} == {
        "gspo-nanobias-s2": ("diverged", 0),
        "dapo-arithmetic-s1": ("crashed", None),
        "ppo-arithmetic-s3": ("running", None),
    }
    assert content["accounting"] == {"finished": 21, "diverged": 1, "crashed": 1, "running": 1}
    assert content["alarms"] == {}
    assert content["seeds_needed"] == 6
    assert content["settings"]["algorithm.clip_high"]["differs"] is True


def test_tables_are_written_for_people_and_for_programs(report: Path) -> None:
    frame = pd.read_csv(report / "tables" / "accuracy.csv")
    assert len(frame) == 8 and {"seed_1", "seed_2", "seed_3", "low", "high"} <= set(frame.columns)
    text = (report / "tables" / "accuracy.tex").read_text()
    assert text.count(r"\\") == 9 and r"95\% interval" in text and "−" not in text


def test_too_few_seeds_have_no_detectable_effect_in_any_format(report: Path) -> None:
    page = (report / "index.html").read_text()
    assert "None: these seeds cannot find any effect" in page
    # in what these seeds can decide, in the caption of the figure and in the note of the table
    assert page.count("The interval assumes normal differences and ignores all other pairs.") == 3
    frame = pd.read_csv(report / "tables" / "comparisons.csv")
    assert len(frame) == 12 and frame["detectable"].isna().all() and set(frame["pairs"]) == {6}
    compared = json.loads((report / "report.json").read_text())["comparisons"]
    assert all(pair["detectable"] is None for pair in compared)
    assert (report / "tables" / "comparisons.tex").read_text().count(" & none & ") == 12


def test_detectable_effect_is_reported_with_level_and_uncertainty(tmp_path: Path) -> None:
    final = {"a": [0.5] * 8, "b": [0.5 + d for d in (0.03, -0.01, 0.02, -0.02, 0.04, 0.01, -0.01, 0.02)]}
    experiment = experiment_of(
        tmp_path,
        **PAIR,
        seeds=range(8),
        accuracy=lambda arm, task, seed: final[arm][seed],
    )
    table = gather(experiment).tables["comparisons"]
    # 8 seeds find 1.193 SD (s = 2.138 points); χ² with 7 df puts the true SD at .661 to 2.035 times s
    assert table.frame["detectable"][0] == pytest.approx(
        1.193 * 0.02138, rel=0.01
    )  # simulated: .4 % of power
    assert re.fullmatch(r"2\.[56] \(1\.7 to 5\.2\)", table.rows[0][table.header.index("MDE")])
    assert "80% of repetitions or more, at 5% over the pairs of the task" in table.note
    assert "about 38 seeds would find it" in table.rows[0][-1]


def test_same_logs_give_the_same_figures_in_both_formats(report: Path) -> None:
    names = {path.stem for path in (report / "figures").glob("*.pdf")}
    assert {"final_accuracy", "reward", "differences", "bias"} <= names
    assert names == {path.stem for path in (report / "figures").glob("*.svg")}
    experiment = load(report.parent)
    drawing = FIGURES["final_accuracy"](experiment)
    assert drawing is not None
    assert svg_text(drawing) == (report / "figures" / "final_accuracy.svg").read_text()
    stored_pdf = (report / "figures" / "final_accuracy.pdf").read_bytes()
    assert hashlib.sha256(pdf_bytes(drawing)).digest() == hashlib.sha256(stored_pdf).digest()


def test_diverged_run_counts_as_zero_and_unfinished_run_waits(tmp_path: Path) -> None:
    states = {("grpo", "arithmetic", 1): ("diverged", 4), ("ppo", "arithmetic", 2): ("preempted", 4)}
    changes = {"arms": ("grpo", "ppo"), "tasks": ("arithmetic",), "states": states}
    facts = gather(experiment_of(tmp_path, **changes, accuracy=lambda arm, task, seed: 0.5 + 0.1 * seed))
    grpo = facts.tables["accuracy"].frame.iloc[0]
    assert grpo["final"] == pytest.approx((0 + 0.7 + 0.8) / 3)
    assert grpo["final_of_finished"] == pytest.approx(0.75)
    assert (grpo["failed"], grpo["waiting"]) == (1, 0)
    ppo = facts.tables["accuracy"].frame.iloc[1]
    assert ppo["final"] == pytest.approx((0.6 + 0.8) / 2) and ppo["waiting"] == 1
    (pair,) = facts.numbers.compared
    needs = "waits for runs without a result: ppo seed 2 (preempted)"
    assert (pair.verdict, pair.needs) == ("unresolved", needs)


def test_crashed_run_counts_nowhere_and_is_named(tmp_path: Path) -> None:
    experiment = experiment_of(
        tmp_path,
        **PAIR,
        seeds=range(1, 9),
        states={("a", "arithmetic", 3): ("crashed", 4)},
        accuracy=lambda arm, task, seed: (0.9 if arm == "a" else 0.5) + 0.005 * seed,
    )
    facts = gather(experiment)
    row = facts.tables["accuracy"].frame.iloc[0]
    # the mean of seeds 1, 2, 4, 5, 6, 7, 8 is .9 + .005 · 33/7; a zero in it would make .81
    assert row["final"] == pytest.approx(0.9 + 0.005 * 33 / 7)
    assert row["base"] == pytest.approx(0.2 + 0.01 * 33 / 7)  # of the same seeds; 0.2 + 0.01 · seed each
    assert (row["failed"], row["waiting"], row["seeds"]) == (0, 1, 7)
    (pair,) = facts.numbers.compared
    assert pair.verdict == "unresolved" and 3 not in pair.seeds
    assert pair.needs == "waits for runs without a result: a seed 3 (crashed)"
    assert any(
        "a on arithmetic, seed 3: crashed at update 4, stopped" in warning.lines for warning in facts.warnings
    )


def test_what_all_tasks_together_leave_out_is_said(tmp_path: Path) -> None:
    states = {("grpo", "arithmetic", 1): ("crashed", 4)}
    states |= {("ppo", "nanobias", seed): ("crashed", 4) for seed in (1, 2, 3)}
    facts = gather(experiment_of(tmp_path, arms=("grpo", "ppo"), states=states))
    left = " Left out: 4 runs without a result. Tasks left out because some arm has no result: nanobias."
    for name in ("aggregate", "improvement"):
        assert left in facts.tables[name].note
    finished = gather(experiment_of(tmp_path / "finished", arms=("grpo", "ppo"), seeds=(1,)))
    assert "Left out" not in finished.tables["aggregate"].note


def test_a_page_promises_no_verdict_where_a_run_has_no_result(tmp_path: Path) -> None:
    few = {**PAIR, "seeds": range(1, 9)}
    states = {("a", "arithmetic", 3): ("crashed", 4)}
    for name, more in (("whole", {}), ("crashed", {"states": states})):
        text = describe_decidable(gather(experiment_of(tmp_path, **few, **more, name=name)))
        assert "so verdicts are possible" in text
        assert ("except where a run has no result" in text) == bool(more)


def test_a_page_counts_the_seeds_that_two_arms_share(tmp_path: Path) -> None:
    """Runs that were merged or imported: arms may have seeds of their own."""
    root = written(tmp_path, **PAIR, seeds=range(8))
    for seed in range(3):
        for run in (f"a-arithmetic-s{seed}", f"b-arithmetic-s{7 - seed}"):
            shutil.rmtree(root / run)
    (root / "experiment.json").unlink()
    text = describe_decidable(gather(load(root)))
    assert "With 2 seeds, the most of 8 that two arms share, the smallest two-sided p" in text
    assert "so no verdict is possible with 2" in text and "so verdicts are possible" not in text


def test_diverged_run_counts_as_zero_though_validations_came_before(tmp_path: Path) -> None:
    states = {("grpo", "arithmetic", 1): ("diverged", 5)}
    experiment = experiment_of(tmp_path, tasks=("arithmetic",), states=states, drop=("eval/test",))
    run = finals(experiment).query("arm == 'grpo' and seed == 1").iloc[0]
    assert run["validation_last"] > 0 and run["counted"] == 0 and math.isnan(run["final"])


def test_a_verdict_is_told_from_the_better_arm(tmp_path: Path) -> None:
    changes = {**PAIR, "seeds": range(1, 7)}
    final = {"a": lambda seed: 0.5, "b": lambda seed: 0.6 + 0.01 * seed}
    made = experiment_of(tmp_path, **changes, accuracy=lambda arm, task, seed: final[arm](seed))
    numbers = Numbers(made)
    (pair,) = numbers.compared
    sentence = describe_verdict(pair, numbers.runs)
    assert sentence["text"] == "b is better than a"
    # differences .11 to .16: mean .135, s = .0187, half = 2.571 · .0187 / √6 = .0196
    assert sentence["rest"].startswith("on arithmetic: +13.5 points (+11.5 to +15.5); adjusted p 0.0312")


def test_the_same_arm_twice_is_never_told_apart(tmp_path: Path) -> None:
    experiment = experiment_of(
        tmp_path,
        **PAIR,
        seeds=range(1, 9),
        accuracy=lambda arm, task, seed: 0.5 + 0.01 * seed,
    )
    (pair,) = gather(experiment).numbers.compared
    assert pair.verdict == "equivalent" and pair.effect == 0 and pair.p == 1 and pair.improvement == 0.5


def test_one_seed_is_reported_without_interval_or_verdict(tmp_path: Path) -> None:
    root = written(tmp_path, arms=("grpo",), tasks=("arithmetic",), seeds=(1,))
    with drawing("reward"):
        page = write_report(root, ["html"]).read_text()
    assert "There is only one arm, so there is nothing to compare" in page
    facts = gather(load(root))
    assert facts.tables["accuracy"].rows[0][5] == "–" and "comparisons" not in facts.tables
    run = facts.numbers.runs.iloc[0]
    assert run["items"] == 8 and run["item_low"] < run["final"] < run["item_high"]
    assert not list((root / "report" / "figures").iterdir())  # neither pdf nor svg was asked for


def test_metrics_that_no_arm_logs_leave_their_figure_out(tmp_path: Path) -> None:
    experiment = experiment_of(
        tmp_path,
        arms=("grpo", "dapo"),
        tasks=("arithmetic",),
        drop=("policy/", "trained/", "groups/sampled", "time/", "cost/", "grad_norm/", "eval/test"),
    )
    numbers = Numbers(experiment)
    names = {name for name, kind in FIGURES.items() if kind.serves(numbers)}
    assert names == {"final_accuracy", "differences", "accuracy_updates", "reward", "length", "zero_signal"}
    facts = gather(experiment)
    assert set(facts.numbers.runs["split"]) == {"validation"}  # nothing was tested: the headline says so
    assert "costs" not in facts.tables and "bias" not in facts.tables


def test_experiment_that_has_only_begun_gives_a_report(tmp_path: Path) -> None:
    states = {("grpo", "arithmetic", seed): ("running", 0) for seed in (1, 2)}
    root = written(tmp_path, arms=("grpo",), tasks=("arithmetic",), seeds=(1, 2), states=states)
    (root / "grpo-arithmetic-s2" / "metrics.jsonl").write_text("")
    (root / "grpo-arithmetic-s2" / "eval.jsonl").unlink()
    assert write_report(root, ["html", "json", "csv", "tex"]).exists()


def test_equal_budget_is_the_largest_that_all_reached(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path, arms=("grpo", "dapo"), tasks=("arithmetic",), seeds=(1, 2))
    frame = mean_at_equal_budgets(experiment)
    tokens = experiment.select("cost/generated_tokens")
    ends = tokens.groupby(["arm", "seed"])["value"].max()
    assert set(frame.loc[frame["axis"] == "tokens", "budget"]) == {ends.min()}
    updates = frame[frame["axis"] == "updates"]
    assert set(updates["budget"]) == {6.0} and set(updates["seeds"]) == {2}


def test_token_axis_starts_at_zero_and_seconds_add_up(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path, arms=("grpo",), tasks=("arithmetic",), seeds=(1,))
    frame = experiment.select("eval/validation/greedy/correct")
    assert with_axis(experiment, frame, "tokens")["x"].iloc[0] == 0
    seconds = with_axis(experiment, frame, "seconds")
    assert seconds["x"].iloc[-1] == pytest.approx(experiment.select("time/step")["value"].sum())


def test_seconds_of_sampling_before_the_first_step_count(tmp_path: Path) -> None:
    """7 s of one arm at step 0: its seconds of training begin with them, the other arm's do not."""
    root = written(tmp_path, arms=("grpo", "dapo"), tasks=("arithmetic",), seeds=(1,))
    plain = load(root)
    path = root / "dapo-arithmetic-s1" / "metrics.jsonl"
    edit_rows(path, lambda row: row.update({"time/study": 7.0} if row["step"] == 0 else {}))
    later = load(root)
    before, after = (sum_costs(experiment).set_index("arm")["train_seconds"] for experiment in (plain, later))
    assert (after - before).to_dict() == pytest.approx({"grpo": 0.0, "dapo": 7.0})
    frame = plain.select("eval/validation/greedy/correct")
    without_study, with_study = (with_axis(experiment, frame, "seconds") for experiment in (plain, later))
    more = (with_study["x"] - without_study["x"]).groupby(with_study["arm"]).agg(list)
    assert more["grpo"] == [0.0] * len(more["grpo"])
    assert more["dapo"] == pytest.approx([0.0] + [7.0] * (len(more["dapo"]) - 1))  # 0 at the base


def test_pass_at_k_needs_twice_k_samples(tmp_path: Path) -> None:
    few = experiment_of(tmp_path, name="few", arms=("grpo",), tasks=("arithmetic",), seeds=(1,), samples=3)
    assert sample_curves(answers_at_ends(few, "sampled"), ()).empty
    many = experiment_of(tmp_path, name="many", arms=("grpo",), tasks=("arithmetic",), seeds=(1,), samples=9)
    frame = sample_curves(answers_at_ends(many, "sampled"), ())
    passed = frame[(frame["kind"] == "pass") & (frame["policy"] == "final")]
    assert list(passed["k"]) == [1, 2, 4] and passed["value"].is_monotonic_increasing
    sampled = many.evaluations.query("mode == 'sampled' and split == 'test' and step == 6")
    pass_at_1 = passed.loc[passed["k"] == 1, "value"].iloc[0]
    assert pass_at_1 == pytest.approx(sampled["score/correct"].mean())


def test_answers_that_could_not_be_graded_are_no_items(tmp_path: Path) -> None:
    root = written(tmp_path, arms=("grpo",), tasks=("arithmetic",), seeds=(1,))
    path = root / "grpo-arithmetic-s1" / "eval.jsonl"
    edit_rows(path, lambda row: row.update(outcome="infra_error" if row["problem"] == "p0" else "graded"))
    assert finals(load(root))["items"].iloc[0] == 7  # of 8


def test_settings_that_differ_come_first_and_name_the_task(tmp_path: Path) -> None:
    settings = all_settings(experiment_of(tmp_path, seeds=(1,)))
    differing = [setting.key for setting in settings if setting.differs]
    assert differing == ["algorithm.name", "algorithm.clip_high", "train.learning_rate.policy"]
    (tokens,) = [setting for setting in settings if setting.key == "sampler.max_completion_tokens"]
    assert tokens.values["grpo"] == "arithmetic: 40; nanobias: 4; function: 4" and not tokens.differs


def test_provenance_counts_runs_and_leaves_out_what_is_the_attempts_own(tmp_path: Path) -> None:
    provenance = run_provenance(experiment_of(tmp_path, arms=("grpo",), tasks=("arithmetic",), seeds=(1, 2)))
    assert provenance["versions.torch"] == [("2.13.0", 2)] and provenance["commit"] == [("0123abcd", 2)]
    assert provenance["host"] == [("worker-1", 1), ("worker-2", 1)] and provenance["attempts"] == [("1", 2)]
    assert (
        not {"pid", "started", "diff", "fingerprints"} & set(provenance)
        and len(provenance["code"][0][0]) == 12
    )


def test_broken_pairing_is_named(tmp_path: Path) -> None:
    root = written(tmp_path, arms=("grpo", "dapo"), tasks=("arithmetic",), seeds=(1, 2))
    name = "eval/test/greedy/correct"
    path = root / "grpo-arithmetic-s2" / "metrics.jsonl"
    edit_rows(path, lambda row: row.update({name: row[name] + 0.01} if row["step"] == 0 else {}))
    pairing = check_pairing(load(root))
    assert (pairing.base_agrees, pairing.base_groups, pairing.first_agrees) == (1, 2, 2)
    assert list(pairing.odd) == ["arithmetic seed 2: accuracy before training"]


def test_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="choose from html, pdf"):
        write_report(tmp_path, ["docx"])


def test_inlined_figures_keep_their_references_and_take_the_colors_of_the_page() -> None:
    body = '<metadata>x</metadata><a id="p1"/><b clip-path="url(#p1)" href="#p1"/>'
    marks = '<g style="fill: #262626; stroke: #0173b2"/><g style="fill: #123456"/>'
    svg = f'<?xml?><svg width="100pt" height="50pt">{body}{marks}</svg>'
    text = inline(svg, "one", "A title")
    assert "fill: var(--ink); stroke: var(--c0)" in text and "#123456" in text
    assert 'id="one-p1"' in text and "url(#one-p1)" in text and 'href="#one-p1"' in text
    assert "metadata" not in text and "pt" not in text.replace("clip-path", "")


@pytest.mark.slow
def test_every_figure_can_be_drawn_alone_by_its_name(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path, samples=4)
    report = write_report(experiment.folder, ("svg",))
    drawn = {path.stem for path in (report / "figures").iterdir()}
    alone = {name: FIGURES[name](experiment) for name in FIGURES}
    assert {name for name, drawing in alone.items() if drawing} == drawn < set(FIGURES) - {"components"}
    assert all(drawing.name == name for name, drawing in alone.items() if drawing)
    assert figure(experiment, "reward").axes[0].get_xlabel() == "updates"
    with pytest.raises(LogError, match="nothing is logged that figure 'components' shows"):
        figure(experiment, "components")
    with pytest.raises(ValueError, match="unknown figure 'rewards'; known: map, learning_rates, "):
        figure(experiment, "rewards")


def test_captions_define_metrics_that_are_logged() -> None:
    """A panel of a metric that was renamed would be left out without a word."""
    drawn = [panel.metric for _, panels in TRAINING.values() for panel in panels]
    declared = {name: find(name) for name in drawn}
    assert all(is_metric(name) for name in drawn) and all(declared.values())
    assert all(metric.label and metric.unit in metric.axis for metric in declared.values() if metric)


def test_a_share_is_between_0_and_1_and_its_axis_says_of_what() -> None:
    clipped, entropy = find("policy/clip_low"), find("policy/entropy")
    assert clipped and clipped.bounds == (0.0, 1.0) and clipped.axis == "clipped low\n(share of tokens)"
    assert entropy and entropy.bounds == (0.0, math.inf) and entropy.axis == "policy entropy\n(nats/token)"
    explained = find("critic/explained_variance")
    assert explained and explained.bounds == (-math.inf, 1.0)
    assert Metric("mine/rate", "per step", "").axis == "mine rate\n(per step)"


def test_the_temperature_of_evaluation_is_stated(tmp_path: Path) -> None:
    """The synthetic runs tell of the sampler's alone, as runs once did; then an arm has one of its own."""
    root = written(tmp_path, tasks=("nanobias",))
    experiment = load(root)
    assert describe_decoding(experiment, "sampled") == "sampled decoding at temperature 1"
    assert describe_decoding(experiment, "greedy") == "greedy decoding"
    facts = gather(experiment)
    assert describe_head(facts)["evaluation"] == "greedy decoding and sampled decoding at temperature 1"
    assert "Accuracy in percent (test split, greedy decoding)" in facts.tables["accuracy"].note
    assert facts.tables["accuracy_sampled"].title == "Final accuracy, sampled decoding at temperature 1"
    for run in experiment.runs:
        if run.arm == experiment.arms[0]:
            config = root / run.name / "run.toml"
            config.write_text(config.read_text().replace("[evaluate]", "[evaluate]\ntemperature = 0.6"))
    decoding_text = describe_decoding(load(root), "sampled")
    assert decoding_text.startswith(
        f"sampled decoding at different temperatures (0.6: {experiment.arms[0]}; 1: "
    )


def test_a_report_in_another_format_is_added_to_the_one_that_is_there(tmp_path: Path) -> None:
    experiment = experiment_of(tmp_path, tasks=("arithmetic",), seeds=(1,))
    with drawing("reward"):
        write_report(experiment.folder, ["html", "svg", "csv"])
        folder = experiment.folder / "report"
        before = {path.relative_to(folder) for path in folder.rglob("*")}
        (folder / "tables/stale.tex").touch()
        write_report(experiment.folder, ["tex"])
    after = {path.relative_to(folder) for path in folder.rglob("*")}
    assert before < after and Path("methods.tex") in after and Path("index.html") in after
    assert Path("tables/stale.tex") not in after
