"""`make gpu`: parts that fail or hang lose nothing of the others, and the checks say what is wrong. On the
CPU the same code runs in small sizes."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from grpobench.benchmarks.gpu import __main__ as command
from grpobench.benchmarks.gpu import engine, equality, memory, runs
from grpobench.benchmarks.gpu.__main__ import (
    PARTS,
    SECONDS,
    USUAL,
    GpuPart,
    GpuSchedule,
    carry_out,
)
from grpobench.benchmarks.gpu.equality import ModelUnderTest
from grpobench.benchmarks.gpu.rows import (
    WHOLE,
    BenchmarkRow,
    Report,
    Skip,
    judged,
    load_rows,
    measured,
    page,
    show,
    summary,
)
from grpobench.benchmarks.memory_peaks import Peak, PeakComparison
from grpobench.runs.models.memory_plan import MemoryPlan
from grpobench.runs.settings.recipe import read_recipe

PROGRAM = """
import sys, time
from pathlib import Path
rows, doing = Path(sys.argv[1]), sys.argv[2]
line = '{"part": "%s", "what": "one", "state": "ok", "result": "fine", "seconds": 1.0, "device": "cpu"}\\n'
with rows.open("a") as file:
    file.write(line % doing)
    if doing == "half":
        file.write('{"part": "half", "wh')
if doing in ("hangs", "half"):
    time.sleep(60)
if doing == "fails":
    sys.exit("it broke")
"""


def parts(*names: str, limit: int = 5) -> list[GpuPart]:
    return [GpuPart(name, lambda report: None, limit) for name in names]


class Staged(GpuSchedule):
    """Parts that are a small program each, named for what it does."""

    def words(self, part: GpuPart, python: str) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", PROGRAM, str(self.rows_file), part.name]


def staged(folder: Path, seconds: float = 60) -> tuple[Staged, io.StringIO]:
    output = io.StringIO()
    return Staged(folder, "cpu", seconds, Console(file=output, width=200)), output


# The course


def test_parts_that_fail_or_hang_lose_neither_their_rows_nor_the_others(tmp_path: Path) -> None:
    course, output = staged(tmp_path)
    carry_out([*parts("fails"), *parts("hangs", "half", limit=3), *parts("works")], course)
    row_by_part = {row.part: row for row in load_rows(course.rows_file) if row.what == WHOLE}
    assert {name: row.state for name, row in row_by_part.items()} == {
        "fails": "failed",
        "hangs": "failed",
        "half": "failed",
        "works": "ok",
    }
    assert row_by_part["fails"].result == "exit code 1: it broke; 1 rows are kept"
    assert row_by_part["hangs"].result == "killed after 3 s; 1 rows are kept"
    ones = [row.part for row in load_rows(course.rows_file) if row.what == "one"]
    assert ones == ["fails", "hangs", "half", "works"]
    assert "works: ok: 1 rows, 0 failed" in output.getvalue()


def test_the_moment_ends_all_parts(tmp_path: Path) -> None:
    course, _ = staged(tmp_path, seconds=4)
    began = time.monotonic()
    carry_out([*parts("hangs", limit=100), *parts("works")], course)
    assert time.monotonic() - began < 20
    states = [(row.part, row.state) for row in load_rows(course.rows_file) if row.what == WHOLE]
    assert states == [("hangs", "failed"), ("works", "skipped")]


def test_parts_take_twelve_minutes_at_most() -> None:
    usual = [part for part in PARTS if not part.vllm]
    assert sum(part.limit for part in usual) <= SECONDS == 12 * 60
    assert [part.name for part in usual] == list(USUAL) and USUAL[:4] == ("run", "step", "resume", "memory")


def test_without_vllm_its_part_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    course, _ = staged(tmp_path)
    carry_out([GpuPart("vllm", lambda report: None, 5, vllm=True)], course)
    (row,) = load_rows(course.rows_file)
    assert row.state == "skipped" and "make .venv-vllm/ready" in row.result


def test_packages_come_from_a_folder_of_wheels_where_one_is_given() -> None:
    rule = "shown: ; @echo $$PIP_NO_INDEX $$PIP_FIND_LINKS"
    words = ["make", "-s", "--eval", rule, "shown"]
    root = Path(__file__).parents[2]
    with_folder = subprocess.check_output([*words, "WHEELS=wheels"], cwd=root, text=True)
    assert with_folder.split() == ["1", str(root / "wheels")]


def test_a_name_that_is_no_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["--only", "step,sped"])
    assert ended.value.code == 2
    assert "sped: the parts are run, step," in capsys.readouterr().err


def test_a_part_is_run_by_the_command_that_the_course_gives(tmp_path: Path) -> None:
    course, _ = staged(tmp_path)
    words = GpuSchedule.words(course, next(part for part in PARTS if part.name == "vllm"), "python")
    assert words[:3] == ["python", "-m", "grpobench.benchmarks.gpu"]
    done: list[Report] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "PARTS", [GpuPart("vllm", done.append, 5)])
        assert command.main(words[3:]) == 0
    (report,) = done
    assert (report.part, report.path, report.device) == ("vllm", tmp_path / "rows.jsonl", "cpu")


def test_a_command_that_is_told_to_end_leaves_no_part_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would go on and disturb whatever is timed next."""
    monkeypatch.setattr(command, "GpuSchedule", Staged)
    monkeypatch.setattr(command, "PARTS", parts("hangs", limit=30))
    monkeypatch.setattr(command, "NAMES", ("hangs",))
    monkeypatch.setattr(command, "USUAL", ("hangs",))
    begun: list[subprocess.Popen[bytes]] = []
    begin = command.begin

    def recorded(words: Sequence[str], log: Any) -> subprocess.Popen[bytes]:
        begun.append(begin(words, log))
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return begun[-1]

    monkeypatch.setattr(command, "begin", recorded)
    usual = signal.getsignal(signal.SIGTERM)
    assert command.main(["--out", str(tmp_path), "--device", "cpu"]) == 0
    assert [process.poll() for process in begun] == [-signal.SIGKILL]
    assert "interrupted; what follows are the rows so far" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) is usual


def test_rows_of_other_parts_stay_when_some_are_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "GpuSchedule", Staged)
    monkeypatch.setattr(command, "PAGE", tmp_path / "docs" / "gpu.md")
    report = Report("decoding", tmp_path / "rows.jsonl", "cuda")
    report.add("a", judged(True, "fast"), 1.0)
    assert command.main(["--only", "nano,memory", "--out", str(tmp_path), "--device", "cpu"]) == 0
    assert command.main(["--only", "memory", "--out", str(tmp_path), "--device", "cpu"]) == 0
    names = [(row.part, row.what) for row in load_rows(tmp_path / "rows.jsonl")]
    assert sorted(names) == sorted(
        [("decoding", "a"), *((name, label) for name in ("nano", "memory") for label in ("one", WHOLE))]
    )
    assert "nano" in (tmp_path / "gpu.md").read_text()
    assert "5 rows: 5 ok; 4 unproven on a GPU" in capsys.readouterr().out


def test_the_ratio_of_vllm_to_ours_is_that_of_two_rows(tmp_path: Path) -> None:
    """It decides from which size of a model on vLLM is faster, so it is never made of half a measurement."""
    path = tmp_path / "rows.jsonl"
    ours, theirs = Report("decoding", path, "cuda"), Report("vllm", path, "cuda")
    ours.add("nano: ours as it is", measured("4,000 tokens/s (4,000 in 1.00 s); graphs"), 2.0)
    with pytest.raises(Skip, match="are not both there"):
        engine.compared(theirs, "nano")
    Report("vllm", path, "cpu").add("nano: vLLM", measured("9 tokens/s (9 in 1.00 s)"), 2.0)
    with pytest.raises(Skip):
        engine.compared(theirs, "nano")
    theirs.add("nano: vLLM", measured("10,000 tokens/s (5,000 in 0.50 s)"), 1.0)
    assert engine.compared(theirs, "nano") == ("measured", "2.50")


# Rows


def test_a_check_that_raises_or_cannot_be_made_is_a_row(tmp_path: Path) -> None:
    report = Report("p", tmp_path / "rows.jsonl", "cuda")

    def skips() -> Any:
        raise Skip("no such model")

    def breaks() -> Any:
        raise RuntimeError("CUDA error\nand more")

    for name, check in (("a", skips), ("b", breaks), ("c", lambda: judged(False, "too far"))):
        report.attempt(name, check)
    results = [(row.what, row.state, row.result) for row in load_rows(report.path)]
    assert results == [
        ("a", "skipped", "no such model"),
        ("b", "failed", "RuntimeError: CUDA error"),
        ("c", "failed", "too far"),
    ]


def test_the_page_and_the_table_say_what_is_unproven() -> None:
    rows = [
        BenchmarkRow("speed", "nano | fast", "measured", "9 tokens/s", 1.0, "cuda"),
        BenchmarkRow("speed", "real", "skipped", "no `model`", 0.0, "cuda"),
        BenchmarkRow("memory", "nano", "ok", "2 < 3", 2.0, "cpu"),
        BenchmarkRow("doctor", "folder", "ok", f"files in {Path.cwd()}/results", 2.0, "cuda"),
    ]
    text = page(rows, {"GPU": "none"}, {"speed": (80, "rates"), "steps": (9, "")})
    assert "| `speed` | 80 | rates |" in text and "not run: steps." in text
    assert "| speed | nano \\| fast | measured: 9 tokens/s | 1.0 |" in text
    assert "| memory | nano | ok on the CPU, unproven on a GPU: 2 &lt; 3 | 2.0 |" in text
    assert "| doctor | folder | ok: files in results | 2.0 |" in text
    assert summary(rows, ["speed", "steps", "memory", "vllm"]).endswith("GPU; not run: steps, vllm")
    assert summary(rows) == "4 rows: 2 ok, 1 skipped, 1 measured; 2 unproven on a GPU"
    output = io.StringIO()
    show(rows, Console(file=output, width=200))
    assert "unproven on a GPU: 2 < 3" in output.getvalue()


# Parts


def small(path: Path) -> Report:
    return Report("p", path / "rows.jsonl", "cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_ways_to_decode_and_pack_agree_on_the_built_in_model(dtype: str, tmp_path: Path) -> None:
    tried = ModelUnderTest("nano", dtype, small(tmp_path))
    checks = [tried.decoding, tried.recorded, tried.samplers, tried.repeated, tried.alone]
    outcomes = [check() for check in checks] + ([tried.packing()] if dtype == "float32" else [])
    assert {state for state, _ in outcomes} == {"ok"}, outcomes
    assert "shared, fused, graphs against plain: " in outcomes[2][1]


def test_a_way_that_computes_something_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = ModelUnderTest("nano", "float32", small(tmp_path))
    packed, step = equality.packed, equality.Fused.step

    monkeypatch.setattr(equality, "packed", lambda *arguments: packed(*arguments) * 1.01)
    assert tried.packing()[0] == "failed"

    def warmer(self: Any, *arguments: Any) -> torch.Tensor:
        return step(self, *arguments) * 0.9

    monkeypatch.setattr(equality.Fused, "step", warmer)
    assert tried.decoding()[0] == "failed"


def test_completions_part_only_where_rounding_moves_a_bound(tmp_path: Path) -> None:
    """By the trainer's distribution: a token beside the drawn number is excused, any other one is not."""
    tried = ModelUnderTest("nano", "float32", small(tmp_path))
    loaded, sampler = tried.sampler()
    requests = equality.requests(loaded, 4)
    seeds = equality.seeds_of(requests)
    ours = equality.flat(sampler.sample(requests, tried.tokens, 1.0))
    assert tried.agreement(ours, ours, seeds) == (True, f"{len(ours)} of {len(ours)} equal")
    models, first = sampler.models, ours[0]
    number = float(equality.uniforms(seeds, tried.tokens)[0, 0].double())
    with torch.inference_mode():
        logits = models.language(input_ids=torch.tensor([first.prompt])).logits[0, -1]
    upper = logits.double().softmax(-1).cumsum(-1)
    drawn = first.completion[0]
    assert float(upper[drawn - 1]) <= number <= float(upper[drawn]) or drawn == 0
    for token in range(len(upper)):
        if token == drawn:
            continue
        bound = float(upper[token]) if token < drawn else float(upper[token - 1])
        other = dataclasses.replace(first, completion=(token, *first.completion[1:]))
        off = equality.shifted_quantile(models, first, other, equality.uniforms(seeds, tried.tokens)[0])
        assert off == pytest.approx(abs(number - bound), abs=1e-6)
    wrong = dataclasses.replace(first, completion=((drawn + 5) % len(upper), *first.completion[1:]))
    assert not tried.agreement(ours, [wrong, *ours[1:]], seeds)[0]
    shorter = dataclasses.replace(first, completion=first.completion[:-1])
    assert equality.shifted_quantile(models, first, shorter, torch.zeros(tried.tokens)) == 1


def test_the_plan_is_held_to_10_percent_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of so many hundredths of the peak of their largest phase."""
    for device, allowed in (("cuda", (90, 110)), ("cpu", (80, 150))):
        for planned in (allowed[0] - 1, *allowed, allowed[1] + 1):
            peaks = (Peak("sampling", 1, 1), Peak("training", planned, 100))
            comparison = PeakComparison("tiny", "x", MemoryPlan(()), peaks)
            monkeypatch.setattr(memory, "plan_against_peak", lambda *_, made=comparison: made)
            report = Report("memory", tmp_path / "rows.jsonl", device)
            state, message = memory.plan_and_peak(report, "random:tiny", ())
            assert state == ("ok" if allowed[0] <= planned <= allowed[1] else "failed")
            assert f"plan ÷ peak {planned / 100:.2f}, " in message and "by phase sampling 1.00" in message


@pytest.mark.parametrize("small", [True, False])
def test_plans_and_runs_are_of_settings_that_exist(small: bool) -> None:
    for _, model, settings in memory.PLANS[small]:
        assert memory.config_of(small, model, settings).model.name == model
    for settings in (runs.run_settings(small), [*runs.TINY, *runs.SIZES[small], *runs.RANDOM]):
        assert len(read_recipe("quickstart", list(settings)).runs()) == 1


def test_rows_of_runs_are_compared_without_times(tmp_path: Path) -> None:
    assert runs.timed("time/step") and runs.timed("cost/peak_memory_gb") and not runs.timed("gap/mean")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": NaN}\n')
    assert runs.log(tmp_path) == runs.log(tmp_path) == [{"step": 1, "a": None}]


@pytest.mark.slow
def test_a_run_is_killed_and_resumed(tmp_path: Path) -> None:
    report = small(tmp_path)
    runs.adapter_run(report)
    undisturbed, killed = load_rows(report.path)
    assert undisturbed.state == "measured" and killed.state == "ok", (undisturbed, killed)
    assert re.search(r"metrics of 4 steps and \d\.\d MB of final weights are equal", killed.result)
