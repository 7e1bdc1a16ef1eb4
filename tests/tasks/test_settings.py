"""Settings out of range: every task refuses them with the setting's name and what it may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from grpobench.tasks import TASKS
from grpobench.tasks.data.tables import DataError


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("arithmetic", {"measured_operations": (7,)}, "measured_operations: each must be from 1 to 6"),
        ("arithmetic", {"operations": (0,)}, "operations: each must be from 1 to 6"),
        ("arithmetic", {"operations": ()}, "operations: must name at least one number"),
        ("arithmetic", {"unsupported": 1.5}, "unsupported: must be from 0 to 1"),
        ("bfcl", {"variants": ("miss",)}, "variants: choose from base"),
        ("bfcl", {"variants": ()}, "variants: choose from base"),
        ("bfcl", {"variants": ("base", "base")}, "each once"),
        ("bfcl", {"steps": 0}, "steps: must be at least 1"),
        ("files", {"requests": ("burn",)}, "requests: must be some of delete, move, copy, merge"),
        ("files", {"requests": ()}, "requests: must be some of"),
        ("files", {"files": 2}, "files: must be from 3 to 12, not 2"),
        ("files", {"matching": 6}, "matching: must be from 1 to files − 1, not 6"),
        ("files", {"spare": -1}, "spare: must be from 0 to 16, not -1"),
        ("files", {"wasted": 1.5}, "wasted: must be from 0 to 1, not 1.5"),
        ("files", {"wasted": 0.6, "wrong": 0.6}, "wasted: with malformed and wrong it must be at most 1"),
        ("functions", {"operations": ()}, "operations: each must be from 1 to 3"),
        ("functions", {"operations": (4,)}, "operations: each must be from 1 to 3"),
        ("functions", {"shown": 4}, "shown: must be from 1 to 3"),
        ("functions", {"seconds": 0.0}, "seconds: must be above 0"),
        ("functions", {"train": 0}, "train: must be at least 1"),
        ("gsm8k", {"validation": 0}, "validation: must be at least 1"),
        ("horizon", {"steps": 0}, "steps: must be from 1 to 128, not 0"),
        ("horizon", {"steps": 129}, "steps: must be from 1 to 128"),
        ("horizon", {"largest": 0}, "largest: must be from 1 to 99, not 0"),
        ("horizon", {"spare": -1}, "spare: must be at least 0, not -1"),
        ("horizon", {"detours": 1.1}, "detours: must be from 0 to 1, not 1.1"),
        ("json_schema", {"fields": ()}, "fields: each must be from 2 to 6"),
        ("json_schema", {"fields": (1,)}, "fields: each must be from 2 to 6"),
        ("json_schema", {"fields": (2,), "nested": True}, "fields: each must be from 3 to 6"),
        ("json_schema", {"unasked": 3}, "unasked: must be from 0 to 2"),
        ("letters", {"length": 5}, "length: must be one of 4, 8, 32"),
        ("letters", {"patterns": ("9",)}, "must be digits from 1 to 8"),
        ("letters", {"patterns": ("1", "")}, "must be digits from 1 to 8"),
        ("letters", {"position": 8}, "position: must leave room for 1 letters"),
        ("letters", {"contexts": 9}, "contexts × patterns must be from 1 to 8"),
        ("letters", {"likely": 1.0}, "likely: must be a chance between 0 and 1"),
        ("letters", {"misled": 3}, "misled: must be from 0 to contexts × patterns"),
        ("letters", {"misled": 1}, "misled: needs a favored letter"),
        ("letters", {"misled": 1, "likely": 0.4, "patterns": ("8",)}, "where a pattern begins with 8"),
        ("math", {"validation": 0}, "validation: must be at least 1"),
        ("mbpp", {"shown": 0}, "shown: must be from 1 to 3"),
        ("mbpp", {"shown": 4}, "shown: must be from 1 to 3"),
        ("mbpp", {"seconds": 0.0}, "seconds: must be above 0"),
        ("nano_one_shot", {"category": "age"}, "category: no 'age'; there are origin, trade, clan, quarter"),
        ("nano_one_shot", {"items": 0}, "items: must be at least 1"),
        ("nano_one_shot", {"item": -1}, "item: must be at least 0"),
        ("nano_one_shot", {"guesses": 1.1}, "guesses: must be from 0 to 1, not 1.1"),
        ("nano_one_shot", {"lean": -2}, "lean: must be from -1 to 1, not -2"),
        ("nano_one_shot", {"test": 0}, "test: must be at least 1"),
        ("nanobias", {"guesses": -0.1}, "guesses: must be from 0 to 1, not -0.1"),
        ("nanobias", {"lean": 1.5}, "lean: must be from -1 to 1, not 1.5"),
        ("reasoning_gym:gcd", {"seed": -1}, "seed: must be from 0 to"),
        ("reasoning_gym:gcd", {"seed": 4095}, "seed: must be from 0 to"),
        ("reasoning_gym:gcd", {"train": 0}, "train: must be at least 1"),
        ("reasoning_gym:gcd", {"config": {"seed": 1}}, "config: seed is a setting of the task itself"),
        ("reasoning_gym:gcd", {"config": {"size": 1}}, "config: size is a setting of the task itself"),
        ("signed", {"signs": 2, "decides": "both"}, "signs: must be 1, or more with decides = 'letter'"),
        ("tools", {"horizon": 1}, "horizon: must be from 2 to 16, not 1"),
        ("tools", {"horizon": 17}, "horizon: must be from 2 to 16"),
        ("tools", {"luck": -1.0}, "luck: must be from 0 to 100"),
        ("tools", {"price": float("nan")}, "price: must be from 0 to 100"),
        ("tools", {"distractors": 5}, "distractors: must be from 0 to 4, not 5"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, settings: Mapping[str, Any], message: str) -> None:
    with pytest.raises((ValueError, DataError), match=message):
        TASKS[name](**settings)
