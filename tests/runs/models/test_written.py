"""Policies that are fitted to a written distribution, in any size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpobench.runs.models import written


def fit(monkeypatch: pytest.MonkeyPatch, folder: Path, hidden_size: int) -> None:
    sizes = ["--hidden-size", str(hidden_size), "--layers", "3"]
    monkeypatch.setattr("sys.argv", ["written", str(folder), "--task", "walk", "--steps", "1", *sizes])
    written.main()


def test_the_sizes_are_those_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(monkeypatch, tmp_path, 16)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]) == (16, 48, 3)


@pytest.mark.parametrize("hidden_size", [0, 62, 100])
def test_four_heads_of_even_width_must_fit(
    hidden_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        fit(monkeypatch, tmp_path, hidden_size)
    assert (
        f"--hidden-size must be a multiple of 8, four heads of even width, not {hidden_size}"
        in capsys.readouterr().err
    )
