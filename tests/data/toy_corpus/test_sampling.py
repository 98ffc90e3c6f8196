import re
from itertools import islice

import pytest

from hf_vanilla_transformer.data.toy_corpus.lexicon import ADJECTIVES, NOUNS, VERBS
from hf_vanilla_transformer.data.toy_corpus.sampling import generate_sentences


@pytest.fixture(scope="module")
def many():
    return list(islice(generate_sentences(seed=3), 20_000))


def test_one_source_has_one_target(many):
    targets = {}
    for sentence in many:
        assert targets.setdefault(sentence.source, sentence.target) == sentence.target
    assert len(targets) > 18_500


def test_sentences_are_well_formed(many):
    for sentence in many:
        assert re.fullmatch(r"[A-Z][A-Za-z' ]*[a-z'][.?!]", sentence.source), sentence
        assert re.fullmatch(r"(¿[^?!.]+\?|¡[^?!.]+!|[^¿¡?!.]+\.)", sentence.target), sentence
        assert sentence.target.lstrip("¿¡")[0].isupper(), sentence
        assert "  " not in sentence.source + sentence.target, sentence
        assert not re.search(r"\b(A|a|de) el\b|\b(la|una) (agua|aula|águila)\b|\by I", sentence.target), sentence
        assert not re.search(r"\b[Aa] [aeio]|\b[Aa]n [^aeiouAEIOUh]", sentence.source), sentence
        assert len(sentence.source.split()) <= 24


def test_vocabulary_is_a_few_hundred_words(many):
    source = {word for sentence in many for word in re.findall(r"\w+", sentence.source.lower())}
    target = {word for sentence in many for word in re.findall(r"\w+", sentence.target.lower())}
    assert 400 < len(source) < 800
    assert 800 < len(target) < 1_600
    lexicon = [word for entries in (NOUNS, ADJECTIVES, VERBS) for word in entries]
    assert 200 < len(lexicon) < 400


def test_first_sentences_are_the_same_everywhere():
    """Sampling draws on nothing that differs between machines, Python releases or processes."""
    sources = [sentence.source for sentence in islice(generate_sentences(seed=0), 3)]
    assert sources == [
        "The milk was hot.",
        "Is our doctor going to swim in the lake?",
        "On Friday an artist will open their box.",
    ]


def test_derivations_name_the_objects(many):
    """A transitive verb and a following noun make an "object" combination."""
    bought = [
        s for s in many if re.search(r"\b(buy|buys|bought) (the|a) \w+[ .?]", s.source) and " and " not in s.source
    ]
    assert len(bought) > 20
    assert all(any(c[:2] == ("object", "buy") for c in s.combinations) for s in bought)
