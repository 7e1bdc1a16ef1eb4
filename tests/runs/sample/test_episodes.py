"""Episodes of several turns: how they are played, laid out, graded, learned from and shown.

The layouts are written out by hand over the nano policy's characters, where "$" stands for its end token.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.logs import is_metric
from helpers.sampling import texts
from helpers.whole_runs import run, transcript

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Mixer
from grpobench.runs.metrics.evaluator import Evaluator
from grpobench.runs.metrics.rollout_metrics import gap_metrics, group_metrics, length_metrics
from grpobench.runs.metrics.turns import turn_metrics
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.reward.grader import Grader
from grpobench.runs.sample.episodes import (
    Episode,
    conversation,
    demonstrated,
    episodes,
    play,
    policy_turns,
    reply_tokens,
)
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Group, Rollout, pack_groups, pad_rows
from grpobench.runs.sample.sampler import GREEDY, Request, Sampler
from grpobench.runs.settings.config import EvaluateConfig, ModelConfig, RewardConfig
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.horizon import Horizon
from grpobench.tasks.task import Problem, Split, Task, Verdict

START = "table aaadc start 412\n"
END = "$"


@cache
def nano() -> Loaded:
    return load("nano")


def by_hand(**settings: int) -> tuple[Horizon, Problem]:
    """The chain 412 +7 419 -9 410; 411 is not in the table."""
    return Horizon(steps=2, **settings), Problem("x", START, {"keys": [412, 419, 410], "table": "aaadc"})


def tokens(text: str) -> tuple[int, ...]:
    """Characters of the nano policy; "$" is its end token."""
    loaded = nano()
    return tuple(
        loaded.end[0] if c == END else loaded.tokenizer.encode(c, add_special_tokens=False)[0] for c in text
    )


class Scripted(Sampler):
    """A sampler that writes what `script` gives for (seed, history); it keeps the calls."""

    def __init__(self, script: Callable[[int, str], str]) -> None:
        self.script = script
        self.calls: list[tuple[list[Request], int, float]] = []

    def sample(
        self, requests: Sequence[Request], limit: int, temperature: float, mixer: Mixer | None = None
    ) -> list[list[Rollout]]:
        self.calls.append((list(requests), limit, temperature))
        return [[self.write(request.prompt, seed, limit) for seed in request.seeds] for request in requests]

    def write(self, prompt: tuple[int, ...], seed: int, limit: int) -> Rollout:
        history = "".join(END if t in nano().end else nano().tokenizer.decode([t]) for t in prompt)
        turn = tokens(self.script(seed, history))[:limit]
        logp = -0.25 - np.arange(len(turn), dtype=np.float32)
        return Rollout(prompt, turn, logp, bool(turn) and turn[-1] in nano().end)


def turn_by_turn(*turns: str) -> Scripted:
    """Writes the turns in order, whatever is replied."""
    left = list(turns)
    return Scripted(lambda seed, history: left.pop(0))


def played(sampler: Any, limit: int = 200, **settings: int) -> Rollout:
    task, problem = by_hand(**settings)
    ((rollout,),) = episodes(sampler, nano(), task, [problem], [(7,)], limit, 1.0)
    return rollout


def layout(rollout: Rollout) -> list[tuple[str, str]]:
    """(by whom, text) of each stretch, with the end token as "$"."""
    stretches: list[tuple[str, str]] = []
    for token, is_policy in zip(rollout.completion, rollout.completion_mask, strict=True):
        character = END if token in nano().end else nano().tokenizer.decode([token])
        who = "policy" if is_policy else "tool"
        if stretches and stretches[-1][0] == who:
            stretches[-1] = (who, stretches[-1][1] + character)
        else:
            stretches.append((who, character))
    return stretches


# Layout


def test_completion_holds_turns_and_replies_and_marks_policy_tokens() -> None:
    rollout = played(turn_by_turn("?412$", "?419$", "=410$"))
    assert rollout.prompt == tokens(START)
    assert layout(rollout) == [
        ("policy", "?412$"),
        ("tool", "+7\n"),
        ("policy", "?419$"),
        ("tool", "-9!\n"),
        ("policy", "=410$"),
    ]
    assert rollout.stopped
    turn = [-0.25, -1.25, -2.25, -3.25, -4.25]
    assert rollout.sampler_logp.tolist() == [*turn, 0, 0, 0, *turn, 0, 0, 0, 0, *turn]
    assert rollout.sampler_logp.dtype == np.float32
    assert (rollout.length, rollout.turns, len(rollout.completion)) == (15, 3, 22)
    assert rollout.written_tokens == tokens("?412$?419$=410$")
    assert policy_turns(nano(), by_hand()[1], rollout) == ["?412", "?419", "=410"]


def test_greedy_episode_is_greedy_in_every_turn() -> None:
    """ReMax's baseline would be a sample of the policy behind its first turn otherwise."""
    sampler = turn_by_turn("?412$", "?419$", "=410$")
    task, problem = by_hand()
    episodes(sampler, nano(), task, [problem], [(GREEDY,)], 200, 1.0)
    assert [request.seeds for requests, _, _ in sampler.calls for request in requests] == [(GREEDY,)] * 3


@pytest.mark.parametrize(
    ("turns", "settings", "expected", "stopped"),
    [
        # What was sampled behind the newline never was; a newline in front of an action ends nothing.
        (
            ("?412\n+9\n", "\n?419$", "=410\nab"),
            {},
            ["?412\n", "$+7\n", "\n?419$", "-9!\n", "=410\n"],
            True,
        ),
        (("I look up 412", "=410$"), {}, ["I look u", "$error\n", "=410$"], True),  # the limit of a turn
        (("?411$",) * 4, {"spare": 1}, ["?411$", "none\n"] * 3 + ["?411$"], False),  # out of turns
        (("?412$",), {"limit": 3}, ["?41"], False),
        (("=410$",), {}, ["=410$"], True),
    ],
    ids=["a newline", "a cut turn", "the last turn", "a limit below a turn", "an answer at once"],
)
def test_turns_and_replies_alternate_until_the_end(
    turns: tuple[str, ...], settings: dict[str, int], expected: list[str], stopped: bool
) -> None:
    rollout = played(turn_by_turn(*turns), **settings)
    authors = itertools.cycle(("policy", "tool"))
    assert layout(rollout) == list(zip(authors, expected, strict=False))
    assert rollout.stopped == stopped, "whether the environment ended it"
    assert not rollout.sampler_logp[~np.array(rollout.completion_mask)].any()


@pytest.mark.parametrize("limit", [8, 15, 16, 17, 40])
def test_episode_stays_within_limit_and_is_cut_where_no_whole_turn_fits(limit: int) -> None:
    """Turn and reply have 5 + 3 tokens here, and a turn may have 8: the second begins when 16 fit."""
    rollout = played(Scripted(lambda seed, history: "?412$"), limit)
    assert len(rollout.completion) <= limit
    assert rollout.turns == max(1, min(7, 1 + (limit - 8) // 8))
    assert rollout.completion_mask[-1] and not rollout.stopped


def test_episode_that_cannot_fit_the_context_is_refused() -> None:
    with pytest.raises(DataError, match=r"prompt of 22 tokens and an episode of 1003 exceed .* 1024; give"):
        played(turn_by_turn(), limit=1003)


@dataclasses.dataclass(frozen=True)
class Mute(Horizon):
    """An environment at fault."""

    def reply(self, problem: Problem, turns: Sequence[str]) -> str | None:
        return ""


def test_empty_reply_is_refused() -> None:
    _, problem = by_hand()
    with pytest.raises(ValueError, match="task horizon: an environment's reply must not be empty"):
        episodes(turn_by_turn("?412$"), nano(), Mute(), [problem], [(1,)], 50, 1.0)


# Playing


def test_equal_histories_are_one_request_and_every_turn_has_its_own_seed() -> None:
    task, problem = by_hand()
    right = {"start 412\n": "?412$", "+7\n": "?419$", "-9!\n": "=410$", "none\n": "?412$"}

    def script(seed: int, history: str) -> str:
        if seed == 3:
            return "?411$"
        return next(turn for end, turn in right.items() if history.endswith(end))

    sampler = Scripted(script)
    ((of_seed_1, of_seed_2, of_seed_3),) = episodes(sampler, nano(), task, [problem], [(1, 2, 3)], 200, 0.7)
    assert [rollout.turns for rollout in (of_seed_1, of_seed_2, of_seed_3)] == [3, 3, 4]
    assert (of_seed_1.completion, of_seed_1.stopped) == (of_seed_2.completion, True)
    requests = [[(request.prompt, request.seeds) for request in call[0]] for call in sampler.calls]
    start, first = tokens(START), tokens("?412$+7\n")
    later = [[derive(seed, "turn", turn) for seed in (1, 2, 3)] for turn in range(4)]
    assert requests == [
        [(start, (1, 2, 3))],
        [((*start, *first), tuple(later[1][:2])), ((*start, *tokens("?411$none\n")), (later[1][2],))],
        [
            ((*start, *first, *tokens("?419$-9!\n")), tuple(later[2][:2])),
            ((*start, *tokens("?411$none\n?412$+7\n")), (later[2][2],)),
        ],
        [((*start, *tokens("?411$none\n?412$+7\n?419$-9!\n")), (later[3][2],))],
    ]
    assert all(call[1:] == (8, 0.7) for call in sampler.calls)


def test_task_of_one_turn_is_sampled_as_before() -> None:
    task = dataclasses.replace(Single(), train=2)
    sampler = Scripted(lambda seed, history: "ab$")
    groups = episodes(sampler, nano(), task, task.problems("train"), [(1, 2), (3,)], 30, 0.5)
    assert [len(row) for row in groups] == [2, 1]
    assert all(rollout.completion_mask == () for row in groups for rollout in row)
    assert [call[1:] for call in sampler.calls] == [(30, 0.5)]
    assert conversation(nano(), task.problems("train")[0], groups[0][0]) == {}
    assert policy_turns(nano(), task.problems("train")[0], groups[0][0]) == ["ab"]
    assert policy_turns(nano(), task.problems("train")[0], Rollout((1,), (), np.zeros(0), False)) == [""]


@dataclasses.dataclass(frozen=True)
class Single(Task):
    name = "single"
    source = "this file"
    summary = "one turn"
    scores = ("correct",)
    max_completion_tokens = 30
    train: int = 2

    def problems(self, split: Split) -> Sequence[Problem]:
        return [Problem(str(i), f"{i}:", i) for i in range(self.train)]

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return [Verdict({"correct": float(text == "ab")}, text) for text in completions]

    def demonstrate(self, problem: Problem) -> str:
        return "ab"


def test_defaults_make_a_task_of_one_turn_an_episode() -> None:
    task = Single()
    (problem, _) = task.problems("train")
    assert task.turns == 1 and task.reply(problem, ["x"]) is None
    assert task.demonstrate_episode(problem) == ("ab",)
    verdicts = task.verify_episodes(problem, [["x", "ab"], ["ab", "x"], []])
    assert [verdict.scores["correct"] for verdict in verdicts] == [1, 0, 0]


@cache
def policy() -> HFSampler:
    """The nano policy, which has never seen the task: its turns are noise."""
    return HFSampler(RoleModels(nano().model), nano().end, nano().pad, 256, nano().context)


def noise(problems: int, samples: int, temperature: float = 1.0) -> list[list[Rollout]]:
    task = Horizon(steps=2, spare=1, train=problems)
    seeds = [tuple(derive(0, "test", i, j) for j in range(samples)) for i in range(problems)]
    task_problems = task.problems("train")
    return episodes(policy(), nano(), task, task_problems, seeds, task.max_completion_tokens, temperature)


def test_episodes_do_not_depend_on_what_else_is_played() -> None:
    """The same seeds alone and among others; probabilities to rounding of another batch."""
    together, alone = noise(3, 3), noise(1, 2)
    assert any(rollout.turns > 1 for rollout in alone[0])
    for alone_rollout, other in zip(alone[0], together[0], strict=False):
        assert alone_rollout.completion == other.completion
        assert alone_rollout.completion_mask == other.completion_mask
        np.testing.assert_allclose(alone_rollout.sampler_logp, other.sampler_logp, atol=1e-4)


@pytest.mark.filterwarnings("ignore:out of memory")
def test_episodes_are_played_in_portions_of_the_samplers_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight episodes with `max_batch_size` 4: four are played to their ends, then four. Where every portion
    halves the size for lack of memory: 4, 2, 1, 1. The tokens are those of eight at once."""
    together, played = noise(4, 2), list[int]()

    def counted(live: Sequence[Episode], sampler: HFSampler, *more: Any) -> None:
        played.append(len(live))
        play(live, sampler, *more)
        if sizes == [4, 2, 1, 1]:
            sampler.token_budget.lower(4, "no memory")

    monkeypatch.setattr("grpobench.runs.sample.episodes.play", counted)
    for sizes in ([4, 4], [4, 2, 1, 1]):
        portioned = HFSampler(RoleModels(nano().model), nano().end, nano().pad, 4, nano().context)
        monkeypatch.setitem(globals(), "policy", lambda sampler=portioned: sampler)
        played.clear()
        portioned_groups = noise(4, 2)
        assert played == sizes
        assert texts(portioned_groups) == texts(together)


def test_sampler_and_trainer_agree_on_policy_tokens_and_skip_replies() -> None:
    """The trainer reads an episode in one pass; the sampler wrote it turn by turn behind its history."""
    task = Horizon(steps=2, spare=1, train=2)
    sampled = noise(2, 3)
    groups = [
        Group(problem, rollouts, [Verdict({"correct": 0.0}, None)] * 3, [0.0] * 3)
        for problem, rollouts in zip(task.problems("train"), sampled, strict=True)
    ]
    batch = pack_groups(groups, task.max_completion_tokens, 1, nano().pad)
    models = RoleModels(nano().model)
    reading = models.forward("policy", batch)
    inside = torch.arange(batch.completion.shape[1], device=batch.length.device) < batch.length[:, None]
    replies = inside & ~batch.completion_mask
    assert replies.sum() > 20
    # float32 through four layers, cached and uncached; the numbers themselves are several nats
    torch.testing.assert_close(
        reading.logp[batch.completion_mask], batch.sampler_logp[batch.completion_mask], rtol=0, atol=1e-4
    )
    assert (reading.logp[batch.completion_mask] < 0).all()
    sampler_entropy = pad_rows(
        [rollout.entropy for rollouts in sampled for rollout in rollouts], 0.0, np.float32
    )
    sampler_entropy = sampler_entropy.to(reading.entropy.device)
    torch.testing.assert_close(reading.entropy, sampler_entropy, rtol=0, atol=1e-4)
    assert (sampler_entropy[batch.completion_mask] > 0).all() and not sampler_entropy[replies].any()
    assert not reading.logp[replies].any() and not reading.entropy[replies].any()
    assert not batch.sampler_logp[replies].any()
    gap = gap_metrics([(reading.logp + 5.0 * replies, batch)])
    assert gap["gap/max"] < 1e-4, "replies have no part in the gap"


# Chat templates

CHATML = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def chatting(template: str = CHATML) -> Loaded:
    """The nano policy as if it were a chat model."""
    fresh = load("nano")
    fresh.tokenizer.chat_template = template
    return fresh


def test_replies_are_messages_of_the_models_chat_template() -> None:
    """Prompt and completion are, token by token, what the template makes of the whole conversation."""
    loaded = chatting()
    task, problem = by_hand()
    ((rollout,),) = episodes(
        turn_by_turn("?412$", "?419\n", "=410$"), loaded, task, [problem], [(7,)], 300, 1.0
    )
    talk = [
        ("user", START),
        ("assistant", "?412"),
        ("user", "+7\n"),
        ("assistant", "?419\n"),
        ("user", "-9!\n"),
        ("assistant", "=410"),
    ]
    expected_tokens = loaded.tokenizer.apply_chat_template(
        [{"role": role, "content": text} for role, text in talk], return_dict=False
    )
    assert (*rollout.prompt, *rollout.completion) == tuple(
        expected_tokens[:-1]
    )  # without the newline at the end
    assert [text for who, text in layout(rollout) if who == "policy"] == ["?412$", "?419\n", "=410$"]
    assert layout(rollout)[1] == ("tool", "\n[user]+7\n$\n[assistant]")
    assert layout(rollout)[3] == ("tool", "$\n[user]-9!\n$\n[assistant]"), "it closes the second turn"


def test_template_without_end_tokens_gets_one_behind_each_turn() -> None:
    loaded = chatting(CHATML.replace("{{ eos_token }}", ""))
    assert reply_tokens(loaded, "+7\n") == tokens("$\n[user]+7\n\n[assistant]")


# Learning from demonstrations


def test_demonstration_is_the_episode_that_the_policy_would_play() -> None:
    task = Horizon(steps=4, train=5)
    for problem in task.problems("train"):
        texts = [f"{turn}$" for turn in task.demonstrate_episode(problem)]
        ((rollout,),) = episodes(turn_by_turn(*texts), nano(), task, [problem], [(1,)], 200, 1.0)
        shown = demonstrated(nano(), task, problem)
        for name in ("prompt", "completion", "completion_mask", "stopped"):
            assert getattr(shown, name) == getattr(rollout, name), name
        assert not shown.sampler_logp.any()


def test_demonstration_of_a_task_of_one_turn_is_its_answer() -> None:
    task = Single()
    shown = demonstrated(nano(), task, task.problems("train")[0])
    assert (shown.completion, shown.completion_mask) == (tokens("ab$"), (True,) * 3)
    assert shown.stopped


def test_supervised_loss_is_the_mean_over_the_policys_tokens() -> None:
    """Against the model's own cross-entropy on the plain sequence, labels of replies left out."""
    from grpobench.runs.train.prepare.demonstrations import demonstrations

    task = Horizon(steps=2, train=3)
    (lesson,) = demonstrations(nano(), task, ModelConfig(warm_start=1, warm_start_batch=1))
    batch = pack_groups([lesson], 0, 1, nano().pad)
    logp = RoleModels(nano().model).forward("policy", batch).logp
    loss = -(logp * parts.average(batch, "token_mean")).sum().item()
    (rollout,) = lesson.rollouts
    device = nano().model.device
    ids = torch.tensor([[*rollout.prompt, *rollout.completion]], device=device)
    ignored = [-100] * len(rollout.prompt)
    labels = [
        t if is_policy else -100
        for t, is_policy in zip(rollout.completion, rollout.completion_mask, strict=True)
    ]
    with torch.no_grad():
        plain = (
            nano().model(input_ids=ids, labels=torch.tensor([ignored + labels], device=device)).loss.item()
        )
    assert rollout.completion_mask.count(False) == 7
    assert loss == pytest.approx(plain, rel=1e-5)  # float32, packed and plain


def test_demonstration_longer_than_the_context_is_refused() -> None:
    short = dataclasses.replace(nano())
    task = Horizon(steps=128, train=1)
    with pytest.raises(DataError, match=r"demonstration of problem .* have 1\d\d\d tokens, .* 1024; leave"):
        demonstrated(short, task, task.problems("train")[0])


@dataclasses.dataclass(frozen=True)
class Hasty(Horizon):
    def demonstrate_episode(self, problem: Problem) -> Sequence[str]:
        return (self.demonstrate(problem), "?100")


def test_demonstration_that_goes_on_behind_the_end_is_refused() -> None:
    _, problem = by_hand()
    with pytest.raises(ValueError, match="demonstration of x ends before its last turn"):
        demonstrated(nano(), Hasty(), problem)


# Grading, metrics, evaluation


def group() -> Group:
    """A right episode of 15 tokens in 3 turns, and one of 8 tokens in 2 turns whose second gives up."""
    task, problem = by_hand()
    rollouts = [
        played(turn_by_turn("?412$", "?419$", "=410$")),
        played(turn_by_turn("?411$", "=4$")),
    ]
    grader = Grader(task, RewardConfig(), nano(), 0)
    (graded_group,) = grader.groups(["s"], [problem], [rollouts])
    return graded_group


def test_episodes_are_verified_as_the_environment_saw_them() -> None:
    graded_group = group()
    assert [verdict.scores for verdict in graded_group.verdicts] == [
        {"correct": 1, "progress": 1, "format": 1},
        {"correct": 0, "progress": 0, "format": 1},
    ]
    assert list(graded_group.reward) == [1, 0]


def test_metrics_count_the_policys_tokens() -> None:
    graded_group = group()
    row = group_metrics([graded_group]) | turn_metrics([graded_group], nano())
    assert row["length/turns"] == 2.5
    assert row["length/replies"] == 6  # "+7\n" and "-9!\n"; "none\n"
    # 2-grams inside "?412$?419$=410$" (14, of them 12 different) and "?411$=4$" (7), of all 21:
    different = {
        *zip("?412$?419$=410$", "?412$?419$=410$"[1:], strict=False),
        *zip("?411$=4$", "?411$=4$"[1:], strict=False),
    }
    assert row["diversity/distinct_2"] == len(different) / 21
    batch = pack_groups([graded_group], 100, 1, nano().pad)
    assert batch.length.tolist() == [22, 13]
    lengths = length_metrics([graded_group])
    assert lengths["length/mean"] == 11.5
    assert lengths["length/terminated_mean"] == 11.5
    assert lengths["length/truncated"] == 0
    assert all(is_metric(name) for name in (*row, *lengths))
    assert "length/turns" not in turn_metrics([Group(graded_group.problem, [], [], [])], nano())


def test_evaluation_plays_episodes() -> None:
    task = Horizon(steps=1, validation=3)
    answers = {problem.prompt: task.demonstrate_episode(problem) for problem in task.problems("validation")}

    def script(seed: int, history: str) -> str:
        prompt = history[: history.index("\n") + 1]
        return answers[prompt][history.count(END)] + END

    settings = EvaluateConfig(problems=3, samples=2)
    evaluator = Evaluator(task, nano(), Scripted(script), settings, 0, task.max_completion_tokens)
    rows, summary = evaluator.evaluate(0, "validation")
    assert len(rows) == 9
    assert all(row["length"] == 10 and row["stopped"] and row["scores"]["correct"] for row in rows)
    assert summary["eval/validation/sampled/progress"] == 1
    assert summary["eval/validation/greedy/length"] == 10


def test_transcript_shows_turns() -> None:
    rollout = played(turn_by_turn("?412$", "?41$", "=410$"))
    assert conversation(nano(), by_hand()[1], rollout) == {
        "turns": [
            {"by": "policy", "text": "?412"},
            {"by": "environment", "text": "+7\n"},
            {"by": "policy", "text": "?41"},
            {"by": "environment", "text": "none\n"},
            {"by": "policy", "text": "=410"},
        ]
    }


# Whole runs

RECIPE = """
name = "short"
tasks = [{ name = "horizon-1", settings = { train = 16, validation = 2, test = 2, spare = 1 } }]
[train]
steps = 2
prompts_per_step = 2
group_size = 2
[evaluate]
problems = 2
samples = 1
test_problems = 0
[[arm]]
algorithm = "ppo"
[[arm]]
algorithm = "dpo"
"""


@pytest.mark.parametrize("arm", [0, 1])
def test_run_of_episodes_logs_declared_metrics_and_shows_turns(tmp_path: Path, arm: int) -> None:
    recipe = tmp_path / "short.toml"
    recipe.write_text(RECIPE)
    rows = run(read_recipe(str(recipe)).configs[arm], tmp_path / "run")
    assert [row["step"] for row in rows] == [0, 1, 2]
    last = rows[-1]
    assert all(is_metric(name) for name in last)
    assert last.get("gap/mean", 0.0) < 1e-4, "a step without a pair of DPO has no reading to compare"
    assert 1 <= last["length/turns"] <= 3
    written = sum(4 * row["length/mean"] for row in rows[1:])
    assert last["cost/generated_tokens"] == pytest.approx(written)
    turns = transcript(tmp_path / "run", 1)[0]["completions"][0]["turns"]
    assert [turn["by"] for turn in turns] == ["policy", "environment"] * (len(turns) // 2) + ["policy"]
