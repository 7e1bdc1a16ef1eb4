"""A check of a model's configuration against its weights, before memory of the stated size is taken."""

# A configuration is a few numbers that anybody can write. The model that they describe must not have many
# more weights than the files hold, which it could not be filled from. They are counted on the meta device,
# where a tensor takes no memory. Where only some are missing, loading says which.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpobench.runs.models.trust import trusted
from grpobench.tasks.data import bounded

MOST_LAYERS: Final = 1024
"""Layers, and experts of a layer, that a configuration may state whatever the weights hold."""
MOST_PARTS: Final = 65_536
"""Layers times experts, likewise."""
MOST_LABELS: Final = 1_000_000
"""Outputs of a classifier: each has a name in the configuration."""
LEAST_BUFFERS: Final = 2**30
"""Bytes of tensors that are no weights (masks, angles) that any model may make."""
MORE: Final = 2
"""Times the weights in the files that a model may have, before they are said not to be its own."""
PER_BYTE: Final = 8
"""Most weights in a byte: one bit each."""


class Absurd(ValueError):
    """A configuration that does not fit the weights, with the reason."""


@dataclass(frozen=True)
class WeightCounts:
    """How much the weight files of a model contain."""

    tensors: int
    """The number of tensors."""
    elements: int
    """The number of elements of all tensors."""
    size: int
    """The size of the files in bytes."""


def count_weights(location: str, **where: Any) -> WeightCounts | None:
    """Count the weights in the files of a folder or hub id, and check that config.json fits them.

    None if nothing can be counted: there are no such files, or the model has its own code, which is trusted.
    Raises Absurd if config.json does not fit, and the errors of the files' readers.
    """
    config, weight_files = files(location, **where)
    weights, stated = read_sizes(weight_files), bounded.read_object(config)
    check_counts(stated, weights)
    trusts_code = trusted() and "auto_map" in stated
    return weights if weight_files and not trusts_code else None


def read_sizes(files: list[Path]) -> WeightCounts:
    """Read off the headers of safetensors files; of others only the size is known. Raises SafetensorError."""
    size = sum(file.stat().st_size for file in files)
    headed = [file for file in files if file.suffix == ".safetensors"]
    if len(headed) < len(files):
        return WeightCounts(size, size, size)  # a weight, and a tensor, takes a byte at least
    shape_by_name = shapes(headed)
    return WeightCounts(len(shape_by_name), sum(map(math.prod, shape_by_name.values())), size)


def shapes(files: list[Path]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in safetensors files, by name, read off their headers."""
    from safetensors import safe_open

    shape_by_name = {}
    for file in files:
        with safe_open(file, framework="np") as opened:
            for key in opened.keys():  # noqa: SIM118
                shape_by_name[key] = tuple(opened.get_slice(key).get_shape())
    return shape_by_name


def check_counts(config: Mapping[str, Any], weights: WeightCounts) -> None:
    """Refuse a number of layers, experts or labels that is not theirs: Python would make them one by one.

    Raises Absurd.
    """
    layers = experts = 1
    for name, value in numbers(config):
        most = MOST_LABELS if name == "num_labels" else max(weights.tensors, MOST_LAYERS)
        if value > most:
            raise Absurd(
                f"config.json states {name} = {value}, and the weights are {weights.tensors} tensors"
            )
        if "layer" in name:
            layers = max(layers, value)
        elif "expert" in name:
            experts = max(experts, value)
    if layers * experts > max(weights.tensors, MOST_PARTS):
        stated = f"config.json states {layers} layers of {experts} experts"
        raise Absurd(f"{stated}, for weights of {weights.tensors} tensors")


def numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """The counts in a configuration and those within it, by name."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from numbers(value)
        counts = name.endswith(("layer", "layers", "experts")) or name == "num_labels"
        if counts and isinstance(value, int) and not isinstance(value, bool):  # True is an int too
            yield name, value


def check_model(model: Any, config: Any, weights: WeightCounts) -> None:
    """Refuse a model, made on the meta device, that the weights cannot fill. Raises Absurd."""
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    quantized = getattr(config, "quantization_config", None) is not None
    there = PER_BYTE * weights.size if quantized else weights.elements
    if num_parameters > MORE * there:
        raise Absurd(
            f"config.json describes a model of {num_parameters:,} weights, and its files hold {there:,}: "
            "some of its sizes are not those of these weights, or files are missing"
        )
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    if buffers > max(LEAST_BUFFERS, weights.size):
        raise Absurd(
            f"config.json describes a model that makes tables of {buffers / 2**30:,.1f} GiB beside "
            f"{weights.size / 2**30:,.1f} GiB of weights"
        )


def files(location: str, **where: Any) -> tuple[Path, list[Path]]:
    """config.json and the weight files of a folder or a hub id; those of the hub are fetched, as loading them
    would. No weight files where the hub has none under the usual names."""
    folder = Path(location)
    if folder.is_dir():
        # Like transformers, which reads *.bin only where there is no safetensors file.
        weight_files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
        return folder / "config.json", weight_files
    from transformers.utils.hub import cached_file

    # An absent file gives None instead of an error: not every model has an index, or safetensors.
    quiet = {"_raise_exceptions_for_missing_entries": False}
    config = cached_file(location, "config.json", **where)
    index = cached_file(location, "model.safetensors.index.json", **where, **quiet)
    names = ["model.safetensors"]
    if index is not None:
        names = sorted(set(bounded.read_object(Path(index))["weight_map"].values()))
    parts = [cached_file(location, name, **where, **quiet) for name in names]
    return Path(str(config)), [Path(part) for part in parts if part is not None]
