"""A language model that grades completions by a rubric, with repeated and cached verdicts."""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from grpobench.analysis.runfolder.checksums import sum_of
from grpobench.analysis.statistics.agreement import krippendorff_alpha
from grpobench.runs.models.loading import Loaded
from grpobench.runs.reward.chat import ChatClient, JudgingError
from grpobench.runs.reward.judge_text import question, read_verdict
from grpobench.runs.reward.verdict_file import Row, VerdictFile, recorded_rows
from grpobench.runs.sample.rollouts import Judgment, Rollout
from grpobench.runs.settings.judge import JudgeConfig
from grpobench.runs.tools.process import safe_point
from grpobench.tasks.task import Problem, Task
from grpobench.tasks.thoughts import without_thoughts

LOOK = 0.1
"""Seconds between safe points while requests are under way."""
WINDOW, FEWEST = 200, 8
"""Latest completions among which unreadable verdicts are counted, and how many there must be."""
MOST_UNREADABLE = 0.5
"""Share of these without a readable verdict that ends a run: the judge does not answer as it was asked to."""
KEY = 32
"""Hexadecimal characters of a verdict's key."""
TAIL = 120
"""Characters of a reply that an error repeats."""


class Judge:
    """Asks for the verdicts on completions that are not in the experiment's file yet, several at once.

    A verdict has a key, the hash of the request and of its number among the repeats. The file keeps replies
    as they came, so that a resumed run asks nothing twice and gets the same rewards. `run` is the run's name;
    `section`, such as ``reward.judge``, names the settings in messages."""

    def __init__(self, config: JudgeConfig, section: str, path: Path | None = None, run: str = "") -> None:
        self.config, self.section, self.run = config, section, run
        self.file = VerdictFile(path)
        self.recorded = recorded_rows(Path(config.recorded).expanduser()) if config.recorded else {}
        self.digest = sum_of(config.effective)[:16]
        self.client = ChatClient(
            config.url,
            "" if config.recorded else api_key(config, section),
            config.timeout,
            config.retries,
            section,
        )
        self._lock = threading.Lock()
        self._under_way = 0
        """Requests that are not in the file."""
        self._readable: deque[bool] = deque(maxlen=WINDOW)

    def judge(self, answers: Sequence[tuple[Problem, str]], stage: str) -> list[Judgment]:
        """A judgment of each answer. `stage` is the part of the run that needs them: verdicts that it was the
        first to ask for are its calls, also when it asks again after a resume.

        Raises JudgingError if the judge cannot be asked, its budget is used up, a recorded verdict is
        missing, or too many verdicts are unreadable."""
        by = f"{self.run}/{stage}"
        bodies = [self.body(problem, response) for problem, response in answers]
        repeats = range(self.config.repeats)
        keys = [[sum_of([body, repeat])[:KEY] for repeat in repeats] for body in bodies]
        body_by_key = {key: body for body, of_body in zip(bodies, keys, strict=True) for key in of_body}
        rows = self._rows(body_by_key, by)
        unpaid = {key for key, row in rows.items() if row["by"] == by}
        judgments = []
        for of_answer in keys:
            called = [key for key in of_answer if key in unpaid]
            unpaid -= {*called}  # of equal completions the first one pays
            judgments.append(self._judgment([rows[key] for key in of_answer], [rows[key] for key in called]))
        self._watch(judgments, [rows[of_answer[-1]] for of_answer in keys])
        return judgments

    def body(self, problem: Problem, response: str) -> dict[str, Any]:
        """The request for a verdict."""
        config = self.config
        content = question(config.rubric, problem, response, config.scale)
        messages = [{"role": "user", "content": content}]
        fixed = {"model": config.model, "messages": messages, "temperature": config.temperature}
        return {**config.request, **fixed}

    def _rows(self, body_by_key: Mapping[str, dict[str, Any]], by: str) -> dict[str, Row]:
        self.file.refresh()
        rows = {key: row for key in body_by_key if (row := self.recorded.get(key) or self.file.rows.get(key))}
        lacking = [key for key in body_by_key if key not in rows]
        if lacking and self.config.recorded:
            content = body_by_key[lacking[0]]["messages"][0]["content"]
            raise JudgingError(
                f"{self.section}.recorded: {self.config.recorded} lacks {len(lacking)} of "
                f"{len(body_by_key)} verdicts, first that with key {lacking[0]}, on {content[:TAIL]!r}; "
                f"record them with {self.section}.url and without recorded"
            )
        stopped = threading.Event()
        with ThreadPoolExecutor(self.config.concurrency, "judge") as pool:
            futures = {pool.submit(self._ask, key, body_by_key[key], by, stopped) for key in lacking}
            try:
                while futures:
                    done, futures = wait(futures, LOOK, FIRST_COMPLETED)
                    rows |= {row["key"]: row for row in (future.result() for future in done)}
                    safe_point()
            except BaseException:
                stopped.set()  # those under way still end, and what they say is kept
                pool.shutdown(cancel_futures=True)
                raise
        return rows

    def _ask(self, key: str, body: dict[str, Any], by: str, stopped: threading.Event) -> Row:
        reply = self.client.ask(body, self._begin, stopped)
        if self.config.max_tokens and not any(reply.tokens):
            raise JudgingError(
                f"{self.section}.max_tokens: {self.client.url} counts no tokens; set max_calls instead"
            )
        row = {"key": key, "judge": self.digest, "by": by, "reply": reply.text, "cut": reply.was_cut}
        row |= {"tokens": list(reply.tokens), "calls": reply.calls}
        counted = self.file.add(row)
        with self._lock:
            self._under_way -= reply.calls
        return counted

    def _begin(self) -> None:
        """Count a request. Raises JudgingError if the budget has none left."""
        with self._lock:
            calls, tokens = self.file.calls[self.digest] + self._under_way, self.file.tokens[self.digest]
            limits = {"max_calls": (calls, "requests"), "max_tokens": (tokens, "tokens")}
            for name, (spent, unit) in limits.items():
                limit = getattr(self.config, name)
                if limit and spent >= limit:
                    raise JudgingError(
                        f"{self.section}.{name}: the budget of {limit:,} {unit} is used up ({spent:,} so "
                        "far); raise it and start the same command again, which asks for no verdict twice"
                    )
            self._under_way += 1

    def _judgment(self, rows: Sequence[Row], called: Sequence[Row]) -> Judgment:
        prompt, completion = (sum(row["tokens"][side] for row in called) for side in (0, 1))
        prices = self.config.prices
        return Judgment(
            tuple(None if row["cut"] else read_verdict(row["reply"], self.config.scale) for row in rows),
            calls=sum(row["calls"] for row in called),
            cached=len(rows) - len(called),
            tokens=prompt + completion,
            cost=(prompt * prices[0] + completion * prices[1]) / 1e6 if any(prices) else None,
        )

    def _watch(self, judgments: Sequence[Judgment], rows: Sequence[Row]) -> None:
        self._readable.extend(not math.isnan(judgment.score) for judgment in judgments)
        unreadable = self._readable.count(False)
        if len(self._readable) >= FEWEST and unreadable > MOST_UNREADABLE * len(self._readable):
            reply = next(
                row["reply"]
                for judgment, row in reversed([*zip(judgments, rows, strict=True)])
                if math.isnan(judgment.score)
            )
            raise JudgingError(
                f"{self.section}: {unreadable} of the last {len(self._readable)} completions have no "
                f"readable verdict; the last reply ends with {reply[-TAIL:]!r}. Mend the rubric, let replies "
                "be longer, or take another judge"
            )


def api_key(config: JudgeConfig, section: str) -> str:
    """The key in the environment. Raises JudgingError, which does not repeat it."""
    key = os.environ.get(config.key_variable, "").strip() if config.key_variable else ""
    if config.key_variable and not (key and key.isascii() and key.isprintable()):
        lack = "holds no API key" if key else "is not set; set it to the API key"
        raise JudgingError(f"{section}.key_variable: the environment variable {config.key_variable} {lack}")
    return key


def graded_text(task: Task, loaded: Loaded, rollout: Rollout) -> str:
    """What a judge reads of a completion: without thoughts, as a verifier does, or a whole episode of several
    turns."""
    text = loaded.decode(rollout.completion)
    return text if task.reads_thoughts or task.turns != 1 else without_thoughts(text)


def judge_metrics(judgments: Sequence[Judgment]) -> dict[str, float]:
    """What judgments say of the judge, and what they took; nothing without judgments. `agreement` is
    Krippendorff's alpha of the repeated verdicts on each completion."""
    if not judgments:
        return {}
    readable = [[score for score in judgment.scores if score is not None] for judgment in judgments]
    verdicts = sum(len(judgment.scores) for judgment in judgments)
    numbers = {
        "unreadable": 1 - sum(map(len, readable)) / verdicts,
        "calls": float(sum(judgment.calls for judgment in judgments)),
        "cached": float(sum(judgment.cached for judgment in judgments)),
        "tokens": float(sum(judgment.tokens for judgment in judgments)),
    }
    if any(len(judgment.scores) > 1 for judgment in judgments):
        numbers["agreement"] = krippendorff_alpha(readable)
    costs = [judgment.cost for judgment in judgments if judgment.cost is not None]
    return numbers | ({"cost": sum(costs)} if costs else {})
