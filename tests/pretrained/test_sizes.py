"""A configuration that describes more than the weight files hold is refused before anything is allocated."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from hf_vanilla_transformer.model.positions_vanilla_transformer import MAX_CACHED
from hf_vanilla_transformer.pretrained.loading import load_config, load_model
from hf_vanilla_transformer.pretrained.sizes import check_sizes
from tiny import tiny_model
from translators import save_translator


def change(folder, **fields):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.fixture(params=["shared", "marian"])
def folder(request, tmp_path):
    save_translator(request.param, tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["encoder_layers", "decoder_layers"])
def test_layers(folder, name):
    change(folder, **{name: 10**9})
    with pytest.raises(ValueError, match=rf"config.json: `{name}` is 1000000000, but only \d+ tensors are stored"):
        load_model(folder)


@pytest.mark.parametrize("use", [load_model, load_config])
def test_labels(folder, use):
    change(folder, num_labels=10**20)
    with pytest.raises(ValueError, match=r"config.json: `num_labels` is 1000.*; it must be at most 1,000,000"):
        use(folder)


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "init_std"])
@pytest.mark.parametrize("value", [-0.5, 10**9, float("nan")])
def test_numbers_that_torch_refuses_only_when_used(folder, name, value):
    change(folder, **{name: value})
    with pytest.raises(ValueError, match=f"config.json: .*`?{name}"):
        load_model(folder)


@pytest.mark.parametrize("name", ["vocab_size", "d_model", "encoder_ffn_dim"])
def test_widths(folder, name):
    change(folder, **{name: 2**30, "decoder_vocab_size": None})
    with pytest.raises(
        ValueError, match=r"config.json describes [\d,]+ parameters|weights of the wrong shape: .*config.json"
    ):
        load_model(folder)


def test_missing_weights_of_any_size(tmp_path):
    """Weights missing from the file have no shape to compare, but the total number of parameters is checked."""
    save_translator("shared", tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({"x": load_file(file)["lm_head.bias"]}, file, metadata={"format": "pt"})
    change(tmp_path, encoder_layers=1, decoder_layers=1, d_model=2**30)
    with pytest.raises(ValueError, match=r"config.json describes [\d,]+ parameters, but \d+ are stored;"):
        load_model(tmp_path)


def test_positions_are_a_cache_of_bounded_size(tmp_path):
    model, _ = save_translator("shared", tmp_path)
    change(tmp_path, max_position_embeddings=10**12)
    loaded = load_model(tmp_path)
    assert loaded.model.encoder.embed_positions.weight.shape == (MAX_CACHED, 16)
    source = torch.tensor([[5, 6, 2]])
    assert torch.equal(loaded.generate(source, max_new_tokens=5), model.generate(source, max_new_tokens=5))


def test_weights_of_earlier_releases_in_a_pickle(tmp_path):
    """Shapes are read first, without the values."""
    save_translator("shared", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert load_model(tmp_path).config.d_model == 16
    change(tmp_path, encoder_layers=10**9)
    with pytest.raises(ValueError, match="`encoder_layers` is 1000000000"):
        load_model(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="pytorch_model.bin is "):
        load_model(tmp_path)


def test_packed_weights_of_a_quantized_model(tmp_path):
    """Packed shapes are accepted, as in 4-bit bitsandbytes, which needs a GPU to load."""
    save_translator("shared", tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["model.encoder.layers.0.fc1.weight"] = torch.zeros(256, 1, dtype=torch.uint8)
    save_file(weights, file, metadata={"format": "pt"})
    change(tmp_path, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    check_sizes(tmp_path, AutoModelForSeq2SeqLM, (), False, {})


def test_number_of_labels_of_a_new_configuration():
    assert tiny_model(num_labels=7).config.num_labels == 7
    for value in (10**20, -1, 2.5, "3", True):
        with pytest.raises(ValueError, match="^`num_labels` is .*; it must be an integer from 0 to 1000000"):
            tiny_model(num_labels=value)
