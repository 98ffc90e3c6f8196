"""Differences between the supported releases of transformers.

5.24 renames `past_key_values` to `cache` in `generate()`, mask functions, layers and outputs.
"""

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers import __version__
from transformers.modeling_outputs import Seq2SeqLMOutput

# Both names of the key-value cache; `forward` and `generate()` accept either.
CACHE_NAMES = ("past_key_values", "cache")

TESTED = "this model was tested with transformers 5.17 to 5.24"
VERSIONS = f"transformers {__version__}, torch {torch.__version__}"
REMEDY = f"{TESTED}; install one of these, or a newer release of the model's code"


def cache_name(names: list[str]) -> str:
    """Return the cache's name among the field names of an output."""
    for name in CACHE_NAMES:
        if name in names:
            return name
    raise ImportError(f"the outputs of {VERSIONS} have neither {' nor '.join(map(repr, CACHE_NAMES))}; {REMEDY}")


# The cache's name in the installed transformers.
CACHE = cache_name([field.name for field in fields(Seq2SeqLMOutput)])


def cache_argument(past_key_values: Any, cache: Any) -> Any:
    """Return the cache passed under either name, or None."""
    if past_key_values is None:
        return cache
    if cache is not None and cache is not past_key_values:
        raise ValueError("`past_key_values` and `cache` are two names of one argument; pass only one of them.")
    return past_key_values


def pop_cache(kwargs: dict[str, Any]) -> Any:
    """Remove the cache from keyword arguments, under either name, and return it."""
    return cache_argument(kwargs.pop("past_key_values", None), kwargs.pop("cache", None))


def check_step(input_ids: Tensor, length: int | None, cache: Any) -> None:
    """Check that `generate()` has a cache of earlier tokens if it decodes only the last `length` of (B, T)."""
    if length is None or length >= input_ids.shape[1]:
        return
    # A static cache keeps its length on the device; reading it would sync.
    layers = () if cache is None else getattr(cache, "self_attention_cache", cache).layers
    if not layers or not layers[0].is_initialized:
        state = "no cache" if cache is None else "an empty cache"
        raise RuntimeError(
            f"`generate()` decodes {length} of {input_ids.shape[1]} target tokens but passes {state} for the others: "
            f"the output would be wrong. Installed are {VERSIONS}; {REMEDY}, or pass `use_cache=False`."
        )
