"""What a policy writes is stored: every evaluated completion, and the rollouts of the last step."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from helpers.toys import Letters
from helpers.whole_runs import configure, rows, run

import grpobench
from grpobench.analysis.runfolder.experiment import (
    completion_files,
    read_completions,
    read_rollouts,
    rollout_steps,
)
from grpobench.runs.runfolder.folder import RunFolder, changed
from grpobench.runs.settings.config import EvaluateConfig, RunConfig, SamplerConfig
from grpobench.runs.train import run_loop
from grpobench.tasks.data.messages import as_json
from grpobench.tasks.nanocode import NanoCode
from grpobench.tasks.tools import Tools

EVALUATE = EvaluateConfig(every=2, problems=3, samples=2, test_problems=2)
KEY = ("split", "step", "mode", "problem", "sample")


def without(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, evaluate=dataclasses.replace(config.evaluate, completions=False))


def stored(path: Path) -> dict[tuple[Any, ...], str]:
    return {
        (split, step, row["mode"], row["problem"], row["sample"]): row["completion"]
        for (split, step), file in completion_files(path).items()
        for row in read_completions(file)
    }


@pytest.fixture(scope="module")
def finished(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results") / "a-letters-s3"
    run(configure(policy, evaluate=EVALUATE), path)
    return path


def test_every_answer_has_its_completion_and_is_what_the_task_reads_in_it(finished: Path) -> None:
    texts, answers = stored(finished), rows(finished, "eval.jsonl")
    assert texts.keys() == {tuple(row[key] for key in KEY) for row in answers}
    assert all("completion" not in row for row in answers)
    task = Letters()
    problems = {problem.id: problem for split in task.splits for problem in task.problems(split)}
    for row in answers:
        (read,) = task.verify(problems[row["problem"]], [texts[tuple(row[key] for key in KEY)]])
        assert (read.answer, dict(read.scores)) == (row["answer"], row["scores"])


def test_a_reader_has_the_prompt_of_every_text_and_the_answer_of_every_rollout(finished: Path) -> None:
    task = Letters()
    for (split, _), file in completion_files(finished).items():
        prompts = {problem.id: problem.prompt for problem in task.problems(split)}
        stored_rows = read_completions(file)
        stored_prompts = {row["problem"]: row["prompt"] for row in stored_rows if "prompt" in row}
        assert stored_prompts == {row["problem"]: prompts[row["problem"]] for row in stored_rows}
        assert sum("prompt" in row for row in stored_rows) == len(stored_prompts)  # once in a file
    problems = {problem.id: problem for problem in task.problems("train")}
    for file in rollout_steps(finished).values():
        for group in read_rollouts(file):
            texts = [completion["text"] for completion in group["completions"]]
            verdicts = task.verify(problems[group["problem"]], texts)
            answers = [completion["answer"] for completion in group["completions"]]
            assert answers == [verdict.answer for verdict in verdicts]


def test_the_rollouts_of_the_last_step_are_stored_and_the_result_lists_all(finished: Path) -> None:
    assert list(rollout_steps(finished)) == [1, 2, 3]  # the first, with an evaluation, the last
    sums = (finished / "sums.json").read_text()
    assert all(f"completions/{path.name}" in sums for path in completion_files(finished).values())


def test_a_run_that_an_event_ends_keeps_the_rollouts_of_that_step(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(trainer: Any, folder: RunFolder, step: int, row: Any) -> bool:
        trainer.collapsed = "an event" if step == 2 else ""
        return bool(trainer.collapsed)

    monkeypatch.setattr(run_loop, "look", look)
    run(configure(policy, evaluate=dataclasses.replace(EVALUATE, every=0)), tmp_path)
    assert list(rollout_steps(tmp_path)) == [1, 2]


def test_without_the_setting_nothing_else_differs(policy: str, finished: Path, tmp_path: Path) -> None:
    config = configure(policy, evaluate=EVALUATE)
    run(without(config), tmp_path)
    assert not (tmp_path / "completions").exists()
    assert (tmp_path / "eval.jsonl").read_bytes() == (finished / "eval.jsonl").read_bytes()
    assert not changed(tmp_path, config)  # a resumed run may store them from there on


def test_a_resumed_run_drops_later_completions(policy: str, tmp_path: Path) -> None:
    (tmp_path / "completions").mkdir()
    with RunFolder.open(tmp_path, configure(policy)) as folder:
        folder.rewind(0)
        for step in (0, 2, 4):
            answer = {"step": step, "split": "test", "mode": "greedy", "problem": "p", "sample": 0}
            folder.evaluations([{**answer, "completion": "\ud800 x"}])
            if step == 2:
                folder.save(2, {}, {})
        assert stored(tmp_path)["test", 4, "greedy", "p", 0] == "\ud800 x"
        folder.rewind(2)
        assert list(completion_files(tmp_path)) == [("test", 0), ("test", 2)]
        folder.rewind(0)
        assert not completion_files(tmp_path)


def test_results_hold_completions_and_rollouts(finished: Path) -> None:
    results = grpobench.load(finished.parent)
    joined = results.evaluations.merge(results.completions, validate="one_to_one")
    assert len(joined) == len(results.evaluations) == len(results.completions)
    rollouts = results.rollouts
    assert len(rollouts) == 3 * 16 and rollouts["completion"].map(type).eq(str).all()
    last = rollouts[rollouts["step"] == 3]
    row = rows(finished)[3]
    assert last["reward"].mean() == pytest.approx(row["reward/mean"])
    assert last["length"].mean() == pytest.approx(row["length/mean"])


def test_a_reader_knows_who_wrote_what_in_evaluated_episodes(policy: str, tmp_path: Path) -> None:
    path = tmp_path / "a-tools-s3"
    task = Tools(horizon=2, train=8, validation=4, test=4)
    sampler = SamplerConfig(max_completion_tokens=40)
    run(configure(policy, task=task, sampler=sampler, evaluate=EVALUATE), path)
    for file in completion_files(path).values():
        for row in read_completions(file):
            authors = [turn["by"] for turn in row["turns"]]
            assert authors[::2] == ["policy"] * len(authors[::2])
            assert authors[1::2] == ["environment"] * len(authors[1::2])
    answers = rows(path, "eval.jsonl")
    assert answers and all("conversation" not in row for row in answers)


def test_a_wrong_program_is_stored_with_the_test_that_it_failed(tmp_path: Path) -> None:
    """Beside its text, and not in the log: of evaluations in completions/, of rollouts in rollouts/."""
    path = tmp_path / "a-nanocode-s3"
    task = NanoCode(train=8, validation=6, test=6)
    sampler = SamplerConfig(max_completion_tokens=20)
    run(configure("nano", task=task, sampler=sampler, evaluate=EVALUATE), path)
    problems = {problem.id: problem for split in task.splits for problem in task.problems(split)}
    texts = [row for file in completion_files(path).values() for row in read_completions(file)]
    pairs = [(row["problem"], row["completion"], row.get("failed_test", "")) for row in texts]
    for file in rollout_steps(path).values():
        for group in read_rollouts(file):
            written = group["completions"]
            pairs += [(group["problem"], row["text"], row.get("failed_test", "")) for row in written]
    for problem, text, failed in pairs:
        (verdict,) = task.verify(problems[problem], [text])
        assert failed == verdict.failed_test
        assert bool(failed) == (verdict.scores["correct"] == 0 and verdict.outcome != "unparsable")
    assert 0 < sum(failed != "" for _, _, failed in pairs) < len(pairs)
    assert "failed_test" not in (path / "eval.jsonl").read_text()


def test_stored_prompts_describe_the_tools_that_they_offer() -> None:
    prompt = Tools(notation="tools").problems("test")[0].prompt
    system, user = as_json(prompt)
    assert isinstance(system, dict) and '"name": "lookup"' in system["content"]
    assert user == {"role": "user", "content": prompt[-1].content}  # type: ignore[union-attr]
