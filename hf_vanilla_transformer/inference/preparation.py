"""Normalize user text into the sentences a model was trained on, and restore the original form in translations.

A line is split into sentences, and a sentence longer than any in training is cut into pieces. Upper and title case
become sentence case. Protected items (see `text.protection`) become placeholders, or are removed for models without
placeholders, and are put back into the translation. A sentence without letters is its own translation.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from re import Pattern
from typing import Any, Literal, TypeVar
from unicodedata import category, name, normalize
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..text.casing import COMPOUNDS, WORDS, Case, capitalized, case_of, in_case, sentence_case
from ..text.protection import (
    LARGE_SCRIPTS,
    PLACEHOLDER,
    Edit,
    Link,
    ProtectedText,
    Protector,
    Span,
    checked_pattern,
    edited,
    placeholders_of,
    with_placeholders,
)
from ..text.sentences import Layout, cut_long_sentence, split_sentences, whole
from ..text.spelling import Lexicon
from .decoding import encode
from .glossary import Glossary, normalized
from .languages import Direction, only_pair
from .teacher_forcing import position_limit, tightest_limit

SplitSentences = Literal["auto", "never", "always"]
"""Whether to split lines into sentences; "auto" does unless the model was trained on lines of several sentences."""

# Most tokens of a sentence if neither training nor the model sets a limit.
DEFAULT_LENGTH = 512

# Entries of a `Memo`.
MAX_KEPT = 65_536

_T = TypeVar("_T")

# For sources of at least `SHORT_FROM` bytes, a translation of less than `SHORT_SHARE` of their bytes is suspicious.
SHORT_SHARE, SHORT_FROM = 1 / 3, 60

# Plain forms of typographic punctuation, used where the vocabulary lacks it or training data rarely had it.
PLAIN_PUNCTUATION = {
    **dict.fromkeys("“”„‟«»", '"'),
    **dict.fromkeys("‘’‚‛‹›", "'"),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    "…": "...",
    **dict.fromkeys("\u00a0\u2009\u202f", " "),
    **dict.fromkeys("\u00ad\u200b\u2060\ufeff", ""),
}
# Categories (letters, punctuation) in which NFKC also gives plain forms, as of ligatures and full-width characters.
PLAIN_CATEGORIES = frozenset(("Lu", "Ll", "Pd", "Pe", "Po", "Ps"))

BLANKS = re.compile(r"\s+", re.ASCII)


@dataclass(frozen=True)
class Sentence:
    """A prepared sentence.

    Attributes:
        source: The original sentence.
        case: Its case, which the translation gets back.
        protected: The text to translate, in sentence case with placeholders; None if there is nothing to translate.
        raw: Whether source and translation stay as they are, except for placeholders unknown to the model.
        direction: Languages, for multilingual models; None for the tokenizer's current ones.
        prefix: Prefix of the text to translate.
        is_corrected: Whether typos were corrected in it.
    """

    source: str
    case: Case = Case.SENTENCE
    protected: ProtectedText | None = None
    raw: bool = False
    direction: Direction | None = None
    prefix: str = ""
    is_corrected: bool = False

    @property
    def text(self) -> str:
        """The text to translate; "" if there is none."""
        return self.protected.text if self.protected else ""

    @property
    def given(self) -> str:
        """The model's input text; "" if there is nothing to translate."""
        return self.prefix + self.text if self.text else ""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The placeholders that a translation must have."""
        return self.protected.placeholders if self.protected else ()

    def needs_links(self, translation: str) -> bool:
        """Whether a translation lacks a placeholder, so that word links are needed to place its item."""
        return bool(self.protected and self.protected.missing(translation))

    def finished(self, translation: str, links: Sequence[Link] = ()) -> tuple[str, list[Link]]:
        """Turn the model's translation of `text` into that of `source`.

        Args:
            translation: Translation of `text`.
            links: Links between words of `text` and `translation`, if known.

        Returns:
            The translation of `source`, and the links between words of the two.
        """
        if self.protected is None:
            return self.source, [(i, i) for i in range(len(self.source.split()))]
        return self.protected.restored(in_case(translation, self.case), links)


class Preparation:
    """Prepares text for a model.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        protect: Regular expressions of further text not to translate.
        raw: Whether to leave sentences as they are.
        source_prefix: Prefix of every sentence.

    Raises:
        ValueError: A regular expression is invalid or matches the empty string.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        protect: Iterable[str | Pattern[str]] = (),
        raw: bool = False,
        source_prefix: str = "",
    ):
        self.tokenizer, self.raw, self.source_prefix = tokenizer, raw, source_prefix
        self.placeholders = placeholders_of(tokenizer)
        settings: Any = model.generation_config
        trained = getattr(settings, "training_source_length", None)
        positions = position_limit(model.config)
        self.max_length = tightest_limit(trained, positions) or DEFAULT_LENGTH
        self._has_paragraphs = bool(getattr(settings, "training_paragraphs", False))
        if isinstance(protect, str) or not isinstance(protect, Iterable):
            raise ValueError(f"`protect` is a {type(protect).__name__}; pass a list of regular expressions")
        patterns = [checked_pattern(each) for each in protect]
        if raw and patterns:
            raise ValueError("`protect` has no effect with `raw`; leave one of them out")
        # Whether sentences began with a capital in training; None if unknown.
        self._capitals: bool | None = getattr(settings, "training_capitals", None)
        self._knows_upper_case = bool(getattr(settings, "training_upper_case", False))
        # Strings or, for models of several directions, dictionaries by source language.
        names = ("spellings", "words", "lookalikes")
        self._training_words = {name: getattr(settings, f"training_{name}", None) or "" for name in names}
        self._alphabet = _Alphabet.of(tokenizer)
        # Punctuation in the vocabulary, but too rare in training to be learned.
        marks = getattr(settings, "training_marks", None)
        rare = {} if marks is None else {mark: plain for mark, plain in PLAIN_PUNCTUATION.items() if mark not in marks}
        self._plain_marks = str.maketrans(rare)
        # Without placeholders numbers would be removed, which hurts models that learned to translate them, as most do.
        knows_numbers = getattr(settings, "training_numbers", True)
        with_numbers = bool(self.placeholders) or not knows_numbers
        self.protector = Protector(patterns, self._alphabet.can_write, with_numbers)
        self._costs = Memo(self._tokens_of)

    def layout(self, text: str, split: SplitSentences = "auto", language: str | None = None) -> Layout:
        """Split a text into sentences as `split` says, and cut long ones into pieces."""
        layout = self.split(text, split, language)
        return self.fit(layout) if self.may_be_long(layout) else layout

    def split(self, text: str, split: SplitSentences = "auto", language: str | None = None) -> Layout:
        """Split a text into sentences by the rules of its language, by default the tokenizer's."""
        if self.raw:
            return Layout((text,), ("", "")) if text.strip() else Layout((), (text,))
        if split == "never" or (split == "auto" and self._has_paragraphs):
            return whole(text)
        return split_sentences(text, language or self._source_lang)

    def may_be_long(self, layout: Layout) -> bool:
        """Whether a sentence may be longer than any in training, estimated from above without the tokenizer."""
        # A token has at least a byte, except special tokens and letters that normalization expands: hence the factor.
        return not self.raw and 2 * max((len(each.encode()) for each in layout.sentences), default=0) > self.max_length

    def fit(self, layout: Layout) -> Layout:
        """Cut sentences longer than any in training into pieces, at clause ends or else at white space."""
        return layout.cut(partial(cut_long_sentence, limit=self.max_length, measure=self.num_tokens))

    def num_tokens(self, sentence: str) -> int:
        """Return the number of input tokens of a sentence, end token included; 0 if there is nothing to translate."""
        ((ids,), _) = encode(self.tokenizer, [self.sentence(sentence).given])
        return len(ids)

    def sentence(self, source: str, glossary: Glossary | None = None, direction: Direction | None = None) -> Sentence:
        """Prepare a sentence; glossary terms stay in the text, even if they look like protected items."""
        given: dict[str, Any] = {"direction": direction, "prefix": self.source_prefix}
        if self.raw or not source.strip():
            unknown = () if self.placeholders else (match.span() for match in PLACEHOLDER.finditer(source))
            return Sentence(source, protected=with_placeholders(source, unknown, ()), raw=True, **given)
        text = source
        if not source.isascii() and not all(map(self._alphabet.can_write, source)):
            text = normalize("NFC", source)
        terms: list[Span] = []
        if glossary is not None:
            text = normalized(text)
            terms = glossary.spans_in(text)
        items = self.protector.spans(text)
        spans = [(i, k) for i, k in items if not any(start < k and i < end for start, end in terms)]
        # Items, such as links, do not count for the case.
        words = edited(text, [(i, k, " " * (k - i)) for i, k in spans])
        case, language = case_of(words), direction[0] if direction else None
        if case is Case.UPPER and self._knows_upper_case:
            case = Case.SENTENCE
        elif case is Case.SENTENCE and self.placeholders and self.is_cased:
            text, names = self._capital_words(text, edited(words, [(i, k, " " * (k - i)) for i, k in terms]), language)
            spans += names
        # In characters of the vocabulary, with single spaces, as in training.
        protected = _rewritten(with_placeholders(text, spans, self.placeholders), self._plain)
        if not any(map(str.isalpha, protected.text)):
            return Sentence(source, **given)
        kept = {word for start, end in terms for word in COMPOUNDS.findall(self._plain(text[start:end]))}
        typed = protected
        # Names in upper or title case cannot be told from words.
        if case in (Case.SENTENCE, Case.LOWER):
            lexicon = _lexicon(self._words_of("words", language), self._words_of("lookalikes", language))
            protected = _rewritten(typed, partial(_without_typos, lexicon=lexicon, kept=kept))
        is_corrected = protected is not typed
        protected = _rewritten(protected, partial(self._in_sentence_case, case=case, kept=kept, language=language))
        return Sentence(source, case, protected, is_corrected=is_corrected, **given)

    @property
    def _source_lang(self) -> str | None:
        return self.tokenizer.src_lang if hasattr(self.tokenizer, "src_lang") else only_pair(self.tokenizer)[0]

    def _words_of(self, name: str, language: str | None) -> str:
        """Return the words of a source language, by default the tokenizer's, that training recorded as `name`."""
        words = self._training_words[name]
        return words if isinstance(words, str) else words.get(language or self._source_lang, "")

    def _in_sentence_case(self, text: str, case: Case, kept: Collection[str], language: str | None) -> str:
        """Convert a text to the case of the training data, except for the words in `kept`."""
        if not self.is_cased:
            return text.lower()
        # The training data may have been in lower case.
        if case is Case.SENTENCE or (case is Case.LOWER and not self._capitals):
            return text
        return sentence_case(
            text,
            lambda word: word if word in kept else self.spell(word, language),
            capital=self._capitals is not False,
        )

    def _capital_words(self, text: str, words: str, language: str | None) -> tuple[str, list[Span]]:
        """Respell words in capitals that the vocabulary has in another case, and find those it does not have.

        The latter, names and acronyms, become items. `words` is the text with its items and terms blanked out.
        Only for models with placeholders; others have learned to translate such words.

        Returns:
            The text, and the spans of names and acronyms.
        """
        names: list[Span] = []
        known: list[Edit] = []
        for match in WORDS.finditer(words):
            word = match[0]
            if len(word) < 2 or not word.isalpha() or not word.isupper() or self._is_one_token(word):
                continue
            written = self.spell(word, language)
            if self._is_one_token(written) and len(written) == len(word):
                known.append((*match.span(), written))
            else:
                names.append(match.span())
        return edited(text, known), names

    def _plain(self, text: str) -> str:
        return self._alphabet.plain(text.translate(self._plain_marks))

    def said(self, sentence: Sentence, translation: str, language: str | None = None) -> str:
        """Approximate the model's raw output for a sentence from its finished translation into a language."""
        for text, _, placeholder, _ in sentence.protected.items if sentence.protected else ():
            translation = translation.replace(text, placeholder, 1)
        if sentence.case not in (Case.UPPER, Case.TITLE):
            return translation
        return sentence_case(translation, partial(self.spell, language=language))

    @property
    def is_cased(self) -> bool:
        """Whether the vocabulary is cased."""
        return self._alphabet.is_cased

    def spell(self, word: str, language: str | None = None) -> str:
        """Return a word in its usual case: the recorded one, else the one with the fewest tokens, lower case first.

        Args:
            word: The word.
            language: Source language; by default the tokenizer's.
        """
        if spelling := _by_folded_case(self._words_of("spellings", language)).get(word.casefold()):
            return spelling
        lower = word.lower()
        return min(dict.fromkeys((lower, capitalized(lower), word)), key=self._costs.__getitem__)

    def _tokens_of(self, word: str) -> tuple[int, int]:
        """Return the number of unknown tokens of a word within a text, and of all its tokens."""
        side: Any = getattr(self.tokenizer, "source_tokenizer", self.tokenizer)
        before, row = side(["a", f"a {word}"], add_special_tokens=False, verbose=False)["input_ids"]
        return row.count(side.unk_token_id), len(row) - len(before)

    def _is_one_token(self, word: str) -> bool:
        return self._costs[word] == (0, 1)


@lru_cache(maxsize=128)
def _by_folded_case(words: str) -> dict[str, str]:
    """Return words by case-folded form; cached because a `Preparation` is built for every call."""
    return {word.casefold(): word for word in words.split()}


@lru_cache(maxsize=128)
def _lexicon(words: str, lookalikes: str) -> Lexicon:
    return Lexicon(frozenset(words.split()), frozenset(lookalikes.split()))


def _without_typos(text: str, lexicon: Lexicon, kept: Collection[str]) -> str:
    return COMPOUNDS.sub(lambda match: match[0] if match[0] in kept else lexicon.correct(match[0]), text)


def _rewritten(protected: ProtectedText, write: Callable[[str], str]) -> ProtectedText:
    """Rewrite a protected text, moving its items along."""
    text = protected.text
    if (written := write(text)) == text:
        return protected
    items = tuple(item._replace(start=len(write(text[: item.start]))) for item in protected.items)
    return ProtectedText(written, items)


class Memo(dict[str, _T]):
    """Cache of a function's results, cleared at `MAX_KEPT` entries because a server sees ever new texts."""

    def __init__(self, function: Callable[[str], _T]):
        self._function = function

    def __missing__(self, text: str) -> _T:
        if len(self) >= MAX_KEPT:
            self.clear()
        found = self[text] = self._function(text)
        return found


def is_suspicious(source: str, translation: str) -> bool:
    """Whether a translation is empty, or much shorter than its source."""
    size = len(source.encode())
    if not translation.strip():
        return bool(source.strip())
    return size >= SHORT_FROM and len(translation.encode()) < SHORT_SHARE * size


class _Alphabet:
    """The characters that a tokenizer's source vocabulary has, not counting byte fallback."""

    _of: "WeakKeyDictionary[PreTrainedTokenizerBase, _Alphabet]" = WeakKeyDictionary()

    def __init__(self, side: Any):
        self._side, self._size = side, len(side)
        self._knows = Memo(self._has).__getitem__
        self._plain = Memo(self._plain_form).__getitem__

    @classmethod
    def of(cls, tokenizer: Any) -> "_Alphabet":
        """Return the alphabet of a tokenizer, built at the first call."""
        side, known = getattr(tokenizer, "source_tokenizer", tokenizer), cls._of.get(tokenizer)
        if known is None or known._size != len(side):
            known = cls._of[tokenizer] = cls(side)
        return known

    def can_write(self, character: str) -> bool:
        """Whether the vocabulary has a character, or a plain form of it."""
        return self._plain(character) is not None

    def plain(self, text: str) -> str:
        """Replace unknown characters with their plain forms, and runs of white space with single spaces."""
        if not text.isascii():
            text = "".join(each if (form := self._plain(each)) is None else form for each in text)
        return BLANKS.sub(" ", text)

    def _plain_form(self, character: str) -> str | None:
        """Return a character or, if it is unknown, its plain form; None if it has none."""
        if self._knows(character):
            return character
        if character in PLAIN_PUNCTUATION:
            return PLAIN_PUNCTUATION[character]
        form = normalize("NFKC", character)
        return form if category(character) in PLAIN_CATEGORIES and all(map(self._knows, form)) else None

    def _has(self, character: str) -> bool:
        if character.isascii():
            return True
        if script := LARGE_SCRIPTS.match(name(character, "")):
            return script[0] in self._scripts
        normalizer = getattr(getattr(self._side, "backend_tokenizer", None), "normalizer", None)
        written = normalizer.normalize_str(character) if normalizer else character
        # U+2581 is a space in a unigram vocabulary.
        return self._characters.issuperset(written.strip("\u2581 "))

    @cached_property
    def is_cased(self) -> bool:
        """Whether any token of several letters has capitals, or any token at all if none has several letters."""
        words = [text for text in self._texts if sum(map(str.isalpha, text)) > 1]
        return any(text != text.lower() for text in words or self._texts)

    @cached_property
    def _texts(self) -> list[str]:
        rows = [[token] for token in range(self._size)]
        texts: list[str] = self._side.batch_decode(rows, skip_special_tokens=True)
        return texts

    @cached_property
    def _characters(self) -> frozenset[str]:
        return frozenset("".join(self._texts)) - {"\ufffd"}

    @cached_property
    def _scripts(self) -> set[str]:
        return {match[0] for each in self._characters if (match := LARGE_SCRIPTS.match(name(each, "")))}
