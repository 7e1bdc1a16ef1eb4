"""What one run is: the resolved configuration, with its bounds and checks."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval

from grpobench.algorithms.algorithm import Algorithm, Role
from grpobench.algorithms.modifiers import Modifiers
from grpobench.runs.models.adapter import Adapter
from grpobench.runs.settings import registries
from grpobench.runs.settings.checks import ChecksConfig
from grpobench.runs.settings.judge import JudgeConfig, gaps_of
from grpobench.runs.settings.observe import Observe
from grpobench.runs.settings.verifier_errors import VerifierErrors
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import Settings
from grpobench.tasks.task import Task

LongPrompts = Literal["refuse", "drop"]
# Bounds that several fields have. Below infinity means finite: NaN is refused whatever the bounds.
NonNegativeInt = Annotated[int, Ge(0)]
PositiveInt = Annotated[int, Ge(1)]
Share = Annotated[float, Interval(ge=0, le=1)]
Rate = Annotated[float, Interval(ge=0, lt=1)]
Finite = Annotated[float, Interval(gt=-math.inf, lt=math.inf)]
Temperature = Annotated[float, Interval(gt=0, le=10)]

ANSWERS = ("reference", "distribution")
"""What warm starts read, beside files."""
REFERENCES = "reference"
"""The task's reference answers, as the source of expert completions."""


@dataclass(frozen=True)
class ModelConfig(Settings):
    """The initial policy."""

    name: str = "nano"
    """A built-in model (`grpobench list models`), a local folder or a hub id."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Autocast precision of forward passes, sampling included. In float16 losses are scaled
    (docs/samplers.md)."""
    adapter: Adapter | None = None
    """A LoRA adapter, `{ rank = 16, alpha = 32, targets = [], dropout = 0 }`: only it is trained and saved,
    and reference and critic share the policy's weights. "none" trains all weights."""
    weights: Literal["float32", "bfloat16"] = "float32"
    """Type in which all roles store their weights. In bfloat16 (with `dtype` the same) they take half of the
    memory; `train.master_weights` says how they are updated. A warm start is made in float32 before."""
    attention: Literal["auto", "sdpa", "flash"] = "auto"
    """How packed sequences attend: `sdpa` with a dense mask, `flash` by FlashAttention, which computes no
    masked pairs and needs a GPU (an A100 or newer) and a `dtype` of 16 bits; `auto` is `flash` where that is
    so and it computes the same, and `sdpa` otherwise."""
    deterministic: bool = False
    """Whether a GPU may only use operators that add in one order; one that has none ends the run by its name.
    Without it such operators warn, and last digits may differ between two equal runs. The cost of this
    setting is not measured. Nothing changes on a CPU, where all operators have such an order."""
    long_prompts: LongPrompts = "refuse"
    """Reaction to prompts that leave no room for a completion in the model's context: `refuse` ends the run
    before its first step, `drop` leaves them out and counts them in provenance.json."""
    chat_template: bool = True
    """Whether prompts go through the tokenizer's chat template, where it has one. Without it a model reads
    the task's text alone, as a base model does."""
    chat_template_settings: Mapping[str, Any] = field(default_factory=dict)
    """Variables that the tokenizer's chat template reads, such as `{ enable_thinking = false }`, wherever it
    is rendered. A variable that the template does not mention is an error."""
    warm_start: NonNegativeInt = 0
    """Supervised updates on the task's demonstrations before the run (cached); 0 leaves them out."""
    warm_start_answers: str = "reference"
    """Data of the supervised updates: `reference`, one demonstration of each problem; `distribution`,
    episodes drawn for each update from what the task lets a base policy write, right or wrong
    (`Task.draw_episode`); or a JSONL file of ``{"prompt": …, "completion": …, "weight": …}`` with any number
    of answers to a problem, drawn by weight (1 where it is left out)."""
    warm_start_examples: NonNegativeInt = 0
    """Training problems whose demonstrations are used; 0 means all of them."""
    warm_start_learning_rate: Annotated[float, Interval(gt=0, lt=1)] = 1e-3
    """Peak learning rate of the supervised updates."""
    warm_start_batch: PositiveInt = 32
    """Demonstrations per supervised update."""
    warm_start_seed: NonNegativeInt = 0
    """Seed of the order and the draws of the demonstrations. Several seeds give several bases."""
    teacher: str = ""
    """The teacher of algorithms that distill one: a built-in model, a local folder (such as one that
    `grpobench export` writes) or a hub id, with the policy's tokenizer. It is frozen, and stored and computed
    like the policy."""
    teacher_warm_start: NonNegativeInt = 0
    """Supervised updates of the teacher on the task's demonstrations before the run (cached), as `warm_start`
    for the policy."""

    def clashes(self) -> Iterator[str]:
        is_answer_source = self.warm_start_answers in ANSWERS or self.warm_start_answers.endswith(".jsonl")
        if not self.name:
            yield "name: must not be empty"
        if not self.chat_template and self.chat_template_settings:
            yield (
                "chat_template_settings: there is no template with chat_template = false; remove one of them"
            )
        if self.teacher_warm_start and self.chat_template_settings:
            yield (
                "chat_template_settings: a teacher's warm start does not read them; warm it up in a run of "
                "its own, and export it"
            )
        if self.weights not in ("float32", self.dtype):
            yield f'weights: {self.weights} weights are computed with as such; set dtype = "{self.weights}"'
        if not self.teacher and self.teacher_warm_start:
            yield "teacher_warm_start: there is no teacher; set teacher or teacher_warm_start = 0"
        if self.warm_start_seed and not (self.warm_start or self.teacher_warm_start):
            yield "warm_start_seed: there is no warm start; set warm_start or warm_start_seed = 0"
        if not is_answer_source:
            yield (
                f"warm_start_answers: must be {', '.join(ANSWERS)} or the path of a .jsonl file, not "
                f"{self.warm_start_answers!r}"
            )

    @property
    def template(self) -> bool | Mapping[str, Any]:
        """What `load` and `load_outline` take as `chat_template`."""
        return self.chat_template_settings or self.chat_template


AUTO = "auto"
"""The sampler kind that an experiment replaces by `hf` or `vllm` before its first run."""
CHOSEN = ("hf", "vllm")
"""What `auto` can become."""
SAMPLERS = (AUTO, *CHOSEN, "vllm-server", "replay", "preferences")
"""The kinds of the suite."""


@dataclass(frozen=True)
class SamplerConfig(Settings):
    """The source of rollouts."""

    kind: str = "hf"
    """`hf` samples the policy in process; `vllm` with an engine in the same process; `vllm-server` with one
    behind `url`; `replay` trains on one round of base-policy rollouts; `preferences` on a JSONL file of
    preferred and rejected completions; `module:Name` with a sampler of your own (docs/plugins.md). `auto` is
    `vllm` for a large model if there is a GPU with vLLM, else `hf` (docs/samplers.md)."""
    temperature: Temperature = 1.0
    """Softmax temperature of rollouts and of every log-probability that is trained with; sampled evaluation
    has one of its own, `evaluate.temperature`."""
    top_k: NonNegativeInt = 0
    """Rollouts draw from this many most probable tokens and those as probable as the last; 0: from all."""
    top_p: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Rollouts draw from the fewest most probable tokens with this much probability, of those in `top_k`."""
    min_p: Share = 0.0
    """Rollouts draw tokens with at least this fraction of the most probable token's probability; not with
    `top_p`."""
    stop: tuple[str, ...] = ()
    """Strings after the first of which a rollout ends, in addition to the end tokens (docs/samplers.md)."""
    max_completion_tokens: NonNegativeInt = 0
    """Longest completion in tokens; 0 takes the task's own budget."""
    max_batch_size: PositiveInt = 256
    """Most sequences decoded at once."""
    old_logp: Literal["auto", "sampler", "trainer"] = "auto"
    """Source of log π_old; `auto` takes the sampler's own if the gap is proven to be 0, and never with a
    `lag`."""
    path: str = ""
    """The preference file of kind `preferences`."""
    problems: PositiveInt = 256
    """Training problems that the base policy answers, once, with kind `replay`."""
    url: str = ""
    """Address of `grpobench serve`, for kind `vllm-server`."""
    cache_gb: Annotated[float, Interval(gt=0, lt=math.inf)] = 4.0
    """Size of vLLM's key-value cache in GiB, with kind `vllm`."""
    sleep: bool = True
    """Whether vLLM gives its memory back while the trainer computes, with kind `vllm` on a GPU. On a CPU it
    cannot, and keeps its memory."""
    merge_adapter: bool = False
    """Whether vLLM gets an adapter added to the weights, as new weights at every synchronization, in place of
    the adapter alone; kind `vllm-server` always does."""
    max_logprob_gap: Annotated[float, Interval(ge=0, lt=math.inf)] = 0.0
    """Greatest |Δ log p| in nats between vLLM and the trainer on the probe prompt before the run is stopped;
    0 means 1e-4 in float32 and 1 in 16 bits."""
    weights: Literal["trainer", "int8", "int4", "fp8"] = "trainer"
    """Precision of the linear weights that rollouts are sampled with: the trainer's, or rounded at every
    synchronization to 8 or 4 bits. `hf` computes with the rounded numbers and evaluates with the trainer's;
    `vllm` takes `fp8` alone, and evaluates with it (docs/samplers.md)."""
    lag: NonNegativeInt = 0
    """Updates of the policy between the weights that rollouts are sampled with and those that are trained;
    0 samples with the current ones. The first rollouts come from the oldest weights there are, the initial
    policy's. Evaluations use the current weights. Keeps `lag` copies of the policy's weights on its device
    and in checkpoints; a run whose copies do not fit into free memory ends before its first step."""
    ahead: bool = False
    """Whether another process, on a second GPU if there is one, samples a step's rollouts while the step
    before it is trained. Changes no number: it needs a `lag` of a step's updates or more, with which these
    rollouts come from weights that exist by then."""
    router_replay: Literal["none", "R2", "R3"] = "none"
    """Which experts of a mixture of experts the policy's passes over the rollouts use (arXiv:2510.11370):
    `R3` those that the sampler chose for each token, `R2` in updates those of the trainer's pass for
    log π_old, `none` those that its routers choose. Gate weights are always the trainer's
    (docs/samplers.md)."""
    correction: Literal["none", "tis", "mis", "rejection"] = "none"
    """Factor of the loss terms, with w = π_old/π_sampler: `tis` is w, clamped to `correction_floor` and
    `correction_cap`; `mis` is w between them and 0 outside; `rejection` is 1 between them and 0 outside.
    IcePop (arXiv:2510.18855) is `mis` per token from 0.5 to 5, and the behavior weight of AReaL's decoupled
    PPO (arXiv:2505.24298) is `mis` per token with cap 5 (docs/samplers.md)."""
    correction_level: Literal["token", "sequence", "geometric"] = "token"
    """Whether w is a token's ratio, the product over a sequence's tokens, or their geometric mean."""
    correction_cap: Annotated[float, Ge(1)] = 2.0
    """Largest w; inf bounds nothing."""
    correction_floor: Share = 0.0
    """Smallest w."""
    correction_normalize: bool = False
    """Whether the corrected weights of an update are divided by their weighted mean (self-normalized
    importance sampling); with `rejection`, averages are then over what is left."""

    def clashes(self) -> Iterator[str]:
        if self.kind not in SAMPLERS and not self.foreign:
            did = strict.did_you_mean(self.kind, SAMPLERS, "or module:Name", "{!r}")
            kinds = ", ".join(map(repr, SAMPLERS))
            yield f"kind: must be one of {kinds}, not the string {self.kind!r}; {did}"

    @property
    def foreign(self) -> bool:
        """Whether the sampler is others' code."""
        return self.kind not in SAMPLERS and registries.is_plugin_name("sampler", self.kind)

    @property
    def on_policy(self) -> bool:
        """Whether the current policy writes the rollouts."""
        return self.kind not in ("replay", "preferences")

    def missing(self) -> str:
        """Why this machine cannot sample so, with the remedy, found without importing anything."""
        if self.kind == "vllm" and importlib.util.find_spec("vllm") is None:
            remedy = 'pip install ".[vllm]" in a checkout (GPU), or see docs/samplers.md (CPU)'
            return f"vllm is not installed: {remedy}"
        return ""


RewardKind = Literal[
    "task", "sum", "model", "judge", "proxy", "format", "flipped", "random", "majority", "constant"
]
Feature = Literal["length", "words", "lines", "digits", "equations", "hedges", "assurances"]
"""What a flawed proxy can count; `runs/reward/proxy.py` defines each."""
TINY = "tiny"
"""The name of the reward model that the suite trains itself, one per task."""
COMPONENTS: Mapping[str, str] = {
    "model": "what a learned reward model says",
    "judge": "what a language model says that grades by a rubric",
    "proxy": "surface features of the completion; flawed on purpose",
    "flipped": "1 − correct: a control",
    "random": "independent coin flips: a control",
    "majority": "1 for the group's most frequent answer, right or wrong: a control",
    "constant": "1: a control",
}
"""What can be rewarded beside the scores of a task and functions from elsewhere."""


@dataclass(frozen=True)
class RewardConfig(Settings):
    """The reward. The log has every part as ``reward/<component>``, whatever its weight, and the task's own
    scores."""

    kind: RewardKind = "task"
    """`task` weighs the task's scores; `model` is a learned reward model, `judge` a language model that
    grades by a rubric; `proxy` counts surface features and is flawed on purpose; `sum` weighs scores and
    these. Controls: `format` is the score of that name alone; `flipped` is 1 − correct; `random` is
    independent coin flips; `majority` is 1 for the answer that most of the group give (TTRL,
    arXiv:2504.16084); `constant` is 1."""
    weights: Mapping[str, Finite] = field(default_factory=dict)
    """Weight per score of the task, with kind `sum` also of model, judge, proxy, flipped, random, majority
    and constant, and of reward functions: `module:function`, or what a package calls one (docs/plugins.md); 0
    measures without rewarding. Empty takes the task's own weights."""
    probability: Share = 0.5
    """Chance of reward 1 with `random`."""
    model: str = ""
    """The reward model: a folder or hub id that `AutoModelForSequenceClassification` reads, with one output;
    `tiny` is one that the suite trains for the task in seconds."""
    model_learns: str = "correct"
    """The task's score that the suite's own reward model, `tiny`, learns to prefer."""
    model_input: Literal["auto", "chat", "pair", "text"] = "auto"
    """How the reward model reads prompt and completion: through its chat template, as a pair of segments, or
    as one text; `auto` takes the first that its tokenizer offers."""
    model_batch: PositiveInt = 64
    """Completions that the reward model scores at once."""
    model_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the reward model."""
    judge: JudgeConfig | None = None
    """The judge: a table `[reward.judge]` (docs/rewards.md)."""
    function_input: Literal["text", "messages"] = "text"
    """Form in which reward functions get prompts and completions: texts, or lists of messages."""
    proxy: Mapping[Feature, Finite] = field(default_factory=lambda: {"digits": 1.0})
    """Strength per feature of the proxy: Σ strength · n/(n + proxy_half) over the features' counts n."""
    proxy_half: Annotated[float, Interval(gt=0, lt=math.inf)] = 16.0
    """Count at which a feature of the proxy is worth half its strength."""
    flip: Share | VerifierErrors = 0.0
    """Chance that a training reward r becomes Σ weights − r, which is 1 − r for a reward of 0 or 1, or
    `{ false_positive = 0.1, false_negative = 0.3, by = "group" }` (docs/rewards.md). Flips and the three
    settings below change what is trained on, never components, scores or evaluations."""
    scale: Finite = 1.0
    """Factor of the training rewards, after flips."""
    offset: Finite = 0.0
    """Added to the training rewards, after `scale`."""
    outliers: Share = 0.0
    """Chance that `outlier_size` is added to a training reward or, as likely, subtracted, after `offset`."""
    outlier_size: Annotated[float, Interval(gt=0, lt=math.inf)] = 20.0
    """Size of the outliers."""

    def clashes(self) -> Iterator[str]:
        used = self.weights if self.kind == "sum" else (self.kind,)
        if self.kind == "sum" and not self.weights:
            yield "weights: kind sum needs at least one"
        if not self.model and "model" in used:
            yield 'model: must name the reward model; "tiny" is one that the suite trains itself'
        if self.model_learns != "correct" and self.model != TINY:
            yield (
                f"model_learns: only the model {TINY!r} is trained here; remove it, or set reward.model to "
                f"{TINY!r}"
            )
        if self.judge is None and "judge" in used:
            yield "judge: must say who judges, and by which rubric; write a table [reward.judge]"
        yield from gaps_of(self.judge)
        if not self.proxy and "proxy" in used:
            yield "proxy: must name at least one feature"
        if isinstance(self.flip, VerifierErrors) and not (
            self.flip.false_positive or self.flip.false_negative
        ):
            yield "flip: false_positive or false_negative must be above 0; for no errors write flip = 0"

    @property
    def doses(self) -> list[str]:
        """The settings that change the training rewards on purpose (`runs/reward/doses.py`)."""
        neutral = {"flip": 0.0, "scale": 1.0, "offset": 0.0, "outliers": 0.0}
        return [name for name, value in neutral.items() if getattr(self, name) != value]

    def components(self, task: Task) -> dict[str, float]:
        """Weight per component: a score of the task, one of `COMPONENTS`, or a function. Zero weights stay,
        except of what the task does not give."""
        if self.kind not in ("task", "sum"):
            return {self.kind: 1.0}
        weights = self.weights or task.reward
        available_components = {
            *task.scores,
            *(COMPONENTS if self.kind == "sum" else ()),
            *self.functions(task),
        }
        return {name: weight for name, weight in weights.items() if weight or name in available_components}

    def functions(self, task: Task) -> list[str]:
        """The components that are functions from elsewhere."""
        built_in_components = {*task.scores, *COMPONENTS}
        names = [name for name in self.weights if self.kind == "sum" and name not in built_in_components]
        return [name for name in names if registries.is_plugin_name("reward", name)]


MOST_COMPLETIONS, MOST_SAMPLES = 1_000_000, 100_000
"""Of one step, and of one evaluated problem: what one process can hold. More is a slip of the keyboard."""


SCHEDULES = ("constant", "linear", "cosine")
"""The suite's own."""


@dataclass(frozen=True)
class TrainConfig(Settings):
    """The update."""

    steps: NonNegativeInt = 40
    """Rollout batches, each followed by its updates."""
    prompts_per_step: PositiveInt = 16
    """Problems per step."""
    group_size: PositiveInt = 8
    """Completions per problem."""
    num_minibatches: PositiveInt = 1
    """Optimizer updates per pass over a rollout batch; groups are never split."""
    epochs: PositiveInt = 1
    """Passes over a rollout batch."""
    micro_batch_tokens: NonNegativeInt = 0
    """Most tokens that go forward and backward at once; 0 means 1,024 on a CPU and 16,384 on a GPU. Changes
    memory and speed, never the gradient; halved if memory runs out."""
    activation_checkpointing: bool = False
    """Whether updates keep only the input of each layer and run the layer again in the backward pass: much
    less memory for about a third more computing, and the same gradient."""
    learning_rate: Mapping[Role, Rate] = field(default_factory=lambda: {"policy": 1e-5})
    """Peak learning rate per trained role; a role that is left out takes the policy's. In a recipe a plain
    number sets the policy's."""
    warmup_steps: NonNegativeInt = 0
    """Steps over which the learning rate rises linearly from 0, whatever its schedule is."""
    schedule: str = "constant"
    """Course of the learning rate after the warm-up: `constant`, `linear` or `cosine` down to `floor`, one of
    torch's or transformers' (`torch:StepLR`, `transformers:cosine_with_restarts`), or `module:Name`."""
    schedule_settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of a schedule of torch's, of transformers' or of your own; rates in them are fractions of
    `learning_rate`."""
    floor: Share = 0.0
    """End of `linear` and `cosine`, as a fraction of the learning rate."""
    optimizer: str = "adamw"
    """`adamw`, one of torch's (`torch:SGD`), of torchao's or bitsandbytes' (`torchao:AdamW8bit`), or
    `module:Name`; one for each trained role."""
    optimizer_settings: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of an optimizer other than `adamw`, in addition to the learning rate."""
    offload_optimizer: bool = False
    """Whether master weights, gradients and the optimizer's state lie in the memory of the CPU, which also
    computes the update; the device then holds weights and activations alone."""
    master_weights: bool = True
    """Whether bfloat16 weights have a float32 copy that the optimizer updates. Without it, each update is
    computed in float32 and rounded up or down at random so that its mean is exact (stochastic rounding);
    gradients are then added up in bfloat16. Float32 weights need neither."""
    betas: tuple[Rate, Rate] = (0.9, 0.95)
    """AdamW's decay rates."""
    weight_decay: Annotated[float, Interval(ge=0, lt=math.inf)] = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: Annotated[float, Gt(0)] = 1.0
    """Gradient norm above which a role's gradient is scaled down; inf never does."""
    gradient_noise: NonNegativeInt = 0
    """Steps between measurements of variance and signal of the policy's gradient, from the first step on, by
    one more forward and backward pass (`grad/variance`, `grad/signal`, `grad/noise_to_signal`); 0 measures
    never."""
    gradient_noise_parts: Annotated[int, Ge(2)] = 8
    """Parts of a step whose gradients `gradient_noise` compares: whole groups, dealt evenly; at most as many
    as there are groups."""
    log_tokens: Literal["none", "last", "all"] = "none"
    """Stored rollouts that get the numbers of each token (docs/browse.md), by one more forward pass."""
    curriculum: str = ""
    """Chooses the problems of each step: `module:Name` (docs/plugins.md); empty is the algorithm's own."""
    experts: str = "reference"
    """Source of the expert completions for algorithms that learn from them as well as from rollouts: the
    task's `reference` answers, or a JSONL file of ``{"prompt": …, "completion": …, "weight": …}`` with any
    number of answers to a prompt, drawn by weight (1 where it is left out). A preference file serves too: its
    `chosen` is the completion."""
    devices: PositiveInt = 1
    """Devices of one run, GPUs or processes on a CPU: each holds a part of the weights, and does its share of
    sampling, grading and differentiating (docs/devices.md)."""
    backend: Literal["grpobench", "trl"] = "grpobench"
    """The loop that samples, computes the loss and updates: the suite's own, or TRL's trainer of the
    algorithm (docs/backends.md lists its settings and differences)."""

    def clashes(self) -> Iterator[str]:
        rows = self.prompts_per_step * self.group_size
        if rows > MOST_COMPLETIONS:
            yield (
                f"prompts_per_step: {self.prompts_per_step:,} in groups of {self.group_size:,} are {rows:,} "
                f"completions, too many"
            )
        if self.curriculum and not registries.is_plugin_name("curriculum", self.curriculum):
            yield f"curriculum: must be module:Name or what a package calls one, not {self.curriculum!r}"
        if "policy" not in self.learning_rate:
            yield "learning_rate: must hold a value for policy"
        if self.experts != REFERENCES and not self.experts.endswith(".jsonl"):
            yield f"experts: must be {REFERENCES} or the path of a .jsonl file, not {self.experts!r}"
        if not self.master_weights and self.offload_optimizer:
            yield (
                "master_weights: an optimizer on the CPU has them there; set master_weights = true or "
                "offload_optimizer = false"
            )
        yield from self.choices()

    def choices(self) -> Iterator[str]:
        """That optimizer and schedule are chosen by a name that can be one, with settings that they have."""
        foreign = ":" in self.schedule
        if not foreign and self.schedule not in SCHEDULES:
            others = "or torch:NAME, transformers:NAME, module:Name"
            did = strict.did_you_mean(self.schedule, SCHEDULES, others, "{!r}")
            yield f"schedule: must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}; {did}"
        if not foreign and self.schedule_settings:
            yield (
                f"schedule_settings: {self.schedule} has none; remove them (its own are floor and "
                "warmup_steps)"
            )
        if self.floor and self.schedule not in ("linear", "cosine"):
            yield f"floor: is where linear and cosine end, and schedule is {self.schedule!r}; set floor = 0"
        adamw = ":" not in self.optimizer
        if adamw and self.optimizer != "adamw":
            yield f"optimizer: must be adamw, torch:NAME or module:Name, not {self.optimizer!r}"
        if adamw and self.optimizer_settings:
            yield (
                "optimizer_settings: those of adamw are betas and weight_decay; write train.betas, or choose "
                'optimizer = "torch:AdamW"'
            )
        if not adamw and (self.betas != (0.9, 0.95) or self.weight_decay):
            yield (
                f"betas: betas and weight_decay are those of adamw, and optimizer is {self.optimizer!r}; "
                "write them in optimizer_settings"
            )


@dataclass(frozen=True)
class EvaluateConfig(Settings):
    """Evaluation on problems that are never trained on."""

    every: NonNegativeInt = 10
    """Steps between evaluations on the validation split; 0 evaluates only before and after training."""
    problems: NonNegativeInt = 128
    """Validation problems."""
    samples: Annotated[int, Interval(ge=0, le=MOST_SAMPLES)] = 2
    """Sampled completions per problem; 0 leaves sampled evaluation out."""
    test_problems: NonNegativeInt = 256
    """Test problems, answered before and after training; 0 leaves the test split out."""
    greedy: bool = True
    """Evaluate greedy decoding too."""
    likelihood: bool = True
    """Compare the log-probabilities of a task's candidates too, where it has any."""
    kl_base: bool = True
    """Measure `policy/kl_base` on the rollouts of the last step and of each with an evaluation. Keeps the
    base policy's weights in the memory of the CPU, unless the algorithm has a reference that stays."""
    before: bool = True
    """Evaluate the base model before the first update."""
    temperature: Temperature = 1.0
    """Softmax temperature of the sampled completions, whatever `sampler.temperature` is: arms that are to be
    compared are evaluated at one. Greedy decoding and likelihoods have none."""
    completions: bool = True
    """Store the text of every completion, compressed, in completions/SPLIT-step-N.jsonl.zst."""
    contamination: bool = False
    """Measure before training how many test problems the base completes from their first 60 %."""
    reference_likelihood: bool = False
    """Measure how likely the policy writes the reference answers of validation and test problems."""
    judge: JudgeConfig | None = None
    """A judge of the answers that evaluations decode, whatever the reward is: a table `[evaluate.judge]`
    (docs/rewards.md)."""
    also: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further tasks, each with its settings. The run evaluates them as it does its own task and never trains
    on them, which shows what it forgets or transfers. Logged as `also/<task>/<split>/<mode>/<metric>`."""

    def clashes(self) -> Iterator[str]:
        yield from gaps_of(self.judge)
        if self.contamination and not (self.before and self.test_problems):
            yield "contamination: needs before = true and test_problems; set both or contamination = false"


@dataclass(frozen=True)
class CheckpointConfig(Settings):
    """Checkpoints, from which a killed run restarts."""

    every: NonNegativeInt = 10
    """Steps between checkpoints; 0 saves only when the run receives a signal to stop."""
    keep: PositiveInt = 2
    """Newest checkpoints kept."""
    final: bool = False
    """Whether a finished run keeps its last checkpoint, three times its weights with Adam: raising
    `train.steps` then goes on from there. Without it a finished run keeps its final weights and its logs."""
    weights: bool = True
    """Whether a finished run keeps its final weights, which `grpobench eval` and `grpobench export` read.
    Without them it keeps no optimizer state either: its logs alone, which are all that a report needs.
    Weights of earlier runs may then be deleted. Runs of `grpobench search` never keep any."""

    @property
    def continues(self) -> bool:
        """Whether a finished run keeps what more steps would go on from."""
        return self.final and self.weights


SECTIONS: Mapping[str, type] = {
    "modify": Modifiers,
    "model": ModelConfig,
    "sampler": SamplerConfig,
    "reward": RewardConfig,
    "train": TrainConfig,
    "evaluate": EvaluateConfig,
    "checkpoint": CheckpointConfig,
    "checks": ChecksConfig,
}


@dataclass(frozen=True)
class RunConfig:
    """One run of an experiment, with every value resolved."""

    experiment: str
    arm: str
    seed: int
    algorithm: Algorithm[Any]
    task: Task
    model: ModelConfig
    sampler: SamplerConfig
    reward: RewardConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    checkpoint: CheckpointConfig
    modify: Modifiers = field(default_factory=Modifiers)
    checks: ChecksConfig = field(default_factory=ChecksConfig)
    stop_on: tuple[str, ...] = ()
    """Kinds of events that end the run."""
    dialect: str = ""
    """The preset of another library's defaults under the settings, with its version; empty: none."""
    observe: tuple[Observe, ...] = ()
    """Callbacks, which change no number and so make no other run."""
    beside: str = ""
    """The recipe's folder, absolute, where something that the run names stands in a file there; or empty."""

    @property
    def folder(self) -> str:
        """Name of the run's folder inside its experiment."""
        return f"{self.arm}-{self.task.name.replace(':', '-')}-s{self.seed}"

    @property
    def reads_teacher(self) -> bool:
        """Whether the run loads `model.teacher`."""
        return bool(self.model.teacher) and "teacher" in self.algorithm.reference_roles


def rates(learning_rate: Mapping[Role, float], trains: tuple[Role, ...]) -> dict[Role, float]:
    """A learning rate for every trained role and for no other."""
    return {role: learning_rate.get(role, learning_rate["policy"]) for role in ("policy", *trains)}
