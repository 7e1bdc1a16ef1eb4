"""The processes of a run on several devices, started by the one that the launcher talks to."""

# The launcher's process is rank 0. It executes the run as usual and orders what all do together: a step, an
# evaluation, gathering the weights for a checkpoint (`ORDERS`). The others have no run folder and decide
# nothing. If one of them dies, the run ends as after the death of its own process: it resumes from its last
# checkpoint.

from __future__ import annotations

import contextlib
import errno
import functools
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from grpobench.runs.models.ranks import ALONE, DeviceRanks
from grpobench.runs.models.token_budgets import RankOutOfMemory
from grpobench.runs.runfolder import checkpoints, sharded
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools.determinism import deterministic
from grpobench.runs.tools.process import death, die_with, without_interrupts, without_main
from grpobench.runs.train.parts import build
from grpobench.runs.train.progress import Preempted
from grpobench.runs.train.trainer import Trainer

FOREVER = timedelta(days=30)
"""How long a rank waits for the others. A dead one is noticed otherwise, and grading may take hours."""
GRACE = 10.0
"""Seconds that the other ranks have to end after rank 0, and rank 0 to notice by itself that one has died."""
LOOK = 0.2
"""Seconds between two looks whether the other ranks live."""
CLOSED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""What gloo says of a rank that has gone, when it reads and when it writes."""
END = "end"


def restore(trainer: Trainer, run: Path, step: int) -> None:
    """Continue from a checkpoint."""
    checkpoint, ranks = checkpoints.read(run, step), trainer.models.ranks
    if checkpoint.sharded and not ranks.alone:
        room = trainer.models.empty_state(sharded.outline(checkpoint.path))
        sharded.load_into(checkpoint.path, room, ranks.group)
        tensors = sharded.by_role(room)
    else:
        tensors = {name: checkpoint.tensors(name) for name in checkpoint.names()}
    trainer.restore(tensors, checkpoint.state)


def save(trainer: Trainer, folder: Path) -> Future[Any]:
    """Begin to write this rank's parts of a checkpoint, after the last one: rank 0 knows that all have
    written that before the others know it, and two would mix up what they receive."""
    ranks = trainer.models.ranks
    await_last_save(ranks)
    ranks.written = sharded.begin_save(folder, sharded.flat(trainer.models.state()), ranks.background)
    return ranks.written


def final_weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """The policy's trained weights, whole on rank 0."""
    return trainer.models.full_tensors(trainer.models.named_parameters("policy"))


ORDERS: Mapping[str, Callable[..., Any]] = {
    "restore": restore,
    "step": lambda trainer, step: trainer.step(step),
    "evaluate": lambda trainer, number, step, split: trainer.evaluate(number, step, split),
    "save": save,
    "ruined": lambda trainer: trainer.models.ruined(),
    "final weights": final_weights,
    "lower": lambda trainer, lowered: trainer.models.token_budget.lower_as(lowered),
}
"""What all ranks do together. The others do the same as rank 0 and drop the result."""


def together(trainer: Trainer, order: str, *arguments: Any) -> Any:
    """Rank 0: the result of an order that all ranks carry out."""
    # First the others: work that all ranks share waits for them.
    trainer.models.ranks.send((order, arguments))
    return ORDERS[order](trainer, *arguments)


def obey(trainer: Trainer) -> None:
    """The other ranks: carry out orders until the run is over. A step that the run gives up ends on all ranks
    at the same place."""
    ranks = trainer.models.ranks
    while (received := ranks.receive())[0] != END:
        order, arguments = received
        with contextlib.suppress(Preempted):
            ORDERS[order](trainer, *arguments)
    await_last_save(ranks)


def await_last_save(ranks: DeviceRanks) -> None:
    """Wait until this rank has done with its last checkpoint. Rank 0 sees what went wrong."""
    if ranks.written is not None:
        # Not `result`, which would raise the error on every rank.
        ranks.written.exception()


def preempt() -> None:
    raise Preempted


@contextlib.contextmanager
def ranks_of(
    config: RunConfig, threads: int, ran_out: Callable[[RankOutOfMemory], None] = lambda error: None
) -> Iterator[DeviceRanks]:
    """The ranks of a run, of which this process is the first. The others live as long as this context.
    `ran_out` is called if one of them has run out of memory where the next attempt may do with less.

    Raises what another rank died of: its own error, or OSError if its process was killed.
    """
    if config.train.devices == 1:
        yield ALONE
        return
    # A new one for each attempt: torch meets in a file that must not exist before.
    with tempfile.TemporaryDirectory(prefix="grpobench-") as folder:
        shared_folder = Path(folder)
        others = started(config, shared_folder, threads)
        over = threading.Event()

        def note(error: Exception) -> None:
            if isinstance(error, RankOutOfMemory):
                ran_out(error)

        def last_words() -> None:
            for other in dead(others):
                note(ended_by(other, shared_folder))

        threading.Thread(target=watch, args=(others, over, last_words), daemon=True).start()
        obedient = False
        try:
            with joined(shared_folder, 0, config.train.devices) as ranks:
                ranks.demand = functools.partial(demand_alive, others)
                try:
                    yield ranks
                    obedient = True
                except Preempted:
                    # All ranks have raised it at the same place and wait for the next order.
                    obedient = True
                    raise
                except Exception as error:
                    # Before the cause is looked for, which may take as long as `watch` waits until it kills
                    # this process.
                    over.set()
                    rank_error = cause(others, shared_folder, error)
                    note(rank_error or error)
                    # Before the group ends, at which they would fail, too.
                    for other in others:
                        other.kill()
                    if rank_error is not None:
                        raise rank_error from error
                    raise
                finally:
                    over.set()
                    if obedient:  # else they wait within something that this rank has left
                        with contextlib.suppress(RuntimeError):  # one that has died now has done its work
                            ranks.send((END, ()))
        finally:
            for other in others:
                other.join(GRACE if obedient else 0)
                other.kill()
                other.join()


def started(config: RunConfig, shared_folder: Path, threads: int) -> list[BaseProcess]:
    """The processes of the other ranks."""
    # CUDA cannot be used in a fork, nor threads that the parent had.
    context = multiprocessing.get_context("spawn")
    with without_interrupts(), without_main():
        others: list[BaseProcess] = [
            context.Process(
                target=follow, args=(config, shared_folder, rank, os.getpid(), threads), name=f"rank {rank}"
            )
            for rank in range(1, config.train.devices)
        ]
        for other in others:
            other.start()
    return others


def watch(others: list[BaseProcess], over: threading.Event, last_words: Callable[[], None]) -> None:
    """End this process if another rank has died and this one does not notice: a GPU's collectives wait for
    ever. `last_words` is called before."""
    while not over.wait(LOOK):
        # Rank 0 may notice by itself, and can then say what the other one died of.
        if (gone := dead(others)) and not over.wait(GRACE):
            with contextlib.suppress(Exception):
                last_words()
            sys.stderr.write(f"{gone[0].name} {death(gone[0].exitcode)}; this process ends, too\n")
            sys.stderr.flush()
            # The main thread hangs inside a collective and would handle nothing else.
            os.kill(os.getpid(), signal.SIGKILL)


def dead(others: list[BaseProcess]) -> list[BaseProcess]:
    return [other for other in others if other.exitcode not in (None, 0)]


def demand_alive(others: list[BaseProcess]) -> None:
    """Raises OSError if another rank has died, of which `cause` knows more."""
    for other in dead(others):
        raise OSError(errno.ECONNRESET, f"{other.name} of the run {death(other.exitcode)}")


def cause(others: list[BaseProcess], shared_folder: Path, error: Exception) -> Exception | None:
    """The death of another rank that made this one see `error`; None if none has died."""
    # Asked again and again: a thread that asks while `watch` reaps a dead process is told that it lives.
    until = time.monotonic() + GRACE
    while lost(error) and not dead(others) and time.monotonic() < until:
        time.sleep(LOOK)
    rank_errors = [ended_by(other, shared_folder) for other in dead(others)]
    # Of several ranks all but one have only lost another one.
    return next(
        (rank_error for rank_error in rank_errors if not lost(rank_error)),
        rank_errors[0] if rank_errors else None,
    )


def lost(error: Exception) -> bool:
    """Whether an error says no more than that another rank has gone."""
    return any(phrase in str(error) for phrase in CLOSED)


def ended_by(other: BaseProcess, shared_folder: Path) -> Exception:
    """What a rank died of: its own error, if it has left one that can be read."""
    with contextlib.suppress(Exception):
        pickled_error = pickle.loads((shared_folder / f"{other.name}.error").read_bytes())
        if isinstance(pickled_error, Exception):
            return pickled_error
    return OSError(errno.ECONNRESET, f"{other.name} of the run {death(other.exitcode)}")


@contextlib.contextmanager
def joined(shared_folder: Path, rank: int, size: int) -> Iterator[DeviceRanks]:
    """This process as a rank of the group that meets in a folder of this machine."""
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        # NCCL knows no tensors on the CPU.
        "cpu:gloo,cuda:nccl" if gpus else "gloo",
        init_method=f"file://{shared_folder / 'store'}",
        rank=rank,
        world_size=size,
        timeout=FOREVER,
    )
    try:
        device = torch.device("cuda", rank) if gpus else torch.device("cpu")
        ranks = DeviceRanks(rank, size, torch.distributed.new_group(backend="gloo", timeout=FOREVER), device)
        # A group of its own: checkpoints are written while the run exchanges messages in the other one.
        ranks.background = torch.distributed.new_group(backend="gloo", timeout=FOREVER)
        ranks.stop = preempt
        yield ranks
    finally:
        torch.distributed.destroy_process_group()


def follow(config: RunConfig, shared_folder: Path, rank: int, parent: int, threads: int) -> None:
    """The main function of every rank but the first."""
    die_with(parent)
    # First ignored, then unblocked: a Ctrl-C from before is still pending.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # rank 0 decides what to do
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    warnings.simplefilter("ignore")  # rank 0 says the same
    torch.set_num_threads(threads)
    with (
        joined(shared_folder, rank, config.train.devices) as ranks,
        telling(shared_folder / f"rank {rank}.error"),
    ):
        deterministic(config.model.deterministic)
        try:
            parts = build(config, ranks=ranks)
        except Preempted:  # it samples, if the algorithm learns from the initial policy's rollouts
            ranks.receive()  # the end
            return
        trainer = Trainer(config, parts)
        with contextlib.closing(trainer.sampler):
            obey(trainer)


@contextlib.contextmanager
def telling(path: Path) -> Iterator[None]:
    """An error within goes to a file and ends this process: before it leaves its group, at which the others
    look for the file."""
    try:
        yield
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        with contextlib.suppress(Exception):
            # Not every error can be pickled: rank 0 then reports how this process ended.
            path.write_bytes(pickle.dumps(error))
        os._exit(1)  # at once: the others wait for this rank
