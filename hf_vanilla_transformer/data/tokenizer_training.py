"""Training of tokenizers on prose or any other sequences of symbols."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ..errors import as_value_errors, did_you_mean, lone_surrogate
from ..model.tokenization_vanilla_transformer import SPECIAL_TOKENS, VanillaTransformerSharedTokenizer
from ..options import POSITIVE, Range, check_range
from ..text.notation import SMILES, SMILES_TOKEN, check_smiles

_T = TypeVar("_T")


class _Algorithm(NamedTuple):
    """Components of a tokenizer. Without a decoder, tokens are joined with spaces; `escapes` are normalized last."""

    model: Callable[[], models.Model]
    trainer: Callable[..., trainers.Trainer]
    pre_tokenizer: pre_tokenizers.PreTokenizer
    decoder: decoders.Decoder | None
    escapes: Sequence[normalizers.Normalizer] = ()


# In a unigram vocabulary "▁" (U+2581) means a space; one in a text is escaped as a noncharacter, which no text should
# contain.
_SPACE, _ESCAPED_SPACE = "\u2581", "\uffff"

# The "<" of a symbol spelled like a special token.
_SPECIAL = Regex(rf"\A<(?=(?:{'|'.join(token[1:-1] for token in SPECIAL_TOKENS.values())})>\z)")

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
        # "<" is always a piece of its own, so that no text yields a piece spelled like a special token.
        pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(prepend_scheme="never"), pre_tokenizers.Split("<", "isolated")]
        ),
        decoders.Sequence([decoders.Metaspace(), decoders.Replace(_ESCAPED_SPACE, _SPACE)]),
        # The first word is preceded by "▁" like any other, even after a space in the text.
        (normalizers.Replace(_SPACE, _ESCAPED_SPACE), normalizers.Prepend(_SPACE)),
    ),
    "word": _Algorithm(
        _word_level,
        trainers.WordLevelTrainer,
        # Words keep inner apostrophes and hyphens; any other visible character is a token.
        pre_tokenizers.Split(Regex(r"\w+(?:['’\-]\w+)*|[^\w\s]"), "removed", invert=True),
        decoders.Sequence(
            [
                # Joins tokens with spaces: no token starts with a newline, so the prefix never matches.
                decoders.WordPiece(prefix="\n", cleanup=False),
                decoders.Fuse(),
                decoders.Replace(Regex(r" (?=[.,!?;:%…)\]}»])"), ""),
                decoders.Replace(Regex(r"(?<=[(\[{«¿¡]) "), ""),
            ]
        ),
    ),
    "whitespace": _Algorithm(
        _word_level,
        trainers.WordLevelTrainer,
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(_SPECIAL, "isolated")]),
        None,
    ),
    "character": _Algorithm(
        _word_level,
        trainers.WordLevelTrainer,
        pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"),
        decoders.Fuse(),
    ),
    "smiles": _Algorithm(
        _word_level,
        trainers.WordLevelTrainer,
        # Anything else is a token by itself, so that an unknown character stays one.
        pre_tokenizers.Split(Regex(rf"{SMILES_TOKEN}|[\s\S]"), "isolated"),
        decoders.Fuse(),
    ),
}

_NORMALIZERS = {name: getattr(normalizers, name) for name in ("NFC", "NFD", "NFKC", "NFKD")}


def train_tokenizer(
    texts: Iterable[str],
    *,
    algorithm: str = "bpe",
    vocab_size: int = 8000,
    reserved: int = 0,
    min_frequency: int = 1,
    lowercase: bool = False,
    normalization: str | None = None,
    max_length: int | None = None,
    show_progress: bool = False,
) -> VanillaTransformerSharedTokenizer:
    r"""Train a tokenizer.

    | algorithm | token | `decode(..., skip_special_tokens=True)` returns |
    |---|---|---|
    | `"bpe"` | byte-level subword | the exact text, for all of Unicode |
    | `"unigram"` | subword, by likelihood | the exact text, if training saw all its characters |
    | `"word"` | word or punctuation mark | words joined with single spaces, closing marks attached, quotes apart |
    | `"whitespace"` | string between white space | the symbols, joined with single spaces; `< /s>` for `</s>` |
    | `"character"` | Unicode code point, white space included | the exact text, if training saw all its characters |
    | `"smiles"` | atom, bond, bracket or ring closure of a molecule: `Cl`, `[nH]`, `%12` | the same |

    A text that spells a special token, such as HTML's `<s>`, is tokenized like any other text
    (`split_special_tokens` is true), so it neither ends a sentence nor gets lost. Markers that must stay whole
    inside texts, such as a language tag, are added with `add_special_tokens({"extra_special_tokens": [...]})`, which
    `decode(..., skip_special_tokens=True)` drops, or with `add_tokens([...])`, which it keeps. A lone surrogate is
    not Unicode text and cannot be encoded; `"unigram"` turns the noncharacter U+FFFF into U+2581.

    The same texts in the same order give the same tokenizer, except with `"unigram"`: the `tokenizers` library sums in
    an order that varies between processes, which changes scores by about 0.001 and so the ids of pieces of about equal
    likelihood. Train once and keep the saved folder.

    Args:
        texts: The corpus, read once as a stream; it need not fit in memory.
        algorithm: `"bpe"`, `"unigram"`, `"word"`, `"whitespace"`, `"character"` or `"smiles"`.
        vocab_size: Maximum vocabulary size, including the four special tokens; a small corpus yields fewer tokens
            (`len(tokenizer)`). 8,000 suits about 100,000 sentences; the paper's shared vocabulary for 4.5 million
            pairs has 37,000 (section 5.1).
        reserved: How many of these to keep free for tokens added later.
        min_frequency: Minimum occurrences of a word, symbol or merged pair to enter the vocabulary.
        lowercase: Lowercase all text, in training and in use; decoded text is then lowercase.
        normalization: Unicode normalization of all text: `"NFC"`, `"NFD"`, `"NFKC"`, `"NFKD"` or None.
        max_length: `model_max_length` of the tokenizer, the limit for `truncation=True`, in tokens including `</s>`;
            None for no limit.
        show_progress: Show progress bars.

    Returns:
        A tokenizer that returns `input_ids` and `attention_mask`, and `labels` for `text_target=`.

    Raises:
        ValueError: The corpus is empty, a text is not valid Unicode or, with `"smiles"`, not SMILES, a name is unknown
            or a number too small.
        TypeError: `texts` is one string, or contains anything but strings.
    """
    components = _lookup(_ALGORITHMS, algorithm, "algorithm")
    _check_sizes(algorithm, vocab_size, reserved, min_frequency, max_length)
    tokenizer = Tokenizer(components.model())
    steps = [] if normalization is None else [_lookup(_NORMALIZERS, normalization, "normalization")()]
    if steps := [*steps, *([normalizers.Lowercase()] if lowercase else []), *components.escapes]:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = components.pre_tokenizer
    if components.decoder is not None:
        tokenizer.decoder = components.decoder
    # Unigram selects pieces by likelihood alone.
    options = {} if algorithm == "unigram" else {"min_frequency": min_frequency}
    trainer = components.trainer(
        vocab_size=vocab_size - reserved,
        special_tokens=list(SPECIAL_TOKENS.values()),
        show_progress=show_progress,
        **options,
    )
    _train(tokenizer, trainer, texts, algorithm, vocab_size)
    size = tokenizer.get_vocab_size() + reserved
    if size == len(SPECIAL_TOKENS) + reserved:
        raise ValueError(f"`min_frequency` is {min_frequency}, which leaves no token of the corpus; lower it")
    if size > vocab_size:
        # Unigram keeps every character.
        raise ValueError(f"`vocab_size` is {vocab_size}; it must be at least {size} for this corpus and {algorithm}")
    eos = SPECIAL_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, tokenizer.token_to_id(eos))]
    )
    return VanillaTransformerSharedTokenizer(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        # The default also names token_type_ids, which generate() would pass to the model.
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        **SPECIAL_TOKENS,
    )


def _check_sizes(algorithm: str, vocab_size: int, reserved: int, min_frequency: int, max_length: int | None) -> None:
    # Byte-level BPE has a token for each of the 256 bytes; the others need at least one token of their own.
    least_vocab_size = len(SPECIAL_TOKENS) + reserved + (256 if algorithm == "bpe" else 1)
    if vocab_size < least_vocab_size:
        raise ValueError(f"`vocab_size` is {vocab_size}; it must be at least {least_vocab_size} for {algorithm}")
    check_range(POSITIVE, min_frequency=min_frequency)
    if min_frequency > 1 and algorithm == "unigram":
        raise ValueError(
            f"`min_frequency` is {min_frequency}, but has no effect on unigram; leave it out or lower `vocab_size`"
        )
    check_range(Range(ge=2), max_length=max_length)


def _train(
    tokenizer: Tokenizer, trainer: trainers.Trainer, texts: Iterable[str], algorithm: str, vocab_size: int
) -> None:
    if isinstance(texts, str):
        raise TypeError("`texts` is one string, whose characters would be the corpus; pass a list of strings")
    try:
        tokenizer.train_from_iterator(_checked(texts, algorithm), trainer)
    # The library raises a bare Exception.
    except Exception as error:
        if "not large enough to contain all chars" not in str(error):
            raise
        advice = "raise it, or normalize the texts"
        raise ValueError(
            f"`vocab_size` {vocab_size} is below the number of characters in the corpus; {advice}"
        ) from None


def _checked(texts: Iterable[str], algorithm: str) -> Iterator[str]:
    empty = True
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"`texts[{index}]` is of type {type(text).__name__}; every text must be a string")
        if surrogate := lone_surrogate(text):
            raise ValueError(f"`texts[{index}]` has {surrogate}; read the corpus as UTF-8")
        if algorithm == SMILES:
            with as_value_errors(f"`texts[{index}]`: "):
                check_smiles(text)
        empty = empty and not text.strip()
        yield text
    if empty:
        raise ValueError("the corpus is empty, or only white space; check the data")


def _lookup(options: Mapping[str, _T], name: str, argument: str) -> _T:
    if name not in options:
        hint = did_you_mean(str(name), options)
        raise ValueError(f"`{argument}` {name!r} is not one of {', '.join(options)}{hint}")
    return options[name]
