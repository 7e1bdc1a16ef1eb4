"""Rollouts as a rollouts file holds them, for people to read."""

from __future__ import annotations

import math
from typing import Any

from grpobench.runs.models.loading import Loaded
from grpobench.runs.sample.episodes import conversation
from grpobench.runs.sample.rollouts import Group


def transcript(group: Group, loaded: Loaded) -> dict[str, Any]:
    """One row of a rollouts file."""
    return {
        "problem": group.problem.id,
        "prompt": group.problem.prompt,
        "completions": [
            {
                "text": loaded.decode(rollout.completion),
                **conversation(loaded, rollout),
                "tokens": rollout.length,
                "stopped": rollout.stopped,
                "scores": dict(verdict.scores),
                "outcome": verdict.outcome,
                "reward": reward,
                "components": {
                    name: column[place]
                    for name, column in group.components.items()
                    if not math.isnan(column[place])
                },
            }
            for place, (rollout, verdict, reward) in enumerate(
                zip(group.rollouts, group.verdicts, group.reward, strict=True)
            )
        ],
    }
