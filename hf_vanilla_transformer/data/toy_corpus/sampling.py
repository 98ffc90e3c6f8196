"""Random sentences of the built-in corpus."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from .grammar import (
    COPULAS,
    DATIVES,
    MODALS,
    NOTHING,
    Clause,
    Phrase,
    Sentence,
    adjective_combinations,
    agree,
    be_form,
    conjugate,
    coordination,
    english_noun,
    join_words,
    name_phrase,
    noun_phrase,
    prepositional,
    pronoun_phrase,
    question,
    spanish_plural,
    spell_out,
    statement,
    what_a,
)
from .lexicon import (
    ADJECTIVES,
    CITIES,
    DETERMINERS,
    FREQUENCIES,
    NOUNS,
    PEOPLE,
    PRONOUNS,
    TIMES,
    VERBS,
    Adjective,
    Determiner,
    Noun,
    Pronoun,
    Verb,
)
from .marks import link, link_possibly

T = TypeVar("T")

# Roles of a determiner: for a known person or thing, a new one, or either.
KNOWN = "definite possessive"
NEW = "indefinite"
KNOWN_OR_NEW = "definite possessive indefinite"

HOW_MANY = Determiner("how many", "- - cuántos cuántas", "indefinite")

# Forms of "there is": English singular and plural, Spanish.
EXISTENCE = {
    "present": ("is", "are", "hay"),
    "past": ("was", "were", "había"),
    "future": ("will be", "will be", "habrá"),
}

POSITIONS = {
    "near": "cerca de",
    "behind": "detrás de",
    "next to": "al lado de",
    "in front of": "delante de",
}

# Kinds of things, prepositions, and the kinds of places they are found in.
LOCATIONS = (
    ("person", {"in": "en"}, "home outdoors workplace study stop"),
    ("person vehicle", POSITIONS, "building structure stop dwelling"),
    ("pet", {"in": "en"}, "home outdoors"),
    ("wild", {"in": "en"}, "nature"),
    ("pet", POSITIONS, "dwelling waters surface"),
    ("thing text press dishes garment", {"on": "sobre", "under": "debajo de"}, "surface"),
    ("fruit sweets", {"on": "sobre"}, "surface"),
    ("furniture", {"in": "en"}, "room"),
    ("building", POSITIONS, "outdoors waters stop structure"),
)

OWNABLE = "garment thing furniture private pet text instrument dwelling room"


def _pick(rng: random.Random, options: Sequence[T]) -> T:
    # Of all random functions, Python guarantees only random() to be stable between releases.
    return options[int(rng.random() * len(options))]


@cache
def _overlap(kinds: str, others: str) -> bool:
    return not set(kinds.split()).isdisjoint(others.split())


@cache
def _nouns(kinds: str, without: str = "") -> tuple[Noun, ...]:
    return tuple(noun for noun in NOUNS if _overlap(noun.kinds, kinds) and not _overlap(noun.kinds, without))


@cache
def _adjectives(kinds: str, predicative: bool = False, gradable: bool = False) -> tuple[Adjective, ...]:
    """Adjectives for a noun of these kinds, optionally only the predicative or gradable ones."""
    return tuple(
        adjective
        for adjective in ADJECTIVES
        if _overlap(adjective.kinds, kinds)
        and (adjective.copula or not predicative)
        and (adjective.gradable or not gradable)
    )


@cache
def _determiners(noun: Noun, plural: bool, roles: str) -> tuple[Determiner, ...]:
    """Determiners of a noun, each repeated by its weight."""
    allowed = set(roles.split())
    if _overlap(noun.kinds, "kin"):
        allowed = {"possessive"}
    elif _overlap(noun.kinds, "stranger wild public"):
        allowed -= {"possessive"}
    countability = "mass" if noun.number == "mass" else "count"
    return tuple(
        determiner
        for determiner in DETERMINERS
        for _ in range(determiner.weight)
        if determiner.role in allowed
        and determiner.nouns in ("any", countability)
        and determiner.spanish.split()[2 * plural] != "-"
    )


def _random_noun_phrase(
    rng: random.Random, noun: Noun, roles: str, adjectives: float = 0.25, plurals: float = 0.3
) -> Phrase:
    """A phrase with `noun` as head; `adjectives` and `plurals` are probabilities."""
    plural = noun.number == "both" and rng.random() < plurals
    fitting = _adjectives(noun.kinds)
    adjective = _pick(rng, fitting) if fitting and rng.random() < adjectives else None
    if roles != NEW and _overlap(noun.kinds, OWNABLE) and rng.random() < 0.1:
        return noun_phrase(DETERMINERS[0], noun, plural, adjective, owner=_random_person(rng, 0.0))
    return noun_phrase(_pick(rng, _determiners(noun, plural, roles)), noun, plural, adjective)


def _random_person(rng: random.Random, adjectives: float = 0.15, besides: tuple[str, ...] = ()) -> Phrase:
    """A definite person with a head noun not in `besides`."""
    if rng.random() < 0.35:
        return name_phrase(_pick(rng, [name for name in PEOPLE if name.english not in besides]))
    nouns = [noun for noun in _nouns("person") if noun.english not in besides]
    return _random_noun_phrase(rng, _pick(rng, nouns), KNOWN, adjectives)


def _random_coordination(rng: random.Random) -> Phrase:
    first = _random_person(rng, 0.0)
    if rng.random() < 0.3:
        return coordination(first, pronoun_phrase(PRONOUNS[0]))
    return coordination(first, _random_person(rng, 0.0, besides=first.lemmas))


def _random_subject(rng: random.Random, kinds: str, coordinated: float = 0.08) -> Phrase:
    """A subject of the given kinds: a pronoun, a name, two people, or a noun phrase."""
    if _overlap(kinds, "person adult"):
        draw = rng.random()
        if draw < coordinated:
            return _random_coordination(rng)
        if draw < 0.32:
            return pronoun_phrase(_pick(rng, PRONOUNS))
        if draw < 0.45:
            return name_phrase(_pick(rng, PEOPLE))
    roles = KNOWN if rng.random() < 0.85 else NEW
    return _random_noun_phrase(rng, _pick(rng, _nouns(kinds)), roles, adjectives=0.2)


def _random_tense(rng: random.Random, verb: Verb) -> str:
    draw = rng.random()
    if draw < 0.4:
        return "present"
    if draw < 0.7:
        return "past"
    if draw < 0.85 or verb.stative or verb.accidental or verb.inverted:
        return "future"
    return _pick(rng, tuple(MODALS))


def _random_object(rng: random.Random, verb: Verb, subject: Phrase, roles: str = KNOWN_OR_NEW) -> Phrase:
    """A direct object with its personal *a*, never a namesake of the subject."""
    if "person" in verb.objects.split() and rng.random() < 0.25:
        phrase = name_phrase(_pick(rng, [name for name in PEOPLE if name.english not in subject.lemmas]))
    else:
        nouns = [noun for noun in _nouns(verb.objects) if noun.english not in subject.lemmas]
        phrase = _random_noun_phrase(rng, _pick(rng, nouns), roles)
    combinations = phrase.combinations | {("object", verb.english, lemma) for lemma in phrase.lemmas}
    personal = _overlap(phrase.kinds, verb.personal_a) and (phrase.definite or _overlap(phrase.kinds, "person"))
    return prepositional("", "a" if personal else "", replace(phrase, combinations=combinations))


def _random_other_pronoun(rng: random.Random, subject: Phrase) -> Pronoun:
    """A pronoun that cannot refer to the subject or part of it."""
    return _pick(rng, [pronoun for pronoun in PRONOUNS if pronoun.person == 3 or pronoun.person != subject.person])


def _random_complements(rng: random.Random, verb: Verb, subject: Phrase, roles: str) -> tuple[tuple[Phrase, ...], str]:
    """Objects of a verb, and their clitic."""
    if not verb.objects:
        return (), ""
    if verb.inverted:
        return (_random_object(rng, verb, subject, KNOWN),), ""
    if "person" in verb.objects.split() and rng.random() < 0.3:
        pronoun = _random_other_pronoun(rng, subject)
        marked, clitic = link(pronoun.english_object, pronoun.direct)
        return (Phrase(marked, ""),), clitic
    thing = _random_object(rng, verb, subject, roles)
    if not verb.ditransitive:
        return (thing,), ""
    if rng.random() < 0.35:
        pronoun = _random_other_pronoun(rng, subject)
        marked, clitic = link(f"to {pronoun.english_object}", DATIVES[pronoun.person, pronoun.plural])
        return (thing, Phrase(marked, "")), clitic
    recipient = prepositional("to", "a", _random_person(rng, besides=subject.lemmas))
    marked, clitic = link_possibly(recipient.english, DATIVES[3, recipient.plural])
    return (thing, replace(recipient, english=marked)), clitic


def _random_place(rng: random.Random, verb: Verb) -> Phrase:
    """The location or destination of a verb."""
    if "city" in verb.places.split() and rng.random() < 0.4:
        place, english = name_phrase(_pick(rng, CITIES)), "in"
    else:
        place = _random_noun_phrase(rng, _pick(rng, _nouns(verb.places)), KNOWN, adjectives=0.15, plurals=0.05)
        english = "at" if _overlap(place.kinds, "at stop") else "in"
        if _overlap(place.kinds, "sight") and not verb.motion and rng.random() < 0.3:
            english = _pick(rng, tuple(POSITIONS))
    if verb.motion:
        return prepositional("to", "a", place)
    return prepositional(english, POSITIONS.get(english, "en"), place)


def _random_companion(rng: random.Random, subject: Phrase) -> Phrase:
    if rng.random() < 0.4:
        pronoun = _random_other_pronoun(rng, subject)
        return Phrase(*link(f"with {pronoun.english_object}", pronoun.companion))
    return prepositional("with", "con", _random_person(rng, 0.0, besides=subject.lemmas))


def _random_adjuncts(rng: random.Random, clause: Clause, place: bool = True) -> tuple[Phrase, ...]:
    """At most one adjunct after the complements: a place or a companion."""
    verb = clause.verb
    likely = 0.75 if not verb.objects else 0.25
    if place and verb.places and (verb.motion or rng.random() < likely):
        return (_random_place(rng, verb),)
    if verb.sociable and not _overlap(clause.subject.kinds, "animal") and rng.random() < 0.2:
        return (_random_companion(rng, clause.subject),)
    return ()


def _random_time(rng: random.Random, clause: Clause) -> Phrase:
    """A time adverb allowed by tense and verb, or nothing."""
    verb = clause.verb
    if verb.stative or verb.inverted or (clause.tense == "present" and not verb.habitual) or clause.frequency:
        return NOTHING
    return Phrase(*link(*_pick(rng, tuple(TIMES.get(clause.tense, TIMES["future"]).items()))))


def _random_clause(
    rng: random.Random, verb: Verb | None = None, place: bool = True, coordinated: float = 0.08
) -> Clause:
    """A clause without a time adverb."""
    verb = verb or _pick(rng, VERBS)
    subject = _random_subject(rng, verb.subjects, 0.0 if verb.inverted else coordinated)
    tense = _random_tense(rng, verb)
    negated = rng.random() < 0.18
    frequency = ""
    if verb.habitual and tense == "present" and not negated and rng.random() < 0.3:
        frequency = _pick(rng, tuple(FREQUENCIES))
    roles = KNOWN if negated or frequency == "never" else KNOWN_OR_NEW
    complements, clitic = _random_complements(rng, verb, subject, roles)
    clause = Clause(subject, verb, tense, complements, clitic, negated, frequency)
    return _with(clause, *_random_adjuncts(rng, clause, place))


def _with(clause: Clause, *phrases: Phrase) -> Clause:
    return replace(clause, complements=clause.complements + phrases)


# One function for each kind of sentence


def _plain_statement(rng: random.Random) -> Sentence:
    clause = _random_clause(rng)
    draw = rng.random()
    if draw > 0.45:
        return statement(clause)
    time = _random_time(rng, clause)
    return statement(clause, opening=time) if draw < 0.15 else statement(_with(clause, time))


def _yes_no_question(rng: random.Random) -> Sentence:
    clause = _random_clause(rng, coordinated=0.0)
    return question(replace(clause, negated=False, frequency=""))


def _adverbial_question(rng: random.Random) -> Sentence:
    """A question with where, when or why."""
    verb = _pick(rng, [verb for verb in VERBS if verb.places or verb.ditransitive])
    clause = replace(_random_clause(rng, verb, place=False, coordinated=0.0), negated=False, frequency="")
    draw = rng.random()
    if verb.places and draw < 0.5:
        return question(clause, Phrase(*link("where", "adónde" if verb.motion else "dónde")))
    if verb.places and not verb.objects:
        clause = _with(clause, _random_place(rng, verb))
    if clause.tense in ("past", "future", "going") and not verb.stative and draw < 0.8:
        return question(clause, Phrase(*link("when", "cuándo")))
    return question(clause, Phrase(*link("why", "por qué")))


def _subject_question(rng: random.Random) -> Sentence:
    verb = _pick(rng, [verb for verb in VERBS if _overlap(verb.subjects, "person adult") and not verb.inverted])
    who = Phrase(*link("who", "quién"))
    complements, clitic = _random_complements(rng, verb, who, KNOWN)
    clause = Clause(who, verb, _random_tense(rng, verb), complements, clitic)
    return statement(_with(clause, *_random_adjuncts(rng, clause)), stop="?")


def _object_question(rng: random.Random) -> Sentence:
    """A question with what, whom or how many."""
    verb = _pick(rng, [verb for verb in VERBS if verb.objects and not verb.inverted and not verb.ditransitive])
    clause = Clause(_random_subject(rng, verb.subjects, 0.0), verb, _random_tense(rng, verb))
    if "person" in verb.objects.split():
        return question(clause, Phrase(*link("who", "a quién")))
    clause = _with(clause, *_random_adjuncts(rng, clause))
    countable = [noun for noun in _nouns(verb.objects) if noun.number == "both"]
    if not countable or rng.random() < 0.5:
        return question(clause, Phrase(*link("what", "qué")))
    counted = _pick(rng, countable)
    question_phrase = noun_phrase(HOW_MANY, counted, plural=True)
    return question(
        clause, replace(question_phrase, combinations=frozenset({("object", verb.english, counted.english)}))
    )


def _proposal(rng: random.Random) -> Sentence:
    """Let's eat the soup!"""
    planned = [verb for verb in VERBS if verb.objects and not (verb.stative or verb.accidental or verb.inverted)]
    verb = _pick(rng, planned)
    thing = _random_object(rng, verb, NOTHING, KNOWN)
    invitation, action = link("let's", "vamos a"), link(verb.english, verb.spanish)
    return spell_out(
        join_words(invitation.english, action.english, thing.english),
        join_words(invitation.spanish, action.spanish, thing.spanish),
        "!",
        thing.combinations,
    )


def _copular(rng: random.Random, subject: Phrase, predicate: Phrase, copula: str) -> Sentence:
    """A statement or, less often, a question, with *ser* or *estar*."""
    draw = rng.random()
    tense = "present" if draw < 0.55 else "past" if draw < 0.85 else "future"
    clause = Clause(subject, COPULAS[copula], tense, (predicate,))
    return question(clause) if rng.random() < 0.3 else statement(replace(clause, negated=rng.random() < 0.2))


def _subject_and_adjective(rng: random.Random, gradable: bool = False) -> tuple[Phrase, Adjective]:
    """A subject and an adjective for its predicate."""
    if rng.random() < 0.35:
        subject = _random_subject(rng, "person")
    else:
        nouns = [noun for noun in NOUNS if _adjectives(noun.kinds, True, gradable)]
        subject = _random_noun_phrase(rng, _pick(rng, nouns), KNOWN, adjectives=0.0)
    adjective = _pick(rng, _adjectives(subject.kinds, True, gradable))
    return _describe(subject, adjective), adjective


def _describe(subject: Phrase, adjective: Adjective) -> Phrase:
    """Add to a subject the combinations of its predicative adjective."""
    found = subject.combinations | adjective_combinations(adjective, subject.lemmas)
    return replace(subject, combinations=found)


def _description(rng: random.Random) -> Sentence:
    """X is tall."""
    subject, adjective = _subject_and_adjective(rng)
    predicate = Phrase(*link(adjective.english, agree(adjective, subject.gender, subject.plural)))
    return _copular(rng, subject, predicate, adjective.copula)


def _comparison(rng: random.Random) -> Sentence:
    """X is as tall as Y; both are of one kind."""
    subject, adjective = _subject_and_adjective(rng, gradable=True)
    nouns = [noun for noun in _nouns(subject.kinds) if _overlap(noun.kinds, adjective.kinds)]
    others = [noun for noun in nouns if noun.english not in subject.lemmas]
    if not others:
        return _description(rng)
    phrase = _describe(_random_noun_phrase(rng, _pick(rng, others), KNOWN, adjectives=0.0), adjective)
    form = agree(adjective, subject.gender, subject.plural)
    predicate = prepositional(f"as {adjective.english} as", f"tan {form} como", phrase)
    return statement(Clause(subject, COPULAS[adjective.copula], "present", (predicate,), negated=rng.random() < 0.3))


def _profession(rng: random.Random) -> Sentence:
    """X is a teacher: Spanish has no article and the noun agrees with the subject."""
    draw = rng.random()
    if draw < 0.25:
        subject = pronoun_phrase(_pick(rng, PRONOUNS))
    elif draw < 0.6:
        subject = name_phrase(_pick(rng, PEOPLE))
    else:
        subject = _random_noun_phrase(rng, _pick(rng, _nouns("kin")), KNOWN, adjectives=0.0)
    noun = _pick(rng, [noun for noun in NOUNS if noun.feminine])
    spanish = noun.feminine if subject.gender == "f" else noun.spanish
    if subject.plural:
        return _copular(rng, subject, Phrase(*link(english_noun(noun, True), spanish_plural(spanish))), "ser")
    return _copular(rng, subject, Phrase(*link(f"a {noun.english}", spanish)), "ser")


def _thing_and_location(rng: random.Random, roles: str) -> tuple[Phrase, Phrase]:
    """A person or thing, and its location."""
    contents, positions, containers = _pick(rng, LOCATIONS)
    noun = _pick(rng, _nouns(contents, without="kin" if roles == NEW else ""))
    english, spanish = _pick(rng, tuple(positions.items()))
    place = _pick(rng, [container for container in _nouns(containers) if container != noun])
    if english == "in" and _overlap(place.kinds, "at stop"):
        english = "at"
    phrase = _random_noun_phrase(rng, place, KNOWN, adjectives=0.15, plurals=0.05)
    return _random_noun_phrase(rng, noun, roles, adjectives=0.2), prepositional(english, spanish, phrase)


def _location(rng: random.Random) -> Sentence:
    """X is in the garden."""
    subject, place = _thing_and_location(rng, KNOWN)
    return _copular(rng, subject, place, "estar")


def _existence(rng: random.Random) -> Sentence:
    """There is X in the garden."""
    thing, place = _thing_and_location(rng, NEW)
    singular, plural, spanish = EXISTENCE[_pick(rng, tuple(EXISTENCE))]
    # Of "will be", the last word is the head.
    verb, spanish = link(plural if thing.plural else singular, spanish)
    there, spanish = link_possibly("there", spanish)
    auxiliary, _, rest = verb.partition(" ")
    is_question = rng.random() < 0.3
    english = join_words(
        *((auxiliary, there, rest) if is_question else (there, auxiliary, rest)), thing.english, place.english
    )
    found = thing.combinations | place.combinations
    return spell_out(english, join_words(spanish, thing.spanish, place.spanish), "?" if is_question else ".", found)


def _exclamation(rng: random.Random) -> Sentence:
    """What a tall man! How tall the man is!"""
    subject, adjective = _subject_and_adjective(rng, gradable=True)
    form = agree(adjective, subject.gender, subject.plural)
    if rng.random() < 0.5 or len(subject.lemmas) != 1:
        how, quality = link("how", "qué"), link(adjective.english, form)
        verb = link(
            be_form("present", subject), conjugate(adjective.copula, "present", subject.person, subject.plural)
        )
        # Spanish leaves most pronouns out.
        english, spanish = (
            (subject.english, verb.spanish) if subject.spanish else link_possibly(subject.english, verb.spanish)
        )
        return spell_out(
            join_words(how.english, quality.english, english, verb.english),
            join_words(how.spanish, quality.spanish, spanish, subject.spanish),
            "!",
            subject.combinations,
        )
    noun = _pick(rng, [noun for noun in _nouns(adjective.kinds) if noun.number != "mass"])
    plural = noun.number == "both" and rng.random() < 0.3
    return what_a(noun, adjective, plural)


# Percentage of each kind of sentence.
SENTENCE_KINDS: dict[Callable[[random.Random], Sentence], int] = {
    _plain_statement: 50,
    _yes_no_question: 10,
    _adverbial_question: 6,
    _subject_question: 4,
    _object_question: 5,
    _proposal: 2,
    _description: 8,
    _comparison: 2,
    _profession: 2,
    _location: 4,
    _existence: 4,
    _exclamation: 3,
}


def generate_sentences(seed: int = 0) -> Iterator[Sentence]:
    """Yield an endless sequence of sentences, possibly with repeats.

    Args:
        seed: Determines the sequence, on every machine and Python release.
    """
    rng = random.Random(seed)
    kinds = [kind for kind, weight in SENTENCE_KINDS.items() for _ in range(weight)]
    while True:
        yield _pick(rng, kinds)(rng)
