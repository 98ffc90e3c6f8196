"""Reading the weights of others: files of tensors and nothing else, with every fault named."""

import os
import pickle
import re
import struct
import warnings
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, LocalEntryNotFoundError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import one_line
from ..files import read_json_object
from ..weight_files import check_safetensors, read_shard_index

# Where the weights are, when a file holds more than them; the last is fairseq's and many a training loop's.
STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model")
# Where training loops keep settings beside the weights: "args" and "cfg" fairseq's, "hyper_parameters" Lightning's.
SETTINGS_KEYS = ("args", "cfg", "config", "hyper_parameters", "hparams", "model_args", "model_config")
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
# What comes with the weights of a model on the Hub.
DESCRIPTIONS = ("*.json", "*.txt", "*.spm", "*.model")
REFETCH = "fetch it again"
RESAVE = 'resave the weights alone: torch.save(model.state_dict(), "weights.pt")'


def _numpy_globals() -> list[Any]:
    """Return what numpy pickles numbers and arrays of numbers by, under the names of both its releases 1 and 2."""
    rebuild, scalar = np.zeros(1).__reduce__()[0], np.float64(0).__reduce__()[0]
    functions = [
        (function, f"numpy.{core}.multiarray.{name}")
        for core in ("core", "_core")
        for function, name in ((rebuild, "_reconstruct"), (scalar, "scalar"))
    ]
    # Types of objects and of structures are left out: they could hold anything.
    dtypes = {type(np.dtype(code)) for code in (*np.typecodes["AllInteger"], *np.typecodes["AllFloat"], "?", "S", "U")}
    return [*functions, np.ndarray, np.dtype, *dtypes]


# What is no tensor, and yet only values: arguments of a command line, and what fairseq keeps of its evaluations.
SAFE_GLOBALS = [Namespace, *_numpy_globals()]


class ForeignCheckpoint(NamedTuple):
    """What somebody else's file or folder holds.

    Attributes:
        path: The file, or the folder.
        weights: Tensors by their keys.
        config: The config.json beside the weights, and the settings that a file keeps in it, such as the arguments of
            its training; empty where there are none.
        folder: Where the configuration is, and a tokenizer may be; None for a state dict.
    """

    path: Path
    weights: dict[str, Tensor]
    config: dict[str, Any]
    folder: Path | None = None


def read_checkpoint(source: str | os.PathLike[str] | Mapping[str, Tensor]) -> ForeignCheckpoint:
    """Read weights from a file, from a folder that holds one, or from a state dict at hand.

    Files of PyTorch are read with `weights_only=True`: code in them is never run.

    Args:
        source: A `.safetensors` file, one that `torch.save` wrote, a folder with either (whole, or in shards with an
            index), the name of such a folder on the Hub, or a state dict. The weights may stand under "state_dict",
            "model_state_dict" or "model", and settings beside them, by themselves or under one of `SETTINGS_KEYS`.

    Raises:
        ValueError: There is no such file, or several; it is cut short, holds code, or something that is no tensor; two
            places say different things of one setting or weight.
    """
    if isinstance(source, Mapping):
        return ForeignCheckpoint(Path("state dict"), *_parts(source, "the state dict"))
    path = Path(source)
    if not path.exists():
        path = _download(str(source))
    folder = path if path.is_dir() else _folder(path)
    files, indexed = _weight_files(path) if path.is_dir() else ([path], set())
    config = folder / "config.json"
    settings = read_json_object(config, REFETCH) if config.is_file() else {}
    weights: dict[str, Tensor] = {}
    for file in files:
        tensors, beside = _read_weights(file)
        for name in weights.keys() & tensors.keys():
            if not torch.equal(weights[name], tensors[name]):
                raise ValueError(f"{file}: {name} differs from that of another shard; fetch the files again")
        weights |= tensors
        settings = _merged(settings, beside, str(file))
    if lost := sorted(indexed - weights.keys()):
        raise ValueError(f"no file in {folder} holds {lost[0]}, which the index names; fetch the files again")
    return ForeignCheckpoint(path, weights, settings, folder)


def _folder(file: Path) -> Path:
    """Return the folder of a file or, where only that has a config.json, of what a link to a file leads to."""
    folders = (file.parent, file.resolve().parent)
    return next((folder for folder in folders if (folder / "config.json").is_file()), file.parent)


def _download(name: str) -> Path:
    """Return the local copy of a folder on the Hub: configuration, tokenizer and, if there are any, safetensors."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ValueError(f"{name}: no such file or folder; check the path, or give the name of a model on the Hub")
    try:
        folder = Path(snapshot_download(name, allow_patterns=[*DESCRIPTIONS, "*.safetensors*"]))
        if not list(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=[*DESCRIPTIONS, "pytorch_model*.bin*"]))
    except (HfHubHTTPError, HFValidationError, HTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(f"{name} is no folder here, and cannot be fetched from the Hub: {one_line(error)}") from None
    return folder


def _weight_files(folder: Path) -> tuple[list[Path], set[str]]:
    """Return the file, or the shards, that hold the weights of a folder, and the weights that an index names.

    Safetensors come before pickles.
    """
    indexes = sorted(folder.glob("*.safetensors.index.json")) or sorted(folder.glob("*.bin.index.json"))
    if len(indexes) > 1:
        names = ", ".join(index.name for index in indexes)
        raise ValueError(f"{folder} holds several indexes of shards ({names}); keep only one there")
    for index in indexes:
        weight_map = read_shard_index(index, REFETCH)
        return [folder / name for name in sorted(set(weight_map.values()))], set(weight_map)
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model.bin"))
    files = files or sorted(file for file in folder.iterdir() if file.suffix in PICKLES)
    if len(files) != 1:
        found = f"several files of weights ({', '.join(file.name for file in files)})" if files else "no weights"
        kinds = ", ".join((".safetensors", *PICKLES))
        raise ValueError(f"{folder} holds {found}; name one file ({kinds})")
    return files, set()


def _read_weights(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights in a file, and the settings that it keeps beside them."""
    if file.suffix == ".safetensors":
        check_safetensors(file, remedy="fetch or save it again")
        return load_file(file), {}
    return _parts(_unpickle(file), str(file))


def _parts(content: Any, where: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights, and the settings beside them, in what was read."""
    weights, settings = _tensors(content, where), dict[str, Any]()
    for key in SETTINGS_KEYS:
        settings = _merged(settings, _settings(content.get(key)), f"{where}, {key!r},")
    # Of single values beside them, some are settings too, and others, like the number of an epoch, only named alike.
    plain = {key: value for key, value in content.items() if isinstance(value, (str, int, float, np.generic))}
    return weights, {**_settings(plain), **settings}


def _settings(found: Any) -> dict[str, Any]:
    """Return settings by their names: those of the model where others stand beside them, as in fairseq's "cfg".

    What is nested gets the name that a command line gives it: `{"encoder": {"layers": 6}}` is `encoder_layers`. None
    says nothing: an option that was not used.
    """
    found = vars(found) if isinstance(found, Namespace) else found
    if not isinstance(found, Mapping):
        return {}
    if isinstance(found.get("model"), (Mapping, Namespace)):
        return _settings(found["model"])
    flat: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, (Mapping, Namespace)):
            flat |= {f"{name}_{inner}": nested for inner, nested in _settings(value).items()}
        elif value is not None and not isinstance(value, (Tensor, np.ndarray)):
            flat[str(name)] = value.item() if isinstance(value, np.generic) else value
    return flat


def _merged(settings: dict[str, Any], others: Mapping[str, Any], where: str) -> dict[str, Any]:
    for name in others:
        # The latter also of what is not equal to itself, or has no one truth.
        if name in settings and repr(settings[name]) != repr(others[name]) and settings[name] != others[name]:
            raise ValueError(
                f"{where} says {name}={others[name]!r}, but what stands beside it {settings[name]!r}; remove the "
                "wrong one"
            )
    return {**settings, **others}


def _unpickle(file: Path) -> Any:
    """Return what a file of `torch.save` holds, if it is tensors, numbers and plain containers."""
    try:
        with warnings.catch_warnings():
            # About the protocol of a pickle that is refused or read all the same.
            warnings.simplefilter("ignore", UserWarning)
            with torch.serialization.safe_globals(SAFE_GLOBALS):
                return torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"{file}: cannot be read ({error.strerror or error}); check the path") from None
    except pickle.UnpicklingError as error:
        if code := re.search(r"GLOBAL (\S+)", str(error)):
            raise ValueError(
                f"{file} holds more than weights: the code or object {code[1]}, which is not run; {RESAVE}"
            ) from None
        raise ValueError(f"{file} is no checkpoint that can be read safely, or is damaged; {RESAVE}") from None
    # What torch.load makes of a file that is cut short or no checkpoint at all: it has no error of its own for that.
    except (
        RuntimeError, EOFError, MemoryError, LookupError, ValueError, TypeError, AttributeError, AssertionError,
        struct.error,
    ):  # fmt: skip  # one error a line would say no more
        raise ValueError(f"{file} is cut short, damaged or no checkpoint; fetch or save it again") from None


def _tensors(content: Any, where: str) -> dict[str, Tensor]:
    """Return the state dict in what was read, wherever in it that is."""
    for key in STATE_DICT_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"{where} holds {type(content).__name__}, not a dict of weights by their names; {RESAVE}")
    for key, value in content.items():
        if not (isinstance(key, str) and isinstance(value, Tensor)):
            keys = ", ".join(map(repr, STATE_DICT_KEYS))
            raise ValueError(
                f"{where}: {key!r} is {type(value).__name__}, not a tensor (weights may stand under {keys}); {RESAVE}"
            )
    return {key: value.detach() for key, value in content.items()}


__all__ = ["ForeignCheckpoint", "read_checkpoint"]
