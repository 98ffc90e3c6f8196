import pytest

from hf_vanilla_transformer import train_tokenizer


@pytest.fixture(scope="module")
def words():
    """A tokenizer with one token per word, so that lengths can be counted by eye."""
    return train_tokenizer(["w"], algorithm="whitespace")
