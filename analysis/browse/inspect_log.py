"""Stored texts in the log format of inspect_ai, whose viewer then opens them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from grpobench.analysis.browse.store import Filters, Store

VERSION = 2
"""Of the format."""
STOPS = {"end": "stop", "limit": "max_tokens"}
KEYS = ("arm", "task", "seed", "step", "kind")
SUBJECT = ("outcome", "change", "reward", "length", "stop")


def write_logs(store: Store, filters: Filters, folder: Path) -> list[Path]:
    """Write a log for each run, step and kind of the texts that pass the filters, and return the files. A
    problem is a sample of its log, and a further completion of it a further epoch. The texts are as in
    `Store`: hidden characters are escapes."""
    # The files' time: the same texts give the same logs.
    modified = max(file.path.stat().st_mtime for file in store.files)
    created = datetime.datetime.fromtimestamp(modified, datetime.UTC).isoformat(timespec="seconds")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    rows = store.complete_rows(filters, f"{', '.join(KEYS)}, id")
    for key, of_log in groupby(rows, lambda row: tuple(row[name] for name in KEYS)):
        source = dict(zip(KEYS, key, strict=True))
        name = "-".join(str(part).replace("/", "-").replace(" ", "-") for part in key)
        # inspect_ai lists files that begin with a time.
        path = folder / f"{created.replace(':', '-')}_{name}.json"
        log = _log(store.name, source, created, name, [_sample(source, row) for row in of_log])
        path.write_text(json.dumps(log), encoding="utf-8")
        paths.append(path)
    return paths


def _log(
    experiment: str, source: Mapping[str, Any], created: str, name: str, samples: list[dict[str, Any]]
) -> dict[str, Any]:
    identifiers = list(dict.fromkeys(sample["id"] for sample in samples))
    values: dict[str, list[float]] = {}
    for sample in samples:
        for score, entry in sample["scores"].items():
            values.setdefault(score, []).append(entry["value"])
    means = {score: sum(numbers) / len(numbers) for score, numbers in values.items()}
    return {
        "version": VERSION,
        "status": "success",
        "eval": {
            "eval_id": name, "run_id": name, "task_id": name, "created": created,
            "task": source["task"], "model": f"{experiment}/{source['arm']}-s{source['seed']}",
            "dataset": {"name": source["kind"], "samples": len(identifiers), "sample_ids": identifiers},
            "config": {"epochs": max(sample["epoch"] for sample in samples)},
            "metadata": {"experiment": experiment, **source},
        },
        "results": {
            "total_samples": len(samples), "completed_samples": len(samples),
            "scores": [
                {"name": score, "scorer": score, "metrics": {"mean": {"name": "mean", "value": mean}}}
                for score, mean in means.items()
            ],
        },
        "stats": {"started_at": created, "completed_at": created},
        "samples": samples,
    }  # fmt: skip


def _sample(source: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    explanation = row["outcome"] + (f"; failed {row['failed_test']}" if row["failed_test"] else "")
    turns = row["turns"] or [["policy", row["text"]]]
    messages = [
        {"role": "user" if by == "environment" else "assistant", "content": text} for by, text in turns
    ]
    return {
        "id": row["problem"] or "(no name)",
        "epoch": row["sample"] + 1,
        "input": row["prompt"],
        "target": "",  # no run stores it
        "messages": [{"role": "user", "content": row["prompt"]}, *messages],
        "output": {
            "model": source["arm"],
            "choices": [
                {
                    "message": {"role": "assistant", "content": row["text"]},
                    "stop_reason": STOPS.get(row["stop"], "unknown"),
                }
            ],
        },
        "scores": {
            score: {"value": value, "answer": row["answer"], "explanation": explanation}
            for score, value in (row["scores"] or {}).items()
        },
        "metadata": {name: row[name] for name in SUBJECT},
    }
