"""Pairs that filters leave out of a corpus, and pairs they keep."""

import random

import datasets
import pytest

from hf_vanilla_transformer.data.filtering import FILTERS, filter_pairs, parse_filters
from hf_vanilla_transformer.data.toy_corpus import load_toy_corpus
from hf_vanilla_transformer.errors import DataError
from tables import looped

GERMAN = "Ein Mann mit einem roten Hut geht langsam die Straße entlang."


@pytest.fixture(scope="module")
def corpus():
    """Distinct English-Spanish pairs."""
    pairs = load_toy_corpus()["train"].select(range(600))
    return [*dict.fromkeys(zip(pairs["source"], pairs["target"], strict=True))]


def dataset(pairs):
    sources, targets = zip(*pairs, strict=True)
    return datasets.Dataset.from_dict({"source": sources, "target": targets, "place": range(len(pairs))})


def left_out_of(pairs, filters, source_lang="en", target_lang="es", **options):
    """Return the places of the pairs left out, and the counts."""
    kept, counts = filter_pairs(dataset(pairs), filters, source_lang, target_lang, **options)
    assert kept["place"][:] == sorted(kept["place"])
    return sorted({*range(len(pairs))} - {*kept["place"]}), counts


class TestFilterPairs:
    def test_clean_pairs_are_kept(self, corpus):
        assert left_out_of(corpus, (*FILTERS,)) == ([], dict.fromkeys(FILTERS, 0))

    @looped(
        ("name", "spoil"),
        [
            ("equal", lambda source, target: (f"{source} ", source)),
            ("repeated", lambda source, target: ("The first.", "El primero.")),
            ("lengths", lambda source, target: (source, " ".join([target] * 8))),
            ("lengths", lambda source, target: (" ".join([source] * 8), target)),
            ("script", lambda source, target: (source, "Собака бежит.")),
            ("script", lambda source, target: ("Собака бежит.", target)),
            ("language", lambda source, target: (target, source)),
            ("language", lambda source, target: (source, GERMAN)),
            ("language", lambda source, target: (GERMAN, target)),
        ],
    )
    def test_each_kind_of_dirt(self, corpus, name, spoil):
        places = sorted(random.Random(0).sample(range(1, 600), 20))
        pairs = [spoil(*pair) if place in places else pair for place, pair in enumerate(corpus)]
        first = places[:1] if name == "repeated" else []
        found, counts = left_out_of(pairs, (name,))
        assert {*found} <= {*places} - {*first} and counts == {name: len(found)}
        # Some sentences are too short to identify their language.
        assert len(found) >= (14 if name == "language" else 20 - len(first))

    def test_a_pair_counts_once(self, corpus):
        pairs = [*corpus, *[("Собака бежит.", "Собака бежит.")] * 2]
        assert left_out_of(pairs, ("repeated", "equal", "script"))[1] == {"repeated": 1, "equal": 1, "script": 0}
        assert left_out_of(pairs, ("script",))[1] == {"script": 2}

    def test_pairs_with_an_empty_side_are_left_to_the_tokenization(self, corpus):
        pairs = [*corpus, ("", "Hola."), ("Hello.", " "), ("", "")]
        assert left_out_of(pairs, (*FILTERS,))[0] == []

    @looped("text", ["42", "😀", "⟦1⟧", "https://example.com/a?b=c", "Tom", "3 x 4 = 12", "\x00", "…"])
    def test_text_in_no_language_is_kept(self, corpus, text):
        assert left_out_of([*corpus, (text, f"{text}.")], (*FILTERS,))[0] == []

    @pytest.mark.parametrize("languages", [("eng_Latn", "spa_Latn"), ("en-US", "es_XX")])
    def test_codes_of_languages(self, corpus, languages):
        assert left_out_of([*corpus, ("A dog is running.", GERMAN)], ("language",), *languages)[0] == [len(corpus)]

    def test_no_filters(self, corpus):
        pairs = dataset(corpus)
        assert filter_pairs(pairs, (), None, None) == (pairs, {})

    def test_file_of_what_is_left_out(self, corpus, tmp_path):
        path = tmp_path / "left-out.tsv"
        pairs = [*corpus, ("a\tb", "a\tb"), ("Собака\nбежит.", "El perro\r\ncorre.")]
        for _ in range(2):
            left_out_of(pairs, ("equal", "script"), left_out=path)
        assert path.read_bytes().decode() == "equal\ta b\ta b\nscript\tСобака бежит.\tEl perro  corre.\n"

    def test_streams(self, corpus):
        pairs = dataset([*corpus, ("Same.", "Same."), ("A dog is running.", GERMAN)])
        kept, counts = filter_pairs(pairs.to_iterable_dataset(), ("equal", "language"), "en", "es")
        assert [row["place"] for row in kept] == [*range(len(corpus))] and counts == {}

    @pytest.mark.parametrize("options", [(("repeated",), "en", "es"), (("equal",), "en", "es", "left-out.tsv")])
    def test_what_streams_cannot_do(self, corpus, options):
        with pytest.raises(DataError, match="whole corpus"):
            filter_pairs(dataset(corpus).to_iterable_dataset(), *options)

    @pytest.mark.parametrize(("languages", "named"), [((None, "es"), "source_lang"), (("en", "smiles"), "smiles")])
    def test_unknown_languages(self, corpus, languages, named):
        with pytest.raises(DataError, match=named):
            filter_pairs(dataset(corpus), ("language",), *languages)
        assert left_out_of(corpus, ("equal",), *languages)[0] == []

    def test_without_the_library(self, corpus, no_language_detector):
        with pytest.raises(DataError, match="pip install py3langid"):
            filter_pairs(dataset(corpus), ("language",), "en", "es")


class TestParseFilters:
    def test_names(self):
        assert parse_filters(["language", "equal", "equal"], "entry 1") == ("equal", "language")
        assert parse_filters([], "entry 1") == ()

    def test_unknown_names(self):
        with pytest.raises(DataError, match="entry 1.*'lenghts'; did you mean lengths"):
            parse_filters(["equal", "lenghts"], "entry 1")
