"""Fixtures of saved models and their ONNX graphs, which take seconds to export."""

import pytest

from hf_vanilla_transformer.export import export_model
from translators import save_translator


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory):
    """Folder with a model and its tokenizer; tests must not change it."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_translator("shared", folder)
    return folder


# An export takes many seconds, so the fast tests share one.
@pytest.fixture(
    scope="session", params=["pair", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("learned", "shared"))]
)
def onnx_export(request, tmp_path_factory):
    """A model, its tokenizer, and the folder with their ONNX graphs, which tests must not change."""
    pytest.importorskip("transformers.exporters", reason="this release of transformers has no exporters")
    pytest.importorskip("onnxruntime", reason="ONNX graphs run in onnxruntime, of the extra `export`")
    folder = tmp_path_factory.mktemp(request.param)
    model, tokenizer = save_translator(request.param, folder / "model")
    return model, tokenizer, export_model(folder / "model", "onnx", folder / "exported")
