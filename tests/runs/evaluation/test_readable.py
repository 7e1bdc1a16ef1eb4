"""`grpobench tasks readable`.

Locked here: which answers count as readable, complete and cut, on completions written by hand; accuracy by
likelihood equals that of plain forward passes of transformers; a verdict follows the shares; kept rows are
replaced by their own measurement only; without a chat template the model reads the task's text alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpobench.analysis import readable
from grpobench.analysis.readable import Counts, ReadableRow, count, count_likeliest
from grpobench.analysis.record import as_text
from grpobench.runs import cli
from grpobench.runs.models.loading import load, load_outline
from grpobench.tasks.gsm8k import GSM8K
from grpobench.tasks.nanobias import NanoBias
from grpobench.tasks.task import Problem, Verdict

TEMPLATE = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


def written(verdict: Verdict, stopped: bool, mode: str = "sampled") -> dict[str, Any]:
    """A row of an evaluation, as far as it is counted."""
    return {
        "mode": mode,
        "outcome": verdict.outcome,
        "scores": dict(verdict.scores),
        "stopped": stopped,
    }


def test_counts_of_completions_written_by_hand() -> None:
    problem = Problem("one", "", {"answer": "18", "rationale": ""})
    completions = [
        ("9 * 2 = 18\n#### 18", True),  # complete and right
        ("#### 18\nQuestion: What is 2 + 2?\n#### 4\nQuestion:", False),  # cut, behind the answer in its form
        ("The answer is 7.", True),  # read without the form; ended by the model
        ("She has 16 eggs and eats 3", False),  # readable, but cut before an answer
        ("I cannot tell.", True),  # unreadable
        ("Let us think about what", False),  # unreadable, cut
    ]
    verdicts = GSM8K().verify(problem, [text for text, _ in completions])
    rows = [written(verdict, stopped) for verdict, (_, stopped) in zip(verdicts, completions, strict=True)]
    rows.append(written(Verdict({}, None, "infra_error"), True))  # counts nowhere
    assert count(rows) == {
        "sampled": Counts(answers=6, readable=4, complete=3, cut=3, cut_incomplete=2, correct=2)
    }


def test_guessing_is_right_as_often_as_there_are_options() -> None:
    rows = [
        {"mode": "likelihood", "scores": {"correct": right}, "logp": [0.0] * options}
        for right, options in ((1.0, 2), (0.0, 4), (1.0, 4), (0.0, 2))
    ]
    assert count_likeliest(rows) == (4, 2, (1 / 2 + 1 / 4 + 1 / 4 + 1 / 2) / 4)
    num_questions, right, chance = count_likeliest(
        [{"mode": "likelihood", "scores": {"biased": 1.0}, "logp": [0.0]}]
    )
    assert (num_questions, right) == (0, 0) and math.isnan(chance)


def row(**changes: Any) -> ReadableRow:
    made = {"commit": "0123", "versions": {"python": "3.12"}, "machine": "CPU x86_64"}
    fields: dict[str, Any] = {
        "model": "small",
        "chat": True,
        "task": "bbq",
        "settings": {},
        "warm_start": "",
        "split": "test",
        "temperature": 1.0,
        "max_completion_tokens": 16,
        "dtype": "float32",
        "written": {"sampled": Counts(10, 9, 9, 1, 1, 4)},
        "asked": 10,
        "likeliest": 5,
        "chance": 1 / 3,
        "made": made,
    }
    return ReadableRow(**{**fields, **changes})


@pytest.mark.parametrize(
    ("complete", "cut_incomplete", "warm", "verdict"),
    [
        (9, 1, "", "readable"),
        (8, 2, "", "too few tokens"),
        (8, 0, "", "needs a warm start"),
        (5, 3, "", "needs a warm start"),
        (8, 0, "15 × 8", "not readable"),
        (10, 0, "15 × 8", "readable"),
    ],
)
def test_verdicts(complete: int, cut_incomplete: int, warm: str, verdict: str) -> None:
    counts = Counts(10, complete, complete, cut_incomplete, cut_incomplete, 0)
    sure = {"greedy": Counts(10, 10, 10, 0, 0, 10)}  # what is sampled decides
    assert row(written={**sure, "sampled": counts}, warm_start=warm).verdict == verdict
    assert row(written={}).verdict == "by likelihood"


def test_kept_rows_are_read_back_and_replaced_by_their_own_measurement_only(tmp_path: Path) -> None:
    first, plain, warm = row(), row(chat=False, chance=math.nan, asked=0), row(warm_start="15 × 8")
    again = dataclasses.replace(warm, likeliest=9, warm_start="30 × 8")
    merged = readable.merge([first, plain, warm], [again])
    path = tmp_path / "readable.json"
    path.write_text(as_text(readable.content_of(merged)), encoding="utf-8")
    saved_rows = readable.read(path)
    assert [readable_row.row() for readable_row in saved_rows] == [
        readable_row.row() for readable_row in (first, again, plain)
    ]
    table = "\n".join(readable.render(saved_rows, "table"))
    assert "| bbq | small | chat | – | 10 | 90.0 | 90.0 (59.6 to 98.2) | 10.0 | 40.0 |" in table
    assert "50.0 of 10 (chance 33.3) | readable |" in table
    assert "3 rows, at commit `0123` with python 3.12" in " ".join(readable.render(saved_rows, "provenance"))


@torch.no_grad()
def test_accuracy_by_likelihood_is_that_of_plain_forward_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nano = load("nano")
    nano.model.save_pretrained(tmp_path / "mine")
    nano.tokenizer.save_pretrained(tmp_path / "mine")
    words = ["tasks", "readable", str(tmp_path / "mine"), "--task", "nanobias", "--problems", "24"]
    assert cli.main([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "mine")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "mine")
    right = []
    for problem in NanoBias().problems("test")[:24]:
        before = tokenizer.encode(problem.prompt)
        totals = {}
        for option in NanoBias().candidates(problem):
            after = tokenizer.encode(option, add_special_tokens=False)
            logp = model(torch.tensor([before + after])).logits[0].double().log_softmax(-1)
            totals[option] = sum(float(logp[len(before) + i - 1, token]) for i, token in enumerate(after))
        right.append(max(totals, key=lambda option: totals[option]).strip() == problem.truth["correct"])
    assert 0 < sum(right) < 24  # it knows some of them
    assert (record["asked"], record["likeliest"]) == (24, sum(right))
    assert record["chance"] == pytest.approx(1 / 3) and record["warm_start"] == "" and not record["chat"]
    assert record["shares"]["likelihood"]["correct"]["value"] == sum(right) / 24


def test_the_command_measures_again_after_a_warm_start_and_asks_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPOBENCH_CACHE", str(tmp_path / "cache"))
    words = ["tasks", "readable", "nano", "--task", "arithmetic", "--problems", "4", "--no-greedy"]
    words += ["--max-completion-tokens", "8", "--warm-start", "2", "--batch", "2", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    first = capsys.readouterr().out
    header, as_it_is, warm = first.splitlines()
    assert header.startswith("task") and "complete (95 % interval)" in header
    assert as_it_is.split()[:4] == ["arithmetic", "nano", "plain", "–"] and "2 × 2" in warm
    rows = sorted(tmp_path.rglob("*.jsonl"))
    made = [path.stat().st_mtime_ns for path in rows]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == first and [path.stat().st_mtime_ns for path in rows] == made


def test_without_its_chat_template_a_model_reads_the_text_alone(tmp_path: Path) -> None:
    nano = load("nano")
    nano.tokenizer.chat_template = TEMPLATE
    nano.model.save_pretrained(tmp_path / "chat")
    nano.tokenizer.save_pretrained(tmp_path / "chat")
    for read in (load, load_outline):
        chat, plain = (read(str(tmp_path / "chat"), chat_template=chat) for chat in (True, False))
        assert chat.has_chat_template and chat.decode(chat.encode("3+4=")) == "<3+4=>"
        assert not plain.has_chat_template and plain.encode("3+4=") == tuple(nano.tokenizer.encode("3+4="))
    plain.tokenizer.save_pretrained(tmp_path / "trained")
    assert not AutoTokenizer.from_pretrained(tmp_path / "trained").chat_template


def test_eval_keeps_both_ways_of_asking_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "nano", "--task", "arithmetic", "--problems", "2", "--out", str(tmp_path), "--json"]
    paths = set()
    for more in ([], ["--no-chat-template"], ["--dtype", "bfloat16"]):
        assert cli.main([*words, "--max-completion-tokens", "4", *more]) == 0
        paths.add(json.loads(capsys.readouterr().out)["records"][0]["path"])
    assert len(paths) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nano", "--task", "bqq"], "did you mean bbq?"),
        (["nano", "--task", "arithmetic", "--set", "bigest=3"], "bigest"),
        (["nano", "--task", "arithmetic", "--temperature", "0"], "temperature"),
        (
            ["nano", "--task", "arithmetic", "--learning-rate", "2", "--warm-start", "1"],
            "warm_start_learning",
        ),
    ],
)
def test_mistakes_give_exit_2_and_the_remedy(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tasks", "readable", *words, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
