"""Tokenizers: any text round-trips exactly or with the documented loss, and never yields a special token."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from fuzzing import one_line, texts
from hf_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer
from hf_vanilla_transformer.model.tokenization_vanilla_transformer import SPECIAL_TOKENS
from parallel_text import ENGLISH, SPANISH

ALGORITHMS = ("bpe", "unigram", "word", "whitespace", "character")
NORMALIZATIONS = (None, "NFC", "NFD", "NFKC", "NFKD")
CORPORA = st.lists(texts("\r\0"), min_size=1, max_size=6)
SPECIAL_IDS = {0, 1, 2}
# Unicode's white space; Python's also includes U+001C to U+001F.
SYMBOL = re.compile(r"[^\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


def decoded(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True)


def expected(algorithm, text):
    """The text after a round trip, if training has seen all its characters."""
    if algorithm == "unigram":
        return text.replace("\uffff", "\u2581")
    if algorithm == "whitespace":
        symbols = SYMBOL.findall(text)
        return " ".join(f"< {each[1:]}" if each in SPECIAL_TOKENS.values() else each for each in symbols)
    return text


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_round_trips(algorithm, fuzz):
    @fuzz(f"{algorithm} tokenizers trained on any text, and round trips", 40, 1600)
    @given(CORPORA, texts(), st.sampled_from(NORMALIZATIONS), st.booleans())
    def check(corpus, other, normalization, lowercase):
        try:
            tokenizer = train_tokenizer(
                corpus, algorithm=algorithm, vocab_size=400, normalization=normalization, lowercase=lowercase
            )
        except ValueError as error:
            assert "the corpus is empty" in one_line(error) and not "".join(corpus).strip()
            return
        assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS.values())) == [0, 1, 2, 3]
        for text in (*corpus, other):
            ids = tokenizer(text)["input_ids"]
            assert ids[-1] == 2 and not SPECIAL_IDS & set(ids[:-1]), text
            assert max(ids) < len(tokenizer)
            back, whole = decoded(tokenizer, ids), expected(algorithm, normalized(text, normalization, lowercase))
            if 3 in ids or algorithm == "word":
                # Unseen characters are lost, and words are joined by rules, but no character is invented.
                assert set(back) <= {*whole, " "}, text
            else:
                assert back == whole, text


def normalized(text, normalization, lowercase):
    if normalization:
        text = unicodedata.normalize(normalization, text)
    return "".join(character.lower() for character in text) if lowercase else text


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_any_text_for_a_trained_tokenizer(algorithm, fuzz):
    # In byte-level BPE each byte is a token, so no character is unseen.
    tokenizer = train_tokenizer(ENGLISH + SPANISH, algorithm=algorithm, vocab_size=300)

    @fuzz(f"texts of all of Unicode for a {algorithm} tokenizer, alone and in a batch", 100, 3000)
    @given(st.lists(st.one_of(texts(max_size=20), st.text(max_size=20)), min_size=1, max_size=4))
    def check(batch):
        rows = tokenizer(batch)["input_ids"]
        assert rows == [tokenizer(text)["input_ids"] for text in batch]
        assert tokenizer(["x"] * len(batch), text_target=batch)["labels"] == rows
        for text, ids in zip(batch, rows, strict=True):
            assert ids[-1] == 2 and not SPECIAL_IDS & set(ids[:-1])
            if algorithm == "bpe":
                assert decoded(tokenizer, ids) == text


def test_saved_tokenizers_of_one_and_two_vocabularies(tmp_path, fuzz):
    @fuzz("tokenizers of one and two vocabularies, saved and loaded", 4, 120)
    @given(CORPORA, CORPORA, st.sampled_from(ALGORITHMS), st.sampled_from(ALGORITHMS), texts())
    def check(sources, targets, source_algorithm, target_algorithm, text):
        source, target = (
            train_tokenizer(["w", *corpus], algorithm=algorithm, vocab_size=400)
            for corpus, algorithm in ((sources, source_algorithm), (targets, target_algorithm))
        )
        pair = VanillaTransformerTokenizer.from_pair(source, target)
        for name, tokenizer in (("one", source), ("pair", pair)):
            tokenizer.save_pretrained(tmp_path / name)
            loaded = AutoTokenizer.from_pretrained(tmp_path / name)
            assert type(loaded) is type(tokenizer)
            batch = [*sources, *targets, text]
            saved, read = (dict(each(batch, text_target=batch)) for each in (tokenizer, loaded))
            assert saved == read
            assert loaded.batch_decode(read["labels"]) == tokenizer.batch_decode(saved["labels"])
        # Each side of a pair works like its original tokenizer.
        assert saved["input_ids"] == source(batch)["input_ids"] and saved["labels"] == target(batch)["input_ids"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_training_settings(algorithm, fuzz):
    @fuzz(f"vocabulary sizes, frequencies and lengths of {algorithm} tokenizers", 20, 400)
    @given(CORPORA, st.integers(-2, 400), st.integers(-1, 4), st.sampled_from([None, -1, 1, 2, 9]))
    def check(corpus, vocab_size, min_frequency, max_length):
        options = {"vocab_size": vocab_size, "min_frequency": min_frequency, "max_length": max_length}
        try:
            tokenizer = train_tokenizer(corpus, algorithm=algorithm, **options)
        except ValueError as error:
            message = one_line(error)
            named = any(re.search(rf"`{name}` is {value}\b", message) for name, value in options.items())
            assert named or "corpus is empty" in message
            return
        assert 4 < len(tokenizer) <= vocab_size
        for text in corpus:
            ids = tokenizer(text, truncation=max_length is not None)["input_ids"]
            assert ids[-1] == 2 and (max_length is None or len(ids) <= max_length)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_long_words_take_no_more_than_linear_time(algorithm, tried):
    # Each case takes milliseconds; in quadratic time it would take minutes.
    tokenizer = train_tokenizer(ENGLISH, algorithm=algorithm, vocab_size=300)
    for text in ("ab" * 100_000, "a " * 100_000, "漢" * 100_000, "<" * 100_000, " " * 100_000, "</s>" * 50_000):
        ids = tokenizer(text, verbose=False)["input_ids"]
        assert not SPECIAL_IDS & set(ids[:-1])
        if algorithm == "bpe":
            assert decoded(tokenizer, ids) == text
    tried(f"texts of 100,000 to 200,000 characters for a {algorithm} tokenizer", 6)
