"""What listings import and compute, and what they leave alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grpobench.analysis.findings.record import read_kept
from grpobench.runs import cli
from grpobench.runs.commands.finding_list import summary_lines
from grpobench.runs.commands.inventory import KINDS
from grpobench.runs.inventory import folders, verdicts
from grpobench.runs.inventory.findings.judging import judging_rule
from grpobench.runs.settings.findings import read_finding
from grpobench.tasks.data import bounded

SHOWN = ("metric reward/mean", "task arithmetic", "recipe quickstart", "dialect grpo@trl", "dialects")

SLOW_IMPORTS = ("torch", "transformers", "datasets", "pandas", "seaborn", "scipy.stats", "scipy.optimize")
"""Packages of which no listing needs anything: each takes longer to import than a listing may take."""
LISTED_MODULES = """
import sys
from grpobench.runs.cli import main
from grpobench.runs.tools.deferred import unused
for words in {words}:
    assert main(words) == 0
print("imported", [name for name in {slow} if name in sys.modules and not unused(sys.modules[name])])
"""


@pytest.mark.parametrize(
    ("lists", "slow"),
    [
        (
            [["findings"], ["findings", "--json"], ["data", "list"]],
            (*SLOW_IMPORTS, "matplotlib", "scipy", "grpobench.analysis.findings.judge"),
        ),
        (
            [
                *(["list", kind] for kind in KINDS if kind != "detectors"),
                *(["show", *words.split()] for words in SHOWN),
            ],
            (*SLOW_IMPORTS, "numpy", "matplotlib", "scipy", "zstandard", "grpobench.analysis.findings.rule"),
        ),
        ([["list", "detectors"]], (*SLOW_IMPORTS, "matplotlib", "scipy")),
    ],
    ids=["findings and data", "list and show", "detectors"],
)
def test_a_listing_imports_nothing_slow_that_it_does_not_need(
    lists: list[list[str]], slow: tuple[str, ...]
) -> None:
    """`grpobench list` once loaded pandas, scipy and the rules of all findings."""
    assert listed(lists, slow)[1][-1] == "imported []"


def listed(lists: list[list[str]], slow: tuple[str, ...]) -> tuple[str, list[str]]:
    """What a process says that runs these commands: its errors, and its output by line."""
    program = LISTED_MODULES.format(words=lists, slow=slow)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr, done.stdout.splitlines()


def test_doctor_tries_what_it_reports_and_imports_nothing_else(tmp_path: Path) -> None:
    words = ["doctor", "--json", "--out", str(tmp_path / "results")]
    slow = (*(name for name in SLOW_IMPORTS if name != "torch"), "matplotlib")
    err, (*out, imported) = listed([words], slow)
    assert "%|" not in err and imported == "imported []"  # no bars of libraries around the table
    subjects = {row["subject"]: row for row in json.loads("\n".join(out))}
    assert subjects["torch"]["health"] == subjects["sandbox"]["health"] == subjects["disk"]["health"] == "ok"
    for subject in ("memory", "training"):
        assert subjects[subject]["health"] == "not tried"
        assert "grpobench doctor --deep" in subjects[subject]["detail"]
    assert str(tmp_path) in subjects["disk"]["detail"]
    gpu = subjects["gpu"]["health"] == "ok"
    assert gpu or re.search(r"bfloat16 takes \d+\.\d times as long", subjects["precision"]["detail"])


def test_a_finding_without_the_scale_is_not_said_to_lack_runs() -> None:
    row = {"name": "mine", "claim": "One.", "verdict": None, "rerun": None, "contributed": []}
    assert summary_lines({**row, "scale": "small", "scales": ["nano"]}, 4) == ["mine  only nano     One."]
    assert summary_lines({**row, "scale": "nano", "scales": ["nano"]}, 4) == ["mine  not run       One."]


KEPT = folders.docs_folder() / folders.FOLDER


def test_every_kept_verdict_is_what_its_table_says_today() -> None:
    """`grpobench findings` shows them without judging."""
    judged = {}
    for path in sorted((KEPT / folders.FINDINGS).glob("*.json")):
        record = read_kept(path)
        study = read_finding(record.registration.finding.name)
        judged[path.stem] = record.result(judging_rule(study, record)).label
    expected = verdicts.as_text(judged.items(), KEPT / folders.FINDINGS)
    assert (KEPT / verdicts.FILE).read_text(encoding="utf-8") == expected, "run `grpobench docs`"


def test_a_verdict_is_known_only_where_nothing_else_is_to_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, out = ("baseline", "ceiling", "new"), tmp_path / "out"
    results = tmp_path / "results"
    (results / folders.FINDINGS).mkdir(parents=True)
    for name in names[:2]:
        shutil.copy(KEPT / folders.FINDINGS / f"{name}-nano.json", results / folders.FINDINGS)
    shutil.copy(KEPT / verdicts.FILE, results)
    monkeypatch.setattr(verdicts, "results_folder", lambda: results)
    kept_verdicts = bounded.read_toml(KEPT / verdicts.FILE)
    verdict_by_name = {name: kept_verdicts[f"{name}-nano"]["verdict"] for name in names[:2]} | {
        "new": "not run"
    }
    assert verdicts.known_verdicts(names, "nano", out) == verdict_by_name
    table = results / folders.FINDINGS / "ceiling-nano.json"
    table.write_text(table.read_text(encoding="utf-8").replace("finished", "diverged", 1), encoding="utf-8")
    (out / "new-nano").mkdir(parents=True)  # a run may have begun
    assert verdicts.known_verdicts(names, "nano", out) == {"baseline": verdict_by_name["baseline"]}
    (results / "contributed").mkdir()
    assert verdicts.known_verdicts(names, "nano", out) == {}


def test_findings_are_listed_and_shown_without_computing_power(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> float:
        raise AssertionError("a power was computed")

    monkeypatch.setattr("grpobench.analysis.statistics.power.power", refuse)
    monkeypatch.setattr("grpobench.analysis.statistics.power.power_of_equivalence", refuse)
    assert cli.main(["findings"]) == 0
    assert "supported" in capsys.readouterr().out
    assert cli.main(["show", "algorithm", "grpo"]) == 0
    assert cli.main(["finding", "judge", "baseline"]) == 0


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("show grpo", "show algorithm grpo"),
        ("show algorithms grpo", "show algorithm NAME"),
        ("show detectors", "list detectors"),
        ("list algorithm", "list algorithms"),
        ("list grpo", "show algorithm grpo"),
    ],
)
def test_an_unknown_kind_suggests_the_nearest_right_command(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(words.split())
    assert f"unknown kind {words.split()[1]!r}; did you mean `grpobench {meant}`?" in capsys.readouterr().err


def test_a_word_like_none_gets_the_kinds_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["list", "xyzzy"])
    assert f"unknown kind 'xyzzy'; known: {', '.join(KINDS)}" in capsys.readouterr().err


def test_each_of_several_figures_must_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["figure", "final_accuracy,valdation,secnds", "."]) == 2
    stderr = capsys.readouterr().err
    assert "unknown name 'valdation'; known: all, " in stderr and "'secnds'; did you mean seconds?" in stderr
