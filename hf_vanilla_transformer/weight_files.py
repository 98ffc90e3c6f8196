"""Integrity of weight files: safetensors, shard indices and files of `torch.save`.

Faults are ValueErrors that end in a `remedy`.
"""

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import one_line, shorten
from .files import read_json_object

# Where a folder keeps its weights: a single file, or shards with an index.
WEIGHTS = {"model.safetensors": "model.safetensors.index.json", "pytorch_model.bin": "pytorch_model.bin.index.json"}
# Suffixes of files that `torch.save` wrote: .best is Sockeye's, .bin transformers'. Training states have them too.
PICKLES = (".pt", ".pth", ".ckpt", ".chkpt", ".tar", ".best", ".bin")

# How often a file may repeat numbers under other names, as for tied weights.
MAX_REPETITION = 8
# Characters; file systems allow no more.
MAX_FILE_NAME = 255
FETCH_OR_SAVE = "fetch or save it again"


def check_safetensors(file: Path, remedy: str) -> None:
    safetensors_shapes(file, remedy)


def safetensors_shapes(file: Path, remedy: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights in a safetensors file by their names, from its header alone."""
    try:
        with safe_open(file, framework="pt") as content:
            return {name: tuple(content.get_slice(name).get_shape()) for name in content.keys()}
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
    """Return the name of the shard that holds each weight, by the index of a sharded model."""
    weight_map = check_shard_index(index, remedy)
    for name in sorted(set(weight_map.values())):
        if len(name) > MAX_FILE_NAME or not (index.parent / name).is_file():
            raise ValueError(f"{index.parent} holds no {shorten(name, 100)}, which {index.name} names; {remedy}")
    return weight_map


def check_shard_index(index: Path, remedy: str) -> dict[str, str]:
    """Read an index as `read_shard_index` does, but let shards be missing, as of a format that is not used."""
    content = read_json_object(index, remedy)
    weight_map = content.get("weight_map")
    if not isinstance(content.get("metadata", {}), dict):
        raise ValueError(f"{index}: metadata is not a JSON object; {remedy}")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ValueError(f"{index} names no file for each weight (weight_map); {remedy}")
    for name in sorted(set(weight_map.values())):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{index} names {name}, which is outside of its folder; {remedy}")
    return weight_map


def stored_shapes(folder: Path, remedy: str) -> dict[str, tuple[int, ...]] | None:
    """Return the shapes of a folder's weights by their names, without loading any; None if none is in `WEIGHTS`."""
    for name, index_name in WEIGHTS.items():
        if (folder / name).is_file():
            return _file_shapes(folder / name, remedy)
        if (folder / index_name).is_file():
            return _shard_shapes(folder / index_name, remedy)
    return None


def _shard_shapes(index: Path, remedy: str) -> dict[str, tuple[int, ...]]:
    shards = read_shard_index(index, remedy)
    if "metadata" not in read_json_object(index, remedy):
        raise ValueError(f"{index} has no metadata, which transformers needs to read shards; {remedy}")
    shapes: dict[str, tuple[int, ...]] = {}
    for name in sorted(set(shards.values())):
        shapes |= _file_shapes(index.parent / name, remedy)
    if lost := sorted(shards.keys() - shapes.keys()):
        raise ValueError(f"no file in {index.parent} holds {lost[0]}, which {index.name} names; {remedy}")
    return shapes


def _file_shapes(file: Path, remedy: str) -> dict[str, tuple[int, ...]]:
    if file.suffix == ".safetensors":
        return safetensors_shapes(file, remedy)
    content = load_pickle(file, remedy, shapes_only=True)
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds {type(content).__name__}, not a dict of weights by their names; {remedy}")
    return {name: tuple(tensor.shape) for name, tensor in content.items() if isinstance(tensor, Tensor)}


def load_pickle(file: Path, remedy: str, safe_globals: Iterable[Any] = (), *, shapes_only: bool = False) -> Any:
    """Return the content of a `torch.save` file of tensors, numbers and plain containers; code in it is never run.

    A file that would fill more memory than its size allows is refused, and one that holds more than weights and
    `safe_globals` with the remedy.
    """
    try:
        _check_members(file)
        with warnings.catch_warnings():
            # About the protocol of a pickle that is refused, or read all the same.
            warnings.simplefilter("ignore", UserWarning)
            with torch.serialization.safe_globals([*safe_globals]):
                content = torch.load(file, map_location="meta", weights_only=True)
                _check_total_size(content, file)
                return content if shapes_only else torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror or error}); check the path") from None
    except _OversizeError as error:
        raise ValueError(f"{file} is damaged or hostile: {error}; {FETCH_OR_SAVE}") from None
    except pickle.UnpicklingError as error:
        if code := re.search(r"GLOBAL (\S+)", str(error)):
            found = f"the code or object {shorten(code[1], 100)}, which is not run"
            raise ValueError(f"{file} holds more than weights: {found}; {remedy}") from None
        raise ValueError(f"{file} is damaged, or no checkpoint that can be read safely; {remedy}") from None
    # For a truncated file, or no checkpoint at all, torch.load has no error of its own.
    except (
        RuntimeError, EOFError, MemoryError, LookupError, ValueError, TypeError, AttributeError, AssertionError,
        struct.error, zipfile.BadZipFile,
    ):  # fmt: skip  # one error a line would say no more
        raise ValueError(f"{file} is truncated, damaged or no checkpoint; {FETCH_OR_SAVE}") from None


class _OversizeError(Exception):
    """A file would fill far more memory than its size; the message is a clause."""


def _check_members(file: Path) -> None:
    """Refuse compressed members, which `torch.save` does not write: they may expand a thousandfold."""
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.file_size > member.compress_size:
                raise _OversizeError(f"its member {shorten(member.filename, 100)} is compressed")


def _check_total_size(content: Any, file: Path) -> None:
    """Refuse tensors that repeat a few stored numbers, by strides of 0, up to any size."""
    total, bound = sum(tensor.nbytes for tensor in _tensors(content)), MAX_REPETITION * file.stat().st_size
    if total > bound:
        raise _OversizeError(f"its tensors would fill {total:,} bytes, and it has {file.stat().st_size:,}")


def _tensors(content: Any) -> Iterator[Tensor]:
    """Yield all tensors in nested containers, each container once: a few bytes can nest them a billion times."""
    stack, seen = [content], set[int]()
    while stack:
        each = stack.pop()
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, (Mapping, list, tuple)) and id(each) not in seen:
            seen.add(id(each))
            stack += each.values() if isinstance(each, Mapping) else each
