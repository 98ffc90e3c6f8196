"""Strict model loading: every weight must be stored, have the right shape and be finite."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from logging import LogRecord
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from tokenizers import Tokenizer
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME, logging

from ..errors import as_value_errors, one_line, shorten
from ..files import check_json_size, check_links, read_json_object
from ..model.hub_code_vanilla_transformer import MODEL_TYPE
from ..model.tokenization_vanilla_transformer import PLACEHOLDER_TOKENIZER_JSON
from ..weight_files import PICKLES, check_shard_index, is_finite
from .generation_settings import check_generation_settings
from .sizes import SAVE_AGAIN, check_sizes, read_config

logger = logging.get_logger(__name__)

TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_FILES = ("tokenizer.json", TOKENIZER_CONFIG)
ADAPTER_CONFIG = "adapter_config.json"

# Most weight names in a message.
MAX_NAMED_WEIGHTS = 3

# A repository on the Hub; "gpt2" has no owner.
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")

NEEDS_TRUST = "it comes with Python code; read the code and, if you trust it, pass `trust_remote_code=True` to run it"

PICKLE = "its pickle file contains more than tensors and is not loaded, as it could run code; save it as safetensors"

# Files that only an exported model has, and how to use them.
EXPORTED = {
    "model.bin": "it was exported to CTranslate2; translate with `backend=ctranslate2`",
    "onnx": "it was exported to ONNX; translate with scripts/onnx_translate.py",
}


def load_model(
    name: str | os.PathLike[str],
    auto_class: Any = AutoModelForSeq2SeqLM,
    new_weights: tuple[str, ...] = (),
    trust_remote_code: bool = False,
    **options: Any,
) -> PreTrainedModel:
    """Load a model strictly: no weight may silently keep its random initialization.

    `from_pretrained` alone initializes missing weights at random and only warns.

    Args:
        name: Folder of the model, or its name on the Hub.
        auto_class: The Auto class to load it with.
        new_weights: Prefixes of weights that may be missing and start random, such as a head to train.
        trust_remote_code: Whether to run Python code that comes with the model.
        **options: Further options of `from_pretrained`, such as `dtype`.

    Raises:
        ValueError: There is no such model, or it is damaged; weights are missing, mismatched in shape or not finite;
            or a model of this package does not use all stored weights.
    """
    # `_check_loading_info` names missing and unexpected weights.
    with _one_line_errors(f"model {name} cannot be loaded"), without_message("modeling_utils", "LOAD REPORT"):
        folder = _resolve(name)
        _check_converted(Path(folder))
        # A PEFT adapter names the model that it was trained on.
        file = Path(folder, ADAPTER_CONFIG)
        named = read_json_object(file, SAVE_AGAIN).get("base_model_name_or_path") if file.is_file() else None
        base = Path(named if isinstance(named, str) else folder)
        for index in base.glob("*.index*.json"):
            # `from_pretrained` would follow file names in it to any folder.
            check_shard_index(index, SAVE_AGAIN)
        for exported, remedy in EXPORTED.items():
            if (base / exported).exists() and not any(base.glob("*.safetensors")):
                raise ValueError(remedy)
        if base.is_dir():
            check_sizes(base, auto_class, new_weights, trust_remote_code, options)
        settings_file = base / GENERATION_CONFIG_NAME
        if settings_file.is_file():
            # `from_pretrained` silently ignores unreadable generation settings.
            read_json_object(settings_file, SAVE_AGAIN)
            with as_value_errors(f"{settings_file}: "):
                GenerationConfig.from_pretrained(base)
        model, info = auto_class.from_pretrained(
            folder,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            trust_remote_code=trust_remote_code,
            **options,
        )
    _check_loading_info(f"model {name}", model, info, new_weights)
    check_finite(model, f"model {name}")
    if model.can_generate():
        head = model.get_output_embeddings()
        where = settings_file if settings_file.is_file() else base / CONFIG_NAME
        check_generation_settings(
            model.generation_config,
            where,
            None if head is None else head.weight.shape[0],
            every_id=model.config.model_type == MODEL_TYPE,
        )
    return model


def _check_loading_info(
    where: str, model: PreTrainedModel, info: dict[str, Any], new_weights: tuple[str, ...]
) -> None:
    """Raise for missing, mismatched or unused weights; only warn about unused ones in models of other families."""
    faults = []
    unused = sorted(info["unexpected_keys"])
    if missing := sorted(key for key in info["missing_keys"] if not key.startswith(new_weights)):
        extra = f" (but unused ones: {_first(unused)})" if unused else ""
        faults.append(f"missing weights: {_first(missing)}{extra}")
    elif unused and model.config.model_type == MODEL_TYPE:
        faults.append(f"weights that its configuration does not use: {_first(unused)}")
    elif unused:
        logger.warning(f"{where} has weights that {type(model).__name__} does not use: {_first(unused)}")
    if mismatched := sorted(info["mismatched_keys"]):
        shapes = [f"{key} {tuple(stored)}, not {tuple(expected)}" for key, stored, expected in mismatched]
        faults.append(f"weights of the wrong shape: {_first(shapes)}")
    if faults:
        raise ValueError(f"{where} has {' and '.join(faults)}; {SAVE_AGAIN}")


def load_config(name: str | os.PathLike[str]) -> PreTrainedConfig:
    """Load a model's configuration without running its code; every failure is a one-line ValueError."""
    with _one_line_errors(f"configuration of {name} cannot be loaded", on_code="it is Python code, which is not run"):
        folder = _resolve(name)
        _check_converted(Path(folder))
        if Path(folder).is_dir():
            read_config(Path(folder))
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def load_tokenizer(
    name: str | os.PathLike[str], trust_remote_code: bool = False, **options: Any
) -> PreTrainedTokenizerBase:
    """Load a tokenizer from its folder or its name on the Hub; options are those of `from_pretrained`.

    Raises:
        ValueError: There is no such tokenizer, or it is damaged or has only special tokens.
    """
    # `AutoTokenizer` logs this when it reads the configuration of a model whose code it may not run.
    quiet = without_message("configuration_utils", "to instantiate a model of type ``")
    with _one_line_errors(f"tokenizer {name} cannot be loaded"), quiet:
        folder = _resolve(name)
        for file in Path(folder).glob("*.json"):
            check_json_size(file, SAVE_AGAIN)
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code, **options)
            _check_usable(tokenizer)
        except (KeyboardInterrupt, SystemExit):
            raise
        # A panic of the tokenizers library is not an Exception.
        except BaseException as error:
            # Not before: transformers also loads a folder with only tokenizer.model, whatever the weights beside it.
            _check_converted(Path(folder))
            _check_tokenizer_files(Path(folder))
            if needs_trust(error) or not Path(folder).is_dir():
                raise
            settings = Path(folder, TOKENIZER_CONFIG)
            fault = "does not match the files beside it" if settings.is_file() else "is missing"
            raise ValueError(f"{settings} {fault}: {one_line(error)}") from error
        # Some families get an empty vocabulary if their files are missing.
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise ValueError("its files are missing; save or fetch it again")
    # Loading options, which would otherwise be saved with the tokenizer.
    for name in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    return tokenizer


def has_tokenizer(name: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a tokenizer; assumed for a name on the Hub."""
    folder = Path(name)
    return not folder.is_dir() or any((folder / file).is_file() for file in TOKENIZER_FILES)


def tokenizer_sides(tokenizer: PreTrainedTokenizerBase) -> list[PreTrainedTokenizerBase]:
    """Return the tokenizer, and the source and target tokenizers of a pair."""
    sides = (getattr(tokenizer, name, None) for name in ("source_tokenizer", "target_tokenizer"))
    return [tokenizer, *filter(None, sides)]


def _check_usable(tokenizer: PreTrainedTokenizerBase) -> None:
    """Encode and decode once: some faults of a tokenizer's files show only in use."""
    if type(tokenizer.model_max_length) not in (int, float):
        raise ValueError(
            f"`model_max_length` is {shorten(repr(tokenizer.model_max_length), 100)}; it must be a number"
        )
    # Without an unknown token, a vocabulary may be unable to encode any given text.
    ids = tokenizer("a" if tokenizer.unk_token else "")["input_ids"]
    tokenizer.batch_decode([ids], skip_special_tokens=True)


def _check_tokenizer_files(folder: Path) -> None:
    """Raise a ValueError that names the first tokenizer file that is damaged on its own, if any."""
    for file in sorted(folder.glob("*.json")):
        if file.name in (CONFIG_NAME, GENERATION_CONFIG_NAME):
            continue
        content = read_json_object(file, SAVE_AGAIN)
        if file.name.endswith("tokenizer.json") and content != json.loads(PLACEHOLDER_TOKENIZER_JSON):
            with as_value_errors(f"{file} is not a readable tokenizer file; {SAVE_AGAIN}: "):
                Tokenizer.from_file(str(file)).encode("a")


def check_finite(model: nn.Module, where: str) -> None:
    """Raise a ValueError that begins with `where` if a weight or buffer of the model has NaNs or infinities."""
    for name, weight in chain(model.named_parameters(), model.named_buffers()):
        if is_finite(weight):
            continue
        count = int((~torch.isfinite(weight)).sum())
        # Finite numbers of other dtypes overflow in float16 beyond 65504.
        numbers = f"{count} of {weight.numel()} numbers in {name}"
        remedy = " or, if they overflow, another dtype than float16" if weight.dtype == torch.float16 else ""
        raise ValueError(f"{where}: {numbers} are NaN or infinite; use another checkpoint{remedy}")


def _resolve(name: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return the name, or its cache folder if the Hub cannot be reached; raise a ValueError if there is neither.

    Given the name, `from_pretrained` would retry each file for half a minute, cached or not.
    """
    if os.path.isdir(name):
        check_links(name)
        return name
    if os.path.exists(name):
        if str(name).endswith(PICKLES):
            raise ValueError(f"it is a file; {_how_to_convert(name)}")
        raise ValueError("it is a file; name the folder that holds it")
    if not HUB_NAME.fullmatch(str(name)):
        raise ValueError("there is no such folder; check the path")
    try:
        get_hf_file_metadata(hf_hub_url(str(name), CONFIG_NAME))
    except HfHubHTTPError:
        # `from_pretrained` explains the Hub's answer better.
        pass
    except (HTTPError, OSError) as error:
        cached = try_to_load_from_cache(str(name), CONFIG_NAME)
        if cached is None:
            raise ValueError(f"there is no such folder, and the Hub cannot be reached: {one_line(error)}") from error
        # A sentinel, not a path, if the cache records that the repository has no config.json, as for a lone tokenizer.
        if isinstance(cached, str):
            logger.warning_once(f"{name}: the Hub cannot be reached; using the cached copy")
            return Path(cached).parent
    return name


def _check_converted(folder: Path) -> None:
    """Raise a ValueError if a folder holds a source checkpoint that was not converted to transformers."""
    files = (CONFIG_NAME, ADAPTER_CONFIG, *TOKENIZER_FILES)
    if not folder.is_dir() or any((folder / name).is_file() for name in files):
        return
    names = sorted(path.name for path in folder.iterdir())
    weights = next((name for name in names if name.endswith(PICKLES)), None)
    if weights and not any(name.endswith(".safetensors") for name in names):
        raise ValueError(f"it holds {weights}, but no {CONFIG_NAME}; {_how_to_convert(folder)}")


def _how_to_convert(source: str | os.PathLike[str]) -> str:
    command = f"vanilla-transformer convert --source {shlex.quote(str(source))} --output_dir NEW_FOLDER"
    return f"if these are weights of another code base, convert them first: `{command}`"


@contextmanager
def _one_line_errors(what: str, on_code: str = NEEDS_TRUST) -> Iterator[None]:
    """Turn any error into a one-line ValueError, with our own message where code would have to run."""
    with as_value_errors(f"{what}: "):
        try:
            yield
        except UnpicklingError:
            # torch's message advises unpickling anyway.
            raise ValueError(PICKLE) from None
        except Exception as error:
            if needs_trust(error):
                raise ValueError(on_code) from error
            raise


def needs_trust(error: BaseException) -> bool:
    """Whether transformers refused to run code that comes with a model or tokenizer."""
    # The placeholder tokenizer.json of a tokenizer pair names the argument too, without backticks.
    return "`trust_remote_code=True`" in str(error)


@contextmanager
def without_message(module: str, text: str) -> Iterator[None]:
    """Drop log records of a transformers module that contain the text."""

    def drop(record: LogRecord) -> bool:
        return text not in record.getMessage()

    # Not by raising the logger's level: transformers consults it for other checks and messages.
    source: Any = logging.get_logger(f"transformers.{module}")
    source.addFilter(drop)
    try:
        yield
    finally:
        source.removeFilter(drop)


def _first(names: list[str]) -> str:
    """List the first names and count the rest."""
    more = f" and {len(names) - MAX_NAMED_WEIGHTS} more" if len(names) > MAX_NAMED_WEIGHTS else ""
    return ", ".join(shorten(name, 200) for name in names[:MAX_NAMED_WEIGHTS]) + more
