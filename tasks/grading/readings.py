"""Completions with the program that should be read in each: the results of our reader and of other
libraries."""

# The results of the others are kept with the completions in `graded/completions.jsonl`.

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from grpobench.tasks.data import bounded
from grpobench.tasks.grading.reading import program
from grpobench.tasks.sandbox import choose
from grpobench.tasks.sandbox.protocol import Choice, Job, Limits
from grpobench.tasks.thoughts import without_thoughts

TABLE: Final = Path(__file__).parent / "graded" / "completions.jsonl"
PAGE: Final = "tasks/readings.md"
"""Under the folder of documents."""
OURS: Final = "ours"
TIER: Final[Choice] = "auto"
"""Where the programs run."""
HEADER: Final = 'def add(a, b):\n    """The sum of two numbers."""\n'
"""How the prompt begins the function, if it does."""
CALLS: Final = ("add(1, 2)", "add(-2, 5)")
VALUES: Final = (3, 3)
STOPS: Final = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Stop words of lm-eval's task `humaneval`."""


@dataclass(frozen=True)
class Completion:
    """A completion, and whether the program that should be read in it is right. `said` is by reader: "right"
    or "wrong" for the program that it reads, "none" if it reads none."""

    kind: str
    what: str
    text: str
    begun: bool
    """Whether the prompt has begun the function, so that its body is an answer."""
    right: bool
    said: Mapping[str, str]

    def good(self, reader: str) -> bool:
        """Whether a reader's program is graded as the completion deserves."""
        return (self.said[reader] == "right") == self.right

    def row(self) -> dict[str, Any]:
        """As JSON, which `load` reads."""
        facts = {"kind": self.kind, "what": self.what, "text": self.text, "begun": self.begun}
        return {**facts, "right": self.right, "said": dict(self.said)}


@dataclass(frozen=True)
class Reader:
    """A library that reads programs, at the version whose results are kept."""

    name: str
    package: str
    version: str
    invocation: str
    does: str
    """The main cause of its differences."""
    read: Callable[[Completion], str]

    def missing(self) -> str:
        """Why it cannot be asked here, with the remedy; empty if it can."""
        try:
            installed = metadata.version(self.package)
        except metadata.PackageNotFoundError:
            installed = "not here"
        if installed == self.version:
            return ""
        return (
            f"{self.name}: {self.package} is {installed}; it takes "
            f"pip install '{self.package}=={self.version}'"
        )


def humaneval(completion: Completion) -> str:
    """lm-eval's tasks `humaneval`, if the prompt has begun the function, and `humaneval_instruct`."""
    text, name = continued(completion), "build_predictions_instruct"
    if completion.begun:
        text, name = text[: min(text.find(stop) % (len(text) + 1) for stop in STOPS)], "build_predictions"
    predictions: list[list[str]] = _functions("humaneval")[name]([[text]], [{"prompt": HEADER}])
    return predictions[0][0]


def mbpp(completion: Completion) -> str:
    """lm-eval's task `mbpp_instruct`."""
    predictions: list[list[str]] = _functions("mbpp")["build_predictions"]([[continued(completion)]], [{}])
    return predictions[0][0]


def continued(completion: Completion) -> str:
    """The completion after the fence with which these tasks of lm-eval begin the model's answer."""
    return re.sub(r"^```\w*(?=\r?\n)", "", completion.text)


def evalplus(completion: Completion) -> str:
    """EvalPlus' `sanitize`, which also gets the prompt if the completion continues it."""
    from evalplus.sanitize import sanitize

    sanitized: str = sanitize(HEADER * completion.begun + completion.text, "add")
    return sanitized


READERS: Final = (
    Reader(
        "lm_eval_humaneval",
        "lm-eval",
        "0.4.13",
        "`build_predictions_instruct` of its task humaneval_instruct; where the prompt has begun the "
        "function, `build_predictions` of humaneval behind that task's stop words",
        "It begins the model's answer itself and takes all up to the first fence behind the prompt's "
        "beginning of the function. Prose before a block, a second block and a thought are therefore syntax "
        "errors; an import from `__future__` comes too late.",
        humaneval,
    ),
    Reader(
        "lm_eval_mbpp",
        "lm-eval",
        "0.4.13",
        "`build_predictions` of its task mbpp_instruct",
        "It begins the model's answer with a fence itself and takes what stands before the next one, closed "
        "or not at all: prose before a block is read as the program, a block without an end as none. Its "
        "prompt begins no function, so the last kind is none of its own.",
        mbpp,
    ),
    Reader(
        "evalplus",
        "evalplus",
        "0.3.1",
        "`sanitize` with the function's name",
        "It takes the longest run of lines that parses, and of it the first definition of each name that the "
        "function needs, without decorators; a function without `return` is none. Drafts, thoughts, "
        "indented blocks and parts in several blocks come from there.",
        evalplus,
    ),
)
EACH: Final = (OURS, *(reader.name for reader in READERS))


def _functions(task: str) -> dict[str, Any]:
    """The functions of an lm-eval task's utils.py, without the module's other statements, which download a
    metric."""
    package = importlib.util.find_spec("lm_eval")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("lm_eval")
    path = Path(package.origin).parent / "tasks" / task / "utils.py"
    tree = ast.parse(bounded.read_text(path))
    function_names = ("build_predictions", "build_predictions_instruct", "extract_code_blocks")
    functions: list[ast.stmt] = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in function_names
    ]
    space: dict[str, Any] = {"re": re}
    exec(compile(ast.Module(functions, []), str(path), "exec"), space)
    return space


def load() -> list[Completion]:
    """The kept completions."""
    return [Completion(**row) for row in bounded.read_rows(TABLE)]


def as_text(completions: Sequence[Completion]) -> str:
    """The file of these completions."""
    return "".join(json.dumps(completion.row(), ensure_ascii=False) + "\n" for completion in completions)


def ours(completion: Completion) -> str:
    """Our reading; empty if there is none."""
    header = HEADER if completion.begun else ""
    return (
        program(
            without_thoughts(completion.text), {"entry": "add", "before": "", "header": header, "after": ""}
        )
        or ""
    )


def say(read: Callable[[Completion], str], completions: Sequence[Completion]) -> list[str]:
    """The outcome of each program. Raises DataError if there is no sandbox to run programs in."""
    sources = [read(completion) for completion in completions]
    runner = choose.sandbox(TIER, Limits(3.0))
    executions = runner.run_all([Job(source, CALLS) for source in sources])
    return [
        "right" if execution.values == VALUES else "wrong" if source.strip() else "none"
        for source, execution in zip(sources, executions, strict=True)
    ]


def ask(completions: Sequence[Completion]) -> tuple[list[Completion], list[str]]:
    """The completions with new results of our reader and of the installed ones, and why the others could not
    be asked; their kept results stay."""
    results_by_reader = {OURS: say(ours, completions)}
    results_by_reader |= {
        reader.name: say(reader.read, completions) for reader in READERS if not reader.missing()
    }
    now = [
        replace(
            completion,
            said={**completion.said, **{name: results[i] for name, results in results_by_reader.items()}},
        )
        for i, completion in enumerate(completions)
    ]
    return now, [lack for reader in READERS if (lack := reader.missing())]


def faults(recorded: Sequence[Completion], now: Sequence[Completion]) -> Iterator[str]:
    """Completions that our reader does not read as it should."""
    for completion in now:
        if not completion.good(OURS):
            expected = "right" if completion.right else "not right"
            yield (
                f"{completion.kind}, {completion.what}: what is read is {completion.said[OURS]}, "
                f"expected {expected}"
            )


def tally(completions: Sequence[Completion], reader: str) -> dict[str, int]:
    """How many programs a reader reads as it should, and how many it gets wrong in either way."""
    counts = Counter(
        "good" if completion.good(reader) else "lost" if completion.right else "accepted"
        for completion in completions
    )
    return {name: counts[name] for name in ("good", "lost", "accepted")}


def as_lines(completions: Sequence[Completion]) -> Iterator[str]:
    """A line on each reader."""
    for name in EACH:
        counts = tally(completions, name)
        yield (
            f"{name}: {counts['good']} of {len(completions)} programs read as they should be, "
            f"{counts['lost']} right ones lost, {counts['accepted']} read that should not be"
        )


def page_facts() -> dict[str, Any]:
    """The content of the page, from the kept results."""
    completions = load()
    kinds = {
        completion.kind: [candidate for candidate in completions if candidate.kind == completion.kind]
        for completion in completions
    }
    return {
        "completions": completions,
        "readers": READERS,
        "each": EACH,
        "calls": CALLS,
        "kinds": {
            kind: {name: tally(kind_completions, name) for name in EACH}
            for kind, kind_completions in kinds.items()
        },
        "sizes": {kind: len(kind_completions) for kind, kind_completions in kinds.items()},
        "total": {name: tally(completions, name) for name in EACH},
    }
