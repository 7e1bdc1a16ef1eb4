"""`grpobench tasks check`: whether each task accepts its own reference answers and rejects wrong ones."""

# Wrong answers include answers that know nothing of their problem; the check counts how many of them a
# verifier accepts.

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from grpobench.runs.reward.verifier_check import accepted, corruption
from grpobench.runs.settings import environments, registries
from grpobench.runs.settings.recipe import read_recipe
from grpobench.runs.settings.registries import tasks
from grpobench.tasks.data import sources
from grpobench.tasks.data.tables import DataError
from grpobench.tasks.task import Problem, Task, Verdict, family

CONSTANTS: Final = (
    *("nan", "-nan", "inf", "-inf", "Infinity", "1e999", "nan+nani", "[NaN]"),
    *("0", "1", "-1", "2", "10", "0.0", "0.5", "0/1"),
    *("", " ", '""', "[]", "{}", "()", "[[]]", "None", "null", "?", "-"),
    *("yes", "no", "Yes", "No", "true", "false", "True", "False"),
    *("A", "B", "C", "D", "E", "x"),
    "0 or 1, yes or no, A or B or C or D or E. " * 200,
)
"""Final answers that are tried on every problem. The last one is long."""
MOST_CONSTANTS: Final = 32
"""Number of problems per task on which they are tried, spread evenly."""
OTHERS: Final = 6
"""Number of reference answers of other problems that are tried on each."""


@dataclass(frozen=True)
class ConstantAnswer:
    """An answer that knows nothing of the problem."""

    problem: Problem
    text: str
    verdict: Verdict
    right: bool
    """Whether it happens to be the right answer."""


def tried(task: Task, problems: Sequence[Problem], references: Mapping[str, Verdict]) -> list[ConstantAnswer]:
    """Every constant, and references of other problems, on at most `MOST` of the problems. `references` are
    the verdicts on the problems' own references, by id. An answer counts as right if it equals that reference
    in spelling or value, or if the task confirms it without its verifier (`Task.right_besides`). The
    verifier's verdict on it has no influence on that."""
    chosen = problems[:: -(-len(problems) // MOST_CONSTANTS)] if problems else []
    answers_by_problem: list[list[tuple[str, Sequence[str]]]] = []
    for position, problem in enumerate(chosen):
        constants = [(text, task.state(problem, text)) for text in CONSTANTS]
        answers_by_problem.append([*constants, *others(task, chosen, position, references)])
    graded = task.verify_all(chosen, [[episode for _, episode in answers] for answers in answers_by_problem])
    blind_answers = []
    for problem, answers, verdicts in zip(chosen, answers_by_problem, graded, strict=True):
        reference = references[problem.id].answer
        for (text, episode), verdict in zip(answers, verdicts, strict=True):
            right = alike(text, reference) or (
                accepted(verdict) and task.right_besides(problem, tuple(episode))
            )
            blind_answers.append(ConstantAnswer(problem, text, verdict, right))
    return blind_answers


def others(
    task: Task, problems: Sequence[Problem], position: int, references: Mapping[str, Verdict]
) -> list[tuple[str, Sequence[str]]]:
    """Reference answers of other problems with other truths: (answer, episode)."""
    episode_by_answer: dict[str, Sequence[str]] = {}
    for step in range(1, len(problems)):
        other = problems[(position + step) % len(problems)]
        if other.truth != problems[position].truth and len(episode_by_answer) < OTHERS:
            episode_by_answer[references[other.id].answer or ""] = task.demonstrate_episode(other)
    return list(episode_by_answer.items())


def graded_scores(blind_answers: Sequence[ConstantAnswer]) -> dict[str, float]:
    """The mean scores of the answers that are not right."""
    wrong = [
        answer.verdict.scores
        for answer in blind_answers
        if not answer.right and answer.verdict.outcome == "graded"
    ]
    names = dict.fromkeys(name for scores in wrong for name in scores)
    return {name: sum(scores.get(name, 0.0) for scores in wrong) / len(wrong) for name in names}


def alike(answer: str, reference: str | None) -> bool:
    """Whether two answers have the same letters, digits and signs, or the same value as numbers."""
    if reference is None:
        return False
    one_bare, other_bare = bare(answer), bare(reference)
    if one_bare == other_bare:
        return bool(one_bare) or "".join(answer.split()) == "".join(reference.split())
    answer_value, reference_value = value(answer), value(reference)
    return answer_value is not None and answer_value == reference_value


def bare(text: str) -> str:
    return re.sub(r"\\(?:text|mbox|mathrm|textbf)\b|[^\w.+\-/*^<>=]", "", text).casefold()


def value(text: str) -> complex | None:
    """The number in a text; None for anything else."""
    text = re.sub(r"[\s,$]", "", text).strip("\"'")
    try:
        above, slash, below = text.partition("/")
        if slash:
            return complex(float(above) / float(below))
        return complex(text.replace("i", "j") if re.fullmatch(r"[-+.\dji]+", text) else text)
    except (ValueError, ZeroDivisionError):
        return None


State = Literal["ok", "failed", "absent"]
MOST = 10_000
"""Default number of problems per task."""
MOST_SHOWN = 5
"""Number of failures of a kind that are listed."""
AT_ONCE = 256
"""Problems that are given to the verifier together."""
AHEAD = 500.0
"""Nats per token by which one candidate leads the others; totals and means by length then agree."""


TALLIES = ("references", "corrupted", "empty", "constants", "replays")
MOST_REPLAYS = 16
"""Number of problems per task whose episodes are replayed."""


@dataclass(frozen=True)
class GradeCount:
    """How many answers of a kind were graded as correct."""

    answers: int = 0
    accepted: int = 0
    faults: tuple[str, ...] = ()
    """The first answers that were graded wrongly, and how."""

    def count(self, verdict: Verdict, should_accept: bool, label: str) -> GradeCount:
        """Count one more answer, which should be accepted or not. Only a full `correct` counts as
        accepted."""
        taken = accepted(verdict)
        right = taken == should_accept and verdict.outcome != "infra_error"
        faults = self.faults
        if not right and len(faults) < MOST_SHOWN:
            faults += (f"{label}: {verdict.outcome}, correct = {verdict.scores.get('correct')}",)
        return GradeCount(self.answers + 1, self.accepted + taken, faults)

    def row(self) -> dict[str, Any]:
        share = self.accepted / self.answers if self.answers else None
        return {"answers": self.answers, "accepted": share, "faults": list(self.faults)}


@dataclass(frozen=True)
class TaskCheck:
    """The result for one task in one mode."""

    task: str
    mode: Literal["written", "likelihood", ""] = ""
    """By what a policy writes, or by the likelihood of candidates."""
    state: State = "ok"
    why: str = ""
    """Why a task or a part of it could not be checked, with the remedy."""
    problems: int = 0
    """How many problems the task has here."""
    references: GradeCount = GradeCount()
    corrupted: GradeCount = GradeCount()
    empty: GradeCount = GradeCount()
    """Empty completions; not with likelihood."""
    constants: GradeCount = GradeCount()
    """Constants and other problems' answers, without those that happen to be right; not with likelihood."""
    replays: GradeCount = GradeCount()
    """Episodes that were played twice, for tasks whose environment is the code of others."""
    lucky: int = 0
    """How many of these happened to be right."""
    graded: Mapping[str, float] = field(default_factory=dict)
    """Mean scores of the others."""
    defects: int = 0
    """Problems whose published reference is known to be wrong; they are left out."""
    seconds: float = 0.0
    """Seconds that the check took."""

    def settled(self) -> TaskCheck:
        """A copy with the state that its tallies imply."""
        faults = any(getattr(self, name).faults for name in TALLIES)
        blank = not self.replays.answers and not (self.references.answers and self.corrupted.answers)
        return dataclasses.replace(self, state="failed" if faults or blank else "ok")

    def row(self) -> dict[str, Any]:
        """As JSON."""
        tallies = {name: getattr(self, name).row() for name in TALLIES}
        return {**dataclasses.asdict(self), **tallies}


def checks(
    names: Sequence[str], most: int = MOST, tell: Callable[[str], None] = lambda text: None
) -> Iterator[TaskCheck]:
    """Check the named tasks, or all, on at most `most` problems each (0: all), spread evenly over the splits.
    The tasks of a family share that number. A name may be `module:Name`, with the file in the current folder,
    or the path of a recipe, which stands for its tasks with their settings. `tell` gets a message before each
    task. Raises ConfigError for an unknown name before anything is checked."""
    registry = tasks()
    members = Counter(map(family, registry))
    chosen: dict[str, Callable[[], Task]] = {}
    for name in names or registry:
        if name.endswith(".toml"):
            chosen |= {run.task.name: always(run.task) for run in read_recipe(name).configs}
            continue
        kin = [task for task in registry if family(task) == name] or [name]
        if registries.is_environment(name):
            task = environments.build(name, Path.cwd())
            chosen[task.name] = always(task)
            continue
        chosen |= {task: registries.find("task", task, Path.cwd()).cls for task in kin}
    for number, (name, make) in enumerate(chosen.items(), 1):
        tell(f"checking {name}, task {number} of {len(chosen)}")
        began = time.monotonic()
        try:
            problem_limit = -(-most // max(1, members[family(name)]))
            for task_check in check(name, fewer(make(), problem_limit), problem_limit):
                yield dataclasses.replace(task_check, seconds=round(time.monotonic() - began, 3))
                began = time.monotonic()
        except Exception as error:  # An error of a faulty task becomes its result.
            took = round(time.monotonic() - began, 3)
            yield TaskCheck(name, state="failed", why=f"{type(error).__name__}: {error}", seconds=took)


def always(task: Task) -> Callable[[], Task]:
    """An instance of this task, as its class makes it with defaults."""
    return lambda: task


def fewer(task: Task, most: int) -> Task:
    """A task that generates its problems, with settings for at most about `most` problems, because generating
    may take longer than checking. Any other task unchanged."""
    field_names = {field.name for field in dataclasses.fields(task)}
    sizes = {split: int(getattr(task, split)) for split in task.splits if split in field_names}
    if task.tables or not most or sum(sizes.values()) <= most:
        return task
    made: dict[str, Any] = {name: max(1, size * most // sum(sizes.values())) for name, size in sizes.items()}
    return dataclasses.replace(task, **made)


def check(name: str, task: Task, most: int) -> Iterator[TaskCheck]:
    """One result per mode of a task, or one that says what is missing."""
    lack = task.missing()
    if lack and lack != sources.missing(task.tables, sources.data_folder(), task.packages):
        yield TaskCheck(name, state="absent", why=lack)  # without something that grading needs
        return
    problems = checkable_problems(task, lack)
    if not problems:
        yield TaskCheck(name, state="absent", why=lack)
        return
    common = TaskCheck(name, why=lack, problems=len(problems))
    step = -(-len(problems) // most) if most else 1
    defects = task.defects()
    indices = [i for i in range(0, len(problems), step) if problems[i].id not in defects]
    common = dataclasses.replace(common, defects=len(range(0, len(problems), step)) - len(indices))
    replayed = [problems[i] for i in indices[:: -(-len(indices) // MOST_REPLAYS)]]
    common = dataclasses.replace(common, replays=replays(task, replayed))
    if {"sampled", "greedy"} & set(task.modes):
        try:
            yield written(common, task, problems, indices)
        except NotImplementedError:
            why = "it has no reference answers: only replays were checked"
            yield dataclasses.replace(common, mode="written", why=why).settled()
    if "likelihood" in task.modes:
        yield likelihood(common, task, [problems[i] for i in indices])


def checkable_problems(task: Task, lack: str) -> list[Problem]:
    """All problems of a task; if data is missing, those of the splits that can be read here."""
    if not lack:
        return [problem for split in task.splits for problem in task.problems(split)]
    readable_problems: list[Problem] = []
    with sources.without_hub():
        for split in task.splits:
            try:
                readable_problems += task.problems(split)
            except DataError:
                continue
    return readable_problems


def replays(task: Task, problems: Sequence[Problem]) -> GradeCount:
    """Play episodes twice; none for a task of the suite, whose replies depend on the turns by its code."""
    if not task.replays:
        return GradeCount()
    faults = tuple(task.replay_faults(problems))
    return GradeCount(len(problems), len(problems) - len(faults), faults[:MOST_SHOWN])


def written(check: TaskCheck, task: Task, problems: Sequence[Problem], chosen: Sequence[int]) -> TaskCheck:
    """Grade, for each chosen problem, its reference, a corrupted answer and an empty one; for some also
    constants and answers to other problems."""
    references, corrupted, empty = GradeCount(), GradeCount(), GradeCount()
    reference_verdicts: dict[str, Verdict] = {}
    for start in range(0, len(chosen), AT_ONCE):
        part = chosen[start : start + AT_ONCE]
        episodes_by_problem = []
        for i in part:
            reference = tuple(task.demonstrate_episode(problems[i]))
            wrong = corruption(task, problems, i, reference)
            episodes_by_problem.append([reference, ("",), *([] if wrong is None else [wrong])])
        graded = task.verify_all([problems[i] for i in part], episodes_by_problem)
        for i, answers, verdicts in zip(part, episodes_by_problem, graded, strict=True):
            name = f"problem {problems[i].id}"
            reference_verdicts[problems[i].id] = verdicts[0]
            references = references.count(verdicts[0], True, f"{name}, reference {answers[0][-1]!r:.200}")
            empty = empty.count(verdicts[1], False, name)
            for answer, verdict in zip(answers[2:], verdicts[2:], strict=True):
                corrupted = corrupted.count(verdict, False, f"{name}, corrupted {answer[-1]!r:.200}")
    blind_answers = tried(task, [problems[i] for i in chosen], reference_verdicts)
    fooled = GradeCount()
    for blind_answer in blind_answers:
        if not blind_answer.right:
            fooled = fooled.count(
                blind_answer.verdict, False, f"problem {blind_answer.problem.id}, {blind_answer.text!r:.80}"
            )
    return dataclasses.replace(
        check,
        mode="written",
        references=references,
        corrupted=corrupted,
        empty=empty,
        constants=fooled,
        lucky=len(blind_answers) - fooled.answers,
        graded=graded_scores(blind_answers),
    ).settled()


def likelihood(check: TaskCheck, task: Task, problems: Sequence[Problem]) -> TaskCheck:
    """Ask for the verdict with each candidate far ahead of the others in turn. If the reference is one of the
    candidates it must be accepted, and the corrupted one (or every other) rejected. A probe without a right
    answer must distinguish its candidates: accept one and reject one."""
    references, corrupted = GradeCount(), GradeCount()
    for problem in problems:
        candidates = task.candidates(problem)
        verdicts = [ahead(task, problem, candidates, i) for i in range(len(candidates))]
        order = sorted(range(len(candidates)), key=lambda i: -verdicts[i].scores.get("correct", 0.0))
        right, wrong = order[:1], order[-1:]
        if (reference := task.demonstrate(problem)) in candidates:
            right = [candidates.index(reference)]
            wrong = [i for i in range(len(candidates)) if i not in right]
            if (text := task.corrupt(problem)) in candidates:
                wrong = [candidates.index(str(text))]
        for i in right:
            label = f"problem {problem.id}, candidate {candidates[i]!r:.200}"
            references = references.count(verdicts[i], True, label)
        for i in wrong:
            label = f"problem {problem.id}, candidate {candidates[i]!r:.200}"
            corrupted = corrupted.count(verdicts[i], False, label)
    return dataclasses.replace(check, mode="likelihood", references=references, corrupted=corrupted).settled()


def ahead(task: Task, problem: Problem, candidates: Sequence[str], first: int) -> Verdict:
    """The verdict if one candidate is far likelier than the others, by total and by mean."""
    tokens = [max(1, len(text.split())) for text in candidates]
    logp = [-count * (1.0 if i == first else AHEAD) for i, count in enumerate(tokens)]
    return task.choose(problem, logp, tokens)


def as_lines(check: TaskCheck) -> list[str]:
    """A result as text."""
    if check.state == "absent":
        return [f"{check.task}: absent: {check.why}"]
    if not check.mode:
        return [f"{check.task}: FAILED: {check.why}"]
    parts = []
    if check.references.answers:
        parts += [f"{share(check.references)} references accepted", f"{share(check.corrupted)} corrupted"]
    if check.empty.answers:
        parts += [f"{share(check.empty)} empty", f"{share(check.constants)} constants"]
    if check.replays.answers:
        parts.append(f"{share(check.replays)} replays equal")
    if check.defects:
        parts.append(f"{check.defects} known to be wrong left out")
    head = f"{check.task} ({check.mode}): " + ("" if check.state == "ok" else "FAILED: ")
    lines = [head + ", ".join(parts) + f"; {check.problems:,} problems"]
    if check.why:
        lines.append(f"    in part: {check.why}")
    for name in TALLIES:
        lines += [f"    {name}: {fault}" for fault in getattr(check, name).faults]
    return lines


def share(tally: GradeCount) -> str:
    """Such as ``100 % of 1,319``."""
    if not tally.answers:
        return "none of 0"
    return f"{100 * tally.accepted / tally.answers:.4g} % of {tally.answers:,}"
