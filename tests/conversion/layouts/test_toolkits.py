"""Conversion of OpenNMT-py, Eole, Joey NMT, Sockeye and x-transformers: files, settings, and what is refused."""

import copy
import json
import sys
from argparse import Namespace
from functools import partial
from types import ModuleType

import pytest
import torch
from torch.nn.functional import gelu, silu
from transformers import AutoTokenizer

from conversions import ENDS, HEADS, TOLERANCE, assert_same_logits, convert, converted_logits, refused
from hf_vanilla_transformer.conversion import convert_checkpoint
from source_models import eole, joeynmt, opennmt, sockeye, sockeye_file, x_transformer
from tables import looped
from toolkit_files import (
    BLANK,
    EOLE_VOCABULARY,
    JOEY_CONFIG,
    SOCKEYE_POST,
    WORDS,
    joey_config,
    opennmt_content,
    target_words,
    write_eole,
    write_joey,
    write_opennmt,
    write_sockeye,
)

PRE, POST = ({"norm_position": norm, "final_layer_norm": norm == "pre"} for norm in ("pre", "post"))
OPENNMT = {**PRE, "layer_norm_eps": 1e-6, "encoder_attention_heads": 2, "dropout": 0.2, "attention_dropout": 0.1}
JOEY = {"layer_norm_eps": 1e-6, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "dropout": 0.3}
SOCKEYE = {"layer_norm_eps": 1e-6, "sinusoidal_layout": "concatenated", "dropout": 0.3, "attention_dropout": 0.2}
EOLE_STACKS = dict.fromkeys(("encoder", "decoder"), {"mlp_activation_fn": "silu", "norm_eps": 1e-5})
# By case: the layout, functions that create the original and write its files, and expected fields.
FILES = {
    "OpenNMT-py 2": ("opennmt-py", opennmt, partial(write_opennmt, release=2), {**OPENNMT, "attention_bias": True}),
    "OpenNMT-py 3": (
        "opennmt-py", partial(opennmt, attention_bias=False), partial(write_opennmt, options_as=dict),
        {**OPENNMT, "attention_bias": False},
    ),
    "Eole": (
        "eole", partial(eole, activation=silu, attention_bias=False), partial(write_eole, **EOLE_STACKS),
        {**PRE, "layer_norm_eps": 1e-5, "encoder_attention_heads": 2},
    ),
    "Joey NMT, pre": ("joeynmt", joeynmt, write_joey, {**PRE, **JOEY}),
    "Joey NMT, post": (
        "joeynmt", partial(joeynmt, pre=False), partial(write_joey, config=joey_config(layer_norm="post")),
        {**POST, **JOEY},
    ),
    "Sockeye, pre": (
        "sockeye", partial(sockeye, activation=silu), partial(write_sockeye, act_type="swish1"), {**PRE, **SOCKEYE},
    ),
    "Sockeye, post": ("sockeye", partial(sockeye, pre=False), partial(write_sockeye, **SOCKEYE_POST), POST),
}  # fmt: skip  # a table


@looped("case", FILES)
def test_files_say_all(case, tmp_path):
    layout, make, write, expected = FILES[case]
    torch.manual_seed(0)
    model = make().eval()
    conversion = convert(write(tmp_path, model))
    assert conversion.layout.name == layout
    assert {name: getattr(conversion.config, name) for name in expected} == expected
    assert_same_logits(model, conversion.model())


@pytest.mark.parametrize(
    ("write", "source"),
    # OpenNMT-py adds no end token to sources.
    [(write_opennmt, [9, 0, 7]), (write_joey, [9, 0, 7, 3]), (write_sockeye, [9, 1, 7, 3])],
    ids=["OpenNMT-py", "Joey NMT", "Sockeye"],
)
def test_vocabularies_become_the_tokenizer(tmp_path, write, source):
    (tmp_path / "theirs").mkdir()
    convert_checkpoint(write(tmp_path / "theirs"), tmp_path / "ours")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer("the zebra sleeps")["input_ids"] == source
    assert tokenizer(text_target="CAT !")["input_ids"] == [5, 13, 3]


OPENNMT_GATE = "encoder.transformer.0.feed_forward.w_3.weight"
X_LAYER = "encoder.attn_layers.layers"
X_ARGUMENTS = {"enc_heads": 2, "dec_heads": 2, "enc_depth": 2, "dec_depth": 2}


def without(weights, end):
    return {key: tensor for key, tensor in weights.items() if not key.endswith(end)}


def x_weights(**changes):
    return {**x_transformer().state_dict(), **changes}


def eole_without_positions(folder):
    return write_eole(folder, without(eole().state_dict(), "tgt_emb.pe.pe"))


def with_auxiliary_task(folder):
    file = write_sockeye(folder)
    torch.save({**sockeye_file(sockeye()), "length_ratio.layers.0.weight": torch.ones(1, 8)}, file)
    return file


# Models that our configuration cannot express: a function that writes or returns one, and the message.
REFUSED = [
    (partial(write_opennmt, max_relative_positions=20), "max_relative_positions: 20, which our configuration"),
    (partial(write_opennmt, pos_ffn_activation_fn="gated-gelu"), "pos_ffn_activation_fn: gated-gelu"),
    (
        lambda _: {**opennmt_content(), "model": {**opennmt().state_dict(), OPENNMT_GATE: torch.ones(16, 8)}},
        "gated fe",
    ),
    (lambda _: {**opennmt_content(), "model": without(opennmt().state_dict(), "pe")}, "no sinusoidal positions"),
    (
        partial(write_eole, encoder={"layer_norm": "rms"}),
        r"Eole's layer_norm \(encoder\): rms, which our configuration",
    ),
    (partial(write_eole, decoder={"mlp_activation_fn": "gelu"}), "differ in mlp_activation_fn .'relu' and 'gelu'."),
    (partial(write_eole, embeddings={"position_encoding_type": "Rotary"}), r"_type \(embeddings\): Rotary"),
    (partial(write_eole, vocabulary={"src": 5, "tgt": 5}), "`source_vocabulary` holds int; write"),
    (eole_without_positions, r"the decoder adds no positions to its embeddings .tgt_emb\.pe."),
    (partial(write_joey, config=joey_config("encoder", alpha=1.2)), "the encoder scales residuals by alpha: 1.2, whi"),
    (
        partial(write_joey, config=joey_config("decoder", activation="gelu")),
        "differ in activation .'relu' and 'gelu'.",
    ),
    (partial(write_joey, config=joey_config("decoder", embeddings={"scale": False})), "embeddings: scale .True and F"),
    (partial(write_joey, config=joey_config("decoder", layer_norm="post")), "differ in layer_norm .'pre' and 'post'."),
    (partial(write_joey, config=joey_config(activation="swoosh")), "swoosh"),
    (partial(write_sockeye, side="decoder", decoder_type="ssru_transformer"), "decoder_type: ssru_transformer, which"),
    (
        partial(write_sockeye, postprocess_sequence="drn"),
        "has the processing steps .'n', 'drn'. before and after",
    ),
    (partial(write_sockeye, act_type="tanhs"), "the activation 'tanhs'"),
    (partial(write_sockeye, side="decoder", act_type="gelu"), "differ in act_type .'relu' and 'gelu'."),
    (
        partial(write_sockeye, attention_heads=3),
        "has 24 rows, which do not split into the 3 heads of `config`",
    ),
    (with_auxiliary_task, r"1 unexpected: length_ratio\.layers\.0\.weight"),
    *(
        (lambda _, key=key: {"model": x_weights(**{key: torch.ones(8)}), "config": X_ARGUMENTS}, message)
        for key, message in (
            (f"{X_LAYER}.0.0.0.g", "use_rmsnorm or use_scalenorm"),
            (f"{X_LAYER}.0.0.1.gamma", "sandwich_norm"),
            (f"{X_LAYER}.0.0.2.gamma", "the norms are .'final', 'post', 'pre'. in the encoder"),
            (f"{X_LAYER}.1.1.ff.0.proj.weight", "ff_glu"),
            ("decoder.net.attn_layers.rel_pos.relative_attention_bias.weight", "rel_pos_bias"),
            (f"{X_LAYER}.1.1.to_q.weight", "the sub-layers of the encoder are not in the order self_attn, ff "),
            ("encoder.project_emb.weight", "1 unexpected: encoder.project_emb.weight"),
        )
    ),
    (lambda _: x_weights(**{f"{X_LAYER}.0.1.to_k.weight": torch.ones(4, 8)}), "attn_kv_heads or attn_one_kv_head"),
    (
        lambda _: without(x_weights(), "encoder.pos_emb.emb.weight"),
        "no encoder.pos_emb.emb.weight: .* use_abs_pos_emb=",
    ),
    *(
        (lambda _, changes=changes: {"model": x_weights(), "config": {**X_ARGUMENTS, **changes}}, message)
        for changes, message in (
            ({"enc_attn_qk_norm": True}, "enc_attn_qk_norm=True, which our configuration cannot express"),
            ({"enc_ff_swish": True}, "encoder and decoder differ in ff_swish"),
            ({"enc_norm_add_unit_offset": "False"}, "the setting enc_norm_add_unit_offset .* must be true or false"),
        )
    ),
]


@looped(("make", "message"), REFUSED)
def test_what_cannot_be_expressed(tmp_path, make, message):
    source = make(tmp_path)
    refused(message, source, **ENDS if isinstance(source, dict) else {})


class TestOpenNMT:
    def test_a_source_of_release_2_has_no_start_and_no_end(self):
        """Ids and embeddings move together, so texts are encoded to the same states."""
        torch.manual_seed(0)
        model = opennmt(source_vocabulary=11).eval()
        content = opennmt_content(model, release=2)
        content["vocab"]["src"] = [*BLANK[:2], *WORDS]
        conversion = convert(content)
        assert conversion.config.vocab_size == 13 and any("renumbered" in note for note in conversion.notes)
        ids = conversion.tokenizer("a zebra runs the cat", return_tensors="pt")["input_ids"]
        target = torch.tensor([[2, 5, 6]])
        with torch.no_grad():
            expected = model(torch.tensor([[2, 0, 6, 7, 3]]), target)
        found = converted_logits(conversion.model(), ids, target)
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)

    def test_special_tokens_are_found_in_the_vocabulary(self):
        content = opennmt_content()
        content["vocab"]["tgt"] = [*target_words(BLANK)[4:], "</s>", "<blank>", "<unk>", "<s>"]
        content["vocab"]["decoder_start_token"] = content["opt"].decoder_start_token = "</s>"
        config = convert(content).config
        assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (14, 16, 13)
        assert config.decoder_start_token_id == 13

    def test_without_options_they_are_required(self):
        content = opennmt_content()
        del content["opt"]
        refused(r"code: `encoder_attention_heads=8` .*`activation_function=relu\|", content)
        assert convert(content, encoder_attention_heads=2, activation_function="relu").config.scale_embedding

    def test_other_sinusoids_are_kept(self):
        """With `position_encoding_type: SinusoidalConcat`, wavelengths differ from the paper's."""
        model = opennmt().eval()
        for table in model.buffers():
            table.normal_()
        conversion = convert(opennmt_content(model))
        assert conversion.config.position_embedding_type == "learned"
        assert_same_logits(model, conversion.model())

    def test_objects_of_release_2_are_no_lists(self, tmp_path, monkeypatch):
        module = ModuleType("onmt.inputters")
        module.TextMultiField = type("TextMultiField", (), {"__module__": module.__name__})
        monkeypatch.setitem(sys.modules, "onmt", ModuleType("onmt"))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        content = {**opennmt_content(release=2, options_as=Namespace), "vocab": {"src": module.TextMultiField()}}
        torch.save(content, tmp_path / "model.pt")
        refused(r"onmt\.inputters\.TextMultiField, which is not run; where OpenNMT-py 2 is", tmp_path / "model.pt")


class TestEole:
    def test_shared_weights_are_stored_once(self, tmp_path):
        torch.manual_seed(0)
        model = eole(source_vocabulary=17, shared=True, tied=True).eval()
        weights = without(model.state_dict(), ("tgt_emb.embeddings.weight", "generator.weight"))
        shares = {"share_embeddings": True, "share_decoder_embeddings": True}
        vocabulary = {**EOLE_VOCABULARY, "src": target_words(BLANK)}
        conversion = convert(write_eole(tmp_path, weights, vocabulary, **shares))
        assert conversion.config.share_encoder_decoder_embeddings and conversion.config.tie_word_embeddings
        assert_same_logits(model, conversion.model())

    def test_special_tokens_anywhere_in_the_vocabulary(self, tmp_path):
        (tmp_path / "theirs").mkdir()
        words = [*target_words(BLANK)[4:], *BLANK]
        vocabulary = {**EOLE_VOCABULARY, "tgt": words, "decoder_start_token": "</s>"}
        convert_checkpoint(write_eole(tmp_path / "theirs", vocabulary=vocabulary), tmp_path / "ours")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
        assert tokenizer(text_target="CAT !")["input_ids"] == [1, 9, 16]
        assert tokenizer("the zebra sleeps").tokens() == ["the", "<unk>", "sleeps"]
        config = json.loads((tmp_path / "ours" / "config.json").read_text())
        assert (config["pad_token_id"], config["decoder_start_token_id"]) == (14, 16)


class TestJoeyNMT:
    HEADS = {f"{stack}_num_heads": 2 for stack in ("encoder", "decoder")}

    def test_settings_that_its_configuration_leaves_out(self):
        """They default to the values in Joey NMT's code."""
        torch.manual_seed(0)
        model = joeynmt(scale=False, activation=gelu).eval()
        settings = {f"{stack}_activation": "gelu" for stack in ("encoder", "decoder")}
        conversion = convert({"model_state": model.state_dict(), "config": {**self.HEADS, **settings}})
        assert not conversion.config.scale_embedding
        assert_same_logits(model, conversion.model())
        found = convert({"model_state": model.state_dict(), "config": self.HEADS})
        assert found.config.activation_function == "relu"

    def test_special_ids_of_the_configuration(self, tmp_path):
        config = copy.deepcopy(JOEY_CONFIG)
        config["data"]["special_symbols"] = {"unk_id": 3, "pad_id": 2, "bos_id": 1, "eos_id": 0}
        found = convert(write_joey(tmp_path, config=config)).config
        assert (found.pad_token_id, found.bos_token_id, found.eos_token_id) == (2, 1, 0)
        assert found.decoder_start_token_id == 1

    @pytest.mark.parametrize("pre", [True, False])
    def test_without_its_configuration_settings_are_required(self, tmp_path, pre):
        # Only pre-norm stacks end in a norm.
        norm = "" if pre else r"`norm_position=post\|pre` "
        file = write_joey(tmp_path, joeynmt(pre=pre), config=None)
        refused(rf"code: `enc\S+=8` `dec\S+=8` {norm}`activation_f\S+` `scale_emb\S+`$", file)

    def test_a_norm_at_the_end_of_one_stack(self):
        state = without(joeynmt().state_dict(), ("encoder.layer_norm.weight", "encoder.layer_norm.bias"))
        refused("differ in a norm at the end .False and True.", {"model_state": state, "config": self.HEADS})

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("model: [", "config.yaml cannot be read"),
            ("- a", "config.yaml is not a mapping"),
            ("!!python/object:os.system {}", "config.yaml cannot be read"),
            ("!ModelConfig [1]", "config.yaml cannot be read"),
        ],
        ids=["no YAML", "a list", "code", "an object of a list"],
    )
    def test_a_configuration_that_cannot_be_read(self, tmp_path, text, message):
        file = write_joey(tmp_path)
        (tmp_path / "config.yaml").write_text(text)
        refused(message, file)


def test_sockeye_without_its_configuration(tmp_path):
    file = write_sockeye(tmp_path)
    (tmp_path / "config").unlink()
    refused("no `config` beside the weights gives the number of heads of the encoder; put", file)


class TestXTransformers:
    WITHOUT_OFFSET = {"enc_norm_add_unit_offset": False, "dec_norm_add_unit_offset": False}

    def test_arguments_beside_the_weights_are_read(self):
        torch.manual_seed(0)
        model = x_transformer(activation=silu, offset=False).eval()
        config = {**X_ARGUMENTS, "enc_ff_swish": True, "dec_ff_swish": True, **self.WITHOUT_OFFSET}
        conversion = convert({"model": model.state_dict(), "config": config}, **ENDS)
        assert conversion.config.activation_function == "silu"
        assert_same_logits(model, conversion.model())

    def test_norms_that_seem_to_be_stored_whole_need_a_statement(self):
        """Weights do not determine whether 1 is added to them, but averages near 1 contradict the default."""
        torch.manual_seed(0)
        model = x_transformer(offset=False).eval()
        weights = model.state_dict()
        refused(r'averages 1\S* in the norms of the encoder.*"enc_norm_add_unit_off', weights, **HEADS, **ENDS)
        conversion = convert({"model": weights, "config": self.WITHOUT_OFFSET}, **HEADS, **ENDS)
        assert_same_logits(model, conversion.model())
        added = dict.fromkeys(self.WITHOUT_OFFSET, True)
        found = convert({"model": weights, "config": added}, **HEADS, **ENDS).weights
        gamma = weights["encoder.attn_layers.final_norm.gamma"]
        torch.testing.assert_close(found["model.encoder.layer_norm.weight"], gamma + 1)

    def test_heads_of_another_width_than_d_over_h_and_no_biases(self):
        torch.manual_seed(0)
        model = x_transformer(heads=4, widths=(3, 3), ff_bias=False).eval()
        conversion = convert(model.state_dict(), encoder_attention_heads=4, **ENDS)
        assert (conversion.config.head_dim, conversion.config.value_head_dim) == (3, 3)
        assert_same_logits(model, conversion.model())
        refused("`encoder_attention_heads` is 'four'", model.state_dict(), encoder_attention_heads="four", **ENDS)

    def test_what_weights_show_and_leave_open(self):
        weights = {key: tensor for key, tensor in x_weights().items() if "final_norm" not in key}
        config = convert(weights, **HEADS, **ENDS).config
        assert (config.norm_position, config.final_layer_norm) == ("pre", False)
        refused("code: `decoder_start_token_id=1` `eos_token_id=2`$", weights, **HEADS)
