"""Runs of these tests evaluate their base themselves: what is compared must not come from one another."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_base(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.path.name != "test_base.py":
        monkeypatch.setattr("grpobench.runs.train.base_evaluation.Base.shares", lambda self: False)
