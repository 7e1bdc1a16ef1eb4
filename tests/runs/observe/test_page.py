"""docs/callbacks.md says what happens: its files are written out and run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.whole_runs import rows

from grpobench.runs import cli
from grpobench.runs.settings.recipe import read_recipe

PAGE = Path(__file__).parents[3] / "docs" / "callbacks.md"


def write(folder: Path) -> dict[str, str]:
    """The page's files by the name in their first line, written to a folder."""
    text_by_name = dict(re.findall(r"```\w+\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL))
    for name, text in text_by_name.items():
        (folder / name).write_text(text)
    return text_by_name


@pytest.fixture(autouse=True)
def quick(warm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without a report that nobody looks at."""
    monkeypatch.setattr("grpobench.runs.commands.run.FORMATS", ("json",))


def launch(folder: Path, name: str) -> None:
    assert cli.main(["run", str(folder / name), "--out", str(folder / "results"), "--workers", "1"]) == 0


def test_every_block_of_the_page_is_a_file(tmp_path: Path) -> None:
    assert list(write(tmp_path)) == ["study.toml", "mine.py", "tracked.toml", "rates.toml", "rates.py"]
    assert PAGE.read_text().count("```") == 2 * 5


def test_the_callbacks_of_the_page(tmp_path: Path) -> None:
    write(tmp_path)
    launch(tmp_path, "study.toml")
    run = tmp_path / "results" / "study" / "grpo-arithmetic-s0"
    written = rows(run)
    correct = {row["step"]: row.get("eval/validation/greedy/correct") for row in written}
    best = json.loads((run / "best.json").read_text())
    evaluated = [value for value in correct.values() if value is not None]
    assert best["state"] == "finished" and correct[best["step"]] == max(evaluated)
    printed = [line for line in (run / "log.txt").read_text().splitlines() if line.startswith("step ")]
    assert printed == [f"step {row['step']}: {len(row)} numbers" for row in written[::2]]


def test_the_schedules_of_the_page(tmp_path: Path) -> None:
    write(tmp_path)
    launch(tmp_path, "rates.toml")

    def rates(arm: str) -> list[float]:
        return [
            row["learning_rate/policy"] for row in rows(tmp_path / f"results/rates/{arm}-arithmetic-s0")[1:]
        ]

    # a warm-up of one step, then three steps; cosine(1/3) = 0.75, cosine(2/3) = 0.25; two cycles: 0, 2/3, 4/3
    assert rates("cosine") == pytest.approx(
        [1e-3, 1e-3, 1e-3 * (0.1 + 0.9 * 0.75), 1e-3 * (0.1 + 0.9 * 0.25)]
    )
    assert rates("restarts") == pytest.approx([1e-3, 1e-3, 0.25e-3, 0.75e-3])
    assert rates("stairs") == pytest.approx([1e-3, 1e-3, 1e-3, 0.5e-3])


def test_the_tracked_recipe_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read here; test_trackers.py runs the trackers."""
    monkeypatch.setattr("grpobench.runs.settings.observe.unknown", lambda name: "")
    write(tmp_path)
    first, second = read_recipe(str(tmp_path / "tracked.toml")).configs[0].observe
    assert (first.name, dict(first.settings)) == ("tensorboard", {})
    assert (second.name, dict(second.settings)) == ("wandb", {"project": "study", "mode": "offline"})
