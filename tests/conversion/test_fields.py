"""Configuration fields: inferred from weights, required from the caller, and contradictions."""

import json
import re
from functools import partial

import pytest
import torch
from torch import nn

import source_models
from conversions import HEADS, STATED, TOLERANCE, assert_same_logits, convert, converted_logits, refused
from source_models import Norm
from tables import looped


@looped(
    ("fields", "message"),
    [
        ({}, "code: `encoder_attention_heads=8` `decoder_attention_heads=8`$"),
        ({"encoder_head": 2}, "`encoder_head` is not a field.*did you mean encoder_"),
        ({"zzz": 2}, "`zzz` is not a field of the configuration; see VanillaTransformerConfig"),
        ({"d_model": 16, **HEADS}, "`d_model=16`, but the weights imply 8"),
        ({"encoder_attention_heads": 3}, "not a multiple of `encoder_attention_heads`=3"),
        ({"tie_word_embeddings": True, **HEADS}, "`tie_word_embeddings=True`, but .* differ"),
        ({"eos_token_id": 17, **HEADS}, "`eos_token_id` is 17; use an id in both vocabularies"),
    ],
)
def test_impossible_fields(fields, message):
    refused(message, source_models.annotated().state_dict(), **fields)


@pytest.mark.parametrize("settings", [None, {"lr": 1}], ids=["weights", "unrelated settings"])
def test_heads_that_shapes_determine(settings):
    state = source_models.shared_heads().state_dict()
    source = state if settings is None else {"state_dict": state, "config": settings}
    refused("encoder_attention_heads=4`, but the weights imply 2", source, patched=True, encoder_attention_heads=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda embedding: embedding.to(torch.int8), "are torch.int8; save the weights as floating-point numbers"),
        (lambda embedding: embedding[0], "the encoder's embeddings have shape 8; they must have two axes"),
    ],
    ids=["integers", "one axis"],
)
def test_impossible_embeddings(change, message):
    state = source_models.annotated().state_dict()
    state["src_embed.0.lut.weight"] = change(state["src_embed.0.lut.weight"])
    refused(message, state, **HEADS)


class SeparateStacks(source_models.TorchNN):
    """Separate encoder and decoder of torch; only the stacks in `normed` end in a norm."""

    def __init__(self, *normed, decoder_width=8):
        super().__init__()
        encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        decoder = nn.TransformerDecoderLayer(decoder_width, 2, 16, dropout=0.0)
        norms = {stack: nn.LayerNorm(8) if stack in normed else None for stack in ("encoder", "decoder")}
        self.transformer.encoder = nn.TransformerEncoder(encoder, 2, norms["encoder"], enable_nested_tensor=False)
        self.transformer.decoder = nn.TransformerDecoder(decoder, 2, norms["decoder"])
        if decoder_width != 8:
            self.tgt_tok_emb.embedding = nn.Embedding(17, decoder_width)
            self.generator = nn.Linear(decoder_width, 17)


class TestSeparateStacks:
    def convert(self, model):
        state = {key.replace("transformer.", ""): tensor for key, tensor in model.state_dict().items()}
        pairs = [f"{stack}.=transformer.{stack}." for stack in ("encoder", "decoder")]
        stated = {**STATED, **HEADS, "norm_position": "post", "unbiased_norms": False, "rename": pairs}
        return convert(state, **stated)

    @pytest.mark.parametrize("normed", [(), ("encoder", "decoder")], ids=["without final norms", "with final norms"])
    def test_both_end_alike(self, normed):
        model = SeparateStacks(*normed).eval()
        conversion = self.convert(model)
        assert conversion.config.final_layer_norm == bool(normed)
        assert_same_logits(model, conversion.model())

    @pytest.mark.parametrize(("normed", "other"), [("encoder", "decoder"), ("decoder", "encoder")])
    def test_one_of_them_ends_in_a_norm(self, normed, other):
        message = f"has a norm at the end of the {normed}, but none at the end of the {other}, which our conf"
        with pytest.raises(ValueError, match=message):
            self.convert(SeparateStacks(normed))

    def test_of_two_widths(self):
        with pytest.raises(ValueError, match="embeddings of width 8 in the encoder and 12 in the decoder, which our"):
            self.convert(SeparateStacks(decoder_width=12))


def rename_pairs(state, changes):
    """Return a rename pair for every key that these (pattern, replacement) substitutions change."""
    names = {key: key for key in state}
    for old, new in changes:
        names = {key: re.sub(old, new, name) for key, name in names.items()}
    return [f"{key}={name}" for key, name in names.items() if key != name]


# Maps the keys of a tutorial with learned positions to fairseq's.
LEARNED = [
    (r"tok_embedding", "embed_tokens"), (r"pos_embedding", "embed_positions"), (r"fc_out", "output_projection"),
    (r"positionwise_feedforward\.fc_", "fc"), (r"self_attention", "self_attn"),
    (r"encoder_attention", "encoder_attn"), (r"enc_attn_layer_norm", "encoder_attn_layer_norm"),
    (r"ff_layer_norm", "final_layer_norm"), (r"fc_([qkv])", r"\1_proj"), (r"fc_o\b", "out_proj"),
]  # fmt: skip  # one pair a line would fill the screen


class TestRenamed:
    """After renaming, nothing is assumed that the weights do not determine."""

    @pytest.fixture
    def scalar(self):
        """A pre-norm variant of the scalar-norm tutorial under renamed keys."""
        model = source_models.scalar_norms(pre=True).eval()
        state = {key.replace(".linear", ".linear_"): tensor for key, tensor in model.state_dict().items()}
        return model, state, rename_pairs(state, [(r"linear_(\d)", r"linear\1")])

    def test_one_message_lists_all_that_is_required(self, scalar):
        _, state, pairs = scalar
        stated = {"rename": pairs, "norm_position": "pre", **HEADS}
        message = refused("the renamed weights of scalar-norm do not determine", state, **stated)
        for argument in (
            "`activation_function=relu|gelu", "`scale_embedding=true|false`", "`layer_norm_eps=1e-06`",
            "`eos_token_id=3`", "`first_position=0`", "`unbiased_norms=true|false`",
        ):  # fmt: skip  # one argument a line would fill the screen
            assert argument in message
        assert "norm_position" not in message and "heads" not in message
        refused(r"norm_position=post\|pre` `layer_norm", state, rename=pairs, **HEADS)

    def test_norms_before_the_sublayers(self, scalar):
        model, state, pairs = scalar
        stated = {**STATED, **HEADS, "layer_norm_eps": 1e-6, "unbiased_norms": True, "rename": pairs}
        assert_same_logits(model, convert(state, **{**stated, "norm_position": "pre"}).model())
        with pytest.raises(AssertionError, match="not close"):
            assert_same_logits(model, convert(state, **stated).model())

    @pytest.mark.parametrize("unbiased", [True, False])
    def test_norms_by_either_standard_deviation(self, unbiased):
        """A copy of the Annotated Transformer may differ in one name and in its standard deviation."""
        model = source_models.annotated(norm=partial(Norm, weight="a_2", bias="b_2", eps=1e-6, unbiased=unbiased))
        state = {key.replace("generator.", "head."): tensor for key, tensor in model.state_dict().items()}
        stated = {**STATED, **HEADS, "norm_position": "pre", "layer_norm_eps": 1e-6, "rename": ["head.=generator."]}
        assert_same_logits(model, convert(state, **{**stated, "unbiased_norms": unbiased}).model())
        with pytest.raises(AssertionError, match="not close"):
            assert_same_logits(model, convert(state, **{**stated, "unbiased_norms": not unbiased}).model())

    @looped("stored", [True, False])
    @looped(
        "name",
        ("annotated", "TorchNN", "scalar_norms", "hkproj", "samlynnevans", "statquest", "phrases", "shared_heads",
         "gamma_beta"),
    )  # fmt: skip  # a list, not a block
    def test_what_is_required_suffices_as_offered(self, name, stored):
        """A user copies the message and takes the first of each choice."""
        weights = getattr(source_models, name)().state_dict()
        if not stored:
            weights = {key: value for key, value in weights.items() if not re.search(r"\.(pe|pos_embedding)$", key)}
        last = next(key for key in reversed(weights) if key.endswith("weight") and "norm" not in key)
        renamed = {("theirs" if key == last else key): tensor for key, tensor in weights.items()}
        options = {"rename": [f"theirs={last}"], "patched": name in ("phrases", "shared_heads")}
        required = refused("values of the original code: `", renamed, **options).partition("code: ")[2]
        pairs = dict(text.strip("`").split("=") for text in required.split())
        stated = {name: json_or_text(value.partition("|")[0]) for name, value in pairs.items()}
        assert ("norm_position" in stated) == (name != "statquest")
        assert ("first_position" in stated) == stored == ("sinusoidal_layout" not in stated)
        heads = {name: 1 for name in stated if name.endswith("heads")}
        convert(renamed, **options, **{**stated, **heads})


def json_or_text(value):
    try:
        return json.loads(value)
    except ValueError:
        return value


class TestRenamedLearnedPositions:
    @pytest.fixture
    def model(self):
        return source_models.bentrevett().eval()

    @pytest.fixture
    def stated(self, model):
        return {**STATED, **HEADS, "rename": rename_pairs(model.state_dict(), LEARNED)}

    def test_are_used_from_the_first_position(self, model, stated):
        state = model.state_dict()
        asked = "the renamed weights of fairseq do not .*code: `first_position=0`$"
        refused(asked, state, **{**stated, "first_position": None})
        conversion = convert(state, **stated)
        assert conversion.layout.name == "fairseq" and conversion.config.max_position_embeddings == 20
        # None of fairseq's own search settings.
        assert conversion.generation == {"max_length": 20}
        source, target = torch.randint(0, 13, (3, 6)), torch.randint(0, 17, (3, 5))
        with torch.no_grad():
            expected = model(source, target)
        found = converted_logits(conversion.model(), source, target)
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
        assert convert(state, **{**stated, "first_position": 2}).config.max_position_embeddings == 18
        beyond = "has 20 rows, so the first token cannot have row 20; pass `first_position` from 0 to 19"
        refused(beyond, state, **{**stated, "first_position": 20})

    def test_that_are_not_stored(self, model, stated):
        state = {key: tensor for key, tensor in model.state_dict().items() if "pos_embedding" not in key}
        pairs = [pair for pair in stated["rename"] if "pos_embedding" not in pair]
        stated = {**stated, "rename": pairs, "first_position": None}
        refused(r"code: `sinusoidal_layout=interleaved\|concatenated`$", state, **stated)
        kind = {"position_embedding_type": "sinusoidal", "sinusoidal_layout": "interleaved"}
        config = convert(state, **stated, **kind).config
        assert (config.position_embedding_type, config.sinusoidal_layout) == ("sinusoidal", "interleaved")
        refused(
            "`first_position` is set, but the weights have no position",
            state,
            **{**stated, **kind, "first_position": 0},
        )


@pytest.mark.parametrize("number", [9, 9999, 999_999])
def test_most_layers_are_missing(number):
    """A model with as many layers as the highest index implies could fill all memory."""
    state = source_models.annotated().state_dict()
    state = {key.replace("decoder.layers.1.", f"decoder.layers.{number}."): state[key] for key in state}
    refused(f"state dict has layer {number} of the decoder, but no layer 1;", state, **HEADS)


def test_a_layer_whose_number_is_none():
    state = source_models.annotated().state_dict()
    for number in ("9" * 5000, "\u0663"):
        damaged = {key.replace("decoder.layers.1.", f"decoder.layers.{number}."): state[key] for key in state}
        assert len(refused(f"unexpected: decoder.layers.{number[:5]}", damaged, **HEADS)) < 1100
