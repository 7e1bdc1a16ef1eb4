"""`sampler.kind = "auto"`: one sampler for an experiment's runs of a model, chosen before the first one."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from helpers import stand_ins
from helpers.experiments import launch, recipe

from grpobench.runs import cli
from grpobench.runs.experiment import sampler_choice
from grpobench.runs.experiment.sampler_choice import VLLM_FROM, choose, decide
from grpobench.runs.settings import stored
from grpobench.runs.settings.config import SamplerConfig
from grpobench.runs.settings.recipe import Recipe, read_recipe
from grpobench.runs.settings.rules import with_sampler

LARGE = '[model]\nname = "random:1.5b"\n'
LACK = "vllm is not installed"
AUTO = '[sampler]\nkind = "auto"\n'


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, warm: None) -> None:
    """A machine with a GPU and vLLM, where stand-ins for algorithms and tasks are registered."""
    stand_ins.register(monkeypatch)
    monkeypatch.setattr(SamplerConfig, "missing", lambda self: "")
    monkeypatch.setattr(sampler_choice, "has_gpu", lambda *_: True)


def kinds(decided: Recipe) -> list[str]:
    return [config.sampler.kind for config in decided.runs()]


def written_kinds(out: Path) -> dict[str, str]:
    """By run, what its run.toml says."""
    paths = sorted(out.glob("m/*/run.toml"))
    return {path.parent.name: tomllib.loads(path.read_text())["sampler"]["kind"] for path in paths}


@pytest.mark.parametrize(
    ("parameters", "gpu", "lack", "refusals", "kind", "why"),
    [
        (VLLM_FROM, True, "", [], "vllm", f"{VLLM_FROM:,} weights are {VLLM_FROM:,} or more"),
        (VLLM_FROM - 1, True, "", [], "hf", "fewer than"),
        (VLLM_FROM, False, "", [], "hf", "no GPU"),
        (VLLM_FROM, True, "vllm is not installed: x", [], "hf", "not installed"),
        (VLLM_FROM, True, "", ["arm a mixes"], "hf", "arm a mixes"),
        (0, True, "", [], "hf", "unknown"),
    ],
)
def test_a_large_model_takes_vllm_where_all_of_it_is_there(
    parameters: int, gpu: bool, lack: str, refusals: list[str], kind: str, why: str
) -> None:
    choice = choose(parameters, gpu, lack, refusals)
    assert choice.kind == kind and why in choice.why


@pytest.mark.usefixtures("engine")
def test_the_kind_is_written_and_stays_whatever_is_there_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(SamplerConfig, "missing", lambda self: LACK if self.kind == "vllm" else "")
        outcome, printed = launch(recipe(tmp_path, "fine", head=AUTO + LARGE), tmp_path)
    assert outcome.code == 0 and written_kinds(tmp_path) == {"fine-sums-s0": "hf"}
    assert "sampler of random:1.5b: hf (vllm is not installed)" in printed
    described = json.loads((tmp_path / "m" / "experiment.json").read_text())
    assert described["samplers"] == {"random:1.5b": {"kind": "hf", "why": LACK}}
    # vLLM appears. The run keeps its sampler and the reason, and so does another seed of its arm.
    again = decide(recipe(tmp_path, "fine", head="seeds = [0, 1]\n" + AUTO + LARGE), tmp_path / "m", gpu=True)
    assert kinds(again) == ["hf", "hf"] and again.samplers == described["samplers"]
    # A folder of its own is decided anew.
    shutil.rmtree(tmp_path / "m")
    (config,) = decide(recipe(tmp_path, "fine", head=AUTO + LARGE), tmp_path / "m", gpu=True).runs()
    assert config.sampler.kind == "vllm"


@pytest.mark.usefixtures("engine")
def test_runs_of_one_model_sample_alike_and_named_kinds_stay(tmp_path: Path) -> None:
    head = AUTO + LARGE
    alike = recipe(tmp_path, "fine", "fine2", head=head)
    assert kinds(decide(alike, tmp_path, gpu=True)) == ["vllm", "vllm"]
    # One that vLLM cannot sample decides for all.
    mixing = recipe(tmp_path, "fine", head=head)
    path = tmp_path / "m.toml"
    path.write_text(path.read_text() + '[[arm]]\nalgorithm = "mixing"\n')
    decided = decide(read_recipe(str(path)), tmp_path, gpu=True)
    assert kinds(decided) == ["hf", "hf"]
    assert "arm mixing on sums mixes embeddings" in decided.samplers["random:1.5b"]["why"]
    # A small model, and a kind that is named, have their own.
    path.write_text(mixing.text + '[[arm]]\nalgorithm = "plain"\nname = "small"\nmodel.name = "nano"\n')
    assert kinds(decide(read_recipe(str(path)), tmp_path, gpu=True)) == ["vllm", "hf"]
    fixed = recipe(tmp_path, "fine", head=LARGE)
    assert decide(fixed, tmp_path, gpu=True) is fixed


def test_what_only_the_policy_itself_can_do_is_no_clash_with_auto() -> None:
    sets = ["arms=grpo", "tasks=arithmetic", "sampler.kind=auto"]
    for more in (["sampler.top_k=5"], ["sampler.router_replay=R3"], ["train.devices=2"]):
        assert read_recipe("quickstart", [*sets, *more]).runs()


def test_a_chosen_kind_is_no_change_of_settings() -> None:
    config = read_recipe("quickstart", ["arms=grpo", "tasks=arithmetic", "sampler.kind=auto"]).runs()[0]
    text = stored.dump(config)
    for kind, changes in (("hf", 0), ("vllm", 0), ("vllm-server", 1)):
        assert len(stored.differences(stored.dump(with_sampler(config, kind)), text)) == changes


def test_a_dry_run_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["quickstart", "--set", "sampler.kind=auto", "--set", "arms=grpo", "--dry-run", "--no-trial"]
    assert cli.main(["run", *words]) == 0
    assert "sampler of nano: hf (there is no GPU)" in capsys.readouterr().out
    assert cli.main(["run", *words, "--json", "--gpu-memory", "80"]) == 0
    samplers = json.loads(capsys.readouterr().out)["samplers"]
    assert samplers["nano"]["kind"] == "hf" and "vllm is not installed" in samplers["nano"]["why"]
