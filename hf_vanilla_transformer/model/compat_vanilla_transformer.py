"""What differs between the supported releases of transformers.

5.24 renames `past_key_values` to `cache`: what `generate()` passes, mask functions and layers take, and outputs have.
"""

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from transformers import __version__
from transformers.modeling_outputs import Seq2SeqLMOutput

# Both names of the keys and values of earlier tokens; `forward` and `generate()` take either.
CACHE_NAMES = ("past_key_values", "cache")

TESTED = "this model was tested with transformers 5.17 to 5.24"
VERSIONS = f"transformers {__version__}, torch {torch.__version__}"
REMEDY = f"{TESTED}; install one of these, or a newer release of the model's code"


def cache_name(names: list[str]) -> str:
    """Return the cache's name among the fields of an output of the installed transformers."""
    for name in CACHE_NAMES:
        if name in names:
            return name
    raise ImportError(f"the outputs of {VERSIONS} have neither {' nor '.join(map(repr, CACHE_NAMES))}; {REMEDY}")


# The name that the installed transformers uses.
CACHE = cache_name([field.name for field in fields(Seq2SeqLMOutput)])


def either(past_key_values: Any, cache: Any) -> Any:
    """Return the cache, given by one of its names or by none."""
    if past_key_values is None:
        return cache
    if cache is not None and cache is not past_key_values:
        raise ValueError("`past_key_values` and `cache` are two names of one argument; pass only one of them.")
    return past_key_values


def pop_cache(kwargs: dict[str, Any]) -> Any:
    """Take the cache out of keyword arguments, by either name."""
    return either(kwargs.pop("past_key_values", None), kwargs.pop("cache", None))


def check_step(input_ids: Tensor, length: int | None, cache: Any) -> None:
    """Check that a step of `generate()` that decodes the last `length` of the tokens (B, T) has the others cached."""
    if length is None or length >= input_ids.shape[1]:
        return
    # The length of a static cache is on its device, and reading it would wait.
    layers = () if cache is None else getattr(cache, "self_attention_cache", cache).layers
    if not layers or not layers[0].is_initialized:
        state = "no cache" if cache is None else "an empty cache"
        raise RuntimeError(
            f"`generate()` decodes {length} of {input_ids.shape[1]} target tokens and passes {state} of the others: "
            f"the output would be wrong. Installed are {VERSIONS}; {REMEDY}, or pass `use_cache=False`."
        )
