"""Rewards: components and their sums, the proxy, learned models, and what happens when one fails."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from helpers.graded import LOADED, TOKENIZER, make_rollouts
from helpers.logs import is_metric
from helpers.scorers import save_scorer
from helpers.toys import Letters
from helpers.whole_runs import configure, run

from grpobench.algorithms.grpo import GRPO
from grpobench.runs.metrics.rollout_metrics import group_metrics
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.reward import grader as rewards
from grpobench.runs.reward import model as tiny_reward
from grpobench.runs.reward import proxy
from grpobench.runs.reward.grader import Grader, RewardError
from grpobench.runs.reward.model import Scorer
from grpobench.runs.sample.rollouts import Group, pack_groups
from grpobench.runs.settings import config as runs_config
from grpobench.runs.settings import registries
from grpobench.runs.settings.config import (
    EvaluateConfig,
    RewardConfig,
    RunConfig,
)
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.rules import incompatible, unrewarded
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.arithmetic import Arithmetic
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.nanobias import NanoBias
from grpobench.tasks.task import Problem, Task, Verdict

PROBLEM = Problem("p", "Q", None)


def grader(reward: RewardConfig, task: Task | None = None, seed: int = 0) -> Grader:
    return Grader(task or Letters(), reward, LOADED, seed)


def group(reward: RewardConfig, *texts: str, task: Task | None = None) -> Group:
    return grader(reward, task).groups(["s"], [PROBLEM], [make_rollouts(*texts)])[0]


def test_an_accuracy_beyond_one_stops_the_run_and_names_the_problem() -> None:
    @dataclasses.dataclass(frozen=True)
    class Generous(Letters):
        def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
            return [Verdict(dict.fromkeys(self.scores, 7.0), None) for _ in completions]

    with pytest.raises(
        DataError, match=r"`correct` must be from 0 to 1, but its verifier gave 7 for problem p"
    ):
        group(RewardConfig(), "a", "b", task=Generous())


# The proxy


def test_proxy_is_the_documented_sum() -> None:
    text = "So 7+8=15, clearly.\n\nPerhaps 15-19=-4."
    counts = {"length": 38, "words": 3, "lines": 2, "digits": 9, "equations": 2, "hedges": 1, "assurances": 1}
    assert {name: count(text) for name, count in proxy.FEATURES.items()} == counts
    # 1 · 9/(9+9) − 0.5 · 1/(1+9)
    assert proxy.proxy(text, {"digits": 1.0, "hedges": -0.5}, 9.0) == pytest.approx(0.45)
    assert proxy.proxy("", {"digits": 1.0, "length": 2.0}, 8.0) == 0


def test_every_feature_of_the_settings_is_defined() -> None:
    assert set(proxy.FEATURES) == set(get_args(runs_config.Feature))


def test_proxy_reads_only_what_the_policy_wrote() -> None:
    rollout = dataclasses.replace(make_rollouts("1234")[0], completion_mask=(True, True, False, True))
    graded_group = grader(RewardConfig(kind="proxy", proxy_half=3.0)).groups(["s"], [PROBLEM], [[rollout]])[0]
    assert graded_group.reward == [0.5]  # three digits of its own: 3/(3+3)


# Components


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("task", [1.0, 0.0]),  # "AAAAAA" is correct, "zz" is not; both as graded by the task
        ("flipped", [0.0, 1.0]),
        ("constant", [1.0, 1.0]),
        ("proxy", [0.0, 0.0]),  # no digits
    ],
)
def test_kinds_of_reward(kind: Any, expected: list[float]) -> None:
    graded_group = group(RewardConfig(kind=kind), "AAAAAA", "zz")
    assert graded_group.reward == expected
    name = "correct" if kind == "task" else kind
    assert graded_group.components == {name: expected}
    assert [verdict.scores["correct"] for verdict in graded_group.verdicts] == [1.0, 0.0]


def test_format_alone_ignores_whether_the_answer_is_right() -> None:
    task = Arithmetic()
    problem = task.problems("train")[0]
    right, wrong = f"#{problem.truth}", f"#{problem.truth + 1}"
    graded_group = grader(RewardConfig(kind="format"), task).groups(
        ["s"], [problem], [make_rollouts(right, wrong, "none")]
    )[0]
    assert graded_group.reward == [1.0, 1.0, 0.0]
    assert [verdict.scores["correct"] for verdict in graded_group.verdicts] == [1.0, 0.0, 0.0]


def test_sum_weighs_scores_and_components_and_measures_what_weighs_nothing() -> None:
    weights = {"correct": 2.0, "short": 0.0, "proxy": -0.5, "flipped": 3.0, "constant": 0.25}
    graded_group = group(RewardConfig(kind="sum", weights=weights, proxy_half=2.0), "AA12", "zz")
    # "AA12" has only characters below "P": 2·1 − 0.5·2/(2+2) + 3·0 + 0.25; "zz": 2·0 − 0.5·0 + 3·1 + 0.25
    assert graded_group.reward == pytest.approx([2.0, 3.25])
    assert graded_group.components["short"] == [1.0, 1.0] and graded_group.components["proxy"] == [0.5, 0.0]
    batch = pack_groups([graded_group], 8, 1, 0)
    assert batch.scores["proxy"].tolist() == [0.5, 0.0]  # what an algorithm may ask for by name
    assert batch.scores["correct"].tolist() == [1.0, 0.0]


def test_coins_depend_on_seed_stream_problem_and_place_but_not_on_batch() -> None:
    reward = RewardConfig(kind="random", probability=0.5)
    texts = ["A"] * 32
    coins = grader(reward).groups(["s"], [PROBLEM], [make_rollouts(*texts)])[0].reward
    both = grader(reward).groups(["t", "s"], [PROBLEM] * 2, [make_rollouts(*texts), make_rollouts(*texts)])
    assert both[1].reward == coins != both[0].reward
    assert grader(reward, seed=1).groups(["s"], [PROBLEM], [make_rollouts(*texts)])[0].reward != coins
    assert 6 <= sum(coins) <= 26  # 32 fair coins: 16 ± 3.5 standard deviations


def test_majority_pays_for_the_answer_that_most_of_the_group_give_right_or_wrong() -> None:
    task = Arithmetic()
    first, second = task.problems("train")[:2]
    wrong = f"#{first.truth + 1}"
    sampled = [
        make_rollouts(
            f"#{first.truth}", wrong, "none", wrong, f"1+1=3#{first.truth + 1}"
        ),  # by the answer, not the text
        make_rollouts(
            f"#{second.truth}", f"#{second.truth - 1}", "none", "none", "none"
        ),  # unreadable ones do not vote
    ]
    groups = grader(RewardConfig(kind="majority"), task).groups(["s", "s"], [first, second], sampled)
    assert groups[0].reward == [0.0, 1.0, 0.0, 1.0, 1.0]
    assert groups[1].reward == [1.0, 0.0, 0.0, 0.0, 0.0]  # the first of equally frequent ones
    nothing = grader(RewardConfig(kind="majority"), task).groups(
        ["s"], [first], [make_rollouts("none", "none")]
    )
    assert nothing[0].reward == [0.0, 0.0]


# What is refused


@pytest.mark.parametrize(
    ("sets", "remedy"),
    [
        (["reward.kind=sum", "reward.weights.model=1"], "reward.model: must name the reward model"),
        (["reward.kind=model", "reward.model=nano"], "reward.model: no folder nano; give a local folder, a"),
        (
            ["reward.kind=model", f"reward.model={__file__}"],
            "test_grader.py is a file; a reward model is a f",
        ),
    ],
)
def test_a_reward_that_cannot_be_is_refused_with_a_remedy(sets: list[str], remedy: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_recipe("quickstart", sets)
    assert all(remedy in fault for fault in refused.value.faults), refused.value.faults


@pytest.mark.parametrize("kind", ["format", "flipped"])
def test_controls_need_the_score_that_they_are_made_of(kind: Any) -> None:
    @dataclasses.dataclass(frozen=True)
    class Silent(Letters):
        scores = ("short",)
        reward = types.MappingProxyType({"short": 1.0})

    messages = incompatible(configure("nano", task=Silent(), reward=RewardConfig(kind=kind)))
    assert len(messages) == 1 and f"the reward {kind} is made of the score" in messages[0]
    assert incompatible(configure("nano", task=NanoBias(), reward=RewardConfig(kind=kind))) == []


def test_an_algorithm_may_need_a_component_as_it_needs_a_score() -> None:
    class Decoupled(GRPO):
        scores = frozenset({"correct", "proxy"})

    lacking = incompatible(configure("nano", Decoupled()))
    assert len(lacking) == 1 and "needs the task scores proxy" in lacking[0]
    both = RewardConfig(kind="sum", weights={"correct": 1.0, "proxy": 0.0})
    assert incompatible(configure("nano", Decoupled(), reward=both)) == []


def test_no_task_has_a_score_that_a_component_or_metric_is_called() -> None:
    taken = {*runs_config.COMPONENTS, rewards.CUT, "mean", "std", "failed"}
    for name, task in registries.tasks().items():
        assert not taken & set(task.scores), name


# Failures


@dataclasses.dataclass(frozen=True)
class Brittle(Letters):
    """Raises for every group with a completion that begins with "!"."""

    error: type[Exception] = ValueError

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        if any(text.startswith("!") for text in completions):
            raise self.error("cannot grade this")
        return super().verify(problem, completions)


def test_sample_with_raising_verifier_is_masked_and_others_keep_grades() -> None:
    graded_group = group(RewardConfig(), "AAAAAA", "!", "zz", task=Brittle())
    assert [verdict.outcome for verdict in graded_group.verdicts] == ["graded", "infra_error", "graded"]
    assert [graded_group.reward[0], graded_group.reward[2]] == [1.0, 0.0]
    assert math.isnan(graded_group.components["correct"][1])
    batch = pack_groups([graded_group], 8, 1, 0)
    assert batch.reward.tolist() == [1.0, 0.0]
    row = group_metrics([graded_group])
    assert row["reward/failed"] == pytest.approx(1 / 3) and row["reward/correct"] == 0.5
    assert row["outcome/infra_error"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_reward_that_is_not_finite_masks_its_sample_only(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(grader: Grader, completion: Any) -> float:
        return value if completion.index == 1 else 0.25

    monkeypatch.setitem(rewards.CONTROLS, "proxy", odd)
    graded_group = group(RewardConfig(kind="proxy"), "AAAAAA", "AAAAAA", "zz")
    assert [verdict.outcome for verdict in graded_group.verdicts] == ["graded", "infra_error", "graded"]
    assert (
        graded_group.verdicts[1].scores["correct"] == 1.0
    )  # the verdict itself was sound, and stays on record
    assert pack_groups([graded_group], 8, 1, 0).reward.tolist() == [0.25, 0.25]


def test_more_than_one_percent_of_200_stops_the_run() -> None:
    brittle_grader = grader(RewardConfig(), Brittle())

    def grade(failures: int, sound: int) -> None:
        brittle_grader.groups(["s"], [PROBLEM], [make_rollouts(*["!"] * failures, *["A"] * sound)])

    grade(failures=2, sound=198)
    grade(failures=0, sound=199)  # of the last 200 one was a failure
    grade(failures=1, sound=5)
    with pytest.raises(
        RewardError, match=r"failed for 3 of the last 200 .* with ValueError: cannot grade this"
    ):
        grade(failures=2, sound=0)


def test_failures_are_counted_in_evaluations_too() -> None:
    brittle_grader = grader(RewardConfig(), Brittle())
    (verdicts,) = brittle_grader.verify_all([PROBLEM], [make_rollouts("!", "A", "!")])
    assert [verdict.outcome for verdict in verdicts] == ["infra_error", "graded", "infra_error"]
    with pytest.raises(RewardError):
        brittle_grader.verify_all([PROBLEM], [make_rollouts("!")])


def test_bad_data_are_the_users_to_mend_and_no_failure() -> None:
    with pytest.raises(DataError, match="cannot grade this"):
        group(RewardConfig(), "!", task=Brittle(error=DataError))


# Learned models


def scorer(model_path: str, **settings: Any) -> Scorer:
    return Scorer(RewardConfig(kind="model", model=model_path, **settings), Letters(), "cpu")


PAIRS = [("1+1=", "2"), ("12+34=", "12+34=46 #46"), ("7", ""), ("9-4=", "five"), ("2*3=", "6, I think")]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_score_does_not_depend_on_padding_or_on_the_batch(kind: str, tmp_path: Path) -> None:
    """Transformers' own logits of one text at a time, which needs no padding, against ours in batches."""
    import transformers

    model_path = save_scorer(tmp_path, kind)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(model_path).eval()
    expected = []
    for prompt, completion in PAIRS:
        text = (prompt, completion) if kind == "bert" else (f"{prompt}{completion}<eos>",)
        with torch.no_grad():
            expected.append(model(**tokenizer(*text, return_tensors="pt")).logits.item())
    assert np.std(expected) > 0.01
    for rows in (1, 2, 64):
        scores = [score.value for score in scorer(model_path, model_batch=rows).score(PAIRS)]
        assert scores == pytest.approx(expected, abs=1e-5)  # float32; padding changes the order of sums


def test_chat_template_is_used_where_there_is_one(tmp_path: Path) -> None:
    template = "{% for m in messages %}[{{ m['role'][0] }}]{{ m['content'] }}{% endfor %}."
    model_path = save_scorer(tmp_path, template=template)
    chat_scorer = scorer(model_path)
    assert TOKENIZER.decode(chat_scorer.encode("1+1=", "2")[0]["input_ids"]) == "[u]1+1=[a]2."
    plain = scorer(model_path, model_input="text")
    assert plain.encode("1+1=", "2")[0]["input_ids"] == [*TOKENIZER.encode("1+1=2"), 1]
    assert chat_scorer.score(PAIRS[:1])[0].value != plain.score(PAIRS[:1])[0].value


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_text_beyond_the_context_loses_its_beginning_and_is_counted(kind: str, tmp_path: Path) -> None:
    reward_scorer = scorer(save_scorer(tmp_path, kind))
    prompt = "".join(str(i % 10) for i in range(100))
    fed, cut = reward_scorer.encode(prompt, "=42")
    assert cut and len(fed["input_ids"]) == 48
    shown = reward_scorer.tokenizer.decode(fed["input_ids"], skip_special_tokens=True).replace(" ", "")
    assert (prompt + "=42").endswith(shown)
    assert [score.cut for score in reward_scorer.score([(prompt, "=42"), ("1", "2")])] == [True, False]


def test_folder_that_is_no_reward_model_is_refused(tmp_path: Path) -> None:
    import transformers
    from safetensors.torch import load_file, save_file

    with pytest.raises(ModelError, match="has 2 outputs, not one"):
        scorer(save_scorer(tmp_path / "two", labels=2))
    headless = Path(save_scorer(tmp_path / "headless"))
    weights = load_file(headless / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, headless / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"has no trained weights for score\.weight"):
        scorer(str(headless))
    small = transformers.LlamaConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    transformers.LlamaForCausalLM(small).save_pretrained(tmp_path / "language")
    with pytest.raises(ModelError, match=r"holds a LlamaForCausalLM, no reward model"):
        scorer(str(tmp_path / "language"))
    truncated = Path(save_scorer(tmp_path / "truncated")) / "model.safetensors"
    truncated.write_bytes(truncated.read_bytes()[:1000])
    with pytest.raises(ModelError, match="could not be loaded"):
        scorer(str(truncated.parent))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        scorer(str(tmp_path / "empty"))
    with pytest.raises(ModelError, match="has no chat template; set it to"):
        scorer(save_scorer(tmp_path / "plain"), model_input="chat")


# The tiny model


def test_synthetic_preferences_are_confirmed_by_the_verifier() -> None:
    task = Arithmetic(train=200)
    drawn = list(tiny_reward.pairs(task, "train", 100, seed=0))
    problems = {problem.prompt: problem for problem in task.problems("train")}
    assert len(drawn) == len({pair.prompt for pair in drawn}) == 100
    for pair in drawn:
        grades = task.verify(problems[pair.prompt], [pair.chosen, pair.rejected])
        assert [verdict.scores["correct"] for verdict in grades] == [1.0, 0.0]
    slips = [p for p in drawn if len(p.chosen) == len(p.rejected)]
    assert len(slips) > 20  # the hard kind: one wrong character in a whole answer


def test_preferences_of_another_score_do_not_tell_right_from_wrong() -> None:
    task = Arithmetic(train=300, unsupported=0.5)
    drawn = list(tiny_reward.pairs(task, "train", 200, seed=0, score="consistent"))
    problems = {problem.prompt: problem for problem in task.problems("train")}
    right: dict[str, list[float]] = {"chosen": [], "rejected": []}
    for pair in drawn:
        chosen, rejected = task.verify(problems[pair.prompt], [pair.chosen, pair.rejected])
        assert chosen.scores["consistent"] > 0 and rejected.scores["consistent"] == 0
        right["chosen"].append(chosen.scores["correct"])
        right["rejected"].append(rejected.scores["correct"])
    shares = {side: np.mean(values) for side, values in right.items()}
    assert 0.3 < shares["chosen"] < 0.8 and shares["rejected"] > 0.15  # neither side is right or wrong alone


def test_scores_that_a_model_cannot_learn_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"model_learns: task arithmetic gives no score politeness; choose from"
    ):
        list(tiny_reward.pairs(Arithmetic(train=20), "train", 2, seed=0, score="politeness"))
    learned = RewardConfig(kind="model", model="tiny", model_learns="consitent")
    (fault,) = unrewarded(learned, Arithmetic(), "arithmetic gives consistent")
    assert "did you mean consistent?" in fault
    with pytest.raises(ValueError, match="model_learns: only the model 'tiny' is trained here"):
        RewardConfig(kind="model", model="some/folder", model_learns="consistent")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny reward model after a few updates."""
    settings = tiny_reward.RewardModelSettings(pairs=96, steps=16, batch=8, held_out=48)
    return tiny_reward.train_tiny_model(
        Arithmetic(train=400, validation=100), tmp_path_factory.mktemp("tiny"), settings
    )


def test_tiny_reward_model_learns_to_prefer_and_is_made_once(tiny: Path) -> None:
    record = json.loads((tiny / "provenance.json").read_text())
    losses = record["loss"]
    assert losses[0] == pytest.approx(math.log(2), abs=0.5)  # an untrained head: −log ½ and its noise
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert record["held_out_accuracy"] > 0.62  # 48 coins: 0.5 ± 0.07
    stamp = (tiny / "model.safetensors").stat().st_mtime_ns
    settings = tiny_reward.RewardModelSettings(**record["settings"])
    assert tiny_reward.train_tiny_model(Arithmetic(train=400, validation=100), tiny.parent, settings) == tiny
    assert (tiny / "model.safetensors").stat().st_mtime_ns == stamp
    assert [path.name for path in tiny.parent.iterdir()] == [tiny.name]  # nothing half-made beside it


def test_tiny_reward_model_is_read_like_any_other(tiny: Path) -> None:
    task = Arithmetic(train=400, validation=100)
    drawn = list(tiny_reward.pairs(task, "validation", 32, seed=5))
    reward_scorer = scorer(str(tiny))
    right, wrong = (
        [score.value for score in reward_scorer.score([(p.prompt, getattr(p, side)) for p in drawn])]
        for side in ("chosen", "rejected")
    )
    model, tokenizer = reward_scorer.model, reward_scorer.tokenizer
    with torch.no_grad():
        margins = tiny_reward.margins(model, tokenizer, drawn)
    assert np.subtract(right, wrong) == pytest.approx(margins.numpy(), abs=1e-4)


# Whole runs


def small_run(policy: str, reward: RewardConfig, task: Task | None = None) -> RunConfig:
    evaluate = EvaluateConfig(every=0, problems=2, samples=1, test_problems=0, greedy=False)
    return configure(policy, reward=reward, task=task or Letters(), evaluate=evaluate)


def test_run_on_a_learned_reward_logs_every_component_beside_the_verdict(policy: str, tmp_path: Path) -> None:
    model_path = save_scorer(tmp_path / "scorer")
    weights = {"correct": 0.0, "model": 0.5, "proxy": 0.25, "flipped": 0.125}
    reward = RewardConfig(kind="sum", weights=weights, model=model_path, proxy={"length": 1.0})
    run_rows = run(small_run(policy, reward), tmp_path / "run")
    assert not {key for row in run_rows for key in row if not is_metric(key)}
    for row in run_rows[1:]:
        total = sum(weight * row[f"reward/{name}"] for name, weight in weights.items())
        assert row["reward/mean"] == pytest.approx(total, abs=1e-6)
        assert row["reward/correct"] == row["score/correct"] == pytest.approx(1 - row["reward/flipped"])
        assert row["reward/model_cut"] == row["reward/failed"] == 0
        assert 0 <= row["reward/model_auc/correct"] <= 1
        assert row["grad_norm/policy"] > 0
    assert run_rows[0]["eval/validation/sampled/correct"] >= 0
    provenance = json.loads((tmp_path / "run" / "provenance.json").read_text())["attempts"][-1][
        "reward_model"
    ]
    assert provenance["name"] == model_path and len(provenance["sha256"]) == 64


def test_run_whose_reward_keeps_failing_stops(policy: str, tmp_path: Path) -> None:
    class Broken(Letters):
        def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
            if problem.id.startswith("train"):
                raise ZeroDivisionError("a bug of the user's")
            return super().verify(problem, completions)

    with pytest.raises(RewardError, match="ZeroDivisionError: a bug of the user's"):
        run(small_run(policy, RewardConfig(), Broken()), tmp_path)
