"""What the report says about samplers with weights of their own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest
from helpers.synthetic import Synthetic

from grpobench.analysis.report.facts import gather
from grpobench.analysis.runfolder.experiment import Experiment
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.costs import sampler_gaps


def logged(tmp_path: Path, values: dict[tuple[str, str], list[float]]) -> Experiment:
    """A made-up experiment whose two seeds logged these values by arm and metric, one per update."""
    experiment = load(
        Synthetic(arms=("grpo", "ppo"), tasks=("arithmetic",), seeds=(1, 2), steps=2).write(tmp_path)
    )
    rows = [
        {
            "arm": arm,
            "task": "arithmetic",
            "seed": seed,
            "step": step,
            "metric": metric,
            "value": value * seed,
        }
        for (arm, metric), numbers in values.items()
        for seed in (1, 2)
        for step, value in enumerate(numbers, 1)
    ]
    return dataclasses.replace(experiment, metrics=pd.concat([experiment.metrics, pd.DataFrame(rows)]))


def test_gaps_are_taken_together_over_updates_and_seeds(tmp_path: Path) -> None:
    experiment = logged(
        tmp_path,
        {
            ("grpo", "gap/mean"): [1e-7, 3e-7],
            ("ppo", "gap/mean"): [1e-2, 3e-2],
            ("ppo", "gap/max"): [0.2, 0.1],
            ("ppo", "gap/ess"): [0.9, 0.8],
            ("ppo", "gap/sync"): [1e-5, 2e-5],
            ("ppo", "correction/weight_mean"): [0.5, 0.7],
            ("ppo", "correction/clipped"): [0.0, 0.01],
        },
    )
    plain, engine = sampler_gaps(experiment).to_dict("records")
    # seed 2 logged twice what seed 1 did
    assert plain["mean"] == pytest.approx(3e-7) and plain["arm"] == "grpo"
    assert engine == pytest.approx(
        {
            "task": "arithmetic",
            "arm": "ppo",
            "mean": 3e-2,
            "largest": 0.4,
            "effective": 0.8,
            "after_sync": 4e-5,
            "weight": 0.9,
            "clipped": 0.0075,
        }
    )
    table = gather(experiment).tables["gaps"]
    assert table.rows[1] == ["arithmetic", "ppo", "3.0e−02", "4.0e−01", "4.0e−05", "0.8000", "0.9000", "0.8"]
    assert table.rows[0][2:] == ["3.0e−07", "–", "–", "–", "–", "–"]


def test_arms_that_lag_have_the_table(tmp_path: Path) -> None:
    values = {("ppo", "gap/mean"): [1e-2, 3e-2], ("ppo", "sampler/lag"): [0.0, 4.0]}
    (row,) = sampler_gaps(logged(tmp_path, values)).to_dict("records")
    assert (row["arm"], row["mean"]) == ("ppo", pytest.approx(3e-2))


def test_experiment_of_in_process_samplers_has_no_such_table(tmp_path: Path) -> None:
    experiment = logged(tmp_path, {("grpo", "gap/mean"): [1e-7, 3e-7]})
    assert sampler_gaps(experiment).empty and "gaps" not in gather(experiment).tables
