"""Tokenizers for encoder-decoders: one shared vocabulary, or one vocabulary per side.

`train_tokenizer` learns a vocabulary from text, prose or not. A shared vocabulary is the plain
`PreTrainedTokenizerFast` that it returns. Two vocabularies, one for the source and one for the target, make a
`VanillaTransformerTokenizer`, which is used in the same way:

    tokenizer(source_texts, text_target=target_texts)  # input_ids, attention_mask, labels
    tokenizer.batch_decode(model.generate(...), skip_special_tokens=True)

Every vocabulary starts with `<pad>` (id 0), `<s>` (1), `</s>` (2) and `<unk>` (3). Every text, source or target,
ends in `</s>` and starts with no special token: the model itself puts `<s>` in front of the labels.
"""

import copy
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BatchEncoding, PreTrainedTokenizerFast

from .hub_code_vanilla_transformer import HubCodeMixin

# The tokenizer.json of two vocabularies. Every loader reads this file, so that one which does not know the class fails
# with this "version" in its error, instead of taking the source's vocabulary for both.
PAIR_NOTICE = json.dumps(
    {
        "version": "VanillaTransformerTokenizer: its vocabularies are source_tokenizer.json and "
        "target_tokenizer.json; install and import hf_vanilla_transformer, or use AutoTokenizer with "
        "trust_remote_code=True where the code is in the repository",
        "added_tokens": [],
    }
)

SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

_T = TypeVar("_T")


class _Algorithm(NamedTuple):
    """How one algorithm learns a vocabulary, cuts a text and puts it together again."""

    model: Callable[[], models.Model]
    trainer: Callable[..., trainers.Trainer]
    pre_tokenizer: pre_tokenizers.PreTokenizer
    # None joins the tokens with blanks.
    decoder: decoders.Decoder | None


_word_level = partial(models.WordLevel, unk_token=SPECIAL_TOKENS["unk_token"])

_ALGORITHMS = {
    "bpe": _Algorithm(
        models.BPE,
        partial(trainers.BpeTrainer, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    ),
    "unigram": _Algorithm(
        models.Unigram,
        partial(trainers.UnigramTrainer, unk_token=SPECIAL_TOKENS["unk_token"]),
        # A piece never holds "<" and more, so that no text is cut into a piece spelled like a special token.
        pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Split("<", "isolated")]
        ),
        decoders.Metaspace(prepend_scheme="first"),
    ),
    "word": _Algorithm(
        _word_level,
        trainers.WordLevelTrainer,
        # Words keep their inner apostrophes and hyphens; any other visible character stands alone.
        pre_tokenizers.Split(Regex(r"\w+(?:['’\-]\w+)*|[^\w\s]"), "removed", invert=True),
        decoders.Sequence(
            [
                # Joins with blanks: no token starts with a line end, so this prefix never glues two of them.
                decoders.WordPiece(prefix="\n", cleanup=False),
                decoders.Fuse(),
                decoders.Replace(Regex(r" (?=[.,!?;:%…)\]}»])"), ""),
                decoders.Replace(Regex(r"(?<=[(\[{«¿¡]) "), ""),
            ]
        ),
    ),
    "whitespace": _Algorithm(_word_level, trainers.WordLevelTrainer, pre_tokenizers.WhitespaceSplit(), None),
    "character": _Algorithm(
        _word_level,
        trainers.WordLevelTrainer,
        pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"),
        decoders.Fuse(),
    ),
}

_NORMALIZATIONS = {
    "NFC": normalizers.NFC,
    "NFD": normalizers.NFD,
    "NFKC": normalizers.NFKC,
    "NFKD": normalizers.NFKD,
}


def train_tokenizer(
    texts: Iterable[str],
    *,
    algorithm: str = "bpe",
    vocab_size: int = 8000,
    min_frequency: int = 1,
    lowercase: bool = False,
    normalization: str | None = None,
    max_length: int | None = None,
    show_progress: bool = False,
) -> PreTrainedTokenizerFast:
    r"""Learn a vocabulary from texts.

    | algorithm | token | what `decode(..., skip_special_tokens=True)` gives back |
    |---|---|---|
    | `"bpe"` | byte-level sub-word | the very text, for all of Unicode |
    | `"unigram"` | sub-word, likelier ones first | the text, less one leading blank and any unseen character |
    | `"word"` | word or punctuation mark | words one blank apart, closing marks attached; quotes stay apart |
    | `"whitespace"` | what stands between blanks | the symbols, one blank apart |
    | `"character"` | Unicode code point, blanks too | the very text, if every character was seen in training |

    A text that spells a special token, such as HTML's `<s>`, is cut like any other text (the tokenizer's
    `split_special_tokens` is true), so it neither ends a sentence nor gets lost. Two limits: with `"whitespace"` a
    symbol that is exactly `</s>` *is* the special token, and markers that must stay whole inside texts, such as a
    language tag, have to be added with `add_tokens([...])`, not with `add_special_tokens`. A surrogate without its
    partner is not Unicode text, and cannot be encoded.

    The same texts in the same order give the same tokenizer, except for `"unigram"`: there the `tokenizers`
    library sums in an order that changes from process to process, which moves the scores by about 0.001 and, with
    them, the ids of pieces about equally likely. Train once and keep the saved folder.

    Args:
        texts: The corpus. It is read once, as a stream, and need not fit in memory.
        algorithm: `"bpe"`, `"unigram"`, `"word"`, `"whitespace"` or `"character"`.
        vocab_size: Upper limit of the vocabulary, the four special tokens included. A small corpus reaches fewer;
            `len(tokenizer)` is the real size. 8,000 suits some 100,000 sentences; the paper shared 37,000 between
            both languages of 4.5 million pairs.
        min_frequency: How often a word, symbol or merged pair must occur to enter the vocabulary.
        lowercase: Lower-case every text, in training and in use. Decoded text is then lower-case.
        normalization: Unicode normalization of every text: `"NFC"`, `"NFD"`, `"NFKC"` or `"NFKD"`; None leaves
            the text as it is.
        max_length: The tokenizer's `model_max_length`, in tokens with `</s>`: the limit for `truncation=True`.
            None sets no limit.
        show_progress: Draw the trainer's progress bars.

    Returns:
        A tokenizer that gives `input_ids` and `attention_mask`; pass `text_target=` for `labels`.

    Raises:
        ValueError: The corpus is empty, a text is no valid Unicode, a name is unknown, or a number is too small.
        TypeError: `texts` is one string or holds something that is not a string.
    """
    recipe = _choose(_ALGORITHMS, algorithm, "algorithm")
    # Byte-level BPE has a token for each of the 256 bytes; the others need at least one token of their own.
    _at_least(len(SPECIAL_TOKENS) + (256 if algorithm == "bpe" else 1), vocab_size, f"vocab_size ({algorithm})")
    _at_least(1, min_frequency, "min_frequency")
    if max_length is not None:
        _at_least(2, max_length, "max_length")
    options: dict[str, Any] = {"min_frequency": min_frequency}
    if algorithm == "unigram":
        if min_frequency > 1:
            raise ValueError(
                f"min_frequency is {min_frequency}, but unigram has none; leave it out or lower vocab_size"
            )
        options = {}

    tokenizer = Tokenizer(recipe.model())
    steps = [_choose(_NORMALIZATIONS, normalization, "normalization")()] if normalization is not None else []
    if lowercase:
        steps.append(normalizers.Lowercase())
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = recipe.pre_tokenizer
    if recipe.decoder is not None:
        tokenizer.decoder = recipe.decoder
    trainer = recipe.trainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS.values()), show_progress=show_progress, **options
    )
    _train(tokenizer, trainer, texts, vocab_size)
    eos = SPECIAL_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, tokenizer.token_to_id(eos))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        # The library's default names token_type_ids too, which generate() would hand to the model.
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        **SPECIAL_TOKENS,
    )


def _train(tokenizer: Tokenizer, trainer: trainers.Trainer, texts: Iterable[str], vocab_size: int) -> None:
    if isinstance(texts, str):
        raise TypeError("texts is one string, whose characters would be the corpus; pass a list of strings")
    try:
        tokenizer.train_from_iterator(_checked(texts), trainer)
    except Exception as error:
        if "not large enough to contain all chars" not in str(error):
            raise
        raise ValueError(
            f"vocab_size is {vocab_size}, less than the corpus has characters; raise it, or normalize the texts"
        ) from None


def _checked(texts: Iterable[str]) -> Iterator[str]:
    empty = True
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{index}] is of type {type(text).__name__}; every text must be a string")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"texts[{index}] holds U+{ord(text[error.start]):04X} at position {error.start}, half of a surrogate "
                "pair and no character; read the corpus as UTF-8"
            ) from None
        empty = empty and not text.strip()
        yield text
    if empty:
        raise ValueError("the corpus is empty: texts holds no text that is more than blanks")


def _choose(options: Mapping[str, _T], name: str, field: str) -> _T:
    if name not in options:
        nearest = get_close_matches(str(name).lower(), [option.lower() for option in options], n=1)
        hint = "".join(f"; did you mean {option!r}?" for option in options if option.lower() in nearest)
        raise ValueError(f"{field} is {name!r}, not one of {', '.join(options)}{hint}")
    return options[name]


def _at_least(minimum: int, value: int, field: str) -> None:
    if value < minimum:
        raise ValueError(f"{field} is {value}; it must be at least {minimum}")


class VanillaTransformerTokenizer(HubCodeMixin, PreTrainedTokenizerFast):
    """One vocabulary for the source and another for the target, as one tokenizer.

    Texts go in as source, or as target when named `text_target`. Ids and tokens come out as target, since those are
    what a model generates: `decode`, `batch_decode`, `convert_ids_to_tokens` and `convert_tokens_to_string`. All
    else (`encode`, `tokenize`, `get_vocab`, `convert_tokens_to_ids`, `vocab_size`, `len`) is about the source. For
    the other way round use `source_tokenizer` and `target_tokenizer`, or `decode(..., use_source_tokenizer=True)`.

    `len(tokenizer)` and `target_vocab_size` are what a model's `vocab_size` and `decoder_vocab_size` must be.

    Settings such as `padding_side`, `truncation_side` and `model_max_length` hold for both sides. `add_tokens` and
    `add_special_tokens` add to both vocabularies and return how many tokens the source gained; the ids of the
    padding, begin, end and unknown tokens are the same on both sides, always.

    A saved folder holds a file for each side, `source_tokenizer.json` and `target_tokenizer.json`, and a
    `tokenizer.json` that makes every other loader fail by name.

    Args:
        target_tokenizer_object: The target side's backend (the `backend_tokenizer` of a fast tokenizer).
        target_tokenizer_file: Its file, instead of the object.
        **kwargs: Those of `PreTrainedTokenizerFast`, about the source side (`tokenizer_object`,
            `tokenizer_file`) or about both (special tokens, `padding_side`, ...).

    Raises:
        ValueError: There is no target vocabulary, its file cannot be read, or a special token's ids differ.
    """

    vocab_files_names = {
        "source_tokenizer_file": "source_tokenizer.json",
        "target_tokenizer_file": "target_tokenizer.json",
    }
    model_input_names = ["input_ids", "attention_mask"]

    def __init__(self, **kwargs: Any) -> None:
        """Set up both sides from the arguments that the class describes."""
        target = (kwargs.pop("target_tokenizer_object", None), kwargs.pop("target_tokenizer_file", None))
        # Set first: the base class may add special tokens, and those go to both vocabularies.
        self._target_backend = _load_backend(*target)
        # Names code in the folder that it was read from; saving names it anew where the code goes along.
        kwargs.pop("auto_map", None)
        super().__init__(**kwargs)
        self._check_special_ids()

    @classmethod
    def from_pair(cls, source_tokenizer: PreTrainedTokenizerFast, target_tokenizer: PreTrainedTokenizerFast) -> Self:
        """Join two tokenizers into one; later changes to either do not touch it.

        Args:
            source_tokenizer: Tokenizer of the source side, whose settings the pair takes over.
            target_tokenizer: Tokenizer of the target side. The pair's `model_max_length` is the smaller of the two.

        Returns:
            A tokenizer for `tokenizer(source_texts, text_target=target_texts)`.

        Raises:
            ValueError: A special token has different ids in the two vocabularies.
            TypeError: One of the two is not a fast tokenizer.
        """
        for name, side in (("source_tokenizer", source_tokenizer), ("target_tokenizer", target_tokenizer)):
            if not isinstance(side, PreTrainedTokenizerFast):
                raise TypeError(f"{name} is of type {type(side).__name__}; pass a PreTrainedTokenizerFast")
        return cls(
            tokenizer_object=source_tokenizer.backend_tokenizer,
            target_tokenizer_object=target_tokenizer.backend_tokenizer,
            model_max_length=min(source_tokenizer.model_max_length, target_tokenizer.model_max_length),
            padding_side=source_tokenizer.padding_side,
            truncation_side=source_tokenizer.truncation_side,
            split_special_tokens=source_tokenizer.split_special_tokens,
            clean_up_tokenization_spaces=source_tokenizer.clean_up_tokenization_spaces,
            extra_special_tokens=source_tokenizer.extra_special_tokens,
            # Said aloud, so that a side saved by itself leaves token_type_ids out as well.
            model_input_names=cls.model_input_names,
            **source_tokenizer.special_tokens_map,
        )

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Hand both vocabulary files to the constructor as they are (called by `from_pretrained`).

        Args:
            trust_remote_code: Not used.
            **kwargs: The constructor's arguments, as `from_pretrained` found them.

        Returns:
            `kwargs`, unchanged.

        Raises:
            FileNotFoundError: One of the two vocabulary files is missing.
        """
        for field, file_name in cls.vocab_files_names.items():
            if kwargs.get(field.removeprefix("source_")) is None:
                raise FileNotFoundError(
                    f"{kwargs.get('name_or_path')} holds no {file_name}, and {cls.__name__} needs one vocabulary per "
                    "side; save the tokenizer again, or load a single vocabulary with PreTrainedTokenizerFast"
                )
        return kwargs

    @property
    def source_tokenizer(self) -> PreTrainedTokenizerFast:
        """The source side as a plain tokenizer, with the settings that hold now."""
        return self._side(self.backend_tokenizer)

    @property
    def target_tokenizer(self) -> PreTrainedTokenizerFast:
        """The target side as a plain tokenizer, with the settings that hold now."""
        return self._side(self._target_backend)

    @property
    def target_vocab_size(self) -> int:
        """Size of the target vocabulary, added tokens included: a model's `decoder_vocab_size`."""
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
            text: One source text or a batch of them.
            text_pair: Second source text, or a batch; `</s>` follows each of the two.
            text_target: One target text or a batch of them.
            text_pair_target: Second target text, or a batch.
            max_length: Number of tokens, `</s>` included, at which to cut a text of either side.
            max_target_length: The same for the target alone.
            **kwargs: As in every tokenizer: `padding`, `truncation`, `return_tensors`, ...

        Returns:
            `input_ids` and `attention_mask` of the source, and `labels` where there are both sides. Target texts
            alone give their ids as `input_ids`.
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

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Look up target ids.

        Args:
            ids: One id, or a sequence of ids, of the target vocabulary.
            skip_special_tokens: Leave special tokens out.

        Returns:
            The token, or the list of tokens.
        """
        return self.target_tokenizer.convert_ids_to_tokens(ids, skip_special_tokens)

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """Join target tokens into a text.

        Args:
            tokens: Tokens of the target vocabulary.

        Returns:
            The text.
        """
        return self.target_tokenizer.convert_tokens_to_string(tokens)

    def add_special_tokens(self, special_tokens_dict: Any, replace_extra_special_tokens: bool = True) -> int:
        """Add special tokens to both vocabularies.

        From then on special tokens, all of them, are looked for inside texts: `split_special_tokens` becomes false
        where a token is new, since nobody adds one that is never found.

        Args:
            special_tokens_dict: Role to token, such as `{"mask_token": "<mask>"}`.
            replace_extra_special_tokens: Replace the list of extra special tokens, rather than extend it.

        Returns:
            How many tokens the source vocabulary gained.

        Raises:
            ValueError: The padding, begin, end or unknown token would have different ids on the two sides. Nothing
                is changed then.
        """
        trial = copy.deepcopy(self)
        super(VanillaTransformerTokenizer, trial).add_special_tokens(special_tokens_dict, replace_extra_special_tokens)
        trial._check_special_ids()
        return super().add_special_tokens(special_tokens_dict, replace_extra_special_tokens)

    def _side(self, backend: Tokenizer) -> PreTrainedTokenizerFast:
        # A view, made anew each time: the settings live in one place, and no call can leave a wrong side selected.
        side = object.__new__(PreTrainedTokenizerFast)
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
        files["tokenizer_file"] = source_file(files.pop("source_tokenizer_file", None), files.get("tokenizer_file"))
        return super()._from_pretrained(files, *args, **kwargs)

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        gained = self.target_tokenizer._add_tokens(new_tokens, special_tokens)
        gained_by_source = super()._add_tokens(new_tokens, special_tokens)
        if special_tokens and (gained or gained_by_source):
            self.split_special_tokens = False
        return gained_by_source

    def _convert_id_to_token(self, index: int) -> str | None:
        return self.target_tokenizer._convert_id_to_token(index)

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
        with open(files[2], "w", encoding="utf-8") as notice:
            notice.write(PAIR_NOTICE)
        return (*file_names, *files)


def source_file(
    file: str | os.PathLike[str] | None, earlier: str | os.PathLike[str] | None
) -> str | os.PathLike[str] | None:
    """Return the file of a pair's source vocabulary, which earlier releases called tokenizer.json; None without one.

    Args:
        file: The folder's source_tokenizer.json, if there is one.
        earlier: Its tokenizer.json, if there is one.
    """
    if file is not None or earlier is None:
        return file
    with open(earlier, encoding="utf-8") as reader:
        is_notice = VanillaTransformerTokenizer.__name__ in reader.read(100)
    return None if is_notice else earlier


def _load_backend(backend: Tokenizer | None, file: str | os.PathLike[str] | None) -> Tokenizer:
    if backend is not None:
        return copy.deepcopy(backend)
    if file is None:
        raise ValueError("there is no target vocabulary; build the tokenizer with from_pair or from_pretrained")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        raise ValueError(f"{file} is not a readable tokenizer file: {error}") from None
