"""What listings import and compute, and what they leave alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from grpobench.runs import cli
from grpobench.runs.commands.inventory import KINDS

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
        ([["findings"], ["data", "list"]], SLOW_IMPORTS),
        (
            [["list", kind] for kind in KINDS if kind != "figures"],
            (*SLOW_IMPORTS, "matplotlib", "scipy", "zstandard", "grpobench.analysis.findings.rule"),
        ),
        ([["--help"], ["list", "--help"]], (*SLOW_IMPORTS, "numpy", "grpobench.tasks.arithmetic")),
        ([["doctor"]], (*(name for name in SLOW_IMPORTS if name != "torch"), "matplotlib")),
    ],
    ids=["findings and data", "list", "help", "doctor"],
)
def test_a_listing_imports_nothing_slow_that_it_does_not_need(
    lists: list[list[str]], slow: tuple[str, ...]
) -> None:
    """`grpobench list` once loaded pandas, scipy and the rules of all findings."""
    program = LISTED_MODULES.format(words=lists, slow=slow)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported []"


def test_the_list_of_findings_computes_no_power(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> float:
        raise AssertionError("a power was computed")

    monkeypatch.setattr("grpobench.analysis.statistics.power.power", refuse)
    monkeypatch.setattr("grpobench.analysis.statistics.power.power_of_equivalence", refuse)
    assert cli.main(["findings"]) == 0
    assert "supported" in capsys.readouterr().out


def test_each_of_several_figures_must_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["figure", "final_accuracy,valdation,secnds", "."]) == 2
    told = capsys.readouterr().err
    assert "unknown name 'valdation'; known: all, " in told and "'secnds'; did you mean seconds?" in told
