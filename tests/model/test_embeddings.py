"""The encoder by itself: checkpoints that `AutoModel` loads as such, and sentence embeddings."""

import pytest
import torch
from transformers import AutoModel, AutoModelForTextEncoding, pipeline

from hf_vanilla_transformer import VanillaTransformerEncoderModel, VanillaTransformerModel
from hf_vanilla_transformer.model.hub_code_vanilla_transformer import with_auto_map
from hf_vanilla_transformer.model.modeling_vanilla_transformer import mean_over_tokens
from tiny import EVERY_VOCABULARY, close, padded_source, tiny_config, tiny_model
from translators import ENGLISH, build


@EVERY_VOCABULARY
def test_an_encoder_checkpoint_loads_with_auto_model(changes, tmp_path):
    model, source = tiny_model(**changes), padded_source()
    model.save_pretrained(tmp_path)
    AutoModelForTextEncoding.from_pretrained(tmp_path).save_pretrained(tmp_path / "encoder")
    encoder = AutoModel.from_pretrained(tmp_path / "encoder")
    assert type(encoder) is VanillaTransformerEncoderModel
    close(encoder(**source).last_hidden_state, model.get_encoder()(**source).last_hidden_state, 0)


def test_every_other_configuration_is_an_encoder_decoder(tmp_path):
    model = tiny_model()
    model.save_pretrained(tmp_path)
    assert type(AutoModel.from_pretrained(tmp_path)) is VanillaTransformerModel
    for config in (tiny_config(), model.config, tiny_config(architectures=None)):
        assert type(AutoModel.from_config(config)) is VanillaTransformerModel


@pytest.mark.parametrize("name", ["EncoderModel", "Model"])
def test_code_on_the_hub_loads_the_same_class(name):
    settings = {"model_type": "vanilla_transformer", "architectures": [f"VanillaTransformer{name}"]}
    assert with_auto_map("config.json", settings)["auto_map"]["AutoModel"].endswith(f".VanillaTransformer{name}")


def save_encoder(kind, folder):
    """Save the encoder of a translator, and return it with its tokenizer."""
    model, tokenizer = build(kind)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    AutoModelForTextEncoding.from_pretrained(folder).save_pretrained(folder)
    return model.get_encoder(), tokenizer


def test_feature_extraction(tmp_path):
    encoder, tokenizer = save_encoder("pair", tmp_path)
    (states,) = pipeline("feature-extraction", str(tmp_path), device="cpu")(ENGLISH[1])
    expected = encoder(**tokenizer(ENGLISH[1], return_tensors="pt")).last_hidden_state[0]
    close(torch.tensor(states), expected)


# Not compared with Marian: sentence-transformers 6.2 loads its encoder with random weights.
@pytest.mark.parametrize("kind", ["shared", "pair", "multilingual"])
def test_sentence_transformers(kind, tmp_path):
    sbert = pytest.importorskip("sentence_transformers", reason="installed by the extra `dev`")
    encoder, tokenizer = save_encoder(kind, tmp_path / "encoder")
    model = sbert.SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    embeddings = model.encode(ENGLISH, convert_to_tensor=True)
    source = tokenizer(ENGLISH, padding=True, return_tensors="pt", return_token_type_ids=False)
    close(embeddings, mean_over_tokens(encoder(**source).last_hidden_state, source["attention_mask"]))
    model.save(str(tmp_path / "saved"))
    again = sbert.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    close(again.encode(ENGLISH, convert_to_tensor=True), embeddings, 0)
