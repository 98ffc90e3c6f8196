from hf_vanilla_transformer.text.casing import (
    Case,
    capitalized,
    case_of,
    in_case,
    lower,
    sentence_case,
    upper,
    usual_spellings,
)
from tables import looped


@looped(
    ("text", "case"),
    [
        ("A man rides a bike.", Case.SENTENCE),
        ("A MAN RIDES A BIKE.", Case.UPPER),
        ("STOP", Case.UPPER),
        ("ÉTÉ 2024!", Case.UPPER),
        ("a man rides a bike.", Case.LOWER),
        ("I", Case.SENTENCE),
        ("NASA sent a man.", Case.SENTENCE),
        ("A Man Rides A Bike.", Case.TITLE),
        ("The Dog's 3rd Ball", Case.TITLE),
        ("Angela Merkel", Case.SENTENCE),
        ("Die Frau liest ein Buch", Case.SENTENCE),
        ("McDonald Is Here", Case.SENTENCE),
        ("人々は走る", Case.SENTENCE),
        ("TVを見る", Case.SENTENCE),
        ("tvを見る", Case.SENTENCE),
        ("The Big Dog 走る", Case.SENTENCE),
        ("ดู TV", Case.SENTENCE),
        ("დიდი ძაღლი", Case.SENTENCE),
        ("ᲓᲘᲓᲘ ᲫᲐᲦᲚᲘ", Case.SENTENCE),
        ("ПʼЯТЬ", Case.UPPER),
        ("E\u0301TE\u0301", Case.UPPER),
        ("ΟΔΟΣ", Case.UPPER),
        ("ǅep Na Putu", Case.TITLE),
        ("", Case.SENTENCE),
    ],
)
def test_how_a_text_is_written(text, case):
    assert case_of(text) is case


def test_there_and_back():
    assert sentence_case("A MAN, IN PARIS!") == "A man, in paris!"
    assert sentence_case("¿QUÉ ES?") == "¿Qué es?"
    names = {"PARIS": "Paris"}
    assert sentence_case("IN PARIS", lambda word: names.get(word, word.lower())) == "In Paris"
    assert in_case("Ein Mann läuft.", Case.UPPER) == "EIN MANN LÄUFT."
    assert in_case("l'homme court", Case.TITLE) == "L'homme Court"
    assert in_case("Ein Mann", Case.SENTENCE) == in_case("Ein Mann", Case.LOWER) == "Ein Mann"
    assert sentence_case("A RED-HAIRED MAN") == "A red-haired man"


def test_case_follows_the_language():
    for language in ("tr", "tr-TR", "tr_TR", "tur_Latn", "aze_Latn", "azj_Latn"):
        assert in_case("Yeni ışık benim.", Case.UPPER, language) == "YENİ IŞIK BENİM."
        assert in_case("iki ılık ev", Case.TITLE, language) == "İki Ilık Ev"
        assert sentence_case("İKİ ILIK I\u0307L", language=language) == "İki ılık il"
    for language in ("lt", "lt-LT", "lit_Latn"):
        assert upper("ri\u0307\u0301mas į\u0307\u0301 ė", language) == "RI\u0301MAS Į\u0301 Ė"
        assert lower("RI\u0301M J\u0303 Į\u0300 Ì I Ė", language) == (
            "ri\u0307\u0301m j\u0307\u0303 į\u0307\u0300 i\u0307\u0300 i ė"
        )
        assert capitalized("i\u0307\u0301 i\u0307\u0301", language) == "I\u0301 i\u0307\u0301"
    for language in (None, "", "en", "trv", "xx_YY"):
        assert in_case("titi ı", Case.UPPER, language) == "TITI I" and lower("TITI", language) == "titi"
    assert upper("straße") == "STRASSE" and lower("ΟΔΟΣ Σ") == "οδος σ"


def test_the_first_letter_gets_title_case():
    capitals = {
        "ﬁnden": "Finden",
        "ǆep": "ǅep",
        "«été": "«Été",
        "3rd": "3rd",
        "ßa": "Ssa",
        "人a": "人a",
        "…": "…",
        "": "",
    }
    assert {text: capitalized(text) for text in capitals} == capitals
    assert in_case("e\u0301te\u0301 d'or", Case.TITLE) == "E\u0301te\u0301 D'or"


def test_georgian_has_no_case():
    for text in ("დიდი", "ᲓᲘᲓᲘ"):
        assert {upper(text), lower(text), capitalized(text), in_case(text, Case.TITLE), sentence_case(text)} == {text}
    assert upper("a დიდი b") == "A დიდი B"


def test_usual_spellings():
    sentences = [
        "Das Kind sieht Tom.",
        "Ein Kind ist kind.",
        "DAS KIND",
        "Das Kind Sieht",
        "die weiße Straße, weiße",
        "Rot",
    ]
    assert list(usual_spellings(sentences).items()) == [("kind", "Kind"), ("weisse", "weiße")]
