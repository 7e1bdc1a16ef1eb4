"""What `grpobench eval` evaluates: the user's options, the models and runs, every value resolved."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from grpobench.runs.models.model_files import missing
from grpobench.runs.settings import registries, stored
from grpobench.runs.settings.config import EvaluateConfig, ModelConfig
from grpobench.runs.settings.judge import JudgeConfig
from grpobench.runs.tools import files, strict
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded, sources
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Split, Task

Through = Literal["grpobench", "lm-eval"]
Policy = Literal["base", "final", "model"]
ALL = 10**9
OUT = Path("results/models")


@dataclass(frozen=True)
class EvalRequest:
    """The user's options; None leaves a value to the run, or to the task."""

    task: str
    sets: Mapping[str, Any] = field(default_factory=dict)
    split: Split = "test"
    problems: int = 0
    samples: int | None = None
    greedy: bool = True
    temperature: float | None = None
    limit: int | None = None
    seed: int = 0
    drop_long: bool = False
    through: tuple[Through, ...] = ("grpobench",)
    base: bool = True
    again: bool = False
    out: Path | None = None
    """Folder for a model's results; None: `OUT`."""
    tasks_folder: Path | None = None
    """Folder for the harness's task files; None: they are deleted."""
    include: Path | None = None
    """A folder with further tasks of the harness."""
    fewshot: int | None = None
    template: bool = True
    """False: a model reads prompts without its chat template. Of a run its `model.chat_template` decides."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of a model's forward passes; a run keeps its own."""
    judge: JudgeConfig | None = None
    """Grades the answers too."""


@dataclass(frozen=True)
class Subject:
    """A model, or a run with its base model and its final weights."""

    name: str
    evals_parent: Path
    """The folder that gets `evals/`."""
    model: ModelConfig
    run: Mapping[str, Any] = field(default_factory=dict)
    """run.toml; empty for a model."""

    @property
    def trained_task(self) -> Task | None:
        """The task that the run was trained on, with its settings."""
        task_table = self.run.get("task")
        return chosen_task(task_table, self.run.get("beside", "")) if task_table else None


@dataclass(frozen=True)
class EvaluationPlan:
    """What a subject is asked, with every value resolved. `task` is None for a task of the harness."""

    task: Task | None
    settings: Mapping[str, Any]
    """JSON that all records of the same question share."""

    @property
    def stem(self) -> str:
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]
        return re.sub(r"[^A-Za-z0-9_.]+", "_", self.settings["task"]) + f"-{self.settings['split']}-{digest}"


def subjects(target: str, out: Path | None, model: ModelConfig | None = None) -> list[Subject]:
    """The runs of an experiment folder, one run, or a model by name, whose results go under `out` and whose
    other settings are those of `model`."""
    target_path = Path(target)
    trained = (target_path / "run.toml").exists() or (target_path / "experiment.json").exists()
    if trained and out is not None:
        raise ConfigError(
            [f"--out {out}: results of runs go to their own folders, here {target_path}; omit --out"]
        )
    if (target_path / "run.toml").exists():
        return [_run(target_path)]
    if (target_path / "experiment.json").exists():
        described = files.read_json(target_path / "experiment.json")
        if not isinstance(described, dict) or not isinstance(described.get("runs"), list):
            raise DataError(
                f"{target_path / 'experiment.json'} is damaged; start the recipe again to write it anew"
            )
        names = described["runs"]
        run_subjects = [
            _run(target_path / name) for name in names if (target_path / name / "run.toml").exists()
        ]
        if not run_subjects:
            raise DataError(f"{target_path} contains no run yet; start its recipe with `grpobench run`")
        return run_subjects
    if target_path.is_file() and missing(target):
        raise DataError(f"{target}: a file, not a folder; give a run or experiment folder, or a model")
    stem = Path(target).name if target_path.is_dir() else target.replace("/", "--")
    config = replace(model or ModelConfig(), name=target)
    return [Subject(target, files.writable(out or OUT, "--out") / stem, config)]


def _run(run_folder: Path) -> Subject:
    table = bounded.read_toml(run_folder / "run.toml", "restore the run folder")
    faults: list[str] = []
    model = strict.build(ModelConfig, table.get("model", {}), "model", faults)
    if isinstance(model, strict.Bad):
        raise ConfigError(faults, str(run_folder / "run.toml"))
    return Subject(run_folder.name, run_folder, model, table)


def resolve(wish: EvalRequest, subject: Subject) -> EvaluationPlan:
    """Fill in what the options leave open: a run's own task gets the run's settings."""
    if wish.judge and "lm-eval" in wish.through:
        raise ConfigError(["--judge: grades what our own sampler writes; take --through grpobench"])
    dtype = subject.model.dtype
    trained_on = subject.run.get("task", {})
    run_task = subject.trained_task if trained_on.get("name") == wish.task else None
    if not (run_task or wish.task in registries.tasks() or registries.is_plugin_name("task", wish.task)):
        return EvaluationPlan(None, _theirs(wish, dtype))
    entry, beside = (
        (trained_on, subject.run.get("beside", "")) if run_task else ({"name": wish.task}, str(Path.cwd()))
    )
    fields = strict.plain(run_task) if run_task else {}
    task = chosen_task({**entry, "settings": {**fields, **wish.sets}}, beside)
    if lack := _lack(task, wish.split):
        raise ConfigError([f"task {wish.task}: {lack}"])
    sampler = subject.run.get("sampler", {}) if run_task else {}
    # If lm-eval draws the random numbers, samples cannot be compared, and greedy answers are enough.
    samples = wish.samples if wish.samples is not None else 0 if "lm-eval" in wish.through else 1
    # A run from before evaluation had its own temperature was evaluated at the sampler's.
    evaluated = {"temperature": 1.0} | sampler | (subject.run.get("evaluate", {}) if run_task else {})
    temperature = evaluated["temperature"] if wish.temperature is None else wish.temperature
    _check(wish, subject, task, samples, temperature)
    settings = {
        "task": wish.task,
        "task_settings": strict.plain(task),
        "split": wish.split,
        "problems": wish.problems,
        "samples": samples,
        "greedy": wish.greedy,
        "temperature": temperature,
        "max_completion_tokens": wish.limit
        or sampler.get("max_completion_tokens")
        or task.max_completion_tokens,
        "seed": wish.seed,
        "dtype": dtype,
        "long_prompts": "drop" if wish.drop_long else subject.model.long_prompts,
    }
    if not subject.model.chat_template:  # left out otherwise: records from before the setting stay known
        settings["chat_template"] = False
    if subject.model.chat_template_settings:
        settings["chat_template_settings"] = dict(subject.model.chat_template_settings)
    if wish.judge:
        settings["judge"] = wish.judge.effective
    return EvaluationPlan(task, settings)


def _lack(task: Task, split: Split) -> str:
    """Why a task cannot be evaluated on a split here; empty if it can, even if the data of its other splits
    are missing."""
    lack = task.missing()
    if lack and split in task.splits and lack == sources.missing(task.tables, sources.data_folder()):
        try:
            task.problems(split)
        except DataError as error:
            return str(error)
        return ""
    return lack


def _check(wish: EvalRequest, subject: Subject, task: Task, samples: int, temperature: float) -> None:
    """Raise ConfigError for options that do not fit the task or the run."""
    if subject.run and not (wish.template and wish.dtype == "float32"):
        raise ConfigError(
            [f"{subject.name}: --no-chat-template and --dtype are for models; a run keeps its settings"]
        )
    if not (samples or wish.greedy or "likelihood" in task.modes):
        raise ConfigError(["nothing to evaluate: --no-greedy leaves only samples; add --samples N"])
    if wish.split not in task.splits:
        raise ConfigError([f"--split {wish.split}: task {wish.task} has {', '.join(task.splits)}"])
    faults: list[str] = []
    strict.build(EvaluateConfig, {"samples": samples, "temperature": temperature}, "", faults)
    if faults:
        raise ConfigError([f"--{fault}" for fault in faults])


def _theirs(wish: EvalRequest, dtype: str) -> dict[str, Any]:
    """The question for a task of the harness's own."""
    if wish.through != ("lm-eval",):
        also = "; for a task of lm-eval's own add --through lm-eval"
        raise ConfigError([registries.miss("task", wish.task, registries.tasks()) + also])
    if wish.sets or wish.samples:
        raise ConfigError(
            [f"--set and --samples are for tasks of grpobench; lm-eval has its own settings for {wish.task}"]
        )
    return {
        "task": wish.task,
        "split": "test",
        "problems": wish.problems,
        "fewshot": wish.fewshot,
        "chat_template": wish.template,
        "seed": wish.seed,
        "dtype": dtype,
    }


def read_judge(path: Path) -> JudgeConfig:
    """The judge of a TOML file with its settings. Raises ConfigError and FileError."""
    faults: list[str] = []
    judge = strict.build(JudgeConfig, bounded.read_toml(path), "", faults)
    faults += judge.gaps() if isinstance(judge, JudgeConfig) else ()
    if faults or isinstance(judge, strict.Bad):
        raise ConfigError(faults, str(path))
    return judge


def chosen_task(entry: Mapping[str, Any], beside: str) -> Task:
    """The task of a run.toml's section; `beside` is the folder with the plugins' code and data."""
    faults: list[str] = []
    task = stored.built("task", entry, beside, faults)
    if faults:
        raise ConfigError(faults)
    assert isinstance(task, Task)
    return task
