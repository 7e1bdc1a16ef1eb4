"""The comparison with TRL: its arithmetic, its prompts, its fairness checks, and one real run."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
from collections.abc import Iterator

import pytest
from rich.console import Console

from grpobench.runs import cli
from grpobench.runs.bench import compare
from grpobench.runs.bench.sides import PHASES, Case, Letters, Ready, Step, prompt_texts, share, shares
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.errors import DataError

CASE = Case("short", "nano", prompts=2, group=4, prompt_tokens=16, completion_tokens=24, steps=6)
FACTS: dict[str, str | int] = {
    "threads": 1,
    "device": "cpu",
    "torch": "2",
    "transformers": "5",
    "trl": "1.16.0",
}


class Stub:
    """A side whose n-th step takes `seconds[n]`, half of it sampling."""

    def __init__(self, name: str, case: Case, seconds: list[float], calls: list[str]) -> None:
        self.name, self.case, self.seconds, self.calls = name, case, iter(seconds), calls
        texts = case.texts or ("made by the first side",)
        self.ready = Ready(texts, FACTS, before_gb=0.5)

    def step(self) -> Step:
        self.calls.append(self.name)
        seconds = next(self.seconds)
        phases = dict.fromkeys((*PHASES, "other"), 0.0) | {"sample": seconds / 2, "other": seconds / 2}
        return Step(seconds, seconds * 2, self.case.tokens, 1.0 + seconds, phases)


class Stage:
    """Starts stubs and keeps what happened to them."""

    def __init__(self, tokens: int = 0) -> None:
        self.calls: list[str] = []
        self.given: dict[str, Case] = {}
        self.tokens = tokens

    @contextlib.contextmanager
    def start(self, name: str, case: Case) -> Iterator[Stub]:
        self.given[name] = case
        seconds = {"ours": [9.0, 9.0, 1.0, 2.0, 3.0, 4.0], "trl": [9.0, 9.0, 10.0, 10.0, 5.0, 50.0]}[name]
        stub = Stub(name, case, seconds, self.calls)
        if self.tokens:
            stub.case = Case("other", "nano", 1, 1, self.tokens, 0, 1)
        yield stub
        self.calls.append(f"end {name}")


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "REST", 0.0)


def test_medians_leave_the_two_warm_up_steps_out_and_the_ratio_is_trl_over_ours() -> None:
    outcome = compare.measure([CASE], Stage().start, lambda _: None)
    (case,) = outcome["cases"]
    assert case["ours_s"] == 2.5  # of 1, 2, 3, 4
    assert case["trl_s"] == 10.0  # of 10, 10, 5, 50
    assert case["ratio"] == 4.0
    assert case["ours_cpu_s"] == 5.0
    assert case["ours_peak_gb"] == 5.0 and case["ours_before_gb"] == 0.5
    assert case["ours_steps_s"] == [1.0, 2.0, 3.0, 4.0]
    assert case["trl_steps_s"] == [10.0, 10.0, 5.0, 50.0]
    assert case["phases"] == dict.fromkeys(PHASES, 0.0) | {"sample": 1.25, "other": 1.25}
    assert list(case["phases"]) == ["sample", "verify", "read", "backward", "optimise", "other"]


def test_the_outcome_is_json_with_the_facts_of_the_machine() -> None:
    outcome = compare.measure([CASE], Stage().start, lambda _: None)
    assert json.loads(json.dumps(outcome)) == outcome
    assert {**FACTS, "model": "nano", "precision": "float32"}.items() <= outcome.items()


def test_sides_take_turns_and_neither_always_goes_first() -> None:
    stage = Stage()
    compare.measure([CASE], stage.start, lambda _: None)
    steps = ["ours", "trl", "trl", "ours"] * 3
    assert stage.calls == [*steps, "end ours", "end trl"]


def test_ours_gets_the_prompts_that_the_other_side_has() -> None:
    stage = Stage()
    compare.measure([CASE], stage.start, lambda _: None)
    assert stage.given["trl"].texts == ()
    assert stage.given["ours"].texts == ("made by the first side",)


def test_a_side_that_works_on_other_tokens_stops_the_comparison() -> None:
    with pytest.raises(RuntimeError, match="ours worked on 7 tokens in a step of short, not on 320"):
        compare.measure([CASE], Stage(tokens=7).start, lambda _: None)


def test_the_table_names_both_sides_and_the_ratio() -> None:
    text = io.StringIO()
    outcome = compare.measure([CASE], Stage().start, lambda _: None)
    compare.show(outcome, Console(file=text, width=120))
    shown = text.getvalue()
    assert "TRL 1.16.0" in shown and "2.500 s" in shown and "10.000 s" in shown and "4.00" in shown
    assert "1.250 s (50%)" in shown


def test_nano_has_both_shapes_and_other_models_the_long_prompt_only() -> None:
    shapes = [
        (c.name, c.prompts, c.group, c.prompt_tokens, c.completion_tokens) for c in compare.cases("nano")
    ]
    assert shapes == [("short", 16, 8, 16, 24), ("long-prompt", 16, 8, 150, 8)]
    (other,) = compare.cases("smollm2-135m")
    assert (other.name, other.prompts, other.group) == ("long-prompt", 2, 16)
    assert all(
        case.steps - compare.WARM_UP >= 8 for name in ("nano", "smollm2-135m") for case in compare.cases(name)
    )


def test_prompts_differ_and_have_exactly_the_wanted_tokens() -> None:
    def encode(text: str) -> list[int]:  # three tokens of template, then one per word
        return [0, 0, 0, *map(len, text.split())]

    texts = prompt_texts(encode, count=5, tokens=16)
    assert len(set(texts)) == 5
    assert {len(encode(text)) for text in texts} == {16}
    assert texts == prompt_texts(encode, count=5, tokens=16)


def test_a_template_longer_than_the_prompt_is_an_error_that_says_so() -> None:
    with pytest.raises(DataError, match="an empty one has 40"):
        prompt_texts(lambda text: [0] * (40 + len(text)), count=2, tokens=16)


def test_both_sides_reward_the_share_of_one_letter() -> None:
    assert share("eels") == 0.5 and share("") == 0.0
    task = Letters(texts=("a",))
    (verdict,) = task.verify(task.problems("train")[0], ["eels"])
    assert verdict.scores["share"] == 0.5
    assert shares(["eels", [{"role": "assistant", "content": "eels"}]], trainer_state=None) == [0.5, 0.5]


def test_without_trl_the_command_ends_with_2_and_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["bench", "--json"]) == 2
    assert "pip install 'trl==1.16.*'" in capsys.readouterr().err


def test_an_unknown_model_ends_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("trl")
    assert cli.main(["bench", "--model", "nanno", "--json"]) == 2
    assert "nanno" in capsys.readouterr().err


@pytest.mark.slow
def test_both_real_sides_work_on_the_same_tokens() -> None:
    pytest.importorskip("trl")
    case = Case("tiny", "nano", prompts=2, group=4, prompt_tokens=16, completion_tokens=4, steps=4)
    outcome = compare.measure([case], compare.process, lambda _: None)
    (found,) = outcome["cases"]
    assert len(found["ours_steps_s"]) == len(found["trl_steps_s"]) == 2
    assert found["ratio"] > 0 and found["ours_peak_gb"] >= found["ours_before_gb"] > 0
    assert sum(found["phases"].values()) == pytest.approx(found["ours_s"], rel=0.2)  # medians of two steps
    assert outcome["threads"] == 1 and outcome["trl"].startswith("1.")


@pytest.mark.slow
def test_a_side_that_cannot_load_its_model_says_why() -> None:
    pytest.importorskip("trl")
    with (
        pytest.raises(ConfigError, match="does not exist"),
        compare.process("ours", Case("tiny", "./no-such-folder", 1, 2, 16, 4, 1, texts=("a",))),
    ):
        pass
