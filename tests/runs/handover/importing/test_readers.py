"""Logs of others, read from what their code writes: every number, and every damage with its line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
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

from grpobench.runs.handover.importing.log import ImportFault, Log, as_step, numbers
from grpobench.runs.handover.importing.readers import columns, console, json_logs, trl
from grpobench.runs.handover.importing.sources import detect_kind, detect_library, find_sources
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError

ROWS = {0: {"val-core/gsm8k/acc/mean@1": 0.25}, 1: verl_row(1, 0.5), 2: verl_row(2, 0.75)}


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def faults(log: Log) -> list[str]:
    """What was left out, without the path."""
    return [f"{fault.line}: {fault.message}" for fault in log.faults]


# verl


def test_verl_console_and_file_logger_say_the_same(tmp_path: Path) -> None:
    text = written(tmp_path, "train.log", verl_console(ROWS, planned=2))
    table = written(tmp_path, "train.jsonl", verl_file(ROWS))
    from_console, from_file = console.read(text, "verl"), json_logs.read(table, "verl")
    assert from_console.rows == from_file.rows == ROWS
    assert (from_console.state, from_console.planned, from_console.faults) == ("finished", 2, [])
    assert [detect_kind(text, ""), detect_kind(table, ""), detect_library(text)] == ["lines", "jsonl", "verl"]


def test_verl_console_reads_numbers_of_numpy_and_what_is_not_finite(tmp_path: Path) -> None:
    line = "step:3 - actor/entropy:np.float64(0.5) - actor/lr:1e-06 - actor/kl:nan - num:-inf - ok:True\n"
    log = console.read(written(tmp_path, "a.log", line), "verl")
    assert log.rows[3].keys() == {"actor/entropy", "actor/lr", "actor/kl", "num"}
    assert (log.rows[3]["actor/entropy"], log.rows[3]["actor/lr"]) == (0.5, 1e-6)
    assert math.isnan(log.rows[3]["actor/kl"]) and log.rows[3]["num"] == -math.inf
    assert not log.faults


def test_a_console_that_is_cut_loses_its_last_number_and_says_so(tmp_path: Path) -> None:
    text = "step:1 - actor/lr:1e-06 - critic/score/mean:0.5\nstep:2 - actor/lr:1e-06 - critic/score/mean:0.1"
    log = console.read(written(tmp_path, "a.log", text), "verl")
    assert log.rows == {1: {"actor/lr": 1e-6, "critic/score/mean": 0.5}, 2: {"actor/lr": 1e-6}}
    assert faults(log) == ["2: the last line is cut; its last number is left out"]


def test_traceback_after_last_step_is_a_crash_and_earlier_one_is_not(tmp_path: Path) -> None:
    broke = "Traceback (most recent call last):\n  File\nRuntimeError: out of memory\n"
    text = verl_console({1: verl_row(1, 0.5)})
    log = console.read(written(tmp_path, "a.log", text + broke), "verl")
    assert (log.state, log.why) == ("crashed", "a.log, line 3: a traceback follows the last step")
    assert console.read(written(tmp_path, "b.log", broke + text), "verl").state == "finished"


def test_a_step_that_goes_back_replaces_what_followed(tmp_path: Path) -> None:
    lines = [f"step:{step} - actor/lr:{step}.0" for step in (1, 2, 3)] + ["step:2 - actor/lr:20.0"]
    log = console.read(written(tmp_path, "a.log", "\n".join(lines) + "\n"), "verl")
    assert log.rows == {1: {"actor/lr": 1.0}, 2: {"actor/lr": 20.0}}
    assert log.notes == ["the step goes back from 3 to 2 at line 4: 2 rows are replaced"]


def test_a_damaged_line_of_the_file_logger_is_named_and_the_rest_read(tmp_path: Path) -> None:
    text = (
        verl_file({1: {"a": 1.0}})
        + '{"step": 2, "da\n'
        + '{"step": "x", "data": {}}\n'
        + verl_file({3: {"a": 3.0}})
    )
    log = json_logs.read(written(tmp_path, "a.jsonl", text), "verl")
    assert log.rows == {1: {"a": 1.0}, 3: {"a": 3.0}}
    assert [fault.line for fault in log.faults] == [2, 3]


# OpenRLHF


def test_openrlhf_console_gives_steps_and_evaluations(tmp_path: Path) -> None:
    rows = {1: openrlhf_row(0.5), 2: openrlhf_row(0.75, vllm_kl=None)}
    evaluation_rows = {2: {"eval_gsm8k_pass4": 0.5, "eval_gsm8k_pass1": 0.25}}
    path = written(tmp_path, "a.log", openrlhf_console(rows, evaluation_rows))
    log = console.read(path, detect_library(path))
    assert log.library == "openrlhf" and not log.faults
    assert log.rows == {1: rows[1], 2: openrlhf_row(0.75) | evaluation_rows[2]}


def test_a_dictionary_of_openrlhf_that_is_cut_loses_its_last_number(tmp_path: Path) -> None:
    text = openrlhf_console({1: openrlhf_row(0.5)}, {}).rstrip("\n")
    assert not console.read(written(tmp_path, "whole.log", text), "openrlhf").faults
    log = console.read(written(tmp_path, "cut.log", text[:-3]), "openrlhf")
    assert "rollout/num_samples" not in log.rows[1] and len(log.faults) == 1


def test_a_text_without_a_step_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a.log", "nothing here\n")
    assert detect_kind(path, "") == ""
    with pytest.raises(DataError, match=r"a\.log: no line reports a step as verl does"):
        console.read(path, "verl")


# TRL


def test_trainer_state_has_updates_and_evaluations_in_their_step_rows(tmp_path: Path) -> None:
    history = [trl_row(1, 0.25), trl_row(2, 0.5), {"step": 2, "epoch": 0.2, "eval_reward": 0.75}]
    log = trl.read(written(tmp_path, "trainer_state.json", trainer_state(history, 2, 2)))
    assert (log.state, log.planned, log.library) == ("finished", 2, "trl")
    assert log.rows[2] == {k: v for k, v in trl_row(2, 0.5).items() if k != "step"} | {"eval_reward": 0.75}
    assert log.settings["logging_steps"] == 1


def test_the_last_checkpoint_counts_and_an_unfinished_one_is_preempted(tmp_path: Path) -> None:
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        history = [trl_row(at, 0.5) for at in range(1, step + 1)]
        written(tmp_path / f"checkpoint-{step}", "trainer_state.json", trainer_state(history, step, 20))
    (tmp_path / "README.md").write_text("## Training\n\n### Framework versions\n\n- TRL: 1.16.0\n")
    log = trl.read(tmp_path)
    assert len(log.rows) == 10 and log.writer == "trl 1.16.0"
    assert (log.state, log.why) == ("preempted", "the log ends at step 10 of 20")


def test_a_state_that_is_cut_keeps_what_stands_before(tmp_path: Path) -> None:
    whole_text = trainer_state([trl_row(step, 0.5) for step in (1, 2, 3)], 3, 3)
    cut = whole_text[: whole_text.index('"step": 3')]
    log = trl.read(written(tmp_path, "trainer_state.json", cut))
    assert list(log.rows) == [1, 2]
    line = cut.count("\n") + 1
    assert log.faults[0].line == line and "not JSON" in log.faults[0].message


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"log_history": 3}', "\x00\x01"])
def test_a_state_without_a_history_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no log_history"):
        trl.read(written(tmp_path, "trainer_state.json", text))


@pytest.mark.parametrize("history", [[], [{"step": 1, "note": "text"}]])
def test_a_history_without_numbers_is_refused(history: list[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no row has a number"):
        trl.read(written(tmp_path, "trainer_state.json", trainer_state(history, 0, 5)))


def test_completions_become_groups_of_the_same_prompt(tmp_path: Path) -> None:
    written(tmp_path, "trainer_state.json", trainer_state([trl_row(1, 0.5)], 1, 1))
    (tmp_path / "completions").mkdir()
    message = [{"role": "user", "content": "1+1="}]
    table = pd.DataFrame(
        {
            "step": [1, 1, 1],
            "prompt": [message, message, [{"role": "user", "content": "2+2="}]],
            "completion": [[{"role": "assistant", "content": text}] for text in ("2", "3", "4")],
            "exact": [1.0, 0.0, 1.0],
            "advantage": [1.0, -1.0, 0.0],
        }
    )
    table.to_parquet(tmp_path / "completions" / "completions_00001.parquet")
    written(tmp_path / "completions", "completions_00002.parquet", "not a table")
    log = trl.read(tmp_path)
    first, second = log.rollouts[1]
    assert (first["prompt"], second["prompt"]) == ("1+1=", "2+2=")
    assert [
        (completion["text"], completion["reward"], completion["advantage"])
        for completion in first["completions"]
    ] == [
        ("2", 1.0, 1.0),
        ("3", 0.0, -1.0),
    ]
    assert [fault.path.name for fault in log.faults] == ["completions_00002.parquet"]


# Tables


def test_csv_names_cells_that_are_no_numbers_and_lines_that_are_no_rows(tmp_path: Path) -> None:
    text = "it,score,note,kl\n1,0.5,fine,0.1\n2,oops,fine,\n3,0.7\nx,0.7,fine,0.1\n\n5,0.9,,nan\n"
    log = columns.read_csv(written(tmp_path, "a.csv", text), {"it": "step"})
    assert list(log.rows) == [1, 2, 5]
    assert (log.rows[1], log.rows[2]) == ({"score": 0.5, "kl": 0.1}, {})
    assert math.isnan(log.rows[5]["kl"])
    assert faults(log) == [
        "4: 2 cells under 4 names; the line is left out",
        "5: `it` is not a step: 'x'; the line is left out",
        "3: `score` is not a number: 'oops'; it is left out",
    ]
    assert log.notes == ["columns without a number are left out: note"]


def test_a_table_without_a_step_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.csv: no column holds the step; write --map COLUMN=step"):
        columns.read_csv(written(tmp_path, "a.csv", "it,score\n1,0.5\n"))
    with pytest.raises(DataError, match="no column holds the step"):
        columns.read_jsonl(written(tmp_path, "a.jsonl", '{"it": 1}\n'))


@pytest.mark.parametrize("text", ["", "\n\n", "step,reward\n", "step,reward\nx,y\n"])
def test_an_empty_table_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        columns.read_csv(written(tmp_path, "a.csv", text))


def test_a_name_that_stands_twice_in_a_header_is_refused(tmp_path: Path) -> None:
    text = "step,note,note,kl,kl\n1,a,b,0.1,0.2\n"
    with pytest.raises(DataError, match=r"a\.csv, line 1: several columns are called `kl`; rename them"):
        columns.read_csv(written(tmp_path, "a.csv", text))


def test_rows_of_several_seeds_are_refused_and_one_is_taken(tmp_path: Path) -> None:
    text = "step,seed,kl\n1,0,0.1\n1,1,0.2\n"
    with pytest.raises(DataError, match="`seed` is 0, 1: these are rows of 2 runs; write a file for each"):
        columns.read_csv(written(tmp_path, "a.csv", text))
    log = columns.read_csv(written(tmp_path, "b.csv", "step,seed,kl\n1,3,0.1\n2,3,0.2\n"))
    assert log.seed == 3


def test_numbers_that_stand_twice_at_their_step_are_counted(tmp_path: Path) -> None:
    text = "step,kl,loss\n1,0.1,1\n1,0.2,1\n2,0.1,1\n2,0.2,2\n2,nan,\n"
    log = columns.read_csv(written(tmp_path, "a.csv", text))
    assert log.rows == {1: {"kl": 0.2, "loss": 1.0}, 2: {"kl": 0.2, "loss": 2.0}}
    (note,) = log.repeated()
    message = "numbers were logged twice for their step with different values; the last one counts"
    assert note == f"{message}: kl (2), loss (1); 3 in all"


def test_a_table_with_its_newest_row_first_is_sorted(tmp_path: Path) -> None:
    log = columns.read_csv(written(tmp_path, "a.csv", "step,kl\n3,0.3\n2,0.2\n2,0.1\n1,0.1\n"))
    assert list(log.rows.items()) == [(1, {"kl": 0.1}), (2, {"kl": 0.2}), (3, {"kl": 0.3})]
    assert log.notes == ["the newest row came first; the rows are now sorted by their steps"]
    resumed = columns.read_csv(written(tmp_path, "b.csv", "step,kl\n1,0.3\n2,0.2\n1,0.1\n"))
    assert "the step goes back from 2 to 1 at line 4" in resumed.notes[0]


def test_too_large_or_too_nested_values_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    large = "1" + "0" * 400
    rows = [
        f'{{"step": 1, "a": {large}, "b": 1}}',
        '{"step": 2, "a": ' + "[" * 2500 + "]" * 2500 + "}",
        '{"step": 3, "b": 3, "c": ' + '{"d": ' * 200 + "1" + "}" * 201,
        f'{{"step": {large}, "b": 4}}',
    ]
    log = columns.read_jsonl(written(tmp_path, "a.jsonl", "\n".join(rows)))
    assert log.rows == {1: {"b": 1.0}, 3: {"b": 3.0}}
    assert [(fault.line, fault.message.partition("; ")[0]) for fault in log.faults[:3]] == [
        (2, "not a JSON object (nested too deep)"),
        (1, "`a` is too large for a number"),
        (3, "`c/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/…` is nested more than 100 levels deep"),
    ]
    assert log.faults[-1].line == 4
    with pytest.raises(DataError, match=r"nested too deep"):
        columns.read_jsonl(written(tmp_path, "b.jsonl", "[" * 100_000))
    state = f'{{"log_history": [{{"step": 1, "a": {large}, "b": 1}}]}}'
    assert "`a` is too large" in trl.read(written(tmp_path, "trainer_state.json", state)).faults[0].message


def test_a_step_beyond_all_steps_is_named(tmp_path: Path) -> None:
    log = columns.read_csv(written(tmp_path, "a.csv", "step,kl\n1,0.1\n1e30,0.2\n"))
    assert faults(log) == ["3: `step` is not a step: '1e30'; the line is left out"]
    text = f"step:1 - a:1.0 - b:1.2.3\nstep:{'9' * 5000} - a:1.0\n"
    console_log = console.read(written(tmp_path, "a.log", text), "verl")
    assert console_log.rows == {1: {"a": 1.0}}
    assert faults(console_log) == [
        "1: `b` is not a number: '1.2.3'; it is left out",
        f"2: no step: {'9' * 40}; the line is left out",
    ]


def test_json_list_with_steps_is_recognized_where_it_is_given(tmp_path: Path) -> None:
    table = written(tmp_path, "a.json", '[\n {"loss": 1.0, "step": 1}]')
    (source,) = find_sources(table, "", [])
    assert (source.kind, columns.read_jsonl(table).rows) == ("jsonl", {1: {"loss": 1.0}})
    other = written(tmp_path, "b.json", '[{"it": 1, "text": "step"}]')
    with pytest.raises(DataError, match="not a known log format; see --from; --from jsonl reads a list of"):
        find_sources(other, "", [])
    noted: list[ImportFault] = []
    assert not find_sources(tmp_path, "", noted) and len(noted) == 1  # a folder may hold many


def test_json_lines_and_a_list_are_the_same_and_nested_names_are_joined(tmp_path: Path) -> None:
    rows = [
        {"global_step": 1, "train": {"reward": 0.5}, "text": "x"},
        {"global_step": 2, "train": {"reward": 1}},
    ]
    lines = columns.read_jsonl(written(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    whole_list = columns.read_jsonl(written(tmp_path, "a.json", json.dumps(rows)))
    assert lines.rows == whole_list.rows == {1: {"train/reward": 0.5}, 2: {"train/reward": 1.0}}


def test_damaged_json_lines_are_named_and_the_rest_read(tmp_path: Path) -> None:
    content = b'{"step": 1, "a": 1}\n[1]\n{"a": 2}\n{"step": 3, "a": NaN}\n\xff\n{"step": 4, "a'
    (tmp_path / "a.jsonl").write_bytes(content)
    log = columns.read_jsonl(tmp_path / "a.jsonl")
    assert list(log.rows) == [1, 3] and math.isnan(log.rows[3]["a"])
    assert sorted(fault.line or 0 for fault in log.faults) == [2, 3, 5, 6]


def test_numbers_and_steps() -> None:
    assert numbers({"a": 1, "b": True, "c": "1", "d": {"e": 2.5, "f": None}}) == {"a": 1.0, "d/e": 2.5}
    assert [as_step(value) for value in (3, 3.0, 0, -1, 2.5, math.nan, True, "3", None)] == [
        *(3, 3, 0),
        *(None,) * 6,
    ]
    assert [as_step(value) for value in (2.0**53 - 1, 2**53, 1e30, 10**400)] == [2**53 - 1, None, None, None]


# Folders


def test_a_folder_is_searched_for_runs_and_each_is_read_once(tmp_path: Path) -> None:
    for name in ("grpo/seed0", "grpo/seed1", "empty/deep", "both", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    state = trainer_state([trl_row(1, 0.5)], 1, 1)
    written(tmp_path / "grpo/seed0", "trainer_state.json", state)
    (tmp_path / "grpo/seed1/checkpoint-1").mkdir()
    written(tmp_path / "grpo/seed1/checkpoint-1", "trainer_state.json", state)
    written(tmp_path / "both", "a.csv", "step,reward\n1,0.5\n")
    written(tmp_path / "both", "b.csv", "step,reward\n1,0.5\n")
    written(tmp_path / "both", "train.log", verl_console(ROWS))
    written(tmp_path / ".hidden", "a.csv", "step,reward\n1,0.5\n")
    noted: list[ImportFault] = []
    run_sources = find_sources(tmp_path, "", noted)
    assert [source.label for source in run_sources] == ["both", "grpo/seed0", "grpo/seed1"]
    assert [fault.path for fault in noted] == [tmp_path / "empty"]
    assert [source.label for source in find_sources(tmp_path, "csv", [])] == ["both/a", "both/b"]
    with pytest.raises(DataError, match="no such file or folder"):
        find_sources(tmp_path / "absent", "", [])


@pytest.mark.parametrize(
    ("package", "name"), [("wandb", "run-1.wandb"), ("tensorboard", "events.out.tfevents.1")]
)
def test_an_absent_package_is_named_with_the_remedy(
    package: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpobench.runs.handover.importing.readers import tensorboard, wandb

    module = {
        "wandb": "wandb.proto.wandb_internal_pb2",
        "tensorboard": "tensorboard.backend.event_processing.event_accumulator",
    }[package]
    monkeypatch.setitem(__import__("sys").modules, module, None)
    reader = {"wandb": wandb, "tensorboard": tensorboard}[package]
    with pytest.raises(ConfigError, match=rf'pip install "\.\[{package}\]"'):
        reader.read(written(tmp_path, name, "x"))


@pytest.mark.parametrize(
    ("file", "searched", "label"),
    [
        ("study/grpo-s1.csv", "study", "grpo-s1"),
        ("study/grpo-s1.csv", ".", "study/grpo-s1"),
        ("study/dapo.csv", "study", "dapo"),
        ("grpo/seed1.csv", "grpo", "grpo/seed1"),
        ("seed1/grpo.csv", "seed1", "grpo/seed1"),
        ("grpo-s1/curve.csv", "grpo-s1", "grpo-s1"),
        ("grpo-s1/curve.csv", ".", "grpo-s1"),
        ("grpo/seed1/metrics.csv", "grpo", "grpo/seed1"),
        ("verl/train_log.csv", "verl", "verl"),
    ],
)
def test_the_only_log_of_a_folder_keeps_its_name_and_seed(
    file: str, searched: str, label: str, tmp_path: Path
) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    written(tmp_path, file, "step,reward\n1,0.5\n")
    assert [source.label for source in find_sources(tmp_path / searched, "", [])] == [label]


@pytest.mark.parametrize("searched", [".", "grpo-s3", "grpo-s3/runs", "grpo-s3/runs/Nov23_06-18-54_host"])
def test_event_files_of_transformers_have_the_name_of_the_run_s_folder(searched: str, tmp_path: Path) -> None:
    folder = tmp_path / "grpo-s3" / "runs" / "Nov23_06-18-54_host"
    folder.mkdir(parents=True)
    file = written(folder, "events.out.tfevents.1.host.2.0", "")
    for path in (tmp_path / searched, file):
        assert [source.label for source in find_sources(path, "", [])] == ["grpo-s3"]
