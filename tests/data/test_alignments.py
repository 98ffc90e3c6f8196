import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_vanilla_transformer.data.alignments import (
    alignment_error_rate,
    check_fast,
    format_pharaoh,
    parse_pharaoh,
    read_alignments,
    words_and_ids,
)
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.errors import DataError
from tables import looped

TEXT = "Él  come 🍎s, ¿no?"


def test_pharaoh_text_and_back():
    links = [(0, 0), (1, 2), (10, 1)]
    assert format_pharaoh(links) == "0-0 1-2 10-1"
    assert parse_pharaoh("0-0 1-2 10-1") == links
    assert format_pharaoh([]) == "" and parse_pharaoh("") == []
    assert parse_pharaoh(" 0-0\t1-2 ") == [(0, 0), (1, 2)]


@looped("text", ["0", "0-", "-0", "0-0-0", "a-b", "0:1", "1.0-2", "٣-٣", "0--1", "9999999999-0"])
def test_what_is_no_link(text):
    with pytest.raises(DataError, match="^dev.align, line 7: .* is not a link; write pairs of source and target word"):
        parse_pharaoh(f"0-0 {text}", "dev.align, line 7")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("0-0\n0-0 x\n", "line 2: 'x' is not a link"),
        (
            "0-0\n2-0\n",
            "line 2: 2-0 links source word 2, but the source has 2 words, counted from 0; align the same text",
        ),
        ("0-3\n0-0\n", "line 1: 0-3 links target word 3, but the target has 1 words"),
        ("0-0\n", "has 1 lines for 2 pairs; line n must align pair n"),
        ("0-0\n0-0\n\n", "has more lines than 2 pairs; line n must align pair n"),
    ],
)
def test_files_that_do_not_fit_their_pairs(tmp_path, lines, message):
    path = tmp_path / "train.align"
    path.write_text(lines)
    with pytest.raises(DataError) as caught:
        list(read_alignments(str(path), [("Yes.", "Sí."), ("We eat", "Comemos")]))
    assert str(path) in str(caught.value) and message in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_of_alignments(tmp_path):
    path = tmp_path / "train.align"
    path.write_text("0-0\n\n")
    assert list(read_alignments(str(path), [("Yes.", "Sí."), ("We eat", "Comemos")])) == [[(0, 0)], []]


def test_error_rate():
    # Three links found: two sure, one wrong. One sure link is missing.
    assert alignment_error_rate([[(0, 0), (1, 1), (2, 0)]], [[(0, 0), (1, 1), (2, 2)]], [[]]) == 1 - (2 + 2) / (3 + 3)
    # A possible link is correct but optional.
    assert alignment_error_rate([[(0, 0), (1, 0)]], [[(0, 0)]], [[(1, 0)]]) == 0
    assert alignment_error_rate([[(0, 0)]], [[(0, 0)]], [[(1, 0), (2, 0)]]) == 0
    # Over all pairs, not averaged by pair.
    assert alignment_error_rate([[(0, 0)], []], [[(0, 0)], [(0, 0), (1, 1)]], [[], []]) == 1 - 2 / 4
    assert alignment_error_rate([[]], [[(0, 0)]], [[]]) == 1
    with pytest.raises(ValueError, match="without links the error rate is undefined"):
        alignment_error_rate([[]], [[]], [[]])


def byte_tokenizer():
    """Return a tokenizer of single bytes, without merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_every_byte_of_a_character_belongs_to_its_word():
    tokenizer = byte_tokenizer()
    ((words, ids),) = words_and_ids(tokenizer, [TEXT], is_target=False)
    assert len(ids) == len(TEXT.encode())
    expected = [[number] * len(word.encode()) for number, word in enumerate(TEXT.split())]
    assert [number for numbers in words for number in numbers] == sum(expected, [])
    # Spaces belong to no word.
    assert words.count([]) == TEXT.count(" ")


@looped("algorithm", ["bpe", "unigram", "word", "whitespace", "character"])
def test_tokens_of_words_by_any_algorithm(algorithm):
    texts = [TEXT, "no come nada", "Él no come s, no"] * 3
    tokenizer = train_tokenizer(texts, algorithm=algorithm, vocab_size=300, min_frequency=1)
    for text, (words, ids) in zip(texts, words_and_ids(tokenizer, texts, is_target=True), strict=True):
        assert len(words) == len(ids) and words[-1] == []
        assert ids == tokenizer(text_target=text)["input_ids"]
        numbers = [number for own in words for number in own]
        assert numbers == sorted(numbers) and set(numbers) == set(range(len(text.split())))
        assert all(len(own) <= 1 for own in words)


def test_truncated_sentences_keep_the_words_of_their_tokens():
    tokenizer = train_tokenizer(["a b c d"], algorithm="whitespace", vocab_size=20, min_frequency=1)
    (first, second) = words_and_ids(tokenizer, ["a b c d", "a"], is_target=False, max_length=3)
    assert first[0] == [[0], [1], []] and len(first[1]) == 3 and second[0] == [[0], []]
    assert list(words_and_ids(tokenizer, [], is_target=False)) == []


def test_slow_tokenizers_are_refused():
    class Slow:
        is_fast = False

    with pytest.raises(DataError, match="which the slow tokenizer Slow lacks; convert the model"):
        check_fast(Slow())
