"""The built-in nano policies: a character-level tokenizer, two small models, and the script that makes them.

    python -m grpobench.runs.models.nano OUT --architecture dense --mix TASK=SHARE ...

trains a model on problems with their reference answers, never on a problem of a validation or test split.
With `--lapses` a share of the answers is careless (no working, an example's output as a constant): like a
real base model the policy then knows a good and a poor way to answer, and reinforcement has something to
elicit. `--start` goes on from an earlier result; a dense one becomes a mixture of experts by copying its
feed-forward layers into every expert (sparse upcycling, arXiv:2212.05055).
The loss is the mean over answer tokens plus a small share of the mean over prompt tokens, which teaches the
model to read its examples (the later outputs of a code problem follow from the earlier ones).
`runs/models/policies/*/provenance.json` records the exact command that made what is shipped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from grpobench.tasks.data import bounded

ALPHABET = "\n" + "".join(chr(c) for c in range(32, 127))
SPECIAL = ("<pad>", "<eos>", "<unk>")
VOCABULARY = len(SPECIAL) + len(ALPHABET)
CONTEXT = 1024
PROMPT_SHARE = 0.1
WARM_UP = 200
"""Updates over which the learning rate rises."""


def character_tokenizer() -> Any:
    """A `PreTrainedTokenizerFast` with one token per printable ASCII character or newline."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    # Not `.`, which leaves out the newline.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    # Without a decoder the characters would come back with spaces between them.
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="right",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,  # a space before a comma is a token here
    )


def architecture(kind: str, **sizes: int) -> Any:
    """An untrained model: `dense` is a Llama of 0.9 M parameters; `moe` a Mixtral of 2.6 M with the same
    attention and four experts, of which each token uses two. `sizes` replace values of its configuration."""
    import transformers

    shared: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,  # a Llama's default is 1, the end token here
        **sizes,
    }
    if kind == "dense":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shared, rms_norm_eps=1e-6))
    experts: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    rope = {"rope_type": "default", "rope_theta": 10000.0}  # a Mixtral's default is 1e6, a Llama's 1e4
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**shared, **experts, rope_parameters=rope, rms_norm_eps=1e-6)
    )


def examples(
    name: str, settings: dict[str, Any], size: int, seed: int, lapses: float
) -> list[tuple[str, str]]:
    """(prompt, answer) of `size` training problems of a task. A share of `lapses` gets the careless answer
    of a task that has one (`Lapsing`), the others the reference answer."""
    from grpobench.tasks import TASKS
    from grpobench.tasks.kinds.generated import Lapsing

    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    task = dataclasses.replace(TASKS[name](), **settings)
    problems = dataclasses.replace(task, seed=seed, train=size).problems("train")  # type: ignore[call-arg]
    rng = random.Random(seed)
    careless = task.lapse if isinstance(task, Lapsing) else task.demonstrate
    return [(p.text, careless(p) if rng.random() < lapses else task.demonstrate(p)) for p in problems]


def batches(
    pool: Sequence[tuple[list[int], list[int]]], rows: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless shuffled batches: tokens (rows, T), and kinds (rows, T): 0 padding, 1 prompt, 2 answer."""
    rng = random.Random(seed)
    while True:
        order = rng.sample(range(len(pool)), len(pool))
        for start in range(0, len(order) - rows + 1, rows):
            chosen = [pool[i] for i in order[start : start + rows]]
            width = max(len(p) + len(a) for p, a in chosen)
            tokens = torch.zeros(rows, width, dtype=torch.long)
            kinds = torch.zeros(rows, width, dtype=torch.long)
            for row, (prompt, answer) in enumerate(chosen):
                end = len(prompt) + len(answer)
                tokens[row, :end] = torch.tensor(prompt + answer)
                kinds[row, :end] = 1
                kinds[row, len(prompt) : end] = 2
            yield tokens, kinds


def supervise(
    model: Any, streams: dict[str, Iterator[Any]], shares: dict[str, float], options: argparse.Namespace
) -> None:
    """AdamW with linear warm-up and cosine decay; each update takes a batch of one task by its share."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    rng = random.Random(options.seed)
    names, weights = list(shares), list(shares.values())
    began, shown = time.monotonic(), dict.fromkeys(names, 0.0)
    for step in range(options.steps):
        progress = step / (options.schedule or options.steps)
        scale = min(1.0, (step + 1) / WARM_UP) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * scale
        name = rng.choices(names, weights)[0]
        tokens, kinds = next(streams[name])
        # Logits predict the next token, so that the kinds are those of the tokens one to the right.
        errors = F.cross_entropy(model(input_ids=tokens).logits[:, :-1].mT, tokens[:, 1:], reduction="none")
        loss = errors[kinds[:, 1:] == 2].mean()
        (loss + PROMPT_SHARE * errors[kinds[:, 1:] == 1].mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shown[name] = 0.95 * shown[name] + 0.05 * loss.item() if shown[name] else loss.item()
        if step % 250 == 249:
            losses = " ".join(f"{name} {value:.3f}" for name, value in shown.items())
            print(f"{step + 1}/{options.steps} {time.monotonic() - began:.0f}s {losses}", flush=True)


def going_on(start: str, model: Any) -> Any:
    """The model of folder `start`; upcycled where `model` is a mixture of experts and that one is dense."""
    from transformers import AutoModelForCausalLM

    before: Any = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32, trust_remote_code=False)
    return before if before.config.model_type == model.config.model_type else upcycled(before, model)


def upcycled(dense: Any, mixture: Any, noise: float = 0.02) -> Any:
    """`mixture` with the dense model's weights, and its feed-forward layers in every expert. `noise` is the
    relative size of the normal perturbation that lets experts become different; without it the two models
    give the same logits, because a token's expert weights sum to 1."""
    dense_weights = dict(dense.named_parameters())
    with torch.no_grad():
        for name, parameter in mixture.named_parameters():
            if name in dense_weights:
                parameter.copy_(dense_weights[name])
            # Routers have no counterpart in a dense model: they keep their random numbers.
            elif name.endswith("experts.gate_up_proj"):
                mlp = name.removesuffix("experts.gate_up_proj")
                # transformers splits this tensor into gate and up, in this order.
                both = torch.cat(
                    [dense_weights[f"{mlp}gate_proj.weight"], dense_weights[f"{mlp}up_proj.weight"]]
                )
                parameter.copy_(both.expand_as(parameter))
                parameter.mul_(1 + noise * torch.randn_like(parameter))
            elif name.endswith("experts.down_proj"):
                parameter.copy_(
                    dense_weights[name.replace("experts.down_proj", "down_proj.weight")].expand_as(parameter)
                )
                parameter.mul_(1 + noise * torch.randn_like(parameter))
    return mixture


def make(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    tokenizer, model = character_tokenizer(), architecture(options.architecture)
    if options.start:
        model = going_on(options.start, model)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    streams, shares = {}, {}
    for part in options.mix:
        name, _, share = part.partition("=")
        shares[name] = float(share or 1)
        settings = bounded.parse_json(options.settings).get(name, {})
        pairs = examples(name, settings, options.examples, options.seed + 1000, options.lapses)
        pool = [(tokenizer.encode(p), [*tokenizer.encode(a), tokenizer.eos_token_id]) for p, a in pairs]
        streams[name] = batches(pool, options.rows, options.seed)
    supervise(model, streams, shares, options)
    before = Path(options.start or options.out, "provenance.json")
    earlier = bounded.read_object(before)["commands"] if options.start and before.exists() else []
    command = shlex.join(["python", "-m", "grpobench.runs.models.nano", *sys.argv[1:]])
    save(model, tokenizer, Path(options.out), {"commands": [*earlier, command]})


def save(model: Any, tokenizer: Any, out: Path, made: dict[str, Any]) -> None:
    """Write a policy in bfloat16, and provenance.json with how it was made."""
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    provenance = {**made, "torch": str(torch.__version__), "threads": torch.get_num_threads()}
    (out / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out")
    parser.add_argument("--architecture", choices=("dense", "moe"), default="dense")
    parser.add_argument("--mix", nargs="+", required=True, metavar="TASK=SHARE")
    parser.add_argument("--settings", default="{}", help="JSON: task settings by task name")
    parser.add_argument("--examples", type=int, default=2000, help="training problems per task")
    parser.add_argument(
        "--lapses", type=float, default=0.0, help="share of careless answers, where a task has them"
    )
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--schedule", type=int, default=0, help="updates of the whole cosine; 0: --steps")
    parser.add_argument("--start", default="", help="folder of a model to go on from")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    make(parser.parse_args())


if __name__ == "__main__":
    main()
