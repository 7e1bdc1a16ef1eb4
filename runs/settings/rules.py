"""Which algorithm, task and settings fit together, and what this machine lacks for them: each rule with its
remedy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from grpobench.runs.models import model_files
from grpobench.runs.settings import others, registries, trl
from grpobench.runs.settings.config import COMPONENTS, REFERENCES, TINY, RewardConfig, RunConfig
from grpobench.runs.settings.truncation import FULL, truncation_of
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import Rule, unmet
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Task


def unserved(config: RunConfig) -> list[str]:
    """Why the task does not fit the algorithm, whatever the settings, each with its remedy."""
    algorithm, task = config.algorithm, config.task
    lacking = sorted(algorithm.scores - set(task.scores) - set(config.reward.components(task)))
    rules: list[Rule] = [
        Rule(
            "train" in task.splits,
            f"{task.name} has no training split, only {', '.join(task.splits)}; take it out of `tasks` and "
            f"run `grpobench eval MODEL --task {task.name}`",
        ),
        Rule(
            not lacking,
            f"needs the task scores {', '.join(lacking)}, and {task.name} gives {', '.join(task.scores)}; "
            "restrict the arm with `tasks = [...]` to tasks that give them",
        ),
        Rule(
            task.turns == 1 or algorithm.mixer() is None,
            f"mixes embeddings while decoding, which {task.name} in several turns does not allow; restrict "
            "the arm with `tasks = [...]` to tasks of one turn",
        ),
        Rule(
            not algorithm.locates_answers or (bool(task.answer_marker) and task.turns == 1),
            f"locates the final answer in a completion, and {task.name} has no marker for it or several "
            "turns; restrict the arm with `tasks = [...]` to tasks of one turn with one",
        ),
    ]
    return unmet(rules)


def incompatible(config: RunConfig) -> list[str]:
    """Why algorithm, task and settings do not fit together, each with its remedy."""
    rules = [
        *of_sampler(config),
        *of_truncation(config),
        *of_stop_strings(config),
        *of_replay(config),
        *of_modifiers(config),
        *of_batch(config),
        *of_precision(config),
        *of_devices(config),
        *of_ahead(config),
        *of_preferences(config),
        *of_doses(config),
        *of_adapter(config),
        *of_teacher(config),
        *of_base_rollouts(config),
        *of_experts(config),
    ]
    faults = unserved(config) + unmet(rules)
    faults += [why for why in (untrained(config), untaught(config)) if why]
    faults += trl.refusals(config) if config.train.backend == "trl" else []
    gives = f"{config.task.name} gives {', '.join(config.task.scores)}"
    return faults + unrewarded(config.reward, config.task, gives) + others.faults(config)


def of_sampler(config: RunConfig) -> list[Rule]:
    """What an algorithm and the correction ask of the sampler."""
    algorithm, sampler = config.algorithm, config.sampler
    kind, corrected = f'sampler.kind is "{sampler.kind}"', sampler.correction != "none"
    return [
        Rule(
            sampler.on_policy or algorithm.off_policy,
            f'trains on its own rollouts only, and {kind}; set sampler.kind = "hf"',
        ),
        Rule(
            sampler.kind == "hf" or algorithm.mixer() is None,
            f'mixes embeddings while decoding, and {kind}; set sampler.kind = "hf"',
        ),
        Rule(
            sampler.on_policy or not corrected,
            f"sampler.correction weighs rollouts of the current policy, and {kind}; set sampler.correction "
            '= "none"',
        ),
        Rule(
            sampler.on_policy or not sampler.lag,
            f"sampler.lag is {sampler.lag}: it delays weights that sample, and {kind}, whose rollouts are "
            "recorded; set sampler.lag = 0",
        ),
        Rule(
            not corrected or sampler.old_logp != "sampler",
            'sampler.correction compares the sampler with the trainer, and sampler.old_logp is "sampler"; '
            'set sampler.old_logp = "auto"',
        ),
        Rule(
            sampler.kind != "vllm-server" or sampler.url.startswith(("http://", "https://")),
            f"{kind} and sampler.url {sampler.url!r} is no address; set it to what `grpobench serve` "
            "prints, such as http://127.0.0.1:8765",
        ),
        Rule(
            sampler.on_policy or not algorithm.greedy_baseline,
            f'compares with a greedy answer of the current policy, and {kind}; set sampler.kind = "hf"',
        ),
    ]


def of_truncation(config: RunConfig) -> list[Rule]:
    """Where rollouts from a truncated distribution cannot be sampled, or would be weighed wrongly: the
    trainer's probabilities are those of the full distribution."""
    sampler, full = config.sampler, not truncation_of(config.sampler).active
    changed = [key for key in ("top_k", "top_p", "min_p") if getattr(sampler, key) != getattr(FULL, key)]
    names = ", ".join(f"sampler.{key} = {getattr(sampler, key)}" for key in changed)
    off = f"remove {', '.join(f'sampler.{key}' for key in changed)}"
    ratio = f"{names} makes it a ratio to another distribution than the policy's"
    return [
        Rule(
            full or sampler.kind in ("hf", "vllm"),
            f'{names} applies to sampler.kind "hf" and "vllm", not "{sampler.kind}"; {off}',
        ),
        Rule(
            sampler.top_p == 1 or not sampler.min_p,
            "sampler.top_p and sampler.min_p together depend on their order, in which libraries differ; "
            "remove one of them",
        ),
        Rule(
            full or sampler.correction == "none",
            f"sampler.correction weighs by π_old/π_sampler, and {ratio}; set sampler.correction = "
            f'"none" or {off}',
        ),
        Rule(
            full or sampler.old_logp != "sampler",
            f'sampler.old_logp = "sampler" takes the importance ratio to the sampler, and {ratio}; set '
            f'sampler.old_logp = "auto" or {off}',
        ),
        Rule(
            full or not config.modify.off_policy_mask,
            f"modify.off_policy_mask compares the policy with the sampler, and {ratio}; set "
            f"modify.off_policy_mask = 0 or {off}",
        ),
        Rule(
            full or config.algorithm.mixer() is None,
            f"mixes embeddings of all tokens while decoding, and {names} excludes some; {off}",
        ),
    ]


def of_stop_strings(config: RunConfig) -> list[Rule]:
    """Which rollouts end after strings."""
    sampler, task = config.sampler, config.task
    off = "remove sampler.stop"
    return [
        Rule(
            "" not in sampler.stop,
            "sampler.stop has an empty string, after which nothing is written; remove it",
        ),
        Rule(
            not sampler.stop or sampler.on_policy,
            f'sampler.stop ends rollouts of the current policy, and sampler.kind is "{sampler.kind}"; {off}',
        ),
        Rule(
            not sampler.stop or task.turns == 1,
            f"sampler.stop ends the one turn of a rollout, and {task.name} has {task.turns}; {off}",
        ),
    ]


def of_replay(config: RunConfig) -> list[Rule]:
    """Who can record the experts that `sampler.router_replay` replays."""
    sampler = config.sampler
    mode, sampled = f'sampler.router_replay is "{sampler.router_replay}"', sampler.router_replay == "R3"
    return [
        Rule(
            sampler.router_replay == "none" or sampler.on_policy,
            f'{mode}: it replays routes of the policy that is trained, and sampler.kind is "{sampler.kind}", '
            'whose rollouts are recorded; set sampler.router_replay = "none"',
        ),
        Rule(
            not sampled or sampler.kind not in ("vllm", "vllm-server"),
            f'{mode}: it replays routes of the sampler, and sampler.kind "{sampler.kind}" reports none; set '
            'sampler.kind = "hf" or sampler.router_replay = "R2"',
        ),
        Rule(
            not sampled or config.task.turns == 1,
            f"{mode}: it records the routes of one turn, and {config.task.name} has several; set "
            'sampler.router_replay = "R2" or "none"',
        ),
        Rule(
            sampler.router_replay != "R2" or sampler.old_logp != "sampler",
            f'{mode}: it records the routes of the pass for log π_old, and sampler.old_logp is "sampler"; '
            'set sampler.old_logp = "trainer" or sampler.router_replay = "R3"',
        ),
    ]


def of_modifiers(config: RunConfig) -> list[Rule]:
    """What the section `modify` asks of algorithm, sampler and reward."""
    algorithm, modify, sampler = config.algorithm, config.modify, config.sampler
    kind = f'sampler.kind is "{sampler.kind}"'
    return [
        Rule(
            not modify.reference_every or "reference" in algorithm.reference_roles,
            "modify.reference_every moves a reference, and it reads none; set a beta above 0 or "
            "modify.reference_every = 0",
        ),
        Rule(
            not modify.off_policy_mask or algorithm.has_advantages,
            "modify.off_policy_mask leaves out tokens of negative advantage, and it has no advantages; set "
            "modify.off_policy_mask = 0",
        ),
        Rule(
            sampler.kind != "preferences" or not modify.around(algorithm).studies,
            f"studies the problems with their reference solutions before training, and {kind}; set "
            'sampler.kind = "hf"',
        ),
        Rule(
            modify.schedule == "uniform" or not config.train.curriculum,
            f'modify.schedule is "{modify.schedule}", and train.curriculum chooses the problems; leave one '
            "of them away",
        ),
        Rule(
            sampler.on_policy or not modify.dynamic_sampling,
            f'modify.dynamic_sampling draws further problems, and {kind}; set sampler.kind = "hf"',
        ),
        Rule(
            sampler.on_policy or not modify.entropy_target,
            f"modify.entropy_target follows the entropy of the current policy's rollouts, and {kind}; set "
            'sampler.kind = "hf"',
        ),
        Rule(
            config.reward.kind != "constant" or not modify.dynamic_sampling,
            'modify.dynamic_sampling waits for rewards that differ, and reward.kind is "constant"; set '
            "modify.dynamic_sampling = 0",
        ),
        Rule(
            config.reward.kind != "constant" or not modify.zero_variance_filter,
            'modify.zero_variance_filter leaves out equal rewards, and reward.kind is "constant"; set '
            "modify.zero_variance_filter = false",
        ),
    ]


def of_adapter(config: RunConfig) -> list[Rule]:
    """What cannot be done while the policy's weights are frozen."""
    off = 'model.adapter = "none"'
    follows = any(map(config.algorithm.synchronize, range(1, config.train.steps + 1)))
    return [
        Rule(
            config.model.adapter is None or not follows,
            "its reference follows the policy, and under model.adapter the reference shares the policy's "
            f"frozen weights; choose settings with which it stays as it is, or {off}",
        ),
        Rule(
            config.model.adapter is None or not config.modify.reference_every,
            "modify.reference_every moves a reference, and under model.adapter the reference shares the "
            f"policy's frozen weights; set modify.reference_every = 0 or {off}",
        ),
        Rule(
            config.model.adapter is None or config.train.backend != "trl",
            'model.adapter is trained by our own loop alone, and train.backend is "trl"; set train.backend = '
            f'"grpobench" or {off}',
        ),
    ]


def untaught(config: RunConfig) -> str:
    """Why a run has nothing to distill; empty if it has, or distills nothing. Other arms of an experiment may
    have a teacher that they do not read, and do not load it."""
    if "teacher" not in config.algorithm.reference_roles or config.model.teacher:
        return ""
    return "distills a teacher, and model.teacher is empty; set it to a model with the policy's tokenizer"


def of_teacher(config: RunConfig) -> list[Rule]:
    """What goes without a teacher."""
    return [
        Rule(
            config.train.backend != "trl" or "teacher" not in config.algorithm.reference_roles,
            'distills a teacher, and train.backend is "trl"; set train.backend = "grpobench"',
        )
    ]


def of_base_rollouts(config: RunConfig) -> list[Rule]:
    """What an algorithm that has the initial policy answer the problems before training asks of what changes
    problems or rewards afterward."""
    asks, modify = config.algorithm.base_rollouts > 0, config.modify
    values = "values problems by the initial policy's rewards, and"
    return [
        Rule(
            not asks or not config.train.curriculum,
            f"{values} train.curriculum chooses the problems without these values; leave it away",
        ),
        Rule(
            not asks or modify.schedule == "uniform",
            f'{values} modify.schedule is "{modify.schedule}", which knows none; set modify.schedule = '
            '"uniform"',
        ),
        Rule(
            not asks or not modify.overlong_buffer,
            f"{values} modify.overlong_buffer changes the rewards of training alone; set "
            "modify.overlong_buffer = 0",
        ),
    ]


def of_experts(config: RunConfig) -> list[Rule]:
    """What an algorithm that learns from expert completions asks."""
    count, train = config.algorithm.expert_answers, config.train
    updates, path = train.num_minibatches * train.epochs, Path(train.experts).expanduser()
    return [
        Rule(
            not count or count >= updates,
            f"deals {count} expert completions to the {updates} updates of a step, so that some have none; "
            f"set settings.expert_answers = {updates} or more",
        ),
        Rule(
            not count or not train.gradient_noise,
            "learns from expert completions too, and train.gradient_noise measures the rollouts' gradient "
            "alone; set train.gradient_noise = 0",
        ),
        Rule(
            not count or train.experts == REFERENCES or path.is_file(),
            f'the expert file {path} is not there; set train.experts to a JSONL file or to "{REFERENCES}"',
        ),
    ]


def of_batch(config: RunConfig) -> list[Rule]:
    """How many completions a step must have."""
    train, least, modify = config.train, config.algorithm.minimum_group, config.modify
    single = train.group_size == least == 1  # where more are needed, the first rule says so
    return [
        Rule(
            least <= train.group_size,
            f"needs groups of at least {least} completions, and train.group_size is {train.group_size}; set "
            f"train.group_size = {least}",
        ),
        Rule(
            not single or not modify.dynamic_sampling,
            "modify.dynamic_sampling replaces groups of equal rewards, which all of train.group_size = 1 "
            "are; set modify.dynamic_sampling = 0 or train.group_size = 2",
        ),
        Rule(
            not single or not modify.zero_variance_filter,
            "modify.zero_variance_filter leaves out groups of equal rewards, which those of train.group_size "
            "= 1 all are; set modify.zero_variance_filter = false or train.group_size = 2",
        ),
        Rule(
            train.num_minibatches <= train.prompts_per_step,
            f"train.num_minibatches is {train.num_minibatches} and train.prompts_per_step only "
            f"{train.prompts_per_step}, and groups "
            f"are never split; set train.num_minibatches = {train.prompts_per_step} or less",
        ),
    ]


def of_precision(config: RunConfig) -> list[Rule]:
    """Which weights can do without master weights."""
    return [
        Rule(
            config.train.master_weights or config.model.weights != "float32",
            "train.master_weights = false rounds updates of bfloat16 weights, and model.weights is "
            '"float32"; set model.weights = "bfloat16" or train.master_weights = true',
        )
    ]


def of_ahead(config: RunConfig) -> list[Rule]:
    """What a sampler that works ahead asks."""
    sampler, train = config.sampler, config.train
    updates, asked = train.num_minibatches * train.epochs, "sampler.ahead samples the next step"
    off = "sampler.ahead = false"
    return [
        Rule(
            not sampler.ahead or sampler.kind == "hf",
            f'{asked} in a process of its own, and sampler.kind is "{sampler.kind}"; set sampler.kind = "hf" '
            f"or {off}",
        ),
        Rule(
            not sampler.ahead or sampler.lag >= updates,
            f"{asked} before the {updates} updates of this one, and sampler.lag is {sampler.lag}; set "
            f"sampler.lag = {updates} or more, or {off}",
        ),
        Rule(
            not sampler.ahead or config.algorithm.mixer() is None,
            f"{asked} in a process that does not mix embeddings; set {off}",
        ),
        Rule(
            not sampler.ahead or sampler.router_replay == "none",
            f'{asked} in a process that records no routes; set sampler.router_replay = "none" or {off}',
        ),
        Rule(
            not sampler.ahead or train.backend == "grpobench",
            f'{asked}, and train.backend is "{train.backend}", which samples for itself; set {off}',
        ),
    ]


ELEMENTWISE = ("adamw", "torch:AdamW", "torch:Adam", "torch:SGD", "torch:RMSprop", "torch:Adagrad")
"""Optimizers that treat every number of a weight by itself, so that each rank can update its part."""


def of_devices(config: RunConfig) -> list[Rule]:
    """What a run on several devices cannot do."""
    train, sampler = config.train, config.sampler
    one, many = "train.devices = 1", f"train.devices is {train.devices}, and"
    alone = train.devices == 1
    return [
        Rule(
            alone or (not sampler.foreign and sampler.kind not in ("vllm", "vllm-server")),
            f'{many} sampler.kind "{sampler.kind}" gets its weights from one device; set sampler.kind = "hf" '
            f"or {one}",
        ),
        Rule(
            alone or not sampler.lag,
            f"{many} sampler.lag keeps earlier weights whole; set sampler.lag = 0 or {one}",
        ),
        Rule(
            alone or sampler.router_replay != "R2",
            f'{many} sampler.router_replay "R2" records routes on one; set it to "R3" or "none", or {one}',
        ),
        Rule(
            alone or train.backend == "grpobench",
            f'{many} train.backend is "{train.backend}", whose trainer is started by its own launcher; '
            f"`grpobench hand-over RECIPE DIR --to trl` writes it out, or set {one}",
        ),
        Rule(
            alone or config.model.attention != "flex",
            f'{many} model.attention is "flex", which is proven on whole weights; set it to "sdpa" or {one}',
        ),
        Rule(
            alone or not train.gradient_noise,
            f"{many} train.gradient_noise compares whole gradients; set train.gradient_noise = 0 or {one}",
        ),
        Rule(
            alone or not train.offload_optimizer,
            f"{many} train.offload_optimizer keeps whole weights on the CPU; set it to false or {one}",
        ),
        Rule(
            alone or train.master_weights,
            f"{many} train.master_weights = false rounds whole weights; set it to true or {one}",
        ),
        Rule(
            alone or train.optimizer in ELEMENTWISE,
            f"{many} train.optimizer {train.optimizer!r} may need whole weights; choose one of "
            f"{', '.join(ELEMENTWISE)}, or set {one}",
        ),
    ]


def of_preferences(config: RunConfig) -> list[Rule]:
    """The file that recorded pairs are read from."""
    sampler = config.sampler
    path = Path(sampler.path).expanduser() if sampler.path else None
    offered = sampler.kind == "preferences"
    lack = "is a folder" if path and path.is_dir() else "does not exist"
    return [
        Rule(
            not offered or path is not None,
            'sampler.kind "preferences" reads a file; set sampler.path to a JSONL file',
        ),
        Rule(
            not offered or path is None or path.is_file(),
            f"the preference file {path} {lack}; set sampler.path to a JSONL file",
        ),
    ]


def of_doses(config: RunConfig) -> list[Rule]:
    """What the doses of the reward (`runs/reward/doses.py`) ask of sampler, algorithm and backend."""
    doses, algorithm = config.reward.doses, config.algorithm
    named = " and ".join(f"reward.{name}" for name in doses)
    read = " and ".join(sorted(algorithm.scores)) or "each part of the reward"
    neutral = ", ".join(f"{name} = {1 if name == 'scale' else 0}" for name in doses)
    return [
        Rule(
            not doses or config.sampler.kind != "preferences",
            f'{named} would change the rewards of graded completions, and sampler.kind is "preferences", '
            f"whose pairs are not graded; set reward {neutral}",
        ),
        Rule(
            not config.reward.flip or not (algorithm.scores or algorithm.reads_components),
            f"reads {read} beside the reward, which reward.flip does not reach; set reward.flip = 0 or "
            "take the arm out",
        ),
        Rule(
            not doses or config.train.backend != "trl" or not algorithm.reads_components,
            f"is given each part of the reward by TRL's trainer, which {named} does not reach; set reward "
            f'{neutral} or train.backend = "grpobench"',
        ),
    ]


def untrained(config: RunConfig) -> str:
    """Why even the last step of a run leaves its policy as it is (a critic that is warmed up throughout),
    with the remedy; empty when it does not."""
    algorithm, steps = config.algorithm, config.train.steps
    if not steps or "policy" in algorithm.updated_roles(steps):
        return ""
    delays = [f.name for f in fields(algorithm) if "warmup" in f.name and getattr(algorithm, f.name)]
    named = " and ".join(f"settings.{name} = {getattr(algorithm, name)}" for name in delays)
    return (
        f"updates its policy in none of the {steps} steps{f' with {named}' if named else ''}; raise "
        f"train.steps above it or lower {'it' if named else 'the setting that delays the policy'}"
    )


def unrewarded(reward: RewardConfig, task: Task, gives: str) -> list[str]:
    """Why a task cannot be rewarded so, each with its remedy; `gives` says which scores it has."""
    components, faults = reward.components(task), []
    made_of = {"flipped": "correct"} | ({"format": "format"} if reward.kind == "format" else {})
    for component, score in made_of.items():
        if component in components and score not in task.scores:
            faults.append(
                f"the reward {component} is made of the score {score}, and {gives}; restrict the arm with "
                "`tasks = [...]` to tasks that give it"
            )
    if reward.model == TINY and "model" in components and reward.model_learns not in task.scores:
        remedy = _choose(reward.model_learns, task.scores)
        faults.append(f"reward.model_learns is {reward.model_learns!r}, and {gives}; {remedy}")
    if reward.kind not in ("task", "sum"):
        return faults
    given = {*task.scores, *(COMPONENTS if reward.kind == "sum" else ())}
    for name in sorted(components.keys() - given - {*reward.functions(task)}):
        guess = strict.nearest(name, given)
        remedy = "move the weights to `[on.TASK.reward]` of a task that gives them"
        if name in COMPONENTS or registries.is_plugin_name("reward", name):
            remedy = f'set reward.kind = "sum" to weigh {name} too'
        elif guess:
            remedy = f"did you mean {guess}?"
        faults.append(f"reward.weights names {name}, and {gives}; {remedy}")
    return faults


def _choose(name: str, known: Iterable[str]) -> str:
    guess = strict.nearest(name, known)
    return f"did you mean {guess}?" if guess else "choose one of these"


def missing(config: RunConfig) -> list[str]:
    """What this machine lacks for a run, each with its place and remedy, found without importing anything."""
    name = config.reward.model if "model" in config.reward.components(config.task) else ""
    found = {
        "model.name": model_files.missing(config.model.name),
        "model.teacher": model_files.missing(config.model.teacher) if config.reads_teacher else "",
        "sampler.kind": config.sampler.missing(),
        "train.backend": trl.missing() if config.train.backend == "trl" else "",
        "reward.model": missing_reward_model(name) if name else "",
    }
    return [f"{place}: {why}" for place, why in found.items() if why]


def missing_data(task: Task) -> str:
    """Why a task's data cannot be had on this machine; empty when they can."""
    try:
        lack = task.missing()
    except DataError as error:
        lack = str(error)
    return f"task {task.name}: {lack}" if lack else ""


def missing_reward_model(name: str) -> str:
    """Why a reward model cannot be used, with the remedy, found without loading anything; empty when it can
    or when only the hub can tell."""
    path = Path(name).expanduser()
    if name == TINY or not (path.is_dir() or "/" not in name or name.startswith((".", "/", "~"))):
        return ""
    if path.is_file():
        return f"{path} is a file; a reward model is a folder that save_pretrained has written, or a hub id"
    if not path.is_dir():
        return f"no folder {path}; give a local folder, a hub id owner/name, or {TINY!r}"
    if not (path / "config.json").exists():
        return f"{path} has no config.json; give a folder that save_pretrained has written"
    try:
        classes = bounded.read_object(path / "config.json").get("architectures") or []
    except (ValueError, AttributeError):
        return f"{path / 'config.json'} is not a JSON object; save the model again"
    if classes and not any("SequenceClassification" in str(name) for name in classes):
        return f"{path} holds a {classes[0]}, no reward model; give one with a ...ForSequenceClassification"
    return ""
