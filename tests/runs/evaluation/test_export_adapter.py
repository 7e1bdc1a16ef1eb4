"""An exported adapter is read by peft as the run's policy, and as whole weights by transformers alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.whole_runs import configure, run
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grpobench.runs import cli
from grpobench.runs.evaluation.export import export
from grpobench.runs.evaluation.question import EvalRequest, subjects
from grpobench.runs.evaluation.records import assess, newest, put, warm_up
from grpobench.runs.models import loading
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.settings.config import (
    CheckpointConfig,
    EvaluateConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.data.tables import DataError

TOKENS = torch.tensor([[5, 7, 11, 13, 17]])


def short(policy: str, warm: int) -> RunConfig:
    """Of arithmetic, a task that `eval` knows."""
    return configure(
        policy,
        task=Arithmetic(train=16, validation=4, test=4),
        model=ModelConfig(policy, adapter=Adapter(4, 8.0), warm_start=warm, warm_start_batch=2),
        train=TrainConfig(steps=2, prompts_per_step=2, group_size=4, learning_rate={"policy": 1e-1}),
        evaluate=EvaluateConfig(every=0, problems=0, test_problems=0),
        checkpoint=CheckpointConfig(every=1),
    )


@pytest.fixture(scope="module", params=[0, 2], ids=["as it is", "warm-started"])
def finished(request: Any, policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("m") / "a-arithmetic-s3"
    config = short(policy, request.param)
    # Rewards of an untrained policy are equal; random ones move the adapter.
    run(dataclasses.replace(config, reward=dataclasses.replace(config.reward, kind="random")), path)
    return path


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits  # type: ignore[no-any-return]


def of_run(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the run's policy before and after training."""
    (subject,) = subjects(str(path), None)
    loaded = loading.load(subject.model.name)
    warm_up(subject, loaded)
    before, newest_weights = logits(loaded.model), newest(path)
    assert newest_weights is not None
    put(loaded, newest_weights[1], subject.model.adapter)
    return before, logits(loaded.model)


def test_the_program_of_the_card_loads_the_policy_with_peft(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["export", str(finished), str(tmp_path / "out")]) == 0
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "README.md", "tokenizer.json"} <= names
    warmed = "warm_start = 2" in (finished / "run.toml").read_text()
    assert ("base" in names) == warmed and "model.safetensors" not in names
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith('---\nlibrary_name: "peft"\n')
    monkeypatch.chdir(tmp_path)  # the card names the folder from the one above it
    made: dict[str, Any] = {}
    exec(card.split("```python\n")[1].split("```")[0], made)
    before, after = of_run(finished)
    assert not torch.equal(before, after)
    assert type(made["model"]).__name__ == "PeftModelForCausalLM"
    assert torch.equal(logits(made["model"]), after)
    with made["model"].disable_adapter():
        assert torch.equal(logits(made["model"]), before)


def test_merged_weights_need_transformers_alone(finished: Path, tmp_path: Path) -> None:
    assert cli.main(["export", str(finished), str(tmp_path / "out"), "--merged"]) == 0
    before, after = of_run(finished)
    merged_logits = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval())
    assert not (tmp_path / "out" / "adapter_config.json").exists()
    torch.testing.assert_close(
        merged_logits, after, rtol=0, atol=1e-5
    )  # float32; only the order of sums differs
    assert (merged_logits - after).abs().max() < 0.01 * (after - before).abs().max()


def test_merged_weights_in_half_precision_are_the_rounded_sum(finished: Path, tmp_path: Path) -> None:
    export(finished, tmp_path / "full", merged=True)
    export(finished, tmp_path / "half", "bfloat16", merged=True)
    full, half = (load_file(tmp_path / name / "model.safetensors") for name in ("full", "half"))
    assert all(torch.equal(full[name].bfloat16(), half[name]) for name in full)


def test_two_exports_are_equal_to_the_byte(finished: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        export(finished, tmp_path / name / "out")
    for path in (tmp_path / "one" / "out").iterdir():
        if path.is_file():
            assert (tmp_path / "two" / "out" / path.name).read_bytes() == path.read_bytes()


def test_a_base_that_is_another_by_now_is_refused(finished: Path, tmp_path: Path) -> None:
    content = json.loads((finished / "provenance.json").read_text())
    content["fingerprints"]["model weights"] = "0" * 64
    (subject,) = subjects(str(finished), None)
    copied = tmp_path / "run"
    copied.mkdir()
    (copied / "provenance.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"trained an adapter.*are others now \(model weights: 000"):
        warm_up(dataclasses.replace(subject, evals_parent=copied), loading.load(subject.model.name))


def test_eval_asks_the_base_and_the_adapted_policy(finished: Path) -> None:
    wish = EvalRequest("arithmetic", problems=2, samples=1)
    (record,) = assess(str(finished), wish)
    assert record.numbers.keys() == {"base", "final"}
    again = next(iter(assess(str(finished), dataclasses.replace(wish, again=True))))
    assert again.numbers == record.numbers
    answers = {
        row["policy"]: [r["completion"] for r in record.rows if r["policy"] == row["policy"]]
        for row in record.rows
    }
    assert answers["base"] != answers["final"]
