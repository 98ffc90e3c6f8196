import shutil

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerEnsemble
from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.ctranslate2 import load_ctranslate2
from hf_vanilla_transformer.inference.fingerprint import model_fingerprint
from hf_vanilla_transformer.inference.translation import load
from translators import PAIR, build, save_translator


@pytest.mark.parametrize("kind", ["shared", "pair", "marian"])
def test_whatever_changes_a_translation_changes_it(kind, tmp_path):
    save_translator(kind, tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("text")
    model, tokenizer = load(str(tmp_path / "model"), device="cpu")
    found = model_fingerprint(model, tokenizer)
    assert found == model_fingerprint(*load(str(tmp_path / "copy"), device="cpu"))
    # Padding and truncation state left by a call does not matter.
    tokenizer(["a cat", "a red house"], padding=True, truncation=True, max_length=4)
    assert found == model_fingerprint(model, tokenizer)
    assert found != model_fingerprint(*load(str(tmp_path / "copy"), torch.bfloat16, "cpu"))
    assert found != model_fingerprint(model, build("shared" if kind == "pair" else "pair")[1])
    model.generation_config.num_beams = 7
    others = {found, model_fingerprint(model, tokenizer)}
    model.config.activation_function = "silu"
    others.add(model_fingerprint(model, tokenizer))
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-6
    assert len(others | {model_fingerprint(model, tokenizer)}) == 4


def test_of_an_ensemble():
    kinds = ({}, {"decoder_layers": 1}, {"activation_function": "silu"})
    models = [build("shared", **changes)[0] for changes in kinds]
    found = [
        model_fingerprint(VanillaTransformerEnsemble([models[i] for i in order]), PAIR)
        for order in ((0, 1), (0, 1), (0, 2), (0, 0), (0,), (0, 1, 2))
    ]
    assert found[0] == found[1] and len(set(found)) == 5
    assert model_fingerprint(models[0], PAIR) not in found
    with torch.no_grad():
        next(models[1].parameters()).view(-1)[0] += 1e-6
    assert model_fingerprint(VanillaTransformerEnsemble(models[:2]), PAIR) not in found


def test_of_an_exported_model(tmp_path):
    pytest.importorskip("ctranslate2", reason="an exported model is run by it")
    for kind in ("shared", "learned"):
        for part in build(kind):
            part.save_pretrained(tmp_path / kind)
        export_model(tmp_path / kind, "ctranslate2", tmp_path / f"{kind}.ct2")
    shutil.copytree(tmp_path / "shared.ct2", tmp_path / "copy.ct2")
    found = [model_fingerprint(*load_ctranslate2(tmp_path / f"{name}.ct2")) for name in ("shared", "copy", "learned")]
    assert found[0] == found[1] != found[2]
    model, _ = load_ctranslate2(tmp_path / "shared.ct2")
    assert model_fingerprint(model, PAIR) != found[0]
