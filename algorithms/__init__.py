"""The algorithms by name; a new one is a file NAME.py in this folder and a line in `NAMES`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpobench.algorithms.algorithm import Algorithm

    ALGORITHMS: dict[str, type[Algorithm[Any]]]
else:

    def __getattr__(name):
        """`ALGORITHMS`, imported at the first use: an import of one file here does not import all."""
        if name != "ALGORITHMS":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(
            name, {algorithm_name: _class(algorithm_name) for algorithm_name in NAMES}
        )


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
    "sppo",
    "opd",
    "gkd",
    "sdft",
    "sdpo",
    "opcd",
    "dapo",
    "fipo",
    "cispo",
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
    "kimi",
    "dro",
    "rebel",
    "a_star_po",
    "gvpo",
    "flowrl",
    "gigpo",
    "chord",
    "vapo",
    "spo",
    "cora",
    "rredcot",
    "ngrpo",
    "ads",
)


def _class(name: str) -> type[Algorithm[Any]]:
    """The algorithm of that name in the module of that name."""
    from grpobench.algorithms.algorithm import Algorithm

    module = importlib.import_module(f"grpobench.algorithms.{name}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Algorithm) and vars(value).get("name") == name:
            return value
    raise ImportError(f"algorithms/{name}.py holds no Algorithm whose name is {name!r}")
