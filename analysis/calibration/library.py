"""The labelled library: which runs are healthy, which are broken, and which events each kind must show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from grpobench.analysis.logs.matrix import Matrix, Run

Label: TypeAlias = Literal["must", "may", "never"]
Half: TypeAlias = Literal["set", "scored"]


@dataclass(frozen=True)
class Case:
    """One kind of run, an arm of the library's recipe, with the labels that were given to it beforehand."""

    arm: str
    what: str
    """The fault in a sentence."""
    healthy: bool = False
    since: int = 1
    """The first update that the fault acts on."""
    must: tuple[str, ...] = ()
    """Kinds of events that it has to show."""
    may: tuple[str, ...] = ()
    """Kinds that it may show: neither right nor wrong. Every other kind is a false alarm."""

    def label(self, kind: str) -> Label:
        """What a kind of event is in such a run."""
        if kind in self.must:
            return "must"
        return "may" if kind in self.may else "never"


@dataclass(frozen=True)
class Library:
    """Cases, the seeds that thresholds are set on (all others score them), and the values tried for each."""

    cases: Sequence[Case]
    pool: str
    """The healthy arm with most seeds, of which A/A pairs are drawn."""
    set_on: Literal["even", "odd"] = "even"
    """Which seeds set thresholds; the others score them."""
    tried: Mapping[str, Mapping[str, tuple[float, ...]]] = field(default_factory=dict)
    """Kind -> threshold -> its values that are tried."""

    def case(self, arm: str) -> Case:
        """The case of an arm; raises KeyError for an arm without one."""
        return next(case for case in self.cases if case.arm == arm) if self.known(arm) else _unknown(arm)

    def known(self, arm: str) -> bool:
        """Whether an arm has labels."""
        return any(case.arm == arm for case in self.cases)

    def half(self, seed: int) -> Half:
        """Which half a seed belongs to."""
        return "set" if (seed % 2 == 0) == (self.set_on == "even") else "scored"

    def of_half(self, matrix: Matrix, half: Half) -> list[Run]:
        """The runs of a half that have a result."""
        return [
            run for run in matrix.runs if run.settled and self.known(run.arm) and self.half(run.seed) == half
        ]


def _unknown(arm: str) -> Case:
    raise KeyError(f"{arm}: no case of the library")
