"""Which evaluation of a task the report's accuracies come from, and that evaluation in words."""

from __future__ import annotations

from dataclasses import dataclass

from grpobench.analysis.logs.matrix import Matrix


@dataclass(frozen=True)
class Headline:
    """Which evaluation the report's accuracies of one task come from."""

    split: str
    mode: str

    @property
    def metric(self) -> str:
        """Under which name it is logged."""
        return f"eval/{self.split}/{self.mode}/correct"


def headline_of(matrix: Matrix, task: str, mode: str | None = None) -> Headline:
    """Test before validation, greedy before sampled before likelihood: the first that any run of the task
    logged."""
    logged = matrix.logged.get(task, frozenset())
    modes = (mode,) if mode else ("greedy", "sampled", "likelihood")
    for split in ("test", "validation"):
        for candidate in modes:
            if Headline(split, candidate).metric in logged:
                return Headline(split, candidate)
    return Headline("test", modes[0])


def decoding(matrix: Matrix, mode: str) -> str:
    """A mode in words, with the temperature where the mode has one: the runs', or each arm's own. Runs whose
    settings tell none of evaluation were evaluated at the sampler's."""
    if mode != "sampled":
        return f"{mode} decoding" if mode == "greedy" else mode
    found: dict[str, list[str]] = {}
    for run in matrix.runs:
        told = {**run.config.get("sampler", {}), **run.config.get("evaluate", {})}
        if isinstance(value := told.get("temperature"), int | float):
            found.setdefault(f"{value:g}", []).append(run.arm)
    if len(found) < 2:
        return " ".join(["sampled decoding", *(f"at temperature {value}" for value in found)])
    each = "; ".join(f"{value}: {', '.join(dict.fromkeys(arms))}" for value, arms in found.items())
    return f"sampled decoding at different temperatures ({each})"
