"""Conversion of x-transformers' XTransformer: numbered sub-layers, norms by gamma, and what is refused."""

import pytest
import torch

from conversions import ENDS, HEADS, TOLERANCE, assert_same_logits, convert, converted_logits, refused
from source_models import x_transformer

pytestmark = pytest.mark.usefixtures("one_thread")

ARGUMENTS = {"enc_heads": 2, "dec_heads": 2, "enc_depth": 2, "dec_depth": 2}

WITHOUT_OFFSET = {"enc_norm_add_unit_offset": False, "dec_norm_add_unit_offset": False}


def state(**changes):
    """Return the weights of a model, some of them replaced."""
    return {**x_transformer().state_dict(), **changes}


def test_arguments_beside_the_weights_are_read():
    torch.manual_seed(0)
    model = x_transformer(activation=torch.nn.functional.silu, offset=False).eval()
    swish = {"enc_ff_swish": True, "dec_ff_swish": True}
    conversion = convert({"model": model.state_dict(), "config": {**ARGUMENTS, **swish, **WITHOUT_OFFSET}}, **ENDS)
    assert conversion.config.activation_function == "silu"
    assert_same_logits(model, conversion.model())


def test_norms_that_seem_to_be_stored_whole_need_a_statement():
    """Whether 1 is added to them, weights do not tell; averages near 1 contradict the default."""
    torch.manual_seed(0)
    model = x_transformer(offset=False).eval()
    refused(r'averages 1\S* in the norms of the encoder.*"enc_norm_add_unit_off', model.state_dict(), **HEADS, **ENDS)
    conversion = convert({"model": model.state_dict(), "config": WITHOUT_OFFSET}, **HEADS, **ENDS)
    assert_same_logits(model, conversion.model())
    added = {name: True for name in WITHOUT_OFFSET}
    weights = convert({"model": model.state_dict(), "config": added}, **HEADS, **ENDS).weights
    gamma = model.state_dict()["encoder.attn_layers.final_norm.gamma"]
    torch.testing.assert_close(weights["model.encoder.layer_norm.weight"], gamma + 1)


def test_heads_of_another_width_than_d_over_h():
    torch.manual_seed(0)
    model = x_transformer(heads=4, widths=(3, 3)).eval()
    conversion = convert(model.state_dict(), encoder_attention_heads=4, **ENDS)
    assert (conversion.config.head_dim, conversion.config.value_head_dim) == (3, 3)
    assert_same_logits(model, conversion.model())
    refused("`encoder_attention_heads` is 'four'", model.state_dict(), encoder_attention_heads="four", **ENDS)


def test_feed_forward_without_biases():
    torch.manual_seed(0)
    model = x_transformer(ff_bias=False).eval()
    assert_same_logits(model, convert(model.state_dict(), **HEADS, **ENDS).model())


def test_pre_norm_without_norms_at_the_end():
    torch.manual_seed(0)
    model = x_transformer().eval()
    weights = {key: tensor for key, tensor in model.state_dict().items() if "final_norm" not in key}
    config = convert(weights, **HEADS, **ENDS).config
    assert (config.norm_position, config.final_layer_norm) == ("pre", False)


def test_special_tokens_are_required():
    refused("code: `decoder_start_token_id=1` `eos_token_id=2`$", state(), **HEADS)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("encoder.attn_layers.layers.0.0.0.g", "use_rmsnorm or use_scalenorm"),
        ("encoder.attn_layers.layers.0.0.1.gamma", "sandwich_norm"),
        ("encoder.attn_layers.layers.0.0.2.gamma", "norms stand at .'final', 'post', 'pre'. in the encoder"),
        ("encoder.attn_layers.layers.1.1.ff.0.proj.weight", "ff_glu"),
        ("decoder.net.attn_layers.rel_pos.relative_attention_bias.weight", "rel_pos_bias"),
        ("encoder.attn_layers.layers.1.1.to_q.weight", "the sub-layers of the encoder have another order"),
        ("encoder.project_emb.weight", "1 unexpected: encoder.project_emb.weight"),
    ],
    ids=str,
)
def test_weights_of_options_that_cannot_be_expressed(key, message):
    refused(message, state(**{key: torch.ones(8)}), **HEADS, **ENDS)


def test_fewer_heads_of_keys_are_refused():
    refused(
        r"attn_kv_heads or attn_one_kv_head .encoder.*layers.0.1.to_k",
        state(**{"encoder.attn_layers.layers.0.1.to_k.weight": torch.ones(4, 8)}),
        **HEADS,
        **ENDS,
    )


def test_models_without_positions_are_refused():
    weights = state()
    del weights["encoder.pos_emb.emb.weight"]
    refused(r"no encoder.pos_emb.emb.weight: .* use_abs_pos_emb=False", weights, **HEADS, **ENDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enc_attn_qk_norm": True}, "enc_attn_qk_norm=True, which our configuration cannot express"),
        ({"enc_ff_swish": True}, "the sides differ in ff_swish"),
        ({"enc_norm_add_unit_offset": "False"}, "the setting enc_norm_add_unit_offset .* must be true or false"),
    ],
    ids=["an option without weights", "one side", "a text"],
)
def test_wrong_arguments(arguments, message):
    refused(message, {"model": state(), "config": {**ARGUMENTS, **arguments}}, **ENDS)


@pytest.mark.slow
# x-transformers uses what newer releases of Python and PyTorch deprecate.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pre_norm": False},
        {"pre_norm_has_final_norm": False},
        {"ff_swish": True, "ff_no_bias": True, "norm_add_unit_offset": False},
        {"attn_dim_head": 6},
        {"tie_token_emb": True},
    ],
    ids=lambda options: ", ".join(options) or "defaults",
)
def test_the_original(options):
    """The class of x-transformers itself, where it is installed."""
    reason = "needs x-transformers, which is no dependency of ours"
    package = pytest.importorskip("x_transformers", reason=reason, exc_type=ImportError)
    sizes = {"num_tokens": 13, "max_seq_len": 10, "depth": 2, "heads": 2, "attn_dim_head": 8}
    tied = "tie_token_emb" in options
    arguments = {f"{side}_{name}": value for side in ("enc", "dec") for name, value in {**sizes, **options}.items()
                 if name != "tie_token_emb"}  # fmt: skip  # one dict
    torch.manual_seed(0)
    model = package.XTransformer(dim=16, tie_token_emb=tied, **arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    conversion = convert({"model": model.state_dict(), "config": arguments}, **ENDS)
    assert conversion.config.share_encoder_decoder_embeddings == tied
    source, target = torch.randint(0, 13, (3, 6)), torch.randint(0, 13, (3, 5))
    mask = torch.arange(6) < torch.tensor([6, 4, 2])[:, None]
    with torch.no_grad():
        memory = model.encoder(source, mask=mask, return_embeddings=True)
        expected = model.decoder.net(target, context=memory, context_mask=mask)
    found = converted_logits(conversion.model(), source, target, mask)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    assert expected.std() > 0.05
