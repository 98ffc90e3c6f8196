"""Case of text: models rarely see capitals or title case, so these are translated in sentence case and restored."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from unicodedata import category

from .languages import base_code

# Fewest words of a title: shorter text in title case is a name, or a German noun.
MIN_TITLE_WORDS = 3

# Words with apostrophes, digits and combining accents; compounds also with hyphens.
_WORD = r"[\w\u0300-\u036f]+"
WORDS, COMPOUNDS = re.compile(f"{_WORD}(?:['’]{_WORD})*"), re.compile(f"{_WORD}(?:['’-]{_WORD})*")

# Georgian is written without case, though Unicode maps its letters to capitals (Mtavruli).
_GEORGIAN = "\u10d0-\u10ff\u1c90-\u1cbf"
_IS_GEORGIAN, _OTHERS = re.compile(f"[{_GEORGIAN}]"), re.compile(f"[^{_GEORGIAN}]+")

# Unicode's SpecialCasing.txt: Turkish has i and ı; Lithuanian keeps the dot of i below an accent.
_TURKIC, _LITHUANIAN = ("tr", "az"), "lt"
_DOTTED = re.compile("([ijįIJĮ]\u0328?)\u0307")
_ACCENTED = re.compile("([IJĮ]\u0328?)(?=[\u0300\u0301\u0303])")
_COMPOSED = str.maketrans({"Ì": "I\u0300", "Í": "I\u0301", "Ĩ": "I\u0303"})

# The first letter or digit of a text, with a dot above.
_INITIAL = re.compile("[^\\W_](?:\u0328?\u0307)?")


class Case(Enum):
    """Case of a text."""

    SENTENCE, UPPER, TITLE, LOWER = range(4)


def case_of(text: str) -> Case:
    """Return the case of a sentence; sentence case if it has a caseless letter, such as of Chinese or Georgian.

    Upper case needs at least two letters.
    """
    # The Ukrainian or Hawaiian apostrophe, among others, is a modifier letter.
    letters = [letter for letter in text if letter.isalpha() and category(letter) != "Lm"]
    if not all(map(has_case, letters)):
        return Case.SENTENCE
    if len(letters) > 1 and all(map(str.isupper, letters)):
        return Case.UPPER
    if letters and all(map(str.islower, letters)):
        return Case.LOWER
    words = [word for word in WORDS.findall(text) if word[0].isalpha()]
    is_title = all(word[0].istitle() and word[1:] == word[1:].lower() for word in words)
    return Case.TITLE if is_title and len(words) >= MIN_TITLE_WORDS else Case.SENTENCE


def has_case(letter: str) -> bool:
    return (letter.islower() or letter.istitle()) and not _IS_GEORGIAN.match(letter)


def upper(text: str, language: str | None = None) -> str:
    """Convert a text to upper case by the rules of its language, such as "tr" or "tur_Latn"."""
    return _OTHERS.sub(lambda match: match[0].upper(), _as_before_upper(text, language))


def lower(text: str, language: str | None = None) -> str:
    """Convert a text to lower case by the rules of its language."""
    if (code := base_code(language or "")) in _TURKIC:
        text = text.replace("I\u0307", "i").replace("İ", "i").replace("I", "ı")
    elif code == _LITHUANIAN:
        text = _ACCENTED.sub("\\1\u0307", text.translate(_COMPOSED))
    return _OTHERS.sub(lambda match: match[0].lower(), text)


def capitalized(text: str, language: str | None = None) -> str:
    """Convert the first letter of a text to title case, unless a digit comes before it."""
    return _INITIAL.sub(lambda match: _as_before_upper(match[0], language).title(), text, count=1)


def _as_before_upper(text: str, language: str | None) -> str:
    """Return a text that Unicode's default mapping turns into the capitals of the language."""
    code = base_code(language or "")
    if code in _TURKIC:
        return text.replace("i", "İ")
    return _DOTTED.sub(r"\1", text) if code == _LITHUANIAN else text


def sentence_case(
    text: str, spell: Callable[[str], str] | None = None, capital: bool = True, language: str | None = None
) -> str:
    """Convert a text to sentence case.

    Args:
        text: The text.
        spell: Returns a word as it is written within a sentence; by default in lower case.
        capital: Whether the sentence begins with a capital.
        language: Language of the text.
    """
    spell = spell or partial(lower, language=language)
    written = COMPOUNDS.sub(lambda match: spell(match[0]), text)
    return capitalized(written, language) if capital else written


def usual_spellings(sentences: Iterable[str]) -> dict[str, str]:
    """Return the most frequent spelling of words within sentences by case-folded form, most frequent words first."""
    spellings: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in sentences:
        if case_of(sentence) in (Case.SENTENCE, Case.LOWER):
            # Skip the first word, which has a capital anyway.
            for word in COMPOUNDS.findall(sentence)[1:]:
                spellings[word.casefold()][word] += 1
    frequent = sorted(spellings.items(), key=lambda entry: -entry[1].total())
    return {folded: counts.most_common(1)[0][0] for folded, counts in frequent if counts.total() > 1}


def in_case(text: str, case: Case, language: str | None = None) -> str:
    """Convert a text from sentence case; lower case counts as careless typing and is not restored."""
    if case is Case.UPPER:
        return upper(text, language)
    return WORDS.sub(lambda match: capitalized(match[0], language), text) if case is Case.TITLE else text
