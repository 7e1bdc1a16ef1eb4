"""Others' code in recipes: algorithms, tasks, rewards, curricula, samplers; from files and from packages."""

from __future__ import annotations

import importlib
import json
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.whole_runs import rows, timeless

from grpobench.runs import cli
from grpobench.runs.settings import others, stored
from grpobench.runs.settings.recipe import Recipe, read_recipe
from grpobench.runs.tools.strict import ConfigError

CODE = '''
from dataclasses import dataclass
from grpobench.algorithms.algorithm import Algorithm, Metric
from grpobench.algorithms.curriculum import Shuffled
from grpobench.algorithms.grpo import GRPO
from grpobench.runs.sample.in_process import HFSampler
from grpobench.tasks.arithmetic import Arithmetic

@dataclass(frozen=True)
class Mine(GRPO):
    """GRPO with half of its advantage."""
    name = "halved"
    summary = "half of GRPO"
    metrics = (*GRPO.metrics, Metric("halved/share", "share", "what is left"))
    share: float = 0.5

    def observe(self, batch, signal):
        return {**super().observe(batch, signal), "halved/share": self.share}

@dataclass(frozen=True)
class Sums(Arithmetic):
    name = "sums"

class Nameless(GRPO):
    pass

class Taken(GRPO):
    name = "grpo"

class Abstract(Algorithm):
    name = "abstract"

def brevity(prompts, completions, **columns):
    return [-len(text) / 100 for text in completions]

class Ordered(Shuffled):
    def __init__(self, problems, prompts, seed):
        super().__init__(len(problems), prompts, seed)
        self.ids = [problem.id for problem in problems]

    def draw(self, step, attempt):
        return list(range((step - 1) * self.prompts, step * self.prompts))

def sampler(config, models, loaded):
    return HFSampler(models, loaded.end, loaded.pad, config.sampler.max_batch_size, loaded.context)
'''
RECIPE = """
tasks = ["mine:Sums", { name = "listed", jsonl = "problems.jsonl", prompt = "{question}=", verify = "exact", \
max_completion_tokens = 6 }]
[model]
name = "nano"
[train]
steps = 2
prompts_per_step = 4
group_size = 4
[evaluate]
problems = 2
test_problems = 0
[[arm]]
algorithm = "grpo"
[[arm]]
algorithm = "mine:Mine"
settings.share = 0.25
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A folder with a recipe, code and data of its own."""
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "mine.py").write_text(CODE)
    (folder / "study.toml").write_text(RECIPE)
    rows = [{"question": f"{a}+{b}", "answer": a + b} for a in range(10) for b in range(10)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def read(study: Path, *sets: str, extra: str = "") -> Recipe:
    (study / "study.toml").write_text(RECIPE + extra)
    return read_recipe(str(study / "study.toml"), sets)


def complaints(study: Path, *sets: str, extra: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(study, *sets, extra=extra)
    return caught.value.faults


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package `theirs` 1.2 with entry points, as pip leaves it."""
    (folder / "theirs").mkdir(parents=True)
    (folder / "theirs" / "__init__.py").write_text("")
    (folder / "theirs" / "code.py").write_text(CODE)
    about = folder / "their_package-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.2\n")
    (about / "top_level.txt").write_text("theirs\n")
    (about / "RECORD").write_text("theirs/__init__.py,,\ntheirs/code.py,,\n")
    points = {"algorithms": ("halved", "Mine"), "tasks": ("sums", "Sums"), "rewards": ("brief", "brevity")}
    points |= {"curriculums": ("ordered", "Ordered"), "samplers": ("counted", "sampler")}
    lines = [f"[grpobench.{kind}]\n{name} = theirs.code:{cls}\n" for kind, (name, cls) in points.items()]
    (about / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()


def test_a_recipe_names_arms_and_tasks_of_others_by_their_own_name(study: Path) -> None:
    runs = read(study).runs()
    assert [run.folder for run in runs] == [
        *("grpo-sums-s0", "grpo-listed-s0", "halved-sums-s0", "halved-listed-s0"),
    ]
    assert runs[2].algorithm.share == 0.25  # type: ignore[attr-defined]
    assert runs[1].task.jsonl == study / "problems.jsonl"  # type: ignore[attr-defined]
    assert [run.beside for run in runs] == [str(study)] * 4


def test_the_folder_is_kept_only_where_it_is_needed(study: Path) -> None:
    plain, listed = (read(study, "arms=grpo", f"tasks={name}").runs()[0] for name in ("arithmetic", "listed"))
    assert (plain.beside, listed.beside) == ("", str(study))


def test_the_command_line_names_them_too(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = read(
        study, "arms=mine:Mine", "tasks=mine:Sums", "algorithm.share=0.75", "arm.halved.train.steps=7"
    ).runs()
    assert [(run.folder, run.algorithm.share, run.train.steps) for run in chosen] == [  # type: ignore[attr-defined]
        ("halved-sums-s0", 0.75, 7)
    ]
    monkeypatch.chdir(study)
    # for a recipe of the suite, where the user is
    (run,) = read_recipe("quickstart", ["arms=mine:Mine", "tasks=mine:Sums", "seeds=0"]).runs()
    assert (run.folder, run.beside) == ("halved-sums-s0", str(study))
    task = read(study, "task.listed.settings.test=0.5", "task.validation=0.25", "tasks=listed").runs()[0].task
    assert (task.test, task.validation) == (0.5, 0.25)  # type: ignore[attr-defined]


def test_a_run_reads_back_from_run_toml_and_from_a_pickle(study: Path) -> None:
    extra = '[sampler]\nkind = "mine:sampler"\n[reward]\nkind = "sum"\nweights = { "mine:brevity" = 1.0 }\n'
    for run in read(study, "train.curriculum=mine:Ordered", extra=extra).runs():
        assert stored.load(stored.dump(run)) == run
        assert pickle.loads(pickle.dumps(run)) == run
    assert 'class = "mine:Mine"' in stored.dump(run) and 'jsonl = "problems.jsonl"' in stored.dump(run)
    assert [*others.others(run)] == ["mine:Mine", "mine:brevity", "mine:Ordered", "mine:sampler"]


def test_a_study_that_moved_is_the_same_one(study: Path) -> None:
    before = stored.dump(read(study).runs()[3])
    moved = study.rename(study.parent / "moved")
    assert stored.differences(before, stored.dump(read(moved).runs()[3])) == []


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["arms=mine:Nameless"], '--set arms: mine:Nameless: write name = "..." in Nameless, a name of its'),
        (["arms=mine:Taken"], "mine:Taken: the suite has another algorithm 'grpo'; give Taken another name"),
        (["arms=mine:Abstract"], "mine:Abstract: Abstract lacks compute_signal, loss, loss_weights"),
        (["tasks=reasoning_gym:leg_cuonting"], "unknown task 'reasoning_gym:leg_cuonting'; did you mean"),
        (["train.curriculum=ordered"], "--set train.curriculum: must be module:Name or what a package"),
        (["reward.kind=sum", 'reward.weights={"mine:Mine" = 1}'], "no function of prompts, completions and"),
        (['reward.weights={"mine:brevity" = 1}'], 'set reward.kind = "sum" to weigh mine:brevity too'),
    ],
    ids=lambda parameter: str(parameter)[:24],
)
def test_what_cannot_be_is_refused_with_its_place(sets: Sequence[str], message: str, study: Path) -> None:
    faults = complaints(study, *sets)
    assert any(message.format(study) in fault for fault in faults), faults


def test_a_wrong_share_and_a_data_file_that_is_not_there_are_named(study: Path) -> None:
    fault, *_ = complaints(study, "tasks=listed", "task.listed.settings.validation=2.0")
    assert "validation: must be from 0 to below 1" in fault
    (study / "problems.jsonl").unlink()
    (fault,) = complaints(study, "tasks=listed")
    assert fault.startswith(f"task listed: {study / 'problems.jsonl'}: cannot be read (No such file")


def test_packages_give_names_by_entry_points(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", monkeypatch)
    sets = [
        "arms=halved,grpo",
        "tasks=sums",
        "reward.kind=sum",
        'reward.weights={brief = 1, "mine:brevity" = 0}',
        "train.curriculum=ordered",
        "sampler.kind=counted",
    ]
    (study / "study.toml").write_text(
        RECIPE.replace('"mine:Sums"', '"sums"').replace('"mine:Mine"', '"halved"')
    )
    first, _ = read_recipe(str(study / "study.toml"), sets).runs()
    assert type(first.algorithm).__module__ == "theirs.code" and first.task.name == "sums"
    assert stored.load(stored.dump(first)) == first
    provenance_by_name = {name: resolved.provenance for name, resolved in others.others(first).items()}
    assert provenance_by_name == {
        "theirs.code:Mine": "package their-package 1.2",
        "theirs.code:Sums": "package their-package 1.2",
        "brief": "entry point their-package 1.2",
        "mine:brevity": str(study / "mine.py"),
        "ordered": "entry point their-package 1.2",
        "counted": "entry point their-package 1.2",
    }


@pytest.mark.slow
def test_whole_runs_of_others_code(study: Path) -> None:
    """Trained, reported and pinned."""
    extra = (
        '[sampler]\nkind = "mine:sampler"\n'
        '[reward]\nkind = "sum"\nweights = { correct = 1.0, "mine:brevity" = 0.1 }\n'
        "[checkpoint]\nevery = 1\n"
    )
    (study / "study.toml").write_text(
        RECIPE.replace("group_size = 4", 'group_size = 4\ncurriculum = "mine:Ordered"') + extra
    )
    words = ["--out", str(study / "out"), "--workers", "1", "--set", "tasks=listed"]
    assert cli.main(["run", str(study / "study.toml"), *words]) == 0
    experiment = study / "out" / "study"
    halved, plain = (timeless(rows(experiment / f"{arm}-listed-s0")[1]) for arm in ("halved", "grpo"))
    assert halved.pop("halved/share") == 0.25 and halved["reward/mine:brevity"] < 0
    assert halved == plain
    provenance = json.loads((experiment / "halved-listed-s0" / "provenance.json").read_text())
    assert "beside the recipe: mine.py" in provenance["attempts"][-1]["code"]
    assert (experiment / "report" / "index.html").exists()
