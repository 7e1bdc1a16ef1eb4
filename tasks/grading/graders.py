"""What other libraries' graders say of a truth and an answer, asked as those libraries ask them.

Each runs in processes that can be killed: some of them work out 9^{9^{9}}.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from grpobench.tasks.workers.keeper import Ending
from grpobench.tasks.workers.pool import Pool

Said = Literal["equal", "different", "timeout", "crash"]
CPU_SECONDS = 6.0
"""A question; lm-eval gives up by itself after five seconds by the clock."""
WALL_SECONDS = 60.0


@dataclass(frozen=True)
class Grader:
    """A grader of a library, at the version of which a verdict is kept."""

    name: str
    package: str
    version: str
    asked: str
    """How it is asked."""
    needs: tuple[tuple[str, str], ...] = ()
    """What else must be installed: packages and how their version begins."""

    def missing(self) -> str:
        """Why it can not be asked here, with the remedy; empty where it can."""
        for package, version in ((self.package, self.version), *self.needs):
            try:
                found = metadata.version(package)
            except metadata.PackageNotFoundError:
                found = "not here"
            if not found.startswith(version):
                return f"{self.name}: {package} is {found}; it takes pip install '{package}=={version}'"
        return ""

    def ask(self, pairs: Sequence[tuple[str, str]]) -> list[Said]:
        """Its verdict on each pair of truth and answer, as they were written. Raises OSError where its
        processes can not be started."""
        pool = Pool(f"grpobench.tasks.grading.graders:{self.name}", cpu_seconds=CPU_SECONDS)
        try:
            replies = pool.map([list(pair) for pair in pairs], wall_seconds=WALL_SECONDS)
        finally:
            pool.close()
        if lost := [reply.value for reply in replies if reply.ending == "infra_error"]:
            raise OSError(f"{self.name} could not be asked: {lost[0]}")
        return [_SAID.get(reply.ending, "equal" if reply.value else "different") for reply in replies]


_SAID: Mapping[Ending, Said] = {"raised": "crash", "timeout": "timeout", "crash": "crash"}


GRADERS = (
    Grader(
        "math_verify",
        "math-verify",
        "0.9.0",
        "`verify(parse(truth), parse(answer))`, each in a box",
        (("antlr4-python3-runtime", "4.13"),),  # with 4.11 it reads no \\%
    ),
    Grader(
        "minerva_math",
        "lm-eval",
        "0.4.13",
        "`is_equiv` of its task's utils.py, both through its `normalize_final_answer`",
        (("antlr4-python3-runtime", "4.11"),),
    ),
    Grader("hendrycks_math", "lm-eval", "0.4.13", "`is_equiv(answer, truth)` of its task's utils.py"),
)

Compare = Callable[[Sequence[str]], bool]


def math_verify() -> Compare:
    """math-verify alone."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)

    def compare(pair: Sequence[str]) -> bool:
        truth, answer = (parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in pair)
        return bool(verify(truth, answer, timeout_seconds=None))

    return compare


def minerva_math() -> Compare:
    """lm-eval's `exact_match` of minerva_math."""
    utils = _utils("minerva_math")

    def compare(pair: Sequence[str]) -> bool:
        truth, answer = map(utils.normalize_final_answer, pair)
        return bool(utils.is_equiv(answer, truth))

    return compare


def hendrycks_math() -> Compare:
    """lm-eval's `exact_match` of hendrycks_math."""
    utils = _utils("hendrycks_math")
    return lambda pair: bool(utils.is_equiv(pair[1], pair[0]))


def _utils(task: str) -> Any:
    """The file alone: importing the package's `tasks` takes the whole harness."""
    package = importlib.util.find_spec("lm_eval")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("lm_eval")
    path = Path(package.origin).parent / "tasks" / task / "utils.py"
    spec = importlib.util.spec_from_file_location(f"{task}_utils", path)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
