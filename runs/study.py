"""What the initial policy makes of the training problems and their reference solutions."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from grpobench.algorithms.algorithm import Batch, Study
from grpobench.runs.batch import pack_groups
from grpobench.runs.library import Loaded
from grpobench.runs.models import Models
from grpobench.runs.packing import micro_batches
from grpobench.runs.warmstart import demonstration
from grpobench.tasks.task import Problem, Task

PROBLEMS = 256
"""Problems that are laid out at once; they are read in micro-batches."""


@torch.no_grad()
def study(models: Models, loaded: Loaded, task: Task, problems: Sequence[Problem]) -> Study:
    """Embedding and difficulty of every problem. Raises DataError for one without a reference solution or
    longer than the model's context."""
    untempered = copy.copy(models)
    untempered.temperature = 1.0
    embeddings, losses = [], []
    for start in range(0, len(problems), PROBLEMS):
        groups = [demonstration(loaded, task, problem) for problem in problems[start : start + PROBLEMS]]
        batch = pack_groups(groups, 0, 0, loaded.pad, str(models.device))
        written = batch.written
        logp = untempered.read("policy", batch).logp
        losses.append(-(logp * written).sum(-1) / written.sum(-1).clamp(min=1))
        embeddings.append(_embedding(models, batch))
    return Study(torch.cat(embeddings).float().cpu(), torch.cat(losses).float().cpu())


def _embedding(models: Models, batch: Batch) -> torch.Tensor:
    """Mean over the tokens of prompt and completion of the trunk's final hidden states, (B, H)."""
    trunk = models.networks["policy"].trunk
    found = []
    order = []
    for rows in micro_batches(batch, torch.arange(len(batch)), models.budget):
        micro = batch[rows]
        texts = [
            torch.cat([prompt[:before], completion[:after]])
            for prompt, before, completion, after in zip(
                micro.prompt, micro.prompt_length, micro.completion, micro.length, strict=True
            )
        ]
        tokens = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
        inside = torch.arange(tokens.shape[1], device=tokens.device) < torch.tensor(
            [[len(text)] for text in texts], device=tokens.device
        )
        with models.precision():
            states = trunk(input_ids=tokens, attention_mask=inside.long(), use_cache=False).last_hidden_state
        found.append((states * inside[..., None]).sum(1) / inside.sum(1, keepdim=True))
        order.append(rows)
    return torch.cat(found)[torch.cat(order).argsort()]
