from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from hf_vanilla_transformer.data.alignments import alignment_error_rate
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.export.formats import export_model
from hf_vanilla_transformer.inference.alignment import (
    MAX_TOKENS,
    alignment_heads,
    find_alignment_heads,
    set_alignment_heads,
    word_alignments,
)
from hf_vanilla_transformer.inference.ctranslate2 import load_ctranslate2
from hf_vanilla_transformer.inference.translation import translate, translate_lines
from hf_vanilla_transformer.pretrained.loading import load_model
from hf_vanilla_transformer.pretrained.teacher_forcing import cross_attentions
from tables import looped
from translators import build

SOURCES = ["two dogs run in the red street", "a cat", "the cat sleeps in a house", "run", " ", "we see a small cat"]
TARGETS = ["a cat", "the red house", "run run run", "no", "we", ""]

pytestmark = pytest.mark.usefixtures("one_thread")


def save(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def by_hand(model, tokenizer, source, target, heads):
    """Align the words of a pair whose words are single tokens."""
    ids = tokenizer(source)["input_ids"], tokenizer(text_target=target)["input_ids"]
    (weights,) = cross_attentions(model, [ids])
    mean = sum(weights[layer, head] for layer, head in heads) / len(heads)
    return [(int(row[: len(source.split())].argmax()), j) for j, row in enumerate(mean[: len(target.split())])]


@pytest.mark.parametrize("kind", ["shared", "pair", "marian"])
@looped("heads", [None, [[0, 1]], [[1, 0], [1, 1]]])
def test_links_are_the_largest_weights_of_the_heads(kind, heads):
    model, tokenizer = build(kind)
    if heads:
        set_alignment_heads(model, heads)
    config = model.config
    last = [[config.decoder_layers - 1, head] for head in range(config.decoder_attention_heads)]
    assert alignment_heads(model) == (heads or last)
    found = word_alignments(model, tokenizer, SOURCES, TARGETS, max_tokens=12)
    for source, target, links in zip(SOURCES, TARGETS, found, strict=True):
        blank = not (source.strip() and target.strip())
        assert links == ([] if blank else by_hand(model, tokenizer, source, target, heads or last))


def test_what_is_truncated_has_no_links():
    model, tokenizer = build("shared")
    ((*links,),) = word_alignments(model, tokenizer, [SOURCES[0]], ["a cat"], max_source_length=3)
    assert links == word_alignments(model, tokenizer, ["two dogs"], ["a cat"])[0]
    model, tokenizer = build("learned", max_position_embeddings=5)
    (links,) = word_alignments(model, tokenizer, [SOURCES[0]], ["run " * 20])
    assert max(source for source, _ in links) < 4 and [target for _, target in links] == [0, 1, 2, 3]


def test_very_long_sides_are_truncated():
    """The weights of 50,000 by 50,000 tokens would not fit in memory."""
    model, tokenizer = build("shared")
    (links,) = word_alignments(model, tokenizer, ["cat " * 50_000], ["run " * 50_000])
    assert links and all(place < MAX_TOKENS for link in links for place in link)


def test_equal_numbers_of_sentences():
    model, tokenizer = build("shared")
    assert word_alignments(model, tokenizer, [], []) == []
    with pytest.raises(ValueError, match="there are 2 sources but 1 targets; pass one target per source"):
        word_alignments(model, tokenizer, ["a", "cat"], ["a"])


@pytest.mark.parametrize("options", [{"num_beams": 3, "num_hypotheses": 2}, {"num_beams": 1}], ids=["beams", "greedy"])
def test_translations_with_alignments(options):
    model, tokenizer = build("shared")
    plain = translate(model, tokenizer, SOURCES, max_length=8, **options)
    aligned = translate(model, tokenizer, SOURCES, max_length=8, with_alignments=True, **options)
    for source, own, expected in zip(SOURCES, aligned, plain, strict=True):
        assert [replace(each, alignment=None) for each in own] == expected
        texts = [each.text for each in own]
        assert [each.alignment for each in own] == word_alignments(model, tokenizer, [source] * len(own), texts)
    assert all(each.alignment is None for own in plain for each in own)


def test_slow_tokenizers_are_refused_before_the_search(monkeypatch):
    model, tokenizer = build("shared")
    monkeypatch.setattr(type(tokenizer), "is_fast", False)
    monkeypatch.setattr(model, "generate", lambda **options: pytest.fail("searched"))
    with pytest.raises(DataError, match="the slow tokenizer .* lacks; convert the model"):
        list(translate_lines(model, tokenizer, SOURCES, with_alignments=True))


def test_the_heads_that_agree_with_given_links_are_found():
    model, tokenizer = build("shared")
    sources, targets = SOURCES[:4], TARGETS[:4]
    for layer, head in ((0, 1), (1, 0)):
        set_alignment_heads(model, [[layer, head]])
        links = word_alignments(model, tokenizer, sources, targets)
        heads, error = find_alignment_heads(model, tokenizer, sources, targets, links)
        set_alignment_heads(model, heads)
        assert error == alignment_error_rate(word_alignments(model, tokenizer, sources, targets), links, links) == 0
    # All links are possible, so no head is wrong.
    everything = [[(i, j) for i in range(9) for j in range(9)]] * 4
    assert find_alignment_heads(model, tokenizer, sources, targets, [[(0, 0)]] * 4, everything)[1] < 1


def test_heads_are_saved_and_loaded_with_the_model(tmp_path):
    model, tokenizer = build("shared")
    set_alignment_heads(model, [[1, 0]])
    save(model, tokenizer, tmp_path)
    for loaded in (load_model(str(tmp_path)), AutoModelForSeq2SeqLM.from_pretrained(tmp_path)):
        assert alignment_heads(loaded) == [[1, 0]]
    loaded.save_pretrained(tmp_path)
    assert alignment_heads(load_model(str(tmp_path))) == [[1, 0]]


@pytest.mark.parametrize("heads", [None, [[0, 1]], [[1, 1], [1, 0]]], ids=["default", "one", "two"])
@pytest.mark.parametrize("kind", ["shared", "pair"])
def test_an_export_to_ctranslate2_aligns_as_the_model(tmp_path, kind, heads):
    pytest.importorskip("ctranslate2")
    model, tokenizer = build(kind)
    if heads:
        set_alignment_heads(model, heads)
    save(model, tokenizer, tmp_path / "model")
    export_model(tmp_path / "model", "ctranslate2", tmp_path / "export")
    exported, _ = load_ctranslate2(tmp_path / "export")
    assert getattr(exported.generation_config, "alignment_heads", None) == heads
    pairs = [([4, 5, 6, 2], [7, 8, 2]), ([4, 2], [5, 6, 7, 8, 2])]
    layers, indices = zip(*alignment_heads(model), strict=True)
    for own, every in zip(exported.alignment_weights(pairs), cross_attentions(model, pairs), strict=True):
        torch.testing.assert_close(own, every[layers, indices].mean(0)[:-1], rtol=1e-4, atol=1e-5)
    options = {"num_beams": 2, "num_hypotheses": 2, "max_length": 8, "with_alignments": True}
    assert translate(exported, tokenizer, SOURCES, **options) == translate(model, tokenizer, SOURCES, **options)


def test_ctranslate2_refuses_heads_of_several_layers(tmp_path):
    pytest.importorskip("ctranslate2")
    model, tokenizer = build("shared")
    set_alignment_heads(model, [[0, 0], [1, 0]])
    save(model, tokenizer, tmp_path / "model")
    with pytest.raises(ValueError, match=r"cannot express `alignment_heads=\[\[0, 0\], \[1, 0\]\]`.*one layer"):
        export_model(tmp_path / "model", "ctranslate2", tmp_path / "export")


def test_no_line_is_lost_where_fewer_lines_say_whether_they_need_alignments():
    model, tokenizer = build("shared")
    with pytest.raises(ValueError, match="with_alignments"):
        list(translate_lines(model, tokenizer, SOURCES, with_alignments=[True, False], chunk_size=2))
    with pytest.raises(ValueError, match="`with_alignments` is 'yes'; pass True or False"):
        list(translate_lines(model, tokenizer, SOURCES, with_alignments="yes"))
    flags = [True, False, False, True]
    results = translate_lines(model, tokenizer, [*SOURCES[:2], " ", ""], with_alignments=iter(flags))
    assert [best.alignment is not None for best, *_ in results] == flags
