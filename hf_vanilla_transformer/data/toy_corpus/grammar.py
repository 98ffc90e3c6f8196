"""Grammar of the built-in corpus: morphology, phrases and clauses of both languages; deterministic."""

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from .lexicon import CONJUGATIONS, FREQUENCIES, Adjective, Determiner, Name, Noun, Pronoun, Verb
from .marks import MARK, Links, Unit, link, link_possibly, links, without_marks

Combination = tuple[str, str, str]
"""A relation and the two English words it joins, such as ("object", "eat", "apple")."""

ENDINGS = {
    "present": {"ar": "o as a amos an", "er": "o es e emos en", "ir": "o es e imos en"},
    "preterite": {"ar": "é aste ó amos aron", "er": "í iste ió imos ieron", "ir": "í iste ió imos ieron"},
    "imperfect": {"ar": "aba abas aba ábamos aban", "er": "ía ías ía íamos ían", "ir": "ía ías ía íamos ían"},
    "future": {"ar": "é ás á emos án", "er": "é ás á emos án", "ir": "é ás á emos án"},
}
STRONG_ENDINGS = "e iste o imos ieron"

# (person, plural): the index of a form in the rows above, and the dative clitic.
SLOTS = {(1, False): 0, (2, False): 1, (3, False): 2, (1, True): 3, (3, True): 4}
DATIVES = {(1, False): "me", (2, False): "te", (3, False): "le", (1, True): "nos", (3, True): "les"}

COPULAS = {spanish: Verb("be", spanish, "", stative=True) for spanish in ("ser", "estar")}


@dataclass(frozen=True)
class Modal:
    """A modal before an infinitive: "have to", *tener que*; `auxiliary` forms English questions and negations."""

    english: str
    auxiliary: str
    spanish: str
    link: str = ""


MODALS = {
    "can": Modal("can", "can", "poder"),
    "must": Modal("must", "must", "deber"),
    "want": Modal("want to", "do", "querer"),
    "have": Modal("have to", "do", "tener", "que"),
    "going": Modal("going to", "be", "ir", "a"),
}


# Morphology


def english_noun(noun: Noun, plural: bool) -> str:
    """Inflect a noun for number, by the spelling rules unless its plural is given."""
    if not plural:
        return noun.english
    if noun.english_plural:
        return noun.english_plural
    return re.sub(r"[^aeiou]y$", lambda m: m[0][0] + "ie", noun.english) + _sibilant_e(noun.english) + "s"


def _sibilant_e(word: str) -> str:
    return "e" if word.endswith(("s", "x", "z", "ch", "sh")) else ""


def english_third(base: str) -> str:
    """Third person singular present of a verb, with or without a particle."""
    verb, _, particle = base.partition(" ")
    if verb == "have":
        third = "has"
    elif verb == "go":
        third = "goes"
    else:
        third = re.sub(r"[^aeiou]y$", lambda m: m[0][0] + "ie", verb) + _sibilant_e(verb) + "s"
    return f"{third} {particle}".strip()


def english_past(verb: Verb) -> str:
    """Simple past, by the spelling rules unless it is given."""
    if verb.past or verb.english == "have":
        return verb.past or "had"
    stem = re.sub(r"[^aeiou]y$", lambda m: m[0][0] + "i", verb.english)
    return stem + ("d" if stem.endswith("e") else "ed")


def spanish_plural(word: str) -> str:
    """Plural by the spelling rules: lápiz, lápices; león, leones; libro, libros."""
    if word.endswith("z"):
        return word[:-1] + "ces"
    if word.endswith(("án", "és", "ín", "ón", "ús")):
        return word[:-2] + word[-2].translate(str.maketrans("áéíóú", "aeiou")) + word[-1] + "es"
    return word + ("s" if word[-1] in "aeiouáéó" else "es")


def agree(adjective: Adjective, gender: str, plural: bool) -> str:
    """Spanish form of an adjective in the predicate or after its noun."""
    feminine = adjective.feminine or re.sub("o$", "a", adjective.spanish)
    singular = feminine if gender == "f" else adjective.spanish
    if not plural:
        return singular
    return adjective.plural if adjective.plural and singular == adjective.spanish else spanish_plural(singular)


def _preterite(infinitive: str, irregular: dict[str, str], slot: int) -> str:
    """One form of a preterite not listed in full in `CONJUGATIONS`."""
    if "strong" in irregular:
        ending = STRONG_ENDINGS.split()[slot]
        return irregular["strong"] + (ending[1:] if irregular["strong"].endswith("j") and slot == 4 else ending)
    stem, group = infinitive[:-2], infinitive[-2:]
    if slot in (2, 4):
        stem = irregular.get("third", stem)
    if slot == 0 and group == "ar":
        # Before e the sound of the stem needs another letter: busqué, llegué, empecé.
        stem = re.sub("[cgz]$", lambda m: {"c": "qu", "g": "gu", "z": "c"}[m[0]], stem)
    return stem + ENDINGS["preterite"][group].split()[slot]


def conjugate(infinitive: str, tense: str, person: int, plural: bool = False) -> str:
    """Conjugate a Spanish verb.

    Args:
        infinitive: A verb of the lexicon, or any regular one.
        tense: "present", "preterite", "imperfect" or "future".
        person: 1, 2 or 3; the second person plural is not part of the grammar.
        plural: Whether the subject is plural.

    Raises:
        ValueError: The infinitive, tense or person is unknown.
    """
    group = infinitive[-2:].replace("í", "i")
    if tense not in ENDINGS or group not in ENDINGS[tense]:
        raise ValueError(
            f"cannot conjugate {infinitive!r} in the tense {tense!r}: give an infinitive in -ar, -er or -ir "
            f"and one of {', '.join(ENDINGS)}"
        )
    if (person, plural) not in SLOTS:
        raise ValueError(f"person={person}, plural={plural} has no form: give one of {', '.join(map(str, SLOTS))}")
    slot = SLOTS[person, plural]
    irregular = CONJUGATIONS.get(infinitive, {})
    if tense in irregular:
        return irregular[tense].split()[slot]
    if tense == "preterite":
        return _preterite(infinitive, irregular, slot)
    stem = infinitive[:-2]
    if tense == "present":
        if slot == 0 and "yo" in irregular:
            return irregular["yo"]
        stem = stem if slot == 3 else irregular.get("boot", stem)
    elif tense == "future":
        stem = irregular.get("stem", infinitive)
    return stem + ENDINGS[tense][group].split()[slot]


# Phrases and clauses


@dataclass(frozen=True)
class Phrase:
    """A piece of a sentence in both languages, with the features its neighbors agree with.

    Attributes:
        english: English words, with the marks of `marks.py`.
        spanish: Spanish words, likewise; "" if Spanish omits the phrase or puts it elsewhere.
        person: 1, 2 or 3.
        plural: Number.
        gender: "m" or "f".
        lemmas: English head nouns, one per coordinated part; none for a pronoun.
        kinds: Kinds of the head noun.
        definite: Whether an animal takes the personal *a*.
        combinations: The word combinations inside the phrase.
    """

    english: str
    spanish: str
    person: int = 3
    plural: bool = False
    gender: str = "m"
    lemmas: tuple[str, ...] = ()
    kinds: str = ""
    definite: bool = True
    combinations: frozenset[Combination] = frozenset()


@dataclass(frozen=True)
class Clause:
    """A subject, a verb and its complements.

    Attributes:
        subject: The English subject.
        verb: The verb.
        tense: "present", "past", "future" or a key of `MODALS`.
        complements: Phrases after the verb, in the same order in both languages.
        clitic: Spanish object pronoun before the verb.
        negated: Whether the clause contains "not".
        frequency: A key of `FREQUENCIES`, or "".
    """

    subject: Phrase
    verb: Verb
    tense: str
    complements: tuple[Phrase, ...] = ()
    clitic: str = ""
    negated: bool = False
    frequency: str = ""


@dataclass(frozen=True)
class Sentence:
    """An English sentence, its Spanish translation and how they were derived.

    Attributes:
        source: The English sentence.
        target: The Spanish sentence.
        combinations: The word combinations of the derivation.
        sure: Positions (source, target) of white-space words that surely translate each other.
        possible: Those that at least possibly do.
    """

    source: str
    target: str
    combinations: frozenset[Combination]
    sure: Links = frozenset()
    possible: Links = frozenset()


NOTHING = Phrase("", "")


def name_phrase(name: Name) -> Phrase:
    kinds = "person adult" if name.gender else "city"
    return Phrase(*link(name.english, name.spanish), gender=name.gender or "f", lemmas=(name.english,), kinds=kinds)


def pronoun_phrase(pronoun: Pronoun) -> Phrase:
    """A subject pronoun; Spanish drops all but the third person."""
    words = link(pronoun.english, pronoun.spanish) if pronoun.person == 3 else (pronoun.english, "")
    return Phrase(*words, pronoun.person, pronoun.plural, pronoun.gender, kinds="person adult")


def noun_phrase(
    determiner: Determiner,
    noun: Noun,
    plural: bool = False,
    adjective: Adjective | None = None,
    owner: Phrase | None = None,
) -> Phrase:
    """A determiner, a noun and an optional adjective; an `owner` replaces the English determiner ("Mary's book")."""
    spanish_noun = (noun.spanish_plural or spanish_plural(noun.spanish)) if plural else noun.spanish
    index = (noun.gender == "f") + 2 * plural
    spanish_determiner = determiner.spanish.split()[index]
    before = after = ""
    if adjective and adjective.prenominal:
        before = adjective.prenominal.split()[index]
    elif adjective:
        after = agree(adjective, noun.gender, plural)
    if noun.stressed_a and not before:
        spanish_determiner = {"la": "el", "una": "un"}.get(spanish_determiner, spanish_determiner)
    english_determiner, spanish_determiner = link(determiner.english, spanish_determiner)
    english_adjective = ""
    if adjective:
        english_adjective, marked = link(adjective.english, before or after)
        before, after = (marked, "") if before else ("", marked)
    head = link(english_noun(noun, plural), spanish_noun)
    if owner:
        suffix = "'" if owner.english.endswith("s") and owner.plural else "'s"
        words = link_possibly(owner.english + suffix, f"{without_marks(spanish_determiner)} de")
        english_determiner, (spanish_determiner, of) = words.english, words.spanish.split(" ")
        after = join_words(after, of, owner.spanish)
    return Phrase(
        join_words(english_determiner, english_adjective, head.english),
        join_words(spanish_determiner, before, head.spanish, after),
        plural=plural,
        gender=noun.gender,
        lemmas=(noun.english,),
        kinds=noun.kinds,
        definite=determiner.role != "indefinite",
        combinations=(adjective_combinations(adjective, (noun.english,)) if adjective else frozenset())
        | (owner.combinations if owner else frozenset()),
    )


def coordination(first: Phrase, second: Phrase) -> Phrase:
    """Two phrases joined by "and"; `second` may be the pronoun "I"."""
    conjunction = link("and", "y")
    other = (second.english, second.spanish) if second.spanish else link(second.english, "yo")
    return Phrase(
        join_words(first.english, conjunction.english, other[0]),
        join_words(first.spanish, conjunction.spanish, other[1]),
        person=min(first.person, second.person),
        plural=True,
        gender="f" if first.gender == second.gender == "f" else "m",
        lemmas=first.lemmas + second.lemmas,
        kinds="person",
        combinations=first.combinations | second.combinations,
    )


def prepositional(english: str, spanish: str, phrase: Phrase) -> Phrase:
    """A phrase after a preposition in each language; an empty preposition adds nothing."""
    if english and spanish:
        english, spanish = link(english, spanish)
    elif spanish:
        # The personal a
        marked, spanish = link_possibly(phrase.english, spanish)
        phrase = replace(phrase, english=marked)
    return replace(phrase, english=join_words(english, phrase.english), spanish=join_words(spanish, phrase.spanish))


def join_words(*words: str) -> str:
    return " ".join(word for word in words if word)


def adjective_combinations(adjective: Adjective, lemmas: tuple[str, ...]) -> frozenset[Combination]:
    return frozenset(("adjective", adjective.english, lemma) for lemma in lemmas)


def be_form(tense: str, subject: Phrase) -> str:
    if subject.plural or subject.person == 2:
        return "were" if tense == "past" else "are"
    if tense == "past":
        return "was"
    return "am" if subject.person == 1 else "is"


class _VerbUnits:
    """Units of a verb group: the verb, its finite part and the particle between them."""

    def __init__(self, tense: str) -> None:
        self.main = Unit()
        self.finite, self.particle = (Unit(), Unit()) if tense in MODALS else (self.main, self.main)

    def verb(self, words: str) -> str:
        """Mark an English verb, with or without a particle of its own."""
        head, _, particle = words.partition(" ")
        return join_words(self.main.sure(head), self.main.possible(particle))

    def modal(self, words: str) -> str:
        """Mark an English modal, with or without "to"."""
        head, _, particle = words.partition(" ")
        for unit in (self.main, self.finite):
            particle = unit.possible(particle)
        return join_words(self.finite.sure(head), self.particle.sure(particle))


def _english_group(verb: Verb, tense: str, subject: Phrase, units: _VerbUnits) -> tuple[str, str, str]:
    """English verb of a statement; then auxiliary and remainder, for negations and questions."""
    third = subject.person == 3 and not subject.plural
    auxiliary = units.finite.possible({"past": "did", "future": "will"}.get(tense, "does" if third else "do"))
    base = units.verb(verb.english)
    if tense in MODALS:
        modal = MODALS[tense]
        rest = f"{units.modal(modal.english)} {base}"
        if modal.auxiliary == "be":
            auxiliary = units.finite.possible(be_form("present", subject))
            return f"{auxiliary} {rest}", auxiliary, rest
        if modal.auxiliary == "do":
            return (f"{units.modal(english_third(modal.english))} {base}" if third else rest), auxiliary, rest
        return rest, units.modal(modal.auxiliary), base
    if tense == "future":
        return f"{auxiliary} {base}", auxiliary, base
    if verb.english == "be":
        form = units.verb(be_form(tense, subject))
        return form, form, ""
    if tense == "past":
        return units.verb(english_past(verb)), auxiliary, base
    return (units.verb(english_third(verb.english)) if third else base), auxiliary, base


def _spanish_group(clause: Clause, units: _VerbUnits) -> str:
    """Spanish verb, after its clitic."""
    verb = clause.verb
    agreement = clause.complements[0] if verb.inverted else clause.subject
    if clause.tense in MODALS:
        modal = MODALS[clause.tense]
        finite = units.finite.sure(conjugate(modal.spanish, "present", agreement.person, agreement.plural))
        words = join_words(finite, units.particle.sure(modal.link), units.main.sure(verb.spanish))
    else:
        past = "imperfect" if verb.stative else "preterite"
        tense = past if clause.tense == "past" else clause.tense
        words = units.main.sure(conjugate(verb.spanish, tense, agreement.person, agreement.plural))
    return join_words(clause.clitic, words)


class _Pieces(NamedTuple):
    """Pieces of a clause: `affirmative`, or in questions and negations `auxiliary` and `rest`, is the English verb."""

    subject: str
    affirmative: str
    auxiliary: str
    rest: str
    spanish_subject: str
    spanish_group: str


def _pieces(clause: Clause) -> _Pieces:
    units, english, spanish = _VerbUnits(clause.tense), clause.subject.english, clause.subject.spanish
    if clause.verb.inverted:
        clitic = DATIVES[clause.subject.person, clause.subject.plural]
        english, clitic = (link_possibly if spanish else link)(english, clitic)
        clause = replace(clause, clitic=clitic)
        if spanish:
            english, preposition = link_possibly(english, "a")
            spanish = join_words(preposition, spanish)
    elif not spanish:
        english = units.finite.possible(english)
    affirmative, auxiliary, rest = _english_group(clause.verb, clause.tense, clause.subject, units)
    group = _spanish_group(clause, units)
    if clause.frequency:
        frequency, adverb = link(clause.frequency, FREQUENCIES[clause.frequency])
        affirmative, group = join_words(frequency, affirmative), join_words(adverb, group)
    if clause.negated:
        negation, adverb = link("not", "no")
        auxiliary, group = join_words(auxiliary, negation), join_words(adverb, group)
    return _Pieces(english, affirmative, auxiliary, rest, spanish, group)


def _combinations(clause: Clause) -> frozenset[Combination]:
    found = frozenset().union(clause.subject.combinations, *(phrase.combinations for phrase in clause.complements))
    if clause.verb.english == "be":
        return found
    return found | {("subject", lemma, clause.verb.english) for lemma in clause.subject.lemmas}


def spell_out(english: str, spanish: str, stop: str, combinations: frozenset[Combination]) -> Sentence:
    """Apply contractions, capitals and punctuation, and remove the marks."""
    english = re.sub(rf"({MARK}*)can ({MARK}*)not\b", r"\1\2cannot", english)
    spanish = re.sub(rf"(?<!\S)({MARK}*)(a|de) ({MARK}*)el(?!\S)", r"\1\3\2l", spanish)
    sure, possible = links(english, spanish)
    english, spanish = without_marks(english), without_marks(spanish)
    english = re.sub(r"\ba (?=[aeiou])(?!useful)", "an ", english, flags=re.IGNORECASE)
    spanish = re.sub(r"\by (?=I)", "e ", spanish)
    opening = {".": "", "?": "¿", "!": "¡"}[stop]
    source, target = english[0].upper() + english[1:] + stop, opening + spanish[0].upper() + spanish[1:] + stop
    return Sentence(source, target, combinations, sure, possible)


def statement(clause: Clause, opening: Phrase = NOTHING, stop: str = ".") -> Sentence:
    """Order a clause as a statement, after an opening adverb if given.

    The subject "who" and the full stop "?" make it a subject question.
    """
    pieces = _pieces(clause)
    verb = join_words(pieces.auxiliary, pieces.rest) if clause.negated else pieces.affirmative
    return spell_out(
        join_words(opening.english, pieces.subject, verb, *(phrase.english for phrase in clause.complements)),
        join_words(
            opening.spanish,
            pieces.spanish_subject,
            pieces.spanish_group,
            *(phrase.spanish for phrase in clause.complements),
        ),
        stop,
        _combinations(clause) | opening.combinations,
    )


def question(clause: Clause, question_phrase: Phrase = NOTHING) -> Sentence:
    """Order a clause as a question, after a question phrase if given.

    The Spanish subject follows the verb; with *ser*, *estar* and *gustar* it comes last.
    """
    pieces = _pieces(clause)
    complements = [phrase.spanish for phrase in clause.complements]
    is_last = clause.verb.inverted or clause.verb.english == "be"
    complements.insert(len(complements) if is_last else 0, pieces.spanish_subject)
    return spell_out(
        join_words(
            question_phrase.english,
            pieces.auxiliary,
            pieces.subject,
            pieces.rest,
            *(phrase.english for phrase in clause.complements),
        ),
        join_words(question_phrase.spanish, pieces.spanish_group, *complements),
        "?",
        _combinations(clause) | question_phrase.combinations,
    )


def what_a(noun: Noun, adjective: Adjective, plural: bool = False) -> Sentence:
    """What a beautiful house! ¡Qué casa tan hermosa!"""
    bare = Determiner("what" if plural else "what a", "qué qué qué qué", "indefinite")
    phrase = noun_phrase(bare, noun, plural)
    # Between the determiner and the noun
    *determiner, head = phrase.english.split(" ")
    quality, spanish_quality = link(adjective.english, agree(adjective, noun.gender, plural))
    quality, degree = link_possibly(quality, "tan")
    english = join_words(*determiner, quality, head)
    spanish = join_words(phrase.spanish, degree, spanish_quality)
    return spell_out(english, spanish, "!", adjective_combinations(adjective, phrase.lemmas))
