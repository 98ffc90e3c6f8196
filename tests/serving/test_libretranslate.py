import json

import pytest
from fastapi.testclient import TestClient
from libretranslatepy import LibreTranslateAPI

from hf_vanilla_transformer.serving import libretranslate
from hf_vanilla_transformer.serving.application import create_application
from hf_vanilla_transformer.serving.limits import Limits
from tables import looped

PAIR = {"source": "en", "target": "es"}


def test_the_published_client_works(url, client):
    api = LibreTranslateAPI(url)
    for text in ("a red house", "a red house\n\n the small cat sleeps", "ñ & = %", " "):
        expected = client.post("/translate", json={"q": text, **PAIR}).json()["translatedText"]
        assert api.translate(text, "en", "es") == expected
    assert api.languages() == [
        {"code": "de", "name": "German", "targets": ["fr"]},
        {"code": "en", "name": "English", "targets": ["es"]},
    ]


def test_json_and_forms_are_answered_alike(client):
    expected = client.post("/translate", json={"q": "a red house", **PAIR}).json()
    assert expected.keys() == {"translatedText"}
    assert client.post("/translate", data={"q": "a red house", **PAIR}).json() == expected
    multipart = {name: (None, value) for name, value in {"q": "a red house", **PAIR}.items()}
    assert client.post("/translate", files=multipart).json() == expected
    headers = {"Content-Type": "APPLICATION/X-WWW-FORM-URLENCODED"}
    assert client.post("/translate", data={"q": "a red house", **PAIR}, headers=headers).json() == expected


def test_a_list_is_answered_in_order(client):
    texts = ["two dogs run", "", "no", "a red house"]
    answer = client.post("/translate", json={"q": texts, **PAIR, "alternatives": 2, "source": "auto"}).json()
    for i, text in enumerate(texts):
        alone = client.post("/translate", json={"q": text, **PAIR, "alternatives": 2}).json()
        assert [answer[name][i] for name in alone] == list(alone.values())
        assert len(alone["alternatives"]) == 2
    assert [each["language"] for each in answer["detectedLanguage"]] == ["en"] * 4
    assert client.post("/translate", json={"q": [], **PAIR}).json() == {"translatedText": []}


def test_the_markup_of_html_stays(client):
    translated = {
        text: client.post("/translate", json={"q": text, **PAIR}).json()["translatedText"] for text in ("no", "a cat")
    }
    body = {"q": ["<p>no</p>\n<b>a cat</b>", "<hr>", "no"], **PAIR, "format": "html", "alternatives": 1}
    answer = client.post("/translate", json=body).json()
    no, cat = translated.values()
    assert answer["translatedText"] == [f"<p>{no}</p>\n<b>{cat}</b>", "<hr>", no]
    first, second, _ = answer["alternatives"]
    assert len(first) == 1 and first[0].startswith("<p>") and first[0].endswith("</b>") and second == ["<hr>"]


def test_inline_tags_go_with_their_words(client):
    body = {"q": "<p>the <b>small cat</b> {name} sleeps <br> no</p>", **PAIR, "format": "html"}
    text = client.post("/translate", json=body).json()["translatedText"]
    assert text.count("<b>") == text.count("</b>") == text.count("<br>") == text.count("{name}") == 1


class TestGlossary:
    TERMS = {"house": "gato perros", "no": "vemos"}

    def test_as_in_the_other_route(self, client):
        texts = ["a red house", "no"]
        body = {"text": texts, **PAIR, "glossary": self.TERMS}
        expected = [each["text"] for each in client.post("/v1/translations", json=body).json()["translations"]]
        assert "gato perros" in expected[0] and "vemos" in expected[1]
        for glossary in (self.TERMS, json.dumps(self.TERMS)):
            answer = client.post("/translate", json={"q": texts, **PAIR, "glossary": glossary})
            assert answer.json() == {"translatedText": expected}
        form = {"q": texts, **PAIR, "glossary": json.dumps(self.TERMS)}
        assert client.post("/translate", data=form).json() == {"translatedText": expected}

    @looped("glossary", [{}, None, ""])
    def test_none(self, client, glossary):
        body = {"q": "a red house", **PAIR}
        answer = client.post("/translate", json=body | {"glossary": glossary})
        assert answer.json() == client.post("/translate", json=body).json()

    def test_documents(self, client):
        data = {**PAIR, "glossary": json.dumps(self.TERMS)}
        page = b"<p>a <b>red</b> house</p>"
        answer = client.post("/translate_file", data=data, files={"file": ("a.html", page)})
        assert "gato perros" in client.get(answer.json()["translatedFileUrl"]).text

    @looped(
        "glossary, message",
        [
            ("house=gato", "glossary: not JSON: "),
            ("[" * 100_000, "glossary: not JSON: "),
            ('["house"]', "glossary: Input should be a valid dictionary"),
            ('{"house": 1}', "glossary.house: Input should be a valid string"),
            ('{" ": "gato"}', "glossary: a glossary's term is empty"),
            ('{"house": "\\ud800"}', "glossary.house: "),
        ],
    )
    def test_mistakes_are_named(self, client, glossary, message):
        answer = client.post("/translate", data={"q": "a", **PAIR, "glossary": glossary})
        assert answer.status_code == 422 and answer.json()["error"].startswith(message)


class TestFiles:
    def test_a_document_there_and_back(self, client):
        page = b"<p>a cat</p>\n<p class=notranslate>a cat</p>"
        answer = client.post("/translate_file", data=PAIR, files={"file": ("a b.html", page, "text/html")})
        translated = client.get(answer.json()["translatedFileUrl"])
        cat = client.post("/translate", json={"q": "a cat", **PAIR}).json()["translatedText"]
        assert translated.text == f"<p>{cat}</p>\n<p class=notranslate>a cat</p>"
        assert translated.headers["content-disposition"] == "attachment; filename*=UTF-8''a%20b.html"

    @looped("name", ["a#b.txt", "a?b.txt", "a%2Fb.txt", "ä.txt"])
    def test_odd_names(self, client, name):
        address = client.post("/translate_file", data=PAIR, files={"file": (name, b"no")}).json()["translatedFileUrl"]
        assert address.isascii() and client.get(address).status_code == 200

    def test_only_the_last_are_kept(self, client, monkeypatch):
        monkeypatch.setattr(libretranslate, "MAX_FILES", 1)
        addresses = [
            client.post("/translate_file", data=PAIR, files={"file": ("a.txt", b"no")}).json()["translatedFileUrl"]
            for _ in range(2)
        ]
        assert [client.get(address).status_code for address in addresses] == [404, 200]

    @pytest.mark.parametrize(
        ("file", "status", "message"),
        [
            (("a.pdf", b""), 422, "file: 'a.pdf' has no supported file extension; supported: text, html"),
            (("a.xlf", b"<xliff>"), 422, "file: a.xlf, line 1"),
            (("a.srt", b"\xff"), 422, "file: a.srt, line 1: byte 0xff is not UTF-8"),
        ],
    )
    def test_what_cannot_be_translated(self, client, file, status, message):
        answer = client.post("/translate_file", data=PAIR, files={"file": file})
        assert answer.status_code == status and answer.json()["error"].startswith(message)
        answer = client.post("/translate_file", data={"file": "a", **PAIR})
        assert answer.status_code == 422 and "expected one file" in answer.json()["error"]
        answer = client.post("/translate", data=PAIR, files={"q": ("a.txt", b"no")})
        assert answer.status_code == 422 and answer.json()["error"].startswith("q: ")


@looped(
    "body, status, message",
    [
        ({"q": "a"}, 422, "source: Field required"),
        ({"q": "a", "source": "en", "target": "fr"}, 400, "no model translates en-fr; available: en-es, de-fr"),
        ({"q": "a", "source": "auto", "target": "en"}, 400, "no model translates any-en"),
        ({"q": "a", **PAIR, "alternatives": -1}, 422, "alternatives: "),
        ({"q": "a", **PAIR, "alternatives": 16}, 422, "alternatives: 17 translations exceed the limit of 16"),
        ({"q": "a", **PAIR, "format": "pdf"}, 422, "format: Input should be 'text' or 'html'"),
    ],
)
def test_mistakes_are_named(client, body, status, message):
    answer = client.post("/translate", json=body)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(message)


class TestDetection:
    GERMAN, ENGLISH = "Der kleine Hund schläft heute im Garten.", "The small dog sleeps in the garden today."

    @pytest.fixture
    def several(self, two_sources):
        """Client of a server with two source languages for Spanish."""
        return TestClient(create_application(two_sources))

    def test_the_published_client(self, url):
        (detected,) = LibreTranslateAPI(url).detect(self.GERMAN)
        assert detected["language"] == "de" and 90 < detected["confidence"] <= 100

    @looped("text", ["", "42", "😀", "\x00", "Быстрая лиса", "Le petit chien dort dans le jardin."])
    def test_text_in_none_of_the_languages(self, client, text):
        (detected,) = client.post("/detect", json={"q": text}).json()
        assert detected["language"] in ("de", "en") and detected["confidence"] < 10

    @pytest.mark.parametrize("language, text", [("de", GERMAN), ("en", ENGLISH)])
    def test_the_source_of_a_translation(self, several, language, text):
        body = {"q": text, "target": "es"}
        answer = several.post("/translate", json={**body, "source": "auto"}).json()
        detected = answer.pop("detectedLanguage")
        assert detected["language"] == language and 90 < detected["confidence"] <= 100
        assert answer == several.post("/translate", json={**body, "source": language}).json()
        body = {"text": text, "target": "es"}
        answer = several.post("/v1/translations", json={**body, "source": "auto"}).json()
        assert answer == several.post("/v1/translations", json={**body, "source": language}).json()
        assert answer["source"] == language

    def test_texts_of_a_request_are_in_one_language(self, several):
        """As in LibreTranslate; markup does not count."""
        texts = ["<p class='the small dog sleeps in the garden'>42</p>", f"<p>{self.GERMAN}</p>", "OK"]
        answer = several.post("/translate", json={"q": texts, "source": "auto", "target": "es", "format": "html"})
        assert [each["language"] for each in answer.json()["detectedLanguage"]] == ["de"] * 3

    def test_documents(self, several):
        file = {"file": ("a.txt", self.GERMAN.encode())}
        answer = several.post("/translate_file", data={"source": "auto", "target": "es"}, files=file)
        assert answer.status_code == 200 and "translatedFileUrl" in answer.json()

    def test_without_the_library(self, several, client, no_language_detector):
        answer = client.post("/detect", data={"q": "a cat"})
        assert answer.status_code == 400 and "cannot detect languages" in answer.json()["error"]
        answer = several.post("/translate", json={"q": "a cat", "source": "auto", "target": "es"})
        assert answer.status_code == 400
        assert answer.json()["error"] == "several models or language pairs match any-es; available: en-es, de-es"

    def test_one_source_language(self, client):
        """With a single source language, nothing is detected."""
        answer = client.post("/translate", json={"q": self.GERMAN, "source": "auto", "target": "es"}).json()
        assert answer["detectedLanguage"] == {"language": "en", "confidence": 0}


def test_html_that_is_too_long_is_not_parsed(engine, monkeypatch):
    monkeypatch.delattr(libretranslate, "open_document")
    client = TestClient(create_application(engine, limits=Limits(max_text_length=10)))
    answer = client.post("/translate", json={"q": "<pre>" * 3, **PAIR, "format": "html"})
    assert (answer.status_code, answer.json()["error"][:26]) == (413, "the text has 15 characters")
