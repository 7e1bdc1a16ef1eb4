"""The key-value cache of a batch, in buffers that are allocated once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer


def buffers(config: Any, columns: int, dtype: torch.dtype | None) -> Any:
    """A Hugging Face cache whose layers write into buffers of `columns` allocated once, in `dtype` (None: in
    that of the states), and show attention only the columns written so far."""
    return Cache(layers=[Buffer(columns, dtype) for _ in range(config.num_hidden_layers)])


# Asked at every token, and a signature takes long to read.
@functools.cache
def cache_argument(forward: Callable[..., Any]) -> str:
    """What a model's class calls its cache. transformers 5.24 renamed it; 5.40 forgets the earlier name."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


class Buffer(DynamicLayer):
    """Keys and values (R, heads, written, size) as views of a larger buffer of `columns`."""

    def __init__(self, columns: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.columns, self.stored = columns, dtype

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = self.stored or key_states.dtype, key_states.device
        self._allocate(key_states, value_states, len(key_states), self.columns)
        self.is_initialized = True

    def _allocate(self, keys: torch.Tensor, values: torch.Tensor, rows: int, columns: int) -> None:
        """Allocate buffers for so many rows and columns, with the heads and sizes of these states."""
        self.store = tuple(
            # Unwritten columns are never shown, so that they need no value.
            states.new_empty((rows, states.shape[1], columns, states.shape[3]), dtype=self.dtype)
            for states in (keys, values)
        )
        self._show(0)

    def _show(self, written: int) -> None:
        self.written = written
        self.keys, self.values = (store[:, :, :written] for store in self.store)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.written + key_states.shape[2]
        for store, states in zip(self.store, (key_states, value_states), strict=True):
            store[:, :, self.written : end] = states
        self._show(end)
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def begin(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Start after these known columns (R, heads, known, size)."""
        self.lazy_initialization(keys, values)
        self.update(keys, values)

    def join(self, others: Sequence[Buffer]) -> None:
        """Append the rows of others, of as many columns."""
        self.store = tuple(
            torch.cat(stores) for stores in zip(self.store, *(o.store for o in others), strict=True)
        )
        # The views still show the old buffers.
        self._show(self.written)

    def keep_prompt(self, rows: int, columns: int) -> None:
        """Make the columns so far the prompts' part. From now on each of `rows` sequences has its columns."""
        assert self.keys is not None and self.values is not None
        self.prompt_keys: torch.Tensor = self.keys
        self.prompt_values: torch.Tensor = self.values
        # The prompts' views keep their buffer; what is written from now on gets another one.
        self._allocate(self.keys, self.values, rows, columns)

    def select_prompts(self, prompts: torch.Tensor) -> None:
        self.prompt_keys = self.prompt_keys.index_select(0, prompts)
        self.prompt_values = self.prompt_values.index_select(0, prompts)

    def select(self, rows: torch.Tensor) -> None:
        """Keep or repeat sequences; only written columns are copied."""
        moved = []
        for store in self.store:
            # A copy first: a row may be written over one that is still to be read.
            selected = store[:, :, : self.written].index_select(0, rows)
            if len(rows) <= store.shape[0]:
                # In the same memory: dropping sequences needs no second buffer.
                store = store[: len(rows)]
            else:
                store = store.new_empty((len(rows), *store.shape[1:]))
            store[:, :, : self.written] = selected
            moved.append(store)
        self.store = tuple(moved)
        self._show(self.written)
