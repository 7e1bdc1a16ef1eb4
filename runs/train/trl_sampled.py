"""The work of a trainer of TRL's that samples: problems in the order of our schedule, and our rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.modifiers import overlong
from grpobench.algorithms.trl_arguments import Entry
from grpobench.runs.sample.rollouts import Group, Rollout
from grpobench.runs.settings.trl import prompts, splitting
from grpobench.runs.train.collect import OnPolicy, streams
from grpobench.runs.train.trainer import Trainer
from grpobench.runs.train.trl_work import Work, classes, common_arguments


class Sampled(Work):
    """For a trainer that samples: problems in the order of our schedule, and our rewards."""

    def __init__(self, trainer: Trainer, done: int, entry: Entry) -> None:
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

    def trainer(self, place: Path) -> Any:
        from datasets import Dataset

        config, loaded = self.ours.config, self.ours.loaded
        kind, settings = classes(self.entry)
        rows = config.train.prompts * config.train.group // config.train.minibatches
        at_once = self._rows_at_once(rows)
        self.arguments = {
            **common_arguments(self.ours, place),
            "per_device_train_batch_size": at_once,
            "gradient_accumulation_steps": rows // at_once,
            "steps_per_generation": config.train.minibatches * (rows // at_once),
            "num_iterations": config.train.epochs,
            "num_generations": config.train.group,
            "max_steps": max(1, *self.ends, 1),
            "max_completion_length": self.ours.limit,
            "temperature": config.sampler.temperature,
            "shuffle_dataset": False,
            **self.arguments,
        }
        if self.entry.separate:
            self.arguments["reward_weights"] = list(self.source.grader.weights.values())
        if self.arguments.get("beta"):
            # TRL reads the reference from where the policy's configuration says that it came from
            loaded.model.save_pretrained(place / "reference")
            loaded.model.config._name_or_path = str(place / "reference")
        texts = prompts(loaded, [problem.prompt for problem in self.source.problems])
        table = [{"prompt": texts[i], "problem": i} for i in self.schedule or [0]]
        return kind(
            model=loaded.model,
            reward_funcs=self.rewards(),
            args=settings(**self.arguments),
            train_dataset=Dataset.from_list(table),
            processing_class=loaded.tokenizer,
            optimizers=(self.ours.models.optimisers["policy"].inner, None),
        )

    def _rows_at_once(self, rows: int) -> int:
        """Rows of a minibatch that go forward together, of which all parts have the same number."""
        budget = self.ours.config.train.tokens_per_micro_batch
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
        rewards = [reward for own in self.sampled for reward in own.reward]
        penalties = self._penalties([rollout for own in self.sampled for rollout in own.rollouts])
        return self._graded([reward + more for reward, more in zip(rewards, penalties, strict=True)])

    def _part(self, name: str) -> Callable[..., list[float | None]]:
        first = name == next(iter(self.source.grader.weights))

        def part(completion_ids: Any, problem: Any, **_: Any) -> list[float | None]:
            if first:
                self._grade(completion_ids, problem)
            return self._graded([value for own in self.sampled for value in own.components[name]])

        part.__name__ = name
        return part

    def _graded(self, values: Sequence[float]) -> list[float | None]:
        """The values, but of completions that could not be graded."""
        verdicts = [verdict for own in self.sampled for verdict in own.verdicts]
        return [
            None if verdict.outcome == "infra_error" else value
            for verdict, value in zip(verdicts, values, strict=True)
        ]

    def _grade(self, completion_ids: Sequence[Sequence[int]], problem: Sequence[int]) -> None:
        """Make groups of a step's completions, given the tokens and the problem of each."""
        trainer, group = self.ours, self.ours.config.train.group
        self.step += 1
        problems = [self.source.problems[i] for i in problem]
        flat = [
            Rollout(
                trainer.loaded.encode(own.prompt),
                tuple(tokens),
                np.zeros(len(tokens), dtype=np.float32),
                stopped=bool(tokens) and tokens[-1] in trainer.loaded.end,
            )
            for own, tokens in zip(problems, completion_ids, strict=True)
        ]
        rollouts = [flat[start : start + group] for start in range(0, len(flat), group)]
        with trainer.clock("verify"):
            named = streams(f"{self.step}/0", problems[::group])
            self.sampled = self.source.grader.groups(named, problems[::group], rollouts)
        self.entropy = trainer.entropy(self.sampled, self.step)
        self.source.generated += sum(rollout.length for rollout in flat)
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
        found = {}
        if modify.overlong_buffer:
            found["modify/overlong"] = float(np.mean(self._penalties(rollouts)))
        if modify.mask_truncated:
            found["modify/left_out"] = 1 - len(trained) / len(rollouts)
        return found
