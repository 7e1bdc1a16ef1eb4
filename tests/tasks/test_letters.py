"""Letters, signed, walk: the written distribution, the grades, and the shipped policies held against it."""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpobench.algorithms.ngrpo import neighborhood
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.written import path_of
from grpobench.runs.sample.episodes import episodes
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Rollout
from grpobench.tasks.kinds.written import ALPHABET, END, Written
from grpobench.tasks.letters import LENGTHS, Letters
from grpobench.tasks.signed import STOP, TAIL, Signed
from grpobench.tasks.walk import LENGTH, RING, STEPS, Walk, apart

SAMPLES = 64


@pytest.mark.parametrize(
    "task",
    [
        Letters(),
        Letters(length=32, patterns=("4", "12")),
        Letters(contexts=4, position=2, likely=0.4, misled=1),
        Signed(),
        Signed(signs=3),
        Walk(),
    ],
    ids=str,
)
def test_the_written_distribution_sums_to_one_and_is_what_is_drawn(task: Written) -> None:
    rng = random.Random(0)
    for problem in task.problems("train")[:50]:
        turns = task.draw_episode(problem, rng)
        for number, turn in enumerate(turns):
            for position in range(len(turn) + 1):
                if position == len(turn) and task.turn_end and turn.endswith(task.turn_end):
                    break
                following = task.distribution(problem, [*turns[:number], turn[:position]])
                assert math.fsum(following.values()) == pytest.approx(1)
                written = turn[position] if position < len(turn) else END
                assert following[written] > 0


@pytest.mark.parametrize("pattern", ["4", "12", "88"])
def test_the_base_rate_is_the_product_of_the_pattern(pattern: str) -> None:
    """Against 1,500 drawn episodes: five binomial deviations."""
    task = Letters(patterns=(pattern,), position=1)
    rng = random.Random(1)
    right = sum(
        task.verify(problem, task.draw_episode(problem, rng))[0].scores["solved"]
        for problem in task.problems("train")[:1500]
    )
    p = task.base_rate(pattern)
    assert abs(right / 1500 - p) <= 5 * math.sqrt(p * (1 - p) / 1500) + 1e-9


@given(st.sampled_from(["1", "3", "72"]), st.floats(0.15, 0.95), st.integers(0, 2), st.integers(0, 4))
def test_a_base_that_favors_a_letter_has_its_base_rate_in_each_context(
    pattern: str, likely: float, misled: int, position: int
) -> None:
    """The sum over the letters that are right, of the written distribution at each decisive place."""
    task = Letters(patterns=(pattern,), contexts=2, likely=likely, misled=misled, position=position)
    for problem in task.problems("train")[:20]:
        written = "a" * position
        chances = []
        for right in problem.truth["right"]:
            following = task.distribution(problem, [written])
            chances.append(sum(following[letter] for letter in right))
            written += right[0]
        misleads = "AB".index(str(problem.traits["context"])) >= 2 - misled
        assert math.prod(chances) == pytest.approx(task.base_rate(pattern, misleads))
        assert problem.traits["difficulty"] == pytest.approx(-math.log(math.prod(chances)))
        favored = max(following := task.distribution(problem, ["a" * position]), key=lambda c: following[c])
        assert (favored in problem.truth["right"][0]) == (not misleads)


@given(st.text(alphabet="abcdefghXYZ", max_size=12))
def test_a_wrong_form_costs_its_score_and_no_other(text: str) -> None:
    task = Letters()
    problem = task.problems("train")[0]
    (verdict,) = task.verify(problem, [text])
    right = text[:1] == problem.truth["right"][0]
    letters = len([character for character in text if character in ALPHABET])
    form = max(0.0, 1 - (abs(letters - 8) + len(text) - letters) / 8)
    assert verdict.scores["correct"] == right
    assert verdict.scores["format"] == pytest.approx(form)
    assert verdict.scores["solved"] == pytest.approx(right * form)
    assert (form == 1) == (len(text) == 8 and set(text) <= set(ALPHABET))


def test_the_answer_of_a_completion_is_its_decisive_letters() -> None:
    """So that a majority votes over what decides, whatever stands around it."""
    task = Letters(length=4, position=1, patterns=("11",))
    verdicts = task.verify(task.problems("train")[0], ["abcd", "hbch", "hbbh", "hb", "h c", ""])
    assert [verdict.answer for verdict in verdicts] == ["bc", "bc", "bb", None, None, None]
    assert [verdict.outcome for verdict in verdicts] == [*5 * ["graded"], "unparsable"]


def test_an_exploit_is_never_right() -> None:
    task = Letters(contexts=8)
    for problem in task.problems("train")[:500]:
        assert problem.truth["exploit"][0] not in problem.truth["right"][0]


def test_the_sign_is_even_and_no_prompt_repeats() -> None:
    """Half of all (prompt, letter) pairs are answered with +, within five binomial deviations."""
    task = Signed()
    problems = task.problems("train")
    assert len({problem.prompt for problem in problems}) == len(problems)
    signs = Counter(task.reply(problem, [letter]) for problem in problems for letter in ALPHABET)
    share = signs["+"] / sum(signs.values())
    assert abs(share - 0.5) <= 5 * 0.5 / math.sqrt(sum(signs.values()))


def test_several_signs_are_counted_and_the_tail_follows_the_last() -> None:
    """4,000 signs of 16: the variance of their number is 16/4. With one sign problems and replies are those
    of the task without the setting."""
    task = Signed(signs=16)
    problems = task.problems("train")[:4000]
    replies = [task.reply(problem, ["a"]) or "" for problem in problems]
    counts = [reply.count("+") for reply in replies]
    mean = sum(counts) / 4000
    assert {len(reply) for reply in replies} == {16} and abs(mean - 8) < 0.2
    assert abs(sum((count - mean) ** 2 for count in counts) / 4000 - 4) < 0.5, "five standard errors"
    assert [reply[-1] for reply in replies[:50]] == [
        Signed().reply(problem, ["a"]) for problem in problems[:50]
    ]
    first = problems[0]
    tail = TAIL[replies[0][-1]]
    (verdict,) = task.verify_episodes(first, [["a\n", first.truth["right"] + 3 * tail]])
    assert verdict.scores == {"correct": 1, "sign": counts[0] - 7.5, "letter": 1, "format": 1}


def test_both_are_right_only_together() -> None:
    """With the right second letter half of the completions are right, with another one none is."""
    both, problems = Signed(decides="both"), Signed().problems("train")[:200]
    right = 0.0
    for problem in problems:
        right_letter = problem.truth["right"]
        for first in ALPHABET:
            for second in (right_letter, next(c for c in ALPHABET if c != right_letter)):
                (verdict,) = both.verify_episodes(problem, [[f"{first}\n", second]])
                plus = both.reply(problem, [f"{first}\n"]) == "+"
                assert verdict.scores["correct"] == float(plus and second == right_letter)
                right += verdict.scores["correct"]
    assert abs(right / (8 * len(problems)) - 0.5) <= 5 * 0.5 / math.sqrt(8 * len(problems))


def test_a_malformed_first_turn_ends_the_episode_and_earns_nothing() -> None:
    task = Signed()
    problem = task.problems("train")[0]
    for text in ("", "ab\n", "?\n"):
        assert task.reply(problem, [text]) is None
        (verdict,) = task.verify_episodes(problem, [[text]])
        assert not any(verdict.scores.values())


@pytest.mark.parametrize(("near", "rate"), [(0, 1 / 48), (5, 11 / 48)])
def test_the_base_rate_of_a_walk_is_its_share_of_the_ring(near: int, rate: float) -> None:
    """Against 1,500 drawn walks: five binomial deviations."""
    task, rng = Walk(near=near), random.Random(2)
    right = sum(
        task.verify(problem, task.draw_episode(problem, rng))[0].scores["correct"]
        for problem in task.problems("train")[:1500]
    )
    assert abs(right / 1500 - rate) <= 5 * math.sqrt(rate * (1 - rate) / 1500)


def test_goals_fill_the_region_of_their_context_and_nothing_else() -> None:
    task = Walk(contexts=3, region=10)
    goals: dict[str, set[str]] = {}
    for problem in task.problems("train"):
        goal = RING[problem.truth["goal"]]
        goals.setdefault(str(problem.traits["category"]), set()).add(goal)
        (verdict,) = task.verify(problem, [task.demonstrate(problem)])
        assert verdict.scores == {"correct": 1.0, "region": 1.0, "format": 1.0}
    assert [len(region) for region in goals.values()] == [10, 10, 10]
    for region in goals.values():
        assert max(apart(first, second) for first in region for second in region) == 9


@pytest.mark.parametrize(
    ("positions", "rate", "of_eight"),
    [(range(48), 0.0625, 0.403), (range(12), 0.236, 0.878), (range(3, 9), 0.25, 0.620), ([5], 0.25, 0.25)],
)
def test_the_documented_worth_of_different_answers(
    positions: Sequence[int], rate: float, of_eight: float
) -> None:
    """Exact, over a problem of each of the twelve goals, with the sixth letter at any of these places."""
    task = Walk(contexts=1)
    by_goal = {problem.truth["goal"]: problem for problem in task.problems("train")}
    assert len(by_goal) == 12
    rates = []
    for problem in by_goal.values():
        letters = [RING[(problem.truth["first"] + position) % 48] for position in positions]
        verdicts = task.verify(problem, [letter * LENGTH for letter in letters])
        rates.append(sum(verdict.scores["correct"] for verdict in verdicts) / len(letters))
    assert sum(rates) / 12 == pytest.approx(rate, abs=5e-4)
    assert sum(1 - (1 - goal_rate) ** 8 for goal_rate in rates) / 12 == pytest.approx(of_eight, abs=5e-4)


@given(st.sampled_from(RING), st.sampled_from(RING))
def test_places_are_counted_the_shorter_way_around(first: str, second: str) -> None:
    there = (RING.index(second) - RING.index(first)) % 48
    assert apart(first, second) == apart(second, first) == min(there, 48 - there)


@pytest.fixture(scope="module", params=["letters", "signed", "walk"])
def base(request: pytest.FixtureRequest) -> tuple[str, Loaded, RoleModels]:
    loaded = load(request.param)
    return request.param, loaded, RoleModels(loaded.model)


def tasks_of(name: str) -> list[Written]:
    letters: list[Written] = [Letters(length=n, contexts=8) for n in LENGTHS]
    if name == "letters":
        return letters
    return [Signed(cap=120)] if name == "signed" else [Walk(contexts=8)]


def sampled(base: tuple[str, Loaded, RoleModels], task: Written, count: int) -> list[list[Rollout]]:
    _, loaded, models = base
    sampler = HFSampler(models, loaded.end, loaded.pad, 256, loaded.context)
    problems = task.problems("test")[:count]
    seeds = [tuple(range(1000 * i, 1000 * i + SAMPLES)) for i in range(count)]
    with torch.no_grad():
        return episodes(sampler, loaded, task, problems, seeds, task.max_completion_tokens, 1.0)


def test_the_policy_writes_its_distribution(base: tuple[str, Loaded, RoleModels]) -> None:
    """Divergence of every position of drawn episodes, in exact expectation over the next token: below 0.05
    nats at every position, and below 0.001 in the mean, a thousandth of the entropies; for walk, which has
    48 distributions to know, below 0.005."""
    name, loaded, _ = base
    rng = random.Random(5)
    divergences = []
    for task in tasks_of(name):
        for problem in task.problems("test")[:10]:
            drawn = path_of(loaded.tokenizer, task, problem, rng)
            with torch.no_grad():
                logits = loaded.model(torch.tensor([[*drawn.prompt, *drawn.tokens]])).logits[0]
            for position, following in enumerate(drawn.targets):
                if following:
                    logp = logits[len(drawn.prompt) + position - 1].log_softmax(-1)
                    divergences.append(
                        sum(p * (math.log(p) - float(logp[token])) for token, p in following.items())
                    )
    assert max(divergences) < 0.05
    assert sum(divergences) / len(divergences) < (0.005 if name == "walk" else 0.001)


def test_sampled_letters_and_entropy_are_those_of_the_closed_form(
    base: tuple[str, Loaded, RoleModels],
) -> None:
    """512 completions of each length: letters within six binomial deviations, lengths exact but for 1 %, and
    the reported entropy within 1 % of length · ln 8/(length + 1); for signed the mean tail of 8 tokens; for
    walk the frequencies of its steps."""
    name, loaded, _ = base
    for task in tasks_of(name):
        rollouts = [rollout for of_problem in sampled(base, task, 8) for rollout in of_problem]
        if isinstance(task, Letters):
            texts = [loaded.decode(rollout.completion) for rollout in rollouts]
            assert sum(len(text) == task.length for text in texts) >= 0.99 * len(texts)
            _even(Counter("".join(texts)))
            expected = task.length * math.log(8) / (task.length + 1)
        elif isinstance(task, Walk):
            expected = _walked([loaded.decode(rollout.completion) for rollout in rollouts])
        else:
            played = [text_of(loaded, rollout) for rollout in rollouts]
            # Half a percent of the first turns is no letter and a line end.
            tails = [(sign, tail) for sign, tail in played if sign in TAIL]
            assert len(tails) >= 0.99 * len(played)
            assert sum(set(tail) <= {TAIL[sign]} for sign, tail in tails) >= 0.99 * len(tails)
            mean, deviation = (1 - STOP) / STOP, math.sqrt(1 - STOP) / STOP
            assert abs(sum(len(tail) for _, tail in tails) / len(tails) - mean) <= 5 * deviation / math.sqrt(
                len(tails)
            )
            # Two letters, a line end, and one draw for each token of the tail and its end.
            expected = (2 * math.log(8) + (mean + 1) * entropy({"p": 1 - STOP, END: STOP})) / (mean + 4)
        reported = [h for rollout in rollouts for h in written_entropy(rollout)]
        assert sum(reported) / len(reported) == pytest.approx(
            expected, rel=0.06 if name == "signed" else 0.01
        )


def entropy(following: Mapping[str, float]) -> float:
    """Entropy of a distribution, in nats."""
    return -math.fsum(p * math.log(p) for p in following.values() if p > 0)


def written_entropy(rollout: Rollout) -> Sequence[float]:
    assert rollout.entropy is not None
    mask = rollout.completion_mask or (True,) * len(rollout.completion)
    return [float(h) for h, is_written in zip(rollout.entropy, mask, strict=True) if is_written]


def text_of(loaded: Loaded, rollout: Rollout) -> tuple[str, str]:
    """Sign and tail of an episode."""
    after = loaded.decode(rollout.completion).partition("\n")[2]
    return after[:1] or "?", after[2:]


def _walked(texts: Sequence[str]) -> float:
    """The entropy per token of a walk, whose steps these texts have as often as they should."""
    walks = [text for text in texts if len(text) == LENGTH and set(text) <= set(RING)]
    assert len(walks) >= 0.99 * len(texts)
    steps = Counter(
        (RING.index(text[position + 1]) - RING.index(text[position]) + 24) % 48 - 24
        for text in walks
        for position in range(len(text) - 1)
    )
    total = sum(steps.values())
    for step, chance in STEPS.items():
        assert abs(steps[step] - chance * total) <= 6 * math.sqrt(total * chance * (1 - chance))
    following = {str(step): chance for step, chance in STEPS.items()}
    return (math.log(len(RING)) + (LENGTH - 1) * entropy(following)) / (LENGTH + 1)


def test_neighbors_among_the_embeddings_are_neighbors_on_the_ring() -> None:
    """The two tokens that N-GRPO would blend in lie at most two places away, for nine letters of ten; by
    chance four of the 98 other tokens do."""
    loaded = load("walk")
    table = loaded.model.get_input_embeddings().weight.detach()
    anchors = torch.tensor([loaded.tokenizer.encode(letter)[0] for letter in RING])
    members = neighborhood(table, table.norm(dim=-1), anchors, 3)
    near = [
        all(text in RING and apart(letter, text) <= 2 for text in map(loaded.decode, row[1:, None].tolist()))
        for letter, row in zip(RING, members, strict=True)
    ]
    assert sum(near) >= 0.9 * len(near)


def _even(counts: Counter[str]) -> None:
    total = sum(counts.values())
    deviation = math.sqrt(total * (1 / 8) * (7 / 8))
    for letter in ALPHABET:
        assert abs(counts[letter] - total / 8) <= 6 * deviation
