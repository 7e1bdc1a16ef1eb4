"""Derived randomness: every draw has a seed of its own, so no generator is passed along."""

from __future__ import annotations

import hashlib


def derive(run_seed: int, stream: str, *parts: int | str) -> int:
    """A 63-bit seed for one draw, for example ``derive(seed, "sample", step, problem_id, sample_index)``.

    Different parts give unrelated seeds; the same parts give the same seed on every machine.
    """
    text = "\x1f".join([str(run_seed), stream, *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()) >> 1
