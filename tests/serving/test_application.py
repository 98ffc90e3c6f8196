import json
import re

import pytest
from fastapi.testclient import TestClient

from hf_vanilla_transformer.inference.glossary import Glossary
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.serving.application import create_application
from hf_vanilla_transformer.serving.engine import Engine, ServedModel
from hf_vanilla_transformer.serving.limits import Limits
from tables import looped
from translators import ENGLISH, build

TEXT = "  a red house.  two dogs run\r\n\r\n\tthe small cat sleeps \n"
SENTENCES = ["a red house.", "two dogs run", "the small cat sleeps"]
PAIR = {"source": "en", "target": "es"}


def offline(engine, sentences, **options):
    model = engine.models["en-es"]
    return translate(model.model, model.tokenizer, sentences, **options)


def test_a_text_keeps_its_layout_and_gets_the_offline_translations(client, engine):
    answer = client.post("/v1/translations", json={"text": [TEXT, " \n", ""], **PAIR}).json()
    first, blank, empty = answer["translations"]
    texts = [row[0].text for row in offline(engine, SENTENCES)]
    assert first["text"] == "  {}  {}\r\n\r\n\t{} \n".format(*texts)
    assert [sentence["source"] for sentence in first["sentences"]] == SENTENCES
    assert [blank, empty] == [{"text": " \n", "sentences": []}, {"text": "", "sentences": []}]
    assert answer["model"] == "en-es"


def test_hypotheses_with_scores_are_those_of_a_search_with_as_many_beams(client, engine):
    body = {"text": ENGLISH[2], **PAIR, "num_hypotheses": 3, "scores": True, "split_sentences": False}
    (sentence,) = client.post("/v1/translations", json=body).json()["translations"][0]["sentences"]
    (expected,) = offline(engine, ENGLISH[2:3], num_beams=3, num_hypotheses=3, with_scores=True)
    assert [each["text"] for each in sentence["hypotheses"]] == [each.text for each in expected]
    scores = [each["score"] for each in sentence["hypotheses"]]
    assert scores == pytest.approx([each.score for each in expected], abs=1e-5)


def test_alignments_are_those_of_the_offline_translations(client, engine):
    body = {"text": ENGLISH, **PAIR, "alignments": True, "num_hypotheses": 3, "split_sentences": False}
    texts = client.post("/v1/translations", json=body).json()["translations"]
    rows = offline(engine, ENGLISH, with_alignments=True, num_beams=3, num_hypotheses=3)
    expected = [[list(map(list, each.alignment)) for each in row] for row in rows]
    assert any(each for row in expected for each in row)
    assert [[each["alignment"] for each in text["sentences"][0]["hypotheses"]] for text in texts] == expected


def test_sampled_hypotheses_need_no_beams(client):
    sampling = {"num_hypotheses": 4, "do_sample": True, "temperature": 3, "top_k": 9, "top_p": 0.9}
    body = {"text": "a cat", **PAIR, **sampling}
    (sentence,) = client.post("/v1/translations", json=body).json()["translations"][0]["sentences"]
    assert len(sentence["hypotheses"]) == 4


@looped(
    "body, status, message",
    [
        (b"{", 422, "body: not JSON: "),
        (b"[]", 422, "body: "),
        (b"{}", 422, "text: Field required"),
        (b'{"text": 3}', 422, "text: Input should be a valid string"),
        (b'{"text": ["a", null]}', 422, "text.1: Input should be a valid string"),
        (b'{"text": "a", "num_beam": 3}', 422, "num_beam: "),
        (b'{"text": "a", "num_beams": 17}', 422, "num_beams: 17 exceeds the limit of 16"),
        (b'{"text": "a", "num_hypotheses": 17, "do_sample": true}', 422, "num_hypotheses: 17 exceeds the limit"),
        (
            b'{"text": "a", "num_hypotheses": 3, "num_beams": 2}',
            422,
            "3 hypotheses need as many beams, but `num_beams`",
        ),
        (b'{"text": "a", "temperature": NaN}', 422, "temperature: "),
        (b'{"text": "\\ud800"}', 422, "text: a lone surrogate, U+D800, at position 0"),
        (b'{"text": "a", "source": "\\ud800"}', 422, "source: a lone surrogate"),
        (b'{"text": "a", "source": "fr"}', 400, "no model translates fr-any; available: en-es, de-fr"),
        (b'{"text": "a"}', 400, "several models or language pairs match any-any; available: en-es, de-fr"),
        (b'{"text": "a", "model": "x"}', 400, "there is no model x; available: en-es, de-fr"),
    ],
)
def test_what_a_request_gets_wrong_is_one_line(client, body, status, message):
    if status == 422:
        body = body.replace(b'{"text": "a"', b'{"target": "es", "text": "a"')
    answer = client.post("/v1/translations", content=body, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert answer.status_code == status
    assert error.startswith(message)
    assert "\n" not in error and "Traceback" not in error


def test_limits(engine):
    client = TestClient(create_application(engine, limits=Limits(max_text_length=10, max_body=100)))
    assert client.post("/v1/translations", json={"text": ["123456", "7890"], **PAIR}).status_code == 200
    long_body = "the body exceeds the limit of 100 bytes; send less at a time"
    for content, message in [
        ({"text": ["123456", "78901"]}, "the text has 11 characters, the limit is 10; send less at a time"),
        # An empty text takes time too.
        ({"text": [""] * 11}, "the text has 11 characters"),
        ({"text": "a", "glossary": {"123456": "78901"}}, "the glossary has 11 characters, the limit is 10"),
        (b" " * 101, long_body),
        (iter([b" " * 60] * 2), long_body),
    ]:
        content = json.dumps(content | PAIR) if isinstance(content, dict) else content
        answer = client.post("/v1/translations", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413 and answer.json()["error"].startswith(message)


def test_the_key_is_asked_for(engine):
    client = TestClient(create_application(engine, api_key="sesame"))
    body = {"text": "a cat", **PAIR}
    for headers in ({}, {"Authorization": "Bearer Sesame"}, {"Authorization": "sesame"}):
        answer = client.post("/v1/translations", json=body, headers=headers)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "sesame" not in answer.text
    assert client.post("/v1/translations", json=body, headers={"Authorization": "Bearer sesame"}).status_code == 200
    assert client.post("/translate", json={"q": "a", **PAIR, "api_key": "sesame"}).status_code == 200
    assert client.post("/translate", json={"q": "a", **PAIR, "api_key": "sesam"}).status_code == 401
    assert client.get("/health").status_code == 200


def test_other_sites_are_refused_unless_allowed(engine):
    origin = {"Origin": "https://example.org"}
    closed = TestClient(create_application(engine)).get("/health", headers=origin)
    assert "access-control-allow-origin" not in closed.headers
    allowed = TestClient(create_application(engine, cors_origins=["https://example.org"]))
    assert allowed.get("/health", headers=origin).headers["access-control-allow-origin"] == "https://example.org"
    refused = allowed.get("/health", headers={"Origin": "https://example.com"})
    assert "access-control-allow-origin" not in refused.headers


def test_figures_count_requests_sentences_and_batches(client):
    client.post("/v1/translations", json={"text": ["a cat", "no"], **PAIR})
    figures = client.get("/metrics").text
    for line in (
        'requests_total{route="/v1/translations",status="200"}',
        'request_seconds_bucket{le="0.01",route="/v1/translations"}',
        'sentences_total{model="en-es"}',
        'source_tokens_total{model="en-es"}',
        'batch_sentences_count{model="en-es"}',
        'queue_sentences{model="en-es"} 0.0',
    ):
        assert f"vanilla_transformer_{line}" in figures


def test_unknown_paths_share_a_label(client):
    assert client.get("/a-path-of-its-own").json() == {"error": "Not Found"}
    figures = client.get("/metrics").text
    assert "a-path-of-its-own" not in figures and 'route="other",status="404"' in figures


def test_a_server_that_shuts_down_says_so():
    engine = Engine([ServedModel("a", *build("shared"))])
    with TestClient(create_application(engine)) as client:
        assert (client.get("/health").status_code, client.get("/health").json()) == (200, {"status": "ok"})
        engine.draining = True
        assert (client.get("/health").status_code, client.get("/health").json()) == (503, {"status": "draining"})
        answer = client.post("/v1/translations", json={"text": "a cat"})
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert "shutting down" in answer.json()["error"]
    assert not engine.models["a"].is_alive


def test_a_glossary_is_followed(client, engine):
    body = {"text": ["a red house", "no"], **PAIR, "glossary": {"house": "gato perros", "no": "vemos"}}
    translations = client.post("/v1/translations", json=body).json()["translations"]
    first, second = (translation["text"] for translation in translations)
    assert "gato perros" in first and "vemos" in second
    glossary = Glossary.of(body["glossary"])
    assert [first, second] == [row[0].text for row in offline(engine, body["text"], glossary=glossary)]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"glossary": {" ": "gato"}}, "glossary: a glossary's term is empty"),
        ({"glossary": {"no": "gato"}, "do_sample": True}, "a glossary needs beam search, not sampling"),
        (
            {"glossary": {"no": "gato perros"}, "max_new_tokens": 1},
            "the glossary's translations in a sentence have ",
        ),
        ({"glossary": {"no": "\0unheard-of"}}, "the glossary's translation '"),
    ],
    ids=["empty", "sampling", "too long", "unknown"],
)
def test_a_glossary_that_cannot_be_followed_is_the_fault_of_the_request(client, changes, message):
    answer = client.post("/v1/translations", json={"text": ["a cat", "no"], **PAIR, **changes})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(message)


def test_the_page_of_routes_loads_nothing_from_elsewhere(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    # Relative URLs: a proxy may serve the application under a path.
    loaded = re.findall(r"""(?:src|href)="([^"]+)"|url: '([^']+)'""", page.text)
    assert len(loaded) == 4
    for address in map("".join, loaded):
        assert ":" not in address and not address.startswith("/")
        assert client.get(f"/{address}").status_code == 200
    paths = client.get("/openapi.json").json()["paths"]
    own = {"/v1/translations", "/health", "/metrics"}
    libretranslate = {"/translate", "/translate_file", "/download_file/{name}", "/detect", "/languages"}
    assert {*paths} == own | libretranslate
