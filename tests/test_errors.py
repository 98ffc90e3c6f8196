import pytest

from hf_vanilla_transformer.errors import did_you_mean, one_line, without_secrets


def test_one_line():
    assert one_line(ValueError("first\n  second ")) == "first second"
    assert one_line(MemoryError()) == "MemoryError"


@pytest.mark.parametrize(
    ("name", "hint"), [("bpee", "; did you mean bpe?"), ("nfkc", "; did you mean NFKC?"), ("quite else", "")]
)
def test_did_you_mean(name, hint):
    assert did_you_mean(name, ["bpe", "unigram", "NFKC"]) == hint


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--hub_token", "x", "--seed", "1"], ["--hub_token", "<secret>", "--seed", "1"]),
        (["--hub_token=x", "y"], ["--hub_token=<secret>", "y"]),
        (["--api-key", "--seed=1"], ["--api-key", "--seed=1"]),
        (["--hub_tok", "hidden", "--hub_tok=hidden"], ["--hub_tok", "<secret>", "--hub_tok=<secret>"]),
        (["--tokenizer", "x"], ["--tokenizer", "x"]),
    ],
)
def test_without_secrets(words, shown):
    assert without_secrets(words, secret="hidden") == shown
