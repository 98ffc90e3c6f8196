import datasets
import pytest
from tokenizers import normalizers, processors

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data import encoding
from hf_vanilla_transformer.data.encoding import PairCounts, tokenize_pairs
from hf_vanilla_transformer.errors import DataError


def word_pairs(*lengths):
    sides = zip(*[(" ".join("w" * source), " ".join("w" * target)) for source, target in lengths], strict=True)
    return datasets.Dataset.from_dict(dict(zip(("source", "target"), map(list, sides), strict=True)))


LENGTHS = [(3, 3), (0, 2), (9, 3), (3, 9), (7, 7), (1, 3), (1, 8)]
LIMITS = {"max_source_length": 9, "max_target_length": 9, "max_length_ratio": 2.0}


def test_longer_pairs_are_dropped(words):
    # Lengths with </s>: 9 > 8 is cut off by the limits; (2, 9) exceeds 2 * 2 + 4.
    ids, counts = tokenize_pairs(word_pairs(*LENGTHS), words, **LIMITS)
    assert [(len(row["input_ids"]), len(row["labels"])) for row in ids] == [(4, 4), (8, 8), (2, 4)]
    assert ids[0] == {"input_ids": [4, 4, 4, 2], "labels": [4, 4, 4, 2]}
    assert ids.features["labels"].feature.dtype == "int32"
    assert counts == PairCounts(7, 3, empty=1, too_long=2, ratio=1, limits=(9, 9, 2.0))
    assert str(counts) == "read 7, kept 3: 1 empty, 2 longer than 9, 1 with length ratio above 2"


def test_truncate_keeps_the_end(words):
    ids, counts = tokenize_pairs(word_pairs((9, 3), (2, 2)), words, max_source_length=5, on_long="truncate")
    assert ids["input_ids"][:] == [[4, 4, 4, 4, 2], [4, 4, 2]]
    assert str(counts) == "read 2, kept 2: 1 truncated"


@pytest.mark.parametrize("on_long", ["drop", "truncate"])
def test_evaluation_keeps_every_pair(words, on_long):
    ids, counts = tokenize_pairs(word_pairs(*LENGTHS), words, **LIMITS, on_long=on_long, evaluation=True)
    assert len(ids) == counts.kept == 7
    assert max(map(len, ids["input_ids"])) == 9
    assert (counts.too_long, counts.truncated) == (0, 2)


def test_several_processes_agree(words):
    pairs = word_pairs(*LENGTHS * 3)
    one, two = (tokenize_pairs(pairs, words, **LIMITS, num_proc=n) for n in (None, 2))
    assert one[0].to_list() == two[0].to_list() and one[1] == two[1]


def test_stream_agrees(words, monkeypatch):
    pairs = word_pairs(*LENGTHS)
    expected, counts = tokenize_pairs(pairs, words, **LIMITS)
    messages = []
    monkeypatch.setattr(encoding.logger, "info", messages.append)
    stream, streamed = tokenize_pairs(pairs.to_iterable_dataset(), words, **LIMITS)
    assert streamed.read == 0
    for _ in range(2):
        assert list(stream) == expected.to_list()
        assert streamed == counts
    assert messages == [f"end of a pass over the stream: {counts}"] * 2


def test_an_unfinished_pass_over_a_stream_lowers_no_count(words):
    stream, counts = tokenize_pairs(word_pairs(*[(2, 2)] * 1500).to_iterable_dataset(), words)
    next(iter(stream))
    assert counts.kept == 1000
    list(stream)
    next(iter(stream))
    assert (counts.read, counts.kept) == (1500, 1500)


def test_faults(words):
    with pytest.raises(DataError, match=r"no pair is left \(read 1, kept 0: 1 empty\)"):
        tokenize_pairs(word_pairs((0, 1)), words)
    endless = train_tokenizer(["w"], algorithm="whitespace")
    endless.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    with pytest.raises(DataError, match="does not end its sequences with eos_token '</s>'"):
        tokenize_pairs(word_pairs((1, 1)), endless)
    with pytest.raises(DataError, match="`max_target_length` is 1; it must be at least 2"):
        tokenize_pairs(word_pairs((1, 1)), words, max_target_length=1)
    with pytest.raises(DataError, match="`max_length_ratio` is 0.5"):
        tokenize_pairs(word_pairs((1, 1)), words, max_length_ratio=0.5)


def test_a_text_without_tokens_is_empty():
    tokenizer = train_tokenizer(["w"], algorithm="whitespace")
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("x", "")
    pairs = datasets.Dataset.from_dict({"source": ["w", "x"], "target": ["w", "w"]})
    assert str(tokenize_pairs(pairs, tokenizer)[1]) == "read 2, kept 1: 1 empty"
