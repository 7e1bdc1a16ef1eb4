"""What a trainer of TRL's is given: recorded pairs, or problems and rewards."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpobench.algorithms.algorithm import Batch, ModelOutput, Role
from grpobench.algorithms.libraries import trl_arguments
from grpobench.algorithms.libraries.trl_arguments import TRLTrainer
from grpobench.algorithms.modifiers import overlong
from grpobench.runs.sample.rollouts import Group, Rollout, count_sampled_tokens, pack_groups
from grpobench.runs.settings.trl import splitting
from grpobench.runs.tools.seeds import derive
from grpobench.runs.train.rollouts import OnPolicy, streams
from grpobench.runs.train.trainer import Trainer
from grpobench.runs.train.trl.arguments import plain_arguments, prompts
from grpobench.runs.train.update import minibatches


class Work(ABC):
    """What a trainer of TRL's is given, and what our metrics need to know of it."""

    ends: Sequence[int]
    """Updates that are done, counted from the start of the attempt, after each of the steps that are left."""

    def __init__(self, trainer: Trainer, entry: TRLTrainer) -> None:
        config = trainer.config
        self.ours, self.entry = trainer, entry
        self.arguments, _ = trl_arguments.translate(config.algorithm, config.modify, splitting(config))
        """Of TRL's configuration."""
        self.names = trl_arguments.metric_names(entry, self.arguments)
        """TRL's names of metrics, and ours."""
        self.measured = {"policy/entropy": math.nan}
        """Of the policy before the updates of the step under way, as our own loop logs it."""

    @abstractmethod
    def trainer(self, output_folder: Path) -> Any:
        """TRL's trainer; `output_folder` is a folder for its files."""

    @abstractmethod
    def groups(self, step: int) -> list[Group]:
        """What the step sampled or drew."""

    @abstractmethod
    def begin(self, step: int) -> None:
        """A step is about to begin; nothing is sampled yet."""

    @abstractmethod
    def trained(self, step: int, batch: Batch) -> torch.Tensor:
        """Bool (B,): rows of the step's graded rollouts that its updates used."""

    @abstractmethod
    def row(self, step: int) -> dict[str, float]:
        """Metrics of the step that only this kind of work has; counts what was trained."""


def common_arguments(trainer: Trainer, output_folder: Path) -> dict[str, Any]:
    train = trainer.config.train
    return {
        **plain_arguments(str(output_folder)),
        "gradient_checkpointing": train.activation_checkpointing,
        "learning_rate": train.learning_rate["policy"],
        "max_grad_norm": train.max_grad_norm,
        "bf16": trainer.config.model.dtype == "bfloat16",
        "use_cpu": trainer.models.device.type == "cpu",
        # As in our loop, whose models stay in evaluation mode.
        "disable_dropout": True,
        # transformers drops columns that are no arguments of the model, such as `problem`.
        "remove_unused_columns": False,
        "seed": derive(trainer.config.seed, "trl") % 2**32,  # NumPy takes 32 bits
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # else a loss of NaN would not show
    }


def classes(entry: TRLTrainer) -> tuple[Any, Any]:
    """TRL's trainer and its configuration."""
    import trl

    return getattr(trl, f"{entry.trainer}Trainer"), getattr(trl, f"{entry.trainer}Config")


class RecordedPairs(Work):
    """For a trainer of recorded pairs: the very minibatches of pairs that our loop would make."""

    def __init__(self, trainer: Trainer, done: int, entry: TRLTrainer) -> None:
        super().__init__(trainer, entry)
        left = range(done + 1, trainer.config.train.steps + 1)
        self.steps = {step: self._minibatches(step) for step in left}
        self.items = [minibatch for items in self.steps.values() for minibatch in items]
        self.ends = np.cumsum([len(items) for items in self.steps.values()]).tolist()

    def _minibatches(self, step: int) -> list[list[dict[str, list[int]]]]:
        """Token ids of the pairs of each minibatch of a step, as TRL's collator takes them."""
        train, trainer = self.ours.config.train, self.ours
        batch = pack_groups(self.groups(step), trainer.limit, step, trainer.loaded.pad)
        if not len(batch):
            return []
        signal = trainer.algorithm.compute_signal(batch, Blank())
        pair_minibatches = []
        for epoch in range(train.epochs):
            seed = derive(trainer.config.seed, "minibatch", step, epoch)
            for rows in minibatches(batch, signal.row_group, train.num_minibatches, seed):
                part = batch[rows]
                pair_minibatches.append(
                    [
                        {
                            "prompt_ids": part.prompt[chosen, : part.prompt_length[chosen]].tolist(),
                            "chosen_ids": part.completion[chosen, : part.length[chosen]].tolist(),
                            "rejected_ids": part.completion[rejected, : part.length[rejected]].tolist(),
                        }
                        for chosen, rejected in trl_arguments.list_pairs(signal[rows])
                    ]
                )
        return pair_minibatches

    def trainer(self, output_folder: Path) -> Any:
        from datasets import Dataset

        kind, settings = classes(self.entry)
        loaded = self.ours.loaded
        self.arguments = {
            **common_arguments(self.ours, output_folder),
            "per_device_train_batch_size": 1,  # an item is a minibatch
            "gradient_accumulation_steps": 1,
            "train_sampling_strategy": "sequential",  # the default shuffles
            "max_steps": max(1, len(self.items)),  # 0 would mean epochs
            "max_length": None,  # the default cuts at 1,024 tokens
            **self.arguments,
        }
        text = {"prompt": "a", "chosen": "b", "rejected": "c"}
        theirs = kind(
            model=loaded.model,
            # TRL would load one by the name in the configuration, without the warm start.
            ref_model=copy.deepcopy(loaded.model),
            args=settings(**self.arguments),
            train_dataset=Dataset.from_list([text]),
            processing_class=loaded.tokenizer,
            optimizers=(self.ours.models.optimizers["policy"].inner, None),
        )
        # TRL would tokenize texts itself, and end every completion, those too that the limit has cut
        collate, theirs.train_dataset = theirs.data_collator, self.items
        theirs.data_collator = lambda items: collate(items[0])
        return theirs

    def groups(self, step: int) -> list[Group]:
        return self.ours.source.gather(step, 0, self.ours.curriculum.draw(step, 0))

    def begin(self, step: int) -> None:
        self.measured = self.ours.policy_metrics(self.groups(step), step)

    def trained(self, step: int, batch: Batch) -> torch.Tensor:
        if not self.steps[step]:
            return torch.zeros_like(batch.stopped)
        return self.ours.algorithm.compute_signal(batch, Blank()).row_group >= 0  # type: ignore[no-any-return]

    def row(self, step: int) -> dict[str, float]:
        pairs = [pair for minibatch in self.steps[step] for pair in minibatch]
        self.ours.updater.trained += sum(
            len(pair["chosen_ids"]) + len(pair["rejected_ids"]) for pair in pairs
        )
        return {self.entry.pairs: float(len(pairs))} if pairs else {}


class Blank:
    """A reference of which nothing is asked but that it can be read."""

    def forward(self, role: Role, batch: Batch, *, squares: bool = False) -> ModelOutput:
        nothing = torch.zeros(batch.completion.shape)
        return ModelOutput(nothing, nothing, nothing)


class Sampled(Work):
    """For a trainer that samples: problems in the order of our schedule, and our rewards."""

    def __init__(self, trainer: Trainer, done: int, entry: TRLTrainer) -> None:
        super().__init__(trainer, entry)
        config = trainer.config
        assert isinstance(trainer.source, OnPolicy)
        self.source = trainer.source
        self.step = done
        """The step whose completions were rewarded last."""
        self.sampled: list[Group] = []
        updates = splitting(config).updates
        left = range(done + 1, config.train.steps + 1)
        self.ends = [updates * (step - done) for step in left]
        self.schedule = [index for step in left for index in trainer.curriculum.draw(step, 0)]

    def trainer(self, output_folder: Path) -> Any:
        from datasets import Dataset

        config, loaded = self.ours.config, self.ours.loaded
        kind, settings = classes(self.entry)
        rows = config.train.prompts_per_step * config.train.group_size // config.train.num_minibatches
        at_once = self._rows_at_once(rows)
        self.arguments = {
            **common_arguments(self.ours, output_folder),
            "per_device_train_batch_size": at_once,
            "gradient_accumulation_steps": rows // at_once,
            "steps_per_generation": config.train.num_minibatches * (rows // at_once),
            "num_iterations": config.train.epochs,
            "num_generations": config.train.group_size,
            # 0 would mean epochs instead of steps.
            "max_steps": max(1, *self.ends, 1),
            "max_completion_length": self.ours.limit,
            "temperature": config.sampler.temperature,
            "shuffle_dataset": False,  # the schedule decides
            **self.arguments,
        }
        if self.entry.separate:
            self.arguments["reward_weights"] = list(self.source.grader.weights.values())
        if self.arguments.get("beta"):
            # TRL reads the reference from where the policy's configuration says that it came from
            loaded.model.save_pretrained(output_folder / "reference")
            loaded.model.config._name_or_path = str(output_folder / "reference")
        texts = prompts(loaded, [problem.prompt for problem in self.source.problems])
        table = [{"prompt": texts[i], "problem": i} for i in self.schedule or [0]]  # never empty
        return kind(
            model=loaded.model,
            reward_funcs=self.rewards(),
            args=settings(**self.arguments),
            train_dataset=Dataset.from_list(table),
            processing_class=loaded.tokenizer,
            optimizers=(self.ours.models.optimizers["policy"].inner, None),
        )

    def _rows_at_once(self, rows: int) -> int:
        """Rows of a minibatch that go forward together, of which all parts have the same number."""
        budget = self.ours.config.train.micro_batch_tokens
        if not budget:
            return rows
        longest = max(len(self.ours.loaded.encode(problem.prompt)) for problem in self.source.problems)
        most = max(1, budget // (longest + self.ours.limit))
        return max(part for part in range(1, rows + 1) if rows % part == 0 and part <= most)

    def rewards(self) -> list[Callable[..., list[float | None]]]:
        """TRL's reward functions, each called once per rollout batch; None leaves a completion out."""
        return list(map(self._part, self.source.grader.weights)) if self.entry.separate else [self.reward]

    def reward(self, completion_ids: Any, problem: Any, **_: Any) -> list[float | None]:
        """The recipe's whole reward of each completion."""
        self._grade(completion_ids, problem)
        rewards = [reward for group in self.sampled for reward in group.reward]
        penalties = self._penalties([rollout for group in self.sampled for rollout in group.rollouts])
        return self._graded([reward + more for reward, more in zip(rewards, penalties, strict=True)])

    def _part(self, name: str) -> Callable[..., list[float | None]]:
        first = name == next(iter(self.source.grader.weights))

        def part(completion_ids: Any, problem: Any, **_: Any) -> list[float | None]:
            # TRL calls the functions in order; one grading serves them all.
            if first:
                self._grade(completion_ids, problem)
            return self._graded([value for group in self.sampled for value in group.components[name]])

        # TRL names a reward's metrics after its function.
        part.__name__ = name
        return part

    def _graded(self, values: Sequence[float]) -> list[float | None]:
        """The values, but of completions that could not be graded."""
        verdicts = [verdict for group in self.sampled for verdict in group.verdicts]
        return [
            None if verdict.outcome == "infra_error" else value
            for verdict, value in zip(verdicts, values, strict=True)
        ]

    def _grade(self, completion_ids: Sequence[Sequence[int]], problem: Sequence[int]) -> None:
        """Make groups of a step's completions, given the tokens and the problem of each."""
        trainer, group = self.ours, self.ours.config.train.group_size
        # Called once per step: TRL samples the completions of all its minibatches at once.
        self.step += 1
        problems = [self.source.problems[i] for i in problem]
        flat = [
            Rollout(
                trainer.loaded.encode(task_problem.prompt),
                tuple(tokens),
                # TRL tells a reward function no log-probabilities.
                np.zeros(len(tokens), dtype=np.float32),
                stopped=bool(tokens) and tokens[-1] in trainer.loaded.end,
            )
            for task_problem, tokens in zip(problems, completion_ids, strict=True)
        ]
        rollouts = [flat[start : start + group] for start in range(0, len(flat), group)]
        with trainer.clock("verify"):
            # TRL has the completions of a prompt one after another: every group's first row names its
            # problem.
            stream_names = streams(f"{self.step}/0", problems[::group])
            self.sampled = self.source.grader.groups(stream_names, problems[::group], rollouts)
        self.measured = trainer.policy_metrics(self.sampled, self.step)
        self.source.generated += sum(rollout.length for rollout in flat)
        self.source.sampler_tokens += count_sampled_tokens(rollouts)
        trainer.tell(self.step - 1, "training")

    def _penalties(self, rollouts: Sequence[Rollout]) -> list[float]:
        """Soft overlong punishment of each completion, 0 where the recipe has none."""
        modify = self.ours.config.modify
        if not modify.overlong_buffer:
            return [0.0] * len(rollouts)
        lengths = torch.tensor([rollout.length for rollout in rollouts])
        penalty = overlong(lengths, self.ours.limit, modify.overlong_buffer)
        return (modify.overlong_penalty * penalty).tolist()

    def groups(self, step: int) -> list[Group]:
        assert step == self.step
        return self.sampled

    def begin(self, step: int) -> None:
        """What is sampled tells."""

    def trained(self, step: int, batch: Batch) -> torch.Tensor:
        return batch.stopped | (not self.ours.config.modify.mask_truncated)

    def row(self, step: int) -> dict[str, float]:
        modify = self.ours.config.modify
        rollouts = [rollout for group in self.sampled for rollout in group.rollouts]
        trained = [rollout for rollout in rollouts if rollout.stopped or not modify.mask_truncated]
        self.ours.updater.trained += sum(r.length for r in trained) * self.ours.config.train.epochs
        metrics = {}
        if modify.overlong_buffer:
            metrics["modify/overlong"] = float(np.mean(self._penalties(rollouts)))
        if modify.mask_truncated:
            metrics["modify/left_out"] = 1 - len(trained) / len(rollouts)
        return metrics
