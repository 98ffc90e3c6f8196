"""Initial weights, tying, resizing, loading, and what is checked before saving."""

import math

import pytest
import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from devices import TEST_DEVICE
from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerDecoder,
    VanillaTransformerEncoder,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)
from hf_vanilla_transformer.model import modeling_vanilla_transformer
from hf_vanilla_transformer.model.positions_vanilla_transformer import sinusoids
from tables import looped
from tiny import (
    EMBEDDINGS,
    EVERY_VOCABULARY,
    VOCABULARIES,
    VOCABULARY,
    batch_with_padding,
    close,
    one_layer_model,
    tiny_config,
    tiny_model,
)

APART, UNTIED = {"share_encoder_decoder_embeddings": False}, {"tie_word_embeddings": False}
load = VanillaTransformerForConditionalGeneration.from_pretrained


class TestInitialWeights:
    def test_embeddings_start_with_unit_variance_once_scaled(self):
        model = tiny_model(vocab_size=3000, d_model=64)
        weight = model.model.shared.weight
        assert weight[1:].std().item() == pytest.approx(64**-0.5, rel=0.01)
        assert weight[1:].mean().item() == pytest.approx(0, abs=0.002)
        chosen = tiny_model(vocab_size=3000, d_model=64, init_std=0.5).model.shared.weight
        assert chosen[1:].std().item() == pytest.approx(0.5, rel=0.01)

    @EVERY_VOCABULARY
    def test_the_padding_row_starts_at_zero(self, changes):
        model = tiny_model(**changes).model
        for embedding in (model.encoder.embed_tokens, model.decoder.embed_tokens):
            assert embedding.padding_idx == 0
            assert (embedding.weight[0] == 0).all() and (embedding.weight[1:] != 0).all()

    def test_matrices_start_xavier_uniform_and_biases_at_zero(self):
        biases = {"attention_bias": True, "lm_head_bias": True}
        model = tiny_model(d_model=64, encoder_ffn_dim=256, embedding_layer_norm=True, **biases)
        layer = model.model.encoder.layers[0]
        for linear in (layer.self_attn.q_proj, layer.self_attn.out_proj, layer.fc1, layer.fc2):
            bound = math.sqrt(6 / (linear.in_features + linear.out_features))
            assert 0.99 * bound < linear.weight.abs().max() <= bound
            assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                assert (parameter == 0).all(), name
            elif "norm" in name:
                assert (parameter == 1).all(), name


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", modeling_vanilla_transformer.__all__[:-1])
def test_dummy_inputs_fit(name, shared):
    config = tiny_config(
        share_encoder_decoder_embeddings=shared, decoder_vocab_size=None if shared else 9, num_labels=2
    )
    model = getattr(modeling_vanilla_transformer, name)(config).eval()
    assert all(output.isfinite().all() for output in model(**model.dummy_inputs).to_tuple() if torch.is_tensor(output))


class TestLoading:
    @pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
    def test_buffers_are_right_after_loading(self, layout, tmp_path):
        tiny_model(sinusoidal_layout=layout).save_pretrained(tmp_path)
        loaded = load(tmp_path)
        expected = sinusoids(torch.arange(32), 16, layout)
        for side in (loaded.model.encoder, loaded.model.decoder):
            close(side.embed_positions.weight, expected, 0)
        assert not any("embed_positions" in name for name in loaded.state_dict())

    def test_buffers_are_right_after_the_meta_device(self):
        with torch.device("meta"):
            model = VanillaTransformerForConditionalGeneration(tiny_config())
        assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
        model.to_empty(device=TEST_DEVICE).init_weights()
        close(model.model.decoder.embed_positions.weight, sinusoids(torch.arange(32), 16, "interleaved"), 0)
        assert model.lm_head.weight is model.model.shared.weight
        assert model(**batch_with_padding()).logits.isfinite().all()

    @pytest.mark.parametrize("empty", [lambda: torch.device("meta"), lambda: init_empty_weights(include_buffers=True)])
    @pytest.mark.parametrize("assign", [False, True])
    def test_load_state_dict_fills_a_model_from_the_meta_device(self, empty, assign):
        """The recipe of FSDP2: no checkpoint has sinusoidal positions."""
        model, batch = tiny_model(), batch_with_padding()
        with empty():
            other = VanillaTransformerForConditionalGeneration(model.config).eval()
        if not assign:
            other.to_empty(device=TEST_DEVICE)
            other.model.encoder.embed_positions.weight.fill_(torch.nan)
        other.load_state_dict(model.state_dict(), assign=assign)
        close(other(**batch).logits, model(**batch).logits, 0)

    def test_auto_classes(self, tmp_path):
        model, batch = tiny_model(), batch_with_padding()
        model.save_pretrained(tmp_path)
        assert type(AutoConfig.from_pretrained(tmp_path)) is VanillaTransformerConfig
        kinds = {AutoModel: VanillaTransformerModel, AutoModelForSeq2SeqLM: VanillaTransformerForConditionalGeneration}
        for auto, expected in kinds.items():
            loaded = auto.from_pretrained(tmp_path)
            assert isinstance(loaded, expected) and not loaded.training
            assert isinstance(auto.from_config(tiny_config()), expected)
            states = loaded(**batch, output_hidden_states=True).decoder_hidden_states[-1]
            close(states @ model.lm_head.weight.T, model(**batch).logits)

    def test_loading_keeps_a_trained_padding_row(self, tmp_path):
        model = tiny_model()
        nn.init.ones_(model.model.shared.weight)
        model.save_pretrained(tmp_path)
        assert (load(tmp_path).model.shared.weight == 1).all()

    def test_loaded_weights_are_not_initialized_again(self):
        model = tiny_model(attention_bias=True, position_embedding_type="learned")
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                nn.init.ones_(parameter)
                parameter._is_hf_initialized = True
        for module in model.modules():
            model._init_weights(module)
        assert all((parameter == 1).all() for parameter in model.parameters())


class TestVocabularies:
    """Section 3.4: both embeddings and the output projection share one matrix, or only some of them do."""

    @pytest.mark.parametrize(
        ("changes", "together", "apart"),
        [
            (VOCABULARIES["shared"], [(*EMBEDDINGS, "lm_head.weight")], []),
            (VOCABULARIES["tied"], [(EMBEDDINGS[1], "lm_head.weight")], [EMBEDDINGS]),
            (VOCABULARIES["shared, untied"], [EMBEDDINGS], [(EMBEDDINGS[0], "lm_head.weight")]),
            (VOCABULARIES["separate"], [], [EMBEDDINGS, (EMBEDDINGS[1], "lm_head.weight")]),
        ],
        ids=VOCABULARIES,
    )
    def test_which_matrices_are_one(self, changes, together, apart, tmp_path):
        model = tiny_model(**changes)
        model.save_pretrained(tmp_path)
        for each in (model, load(tmp_path)):
            storage = {name: p.data_ptr() for name, p in each.named_parameters(remove_duplicate=False)}
            for names in together:
                assert len({storage[name] for name in names}) == 1
            for names in apart:
                assert len({storage[name] for name in names}) == len(names)
        with safe_open(tmp_path / "model.safetensors", "pt") as file:
            stored = set(file.keys())
        for names in together:
            assert len(stored & set(names)) == 1
        assert stored == {name for name, _ in model.named_parameters()}

    @EVERY_VOCABULARY
    def test_a_reloaded_model_is_the_same(self, changes, tmp_path):
        model = tiny_model(**changes, lm_head_bias=True, norm_position="pre")
        nn.init.normal_(model.lm_head.bias)
        model.save_pretrained(tmp_path)
        loaded, batch = load(tmp_path), batch_with_padding()
        close(loaded(**batch).logits, model(**batch).logits, 0)
        assert loaded.config.to_dict() == {**model.config.to_dict(), "_name_or_path": str(tmp_path)}

    @pytest.mark.parametrize("changes", [{}, UNTIED], ids=["tied", "untied"])
    def test_a_shared_vocabulary_can_grow(self, changes, tmp_path):
        model, batch = tiny_model(**changes), batch_with_padding()
        before = model(**batch).logits
        model.resize_token_embeddings(VOCABULARY + 3, mean_resizing=False)
        after = model(**batch).logits
        assert after.shape[-1] == VOCABULARY + 3
        assert model.get_encoder().embed_tokens is model.get_decoder().embed_tokens
        close(after[..., :VOCABULARY], before)
        model.save_pretrained(tmp_path)
        loaded = load(tmp_path)
        assert (loaded.config.vocab_size, loaded.config.decoder_vocab_size) == (VOCABULARY + 3, VOCABULARY + 3)
        close(loaded(**batch).logits, after, 0)

    @pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
    @pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
    def test_two_vocabularies_grow_apart(self, tied, bias, tmp_path):
        model = tiny_model(**VOCABULARIES["tied"] | {"tie_word_embeddings": tied, "lm_head_bias": bias})
        batch = batch_with_padding()
        before = model(**batch).logits
        assert model.resize_token_embeddings(VOCABULARY + 3) is model.model.encoder.embed_tokens
        assert model.resize_decoder_token_embeddings(53, pad_to_multiple_of=8) is model.model.decoder.embed_tokens
        assert (model.config.vocab_size, model.config.decoder_vocab_size) == (VOCABULARY + 3, 56)
        after = model(**batch).logits
        assert after.shape[-1] == model.lm_head.out_features == 56
        close(after[..., :50], before)
        assert (model.lm_head.weight is model.model.decoder.embed_tokens.weight) == tied
        model.save_pretrained(tmp_path)
        loaded = load(tmp_path)
        assert (loaded.config.vocab_size, loaded.config.decoder_vocab_size) == (VOCABULARY + 3, 56)
        close(loaded(**batch).logits, after, 0)

    @pytest.mark.parametrize("kind", [VanillaTransformerEncoder, VanillaTransformerDecoder])
    def test_a_side_alone_grows_its_own_vocabulary(self, kind, tmp_path):
        stack = kind(tiny_config(**VOCABULARIES["tied"]))
        stack.resize_token_embeddings(60)
        sizes = {VanillaTransformerEncoder: (60, 50), VanillaTransformerDecoder: (VOCABULARY, 60)}
        assert (stack.config.vocab_size, stack.config.decoder_vocab_size) == sizes[kind]
        stack.save_pretrained(tmp_path)
        assert torch.equal(kind.from_pretrained(tmp_path).embed_tokens.weight, stack.embed_tokens.weight)

    def test_a_shared_vocabulary_has_no_target_side_to_resize(self):
        with pytest.raises(ValueError, match="use `resize_token_embeddings`"):
            tiny_model().resize_decoder_token_embeddings(45)

    @pytest.mark.parametrize("changes", [APART, UNTIED, {**APART, **UNTIED}], ids=str)
    def test_tied_weights_load_into_an_untied_model(self, changes, tmp_path):
        model, batch = tiny_model(), batch_with_padding()
        model.save_pretrained(tmp_path)
        loaded, info = load(tmp_path, **changes, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
        close(loaded(**batch).logits, model(**batch).logits, 0)
        encoder, decoder = loaded.model.encoder.embed_tokens.weight, loaded.model.decoder.embed_tokens.weight
        assert (encoder is decoder) == loaded.config.share_encoder_decoder_embeddings
        assert (loaded.lm_head.weight is decoder) == loaded.config.tie_word_embeddings
        loaded.save_pretrained(tmp_path / "apart")
        close(load(tmp_path / "apart")(**batch).logits, model(**batch).logits, 0)


class Extended(VanillaTransformerForConditionalGeneration):
    """A user's model, whose constructor takes more than a configuration."""

    def __init__(self, config, classes):
        super().__init__(config)
        self.extra = torch.nn.Linear(config.d_model, classes)


class TestSaving:
    """A configuration that no longer describes the model is not saved with it."""

    @pytest.mark.parametrize(
        ("change", "weight"),
        [
            ({"vocab_size": 400}, r"model\.encoder\.embed_tokens\.weight has shape \(40, 16\).*\(400, 16\)"),
            ({"d_model": 32}, r"embed_tokens\.weight has shape \(40, 16\).*\(40, 32\)"),
            ({"head_dim": 8}, r"q_proj\.weight has shape \(16, 16\).*\(32, 16\)"),
            ({"encoder_layers": 2}, r"describes model\.encoder\.layers\.1\."),
        ],
        ids=str,
    )
    def test_changed_shapes_are_not_saved(self, change, weight, tmp_path):
        model = one_layer_model()
        model.config.update(change)
        with pytest.raises(ValueError, match=weight):
            model.save_pretrained(tmp_path)
        assert not list(tmp_path.iterdir())

    @looped(
        ("change", "field"),
        [
            ({"decoder_attention_heads": 4}, "head_dim"),
            ({"activation_function": "gelu"}, "activation_function"),
            ({"layer_norm_eps": 1e-3}, "layer_norm_eps"),
            ({"sinusoidal_layout": "concatenated"}, "sinusoidal_layout"),
            ({"norm_position": "pre"}, "norm_position"),
            ({"final_layer_norm": False}, "final_layer_norm"),
            ({"embedding_layer_norm": False}, "embedding_layer_norm"),
        ],
    )
    def test_changed_fields_without_weights_are_not_saved(self, change, field, tmp_path):
        model = one_layer_model(final_layer_norm=True, embedding_layer_norm=True)
        model.config.update(change)
        with pytest.raises(ValueError, match=f"was built with another `{field}` than the configuration has now"):
            model.save_pretrained(tmp_path)
        assert not list(tmp_path.iterdir())

    def test_a_subclass_with_a_constructor_of_its_own_is_saved_and_checked(self, tmp_path):
        model = Extended(tiny_config(), 3)
        model.save_pretrained(tmp_path)
        assert torch.equal(Extended.from_pretrained(tmp_path, 3).extra.weight, model.extra.weight)
        model.config.vocab_size = 400
        with pytest.raises(ValueError, match=r"embed_tokens\.weight has shape"):
            model.save_pretrained(tmp_path)

    def test_sharded_weights_are_checked_as_gathered(self, tmp_path):
        model = one_layer_model()
        gathered = {name: weight.clone() for name, weight in model.state_dict().items()}
        for weight in model.parameters():
            # As fully sharded data parallelism leaves them between steps.
            weight.data = weight.data.flatten()
        model.save_pretrained(tmp_path, state_dict=gathered)
        loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).state_dict()
        assert all(torch.equal(loaded[name], weight) for name, weight in gathered.items())

    def test_layers_can_be_removed_together_with_the_field(self, tmp_path):
        model = tiny_model(encoder_layers=3)
        del model.model.encoder.layers[1]
        model.config.encoder_layers = 2
        model.save_pretrained(tmp_path)
        loaded, batch = AutoModelForSeq2SeqLM.from_pretrained(tmp_path), batch_with_padding()
        close(loaded(**batch).logits, model(**batch).logits)

    def test_saving_does_not_advance_the_random_state(self, tmp_path):
        model = one_layer_model()
        state = torch.get_rng_state()
        model.save_pretrained(tmp_path)
        assert torch.equal(torch.get_rng_state(), state)
