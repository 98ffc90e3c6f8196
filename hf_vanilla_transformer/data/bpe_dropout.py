"""BPE-dropout: training pairs split into other tokens each time they are seen (Provilkov et al. 2020)."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast


class BpeDropout:
    """Collator that tokenizes pairs anew, each merge left out with a probability.

    The tokenizers library draws from a generator that cannot be seeded: two runs differ, whatever their seed.

    Args:
        collate: Makes a batch of the rows, which then have other `input_ids` and `labels`.
        tokenizer: A fast tokenizer whose vocabularies were learned by BPE; it stays as it is.
        probability: Of leaving out a merge.
        max_length: Most tokens of a side, the end token included; a side that would have more keeps its own tokens.

    Raises:
        ValueError: The tokenizer is none of BPE.
    """

    def __init__(
        self,
        collate: Callable[[list[Any]], Any],
        tokenizer: PreTrainedTokenizerBase,
        probability: float,
        max_length: int | None = None,
    ) -> None:
        self.collate = collate
        self.tokenizer = with_bpe_dropout(tokenizer, probability)
        self.max_length = max_length

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Make a batch.

        Args:
            rows: `input_ids`, `labels`, and the texts they came from, `source` and `target`.
        """
        encoded = self.tokenizer(
            [row["source"] for row in rows],
            text_target=[row["target"] for row in rows],
            return_attention_mask=False,
            verbose=False,
        )
        columns = {name: encoded[name] for name in ("input_ids", "labels")}
        return self.collate(
            [{name: self._fitting(ids[i], row[name]) for name, ids in columns.items()} for i, row in enumerate(rows)]
        )

    def _fitting(self, ids: list[int], own: list[int]) -> list[int]:
        return own if self.max_length is not None and len(ids) > self.max_length else ids


def with_bpe_dropout(tokenizer: PreTrainedTokenizerBase, probability: float) -> PreTrainedTokenizerFast:
    """Return a copy of a tokenizer that leaves out merges.

    Raises:
        ValueError: The tokenizer is none of BPE.
    """
    copied = copy.deepcopy(tokenizer)
    if not isinstance(copied, PreTrainedTokenizerFast):
        raise ValueError(f"`bpe_dropout`: {type(tokenizer).__name__} has no merges; leave it out, or train BPE")
    # One vocabulary, or the source's and the target's.
    for side in (copied, getattr(copied, "target_tokenizer", copied)):
        model = side.backend_tokenizer.model
        if not isinstance(model, models.BPE):
            kind = type(model).__name__
            raise ValueError(f"`bpe_dropout` needs a vocabulary of BPE, not {kind}; leave it out, or train BPE")
        model.dropout = probability
    return copied


__all__ = ["BpeDropout", "with_bpe_dropout"]
