"""Locks: a policy that was trained on the test problems recites them and the first screen says so; another
does not; what is guessed does not count; the probe changes nothing else of a run."""

from __future__ import annotations

import dataclasses
import random
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.pages import words as page_of
from helpers.toys import Letters
from helpers.whole_runs import configure, rows, run, run_until_stopped, same, timeless
from hypothesis import given
from hypothesis import strategies as st

from grpobench.analysis.report.facts import gather
from grpobench.analysis.runfolder.load import load
from grpobench.runs.metrics.contamination import begins_with, cut_problems, rouge_l
from grpobench.runs.settings.config import EvaluateConfig, RunConfig
from grpobench.tasks.task import Problem, Split

PROBLEMS, LENGTH = 60, 20
# The last one lets the tokenizer pass as one that knows letters.
WORDS = [f"w{i}" for i in range(PROBLEMS * LENGTH)]
VOCABULARY = ["<pad>", "<eos>", "<unk>", "Q:", "A:", *WORDS, string.printable.split()[0]]
PROBE = EvaluateConfig(every=0, problems=0, samples=0, test_problems=PROBLEMS, contamination=True)


@dataclasses.dataclass(frozen=True)
class Sentences(Letters):
    """Test problems of `LENGTH` words in random order, no word twice, in a template."""

    name = "sentences"
    length: int = LENGTH

    def problems(self, split: Split) -> Sequence[Problem]:
        if split != "test":
            return [dataclasses.replace(problem, prompt="Q: A:") for problem in super().problems(split)]
        order = random.Random(0).sample(WORDS, len(WORDS))
        texts = [order[i * LENGTH :][: self.length] for i in range(PROBLEMS)]
        return [Problem(f"test-{i}", f"Q: {' '.join(text)} A:", i) for i, text in enumerate(texts)]


def save_policy(folder: Path, updates: int) -> str:
    """The folder, with a tiny Llama over words that learned the test problems for so many updates."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=48,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
        )
    )
    ids = torch.tensor([wrapped.encode(problem.text) for problem in Sentences().problems("test")])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(updates):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_policy(tmp_path_factory.mktemp("trained"), 80)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_policy(tmp_path_factory.mktemp("untrained"), 0)


def config_of(policy: str, evaluate: EvaluateConfig = PROBE, length: int = LENGTH) -> RunConfig:
    return configure(policy, task=Sentences(length=length), evaluate=evaluate)


def probed(row: dict[str, Any]) -> dict[str, float]:
    return {name.partition("/")[2]: value for name, value in row.items() if name.startswith("contamination/")}


def test_a_policy_that_learned_the_test_problems_is_on_the_first_screen(trained: str, tmp_path: Path) -> None:
    first, *later = run(config_of(trained), tmp_path / "a-sentences-s3")
    numbers = probed(first)
    assert numbers["problems"] == PROBLEMS and numbers["exact"] > 0.9 and numbers["rouge_l"] > 0.9
    assert numbers["exact_chance"] == 0  # no word stands in two problems
    assert not any(map(probed, later))
    facts = gather(load(tmp_path))
    (warning,) = [warning for warning in facts.warnings if "recites" in warning.title]
    assert warning.title == f"The base recites test problems: {100 * numbers['exact']:.1f} % on sentences"
    page = page_of(facts)
    assert warning.title in page[page.index("What to doubt") : page.index('<h2 id="warnings">')]


def test_a_policy_that_never_saw_them_is_not(untrained: str, tmp_path: Path) -> None:
    first, *_ = run(config_of(untrained), tmp_path / "a-sentences-s3")
    numbers = probed(first)
    assert numbers["problems"] == PROBLEMS and numbers["exact"] == 0 and numbers["rouge_l"] < 0.1
    titles = [warning.title for warning in gather(load(tmp_path)).warnings]
    assert not [title for title in titles if "recites" in title or "ontamination" in title]


def test_problems_too_short_give_no_number_and_the_report_says_so(trained: str, tmp_path: Path) -> None:
    """Of 18 words, 18 − round(.6 · 18) = 7 are left."""
    first, *_ = run(config_of(trained, length=18), tmp_path / "a-sentences-s3")
    assert probed(first) == {"problems": 0.0}
    titles = [warning.title for warning in gather(load(tmp_path)).warnings]
    expected = "Contamination could not be measured on sentences (0 test problems are long enough)"
    assert expected in titles


def test_the_probe_changes_no_other_number_and_a_stopped_run_goes_on_as_if_it_had_not(
    trained: str, tmp_path: Path
) -> None:
    plain = run(config_of(trained, dataclasses.replace(PROBE, contamination=False)), tmp_path / "plain" / "a")
    through = run(config_of(trained), tmp_path / "through" / "a")
    assert through[0].keys() - plain[0].keys() == {f"contamination/{name}" for name in probed(through[0])}
    without = [{name: row[name] for name in row if "contamination" not in name} for row in through]
    assert list(map(timeless, without)) == list(map(timeless, plain))
    stopped = tmp_path / "stopped" / "a"
    run_until_stopped(config_of(trained), stopped, 1)
    assert rows(stopped)[-1]["step"] == 1
    run(config_of(trained), stopped)
    assert same(tmp_path / "through" / "a", stopped)


def test_a_second_arm_takes_the_numbers_from_the_first(
    trained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(config_of(trained), tmp_path / "a")
    monkeypatch.setattr("grpobench.runs.metrics.evaluator.measure_contamination", None)
    second = run(dataclasses.replace(config_of(trained), arm="b"), tmp_path / "b")
    assert probed(second[0]) == probed(first[0])


@pytest.mark.parametrize("changes", [{"before": False}, {"test_problems": 0}])
def test_it_needs_test_problems_before_training(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="contamination: needs before = true and test_problems; set both"):
        dataclasses.replace(PROBE, **changes)


def test_a_text_is_cut_after_sixty_percent_of_the_words_that_are_its_own() -> None:
    texts = [f"Solve: {' '.join(letter + str(i) for i in range(20))}\nAnswer:" for letter in "ab"]
    assert [problem.first for problem in cut_problems(texts)] == [
        " ".join(letter + str(i) for i in range(12)) for letter in "ab"
    ]
    assert cut_problems(texts)[1].ending == ("b12", "b13", "b14", "b15", "b16", "b17", "b18", "b19")
    assert cut_problems(texts[:1]) == [] and cut_problems([]) == []  # nothing tells a template from a problem


def test_an_ending_that_several_problems_have_does_not_count() -> None:
    ending = " ".join(f"x{i}" for i in range(10))
    texts = [
        *(f"{' '.join(f'{k}{i}' for i in range(14))} {ending} {k}?" for k in "abc"),
        *(f"{' '.join(f'{k}{i}' for i in range(15))} {ending}" for k in "de"),
    ]
    assert len(cut_problems(texts)) == 3
    assert all(problem.ending[-1] in ("a?", "b?", "c?") for problem in cut_problems(texts))


def test_exact_is_whatever_the_white_space_and_what_follows() -> None:
    ending = ["of", "the", "base?"]
    assert begins_with(["of", "the", "base?", "Answer:", "3"], ending)
    assert not begins_with(["of", "the"], ending) and not begins_with(["and", "of", "the", "base?"], ending)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("police kill the gunman", 3 / 4),
        ("the gunman kill police", 2 / 4),
        ("the gunman police killed", 2 / 4),
    ],
)
def test_rouge_l_of_the_examples_of_its_paper(words: str, expected: float) -> None:
    """Lin (2004), section 3.1: S1 is the reference; beta = 1."""
    assert rouge_l(words.split(), ["police", "killed", "the", "gunman"]) == expected


@given(st.lists(st.sampled_from("abc"), max_size=7), st.lists(st.sampled_from("abc"), max_size=7))
def test_rouge_l_is_that_of_all_subsequences(words: list[str], reference: list[str]) -> None:
    def subsequences(letters: list[str]) -> set[str]:
        texts = {""}
        for letter in letters:
            texts |= {text + letter for text in texts}
        return texts

    longest = max(map(len, subsequences(words) & subsequences(reference)))
    expected = 2 * longest / (len(words) + len(reference)) if words or reference else 0.0
    assert rouge_l(words, reference) == pytest.approx(expected)
