"""Case of text: models rarely see capitals or title case, so these are translated in sentence case and restored."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from enum import Enum

# Fewest words of a title: shorter text in title case is a name, or a German noun.
MIN_TITLE_WORDS = 3

# Words with apostrophes and digits; compounds also with hyphens.
WORDS, COMPOUNDS = re.compile(r"\w+(?:['’]\w+)*"), re.compile(r"\w+(?:['’-]\w+)*")


class Case(Enum):
    """Case of a text."""

    SENTENCE, UPPER, TITLE, LOWER = range(4)


def case_of(text: str) -> Case:
    """Return the case of a sentence; upper case needs at least two cased letters, all of them capitals."""
    letters = [letter for letter in text if letter.isupper() or letter.islower()]
    if len(letters) > 1 and all(letter.isupper() for letter in letters):
        return Case.UPPER
    if letters and all(letter.islower() for letter in letters):
        return Case.LOWER
    words = [word for word in WORDS.findall(text) if word[0].isupper() or word[0].islower()]
    is_title = all(word[0].isupper() and word[1:] == word[1:].lower() for word in words)
    return Case.TITLE if is_title and len(words) >= MIN_TITLE_WORDS else Case.SENTENCE


def sentence_case(text: str, spell: Callable[[str], str] = str.lower, capital: bool = True) -> str:
    """Convert a text to sentence case; `spell` returns a word as it is written within a sentence."""
    written = COMPOUNDS.sub(lambda match: spell(match[0]), text)
    return capitalized(written) if capital else written


def usual_spellings(sentences: Iterable[str]) -> dict[str, str]:
    """Return the most frequent spelling of words within sentences by case-folded form, most frequent words first."""
    spellings: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in sentences:
        if case_of(sentence) in (Case.SENTENCE, Case.LOWER):
            # Skip the first word, which has a capital anyway.
            for word in COMPOUNDS.findall(sentence)[1:]:
                spellings[word.casefold()][word] += 1
    frequent = sorted(spellings.items(), key=lambda each: -each[1].total())
    return {folded: counts.most_common(1)[0][0] for folded, counts in frequent if counts.total() > 1}


def in_case(text: str, case: Case) -> str:
    """Convert a text from sentence case; lower case counts as careless typing and is not restored."""
    if case is Case.UPPER:
        return text.upper()
    return WORDS.sub(lambda match: capitalized(match[0]), text) if case is Case.TITLE else text


def capitalized(text: str) -> str:
    """Capitalize the first letter of a text, unless a digit comes before it."""
    first = next((i for i, character in enumerate(text) if character.isalnum()), 0)
    return text[:first] + text[first : first + 1].upper() + text[first + 1 :]
