"""Build the parts of a run for the trainer, in a fixed order."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpobench.algorithms.algorithm import Algorithm
from grpobench.algorithms.curriculum import Curriculum, NoProblems, Study
from grpobench.algorithms.modifiers import Refilled
from grpobench.runs.metrics.evaluator import Evaluator
from grpobench.runs.models.hashes import weights_hash
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.ranks import ALONE, DeviceRanks
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.stored_weights import cast_weights, stored
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.models.weight_noise import NoisyWeights
from grpobench.runs.reward.functions import RewardFunction
from grpobench.runs.reward.grader import JUDGE, Grader
from grpobench.runs.reward.judge import Judge
from grpobench.runs.sample.context import dropped
from grpobench.runs.sample.dealt import DealtSampler, fill, hollow
from grpobench.runs.sample.drawn import demand_sampler
from grpobench.runs.sample.engines.sampler import connect
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.sampler import Sampler
from grpobench.runs.settings import others, registries
from grpobench.runs.settings.config import RunConfig, rates
from grpobench.runs.settings.optimizers import Schedule, maker, schedule
from grpobench.runs.tools.determinism import determinism
from grpobench.runs.tools.machine import read_free_memory
from grpobench.runs.tools.progress import Clock, device_done
from grpobench.runs.tools.seeds import derive
from grpobench.runs.train.ahead import AheadSampler
from grpobench.runs.train.checked_curriculum import CheckedCurriculum
from grpobench.runs.train.prepare.base_rollouts import BaseRollouts, InitialPolicy, base_rollouts
from grpobench.runs.train.prepare.experts import Experts, experts
from grpobench.runs.train.prepare.study import study
from grpobench.runs.train.prepare.warmstart import initial_policy, warm_start
from grpobench.runs.train.rollouts import GroupSource, OnPolicy, Preferences, Replay, demand_problems
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Split


def sampler_for(config: RunConfig, models: RoleModels, loaded: Loaded, decoded: Any = None) -> Sampler:
    """The sampler that the configuration asks for or, if rollouts are not drawn from the current policy, the
    one that evaluates it. Of a run on several devices it decodes with `decoded`, a hollow copy of the policy.
    Raises DataError for an engine that is not installed or does not answer."""
    if config.sampler.foreign:
        entry = registries.find("sampler", config.sampler.kind, others.folder(config), "sampler.kind")
        sampler: Sampler = entry.cls(config, models, loaded)
        demand_sampler(sampler, entry.cls)
        return sampler
    if config.sampler.kind in ("vllm", "vllm-server"):
        return connect(config, models, loaded)
    sampler_arguments = loaded.end, loaded.pad, config.sampler.max_batch_size, loaded.context
    if config.sampler.ahead:
        return AheadSampler(config, models, *sampler_arguments)
    if decoded is None:
        return HFSampler(models, *sampler_arguments, config.sampler.weights)
    # Before `RoleModels`, which probes the model that it is given.
    fill(decoded, models)
    gathered_models = RoleModels(
        decoded,
        temperature=config.sampler.temperature,
        dtype=config.model.dtype,
        budget=config.train.micro_batch_tokens,
        adapter=config.model.adapter,
        attention=config.model.attention,
        router_replay=config.sampler.router_replay,
    )
    return DealtSampler(models, gathered_models, *sampler_arguments, config.sampler.weights)


Tell = Callable[[str], None]
"""Takes the name of the current phase before the first step."""


@dataclass(frozen=True)
class RunParts:
    """Everything that a run holds in memory except its progress."""

    algorithm: Algorithm[Any]
    """With its modifiers around it."""
    loaded: Loaded
    models: RoleModels
    sampler: Sampler
    source: GroupSource
    curriculum: Curriculum
    evaluator: Evaluator
    clock: Clock
    schedule: Schedule
    """Of the learning rates."""
    limit: int
    """Most tokens of a completion."""
    provenance: dict[str, Any]
    """The entries of provenance.json about model, data, order of sums, sandbox and warm start."""
    fingerprints: dict[str, str]
    """Hashes that are known only after loading; `fingerprints.Today` computes the others."""
    also: tuple[Evaluator, ...] = ()
    """Of the tasks of `evaluate.also`."""
    experts: Experts | None = None
    """Expert completions, for an algorithm that learns from some beside its rollouts."""
    noise: NoisyWeights | None = None
    """Noise in the weights that write rollouts, for an algorithm that learns by it."""
    study_seconds: float = 0.0
    """What it took to sample the initial policy's completions of the training problems."""

    @property
    def evaluators(self) -> tuple[Evaluator, ...]:
        """That of the run's task, and those of `evaluate.also`."""
        return (self.evaluator, *self.also)


def build(
    config: RunConfig,
    tell: Tell = lambda phase: None,
    learn: Callable[..., Study] = study,
    ask: Callable[..., BaseRollouts] = base_rollouts,
    ranks: DeviceRanks = ALONE,
    verdicts: Path | None = None,
) -> RunParts:
    """The parts of a run on this rank. Raises DataError or ModelError if one is missing or cannot be used.
    `learn` studies the training problems, and `ask` has the initial policy answer them, where that is due.
    `verdicts` is the file of the judges' verdicts; None keeps them in memory."""
    tell("loading")
    algorithm, clock = config.modify.around(config.algorithm), Clock(device_done())
    # Before the roles are made: reference and critic start as copies of the warm-started policy.
    loaded, warm = initial_policy(config, warmstart_reporter(tell), on_cpu=not ranks.alone)
    limit = config.sampler.max_completion_tokens or config.task.max_completion_tokens
    provenance, fingerprints = provenance_of(config, loaded), dict[str, str]()
    if warm:
        provenance["warm_start"] = warm.name
        fingerprints["warm start"] = weights_hash(warm)
    if teacher := teacher_for(config, loaded, tell, not ranks.alone) if config.reads_teacher else None:
        provenance["teacher"] = teacher.provenance
        fingerprints |= teacher.fingerprints
    # Before the roles are made, which takes the model apart.
    decoded = None if ranks.alone else hollow(loaded.model)
    models = models_for(config, algorithm, loaded, teacher and teacher.model, ranks)
    sampler = sampler_for(config, models, loaded, decoded)
    if sampler.provenance:
        provenance["sampler"] = sampler.provenance
    noise = noise_for(config, algorithm, models)
    source = source_for(config, algorithm, loaded, sampler, clock, models, verdicts, noise)
    if isinstance(source, OnPolicy | Replay) and source.grader.provenance:
        reward_model = provenance["reward_model"] = source.grader.provenance
        fingerprints["reward model"] = reward_model.get("sha256") or reward_model.get("commit", "")
    initial = InitialPolicy(config, loaded, models, sampler, limit, provenance.get("warm_start", ""))
    if answered := answers_of(initial, algorithm, source, tell, ask):
        provenance["base_rollouts"] = answered.provenance
    curriculum = curriculum_for(initial, algorithm, source, tell, learn, answered)
    evaluators = evaluators_for(config, loaded, models, sampler, verdicts)
    return RunParts(
        algorithm,
        loaded,
        models,
        sampler,
        source,
        curriculum,
        evaluators[0],
        clock,
        schedule(config.train, others.folder(config)),
        limit,
        provenance,
        fingerprints,
        tuple(evaluators[1:]),
        experts_for(config, algorithm, loaded),
        noise,
        answered.seconds if answered else 0.0,
    )


def noise_for(config: RunConfig, algorithm: Algorithm[Any], models: RoleModels) -> NoisyWeights | None:
    """The noise in the weights of a run whose algorithm learns by it."""
    if algorithm.weight_noise is None:
        return None
    return NoisyWeights(models.named_parameters("policy"), algorithm.weight_noise, config.seed)


def experts_for(config: RunConfig, algorithm: Algorithm[Any], loaded: Loaded) -> Experts | None:
    """The expert completions of a run whose algorithm learns from some."""
    if not algorithm.expert_answers:
        return None
    return experts(
        config.task,
        loaded,
        config.train.experts,
        algorithm.expert_answers,
        derive(config.seed, "experts"),
    )


def answers_of(
    initial: InitialPolicy,
    algorithm: Algorithm[Any],
    source: GroupSource,
    tell: Tell,
    ask: Callable[..., BaseRollouts],
) -> BaseRollouts | None:
    """The initial policy's completions of the training problems, graded, if an algorithm needs them. They are
    counted in the costs of the run: also those that another run has paid for, since a run alone would have
    to."""
    if not algorithm.base_rollouts:
        return None
    assert isinstance(source, OnPolicy)

    def report(done: int, of: int) -> None:
        tell(f"answering the problems before training {done}/{of}")

    rollouts = ask(initial, source.grader, source.problems, algorithm.base_rollouts, report)
    source.generated += rollouts.generated
    source.sampler_tokens += rollouts.sampler_tokens
    return rollouts


def evaluators_for(
    config: RunConfig,
    loaded: Loaded,
    models: RoleModels,
    sampler: Sampler,
    verdicts: Path | None = None,
) -> list[Evaluator]:
    """The evaluator of the run's task and those of `evaluate.also`. Raises DataError, before the run begins,
    for a prompt of these that leaves no room for a completion."""
    evaluators: list[Evaluator] = []
    settings = config.evaluate.judge
    judge = Judge(settings, "evaluate.judge", verdicts, config.folder) if settings else None
    splits: tuple[Split, ...] = ("validation", "test")
    for task in (config.task, *others.tasks_beside(config)):
        limit = config.sampler.max_completion_tokens or task.max_completion_tokens
        evaluator = Evaluator(
            task,
            loaded,
            sampler,
            dataclasses.replace(config.evaluate, contamination=False, reference_likelihood=False)
            if evaluators
            else config.evaluate,
            config.seed,
            limit,
            texts=config.evaluate.completions and not evaluators,  # the tasks of `also` have no rows
            models=models,
            long_prompts=config.model.long_prompts,
            judge=judge,
        )
        # The run's own task was checked with its training problems (`dropped`).
        for split in splits if evaluators else ():
            if split in task.splits:
                evaluator.problems(split)
        evaluators.append(evaluator)
    return evaluators


def warmstart_reporter(tell: Tell) -> Callable[[int, int, float], None]:
    """Reports the updates of a warm start."""
    return lambda update, updates, loss: tell(f"warm start {update}/{updates}, loss {loss:.3f}")


def provenance_of(config: RunConfig, loaded: Loaded) -> dict[str, Any]:
    """Where model and data come from, the task's caveat and sandbox, and the prompts that were dropped."""
    provenance: dict[str, Any] = {"model": loaded.provenance, "deterministic": determinism()}
    tasks = (config.task, *others.tasks_beside(config))
    sources = {source for task in tasks for split in task.splits for source in task.sources(split)}
    if sources:
        # A set has no order, and equal runs must write equal files.
        ordered = sorted(sources, key=lambda source: (source.table, source.location))
        provenance["data"] = [dataclasses.asdict(source) for source in ordered]
    if config.task.caveat:
        provenance["caveat"] = config.task.caveat
    if tier := config.task.sandbox():
        provenance["sandbox"] = tier
    if lost := dropped(config, loaded):
        provenance["dropped_prompts"] = lost
    return provenance


@dataclass(frozen=True)
class Teacher:
    """A frozen model that the policy learns from."""

    model: Any
    provenance: dict[str, Any]
    fingerprints: dict[str, str]


def teacher_for(config: RunConfig, loaded: Loaded, tell: Tell, on_cpu: bool = False) -> Teacher:
    """The teacher of a run, as `initial_policy` gives the policy. Raises ModelError if its tokens are not the
    policy's."""
    tell("loading the teacher")
    name, updates = config.model.teacher, config.model.teacher_warm_start
    # A warm start trains, so that it begins in float32 and on the device; below both change.
    weights = "float32" if updates else config.model.weights
    device = "cpu" if on_cpu and not updates else None
    loaded_teacher = load(name, device, weights_in=weights, chat_template=config.model.chat_template)
    if loaded_teacher.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise ModelError(
            f"model.teacher {name!r} has another tokenizer than {config.model.name!r}, so that it cannot "
            "read the policy's tokens; use a teacher of the same family"
        )
    provenance: dict[str, Any] = {"model": loaded_teacher.provenance}
    fingerprints: dict[str, str] = {}
    if updates:
        warm = dataclasses.replace(
            config.model, name=name, warm_start=updates, teacher="", teacher_warm_start=0
        )
        where = warm_start(loaded_teacher, config.task, warm, warmstart_reporter(tell))
        provenance["warm_start"] = where.name
        fingerprints["teacher's warm start"] = weights_hash(where)
        cast_weights(loaded_teacher.model, getattr(torch, config.model.weights))
        if on_cpu:
            # Each rank takes its own part from there (`Shards`).
            loaded_teacher.model.to("cpu")
    return Teacher(loaded_teacher.model, provenance, fingerprints)


def models_for(
    config: RunConfig,
    algorithm: Algorithm[Any],
    loaded: Loaded,
    teacher: Any = None,
    ranks: DeviceRanks = ALONE,
) -> RoleModels:
    """The models of all roles, with an optimizer for each trained one. `teacher` is a language model."""
    train = config.train
    # New value heads and adapters draw random numbers: arms with the same seed start from the same generator.
    torch.manual_seed(config.seed)
    models = RoleModels(
        loaded.model,
        algorithm.trained_roles,
        algorithm.reference_roles,
        temperature=config.sampler.temperature,
        dtype=config.model.dtype,
        budget=train.micro_batch_tokens,
        adapter=config.model.adapter,
        activation_checkpointing=train.activation_checkpointing,
        attention=config.model.attention,
        teacher=teacher,
        router_replay=config.sampler.router_replay,
        ranks=ranks,
        # A reference may move.
        keep_base=config.evaluate.kl_base,
    )
    rate_by_role = rates(train.learning_rate, algorithm.trained_roles)
    trained = {role: rate for role, rate in rate_by_role.items() if role in algorithm.trained_roles}
    make = maker(train, others.folder(config))
    store = functools.partial(
        stored,
        master=train.master_weights,
        offload=train.offload_optimizer,
        seed=config.seed,
    )
    models.optimize(trained, train.betas, train.weight_decay, train.max_grad_norm, make, store)
    models.keep_past(config.sampler.lag)
    if config.sampler.lag:
        updates = train.steps * train.num_minibatches * train.epochs
        models.past.demand_memory(updates, read_free_memory(models.device))
    return models


def source_for(
    config: RunConfig,
    algorithm: Algorithm[Any],
    loaded: Loaded,
    sampler: Sampler,
    clock: Clock,
    models: RoleModels,
    verdicts: Path | None = None,
    noise: NoisyWeights | None = None,
) -> GroupSource:
    """The source of each step's groups."""
    if config.sampler.kind == "preferences":
        return Preferences(Path(config.sampler.path).expanduser(), loaded)
    functions = functions_for(config)
    settings = config.reward.judge if JUDGE in config.reward.components(config.task) else None
    judge = Judge(settings, "reward.judge", verdicts, config.folder) if settings else None
    grader = Grader(
        config.task, config.reward, loaded, config.seed, functions, config.train.steps, models.ranks, judge
    )
    # A sampler with whole weights of its own mixes those.
    language = loaded.model if sampler.language is None else sampler.language
    table = language.get_input_embeddings().weight
    fresh = OnPolicy(config, loaded, sampler, grader, clock, algorithm, table, models.past, noise)
    return fresh if config.sampler.on_policy else Replay(fresh, config.sampler.problems)


def functions_for(config: RunConfig) -> dict[str, RewardFunction]:
    """The reward functions of a run, by name."""
    functions = {}
    for name in config.reward.functions(config.task):
        function = registries.find("reward", name, others.folder(config), f"reward.weights.{name}").cls
        functions[name] = RewardFunction(name, function, config.reward.function_input)
    return functions


def curriculum_for(
    initial: InitialPolicy,
    algorithm: Algorithm[Any],
    source: GroupSource,
    tell: Tell,
    learn: Callable[..., Study] = study,
    answered: BaseRollouts | None = None,
) -> Curriculum:
    """The curriculum, which chooses the problems of a step. Raises DataError if the algorithm has too few to
    choose from."""
    config = initial.config
    prompts, problems, seed = (
        config.train.prompts_per_step,
        source.problems,
        derive(config.seed, "curriculum"),
    )
    demand_problems(prompts, len(problems))
    if config.train.curriculum:
        key = "train.curriculum"
        made = registries.find("curriculum", config.train.curriculum, others.folder(config), key).cls
        chosen: Curriculum = CheckedCurriculum(made(problems, prompts, seed), len(problems))
        refills = config.modify.dynamic_sampling
        return Refilled(chosen, refills) if refills else chosen

    def report_study(done: int, of: int) -> None:
        tell(f"studying the problems {done}/{of}")

    problem_study = None
    if algorithm.studies:
        problem_study = learn(
            initial.models, initial.loaded, config.task, problems, initial.warm_start, report_study
        )
    if answered:
        problem_study = dataclasses.replace(problem_study or Study(), reward=answered.reward)
    traits: Sequence[Any] = [problem.traits for problem in problems]
    try:
        return CheckedCurriculum(algorithm.curriculum(traits, prompts, seed, problem_study), len(problems))
    except NoProblems as error:
        raise DataError(f"{algorithm.inner.name}: {error}") from error
