"""Whole conversions: tied weights, encoders, descriptions, and folders."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForSeq2SeqLM, AutoModelForTextEncoding

import source_models
from conversions import HEADS, convert, refused
from hf_vanilla_transformer import VanillaTransformerEncoderModel
from hf_vanilla_transformer.conversion import convert_checkpoint, load_converted


@pytest.fixture
def state():
    return source_models.annotated().state_dict()


def test_tied_weights_stay_tied(tmp_path):
    model = source_models.annotated(source_vocabulary=17, shared=True, tied=True)
    convert_checkpoint(model.state_dict(), tmp_path / "tied", **HEADS)
    tied = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "tied")
    assert tied.lm_head.weight is tied.model.encoder.embed_tokens.weight
    assert tied.lm_head.weight is tied.model.decoder.embed_tokens.weight
    apart = convert(model.state_dict(), tie_word_embeddings=False, **HEADS)
    assert not apart.config.tie_word_embeddings and apart.config.share_encoder_decoder_embeddings


def test_in_memory_as_from_a_folder(state, tmp_path):
    (tmp_path / "words").write_text("\n".join(f"word{n}" for n in range(13)) + "\n", encoding="utf-8")
    options = {"source_vocabulary": tmp_path / "words", "encoder_only": True, **HEADS}
    conversion = convert_checkpoint(state, tmp_path / "folder", **options)
    model, tokenizer = load_converted(state, **options)
    assert not model.training and tokenizer.get_vocab() == conversion.tokenizer.get_vocab()
    expected = AutoModelForTextEncoding.from_pretrained(tmp_path / "folder")
    inputs = tokenizer(["word5 word7"], return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(model(**inputs).last_hidden_state, expected(**inputs).last_hidden_state)
    assert load_converted(state, **HEADS)[1] is None
    with pytest.raises(ValueError, match="has no known layout"):
        load_converted({"weight": torch.ones(2, 2)})


def test_an_encoder_alone(tmp_path):
    model = source_models.annotated().eval()
    conversion = convert_checkpoint(model.state_dict(), tmp_path / "encoder", encoder_only=True, **HEADS)
    assert isinstance(conversion.model(), VanillaTransformerEncoderModel)
    encoder = AutoModelForTextEncoding.from_pretrained(tmp_path / "encoder")
    source = torch.randint(0, 13, (2, 6))
    with torch.no_grad():
        found, expected = encoder(input_ids=source).last_hidden_state, model.encode(source)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_an_encoder_that_is_stored_alone():
    whole = source_models.TorchNN().state_dict()
    alone = {key: tensor for key, tensor in whole.items() if not key.startswith(("tgt", "generator", "transformer.d"))}
    expected = convert(whole, encoder_only=True, **HEADS).weights
    found = convert(alone, encoder_only=True, **HEADS).weights
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_description_shows_what_is_filled_in():
    lines = convert(source_models.statquest().state_dict()).describe().splitlines()
    assert "nothing -> model.encoder.layers.0.self_attn.out_proj.weight 4x4, identity" in lines


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (source_models.phrases, "its residual around self-attention skips.*pass `patched=True`$"),
        (
            source_models.shared_heads,
            "its masked self-attention reads.*; its softmax runs.*converts with `encoder_only=True`$",
        ),
    ],
    ids=["phrases", "shared heads"],
)
def test_known_defects_are_refused(make, message):
    refused(message, make().state_dict())


def test_an_encoder_without_defects_converts():
    conversion = convert(source_models.shared_heads().state_dict(), encoder_only=True)
    assert isinstance(conversion.model(), VanillaTransformerEncoderModel)
    refused("residual around self-attention", source_models.phrases().state_dict(), encoder_only=True)


class TestFolder:
    def test_is_required(self, state):
        with pytest.raises(ValueError, match="`output_dir` is missing; .* or pass `dry_run=True`"):
            convert_checkpoint(state, None, **HEADS)

    def test_its_card_says_where_it_is_from(self, state, tmp_path):
        save_file(state, tmp_path / "old.safetensors")
        for source, made in ((state, "weights"), (str(tmp_path / "old.safetensors"), "`old.safetensors`")):
            convert_checkpoint(source, tmp_path / made, **HEADS)
            card = (tmp_path / made / "README.md").read_text(encoding="utf-8")
            # Without a tokenizer, there is no simple use.
            assert f"Converted from {made}, of layout " in card and "## Use" not in card
        convert_checkpoint(state, tmp_path / "encoder", encoder_only=True, **HEADS)
        assert 'AutoModelForTextEncoding.from_pretrained("encoder")' in (tmp_path / "encoder/README.md").read_text()

    def test_nothing_is_left_of_a_failure(self, state, tmp_path, monkeypatch):
        incomplete = {key: tensor for key, tensor in state.items() if "w_1" not in key}
        with pytest.raises(ValueError, match="missing"):
            convert_checkpoint(incomplete, tmp_path / "out", **HEADS)

        def full_disk(self, folder, *args, **kwargs):
            (Path(folder) / "config.json").touch()
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", full_disk)
        with pytest.raises(ValueError, match="No space"):
            convert_checkpoint(state, tmp_path / "out", **HEADS)
        assert os.listdir(tmp_path) == []
