"""The notebooks run from top to bottom, and are stored without what they printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
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
