"""One run of a library gives one table, by whichever of its routes its log came.

What each route writes is as in the libraries' own code: verl 0.9.1 (`verl/utils/tracking.py`,
`verl/utils/logger/aggregate_logger.py`, `verl/trainer/ppo/v1/trainer_base.py`), OpenRLHF 0.11
(`openrlhf/utils/logging_utils.py`, `openrlhf/trainer/ppo_trainer.py`), and TRL 1.16, whose own trainer makes
its logs here. `make test-trackers` runs what needs W&B and TensorBoard.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.foreign_logs import openrlhf_console, trainer_state, trl_row, verl_console, verl_file

from grpobench.analysis.runfolder.load import load
from grpobench.runs import cli
from grpobench.runs.handover.importing.readers import console

NAME = "grpo-s3"
Calls = Sequence[tuple[int, Mapping[str, Any]]]
"""What a trainer gave its logger, call by call. Numbers are exact in float32, which TensorBoard keeps."""
trackers = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("wandb", "tensorboard")),
    reason="W&B or TensorBoard is not installed; make test-trackers installs them",
)


@dataclass(frozen=True)
class Table:
    """What an import made of a run."""

    run_key: tuple[str, str, int]
    rows: dict[int, dict[str, float]]
    state: str


def table(source: Path, out: Path, *arguments: str) -> Table:
    assert cli.main(["import", str(source), str(out), *arguments]) == 0
    (run,) = load(out).runs
    lines = (out / run.name / "metrics.jsonl").read_text().splitlines()
    rows = {row.pop("step"): row for row in map(json.loads, lines)}
    return Table((run.arm, run.task, run.seed), rows, run.state)


def same(first: Table, other: Table, digits: float = 0.0) -> None:
    assert (first.run_key, first.state, list(first.rows)) == (other.run_key, other.state, list(other.rows))
    for step, row in first.rows.items():
        assert row == pytest.approx(other.rows[step], rel=digits, abs=0.0), step


def offline(folder: Path, config: Mapping[str, Any], write: Callable[[Any], None]) -> None:
    """A run of W&B's."""
    import wandb

    settings = wandb.Settings(console="off", x_disable_stats=True, silent=True)
    run = wandb.init(
        project="p", name=NAME, dir=str(folder), mode="offline", config=dict(config), settings=settings
    )
    write(run)
    run.finish()
    wandb.teardown()


def scalars(folder: Path, calls: Calls, prefix: Callable[[Mapping[str, Any]], str] = lambda _: "") -> None:
    """Event files as torch's SummaryWriter writes them, a scalar per number."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for at, (step, row) in enumerate(calls):
        numbers = {name: value for name, value in row.items() if value is not None}
        for name, value in numbers.items():
            summary_value = Summary.Value(tag=f"{prefix(row)}{name}", simple_value=value)
            writer.add_event(Event(wall_time=float(at), step=step, summary=Summary(value=[summary_value])))
    writer.close()


# verl


def verl_calls() -> Calls:
    """A validation before training, then four steps of which two are validated and one is saved. Validation
    stands behind the step, the checkpoint within it."""
    core = "val-core/openai/gsm8k/acc"
    calls: list[tuple[int, dict[str, Any]]] = [
        (0, {f"{core}/mean@4": 0.25, f"{core}/best@4/mean": 0.5, "val-aux/num_turns/mean": 2.0})
    ]
    for step in range(1, 5):
        row: dict[str, Any] = {
            "actor/entropy": 1 / 2**step,
            "actor/loss": -0.125,
            "actor/grad_norm": 0.5,
            "actor/lr": 2.0**-20,
            "actor/perf/max_memory_allocated_gb": 61.5,
            "actor/perf/max_memory_reserved_gb": 70.25,
            "perf/mfu/actor": 0.375,
        }
        if step % 2 == 0:
            row |= {f"{core}/mean@4": step / 8, f"{core}/best@4/mean": step / 4}
        row |= {
            "training/global_step": step,
            "training/epoch": 0,
            "critic/score/mean": step / 64,
            "response_length/mean": 192.0,
            "response_length/clip_ratio": 0.125,
            "prompt_length/mean": 64.0,
            "timing_s/gen": 20.0,
            "timing_s/old_log_prob": 6.5,
            "timing_s/adv": 0.125,
            "timing_s/update_actor": 14.0,
            "timing_s/update_weights": 3.0,
        }
        saved = {"timing_s/save_checkpoint": 11.0} if step == 4 else {}
        row |= saved | {"timing_s/step": 44.125 + sum(saved.values())}
        row |= {"timing_s/testing": 60.0} if step % 2 == 0 else {}
        calls.append(
            (step, row | {"perf/total_num_tokens": 4096, "perf/time_per_step": row["timing_s/step"]})
        )
    return calls


def verl_text(folder: Path) -> Path:
    (folder / NAME).mkdir()
    (folder / NAME / "train.log").write_text(verl_console(dict(verl_calls()), planned=4), encoding="utf-8")
    return folder / NAME


def test_verl_gives_one_table_from_its_console_and_its_file_logger(tmp_path: Path) -> None:
    console = table(verl_text(tmp_path), tmp_path / "a")
    (tmp_path / "project").mkdir()  # PROJECT/EXPERIMENT.jsonl, as the file logger has it
    (tmp_path / "project" / f"{NAME}.jsonl").write_text(verl_file(dict(verl_calls())))
    for source in ("project", f"project/{NAME}.jsonl"):
        same(table(tmp_path / source, tmp_path / f"{len(source)}"), console)
    assert console.run_key == ("grpo", "gsm8k", 3)
    times = [console.rows[step]["time/step"] for step in range(1, 5)]
    assert times == [44.125] * 4  # not 44.125 − 60 where the step was validated
    assert console.rows[4]["time/evaluate"] == 60.0 and console.rows[4]["cost/peak_memory_gb"] == 61.5
    assert console.rows[4]["cost/generated_tokens"] == 4 * 3072.0
    assert console.rows[4]["eval/validation/sampled/correct"] == 0.5


@trackers
def test_verl_gives_one_table_from_its_trackers(tmp_path: Path) -> None:
    console = table(verl_text(tmp_path), tmp_path / "a")

    def write(run: Any) -> None:
        for step, row in verl_calls():
            run.log(data=row, step=step)

    offline(tmp_path, {"data": {"seed": None}, "trainer": {"experiment_name": NAME}}, write)
    same(table(tmp_path / "wandb", tmp_path / "b"), console)
    scalars(tmp_path / "tensorboard_log" / "project" / NAME, verl_calls())
    same(table(tmp_path / "tensorboard_log" / "project", tmp_path / "c"), console)


# OpenRLHF


def openrlhf_calls() -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, float]]]:
    """Rows of training and of evaluation."""
    rows: dict[int, dict[str, Any]] = {}
    for step in range(1, 5):
        rows[step] = {
            "policy_loss": -0.125,
            "actor_lr": 2.0**-20,
            "actor_grad_norm": 0.25,
            "reward": step / 64,
            "response_length": 30.0,
            "kl": 0.0625,
            "ppo_kl": 0.03125,
            "vllm_kl": None,
            "timing/make_experience": 1.0,
            "timing/ppo_train": 2.0,
            "timing/broadcast": 0.5,
            "rollout/reward_mean": step / 32,
            "rollout/reward_std": 0.5,
            "rollout/response_length_mean": 31.5,
            "rollout/truncated_rate": 0.125,
            "rollout/num_samples": 16.0,
            "timing/generation": 1.5,
            "timing/step_total": 5.0,
        }
    evaluated = {
        step: {
            "eval_gsm8k_pass4": step / 4,
            "eval_gsm8k_pass1": step / 8,
            "eval_gsm8k_response_length_mean": 40.0,
            "eval_response_length_mean": 40.0,
            "eval_truncated_rate": 0.25,
            "eval_num_samples": 64.0,
        }
        for step in (2, 4)
    }
    return rows, evaluated


@pytest.fixture
def openrlhf(tmp_path: Path) -> Table:
    (tmp_path / f"{NAME}.log").write_text(openrlhf_console(*openrlhf_calls()), encoding="utf-8")
    return table(tmp_path / f"{NAME}.log", tmp_path / "console")


def openrlhf_stream() -> Calls:
    """Calls of its trackers' loggers in their order."""
    rows, evaluated = openrlhf_calls()
    return [(step, row) for at in rows for step, row in ((at, rows[at]), (at, evaluated.get(at, {}))) if row]


def prefix(row: Mapping[str, Any]) -> str:
    return "eval/" if "eval_num_samples" in row else "train/"


def test_openrlhf_gives_one_table_with_and_without_its_trackers_prefixes(
    tmp_path: Path, openrlhf: Table
) -> None:
    rows: dict[int, dict[str, Any]] = {}
    for step, row in openrlhf_stream():
        rows.setdefault(step, {"step": step}).update({f"{prefix(row)}{name}": row[name] for name in row})
    (tmp_path / f"{NAME}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    same(table(tmp_path / f"{NAME}.jsonl", tmp_path / "b"), openrlhf)
    assert openrlhf.run_key == ("grpo", "gsm8k", 3)
    assert openrlhf.rows[4]["cost/generated_tokens"] == 4 * 16 * 31.5
    assert openrlhf.rows[4]["eval/validation/sampled/pass@4"] == 1.0


@trackers
def test_openrlhf_gives_one_table_from_its_trackers(tmp_path: Path, openrlhf: Table) -> None:
    def write(run: Any) -> None:
        import wandb

        run.define_metric("train/global_step")
        run.define_metric("train/*", step_metric="train/global_step", step_sync=True)
        run.define_metric("eval/epoch")
        run.define_metric("eval/*", step_metric="eval/epoch", step_sync=True)
        samples = wandb.Table(columns=["global_step", "text", "reward"])
        for step, row in openrlhf_stream():
            samples = wandb.Table(columns=samples.columns, data=samples.data)
            samples.add_data(step, "text", 0.5)
            run.log({"train/generated_samples": samples})
            logged = {name: value for name, value in row.items() if value is not None} | {"global_step": step}
            run.log({f"{prefix(row)}{name}": value for name, value in logged.items()})

    offline(tmp_path, {}, write)
    same(table(tmp_path / "wandb", tmp_path / "b"), openrlhf)
    scalars(tmp_path / "tensorboard" / NAME, openrlhf_stream(), prefix)
    same(table(tmp_path / "tensorboard", tmp_path / "c"), openrlhf)


# TRL

HISTORY = [
    *(trl_row(step, step / 64, **{"rewards/exact/std": 0.5}) for step in (1, 2, 3, 4)),
    {"eval_loss": 0.5, "eval_reward": 0.75, "eval_rewards/exact/mean": 0.75, "eval_rewards/exact/std": 0.25}
    | {"eval_runtime": 2.5, "epoch": 0.4, "step": 4},
    {"train_runtime": 9.5, "train_loss": 0.01, "total_flos": 0.0, "epoch": 0.4, "step": 4},
]


@pytest.fixture
def trl_table(tmp_path: Path) -> Table:
    (tmp_path / "state" / NAME).mkdir(parents=True)
    (tmp_path / "state" / NAME / "trainer_state.json").write_text(trainer_state(HISTORY, 4, 4))
    return table(tmp_path / "state", tmp_path / "from-state", "--task", "sums")


@pytest.mark.parametrize("index", [False, True])
def test_trl_gives_one_table_from_its_state_and_a_csv_of_its_history(
    index: bool, tmp_path: Path, trl_table: Table
) -> None:
    (tmp_path / "curves").mkdir()
    pd.DataFrame(HISTORY).to_csv(tmp_path / "curves" / f"{NAME}.csv", index=index)
    same(table(tmp_path / "curves", tmp_path / "out", "--task", "sums"), trl_table)
    assert trl_table.run_key == ("grpo", "sums", 3)
    assert trl_table.rows[4]["other/eval_rewards/exact/std"] == 0.25


def test_trl_gives_one_table_from_an_export_of_its_tracker(tmp_path: Path, trl_table: Table) -> None:
    rows = []
    for number, row in enumerate(HISTORY):
        names = {n: f"eval/{n[5:]}" if n.startswith("eval_") else f"train/{n}" for n in row if n != "step"}
        rows.append({names[n]: row[n] for n in names} | {"train/global_step": row["step"], "_step": number})
        rows[-1] |= {"_runtime": 1.5 * number, "_timestamp": 1.7e9 + number}
    pd.DataFrame(rows).to_csv(tmp_path / f"{NAME}.csv", index=False)
    same(table(tmp_path / f"{NAME}.csv", tmp_path / "out", "--task", "sums"), trl_table)


@trackers
def test_event_files_of_a_run_that_was_resumed_are_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {step: {"train/reward": step / 64, "train/frac_reward_zero_std": 0.5} for step in range(1, 7)}
    resumed = tmp_path / NAME / "runs"
    for folder, second, steps in (("Nov24_06-00-00_a", 1, range(1, 5)), ("Dec01_06-00-00_b", 2, range(3, 7))):
        scalars(resumed / folder, [(step, rows[step]) for step in steps])
        (file,) = (resumed / folder).iterdir()
        file.rename(file.with_name(f"events.out.tfevents.{second}.host.1.0"))
    imported_table = table(tmp_path, tmp_path / "out")
    assert "2 files are parts of one resumed run" in capsys.readouterr().out
    assert imported_table.run_key == ("grpo", "imported", 3)
    assert [row["reward/mean"] for row in imported_table.rows.values()] == [step / 64 for step in range(1, 7)]


# Libraries of which logs/ has the own logs


def named_metrics(run: Table) -> dict[int, dict[str, float]]:
    """The rows without what has no name of ours."""
    return {
        step: {name: value for name, value in row.items() if not name.startswith("other/")}
        for step, row in run.rows.items()
    }


@trackers
def test_what_nemo_rl_adds_up_over_its_updates_is_divided_by_them(tmp_path: Path) -> None:
    events = Path(__file__).with_name("logs") / "nemo-rl-events"
    rows = named_metrics(table(events, tmp_path / "out", "--arm", "grpo"))
    assert list(rows) == [0, 1, 2, 3, 4]
    # of two updates: 32 valid samples, of which 16 are in each
    assert rows[2] == pytest.approx(
        {
            "reward/mean": 0.3125,
            "length/mean": 205.25,
            "length/truncated": 3 / 32,
            "policy/entropy": 0.4375,  # logged as 0.875
            "policy/kl_reference_k3": 2.0**-8,
            "trained/ratio_mean": 1.0,
            "trained/ratio_min": 0.5,
            "trained/ratio_max": 1.5,
            "gap/k3": 2.0**-10,
            "correction/weight_mean": 1.0,
            "grad_norm/policy": 0.625,
            "learning_rate/policy": 1e-6,
            "cost/generated_tokens": 32 * 212.5 + 32 * 205.25,
            "time/step": 20.5,
            "time/sample": 8.5,
            "time/forward": 2.5,
            "time/sync": 1.25,
            "time/evaluate": 6.25,
            "eval/validation/sampled/correct": 0.375,
            "eval/validation/sampled/length": 200.0,
        },
        rel=2**-23,
    )
    printed = named_metrics(table(events.with_name("nemo-rl"), tmp_path / "console", "--arm", "grpo"))
    for step, row in printed.items():
        # the console has four decimals
        assert row == pytest.approx({name: rows[step][name] for name in row}, abs=5.1e-5), step


@trackers
def test_slime_gives_one_table_from_its_console_and_its_trackers(tmp_path: Path) -> None:
    text = (Path(__file__).with_name("logs") / "slime" / "train.log").read_text()
    calls: list[tuple[int, dict[str, Any]]] = []
    for line in text.splitlines():
        step, values = console.slime(line, False)
        row = {name: console.as_number(value) for name, value in values.items()}
        calls.append((int(step), row))

    def write(run: Any) -> None:  # as slime/observability/wandb_utils.py
        axes = {"train/*": "train/step", "rollout/*": "rollout/step", "perf/*": "rollout/step"}
        for name in ("train/step", "rollout/step", "eval/step"):
            run.define_metric(name)
        for name, axis in (axes | {"eval/*": "eval/step"}).items():
            run.define_metric(name, step_metric=axis)
        for step, row in calls:
            axis = next((f"{kind}/step" for kind in ("train", "eval") if f"{kind}/" in next(iter(row))), "")
            run.log(row | {axis or "rollout/step": step})

    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "train.log").write_text(text)
    expected = table(tmp_path / NAME, tmp_path / "console")
    offline(tmp_path, {}, write)
    same(table(tmp_path / "wandb", tmp_path / "a"), expected)
    scalars(tmp_path / "tensorboard_log" / NAME, calls)
    same(table(tmp_path / "tensorboard_log", tmp_path / "b"), expected, 2**-23)


@trackers
def test_prime_rl_gives_one_table_from_its_file_and_a_tracker(tmp_path: Path) -> None:
    source = Path(__file__).with_name("logs") / "prime-rl"
    calls = [json.loads(line) for line in (source / "metrics.jsonl").read_text().splitlines()]

    def write(run: Any) -> None:  # as src/prime_rl/monitors/wandb/monitor.py
        run.define_metric("*", step_metric="step")
        for row in calls:
            run.log({name: value for name, value in row.items() if name != "time"})

    offline(tmp_path, {}, write)
    expected = table(source, tmp_path / "a", "--arm", "grpo", "--seed", "3")
    same(table(tmp_path / "wandb", tmp_path / "b"), expected)


@trackers
@pytest.mark.slow
def test_a_run_of_trl_gives_one_table_by_all_of_its_routes(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trl = pytest.importorskip("trl", reason="trl makes this run: pip install 'grpobench[trl]'")
    from datasets import Dataset

    def length(completions: list[str], **_: Any) -> list[float]:
        return [len(set(text)) / 8 for text in completions]

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    prompts = Dataset.from_dict({"prompt": ["ab", "cd", "ef", "ba"]})
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path / "runs-of-trl" / NAME),
        run_name=NAME,
        report_to=["wandb", "tensorboard"],
        use_cpu=True,
        bf16=False,
        max_steps=2,
        save_steps=2,
        eval_steps=1,
        eval_strategy="steps",
        logging_steps=1,
        num_generations=4,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        max_completion_length=6,
        beta=0.04,
    )
    trainer = trl.GRPOTrainer(
        model=policy, reward_funcs=length, args=arguments, train_dataset=prompts, eval_dataset=prompts
    )
    trainer.train()
    import wandb

    wandb.finish()
    wandb.teardown()
    trainer.state.save_to_json(str(tmp_path / "trainer_state.json"))  # with the row of the whole run
    state = tmp_path / "state" / NAME
    for folder in (state, tmp_path / "events" / NAME):
        folder.mkdir(parents=True)
    (tmp_path / "trainer_state.json").rename(state / "trainer_state.json")
    pd.DataFrame(trainer.state.log_history).to_csv(tmp_path / f"{NAME}.csv", index=False)
    expected = table(state, tmp_path / "a", "--task", "letters")
    assert expected.run_key == ("grpo", "letters", 3) and "other/eval_rewards/length/std" in expected.rows[2]
    same(table(tmp_path / f"{NAME}.csv", tmp_path / "b", "--task", "letters"), expected)
    same(table(tmp_path / "wandb", tmp_path / "c", "--task", "letters"), expected)
    events = tmp_path / "events"
    (tmp_path / "runs-of-trl" / NAME / "runs").rename(made := events / NAME / "runs")
    for number, source in enumerate((events, made.parent, made, next(made.iterdir()))):
        same(table(source, tmp_path / f"d{number}", "--task", "letters"), expected, 2**-23)
