"""What is said of a model that cannot be used.

How much goes through a model at once, and what happens where memory does not hold it.

Whoever hands a model more than it must takes no more than a `TokenBudget` at once. Where memory gives out,
the
failed attempt is made again with half of it, down to what cannot be split, and the ration stays lowered for
the rest of the run. A checkpoint holds it, so that a resumed run goes on with what it had then: it finds what
was lowered since as it was found the first time.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from grpobench.tasks.data.tables import DataError


class ModelError(DataError):
    """A model that cannot be used; the message names the remedy."""


class NoRoom(Exception):
    """Memory does not hold what cannot be split any further; the message says what, and what to lower."""


USUAL = "give a folder with config.json, weights and tokenizer files, or a hub id that this machine can reach"


def first_line(error: Exception) -> str:
    """An error of a reader of files, in one line."""
    first = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__}: {first[0] if first else 'no reason given'}"


T = TypeVar("T")
SIGNS = (
    "can't allocate memory",  # torch on a CPU
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""What RuntimeErrors say that are raised for want of memory and are not torch.OutOfMemoryError."""
MORE = "give the run more memory (fewer runs on a device: --workers, --gpus-per-run)"
REMEDY = f'lower sampler.max_completion_tokens, set model.dtype = "bfloat16", take a smaller model, or {MORE}'


@dataclass
class TokenBudget:
    """How much of something goes through a model at once."""

    of: str
    """What is counted, and the setting that says how much: ``tokens (train.micro_batch_tokens)``."""
    limit: int
    initial: int = field(init=False)
    """`most` before anything was lowered."""
    lowered: list[dict[str, Any]] = field(default_factory=list)
    """What was lowered and not told yet: `of`, `before`, `now` and `why`."""
    times: int = 0
    """How often it was lowered since the run's beginning."""

    def __post_init__(self) -> None:
        self.initial = self.limit

    def lower(self, size: int, why: str) -> None:
        """Take half of `size`, at which memory gave out, from now on."""
        before, self.limit = self.limit, max(1, min(self.limit, size) // 2)
        self.times += 1
        self.lowered.append({"of": self.of, "before": before, "now": self.limit, "why": why})
        warnings.warn(
            f"out of memory with {size:,} {self.of} at once; from now on {self.limit:,}: {why}", stacklevel=2
        )

    def take_unreported(self) -> list[dict[str, Any]]:
        """What was lowered since the last call."""
        told, self.lowered = self.lowered, []
        return told

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {"asked": self.initial, "most": self.limit, "times": self.times}

    def restore(self, state: Mapping[str, int]) -> None:
        """The inverse of `state`; what was lowered is forgotten where another size is asked for by now."""
        if state and state["asked"] == self.initial:
            self.limit, self.times = state["most"], state["times"]


def retry_smaller(attempt: Callable[[], T], smaller: Callable[[str], None]) -> T:
    """What `attempt` returns. Whenever memory gives out in it, it is made again after `smaller` was told
    why, which sees to it that less is asked for, or raises NoRoom."""
    while True:
        try:
            return attempt()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            why = summarize_error(error)
        # Only here is the traceback gone, and with it what the failed attempt held.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        smaller(why)


def portions(token_budget: TokenBudget, count: int, work: Callable[[range], None], single: str) -> None:
    """Give `work` the numbers below `count` in order, as many at once as the ration allows. `single` says
    what one of them is, for NoRoom."""
    start = 0

    def attempt() -> int:
        part = range(start, min(count, start + token_budget.limit))
        work(part)
        return part.stop

    def smaller(why: str) -> None:
        if (size := min(count - start, token_budget.limit)) == 1:
            raise NoRoom(f"out of memory with {single} alone ({why}); {REMEDY}")
        token_budget.lower(size, why)

    while start < count:
        start = retry_smaller(attempt, smaller)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory gave out, the device's or the machine's."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def summarize_error(error: BaseException) -> str:
    """The error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Within, memory that gives out where nothing can be split raises NoRoom with what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise NoRoom(
            f"out of memory ({summarize_error(error)}) where it does not matter how much is read at "
            f"once: weights, "
            "gradients and the optimizer's state do not fit; take a smaller model or another "
            f"train.optimizer, or {MORE}"
        ) from error


def halvings(token_budgets: Iterable[TokenBudget]) -> dict[str, float]:
    """The metric of a run of which something was lowered; nothing of any other."""
    times = sum(token_budget.times for token_budget in token_budgets)
    return {"cost/memory_halvings": float(times)} if times else {}
