"""BPE-dropout: training pairs split into other tokens each time they are seen (Provilkov et al. 2020)."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .encoding import TEXT_COLUMNS, encode_pairs


class BpeDropout:
    """Collator that tokenizes pairs anew, each merge left out with a probability.

    The tokenizers library draws from a generator that cannot be seeded: two runs differ, whatever their seed.

    Args:
        collate: Makes a batch of the rows, which then have other `input_ids` and `labels`.
        tokenizer: A fast tokenizer whose vocabularies were learned by BPE; it stays as it is.
        probability: Of leaving out a merge.
        max_length: Most tokens of a side, the end token included; a pair that would have more keeps its own tokens.

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
            rows: `input_ids` and `labels`, the texts they came from, `source` and `target`, and of aligned pairs
                `alignments` and `ALIGNMENT_COLUMN`. A truncated pair, whose texts are None, keeps its tokens.
        """
        with_text = [row for row in rows if row["source"] is not None]
        texts = {name: [row[name] for row in with_text] for name in TEXT_COLUMNS if name in rows[0]}
        encoded = encode_pairs(self.tokenizer, texts) if with_text else {}
        pairs = (dict(zip(encoded, columns, strict=True)) for columns in zip(*encoded.values(), strict=True))
        return self.collate([_own(row) if row["source"] is None else self._fitting(next(pairs), row) for row in rows])

    def _fitting(self, pair: dict[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
        longest = max(len(pair["input_ids"]), len(pair["labels"]))
        return pair if self.max_length is None or longest <= self.max_length else _own(row)


def _own(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("input_ids", "labels", "alignments") if name in row}


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
