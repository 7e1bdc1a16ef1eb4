"""Supervised warm start on a task's reference answers, cached."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from grpobench.algorithms import parts
from grpobench.algorithms.algorithm import Batch
from grpobench.analysis.runfolder import checksums
from grpobench.runs.models.loading import Loaded, load
from grpobench.runs.models.model_packages import cache_folder
from grpobench.runs.models.optimizer import NonFinite
from grpobench.runs.models.role_weights import Ruined
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.stored_weights import cast_weights
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.sample.rollouts import Group, pack_groups
from grpobench.runs.settings.config import ModelConfig, RunConfig
from grpobench.runs.tools import files, strict
from grpobench.runs.tools.determinism import deterministic
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.process import safe_point
from grpobench.runs.train.prepare.demonstrations import demonstrations, tokens_hash
from grpobench.tasks.data import bounded
from grpobench.tasks.task import Task

RECIPE = 2
"""Version of this procedure; changing it makes cached weights stale."""
RECORD = "warmstart.json"
LOOK = 0.1
"""Seconds between two checks whether another process has finished the warm start."""
Tell = Callable[[int, int, float], None]
"""Called with the update, the number of updates and the loss."""


def warm_start(loaded: Loaded, task: Task, config: ModelConfig, tell: Tell) -> Path:
    """Train `loaded.model` in place on demonstrations of the task's lessons, or load the cached result.

    The optimizer is AdamW with a linear warm-up over a tenth of the updates and linear decay; the loss is the
    mean over the policy's tokens. Returns the cached folder, a model folder with a record of the training,
    which appears whole or not at all. Of several processes one trains while the others wait. An interrupted
    warm start begins anew: it has no checkpoints.
    """
    folder = warm_folder(loaded, task, config)
    with alone(folder):
        if folder.exists() and (fault := damage(folder)):
            warnings.warn(f"{fault}; the warm start is repeated", stacklevel=2)
            files.remove(folder)
        if not folder.exists():
            began = time.monotonic()
            lessons = demonstrations(loaded, task, config)
            losses = train(loaded, config, lessons, tell)
            with files.becoming(folder, alone=True) as aside:
                loaded.model.save_pretrained(aside)
                point("warm-start-save")
                loaded.tokenizer.save_pretrained(aside)
                about = record(loaded, task, config, lessons, losses, time.monotonic() - began)
                (aside / RECORD).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
                (aside / checksums.SUMS_FILE).write_bytes(files.sums_of(aside, sorted(aside.glob("*"))))
    adopt(loaded, folder)
    return folder


def warm_folder(loaded: Loaded, task: Task, config: ModelConfig) -> Path:
    """The cached folder of a warm start. A process draws the demonstrations that name it once: those of many
    turns take longer than a short run."""
    answers = Path(config.warm_start_answers).expanduser()
    facts = [
        loaded.provenance,
        loaded.tokenizer.chat_template,
        f"{type(task).__module__}.{type(task).__qualname__}",
        strict.plain(task),
        [str(source) for split in task.splits for source in task.sources(split)],
        dataclasses.asdict(config),
        [answers.stat().st_mtime_ns, answers.stat().st_size] if answers.is_file() else [],
    ]
    facts_text = json.dumps(facts, sort_keys=True, default=str)
    if facts_text not in _names:
        _names[facts_text] = key(loaded, task, config, demonstrations(loaded, task, config))
    return cache_folder() / "warm" / _names[facts_text]


_names: dict[str, str] = {}
"""Names of warm starts in this process, by what their demonstrations depend on."""


def initial_policy(
    config: RunConfig, tell: Tell = lambda update, updates, loss: None, *, on_cpu: bool = False
) -> tuple[Loaded, Path | None]:
    """The policy with which a run begins, and the folder of its warm start, if it has one. With `on_cpu` the
    policy is there in the end; a warm start is made on the device all the same."""
    model = config.model
    # A warm start is made in float32, whatever the run's weights are.
    loaded = load(
        model.name,
        "cpu" if on_cpu and not model.warm_start else None,
        weights_in="float32" if model.warm_start else model.weights,
        chat_template=model.template,
    )
    if not model.warm_start:
        return loaded, None
    folder = warm_start(loaded, config.task, model, tell)
    cast_weights(loaded.model, getattr(torch, model.weights))
    if on_cpu:
        loaded.model.to("cpu")
    return loaded, folder


def damage(folder: Path) -> str:
    """Files of a cached folder that were changed since they were written; empty if there are none, or if an
    older version left no checksums."""
    try:
        listed = checksums.read_sums(folder)
    except ValueError as error:
        return str(error)
    if lost := checksums.absent(folder, listed):
        return lost[0]
    changed = [
        name for name, recorded in listed.items() if bounded.sha256(folder / name) != recorded["sha256"]
    ]
    return f"{folder / changed[0]}: was changed since it was written" if changed else ""


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes from creating the same folder. The system releases the lock of a process that
    dies. Waiting passes safe points, because another process's warm start may take long."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        while not locked(file):
            safe_point()
            time.sleep(LOOK)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a child forked meanwhile has the file open, too


def locked(file: IO[str]) -> bool:
    """Whether this process has the lock now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def adopt(loaded: Loaded, folder: Path) -> None:
    """Load the weights of a folder into the model, bit for bit."""
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
    """The record: what was trained, on what data, and the losses."""
    return {
        "model": loaded.provenance,
        "task": {"name": task.name, "settings": strict.plain(task)},
        "data": sorted({str(source) for split in task.splits for source in task.sources(split)}),
        "updates": config.warm_start,
        "batch": config.warm_start_batch,
        "answers": config.warm_start_answers,
        "learning_rate": config.warm_start_learning_rate,
        "dtype": config.dtype,
        "demonstrations_read": len(lessons),
        "different_demonstrations": len({group.problem.id for group in lessons}),
        "tokens_read": sum(group.rollouts[0].length for group in lessons),
        "loss": losses,
        "seconds": seconds,
        "torch": str(torch.__version__),
    }


def key(loaded: Loaded, task: Task, config: ModelConfig, lessons: Sequence[Group]) -> str:
    """A cache key that changes with anything that changes the result and with nothing else: settings of a
    task that do not affect its lessons share one warm start."""
    facts: dict[str, Any] = {
        "recipe": RECIPE,
        "model": loaded.provenance,
        "lessons": tokens_hash(lessons),
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
    """The supervised updates. Returns the loss of each, in nats per token."""
    losses = []
    deterministic()
    models = RoleModels(loaded.model, ("policy",), dtype=config.dtype)
    models.optimize({"policy": config.warm_start_learning_rate}, (0.9, 0.95), 0.0, 1.0)
    updates, rows = config.warm_start, config.warm_start_batch
    for update in range(1, updates + 1):
        read = lessons[(update - 1) * rows : update * rows]
        batch = pack_groups(read, 0, 1, loaded.pad, str(models.device))
        work = functools.partial(descend, models, batch, parts.average(batch, "token_mean"))
        total = models.in_micro_batches(batch, parts.rows(batch), work, models.clear)
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
    models: RoleModels, batch: Batch, weights: torch.Tensor, micro_batches: Iterable[torch.Tensor]
) -> float:
    """Gradients of an update, one micro-batch after the other; returns its loss."""
    total = 0.0
    for rows in micro_batches:
        logp = models.forward_train(("policy",), batch[rows])["policy"].logp
        loss = (-logp * weights[rows]).sum()
        loss.backward()
        total += loss.item()
    return total
