"""Tokenizers of transformers' models are converted along: same ids, texts and translations."""

import json

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartTokenizer,
    FSMTTokenizer,
    M2M100Tokenizer,
    MarianTokenizer,
    MBart50Tokenizer,
    NllbTokenizer,
)

import transformers_models
from hf_vanilla_transformer.conversion import convert_checkpoint, load_converted
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.pretrained.languages import set_languages
from transformers_models import WORDS

LETTERS = sorted(set("".join(WORDS)) - {" "})
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def numbered(tokens):
    return {token: number for number, token in enumerate(tokens)}


def pieces(folder, name):
    """Train a SentencePiece model, and return its file and its pieces without special ones."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="the tokenizer needs sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS * 20), model_prefix=str(folder / name), vocab_size=30, hard_vocab_limit=False,
        minloglevel=9,
    )  # fmt: skip  # one call
    model = sentencepiece.SentencePieceProcessor(str(folder / f"{name}.model"))
    return str(folder / f"{name}.model"), [model.id_to_piece(n) for n in range(3, len(model))]


def written(folder, name, tokens):
    (folder / name).write_text(json.dumps(numbered(tokens)))
    return str(folder / name)


def marian(folder):
    (source, found), (target, _) = (pieces(folder, side) for side in ("source", "target"))
    vocabulary = written(folder, "vocab.json", ["</s>", "<unk>", *found, "<pad>"])
    return MarianTokenizer(source, target, vocabulary, source_lang="en", target_lang="de")


def fsmt(folder):
    pytest.importorskip("sacremoses", reason="FSMT's tokenizer needs sacremoses")
    tokens = [*SPECIAL, *LETTERS, *(f"{letter}</w>" for letter in LETTERS), "<madeup>"]
    files = [written(folder, name, tokens) for name in ("vocab-src.json", "vocab-tgt.json")]
    (folder / "merges.txt").write_text("#version: 0.2\nd o 10\n")
    return FSMTTokenizer(["en", "de"], *files, str(folder / "merges.txt"))


def bart(folder):
    return BartTokenizer(vocab=numbered([*SPECIAL, "Ġ", *LETTERS, "<mask>"]), merges=[])


def mbart(folder):
    words = sorted({word for text in WORDS for word in text.split()})
    found = [*((token, 0.0) for token in SPECIAL), *((f"▁{word}", -2.0) for word in words)]
    return MBart50Tokenizer(vocab=found, src_lang="en_XX", tgt_lang="de_DE")


def nllb(folder):
    vocabulary = numbered([*SPECIAL, "▁", *LETTERS])
    return NllbTokenizer(vocab=vocabulary, merges=[], src_lang="eng_Latn", tgt_lang="deu_Latn")


def m2m100(folder):
    file, found = pieces(folder, "spm")
    return M2M100Tokenizer(written(folder, "vocab.json", [*SPECIAL, *found]), file, src_lang="en", tgt_lang="de")


def speaking(kind, tokenizer):
    """Return a model for a tokenizer that generates words, not only special tokens."""
    # M2M100 has 100 languages after its words, then some made-up words.
    size = len(tokenizer) + 108 * isinstance(tokenizer, M2M100Tokenizer)
    padding = tokenizer.pad_token_id
    if kind == "fsmt":
        return transformers_models.fsmt(src_vocab_size=size, tgt_vocab_size=size)
    starts = {"pad_token_id": padding, "decoder_start_token_id": padding} if kind == "marian" else {}
    model = getattr(transformers_models, kind)(vocab_size=size, **starts)
    texts = [tokenizer.decode([number], skip_special_tokens=True) for number in range(size)]
    special = [[number] for number, text in enumerate(texts) if not text.strip()]
    model.generation_config.update(forced_bos_token_id=None, bad_words_ids=special, min_new_tokens=6)
    return model


@pytest.mark.parametrize(
    ("kind", "make", "languages"),
    [
        ("marian", marian, []),
        ("fsmt", fsmt, []),
        ("bart", bart, []),
        ("mbart", mbart, ["de_DE", "fr_XX"]),
        ("m2m100", nllb, ["fra_Latn"]),
        ("m2m100", m2m100, ["__fr__"]),
    ],
    ids=["Marian", "FSMT", "BART", "mBART", "NLLB", "M2M100"],
)
def test_the_tokenizer_comes_along(kind, make, languages, tmp_path):
    tokenizer = make(tmp_path)
    original = speaking(kind, tokenizer)
    for part in (original, tokenizer):
        part.save_pretrained(tmp_path / "original")
    convert_checkpoint(tmp_path / "original", tmp_path / "ours")
    ours, converted = (each.from_pretrained(tmp_path / "ours") for each in (AutoTokenizer, AutoModelForSeq2SeqLM))
    assert type(ours) is type(tokenizer)
    source = tokenizer(WORDS, return_tensors="pt", padding=True, return_token_type_ids=False)
    assert torch.equal(ours(WORDS, return_tensors="pt", padding=True)["input_ids"], source["input_ids"])
    assert ours(text_target=WORDS)["input_ids"] == tokenizer(text_target=WORDS)["input_ids"]
    # FSMT's own search is wrong with its cache in transformers 5.17.
    reference = converted if kind == "fsmt" else original
    for language in languages or [None]:
        first = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(language)} if language else {}
        expected = tokenizer.batch_decode(reference.generate(**source, **first), skip_special_tokens=True)
        ids = converted.generate(**source, **first)
        assert ours.batch_decode(ids, skip_special_tokens=True) == expected
        assert all(expected)


def test_nllb_translates_between_its_languages(tmp_path):
    tokenizer = nllb(tmp_path)
    original = speaking("m2m100", tokenizer)
    for part in (original, tokenizer):
        part.save_pretrained(tmp_path / "original")
    texts = []
    for pair in (load_converted(tmp_path / "original"), (original, tokenizer)):
        options = set_languages(pair[1], "eng_Latn", "fra_Latn")
        texts.append([row[0].text for row in translate(*pair, WORDS, max_length=9, **options)])
    assert texts[0] == texts[1] and len({*texts[0]}) > 1
