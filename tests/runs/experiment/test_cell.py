"""Progress in a notebook: one output, replaced in place, that holds the last state in the end."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from helpers import stand_ins
from helpers.experiments import recipe, states_by_arm
from helpers.logs import rows
from rich.console import Console
from rich.text import Text

from grpobench.runs.experiment import display as cell
from grpobench.runs.experiment.display import Display, NotebookOutput
from grpobench.runs.experiment.experiment import run_experiment
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.tools.screen import print_line


class Notebook:
    """Keeps what the outputs of a cell hold now, and how often each was replaced."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []
        self.updates = 0

    def display(self, *objects: Any, raw: bool = False, display_id: bool = False) -> Any:
        for shown in objects:
            self.outputs.append(shown if raw else shown._repr_mimebundle_([], []))
        index = len(self.outputs) - 1

        def update(bundle: dict[str, str], raw: bool) -> None:
            assert raw
            self.outputs[index] = bundle
            self.updates += 1

        return SimpleNamespace(update=update) if display_id else None


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """An IPython of which only `display` is here."""
    fake_notebook = Notebook()
    module = ModuleType("IPython.display")
    module.display = fake_notebook.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return fake_notebook


def test_an_experiment_in_a_notebook_leaves_its_table(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    stand_ins.register(monkeypatch)
    console = Console(force_jupyter=True, file=io.StringIO())
    parsed_recipe = recipe(tmp_path, "fine", "raise")
    outcome = run_experiment(parsed_recipe, tmp_path, execute="helpers.stand_ins.execute", console=console)
    assert states_by_arm(outcome) == {"fine": "finished", "raise": "crashed"}
    table, failure = notebook.outputs
    lines = table["text/plain"].splitlines()
    assert lines[1].split()[:3] == ["fine-sums-s0", "finished", "3/3"]
    assert "2 runs: 1 crashed, 1 finished" in lines[-1]
    assert "<pre" in table["text/html"] and "finished</span>" in table["text/html"]
    assert "ArithmeticError: it went wrong" in failure["text/plain"]


def stand_in_runs(folder: Path, monkeypatch: pytest.MonkeyPatch, *arms: str) -> list[ExperimentRun]:
    stand_ins.register(monkeypatch)
    return [ExperimentRun(config, folder / config.arm) for config in recipe(folder, *arms).runs()]


def test_runs_that_ended_before_show_what_they_logged(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of three steps: reward 0.3, 100 tokens in 2 s."""
    runs = stand_in_runs(tmp_path, monkeypatch, "fine", "unlogged")
    for run in runs:
        run.state = "finished"
    runs[0].path.mkdir()
    (runs[0].path / "metrics.jsonl").write_text(rows(3, 4.0))
    with Display(Console(force_jupyter=True), runs, 1):
        pass
    message, table = (output["text/plain"] for output in notebook.outputs)
    assert message == "2 of 2 runs already have a result"
    assert [line.split() for line in table.splitlines()[1:3]] == [
        ["fine", "finished", "3/3", "0.300", "50"],
        ["unlogged", "finished", "-/3"],
    ]
    assert "\x1b" not in message + table


def test_a_long_line_is_broken_by_the_cell_and_may_hold_anything(notebook: Notebook) -> None:
    print_line(Console(force_jupyter=True), "it <failed> \x1b[2Jhere " + "because " * 40)
    (line,) = notebook.outputs
    assert len(line["text/plain"].splitlines()) == 1 and "\x1b" not in line["text/plain"]
    assert "white-space:pre-wrap" in line["text/html"] and "&lt;failed&gt;" in line["text/html"]
    print_line(Console(force_jupyter=True, quiet=True), "not to be seen")
    assert len(notebook.outputs) == 1


def test_an_output_is_replaced_at_most_so_often_and_the_last_state_stays(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(cell, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    shown = NotebookOutput(Console(force_jupyter=True))
    shown.start()
    for tick in range(9):  # 0, 0.25, … 2.0 s: shown at every second of them
        clock[0] = tick / 4
        shown.update(f"tick {tick}")
    assert notebook.updates == 5 and "tick 8" in notebook.outputs[0]["text/plain"]
    shown.update(Text("tick <9>"))
    assert notebook.updates == 5
    shown.stop()
    assert notebook.updates == 6 and "tick &lt;9&gt;" in notebook.outputs[0]["text/html"]


def test_ipython_itself_takes_the_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    InteractiveShell.instance()
    with capture_output() as captured:
        shown = NotebookOutput(Console(force_jupyter=True))
        shown.start()
        shown.update("half way")
        shown.update("done")
        shown.stop()
    last = captured.outputs[-1]
    assert "done" in last.data["text/plain"] and "<pre" in last.data["text/html"]
    assert last.update  # the first output is replaced, not followed
