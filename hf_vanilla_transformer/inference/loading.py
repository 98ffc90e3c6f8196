"""Loading a model whole: every weight comes from its folder, has the right shape and is finite."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from logging import Filter, LogRecord
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HTTPError
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

from ..errors import one_line
from ..model.hub_code_vanilla_transformer import MODEL_TYPE

logger = logging.get_logger(__name__)

# How many weights a message names before it counts the rest.
NAMED_WEIGHTS = 3

# What a model's name on the Hub looks like; "gpt2" has no owner.
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")

# What an exported model is known by, and how to use it.
EXPORTED = {
    "model.bin": "it was exported to CTranslate2; translate by --backend ctranslate2",
    "encoder.onnx": "it was exported to ONNX; translate by scripts/onnx_translate.py",
}


def load_model(
    name: str | os.PathLike[str], auto_class: Any = AutoModelForSeq2SeqLM, new: tuple[str, ...] = (), **options: Any
) -> PreTrainedModel:
    """Return a model with the weights of its folder, and no others.

    `from_pretrained` itself fills weights that it does not find with random numbers, and only warns.

    Args:
        name: Folder of the model, or its name on the Hub.
        auto_class: The Auto class that loads it.
        new: Prefixes of weights that may be missing and start random: a head to be trained.
        **options: Those of `from_pretrained`, such as `dtype` or `trust_remote_code`.

    Raises:
        ValueError: There is no such model, or it is damaged; weights are missing, of another shape, or not finite; or
            a model of this package does not use all of them.
    """
    with _one_error(f"model {name} cannot be loaded"), _without_report():
        folder = _located(name)
        _check_not_exported(Path(folder))
        model, found = auto_class.from_pretrained(
            folder, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
        # Generation settings that cannot be read are left out there without a word.
        if Path(folder, GENERATION_CONFIG_NAME).is_file():
            GenerationConfig.from_pretrained(folder)
    faults = []
    unused = sorted(found["unexpected_keys"])
    if missing := sorted(key for key in found["missing_keys"] if not key.startswith(new)):
        faults.append(f"no weights of {_named(missing)}" + (f" (but of {_named(unused)})" if unused else ""))
    elif unused and model.config.model_type == MODEL_TYPE:
        faults.append(f"weights that its configuration has no place for: {_named(unused)}")
    elif unused:
        logger.warning(f"model {name} has weights that {type(model).__name__} does not use: {_named(unused)}")
    if mismatched := sorted(found["mismatched_keys"]):
        shapes = [f"{key} {tuple(stored)}, not {tuple(wanted)}" for key, stored, wanted in mismatched]
        faults.append(f"weights of another shape: {_named(shapes)}")
    if faults:
        raise ValueError(f"model {name} has {' and '.join(faults)}; save or fetch it again")
    check_finite(model, f"model {name}")
    return model


def load_config(name: str | os.PathLike[str]) -> PreTrainedConfig:
    """Return the configuration of a model in a folder or on the Hub, or raise a ValueError of one line."""
    with _one_error(f"configuration of {name} cannot be loaded"):
        return AutoConfig.from_pretrained(_located(name))


def load_tokenizer(name: str | os.PathLike[str], **options: Any) -> PreTrainedTokenizerBase:
    """Return a tokenizer.

    Args:
        name: Its folder, or its name on the Hub.
        **options: Those of `from_pretrained`, such as `trust_remote_code`.

    Raises:
        ValueError: There is no such tokenizer, or it is damaged or has no tokens but special ones.
    """
    with _one_error(f"tokenizer {name} cannot be loaded"):
        tokenizer = AutoTokenizer.from_pretrained(_located(name), **options)
        # Without its files some families get an empty vocabulary.
        if len(tokenizer) <= len(tokenizer.all_special_tokens):
            raise ValueError("its files are missing; save or fetch it again")
    return tokenizer


def check_finite(model: nn.Module, where: str) -> None:
    """Raise a ValueError that begins with `where` if a weight of the model is NaN or infinite."""
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            count = int((~torch.isfinite(weight)).sum())
            raise ValueError(
                f"{where}: {count} of {weight.numel()} numbers in {name} are NaN or infinite; use another checkpoint"
            )


def _located(name: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """Return what to load by: the name, or its folder in the cache where the Hub cannot be reached.

    By the name, `from_pretrained` would then try again for half a minute a file, cached or not.

    Raises:
        ValueError: There is no such folder, and the Hub cannot be asked for it.
    """
    if os.path.isdir(name):
        return name
    if os.path.exists(name):
        raise ValueError("it is a file; name the folder that holds it")
    if not HUB_NAME.fullmatch(str(name)):
        raise ValueError("there is no such folder; check the path")
    try:
        get_hf_file_metadata(hf_hub_url(str(name), CONFIG_NAME))
    except HfHubHTTPError:
        # What the Hub's answer means, `from_pretrained` says better.
        pass
    except (HTTPError, OSError) as error:
        cached = try_to_load_from_cache(str(name), CONFIG_NAME)
        if cached is None:
            raise ValueError(f"there is no such folder, and the Hub cannot be asked for it: {error}") from error
        # Or the cache holds that the Hub has no such file: that of a tokenizer alone.
        if isinstance(cached, str):
            logger.warning_once(f"{name}: the Hub cannot be asked, so what its cache holds is used")
            return Path(cached).parent
    return name


def _check_not_exported(folder: Path) -> None:
    """Raise a ValueError if a folder holds the model in a format that transformers cannot read."""
    for file, remedy in EXPORTED.items():
        if (folder / file).is_file() and not any(folder.glob("*.safetensors")):
            raise ValueError(remedy)


@contextmanager
def _one_error(what: str) -> Iterator[None]:
    """Turn whatever goes wrong into a ValueError of one line: damaged files raise errors of many kinds."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what}: {one_line(error)}") from error


class _NoReport(Filter):
    """Drops the table of missing and unexpected weights that transformers logs: `load_model` names them."""

    def filter(self, record: LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()


@contextmanager
def _without_report() -> Iterator[None]:
    # Not by the logger's level, by which transformers chooses what else to check and to log.
    source, no_report = logging.get_logger("transformers.modeling_utils"), _NoReport()
    source.addFilter(no_report)
    try:
        yield
    finally:
        source.removeFilter(no_report)


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_WEIGHTS} more" if len(names) > NAMED_WEIGHTS else ""
    return ", ".join(names[:NAMED_WEIGHTS]) + more


__all__ = ["check_finite", "load_config", "load_model", "load_tokenizer"]
