"""The notebooks run from top to bottom, and are stored without what they printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
TINY = """
import grpobench
recipe = grpobench.recipe({
    "name": "tiny",
    "tasks": ["arithmetic"],
    "seeds": [0],
    "train": {"steps": 1, "prompts_per_step": 2, "group_size": 2, "num_minibatches": 1},
    "evaluate": {"problems": 2, "test_problems": 2, "every": 0},
    "arm": [{"algorithm": "grpo", "train": {"learning_rate": 1e-4}}],
})
grpobench.run(recipe, "results", workers=1);
"""
SHELL = """
name = "shell"
tasks = ["arithmetic"]
seeds = [0]
train = { steps = 1, prompts_per_step = 2, group_size = 2, num_minibatches = 1 }
evaluate = { problems = 2, test_problems = 2, every = 0 }
[[arm]]
algorithm = "grpo"
train.learning_rate = 1e-4
"""
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
QUICK = "SEEDS = range(1)\nSTEPS = 2"
"""In the place of a notebook's first cell of code, tagged `parameters`."""


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_the_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["figures-for-a-paper", "reading-a-collapse", "your-variant"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    assert "/home" not in path.read_text() and "widgets" not in read(path).metadata


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = read(path)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    assert set(parameters.source.split()) >= {"SEEDS", "STEPS"}
    parameters.source = QUICK
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in shown)  # a figure is seen
    assert not [output for output in shown if output.output_type == "error"]


def printed(cell: Any) -> str:
    """What a cell shows as text."""
    return "".join(output.get("text") or output["data"]["text/plain"] for output in cell.outputs)


@pytest.mark.slow
def test_progress_in_a_notebook_is_one_table_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real kernel. The cells: a run; the same call, whose run has a result; and a command of the shell, to
    which the kernel gives a terminal that moves no cursor."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    Path(tmp_path / "tiny.toml").write_text(SHELL)
    again = "grpobench.run(recipe, 'results', workers=1);"
    shell = f"!{sys.executable} -m grpobench run tiny.toml --workers 1 --out results"
    notebook = new_notebook(cells=[new_code_cell(source) for source in (TINY, again, shell)])
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    first, second, third = notebook.cells
    (table,) = first.outputs
    heading, row, summary = table["data"]["text/plain"].splitlines()
    assert heading.split()[:3] == ["run", "state", "step"]
    assert row.split()[:3] == ["grpo-arithmetic-s0", "finished", "1/1"]
    assert summary.startswith("1 run: 1 finished; took ")
    assert "monospace" in table["data"]["text/html"]
    assert "1 of 1 runs already have a result" in printed(second) and row in printed(second)
    lines = printed(third).splitlines()
    assert [line for line in lines if line.startswith("[1/1]  grpo-arithmetic-s0  finished  step 1/1")]
    assert not [line for line in lines if line.split()[:2] == heading.split()[:2]]
    assert "\x1b" not in printed(first) + printed(second) + printed(third)
