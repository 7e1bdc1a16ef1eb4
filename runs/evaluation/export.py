"""`grpobench export`: write a run's policy as a Hugging Face folder, which others can read without this
suite."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpobench.analysis.tools.text import why_no_folder
from grpobench.runs.evaluation.question import Subject, subjects
from grpobench.runs.evaluation.records import newest, put, weights_damage
from grpobench.runs.models import loading, model_files
from grpobench.runs.runfolder import fingerprints
from grpobench.runs.runfolder.logs import status
from grpobench.runs.tools import files
from grpobench.runs.tools.faults import point
from grpobench.runs.tools.files import read_json
from grpobench.tasks.data.tables import DataError

DType = Literal["float32", "bfloat16"]
READ_WITH_WEIGHTS = ("model configuration", "tokenizer")
"""Inputs that the weights need and that a run does not keep itself, by the names of their fingerprints."""
CARD = """---
{front}
---

# {title}
{warning}
A policy trained with grpobench, written by `grpobench export`.

| | |
|---|---|
{rows}

## Loading

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```

`vllm serve FOLDER` and `lm_eval --model hf --model_args pretrained=FOLDER` read the folder as well.
The run's prompts were {prompts}.
"""


@dataclass(frozen=True)
class Exported:
    """What was exported."""

    folder: Path
    step: int
    caution: str
    """Why these are not the weights of a finished run; empty if they are."""


def export(run: Path, folder: Path, dtype: DType = "float32") -> Exported:
    """Write the final weights of a run, or those of its newest checkpoint, to a new folder: config.json,
    model.safetensors, generation_config.json, the tokenizer with its chat template, and a model card. In
    float32 the weights are exactly the run's. Raises DataError with the remedy, ModelError if the run's model
    has changed."""
    import torch

    if folder.exists():
        raise DataError(f"{folder} already exists; give another folder or remove it")
    subject = of_run(run)
    if fault := weights_damage(run):
        raise DataError(fault)
    found = newest(run)
    if found is None:
        raise DataError(f"{run} has neither final weights nor a checkpoint; run it first")
    step, path = found
    demand_same_base(run, subject.model.name)
    loaded = loading.load(subject.model.name)
    put(loaded, path)
    caution = caution_of(run, step, path)
    loaded.model.to(getattr(torch, dtype))
    if (
        loaded.model.generation_config is not None
    ):  # Generation ends at the token that ended the run's completions.
        loaded.model.generation_config.eos_token_id = list(loaded.end)
    files.writable(folder.absolute().parent, "DIR")
    with files.becoming(folder) as aside:
        loaded.model.save_pretrained(aside)
        point("export")
        loaded.tokenizer.save_pretrained(aside)
        templated = bool(getattr(loaded.tokenizer, "chat_template", None))
        text = card(subject, loaded.provenance, run, step, caution, dtype, templated)
        (aside / "README.md").write_text(text, encoding="utf-8")
    return Exported(folder, step, caution)


def of_run(run: Path) -> Subject:
    """A run by its folder. Raises DataError for anything else."""
    if not run.is_dir():
        raise DataError(
            f"{run}: {why_no_folder(run)}; give a run's folder, results/EXPERIMENT/ARM-TASK-sSEED"
        )
    if not (run / "run.toml").exists():
        inside = sorted(path.parent.name for path in run.glob("*/run.toml"))
        what = f"; it contains runs, such as {run / inside[0]}" if inside else ""
        raise DataError(f"{run}: not a run folder: run.toml is missing{what}")
    (subject,) = subjects(str(run), None)
    return subject


def demand_same_base(run: Path, name: str) -> None:
    """Raise DataError if configuration or tokenizer of the run's model have changed."""
    kept = (read_json(run / "provenance.json") or {}).get("fingerprints", {})
    now = model_files.fingerprint(name)
    recorded = {part: kept[part] for part in READ_WITH_WEIGHTS if part in kept}
    if changes := fingerprints.differences(recorded, now):
        raise DataError(
            f"the model {name} has changed since the run began ({'; '.join(changes)}), and its weights would "
            "be combined with the wrong files; put the model's files back"
        )


def caution_of(run: Path, step: int, path: Path) -> str:
    """A caution for weights that are not a finished run's."""
    told = status(run)
    state, why = told.get("state", "not known to have ended"), told.get("why", "")
    if state == "finished" and path.parent.name == "final":
        return ""
    which = "final weights" if path.parent.name == "final" else f"the checkpoint of step {step}"
    return f"{which} of a run that is {state}{f' ({why})' if why else ''}"


def card(
    subject: Subject,
    provenance: Mapping[str, str],
    run: Path,
    step: int,
    caution: str,
    dtype: DType,
    templated: bool,
) -> str:
    """The model card: what the weights are, where they come from, how to load them."""
    algorithm, task = subject.run["algorithm"]["name"], subject.run["task"]["name"]
    base = {"base_model": provenance["name"]} if provenance["from"] == "hub" else {}
    front = {
        **base,
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["grpobench", algorithm],
    }
    facts = facts_of(subject, provenance, run, step) | {"precision of the weights": dtype}
    return CARD.format(
        front="\n".join(f"{key}: {json.dumps(value)}" for key, value in front.items()),
        title=f"{algorithm} on {task}, seed {subject.run['seed']}",
        warning=f"\n> **Not a finished run.** These are {caution}.\n" if caution else "",
        rows="\n".join(f"| {name} | {cell(value)} |" for name, value in facts.items()),
        prompts="written through the tokenizer's chat template"
        if templated
        else "plain text, without a chat template",
    )


def facts_of(subject: Subject, provenance: Mapping[str, str], run: Path, step: int) -> dict[str, Any]:
    """What a reader needs to repeat the run."""
    table = subject.run
    algorithm, task = table["algorithm"], table["task"]
    attempts = (read_json(run / "provenance.json") or {}).get("attempts") or [{}]
    made = attempts[-1]
    commit = made.get("commit", "not in a checkout") + (" with changes" if made.get("dirty") else "")
    return {
        "run": f"{table['experiment']}/{run.resolve().name}",
        "algorithm": algorithm["name"],
        "settings": describe(algorithm.get("settings", {})),
        "task": f"{task['name']} ({describe(task.get('settings', {})) or 'no settings'})",
        "seed": table["seed"],
        "steps": f"{step} of {table['train']['steps']}",
        "base model": f"{provenance['name']}, sha256 {provenance.get('sha256') or 'not known'}",
        "commit of grpobench": commit,
        "versions": describe(made.get("versions", {})),
    }


def cell(value: Any) -> str:
    """A value inside a table of Markdown."""
    return str(value).replace("|", "\\|")


def describe(table: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in table.items())
