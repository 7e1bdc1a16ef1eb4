"""From their names to ours: the tables, and how a log's names are looked up in them."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest

from grpobench.runs.handover.importing.log import Log
from grpobench.runs.handover.importing.names.table import Vocabulary
from grpobench.runs.handover.importing.names.vocabularies import VOCABULARIES
from grpobench.runs.handover.importing.translate import (
    diverged,
    language,
    mapping,
    ours,
    share,
    translate,
)
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError

every = pytest.mark.parametrize("vocabulary", VOCABULARIES.values(), ids=VOCABULARIES.keys())


def log_of(*rows: dict[str, float], library: str = "") -> Log:
    """A log whose first row is that of step 1."""
    return Log(Path("log"), "jsonl", library=library, rows=dict(enumerate(rows, start=1)))


@every
def test_every_name_of_a_table_is_one_of_the_catalog_and_has_a_source(vocabulary: Vocabulary) -> None:
    rows = [*vocabulary.names, *vocabulary.derived]
    assert not [row.ours for row in rows if not ours(row.ours.replace("<name>", "x").replace("<n>", "4"))]
    assert all(row.source.endswith(".py") and row.unit for row in rows)
    theirs = [name.theirs for name in vocabulary.names]
    assert len(theirs) == len(set(theirs))


@every
def test_placeholders_of_ours_are_filled_from_theirs(vocabulary: Vocabulary) -> None:
    for name in vocabulary.names:
        parts = name.match(
            name.theirs.replace("<n>", "8").replace("<name>", "a_b").replace("<source>", "x/y")
        )
        assert parts is not None and "<" not in name.our_name(parts)


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="trl is not installed")
def test_trl_has_the_names_that_its_table_gives_in_the_files_that_it_gives() -> None:
    packages = {
        name: Path(importlib.util.find_spec(name).origin).parents[1] for name in ("trl", "transformers")
    }  # type: ignore[union-attr, arg-type]
    for name in VOCABULARIES["trl"].names:
        text = (packages[name.source.partition("/")[0]] / name.source).read_text(encoding="utf-8")
        part = name.theirs.removeprefix("eval_").partition("<")[0].removesuffix("/mean")
        if "accuracy_reward" in part:
            part = "def accuracy_reward("
        assert part in text, f"{name.theirs} is not in {name.source}"


def test_a_tracker_prefix_is_seen_through() -> None:
    theirs = {
        "trl": {"train/kl": "kl", "eval/reward": "eval_reward", "actor/entropy": "actor/entropy"},
        "openrlhf": {"train/kl": "kl", "eval/eval_gsm8k_pass1": "eval_gsm8k_pass1", "timing/x": "timing/x"},
        "verl": {"train/loss": "train/loss", "val-core/x": "val-core/x"},
    }
    for library, names in theirs.items():
        assert {name: VOCABULARIES[library].bare(name) for name in names} == names
    translated = translate(log_of({"train/kl": 0.5, "eval/reward": 0.25}), VOCABULARIES["trl"], {})
    assert translated.rows == {1: {"policy/kl_reference_k3": 0.5, "eval/validation/sampled/reward": 0.25}}


def test_what_has_no_name_of_ours_is_kept_under_its_own_and_ours_stay() -> None:
    log = log_of({"actor/pg_clipfrac": 0.1, "reward/mean": 1.0, "critic/score/mean": 0.5})
    translated = translate(log, VOCABULARIES["verl"], {})
    # the table's name has precedence over a name that happens to be ours
    assert translated.rows[1] == {
        "other/actor/pg_clipfrac": 0.1,
        "other/reward/mean": 1.0,
        "reward/mean": 0.5,
    }
    assert translated.unmapped == {
        "other/actor/pg_clipfrac": "actor/pg_clipfrac",
        "other/reward/mean": "reward/mean",
    }
    assert translate(log_of({"reward/mean": 1.0}), None, {}).rows[1] == {"reward/mean": 1.0}


def test_the_first_of_the_table_counts_whatever_the_order_of_the_log() -> None:
    log = log_of({"reward": 0.25, "rollout/reward_mean": 0.5}, {"reward": 0.25})
    translated = translate(log, VOCABULARIES["openrlhf"], {})
    assert translated.rows == {1: {"other/reward": 0.25, "reward/mean": 0.5}, 2: {"other/reward": 0.25}}


def test_map_counts_before_the_table_and_must_name_a_metric() -> None:
    mapped = mapping(["mine=reward/mean", "a=b=score/correct", "it=step"])
    assert mapped == {"mine": "reward/mean", "a=b": "score/correct", "it": "step"}
    translated = translate(log_of({"mine": 1.0, "critic/score/mean": 0.5}), VOCABULARIES["verl"], mapped)
    assert translated.rows[1] == {"reward/mean": 1.0, "other/critic/score/mean": 0.5}
    with pytest.raises(
        ConfigError, match=r"no metric 'policy/entropi'; did you mean policy/entropy\?"
    ) as error:
        mapping(["mine=policy/entropi", "nothing", "a=reward/mean", "b=reward/mean"])
    assert "--map nothing: write --map THEIRS=OURS" in str(error.value)
    assert "--map b=reward/mean: reward/mean is given twice" in str(error.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("reward/meen", "reward/mean"),
        ("score/corect", "score/correct"),
        ("grad_norm/polcy", "grad_norm/policy"),
        ("eval/val/greedy/correct", "eval/validation/greedy/correct"),
        ("eval/test/gready/corect", "eval/test/greedy/correct"),
    ],
)
def test_map_refuses_near_metric_name_that_only_a_pattern_matches(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"no metric '{name}'; did you mean {meant}\?"):
        mapping([f"x={name}"])


@pytest.mark.parametrize(
    "name",
    [
        "reward/format",
        "reward/lean",
        "reward/std",
        "score/strict",
        "grad_norm/critic",
        "eval/test/sampled/pass@8",
        "eval/validation/greedy/accuracy_ambiguous/age",
        "other/reward/meen",
    ],
)
def test_map_takes_component_without_a_similarly_named_metric_beside_it(name: str) -> None:
    assert mapping([f"x={name}"]) == {"x": name}


def test_one_data_set_gives_the_accuracy_and_several_do_not() -> None:
    single = {"val-core/openai/gsm8k/acc/mean@1": 0.5, "val-core/openai/gsm8k/acc/best@4/mean": 0.75}
    translated = translate(log_of(single), VOCABULARIES["verl"], {})
    expected = {"eval/validation/greedy/correct": 0.5, "eval/validation/sampled/pass@4": 0.75}
    assert (translated.rows[1], translated.task) == (expected, "openai/gsm8k")
    two = {"val-core/a/acc/mean@4": 0.5, "val-core/b/acc/mean@4": 0.25}
    translated = translate(log_of(two), VOCABULARIES["verl"], {})
    assert translated.rows[1] == {
        "eval/validation/sampled/correct/a": 0.5,
        "eval/validation/sampled/correct/b": 0.25,
    }
    assert translated.task == "" and "evaluated on a, b" in translated.notes[0]
    chosen = translate(
        log_of(two), VOCABULARIES["verl"], mapping(["val-core/b/acc/mean@4=eval/validation/sampled/correct"])
    )
    assert chosen.rows[1]["eval/validation/sampled/correct"] == 0.25


def test_the_language_of_a_table_is_the_one_that_knows_most_of_its_names() -> None:
    assert language(log_of({"train/reward": 1.0, "train/frac_reward_zero_std": 0.0})) is VOCABULARIES["trl"]
    assert language(log_of({"actor/lr": 1.0})) is VOCABULARIES["verl"]
    assert language(log_of({"train/policy_loss": 1.0, "train/actor_lr": 0.1})) is VOCABULARIES["openrlhf"]
    assert language(log_of({"reward": 1.0})) is None  # TRL's and OpenRLHF's alike
    assert language(log_of({"accuracy_of_my_own": 1.0})) is None
    assert language(log_of({"reward": 1.0}, library="trl")) is VOCABULARIES["trl"]


def test_time_and_tokens_of_verl_follow_from_several_of_its_numbers() -> None:
    row = {
        "timing_s/step": 10.0,
        "timing_s/testing": 3.0,
        "timing_s/save_checkpoint": 1.0,
        "timing_s/old_log_prob": 1.0,
        "timing_s/ref": 0.5,
        "perf/total_num_tokens": 400.0,  # of which a quarter is the completions'
        "response_length/mean": 10.0,
        "prompt_length/mean": 30.0,
    }
    translated = translate(log_of(row, row), VOCABULARIES["verl"], {})
    assert [translated.rows[step]["cost/generated_tokens"] for step in (1, 2)] == [100.0, 200.0]
    assert translated.rows[2]["time/step"] == 6.0 and translated.rows[2]["time/forward"] == 1.5
    assert translated.names["time/step"] == "timing_s/step − timing_s/testing − timing_s/save_checkpoint"


def test_a_sum_over_steps_is_left_out_where_steps_are_missing() -> None:
    row = {"rollout/response_length_mean": 10.0, "rollout/num_samples": 4.0}
    log = Log(Path("log"), "openrlhf", library="openrlhf", rows={1: row, 3: row})
    translated = translate(log, VOCABULARIES["openrlhf"], {})
    assert "cost/generated_tokens" not in translated.rows[3]
    assert "1 of 3 steps lack rollout/response_length_mean" in translated.notes[0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_to_the_end_says_that_the_run_diverged(value: float) -> None:
    rows = [{"grad_norm": 1.0}, {"grad_norm": value}, {"grad_norm": value}]
    assert (
        diverged(translate(log_of(*rows), VOCABULARIES["trl"], {}))
        == f"grad_norm is {value:g} from step 2 to the end"
    )
    healed = [*rows, {"grad_norm": 1.0}]
    assert diverged(translate(log_of(*healed), VOCABULARIES["trl"], {})) == ""
    of_no_weight = [{"reward": 1.0, "completions/min_length": value}]
    assert diverged(translate(log_of(*of_no_weight), VOCABULARIES["trl"], {})) == ""


GREEDY = "eval/validation/greedy/correct"


def test_accuracy_above_1_is_refused_and_number_after_slash_divides() -> None:
    log = log_of({"acc": 0.5}, {"acc": 52.75})
    with pytest.raises(DataError) as error:
        translate(log, None, mapping([f"acc={GREEDY}"]))
    assert str(error.value) == (
        f"log: `acc` is 52.75 at step 2, and {GREEDY} is a share, from 0 to 1; divide percent "
        f'with --map "acc/100={GREEDY}", and keep anything else with --map "acc=other/acc"'
    )
    translated = translate(log, None, mapping([f"acc/100={GREEDY}"]))
    assert translated.rows == {1: {GREEDY: 0.005}, 2: {GREEDY: 0.5275}}
    assert translated.names == {GREEDY: "acc ÷ 100"}
    assert translate(log, None, mapping(["acc=other/acc"])).rows[2] == {"other/acc": 52.75}
    with pytest.raises(DataError, match=r"`acc` is 52.75 \(to be divided by 10\) at step 2"):
        translate(log, None, mapping([f"acc/10={GREEDY}"]))


def test_a_name_that_ends_in_a_number_counts_as_it_is_where_a_log_has_it() -> None:
    mapped = mapping([f"acc/100={GREEDY}"])
    assert translate(log_of({"acc/100": 0.5, "acc": 0.25}), None, mapped).rows[1] == {
        GREEDY: 0.5,
        "other/acc": 0.25,
    }
    with pytest.raises(ConfigError, match="acc is given twice; give each name once"):
        translate(log_of({"acc": 0.5}), None, mapping([f"acc/100={GREEDY}", "acc=score/correct"]))


def test_what_is_a_share() -> None:
    names = [GREEDY, f"{GREEDY}/gsm8k", "eval/test/sampled/pass@8", "eval/test/greedy/accuracy_ambiguous/age"]
    assert all(map(share, [*names, "score/correct", "length/truncated", "gap/ess"]))
    others = [
        "eval/test/greedy/length",
        "eval/test/sampled/reward",
        "reward/mean",
        "score/words",
        "other/acc",
    ]
    assert not any(map(share, others))
    # means of ones in single precision may exceed 1
    assert translate(log_of({GREEDY: 1.0000001}), None, {}).rows[1] == {GREEDY: 1.0000001}


def test_tracker_evaluation_is_not_ours_unless_split_and_mode_are() -> None:
    theirs = {"eval/rewards/exact/std": 0.25, "eval/rewards/exact/mean": 0.5, "train/rewards/exact/std": 0.5}
    translated = translate(log_of(theirs | {GREEDY: 0.75}), VOCABULARIES["trl"], {})
    assert translated.rows[1] == {
        "other/eval_rewards/exact/std": 0.25,
        "eval/validation/sampled/exact": 0.5,
        "other/rewards/exact/std": 0.5,
        GREEDY: 0.75,
    }
    assert translated.unmapped["other/eval_rewards/exact/std"] == "eval/rewards/exact/std"
    assert translate(log_of({"eval/rewards/exact/std": 0.25}), None, {}).names == {}


def test_a_name_with_and_without_a_prefix_stays_two() -> None:
    translated = translate(log_of({"train/loss": 1.0, "loss": 2.0}), VOCABULARIES["trl"], {})
    assert translated.rows[1] == {"other/train/loss": 1.0, "other/loss": 2.0}


PARTS = {"timing_s/gen": 20.0, "timing_s/old_log_prob": 4.0, "timing_s/update_actor": 16.0}


@pytest.mark.parametrize("often", [True, False])
@pytest.mark.parametrize("testing", [60.0, 8.0])
@pytest.mark.parametrize(
    ("version", "within_step"), [("0.5", (True, True)), ("0.6", (False, False)), ("0.9.1", (False, True))]
)
def test_a_step_of_verl_is_without_what_that_version_timed_within_it(
    version: str, within_step: tuple[bool, bool], testing: float, often: bool
) -> None:
    rows = []
    for step in range(1, 9):
        beside = {"timing_s/testing": testing} if often or step % 2 == 0 else {}
        beside |= {"timing_s/save_checkpoint": 12.0} if step % 4 == 0 else {}
        within = [time for time, is_within in zip(beside.values(), within_step, strict=False) if is_within]
        rows.append(PARTS | beside | {"timing_s/step": 41.0 + step / 10 + sum(within)})
    translated = translate(log_of(*rows), VOCABULARIES["verl"], {})
    times = [translated.rows[step]["time/step"] for step in range(1, 9)]
    assert times == pytest.approx([41.0 + step / 10 for step in range(1, 9)]), version
    names = ("timing_s/testing", "timing_s/save_checkpoint")
    assert translated.names["time/step"] == " − ".join(
        ["timing_s/step", *(name for name, is_within in zip(names, within_step, strict=True) if is_within)]
    )
    assert not translated.notes


def test_verl_step_is_never_negative_and_assumptions_about_it_are_stated() -> None:
    short = translate(
        log_of({"timing_s/step": 44.1, "timing_s/testing": 60.0, **PARTS}), VOCABULARIES["verl"], {}
    )
    assert short.rows[1]["time/step"] == 44.1
    bare = translate(log_of({"timing_s/step": 44.1, "timing_s/testing": 40.0}), VOCABULARIES["verl"], {})
    assert bare.rows[1]["time/step"] == pytest.approx(4.1)
    assert bare.notes == [
        "time/step: nothing tells whether timing_s/step holds timing_s/testing; it is taken to"
    ]


@pytest.mark.parametrize("name", ["perf/max_memory_allocated_gb", "actor/perf/max_memory_allocated_gb"])
def test_the_peak_of_memory_of_verl_is_ours_by_its_old_name_and_its_new(name: str) -> None:
    translated = translate(log_of({name: 61.5}), VOCABULARIES["verl"], {})
    assert translated.rows == {1: {"cost/peak_memory_gb": 61.5}}
