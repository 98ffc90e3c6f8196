"""Whatever is sent to the server, it responds with a result or a one-line error, and keeps running."""

import json
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import JSON_VALUES, texts
from hf_vanilla_transformer.serving.application import create_application
from hf_vanilla_transformer.serving.engine import Engine, ServedModel
from hf_vanilla_transformer.serving.limits import Limits
from translators import build

pytestmark = pytest.mark.usefixtures("one_thread")

ROUTES = {"/translate": "q", "/detect": "q", "/v1/translations": "text"}
FIELDS = (
    "text", "q", "source", "target", "model", "format", "alternatives", "api_key", "split_sentences", "num_hypotheses",
    "num_beams", "length_penalty", "do_sample", "temperature", "top_k", "top_p", "max_new_tokens", "scores",
    "alignments", "glossary",
)  # fmt: skip  # one field a line would fill the screen

# Any text, including strings that only JSON can spell.
SPELT = st.sampled_from(["\ud800", "a\udfffb", "\0", "a. B!\r\n"])
ANY_TEXT = st.one_of(texts(), st.text(st.characters(), max_size=6), SPELT)
VALUES = st.one_of(
    JSON_VALUES,
    ANY_TEXT,
    st.lists(ANY_TEXT, max_size=3),
    st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=2),
    st.sampled_from(["en", "es", "auto", "text", "html", 1, 2, 4, True, 0.5, float("nan"), 1e-320, 2**63, [[]], {}]),
)
REQUESTS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8)
HEADERS = st.dictionaries(
    st.sampled_from(["content-type", "content-length", "authorization", "origin", "accept", "transfer-encoding", "x"]),
    st.one_of(
        st.sampled_from(["application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]),
        st.sampled_from(["multipart/form-data", "text/plain; charset=x", "Bearer \xff", "-1", "chunked", "1e3"]),
        st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=8),
    ),
    max_size=3,
)
BODIES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"[" * 3000, b'{"text":' * 400, b'{"text": ' + b"9" * 3900 + b"}", b"1e999", b"x" * 4001]),
    st.sampled_from([b"q=a&q=b&source=en&target=es", b"q=%ff%00&source=en&target=es"]),
    st.sampled_from([b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\na\r\n--x--\r\n']),
    st.sampled_from([b'{"q": "a", "source": "en", "target": "es"}']),
)
PATHS = st.one_of(
    st.sampled_from([*ROUTES, "/languages", "/health", "/metrics", "/docs", "/openapi.json", "/"]),
    texts().map(lambda text: f"/{quote(text)}"),
)
METHODS = st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "NIX"])


@pytest.fixture(scope="module")
def client():
    model = ServedModel("tiny", *build("shared"), [("en", "es")], patience=0.0, max_queue=64)
    limits = Limits(max_text_length=200, max_body=4000, max_beams=4, max_hypotheses=4, max_new_tokens=8)
    with TestClient(create_application(Engine([model]), limits=limits), raise_server_exceptions=False) as client:
        yield client


def check_answer(client, answer):
    """Check that a response is a result or a one-line error, and that the server keeps running."""
    assert answer.status_code in range(200, 300) or answer.status_code in range(400, 500) or answer.status_code == 503
    if answer.status_code >= 400 and answer.request.method != "HEAD":
        error = answer.json()["error"]
        assert error and "\n" not in error and "Traceback" not in error and len(error) < 2000
    assert client.get("/health").json() == {"status": "ok"}


def test_any_fields(client, fuzz):
    @fuzz("requests to the server with fields of any value", 40, 1500)
    @given(st.sampled_from(sorted(ROUTES)), ANY_TEXT | st.lists(ANY_TEXT, max_size=3), REQUESTS)
    def check(route, text, fields):
        body = {ROUTES[route]: text, "source": "en", "target": "es", **fields}
        answer = client.post(route, content=json.dumps(body), headers={"Content-Type": "application/json"})
        check_answer(client, answer)


def test_any_bytes_and_headers(client, fuzz):
    @fuzz("requests to the server of any bytes, headers and paths", 40, 1500)
    @given(METHODS, PATHS, BODIES, HEADERS)
    def check(method, path, body, headers):
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        check_answer(client, client.request(method, path, content=body, headers=encoded))
