"""What is wrong with the input of a model, said before an index error deep inside would say less.

Values are not looked at while a graph is compiled, exported or transformed, nor on an accelerator, which would have to
wait.
"""

from typing import Any

import torch
from torch import Tensor

from .cpu_ops_vanilla_transformer import is_plain

# What labels, and decoder input made of them, have where there is no token.
IGNORE_INDEX = -100

USE_THE_TOKENIZER = "use the tokenizer that the model was trained with, or resize the model's vocabulary"

NO_CACHE = f"{IGNORE_INDEX} marks padding of labels: give the labels too, or `use_cache=False`, or pad on the right"


def as_ids(ids: Tensor, name: str) -> Tensor:
    """Return ids of any integer type in one that embeddings take.

    Raises:
        ValueError: The ids are no integers.
    """
    if ids.dtype in (torch.int64, torch.int32):
        return ids
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"{name} has the type {ids.dtype}, but ids are integers: convert it, as by `.long()`.")
    return ids.long()


def check_ids(ids: Tensor, size: int | None, name: str, remedy: str = USE_THE_TOKENIZER) -> None:
    """Raise for an id outside of the vocabulary.

    Args:
        ids: Ids of any shape.
        size: Number of tokens, or classes, that there are; None if that is not known.
        name: What to call the ids in the error.
        remedy: What to do about it.

    Raises:
        ValueError: An id is negative, or not below `size`.
    """
    if size is None or not ids.numel() or not is_plain(ids):
        return
    lowest, highest = ids.aminmax()
    if lowest < 0 or highest >= size:
        place = ((ids < 0) | (ids >= size)).nonzero()[0].tolist()
        wrong = ids[tuple(place)].item()
        remedy = NO_CACHE if wrong == IGNORE_INDEX else remedy
        raise ValueError(f"{name} has {wrong} at {place}, but ids go from 0 to {size - 1}: {remedy}.")


def check_rows(rows: int, sources: int) -> None:
    """Raise for target rows that do not share out among the encoded sources."""
    if rows != sources and rows % sources:
        raise ValueError(
            f"the decoder's input has {rows} rows for {sources} encoded sources: give as many, or the same number for "
            "each."
        )


def check_mask(mask: Tensor | None, rows: int, length: int | Tensor, name: str, cache: Any = None) -> None:
    """Raise for a mask that does not say of every token whether it is padding.

    Args:
        mask: The mask (B, L), or one of scores (B, 1, T, S), which may have any size; none passes.
        rows: Sentences in the batch [B].
        length: Tokens of each, cached ones included [L].
        name: What to call the mask in the error.
        cache: The cache of earlier tokens; where it is of fixed size, a mask may be as long as that.

    Raises:
        ValueError: The mask has another shape, or is one of scores but neither boolean nor to be added to them.
    """
    if mask is None or torch.compiler.is_compiling():
        return
    if mask.dim() == 4:
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise ValueError(
                f"{name} has the type {mask.dtype} and the shape {tuple(mask.shape)}, but a mask of four dimensions "
                "is boolean, true where a query may look, or of floats that are added to the scores: convert it."
            )
        return
    if tuple(mask.shape) == (rows, int(length)):
        return
    if cache is None or tuple(mask.shape) != (rows, cache.get_max_length()):
        raise ValueError(
            f"{name} has the shape {tuple(mask.shape)}, but the shape of the tokens is {(rows, int(length))}, cached "
            "ones included: give 1 for each token and 0 for padding."
        )
