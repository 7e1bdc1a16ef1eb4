"""NaN in tables: where a row has no value it says nothing, and where a value was NaN the run diverged."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from grpobench.runs.handover.importing.log import Log
from grpobench.runs.handover.importing.readers import columns
from grpobench.runs.handover.importing.translate import diverged, language, translate

NAN = math.nan
ACCURACY = "eval_rewards/accuracy_reward/mean"


def training(step: int, value: float = 0.5, **more: float) -> dict[str, float]:
    """A row of an update, as a frame has it in which evaluations have rows too."""
    return {"step": step, "reward": value, "grad_norm": value, ACCURACY: NAN} | more


def evaluation(step: int, **more: float) -> dict[str, float]:
    return {"step": step, "reward": NAN, "grad_norm": NAN, ACCURACY: 0.25} | more


def read(folder: Path, *rows: dict[str, float]) -> Log:
    """The log of rows as `json.dumps` writes those of `df.to_dict("records")`."""
    file = folder / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return columns.read_jsonl(file)


def why(log: Log) -> str:
    return diverged(translate(log, language(log), {}))


def test_separate_evaluation_row_is_no_divergence_and_overwrites_nothing(tmp_path: Path) -> None:
    log = read(tmp_path, training(1), training(2, 0.75), evaluation(2), training(3), evaluation(4))
    assert why(log) == ""
    assert log.rows == {
        1: {"reward": 0.5, "grad_norm": 0.5},
        2: {"reward": 0.75, "grad_norm": 0.75, ACCURACY: 0.25},
        3: {"reward": 0.5, "grad_norm": 0.5},
        4: {ACCURACY: 0.25},
    }
    assert log.notes == [
        f"NaN in cells without a value is left out: reward (2), grad_norm (2), {ACCURACY} (3)"
    ]


def test_a_csv_with_cells_of_nan_is_read_alike(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"step,reward,{ACCURACY}\n1,0.5,nan\n2,0.75,nan\n2,NaN,0.25\n")
    log = columns.read_csv(tmp_path / "a.csv")
    assert log.rows == {1: {"reward": 0.5}, 2: {"reward": 0.75, ACCURACY: 0.25}}


def test_counters_do_not_make_an_evaluation_an_update(tmp_path: Path) -> None:
    rows = [training(1, epoch=0.5), training(2, epoch=1.0), evaluation(3, epoch=1.5)]
    assert why(read(tmp_path, *rows)) == ""
    assert why(read(tmp_path, *(row | {"hours": row["step"] / 9} for row in rows))) == ""


def test_a_summary_behind_the_last_update_is_a_row_of_another_kind(tmp_path: Path) -> None:
    rows = [training(step) | {"train_runtime": NAN} for step in (10, 20)]
    assert why(read(tmp_path, *rows, training(25, NAN) | {"train_runtime": 60.0})) == ""


def test_evaluations_that_sometimes_share_a_row_with_an_update(tmp_path: Path) -> None:
    both = training(20) | {ACCURACY: 0.25}
    assert why(read(tmp_path, training(10), both, evaluation(25))) == ""  # a last one alone
    often = [evaluation(5), evaluation(10), both, evaluation(25), evaluation(30)]
    assert why(read(tmp_path, *often)) == ""  # two at the end, as there were before


def test_a_reward_of_nan_beside_what_updates_tell_is_a_divergence(tmp_path: Path) -> None:
    rows = [training(step, learning_rate=1e-6) for step in (1, 2)]
    last = training(3, NAN, learning_rate=1e-6)
    expected = "grad_norm is nan from step 3 to the end"
    assert why(read(tmp_path, *rows, last)) == expected
    assert why(read(tmp_path, *rows, last, evaluation(3, learning_rate=NAN))) == expected
    assert why(read(tmp_path, *rows, last | {ACCURACY: 0.0})) == expected


def test_updates_that_are_all_nan_to_the_end_are_a_divergence(tmp_path: Path) -> None:
    rows = [training(1), training(2), evaluation(2), training(3, NAN), training(4, NAN)]
    expected = "grad_norm is nan from step 3 to the end"
    assert why(read(tmp_path, *rows)) == expected
    assert why(read(tmp_path, *rows, evaluation(5))) == expected
    always = [training(1) | {ACCURACY: 0.25}, training(2) | {ACCURACY: 0.25}, evaluation(3), evaluation(4)]
    assert why(read(tmp_path, *always)) == expected  # evaluated at each update, and twice after it broke


@pytest.mark.parametrize("value", [NAN, math.inf])
def test_what_is_never_finite_is_a_divergence(value: float, tmp_path: Path) -> None:
    rows = [training(step) | {"grad_norm": value} for step in (1, 2)]
    assert why(read(tmp_path, *rows, evaluation(2))) == f"grad_norm is {value:g} from step 1 to the end"


def test_a_column_that_is_logged_at_intervals(tmp_path: Path) -> None:
    def every_third(last: int) -> list[dict[str, float]]:
        points = [(step, 0.5 if step % 3 == 0 and step < 9 else NAN) for step in range(1, last + 1)]
        return [{"step": step, "reward": 0.5, "grad_norm": value} for step, value in points]

    assert why(read(tmp_path, *every_third(8))) == ""  # two steps behind the last: no more than before
    assert why(read(tmp_path, *every_third(9))) == "grad_norm is nan from step 7 to the end"
