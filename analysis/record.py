"""The JSON format of kept results: kind, name, provenance, and a line for each row."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from grpobench.analysis.runfolder.experiment import Experiment, attempts, by_run
from grpobench.analysis.runfolder.files import LogError, read_json
from grpobench.analysis.runfolder.search import FILE as SEARCH
from grpobench.analysis.tools.text import shorten_paths
from grpobench.tasks.data import bounded

VERSION = 2
"""Version of the format. Files of version 1 have no kind, and are read as the kind that is asked for."""
COMMANDS: Mapping[str, str] = {
    "experiment": "grpobench keep",
    "finding": "grpobench keep",
    "calibration": "grpobench calibrate --keep",
    "readable": "grpobench tasks readable --keep",
    "theory": "grpobench theory --keep",
    "contribution": "grpobench publish",
}
"""By kind, the command that writes it."""
SHARED = ("torch", "transformers")
"""Packages whose versions are kept, as well as Python's."""
RELEASE = re.compile(r"\d+(\.\d+)+[\w.+]*$")
"""Fingerprints of this form are releases of packages, which are kept as well."""
Content: TypeAlias = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Provenance:
    """How the runs of a kept result were made."""

    command: str
    """The command that repeats the runs; paths are shortened to their last part."""
    commits: Mapping[str, int]
    """Commit -> number of runs; `(none)` without a checkout, and ` and changes` after a commit with
    uncommitted changes."""
    versions: Mapping[str, Sequence[str]]
    machine: Sequence[str]
    """Machines in general words."""
    seconds: float = 0.0
    """Total seconds of training and evaluation of all runs; 0 where they were not added up."""

    @classmethod
    def pop(cls, content: Content) -> Provenance:
        """Take the provenance out of the content of a file. Raises KeyError."""
        names = ("commits", "versions", "machine", "seconds")
        return cls(command=content.pop("command", ""), **{name: content.pop(name) for name in names})

    def plain(self) -> Content:
        """As JSON holds it."""
        return asdict(self) | {"seconds": round(self.seconds)}

    def joined(self, other: Provenance) -> Provenance:
        """That of the runs of both."""
        names = dict.fromkeys([*self.versions, *other.versions])
        return Provenance(
            command=self.command,
            commits=dict(Counter(self.commits) + Counter(other.commits)),
            versions={
                name: sorted({*self.versions.get(name, ()), *other.versions.get(name, ())}) for name in names
            },
            machine=sorted({*self.machine, *other.machine}),
            seconds=self.seconds + other.seconds,
        )

    @property
    def words(self) -> str:
        """`at commit X with torch 2.13.0; CPU x86_64`."""
        counted = len(self.commits) > 1 and all(self.commits.values())
        commits = [f"`{commit}`" + f" ({runs} runs)" * counted for commit, runs in self.commits.items()]
        versions = ", ".join(f"{name} {' and '.join(releases)}" for name, releases in self.versions.items())
        return f"at commit {' and '.join(commits)} with {versions}; {' and '.join(self.machine)}"

    def lines(self, made: str) -> list[str]:
        """A sentence on what was `made`, such as `8 runs`, folded."""
        time = f"; {duration(self.seconds)} of run time" * bool(self.seconds)
        text = f"Made by `{self.command}`: {made}, {self.words}{time}."
        return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


def content_of(kind: str, name: str, provenance: Provenance, content: Mapping[str, Any]) -> Content:
    """The content of the file of a kept result."""
    return {"version": VERSION, "kind": kind, "name": name, **provenance.plain(), **content}


def as_text(content: Mapping[str, Any]) -> str:
    """JSON with a line for each key and for each row of a list, so that a change of a run is one line."""
    lines = []
    for key, value in content.items():
        text = json.dumps(value, ensure_ascii=False)
        if isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
            rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in value)
            text = f"[\n{rows}\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(path: Path, kind: str, build: Callable[[Content], T]) -> T:
    """What `build` makes of the content of a file, without version and kind. Raises LogError for a file of
    another kind or version, and where `build` raises KeyError, TypeError, ValueError or AttributeError."""
    remedy = f"write it again with {COMMANDS[kind]}"
    words = "table" if kind in ("experiment", "readable") else kind
    try:
        content = bounded.read_object(path, remedy)
        if (version := content.pop("version")) not in (1, VERSION):
            raise ValueError("of another version")
        if version == VERSION and (file_kind := content.pop("kind")) != kind:
            raise ValueError(f"of the kind {file_kind!r} and not {kind!r}")
        return build(content)
    except bounded.FileError as error:
        raise LogError(f"{path}: no kept {words} ({error.reason})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogError(f"{path}: no kept {words} ({error}); {remedy}") from error


# The provenance of an experiment


def provenance_of(experiment: Experiment) -> Provenance:
    """Command and time of an experiment; commits, versions and machines of its runs' last attempts."""
    commits: Counter[str] = Counter()
    versions: dict[str, set[str]] = {}
    machines = set()
    for run in experiment.runs:
        attempt = [{}, *attempts(run)][-1]
        commit = str(attempt.get("commit", "(none)"))[:12]
        commits[commit + (" and changes" if attempt.get("dirty") else "")] += 1
        pinned = {
            name: str(value)
            for name, value in (run.provenance.get("fingerprints") or {}).items()
            if RELEASE.match(str(value))
        }
        packages = {
            name: str(version)
            for name, version in (attempt.get("versions") or {}).items()
            if name in ("python", *SHARED)
        }
        for name, version in {**packages, **pinned}.items():
            versions.setdefault(name, set()).add(version)
        machines.add(_machine(attempt))
    times = by_run(experiment.metrics[experiment.metrics["metric"].isin(["time/step", "time/evaluate"])])
    return Provenance(
        command=command_of(experiment),
        commits=dict(commits),
        versions={name: sorted(releases) for name, releases in versions.items()},
        machine=sorted(machines),
        seconds=sum(float(times(run)["value"].sum()) for run in experiment.runs),
    )


def search_of(experiment: Experiment) -> Mapping[str, Any]:
    """The record of the search that the experiment is a part of; empty of others."""
    path = experiment.folder.parent / SEARCH
    return read_json(path) if path.exists() else {}


def command_of(experiment: Experiment) -> str:
    """The command with its options; paths are shortened to their last part."""
    if search := search_of(experiment):
        return shorten_paths(str(search["command"]))
    described = bounded.read_object_if_any(experiment.folder / "experiment.json")
    if command := described.get("command"):
        return shorten_paths(str(command))
    sets = [part for text in described.get("sets", ()) for part in ("--set", shorten_paths(str(text)))]
    over = [part for text in described.get("over", ()) for part in ("--over", str(text))]
    if over:  # the experiment then has its own name
        return shlex.join(["grpobench", "map", experiment.name.removesuffix("-map"), *sets, *over])
    plan = experiment.plan.options if experiment.plan else ()
    return shlex.join(
        ["grpobench", "map" if experiment.sweep_values else "run", experiment.name, *sets, *plan]
    )


def _machine(attempt: Mapping[str, Any]) -> str:
    """Kind of device and threads; an accelerator by its name, a processor by its architecture and vector
    instructions."""
    device, platform = str(attempt.get("device", "")), str(attempt.get("platform", ""))
    architecture = next((name for name in ("x86_64", "aarch64", "arm64") if name in platform), "")
    vectors = str(attempt.get("vectors", ""))
    accelerator = device if re.search(r"NVIDIA|AMD Instinct", device) else ""
    threads = attempt.get("threads")
    run = f", {threads} thread{'s' * (threads != 1)} a run" if threads else ""
    return f"{accelerator or ' '.join(filter(None, ('CPU', architecture, vectors)))}{run}"


def duration(seconds: float) -> str:
    """Minutes, or hours where they are more than one and a half."""
    minutes = seconds / 60
    return f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{max(1, round(minutes))} min"
