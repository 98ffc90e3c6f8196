"""The page's routes; what it does in a browser is tested by test_page_browser.py."""

import asyncio

import pytest
from fastapi.testclient import TestClient

pytest.importorskip("gradio", reason="the page needs the extra `demo`")

from hf_vanilla_transformer.serving.application import create_application
from hf_vanilla_transformer.serving.page import mount_page


def with_page(engine, api_key=None):
    async def mount():
        return mount_page(create_application(engine, api_key=api_key), engine, api_key=api_key)

    # Where no event loop runs, Gradio makes one and leaves it open.
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
