"""Integrity of weight files: safetensors and shard indices."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import one_line
from .files import read_json_object


def check_safetensors(file: Path, remedy: str) -> None:
    """Raise a ValueError that ends in `remedy` for a damaged safetensors file."""
    try:
        safe_open(file, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged ({one_line(error)}); {remedy}") from error


def is_finite(weight: Tensor) -> bool:
    """Whether no number of a weight is NaN or infinite.

    Taken for granted on the meta device, where there are no numbers, and for 8-bit types, which are quantized.
    """
    return weight.is_meta or weight.element_size() == 1 or bool(torch.isfinite(weight).all())


def check_finite_file(file: Path, remedy: str) -> None:
    """Raise a ValueError that ends in `remedy` if a weight in an intact safetensors file is NaN or infinite."""
    with safe_open(file, framework="pt") as content:
        for name in content.keys():
            if not is_finite(content.get_tensor(name)):
                raise ValueError(f"{file}: {name} has numbers that are NaN or infinite; {remedy}")


def read_shard_index(index: Path, remedy: str) -> dict[str, str]:
    """Read the index of a sharded model.

    Args:
        index: Such as `model.safetensors.index.json`.
        remedy: What to do about a damaged one, for messages.

    Returns:
        The name of the shard that holds each weight.

    Raises:
        ValueError: The index cannot be used, or a shard is missing; ends in `remedy`.
    """
    weight_map = read_json_object(index, remedy).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ValueError(f"{index} names no file for each weight (weight_map); {remedy}")
    for name in sorted(set(weight_map.values())):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{index} names {name}, which is outside of its folder; {remedy}")
        if not (index.parent / name).is_file():
            raise ValueError(f"{index.parent} holds no {name}, which {index.name} names; {remedy}")
    return weight_map


__all__ = ["check_finite_file", "check_safetensors", "is_finite", "read_shard_index"]
