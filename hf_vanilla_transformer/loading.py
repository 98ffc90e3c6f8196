"""Loading a model whole: every weight comes from its folder, has the right shape and is finite."""

import os
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

# How many weights a message names before it counts the rest.
NAMED_WEIGHTS = 3


def load_model(name: str | os.PathLike[str], **options: Any) -> PreTrainedModel:
    """Return an encoder-decoder with the weights of its folder, and no others.

    `from_pretrained` itself fills weights that it does not find with random numbers, and only warns.

    Args:
        name: Folder of the model, or its name on the Hub.
        **options: Those of `from_pretrained`, such as `dtype` or `trust_remote_code`.

    Raises:
        ValueError: There is no such model, or it is damaged; weights are missing, of another shape, or not finite.
    """
    try:
        model, found = AutoModelForSeq2SeqLM.from_pretrained(
            name, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    except (ValueError, OSError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"model {name} cannot be loaded as an encoder-decoder: {error}") from error
    faults = []
    if missing := sorted(found["missing_keys"]):
        unknown = sorted(found["unexpected_keys"])
        faults.append(f"no weights of {_named(missing)}" + (f" (but of {_named(unknown)})" if unknown else ""))
    if mismatched := sorted(found["mismatched_keys"]):
        shapes = [f"{key} {tuple(stored)}, not {tuple(wanted)}" for key, stored, wanted in mismatched]
        faults.append(f"weights of another shape: {_named(shapes)}")
    if faults:
        raise ValueError(f"model {name} has {' and '.join(faults)}; save or fetch it again")
    check_finite(model, f"model {name}")
    return model


def check_finite(model: nn.Module, where: str) -> None:
    """Raise a ValueError that begins with `where` if a weight of the model is NaN or infinite."""
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            count = int((~torch.isfinite(weight)).sum())
            raise ValueError(
                f"{where}: {count} of {weight.numel()} numbers in {name} are NaN or infinite; use another checkpoint"
            )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_WEIGHTS} more" if len(names) > NAMED_WEIGHTS else ""
    return ", ".join(names[:NAMED_WEIGHTS]) + more


__all__ = ["check_finite", "load_model"]
