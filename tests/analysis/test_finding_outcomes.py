"""What a finding measures of a run, against numbers worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.synthetic import Synthetic

from grpobench.analysis.findings.figures import axis_words
from grpobench.analysis.findings.horizons import Key
from grpobench.analysis.findings.outcomes import values_of
from grpobench.analysis.measure import KINDS
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.load import load
from grpobench.runs.settings.findings import findings, read_finding

A1, A2, B1, B2 = ("a", "sums", 1), ("a", "sums", 2), ("b", "sums", 1), ("b", "sums", 2)
Row = dict[str, Any]


def experiment(
    folder: Path,
    metrics: Mapping[Key, Sequence[Row]],
    answers: Mapping[Key, Sequence[Row]] | None = None,
    states: Mapping[Key, tuple[str, int]] | None = None,
    steps: int = 4,
) -> Experiment:
    """Two arms, the tasks and seeds of `metrics`; runs without rows of their own have none."""
    made = Synthetic(
        arms=("a", "b"),
        tasks=tuple(dict.fromkeys(task for _, task, _ in metrics)),
        seeds=(1, 2),
        steps=steps,
        states=states or {},
    )
    root = made.write(folder)
    for log_path in root.glob("*/metrics.jsonl"):
        arm, task, seed = log_path.parent.name.split("-")
        key = (arm, task, int(seed[1:]))
        log_path.write_text("".join(json.dumps(row) + "\n" for row in metrics.get(key, ())))
        answer_rows = (answers or {}).get(key, ())
        (log_path.parent / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answer_rows))
    return load(root, strict=True)


def answer(step: int, problem: str, correct: float, **more: Any) -> Row:
    row: Row = {
        "step": step,
        "split": "test",
        "mode": "sampled",
        "problem": problem,
        "sample": 0,
        "scores": {"correct": correct},
        "answer": "",
        "outcome": "graded",
        "length": 10,
        "stopped": True,
        "traits": {},
    }
    return row | more


def nan(values: Mapping[Key, float]) -> set[Key]:
    return {run for run, value in values.items() if math.isnan(value)}


def same(measured: Mapping[Key, float], expected: Mapping[Key, float]) -> None:
    assert measured == pytest.approx(dict(expected), nan_ok=True)


# Evaluations


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """a-s1 finished; a-s2 diverged at step 3; b-s1 crashed at step 2; b-s2 finished without its test."""

    def rows(last: int, tested: bool = True) -> list[Row]:
        log_rows: list[Row] = [
            {"step": 0, "eval/test/greedy/correct": 0.25, "eval/test/sampled/correct": 0.2}
            | {"eval/validation/greedy/correct": 0.3, "eval/test/sampled/length": 20.0}
        ]
        log_rows += [{"step": step} for step in range(1, last + 1)]
        if last >= 2:
            log_rows[2] |= {"eval/validation/greedy/correct": 0.5}
        if last == 4 and tested:
            log_rows[4] |= {"eval/test/greedy/correct": 0.75, "eval/test/sampled/correct": 0.6}
            log_rows[4] |= {"eval/validation/greedy/correct": 0.7, "eval/test/sampled/length": 26.0}
        return log_rows

    states = {A2: ("diverged", 3), B1: ("crashed", 2)}
    logs = {A1: rows(4), A2: rows(3), B1: rows(2), B2: rows(4, tested=False)}
    return experiment(tmp_path_factory.mktemp("evaluated"), logs, states=states)


@pytest.mark.parametrize(
    ("outcome", "finished", "diverged"),
    [
        ("accuracy", 0.75, 0.0),  # test before validation, greedy before sampled; divergence is a failure
        ("accuracy:sampled", 0.6, 0.0),
        ("gain", 0.75 - 0.25, 0.0 - 0.25),
        ("gain:sampled", 0.6 - 0.2, 0.0 - 0.2),
        ("evaluated:sampled/length", 26.0, math.nan),
        ("shift:sampled/length", 6.0, math.nan),
        ("shift:greedy/correct", 0.5, math.nan),
        ("above:0.2:gain:sampled", 1.0, 0.0),
        ("net_above:0.2:gain", 1.0, -1.0),  # gains of 0.5 and -0.25
        ("net_above:0.3:gain", 1.0, 0.0),
        ("above:6:shift:sampled/length", 0.0, math.nan),
    ],
)
def test_evaluations(evaluated: Experiment, outcome: str, finished: float, diverged: float) -> None:
    measured = values_of(evaluated, outcome, {})
    assert B1 not in measured  # a crashed run says nothing
    same(measured, {A1: finished, A2: diverged, B2: math.nan})


def test_the_curve_of_a_run_is_the_one_that_made_its_points(tmp_path: Path) -> None:
    """Points lie on ScaleRL's curve with known parameters: R_0 .2, A .8, B 2, C_mid 3 updates and 300 tokens.
    Beside it a run that stays at .4, and one with three evaluations."""

    def rows(curve: Callable[[int], float], last: int) -> list[Row]:
        return [
            {
                "step": step,
                "eval/validation/greedy/correct": curve(step),
                "cost/generated_tokens": 100.0 * step,
            }
            for step in range(last + 1)
        ]

    def rises(step: int) -> float:
        return 0.2 + 0.6 / (1 + (3 / step) ** 2) if step else 0.2

    logs = {A1: rows(rises, 12), A2: rows(lambda step: 0.4, 12), B1: rows(rises, 3)}
    made = experiment(tmp_path, logs, states={key: ("finished", len(of) - 1) for key, of in logs.items()})
    close = pytest.approx({A1: 0.8, A2: 0.4, B1: math.nan, B2: math.nan}, abs=1e-4, nan_ok=True)
    for axis, unit in (("updates", 1.0), ("tokens", 100.0)):
        assert values_of(made, f"ceiling:{axis}", {}) == close
        half = values_of(made, f"midpoint:{axis}", {})
        assert half[A1] == pytest.approx(3 * unit, rel=1e-3)  # least squares end at a tolerance
        assert nan(half) == {A2, B1, B2}


def test_the_base_is_measured_whatever_became_of_the_run(evaluated: Experiment) -> None:
    for outcome, value in (("base", 0.25), ("base:sampled", 0.2)):
        same(values_of(evaluated, outcome, {}), {A1: value, A2: value, B2: value})


def test_tasks_that_were_evaluated_beside_the_runs_own(tmp_path: Path) -> None:
    """On test where any run logged it, else on validation; a run without the numbers has none."""
    first: Row = {
        "step": 0,
        "also/nanobias/test/greedy/correct": 0.5,
        "also/code/validation/sampled/length": 9.0,
    }
    last: Row = {
        "step": 4,
        "also/nanobias/test/greedy/correct": 0.2,
        "also/code/validation/sampled/length": 5.0,
    }
    last |= {"also/nanobias/validation/greedy/correct": 0.9}
    loaded = experiment(tmp_path, {A1: [first, last], B1: [{"step": 0}, {"step": 4}]})
    for outcome, value in {
        "also:nanobias/greedy/correct": 0.2,
        "also_shift:nanobias/greedy/correct": -0.3,
        "also:code/sampled/length": 5.0,
        "also_shift:code/sampled/length": -4.0,
        "also:code/greedy/length": math.nan,
    }.items():
        measured = values_of(loaded, outcome, {})
        same({A1: measured[A1], B1: measured[B1]}, {A1: value, B1: math.nan})


def test_a_collapsed_run_counts_as_it_ended(tmp_path: Path) -> None:
    log_rows = [{"step": 0, "eval/test/greedy/correct": 0.4}, *({"step": step} for step in (1, 2))]
    log_rows.append({"step": 3, "eval/test/greedy/correct": 0.1})
    loaded = experiment(tmp_path, {A1: log_rows}, states={A1: ("collapsed", 3)})
    same({A1: values_of(loaded, "accuracy", {})[A1]}, {A1: 0.1})
    same({A1: values_of(loaded, "gain", {})[A1]}, {A1: -0.3})


def test_gains_and_shifts_alone_need_an_evaluation_before_training(tmp_path: Path) -> None:
    """With `evaluate.before = false` there is none."""
    row = {"step": 4, "eval/test/greedy/correct": 0.5, "eval/test/greedy/bias": 0.1}
    loaded = experiment(tmp_path, {run: [row] for run in (A1, A2, B1, B2)})
    assert values_of(loaded, "accuracy", {})[A1] == 0.5
    assert values_of(loaded, "evaluated:greedy/bias", {})[A1] == 0.1
    for outcome in ("gain", "shift:greedy/bias"):
        assert A1 in nan(values_of(loaded, outcome, {}))


def test_accuracy_on_some_problems(tmp_path: Path) -> None:
    logs = [{"step": 0, "eval/test/greedy/correct": 0.5}, {"step": 4, "eval/test/greedy/correct": 0.5}]

    def answer_rows(last: Mapping[str, float]) -> list[Row]:
        rows = []
        for step, scores in ((0, {"e1": 1.0, "e2": 1.0, "h1": 0.0, "h2": 0.0}), (4, last)):
            for name, score in scores.items():
                traits = {"level": "hard" if name[0] == "h" else "easy", "half": name[1]}
                rows.append(answer(step, name, score, mode="greedy", traits=traits))
        return rows

    answers = {
        A1: answer_rows({"e1": 1.0, "e2": 1.0, "h1": 1.0, "h2": 0.0}),
        A2: [row for row in answer_rows({}) if row["step"] == 0],  # diverged before it was evaluated again
        B1: answer_rows({"e1": 0.0, "e2": 0.0, "h1": 1.0, "h2": 1.0}),
    }
    answers[B1].append(answer(4, "h3", 0.0, mode="greedy", traits={"level": "hard"}, outcome="infra_error"))
    loaded = experiment(tmp_path, dict.fromkeys((A1, A2, B1), logs), answers, {A2: ("diverged", 2)})
    same(values_of(loaded, "accuracy", {"level": "hard"}), {A1: 0.5, A2: 0.0, B1: 1.0, B2: math.nan})
    same(values_of(loaded, "gain", {"level": "easy"}), {A1: 0.0, A2: -1.0, B1: -1.0, B2: math.nan})
    both = values_of(loaded, "accuracy:greedy", {"level": "hard", "half": "2"})
    same(both, {A1: 0.0, A2: 0.0, B1: 1.0, B2: math.nan})
    assert nan(values_of(loaded, "accuracy", {"color": "red"})) == {A1, A2, B1, B2}


def test_pass_at_k_and_its_gain(tmp_path: Path) -> None:
    logs = [{"step": 0, "eval/test/sampled/correct": 0.5}, {"step": 4, "eval/test/sampled/correct": 0.5}]

    def samples(step: int, right: Mapping[str, int], of: int = 4) -> list[Row]:
        return [
            answer(step, name, float(sample < count), sample=sample)
            for name, count in right.items()
            for sample in range(of)
        ]

    base = samples(0, {"p": 1, "q": 0})
    answers = {
        A1: base + samples(4, {"p": 2, "q": 4}),
        A2: base + samples(4, {"p": 2}) + samples(4, {"q": 0}, of=1),  # one sample is no pair
        B1: base,  # diverged before its last evaluation
        B2: base + samples(4, {"p": 0, "q": 0}),
    }
    answers[B2][-1]["scores"]["correct"] = 0.5  # a part of a score is not a solution
    loaded = experiment(tmp_path, dict.fromkeys((A1, A2, B1, B2), logs), answers, {B1: ("diverged", 3)})
    # of p's 6 pairs 5 hold a right answer, of q's all; before training 3 of p's 6
    after, before = (5 / 6 + 1) / 2, (3 / 6 + 0) / 2
    same(values_of(loaded, "pass:2", {}), {A1: after, A2: math.nan, B1: math.nan, B2: 0.0})
    same(values_of(loaded, "pass_gain:2", {}), {A1: after - before, A2: math.nan, B1: math.nan, B2: -before})
    same(values_of(loaded, "pass_base:2", {}), dict.fromkeys((A1, A2, B1, B2), before))
    same({A1: values_of(loaded, "pass:1", {})[A1]}, {A1: (2 / 4 + 4 / 4) / 2})
    assert nan(values_of(loaded, "pass:8", {})) == {A1, A2, B1, B2}


def test_length_of_wrong_answers_is_of_the_last_evaluation_alone(tmp_path: Path) -> None:
    logs = [{"step": 0, "eval/validation/sampled/correct": 0.5}]
    logs += [{"step": step, "eval/validation/sampled/correct": 0.5} for step in (2, 4)]

    def answer_rows(step: int, *pairs: tuple[float, int]) -> list[Row]:
        return [
            answer(step, f"p{n}", correct, length=length, split="validation")
            for n, (correct, length) in enumerate(pairs)
        ]

    early = answer_rows(0, (0.0, 5), (0.0, 5)) + answer_rows(2, (0.0, 90), (1.0, 1))
    answers = {
        A1: early + answer_rows(4, (0.0, 30), (0.5, 50), (1.0, 1000)),
        A2: early + answer_rows(4, (1.0, 30), (1.0, 50)),  # no wrong answer in the end
    }
    loaded = experiment(tmp_path, {A1: logs, A2: logs}, answers)
    same(values_of(loaded, "wrong_length", {}), {A1: 40.0, A2: math.nan, B1: math.nan, B2: math.nan})


# Training


def test_training_is_reduced_over_the_steps(tmp_path: Path) -> None:
    entropy = [9.0, 2.0, math.nan, 1.0, 4.0]  # before training; four steps, of which one logged nothing
    logs = [{"step": step, "policy/entropy": value} for step, value in enumerate(entropy)]
    logs[2]["policy/entropy"] = None  # type: ignore[assignment]
    loaded = experiment(tmp_path, {A1: logs, A2: logs[:2]}, states={A2: ("diverged", 1)})
    expected = {"first": 2.0, "last": 4.0, "mean": 7 / 3, "max": 4.0, "min": 1.0, "sum": 7.0}
    for reduction, value in expected.items():
        measured = values_of(loaded, f"training:policy/entropy:{reduction}", {})
        same(measured, {A1: value, A2: 2.0, B1: math.nan, B2: math.nan})


def test_a_score_is_0_at_the_steps_that_a_diverged_run_did_not_reach(tmp_path: Path) -> None:
    """Four steps are planned. Other metrics have no value there, and a run that its recipe stopped keeps its
    own."""
    logs = [{"step": step, "score/solved": 0.8, "policy/entropy": 2.0} for step in range(3)]
    states = {A1: ("diverged", 2), A2: ("collapsed", 2)}
    loaded = experiment(tmp_path, {A1: logs, A2: logs}, states=states)
    for reduction, value in {"mean": 0.4, "last": 0.0, "end": 0.0, "max": 0.8, "first": 0.8}.items():
        measured = values_of(loaded, f"training:score/solved:{reduction}", {})
        same(measured, {A1: value, A2: 0.8, B1: math.nan, B2: math.nan})
    same(
        values_of(loaded, "training:policy/entropy:mean", {}), {A1: 2.0, A2: 2.0, B1: math.nan, B2: math.nan}
    )


def test_a_metric_where_another_reaches_a_level(tmp_path: Path) -> None:
    """Success averages 0.5 first over steps 2 to 4: (0.2 + 0.5 + 0.8)/3. Step 3 logged no entropy."""
    success = [9.0, 0.0, 0.2, 0.5, 0.8]
    entropy = [9.0, 2.0, 1.0, None, 0.5]
    logs: list[Row] = [
        {"step": step, "score/solved": solved, "policy/entropy": mean_entropy}
        for step, (solved, mean_entropy) in enumerate(zip(success, entropy, strict=True))
    ]
    without: list[Row] = [{"step": step, "score/solved": solved} for step, solved in enumerate(success)]
    loaded = experiment(tmp_path, {A1: logs, A2: logs[:4], B1: without})
    outcome = "when:policy/entropy:score/solved:0.5"
    same(values_of(loaded, outcome, {}), {A1: 0.75, A2: math.nan, B1: math.nan, B2: math.nan})
    assert axis_words(outcome, "nats/token") == "policy entropy where score solved reaches 0.5 (nats/token)"


def test_axes_say_what_a_share_of_runs_counts() -> None:
    words = axis_words("above:0.05:gain:sampled", "points")
    assert words == "runs (%) with gain in accuracy, sampled above 0.05"
    assert axis_words("net_above:0.05:gain:sampled", "points") == f"{words} less those below −0.05"


def test_every_outcome_of_a_shipped_finding_has_words_for_an_axis() -> None:
    for name in findings():
        for measurement in read_finding(name).finding.measured:
            assert axis_words(measurement.outcome, measurement.unit), f"{name}: {measurement.outcome}"


def test_sums_of_metrics_leave_out_steps_that_lack_one(tmp_path: Path) -> None:
    logs: list[Row] = [
        {"step": 0, "time/forward": 100.0, "time/backward": 100.0},
        {"step": 1, "time/forward": 1.0, "time/backward": 10.0},
        {"step": 2, "time/forward": 2.0},
        {"step": 3, "time/forward": 3.0, "time/backward": None},
        {"step": 4, "time/forward": 4.0, "time/backward": 40.0},
    ]
    loaded = experiment(tmp_path, {A1: logs, A2: logs[:1]})
    same(
        values_of(loaded, "training:time/forward+time/backward:sum", {}),
        {A1: 55.0, A2: math.nan, B1: math.nan, B2: math.nan},
    )
    assert values_of(loaded, "training:time/forward+time/backward:max", {})[A1] == 44.0
    assert values_of(loaded, "training:time/forward:sum", {})[A1] == 10.0
    assert nan(values_of(loaded, "training:time/forward+time/none:sum", {})) == {A1, A2, B1, B2}


def test_accuracy_when_all_have_spent_the_same(tmp_path: Path) -> None:
    def logs(tokens: int, seconds: float, *accuracy: float) -> list[Row]:
        name = "eval/validation/greedy/correct"
        rows: list[Row] = [{"step": 0, name: 0.1}]
        rows += [
            {"step": step, "cost/generated_tokens": tokens * step, "time/step": seconds, name: value}
            for step, value in enumerate(accuracy, 1)
        ]
        return rows

    made = {
        A1: logs(100, 1.0, 0.2, 0.3, 0.4, 0.5),
        A2: logs(200, 1.0, 0.2, 0.3, 0.4, 0.6),
        B1: logs(400, 4.0, 0.3, 0.6, 0.7, 0.8),
        B2: logs(400, 4.0, 0.9),
    }
    loaded = experiment(tmp_path, made, states={B2: ("diverged", 1)})
    same(values_of(loaded, "equal:updates", {}), {A1: 0.5, A2: 0.6, B1: 0.8, B2: 0.0})
    # a-s1 spent least: 400 tokens, 4 seconds. By then a-s2 made two steps, the others one; the run that
    # diverged had come no further when the others had spent as much
    same(values_of(loaded, "equal:tokens", {}), {A1: 0.5, A2: 0.3, B1: 0.3, B2: 0.0})
    same(values_of(loaded, "equal:seconds", {}), {A1: 0.5, A2: 0.6, B1: 0.3, B2: 0.0})


# Collapse


def test_how_long_runs_last(tmp_path: Path) -> None:
    made = Synthetic(
        arms=("a", "b"),
        tasks=("sums",),
        seeds=(1, 2),
        accuracy=lambda arm, task, seed: 0.9,
        falls={A2: 20, B2: 20},
        states={B1: ("diverged", 17), B2: ("collapsed", 30)},
    )
    loaded = load(made.write(tmp_path))
    lasted = values_of(loaded, "lasting", {})
    assert lasted[A1] == 40.0  # all of its updates
    assert lasted[B1] == 17.0
    # Training rewards fall at step 20, where the validation accuracy (every 10 steps) falls too
    assert lasted[A2] == 20.0 and lasted[B2] == 20.0
    assert values_of(loaded, "lasting:accuracy_collapse", {}) == {A1: 40.0, A2: 20.0, B1: 17.0, B2: 20.0}
    silent = values_of(loaded, "lasting:grader_silent", {})  # other events do not count; divergence does
    assert silent == {A1: 40.0, A2: 40.0, B1: 17.0, B2: 40.0}


def test_every_kind_is_measured_and_unsettled_runs_are_left_out(tmp_path: Path) -> None:
    states = {A1: ("running", 2), B2: ("preempted", 3)}
    loaded = load(Synthetic(arms=("a", "b"), tasks=("sums",), seeds=(1, 2), states=states).write(tmp_path))
    arguments_by_kind = {
        "evaluated": ":greedy/correct",
        "shift": ":greedy/correct",
        "training": ":policy/entropy:mean",
        "log_ratio": ":score/correct:score/correct",
        "when": ":policy/entropy:score/correct:0.01",
        "equal": ":updates",
        "reach": ":0.4:updates",
        "ceiling": ":updates",
        "midpoint": ":updates",
        "pass": ":1",
        "pass_gain": ":1",
        "pass_base": ":1",
        "above": ":0.05:gain",
        "net_above": ":0.05:gain",
        "also": ":sums/greedy/correct",
        "also_shift": ":sums/greedy/correct",
        "rate": ":octaves",
        "best_rate": ":gain",
    }
    beside = ("also", "also_shift", "rate", "best_rate")  # of which these logs have nothing
    for kind in KINDS:
        measured = values_of(loaded, kind + arguments_by_kind.get(kind, ""), {})
        assert set(measured) == {A2, B1} and bool(nan(measured)) == (kind in beside), kind
