"""NGU: rounds against closed forms, advantages against the authors' example, what a step trains on."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch
from helpers.toys import Fixed, close, rollouts, trainer_for
from helpers.whole_runs import configure, resumed

from grpobench.algorithms.modifiers import Modifiers
from grpobench.algorithms.ngu import NGU, Persistent
from grpobench.runs.settings.config import EvaluateConfig, TrainConfig
from grpobench.runs.settings.rules import incompatible

TRAIN = TrainConfig(steps=3, prompts_per_step=3, group_size=2, learning_rate={"policy": 1e-3})


def curriculum(problems: int, prompts: int, again: float = 0.9, rounds: int = 16) -> Persistent:
    made = NGU(again=again, rounds=rounds).curriculum([{}] * problems, prompts, seed=5)
    assert isinstance(made, Persistent) and made.attempts == rounds
    return made


def play(made: Persistent, chance: float, size: int = 3) -> tuple[Counter[int], set[int]]:
    """(how often each problem was asked, those that are trained on) in one step; a round has a success with
    this chance, and then a failure too."""
    rng, draws, trained = random.Random(1), Counter[int](), set[int]()
    for attempt in range(made.attempts):
        index = made.draw(1, attempt)
        draws.update(index)
        rewards = [[float(rng.random() < chance)] + [0.0] * (size - 1) for _ in index]
        accepted = made.accept(1, index, rewards)
        trained |= {problem for problem, keep in zip(index, accepted, strict=True) if keep}
    return draws, trained


def test_rounds_of_problems_that_are_never_solved_follow_a_geometric_law() -> None:
    """Mean (1 − p^R)/(1 − p), the authors' 1/(1 − p) if R has no bound."""
    problems = 4000
    draws, trained = play(curriculum(problems, problems), chance=0.0)
    assert not trained and len(draws) == problems and max(draws.values()) == 16
    expected = (1 - 0.9**16) / (1 - 0.9)
    # The deviation of a truncated geometric number is below 6; four standard errors.
    assert sum(draws.values()) / problems == pytest.approx(expected, abs=4 * 6 / math.sqrt(problems))


def test_the_chance_that_a_problem_is_trained_on() -> None:
    """Σ_j (f·p)^(j − 1)·(1 − f) for a chance f that a round fails."""
    problems, fails, again, rounds = 4000, 0.7, 0.8, 6
    _, trained = play(curriculum(problems, problems, again, rounds), chance=1 - fails)
    expected = (1 - fails) * (1 - (fails * again) ** rounds) / (1 - fails * again)
    assert len(trained) / problems == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(problems))


def test_mixed_problems_are_accepted_easy_ones_dropped_and_failed_ones_asked_until_they_are_better() -> None:
    made = curriculum(9, 3, again=1.0, rounds=4)
    mixed, easy, failed = made.draw(1, 0)
    assert made.accept(1, [mixed, easy, failed], [[1.0, 0.0], [1.0, 1.0], [0.5, 0.5]]) == [True, False, False]
    # Two of three problems are missing: the failed one again, and one that the step has not seen.
    again, fresh = made.draw(1, 1)
    assert again == failed and fresh not in (mixed, easy, failed)
    # Worse completions, and equal ones, are no progress; a group without a grade says nothing.
    assert made.accept(1, [failed, fresh], [[0.5, 0.0], []]) == [False, False]
    again, other = made.draw(1, 2)
    assert again == failed and other not in (mixed, easy, failed, fresh)
    assert made.accept(1, [failed, other], [[0.6, 0.6], [1.0, 1.0]]) == [True, False]
    assert len(made.draw(1, 3)) == 1 and made.draw(2, 0) != [mixed, easy, failed]


def test_without_a_further_chance_it_asks_fresh_problems_only() -> None:
    made = curriculum(9, 3, again=0.0)
    first = made.draw(1, 0)
    assert made.accept(1, first, [[0.0, 0.0]] * 3) == [False] * 3
    assert not set(made.draw(1, 1)) & set(first)
    assert made.state() is None


def test_advantages_are_those_of_the_authors_example() -> None:
    """Seven failures and a success in rounds of four: the baseline is 1/8, whatever the rounds. Another
    problem has its own."""
    batch = rollouts([[2] * 4, [3] * 2, [2] * 4], [[0.0] * 4, [0.0, 1.0], [0.0, 0.0, 0.0, 1.0]])
    batch = dataclasses.replace(batch, problem=torch.tensor([7] * 4 + [2] * 2 + [7] * 4))
    signal = NGU().compute_signal(batch, Fixed())
    close(signal.advantage[:, 0], [-1 / 8] * 4 + [-0.5, 0.5] + [-1 / 8] * 3 + [7 / 8], rtol=1e-6, atol=1e-6)
    assert NGU().observe(batch, signal)["ngu/rounds"] == 1.5


@pytest.mark.parametrize("modify", [Modifiers(), Modifiers(dynamic_sampling=2)])
def test_a_step_trains_on_all_rounds_of_the_problems_that_it_solves(modify: Modifiers, policy: str) -> None:
    algorithm = modify.around(NGU(again=1.0, rounds=8))
    trainer = trainer_for(configure(policy, algorithm, train=dataclasses.replace(TRAIN, prompts_per_step=6)))
    sampled, trained = trainer.gather(1)
    rounds = defaultdict[int, list[list[float]]](list)
    for group in trained:
        rounds[group.index].append([*group.reward])
    assert 0 < len(rounds) <= 6 and any(len(rewards) > 1 for rewards in rounds.values())
    for problem, rewards in rounds.items():
        *failed, last = rewards
        assert not any(map(any, failed)) and any(last)
        assert len(failed) == sum(group.index == problem for group in sampled) - 1
        assert failed or 0.0 in last
    assert {id(group) for group in trained} < {id(group) for group in sampled}


def test_a_run_goes_on_as_if_never_stopped(policy: str, tmp_path: Path) -> None:
    config = configure(policy, NGU(rounds=4), train=TRAIN, evaluate=EvaluateConfig(0, 0, 0, 0))
    assert not incompatible(config)
    uninterrupted, _ = resumed(config, tmp_path, 2)
    assert json.dumps(uninterrupted[-1]["ngu/rounds"]) and uninterrupted[1]["groups/sampled"] > 3
