"""What a run's process takes a second to make, for a server to have it before it forks: every algorithm and
task, and a model, whose architecture and tokenizer are imported and whose names are matched by patterns."""

from __future__ import annotations

from grpobench.runs.models.loading import load
from grpobench.runs.settings.registries import algorithms, tasks

algorithms()
tasks()
load("nano")
