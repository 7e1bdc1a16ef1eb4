"""Generate and score problems in the keeper and the workers of `grpobench.tasks.reasoning_gym`."""

from __future__ import annotations

import ast
import base64
import json
import pickle
import random
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from grpobench.tasks.workers.gym_mended import MENDED, REFUSED, prove

SPAN = 2048
"""Problems of one data set. Most generators make problem i from seed + i, so two data sets with closer seeds
share problems. A stream is a sequence of adjacent data sets."""
STREAM = 2**20
"""Distance between the seeds of two streams."""
FORMULA = re.compile(
    r"(?:\s|[0-9]+(?:\.[0-9]*)?|\.[0-9]+|[-+*/^(),!]|\b(?:a?(?:sin|cos|tan|sec|csc|cot)h?|arc(?:sin|cos|tan)|exp|log|ln"
    r"|sqrt|Abs|erf|pi|[A-Za-z])\b)*"
)
"""Numbers, operators, names of functions and single letters: no attributes, texts or subscripts."""
EVALUATING = (
    "algorithmic.binary_matrix",
    "algorithmic.number_sorting",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
PARSING = ("games.puzzle24", "games.countdown")


def gym() -> Callable[[Mapping[str, Any]], Any]:
    """The function that the pool's workers run; it does what an argument's `do` says."""
    import reasoning_gym  # noqa: F401 (fills the registry)

    contain()
    jobs: dict[str, Callable[..., Any]] = {"make": make, "score": score, "solve": solve, "prove": proven}
    return lambda argument: jobs[argument["do"]](**{k: v for k, v in argument.items() if k != "do"})


def contain() -> None:
    """Prevent scorers from evaluating what a model wrote.

    Some of them call Python's `eval` on the answer, or sympy's parser, which does the same: readers of plain
    values replace these."""
    import sympy
    from sympy.parsing import sympy_parser

    parse = sympy_parser.parse_expr

    def parse_formula(text: str, *arguments: Any, **settings: Any) -> Any:
        if not FORMULA.fullmatch(text):
            raise ValueError(f"not a formula: {text[:80]!r}")
        return parse(text, *arguments, **settings)

    sympy.parse_expr = parse_formula
    for name in PARSING:
        sys.modules[f"reasoning_gym.{name}"].__dict__["parse_expr"] = parse_formula
    for name in EVALUATING:
        sys.modules[f"reasoning_gym.{name}"].__dict__["eval"] = ast.literal_eval


def make(generator: str, config: str, seed: int, start: int, count: int) -> dict[str, Any]:
    """Problems of a stream: ``rows``, or an invalid configuration as ``error``."""
    try:
        chunks = {number // SPAN for number in range(start, start + count)}
        dataset_by_chunk = {
            chunk: data_set(generator, config, STREAM * seed + SPAN * chunk, SPAN) for chunk in chunks
        }
    except (AssertionError, TypeError, ValueError, KeyError, AttributeError) as error:
        return {"error": str(error) or type(error).__name__, "settings": settings(generator)}
    return {
        "rows": [row(generator, config, dataset_by_chunk[n // SPAN], n) for n in range(start, start + count)]
    }


def row(generator: str, config: str, dataset: Any, number: int) -> dict[str, Any]:
    """One problem. `accepted` says whether the generator's scorer accepts its reference; None without one."""
    random.seed(f"{generator}/{config}/{number}")  # for generators that use the global random state
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number % 2**32)
    entry = dataset[number % SPAN]
    reference = reference_of(entry)
    packed = base64.b64encode(pickle.dumps(entry)).decode()
    accepted = None
    if reference is not None:
        accepted = score(generator, config, packed, reference) >= 1
    return {
        "question": str(entry["question"]),
        "answer": reference,
        "accepted": accepted,
        "source": str(entry.get("metadata", {}).get("source_dataset", generator)),
        "entry": packed,
    }


def reference_of(entry: Mapping[str, Any]) -> str | None:
    """The reference answer, which a few generators keep in the metadata; None if there is none."""
    metadata = entry.get("metadata", {})
    metadata_answers = (
        metadata.get(key) for key in ("example_answer", "example_correct_answer", "possible_answer")
    )
    reference = next((answer for answer in (entry["answer"], *metadata_answers) if answer is not None), None)
    if reference is None or isinstance(reference, str):
        return reference
    return json.dumps(reference) if isinstance(reference, (dict, list)) else str(reference)


def score(generator: str, config: str, entry: str, answer: str) -> float:
    """The generator's own score of an answer."""
    unpacked = pickle.loads(
        base64.b64decode(entry)
    )  # packed by `row`, and only ever sent to this process's parent and back
    if generator == "composite":
        generator = unpacked["metadata"]["source_dataset"]
        part_config = next(part["config"] for part in parts(config) if part["name"] == generator)
        config = json.dumps(part_config, sort_keys=True)
    package_score = float(data_set(generator, config, 0, 1).score_answer(answer, unpacked))
    return MENDED[generator](answer, unpacked, package_score) if generator in MENDED else package_score


def proven(generator: str, entry: str, answer: str) -> bool:
    """Whether an answer that is not the reference is right, by our own check; False if there is no such
    check."""
    unpacked = pickle.loads(base64.b64decode(entry))
    return prove(unpacked["metadata"].get("source_dataset", generator), answer, unpacked)


@lru_cache(maxsize=8)
def data_set(generator: str, config: str, seed: int, size: int) -> Any:
    """A generator's data set. `config` is JSON."""
    from reasoning_gym import create_dataset

    options = json.loads(config)
    if generator == "composite":
        from reasoning_gym.composite import DatasetSpec

        options = {**options, "datasets": [DatasetSpec(**part) for part in parts(config)]}
    return create_dataset(generator, seed=seed, size=size, **options)


@cache
def parts(config: str) -> Sequence[dict[str, Any]]:
    """The generators of a composite: those in its configuration, else all others with equal weight."""
    from reasoning_gym.factory import DATASETS

    names = [{"name": name} for name in sorted(DATASETS) if name != "composite" and name not in REFUSED]
    return [{"weight": 1.0, "config": {}, **part} for part in json.loads(config).get("datasets", names)]


def settings(generator: str) -> list[str]:
    """Names of a generator's settings."""
    from reasoning_gym.factory import DATASETS

    names = DATASETS[generator][1].__dataclass_fields__
    return [name for name in names if name not in ("seed", "size")]


def solve(generator: str, entry: str) -> str | None:
    """A reference answer if the generator gives none; None if there is no way to compute one."""
    unpacked = pickle.loads(base64.b64decode(entry))
    solver = {"rush_hour": drive, "boxnet": carry}.get(unpacked["metadata"].get("source_dataset", generator))
    return solver(unpacked["metadata"]) if solver else None


def drive(puzzle: Mapping[str, Any]) -> str | None:
    """The fewest moves that bring the car A to the exit, breadth first."""
    board, side = puzzle["board_config"], 6
    cells: dict[str, list[int]] = {}
    for cell, label in enumerate(board):
        if label not in "ox":
            cells.setdefault(label, []).append(cell)
    labels = sorted(cells)
    strides = [cells[label][1] - cells[label][0] for label in labels]
    lengths = [len(cells[label]) for label in labels]
    walls = frozenset(cell for cell, label in enumerate(board) if label == "x")
    start = tuple(cells[label][0] for label in labels)
    goal = 2 * side + side - lengths[0]
    came: dict[tuple[int, ...], tuple[tuple[int, ...], str] | None] = {start: None}
    ahead = deque([start])
    while ahead:
        state = ahead.popleft()
        if state[0] == goal:
            moves = []
            while (step := came[state]) is not None:
                state = step[0]
                moves.append(step[1])
            return " ".join(reversed(moves))
        taken = walls.union(
            *(range(p, p + s * n, s) for p, s, n in zip(state, strides, lengths, strict=True))
        )
        for car, (cell, stride, length) in enumerate(zip(state, strides, lengths, strict=True)):
            for direction in (1, -1):
                for steps in range(1, side):
                    front = cell + stride * (direction * steps + (length - 1 if direction > 0 else 0))
                    behind = front - direction * stride
                    beyond = stride == 1 and front // side != behind // side
                    if beyond or not 0 <= front < side * side or front in taken:
                        break
                    after = (*state[:car], cell + direction * stride * steps, *state[car + 1 :])
                    if after not in came:
                        sign = "+" if direction > 0 else "-"
                        came[after] = (state, f"{chr(ord('A') + car)}{sign}{steps}")
                        ahead.append(after)
    return None


def carry(puzzle: Mapping[str, Any]) -> str:
    """Move each box in turn, along its row's line and then its column's, to a target of its color."""
    plan = []
    boxes = [(square, label) for square, items in puzzle["initial_state"].items() for label in items]
    targets: dict[str, list[str]] = {}
    for square, label in boxes:
        if label.startswith("target_"):
            targets.setdefault(label.removeprefix("target_"), []).append(square)
    for square, label in boxes:
        if not label.startswith("box_"):
            continue
        color = label.removeprefix("box_")
        here = [float(part) for part in square.split("_")]
        there = [float(part) for part in targets[color].pop().split("_")]
        for axis in (0, 1):
            while here[axis] != there[axis]:
                agent = f"Agent[{here[0]}, {here[1]}]"
                here[axis] += 1 if there[axis] > here[axis] else -1
                plan.append({agent: f"move({label}, square[{here[0]}, {here[1]}])"})
        plan.append({f"Agent[{here[0]}, {here[1]}]": f"move({label}, target_{color})"})
    return json.dumps(plan)
