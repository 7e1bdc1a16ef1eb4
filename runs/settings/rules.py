"""Which algorithm, task and settings fit together, and what this machine lacks for them: each rule with its
remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path

from grpobench.runs.models import model_files
from grpobench.runs.settings import others, registries, trl
from grpobench.runs.settings.config import AUTO, COMPONENTS, REFERENCES, TINY, RewardConfig, RunConfig
from grpobench.runs.settings.judge import JudgeConfig
from grpobench.runs.settings.needs import needs
from grpobench.runs.settings.truncation import FULL
from grpobench.runs.tools import strict
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Task


def unserved(config: RunConfig) -> Iterator[str]:
    """Why the task does not fit the algorithm, whatever the settings, each with its remedy."""
    algorithm, task = config.algorithm, config.task
    if "train" not in task.splits:
        yield (
            f"{task.name} has no training split, only {', '.join(task.splits)}; take it out of `tasks` and "
            f"run `grpobench eval MODEL --task {task.name}`"
        )
    if absent := sorted(algorithm.scores - set(task.scores) - set(config.reward.components(task))):
        yield (
            f"needs the task scores {', '.join(absent)}, and {task.name} gives {', '.join(task.scores)}; "
            "restrict the arm with `tasks = [...]` to tasks that give them"
        )
    if task.turns != 1 and algorithm.mixer() is not None:
        yield (
            f"mixes embeddings while decoding, which {task.name} in several turns does not allow; restrict "
            "the arm with `tasks = [...]` to tasks of one turn"
        )
    if algorithm.locates_answers and not (task.answer_marker and task.turns == 1):
        yield (
            f"locates the final answer in a completion, and {task.name} has no marker for it or several "
            "turns; restrict the arm with `tasks = [...]` to tasks of one turn with one"
        )


def left_out(config: RunConfig) -> str:
    """Why an optional arm is left out: its task does not fit it, it would never update its policy in so few
    steps, it distills a teacher and there is none, or the settings forbid noise in the weights, by which it
    learns. Empty where none is so."""
    return next(chain(unserved(config), untrained(config), untaught(config), of_noise(config)), "")


def incompatible(config: RunConfig) -> list[str]:
    """Why algorithm, task and settings do not fit together, each with its remedy."""
    if config.sampler.kind == AUTO:
        # It is `hf` wherever another sampler would be refused.
        config = with_sampler(config, "hf")
    gives = f"{config.task.name} gives {', '.join(config.task.scores)}"
    return [
        *chain.from_iterable(rules(config) for rules in RULES),
        *(trl.refusals(config) if config.train.backend == "trl" else ()),
        *unrewarded(config.reward, config.task, gives),
        *others.faults(config),
    ]


def with_sampler(config: RunConfig, kind: str) -> RunConfig:
    """The run with another sampler and the same settings of it."""
    return replace(config, sampler=replace(config.sampler, kind=kind))


def of_sampler(config: RunConfig) -> Iterator[str]:
    """What an algorithm and settings ask of the sampler."""
    algorithm, sampler = config.algorithm, config.sampler
    kind, hf = f'sampler.kind is "{sampler.kind}"', 'sampler.kind = "hf"'
    if not sampler.on_policy:
        if not algorithm.off_policy:
            yield f"trains on its own rollouts only, and {kind}; set {hf}"
        if algorithm.greedy_baseline:
            yield f"compares with a greedy answer of the current policy, and {kind}; set {hf}"
        recorded = f"{kind}, whose rollouts are recorded"
        yield from needs(
            config,
            hf,
            ("sampler.correction", "none", f"{{}} weighs rollouts of the current policy, and {kind}"),
            ("sampler.lag", 0, f"{{is}}: it delays weights that sample, and {recorded}"),
            ("sampler.stop", (), f"{{}} ends rollouts of the current policy, and {kind}"),
            ("sampler.router_replay", "none", f"{{is}}: it replays routes of the policy, and {recorded}"),
            ("modify.dynamic_sampling", 0, f"{{}} draws further problems, and {kind}"),
            ("modify.entropy_target", 0, f"{{}} follows the entropy of the policy's rollouts, and {kind}"),
        )
    if sampler.kind != "hf" and algorithm.mixer() is not None:
        yield f"mixes embeddings while decoding, and {kind}; set {hf}"
    if sampler.correction != "none" and sampler.old_logp == "sampler":
        yield (
            'sampler.correction compares the sampler with the trainer, and sampler.old_logp is "sampler"; '
            'set sampler.old_logp = "auto"'
        )
    if sampler.kind == "vllm-server" and not sampler.url.startswith(("http://", "https://")):
        yield (
            f"{kind} and sampler.url {sampler.url!r} is no address; set it to what `grpobench serve` "
            "prints, such as http://127.0.0.1:8765"
        )
    if sampler.kind == "preferences" and config.modify.around(algorithm).studies:
        yield f"studies the problems with their reference solutions before training, and {kind}; set {hf}"
    path = Path(sampler.path).expanduser()
    if sampler.kind == "preferences" and not sampler.path:
        yield 'sampler.kind "preferences" reads a file; set sampler.path to a JSONL file'
    elif sampler.kind == "preferences" and not path.is_file():
        lack = "is a folder" if path.is_dir() else "does not exist"
        yield f"the preference file {path} {lack}; set sampler.path to a JSONL file"


def of_truncation(config: RunConfig) -> Iterator[str]:
    """Where rollouts of fewer tokens or from a truncated distribution cannot be sampled, or would be weighed
    wrongly: the trainer's probabilities are those of the full distribution."""
    sampler, turns = config.sampler, config.task.turns
    changed = [key for key in ("top_k", "top_p", "min_p") if getattr(sampler, key) != getattr(FULL, key)]
    names = ", ".join(f"sampler.{key} = {getattr(sampler, key)}" for key in changed)
    off = f"remove {', '.join(f'sampler.{key}' for key in changed)}"
    if changed and sampler.kind not in ("hf", "vllm"):
        yield f'{names} applies to sampler.kind "hf" and "vllm", not "{sampler.kind}"; {off}'
    if sampler.top_p != 1 and sampler.min_p:
        yield (
            "sampler.top_p and sampler.min_p together depend on their order, in which libraries differ; "
            "remove one of them"
        )
    if changed:
        ratio = f"{names} makes it a ratio to another distribution than the policy's"
        yield from needs(
            config,
            off,
            ("sampler.correction", "none", f"{{}} weighs by π_old/π_sampler, and {ratio}"),
            ("modify.off_policy_mask", 0, f"{{}} compares the policy with the sampler, and {ratio}"),
        )
        if sampler.old_logp == "sampler":
            yield (
                f'sampler.old_logp = "sampler" takes the importance ratio to the sampler, and {ratio}; set '
                f'sampler.old_logp = "auto" or {off}'
            )
    if changed and config.algorithm.mixer() is not None:
        yield f"mixes embeddings of all tokens while decoding, and {names} excludes some; {off}"
    if "" in sampler.stop:
        yield "sampler.stop has an empty string, after which nothing is written; remove it"
    if sampler.stop and turns != 1:
        why = f"sampler.stop ends the one turn of a rollout, and {config.task.name} has {turns}"
        yield f"{why}; remove sampler.stop"


def of_replay(config: RunConfig) -> Iterator[str]:
    """Who can record the experts that `sampler.router_replay` replays."""
    sampler = config.sampler
    mode, sampled = f'sampler.router_replay is "{sampler.router_replay}"', sampler.router_replay == "R3"
    if sampled and sampler.kind in ("vllm", "vllm-server"):
        yield (
            f'{mode}: it replays routes of the sampler, and sampler.kind "{sampler.kind}" reports none; set '
            'sampler.kind = "hf" or sampler.router_replay = "R2"'
        )
    if sampled and config.task.turns != 1:
        yield (
            f"{mode}: it records the routes of one turn, and {config.task.name} has several; set "
            'sampler.router_replay = "R2" or "none"'
        )
    if sampler.router_replay == "R2" and sampler.old_logp == "sampler":
        yield (
            f'{mode}: it records the routes of the pass for log π_old, and sampler.old_logp is "sampler"; '
            'set sampler.old_logp = "trainer" or sampler.router_replay = "R3"'
        )


def of_low_precision(config: RunConfig) -> Iterator[str]:
    """Who can sample with weights of 8 or 4 bits."""
    sampler, kind = config.sampler, config.sampler.kind
    rounded, hf = f'sampler.weights is "{sampler.weights}"', 'sampler.kind = "hf"'
    if sampler.weights == "trainer" or kind == "hf":
        return
    if kind != "vllm":
        yield (
            f'{rounded}, and sampler.kind "{kind}" has its weights from elsewhere; set {hf} or '
            'sampler.weights = "trainer"'
        )
    elif sampler.weights != "fp8":
        yield f'{rounded}, and vLLM rounds linear weights to fp8 alone; set {hf} or sampler.weights = "fp8"'
    elif config.model.dtype == "float32":
        yield (
            f'{rounded}, with which vLLM computes in 16 bits, and model.dtype is "float32"; set '
            f'model.dtype = "bfloat16" or {hf}'
        )


def of_modifiers(config: RunConfig) -> Iterator[str]:
    """What the section `modify` asks of algorithm, reward and curriculum."""
    algorithm, modify = config.algorithm, config.modify
    if modify.reference_every and "reference" not in algorithm.reference_roles:
        yield (
            "modify.reference_every moves a reference, and it reads none; set a beta above 0 or "
            "modify.reference_every = 0"
        )
    if not algorithm.has_advantages:
        why = "{} leaves out tokens of negative advantage, and it has no advantages"
        yield from needs(config, "", ("modify.off_policy_mask", 0, why))
    if not algorithm.credits_turns:
        why = "{} needs an algorithm that makes advantages of each turn's return, and it does not"
        yield from needs(config, "", ("modify.credit", "outcome", why))
    if modify.schedule != "uniform" and config.train.curriculum:
        yield (
            f'modify.schedule is "{modify.schedule}", and train.curriculum chooses the problems; leave one '
            "of them away"
        )
    if config.reward.kind == "constant":
        kind = 'reward.kind is "constant"'
        yield from needs(
            config,
            "",
            ("modify.dynamic_sampling", 0, f"{{}} waits for rewards that differ, and {kind}"),
            ("modify.zero_variance_filter", False, f"{{}} leaves out equal rewards, and {kind}"),
        )


def of_weights(config: RunConfig) -> Iterator[str]:
    """What cannot be done while the policy's weights are frozen, in the type that they are computed with, or
    without master weights."""
    off, shared = (
        'model.adapter = "none"',
        "under model.adapter the reference shares the policy's frozen weights",
    )
    if config.model.adapter is not None:
        if any(map(config.algorithm.synchronize, range(1, config.train.steps + 1))):
            yield (
                f"its reference follows the policy, and {shared}; choose settings with which it stays as it "
                f"is, or {off}"
            )
        yield from needs(
            config,
            off,
            ("modify.reference_every", 0, f"{{}} moves a reference, and {shared}"),
            ("train.backend", "grpobench", "model.adapter is trained by our own loop alone, and {is}"),
        )
    if config.model.attention == "flash" and config.model.dtype == "float32":
        yield (
            'model.attention = "flash" computes nothing in float32, and model.dtype is "float32"; set '
            'model.dtype = "bfloat16" or model.attention = "auto"'
        )
    if not config.train.master_weights and config.model.weights == "float32":
        yield (
            "train.master_weights = false rounds updates of bfloat16 weights, and model.weights is "
            '"float32"; set model.weights = "bfloat16" or train.master_weights = true'
        )


def untaught(config: RunConfig) -> Iterator[str]:
    """Why a run has nothing to distill; nothing if it has, or distills nothing. Other arms of an experiment
    may have a teacher that they do not read, and do not load it."""
    if "teacher" in config.algorithm.reference_roles and not config.model.teacher:
        yield "distills a teacher, and model.teacher is empty; set it to a model with the policy's tokenizer"


def of_other_models(config: RunConfig) -> Iterator[str]:
    """What an algorithm asks that learns from a teacher or from expert completions, and one that has the
    initial policy answer the problems before training, of what changes problems or rewards afterward."""
    count, train = config.algorithm.expert_answers, config.train
    updates, path = train.num_minibatches * train.epochs, Path(train.experts).expanduser()
    if "teacher" in config.algorithm.reference_roles:
        yield from needs(config, "", ("train.backend", "grpobench", "distills a teacher, and {is}"))
    if config.algorithm.base_rollouts > 0:
        values = "values problems by the initial policy's rewards, and"
        yield from needs(
            config,
            "",
            ("train.curriculum", "", f"{values} {{}} chooses the problems without these values"),
            ("modify.schedule", "uniform", f"{values} {{is}}, which knows none"),
            ("modify.overlong_buffer", 0, f"{values} {{}} changes the rewards of training alone"),
        )
    if not count:
        return
    if count < updates:
        yield (
            f"deals {count} expert completions to the {updates} updates of a step, so that some have none; "
            f"set settings.expert_answers = {updates} or more"
        )
    why = "learns from expert completions too, and {} measures the rollouts' gradient alone"
    yield from needs(config, "", ("train.gradient_noise", 0, why))
    if train.experts != REFERENCES and not path.is_file():
        yield f'the expert file {path} is not there; set train.experts to a JSONL file or to "{REFERENCES}"'


def of_batch(config: RunConfig) -> Iterator[str]:
    """How many completions a step must have."""
    train, least = config.train, config.algorithm.minimum_group
    if least > train.group_size:
        yield (
            f"needs groups of at least {least} completions, and train.group_size is {train.group_size}; set "
            f"train.group_size = {least}"
        )
    elif train.group_size == 1:
        equal = "groups of equal rewards, which all of train.group_size = 1 are"
        yield from needs(
            config,
            "train.group_size = 2",
            ("modify.dynamic_sampling", 0, f"{{}} replaces {equal}"),
            ("modify.zero_variance_filter", False, f"{{}} leaves out {equal}"),
        )
    if train.num_minibatches > train.prompts_per_step:
        yield (
            f"train.num_minibatches is {train.num_minibatches} and train.prompts_per_step only "
            f"{train.prompts_per_step}, and groups are never split; set train.num_minibatches = "
            f"{train.prompts_per_step} or less"
        )


def of_ahead(config: RunConfig) -> Iterator[str]:
    """What a sampler that works ahead asks."""
    sampler, updates = config.sampler, config.train.num_minibatches * config.train.epochs
    off, ahead = "sampler.ahead = false", "sampler.ahead samples the next step"
    if not sampler.ahead:
        return
    yield from needs(
        config,
        off,
        ("sampler.kind", "hf", f"{ahead} in a process of its own, and {{is}}"),
        ("sampler.router_replay", "none", f"{ahead} in a process that records no routes, and {{is}}"),
        ("train.backend", "grpobench", f"{ahead}, and {{is}}, which samples for itself"),
    )
    if sampler.lag < updates:
        yield (
            f"{ahead} before the {updates} updates of this one, and sampler.lag is {sampler.lag}; set "
            f"sampler.lag = {updates} or more, or {off}"
        )
    if config.algorithm.mixer() is not None:
        yield f"{ahead} in a process that does not mix embeddings; set {off}"


def of_noise(config: RunConfig) -> Iterator[str]:
    """What an algorithm that learns by noise in the weights asks."""
    noisy, train = "learns by noise in the weights that write rollouts, and", config.train
    if config.modify.around(config.algorithm).weight_noise is None:
        return
    yield from needs(
        config,
        "",
        ("train.num_minibatches", 1, f"{noisy} {{is}}: a second update would use noise around other weights"),
        ("train.epochs", 1, f"{noisy} {{is}}: a second update would use noise around other weights"),
        ("train.gradient_noise", 0, f"{noisy} {{}} compares gradients of parts, which share the noise"),
        ("train.devices", 1, f"{noisy} {{is}}, each of which holds a part of the weights"),
        ("train.backend", "grpobench", f"{noisy} {{is}}"),
        ("sampler.lag", 0, f"{noisy} {{}} takes other weights"),
        ("sampler.weights", "trainer", f"{noisy} {{is}}, which rounds the noise"),
        ("sampler.correction", "none", f"{noisy} {{}} weighs by probabilities of weights without it"),
        ("sampler.router_replay", "none", f"{noisy} {{is}}: no pass follows the routes"),
        ("modify.off_policy_mask", 0, f"{noisy} {{}} compares probabilities of weights without it"),
        ("modify.entropy_bonus", 0, f"{noisy} {{}} differentiates an entropy"),
        ("modify.entropy_target", 0, f"{noisy} {{}} differentiates an entropy"),
    )
    if train.group_size % 2 and config.algorithm.weight_noise and config.algorithm.weight_noise.mirrored:
        yield (
            f"mirrors the noise of each second completion, and train.group_size is {train.group_size}; set "
            f"train.group_size = {train.group_size + 1}"
        )


ELEMENTWISE = ("adamw", "torch:AdamW", "torch:Adam", "torch:SGD", "torch:RMSprop", "torch:Adagrad")
"""Optimizers that treat every number of a weight by itself, so that each rank can update its part."""


def of_devices(config: RunConfig) -> Iterator[str]:
    """What a run on several devices cannot do."""
    train, sampler = config.train, config.sampler
    off, many = "train.devices = 1", f"train.devices is {train.devices}, and"
    if train.devices == 1:
        return
    if sampler.foreign or sampler.kind in ("vllm", "vllm-server"):
        yield (
            f'{many} sampler.kind "{sampler.kind}" gets its weights from one device; set sampler.kind = "hf" '
            f"or {off}"
        )
    if sampler.router_replay == "R2":
        yield f'{many} sampler.router_replay "R2" records routes on one; set it to "R3" or "none", or {off}'
    if train.backend != "grpobench":
        yield (
            f'{many} train.backend is "{train.backend}", whose trainer is started by its own launcher; '
            f"`grpobench hand-over RECIPE DIR --to trl` writes it out, or set {off}"
        )
    if config.model.attention == "flash":
        yield (
            f'{many} model.attention is "flash", which is proven on whole weights; set it to "sdpa" or {off}'
        )
    yield from needs(
        config,
        off,
        ("sampler.lag", 0, f"{many} {{}} keeps earlier weights whole"),
        ("train.gradient_noise", 0, f"{many} {{}} compares whole gradients"),
        ("train.offload_optimizer", False, f"{many} {{}} keeps whole weights on the CPU"),
        ("train.master_weights", True, f"{many} {{}} = false rounds whole weights"),
    )
    if train.optimizer not in ELEMENTWISE:
        yield (
            f"{many} train.optimizer {train.optimizer!r} may need whole weights; choose one of "
            f"{', '.join(ELEMENTWISE)}, or set {off}"
        )


def of_doses(config: RunConfig) -> Iterator[str]:
    """What the doses of the reward (`runs/reward/doses.py`) ask of sampler, algorithm and backend."""
    doses, algorithm = config.reward.doses, config.algorithm
    dose_names = " and ".join(f"reward.{name}" for name in doses)
    read = " and ".join(sorted(algorithm.scores)) or "each part of the reward"
    neutral = ", ".join(f"{name} = {1 if name == 'scale' else 0}" for name in doses)
    if doses and config.sampler.kind == "preferences":
        yield (
            f"{dose_names} would change the rewards of graded completions, and sampler.kind is "
            f'"preferences", whose pairs are not graded; set reward {neutral}'
        )
    if config.reward.flip and (algorithm.scores or algorithm.reads_components):
        yield (
            f"reads {read} beside the reward, which reward.flip does not reach; set reward.flip = 0 or "
            "take the arm out"
        )
    if doses and config.train.backend == "trl" and algorithm.reads_components:
        yield (
            f"is given each part of the reward by TRL's trainer, which {dose_names} does not reach; set "
            f'reward {neutral} or train.backend = "grpobench"'
        )


def untrained(config: RunConfig) -> Iterator[str]:
    """Why even the last step of a run leaves its policy as it is (a critic that is warmed up throughout),
    with the remedy; nothing when it does not."""
    algorithm, steps = config.algorithm, config.train.steps
    if not steps or "policy" in algorithm.updated_roles(steps):
        return
    delays = [f.name for f in fields(algorithm) if "warmup" in f.name and getattr(algorithm, f.name)]
    warmups = " and ".join(f"settings.{name} = {getattr(algorithm, name)}" for name in delays)
    yield (
        f"updates its policy in none of the {steps} steps{f' with {warmups}' if warmups else ''}; "
        f"raise train.steps above it or lower {'it' if warmups else 'the setting that delays the policy'}"
    )


RULES = (
    unserved,
    of_sampler,
    of_truncation,
    of_replay,
    of_low_precision,
    of_modifiers,
    of_batch,
    of_weights,
    of_devices,
    of_noise,
    of_ahead,
    of_doses,
    of_other_models,
    untrained,
    untaught,
)
"""What must hold of a run, in the order of messages."""


def unrewarded(reward: RewardConfig, task: Task, gives: str) -> Iterator[str]:
    """Why a task cannot be rewarded so, each with its remedy; `gives` says which scores it has."""
    components = reward.components(task)
    made_of = {"flipped": "correct"} | ({"format": "format"} if reward.kind == "format" else {})
    for component, score in made_of.items():
        if component in components and score not in task.scores:
            yield (
                f"the reward {component} is made of the score {score}, and {gives}; restrict the arm with "
                "`tasks = [...]` to tasks that give it"
            )
    if reward.model == TINY and "model" in components and reward.model_learns not in task.scores:
        remedy = strict.did_you_mean(reward.model_learns, task.scores) or "choose one of these"
        yield f"reward.model_learns is {reward.model_learns!r}, and {gives}; {remedy}"
    if reward.kind not in ("task", "sum"):
        return
    scores = {*task.scores, *(COMPONENTS if reward.kind == "sum" else ())}
    for name in sorted(components.keys() - scores):
        is_function = registries.is_plugin_name("reward", name)
        if is_function and reward.kind == "sum" and name in reward.weights:
            continue
        remedy = strict.did_you_mean(name, scores)
        if is_function or name in COMPONENTS:
            remedy = f'set reward.kind = "sum" to weigh {name} too'
        remedy = remedy or "move the weights to `[on.TASK.reward]` of a task that gives them"
        yield f"reward.weights names {name}, and {gives}; {remedy}"


def lacking(configs: Sequence[RunConfig]) -> list[str]:
    """What this machine lacks for runs."""
    tasks = {str(task): task for config in configs for task in (config.task, *others.tasks_beside(config))}
    data = [why for why in map(missing_data, tasks.values()) if why]
    without_seeds = {(config.experiment, config.arm, str(config.task)): config for config in configs}.values()
    return data + list(dict.fromkeys(why for config in without_seeds for why in missing(config)))


def missing(config: RunConfig) -> list[str]:
    """What this machine lacks for a run, each with its place and remedy, found without importing anything."""
    name = config.reward.model if "model" in config.reward.components(config.task) else ""
    reason_by_key = {
        "model.name": model_files.missing(config.model.name),
        "model.teacher": model_files.missing(config.model.teacher) if config.reads_teacher else "",
        "sampler.kind": config.sampler.missing(),
        "train.backend": trl.missing() if config.train.backend == "trl" else "",
        "reward.model": missing_reward_model(name) if name else "",
    }
    return [f"{key_path}: {why}" for key_path, why in reason_by_key.items() if why]


def judges(config: RunConfig) -> dict[str, JudgeConfig]:
    """The judges that a run asks, by their sections."""
    sections = {"evaluate.judge": config.evaluate.judge}
    if "judge" in config.reward.components(config.task):
        sections["reward.judge"] = config.reward.judge
    return {section: judge for section, judge in sections.items() if judge}


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
