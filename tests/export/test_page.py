"""The page without a server translates in a browser as the model does."""

import functools
import http.server
import threading
from contextlib import contextmanager

import pytest
from transformers import AutoTokenizer

from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.export.page import _settings
from hf_vanilla_transformer.inference.translation import translate
from pages import CHROMIUM
from paths import ROOT
from tables import looped
from translators import ENGLISH, save_translator

NODE_MODULES = ROOT / "tests" / "node" / "node_modules"


@contextmanager
def file_server(folder):
    """Serve static files on the loopback address."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    handler.log_message = lambda *values: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_missing_library(tmp_path):
    save_translator("shared", tmp_path / "model")
    with pytest.raises(ValueError, match="npm install"):
        export_model(tmp_path / "model", "page", tmp_path / "page", node_modules=tmp_path)
    assert not (tmp_path / "page").exists()


@looped(
    "separator, columns, shown, split_by",
    [(";", 2, "V;PST;eng", ";"), (None, 2, "V PST;eng", ";"), (None, 1, "V PST", None), (" ", 2, "V PST eng", " ")],
)
def test_tags_of_several_columns_are_typed_into_one_field(tmp_path, separator, columns, shown, split_by):
    """Split as shown, they are the tags of the example."""
    model, _ = save_translator("shared", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tags = {";": "V;PST"}.get(separator, "V PST")
    example = "\t".join(["cat", tags, "eng"][: columns + 1])
    (tmp_path / "README.md").write_text(f"source:      {example}\n", encoding="utf-8")
    tokenizer.init_kwargs |= {"feature_columns": columns, "feature_separator": separator}
    model.name_or_path = str(tmp_path)
    settings = _settings(model, tokenizer)
    assert (settings["example"], settings["exampleTags"], settings["tagSeparator"]) == ("cat", shown, split_by)


def test_in_a_browser(tmp_path, one_thread):
    api = pytest.importorskip("playwright.sync_api", reason="a browser is driven by playwright")
    if not CHROMIUM:
        pytest.skip("there is no Chromium")
    if not NODE_MODULES.is_dir():
        pytest.skip("transformers.js is not installed; run `npm install --ignore-scripts` in tests/node")
    pytest.importorskip("transformers.exporters", reason="this release of transformers has no exporters")
    pytest.importorskip("onnx", reason="graphs are written by onnx, of the extra `export`")
    model, tokenizer = save_translator("pair", tmp_path / "<model>")
    (tmp_path / "<model>" / "README.md").write_text(f"source:      {ENGLISH[0]}\n", encoding="utf-8")
    options = {"num_beams": 1, "max_length": 64, "max_tokens": 9999, "raw": True}
    expected = [row[0].text for row in translate(model, tokenizer, ENGLISH, **options)]
    page_folder = export_model(
        tmp_path / "<model>", "page", tmp_path / "page", node_modules=NODE_MODULES, quantization="float32"
    )
    # Codes that browsers do not know.
    text = (page_folder / "index.html").read_text(encoding="utf-8")
    changed = text.replace('"directions": []', '"directions": [["en_XX", "es_XX"]]')
    changed = changed.replace('"cutsSentences": false', '"cutsSentences": true')
    assert changed.count('"en_XX"') == changed.count('"cutsSentences": true') == 1
    (page_folder / "other.html").write_text(changed, encoding="utf-8")
    with file_server(page_folder) as url, api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, elsewhere, errors = browser.new_page(), [], []
        page.on("request", lambda request: elsewhere.append(request.url))
        page.on("pageerror", lambda error: errors.append(error))
        page.goto(url)
        target = page.locator("#target")
        api.expect(target).to_have_text(expected[0], timeout=120_000)
        assert page.title() == "<model>" and page.locator("#source").input_value() == ENGLISH[0]
        page.get_by_label("Source").fill("\n".join(["", *ENGLISH]))
        api.expect(target).to_contain_text(expected[-1], timeout=120_000)
        assert target.inner_text().split("\n") == ["", *expected] and errors == []
        page.goto(f"{url}other.html")
        api.expect(target).to_have_text(expected[0], timeout=120_000)
        assert errors == []
        assert [address for address in elsewhere if not address.startswith((url, "data:", "blob:"))] == []
        browser.close()
