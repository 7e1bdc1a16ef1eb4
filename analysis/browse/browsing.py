"""What `grpobench browse` does: print texts, write a page of them, or serve them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpobench.analysis.browse.inspect_log import write_logs
from grpobench.analysis.browse.page import render
from grpobench.analysis.browse.server import serve
from grpobench.analysis.browse.store import Filters, Store, open_store
from grpobench.analysis.browse.texts import list_text_files
from grpobench.analysis.runfolder.files import LogError


def read_store(folder: Path, filters: Filters) -> tuple[Store, Filters]:
    """A store that has read its files, and the filters: if no problem has a name of `filters.problem`, those
    that contain it are meant. Raises LogError if no text passes."""
    store = open_store(folder, filters)
    store.fill()
    if filters.problem and not store.count(Filters(problem=filters.problem)):
        names = [name for name in store.problems() if any(part in name for part in filters.problem)]
        filters = replace(filters, problem=names or filters.problem)
    if not store.count(filters):
        chosen = ", ".join(
            f"{name} {_few(value) if isinstance(value, list) else value}"
            for name, value in vars(filters).items()
            if value
        )
        files, _ = list_text_files(folder)
        choices: dict[str, list[Any]] = store.listed()
        for name in ("arm", "task", "seed", "step"):  # also of files that were not read
            choices[name] = list(dict.fromkeys(getattr(file, name) for file in files))
        listed = "; ".join(f"{name}: {_few(values)}" for name, values in choices.items() if values)
        faults = [f"could not be read: {fault}" for fault in store.faults]
        raise LogError(
            "\n".join([f"{folder}: no text with {chosen or 'any content'}; there are {listed}", *faults])
        )
    return store, filters


def _few(values: list[Any]) -> str:
    return ", ".join(map(str, values[:12])) + (f" and {len(values) - 12} more" if len(values) > 12 else "")


def print_texts(folder: Path, filters: Filters, tell: Callable[[str], None]) -> Iterator[str]:
    """The texts that pass the filters, for a terminal: each prompt once, then a paragraph per completion.
    `tell` gets the damaged files. Raises LogError if nothing passes."""
    store, filters = read_store(folder, filters)
    for fault in store.faults:
        tell(fault)
    shown = None
    for row in store.complete_rows(filters, "task, problem, id"):
        if (problem := (row["task"], row["problem"])) != shown:
            shown = problem
            prompt = _indented(row["prompt"] or "(prompt not stored)")
            yield f"{row['task']}, problem {row['problem']}\n{prompt}\n"
        yield f"{describe(row)}\n{_indented(row['text'])}\n"


def describe(row: dict[str, Any]) -> str:
    """A row in one line: where it is from, and the grader's reading."""
    where = f"{row['arm']}, seed {row['seed']}, step {row['step']}, {row['kind']}, sample {row['sample']}"
    scores = [f"{name} {value}" for name, value in (row["scores"] or {}).items()]
    reading = [
        (row["outcome"] or "not graded") + (f" (failed {row['failed_test']})" if row["failed_test"] else ""),
        *([f"answer read: {row['answer']}"] if row["answer"] is not None else []),
        *scores,
        *([f"reward {row['reward']:g}"] if row["reward"] is not None else []),
        *([f"{row['length']} tokens"] if row["length"] is not None else []),
        *([f"ended by {row['stop']}"] if row["stop"] else []),
        *([f"{row['change']} since the first step"] if row["change"] else []),
    ]
    return f"{where}: {', '.join(reading)}"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip("\n").split("\n"))


def write_page(folder: Path, filters: Filters, path: Path) -> tuple[int, list[str]]:
    """Write one HTML file with the texts that pass the filters. Returns how many they are, and the faults of
    damaged files. Raises LogError if no text passes."""
    store, filters = read_store(folder, filters)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(store, filters, with_rows=True), encoding="utf-8")
    return store.count(filters), store.faults


def write_inspect(folder: Path, filters: Filters, into: Path) -> tuple[int, list[str]]:
    """Write the texts that pass the filters as logs of inspect_ai. Returns how many logs, and the faults of
    damaged files. Raises LogError if no text passes."""
    store, filters = read_store(folder, filters)
    return len(write_logs(store, filters, into)), store.faults


def serve_texts(folder: Path, filters: Filters, port: int, tell: Callable[[str], None]) -> None:
    """Serve a page over the texts to this machine's browser until Ctrl-C. Raises LogError without texts."""
    serve(open_store(folder, filters), filters, port, tell)
