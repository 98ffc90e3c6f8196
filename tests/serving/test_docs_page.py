import re

from hf_vanilla_transformer.serving.docs_page import docs_page
from hf_vanilla_transformer.serving.libretranslate import TranslateRequest
from hf_vanilla_transformer.serving.v1 import HypothesisResponse, TranslationRequest


def test_it_names_every_route_and_field_and_loads_nothing_from_elsewhere(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    for route in ("POST /v1/translations", "POST /translate", "POST /detect", "GET /languages", "GET /health"):
        assert f"<code>{route}</code>" in page.text
    for model in (TranslationRequest, TranslateRequest, HypothesisResponse):
        assert all(f"<code>{name}</code>" in page.text for name in model.model_fields)
        assert all(field.description for field in model.model_fields.values())
    assert "string or list of string" in page.text and "text or html" in page.text
    assert "<script" not in page.text and not re.search(r'(?:src|href)="(?!openapi\.json)', page.text)
    assert client.get("/openapi.json").json()["info"]["title"] == "Vanilla Transformer"


def test_what_a_schema_says_is_text():
    schema = {"info": {"title": "<b>", "description": "<i>"}, "paths": {"/<a>": {"get": {"responses": {}}}}}
    page = docs_page(schema)
    assert "&lt;b&gt;" in page and "&lt;i&gt;" in page and "/&lt;a&gt;" in page
