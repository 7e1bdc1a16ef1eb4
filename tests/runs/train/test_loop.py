"""Whole runs, from a configuration to a run folder, with a tiny random policy over characters."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.core import core
from helpers.logs import is_metric
from helpers.toys import Letters, resting_run, trainer_for
from helpers.whole_runs import (
    QUIET,
    configure,
    is_unmoved,
    rows,
    run,
    run_until_stopped,
    same,
    training,
    transcript,
    weights,
)

from grpobench.algorithms import ALGORITHMS
from grpobench.algorithms.algorithm import Advantage, Algorithm, Loss, Signal
from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.ppo import PPO
from grpobench.algorithms.rft import RFT
from grpobench.algorithms.sdft import SDFT
from grpobench.runs.models.optimizer import Optimizer
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.runfolder.logs import status
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.settings.config import (
    CheckpointConfig,
    ModelConfig,
    RewardConfig,
    SamplerConfig,
    TrainConfig,
)
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.train import run_loop, trainer
from grpobench.runs.train.update import minibatches
from grpobench.tasks.data.tables import DataError

# What a run leaves behind


def group_of(algorithm: Algorithm[Any]) -> int:
    return 4 if algorithm.minimum_group <= 4 else 2 * algorithm.minimum_group


@pytest.fixture(scope="module")
def finished_run(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of an algorithm's run, which is made once for all tests that read it."""

    @cache
    def made(name: str) -> Path:
        algorithm = ALGORITHMS[name]()
        train = TrainConfig(
            steps=3,
            prompts_per_step=4,
            group_size=group_of(algorithm),
            num_minibatches=2,
            learning_rate={"policy": 1e-3},
        )
        path = tmp_path_factory.mktemp("whole") / name
        run(configure(policy, algorithm, train=train), path)
        return path

    return made


@pytest.mark.parametrize("name", core(zip(ALGORITHMS, ALGORITHMS, strict=True)))
def test_rows_follow_the_catalog_and_evaluations_the_schedule(
    name: str, finished_run: Callable[[str], Path]
) -> None:
    algorithm, path = ALGORITHMS[name](), finished_run(name)
    group, run_rows = group_of(algorithm), rows(path)
    assert [row["step"] for row in run_rows] == [0, 1, 2, 3]
    undeclared = {key for row in run_rows for key in row if not is_metric(key)}
    assert not undeclared
    first = {f"eval/{s}/{m}/correct" for s in ("validation", "test") for m in ("sampled", "greedy")}
    evaluated = [
        {key for key in row if key.startswith("eval/") and key.endswith("/correct")} for row in run_rows
    ]
    halfway = {key for key in first if "/validation/" in key}
    assert evaluated == [first, set(), halfway, first]
    assert "eval/test/greedy/shouted" in run_rows[0] and "reward/mean" not in run_rows[0]
    for row in run_rows[1:]:
        assert row["grad/nonfinite"] == 0
        moves = [row[f"grad_norm/{role}"] > 0 for role in algorithm.updated_roles(row["step"])]
        assert all(moves) or algorithm.locates_answers, "Letters have no marker, and so no answers to locate"
        assert row["reward/mean"] == pytest.approx(row["score/correct"])
        assert row["groups/solved_all"] + row["groups/solved_none"] + row["groups/solved_some"] == 1
        phases = ("sample", "verify", "forward", "backward", "optimize", "sync", "other")
        assert sum(row[f"time/{phase}"] for phase in phases) == pytest.approx(row["time/step"])
    sampled = 4 * group * run_rows[1]["length/mean"]
    if algorithm.greedy_baseline:
        assert sampled < run_rows[1]["cost/generated_tokens"] <= sampled + 4 * Letters.max_completion_tokens
    elif algorithm.base_rollouts:  # of the initial policy, before the first step
        assert run_rows[1]["cost/generated_tokens"] > sampled
    else:
        assert run_rows[1]["cost/generated_tokens"] == pytest.approx(sampled)
    assert run_rows[3]["cost/generated_tokens"] > run_rows[2]["cost/generated_tokens"]
    # 3 validation and 2 test problems, 2 samples and 1 greedy answer; the test split only at the ends
    assert len(rows(path, "eval.jsonl")) == 3 * 3 * 3 + 2 * 2 * 3
    assert status(path)["state"] == "finished"
    assert not (path / "checkpoints").exists()
    assert all(t.isfinite().all() for t in weights(path / "final" / "policy.safetensors").values())


def test_first_rollouts_are_the_same_for_every_algorithm(
    policy: str, finished_run: Callable[[str], Path]
) -> None:
    """Those that are not of the core make one step here, and a whole run above in `make test-long`."""

    def first_step(algorithm: Algorithm[Any], seed: int = 3) -> str:
        trainer = trainer_for(dataclasses.replace(configure(policy, algorithm), seed=seed))
        row = trainer.step(1)
        assert row["grad/nonfinite"] == 0 and not {key for key in row if not is_metric(key)}
        # A curriculum that draws again may reject the first groups, which the transcript then lacks.
        redraws = trainer.curriculum.attempts > 1
        return json.dumps([*trainer.transcript][: 0 if redraws else None])

    transcripts = {
        first_step(algorithm)
        for algorithm in (cls() for cls in ALGORITHMS.values())
        # One that mixes embeddings while decoding feeds other inputs behind the first token, and noise in the
        # weights writes other tokens.
        if algorithm.mixer() is None and algorithm.weight_noise is None
    } - {"[]"}
    # Evaluations before do not change them, and another seed does.
    assert transcripts == {json.dumps(transcript(finished_run("grpo"), 1))}
    assert transcripts != {first_step(GRPO(), seed=4)}


def test_a_sweep_of_temperatures_is_evaluated_at_one(policy: str, tmp_path: Path) -> None:
    """The same policy has the same evaluation in every arm, whatever temperature its rollouts have."""
    arms = "".join(
        f'[[arm]]\nalgorithm = "grpo"\nname = "t{round(10 * t)}"\n[arm.sampler]\ntemperature = {t}\n'
        for t in (0.3, 1, 3)
    )
    text = f"""
        name = "sweep"
        seeds = [3]
        tasks = ["arithmetic"]
        model.name = "nano"
        train = {{ steps = 1, prompts_per_step = 2, group_size = 2 }}
        evaluate = {{ every = 0, problems = 2, samples = 2, test_problems = 2, temperature = 0.7 }}
        {arms}"""
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    evaluations, sampled, entropies = [], [], []
    for config in read_recipe(str(file)).configs:
        config = dataclasses.replace(config, task=Letters(), model=ModelConfig(policy))
        first = run(config, tmp_path / config.arm)[1]
        evaluations.append([row for row in rows(tmp_path / config.arm, "eval.jsonl") if row["step"] == 0])
        sampled.append(
            [c["text"] for group in transcript(tmp_path / config.arm, 1) for c in group["completions"]]
        )
        entropies.append(first["policy/entropy"])
    assert evaluations[0] == evaluations[1] == evaluations[2] and len(evaluations[0]) == (2 + 2) * 3
    assert sampled[0] != sampled[1] != sampled[2]
    assert entropies == sorted(entropies), "rollouts have their arm's temperature"
    hot = dataclasses.replace(config.evaluate, temperature=3.0)
    run(dataclasses.replace(config, evaluate=hot), tmp_path / "hot")
    assert [row for row in rows(tmp_path / "hot", "eval.jsonl") if row["step"] == 0] != evaluations[0]


def test_stopped_and_resumed_run_equals_an_uninterrupted_one(policy: str, tmp_path: Path) -> None:
    """Of an algorithm that has an average in its checkpoints; test_stopping.py has others."""
    config = configure(policy, SDFT(teacher_rate=0.3), checkpoint=CheckpointConfig(every=2))
    run(config, tmp_path / "whole")
    run_until_stopped(config, tmp_path / "parts", 2)
    assert [row["step"] for row in rows(tmp_path / "parts")] == [0, 1, 2]
    run(config, tmp_path / "parts")
    assert same(tmp_path / "parts", tmp_path / "whole")
    assert rows(tmp_path / "parts", "eval.jsonl") == rows(tmp_path / "whole", "eval.jsonl")
    assert not is_unmoved(policy, tmp_path / "parts")


# On policy


def test_first_update_is_exactly_on_policy(policy: str, tmp_path: Path) -> None:
    config = configure(policy)
    config = training(config, num_minibatches=1)
    for row in run(config, tmp_path)[1:]:
        assert row["policy/clip_low"] == row["policy/clip_high"] == 0
        assert row["gap/mean"] < 1e-4 and row["gap/max"] < 1e-3  # float32; logits of a few tens
        assert abs(row["gap/k3"]) < 1e-6 and row["gap/ess"] == pytest.approx(1, abs=1e-6)
        assert row["trained/ratio_max"] == pytest.approx(1, abs=1e-3)


def test_nothing_moves_in_bfloat16_at_learning_rate_0(tmp_path: Path) -> None:
    """Ratios are exactly 1 in every minibatch of every pass: log π_old is read as the update reads it. A
    mixture of experts rounds differently with every other layout."""
    config = resting_run(PPO(), epochs=2)
    for row in run(config, tmp_path)[1:]:
        assert row["grad_norm/policy"] > 0
        assert row["trained/ratio_min"] == row["trained/ratio_max"] == 1
        assert row["policy/clip_low"] == row["policy/clip_high"] == row["trained/kl_old"] == 0


@pytest.mark.parametrize(
    ("dtype", "skew", "stops"),
    [("float32", 0.01, True), ("bfloat16", 0.1, False), ("bfloat16", 0.5, True)],
)
def test_gap_between_sampler_and_trainer_stops_the_run(
    dtype: Any, skew: float, stops: bool, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = trainer.pack_groups

    def skewed(*args: Any, **settings: Any) -> Any:
        batch = plain(*args, **settings)
        return dataclasses.replace(batch, sampler_logp=batch.sampler_logp - skew)

    monkeypatch.setattr(trainer, "pack_groups", skewed)
    config = configure(policy, model=ModelConfig(policy, dtype=dtype), evaluate=QUIET)
    if stops:
        with pytest.raises(RuntimeError, match=f"disagree by {skew} nats per token"):
            run(config, tmp_path)
    else:
        assert all(abs(row["gap/mean"] - skew) < 0.02 for row in run(config, tmp_path)[1:])


def scale_weights(trainer: Any, factor: float) -> None:
    with torch.no_grad():
        for weight in trainer.models.networks["policy"].parameters():
            weight.mul_(factor)


def test_a_gap_that_updates_opened_ends_a_run_as_diverged(policy: str) -> None:
    """Logits outgrow bfloat16. A resumed run ends as one without an interruption."""
    config = configure(policy, model=ModelConfig(policy, dtype="bfloat16"))
    first, resumed = (trainer_for(config) for _ in range(2))
    assert first.step(1)["gap/mean"] < 0.1 and not first.diverged
    resumed.restore({role: dict(part) for role, part in first.models.state().items()}, first.state())
    for made in (first, resumed):
        scale_weights(made, 20)
        assert made.step(2)["gap/mean"] > 0.2
        assert re.search("disagree by .* nats per token at step 2 in bfloat16", made.diverged)


@pytest.mark.parametrize("part", sorted(trainer.RESTORED))
def test_a_checkpoint_of_an_older_version_is_refused(part: str, policy: str) -> None:
    made = trainer_for(configure(policy))
    state = made.state()
    del state[part]
    with pytest.raises(ModelError, match="of an older version; delete the run's folder to start over"):
        made.restore({}, state)


@pytest.mark.parametrize("cause", ["first", "first with a lag", "float32", "int8", "other sampler"])
def test_any_other_gap_is_a_fault(cause: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first check that passed, without rounding, or with weights that may be others."""
    dtype: Any = "float32" if cause == "float32" else "bfloat16"
    weights: Any = "int8" if cause == "int8" else "trainer"
    sampling = SamplerConfig(weights=weights, lag=2 if "lag" in cause else 0)
    config = configure(policy, model=ModelConfig(policy, dtype=dtype), sampler=sampling)
    trainer = trainer_for(config)
    if cause == "other sampler":
        sampler = trainer.sampler
        sampler.reads_trainer_weights = type("Other", (HFSampler,), {})(
            trainer.models, sampler.end.tolist(), sampler.pad, 8, sampler.context
        ).reads_trainer_weights
    if not cause.startswith("first"):
        trainer.step(1)
    monkeypatch.setattr(trainer.sampler, "max_logprob_gap", -1.0)
    with pytest.raises(RuntimeError, match="the sampler and the trainer disagree"):
        trainer.step(2)


def test_source_of_old_logp_makes_no_difference_to_a_float32_run(policy: str, tmp_path: Path) -> None:
    plain, other = (
        run(configure(policy, sampler=SamplerConfig(old_logp=kind)), tmp_path / kind)
        for kind in ("sampler", "trainer")
    )
    for plain_row, two in zip(plain[1:], other[1:], strict=True):
        assert plain_row["reward/mean"] == two["reward/mean"]
        assert plain_row["grad_norm/policy"] == pytest.approx(two["grad_norm/policy"], rel=1e-3)


# Rewards


def test_constant_reward_leaves_the_policy_where_it_was(policy: str, tmp_path: Path) -> None:
    run_rows = run(configure(policy, reward=RewardConfig(kind="constant")), tmp_path)
    assert all(row["reward/mean"] == 1 and row["groups/zero_signal"] == 1 for row in run_rows[1:])
    assert all(row["grad_norm/policy"] == 0 for row in run_rows[1:])
    assert is_unmoved(policy, tmp_path)


def test_samples_that_were_not_graded_are_masked(policy: str, tmp_path: Path) -> None:
    batches = []

    class Watching(GRPO):
        def compute_signal(self, batch: Any, models: Any) -> Any:
            batches.append(batch)
            return super().compute_signal(batch, models)

    run_rows = run(configure(policy, Watching(), task=Letters(faulty=True)), tmp_path)
    assert all(0 < row["outcome/infra_error"] < 1 for row in run_rows[1:])
    for batch, row in zip(batches, run_rows[1:], strict=True):
        assert len(batch) == round(16 * (1 - row["outcome/infra_error"]))
    first = [c for group in transcript(tmp_path, 1) for c in group["completions"]]
    assert {c["outcome"] for c in first} == {"graded", "infra_error"}
    graded_rewards = [c["reward"] for c in first if c["outcome"] == "graded"]
    assert batches[0].reward.tolist() == graded_rewards
    assert run_rows[1]["reward/mean"] == pytest.approx(sum(graded_rewards) / len(graded_rewards))


def test_step_without_any_graded_sample_makes_no_update(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grpobench.tasks.task import Verdict

    monkeypatch.setattr(Letters, "grade", lambda self, text: Verdict({}, None, "infra_error"))
    config = configure(policy, evaluate=QUIET)
    run_rows = run(config, tmp_path)
    assert all(row["outcome/infra_error"] == 1 and "grad_norm/policy" not in row for row in run_rows[1:])
    assert status(tmp_path)["state"] == "finished"


# Sources


def test_replay_answers_once_with_the_base_policy(policy: str, tmp_path: Path) -> None:
    config = configure(policy, DPO(), sampler=SamplerConfig(kind="replay", problems=6))
    run_rows = run(config, tmp_path)
    tokens = [row["cost/generated_tokens"] for row in run_rows[1:]]
    assert tokens[0] == tokens[1] == tokens[2] > 0
    assert not any(key.startswith(("gap/", "trained/ratio")) for row in run_rows for key in row)
    assert run_rows[1]["preference/pairs"] > 0 and run_rows[1]["grad_norm/policy"] > 0
    shown = {group["problem"]: group for step in (1, 2) for group in transcript(tmp_path, step)}
    again = {group["problem"]: group for group in transcript(tmp_path, 2)}
    assert len(shown) <= 6 and all(shown[name] == again[name] for name in again)
    first = {group["problem"]: group for group in transcript(tmp_path, 1)}
    both = first.keys() & again.keys()
    assert both and all(first[name] == again[name] for name in both), "4 + 4 draws from 6 problems"


def test_preference_file_is_learnt(policy: str, tmp_path: Path) -> None:
    pairs = [{"prompt": f"{i}:", "chosen": "AB", "rejected": "yz" * (i % 3)} for i in range(6)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs) + "\n")
    config = configure(
        policy,
        DPO(),
        sampler=SamplerConfig(kind="preferences", path=str(file)),
        train=TrainConfig(steps=8, prompts_per_step=6, learning_rate={"policy": 1e-2}),
    )
    run_rows = run(config, tmp_path / "run")
    assert run_rows[1]["preference/pairs"] == 6
    assert run_rows[1]["preference/margin"] == pytest.approx(0, abs=1e-5)  # the policy is the reference
    assert run_rows[8]["preference/margin"] > 0.5 and run_rows[8]["preference/accuracy"] == 1
    assert run_rows[8]["cost/generated_tokens"] == 0


def test_bad_preference_row_names_file_and_line(policy: str, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    for text, message in (
        ('{"prompt": "a", "chosen": "b"}', "rejected"),
        ("{", "not JSON"),
        ('{"prompt": "a", "chosen": "b", "rejected": "c\\ud800"}', "'rejected' holds"),
        ('{"prompt": "a", "chosen": "b", "rejected": "c", "margin": NaN}', "'margin' is NaN"),
        ('{"prompt": "a", "chosen": "\xe9"}', "not UTF-8 .byte 0xe9 at 28.; save the file as UTF-8"),
    ):
        content = '{"prompt": "a", "chosen": "b", "rejected": "c"}\n' + text + "\n"
        file.write_bytes(content.encode("latin-1"))
        config = configure(policy, DPO(), sampler=SamplerConfig(kind="preferences", path=str(file)))
        with pytest.raises(DataError, match=rf"pairs\.jsonl:2.*{message}|pairs\.jsonl:2: {message}"):
            run(config, tmp_path / message.replace(" ", ""))


# Numbers that are not finite


@dataclasses.dataclass(frozen=True)
class Broken(GRPO):
    """GRPO whose loss is NaN at some steps, and infinite with a finite gradient at others."""

    bad: tuple[int, ...] = ()
    endless: tuple[int, ...] = ()

    def loss(self, batch: Any, signal: Any, now: Any) -> Loss:
        loss = super().loss(batch, signal, now)
        more = math.nan if batch.step in self.bad else math.inf if batch.step in self.endless else 0.0
        return dataclasses.replace(loss, terms=loss.terms + more)


def test_update_with_nan_is_left_out_and_its_rollouts_are_kept(policy: str, tmp_path: Path) -> None:
    config = configure(policy, Broken(bad=(2, 3), endless=(5, 6)), evaluate=QUIET)
    config = training(config, steps=7)
    run_rows = run(config, tmp_path)
    assert [row["grad/nonfinite"] for row in run_rows[1:]] == [0, 2, 2, 0, 2, 2, 0]
    assert "grad_norm/policy" not in run_rows[2] and run_rows[4]["grad_norm/policy"] > 0
    assert status(tmp_path)["state"] == "finished", "four in all, but not in a row"
    for step in (2, 3, 5, 6):
        assert len(transcript(tmp_path, step)) == 4
    assert all(t.isfinite().all() for t in weights(tmp_path / "final" / "policy.safetensors").values())


def test_skipped_update_changes_neither_weights_nor_moments(policy: str, tmp_path: Path) -> None:
    config = configure(policy, Broken(bad=(3,)), checkpoint=CheckpointConfig(every=1, keep=9))
    config = training(config, steps=4)
    run_until_stopped(config, tmp_path, 3)
    before, behind = (weights(tmp_path / "checkpoints" / f"step-{k}" / "policy.safetensors") for k in (2, 3))
    assert before.keys() == behind.keys() and any(name.startswith("optimizer:exp_avg:") for name in before)
    assert all(torch.equal(before[name], behind[name]) for name in before)


def test_four_bad_steps_in_a_row_diverge_with_finite_weights_on_disk(policy: str, tmp_path: Path) -> None:
    config = configure(policy, Broken(bad=tuple(range(3, 20))), evaluate=QUIET)
    config = training(config, steps=12)
    run_until_stopped(config, tmp_path, 4)
    run_rows = run(config, tmp_path)
    assert status(tmp_path)["state"] == "diverged", "bad steps are counted over a resume"
    assert "4 steps in a row, the last at step 6" in status(tmp_path)["why"]
    assert run_rows[-1]["step"] == 6
    saved = [*tmp_path.glob("checkpoints/*/*.safetensors"), *tmp_path.glob("final/*.safetensors")]
    assert saved
    assert all(t.isfinite().all() for path in saved for t in weights(path).values())


@dataclasses.dataclass(frozen=True)
class Undefined(GRPO):
    """GRPO whose advantages are NaN from step 2 on."""

    def compute_signal(self, batch: Any, models: Any) -> Advantage:
        made = super().compute_signal(batch, models)
        return dataclasses.replace(made, advantage=made.advantage * math.nan) if batch.step > 1 else made


def test_a_divergence_by_what_an_algorithm_returned_names_the_method(policy: str, tmp_path: Path) -> None:
    config = configure(policy, Undefined(), evaluate=QUIET)
    config = training(config, steps=8)
    line = Undefined.compute_signal.__code__.co_firstlineno
    where = (
        rf"test_loop\.py:{line} Undefined\.compute_signal returned advantage with nan in (\d+) of \1 values"
    )
    with pytest.warns(UserWarning, match=f"an update of step 2 is left out: {where}") as caught:
        run(config, tmp_path)
    assert sum("is left out" in str(warning.message) for warning in caught) == 1  # and not at each later step
    assert status(tmp_path)["state"] == "diverged"
    assert re.search(rf"4 steps in a row, the last at step 5: {where}", status(tmp_path)["why"])


def test_reward_that_overflows_is_left_out_and_its_rollouts_are_kept(policy: str, tmp_path: Path) -> None:
    """A score that is above 0 times 1e39 has no float32. A placebo of NaN is not needed: graders mask it."""

    @dataclasses.dataclass(frozen=True)
    class Vast(RFT):
        def compute_signal(self, batch: Any, models: Any) -> Any:
            return Signal(
                torch.arange(len(batch), device=batch.length.device)
            )  # trains on every row, whatever its reward

    config = configure(policy, Vast(), reward=RewardConfig(weights={"correct": 1e39}))
    run_rows = run(dataclasses.replace(config, evaluate=QUIET), tmp_path)
    assert [row["grad/nonfinite"] for row in run_rows[1:]] == [2, 2, 2]
    assert len(transcript(tmp_path, 2)) == 4 and status(tmp_path)["state"] == "finished"
    assert is_unmoved(policy, tmp_path)


def spoil(monkeypatch: pytest.MonkeyPatch, step: int, role: str = "policy") -> None:
    """Have the first update of a step write an infinite weight, from a finite loss and gradient."""
    made = {"updates": 0}
    plain = Optimizer.update

    def update(self: Optimizer, scale: float) -> None:
        plain(self, scale)
        if ("value.weight" in self.parameters) == (role == "critic"):
            made["updates"] += 1
            if made["updates"] == 2 * (step - 1) + 1:
                next(iter(self.parameters.values())).data.view(-1)[-1] = math.inf

    monkeypatch.setattr(Optimizer, "update", update)


@pytest.mark.parametrize(("step", "role"), [(3, "policy"), (2, "critic")])
def test_weight_blow_up_diverges_in_its_step_and_none_of_it_is_kept(
    step: int, role: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the last step, behind which no further one could fail."""
    spoil(monkeypatch, step, role)
    config = configure(policy, PPO() if role == "critic" else GRPO())
    run_rows = run(config, tmp_path)
    assert status(tmp_path)["state"] == "diverged"
    assert status(tmp_path)["why"] == f"weights of the {role} are not finite after an update of step {step}"
    assert run_rows[-1]["step"] == step and not any(key.startswith("eval/") for key in run_rows[-1])
    assert len(transcript(tmp_path, step)) == 4
    saved = [*tmp_path.glob("checkpoints/*/*.safetensors")]
    assert {path.parent.name for path in saved} <= {f"step-{k}" for k in range(1, step)} and saved
    assert all(t.isfinite().all() for path in saved for t in weights(path).values())
    assert not [*tmp_path.glob("final/*")]


def test_weights_that_were_spoilt_behind_the_optimizer_are_not_kept_either(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = run_loop.tell_events

    def spoil(spoilt: Any, folder: Any) -> None:
        plain(spoilt, folder)
        next(spoilt.models.language.parameters()).data.fill_(math.nan)

    config = configure(policy)
    run_until_stopped(config, tmp_path, 3)
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "policy.safetensors").write_bytes(b"of an earlier attempt")
    monkeypatch.setattr(run_loop, "tell_events", spoil)  # after the weights of the checkpoint were checked
    run(config, tmp_path)
    assert status(tmp_path)["state"] == "diverged"
    assert status(tmp_path)["why"] == "weights of the policy are not finite at the end"
    assert not [*tmp_path.glob("final/*")] and [*tmp_path.glob("checkpoints/step-3/policy.safetensors")]


# Minibatches


def test_minibatches_hold_whole_groups_and_every_used_row_once() -> None:
    from helpers.toys import rollouts

    batch = rollouts([[1, 2, 3], [4, 5], [6], [7, 8]])
    unit = torch.tensor([0, 1, -1, 2, 2, -1, 3, 4])
    orders = set()
    for seed in range(5):
        parts = minibatches(batch, unit, 2, seed)
        assert sorted(torch.cat(parts).tolist()) == [0, 1, 3, 4, 6, 7]
        groups = [set(batch.group[rows].tolist()) for rows in parts]
        assert len(parts) == 2 and not groups[0] & groups[1]
        orders.add(str([rows.tolist() for rows in parts]))
    assert len(orders) > 1
    assert len(minibatches(batch, unit, 9, 0)) == 3
    assert minibatches(batch, unit * 0 - 1, 2, 0) == []
