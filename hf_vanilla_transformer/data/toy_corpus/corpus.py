"""The built-in English-Spanish corpus: a small grammar that writes both languages at once, no download.

The Spanish is a function of the English: `you` is always *tú*, each noun has one gender, and no English verb
of the lexicon looks the same in the present and in the past.

To add a word, add a line to `NOUNS`, `ADJECTIVES` or `VERBS`. Their `kinds` say what goes with what: a verb takes
the subjects, objects and places whose kinds it names, an adjective the nouns. A Spanish verb that is not regular
also needs its irregular parts in `CONJUGATIONS`.
"""

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import islice
from typing import TypeVar

from datasets import Dataset, DatasetDict

__all__ = [
    "HELD_OUT_SHARE",
    "MAX_PAIRS",
    "Combination",
    "Sentence",
    "conjugate",
    "generate_sentences",
    "is_held_out",
    "load_toy_corpus",
    "split_sentences",
]

T = TypeVar("T")

Combination = tuple[str, str, str]
"""A relation and the two English words it joins, such as ("object", "eat", "apple")."""

MAX_PAIRS = {"train": 300_000, "validation": 20_000, "test": 20_000}
"""The largest splits that `load_toy_corpus` builds; the grammar gives more, but ever more slowly."""

HELD_OUT_SHARE = 0.05
"""The share of word combinations that only test sentences contain."""

# A test sentence of known words takes 10 draws with 30,000 training pairs and some hundreds with 100.
MIN_TEST_DRAWS = 30_000
MAX_DRAWS_PER_TEST_PAIR = 100


# Lexicon


@dataclass(frozen=True)
class Noun:
    """A noun of both languages.

    Attributes:
        english: Singular.
        spanish: Singular.
        gender: "m" or "f", of the Spanish noun.
        kinds: What the noun names, words separated by spaces; verbs and adjectives select by them.
        english_plural: Only where the rules of `_english_noun` do not give it.
        spanish_plural: Only where the rules of `_spanish_plural` do not give it.
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
        copula: "ser" or "estar" after *to be*; "" if it only stands beside a noun.
        gradable: Whether "as ... as" and "how ..." make sense.
        prenominal: The four forms (masculine, feminine; then plural) of one that precedes the Spanish noun.
        feminine: Feminine singular, only where the rules of `_agree` do not give it.
        plural: Masculine plural, only where the rules of `_spanish_plural` do not give it.
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
        past: English past, only where the rule of `_english_past` does not give it.
        stative: A state: its past is the Spanish imperfect and no modal governs it.
        personal_a: Kinds of the objects that take the preposition *a*.
        motion: Its place is a destination.
        ditransitive: Has a recipient: "to my sister".
        inverted: The thing liked is the Spanish subject (gustar).
        habitual: Goes with "every day" and "often".
        sociable: Goes with "with my sister".
        accidental: Nobody plans it, so no modal governs it.
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
    """A determiner and its four Spanish forms: masculine, feminine, then plural; "-" where there is none.

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


@dataclass(frozen=True)
class Modal:
    """What precedes an infinitive: "have to", *tener que*. `auxiliary` is the English one of questions and "not"."""

    english: str
    auxiliary: str
    spanish: str
    link: str = ""


NOUNS = (
    # People. A "stranger" takes no possessive, "kin" takes nothing else.
    Noun("boy", "niño", "m", "person stranger"),
    Noun("girl", "niña", "f", "person stranger"),
    Noun("man", "hombre", "m", "person stranger adult", english_plural="men"),
    Noun("woman", "mujer", "f", "person stranger adult", english_plural="women"),
    Noun("king", "rey", "m", "person stranger adult", spanish_plural="reyes"),
    Noun("queen", "reina", "f", "person stranger adult"),
    Noun("waiter", "camarero", "m", "person stranger adult"),
    Noun("waitress", "camarera", "f", "person stranger adult"),
    Noun("actor", "actor", "m", "person stranger adult"),
    Noun("actress", "actriz", "f", "person stranger adult"),
    Noun("tourist", "turista", "m", "person stranger adult"),
    Noun("nurse", "enfermera", "f", "person adult"),
    Noun("neighbor", "vecino", "m", "person adult"),
    Noun("father", "padre", "m", "person kin adult", number="singular"),
    Noun("mother", "madre", "f", "person kin adult", number="singular"),
    Noun("brother", "hermano", "m", "person kin"),
    Noun("sister", "hermana", "f", "person kin"),
    Noun("son", "hijo", "m", "person kin"),
    Noun("daughter", "hija", "f", "person kin"),
    Noun("uncle", "tío", "m", "person kin adult"),
    Noun("aunt", "tía", "f", "person kin adult"),
    Noun("grandfather", "abuelo", "m", "person kin adult"),
    Noun("grandmother", "abuela", "f", "person kin adult"),
    Noun("teacher", "profesor", "m", "person adult", feminine="profesora"),
    Noun("doctor", "médico", "m", "person adult", feminine="médica"),
    Noun("lawyer", "abogado", "m", "person adult", feminine="abogada"),
    Noun("student", "estudiante", "m", "person", feminine="estudiante"),
    Noun("singer", "cantante", "m", "person stranger adult", feminine="cantante"),
    Noun("farmer", "granjero", "m", "person stranger adult", feminine="granjera"),
    Noun("writer", "escritor", "m", "person stranger adult", feminine="escritora"),
    Noun("artist", "artista", "m", "person stranger adult", feminine="artista"),
    Noun("engineer", "ingeniero", "m", "person stranger adult", feminine="ingeniera"),
    # Animals
    Noun("dog", "perro", "m", "animal pet"),
    Noun("cat", "gato", "m", "animal pet"),
    Noun("horse", "caballo", "m", "animal pet"),
    Noun("cow", "vaca", "f", "animal pet"),
    Noun("rabbit", "conejo", "m", "animal pet"),
    Noun("duck", "pato", "m", "animal pet"),
    Noun("hen", "gallina", "f", "animal pet"),
    Noun("mouse", "ratón", "m", "animal wild", english_plural="mice"),
    Noun("wolf", "lobo", "m", "animal wild", english_plural="wolves"),
    Noun("bear", "oso", "m", "animal wild"),
    Noun("eagle", "águila", "f", "animal wild", stressed_a=True),
    Noun("lion", "león", "m", "animal wild"),
    # Food and drink
    Noun("apple", "manzana", "f", "food fruit"),
    Noun("orange", "naranja", "f", "food fruit"),
    Noun("pear", "pera", "f", "food fruit"),
    Noun("strawberry", "fresa", "f", "food fruit"),
    Noun("banana", "plátano", "m", "food fruit"),
    Noun("tomato", "tomate", "m", "food fruit dish", english_plural="tomatoes"),
    Noun("potato", "patata", "f", "food dish", english_plural="potatoes"),
    Noun("carrot", "zanahoria", "f", "food dish"),
    Noun("egg", "huevo", "m", "food dish"),
    Noun("cake", "pastel", "m", "food sweets dish"),
    Noun("cookie", "galleta", "f", "food sweets dish"),
    Noun("sandwich", "bocadillo", "m", "food"),
    Noun("bread", "pan", "m", "food", number="mass"),
    Noun("cheese", "queso", "m", "food", number="mass"),
    Noun("rice", "arroz", "m", "food dish", number="mass"),
    Noun("meat", "carne", "f", "food dish", number="mass"),
    Noun("soup", "sopa", "f", "food dish", number="mass"),
    Noun("water", "agua", "f", "drink", number="mass", stressed_a=True),
    Noun("milk", "leche", "f", "drink", number="mass"),
    Noun("coffee", "café", "m", "drink", number="mass"),
    Noun("tea", "té", "m", "drink", number="mass"),
    Noun("juice", "zumo", "m", "drink", number="mass"),
    Noun("wine", "vino", "m", "drink", number="mass"),
    # Clothes
    Noun("shirt", "camisa", "f", "garment"),
    Noun("hat", "sombrero", "m", "garment"),
    Noun("shoe", "zapato", "m", "garment"),
    Noun("coat", "abrigo", "m", "garment"),
    Noun("dress", "vestido", "m", "garment"),
    Noun("skirt", "falda", "f", "garment"),
    Noun("jacket", "chaqueta", "f", "garment"),
    Noun("scarf", "bufanda", "f", "garment", english_plural="scarves"),
    Noun("sock", "calcetín", "m", "garment"),
    # Things
    Noun("table", "mesa", "f", "furniture surface"),
    Noun("chair", "silla", "f", "furniture surface"),
    Noun("bed", "cama", "f", "furniture surface"),
    Noun("lamp", "lámpara", "f", "furniture breakable"),
    Noun("mirror", "espejo", "m", "furniture breakable"),
    Noun("clock", "reloj", "m", "furniture breakable machine"),
    Noun("key", "llave", "f", "thing"),
    Noun("ball", "pelota", "f", "thing"),
    Noun("pencil", "lápiz", "m", "thing breakable"),
    Noun("umbrella", "paraguas", "m", "thing breakable", spanish_plural="paraguas"),
    Noun("map", "mapa", "m", "thing"),
    Noun("flower", "flor", "f", "plant"),
    Noun("box", "caja", "f", "thing container"),
    Noun("suitcase", "maleta", "f", "thing container"),
    Noun("bottle", "botella", "f", "thing container breakable"),
    Noun("cup", "taza", "f", "thing dishes breakable"),
    Noun("glass", "vaso", "m", "thing dishes breakable"),
    Noun("plate", "plato", "m", "thing dishes breakable"),
    Noun("knife", "cuchillo", "m", "thing dishes", english_plural="knives"),
    Noun("phone", "teléfono", "m", "thing breakable machine"),
    Noun("camera", "cámara", "f", "thing breakable machine"),
    Noun("computer", "ordenador", "m", "thing breakable machine"),
    Noun("book", "libro", "m", "text"),
    Noun("letter", "carta", "f", "text"),
    Noun("novel", "novela", "f", "text"),
    Noun("poem", "poema", "m", "text"),
    Noun("song", "canción", "f", "music"),
    Noun("newspaper", "periódico", "m", "press"),
    Noun("magazine", "revista", "f", "press"),
    Noun("guitar", "guitarra", "f", "instrument"),
    Noun("piano", "piano", "m", "instrument"),
    Noun("violin", "violín", "m", "instrument"),
    Noun("flute", "flauta", "f", "instrument"),
    Noun("door", "puerta", "f", "opening"),
    Noun("window", "ventana", "f", "opening"),
    # Vehicles
    Noun("car", "coche", "m", "vehicle private"),
    Noun("bicycle", "bicicleta", "f", "vehicle private"),
    Noun("truck", "camión", "m", "vehicle private"),
    Noun("boat", "barco", "m", "boat private"),
    Noun("bus", "autobús", "m", "vehicle transport public"),
    Noun("train", "tren", "m", "transport public"),
    Noun("plane", "avión", "m", "transport public"),
    # Places. "at" marks those that English puts "at" instead of "in" front of.
    Noun("house", "casa", "f", "building home dwelling"),
    Noun("apartment", "piso", "m", "dwelling home"),
    Noun("kitchen", "cocina", "f", "room home dining"),
    Noun("bedroom", "dormitorio", "m", "room home"),
    Noun("bathroom", "baño", "m", "room"),
    Noun("garden", "jardín", "m", "yard home dining"),
    Noun("classroom", "aula", "f", "room public study", stressed_a=True),
    Noun("office", "oficina", "f", "room workplace"),
    Noun("school", "escuela", "f", "building workplace study"),
    Noun("hospital", "hospital", "m", "building public workplace"),
    Noun("restaurant", "restaurante", "m", "building workplace dining"),
    Noun("hotel", "hotel", "m", "building workplace dining"),
    Noun("shop", "tienda", "f", "building workplace shopping"),
    Noun("library", "biblioteca", "f", "building public workplace study"),
    Noun("museum", "museo", "m", "building public workplace sight"),
    Noun("church", "iglesia", "f", "building public sight"),
    Noun("castle", "castillo", "m", "building public sight"),
    Noun("bridge", "puente", "m", "structure public sight"),
    Noun("tower", "torre", "f", "structure public sight"),
    Noun("park", "parque", "m", "outdoors public dining"),
    Noun("street", "calle", "f", "outdoors public"),
    Noun("square", "plaza", "f", "outdoors public sight"),
    Noun("forest", "bosque", "m", "outdoors public nature"),
    Noun("beach", "playa", "f", "outdoors public nature at dining"),
    Noun("river", "río", "m", "waters public"),
    Noun("lake", "lago", "m", "waters public"),
    Noun("market", "mercado", "m", "outdoors public shopping at"),
    Noun("station", "estación", "f", "stop public at"),
    Noun("airport", "aeropuerto", "m", "stop public at"),
    Noun("village", "pueblo", "m", "settlement"),
    Noun("city", "ciudad", "f", "settlement"),
)

PEOPLE = (
    Name("Mary", "María", "f"),
    Name("Anna", "Ana", "f"),
    Name("Isabel", "Isabel", "f"),
    Name("Helen", "Elena", "f"),
    Name("Laura", "Laura", "f"),
    Name("John", "Juan", "m"),
    Name("Peter", "Pedro", "m"),
    Name("Paul", "Pablo", "m"),
    Name("Michael", "Miguel", "m"),
    Name("Charles", "Carlos", "m"),
)

CITIES = (
    Name("Madrid", "Madrid"),
    Name("London", "Londres"),
    Name("Paris", "París"),
    Name("Rome", "Roma"),
    Name("Lisbon", "Lisboa"),
    Name("Seville", "Sevilla"),
    Name("New York", "Nueva York"),
    Name("Vienna", "Viena"),
)

COLOURED = "garment thing furniture vehicle private boat opening plant"
SIZED = (
    "animal thing furniture vehicle boat building dwelling room structure opening settlement waters yard plant fruit"
)
SOLD = "garment thing furniture vehicle private instrument dwelling"

ADJECTIVES = (
    Adjective("tall", "alto", "person"),
    Adjective("young", "joven", "person animal", plural="jóvenes"),
    Adjective("rich", "rico", "adult"),
    Adjective("poor", "pobre", "adult"),
    Adjective("strong", "fuerte", "person animal"),
    Adjective("kind", "amable", "person"),
    Adjective("intelligent", "inteligente", "person pet"),
    Adjective("brave", "valiente", "person"),
    Adjective("lazy", "perezoso", "person pet"),
    Adjective("hardworking", "trabajador", "person", feminine="trabajadora"),
    Adjective("famous", "famoso", "adult sight text music"),
    Adjective("Spanish", "español", "person text music press", gradable=False, feminine="española"),
    Adjective("French", "francés", "person text music press", gradable=False, feminine="francesa"),
    Adjective("English", "inglés", "person text music press", gradable=False, feminine="inglesa"),
    Adjective("German", "alemán", "person text music press private", gradable=False, feminine="alemana"),
    Adjective("Italian", "italiano", "person text music press private", gradable=False),
    Adjective("happy", "contento", "person", "estar"),
    Adjective("sad", "triste", "person", "estar"),
    Adjective("tired", "cansado", "person animal", "estar"),
    Adjective("sick", "enfermo", "person pet", "estar"),
    Adjective("busy", "ocupado", "person", "estar"),
    Adjective("angry", "enfadado", "person", "estar"),
    Adjective("nervous", "nervioso", "person pet", "estar"),
    Adjective("red", "rojo", COLOURED, gradable=False),
    Adjective("white", "blanco", COLOURED + " pet", gradable=False),
    Adjective("black", "negro", COLOURED + " animal", gradable=False),
    Adjective("green", "verde", COLOURED, gradable=False),
    Adjective("blue", "azul", COLOURED, gradable=False),
    Adjective("yellow", "amarillo", COLOURED, gradable=False),
    Adjective("brown", "marrón", "garment furniture opening animal", gradable=False),
    Adjective("gray", "gris", "garment vehicle boat animal", gradable=False),
    Adjective("big", "grande", SIZED),
    Adjective("small", "pequeño", SIZED),
    Adjective(
        "beautiful", "hermoso", "building structure plant yard settlement waters garment music instrument sight"
    ),
    Adjective("ugly", "feo", "building garment furniture structure"),
    Adjective("old", "viejo", "person animal " + SOLD + " boat building structure"),
    Adjective("modern", "moderno", "building furniture machine transport settlement"),
    Adjective("expensive", "caro", SOLD),
    Adjective("cheap", "barato", SOLD),
    Adjective("heavy", "pesado", "container machine furniture"),
    Adjective("useful", "útil", "machine thing private"),
    Adjective("comfortable", "cómodo", "garment dwelling private"),
    Adjective("fast", "rápido", "vehicle private transport"),
    Adjective("slow", "lento", "vehicle private transport"),
    Adjective("long", "largo", "text music"),
    Adjective("interesting", "interesante", "text press sight"),
    Adjective("boring", "aburrido", "text press"),
    Adjective("delicious", "delicioso", "food drink"),
    Adjective("sweet", "dulce", "fruit sweets"),
    Adjective("hot", "caliente", "drink dish", "estar"),
    Adjective("cold", "frío", "drink dish", "estar"),
    Adjective("clean", "limpio", "garment dishes room private", "estar"),
    Adjective("dirty", "sucio", "garment dishes room private", "estar"),
    Adjective("broken", "roto", "breakable", "estar", gradable=False),
    Adjective("open", "abierto", "opening container", "estar", gradable=False),
    Adjective("closed", "cerrado", "opening container", "estar", gradable=False),
    Adjective("empty", "vacío", "container dining room stop outdoors", "estar", gradable=False),
    Adjective("good", "bueno", "text music press private machine", prenominal="buen buena buenos buenas"),
    Adjective("bad", "malo", "text music press", prenominal="mal mala malos malas"),
    Adjective("new", "nuevo", SOLD + " machine text", gradable=False, prenominal="nuevo nueva nuevos nuevas"),
    Adjective("great", "gran", "text music", copula="", gradable=False, prenominal="gran gran grandes grandes"),
)

BUYABLE = "food drink garment thing furniture plant private text press instrument"
PORTABLE = "thing garment plant text press"

VERBS = (
    Verb("eat", "comer", "person", "food", "dining", past="ate", habitual=True, sociable=True),
    Verb("drink", "beber", "person animal", "drink", "dining", past="drank", habitual=True, sociable=True),
    Verb("cook", "cocinar", "person", "dish", "dining", habitual=True, sociable=True),
    Verb("buy", "comprar", "person", BUYABLE + " pet dwelling", "shopping", past="bought", personal_a="person"),
    Verb("sell", "vender", "adult", BUYABLE + " pet dwelling", "shopping", past="sold", personal_a="person"),
    Verb(
        "choose",
        "elegir",
        "person",
        "garment text music instrument pet sweets",
        "shopping",
        past="chose",
        personal_a="person",
    ),
    Verb("see", "ver", "person animal", "person animal vehicle boat sight", "outdoors", past="saw"),
    Verb("hear", "oír", "person animal", "person animal music transport", "outdoors", past="heard", accidental=True),
    Verb("find", "encontrar", "person", "person pet " + PORTABLE, "outdoors home", past="found", accidental=True),
    Verb("look for", "buscar", "person", "person pet " + PORTABLE, "outdoors home", past="looked for"),
    Verb("lose", "perder", "person", "thing garment text", "outdoors stop", past="lost", accidental=True),
    Verb("follow", "seguir", "person animal", "person animal vehicle", "outdoors"),
    Verb("wait for", "esperar", "person", "person transport", "stop", past="waited for"),
    Verb("help", "ayudar", "person", "person", "workplace home", habitual=True),
    Verb("visit", "visitar", "person", "person sight settlement", habitual=True),
    Verb("invite", "invitar", "person", "person"),
    Verb("call", "llamar", "person", "person pet", habitual=True),
    Verb("know", "conocer", "person", "person settlement sight", past="knew", stative=True),
    Verb("have", "tener", "person", "pet thing furniture private garment instrument", stative=True, personal_a=""),
    Verb("need", "necesitar", "person", "thing furniture private garment instrument", stative=True),
    Verb("want", "querer", "person", BUYABLE, stative=True),
    Verb("wear", "llevar", "person", "garment", past="wore", stative=True),
    Verb("open", "abrir", "person", "opening container"),
    Verb("close", "cerrar", "person", "opening container"),
    Verb("clean", "limpiar", "person", "room dishes private opening furniture", habitual=True),
    Verb("wash", "lavar", "person", "garment dishes private", habitual=True),
    Verb("paint", "pintar", "person", "dwelling room opening surface boat"),
    Verb("write", "escribir", "person", "text music", "home study", past="wrote", habitual=True),
    Verb("break", "romper", "person", "breakable", past="broke", accidental=True),
    Verb("repair", "reparar", "adult", "machine vehicle private furniture instrument", "workplace"),
    Verb("build", "construir", "adult", "dwelling building structure boat surface", past="built"),
    Verb("play", "tocar", "person", "instrument music", "home outdoors", habitual=True, sociable=True),
    Verb(
        "draw", "dibujar", "person", "animal building structure plant boat", "study home", past="drew", personal_a=""
    ),
    Verb("forget", "olvidar", "person", "thing garment text", past="forgot", accidental=True),
    Verb("give", "dar", "person", PORTABLE + " sweets fruit", past="gave", ditransitive=True),
    Verb("send", "enviar", "person", "text plant container", past="sent", ditransitive=True),
    Verb("show", "mostrar", "person", "text garment machine instrument", ditransitive=True),
    Verb("bring", "traer", "person", PORTABLE + " drink dish", past="brought", ditransitive=True),
    Verb(
        "like",
        "gustar",
        "person",
        "food drink garment text music sight instrument settlement pet",
        personal_a="",
        inverted=True,
    ),
    Verb("go", "ir", "person", places="sight outdoors workplace stop city", past="went", motion=True, habitual=True),
    Verb("travel", "viajar", "adult", places="settlement city", past="traveled", motion=True),
    Verb("return", "volver", "person", places="workplace dwelling settlement stop city", motion=True),
    Verb("live", "vivir", "person", places="settlement city dwelling", stative=True),
    Verb("work", "trabajar", "adult", places="workplace shopping city", habitual=True, sociable=True),
    Verb("study", "estudiar", "person", places="study home city", habitual=True, sociable=True),
    Verb("sleep", "dormir", "person animal", places="home", past="slept", habitual=True),
    Verb("run", "correr", "person animal", places="outdoors", past="ran", habitual=True, sociable=True),
    Verb("swim", "nadar", "person", places="waters", past="swam", habitual=True, sociable=True),
    Verb("sing", "cantar", "person", places="home outdoors study", past="sang", habitual=True, sociable=True),
    Verb("dance", "bailar", "person", places="home outdoors dining", habitual=True, sociable=True),
    Verb("cry", "llorar", "person", places="home outdoors", habitual=True),
    Verb("rest", "descansar", "person animal", places="home nature", habitual=True, sociable=True),
)

COPULAS = {spanish: Verb("be", spanish, "", stative=True) for spanish in ("ser", "estar")}

# Forms are in the order I, you, he, we, they. "boot" is the stem of all present forms but the fourth, "yo" the first
# form, "strong" the stem of an irregular preterite, "third" the preterite stem of the third person, "stem" of the
# future; a tense's own name gives its five forms.
CONJUGATIONS: dict[str, dict[str, str]] = {
    "ser": {
        "present": "soy eres es somos son",
        "preterite": "fui fuiste fue fuimos fueron",
        "imperfect": "era eras era éramos eran",
    },
    "estar": {"present": "estoy estás está estamos están", "strong": "estuv"},
    "ir": {
        "present": "voy vas va vamos van",
        "preterite": "fui fuiste fue fuimos fueron",
        "imperfect": "iba ibas iba íbamos iban",
    },
    "dar": {"present": "doy das da damos dan", "preterite": "di diste dio dimos dieron"},
    "ver": {
        "yo": "veo",
        "preterite": "vi viste vio vimos vieron",
        "imperfect": "veía veías veía veíamos veían",
    },
    "oír": {"present": "oigo oyes oye oímos oyen", "preterite": "oí oíste oyó oímos oyeron", "stem": "oir"},
    "tener": {"yo": "tengo", "boot": "tien", "strong": "tuv", "stem": "tendr"},
    "querer": {"boot": "quier", "strong": "quis", "stem": "querr"},
    "poder": {"boot": "pued", "strong": "pud", "stem": "podr"},
    "traer": {"yo": "traigo", "strong": "traj"},
    "construir": {"boot": "construy", "preterite": "construí construiste construyó construimos construyeron"},
    "elegir": {"yo": "elijo", "boot": "elig", "third": "elig"},
    "seguir": {"yo": "sigo", "boot": "sigu", "third": "sigu"},
    "dormir": {"boot": "duerm", "third": "durm"},
    "conocer": {"yo": "conozco"},
    "enviar": {"boot": "enví"},
    "encontrar": {"boot": "encuentr"},
    "mostrar": {"boot": "muestr"},
    "perder": {"boot": "pierd"},
    "cerrar": {"boot": "cierr"},
    "volver": {"boot": "vuelv"},
}

ENDINGS = {
    "present": {"ar": "o as a amos an", "er": "o es e emos en", "ir": "o es e imos en"},
    "preterite": {"ar": "é aste ó amos aron", "er": "í iste ió imos ieron", "ir": "í iste ió imos ieron"},
    "imperfect": {"ar": "aba abas aba ábamos aban", "er": "ía ías ía íamos ían", "ir": "ía ías ía íamos ían"},
    "future": {"ar": "é ás á emos án", "er": "é ás á emos án", "ir": "é ás á emos án"},
}
STRONG_ENDINGS = "e iste o imos ieron"

# (person, plural): the place of a form in the rows above, and the dative clitic.
SLOTS = {(1, False): 0, (2, False): 1, (3, False): 2, (1, True): 3, (3, True): 4}
DATIVES = {(1, False): "me", (2, False): "te", (3, False): "le", (1, True): "nos", (3, True): "les"}

# The roles of a determiner that make a known person or thing, a new one, or either.
KNOWN = "definite possessive"
NEW = "indefinite"
KNOWN_OR_NEW = "definite possessive indefinite"

DETERMINERS = (
    Determiner("the", "el la los las", "definite", "any", weight=16),
    Determiner("this", "este esta - -", "definite", "any", weight=2),
    Determiner("these", "- - estos estas", "definite", weight=2),
    Determiner("that", "ese esa - -", "definite", "any", weight=2),
    Determiner("those", "- - esos esas", "definite", weight=2),
    Determiner("my", "mi mi mis mis", "possessive", "any", weight=2),
    Determiner("your", "tu tu tus tus", "possessive", "any", weight=2),
    Determiner("his", "su su sus sus", "possessive", "any"),
    Determiner("her", "su su sus sus", "possessive", "any"),
    Determiner("our", "nuestro nuestra nuestros nuestras", "possessive", "any", weight=2),
    Determiner("their", "su su sus sus", "possessive", "any"),
    Determiner("a", "un una - -", "indefinite", weight=12),
    Determiner("another", "otro otra - -", "indefinite"),
    Determiner("two", "- - dos dos", "indefinite"),
    Determiner("three", "- - tres tres", "indefinite"),
    Determiner("four", "- - cuatro cuatro", "indefinite"),
    Determiner("five", "- - cinco cinco", "indefinite"),
    Determiner("six", "- - seis seis", "indefinite"),
    Determiner("seven", "- - siete siete", "indefinite"),
    Determiner("eight", "- - ocho ocho", "indefinite"),
    Determiner("nine", "- - nueve nueve", "indefinite"),
    Determiner("ten", "- - diez diez", "indefinite"),
    Determiner("twenty", "- - veinte veinte", "indefinite"),
    Determiner("some", "- - algunos algunas", "indefinite", weight=2),
    Determiner("many", "- - muchos muchas", "indefinite", weight=2),
    Determiner("several", "- - varios varias", "indefinite"),
    Determiner("a lot of", "mucho mucha - -", "indefinite", "mass", weight=8),
)

PRONOUNS = (
    Pronoun("I", "yo", 1, False, "m", "me", "me", "conmigo"),
    Pronoun("you", "tú", 2, False, "m", "you", "te", "contigo"),
    Pronoun("he", "él", 3, False, "m", "him", "lo", "con él"),
    Pronoun("she", "ella", 3, False, "f", "her", "la", "con ella"),
    Pronoun("we", "nosotros", 1, True, "m", "us", "nos", "con nosotros"),
    Pronoun("they", "ellos", 3, True, "m", "them", "los", "con ellos"),
)

MODALS = {
    "can": Modal("can", "can", "poder"),
    "must": Modal("must", "must", "deber"),
    "want": Modal("want to", "do", "querer"),
    "have": Modal("have to", "do", "tener", "que"),
    "going": Modal("going to", "be", "ir", "a"),
}

TIMES = {
    "present": {
        "every day": "todos los días",
        "every week": "todas las semanas",
        "on Mondays": "los lunes",
        "on Sundays": "los domingos",
        "in the morning": "por la mañana",
        "at night": "por la noche",
    },
    "past": {
        "yesterday": "ayer",
        "last night": "anoche",
        "last week": "la semana pasada",
        "last month": "el mes pasado",
        "last year": "el año pasado",
        "on Friday": "el viernes",
        "two days ago": "hace dos días",
        "an hour ago": "hace una hora",
    },
    "future": {
        "tomorrow": "mañana",
        "next week": "la próxima semana",
        "next month": "el próximo mes",
        "on Friday": "el viernes",
        "on Saturday": "el sábado",
        "this afternoon": "esta tarde",
        "soon": "pronto",
    },
}

HOW_MANY = Determiner("how many", "- - cuántos cuántas", "indefinite")

# Of "there": English singular and plural, Spanish.
EXISTENCE = {
    "present": ("is", "are", "hay"),
    "past": ("was", "were", "había"),
    "future": ("will be", "will be", "habrá"),
}

FREQUENCIES = {"always": "siempre", "never": "nunca", "often": "a menudo", "sometimes": "a veces"}

POSITIONS = {
    "near": "cerca de",
    "behind": "detrás de",
    "next to": "al lado de",
    "in front of": "delante de",
}

# What is found where: kinds of things, the prepositions, kinds of places.
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


# Morphology


def _english_noun(noun: Noun, plural: bool) -> str:
    """The noun in either number; the plural is given or follows the spelling rules."""
    if not plural:
        return noun.english
    if noun.english_plural:
        return noun.english_plural
    return re.sub(r"[^aeiou]y$", lambda m: m[0][0] + "ie", noun.english) + _sibilant_e(noun.english) + "s"


def _sibilant_e(word: str) -> str:
    return "e" if word.endswith(("s", "x", "z", "ch", "sh")) else ""


def _english_third(base: str) -> str:
    """The third person singular present of a verb, which may have a particle."""
    verb, _, particle = base.partition(" ")
    if verb == "have":
        third = "has"
    elif verb == "go":
        third = "goes"
    else:
        third = re.sub(r"[^aeiou]y$", lambda m: m[0][0] + "ie", verb) + _sibilant_e(verb) + "s"
    return f"{third} {particle}".strip()


def _english_past(verb: Verb) -> str:
    """The simple past: given, or by the spelling rules."""
    if verb.past or verb.english == "have":
        return verb.past or "had"
    stem = re.sub(r"[^aeiou]y$", lambda m: m[0][0] + "i", verb.english)
    return stem + ("d" if stem.endswith("e") else "ed")


def _spanish_plural(word: str) -> str:
    """The plural by the spelling rules: lápiz, lápices; león, leones; libro, libros."""
    if word.endswith("z"):
        return word[:-1] + "ces"
    if word.endswith(("án", "és", "ín", "ón", "ús")):
        return word[:-2] + word[-2].translate(str.maketrans("áéíóú", "aeiou")) + word[-1] + "es"
    return word + ("s" if word[-1] in "aeiouáéó" else "es")


def _agree(adjective: Adjective, gender: str, plural: bool) -> str:
    """The Spanish form of an adjective in the predicate or after its noun."""
    feminine = adjective.feminine or re.sub("o$", "a", adjective.spanish)
    singular = feminine if gender == "f" else adjective.spanish
    if not plural:
        return singular
    return adjective.plural if adjective.plural and singular == adjective.spanish else _spanish_plural(singular)


def _preterite(infinitive: str, irregular: dict[str, str], slot: int) -> str:
    """One form of a preterite that `CONJUGATIONS` does not list in full."""
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
        ValueError: If there is no such infinitive, tense or person.
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


# Phrases and clauses: deterministic, every choice is an argument


@dataclass(frozen=True)
class Phrase:
    """A piece of a sentence in both languages, with the features that its neighbours agree with.

    Attributes:
        english: English words.
        spanish: Spanish words; "" where Spanish leaves the phrase out or says it elsewhere.
        person: 1, 2 or 3.
        plural: Number.
        gender: "m" or "f".
        lemmas: English head nouns, one for each coordinated part; none for a pronoun.
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
    """A subject, a verb and what follows.

    Attributes:
        subject: The English subject.
        verb: The verb.
        tense: "present", "past", "future" or a key of `MODALS`.
        complements: What follows the verb, in the same order in both languages.
        clitic: Spanish object pronoun in front of the verb.
        negated: Whether the clause says "not".
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
    """An English sentence, its Spanish translation and the word combinations of its derivation."""

    source: str
    target: str
    combinations: frozenset[Combination]


NOTHING = Phrase("", "")


def name_phrase(name: Name) -> Phrase:
    """The phrase that a proper name makes."""
    kinds = "person adult" if name.gender else "city"
    return Phrase(name.english, name.spanish, gender=name.gender or "f", lemmas=(name.english,), kinds=kinds)


def pronoun_phrase(pronoun: Pronoun) -> Phrase:
    """A subject pronoun. Spanish leaves out all but the third person."""
    spanish = pronoun.spanish if pronoun.person == 3 else ""
    return Phrase(pronoun.english, spanish, pronoun.person, pronoun.plural, pronoun.gender, kinds="person adult")


def noun_phrase(
    determiner: Determiner,
    noun: Noun,
    plural: bool = False,
    adjective: Adjective | None = None,
    owner: Phrase | None = None,
) -> Phrase:
    """A determiner, a noun and perhaps an adjective; an `owner` replaces the English determiner ("Mary's book")."""
    spanish_noun = (noun.spanish_plural or _spanish_plural(noun.spanish)) if plural else noun.spanish
    index = (noun.gender == "f") + 2 * plural
    spanish_determiner = determiner.spanish.split()[index]
    before = after = ""
    if adjective and adjective.prenominal:
        before = adjective.prenominal.split()[index]
    elif adjective:
        after = _agree(adjective, noun.gender, plural)
    if noun.stressed_a and not before:
        spanish_determiner = {"la": "el", "una": "un"}.get(spanish_determiner, spanish_determiner)
    english_determiner = determiner.english
    if owner:
        english_determiner = owner.english + ("'" if owner.english.endswith("s") and owner.plural else "'s")
        after = _join(after, "de", owner.spanish)
    return Phrase(
        _join(english_determiner, adjective.english if adjective else "", _english_noun(noun, plural)),
        _join(spanish_determiner, before, spanish_noun, after),
        plural=plural,
        gender=noun.gender,
        lemmas=(noun.english,),
        kinds=noun.kinds,
        definite=determiner.role != "indefinite",
        combinations=(_adjective_combinations(adjective, (noun.english,)) if adjective else frozenset())
        | (owner.combinations if owner else frozenset()),
    )


def coordination(first: Phrase, second: Phrase) -> Phrase:
    """Two phrases joined by "and"; `second` may be the pronoun "I"."""
    return Phrase(
        f"{first.english} and {second.english}",
        f"{first.spanish} y {second.spanish or 'yo'}",
        person=min(first.person, second.person),
        plural=True,
        gender="f" if first.gender == second.gender == "f" else "m",
        lemmas=first.lemmas + second.lemmas,
        kinds="person",
        combinations=first.combinations | second.combinations,
    )


def prepositional(english: str, spanish: str, phrase: Phrase) -> Phrase:
    """A phrase behind a preposition of either language; an empty preposition adds nothing."""
    return replace(phrase, english=_join(english, phrase.english), spanish=_join(spanish, phrase.spanish))


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


def _adjective_combinations(adjective: Adjective, lemmas: tuple[str, ...]) -> frozenset[Combination]:
    return frozenset(("adjective", adjective.english, lemma) for lemma in lemmas)


def _be(tense: str, subject: Phrase) -> str:
    if subject.plural or subject.person == 2:
        return "were" if tense == "past" else "are"
    if tense == "past":
        return "was"
    return "am" if subject.person == 1 else "is"


def _english_group(verb: Verb, tense: str, subject: Phrase) -> tuple[str, str, str]:
    """The English verb of a statement, then its auxiliary and the rest for "not" and questions."""
    third = subject.person == 3 and not subject.plural
    auxiliary = {"past": "did", "future": "will"}.get(tense, "does" if third else "do")
    if tense in MODALS:
        modal = MODALS[tense]
        rest = f"{modal.english} {verb.english}"
        if modal.auxiliary == "be":
            auxiliary = _be("present", subject)
            return f"{auxiliary} {rest}", auxiliary, rest
        if modal.auxiliary == "do":
            return (f"{_english_third(modal.english)} {verb.english}" if third else rest), auxiliary, rest
        return rest, modal.auxiliary, verb.english
    if tense == "future":
        return f"will {verb.english}", auxiliary, verb.english
    if verb.english == "be":
        return _be(tense, subject), _be(tense, subject), ""
    if tense == "past":
        return _english_past(verb), auxiliary, verb.english
    return (_english_third(verb.english) if third else verb.english), auxiliary, verb.english


def _spanish_group(clause: Clause) -> str:
    """The Spanish verb with everything that precedes it: negation, adverb and clitic."""
    verb = clause.verb
    agreement = clause.complements[0] if verb.inverted else clause.subject
    clitic = DATIVES[clause.subject.person, clause.subject.plural] if verb.inverted else clause.clitic
    if clause.tense in MODALS:
        modal = MODALS[clause.tense]
        finite = conjugate(modal.spanish, "present", agreement.person, agreement.plural)
        words = _join(finite, modal.link, verb.spanish)
    else:
        past = "imperfect" if verb.stative else "preterite"
        tense = past if clause.tense == "past" else clause.tense
        words = conjugate(verb.spanish, tense, agreement.person, agreement.plural)
    return _join("no" if clause.negated else "", FREQUENCIES.get(clause.frequency, ""), clitic, words)


def _combinations(clause: Clause) -> frozenset[Combination]:
    found = frozenset().union(clause.subject.combinations, *(phrase.combinations for phrase in clause.complements))
    if clause.verb.english == "be":
        return found
    return found | {("subject", lemma, clause.verb.english) for lemma in clause.subject.lemmas}


def _sentence(english: str, spanish: str, mark: str, combinations: frozenset[Combination]) -> Sentence:
    """Spell a sentence out: contractions, capitals and punctuation."""
    english = re.sub(r"\ba (?=[aeiou])(?!useful)", "an ", english, flags=re.IGNORECASE).replace("can not", "cannot")
    spanish = re.sub(r"\b(a|de) el\b", r"\1l", spanish)
    spanish = re.sub(r"\by (?=I)", "e ", spanish)
    opening = {".": "", "?": "¿", "!": "¡"}[mark]
    return Sentence(
        english[0].upper() + english[1:] + mark, opening + spanish[0].upper() + spanish[1:] + mark, combinations
    )


def statement(clause: Clause, opening: Phrase = NOTHING, mark: str = ".") -> Sentence:
    """Put a clause in the order of a statement, behind an opening adverb if given.

    With a subject "who" and the mark "?" it asks for the subject.
    """
    subject = clause.subject
    affirmative, auxiliary, rest = _english_group(clause.verb, clause.tense, subject)
    english = f"{auxiliary} not {rest}" if clause.negated else _join(clause.frequency, affirmative)
    spanish_subject = _join("a" if clause.verb.inverted and subject.spanish else "", subject.spanish)
    return _sentence(
        _join(opening.english, subject.english, english.strip(), *(phrase.english for phrase in clause.complements)),
        _join(
            opening.spanish,
            spanish_subject,
            _spanish_group(clause),
            *(phrase.spanish for phrase in clause.complements),
        ),
        mark,
        _combinations(clause) | opening.combinations,
    )


def question(clause: Clause, asked: Phrase = NOTHING) -> Sentence:
    """Put a clause in the order of a question, behind a question phrase if given.

    The Spanish subject follows the verb; it comes last after *ser*, *estar* and *gustar*.
    """
    verb, subject = clause.verb, clause.subject
    _, auxiliary, rest = _english_group(verb, clause.tense, subject)
    spanish_subject = _join("a" if verb.inverted and subject.spanish else "", subject.spanish)
    complements = [phrase.spanish for phrase in clause.complements]
    complements.insert(len(complements) if verb.inverted or verb.english == "be" else 0, spanish_subject)
    return _sentence(
        _join(asked.english, auxiliary, subject.english, rest, *(phrase.english for phrase in clause.complements)),
        _join(asked.spanish, _spanish_group(clause), *complements),
        "?",
        _combinations(clause) | asked.combinations,
    )


# Sampling: which phrases to put together


def _pick(rng: random.Random, options: Sequence[T]) -> T:
    # Python keeps only the sequence of random() stable between releases, so nothing else is drawn from.
    return options[int(rng.random() * len(options))]


@cache
def _overlap(kinds: str, others: str) -> bool:
    return not set(kinds.split()).isdisjoint(others.split())


@cache
def _nouns(kinds: str, without: str = "") -> tuple[Noun, ...]:
    return tuple(noun for noun in NOUNS if _overlap(noun.kinds, kinds) and not _overlap(noun.kinds, without))


@cache
def _adjectives(kinds: str, predicative: bool = False, gradable: bool = False) -> tuple[Adjective, ...]:
    """The adjectives for a noun of these kinds, if need be only those for a predicate or for degrees."""
    return tuple(
        adjective
        for adjective in ADJECTIVES
        if _overlap(adjective.kinds, kinds)
        and (adjective.copula or not predicative)
        and (adjective.gradable or not gradable)
    )


@cache
def _determiners(noun: Noun, plural: bool, roles: str) -> tuple[Determiner, ...]:
    """The determiners that a noun takes, each as often as it weighs."""
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


def _some_noun_phrase(
    rng: random.Random, noun: Noun, roles: str, adjectives: float = 0.25, plurals: float = 0.3
) -> Phrase:
    """A phrase around `noun`; `adjectives` and `plurals` are the probabilities of an adjective and of the plural."""
    plural = noun.number == "both" and rng.random() < plurals
    fitting = _adjectives(noun.kinds)
    adjective = _pick(rng, fitting) if fitting and rng.random() < adjectives else None
    if roles != NEW and _overlap(noun.kinds, OWNABLE) and rng.random() < 0.1:
        return noun_phrase(DETERMINERS[0], noun, plural, adjective, owner=_person(rng, 0.0))
    return noun_phrase(_pick(rng, _determiners(noun, plural, roles)), noun, plural, adjective)


def _person(rng: random.Random, adjectives: float = 0.15, besides: tuple[str, ...] = ()) -> Phrase:
    """A definite person whose head noun is none of `besides`."""
    if rng.random() < 0.35:
        return name_phrase(_pick(rng, [name for name in PEOPLE if name.english not in besides]))
    nouns = [noun for noun in _nouns("person") if noun.english not in besides]
    return _some_noun_phrase(rng, _pick(rng, nouns), KNOWN, adjectives)


def _coordinated_subject(rng: random.Random) -> Phrase:
    first = _person(rng, 0.0)
    if rng.random() < 0.3:
        return coordination(first, pronoun_phrase(PRONOUNS[0]))
    return coordination(first, _person(rng, 0.0, besides=first.lemmas))


def _some_subject(rng: random.Random, kinds: str, coordinated: float = 0.08) -> Phrase:
    """A subject of the given kinds: a pronoun, a name, two people, or a noun phrase."""
    if _overlap(kinds, "person adult"):
        draw = rng.random()
        if draw < coordinated:
            return _coordinated_subject(rng)
        if draw < 0.32:
            return pronoun_phrase(_pick(rng, PRONOUNS))
        if draw < 0.45:
            return name_phrase(_pick(rng, PEOPLE))
    roles = KNOWN if rng.random() < 0.85 else NEW
    return _some_noun_phrase(rng, _pick(rng, _nouns(kinds)), roles, adjectives=0.2)


def _some_tense(rng: random.Random, verb: Verb) -> str:
    draw = rng.random()
    if draw < 0.4:
        return "present"
    if draw < 0.7:
        return "past"
    if draw < 0.85 or verb.stative or verb.accidental or verb.inverted:
        return "future"
    return _pick(rng, tuple(MODALS))


def _some_object(rng: random.Random, verb: Verb, subject: Phrase, roles: str = KNOWN_OR_NEW) -> Phrase:
    """A direct object with its personal *a*; nobody does anything to their own namesake."""
    if "person" in verb.objects.split() and rng.random() < 0.25:
        phrase = name_phrase(_pick(rng, [name for name in PEOPLE if name.english not in subject.lemmas]))
    else:
        nouns = [noun for noun in _nouns(verb.objects) if noun.english not in subject.lemmas]
        phrase = _some_noun_phrase(rng, _pick(rng, nouns), roles)
    combinations = phrase.combinations | {("object", verb.english, lemma) for lemma in phrase.lemmas}
    personal = _overlap(phrase.kinds, verb.personal_a) and (phrase.definite or _overlap(phrase.kinds, "person"))
    return prepositional("", "a" if personal else "", replace(phrase, combinations=combinations))


def _other_pronoun(rng: random.Random, subject: Phrase) -> Pronoun:
    """A pronoun that cannot mean the subject, or part of it."""
    return _pick(rng, [pronoun for pronoun in PRONOUNS if pronoun.person == 3 or pronoun.person != subject.person])


def _some_complements(rng: random.Random, verb: Verb, subject: Phrase, roles: str) -> tuple[tuple[Phrase, ...], str]:
    """The objects of a verb and the clitic that goes with them."""
    if not verb.objects:
        return (), ""
    if verb.inverted:
        return (_some_object(rng, verb, subject, KNOWN),), ""
    if "person" in verb.objects.split() and rng.random() < 0.3:
        pronoun = _other_pronoun(rng, subject)
        return (Phrase(pronoun.english_object, ""),), pronoun.direct
    thing = _some_object(rng, verb, subject, roles)
    if not verb.ditransitive:
        return (thing,), ""
    if rng.random() < 0.35:
        pronoun = _other_pronoun(rng, subject)
        clitic = DATIVES[pronoun.person, pronoun.plural]
        return (thing, Phrase(f"to {pronoun.english_object}", "")), clitic
    recipient = _person(rng, besides=subject.lemmas)
    return (thing, prepositional("to", "a", recipient)), DATIVES[3, recipient.plural]


def _place(rng: random.Random, verb: Verb) -> Phrase:
    """The place where a verb happens, or to which it leads."""
    if "city" in verb.places.split() and rng.random() < 0.4:
        place, english = name_phrase(_pick(rng, CITIES)), "in"
    else:
        place = _some_noun_phrase(rng, _pick(rng, _nouns(verb.places)), KNOWN, adjectives=0.15, plurals=0.05)
        english = "at" if _overlap(place.kinds, "at stop") else "in"
        if _overlap(place.kinds, "sight") and not verb.motion and rng.random() < 0.3:
            english = _pick(rng, tuple(POSITIONS))
    if verb.motion:
        return prepositional("to", "a", place)
    return prepositional(english, POSITIONS.get(english, "en"), place)


def _companion(rng: random.Random, subject: Phrase) -> Phrase:
    if rng.random() < 0.4:
        pronoun = _other_pronoun(rng, subject)
        return Phrase(f"with {pronoun.english_object}", pronoun.companion)
    return prepositional("with", "con", _person(rng, 0.0, besides=subject.lemmas))


def _adjuncts(rng: random.Random, clause: Clause, place: bool = True) -> tuple[Phrase, ...]:
    """Perhaps a companion or a place behind the complements."""
    verb = clause.verb
    likely = 0.75 if not verb.objects else 0.25
    if place and verb.places and (verb.motion or rng.random() < likely):
        return (_place(rng, verb),)
    if verb.sociable and not _overlap(clause.subject.kinds, "animal") and rng.random() < 0.2:
        return (_companion(rng, clause.subject),)
    return ()


def _some_time(rng: random.Random, clause: Clause) -> Phrase:
    """A time adverb that the tense and the verb allow, or nothing."""
    verb = clause.verb
    if verb.stative or verb.inverted or (clause.tense == "present" and not verb.habitual) or clause.frequency:
        return NOTHING
    return Phrase(*_pick(rng, tuple(TIMES.get(clause.tense, TIMES["future"]).items())))


def _some_clause(
    rng: random.Random, verb: Verb | None = None, place: bool = True, coordinated: float = 0.08
) -> Clause:
    """A clause with everything but its time."""
    verb = verb or _pick(rng, VERBS)
    subject = _some_subject(rng, verb.subjects, 0.0 if verb.inverted else coordinated)
    tense = _some_tense(rng, verb)
    negated = rng.random() < 0.18
    frequency = ""
    if verb.habitual and tense == "present" and not negated and rng.random() < 0.3:
        frequency = _pick(rng, tuple(FREQUENCIES))
    roles = KNOWN if negated or frequency == "never" else KNOWN_OR_NEW
    complements, clitic = _some_complements(rng, verb, subject, roles)
    clause = Clause(subject, verb, tense, complements, clitic, negated, frequency)
    return _with(clause, *_adjuncts(rng, clause, place))


def _with(clause: Clause, *phrases: Phrase) -> Clause:
    return replace(clause, complements=clause.complements + phrases)


# One function for each kind of sentence


def _plain_statement(rng: random.Random) -> Sentence:
    clause = _some_clause(rng)
    draw = rng.random()
    if draw > 0.45:
        return statement(clause)
    time = _some_time(rng, clause)
    return statement(clause, opening=time) if draw < 0.15 else statement(_with(clause, time))


def _yes_no_question(rng: random.Random) -> Sentence:
    clause = _some_clause(rng, coordinated=0.0)
    return question(replace(clause, negated=False, frequency=""))


def _adverbial_question(rng: random.Random) -> Sentence:
    """Where, when and why."""
    verb = _pick(rng, [verb for verb in VERBS if verb.places or verb.ditransitive])
    clause = replace(_some_clause(rng, verb, place=False, coordinated=0.0), negated=False, frequency="")
    draw = rng.random()
    if verb.places and draw < 0.5:
        return question(clause, Phrase("where", "adónde" if verb.motion else "dónde"))
    if verb.places and not verb.objects:
        clause = _with(clause, _place(rng, verb))
    if clause.tense in ("past", "future", "going") and not verb.stative and draw < 0.8:
        return question(clause, Phrase("when", "cuándo"))
    return question(clause, Phrase("why", "por qué"))


def _subject_question(rng: random.Random) -> Sentence:
    verb = _pick(rng, [verb for verb in VERBS if _overlap(verb.subjects, "person adult") and not verb.inverted])
    who = Phrase("who", "quién")
    complements, clitic = _some_complements(rng, verb, who, KNOWN)
    clause = Clause(who, verb, _some_tense(rng, verb), complements, clitic)
    return statement(_with(clause, *_adjuncts(rng, clause)), mark="?")


def _object_question(rng: random.Random) -> Sentence:
    """What, whom and how many."""
    verb = _pick(rng, [verb for verb in VERBS if verb.objects and not verb.inverted and not verb.ditransitive])
    clause = Clause(_some_subject(rng, verb.subjects, 0.0), verb, _some_tense(rng, verb))
    if "person" in verb.objects.split():
        return question(clause, Phrase("who", "a quién"))
    clause = _with(clause, *_adjuncts(rng, clause))
    countable = [noun for noun in _nouns(verb.objects) if noun.number == "both"]
    if not countable or rng.random() < 0.5:
        return question(clause, Phrase("what", "qué"))
    counted = _pick(rng, countable)
    asked = noun_phrase(HOW_MANY, counted, plural=True)
    return question(clause, replace(asked, combinations=frozenset({("object", verb.english, counted.english)})))


def _proposal(rng: random.Random) -> Sentence:
    """Let's ...!"""
    planned = [verb for verb in VERBS if verb.objects and not (verb.stative or verb.accidental or verb.inverted)]
    verb = _pick(rng, planned)
    thing = _some_object(rng, verb, NOTHING, KNOWN)
    english, spanish = f"let's {verb.english} {thing.english}", f"vamos a {verb.spanish} {thing.spanish}"
    return _sentence(english, spanish, "!", thing.combinations)


def _copular(rng: random.Random, subject: Phrase, predicate: Phrase, copula: str) -> Sentence:
    """A statement or, less often, a question with *ser* or *estar*."""
    draw = rng.random()
    tense = "present" if draw < 0.55 else "past" if draw < 0.85 else "future"
    clause = Clause(subject, COPULAS[copula], tense, (predicate,))
    return question(clause) if rng.random() < 0.3 else statement(replace(clause, negated=rng.random() < 0.2))


def _described(rng: random.Random, gradable: bool = False) -> tuple[Phrase, Adjective]:
    """A subject and an adjective for its predicate."""
    if rng.random() < 0.35:
        subject = _some_subject(rng, "person")
    else:
        nouns = [noun for noun in NOUNS if _adjectives(noun.kinds, True, gradable)]
        subject = _some_noun_phrase(rng, _pick(rng, nouns), KNOWN, adjectives=0.0)
    adjective = _pick(rng, _adjectives(subject.kinds, True, gradable))
    return _describe(subject, adjective), adjective


def _describe(subject: Phrase, adjective: Adjective) -> Phrase:
    """The subject with the combinations that the predicate adds to it."""
    found = subject.combinations | _adjective_combinations(adjective, subject.lemmas)
    return replace(subject, combinations=found)


def _description(rng: random.Random) -> Sentence:
    """X is tall."""
    subject, adjective = _described(rng)
    predicate = Phrase(adjective.english, _agree(adjective, subject.gender, subject.plural))
    return _copular(rng, subject, predicate, adjective.copula)


def _comparison(rng: random.Random) -> Sentence:
    """X is as tall as Y, of the same kind."""
    subject, adjective = _described(rng, gradable=True)
    nouns = [noun for noun in _nouns(subject.kinds) if _overlap(noun.kinds, adjective.kinds)]
    others = [noun for noun in nouns if noun.english not in subject.lemmas]
    if not others:
        return _description(rng)
    phrase = _describe(_some_noun_phrase(rng, _pick(rng, others), KNOWN, adjectives=0.0), adjective)
    form = _agree(adjective, subject.gender, subject.plural)
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
        subject = _some_noun_phrase(rng, _pick(rng, _nouns("kin")), KNOWN, adjectives=0.0)
    noun = _pick(rng, [noun for noun in NOUNS if noun.feminine])
    spanish = noun.feminine if subject.gender == "f" else noun.spanish
    if subject.plural:
        return _copular(rng, subject, Phrase(_english_noun(noun, True), _spanish_plural(spanish)), "ser")
    return _copular(rng, subject, Phrase(f"a {noun.english}", spanish), "ser")


def _located(rng: random.Random, roles: str) -> tuple[Phrase, Phrase]:
    """Someone or something, and the place where it is."""
    contents, positions, containers = _pick(rng, LOCATIONS)
    noun = _pick(rng, _nouns(contents, without="kin" if roles == NEW else ""))
    english, spanish = _pick(rng, tuple(positions.items()))
    place = _pick(rng, [container for container in _nouns(containers) if container != noun])
    if english == "in" and _overlap(place.kinds, "at stop"):
        english = "at"
    phrase = _some_noun_phrase(rng, place, KNOWN, adjectives=0.15, plurals=0.05)
    return _some_noun_phrase(rng, noun, roles, adjectives=0.2), prepositional(english, spanish, phrase)


def _location(rng: random.Random) -> Sentence:
    """X is in the garden."""
    subject, place = _located(rng, KNOWN)
    return _copular(rng, subject, place, "estar")


def _existence(rng: random.Random) -> Sentence:
    """There is X in the garden."""
    thing, place = _located(rng, NEW)
    singular, plural, spanish = EXISTENCE[_pick(rng, tuple(EXISTENCE))]
    auxiliary, _, rest = (plural if thing.plural else singular).partition(" ")
    asked = rng.random() < 0.3
    english = _join(
        *((auxiliary, "there", rest) if asked else ("there", auxiliary, rest)), thing.english, place.english
    )
    found = thing.combinations | place.combinations
    return _sentence(english, _join(spanish, thing.spanish, place.spanish), "?" if asked else ".", found)


def _exclamation(rng: random.Random) -> Sentence:
    """What a tall man! How tall the man is!"""
    subject, adjective = _described(rng, gradable=True)
    form = _agree(adjective, subject.gender, subject.plural)
    if rng.random() < 0.5 or len(subject.lemmas) != 1:
        verb = conjugate(adjective.copula, "present", subject.person, subject.plural)
        english = f"how {adjective.english} {subject.english} {_be('present', subject)}"
        return _sentence(english, _join("qué", form, verb, subject.spanish), "!", subject.combinations)
    noun = _pick(rng, [noun for noun in _nouns(adjective.kinds) if noun.number != "mass"])
    plural = noun.number == "both" and rng.random() < 0.3
    return what_a(noun, adjective, plural)


def what_a(noun: Noun, adjective: Adjective, plural: bool = False) -> Sentence:
    """What a beautiful house! ¡Qué casa tan hermosa!"""
    bare = Determiner("what" if plural else "what a", "qué qué qué qué", NEW)
    phrase = noun_phrase(bare, noun, plural)
    english = f"{bare.english} {adjective.english} {_english_noun(noun, plural)}"
    spanish = f"{phrase.spanish} tan {_agree(adjective, noun.gender, plural)}"
    return _sentence(english, spanish, "!", _adjective_combinations(adjective, phrase.lemmas))


# How many of a hundred sentences each kind makes.
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


# Corpus


def generate_sentences(seed: int = 0) -> Iterator[Sentence]:
    """Yield sentences of the grammar without end; the same one may come again.

    Args:
        seed: Determines the whole sequence, on every machine and Python release.
    """
    rng = random.Random(seed)
    kinds = [kind for kind, weight in SENTENCE_KINDS.items() for _ in range(weight)]
    while True:
        yield _pick(rng, kinds)(rng)


@lru_cache(maxsize=1 << 16)
def is_held_out(combination: Combination, seed: int = 0) -> bool:
    """Whether only test sentences of the corpus with this seed contain the combination."""
    digest = hashlib.blake2b("|".join((str(seed), *combination)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64


def split_sentences(
    num_pairs: int = 30_000, *, num_validation: int = 1_000, num_test: int = 1_000, seed: int = 0
) -> dict[str, list[Sentence]]:
    """Generate the splits of `load_toy_corpus`, with the word combinations of each sentence.

    Args:
        num_pairs: Training sentences.
        num_validation: Validation sentences.
        num_test: Test sentences.
        seed: Determines the sentences and the combinations held out.

    Returns:
        Lists of distinct sentences under "train", "validation" and "test". Only the test sentences contain held-out
        combinations, each at least one, and every word of theirs, capitals included, occurs in "train".

    Raises:
        ValueError: If a size is below 1 or above `MAX_PAIRS`, or if `num_pairs` sentences have too few words for
            `num_test` others.
    """
    sizes = {"train": num_pairs, "validation": num_validation, "test": num_test}
    for (split, size), argument in zip(sizes.items(), ("num_pairs", "num_validation", "num_test"), strict=True):
        if not 1 <= size <= MAX_PAIRS[split]:
            raise ValueError(f"{argument}={size} is out of range: choose from 1 to the maximum, {MAX_PAIRS[split]}")
    sentences = generate_sentences(seed)
    seen: set[str] = set()
    known = list(islice(_fresh(sentences, seen, lambda s: not _has_held_out(s, seed)), num_pairs + num_validation))
    train = known[:num_pairs]
    words = {word for sentence in train for word in _words(sentence)}
    draws = islice(sentences, max(MIN_TEST_DRAWS, MAX_DRAWS_PER_TEST_PAIR * num_test))
    test = list(islice(_fresh(draws, seen, lambda s: _has_held_out(s, seed) and _words(s) <= words), num_test))
    if len(test) < num_test:
        raise ValueError(
            f"num_test={num_test} is too many for num_pairs={num_pairs}: the training words make only {len(test)} "
            "test sentences; raise num_pairs or lower num_test"
        )
    return {"train": train, "validation": known[num_pairs:], "test": test}


def _fresh(sentences: Iterator[Sentence], seen: set[str], wanted: Callable[[Sentence], bool]) -> Iterator[Sentence]:
    """Pass on the wanted sentences whose source is not in `seen`, and add them there."""
    for sentence in sentences:
        if sentence.source not in seen and wanted(sentence):
            seen.add(sentence.source)
            yield sentence


def _has_held_out(sentence: Sentence, seed: int) -> bool:
    return any(is_held_out(combination, seed) for combination in sentence.combinations)


def _words(sentence: Sentence) -> set[tuple[str, str]]:
    """The words of both sides, as they are capitalised."""
    return {(side, word) for side in ("source", "target") for word in re.findall(r"\w+", getattr(sentence, side))}


def load_toy_corpus(
    num_pairs: int = 30_000, *, num_validation: int = 1_000, num_test: int = 1_000, seed: int = 0
) -> DatasetDict:
    """Generate the built-in English-Spanish corpus.

    The test set asks for generalisation: each of its sentences joins words (an adjective or a verb with a noun) that
    stand together in no training or validation sentence. Validation sentences are merely other sentences.

    Args:
        num_pairs: Training pairs.
        num_validation: Validation pairs.
        num_test: Test pairs.
        seed: The same seed gives the same bytes.

    Returns:
        Splits "train", "validation" and "test" with the string columns `source` (English) and `target` (Spanish). No
        two pairs have the same source.

    Raises:
        ValueError: As `split_sentences` does.
    """
    splits = split_sentences(num_pairs, num_validation=num_validation, num_test=num_test, seed=seed)
    return DatasetDict(
        {
            split: Dataset.from_dict(
                {"source": [s.source for s in sentences], "target": [s.target for s in sentences]}
            )
            for split, sentences in splits.items()
        }
    )
