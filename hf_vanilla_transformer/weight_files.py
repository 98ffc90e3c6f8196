"""Integrity checks for weight files: safetensors, shard indices and `torch.save` files.

Defects raise a ValueError that ends in `remedy`.
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

# Weight files of a folder: a single file, or the index of shards.
WEIGHTS = {"model.safetensors": "model.safetensors.index.json", "pytorch_model.bin": "pytorch_model.bin.index.json"}
# Suffixes of `torch.save` files: .best is Sockeye's, .bin transformers'. Training states use them too.
PICKLES = (".pt", ".pth", ".ckpt", ".chkpt", ".tar", ".best", ".bin")

# How many times the file size the tensors may fill: tied weights share storage.
MAX_REPETITION = 8
# Characters; the limit of file systems.
MAX_FILE_NAME = 255
FETCH_OR_SAVE = "fetch or save it again"


def check_safetensors(file: Path, remedy: str) -> None:
    safetensors_shapes(file, remedy)


def safetensors_shapes(file: Path, remedy: str) -> dict[str, tuple[int, ...]]:
    """Return weight name -> shape of a safetensors file, reading only its header."""
    try:
        with safe_open(file, framework="pt") as content:
            return {name: tuple(content.get_slice(name).get_shape()) for name in content.keys()}
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged ({one_line(error)}); {remedy}") from error


def is_finite(weight: Tensor) -> bool:
    """Whether no element of a weight is NaN or infinite.

    Always true on the meta device, which has no data, and for 8-bit types, which are quantized.
    """
    return weight.is_meta or weight.element_size() == 1 or bool(torch.isfinite(weight).all())


def check_finite_file(file: Path, remedy: str) -> None:
    """Raise a ValueError if a weight in an intact safetensors file is NaN or infinite."""
    with safe_open(file, framework="pt") as content:
        for name in content.keys():
            if not is_finite(content.get_tensor(name)):
                raise ValueError(f"{file}: NaN or infinite values in {name}; {remedy}")


def read_shard_index(index: Path, remedy: str) -> dict[str, str]:
    """Return weight name -> shard file from the index of a sharded model, checking that the shards exist."""
    weight_map = check_shard_index(index, remedy)
    for name in sorted(set(weight_map.values())):
        if len(name) > MAX_FILE_NAME or not (index.parent / name).is_file():
            raise ValueError(f"{index.parent} lacks the shard {shorten(name, 100)} listed in {index.name}; {remedy}")
    return weight_map


def check_shard_index(index: Path, remedy: str) -> dict[str, str]:
    """Read an index like `read_shard_index`, but allow missing shards, as in a format that is not used."""
    content = read_json_object(index, remedy)
    weight_map = content.get("weight_map")
    if not isinstance(content.get("metadata", {}), dict):
        raise ValueError(f"{index}: metadata is not a JSON object; {remedy}")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ValueError(f"{index}: weight_map does not map every weight to a file name; {remedy}")
    for name in sorted(set(weight_map.values())):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{index} lists {name}, which is outside its folder; {remedy}")
    return weight_map


def stored_shapes(folder: Path, remedy: str) -> dict[str, tuple[int, ...]] | None:
    """Return weight name -> shape for a folder without loading weights; None if it has no file of `WEIGHTS`."""
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
        raise ValueError(f"no shard in {index.parent} holds {lost[0]}, which {index.name} lists; {remedy}")
    return shapes


def _file_shapes(file: Path, remedy: str) -> dict[str, tuple[int, ...]]:
    if file.suffix == ".safetensors":
        return safetensors_shapes(file, remedy)
    content = load_pickle(file, remedy, shapes_only=True)
    if not isinstance(content, dict):
        raise ValueError(f"{file} holds {type(content).__name__}, not a dict from names to weights; {remedy}")
    return {name: tuple(tensor.shape) for name, tensor in content.items() if isinstance(tensor, Tensor)}


def load_pickle(file: Path, remedy: str, safe_globals: Iterable[Any] = (), *, shapes_only: bool = False) -> Any:
    """Load a `torch.save` file of tensors, numbers and plain containers; code in it is never run.

    Raises a ValueError if the file would fill far more memory than its size, or holds objects other than weights and
    `safe_globals`; the latter error ends in `remedy`.
    """
    try:
        _check_members(file)
        with warnings.catch_warnings():
            # The warning is about the pickle protocol of a file that is then rejected, or read anyway.
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
            extra = f"the code or object {shorten(code[1], 100)}, which is not run"
            raise ValueError(f"{file} holds more than weights: {extra}; {remedy}") from None
        raise ValueError(f"{file} is damaged, or not a checkpoint that can be loaded safely; {remedy}") from None
    # torch.load raises arbitrary errors for a truncated file or one that is not a checkpoint.
    except (
        RuntimeError, EOFError, MemoryError, LookupError, ValueError, TypeError, AttributeError, AssertionError,
        struct.error, zipfile.BadZipFile,
    ):  # fmt: skip  # one error per line would not be clearer
        raise ValueError(f"{file} is truncated, damaged or not a checkpoint; {FETCH_OR_SAVE}") from None


class _OversizeError(Exception):
    """A file would fill far more memory than its size."""


def _check_members(file: Path) -> None:
    """Reject compressed members: `torch.save` writes none, and they may expand a thousandfold."""
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.file_size > member.compress_size:
                raise _OversizeError(f"its member {shorten(member.filename, 100)} is compressed")


def _check_total_size(content: Any, file: Path) -> None:
    """Reject tensors that expand a few stored elements to any size with strides of 0."""
    total, bound = sum(tensor.nbytes for tensor in _tensors(content)), MAX_REPETITION * file.stat().st_size
    if total > bound:
        raise _OversizeError(f"its tensors would fill {total:,} bytes, but the file has {file.stat().st_size:,}")


def _tensors(content: Any) -> Iterator[Tensor]:
    """Yield all tensors in nested containers, each container once: a few bytes can nest them a billion times."""
    stack, seen = [content], set[int]()
    while stack:
        node = stack.pop()
        if isinstance(node, Tensor):
            yield node
        elif isinstance(node, (Mapping, list, tuple)) and id(node) not in seen:
            seen.add(id(node))
            stack += node.values() if isinstance(node, Mapping) else node
