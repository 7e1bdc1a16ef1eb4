"""`grpobench bench --case decoding`: two ways to decode answer the same requests in turn."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import torch
from helpers.bench_sides import quiet

from grpobench.benchmarks import bench, decoding
from grpobench.benchmarks.cases import BenchmarkCase
from grpobench.runs import cli
from grpobench.runs.sample.in_process import HFSampler

CASE = BenchmarkCase("decoding", "nano", prompts=2, group=3, prompt_tokens=16, completion_tokens=4, steps=4)


def test_the_command_measures_both_ways_on_the_same_requests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[list[str], Any]] = []
    sample = HFSampler.sample

    def recorded(self: HFSampler, requests: Any, limit: int, temperature: float) -> Any:
        calls.append((decoding.ways_of(self), [(request.prompt, request.seeds) for request in requests]))
        assert self.models.dtype == torch.bfloat16
        return sample(self, requests, limit, temperature)

    monkeypatch.setattr(HFSampler, "sample", recorded)
    monkeypatch.setattr(bench, "decoding_shape", lambda model, name: CASE)
    assert cli.main(["bench", "--case", "decoding", "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["model"], outcome["precision"], outcome["cases"]) == ("nano", "bfloat16", [])
    decoding_row = outcome["decoding"]
    assert {name: way["ways"] for name, way in decoding_row["ways"].items()} == {
        "used": ["shared", "fused"],
        "fallback": ["plain"],
    }
    for way in decoding_row["ways"].values():
        assert len(way["calls_tokens_per_s"]) == 3
        assert sorted(way["calls_tokens_per_s"])[1] == way["tokens_per_s"] > 0
    rates = [decoding_row["ways"][name]["tokens_per_s"] for name in ("used", "fallback")]
    assert decoding_row["ratio"] == pytest.approx(rates[0] / rates[1])
    # One of warm-up and three counted ones, each way first in every other turn.
    plain, fast = ["plain"], ["shared", "fused"]
    assert [ways for ways, _ in calls] == [plain, fast, fast, plain] * 2
    requests = calls[0][1]
    assert [len(prompt) for prompt, _ in requests] == [16, 16]
    assert [seeds for _, seeds in requests] == [(0, 1, 2), (3, 4, 5)]
    assert all(other == requests for _, other in calls)


def test_the_text_says_how_many_times_as_fast(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The way in use waits for 40 ms in each call of 24 tokens, and the fallback for 120 ms."""
    sample = HFSampler.sample

    def slower(self: HFSampler, *arguments: Any) -> Any:
        time.sleep(0.04 if self.fuses else 0.12)
        return sample(self, *arguments)

    monkeypatch.setattr(bench, "decoding_shape", lambda model, name: CASE)
    monkeypatch.setattr(HFSampler, "sample", slower)
    assert cli.main(["bench", "--case", "decoding"]) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[0].startswith("nano, bfloat16, threads ")
    assert "2 prompts of 16 tokens × 3 completions of 4" in " ".join(output.split())
    ratio = float(output.split("used / fallback: ")[1].split()[0])
    assert 1.1 < ratio < 6  # 3 if decoding took no time


def test_completions_of_another_length_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HFSampler, "sample", lambda *_: [])
    with pytest.raises(RuntimeError, match="0 tokens were written, not 24"):
        decoding.decoding(CASE, quiet)
