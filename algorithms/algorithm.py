"""The protocol of algorithms and the types of what the harness gives them."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeAlias, TypeVar

import torch

from grpobench.algorithms.curriculum import Curriculum, Study
from grpobench.analysis.tools import metrics

Metric = metrics.Metric
Tokenwise: TypeAlias = "torch.Tensor"
"""Float (B, T)."""
Rowwise: TypeAlias = "torch.Tensor"
"""Float (B,)."""
State: TypeAlias = "Mapping[str, Any] | None"
"""What an algorithm carries from step to step, by name, as JSON holds it: None, numbers, texts, lists and
mappings from texts. A wrapper adds names of its own beside those of the algorithm in it."""

Role = Literal["policy", "critic", "value_head", "reference", "teacher"]
"""What a model is for. `critic` is a separate copy of the initial policy with a value head; `value_head`
is a value head on the policy's own trunk; `reference` is the frozen initial policy; `teacher` is a frozen
model of its own with the policy's tokenizer (`model.teacher`)."""

WHOLE: Mapping[str, bool] = {"whole": True}
"""Metadata of a field that belongs to all rows together, so that slicing leaves it as it is."""


class Rows:
    """A frozen dataclass whose tensors share dimension 0; ``self[rows]`` slices every one of them."""

    def __getitem__(self, rows: torch.Tensor) -> Self:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        parts = {f.name: _cut(getattr(self, f.name), rows) for f in fields if "whole" not in f.metadata}
        return dataclasses.replace(self, **parts)  # type: ignore[type-var]


def _cut(value: Any, rows: torch.Tensor) -> Any:
    """The rows of every tensor in `value`. Not a function within the method: one that calls itself there is a
    cycle, which keeps its tensors until the garbage is collected."""
    if isinstance(value, torch.Tensor | Rows):
        return value[rows]
    if isinstance(value, Mapping):
        return {key: _cut(member, rows) for key, member in value.items()}
    return value


@dataclass(frozen=True)
class TeacherPrompt:
    """What a teacher reads in place of a problem's prompt. The harness makes it of the task's problem."""

    template: str
    """Its text, in which ``{prompt}`` stands for the problem's prompt and ``{demonstration}`` for what it is
    shown besides."""
    shows: Literal["nothing", "reference", "success"] = "nothing"
    """What ``{demonstration}`` is: the task's reference answer, or the first completion of the same group
    whose reward reaches `threshold`, never the row's own. A row without such a completion has no teacher's
    prompt."""
    threshold: float = 1.0
    """Least reward of a success."""
    cut: str = ""
    """A regular expression of what is cut from a success before it is shown."""


@dataclass(frozen=True)
class WeightNoise:
    """Normal noise in the policy's weights while it writes rollouts, drawn for each step and each place among
    a problem's completions: completion i of every problem comes from the weights θ + scale·ε_i."""

    scale: float
    """σ: standard deviation of what is added to each trained weight."""
    mirrored: bool = False
    """Whether each odd place has the noise of the place before it, times −1."""


@dataclass(frozen=True)
class Mixture(Rows):
    """What a mixing sampler fed instead of a plain token embedding: Σ_c weight·E[token].

    `token` is long (B, T, k), `weight` float (B, T, k); a row of zeros means the plain token was fed.
    """

    token: torch.Tensor
    weight: torch.Tensor


@dataclass(frozen=True)
class RoutedExperts(Rows):
    """The experts that a mixture of experts sent each token to when it was fed; −1 where nobody knows, such
    as for padding and for the last token, which is never fed.

    `prompt` is int16 (B, P, routers, k), `completion` int16 (B, T, routers, k).
    """

    prompt: torch.Tensor
    completion: torch.Tensor


@dataclass(frozen=True)
class Batch(Rows):
    """The rollouts of one step, padded, without rows whose grading failed for infrastructure reasons.

    Shapes: B rows (one per rollout), P longest prompt, T longest completion. Completions are padded on the
    right; position t of every ``(B, T)`` tensor belongs to completion token t."""

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
    """The sampler's log-probabilities under the tempered distribution."""
    old_logp: Tokenwise
    """log π_old: the trained policy's log-probabilities when the rollouts were drawn."""
    group: torch.Tensor
    """Long (B,): rows of one problem share a number."""
    stopped: torch.Tensor
    """Bool (B,): the policy ended the completion itself; False where the length limit cut it."""
    reward: Rowwise
    """The recipe's reward: a weighted sum of scores, or a placebo."""
    scores: Mapping[str, Rowwise]
    """Every score of the task and every part of the reward; NaN where a part does not apply."""
    max_completion_tokens: int = field(kw_only=True)
    """Longest completion the sampler allows, L_max in tokens."""
    step: int = field(kw_only=True)
    """Update counter of the run, from 1."""
    weights: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """Weight of each entry of `scores` in the reward."""
    mixture: Mixture | None = field(default=None, kw_only=True)
    routed_experts: RoutedExperts | None = field(default=None, kw_only=True)
    """Experts that every pass of the policy over this batch uses; None: those that its routers choose."""
    greedy_reward: Rowwise | None = field(default=None, kw_only=True)
    """Reward of the greedy answer to the row's problem, (B,); NaN if it could not be graded. Only for
    algorithms with `greedy_baseline`."""
    answer: torch.Tensor | None = field(default=None, kw_only=True)
    """Long (B,): first token of the part that states the final answer (its marker, such as ``####``);
    `length` if there is none. Only for algorithms with `locates_answers`."""
    breaks: torch.Tensor | None = field(default=None, kw_only=True)
    """Bool (B, T): first tokens of lines, sentences and turns of thought. Only for algorithms with
    `locates_answers`."""
    teacher_prompt: torch.Tensor | None = field(default=None, kw_only=True)
    """Long (B, P'), padded on the right: what the teacher reads in place of the prompt. Only for algorithms
    with `teacher_prompt`; None: the prompt itself."""
    teacher_prompt_length: torch.Tensor | None = field(default=None, kw_only=True)
    """Long (B,); 0 for a row that the teacher does not read."""
    expected: Rowwise | None = field(default=None, kw_only=True)
    """Value of the row's problem that the curriculum knows, (B,), NaN without one; None if it knows none of
    the batch's (`curriculum.Curriculum`)."""
    problem: torch.Tensor | None = field(default=None, kw_only=True)
    """Long (B,): number of the row's problem among all training problems, the same in every step; −1 if
    unknown. `group` counts within the step."""
    member: torch.Tensor | None = field(default=None, kw_only=True)
    """Long (B,): number of the row among its problem's completions, from 0, graded or not; None if
    unknown."""
    category: torch.Tensor | None = field(default=None, kw_only=True)
    """Long (B,): number of the category of the row's problem, or of its task in a mixture of tasks, the same
    in every step and every run; −1 for a problem without one. None if unknown."""
    replies: torch.Tensor | None = field(default=None, kw_only=True)
    """Bool (B, T): tokens that the environment wrote between the policy's turns, whose log-probabilities the
    models give too. None, and log-probabilities of 0, unless the algorithm `learns_replies`."""
    turn_reward: Tokenwise | None = field(default=None, kw_only=True)
    """The environment's reward of each of the policy's turns, at the turn's last token, times the recipe's
    `reward.scale`; 0 elsewhere. `reward` contains them as far as the recipe weighs a score that does, such as
    `return`. None if the task rewards no turns."""
    credit: Credit | None = field(default=None, kw_only=True, metadata=WHOLE)
    """How the turns of an episode are credited (`modify.credit`), for algorithms with `credits_turns`; None
    gives all of them the episode's advantage."""
    state: State = field(default=None, kw_only=True, metadata=WHOLE)
    """The algorithm's state in this step. None stands for its initial state, which is also that of algorithms
    without a state."""

    def __len__(self) -> int:
        return self.completion.shape[0]


@dataclass(frozen=True)
class Signal(Rows):
    """The result of `compute_signal`. Subclasses add tensors of B rows."""

    row_group: torch.Tensor
    """Long (B,): rows with the same number are never split over micro-batches (a DPO pair); −1 leaves a
    row out of training. Rows of one row group must share a group."""


@dataclass(frozen=True)
class Advantage(Signal):
    """The signal of every policy-gradient method: one advantage per token."""

    advantage: Tokenwise
    ref_logp: Tokenwise
    """log π_ref; shape (B, 0) if the algorithm reads no reference."""


@dataclass(frozen=True)
class ModelOutput(Rows):
    """A model's current output for a batch. A tensor that a role does not have has shape (B, 0)."""

    logp: Tokenwise
    """Log-probability of each completion token under the tempered distribution."""
    entropy: Tokenwise
    """Entropy in nats of the tempered next-token distribution at each position."""
    value: Tokenwise
    """Value of the state before token t."""
    squares: Tokenwise | None = field(default=None, kw_only=True)
    """Σ_v π_v² of the tempered next-token distribution at each position; only on request."""
    divergence: Tokenwise | None = field(default=None, kw_only=True)
    """Divergence in nats between the teacher's and the policy's tempered next-token distributions at each
    position, over the whole vocabulary, 0 in rows that the teacher does not read; only for algorithms with
    `teacher_divergence`."""


@dataclass(frozen=True)
class Loss:
    """Unreduced terms, (B, T) or (B,), which the harness multiplies by `loss_weights`, and unreduced metrics.

    A metric is (B, T) (averaged over written tokens) or (B,) (averaged over rows), and is declared in
    `Algorithm.metrics`.
    """

    terms: torch.Tensor
    metrics: Mapping[str, torch.Tensor]


class Models(Protocol):
    """The models of a run for `compute_signal`: outputs without gradient, with `squares` on request."""

    def forward(self, role: Role, batch: Batch, *, squares: bool = False) -> ModelOutput: ...


S = TypeVar("S", bound=Signal)
CLAIMS = ("paper", "summary", "claim", "formula", "departures", "evidence")
"""What each class says of itself alone."""


@dataclass(frozen=True)
class Algorithm(ABC, Generic[S]):
    """A training algorithm. Its fields are its hyperparameters, validated in `__post_init__`.

    The harness never asks which algorithm it runs. It calls `compute_signal` once per rollout batch,
    `loss_weights` once per minibatch and `loss` once per micro-batch, and adds up ``(loss.terms *
    weights).sum()``. An algorithm with several `phases` has the last two per phase."""

    name: ClassVar[str]
    label: ClassVar[str] = ""
    """Its name in figures, as papers write it; empty: `name` in capitals."""
    paper: ClassVar[str] = ""
    """Title and arXiv number."""
    summary: ClassVar[str] = ""
    """One line for `grpobench list algorithms`."""
    claim: ClassVar[str] = ""
    """What its authors claim, in one or two sentences, with the published number and the model's size. Where
    no more than the abstract was read, or a number is second-hand, it says so. Whether it holds here is no
    part of it: that is what the findings that are `about` the algorithm say."""
    formula: ClassVar[str] = ""
    """The objective in plain text for `grpobench show algorithm`."""
    departures: ClassVar[str] = ""
    """What differs from the paper, and every default that is not the paper's."""
    evidence: ClassVar[str] = ""
    """What the formula was checked against: begins with ``verified:`` or ``reconstruction:``."""
    cost: ClassVar[str] = ""
    """Computation beyond one forward and one backward pass of the policy over the rollouts."""
    modifiers: ClassVar[Mapping[str, Any]] = {}
    """The algorithm's defaults for the recipe's section `modify`, by field of `Modifiers`."""
    has_advantages: ClassVar[bool] = False
    """Whether the signal has an `advantage` (B, T) whose zeros neither reinforce nor discourage a token."""
    credits_turns: ClassVar[bool] = False
    """Whether advantages are made of `Batch.reward` in a way that can be repeated for the return of each
    turn, as `Batch.credit` asks."""
    off_policy: ClassVar[bool] = False
    """Whether rollouts of another policy (a replay of base rollouts, a preference data set) may be used."""
    reads_components: ClassVar[bool] = False
    """Whether `compute_signal` reads the components of the reward by the names in `Batch.weights`."""
    reward_bounds: ClassVar[tuple[str, str]] = ("", "")
    """Names of the settings that hold the least and the greatest reward possible; empty: it needs none. Who
    knows the rewards of a run, such as a probe, sets them."""
    metrics: ClassVar[tuple[Metric, ...]] = ()
    """The metrics that `loss` and `observe` return."""

    def __init_subclass__(cls, **options: Any) -> None:
        """A subclass inherits behavior, but no claims: what a paper says of GRPO, and what GRPO was checked
        against, is not true of a class that changes it."""
        super().__init_subclass__(**options)
        for claim in CLAIMS:
            if claim not in vars(cls):
                setattr(cls, claim, "")

    @property
    def inner(self) -> Algorithm[Any]:
        """The algorithm that messages name: the wrapped one, if this one wraps another."""
        return self

    @property
    def differentiates_entropy(self) -> bool:
        """Whether `loss` needs the gradient of `ModelOutput.entropy`; otherwise the entropy is detached."""
        return False

    @property
    def teacher_divergence(self) -> float | None:
        """β of the divergence that `loss` reads from the policy's `ModelOutput`: 0 is the forward
        KL(teacher‖policy), 1 the reverse KL(policy‖teacher), between them the generalized Jensen-Shannon
        divergence (arXiv:2306.13649, eq. 1). None reads none. Needs `teacher_role` among the
        `reference_roles`, unless it is the policy."""
        return None

    @property
    def teacher_role(self) -> Role:
        """Whose weights the divergence's teacher has: a model of its own (`teacher`), the initial policy or
        what `synchronize` makes of it (`reference`), or the policy as it is at that moment (`policy`). No
        gradient goes to it."""
        return "teacher"

    @property
    def teacher_prompt(self) -> TeacherPrompt | None:
        """What the teacher reads in place of the prompt; None: what the policy reads."""
        return None

    @property
    def trained_roles(self) -> tuple[Role, ...]:
        """Roles with an optimizer of their own."""
        return ("policy",)

    @property
    def reference_roles(self) -> tuple[Role, ...]:
        """Other roles that `compute_signal` reads."""
        return ()

    @property
    def minimum_group(self) -> int:
        """Fewest rollouts per problem that can give any signal."""
        return 1

    @property
    def greedy_baseline(self) -> bool:
        """Whether `compute_signal` needs `Batch.greedy_reward`: one greedy completion of each problem."""
        return False

    @property
    def locates_answers(self) -> bool:
        """Whether `compute_signal` needs `Batch.answer` and `Batch.breaks`, from tasks with an
        `answer_marker`."""
        return False

    @property
    def weight_noise(self) -> WeightNoise | None:
        """Noise in the weights that write rollouts; None: there is none. With it `loss` gets the weights'
        log-probability in place of the tokens': a row's log N(θ_i; θ, σ²I) for the weights θ_i that wrote it,
        up to a constant, in equal parts at the tokens that the policy wrote. Its gradient is ε_i/σ, so that
        no model is differentiated."""
        return None

    @property
    def learns_replies(self) -> bool:
        """Whether `loss` reads log-probabilities of what the environment wrote (`Batch.replies`)."""
        return False

    @property
    def scores(self) -> frozenset[str]:
        """Names of task scores that the algorithm needs beside the reward."""
        return frozenset()

    def updated_roles(self, step: int) -> tuple[Role, ...]:
        """Roles that this step (from 1) updates; a critic's warm-up leaves the policy out."""
        return self.trained_roles

    def phases(self, step: int) -> tuple[tuple[Role, ...], ...]:
        """The `updated_roles` in the order of their updates: the roles of a phase make all of the step's
        updates before those of the next one begin. By default all are updated together."""
        return (self.updated_roles(step),)

    def realign(self, batch: Batch, signal: S, models: Models) -> S:
        """The signal of the next phase of a step, given the models as the phases before it left them; in the
        same row groups. Called without gradient."""
        return signal

    def synchronize(self, step: int) -> float:
        """How far the reference moves toward the policy after this step: 0 keeps it, 1 copies the policy."""
        return 0.0

    @abstractmethod
    def compute_signal(self, batch: Batch, models: Models) -> S:
        """The training signal from rewards. Called once per step, without gradient."""

    def initial_state(self) -> State:
        """The state before the first step; None without a state."""
        return None

    def next_state(self, batch: Batch, models: Models) -> State:
        """The state of the next step, given the batch of this one with its `state`, and the models after its
        updates. A pure function that changes no state in place: checkpoints hold the state of finished steps.
        Called without gradient, once per step that has rollouts."""
        return batch.state

    def observe(self, batch: Batch, signal: S) -> dict[str, float]:
        """Metrics of the whole batch after `compute_signal`; NaN if undefined."""
        return {}

    @abstractmethod
    def loss(self, batch: Batch, signal: S, now: Mapping[Role, ModelOutput]) -> Loss:
        """Unreduced loss terms of a micro-batch, a pure function. `now` has an output per updated role."""

    @abstractmethod
    def loss_weights(self, batch: Batch) -> torch.Tensor:
        """The paper's averaging as explicit weights over a whole minibatch, in the shape of the terms."""

    @property
    def studies(self) -> bool:
        """Whether `curriculum` needs a `Study` of the training problems."""
        return False

    @property
    def base_rollouts(self) -> int:
        """Graded completions of the initial policy for each training problem that the `Study` must hold; 0
        needs none. They are sampled before training and counted in the run's costs."""
        return 0

    @property
    def expert_answers(self) -> int:
        """Expert completions that each step learns from beside its rollouts, by `expert_loss`; 0 needs none.
        They come from the task's reference answers or a file (`train.experts`), and are no rollouts: they
        have no group, no reward and no place in metrics of what was sampled."""
        return 0

    def expert_loss(self, batch: Batch, now: Mapping[Role, ModelOutput]) -> Loss:
        """Unreduced loss terms of a micro-batch of expert completions, a pure function. Each row has a group
        of its own; rewards and log-probabilities of the batch are NaN, since nobody recorded them."""
        raise NotImplementedError

    def expert_weights(self, batch: Batch) -> torch.Tensor:
        """The averaging over all expert completions of an update, in the shape of the terms."""
        raise NotImplementedError

    def curriculum(
        self,
        traits: Sequence[Mapping[str, str | float]],
        prompts: int,
        seed: int,
        study: Study | None = None,
    ) -> Curriculum:
        """Which problems each step draws, given the traits of all training problems (and a study of them, for
        an algorithm with `studies` or `base_rollouts`); by default uniform without replacement."""
        from grpobench.algorithms.curriculum import Shuffled

        return Shuffled(len(traits), prompts, seed)

    def mixer(self, embeddings: torch.Tensor | None = None) -> Mixer | None:
        """How the sampler mixes embeddings while decoding, given the policy's input embeddings (V, H); by
        default it does not. Called once per rollout batch, so that it may prepare what depends on the
        weights. With None, the result only says whether it mixes at all."""
        return None


Credit: TypeAlias = "Callable[[Callable[[Batch, Models], torch.Tensor], Batch, Models], torch.Tensor]"
"""(how the algorithm makes advantages of a batch's rewards, batch, models) -> advantages (B,) or (B, T)."""
Mixer: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Mixture]"
"""(anchor tokens (N,), tempered logits (N, V), uniforms (N,)) -> Mixture of shape (N, k)."""
