"""The settings of the checks of a run's first steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reaction = Literal["stop", "warn", "off"]


@dataclass(frozen=True)
class ChecksConfig:
    """Checks of the first steps, which stop a run that cannot learn before it takes hours."""

    start: Reaction = "stop"
    """Reaction to a run whose rollouts have given no gradient since its first step, because every one was cut
    by the limit of tokens or turns, was not graded, or was wrong with the same reward: `stop` ends the run
    with exit 2 and the likely cause, `warn` notes the cause in log.txt and provenance.json."""
    grader: Reaction = "stop"
    """Reaction to a verifier that, on three problems before the first step, rejects all reference answers or
    accepts a wrong answer to each problem."""
