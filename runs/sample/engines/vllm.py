"""vLLM's engine: token ids in, token ids and log-probabilities out, new weights at any time."""

# It runs in this process, whatever its device: a run has the engine and the trainer side by side, a server
# (`grpobench serve`) has the engine alone.
#
# On the trainer's GPU it sleeps while the trainer computes. It wakes up in two parts, as its weights are
# handed over: first its weights, to make room for the new ones; then its key-value cache, when nothing else
# is held any more for the hand-over.

from __future__ import annotations

import contextlib
import gc
import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from grpobench.runs.models import adapters, trust
from grpobench.runs.models.model_files import SHAPES
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.models.token_budgets import ModelError, first_line
from grpobench.runs.sample.engines.engine import EngineCompletion
from grpobench.runs.sample.sampler import GREEDY
from grpobench.runs.settings.truncation import FULL, Truncation
from grpobench.runs.tools import installed

ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two workers must not be bound to the same core
    "VLLM_LOGGING_LEVEL": "ERROR",  # it warns at every reload of a model with a tied head
    "VLLM_NO_USAGE_STATS": "1",  # else it reports its use to its makers
}
"""Set before vLLM is imported, unless the user has set them."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The sizes of adapters for which vLLM can reserve room."""
DISCARD, OFFLOAD = 2, 1
"""Levels of vLLM's sleep: weights are forgotten, or kept in the memory of the CPU."""


@dataclass(frozen=True)
class AdapterRoom:
    """Room for one adapter beside the weights of an engine."""

    rank: int
    targets: tuple[str, ...]
    """Names of the layers that have it. vLLM leaves all others as they are."""


def room_for(models: RoleModels) -> AdapterRoom | None:
    """What the policy's adapter needs; None without one."""
    if models.adapter is None:
        return None
    targets = adapters.targets_of(models.adapter, models.plain.base_model)
    return AdapterRoom(models.adapter.rank, tuple(targets))


class VLLM:
    """vLLM in this process.

    `model_path` is a model folder or hub id, `rows` the most sequences decoded at once, `cache_gb` the size
    of the key-value cache in GiB, whose size also bounds `context`. With `room` it takes an adapter beside
    its weights. With `sleeps` it can give its memory back, if the device is a GPU. `quantization` is vLLM's
    name of the format to which it rounds the weights that it is handed. Raises ModelError where vLLM cannot
    serve the model.
    """

    _open: VLLM | None = None
    """The engine of this process. A run that failed may have left one behind."""

    def __init__(
        self,
        model_path: str,
        *,
        dtype: str,
        rows: int,
        cache_gb: float,
        room: AdapterRoom | None = None,
        sleeps: bool = False,
        quantization: str | None = None,
    ) -> None:
        if VLLM._open is not None:
            VLLM._open.close()
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # In this process and no other: weights are handed over as tensors, not as messages.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        with undisturbed():
            self.llm: Any = start(model_path, dtype, rows, cache_gb, room, sleeps, quantization)
        VLLM._open = self
        self.dtype: torch.dtype = getattr(torch, dtype)
        settings = self.llm.llm_engine.vllm_config
        self.context = int(settings.model_config.max_model_len)
        self.block = int(settings.cache_config.block_size)
        self.eager = bool(settings.model_config.enforce_eager)
        if room and self.eager and getattr(settings.model_config, "is_moe", False):
            # vLLM 0.30 then takes a Triton kernel for the experts, with or without adapters of their own.
            self.asleep = False
            self.close()
            raise ModelError(
                f"vLLM cannot serve {Path(model_path).name} with an adapter on a CPU: it has experts; set "
                "sampler.merge_adapter = true, which adds the adapter to the weights"
            )
        self.adapts, self.asleep = room is not None, False
        self.sleeps = bool(settings.model_config.enable_sleep_mode)
        self.adapter: Any = None
        """The request that names the adapter, if there is one now."""
        self.loaded = 0
        """Adapters so far."""
        self.provenance: Mapping[str, Any] = {
            "engine": "vllm",
            "version": installed.version_of(*installed.VLLM),
            "seeds": seeds_of(settings),
            "sleeps": self.sleeps,
        }

    def sample(
        self,
        jobs: Sequence[tuple[tuple[int, ...], int]],
        limit: int,
        temperature: float,
        end: Sequence[int],
        truncation: Truncation = FULL,
    ) -> list[EngineCompletion]:
        """One completion per (prompt, seed), in order. Seeds are the requests' own: what else is decoded has
        no part in a completion, up to the rounding of logits."""
        from vllm import SamplingParams

        shared: dict[str, Any] = {
            "max_tokens": limit,
            "logprobs": 0,  # of the drawn token alone
            "stop_token_ids": list(end),
            "ignore_eos": True,  # `end` alone decides
            "detokenize": False,  # nobody reads the text
        }
        prompts = [{"prompt_token_ids": list(prompt)} for prompt, _ in jobs]
        parameters = [
            SamplingParams(temperature=0.0, **shared)
            if seed == GREEDY
            else SamplingParams(seed=seed, temperature=temperature, **asdict(truncation), **shared)
            for _, seed in jobs
        ]
        with undisturbed(), self._stance():
            request_outputs = (
                self.llm.generate(prompts, parameters, use_tqdm=False, lora_request=self.adapter)
                if jobs
                else []
            )
        return [drawn(request.outputs[0]) for request in request_outputs]

    def _stance(self) -> contextlib.AbstractContextManager[Any]:
        """On a CPU nothing is compiled: the engine would call a C++ compiler for one small function."""
        return torch.compiler.set_stance("force_eager") if self.eager else contextlib.nullcontext()

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Take over weights, and forget the adapter. What vLLM reports is not believed here: the caller
        measures."""
        with undisturbed(), torch.no_grad(), self._stance(), self._waking():
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights)})
            self.llm.apply_model(pack_again)
            self.adapter = None
            self._forget_keys()

    def load_adapter(self, config: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over an adapter. vLLM reads it from a folder, and once: the folder goes at once. Raises
        ModelError where vLLM cannot compute with it."""
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        # safetensors takes no tensor that lies in pieces.
        adapter_tensors = {
            name: tensor.to("cpu", self.dtype).contiguous() for name, tensor in tensors.items()
        }
        with undisturbed(), self._stance(), self._waking(), tempfile.TemporaryDirectory() as folder:
            Path(folder, adapters.CONFIG).write_text(config, encoding="utf-8")
            save_file(adapter_tensors, Path(folder, adapters.WEIGHTS))
            # A new number and name each time: vLLM loads no adapter twice, and keeps keys by its name.
            self.loaded += 1
            request = LoRARequest(f"policy-{self.loaded}", self.loaded, folder)
            try:
                self.llm.llm_engine.add_lora(request)
            except (ValueError, RuntimeError, NotImplementedError) as error:
                raise ModelError(
                    f"vLLM cannot compute with this adapter: {first_line(error)}; set "
                    "sampler.merge_adapter = true, which adds it to the weights"
                ) from error
            self.adapter = request
            self._forget_keys()

    def _forget_keys(self) -> None:
        """Drop the keys and values of old weights."""
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache")

    def sleep(self) -> None:
        """Give back the memory of weights and key-value cache, until weights or an adapter are loaded.

        Whole weights are discarded, since new ones are loaded in any case. Beside an adapter the CPU keeps
        them."""
        if self.sleeps and not self.asleep:
            with undisturbed():
                self.llm.sleep(level=OFFLOAD if self.adapts else DISCARD)
            self.asleep = True

    @contextlib.contextmanager
    def _waking(self) -> Iterator[None]:
        """Within, an engine that was asleep has its weights; behind it also its cache."""
        if not self.asleep:
            yield
            return
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what torch has kept of the trainer's memory, vLLM cannot use
        # First the weights alone: their hand-over needs memory, which the cache may take afterwards.
        self._wake_up("weights")
        yield
        self._wake_up("kv_cache")
        self.asleep = False

    def _wake_up(self, part: Literal["weights", "kv_cache"]) -> None:
        try:
            self.llm.wake_up(tags=[part])
        except RuntimeError as error:
            raise ModelError(
                f"vLLM could not take its memory ({part}) back after the updates: {first_line(error)}; "
                "lower sampler.cache_gb, or see docs/memory.md for what else the run holds"
            ) from error

    def close(self) -> None:
        """Stop the engine and free its memory."""
        if VLLM._open is not self:
            return
        # First, so that the next engine does not close this one again after a failure below.
        VLLM._open = None
        from vllm.distributed import cleanup_dist_env_and_memory

        with undisturbed():
            if self.asleep:  # memory that is given back cannot be freed; after a failure there may be none
                with contextlib.suppress(RuntimeError):
                    self.llm.wake_up()
            self.llm.llm_engine.engine_core.shutdown()
            del self.llm
            cleanup_dist_env_and_memory()
            gc.collect()


def start(
    model_path: str,
    dtype: str,
    rows: int,
    cache_gb: float,
    room: AdapterRoom | None = None,
    sleeps: bool = False,
    quantization: str | None = None,
) -> Any:
    """vLLM's LLM, with the sampling of `HFSampler`: nothing but a temperature between logits and tokens."""
    from vllm import LLM
    from vllm.platforms import current_platform

    more: dict[str, Any] = {}
    if current_platform.is_cpu():
        # No C++ compiler is called; and no prompt is cut in two, because vLLM 0.30 then rewinds the request's
        # random generator, which on a CPU it cannot.
        more = {"enforce_eager": True, "enable_chunked_prefill": False}
    elif sleeps:
        more = {"enable_sleep_mode": True}
    if Path(model_path).parent == SHAPES:
        more |= {
            "load_format": "dummy"
        }  # no files: the trainer hands its weights over before the first rollout
    if room:
        more |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": reserved(room.rank)}
        more |= {"lora_target_modules": list(room.targets)}
    try:
        return LLM(
            model=model_path,
            dtype=dtype,
            quantization=quantization,
            max_num_seqs=rows,
            max_model_len=-1,  # as much of the model's context as the cache can hold
            kv_cache_memory_bytes=int(cache_gb * 2**30),
            gpu_memory_utilization=0.05,  # only asked whether so much is free; the trainer has the rest
            logprobs_mode="processed_logprobs",  # after the temperature
            generation_config="vllm",  # not the model's own top-p, penalties and the like
            skip_tokenizer_init=True,  # tokens go in and come out
            trust_remote_code=trust.trusted(),
            enable_prefix_caching=True,  # a group's prompt is computed once
            disable_log_stats=True,
            seed=0,  # requests have seeds of their own
            **more,
        )
    except Exception as error:  # without a kernel that it needs, vLLM may raise anything
        others = "if it takes no adapters, set sampler.merge_adapter = true, " if room else ""
        others += "if it cannot sleep, sampler.sleep = false, " if sleeps else ""
        others += 'if it cannot quantize, sampler.weights = "trainer", ' if quantization else ""
        raise ModelError(
            f"vLLM cannot serve {Path(model_path).name}: {first_line(error)}; raise sampler.cache_gb when "
            f'memory is what lacks, {others}else set sampler.kind = "hf"'
        ) from error


def reserved(rank: int) -> int:
    """The least rank for which vLLM can reserve room. Raises ModelError for one of a larger rank."""
    enough = [most for most in RANKS if most >= rank]
    if not enough:
        raise ModelError(
            f"vLLM takes adapters up to rank {RANKS[-1]}, and model.adapter.rank is {rank}; set "
            "sampler.merge_adapter = true, or a lower rank"
        )
    return enough[0]


def seeds_of(settings: Any) -> str:
    """How this vLLM draws a request's tokens from its seed: its newer model runner computes each draw from
    the seed and the token's position, the older one has a generator for each request."""
    return "stateless" if getattr(settings, "use_v2_model_runner", False) else "a generator per request"


def trial() -> str:
    """Have an engine write one token with the built-in policy; vLLM's version and device."""
    from grpobench.runs.models.model_files import locate

    engine = VLLM(locate("nano"), dtype="float32", rows=1, cache_gb=0.1)
    try:
        engine.sample([((5, 6, 7), 1)], 1, 1.0, ())
    finally:
        engine.close()
    import vllm
    from vllm.platforms import current_platform

    return f"{vllm.__version__} writes tokens on {current_platform.device_type}"


def drawn(output: Any) -> EngineCompletion:
    """A completion out of vLLM's own type."""
    tokens = tuple(int(token) for token in output.token_ids)
    logp = [
        logprob_by_token[token].logprob
        for token, logprob_by_token in zip(tokens, output.logprobs, strict=True)
    ]
    return EngineCompletion(tokens, np.array(logp, dtype=np.float32))


def pack_again(model: Any) -> int:
    """Pack weights anew where the CPU build keeps its own layout of them and loading (vLLM 0.30) does not
    renew it: linear weights that still stand beside their packed copy, as those of a tied output head, and
    the experts of a mixture. Returns how many; 0 on other devices."""
    packed = 0
    for module in model.modules():
        weight = getattr(module, "weight", None)
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        experts = getattr(kernel, "fused_experts", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.numel():
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
            packed += 1
        elif experts is not None and type(experts).__name__.endswith("CPUUnquantizedExperts"):
            experts.process_weights_after_loading(module)
            packed += 1
    return packed


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keep this process's random generators and thread settings as they were: an engine in the same process
    seeds the one and replaces the other."""
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    plain, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
    device = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(device):
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(arrays)  # noqa: NPY002
        torch.set_num_threads = set_threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
