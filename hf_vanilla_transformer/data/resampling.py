"""Training pairs that are tokenized anew in each epoch: with noise in their texts, or by BPE-dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from .augmentation import Noise
from .bpe_dropout import DroppingTokenizer
from .encoding import NO_LIMITS, LengthLimits, Prefixes, encode_pairs
from .reading import PAIR_FEATURES, TEXT_COLUMNS


class Resampling:
    """Collator that tokenizes pairs anew in each epoch.

    Args:
        tokenizer: Of the pairs; one with dropout tokenizes all of them, another those that the noise changes.
        noise: Changes their texts.
        limits: Most tokens of each side; a pair that would have more keeps its own tokens, as does one whose target
            would have more unknown tokens.
        collate: Makes a batch of rows.
        prefixes: What sources begin with, by part.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | DroppingTokenizer,
        noise: Noise | None = None,
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

        A truncated pair, whose texts are None, keeps its own.
        """
        names = ("input_ids", "labels", "alignments")
        resampled = [{name: row[name] for name in names if name in row} for row in rows]
        with_text = [i for i, row in enumerate(rows) if row["source"] is not None]
        texts = {name: [rows[i][name] for i in with_text] for name in TEXT_COLUMNS if name in rows[0]}
        drawn, texts = self._drawn(texts, epoch)
        if drawn:
            encoded = encode_pairs(self.tokenizer, texts, self.prefixes)
            for k, *columns in zip(drawn, *encoded.values(), strict=True):
                pair, i = dict(zip(encoded, columns, strict=True)), with_text[k]
                if self._fits(pair, rows[i]):
                    resampled[i] = pair
        return resampled

    def _drawn(self, texts: dict[str, list[Any]], epoch: int) -> tuple[list[int], dict[str, list[Any]]]:
        """Return which pairs are tokenized anew, and their texts."""
        noisy = self.noise(texts, epoch) if self.noise else texts
        drawn = [*range(len(texts["source"]))]
        if isinstance(self.tokenizer, DroppingTokenizer):
            self.tokenizer.set_epoch(epoch)
        else:
            drawn = [k for k in drawn if any(noisy[side][k] != texts[side][k] for side in PAIR_FEATURES)]
        return drawn, {name: [column[k] for k in drawn] for name, column in noisy.items()}

    def _fits(self, pair: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
        unknown, lengths = self.tokenizer.unk_token_id, (len(pair["input_ids"]), len(pair["labels"]))
        return pair["labels"].count(unknown) <= own["labels"].count(unknown) and all(
            limit is None or length <= limit for length, limit in zip(lengths, self.limits, strict=False)
        )
