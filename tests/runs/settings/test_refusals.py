"""What is said of some 800 bad recipes, and what the suite's good ones resolve to, as recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import bad_recipes, good_recipes


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return bad_recipes.refusals(tmp_path_factory.mktemp("bad"))


def test_bad_recipes_are_refused_in_the_recorded_words(messages: dict[str, list[str]]) -> None:
    """A case of a new setting is in the record once `python -m helpers.bad_recipes` has written it anew."""
    recorded = json.loads(bad_recipes.REFUSALS.read_text(encoding="utf-8"))
    differing = {
        name: (texts, messages.get(name)) for name, texts in recorded.items() if messages.get(name) != texts
    }
    assert not differing


def test_a_recipe_with_the_recorded_text_resolves_to_the_recorded_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = json.loads(good_recipes.RESOLVED.read_text(encoding="utf-8"))
    resolved = good_recipes.resolved()
    same = {name: text for name, text in resolved.items() if name in recorded}
    assert len(same) > len(recorded) / 2, "write the record anew: python -m helpers.good_recipes"
    assert same == {name: recorded[name] for name in same}
