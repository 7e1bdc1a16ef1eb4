"""Hashes of what a run is made from: its problems, its model, its preference file, its reward model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from grpobench.runs.models import hashes, model_files
from grpobench.runs.settings import others, rules
from grpobench.runs.settings.config import REFERENCES, RunConfig
from grpobench.runs.tools import strict
from grpobench.tasks.data import bounded
from grpobench.tasks.data.messages import as_json
from grpobench.tasks.task import Problem, Split, Task

PROBLEMS = "problems.json.zst"
"""{split: {problem: digest}} in a run folder, of the problems that a run may train on and of those it
evaluates."""
HASH_DIGITS = 12
"""Characters of a hash in messages."""
DIGEST = 10
"""Hexadecimal characters of each half of a problem's digest: the prompt's, and that of prompt and truth."""
EVALUATED: tuple[Split, ...] = ("validation", "test")
TRAINED = ("train", "experts")
"""What a run learns from, in `PROBLEMS`: its problems, and the prompts of expert completions."""
Digests = Mapping[str, Mapping[str, str]]


@dataclass
class Today:
    """Fingerprints of files and code as they are now. Problems are generated and hashed once per task and
    settings.

    provenance.json records them (`fingerprints`). They are computed without torch, so that the launcher can
    see before it starts anything that a result was made from other inputs. problems.json.zst holds a digest
    per problem; with them a report detects a problem that was both trained on and tested."""

    problems_by_task: dict[str, Sequence[Problem]] = field(default_factory=dict)
    hashed: dict[tuple[str, int], str] = field(default_factory=dict)

    def of(self, config: RunConfig) -> dict[str, str]:
        """Name -> hash of everything that can be hashed without loading a model. Raises DataError if the
        problems cannot be read."""
        hash_by_name = model_files.fingerprint(config.model.name)
        if config.reads_teacher:
            for name, value in model_files.fingerprint(config.model.teacher).items():
                hash_by_name[f"teacher's {name}"] = value
        if config.sampler.kind == "preferences":
            hash_by_name["preference file"] = bounded.sha256(Path(config.sampler.path).expanduser())
        if config.algorithm.expert_answers and config.train.experts != REFERENCES:
            hash_by_name["expert file"] = bounded.sha256(Path(config.train.experts).expanduser())
        for section, judge in rules.judges(config).items():
            if judge.recorded:
                hash_by_name[f"{section}.recorded"] = bounded.sha256(Path(judge.recorded).expanduser())
        reward = Path(config.reward.model).expanduser()
        if config.reward.model and reward.is_dir():
            hash_by_name["reward model"] = hashes.weights_hash(reward)
        for split, used in self.problems(config).items():
            key = self.key(config, split), len(used)
            if key not in self.hashed:
                self.hashed[key] = problems_hash(used)
            hash_by_name[f"{split} problems"] = self.hashed[key]
        for task in others.tasks_beside(config):
            for split in EVALUATED:
                if split in task.splits:
                    hash_by_name[f"{further(task, split)} problems"] = problems_hash(task.problems(split))
        return hash_by_name

    def problems(self, config: RunConfig) -> dict[Split, Sequence[Problem]]:
        """The problems that the run may train on and those it evaluates. If prompts that are too long are
        dropped, this is the whole split, because only the tokenizer can tell which remain."""
        count_by_split: dict[Split, int | None] = {
            "train": 0 if config.sampler.kind == "preferences" else None,
            "validation": config.evaluate.problems,
            "test": config.evaluate.test_problems,
        }
        problems_by_split = {}
        for split, count in count_by_split.items():
            if split in config.task.splits and count != 0:
                chosen = None if config.model.long_prompts == "drop" else count
                problems_by_split[split] = self.split(config, split)[:chosen]
        return problems_by_split

    def split(self, config: RunConfig, split: Split) -> Sequence[Problem]:
        key = self.key(config, split)
        if key not in self.problems_by_task:
            self.problems_by_task[key] = config.task.problems(split)
        return self.problems_by_task[key]

    def key(self, config: RunConfig, split: Split) -> str:
        return json.dumps([config.task.name, split, strict.plain(config.task)], default=str)

    def digests(self, config: RunConfig) -> dict[str, dict[str, str]]:
        """The content of `PROBLEMS`, without the pairs of a preference file."""
        return {
            split: {problem.id: digest(problem) for problem in used}
            for split, used in self.problems(config).items()
        }


def further(task: Task, split: Split) -> str:
    """How the problems of a task of `evaluate.also` are called."""
    return f"also {task.name} {split}"


def problems_hash(problems: Iterable[Problem]) -> str:
    """A hash of problems in order: id, prompt, truth and traits."""
    hasher = hashlib.sha256()
    for problem in problems:
        fields = [problem.id, as_json(problem.prompt), problem.truth, dict(problem.traits)]
        hasher.update(json.dumps(fields, sort_keys=True, default=str).encode())
    return hasher.hexdigest()


def digest(problem: Problem) -> str:
    """The prompt's digest, followed by the digest of prompt and truth."""
    return prompt_digest(problem) + half([as_json(problem.prompt), problem.truth])


def prompt_digest(problem: Problem) -> str:
    """The digest of a problem whose truth is unknown."""
    return half([as_json(problem.prompt)])


def half(fields: Sequence[Any]) -> str:
    text = json.dumps(fields, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]


def overlap(digests: Digests) -> dict[str, list[str]]:
    """Evaluated problems, by split, that are training problems too: prompt and truth are the same, or only
    the prompt if the truth is unknown."""
    trained = {digest for name in TRAINED for digest in digests.get(name, {}).values()}
    shared_names = {
        split: [name for name, digest in problems.items() if digest in trained or digest[:DIGEST] in trained]
        for split, problems in digests.items()
        if split not in TRAINED
    }
    return {split: names for split, names in shared_names.items() if names}


def pack(digests: Digests) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(json.dumps(digests).encode())


def read(run: Path) -> Digests:
    """The digests in a run folder; empty if it has none."""
    path = run / PROBLEMS
    if not path.exists():
        return {}
    return bounded.read_object(path, "restore or delete the file")


def differences(recorded: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """One line per fingerprint that has changed. A fingerprint that only one side knows is not a change."""
    return [
        f"{name}: {short(recorded[name])} -> {short(value)}"
        for name, value in now.items()
        if recorded.get(name, value) != value
    ]


def short(value: str) -> str:
    """A hash, shortened for people; any other value whole."""
    return value[:HASH_DIGITS] if len(value) == 64 else value


def explain(run: Path, provenance: Mapping[str, Any], config: RunConfig, today: Today) -> list[str]:
    """Problems and files that differ from those that a run was made from."""
    lines = []
    before, now = read(run), today.digests(config)
    for split in [split for split in before if split in now]:
        names = [*dict.fromkeys([*before[split], *now[split]])]
        other = [name for name in names if before[split].get(name) != now[split].get(name)]
        if other:
            lines.append(f"{len(other)} of {len(before[split])} {split} problems differ, such as {other[0]}")
    attempts = provenance.get("attempts") or [{}]
    sums = {source["table"]: source["sha256"] for source in attempts[-1].get("data", ())}
    data_sources = {source for split in config.task.splits for source in config.task.sources(split)}
    for source in sorted(data_sources, key=lambda source: source.table):
        if sums.get(source.table, source.sha256) != source.sha256:
            lines.append(
                f"{source.location} is another file: {short(sums[source.table])} -> {short(source.sha256)}"
            )
    return lines
