"""Whole runs of both sides: the blocks, the same work on both, and a tiny grid that is real."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from helpers.bench_sides import quiet
from rich.console import Console

from grpobench.benchmarks import grid
from grpobench.benchmarks.bench import show_grid
from grpobench.benchmarks.cases import UNKNOWN
from grpobench.benchmarks.grid import (
    Program,
    Side,
    SideProgress,
    SideRuns,
    demand_same_work,
    estimate,
    halves,
    together,
)
from grpobench.benchmarks.grid_trl import GridResult, Script, TRLJob
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.tasks import TASKS


def outcome(task: str, seed: int, seconds: float = 1.0) -> GridResult:
    result = GridResult(task, seed, train_s=3 * seconds, evaluate_s=seconds, completions=8, tokens=100)
    result.add("0/test/sampled", [0.0, 1.0, 0.0, 0.0])
    result.add("0/test/greedy", [0.0, 1.0])
    result.add("10/test/sampled", [1.0, 1.0, float(seed), 0.0])
    result.add("2/test/sampled", [0.0, 0.0, 0.0, 0.0])
    return result


def stub(seconds: float, blocks: list[tuple[str, list[int]]], name: str) -> Side:
    def side(block: SideRuns, news: Callable[[int], None]) -> tuple[float, list[GridResult]]:
        blocks.append((name, sorted({config.seed for config in block.configs})))
        news(0)
        runs = [outcome(config.task.name, config.seed, seconds / 10) for config in block.configs]
        return seconds, runs

    return side


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int]]]:
    done: list[tuple[str, list[int]]] = []
    for name, seconds in (("ours", 10.0), ("trl", 45.0)):
        monkeypatch.setitem(grid.SIDES, name, stub(seconds, done, name))
    return done


def test_blocks_of_half_the_seeds_are_done_ours_theirs_theirs_ours(
    blocks: list[tuple[str, list[int]]],
) -> None:
    messages: list[tuple[str, float]] = []
    report = grid.grid(lambda activity, left: messages.append((activity, left)))
    assert blocks == [("ours", [0, 1, 2]), ("trl", [0, 1, 2]), ("trl", [3, 4, 5]), ("ours", [3, 4, 5])]
    assert json.loads(json.dumps(report)) == report
    assert (report["runs"], report["blocks"], report["ratio"]) == (12, 4, 4.5)
    assert report["ours"] == {"wall_s": 20.0, "train_s": 36.0, "evaluate_s": 12.0, "rest_s": -8.0}
    assert [task["task"] for task in report["tasks"]] == ["arithmetic", "nanocode"]
    # Half the sampled answers are right after training, and a quarter more with seeds from 1 on.
    assert report["tasks"][0]["ours"]["before"] == 0.25
    assert report["tasks"][0]["ours"]["after"] == pytest.approx((2 + 3 + 4 + 5 + 6 + 7) / 4 / 6, abs=1e-4)
    assert report["tasks"][0]["trl"]["tokens"] == 600
    assert messages[0] == ("block 1 of 4, ours: 0 of 6 runs ended", pytest.approx(UNKNOWN, nan_ok=True))
    assert messages[2][0] == "block 3 of 4, TRL: 0 of 6 runs ended"
    assert messages[2][1] == pytest.approx(55.0, abs=1.0)  # a block of each; less what has gone by meanwhile
    text = io.StringIO()
    show_grid(report, Console(file=text, width=120))
    assert "4.50" in text.getvalue() and "0.250" in text.getvalue()


def test_one_seed_makes_one_block() -> None:
    assert halves([3]) == [[3]]
    assert halves([0, 1, 2]) == [[0, 1], [2]]


def test_what_is_left_is_known_once_both_sides_have_run() -> None:
    run = outcome("arithmetic", 0)
    taken = {"ours": SideProgress(10.0, [run] * 2), "trl": SideProgress(0.0, [])}
    order = [("trl", [1]), ("ours", [1])]
    assert estimate(taken, order, 2) is UNKNOWN
    assert estimate({**taken, "trl": SideProgress(40.0, [run] * 2)}, order, 2) == 50.0


def test_sides_that_did_other_work_are_refused() -> None:
    ours = [outcome("arithmetic", 0), outcome("arithmetic", 1)]
    demand_same_work(ours, list(reversed(ours)))
    with pytest.raises(RuntimeError, match=r"arithmetic seed 1: ours \(8, .*TRL None"):
        demand_same_work(ours, ours[:1])
    with pytest.raises(RuntimeError, match=r"arithmetic seed 0: ours \(8, .*TRL \(9"):
        demand_same_work(ours, [replace(ours[0], completions=9), ours[1]])
    fewer = replace(ours[0], answers={**ours[0].answers, "0/test/greedy": 1})
    with pytest.raises(RuntimeError, match="the comparison would not be fair"):
        demand_same_work(ours, [fewer, ours[1]])
    with pytest.raises(RuntimeError, match="twice"):
        demand_same_work([*ours, ours[0]], ours)


def config() -> RunConfig:
    return read_recipe(grid.RECIPE, ["seeds=[3]", "tasks=arithmetic", "train.steps=7"]).runs()[0]


def test_the_script_gets_the_settings_of_our_run(tmp_path: Path) -> None:
    job = grid.job(config(), tmp_path)
    assert (job.task, job.seed, job.steps, job.prompts, job.group) == ("arithmetic", 3, 7, 8, 8)
    assert job.problems == {"validation": 32, "test": 64} and job.samples == 2 and job.greedy
    assert job.limit == TASKS["arithmetic"]().max_completion_tokens
    expected = {"learning_rate": 1e-4, "loss_type": "grpo", "beta": 0.0, "scale_rewards": "group"}
    assert expected.items() <= job.arguments.items()
    assert (job.arguments["adam_beta2"], job.arguments["max_grad_norm"]) == (0.95, 1.0)
    assert TRLJob(**json.loads(json.dumps(asdict(job)))) == job


def test_settings_that_the_script_does_not_have_are_refused(tmp_path: Path) -> None:
    run_config = config()
    with pytest.raises(RuntimeError, match="no settings for"):
        grid.job(replace(run_config, train=replace(run_config.train, num_minibatches=2)), tmp_path)


def test_the_script_is_rewarded_by_the_task_s_verifier_and_counts_its_work(tmp_path: Path) -> None:
    job = replace(grid.job(config(), tmp_path), group=2, samples=2, problems={"validation": 3, "test": 2})
    task = TASKS["arithmetic"]()
    script = Script(job, task)
    right = [task.demonstrate(problem) for problem in script.problems[:2]]
    texts, ids = [right[0], "no", right[0], right[1]], [[1] * 3, [1], [1] * 3, [1] * 4]
    assert script.reward(texts, ids, [0, 0, 1, 1]) == [1.0, 0.0, 0.0, 1.0]
    assert (script.outcome.completions, script.outcome.tokens) == (4, 11)
    for step in (0, 5, 6):
        script.evaluate(step)
    assert script.outcome.answers == {
        **{f"0/validation/{mode}": count for mode, count in (("sampled", 6), ("greedy", 3))},
        **{f"0/test/{mode}": count for mode, count in (("sampled", 4), ("greedy", 2))},
        **{f"6/validation/{mode}": count for mode, count in (("sampled", 6), ("greedy", 3))},
    }
    assert all(0 <= value <= 1 for value in script.outcome.accuracy.values())


def test_programs_run_side_by_side_and_failure_is_told_with_its_output(tmp_path: Path) -> None:
    def program(name: str, code: str) -> Program:
        return Program([sys.executable, "-S", "-c", code], tmp_path / f"{name}.txt")

    ended_counts: list[int] = []
    fine = "import os; print(os.environ['GIVEN'])"
    programs = [program(str(n), fine) for n in range(3)]
    assert together(programs, 2, {"GIVEN": "here"}, ended_counts.append) > 0
    assert [p.log.read_text() for p in programs] == ["here\n"] * 3
    assert ended_counts[0] == 0 and set(ended_counts) <= {0, 1, 2} and ended_counts == sorted(ended_counts)
    slow = program("slow", "import time; time.sleep(60)")
    with pytest.raises(ChildProcessError, match="ended with 3:\nwhy not"):
        together([slow, program("bad", "print('why not'); raise SystemExit(3)")], 2, {}, ended_counts.append)


@pytest.mark.slow
def test_a_tiny_grid_of_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl")
    made: dict[str, list[GridResult]] = {}
    real = dict(grid.SIDES)

    def keeping(name: str) -> Side:
        def side(block: SideRuns, news: Callable[[int], None]) -> tuple[float, list[GridResult]]:
            seconds, made[name] = real[name](block, news)
            return seconds, made[name]

        return side

    for name in real:
        monkeypatch.setitem(grid.SIDES, name, keeping(name))
    sizes = ["train.steps=2", "evaluate.every=1", "evaluate.problems=8", "evaluate.test_problems=16"]
    report = grid.grid(quiet, ["seeds=[0]", *sizes])
    assert (report["runs"], report["blocks"]) == (2, 2)
    assert report["completions_per_run"] == 2 * 8 * 8
    assert report["answers_per_run"] == 3 * (3 * 8 + 2 * 16)  # two sampled and one greedy to each
    assert report["ratio"] > 0 and all(report[side]["wall_s"] > 0 for side in ("ours", "trl"))
    for ours, other in zip(made["ours"], made["trl"], strict=True):
        # The same policy on the same problems; float32 sums differ in order, and one argmax could with them.
        gap = ours.accuracy["0/test/greedy"] - other.accuracy["0/test/greedy"]
        assert abs(gap) <= 1 / 16
