"""Tokenizers with a shared vocabulary, or with separate source and target vocabularies.

    tokenizer = VanillaTransformerTokenizer.from_pair(source_tokenizer, target_tokenizer)
    tokenizer(source_texts, text_target=target_texts)  # input_ids, attention_mask, labels
    tokenizer.batch_decode(model.generate(...), skip_special_tokens=True)

Vocabularies start with `<pad>` (id 0), `<s>` (1), `</s>` (2) and `<unk>` (3). Texts of both sides end with `</s>` and
have no start token: the model itself prepends `<s>` to the labels.
"""

import copy
import json
import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Self, cast

from tokenizers import AddedToken, Encoding, Tokenizer
from transformers import BatchEncoding, PreTrainedTokenizerFast
from transformers.utils import logging

from .hub_code_vanilla_transformer import HubCodeMixin

logger = logging.get_logger(__name__)

# The tokenizer.json of separate vocabularies. Every loader reads this file: without the class, it fails with an error
# that quotes this "version", instead of using the source vocabulary for both sides.
PLACEHOLDER_TOKENIZER_JSON = json.dumps(
    {
        "version": "VanillaTransformerTokenizer: its vocabularies are source_tokenizer.json and "
        "target_tokenizer.json; install and import hf_vanilla_transformer, or use AutoTokenizer with "
        "trust_remote_code=True where the code is in the repository",
        "added_tokens": [],
    }
)

# Stands for a tag of a source that training did not show.
UNKNOWN_TAG = "<unk>"

SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


class VanillaTransformerSharedTokenizer(HubCodeMixin, PreTrainedTokenizerFast):
    """Tokenizer with one vocabulary, for both sides or for one of a pair.

    With `split_special_tokens`, text that contains the padding, begin, end or unknown token is tokenized like any
    other, while added tokens, special or not, are still matched. Words (`is_split_into_words=True`) are encoded like
    the text that joins them with single spaces. Without this package and its code, the same files load as a
    `PreTrainedTokenizerFast`, which keeps added special tokens in decoded texts and encodes words without spaces.

    If training recorded `feature_columns`, a source is a line of cells separated by tabs: its text, then tags, which
    `feature_separator` separates within a cell. Each tag is one token.
    """

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Read tokenizer.json without conversion, which is all that `trust_remote_code` means here."""
        # Refers to code in the folder it was loaded from; saving with code writes a new one.
        kwargs.pop("auto_map", None)
        return super().convert_to_native_format(trust_remote_code=True, **kwargs)

    def _added_special_tokens(self) -> list[str]:
        """Return the special tokens that are matched in text, which are ordinary tokens to the backend."""
        own = {self.special_tokens_map.get(role) for role in SPECIAL_TOKENS}
        return [token for token in self.all_special_tokens if token not in own]

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        added, own = 0, cast(Any, self)
        for token in new_tokens:
            is_special = special_tokens or getattr(token, "special", False)
            if is_special and str(token) not in self.all_special_tokens:
                own.extra_special_tokens = [*own.extra_special_tokens, str(token)]
            if is_special and str(token) not in self._added_special_tokens():
                added += super()._add_tokens([token], True)
            else:
                added += super()._add_tokens([findable(token, is_special, self.backend_tokenizer)])
        return added

    def tokenized_form(self, source: str, hide_tags: bool = False) -> str:
        """Return a source with its tags spelled like their tokens, or hidden by spaces; other text stays the same."""
        if "\t" not in source or not self.init_kwargs.get("feature_columns"):
            return source
        text, tags = tags_of(source, self.init_kwargs.get("feature_separator"))
        # The only place that orders text and tags.
        tokens = "".join(tag_token(tag if self._has_tag(tag) else UNKNOWN_TAG) for tag in tags)
        return text + (" " * len(tokens) if hide_tags else tokens)

    def unknown_tags(self, source: str) -> list[str]:
        """Return the tags of a source that have no token."""
        _, tags = tags_of(source, self.init_kwargs.get("feature_separator"))
        return [tag for tag in tags if not self._has_tag(tag)]

    def _has_tag(self, tag: str) -> bool:
        return self.backend_tokenizer.token_to_id(tag_token(tag)) is not None

    def _encode_plus(
        self,
        text: Any,
        text_pair: Any = None,
        *args: Any,
        is_split_into_words: bool = False,
        return_tensors: Any = None,
        **kwargs: Any,
    ) -> BatchEncoding:
        base: Any = super()
        if not is_split_into_words:
            if self.init_kwargs.get("feature_columns"):
                text = _each(self.tokenized_form, text)
            return base._encode_plus(text, text_pair, *args, return_tensors=return_tensors, **kwargs)
        joined = _joined(text)
        batch = base._encode_plus(joined, text_pair and _joined(text_pair), *args, **kwargs)
        samples = _samples(text, text_pair)
        sample_indices = batch.get("overflow_to_sample_mapping", range(len(samples)))
        encodings: Any = [
            _WordEncoding(encoding, samples[i]) for encoding, i in zip(batch.encodings, sample_indices, strict=True)
        ]
        has_batch_axis = not isinstance(joined, str) or "overflow_to_sample_mapping" in batch
        if "offset_mapping" in batch:
            offsets = [encoding.offsets for encoding in encodings]
            batch["offset_mapping"] = offsets if has_batch_axis else offsets[0]
        return BatchEncoding(batch.data, encodings, return_tensors, prepend_batch_axis=not has_batch_axis)

    def _decode(self, token_ids: Any, skip_special_tokens: bool = False, *args: Any, **kwargs: Any) -> str:
        if skip_special_tokens and (added := self._added_special_tokens()):
            ids = token_ids["input_ids"] if isinstance(token_ids, dict) else token_ids
            dropped = [self.convert_tokens_to_ids(token) for token in added]
            token_ids = [index for index in ([ids] if isinstance(ids, int) else ids) if index not in dropped]
        return super()._decode(token_ids, skip_special_tokens, *args, **kwargs)


class _WordEncoding:
    """`Encoding` of joined words: words are counted as in their list, characters from the start of their word.

    The space before a word belongs to it.
    """

    def __init__(self, encoding: Encoding, sequences: Sequence[Sequence[str]]):
        for name in ("ids", "type_ids", "tokens", "attention_mask", "special_tokens_mask", "sequence_ids"):
            setattr(self, name, getattr(encoding, name))
        self.n_sequences, self.token_to_sequence = encoding.n_sequences, encoding.token_to_sequence
        self.overflowing = [_WordEncoding(overflow, sequences) for overflow in encoding.overflowing]
        starts = [list(accumulate((len(word) + 1 for word in words[:-1]), initial=0)) for words in sequences]
        self.word_ids: list[int | None] = []
        self.offsets: list[tuple[int, int]] = []
        self._words: list[tuple[int | None, int | None]] = []
        for sequence, (start, end) in zip(encoding.sequence_ids, encoding.offsets, strict=True):
            word, first = None, 0
            if sequence is not None:
                word = bisect_right(starts[sequence], start + 1) - 1
                first = starts[sequence][word]
            self.word_ids.append(word)
            self.offsets.append((max(0, start - first), max(0, end - first)))
            self._words.append((sequence, word))

    def token_to_word(self, token: int) -> int | None:
        return self.word_ids[token]

    def token_to_chars(self, token: int) -> tuple[int, int] | None:
        return None if self.word_ids[token] is None else self.offsets[token]

    def word_to_tokens(self, word: int, sequence: int = 0) -> tuple[int, int] | None:
        tokens = [i for i, pair in enumerate(self._words) if pair == (sequence, word)]
        return (tokens[0], tokens[-1] + 1) if tokens else None

    def word_to_chars(self, word: int, sequence: int = 0) -> tuple[int, int] | None:
        tokens = self.word_to_tokens(word, sequence)
        return tokens and (self.offsets[tokens[0]][0], self.offsets[tokens[1] - 1][1])

    def char_to_token(self, position: int, sequence: int = 0) -> int | None:
        tokens = zip(self._words, self.offsets, strict=True)
        inside = (
            i for i, ((own, _), (start, end)) in enumerate(tokens) if own == sequence and start <= position < end
        )
        return next(inside, None)

    def char_to_word(self, position: int, sequence: int = 0) -> int | None:
        token = self.char_to_token(position, sequence)
        return None if token is None else self.word_ids[token]


class VanillaTransformerTokenizer(VanillaTransformerSharedTokenizer):
    """Tokenizer with separate source and target vocabularies.

    Encoding uses the source vocabulary, or the target's for `text_target`. Decoding (`decode`, `batch_decode`,
    `convert_ids_to_tokens` and `convert_tokens_to_string`) uses the target vocabulary, which generated ids belong to.
    Everything else (`encode`, `tokenize`, `get_vocab`, `convert_tokens_to_ids`, `vocab_size`, `len`) uses the source
    vocabulary. For the other side use `source_tokenizer` and `target_tokenizer`, or `use_source_tokenizer=True` with
    `decode` and `convert_ids_to_tokens`. `tokens()` of an encoding needs no choice.

    A model needs `len(tokenizer)` as its `vocab_size` and `target_vocab_size` as its `decoder_vocab_size`.

    Settings such as `padding_side`, `truncation_side` and `model_max_length` apply to both sides. `add_tokens` and
    `add_special_tokens` extend both vocabularies and return the number of tokens added to the source; both kinds are
    matched in text. The padding, begin, end and unknown tokens always have the same ids on both sides.

    A saved folder contains `source_tokenizer.json`, `target_tokenizer.json`, and a `tokenizer.json` that makes any
    other loader fail with an error naming this class.

    Args:
        target_tokenizer_object: Backend of the target side (the `backend_tokenizer` of a fast tokenizer).
        target_tokenizer_file: File of the target side, instead of the object.
        **kwargs: Arguments of `PreTrainedTokenizerFast`: for the source side (`tokenizer_object`, `tokenizer_file`) or
            for both (special tokens, `padding_side`, ...).

    Raises:
        ValueError: There is no target vocabulary, its file cannot be read, or the ids of a special token differ
            between the sides.
    """

    vocab_files_names = {
        "source_tokenizer_file": "source_tokenizer.json",
        "target_tokenizer_file": "target_tokenizer.json",
    }
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, **kwargs: Any) -> None:
        target = (kwargs.pop("target_tokenizer_object", None), kwargs.pop("target_tokenizer_file", None))
        # Before the base class, which may add special tokens to both vocabularies.
        self._target_backend = _load_backend(*target)
        super().__init__(**kwargs)
        self._check_special_ids()

    @classmethod
    def from_pair(cls, source_tokenizer: PreTrainedTokenizerFast, target_tokenizer: PreTrainedTokenizerFast) -> Self:
        """Combine two tokenizers; later changes to either have no effect.

        Args:
            source_tokenizer: Tokenizer of the source side; its settings apply to both.
            target_tokenizer: Tokenizer of the target side. The smaller `model_max_length` of the two applies to both.

        Returns:
            A tokenizer for `tokenizer(source_texts, text_target=target_texts)`.

        Raises:
            ValueError: A special token has different ids in the two vocabularies.
            TypeError: One of the two is not a fast tokenizer.
        """
        for name, side in (("source_tokenizer", source_tokenizer), ("target_tokenizer", target_tokenizer)):
            if not isinstance(side, PreTrainedTokenizerFast):
                raise TypeError(f"`{name}` is of type {type(side).__name__}; pass a PreTrainedTokenizerFast")
        length = min(source_tokenizer.model_max_length, target_tokenizer.model_max_length)
        return cls(
            tokenizer_object=source_tokenizer.backend_tokenizer,
            target_tokenizer_object=target_tokenizer.backend_tokenizer,
            **shared_settings(source_tokenizer) | {"model_max_length": length},
        )

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Check that there are both vocabulary files; called by `from_pretrained`.

        Raises:
            FileNotFoundError: One of the two vocabulary files is missing.
        """
        for field, file_name in cls.vocab_files_names.items():
            if kwargs.get(field.removeprefix("source_")) is None:
                raise FileNotFoundError(
                    f"{kwargs.get('name_or_path')} holds no {file_name}, but {cls.__name__} needs a vocabulary per "
                    "side; save the tokenizer again, or load a single vocabulary with PreTrainedTokenizerFast"
                )
        return super().convert_to_native_format(trust_remote_code, **kwargs)

    @property
    def source_tokenizer(self) -> VanillaTransformerSharedTokenizer:
        """The source side as a plain tokenizer, with the current settings."""
        return self._side(self.backend_tokenizer)

    @property
    def target_tokenizer(self) -> VanillaTransformerSharedTokenizer:
        """The target side as a plain tokenizer, with the current settings."""
        return self._side(self._target_backend)

    @property
    def target_vocab_size(self) -> int:
        """Size of the target vocabulary, added tokens included; `decoder_vocab_size` of a model."""
        return self._target_backend.get_vocab_size(with_added_tokens=True)

    def __call__(
        self,
        text: Any = None,
        text_pair: Any = None,
        text_target: Any = None,
        text_pair_target: Any = None,
        *,
        max_length: int | None = None,
        max_target_length: int | None = None,
        **kwargs: Any,
    ) -> BatchEncoding:
        """Tokenize source texts, target texts, or both.

        Args:
            text: A source text or a batch.
            text_pair: Second source text, or a batch; `</s>` follows each of the two.
            text_target: A target text or a batch.
            text_pair_target: Second target text, or a batch.
            max_length: Length to truncate texts of both sides to, in tokens including `</s>`.
            max_target_length: The same for the target only.
            **kwargs: Arguments of any tokenizer: `padding`, `truncation`, `return_tensors`, ...

        Returns:
            `input_ids` and `attention_mask` of the source and, given both sides, the target ids as `labels`. Without a
            source, the target ids are `input_ids`.
        """
        if text_target is None:
            return super().__call__(text, text_pair, max_length=max_length, **kwargs)
        target_encodings = self.target_tokenizer(
            text_target,
            text_pair_target,
            max_length=max_length if max_target_length is None else max_target_length,
            **kwargs,
        )
        if text is None:
            return target_encodings
        encodings = super().__call__(text, text_pair, max_length=max_length, **kwargs)
        encodings["labels"] = target_encodings["input_ids"]
        return encodings

    def convert_ids_to_tokens(
        self, ids: Any, skip_special_tokens: bool = False, use_source_tokenizer: bool | None = None
    ) -> Any:
        """Convert one id or a list of ids to tokens of the target vocabulary, or of the source vocabulary.

        Ids do not show their side, and tools such as inseq pass those of both sides alike. They get target tokens, as
        from `MarianTokenizer`, and one warning if the source tokens differ; `use_source_tokenizer=False` avoids it.
        """
        side = self.source_tokenizer if use_source_tokenizer else self.target_tokenizer
        tokens = side.convert_ids_to_tokens(ids, skip_special_tokens)
        if use_source_tokenizer is None and tokens != self.source_tokenizer.convert_ids_to_tokens(
            ids, skip_special_tokens
        ):
            logger.warning_once(
                "`convert_ids_to_tokens` takes ids for those of target tokens; for source tokens, pass "
                "`use_source_tokenizer=True` (for target tokens, False), or use `tokenizer.source_tokenizer`"
            )
        return tokens

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Join tokens of the target vocabulary into a text."""
        return self.target_tokenizer.convert_tokens_to_string(tokens)

    def add_special_tokens(self, special_tokens_dict: Any, replace_extra_special_tokens: bool = True) -> int:
        """Add special tokens to both vocabularies; takes the arguments of the base class.

        Returns:
            The number of tokens added to the source vocabulary.

        Raises:
            ValueError: The padding, begin, end or unknown token would have different ids on the two sides; nothing is
                changed.
        """
        trial = copy.deepcopy(self)
        super(VanillaTransformerTokenizer, trial).add_special_tokens(special_tokens_dict, replace_extra_special_tokens)
        trial._check_special_ids()
        return super().add_special_tokens(special_tokens_dict, replace_extra_special_tokens)

    def _side(self, backend: Tokenizer) -> VanillaTransformerSharedTokenizer:
        # A new view on each call: settings live in one place, and no call can leave the wrong side selected.
        side = object.__new__(VanillaTransformerSharedTokenizer)
        side.__dict__.update(self.__dict__, _tokenizer=backend)
        del side.__dict__["_target_backend"]
        return side

    def _check_special_ids(self) -> None:
        for role in SPECIAL_TOKENS:
            token = self.special_tokens_map.get(role)
            ids = [backend.token_to_id(token) for backend in (self.backend_tokenizer, self._target_backend) if token]
            if len(set(ids)) > 1:
                raise ValueError(
                    f"{role} {token!r} has id {ids[0]} in the source vocabulary and {ids[1]} in the target "
                    "vocabulary; train both with the same special tokens"
                )

    @classmethod
    def _from_pretrained(cls, resolved_vocab_files: dict[str, Any], *args: Any, **kwargs: Any) -> Self:
        files = dict(resolved_vocab_files)
        files["tokenizer_file"] = source_vocabulary_file(
            files.pop("source_tokenizer_file", None), files.get("tokenizer_file")
        )
        return super()._from_pretrained(files, *args, **kwargs)

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        self.target_tokenizer._add_tokens(new_tokens, special_tokens)
        return super()._add_tokens(new_tokens, special_tokens)

    def _decode(self, token_ids: Any, *args: Any, use_source_tokenizer: bool = False, **kwargs: Any) -> str:
        side = self.source_tokenizer if use_source_tokenizer else self.target_tokenizer
        return side._decode(token_ids, *args, **kwargs)

    def _save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        prefix = os.path.join(save_directory, f"{filename_prefix}-" if filename_prefix else "")
        files = [prefix + name for name in (*self.vocab_files_names.values(), "tokenizer.json")]
        self.backend_tokenizer.save(files[0])
        self._target_backend.save(files[1])
        with open(files[2], "w", encoding="utf-8") as placeholder:
            placeholder.write(PLACEHOLDER_TOKENIZER_JSON)
        return (*file_names, *files)


def shared_settings(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the settings of a tokenizer that one derived from it inherits."""
    names = ("model_max_length", "padding_side", "truncation_side", "split_special_tokens")
    settings = {
        name: getattr(tokenizer, name) for name in (*names, "clean_up_tokenization_spaces", "extra_special_tokens")
    }
    # Explicit, so that a side saved by itself has no token_type_ids either.
    settings["model_input_names"] = VanillaTransformerTokenizer.model_input_names
    return settings | tokenizer.special_tokens_map


def tags_of(source: str, separator: str | None) -> tuple[str, list[str]]:
    """Split a source with features into its text and its tags."""
    text, *cells = source.split("\t")
    tags = (tag.strip() for cell in cells for tag in (cell.split(separator) if separator else [cell]))
    return text, [tag for tag in tags if tag]


def tag_token(tag: str) -> str:
    """Return the token of a tag, which no text can spell, as texts have no tabs."""
    return f"\t{tag}"


def _each(function: Callable[[str], str], text: Any) -> Any:
    """Apply a function to a text, or to each text of a batch or of pairs."""
    if isinstance(text, list | tuple):
        return type(text)(_each(function, item) for item in text)
    return function(text) if isinstance(text, str) else text


def _joined(words: Any) -> Any:
    """Join each list of words, in lists or pairs of them, with single spaces."""
    if not isinstance(words, list | tuple):
        raise ValueError(
            f"`is_split_into_words` needs lists of words, but one is {words!r:.50}; pass `text.split()`, or drop it"
        )
    if all(isinstance(word, str) for word in words):
        return " ".join(words)
    return type(words)(map(_joined, words))


def _samples(text: Any, text_pair: Any) -> list[Any]:
    """Return the one or two lists of words of each sample."""
    if all(isinstance(word, str) for word in text):
        return [(text, text_pair or ())]
    if text_pair:
        return list(zip(text, text_pair, strict=True))
    return [words if words and not isinstance(words[0], str) else (words,) for words in text]


def findable(token: str | AddedToken, is_special: bool, backend: Tokenizer) -> AddedToken:
    """Return an added token that a backend which splits special tokens matches anywhere in text.

    The backend must not know it as special. Normalized tokens are matched in normalized text, where a normalizer that
    prepends a space to every text, such as unigram's, hides them; the token is then matched before normalization, and
    includes the space after it, which would otherwise be doubled. A tag is followed by no text, only by other tags.
    """
    normalize = backend.normalizer.normalize_str if backend.normalizer else str
    prepends_space = not normalize("ab").endswith(normalize("b"))
    added = token if isinstance(token, AddedToken) else AddedToken(token, normalized=not is_special)
    return AddedToken(
        added.content,
        single_word=added.single_word,
        lstrip=added.lstrip,
        rstrip=added.rstrip or (prepends_space and not added.content.startswith("\t")),
        normalized=added.normalized and not prepends_space,
    )


def source_vocabulary_file(
    file: str | os.PathLike[str] | None, earlier: str | os.PathLike[str] | None
) -> str | os.PathLike[str] | None:
    """Return a pair's source_tokenizer.json (`file`), or the tokenizer.json that `earlier` releases wrote, or None."""
    if file is not None or earlier is None:
        return file
    with open(earlier, encoding="utf-8") as reader:
        is_placeholder = VanillaTransformerTokenizer.__name__ in reader.read(100)
    return None if is_placeholder else earlier


def _load_backend(backend: Tokenizer | None, file: str | os.PathLike[str] | None) -> Tokenizer:
    if backend is not None:
        return copy.deepcopy(backend)
    if file is None:
        raise ValueError("there is no target vocabulary; use `from_pair` or `from_pretrained`")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        raise ValueError(f"{file} is not a readable tokenizer file: {error}") from None
