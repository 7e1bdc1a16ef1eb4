"""ADS: GRPO with a schedule that chooses problems by cluster and difficulty."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from grpobench.algorithms.curriculum import Study, weighted_order
from grpobench.algorithms.policy_gradient import ClippedRatio, GroupNormalized


@dataclass(frozen=True)
class ADS(GroupNormalized, ClippedRatio):
    """Adaptive data scheduling (arXiv:2606.22305) around GRPO.

    ``modify.schedule = "ads"``, whose settings begin with `ads_`, adds the schedule to any other
    algorithm; ``"uniform"`` removes it from this one, which then is GRPO.

    Degenerate cases: with fewer problems than clusters each problem is a cluster; with fewer problems
    than prompts a step has all of them.
    """

    name = "ads"
    paper = (
        "Learning at the Right Pace: Adaptive Data Scheduling Improves LLM Reinforcement Learning, "
        "arXiv:2606.22305"
    )
    summary = "GRPO on problems chosen by cluster and difficulty, near a success rate of one half"
    claim = (
        "Problems chosen by cluster and near the policy's limit raise mean accuracy by 5.2 % over GRPO, "
        "over three models and seven benchmarks (abstract)."
    )
    formula = (
        "clusters: K-means of what the base policy makes of each problem;  p_k ← (1 − α) p_k + α r_k / Σ r, "
        "r_k the cluster's last success rate;  each step some clusters by p, and of each the problems it "
        "holds: one of success rate s stays if |s − ½| ≤ band, else its place goes to the next easier (s "
        "low) or harder (s high) of the cluster;  loss as GRPO's"
    )
    departures = (
        "From the paper and its code: clusters and difficulty, both rules, α, band, r_init, four clusters a "
        "step and the return to the beginning after each pass over the data. Ours: s is the mean reward "
        "clamped to [0, 1], a success rate only where rewards are 0 or 1; a step's prompts are dealt to the "
        "clusters as evenly as possible (the code: 32 each), and further clusters are drawn if these are "
        "too small; a place that moves passes those that stay (in the code it may get stuck behind them); "
        "the K-means is scipy's with one start. The code's GRPO has a KL of 0.001 in the reward; here there "
        "is none."
    )
    evidence = "verified: the published description and code of the schedule, rule by rule"
    cost = "before training, one forward pass over all training problems with their solutions, kept on disk"
    modifiers: ClassVar[Mapping[str, Any]] = {"schedule": "ads"}


class AdaptiveSchedule:
    """Chooses a step's problems by cluster and difficulty, and learns from their rewards.

    A cluster's problems are sorted by difficulty, easiest first. It holds some positions of that list, at
    first the easiest, and offers the problems there. State is plain JSON. It changes only in `accept`,
    and when an epoch's first draw returns it to the beginning.
    """

    def __init__(
        self,
        study: Study,
        prompts: int,
        seed: int,
        *,
        clusters: int = 64,
        components: int = 128,
        at_once: int = 4,
        smoothing: float = 0.3,
        initial: float = 0.5,
        band: float = 0.17,
        epochs: bool = True,
    ) -> None:
        self.sorted = cluster_problems(study, clusters, components, seed)
        self.prompts, self.seed = prompts, seed
        self.at_once = min(at_once, len(self.sorted))
        self.smoothing, self.initial, self.band = smoothing, initial, band
        self.epoch = max(1, len(study.nll) // prompts) if epochs else 0
        self.drawn: set[int] = set()
        self._begin()

    def _begin(self) -> None:
        count = len(self.sorted)
        share = -(-self.prompts // self.at_once)
        self.probability = [1 / count] * count
        self.rate = [self.initial] * count
        self.positions = [list(range(min(share, len(problems)))) for problems in self.sorted]
        self._index()

    def _index(self) -> None:
        self.location = {
            problem: (cluster, position)
            for cluster, problems in enumerate(self.sorted)
            for position, problem in enumerate(problems)
        }

    @property
    def attempts(self) -> int:
        return 1

    def draw(self, step: int, attempt: int) -> list[int]:
        """Problems from clusters drawn by their probabilities. A refill repeats none of the step's
        problems. Fewer than `prompts` only if there are no more."""
        if not attempt:
            self.drawn = set()
            if self.epoch and step > 1 and (step - 1) % self.epoch == 0:
                self._begin()
        order = weighted_order(self.probability, f"{self.seed}/clusters/{step}/{attempt}")
        offers = [self._offer(cluster) for cluster in order]
        even, more = divmod(self.prompts, self.at_once)
        chosen: list[int] = []
        for number, offer in enumerate(offers[: self.at_once]):
            chosen += offer[: even + (number < more)]
        # If those are too small: what they and further clusters hold, then problems that no cluster holds.
        fallback_problems = [problem for offer in offers for problem in offer]
        fallback_problems += [problem for cluster in order for problem in self.sorted[cluster]]
        for problem in fallback_problems:
            if len(chosen) >= self.prompts:
                break
            if problem not in self.drawn and problem not in chosen:
                chosen.append(problem)
        self.drawn |= set(chosen)
        return chosen

    def _offer(self, cluster: int) -> list[int]:
        problems = [self.sorted[cluster][position] for position in self.positions[cluster]]
        return [problem for problem in problems if problem not in self.drawn]

    def accept(self, step: int, index: Sequence[int], reward: Sequence[Sequence[float]]) -> list[bool]:
        """Trains on everything; success rates move the positions of clusters and their probabilities."""
        rates: dict[int, list[float]] = {}
        moves: dict[int, dict[int, int]] = {}
        for problem, rewards in zip(index, reward, strict=True):
            if not rewards:  # nothing of it could be graded
                continue
            cluster, position = self.location[problem]
            rate = success_rate(rewards)
            rates.setdefault(cluster, []).append(rate)
            moves.setdefault(cluster, {})[position] = move_direction(rate, self.band)
        for cluster, measured in rates.items():
            self.rate[cluster] = sum(measured) / len(measured)
            self.positions[cluster] = move_positions(
                self.positions[cluster], moves[cluster], len(self.sorted[cluster])
            )
        if rates:
            total, count = sum(self.rate), len(self.rate)
            target = [rate / total if total else 1 / count for rate in self.rate]
            self.probability = [
                (1 - self.smoothing) * p + self.smoothing * success_share
                for p, success_share in zip(self.probability, target, strict=True)
            ]
        return [True] * len(index)

    def state(self) -> Any:
        return {
            "sorted": self.sorted,
            "probability": self.probability,
            "rate": self.rate,
            "held": self.positions,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.sorted = [list(problems) for problems in state["sorted"]]
        self.probability, self.rate = list(state["probability"]), list(state["rate"])
        self.positions = [list(positions) for positions in state["held"]]
        self.at_once = min(self.at_once, len(self.sorted))
        self._index()


def success_rate(rewards: Sequence[float]) -> float:
    """Success rate of a group: its mean reward, each clamped to [0, 1]."""
    return sum(min(1.0, max(0.0, reward)) for reward in rewards) / len(rewards)


def move_direction(rate: float, band: float) -> int:
    """Where the position of a problem with this success rate moves: −1 to an easier problem, 1 to a harder
    one, 0 nowhere."""
    # 1e-9: the ends of the band, such as 2 of 6 and 4 of 6 at 0.17, belong to it despite rounding
    if abs(rate - 0.5) <= band + 1e-9:
        return 0
    return -1 if rate < 0.5 else 1


def move_positions(positions: Sequence[int], moves: Mapping[int, int], size: int) -> list[int]:
    """The positions in a list of `size` that are held after `moves` by position, as many as before and all
    different. A position moves to the next free one in its direction, past those that stay; if there is none
    it stays, or goes back as far as it must."""
    taken = {position for position in positions if not moves.get(position)}
    for way in (-1, 1):
        moving_positions = sorted(
            (position for position in positions if moves.get(position) == way),
            key=lambda position: way * -position,
        )
        for position in moving_positions:
            ahead = range(position + way, size if way > 0 else -1, way)
            behind = range(position, -1 if way > 0 else size, -way)
            taken.add(next(free for free in (*ahead, *behind) if free not in taken))
    return sorted(taken)


def cluster_problems(study: Study, clusters: int, components: int, seed: int) -> list[list[int]]:
    """Problems of each cluster, easiest first: K-means on the embeddings, normalized and reduced to their
    principal components. There are at most `clusters` and at most as many as different problems."""
    from scipy.cluster.vq import kmeans2

    points = reduce_dimensions(study.embedding.double().numpy(), components)
    count = min(clusters, len(np.unique(points.round(6), axis=0)))
    rng = np.random.default_rng(seed)
    label = np.zeros(len(points), dtype=int)
    if count > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a cluster may end without points and is then left out
            label = kmeans2(points, count, iter=100, minit="++", missing="warn", rng=rng)[1]
    difficulty = study.nll.double().tolist()
    members: dict[int, list[int]] = {}
    for problem in sorted(range(len(points)), key=lambda i: (difficulty[i], i)):
        members.setdefault(int(label[problem]), []).append(problem)
    return [members[number] for number in sorted(members)]


def reduce_dimensions(embedding: np.ndarray, components: int) -> np.ndarray:
    """Rows scaled to length 1, centered, and projected on at most `components` principal components."""
    length = np.linalg.norm(embedding, axis=-1, keepdims=True)
    unit = embedding / np.maximum(length, 1e-12)
    centered = unit - unit.mean(0)
    _, axes = np.linalg.eigh(centered.T @ centered)
    turned: np.ndarray = centered @ axes[:, ::-1][:, :components]
    return turned
