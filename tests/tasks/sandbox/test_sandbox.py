"""Every tier that works here: programs get their values out, and nothing else gets anywhere.

The attacks are in `attacks.toml`. What they claim is not taken from them alone: the host watches a file, a
process, two sockets and its own children.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.attacks import ATTACKS, COSTLY, ENDLESS, HACKS
from hypothesis import given
from hypothesis import strategies as st

from grpobench.tasks.data.tables import DataError
from grpobench.tasks.grading import program_values as judging
from grpobench.tasks.grading.asserts import few
from grpobench.tasks.kinds import programs
from grpobench.tasks.sandbox import choose, inside, transcript
from grpobench.tasks.sandbox import process as sandbox_process
from grpobench.tasks.sandbox import wire as sandbox_wire
from grpobench.tasks.sandbox.monty import MontySandbox
from grpobench.tasks.sandbox.process import usage
from grpobench.tasks.sandbox.protocol import BRIEF as BRIEF_LENGTH
from grpobench.tasks.sandbox.protocol import PATIENCE, Execution, Job, Limits, Sandbox, Tier
from grpobench.tasks.task import Problem
from grpobench.tasks.workers.pool import Pool, cores

TIERS: tuple[Tier, ...] = ("bubblewrap", "monty")
SECRET = "secret-4711-of-the-host"
LIMITS = Limits(seconds=1.0, megabytes=256)
BRIEF = Limits(seconds=0.3, megabytes=256)
"""For programs that are expected to use up what they get."""
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: orphans below this process become its children, where they can be counted."""


def need(tier: Tier, limits: Limits = LIMITS) -> Sandbox:
    if trouble := choose.trouble(tier):
        pytest.skip(f"{tier}: {trouble}")
    return choose.start(tier, limits)


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> Sandbox:
    return need(request.param)


def children() -> set[int]:
    pids = set()
    for path in Path("/proc/self/task").glob("*/children"):
        pids |= {int(pid) for pid in path.read_text().split()}
    return {pid for pid in pids if state(pid) not in "ZX"}


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


# Attacks


@dataclass(frozen=True)
class Aftermath:
    """What the host saw of all attacks on one tier."""

    tier: Tier
    executions: dict[str, Execution]
    connections: int
    canary_lives: bool
    marks: list[str]
    survivors: list[str]


@pytest.fixture(scope="module", params=[*TIERS, "bubblewrap of an ordinary user"])
def aftermath(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Aftermath]:
    tier = need(request.param.split()[0], BRIEF)
    run = as_nobody if " " in request.param else type(tier).run_all
    folder = tmp_path_factory.mktemp("host")
    (folder / "file").write_text(SECRET)
    os.environ["GRPOBENCH_TEST_SECRET"] = SECRET
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    canary = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    before = children()
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as tcp, listening(socket.AF_UNIX, "\0grpobench") as unix:
        facts = {
            "FILE": folder / "file",
            "FOLDER": folder,
            "MARK": folder / "mark",
            "PID": canary.pid,
            "PORT": tcp.listener.getsockname()[1],
            "SOCKET": "grpobench",
            "HOST": os.uname().nodename,
        }
        jobs = [Job(filled(text, facts), ("attack()",)) for text in ATTACKS.values()]
        executions = run(tier, jobs)
        connections = tcp.seen + unix.seen
    time.sleep(0.2)
    left = children() - before
    yield Aftermath(
        tier.tier,
        dict(zip(ATTACKS, executions, strict=True)),
        connections,
        canary.poll() is None,
        [path.name for path in folder.iterdir() if path.name != "file"],
        [name for name in map(command, left) if "monty" not in name],
    )
    ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)
    canary.kill()
    canary.wait()
    del os.environ["GRPOBENCH_TEST_SECRET"]


NOBODY = 65534
RELAY = """
import json, sys
from grpobench.tasks.sandbox import choose
from grpobench.tasks.sandbox.protocol import Job, Limits
if reason := choose.trouble("bubblewrap"):
    raise SystemExit(f"skip: {reason}")
seconds, megabytes, jobs = json.load(sys.stdin)
chosen = choose.start("bubblewrap", Limits(seconds, megabytes))
found = chosen.run_all([Job(program, tuple(calls)) for program, calls in jobs])
print(json.dumps([[e.outcome, bool(e.values and e.values[0]), ascii(e.values), e.detail] for e in found]))
"""


def as_nobody(tier: Sandbox, jobs: list[Job]) -> list[Execution]:
    """What a process of an ordinary user gives for the same jobs. True values come back as their text."""
    if os.geteuid() != 0:
        pytest.skip("these tests run as an ordinary user already")
    requests = [[job.program, job.calls] for job in jobs]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(Path(choose.__file__).parents[1], f"{folder}/grpobench/tasks")
        python = next((p for p in (sys.executable, "/usr/bin/python3") if usable(p)), None)
        if python is None:
            pytest.skip("no interpreter that an ordinary user can run: they are in folders of root's")
        done = subprocess.run(
            [python, "-P", "-c", RELAY],
            input=json.dumps([tier.limits.seconds, tier.limits.megabytes, requests]),
            env=dict(os.environ, PYTHONPATH=folder, HOME="/"),
            cwd="/",
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.stderr.startswith("skip: "):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return [
        Execution(outcome, (encoded(text if got else None),), detail)
        for outcome, got, text, detail in json.loads(done.stdout)
    ]


def usable(python: str) -> bool:
    """Whether an ordinary user can run it, and this code in it."""
    try:
        command = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        return subprocess.run(command, user=NOBODY, group=NOBODY, check=False, cwd="/").returncode == 0
    except OSError:
        return False


def filled(text: str, facts: dict[str, object]) -> str:
    for name, fact in facts.items():
        text = text.replace(f"@{name}@", str(fact))
    return text


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    except OSError:
        return "monty (gone)"


class listening:
    """Counts who connects."""

    def __init__(self, family: socket.AddressFamily, address: object) -> None:
        self.listener = socket.socket(family)
        self.listener.bind(address)
        self.listener.listen()
        self.seen = 0

    def __enter__(self) -> listening:
        threading.Thread(target=self.count, daemon=True).start()
        return self

    def count(self) -> None:
        while True:
            try:
                self.listener.accept()
            except OSError:
                return
            self.seen += 1

    def __exit__(self, *_: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_gets_nothing(aftermath: Aftermath, name: str) -> None:
    execution = aftermath.executions[name]
    got = execution.values[0] if execution.outcome == "pass" else None
    assert not got, f"got through: {got!r:.300}"
    assert SECRET not in repr(execution)
    assert execution.outcome != "infra_error", execution.detail


def test_attacks_leave_nothing_behind(aftermath: Aftermath) -> None:
    assert aftermath.connections == 0
    assert aftermath.canary_lives
    assert aftermath.marks == []
    assert aftermath.survivors == []


def test_endless_programs_have_the_outcome_timeout(aftermath: Aftermath) -> None:
    outcomes = {name: aftermath.executions[name].outcome for name in ENDLESS}
    if aftermath.tier == "monty":  # it refuses some at once, and its regular expressions are linear
        outcomes = {name: outcomes[name] for name in ("endless loop", "endless definition")}
    assert set(outcomes.values()) == {"timeout"}, outcomes


def test_program_cannot_outlive_its_sandbox() -> None:
    """One that asks not to die with its parent is dead all the same when its time is up."""
    chosen = need("bubblewrap", BRIEF)
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    before = children()
    try:
        for name in ("endless loop that outlives its parent", "endless loop behind a closed door"):
            assert chosen.run(ATTACKS[name], ["attack()"]).outcome == "timeout"
            time.sleep(0.5)  # a killed process is gone a moment later; left alone it has two more seconds
            assert children() <= before, name
    finally:
        ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)


def test_attacks_are_live() -> None:
    """Without walls the harmless ones among them do get through: what holds them is the sandbox."""
    free = choose.start("unsafe", LIMITS)
    for name in ("read the list of users", "list the root of the host", "netlink", "shell"):
        execution = free.run(filled(ATTACKS[name], {"FILE": "/etc/passwd"}), ["attack()"])
        assert execution.outcome == "pass" and execution.values[0], name


# Reward hacks

SQUARE = Problem(
    "square",
    "",
    {
        "entry": "square",
        "before": "",
        "header": "",
        "after": "",
        "reference": "def square(n):\n    return n * n",
        "calls": ["square(3)", "square(12)"],
        "conditions": ["_0 == 9", "_1 == 144"],
    },
)


@pytest.mark.parametrize("name", HACKS)
@pytest.mark.parametrize("which", [*TIERS, "unsafe"])
def test_reward_hack_is_not_graded_as_right(which: Tier, name: str) -> None:
    chosen = need(which)
    ((outcome, _),) = programs.grade([(SQUARE.truth, HACKS[name])], chosen)
    assert outcome not in ("pass", "infra_error")


def test_reward_hacks_are_live(tmp_path: Path) -> None:
    """A grader by exit code, as common as it is, takes at least a quarter of them for right."""
    fooled = []
    for name, text in HACKS.items():
        file = tmp_path / "program.py"
        file.write_text(text + "\nassert square(3) == 9\nassert square(12) == 144\n")
        done = subprocess.run([sys.executable, "-S", file], capture_output=True, timeout=60, check=False)
        fooled += [name] if done.returncode == 0 else []
    assert len(fooled) >= len(HACKS) / 4, fooled


@pytest.mark.parametrize("name", COSTLY)
def test_values_cost_the_harness_little(tier: Sandbox, name: str) -> None:
    """Processor time of this process alone, of which a million characters of values take a tenth of a second.
    A comparison that reads them here takes four seconds and more."""
    tier = need(tier.tier)
    truth = SQUARE.truth | {"conditions": ["_0 == 9", "set(_1) == {144}"]}
    began = time.process_time()
    ((outcome, failed),) = programs.grade([(truth, COSTLY[name])], tier)
    assert outcome not in ("pass", "infra_error")
    assert outcome == "syntax" or (" of 2" in failed and len(failed) < 300)
    assert time.process_time() - began < 1


def test_elements_with_equal_hashes_are_refused_before_they_are_compared() -> None:
    """Nested or not, written by a program or made by a condition; two of each hash are no matter."""
    numbers = [f'["i","{k * (2**61 - 1):x}"]' for k in range(2900)]
    for depth in (1, 24):
        nested = ['["t",[' * depth + number + "]]" * depth for number in numbers]
        with pytest.raises(ValueError, match="too much work"):
            sandbox_wire.values([f'["z",[{",".join(nested)}]]'])
        (decoded,) = sandbox_wire.values([f'["l",[{",".join(nested)}]]'])
        with pytest.raises(ValueError, match="too much work"):
            few(decoded)
    pairs = {(-1 - i % 2, i // 2) for i in range(2900)}  # -1 and -2 have the same hash
    assert sandbox_wire.values([encoded(pairs)]) == (pairs,) and set(few(pairs)) == pairs


def test_brief_values_cost_next_to_nothing() -> None:
    """The worst that fits: as many numbers with equal hashes as four thousand characters hold."""
    texts = [encoded(frozenset(k * (2**61 - 1) for k in range(count))) for count in range(100, 200)]
    longest = max((text for text in texts if len(text) <= BRIEF_LENGTH), key=len)
    began = time.process_time()
    ask = judging.ValueConditions((longest,), ["_0 == {1}", "set(_0) == {1}"], ["f()"])
    ((outcome, failed),) = judging.judge([ask])
    assert outcome == "wrong" and failed.startswith("test 1 of 2: f() == {1}, got frozenset({")
    assert len(failed) < 200
    assert time.process_time() - began < 0.5


def test_long_values_are_judged_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same verdicts as short ones; where that process cannot be started, nothing is judged."""
    right, long = list(range(9)), list(range(3000))
    for values in (right, long):
        ask = [
            judging.ValueConditions((encoded(values),), [f"sorted(_0) == {want}"], ["f()"])
            for want in (values, [1])
        ]
        (passed, (outcome, failed)) = judging.judge(ask)
        assert passed == ("pass", "") and outcome == "wrong"
        assert failed.startswith("test 1 of 1: sorted(f()) == [1], got [0, 1, 2, 3, ") and len(failed) < 300
        ((outcome, source),) = judging.judge([judging.ValueConditions((encoded(values),), None, ["f()"])])
        assert (outcome, eval(source)) == ("pass", [values])
    unreadable = "one of 1 tests: values that cannot be read"
    deep = judging.ValueConditions(('["l",[' * 2000,), ["_0"], ["f()"])
    assert judging.judge([deep]) == [("error", unreadable)]
    judging._pool.close()
    monkeypatch.setattr(judging, "_pool", Pool("grpobench.tasks.grading.algebra:absent"))
    ask = [judging.ValueConditions((encoded(long),), ["_0"], ["f()"])]
    assert judging.judge(ask) == [("infra_error", "")]


# Values

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters(exclude_categories=()), max_size=8)
    | st.binary(max_size=8)
    | st.frozensets(st.integers(), max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(max_size=3), inner, max_size=3)
        | st.sets(st.integers(), max_size=3)
    ),
    max_leaves=12,
)


def encoded(value: object) -> str:
    return inside.Encoder(sandbox_wire.LARGEST, sandbox_wire.DEEPEST).text(value)


def wire(value: object) -> bytes:
    return f"ready\nvalue {encoded(value)}\nend\n".encode("ascii")


@given(VALUES)
def test_values_cross_unchanged(value: object) -> None:
    execution = transcript.read(wire(value), 1)
    assert execution is not None and execution.outcome == "pass"
    assert unordered(execution.values) == unordered((value,))


def unordered(value: Any) -> str:
    """The repr of a value, with the members of sets in order: theirs depends on how a set came about."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}{sorted(value)}"
    if isinstance(value, dict):
        return repr([(unordered(key), unordered(member)) for key, member in value.items()])
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}{[unordered(member) for member in value]}"
    return repr(value)


def test_values_of_every_kind_come_out_of_cpython() -> None:
    chosen = need("bubblewrap")
    texts = [
        "-0.0",
        "float('nan')",
        "float('-inf')",
        "10**400",
        "'\\ud800é'",
        "(1,)",
        "{1: {2}}",
        "1j",
        "b'x'",
    ]
    values = chosen.run("", texts).values
    assert math.copysign(1, values[0]) == -1 and math.isnan(values[1])
    assert values[2:] == (-math.inf, 10**400, "\ud800é", (1,), {1: {2}}, 1j, b"x")
    counted = chosen.run("from collections import *", ["Counter('aab')", "OrderedDict(a=1)"])
    assert counted.values == ({"a": 2, "b": 1}, {"a": 1})
    assert chosen.run("class A: pass", ["A()"]).outcome == "error"


@given(st.binary(max_size=200) | st.text("[]\"'lit,0123456789 \nvalueready", max_size=80).map(str.encode))
def test_no_bytes_break_the_reader(answer: bytes) -> None:
    for execution in (transcript.read(answer, 1), transcript.read(b"ready\nvalue " + answer + b"\nend\n", 1)):
        assert execution is None or execution.outcome in ("pass", "error", "oom", "syntax", "output_limit")


@pytest.mark.parametrize(
    "answer",
    {
        "a value too many": 'value ["i","1"]\nvalue ["i","1"]\nend\n',
        "a value too few": "end\n",
        "behind the end": 'value ["i","1"]\nend\nend\n',
        "two ends": 'value ["i","1"]\nend\nvalue ["i","1"]\nend\n',
        "a plain number": "value 1\nend\n",
        "not JSON": "value x\nend\n",
        "NaN": "value NaN\nend\n",
        "unknown tag": 'value ["q","1"]\nend\n',
        "a list as number": 'value ["i",["1"]]\nend\n',
        "a set with the same twice": 'value ["s",[["i","1"],["f","0x1.0p+0"]]]\nend\n',
        "a key twice": 'value ["d",[["61",null],["61",true]]]\nend\n',
        "unhashable key": 'value ["d",[[["l",[]],null]]]\nend\n',
        "not hexadecimal": 'value "zz"\nend\n',
        "not UTF-8": 'value "ff"\nend\n',
        "too large a float": 'value ["f","0x1p+99999"]\nend\n',
        "deep": "value " + '["l",[' * 10**4 + "]]" * 10**4 + "\nend\n",
        "forty levels": "value " + '["l",[' * 40 + "]]" * 40 + "\nend\n",
        "many equal hashes": 'value ["s",['
        + ",".join(f'["i","{k * (2**61 - 1):x}"]' for k in range(20000))
        + "]]\nend\n",
        "an unknown failure": "failed pass\n",
        "a failure and more": "failed oom\nend\n",
    }.items(),
    ids=lambda item: item[0],
)
def test_malformed_answer_fails(answer: tuple[str, str]) -> None:
    execution = transcript.read(b"ready\n" + answer[1].encode(), 1)
    if execution is not None and execution.outcome == "pass":
        assert not execution.brief
        ((outcome, _),) = judging.judge([judging.ValueConditions(execution.wire, [], ["f()"])])
        assert outcome == "error"
    else:
        assert execution is None or execution.outcome == "error"


# Outcomes

OUTCOMES = {
    "pass": "def attack():\n    return 1",
    "error": "def attack():\n    return 1 // 0",
    "syntax": "def attack(:\n    return 1",
    "oom": "def attack():\n    return [0] * 10**9",
    "output_limit": "def attack():\n    return 'x' * 2 * 10**6",
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_outcome_has_its_name(tier: Sandbox, outcome: str) -> None:
    assert tier.run(OUTCOMES[outcome], ["attack()"]).outcome == outcome


def test_too_long_a_program_is_not_run(tier: Sandbox) -> None:
    assert tier.run("#" * 10**6, ["1"]).outcome == "output_limit"


def test_program_that_draws_numbers_draws_the_same_ones() -> None:
    chosen = need("bubblewrap")
    program = "import random\ndef draw():\n    return [random.random(), list({'a', 'b', 'c', 'd'})]"
    first, second = (chosen.run(program, ["draw()"]).values for _ in range(2))
    assert first == second and first


def test_waiting_for_a_processor_is_not_held_against_a_program() -> None:
    """Of five busy processes on one processor each waits about four fifths of the time."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not say how long a process waits")
    core = min(os.sched_getaffinity(0))
    busy = [sys.executable, "-S", "-c", f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"]
    began = time.monotonic()
    several = [subprocess.Popen(busy) for _ in range(5)]
    try:
        time.sleep(1.5)
        ran, waited = zip(*(usage(process.pid) for process in several), strict=True)
        elapsed = time.monotonic() - began
    finally:
        for process in several:
            process.kill()
            process.wait()
    assert max(waited) > elapsed / 3
    assert all(r + w <= elapsed + 0.1 for r, w in zip(ran, waited, strict=True))
    assert usage(2**22 + 1) == (0, 0)


def running(tier: Sandbox) -> set[int]:
    name = {"bubblewrap": "bwrap", "monty": "monty"}[tier.tier]
    return {pid for pid in children() if name in command(pid)}


def test_killed_sandbox_is_started_again(tier: Sandbox) -> None:
    """The same values come all the same. (Monty keeps its worker; of bubblewrap each program has its own.)"""
    count = 6 * 10**6 if tier.tier == "bubblewrap" else 2 * 10**6
    program = f"def slow():\n    s = 0\n    for i in range({count}):\n        s += i\n    return s"
    before = running(tier) if tier.tier == "bubblewrap" else set()
    executions: list[Execution] = []
    thread = threading.Thread(target=lambda: executions.append(tier.run(program, ["slow()"])))
    thread.start()
    deadline = time.monotonic() + 5
    while not (started := running(tier) - before) and time.monotonic() < deadline:
        time.sleep(0.002)
    time.sleep(0.05)
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    thread.join()
    assert executions[0].outcome == "pass" and executions[0].values == (sum(range(count)),)


def test_program_that_dies_of_a_limit_on_its_processor_time_has_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sandbox's own limit is one, when nobody looked. One that a program gives itself, which looks as if
    the machine had killed it, earns it no more than the limit and one attempt."""
    chosen, attempts = need("bubblewrap", Limits(seconds=1.2, megabytes=256)), []
    once = type(chosen).once

    def counted(self: Sandbox, job: Job) -> tuple[Execution, bool]:
        attempts.append(once(self, job))
        return attempts[-1]

    monkeypatch.setattr(type(chosen), "once", counted)
    program = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nwhile True:\n    pass"
    assert chosen.run(program, []).outcome in ("error", "timeout")
    assert len(attempts) <= 2
    attempts.clear()
    monkeypatch.setattr(sandbox_process.Conversation, "is_late", lambda self: False)
    assert chosen.run("while True:\n    pass", []).outcome == "timeout"
    assert len(attempts) == 1


def test_many_hanging_programs_share_the_workers() -> None:
    """Two that sleep take the time of one where there are two workers; the others do not wait for them."""
    chosen = need("bubblewrap", BRIEF)
    sleeps = "import time\ntime.sleep(100)"
    began = time.monotonic()
    executions = chosen.run_all([Job(sleeps if i % 4 == 0 else "x = 1", ("x",)) for i in range(8)])
    assert [e.outcome for e in executions] == ["timeout" if i % 4 == 0 else "pass" for i in range(8)]
    limit = PATIENCE * BRIEF.seconds
    assert time.monotonic() - began < 2 * limit / min(2, cores()) + 5


# The choice


def test_tiers_are_chosen_by_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    working = {"bubblewrap": "", "monty": "", "unsafe": ""}
    monkeypatch.setattr(choose, "trouble", lambda tier: working[tier])
    monkeypatch.delenv(choose.UNSAFE_VARIABLE, raising=False)
    assert choose.choose() == ("bubblewrap", "")
    working["bubblewrap"] = "not installed"
    assert choose.choose() == ("monty", "")
    assert choose.choose("bubblewrap")[0] is None
    assert "apt-get install bubblewrap" in choose.choose("bubblewrap")[1]
    assert choose.choose("unsafe")[0] is None
    choose.allow_unsafe()
    assert choose.choose() == choose.choose("unsafe") == ("unsafe", "")
    working["bubblewrap"] = ""
    assert choose.choose() == ("bubblewrap", "")  # allowed is not preferred
    working |= {"bubblewrap": "no", "monty": "no"}
    monkeypatch.setenv(choose.UNSAFE_VARIABLE, "1")  # of a process that is neither this nor its parent
    with pytest.raises(DataError, match="apt-get install bubblewrap"):
        choose.sandbox()


def test_monty_is_killed_at_the_limit_inside_of_one_long_operation() -> None:
    """The interpreter looks at its clock between operations, of which the square of a number of millions of
    digits is one. Killed later, at the limit and a second, this took 2.5 s."""
    need("monty")
    limits = Limits(seconds=0.5, megabytes=256)
    chosen = MontySandbox(limits, workers=1)
    try:
        assert chosen.run("one = 1", ["one"]).values == (1,)  # its worker is there
        began = time.monotonic()
        execution = chosen.run("x = 10**1000\nwhile True:\n    x = x * x", ["x"])
        elapsed = time.monotonic() - began
        assert chosen.run("one = 1", ["one"]).values == (1,)  # and replaced
    finally:
        chosen.close()
    assert execution.outcome == "timeout" and "killed" in execution.detail
    assert elapsed < PATIENCE * limits.seconds + 0.8  # a busy machine kills late, but not by a second


def test_monty_that_does_not_start_leaves_nothing_to_close() -> None:
    """It says what is wrong once, and nothing more when the process ends."""
    need("monty")
    source = """
import pydantic_monty
from grpobench.tasks.sandbox import choose
def broken(*arguments, **settings):
    raise OSError("no process could be started")
pydantic_monty.Monty = broken
print(choose.trouble("monty"))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.stdout == "does not start (OSError: no process could be started)\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_tier_that_leaks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain subprocess under the name of bubblewrap runs programs, and is found out."""
    need("bubblewrap")
    choose.trouble.cache_clear()
    choose.start.cache_clear()
    monkeypatch.setattr(sandbox_process, "BubblewrapSandbox", sandbox_process.UnsafeSandbox)
    try:
        assert "lets programs escape" in choose.trouble("bubblewrap")
        assert "read a file of the host" in choose.trouble("bubblewrap")
    finally:
        choose.trouble.cache_clear()
        choose.start.cache_clear()


HARNESS = """
import sys, threading
from grpobench.tasks.sandbox.monty import MontySandbox
from grpobench.tasks.sandbox.protocol import Job, Limits
box = MontySandbox(Limits(seconds=20), 1)
print("ready", flush=True)
box.once(Job("while True: pass", ()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_program_outlives_a_harness_that_is_killed() -> None:
    """Monty's went on for as long as its limit, here for a minute."""
    need("monty")
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert harness.stdout is not None and harness.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 60
    while (
        len(processes := in_session(harness.pid)) < 3 and time.monotonic() < deadline
    ):  # itself, guard, Monty
        time.sleep(0.05)
    assert len(processes) == 3
    time.sleep(0.2)
    harness.kill()
    harness.wait()
    harness.stdout.close()
    deadline = time.monotonic() + 10  # guards look twice a second; the machine may be busy
    while in_session(harness.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = in_session(harness.pid)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def in_session(number: int) -> set[int]:
    """The processes of a session that still run."""
    pids = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = entry.read_text()
        except OSError:
            continue
        fields = stat[stat.rindex(")") + 2 :].split()
        if int(fields[3]) == number and fields[0] != "Z":
            pids.add(int(entry.parent.name))
    return pids
