"""Text as people type it to sentences as a model was trained on them, and translations back to what was typed.

A line is cut into sentences, and those that are longer than any in training into pieces. Of each, upper and title case
become sentence case, and what is not translated becomes a placeholder, or, for models without placeholders, is left
out. A sentence without letters is no text, and is its own translation.
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

from ..data.alignments import Link
from ..text.casing import WORDS, Case, capitalized, case_of, in_case, sentence_case
from ..text.protection import (
    LARGE_SCRIPTS,
    PLACEHOLDER,
    Edit,
    ProtectedText,
    Protector,
    Span,
    checked_pattern,
    edited,
    moved,
    placeholders_of,
    with_placeholders,
)
from ..text.sentences import Layout, cut_long_sentence, split_sentences, whole
from .decoding import encode
from .glossary import Glossary, normalized
from .languages import Direction, only_pair
from .teacher_forcing import position_limit, tightest_limit

SplitSentences = Literal["auto", "never", "always"]
"""Whether lines are cut into sentences; "auto": unless the model was trained on lines of several sentences."""

# Tokens of a sentence, where nothing says how many a model has seen.
DEFAULT_LENGTH = 512

# Words and characters of which what is known is kept.
MAX_KEPT = 65_536

_T = TypeVar("_T")

# A translation is suspicious below this share of the bytes of a source of this many bytes or more.
SHORT_SHARE, SHORT_FROM = 1 / 3, 60

# Plain forms of typographic punctuation, for what a vocabulary lacks or training hardly had.
PLAIN_PUNCTUATION = {
    **dict.fromkeys("“”„‟«»", '"'),
    **dict.fromkeys("‘’‚‛‹›", "'"),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    "…": "...",
    **dict.fromkeys("\u00a0\u2009\u202f", " "),
    **dict.fromkeys("\u00ad\u200b\u2060\ufeff", ""),
}
# Letters and punctuation: of these, ligatures and wide forms have plain forms too.
PLAIN_CATEGORIES = frozenset(("Lu", "Ll", "Pd", "Pe", "Po", "Ps"))

BLANKS = re.compile(r"\s+", re.ASCII)


@dataclass(frozen=True)
class Sentence:
    """A sentence with its case, in which it is answered, and what is translated: in sentence case, with placeholders.

    `protected` is None if there is nothing to translate. If `raw`, the sentence and its translation stay as they are,
    but for placeholders that the model does not know.
    `direction` has the languages, for models of many; None: the tokenizer's current ones. The prefix stands before
    what is translated.
    """

    source: str
    case: Case = Case.SENTENCE
    protected: ProtectedText | None = None
    raw: bool = False
    direction: Direction | None = None
    prefix: str = ""

    @property
    def text(self) -> str:
        """What is translated; "" if there is nothing to."""
        return self.protected.text if self.protected else ""

    @property
    def given(self) -> str:
        """What the model is given; "" if it is given nothing."""
        return self.prefix + self.text if self.text else ""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The placeholders that a translation must have."""
        return self.protected.placeholders if self.protected else ()

    def needs_links(self, translation: str) -> bool:
        """Whether an item's place in a translation is to be found by links between words."""
        return bool(self.protected and self.protected.missing(translation))

    def finished(self, translation: str, links: Sequence[Link] = ()) -> tuple[str, list[Link]]:
        """Return the model's translation of `text` as one of the sentence, and the links between words of the two.

        Links between words of `text` and `translation` are given if they are known.
        """
        if self.protected is None:
            return self.source, [(i, i) for i in range(len(self.source.split()))]
        if self.raw and not self.protected.items:
            # Of models with placeholders, those that the source has.
            stays = set(PLACEHOLDER.findall(self.source))
            return PLACEHOLDER.sub(lambda match: match[0] if match[1] in stays else "", translation), list(links)
        translation = in_case(translation, self.case)
        edits = self.protected.edits(translation, links)
        if not edits and not self.protected.items:
            return translation, list(links)
        sources = moved(self.text, self.protected.source_edits())
        targets = moved(translation, edits)
        return edited(translation, edits), [(sources[source], targets[target]) for source, target in links]


class Preparation:
    """Prepares text for a model.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        protect: Regular expressions of what else is not translated.
        raw: Whether to leave sentences as they are.
        source_prefix: What stands before every sentence that the model is given.

    Raises:
        ValueError: An expression is none, or matches an empty text.
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
        # Whether sentences began with a capital in training; None if that is not known.
        self._capitals: bool | None = getattr(settings, "training_capitals", None)
        self._knows_upper_case = bool(getattr(settings, "training_upper_case", False))
        self._spellings = _by_folded_case(getattr(settings, "training_spellings", None) or "")
        self._alphabet = _Alphabet.of(tokenizer)
        # The vocabulary may have marks that were too rare to be learned.
        marks = getattr(settings, "training_marks", None)
        rare = {} if marks is None else {mark: plain for mark, plain in PLAIN_PUNCTUATION.items() if mark not in marks}
        self._plain_marks = str.maketrans(rare)
        # Most models have learned what becomes of numbers; without placeholders, to leave them out would do harm.
        knows_numbers = getattr(settings, "training_numbers", True)
        with_numbers = bool(self.placeholders) or not knows_numbers
        self.protector = Protector(patterns, self._alphabet.can_write, with_numbers)
        self._costs = Memo(self._tokens_of)

    def layout(self, text: str, split: SplitSentences = "auto", language: str | None = None) -> Layout:
        """Cut a text into sentences, if it is to be split, and long sentences into pieces."""
        layout = self.split(text, split, language)
        return self.fit(layout) if self.may_be_long(layout) else layout

    def split(self, text: str, split: SplitSentences = "auto", language: str | None = None) -> Layout:
        """Cut a text into sentences of its language, by default that of the tokenizer."""
        if self.raw:
            return Layout((text,), ("", "")) if text.strip() else Layout((), (text,))
        if split == "never" or (split == "auto" and self._has_paragraphs):
            return whole(text)
        return split_sentences(text, language or getattr(self.tokenizer, "src_lang", only_pair(self.tokenizer)[0]))

    def may_be_long(self, layout: Layout) -> bool:
        """Whether sentences may be longer than those in training, told without the tokenizer."""
        # Tokens have a byte or more, but for special ones and letters that are spelt out.
        return not self.raw and 2 * max((len(each.encode()) for each in layout.sentences), default=0) > self.max_length

    def fit(self, layout: Layout) -> Layout:
        """Cut sentences into pieces that are no longer than those in training, at clauses or else at white space."""
        return layout.cut(partial(cut_long_sentence, limit=self.max_length, measure=self.num_tokens))

    def num_tokens(self, sentence: str) -> int:
        """Return the number of tokens that the model is given for a sentence, end token included; 0 if none."""
        ((ids,), _) = encode(self.tokenizer, [self.sentence(sentence).given])
        return len(ids)

    def sentence(self, source: str, glossary: Glossary | None = None, direction: Direction | None = None) -> Sentence:
        """Prepare a sentence; terms of the glossary are translated as it tells, even if they look like items."""
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
        # Case is that of the words, not of a link.
        words = edited(text, [(i, k, " " * (k - i)) for i, k in spans])
        case = case_of(words)
        if case is Case.UPPER and self._knows_upper_case:
            case = Case.SENTENCE
        elif case is Case.SENTENCE and self.placeholders and self.is_cased:
            text, names = self._capital_words(text, edited(words, [(i, k, " " * (k - i)) for i, k in terms]))
            spans += names
        # As the vocabulary can write it, with one blank between words, as in training.
        protected = _rewritten(with_placeholders(text, spans, self.placeholders), self._plain)
        if not any(map(str.isalpha, protected.text)):
            return Sentence(source, **given)
        kept = {word for start, end in terms for word in text[start:end].split()}
        protected = _rewritten(protected, partial(self._in_sentence_case, case=case, kept=kept))
        return Sentence(source, case, protected, **given)

    def _in_sentence_case(self, text: str, case: Case, kept: Collection[str]) -> str:
        """Return a text as the model saw text in training, but for words that are kept."""
        if not self.is_cased:
            return text.lower()
        # Lower case may be how the model saw all text.
        if case is Case.SENTENCE or (case is Case.LOWER and not self._capitals):
            return text
        return sentence_case(
            text, lambda word: word if word in kept else self.spell(word), capital=self._capitals is not False
        )

    def _capital_words(self, text: str, words: str) -> tuple[str, list[Span]]:
        """Return a text with the words in capitals as the vocabulary has them, and where those are that it has not.

        Those, names and acronyms, become items. `words` is the text with blanks in place of its items and terms.
        Models without placeholders have learned what becomes of such words.
        """
        names: list[Span] = []
        known: list[Edit] = []
        for match in WORDS.finditer(words):
            word = match[0]
            if len(word) < 2 or not word.isalpha() or not word.isupper() or self._is_one_token(word):
                continue
            written = self.spell(word)
            if self._is_one_token(written) and len(written) == len(word):
                known.append((*match.span(), written))
            else:
                names.append(match.span())
        return edited(text, known), names

    def _plain(self, text: str) -> str:
        return self._alphabet.plain(text.translate(self._plain_marks))

    def said(self, sentence: Sentence, translation: str) -> str:
        """Return about what the model said for a sentence, from the translation that became of it."""
        for text, _, placeholder, _ in sentence.protected.items if sentence.protected else ():
            translation = translation.replace(text, placeholder, 1)
        return sentence_case(translation, self.spell) if sentence.case in (Case.UPPER, Case.TITLE) else translation

    @property
    def is_cased(self) -> bool:
        """Whether the vocabulary has capitals."""
        return self._alphabet.is_cased

    def spell(self, word: str) -> str:
        """Return a word in its usual case, as recorded, or in the one of the fewest tokens, the lower one first."""
        if spelling := self._spellings.get(word.casefold()):
            return spelling
        lower = word.lower()
        return min(dict.fromkeys((lower, capitalized(lower), word)), key=self._costs.__getitem__)

    def _tokens_of(self, word: str) -> tuple[int, int]:
        """Return how many tokens of a word within a text are unknown, and how many it has."""
        side: Any = getattr(self.tokenizer, "source_tokenizer", self.tokenizer)
        before, row = side(["a", f"a {word}"], add_special_tokens=False, verbose=False)["input_ids"]
        return row.count(side.unk_token_id), len(row) - len(before)

    def _is_one_token(self, word: str) -> bool:
        return self._costs[word] == (0, 1)


@lru_cache(maxsize=16)
def _by_folded_case(words: str) -> dict[str, str]:
    """Return a thousand words or so by their case-folded form: once for a model, not for each batch."""
    return {word.casefold(): word for word in words.split()}


def _rewritten(protected: ProtectedText, write: Callable[[str], str]) -> ProtectedText:
    """Return a text in another writing, which may be longer or shorter."""
    text = protected.text
    if (written := write(text)) == text:
        return protected
    items = tuple(item._replace(start=len(write(text[: item.start]))) for item in protected.items)
    return ProtectedText(written, items)


class Memo(dict[str, _T]):
    """Results of a function, kept for up to `MAX_KEPT` texts: a server is given ever new ones."""

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
    """The characters that the source vocabulary of a tokenizer can write in other ways than byte by byte."""

    _of: "WeakKeyDictionary[PreTrainedTokenizerBase, _Alphabet]" = WeakKeyDictionary()

    def __init__(self, side: Any):
        self._side, self._size = side, len(side)
        self._knows = Memo(self._has).__getitem__
        self._plain = Memo(self._plain_form).__getitem__

    @classmethod
    def of(cls, tokenizer: Any) -> "_Alphabet":
        """Return that of a tokenizer, built at the first call."""
        side, known = getattr(tokenizer, "source_tokenizer", tokenizer), cls._of.get(tokenizer)
        if known is None or known._size != len(side):
            known = cls._of[tokenizer] = cls(side)
        return known

    def can_write(self, character: str) -> bool:
        """Whether the vocabulary has a character, or a plain form of it."""
        return self._plain(character) is not None

    def plain(self, text: str) -> str:
        """Return a text with plain forms of characters that are unknown, and one blank for several."""
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
        # U+2581 is a blank in the vocabulary of unigram.
        return self._characters.issuperset(written.strip("\u2581 "))

    @cached_property
    def is_cased(self) -> bool:
        """Whether tokens of several letters have capitals, or any where none has several letters."""
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
