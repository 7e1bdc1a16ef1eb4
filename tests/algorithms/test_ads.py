"""ADS: clusters of problems, which of them a step draws, and how rewards move the schedule."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import (
    Letters,
    arithmetic_run,
    execute,
    trainer_for,
)
from helpers.whole_runs import resumed, transcript

from grpobench.algorithms.ads import (
    ADS,
    AdaptiveSchedule,
    cluster_problems,
    move_direction,
    move_positions,
    reduce_dimensions,
)
from grpobench.algorithms.curriculum import Study
from grpobench.algorithms.dpo import DPO
from grpobench.algorithms.grpo import GRPO
from grpobench.algorithms.gspo import GSPO
from grpobench.algorithms.modifiers import Modified, Modifiers
from grpobench.runs.models.loading import load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.settings.config import CheckpointConfig, RunConfig, SamplerConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.rules import incompatible
from grpobench.runs.train.prepare import study as study_module
from grpobench.runs.train.prepare.study import study
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Split


def blobs(sizes: Sequence[int], seed: int = 0, width: int = 6) -> Study:
    """Problems around as many directions as there are sizes, in that order, of falling difficulty."""
    generator = torch.Generator().manual_seed(seed)
    rows = [
        torch.nn.functional.one_hot(torch.tensor(kind), width) * 5.0
        + 0.01 * torch.randn(width, generator=generator)
        for kind, size in enumerate(sizes)
        for _ in range(size)
    ]
    return Study(torch.stack(rows), torch.arange(sum(sizes), 0, -1).float())


def schedule(sizes: Sequence[int] = (8, 8, 8, 8), prompts: int = 4, **settings: Any) -> AdaptiveSchedule:
    """One cluster per blob; settings as the paper's but for two clusters a step and no epochs."""
    options = {"clusters": len(sizes), "at_once": 2, "epochs": False, **settings}
    return AdaptiveSchedule(blobs(sizes), prompts, 7, **options)


def answer(curriculum: AdaptiveSchedule, step: int, rate: float) -> list[int]:
    """Draw and grade a step in which every problem has this success rate."""
    index = curriculum.draw(step, 0)
    assert curriculum.accept(step, index, [[rate, rate]] * len(index)) == [True] * len(index)
    return index


# Clusters


def test_clusters_are_kinds_of_problems_easiest_first() -> None:
    clusters = cluster_problems(blobs([3, 5, 2]), 3, 128, seed=1)
    # difficulty falls with the number of a problem
    assert sorted(clusters) == [[2, 1, 0], [7, 6, 5, 4, 3], [9, 8]]


def test_clusters_depend_on_the_seed_and_on_no_other_generator() -> None:
    noise = Study(torch.randn(200, 16, generator=torch.Generator().manual_seed(0)), torch.rand(200))
    clusters = cluster_problems(noise, 12, 8, seed=3)
    assert cluster_problems(noise, 12, 8, seed=3) == clusters
    assert cluster_problems(noise, 12, 8, seed=4) != clusters
    assert sorted(itertools.chain(*clusters)) == list(range(200))


@pytest.mark.parametrize(("problems", "clusters"), [(5, 64), (1, 64), (2, 2), (40, 1)])
def test_there_are_no_more_clusters_than_problems(problems: int, clusters: int) -> None:
    noise = Study(torch.randn(problems, 4, generator=torch.Generator().manual_seed(0)), torch.rand(problems))
    clustering = cluster_problems(noise, clusters, 128, seed=0)
    assert 1 <= len(clustering) <= min(problems, clusters)
    assert sorted(itertools.chain(*clustering)) == list(range(problems))


def test_problems_that_the_model_cannot_tell_apart_are_one_cluster() -> None:
    same = Study(torch.ones(9, 4), torch.arange(9.0))
    assert cluster_problems(same, 4, 128, seed=0) == [list(range(9))]
    assert cluster_problems(Study(torch.zeros(3, 4), torch.zeros(3)), 4, 128, seed=0) == [[0, 1, 2]]


def test_embeddings_are_compared_by_direction_in_principal_components() -> None:
    rows = np.random.default_rng(0).normal(size=(30, 7))
    reduced = reduce_dimensions(rows, 99)
    np.testing.assert_allclose(reduce_dimensions(rows * np.arange(1, 31)[:, None], 99), reduced, atol=1e-12)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def apart(points: np.ndarray) -> np.ndarray:
        return np.linalg.norm(points[:, None] - points, axis=-1)

    np.testing.assert_allclose(apart(reduced), apart(unit), atol=1e-12)  # a rotation keeps all distances
    spread = reduced.var(0)
    assert (np.diff(spread) <= 0).all() and reduce_dimensions(rows, 3).shape == (30, 3)
    np.testing.assert_allclose(reduce_dimensions(rows, 3), reduced[:, :3])


# Drawing


def test_a_step_draws_the_easiest_of_some_clusters_evenly() -> None:
    curriculum = schedule(prompts=5)
    index = curriculum.draw(1, 0)
    kinds = collections.Counter(problem // 8 for problem in index)
    assert sorted(kinds.values()) == [2, 3] and len(set(index)) == 5
    for kind, count in kinds.items():  # the last problem of a blob is its easiest
        assert {p for p in index if p // 8 == kind} == {8 * kind + 7 - i for i in range(count)}


def test_draws_are_functions_of_seed_step_and_attempt() -> None:
    assert [schedule().draw(s, 0) for s in range(1, 9)] == [schedule().draw(s, 0) for s in range(1, 9)]
    assert len({tuple(schedule().draw(s, 0)) for s in range(1, 30)}) > 5
    other = AdaptiveSchedule(blobs([8] * 4), 4, 8, clusters=4, at_once=2)
    assert [other.draw(s, 0) for s in range(1, 9)] != [schedule().draw(s, 0) for s in range(1, 9)]


def test_clusters_are_drawn_by_their_probabilities_without_replacement() -> None:
    """Two of three with p = .6, .3, .1: {0, 1} with .6·.3/.4 + .3·.6/.7 = .7071, {0, 2} with .6·.1/.4 +
    .1·.6/.9 = .2167, {1, 2} with .3·.1/.7 + .1·.3/.9 = .0762. 4,000 draws, four standard errors."""
    curriculum = schedule((4, 4, 4), prompts=2)
    order = [curriculum.sorted.index(cluster) for cluster in sorted(curriculum.sorted, key=min)]
    for kind, p in zip(order, (0.6, 0.3, 0.1), strict=True):
        curriculum.probability[kind] = p
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    for step in range(4000):
        counts[tuple(sorted(problem // 4 for problem in curriculum.draw(step, 0)))] += 1
    for pair, p in {(0, 1): 0.7071, (0, 2): 0.2167, (1, 2): 0.0762}.items():
        assert abs(counts[pair] / 4000 - p) < 4 * (p * (1 - p) / 4000) ** 0.5
    assert sum(counts.values()) == 4000


def test_small_clusters_are_filled_up_from_others() -> None:
    curriculum = schedule((1, 1, 2, 12), prompts=8, at_once=2)
    for step in range(1, 20):
        index = curriculum.draw(step, 0)
        assert len(index) == len(set(index)) == 8


def test_fewer_problems_than_prompts_are_all_drawn_once() -> None:
    curriculum = schedule((2, 1), prompts=8)
    assert sorted(curriculum.draw(1, 0)) == [0, 1, 2]


def test_refills_bring_problems_that_the_step_has_not_had() -> None:
    curriculum = schedule((6, 6), prompts=4)
    drawn: list[int] = []
    for attempt in range(5):
        index = curriculum.draw(1, attempt)
        curriculum.accept(1, index, [[1.0]] * len(index))
        drawn += index
    assert len(drawn) == len(set(drawn)) == 12, "all of them, then no more"
    assert curriculum.draw(2, 0), "the next step may have them again"


# What rewards change


@pytest.mark.parametrize(
    ("rate", "way"),
    [(0.0, -1), (0.32, -1), (0.33, 0), (2 / 6, 0), (0.5, 0), (4 / 6, 0), (0.67, 0), (0.68, 1), (1.0, 1)],
)
def test_ads_moves_to_easier_problem_after_failure_harder_after_success(rate: float, way: int) -> None:
    assert move_direction(rate, 0.17) == way


@pytest.mark.parametrize(
    ("positions", "moves", "expected"),
    [
        ([*range(10)], {0: 1, 1: -1, 2: 1}, [*range(10)]),  # all that there are
        ([3], {3: 1}, [4]),
        ([3], {3: -1}, [2]),
        ([3], {3: 0}, [3]),
        ([2, 5], {2: 1}, [3, 5]),  # 5 was not graded and stays
        ([2, 3], {2: 1, 3: 0}, [3, 4]),  # the next place is taken: the one behind it
        ([2, 3, 4], {2: 1, 3: 1, 4: 1}, [3, 4, 5]),  # a row moves as a whole
        ([2, 3, 4], {2: -1, 3: -1, 4: -1}, [1, 2, 3]),
        ([3, 4], {3: 1, 4: -1}, [3, 4]),  # two that meet change places
        ([0], {0: -1}, [0]),  # nothing is easier
        ([9], {9: 1}, [9]),
        ([0, 1], {0: -1, 1: -1}, [0, 1]),
        ([8, 9], {8: 1, 9: 0}, [8, 9]),  # nothing that is harder is free: its own place again
        ([7, 8, 9], {7: 1, 8: 1, 9: 0}, [7, 8, 9]),
        ([], {}, []),
    ],
)
def test_places_move_to_the_next_that_is_free(
    positions: list[int], moves: dict[int, int], expected: list[int]
) -> None:
    assert move_positions(positions, moves, 10) == expected


def test_places_walk_along_the_difficulties_until_they_are_in_the_band() -> None:
    """One cluster of 30; a problem is solved as often as its place is easy: ½ at the 15th."""
    curriculum = schedule((30,), prompts=2, at_once=1)
    for step in range(1, 40):
        index = curriculum.draw(step, 0)
        rates = [1 - curriculum.location[problem][1] / 29 for problem in index]
        curriculum.accept(step, index, [[rate] for rate in rates])
    assert all(0.33 <= 1 - position / 29 <= 0.67 for position in curriculum.positions[0])
    before = [*curriculum.positions[0]]
    answer(curriculum, 40, 0.5)
    assert curriculum.positions[0] == before


def test_probabilities_follow_the_success_rates_smoothly() -> None:
    """Two of four clusters solve everything: r = (1, 1, ½, ½), Σ = 3; p ← .7 · ¼ + .3 · r/3."""
    curriculum = schedule()
    index = answer(curriculum, 1, 1.0)
    drawn_clusters = {curriculum.location[problem][0] for problem in index}
    for cluster in range(4):
        rate = 1.0 if cluster in drawn_clusters else 0.5
        assert curriculum.rate[cluster] == rate
        assert curriculum.probability[cluster] == pytest.approx(0.7 / 4 + 0.3 * rate / 3)
    assert sum(curriculum.probability) == pytest.approx(1)


def test_a_clusters_rate_is_the_mean_of_its_last_visit() -> None:
    curriculum = schedule((4, 4), prompts=4)
    index = curriculum.draw(1, 0)
    curriculum.accept(1, index, [[1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    first = curriculum.location[index[0]][0]
    assert (curriculum.rate[first], curriculum.rate[1 - first]) == (0.75, 0.0)
    assert curriculum.probability[first] == pytest.approx(0.7 / 2 + 0.3)
    curriculum.accept(2, index, [[2.5, -1.0]] * 4)  # a reward counts from 0 to 1
    assert curriculum.rate[first] == 0.5


def test_where_nothing_is_solved_all_clusters_are_alike() -> None:
    curriculum = schedule((4, 4), prompts=4)
    answer(curriculum, 1, 0.0)
    assert curriculum.rate == [0.0, 0.0] and curriculum.probability == [0.5, 0.5]


def test_an_epoch_begins_anew() -> None:
    """16 problems, 4 a step: after four steps the schedule is as it was."""
    curriculum = schedule((8, 8), prompts=4, epochs=True)
    start = json.loads(json.dumps(curriculum.state()))
    for step in range(1, 5):
        answer(curriculum, step, 1.0)
        assert curriculum.state() != start
    curriculum.draw(5, 0)
    assert curriculum.state() == start
    lasting = schedule((8, 8), prompts=4)
    for step in range(1, 6):
        answer(lasting, step, 1.0)
    assert lasting.positions != curriculum.positions


# State


def test_state_is_json_and_goes_on_where_it_was_saved() -> None:
    uninterrupted, interrupted = schedule(epochs=True), schedule(epochs=True)
    drawn = [answer(uninterrupted, step, 0.2 * (step % 6)) for step in range(1, 13)]
    for step in range(1, 6):
        answer(interrupted, step, 0.2 * (step % 6))
    fresh = schedule(epochs=True)
    fresh.restore(json.loads(json.dumps(interrupted.state())))
    assert [answer(fresh, step, 0.2 * (step % 6)) for step in range(6, 13)] == drawn[5:]
    assert fresh.state() == uninterrupted.state()


def test_clusters_of_the_checkpoint_count() -> None:
    """Another machine's K-means may give others: the saved ones go on."""
    saved = schedule((8, 8, 8, 8))
    answer(saved, 1, 1.0)
    fresh = AdaptiveSchedule(blobs([4, 12, 10, 6]), 4, 7, clusters=4, at_once=2, epochs=False)
    assert fresh.sorted != saved.sorted
    fresh.restore(json.loads(json.dumps(saved.state())))
    assert fresh.draw(2, 0) == saved.draw(2, 0)
    assert fresh.accept(2, [0], [[1.0]]) == [True]


SMALL = Modifiers(schedule="ads", ads_clusters=6, ads_at_once=2)


def on_few_problems(algorithm: Any, modify: Modifiers = SMALL, **sections: Any) -> RunConfig:
    return arithmetic_run(algorithm, task=Arithmetic(train=16), modify=modify, **sections)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRPOBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_killed_run_draws_the_same_problems_when_it_goes_on(cache: Path, tmp_path: Path) -> None:
    config = on_few_problems(ADS(), checkpoint=CheckpointConfig(every=1))
    train = dataclasses.replace(config.train, steps=3, group_size=2)
    evaluate = dataclasses.replace(config.evaluate, every=1)
    config = dataclasses.replace(config, train=train, evaluate=evaluate)
    uninterrupted, _ = resumed(config, tmp_path, 2)
    drawn, again = (
        [[group["problem"] for group in transcript(tmp_path / name, step)] for step in (1, 2, 3)]
        for name in ("whole", "parts")
    )
    assert again == drawn and len({tuple(step) for step in drawn}) > 2
    assert all(0 <= row["modify/in_band"] <= 1 for row in uninterrupted[1:])


# Around algorithms


def test_any_algorithm_can_have_the_schedule() -> None:
    for algorithm in (GRPO(), GSPO(), DPO(), ADS()):
        around = SMALL.around(algorithm)
        assert isinstance(around, Modified) and around.studies
        curriculum = around.curriculum([{}] * 16, 4, 3, blobs([8, 8]))
        assert isinstance(curriculum, AdaptiveSchedule) and len(curriculum.draw(1, 0)) == 4
        plain = Modifiers(ads_clusters=3, ads_band=0.2).around(algorithm)
        assert plain is algorithm and not plain.studies


def test_settings_reach_the_schedule() -> None:
    modify = Modifiers(
        schedule="ads", ads_clusters=2, ads_at_once=1, ads_smoothing=1.0, ads_success=0.25, ads_band=0.0
    )
    curriculum = modify.around(GRPO()).curriculum([{}] * 16, 4, 3, blobs([8, 8]))
    assert isinstance(curriculum, AdaptiveSchedule)
    assert (len(curriculum.sorted), curriculum.at_once, curriculum.band, curriculum.epoch) == (2, 1, 0.0, 4)
    assert curriculum.rate == [0.25, 0.25]
    index = answer(curriculum, 1, 0.75)
    chosen = curriculum.location[index[0]][0]
    assert curriculum.probability[chosen] == pytest.approx(0.75)
    assert curriculum.positions[chosen] == [1, 2, 3, 4], "outside a band of nought all move on"
    assert (
        Modifiers(schedule="ads", ads_epochs=False)
        .around(GRPO())
        .curriculum([{}] * 16, 4, 3, blobs([8, 8]))
        .epoch
        == 0
    )  # type: ignore[attr-defined]


def test_a_step_that_runs_out_of_problems_trains_on_what_it_has(cache: Path, tmp_path: Path) -> None:
    modify = dataclasses.replace(SMALL, dynamic_sampling=6)
    config = arithmetic_run(ADS(), task=Arithmetic(train=5), modify=modify, steps=1)
    (_, row) = execute(config, tmp_path / "run")
    assert row["trained/zero_signal"] == 0
    assert row["groups/sampled"] == 5 and row["trained/groups"] <= 5


def test_recipe_gives_the_algorithm_its_schedule(tmp_path: Path) -> None:
    text = """
name = "r"
tasks = ["arithmetic"]
[model]
name = "nano"
[[arm]]
algorithm = "ads"
[[arm]]
name = "plain"
algorithm = "ads"
modify.schedule = "uniform"
[[arm]]
name = "gspo"
algorithm = "gspo"
modify.schedule = "ads"
modify.ads_clusters = 8
"""
    (tmp_path / "r.toml").write_text(text)
    arms = {config.arm: config for config in read_recipe(str(tmp_path / "r.toml")).configs}
    assert {name: config.modify.schedule for name, config in arms.items()} == {
        "ads": "ads",
        "plain": "uniform",
        "gspo": "ads",
    }
    assert not any(map(incompatible, arms.values()))


def test_preferences_have_no_solutions_to_study(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text("{}\n")
    config = on_few_problems(DPO(), sampler=SamplerConfig(kind="preferences", path=str(path)))
    (fault,) = incompatible(config)
    assert "studies the problems" in fault and 'set sampler.kind = "hf"' in fault


# The study of the problems


def test_study_is_the_policys_own_view_of_question_and_solution(cache: Path) -> None:
    """By one plain forward pass per problem: the mean of its final hidden states over question and solution,
    and the mean negative log-likelihood of the solution, untempered."""
    loaded, task = load("nano"), Arithmetic(train=6)
    models = RoleModels(loaded.model, ("policy",), temperature=0.5)
    chosen = task.problems("train")
    studied = study(models, loaded, task, chosen)
    assert studied.embedding.shape == (6, loaded.model.config.hidden_size)
    for row, problem in enumerate(chosen):
        prompt, text = loaded.encode(problem.prompt), task.demonstrate(problem)
        solution = (
            *loaded.tokenizer.encode(text, add_special_tokens=False),
            loaded.end[0],
        )
        tokens = torch.tensor([[*prompt, *solution]])
        with torch.no_grad():
            states = loaded.model.base_model(input_ids=tokens).last_hidden_state[0]
            logp = loaded.model(input_ids=tokens).logits[0].log_softmax(-1)
        torch.testing.assert_close(studied.embedding[row], states.mean(0), rtol=1e-4, atol=1e-5)
        solution_logp = logp[len(prompt) - 1 : -1].gather(-1, torch.tensor(solution)[:, None])
        assert studied.nll[row].item() == pytest.approx(-solution_logp.mean().item(), abs=1e-5)


def test_study_is_read_once_per_model_and_texts(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, task = load("nano"), Arithmetic(train=6)
    models = RoleModels(loaded.model, ("policy",))
    reads = []
    honest = study_module.read
    monkeypatch.setattr(study_module, "read", lambda *all: reads.append(1) or honest(*all))
    chosen = task.problems("train")
    first = study(models, loaded, task, chosen)
    again = study(models, loaded, task, chosen)
    assert len(reads) == 1
    assert torch.equal(first.embedding, again.embedding) and torch.equal(first.nll, again.nll)
    fewer = study(models, loaded, task, chosen[:3])
    assert len(reads) == 2 and len(fewer.nll) == 3
    study(models, loaded, task, chosen, warm_start="another")
    assert len(reads) == 3, "what the policy has learned before counts"
    # the same texts under another setting of the task are the same study
    study(models, loaded, Arithmetic(train=6, test=7), chosen)
    assert len(reads) == 3
    assert len(list((cache / "study").glob("arithmetic-*"))) == 3


def test_a_run_studies_the_initial_policy_also_when_it_goes_on(cache: Path, tmp_path: Path) -> None:
    config = on_few_problems(ADS(), steps=1)
    messages: list[str] = []
    first = trainer_for(config, messages.append)
    assert "studying the problems 0/16" in messages
    again = trainer_for(config)
    assert first.curriculum.state() == again.curriculum.state()
    assert len(first.curriculum.state()["sorted"]) == 6


def test_solutions_beyond_the_context_are_refused_with_a_remedy(cache: Path) -> None:
    class Long(Letters):
        def demonstrate(self, problem: Problem) -> str:
            return "A" * 10_000

        def problems(self, split: Split) -> Sequence[Problem]:
            return super().problems(split)[:2]

    loaded = load("nano")
    with pytest.raises(DataError, match=r"modify\.schedule"):
        study(RoleModels(loaded.model, ("policy",)), loaded, Long(), Long().problems("train"))
