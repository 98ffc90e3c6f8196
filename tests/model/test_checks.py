"""Errors about inputs name the argument, its value or shape, and a remedy."""

import pytest
import torch

from devices import CHECKS_VALUES
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
    ({"position_ids": torch.arange(6).flip(0)[None]}, "`position_ids` is given, but this model counts positions"),
    ({"position_ids": torch.tensor(3)}, "`position_ids` is given"),
    ({"decoder_head_mask": torch.tensor([[1.0, 0.0]])}, "`decoder_head_mask` is given, but .* masks no heads"),
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


def test_arguments_that_change_nothing_are_taken_from_other_libraries():
    model, batch = tiny_model(), batch_with_padding()
    neutral = {"position_ids": torch.arange(6)[None], "cache_position": torch.arange(5), "head_mask": torch.ones(2, 2)}
    close(model(**batch, **neutral).logits, model(**batch).logits, 0)
