"""The built-in corpus: correct Spanish, one translation for each source, and a test set of new combinations."""

import re
from itertools import islice

import pytest

from hf_vanilla_transformer.data.toy_corpus import corpus as toy

NOUNS = {noun.english: noun for noun in toy.NOUNS}
ADJECTIVES = {adjective.english: adjective for adjective in toy.ADJECTIVES}
VERBS = {verb.english: verb for verb in toy.VERBS}
DETERMINERS = {determiner.english: determiner for determiner in toy.DETERMINERS}
PRONOUNS = {pronoun.english: toy.pronoun_phrase(pronoun) for pronoun in toy.PRONOUNS}
NAMES = {name.english: toy.name_phrase(name) for name in toy.PEOPLE}
SIZES = {"num_pairs": 2_000, "num_validation": 100, "num_test": 100}


def words(text):
    return set(re.findall(r"\w+", text))


def np(determiner, noun, *, plural=False, adjective="", owner=None):
    adjective = ADJECTIVES[adjective] if adjective else None
    return toy.noun_phrase(DETERMINERS[determiner], NOUNS[noun], plural, adjective, owner)


@pytest.fixture(scope="module")
def splits():
    return toy.split_sentences(**SIZES)


@pytest.fixture(scope="module")
def many():
    return list(islice(toy.generate_sentences(seed=3), 50_000))


@pytest.mark.parametrize(
    ("infinitive", "tense", "forms"),
    [
        ("comprar", "present", "compro compras compra compramos compran"),
        ("beber", "preterite", "bebí bebiste bebió bebimos bebieron"),
        ("vivir", "imperfect", "vivía vivías vivía vivíamos vivían"),
        ("vivir", "present", "vivo vives vive vivimos viven"),
        ("trabajar", "imperfect", "trabajaba trabajabas trabajaba trabajábamos trabajaban"),
        ("comer", "future", "comeré comerás comerá comeremos comerán"),
        ("tener", "present", "tengo tienes tiene tenemos tienen"),
        ("tener", "future", "tendré tendrás tendrá tendremos tendrán"),
        ("querer", "present", "quiero quieres quiere queremos quieren"),
        ("querer", "future", "querré querrás querrá querremos querrán"),
        ("poder", "present", "puedo puedes puede podemos pueden"),
        ("traer", "preterite", "traje trajiste trajo trajimos trajeron"),
        ("traer", "present", "traigo traes trae traemos traen"),
        ("estar", "preterite", "estuve estuviste estuvo estuvimos estuvieron"),
        ("estar", "imperfect", "estaba estabas estaba estábamos estaban"),
        ("buscar", "preterite", "busqué buscaste buscó buscamos buscaron"),
        ("llegar", "preterite", "llegué llegaste llegó llegamos llegaron"),
        ("empezar", "preterite", "empecé empezaste empezó empezamos empezaron"),
        ("dormir", "present", "duermo duermes duerme dormimos duermen"),
        ("dormir", "preterite", "dormí dormiste durmió dormimos durmieron"),
        ("elegir", "present", "elijo eliges elige elegimos eligen"),
        ("elegir", "preterite", "elegí elegiste eligió elegimos eligieron"),
        ("seguir", "present", "sigo sigues sigue seguimos siguen"),
        ("seguir", "preterite", "seguí seguiste siguió seguimos siguieron"),
        ("construir", "present", "construyo construyes construye construimos construyen"),
        ("construir", "preterite", "construí construiste construyó construimos construyeron"),
        ("oír", "present", "oigo oyes oye oímos oyen"),
        ("oír", "future", "oiré oirás oirá oiremos oirán"),
        ("oír", "imperfect", "oía oías oía oíamos oían"),
        ("ir", "preterite", "fui fuiste fue fuimos fueron"),
        ("ser", "imperfect", "era eras era éramos eran"),
        ("ver", "present", "veo ves ve vemos ven"),
        ("dar", "preterite", "di diste dio dimos dieron"),
        ("enviar", "present", "envío envías envía enviamos envían"),
        ("conocer", "present", "conozco conoces conoce conocemos conocen"),
        ("mostrar", "present", "muestro muestras muestra mostramos muestran"),
    ],
)
def test_conjugation(infinitive, tense, forms):
    assert [toy.conjugate(infinitive, tense, *slot) for slot in toy.SLOTS] == forms.split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("casa", "present", 3), "'casa'.*infinitive"),
        (("comer", "past", 3), "'past'.*preterite"),
        (("comer", "present", 2, True), "person=2, plural=True"),
    ],
)
def test_conjugation_of_what_is_no_verb_form(arguments, message):
    with pytest.raises(ValueError, match=message):
        toy.conjugate(*arguments)


@pytest.mark.parametrize(
    ("phrase", "english", "spanish"),
    [
        (np("the", "house", plural=True, adjective="red"), "the red houses", "las casas rojas"),
        (np("these", "map", plural=True, adjective="old"), "these old maps", "estos mapas viejos"),
        (np("our", "city", adjective="modern"), "our modern city", "nuestra ciudad moderna"),
        (np("the", "pencil", plural=True, adjective="blue"), "the blue pencils", "los lápices azules"),
        (np("two", "lion", plural=True, adjective="young"), "two young lions", "dos leones jóvenes"),
        (np("many", "woman", plural=True, adjective="young"), "many young women", "muchas mujeres jóvenes"),
        (np("the", "actress", plural=True, adjective="English"), "the English actresses", "las actrices inglesas"),
        (np("the", "actor", plural=True, adjective="English"), "the English actors", "los actores ingleses"),
        (np("the", "girl", adjective="hardworking"), "the hardworking girl", "la niña trabajadora"),
        (np("my", "bus", plural=True), "my buses", "mis autobuses"),
        (np("some", "umbrella", plural=True), "some umbrellas", "algunos paraguas"),
        (np("the", "water", adjective="cold"), "the cold water", "el agua fría"),
        (np("a lot of", "water"), "a lot of water", "mucha agua"),
        (np("this", "classroom"), "this classroom", "esta aula"),
        (np("the", "eagle", plural=True, adjective="black"), "the black eagles", "las águilas negras"),
        (np("another", "book", adjective="good"), "another good book", "otro buen libro"),
        (np("the", "novel", plural=True, adjective="great"), "the great novels", "las grandes novelas"),
        (np("the", "car", owner=NAMES["Mary"], adjective="new"), "Mary's new car", "el nuevo coche de María"),
        (
            np("the", "dog", plural=True, adjective="small", owner=np("the", "girl", plural=True)),
            "the girls' small dogs",
            "los perros pequeños de las niñas",
        ),
    ],
)
def test_agreement(phrase, english, spanish):
    assert (phrase.english, phrase.spanish) == (english, spanish)


def clause(subject, verb, tense, *complements, **options):
    subject = PRONOUNS.get(subject) or NAMES.get(subject) if isinstance(subject, str) else subject
    verb = toy.COPULAS.get(verb) or VERBS[verb]
    return toy.Clause(subject, verb, tense, complements, **options)


TO_HER = toy.Phrase("to her", "")
TO_ANNA = toy.prepositional("to", "a", NAMES["Anna"])
A_BOY = toy.prepositional("", "a", np("the", "boy"))
MY_BROTHER_AND_I = toy.coordination(np("my", "brother"), PRONOUNS["I"])


@pytest.mark.parametrize(
    ("sentence", "source", "target"),
    [
        (
            toy.statement(clause("I", "buy", "past", np("a", "apple"), toy.Phrase("yesterday", "ayer"))),
            "I bought an apple yesterday.",
            "Compré una manzana ayer.",
        ),
        (toy.statement(clause("Mary", "see", "past", A_BOY)), "Mary saw the boy.", "María vio al niño."),
        (
            toy.statement(clause("he", "see", "present", toy.Phrase("them", ""), clitic="los", negated=True)),
            "He does not see them.",
            "Él no los ve.",
        ),
        (
            toy.statement(clause("we", "give", "future", np("the", "book"), TO_ANNA, clitic="le", negated=True)),
            "We will not give the book to Anna.",
            "No le daremos el libro a Ana.",
        ),
        (
            toy.statement(clause("they", "bring", "have", np("the", "water"), TO_HER, clitic="le")),
            "They have to bring the water to her.",
            "Ellos le tienen que traer el agua.",
        ),
        (
            toy.statement(clause("she", "paint", "can", np("the", "house"), negated=True)),
            "She cannot paint the house.",
            "Ella no puede pintar la casa.",
        ),
        (
            toy.statement(clause(np("the", "boy"), "like", "present", np("the", "apple", plural=True))),
            "The boy likes the apples.",
            "Al niño le gustan las manzanas.",
        ),
        (
            toy.question(clause("you", "like", "present", np("the", "soup"))),
            "Do you like the soup?",
            "¿Te gusta la sopa?",
        ),
        (
            toy.statement(clause(MY_BROTHER_AND_I, "eat", "past", np("the", "bread"))),
            "My brother and I ate the bread.",
            "Mi hermano y yo comimos el pan.",
        ),
        (
            toy.statement(clause(toy.coordination(NAMES["Anna"], NAMES["Isabel"]), "sleep", "past")),
            "Anna and Isabel slept.",
            "Ana e Isabel durmieron.",
        ),
        (
            toy.statement(clause("she", "drink", "present", np("the", "tea"), frequency="never")),
            "She never drinks the tea.",
            "Ella nunca bebe el té.",
        ),
        (
            toy.statement(clause("John", "ser", "past", toy.Phrase("tall", "alto"))),
            "John was tall.",
            "Juan era alto.",
        ),
        (
            toy.question(clause(np("the", "soup"), "estar", "present", toy.Phrase("cold", "fría"))),
            "Is the soup cold?",
            "¿Está fría la sopa?",
        ),
        (
            toy.question(clause("she", "go", "going"), toy.Phrase("where", "adónde")),
            "Where is she going to go?",
            "¿Adónde va a ir ella?",
        ),
        (
            toy.question(clause(np("the", "teacher"), "look for", "past"), toy.Phrase("who", "a quién")),
            "Who did the teacher look for?",
            "¿A quién buscó el profesor?",
        ),
        (
            toy.statement(clause("we", "have", "past", np("two", "cow", plural=True)), toy.Phrase("now", "ahora")),
            "Now we had two cows.",
            "Ahora teníamos dos vacas.",
        ),
        (
            toy.what_a(NOUNS["tower"], ADJECTIVES["old"], plural=True),
            "What old towers!",
            "¡Qué torres tan viejas!",
        ),
        (toy.what_a(NOUNS["hat"], ADJECTIVES["ugly"]), "What an ugly hat!", "¡Qué sombrero tan feo!"),
        (
            toy.statement(clause("I", "go", "future", toy.prepositional("to", "a", np("the", "river")))),
            "I will go to the river.",
            "Iré al río.",
        ),
    ],
)
def test_translation(sentence, source, target):
    assert (sentence.source, sentence.target) == (source, target)


def test_english_past_differs_from_the_present():
    """Otherwise "they put" would have two translations."""
    assert [verb.english for verb in toy.VERBS if toy._english_past(verb) == verb.english] == []


def test_lexicon_names_only_kinds_that_some_noun_has():
    known = {kind for noun in toy.NOUNS for kind in noun.kinds.split()} | {"city"}
    asked = {kind for adjective in toy.ADJECTIVES for kind in adjective.kinds.split()}
    asked |= {kind for v in toy.VERBS for kinds in (v.subjects, v.objects, v.places) for kind in kinds.split()}
    asked |= {kind for contents, _, places in toy.LOCATIONS for kind in (contents + " " + places).split()}
    assert asked - known == set()


def test_lexicon_has_no_word_twice():
    for entries in (toy.NOUNS, toy.ADJECTIVES, toy.VERBS, toy.DETERMINERS, toy.PEOPLE + toy.CITIES):
        english = [entry.english for entry in entries]
        assert len(set(english)) == len(english)


def test_one_source_has_one_target(many):
    targets = {}
    for sentence in many:
        assert targets.setdefault(sentence.source, sentence.target) == sentence.target
    assert len(targets) > 45_000


def test_sentences_are_well_formed(many):
    for sentence in many:
        assert re.fullmatch(r"[A-Z][A-Za-z' ]*[a-z'][.?!]", sentence.source), sentence
        assert re.fullmatch(r"(¿[^?!.]+\?|¡[^?!.]+!|[^¿¡?!.]+\.)", sentence.target), sentence
        assert sentence.target.lstrip("¿¡")[0].isupper(), sentence
        assert "  " not in sentence.source + sentence.target, sentence
        assert not re.search(r"\b(A|a|de) el\b|\b(la|una) (agua|aula|águila)\b|\by I", sentence.target), sentence
        assert not re.search(r"\b[Aa] [aeio]|\b[Aa]n [^aeiouAEIOUh]", sentence.source), sentence
        assert len(sentence.source.split()) <= 24


def test_vocabulary_is_a_few_hundred_words(many):
    source = {word for sentence in many for word in words(sentence.source.lower())}
    target = {word for sentence in many for word in words(sentence.target.lower())}
    assert 400 < len(source) < 800
    assert 800 < len(target) < 1_600
    lexicon = [word for entries in (toy.NOUNS, toy.ADJECTIVES, toy.VERBS) for word in entries]
    assert 200 < len(lexicon) < 400


def test_same_seed_same_corpus():
    first, second = (toy.load_toy_corpus(**SIZES, seed=7) for _ in range(2))
    assert {split: first[split].to_dict() for split in first} == {split: second[split].to_dict() for split in second}


def test_first_sentences_are_the_same_everywhere():
    """Sampling draws on nothing that differs between machines, Python releases or processes."""
    sources = [sentence.source for sentence in islice(toy.generate_sentences(seed=0), 3)]
    assert sources == [
        "The milk was hot.",
        "Is our doctor going to swim in the lake?",
        "On Friday an artist will open their box.",
    ]


def test_another_seed_another_corpus():
    first, second = (set(toy.load_toy_corpus(**SIZES, seed=seed)["train"]["source"]) for seed in (0, 1))
    assert len(first & second) < 0.3 * len(first)


def test_loader_gives_the_sentences_of_the_splits(splits):
    corpus = toy.load_toy_corpus(**SIZES)
    assert {split: len(corpus[split]) for split in corpus} == {"train": 2_000, "validation": 100, "test": 100}
    for split, sentences in splits.items():
        assert corpus[split].column_names == ["source", "target"]
        assert corpus[split]["source"][:] == [sentence.source for sentence in sentences]
        assert corpus[split]["target"][:] == [sentence.target for sentence in sentences]


def test_sources_are_distinct_over_all_splits(splits):
    sources = [sentence.source for sentences in splits.values() for sentence in sentences]
    assert len(set(sources)) == len(sources)


def test_held_out_combinations_occur_in_test_sentences_only(splits):
    held_out = {
        split: [any(map(toy.is_held_out, sentence.combinations)) for sentence in sentences]
        for split, sentences in splits.items()
    }
    assert all(held_out["test"])
    assert not any(held_out["train"] + held_out["validation"])


def test_held_out_adjectives_never_stand_beside_their_noun_in_training(splits):
    """The derivations do not hide a combination: the same claim, read off the strings."""
    train = [sentence.source.lower() for sentence in splits["train"]]
    pairs = [(a, n) for a in toy.ADJECTIVES for n in toy.NOUNS if toy.is_held_out(("adjective", a.english, n.english))]
    beside = re.compile("|".join(rf"\b{a.english.lower()} {n.english}s?\b" for a, n in pairs))
    assert len(pairs) > 100
    assert [source for source in train if beside.search(source)] == []
    assert any(beside.search(sentence.source.lower()) for sentence in splits["test"])


def test_held_out_share():
    combinations = [("object", verb.english, noun.english) for verb in toy.VERBS for noun in toy.NOUNS]
    share = sum(map(toy.is_held_out, combinations)) / len(combinations)
    assert share == pytest.approx(toy.HELD_OUT_SHARE, rel=0.15)
    assert {c for c in combinations if toy.is_held_out(c, 0)} != {c for c in combinations if toy.is_held_out(c, 1)}


def test_combinations_of_a_derivation():
    sentence = toy.statement(clause("Mary", "ser", "present", toy.Phrase("tall", "alta")))
    assert sentence.combinations == frozenset()
    sentence = toy.statement(clause(np("the", "king", adjective="old"), "sleep", "past"))
    assert sentence.combinations == {("subject", "king", "sleep"), ("adjective", "old", "king")}


def test_derivations_name_the_objects(many):
    """A transitive verb and a following noun make an "object" combination."""
    bought = [
        s for s in many if re.search(r"\b(buy|buys|bought) (the|a) \w+[ .?]", s.source) and " and " not in s.source
    ]
    assert len(bought) > 50
    assert all(any(c[:2] == ("object", "buy") for c in s.combinations) for s in bought)


def test_every_test_word_occurs_in_training(splits):
    for side in ("source", "target"):
        known = set().union(*(words(getattr(sentence, side)) for sentence in splits["train"]))
        assert set().union(*(words(getattr(sentence, side)) for sentence in splits["test"])) <= known


@pytest.mark.parametrize("argument", ["num_pairs", "num_validation", "num_test"])
@pytest.mark.parametrize("size", [0, -5, 10**7])
def test_sizes_out_of_range(argument, size):
    maximum = toy.MAX_PAIRS[{"num_pairs": "train"}.get(argument, argument[4:])]
    with pytest.raises(ValueError, match=f"{argument}={size} .*from 1 to the maximum, {maximum}"):
        toy.load_toy_corpus(**{**SIZES, argument: size})


def test_too_few_training_words_for_the_test_set(monkeypatch):
    monkeypatch.setattr(toy, "MIN_TEST_DRAWS", 1_000)
    with pytest.raises(ValueError, match="num_test=5 is too many for num_pairs=2.*raise num_pairs or lower num_test"):
        toy.load_toy_corpus(2, num_validation=1, num_test=5)


@pytest.mark.slow
def test_grammar_gives_a_hundred_thousand_pairs():
    corpus = toy.load_toy_corpus(100_000)
    assert len(set(corpus["train"]["source"])) == 100_000
