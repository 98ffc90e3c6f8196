"""Conversion of Marian models: the logits, translations and tokenizers of transformers' own class."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel, MarianTokenizer

from conversions import convert, refused
from hf_vanilla_transformer.conversion import convert_checkpoint
from hf_vanilla_transformer.conversion.transformers_folder import read_generation_settings
from transformers_models import WORDS, assert_same_function, marian

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 40},
        {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
        {"scale_embedding": False, "activation_function": "gelu"},
    ],
    ids=["shared", "two vocabularies", "all apart", "unscaled"],
)
def test_same_logits_and_translations(tmp_path, changes):
    original = marian(**changes)
    original.save_pretrained(tmp_path / "marian")
    conversion = convert_checkpoint(tmp_path / "marian", tmp_path / "ours")
    assert conversion.layout.name == "marian"
    converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert_same_function(original, converted, 39)
    config = converted.config
    assert config.share_encoder_decoder_embeddings == ("share_encoder_decoder_embeddings" not in changes)
    assert config.tie_word_embeddings == changes.get("tie_word_embeddings", True)
    assert (config.sinusoidal_layout, config.position_embedding_type) == ("concatenated", "sinusoidal")


@pytest.fixture
def original():
    return marian()


@pytest.fixture
def folder(original, tmp_path):
    """The original, saved by transformers."""
    original.save_pretrained(tmp_path / "marian")
    return tmp_path / "marian"


def test_a_pickle_with_copies_of_shared_weights(original, folder):
    (folder / "model.safetensors").unlink()
    torch.save(original.state_dict(), folder / "pytorch_model.bin")
    conversion = convert(folder)
    assert_same_function(original, conversion.model(), 39, searches=({},))
    assert conversion.config.position_embedding_type == "sinusoidal"


def test_generation_settings_in_the_config_of_an_older_folder(folder, tmp_path):
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").unlink()
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
    original = MarianMTModel.from_pretrained(folder)
    assert (original.generation_config.num_beams, original.generation_config.bad_words_ids) == (4, [[39]])
    convert_checkpoint(folder, tmp_path / "ours")
    converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert_same_function(original, converted, 39, searches=({},))


def test_a_config_without_some_fields_has_the_defaults_of_marian(tmp_path):
    original = marian(scale_embedding=False, activation_function="gelu")
    original.save_pretrained(tmp_path / "marian")
    file = tmp_path / "marian" / "config.json"
    config = json.loads(file.read_text())
    del config["scale_embedding"], config["activation_function"]
    file.write_text(json.dumps(config))
    conversion = convert(tmp_path / "marian")
    assert_same_function(original, conversion.model(), 39, searches=({},))
    assert not any("pad_token_id" in note for note in conversion.notes)


def test_weights_without_their_config(folder, tmp_path):
    alone = (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    refused("weights of marian do not determine .*; give the folder with their config", alone, "marian")


@pytest.mark.parametrize("linked", [False, True], ids=["file", "link"])
def test_a_file_comes_with_the_configuration_beside_it(original, folder, tmp_path, linked):
    expected = convert(folder)
    file = folder / "model.safetensors"
    if linked:
        (tmp_path / "link.safetensors").symlink_to(file)
        file = tmp_path / "link.safetensors"
    conversion = convert(file)
    assert conversion.generation == expected.generation and conversion.generation["num_beams"] == 4
    assert_same_function(original, conversion.model(), 39, searches=({},))


def change_weights(folder, **changes):
    file = folder / "model.safetensors"
    save_file({**load_file(file), **changes}, file, metadata={"format": "pt"})


def test_shared_embeddings_that_no_stack_has(folder):
    shared = load_file(folder / "model.safetensors")["model.shared.weight"]
    names = [f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")]
    change_weights(folder, **{names[0]: shared + 1, names[1]: shared * 2})
    refused(r"1 unexpected: model\.shared\.weight", folder)


def test_a_stored_projection_is_not_replaced_by_the_embeddings(folder):
    projection = torch.randn(50, 16)
    change_weights(folder, **{"lm_head.weight": projection})
    original = MarianMTModel.from_pretrained(folder).eval()
    assert torch.equal(original.lm_head.weight, projection)
    assert_same_function(original, convert(folder).model(), 39, searches=({},))


def test_stated_fields_come_first(folder):
    stated = {"eos_token_id": 7, "decoder_start_token_id": 5, "pad_token_id": 3}
    settings = convert(folder, **stated).model().generation_config
    assert {name: getattr(settings, name) for name in stated} == stated


def test_settings_that_transformers_loads_and_does_not_save(folder, tmp_path):
    file = folder / "generation_config.json"
    found = {**json.loads(file.read_text()), "num_beams": 1, "early_stopping": True, "temperature": 0.7}
    file.write_text(json.dumps(found))
    conversion = convert_checkpoint(folder, tmp_path / "ours")
    assert any("temperature, early_stopping, length_penalty" in note for note in conversion.notes)
    assert (tmp_path / "ours" / "generation_config.json").is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "generation_config.json cannot be read"),
        ('{"num_beams": 4, "early_stopping": 0.5, "cache_implementation": "none"}', "has an unusable setting"),
    ],
)
def test_damaged_generation_settings(folder, text, message):
    (folder / "generation_config.json").write_text(text)
    refused(message, folder)


def test_a_folder_without_generation_settings(folder):
    assert read_generation_settings(folder.parent) == ({}, [])


def test_a_tokenizer_whose_library_is_missing(folder, monkeypatch):
    def fail(*args, **kwargs):
        raise ImportError("needs\nsentencepiece")

    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fail)
    refused(r"not installed \(needs sentencepiece\); install it: pip install", folder)


def test_missing_learned_positions_are_not_filled_with_zeros(folder):
    refused("2 missing: .*embed_positions.weight", folder, position_embedding_type="learned")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "source.spm"])
def test_a_damaged_tokenizer(folder, tmp_path, name):
    pytest.importorskip("sentencepiece", reason="Marian's tokenizer needs sentencepiece")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
    (folder / name).write_text("[]")
    with pytest.raises(ValueError, match="the tokenizer in .* cannot be loaded"):
        convert_checkpoint(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_the_tokenizer_comes_along(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece", reason="Marian's tokenizer needs sentencepiece")
    folder = tmp_path / "marian"
    folder.mkdir()
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(WORDS * 20), model_prefix=str(folder / side), vocab_size=30,
            hard_vocab_limit=False, minloglevel=9,
        )  # fmt: skip  # one call
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
    pieces = sentencepiece.SentencePieceProcessor(str(folder / "source.spm"))
    tokens = ["</s>", "<unk>", *(pieces.id_to_piece(n) for n in range(3, len(pieces))), "<pad>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = MarianTokenizer(
        source_spm=str(folder / "source.spm"), target_spm=str(folder / "target.spm"),
        vocab=str(folder / "vocab.json"), source_lang="en", target_lang="de",
    )  # fmt: skip  # one call
    padding = vocabulary["<pad>"]
    original = marian(vocab_size=len(tokens), pad_token_id=padding, decoder_start_token_id=padding)
    original.generation_config.bad_words_ids = [[padding]]
    original.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    convert_checkpoint(folder, tmp_path / "ours")
    ours = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(ours).__name__ == "MarianTokenizer"
    source = tokenizer(WORDS, return_tensors="pt", padding=True)
    assert torch.equal(ours(WORDS, return_tensors="pt", padding=True)["input_ids"], source["input_ids"])
    assert ours(text_target=WORDS)["input_ids"] == tokenizer(text_target=WORDS)["input_ids"]
    converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    translations = ours.batch_decode(converted.generate(**source), skip_special_tokens=True)
    assert translations == tokenizer.batch_decode(original.generate(**source), skip_special_tokens=True)


def test_another_model_type_with_the_same_keys(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bart"}))
    with pytest.raises(ValueError, match="keys are those of marian, but its config.json says 'bart'"):
        convert_checkpoint(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
