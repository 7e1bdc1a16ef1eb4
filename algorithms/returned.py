"""Checks of what an algorithm returns, at the call that returns it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import torch

from grpobench.algorithms.algorithm import (
    Algorithm,
    Batch,
    Loss,
    ModelOutput,
    Models,
    Role,
    Signal,
    State,
)

S = TypeVar("S", bound=Signal)


FINITE: ContextVar[bool] = ContextVar("finite", default=False)


class ReturnError(RuntimeError):
    """A method or function returned something that its protocol does not allow. The message begins with file
    and line."""


@contextlib.contextmanager
def finite_values() -> Iterator[None]:
    """Within, every value of a tensor that an algorithm returns must be a finite number. In a run this is not
    checked at every step: it would wait for the GPU, and a policy may diverge by itself."""
    before = FINITE.set(True)
    try:
        yield
    finally:
        FINITE.reset(before)


def line_of(function: Callable[..., Any]) -> str:
    """``FILE:LINE`` of the definition of a function or class; empty if it is not written in Python."""
    plain = inspect.unwrap(function)
    if isinstance(plain, type):
        with contextlib.suppress(OSError, TypeError):
            file = inspect.getsourcefile(plain)
            return f"{Path(file).name}:{inspect.getsourcelines(plain)[1]}" if file else ""
    for candidate in (plain, type(plain).__call__):  # a callable object has its code in its class
        if code := getattr(candidate, "__code__", None):
            return f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    return ""


def refusal(algorithm: Algorithm[Any], method: str, returned: str, expected: str) -> ReturnError:
    """The error for a method that returned something wrong."""
    function = getattr(algorithm.inner, method)
    name = type(algorithm.inner).__name__
    owner = getattr(function, "__qualname__", "").rpartition(".")[0].rpartition(".")[2]
    inherited = f" (inherited from {owner})" if owner and owner != name else ""
    message = f"{name}.{method}{inherited} returned {returned}, expected {expected}"
    return ReturnError(f"{line_of(function)} {message}".lstrip())


def described(value: object) -> str:
    """A value for a message: shape and dtype of a tensor, otherwise the value and its type."""
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} of {value.dtype}"
    if inspect.iscoroutine(value):
        value.close()  # else Python warns later that nobody awaited it
        return "a coroutine (write `def`, not `async def`)"
    if inspect.isgenerator(value):
        return "a generator (write `return`, not `yield`)"
    return f"{value!r:.80} of type {type(value).__name__}"


def nonfinite(value: torch.Tensor) -> str:
    """How many values of a tensor are not finite, and the first of them; empty if all are finite."""
    wrong = ~value.isfinite()
    count = int(wrong.sum())
    if not count:
        return ""
    first = tuple(wrong.nonzero()[0].tolist())
    kind = value[first].item()
    return f"{kind} in {count} of {value.numel()} values, first at {list(first)}"


def demand(
    algorithm: Algorithm[Any],
    method: str,
    label: str,
    value: object,
    *shapes: tuple[int, ...],
    integers: bool = False,
    device: torch.device | None = None,
    finite: bool = True,
) -> torch.Tensor:
    """`value`, after a check that it is a tensor of one of these shapes with floating numbers, or integers if
    `integers`, on the `device`. Messages call it `label`. With `finite`, `finite_values` covers it.

    torch broadcasts a tensor of a wrong shape, so a loss of shape (1,) would silently train on something that
    its author did not write. Types, dtypes, devices and shapes are always checked, because none of them waits
    for a GPU."""
    expected = " or ".join(map(str, shapes))
    if not isinstance(value, torch.Tensor):
        raise refusal(algorithm, method, f"{label} {described(value)}", f"a tensor {expected}")
    if tuple(value.shape) not in shapes:
        raise refusal(algorithm, method, f"{label} {tuple(value.shape)}", expected)
    floating = value.is_floating_point()
    if integers and (floating or value.is_complex() or value.dtype == torch.bool):
        raise refusal(algorithm, method, f"{label} of {value.dtype}", "whole numbers, such as torch.long")
    if not integers and not floating:
        raise refusal(algorithm, method, f"{label} of {value.dtype}", "floating numbers; write .float()")
    if device is not None and value.device != device:
        raise refusal(algorithm, method, f"{label} on {value.device}", f"it on {device}, like the batch")
    if finite and floating and FINITE.get() and (nonfinite_text := nonfinite(value)):
        raise refusal(algorithm, method, f"{label} with {nonfinite_text}", "finite numbers")
    return value


def compute_signal(algorithm: Algorithm[S], batch: Batch, models: Models) -> S:
    """`algorithm.compute_signal`, after a check that every tensor has B rows."""
    signal = algorithm.compute_signal(batch, models)
    demand_signal(algorithm, batch, signal)
    return signal


def realign(algorithm: Algorithm[S], batch: Batch, signal: S, models: Models) -> S:
    """`algorithm.realign`, after a check that it is a signal for the same row groups."""
    aligned = algorithm.realign(batch, signal, models)
    demand_signal(algorithm, batch, aligned, "realign")
    if not torch.equal(aligned.row_group, signal.row_group):
        raise refusal(algorithm, "realign", "other row groups", "those of the signal that it got")
    return aligned


def demand_signal(
    algorithm: Algorithm[Any], batch: Batch, signal: object, method: str = "compute_signal"
) -> None:
    """Check the signal that a method returned for a batch."""
    rows, longest = batch.completion.shape
    device = batch.completion.device
    if not isinstance(signal, Signal):
        raise refusal(algorithm, method, described(signal), "a Signal, such as Advantage(row_group, ...)")
    if algorithm.has_advantages and not hasattr(signal, "advantage"):
        raise refusal(algorithm, method, f"a {type(signal).__name__} without advantage", "one with it")
    check = functools.partial(demand, algorithm, method, device=device)
    check("row_group", signal.row_group, (rows,), integers=True)
    signal_type: Any = type(signal)
    for name, kind in kinds(signal_type).items():
        value = getattr(signal, name)
        if kind == "Rowwise":
            check(name, value, (rows,))
        elif kind == "Tokenwise":
            # A tensor that an algorithm does not need, such as log π_ref, may have no columns.
            absent = () if name == "advantage" else ((rows, 0),)
            check(name, value, (rows, longest), *absent)
        elif kind == "Tensor" and not isinstance(value, torch.Tensor):
            raise refusal(algorithm, method, f"{name} {described(value)}", f"a tensor of {rows} rows")
        elif isinstance(value, torch.Tensor) and value.shape[:1] != (rows,):
            raise refusal(algorithm, method, f"{name} {tuple(value.shape)}", f"{rows} rows")


@functools.cache
def kinds(signal: type[Signal]) -> Mapping[str, str]:
    """Annotation (Tokenwise, Rowwise, Tensor) of every field of a signal except `row_group`."""
    types = {field.name: getattr(field.type, "__name__", field.type) for field in dataclasses.fields(signal)}
    return {name: str(kind).rpartition(".")[2] for name, kind in types.items() if name != "row_group"}


def observe(algorithm: Algorithm[S], batch: Batch, signal: S) -> Mapping[str, float]:
    """`algorithm.observe`, after a check that it is a mapping from metric names to numbers."""
    row = algorithm.observe(batch, signal)
    if not isinstance(row, Mapping):
        raise refusal(algorithm, "observe", described(row), "a number by the name of each metric")
    for name, value in row.items():
        if not isinstance(value, Real):
            raise refusal(algorithm, "observe", f"{name} = {described(value)}", "a number; write .item()")
    return row


def next_state(algorithm: Algorithm[Any], batch: Batch, models: Models) -> State:
    """`algorithm.next_state`. In a trial, after a check that a checkpoint gives back what it was given."""
    state = algorithm.next_state(batch, models)
    if not (state is None or isinstance(state, Mapping)):
        raise refusal(algorithm, "next_state", described(state), "a mapping from names, or None")
    if FINITE.get():
        try:
            restored = json.loads(json.dumps(state, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise refusal(
                algorithm, "next_state", described(state), f"what JSON can hold ({error})"
            ) from None
        if restored != state:
            expected = "lists instead of tuples, and mappings from texts: what JSON gives back"
            raise refusal(algorithm, "next_state", described(state), expected)
    return state


def loss(
    algorithm: Algorithm[S],
    batch: Batch,
    signal: S,
    now: Mapping[Role, ModelOutput],
    weights: torch.Tensor | None = None,
) -> Loss:
    """`algorithm.loss`, after a check that its terms have a gradient and the shape of `weights`, if given."""
    checked_loss = demand_loss(algorithm, "loss", batch, algorithm.loss(batch, signal, now))
    return (
        checked_loss
        if weights is None
        else weighable(algorithm, ("loss", "loss_weights"), checked_loss, weights)
    )


def weighable(
    algorithm: Algorithm[Any], methods: tuple[str, str], checked_loss: Loss, weights: torch.Tensor
) -> Loss:
    """A loss whose terms have a gradient and the shape of their weights, with the methods that gave both."""
    method, weighs = methods
    if checked_loss.terms.shape != weights.shape:
        expected = f"{tuple(weights.shape)}, the shape of the weights from {weighs}"
        raise refusal(algorithm, method, f"terms {tuple(checked_loss.terms.shape)}", expected)
    if not checked_loss.terms.requires_grad:
        raise refusal(algorithm, method, "terms without a gradient", "terms that depend on `now`")
    return checked_loss


def expert_loss(
    algorithm: Algorithm[Any], batch: Batch, now: Mapping[Role, ModelOutput], weights: torch.Tensor
) -> Loss:
    """`algorithm.expert_loss`, after the checks of `loss`."""
    checked_loss = demand_loss(algorithm, "expert_loss", batch, algorithm.expert_loss(batch, now))
    return weighable(algorithm, ("expert_loss", "expert_weights"), checked_loss, weights)


def expert_weights(algorithm: Algorithm[Any], batch: Batch) -> torch.Tensor:
    """`algorithm.expert_weights`, after a check that there is a weight for every token or every row."""
    weights, device = algorithm.expert_weights(batch), batch.completion.device
    return demand(algorithm, "expert_weights", "weights", weights, *both(batch), device=device)


def demand_loss(algorithm: Algorithm[Any], method: str, batch: Batch, returned_loss: object) -> Loss:
    """What `loss`, or a part of it, returned, after a check of its shapes."""
    shapes = both(batch)
    if not isinstance(returned_loss, Loss):
        raise refusal(algorithm, method, described(returned_loss), "Loss(terms, metrics)")
    device = batch.completion.device
    demand(algorithm, method, "terms", returned_loss.terms, *shapes, device=device)
    if not isinstance(returned_loss.metrics, Mapping):
        raise refusal(algorithm, method, f"metrics {described(returned_loss.metrics)}", "a tensor by name")
    for name, values in returned_loss.metrics.items():
        # NaN says that a metric is undefined there.
        demand(algorithm, method, f"the metric {name}", values, *shapes, device=device, finite=False)
    return returned_loss


def loss_weights(algorithm: Algorithm[Any], batch: Batch) -> torch.Tensor:
    """`algorithm.loss_weights`, after a check that there is a weight for every token or every row."""
    weights, device = algorithm.loss_weights(batch), batch.completion.device
    return demand(algorithm, "loss_weights", "weights", weights, *both(batch), device=device)


def unsound(algorithm: Algorithm[Any], batch: Batch, signal: Signal) -> str:
    """What an algorithm made of finite rewards and probabilities that is not finite, with its file and line,
    for an update that was left out; empty if nothing is, or if the cause came before."""
    if not all(bool(tensor.isfinite().all()) for tensor in (batch.reward, batch.old_logp)):
        return ""
    try:
        with finite_values():
            demand_signal(algorithm, batch, signal)
    except ReturnError as error:
        return str(error)
    return ""


def both(batch: Batch) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes (B, T) and (B,)."""
    rows, longest = batch.completion.shape
    return (rows, longest), (rows,)
