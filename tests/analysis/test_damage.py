"""Run folders that are corrupt, cut, empty or mixed: each is named with file and line, and the rest stands.

Every test takes a whole experiment, damages one thing as disks, copies and hands do, and compares the
report with
that of the same experiment without the run.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.edits import half
from helpers.pages import drawing
from helpers.synthetic import Synthetic

import grpobench
from grpobench.analysis.checks.alarms import DAMAGED_TITLE, SPARED
from grpobench.analysis.report.facts import as_json, json_ready
from grpobench.analysis.report.text import describe_head
from grpobench.analysis.runfolder import checksums
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.runs import cli
from grpobench.runs.handover.publishing.publish import copy_public

RUN = "grpo-arithmetic-s1"


def experiment(folder: Path) -> Path:
    made = Synthetic(
        arms=("grpo", "ppo"),
        tasks=("arithmetic",),
        seeds=(1, 2, 3),
        steps=4,
        every=2,
        problems=4,
        test_problems=4,
    )
    return made.write(folder)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return experiment(tmp_path)


def report_of(root: Path) -> dict[str, Any]:
    """report.json."""
    report: dict[str, Any] = json_ready(as_json(grpobench.load(root).facts))
    return report


def cut_line(path: Path, number: int) -> None:
    """The end of a line in the middle is lost."""
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = lines[number - 1][: len(lines[number - 1]) // 2]
    path.write_bytes(b"\n".join(lines))


def zeros(path: Path) -> None:
    """What a file system leaves of a block that was never written."""
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes(len(content) - 80) + content[-40:])


def behind_equals(path: Path) -> None:
    """In the middle of a line, wherever the half is."""
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex(b"=") + 1])


def replaced(path: Path) -> None:
    path.unlink()
    path.mkdir()


def write(text: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(text)


DAMAGES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "line cut in the middle": (
        "metrics.jsonl",
        lambda path: cut_line(path, 3),
        ", line 3: not a JSON object",
    ),
    "answers cut in the middle": (
        "eval.jsonl",
        lambda path: cut_line(path, 7),
        ", line 7: not a JSON object",
    ),
    "zeros": ("metrics.jsonl", zeros, ", line 1: not a JSON object"),
    "a word for a number": (
        "metrics.jsonl",
        write('{"step": 0, "loss": "low"}\n'),
        ", line 1: `loss` must be",
    ),
    "a number beyond all": (
        "metrics.jsonl",
        write(f'{{"step": 0, "x": {10**400}}}\n'),
        "401 digits is too large for a number",
    ),
    "a step beyond all": ("metrics.jsonl", write(f'{{"step": {10**30}}}\n'), ", line 1: `step` must be"),
    "status cut": ("status.json", half, ", line 1: not JSON"),
    "status empty": ("status.json", write(""), ", line 1: not JSON"),
    "status of another shape": ("status.json", write('{"step": "four"}'), ": `step` must be a whole number"),
    "origin cut": ("provenance.json", half, ", line 1: not JSON"),
    "origin of another shape": ("provenance.json", write('{"attempts": 3}'), ": not the provenance of a run"),
    "settings cut": ("run.toml", behind_equals, "not TOML"),
    "settings of another shape": ("run.toml", write("train = 3\n"), ": `train` must be a table"),
    "a folder in its place": ("eval.jsonl", replaced, ": cannot be read (Is a directory)"),
}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> grpobench.Results:
    """The same experiment without the run."""
    experiment_folder = experiment(tmp_path_factory.mktemp("without"))
    shutil.rmtree(experiment_folder / RUN)
    return grpobench.load(experiment_folder)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_named_and_nothing_of_it_is_counted(
    damage: str, root: Path, without: grpobench.Results
) -> None:
    file, spoil, fault = DAMAGES[damage]
    spoil(root / RUN / file)
    results = grpobench.load(root)
    (line,) = results.alarms[DAMAGED_TITLE]
    assert line.startswith(str(root / RUN / file)) and fault in line
    assert results.facts.accounting == {"finished": 5, "damaged": 1}
    for name in ("metrics", "evaluations"):
        theirs = getattr(without.experiment, name)
        pd.testing.assert_frame_equal(getattr(results.experiment, name), theirs, check_categorical=False)


def test_the_rest_of_the_report_stands(root: Path, without: grpobench.Results) -> None:
    cut_line(root / RUN / "metrics.jsonl", 3)
    report, other = report_of(root), json_ready(as_json(without.facts))
    by_run = {row["name"]: row for row in report["runs"]}
    assert (by_run[RUN]["run_status"], by_run[RUN]["counted"]) == ("damaged", None)
    assert json.dumps(report["tables"]) == json.dumps(other["tables"]).replace("missing", "damaged")
    others = [row for row in report["runs"] if row["name"] != RUN]
    assert others == [row for row in other["runs"] if row["name"] != RUN]


def test_what_is_damaged_stands_on_the_page_and_is_said(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_line(root / RUN / "metrics.jsonl", 3)
    (root / RUN / "problems.json.zst").write_bytes(b"\x28\xb5\x2f\xfd rest")
    with drawing("final_accuracy"):
        assert cli.main(["report", str(root), "--format", "html"]) == 0
    line = f"{root / RUN / 'metrics.jsonl'}, line 3: not a JSON object"
    stderr = capsys.readouterr().err
    assert f"grpobench: damaged, and counted nowhere until it is mended: {line}" in stderr
    problems = f"{root / RUN / 'problems.json.zst'}: damaged"
    assert f"grpobench: damaged, and needed by no number: {problems}" in stderr
    page = (root / "report" / "index.html").read_text(encoding="utf-8")
    assert line in page and problems in page


def test_strict_makes_no_report_of_what_is_damaged(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut_line(root / RUN / "metrics.jsonl", 3)
    half(root / "ppo-arithmetic-s2" / "status.json")
    assert cli.main(["report", str(root), "--strict"]) == 2
    stderr = capsys.readouterr().err
    assert f"{RUN}/metrics.jsonl, line 3" in stderr and "ppo-arithmetic-s2/status.json, line 1" in stderr
    assert not (root / "report").exists()
    with pytest.raises(grpobench.LogError, match=r"metrics\.jsonl, line 3"):
        grpobench.load(root, strict=True)
    assert [line.partition(":")[0] for line in grpobench.load(root).damage] == [
        f"{root}/{RUN}/metrics.jsonl, line 3",
        f"{root}/ppo-arithmetic-s2/status.json, line 1",
    ]


def test_every_damaged_file_of_a_run_is_named(root: Path) -> None:
    cut_line(root / RUN / "metrics.jsonl", 2)
    cut_line(root / RUN / "eval.jsonl", 9)
    (run,) = (run for run in load(root).runs if run.state == "damaged")
    assert "metrics.jsonl, line 2" in run.why and "eval.jsonl, line 9" in run.why


@pytest.mark.parametrize(("spoil", "fault"), [(half, ", line 1: not JSON"), (Path.unlink, "")])
def test_without_a_plan_runs_are_found_by_folder_and_nothing_says_how_many_were_planned(
    spoil: Callable[[Path], Any], fault: str, root: Path
) -> None:
    spoil(root / "experiment.json")
    results = grpobench.load(root)
    assert f"{root / 'experiment.json'}{fault}" in results.alarms.get(DAMAGED_TITLE, [""])[0] or not fault
    assert describe_head(results.facts)["runs"] == "6 found: 6 finished"
    assert results.alarms["Not as planned"] == (
        "experiment.json is missing or damaged, so it is unknown which runs were planned",
    )


def test_an_experiment_json_with_another_number_is_named(root: Path) -> None:
    described = root / "experiment.json"
    described.write_text(json.dumps(checksums.seal(json.loads(described.read_text()))))
    assert DAMAGED_TITLE not in grpobench.load(root).alarms
    described.write_text(json.dumps(json.loads(described.read_text()) | {"margin": 3}))
    results = grpobench.load(root)
    assert f"{described}: is not what was written, by its own `sha256`" in results.alarms[DAMAGED_TITLE][0]
    assert results.facts.accounting == {"finished": 6}


def test_mixed_folders_are_told_apart(root: Path) -> None:
    shutil.copytree(root / RUN, root / "grpo-arithmetic-s01")  # a copy by hand, its settings lost
    (root / "grpo-arithmetic-s01" / "run.toml").write_text("steps = 4\n")
    (root / "notes").mkdir()
    (root / "notes" / "run.toml").write_text("mine = 1\n")
    shutil.copytree(root / RUN, root / "old")
    results = grpobench.load(root)
    lines = results.alarms[DAMAGED_TITLE]
    assert any("are both grpo on arithmetic with seed 1" in line for line in lines)
    assert any(f"{root / 'notes'}: cannot tell arm, task and seed" in line for line in lines)
    assert any(f"old contains {RUN}" in line for line in results.alarms["Folders that are not what they say"])
    assert results.facts.accounting == {"finished": 6}


def test_other_files_that_are_damaged_cost_no_run_its_result(root: Path) -> None:
    (root / RUN / "problems.json.zst").write_bytes(b"\x28\xb5\x2f\xfd rest")
    (root / RUN / "evals").mkdir()
    (root / RUN / "evals" / "x.json").write_text('{"rows": 3')
    results = grpobench.load(root)
    ((evaluation,), (problems,)) = (results.alarms[title] for title in (DAMAGED_TITLE, SPARED))
    assert "problems.json.zst: damaged" in problems and "evals/x.json, line 1: not JSON" in evaluation
    assert results.facts.accounting == {"finished": 6}
    assert len(results.damage) == 2
    with pytest.raises(LogError, match=r"evals/x\.json(.|\n)*problems\.json\.zst"):
        grpobench.load(root, strict=True)


DEEP = "[" * 100_000
ANSWER = '{"step": %s, "split": "test", "mode": "greedy", "problem": %s, "sample": 0, "scores": {}}\n'


@pytest.mark.parametrize(
    ("words", "name", "content"),
    [
        (("report", "ROOT"), "report", "notes"),
        (("report", "ROOT", "--strict"), f"{RUN}/eval.jsonl", ANSWER % ('"four"', '"a"')),
        (("report", "ROOT", "--strict"), f"{RUN}/eval.jsonl", ANSWER % ("4", '["a"]')),
        (("report", "ROOT", "--strict"), f"{RUN}/status.json", DEEP),
    ],
)
def test_a_damaged_file_ends_a_command_by_its_name(
    words: tuple[str, ...], name: str, content: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that nobody expected would leave `main` as an exception."""
    (root / name).write_text(content)
    folders = {"ROOT": str(root), "OUT": str(root.parent / "out")}
    assert cli.main([folders.get(word, word) for word in words]) == 2
    assert str(root / name) in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["experiment.json", *(f"{RUN}/{n}.json" for n in ("status", "provenance", "sums"))]
)
def test_publishing_names_a_file_of_deep_json(name: str, root: Path) -> None:
    (root / name).write_text(DEEP)
    with pytest.raises(LogError, match=rf"{root / name}: (.*100 brackets|damaged)"):
        copy_public(root, root / "public")


def test_fully_damaged_experiment_still_has_a_page_that_says_so(root: Path) -> None:
    for path in root.glob("*/metrics.jsonl"):
        zeros(path)
    assert cli.main(["report", str(root), "--format", "html,json"]) == 0
    report = json.loads((root / "report" / "report.json").read_text(encoding="utf-8"))
    assert len(report["alarms"][DAMAGED_TITLE]) == 6 and report["accounting"] == {"damaged": 6}
    for path in root.glob("*/run.toml"):
        path.write_text("")
    (root / "experiment.json").unlink()
    for run_folder in list(root.glob("*-s?")):
        run_folder.rename(root / run_folder.name.replace("-", ""))
    with pytest.raises(LogError, match=r"holds no run of this experiment: .*cannot tell arm, task and seed"):
        load(root)
