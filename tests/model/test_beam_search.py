"""Our beam search against that of transformers, which is the plain way: the same sequences for every setting."""

import pytest
import torch
from transformers import MaxLengthCriteria, StoppingCriteriaList

from hf_vanilla_transformer.model import beam_search_vanilla_transformer as beam_search
from tiny import close, tiny_model, tokens

# So many of 40 tokens end a sentence that some end early, some late, and some only where the length does.
ENDS = [2, 5, 6, 7]
PLAIN = {"return_dict_in_generate": True}


def varied_model(**changes):
    """An untied output, so that an untrained model does not repeat its input, and sharper, so that beams differ."""
    model = tiny_model(tie_word_embeddings=False, **changes)
    with torch.no_grad():
        model.lm_head.weight.mul_(4)
    return model


def padded_source(rows=7):
    source = tokens(rows, 6)
    mask = (torch.arange(6)[None] < torch.arange(rows)[:, None] % 5 + 2).long()
    return {"input_ids": source.masked_fill(mask == 0, 0), "attention_mask": mask}


def both_ways(model, source, **options):
    options = {"num_beams": 4, "max_new_tokens": 12, **options}
    return model.generate(**source, **options), model.generate(**source, **options, **PLAIN).sequences


@pytest.fixture
def own(monkeypatch):
    """Count the searches that are ours."""
    built = []
    start = beam_search.Beams.__init__
    monkeypatch.setattr(beam_search.Beams, "__init__", lambda self, *args: (built.append(self), start(self, *args))[1])
    return built


class TestEqualsTransformers:
    @pytest.mark.parametrize("early_stopping", [False, True, "never"])
    @pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.6, 1.0, 2.0])
    @pytest.mark.parametrize("ends", [2, ENDS, None], ids=["one end", "several ends", "no end"])
    def test_whenever_and_however_it_stops(self, own, early_stopping, length_penalty, ends):
        model, source = varied_model(), padded_source()
        options = {"early_stopping": early_stopping, "length_penalty": length_penalty, "eos_token_id": ends}
        ours, plain = both_ways(model, source, **options)
        assert torch.equal(ours, plain)
        assert len(own) == 1

    def test_the_settings_above_end_sentences_at_different_lengths(self):
        out = varied_model().generate(**padded_source(), num_beams=4, max_new_tokens=12, eos_token_id=ENDS)
        assert len(set(out.ne(0).sum(1).tolist())) > 2

    @pytest.mark.parametrize(
        "options",
        [
            {"num_return_sequences": 3},
            {"num_beams": 2, "num_return_sequences": 2},
            {"use_cache": False},
            {"cache_implementation": "static"},
            {"no_repeat_ngram_size": 2},
            {"min_new_tokens": 5},
            {"bad_words_ids": [[9], [10], [11, 12]]},
            {"forced_eos_token_id": 2},
            {"repetition_penalty": 1.5},
            {"decoder_input_ids": torch.tensor([[1, 9, 8]] * 7)},
            {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(6)])},
            {"max_new_tokens": 1},
        ],
        ids=lambda options: next(iter(options)),
    )
    def test_other_settings(self, own, options):
        ours, plain = both_ways(varied_model(), padded_source(), **{"eos_token_id": ENDS, **options})
        assert torch.equal(ours, plain)
        assert len(own) == 1

    def test_a_large_vocabulary(self, own):
        model = varied_model(vocab_size=5000)
        ours, plain = both_ways(model, padded_source(), eos_token_id=list(range(2, 400)))
        assert torch.equal(ours, plain)
        assert len(own) == 1

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_a_padded_prefix(self, own, side):
        prefix = torch.tensor([[1, 9, 8]] * 7)
        mask = torch.ones_like(prefix)
        mask[::2, 0 if side == "left" else 2] = 0
        given = {"decoder_input_ids": prefix.masked_fill(mask == 0, 0), "decoder_attention_mask": mask}
        ours, plain = both_ways(varied_model(), padded_source(), eos_token_id=ENDS, **given)
        assert torch.equal(ours, plain)
        assert len(own) == 1

    def test_an_encoded_source(self, own):
        model, source = varied_model(), padded_source()
        options = {"num_beams": 4, "eos_token_id": ENDS, "max_new_tokens": 12}
        expected = model.generate(**source, **options)
        encoded = model.get_encoder()(**source)
        given = {"encoder_outputs": encoded, "attention_mask": source["attention_mask"]}
        assert torch.equal(model.generate(**given, **options), expected)
        assert len(own) == 2

    def test_more_beams_than_tokens(self, own):
        model = tiny_model(vocab_size=6, tie_word_embeddings=False)
        source = {"input_ids": torch.tensor([[4, 5, 3], [3, 3, 4]])}
        ours, plain = both_ways(model, source, num_beams=5, num_return_sequences=5)
        assert torch.equal(ours, plain)
        assert len(own) == 1

    @pytest.mark.parametrize("options", [{"do_sample": True}, PLAIN], ids=["sampling", "reports"])
    def test_what_is_left_to_it(self, own, options):
        varied_model().generate(**padded_source(), num_beams=3, max_new_tokens=4, **options)
        assert own == []


class TestLargest:
    @pytest.mark.parametrize("size", [3, 40, 2048, 2049, 5000, 8191])
    def test_equals_a_selection(self, size):
        x = torch.randn(5, size)
        values, places = beam_search.blockwise_topk(x, 7)
        close(values, x.topk(min(7, size)).values, 0.0)
        close(x.gather(1, places), values, 0.0)

    def test_all_in_one_block_or_at_the_end(self):
        x = torch.randn(2, 5000)
        x[0, 130:137] += 50
        x[1, -7:] += 50
        assert beam_search.blockwise_topk(x, 7)[1].sort(1).values.tolist() == [
            list(range(130, 137)),
            list(range(4993, 5000)),
        ]

    def test_what_is_ruled_out_comes_last(self):
        x = torch.full((1, 5000), -torch.inf)
        x[0, 4000] = 1.0
        values, places = beam_search.blockwise_topk(x, 3)
        assert (values.tolist(), places[0, 0]) == ([[1.0, -torch.inf, -torch.inf]], 4000)
        assert len(set(places[0].tolist())) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_are_those_of_all_tokens(monkeypatch, dtype):
    """In float32 whatever the model's type is; equal ones, of which bfloat16 has many, may come in any order."""
    monkeypatch.setattr(beam_search, "CHUNK_ELEMENTS", 6000)
    logits = (torch.randn(5, 3000) * 3).to(dtype)
    values, places = beam_search.top_log_probs(logits, 4, None, torch.empty(5, 0))
    log_probs = logits.float().log_softmax(-1)
    close(values, log_probs.topk(4).values)
    close(log_probs.gather(1, places), values)
