"""The words of a report, and reports of few figures: drawing takes most of a report's time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grpobench.analysis.report.facts import Facts, gather
from grpobench.analysis.report.page import render_page
from grpobench.analysis.runfolder.load import load
from grpobench.analysis.tools.text import visible


def words(source: Path | Facts) -> str:
    """The report's page of an experiment as it is written, but for the figures: they take most of its time.
    `source` is its folder, or its facts where a test has gathered them."""
    return visible(render_page(source if isinstance(source, Facts) else gather(load(source)), []))


@contextmanager
def drawing(*names: str) -> Iterator[None]:
    """Reports that are made within it have of all figures these alone; in `make test-long` they have every
    figure."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "long":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpobench.analysis.report.figures.names_of", lambda _: [*names])
        yield
