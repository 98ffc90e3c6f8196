"""Words of the built-in corpus: word classes, and the word lists from `lexicon.tsv`."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True)
class Noun:
    """A noun of both languages.

    Attributes:
        english: Singular.
        spanish: Singular.
        gender: "m" or "f", of the Spanish noun.
        kinds: What the noun names, words separated by spaces; verbs and adjectives select by them.
        english_plural: Only where the rules of `english_noun` do not give it.
        spanish_plural: Only where the rules of `spanish_plural` do not give it.
        feminine: Spanish for a woman of this profession; given only for professions.
        number: "both", "singular" (never used in the plural) or "mass" (uncountable).
        stressed_a: A feminine noun that takes *el* and *un*: el agua.
    """

    english: str
    spanish: str
    gender: str
    kinds: str
    english_plural: str = ""
    spanish_plural: str = ""
    feminine: str = ""
    number: str = "both"
    stressed_a: bool = False


@dataclass(frozen=True)
class Name:
    """A proper name of a person (`gender` given) or a city (`gender` empty)."""

    english: str
    spanish: str
    gender: str = ""


@dataclass(frozen=True)
class Adjective:
    """An adjective of both languages.

    Attributes:
        english: The adjective.
        spanish: Masculine singular.
        kinds: Kinds of the nouns it describes.
        copula: "ser" or "estar" after *to be*; "" if it is only used beside a noun.
        gradable: Whether "as ... as" and "how ..." make sense.
        prenominal: The four forms (masculine, feminine; then plural) of one that precedes the Spanish noun.
        feminine: Feminine singular, only where the rules of `agree` do not give it.
        plural: Masculine plural, only where the rules of `spanish_plural` do not give it.
    """

    english: str
    spanish: str
    kinds: str
    copula: str = "ser"
    gradable: bool = True
    prenominal: str = ""
    feminine: str = ""
    plural: str = ""


@dataclass(frozen=True)
class Verb:
    """A verb of both languages and the kinds of words it goes with.

    Attributes:
        english: Base form; a particle may follow ("look for").
        spanish: Infinitive.
        subjects: Kinds of its subjects.
        objects: Kinds of its direct objects; "" if intransitive.
        places: Kinds of the places where it happens or, with `motion`, to which it leads.
        past: English past, only where the rule of `english_past` does not give it.
        stative: A state: its past is the Spanish imperfect and no modal governs it.
        personal_a: Kinds of the objects that take the preposition *a*.
        motion: Its place is a destination.
        ditransitive: Has a recipient: "to my sister".
        inverted: The thing liked is the Spanish subject (gustar).
        habitual: Goes with "every day" and "often".
        sociable: Goes with "with my sister".
        accidental: Not planned by anybody, so no modal governs it.
    """

    english: str
    spanish: str
    subjects: str
    objects: str = ""
    places: str = ""
    past: str = ""
    stative: bool = False
    personal_a: str = "person animal"
    motion: bool = False
    ditransitive: bool = False
    inverted: bool = False
    habitual: bool = False
    sociable: bool = False
    accidental: bool = False


@dataclass(frozen=True)
class Determiner:
    """A determiner and its four Spanish forms: masculine, feminine, then plural; "-" for a form it lacks.

    `nouns` is "count", "mass" or "any"; `role` "definite", "possessive" or "indefinite"; `weight` its frequency.
    """

    english: str
    spanish: str
    role: str
    nouns: str = "count"
    weight: int = 1


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun: subject forms, agreement, direct object forms and the Spanish for "with" plus it."""

    english: str
    spanish: str
    person: int
    plural: bool
    gender: str
    english_object: str
    direct: str
    companion: str


def _read_entries() -> dict[str, list[list[str]]]:
    """Read the cells of each entry, grouped by kind of entry."""
    entries: dict[str, list[list[str]]] = defaultdict(list)
    for line in files(__package__).joinpath("lexicon.tsv").read_text(encoding="utf-8").split("\n"):
        if line and not line.startswith("#"):
            kind, *cells = line.split("\t")
            entries[kind].append(cells)
    return entries


_ENTRIES = _read_entries()
_GROUPS = {f"@{name}": kinds for name, kinds in _ENTRIES["group"]}


def _parse(value: str, kind: Any) -> str | bool | int:
    if kind is bool:
        return {"yes": True, "no": False}[value]
    if kind is int:
        return int(value)
    return " ".join(_GROUPS.get(word, word) for word in value.split(" "))


def _named_cells(cells: Iterable[str]) -> dict[str, str]:
    return dict(cell.split("=", maxsplit=1) for cell in cells)


def _entries(kind: str, word_class: type[T]) -> tuple[T, ...]:
    """Build the words of one kind of entry."""
    types = get_type_hints(word_class)
    words = []
    for cells in _ENTRIES[kind]:
        positional = [cell for cell in cells if "=" not in cell]
        values = dict(zip(types, positional, strict=False)) | _named_cells(cells[len(positional) :])
        words.append(word_class(**{name: _parse(value, types[name]) for name, value in values.items()}))
    return tuple(words)


NOUNS = _entries("noun", Noun)
PEOPLE = _entries("person", Name)
CITIES = _entries("city", Name)
ADJECTIVES = _entries("adjective", Adjective)
VERBS = _entries("verb", Verb)
DETERMINERS = _entries("determiner", Determiner)
PRONOUNS = _entries("pronoun", Pronoun)
CONJUGATIONS = {infinitive: _named_cells(parts) for infinitive, *parts in _ENTRIES["conjugation"]}
FREQUENCIES = {english: spanish for english, spanish in _ENTRIES["frequency"]}
TIMES: dict[str, dict[str, str]] = {}
for _tense, _english, _spanish in _ENTRIES["time"]:
    TIMES.setdefault(_tense, {})[_english] = _spanish

__all__ = [
    "ADJECTIVES",
    "CITIES",
    "CONJUGATIONS",
    "DETERMINERS",
    "FREQUENCIES",
    "NOUNS",
    "PEOPLE",
    "PRONOUNS",
    "TIMES",
    "VERBS",
    "Adjective",
    "Determiner",
    "Name",
    "Noun",
    "Pronoun",
    "Verb",
]
