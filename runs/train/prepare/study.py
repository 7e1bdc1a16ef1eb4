"""The initial policy's view of the training problems and their reference solutions, cached."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from grpobench.algorithms.algorithm import Batch
from grpobench.algorithms.curriculum import Study
from grpobench.runs.metrics.reference import untempered
from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.model_packages import cache_folder
from grpobench.runs.models.roles import MicroBatches, RoleModels
from grpobench.runs.sample.rollouts import Group, pack_groups
from grpobench.runs.tools import files
from grpobench.runs.train.prepare.demonstrations import demonstration, tokens_hash
from grpobench.runs.train.prepare.warmstart import alone
from grpobench.tasks.task import Problem, Task

RECIPE = 1
"""Version of this procedure; changing it makes cached studies stale."""
PROBLEMS = 256
"""Problems that are laid out at once; forward passes take micro-batches of them."""
TENSORS = "study.safetensors"
Tell = Callable[[int, int], None]
"""Called with the number of processed problems and the total."""


def study(
    models: RoleModels,
    loaded: Loaded,
    task: Task,
    problems: Sequence[Problem],
    warm_start: str = "",
    tell: Tell = lambda read, of: None,
) -> Study:
    """Embedding and difficulty of every problem, from the cache if the same model has processed the same
    texts before. `models` must still be the initial policy; `warm_start` names what it learned before. Raises
    DataError for a problem without a reference solution, or longer than the model's context."""
    lessons = [demonstration(loaded, task, problem) for problem in problems]
    name = f"{task.name.replace(':', '-')}-{key(models, loaded, lessons, warm_start)}"
    folder = cache_folder() / "study" / name
    ranks = models.ranks
    # The lock is the run's: of several ranks one takes it.
    with alone(folder) if ranks.writes else contextlib.nullcontext():
        if ranks.broadcast(lambda: not folder.exists()):
            new_study = read(models, loaded, lessons, tell)
            ranks.broadcast(lambda: save(folder, new_study))
    tensors = load_file(folder / TENSORS)
    return Study(tensors["embedding"], tensors["nll"])


def save(folder: Path, problem_study: Study) -> None:
    """Write a study; it appears whole or not at all."""
    with files.becoming(folder, alone=True) as aside:
        save_file({"embedding": problem_study.embedding, "nll": problem_study.nll}, aside / TENSORS)


def key(models: RoleModels, loaded: Loaded, lessons: Sequence[Group], warm_start: str) -> str:
    """A cache key that changes with anything that changes the result."""
    facts = {
        "recipe": RECIPE,
        "model": loaded.provenance,
        "warm_start": warm_start,
        "texts": tokens_hash(lessons),
        "dtype": str(models.dtype),
        "device": models.device.type,
        "torch": str(torch.__version__),
        # They decide what is read together, and so how it is rounded.
        **({"devices": models.ranks.size} if not models.ranks.alone else {}),
    }
    stored = next(models.language.parameters()).dtype
    if stored != torch.float32:
        facts["weights"] = str(stored)
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]


@torch.no_grad()
def read(models: RoleModels, loaded: Loaded, lessons: Sequence[Group], tell: Tell) -> Study:
    """The study itself: log-probabilities at temperature 1, and mean final hidden states."""
    at_temperature_1 = untempered(models)
    embeddings, losses = [], []
    for start in range(0, len(lessons), PROBLEMS):
        tell(start, len(lessons))
        batch = pack_groups(lessons[start : start + PROBLEMS], 0, 0, loaded.pad, str(models.device))
        written = batch.completion_mask
        logp = at_temperature_1.forward("policy", batch).logp
        losses.append(-(logp * written).sum(-1) / written.sum(-1).clamp(min=1))
        embeddings.append(_embedding(models, batch))
    return Study(torch.cat(embeddings).float().cpu(), torch.cat(losses).float().cpu())


def _embedding(models: RoleModels, batch: Batch) -> torch.Tensor:
    """Mean over the tokens of prompt and completion of the trunk's final hidden states, (B, H)."""

    def means(parts: MicroBatches) -> torch.Tensor:
        local_means: list[tuple[torch.Tensor, torch.Tensor]] = []
        for rows in parts:
            (mean,) = models.within_root(functools.partial(_mean_state, models, batch[rows]))
            if not parts.filling:
                local_means.append((rows, mean))
        row_means = models.gathered(local_means)
        order = torch.cat([rows for rows, _ in row_means]).argsort()
        return torch.cat([mean for _, mean in row_means])[order]

    return models.in_micro_batches(batch, torch.arange(len(batch)), means)


def _mean_state(models: RoleModels, micro: Batch) -> list[torch.Tensor]:
    """The same for a micro-batch, as the only tensor of a list."""
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
    trunk = models.networks["policy"].trunk
    with models.precision():
        states = trunk(input_ids=tokens, attention_mask=inside.long(), use_cache=False).last_hidden_state
    return [(states * inside[..., None]).sum(1) / inside.sum(1, keepdim=True)]
