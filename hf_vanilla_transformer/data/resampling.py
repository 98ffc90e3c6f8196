"""Re-tokenize training pairs in each epoch, with noise in their texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from .augmentation import Noise
from .encoding import NO_LIMITS, LengthLimits, Prefixes, encode_pairs
from .reading import PAIR_FEATURES, TEXT_COLUMNS


class Resampling:
    """Collator that re-tokenizes the pairs that noise changes in an epoch.

    Args:
        tokenizer: Tokenizer of the pairs.
        noise: Noise for the texts.
        limits: Maximum lengths in tokens. A pair that would exceed them keeps its tokens, as does one whose target
            would get more unknown tokens.
        collate: Turns rows into a batch.
        prefixes: Source prefix of each part.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        noise: Noise,
        limits: LengthLimits = NO_LIMITS,
        collate: Callable[[list[Any]], Any] = list,
        prefixes: Prefixes = (),
    ) -> None:
        self.tokenizer, self.noise, self.limits, self.collate = tokenizer, noise, limits, collate
        self.prefixes = prefixes
        # In shared memory, so that persistent workers see a new epoch too.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        return self.collate(self.resample(rows, int(self._epoch)))

    def resample(self, rows: Sequence[Mapping[str, Any]], epoch: int) -> list[dict[str, Any]]:
        """Return rows of `tokenize_pairs(..., keep_text=True)` with the tokens of an epoch.

        A truncated pair, whose texts are None, keeps its tokens.
        """
        names = ("input_ids", "labels", "alignments")
        resampled = [{name: row[name] for name in names if name in row} for row in rows]
        with_text = [i for i, row in enumerate(rows) if row["source"] is not None]
        texts = {name: [rows[i][name] for i in with_text] for name in TEXT_COLUMNS if name in rows[0]}
        selected, texts = self._selected(texts, epoch)
        if selected:
            encoded = encode_pairs(self.tokenizer, texts, self.prefixes)
            for k, *columns in zip(selected, *encoded.values(), strict=True):
                pair, i = dict(zip(encoded, columns, strict=True)), with_text[k]
                if self._fits(pair, rows[i]):
                    resampled[i] = pair
        return resampled

    def _selected(self, texts: dict[str, list[Any]], epoch: int) -> tuple[list[int], dict[str, list[Any]]]:
        """Return the indices of the pairs that noise changes, and their texts."""
        noisy = self.noise(texts, epoch)
        rows = range(len(texts["source"]))
        selected = [k for k in rows if any(noisy[side][k] != texts[side][k] for side in PAIR_FEATURES)]
        return selected, {name: [column[k] for k in selected] for name, column in noisy.items()}

    def _fits(self, pair: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
        unknown, lengths = self.tokenizer.unk_token_id, (len(pair["input_ids"]), len(pair["labels"]))
        return pair["labels"].count(unknown) <= own["labels"].count(unknown) and all(
            limit is None or length <= limit for length, limit in zip(lengths, self.limits, strict=False)
        )
