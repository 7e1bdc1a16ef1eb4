"""What a run is made from cannot change behind a checkpoint unseen, and an allowed change stays visible."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.scorers import save_scorer
from helpers.toys import Letters
from helpers.whole_runs import after, configure, run

from grpobench.algorithms.dpo import DPO
from grpobench.analysis.checks.alarms import find_alarms
from grpobench.analysis.runfolder.files import problem_digests
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.runs import all_settings
from grpobench.runs.runfolder import fingerprints
from grpobench.runs.runfolder.folder import FolderError, RunFolder
from grpobench.runs.settings.config import ModelConfig, RewardConfig, RunConfig, SamplerConfig, TrainConfig
from grpobench.runs.train.execute import execute
from grpobench.runs.train.progress import Preempted
from grpobench.tasks.task import Problem, Split


@pytest.fixture
def policy_copy(policy: str, tmp_path: Path) -> Path:
    """A copy of the tiny policy that a test may damage."""
    return Path(shutil.copytree(policy, tmp_path / "policy"))


def begin(config: RunConfig, tmp_path: Path) -> Path:
    """Train one step and stop with a checkpoint."""
    path = tmp_path / "m" / config.folder
    with pytest.raises(Preempted):
        run(config, path, after(path, 1))
    return path


def resume(config: RunConfig, path: Path) -> None:
    with RunFolder.open(path, config, allow_change=True) as folder:
        execute(config, folder, lambda progress: None, lambda: False)


def overwrite(folder: Path) -> None:
    """Other weights in a file of the same size."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    size = file.stat().st_size
    tensors = load_file(file)
    save_file({name: tensor + 0.01 for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    assert file.stat().st_size == size


def longer(folder: Path) -> None:
    text = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 128}
    (folder / "config.json").write_text(json.dumps(text))


def template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")


def test_model_altered_between_attempts_is_refused_and_shown_where_allowed(
    policy_copy: Path, tmp_path: Path
) -> None:
    config = configure(str(policy_copy))
    path = begin(config, tmp_path)
    for harm in (overwrite, longer, template):
        harm(policy_copy)
    names = ("model weights", "model configuration", "tokenizer")
    with pytest.raises(FolderError) as refused:
        run(config, path)
    assert all(re.search(rf"\n  {name}: \w{{12}} -> \w{{12}}\n", str(refused.value)) for name in names)
    before = json.loads((path / "provenance.json").read_text())["fingerprints"]
    resume(config, path)
    after = json.loads((path / "provenance.json").read_text())["fingerprints"]
    lines_by_title = find_alarms(load(tmp_path / "m"))
    changes = [f"{name} {before[name][:12]} until step 1, then {after[name][:12]}" for name in names]
    assert lines_by_title["Changed while the run ran"] == [f"{config.folder}: {'; '.join(changes)}"]


def test_rate_changed_midway_stands_in_the_settings_with_its_step(policy: str, tmp_path: Path) -> None:
    config = configure(policy)
    path = begin(config, tmp_path)
    faster = dataclasses.replace(
        config, train=dataclasses.replace(config.train, learning_rate={"policy": 1e-2})
    )
    with pytest.raises(FolderError, match=r"train\.learning_rate\.policy: 0\.001 -> 0\.01"):
        run(faster, path)
    resume(faster, path)
    setting = all_settings(load(tmp_path / "m"))[0]
    assert (setting.key, setting.values) == (
        "train.learning_rate.policy",
        {"a": "0.001 until step 1, then 0.01"},
    )


EDITS: dict[Split, dict[str, Any]] = {
    "train": {"prompt": "9:"},
    "validation": {"truth": 99},
    "test": {"traits": {"category": "b"}},
}


def test_problem_edited_between_attempts_is_refused_by_its_split(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(policy)
    path = begin(config, tmp_path)
    all_problems = Letters.problems
    for split, change in EDITS.items():

        def edited(
            task: Letters, requested: Split, split: Split = split, change: dict[str, Any] = change
        ) -> list[Problem]:
            first, *others = all_problems(task, requested)
            return [dataclasses.replace(first, **change) if requested == split else first, *others]

        monkeypatch.setattr(Letters, "problems", edited)
        with pytest.raises(FolderError, match=rf"code:\n  {split} problems: \w{{12}} -> \w{{12}}\n"):
            run(config, path)


def test_altered_cached_warm_start_is_remade_or_refused_without_sums(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPOBENCH_CACHE", str(tmp_path / "cache"))
    config = configure(policy, model=ModelConfig(name=policy, warm_start=2, warm_start_batch=2))
    path = begin(config, tmp_path)
    (warm,) = (tmp_path / "cache" / "warm").glob("*/model.safetensors")
    made = warm.read_bytes()
    overwrite(warm.parent)
    (warm.parent / "sums.json").rename(tmp_path / "sums.json")  # as older versions left it
    with pytest.raises(FolderError, match=r"\n  warm start: \w{12} -> \w{12}\n"):
        run(config, path)
    (tmp_path / "sums.json").rename(warm.parent / "sums.json")
    with pytest.warns(
        UserWarning, match=f"{warm}: was changed since it was written; the warm start is repeated"
    ):
        run(config, path)
    assert warm.read_bytes() == made


def test_reward_model_altered_between_attempts_is_refused(policy: str, tmp_path: Path) -> None:
    scorer = Path(save_scorer(tmp_path / "scorer"))
    config = configure(policy, reward=RewardConfig(kind="model", model=str(scorer)))
    path = begin(config, tmp_path)
    assert (
        fingerprints.Today().of(config)["reward model"]
        == json.loads((path / "provenance.json").read_text())["fingerprints"]["reward model"]
    )
    overwrite(scorer)
    with pytest.raises(FolderError, match=r"\n  reward model: \w{12} -> \w{12}\n"):
        run(config, path)


def test_completion_edited_in_a_preference_file_is_refused(policy: str, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"{i}:", "chosen": "AA", "rejected": "zz"} for i in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = configure(
        policy,
        DPO(),
        sampler=SamplerConfig(kind="preferences", path=str(file)),
        train=TrainConfig(steps=2, prompts_per_step=2, group_size=2, learning_rate={"policy": 1e-3}),
    )
    path = begin(config, tmp_path)
    assert len(problem_digests(path)["train"]) == 4
    file.write_text(file.read_text().replace("zz", "zy", 1))
    with pytest.raises(FolderError, match=r"\n  preference file: \w{12} -> \w{12}\n"):
        run(config, path)


def test_training_problem_in_test_split_is_warned_of_recorded_and_shown(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(policy)
    all_problems = Letters.problems

    def leaky(task: Letters, split: Split) -> list[Problem]:
        problems = list(all_problems(task, split))
        return (
            [*problems[:-1], dataclasses.replace(all_problems(task, "train")[0], id="copy")]
            if split == "test"
            else problems
        )

    path = tmp_path / "m" / config.folder
    run(config, path)
    (tmp_path / "m" / "experiment.json").write_text(json.dumps({"name": "m", "runs": [config.folder]}))
    assert not find_alarms(load(tmp_path / "m"))
    assert {split: len(digests) for split, digests in problem_digests(path).items()} == {
        "train": 12,
        "validation": 3,
        "test": 2,
    }
    shutil.rmtree(path)
    monkeypatch.setattr(Letters, "problems", leaky)
    with pytest.warns(UserWarning, match=r"trained on are evaluated with: \{'test': 1\}"):
        run(config, path)
    attempt = json.loads((path / "provenance.json").read_text())["attempts"][-1]
    assert attempt["trained_and_evaluated"] == {"test": 1}
    line = f"1 of 2 test problems are training problems, such as copy: {config.folder}"
    assert find_alarms(load(tmp_path / "m")) == {"Evaluated on problems that were trained on": [line]}


def test_pins_are_told_without_torch() -> None:
    code = """
import sys
from grpobench.runs.tools import deferred
deferred.defer("torch")
from grpobench.runs.runfolder import fingerprints
from grpobench.runs.models import loading
from grpobench.runs.models import model_files as finding
from grpobench.runs.settings.recipe import read_recipe
found = fingerprints.Today().of(read_recipe("quickstart").runs()[0])
print(*found, sep=", ")
assert finding.fingerprint("nobody/has-this-model") == {}
sys.exit("torch._C" in sys.modules)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == (
        "model weights, model configuration, tokenizer, train problems, validation problems, test problems"
    )
