"""Registrations, what departs from them, and kept tables that give the same answer as the runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.edits import edit
from helpers.findings import finding, kept_again, question, register
from helpers.synthetic import Synthetic

from grpobench.analysis.findings.record import (
    FILE,
    departures,
    read_kept,
    read_registration,
    record_of,
    record_text,
)
from grpobench.analysis.findings.result import as_row
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load

SEEDS = (1, 2, 3, 4, 5, 6)
AFTER = "2026-01-01T00:00:01+0000"  # runs begin at 2026-01-01T00:00:00
RULE = finding(
    question(outcome="accuracy:greedy"),
    question("b is shorter", outcome="evaluated:sampled/length", also=True, expect="same", matters=2.0),
    question("entropy", outcome="training:policy/entropy:last", also=True, ratio=True, matters=1.5),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Twelve runs, of which `a` ends 10 to 12 points above `b`; one of them diverged."""
    made = Synthetic(
        arms=("a", "b"),
        tasks=("sums",),
        seeds=SEEDS,
        steps=4,
        every=2,
        accuracy=lambda arm, task, seed: 0.5 + (0.1 + 0.003 * seed) * (arm == "a"),
        states={("b", "sums", 3): ("diverged", 3)},
        name="f-nano",
    )
    experiment_folder = made.write(tmp_path)
    register(experiment_folder, RULE)
    return experiment_folder


# Registrations


def test_a_registration_is_read_as_it_was_written(root: Path) -> None:
    assert read_registration(root) == register(root, RULE)
    assert read_registration(root).finding.digest == RULE.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table["finding"]["test"][0].update(matters=0.1), "its rule was edited after it"),
        (lambda table: table["finding"].update(claim="b beats a"), "edited after it was written"),
        (lambda table: table["finding"]["test"][0].update(outcome="acuracy"), "unknown kind 'acuracy'"),
        (
            lambda table: table["finding"]["test"][0].update(color="red"),
            "unexpected keyword argument 'color'",
        ),
        (lambda table: table.update(version=99), "of another version"),
        (lambda table: table.update(registered="yesterday"), "Invalid isoformat string: 'yesterday'"),
        (lambda table: table.pop("settings"), "settings"),
        (lambda table: table.pop("rule"), "rule"),
    ],
)
def test_a_damaged_registration_names_file_fault_and_remedy(
    root: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(root / FILE, change)
    with pytest.raises(LogError) as error:
        read_registration(root)
    assert message in str(error.value)
    assert str(error.value).startswith(f"{root / FILE}: no registration (")
    assert str(error.value).endswith("; run the finding anew in another folder")


def test_what_is_no_registration_at_all(root: Path) -> None:
    (root / FILE).write_text("{")
    with pytest.raises(LogError, match=r"registration.json, line 1: not JSON .*; choose another folder"):
        read_registration(root)
    (root / FILE).write_text("[1]")
    with pytest.raises(LogError, match="must contain a JSON object; choose another folder"):
        read_registration(root)
    (root / FILE).unlink()
    with pytest.raises(LogError, match="missing; `grpobench finding run` writes it before the first run"):
        record_of(load(root))


# Departures


def test_runs_as_registered_depart_from_nothing(root: Path) -> None:
    assert record_of(load(root)).departures == ()


def test_other_settings_and_other_runs_are_named(root: Path) -> None:
    settings_file = root / "a-sums-s2" / "run.toml"
    settings_file.write_text(
        settings_file.read_text().replace("prompts_per_step = 16", "prompts_per_step = 17")
    )
    edit(root / FILE, lambda table: [table["settings"].pop(f"b-sums-s{seed}") for seed in (5, 6)])
    assert departures(load(root), read_registration(root)) == [
        "other settings than registered in a-sums-s2",
        "not registered: b-sums-s5 and 1 more",
    ]


@pytest.mark.parametrize(
    ("started", "early"),
    [
        ("2026-01-01T00:00:00", True),  # without an offset it counts as UTC
        ("2026-01-01T00:00:02+0000", False),
        ("2026-01-01T00:00:01+0000", False),  # in the same second
        ("2025-12-31T19:00:02-0500", False),  # two seconds past midnight in UTC, on an earlier day here
        ("2026-01-01T01:00:00+0100", True),  # midnight in UTC
    ],
)
def test_a_run_begun_before_the_registration_is_told_whatever_its_clock(
    root: Path, started: str, early: bool
) -> None:
    for provenance_file in root.glob("*/provenance.json"):
        edit(provenance_file, lambda table: table["attempts"][0].update(started="2026-06-01T00:00:00+0000"))
    edit(root / "a-sums-s1" / "provenance.json", lambda table: table["attempts"][0].update(started=started))
    registration = register(root, RULE, AFTER)
    expected = ["begun before the registration: a-sums-s1"] if early else []
    assert departures(load(root), registration) == expected


def test_a_registered_run_that_is_missing_is_waited_for(root: Path) -> None:
    edit(root / FILE, lambda table: table["settings"].update({"a-sums-s7": "0" * 16}))
    record = record_of(load(root))
    assert record.waits == ("a-sums-s7",)
    assert record.result().verdict == "unresolved"
    edit(root / "b-sums-s1" / "status.json", lambda table: table.update(state="crashed"))
    assert record_of(load(root)).waits == ("b-sums-s1", "a-sums-s7")


# Kept tables


def test_a_kept_table_gives_what_the_runs_gave(root: Path) -> None:
    record = record_of(load(root))
    result = record.result()
    assert result.verdict == "supported"
    # by hand: (10.3, 10.6, 50 + 10.9, 11.2, 11.5, 11.8) points; b-s3 diverged and counts as 0
    assert [round(value, 4) for value in result.primary.contrasts] == [
        0.103,
        0.106,
        0.609,
        0.112,
        0.115,
        0.118,
    ]
    again = kept_again(record, root.parent)
    assert as_row(again.result()) == as_row(result)
    assert again.registration == record.registration
    assert (again.departures, again.waits, dict(again.states)) == ((), (), dict(record.states))
    assert record_text(again) == record_text(record)
    assert str(root) not in record_text(record)  # no place of this machine
    lengths = {run: value for run, value in again.values["b is shorter"].items() if math.isfinite(value)}
    assert ("b", "sums", 3) not in lengths and len(lengths) == 11  # it diverged before its test


def test_a_kept_table_keeps_departures_and_judges_by_another_rule(root: Path) -> None:
    register(root, RULE, AFTER)
    again = kept_again(record_of(load(root)), root.parent)
    assert again.departures == ("begun before the registration: a-sums-s1 and 11 more",)
    strict = replace(RULE, test=(replace(RULE.test[0], expect="lower"), *RULE.test[1:]))
    assert again.result(strict).verdict == record_of(load(root)).result(strict).verdict == "contradicted"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.update(version=3), "of another version"),
        (lambda table: table.update(kind="experiment"), "of the kind 'experiment' and not 'finding'"),
        (lambda table: table.pop("runs"), "'runs'"),
        (lambda table: table["runs"][0].pop("seed"), "'seed'"),
        (lambda table: table["runs"][0]["values"].update({"a is better": "high"}), "could not convert"),
        (lambda table: table["registration"]["finding"].update(claim="another"), "its rule was edited"),
    ],
)
def test_a_damaged_kept_table_names_file_fault_and_remedy(
    root: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    kept_again(record_of(load(root)), root.parent)
    path = root.parent / "kept.json"
    edit(path, change)
    with pytest.raises(LogError) as error:
        read_kept(path)
    assert message in str(error.value) and str(error.value).startswith(f"{path}: no ")
    assert "write it again with grpobench keep" in str(error.value) or "run the finding anew" in str(
        error.value
    )


def test_a_kept_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"none.json: no kept finding \(not found; write it again"):
        read_kept(tmp_path / "none.json")


def test_what_was_spent_is_added_up(root: Path) -> None:
    seconds = record_of(load(root)).provenance.seconds
    metrics = [
        json.loads(line) for path in root.glob("*/metrics.jsonl") for line in path.read_text().splitlines()
    ]
    assert seconds == pytest.approx(sum(row.get("time/step", 0.0) for row in metrics))
    assert kept_again(record_of(load(root)), root.parent).provenance.seconds == round(seconds)
