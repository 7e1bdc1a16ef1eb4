"""N-GRPO: which tokens are blended, that training sees what the sampler fed, and where none is blended."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from helpers.toys import (
    ARCHITECTURES,
    arithmetic_run,
    backward,
    distance,
    execute,
    models_for,
    tiny,
    trainer_for,
)

from grpobench.algorithms.algorithm import Batch, Mixer, Mixture
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.ngrpo import NGRPO, neighborhood
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups
from grpobench.runs.sample.sampler import GREEDY, Mixing, Request
from grpobench.runs.settings.config import EvaluateConfig, SamplerConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.rules import incompatible
from grpobench.tasks.task import Problem, Verdict

EXACT = 1e-5
"""Nats: the same float32 logits of some tens, by a cached and by a whole forward pass."""
PROMPTS = ((5, 9, 30, 7, 12), (8, 3), (22, 22, 4, 17, 31, 6, 2), (39,))
ANSWER = 11
"""The token that begins an answer in these tests."""


def mixer(algorithm: NGRPO, table: torch.Tensor) -> Mixer:
    built = algorithm.mixer(table)
    assert built is not None
    return built


def sampled(
    algorithm: NGRPO, models: RoleModels, seeds: Sequence[int] = (0, 1, 2), end: Sequence[int] = (1,)
) -> list[list[Rollout]]:
    """Completions of 15 tokens at most, in which `ANSWER` ends the mixing."""
    source = HFSampler(models, end, 0, 64, 128)
    requests = [Request(p, tuple(100 * i + s if s >= 0 else s for s in seeds)) for i, p in enumerate(PROMPTS)]
    table = models.language.get_input_embeddings().weight
    mixing = Mixing(mixer(algorithm, table), lambda tokens: tokens[-1] == ANSWER)
    return source.sample(requests, 15, models.temperature, mixing)


def packed(groups: Sequence[Sequence[Rollout]]) -> Batch:
    packed_groups = []
    for rollouts in groups:
        rewards = [float(index % 2) for index in range(len(rollouts))]
        verdicts = [Verdict({"correct": reward}, None) for reward in rewards]
        packed_groups.append(Group(Problem("p", "", None), rollouts, verdicts, rewards))
    return pack_groups(packed_groups, 15, 1, 0)


# What is blended


TABLE = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 3.0], [-1.0, 0.0], [5.0, 6.0], [0.0, 0.0]])
"""By angle: 0 at 0°, 1 at 3°, 4 at 50°, 2 at 90°, 3 at 180°; 5 has no direction."""


def test_neighbors_are_nearest_by_angle_whatever_their_length() -> None:
    norm = TABLE.norm(dim=-1).clamp(min=1e-30)
    neighbors = neighborhood(TABLE, norm, torch.tensor([0, 4, 2, 3]), 3)
    assert neighbors[:3].tolist() == [[0, 1, 4], [4, 2, 1], [2, 4, 1]]
    assert neighbors[3, 0] == 3 and 0 not in neighbors[3, 1:], "what points the other way is farthest"
    assert neighborhood(TABLE, norm, torch.tensor([0]), 99).shape == (1, 6)


def test_weights_are_the_softmax_of_the_logits_over_the_neighbors() -> None:
    logits = torch.tensor([[math.log(4), math.log(2), 50.0, 50.0, math.log(2), 50.0]])
    mixture = mixer(NGRPO(rho=1.0), TABLE)(torch.tensor([0]), logits, torch.tensor([0.5]))
    assert mixture.token.tolist() == [[0, 1, 4]]
    torch.testing.assert_close(mixture.weight, torch.tensor([[0.5, 0.25, 0.25]]))


def test_a_number_below_rho_decides_who_is_blended() -> None:
    logits, uniform = torch.zeros(4, 6), torch.tensor([0.0, 0.0999, 0.1, 0.9])
    mixture = mixer(NGRPO(rho=0.1, k=2), TABLE)(torch.tensor([0, 1, 2, 4]), logits, uniform)
    assert (mixture.weight.sum(-1) > 0).tolist() == [True, True, False, False]
    assert mixture.token.tolist() == [[0, 1], [1, 0], [0, 0], [0, 0]]
    none = mixer(NGRPO(rho=0.1, k=2), TABLE)(torch.tensor([0]), logits[:1], torch.tensor([0.5]))
    assert none.weight.tolist() == [[0.0, 0.0]]


def test_the_published_code_blends_around_the_likeliest_token() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0, 0.0]])
    algorithm = NGRPO(rho=1.0, k=2, anchor="likeliest")
    assert mixer(algorithm, TABLE)(torch.tensor([3]), logits, torch.zeros(1)).token.tolist() == [[4, 2]]


def test_neighbors_are_those_of_the_embeddings_when_the_mixer_is_made() -> None:
    table = torch.nn.Parameter(TABLE.clone())
    algorithm, ask = NGRPO(rho=1.0, k=2), (torch.tensor([0]), torch.zeros(1, 6), torch.zeros(1))
    assert mixer(algorithm, table)(*ask).token.tolist() == [[0, 1]]
    with torch.no_grad():
        table[2] = torch.tensor([7.0, 0.0])
    assert mixer(algorithm, table)(*ask).token.tolist() == [[0, 2]]


# The sampler and the trainer


@pytest.mark.parametrize(
    ("architecture", "algorithm"),
    [
        *((architecture, NGRPO(rho=0.3)) for architecture in ARCHITECTURES),
        ("llama", NGRPO(rho=1.0, k=5, anchor="likeliest")),
    ],
    ids=str,
)
def test_replayed_probabilities_are_the_samplers(architecture: str, algorithm: NGRPO) -> None:
    models = RoleModels(tiny(architecture), temperature=0.7)
    batch = packed(sampled(algorithm, models))
    row = algorithm.observe(batch, algorithm.compute_signal(batch, models))
    assert 0.1 < row["policy/mixed"] < 0.95 and 0.05 < row["policy/anchor_weight"] < 1
    for share, budget in ((True, 10**9), (False, 10**9), (True, 30)):
        models.share, models.budget = share, budget
        replayed = models.forward("policy", batch).logp
        torch.testing.assert_close(replayed, batch.sampler_logp, rtol=0, atol=EXACT)
    plain = models.forward("policy", dataclasses.replace(batch, mixture=None)).logp
    assert (plain - replayed).abs().max() > 0.1, "the blends matter"


def test_training_blends_the_embeddings_of_now() -> None:
    """After an update the stored set and weights are fed with the new embeddings: as by hand, one row."""
    models = RoleModels(tiny("llama"))
    batch = packed(sampled(NGRPO(rho=0.5), models))
    table = models.language.get_input_embeddings().weight
    with torch.no_grad():
        table.add_(0.1 * torch.randn(table.shape, generator=torch.Generator().manual_seed(1)))
    logp = models.forward("policy", batch).logp
    assert (logp - batch.sampler_logp).abs().max() > 0.05
    assert batch.mixture is not None
    for row in range(len(batch)):
        start, length = int(batch.prompt_length[row]), int(batch.length[row])
        completion = batch.completion[row, :length]
        inputs = table[torch.cat([batch.prompt[row, :start], completion])].detach().clone()
        for t in range(length - 1):
            weight = batch.mixture.weight[row, t]
            if weight.sum() > 0:
                inputs[start + t] = (weight[:, None] * table[batch.mixture.token[row, t]]).sum(0)
        with torch.no_grad():
            logits = models.language(inputs_embeds=inputs[None]).logits[0, start - 1 : start - 1 + length]
        expected = logits.log_softmax(-1).gather(-1, completion[:, None])[:, 0]
        torch.testing.assert_close(logp[row, :length], expected, rtol=0, atol=EXACT)


def test_gradient_reaches_the_neighbors_and_does_not_depend_on_the_split() -> None:
    algorithm = NGRPO(rho=0.5, k=4)
    models = models_for(algorithm, "llama")
    batch = packed(sampled(algorithm, models))
    gradient, _ = backward(algorithm, models, batch)
    models.budget, models.share = 25, False
    # float32 has 1e-7; two layers and sums of some thousand terms in another order
    assert distance(backward(algorithm, models, batch)[0], gradient) < 2e-5
    assert batch.mixture is not None
    fed = batch.mixture.token[batch.mixture.weight.sum(-1) > 0].unique()
    written = torch.cat([batch.prompt.flatten(), batch.completion.flatten()]).unique()
    only = fed[~torch.isin(fed, written)]  # tokens of blends that stand nowhere in a text
    table = next(g for name, g in gradient.items() if name.endswith("embed_tokens.weight"))
    assert len(only) and table[only].abs().sum(-1).min() > 0
    plain, _ = backward(algorithm, models, dataclasses.replace(batch, mixture=None))
    assert not plain["policy/model.embed_tokens.weight"][only].any()


# Where nothing is blended


def fed(rollout: Rollout) -> list[bool]:
    """Which of its tokens were fed blended."""
    assert rollout.mixture is not None
    return (rollout.mixture[1].sum(-1) > 0).tolist()


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_mixing_stops_with_the_token_that_begins_the_answer(architecture: str) -> None:
    models, answered = RoleModels(tiny(architecture)), 0
    for group in sampled(NGRPO(rho=1.0), models, seeds=range(40)):
        for rollout in group:
            is_mixed, tokens = fed(rollout), list(rollout.completion)
            begins = tokens.index(ANSWER) if ANSWER in tokens else len(tokens)
            answered += 0 < begins < len(tokens) - 2
            stop = min(begins, len(tokens) - 1)  # behind the last token nothing is fed
            assert is_mixed[:stop] == [True] * stop and not any(is_mixed[stop:])
    assert answered > 5, "completions with an answer in the middle"


def test_greedy_completions_are_never_blended() -> None:
    models = RoleModels(tiny("llama"))
    for _, greedy in sampled(NGRPO(rho=1.0), models, seeds=(0, GREEDY)):
        assert not any(fed(greedy))
    source = HFSampler(models, (1,), 0, 64, 128)
    alone = source.sample([Request(p, (GREEDY,)) for p in PROMPTS], 15, 1.0)
    both = sampled(NGRPO(rho=1.0), models, seeds=(0, GREEDY))
    assert [a.completion for (a,) in alone] == [greedy.completion for _, greedy in both]


def test_first_tokens_are_those_of_plain_sampling() -> None:
    """The numbers that choose tokens are not those that choose blends: until a blend is fed all is equal."""
    models = RoleModels(tiny("llama"))
    source = HFSampler(models, (1,), 0, 64, 128)
    plain = source.sample([Request(p, (100 * i,)) for i, p in enumerate(PROMPTS)], 15, 1.0)
    for (ours,), (theirs,) in zip(sampled(NGRPO(rho=0.3), models, seeds=(0,)), plain, strict=True):
        is_mixed = fed(ours)
        first = is_mixed.index(True) + 1 if True in is_mixed else len(is_mixed)
        assert ours.completion[:first] == theirs.completion[:first]


def test_a_run_mixes_before_the_answer_only(tmp_path: Path) -> None:
    """Arithmetic marks its answer with #: every token before is blended with rho = 1, none behind."""
    trainer = trainer_for(arithmetic_run(NGRPO(rho=1.0)))
    marked = 0
    for group in trainer.gather(1)[0]:
        for rollout in group.rollouts:
            is_mixed, text = fed(rollout), trainer.loaded.decode(rollout.completion)
            begins = text.find("#") if "#" in text else len(is_mixed)
            marked += "#" in text
            stop = min(begins, len(is_mixed) - 1)
            assert is_mixed[:stop] == [True] * stop and not any(is_mixed[stop:]), text
    assert marked > 5


def test_evaluation_is_not_mixed(tmp_path: Path) -> None:
    evaluate = EvaluateConfig(every=0, problems=4, samples=2, test_problems=0)
    evaluations = [
        execute(arithmetic_run(algorithm, steps=0, evaluate=evaluate), tmp_path / algorithm.name)
        for algorithm in (NGRPO(rho=1.0), GRPO())
    ]
    assert evaluations[0] == evaluations[1]
    files = [(tmp_path / name / "eval.jsonl").read_text() for name in ("ngrpo", "grpo")]
    assert files[0] == files[1] and files[0]


def test_without_mixing_it_is_grpo_bit_for_bit(tmp_path: Path) -> None:
    ngrpo_rows, plain = (
        execute(arithmetic_run(algorithm, steps=1), tmp_path / algorithm.name)
        for algorithm in (NGRPO(rho=0.0), GRPO())
    )
    extra = {"policy/mixed", "policy/anchor_weight"}
    assert [{key: row[key] for key in row if key not in extra} for row in ngrpo_rows] == plain
    ends = [(tmp_path / name / "final" / "policy.safetensors").read_bytes() for name in ("ngrpo", "grpo")]
    assert ends[0] == ends[1]
    assert [row["policy/mixed"] for row in ngrpo_rows[1:]] == [0.0]


def test_a_run_asks_for_neighbors_at_every_rollout_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: list[torch.Tensor] = []
    honest = NGRPO.mixer

    def watched(self: NGRPO, embeddings: torch.Tensor | None = None) -> Mixer | None:
        if embeddings is not None:
            tables.append(embeddings.detach().clone())
        return honest(self, embeddings)

    monkeypatch.setattr(NGRPO, "mixer", watched)
    rows = execute(arithmetic_run(NGRPO(rho=0.4)), tmp_path / "run")
    assert len(tables) == 2 and not torch.equal(tables[0], tables[1]), "after the update others"
    for row in rows[1:]:
        # of 20 tokens some six are an answer, of which none is blended
        assert 0.15 < row["policy/mixed"] < 0.4
        assert row["gap/mean"] < EXACT
        assert row["grad_norm/policy"] > 0


# Recipes


def test_vllm_and_several_turns_are_refused_with_a_remedy() -> None:
    config = arithmetic_run(NGRPO())
    assert not incompatible(config)
    engine = dataclasses.replace(config, sampler=SamplerConfig(kind="vllm"))
    (fault,) = incompatible(engine)
    assert "mixes embeddings while decoding" in fault and 'set sampler.kind = "hf"' in fault
    assert not incompatible(dataclasses.replace(engine, algorithm=NGRPO(rho=0.0)))
    episodes = dataclasses.replace(read_recipe("horizon-nano").configs[0], algorithm=NGRPO())
    (fault,) = incompatible(episodes)
    assert "horizon in several turns" in fault and "`tasks = [...]`" in fault


def test_metrics_of_a_batch_without_blends_are_undefined_not_wrong() -> None:
    algorithm, models = NGRPO(), RoleModels(tiny())
    batch = dataclasses.replace(packed(sampled(algorithm, models)), mixture=None)
    row = algorithm.observe(batch, algorithm.compute_signal(batch, models))
    assert row["policy/mixed"] == 0 and math.isnan(row["policy/anchor_weight"])
    none = Mixture(
        torch.zeros(*batch.completion_mask.shape, 3).long(), torch.zeros(*batch.completion_mask.shape, 3)
    )
    row = algorithm.observe(dataclasses.replace(batch, mixture=none), algorithm.compute_signal(batch, models))
    assert row["policy/mixed"] == 0 and math.isnan(row["policy/anchor_weight"])
