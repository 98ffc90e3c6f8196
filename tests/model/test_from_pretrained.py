"""`from_pretrained` and `save_pretrained`: devices, dtypes, shards, variants, mismatches, tied weights."""

import json
from copy import deepcopy

import pytest
import torch
from torch import nn

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from tiny import EVERY_VOCABULARY, VOCABULARIES, VOCABULARY, batch_with_padding, close, tiny_model

load = VanillaTransformerForConditionalGeneration.from_pretrained


def logits(model):
    torch.manual_seed(1)
    with torch.no_grad():
        return model(**batch_with_padding()).logits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, "auto"])
def test_dtype(dtype, tmp_path):
    model = tiny_model().to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    loaded = load(tmp_path, dtype=dtype)
    expected = torch.bfloat16 if dtype == "auto" else dtype
    assert {p.dtype for p in loaded.parameters()} == {expected} == {loaded.dtype}
    close(logits(loaded).double(), logits(model).double(), 0.1)


@EVERY_VOCABULARY
class TestPlacement:
    def test_layers_on_disk(self, changes, tmp_path):
        """Without an accelerator, layers that do not fit into memory can stay on disk."""
        model = tiny_model(**changes)
        model.save_pretrained(tmp_path / "model")
        kept = ("embed_tokens", "embed_positions", "layer_norm")
        device_map = {f"model.{side}.{part}": "cpu" for side in ("encoder", "decoder") for part in kept}
        device_map |= {"lm_head": "cpu", "model.encoder.layers.0": "cpu", "model.decoder.layers.1": "cpu"}
        on_disk = ("encoder.layers.1", "decoder.layers.0", "decoder.layers.2")
        device_map |= {f"model.{layer}": "disk" for layer in on_disk}
        loaded = load(tmp_path / "model", device_map=device_map, offload_folder=tmp_path / "offload")
        assert all(p.is_meta for p in loaded.model.encoder.layers[1].parameters())
        # Layers with hooks use the standard product, which rounds differently on some processors.
        close(logits(loaded), logits(model))

    def test_max_memory(self, changes, tmp_path):
        model = tiny_model(**changes)
        model.save_pretrained(tmp_path / "model")
        # The embeddings, possibly shared, and one layer fit; all layers do not.
        options = {"device_map": "auto", "max_memory": {"cpu": 32_000}, "offload_folder": tmp_path / "offload"}
        loaded = load(tmp_path / "model", **options)
        assert {"cpu", "disk"} == {str(place) for place in loaded.hf_device_map.values()}
        # No layer is split.
        assert not any(part in name for name in loaded.hf_device_map for part in ("_proj", "fc", "attn"))
        close(logits(loaded), logits(model))
        source = batch_with_padding()["input_ids"]
        expected = model.generate(source, max_new_tokens=4)
        assert torch.equal(loaded.generate(source, max_new_tokens=4), expected)


@EVERY_VOCABULARY
def test_shards(changes, tmp_path):
    model = tiny_model(**changes)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2 and set(index["weight_map"].values()) == {path.name for path in shards}
    assert set(index["weight_map"]) == {name for name, _ in model.named_parameters()}
    close(logits(load(tmp_path)), logits(model), 0)


def test_another_vocabulary_raises_or_is_initialized(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    bigger = {"vocab_size": VOCABULARY + 5, "decoder_vocab_size": VOCABULARY + 5}
    with pytest.raises(RuntimeError, match="mismatch"):
        load(tmp_path, **bigger)
    loaded, info = load(tmp_path, **bigger, ignore_mismatched_sizes=True, output_loading_info=True)
    (mismatch,) = info["mismatched_keys"]
    assert mismatch[0] == "model.encoder.embed_tokens.weight"
    weight = loaded.lm_head.weight
    assert weight.shape[0] == VOCABULARY + 5 and weight is loaded.model.encoder.embed_tokens.weight
    assert weight[1:].std().item() == pytest.approx(16**-0.5, rel=0.15)
    close(loaded.model.decoder.layers[0].fc1.weight, model.model.decoder.layers[0].fc1.weight, 0)


def test_missing_weights_are_reported_and_initialized(tmp_path):
    model = tiny_model(**VOCABULARIES["separate"])
    model.model.save_pretrained(tmp_path)
    loaded, info = load(tmp_path, output_loading_info=True, lm_head_bias=True)
    assert "lm_head.bias" in info["missing_keys"]
    close(loaded.model.encoder.embed_tokens.weight, model.model.encoder.embed_tokens.weight, 0)
    assert loaded.lm_head.weight.isfinite().all() and (loaded.lm_head.bias == 0).all()


def test_copies_are_independent():
    model = tiny_model()
    copy = deepcopy(model)
    assert copy.lm_head.weight is copy.model.encoder.embed_tokens.weight is not model.lm_head.weight
    nn.init.zeros_(copy.lm_head.weight)
    assert model.lm_head.weight.abs().sum() > 0
