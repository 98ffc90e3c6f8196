"""Training of tokenizers on text, prose or not."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple, TypeVar

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ..model.tokenization_vanilla_transformer import SPECIAL_TOKENS

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


__all__ = ["train_tokenizer"]
