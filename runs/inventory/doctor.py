"""`grpobench doctor`: what this machine can run."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from grpobench.analysis.tools.text import visible
from grpobench.runs.runfolder import provenance
from grpobench.runs.settings import config as runs_config
from grpobench.runs.settings import registries
from grpobench.runs.tools import installed
from grpobench.runs.tools.machine import list_gpus, measure_slowdown
from grpobench.tasks.data import sources
from grpobench.tasks.task import Task, family
from grpobench.tasks.workers.pool import cores

Health = Literal["ok", "absent", "broken", "not tried"]
LEAST_FREE_GB = 2.0
WAYS = ". Any of these helps"
"""Begins the ways to missing data, which the table leaves to `grpobench data list`."""
ENGINE_SECONDS = 300
DEEP = "grpobench doctor --deep"
"""The command that tries what this one leaves out."""


@dataclass(frozen=True)
class MachineCheck:
    """The result of one check. If `needed` checks fail, the suite cannot run."""

    subject: str
    health: Health
    detail: str
    needed: bool = False


def examine(out: Path) -> list[MachineCheck]:
    """All results. Failed checks do not raise."""
    probes: list[Callable[[], MachineCheck | list[MachineCheck]]] = [python, threads, workers]
    if not installed.version_of("torch"):
        probes.append(without_torch)
    else:
        probes += [torch_device, precision, memory, training, vllm]
    probes += [packages, models, sandboxes, data_sets, task_readiness, lambda: disk(out)]
    findings: list[MachineCheck] = []
    for probe in probes:
        try:
            result = probe()
        except Exception as error:  # A broken installation may raise anything.
            name = getattr(probe, "__name__", "probe")
            result = MachineCheck(name, "broken", f"{type(error).__name__}: {error}", needed=True)
        findings += result if isinstance(result, list) else [result]
    return findings


PACKAGES = ("transformers", "safetensors", "trl", "gguf", "lm_eval")


def python() -> MachineCheck:
    return MachineCheck(
        "python", "ok" if sys.version_info >= (3, 11) else "broken", platform.python_version(), True
    )


def threads() -> MachineCheck:
    return MachineCheck("processor", "ok", f"{cores()} of {os.cpu_count()} cores usable, {provenance.cpu()}")


def workers() -> MachineCheck:
    """The workers that an experiment would use on this machine."""
    worker_devices = list_gpus()
    detail = (
        f"{len(worker_devices)}, each on a GPU of its own ({', '.join(worker_devices)})"
        if worker_devices
        else f"{cores()}, one per core"
    )
    return MachineCheck("workers", "ok", detail)


def without_torch() -> MachineCheck:
    """The plain install, which reads and draws what was run elsewhere."""
    return MachineCheck("torch", "absent", f"{installed.remedy('torch')}; without it, nothing is trained")


def torch_device() -> list[MachineCheck]:
    """Import torch and compute something on every device that it sees."""
    import torch

    total = float(torch.ones(8, 8).matmul(torch.ones(8, 8)).sum())
    works: Health = "ok" if total == 512 else "broken"
    findings = [MachineCheck("torch", works, f"{torch.__version__}, {torch.get_num_threads()} threads", True)]
    if not torch.cuda.is_available():
        return [*findings, MachineCheck("gpu", "absent", "none seen by torch; runs use the processor")]
    for index in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        total = float(torch.ones(8, 8, device=f"cuda:{index}").sum())
        works = "ok" if total == 64 else "broken"
        findings.append(MachineCheck("gpu", works, f"{torch.cuda.get_device_name(index)}, {memory:.0f} GiB"))
    return findings


def precision() -> list[MachineCheck]:
    """How fast the processor multiplies in the other precisions of `model.dtype`, if runs use it."""
    if list_gpus():
        return []
    times = {name: measure_slowdown(name) for name in ("bfloat16", "float16")}
    detail = ", ".join(
        f"{name} takes {factor:.1f} times as long as float32" for name, factor in times.items()
    )
    return [MachineCheck("precision", "ok", f"a product of matrices in {detail}")]


def memory() -> MachineCheck:
    return MachineCheck("memory", "not tried", f"{DEEP} RECIPE plans what its runs take")


def training() -> MachineCheck:
    """Whether every package is here that training needs, without importing them. Steps are not tried."""
    if lacks := installed.lacks("train"):
        detail = f"training needs {', '.join(lacks)}; pip install '.[train]' in a checkout"
        return MachineCheck("training", "broken", detail, True)
    return MachineCheck("training", "not tried", f"{DEEP} takes steps, stops a run and resumes it")


def packages() -> list[MachineCheck]:
    return [package(name) for name in PACKAGES]


def package(name: str) -> MachineCheck:
    """Whether a package is installed, without importing it."""
    if importlib.util.find_spec(name) is None:
        return MachineCheck(name, "absent", installed.remedy(name))
    version = installed.version_of(name, name.replace("_", "-"))
    return MachineCheck(name, "ok", version or "installed, version unknown")


def vllm() -> MachineCheck:
    """Have an engine generate a token with the built-in policy, in a process of its own."""
    if lack := runs_config.SamplerConfig(kind="vllm").missing():
        return MachineCheck("vllm", "absent", lack)
    program = "from grpobench.runs.sample.engines.vllm import trial; print(trial())"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            check=False,
            capture_output=True,
            text=True,
            timeout=ENGINE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return MachineCheck("vllm", "broken", f"no token within {ENGINE_SECONDS} s")
    if done.returncode:
        return MachineCheck(
            "vllm", "broken", ([*done.stderr.split("\n"), ""])[-2] or f"exit {done.returncode}"
        )
    return MachineCheck("vllm", "ok", done.stdout.strip().rpartition("\n")[2])


def models() -> list[MachineCheck]:
    """Whether the weights of each model are on this machine."""
    from grpobench.runs.inventory.listing import model_rows

    return [
        MachineCheck(
            f"model {row['name']}",
            "ok" if row["present"] else "absent",
            f"{row['summary']} ({row['source']})",
        )
        for row in model_rows()
        if row["source"] not in ("local folder", "hub")
    ]


def sandboxes() -> list[MachineCheck]:
    """Run a program, and one that tries to escape, in each tier of the sandbox."""
    from grpobench.tasks.sandbox import choose
    from grpobench.tasks.sandbox.protocol import Tier

    findings = []
    tiers: tuple[Tier, ...] = ("bubblewrap", "monty")
    for tier in tiers:
        absent, reason = choose.absent(tier), choose.trouble(tier)
        health: Health = "absent" if absent else "broken" if reason else "ok"
        detail = f"{reason}; {choose.FIX}" if reason and tier == "bubblewrap" else reason
        findings.append(MachineCheck(f"sandbox {tier}", health, detail or "runs programs and keeps them in"))
    chosen, reason = choose.choose()
    detail = reason or f"programs run in {chosen}"
    trains = bool(installed.version_of("torch"))
    return [MachineCheck("sandbox", "ok" if chosen else "broken", detail, needed=trains), *findings]


def data_sets() -> list[MachineCheck]:
    """Which data sets are on this machine; `grpobench data list` also reads them."""
    from grpobench.runs.inventory import data

    folder, findings = sources.data_folder(), []
    for name, data_set in data.data_sets().items():
        locations = [sources.locate(table, folder) for table in data_set.tables]
        here = sum(location is not None for location in locations)
        here += sum(sources.find(package) is not None for package in data_set.packages)
        of = len(data_set.tables) + len(data_set.packages)
        kinds = sorted({location[0] for location in locations if location is not None})
        detail = f"{here} of {of} parts here" + (f", from a {' and a '.join(kinds)}" if kinds else "")
        detail += f" ({data_set.license})" if data_set.license else ""
        fetch = any(sources.find(package) is None for package in data_set.needs)
        ways = f"grpobench data fetch {name}, or grpobench data list" if fetch else "grpobench data list"
        lack = "" if here == of else f"; {ways} for the ways"
        health: Health = "ok" if here == of else "absent"
        findings.append(MachineCheck(f"data {name}", health, detail + lack))
    return findings


def task_readiness() -> list[MachineCheck]:
    """Whether each task is available; for a family, whether its first task is."""
    findings = []
    first: dict[str, type[Task]] = {}
    for name, cls in registries.tasks().items():
        first.setdefault(family(name), cls)
    for name, cls in first.items():
        try:
            lack = cls().missing()
        except Exception as error:  # The task's own code may meet a damaged file.
            findings.append(MachineCheck(f"task {name}", "broken", f"{type(error).__name__}: {error}"))
            continue
        findings.append(MachineCheck(f"task {name}", "absent" if lack else "ok", lack or cls.source))
    return findings


def disk(out: Path) -> MachineCheck:
    """Free space for results."""
    folder = out.resolve()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    writable = os.access(folder, os.W_OK)
    if not writable:
        return MachineCheck("disk", "broken", f"{folder} is not writable; choose another --out", True)
    return MachineCheck(
        "disk", "ok" if free >= LEAST_FREE_GB else "broken", f"{free:.1f} GB free in {folder}", True
    )


def as_rows(findings: list[MachineCheck]) -> list[dict[str, object]]:
    """The results as JSON objects."""
    return [asdict(finding) for finding in findings]


def healthy(findings: list[MachineCheck]) -> bool:
    """Whether everything that is needed works, as far as it was tried."""
    return all(finding.health in ("ok", "not tried") for finding in findings if finding.needed)


def runnable(findings: list[MachineCheck]) -> list[tuple[str, str]]:
    """Commands for this machine, each with what it does; then those that make more possible."""
    health = {finding.subject: finding.health for finding in findings}
    lines = [("grpobench report DIR", "reports, figures and imports of runs made here or elsewhere")]
    if health.get("torch") != "ok" or health.get("training", "broken") == "broken":
        return [*lines, ("pip install '.[train]'", "in a checkout, to train: torch and what belongs to it")]
    gpu = any(finding.subject == "gpu" and finding.health == "ok" for finding in findings)
    lines += [
        ("grpobench run quickstart", "compare four algorithms on built-in policies and tasks"),
        ("grpobench compare mine:Half --with grpo --task arithmetic", "compare a class of yours with GRPO"),
    ]
    if health.get("model smollm2-135m") == "ok" and health.get("data bbq") == "ok":
        lines.append(("grpobench run smollm2-bbq", "train SmolLM2-135M on BBQ" + ", for hours" * (not gpu)))
    else:
        lines.append(("grpobench data fetch all", "to train SmolLM2-135M on real data (230 MB)"))
    if gpu:
        lines.append(("make gpu", "prove and time on this GPU all that needs one"))
        if health.get("vllm") != "ok":
            lines.append(("pip install '.[vllm]'", "in a checkout, to sample with vLLM"))
    if health.get("sandbox bubblewrap") != "ok":
        lines.append(("apt-get install bubblewrap", "to grade programs in full Python, not in Monty's part"))
    return lines


def show(findings: list[MachineCheck]) -> None:
    """Print the results as a table, and then what this machine can run."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colors = {"ok": "green", "absent": "yellow", "broken": "red", "not tried": "cyan"}
    table = Table(box=None, pad_edge=False)
    for heading in ("what", "state", "detail"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        state = finding.health + (" (needed)" if finding.needed and finding.health != "ok" else "")
        detail = visible(finding.detail).partition(WAYS)[0]
        table.add_row(finding.subject, Text(state, style=colors[finding.health]), Text(detail))
    commands = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 2))
    for command, purpose in runnable(findings):
        commands.add_row(Text(command, style="bold"), purpose)
    console = Console()
    console.print(table)
    console.print("\nWhat you can run here:")
    console.print(commands)
