"""How the texts of a side are written: prose, words, symbols separated by spaces, or SMILES."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple

# A bracket atom, an organic atom, a bond, a branch, a ring closure (two digits after %), a dot or an arrow. Daylight's
# grammar of SMILES; as a pattern, Schwaller et al. 2018, "Found in Translation".
SMILES_TOKEN = r"\[[^\[\]\s]+\]|Br|Cl|[BCNOPSFI]|[bcnops]|%[0-9]{2}|[0-9]|[()=#$\-+\\/:~.@?>*]"
_SMILES = re.compile(f"(?:{SMILES_TOKEN})+")
_ATOM = re.compile(r"\[|[BCNOPSFI]|[bcnops]")
_STRUCTURE = re.compile(r"[()\[\]=#0-9]")

# Different texts that are looked at, half of them to learn from, half held out; and the fewest that tell anything.
SAMPLE, FEWEST = 20_000, 100

# The figures behind the limits: docs/measurements/sequences.md. Symbols are a closed set: at least this share of the
# held-out ones occurs in the other half. Prose stays below 0.97 with 20,000 lines.
CLOSED_SET = 0.99

# Words: fewer than this many a text, of this many characters in all, from an alphabet that is not Han's.
MAX_WORDS, MAX_CHARACTERS, MAX_ALPHABET = 2.0, 24.0, 500

# Below this share of known characters, or if it has more than `MAX_ALPHABET`, an alphabet of composed characters, such
# as Hangul's syllables, is decomposed.
KNOWN_CHARACTERS = 0.99

PROSE, WORDS, SYMBOLS, SMILES = "bpe", "character", "whitespace", "smiles"


class Notation(NamedTuple):
    """How texts are written.

    Attributes:
        algorithm: Tokenizer algorithm that suits them: "bpe" for prose, "character" for words, "whitespace" for
            symbols separated by spaces, "smiles" for molecules.
        reason: What the texts showed.
        decomposed: Whether characters need canonical decomposition (NFD) to be known from other texts.
    """

    algorithm: str
    reason: str
    decomposed: bool = False

    @property
    def is_prose(self) -> bool:
        return self.algorithm == PROSE

    def spelled(self, text: str) -> str:
        """Return a text as it is split into tokens."""
        return unicodedata.normalize("NFD", text) if self.decomposed else text


def find_notation(texts: Iterable[str]) -> Notation:
    """Tell how texts are written, from how much of one half of them occurs in the other half."""
    distinct = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    Random(0).shuffle(distinct)
    sample = distinct[:SAMPLE]
    if len(sample) < FEWEST:
        return Notation(PROSE, f"only {len(sample)} different texts")
    words, known_words = _mean_and_known(sample, str.split)
    characters, known_characters = _mean_and_known(sample, list)
    shape = f"{words:.1f} words of {characters:.0f} characters in a text"
    if all(map(_SMILES.fullmatch, sample)) and all(map(_ATOM.search, sample)):
        if 2 * sum(map(bool, map(_STRUCTURE.search, sample))) > len(sample):
            return Notation(SMILES, "every text is SMILES")
    if words >= MAX_WORDS and known_words >= CLOSED_SET:
        types = len({symbol for text in sample for symbol in text.split()})
        return Notation(SYMBOLS, f"{types} symbols separated by spaces, {words:.1f} in a text")
    if words >= MAX_WORDS or characters > MAX_CHARACTERS:
        return Notation(PROSE, f"{shape}, {1 - known_words:.1%} of the words new in held-out texts")
    decomposed = known_characters < KNOWN_CHARACTERS or len(set().union(*sample)) > MAX_ALPHABET
    notation = Notation(WORDS, "", decomposed)
    alphabet = set().union(*map(notation.spelled, sample))
    reason = f"{shape}, from {len(alphabet)} different characters"
    if len(alphabet) > MAX_ALPHABET:
        return Notation(PROSE, reason)
    return notation._replace(reason=reason + (" after canonical decomposition" if decomposed else ""))


def share_symbols(sources: Sequence[str], targets: Sequence[str], notation: Notation) -> bool:
    """Whether both sides, in the same notation, are mostly written with the same symbols."""
    split = split_into_symbols(notation.algorithm)
    known = {symbol for text in sources for symbol in split(text)}
    occurrences = [symbol in known for text in targets for symbol in split(text)]
    return 10 * sum(occurrences) >= 9 * len(occurrences)


def check_smiles(text: str) -> None:
    """Raise a ValueError that names the first character within outer white space that is no part of a SMILES token."""
    text, end = text.strip(), 0
    for token in re.finditer(SMILES_TOKEN, text):
        if token.start() > end:
            break
        end = token.end()
    if end < len(text):
        raise ValueError(
            f"{text[end]!r}, character {end + 1} of {text!r}, is not SMILES; correct it, or use `character`"
        )


def split_into_symbols(algorithm: str) -> Callable[[str], Sequence[str]]:
    """Return the function that splits a text into what an error rate counts: characters, symbols or atoms."""
    if algorithm == SMILES:
        return re.compile(rf"{SMILES_TOKEN}|.").findall
    return list if algorithm == WORDS else str.split


def _mean_and_known(texts: Sequence[str], split: Callable[[str], Sequence[str]]) -> tuple[float, float]:
    """Return the mean number of symbols in a text, and the share of the second half's that the first half has."""
    half = len(texts) // 2
    known = {symbol for text in texts[:half] for symbol in split(text)}
    held_out = [symbol in known for text in texts[half:] for symbol in split(text)]
    return len(held_out) / max(1, len(texts) - half), sum(held_out) / max(1, len(held_out))
