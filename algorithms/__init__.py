"""The algorithms by name; a new one is a file NAME.py in this folder and a line in `NAMES`."""

from __future__ import annotations

import importlib
from collections import UserDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpobench.algorithms.algorithm import Algorithm

NAMES = (
    "grpo",
    "dr_grpo",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "gpg",
    "rgra",
    "bnpo",
    "opo",
    "otb",
    "remax",
    "mc_grpo",
    "lite_ppo",
    "gdpo",
    "maxrl",
    "passk",
    "negative_grpo",
    "rft",
    "ppo",
    "gspo",
    "dpo",
    "ipo",
    "kto",
    "simpo",
    "orpo",
    "tpo",
    "sppo",
    "opd",
    "iw_opd",
    "gkd",
    "sdft",
    "sdpo",
    "opcd",
    "dapo",
    "ngu",
    "fipo",
    "cispo",
    "gapo",
    "exppo",
    "gmpo",
    "sapo",
    "luspo",
    "vespo",
    "topr",
    "m2po",
    "clip_cov",
    "kl_cov",
    "entropy_mask",
    "dppo",
    "bpo",
    "kimi",
    "dro",
    "rebel",
    "a_star_po",
    "gvpo",
    "real",
    "flowrl",
    "gigpo",
    "gagpo",
    "hierarchical_grpo",
    "echo",
    "chord",
    "vapo",
    "sao",
    "pact",
    "spo",
    "rae",
    "cora",
    "rredcot",
    "ngrpo",
    "ads",
    "es",
)


class _Algorithms(UserDict[str, "type[Algorithm[Any]]"]):
    """The classes by name. A lookup imports the file of one algorithm and no other."""

    def __init__(self) -> None:
        super().__init__()
        self.data = dict.fromkeys(NAMES)  # type: ignore[assignment]

    def __getitem__(self, name: str) -> type[Algorithm[Any]]:
        if self.data[name] is None:
            self.data[name] = _class(name)
        return self.data[name]


ALGORITHMS = _Algorithms()


def _class(name: str) -> type[Algorithm[Any]]:
    """The algorithm of that name in the module of that name."""
    from grpobench.algorithms.algorithm import Algorithm

    module = importlib.import_module(f"grpobench.algorithms.{name}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Algorithm) and vars(value).get("name") == name:
            return value
    raise ImportError(f"algorithms/{name}.py holds no Algorithm whose name is {name!r}")
