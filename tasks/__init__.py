"""The tasks by name; a new one is a file in this folder and a line in `_tasks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpobench.tasks.task import Task

    TASKS: dict[str, type[Task]]
else:

    def __getattr__(name):
        """`TASKS`, imported at the first use: an import of one file here does not import all tasks."""
        if name != "TASKS":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, _tasks())


def _tasks() -> dict[str, type[Task]]:
    from grpobench.tasks import reasoning_gym
    from grpobench.tasks.arithmetic import Arithmetic
    from grpobench.tasks.bbq import BBQ
    from grpobench.tasks.bfcl import BFCL
    from grpobench.tasks.crows_pairs import CrowSPairs
    from grpobench.tasks.files import Files
    from grpobench.tasks.functions import Functions
    from grpobench.tasks.gsm8k import GSM8K
    from grpobench.tasks.gsm_symbolic import GSMSymbolic
    from grpobench.tasks.horizon import Horizon, Horizon1, Horizon16, Horizon64
    from grpobench.tasks.humaneval import HumanEval
    from grpobench.tasks.json_schema import JSONSchema
    from grpobench.tasks.letters import Letters
    from grpobench.tasks.math import Math
    from grpobench.tasks.mbpp import MBPP
    from grpobench.tasks.nano_one_shot import NanoOneShot
    from grpobench.tasks.nanobias import NanoBias
    from grpobench.tasks.nanocode import NanoCode
    from grpobench.tasks.one_shot_bias import OneShotBias
    from grpobench.tasks.signed import Signed
    from grpobench.tasks.stereoset import StereoSet
    from grpobench.tasks.text import PlainText
    from grpobench.tasks.tools import Tools
    from grpobench.tasks.walk import Walk
    from grpobench.tasks.winobias import WinoBias
    from grpobench.tasks.winogender import Winogender

    return {
        "arithmetic": Arithmetic,
        "nanocode": NanoCode,
        "nanobias": NanoBias,
        "nano_one_shot": NanoOneShot,
        "horizon": Horizon,
        "horizon-1": Horizon1,
        "horizon-16": Horizon16,
        "horizon-64": Horizon64,
        "letters": Letters,
        "signed": Signed,
        "walk": Walk,
        "tools": Tools,
        "files": Files,
        "json_schema": JSONSchema,
        "functions": Functions,
        "gsm8k": GSM8K,
        "gsm_symbolic": GSMSymbolic,
        "math": Math,
        "humaneval": HumanEval,
        "mbpp": MBPP,
        "bfcl": BFCL,
        "bbq": BBQ,
        "one_shot_bias": OneShotBias,
        "crows_pairs": CrowSPairs,
        "stereoset": StereoSet,
        "text": PlainText,
        "winobias": WinoBias,
        "winogender": Winogender,
        **reasoning_gym.TASKS,
    }
