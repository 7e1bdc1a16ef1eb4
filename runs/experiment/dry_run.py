"""`grpobench run --dry-run`: check an experiment and estimate its cost before it starts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from grpobench.runs.experiment import memory, preflight, sampler_choice, trial
from grpobench.runs.experiment.engines import HERE, Where, with_devices
from grpobench.runs.experiment.experiment import survey
from grpobench.runs.experiment.memory import Planned
from grpobench.runs.experiment.memory_table import plan_lines
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.experiment.run_status import run_status
from grpobench.runs.experiment.trial import TrialError, TrialResult
from grpobench.runs.models import loading
from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.runfolder.folder import grows
from grpobench.runs.runfolder.logs import RESULTS, settled, status
from grpobench.runs.runfolder.rows import last_rows
from grpobench.runs.sample.context import Room, dropped
from grpobench.runs.settings import others
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.recipe import Recipe
from grpobench.runs.tools import files, machine
from grpobench.runs.tools.lock import FolderError, Lock
from grpobench.runs.tools.progress import duration
from grpobench.runs.train.rollouts import demand_problems
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Split

LINES = 40
"""Maximum number of lines of a prompt that are shown."""


@dataclass(frozen=True)
class Prompt:
    """A problem as the model reads it, through its chat template if it has one."""

    task: str
    model: str
    problem: str
    tokens: int
    context: int
    """Context length of the model, in tokens."""
    limit: int
    """Longest completion, in tokens."""
    text: str


@dataclass(frozen=True)
class CostEstimate:
    """Estimated cost of the steps that are left."""

    training_tokens_at_most: int
    """Upper bound: every completion is as long as the limit, and dynamic sampling makes every draw."""
    evaluation_tokens_at_most: int
    """Upper bound for whole runs, with the evaluations before and after training."""
    training_tokens: int | None
    """Estimate from the tokens per step of earlier runs in the folder; None unless each arm and task has such
    a run."""
    seconds: float | None
    """Estimate from the seconds per step of earlier runs, spread over the workers."""
    disk_after: int | None = None
    """Bytes of weights that the runs keep; None if this machine lacks a model's files."""
    disk_during: int | None = None
    """Upper bound on the bytes of checkpoints beside these while the runs work."""
    disk_logs: int = 0
    """Upper bound on the bytes of logs, evaluations, completions and rollouts (`preflight.log_bytes`)."""


@dataclass(frozen=True)
class Preview:
    """What `grpobench run` would do."""

    name: str
    folder: Path
    arms: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: Mapping[str, str]
    """By folder: `finished`, `diverged` or `collapsed` (left as it is), `resume` or `begin`."""
    left_out: tuple[str, ...]
    workers: int
    estimate: CostEstimate
    prompts: tuple[Prompt, ...]
    trial: tuple[TrialResult, ...] = ()
    """Of every algorithm, task, reward, curriculum and sampler; empty if none was made."""
    notes: tuple[str, ...] = ()
    """Why `grpobench run` would refuse the folder, and evaluations with fewer problems than asked for."""
    samplers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By model, the `kind` that `sampler.kind = "auto"` is, and `why`."""

    def row(self) -> dict[str, Any]:
        """For machines."""
        return {**asdict(self), "folder": str(self.folder)}


@dataclass(frozen=True)
class Rehearsal:
    """What the experiments of several recipes would do, and the memory that their runs take."""

    previews: tuple[Preview, ...]
    plans: tuple[tuple[Planned, ...], ...]
    """The memory of each preview."""
    memory: tuple[str, ...]
    """The memory of all of them, as lines."""

    def rows(self) -> list[dict[str, Any]]:
        """For machines."""
        pairs = zip(self.previews, self.plans, strict=True)
        return [
            {**preview.row(), "memory": [planned_run.row() for planned_run in plans]}
            for preview, plans in pairs
        ]

    def lines(self) -> list[str]:
        """For people: prompts are those of the first recipe."""
        first, *others = self.previews
        later = [line for preview in others for line in ["", *as_lines(replace(preview, prompts=()))]]
        return [*as_lines(first), *later, "", *self.memory]

    def demand(self) -> None:
        """Raises TrialError for code that cannot work."""
        if any(tried.fault for tried in self.previews[0].trial):
            raise TrialError(self.previews[0].trial)


def rehearse(
    recipes: Sequence[Recipe],
    out: Path,
    show: Callable[[str], None],
    *,
    where: Where,
    workers: int | None = None,
    allow_change: bool = False,
    try_code: bool = True,
    gpu_memory: float | None = None,
) -> Rehearsal:
    """Check the recipes and say what `run_experiment` would do with each in `out`, with the same arguments. A
    trial is made of the first one's code.

    Raises as `preview` does, and ConfigError for runs that cannot fit into memory; `show` is told the plan of
    the memory before that, and before a ModelError. Before a trial it is told which precisions are slow.
    """
    gpu = sampler_choice.has_gpu(gpu_memory, where)
    recipes = [sampler_choice.decide(recipe, out / recipe.name, gpu) for recipe in recipes]
    configs = [config for recipe in recipes for config in recipe.runs()]
    where = with_devices(where, configs)
    workers = workers or recipes[0].head.workers or machine.count_worker_slots(where.gpus_per_run)
    device = memory.device(gpu_memory, where, workers)
    plans, why = memory.attempt(configs, device)
    if any(planned_run.verdict == "does not fit" for planned_run in plans):
        show("\n".join(plan_lines(plans, "")))
    memory.demand(plans)
    for text in preflight.notes_on_precision(configs, where) if try_code else ():
        show(f"note: {text}")  # before the trial, which computes in that precision
    try:
        previews = [
            preview(recipe, out, workers, allow_change, try_code and not index, where)
            for index, recipe in enumerate(recipes)
        ]
    except ModelError:  # without a tokenizer nothing can run, but config.json told the memory
        show("\n".join(plan_lines(plans, why)))
        raise
    each = [plans] if len(recipes) == 1 else [memory.attempt(recipe.runs(), device)[0] for recipe in recipes]
    return Rehearsal(tuple(previews), tuple(map(tuple, each)), tuple(plan_lines(plans, why)))


def preview(
    recipe: Recipe,
    out: Path,
    workers: int,
    allow_change: bool = False,
    try_code: bool = False,
    where: Where = HERE,
) -> Preview:
    """Check a recipe and say what `grpobench run` would do. With `try_code` this includes a trial.

    The recipe comes first: runs in the folder that were made with other settings, or that are damaged, are
    only noted. Raises FolderError if another process owns the folder, DataError if data, tokenizers or
    prompts would stop a run, ConfigError if nothing can be written.
    """
    folder = out / recipe.name
    files.demand_writable(folder, "--out")
    if owner := Lock(folder).owner():
        raise FolderError(f"{folder} is in use by process {owner.pid} on {owner.host}")
    runs = [ExperimentRun(config, folder / config.folder) for config in recipe.runs()]
    configs = [run.config for run in runs]
    shown = prompts(configs)
    tried = try_out(configs) if try_code else ()
    notes = (*clash(runs, allow_change), *fewer(configs), *preflight.notes_on_precision(configs, where))
    return Preview(
        name=recipe.name,
        folder=folder,
        arms=tuple(dict.fromkeys(config.arm for config in configs)),
        tasks=tuple(dict.fromkeys(config.task.name for config in configs)),
        seeds=tuple(dict.fromkeys(config.seed for config in configs)),
        runs={run.name: plan(run) for run in runs},
        left_out=recipe.left_out,
        workers=min(workers, max(1, sum(run.state == "waiting" for run in runs))),
        estimate=estimate(runs, workers),
        prompts=shown,
        trial=tried,
        notes=notes,
        samplers=recipe.samplers,
    )


def clash(runs: Sequence[ExperimentRun], allow_change: bool) -> list[str]:
    """Why `grpobench run` would refuse what is in the folder; empty if it would not. Finds the runs that have
    a result."""
    try:
        survey(runs, allow_change)
    except FolderError as error:
        return [f"`grpobench run` would refuse the folder: {error}"]
    return []


def fewer(configs: Sequence[RunConfig]) -> list[str]:
    """Evaluations that ask for more problems than their split has."""
    notes: dict[str, None] = {}
    for config in configs:
        problem_counts: dict[Split, tuple[str, int]] = {
            "validation": ("problems", config.evaluate.problems),
            "test": ("test_problems", config.evaluate.test_problems),
        }
        for split, (key, count) in problem_counts.items():
            if count and (there := len(config.task.problems(split))) < count:
                text = f"evaluate.{key} = {count}, but {config.task.name} has {there} {split} problems"
                notes[f"{text}; all of them are used"] = None
    return list(notes)


def try_out(configs: Sequence[RunConfig]) -> tuple[TrialResult, ...]:
    """The trials of all code, without a large model."""
    return tuple(trial.carry_out([trial.moved(config) for config in trial.distinct(configs, True)]))


def plan(run: ExperimentRun) -> str:
    """What would happen to a run."""
    if run.state != "waiting":
        return run.state
    return "resume" if checkpoint(run) else "begin"


def checkpoint(run: ExperimentRun) -> int:
    """The step of the newest checkpoint; 0 without one, and for a result that will be replaced."""
    if settled(run.path):
        return int(status(run.path)["step"]) if grows(run.path, run.config) else 0
    return run.checkpoint()


# Estimates


def estimate(runs: Sequence[ExperimentRun], workers: int) -> CostEstimate:
    """The estimate, from the settings and from earlier runs of the same arms and tasks in the folder."""
    todo = [run for run in runs if run.state == "waiting"]
    left = {run.name: run.config.train.steps - checkpoint(run) for run in todo}
    pace_by_arm_and_task = paces(runs)
    shared = [pace_by_arm_and_task.get((run.config.arm, run.config.task.name)) for run in todo]
    timed = [(pace, left[run.name]) for pace, run in zip(shared, todo, strict=True) if pace is not None]
    all_timed = len(timed) == len(todo)
    sized = preflight.counted([run.config for run in todo])
    after, during = preflight.disk(sized, max(1, min(workers, len(todo))))
    return CostEstimate(
        disk_after=after if len(sized) == len(todo) else None,
        disk_during=during if len(sized) == len(todo) else None,
        disk_logs=sum(preflight.log_bytes(run.config) for run in todo),
        training_tokens_at_most=sum(preflight.step_tokens(run.config) * left[run.name] for run in todo)
        + sum(tokens_before(run.config) for run in todo),
        evaluation_tokens_at_most=sum(evaluation_tokens(run.config) for run in todo),
        training_tokens=round(sum(pace[1] * steps for pace, steps in timed)) if all_timed else None,
        seconds=sum(pace[0] * steps for pace, steps in timed) / max(1, min(workers, len(todo)))
        if all_timed
        else None,
    )


def paces(runs: Sequence[ExperimentRun]) -> dict[tuple[str, str], tuple[float, float]]:
    """(seconds, sampled tokens) per step by arm and task: means over the runs with timed steps."""
    pace_samples: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for run in runs:
        rows = last_rows(run.path / "metrics.jsonl")
        seconds = run_status(run.path).seconds_per_step
        if math.isfinite(seconds) and rows[-1]["step"]:
            tokens = float(rows[-1].get("cost/generated_tokens") or 0.0) / rows[-1]["step"]
            pace_samples.setdefault((run.config.arm, run.config.task.name), []).append((seconds, tokens))
    return {
        key: (
            math.fsum(s for s, _ in samples) / len(samples),
            math.fsum(t for _, t in samples) / len(samples),
        )
        for key, samples in pace_samples.items()
    }


def tokens_before(config: RunConfig) -> int:
    """Upper bound on the tokens that the base policy samples once, before training."""
    replayed, rollouts_per_problem = config.sampler.kind == "replay", config.algorithm.base_rollouts
    if not replayed and not rollouts_per_problem:
        return 0
    count = len(config.task.problems("train"))
    if replayed:
        return min(config.sampler.problems, count) * config.train.group_size * preflight.limit_of(config)
    return count * rollouts_per_problem * preflight.limit_of(config)


def evaluation_tokens(config: RunConfig) -> int:
    """Upper bound on the tokens that the evaluations of a whole run sample."""
    return sum(preflight.tokens_of_task(config, task) for task in (config.task, *others.tasks_beside(config)))


# Prompts


def prompts(configs: Sequence[RunConfig]) -> tuple[Prompt, ...]:
    """One prompt per task and model. All prompts of the runs are measured first."""
    models: dict[tuple[str, str], Loaded] = {}
    shown: dict[tuple[str, str, str], Prompt] = {}
    checked: set[str] = set()
    for config in configs:
        name = config.model.name
        templated = json.dumps(config.model.template, sort_keys=True)
        if (name, templated) not in models:
            models[name, templated] = loading.load_outline(name, chat_template=config.model.template)
        # Whether prompts fit does not depend on the seed, and for most arms not on the arm.
        facts = str(
            (name, config.task, config.sampler, config.model, config.evaluate, config.train.prompts_per_step)
        )
        if facts not in checked:
            checked.add(facts)
            key = str(config.task), name, templated
            shown.setdefault(key, prompt(config, models[name, templated]))
    return tuple(shown.values())


def prompt(config: RunConfig, loaded: Loaded) -> Prompt:
    """The run's first problem as its model reads it. Raises DataError for prompts that would stop the run."""
    dropped(config, loaded)
    limit, kind = preflight.limit_of(config), config.sampler.kind
    split: Split = "validation" if kind == "preferences" else "train"
    problems = Room(loaded, limit, config.model.long_prompts).fitting(config.task.problems(split), split)
    if not problems:
        raise DataError(f"task {config.task.name} has no {split} problem")
    if kind != "preferences":
        most = config.sampler.problems if kind == "replay" else len(problems)
        demand_problems(config.train.prompts_per_step, min(most, len(problems)))
    first = problems[0]
    tokens = loaded.encode(first.prompt)
    return Prompt(
        task=config.task.name,
        model=config.model.name,
        problem=first.id,
        tokens=len(tokens),
        context=loaded.context,
        limit=limit,
        text=str(loaded.tokenizer.decode(list(tokens))),
    )


# Text


def as_lines(preview: Preview) -> list[str]:
    """For people."""
    states = list(preview.runs.values())
    words = {"begin": "to begin", "resume": "to resume"} | {state: state for state in RESULTS}
    there = ", ".join(f"{states.count(state)} {word}" for state, word in words.items() if state in states)
    sizes = counted(preview.arms, "arm"), counted(preview.tasks, "task"), counted(preview.seeds, "seed")
    run_counts = f"{counted(preview.runs, 'run')} ({', '.join(sizes)})"
    lines = [f"{preview.name}: {run_counts}; no run is started, nothing is written"]
    lines += [f"left out: {why}" for why in preview.left_out]
    lines += [f"folder: {preview.folder}: {there}", *sampler_choice.lines(preview.samplers)]
    lines += estimate_lines(preview)
    if preview.trial:
        faults = sum(bool(tried.fault) for tried in preview.trial)
        result = (
            f"{counted([tried for tried in preview.trial if tried.fault], 'fault')}" if faults else "passed"
        )
        lines += [f"trial: {result}; tried {', '.join(tried.what for tried in preview.trial)}"]
        lines += [f"not tried: {tried.what}: {tried.skipped}" for tried in preview.trial if tried.skipped]
    lines += [f"note: {note}" for note in preview.notes]
    for prompt in preview.prompts:
        lines += ["", *prompt_lines(prompt)]
    return lines


def counted(collection: Sized, word: str) -> str:
    return f"{len(collection)} {word}{'' if len(collection) == 1 else 's'}"


def prompt_lines(prompt: Prompt) -> list[str]:
    """The prompt as the model reads it, indented, after a line that describes it."""
    name = " ".join(prompt.problem.split())
    name = name if len(name) <= 40 else f"{name[:39]}…"
    room = f"{prompt.tokens} tokens, up to {prompt.limit} more in a completion, of {prompt.context}"
    text = prompt.text.splitlines()
    lines = [f"{prompt.task}, problem {name}, as {prompt.model} reads it ({room}):"]
    lines += [f"    {line}" for line in text[:LINES]]
    return lines + ([f"    ({len(text) - LINES} more lines)"] if len(text) > LINES else [])


def estimate_lines(preview: Preview) -> list[str]:
    """The work that is left, always called an estimate."""
    estimate = preview.estimate
    training, evaluation = estimate.training_tokens_at_most, estimate.evaluation_tokens_at_most
    most = f"at most {training:,} tokens sampled in training and {evaluation:,} in evaluations"
    lines = [f"estimate: {most} if every completion has the maximum length"]
    logs = f"at most {preflight.size(estimate.disk_logs)} of logs and completions"
    if estimate.disk_after is None or estimate.disk_during is None:
        lines.append(f"disk: {logs}; weights unknown, because a model's files are not on this machine")
    else:
        during = preflight.size(estimate.disk_during)
        after = preflight.size(estimate.disk_after)
        lines.append(
            f"disk: {after} of weights after the runs, up to {during} of checkpoints during them, {logs}"
        )
    if estimate.seconds is None or estimate.training_tokens is None:
        return [
            *lines,
            "no estimate of time yet: it needs a run of each arm and task with two steps in this folder",
        ]
    workers = "1 worker" if preview.workers == 1 else f"{preview.workers} workers"
    time = f"{duration(estimate.seconds)} on {workers}, without loading models"
    tokens = f"{estimate.training_tokens:,} tokens in training"
    return [*lines, f"estimate from earlier runs in this folder: {tokens}, {time}"]
