"""Export to CTranslate2: equal log-probabilities for every shape, quantization, vocabularies, and refusals."""

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.export.ctranslate2 import ACTIVATIONS, equalize_layers, vocabularies, write_ctranslate2
from tiny import VOCABULARIES, close, perturbed_model, tiny_model, tokens
from translators import PAIR, SHARED

ctranslate2 = pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")

SHAPES = {
    "paper": {},
    "pre-norm": {"norm_position": "pre"},
    "pre-norm without a final one": {"norm_position": "pre", "final_layer_norm": False},
    "post-norm with a final one": {"final_layer_norm": True},
    "norm after the embeddings": {"embedding_layer_norm": True},
    "pre-norm with one after the embeddings": {"norm_position": "pre", "embedding_layer_norm": True},
    "Marian's positions": {"sinusoidal_layout": "concatenated"},
    "learned positions": {"position_embedding_type": "learned"},
    "biases": {"attention_bias": True, "lm_head_bias": True},
    "unscaled": {"scale_embedding": False},
    "epsilon": {"layer_norm_eps": 0.1},
    "narrow heads": {"head_dim": 3},
    "wide values": {"head_dim": 3, "value_head_dim": 5, "attention_bias": True},
    "wide keys": {"head_dim": 9, "value_head_dim": 5},
    **{f"vocabularies {name}": changes for name, changes in VOCABULARIES.items()},
    **{name: {"activation_function": name} for name in ACTIVATIONS},
}

WIDE = {"d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
PROCESSOR = torch.cpu.get_capabilities()
needs_vnni = pytest.mark.skipif(
    bool(PROCESSOR.get("avx2") and not (PROCESSOR.get("avx512_vnni") or PROCESSOR.get("avx_vnni"))),
    reason="without VNNI, sums of int8 products saturate at 16 bits in CTranslate2's oneDNN",
)
SHOWN = ["Marian's positions", "unscaled", "epsilon", "tanh", "gelu", "pre-norm", "norm after the embeddings"]


def write_and_load(model, folder, quantization="float32", **options):
    folder.mkdir()
    write_ctranslate2(model, folder, quantization=quantization, **options)
    return ctranslate2.Translator(str(folder), intra_threads=1)


def log_probs(model, ids, targets):
    labels = torch.cat([targets, torch.full((len(targets), 1), model.config.eos_token_id)], 1)
    with torch.no_grad():
        logits = model(input_ids=ids, labels=labels).logits
    return logits.log_softmax(-1).gather(2, labels[..., None])[..., 0]


def scores(translator, model, ids, targets):
    names = vocabularies(model.config, None)
    sides = [
        [[name[i] for i in row] for row in part.tolist()] for name, part in zip(names, (ids, targets), strict=True)
    ]
    return torch.tensor([result.log_probs for result in translator.score_batch(*sides)])


class TestWeights:
    @pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
    def test_every_shape_gives_our_probabilities(self, changes, tmp_path):
        model = perturbed_model(**changes)
        ids, targets = tokens(4, 7), tokens(4, 5)
        expected = log_probs(model, ids, targets)
        found = scores(write_and_load(model, tmp_path / "exported"), model, ids, targets)
        close(found, expected, 1e-4)

    @pytest.mark.parametrize("name", SHOWN)
    def test_a_shape_that_is_left_out_shows(self, name, tmp_path):
        ids, targets = tokens(4, 7), tokens(4, 5)
        model = perturbed_model(**SHAPES[name])
        found = scores(write_and_load(perturbed_model(), tmp_path / "paper"), model, ids, targets)
        assert (found - log_probs(model, ids, targets)).abs().max() > 0.01

    @pytest.mark.parametrize(
        ("quantization", "tolerance"),
        [("float16", 0.02), *(pytest.param(f"int8{end}", 0.3, marks=needs_vnni) for end in ("", "_float16"))],
    )
    def test_fewer_bits_give_nearly_the_same(self, quantization, tolerance, tmp_path):
        model = perturbed_model(**WIDE)
        ids, targets = tokens(4, 7), tokens(4, 5)
        found = scores(write_and_load(model, tmp_path / "exported", quantization), model, ids, targets)
        assert 1e-5 < (found - log_probs(model, ids, targets)).abs().mean() < tolerance

    @pytest.mark.parametrize("quantization", ["float16", "int8", "int8_float16"])
    def test_fewer_bits_take_less_space_and_leave_the_model_as_it_was(self, quantization, tmp_path):
        model = perturbed_model(**WIDE)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        write_and_load(model, tmp_path / "exported", quantization)
        write_and_load(model, tmp_path / "whole")
        sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("exported", "whole")]
        assert sizes[0] < 0.6 * sizes[1]
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    def test_more_positions_where_they_are_computed(self, tmp_path):
        model = perturbed_model()
        ids, targets = tokens(2, 50), tokens(2, 45)
        found = scores(write_and_load(model, tmp_path / "exported", max_positions=50), model, ids, targets)
        close(found, log_probs(model, ids, targets), 1e-4)


class TestBalance:
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"norm_position": "pre", "attention_bias": True, "value_head_dim": 3},
            # Only ReLU lets units be rescaled.
            {"activation_function": "gelu"},
        ],
        ids=str,
    )
    def test_the_same_model_of_other_weights(self, changes):
        model = perturbed_model(**changes)
        twin = equalize_layers(model)
        ids, targets = tokens(4, 7), tokens(4, 5)
        close(log_probs(twin, ids, targets), log_probs(model, ids, targets), 1e-4)
        for name in ("fc2", "self_attn.out_proj"):
            before, after = (each.model.decoder.layers[0].get_submodule(name).weight for each in (model, twin))
            is_left_alone = name == "fc2" and "activation_function" in changes
            assert torch.allclose(before, after) == is_left_alone

    def test_no_unit_takes_the_bits_of_the_others(self):
        """The weights of one inner unit are divided by 1000 in fc1 and multiplied by 1000 in fc2."""
        model = perturbed_model()
        for stack in (model.model.encoder, model.model.decoder):
            for layer in stack.layers:
                with torch.no_grad():
                    layer.fc1.weight[0] /= 1000
                    layer.fc1.bias[0] /= 1000
                    layer.fc2.weight[:, 0] *= 1000
        columns = [
            each.model.encoder.layers[0].fc2.weight.detach().abs().amax(0) for each in (model, equalize_layers(model))
        ]
        spread = [float(each.max() / each.median()) for each in columns]
        assert spread[0] > 500 and spread[1] < 50


class TestVocabularies:
    def test_rows_without_tokens_are_named(self, tmp_path):
        config = VanillaTransformerConfig(vocab_size=len(SHARED) + 3)
        source, target = vocabularies(config, SHARED)
        assert source == target and len(set(source)) == len(SHARED) + 3
        assert source[: len(SHARED)] == SHARED.convert_ids_to_tokens(range(len(SHARED)))

    def test_two_sides(self):
        sizes = {"vocab_size": len(PAIR), "decoder_vocab_size": PAIR.target_vocab_size}
        config = VanillaTransformerConfig(**sizes, share_encoder_decoder_embeddings=False)
        source, target = vocabularies(config, PAIR)
        assert "cat" in source and "cat" not in target and "gato" in target
        assert target == PAIR.convert_ids_to_tokens(range(PAIR.target_vocab_size))

    def test_too_many_tokens(self):
        with pytest.raises(
            ValueError, match="source vocabulary has ids up to .*, but the model has 10 embedding rows"
        ):
            vocabularies(VanillaTransformerConfig(vocab_size=10), SHARED)


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("norm_position", "none"), ("encoder_ffn_dim", 0), ("decoder_ffn_dim", 0),
            ("activation_function", "linear"), ("eos_token_id", None),
        ],
    )  # fmt: skip  # a table
    def test_properties_by_name(self, name, value, tmp_path):
        with pytest.raises(ValueError, match=f"CTranslate2 cannot express `{name}={value!r}`: "):
            write_ctranslate2(tiny_model(**{name: value}), tmp_path)
        assert not list(tmp_path.iterdir())

    def test_more_positions_than_were_learned(self, tmp_path):
        learned = tiny_model(position_embedding_type="learned")
        with pytest.raises(ValueError, match="`max_positions=64`, but the model has learned only 32 positions"):
            write_ctranslate2(learned, tmp_path, max_positions=64)

    def test_without_the_package(self, tmp_path, monkeypatch):
        monkeypatch.setattr("hf_vanilla_transformer.inference.ctranslate2.find_spec", lambda name: None)
        with pytest.raises(ValueError, match="run `pip install ctranslate2`"):
            write_ctranslate2(tiny_model(), tmp_path)
