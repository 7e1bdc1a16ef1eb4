"""A sampler that works ahead: while a step is trained, another process samples the next one."""

# With `sampler.lag` the next step's rollouts come from weights that exist before this step's updates. Another
# process, on a GPU of its own if there are two, can therefore sample them meanwhile. Nothing else changes:
# seeds, weights and batches are those of a run that samples by itself, and so is every number.
#
# What is sampled ahead is a guess at what the next step will ask for. It is used only if the step asks for
# the same problems with the same seeds from the weights of the same version; otherwise, and in a run's first
# step, the other process samples when it is asked. It keeps no state: one that dies is started again and
# asked again.

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.episodes import episodes
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.rollouts import Rollout
from grpobench.runs.sample.sampler import StepRequest, Weights
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.settings.truncation import truncation_of
from grpobench.runs.tools.determinism import deterministic
from grpobench.runs.tools.process import death, die_with, safe_point, without_interrupts, without_main
from grpobench.runs.train.prepare.warmstart import initial_policy

LOOK = 0.05
"""Seconds between two safe points while the other process samples."""
GRACE = 5.0
"""Seconds that an idle process has to end."""
MOST_DEATHS = 3
"""How often in a row the other process may die of the same work."""


@dataclass(frozen=True)
class SamplingOrder:
    """What the other process gets: the work, and the weights as one tensor for each dtype."""

    work: StepRequest
    names: tuple[str, ...]
    flat: tuple[torch.Tensor, ...]


class SamplerDied(RuntimeError):
    """The other process cannot do its work."""


class AheadSampler(HFSampler):
    """Samples in this process for evaluations, and in another one for training."""

    def __init__(
        self, config: RunConfig, models: RoleModels, end: Sequence[int], pad: int, rows: int, context: int
    ) -> None:
        # The other process rounds the weights of rollouts; this one evaluates, and knows of the gap.
        super().__init__(models, end, pad, rows, context, config.sampler.weights)
        self.config = config
        self.process: BaseProcess | None = None
        self.connection: Connection[Any, Any] | None = None
        self.pending: SamplingOrder | None = None
        """What the other process works on, or has done."""

    def rollout_weights(self) -> contextlib.AbstractContextManager[None]:
        """What the other process gets are the trainer's weights, which it rounds."""
        return contextlib.nullcontext()

    def begin_next(self, work: StepRequest, weights: Weights) -> None:
        """Let the other process sample, if it has nothing else to do."""
        if self.pending is None:
            # Copies: torch sends a tensor by sharing its memory, in which this step's updates would show.
            self._send(SamplingOrder(work, tuple(weights), flattened(weights.values())))

    def take_next(self, work: StepRequest, weights: Callable[[], Weights]) -> list[list[Rollout]]:
        """The rollouts of each problem; `weights` are those of now."""
        if self.pending is not None and self.pending.work != work:
            self.close()  # it guessed wrong, and what it does now is of no use
        if self.pending is None:
            self.begin_next(work, weights())
        for _ in range(MOST_DEATHS):
            assert self.pending is not None and self.connection is not None and self.process is not None
            try:
                # `recv` alone would wait without a safe point for as long as the other process samples.
                while not self.connection.poll(LOOK):
                    safe_point()
                outcome = self.connection.recv()
            except (EOFError, OSError):
                # Join first: the process has an exit code only then.
                self.process.join()
                why = death(self.process.exitcode)
                warnings.warn(f"the process that samples {why}; another one takes over", stacklevel=2)
                order = self.pending  # `close` forgets it
                self.close()
                self._send(order)
                continue
            # Before an error is raised: the other process has done its work either way.
            self.pending = None
            if isinstance(outcome, Exception):
                raise outcome
            return outcome  # type: ignore[no-any-return]
        raise SamplerDied(f"the process that samples {why}, {MOST_DEATHS} times with the same work")

    def close(self) -> None:
        """End the other process."""
        if self.process is not None and self.connection is not None:
            self.connection.close()  # at which it ends, unless it is in the middle of something
            # One that still samples does not look at its connection, so that waiting longer is of no use.
            self.process.join(LOOK if self.pending else GRACE)
            self.process.kill()
            self.process.join()
        self.process = self.connection = self.pending = None

    def _send(self, order: SamplingOrder) -> None:
        if self.process is None:
            self._start()
        assert self.connection is not None
        self.pending = order
        with contextlib.suppress(OSError):  # if it has died, `take_next` sees that
            self.connection.send(order)

    def _start(self) -> None:
        # CUDA cannot be used in a fork, nor threads that the parent had.
        context = torch.multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        with without_interrupts(), without_main():
            self.process = context.Process(
                target=serve,
                args=(self.config, other, os.getpid(), torch.get_num_threads()),
                name="sampler",
                daemon=True,
            )
            self.process.start()
        # While this process holds that end as well, the death of the other one would not show.
        other.close()


def flattened(tensors: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """A copy of tensors as one for each dtype, in order of their first: few cross to another process."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor.detach().flatten())
    # cat copies a single tensor, too.
    return tuple(torch.cat(of_dtype) for of_dtype in by_dtype.values())


@torch.no_grad()
def adopt(order: SamplingOrder, parameters: Mapping[str, torch.Tensor]) -> None:
    """Give parameters the weights of an order."""
    offset_by_dtype = {tensor.dtype: 0 for tensor in order.flat}
    flat = {tensor.dtype: tensor for tensor in order.flat}
    # In the order in which `flattened` put them behind each other.
    for name in order.names:
        parameter = parameters[name]
        start, count = offset_by_dtype[parameter.dtype], parameter.numel()
        parameter.copy_(flat[parameter.dtype][start : start + count].view(parameter.shape))
        offset_by_dtype[parameter.dtype] = start + count


def serve(config: RunConfig, connection: Connection[Any, Any], parent: int, threads: int) -> None:
    """The main function of the other process: sample what is asked for until the run's process is gone."""
    die_with(parent)
    # First ignored, then unblocked: a Ctrl-C from before is still pending.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the run's process decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    warnings.simplefilter("ignore")  # the run's process says the same
    torch.set_num_threads(threads)
    deterministic(config.model.deterministic)
    if torch.cuda.is_available():
        torch.cuda.set_device(1 % torch.cuda.device_count())  # the first one trains
    # With the warm start: under an adapter an order holds that alone, beside the weights from here.
    loaded, _ = initial_policy(config)
    models = RoleModels(
        loaded.model,
        temperature=config.sampler.temperature,
        dtype=config.model.dtype,
        budget=config.train.micro_batch_tokens,
        adapter=config.model.adapter,
        attention=config.model.attention,
    )
    settings = config.sampler
    sampler = HFSampler(
        models, loaded.end, loaded.pad, settings.max_batch_size, loaded.context, settings.weights
    )
    parameters = dict(models.language.named_parameters())
    while True:
        try:
            order = connection.recv()
        except (EOFError, OSError):
            sys.exit(0)
        try:
            adopt(order, parameters)
            work = order.work
            with sampler.rollout_weights():
                outcome: Any = episodes(
                    sampler,
                    loaded,
                    config.task,
                    work.problems,
                    work.seeds,
                    work.limit,
                    work.temperature,
                    truncation=truncation_of(config.sampler),
                )
        except Exception as error:
            # Raised by the run's process: here nobody would see it.
            outcome = error
        connection.send(outcome)
