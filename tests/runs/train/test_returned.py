"""Others' code that returns what its protocol does not allow, in the loop: the run stops and names it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from helpers.toys import arithmetic_run, trainer_for

from grpobench.algorithms.algorithm import Advantage, Algorithm, Batch, Loss, ModelOutput, Models, Role
from grpobench.algorithms.curriculum import Curriculum, Shuffled
from grpobench.algorithms.grpo import GRPO


@dataclasses.dataclass(frozen=True)
class Summed(GRPO):
    """Its loss is one number, which would be broadcast against the weights of all tokens."""

    def loss(self, batch: Batch, signal: Advantage, now: Mapping[Role, ModelOutput]) -> Loss:
        return Loss(now["policy"].logp.sum()[None], {})


@dataclasses.dataclass(frozen=True)
class Short(GRPO):
    """One row of advantages is missing."""

    def compute_signal(self, batch: Batch, models: Models) -> Advantage:
        signal = super().compute_signal(batch, models)
        return dataclasses.replace(signal, advantage=signal.advantage[1:])


class Last(Shuffled):
    """Draws the last problem as Python calls it."""

    def draw(self, step: int, attempt: int) -> list[int]:
        return [-1] * self.prompts


@dataclasses.dataclass(frozen=True)
class Backwards(GRPO):
    def curriculum(self, traits: Any, prompts: int, seed: int, study: Any = None) -> Curriculum:
        return Last(len(traits), prompts, seed)


@pytest.mark.parametrize(
    ("algorithm", "method", "message"),
    [
        (Summed(), Summed.loss, r"Summed\.loss returned terms \(1,\), expected \(\d+, \d+\) or \(\d+,\)"),
        (
            Short(),
            Short.compute_signal,
            (r"Short\.compute_signal returned advantage \(23, \d+\), expected \(24, \d+\)"),
        ),
        (Backwards(), Last.draw, r"test_returned:Last\.draw returned the index -1 at step 1, expected whole"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_step_stops_at_what_is_no_answer_and_names_it(
    algorithm: Algorithm[Any], method: Any, message: str
) -> None:
    trainer = trainer_for(arithmetic_run(algorithm))
    before = {name: p.detach().clone() for name, p in trainer.models.named_parameters("policy").items()}
    with pytest.raises(RuntimeError, match=message) as caught:
        trainer.step(1)
    assert str(caught.value).startswith(f"test_returned.py:{method.__code__.co_firstlineno} ")
    assert all(torch.equal(before[name], p) for name, p in trainer.models.named_parameters("policy").items())
