"""Prepare user text as the sentences that a model reads, and restore its form in translations.

What is done to a text follows from the facts that training recorded (`text.facts`), rule by rule: text like that of
training reaches the model as it is. Lines are split into sentences, and a sentence longer than any in training is cut
into pieces. Text in another case than usual is read in the usual one. Items such as links (see `text.protection`)
become placeholders, or are removed for models without placeholders, and are put back into the translation.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice, repeat
from re import Pattern
from typing import Any, Literal, cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.features import Features, split_features
from ..errors import shorten, unknown_words
from ..pretrained.alphabet import PLAIN_PUNCTUATION, Alphabet, Memo
from ..pretrained.languages import Direction, current_pair, tag_sources
from ..pretrained.teacher_forcing import position_limit, tightest_limit
from ..pretrained.text_facts import facts_of
from ..text.casing import COMPOUNDS, WORDS, Case, capitalized, case_of, in_case, lower, sentence_case
from ..text.facts import CASE_RULES, RULES, TextFacts, chosen_rules
from ..text.protection import (
    PLACEHOLDER,
    Edit,
    Link,
    ProtectedText,
    Protector,
    Span,
    checked_pattern,
    edited,
    masked,
    placeholders_of,
    with_placeholders,
)
from ..text.sentences import TextLayout, cut_long_sentence, split_lines, split_sentences, whole
from ..text.spelling import Lexicon
from .constrained_search import Terms
from .glossary import Glossary, normalized

logger = logging.get_logger(__name__)

SplitSentences = Literal["auto", "never", "always"]
"""Whether to split lines into sentences; "auto" does if the model was trained on single sentences."""

# Most tokens of a sentence, and of another text, if neither training nor the model sets a limit.
DEFAULT_LENGTH, MAX_LENGTH = 512, 2**31

# For sources of at least `SHORT_FROM` bytes, a translation of less than `SHORT_SHARE` of their bytes is suspicious.
SHORT_SHARE, SHORT_FROM = 1 / 3, 60

BLANKS = re.compile(r"\s+", re.ASCII)


@dataclass(frozen=True)
class Prepared:
    """A sentence as the model reads it, and what is needed to restore its translation.

    Attributes:
        source: The original sentence, without features.
        cells: The features that follow it, with a tab before each column.
        unknown_tags: Those of its tags that training did not show.
        case: The case to restore in the translation, if not that of sentences.
        protected: The text to translate, with placeholders; None if there is nothing to translate.
        direction: Languages, for multilingual models; None for the tokenizer's current ones.
        prefix: Prefix of the text to translate.
        rules: Names of the rules that changed what the model reads or the translation.
        target_lang: Language of the translation, if known.
        ids: Source token ids, end token included; none if there is nothing to translate.
        is_truncated: Whether the ids lack the end of the sentence.
        terms: Terms required in its translations.
        final_lang: The language to translate into from the second of `direction`, if that is only on the way.
        is_aligned: Whether its translations are to have word alignments.
    """

    source: str
    cells: str = ""
    unknown_tags: tuple[str, ...] = ()
    case: Case = Case.SENTENCE
    protected: ProtectedText | None = None
    direction: Direction | None = None
    prefix: str = ""
    rules: frozenset[str] = frozenset()
    target_lang: str | None = None
    ids: Sequence[int] = ()
    is_truncated: bool = False
    terms: Terms | None = None
    final_lang: str | None = None
    is_aligned: bool = False

    @property
    def text(self) -> str:
        """The text to translate; "" if there is none."""
        return self.protected.text if self.protected else ""

    @property
    def input_text(self) -> str:
        """The text that the model reads, with prefix and features; "" if there is nothing to translate."""
        return self.prefix + self.text + self.cells if self.text else ""

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The placeholders that a translation must have."""
        return self.protected.placeholders if self.protected else ()

    def needs_links(self, translation: str) -> bool:
        """Whether a translation lacks a placeholder, so that word links are needed to place its item."""
        return bool(self.protected and self.protected.missing(translation))

    def restore(self, translation: str, links: Sequence[Link] = ()) -> tuple[str, list[Link]]:
        """Turn the model's translation of `text` into that of `source`.

        Args:
            translation: Translation of `text`.
            links: Links between words of `input_text` and `translation`, if known.

        Returns:
            The translation of `source`, and the links between words of the two.
        """
        if self.protected is None:
            return self.source, [(i, i) for i in range(len(self.source.split()))]
        prefix = len(self.prefix.split())
        own = [(source - prefix, target) for source, target in links if source >= prefix]
        return self.protected.restore(in_case(translation, self.case, self.target_lang), own)


@dataclass(frozen=True)
class PreparedText:
    """A text as prepared sentences; those of `layout` are the original ones."""

    layout: TextLayout
    sentences: Sequence[Prepared] = ()
    is_aligned: bool = False


def encode(
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    max_source_length: int | None = None,
    directions: Iterable[Direction | None] = repeat(None),
) -> list[list[int]]:
    """Return the ids of each source sentence, none for a blank one.

    Args:
        tokenizer: Any tokenizer.
        sentences: Source sentences.
        max_source_length: Truncate sources to this many tokens, end token included; None for no truncation.
        directions: Languages of each sentence, where sources have tags; None for the tokenizer's current ones.
    """
    ids: list[list[int]] = [[] for _ in sentences]

    def tokenize(indices: list[int], **truncation: Any) -> None:
        if indices:
            texts = [sentences[i] for i in indices]
            with unknown_words(tokenizer, texts):
                rows = tokenizer(texts, return_attention_mask=False, verbose=False, **truncation)["input_ids"]
            for i, row in zip(indices, rows, strict=True):
                ids[i] = row

    tokenize([i for i, sentence in enumerate(sentences) if sentence.strip()])
    too_long = [i for i, row in enumerate(ids) if max_source_length is not None and len(row) > max_source_length]
    # Only the tokenizer knows which special tokens to keep, and which side to truncate.
    tokenize(too_long, truncation=True, max_length=max_source_length)
    return tag_sources(tokenizer, ids, directions)


class Preparation:
    """Prepares text for a model.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        protect: Regular expressions of further text not to translate.
        raw: Whether to leave sentences as they are.
        source_prefix: Prefix of every sentence.
        rules: Names of the rules that act, from `text.facts.RULES`, or "all"; by default those of the model's facts.

    Raises:
        ValueError: A regular expression is invalid or matches the empty string, a rule is unknown, or the facts of the
            model cannot be used.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        protect: Iterable[str | Pattern[str]] = (),
        raw: bool = False,
        source_prefix: str = "",
        rules: Iterable[str] | None = None,
    ):
        self.tokenizer, self.raw, self.source_prefix = tokenizer, raw, source_prefix
        self.placeholders, self.features = placeholders_of(tokenizer), Features.of(tokenizer)
        if isinstance(protect, str) or not isinstance(protect, Iterable):
            raise ValueError(f"`protect` is a {type(protect).__name__}; pass a list of regular expressions")
        patterns = [checked_pattern(pattern) for pattern in protect]
        for name, value in {"protect": patterns, "rules": rules}.items():
            if raw and value:
                raise ValueError(f"`{name}` has no effect with `raw`; leave one of them out")
        self._alphabet = Alphabet.of(tokenizer)
        self.facts = TextFacts() if raw else facts_of(model.generation_config, tokenizer)
        self.rules = self.facts.active if rules is None else frozenset() if raw else chosen_rules(rules)
        # Without facts, sentences are split if the caller names their language, and white space around a text is kept.
        unknown = RULES.keys() - self.facts.rules if not raw and rules is None else set()
        self._splits_by_language = "sentences" in unknown
        self._strips = "spaces" in self.rules | unknown
        limit = tightest_limit(self.facts.source_length or None, position_limit(model.config))
        self.max_length = limit or (DEFAULT_LENGTH if "sentences" in self.rules else MAX_LENGTH)
        self._learned_items = frozenset(self.facts.items)
        can_write = self._alphabet.can_write if "letters" in self.rules else None
        self.protector = Protector(patterns, can_write, self.rules)
        # Marks in the vocabulary, but too rare in training to be learned.
        shown = {*self.facts.marks, " "}
        rare = {mark: plain for mark, plain in PLAIN_PUNCTUATION.items() if mark not in shown and shown >= {*plain}}
        self._plain_marks = str.maketrans(rare)
        self._costs = Memo(self._tokens_of)
        self._has_seen = False

    def prepare(
        self,
        texts: Iterable[str | TextLayout],
        directions: Iterable[Direction | None] = repeat(None),
        *,
        split: SplitSentences = "auto",
        glossary: Glossary | None = None,
        max_source_length: int | None = None,
    ) -> list[PreparedText]:
        """Prepare texts, cutting sentences longer than any in training into pieces.

        Args:
            texts: Texts, or texts already split.
            directions: Languages of each text, for multilingual models; None for the tokenizer's current ones.
            split: Whether to split texts into sentences.
            glossary: Terms that stay in the text, even if they look like protected items.
            max_source_length: Truncate sentences to this many tokens, end token included; None for no truncation.
        """
        chosen = list(texts)
        # Only as many as there are texts; directions may be infinite.
        pairs = list(zip(chosen, islice(directions, len(chosen)), strict=True))
        layouts = [
            text if isinstance(text, TextLayout) else self.split(text, split, direction and direction[0])
            for text, direction in pairs
        ]
        rows = iter(
            self._encoded(
                self.sentence(sentence, glossary, direction)
                for layout, (_, direction) in zip(layouts, pairs, strict=True)
                for sentence in layout.sentences
            )
        )
        prepared = [PreparedText(layout, list(islice(rows, len(layout.sentences)))) for layout in layouts]
        self._check_spelling(sentence for text in prepared for sentence in text.sentences)
        if "cut" in self.rules and not self.features:
            prepared = [self._cut(text, glossary) if self._is_long(text) else text for text in prepared]
        return [replace(text, sentences=self._truncated(text.sentences, max_source_length)) for text in prepared]

    def split(self, text: str, split: SplitSentences = "auto", language: str | None = None) -> TextLayout:
        """Split a text into sentences by the rules of its language, by default the tokenizer's."""
        if self.features:
            return self._lines_with_features(text, self.features)
        bullets = "bullets" in self.rules
        is_split = "sentences" in self.rules or (self._splits_by_language and language is not None)
        if split == "always" or (split == "auto" and is_split):
            return split_sentences(text, language or self._languages(None)[0], bullets)
        if split == "auto" and "lines" in self.rules and "\n" in text:
            return split_lines(text, bullets)
        if self._strips:
            return whole(text, bullets)
        return TextLayout((text,), ("", "")) if text.strip() else TextLayout((), (text,))

    def _lines_with_features(self, text: str, features: Features) -> TextLayout:
        """Return each line as a sentence, since each has its own features."""
        sentences, gaps = list[str](), [""]
        for number, line in enumerate(text.split("\n")):
            gaps[-1] += "\n" if number else ""
            if line.strip():
                sentences.append(features.check(line))
                gaps.append("")
        return TextLayout(tuple(sentences), tuple(gaps))

    def _check_spelling(self, sentences: Iterable[Prepared]) -> None:
        """Warn if the first sentence ever seen is spelled with spaces, which the model does not know."""
        if self._has_seen or not (first := next((sentence for sentence in sentences if sentence.ids), None)):
            return
        self._has_seen = True
        symbols = first.source.split(" ")
        if len(symbols) > 2 and max(map(len, symbols)) == 1:
            if list(first.ids).count(self.tokenizer.unk_token_id) >= len(symbols) - 1:
                logger.warning(
                    f"{shorten(repr(first.source), 40)} has spaces between its letters, but the model knows no "
                    "spaces; write words as usual"
                )

    def _encoded(self, sentences: Iterable[Prepared], max_source_length: int | None = None) -> list[Prepared]:
        """Return sentences with their ids."""
        chosen = list(sentences)
        directions = [sentence.direction for sentence in chosen]
        rows = encode(self.tokenizer, [sentence.input_text for sentence in chosen], max_source_length, directions)
        return [replace(sentence, ids=ids) for sentence, ids in zip(chosen, rows, strict=True)]

    def _truncated(self, sentences: Sequence[Prepared], limit: int | None) -> Sequence[Prepared]:
        if limit is None or all(len(sentence.ids) <= limit for sentence in sentences):
            return sentences
        return [
            replace(short, is_truncated=len(sentence.ids) > limit)
            for sentence, short in zip(sentences, self._encoded(sentences, limit), strict=True)
        ]

    def _is_long(self, text: PreparedText) -> bool:
        return any(len(sentence.ids) > self.max_length for sentence in text.sentences)

    def _cut(self, text: PreparedText, glossary: Glossary | None) -> PreparedText:
        """Cut sentences longer than any in training into pieces, at clause ends or else at white space."""
        direction = text.sentences[0].direction

        def prepared(pieces: Iterable[str]) -> list[Prepared]:
            return self._encoded(self.sentence(piece, glossary, direction) for piece in pieces)

        cut = partial(cut_long_sentence, limit=self.max_length, measure=lambda piece: len(prepared([piece])[0].ids))
        layout = text.layout.cut(cut, "bullets" in self.rules)
        return PreparedText(layout, prepared(layout.sentences))

    def sentence(self, source: str, glossary: Glossary | None = None, direction: Direction | None = None) -> Prepared:
        """Prepare a sentence, except for its ids; glossary terms stay in the text, even if they look like items."""
        language, target_lang = self._languages(direction)
        source, cells = split_features(source, self.features)
        sentence = Prepared(source, cells, direction=direction, prefix=self.source_prefix, target_lang=target_lang)
        if cells:
            source = source.strip() if self._strips else source
            sentence = replace(
                sentence, source=source, unknown_tags=tuple(cast(Any, self.tokenizer).unknown_tags(cells))
            )
        if self.raw or not source.strip():
            unknown = () if self.placeholders else (match.span() for match in PLACEHOLDER.finditer(source))
            return replace(sentence, protected=with_placeholders(source, unknown, ()))
        text = self._alphabet.composed(source) if "letters" in self.rules else source
        terms: list[Span] = []
        if glossary is not None:
            text = normalized(text)
            terms = glossary.spans_in(text)
        draft, case = self._without_items(text, terms, language)
        # In characters of the vocabulary, as in training.
        draft.rewrite("letters", self._alphabet.plain)
        draft.rewrite("marks", lambda part: part.translate(self._plain_marks))
        draft.rewrite("spaces", lambda part: BLANKS.sub(" ", part))
        if self._is_copied(draft.protected.text):
            return replace(sentence, rules=frozenset(draft.used | ({"no_letters"} & self.rules)))
        kept = {word for start, end in terms for word in COMPOUNDS.findall(self._plain(text[start:end]))}
        case = self._spell_as_usual(draft, case, kept, language)
        return replace(sentence, case=case, protected=draft.protected, rules=frozenset(draft.used))

    def _without_items(self, text: str, terms: Sequence[Span], language: str | None) -> tuple["_Draft", Case]:
        """Return a sentence without its items, names and acronyms, and the case of its words."""
        items = [item for item in self.protector.find(text) if self._is_item(text, *item, terms)]
        spans, used = [span for span, _ in items], {kind for _, kind in items if kind}
        # Items, such as links, do not count for the case.
        words = masked(text, spans, " ")
        case = case_of(words)
        if case is Case.SENTENCE and "acronyms" in self.rules and self.placeholders and self.is_cased:
            text, names = self._capital_words(written := text, masked(words, terms, " "), language)
            spans += names
            used |= {"acronyms"} if names or text != written else set()
        return _Draft(with_placeholders(text, spans, self.placeholders), used, self.rules), case

    def _spell_as_usual(self, draft: "_Draft", case: Case, kept: Collection[str], language: str | None) -> Case:
        """Correct typos and convert to the usual case, except for the words in `kept`; return the case to restore."""
        # Names in upper or title case cannot be told from words.
        if case in (Case.SENTENCE, Case.LOWER):
            lexicon = _lexicon(self._words_of("words", language), self._words_of("lookalikes", language))
            draft.rewrite("typos", partial(_without_typos, lexicon=lexicon, kept=kept))
        rule = CASE_RULES[case]
        if case.name.lower() != self.facts.usual_case:
            draft.rewrite(rule, partial(self._in_usual_case, kept=kept, language=language))
        if rule not in draft.used or "restore_case" not in self.rules:
            return Case.SENTENCE
        if case in (Case.UPPER, Case.TITLE):
            draft.used.add("restore_case")
        return case

    def _is_item(self, text: str, span: Span, kind: str, terms: Iterable[Span]) -> bool:
        """Whether a span is left out of what the model reads: if it is no term, and training did not show it."""
        is_learned = bool(kind) and text[slice(*span)] in self._learned_items
        return not is_learned and not any(start < span[1] and span[0] < end for start, end in terms)

    def _is_copied(self, text: str) -> bool:
        """Whether a protected text has nothing to translate."""
        if "no_letters" in self.rules:
            return not any(map(str.isalpha, text))
        return not PLACEHOLDER.sub("", text).strip()

    def _languages(self, direction: Direction | None) -> tuple[str | None, str | None]:
        return direction or current_pair(self.tokenizer)

    def _words_of(self, name: str, language: str | None) -> str:
        """Return the words of a source language, by default the tokenizer's, that training recorded as `name`."""
        words = getattr(self.facts, name)
        return words.get("") or words.get(language or self._languages(None)[0], "")

    def _in_usual_case(self, text: str, kept: Collection[str], language: str | None) -> str:
        """Convert a text to the case of most training sources, except for the words in `kept`."""
        if self.facts.usual_case == "lower" or not self.is_cased:
            return lower(text, language)
        return sentence_case(
            text,
            lambda word: word if word in kept else self.spell(word, language),
            self.facts.has_capitals,
            language,
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
            is_acronym = word.isalpha() and case_of(word) is Case.UPPER and word not in self._learned_items
            if not is_acronym or self._is_one_token(word):
                continue
            written = self.spell(word, language)
            if self._is_one_token(written) and len(written) == len(word):
                known.append((*match.span(), written))
            else:
                names.append(match.span())
        return edited(text, known), names

    def _plain(self, text: str) -> str:
        return self._alphabet.plain(text).translate(self._plain_marks)

    def raw_output(self, sentence: Prepared, translation: str, language: str | None = None) -> str:
        """Approximate the model's output for a sentence from its restored translation into a language."""
        for text, _, placeholder, _ in sentence.protected.items if sentence.protected else ():
            translation = translation.replace(text, placeholder, 1)
        if sentence.case not in (Case.UPPER, Case.TITLE):
            return translation
        return sentence_case(translation, partial(self.spell, language=language), language=language)

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
        small = lower(word, language)
        return min(dict.fromkeys((small, capitalized(small, language), word)), key=self._costs.__getitem__)

    def _tokens_of(self, word: str) -> tuple[int, int]:
        """Return the number of unknown tokens of a word within a text, and of all its tokens."""
        side: Any = getattr(self.tokenizer, "source_tokenizer", self.tokenizer)
        before, row = side(["a", f"a {word}"], add_special_tokens=False, verbose=False)["input_ids"]
        return row.count(side.unk_token_id), len(row) - len(before)

    def _is_one_token(self, word: str) -> bool:
        return self._costs[word] == (0, 1)


class _Draft:
    """A sentence as rules rewrite it; `used` gets the names of those that change it."""

    def __init__(self, protected: ProtectedText, used: set[str], rules: Collection[str]):
        self.protected, self.used, self._rules = protected, used, rules

    def rewrite(self, rule: str, write: Callable[[str], str]) -> None:
        """Rewrite the text, moving its items along, if the rule acts."""
        text = self.protected.text
        if rule not in self._rules or (written := write(text)) == text:
            return
        items = tuple(item._replace(start=len(write(text[: item.start]))) for item in self.protected.items)
        self.protected = ProtectedText(written, items)
        self.used.add(rule)


@lru_cache(maxsize=128)
def _by_folded_case(words: str) -> dict[str, str]:
    """Return words by case-folded form; cached because a `Preparation` is built for every call."""
    return {word.casefold(): word for word in words.split()}


@lru_cache(maxsize=128)
def _lexicon(words: str, lookalikes: str) -> Lexicon:
    return Lexicon(frozenset(words.split()), frozenset(lookalikes.split()))


def _without_typos(text: str, lexicon: Lexicon, kept: Collection[str]) -> str:
    return COMPOUNDS.sub(lambda match: match[0] if match[0] in kept else lexicon.correct(match[0]), text)


def is_suspicious(source: str, translation: str) -> bool:
    """Whether a translation is empty, or much shorter than its source."""
    size = len(source.encode())
    if not translation.strip():
        return bool(source.strip())
    return size >= SHORT_FROM and len(translation.encode()) < SHORT_SHARE * size
