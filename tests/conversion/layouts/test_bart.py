"""Conversion of BART, mBART, M2M100 and NLLB: the logits, translations and tokenizers of transformers' own classes."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartTokenizer,
    M2M100Tokenizer,
    MBart50Tokenizer,
    NllbTokenizer,
    T5Config,
    T5ForConditionalGeneration,
)

import transformers_models
from conversions import convert, refused
from hf_vanilla_transformer.conversion import convert_checkpoint
from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.ctranslate2 import CTranslate2Model
from hf_vanilla_transformer.inference.languages import set_languages
from hf_vanilla_transformer.inference.translation import translate
from tiny import close
from transformers_models import WORDS, assert_same_function, padded_batch

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = ("bart", "mbart", "m2m100")
NORMS = {"bart": ("post", False, True), "mbart": ("pre", True, True), "m2m100": ("pre", True, False)}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def saved(kind, folder, **changes):
    original = getattr(transformers_models, kind)(**changes)
    original.save_pretrained(folder)
    return original


@pytest.mark.parametrize(
    "changes",
    [{}, {"scale_embedding": True, "activation_function": "relu"}, {"scale_embedding": False}],
    ids=["defaults", "scaled", "unscaled"],
)
def test_same_logits_and_translations(kind, tmp_path, changes):
    original = saved(kind, tmp_path / "original", **changes)
    conversion = convert_checkpoint(tmp_path / "original", tmp_path / "ours")
    assert conversion.layout.name == kind
    converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert_same_function(original, converted, 1)
    config = converted.config
    assert (config.norm_position, config.final_layer_norm, config.embedding_layer_norm) == NORMS[kind]
    assert (config.position_embedding_type, config.max_position_embeddings) == ("learned", 64)
    assert config.share_encoder_decoder_embeddings and config.tie_word_embeddings
    settings = converted.generation_config
    assert (settings.forced_bos_token_id, settings.num_beams, settings.max_length) == (7, 4, 9)


def test_embeddings_that_are_not_tied(kind, tmp_path):
    original = saved(kind, tmp_path, tie_word_embeddings=False)
    converted = convert(tmp_path).model()
    assert_same_function(original, converted, 1, searches=({},))
    assert not converted.config.share_encoder_decoder_embeddings and not converted.config.tie_word_embeddings


def test_another_padding_id(kind, tmp_path):
    """BART's positions begin in row 2, those of M2M100 after the padding id."""
    original = saved(kind, tmp_path, pad_token_id=3)
    assert_same_function(original, convert(tmp_path).model(), 3, searches=({},))


def test_mbart_begins_with_the_language_that_generation_is_told(tmp_path):
    original = saved("mbart", tmp_path, decoder_start_token_id=None)
    assert_same_function(original, convert(tmp_path).model(), 1, searches=({}, {"decoder_start_token_id": 11}))


def test_a_pickle_of_an_early_release(kind, tmp_path):
    original = saved(kind, tmp_path)
    weights = original.state_dict()
    for stack in ("encoder", "decoder"):
        weights[f"model.{stack}.version"] = torch.tensor([3.0])
        if kind == "m2m100":
            weights[f"model.{stack}.embed_positions.weights"] = torch.zeros(66, 16)
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert_same_function(original, convert(tmp_path).model(), 1, searches=({},))


def test_a_file_of_the_stacks_alone(kind, tmp_path):
    """As transformers saves `BartModel`, and facebook/bart-large is stored."""
    original = saved(kind, tmp_path / "whole")
    original.model.save_pretrained(tmp_path / "stacks")
    names = {*load_file(tmp_path / "stacks" / "model.safetensors")}
    assert "shared.weight" in names and not any(name.startswith("model.") for name in names)
    expected = type(original).from_pretrained(tmp_path / "stacks").eval()
    converted = convert(tmp_path / "stacks").model()
    converted.generation_config = expected.generation_config = original.generation_config
    assert_same_function(expected, converted, 1, searches=({},))


@torch.no_grad()
def test_the_encoder_alone(kind, tmp_path):
    original = saved(kind, tmp_path)
    source, _ = padded_batch()
    expected = original.model.encoder(**source).last_hidden_state
    found = convert(tmp_path, encoder_only=True).model()(**source).last_hidden_state
    kept = source["attention_mask"].bool()
    close(found[kept], expected[kept])


def test_weights_without_their_config(kind, tmp_path):
    saved(kind, tmp_path)
    (tmp_path / "config.json").unlink()
    refused(f"keys are those of {kind}, but there is no config.json beside them", tmp_path)


def test_norms_of_another_model(tmp_path):
    """As of a BART with norms before the sub-layers, which early releases of transformers knew."""
    saved("bart", tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "model.encoder.layer_norm.weight": torch.ones(16)}, file, {"format": "pt"})
    refused(r"1 unexpected: model\.encoder\.layer_norm\.weight", tmp_path)


@pytest.mark.parametrize("how", ["folder", "state dict"])
def test_t5_is_refused_with_what_cannot_be_expressed(tmp_path, how):
    config = T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    source = tmp_path if how == "folder" else model.state_dict()
    refused(r"T5 model, with relative position biases .* \(RMS norms\) .*, which our", source)


def test_exports_to_ctranslate2(kind, tmp_path):
    pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")
    # CTranslate2 forces neither a first nor a last token.
    forced = {"forced_eos_token_id": None} if kind != "m2m100" else {}
    original = getattr(transformers_models, kind)(**forced)
    original.generation_config.update(forced_bos_token_id=None, forced_eos_token_id=None, early_stopping=True)
    original.save_pretrained(tmp_path / "original")
    convert_checkpoint(tmp_path / "original", tmp_path / "ours")
    exported = CTranslate2Model(export_model(tmp_path / "ours", "ctranslate2", tmp_path / "exported"))
    source, _ = padded_batch()
    for options in ({}, {"num_beams": 1}):
        expected, found = original.generate(**source, **options), exported.generate(**source, **options)
        assert torch.equal(found, expected[:, : found.shape[1]])


# Tokenizers

LETTERS = sorted(set("".join(WORDS)) - {" "})


def bart_tokenizer(folder):
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "Ġ", *LETTERS, "<mask>"]
    return BartTokenizer(vocab={token: n for n, token in enumerate(tokens)}, merges=[]), {}


def mbart_tokenizer(folder):
    words = sorted({word for text in WORDS for word in text.split()})
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((f"▁{word}", -2.0) for word in words)]
    return MBart50Tokenizer(vocab=pieces, src_lang="en_XX", tgt_lang="de_DE"), {"de_DE", "fr_XX"}


def nllb_tokenizer(folder):
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁", *LETTERS]
    vocabulary = {token: n for n, token in enumerate(tokens)}
    return NllbTokenizer(vocab=vocabulary, merges=[], src_lang="eng_Latn", tgt_lang="deu_Latn"), {"fra_Latn"}


def m2m100_tokenizer(folder):
    sentencepiece = pytest.importorskip("sentencepiece", reason="M2M100's tokenizer needs sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS * 20), model_prefix=str(folder / "spm"), vocab_size=30, hard_vocab_limit=False,
        minloglevel=9,
    )  # fmt: skip  # one call
    model = sentencepiece.SentencePieceProcessor(str(folder / "spm.model"))
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(model.id_to_piece(n) for n in range(3, len(model)))]
    (folder / "vocab.json").write_text(json.dumps({token: n for n, token in enumerate(tokens)}))
    files = (str(folder / "vocab.json"), str(folder / "spm.model"))
    return M2M100Tokenizer(*files, src_lang="en", tgt_lang="de"), {"fr"}


def speaking(kind, tokenizer):
    """Return a model for a tokenizer, which says some words."""
    # M2M100's 100 languages come after its words, and some made-up words at the end.
    size = len(tokenizer) + 108 * isinstance(tokenizer, M2M100Tokenizer)
    model = getattr(transformers_models, kind)(vocab_size=size)
    texts = [tokenizer.decode([number], skip_special_tokens=True) for number in range(size)]
    special = [[number] for number, text in enumerate(texts) if not text.strip()]
    model.generation_config.update(forced_bos_token_id=None, bad_words_ids=special, min_new_tokens=6)
    return model


@pytest.mark.parametrize(
    ("kind", "make"),
    [("bart", bart_tokenizer), ("mbart", mbart_tokenizer), ("m2m100", nllb_tokenizer), ("m2m100", m2m100_tokenizer)],
    ids=["BART", "mBART", "NLLB", "M2M100"],
)
def test_the_tokenizer_comes_along(kind, make, tmp_path):
    tokenizer, languages = make(tmp_path)
    original = speaking(kind, tokenizer)
    original.save_pretrained(tmp_path / "original")
    tokenizer.save_pretrained(tmp_path / "original")
    convert_checkpoint(tmp_path / "original", tmp_path / "ours")
    ours, converted = (each.from_pretrained(tmp_path / "ours") for each in (AutoTokenizer, AutoModelForSeq2SeqLM))
    assert type(ours) is type(tokenizer)
    source = tokenizer(WORDS, return_tensors="pt", padding=True)
    assert torch.equal(ours(WORDS, return_tensors="pt", padding=True)["input_ids"], source["input_ids"])
    assert ours(text_target=WORDS)["input_ids"] == tokenizer(text_target=WORDS)["input_ids"]
    for language in languages or [None]:
        first = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(language)} if language else {}
        if kind == "m2m100" and language == "fr":
            first = {"forced_bos_token_id": tokenizer.get_lang_id(language)}
        expected = tokenizer.batch_decode(original.generate(**source, **first), skip_special_tokens=True)
        ids = converted.generate(**source, **first)
        assert ours.batch_decode(ids, skip_special_tokens=True) == expected
        assert all(expected)


def test_nllb_translates_between_its_languages(tmp_path):
    tokenizer, _ = nllb_tokenizer(tmp_path)
    original = speaking("m2m100", tokenizer)
    for part in (original, tokenizer):
        part.save_pretrained(tmp_path / "original")
    conversion = convert_checkpoint(tmp_path / "original", tmp_path / "ours")
    texts = []
    for pair in ((conversion.model(), conversion.tokenizer), (original, tokenizer)):
        options = set_languages(pair[1], "eng_Latn", "fra_Latn")
        texts.append([row[0].text for row in translate(*pair, WORDS, max_length=9, **options)])
    assert texts[0] == texts[1] and len({*texts[0]}) > 1
