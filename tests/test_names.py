"""Names of variables, arguments, functions and classes say what they hold, by the syntax tree of every file.
A class name has one meaning in the package."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("algorithms", "tasks", "runs", "analysis", "benchmarks", "tests", "examples", "docs")
WORDS = """
    found told own place places one what whole kept said named given asked going wanted held known seen
    thing things stuff those these such rest
"""
EMPTY = frozenset(WORDS.split())
"""They say that something was found, told or held, and not what."""
KEYS_OF_FILES = {
    "algorithms/libraries/dialect.py:what": "a key of dialects.toml",
    "analysis/calibration/scores.py:what": "a key of the calibration's labels.toml",
    "analysis/detectors/event.py:found": "a key of events.jsonl",
    "analysis/profile/probe.py:one": "a key of the probes' TOML files",
    "analysis/readable.py:asked": "a key of the kept readable.json",
    "benchmarks/gpu/rows.py:what": "a key of rows.jsonl",
    "runs/experiment/trial.py:what": "a key of the dry run's JSON",
    "tasks/grading/pairs.py:said": "a key of the stored pairs",
    "tasks/grading/readings.py:what": "a key of the stored readings",
    "tasks/grading/readings.py:said": "a key of the stored readings",
}
"""Fields that are keys of files which users have or the project keeps, each with the file."""


MORE_SENTENCES = {
    "algorithms/parts.py": "text of docs/reference/python.md",
    "runs/handover/train_with_trl.py": "the header of a script that users get",
    "runs/models/nano.py": "text of its --help",
    "runs/models/written.py": "text of its --help",
}
"""Modules whose docstring is shown to users and has more than one sentence."""
SENTENCE_END = re.compile(r"(?<![ (]e\.g\.)(?<![ (]i\.e\.)(?<!\bal\.)(?<!\bDr\.)(?<=[.!?])\s+(?=[A-Z`])")


@dataclass(frozen=True)
class Source:
    """What is asked about a file."""

    docstring: str
    bound: tuple[tuple[str, int], ...]
    classes: tuple[str, ...]


@cache
def sources() -> dict[str, Source]:
    """Every file by its path, read once."""
    by_path = {}
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = tuple(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
        docstring = ast.get_docstring(tree) or ""
        by_path[str(path.relative_to(ROOT))] = Source(docstring, tuple(bound_names(tree)), classes)
    return by_path


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a file binds, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def test_no_name_is_empty_but_those_of_keys_in_files() -> None:
    empty = {
        f"{path}:{name}": line
        for path, source in sources().items()
        for name, line in source.bound
        if name in EMPTY
    }
    unexpected = {f"{key} in line {line}" for key, line in empty.items() if key not in KEYS_OF_FILES}
    assert not unexpected, "a reader cannot tell what these hold"
    assert set(KEYS_OF_FILES) == set(empty), "an exception that no file needs"


def test_a_module_docstring_is_one_sentence() -> None:
    docstrings = {
        path: source.docstring for path, source in sources().items() if not path.startswith("tests/")
    }
    assert not [path for path, docstring in docstrings.items() if not docstring], "without a docstring"
    longer = {path for path, docstring in docstrings.items() if SENTENCE_END.search(docstring)}
    assert not longer - MORE_SENTENCES.keys(), "move the other sentences to what they are about"
    assert not MORE_SENTENCES.keys() - longer, "an exception that no file needs"


def test_sentences_end_at_full_stops_but_not_at_abbreviations() -> None:
    assert SENTENCE_END.search("The tasks. To add one, add a file.")
    assert SENTENCE_END.search("The tasks.\n\n`Task` is one.")
    for sentence in (
        "Dr. GRPO: GRPO without two divisions.",
        "LoRA (Hu et al. 2021).",
        "Names, e.g. GRPO or i.e. PPO.",
    ):
        assert not SENTENCE_END.search(sentence)


def test_a_class_name_has_one_meaning() -> None:
    files_by_class = defaultdict(list)
    for path, source in sources().items():
        if path.startswith(("algorithms/", "tasks/", "runs/", "analysis/", "benchmarks/")):
            for name in source.classes:
                files_by_class[name].append(path)
    assert {name: paths for name, paths in files_by_class.items() if len(paths) > 1} == {}
