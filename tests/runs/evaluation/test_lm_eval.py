"""Evaluation through the lm-eval harness.

Locked here: on the same items the harness and our evaluator give the same completions, likelihoods and
scores; its own mean is that of our rows; nothing of ours needs the network; what cannot work is an error with
a remedy.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.toys import Letters

from grpobench.analysis.topics.evaluations import compare_answers
from grpobench.runs import cli
from grpobench.runs.evaluation import lm_eval, records, text
from grpobench.runs.metrics.evaluator import Evaluator, Row, rows_of
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.settings.config import EvaluateConfig
from grpobench.tasks import TASKS
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.data.messages import Prompt
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Split, Task, Verdict

pytest.importorskip("lm_eval", reason="the lm-eval harness is not installed: pip install '.[lm-eval]'")

ONCE = lm_eval.PromptFormat(limit=40, samples=0, greedy=True, temperature=1.0, seed=0)


@pytest.fixture(scope="module")
def nano() -> Loaded:
    return load("nano")


def ours(loaded: Loaded, task: Task, count: int, limit: int) -> list[Row]:
    models = RoleModels(loaded.model)
    sampler = HFSampler(models, loaded.end, loaded.pad, 64, loaded.context)
    settings = EvaluateConfig(samples=0, test_problems=count)
    made = Evaluator(task, loaded, sampler, settings, 0, limit, texts=True, models=models)
    return made.evaluate(0, "test")[0]


def theirs(
    loaded: Loaded, task: Task, count: int, folder: Path, decoding: lm_eval.PromptFormat = ONCE
) -> tuple[list[Row], dict[str, float]]:
    problems = task.problems("test")[:count]
    answers_by_mode, means = lm_eval.ask(loaded, task, "test", problems, decoding, folder)
    return [
        row
        for mode, answers in answers_by_mode.items()
        for row in rows_of(0, "test", mode, problems, answers)
    ], means


def test_harness_and_evaluator_write_the_same_answers(nano: Loaded, tmp_path: Path) -> None:
    our_rows, (other, means) = ours(nano, Arithmetic(), 24, 40), theirs(nano, Arithmetic(), 24, tmp_path)
    (comparison,) = compare_answers(our_rows, other)
    assert comparison.mode == "greedy" and not comparison.differing
    assert comparison.items == comparison.same_text == 24
    # Neither nothing nor all, so that it could differ.
    assert 0.2 < comparison.first == comparison.second < 0.95
    assert means["eval/test/greedy/correct"] == pytest.approx(comparison.second)


def test_an_answer_ends_where_the_limit_cuts_it_in_both_ways(nano: Loaded, tmp_path: Path) -> None:
    short = dataclasses.replace(ONCE, limit=9)
    other, _ = theirs(nano, Arithmetic(), 8, tmp_path, short)
    (comparison,) = compare_answers(ours(nano, Arithmetic(), 8, 9), other)
    assert comparison.same_text == 8 and comparison.first == 0.0


@dataclass(frozen=True)
class Spelling(Letters):
    """Which of three words the policy finds most probable, behind the prompt or behind a premise."""

    name = "spelling"
    modes = ("likelihood",)
    scores = ("correct",)
    plain: bool = False

    def problems(self, split: Split) -> Sequence[Problem]:
        words = [("7+8=15#15", "7+8=16#16", "8"), ("2020-01-01", "3-1=2#2", "3-1=4#4"), ("#5", "#6", "#77")]
        return [
            Problem(f"2020-01-0{i}", prompt, list(candidates), {})
            for i, (prompt, candidates) in enumerate(
                zip(("Q:7+8\nA:", "Q:3-1\nA:", "2021-05-05"), words, strict=True)
            )
        ]

    def candidates(self, problem: Problem) -> tuple[str, ...]:
        return tuple(problem.truth)

    def premise(self, problem: Problem) -> str | None:
        return problem.prompt[:3] if self.plain else None

    def choose(self, problem: Problem, logp: Sequence[float], tokens: Sequence[int]) -> Verdict:
        best = max(range(len(logp)), key=lambda i: logp[i] / tokens[i])  # by token, so that lengths matter
        return Verdict({"correct": float(best == 0)}, problem.truth[best])


@pytest.mark.parametrize("plain", [False, True])
def test_harness_and_evaluator_read_the_same_likelihoods(
    plain: bool, nano: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "spelling", Spelling)
    task = Spelling(plain=plain)
    our_rows, (other, means) = ours(nano, task, 3, 40), theirs(nano, task, 3, tmp_path)
    assert [row["scores"] for row in our_rows] == [row["scores"] for row in other]
    assert [row["answer"] for row in our_rows] == [row["answer"] for row in other]
    for a, b in zip(our_rows, other, strict=True):
        assert a["logp"] == pytest.approx(b["logp"], abs=1e-4)  # float32, other batches
    (comparison,) = compare_answers(our_rows, other)
    assert comparison.mode == "likelihood" and comparison.same_text is None and not comparison.differing
    assert means["eval/test/likelihood/correct"] == pytest.approx(comparison.first)


def test_a_chat_template_is_applied_once_in_both_ways(nano: Loaded, tmp_path: Path) -> None:
    tokenizer = copy.deepcopy(nano.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    chatty = dataclasses.replace(nano, tokenizer=tokenizer)
    other, _ = theirs(chatty, Arithmetic(), 6, tmp_path)
    (comparison,) = compare_answers(ours(chatty, Arithmetic(), 6, 40), other)
    assert comparison.same_text == 6 and comparison.first > 0


def test_prompts_that_the_harness_reads_otherwise_are_refused(nano: Loaded) -> None:
    class Odd(Loaded):
        def encode(self, prompt: Prompt) -> tuple[int, ...]:
            return (*super().encode(prompt), 1)

    odd = Odd(nano.model, nano.tokenizer, nano.provenance, nano.end)
    with pytest.raises(DataError, match="lm-eval reads its prompt as"):
        lm_eval.demand_same_prompts(odd, Arithmetic().problems("test")[:1], templated=False)


def test_samples_are_as_many_as_asked_for_and_differ(nano: Loaded, tmp_path: Path) -> None:
    drawn = dataclasses.replace(ONCE, samples=3, greedy=False)
    rows, means = theirs(nano, Arithmetic(), 6, tmp_path, drawn)
    assert [row["sample"] for row in rows] == [0, 1, 2] * 6
    assert len({(row["problem"], row["completion"]) for row in rows}) > 6
    correct = [row["scores"]["correct"] for row in rows]
    assert means["eval/test/sampled/correct"] == pytest.approx(sum(correct) / len(correct))


@pytest.mark.slow
def test_written_tasks_serve_the_harness_own_command_line(nano: Loaded, tmp_path: Path) -> None:
    """In another process, from the folder alone and without the network."""
    theirs(nano, Arithmetic(operations=(2,)), 4, tmp_path)
    nano.model.save_pretrained(tmp_path / "model")
    nano.tokenizer.save_pretrained(tmp_path / "model")
    program = (
        "from lm_eval.evaluator import evaluate\n"
        "from lm_eval.tasks import TaskManager\n"
        "from lm_eval.models.huggingface import HFLM\n"
        "import json, sys\n"
        "tasks = TaskManager(include_path=sys.argv[1], include_defaults=False).load(sys.argv[2])\n"
        "model = HFLM(pretrained=sys.argv[1] + '/model', device='cpu', dtype='float32')\n"
        "print(json.dumps(evaluate(model, tasks, bootstrap_iters=0)['results'][sys.argv[2]]['correct,none']))"
    )
    name = "grpobench_arithmetic_test_greedy"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), name],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    expected = ours(nano, Arithmetic(operations=(2,)), 4, 40)
    share = sum(row["scores"]["correct"] for row in expected) / 4
    assert json.loads(done.stdout.splitlines()[-1]) == pytest.approx(share)


# The harness's own tasks


def own_task(folder: Path, **changes: Any) -> None:
    """A multiple-choice task in the harness's own format."""
    rows = [
        {"q": "Q:7+8\nA:", "c": ["7+8=16", "7+8=15"], "a": 1},
        {"q": "Q:3-1\nA:", "c": ["3-1=2", "3-1=4"], "a": 0},
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = {
        "task": "made_up",
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(folder / "rows.jsonl")},
            "cache_dir": str(folder / "c"),
        },
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "q",
        "doc_to_choice": "c",
        "doc_to_target": "a",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        **changes,
    }
    (folder / "made_up.yaml").write_text("\n".join(f"{key}: {json.dumps(table[key])}" for key in table))


def test_a_task_of_the_harness_is_asked_as_it_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_task(tmp_path)
    words = ["eval", "nano", "--task", "made_up", "--through", "lm-eval", "--include", str(tmp_path)]
    assert cli.main([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert record["numbers"]["model"] == {"eval/test/likelihood/acc": 1.0}
    rows = Path(record["path"]).with_suffix(".jsonl").read_text().splitlines()
    assert [json.loads(row)["scores"] for row in rows] == [{"acc": 1.0}, {"acc": 1.0}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset_path": "nobody/nothing", "dataset_kwargs": {}}, "Hugging Face hub: connect this machine"),
        ({"unsafe_code": True}, "runs what the model writes as code"),
    ],
)
def test_a_task_of_the_harness_that_cannot_be_asked_gives_exit_2(
    changes: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_task(tmp_path, **changes)
    words = ["eval", "nano", "--task", "made_up", "--through", "lm-eval", "--include", str(tmp_path)]
    assert cli.main([*words, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_what_the_harness_cannot_do_gives_exit_2_and_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["eval", "nano", "--problems", "2", "--out", str(tmp_path), "--through", "both", "--task"]
    turned = [name for name, cls in TASKS.items() if cls().turns > 1]
    assert cli.main([*words, turned[0]]) == 2
    assert "lm-eval asks for one answer" in capsys.readouterr().err
    assert cli.main([*words, "made_up"]) == 2
    assert "for a task of lm-eval's own add --through lm-eval" in capsys.readouterr().err
    monkeypatch.setattr(lm_eval.importlib.util, "find_spec", lambda name: None)
    assert cli.main([*words, "arithmetic"]) == 2
    assert "pip install '.[lm-eval]'" in capsys.readouterr().err


def test_differing_items_are_shown_with_both_completions(tmp_path: Path) -> None:
    def made(way: str, answer: str) -> records.EvaluationRecord:
        row = {"policy": "model", "mode": "greedy", "problem": "p", "outcome": "graded"}
        row |= {"scores": {"correct": float(answer == "5")}, "completion": f"it is {answer}"}
        path = tmp_path / "evals" / f"t-test-1-{way}.json"
        content = {"through": way, "policies": {"model": {"numbers": {}}}}
        subject = records.Subject("m", tmp_path, records.ModelConfig("m"))
        return records.EvaluationRecord(subject, path, content, [row])

    pairing = text.paired([made("grpobench", "5"), made("lm-eval", "7")])
    assert "the same scores on 0 of 1 items" in pairing.lines[0]
    assert "it is 5" in pairing.lines[2] and "it is 7" in pairing.lines[3]
    assert pairing.rows[0]["differing"] == ["p"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "limit"), [("gsm8k", 24, 64), ("bbq", 48, 0), ("arithmetic", 24, 40)]
)
def test_harness_and_evaluator_agree_with_a_real_model(
    name: str, count: int, limit: int, tmp_path: Path
) -> None:
    task = TASKS[name]()
    if lack := task.missing():
        pytest.skip(lack)
    try:
        loaded = load("smollm2-135m")
    except DataError as error:
        pytest.skip(str(error))
    limit = limit or task.max_completion_tokens
    decoding = dataclasses.replace(ONCE, limit=limit)
    our_rows, (other, means) = (
        ours(loaded, task, count, limit),
        theirs(loaded, task, count, tmp_path, decoding),
    )
    for comparison in compare_answers(our_rows, other):
        assert comparison.items == count and not comparison.differing, comparison
        assert means[f"eval/test/{comparison.mode}/correct"] == pytest.approx(comparison.first)
        if comparison.same_text is not None:
            assert comparison.same_text == count
