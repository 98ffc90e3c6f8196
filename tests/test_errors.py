from itertools import product

import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_vanilla_transformer.data.encoding import tokenize_pairs
from hf_vanilla_transformer.errors import (
    MAX_MESSAGE,
    as_value_errors,
    did_you_mean,
    one_line,
    redacted,
    short_errors,
    shorten,
    unknown_words,
    without_secrets,
)
from hf_vanilla_transformer.inference.alignment import word_alignments
from hf_vanilla_transformer.inference.scoring import score
from hf_vanilla_transformer.inference.translation import translate
from tables import looped
from tiny import tiny_model


def test_one_line():
    assert one_line(ValueError("first\n  second ")) == "first second"
    assert one_line(MemoryError()) == "MemoryError"
    assert one_line(ValueError("A sentence. And another.")) == "A sentence. And another"
    assert one_line(ValueError("and so on ...")) == "and so on ..."
    long = one_line(ValueError(f"first {'x' * 100_000}; remedy"))
    assert long.startswith("first xxx") and " [...] xxx" in long and long.endswith("; remedy")
    assert len(long) < MAX_MESSAGE + 10


def test_shorten():
    assert shorten("x" * 30, 30) == "x" * 30
    assert shorten("a" * 20 + "b" * 11, 30) == "a" * 20 + " [...] " + "b" * 10


def test_errors_of_any_kind_become_value_errors():
    class Panic(BaseException):
        pass

    for error in (TypeError("two\nlines"), Panic("two\nlines")):
        with pytest.raises(ValueError, match="^file: two lines$") as caught, as_value_errors("file: "):
            raise error
        assert caught.value.__cause__ is error
    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error), as_value_errors("file: "):
            raise error


def test_short_errors():
    with pytest.raises(ValueError, match=r"^x+ \[...\] x+$"), short_errors():
        raise ValueError("x" * 100_000)
    error = ValueError("short")
    with pytest.raises(ValueError) as caught, short_errors():
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("name", "hint"), [("bpee", "; did you mean bpe?"), ("nfkc", "; did you mean NFKC?"), ("quite else", "")]
)
def test_did_you_mean(name, hint):
    assert did_you_mean(name, ["bpe", "unigram", "NFKC"]) == hint


@looped(
    ("words", "shown"),
    [
        (["--hub_token", "x", "--seed", "1"], ["--hub_token", "<secret>", "--seed", "1"]),
        (["--hub_token=x", "y"], ["--hub_token=<secret>", "y"]),
        (["--api-key", "--seed=1"], ["--api-key", "--seed=1"]),
        (["--hub_tok", "hidden", "--hub_tok=hidden"], ["--hub_tok", "<secret>", "--hub_tok=<secret>"]),
        (["--tokenizer", "x"], ["--tokenizer", "x"]),
        (["--deepspeed", '{"api_key": "x", "a": 1}'], ["--deepspeed", '{"api_key": "<secret>", "a": 1}']),
    ],
)
def test_without_secrets(words, shown):
    assert without_secrets(words, secret="hidden") == shown


@looped(
    ("text", "shown"),
    [
        ("Bearer given-token: no", "Bearer <secret>: no"),
        ("of-the-environment", "<secret>"),
        ("hf_AbcdefghijklmnopQRST1234 is wrong", "<secret> is wrong"),
        ("https://me:pass@word@host/a and ssh://git@host/b", "https://<secret>@host/a and ssh://<secret>@host/b"),
        ("https://host/a?x=1&api_key=abc&y=2", "https://host/a?x=1&<secret>&y=2"),
        (
            "hf_vanilla_transformer, hf://data/a@b: short, ?tokens=3",
            "hf_vanilla_transformer, hf://data/a@b: short, ?tokens=3",
        ),
    ],
)
def test_redacted(text, shown, monkeypatch):
    monkeypatch.setenv("SOME_PASSWORD", "of-the-environment")
    monkeypatch.setenv("SOME_TOKEN", "short")
    assert redacted(text, "given-token", None) == shown


def tokenize(tokenizer, sources, targets):
    return tokenize_pairs(Dataset.from_dict({"source": sources, "target": targets}), tokenizer)


class TestUnknownWords:
    """Without an unknown token, the tokenizers library raises a bare Exception."""

    @pytest.fixture
    def closed(self):
        vocabulary = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", "a", "cat"])}
        backend = Tokenizer(models.WordLevel(vocabulary))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
        names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
        return PreTrainedTokenizerFast(tokenizer_object=backend, **names)

    @looped(
        ("use", "side"),
        [
            (lambda model, tokenizer, sources, _: translate(model, tokenizer, sources), 0),
            *product((score, word_alignments, lambda _, *pairs: tokenize(*pairs)), (0, 1)),
        ],
    )
    def test_the_text_is_named(self, closed, use, side):
        pairs = [["a cat", "a"], ["cat", "a a"]]
        use(tiny_model(), closed, *pairs)
        pairs[side][1] = "a big cat"
        with pytest.raises(ValueError, match="^'a big cat' has a word outside the vocabulary, .*`unk_token`"):
            use(tiny_model(), closed, *pairs)

    def test_other_errors_are_left_alone(self):
        with pytest.raises(KeyError), unknown_words(None, []):
            raise KeyError("no text was tokenized")
