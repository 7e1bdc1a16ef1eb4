"""Results in documents come from kept tables: made from run folders, rendered by a command, compared here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.edits import edit
from helpers.synthetic import Synthetic

from grpobench.analysis import readable
from grpobench.analysis.calibration import table as calibration
from grpobench.analysis.findings.record import read_kept
from grpobench.analysis.kept import keep, read
from grpobench.analysis.kept_tables import render
from grpobench.analysis.record import Provenance, as_text, content_of
from grpobench.analysis.runfolder.files import LogError
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.tools.text import shorten_paths
from grpobench.analysis.topics.accuracy import finals
from grpobench.analysis.topics.costs import update_costs
from grpobench.analysis.topics.events import run_findings
from grpobench.analysis.topics.stability import stability_table
from grpobench.runs import cli
from grpobench.runs.inventory import folders, marked
from grpobench.runs.tools.files import sums_of
from grpobench.runs.tools.strict import ConfigError

DOCS = Path(__file__).parents[2] / "docs"
FINAL = {("a", 0): 0.6, ("a", 1): 0.7, ("ppo", 0): 0.5, ("ppo", 1): 0.8}


def experiment(folder: Path, **changes: object) -> Path:
    defaults: dict[str, object] = {
        "arms": ("a", "ppo"),
        "tasks": ("arithmetic",),
        "seeds": (0, 1),
        "steps": 8,
        "every": 4,
        "problems": 4,
        "test_problems": 8,
        "accuracy": lambda arm, task, seed: FINAL[arm, seed],
        "explained": lambda task, seed, step: 0.02 if seed else 0.4,
        "name": "sums",
    }
    return Synthetic(**{**defaults, **changes}).write(folder)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kept table of an experiment of two arms on two seeds."""
    folder = tmp_path_factory.mktemp("kept")
    root = experiment(folder)
    sets = ["train.steps=8", 'model.name="/home/someone/models/small"']
    edit(root / "experiment.json", lambda described: described.update(sets=sets))
    assert cli.main(["keep", str(root), "--to", str(folder / "docs" / "results")]) == 0
    return folder / "docs" / "results" / "sums.json"


# What is committed


def test_committed_documents_are_what_the_command_writes() -> None:
    stale = [
        name
        for name, text in marked.documents(DOCS).items()
        if (DOCS / name).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run `grpobench docs`"


def test_every_number_in_a_table_of_results_is_kept_or_says_its_commit() -> None:
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    outside = marked.MARKER.sub("", text)
    assert not [line for line in outside.splitlines() if line.startswith("|")], "a table without markers"
    blocks = [marked._block(match) for match in marked.MARKER.finditer(text)]
    assert {"quickstart", "placebo-nano", "headtohead-nano"} <= {block.name for block in blocks}
    for block in blocks:
        if block.body and not (DOCS / folders.FOLDER / f"{block.name}.json").exists():
            assert block.body.startswith(f"*Measured at commit {block.before} and not made again since")


def test_no_result_calls_arms_equivalent() -> None:
    """No control says that these runs could have shown a difference."""
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    assert "equivalent" not in text and text.count("| no difference of 2 points or more |") >= 5


def test_kept_tables_name_no_place_of_a_machine() -> None:
    for path in (DOCS / folders.FOLDER).rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users|mnt|data)\b", text), path.name
        assert as_text(json.loads(text)) == text, f"{path.name} was edited by hand"


# Keeping


def test_a_kept_table_holds_what_the_runs_logged(table: Path) -> None:
    stored_table = read(table)
    (first, second) = stored_table.of("ppo", "arithmetic")
    assert first["accuracy"]["greedy"][:3] == ["test", 0.2, 0.5]  # 0.2 + 0.01 · seed before training
    assert second["accuracy"]["sampled"][1:3] == [0.21, 0.8]
    assert [step for step, _ in first["validation"]["greedy"]] == [0, 4, 8]
    assert first["explained"] == 0.4 and stored_table.of("a", "arithmetic")[0]["explained"] is None
    made = stored_table.provenance
    assert made.commits == {"0123abcd": 4} and made.versions == {"python": ["3.12.4"], "torch": ["2.13.0"]}
    assert stored_table.headline == {"arithmetic": "greedy"}


def test_the_command_names_no_folder_and_keeps_what_was_set(table: Path) -> None:
    command = read(table).provenance.command
    assert command == "grpobench run sums --set train.steps=8 --set 'model.name=\"small\"'"
    assert "someone" not in table.read_text()
    assert shorten_paths("~/models/small and a/b and 1/2") == "small and a/b and 1/2"


@pytest.mark.parametrize(("role", "name"), [("policy", "rates"), ("critic", "rates-critic")])
def test_runs_of_a_search_are_kept_under_its_name(tmp_path: Path, role: str, name: str) -> None:
    """A search has a folder for each role; a table called `policy` would say nothing and replace another."""
    root = experiment(tmp_path, name=role)
    folder = tmp_path / "rates"
    folder.mkdir()
    root.rename(folder / role)
    (folder / "search.json").write_text(json.dumps({"recipe": "rates", "command": "grpobench search rates"}))
    content = keep(load(folder / role))
    assert (content["name"], content["command"]) == (name, "grpobench search rates")


def test_equal_logs_are_kept_as_equal_bytes(table: Path, tmp_path: Path) -> None:
    content = keep(load(experiment(tmp_path)))
    before = json.loads(table.read_text())
    assert content["runs"] == before["runs"] and content["settings"] == before["settings"]
    changed = keep(load(experiment(tmp_path / "changed", every=2)))
    assert changed["settings"] != content["settings"]


def altered(run: Path) -> None:
    """At step 4 the run went on with another rate, which is not that of its settings."""
    change = {"changes": ["train.learning_rate.policy: 0.0001 -> 0.001"], "resumed_at": 4, "id": "later"}

    def add(provenance: dict[str, Any]) -> None:
        (first,) = provenance["attempts"]
        provenance["attempts"] = [first | {"resumed_at": 0}, first | change]

    edit(run / "provenance.json", add)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda run: edit(run / "status.json", lambda status: status.update(state="running")),
            "1 without result: a-arithmetic-s1 (running)",
        ),
        (
            lambda run: (run / "metrics.jsonl").write_text(""),
            "a-arithmetic-s1: metrics.jsonl is missing or empty",
        ),
        (altered, "train.learning_rate.policy 0.0001 until step 4, then 0.001"),
    ],
)
def test_an_experiment_that_is_not_whole_is_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], object], message: str
) -> None:
    root = experiment(tmp_path)
    spoil(root / "a-arithmetic-s1")
    assert cli.main(["keep", str(root), "--to", str(tmp_path / "to")]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "to").exists()


def test_a_partial_rerun_never_replaces_a_kept_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "to"

    def keep_experiment(folder: str, sets: list[str], **changes: object) -> tuple[int, str]:
        root = experiment(tmp_path / folder, **changes)
        edit(root / "experiment.json", lambda described: described.update(sets=sets))
        code = cli.main(["keep", str(root), "--to", str(to)])
        return code, capsys.readouterr().err

    assert keep_experiment("whole", []) == (0, "")
    before = (to / "sums.json").read_bytes()
    code, stderr = keep_experiment("seed", ["seeds=[1]"], seeds=(1,))
    assert code == 2 and f"{to / 'sums.json'} stands: {tmp_path / 'seed' / 'sums'} is not the whole" in stderr
    assert (
        "it was made by `grpobench run sums --set 'seeds=[1]'` and the kept one by `grpobench run" in stderr
    )
    assert "; 2 of 4 kept runs are missing, such as a on arithmetic, seed 0; keep it elsewhere" in stderr
    code, stderr = keep_experiment("arm", [], arms=("a",))
    assert code == 2 and "2 of 4 kept runs are missing, such as ppo on arithmetic, seed 0" in stderr
    code, stderr = keep_experiment("other", ["train.steps=4"])
    assert code == 2 and "was made by `grpobench run sums --set train.steps=4`" in stderr
    assert (to / "sums.json").read_bytes() == before
    # More seeds, or a recipe that was edited, are a whole experiment; a damaged table is no table.
    assert keep_experiment("more", [], every=2, seeds=(0, 1, 2), accuracy=lambda *_: 0.5)[0] == 0
    assert len(read(to / "sums.json").runs) == 6
    (to / "sums.json").write_text("{")
    assert keep_experiment("mended", [])[0] == 0


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"version": 2, "kind": "experiment", "name": "x"}')
    with pytest.raises(LogError, match=r"x\.json: no kept table"):
        read(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("read", "command"),
    [
        (read, "grpobench keep"),
        (read_kept, "grpobench keep"),
        (calibration.read, "grpobench calibrate --keep"),
        (readable.read, "grpobench tasks readable --keep"),
    ],
)
def test_a_record_of_another_kind_is_refused_with_the_command_that_writes_it(
    tmp_path: Path, read: Callable[[Path], object], command: str
) -> None:
    made = Provenance("grpobench run x", {"0123abcd": 1}, {}, [])
    (tmp_path / "x.json").write_text(as_text(content_of("profile", "x", made, {})))
    with pytest.raises(
        LogError, match=rf"of the kind 'profile' and not '\w+'\); write it again with {command}$"
    ):
        read(tmp_path / "x.json")


# Rendering, by hand


def lines(table: Path, kind: str, **options: str) -> list[str]:
    return render(read(table), kind, options)


def test_accuracies_by_hand(table: Path) -> None:
    table_lines = lines(table, "accuracy", mode="greedy")
    assert table_lines[0] == "Accuracy in %, greedy, test split:"
    # two seeds: half = 12.706 · s/√2; a: s = .0707, half 63.5 points; cut at 0 and 100
    assert table_lines[4] == "| arithmetic | a | 20.5 | 65.0 | 60.0 70.0 | 1.5 to 100.0 |"
    assert table_lines[5].startswith("| arithmetic | ppo | 20.5 | 65.0 | 50.0 80.0 |")
    assert lines(table, "accuracy", mode="greedy", best="yes")[4].endswith(
        " | 65.0 |"
    )  # the last is the best


def test_what_critics_explained_by_hand(table: Path) -> None:
    assert lines(table, "explained")[4:] == ["| arithmetic | ppo | 21.0 | 40.0 2.0 | 1 of 2 |"]
    assert lines(table, "grid", of="explained")[4:] == ["| ppo | 21.0 | 21.0 |"]
    assert lines(table, "grid", of="validation", mode="greedy")[4] == "| a | 65.0 | 65.0 |"


def test_other_kinds_by_hand(table: Path) -> None:
    assert lines(table, "comparisons")[4].startswith("| arithmetic | a − ppo | +0.0 |")
    assert lines(table, "comparisons")[4].endswith("| none | unresolved |")
    measured = lines(table, "measured", mode="greedy", metrics="correct,length")
    assert measured[4] == "| arithmetic | a | 20.5 → 65.0 | 25.0 → 25.0 |"
    assert len(measured) == 6 and len(lines(table, "measured", mode="greedy", metrics="none_has_it")) == 4
    assert lines(table, "training", metrics="score/correct")[4].startswith("| arithmetic | a | 0.25 → 0.6")
    curve = lines(table, "curve", mode="greedy")
    assert (
        curve[2] == "| updates | a | ppo |"
        and curve[4] == "| 0 | 20.5 (20.0 to 21.0) | 20.5 (20.0 to 21.0) |"
    )
    assert curve[-1] == "| 8 | 65.0 (60.0 to 70.0) | 65.0 (50.0 to 80.0) |"


def test_stability_and_costs_are_those_of_the_report(tmp_path: Path) -> None:
    """One of the two runs of `ppo` falls at step 12 of 20: it has collapsed."""
    root = experiment(tmp_path, steps=20, every=4, falls={("ppo", "arithmetic", 1): 12})
    loaded = load(root)
    (tmp_path / "sums.json").write_text(as_text(keep(loaded)), encoding="utf-8")
    sound, fallen = lines(tmp_path / "sums.json", "stability")[4:]
    assert sound.startswith("| arithmetic | a | 0 of 2 | 0 | ") and sound.endswith(" | – |")
    assert fallen.startswith("| arithmetic | ppo | 1 of 2 | 0 | ") and "reward collapse: 1 run" in fallen
    reported = stability_table(loaded, run_findings(loaded), finals(loaded)).rows
    assert [row.split(" | ")[4:7] for row in (sound, fallen)] == [list(row[6:9]) for row in reported]
    assert fallen.split(" | ")[7].removesuffix(" |") == reported[1][10]
    seconds = update_costs(loaded)["seconds"]
    for row, mean in zip(lines(tmp_path / "sums.json", "costs")[4:], seconds, strict=True):
        tokens, flops, ratio, train, step, *_ = row.split(" | ")[2:]
        assert (flops, ratio) == ("–", "–"), "made-up runs log no FLOPs"
        assert step == f"{mean:.1f}" and train == f"{20 * mean:.0f}" and tokens not in ("–", "0")


def test_costs_are_held_against_the_first_arm_of_each_task(tmp_path: Path) -> None:
    root = experiment(tmp_path, tasks=("arithmetic", "function"))
    (tmp_path / "sums.json").write_text(as_text(keep(load(root))), encoding="utf-8")
    content = json.loads((tmp_path / "sums.json").read_text())
    for cell, flops in zip(content["cells"], (2e12, 3e12, 1e9, 4e9), strict=True):
        cell["flops"] = flops
    (tmp_path / "sums.json").write_text(as_text(content), encoding="utf-8")
    rows = [row.split(" | ") for row in lines(tmp_path / "sums.json", "costs")[4:]]
    assert [row[1] for row in rows] == ["a", "ppo"] * 2
    assert [row[3:5] for row in rows] == [
        ["2T", "1.00"],
        ["3T", "1.50"],
        ["1G", "1.00"],
        ["4G", "4.00"],
    ]


def test_tables_of_earlier_versions_have_no_costs(table: Path) -> None:
    content = json.loads(table.read_text(encoding="utf-8"))
    del content["cells"], content["kind"]
    table.with_name("old.json").write_text(as_text(content | {"version": 1}), encoding="utf-8")
    with pytest.raises(LogError, match="sums: kept without stability and costs; keep its runs again"):
        render(read(table.with_name("old.json")), "costs", {})


def test_the_provenance_says_command_commit_and_versions(table: Path) -> None:
    text = " ".join(lines(table, "provenance"))
    assert "`grpobench run sums --set train.steps=8" in text and "4 runs, 2 seeds" in text
    assert "commit `0123abcd` with python 3.12.4, torch 2.13.0; CPU" in text


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("acuracy", {}, "unknown kind 'acuracy'"),
        ("accuracy", {}, "lacks 'mode'"),
        ("grid", {"of": "test"}, "grid of=test: known: validation, explained"),
    ],
)
def test_requests_that_cannot_be_met_are_named(
    table: Path, kind: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(LogError, match=message):
        render(read(table), kind, options)


# Documents

PAGE = """# Page

<!-- kept sums accuracy mode=greedy before=abc1234 -->

| old | 12.3 |

<!-- end of kept -->
Between.
<!-- kept later origin -->
<!-- end of kept -->
"""


def test_without_a_kept_table_the_page_says_when_its_numbers_were_measured(tmp_path: Path) -> None:
    once = marked.filled(PAGE, tmp_path / "page.md", tmp_path)
    assert "*Measured at commit abc1234 and not made again since: today's code" in once
    assert "| old | 12.3 |" in once and once.count("<!-- kept later origin -->\n<!-- end of kept -->") == 1
    assert marked.filled(once, tmp_path / "page.md", tmp_path) == once


def test_a_kept_table_takes_the_place_of_older_numbers(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpobench.runs.inventory.pages.pages", lambda tables: {})  # those without tables
    path = table.parent.parent / "page.md"
    path.write_text(marked.filled(PAGE, path, path.parent / "nowhere"), encoding="utf-8")
    assert marked.documents(path.parent)["page.md"] == marked.filled(PAGE, path, table.parent)
    assert cli.main(["docs", str(path.parent)]) == 0
    text = path.read_text(encoding="utf-8")
    assert "| arithmetic | a | 20.5 | 65.0 |" in text
    assert "12.3" not in text and "Measured at" not in text and "Between." in text
    assert marked.filled(text, path, table.parent) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PAGE.replace(" before=abc1234", ""), "without before=COMMIT"),
        (PAGE.replace("<!-- end of kept -->", "", 1), "needs a `<!-- end of kept -->`"),
        (PAGE + "<!-- kept alone -->\n<!-- end of kept -->\n", "needs a `<!-- end of kept -->`"),
    ],
)
def test_markers_that_cannot_be_filled_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        marked.filled(text, tmp_path / "page.md", tmp_path)


def test_a_table_is_kept_of_logs_whose_weights_stayed_elsewhere(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "sums")
    run = next(path.parent for path in folder.glob("*/metrics.jsonl"))
    weights, rollouts = run / "final" / "policy.safetensors", run / "rollouts" / "step-4.jsonl.zst"
    for path in (weights, rollouts):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    (run / "sums.json").write_bytes(sums_of(run, [weights, rollouts]))
    full_text = as_text(keep(load(folder)))
    weights.unlink()
    assert as_text(keep(load(folder))) == full_text
    rollouts.unlink()
    with pytest.raises(LogError, match=r"only whole logs are kept and published; .*rollouts/.*: is missing"):
        keep(load(folder))
