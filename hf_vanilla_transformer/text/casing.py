"""Text in capitals or title case, which models have rarely seen: translated in sentence case, answered in its own."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from enum import Enum

# Fewest words of a title: shorter ones are names, or German nouns.
MIN_TITLE_WORDS = 3

# Words with their apostrophes and digits, and the same with their hyphens.
WORDS, COMPOUNDS = re.compile(r"\w+(?:['’]\w+)*"), re.compile(r"\w+(?:['’-]\w+)*")


class Case(Enum):
    """How a text is written."""

    SENTENCE, UPPER, TITLE, LOWER = range(4)


def case_of(text: str) -> Case:
    """Return the case of a sentence: upper case if it has two cased letters or more, and all of them are capitals."""
    letters = [letter for letter in text if letter.isupper() or letter.islower()]
    if len(letters) > 1 and all(letter.isupper() for letter in letters):
        return Case.UPPER
    if letters and all(letter.islower() for letter in letters):
        return Case.LOWER
    words = [word for word in WORDS.findall(text) if word[0].isupper() or word[0].islower()]
    is_title = all(word[0].isupper() and word[1:] == word[1:].lower() for word in words)
    return Case.TITLE if is_title and len(words) >= MIN_TITLE_WORDS else Case.SENTENCE


def sentence_case(text: str, spell: Callable[[str], str] = str.lower, capital: bool = True) -> str:
    """Return a text in sentence case; `spell` returns how a word is written within a sentence."""
    written = COMPOUNDS.sub(lambda match: spell(match[0]), text)
    return capitalized(written) if capital else written


def usual_spellings(sentences: Iterable[str]) -> dict[str, str]:
    """Return how words within sentences are mostly written, by their case-folded form, the most frequent first."""
    spellings: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in sentences:
        if case_of(sentence) in (Case.SENTENCE, Case.LOWER):
            # The first is a capital anyway.
            for word in COMPOUNDS.findall(sentence)[1:]:
                spellings[word.casefold()][word] += 1
    frequent = sorted(spellings.items(), key=lambda each: -each[1].total())
    return {folded: counts.most_common(1)[0][0] for folded, counts in frequent if counts.total() > 1}


def in_case(text: str, case: Case) -> str:
    """Return a text in sentence case in another; lower case is taken for haste, and stays sentence case."""
    if case is Case.UPPER:
        return text.upper()
    return WORDS.sub(lambda match: capitalized(match[0]), text) if case is Case.TITLE else text


def capitalized(text: str) -> str:
    """Return the text with a capital for its first letter, unless a digit comes before it."""
    first = next((i for i, character in enumerate(text) if character.isalnum()), 0)
    return text[:first] + text[first : first + 1].upper() + text[first + 1 :]
