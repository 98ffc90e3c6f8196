"""Weights that are missing, unexpected, misshaped or of another dtype."""

import pytest
import torch

import source_models
from conversions import HEADS, convert, refused
from tables import looped


@pytest.fixture
def state():
    return source_models.annotated().state_dict()


@pytest.fixture
def torch_nn():
    return source_models.TorchNN().state_dict()


class TestTypes:
    def test_half_precision_stays(self, state):
        model = convert({name: tensor.half() for name, tensor in state.items()}, **HEADS).model()
        assert {weight.dtype for weight in model.parameters()} == {torch.float16}
        assert model.config.position_embedding_type == "sinusoidal", "stored ones are rounded, and recognized"

    def test_the_widest_of_several_types_is_kept(self, state):
        mixed = {name: tensor.half() if "embed" in name else tensor for name, tensor in state.items()}
        assert {weight.dtype for weight in convert(mixed, **HEADS).model().parameters()} == {torch.float32}

    def test_integers(self, state):
        key = "encoder.layers.0.feed_forward.w_1.weight"
        refused(f"1 mismatched: {key} is torch.int32, not floating point", {**state, key: state[key].int()}, **HEADS)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_values_that_are_not_finite(self, state, value):
        state["generator.proj.weight"] = state["generator.proj.weight"].index_fill(0, torch.tensor(1), value)
        refused("NaN or infinite values in generator.proj.weight; use another", state, **HEADS)

    def test_a_result_that_is_not_finite_is_not_saved(self, state, tmp_path):
        found = convert(state, **HEADS)
        found.weights["lm_head.weight"] = found.weights["lm_head.weight"].index_fill(0, torch.tensor(1), torch.inf)
        with pytest.raises(ValueError, match="^the converted model: 8 of .* numbers in lm_head.weight are NaN"):
            found.save(tmp_path / "converted")
        assert list(tmp_path.iterdir()) == []


class TestCompleteness:
    def test_one_message_lists_all(self, state):
        del state["encoder.layers.1.feed_forward.w_1.bias"], state["decoder.norm.a_2"]
        state["decoder.extra.weight"] = torch.zeros(1)
        state["encoder.layers.0.self_attn.linears.2.weight"] = torch.zeros(8, 7)
        message = refused("the weights do not match the layout annotated-transformer: ", state, **HEADS)
        assert "2 missing: decoder.norm.a_2, encoder.layers.1.feed_forward.w_1.bias" in message
        assert "1 unexpected: decoder.extra.weight" in message
        assert "1 mismatched: encoder.layers.0.self_attn.linears.2.weight 8x7" in message
        assert "8x8" in message

    @looped(
        ("prefix", "kept", "message"),
        [
            ("decoder.layers.0.", {}, r"26 missing: decoder.layers.0.*and 18 more"),
            (
                "encoder.layers.",
                {"encoder.layers.0.self_attn.linears.0.weight": torch.zeros(8, 8)},
                "missing: .*encoder.layers.0.feed_forward",
            ),
            ("tgt_embed.0.lut.weight", {}, "layout annotated-transformer: 1 missing: tgt_embed.0.lut.weight$"),
            ("decoder.norm.a_2", {"decoder.extra": torch.zeros(9)}, "1 missing: .*; 1 unexpected: decoder.extra; if"),
        ],
    )
    def test_missing_parts(self, state, prefix, kept, message):
        state = {name: tensor for name, tensor in state.items() if not name.startswith(prefix)} | kept
        refused(message, state, **HEADS)

    def test_a_bias_fewer_than_the_others(self, torch_nn):
        del torch_nn["transformer.encoder.layers.1.linear1.bias"]
        refused(r"1 missing: transformer.encoder.layers.1.linear1.bias", torch_nn, **HEADS)

    def test_an_unexpected_weight_beside_an_encoder_alone(self, state):
        state["encoder.layers.0.gate.weight"] = torch.ones(8)
        refused("1 unexpected: encoder.layers.0.gate.weight", state, encoder_only=True, **HEADS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [(1, "gives .*q_proj.weight 1x8, not 8x8"), (4, "4x8 does not split into 3 weights"), (25, "9x8, not 8x8")],
)
def test_stacked_projections_of_the_wrong_height(torch_nn, rows, message):
    key = "transformer.encoder.layers.0.self_attn.in_proj_weight"
    refused(f"mismatched: {key}.*{message}", {**torch_nn, key: torch.randn(rows, 8)}, **HEADS)
