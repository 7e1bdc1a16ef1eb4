"""docs/plugins.md as it stands: its study, its recipe, and what is said of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.programs import here, program

from grpobench.runs import cli

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"


FILES = [
    "mine.py",
    "half.toml",
    "study.py",
    "sums.toml",
    "chat.py",
    "chat.toml",
    "ordered.py",
    "pyproject.toml",
]


def write(folder: Path) -> None:
    """The page's files, each under the name in its first line."""
    text = PAGE.read_text(encoding="utf-8")
    files = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    assert list(files) == FILES and text.count("```") == 2 * len(FILES)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")


@pytest.mark.parametrize(
    "run", [here, pytest.param(program, marks=pytest.mark.slow)], ids=["in this process", "as a program"]
)
def test_the_study_of_the_page_runs_and_is_found_done(
    run: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    for _ in (1, 2):  # the second time everything is there
        assert run("study.py").rstrip().endswith("results/study/report/index.html")
    results = tmp_path / "results" / "study"
    runs = {path.parent.name for path in results.glob("*/run.toml")}
    assert runs == {f"{arm}-sums-s{seed}" for arm in ("grpo", "half") for seed in (0, 1)}
    assert all(json.loads((results / run / "status.json").read_text())["attempt"] == 1 for run in runs)
    row = json.loads((results / "half-sums-s0" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["reward/mine:brevity"] < 0
    assert "step 3: reward" in (results / "half-sums-s0" / "log.txt").read_text()
    code = json.loads((results / "half-sums-s0" / "provenance.json").read_text())["attempts"][-1]["code"]
    assert "beside the recipe: mine.py" in code
    assert 'class = "mine:Half"' in (results / "half-sums-s0" / "run.toml").read_text()


def test_the_commands_of_the_page_find_what_is_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], warm: None
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("grpobench.runs.commands.run.FORMATS", ("json",))  # figures are tested elsewhere

    def grpobench(*words: str) -> str:
        assert cli.main(words) == 0
        return capsys.readouterr().out

    rows = [{"question": f"{a}+{b}", "answer": a + b} for a in range(8) for b in range(8)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "factor = 0.5" in grpobench("show", "algorithm", "mine:Half")
    mine = re.escape(str(tmp_path / "mine.py"))
    listed = grpobench("list", "algorithms")
    assert re.search(rf"^mine:Half +GRPO with scaled advantages \[{mine}\]$", listed, re.M)
    rewards = grpobench("list", "rewards")
    assert re.search(rf"^mine:brevity +A reward as TRL calls it.* \[{mine}\]$", rewards, re.M)
    chosen = ("--set", "arms=grpo,mine:Half", "--set", "tasks=arithmetic", "--dry-run")
    assert "(2 arms, 1 task" in grpobench("run", "quickstart", *chosen)
    checked = grpobench("tasks", "check", "sums.toml")
    assert checked.startswith("sums (written): 100 % of 64 references accepted, 0 % of 64 corrupted")
    few = ("--set", "evaluate.problems=4", "--set", "evaluate.test_problems=4")  # not its hundreds
    grpobench("run", "half.toml", "--workers", "1", *few)
    assert {path.parent.name for path in (tmp_path / "results" / "half").glob("half-*/run.toml")} == {
        "half-arithmetic-s0",
        "half-arithmetic-s1",
    }
    grpobench("run", "sums.toml", "--workers", "1")
    run = tmp_path / "results" / "sums" / "grpo-sums-s0"
    assert "4 prompts" in (run / "log.txt").read_text()
    assert "ordered:Easy" in (run / "run.toml").read_text()
