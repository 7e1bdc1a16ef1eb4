"""Expert completions beside rollouts: where they come from, which ones a step has, what they count."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from helpers.stops import Told, carry, stopped
from helpers.toys import Letters
from helpers.whole_runs import QUIET, configure, run, timeless

from grpobench.algorithms.chord import CHORD
from grpobench.algorithms.grpo import GRPO
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.runfolder import fingerprints
from grpobench.runs.settings.config import EvaluateConfig, RunConfig, TrainConfig
from grpobench.runs.train.prepare.experts import Experts, experts
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem

SHORT = TrainConfig(
    steps=3, prompts_per_step=4, group_size=4, num_minibatches=2, learning_rate={"policy": 1e-3}
)
FIVE = CHORD(expert_answers=5, mu_peak=0.5, mu_valley=0.5)


@pytest.fixture(autouse=True)
def own_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpobench.runs.train.base_evaluation.Base.shares", lambda self: False)


def config_of(policy: str, experts: str = "reference", algorithm: CHORD = FIVE) -> RunConfig:
    train = dataclasses.replace(SHORT, experts=experts)
    return configure(policy, algorithm, train=train, evaluate=QUIET)


@cache
def tokenized(policy: str) -> Loaded:
    return load(policy)


def texts(policy: str, drawn_experts: Experts, step: int) -> list[tuple[str, str]]:
    loaded = tokenized(policy)
    return [
        (group.problem.prompt, loaded.decode(group.rollouts[0].completion))
        for group in drawn_experts.draw(step)
    ]


def written(folder: Path, *lines: object) -> str:
    path = folder / "experts.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


# Where they come from


def test_reference_answers_are_drawn_without_replacement_by_seed_and_step(policy: str) -> None:
    loaded, task = load(policy), Letters()
    first_experts, other = (experts(task, loaded, "reference", 4, seed) for seed in (1, 2))
    three = [prompt_and_text for step in (1, 2, 3) for prompt_and_text in texts(policy, first_experts, step)]
    assert {prompt for prompt, _ in three} == {problem.prompt for problem in task.problems("train")}
    assert {answer for _, answer in three} == {"AAA"}
    assert texts(policy, first_experts, 2) == three[4:8] != texts(policy, other, 2)


def test_a_batch_of_them_has_no_group_reward_or_logp(policy: str) -> None:
    batch = experts(Letters(), load(policy), "reference", 5, 0).batch(7, 12, 0)
    assert batch.step == 7 and batch.group.tolist() == [0, 1, 2, 3, 4]
    assert batch.reward.isnan().all() and batch.sampler_logp.isnan().all() and batch.old_logp.isnan().all()
    assert batch.completion_mask.sum(-1).tolist() == [4] * 5 and batch.expected is None


def test_answers_of_a_file_are_drawn_by_weight(policy: str, tmp_path: Path) -> None:
    source = written(
        tmp_path,
        {"prompt": "1:", "completion": "A"},
        {"prompt": "1:", "completion": "B", "weight": 3},
        {"prompt": "2:", "chosen": "C", "rejected": "D"},
    )
    drawn_experts = experts(Letters(), load(policy), source, 2, 0)
    count = Counter(
        prompt_and_text for step in range(1, 401) for prompt_and_text in texts(policy, drawn_experts, step)
    )
    count_by_prompt = Counter(
        {prompt: sum(n for (p, _), n in count.items() if p == prompt) for prompt in ("1:", "2:")}
    )
    assert count_by_prompt == {"1:": 400, "2:": 400}
    by_answer = {answer[0]: number for (_, answer), number in count.items()}
    assert by_answer.keys() == {"A", "B", "C"} and 250 < by_answer["B"] < 350  # 300 expected, deviation 9


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "holds no answer"),
        ([{"prompt": "1:", "completion": "A" * 100}], "beyond the model's"),
        ([{"prompt": "1:", "completion": "A"}, {"prompt": "2:"}], r":2: needs the texts .* or chosen"),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    lines: list[object], message: str, policy: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        experts(Letters(), load(policy), written(tmp_path, *lines), 2, 0)


def test_a_task_without_references_says_what_to_set(policy: str, tmp_path: Path) -> None:
    class Silent(Letters):
        def demonstrate(self, problem: Problem) -> str:
            raise NotImplementedError

    with pytest.raises(DataError, match=r"letters has no reference answers.*set train\.experts"):
        experts(Silent(), load(policy), "reference", 2, 0)
    source = written(tmp_path, {"prompt": "1:", "completion": "A"})
    assert len(experts(Silent(), load(policy), source, 2, 0).draw(1)) == 2


# What they are in a run


def test_they_count_in_what_is_trained_and_nowhere_else(policy: str, tmp_path: Path) -> None:
    """With a share of 0 the run is GRPO's, row by row, but for the cost of the experts."""
    nothing = CHORD(expert_answers=5, mu_peak=0.0, mu_valley=0.0)
    plain = GRPO(averaging="token_mean", epsilon=1e-6)
    beside = run(config_of(policy, algorithm=nothing), tmp_path / "chord")
    alone = run(configure(policy, plain, train=SHORT, evaluate=QUIET), tmp_path / "grpo")
    dearer = ("cost/trained_tokens", "cost/flops")
    for step, (mixed_row, two) in enumerate(zip(beside, alone, strict=True)):
        mine = {key for key in mixed_row if key.startswith("expert/")}
        assert mine == ({"expert/nll", "expert/share", "expert/token_weight"} if step else set())
        ours = {key: value for key, value in timeless(mixed_row).items() if key not in (*mine, *dearer)}
        assert ours == {key: value for key, value in timeless(two).items() if key not in dearer}
        # Five answers of three letters and the end token a step.
        assert not step or mixed_row["cost/trained_tokens"] - two["cost/trained_tokens"] == 5 * 4 * step
        assert not step or mixed_row["cost/flops"] > two["cost/flops"]
    ends = [(tmp_path / name / "final/policy.safetensors").read_bytes() for name in ("chord", "grpo")]
    assert ends[0] == ends[1]


def test_their_likelihood_rises(policy: str, tmp_path: Path) -> None:
    sure = CHORD(expert_answers=8, mu_peak=0.9, mu_valley=0.9, token_weight="none")
    longer = dataclasses.replace(config_of(policy, algorithm=sure), train=dataclasses.replace(SHORT, steps=6))
    nll = [row["expert/nll"] for row in run(longer, tmp_path)[1:]]
    assert nll[-1] < nll[0] - 0.3


def test_a_run_stopped_between_its_steps_is_the_undisturbed_one(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpobench.runs.train.stopping.ASK", 0.0)
    source = written(tmp_path, *({"prompt": f"{i}:", "completion": c} for i in range(7) for c in "ABC"))
    quiet_evaluation = EvaluateConfig(every=0, problems=2, samples=1, test_problems=0)
    config = dataclasses.replace(config_of(policy, source), evaluate=quiet_evaluation)
    assert stopped(config, tmp_path / "parts", Told(1, "sampling", 1)) == [1]
    assert stopped(config, tmp_path / "parts", Told(2, "training", 1))
    assert carry(config, tmp_path / "parts") == carry(config, tmp_path / "whole")


def test_a_file_has_a_fingerprint_and_its_prompts_are_compared_with_those_evaluated(
    policy: str, tmp_path: Path
) -> None:
    task = Letters()
    tested = task.problems("validation")[1]
    source = written(
        tmp_path, {"prompt": tested.prompt, "completion": "A"}, {"prompt": "9:", "completion": "A"}
    )
    config = config_of(policy, source)
    config = dataclasses.replace(
        config, evaluate=EvaluateConfig(every=0, problems=3, samples=1, test_problems=0)
    )
    with pytest.warns(UserWarning, match="evaluated with: {'validation': 1}"):
        run(config, tmp_path / "run")
    before = fingerprints.Today().of(config)["expert file"]
    written(tmp_path, {"prompt": "9:", "completion": "B"})
    assert fingerprints.Today().of(config)["expert file"] != before
    assert "expert file" not in fingerprints.Today().of(config_of(policy))
