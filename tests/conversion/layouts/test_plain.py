"""The layout of our own names, alone and behind a table of renames."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file

from conversions import STATED, batch, convert, converted_logits, refused
from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.conversion.fields import own_fields

HEADS = {"encoder_attention_heads": 2}
IDS = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
# What neither weights nor a table determine here; no norm divides by the unbiased deviation.
KNOWN = {**{name: value for name, value in STATED.items() if name != "first_position"}, **HEADS}

# The keys of unknown code, and their table of renames.
THEIRS = {"model.": "net.", ".layers.": ".blocks.", ".self_attn": ".attention", ".encoder_attn": ".memory"}
TABLE = """
# the embeddings and the output are one
net.encoder.embed_tokens. = model.encoder.embed_tokens.
net.encoder.embed_tokens. = model.decoder.embed_tokens.
net.encoder.embed_tokens. = lm_head.
net.encoder.blocks.{i}.attention = model.encoder.layers.{i}.self_attn
net.encoder.blocks.{i}.f = model.encoder.layers.{i}.f

net.decoder.blocks.{i}.attention = model.decoder.layers.{i}.self_attn
net.decoder.blocks.{i}.memory = model.decoder.layers.{i}.encoder_attn
net.decoder.blocks.{i}.f = model.decoder.layers.{i}.f
"""


def model_of(**fields):
    torch.manual_seed(0)
    shape = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "d_model": 8}
    config = VanillaTransformerConfig(
        vocab_size=13, encoder_attention_heads=2, decoder_attention_heads=2, **shape, **IDS, **fields
    )
    model = VanillaTransformerForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def assert_same_logits(model, converted):
    ids = batch(model)
    torch.testing.assert_close(converted_logits(converted, *ids), converted_logits(model, *ids), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("fields", "stated"),
    [
        ({}, {"sinusoidal_layout": "interleaved"}),
        ({"norm_position": "pre"}, {"norm_position": "pre", "sinusoidal_layout": "interleaved"}),
        ({"position_embedding_type": "learned", "max_position_embeddings": 20}, {"first_position": 0}),
        (
            {"embedding_layer_norm": True, "attention_bias": True, "lm_head_bias": True, "scale_embedding": False},
            {"sinusoidal_layout": "interleaved", "scale_embedding": False},
        ),
    ],
    ids=["the paper", "pre-norm", "learned positions", "biases and a norm of embeddings"],
)
def test_our_own_weights(fields, stated):
    model = model_of(**fields)
    found = convert(model.state_dict(), "plain", **{**KNOWN, **stated})
    assert_same_logits(model, found.model())
    same = {name: getattr(found.config, name) for name in own_fields()}
    assert same == {name: getattr(model.config, name) for name in own_fields()}


def test_everything_is_asked_for_at_once():
    message = refused("the weights of plain do not determine how they are used", model_of().state_dict(), "plain")
    asked = set(re.findall(r"`(\w+)=", message))
    assert asked == {*KNOWN, "sinusoidal_layout", "decoder_attention_heads"}


def test_a_table_of_renames(tmp_path):
    model = model_of()
    state = {name: tensor for name, tensor in model.state_dict().items() if "embed_tokens" not in name}
    state["model.encoder.embed_tokens.weight"] = state.pop("lm_head.weight")
    for ours, theirs in THEIRS.items():
        state = {key.replace(ours, theirs): tensor for key, tensor in state.items()}
    save_file({key: tensor.clone() for key, tensor in state.items()}, tmp_path / "mine.safetensors")
    (tmp_path / "names.txt").write_text(TABLE, encoding="utf-8")
    stated = {**KNOWN, "sinusoidal_layout": "interleaved"}
    found = convert(tmp_path / "mine.safetensors", "plain", rename=[tmp_path / "names.txt"], **stated)
    assert_same_logits(model, found.model())
    assert found.config.tie_word_embeddings and found.config.share_encoder_decoder_embeddings


def test_settings_from_a_folder(tmp_path):
    model = model_of(norm_position="pre")
    save_file({k: v.clone() for k, v in model.state_dict().items()}, tmp_path / "model.safetensors")
    settings = {**KNOWN, "norm_position": "pre", "sinusoidal_layout": "interleaved", "decoder_attention_heads": 2}
    del settings["unbiased_norms"]
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    assert_same_logits(model, convert(tmp_path, "plain", unbiased_norms=False).model())


def test_without_a_layer():
    state = {key: tensor for key, tensor in model_of().state_dict().items() if "encoder.layers" not in key}
    refused(r"lacks model\.encoder\.embed\S+ or all layers of the encoder; save them too", state, "plain", **KNOWN)


def test_it_is_never_guessed():
    refused("its keys are those of marian|has no known layout", model_of().state_dict())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.{i}=b.{i}", "names.txt, line 2: a.{i}=b.{i}: no key begins with 'a.{i}'"),
        ("model.encoder", "names.txt, line 2: model.encoder is not old=new"),
        ("lm_head=b.{i}", "names.txt, line 2: lm_head=b.{i}: {i} occurs only in the replacement"),
        ("model.encoder.layers.{i}.fc1=x", "`rename` gives two weights the name x.weight"),
    ],
)
def test_mistakes_in_a_table(tmp_path, line, message):
    (tmp_path / "names.txt").write_text(f"# names\n{line}\n", encoding="utf-8")
    weights = model_of().state_dict()
    refused(re.escape(message), weights, "plain", rename=[tmp_path / "names.txt"], **KNOWN)
    refused("`rename` names.txt is neither old=new nor a file", weights, "plain", rename=["names.txt"], **KNOWN)
