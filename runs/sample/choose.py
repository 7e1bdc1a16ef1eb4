"""The sampler of a configuration."""

from __future__ import annotations

from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.sampler import Sampler
from grpobench.runs.settings import others, registries
from grpobench.runs.settings.config import RunConfig


def sampler_for(config: RunConfig, models: RoleModels, loaded: Loaded) -> Sampler:
    """The sampler that the configuration asks for or, if rollouts are not drawn from the current policy, the
    one that evaluates it. Raises DataError for an engine that is not installed or does not answer."""
    if config.sampler.foreign:
        entry = registries.find("sampler", config.sampler.kind, others.folder(config), "sampler.kind")
        sampler: Sampler = entry.cls(config, models, loaded)
        return sampler
    if config.sampler.kind in ("vllm", "vllm-server"):
        from grpobench.runs.sample.engines.sampler import connect

        return connect(config, models, loaded)
    return HFSampler(models, loaded.end, loaded.pad, config.sampler.max_batch_size, loaded.context)
