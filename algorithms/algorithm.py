"""The protocol that every algorithm follows, and the types it speaks in.

An algorithm is a frozen dataclass whose fields are its hyperparameters. The harness never asks which
algorithm it runs: it calls `compute_signal` once per rollout batch, then for every minibatch
`loss_weights` once and
`loss` once per micro-batch, and adds up ``(loss.terms * weights).sum()``.

Shapes: B rows (one per rollout), P longest prompt, T longest completion. Completions are padded on the
right; position t of every ``(B, T)`` tensor speaks of completion token t.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

import torch

from grpobench.algorithms.curriculum import Curriculum, Study

Tokenwise: TypeAlias = "torch.Tensor"
"""Float (B, T)."""
Rowwise: TypeAlias = "torch.Tensor"
"""Float (B,)."""

Role = Literal["policy", "critic", "value_head", "reference"]
"""What a model is for. `critic` is a separate copy of the initial policy with a value head; `value_head`
is a value head on the policy's own trunk; `reference` is the frozen initial policy."""

Reduction = Literal["mean", "min", "max", "sum"]


@dataclass(frozen=True)
class Metric:
    """One logged number, declared once.

    `better` says which direction is an improvement; `reduce` how unreduced values become the number.
    """

    name: str
    unit: str
    definition: str
    better: Literal["higher", "lower", "neither"] = "neither"
    reduce: Reduction = "mean"


class Rows:
    """A frozen dataclass whose tensors share dimension 0; ``self[rows]`` slices every one of them."""

    def __getitem__(self, rows: torch.Tensor) -> Self:
        def cut(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return value[rows]
            if isinstance(value, Rows):
                return value[rows]
            if isinstance(value, Mapping):
                return {key: cut(entry) for key, entry in value.items()}
            return value

        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return type(self)(**{f.name: cut(getattr(self, f.name)) for f in fields})


@dataclass(frozen=True)
class Mixture(Rows):
    """What a mixing sampler fed in place of a plain token embedding: Σ_c weight·E[token].

    `token` is long (B, T, k), `weight` float (B, T, k); a row of zeros means the plain token was fed.
    """

    token: torch.Tensor
    weight: torch.Tensor


@dataclass(frozen=True)
class Batch(Rows):
    """The rollouts of one step, padded. Rows whose grading failed for infrastructure reasons are absent."""

    prompt: torch.Tensor
    """Long (B, P), padded on the right."""
    prompt_length: torch.Tensor
    """Long (B,)."""
    completion: torch.Tensor
    """Long (B, T), padded on the right; includes the end token when the policy wrote one."""
    length: torch.Tensor
    """Long (B,): completion tokens, 0 for an empty completion."""
    completion_mask: torch.Tensor
    """Bool (B, T): tokens that the policy wrote (not padding, not tool output). The loss mask."""
    sampler_logp: Tokenwise
    """The sampler's own log-probabilities of the tempered distribution."""
    old_logp: Tokenwise
    """log π_old: the trained policy's log-probabilities when the rollouts were drawn."""
    group: torch.Tensor
    """Long (B,): rows of one problem share a number."""
    stopped: torch.Tensor
    """Bool (B,): the policy ended the completion itself; False where the length limit cut it."""
    reward: Rowwise
    """What the recipe rewards: a weighted sum of scores, or a placebo."""
    scores: Mapping[str, Rowwise]
    """Every score that the task gave and every part of the reward; NaN where a part does not apply."""
    max_completion_tokens: int = field(kw_only=True)
    """Longest completion the sampler allows, L_max in tokens."""
    step: int = field(kw_only=True)
    """Update counter of the run, from 1."""
    weights: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """What the reward is a weighted sum of: a weight per entry of `scores`."""
    mixture: Mixture | None = field(default=None, kw_only=True)
    greedy_reward: Rowwise | None = field(default=None, kw_only=True)
    """Reward of the greedy answer to the row's problem, (B,), NaN where it could not be graded. Only for an
    algorithm with `greedy_baseline`."""
    answer: torch.Tensor | None = field(default=None, kw_only=True)
    """Long (B,): the token with which the part of a completion that states the final answer begins (its
    marker, such as ``####``); `length` where there is none. Only for an algorithm with `locates_answers`."""
    breaks: torch.Tensor | None = field(default=None, kw_only=True)
    """Bool (B, T): tokens with which a line, a sentence or a turn of thought begins. Only for an algorithm
    with `locates_answers`."""

    def __len__(self) -> int:
        return self.completion.shape[0]


@dataclass(frozen=True)
class Signal(Rows):
    """What an algorithm knows after `compute_signal`. Subclasses add tensors of B rows."""

    row_group: torch.Tensor
    """Long (B,): rows with the same number are never split over micro-batches (a DPO pair); −1 leaves a
    row out of training. Rows of one unit must share a group."""


@dataclass(frozen=True)
class Advantage(Signal):
    """The signal of every policy-gradient method: one advantage per token."""

    advantage: Tokenwise
    ref_logp: Tokenwise
    """log π_ref, shape (B, 0) when the algorithm does not read a reference."""


@dataclass(frozen=True)
class ModelOutput(Rows):
    """What a model says about a batch now. A tensor that a role does not have has shape (B, 0)."""

    logp: Tokenwise
    """log-probability of each completion token under the tempered distribution."""
    entropy: Tokenwise
    """Entropy in nats of the tempered next-token distribution at each position."""
    value: Tokenwise
    """Value of the state before token t is written."""
    squares: Tokenwise | None = field(default=None, kw_only=True)
    """Σ_v π_v² of the tempered next-token distribution at each position; only where it was asked for."""


@dataclass(frozen=True)
class Loss:
    """Unreduced terms, (B, T) or (B,), to be multiplied by the weights of `loss_weights`; and unreduced
    metrics.

    A metric is (B, T) (averaged over written tokens) or (B,) (averaged over rows), and is declared in
    `Algorithm.metrics`.
    """

    terms: torch.Tensor
    metrics: Mapping[str, torch.Tensor]


class Models(Protocol):
    """The models of a run, as `compute_signal` sees them: readings without gradient, with `squares` on
    demand."""

    def forward(self, role: Role, batch: Batch, *, squares: bool = False) -> ModelOutput: ...


S = TypeVar("S", bound=Signal)


@dataclass(frozen=True)
class Algorithm(ABC, Generic[S]):
    """One training algorithm; its fields are its hyperparameters, validated in `__post_init__`."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    """Title and arXiv number."""
    summary: ClassVar[str] = ""
    """One line for `grpobench list algorithms`."""
    formula: ClassVar[str] = ""
    """The objective in plain text for `grpobench show algorithm`."""
    departures: ClassVar[str] = ""
    """What differs from the paper, and every default that is not the paper's."""
    evidence: ClassVar[str] = ""
    """What the formula was checked against; a reconstruction says that it is one, and of what."""
    cost: ClassVar[str] = ""
    """Computation beyond one forward and one backward pass of the policy over the rollouts."""
    modifiers: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the recipe's section `modify` that belong to the algorithm, by field of `Modifiers`."""
    has_advantages: ClassVar[bool] = False
    """Whether the signal has an `advantage` (B, T), and a token whose advantage is 0 is neither reinforced
    nor discouraged."""
    off_policy: ClassVar[bool] = False
    """Whether rollouts of another policy (a replay of base rollouts, a preference data set) may be used."""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """The metrics that `loss` and `observe` return."""

    @property
    def inner(self) -> Algorithm[Any]:
        """The algorithm that messages name: what stands inside, where this one stands around another."""
        return self

    @property
    def differentiates_entropy(self) -> bool:
        """Whether `loss` needs the gradient of `Reading.entropy`; else the entropy is a plain number."""
        return False

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        """Roles with an optimizer of their own."""
        return ("policy",)

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        """Further roles that `compute_signal` reads."""
        return ()

    @property
    def minimum_group(self) -> int:
        """Fewest rollouts per problem that can give any signal."""
        return 1

    @property
    def greedy_baseline(self) -> bool:
        """Whether `compute_signal` needs `Batch.greedy_reward`: one more completion of each problem, decoded
        greedily."""
        return False

    @property
    def locates_answers(self) -> bool:
        """Whether `compute_signal` needs `Batch.answer` and `Batch.breaks`, which tasks with an
        `answer_marker`
        have."""
        return False

    @property
    def scores(self) -> frozenset[str]:
        """Task scores that the algorithm needs by name, beyond the reward."""
        return frozenset()

    def updated_roles(self, step: int) -> tuple[Role, ...]:
        """Roles that are updated at this step (from 1); a critic's warm-up leaves the policy out."""
        return self.trained_roles

    def synchronize(self, step: int) -> float:
        """How far the reference moves toward the policy after this step: 0 leaves it, 1 makes it a copy."""
        return 0.0

    @abstractmethod
    def compute_signal(self, batch: Batch, models: Models) -> S:
        """Turn rewards into a training signal. Called once per step, without gradient."""

    def observe(self, batch: Batch, signal: S) -> dict[str, float]:
        """Metrics of the whole batch after `compute_signal`; NaN where one is undefined."""
        return {}

    @abstractmethod
    def loss(self, batch: Batch, signal: S, now: Mapping[Role, ModelOutput]) -> Loss:
        """Unreduced loss terms of a micro-batch; pure. `now` holds a reading per updated role."""

    @abstractmethod
    def loss_weights(self, batch: Batch) -> torch.Tensor:
        """The paper's averaging as explicit weights over a whole minibatch: floating, of the terms' shape."""

    @property
    def studies(self) -> bool:
        """Whether `curriculum` needs a `Study` of the training problems."""
        return False

    def curriculum(
        self,
        traits: Sequence[Mapping[str, str | float]],
        prompts: int,
        seed: int,
        study: Study | None = None,
    ) -> Curriculum:
        """Which problems each step draws, given the traits of all training problems (and what the base model
        makes of them, for an algorithm with `studies`); by default uniform without replacement."""
        from grpobench.algorithms.curriculum import Shuffled

        return Shuffled(len(traits), prompts, seed)

    def mixer(self, embeddings: torch.Tensor | None = None) -> Mixer | None:
        """How the sampler mixes embeddings while decoding, given the policy's input embeddings (V, H); by
        default it does not. Asked once per rollout batch, so that it may prepare what depends on the weights.
        With None the answer only says whether it mixes at all."""
        return None


Mixer: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Mixture]"
"""(anchor tokens (N,), tempered logits (N, V), uniforms (N,)) -> Mixture of shape (N, k)."""
