"""Models exported for CTranslate2: the same log-probabilities and translations, and what is refused."""

import pytest
import torch
from transformers import GenerationConfig

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    train_tokenizer,
)
from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.export.ctranslate2 import ACTIVATIONS, equalize_layers, vocabularies, write_ctranslate2
from hf_vanilla_transformer.files import read_lines
from hf_vanilla_transformer.inference.ctranslate2 import CTranslate2Model, load_ctranslate2
from hf_vanilla_transformer.inference.translation import translate
from tiny import VOCABULARIES, close, tiny_model, tokens
from translators import ENGLISH, PAIR, SHARED, build, trained

ctranslate2 = pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")

SHAPES = {
    "paper": {},
    "pre-norm": {"norm_position": "pre"},
    "pre-norm without a final one": {"norm_position": "pre", "final_layer_norm": False},
    "post-norm with a final one": {"final_layer_norm": True},
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


def lively(**changes):
    """Return a tiny model with no weight at its initial value, so that none can be left out unnoticed."""
    model = tiny_model(**changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.2)
    return model


def translator(model, folder, quantization="float32", **options):
    folder.mkdir()
    write_ctranslate2(model, folder, quantization=quantization, **options)
    return ctranslate2.Translator(str(folder), intra_threads=1)


def log_probs(model, ids, targets):
    labels = torch.cat([targets, torch.full((len(targets), 1), model.config.eos_token_id)], 1)
    with torch.no_grad():
        logits = model(input_ids=ids, labels=labels).logits
    return logits.log_softmax(-1).gather(2, labels[..., None])[..., 0]


def scores(served, model, ids, targets):
    names = vocabularies(model.config, None)
    sides = [
        [[name[i] for i in row] for row in part.tolist()] for name, part in zip(names, (ids, targets), strict=True)
    ]
    return torch.tensor([result.log_probs for result in served.score_batch(*sides)])


class TestWeights:
    @pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
    def test_every_shape_gives_our_probabilities(self, changes, tmp_path):
        model = lively(**changes)
        ids, targets = tokens(4, 7), tokens(4, 5)
        expected = log_probs(model, ids, targets)
        found = scores(translator(model, tmp_path / "exported"), model, ids, targets)
        close(found, expected, 1e-4)

    @pytest.mark.parametrize("name", ["Marian's positions", "unscaled", "epsilon", "tanh", "gelu", "pre-norm"])
    def test_a_shape_that_is_left_out_shows(self, name, tmp_path):
        ids, targets = tokens(4, 7), tokens(4, 5)
        model = lively(**SHAPES[name])
        found = scores(translator(lively(), tmp_path / "paper"), model, ids, targets)
        assert (found - log_probs(model, ids, targets)).abs().max() > 0.01

    @pytest.mark.parametrize(("quantization", "tolerance"), [("float16", 0.02), ("int8", 0.3), ("int8_float16", 0.3)])
    def test_fewer_bits_give_nearly_the_same(self, quantization, tolerance, tmp_path):
        model = lively(d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=128)
        ids, targets = tokens(4, 7), tokens(4, 5)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        found = scores(translator(model, tmp_path / "exported", quantization), model, ids, targets)
        expected = log_probs(model, ids, targets)
        assert 1e-5 < (found - expected).abs().mean() < tolerance
        translator(model, tmp_path / "whole")
        sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("exported", "whole")]
        assert sizes[0] < 0.6 * sizes[1]
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    def test_more_positions_where_they_are_computed(self, tmp_path):
        model = lively()
        ids, targets = tokens(2, 50), tokens(2, 45)
        found = scores(translator(model, tmp_path / "exported", max_positions=50), model, ids, targets)
        close(found, log_probs(model, ids, targets), 1e-4)


class TestBalance:
    @pytest.mark.parametrize("changes", [{}, {"norm_position": "pre", "attention_bias": True, "value_head_dim": 3}])
    def test_the_same_model_of_other_weights(self, changes):
        model = lively(**changes)
        twin = equalize_layers(model)
        ids, targets = tokens(4, 7), tokens(4, 5)
        close(log_probs(twin, ids, targets), log_probs(model, ids, targets), 1e-4)
        for name in ("fc2", "self_attn.out_proj"):
            before, after = (each.model.decoder.layers[0].get_submodule(name).weight for each in (model, twin))
            assert not torch.allclose(before, after)

    def test_no_unit_takes_the_bits_of_the_others(self):
        """An inner unit a thousand times the others', which the next product makes up for."""
        model = lively()
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

    def test_other_functions_than_relu_are_left_alone(self):
        model = lively(activation_function="gelu")
        ids, targets = tokens(4, 7), tokens(4, 5)
        close(log_probs(equalize_layers(model), ids, targets), log_probs(model, ids, targets), 1e-4)


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
        with pytest.raises(ValueError, match="source vocabulary has ids up to .*, but the model has 10 rows"):
            vocabularies(VanillaTransformerConfig(vocab_size=10), SHARED)


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"norm_position": "none"}, r"`norm_position`='none': its layers are normalized; train with \"post\""),
            ({"encoder_ffn_dim": 0}, "`encoder_ffn_dim`=0: its layers have a feed-forward part"),
            ({"decoder_ffn_dim": 0}, "`decoder_ffn_dim`=0: its layers have a feed-forward part"),
            ({"activation_function": "linear"}, "`activation_function`='linear': use one of relu, gelu"),
            ({"eos_token_id": None}, "`eos_token_id`=None: its search stops at an end token"),
        ],
    )
    def test_properties_by_name(self, changes, message, tmp_path):
        with pytest.raises(ValueError, match=f"CTranslate2 cannot express {message}"):
            write_ctranslate2(tiny_model(**changes), tmp_path)
        assert not list(tmp_path.iterdir())

    def test_options(self, tmp_path):
        with pytest.raises(ValueError, match="`quantization` int4 is unknown; use one of float32, float16, int8"):
            write_ctranslate2(tiny_model(), tmp_path, quantization="int4")
        learned = tiny_model(position_embedding_type="learned")
        with pytest.raises(ValueError, match="`max_positions` is 64, but only `max_position_embeddings`=32"):
            write_ctranslate2(learned, tmp_path, max_positions=64)

    def test_without_the_package(self, tmp_path, monkeypatch):
        monkeypatch.setattr("hf_vanilla_transformer.inference.ctranslate2.find_spec", lambda name: None)
        with pytest.raises(ValueError, match=r'run `pip install "hf-vanilla-transformer\[export\]"`'):
            write_ctranslate2(tiny_model(), tmp_path)


@pytest.fixture(scope="module", params=["shared", "pair", "learned"])
def saved(request, tmp_path_factory):
    """A model and its tokenizer, the folder they are saved in, and what they are exported to."""
    folder = tmp_path_factory.mktemp(request.param)
    model, tokenizer = build(request.param)
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.generation_config.num_beams = 3
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    export_model(folder / "model", "ctranslate2", folder / "exported")
    return model, tokenizer, folder


class TestServing:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"num_beams": 1},
            {"num_beams": 4, "num_hypotheses": 4},
            {"num_beams": 4, "length_penalty": 0.0, "early_stopping": True},
            {"num_beams": 4, "length_penalty": 2.0, "max_new_tokens": 6},
            {"num_beams": 1, "max_length": 5},
            {"num_beams": 1, "max_source_length": 3, "max_tokens": 1},
        ],
        ids=str,
    )
    def test_translations_are_those_of_generate(self, saved, options):
        model, tokenizer, folder = saved
        served, own_tokenizer = load_ctranslate2(folder / "exported")
        sentences = [*ENGLISH, " ", "the cat see a house in two street"]
        expected = translate(model, tokenizer, sentences, with_scores=True, **options)
        found = translate(served, own_tokenizer, sentences, with_scores=True, **options)
        assert [[each.text for each in row] for row in found] == [[each.text for each in row] for row in expected]
        close(
            torch.tensor([[h.score for h in row] for row in found]),
            torch.tensor([[h.score for h in row] for row in expected]),
            1e-4,
        )

    def test_tensors_as_generate_gives_them(self, saved):
        model, tokenizer, folder = saved
        served, _ = load_ctranslate2(folder / "exported")
        given = dict(tokenizer(ENGLISH, padding=True, return_tensors="pt", return_token_type_ids=False))
        options = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": 9}
        assert torch.equal(served.generate(**given, **options), model.generate(**given, **options))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"do_sample": True}, "CTranslate2 does not support `do_sample`=True of generate"),
            ({"bad_words_ids": [[5, 6]]}, "CTranslate2 does not support `bad_words_ids`"),
            ({"forced_eos_token_id": 7}, "CTranslate2 does not support `forced_eos_token_id`"),
            ({"no_repeat_ngram_size": 3}, "CTranslate2 does not support `no_repeat_ngram_size`=3"),
            ({"min_new_tokens": 2}, "CTranslate2 does not support `min_new_tokens`=2"),
            (
                {"num_beams": 2, "early_stopping": "never"},
                "does not support `early_stopping`='never'; set it",
            ),
        ],
    )
    def test_what_it_cannot_follow_is_named(self, saved, options, message):
        served, tokenizer = load_ctranslate2(saved[2] / "exported")
        with pytest.raises(ValueError, match=message):
            translate(served, tokenizer, ["a cat"], **options)

    def test_a_source_beyond_the_positions(self, saved):
        served, tokenizer = load_ctranslate2(saved[2] / "exported")
        with pytest.raises(ValueError, match="the source has 65 tokens, but the export has positions for 64"):
            served.generate(torch.full((1, 65), 4))
        # As with learned positions, text is cut.
        assert translate(served, tokenizer, ["a cat " * 90])[0][0].text is not None

    def test_folders_that_are_none(self, saved, tmp_path):
        with pytest.raises(ValueError, match="holds no model.bin of CTranslate2; export the model first"):
            load_ctranslate2(saved[2] / "model")
        write_ctranslate2(tiny_model(), tmp_path)
        with pytest.raises(ValueError, match="is not a complete export of `export_model`"):
            CTranslate2Model(tmp_path)
        (tmp_path / "model.bin").write_bytes(b"nothing")
        with pytest.raises(ValueError, match="cannot be loaded on cpu as default"):
            CTranslate2Model(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_500_real_sentences(shared_data, tmp_path):
    """A model trained for some minutes on Multi30k: float32 as `generate()`, int8 as good by BLEU."""
    sacrebleu = pytest.importorskip("sacrebleu", reason="BLEU is sacrebleu's, of the extra `train`")
    corpus = shared_data / "multi30k"
    pairs = [list(read_lines(corpus / f"train.{side}.gz")) for side in ("en", "de")]
    tests = [list(read_lines(corpus / f"test_2016_flickr.{side}.gz"))[:500] for side in ("en", "de")]
    tokenizer = train_tokenizer([*pairs[0], *pairs[1]], vocab_size=4000)
    model = trained(tokenizer, *pairs)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    for quantization in ("float32", "int8"):
        export_model(tmp_path / "model", "ctranslate2", tmp_path / quantization, quantization=quantization)
    exported = {name: load_ctranslate2(tmp_path / name) for name in ("float32", "int8")}
    lost = []
    # Searches that end by the same rule, and one that here goes on for longer: identical, and worse, at the most.
    for search, identical, worse in (
        ({"num_beams": 1}, 0.99, 0.01),
        ({"num_beams": 4, "early_stopping": True}, 0.99, 0.01),
        ({"num_beams": 4}, 0.97, 0.01),
    ):
        expected = best(model, tokenizer, tests[0], search)
        same = list(zip(best(*exported["float32"], tests[0], search), expected, strict=True))
        assert sum(found.text == own.text for found, own in same) >= identical * len(same)
        assert sum(found.score < own.score - 1e-3 for found, own in same) <= worse * len(same)
        coarse = best(*exported["int8"], tests[0], search)
        ours, theirs = (
            sacrebleu.corpus_bleu([each.text for each in row], [tests[1]]).score for row in (expected, coarse)
        )
        assert ours > 10
        lost.append(ours - theirs)
    assert abs(sum(lost) / len(lost)) <= 0.3


def best(model, tokenizer, sentences, search):
    return [row[0] for row in translate(model, tokenizer, sentences, with_scores=True, **search)]
