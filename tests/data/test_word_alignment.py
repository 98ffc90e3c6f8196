import random
from pathlib import Path

from hf_vanilla_transformer.data.alignments import alignment_error_rate, parse_pharaoh
from hf_vanilla_transformer.data.toy_corpus import load_toy_corpus
from hf_vanilla_transformer.data.word_alignment import align_corpus

SOURCES = ["the red house", "the house", "a red car", "The car!", "a house", "red", ""]
TARGETS = ["la casa roja", "la casa", "un coche rojo", "¡El coche!", "una casa", "rojo", "nada"]


def test_words_that_always_translate_each_other_are_found_in_any_order():
    rng = random.Random(0)
    sources, targets, expected = [], [], []
    for _ in range(200):
        words = rng.sample(range(30), rng.randint(1, 7))
        order = rng.sample(range(len(words)), len(words))
        # Case and punctuation do not matter.
        sources.append(" ".join(f"S{word}" if rng.random() < 0.5 else f"s{word}," for word in words))
        targets.append(" ".join(f"t{words[i]}" for i in order))
        expected.append([(i, j) for j, i in enumerate(order)])
    assert align_corpus(sources, targets) == expected
    # A word without a counterpart stays unaligned.
    assert align_corpus([*sources, "s1 s2"], [*targets, "t1"])[-1] == [(0, 0)]


def test_the_same_pairs_give_the_same_links_in_both_directions():
    forward, backward = align_corpus(SOURCES, TARGETS), align_corpus(TARGETS, SOURCES)
    assert [{link[::-1] for link in pair} for pair in forward] == [set(pair) for pair in backward]
    assert align_corpus(SOURCES, TARGETS) == forward
    assert align_corpus([], []) == [] and align_corpus([" "], ["a"]) == [[]]


def test_pairs_beyond_the_sample_are_aligned_too(monkeypatch):
    monkeypatch.setattr("hf_vanilla_transformer.data.word_alignment.CHUNK", 2)
    assert align_corpus(SOURCES, TARGETS) == align_corpus(SOURCES, TARGETS)
    monkeypatch.setattr("hf_vanilla_transformer.data.word_alignment.MAX_ESTIMATION_PAIRS", 4)
    links = align_corpus(SOURCES, TARGETS)
    assert len(links) == len(SOURCES) and (1, 1) in links[1]


def test_very_long_sides_have_no_links():
    """Tables of 10^10 candidates would take hundreds of gigabytes."""
    long = "the house " * 50_000
    links = align_corpus([*SOURCES, long, "the house"], [*TARGETS, "la casa", long])
    assert links[-2:] == [[], []] and links[1]


def test_links_of_the_built_in_corpus():
    """Against hand-checked sentences."""
    lines = Path(__file__).with_name("toy_alignments.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    sources, targets, sure, possible = (list(column) for column in zip(*rows, strict=True))
    train = load_toy_corpus(3_000)["train"]
    links = align_corpus([*sources, *train["source"]], [*targets, *train["target"]])[: len(rows)]
    assert alignment_error_rate(links, map(parse_pharaoh, sure), map(parse_pharaoh, possible)) < 0.05
