"""The faster `generate()`: sources that beams share, and what a step costs."""

import sys

import pytest
import torch
from transformers import LogitsProcessorList

from hf_vanilla_transformer.fast import generation, restore
from hf_vanilla_transformer.model.compat_vanilla_transformer import CACHE
from tables import looped
from tiny import VOCABULARY, close, padded_source, tiny_model, tokens
from translators import build


def cross_rows(cache):
    return len(cache.cross_attention_cache.layers[0].keys)


@pytest.mark.parametrize("changes", [{}, {"norm_position": "pre"}, {"position_embedding_type": "learned"}], ids=str)
@pytest.mark.parametrize("do_sample", [False, True])
def test_go_on_from_the_cache_of_a_beam_search(changes, do_sample, monkeypatch):
    """Its rows are the last running beams, as in transformers."""
    model, source = tiny_model(tie_word_embeddings=False, **changes), padded_source()
    seen, reorder = {}, model._reorder_cache

    def notice(cache, rows):
        seen["rows"] = rows
        return reorder(cache, rows)

    def read(ids, scores):
        seen["beams"] = ids
        return scores

    monkeypatch.setattr(model, "_reorder_cache", notice)
    options = {"eos_token_id": None, "max_new_tokens": 7, "num_beams": 3, "return_dict_in_generate": True}
    options["do_sample"] = do_sample
    out = model.generate(**source, **options, logits_processor=LogitsProcessorList([read]))
    several = {name: value.repeat_interleave(3, 0) for name, value in source.items()}
    target = torch.cat([seen["beams"][seen["rows"]], tokens(9, 1)], 1)
    mask = several["attention_mask"]
    step = {"decoder_input_ids": target[:, -1:], "attention_mask": mask, CACHE: getattr(out, CACHE)}
    logits = model(encoder_outputs=model.get_encoder()(**several), **step).logits
    whole = model(**several, decoder_input_ids=target, use_cache=False).logits
    close(logits, whole[:, -1:])


@looped("implementation", ["sdpa", "eager"])
@looped("options", [{}, {"do_sample": True}, {"num_return_sequences": 3}])
@looped("changes", [{}, {"norm_position": "pre", "attention_bias": True}])
def test_beams_that_share_a_source_equal_those_of_repeated_sources(monkeypatch, changes, options, implementation):
    model, source = tiny_model(attn_implementation=implementation, **changes), padded_source(4)
    options = {"num_beams": 3, "max_new_tokens": 9, "return_dict_in_generate": True, "output_scores": True, **options}
    sources, repeat = [], generation.repeat_sources
    monkeypatch.setattr(generation, "repeat_sources", lambda cache: [sources.append(cross_rows(cache)), repeat(cache)])

    def decode():
        torch.manual_seed(5)
        return model.generate(**source, **options, output_attentions=implementation == "eager")

    shared = decode()
    # The plain model repeats the sources.
    restore(model)
    copied = decode()
    assert torch.equal(shared.sequences, copied.sequences)
    close(shared.sequences_scores, copied.sequences_scores)
    assert sources == [4]
    caches = (each.past_key_values.cross_attention_cache.layers for each in (shared, copied))
    for layer, other in zip(*caches, strict=True):
        close(layer.keys, other.keys)
        close(layer.values, other.values)
    torch.testing.assert_close(shared.cross_attentions, copied.cross_attentions, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}], ids=["greedy", "beams"])
def test_a_step_takes_fewer_calls_of_python_than_that_of_marian(options):
    def calls(model, steps: int) -> int:
        count = 0

        def profile(frame, event, argument) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        source = tokens(4, 7)
        sys.setprofile(profile)
        try:
            model.generate(source, attention_mask=torch.ones_like(source), max_new_tokens=steps, **options)
        finally:
            sys.setprofile(None)
        return count

    found = {}
    sizes = {"vocab_size": VOCABULARY, "decoder_vocab_size": VOCABULARY, "encoder_layers": 6, "decoder_layers": 6}
    for kind in ("shared", "marian"):
        model, _ = build(kind, **sizes)
        model.generation_config.eos_token_id = None
        # The first call makes choices that later ones reuse.
        calls(model, 8)
        found[kind] = (calls(model, 24) - calls(model, 8)) / 16
    assert found["shared"] < found["marian"], found


def test_beam_search_returns_what_that_of_transformers_returns():
    model, source = tiny_model(), padded_source(4)
    options = {"num_beams": 3, "max_new_tokens": 5, "return_dict_in_generate": True}
    out = model.generate(**source, **options)
    expected = restore(model).generate(**source, **options)
    assert out.keys() == expected.keys() > {"sequences", "beam_indices"}
    assert torch.equal(out.sequences, expected.sequences) and torch.equal(out.beam_indices, expected.beam_indices)
