"""`grpobench merge`: one experiment of parts that were made apart, or the differences by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import stand_ins
from helpers.edits import half

from grpobench.analysis.runfolder import checksums
from grpobench.analysis.runfolder.load import load
from grpobench.runs import cli
from grpobench.runs.experiment.experiment import write_experiment
from grpobench.runs.experiment.worker import RunJob, run
from grpobench.runs.settings.recipe import Recipe, read_recipe
from grpobench.runs.tools import files
from grpobench.runs.tools.lock import Lock

TEXT = """
name = "m"
tasks = ["sums"]
seeds = [0, 1]
[train]
steps = 3
[[arm]]
algorithm = "plain"
[[arm]]
algorithm = "plain"
name = "other"
settings.clip = 0.3
"""


pytestmark = pytest.mark.usefixtures("stands")


def made(recipe_folder: Path, text: str = TEXT, sets: Sequence[str] = (), leave: Sequence[str] = ()) -> Path:
    """An experiment folder on a machine of its own; runs named in `leave` were planned and never begun."""
    recipe_folder.mkdir()
    (recipe_folder / "m.toml").write_text(text)
    parsed_recipe: Recipe = read_recipe(str(recipe_folder / "m.toml"), sets)
    folder = recipe_folder / "m"
    folder.mkdir()
    write_experiment(folder, parsed_recipe)
    for config in parsed_recipe.runs():
        if config.folder not in leave:
            ended = run(
                RunJob(config, folder / config.folder, False),
                stand_ins.execute,
                stand_ins.Nobody(),
                1,
                lambda _: None,
            )
            assert ended.fate == "finished", ended
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sum_anew(run: Path) -> None:
    """As if what is in the folder had been written by another execution."""
    log = run / "metrics.jsonl"
    log.with_name(log.name + checksums.SIDE).write_bytes(checksums.marks_of(log.read_bytes()))
    (run / checksums.SUMS_FILE).write_bytes(
        files.sums_of(run, [run / name for name in checksums.read_sums(run)])
    )


def change(before: bytes, after: bytes) -> Callable[[Path], Any]:
    def harm(path: Path) -> None:
        assert before in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(before, after, 1))

    return harm


def merge(*folders: Path) -> int:
    return cli.main(["merge", *map(str, folders)])


def test_seeds_of_three_machines_become_one_experiment_and_the_parts_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [
        made(tmp_path / "a"),
        made(tmp_path / "b", sets=["seeds=[2]"]),
        made(tmp_path / "c", sets=["seeds=[1, 3]", "arms=plain"], leave=["plain-sums-s3"]),
    ]
    before = [contents(part) for part in parts]
    assert merge(*parts, tmp_path / "all") == 0
    output = capsys.readouterr().out
    assert f"4 runs from {parts[0]}\n2 runs from {parts[1]}\n" in output
    assert "1 planned and not begun in any part: plain-sums-s3" in output
    assert [contents(part) for part in parts] == before
    table = json.loads((tmp_path / "all" / "experiment.json").read_text())
    assert (table["seeds"], table["arms"], table["sets"]) == ([0, 1, 2, 3], ["plain", "other"], [])
    for part in parts[:2]:
        for name, data in contents(part).items():
            if "/" in name and not name.endswith("/lock"):
                assert (tmp_path / "all" / name).read_bytes() == data
    assert not list((tmp_path / "all").glob("*/lock"))
    merged = load(tmp_path / "all")
    assert len([run for run in merged.runs if run.state == "finished"]) == 6


def test_what_differs_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = made(tmp_path / "a")
    others = {
        "train.steps: 3 and 4": made(tmp_path / "b", TEXT.replace("steps = 3", "steps = 4")),
        "arm.other.settings.clip: 0.3 and 0.4": made(tmp_path / "c", TEXT.replace("0.3", "0.4")),
        "--set algorithm.count: (absent) and 5": made(tmp_path / "d", sets=["algorithm.count=5"]),
    }
    for message, other in others.items():
        assert merge(first, other, tmp_path / "all") == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


def test_a_default_that_another_version_has_changed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = made(tmp_path / "a"), made(tmp_path / "b", sets=["seeds=[5]"])
    settings_file = second / "plain-sums-s5" / "run.toml"
    settings_file.write_text(settings_file.read_text().replace("count = 3", "count = 2"))
    sum_anew(settings_file.parent)
    assert merge(first, second, tmp_path / "all") == 2
    assert "have different settings: algorithm.settings.count: 3 -> 2" in capsys.readouterr().err


def test_same_run_is_taken_where_finished_and_several_results_must_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = made(tmp_path / "a", leave=["other-sums-s1"]), made(tmp_path / "b")
    status = first / "plain-sums-s0" / "status.json"
    status.write_text('{"state": "crashed", "why": "a node", "step": 2, "attempt": 1}')
    assert merge(first, second, tmp_path / "all") == 0
    run_record = json.loads((tmp_path / "all" / "plain-sums-s0" / "status.json").read_text())
    assert run_record["state"] == "finished"
    log = second / "other-sums-s0" / "metrics.jsonl"
    log.write_text(log.read_text().replace('"step": 3', '"step": 3, "time/step": 9.5'))
    sum_anew(log.parent)
    assert merge(first, second, tmp_path / "again") == 0  # only times differ
    log.write_text(log.read_text().replace("0.333", "0.334"))
    sum_anew(log.parent)
    assert merge(first, second, tmp_path / "more") == 2
    stderr = capsys.readouterr().err
    assert (
        "are the same run with different results: metrics.jsonl differs" in stderr
        and "other-sums-s0" in stderr
    )


DAMAGES: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "log cut": ("metrics.jsonl", half, ", line "),
    "settings lost": ("run.toml", Path.unlink, ": is missing"),
    "status lost": ("status.json", Path.unlink, ": missing"),
    "word for a step": (
        "status.json",
        change(b'"step": 3', b'"step": "x"'),
        ": `step` must be a whole number",
    ),
    "sums": ("sums.json", half, ": damaged"),
    "weights lost": ("final/policy.safetensors", lambda path: shutil.rmtree(path.parent), ": is missing"),
    "byte of weights": (
        "final/policy.safetensors",
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"),
        ": was changed since it was written",
    ),
}


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        stand_ins.register(patched)
        return made(tmp_path_factory.mktemp("part") / "x", sets=["arms=plain"])


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_a_part_is_named_with_remedy_and_nothing_is_written(
    damage: str, part: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, harm, message = DAMAGES[damage]
    intact, torn = (Path(shutil.copytree(part, tmp_path / copy_name)) for copy_name in "xy")
    run_folder = torn / "plain-sums-s1"
    harm(run_folder / name)
    before = contents(tmp_path)
    for parts in ((intact, torn), (torn, intact)):
        assert merge(*parts, tmp_path / "all") == 2
        stderr = capsys.readouterr().err
        assert f"{run_folder / name}{message}" in stderr and "other results" not in stderr
        assert (
            f"; or move {run_folder} away to merge without it; {intact / run_folder.name} is a whole copy"
            in stderr
        )
        assert contents(tmp_path) == before
    run_folder.rename(tmp_path / "elsewhere")
    assert merge(intact, torn, tmp_path / "all") == 0
    assert len([run for run in load(tmp_path / "all").runs if run.state == "finished"]) == 2


def test_every_damaged_file_is_named_once_and_a_damaged_plan_too(
    part: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, other = (Path(shutil.copytree(part, tmp_path / copy_name)) for copy_name in "xy")
    for folder in (first, other):
        half(folder / "plain-sums-s0" / "metrics.jsonl")
        (folder / "interim.json").write_text('{"analyses": ')
    assert merge(first, other, tmp_path / "all") == 2
    stderr = capsys.readouterr().err
    assert stderr.count("plain-sums-s0/metrics.jsonl") == 2 and "whole copy" not in stderr
    for folder in (first, other):
        assert f"{folder / 'interim.json'}: damaged; restore it" in stderr


def test_nothing_is_overwritten_and_no_run_at_work_is_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = made(tmp_path / "a"), made(tmp_path / "b", sets=["seeds=[7]"])
    out = tmp_path / "out"
    out.mkdir()
    assert merge(first, second, out) == 2 and "already exists; name a new folder" in capsys.readouterr().err
    shutil.rmtree(out)
    at_work = Lock(second / "plain-sums-s7")
    at_work.take()
    assert merge(first, second, out) == 2
    assert "plain-sums-s7 is in use by process" in capsys.readouterr().err
    at_work.release()
    assert merge(first, tmp_path, out) == 2 and "not an experiment folder" in capsys.readouterr().err
    assert merge(first, out) == 2 and "at least two" in capsys.readouterr().err
    assert not out.exists()
