"""SPO against its authors' code, restated, and against numbers by hand; its draws; runs that go on."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import Fixed, models_for, rollouts, trainer_for
from helpers.whole_runs import configure, resumed

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.curriculum import Informed, Shuffled
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.modifiers import Modifiers
from grpobench.algorithms.spo import SPO
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.settings.config import EvaluateConfig, TrainConfig
from grpobench.runs.settings.rules import incompatible

CONSTANT = SPO(discount_low=0.875, discount_high=0.875)
"""Asks no model."""


def visit(problems: list[int], rewards: list[float], state: Any = None, **settings: Any) -> Batch:
    """One completion of each of these problems."""
    batch = rollouts([[3]] * len(problems), [[reward] for reward in rewards], **settings)
    return dataclasses.replace(batch, problem=torch.tensor(problems), state=state)


def advantages(algorithm: SPO, batch: Batch) -> list[float]:
    return algorithm.compute_signal(batch, Fixed()).advantage[:, 0].tolist()


# By hand


def test_first_visit_by_hand() -> None:
    """From α = β = ½ with ρ = 0.96: a success leaves 0.48 + 1 and 0.48. As an average that is
    ½ + (1 − ½)/(0.96·1 + 1)."""
    algorithm = SPO(discount_low=0.96, discount_high=0.96)
    state = algorithm.next_state(visit([7, 2], [1.0, 0.0]), Fixed())
    assert state["problems"]["7"] == pytest.approx({"alpha": 1.48, "beta": 0.48, "visits": 1})
    assert state["problems"]["2"] == pytest.approx({"alpha": 0.48, "beta": 1.48, "visits": 1})
    metrics = algorithm.observe(visit([7, 5], [1.0, 1.0], state), None)  # type: ignore[arg-type]
    assert metrics["spo/expected"] == pytest.approx((0.5 + 0.5 / 1.96 + 0.5) / 2)
    assert metrics["spo/evidence"] == pytest.approx((1.96 + 1) / 2) and metrics["spo/first"] == 0.5
    assert metrics["spo/discount"] == 0.96 and math.isnan(metrics["spo/drift"])


def test_equal_gains_and_a_single_row_have_no_advantage() -> None:
    assert advantages(CONSTANT, visit([0, 1, 2], [1.0, 1.0, 1.0])) == [0.0, 0.0, 0.0]
    assert advantages(CONSTANT, visit([0], [1.0])) == [0.0]


def test_what_is_remembered_counts_half_after_the_half_life() -> None:
    """ρ = 2^(−D/0.06): 0.006 nats leave 0.933; none leave 0.96 and 0.06 leave 0.875, the bounds."""
    algorithm = SPO()
    assert [algorithm.discount(d) for d in (0.0, 0.006, 0.06, math.inf, math.nan)] == [
        *(0.96, pytest.approx(2**-0.1), 0.875, 0.875, 0.875)
    ]
    wide = SPO(discount_low=1e-6, discount_high=1.0)
    assert [wide.discount(d) for d in (0.0, 0.06, 0.12)] == pytest.approx([1.0, 0.5, 0.25])


def test_completions_of_one_problem_are_counted_together() -> None:
    """ρ once, then two successes and a failure; the problem may stand in several groups of a step."""
    state = CONSTANT.next_state(visit([4, 4, 1, 4], [1.0, 0.0, 1.0, 1.0]), Fixed())
    assert state["problems"]["4"] == {"alpha": 0.4375 + 2, "beta": 0.4375 + 1, "visits": 1}
    again = CONSTANT.next_state(visit([4], [0.0], state), Fixed())
    assert again["problems"]["4"] == {"alpha": 0.875 * 2.4375, "beta": 0.875 * 1.4375 + 1, "visits": 2}
    assert again["problems"]["1"] == state["problems"]["1"] and state["problems"]["4"]["visits"] == 1


def test_rewards_of_another_range_are_the_same_successes() -> None:
    """Rewards 1 and −1 between those bounds give the states and advantages of 1 and 0."""
    scaled = dataclasses.replace(CONSTANT, min_reward=-1.0)
    plain, other = visit([0, 1, 2], [1.0, 0.0, 0.5]), visit([0, 1, 2], [1.0, -1.0, 0.0])
    state = CONSTANT.next_state(plain, Fixed())
    assert scaled.next_state(other, Fixed()) == state
    plain, other = (dataclasses.replace(visited, state=state) for visited in (plain, other))
    assert advantages(scaled, other) == pytest.approx(advantages(CONSTANT, plain), rel=1e-5)  # float32
    with pytest.raises(
        ValueError, match=r"a reward of -1 is not from 0 to 1.*change min_reward and max_reward"
    ):
        CONSTANT.compute_signal(other, Fixed())


def test_rewards_that_are_not_finite_leave_no_trace() -> None:
    state = CONSTANT.next_state(visit([3, 5], [math.nan, 1.0]), Fixed())
    assert [*state["problems"]] == ["5"]
    nothing = visit([3], [math.nan], state)
    assert CONSTANT.next_state(nothing, Fixed()) is state


# Against the authors' code


class Authors:
    """verl-project/verl-recipe@48ea0a7, spo/spo_ray_trainer.py: the loop of `fit` from the rewards on, and
    `_get_spo_rho`, with offline_N = 0, rho.type = "kl" and rho.clip_lower = 0.875. A log-probability is asked
    of the models row by row; prompts are numbers."""

    def __init__(self, problems: int, models: RoleModels) -> None:
        self.models = models
        self.alpha, self.beta = dict.fromkeys(range(problems), 0.5), dict.fromkeys(range(problems), 0.5)
        self.row: dict[int, Batch] = {}
        self.logp: dict[int, torch.Tensor] = {}

    def weights(self) -> list[float]:
        """Of each prompt in the draw, before they are divided by their sum."""
        rate = {p: self.alpha[p] / (self.alpha[p] + self.beta[p]) for p in self.alpha}
        return [(rate[p] * (1.0 - rate[p])) ** 0.5 + 0.05 for p in self.alpha]

    def advantages(self, prompts: list[int], reward: torch.Tensor) -> torch.Tensor:
        alpha = torch.tensor([self.alpha[p] for p in prompts])
        beta = torch.tensor([self.beta[p] for p in prompts])
        advantage = reward - alpha / (alpha + beta)
        return (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def update(self, prompts: list[int], batch: Batch) -> list[float]:
        """After the actor's update; returns the clipped rho."""
        rhos, reward = [], batch.reward.tolist()
        for i, prompt in enumerate(prompts):
            row_batch = batch[torch.tensor([i])]
            past = self.row.get(prompt, row_batch)
            now = self.models.forward("policy", past).logp
            old = self.logp.get(prompt, now)
            mask = past.completion_mask
            drift = ((old - now).abs() * mask).sum() / (mask.sum() + 1e-8)
            rho = min(max(2.0 ** (-drift.item() / 0.06), 0.875), 0.96)
            self.row[prompt], self.logp[prompt] = row_batch, self.models.forward("policy", row_batch).logp
            self.alpha[prompt] = rho * self.alpha[prompt] + reward[i]
            self.beta[prompt] = rho * self.beta[prompt] + (1 - reward[i])
            rhos.append(rho)
        return rhos


def test_states_and_advantages_equal_the_authors_over_five_steps() -> None:
    """Rows with tool output and of several lengths, problems that come back after one or several steps, and
    weights that move a little in every step."""
    algorithm = SPO()
    models = models_for(algorithm, "llama")
    authors, state = Authors(6, models), algorithm.initial_state()
    generator = torch.Generator().manual_seed(2)
    bounded = []
    for step, prompts in enumerate([[0, 1, 2], [1, 3, 2], [3, 0, 1], [4, 1, 0], [0, 2, 3]]):
        # A problem keeps its prompt: of the fixed tokens of `rollouts`, those of its own number.
        batch = rollouts(
            [[5], [2 + step], [7]],
            [[float((step + p) % 2)] for p in prompts],
            seed=step,
            prompts=(4, 4, 4),
            gaps={0: (1, 2)},
        )
        prompt = torch.arange(2, 26).view(6, 4)[prompts]
        batch = dataclasses.replace(batch, prompt=prompt, problem=torch.tensor(prompts), state=state)
        signal = algorithm.compute_signal(batch, models)
        torch.testing.assert_close(
            signal.advantage[torch.arange(3), batch.length - 1],
            authors.advantages(prompts, batch.reward),
            rtol=1e-5,  # float32; theirs rounds α and β to it
            atol=1e-6,
        )
        with torch.no_grad():
            for p in models.named_parameters("policy").values():
                p += 3e-4 * torch.randn(p.shape, generator=generator)
        state = json.loads(json.dumps(algorithm.next_state(batch, models)))
        rho = authors.update(prompts, batch)
        bounded += [value in (0.875, 0.96) for value in rho]
        assert state["discount"] == pytest.approx(sum(rho) / 3, rel=1e-5)
        for p in prompts:
            entry = state["problems"][str(p)]
            assert entry["alpha"] == pytest.approx(authors.alpha[p], rel=1e-5)  # float32 sums of |Δ log π|
            assert entry["beta"] == pytest.approx(authors.beta[p], rel=1e-5)
        assert algorithm.priority(state, 6) == pytest.approx(authors.weights(), rel=1e-5)
    assert not all(bounded[3:]), "every discount was at a bound"


def test_a_problem_whose_last_completion_was_empty_has_not_moved() -> None:
    algorithm = SPO()
    models = models_for(algorithm, "gpt2")
    empty = dataclasses.replace(rollouts([[0], [4]], [[0.0], [1.0]]), problem=torch.tensor([0, 1]))
    state = algorithm.next_state(empty, models)
    assert state["problems"]["0"]["tokens"] == "" and state["problems"]["1"]["tokens"]
    later = dataclasses.replace(empty, state=state)
    assert algorithm.drift(later, {"0": [0]}, state["problems"], models) == {"0": 0.0}
    assert algorithm.drift(later, {"0": [0], "1": [1]}, state["problems"], models) == {
        "0": 0.0,
        "1": pytest.approx(0.0, abs=1e-6),  # nothing has moved
    }


# Draws


def test_uncertain_problems_weigh_most_and_a_refill_repeats_none() -> None:
    """√(v(1−v)) + 0.05 for v of ½, ¾ and nearly 1."""
    entries = {"1": {"alpha": 3.0, "beta": 1.0}, "2": {"alpha": 1.0, "beta": 1e-9}}
    state = {"problems": entries, "drift": None, "discount": None}
    weights = SPO().priority(state, 3)
    assert weights == pytest.approx([0.55, math.sqrt(3) / 4 + 0.05, 0.05], abs=1e-4)
    draws = SPO().curriculum([{}] * 12, 4, 3)
    assert isinstance(draws, Informed)
    draws.inform(state)
    drawn = [problem for attempt in range(3) for problem in draws.draw(5, attempt)]
    assert sorted(drawn) == [*range(12)] and draws.state() is None


def test_a_first_step_has_the_problems_of_every_other_arm() -> None:
    shuffled, draws = Shuffled(12, 4, 3), SPO().curriculum([{}] * 12, 4, 3)
    assert draws.draw(1, 0) == shuffled.draw(1, 0)
    assert not set(draws.draw(1, 1)) & set(draws.draw(1, 0))
    plain = SPO(prioritized=False).curriculum([{}] * 12, 4, 3)
    assert type(plain) is Shuffled


# Runs

SINGLE = TrainConfig(
    steps=4, prompts_per_step=4, group_size=1, num_minibatches=2, learning_rate={"policy": 1e-3}
)
"""One completion of each of 4 of 12 problems."""


def test_a_run_with_one_completion_per_problem_goes_on_as_if_never_stopped(
    policy: str, tmp_path: Path
) -> None:
    config = configure(policy, SPO(), train=SINGLE, evaluate=EvaluateConfig(0, 0, 0, 0))
    assert not incompatible(config)
    uninterrupted, state = resumed(config, tmp_path, 3)
    # 12 draws of 12 problems before the stop: some came back, and what was expected of them has moved.
    visits = [entry["visits"] for entry in state["problems"].values()]
    assert (
        sum(visits) == 12 and max(visits) > 1 and all(entry["tokens"] for entry in state["problems"].values())
    )
    assert uninterrupted[1]["spo/first"] == 1 and uninterrupted[-1]["spo/first"] < 1
    assert uninterrupted[1]["spo/expected"] == 0.5 and uninterrupted[-1]["spo/expected"] != 0.5
    assert (
        uninterrupted[-1]["spo/drift"] > 0
        and sum(row["grad_norm/policy"] > 0 for row in uninterrupted[1:]) >= 2
    )


@pytest.mark.parametrize("settings", [{"dynamic_sampling": 2}, {"zero_variance_filter": True}])
def test_what_leaves_out_groups_of_one_is_refused(settings: dict[str, Any], policy: str) -> None:
    (name,) = settings
    modify = Modifiers(**settings)
    (fault,) = incompatible(configure(policy, SPO(), train=SINGLE, modify=modify))
    assert f"modify.{name}" in fault and "train.group_size = 2" in fault
    assert not incompatible(configure(policy, SPO(), modify=modify))


def test_a_checkpoint_without_a_state_begins_with_the_initial_one(policy: str) -> None:
    """Those of versions before algorithms had states, and of algorithms that have none."""
    trainer = trainer_for(configure(policy, SPO(), train=SINGLE))
    trainer.step(1)
    weights, saved_state = trainer.models.state(), json.loads(json.dumps(trainer.state()))
    weights = {
        role: {name: tensor.clone() for name, tensor in part.items()} for role, part in weights.items()
    }
    other = trainer_for(configure(policy, SPO(), train=SINGLE))
    other.restore(weights, saved_state)
    assert other.algorithm_state == trainer.algorithm_state and len(other.algorithm_state["problems"]) == 4
    third = trainer_for(configure(policy, SPO(), train=SINGLE))
    del saved_state["algorithm"]
    third.restore(weights, saved_state)
    assert third.algorithm_state == SPO().initial_state()
    plain = trainer_for(configure(policy, GRPO()))
    assert plain.state()["algorithm"] is None


def test_an_entropy_target_and_further_draws_stand_around_it(policy: str) -> None:
    """What it remembers is of the problems that it trained on, whatever is wrapped around it."""
    modify = Modifiers(entropy_target=9.0, entropy_step=0.01, entropy_limit=1.0, dynamic_sampling=1)
    trainer = trainer_for(configure(policy, SPO(), modify=modify))
    trained: set[str] = set()
    for step in (1, 2, 3):
        trained_before = len(trained)
        row = trainer.step(step)
        assert row["modify/entropy_coefficient"] == 0.01 * (step - 1)
        assert row["spo/first"] == pytest.approx(
            1 - sum(str(group.index) in trained for group in trainer.groups) / len(trainer.groups)
        )
        trained |= {str(group.index) for group in trainer.groups}
        assert set(trainer.algorithm_state["problems"]) == trained and len(trained) > trained_before * (
            step < 3
        )
        weights = trainer.curriculum.inner.inner.weights  # Checked, Refilled, Prioritized
        assert (len(set(weights)) == 1) == (step == 1)
