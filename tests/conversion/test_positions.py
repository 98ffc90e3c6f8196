"""Position encodings: sinusoids are computed, other tables become learned positions."""

import pytest
import torch

import source_models
from conversions import HEADS, convert, refused

KEYS = ("src_embed.1.pe", "tgt_embed.1.pe")


@pytest.fixture
def state():
    return source_models.annotated(length=500).state_dict()


@pytest.mark.parametrize("length", [500, 5000])
def test_sinusoids_are_computed_to_any_length(length):
    """Rounding errors grow with the position."""
    conversion = convert(source_models.annotated(length=length).state_dict(), **HEADS)
    assert conversion.config.position_embedding_type == "sinusoidal"
    assert not any("embed_positions" in name for name in conversion.weights)


def test_sinusoids_are_kept_where_that_is_stated(state):
    exact = convert(state, position_embedding_type="learned", **HEADS)
    table = exact.weights["model.decoder.embed_positions.weight"]
    assert torch.equal(table, state["tgt_embed.1.pe"][0]) and exact.config.max_position_embeddings == 500


def test_concatenated_sinusoids(state):
    waves = state[KEYS[0]]
    state |= dict.fromkeys(KEYS, torch.cat([waves[..., 0::2], waves[..., 1::2]], -1))
    assert convert(state, **HEADS).config.sinusoidal_layout == "concatenated"
    refused(
        "layout=interleaved`, but the stored positions are concatenated",
        state,
        sinusoidal_layout="interleaved",
        **HEADS,
    )


class TestTwoLengths:
    @pytest.fixture
    def state(self, state):
        return {**state, KEYS[0]: torch.randn(1, 9, 8)}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "have 9 and 500 rows.*max_position_embeddings=9` to truncate"),
            ({"max_position_embeddings": 10}, "max_position_embeddings=10`, but there are 9 positions"),
            (
                {"position_embedding_type": "sinusoidal"},
                "not sinusoids; leave out `position_embedding_type=sinusoidal`",
            ),
        ],
    )
    def test_refused(self, state, options, message):
        refused(message, state, **options, **HEADS)

    def test_truncated_where_that_is_stated(self, state):
        assert convert(state, max_position_embeddings=9, **HEADS).config.max_position_embeddings == 9

    def test_of_one_function(self):
        """Tables of 12 and 15 rows become one of 15 rows, which also limits tokenizer and generation."""
        words = [["u", "<pad>", "<s>", "</s>", *map(str, range(count))] for count in (9, 13)]
        vocabularies = dict(zip(("source_vocabulary", "target_vocabulary"), words, strict=True))
        conversion = convert(source_models.scalar_norms().state_dict(), **vocabularies, **HEADS)
        assert conversion.config.max_position_embeddings == conversion.tokenizer.model_max_length == 15
        generated = conversion.model().generate(torch.tensor([[2, 5, 3]]), eos_token_id=None)
        assert generated.shape[1] == 15, "no error there"


@pytest.mark.parametrize("shape", [(2, 9, 8), (1, 40, 4)], ids=str)
def test_no_position_table(state, shape):
    refused(
        f"1 mismatched: {KEYS[0]} {'x'.join(map(str, shape))} does not fit d_model=8",
        {**state, KEYS[0]: torch.randn(shape)},
        **HEADS,
    )


def test_an_odd_width_has_no_sinusoids():
    state = source_models.statquest().state_dict()
    narrow = {key: tensor[..., :3] for key, tensor in state.items() if tensor.dim() > 1}
    narrow = {key: tensor[:3] if ".W_" in key else tensor for key, tensor in narrow.items()}
    config = convert({**narrow, "decoder.fc_layer.bias": state["decoder.fc_layer.bias"]}).config
    assert (config.d_model, config.position_embedding_type) == (3, "learned")


def test_positions_that_are_not_stored(state):
    state = {key: tensor for key, tensor in state.items() if key not in KEYS}
    assert convert(state, **HEADS).config.position_embedding_type == "sinusoidal"
