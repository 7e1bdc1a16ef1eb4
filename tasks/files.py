"""Requests to change the files of a small disk through tools, graded by the files in the end."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from grpobench.tasks.data.tools import Tool, ToolCall
from grpobench.tasks.kinds.generated import demand_range
from grpobench.tasks.kinds.tool_use import ToolUse, World, tool
from grpobench.tasks.task import Problem, Split

FOLDERS, TARGETS = "abceg", "xyz"
"""Folders of a new disk, and folders that files are moved to."""
NAMES: Final = "hijknopqstuvxyz"
WORDS: Final = ("ant", "bat", "cat", "cow", "dog", "elk", "fox", "hen", "owl", "pig", "ram", "yak")
REQUESTS: Final = ("delete", "move", "copy", "merge")
PATH: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
MOST_FILES, MOST_TEXT, MOST_PATH = 32, 200, 40
"""Bounds on the files of a disk, and on the characters of a text and of a path."""
RULES = """\
You change the files of a small disk with the tools until they are as the user asks, and then call the tool \
done. You have {turns} turns. Write nothing without a call."""
ENGLISH = {
    "delete": "delete every file whose text is {word}",
    "move": "move every file whose text is {word} to the folder {folder} under its old name",
    "copy": "write the text of {first} to the new file {new}",
    "merge": "write the text of {first}, then that of {second}, to the new file {new}, and delete both",
}
SHORT = {
    "delete": "delete {word}",
    "move": "move {word} {folder}",
    "copy": "copy {first} {new}",
    "merge": "merge {first} {second} {new}",
}


@dataclass(frozen=True)
class Files(ToolUse):
    """``disk ztzqd: delete cat`` is done by ``fcat``, the reply ``a/k b/m``, ``da/k``, ``db/m``, and ``.`` at
    the end.

    Only the files in the end count: any way to the goal is right, and a file too many or too few is wrong.
    """

    name = "files"
    source = "generated from a seed by grpobench.tasks.files (Apache-2.0)"
    summary = "a small file system to search and change through tools, graded by its end state"
    ending = "done"
    requests: tuple[str, ...] = REQUESTS
    """What is asked for: delete, move, copy, merge. Each is a category."""
    files: int = 6
    """Files of a disk, from 3 to 12."""
    matching: int = 2
    """The most files that have to be deleted or moved, from 1 to `files` − 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.requests or not set(self.requests) <= set(REQUESTS):
            raise ValueError(f"requests: must be some of {', '.join(REQUESTS)}, not {self.requests}")
        demand_range(self, 3, 12, "files")
        if not 1 <= self.matching < self.files:
            raise ValueError(f"matching: must be from 1 to files − 1, not {self.matching}")

    @property
    def turns(self) -> int:
        """Up to five calls of `merge`, or a search and a call for each file; the end; and `spare`."""
        return max(5, 1 + self.matching) + 1 + self.spare

    @property
    def turn_tokens(self) -> int:  # type: ignore[override]
        return 24 if self.notation == "short" else 192

    @property
    def max_completion_tokens(self) -> int:  # type: ignore[override]
        """In the short notation in characters: a usual action and reply for each turn, a reply with all
        paths, and room for a whole turn."""
        return (40 if self.notation == "short" else 256) * self.turns + 4 * self.files + self.turn_tokens

    @cached_property
    def toolbox(self) -> Mapping[str, Tool]:
        text = {"type": "string"}
        return {
            "l": tool("list", 'The paths in a folder and below it; "" for all.', folder=text),
            "r": tool("read", "The text of a file.", path=text),
            "w": tool("write", "Makes a file or replaces its text.", path=text, text=text),
            "m": tool("move", "Gives a file another path.", path=text, target=text),
            "d": tool("delete", "Deletes a file.", path=text),
            "f": tool("find", "The paths of the files that contain a text.", text=text),
            ".": tool("done", "Ends the task."),
        }

    def draw(self, split: Split, rng: random.Random) -> Problem:
        rules = RULES.format(turns=self.turns)
        disk = "".join(rng.choices(string.ascii_lowercase, k=5))
        word, *others = rng.sample(WORDS, len(WORDS))
        count = rng.randint(1, self.matching)
        texts = [word] * count + rng.choices(others, k=self.files - count)
        names = rng.sample(NAMES, self.files)
        files = {f"{rng.choice(FOLDERS)}/{name}": text for name, text in zip(names, texts, strict=True)}
        request = rng.choice(self.requests)
        words, calls, goal = requested(request, files, word, rng)
        return Problem(
            disk,
            self.prompt(
                f"disk {disk}: {SHORT[request].format(**words)}\n",
                rules,
                f"On the disk {disk}, {ENGLISH[request].format(**words)}.",
            ),
            {"files": files, "goal": goal, "calls": [[call.name, dict(call.arguments)] for call in calls]},
            {"difficulty": float(len(calls) + 1), "category": request},
        )

    def world(self, problem: Problem) -> World:
        return Disk(problem.truth)

    def reference(self, problem: Problem) -> Sequence[ToolCall]:
        return [*(ToolCall(*call) for call in problem.truth["calls"]), ToolCall("done")]

    def idle_call(self, problem: Problem, rng: random.Random) -> ToolCall:
        return ToolCall("list", {"folder": rng.choice(["", *FOLDERS])})

    def demonstrate(self, problem: Problem) -> str:
        """All changes in one turn, as if what they need had been read."""
        changes = [call for call in self.reference(problem) if call.name not in ("find", "read")]
        return self.write(*changes)

    def corrupt(self, problem: Problem) -> str:
        """A file too many, and the end."""
        return self.write(ToolCall("write", {"path": "trace", "text": "x"}), ToolCall("done"))

    def written_answer(self, answer: str) -> str:
        """Ends with the answer as the text of a file that was not asked for."""
        return self.write(ToolCall("write", {"path": "trace", "text": answer}), ToolCall("done"))


class Disk(World):
    """Files by path, what was seen of them, and the files that are wanted."""

    def __init__(self, truth: Mapping[str, Any]) -> None:
        self.files: dict[str, str] = dict(truth["files"])
        self.goal: dict[str, str] = truth["goal"]
        self.unseen = [ToolCall(*call) for call in truth["calls"] if call[0] in ("find", "read")]

    @property
    def remaining(self) -> int:
        """What has to be seen and has not been, the changes that are missing, and the end. A change is
        counted as if the policy knew every text that it destroyed."""
        lacking = [text for path, text in self.goal.items() if self.files.get(path) != text]
        surplus = [text for path, text in self.files.items() if path not in self.goal]
        moves = sum(min(lacking.count(text), surplus.count(text)) for text in set(lacking))
        changes = len(lacking) + len(surplus) - moves
        return (len(self.unseen) if changes else 0) + changes + 1

    def call(self, call: ToolCall, turn: int) -> str:
        if call.name == "done":
            self.ended, self.correct = True, self.files == self.goal
            self.answer = json.dumps(self.files, sort_keys=True)
            return "done"
        reply: str = getattr(self, f"_{call.name}")(**call.arguments)
        if call in self.unseen:
            self.unseen.remove(call)
        return reply

    def _list(self, folder: str) -> str:
        prefix = folder.strip("/") + "/" if folder.strip("/") else ""
        return " ".join(path for path in sorted(self.files) if path.startswith(prefix)) or "none"

    def _find(self, text: str) -> str:
        return " ".join(path for path in sorted(self.files) if text in self.files[path]) or "none"

    def _read(self, path: str) -> str:
        if path not in self.files:
            raise ValueError("no such file")
        return self.files[path]

    def _write(self, path: str, text: str) -> str:
        self._demand_free(path)
        if len(text) > MOST_TEXT or not text.isprintable():
            raise ValueError(f"a text has at most {MOST_TEXT} printable characters")
        if path not in self.files and len(self.files) >= MOST_FILES:
            raise ValueError(f"the disk is full: it has {MOST_FILES} files")
        self.files[path] = text
        return "ok"

    def _move(self, path: str, target: str) -> str:
        text = self._read(path)
        if target in self.files:
            raise ValueError("the target exists")
        del self.files[path]
        try:
            self._demand_free(target)
        except ValueError:
            self.files[path] = text
            raise
        self.files[target] = text
        return "ok"

    def _delete(self, path: str) -> str:
        self._read(path)
        del self.files[path]
        return "ok"

    def _demand_free(self, path: str) -> None:
        """Raise ValueError if no file can have this path."""
        if len(path) > MOST_PATH or not PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
            raise ValueError(f"a path has names with / between them, at most {MOST_PATH} characters")
        if any(other.startswith(path + "/") for other in self.files):
            raise ValueError("that is a folder")
        if any(path.startswith(other + "/") for other in self.files):
            raise ValueError("a folder of the path is a file")


def requested(
    request: str, files: dict[str, str], word: str, rng: random.Random
) -> tuple[dict[str, str], list[ToolCall], dict[str, str]]:
    """(the words of a request, the calls that fulfil it, the files after it) for a disk."""
    goal = dict(files)
    if request in ("copy", "merge"):
        sources = rng.sample(sorted(files), 1 + (request == "merge"))
        unused = [name for name in NAMES if all(path[-1] != name for path in files)]
        new = f"{rng.choice(FOLDERS)}/{rng.choice(unused)}"
        goal[new] = "".join(files[path] for path in sources)
        calls = [ToolCall("read", {"path": path}) for path in sources]
        calls.append(ToolCall("write", {"path": new, "text": goal[new]}))
        if request == "merge":
            calls += [ToolCall("delete", {"path": path}) for path in sources]
            goal = {path: text for path, text in goal.items() if path not in sources}
        return {"first": sources[0], "second": sources[-1], "new": new}, calls, goal
    folder = rng.choice(TARGETS)
    calls = [ToolCall("find", {"text": word})]
    for path in sorted(path for path in files if files[path] == word):
        del goal[path]
        if request == "move":
            goal[folder + path[1:]] = word
            calls.append(ToolCall("move", {"path": path, "target": folder + path[1:]}))
        else:
            calls.append(ToolCall("delete", {"path": path}))
    return {"word": word, "folder": folder}, calls, goal
