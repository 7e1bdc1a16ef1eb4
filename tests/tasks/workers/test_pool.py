"""Locks: one argument can neither hold up, nor hurt, nor answer for another; nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpobench.tasks.grading import algebra, final_answer
from grpobench.tasks.workers import keeper, pool
from grpobench.tasks.workers.pool import Pool, Reply

TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def found_by_the_keeper() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS))
        yield


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    two_workers = Pool("helpers.pool_functions:odd_jobs", workers=2)
    yield two_workers
    two_workers.close()


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_replies_come_in_the_order_of_the_arguments(two: Pool) -> None:
    values = [["echo", value] for value in (1, "\ud800\x00", None, [1.5, {"a": "ß"}])] * 20
    assert two.map(values) == [Reply("done", value) for _, value in values]
    assert two.map([]) == []


@pytest.mark.parametrize(
    ("argument", "reply"),
    [
        (["divide", 0], Reply("raised", "ZeroDivisionError: division by zero")),
        (["leave", 0], Reply("raised", "SystemExit: 0")),
        (["set", 0], Reply("raised", "TypeError: Object of type set is not JSON serializable")),
        (["exit", 0], Reply("crash")),
        (["exit", 1], Reply("crash")),
        (["abort", 0], Reply("crash")),
        (["eat", 0], Reply("crash")),
        (["kill me", 0], Reply("infra_error")),
        (["print", '[0, "done", 7]\n'], Reply("done", '[0, "done", 7]\n')),
        (["stubborn", 0], Reply("timeout")),
        (["c code", 0], Reply("timeout")),
    ],
)
def test_what_one_argument_does_is_its_own_affair(two: Pool, argument: list[object], reply: Reply) -> None:
    arguments = [["echo", 1], argument, ["echo", 2], ["echo", 3]]
    assert two.map(arguments, cpu_seconds=0.2) == [
        Reply("done", 1),
        reply,
        Reply("done", 2),
        Reply("done", 3),
    ]


def test_wall_limit_holds_for_what_does_not_compute(two: Pool) -> None:
    assert two.map([["sleep", 60], ["echo", 1]], wall_seconds=0.3) == [Reply("timeout"), Reply("done", 1)]
    began = time.monotonic()
    two.map([["sleep", 60]], cpu_seconds=0.1)
    assert time.monotonic() - began < 3  # three times the CPU limit, and some for a busy host


def test_hung_arguments_are_waited_for_side_by_side(two: Pool) -> None:
    two.map([["echo", 0]])
    arguments = [["sleep", 60] if i % 10 == 5 else ["echo", i] for i in range(100)]
    began = time.monotonic()
    replies = two.map(arguments, wall_seconds=0.5)
    taken = time.monotonic() - began
    assert [reply.ending for reply in replies].count("timeout") == 10
    assert [reply.value for reply in replies if reply.ending == "done"] == [
        i for i in range(100) if i % 10 - 5
    ]
    assert 2.4 < taken < 10 * 0.5 / 2 + 5


def test_worker_killed_from_outside_is_replaced_and_asked_again(two: Pool, tmp_path: Path) -> None:
    two.map([["echo", 0]])
    mark = tmp_path / "begun"
    replies: list[Reply] = []
    asking = threading.Thread(target=lambda: replies.extend(two.map([["slow once", str(mark)]])))
    asking.start()
    while not mark.exists():
        assert asking.is_alive()
        time.sleep(0.01)
    for status in Path("/proc").glob("[0-9]*/stat"):
        fields = status.read_text().rpartition(")")[2].split()
        if fields[1] == str(two.keeper):  # its parent
            os.kill(int(status.parent.name), signal.SIGKILL)
    asking.join(timeout=20)
    assert [reply.ending for reply in replies] == ["done"]


def test_killed_keeper_is_replaced_with_all_its_workers(two: Pool) -> None:
    (worker,) = two.map([["pid", 0]])
    keeper = two.keeper
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    assert two.map([["echo", 7]]) == [Reply("done", 7)]
    assert two.keeper != keeper
    assert gone([keeper, worker.value])


def test_keeper_that_cannot_start_is_an_infrastructure_error(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "ModuleNotFoundError: No module named 'no_such_module'"
    assert Pool("no_such_module:function").map([["echo", 1]]) == [Reply("infra_error", missing)]
    monkeypatch.setattr(sys, "executable", "false")
    ended = "its workers ended while they started"
    assert Pool("helpers.pool_functions:odd_jobs").map([["echo", 1]]) == [Reply("infra_error", ended)]


def test_nothing_is_left_when_the_parent_closes_the_pool_or_is_killed(two: Pool) -> None:
    (worker,) = two.map([["pid", 0]])
    keeper = two.keeper
    assert keeper is not None
    two.close()
    assert gone([keeper, worker.value])

    program = (
        "from grpobench.tasks.workers.pool import Pool\n"
        "pool = Pool('helpers.pool_functions:odd_jobs', workers=2)\n"
        "print(*[r.value for r in pool.map([['pid', 0], ['parent', 0]])], flush=True)\n"
        "pool.map([['sleep', 60], ['stubborn', 0]], cpu_seconds=60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    time.sleep(0.3)
    parent.kill()
    parent.wait()
    assert len(pids) == 2 and gone(pids)


def test_forked_copy_of_the_parent_has_a_keeper_of_its_own() -> None:
    program = (
        "import os\n"
        "from grpobench.tasks.workers.pool import Pool\n"
        "pool = Pool('helpers.pool_functions:odd_jobs', workers=1)\n"
        "ask = lambda: pool.map([['parent', 0]])[0].value\n"
        "first = ask()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(0 if ask() not in (None, first) else 1)\n"
        "print(os.waitpid(pid, 0)[1], ask() == first)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["0", "True"]


def test_what_the_import_maps_is_no_memory_of_an_argument() -> None:
    """A limit of a gigabyte is one beside the libraries, whose CUDA builds map more than that."""
    with contextlib.closing(
        Pool("helpers.pool_functions:large_import", memory=2**30, workers=1)
    ) as one_worker:
        assert one_worker.map([300_000_000, 2**31]) == [Reply("done", 300_000_000), Reply("crash")]


def test_workers_see_neither_secrets_nor_files_to_write(
    two: Pool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    two.close()
    monkeypatch.setenv("SECRET_TOKEN", "42")
    environment, written = two.map([["environment", 0], ["write", str(tmp_path / "out")]])
    assert "SECRET_TOKEN" not in environment.value
    assert environment.value["OMP_NUM_THREADS"] == "1"
    assert written.ending == "raised"
    assert (tmp_path / "out").stat().st_size == 0


def test_worker_is_replaced_after_its_share_of_arguments() -> None:
    one_worker = Pool("helpers.pool_functions:odd_jobs", workers=1)
    pids = [reply.value for reply in one_worker.map([["pid", 0]] * (2 * keeper.RECYCLE))]
    one_worker.close()
    assert len(set(pids)) == 2
    assert len(set(pids[: keeper.RECYCLE])) == 1


def test_as_many_workers_as_cores_unless_threads_are_allotted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    for share, expected in (("1", 1), ("2", 2), ("64", 4), ("", 4), ("many", 4)):
        monkeypatch.setenv("OMP_NUM_THREADS", share)
        assert pool.worker_slots() == expected


def watch(slowdowns: list[float], done: threading.Event) -> None:
    """Note, again and again, how much longer a bit of work takes than on a host of its own."""
    while not done.wait(2):
        began, worked = time.monotonic(), time.thread_time()
        while time.thread_time() - worked < 0.05:
            pass
        slowdowns.append((time.monotonic() - began) / 0.05)


@pytest.mark.slow
def test_a_hundred_hung_verifications_among_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they cost is what the thousand take less what the nine hundred take: at most 100 limits over the
    workers and 5 seconds. On a busy host that holds for processor time; by the clock a hung one may then take
    its wall limit, three times as long."""
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    limit, workers = 3.0, 2
    healthy, hung = [], []
    for i in range(100):
        right = ["7", f"{i}", f"\\frac{{{2 * i}}}{{2}}", f"{i}.0", f"{i + 1}", f"{i} apples", f"x = {i}"]
        healthy += [(str(i), text) for text in right]
        healthy += [("4", f"\\sqrt{{{16 + i}}}"), ("x^2-1", f"(x-1)(x+{i})")]
        hung.append((str(i), f"9^{{9^{{9^{{9^{{{i + 9}}}}}}}}}"))
    mixed = [pair for i in range(100) for pair in (*healthy[9 * i : 9 * i + 9], hung[i])]
    assert len(mixed) == 1000

    def timed(pairs: list[tuple[str, str]]) -> tuple[list[str], float, float]:
        """Outcomes, seconds by the clock without the start, and the processor seconds of all processes."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        verifiers = Pool("grpobench.tasks.grading.algebra:comparer", cpu_seconds=limit, workers=workers)
        monkeypatch.setattr(algebra, "POOL", verifiers)
        assert algebra.ask("4", "\\sqrt{16}") == "equal"
        began = time.monotonic()
        outcomes = final_answer.compare_all(pairs)
        taken = time.monotonic() - began
        verifiers.close()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return outcomes, taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    without, taken_without, work_without = timed(healthy)
    slowdowns, done = [1.0], threading.Event()
    threading.Thread(target=watch, args=(slowdowns, done)).start()
    outcomes, taken, work = timed(mixed)
    done.set()
    busy = sum(slowdowns) / len(slowdowns)
    cost, cost_in_work = taken - taken_without, work - work_without
    print(f"{cost:.1f} s by the clock, {cost_in_work:.1f} s of work, which took {busy:.2f} times as long")
    assert [outcome for pair, outcome in zip(mixed, outcomes, strict=True) if pair in hung] == [
        "timeout"
    ] * 100
    assert [outcome for pair, outcome in zip(mixed, outcomes, strict=True) if pair not in hung] == without
    assert set(without) == {"equal", "different"}
    assert cost_in_work < 100 * limit + 5 * workers
    limit_each = limit if busy < 1.1 else pool.WALL_PER_CPU * limit
    assert cost < 100 * limit_each / workers + 5 * busy
