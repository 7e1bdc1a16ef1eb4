"""Batches of episodes whose turns and replies are given token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from grpobench.algorithms.algorithm import Batch
from helpers.toys import rollouts

Episode = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Turns, each with the reply to it; the last reply is empty."""


def played(groups: Sequence[Sequence[Episode]], rewards: Sequence[Sequence[float]]) -> Batch:
    """A batch of these episodes; one list of episodes and one of rewards per group."""
    tokens = [
        [[token for turn, reply in episode for token in (*turn, *reply)] for episode in group]
        for group in groups
    ]
    flat = [episode for group in groups for episode in group]
    gaps = {}
    for row, episode in enumerate(flat):
        written = [by for turn, reply in episode for by in [True] * len(turn) + [False] * len(reply)]
        gaps[row] = [position for position, by in enumerate(written) if not by]
    batch = rollouts(
        [[len(episode_tokens) for episode_tokens in group] for group in tokens], rewards, gaps=gaps
    )
    completion = torch.zeros_like(batch.completion)
    for row, episode_tokens in enumerate([episode_tokens for group in tokens for episode_tokens in group]):
        completion[row, : len(episode_tokens)] = torch.tensor(episode_tokens)
    return dataclasses.replace(batch, completion=completion)


def spans(batch: Batch) -> list[list[list[int]]]:
    """The positions of each turn's tokens, episode by episode, by a loop."""
    rows = []
    for mask in batch.completion_mask.tolist():
        row: list[list[int]] = []
        for position, is_written in enumerate(mask):
            if is_written:
                if not position or not mask[position - 1]:
                    row.append([])
                row[-1].append(position)
        rows.append(row)
    return rows
