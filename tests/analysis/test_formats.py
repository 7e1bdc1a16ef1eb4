"""Folders of format 1: reports and figures read them as they read today's; runs do not resume in them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.synthetic import Synthetic

from grpobench.analysis.runfolder import checksums, formats
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.topics.accuracy import finals
from grpobench.analysis.topics.runs import all_settings
from grpobench.runs import cli
from grpobench.runs.tools import toml


def back(names: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in names.items()}


def as_format_1(folder: Path) -> None:
    """Give the files, keys and metrics of an experiment the names that they had in format 1."""
    for name, old in formats.OLD_FILES.items():
        for path in sorted(folder.rglob(name)):
            content = json.loads(path.read_text())
            content = {
                key: value for key, value in content.items() if key not in (formats.KEY, checksums.SEAL)
            }
            content = formats.renamed(content, back(formats.OLD_KEYS[name]))
            path.with_name(old).write_text(json.dumps(content))
            path.unlink()
    for path in sorted(folder.glob("*/run.toml")):
        config: dict[str, Any] = tomllib.loads(path.read_text())
        for table in ("train", "sampler"):
            if table in config:
                config[table] = formats.renamed(config[table], back(formats.OLD_SETTINGS[table]))
        path.write_text(toml.write(formats.renamed(config, back(formats.OLD_SETTINGS[""]))))
    for path in sorted(folder.glob("*/metrics.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text(
            "".join(json.dumps(formats.renamed(row, back(formats.OLD_METRICS))) + "\n" for row in rows)
        )
    for name in ("*.sums", "sums.json"):
        for path in folder.rglob(name):
            path.unlink()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One experiment as it is written today, and as format 1 wrote it."""
    folders = []
    for name in ("today", "before"):
        root = tmp_path_factory.mktemp(name)
        made = Synthetic(arms=("grpo", "gspo"), tasks=("arithmetic",), seeds=(1, 2), steps=6, every=3)
        folders.append(made.write(root))
    as_format_1(folders[1])
    return folders[0], folders[1]


def test_numbers_and_settings_are_the_same(pair: tuple[Path, Path]) -> None:
    today, before = map(load, pair)
    assert formats.is_old(pair[1]) and not formats.is_old(pair[0])
    assert today.metrics.equals(before.metrics) and "time/read" not in before.names()
    assert today.evaluations.equals(before.evaluations) and finals(today).equals(finals(before))
    assert [run.provenance.get("fingerprints") for run in today.runs] == [
        run.provenance.get("fingerprints") for run in before.runs
    ]
    keys = [setting.key for setting in all_settings(today)]
    assert keys == [setting.key for setting in all_settings(before)] and "train.group_size" in keys


def test_runs_do_not_resume_in_it(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recipe = tmp_path / f"{pair[1].name}.toml"
    recipe.write_text('tasks = ["arithmetic"]\n[[arm]]\nalgorithm = "grpo"\n')
    assert cli.main(["run", str(recipe), "--out", str(pair[1].parent)]) == 2
    stderr = capsys.readouterr().err
    assert f"{pair[1]}: was written in format 1 of an older version" in stderr
    assert "report and figure read" in stderr and "choose another --out" in stderr
    assert (pair[1] / "matrix.json").exists() and not (pair[1] / "experiment.json").exists()
