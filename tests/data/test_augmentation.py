"""Noise in training text: different batches in each epoch, and pairs that remain translations."""

import pickle
import re
from collections import Counter

import datasets
import pytest

from hf_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer
from hf_vanilla_transformer.data.augmentation import (
    DEFAULT_SHARES,
    KINDS,
    Noise,
    has_placeholders,
    parse_shares,
    protect_pairs,
)
from hf_vanilla_transformer.data.encoding import LengthLimits, tokenize_pairs
from hf_vanilla_transformer.data.reading import ALIGNMENT_COLUMN
from hf_vanilla_transformer.data.resampling import Resampling
from hf_vanilla_transformer.text.protection import PLACEHOLDER, PLACEHOLDERS
from tables import looped

WORDS = "Ant Bee Cat Dog Eel Fox Gnu Hen".split()
# The target has the words in reverse order.
PAIRS = [(" ".join(WORDS[:n]) + ".", " ".join(WORDS[:n][::-1]) + ".") for n in range(2, 9)]


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = train_tokenizer([text for pair in PAIRS for text in pair] * 2, vocab_size=300)
    tokenizer.add_tokens([*PLACEHOLDERS, "<added>"])
    return tokenizer


def columns(pairs, links=None):
    texts = {"source": [source for source, _ in pairs], "target": [target for _, target in pairs]}
    return texts if links is None else {**texts, ALIGNMENT_COLUMN: links}


def epochs(tokenizer, kind, texts, number=30, share=1.0):
    """Yield pairs over many epochs with one kind of noise, including links if there are any."""
    noise = Noise({kind: share}, 0, tokenizer)
    for epoch in range(number):
        yield from zip(*noise(texts, epoch).values(), strict=True)


@looped(
    ("text", "shares"),
    [
        ("none", {}),
        ("default", DEFAULT_SHARES),
        ("items=0.2, typos=1", {"items": 0.2, "typos": 1}),
        ("lower=0", {}),
        ("default, typos=0.1,copies=0.5", {**DEFAULT_SHARES, "typos": 0.1, "copies": 0.5}),
    ],
)
def test_shares(text, shares):
    assert parse_shares(text) == shares


@looped(
    ("text", "message"),
    [
        ("item=0.2", "unknown kind of noise 'item'; did you mean items"),
        ("", "unknown kind of noise ''"),
        ("defaults", "unknown kind of noise 'defaults'"),
        ("items=1.5", "the share in items=1.5 must be a number from 0 to 1"),
        ("items", "the share in items= must be a number"),
        ("items=nan", "the share in items=nan must be a number"),
        ("items=0.1,items=0.2", "sets items twice"),
        ("none,items=0.1", "unknown kind of noise 'none'"),
    ],
)
def test_shares_that_are_none(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_shares(text)


def test_noise_follows_from_seed_epoch_and_texts(tokenizer):
    """Regardless of earlier batches and of the process."""
    noise, batches = Noise(dict.fromkeys(KINDS, 0.5), 3, tokenizer), [columns(PAIRS[i:]) for i in range(5)]
    first, second = ([noise(texts, epoch) for texts in batches] for epoch in range(2))
    assert first != second != batches
    other = pickle.loads(pickle.dumps(noise))
    assert [other(texts, 0) for texts in reversed(batches)][::-1] == first
    assert [Noise(dict.fromkeys(KINDS, 0.5), 4, tokenizer)(texts, 0) for texts in batches] != first
    assert Noise({}, 3, tokenizer)(batches[0], 0) == batches[0]


def test_shares_are_those_of_the_batches(tokenizer):
    """A batch has a kind of noise in all of its pairs or in none, so that lengths stay similar."""
    noise, texts = Noise({"lower": 0.1}, 0, tokenizer), columns([("The Fox.", "Der Fuchs."), ("A Hen.", "Ein Huhn.")])
    lower = Counter(sum(map(str.islower, noise(texts, epoch)["source"])) for epoch in range(2000))
    assert lower.keys() == {0, 2} and 140 < lower[2] < 260


def test_a_copied_target_is_its_own_source(tokenizer):
    links = [[number for i in range(n) for number in (i, n - 1 - i)] for n in range(2, 9)]
    for source, target, flat in epochs(tokenizer, "copies", columns(PAIRS, links), 3):
        assert source == target and source in dict(map(reversed, PAIRS))
        assert flat == [i for i in range(len(target.split())) for _ in range(2)]
    noise = Noise({"copies": 1.0, "lower": 1.0}, 0, tokenizer)(columns([("The Fox.", "Der Fuchs.")]), 0)
    assert noise == columns([("der fuchs.", "Der Fuchs.")])
    pairs = columns([("⟦1⟧ Ant ⟦2⟧", "⟦2⟧ Bee ⟦1⟧")], [[]])
    assert [*epochs(tokenizer, "copies", pairs, 1)] == [("⟦1⟧ Bee ⟦2⟧", "⟦1⟧ Bee ⟦2⟧", [0, 0, 1, 1, 2, 2])]


def test_items_stand_at_places_that_belong_together(tokenizer):
    links = [[number for i in range(n) for number in (i, n - 1 - i)] for n in range(2, 9)]
    forms = Counter()
    for source, target, flat in epochs(tokenizer, "items", columns(PAIRS, links), 100):
        found = PLACEHOLDER.findall(source)
        assert found == [str(i + 1) for i in range(len(found))] and 1 <= len(found) <= 3
        assert sorted(found) == sorted(PLACEHOLDER.findall(target))
        assert re.findall(r"\w+", PLACEHOLDER.sub("", source)) == re.findall(r"\w+", PLACEHOLDER.sub("", target))[::-1]
        words = source.split(), target.split()
        for s, t in zip(flat[::2], flat[1::2], strict=True):
            one, other = (re.sub(r"[^\w⟦⟧]", "", side[i]) for side, i in zip(words, (s, t), strict=True))
            assert one == other
        assert len(flat) == 2 * len(words[0])
        forms.update(re.sub(r"\d", "", piece) for text in (source, target) for piece in re.findall(r"\S*⟧\S*", text))
    assert forms.keys() == {"⟦⟧", "⟦⟧.", "(⟦⟧)", "(⟦⟧).", '"⟦⟧"', '"⟦⟧".', "⟦⟧,", "⟦⟧:"}


def test_items_without_links_stand_in_proportion(tokenizer):
    pair = (" ".join("abcdefghij"), " ".join("ABCDEFGHIJ"))
    for source, target in epochs(tokenizer, "items", columns([pair]), 100):
        assert source.upper() == target


def test_items_that_are_there_are_numbered_with_the_new_ones(tokenizer):
    pair = ("⟦1⟧ Ant ⟦2⟧ Bee.", "⟦2⟧ Bee ⟦1⟧ Ant.")
    orders = set()
    for source, target in epochs(tokenizer, "items", columns([pair]), 50):
        numbers = PLACEHOLDER.findall(source)
        assert numbers == [*map(str, range(1, len(numbers) + 1))] and sorted(PLACEHOLDER.findall(target)) == numbers
        one, other = re.search(r"(\S+) Ant", source)[1], re.search(r"(\S+) Ant", target)[1]
        orders.add(one == other)
    assert True in orders
    full = " ".join(PLACEHOLDERS)
    assert {*epochs(tokenizer, "items", columns([(full, full)]))} == {(full, full)}


def test_lower_and_typos_change_the_source_alone_and_no_token_that_stays_whole(tokenizer):
    pair = ("<added>The ⟦1⟧ Children Are Playing.", "Die ⟦1⟧ Kinder Spielen.")
    assert {*epochs(tokenizer, "lower", columns([pair]))} == {("<added>the ⟦1⟧ children are playing.", pair[1])}
    edits = set()
    for source, target in epochs(tokenizer, "typos", columns([pair]), 200):
        assert target == pair[1] and source.startswith("<added>") and len(source.split()) == 5 and " ⟦1⟧ " in source
        edits.add(len(source) - len(pair[0]))
    assert edits == {-2, -1, 0, 1, 2}


def test_punctuation_changes_alike(tokenizer):
    found = {*epochs(tokenizer, "punctuation", columns([("Ant bee.", "Bee ant.")]))}
    assert found == {(f"Ant bee{mark}", f"Bee ant{mark}") for mark in ("", "!", "?", "...", "!!!")}
    wide = {target for _, target in epochs(tokenizer, "punctuation", columns([("Ant.", "蚁。")]))}
    assert wide == {"蚁", "蚁！", "蚁？", "蚁………", "蚁！！！"}
    for pair in (("Ant bee", "Bee ant."), ("Why?", "¿Por qué?"), ("...", "...")):
        assert {*epochs(tokenizer, "punctuation", columns([pair]))} == {pair}
    apart = columns([("ant .", "Ant .")], [[0, 0, 1, 1]])
    assert ("ant", "Ant", (0, 0)) in {(s, t, tuple(links)) for s, t, links in epochs(tokenizer, "punctuation", apart)}


def test_placeholders_of_a_tokenizer(tokenizer):
    plain = train_tokenizer(["a b"], algorithm="word")
    assert has_placeholders(tokenizer) and not has_placeholders(plain)
    pair = VanillaTransformerTokenizer.from_pair(plain, plain)
    pair.add_tokens([*PLACEHOLDERS])
    assert has_placeholders(pair)
    text = "(⟦1⟧) Ant ⟦2⟧."
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_items_of_both_sides_become_placeholders(tokenizer):
    pairs = [("See www.a.de at 9:30.", "Um 9:30 siehe www.a.de."), ("Ant 5", "Bee 6")]
    protected = protect_pairs(columns(pairs))
    assert protected["source"] == ["See ⟦1⟧ at ⟦2⟧.", "Ant 5"] and protected["target"][0] == "Um ⟦2⟧ siehe ⟦1⟧."
    data = datasets.Dataset.from_dict(columns(pairs))
    for evaluation in (False, True):
        rows, _ = tokenize_pairs(data, tokenizer, evaluation=evaluation, keep_text=True)
        assert rows["source"][:] == protected["source"]
        assert tokenizer.decode(rows["labels"][0], skip_special_tokens=True) == protected["target"][0]
    plain, _ = tokenize_pairs(data, train_tokenizer([text for pair in pairs for text in pair]), keep_text=True)
    assert plain["source"][:] == [source for source, _ in pairs]


def rows_of(tokenizer, pairs):
    return [
        {"source": source, "target": target, **tokenizer(source, text_target=target, return_attention_mask=False)}
        for source, target in pairs
    ]


def test_only_pairs_that_noise_changes_are_tokenized_anew(tokenizer):
    pairs = [*PAIRS, *((source.lower(), target) for source, target in PAIRS)]
    rows, noise = rows_of(tokenizer, pairs), Noise({"lower": 1}, 0, tokenizer)
    texts, resample = noise(columns(pairs), 4), Resampling(tokenizer, noise)
    resample.set_epoch(4)
    for row, own, source, target in zip(resample(rows), rows, texts["source"], texts["target"], strict=True):
        assert row["input_ids"] == tokenizer(source)["input_ids"] and row["labels"] == tokenizer(target)["input_ids"]
        assert (row["input_ids"] is own["input_ids"]) == (source == own["source"])
    assert [*zip(texts["source"], texts["target"], strict=True)] == pairs[len(PAIRS) :] * 2


def test_pairs_that_would_be_too_long_or_unknown_keep_their_tokens(tokenizer):
    rows = rows_of(tokenizer, PAIRS)
    longest = max(len(row["input_ids"]) for row in rows)
    found = Resampling(tokenizer, Noise({"items": 1}, 0, tokenizer), LengthLimits(longest, longest))(rows)
    kept = [row["input_ids"] == own["input_ids"] for row, own in zip(found, rows, strict=True)]
    assert 0 < sum(kept) < len(kept) and max(len(row["input_ids"]) for row in found) <= longest
    words = train_tokenizer([text for pair in PAIRS for text in pair], algorithm="whitespace")
    found = Resampling(words, Noise({"punctuation": 1}, 0, words))(rows_of(words, PAIRS))
    assert not any(words.unk_token_id in row["labels"] for row in found)


def test_each_worker_of_a_stream_has_its_own_epoch(tokenizer):
    resampling = Resampling(tokenizer, Noise({"items": 0.5}, 0, tokenizer))
    pairs = [(f"Ant {i}", f"Bee {i}") for i in range(1500)]
    data = datasets.Dataset.from_dict(columns(pairs)).to_iterable_dataset()

    def stream(epoch):
        found, _ = tokenize_pairs(data, tokenizer, resample=resampling.resample)
        found.set_epoch(epoch)
        return iter(found)

    whole, later = [*stream(0)], [*stream(1)]
    rows, other = stream(0), stream(1)
    assert [row for pair in zip(rows, other, strict=True) for row in pair][::2] == whole != later
    assert all(row.keys() == {"input_ids", "labels"} for row in whole)
