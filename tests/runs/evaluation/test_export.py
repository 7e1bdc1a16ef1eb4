"""An exported policy is the run's, to the last bit, for those who have only transformers."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from helpers import killed
from helpers.edits import flip
from helpers.whole_runs import configure, run, run_until_stopped
from safetensors.torch import load_file

from grpobench.runs import cli
from grpobench.runs.evaluation.export import export
from grpobench.runs.evaluation.records import newest, put
from grpobench.runs.models import loading
from grpobench.runs.runfolder.checkpoints import write_tensors
from grpobench.runs.runfolder.folder import RunFolder
from grpobench.runs.settings.config import CheckpointConfig, EvaluateConfig, RunConfig, TrainConfig
from grpobench.tasks.data.tables import DataError

SCRIPT = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from transformers import AutoModelForCausalLM, AutoTokenizer
from safetensors.torch import save_file
folder, ids, out = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
with torch.no_grad():
    logits = model(torch.tensor(json.loads(ids))).logits
save_file({"logits": logits}, out)
assert not any(name.split(".")[0] == "grpobench" for name in sys.modules)
print(json.dumps({"ids": tokenizer.encode("12+3="), "end": model.generation_config.eos_token_id}))
"""


def short(policy: str) -> RunConfig:
    train = TrainConfig(steps=2, prompts_per_step=2, group_size=4, learning_rate={"policy": 1e-2})
    quiet = EvaluateConfig(every=0, problems=0, test_problems=0)
    return configure(policy, train=train, evaluate=quiet, checkpoint=CheckpointConfig(every=1))


@pytest.fixture(scope="module")
def finished(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("m") / "a-letters-s3"
    run(short(policy), path)
    return path


def test_a_fresh_process_with_transformers_alone_gives_the_same_logits(
    policy: str, finished: Path, tmp_path: Path
) -> None:
    assert cli.main(["export", str(finished), str(tmp_path / "hf")]) == 0
    ours = loading.load(policy)
    before = ours.model(torch.tensor([[5, 7, 11, 13, 17]])).logits.detach()
    newest_weights = newest(finished)
    assert newest_weights is not None
    put(ours, newest_weights[1])
    ids = [[5, 7, 11, 13, 17]]
    with torch.no_grad():
        logits = ours.model(torch.tensor(ids)).logits
    assert not torch.equal(before, logits)  # two steps have moved it
    script = tmp_path / "load.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "hf"), json.dumps(ids), str(tmp_path / "logits")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert torch.equal(load_file(tmp_path / "logits")["logits"], logits)
    reported = json.loads(done.stdout.splitlines()[-1])
    assert reported == {"ids": ours.tokenizer.encode("12+3="), "end": list(ours.end)}


def test_the_folder_is_complete_and_its_card_says_what_it_is(finished: Path, tmp_path: Path) -> None:
    exported = export(finished, tmp_path / "hf")
    assert (exported.step, exported.caution) == (2, "")
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "README.md"} <= names
    assert {"tokenizer.json", "tokenizer_config.json"} <= names
    assert all(
        tensor.dtype == torch.float32 for tensor in load_file(tmp_path / "hf/model.safetensors").values()
    )
    card = (tmp_path / "hf" / "README.md").read_text()
    commit = json.loads((finished / "provenance.json").read_text())["attempts"][0]["commit"]
    for text in (
        "# grpo on letters, seed 3",
        "m/a-letters-s3",
        "| steps | 2 of 2 |",
        commit,
        "from_pretrained",
    ):
        assert text in card
    assert "Not a finished run" not in card
    assert card.startswith('---\nlibrary_name: "transformers"\n')


def test_the_card_has_accuracies_and_a_program_that_answers(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = short(policy)
    measured = EvaluateConfig(every=0, problems=4, test_problems=4, samples=0)
    run(dataclasses.replace(config, evaluate=measured), tmp_path / "m" / "a-letters-s3")
    described = {"command": "grpobench compare mine:Half --with grpo --set data=/home/me/data"}
    (tmp_path / "m" / "experiment.json").write_text(json.dumps(described))
    export(tmp_path / "m" / "a-letters-s3", tmp_path / "hf")
    card = (tmp_path / "hf" / "README.md").read_text()
    rows = [json.loads(line) for line in (tmp_path / "m/a-letters-s3/metrics.jsonl").read_text().splitlines()]
    for split in ("test", "validation"):
        before, after = (100 * rows[at][f"eval/{split}/greedy/correct"] for at in (0, -1))
        assert f"| accuracy, {split} split, greedy | {after:.1f} % (before training {before:.1f} %) |" in card
    assert "| made by | `grpobench compare mine:Half --with grpo --set data=data` |" in card
    front = yaml.safe_load(card.split("---\n")[1])
    metrics = front["model-index"][0]["results"][0]["metrics"]
    assert [metric["name"] for metric in metrics] == ["test, greedy", "validation, greedy"]
    assert metrics[0]["value"] == pytest.approx(rows[-1]["eval/test/greedy/correct"], abs=1e-4)
    program = card.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)  # the card names the folder from the one above it
    capsys.readouterr()
    exec(program, {})
    assert capsys.readouterr().out.endswith("\n")


def test_weights_have_the_permissions_that_the_umask_leaves(finished: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        export(finished, tmp_path / "hf")
        write_tensors(tmp_path / "one.safetensors", {"a": torch.ones(2)})
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "hf").iterdir()}
    assert set(modes.values()) == {0o640} and "model.safetensors" in modes
    assert (tmp_path / "one.safetensors").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "hf").stat().st_mode & 0o777 == 0o750


def test_half_precision_is_what_the_weights_round_to(finished: Path, tmp_path: Path) -> None:
    export(finished, tmp_path / "full")
    export(finished, tmp_path / "half", "bfloat16")
    full, half = (load_file(tmp_path / name / "model.safetensors") for name in ("full", "half"))
    assert full.keys() == half.keys()
    assert all(torch.equal(full[name].bfloat16(), half[name]) for name in full)


def test_a_run_of_whole_weights_has_nothing_to_merge(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"trained no adapter.*leave --merged away"):
        export(finished, tmp_path / "out", merged=True)


def test_a_folder_that_is_there_is_left_alone(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "mine").write_text("kept")
    assert cli.main(["export", str(finished), str(tmp_path / "hf")]) == 2
    assert [path.name for path in (tmp_path / "hf").iterdir()] == ["mine"]
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_killed_export_leaves_no_folder_and_next_one_removes_remains(finished: Path, tmp_path: Path) -> None:
    """By SIGKILL, when the weights are written and the tokenizer is not."""
    there = tmp_path / "out"
    there.mkdir()
    assert killed.at("export.1.kill", tmp_path / "faults", killed.export, finished, there / "hf") == -9
    assert [path.name[:4] for path in there.iterdir()] == [".hf."]
    export(finished, there / "hf")
    assert [path.name for path in there.iterdir()] == ["hf"]
    export(finished, tmp_path / "whole" / "hf")
    for path in (tmp_path / "whole" / "hf").iterdir():
        assert (there / "hf" / path.name).read_bytes() == path.read_bytes()


def test_a_checkpoint_says_that_the_run_did_not_finish(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = short(policy)
    run_until_stopped(config, tmp_path / "run", 1)
    with RunFolder.open(tmp_path / "run", config) as folder:
        folder.step = 1
        folder.finish("diverged", "gradients were not finite")
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "hf")]) == 0
    caution = "the checkpoint of step 1 of a run that is diverged (gradients were not finite)"
    assert f"warning: these are {caution}" in capsys.readouterr().err
    assert f"**Not a finished run.** These are {caution}." in (tmp_path / "hf" / "README.md").read_text()


def test_what_is_no_run_or_has_no_weights_is_named(finished: Path, policy: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a run folder.*it contains runs, such as .*a-letters-s3"):
        export(finished.parent, tmp_path / "hf")
    with RunFolder.open(tmp_path / "empty", short(policy)):
        pass
    with pytest.raises(DataError, match="has neither final weights"):
        export(tmp_path / "empty", tmp_path / "hf")


def test_a_tokenizer_that_has_changed_since_is_refused(finished: Path, policy: str, tmp_path: Path) -> None:
    path = Path(policy) / "tokenizer_config.json"
    before = path.read_text()
    try:
        path.write_text(before + "\n")
        with pytest.raises(DataError, match=r"tokenizer.*put the model's files back"):
            export(finished, tmp_path / "hf")
    finally:
        path.write_text(before)


def test_weights_the_run_did_not_write_are_not_exported_or_evaluated(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m" / finished.name
    shutil.copytree(finished, path)
    weights = path / "final" / "policy.safetensors"
    flip(weights)
    for words in (["export", str(path), str(tmp_path / "hf")], ["eval", str(path), "--task", "arithmetic"]):
        assert cli.main(words) == 2
        error_text = capsys.readouterr().err
        assert (
            f"{weights}: was changed since it was written (its sha256 differs); restore it, or" in error_text
        )
    weights.unlink()
    assert cli.main(["eval", str(path), "--task", "arithmetic"]) == 2
    assert "policy.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "hf").exists() and not (path / "evals").exists()
