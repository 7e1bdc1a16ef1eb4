"""Logs that six libraries' own loggers wrote (logs/README.md): what an import and a report make of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.pages import drawing
from helpers.synthetic import Synthetic

from grpobench.analysis.runfolder.load import load
from grpobench.runs import cli
from grpobench.runs.handover.importing.log import Log
from grpobench.runs.handover.importing.names.vocabularies import VOCABULARIES
from grpobench.runs.handover.importing.translate import language

LOGS = Path(__file__).with_name("logs")
FILES = {
    "prime-rl": "metrics.jsonl",
    "nemo-rl": "train.log",
    "skyrl": "train.log",
    "slime": "train.log",
    "areal": "main.log",
    "ms-swift": "logging.jsonl",
}
LATER = {"policy/entropy": 0.4375, "grad_norm/policy": 0.625}
BEGINNING = 32 * 212.5 + 32 * 205.25  # tokens of two steps of 32 completions

# By library, the numbers of step 2, each redone from its log by hand.
SECOND: dict[str, dict[str, float]] = {
    "prime-rl": LATER
    | {
        "reward/mean": 0.3125,  # 10 of 32
        "trained/reward_mean": 0.3125,
        "length/mean": 205.25,
        "trained/length_mean": 205.25,
        "length/truncated": 3 / 32,
        "groups/solved_all": 0.25,
        "groups/solved_none": 0.5,
        "groups/solved_some": 0.25,
        "learning_rate/policy": 1e-6,
        "gap/k3": 2.0**-10,
        "cost/peak_memory_gb": 61.5,
        "cost/generated_tokens": BEGINNING,
        "time/step": 10.0,  # the trainer's; the orchestrator's is 9.5
        "time/sync": 0.75,
        "eval/validation/sampled/correct": 5 / 16,  # logged at step 3, of policy version 2
        "eval/validation/sampled/pass@2": 4 / 8,
        "eval/validation/sampled/reward": 5 / 16,
        "eval/validation/sampled/length": 200.0,
    },
    "nemo-rl": {
        "reward/mean": 0.3125,
        "length/mean": 205.25,
        "time/step": 20.5,  # 26.75 with the validation
        "time/sample": 8.5,
        "time/forward": 2.5,
        "time/sync": 1.25,
        "time/evaluate": 6.25,
        "eval/validation/sampled/correct": 0.375,
        "eval/validation/sampled/length": 200.0,
    },
    "skyrl": LATER
    | {
        "reward/mean": 0.3125,
        "length/mean": 205.25,
        "policy/kl_reference_k3": 0.004,
        "gap/mean": 0.0156,
        "gap/max": 0.5,
        "cost/generated_tokens": BEGINNING,
        "time/step": 20.5,
        "time/sample": 8.5,
        "time/forward": 2.5,
        "time/sync": 1.25,
        "time/evaluate": 6.25,
        "eval/validation/greedy/correct": 0.375,
        "eval/validation/greedy/reward": 0.375,
        "eval/validation/greedy/length": 200.0,
    },
    "slime": LATER  # means of two updates: 0.46875 and 0.40625, 0.6875 and 0.5625
    | {
        "reward/mean": 0.3125,
        "length/mean": 205.25,
        "length/truncated": 3 / 32,
        "trained/kl_old": 2.0**-10,  # 0 and 2⁻⁹
        "policy/kl_reference_k1": 2.0**-8,
        "gap/mean": 2.0**-6,
        "learning_rate/policy": 1e-6,  # the last of 5e-7 and 1e-6
        "time/step": 20.5,
        "time/sample": 8.5,
        "time/forward": 2.5,  # 2.0 + 0.5
        "time/sync": 1.25,
        "eval/validation/sampled/correct": 5 / 16,
        "eval/validation/sampled/pass@2": 4 / 8,
        "eval/validation/sampled/reward": 5 / 16,
    },
    "areal": LATER
    | {
        "reward/mean": 0.3125,
        "length/mean": 205.25,  # 265.25 − 60
        "trained/kl_old": 9.7656e-4,  # the negative of theirs, in five digits
        "trained/ratio_mean": 1.0,
        "trained/ratio_max": 1.5,
        "learning_rate/policy": 1e-6,
        "cost/generated_tokens": BEGINNING,
        "time/sample": 8.5,
        "time/forward": 2.5,
        "time/sync": 1.25,
        "time/evaluate": 6.25,
        "eval/validation/sampled/reward": 0.375,
    },
    "ms-swift": LATER
    | {
        "reward/mean": 1.0625,
        "reward/Format": 0.75,
        "score/correct": 0.3125,
        "groups/zero_signal": 0.25,
        "length/mean": 205.25,
        "length/truncated": 3 / 32,
        "policy/kl_reference_k3": 2.0**-8,
        "policy/clip_low": 0.00097656,  # eight decimals
        "policy/clip_high": 0.00195312,
        "learning_rate/policy": 1e-6,
        "cost/peak_memory_gb": 61.5,
        "eval/validation/sampled/correct": 0.375,
        "eval/validation/sampled/Format": 0.75,
        "eval/validation/sampled/reward": 1.125,
        "eval/validation/sampled/length": 200.0,
    },
}


def imported_rows(out: Path, *arguments: str) -> dict[int, dict[str, float]]:
    """The known metrics of the one run that an import makes, by step."""
    assert cli.main(["import", *arguments, str(out)]) == 0
    (run,) = load(out).runs
    assert run.state == "finished"
    lines = (out / run.name / "metrics.jsonl").read_text().splitlines()
    return {
        row.pop("step"): {name: value for name, value in row.items() if not name.startswith("other/")}
        for row in map(json.loads, lines)
    }


@pytest.mark.parametrize("library", FILES)
@pytest.mark.parametrize("explicit", [False, True])
def test_a_log_of_its_own_logger_gives_its_numbers_under_our_names(
    explicit: bool, library: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    form = ["--from", library] if explicit else []
    rows = imported_rows(tmp_path / "out", str(LOGS / library), *form, "--arm", "grpo", "--seed", "1")
    assert rows[2] == pytest.approx(SECOND[library], abs=0.0)
    assert list(rows) == [*range(library in ("areal", "ms-swift"), 3 if library == "areal" else 5)]
    evaluated = [step for step in rows if "eval/validation/sampled/length" in rows[step]]
    assert evaluated in ([], [0, 2, 4], [2, 4])
    output = capsys.readouterr().out
    assert f"names of {VOCABULARIES[library].title}, as in" in output
    assert "left out:" not in output and "note:" not in output
    again = imported_rows(tmp_path / "file", str(LOGS / library / FILES[library]), "--arm", "x", *form)
    assert again == rows


def test_folders_of_six_libraries_are_told_apart_without_an_option(tmp_path: Path) -> None:
    for library in FILES:
        shutil.copytree(LOGS / library, tmp_path / "logs" / f"{library}-s1")
    assert cli.main(["import", str(tmp_path / "logs"), str(tmp_path / "out"), "--task", "gsm8k"]) == 0
    provenance = {
        run.arm: json.loads((tmp_path / "out" / run.name / "provenance.json").read_text())["imported"]
        for run in load(tmp_path / "out").runs
    }
    assert {arm: of_run["names"] for arm, of_run in provenance.items()} == {name: name for name in FILES}


ACCURACIES = {
    "prime-rl": ("eval/gsm8k/effective/agent/pass@1", 0.5),
    "nemo-rl": ("validation/accuracy", 0.5),
    "skyrl": ("eval/all/pass_at_1", 0.5),
    "slime": ("eval/gsm8k-pass@1", 0.5),
    "areal": ("eval-rollout/reward", 0.375),
    "ms-swift": ("eval_rewards/MathAccuracy/mean", 0.5),
}
"""The metric that the user calls greedy accuracy on the test set, as ours is, and its last value."""


def test_six_logs_and_a_run_of_ours_are_in_one_report(tmp_path: Path) -> None:
    ours = Synthetic(arms=("grpo",), tasks=("gsm8k",), seeds=(1,), steps=4, every=2, name="ours")
    out = str(tmp_path / "all")
    beside = ["--beside", str(ours.write(tmp_path))]
    for library, (theirs, _) in ACCURACIES.items():
        command = ["import", str(LOGS / library), out, "--arm", f"grpo-{library}", "--task", "gsm8k"]
        command += ["--seed", "1", "--map", f"{theirs}=eval/test/greedy/correct"]
        assert cli.main([*command, *beside]) == 0, library
    with drawing("final_accuracy", "reward"):
        assert cli.main(["report", out, "--format", "json,html"]) == 0
    table: dict[str, Any] = json.loads((tmp_path / "all" / "report" / "report.json").read_text())
    finals = {run["arm"]: run["final"] for run in table["runs"]}
    assert finals.pop("grpo") is not None
    assert finals == {f"grpo-{library}": final for library, (_, final) in ACCURACIES.items()}
    page = (tmp_path / "all" / "report" / "index.html").read_text(encoding="utf-8")
    assert all(f"grpo-{library}" in page for library in FILES)


@pytest.mark.parametrize("updates", [1, 4])
@pytest.mark.parametrize("always_train_step", [False, True])
def test_updates_of_slime_are_averaged_over_their_rollout(updates: int, always_train_step: bool) -> None:
    rows: dict[int, dict[str, float]] = {0: {"eval/gsm8k": 0.25}}
    for rollout in range(6):
        number = rollout * updates if always_train_step else rollout
        rows.setdefault(number, {})["rollout/raw_reward"] = float(rollout)
        for update in range(updates):
            row = {"train/grad_norm": float(update), "train/lr-pg_0": update + rollout / 8}
            rows.setdefault(rollout * updates + update, {}).update(row)
    steps = VOCABULARIES["slime"].steps
    assert steps is not None
    placed = steps(dict(sorted(rows.items())))
    assert placed[0] == {"eval/gsm8k": 0.25} and list(placed) == [*range(7)]
    for rollout in range(6):
        assert placed[rollout + 1] == {
            "rollout/raw_reward": float(rollout),
            "train/grad_norm": (updates - 1) / 2,
            "train/lr-pg_0": updates - 1 + rollout / 8,
        }


def test_a_row_of_another_process_that_is_late_replaces_nothing() -> None:
    log = Log(Path("log"), "jsonl")
    for step, names in ((1, "ab"), (2, "ab"), (3, "ab"), (1, "c"), (0, "d"), (3, "c")):
        log.add(step, {name: float(step) for name in names})
    assert list(log.rows) == [0, 1, 2, 3] and log.rows[1] == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert not log.notes
    log.add(2, {"c": 9.0})  # step 3 has it already: a resume
    assert log.rows == {0: {"d": 0.0}, 1: {"a": 1.0, "b": 1.0, "c": 1.0}, 2: {"c": 9.0}}
    assert log.notes == ["the step goes back from 3 to 2: 2 rows are replaced"]


def test_what_trl_and_ms_swift_log_alike_is_trls() -> None:
    def spoken(**values: float) -> str:
        vocabulary = language(Log(Path("log"), "wandb", rows={1: values}))
        return vocabulary.library if vocabulary else ""

    alike = {"train/reward": 1.0, "train/frac_reward_zero_std": 0.0, "train/kl": 0.1}
    assert spoken(**alike) == "trl"
    assert spoken(**alike, **{"train/entropy/mean": 0.5}) == "ms-swift"
    assert spoken(**alike, **{"train/step_time": 0.5}) == "trl"


@pytest.mark.parametrize(
    ("library", "cut", "why"),
    [
        ("areal", "Train step 2/2 done", "the log ends at step 1 of 2"),
        ("nemo-rl", "= Step 4/4 =", "the log ends at step 3 of 4"),
        ("ms-swift", '{"loss": 0.015625, "grad_norm": 0.5,', "the log ends at step 3 of 4"),
    ],
)
def test_a_log_that_ends_before_its_planned_step_has_no_result(
    library: str, cut: str, why: str, tmp_path: Path
) -> None:
    text = (LOGS / library / FILES[library]).read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if cut in line)
    log = tmp_path / "grpo-s1" / FILES[library]
    log.parent.mkdir()
    log.write_text("".join(lines[:at]), encoding="utf-8")
    assert cli.main(["import", str(log.parent), str(tmp_path / "out")]) == 0
    (run,) = load(tmp_path / "out").runs
    status = json.loads((tmp_path / "out" / run.name / "status.json").read_text())
    assert (status["state"], status["why"]) == ("preempted", why)


def test_epochs_of_nemo_rl_follow_each_other(tmp_path: Path) -> None:
    text = (LOGS / "nemo-rl" / "train.log").read_text(encoding="utf-8")
    first_step = text.index("\n" + "=" * 25 + " Step 1/4")
    log = tmp_path / "grpo-s1" / "train.log"
    log.parent.mkdir()
    log.write_text(text + text[first_step:], encoding="utf-8")
    rows = imported_rows(tmp_path / "out", str(log.parent))
    assert list(rows) == [*range(9)] and rows[5] == rows[1] and rows[8]["reward/mean"] == 0.4688
