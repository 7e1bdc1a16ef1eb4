"""TRL's own trainers on tiny models, their inputs and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from grpobench.algorithms.algorithm import Algorithm, Batch
from grpobench.runs.models.nano import VOCABULARY, character_tokenizer
from grpobench.runs.models.roles import RoleModels
from helpers.toys import off_policy, rollouts, tiny

trl = pytest.importorskip("trl", reason="trl is the reference of these tests: pip install 'grpobench[trl]'")

GRADIENT = 5e-5
"""Of the norm of the whole gradient, for the same reason, after a backward pass."""


LIMIT = 12
REWARDS = [1.0, 0.0, 0.0, 0.5, 0.25, 0.25, 0.25, 0.25]
"""Of two groups, of which one is all equal."""


def batch_of(models: RoleModels) -> Batch:
    """Three groups of four, lengths from 0 to 9, prompts of 5, 3 and 7 tokens, off policy."""
    batch = rollouts(
        [[6, 0, 1, 9], [4, 4, 1, 7], [8, 3, 5, 2]],
        [[1.0, 0.0, 0.0, 0.5], [0.0, 1.0, 1.0, 0.0], [0.2, 0.2, 0.9, 0.1]],
        gaps={3: (2, 3), 8: (0,)},
        limit=LIMIT,
    )
    return off_policy(batch, models)


def models_with_reference(algorithm: Algorithm[Any]) -> RoleModels:
    models = RoleModels(tiny(), algorithm.trained_roles, algorithm.reference_roles)
    if "reference" in models.networks:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for p in models.networks["reference"].parameters():
                p += 0.02 * torch.randn(p.shape, generator=generator)
    models.optimize({"policy": 1e-3}, (0.9, 0.95), 0.0, 1.0)
    return models


def parameters(gradient: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("policy/"): g for name, g in gradient.items()}


def grpo_trainer(folder: Path, language: Any, trainer: str = "GRPO", **settings: Any) -> Any:
    """A trainer that samples groups: GRPO's, GMPO's or RLOO's."""
    from datasets import Dataset

    home = trl
    if trainer == "GMPO":
        import trl.experimental.gmpo as home

    args = getattr(home, f"{trainer}Config")(
        output_dir=str(folder),
        report_to="none",
        use_cpu=True,
        bf16=False,
        num_generations=4,
        max_completion_length=LIMIT,
        **{"per_device_train_batch_size": 4, **settings},
    )
    built = getattr(home, f"{trainer}Trainer")(
        model=language,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 8}),
        processing_class=character_tokenizer(),
    )
    built.model.eval()  # no dropout, and no division by gradient-accumulation steps
    return built


def computed(trainer: Any, table: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What TRL makes of four completions of two prompts; only the table of rewards is set."""
    monkeypatch.setattr(trainer, "_calculate_rewards", lambda *args: table, raising=True)
    trainer.model.train()
    return trainer._generate_and_score_completions(
        [{"prompt": prompt} for prompt in ("ab", "c") for _ in range(4)]
    )


def trl_inputs(batch: Batch, advantage: torch.Tensor, reference: torch.Tensor) -> dict[str, torch.Tensor]:
    """A batch as TRL holds it: prompts padded on the left."""
    width = batch.prompt.shape[1]
    prompt, mask = torch.zeros_like(batch.prompt), torch.zeros_like(batch.prompt)
    for row, length in enumerate(batch.prompt_length.tolist()):
        prompt[row, width - length :] = batch.prompt[row, :length]
        mask[row, width - length :] = 1
    inside = (torch.arange(batch.completion.shape[1]) < batch.length[:, None]).long()
    return {
        "prompt_ids": prompt,
        "prompt_mask": mask,
        "completion_ids": batch.completion,
        "completion_mask": inside,
        "tool_mask": batch.completion_mask.long(),
        "advantages": advantage,
        "old_per_token_logps": batch.old_logp,
        "ref_per_token_logps": reference,
        "num_items_in_batch": batch.completion_mask.sum(),
    }


def their_gradient(trainer: Any, inputs: dict[str, torch.Tensor]) -> tuple[float, dict[str, torch.Tensor]]:
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    gradients = {
        n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in trainer.model.named_parameters()
    }
    return loss.item(), {name.removeprefix("module."): g for name, g in gradients.items()}


def tiny_of_characters() -> Any:
    import transformers

    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            pad_token_id=0,
            eos_token_id=1,
        )
    )
