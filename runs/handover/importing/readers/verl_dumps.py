"""verl's dumps of completions: `STEP.jsonl` in a folder per kind, next to the log of the run."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpobench.runs.handover.importing.log import Log, as_step, head, numbers, parsed
from grpobench.tasks.data import bounded
from grpobench.tasks.data.flaws import find_half_pair

KEYS = ("input", "output", "score", "step")


def is_dump(file: Path) -> bool:
    """Whether a file of JSON lines holds completions instead of metrics."""
    if not file.stem.isdigit():
        return False
    line = head(file).partition(b"\n")[0]
    try:
        row = parsed(line)
    except ValueError:
        return False
    return isinstance(row, Mapping) and all(key in row for key in KEYS)


def take(folder: Path, log: Log) -> None:
    """Add the completions in the subfolders of a run's folder.

    `trainer.validation_data_dir` and `trainer.rollout_data_dir` set these folders, and both have the same
    rows (`_dump_generations` of verl/trainer/ppo/ray_trainer.py): input, output, gts, score, step, and what
    the reward function adds, such as acc. A folder with "val" in its name holds evaluations, any other holds
    rollouts."""
    for subfolder in sorted(path for path in folder.iterdir() if path.is_dir()):
        dumps = [path for path in subfolder.glob("*.jsonl") if is_dump(path)]
        for file in sorted(dumps, key=lambda path: int(path.stem)):
            log.files.append(file)
            rows = list(whole_rows(file, log))
            if "val" in subfolder.name.lower():
                log.answers += answers(rows)
            else:
                for row in rows:
                    group(log.rollouts.setdefault(int(row["step"]), []), row)


def whole_rows(file: Path, log: Log) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(bounded.utf8_lines(file), start=1):
        if not line.strip():
            continue
        try:
            row = parsed(line)
            if not isinstance(row, Mapping) or not all(key in row for key in KEYS):
                raise ValueError("no completion of verl's")
            if as_step(row["step"]) is None:
                raise ValueError("no whole `step`")
            # A NaN is a missing score and is read as such; half a surrogate pair cannot be hashed or written.
            if half := find_half_pair(f"{row['input']}{row['output']}"):
                raise ValueError(f"{half} is half a surrogate pair")
            yield row
        except ValueError as error:
            log.fault(file, number, f"{error}; the line is left out")


def answers(rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows as in eval.jsonl. A problem is its prompt. With one answer per problem the mode is greedy, as in
    the tables of metrics. `acc` says what is correct, or else a score of 0 or 1; other rows are left out."""
    answer_counts = Counter(row["input"] for row in rows)
    mode = "greedy" if max(answer_counts.values(), default=1) == 1 else "sampled"
    sample_counts: Counter[str] = Counter()
    answer_rows = []
    for row in rows:
        verdict = float(row["acc"]) if isinstance(row.get("acc"), bool) else row.get("acc")
        if verdict is None and row["score"] in (0, 1):
            verdict = row["score"]
        scores = numbers({"correct": verdict, "reward": row["score"]})
        if not 0 <= scores.get("correct", -1.0) <= 1:
            continue
        problem = hashlib.sha256(str(row["input"]).encode()).hexdigest()[:12]
        answer_rows.append(
            {
                "step": int(row["step"]),
                "split": "validation",
                "mode": mode,
                "problem": problem,
                "sample": sample_counts[problem],
                "scores": scores,
                "answer": row["pred"] if isinstance(row.get("pred"), str) else None,
                "outcome": "graded",
                "completion": row["output"],
            }
        )
        sample_counts[problem] += 1
    return answer_rows


def group(groups: list[dict[str, Any]], row: Mapping[str, Any]) -> None:
    """Add a completion to its prompt's group, as in rollouts files."""
    if not groups or groups[-1]["prompt"] != row["input"]:
        groups.append({"prompt": row["input"], "completions": []})
    components = numbers({name: value for name, value in row.items() if name not in (*KEYS, "gts")})
    groups[-1]["completions"].append(
        {"text": row["output"], "reward": row["score"], "components": components}
    )
