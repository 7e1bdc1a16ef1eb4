"""An imported run as a run folder, and the matrix around it."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from grpobench.analysis.logs import sums
from grpobench.runs.importing.log import Log
from grpobench.runs.importing.places import Place
from grpobench.runs.importing.translate import Translated, flat
from grpobench.runs.tools import files, toml
from grpobench.runs.tools.json_lines import line, read_json
from grpobench.runs.tools.strict import ConfigError

OWN = (
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
"""Last parts of settings that say which run it is rather than how it was set."""
MODEL = (
    "actor_rollout_ref.model.path",
    "actor.model_name_or_path",
    "pretrain",
    "model_name_or_path",
    "_name_or_path",
)
"""Settings that name the model, of verl, OpenRLHF and transformers."""


def write(folder: Path, matrix: str, where: Place, log: Log, found: Translated, library: str) -> None:
    """Write a run folder, which appears whole or not at all."""
    last = max(found.rows)
    theirs = {name: value for name, value in flat(log.settings).items() if name.rpartition(".")[2] not in OWN}
    config: dict[str, Any] = {
        "matrix": matrix,
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
    with files.becoming(folder / where.folder) as place:
        (place / "run.toml").write_text(toml.write(config), encoding="utf-8")
        (place / "origin.json").write_bytes(json.dumps(origin(log, found, library), indent=1).encode())
        status = {"state": log.state, "why": log.why, "step": last, "attempt": 1}
        (place / "status.json").write_bytes(json.dumps(status).encode())
        rows = ({"step": step, **row} for step, row in found.rows.items())
        (place / "metrics.jsonl").write_bytes(b"".join(map(line, rows)))
        if log.answers:
            (place / "eval.jsonl").write_bytes(b"".join(map(line, log.answers)))
        for step, groups in log.rollouts.items():
            (place / "rollouts").mkdir(exist_ok=True)
            packed = zstandard.ZstdCompressor().compress(b"".join(map(line, groups)))
            (place / "rollouts" / f"step-{step}.jsonl.zst").write_bytes(packed)
        (place / sums.KEPT).write_bytes(files.sums_of(place, [place / "run.toml", *place.rglob("*.jsonl*")]))


def origin(log: Log, found: Translated, library: str) -> dict[str, Any]:
    """origin.json: what the run was made from, what of theirs each metric is, and what was left out."""
    return {
        "imported": {
            "by": f"grpobench {importlib.metadata.version('grpobench')}",
            "format": log.format,
            "names": library,
            "writer": log.writer,
            "files": [
                {"path": str(path), "bytes": path.stat().st_size, "sha256": files.sha256(path)}
                for path in log.files
            ],
            "rows": len(found.rows),
            "answers": len(log.answers),
            "metrics": found.names,
            "other": found.kept,
            "faults": [str(fault) for fault in log.faults],
            "notes": [*log.notes, *found.notes],
        },
    }


def described(folder: Path) -> dict[str, Any]:
    """matrix.json of a folder that was imported into before; empty for a new one. Raises ConfigError for a
    folder that holds something else."""
    if not folder.exists():
        return {}
    known = read_json(folder / "matrix.json")
    if isinstance(known, dict) and known.get("imported"):
        return known
    if folder.is_dir() and not any(folder.iterdir()):
        return {}
    what = "holds runs of a recipe" if known else "holds other things than imported runs"
    raise ConfigError([f"{folder}: {what}; name another folder"])


def write_matrix(
    folder: Path, name: str, before: Mapping[str, Any], places: Sequence[Place], faults: Sequence[str]
) -> None:
    """matrix.json, with the runs that were imported before. `faults` are of sources that gave no run."""

    def merged(key: str, new: Sequence[Any]) -> list[Any]:
        return list(dict.fromkeys([*before.get(key, ()), *new]))

    table = {
        "name": name,
        "summary": "runs imported from logs of other libraries",
        "runs": merged("runs", [place.folder for place in places]),
        "seeds": sorted(merged("seeds", [place.seed for place in places])),
        "arms": merged("arms", [place.arm for place in places]),
        "tasks": merged("tasks", [place.task for place in places]),
        "recipe": "",
        "imported": True,
        "faults": merged("faults", faults),
    }
    files.write_atomic(folder / "matrix.json", json.dumps(sums.seal(table), indent=1).encode())
