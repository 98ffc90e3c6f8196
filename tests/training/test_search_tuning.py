"""Tuning of the search: only what improves the translations of validation pairs significantly is changed."""

from types import SimpleNamespace
from unittest.mock import Mock

import datasets
import pytest
from transformers import GenerationConfig

from hf_vanilla_transformer.data.corpora import Part
from hf_vanilla_transformer.pretrained.text_facts import set_facts
from hf_vanilla_transformer.text.facts import TextFacts
from hf_vanilla_transformer.text.notation import PROSE, WORDS, Notation
from hf_vanilla_transformer.training import search_tuning, text_splits
from hf_vanilla_transformer.training.search_tuning import SEARCHES, tune_search, why_not_tuned
from hf_vanilla_transformer.training.text_splits import TextSplits

PAIRS = 60
SOURCES = [f"source number {i}" for i in range(PAIRS)]
REFERENCES = [f"the {i} small dogs of village {i + 3} sleep under a tall tree" for i in range(PAIRS)]
SHORT = [" ".join(text.split()[:6]) for text in REFERENCES]
LOOPS = [f"{text} a tree a tree a tree a tree a tree a tree" for text in SHORT]


class Searches:
    """Translations by the settings of a search; `tried` lists the settings."""

    def __init__(self, outputs, **settings):
        self.model = SimpleNamespace(generation_config=GenerationConfig(**{"num_beams": 4, **settings}))
        set_facts(self.model.generation_config, TextFacts(repeats=2))
        self.outputs, self.tried = outputs, []

    def __call__(self, **options):
        self.tried.append(options)
        settings = {name: getattr(self.model.generation_config, name) for name in SEARCHES} | options
        return self.outputs(**settings)

    def tune(self, given=()):
        tuned = tune_search(self.model, SOURCES, REFERENCES, self, given=given)
        for name, setting in tuned.items():
            assert getattr(self.model.generation_config, name) == setting.value
        return {name: setting.value for name, setting in tuned.items()}, tuned


def test_a_longer_translation_that_is_better():
    def outputs(length_penalty, **others):
        return REFERENCES if length_penalty == 2.0 else SHORT

    search = Searches(outputs)
    values, tuned = search.tune()
    assert values == {"length_penalty": 2.0}
    setting = tuned["length_penalty"]
    assert setting.after == {"bleu": pytest.approx(100), "chrf": pytest.approx(100)}
    assert setting.before["chrf"] < 70 and max(setting.p_values.values()) < 0.01 and setting.pairs == PAIRS
    # Nothing loops.
    assert search.tried == [{}, *({"length_penalty": value} for value in SEARCHES["length_penalty"])]


def test_loops_are_stopped_before_lengths_are_tried():
    def outputs(no_repeat_ngram_size, length_penalty):
        if not no_repeat_ngram_size:
            return LOOPS
        return REFERENCES if length_penalty == 1.5 else SHORT

    assert Searches(outputs).tune()[0] == {"no_repeat_ngram_size": 4, "length_penalty": 1.5}


@pytest.mark.parametrize(
    "better",
    [
        pytest.param(SHORT, id="nothing"),
        pytest.param([*REFERENCES[:1], *SHORT[1:]], id="a single pair"),
        pytest.param([" ".join(reversed(text.split())) for text in REFERENCES], id="chrF alone"),
    ],
)
def test_nothing_changes_without_proof(better):
    search = Searches(lambda length_penalty, **others: SHORT if length_penalty in (None, 1.0) else better)
    assert search.tune() == ({}, {}) and search.model.generation_config.length_penalty in (None, 1.0)


def test_a_small_p_value_may_be_chance_among_several(monkeypatch):
    """The more values are tried, the more likely one is better by chance."""
    search = Searches(lambda length_penalty, **others: REFERENCES if length_penalty == 2.0 else SHORT)
    for p_value, is_tuned in ((0.0016, True), (0.0017, False)):
        found = dict.fromkeys(map(str, SEARCHES["length_penalty"]), {"bleu": p_value, "chrf": 1.0})
        monkeypatch.setattr(search_tuning, "paired_bootstrap", Mock(return_value=found))
        search.model.generation_config.length_penalty = 1.0
        assert bool(search.tune()[0]) is is_tuned


@pytest.mark.parametrize(
    ("pairs", "tokens", "parts", "can_be_tuned"),
    [
        (50, PROSE, [("en", "de")], True),
        (50, PROSE, [("en", "de")] * 2, True),
        (49, PROSE, [("en", "de")], False),
        (0, PROSE, [("en", "de")], False),
        (50, WORDS, [("en", "de")], False),
        (50, PROSE, [("en", "de"), ("de", "en")], False),
    ],
)
def test_what_can_be_tuned(monkeypatch, pairs, tokens, parts, can_be_tuned):
    monkeypatch.setattr(text_splits, "find_notation", lambda texts: Notation(tokens, ""))
    dataset = datasets.Dataset.from_dict({"source": SOURCES, "target": REFERENCES})
    text = TextSplits(dataset, dataset.take(pairs) if pairs else None, parts=tuple(Part(*pair) for pair in parts))
    assert (why_not_tuned(text) is None) is can_be_tuned


def test_a_penalty_without_effect_or_set_by_the_user_stays():
    for beams, given in ((1, ()), (4, {"length_penalty"})):
        search = Searches(lambda **options: SHORT, num_beams=beams)
        assert search.tune(given=given)[0] == {} and search.tried == [{}]
