"""No seed vanishes and no mixture passes for uniform: what a report says before its numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard
from helpers.edits import edit, edit_rows
from helpers.pages import words
from helpers.synthetic import Synthetic

from grpobench.analysis.checks.alarms import find_alarms
from grpobench.analysis.report.facts import gather
from grpobench.analysis.report.text import describe_head
from grpobench.analysis.runfolder.experiment import describe, histories
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.accuracy import accuracies, finals
from grpobench.analysis.topics.runs import all_settings, run_provenance

SMALL: Mapping[str, Any] = {
    "arms": ("grpo", "ppo"),
    "tasks": ("arithmetic",),
    "seeds": (1, 2, 3),
    "steps": 20,
    "every": 10,
    "problems": 4,
    "test_problems": 4,
}
RUN = "grpo-arithmetic-s1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Synthetic(**SMALL).write(tmp_path)


def alarms_of(root: Path) -> dict[str, list[str]]:
    return find_alarms(load(root))


def retell(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def attempts(root: Path, name: str, *later: Mapping[str, Any]) -> None:
    """Add attempts to a run's origin, like its first one but for what is given."""

    def add(provenance: Any) -> None:
        first = provenance["attempts"][0]
        provenance["attempts"] = [first | {"resumed_at": 0}] + [
            first | {"attempt": n, "id": f"{name}-{n}", **changes} for n, changes in enumerate(later, 2)
        ]

    edit(root / name / "provenance.json", add)


def test_uniform_experiment_is_silent_though_arms_use_different_files(root: Path) -> None:
    for path in root.glob("*/provenance.json"):
        arm = path.parent.name.split("-")[0]
        code = {"runs/train/trainer.py": "aa", f"algorithms/{arm}.py": arm}
        edit(path, lambda provenance, code=code: provenance["attempts"][0].update(code=code))  # type: ignore[misc]
    assert alarms_of(root) == {}
    assert len(run_provenance(load(root))["code"]) == 1
    edit(
        root / RUN / "provenance.json",
        lambda o: o["attempts"][0]["code"].update({"runs/train/trainer.py": "bb"}),
    )
    assert alarms_of(root) == {"Different code": [f"runs/train/trainer.py: aa in 5 runs; bb in {RUN}"]}
    assert len(run_provenance(load(root))["code"]) == 2


# Seeds that would vanish


@pytest.mark.parametrize("how", [lambda path: path.write_text(""), Path.unlink], ids=["emptied", "deleted"])
def test_finished_run_without_metrics_is_named_and_comparisons_stay_open(
    root: Path, how: Callable[[Path], None]
) -> None:
    how(root / RUN / "metrics.jsonl")
    facts = gather(load(root))
    assert facts.accounting == {"finished": 5, "finished without data": 1}
    assert facts.numbers.compared[0].needs == (
        "waits for runs without a result: grpo seed 1 (finished without data)"
    )
    assert facts.tables["accuracy"].rows[0][6].startswith("– (finished without data)")
    lines = [line for warning in facts.warnings for line in warning.lines]
    assert f"{RUN}: metrics.jsonl is missing or empty, so the run is not counted" in lines
    assert describe_head(facts)["runs"] == "6 planned: 5 finished, 1 finished without data"


def test_finished_run_whose_updates_were_left_out_is_named(root: Path) -> None:
    """One that blew up in its last steps, too few of them to be called diverged, ends as finished."""
    log = root / RUN / "metrics.jsonl"
    edit_rows(log, lambda row: row.update({"grad/nonfinite": float(row["step"] >= 18)}))
    title = "Updates left out for a loss, reward or gradient that is not finite"
    assert alarms_of(root) == {title: [f"{RUN}: in 3 of 20 steps, the last of them 20"]}


def test_log_cut_before_the_end_is_no_final_accuracy(root: Path) -> None:
    path = root / RUN / "metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:15]))
    facts = gather(load(root))
    assert facts.accounting["finished without data"] == 1
    (line,) = alarms_of(root)["Logs that lack something"]
    assert line == f"{RUN}: metrics.jsonl lacks 6 of 21 rows, the first of step 15"


@pytest.mark.parametrize("name", ["provenance.json", "eval.jsonl"])
def test_missing_file_of_a_run_is_named(root: Path, name: str) -> None:
    (root / RUN / name).unlink()
    (line,) = alarms_of(root)["Logs that lack something"]
    assert line.startswith(f"{RUN}: {name} is missing")


def test_evaluation_whose_answers_are_gone_is_named(root: Path) -> None:
    path = root / RUN / "eval.jsonl"
    lines = [line for line in path.read_text().splitlines() if json.loads(line)["step"] != 10]
    path.write_text("".join(f"{line}\n" for line in lines))
    (line,) = alarms_of(root)["Logs that lack something"]
    assert line == f"{RUN}: eval.jsonl lacks 10 validation greedy; and 1 more evaluations"


def test_accounting_adds_up_to_the_plan(tmp_path: Path) -> None:
    states = {("grpo", "arithmetic", 1): ("diverged", 4), ("ppo", "arithmetic", 2): ("crashed", 4)}
    root = Synthetic(**{**SMALL, "states": states}).write(tmp_path)
    shutil.rmtree(root / "ppo-arithmetic-s3")
    edit(root / "experiment.json", lambda table: table["runs"].remove("grpo-arithmetic-s2"))
    facts = gather(load(root))
    assert facts.accounting == {"finished": 2, "diverged": 1, "crashed": 1, "missing": 1}
    assert (
        facts.numbers.compared[0].needs
        == "waits for runs without a result: ppo seed 2 (crashed), 3 (missing)"
    )
    assert describe_head(facts)["runs"] == (
        "5 planned: 2 finished, 1 diverged, 1 crashed, 1 missing; and 1 that were not planned"
    )
    assert alarms_of(root)["Not as planned"] == [
        "not planned in experiment.json, but counted: grpo-arithmetic-s2"
    ]


def test_experiment_without_its_plan_and_arm_without_a_seed_are_named(root: Path) -> None:
    (root / "experiment.json").unlink()
    shutil.rmtree(root / "ppo-arithmetic-s3")
    assert alarms_of(root)["Not as planned"] == [
        "experiment.json is missing or damaged, so it is unknown which runs were planned",
        "ppo on arithmetic has no run of seed 3, which other arms have",
    ]


# Mixtures


def test_rate_changed_midway_is_shown_in_the_alarm_and_in_the_settings(root: Path) -> None:
    change = "train.learning_rate.policy: 0.001 -> 0.0001"
    attempts(root, RUN, {"resumed_at": 17, "changes": [change]})
    run = load(root).runs[0]
    assert describe(histories(run)["train.learning_rate.policy"]) == "0.001 until step 17, then 0.0001"
    assert alarms_of(root) == {
        "Changed while the run ran": [f"{RUN}: train.learning_rate.policy 0.001 until step 17, then 0.0001"]
    }
    first = all_settings(load(root))[0]
    assert first.key == "train.learning_rate.policy" and first.changed == {"grpo"}
    assert first.values["grpo"] == "0.001 until step 17, then 0.0001 | 0.0001"
    page = words(root)
    assert '<td class="alert">0.001 until step 17, then 0.0001 | 0.0001</td>' in page


@pytest.mark.parametrize(
    ("later", "value"),
    [
        # the attempt that changed it was thrown away up to step 10, and its setting stayed
        ([{"resumed_at": 17, "changes": ["a: 1 -> 2"]}, {"resumed_at": 10}], "1 until step 10, then 2"),
        # its process died before it resumed anything
        ([{"changes": ["a: 1 -> 2"]}, {"resumed_at": 10}], "1 until step 10, then 2"),
        (
            [{"resumed_at": 5, "changes": ["a: 1 -> 2"]}, {"resumed_at": 9, "changes": ["a: 2 -> 1"]}],
            "1 until step 5, then 2 until step 9, then 1",
        ),
        # changed back before the change had done anything
        ([{"resumed_at": 5, "changes": ["a: 1 -> 2"]}, {"resumed_at": 5, "changes": ["a: 2 -> 1"]}], ""),
        # begun anew, with the new value alone
        ([{"resumed_at": 0, "changes": ["a: 1 -> 2"]}], ""),
    ],
)
def test_history_follows_what_the_logs_hold(root: Path, later: list[Any], value: str) -> None:
    attempts(root, RUN, *later)
    by_name = histories(load(root).runs[0])
    assert {name: describe(stretches) for name, stretches in by_name.items()} == (
        {"a": value} if value else {}
    )


def test_change_of_an_older_record_has_an_unknown_step(root: Path) -> None:
    def add(provenance: Any) -> None:
        provenance["attempts"] += [
            provenance["attempts"][0] | {"attempt": 2, "changes": ['model.name: "a" -> "b"']}
        ]

    edit(root / RUN / "provenance.json", add)
    (line,) = alarms_of(root)["Changed while the run ran"]
    assert line == f"{RUN}: model.name a until a step that is not recorded, then b"


def test_seeds_of_an_arm_with_different_settings_are_named(root: Path) -> None:
    retell(root / RUN / "run.toml", "prompts_per_step = 16", "prompts_per_step = 8")
    assert alarms_of(root) == {
        "Seeds of one arm with different settings": [
            "grpo on arithmetic: train.prompts_per_step is 8 in seed 1, 16 in seed 2, 3"
        ]
    }


def test_who_is_told_of_a_seed_is_no_setting(root: Path) -> None:
    observed = 'seed = 1\nbeside = "/study"\nobserve = [{ name = "mine:Printer" }]'
    retell(root / RUN / "run.toml", "seed = 1", observed)
    assert not alarms_of(root)
    assert not {"observe", "beside"} & {setting.key for setting in all_settings(load(root))}


def test_checks_that_would_have_stopped_a_seed_may_differ_between_seeds(root: Path) -> None:
    """One was made by an older version, or was let go on: its numbers are what they are."""
    path = root / RUN / "run.toml"
    path.write_text(path.read_text() + '\n[checks]\nstart = "warn"\ngrader = "off"\n')
    assert not alarms_of(root)


def test_mixed_versions_are_named(root: Path) -> None:
    edit(root / RUN / "provenance.json", lambda o: o["attempts"][0]["versions"].update(torch="2.9.0"))
    assert alarms_of(root) == {"Different versions or devices": [f"torch: 2.13.0 in 5 runs; 2.9.0 in {RUN}"]}


def test_other_vector_instructions_are_named_and_runs_that_do_not_say_are_left_out(root: Path) -> None:
    others = [path for path in root.glob("*/provenance.json") if path.parent.name != RUN]
    for path in others[1:]:
        edit(path, lambda o: o["attempts"][0].update(vectors="AVX2"))
    edit(others[0], lambda o: o["attempts"][0].update(vectors=""))  # on a GPU
    assert not alarms_of(root)
    edit(root / RUN / "provenance.json", lambda o: o["attempts"][0].update(vectors="AVX512"))
    assert alarms_of(root) == {
        "Different versions or devices": [f"vector instructions: AVX2 in 4 runs; AVX512 in {RUN}"]
    }


def test_pins_must_agree_where_settings_choose_the_same(root: Path) -> None:
    for path in root.glob("*/provenance.json"):
        edit(path, lambda o: o.update(fingerprints={"test problems": "a" * 64, "model weights": "b" * 64}))
    retell(root / "ppo-arithmetic-s1/run.toml", 'name = "nano"', 'name = "other"')
    edit(
        root / "ppo-arithmetic-s1/provenance.json",
        lambda o: o["fingerprints"].update({"model weights": "c" * 64}),
    )
    assert "Different data or models under the same settings" not in alarms_of(root)
    edit(root / RUN / "provenance.json", lambda o: o["fingerprints"].update({"test problems": "d" * 64}))
    assert alarms_of(root)["Different data or models under the same settings"] == [
        f"test problems: {'a' * 12} in 5 runs; {'d' * 12} in {RUN}"
    ]


# Folders that are not what they say


def test_copied_folder_is_named_and_not_counted(root: Path) -> None:
    before = accuracies(load(root), finals(load(root)))
    shutil.copytree(root / RUN, root / "grpo-arithmetic-s7")
    after = accuracies(load(root), finals(load(root)))
    assert before.equals(after)
    assert alarms_of(root)["Folders that are not what they say"] == [
        f"grpo-arithmetic-s7 contains {RUN}, according to its run.toml; it is not counted"
    ]


def test_copy_with_a_mended_configuration_is_seen_by_its_provenance(root: Path) -> None:
    shutil.copytree(root / RUN, root / "grpo-arithmetic-s7")
    retell(root / "grpo-arithmetic-s7/run.toml", "seed = 1", "seed = 7")
    lines = alarms_of(root)["Folders that are not what they say"]
    assert lines == [
        f"{RUN}, grpo-arithmetic-s7 come from the same process, so all but one are copies; all are counted"
    ]
    assert (
        "not planned in experiment.json, but counted: grpo-arithmetic-s7" in alarms_of(root)["Not as planned"]
    )


def test_run_of_another_experiment_is_named(root: Path) -> None:
    retell(root / RUN / "run.toml", 'experiment = "synthetic"', 'experiment = "elsewhere"')
    assert (
        f"{RUN} was made for experiment elsewhere, according to its run.toml; it is counted"
        in (alarms_of(root)["Folders that are not what they say"])
    )


# Test problems that were trained on


def digests(root: Path, name: str, **splits: Mapping[str, str]) -> None:
    data = zstandard.ZstdCompressor().compress(json.dumps(splits).encode())
    (root / name / "problems.json.zst").write_bytes(data)


def test_test_problem_in_the_training_split_is_named(root: Path) -> None:
    prompt, truth = "0123456789", "abcdefabcd"
    digests(root, RUN, train={"t1": prompt + truth}, test={"p1": "9" * 20, "p2": prompt + "other12345"})
    assert alarms_of(root) == {}  # the same prompt with another answer is another problem
    digests(root, RUN, train={"t1": prompt + truth}, test={"p1": "9" * 20, "p2": prompt + truth})
    line = f"1 of 2 test problems are training problems, such as p2: {RUN}"
    assert alarms_of(root) == {"Evaluated on problems that were trained on": [line]}
    digests(root, RUN, train={"pair 1": prompt}, test={"p2": prompt + truth})  # a preference file's prompts
    assert "1 of 1 test problems" in alarms_of(root)["Evaluated on problems that were trained on"][0]
