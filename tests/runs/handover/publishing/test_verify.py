"""`grpobench contribute --verify`: an honest contribution returns, one that lies is caught, and the page of
records says which is which."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.synthetic import Synthetic
from helpers.warm import Warm

import grpobench
from grpobench.analysis.runfolder import checksums
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.load import load
from grpobench.runs import cli
from grpobench.runs.handover.publishing import fileset, verify
from grpobench.runs.inventory import records_page, templating
from grpobench.runs.tools import files
from grpobench.tasks.data import bounded

Capture = pytest.CaptureFixture[str]
NAME = "arithmetic-study"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment of three seeds of two arms on arithmetic, two steps each."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        for module in ("pool", "trial"):
            patch.setattr(f"grpobench.runs.experiment.{module}.multiprocessing", Warm)
        grpobench.run(
            {
                "name": "small",
                "tasks": ["arithmetic"],
                "model": {"name": "nano"},
                "train": {"steps": 2, "prompts_per_step": 2, "group_size": 2},
                "evaluate": {"every": 1, "problems": 64, "test_problems": 64, "samples": 0},
                "arm": [{"algorithm": "grpo"}, {"algorithm": "rloo"}],
            },
            out=folder,
            seeds=[0, 1, 2],
            progress=False,
            workers=1,
            trial=False,
        )
    return folder / "small"


def publish(source: Path, out: Path) -> Path:
    assert cli.main(["publish", str(source), "--out", str(out), "--contributor", "Somebody Else"]) == 0
    return out


@pytest.fixture(scope="module")
def published(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(made, tmp_path_factory.mktemp("sets") / NAME)


def lie(source: Path, to: Path, change: Any) -> Path:
    """A copy of the experiment in which `change` edits each row of every log after the base's, with every
    checksum that a run writes."""
    forged = Path(shutil.copytree(source, to / "small"))
    for run in forged.glob("*-s*"):
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lines = [json.dumps(row if row["step"] == 0 else row | change(row)) for row in rows]
        content = ("\n".join(lines) + "\n").encode()
        (run / "metrics.jsonl").write_bytes(content)
        (run / "metrics.jsonl.sums").write_bytes(checksums.marks_of(content))
        (run / "sums.json").write_bytes(files.sums_of(run, [run / name for name in checksums.read_sums(run)]))
    return forged


def test_an_honest_contribution_returns_in_every_number_on_the_machine_that_made_it(
    published: Path, tmp_path: Path, capsys: Capture, warm: None
) -> None:
    assert cli.main(["contribute", str(published), "--verify", "--to", str(tmp_path / "results")]) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"^small: running \S+ again$", printed, re.M)) == 4  # two arms at two of the seeds
    (path,) = (tmp_path / "results").rglob("verified.json")
    verified = json.loads(path.read_bytes())
    assert (verified["runs"], verified["identical"]) == (4, 4)
    assert len(verified["seeds"]["small"]) == 2 and {*verified["seeds"]["small"]} < {0, 1, 2}
    page = records_page.records_page(templating.templates(), tmp_path / "results")
    assert f"| `{NAME}` | Somebody Else | " in page and "| 4 runs | 4 |" in page


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda row: {name: 1.0 for name in row if name.startswith("eval/validation/greedy/correct")},
            r"grpo on arithmetic: eval/validation/greedy/correct at step 1 is 1 by 2 logs, and 0\.\d+ when",
        ),
        (
            lambda row: {"cost/generated_tokens": row["cost/generated_tokens"] / 2},
            r"cost/generated_tokens at step \d is [\d.]+ by 2 logs, and [\d.]+ when they are run again",
        ),
    ],
    ids=["accuracy", "tokens"],
)
def test_a_record_that_lies_with_good_checksums_passes_the_check_and_is_caught_by_two_seeds(
    made: Path, tmp_path: Path, capsys: Capture, warm: None, change: Any, message: str
) -> None:
    false = publish(lie(made, tmp_path, change), tmp_path / NAME)
    assert cli.main(["contribute", str(false), "--check"]) == 0
    assert cli.main(["contribute", str(false), "--verify", "--to", str(tmp_path / "results")]) == 2
    error = capsys.readouterr().err
    assert "does not return" in error and re.search(message, error)
    assert not (tmp_path / "results").exists()


def test_the_seeds_are_drawn_by_the_checksums(tmp_path: Path) -> None:
    """Whoever lies about one seed alone cannot choose that it is not drawn."""
    drawn = set()
    for number in range(20):
        (tmp_path / fileset.SUMS).write_text(f"{number}")
        seeds = verify.choose_seeds(tmp_path, range(20))
        assert seeds == verify.choose_seeds(tmp_path, range(20)) and len({*seeds}) == 2
        drawn |= {*seeds}
    assert len(drawn) > 10


NAN = math.nan


@pytest.mark.parametrize(
    ("logged", "departs"),
    [
        ((0.96, 0.96, 0.96), False),
        ((0.54, 0.54, 0.54), False),
        ((0.97, 0.97, 0.97), True),
        ((0.94, 1.0, 0.85), False),  # of seeds that differ, by 0.06 in the median
        ((0.97, 0.97, 0.0), True),  # one wild seed
        ((NAN, NAN, NAN), True),
        ((0.5, None, 0.5), True),  # None: the log has no such row
    ],
)
def test_what_another_machine_measures_may_differ_within_the_spread_of_seeds(
    tmp_path: Path, logged: tuple[float | None, ...], departs: bool
) -> None:
    """By hand: 3 of 4 of 64 problems have the deviation √(3/16/64) = 0.0541, the difference of two means of
    two runs as much, and four of these are 0.217."""
    name = "eval/validation/greedy/correct"

    made = Synthetic(arms=("grpo",), tasks=("arithmetic",), problems=64).write(tmp_path)

    def experiment(accuracies: Sequence[float | None]) -> Experiment:
        numbers = ((1, "cost/generated_tokens", 100.0), (0, name, 0.5))
        rows = [
            ("grpo", "arithmetic", seed, step, metric, value)
            for seed, accuracy in enumerate(accuracies)
            for step, metric, value in (*numbers, (1, name, accuracy))
            if value is not None
        ]
        metrics = pd.DataFrame(rows, columns=["arm", "task", "seed", "step", "metric", "value"])
        return replace(load(made), metrics=metrics, seeds=(*range(len(accuracies)),))

    claimed = experiment(logged)
    pairs = verify.paired(claimed, experiment((0.75, 0.75)))
    lines = [*verify.departures(claimed, pairs)]
    assert bool(lines) == departs
    assert all(line.startswith(f"grpo on arithmetic: {name} at step 1 is ") for line in lines)
    assert verify.count_identical(pairs) == 0
    assert verify.count_identical(verify.paired(claimed, claimed)) == 3


def test_settings_that_name_what_is_not_here_are_refused_before_anything_runs(
    tmp_path: Path, made: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    text = bounded.read_text(next(made.glob("grpo-*-s0")) / "run.toml")
    (run / "run.toml").write_text(text.replace("[algorithm]\n", '[algorithm]\nclass = "theirs:Cls"\n'))
    with pytest.raises(grpobench.ConfigError, match=r"(?s)cannot be run here.*theirs"):
        verify.read_config(run)
