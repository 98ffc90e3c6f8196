"""The page without a server translates in a browser as the model does."""

import functools
import http.server
import threading
from contextlib import contextmanager

import pytest

from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.translation import translate
from pages import CHROMIUM
from paths import ROOT
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
        assert [address for address in elsewhere if not address.startswith((url, "data:", "blob:"))] == []
        browser.close()
