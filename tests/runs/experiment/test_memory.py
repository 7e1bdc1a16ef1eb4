"""The memory plan on the command line: what is printed, what is refused before anything is loaded, and with
what settings a run fits."""

from __future__ import annotations

import dataclasses
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import rollouts
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from grpobench.benchmarks.memory_peaks import held_bytes
from grpobench.runs import cli
from grpobench.runs.experiment import memory
from grpobench.runs.experiment.engines import HERE, Where
from grpobench.runs.experiment.memory_input import (
    PlanInput,
    facts_of,
    input_of,
    optimizer_bytes,
    packed_sizes,
)
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.loading import load
from grpobench.runs.models.memory_plan import GRAPH_WORKSPACE, PhaseName, plan
from grpobench.runs.models.model_files import SHAPES
from grpobench.runs.models.model_shape import shape_of
from grpobench.runs.models.packing import Cost, micro_batches, pack
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.graphs import PER_READ_LOGIT, Graphs
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.sampler import Request
from grpobench.runs.settings.config import RunConfig, SamplerConfig, TrainConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools import machine, toml

RECIPE = """
name = "m"
tasks = [{ name = "arithmetic", settings = { train = 32, validation = 16, test = 16 } }]
[sampler]
max_completion_tokens = 64
[train]
prompts_per_step = 4
group_size = 4
[[arm]]
algorithm = "grpo"
"""
QWEN: dict[str, Any] = json.loads((SHAPES / "7b" / "config.json").read_text())
"""config.json of a model of the sizes of Qwen2.5-7B."""
HALF: dict[str, Any] = {**QWEN, "num_hidden_layers": 14}
"""4.35 billion weights, which in float32 take 65 GiB with gradients and moments."""


@pytest.fixture
def recipe_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "read_smallest_gpu_memory", lambda: None)
    (tmp_path / "m.toml").write_text(RECIPE)
    for name, config in (("seven", QWEN), ("four", HALF)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return tmp_path


def config_of(*sets: str) -> RunConfig:
    return read_recipe("m.toml", sets).runs()[0]


def command(*words: str) -> int:
    return cli.main(["run", "m.toml", "--no-trial", *words])


def test_a_7b_model_is_planned_and_refused_from_its_config_json_alone(
    recipe_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder has no weights and no tokenizer, so that nothing could be loaded."""
    assert command("--dry-run", "--gpu-memory", "80", "--set", "model.name=seven") == 2
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].startswith("memory of arm grpo on arithmetic, seven on a GPU")
    assert lines[1].split() == ["GiB", "sampling", "scoring", "training", "evaluating"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    # 7,615,616,512 weights of 4 bytes, and two moments of them
    assert rows["policy"] == ["28.37"] * 4 and rows["optimizer"] == ["56.74"] * 4
    assert rows["gradients"] == ["28.37"]
    assert rows["base"] == ["policy", "28.37"]  # on the device only while nothing has a gradient
    totals = dict(zip(lines[1].split()[1:], map(float, rows["total"]), strict=True))
    assert rows["largest:"][0].rstrip(",") == max(totals, key=lambda name: totals[name])
    assert totals["training"] == pytest.approx(16 * 7_615_616_512 / 2**30, abs=0.01)
    assert "note: no tokenizer: the longest prompt is taken for" in out
    assert "arm grpo on arithmetic does not fit: seven needs" in err and "76.0 GiB of the GPU" in err
    assert not (recipe_folder / "results").exists()


def test_a_model_that_fits_is_planned_from_its_config_json_before_its_tokenizer_is_missed(
    recipe_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--dry-run", "--gpu-memory", "1000", "--set", "model.name=seven") == 2
    out, err = capsys.readouterr()
    assert out.startswith("memory of arm grpo on arithmetic, seven on a GPU") and "; fits into the" in out
    assert "the tokenizer of model 'seven'" in err


@pytest.mark.parametrize("words", [["run", "m.toml", "--no-trial"], ["doctor", "--deep", "m.toml"]])
def test_a_run_that_cannot_fit_is_refused_before_anything_begins(
    words: list[str], recipe_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, "--gpu-memory", "80", "--set", "model.name=seven"]) == 2
    out, err = capsys.readouterr()
    assert "does not fit: seven needs" in err and not list(recipe_folder.rglob("*/run.toml"))
    if "doctor" in words:
        assert out.startswith("memory of arm grpo on arithmetic, seven on a GPU")


def test_json_has_the_bytes_of_every_phase(recipe_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--dry-run", "--json") == 0
    (plan_row,) = json.loads(capsys.readouterr().out)["memory"]
    assert (plan_row["verdict"], plan_row["limit"], plan_row["device"]) == ("no limit", None, "cpu")
    assert list(plan_row["bytes"]) == ["sampling", "scoring", "training", "evaluating"]
    for parts in plan_row["bytes"].values():
        assert parts["policy"] == 4 * shape_of("nano").parameters
        assert parts["total"] == sum(size for name, size in parts.items() if name != "total")
    assert plan_row["peak"] == max(parts["total"] for parts in plan_row["bytes"].values())


# Verdicts and remedies


def planned(gpu_gib: float, *sets: str) -> memory.Planned:
    (planned_run,) = memory.plans([config_of(*sets)], memory.device(gpu_gib, HERE))
    return planned_run


def test_without_a_reference_it_fits_and_the_refusal_says_so(recipe_folder: Path) -> None:
    """4.35 billion weights: 69.6 GB with gradients and moments, and 17.4 GB of a reference."""
    planned_run = planned(82, "model.name=four", "algorithm.beta=0.04")
    assert planned_run.verdict == "does not fit"
    with pytest.raises(memory.ConfigError, match=r"algorithm\.beta = 0\.0"):
        memory.demand([planned_run])
    assert planned(82, "model.name=four", "algorithm.beta=0").verdict != "does not fit"


def test_every_proposed_setting_exists_and_makes_the_run_fit(recipe_folder: Path) -> None:
    for gib in (60, 70, 82):
        settings = ("model.name=four", "algorithm.beta=0.04", "train.micro_batch_tokens=8192")
        planned_run = planned(gib, *settings)
        assert planned_run.verdict == "does not fit" and planned_run.limit is not None
        for remedy in planned_run.remedies:
            sets = [f"{key}={toml.value(value)}" for key, value in remedy.changes.items()]
            fits = planned(gib, *settings, *sets)
            assert fits.verdict == "fits", remedy.words
            assert fits.plan.peak == remedy.peak <= planned_run.limit


def test_large_micro_batches_are_no_reason_to_refuse_but_to_warn(recipe_folder: Path) -> None:
    """Memory that runs out halves them; the settings that avoid that are told."""
    settings = ("train.micro_batch_tokens=100000", "train.prompts_per_step=32", "sampler.max_batch_size=512")
    unlimited = planned(80, *settings)
    gib = unlimited.plan.peak / 2**30 / 3
    planned_run = planned(gib, *settings)
    assert planned_run.verdict == "fits in smaller portions"
    (remedy,) = planned_run.remedies
    assert "train.micro_batch_tokens" in remedy.changes
    assert planned(gib, *settings, *(f"{k}={v}" for k, v in remedy.changes.items())).verdict == "fits"
    assert "avoids that" in memory.warning(planned_run)
    memory.demand([planned_run])


def test_what_the_plan_cannot_read_stops_nothing(recipe_folder: Path) -> None:
    (recipe_folder / "four" / "config.json").write_text("{}")
    plans, why = memory.attempt([config_of("model.name=four")], memory.device(80, HERE))
    assert not plans and why.startswith("memory: no plan (ModelError: model 'four'")


# What a plan is made for


def test_a_share_of_a_gpu_is_a_share_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "read_smallest_gpu_memory", lambda: 80 * 2**30)
    monkeypatch.setattr(machine, "count_worker_slots", lambda gpus_per_run=None: 2)
    assert memory.device(None, HERE, workers=2) == memory.Device(True, 80 * 2**30)
    assert memory.device(None, HERE, workers=4).memory == 40 * 2**30  # two runs on each
    assert memory.device(None, Where(gpus_per_run=0.25)).memory == 20 * 2**30
    assert memory.device(24, HERE).memory == 24 * 2**30  # what the user says
    assert memory.device(None, Where(on="slurm")) == memory.Device(False, None)  # a GPU somewhere else
    assert memory.device(80, HERE).limit == (76 * 2**30)


def test_prompts_are_measured_by_the_tokenizer_or_assumed(recipe_folder: Path) -> None:
    config = config_of()
    longest = max(len(p.prompt) for split in config.task.splits for p in config.task.problems(split))
    assert facts_of(config, gpu=True).prompt_tokens == longest  # nano's tokens are characters
    assumed = facts_of(config_of("model.name=seven"), gpu=True)
    assert assumed.prompt_tokens == 1 + longest // 3 and "no tokenizer" in assumed.notes[0]


def test_the_state_of_an_optimizer_is_measured() -> None:
    """AdamW has two moments in float32; SGD none, and with momentum one; Adafactor a row and a column."""

    def bytes_of(name: str, **settings: Any) -> float:
        return optimizer_bytes(TrainConfig(optimizer=name, optimizer_settings=settings))

    assert bytes_of("adamw") == bytes_of("torch:AdamW") == 8
    assert bytes_of("torch:SGD") == 0 and bytes_of("torch:SGD", momentum=0.9) == 4
    assert bytes_of("torch:Adafactor") == pytest.approx(2 * 256 * 4 / 256**2)


ROLES: list[tuple[tuple[str, ...], Callable[[Any], Any]]] = [
    (("algorithm.beta=0.04",), lambda sizes: sizes.reference),
    (("model.adapter.rank=4",), lambda sizes: sizes.adapter == Adapter(rank=4)),
    (("sampler.lag=2",), lambda sizes: sizes.past == 2),
    (("model.dtype=bfloat16",), lambda sizes: (sizes.compute_bytes, sizes.cache_bytes) == (2, 4)),
    (("model.dtype=float16",), lambda sizes: sizes.training.keys and not sizes.dense_mask),
    (("evaluate.kl_base=false",), lambda sizes: not sizes.base_policy),
    (("evaluate.problems=0", "evaluate.test_problems=0"), lambda sizes: sizes.evaluating.rows == 0),
    (("sampler.kind=vllm-server", "sampler.url=http://a"), lambda sizes: sizes.sampling.rows == 0),
]


@pytest.mark.parametrize(("sets", "holds"), ROLES, ids=[sets[0] for sets, _ in ROLES])
def test_settings_reach_the_plan(
    sets: tuple[str, ...], holds: Callable[[Any], Any], recipe_folder: Path
) -> None:
    facts = PlanInput(shape_of("nano"), 16, True)
    assert not holds(input_of(config_of(), facts))
    assert holds(input_of(config_of(*sets), facts))


def test_what_a_teacher_reads_is_planned(recipe_folder: Path) -> None:
    """A template of 50 characters around prompts; a success of 64 tokens comes on top."""
    template = "x" * 50
    plain = facts_of(config_of(), True)
    assert plain.taught_tokens == 0 and input_of(config_of(), plain).taught is None
    hint = config_of("arms=opcd", f"arm.opcd.settings.template={template}{{prompt}}")
    facts = facts_of(hint, True)
    assert facts.taught_tokens > 50
    read = input_of(hint, facts)
    assert read.taught is not None and read.taught.tokens > read.training.tokens
    assert (read.divergence, read.reference, read.teacher) == (1.0, True, None)
    success = config_of("arms=sdpo", f"arm.sdpo.settings.template={template}{{prompt}}{{demonstration}}")
    assert facts_of(success, True).taught_tokens == facts.taught_tokens + 64
    less = dataclasses.replace(read, taught=None)
    assert plan(read).phase("training").total > plan(less).phase("training").total


@pytest.mark.parametrize(
    ("sets", "gpu", "sleeps"),
    [((), True, True), (("sampler.sleep=false",), True, False), ((), False, False)],
    ids=["gpu", "off", "cpu"],
)
def test_vllm_sleeps_on_a_gpu_unless_told_otherwise(
    sets: tuple[str, ...], gpu: bool, sleeps: bool, recipe_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SamplerConfig, "missing", lambda self: "")
    config = config_of("sampler.kind=vllm", "sampler.cache_gb=1", *sets)
    memory_input = input_of(config, PlanInput(shape_of("nano"), 16, gpu))
    assert (memory_input.engine_weight_bytes, memory_input.engine_cache) == (4, 2**30)
    assert memory_input.engine_sleeps == sleeps
    assert not input_of(config_of(), PlanInput(shape_of("nano"), 16, True)).engine_sleeps


def test_a_shorter_completion_takes_less_in_every_phase(recipe_folder: Path) -> None:
    facts = PlanInput(shape_of("nano"), 16, True)
    long, short = (plan(input_of(config_of(f"sampler.max_completion_tokens={n}"), facts)) for n in (64, 32))
    phases: tuple[PhaseName, ...] = ("sampling", "scoring", "training", "evaluating")
    assert all(short.phase(name).total < long.phase(name).total for name in phases)


@bounded(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 12), st.integers(1, 80), st.sampled_from((1, 2)))
def test_the_largest_micro_batch_is_that_of_the_packing(
    prompts: int, group: int, completion: int, budget: int, pair: int
) -> None:
    """Of prompts of 5 tokens: the packing of a batch with tokens splits it alike."""
    group *= pair
    sizes = packed_sizes(shape_of("nano"), prompts, group, 5, completion, budget, pair, True)
    batch = rollouts([[completion] * group] * prompts, prompts=(5,), limit=12)
    row_group = torch.arange(len(batch)) // pair
    parts = micro_batches(batch, row_group, budget)
    largest = max(parts, key=len)
    layout = pack(batch[largest], Cost(1.0, 0.0), parts=True)
    assert layout.parts is not None and (sizes.sequences, sizes.length) == tuple(layout.tokens.shape)
    # A completion of one token is not fed, and reads no prompt.
    assert sizes.keys == len(layout.parts.columns) + 5 * len(largest) * (completion == 1)
    assert (sizes.targets, sizes.several) == (len(largest) * completion, len(parts) > 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_graphs_keep_is_planned_for_a_gpu_alone(dtype: str, recipe_folder: Path) -> None:
    """The tensors that stay after a call with a batch of the plan's size; its steps run without a recording
    here."""
    config = config_of(f"model.dtype={dtype}", "evaluate.problems=0", "evaluate.test_problems=0")
    facts = PlanInput(shape_of("nano"), 50, True)
    memory_input = input_of(config, facts)
    assert input_of(config, dataclasses.replace(facts, gpu=False)).recorded is None
    names = ("decoding graphs", GRAPH_WORKSPACE)
    parts = {phase.name: [phase.parts[name] for name in names] for phase in plan(memory_input).phases}
    assert parts["sampling"] == parts["scoring"] == parts["training"]
    loaded = load("nano")
    models = RoleModels(loaded.model, dtype=dtype)
    sampler = HFSampler(models, (), loaded.pad, 64, loaded.context)
    sampler.graphs = Graphs(models)
    requests = [Request((5,) * 50, tuple(range(4 * number, 4 * number + 4))) for number in range(4)]
    gc.collect()
    before = held_bytes(False)
    sampler.sample(requests, 64, 1.0)
    gc.collect()
    (batch,) = sampler.graphs.batches.values()
    assert parts["training"][1] == PER_READ_LOGIT * batch.grid.rows * facts.shape.vocabulary
    # What is left out: 24 bytes for each token that is written, and a few tables.
    assert held_bytes(False) - before == pytest.approx(parts["training"][0], rel=0.05)


@pytest.mark.parametrize(("memory", "counts"), [(100, True), (80, False)])
def test_a_copy_in_bfloat16_counts_where_it_refreshes_that_of_the_graphs(
    recipe_folder: Path, memory: int, counts: bool
) -> None:
    """2.88 GiB of weights stay with the graphs if they are at most a 32nd of the memory."""
    facts = PlanInput(shape_of("random:1.5b"), 50, True, (), memory * 2**30)
    assert input_of(config_of("model.dtype=bfloat16"), facts).fused_copy == counts


def test_what_is_not_decoded_by_graphs_keeps_nothing_for_them(recipe_folder: Path) -> None:
    """A large model in float32 is decoded by its own forward pass, and vLLM in memory of its own."""
    facts = PlanInput(shape_of("seven"), 50, True)
    assert input_of(config_of("model.name=seven"), facts).recorded is None
    assert input_of(config_of("model.name=seven", "model.dtype=bfloat16"), facts).recorded is not None
    nano = dataclasses.replace(facts, shape=shape_of("nano"))
    assert input_of(config_of(), nano).recorded is not None
    assert input_of(config_of("sampler.kind=vllm-server", "sampler.url=http://a"), nano).recorded is None
