"""Evaluations inside runs and by `grpobench eval`.

Locked here: greedy and sampled answers decoded together are those decoded apart; every number can be computed
again from the rows; what a run logged is never touched; an answer that is still true is not asked for twice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Letters

from grpobench.algorithms.grpo import GRPO
from grpobench.analysis.browse.store import Filters, open_store
from grpobench.runs import cli
from grpobench.runs.evaluation import records as assess
from grpobench.runs.metrics.evaluator import Answer, Evaluator, Row, several, summarize
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.sampler import Sampler
from grpobench.runs.settings import stored
from grpobench.runs.settings.config import (
    CheckpointConfig,
    EvaluateConfig,
    ModelConfig,
    RewardConfig,
    RunConfig,
    SamplerConfig,
    TrainConfig,
)
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.task import Problem, Verdict

SMALL = EvaluateConfig(problems=12, samples=4, test_problems=12)


@pytest.fixture(scope="module")
def nano() -> Loaded:
    return load("nano")


def evaluator(loaded: Loaded, settings: EvaluateConfig = SMALL, **changes: Any) -> Evaluator:
    models = RoleModels(loaded.model)
    sampler = HFSampler(models, loaded.end, loaded.pad, 64, loaded.context)
    made = Evaluator(Arithmetic(), loaded, sampler, settings, 0, 40, models=models)
    return dataclasses.replace(made, **changes)


@pytest.fixture(scope="module")
def evaluation(nano: Loaded) -> tuple[list[Row], dict[str, float]]:
    return evaluator(nano, texts=True).evaluate(0, "test")


class Apart(Sampler):
    """A sampler that cannot decode greedily and sample in one batch."""

    def __init__(self, inner: HFSampler) -> None:
        self.inner = inner

    def sample(self, *arguments: Any) -> Any:
        return self.inner.sample(*arguments)


def test_greedy_and_sampled_answers_decode_together_as_they_do_apart(
    nano: Loaded, evaluation: tuple[list[Row], dict[str, float]]
) -> None:
    together = evaluator(nano, texts=True)
    rows, numbers = dataclasses.replace(together, sampler=Apart(together.sampler)).evaluate(0, "test")
    assert rows == evaluation[0] and numbers == evaluation[1]


def test_parts_of_the_problems_give_the_same_answers_and_are_told(
    nano: Loaded, evaluation: tuple[list[Row], dict[str, float]]
) -> None:
    progress: list[tuple[int, int]] = []
    rows, numbers = evaluator(nano, texts=True, at_once=25, tell=lambda *now: progress.append(now)).evaluate(
        0, "test"
    )
    assert progress == [
        (5, 12),
        (10, 12),
        (12, 12),
    ]  # 25 sequences are five problems of four samples and one greedy
    assert rows == evaluation[0] and numbers == evaluation[1]


def test_every_number_can_be_computed_again_from_the_rows(
    evaluation: tuple[list[Row], dict[str, float]],
) -> None:
    rows, numbers = evaluation
    by_problem: dict[str, list[Row]] = {}
    for row in rows:
        if row["mode"] == "sampled":
            by_problem.setdefault(row["problem"], []).append(row)
    assert len(by_problem) == 12
    correct = [[row["scores"]["correct"] for row in problem_rows] for problem_rows in by_problem.values()]
    assert numbers["eval/test/sampled/correct"] == pytest.approx(np.mean(correct))
    pairs = [
        max(pair) for problem_scores in correct for pair in combinations(problem_scores, 2)
    ]  # pass@2 by counting
    assert numbers["eval/test/sampled/pass@2"] == pytest.approx(np.mean(pairs))
    votes = []
    for problem_rows in by_problem.values():
        answers = [row["answer"] for row in problem_rows]
        winner = max(answers, key=lambda answer: (answers.count(answer), -answers.index(answer)))
        votes.append(problem_rows[answers.index(winner)]["scores"]["correct"])
    assert numbers["eval/test/sampled/maj@4"] == pytest.approx(np.mean(votes))
    agreed = [
        row["answer"] == other["answer"] != None  # noqa: E711
        for problem_rows in by_problem.values()
        for row, other in combinations(problem_rows, 2)
    ]
    expected = np.mean(agreed) - np.mean(correct)
    assert numbers["eval/test/sampled/overconfidence"] == pytest.approx(expected)
    assert 0 < numbers["eval/test/sampled/correct"] < numbers["eval/test/sampled/pass@2"] < 1
    assert "eval/test/sampled/pass@4" not in numbers  # it would need eight samples
    assert not any("@" in name for name in numbers if "/greedy/" in name)


def answered(*verdicts: Verdict) -> list[Answer]:
    return [Answer(verdict, 3, True) for verdict in verdicts]


def test_answers_lost_to_the_machine_are_in_no_number() -> None:
    lost = Verdict({}, None, "infra_error")
    right, wrong = Verdict({"correct": 1.0}, "a"), Verdict({"correct": 0.0}, "b")
    problems = [Problem(str(i), "", None, {"category": "a"}) for i in range(3)]
    numbers = summarize(
        Letters(), problems, [answered(right, wrong), answered(lost, right), answered(lost, lost)]
    )
    assert numbers["correct"] == 2 / 3
    assert numbers["shouted"] == 2 / 3  # the task's own summary
    assert numbers["length"] == 3


def test_a_part_of_a_score_is_not_a_solution() -> None:
    half = Verdict({"correct": 0.5}, "a")
    assert several([[half] * 4])["pass@2"] == 0.0
    assert several([[half] * 3]) == {} == several([])
    assert several([[Verdict({"correct": 1.0}, None)] * 4]) == {"pass@2": 1.0}  # no answers, no vote


# grpobench eval


def configure(arm: str = "a", seed: int = 0, **sections: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "experiment": "m",
        "task": Arithmetic(operations=(2,)),
        "model": ModelConfig("nano"),
        "sampler": SamplerConfig(temperature=0.7, max_completion_tokens=30),
        "reward": RewardConfig(),
        "train": TrainConfig(steps=3),
        "evaluate": EvaluateConfig(temperature=1.3),
        "checkpoint": CheckpointConfig(),
    }
    return RunConfig(arm=arm, seed=seed, algorithm=GRPO(), **{**settings, **sections})


def finished(run_folder: Path, nano: Loaded, scale: float = 1.0, **changes: Any) -> Path:
    """A run folder as a finished run leaves it; the trained policy is nano with its output scaled."""
    from safetensors.torch import save_file

    (run_folder / "final").mkdir(parents=True)
    (run_folder / "run.toml").write_text(stored.dump(configure(**changes)))
    (run_folder / "status.json").write_text('{"state": "finished", "step": 3, "attempt": 1, "why": ""}')
    evaluated = {f"eval/{split}/greedy/correct": 0.5 for split in ("validation", "test")}
    rows = [{"step": 0}, {"step": 3, **evaluated}]
    (run_folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run_folder / "eval.jsonl").write_text("")
    parameters = dict(nano.model.named_parameters())
    tensors = {name: (p * scale).detach().clone().contiguous() for name, p in parameters.items()}
    save_file(tensors, run_folder / "final" / "policy.safetensors")
    return run_folder


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "evals" not in path.parts
    }


def greedy(**changes: Any) -> assess.EvalRequest:
    return assess.EvalRequest("arithmetic", **{"problems": 8, "samples": 0, **changes})


def only(records: Iterator[assess.EvaluationRecord]) -> assess.EvaluationRecord:
    (record,) = records
    return record


def test_a_run_is_measured_before_and_after_and_its_logs_stay_as_they_are(
    tmp_path: Path, nano: Loaded
) -> None:
    run_folder = finished(tmp_path / "run", nano, scale=0.0)
    before = digests(run_folder)
    record = only(assess.assess(str(run_folder), greedy()))
    assert digests(run_folder) == before
    model = only(assess.assess("nano", greedy(sets={"operations": [2]}, limit=30, out=tmp_path / "models")))
    assert record.numbers["base"] == model.numbers["model"]
    assert record.numbers["base"]["eval/test/greedy/correct"] > 0.3
    assert record.numbers["final"]["eval/test/greedy/correct"] == 0.0  # all weights are nought
    assert record.content["policies"]["final"]["step"] == 3
    assert model.path.parent == tmp_path / "models" / "nano" / "evals"
    rows = [json.loads(line) for line in record.path.with_suffix(".jsonl").read_text().splitlines()]
    assert rows == list(record.rows) and len(rows) == 16
    assert {row["policy"]: row["step"] for row in rows} == {"base": 0, "final": 3}


def test_a_runs_own_task_is_asked_as_the_run_was_set(tmp_path: Path, nano: Loaded) -> None:
    run_folder = finished(tmp_path / "run", nano)
    settings = only(assess.assess(str(run_folder), greedy())).content["settings"]
    assert settings["task_settings"]["operations"] == [2]
    assert (settings["temperature"], settings["max_completion_tokens"]) == (1.3, 30)
    earlier = (run_folder / "run.toml").read_text().replace("temperature = 1.3\n", "")
    (run_folder / "run.toml").write_text(earlier)  # before evaluation had a temperature of its own
    assert only(assess.assess(str(run_folder), greedy())).content["settings"]["temperature"] == 0.7
    changed = only(assess.assess(str(run_folder), greedy(sets={"operations": [3]}, temperature=1.0)))
    assert changed.content["settings"]["task_settings"]["operations"] == [3]
    assert len(list((run_folder / "evals").glob("*.json"))) == 3  # another question stands beside the first


def test_what_is_still_true_is_not_asked_for_again(tmp_path: Path, nano: Loaded) -> None:
    run_folder = finished(tmp_path / "run", nano)
    first = only(assess.assess(str(run_folder), greedy()))
    again = only(assess.assess(str(run_folder), greedy()))
    assert not first.was_cached and again.was_cached and again.content == first.content
    assert list(again.rows) == list(first.rows)
    assert not only(assess.assess(str(run_folder), greedy(again=True))).was_cached
    content = json.loads(first.path.read_text())
    content["code"]["tasks/arithmetic.py"] = "another verifier"
    first.path.write_text(json.dumps(content))
    assert not only(assess.assess(str(run_folder), greedy())).was_cached
    (run_folder / "final" / "policy.safetensors").unlink()
    (run_folder / "final").rmdir()
    finished_again = finished(tmp_path / "other", nano, scale=0.0) / "final"
    finished_again.rename(run_folder / "final")
    trained = only(assess.assess(str(run_folder), greedy()))
    assert not trained.was_cached and trained.numbers["final"]["eval/test/greedy/correct"] == 0.0
    trained.path.unlink()  # a kill in the middle of writing leaves rows without their record
    assert not only(assess.assess(str(run_folder), greedy())).was_cached


def test_experiment_runs_share_base_and_runs_without_weights_are_skipped(
    tmp_path: Path, nano: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "m"
    for seed, scale in ((0, 1.0), (1, 0.0)):
        finished(root / f"a-arithmetic-s{seed}", nano, scale, seed=seed)
    unborn = root / "a-arithmetic-s2"
    unborn.mkdir()
    (unborn / "run.toml").write_text(stored.dump(configure(seed=2)))
    names = [f"a-arithmetic-s{seed}" for seed in range(4)]  # the last has no folder yet
    (root / "experiment.json").write_text(json.dumps({"runs": names}))
    asked_policies = []
    ask = assess.EvaluationCache._ask
    monkeypatch.setattr(assess.EvaluationCache, "_ask", lambda *a: asked_policies.append(a[-2]) or ask(*a))
    messages: list[str] = []
    records = list(assess.assess(str(root), greedy(), messages.append))
    assert [record.subject.name for record in records] == names[:2]
    assert asked_policies == [f"{names[0]} (base)", f"{names[0]} (final)", f"{names[1]} (final)"]
    assert "a-arithmetic-s2 has neither final weights" in messages[0]
    first, second = (record.numbers for record in records)
    assert first["base"] == second["base"] == first["final"] != second["final"]


def test_an_unfinished_run_is_measured_at_its_newest_checkpoint(tmp_path: Path, nano: Loaded) -> None:
    run_folder = finished(tmp_path / "run", nano)
    for step in (2, 10):
        saved = run_folder / "checkpoints" / f"step-{step}"
        saved.mkdir(parents=True)
        (saved / "policy.safetensors").write_bytes((run_folder / "final" / "policy.safetensors").read_bytes())
    (run_folder / "final" / "policy.safetensors").unlink()
    record = only(assess.assess(str(run_folder), greedy(base=False)))
    assert record.content["policies"]["final"]["step"] == 10 and list(record.numbers) == ["final"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nano", "--task", "arithmetik"], "unknown task 'arithmetik'; did you mean arithmetic?"),
        (["nanoo", "--task", "arithmetic"], "unknown model 'nanoo'"),
        (["nano", "--task", "arithmetic", "--no-greedy", "--samples", "0"], "nothing to evaluate"),
        (["nano", "--task", "arithmetic", "--set", "operatons=[2]"], "did you mean"),
        (
            ["nano", "--task", "arithmetic", "--max-completion-tokens", "5000"],
            "leave no room for 5000 new tokens",
        ),
        (["run", "--task", "arithmetic"], "run has neither final weights"),
        (["broken", "--task", "arithmetic"], "weights of another model; restore the run folder"),
        (
            ["nano", "--task", "arithmetic", "--temperature", "-1"],
            "--temperature: must be above 0 and at most 10, not -1.0",
        ),
        (
            ["nano", "--task", "arithmetic", "--temperature", "nan"],
            "--temperature: must be a number, not nan",
        ),
        (
            ["nano", "--task", "arithmetic", "--samples", "100000000"],
            "--samples: must be at least 0 and at most 100,000",
        ),
        (["nano", "--task", "arithmetic", "--out", "file"], "--out file: cannot write there"),
        (
            ["run", "--task", "arithmetic", "--out", "there"],
            "--out there: results of runs go to their own",
        ),
        (["torn", "--task", "arithmetic"], "experiment.json is damaged"),
        (["cut", "--task", "arithmetic"], "run.toml: not TOML"),
    ],
)
def test_mistakes_give_exit_2_and_the_remedy(
    words: Sequence[str],
    message: str,
    tmp_path: Path,
    nano: Loaded,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from safetensors.torch import save_file

    monkeypatch.chdir(tmp_path)
    empty = finished(tmp_path / "run", nano)
    (empty / "final" / "policy.safetensors").unlink()
    broken = finished(tmp_path / "broken", nano)
    save_file({"x": torch.zeros(2)}, broken / "final" / "policy.safetensors")
    (tmp_path / "file").touch()
    for name, file in (("torn", "experiment.json"), ("cut", "run.toml")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("[")
    assert cli.main(["eval", *words, "--problems", "2"]) == 2
    assert message in capsys.readouterr().err


def test_the_command_prints_numbers_with_intervals_and_json(
    tmp_path: Path, nano: Loaded, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folder = finished(tmp_path / "run", nano)
    words = ["eval", str(run_folder), "--task", "arithmetic", "--problems", "8", "--samples", "0"]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    record = json.loads(next((run_folder / "evals").glob("*.json")).read_text())
    value = record["policies"]["final"]["numbers"]["eval/test/greedy/correct"]
    assert "before" in shown and f"{value:.4f} [" in shown
    assert cli.main([*words, "--json"]) == 0
    printed_record = json.loads(capsys.readouterr().out)["records"][0]
    assert printed_record["numbers"]["final"]["eval/test/greedy/correct"] == value
    assert Path(printed_record["path"]).exists()


def test_a_disk_folder_given_as_a_model_has_its_results_under_its_name(tmp_path: Path, nano: Loaded) -> None:
    nano.model.save_pretrained(tmp_path / "mine")
    nano.tokenizer.save_pretrained(tmp_path / "mine")
    record = only(assess.assess(str(tmp_path / "mine"), greedy(out=tmp_path / "out")))
    assert record.path.parent == tmp_path / "out" / "mine" / "evals"
    assert record.numbers["model"]["eval/test/greedy/correct"] > 0.3


# What `grpobench browse` shows of them


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory, nano: Loaded) -> Path:
    """An experiment of two runs, the second of which has lost everything, evaluated by command on its task
    and on another, and a model beside them."""
    root = tmp_path_factory.mktemp("results") / "m"
    for seed, scale in ((0, 1.0), (1, 0.0)):
        finished(root / f"a-arithmetic-s{seed}", nano, scale, seed=seed)
    names = [f"a-arithmetic-s{seed}" for seed in (0, 1)]
    (root / "experiment.json").write_text(json.dumps({"name": "m", "arms": ["a"], "runs": names}))
    few = ["--problems", "6", "--samples", "1"]
    assert cli.main(["eval", str(root), "--task", "arithmetic", *few]) == 0
    assert cli.main(["eval", str(root), "--task", "nanobias", *few]) == 0
    assert cli.main(["eval", "nano", "--task", "nanocode", *few, "--out", str(root)]) == 0
    return root


def browsed(root: Path, **filters: Any) -> list[dict[str, Any]]:
    store = open_store(root, Filters(**filters))
    store.fill()
    assert store.faults == []
    return list(store.complete_rows(Filters(**filters)))


def test_browse_has_every_text_of_an_evaluation_with_its_prompt(evaluated: Path) -> None:
    shown = browsed(evaluated)
    (path,) = (evaluated / "a-arithmetic-s1/evals").glob("arithmetic-*.jsonl")
    stored_rows = [json.loads(line) for line in path.read_text().splitlines()]
    question = path.name.split("-")[2]
    expected = {
        (row["step"], f"eval test {row['mode']} {question}", row["problem"], row["completion"], row["answer"])
        for row in stored_rows
    }
    mine = [row for row in shown if (row["task"], row["seed"]) == ("arithmetic", 1)]
    keys = ("step", "kind", "problem", "text", "answer")
    assert {tuple(row[key] for key in keys) for row in mine} == expected and len(mine) == 2 * 6 * 2
    prompts = {problem.id: problem.prompt for problem in Arithmetic(operations=(2,)).problems("test")}
    assert all(row["prompt"] == prompts[row["problem"]] for row in mine)
    assert sum("prompt" in row for row in stored_rows) == 6  # once in a file
    others = {(row["arm"], row["task"], row["seed"], row["step"]) for row in shown} - {
        ("a", "arithmetic", seed, step) for seed in (0, 1) for step in (0, 3)
    }
    trained_on_another = {
        ("a", "nanobias (trained on arithmetic)", seed, step) for seed in (0, 1) for step in (0, 3)
    }
    assert others == trained_on_another | {("nano", "nanocode", 0, 0)}
    assert not any("likelihood" in row["kind"] for row in shown)  # has no text


def test_browse_compares_the_answers_before_and_after_training(evaluated: Path) -> None:
    lost = browsed(evaluated, step=[3], change=["lost"], seed=[1])
    before = browsed(evaluated, step=[0], outcome=["right"], seed=[1])
    assert lost and {row["task"] for row in lost} == {"arithmetic", "nanobias (trained on arithmetic)"}
    assert len(lost) == len(before) and all(row["outcome"] in ("wrong", "unparsable") for row in lost)
    assert not browsed(evaluated, change=["lost", "gained"], seed=[0])  # the weights are those before


def test_browse_prints_what_a_model_wrote_and_the_test_that_it_failed(
    evaluated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (wrong, *_) = (row for row in browsed(evaluated, arm=["nano"]) if row["failed_test"])
    assert cli.main(["browse", str(evaluated), "--arm", "nano", "--problem", wrong["problem"]]) == 0
    printed = capsys.readouterr().out
    assert f"wrong (failed {wrong['failed_test']}), answer read: {wrong['answer']}" in printed
    assert wrong["failed_test"].startswith("test ") and "f(x)=" in printed


def test_browse_opens_a_folder_of_evaluated_models(
    evaluated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(evaluated / "nano", tmp_path / "models/nano")
    assert cli.main(["browse", str(tmp_path / "models"), "--to", str(tmp_path / "page.html")]) == 0
    assert "12 completions" in capsys.readouterr().out
    assert cli.main(["browse", str(tmp_path / "models/nano"), "--to", str(tmp_path / "page.html")]) == 2
    assert f"this is one model; pass the folder above it, {tmp_path / 'models'}" in capsys.readouterr().err


def test_browse_names_damaged_evaluations_and_reads_the_others(evaluated: Path, tmp_path: Path) -> None:
    root = shutil.copytree(evaluated, tmp_path / "m")
    (rows,) = (root / "a-arithmetic-s0/evals").glob("arithmetic-*.jsonl")
    rows.write_bytes(rows.read_bytes().replace(b'"answer"', b'"replay"', 1))
    (record,) = (root / "a-arithmetic-s1/evals").glob("arithmetic-*.json")
    record.write_text("{}")
    store = open_store(root)
    store.fill()
    assert [fault.partition(": ")[0] for fault in store.faults] == [str(record), str(rows)]
    assert {row["task"] for row in store.complete_rows(Filters())} == {
        "nanobias (trained on arithmetic)",
        "nanocode",
    }


def test_browse_knows_who_wrote_what_in_evaluated_episodes(tmp_path: Path) -> None:
    assert cli.main(["eval", "nano", "--task", "tools", "--problems", "2", "--out", str(tmp_path)]) == 0
    turns = [row["turns"] for row in browsed(tmp_path)]
    assert turns and all(authors[0] == "policy" for episode in turns for authors in episode[::2])
    assert all(author == "environment" for episode in turns for author, _ in episode[1::2])
