"""Inspection of parallel text: odd pairs are found, others are not."""

import random

import datasets
import pytest

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data import inspection
from hf_vanilla_transformer.data.inspection import count_characters, inspect_pairs, oddities, unfamiliar_characters
from hf_vanilla_transformer.data.toy_corpus import load_toy_corpus
from tables import looped


@pytest.fixture(scope="module")
def corpus():
    """English-Spanish pairs."""
    return [(pair["source"], pair["target"]) for pair in load_toy_corpus()["train"].select(range(1200))]


def listed(pairs):
    """Return the kinds that `inspect` shows."""
    located = [("", {"source": source, "target": target}) for source, target in pairs]
    return {finding.kind for finding in inspect_pairs(lambda: located)[1]}


def found_in(pairs, tokenizer=None):
    """Return the kinds that make the corpus odd."""
    dataset = datasets.Dataset.from_list([{"source": source, "target": target} for source, target in pairs])
    kinds = {finding.kind for finding in oddities(dataset, tokenizer)}
    assert {finding.kind for finding in oddities(dataset.to_iterable_dataset(), tokenizer)} == kinds
    return kinds


def molecules(number=300):
    generator = random.Random(0)
    return ["".join(generator.choices("CCCNO=()1c", k=generator.randint(8, 40))) for _ in range(number)]


WORDS = ["cat", "laugh", "through", "knee", "phone", "cough", "write"]
FORMULAS = [(f"{a} + {b} * {a}", f"{a * b + a}") for a in range(20) for b in range(20)]
CODE = [(f"return the sum of {a} and {a}_b in a list", f"def f({a}, {a}_b): return [{a} + {a}_b]") for a in WORDS * 40]


class TestTextThatIsMeant:
    @pytest.mark.slow
    def test_translations(self, corpus):
        assert found_in(corpus) == set() == found_in([pair[::-1] for pair in corpus])

    @looped(
        "pairs",
        [
            [(" ".join(word), word.upper()) for word in dict.fromkeys(molecules())],
            [(one, other) for one, other in zip(molecules(), molecules()[1:], strict=False)],
            [(" ".join(one), " ".join(other)) for one, other in zip(molecules(), molecules()[1:], strict=False)],
            FORMULAS,
            [(str(number), str(2 * number)) for number in range(1, 300)],
            [("Tom", "Tomás"), ("Mary", "María"), ("Ann", "Ana")],
        ],
    )
    def test_sequences_that_are_no_language(self, pairs):
        assert found_in(pairs) == set()

    def test_code(self):
        assert found_in(dict.fromkeys(CODE)) == set()

    def test_one_language_on_both_sides(self, corpus):
        """As in corrections: no text is in the wrong language."""
        sources = [source for source, _ in corpus]
        assert found_in([(source.lower(), source) for source in sources]) == set()
        assert found_in([(source, f"{source} Indeed.") for source in sources]) == set()


class TestOddText:
    @pytest.mark.parametrize(
        ("kind", "change"),
        [
            ("equal", lambda source, target, i: (source, source if i % 4 else target)),
            ("target_script", lambda source, target, i: (source, target if i % 10 else "собака бежит")),
            (
                "source_script",
                lambda source, target, i: (source if i % 10 else "狗在公园里跑来跑去，然后回家", target),
            ),
            ("lengths", lambda source, target, i: (source, target if i % 10 else " ".join([target] * 9))),
            ("returns", lambda source, target, i: (source if i % 50 else source.replace(" ", "\r"), target)),
            ("repeated", lambda source, target, i: ("a cat", "un gato") if i % 3 else (source, target)),
        ],
    )
    def test_kinds(self, corpus, kind, change):
        assert found_in([change(*pair, i) for i, pair in enumerate(corpus)]) == {kind}

    @pytest.mark.parametrize("every", [4, 2, 10], ids=["a quarter", "half", "a tenth"])
    @pytest.mark.parametrize("number", [200, 1200])
    def test_targets_in_the_language_of_the_sources(self, corpus, number, every):
        """Targets that are other sources, in a small corpus too."""
        kept = (lambda i: i % 4 == 0) if every == 4 else lambda i: i % every != 0
        part = corpus[:number]
        pairs = [(s, t if kept(i) else part[(i + 97) % number][0]) for i, (s, t) in enumerate(part)]
        assert found_in(pairs) == {"target_language"}
        assert found_in([pair[::-1] for pair in pairs]) == {"source_language"}

    def test_targets_with_words_of_both_languages(self, corpus):
        """Every tenth target also has a source, its own or another."""
        other = [pair if i % 10 else (pair[0], f"{pair[1]} {corpus[i - 1][0]}") for i, pair in enumerate(corpus)]
        assert found_in(other) == {"target_mixed"} and found_in([pair[::-1] for pair in other]) == {"source_mixed"}

    def test_targets_of_half_translated_sources(self, corpus):
        def half(text):
            return " ".join(text.split()[: len(text.split()) // 2])

        pairs = [(source, f"{half(source)} {half(target)}") for source, target in corpus]
        some = [*pairs[::2], *corpus[1::2]]
        assert "copied" in listed(some)
        # Related languages share that many words.
        assert "copied" not in found_in(some)
        # If most targets are like that, it is the task.
        assert "copied" not in listed(pairs)

    def test_one_pair(self):
        assert found_in([("a cat", "un gato")] * 200) == {"repeated"}

    @pytest.mark.parametrize("algorithm", ["word", "whitespace", "character"])
    def test_tokens_that_are_unknown(self, corpus, algorithm):
        english = [source for source, _ in corpus]
        tokenizer = train_tokenizer(english, algorithm=algorithm)
        assert found_in(corpus, train_tokenizer(english, algorithm="bpe")) == set()
        shifted = [(s, "".join(chr(ord(letter) + 0x400) for letter in t)) for s, t in corpus]
        assert found_in(shifted, tokenizer) == {"target_unknown"}
        assert found_in([pair[::-1] for pair in shifted], tokenizer) == {"source_unknown"}


def test_characters_that_training_hardly_has():
    def counted(*pairs):
        return count_characters([("", {"source": source, "target": target}) for source, target in pairs])

    training = counted(*[("a'b", "â")] * 1000, *[("a’b", "ẽ")] * 10)
    found = unfamiliar_characters(counted(*[("a’b", "e\u0303")] * 5, *[("x", "y")] * 4), training)
    assert found == [("source", "’", 5, 10), ("target", "e", 5, 0), ("target", "\u0303", 5, 0)]
    assert unfamiliar_characters(counted(*[("a'b", "â")] * 100), training) == []


class TestInspectPairs:
    def test_places_and_counts(self):
        rows = [("a dog", "ein Hund"), ("same", "same"), ("a dog", "ein Hund"), ("", "x"), ("same", "same ")]
        read = [(f"line {n}", {"source": s, "target": t}) for n, (s, t) in enumerate(rows, start=1)]
        number, findings = inspect_pairs(lambda: read, examples=1)
        assert number == 5
        assert [(each.kind, each.number, [place for place, _ in each.examples]) for each in findings] == [
            ("empty", 1, ["line 4"]),
            ("equal", 2, ["line 2"]),
            ("repeated", 2, ["line 3"]),
        ]
        assert str(findings[1]) == "2 of 5 pairs (40.0%) have the same text on both sides"

    def test_nothing(self):
        assert inspect_pairs(lambda: iter(())) == (0, [])
        assert oddities(datasets.Dataset.from_dict({"source": [], "target": []})) == []

    @pytest.mark.parametrize("number", [7, 8, 9, 100])
    def test_a_sample_is_spread(self, corpus, monkeypatch, number):
        """It covers the end of the corpus, the only odd part here."""
        monkeypatch.setattr(inspection, "SAMPLE", 8)
        items = inspection._thinned(range(number), 8)
        assert min(number, 4) <= len(items) <= 8 and items[0] == 0 and items[-1] >= number * 0.75
        steps = {after - before for before, after in zip(items, items[1:], strict=False)}
        assert len(steps) == 1
        rows = [{"source": s, "target": s if i > 600 else t} for i, (s, t) in enumerate(corpus)]
        assert [each.kind for each in oddities(datasets.Dataset.from_list(rows))] == ["equal"]
