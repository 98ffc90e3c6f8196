"""Vocabularies become tokenizers that encode texts as the original programs do."""

import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import source_models
from conversions import HEADS, TOLERANCE, convert, converted_logits, greedy, normalized, refused
from hf_vanilla_transformer.conversion import convert_checkpoint
from tables import looped

WORDS = ("a", "cat", "dog", "sleeps", "runs", "the", "small", "big", "and")


@pytest.fixture
def annotated():
    return source_models.annotated().eval()


SOURCE = ["<s>", "</s>", "<blank>", "<unk>", *WORDS]
TARGET = ["<s>", "</s>", "<blank>", "<unk>", *(word.upper() for word in WORDS), "!", "?", ",", "."]


def test_a_text_is_translated_as_by_the_original(annotated, tmp_path):
    """Special tokens around the source, ids, start and end are those of the original program."""
    (tmp_path / "source.json").write_text(json.dumps({token: i for i, token in enumerate(SOURCE)}))
    (tmp_path / "target.txt").write_text("".join(f"{token}\n" for token in TARGET))
    convert_checkpoint(
        annotated.state_dict(), tmp_path / "out", None, tmp_path / "source.json", tmp_path / "target.txt", **HEADS
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    texts = ["the cat sleeps", "a zebra runs and runs"]
    ids = [[0, 9, 5, 7, 1], [0, 4, 3, 8, 12, 8, 1]]
    inputs = tokenizer(texts, text_target=["CAT RUNS", "DOG"], padding=True, return_tensors="pt")
    assert [row[: len(expected)] for row, expected in zip(inputs["input_ids"].tolist(), ids, strict=True)] == ids
    assert inputs["input_ids"][0, 5:].tolist() == [2, 2]
    assert inputs["labels"].tolist() == [[5, 8, 1], [6, 1, 2]]
    # Only whitespace separates words.
    assert tokenizer("cat</s>dog")["input_ids"] == [0, 3, 1]
    del inputs["labels"]
    got = tokenizer.batch_decode(model.generate(**inputs, num_beams=1, max_new_tokens=9), skip_special_tokens=True)
    for row, expected in zip(ids, got, strict=True):
        words = [TARGET[i] for i in greedy(annotated, torch.tensor([row]), 0, 1, 9) if i > 2]
        assert expected == " ".join(word for word in words if word != "<unk>") and expected


def test_special_tokens_at_other_ids_of_the_source():
    """Source ids and embeddings are renumbered together, so texts are encoded to the same states."""
    torch.manual_seed(3)
    model = source_models.phrases().eval()
    source = ["<SOS>", "i", "love", "you", "me", "see", "like", "pizza", "cake", "eat", "<EOS>", "<PAD>"]
    target = ["<SOS>", *(f"t{i}" for i in range(1, 14)), "<EOS>", "<PAD>"]
    conversion = convert(model.state_dict(), source_vocabulary=source, target_vocabulary=target, patched=True)
    assert conversion.config.vocab_size == 16 and any("renumbered" in note for note in conversion.notes)
    tokenizer, converted = conversion.tokenizer, conversion.model()
    inputs = tokenizer(["i love you", "you eat"], padding=True, return_tensors="pt")
    assert inputs["input_ids"][1].tolist() == [0, 3, 9, 14, 15]
    labels = torch.tensor([[0, 2, 3]] * 2)
    got = normalized(converted_logits(converted, inputs["input_ids"], labels, inputs["attention_mask"].bool()))
    for row, text in enumerate(("<SOS> i love you <EOS>", "<SOS> you eat <EOS>")):
        ids = torch.tensor([[source.index(token) for token in text.split()]])
        with torch.no_grad():
            expected = normalized(model(ids, labels[:1]))[0]
        torch.testing.assert_close(got[row], expected, atol=TOLERANCE, rtol=0)


def test_a_source_without_some_special_tokens():
    """StatQuest's source has no end token: it is added but never read."""
    model = source_models.statquest().eval()
    vocabularies = (["<SOS>", "lets", "to", "go"], {"<SOS>": 0, "ir": 1, "vamos": 2, "y": 3, "<EOS>": 4})
    conversion = convert_checkpoint(model.state_dict(), None, None, *vocabularies, dry_run=True)
    assert conversion.tokenizer("lets go")["input_ids"] == [0, 1, 3]
    assert conversion.tokenizer(text_target="vamos")["input_ids"] == [2, 4]
    assert len(conversion.tokenizer) == conversion.config.vocab_size == 5


def test_one_vocabulary_for_both_sides():
    model = source_models.annotated(source_vocabulary=17)
    shared = convert(model.state_dict(), source_vocabulary=TARGET, **HEADS).tokenizer
    assert shared("CAT")["input_ids"] == [0, 5, 1] and shared(text_target="CAT")["input_ids"] == [5, 1]


def test_a_file_of_the_tokenizers_library(tmp_path):
    model = source_models.scalar_norms()
    paths = []
    for side, count in (("en", 9), ("es", 13)):
        words = ["[UNK]", "[PAD]", "[SOS]", "[EOS]", *(f"{side}{i}" for i in range(count))]
        backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        paths.append(tmp_path / f"{side}.json")
        backend.save(str(paths[-1]))
    conversion = convert_checkpoint(model.state_dict(), None, None, *paths, dry_run=True, **HEADS)
    assert conversion.tokenizer("en1,en2")["input_ids"] == [2, 5, 0, 6, 3]
    assert conversion.tokenizer.decode([4, 5, 3], skip_special_tokens=True) == "es0 es1"
    with pytest.raises(ValueError, match="have other ids than in the target vocabulary; .* renumbered"):
        convert_checkpoint(
            model.state_dict(), None, None, paths[0], ["[EOS]", "[SOS]", "[PAD]", "x", *map(str, range(13))],
            dry_run=True, pad_token_id=2, bos_token_id=1, eos_token_id=0, **HEADS,
        )  # fmt: skip  # one argument a line would fill the screen


@looped(
    ("text", "name", "match"),
    [
        ("<s>\n</s>\n", "v.txt", "v.txt has 2 tokens, but the embeddings .vocab_size. have 13 rows"),
        ("\n".join("abcdefghijklmn"), "v.txt", "v.txt has 14 tokens, but the embeddings .vocab_size. have 13 rows"),
        ("<s>\n</s> 4\n", "v.txt", "v.txt, line 2: '</s> 4' is not one token"),
        ("<s>\n\n</s>\n", "v.txt", "v.txt, line 2: '' is not one token"),
        ("", "v.txt", "v.txt is empty"),
        ('{"a": 0, "b": 0}', "v.json", "'a' and 'b' both have id 0"),
        ('{"a": 0, "b": 2}', "v.json", "no token has id 1, though ids go up to 2"),
        ('{"a": "0"}', "v.json", "'a': '0' is not a token with an integer id"),
        ('["a", "b", "a"]', "v.json", "'a' has the ids 0 and 2"),
        ('{"a": 0', "v.json", "v.json: not JSON"),
        ('"a"', "v.json", "holds str"),
        ('{"model": {"type": "Unheard"}}', "v.json", "not a readable tokenizer file"),
    ],
)
def test_vocabularies_that_do_not_fit(annotated, tmp_path, text, name, match):
    (tmp_path / name).write_text(text)
    assert "`source_vocabulary`" in refused(match, annotated.state_dict(), source_vocabulary=tmp_path / name, **HEADS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_vocabulary": TARGET}, "`target_vocabulary` needs `source_vocabulary`"),
        (
            {"source_vocabulary": ["<s>", "[end]", *SOURCE[2:]], "target_vocabulary": TARGET},
            "no '</s>', and its id in the target vocabulary, 1, belongs to '.end.'",
        ),
        (
            {"source_vocabulary": SOURCE, "target_vocabulary": TARGET, "eos_token_id": 99},
            "has ids up to 16, so 99 cannot be the eos token",
        ),
    ],
    ids=["no source", "other end", "no end"],
)
def test_missing_special_tokens(annotated, options, message):
    refused(message, annotated.state_dict(), **options, **HEADS)


def test_a_setting_without_a_name_is_no_vocabulary(annotated):
    assert convert({"state_dict": annotated.state_dict(), "": 7}, **HEADS).tokenizer is None


def test_sequences_without_an_end(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("".join(f"{token}\n" for token in ["<pad>", "<s>", *map(str, range(11))]) + "\n")
    model = source_models.gamma_beta(13, 13)
    conversion = convert(model.state_dict(), source_vocabulary=file, **HEADS)
    assert conversion.config.eos_token_id is None and conversion.tokenizer.eos_token is None
    assert conversion.tokenizer("3 4")["input_ids"] == [1, 5, 6]


def test_rows_for_special_tokens_of_the_target_alone():
    """Without vocabularies too, both sides need the same ids."""
    state = source_models.annotated(source_vocabulary=5).state_dict()
    conversion = convert(state, eos_token_id=6, **HEADS)
    assert conversion.config.vocab_size == 7
    assert any("2 rows of zeros were added to the source embeddings" in note for note in conversion.notes)
    embeddings = conversion.weights["model.encoder.embed_tokens.weight"]
    assert torch.equal(embeddings[:5], state["src_embed.0.lut.weight"]) and not embeddings[5:].any()
