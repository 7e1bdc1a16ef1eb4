"""Checks of an experiment's folder before its first run: whether the file system can do what runs need, and
whether there is room for what they keep."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from grpobench.runs.experiment.engines import Where
from grpobench.runs.experiment.run import ExperimentRun
from grpobench.runs.models import model_files, model_packages
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.models.sizes import read_sizes, shapes
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.files import FULL, beside, remove, sync_folder
from grpobench.runs.tools.lock import FolderError
from grpobench.runs.tools.machine import slow_precisions
from grpobench.tasks.task import Split, Task

BYTES = 4
"""Bytes of a float32 weight, and of each moment of an optimizer."""
WEIGHT = {"float32": BYTES, "bfloat16": 2}
"""Bytes of a weight by `model.weights`."""
MOMENTS = 2
"""AdamW's."""
RUN, ROW, ANSWER, TOKEN = 250_000, 6_000, 600, 8
"""Bytes of a run's settings, provenance and digests of problems, of a step's row in metrics.jsonl, of an
answer's row in eval.jsonl, and of a token's text: each more than those of the suite's own recipes."""


def demand(runs: Sequence[ExperimentRun], folder: Path, workers: int, say: Callable[[str], None]) -> None:
    """Check an existing experiment folder for the waiting runs. Raises FolderError if it cannot hold them;
    `say` gets warnings of low space."""
    waiting = [run.config for run in runs if run.state == "waiting"]
    if waiting:
        probe(folder)
        room(waiting, folder, workers, say)


def probe(folder: Path) -> None:
    """Write, sync, lock, rename and read a file, as every run does. Raises FolderError, or OSError for a full
    disk."""
    probe_folder = beside(folder / "probe")  # If this process is killed, the next start removes it.
    first, second = probe_folder / "first", probe_folder / "second"
    doing = "make a folder"
    try:
        remove(probe_folder)
        probe_folder.mkdir()
        doing = "write a file"
        with first.open("wb") as file:
            file.write(b"written")
            doing = "sync a file (fsync)"
            file.flush()
            os.fsync(file.fileno())
            doing = "lock a file (flock)"
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        doing = "rename a file"
        first.rename(second)
        doing = "sync a folder (fsync)"
        sync_folder(probe_folder)
        doing = "read back what was written"
        if second.read_bytes() != b"written":
            raise OSError("the bytes differ")
        doing = "remove a folder"
        remove(probe_folder)
    except OSError as error:
        shutil.rmtree(probe_folder, ignore_errors=True)
        if error.errno in FULL:
            raise
        why = error.strerror or str(error) or type(error).__name__
        raise FolderError(
            f"--out {folder}: cannot {doing} there ({why}), and without that runs could not be resumed; "
            "name a folder on another file system"
        ) from None


def room(waiting: Sequence[RunConfig], folder: Path, workers: int, say: Callable[[str], None]) -> None:
    """Compare the free space with what the runs keep. Raises FolderError without room for one."""
    sized = counted(waiting)
    free = shutil.disk_usage(folder).free
    least = min((2 * BYTES * count * config.checkpoint.weights for config, count in sized), default=0)
    remedy = "free space, or name another --out"
    if free < least:
        raise FolderError(
            f"{folder} has {size(free)} free, but the weights of one run and their temporary copy take "
            f"{size(least)}; {remedy}"
        )
    result_bytes, working = disk(sized, workers)
    logs = sum(log_bytes(config, count_problems=False) for config in waiting)
    if free < result_bytes + working + logs:
        unknown = f" ({len(waiting) - len(sized)} of unknown size)" if len(sized) < len(waiting) else ""
        say(
            f"{folder} has {size(free)} free; {len(waiting)} runs{unknown} keep about {size(result_bytes)} "
            f"of weights and up to {size(logs)} of logs, with up to {size(working)} of checkpoints while "
            f"they run; {remedy}, or set checkpoint.keep = 1, or checkpoint.weights = false, which keeps "
            "logs alone"
        )


def notes_on_precision(configs: Sequence[RunConfig], where: Where) -> list[str]:
    """A note for each `model.dtype` that is slow on this machine's processor, if the runs are executed
    there."""
    if where.on != "local":
        return []
    slow = slow_precisions(config.model.dtype for config in configs)
    return [f'{text}; set model.dtype = "float32"' for text in slow]


def counted(configs: Sequence[RunConfig]) -> list[tuple[RunConfig, int]]:
    """The runs whose number of trained weights this machine can tell, each with it."""
    models = {(config.model.name, config.model.adapter) for config in configs}
    counts = {model: weights(*model) for model in models}
    counted_runs = [(config, counts[config.model.name, config.model.adapter]) for config in configs]
    return [(config, count) for config, count in counted_runs if count]


def disk(sized: Sequence[tuple[RunConfig, int]], workers: int) -> tuple[int, int]:
    """(bytes that the runs keep, bytes that their checkpoints take beside these at most), without logs."""
    result_bytes = sum(result(config, count) for config, count in sized)
    return result_bytes, workers * max((checkpoints(config, count) for config, count in sized), default=0)


def weights(model: str, adapter: Adapter | None = None) -> int:
    """Number of weights in a model's files on this machine, or of an adapter for it; 0 if only the hub could
    tell."""
    kind_and_folder = model_files.folder_of(model)
    folder = kind_and_folder[1] if kind_and_folder else None
    if model in model_packages.PACKAGED and not kind_and_folder:
        folder = model_packages.unpacked_folder(model, model_packages.PACKAGED[model].file)
    files = sorted(folder.glob("*.safetensors")) if folder else []
    if adapter is not None:
        return adapter.elements(shapes(files))
    return read_sizes(files).elements if files else 0


def roles(config: RunConfig) -> int:
    """Number of trained models of the policy's size."""
    return sum(role != "value_head" for role in config.algorithm.trained_roles)


def checkpoints(config: RunConfig, count: int) -> int:
    """Maximum bytes of a run's checkpoints: those kept, and one temporary copy."""
    return (config.checkpoint.keep + 1) * state(config, count)


def state(config: RunConfig, count: int) -> int:
    """Bytes of one checkpoint: weights and moments of each role, and the policy's earlier weights."""
    weight = WEIGHT[config.model.weights]
    master = BYTES if weight != BYTES and config.train.master_weights else 0
    return count * ((weight + master + BYTES * MOMENTS) * roles(config) + weight * config.sampler.lag)


def result(config: RunConfig, count: int) -> int:
    """Bytes that a finished run keeps: the policy, and with `checkpoint.final` its last checkpoint."""
    settings = config.checkpoint
    weights = WEIGHT[config.model.weights] * count if settings.weights else 0
    return weights + (state(config, count) if settings.continues else 0)


def limit_of(config: RunConfig) -> int:
    """Longest completion in tokens."""
    return config.sampler.max_completion_tokens or config.task.max_completion_tokens


def step_tokens(config: RunConfig) -> int:
    """Upper bound on the tokens that a step samples."""
    if not config.sampler.on_policy:
        return 0
    train = config.train
    answers = train.group_size + config.algorithm.greedy_baseline
    return train.prompts_per_step * answers * limit_of(config) * (1 + config.modify.dynamic_sampling)


def tokens_of_task(config: RunConfig, task: Task, count_problems: bool = True) -> int:
    """Upper bound on the tokens that a run samples to evaluate one task."""
    settings = config.evaluate
    answers = settings.samples * ("sampled" in task.modes) + (settings.greedy and "greedy" in task.modes)
    longest = config.sampler.max_completion_tokens or task.max_completion_tokens
    return evaluated_problems(config, task, count_problems) * answers * longest


def evaluated_problems(config: RunConfig, task: Task, count_problems: bool) -> int:
    """How often a run evaluates a problem of a task. Without `count_problems` nothing is loaded, and every
    split has as many problems as the settings ask for."""
    settings, steps = config.evaluate, config.train.steps
    edges = 1 + settings.before
    between = (steps - 1) // settings.every if settings.every and steps else 0
    times: dict[Split, tuple[int, int]] = {
        "validation": (settings.problems, edges + between),
        "test": (settings.test_problems, edges),
    }
    evaluations = 0
    for split, (count, often) in times.items():
        if count and split in task.splits:
            evaluations += (min(count, len(task.problems(split))) if count_problems else count) * often
    return evaluations


def log_bytes(config: RunConfig, count_problems: bool = True) -> int:
    """Upper bound on the bytes of a whole run's logs, evaluations, completions and rollouts, if no row is
    longer than `ROW` or `ANSWER` and no token has more than `TOKEN` bytes. Compression is not counted."""
    settings, steps, modes = config.evaluate, config.train.steps, config.task.modes
    answers = settings.samples * ("sampled" in modes) + (settings.greedy and "greedy" in modes)
    answers += settings.likelihood and "likelihood" in modes
    evaluated = evaluated_problems(config, config.task, count_problems) * answers
    texts = tokens_of_task(config, config.task, count_problems) if settings.completions else 0
    evaluations = range(settings.every, steps + 1, settings.every) if settings.every else ()
    rollouts = len({1, *evaluations, steps}) * step_tokens(config) if steps else 0
    return RUN + ROW * (steps + 1) + ANSWER * evaluated + TOKEN * (texts + rollouts)


def size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
