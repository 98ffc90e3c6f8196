"""The map as HTML: weights, text alternative and escaping."""

import re
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.inference.preparation import Preparation, encode
from hf_vanilla_transformer.inference.translator import Translator
from hf_vanilla_transformer.pretrained.teacher_forcing import cross_attentions
from hf_vanilla_transformer.serving.attention_map import (
    MAX_CELLS,
    MEAN,
    AttendedPair,
    aligning_heads,
    alignment_html,
    attend,
    map_html,
    readable_tokens,
    tokens_html,
)
from hf_vanilla_transformer.serving.engine import Choice
from tables import looped
from translators import build

pytestmark = pytest.mark.usefixtures("one_thread")

WEIGHTS = torch.tensor([[[[0.9, 0.1], [0.6, 0.4]], [[0.1, 0.9], [0.2, 0.8]]]])
PAIR = AttendedPair(["▁<b>", "</s>"], ["▁el", '"&'], WEIGHTS)


def served(model, tokenizer):
    """A served model without a thread."""
    return SimpleNamespace(model=model, tokenizer=tokenizer, preparation=Preparation(model, tokenizer))


def prepared(model, tokenizer, source):
    translator = Translator(model, tokenizer, Preparation(model, tokenizer, raw=True))
    ((sentence,),) = (text.sentences for text in translator.prepare([source]))
    return sentence


@pytest.mark.parametrize("kind", ["shared", "pair", "marian"])
def test_the_weights_are_those_of_the_model(kind):
    model, tokenizer = build(kind)
    choice = Choice(served(model, tokenizer), "en", "es")
    found = attend(choice, prepared(model, tokenizer, "the cat sleeps"), "el gato duerme")
    ids = (encode(tokenizer, ["the cat sleeps"])[0], tokenizer(text_target="el gato duerme")["input_ids"])
    (weights,) = cross_attentions(model, [ids])
    assert torch.equal(found.weights, weights)
    assert torch.equal(found.weights_of(1, 0), weights[1, 0])
    assert torch.equal(found.weights_of(1, MEAN), weights[1].mean(0))
    torch.testing.assert_close(found.weights_of(MEAN, MEAN), weights.flatten(0, 1).mean(0))
    assert found.source_tokens == ["the", "cat", "sleeps", "</s>"]
    assert found.target_tokens == ["el", "gato", "duerme", "</s>"]


def test_long_pairs_are_truncated_to_the_positions():
    model, tokenizer = build("learned", max_position_embeddings=8)
    choice = Choice(served(model, tokenizer), None, None)
    found = attend(choice, prepared(model, tokenizer, "a cat " * 20), "un gato " * 20)
    assert found.weights.shape[-2:] == (8, 8) == (len(found.target_tokens), len(found.source_tokens))


def test_cells_hold_percents_and_frame_the_strongest():
    html = map_html(PAIR, 0, 0)
    cells = re.findall(r'<td style="--w:(\d+)%" class="([^"]*)"( tabindex=0)?>(\d*)</td>', html)
    assert [(cell[0], cell[3]) for cell in cells] == [("90", "90"), ("10", "10"), ("60", "60"), ("40", "40")]
    assert ["vt-best" in cell[1] for cell in cells] == [True, False, True, False]
    # There is a single tab stop.
    assert [bool(cell[2]) for cell in cells] == [True, False, False, False]
    assert cells[0][1] == "vt-best vt-over-50 vt-over-72" and cells[2][1] == "vt-best vt-over-50"
    assert 'class=""' in map_html(PAIR, MEAN, MEAN)


def test_the_same_in_words():
    html = re.sub("</?(i|small)>", "", alignment_html(PAIR, 0, 1))
    assert "<li>▁el ← &lt;/s&gt; 90%</li><li>&quot;&amp; ← &lt;/s&gt; 80%</li>" in html


def test_tokens_are_text():
    for html in (map_html(PAIR, 0, 0), alignment_html(PAIR, 0, 0), tokens_html(PAIR)):
        assert "<b>" not in html and "</s>" not in html and "&lt;" in html


def test_without_weights_the_reason_is_given():
    pair = AttendedPair(["a"], ["b"], None)
    assert "CTranslate2, which does not expose attention weights" in map_html(pair, 0, 0)
    assert alignment_html(pair, 0, 0) == ""
    assert "<li>a</li>" in tokens_html(pair)


def test_a_map_beyond_what_a_browser_draws():
    tokens = ["a"] * (int(MAX_CELLS**0.5) + 1)
    pair = AttendedPair(tokens, tokens, torch.full((1, 1, len(tokens), len(tokens)), 0.5))
    assert "too large to draw" in map_html(pair, 0, 0) and "<td" not in map_html(pair, 0, 0)


@looped(
    ("heads", "layers", "expected"),
    [(None, 6, (4, MEAN)), (None, 1, (0, MEAN)), ([[2, 3]], 6, (2, 3)), ([[2, 3], [1, 0]], 6, (2, 3))],
)
def test_the_layer_and_head_to_show_first(heads, layers, expected):
    settings = GenerationConfig(alignment_heads=heads)
    model = SimpleNamespace(generation_config=settings, config=SimpleNamespace(decoder_layers=layers))
    assert aligning_heads(model) == expected


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_tokens_are_readable(algorithm):
    text = ["Señor, el niño corre por la calle añil", "el niño come"]
    tokenizer = train_tokenizer(text, vocab_size=300, algorithm=algorithm)
    tokens = readable_tokens(tokenizer, tokenizer("el niño come\n😀")["input_ids"])
    assert tokens[-1] == "</s>" and not any("\n" in token for token in tokens)
    assert "".join(tokens[:-1]).replace("▁", " ").strip().startswith("el niño come")
    assert "\ufffd" not in "".join(tokens)
