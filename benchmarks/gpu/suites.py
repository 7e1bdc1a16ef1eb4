"""The test suites that use the device, and `grpobench doctor --deep` on it."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from grpobench.benchmarks.gpu.rows import Outcome, Report, Skip, State, judged

TESTS = {
    True: ("tests/runs/sample/test_graphs.py", "tests/runs/models/test_past_weights.py"),
    False: (
        "tests/runs/train",
        "tests/runs/models",
        "tests/runs/sample",
        "tests/runs/prepare",
        "tests/algorithms/test_conformance.py",
        "tests/algorithms/test_against_trl.py",
    ),
}
"""By `Report.small`. Models that a test loads are on the GPU if there is one; models that it builds itself
are on the CPU."""
ENDING = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL)\s+(?:\[[^]]*\]\s+)?(tests/[^:\s]+)::(\S+)")
PLAIN = re.compile(r"(tests/[^:\s]+)::(.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)")
VERDICTS: dict[str, State] = {"good": "ok", "wrong": "failed"}


def tests(report: Report) -> None:
    """One row for each file. Files that were not finished when the time was up still have one."""
    test_paths = [name for name in TESTS[report.small] if Path(name).exists()]
    if importlib.util.find_spec("pytest") is None or not test_paths:
        lack = "pytest is not installed" if test_paths else "there is no folder tests here"
        report.add("pytest", ("skipped", lack), 0.0)
        return
    words = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--tb=short", *test_paths]
    if importlib.util.find_spec("xdist") is not None and not report.small:
        words += ["-n", "6", "--dist", "loadfile"]
    began = time.monotonic()
    files = EndedTests(report, began)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            files.note(line)
    files.finish(process.returncode)


class EndedTests:
    """The tests that have ended, by file."""

    def __init__(self, report: Report, began: float) -> None:
        self.report, self.began = report, began
        self.endings: dict[str, dict[str, str]] = defaultdict(dict)
        """By file and test."""

    def note(self, line: str) -> None:
        """A line of pytest's output. A failure becomes a row at once."""
        if match := ENDING.search(line):
            ending, path, name = match.groups()
        elif match := PLAIN.search(line):
            path, name, ending = match.groups()
        else:
            return
        earlier_ending = self.endings[path].get(name)  # pytest says failures again at its end
        self.endings[path][name] = ending.lower()
        if ending in ("FAILED", "ERROR") and earlier_ending is None:
            self.report.add(f"{path}::{name}", ("failed", "see tests.log"), time.monotonic() - self.began)

    def finish(self, code: int) -> None:
        """A row for each file, and one for pytest."""
        for path, endings in sorted(self.endings.items()):
            counts = Counter(endings.values())
            ending_counts = ", ".join(f"{count} {ending}" for ending, count in sorted(counts.items()))
            self.report.add(path, judged(not {"failed", "error"} & counts.keys(), ending_counts), 0.0)
        total = sum(map(len, self.endings.values()))
        took = time.monotonic() - self.began
        self.report.add("pytest", judged(code == 0, f"{total} tests, exit code {code}"), took)


def doctor(report: Report) -> None:
    """The checks of `grpobench doctor --deep` on the device."""

    def examine() -> Outcome:
        words = [sys.executable, "-m", "grpobench", "doctor", "--deep", "quickstart", "--json"]
        words += ["--device", report.device, "--set", 'tasks=["arithmetic"]', "--set", 'arms=["grpo"]']
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
        try:
            checks = json.loads(done.stdout)
        except json.JSONDecodeError:
            raise Skip(f"it ended with {done.returncode}; see doctor.log") from None
        for check in checks:
            state: State = VERDICTS.get(check["verdict"], "failed")
            report.add(check["check"], (state, check["message"]), check["seconds"])
        return judged(done.returncode == 0, f"{len(checks)} checks, exit code {done.returncode}")

    report.attempt("grpobench doctor --deep quickstart", examine)
