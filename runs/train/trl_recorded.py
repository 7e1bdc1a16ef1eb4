"""The work of a trainer of TRL's of recorded pairs: the minibatches of pairs that our loop would make."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpobench.algorithms import trl_arguments
from grpobench.algorithms.algorithm import Batch, Reading, Role
from grpobench.algorithms.trl_arguments import Entry
from grpobench.runs.sample.rollouts import Group, pack_groups
from grpobench.runs.tools.seeds import derive
from grpobench.runs.train.trainer import Trainer
from grpobench.runs.train.trl_work import Work, classes, common_arguments
from grpobench.runs.train.update import minibatches


class Recorded(Work):
    """For a trainer of recorded pairs: the very minibatches of pairs that our loop would make."""

    def __init__(self, trainer: Trainer, done: int, entry: Entry) -> None:
        super().__init__(trainer, entry)
        left = range(done + 1, trainer.config.train.steps + 1)
        self.steps = {step: self._minibatches(step) for step in left}
        self.items = [item for items in self.steps.values() for item in items]
        self.ends = np.cumsum([len(items) for items in self.steps.values()]).tolist()

    def _minibatches(self, step: int) -> list[list[dict[str, list[int]]]]:
        """Token ids of the pairs of each minibatch of a step, as TRL's collator takes them."""
        train, trainer = self.ours.config.train, self.ours
        batch = pack_groups(self.groups(step), trainer.limit, step, trainer.loaded.pad)
        if not len(batch):
            return []
        signal = trainer.algorithm.credit(batch, Blank())
        found = []
        for epoch in range(train.epochs):
            seed = derive(trainer.config.seed, "minibatch", step, epoch)
            for rows in minibatches(batch, signal.unit, train.minibatches, seed):
                part = batch[rows]
                found.append(
                    [
                        {
                            "prompt_ids": part.prompt[chosen, : part.prompt_length[chosen]].tolist(),
                            "chosen_ids": part.completion[chosen, : part.length[chosen]].tolist(),
                            "rejected_ids": part.completion[rejected, : part.length[rejected]].tolist(),
                        }
                        for chosen, rejected in trl_arguments.pairs(signal[rows])
                    ]
                )
        return found

    def trainer(self, place: Path) -> Any:
        from datasets import Dataset

        kind, settings = classes(self.entry)
        loaded = self.ours.loaded
        self.arguments = {
            **common_arguments(self.ours, place),
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "train_sampling_strategy": "sequential",
            "max_steps": max(1, len(self.items)),
            "max_length": None,
            **self.arguments,
        }
        text = {"prompt": "a", "chosen": "b", "rejected": "c"}
        theirs = kind(
            model=loaded.model,
            ref_model=copy.deepcopy(loaded.model),
            args=settings(**self.arguments),
            train_dataset=Dataset.from_list([text]),
            processing_class=loaded.tokenizer,
            optimizers=(self.ours.models.optimisers["policy"].inner, None),
        )
        # TRL would tokenise texts itself, and end every completion, those too that the limit has cut
        collate, theirs.train_dataset = theirs.data_collator, self.items
        theirs.data_collator = lambda items: collate(items[0])
        return theirs

    def groups(self, step: int) -> list[Group]:
        return self.ours.source.gather(step, 0, self.ours.curriculum.draw(step, 0))

    def begin(self, step: int) -> None:
        self.entropy = self.ours.entropy(self.groups(step), step)

    def trained(self, step: int, batch: Batch) -> torch.Tensor:
        if not self.steps[step]:
            return torch.zeros_like(batch.stopped)
        return self.ours.algorithm.credit(batch, Blank()).unit >= 0  # type: ignore[no-any-return]

    def row(self, step: int) -> dict[str, float]:
        pairs = [pair for item in self.steps[step] for pair in item]
        self.ours.updater.trained += sum(
            len(pair["chosen_ids"]) + len(pair["rejected_ids"]) for pair in pairs
        )
        return {self.entry.pairs: float(len(pairs))} if pairs else {}


class Blank:
    """A reference of which nothing is asked but that it can be read."""

    def read(self, role: Role, batch: Batch, *, squares: bool = False) -> Reading:
        nothing = torch.zeros(batch.completion.shape)
        return Reading(nothing, nothing, nothing)
