"""The way of a sentence through `Translator`."""

import asyncio
from collections import Counter

import pytest

from hf_vanilla_transformer.inference.preparation import Preparation
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.inference.translator import Translator
from hf_vanilla_transformer.serving.engine import ServedModel
from translators import ENGLISH, build, hypotheses_of

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [*ENGLISH, " ", "See https://example.org. we see a cat"]


@pytest.fixture(scope="module")
def pair():
    return build("shared")


@pytest.fixture
def counts(pair, monkeypatch):
    """Texts that were prepared and that the tokenizer read as sources."""
    counts, (_, tokenizer) = Counter(), pair
    prepare, tokenize = Preparation.sentence, type(tokenizer).__call__

    def sentence(self, source, *args):
        counts["prepared", source] += 1
        return prepare(self, source, *args)

    def call(self, text=None, *args, **options):
        counts.update(("tokenized", source) for source in ([text] if isinstance(text, str) else text or ()))
        return tokenize(self, text, *args, **options)

    monkeypatch.setattr(Preparation, "sentence", sentence)
    monkeypatch.setattr(type(tokenizer), "__call__", call)
    return counts


def test_the_three_steps_are_those_of_translate(pair):
    options = {"num_beams": 3, "num_hypotheses": 2, "with_scores": True, "split_sentences": "always"}
    translator = Translator(*pair, **options)
    texts = translator.prepare(TEXTS)
    assert len(texts[-1].sentences) == 2
    results = []
    for text in texts:
        rows = translator.restore(text.sentences, translator.decode(text.sentences))
        results.append(translator.join(text, rows))
    expected = translate(*pair, TEXTS, **options)
    assert [[row.text for row in rows] for rows in results] == [[row.text for row in rows] for rows in expected]
    scores = [row.score for rows in results for row in rows]
    assert scores == pytest.approx([row.score for rows in expected for row in rows], abs=1e-5)


def test_a_sentence_is_prepared_and_tokenized_once(pair, counts):
    translate(*pair, ENGLISH, num_beams=2)
    expected = Counter((step, source) for step in ("prepared", "tokenized") for source in ENGLISH)
    assert counts == expected


def test_a_served_sentence_is_prepared_and_tokenized_once(pair, counts):
    served = ServedModel("a", *pair)
    translated = asyncio.run(served.translate(ENGLISH))
    served.close()
    assert counts == Counter((step, source) for step in ("prepared", "tokenized") for source in ENGLISH)
    counts.clear()
    assert hypotheses_of(translated) == translate(*pair, ENGLISH)


def test_translators_may_share_a_preparation(pair):
    preparation = Preparation(*pair, raw=True)
    greedy, beams = (Translator(*pair, preparation, num_beams=number) for number in (1, 3))
    assert greedy.prepare(ENGLISH) == beams.prepare(ENGLISH)
    with pytest.raises(ValueError, match="`raw` does not split sentences"):
        Translator(*pair, preparation, split_sentences="always")
