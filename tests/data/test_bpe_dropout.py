"""BPE-dropout: other tokens of the same text in training, the tokenizer as it was."""

import pickle

import pytest

from hf_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer
from hf_vanilla_transformer.data.bpe_dropout import BpeDropout, with_bpe_dropout

TEXTS = ["the children are playing in the garden", "the garden is playing the children"] * 4


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, vocab_size=300)


def rows_of(tokenizer, number=20):
    text = TEXTS[0]
    ids = tokenizer(text)["input_ids"]
    return [{"source": text, "target": text, "input_ids": ids, "labels": ids}] * number


def test_every_sample_is_another_split_of_the_same_text(tokenizer):
    rows = rows_of(tokenizer)
    sampled = BpeDropout(list, tokenizer, 0.5)(rows)
    for name in ("input_ids", "labels"):
        splits = [row[name] for row in sampled]
        assert len({tuple(ids) for ids in splits}) > 10
        assert min(map(len, splits)) > len(rows[0][name])
        assert {tokenizer.decode(ids, skip_special_tokens=True) for ids in splits} == {TEXTS[0]}
        assert all(ids[-1] == tokenizer.eos_token_id for ids in splits)


def test_the_tokenizer_itself_leaves_out_no_merge(tokenizer):
    before = tokenizer(TEXTS)["input_ids"]
    dropping = with_bpe_dropout(tokenizer, 0.9)
    assert dropping(TEXTS)["input_ids"] != before
    assert tokenizer(TEXTS)["input_ids"] == before
    assert '"dropout":null' in tokenizer.backend_tokenizer.to_str()


def test_with_no_dropout_the_tokens_are_the_same(tokenizer):
    rows = rows_of(tokenizer, 2)
    assert BpeDropout(list, tokenizer, 0.0)(rows) == [
        {name: row[name] for name in ("input_ids", "labels")} for row in rows
    ]


def test_a_vocabulary_for_each_side(tokenizer):
    pair = VanillaTransformerTokenizer.from_pair(tokenizer, train_tokenizer(TEXTS, vocab_size=280))
    text = TEXTS[0]
    own = pair(text, text_target=text)
    rows = [{"source": text, "target": text, "input_ids": own["input_ids"], "labels": own["labels"]}] * 9
    sampled = BpeDropout(list, pair, 0.5)(rows)
    assert len({tuple(row["input_ids"]) for row in sampled}) > 4 < len({tuple(row["labels"]) for row in sampled})
    assert {pair.decode(row["labels"], skip_special_tokens=True) for row in sampled} == {text}
    assert pair(text, text_target=text) == own


def test_a_side_that_would_be_too_long_keeps_its_tokens(tokenizer):
    rows = rows_of(tokenizer)
    length = len(rows[0]["input_ids"])
    assert all(row["input_ids"] == rows[0]["input_ids"] for row in BpeDropout(list, tokenizer, 0.9, length)(rows))


def test_a_pair_that_keeps_its_tokens_has_the_columns_of_the_others(tokenizer):
    rows = [dict(row, length=5, weight=1.0) for row in rows_of(tokenizer)]
    assert all(set(row) == {"input_ids", "labels"} for row in BpeDropout(list, tokenizer, 0.9, 1)(rows))
    truncated = [dict(rows[0], source=None, target=None), *rows[1:]]
    columns = {frozenset(row) for row in BpeDropout(list, tokenizer, 0.5)(truncated)}
    assert len(columns) == 1 and {"input_ids", "labels"} <= next(iter(columns))


def test_it_can_be_sent_to_another_process(tokenizer):
    sample = pickle.loads(pickle.dumps(BpeDropout(list, tokenizer, 0.5)))
    assert len({tuple(row["labels"]) for row in sample(rows_of(tokenizer))}) > 10


@pytest.mark.parametrize("algorithm", ["unigram", "word"])
def test_other_vocabularies_have_no_merges(algorithm):
    other = train_tokenizer(TEXTS, algorithm=algorithm, vocab_size=100)
    with pytest.raises(ValueError, match="`bpe_dropout` needs a vocabulary of BPE, not (Unigram|WordLevel); leave it"):
        with_bpe_dropout(other, 0.1)
