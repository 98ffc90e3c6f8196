import pytest

from hf_vanilla_transformer.data.toy_corpus import lexicon
from hf_vanilla_transformer.data.toy_corpus.grammar import (
    COPULAS,
    SLOTS,
    Clause,
    Phrase,
    conjugate,
    coordination,
    english_past,
    name_phrase,
    noun_phrase,
    prepositional,
    pronoun_phrase,
    question,
    statement,
    what_a,
)
from hf_vanilla_transformer.data.toy_corpus.marks import without_marks

NOUNS = {noun.english: noun for noun in lexicon.NOUNS}
ADJECTIVES = {adjective.english: adjective for adjective in lexicon.ADJECTIVES}
VERBS = {verb.english: verb for verb in lexicon.VERBS}
DETERMINERS = {determiner.english: determiner for determiner in lexicon.DETERMINERS}
PRONOUNS = {pronoun.english: pronoun_phrase(pronoun) for pronoun in lexicon.PRONOUNS}
NAMES = {name.english: name_phrase(name) for name in lexicon.PEOPLE}


def np(determiner, noun, *, plural=False, adjective="", owner=None):
    adjective = ADJECTIVES[adjective] if adjective else None
    return noun_phrase(DETERMINERS[determiner], NOUNS[noun], plural, adjective, owner)


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
    assert [conjugate(infinitive, tense, *slot) for slot in SLOTS] == forms.split()


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
        conjugate(*arguments)


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
    assert (without_marks(phrase.english), without_marks(phrase.spanish)) == (english, spanish)


def clause(subject, verb, tense, *complements, **options):
    subject = PRONOUNS.get(subject) or NAMES.get(subject) if isinstance(subject, str) else subject
    verb = COPULAS.get(verb) or VERBS[verb]
    return Clause(subject, verb, tense, complements, **options)


TO_HER = Phrase("to her", "")
TO_ANNA = prepositional("to", "a", NAMES["Anna"])
A_BOY = prepositional("", "a", np("the", "boy"))
MY_BROTHER_AND_I = coordination(np("my", "brother"), PRONOUNS["I"])


@pytest.mark.parametrize(
    ("sentence", "source", "target"),
    [
        (
            statement(clause("I", "buy", "past", np("a", "apple"), Phrase("yesterday", "ayer"))),
            "I bought an apple yesterday.",
            "Compré una manzana ayer.",
        ),
        (statement(clause("Mary", "see", "past", A_BOY)), "Mary saw the boy.", "María vio al niño."),
        (
            statement(clause("he", "see", "present", Phrase("them", ""), clitic="los", negated=True)),
            "He does not see them.",
            "Él no los ve.",
        ),
        (
            statement(clause("we", "give", "future", np("the", "book"), TO_ANNA, clitic="le", negated=True)),
            "We will not give the book to Anna.",
            "No le daremos el libro a Ana.",
        ),
        (
            statement(clause("they", "bring", "have", np("the", "water"), TO_HER, clitic="le")),
            "They have to bring the water to her.",
            "Ellos le tienen que traer el agua.",
        ),
        (
            statement(clause("she", "paint", "can", np("the", "house"), negated=True)),
            "She cannot paint the house.",
            "Ella no puede pintar la casa.",
        ),
        (
            statement(clause(np("the", "boy"), "like", "present", np("the", "apple", plural=True))),
            "The boy likes the apples.",
            "Al niño le gustan las manzanas.",
        ),
        (
            question(clause("you", "like", "present", np("the", "soup"))),
            "Do you like the soup?",
            "¿Te gusta la sopa?",
        ),
        (
            statement(clause(MY_BROTHER_AND_I, "eat", "past", np("the", "bread"))),
            "My brother and I ate the bread.",
            "Mi hermano y yo comimos el pan.",
        ),
        (
            statement(clause(coordination(NAMES["Anna"], NAMES["Isabel"]), "sleep", "past")),
            "Anna and Isabel slept.",
            "Ana e Isabel durmieron.",
        ),
        (
            statement(clause("she", "drink", "present", np("the", "tea"), frequency="never")),
            "She never drinks the tea.",
            "Ella nunca bebe el té.",
        ),
        (
            statement(clause("John", "ser", "past", Phrase("tall", "alto"))),
            "John was tall.",
            "Juan era alto.",
        ),
        (
            question(clause(np("the", "soup"), "estar", "present", Phrase("cold", "fría"))),
            "Is the soup cold?",
            "¿Está fría la sopa?",
        ),
        (
            question(clause("she", "go", "going"), Phrase("where", "adónde")),
            "Where is she going to go?",
            "¿Adónde va a ir ella?",
        ),
        (
            question(clause(np("the", "teacher"), "look for", "past"), Phrase("who", "a quién")),
            "Who did the teacher look for?",
            "¿A quién buscó el profesor?",
        ),
        (
            statement(clause("we", "have", "past", np("two", "cow", plural=True)), Phrase("now", "ahora")),
            "Now we had two cows.",
            "Ahora teníamos dos vacas.",
        ),
        (
            what_a(NOUNS["tower"], ADJECTIVES["old"], plural=True),
            "What old towers!",
            "¡Qué torres tan viejas!",
        ),
        (what_a(NOUNS["hat"], ADJECTIVES["ugly"]), "What an ugly hat!", "¡Qué sombrero tan feo!"),
        (
            statement(clause("I", "go", "future", prepositional("to", "a", np("the", "river")))),
            "I will go to the river.",
            "Iré al río.",
        ),
    ],
)
def test_translation(sentence, source, target):
    assert (sentence.source, sentence.target) == (source, target)


def test_english_past_differs_from_the_present():
    """Otherwise "they put" would have two translations."""
    assert [verb.english for verb in lexicon.VERBS if english_past(verb) == verb.english] == []


def test_combinations_of_a_derivation():
    sentence = statement(clause("Mary", "ser", "present", Phrase("tall", "alta")))
    assert sentence.combinations == frozenset()
    sentence = statement(clause(np("the", "king", adjective="old"), "sleep", "past"))
    assert sentence.combinations == {("subject", "king", "sleep"), ("adjective", "old", "king")}
