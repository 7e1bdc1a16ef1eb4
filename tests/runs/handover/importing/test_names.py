"""What an import calls its arms, tasks and seeds, and files of any encoding."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.foreign_logs import (
    openrlhf_console,
    openrlhf_row,
    trainer_state,
    trl_row,
    verl_console,
    verl_file,
    verl_row,
)

from grpobench.analysis.runfolder.load import load
from grpobench.runs import cli

TABLE = "step,reward/mean\n1,0.25\n2,0.5\n"


def write(folder: Path, name: str = "train.csv", text: str = TABLE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def keys(out: Path) -> list[tuple[str, int]]:
    return sorted((run.arm, run.seed) for run in load(out).runs)


def imported(out: Path, *sources: Path | str) -> list[tuple[str, int]]:
    assert cli.main(["import", *map(str, sources), str(out)]) == 0
    return keys(out)


@pytest.mark.parametrize("names", [("lr=1e-5", "lr#1e-5"), ("a/b", "a-b"), ("модель-x", "базовый-x")])
def test_names_that_clean_to_one_are_not_merged(
    names: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, name in enumerate(names):
        write(tmp_path / "logs" / f"{name}-s{seed}")
    assert len(imported(tmp_path / "out", tmp_path / "logs")) == 1
    assert "write --arm with another name" in capsys.readouterr().out


def test_a_name_with_dots_stays_as_it_is(tmp_path: Path) -> None:
    for rate in ("1.4e-4", "1.5e-4"):
        write(tmp_path / "logs", f"grpo-{rate}-s0.csv")
        write(tmp_path / "folders" / f"grpo-{rate}-s1")
    out = tmp_path / "out"
    arms = imported(out, tmp_path / "logs", tmp_path / "folders")
    assert arms == [(f"grpo-{rate}", seed) for rate in ("1.4e-4", "1.5e-4") for seed in (0, 1)]


def test_a_later_import_knows_the_original_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, same, other = (write(tmp_path / name) for name in ("lr=1-s0", "lr=1-s1", "lr#1-s2"))
    imported(tmp_path / "out", first)
    assert imported(tmp_path / "out", same) == [("lr-1", 0), ("lr-1", 1)]
    assert cli.main(["import", str(other), str(tmp_path / "out")]) == 2
    assert "'lr#1' would be called lr-1, as 'lr=1' is" in capsys.readouterr().err
    assert len(imported(tmp_path / "out", other, "--arm", "hash")) == 3


@pytest.mark.parametrize("name", ["базовый", "模型", "…"])
def test_a_name_that_leaves_nothing_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write(tmp_path / f"{name}-s1")
    assert cli.main(["import", str(log), str(tmp_path / "out")]) == 2
    assert name in (shown := capsys.readouterr().err) and "--arm NAME" in shown
    assert imported(tmp_path / "out", log, "--arm", "base") == [("base", 1)]


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("grpo-s7/train.csv", ("grpo", 7)),
        ("grpo/seed7/train.csv", ("grpo", 7)),
        ("grpo-s7/anything.csv", ("grpo", 7)),
        ("logs-s7/grpo-s1.csv", ("grpo", 1)),
        ("logs/grpo-s1.csv", ("grpo", 1)),
        ("grpo/metrics.csv", ("grpo", 0)),
        ("logs/grpo.csv", ("grpo", 0)),
    ],
)
def test_a_log_that_is_named_is_called_after_itself_or_its_folder(
    path: str, key: tuple[str, int], tmp_path: Path
) -> None:
    log = write((tmp_path / path).parent, Path(path).name)
    assert imported(tmp_path / "file", log) == [key]


def chart(*runs: str, metric: str = "train/reward") -> str:
    """A chart as W&B exports it; the value of the run of index k is k + step/16."""
    header = ["Step"] + [f"{run} - {metric}{end}" for run in runs for end in ("", "__MIN", "__MAX")]
    rows = [[step] + [k + step / 16 for k in range(len(runs)) for _ in range(3)] for step in (1, 2)]
    return "\n".join(",".join(f'"{cell}"' for cell in row) for row in [header, *rows]) + "\n"


def test_a_chart_is_split_by_run(tmp_path: Path) -> None:
    source = write(tmp_path, "chart.csv", chart("grpo-seed0", "dapo - long-seed3"))
    assert imported(tmp_path / "out", source) == [("dapo-long", 3), ("grpo", 0)]
    rows = (tmp_path / "out" / "dapo-long-imported-s3" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row) for row in rows] == [
        {"step": 1, "other/train/reward": 1.0625},
        {"step": 2, "other/train/reward": 1.125},
    ]


def test_a_chart_of_groups_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path, "chart.csv", chart("Group: grpo", "Group: dapo"))
    assert cli.main(["import", str(source), str(tmp_path / "out")]) == 2
    assert "ungroup the runs" in capsys.readouterr().err


def test_a_column_with_a_hyphen_makes_no_chart(tmp_path: Path) -> None:
    source = write(tmp_path / "grpo-s1", "log.csv", "step,loss,reward - kl\n1,0.5,0.25\n")
    assert imported(tmp_path / "out", source) == [("grpo", 1)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "trl", "verl", "verl-file", "openrlhf"])
def test_a_byte_order_mark_changes_nothing(kind: str, encoding: str, tmp_path: Path) -> None:
    folder = tmp_path / "grpo-s1"
    folder.mkdir()
    lines = [json.dumps({"step": step, "loss": step / 4}) for step in (1, 2)]
    if kind == "csv":
        file = write(folder)
    elif kind in ("jsonl", "json"):
        text = "\n".join(lines) if kind == "jsonl" else f"[{','.join(lines)}]"
        file = write(folder, f"log.{kind}", text)
    else:
        rows = {step: verl_row(step, step / 4) for step in (1, 2)}
        name, text = {
            "trl": ("trainer_state.json", trainer_state([trl_row(step, step / 4) for step in (1, 2)], 2, 2)),
            "verl": ("train.log", verl_console(rows)),
            "verl-file": ("train.jsonl", verl_file(rows)),
            "openrlhf": ("train.log", openrlhf_console({1: openrlhf_row(0.25), 2: openrlhf_row(0.5)}, {})),
        }[kind]
        file = write(folder, name, text)
    imported(tmp_path / "plain", file)
    file.write_bytes(file.read_text(encoding="utf-8").encode(encoding))
    assert file.read_bytes()[:2] in (codecs.BOM_UTF8[:2], codecs.BOM_UTF16[:2])
    imported(tmp_path / "marked", file)
    tables = [next((tmp_path / out).glob("*/metrics.jsonl")).read_text() for out in ("plain", "marked")]
    assert tables[0] == tables[1]
