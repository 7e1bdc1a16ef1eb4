"""Fit a small policy to a written distribution, so that its entropy and success rates are known.

    python -m grpobench.runs.models.written OUT --task letters

The target of each token is the whole distribution that the task writes down (`tasks/kinds/written.py`): the
loss is an exact KL divergence, without the noise of sampled targets. Prompts are of every length and context
that the task knows.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import random
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from grpobench.runs.models.nano import architecture, character_tokenizer, save
from grpobench.tasks import TASKS
from grpobench.tasks.kinds.written import END, Written
from grpobench.tasks.letters import CONTEXTS, LENGTHS
from grpobench.tasks.task import Problem
from grpobench.tasks.walk import CONTEXTS as WALK_CONTEXTS

SIZES = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "max_position_embeddings": 256}
"""113,000 parameters; heads as of `nano`."""
PROBLEMS = 2048
EPISODES = 4
"""Drawn for each problem."""


def variants(name: str) -> list[Written]:
    """The task in every setting that its policy has to know."""
    task: Any = TASKS[name]
    if name == "walk":
        return [task(contexts=len(WALK_CONTEXTS), train=PROBLEMS)]
    if name != "letters":
        return [task(train=PROBLEMS)]
    return [task(length=n, contexts=len(CONTEXTS), train=PROBLEMS) for n in LENGTHS]


@dataclasses.dataclass(frozen=True)
class DrawnEpisode:
    """An episode with the distribution behind each of the policy's tokens."""

    prompt: list[int]
    tokens: list[int]
    targets: list[dict[int, float] | None]
    """By token; None where the environment wrote."""


def path_of(tokenizer: Any, task: Written, problem: Problem, rng: random.Random) -> DrawnEpisode:
    """Draw an episode as a sampler would see it: a turn that ends by its sign is closed by an end token."""
    end = tokenizer.eos_token_id
    tokens: list[int] = []
    targets: list[dict[int, float] | None] = []
    turns: Sequence[str] = task.draw_episode(problem, rng)
    for number, turn in enumerate(turns):
        for position in range(len(turn) + 1):
            if position == len(turn) and task.turn_end and turn.endswith(task.turn_end):
                break
            following = task.distribution(problem, [*turns[:number], turn[:position]])
            targets.append({code(tokenizer, c): p for c, p in following.items()})
            tokens.append(code(tokenizer, turn[position]) if position < len(turn) else end)
        if number + 1 < len(turns):
            reply = task.reply(problem, turns[: number + 1])
            assert reply is not None
            # A turn that the policy closed itself has its end token already.
            between = [end, *tokenizer.encode(reply)][tokens[-1] == end :]
            tokens += between
            targets += [None] * len(between)
    return DrawnEpisode(tokenizer.encode(problem.text), tokens, targets)


@functools.cache
def code(tokenizer: Any, character: str) -> int:
    """The token of a character, or the end token."""
    return int(tokenizer.eos_token_id if character == END else tokenizer.encode(character)[0])


def batch_of(paths: Sequence[DrawnEpisode], vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (B, T), and the target of the token after each (B, T, V), zero where there is none."""
    width = max(len(path.prompt) + len(path.tokens) for path in paths)
    tokens = torch.zeros(len(paths), width, dtype=torch.long)
    targets = torch.zeros(len(paths), width, vocabulary)
    for row, path in enumerate(paths):
        sequence = [*path.prompt, *path.tokens]
        tokens[row, : len(sequence)] = torch.tensor(sequence)
        for position, following in enumerate(path.targets):
            for token, p in (following or {}).items():
                # At the token before, whose logits predict it.
                targets[row, len(path.prompt) + position - 1, token] = p
    return tokens, targets


def divergence(model: Any, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """KL(target ‖ model) in nats of each position with a target, shape (N,)."""
    has_target = targets.sum(-1) > 0
    logp = model(input_ids=tokens).logits[has_target].log_softmax(-1)
    p = targets[has_target]
    # 0 · log 0 is NaN, and most tokens have the target 0.
    total: torch.Tensor = (p * (p.clamp_min(1e-30).log() - logp)).sum(-1)
    return total


def fit(model: Any, tokenizer: Any, tasks: Sequence[Written], options: argparse.Namespace) -> list[float]:
    """AdamW with warm-up and cosine decay on the mean divergence; returns it for the last 100 updates."""
    rng = random.Random(options.seed)
    pool = [
        path_of(tokenizer, task, problem, rng)
        for task in tasks
        for problem in task.problems("train")
        for _ in range(EPISODES)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    losses = []
    for step in range(options.steps):
        scale = min(1.0, (step + 1) / 200) * 0.5 * (1 + math.cos(math.pi * step / options.steps))
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * max(scale, 1e-3)
        tokens, targets = batch_of(rng.choices(pool, k=options.rows), len(tokenizer))
        loss = divergence(model, tokens, targets).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 250 == 249:
            print(f"{step + 1}/{options.steps} KL {sum(losses[-100:]) / 100:.6f} nats", flush=True)
    return losses[-100:]


def make(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    tokenizer, model = character_tokenizer(), architecture("dense", **SIZES)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    tasks = variants(options.task)
    losses = fit(model, tokenizer, tasks, options)
    command = shlex.join(["python", "-m", "grpobench.runs.models.written", *sys.argv[1:]])
    made = {"commands": [command], "divergence_nats": sum(losses) / len(losses)}
    save(model, tokenizer, Path(options.out), made)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out")
    parser.add_argument("--task", choices=("letters", "signed", "walk"), required=True)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    make(parser.parse_args())


if __name__ == "__main__":
    main()
