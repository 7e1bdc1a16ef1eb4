"""What holds for every test: one thread per process, no network, and the same examples in every run."""

from __future__ import annotations

import os

# Before anything imports torch or huggingface_hub: they read these once.
os.environ.update(
    OMP_NUM_THREADS="1",  # workers share the cores, and sums keep one order
    MKL_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    MPLBACKEND="Agg",
)

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import helpers.disk  # noqa: F401 (before anything of grpobench)
import pytest
from hypothesis import settings

gc.disable()  # until all tests are there: none of them is garbage, and looking took a quarter of the time

settings.register_profile("fixed", derandomize=True, deadline=None, database=None, max_examples=25)
settings.register_profile("long", parent=settings.get_profile("fixed"), max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first, so that no worker is left with it alone: the files of this folder, whose
    few tests run programs, and then the files of many tests."""
    many = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.parent != Path(__file__).parent, -many[item.path]))


def pytest_collection_finish() -> None:
    """Thousands of tests and what they import stay to the end: no search for garbage goes through them."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)  # a search each 700 objects, as by default, finds next to nothing


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """float64 throughout, `.float()` included."""
    import torch

    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def unread_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing read of the hub before is known, and its client's cache is the test's."""
    import datasets

    from grpobench.tasks.kinds import hub

    hub._read.cache_clear()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    yield
    hub._read.cache_clear()


@pytest.fixture(params=["bubblewrap", "monty"])
def tier(request: pytest.FixtureRequest) -> str:
    """Every tier of the sandbox that may run programs of models."""
    from grpobench.tasks.sandbox import choose

    if trouble := choose.trouble(request.param):
        pytest.skip(f"{request.param}: {trouble}")
    return str(request.param)


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's algorithms and tasks are stand-ins."""
    from helpers import stand_ins

    stand_ins.register(monkeypatch)


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a random Llama over characters."""
    from helpers.toys import characters

    return characters(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session", autouse=True)
def drawn_here() -> Iterator[None]:
    """Reports start no helper processes: each takes two seconds of a core to import what draws, and the other
    cores have tests to run. In `make test-long` they are drawn as for a user."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("HYPOTHESIS_PROFILE") != "long":
            for module in ("analysis.tools.processes", "runs.api.results"):  # the second may have its name
                patch.setattr(f"grpobench.{module}.usable_cores", lambda: 1)
        yield


@pytest.fixture(autouse=True)
def variables() -> Iterator[None]:
    """What commands set that run in the tests' own process, as for --data-dir, the next test has not."""
    before = {name: value for name, value in os.environ.items() if name.startswith("GRPOBENCH_")}
    yield
    for name in [name for name in os.environ if name.startswith("GRPOBENCH_")]:
        if name not in before:
            del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes of an experiment are forked from one that has imported what takes long."""
    from helpers.warm import Warm

    for module in ("pool", "trial"):
        monkeypatch.setattr(f"grpobench.runs.experiment.{module}.multiprocessing", Warm)
