"""`grpobench finding` and `grpobench findings` as a user types them, on a small finding of the test's own."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import stand_ins
from helpers.edits import edit

from grpobench.analysis.findings.description import power_lines
from grpobench.analysis.findings.record import read_kept, settings_digest
from grpobench.runs import cli
from grpobench.runs.api.findings import announce
from grpobench.runs.commands.output import PREEMPTED
from grpobench.runs.inventory.findings.records import set_aside
from grpobench.runs.inventory.findings.remaining import Remaining, remaining, time_left
from grpobench.runs.settings import stored
from grpobench.runs.settings.findings import read_finding
from grpobench.runs.tools.strict import ConfigError

MINE = """
claim = "fine1 is better than fine2"
source = "a test"

[[test]]
name = "fine1 ends higher"
outcome = "accuracy"
contrast = { fine1 = 1, fine2 = -1 }
expect = "higher"
matters = 0.02
unit = "points"

[nano]
seeds = [0, 1, 2, 3, 4, 5]
tasks = ["sums"]
workers = 2

[nano.train]
steps = 1

[[nano.arm]]
name = "fine1"
algorithm = "plain"

[[nano.arm]]
name = "fine2"
algorithm = "plain"
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the finding has been run: those of fine1 end 10 points higher."""
    workspace = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch, workspace)
        assert cli.main(["finding", "run", "mine", "--out", str(workspace / "out")]) == 0
    yield workspace


def stand_in(patch: pytest.MonkeyPatch, workspace: Path) -> None:
    """The suite has one finding, `mine`; its runs take no time and its reports are not drawn."""
    stand_ins.run_graded(patch)
    patch.setattr("grpobench.runs.commands.run.write_report", lambda folder, formats: (folder, []))
    (workspace / "findings").mkdir(exist_ok=True)
    (workspace / "findings" / "mine.toml").write_text(MINE)
    (workspace / "docs").mkdir(exist_ok=True)
    patch.setattr("grpobench.runs.settings.findings.FINDINGS", workspace / "findings")
    patch.setattr("grpobench.runs.inventory.folders.docs_folder", lambda remedy="": workspace / "docs")
    patch.chdir(workspace)


@pytest.fixture
def workspace(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which the commands are given."""
    shutil.copytree(made / "out", tmp_path / "out")
    stand_in(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same with nothing run."""
    stand_in(monkeypatch, tmp_path)
    return tmp_path


def run_cli(capsys: Capture, *words: str, code: int = 0) -> str:
    """What `grpobench WORDS --out out` prints; of an error what it complains."""
    capsys.readouterr()
    assert cli.main([*words, "--out", "out"]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def refused_to_keep(capsys: Capture, *options: str) -> str:
    """What `grpobench keep` complains of the finding's folder."""
    capsys.readouterr()
    assert cli.main(["keep", "out/mine-nano", *options]) == 2
    return capsys.readouterr().err


def judged(capsys: Capture) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(run_cli(capsys, "finding", "judge", "mine", "--json"))
    return row


def rule(workspace: Path, old: str, new: str) -> None:
    """Change the finding's file."""
    path = workspace / "findings" / "mine.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


# From the claim to the page


def test_a_finding_is_registered_run_and_judged(workspace: Path, capsys: Capture) -> None:
    registration = workspace / "out" / "mine-nano" / "registration.json"
    before = registration.read_bytes()
    again = run_cli(capsys, "finding", "run", "mine")  # has nothing left to run
    assert registration.read_bytes() == before
    lines = again.splitlines()
    assert "mine at nano scale: SUPPORTED" in lines
    # 10.0, 10.1, … 10.5 points: mean 10.25, t interval ± 2.571 · .187/√6 = .20
    assert "  fine1 ends higher: supported; +10.2 points (+10.1 to +10.4); p 0.0312" in again
    assert not any("exploratory" in line for line in lines)
    registered = json.loads(before)
    assert lines[-1].startswith(f"  registered {registered['registered']} at ")
    assert lines[-1].endswith(f"rule {registered['rule']}")
    assert (
        run_cli(capsys, "finding", "judge", "mine").splitlines()
        == (lines[lines.index("mine at nano scale: SUPPORTED") :])
    )
    row = judged(capsys)
    assert (row["verdict"], row["seeds"], row["waits"], row["departures"]) == ("supported", 6, [], [])
    assert row["tests"][0]["contrasts"] == [0.1, 0.101, 0.102, 0.103, 0.104, 0.105]
    assert row["tests"][0]["p"] == 0.03125  # 2/2⁶
    (listed,) = json.loads(run_cli(capsys, "finding", "list", "--json"))
    shared = ("name", "claim", "source", "scale", "verdict", "rerun", "contributed")
    assert listed == {**{key: row[key] for key in shared}, "scales": ["nano"]}
    assert run_cli(capsys, "finding", "list") == "mine  supported     fine1 is better than fine2\n"


def test_a_finding_is_shown_with_its_rule(workspace: Path, capsys: Capture) -> None:
    output = run_cli(capsys, "finding", "show", "mine")
    assert output.startswith("fine1 is better than fine2\nsource: a test\n")
    assert "test: fine1 ends higher: accuracy (+1 fine1, -1 fine2) is higher; 0.02 matters" in output
    assert "mine at nano scale: SUPPORTED" in output
    shown = json.loads(run_cli(capsys, "finding", "show", "mine", "--json"))
    assert shown["rule"] == judged(capsys)["rule"] and shown["test"][0]["matters"] == 0.02
    assert list(shown["scales"]) == ["nano"]


def test_a_kept_table_says_what_the_folder_says(workspace: Path, capsys: Capture) -> None:
    row = judged(capsys)
    assert cli.main(["keep", "out/mine-nano"]) == 0
    assert (workspace / "docs" / "results" / "findings" / "mine-nano.json").exists()
    shutil.rmtree(workspace / "out")
    assert judged(capsys) == row
    assert run_cli(capsys, "finding", "list") == "mine  supported     fine1 is better than fine2\n"
    (workspace / "docs/results/findings/mine-nano.json").write_text("{}")
    output = run_cli(capsys, "finding", "judge", "mine", code=2)
    assert "mine-nano.json: no kept finding" in output and "write it again with grpobench keep" in output


def test_findings_lists_and_starts_nothing(empty: Path, capsys: Capture) -> None:
    listed = "mine  not run       fine1 is better than fine2\n"
    assert run_cli(capsys, "findings") == run_cli(capsys, "finding", "list") == listed
    (row,) = json.loads(run_cli(capsys, "findings", "--json"))
    assert (row["name"], row["verdict"]) == ("mine", None)
    assert not (empty / "out").exists()


def test_all_findings_are_run_and_listed(empty: Path, capsys: Capture) -> None:
    rule(empty, "[0, 1, 2, 3, 4, 5]", "[0, 1]")
    lines = run_cli(capsys, "finding", "run", "all", "--workers", "1").splitlines()
    untimed = "about 0 s left with 1 worker, without mine, whose runs were never timed"
    assert lines[0] == f"== mine: 1 of 1, 4 runs to go; {untimed}"
    assert "  fine1 ends higher: unresolved; +10.1 points" in "\n".join(lines)
    assert "2 seeds can never decide; 6 can" in "\n".join(lines)
    assert lines[-1] == "mine  unresolved    fine1 is better than fine2"
    lines = run_cli(capsys, "finding", "run", "all", "--workers", "2").splitlines()
    assert lines[0] == "== mine: 1 of 1, 0 runs to go; no run is left"


def test_a_finding_of_real_runs(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    """Two steps of the built-in policy, judged after their report."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("grpobench.runs.commands.run.FORMATS", ("json",))
    head = MINE[: MINE.index("[nano]")].replace('outcome = "accuracy"', 'outcome = "accuracy:sampled"')
    head = head.replace("fine1 = 1, fine2 = -1", "grpo = 1, rloo = -1")
    (tmp_path / "own.toml").write_text(
        head
        + '[nano]\nseeds = [9]\ntasks = ["arithmetic"]\n[nano.model]\nname = "nano"\n'
        + "[nano.train]\nsteps = 2\nprompts_per_step = 2\ngroup_size = 2\nnum_minibatches = 1\n"
        + "[nano.evaluate]\nevery = 0\nproblems = 0\nsamples = 2\ntest_problems = 2\n"
        + '[[nano.arm]]\nalgorithm = "grpo"\n[[nano.arm]]\nalgorithm = "rloo"\n'
    )
    output = run_cli(capsys, "finding", "run", "./own.toml", "--workers", "1")
    assert "own at nano scale: UNRESOLVED" in output and "1 seed can never decide; 6 can" in output
    row = json.loads(run_cli(capsys, "finding", "judge", "./own.toml", "--json"))
    assert (row["departures"], row["waits"], row["seeds"]) == ([], [], 1)
    report = json.loads((tmp_path / "out/own-nano/report/report.json").read_text())["tables"]["accuracy"]
    assert {accuracy_row["arm"] for accuracy_row in report} == {"grpo", "rloo"}


# What makes a verdict exploratory


def test_a_rule_changed_afterwards_is_exploratory(workspace: Path, capsys: Capture) -> None:
    before = judged(capsys)
    rule(workspace, 'expect = "higher"', 'expect = "lower"')
    after = judged(capsys)
    assert (after["verdict"], after["exploratory"]) == ("supported", "contradicted")
    assert after["departures"] == ["the rule was changed after the registration"]
    assert (
        after["rule"]
        == before["rule"]
        != json.loads(run_cli(capsys, "finding", "show", "mine", "--json"))["rule"]
    )
    output = run_cli(capsys, "finding", "judge", "mine")
    assert "  exploratory: the rule was changed after the registration" in output
    assert "  by today's rule: contradicted" in output
    rule(workspace, 'outcome = "accuracy"', 'outcome = "gain"')
    assert judged(capsys)["exploratory"] == "measures something else; run it anew"
    rule(workspace, 'outcome = "gain"', 'outcome = "accuracy"')
    rule(workspace, "fine2 = -1", "fine7 = -1")
    assert judged(capsys)["exploratory"] == ("contrast: no run of fine7; there are fine1, fine2; run it anew")


def test_other_seeds_and_altered_settings_are_departures(workspace: Path, capsys: Capture) -> None:
    run_cli(capsys, "finding", "run", "mine", "--seeds", "7")
    row = judged(capsys)
    assert row["departures"] == ["not registered: fine1-sums-s7 and 1 more"]
    assert row["tests"][0]["seeds"][-1] == 7
    altered = ["--seeds", "1", "--set", "train.prompts_per_step=9"]
    refused = run_cli(capsys, "finding", "run", "mine", *altered, code=2)
    assert "train.prompts_per_step: 8 -> 9" in refused or "train.prompts_per_step" in refused
    run_cli(capsys, "finding", "run", "mine", *altered, "--allow-change")
    assert judged(capsys)["departures"] == [
        "other settings than registered in fine1-sums-s1 and 1 more",
        "not registered: fine1-sums-s7 and 1 more",
    ]


def test_runs_begun_before_the_registration_are_departures(workspace: Path, capsys: Capture) -> None:
    later = "2999-01-01T00:00:00+0000"
    edit(workspace / "out/mine-nano/registration.json", lambda content: content.update(registered=later))
    row = judged(capsys)
    assert row["departures"] == ["begun before the registration: fine1-sums-s0 and 11 more"]
    assert (row["verdict"], row["registered"]) == ("supported", later)


# Refusals


def test_runs_that_nobody_announced_are_refused(workspace: Path, capsys: Capture) -> None:
    (workspace / "out/mine-nano/registration.json").unlink()
    output = run_cli(capsys, "finding", "run", "mine", code=2)
    assert "out/mine-nano: has runs, such as fine1-sums-s0, but no registration.json" in output
    assert "choose another --out" in output
    output = run_cli(capsys, "finding", "judge", "mine", code=2)
    assert "mine: neither runs in out/mine-nano nor a kept table; run `grpobench finding run`" in output
    assert not (workspace / "kept/findings").exists()


def test_a_dry_run_registers_nothing(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the suite's own: a preview reads the problems."""
    monkeypatch.chdir(tmp_path)
    dry = ("--dry-run", "--no-trial")
    assert "to begin" in run_cli(capsys, "finding", "run", "critic-cost", *dry)
    plan = json.loads(run_cli(capsys, "finding", "run", "critic-cost", *dry, "--json"))
    assert plan["runs"] and [line.partition(":")[0] for line in plan["outlook"]] == ["power"] * 3
    assert not (tmp_path / "out").exists()


# Power before the runs


def lines_before_runs(sets: Sequence[str] = ()) -> list[str]:
    """What is said of power where the finding would start."""
    _, _, planned = announce(read_finding("mine"), "nano", Path("out"), sets, registers=False)
    return power_lines(planned, "PILOT")


def test_a_new_rule_that_hardly_finds_what_matters_says_why_or_does_not_run(
    workspace: Path, capsys: Capture
) -> None:
    """Kept contrasts with an SD of 9 points, where 2 matter: the rule that they were registered by may run
    again, and another one does not."""
    table = kept_table(workspace)
    edit(
        table,
        lambda content: [
            run["values"].update({"fine1 ends higher": 0.1 * (run["seed"] % 3) * (run["arm"] == "fine1")})
            for run in content["runs"]
        ],
    )
    power = (
        "6 seeds find an effect of 2.0 points in 4% of repetitions (1 test; SD 8.9 points over 6 seeds of "
    )
    (line,) = lines_before_runs()
    assert line.startswith(f"power: fine1 ends higher: {power}the kept findings/mine-nano.json)")
    rule(workspace, 'claim = "fine1 is better', 'claim = "fine1 is much better')
    error = run_cli(capsys, "finding", "run", "mine", code=2)
    assert f"mine at scale nano: test 'fine1 ends higher' has a power under 80%: {power}" in error
    assert "80% takes about 1" in error and 'underpowered.nano = "…"' in error
    assert not (workspace / "out").exists()
    assert lines_before_runs(["seeds=[6, 7, 8]"])  # other seeds than the rule's, as a pilot has
    rule(workspace, "[[test]]", 'underpowered.nano = "to show it"\n\n[[test]]')
    assert lines_before_runs() == [line]
    assert "runs with too little power: to show it" in run_cli(capsys, "finding", "show", "mine")


def test_without_a_known_spread_a_finding_starts_and_names_the_pilot(
    workspace: Path, capsys: Capture
) -> None:
    (workspace / "out").rename(workspace / "first")
    (line,) = lines_before_runs()
    assert line.startswith("power: not known before the runs: ") and line.endswith(
        "a pilot on other seeds does: PILOT"
    )
    pilot = "grpobench finding run mine --scale nano --seeds 6-11 --out out/pilot"
    assert line.replace("PILOT", pilot) in run_cli(capsys, "finding", "show", "mine")
    (workspace / "out").mkdir()
    (workspace / "first").rename(workspace / "out/pilot")
    (line,) = lines_before_runs()
    assert line == (
        "power: fine1 ends higher: 6 seeds find an effect of 2.0 points in 100% of repetitions (1 test; SD "
        "0.2 points over 6 seeds of out/pilot/mine-nano)"
    )
    (row,) = json.loads(run_cli(capsys, "finding", "show", "mine", "--json"))["power"]
    assert row["sd"] == pytest.approx(0.00187, abs=1e-5)  # of .100, .101, … .105
    assert (row["power"], row["seeds"], row["seeds_needed"]) == (1, 6, 6)
    rule(workspace, "matters = 0.02", "matters = 0.0005")
    with pytest.raises(ConfigError, match="over 6 seeds of out/pilot/mine-nano"):
        lines_before_runs()
    (workspace / "out/pilot").rename(workspace / "first")
    shutil.copytree(workspace / "first/mine-nano", workspace / "out/mine-nano")
    assert lines_before_runs()  # whose runs have begun


def test_a_registration_under_which_nothing_ran_gives_way(
    empty: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> int:
        raise RuntimeError("no device")

    with monkeypatch.context() as patch:
        patch.setattr("grpobench.runs.api.experiments.run_experiment", refuses)
        run_cli(capsys, "finding", "run", "mine", code=70)
    first = json.loads((empty / "out/mine-nano/registration.json").read_text())
    assert run_cli(capsys, "finding", "list") == "mine  not run       fine1 is better than fine2\n"
    run_cli(capsys, "finding", "run", "mine", "--set", "train.prompts_per_step=9")
    second = json.loads((empty / "out/mine-nano/registration.json").read_text())
    assert second["settings"].keys() == first["settings"].keys() and second["settings"] != first["settings"]
    assert judged(capsys)["departures"] == []


@pytest.mark.parametrize("action", ["show", "run", "judge"])
def test_an_unknown_finding_is_exit_2_and_the_remedy(action: str, empty: Path, capsys: Capture) -> None:
    assert "unknown finding 'mne'; did you mean mine?" in run_cli(capsys, "finding", action, "mne", code=2)
    output = run_cli(capsys, "finding", action, "./none.toml", code=2)
    assert "none.toml: 1 error" in output and "cannot read the finding: No such file" in output


def test_a_scale_or_an_arm_that_is_missing_is_exit_2_and_the_remedy(empty: Path, capsys: Capture) -> None:
    output = run_cli(capsys, "finding", "run", "mine", "--scale", "full", code=2)
    assert "--scale full: mine has none; it has nano" in output
    rule(empty, "fine2 = -1", "fine7 = -1")
    output = run_cli(capsys, "finding", "run", "mine", code=2)
    assert "contrast: no run of fine7; the recipe has fine1, fine2" in output
    assert not (empty / "out").exists()  # hours before its verdict


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "registration.json, line 1: not JSON"),
        ("{}", "registration.json: no registration ('version'); run the finding anew in another folder"),
    ],
)
def test_a_damaged_registration_is_exit_2_and_the_remedy(
    text: str, message: str, workspace: Path, capsys: Capture
) -> None:
    (workspace / "out/mine-nano/registration.json").write_text(text)
    for words in (["finding", "run", "mine"], ["finding", "judge", "mine"], ["finding", "list"]):
        assert message in run_cli(capsys, *words, code=2)
    assert cli.main(["keep", "out/mine-nano"]) == 2
    edited = {
        "version": 1,
        "rule": "0" * 16,
        "finding": {"name": "x", "claim": "y", "source": "z", "test": []},
    }
    (workspace / "out/mine-nano/registration.json").write_text(json.dumps(edited))
    assert "test: needs at least one" in run_cli(capsys, "finding", "judge", "mine", code=2)


def test_an_experiment_that_is_still_running_is_unresolved(workspace: Path, capsys: Capture) -> None:
    folder = workspace / "out/mine-nano"
    edit(folder / "fine2-sums-s3/status.json", lambda content: content.update(state="crashed", why="power"))
    output = run_cli(capsys, "finding", "judge", "mine")
    assert "mine at nano scale: UNRESOLVED" in output and "  waits for 1 runs" in output
    assert "only whole experiments are kept; 1 runs without result" in refused_to_keep(capsys)
    for run in folder.glob("fine2-*"):  # no run of an arm has begun
        shutil.rmtree(run)
    row = judged(capsys)
    assert (row["verdict"], len(row["waits"])) == ("unresolved", 6)
    assert row["tests"][0]["needs"] == "waits for runs without a result"
    assert run_cli(capsys, "finding", "list").startswith("mine  unresolved")


# What is kept, and reruns


def kept_table(workspace: Path) -> Path:
    """Keep the finding's runs and put them away: what stays is the table."""
    assert cli.main(["keep", "out/mine-nano"]) == 0
    shutil.move(workspace / "out", workspace / "first")
    return workspace / "docs/results/findings/mine-nano.json"


def rerun(workspace: Path, missing: int) -> None:
    """The same runs, registered and begun again, of which the first of fine2 have no result yet."""
    shutil.copytree(workspace / "first/mine-nano", workspace / "out/mine-nano")
    folder = workspace / "out/mine-nano"
    edit(folder / "registration.json", lambda content: content.update(registered="2020-01-01T00:00:00+0000"))
    for seed in range(missing):
        edit(folder / f"fine2-sums-s{seed}/status.json", lambda content: content.update(state="preempted"))


def test_a_partial_rerun_leaves_the_kept_verdict_and_says_what_is_missing(
    workspace: Path, capsys: Capture
) -> None:
    before = judged(capsys)
    table = kept_table(workspace)
    content = table.read_bytes()
    rerun(workspace, missing=3)
    stands = "the kept conclusion (supported) stands: 3 of 12 runs of the rerun in out/mine-nano are missing"
    assert run_cli(capsys, "findings").splitlines() == [
        "mine  supported     fine1 is better than fine2",
        f"  {stands}",
    ]
    (listed,) = json.loads(run_cli(capsys, "finding", "list", "--json"))
    assert listed["verdict"] == "supported"
    assert listed["rerun"] == {
        "folder": "out/mine-nano",
        "runs": 12,
        "missing": 3,
        "differences": [],
        "verdict": "unresolved",
        "kept": "supported",
    }
    assert judged(capsys) == {**before, "rerun": listed["rerun"]}
    for words in (["finding", "judge", "mine"], ["finding", "show", "mine"]):
        output = run_cli(capsys, *words)
        assert "mine at nano scale: SUPPORTED" in output and f"  {stands}" in output
    assert "only whole experiments are kept; 3 runs without result" in refused_to_keep(capsys)
    assert table.read_bytes() == content


def test_an_interrupted_rerun_says_that_the_kept_verdict_stands(
    workspace: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_table(workspace)
    rerun(workspace, missing=5)
    monkeypatch.setattr("grpobench.runs.commands.run.carry_out", lambda recipe, options, **_: PREEMPTED)
    capsys.readouterr()
    stands = "the kept conclusion (supported) stands: 5 of 12 runs of the rerun in out/mine-nano are missing"
    for name in ("mine", "all"):
        assert cli.main(["finding", "run", name, "--out", "out"]) == PREEMPTED
        assert stands in capsys.readouterr().out


def test_complete_rerun_is_judged_and_replaces_kept_one_when_kept(workspace: Path, capsys: Capture) -> None:
    table = kept_table(workspace)
    edit(table, lambda content: [run["values"].update({"fine1 ends higher": 0.5}) for run in content["runs"]])
    rerun(workspace, missing=0)
    stands = "the kept conclusion (insensitive) stands until the rerun in out/mine-nano is kept"
    output = run_cli(capsys, "findings")
    assert (
        output.startswith("mine  insensitive ") and stands in output and "it is complete: supported" in output
    )
    output = run_cli(capsys, "finding", "judge", "mine")
    assert "mine at nano scale: SUPPORTED" in output and stands in output
    assert cli.main(["keep", "out/mine-nano"]) == 0
    assert run_cli(capsys, "findings") == "mine  supported     fine1 is better than fine2\n"
    assert judged(capsys)["rerun"] is None  # the table is of these runs


def test_a_table_of_an_earlier_rule_is_set_aside(tmp_path: Path) -> None:
    kept_findings = Path(__file__).parents[2] / "docs/results/findings"
    folder = tmp_path / "docs/results/findings"
    folder.mkdir(parents=True)
    path = folder / "a-a-nano.json"
    path.write_bytes((kept_findings / "a-a-nano.json").read_bytes())
    assert set_aside(path, read_kept(path)) is None  # of the same rule: a rerun, which replaces it
    assert set_aside(folder / "none.json", read_kept(path)) is None
    content = path.read_bytes()
    earlier = set_aside(path, read_kept(kept_findings / "std-bias-nano.json"))
    assert earlier == tmp_path / "docs/results/earlier/findings/a-a-nano.json"
    assert earlier.read_bytes() == content and not path.exists()


def test_a_smaller_rerun_never_replaces_what_is_kept(workspace: Path, capsys: Capture) -> None:
    """Two seeds are a whole experiment by their own registration."""
    table = kept_table(workspace)
    content = table.read_bytes()
    printed = run_cli(capsys, "finding", "run", "mine", "--seeds", "0-1")
    assert "mine at nano scale: UNRESOLVED" in printed and "2 seeds can never decide" in printed
    assert "the kept conclusion (supported) stands" in printed
    stderr = refused_to_keep(capsys)
    assert (
        "mine-nano.json stands: the runs in out/mine-nano are not the whole finding: 8 of 12 runs" in stderr
    )
    assert "are missing, such as fine1-sums-s2; keep a partial rerun elsewhere with --to DIR" in stderr
    assert table.read_bytes() == content
    assert cli.main(["keep", "out/mine-nano", "--to", "beside"]) == 0
    assert run_cli(capsys, "findings").startswith("mine  supported ")


def test_a_rerun_with_other_settings_never_replaces_what_is_kept(workspace: Path, capsys: Capture) -> None:
    """As many runs, all with a result, and registered as they were made: but not those of the finding."""
    table = kept_table(workspace)
    content = table.read_bytes()
    run_cli(capsys, "finding", "run", "mine", "--set", "train.prompts_per_step=9")
    why = "train.prompts_per_step is 9 and not 16 in 12 runs"
    assert f"the runs in out/mine-nano are not the whole finding: {why}; keep" in refused_to_keep(capsys)
    stands = "the kept conclusion (supported) stands: the rerun in out/mine-nano is not the whole finding: "
    for words in (["findings"], ["finding", "show", "mine"], ["finding", "judge", "mine"]):
        assert f"{stands}{why}" in run_cli(capsys, *words)
    assert table.read_bytes() == content


def test_an_edited_recipe_makes_a_whole_rerun_of_other_settings(workspace: Path, capsys: Capture) -> None:
    """What a whole rerun is, the finding's file says as it is now: its author may change it."""
    table = kept_table(workspace)
    rule(workspace, "steps = 1", "steps = 1\nprompts_per_step = 9")
    run_cli(capsys, "finding", "run", "mine")
    assert cli.main(["keep", "out/mine-nano"]) == 0
    assert judged(capsys)["rerun"] is None and table.exists()
    rule(workspace, "[0, 1, 2, 3, 4, 5]", "[0, 1]")  # fewer seeds by the same rule: the table must go first
    shutil.rmtree(workspace / "out")
    run_cli(capsys, "finding", "run", "mine")
    assert "8 of 12 kept runs are missing, such as fine1 on sums, seed 2" in refused_to_keep(capsys)


# Parts: a finding that takes longer than a machine lives


def finish(workspace: Path, name: str) -> None:
    """Give a run of the finding its result, as `made` has it."""
    shutil.copytree(workspace / "first/mine-nano" / name, workspace / "out/mine-nano" / name)


def part_of_two(workspace: Path, capsys: Capture) -> Path:
    """All runs of fine1 and none of fine2 are finished, kept as a part, and the machine is lost."""
    shutil.move(workspace / "out", workspace / "first")
    (workspace / "out/mine-nano").mkdir(parents=True)
    for file in ("registration.json", "experiment.json"):
        shutil.copy(workspace / "first/mine-nano" / file, workspace / "out/mine-nano" / file)
    for seed in range(6):
        finish(workspace, f"fine1-sums-s{seed}")
    finish(workspace, "fine2-sums-s0")
    edit(
        workspace / "out/mine-nano/fine2-sums-s0/status.json",
        lambda content: content.update(state="preempted"),
    )
    assert "6 runs without result; --part keeps the others" in refused_to_keep(capsys)
    assert cli.main(["keep", "out/mine-nano", "--part"]) == 0
    path = workspace / "docs/results/parts/findings/mine-nano.json"
    assert capsys.readouterr().out == f"{path}; 6 runs, and 6 to come\n"
    shutil.rmtree(workspace / "out")
    return path


def test_the_rest_of_a_part_runs_elsewhere_and_joins_it(workspace: Path, capsys: Capture) -> None:
    row_of_all_runs = judged(capsys)
    part = part_of_two(workspace, capsys)
    assert judged(capsys)["waits"] == [f"fine2-sums-s{seed}" for seed in range(6)]
    output = run_cli(capsys, "finding", "run", "mine")
    assert f"6 of 12 runs are kept in {part}" in output and "6 runs: 6 finished" in output
    assert not list((workspace / "out/mine-nano").glob("fine1*"))
    assert judged(capsys) == row_of_all_runs
    assert cli.main(["keep", "out/mine-nano"]) == 0
    record = read_kept(workspace / "docs/results/findings/mine-nano.json")
    assert len(record.states) == 12 and not record.waits and not record.departures and not part.exists()
    assert sum(record.provenance.commits.values()) == 12
    assert judged(capsys) == row_of_all_runs


def test_a_part_grows_until_it_is_whole(workspace: Path, capsys: Capture) -> None:
    part = part_of_two(workspace, capsys)
    run_cli(capsys, "finding", "run", "mine")
    for seed in (4, 5):
        shutil.rmtree(workspace / f"out/mine-nano/fine2-sums-s{seed}")
    assert cli.main(["keep", "out/mine-nano", "--part"]) == 0
    assert len(read_kept(part).states) == 10
    shutil.rmtree(workspace / "out")
    assert "2 runs: 2 finished" in run_cli(capsys, "finding", "run", "mine")
    assert cli.main(["keep", "out/mine-nano", "--part"]) == 0  # nothing is to come: the whole table
    assert (
        not part.exists() and len(read_kept(workspace / "docs/results/findings/mine-nano.json").states) == 12
    )


def test_runs_of_a_part_that_the_folder_has_too_count_once(workspace: Path, capsys: Capture) -> None:
    part = part_of_two(workspace, capsys)
    run_cli(capsys, "finding", "run", "mine")
    for seed in range(6):
        finish(workspace, f"fine1-sums-s{seed}")
    for options in (["--part"], []):
        assert cli.main(["keep", "out/mine-nano", *options]) == 0
        record = read_kept(workspace / "docs/results/findings/mine-nano.json")
        assert len(record.states) == sum(record.provenance.commits.values()) == 12
    assert not part.exists()


def test_a_part_of_another_rule_is_refused_and_stays(workspace: Path, capsys: Capture) -> None:
    part = part_of_two(workspace, capsys)
    content = part.read_bytes()
    rule(workspace, "matters = 0.02", "matters = 0.05")
    output = run_cli(capsys, "finding", "run", "mine", code=2)
    assert f"{part}: these runs were registered with another rule or other settings; delete" in output
    assert part.read_bytes() == content and not (workspace / "out/mine-nano").exists()


def test_other_seeds_have_nothing_to_do_with_a_part(workspace: Path, capsys: Capture) -> None:
    part = part_of_two(workspace, capsys)
    assert "4 runs: 4 finished" in run_cli(capsys, "finding", "run", "mine", "--seeds", "7-8")
    assert "registered apart from the part that is kept in" in refused_to_keep(capsys, "--part")
    assert len(read_kept(part).states) == 6


def test_a_part_of_what_all_runs_measure_together_is_refused(workspace: Path, capsys: Capture) -> None:
    rule(workspace, 'outcome = "accuracy"', 'outcome = "equal:tokens"')
    shutil.rmtree(workspace / "out")
    run_cli(capsys, "finding", "run", "mine")
    complaint = refused_to_keep(capsys, "--part")
    assert "no part of it can be kept: equal:tokens is measured over all runs" in complaint


def test_how_long_is_left_is_the_kept_tables_time_of_the_missing_runs(
    workspace: Path, capsys: Capture
) -> None:
    edit(kept_table(workspace), lambda content: content.update(seconds=1200))
    (left,) = [remaining("mine", "nano", workspace / "elsewhere")]
    assert (left.runs, left.seconds) == (12, 1200.0)
    other = Remaining("other", 3, math.nan)
    expected = "about 10:00 left with 2 workers, without other, whose runs were never timed"
    assert time_left([left, other], 2) == expected
    assert time_left([left], 1) == "about 20:00 left with 1 worker"


KEPT_LONG_RUN_COLLAPSE = """
claim = "GSPO lasts longer"
source = "GSPO"

[[test]]
name = "GSPO lasts longer"
outcome = "lasting"
contrast = { "gspo+*" = 1, "grpo+*" = -1 }
expect = "higher"
matters = 50

[nano]
seeds = [40160, 40161, 40162, 40163, 40164, 40165, 40166, 40167]
tasks = ["arithmetic"]
stop_on = ["accuracy_collapse"]

[nano.over]
"train.learning_rate" = [1e-4, 1.4e-4, 2e-4, 4e-4]
"model.name" = ["nano", "nano-moe"]

[nano.model]
name = "nano"

[nano.train]
steps = 500
prompts_per_step = 8
group_size = 8
num_minibatches = 8

[nano.evaluate]
every = 10
problems = 64
samples = 0
test_problems = 128

[nano.checkpoint]
every = 100

[[nano.arm]]
algorithm = "grpo"

[[nano.arm]]
algorithm = "gspo"
"""
"""The recipe of the earlier table, which is older than today's rule."""


def test_settings_that_came_after_a_registration_change_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier table of `long-run-collapse` is older than a teacher, a normalized correction, a source of
    expert answers or a replay of routes."""
    monkeypatch.undo()
    registration = read_kept(
        Path(__file__).parents[2] / "docs/results/earlier/findings/long-run-collapse-nano.json"
    ).registration
    path = tmp_path / "long-run-collapse.toml"
    path.write_text(KEPT_LONG_RUN_COLLAPSE, encoding="utf-8")
    runs = read_finding(str(path)).recipe("nano").runs()
    today = {config.folder: stored.dump(config) for config in runs}
    as_it_was = {name: settings_digest(text, "final = true") for name, text in today.items()}
    assert as_it_was == dict(registration.settings)  # It kept the last checkpoint, which was the default.
    text = next(iter(today.values()))
    for line, other in (
        ('teacher = ""', 'teacher = "nano"'),
        ("teacher_warm_start = 0", "teacher_warm_start = 9"),
        ("correction_normalize = false", "correction_normalize = true"),
        ('experts = "reference"', 'experts = "mine.jsonl"'),
        ('router_replay = "none"', 'router_replay = "R3"'),
        ("entropy_target = 0.0", "entropy_target = 0.2"),
        ("contamination = false", "contamination = true"),
        ("reference_likelihood = false", "reference_likelihood = true"),
    ):
        assert line in text.splitlines()
        assert settings_digest(text.replace(line, other)) != settings_digest(text)
    assert "weights = true" in text.splitlines()  # of checkpoints, which no result depends on
    assert settings_digest(text.replace("\nweights = true", "\nweights = false")) == settings_digest(text)
