"""Conversion of FSMT models: the logits, translations and tokenizers of transformers' own class."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, FSMTTokenizer

from conversions import convert, refused
from hf_vanilla_transformer.conversion import convert_checkpoint
from transformers_models import WORDS, assert_same_function, fsmt

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("changes", [{}, {"tgt_vocab_size": 50, "tie_word_embeddings": True}], ids=["apart", "tied"])
def test_same_logits_and_translations(tmp_path, changes):
    original = fsmt(**changes)
    original.save_pretrained(tmp_path / "fsmt")
    conversion = convert_checkpoint(tmp_path / "fsmt", tmp_path / "ours")
    assert conversion.layout.name == "fsmt"
    converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert_same_function(original, converted, 1)
    assert converted.generation_config.num_beams == 5
    assert converted.config.max_position_embeddings == 64


def test_positions_that_are_not_stored_are_computed(tmp_path):
    original = fsmt()
    original.save_pretrained(tmp_path / "fsmt")
    file = tmp_path / "fsmt" / "model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if "embed_positions" not in k}, file, {"format": "pt"})
    assert_same_function(original, convert(tmp_path / "fsmt").model(), 1, searches=({},))


def test_positions_need_the_padding_id(tmp_path):
    fsmt().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "pad_token_id": None}))
    refused("`pad_token_id` is None in config.json; set its id", tmp_path)


def test_the_tokenizer_comes_along(tmp_path):
    pytest.importorskip("sacremoses", reason="FSMT's tokenizer needs sacremoses")
    letters = sorted(set("".join(WORDS)) - {" "})
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *letters, *(f"{letter}</w>" for letter in letters), "<madeup>"]
    for name in ("vocab-src.json", "vocab-tgt.json"):
        (tmp_path / name).write_text(json.dumps({token: n for n, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nd o 10\n")
    tokenizer = FSMTTokenizer(
        langs=["en", "de"], src_vocab_file=str(tmp_path / "vocab-src.json"),
        tgt_vocab_file=str(tmp_path / "vocab-tgt.json"), merges_file=str(tmp_path / "merges.txt"),
    )  # fmt: skip  # one call
    original = fsmt(src_vocab_size=len(tokens), tgt_vocab_size=len(tokens))
    original.save_pretrained(tmp_path / "fsmt")
    tokenizer.save_pretrained(tmp_path / "fsmt")
    convert_checkpoint(tmp_path / "fsmt", tmp_path / "ours")
    ours = AutoTokenizer.from_pretrained(tmp_path / "ours")
    source = tokenizer(WORDS, return_tensors="pt", padding=True, return_token_type_ids=False)
    assert torch.equal(ours(WORDS, return_tensors="pt", padding=True)["input_ids"], source["input_ids"])
    converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    # Both decode one search: that of FSMT itself is wrong over its cache in transformers 5.17.
    ids = converted.generate(**source)
    assert ours.batch_decode(ids, skip_special_tokens=True) == tokenizer.batch_decode(ids, skip_special_tokens=True)
