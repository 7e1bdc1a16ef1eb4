"""The folder of an imported run and of its experiment; arm, task and seed from options, names or the log."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from grpobench.analysis.runfolder import checksums, formats
from grpobench.runs.handover.importing.log import Log
from grpobench.runs.handover.importing.translate import Translated, flat
from grpobench.runs.tools import files, toml
from grpobench.runs.tools.files import line, read_json
from grpobench.runs.tools.strict import ConfigError
from grpobench.tasks.data import bounded
from grpobench.tasks.data.tables import DataError

SEED = re.compile(r"(?:^|[-_.=])(?:seed[-_=]?|s)(\d+)$", re.IGNORECASE)
TASK = "imported"
"""The task of a run if nothing says which it is."""


@dataclass(frozen=True)
class RunKey:
    """Arm, task and seed of a run in the experiment."""

    arm: str
    task: str
    seed: int
    originals: tuple[str, str] = field(default=("", ""), compare=False)
    """The names of arm and task in the log, which `plain` may have changed."""

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.arm}-{self.task}-s{self.seed}"


@dataclass(frozen=True)
class KeyOverrides:
    """Options of the command line for all runs; empty and None if not given."""

    arm: str = ""
    task: str = ""
    seed: int | None = None


def run_key(
    label: str, log: Log, evaluated: str, overrides: KeyOverrides, taken: Mapping[RunKey, object]
) -> RunKey:
    """Arm, task and seed of a run. The arm comes from the command line, else from a tracker's group, else
    from the name of the log or of its folder without the seed. An unknown seed becomes the next free one.
    Raises DataError for a name without any character that names here can have."""
    name = log.name or label
    arm, seed = split_label(name)
    if log.group:
        arm = log.group
    if seed is None:
        seed = split_label(label)[1]
    originals = overrides.arm or arm or label, overrides.task or log.task or evaluated.rpartition("/")[2]
    for option, original in zip(("--arm", "--task"), originals, strict=True):
        if original and not plain(original):
            raise DataError(f"the name {original!r} has no letter or digit of ASCII; write {option} NAME")
    arm, task = plain(originals[0]) or "run", plain(originals[1]) or TASK
    originals = originals[0] or arm, originals[1] or task
    if overrides.seed is not None:
        seed = overrides.seed
    elif seed is None:
        seed = log.seed
    if seed is None:
        used = {other.seed for other in taken if (other.arm, other.task) == (arm, task)}
        seed = next(free for free in range(len(used) + 1) if free not in used)
        log.notes.append(f"neither the log nor a name gives the seed; it is set to {seed}")
    return RunKey(arm, task, seed, originals)


Originals = dict[str, dict[str, str]]
"""By "arm" and "task", the original of every name in an experiment."""


def find_confusion(key: RunKey, originals: Originals) -> str:
    """Why the name of an arm or task would stand for two originals; empty if it does not. Adds the run's
    names to `originals`."""
    for kind, name, original in zip(("arm", "task"), (key.arm, key.task), key.originals, strict=True):
        if (earlier := originals.setdefault(kind, {}).setdefault(name, original)) != original:
            clash = f"{kind} {original!r} would be called {name}, as {earlier!r} is"
            return f"{clash}; write --{kind} with another name"
    return ""


def split_label(label: str) -> tuple[str, int | None]:
    """(arm, seed) of a name or path that ends in a seed: ``grpo/seed1`` and ``grpo-s1`` give ("grpo", 1).
    Without a seed, the whole label and None."""
    match = SEED.search(label.replace("/", "-"))
    if match is None:
        return label, None
    return label[: match.start()], int(match[1])


def plain(name: str) -> str:
    """A name with only the characters that an arm's may have."""
    return re.sub(r"[^A-Za-z0-9_+@.]+", "-", name).strip("-.")


IDENTITY_SETTINGS = (
    *("seed", "data_seed", "name", "run_name", "experiment_name", "project_name", "group", "output_dir"),
    *(
        "logging_dir",
        "save_path",
        "ckpt_path",
        "default_local_dir",
        "rollout_data_dir",
        "validation_data_dir",
    ),
)
"""Last parts of settings that identify a run instead of setting it."""
MODEL = (
    "actor_rollout_ref.model.path",
    "actor.model_name_or_path",
    "pretrain",
    "model_name_or_path",
    "_name_or_path",
)
"""Settings that name the model, in verl, OpenRLHF and transformers."""


def write(
    folder: Path, experiment: str, where: RunKey, log: Log, translated: Translated, library: str
) -> None:
    """Write a run folder, which appears whole or not at all."""
    last = max(translated.rows)
    theirs = {
        name: value
        for name, value in flat(log.settings).items()
        if name.rpartition(".")[2] not in IDENTITY_SETTINGS
    }
    config: dict[str, Any] = {
        "experiment": experiment,
        "arm": where.arm,
        "seed": where.seed,
        "task": {"name": where.task},
        "train": {"steps": log.planned or last},
        "imported": {"format": log.format, "names": library or "none"},
    }
    if model := next((str(theirs[name]) for name in MODEL if name in theirs), ""):
        config["model"] = {"name": model}
    if theirs:
        config["theirs"] = theirs
    with files.becoming(folder / where.folder) as run_folder:
        (run_folder / "run.toml").write_text(toml.write(config), encoding="utf-8")
        (run_folder / "provenance.json").write_bytes(
            json.dumps(provenance(log, translated, library), indent=1).encode()
        )
        status = {"state": log.state, "why": log.why, "step": last, "attempt": 1}
        (run_folder / "status.json").write_bytes(json.dumps(status).encode())
        rows = ({"step": step, **row} for step, row in translated.rows.items())
        (run_folder / "metrics.jsonl").write_bytes(b"".join(map(line, rows)))
        if log.answers:
            (run_folder / "eval.jsonl").write_bytes(b"".join(map(line, log.answers)))
        for step, groups in log.rollouts.items():
            (run_folder / "rollouts").mkdir(exist_ok=True)
            packed = zstandard.ZstdCompressor().compress(b"".join(map(line, groups)))
            (run_folder / "rollouts" / f"step-{step}.jsonl.zst").write_bytes(packed)
        (run_folder / checksums.SUMS_FILE).write_bytes(
            files.sums_of(run_folder, [run_folder / "run.toml", *run_folder.rglob("*.jsonl*")])
        )


def provenance(log: Log, translated: Translated, library: str) -> dict[str, Any]:
    """provenance.json: what the run was made from, the original name of each metric, and what was left
    out."""
    return {
        formats.KEY: formats.FORMAT,
        "imported": {
            "by": f"grpobench {importlib.metadata.version('grpobench')}",
            "format": log.format,
            "names": library,
            "writer": log.writer,
            "files": [
                {"path": str(path), "bytes": path.stat().st_size, "sha256": bounded.sha256(path)}
                for path in log.files
            ],
            "rows": len(translated.rows),
            "answers": len(log.answers),
            "metrics": translated.names,
            "other": translated.unmapped,
            "faults": [str(fault) for fault in log.faults],
            "notes": [*log.notes, *translated.notes],
        },
    }


def described(folder: Path) -> dict[str, Any]:
    """experiment.json of a folder that was imported into before; empty for a new one. Raises ConfigError for
    a folder with other content."""
    if not folder.exists():
        return {}
    experiment_record = read_json(folder / "experiment.json")
    if isinstance(experiment_record, dict) and experiment_record.get("imported"):
        return experiment_record
    if folder.is_dir() and not any(folder.iterdir()):
        return {}
    obstacle = "has runs of a recipe" if experiment_record else "has other content than imported runs"
    raise ConfigError([f"{folder}: {obstacle}; name another folder"])


def write_experiment(
    folder: Path,
    name: str,
    before: Mapping[str, Any],
    run_keys: Sequence[RunKey],
    originals: Originals,
    faults: Sequence[str],
    design: Mapping[str, Any],
) -> None:
    """experiment.json, with the runs that were imported before. `faults` belong to sources that gave no
    run; `design` decides how the report compares the runs (`beside.shared_design`)."""

    def merged(key: str, new: Sequence[Any]) -> list[Any]:
        return list(dict.fromkeys([*before.get(key, ()), *new]))

    table = {
        formats.KEY: formats.FORMAT,
        "name": name,
        "summary": "runs imported from logs of other libraries",
        "runs": merged("runs", [run_key.folder for run_key in run_keys]),
        "seeds": sorted(merged("seeds", [run_key.seed for run_key in run_keys])),
        "arms": merged("arms", [run_key.arm for run_key in run_keys]),
        "tasks": merged("tasks", [run_key.task for run_key in run_keys]),
        "originals": originals,
        "recipe": "",
        "imported": True,
        "faults": merged("faults", faults),
        **{key: before[key] for key in ("control", "margin", "borrowed_rates") if key in before},
        **{key: value for key, value in design.items() if value},
    }
    files.write_atomic(folder / "experiment.json", json.dumps(checksums.seal(table), indent=1).encode())
