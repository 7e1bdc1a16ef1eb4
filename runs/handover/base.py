"""The initial policy of a hand-over: a folder that any library reads, or a hub id."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpobench.runs.models.hashes import weights_hash
from grpobench.runs.models.loading import Loaded, load, load_outline
from grpobench.runs.models.model_files import folder_of
from grpobench.runs.models.model_packages import PACKAGED
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools import strict
from grpobench.runs.tools.strict import ConfigError
from grpobench.runs.train.prepare.warmstart import Tell, warm_start
from grpobench.tasks.data.messages import as_messages
from grpobench.tasks.task import Problem

MODELS = "models"
"""Folder of a hand-over with the policies that are built in or warm-started."""
SAMPLES = 64
"""Prompts of a part that are encoded to compare."""


@dataclass(frozen=True)
class HandoverBase:
    """The policy that a part begins with."""

    loaded: Loaded
    """Its tokenizer and configuration; no weights."""
    location: str
    """A path below the hand-over, beginning with `MODELS`, or else a folder or hub id that the library is
    given as it is."""

    @property
    def inside(self) -> bool:
        """Whether the hand-over holds the policy."""
        return self.location.startswith(f"{MODELS}/")


def base_of(config: RunConfig, taken: dict[str, str]) -> HandoverBase:
    """The policy of a run and its location. `taken` maps what makes a policy to its location, so that equal
    policies share one."""
    model = config.model
    loaded = load_outline(model.name, chat_template=model.template)
    kind, folder = folder_of(model.name) or ("package" if model.name in PACKAGED else "hub", None)
    # A tokenizer that was changed must be saved: the library would read the folder's own.
    changed = bool(loaded.suppressed_tokens or model.chat_template_settings)
    if not model.warm_start and not changed and kind in ("folder", "hub"):
        return HandoverBase(loaded, str(folder.resolve()) if folder else model.name)
    task = (config.task.name, strict.plain(config.task)) if model.warm_start else None
    key = json.dumps([strict.plain(model), task], sort_keys=True, default=str)
    if key not in taken:
        stem = (Path(model.name).name + (f"-{config.task.name}" if task else "")).replace(":", "-")
        taken[key] = free(f"{MODELS}/{stem}", taken.values())
    return HandoverBase(loaded, taken[key])


def free(preferred: str, taken: Iterable[str]) -> str:
    """A path that is not taken: the wanted one, or one with a number behind it."""
    used = set(taken)
    if preferred not in used:
        return preferred
    numbered = (f"{preferred}-{number}" for number in itertools.count(2))
    return next(path for path in numbered if path not in used)


def write(config: RunConfig, base: HandoverBase, folder: Path, tell: Tell) -> str:
    """Write the policy below `folder`, after its warm start, and return the hash of its weights."""
    policy_folder = folder / base.location
    loaded = load(config.model.name, chat_template=config.model.template)
    if config.model.warm_start:
        warm_start(loaded, config.task, config.model, tell)
    loaded.model.save_pretrained(policy_folder)
    loaded.tokenizer.save_pretrained(policy_folder)
    return weights_hash(policy_folder)


def plain_template(loaded: Loaded, problems: Sequence[Problem], plain: str) -> str:
    """The chat template with which a library that always has one reads the prompts that our loop reads: empty
    if it is the tokenizer's own, else `plain`, with the token before every text if there is one. Raises
    ConfigError if no such template encodes prompts as ours."""
    if loaded.has_chat_template:
        return ""
    chosen = problems[:: max(1, len(problems) // SAMPLES)]
    for template in (plain, "{{ bos_token }}" + plain):
        texts = [problem.text for problem in chosen]
        if all(rendered(loaded, text, template) == loaded.encode(text) for text in texts):
            return template
    why = "the model has no chat template, and no plain one encodes its prompts as its tokenizer does"
    raise ConfigError([f"{why}; take a model with one, or save one in its tokenizer_config.json"])


def rendered(loaded: Loaded, text: str, template: str) -> tuple[int, ...]:
    """Tokens of a text through this template, as the only message."""
    ids = loaded.tokenizer.apply_chat_template(
        as_messages(text), chat_template=template, add_generation_prompt=True, return_dict=False
    )
    return tuple(ids)
