"""Runs that continue after their result, and results that another one replaces."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from grpobench.runs.runfolder import checkpoints
from grpobench.runs.runfolder.logs import result_faults, settled, status
from grpobench.runs.settings import stored
from grpobench.runs.settings.config import RunConfig
from grpobench.runs.tools import files
from grpobench.runs.tools.faults import point
from grpobench.tasks.data import bounded

STEPS = "train.steps: "
EARLIER = "earlier"
"""Folder of an experiment that holds the results that `--allow-change` replaced."""
IN_PLACE = (".jsonl", ".sums", ".txt")
"""Files that are appended to, which must be copied instead of linked."""


def growth(path: Path, config: RunConfig, changes: list[str]) -> str:
    """The change that raises `train.steps` of a run that can continue. Empty if there is none, if the run did
    not finish, or if it kept no state."""
    growth_change = next((change for change in changes if change.startswith(STEPS)), "")
    if not growth_change:
        return ""
    table = bounded.read_toml(path / "run.toml")
    before = table.get("train", {}).get("steps")
    if not isinstance(before, int) or before >= config.train.steps:
        return ""
    return growth_change if not settled(path) or final_state(path) else ""


def why_no_growth(path: Path, changes: list[str]) -> str:
    """A line that says why a finished run of which more steps are wanted cannot go on; empty otherwise."""
    change = next((change for change in changes if change.startswith(STEPS)), "")
    before, _, after = change.removeprefix(STEPS).partition(" -> ")
    more = before.isdecimal() and after.isdecimal() and int(before) < int(after)
    if not more or status(path).get("state") != "finished" or final_state(path):
        return ""
    return "\nits optimizer state was not kept (checkpoint.final = true keeps it) or was pruned"


def depends_on_steps(config: RunConfig) -> bool:
    """Whether the numbers of a step depend on the requested number of steps."""
    train = config.train
    functions = config.reward.functions(config.task)
    return bool(train.schedule != "constant" or train.backend != "grpobench" or config.stop_on or functions)


def differences(path: Path, config: RunConfig) -> tuple[list[str], str]:
    """(changes, growth) of a run's settings. A growth that nothing depends on is not a change."""
    text = bounded.read_text(path / "run.toml")
    changes = stored.differences(text, stored.dump(config), stored.defaults(config))
    growth_change = growth(path, config, changes)
    if growth_change and not depends_on_steps(config):
        changes.remove(growth_change)
    return changes, growth_change


def final_state(path: Path) -> Path | None:
    """The checkpoint of a finished run's last step, even if a kill left it under its temporary name."""
    recorded_status = status(path)
    if recorded_status.get("state") != "finished":
        return None
    for home in ("final", "checkpoints"):
        checkpoint = path / home / f"step-{recorded_status.get('step')}"
        if checkpoint.is_dir() and not checkpoints.damage(checkpoint):
            return checkpoint
    return None


def keep_state(path: Path, step: int) -> None:
    """Move the last step's checkpoint beside the final weights and drop the others."""
    last, target = checkpoints.checkpoint_path(path, step), path / "final" / f"step-{step}"
    if last.is_dir():
        files.remove(target)
        last.rename(target)
        files.sync_folder(target.parent)
    drop([checkpoints.checkpoint_path(path, saved) for saved in checkpoints.steps(path)])
    shutil.rmtree(path / "checkpoints", ignore_errors=True)


def remove_empty(path: Path) -> None:
    """Remove the folder of checkpoints if nothing is in it."""
    with contextlib.suppress(OSError):
        (path / "checkpoints").rmdir()


def drop(paths: Iterable[Path]) -> None:
    """Remove checkpoints of a run with a result. A kill in between leaves the rest to `grpobench prune`."""
    for path in paths:
        files.remove(path)
        point("drop")


def unneeded(path: Path) -> list[Path]:
    """Checkpoints of a run with a result that nothing reads: all of them, or, of a diverged run without final
    weights, all but the newest that is whole. Empty for a run that would resume from its checkpoints.

    Raises ValueError if run.toml or sums.json is damaged, or final weights are missing that should be there.
    """
    if not settled(path):
        return []
    table = bounded.read_toml(path / "run.toml")
    keeps_weights = bool(table.get("checkpoint", {}).get("weights", True))
    if faults := result_faults(path, keeps_weights):
        raise ValueError("; ".join(faults))
    saved = [checkpoints.checkpoint_path(path, step) for step in checkpoints.steps(path)]
    ended = (path / "final" / "policy.safetensors").exists() or not keeps_weights
    newest = (
        None
        if ended
        else next((checkpoint for checkpoint in reversed(saved) if not checkpoints.damage(checkpoint)), None)
    )
    if not ended and newest is None:
        return []
    leftovers = [stray for pattern in ("checkpoints/.*", "final/.*") for stray in path.glob(pattern)]
    states = sorted(path.glob("final/step-*")) if ended else []
    return [*states, *(checkpoint for checkpoint in saved if checkpoint != newest), *leftovers]


def reopen(path: Path) -> None:
    """Turn the final state into a checkpoint again, so that the run continues from it.

    With `checkpoint.final` a finished run keeps its last checkpoint (final/step-N). If only `train.steps` is
    raised, the run continues from there. With a constant learning rate its weights equal those of a run that
    was asked for as many steps at once."""
    state_folder = final_state(path)
    if state_folder is not None and state_folder.parent.name == "final":
        checkpoint = path / "checkpoints" / state_folder.name
        checkpoint.parent.mkdir(exist_ok=True)
        files.remove(checkpoint)
        state_folder.rename(checkpoint)
        files.sync_folder(checkpoint.parent)


def set_aside(path: Path) -> Path:
    """Keep a result that will be replaced, without its checkpoints, as `earlier`/RUN.K. The copy appears
    whole or not at all."""
    home = path.parent / EARLIER
    number = 1
    while (home / f"{path.name}.{number}").exists():
        number += 1
    with files.becoming(home / f"{path.name}.{number}") as aside:
        shutil.copytree(
            path,
            aside,
            copy_function=linked,
            dirs_exist_ok=True,
            ignore=lambda folder, names: (
                [name for name in names if name == "lock" or name.startswith("step-")]
                if Path(folder).name in (path.name, "checkpoints", "final")
                else []
            ),
        )
    for stray in path.glob("final/step-*"):
        files.remove(stray)
    shutil.rmtree(path / "checkpoints", ignore_errors=True)
    return home / f"{path.name}.{number}"


def linked(source: str, target: str) -> str:
    """Link a file that is only ever replaced as a whole; copy any other file."""
    with contextlib.suppress(OSError):
        if not source.endswith(IN_PLACE):
            os.link(source, target)
            return target
    return str(shutil.copy2(source, target))
