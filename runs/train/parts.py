"""What a run is made of: each part built where it belongs, in one order, and handed to the trainer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.curriculum import Curriculum
from grpobench.algorithms.modifiers import Refilled
from grpobench.runs.metrics.evaluator import Evaluator
from grpobench.runs.models.determinism import determinism
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.model_files import weights_hash
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.prepare.study import study
from grpobench.runs.prepare.warmstart import warm_start
from grpobench.runs.reward.functions import RewardFunction
from grpobench.runs.reward.grader import Grader
from grpobench.runs.sample.choose import sampler_for
from grpobench.runs.sample.context import dropped
from grpobench.runs.sample.sampler import Sampler
from grpobench.runs.settings import others, registries
from grpobench.runs.settings.config import RunConfig, rates
from grpobench.runs.settings.optimizers import maker
from grpobench.runs.settings.schedules import Schedule, schedule
from grpobench.runs.tools.progress import Clock, device_done
from grpobench.runs.tools.seeds import derive
from grpobench.runs.train.curricula import Checked
from grpobench.runs.train.rollouts import OnPolicy, Preferences, Replay, Source, demand_problems

Tell = Callable[[str], None]
"""Takes what is going on before the first step."""


@dataclass(frozen=True)
class Parts:
    """Everything that a run holds in memory but its progress."""

    algorithm: Algorithm[Any]
    """With its modifiers around it."""
    loaded: Loaded
    models: RoleModels
    sampler: Sampler
    source: Source
    curriculum: Curriculum
    evaluator: Evaluator
    clock: Clock
    schedule: Schedule
    """Of the learning rates."""
    limit: int
    """Most tokens of a completion."""
    provenance: dict[str, Any]
    """What provenance.json says of model, data, order of sums, sandbox and warm start."""
    fingerprints: dict[str, str]
    """Hashes of what is only known when it has been loaded; the others are `fingerprints.Today`'s."""


def build(config: RunConfig, tell: Tell = lambda phase: None) -> Parts:
    """The parts of a run. Raises DataError or ModelError for what is absent or cannot be used."""
    tell("loading")
    algorithm, clock = config.modify.around(config.algorithm), Clock(device_done())
    loaded = load(config.model.name)
    limit = config.sampler.max_completion_tokens or config.task.max_completion_tokens
    provenance, fingerprints = provenance_of(config, loaded), dict[str, str]()
    if config.model.warm_start:
        where = warm_start(loaded, config.task, config.model, warmstart_reporter(tell))
        provenance["warm_start"] = where.name
        fingerprints["warm start"] = weights_hash(where)
    models = models_for(config, algorithm, loaded)
    sampler = sampler_for(config, models, loaded)
    source = source_for(config, algorithm, loaded, sampler, clock)
    if isinstance(source, OnPolicy | Replay) and source.grader.provenance:
        found = provenance["reward_model"] = source.grader.provenance
        fingerprints["reward model"] = found.get("sha256") or found.get("commit", "")
    curriculum = curriculum_for(
        config, algorithm, loaded, models, source, provenance.get("warm_start", ""), tell
    )
    evaluator = Evaluator(
        config.task,
        loaded,
        sampler,
        config.evaluate,
        config.seed,
        limit,
        models=models,
        long_prompts=config.model.long_prompts,
    )
    return Parts(
        algorithm,
        loaded,
        models,
        sampler,
        source,
        curriculum,
        evaluator,
        clock,
        schedule(config.train, beside(config)),
        limit,
        provenance,
        fingerprints,
    )


def warmstart_reporter(tell: Tell) -> Callable[[int, int, float], None]:
    """Takes the updates of a warm start."""
    return lambda update, updates, loss: tell(f"warm start {update}/{updates}, loss {loss:.3f}")


def provenance_of(config: RunConfig, loaded: Loaded) -> dict[str, Any]:
    """Where model and data come from, what must be said of the task, and what stands around its programs."""
    found: dict[str, Any] = {"model": loaded.provenance, "deterministic": determinism()}
    data = {source for split in config.task.splits for source in config.task.sources(split)}
    if data:
        ordered = sorted(data, key=lambda source: (source.table, source.location))
        found["data"] = [dataclasses.asdict(source) for source in ordered]
    if config.task.caveat:
        found["caveat"] = config.task.caveat
    if tier := config.task.sandbox():
        found["sandbox"] = tier
    if lost := dropped(config, loaded):
        found["dropped_prompts"] = lost
    return found


def models_for(config: RunConfig, algorithm: Algorithm[Any], loaded: Loaded) -> RoleModels:
    """The models of all roles, each trained one with its optimizer."""
    train = config.train
    torch.manual_seed(config.seed)
    models = RoleModels(
        loaded.model,
        algorithm.trained_roles,
        algorithm.reference_roles,
        temperature=config.sampler.temperature,
        dtype=config.model.dtype,
        budget=train.micro_batch_tokens,
    )
    wanted = rates(train.learning_rate, algorithm.trained_roles)
    trained = {role: rate for role, rate in wanted.items() if role in algorithm.trained_roles}
    make = maker(train, beside(config))
    models.optimize(trained, train.betas, train.weight_decay, train.max_grad_norm, make)
    return models


def beside(config: RunConfig) -> Path | None:
    """The recipe's folder, where the run names something in it."""
    return Path(config.beside) if config.beside else None


def source_for(
    config: RunConfig, algorithm: Algorithm[Any], loaded: Loaded, sampler: Sampler, clock: Clock
) -> Source:
    """Where the groups of a step come from."""
    if config.sampler.kind == "preferences":
        return Preferences(Path(config.sampler.path).expanduser(), loaded)
    functions = functions_for(config)
    grader = Grader(config.task, config.reward, loaded, config.seed, functions, config.train.steps)
    table = loaded.model.get_input_embeddings().weight
    fresh = OnPolicy(config, loaded, sampler, grader, clock, algorithm, table)
    return fresh if config.sampler.on_policy else Replay(fresh, config.sampler.problems)


def functions_for(config: RunConfig) -> dict[str, RewardFunction]:
    """The reward functions of a run, by name."""
    found = {}
    for name in config.reward.functions(config.task):
        function = registries.find("reward", name, others.folder(config), f"reward.weights.{name}").cls
        found[name] = RewardFunction(name, function, config.reward.function_input)
    return found


def curriculum_for(
    config: RunConfig,
    algorithm: Algorithm[Any],
    loaded: Loaded,
    models: RoleModels,
    source: Source,
    warm: str,
    tell: Tell,
) -> Curriculum:
    """What chooses the problems of a step; `warm` names the warm start that the policy comes from."""
    prompts, problems, seed = (
        config.train.prompts_per_step,
        source.problems,
        derive(config.seed, "curriculum"),
    )
    demand_problems(prompts, len(problems))
    if config.train.curriculum:
        place = "train.curriculum"
        own = registries.find("curriculum", config.train.curriculum, others.folder(config), place).cls
        chosen: Curriculum = Checked(own(problems, prompts, seed), len(problems))
        refills = config.modify.dynamic_sampling
        return Refilled(chosen, refills) if refills else chosen

    def report_study(read: int, of: int) -> None:
        tell(f"studying the problems {read}/{of}")

    known = study(models, loaded, config.task, problems, warm, report_study) if algorithm.studies else None
    traits: Sequence[Any] = [problem.traits for problem in problems]
    return Checked(algorithm.curriculum(traits, prompts, seed, known), len(problems))
