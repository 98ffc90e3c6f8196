"""Read source checkpoints: tensors and plain values, never code."""

import os
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, LocalEntryNotFoundError
from safetensors.torch import load_file
from torch import Tensor

from ..errors import one_line
from ..files import check_json_size, check_links, read_json_object
from ..pretrained.sizes import check_num_labels
from ..weight_files import FETCH_OR_SAVE, PICKLES, check_safetensors, load_pickle, read_shard_index

# Keys of the weights in a file that holds more: "model" in fairseq and others, "model_state" in Joey NMT.
STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model", "model_state")
# Key of the output projection, which OpenNMT-py stores beside "model".
GENERATOR = "generator"
# Keys of settings: "args" and "cfg" are fairseq's, "hyper_parameters" Lightning's, "opt" OpenNMT-py's.
SETTINGS_KEYS = (
    "args", "cfg", "config", "settings", "hyper_parameters", "hparams", "model_args", "model_config", "opt",
)  # fmt: skip  # a table, not an expression
# Files to download with the weights.
DESCRIPTIONS = ("*.json", "*.txt", "*.spm", "*.model", "README.md")
# Limit on containers of settings in a file; Hydra configurations have a few dozen.
MAX_NESTED_SETTINGS = 1000
FETCH_AGAIN = "fetch the files again"
RESAVE = 'resave the weights alone: torch.save(model.state_dict(), "weights.pt")'
# Packages of the objects in which OpenNMT-py 2 stores vocabularies.
OPEN_NMT_2 = ("onmt.", "torchtext.")
RESAVE_WITHOUT_VOCABULARIES = (
    "where OpenNMT-py 2 is installed, resave the file with vocabularies as lists: parts = torch.load(file, "
    'weights_only=False); torch.save({name: parts[name] for name in ("model", "generator", "opt")} | {"vocab": {side: '
    'field.base_field.vocab.itos for side, field in parts["vocab"].items() if side in ("src", "tgt")}}, "weights.pt")'
)


def _numpy_globals() -> list[Any]:
    """Return the functions and types in pickles of numeric scalars and arrays of numpy 1 and 2."""
    rebuild, scalar = np.zeros(1).__reduce__()[0], np.float64(0).__reduce__()[0]
    functions = [
        (function, f"numpy.{core}.multiarray.{name}")
        for core in ("core", "_core")
        for function, name in ((rebuild, "_reconstruct"), (scalar, "scalar"))
    ]
    # No object or structured dtypes, which could hold anything.
    dtypes = {type(np.dtype(code)) for code in (*np.typecodes["AllInteger"], *np.typecodes["AllFloat"], "?", "S", "U")}
    return [*functions, np.ndarray, np.dtype, *dtypes]


# Harmless types besides tensors: parsed arguments, and the numpy numbers of fairseq's validation results.
SAFE_GLOBALS = [Namespace, *_numpy_globals()]


class SourceCheckpoint(NamedTuple):
    """Content of a source file or folder: tensors by key, and the settings stored with and beside them.

    `folder` may hold config.json and a tokenizer; None for a state dict.
    """

    path: Path
    weights: dict[str, Tensor]
    settings: dict[str, Any]
    folder: Path | None = None


def read_checkpoint(source: str | os.PathLike[str] | Mapping[str, Tensor]) -> SourceCheckpoint:
    """Read weights from a file, a folder, the Hub or a state dict, without running code in them.

    The source is a `.safetensors` file, a `torch.save` file, a folder with either (one file, or shards with an index),
    the name of such a folder on the Hub, or a state dict. Weights may be nested under one of `STATE_DICT_KEYS`, and
    settings stored beside them, directly or under one of `SETTINGS_KEYS`.

    Raises:
        ValueError: There is no such file, or there are several; a file is truncated, or holds code or something other
            than tensors; a setting or weight has two different values.
    """
    if isinstance(source, Mapping):
        return SourceCheckpoint(Path("state dict"), *_split_settings(source, "the state dict"))
    path = Path(source)
    if not path.exists():
        path = _download(str(source))
    folder, files, indexed = _folder_of(path), [path], set[str]()
    if path.is_dir():
        check_links(path)
        files, indexed = _weight_files(path)
    config = folder / "config.json"
    settings = read_json_object(config, FETCH_AGAIN) if config.is_file() else {}
    check_num_labels(settings, config)
    weights: dict[str, Tensor] = {}
    for file in files:
        tensors, beside = _read_weights(file)
        for name in weights.keys() & tensors.keys():
            if not torch.equal(weights[name], tensors[name]):
                raise ValueError(f"{file}: {name} differs from that of another shard; {FETCH_AGAIN}")
        weights |= tensors
        settings = _merge_settings(settings, beside, str(file))
    if lost := sorted(indexed - weights.keys()):
        raise ValueError(f"no file in {folder} holds {lost[0]}, which the index names; {FETCH_AGAIN}")
    return SourceCheckpoint(path, weights, settings, folder)


def _folder_of(path: Path) -> Path:
    """Return a folder itself, or a file's folder; a link's target folder if only that has a config.json."""
    folders = (path,) if path.is_dir() else (path.parent, path.resolve().parent)
    return next((folder for folder in folders if (folder / "config.json").is_file()), folders[0])


def _download(name: str) -> Path:
    """Download a folder from the Hub, with pickles only if it has no safetensors."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ValueError(f"{name}: no such file or folder; check the path, or give the name of a model on the Hub")
    try:
        folder = Path(snapshot_download(name, allow_patterns=[*DESCRIPTIONS, "*.safetensors*"]))
        if list(folder.glob("*.safetensors")):
            return folder
        return Path(snapshot_download(name, allow_patterns=[*DESCRIPTIONS, "pytorch_model*.bin*"]))
    except (HfHubHTTPError, HFValidationError, HTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ValueError(
            f"{name} is not a local folder, and cannot be fetched from the Hub ({one_line(error)}); check the name"
        ) from None


def _weight_files(folder: Path) -> tuple[list[Path], set[str]]:
    """Return a folder's weight file or shards, preferably safetensors, and the weights that its index lists."""
    indexes = sorted(folder.glob("*.safetensors.index.json")) or sorted(folder.glob("*.bin.index.json"))
    if len(indexes) > 1:
        names = ", ".join(index.name for index in indexes)
        raise ValueError(f"{folder} holds several shard indexes ({names}); keep only one")
    if indexes:
        shards = read_shard_index(indexes[0], FETCH_AGAIN)
        return [folder / name for name in sorted(set(shards.values()))], set(shards)
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model.bin"))
    files = files or sorted(file for file in folder.iterdir() if file.suffix in PICKLES)
    if len(files) != 1:
        content = f"several weight files ({', '.join(file.name for file in files)})" if files else "no weights"
        raise ValueError(f"{folder} holds {content}; name one file ({', '.join(('.safetensors', *PICKLES))})")
    return files, set()


def _read_weights(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if file.suffix == ".safetensors":
        check_safetensors(file, FETCH_OR_SAVE)
        return load_file(file), {}
    try:
        content = load_pickle(file, RESAVE, SAFE_GLOBALS)
    except ValueError as error:
        if any(f"the code or object {package}" in str(error) for package in OPEN_NMT_2):
            raise ValueError(str(error).replace(RESAVE, RESAVE_WITHOUT_VOCABULARIES)) from None
        raise
    return _split_settings(content, str(file))


def _split_settings(content: Any, where: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    weights, settings = _state_dict(content, where), dict[str, Any]()
    for key in SETTINGS_KEYS:
        settings = _merge_settings(settings, flatten_settings(content.get(key)), f"{where}, {key!r},")
    if isinstance(vocabularies := content.get("vocab"), Mapping):
        # OpenNMT-py stores lists of tokens here; other code stores token ids, which are not settings.
        settings |= {f"vocab_{side}": tokens for side, tokens in vocabularies.items() if isinstance(tokens, list)}
    # Plain values beside the weights may be settings, or share a name by chance, so those above take precedence.
    plain = {key: value for key, value in content.items() if _is_plain(value)}
    return weights, {**flatten_settings(plain), **settings}


class _PlainLoader(yaml.SafeLoader):
    """Load objects of Sockeye's configuration as mappings and tuples as lists, and refuse any other object."""


_PlainLoader.add_multi_constructor("!", lambda loader, tag, node: loader.construct_mapping(node, deep=True))
_PlainLoader.add_multi_constructor(
    "tag:yaml.org,2002:python/tuple", lambda loader, tag, node: loader.construct_sequence(node, deep=True)
)


def read_settings(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Read settings from whichever of these YAML or JSON files exist.

    Settings in a `model` section keep their names; others are prefixed with their section, and with the name of a file
    other than `config`.
    """
    settings: dict[str, Any] = {}
    for file in (folder / name for name in names):
        if file.is_file():
            content = read_json_object(file, FETCH_AGAIN) if file.suffix == ".json" else _read_yaml(file)
            content = content if file.stem == "config" else {file.stem: content}
            settings |= flatten_settings({**content, "model": None}) | flatten_settings(content)
    return settings


def _read_yaml(file: Path) -> dict[str, Any]:
    check_json_size(file, FETCH_AGAIN)
    try:
        # Safe: this loader builds only plain values.
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=_PlainLoader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"{file} cannot be read ({one_line(error)}); {FETCH_AGAIN}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} is not a mapping of settings; {FETCH_AGAIN}")
    return content


def flatten_settings(settings: Any) -> dict[str, Any]:
    """Flatten nested settings; where there is a `model` section, as in fairseq's "cfg", only that one.

    Names are joined as in command-line options: `{"encoder": {"layers": 6}}` becomes `encoder_layers`. None, which
    means an unused option, is left out, as are arrays and nested lists.
    """
    flat: dict[str, Any] = {}
    nested, visited = [("", settings)], 0
    while nested:
        prefix, settings = nested.pop()
        settings = vars(settings) if isinstance(settings, Namespace) else settings
        # A small pickle can hold a billion nested containers, or containers that contain themselves.
        if not isinstance(settings, Mapping) or (visited := visited + 1) > MAX_NESTED_SETTINGS:
            continue
        if isinstance(settings.get("model"), (Mapping, Namespace)):
            nested.append((prefix, settings["model"]))
            continue
        for name, value in settings.items():
            if isinstance(value, (Mapping, Namespace)):
                nested.append((f"{prefix}{name}_", value))
            elif _is_plain(value) or (isinstance(value, (list, tuple)) and all(map(_is_plain, value))):
                flat[f"{prefix}{name}"] = value.item() if isinstance(value, np.generic) else value
    return flat


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, np.generic))


def _merge_settings(settings: dict[str, Any], others: Mapping[str, Any], where: str) -> dict[str, Any]:
    for name in others:
        # Compare by repr first: NaN differs from itself, and comparing lists of arrays raises.
        if name in settings and repr(settings[name]) != repr(others[name]) and settings[name] != others[name]:
            raise ValueError(
                f"{where} has {name}={others[name]!r}, but elsewhere it is {settings[name]!r}; remove the wrong one"
            )
    return {**settings, **others}


def _state_dict(content: Any, where: str) -> dict[str, Tensor]:
    """Return the state dict in a file's content, nested or not."""
    for key in STATE_DICT_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            generator = content.get(GENERATOR) if key == "model" else None
            content = content[key]
            if isinstance(generator, Mapping):
                content = {**content, **{f"{GENERATOR}.{name}": tensor for name, tensor in generator.items()}}
            break
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"{where} holds {type(content).__name__}, not a dict of weights by their names; {RESAVE}")
    for key, value in content.items():
        if not (isinstance(key, str) and isinstance(value, Tensor)):
            keys = ", ".join(map(repr, STATE_DICT_KEYS))
            raise ValueError(
                f"{where}: {key!r} is {type(value).__name__}, not a tensor (weights may be under {keys}); {RESAVE}"
            )
        unusable = {
            "meta": value.is_meta,
            "sparse": value.layout is not torch.strided,
            "quantized": value.is_quantized,
            "nested": value.is_nested,
            str(value.dtype): value.is_floating_point() and value.dtype.itemsize < 2,
        }
        if kind := next((kind for kind, applies in unusable.items() if applies), None):
            raise ValueError(f"{where}: {key} is a {kind} tensor; save it as a dense one on the CPU")
    return {key: value.detach() for key, value in content.items()}
