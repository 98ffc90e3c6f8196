import pytest

from hf_vanilla_transformer.text.casing import Case, case_of, in_case, sentence_case, usual_spellings


@pytest.mark.parametrize(
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
