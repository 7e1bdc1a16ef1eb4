"""Supervised warm start on a task's reference answers, cached: small base models answer at chance."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch
from grpobench.analysis.logs import sums
from grpobench.runs.models.determinism import deterministic
from grpobench.runs.models.errors import ModelError
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.optimiser import NonFinite
from grpobench.runs.models.packages import cache_folder
from grpobench.runs.models.roles import Models, Ruined
from grpobench.runs.sample.episodes import demonstrated
from grpobench.runs.sample.rollouts import Group, pack_groups
from grpobench.runs.settings.config import ModelConfig
from grpobench.runs.tools import files, strict
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.safe_points import safe_point
from grpobench.runs.tools.seeds import derive
from grpobench.tasks.task import Problem, Task, Verdict

RECIPE = 2
"""Version of this procedure; a change of it makes cached weights stale."""
SEED = 0
"""The warm start is part of the base model: the same for every seed and arm of a matrix."""
RECORD = "warmstart.json"
LOOK = 0.1
"""Seconds between two looks whether another process has made what this one waits for."""
Tell = Callable[[int, int, float], None]
"""Called with the update, the number of updates and the loss."""


def warm_start(loaded: Loaded, task: Task, config: ModelConfig, tell: Tell) -> Path:
    """Train `loaded.model` in place on demonstrations of the task's lessons, or load the cached result.

    AdamW with a linear warm-up over a tenth of the updates and linear decay; the loss is the mean over
    the policy's tokens. Returns the cached folder, which is a model folder like any other with a record of
    the training. It appears whole or not at all; of several processes one trains while the others wait. One
    that is given up is begun anew: it has no checkpoints.
    """
    lessons = demonstrations(loaded, task, config)
    folder = cache_folder() / "warm" / key(loaded, task, config, lessons)
    with alone(folder):
        if folder.exists() and (fault := damage(folder)):
            warnings.warn(f"{fault}; the warm start is made again", stacklevel=2)
            files.remove(folder)
        if not folder.exists():
            began = time.monotonic()
            losses = train(loaded, config, lessons, tell)
            with files.becoming(folder, alone=True) as aside:
                loaded.model.save_pretrained(aside)
                point("warm-start-save")
                loaded.tokenizer.save_pretrained(aside)
                about = record(loaded, task, config, lessons, losses, time.monotonic() - began)
                (aside / RECORD).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
                (aside / sums.KEPT).write_bytes(files.sums_of(aside, sorted(aside.glob("*"))))
    adopt(loaded, folder)
    return folder


def damage(folder: Path) -> str:
    """What of a cached folder is not as it was written; empty where nothing is, or where an older version
    left no sums."""
    try:
        listed = sums.kept(folder)
    except ValueError as error:
        return str(error)
    if lost := sums.absent(folder, listed):
        return lost[0]
    changed = [name for name, one in listed.items() if files.sha256(folder / name) != one["sha256"]]
    return f"{folder / changed[0]}: is not what was written" if changed else ""


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes from making the same folder. The system frees the lock of a process that dies.
    Whoever waits asks at safe points: another's warm start may take long."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        while not locked(file):
            safe_point()
            time.sleep(LOOK)
        yield


def locked(file: IO[str]) -> bool:
    """Whether the lock is this process's now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def adopt(loaded: Loaded, folder: Path) -> None:
    """Give the model the weights of a folder, bit for bit."""
    weights = dict(load(str(folder)).model.named_parameters())
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            parameter.copy_(weights[name])


def record(
    loaded: Loaded,
    task: Task,
    config: ModelConfig,
    lessons: Sequence[Group],
    losses: list[float],
    seconds: float,
) -> dict[str, Any]:
    """What was trained, on what, and how it went."""
    return {
        "model": loaded.origin,
        "task": {"name": task.name, "settings": strict.plain(task)},
        "data": sorted({str(source) for split in task.splits for source in task.sources(split)}),
        "updates": config.warm_start,
        "batch": config.warm_start_batch,
        "learning_rate": config.warm_start_learning_rate,
        "dtype": config.dtype,
        "demonstrations_read": len(lessons),
        "different_demonstrations": len({group.problem.id for group in lessons}),
        "tokens_read": sum(group.rollouts[0].length for group in lessons),
        "loss": losses,
        "seconds": seconds,
        "torch": str(torch.__version__),
    }


def demonstrations(loaded: Loaded, task: Task, config: ModelConfig) -> list[Group]:
    """The reference episodes that the updates read, in order."""
    problems = task.lessons()
    order = list(range(len(problems)))
    random.Random(derive(SEED, "warm start")).shuffle(order)
    order = order[: config.warm_start_examples or len(order)]
    wanted = config.warm_start * config.warm_start_batch
    groups = [demonstration(loaded, task, problems[index]) for index in order[:wanted]]
    return [groups[i % len(groups)] for i in range(wanted)]


def key(loaded: Loaded, task: Task, config: ModelConfig, lessons: Sequence[Group]) -> str:
    """A name that changes with anything that changes the result, and with nothing else: settings of a task
    that leave its lessons as they are share one warm start."""
    read = hashlib.sha256()
    for group in lessons:
        rollout = group.rollouts[0]
        read.update(json.dumps([rollout.prompt, rollout.completion, rollout.written]).encode())
    facts: dict[str, Any] = {
        "recipe": RECIPE,
        "model": loaded.origin,
        "lessons": read.hexdigest(),
        "settings": [
            config.warm_start,
            config.warm_start_batch,
            config.warm_start_learning_rate,
            config.dtype,
        ],
        "torch": str(torch.__version__),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return f"{Path(config.name).name}-{task.name}-{digest[:16]}"


def train(loaded: Loaded, config: ModelConfig, lessons: Sequence[Group], tell: Tell) -> list[float]:
    """The supervised updates. The loss of each, in nats per token."""
    losses = []
    deterministic()
    models = Models(loaded.model, ("policy",), dtype=config.dtype)
    models.optimise({"policy": config.warm_start_learning_rate}, (0.9, 0.95), 0.0, 1.0)
    updates, rows = config.warm_start, config.warm_start_batch
    for update in range(1, updates + 1):
        read = lessons[(update - 1) * rows : update * rows]
        batch = pack_groups(read, 0, 1, loaded.pad, str(models.device))
        work = functools.partial(descend, models, batch, parts.average(batch, "token_mean"))
        total = models.in_parts(batch, parts.rows(batch), work, models.clear)
        rise, fall = update / max(1, updates // 10), (updates - update + 1) / updates
        try:
            models.step(("policy",), min(rise, fall, 1.0))
        except (NonFinite, Ruined) as error:
            raise ModelError(
                f"the warm start blew up at update {update} of {updates} ({error}); lower "
                "model.warm_start_learning_rate"
            ) from error
        losses.append(total)
        point("warm-start")
        tell(update, updates, total)
    return losses


def descend(
    models: Models, batch: Batch, weights: torch.Tensor, micro_batches: Iterable[torch.Tensor]
) -> float:
    """Gradients of an update, a micro-batch after the other; its loss."""
    total = 0.0
    for rows in micro_batches:
        logp = models.read_now(("policy",), batch[rows])["policy"].logp
        loss = (-logp * weights[rows]).sum()
        loss.backward()
        total += loss.item()
    return total


def demonstration(loaded: Loaded, task: Task, problem: Problem) -> Group:
    """The reference episode as a rollout; replies of an environment have no part in the loss."""
    rollout = demonstrated(loaded, task, problem)
    return Group(problem, [rollout], [Verdict({}, None)], [0.0])
