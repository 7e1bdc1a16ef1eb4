"""Which files a model consists of, and hashes of them."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from grpobench.tasks.data import bounded

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
    digest = hashlib.sha256()
    # A set, because one file may match two patterns: tokenizer.model is `tokenizer*` and `*.model`.
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        # With the name: two shards that swap their names are another model.
        digest.update(path.name.encode() + bytes.fromhex(cached_sha256(path)))
    return digest.hexdigest()


def cached_sha256(path: Path) -> str:
    """The hash of a file. One whose size and times are as before is not read again in this process."""
    status = path.stat()
    # With the change time too: `cp -p` and rsync give a new file the modification time of an old one.
    return _sha256_once(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@functools.cache
def _sha256_once(path: Path, *stamp: int) -> str:
    return bounded.sha256(path)
