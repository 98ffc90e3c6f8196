from hf_vanilla_transformer.data.toy_corpus.lexicon import ADJECTIVES, CITIES, DETERMINERS, NOUNS, PEOPLE, VERBS
from hf_vanilla_transformer.data.toy_corpus.sampling import LOCATIONS


def test_lexicon_names_only_kinds_that_some_noun_has():
    known = {kind for noun in NOUNS for kind in noun.kinds.split()} | {"city"}
    named = {kind for adjective in ADJECTIVES for kind in adjective.kinds.split()}
    named |= {kind for v in VERBS for kinds in (v.subjects, v.objects, v.places) for kind in kinds.split()}
    named |= {kind for contents, _, places in LOCATIONS for kind in (contents + " " + places).split()}
    assert named - known == set()


def test_lexicon_has_no_word_twice():
    for entries in (NOUNS, ADJECTIVES, VERBS, DETERMINERS, PEOPLE + CITIES):
        english = [entry.english for entry in entries]
        assert len(set(english)) == len(english)
