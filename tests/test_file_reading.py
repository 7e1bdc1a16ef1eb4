"""Files that somebody else may have written are read by `tasks/data/bounded.py`, which has limits: no other
file of the rooms opens, unpacks or parses one, but for those of `EXCEPT`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
READER = "tasks/data/bounded.py"
EXCEPT = {
    "analysis/tools/metrics.py": "the catalog beside it, which is part of the package",
    "analysis/tools/processes.py": "messages between processes of one command",
    "runs/experiment/preflight.py": "a file that this process has just written",
    "runs/experiment/remote.py": "messages between processes of one command",
    "runs/handover/train_with_trl.py": "a script for machines without this suite",
    "runs/handover/importing/log.py": "a number that is too large costs its cell and not its line",
    "runs/inventory/deep/grading.py": "files of the kernel",
    "runs/observe/child.py": "messages between processes of one command",
    "runs/observe/observers.py": "messages between processes of one command",
    "runs/handover/publishing/fileset.py": "`unpack` has limits of its own for the members of an archive",
    "runs/reward/chat.py": "answers of a server, with a limit of its own",
    "runs/runfolder/logs.py": "`cut` opens a log to shorten it and reads nothing",
    "runs/sample/engines/server.py": "weights that this process has just written; answers to its requests",
    "runs/tools/lock.py": "`guarded` opens the lock to hold it and reads nothing",
    "runs/tools/process.py": "files of the kernel",
    "runs/tools/toml.py": "the one parser of TOML texts, which have been read",
    "runs/train/devices.py": "messages between processes of one command",
    "tasks/grading/documents.py": "completions, with limits of its own",
    "tasks/json_schema.py": "texts of problems and answers that `documents` has read",
    "tasks/sandbox/wire.py": "messages between processes of one command",
    "tasks/verifiers.py": "messages between processes of one command, and rows that this process has written",
    "tasks/workers/environment.py": "rows that this process has just written",
    "tasks/workers/gym.py": "messages between processes of one command",
    "tasks/workers/gym_mended.py": "answers, in the process that grades them",
    "tasks/workers/keeper.py": "messages between processes of one command",
    "tasks/workers/pool.py": "messages between processes of one command",
}
"""Files that may read without `READER`, with the reason. Files of the kernel below /proc need none."""
MODULES = {"gzip", "tarfile", "zipfile", "lzma", "bz2", "zstandard", "pickle", "shelve"}
"""Modules that unpack what they read."""
PARSERS = {"json.load", "json.loads", "tomllib.load", "tomllib.loads", "numpy.load", "np.load", "torch.load"}
UNPACKERS = {"open", "load", "loads", "decompress", "GzipFile", "TarFile", "ZipFile", "ZstdDecompressor"}
METHODS = {"read_text", "read_bytes", "read_parquet", "read_csv", "read_json", "unpack_archive"}
OURS = {"bounded", "files", "strict", "RunFolder", "self", "cls", "os", "columns"}
"""Names before a dot that are no path: modules of ours, which are checked themselves, and `os`, whose `open`
gives a descriptor."""


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a name; ``?.c`` of an attribute of anything else."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value) or '?'}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def mode(call: ast.Call, index: int) -> str:
    """The mode in which a call opens a file."""
    stated = [word.value for word in call.keywords if word.arg == "mode"] + call.args[index : index + 1]
    return str(stated[0].value) if stated and isinstance(stated[0], ast.Constant) else "r"


def is_read(call: ast.Call) -> bool:
    """Whether a call reads a file, or parses what was in one."""
    name = dotted(call.func)
    owner, _, last = name.rpartition(".")
    if name in ("json.loads", "json.load") and call.args and isinstance(call.args[0], ast.Call):
        return dotted(call.args[0].func) != "json.dumps"
    if name == "open":
        return not set(mode(call, 1)) & set("wax")
    if owner in MODULES:
        return last in UNPACKERS and not set(mode(call, 1)) & set("wax")
    if name in PARSERS:
        return True
    if owner in OURS or not owner:
        return False
    return last in METHODS or (last == "open" and not set(mode(call, 0)) & set("wax"))


def reads(tree: ast.AST) -> Iterator[int]:
    """The lines of a file that read another one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and is_read(node) and "/proc" not in ast.unparse(node.func):
            yield node.lineno
        if isinstance(node, ast.ImportFrom) and node.module in MODULES | {"json", "tomllib"}:
            yield from (node.lineno for alias in node.names if alias.name in UNPACKERS)


def readers() -> dict[str, list[int]]:
    """The lines that read, by file of the rooms."""
    paths = (path for room in ("analysis", "runs", "tasks") for path in sorted((ROOT / room).rglob("*.py")))
    lines = {
        path.relative_to(ROOT).as_posix(): list(reads(ast.parse(path.read_text(encoding="utf-8"))))
        for path in paths
    }
    return {name: numbers for name, numbers in lines.items() if numbers and name != READER}


def test_files_are_read_with_limits() -> None:
    """Use `bounded.read_text`, `read_json`, `read_toml`, `lines` or `open_file`."""
    reads_by_file = readers()
    assert {name: lines for name, lines in reads_by_file.items() if name not in EXCEPT} == {}
    assert EXCEPT.keys() - reads_by_file.keys() == set(), "these need no exception any more"


@pytest.mark.parametrize(
    "line",
    [
        "json.load(file)",
        "json.loads(text)",
        "tomllib.loads(text)",
        "gzip.open(path)",
        "gzip.GzipFile(fileobj=file)",
        "zstandard.ZstdDecompressor()",
        "path.read_text()",
        "(folder / name).read_bytes()",
        "pd.read_parquet(path)",
        "open(path)",
        "open(path, 'rb')",
        "open(path, mode)",
        "path.open()",
        "path.open('r+b')",
        "(folder / name).open(encoding='utf-8')",
        "from json import loads",
    ],
)
def test_a_read_would_be_noticed(line: str) -> None:
    assert list(reads(ast.parse(line))) == [1]


@pytest.mark.parametrize(
    "line",
    [
        "bounded.read_text(path)",
        "json.loads(json.dumps(table))",
        "open(path, 'w')",
        "path.open('ab')",
        "path.open(mode='x')",
        "gzip.GzipFile(fileobj=file, mode='wb')",
        "Path('/proc/meminfo').read_text()",
        "RunFolder.open(path, config)",
    ],
)
def test_other_calls_are_not_reads(line: str) -> None:
    assert not list(reads(ast.parse(line)))
