"""Batches of an enumerable policy, and the gradient that an algorithm's own code makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from grpobench.algorithms import returned
from grpobench.algorithms.algorithm import Algorithm, Batch, ModelOutput, Role
from grpobench.analysis.statistics.intervals import Floats
from grpobench.analysis.theory.scenarios import Rows, Scenario
from grpobench.runs.tools.strict import ConfigError

ROLES = ("policy", "reference")
"""Roles that an enumerable policy can play: the reference is the policy that sampled."""


@dataclass(frozen=True)
class Rollouts:
    """The completions of a batch: a group's rows stand together."""

    question: Rows
    """(B,)."""
    row: Rows
    """Row of each completion in `Scenario.completions`, (B,)."""
    reward: Floats
    """That the verifier gave, (B,)."""
    size: int
    """Rollouts in a group."""


@dataclass(frozen=True)
class Update:
    """What an algorithm makes of a batch."""

    gradient: Floats
    """−∇ of the loss with respect to the logits, (Q·T·V,)."""
    coefficient: Floats
    """−∇ of the loss with respect to each token's log π, (B, T)."""
    advantage: Floats
    """Of the first token of each completion, (B,)."""


class ScenarioPolicy:
    """The policies of a scenario, in double precision."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.completions = torch.tensor(scenario.completions)
        self.written = torch.tensor(scenario.written)
        self.length = torch.tensor(scenario.length)
        self.greedy = torch.tensor(scenario.greedy_rewards)
        self.old_logits = torch.tensor(scenario.sampling_logits)

    def output(self, logits: torch.Tensor, question: torch.Tensor, row: torch.Tensor) -> ModelOutput:
        """Of the completions `row` of questions `question`, both (B,)."""
        every = logits.log_softmax(-1)
        tokens = every[question[:, None], torch.arange(logits.shape[1]), self.completions[row]]
        entropy = -(every.exp() * every).sum(-1)[question]
        squares = every.detach().exp().square().sum(-1)[question]
        return ModelOutput(tokens * self.written[row], entropy, tokens[:, :0], squares=squares)

    def batch(self, rollouts: Rollouts) -> Batch:
        question, row = torch.tensor(rollouts.question), torch.tensor(rollouts.row)
        old = self.output(self.old_logits, question, row).logp
        reward = torch.tensor(rollouts.reward)
        return Batch(
            prompt=question[:, None] + 1,
            prompt_length=torch.ones_like(row),
            completion=self.completions[row],
            length=self.length[row],
            completion_mask=self.written[row],
            sampler_logp=old,
            old_logp=old,
            group=torch.arange(len(row)) // rollouts.size,
            stopped=torch.ones_like(row, dtype=torch.bool),
            reward=reward,
            scores={"correct": reward},
            max_completion_tokens=self.completions.shape[1],
            step=1,
            weights={"correct": 1.0},
            greedy_reward=self.greedy[question],
            problem=question,
        )

    def update(self, algorithm: Algorithm[Any], rollouts: Rollouts) -> Update:
        """As the trainer makes an update: a signal of the whole batch, then the loss of its rows."""
        batch = self.batch(rollouts)
        question, row = torch.tensor(rollouts.question), torch.tensor(rollouts.row)
        with torch.no_grad():
            signal = returned.compute_signal(algorithm, batch, OldModels(self))
        advantage = signal.advantage[:, 0].numpy()
        trained = signal.row_group >= 0
        logits = torch.tensor(self.scenario.logits, requires_grad=True)
        output = self.output(logits, question, row)
        now, total = output, output.logp.sum() * 0
        if trained.any():
            if not trained.all():
                batch, signal, now = batch[trained], signal[trained], output[trained]
            weights = returned.loss_weights(algorithm, batch)
            loss = returned.loss(algorithm, batch, signal, {"policy": now}, weights)
            total = total + (loss.terms * weights).sum()
        gradient, coefficient = torch.autograd.grad(total, (logits, output.logp))
        return Update(-gradient.flatten().numpy(), -coefficient.numpy(), advantage)


@dataclass(frozen=True)
class OldModels:
    """The models that a signal is computed with: the policy that sampled, which is also the reference."""

    policy: ScenarioPolicy

    def forward(self, role: Role, batch: Batch, *, squares: bool = False) -> ModelOutput:
        if role not in ROLES or batch.problem is None:
            raise ConfigError([f"theory: an enumerable policy has no {role}"])
        rows = torch.tensor(self.policy.scenario.row_of(batch.completion.numpy()))
        return self.policy.output(self.policy.old_logits, batch.problem, rows)


def demand_enumerable(algorithm: Algorithm[Any], name: str) -> None:
    """Raise ConfigError for an algorithm that needs more than rewards and log-probabilities."""
    roles = (*algorithm.trained_roles, *algorithm.reference_roles)
    lacks = [f"the role {role}" for role in roles if role not in ROLES]
    lacks += ["a signal other than advantages"] * (not algorithm.inner.has_advantages)
    lacks += ["a teacher"] * (algorithm.teacher_divergence is not None)
    lacks += ["the place of an answer"] * algorithm.locates_answers
    lacks += ["a study of the problems"] * (algorithm.studies or algorithm.base_rollouts > 0)
    lacks += ["expert answers"] * (algorithm.expert_answers > 0)
    lacks += ["noise in its weights"] * (algorithm.weight_noise is not None)
    lacks += ["mixed embeddings"] * (algorithm.mixer() is not None)
    lacks += [f"the score {score}" for score in sorted(algorithm.scores - {"correct"})]
    if lacks:
        fault = f"theory {name}: needs {', '.join(dict.fromkeys(lacks))}, which an enumerable policy lacks"
        raise ConfigError([f"{fault}; compare it in runs: grpobench compare {name} --with grpo"])
