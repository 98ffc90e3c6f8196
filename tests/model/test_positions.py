"""Position encodings against the formula of section 3.5."""

import math

import pytest
import torch

from hf_vanilla_transformer.model.positions_vanilla_transformer import (
    VanillaTransformerLearnedPositions,
    VanillaTransformerSinusoidalPositions,
)
from tables import looped
from tiny import close, tiny_config, tiny_model, tokens


def formula(position: int, d_model: int, layout: str) -> list[float]:
    angles = [position / 10000 ** (2 * i / d_model) for i in range(d_model // 2)]
    if layout == "concatenated":
        return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
    return [wave(angle) for angle in angles for wave in (math.sin, math.cos)]


@looped("layout", ["interleaved", "concatenated"])
@looped(("past", "length"), [(0, 32), (5, 3), (30, 4), (31, 1), (5000, 2)])
def test_cached_and_computed_positions_are_the_formula(layout, past, length):
    positions = VanillaTransformerSinusoidalPositions(tiny_config(sinusoidal_layout=layout))
    expected = torch.tensor([formula(past + i, 16, layout) for i in range(length)])
    close(positions(past, length, None), expected, 1e-7)
    close(positions(torch.tensor(past), length, None), expected, 1e-7)


@pytest.mark.parametrize("kind", [VanillaTransformerSinusoidalPositions, VanillaTransformerLearnedPositions])
def test_left_padding_does_not_shift_positions(kind):
    positions = kind(tiny_config())
    padded = positions(0, 5, torch.tensor([[0], [2]]))
    close(padded[0], positions(0, 5, None))
    close(padded[1, 2:], positions(0, 3, None))


def test_learned_positions_are_rows_of_a_trained_matrix():
    positions = VanillaTransformerLearnedPositions(tiny_config())
    assert positions.weight.shape == (32, 16) and positions.weight.requires_grad
    close(positions(3, 4, None), positions.weight[3:7], 0)


@pytest.mark.parametrize("past", [30, torch.tensor(30)], ids=["int", "tensor"])
def test_learned_positions_are_limited(past):
    positions = VanillaTransformerLearnedPositions(tiny_config())
    assert positions(past, 2, None).shape == (2, 16)
    with pytest.raises(ValueError, match="33 tokens.*`max_position_embeddings`=32.*sinusoidal"):
        positions(past, 3, None)


@pytest.mark.parametrize("side", ["input_ids", "decoder_input_ids"])
def test_a_model_with_learned_positions_refuses_a_longer_sequence(side):
    inputs = {"input_ids": tokens(1, 3), "decoder_input_ids": tokens(1, 3), side: tokens(1, 33)}
    with pytest.raises(ValueError, match="33 tokens.*`max_position_embeddings`=32"):
        tiny_model(position_embedding_type="learned")(**inputs)
