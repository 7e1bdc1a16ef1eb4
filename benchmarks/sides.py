"""A side of `grpobench bench`, ours or TRL's, in a process of its own, which makes one step per command."""

# Both sides load the same weights with the same loader and decode, reward and update the same number of
# tokens: end tokens may be written but do not end a completion, so every completion has exactly the case's
# length. Each side imports only the libraries that it needs, so that its memory is its own.

from __future__ import annotations

import bisect
import contextlib
import multiprocessing
import os
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from grpobench.benchmarks.cases import BenchmarkCase
from grpobench.benchmarks.floor import Floor, floor
from grpobench.runs.tools.process import die_with, environment
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Split, Task, Verdict


class MeasuredSide(Protocol):
    """The commands that the comparison sends to a side."""

    ready: SideReady

    def step(self) -> StepCost: ...

    def floor(self) -> Floor: ...


Start = Callable[[str, BenchmarkCase], contextlib.AbstractContextManager[MeasuredSide]]


class Process:
    """A side in a process of its own."""

    def __init__(self, name: str, connection: Connection, process: Any) -> None:
        self.name, self.connection, self.process = name, connection, process
        first = self.receive()
        assert isinstance(first, SideReady)
        self.ready = first

    def step(self) -> StepCost:
        self.connection.send(STEP)
        step = self.receive()
        assert isinstance(step, StepCost)
        return step

    def floor(self) -> Floor:
        """The floor for our side's model; the side makes no steps afterwards."""
        self.connection.send(FLOOR)
        floor = self.receive()
        assert isinstance(floor, Floor)
        return floor

    def receive(self) -> Message:
        """The side's next message. Raises ConfigError for the user's mistake, ChildProcessError if the side
        cannot continue."""
        try:
            message: Message | Failed = self.connection.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            why = (
                f"signal {-code}; if that is 9, memory may have run out" if code < 0 else f"exit code {code}"
            )
            raise ChildProcessError(f"the process of {self.name} died ({why})") from None
        if isinstance(message, Failed):
            if message.mistake:
                raise ConfigError([message.why])
            raise ChildProcessError(f"{self.name} failed:\n{message.why}")
        return message


@contextlib.contextmanager
def process(name: str, case: BenchmarkCase) -> Iterator[Process]:
    """Start a side and wait until its model is loaded; end its process afterwards."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=serve, args=(there, SIDES[name], case, os.getpid()))
    with environment(OMP_NUM_THREADS=str(case.threads), MKL_NUM_THREADS=str(case.threads)):
        child.start()
    there.close()
    try:
        yield Process(name, here, child)
    finally:
        here.close()
        child.join(5)
        child.kill()
        child.join()


if TYPE_CHECKING:
    from grpobench.runs.models.loading import Loaded
    from grpobench.runs.train.trainer import Trainer

LETTER = "e"
"""The reward of a completion is this character's share of it."""
LEARNING_RATE = 1e-6
WORDS = ("one", "two", "six", "ten", "red", "sun", "map", "cat", "dog", "hat", "cup", "pen", "box", "key")
STEP, FLOOR = "step", "floor"
"""The commands for a side; only ours knows the floor."""
PHASES = ("sample", "verify", "forward", "backward", "optimize")
"""The phases of our trainer's clock; the rest of a step is `other`."""


@dataclass(frozen=True)
class SideReady:
    """A side has loaded its model and waits for the first command."""

    texts: tuple[str, ...]
    facts: Mapping[str, str | int]
    """Versions, threads and device, as this process sees them."""
    before_gb: float
    """Memory in GiB after imports and before the model was loaded."""


@dataclass(frozen=True)
class StepCost:
    """The cost of one step."""

    seconds: float
    cpu_seconds: float
    """Processor time of all threads of the process, without waiting for other programs."""
    tokens: int
    """As `Case.tokens`, counted from what was decoded."""
    peak_gb: float
    """Peak memory in GiB so far, see `runs/tools/machine.py`; it includes the imported libraries."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Our seconds by phase, with `other`; TRL has none."""


@dataclass(frozen=True)
class Failed:
    """A side cannot continue."""

    why: str
    mistake: bool
    """Whether the user can correct it."""


Message = SideReady | StepCost | Floor


Side = Callable[[BenchmarkCase, Connection], None]
"""Loads the model, sends Ready, then answers commands until the parent has gone, which raises EOFError."""


def serve(connection: Connection, side: Side, case: BenchmarkCase, parent: int) -> None:
    """The main function of a side's process. The output of its libraries goes to standard error."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which ends this process.
    os.dup2(2, 1)
    try:
        side(case, connection)
    except DataError as error:
        connection.send(Failed(str(error), True))
    except BaseException as error:
        with contextlib.suppress(OSError):  # nobody listens where the parent has gone
            connection.send(Failed("".join(traceback.format_exception(error)), False))


def facts() -> dict[str, str | int]:
    import torch
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "threads": torch.get_num_threads(),
        "device": device,
        "torch": str(torch.__version__),
        "transformers": str(transformers.__version__),
    }


class Stopwatch:
    """Wall and processor seconds since this clock was created."""

    def __init__(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Both, after the GPU has finished its work."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - self.began[0], time.process_time() - self.began[1]


def prompt_texts(encode: Callable[[str], Sequence[int]], count: int, tokens: int) -> tuple[str, ...]:
    """`count` different texts that `encode` turns into exactly `tokens` ids each.

    Raises DataError if that is impossible, for example because a chat template alone is longer.
    """
    rng = random.Random(0)
    texts: dict[str, None] = {}
    for _ in range(20 * count):
        text = " ".join(rng.choice(WORDS) for _ in range(2 * tokens))
        length = bisect.bisect_left(range(len(text)), tokens, key=lambda end: len(encode(text[:end])))
        if len(encode(text[:length])) == tokens:
            texts[text[:length]] = None
        if len(texts) == count:
            return tuple(texts)
    least = len(encode(""))
    raise DataError(
        f"no {count} prompts of exactly {tokens} tokens were found (an empty one has {least}); "
        "bench another model"
    )


# Ours


@dataclass(frozen=True)
class FixedPrompts(Task):
    """Fixed prompts; the score is a letter's share of the completion."""

    name: ClassVar[str] = "bench"
    source: ClassVar[str] = "random words"
    summary: ClassVar[str] = "fixed prompts of one length, for measuring speed"
    scores: ClassVar[tuple[str, ...]] = ("share",)
    reward: ClassVar[Mapping[str, float]] = {"share": 1.0}
    max_completion_tokens: ClassVar[int] = 24
    texts: tuple[str, ...] = ()

    def problems(self, split: Split) -> list[Problem]:
        return [Problem(str(number), text, None) for number, text in enumerate(self.texts)]

    def verify(self, problem: Problem, completions: Sequence[str]) -> list[Verdict]:
        return [Verdict({"share": share(text)}, None) for text in completions]

    def demonstrate(self, problem: Problem) -> str:
        return LETTER


def share(text: str) -> float:
    """The reward on both sides."""
    return text.count(LETTER) / max(1, len(text))


def ours(case: BenchmarkCase, connection: Connection) -> None:
    """The trainer of `runs/train/trainer.py`, in the precision and with the defaults of a run."""
    import torch

    from grpobench.runs.tools.determinism import deterministic
    from grpobench.runs.tools.machine import read_peak_memory_gb, reset_peak_memory

    torch.set_num_threads(case.threads)
    deterministic()
    import_models()
    import_loop()
    reset_peak_memory()
    before = read_peak_memory_gb()
    trainer = our_trainer(case)
    prompt_tokens = sum(len(trainer.loaded.encode(text)) for text in case.texts) * case.group
    connection.send(SideReady(case.texts, facts(), before))
    number = 0
    while connection.recv() == STEP:
        number += 1
        clock = Stopwatch()
        row = trainer.step(number)
        seconds, cpu_seconds = clock.read()
        phases = {name: row.get(f"time/{name}", 0.0) for name in PHASES}
        phases["other"] = seconds - sum(phases.values())
        completions = [completion for group in trainer.transcript for completion in group["completions"]]
        tokens = prompt_tokens + sum(int(completion["tokens"]) for completion in completions)
        connection.send(StepCost(seconds, cpu_seconds, tokens, read_peak_memory_gb(), phases))
    connection.send(floor(case, trainer.loaded.model))


def our_trainer(case: BenchmarkCase) -> Trainer:
    """Our trainer on the case's prompts, with completions that nothing ends."""
    import torch

    from grpobench.algorithms.grpo import GRPO
    from grpobench.runs.sample.in_process import HFSampler
    from grpobench.runs.settings import config
    from grpobench.runs.train.parts import build
    from grpobench.runs.train.trainer import Trainer

    run = config.RunConfig(
        experiment="bench",
        arm="grpo",
        seed=0,
        algorithm=GRPO(),
        task=FixedPrompts(texts=case.texts),
        model=config.ModelConfig(case.model, dtype=case.dtype),
        sampler=config.SamplerConfig(max_completion_tokens=case.completion_tokens),
        reward=config.RewardConfig(),
        train=config.TrainConfig(
            steps=case.steps,
            prompts_per_step=case.prompts,
            group_size=case.group,
            learning_rate={"policy": LEARNING_RATE},
            **dict(case.train),
        ),
        evaluate=config.EvaluateConfig(),
        checkpoint=config.CheckpointConfig(),
    )
    trainer = Trainer(run, build(run))
    assert isinstance(trainer.sampler, HFSampler)
    trainer.sampler.end = torch.tensor([impossible(trainer.loaded)], device=trainer.models.device)
    return trainer


def impossible(loaded: Loaded) -> int:
    """A token id that no model can write: as the end token, it ends nothing."""
    return int(loaded.model.get_input_embeddings().num_embeddings)


def import_models() -> None:
    """Import what loading and training a model would import at its first use."""
    import torch
    import transformers

    _ = transformers.AutoModelForCausalLM, transformers.AutoTokenizer, torch.optim.AdamW


def import_loop() -> None:
    """Import what our side needs, so that it does not count as memory of the model."""
    from grpobench.runs.train import parts, trainer

    _ = parts, trainer


# TRL's


def trl(case: BenchmarkCase, connection: Connection) -> None:
    """TRL's GRPOTrainer through its own `train`. Work between two steps is not counted."""
    import torch
    from datasets import Dataset
    from trl.trainer.grpo_trainer import GRPOTrainer

    from grpobench.runs.models.loading import load
    from grpobench.runs.settings.trl import version
    from grpobench.runs.tools.machine import read_peak_memory_gb, reset_peak_memory
    from grpobench.runs.train.trl.arguments import prompts, quiet

    quiet()
    torch.set_num_threads(case.threads)
    import_models()
    reset_peak_memory()
    before = read_peak_memory_gb()
    loaded = load(case.model)
    texts = case.texts or prompt_texts(loaded.encode, case.prompts, case.prompt_tokens)
    end = impossible(loaded)
    table = [{"prompt": prompt} for prompt in prompts(loaded, texts) * case.steps]
    with tempfile.TemporaryDirectory(prefix="grpobench-") as folder:
        trainer = GRPOTrainer(
            model=loaded.model,
            reward_funcs=shares,
            args=arguments(case, folder, end),
            train_dataset=Dataset.from_list(table),
            processing_class=loaded.tokenizer,
            callbacks=[gate(connection, read_peak_memory_gb)],
        )
        trainer.eos_token_ids = [end]  # otherwise it would cut completions at an end token itself
        torch.set_num_threads(case.threads)
        connection.send(SideReady(texts, {**facts(), "trl": version()}, before))
        trainer.train()


def shares(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """TRL's reward function; a chat's completion is a list of messages."""
    texts = [part if isinstance(part, str) else part[-1]["content"] for part in completions]
    return [share(text) for text in texts]


def arguments(case: BenchmarkCase, folder: str, end: int) -> Any:
    """The same work as ours, without logging."""
    import torch
    from trl.trainer.grpo_config import GRPOConfig

    from grpobench.runs.train.trl.arguments import plain_arguments

    accumulated = case.rows // (case.micro_batch or case.rows)
    return GRPOConfig(
        **plain_arguments(folder),
        per_device_train_batch_size=case.micro_batch or case.rows,
        gradient_accumulation_steps=accumulated,
        steps_per_generation=accumulated,
        num_iterations=1,
        num_generations=case.group,
        max_completion_length=case.completion_tokens,
        max_steps=case.steps,
        temperature=1.0,
        generation_kwargs={"eos_token_id": [end]},
        shuffle_dataset=False,
        loss_type="grpo",
        scale_rewards="group",
        beta=0.0,
        learning_rate=LEARNING_RATE,
        adam_beta2=0.95,
        bf16=case.dtype == "bfloat16",
        use_cpu=not torch.cuda.is_available(),  # without it bf16 is refused on a CPU
        use_vllm=False,
        logging_strategy="no",
    )


def gate(connection: Connection, peak: Callable[[], float]) -> Any:
    """A callback that holds every step back until the parent asks for it."""
    from transformers import TrainerCallback

    class StepGate(TrainerCallback):
        clock = Stopwatch()
        tokens_before = 0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            connection.recv()
            self.tokens_before = int(state.num_input_tokens_seen)
            self.clock = Stopwatch()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seconds, cpu_seconds = self.clock.read()
            connection.send(
                StepCost(seconds, cpu_seconds, int(state.num_input_tokens_seen) - self.tokens_before, peak())
            )

    return StepGate()


SIDES: Mapping[str, Side] = {"ours": ours, "trl": trl}
