"""Beam search against that of transformers: the same sequences and scores for every setting."""

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MarianConfig,
    MarianMTModel,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from devices import DROPS_SENTENCES, TEST_DEVICE, on, same_numbers
from hf_vanilla_transformer.search import beams as beam_search
from hf_vanilla_transformer.search.beams import scores_only
from hf_vanilla_transformer.search.row_limits import ForcedEnd, RowLimits
from tiny import close, one_layer_model, padded_source

# With so many end tokens of 40, some hypotheses end early, some late, and some only at the length limit.
ENDS = [2, 5, 6, 7]
SIZES = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}
REPORT = {"return_dict_in_generate": True}
# Scores of the whole vocabulary are left to transformers.
KEPT = {**REPORT, "output_scores": True}


@pytest.fixture(autouse=True)
def _scores_only():
    with scores_only():
        yield


def varied_model(**changes):
    """A model with an untied output, so that it does not repeat its input, and sharp scores, so that beams differ."""
    model = one_layer_model(tie_word_embeddings=False, **changes)
    with torch.no_grad():
        model.lm_head.weight.mul_(4)
    return model


@same_numbers
def tiny_marian():
    """Return a model of transformers whose hypotheses end like those of `varied_model`."""
    shape = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in SIZES.items()}
    config = MarianConfig(
        vocab_size=40, d_model=16, max_position_embeddings=64, pad_token_id=0, decoder_start_token_id=1,
        forced_eos_token_id=None, init_std=1.0, **shape,
    )  # fmt: skip  # one name a line would say no more
    return MarianMTModel(config).eval()


def assert_equal(own, model, source, **options):
    """Check that one search of ours finds the same sequences and scores as transformers."""
    options = {"num_beams": 4, "max_new_tokens": 12, **options}
    output, expected = (model.generate(**source, **options, **report) for report in (REPORT, KEPT))
    assert torch.equal(output.sequences, expected.sequences) and len(own) == 1
    same_scores(output.sequences_scores, expected.sequences_scores)


def same_scores(scores, expected):
    torch.testing.assert_close(scores, expected, rtol=1e-6, atol=1e-6)


def penalize_repeats(input_ids, scores):
    """A processor of a caller's own, which changes scores."""
    return scores.scatter(1, input_ids, scores.gather(1, input_ids) - 1)


@pytest.fixture
def own(monkeypatch):
    """Record the searches of `Beams`."""
    built = []
    start = beam_search.Beams.__init__
    monkeypatch.setattr(beam_search.Beams, "__init__", lambda self, *args: (built.append(self), start(self, *args))[1])
    return built


@pytest.fixture
def dropped(monkeypatch):
    """Record how many sentences are left whenever some are dropped, which is as soon as they are final."""
    monkeypatch.setattr(beam_search, "MAX_FINAL", 0)
    left, drop = [], beam_search.Beams._drop_final

    def record(self, rows):
        kept = drop(self, rows)
        if len(kept) < len(rows):
            left.append(len(kept))
        return kept

    monkeypatch.setattr(beam_search.Beams, "_drop_final", record)
    return left


@pytest.mark.parametrize("max_final", [0, 1], ids=["final ones dropped", "none dropped"])
class TestEqualsTransformers:
    @pytest.fixture(autouse=True)
    def _drop(self, monkeypatch, max_final):
        monkeypatch.setattr(beam_search, "MAX_FINAL", max_final)

    @pytest.mark.parametrize("early_stopping", [False, True, "never"])
    @pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.6])
    @pytest.mark.parametrize("ends", [2, ENDS, None], ids=["one end", "several ends", "no end"])
    def test_stopping(self, own, early_stopping, length_penalty, ends):
        options = {"early_stopping": early_stopping, "length_penalty": length_penalty, "eos_token_id": ends}
        assert_equal(own, varied_model(), padded_source(7), **options)

    def test_these_settings_end_sentences_at_different_lengths(self):
        out = varied_model().generate(**padded_source(7), num_beams=4, max_new_tokens=12, eos_token_id=ENDS)
        assert isinstance(out, torch.Tensor)
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
            {"min_length": 6},
            {"forced_bos_token_id": 9},
            {"logits_processor": LogitsProcessorList([penalize_repeats])},
            {"bad_words_ids": [[9], [10], [11, 12]]},
            {"forced_eos_token_id": 2},
            {"repetition_penalty": 1.5},
            {"decoder_input_ids": torch.tensor([[1, 9, 8]] * 7)},
            {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(6)])},
            {"max_new_tokens": 1},
            # A sentence continues while it could improve until the length limit, and does improve.
            {"early_stopping": "never", "num_beams": 2},
        ],
        ids=lambda options: next(iter(options)),
    )
    def test_other_settings(self, own, options):
        assert_equal(own, varied_model(), padded_source(7), **{"eos_token_id": ENDS, **on(TEST_DEVICE, options)})

    def test_a_large_vocabulary(self, own):
        assert_equal(own, varied_model(vocab_size=5000), padded_source(7), eos_token_id=list(range(2, 400)))

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_a_padded_prefix(self, own, side):
        prefix = torch.tensor([[1, 9, 8]] * 7)
        mask = torch.ones_like(prefix)
        mask[::2, 0 if side == "left" else 2] = 0
        given = {"decoder_input_ids": prefix.masked_fill(mask == 0, 0), "decoder_attention_mask": mask}
        assert_equal(own, varied_model(), padded_source(7), eos_token_id=ENDS, **given)

    def test_an_encoded_source(self, own):
        model, source = varied_model(), padded_source(7)
        options = {"num_beams": 4, "eos_token_id": ENDS, "max_new_tokens": 12}
        expected = model.generate(**source, **options)
        encoded = model.get_encoder()(**source)
        given = {"encoder_outputs": encoded, "attention_mask": source["attention_mask"]}
        assert torch.equal(model.generate(**given, **options), expected)
        assert len(own) == 2

    def test_more_beams_than_tokens(self, own):
        model = one_layer_model(vocab_size=6, tie_word_embeddings=False)
        source = {"input_ids": torch.tensor([[4, 5, 3], [3, 3, 4]])}
        assert_equal(own, model, source, num_beams=5, num_return_sequences=5)

    @pytest.mark.parametrize(
        "options", [{"do_sample": True}, *({**REPORT, name: True} for name in beam_search.STEP_OUTPUTS)], ids=str
    )
    def test_left_to_transformers(self, own, options):
        model = varied_model(attn_implementation="eager")
        output = model.generate(**padded_source(7), num_beams=3, max_new_tokens=4, **options)
        assert own == []
        assert "do_sample" in options or output.beam_indices is not None


@DROPS_SENTENCES
class TestDroppedSentences:
    OPTIONS = {"num_beams": 4, "max_new_tokens": 12, "eos_token_id": ENDS}

    @pytest.mark.parametrize("early_stopping", [False, True])
    def test_as_they_become_final(self, dropped, early_stopping):
        varied_model().generate(**padded_source(7), **self.OPTIONS, early_stopping=early_stopping)
        assert len(dropped) > 1
        assert dropped == sorted(set(dropped), reverse=True) and dropped[-1] > 0

    def test_not_before_they_are_many(self, dropped, monkeypatch):
        monkeypatch.setattr(beam_search, "MAX_FINAL", 0.25)
        varied_model().generate(**padded_source(20), **self.OPTIONS)
        assert dropped and dropped[0] < 15

    def test_other_models(self, dropped):
        """Marian has a row of cross-attention for each beam."""
        torch.manual_seed(0)
        model, source = tiny_marian(), padded_source(20)
        output = model.generate(**source, **self.OPTIONS, **REPORT, custom_generate=beam_search.beam_search)
        assert len(dropped) > 1
        expected = model.generate(**source, **self.OPTIONS, **KEPT)
        assert torch.equal(output.sequences, expected.sequences)
        same_scores(output.sequences_scores, expected.sequences_scores)

    @pytest.mark.parametrize("name", ["logits_processor", "stopping_criteria"])
    def test_none_where_a_callers_own_code_may_look_at_all_rows(self, dropped, name):
        seen = []

        def look(input_ids, scores, **kwargs):
            seen.append(len(input_ids))
            return scores if name == "logits_processor" else torch.zeros(len(input_ids), dtype=torch.bool)

        kind = LogitsProcessorList if name == "logits_processor" else StoppingCriteriaList
        varied_model().generate(**padded_source(7), **self.OPTIONS, **{name: kind([look])})
        assert not dropped and len(set(seen)) == 1

    @pytest.mark.parametrize("early_stopping", [False, True, "never"])
    @pytest.mark.parametrize("forced", [None, 2], ids=["", "forced end"])
    def test_at_limits_of_their_own(self, dropped, early_stopping, forced):
        """The sequences are those that transformers finds for each sentence alone."""
        model, source, limits = varied_model(), padded_source(7), [12, 4, 9, 6, 12, 5, 8]
        options = {**self.OPTIONS, "max_new_tokens": None, "early_stopping": early_stopping, "num_return_sequences": 4}
        options |= {"length_penalty": 2.0, "forced_eos_token_id": forced}
        expected = [
            model.generate(**{k: x[i : i + 1] for k, x in source.items()}, max_length=limit, **options, **KEPT)
            for i, limit in enumerate(limits)
        ]
        criterion = RowLimits(torch.tensor(limits), limits)
        processors = [] if forced is None else [ForcedEnd(criterion, forced)]
        output = model.generate(
            **source, max_length=12, stopping_criteria=[criterion], logits_processor=processors, **options, **REPORT
        )
        assert len(dropped) > 1 and len(criterion.limits) < 7
        for rows, alone in zip(output.sequences.split(4), expected, strict=True):
            width = alone.sequences.shape[1]
            assert torch.equal(rows[:, :width], alone.sequences) and rows[:, width:].eq(ENDS[0]).all()
        same_scores(output.sequences_scores, torch.cat([alone.sequences_scores for alone in expected]))

    def test_none_from_a_static_cache(self, dropped):
        varied_model().generate(**padded_source(7), **self.OPTIONS, cache_implementation="static")
        assert not dropped


class TestBlockwiseTopk:
    @pytest.mark.parametrize("size", [3, 40, 2048, 2049, 5000, 8191])
    def test_equals_topk(self, size):
        x = torch.randn(5, size)
        values, indices = beam_search.blockwise_topk(x, 7)
        close(values, x.topk(min(7, size)).values, 0.0)
        close(x.gather(1, indices), values, 0.0)

    def test_all_in_one_block_or_at_the_end(self):
        x = torch.randn(2, 5000)
        x[0, 130:137] += 50
        x[1, -7:] += 50
        assert beam_search.blockwise_topk(x, 7)[1].sort(1).values.tolist() == [
            list(range(130, 137)),
            list(range(4993, 5000)),
        ]

    def test_masked_values_come_last(self):
        x = torch.full((1, 5000), -torch.inf)
        x[0, 4000] = 1.0
        values, indices = beam_search.blockwise_topk(x, 3)
        assert (values.tolist(), indices[0, 0]) == ([[1.0, -torch.inf, -torch.inf]], 4000)
        assert len(set(indices[0].tolist())) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_are_those_of_all_tokens(monkeypatch, dtype):
    """In float32 for any dtype; equal ones, frequent in bfloat16, may come in any order."""
    monkeypatch.setattr(beam_search, "CHUNK_ELEMENTS", 6000)
    logits = (torch.randn(5, 3000) * 3).to(dtype)
    values, indices = beam_search.top_log_probs(logits, 4, None, torch.empty(5, 0))
    log_probs = logits.float().log_softmax(-1)
    close(values, log_probs.topk(4).values)
    close(log_probs.gather(1, indices), values)
