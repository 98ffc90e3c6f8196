"""What is wrong with the input of a model, said before an index error deep inside would say less.

Nothing is looked at while a graph is compiled or exported, nor are ids on an accelerator, which would have to wait.
"""

from typing import Any

import torch
from torch import Tensor

USE_THE_TOKENIZER = "use the tokenizer that the model was trained with, or resize the model's vocabulary"


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
    if size is None or torch.compiler.is_compiling() or ids.device.type != "cpu" or not ids.numel():
        return
    lowest, highest = ids.aminmax()
    if lowest < 0 or highest >= size:
        place = ((ids < 0) | (ids >= size)).nonzero()[0].tolist()
        raise ValueError(
            f"{name} has {ids[tuple(place)].item()} at {place}, but ids go from 0 to {size - 1}: {remedy}."
        )


def check_mask(mask: Tensor | None, rows: int, length: int | Tensor, name: str, cache: Any = None) -> None:
    """Raise for a 2-D mask that does not say of every token whether it is padding.

    Args:
        mask: The mask (B, L); none, or one of more dimensions, passes.
        rows: Sentences in the batch [B].
        length: Tokens of each, cached ones included [L].
        name: What to call the mask in the error.
        cache: The cache of earlier tokens; where it is of fixed size, a mask may be as long as that.

    Raises:
        ValueError: The mask has another shape.
    """
    if torch.compiler.is_compiling() or mask is None or mask.dim() != 2 or tuple(mask.shape) == (rows, int(length)):
        return
    if cache is None or tuple(mask.shape) != (rows, cache.get_max_length()):
        raise ValueError(
            f"{name} has the shape {tuple(mask.shape)}, but the shape of the tokens is {(rows, int(length))}, cached "
            "ones included: give 1 for each token and 0 for padding."
        )
