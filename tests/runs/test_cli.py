"""The command line as a user types it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from helpers import stand_ins
from helpers.logs import is_metric
from helpers.pages import drawing
from helpers.shell import command, commands

from grpobench.runs import cli
from grpobench.runs.commands.inventory import KINDS
from grpobench.runs.commands.reports import write_report
from grpobench.runs.inventory import doctor, listing, showing
from grpobench.runs.metrics import catalog
from grpobench.runs.tools import installed, machine

BAD = """
tasks = ["arithmetik"]
[train]
stps = 3
[[arm]]
algorithm = "grpoo"
"""


def test_bad_recipe_gives_every_error_and_exit_2_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(BAD)
    began = os.times().children_user
    done = command("run", "bad.toml", folder=tmp_path)
    assert os.times().children_user - began < 5  # of the processor
    assert done.returncode == 2
    assert done.stdout == ""  # LOADED would stand here
    assert done.stderr.splitlines()[0] == "grpobench: bad.toml: 3 errors"
    assert "did you mean arithmetic?" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"grpobench {importlib.metadata.version('grpobench')}\n"


DEFER = """
import sys
from grpobench.runs.tools.deferred import defer
defer("torch"); defer("json"); defer("no_such_package")
import torch, inspect
import grpobench.algorithms
assert inspect.getmodule(defer).__name__ == "grpobench.runs.tools.deferred"
assert "torch._C" not in sys.modules
import no_such_package
try:
    no_such_package.anything
except ModuleNotFoundError as error:
    assert str(error) == "no_such_package is not installed: pip install no_such_package"
kept = torch
import importlib.util
assert importlib.util.find_spec("torch.optim").origin == sys.modules["torch.optim"].__file__
import torch.optim
assert torch.optim.lr_scheduler is sys.modules["torch.optim.lr_scheduler"]
import torch.nn.functional as F
assert "torch._C" in sys.modules
assert sys.modules["torch"] is not kept
assert kept.Tensor is sys.modules["torch"].Tensor
assert kept.nn.functional is F is sys.modules["torch.nn.functional"]
assert torch.nn.__spec__.name == "torch.nn" and torch.nn.__spec__.origin.endswith("__init__.py")
assert float(F.relu(kept.tensor(-1.0))) == 0.0
from torch import nn
assert issubclass(nn.Linear, kept.nn.Module)
import torch.utils.benchmark
try:
    kept.no_such_name
except AttributeError:
    print("fine")
"""


def test_deferred_torch_loads_at_its_first_use_and_once() -> None:
    done = subprocess.run([sys.executable, "-c", DEFER], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


FIRST = """
import sys
from grpobench.runs.tools.deferred import defer
defer("torch")
import torch.optim
assert sys.modules["torch.optim"].__spec__.loader.__class__.__name__ == "SourceFileLoader"
assert torch.optim is sys.modules["torch"].optim is sys.modules["torch.optim"]
assert sys.modules["torch.nn.modules.module"].Module is torch.nn.Module
print("fine")
"""


def test_a_submodule_imported_first_is_executed_once() -> None:
    """`import torch.optim` executed it twice, whose second time ended in a NameError."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "nowhere"], "nowhere: no such folder"),
        (["report", ".", "--format", "htlm"], "unknown format 'htlm'; did you mean html?"),
        (["show", "metric", "gap/meen"], "did you mean gap/mean?"),
        (["run", "quikstart"], "unknown recipe 'quikstart'; did you mean quickstart?"),
        (["run", "quickstart", "--seeds", "x"], "--seeds x: write numbers such as 0,1,2 or 0-4"),
        (["run", "quickstart", "--seeds", f"0-{2**70}"], "an experiment has at most 10,000 seeds"),
    ],
)
def test_wrong_word_gives_exit_2_and_the_remedy(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


RUNS = "give an experiment folder such as results/quickstart"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "FILE"], f"FILE: a file, not a folder; {RUNS}"),
        (["figure", "all", "FILE"], f"FILE: a file, not a folder; {RUNS}"),
        (["keep", "FILE", "--to", "kept"], f"FILE: a file, not a folder; {RUNS}"),
        (["keep", "nowhere", "--to", "FILE"], "--to FILE: cannot write there (FILE is no folder)"),
        (["merge", "FILE", "empty", "merged"], f"FILE: a file, not a folder; {RUNS}"),
        (["import", "log.jsonl", "FILE"], "OUT FILE: cannot write there (FILE is no folder)"),
        (
            ["eval", "FILE", "--task", "arithmetic"],
            ("FILE: a file, not a folder; give a run or experiment folder"),
        ),
        (["export", "FILE", "exported"], "FILE: a file, not a folder; give a run's folder"),
        (["warmstart", "./FILE", "--task", "arithmetic"], "FILE is a file; a model is a folder"),
        (["run", "quickstart", "--set", "model.name=FILE"], "model.name: FILE is a file; a model is a"),
    ],
    ids=" ".join,
)
def test_a_file_where_a_folder_belongs_is_called_a_file(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message that says that there is nothing sends people to look for what is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("here")
    (tmp_path / "empty").mkdir()
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss/policy": 0.5}\n')
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", f"seeds=[{2**70}]"], "seeds=[1180591620717411303424]: a whole number is beyond 64 bits"),
        (
            ["--set", "train.prompts_per_step=100000000"],
            "train.prompts_per_step: 100,000,000 in groups of 8 are 800,000,000",
        ),
        (
            ["--out", "file"],
            "--out file/quickstart: cannot write there (Not a directory); name another folder",
        ),
    ],
)
def test_a_recipe_that_cannot_run_is_exit_2_before_anything_starts(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert cli.main(["run", "quickstart", *words]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_what_a_report_cannot_read_is_a_message_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").touch()
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "this is one run; pass the folder above it" in capsys.readouterr().err
    (tmp_path / "run.toml").unlink()
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["report pets", "status results/pet", "figure reward results/pets/", "keep pets"]
)
def test_the_most_similar_experiment_is_named(
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "results" / "pets2").mkdir(parents=True)
    (tmp_path / "results" / "pets2" / "experiment.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert cli.main(words.split()) == 2
    assert "no such folder; did you mean results/pets2?" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["report results", "figure reward results"])
def test_a_folder_of_experiments_names_them(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "experiment.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert cli.main(words.split()) == 2
    assert "holds experiments; give one of them: results/cats, results/dogs" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pets2", "./pets.toml"])
def test_a_recipe_of_the_folder_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pets2.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", name]) == 2
    assert "did you mean pets2.toml?" in capsys.readouterr().err


def test_a_file_set_that_does_not_exist_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["contribute", "nowhere"]) == 2
    assert "no such folder; give a file set that `grpobench publish` wrote" in capsys.readouterr().err


def test_an_attempt_without_its_model_may_be_corrected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, warm: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("grpobench.runs.commands.run.FORMATS", ("html", "json"))
    tiny = [
        "train.prompts_per_step=2",
        "train.group_size=2",
        "train.num_minibatches=1",
        "evaluate.problems=2",
        "evaluate.test_problems=0",
    ]
    tiny += ["train.steps=1", "arms=grpo", "tasks=arithmetic", "seeds=[0]"]
    words = [
        "run",
        "quickstart",
        "--workers",
        "1",
        *(word for assignment in tiny for word in ("--set", assignment)),
    ]
    assert cli.main([*words, "--set", "model.name=nobody/nothing"]) == 2
    assert "model 'nobody/nothing' is not on this machine" in capsys.readouterr().err
    with drawing("final_accuracy"):
        assert cli.main(words) == 0  # the same folder, another model
    lines = capsys.readouterr().out.splitlines()
    assert any(re.fullmatch(r"1 run: 1 finished; took \d+ s with 1 worker", line) for line in lines)
    # The run ends with the report's own accuracies, and where the report is.
    table = json.loads((tmp_path / "results/quickstart/report/report.json").read_text())["tables"]["accuracy"]
    header_index = next(index for index, line in enumerate(lines) if line.startswith("task "))
    header, row = (lines[header_index + offset].split() for offset in (0, 1))
    assert header[:5] == ["task", "arm", "before", "after", "gain"] and "each seed" in lines[header_index]
    assert row[:2] == ["arithmetic", "grpo"] and len(table) == 1
    assert row[2:4] == [f"{100 * table[0]['base']:.1f}", f"{100 * table[0]['final']:.1f}"]
    assert lines[-1] == "report: results/quickstart/report/index.html"
    # What the report warns of is said in the terminal too.
    (tmp_path / "results/quickstart/grpo-arithmetic-s0/provenance.json").unlink()
    table_and_warnings = write_report(tmp_path / "results" / "quickstart", ("json",))[1]
    assert "The report warns: Logs that lack something." in table_and_warnings
    assert cli.main([*words, "--set", "train.prompts_per_step=4"]) == 2
    assert "train.prompts_per_step: 2 -> 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [words for words, below in commands() if not isinstance(below, click.Group)], ids=" ".join
)
def test_every_command_has_help_that_fits_a_terminal(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    help_texts = []
    for option in ("-h", "--help"):
        assert cli.main([*words, option]) == 0
        help_texts.append(capsys.readouterr().out)
    assert help_texts[0] == help_texts[1]
    assert help_texts[0].startswith(f"Usage: grpobench {' '.join(words)} [OPTIONS]")
    assert max(map(len, help_texts[0].splitlines())) <= 80
    assert help_texts[0].isascii()


def usage_error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `grpobench WORDS` says of words that it cannot take."""
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["rnu"], "'run'"),
        (["run", "quickstart", "--worker", "2"], "'--workers'"),
        (["run", "quickstart", "--arms", "grpo"], "'--set arms=...'"),
        (["run", "quickstart", "--steps=5"], "'--set train.steps=...'"),
        (["finding", "run", "std-bias", "--model", "nano"], "'--set model.name=...'"),
        (["compare", "grpo", "--with", "rloo", "--arms", "1"], "'--with'"),
        (["compare", "grpo", "--with", "rloo", "--tasks", "1"], "'--task'"),
        (["compare", "grpo", "--with", "rloo", "--steps", "1"], "'--set train.steps=...'"),
    ],
    ids=str,
)
def test_a_wrong_command_or_option_gives_exit_2_and_the_nearest(
    words: list[str], nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"Did you mean {nearest}?" in usage_error(capsys, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "quickstart", "--out", "--json"], "Option '--out' needs a value before '--json'"),
        (["run", "quickstart", "--set", "--dry-run"], "Option '--set' needs a value before '--dry-run'"),
    ],
    ids=str,
)
def test_words_that_lack_or_hold_a_wrong_value_give_exit_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in usage_error(capsys, *words)


def parsed(name: str, *words: str) -> dict[str, Any]:
    """The values of the options of `grpobench NAME WORDS`."""
    return cli.app.commands[name].make_context(name, list(words)).params


def test_options_stand_anywhere_and_repeat_and_values_may_lead_with_dash() -> None:
    sets = ("train.steps=1", "-x", "seeds=[0]")
    before = parsed("run", "--set", sets[0], "--set", sets[1], f"--set={sets[2]}", "--json", "quickstart")
    after = parsed("run", "quickstart", "--json", "--set", sets[0], "--set", sets[1], "--set", sets[2])
    assert before == after and after["sets"] == sets
    assert parsed("report", "--margin", "-1", "--", "-dir")["folder"] == Path("-dir")
    assert parsed("merge", "a", "b", "c")["folders"] == (Path("a"), Path("b"))


def test_deep_takes_a_recipe_or_none() -> None:
    assert parsed("doctor")["deep"] is None
    assert parsed("doctor", "--deep")["deep"] == parsed("doctor", "--deep", "--json")["deep"] == "quickstart"
    assert parsed("doctor", "--deep", "mine.toml")["deep"] == "mine.toml"


def test_the_device_of_deep_checks_is_chosen_before_torch_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "DRIVER_FILES", ("/no/such/device",))
    assert cli.main(["doctor", "--deep", "--device", "cuda"]) == 2
    assert "torch sees no GPU here" in capsys.readouterr().err
    assert cli.main(["doctor", "--device", "cpu", "--gpu-memory", "24", "--set", "seeds=[0]"]) == 2
    stderr = capsys.readouterr().err
    assert all(f"{name}: needs --deep RECIPE" in stderr for name in ("--device", "--gpu-memory", "--set"))
    monkeypatch.setenv(machine.VISIBLE_GPUS, "3")
    assert cli.main(["doctor", "--deep", "no-such-recipe", "--device", "cpu"]) == 2
    assert os.environ[machine.VISIBLE_GPUS] == ""


LIGHT = """
import sys
from grpobench.runs.cli import main
for words in ([], ["eval"], ["tasks"], ["run"], ["report"], ["list"]):
    assert main([*words, "--help"]) == 0
    slow = ("torch", "numpy", "rich", "grpobench.runs.settings", "grpobench.tasks.arithmetic")
    print("loaded", *[name for name in slow if name in sys.modules])
"""


def test_help_imports_nothing_that_a_command_needs() -> None:
    completed = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    loaded = [line for line in completed.stdout.splitlines() if line.startswith("loaded")]
    assert loaded == ["loaded"] * 3 + ["loaded torch numpy"] * 3  # their stand-ins


def test_full_disk_gives_exit_70(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(listing.LISTS, "models", full)
    assert cli.main(["list", "models"]) == 70
    assert "the disk is full, or a quota" in capsys.readouterr().err


def test_lists_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in KINDS:
        assert cli.main(["list", kind, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert rows and all({"name"} <= set(row) for row in rows)
        assert cli.main(["list", kind]) == 0
        lines = capsys.readouterr().out.splitlines()
        shown = {line.split(maxsplit=1)[0] for line in lines if not line.startswith(" ")}
        families = {
            f"{head}:NAME" if colon else head for head, colon, _ in (r["name"].partition(":") for r in rows)
        }
        assert shown == families


def test_shown_settings_carry_default_choices_and_docstring() -> None:
    rows = {row["name"]: row for row in showing.settings(stand_ins.Critic)}
    assert rows["clip"] == {"name": "clip", "type": "float", "default": 0.2, "summary": "Clip range."}
    assert rows["mode"]["type"] == "soft | hard"
    assert rows["mode"]["summary"] == "How it clips."
    assert list(rows)[-1] == "value_clip"


def test_every_registered_algorithm_and_task_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from grpobench.algorithms import ALGORITHMS

    for name, cls in ALGORITHMS.items():
        assert cli.main(["show", "algorithm", name]) == 0
        shown = capsys.readouterr().out
        assert cls.summary[:40] in shown and "formula" in shown


def test_data_folder_of_the_command_line_reaches_the_tasks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from grpobench.tasks.data.sources import FOLDER_VARIABLE

    monkeypatch.setenv(FOLDER_VARIABLE, "before")
    data_folders = []
    monkeypatch.setattr(showing, "show", lambda *_: data_folders.append(os.environ[FOLDER_VARIABLE]) or {})
    monkeypatch.setattr(showing, "as_text", str)
    assert cli.main(["show", "task", "x", "--data-dir", str(tmp_path)]) == 0
    assert data_folders == [str(tmp_path)]


def test_doctor_offers_training_only_where_all_that_it_needs_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered = [command for command, _ in doctor.runnable([*doctor.torch_device(), doctor.training()])]
    assert "grpobench run quickstart" in offered
    versions = installed.version_of

    def without_transformers(*names: str) -> str:
        return "" if names[0] == "transformers" else versions(*names)

    monkeypatch.setattr(installed, "version_of", without_transformers)
    lacks = doctor.training()
    assert (lacks.health, doctor.healthy([lacks])) == ("broken", False)
    assert lacks.detail.startswith("training needs transformers<6,>=5.23; pip install '.[train]'")
    offered = [command for command, _ in doctor.runnable([*doctor.torch_device(), lacks])]
    assert offered == ["grpobench report DIR", "pip install '.[train]'"]


# Without a command, and Tab


def test_without_a_command_it_says_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert "grpobench doctor" in out and "grpobench run quickstart" in out and "Your experiments" not in out
    for name, states in (("whole", ("finished", "diverged")), ("half", ("finished", "running"))):
        for number, state in enumerate(states):
            run = tmp_path / "results" / name / f"run{number}"
            run.mkdir(parents=True)
            (run / "status.json").write_text(json.dumps({"state": state}))
        (run.parent / "experiment.json").write_text(json.dumps({"runs": ["run0", "run1"]}))
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert "grpobench report results/whole\n      2 of 2 runs have a result" in out
    assert "grpobench status results/half\n      1 of 2 runs have a result; the command" in out


@pytest.mark.parametrize(
    ("begun", "offered"),
    [
        ("ru", ["run"]),
        ("run qui", ["quickstart"]),
        ("run --data", ["--data-dir"]),
        ("finding judge kl", ["kl-anchor"]),
        ("compare gsp", ["gspo"]),
        ("figure final_acc", ["final_accuracy"]),
    ],
)
def test_tab_offers_commands_options_and_names(
    begun: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"grpobench {begun}"
    environment = {"_GRPOBENCH_COMPLETE": "bash_complete", "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(len(words.split()) - 1)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cli.main([]) == 0
    assert [line.partition(",")[2] for line in capsys.readouterr().out.split()] == offered


def test_completion_prints_a_shells_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "zsh"]) == 0
    assert "_GRPOBENCH_COMPLETE" in capsys.readouterr().out


# Metrics


def test_names_of_patterns_are_known_and_others_are_not() -> None:
    for name in (
        "step",
        "reward/mean",
        "score/correct",
        "grad_norm/policy",
        "eval/test/greedy/correct",
        "eval/validation/sampled/bias_ambiguous/Age",
    ):
        assert is_metric(name), name
    for name in ("reward", "score/", "eval/test/correct", "unheard/of"):
        assert not is_metric(name), name


def test_one_name_with_two_definitions_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpobench.algorithms.algorithm import Metric

    monkeypatch.setattr("grpobench.algorithms.ALGORITHMS", stand_ins.ALGORITHMS)
    assert catalog.catalog()["plain/size"].unit == "tokens"
    monkeypatch.setattr(stand_ins.Critic, "metrics", (Metric("reward/mean", "reward", "something else"),))
    with pytest.raises(ValueError, match="critic and the harness declare reward/mean differently"):
        catalog.catalog()
