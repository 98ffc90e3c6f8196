"""Errors about inputs name the argument, its value or shape, and a remedy."""

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, StaticCache

from devices import CHECKS_VALUES
from hf_vanilla_transformer.model.compat_vanilla_transformer import CACHE
from tiny import batch_with_padding, close, tiny_model, tokens


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "no target: pass `labels`, `decoder_input_ids` or `decoder_inputs_embeds`"),
        ({"input_ids"}, "no target.*`label_smoothing_factor`.*`model=` to `DataCollatorForSeq2Seq`"),
        ({"decoder_input_ids"}, "exactly one of `input_ids` and `inputs_embeds`"),
        ({"labels"}, "exactly one of `input_ids` and `inputs_embeds`"),
        ({"input_ids", "inputs_embeds", "labels"}, "exactly one of `input_ids` and `inputs_embeds`"),
        (
            {"input_ids", "decoder_input_ids", "decoder_inputs_embeds"},
            "only one of `decoder_input_ids` and `decoder_inputs_embeds`",
        ),
    ],
    ids=["none", "source only", "target only", "labels only", "source twice", "target twice"],
)
def test_missing_and_doubled_inputs_raise(inputs, message):
    given = {name: torch.randn(1, 3, 16) if "embeds" in name else tokens(1, 3) for name in inputs}
    with pytest.raises(ValueError, match=message):
        tiny_model()(**given)


IDS = torch.ones(2, 6, dtype=torch.long)
BY_VALUE = [
    ({"input_ids": IDS + 39}, r"`input_ids` has 40 at \[0, 0\].*from 0 to 39.*tokenizer"),
    ({"decoder_input_ids": torch.tensor([[1, 2, -100]] * 2)}, "`decoder_input_ids` has -100 at.*pass `labels` too"),
    (
        {"input_ids": torch.tensor([[4, 5, 6, 7, 8, -100]] * 2)},
        r"has -100 at \[0, 5\].*pad sources with `pad_token_id`",
    ),
    ({"position_ids": torch.arange(6).flip(0)[None]}, r"`position_ids` has 5 at \[0, 0\], where this model has 0"),
    ({"position_ids": torch.tensor(3)}, "`position_ids` has 3 .*counts positions.*leave it out"),
    ({"position_ids": [[4, 5, 6, 7, 8, 9]]}, "`position_ids` has 4"),
    # The second target starts with two tokens of padding.
    ({"position_ids": torch.arange(5)[None]}, r"`position_ids` has 2 at \[1, 2\], where this model has 0"),
    ({"cache_position": torch.arange(5) + 1}, r"`cache_position` has 1 at \[0\], where this model has 0"),
    ({"decoder_head_mask": torch.tensor([[1.0, 0.0]])}, r"`decoder_head_mask` has 0.0 at \[0, 1\].*masks no heads"),
    ({"head_mask": [1, 0]}, r"`head_mask` has 0 at \[1\]"),
]
BY_KIND = [
    ({"attention_mask": torch.ones(2, 5)}, r"`attention_mask` has shape \(2, 5\).*\(2, 6\)"),
    ({"decoder_attention_mask": torch.ones(2, 7)}, r"`decoder_attention_mask` has shape \(2, 7\).*\(2, 5\)"),
    (
        {"encoder_outputs": (torch.zeros(2, 4, 16),), "input_ids": None},
        r"`attention_mask` has shape \(2, 6\).*\(2, 4\)",
    ),
    ({"attention_mask": IDS[:, None, None]}, r"`attention_mask` has dtype torch.int64.*boolean.*or floating-point"),
    ({"attention_mask": IDS.to("meta")}, "`attention_mask` is on the meta device"),
    ({"input_ids": IDS.float()}, "`input_ids` has dtype torch.float32, but ids are integers"),
    ({"input_ids": IDS[0]}, r"`input_ids` has shape \(6,\); use \(B, L\) with no empty dimension"),
    ({"input_ids": IDS.to_sparse()}, "`input_ids` has the layout torch.sparse_coo"),
    ({"input_ids": IDS.to("meta")}, "`input_ids` is on the meta device"),
    ({"input_ids": [[4]]}, "`input_ids` is of type list; pass a tensor"),
    ({"inputs_embeds": torch.ones(2, 6, 9), "input_ids": None}, r"has shape \(2, 6, 9\) .*use floats .*\(B, L, 16\)"),
    ({"encoder_outputs": ()}, "`encoder_outputs` is empty"),
    ({"position_ids": "0 1 2 3"}, "`position_ids` is unsuitable .*leave it out"),
    ({"position_ids": [[0, 1], [0]]}, "`position_ids` is unsuitable"),
    ({"position_ids": torch.zeros(3, 6)}, "`position_ids` is unsuitable"),
]


@pytest.mark.parametrize(
    ("changes", "message"),
    [*(pytest.param(*each, marks=CHECKS_VALUES) for each in BY_VALUE), *BY_KIND],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_inconsistent_inputs_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_model()(**batch_with_padding() | changes)


def test_a_mask_covers_the_cached_tokens_too():
    model, batch = tiny_model(), batch_with_padding()
    cache = model(**batch).past_key_values
    step = {**batch, "decoder_input_ids": tokens(2, 1), "past_key_values": cache}
    with pytest.raises(ValueError, match=r"`decoder_attention_mask` has shape \(2, 5\).*\(2, 6\), cached"):
        model(**step)


NEUTRAL = {
    "tensors": {"position_ids": IDS.cumsum(1) - 1, "cache_position": torch.arange(5), "head_mask": torch.ones(2, 2)},
    "lists": {"position_ids": [[0, 1, 2, 3, 4]] * 2, "head_mask": [[1.0, 1.0]], "cross_attn_head_mask": [True]},
    "None": {"position_ids": None, "cache_position": None, "decoder_head_mask": None},
}


@pytest.mark.parametrize("neutral", NEUTRAL.values(), ids=NEUTRAL)
def test_arguments_that_change_nothing_are_taken_from_other_libraries(neutral):
    model, batch = tiny_model(), batch_with_padding()
    del batch["decoder_attention_mask"]
    close(model(**batch, **neutral).logits, model(**batch).logits, 0)


@pytest.mark.parametrize("padding", [0, 1])
def test_positions_of_left_padding_are_free(padding):
    encoder, mask = tiny_model().get_encoder(), torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
    source = {"input_ids": tokens(2, 6), "attention_mask": mask}
    # As decoders of transformers number them, but for padding on the right.
    positions = torch.tensor([[padding, padding, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5]])
    close(encoder(**source, position_ids=positions)[0], encoder(**source)[0], 0)


@CHECKS_VALUES
@pytest.mark.parametrize("static", [False, True])
def test_positions_continue_after_the_cache(static):
    model, source = tiny_model(), tokens(2, 6)
    encoded, ids = model.get_encoder()(source), tokens(2, 4)
    config = model.config
    own = StaticCache(config=config, max_cache_len=9) if static else DynamicCache(config=config)
    cache = EncoderDecoderCache(own, DynamicCache(config=config))
    first = {"position_ids": torch.arange(3)[None], "cache_position": torch.arange(3)}
    model(encoder_outputs=encoded, decoder_input_ids=ids[:, :3], **{CACHE: cache}, **first)
    step = {"encoder_outputs": encoded, "decoder_input_ids": ids[:, 3:], CACHE: cache}
    for name, start in (("position_ids", 0), ("position_ids", 4), ("cache_position", 2)):
        with pytest.raises(ValueError, match=rf"`{name}` has {start} at .*where this model has 3"):
            model(**step, **{name: torch.tensor([start])})
    model(**step, position_ids=torch.tensor([[3]]), cache_position=torch.tensor([3]))
