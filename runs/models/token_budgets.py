"""Errors of models that cannot be used, and token budgets: how much goes through a model at once."""

# Work that can be split goes through a model in portions of at most a `TokenBudget`. If memory runs out, the
# failed attempt is repeated with half the budget, down to what cannot be split, and the budget stays lowered
# for the rest of the run. A checkpoint holds the budget. A resumed run continues with it and lowers it again
# where the run lowered it after that checkpoint.

from __future__ import annotations

import errno
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
    """Memory does not hold what cannot be split; the message says what it is and which setting to lower."""


class RankOutOfMemory(OSError):
    """A rank of a run has run out of memory while others wait for what it computes. The run goes on from its
    last checkpoint, in another attempt, with the budget that `lowered` holds (see `TokenBudget.lowered`)."""

    def __init__(self, message: str, lowered: Mapping[str, Any]) -> None:
        super().__init__(errno.ENOMEM, message)
        self.lowered = dict(lowered)

    def __reduce__(self) -> tuple[type[RankOutOfMemory], tuple[Any, ...]]:
        # It travels by pickle from rank to rank; OSError would make it again from errno and message.
        return type(self), (self.strerror, self.lowered)


USUAL = "give a folder with config.json, weights and tokenizer files, or a hub id that this machine can reach"


def first_line(error: Exception) -> str:
    """An error in one line: its class and the first line of its message."""
    first = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__}: {first[0] if first else 'no reason given'}"


T = TypeVar("T")
SIGNS = (
    "can't allocate memory",  # torch on a CPU
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""Parts of the messages of RuntimeErrors that mean lack of memory but are not torch.OutOfMemoryError."""
MORE = "give the run more memory (fewer runs on a device: --workers, --gpus-per-run)"
REMEDY = f'lower sampler.max_completion_tokens, set model.dtype = "bfloat16", take a smaller model, or {MORE}'


MICRO_BATCH_TOKENS = {"cpu": 1024, "gpu": 16384}
"""Most tokens of a micro-batch where `train.micro_batch_tokens` is 0."""


@dataclass
class TokenBudget:
    """How much of something goes through a model at once."""

    of: str
    """What it counts, and the setting that fixes it: ``tokens (train.micro_batch_tokens)``."""
    limit: int
    least: int = 1
    """The limit is not lowered below it: 0 for what can be done without."""
    initial: int = field(init=False)
    """The limit before it was lowered."""
    lowered: list[dict[str, Any]] = field(default_factory=list)
    """Lowerings that were not reported yet: `of`, `before`, `now` and `why`."""
    times: int = 0
    """How often it was lowered since the run's beginning."""

    def __post_init__(self) -> None:
        self.initial = self.limit

    def lower(self, size: int, why: str) -> None:
        """From now on, take half of `size`, at which memory ran out."""
        # By what failed, which may be far below the limit.
        before, self.limit = self.limit, max(self.least, min(self.limit, size) // 2)
        self.times += 1
        self.lowered.append({"of": self.of, "before": before, "now": self.limit, "why": why})
        warnings.warn(
            f"out of memory with {size:,} {self.of} at once; from now on {self.limit:,}: {why}", stacklevel=2
        )

    def lower_as(self, lowered: Iterable[Mapping[str, Any]]) -> None:
        """Lower the limit as earlier attempts of the run were made to, if they began with the same one."""
        for lowering in lowered:
            if (
                lowering["of"] == self.of
                and lowering.get("asked") == self.initial
                and lowering["now"] < self.limit
            ):
                self.limit, self.times = lowering["now"], self.times + 1

    def take_unreported(self) -> list[dict[str, Any]]:
        """What was lowered since the last call."""
        unreported, self.lowered = self.lowered, []
        return unreported

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {"asked": self.initial, "most": self.limit, "times": self.times}

    def restore(self, state: Mapping[str, int]) -> None:
        """The inverse of `state`. A state for another initial limit is ignored: the setting has changed."""
        if state and state["asked"] == self.initial:
            self.limit, self.times = state["most"], state["times"]


BYTES_PER_LOGIT = 16
"""Of a piece of logits while its gradient is computed: in the model's precision, in float32, its exponentials
and their gradient."""
LARGER_PIECES = 4
"""So many times as many logits go at once where the kernels of the head read them: these need the logits and
their gradient in 16 bits, and nothing else."""
LOGITS_SHARE = 16
"""Logits may take one in so many parts of a GPU's memory."""


def most_logits(memory: int | None, least: int) -> int:
    """Most logits (tokens × vocabulary) held at once on a GPU with so many bytes of memory; `least` on a CPU
    (None), where larger pieces are no faster. Depends on all memory, not on what is free now: how logits are
    cut decides how they are rounded, which must not differ between equal runs."""
    return least if memory is None else max(least, memory // (LOGITS_SHARE * BYTES_PER_LOGIT))


def gpu_memory(device: torch.device) -> int | None:
    """Bytes of a GPU's memory; None for a CPU."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def retry_smaller(attempt: Callable[[], T], smaller: Callable[[str], None]) -> T:
    """The result of `attempt`. Whenever it runs out of memory, `smaller` is called with the reason and then
    `attempt` again. `smaller` must make the next attempt smaller, or raise NoRoom."""
    while True:
        try:
            return attempt()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            why = summarize_error(error)
        # After the except block: the error's traceback holds the failed attempt's tensors until it ends.
        gc.collect()
        if torch.cuda.is_available():
            # Freed blocks stay in torch's cache in the sizes of the failed attempt.
            torch.cuda.empty_cache()
        smaller(why)


def portions(token_budget: TokenBudget, count: int, work: Callable[[range], None], single: str) -> None:
    """Give `work` the numbers below `count` in order, as many at once as the token budget allows. `single`
    describes one of them, for the message of NoRoom."""
    start = 0

    def attempt() -> int:
        # By the limit of now, which a failed attempt has lowered.
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
    """Whether an error means that memory ran out, the device's or the machine's."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def summarize_error(error: BaseException) -> str:
    """The error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Within, running out of memory where nothing can be split raises NoRoom with a remedy."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise NoRoom(
            f"out of memory ({summarize_error(error)}) where it does not matter how much is read at once: "
            "weights, gradients and the optimizer's state do not fit; set train.offload_optimizer = true, "
            f"take a smaller model or another train.optimizer, or {MORE}"
        ) from error


def halvings(token_budgets: Iterable[TokenBudget]) -> dict[str, float]:
    """The metric of a run whose token budgets were lowered; nothing for any other."""
    times = sum(token_budget.times for token_budget in token_budgets)
    return {"cost/memory_halvings": float(times)} if times else {}
