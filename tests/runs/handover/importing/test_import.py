"""`grpobench import` from the command line to the report."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from helpers.foreign_logs import (
    trainer_state,
    trl_row,
    verl_console,
    verl_row,
)
from helpers.logs import is_metric
from helpers.pages import drawing
from helpers.shell import command
from helpers.synthetic import Synthetic

import grpobench
from grpobench.analysis.runfolder.load import load
from grpobench.runs import cli

DATA = "val-core/gsm8k/acc/mean@1"


def verl_run(folder: Path, gain: float, steps: int = 4, **more: float) -> None:
    """A console with a validation before the first step and at every second."""
    rows: dict[int, dict[str, float]] = {0: {DATA: 0.25}}
    for step in range(1, steps + 1):
        rows[step] = verl_row(step, 0.25 + gain * step, **more)
        if step % 2 == 0:
            rows[step][DATA] = 0.25 + gain * step
    folder.mkdir(parents=True)
    (folder / "train.log").write_text(verl_console(rows), encoding="utf-8")


def folder_of_verl(tmp_path: Path, steps: int = 4) -> Path:
    """Two arms with two seeds."""
    for arm, gain in (("grpo", 0.05), ("dapo", 0.1)):
        for seed in (0, 1):
            verl_run(tmp_path / "logs" / f"{arm}-seed{seed}", gain + 0.01 * seed, steps)
    return tmp_path / "logs"


def imported(*arguments: Any) -> int:
    return cli.main(["import", *map(str, arguments)])


def report(folder: Path) -> dict[str, Any]:
    with drawing("final_accuracy", "reward"):
        assert cli.main(["report", str(folder), "--format", "json,html"]) == 0
    assert "<html" in (folder / "report" / "index.html").read_text(encoding="utf-8")
    report_table: dict[str, Any] = json.loads((folder / "report" / "report.json").read_text(encoding="utf-8"))
    return report_table


def test_folder_of_runs_is_an_experiment_whose_report_has_accuracies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, out = folder_of_verl(tmp_path), tmp_path / "out"
    assert imported(logs, out) == 0
    output = capsys.readouterr().out
    assert "dapo-gsm8k-s0: finished, 5 rows to step 4" in output
    assert "names of verl, as in volcengine/verl@b178a3c" in output
    assert "without a name of ours: other/actor/pg_clipfrac, other/critic/rewards/mean" in output
    assert output.splitlines()[-1] == f"grpobench report {out}"
    experiment = load(out)
    assert (set(experiment.arms), experiment.tasks, experiment.seeds) == (
        {"grpo", "dapo"},
        ("gsm8k",),
        (0, 1),
    )
    assert all(run.finished and run.step == 4 for run in experiment.runs)
    assert all(is_metric(name) for name in experiment.names())
    report_table = report(out)
    final = {(row["arm"], row["seed"]): (row["base"], row["final"]) for row in report_table["runs"]}
    assert final["grpo", 0] == (0.25, pytest.approx(0.45)) and final["dapo", 1] == (0.25, pytest.approx(0.69))
    assert report_table["alarms"] == {
        "Imported from logs of others": [
            "4 runs from verl logs with names of verl: provenance.json says what each metric means there"
        ]
    }
    assert len(grpobench.load(out).summary()) == 2


def test_provenance_says_where_each_number_is_from(tmp_path: Path) -> None:
    logs, out = folder_of_verl(tmp_path), tmp_path / "out"
    imported(logs, out)
    run_folder = out / "grpo-gsm8k-s0"
    imported_record = json.loads((run_folder / "provenance.json").read_text())["imported"]
    file = logs / "grpo-seed0" / "train.log"
    assert imported_record["files"] == [
        {
            "path": str(file),
            "bytes": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
    ]
    assert imported_record["metrics"]["reward/mean"] == "critic/score/mean"
    assert imported_record["other"]["other/actor/pg_clipfrac"] == "actor/pg_clipfrac"
    assert (
        imported_record["format"],
        imported_record["names"],
        imported_record["rows"],
        imported_record["faults"],
    ) == ("verl", "verl", 5, [])
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    # 640 tokens a step, a quarter of which are the completions'
    assert [row.get("cost/generated_tokens") for row in rows] == [None, 160.0, 320.0, 480.0, 640.0]


def test_final_accuracy_is_last_in_log_and_report_says_from_when(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert imported(folder_of_verl(tmp_path, steps=5), out) == 0
    report_table = report(out)
    assert {row["run_status"] for row in report_table["runs"]} == {"finished"}
    assert (
        "the final accuracy is from step 4 of 5" in report_table["alarms"]["Imported from logs of others"][1]
    )


def test_rows_that_are_lost_after_the_import_are_missed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    imported(folder_of_verl(tmp_path), out)
    path = out / "grpo-gsm8k-s1" / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    assert report(out)["accounting"]["damaged"] == 1
    path.with_name("sums.json").unlink()  # as older versions imported
    assert report(out)["alarms"]["Logs that lack something"] == [
        "grpo-gsm8k-s1: metrics.jsonl lacks 2 of 5 rows"
    ]


def test_arms_may_come_one_at_a_time_and_no_run_is_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for name in ("a", "b"):
        verl_run(tmp_path / name, 0.1)
        assert imported(tmp_path / name, out, "--arm", name, "--seed", 3, "--task", "sums") == 0
    described = json.loads((out / "experiment.json").read_text())
    assert (described["runs"], described["arms"], described["name"]) == (
        ["a-sums-s3", "b-sums-s3"],
        ["a", "b"],
        "out",
    )
    before = (out / "a-sums-s3" / "metrics.jsonl").read_bytes()
    assert imported(tmp_path / "b", out, "--arm", "a", "--seed", 3, "--task", "sums") == 2
    assert "is a on sums with seed 3, which" in capsys.readouterr().err
    assert (out / "a-sums-s3" / "metrics.jsonl").read_bytes() == before


def test_two_logs_of_one_run_are_told_apart_or_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one/grpo-s1", "two/grpo-s1"):
        verl_run(tmp_path / "logs" / name, 0.1)
    assert imported(tmp_path / "logs", tmp_path / "out") == 0
    assert sorted(path.name for path in (tmp_path / "out").glob("*-s1")) == [
        "one-grpo-gsm8k-s1",
        "two-grpo-gsm8k-s1",
    ]
    assert imported(tmp_path / "logs", tmp_path / "same", "--arm", "grpo") == 0
    assert "is grpo on gsm8k with seed 1, as" in capsys.readouterr().out
    assert len(load(tmp_path / "same").runs) == 1


def test_what_is_damaged_stands_in_the_report_and_strict_imports_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, out = folder_of_verl(tmp_path), tmp_path / "out"
    with (logs / "grpo-seed1" / "train.log").open("a") as file:
        file.write("step:5 - critic/score/mean:broken - actor/lr:1e-06\n")
    (logs / "empty").mkdir()
    (logs / "bad").mkdir()
    (logs / "bad" / "trainer_state.json").write_text('{"log_history": ')
    assert imported(logs, out, "--strict") == 2
    assert not out.exists()
    stderr = capsys.readouterr().err
    assert (
        f"{logs / 'grpo-seed1' / 'train.log'}, line 11: `critic/score/mean` is not a number: 'broken'"
        in stderr
    )
    assert imported(logs, out) == 0
    alarm_text = "\n".join(report(out)["alarms"]["Left out of what was imported"])
    assert f"{logs / 'empty'}: contains no known log format" in alarm_text
    assert f"{logs / 'bad'}" in alarm_text and "train.log, line 11" in alarm_text
    assert len(load(out).runs) == 4


def test_nothing_to_import_is_bad_input_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for source in ("empty", "absent"):
        assert imported(tmp_path / source, tmp_path / "out") == 2
    assert "no such file or folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("")
    verl_run(tmp_path / "log", 0.1)
    assert imported(tmp_path / "log", tmp_path / "taken") == 2
    assert "has other content than imported runs; name another folder" in capsys.readouterr().err


def test_a_run_that_diverged_counts_as_zero(tmp_path: Path) -> None:
    out = tmp_path / "out"
    verl_run(tmp_path / "grpo-s0", 0.1)
    verl_run(tmp_path / "ppo-s0", 0.1, **{"actor/grad_norm": float("nan")})
    assert imported(tmp_path / "grpo-s0", tmp_path / "ppo-s0", out) == 0
    run_by_arm = {row["arm"]: row for row in report(out)["runs"]}
    assert (run_by_arm["ppo"]["state"], run_by_arm["ppo"]["counted"]) == ("diverged", 0.0)
    assert run_by_arm["ppo"]["why"] == "actor/grad_norm is nan from step 1 to the end"
    assert run_by_arm["grpo"]["state"] == "finished"


def test_a_log_without_rows_or_in_percent_is_named_and_the_rest_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, out = folder_of_verl(tmp_path), tmp_path / "out"
    (logs / "empty-s0").mkdir()
    (logs / "empty-s0" / "trainer_state.json").write_text(trainer_state([], 0, 5))
    verl_run(logs / "percent-s0", 12.5)
    assert imported(logs, out) == 0
    output = capsys.readouterr().out
    assert f"left out: {logs / 'empty-s0'}: no row has a number" in output
    file = logs / "percent-s0" / "train.log"
    assert f"left out: {file}: `{DATA}` is 25.25 at step 2, and eval/validation/greedy/correct is a" in output
    assert len(load(out).runs) == 4
    maps = ("--map", f"{DATA}/100=eval/validation/greedy/correct")
    assert imported(file, tmp_path / "share", *maps, "--seed", 0) == 0
    assert "no log has it" not in capsys.readouterr().err
    (row,) = report(tmp_path / "share")["runs"]
    assert row["final"] == 0.5025
    assert imported(logs, tmp_path / "strict", "--strict") == 2


def test_columns_are_named_and_an_unknown_one_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.csv").write_text("it,score,kl\n1,0.5,0.1\n2,0.75,0.2\n")
    out = tmp_path / "out"
    maps = ["--map", "it=step", "--map", "score=reward/mean", "--map", "gone=time/step"]
    assert imported(tmp_path / "mine.csv", out, *maps, "--json") == 0
    captured = capsys.readouterr()
    assert "--map gone: no log has it" in captured.err
    (run,) = json.loads(captured.out)["runs"]
    assert (run["metrics"], run["other"]) == ({"reward/mean": "score"}, {"other/kl": "kl"})
    assert run["run"] == "mine-imported-s0" and "it is set to 0" in run["notes"][0]
    assert list(load(out).select("reward/mean")["value"]) == [0.5, 0.75]


def test_importing_needs_no_torch(tmp_path: Path) -> None:
    verl_run(tmp_path / "grpo-s0", 0.1)
    done = command("import", "grpo-s0", "out", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "grpo-gsm8k-s0: finished" in done.stdout
    assert "LOADED" not in done.stdout


def test_completions_that_verl_dumped_are_evaluations_and_rollouts(tmp_path: Path) -> None:
    log_folder, out = tmp_path / "grpo-s0", tmp_path / "out"
    verl_run(log_folder, 0.125, steps=2)
    dumped = (("val_data", 0, (1.0, 0.0)), ("val_data", 2, (1.0, 1.0)), ("rollout", 1, (0.5, 1.0)))
    for folder, step, scores in dumped:
        (log_folder / folder).mkdir(exist_ok=True)
        rows = [
            {"input": f"{at} + 1 =", "output": "2", "gts": "2", "score": score, "step": step}
            | {"acc": score == 1}
            for at, score in enumerate(scores)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        half = json.dumps({**rows[0], "input": "\ud800"}) + "\n"
        (log_folder / folder / f"{step}.jsonl").write_text(text + half + '{"input": "')
    assert imported(log_folder, out) == 0
    experiment = load(out)
    evaluations = experiment.evaluations
    assert evaluations.groupby("step")["score/correct"].mean().to_dict() == {0: 0.5, 2: 1.0}
    assert set(evaluations["mode"]) == {"greedy"} and evaluations["problem"].nunique() == 2
    packed = (out / "grpo-gsm8k-s0" / "rollouts" / "step-1.jsonl.zst").read_bytes()
    groups = [json.loads(line) for line in zstandard.ZstdDecompressor().decompress(packed).splitlines()]
    assert [(group["prompt"], group["completions"][0]["reward"]) for group in groups] == [
        ("0 + 1 =", 0.5),
        ("1 + 1 =", 1.0),
    ]
    report_table = report(out)
    assert (report_table["runs"][0]["items"], report_table["runs"][0]["final"]) == (2, 0.5)
    assert "Logs that lack something" not in report_table["alarms"]
    (line,) = report_table["alarms"]["Left out of what was imported"]
    assert f"{log_folder / 'rollout' / '1.jsonl'}, line 3: \\ud800 is half a surrogate pair" in line
    (out / "grpo-gsm8k-s0" / "eval.jsonl").write_text("")
    (out / "grpo-gsm8k-s0" / "sums.json").unlink()  # as older versions imported
    assert "eval.jsonl is missing or empty" in report(out)["alarms"]["Logs that lack something"][0]


def test_an_imported_run_that_collapses_is_found_within_one_evaluation(tmp_path: Path) -> None:
    """The published cliff: accuracy flat near .96 to step 225, .74 at 250, .21 at 275."""
    log_folder, out = tmp_path / "grpo-s0", tmp_path / "out"
    cliff = dict.fromkeys(range(0, 250, 25), 0.96) | {250: 0.74, 275: 0.21, 300: 0.2}
    rows = {step: verl_row(step, 0.9) for step in range(1, 301)} | {0: {}}
    rows = {step: rows[step] | ({DATA: cliff[step]} if step in cliff else {}) for step in range(301)}
    log_folder.mkdir()
    (log_folder / "train.log").write_text(verl_console(rows), encoding="utf-8")
    assert imported(log_folder, out) == 0
    report_table = report(out)
    (run,) = report_table["runs"]
    assert run["run_status"] == "collapsed" and 250 <= run["collapsed_at"] <= 275
    (row,) = report_table["tables"]["stability"]
    assert (row["collapsed"], row["runs"]) == (1, 1) and "accuracy collapse" in row["events"]
    assert "Its only run collapsed at step" in row["sentence"]


def test_the_python_call_does_what_the_command_does(tmp_path: Path) -> None:
    logs = folder_of_verl(tmp_path)
    results = grpobench.import_logs(logs, tmp_path / "python", task="sums", experiment="mine")
    assert (results.name, results.arms, results.tasks) == ("mine", ("dapo", "grpo"), ("sums",))
    assert imported(logs, tmp_path / "shell", "--task", "sums", "--experiment", "mine") == 0
    for path in sorted((tmp_path / "shell").rglob("*.*")):
        twin = tmp_path / "python" / path.relative_to(tmp_path / "shell")
        assert path.is_dir() or path.read_bytes() == twin.read_bytes(), path
    with pytest.raises(grpobench.ConfigError, match="did you mean reward/mean"):
        grpobench.import_logs([logs], tmp_path / "x", map={"a": "reward/meen"})
    with pytest.raises(grpobench.ConfigError, match="unknown format 'verll'; did you mean 'verl'"):
        grpobench.import_logs(logs, tmp_path / "x", format="verll")
    with pytest.raises(grpobench.DataError, match="no such file or folder"):
        grpobench.import_logs(tmp_path / "absent", tmp_path / "x")
    with pytest.warns(UserWarning, match="no log has 'absent'"):
        grpobench.import_logs(logs, tmp_path / "y", map={"absent": "reward/std"})


def test_a_report_of_copied_and_imported_runs_accuses_none_of_them(tmp_path: Path) -> None:
    """`grpo-trl` evaluated only validation, sampled; ours were tested greedily and have a control."""
    made = Synthetic(
        arms=("grpo", "mine"), tasks=("arithmetic",), seeds=(1, 2), steps=4, every=2, problems=4, name="ours"
    )
    ours = made.write(tmp_path)
    design = {"control": "grpo", "margin": 1.0, "borrowed_rates": {"mine": "grpo", "gone": "grpo"}}
    described = json.loads((ours / "experiment.json").read_text())
    (ours / "experiment.json").write_text(json.dumps(described | design))
    history = [trl_row(step, 0.5) for step in (1, 2)]
    history.append({"step": 2, "eval_rewards/accuracy_reward/mean": 0.5})
    log = tmp_path / "grpo-trl-s1" / "trainer_state.json"
    log.parent.mkdir()
    log.write_text(trainer_state(history, 2, 2))
    out = tmp_path / "both"
    assert imported(log.parent, out, "--task", "arithmetic", "--beside", ours) == 0
    report_table = report(out)
    assert "Folders that are not what they say" not in report_table["alarms"]
    assert (
        "copied from experiment ours by import --beside: grpo-arithmetic-s1, grpo-arithmetic-s2, "
        "mine-arithmetic-s1, mine-arithmetic-s2" in report_table["alarms"]["Imported from logs of others"]
    )
    assert (report_table["control"], report_table["margin"]) == ("grpo", 0.01)
    assert {(pair["first"], pair["second"]) for pair in report_table["comparisons"]} == {
        ("grpo", "mine"),
        ("grpo", "grpo-trl"),
    }
    assert load(out).borrowed_rates == {"mine": "grpo"}
    (lines,) = (
        warning["lines"] for warning in report_table["warnings"] if "no final accuracy" in warning["title"]
    )
    reason = "the accuracy of this task is test, greedy, and its log has only validation, sampled"
    assert lines == [f"grpo-trl on arithmetic, seed 1: finished without data at update 2: {reason}"]
    other = Synthetic(
        arms=("late",), tasks=("arithmetic",), seeds=(1,), steps=4, every=2, problems=4, name="b"
    )
    table = json.loads((other.write(tmp_path) / "experiment.json").read_text())
    (tmp_path / "b" / "experiment.json").write_text(json.dumps(table | {"control": "late", "margin": 1.0}))
    three = tmp_path / "three"
    assert imported(log.parent, three, "--beside", ours, "--beside", tmp_path / "b") == 0
    (fault,) = load(three).unimported
    assert "different values of control (grpo in " in fault and "none is used" in fault
    assert (load(three).control, load(three).margin) == ("", 0.01)
