"""The page's routes; test_page_browser.py tests it in a browser."""

import asyncio

import pytest
from fastapi.testclient import TestClient

pytest.importorskip("gradio", reason="the page needs the extra `demo`")

import gradio

from hf_vanilla_transformer.pretrained.cards import Example
from hf_vanilla_transformer.serving.application import create_application
from hf_vanilla_transformer.serving.limits import Limits
from hf_vanilla_transformer.serving.page import Page, mount_page
from hf_vanilla_transformer.serving.service import Service


def with_page(engine, api_key=None):
    async def mount():
        return mount_page(create_application(engine, api_key=api_key), engine, api_key=api_key)

    # Without a running event loop, Gradio creates one and leaves it open.
    return TestClient(asyncio.run(mount()), follow_redirects=False)


@pytest.fixture(scope="module")
def client(engine):
    return with_page(engine)


def test_the_start_leads_to_the_page(client):
    answer = client.get("/")
    assert answer.status_code == 307 and answer.headers["location"] == "page/"
    assert "<gradio-app" in client.get("/page/").text
    assert client.get("/favicon.ico").headers["content-type"] == "image/svg+xml"


def test_the_server_keeps_its_routes(client):
    assert client.get("/health").json() == {"status": "ok"}
    answer = client.post("/v1/translations", json={"text": "a cat", "model": "en-es"})
    assert answer.status_code == 200 and answer.json()["model"] == "en-es"
    assert "/page/" not in client.get("/openapi.json").text


def test_gradio_offers_no_api_and_takes_no_files(client):
    assert client.get("/page/gradio_api/info").json()["named_endpoints"] == {}
    files = {"files": ("a.txt", b"more than a byte")}
    assert client.post("/page/gradio_api/upload", files=files).status_code == 413


def test_an_api_key_is_the_password(engine):
    client = with_page(engine, "secret")
    assert client.get("/page/config").status_code == 401
    for password in ("", "secre", "wrong"):
        assert client.post("/page/login", data={"username": "me", "password": password}).status_code in (400, 422)
    assert client.get("/page/config").status_code == 401
    assert client.post("/page/login", data={"username": "me", "password": "secret"}).status_code == 200
    assert client.get("/page/config").status_code == 200


def page_of(engine):
    async def make():
        return Page(Service(engine, Limits(), None))

    return asyncio.run(make())


def sources(page):
    return [value for _, value in page.source.choices]


class TestDetection:
    @pytest.mark.parametrize(
        "source, text", [("de", "Der kleine Hund schläft im Garten."), ("en", "The small dog sleeps in the garden.")]
    )
    def test_the_source_language_is_detected_if_the_user_says_so(self, two_sources, source, text):
        page = page_of(two_sources)
        assert sources(page) == ["auto", "de", "en"] and page.source.value == "en"
        values = {field: getattr(field, "value", None) for field in vars(page).values() if hasattr(field, "_id")}
        values |= {page.text: text, page.target: "es"}
        detected = asyncio.run(page.translate(values | {page.source: "auto"}))
        assert detected[page.answer].choice.source == source
        assert f"1 sentence from {source} in" in detected[page.status]
        given = asyncio.run(page.translate(values | {page.source: source}))
        assert detected[page.translation] == given[page.translation] and "from" not in given[page.status]

    def test_only_where_there_is_something_to_detect(self, engine, two_sources, no_language_detector):
        for each in (engine, two_sources):
            assert "auto" not in sources(page_of(each))

    def test_an_example_brings_its_languages(self, two_sources, monkeypatch):
        examples = [Example("Der Hund.", "de", "es"), Example("The dog.")]
        monkeypatch.setattr("hf_vanilla_transformer.serving.page.card_examples", lambda model: examples)
        page = page_of(two_sources)
        assert page.examples.samples == [["Der Hund."], ["The dog."]] and page.examples.type == "index"
        assert page.pick_example(page.model.value, 0) == ["Der Hund.", "de", "es"]
        text, *languages = page.pick_example(page.model.value, 1)
        assert text == "The dog." and languages == [gradio.skip()] * 2
