"""Feature columns: tags beside the text of a source, such as the grammar of an inflected form, each one token.

A source with features is a line of cells separated by tabs, the text first, then the columns in the order of training.
Only the tokenizer splits cells into tags.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import datasets

from ..errors import DataError, shorten
from ..model.tokenization_vanilla_transformer import tags_of
from .arguments import DataArguments


@dataclass(frozen=True)
class Features:
    """The feature columns of a model's sources; saved in tokenizer_config.json.

    Attributes:
        feature_columns: Number of columns.
        feature_separator: What separates the tags of a cell; None if a cell is a single tag.
    """

    feature_columns: int
    feature_separator: str | None = None

    @classmethod
    def of(cls, tokenizer: Any) -> Features | None:
        """Return the features that a tokenizer records, None for sources of text alone."""
        settings = getattr(tokenizer, "init_kwargs", {})
        columns, separator = (settings.get(name) for name in cls.__dataclass_fields__)
        return cls(columns, separator)._for(tokenizer) if columns else None

    @classmethod
    def named_by(cls, arguments: DataArguments) -> Features | None:
        """Return the features of the text that arguments select."""
        columns = arguments.feature_columns
        return cls(len(columns), arguments.feature_separator) if columns else None

    def tags(self, sources: Iterable[str]) -> list[str]:
        """Return the distinct tags of sources, sorted."""
        return sorted({tag for source in sources for tag in tags_of(source, self.feature_separator)[1]})

    def check(self, source: str, what: str = "a source") -> str:
        """Return a source; raise a DataError if it has too few or too many cells."""
        if (cells := source.count("\t") + 1) != self.feature_columns + 1:
            raise DataError(
                f"{what} has {cells} of {self.feature_columns + 1} columns: {shorten(repr(source), 80)}; write the "
                f"text and its {self.feature_columns} feature column(s), separated by tabs"
            )
        return source

    def record(self, tokenizer: Any) -> None:
        """Record the features in a tokenizer, which then reads lines of cells."""
        tokenizer.init_kwargs |= asdict(self._for(tokenizer))

    def _for(self, tokenizer: Any) -> Features:
        """Return the features; raise a DataError if a tokenizer cannot read them."""
        if not hasattr(tokenizer, "tokenized_form"):
            raise DataError(
                f"`feature_columns` need a tokenizer of this package, not {type(tokenizer).__name__}; train one"
            )
        return self


def split_features(source: str, features: Any) -> tuple[str, str]:
    """Return the text of a source, and the rest with its tab, "" if there are no features."""
    text, tab, cells = source.partition("\t") if features else (source, "", "")
    return text, tab + cells


def texts_of(sources: Iterable[str], features: Any) -> list[str]:
    """Return the texts of sources, without features."""
    return [split_features(source, features)[0] for source in sources]


def without_features(pairs: datasets.Dataset, features: Any) -> datasets.Dataset:
    """Return pairs with the texts of their sources alone."""
    if not features:
        return pairs
    return pairs.map(lambda batch: {"source": texts_of(batch["source"], features)}, batched=True)
