"""vLLM without vLLM: what `VLLM` calls of it, over copies of a model, with the memory of a GPU that sleeps.

It records every call, and fails where vLLM would: on sampling while a part of its memory is given back, and
on weights that have no place. Memory that was given back comes back as NaN, unless the level of the sleep
keeps it. Adapters are read from their folder by peft.
"""

from __future__ import annotations

import copy
import math
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpobench.runs.sample.engines import vllm as engines
from grpobench.runs.sample.sampler import GREEDY
from helpers.toys import Copy


class FakeLLM:
    """`vllm.LLM` over a copy of a model. `deaf` are tensors of weights or adapters that it does not take
    over."""

    def __init__(
        self, language: Any, sleeps: bool = True, context: int = 128, deaf: Sequence[str] = ()
    ) -> None:
        self.base, self.adapted = Copy(language, context, deaf), Copy(language, context)
        self.deaf = deaf
        self.events: list[str] = []
        self.awake = {"weights", "kv_cache"}
        self.kept: list[torch.Tensor] | None = None
        self.fails = ""
        """The part of the memory that cannot be had back."""
        self.adapter: Any = None
        self.handed: list[dict[str, torch.Tensor]] = []
        """The tensors of each adapter."""
        self.llm_engine = SimpleNamespace(
            add_lora=self.add_lora,
            engine_core=SimpleNamespace(shutdown=lambda: self.events.append("shutdown")),
            vllm_config=SimpleNamespace(
                model_config=SimpleNamespace(
                    max_model_len=context, enforce_eager=True, enable_sleep_mode=sleeps
                ),
                cache_config=SimpleNamespace(block_size=4),
                use_v2_model_runner=True,
            ),
        )

    @property
    def weights(self) -> list[torch.Tensor]:
        return [p.data for p in self.base.models.language.parameters()]

    # Memory

    def sleep(self, level: int) -> None:
        assert self.awake == {"weights", "kv_cache"}
        self.events.append(f"sleep {level}")
        self.awake = set()
        self.kept = [p.clone() for p in self.weights] if level == 1 else None
        for p in self.weights:
            p.fill_(math.nan)

    def wake_up(self, tags: Sequence[str] = ("weights", "kv_cache")) -> None:
        for part in tags:
            if part == self.fails:
                raise RuntimeError("CUDA Error: out of memory at cumem_allocator.cpp:62")
            self.events.append(f"wake {part}")
            self.awake.add(part)
        if self.kept and "weights" in tags:
            for p, saved in zip(self.weights, self.kept, strict=True):
                p.copy_(saved)

    # Weights

    def collective_rpc(self, name: str, kwargs: dict[str, Any]) -> None:
        assert name == "reload_weights" and "weights" in self.awake
        self.events.append(name)
        self.base.load(kwargs["weights_iterator"])
        self.adapter = None

    def apply_model(self, work: Any) -> None:
        work(self.base.models.language)

    def add_lora(self, request: Any) -> bool:
        from peft import PeftModel, set_peft_model_state_dict
        from safetensors.torch import load_file

        assert "weights" in self.awake
        self.events.append("add_lora")
        self.handed.append(load_file(Path(request.lora_path, "adapter_model.safetensors")))
        adapted_model = PeftModel.from_pretrained(copy.deepcopy(self.base.models.language), request.lora_path)
        heard = {
            name: torch.zeros_like(t) if any(part in name for part in self.deaf) else t
            for name, t in self.handed[-1].items()
        }
        set_peft_model_state_dict(adapted_model, heard)
        merged = adapted_model.merge_and_unload().state_dict()
        self.adapted.models.language.load_state_dict(merged)
        self.adapter = request
        return True

    def reset_prefix_cache(self) -> bool:
        self.events.append("reset_prefix_cache")
        return True

    # Sampling

    def generate(
        self, prompts: Sequence[Any], parameters: Sequence[Any], use_tqdm: bool, lora_request: Any
    ) -> list[Any]:
        assert self.awake == {"weights", "kv_cache"} and not use_tqdm
        assert lora_request is self.adapter
        self.events.append("generate")
        jobs = [
            (tuple(prompt["prompt_token_ids"]), getattr(job_parameters, "seed", GREEDY))
            for prompt, job_parameters in zip(prompts, parameters, strict=True)
        ]
        source = self.base if lora_request is None else self.adapted
        first = parameters[0]
        temperature = max(job_parameters.temperature for job_parameters in parameters)
        return [
            SimpleNamespace(
                outputs=[
                    SimpleNamespace(
                        token_ids=drawn.tokens,
                        logprobs=[
                            {token: SimpleNamespace(logprob=float(logp))}
                            for token, logp in zip(drawn.tokens, drawn.logp, strict=True)
                        ],
                    )
                ]
            )
            for drawn in source.sample(jobs, first.max_tokens, temperature, first.stop_token_ids)
        ]


def install(patch: pytest.MonkeyPatch, *made: FakeLLM) -> None:
    """Have `VLLM` start these, one after another, whether vLLM is installed or not."""
    left = list(made)
    patch.setattr(engines, "start", lambda *_: left.pop(0))

    def module(name: str, **content: Any) -> None:
        stub = types.ModuleType(name)
        vars(stub).update(content)
        patch.setitem(sys.modules, name, stub)

    def request(name: str, number: int, path: str) -> Any:
        return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=path)

    module("vllm", SamplingParams=SimpleNamespace)
    module("vllm.lora")
    module("vllm.lora.request", LoRARequest=request)
    module("vllm.distributed", cleanup_dist_env_and_memory=lambda: None)
