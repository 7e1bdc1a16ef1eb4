"""Which sampler a configuration asks for."""

from __future__ import annotations

from grpobench.runs.models.loading import Loaded
from grpobench.runs.models.roles import RoleModels
from grpobench.runs.sample.in_process import HFSampler
from grpobench.runs.sample.sampler import Sampler
from grpobench.runs.settings import others, registries
from grpobench.runs.settings.config import RunConfig


def sampler_for(config: RunConfig, models: RoleModels, loaded: Loaded) -> Sampler:
    """The sampler that the configuration asks for; where rollouts are not drawn from the current policy, the
    one that evaluates it. Raises DataError for an engine that is not there or does not serve."""
    if config.sampler.foreign:
        own = registries.find("sampler", config.sampler.kind, others.folder(config), "sampler.kind")
        made: Sampler = own.cls(config, models, loaded)
        return made
    if config.sampler.kind in ("vllm", "vllm-server"):
        from grpobench.runs.sample.engines.sampler import connect

        return connect(config, models, loaded)
    return HFSampler(models, loaded.end, loaded.pad, config.sampler.max_batch_size, loaded.context)
