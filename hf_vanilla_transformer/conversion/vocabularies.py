"""Build tokenizers from the vocabularies of source checkpoints."""

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from ..errors import as_value_errors
from ..files import read_lines
from ..model.tokenization_vanilla_transformer import VanillaTransformerSharedTokenizer, VanillaTransformerTokenizer
from .rules import SPECIAL_ID_FIELDS, Layout

# Token to id, tokens in id order, or a file: see `WordVocabulary.load`.
Vocabulary = Mapping[str, int] | Sequence[str] | str | os.PathLike[str]

# fairseq's dictionaries have counts and omit the first four tokens.
FAIRSEQ_LINE = re.compile(r"[^ \t]+ \d+( #fairseq:overwrite)?")
FAIRSEQ_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")

UNKNOWN = ("<unk>", "[UNK]", "<UNK>", "UNK", "unk", "<|unk|>")


@dataclass(frozen=True)
class WordVocabulary:
    """Tokens in id order, their name in messages, and their tokenizer, if any."""

    name: str
    tokens: tuple[str, ...]
    backend: Tokenizer | None = None

    @classmethod
    def load(cls, vocabulary: Vocabulary, name: str) -> "WordVocabulary":
        """Load a token-to-id mapping, tokens in id order, or a file.

        A file is JSON of either, a tokenizer file of the `tokenizers` library, text with one token per line, or a
        fairseq dictionary.

        Raises:
            ValueError: The file cannot be read, or an id is missing, duplicate or not an integer.
        """
        content: Any = vocabulary
        if isinstance(vocabulary, (str, os.PathLike)):
            name = f"{name} {os.fspath(vocabulary)}"
            content = _read(Path(vocabulary), name)
        if isinstance(content, Tokenizer):
            return cls(name, _in_order(content.get_vocab(with_added_tokens=True), name), content)
        return cls(name, _in_order(content, name))

    @property
    def unknown(self) -> str | None:
        """The unknown token, in one of its usual spellings, or None."""
        return next((token for token in UNKNOWN if token in self.tokens), None)

    def align(
        self, special: Mapping[str, int], never_read: Collection[str] = ()
    ) -> tuple["WordVocabulary", list[int | None]]:
        """Give special tokens the ids that they have in the target vocabulary.

        A special token swaps places with the token at its new id. A missing one whose id is past the end is added
        there, and placeholders fill the gap. Any other missing one, if texts of this side never contain it, replaces
        the word at its id, which moves to the end.

        Args:
            special: Token to wanted id.
            never_read: Special tokens that texts of this side never contain.

        Returns:
            The aligned vocabulary, and the old id of each new one; None for added tokens and placeholders.

        Raises:
            ValueError: Another token has the id of a missing one, or a tokenizer file would have to be renumbered.
        """
        tokens: list[str] = list(self.tokens)
        old: list[int | None] = list(range(len(tokens)))
        for token, wanted in special.items():
            while len(tokens) <= wanted:
                old.append(None)
                tokens.append(f"<unused-{len(tokens)}>")
            if token in tokens:
                index = tokens.index(token)
                tokens[index], tokens[wanted] = tokens[wanted], tokens[index]
                old[index], old[wanted] = old[wanted], old[index]
            elif old[wanted] is None:
                tokens[wanted] = token
            elif token in never_read:
                tokens.append(tokens[wanted])
                old.append(old[wanted])
                tokens[wanted], old[wanted] = token, None
            else:
                raise ValueError(
                    f"{self.name} has no {token!r}, and its id in the target vocabulary, {wanted}, belongs to "
                    f"{tokens[wanted]!r}; use the same special tokens in both"
                )
        aligned = replace(self, tokens=tuple(tokens))
        if self.backend is not None and aligned.tokens != self.tokens:
            raise ValueError(
                f"{self.name} is a tokenizer whose special tokens ({', '.join(special)}) have other ids than in the "
                "target vocabulary; pass the tokens as a dict or list, which can be renumbered"
            )
        return aligned, old

    def tokenizer(
        self, special: Mapping[str, str], prefix: Iterable[str] = (), suffix: Iterable[str] = ()
    ) -> VanillaTransformerSharedTokenizer:
        """Return a tokenizer that splits as its file does, or else at whitespace, and adds `prefix` and `suffix`."""
        prefix, suffix = list(prefix), list(suffix)
        backend = self._copy_backend()
        backend.post_processor = processors.TemplateProcessing(
            single=[*prefix, "$A", *suffix],
            pair=[*prefix, "$A", *suffix, "$B", *suffix],
            special_tokens=[(token, self.tokens.index(token)) for token in dict.fromkeys((*prefix, *suffix))],
        )
        return VanillaTransformerSharedTokenizer(
            tokenizer_object=backend,
            model_input_names=["input_ids", "attention_mask"],
            clean_up_tokenization_spaces=False,
            split_special_tokens=True,
            **special,
        )

    def _copy_backend(self) -> Tokenizer:
        if self.backend is not None:
            backend = Tokenizer.from_str(self.backend.to_str())
            backend.no_padding()
            backend.no_truncation()
            return backend
        words = {token: number for number, token in enumerate(self.tokens)}
        # Without an unknown token, an unknown word is an error, as in the original code.
        backend = Tokenizer(models.WordLevel(words, unk_token=self.unknown or UNKNOWN[0]))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return backend


def _read(path: Path, name: str) -> Mapping[str, int] | Sequence[str] | Tokenizer:
    lines = list(read_lines(path))
    if path.suffix != ".json":
        return _read_text(lines, name)
    try:
        content: Any = json.loads("\n".join(lines))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: not JSON ({error}); write {{token: id}}") from None
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        with as_value_errors(f"{name} is not a readable tokenizer file: "):
            return Tokenizer.from_file(str(path))
    return content


def _read_text(lines: list[str], name: str) -> list[str]:
    while lines and not lines[-1]:
        lines.pop()
    if lines and all(map(FAIRSEQ_LINE.fullmatch, lines)):
        return [*FAIRSEQ_SPECIAL, *(line.split(" ")[0] for line in lines)]
    for number, line in enumerate(lines, start=1):
        if not line or {" ", "\t"} & set(line):
            raise ValueError(f"{name}, line {number}: {line!r} is not one token; write one token per line")
    return lines


def _in_order(vocabulary: Mapping[str, int] | Sequence[str], name: str) -> tuple[str, ...]:
    """Return the tokens in id order; ids must be 0 to n - 1."""
    if isinstance(vocabulary, str) or not isinstance(vocabulary, (Mapping, Sequence)):
        raise ValueError(f"{name} holds {type(vocabulary).__name__}; write {{token: id}} or a list of tokens")
    pairs = vocabulary.items() if isinstance(vocabulary, Mapping) else ((t, n) for n, t in enumerate(vocabulary))
    tokens: dict[int, str] = {}
    seen: dict[str, int] = {}
    for token, number in pairs:
        if not isinstance(token, str) or isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"{name}: {token!r}: {number!r} is not a token with an integer id")
        if number in tokens:
            raise ValueError(f"{name}: {tokens[number]!r} and {token!r} both have id {number}; ids must be unique")
        if token in seen:
            raise ValueError(f"{name}: {token!r} has the ids {seen[token]} and {number}; list every token once")
        tokens[number], seen[token] = token, number
    if not tokens:
        raise ValueError(f"{name} is empty; write one token per line, or {{token: id}}")
    gap = next((number for number in range(len(tokens)) if number not in tokens), None)
    if gap is not None:
        raise ValueError(f"{name}: no token has id {gap}, though ids go up to {max(tokens)}; leave no gaps")
    return tuple(tokens[number] for number in range(len(tokens)))


class EmbeddingRows(NamedTuple):
    """The old row (None: zeros) for each row of the new source embeddings, notes, and the tokenizer, if any."""

    rows: Sequence[int | None]
    notes: tuple[str, ...] = ()
    tokenizer: PreTrainedTokenizerFast | None = None

    def resize(self, embeddings: Tensor) -> Tensor:
        """Reorder and extend embeddings (V, d) to these rows."""
        if list(self.rows) == list(range(len(embeddings))):
            return embeddings
        with_zeros = torch.cat([embeddings, embeddings.new_zeros(1, embeddings.shape[1])])
        return with_zeros[[len(embeddings) if row is None else row for row in self.rows]]


def load_vocabularies(
    source: Vocabulary | None, target: Vocabulary | None, layout: Layout, settings: Mapping[str, Any]
) -> tuple[WordVocabulary, WordVocabulary] | None:
    """Load the source and target vocabulary, as passed or else from the settings; None without either."""
    if source is target is None and layout.vocabulary_settings:
        stored = [settings.get(name) for name in layout.vocabulary_settings]
        source, target = stored if all(stored) else (None, None)
    if source is None:
        if target is not None:
            raise ValueError("`target_vocabulary` needs `source_vocabulary`; pass both")
        return None
    loaded = WordVocabulary.load(source, "`source_vocabulary`")
    return loaded, loaded if target is None else WordVocabulary.load(target, "`target_vocabulary`")


def fit_vocabularies(
    vocabularies: tuple[WordVocabulary, WordVocabulary] | None, fields: Mapping[str, Any], layout: Layout
) -> EmbeddingRows:
    """Align the special tokens of both sides and build the tokenizer.

    Without vocabularies, the source embeddings get rows of zeros for special tokens that only the target has.
    """
    if vocabularies is None:
        return _rows_for_special_tokens(fields)
    for vocabulary, name in zip(vocabularies, ("vocab_size", "decoder_vocab_size"), strict=True):
        if len(vocabulary.tokens) != (size := fields.get(name, fields["vocab_size"])):
            raise ValueError(
                f"{vocabulary.name} has {len(vocabulary.tokens)} tokens, but the embeddings ({name}) have {size} "
                "rows; pass the one that the model was trained with"
            )
    source, target = vocabularies
    special = _special_tokens(target, fields)
    unknown = {"unk_token": source.unknown} if source.unknown and source.unknown == target.unknown else {}
    prefix, suffix = (
        [special[f"{role}_token"] for role in roles if f"{role}_token" in special]
        for roles in (layout.source_prefix, layout.source_suffix)
    )
    never_read = {*special.values()} - {*prefix, *suffix, special.get("pad_token")}
    roles = {**special, **unknown}
    ids = {token: target.tokens.index(token) for token in roles.values()}
    source, rows = source.align(ids, never_read)
    notes = ["special tokens: " + ", ".join(f"{role} {token!r}" for role, token in special.items())]
    if rows != list(range(fields["vocab_size"])):
        notes.insert(0, "source ids were renumbered so that special tokens have the same ids on both sides")
    notes.append(f"a source is encoded as {' '.join([*prefix, '...', *suffix])}, as in the code of {layout.name}")
    return EmbeddingRows(rows, tuple(notes), _tokenizer(source, target, roles, prefix, suffix))


def _rows_for_special_tokens(fields: Mapping[str, Any]) -> EmbeddingRows:
    size = fields["vocab_size"]
    last = max((fields[name] for name in SPECIAL_ID_FIELDS if isinstance(fields.get(name), int)), default=0)
    if not size <= last < fields.get("decoder_vocab_size", last + 1):
        return EmbeddingRows(range(size))
    added = last + 1 - size
    note = f"{added} rows of zeros were added to the source embeddings for the special tokens"
    return EmbeddingRows([*range(size), *[None] * added], (note,))


def _special_tokens(target: WordVocabulary, fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokens by role ("pad_token", ...)."""
    special: dict[str, str] = {}
    for role in ("pad", "bos", "eos"):
        number = fields.get(f"{role}_token_id")
        number = number[0] if isinstance(number, list) else number
        if number is None:
            continue
        if not 0 <= number < len(target.tokens):
            raise ValueError(
                f"{target.name} has ids up to {len(target.tokens) - 1}, so {number} cannot be the {role} token; pass "
                f"its id, such as `{role}_token_id=0`"
            )
        special[f"{role}_token"] = target.tokens[number]
    return special


def _tokenizer(
    source: WordVocabulary, target: WordVocabulary, roles: Mapping[str, str], prefix: list[str], suffix: list[str]
) -> PreTrainedTokenizerFast:
    """Return a tokenizer pair, or one tokenizer if both sides have the same words and special tokens."""
    end = [roles["eos_token"]] if "eos_token" in roles else []
    source_tokenizer = source.tokenizer(roles, prefix, suffix)
    if (source.tokens, prefix, suffix) == (target.tokens, [], end):
        return source_tokenizer
    return VanillaTransformerTokenizer.from_pair(source_tokenizer, target.tokenizer(roles, suffix=end))
