"""`accelerate` and `restore`: what is swapped, what stays, and that it changes no result."""

import copy
import pickle

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.fast import Accelerated, accelerate, restore
from hf_vanilla_transformer.fast.modules import FastAttention, FastDecoder, FastForConditionalGeneration, FastLayer
from hf_vanilla_transformer.model.modeling_vanilla_transformer import (
    VanillaTransformerAttention,
    VanillaTransformerDecoderLayer,
)
from tables import looped
from tiny import SHAPES, close, close_gradients, gradients, labelled_batch, perturbed_model, tiny_config, tokens

ALL_SHAPES = {**SHAPES, "biases": {"attention_bias": True}, "unequal widths": {"head_dim": 8, "value_head_dim": 4}}


def test_a_built_model_is_fast_and_keeps_its_names(tmp_path):
    model = perturbed_model()
    layer = model.model.decoder.layers[0]
    kinds = {model: FastForConditionalGeneration, model.model.decoder: FastDecoder, layer: FastLayer}
    for module, kind in {**kinds, layer.encoder_attn: FastAttention}.items():
        assert isinstance(module, (kind, Accelerated))
    assert str(type(model)) == str(VanillaTransformerForConditionalGeneration)
    model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
    assert isinstance(loaded, FastForConditionalGeneration)
    assert loaded.config.architectures == ["VanillaTransformerForConditionalGeneration"]


def test_restore_leaves_the_plain_classes():
    model = restore(perturbed_model())
    assert not any(isinstance(module, Accelerated) for module in model.modules())
    assert type(model) is VanillaTransformerForConditionalGeneration
    assert type(model.model.encoder.layers[0].self_attn) is VanillaTransformerAttention
    assert isinstance(accelerate(model), FastForConditionalGeneration)


@looped("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("changes", ALL_SHAPES.values(), ids=ALL_SHAPES)
def test_fast_equals_plain(changes, implementation):
    model = perturbed_model(attn_implementation=implementation, **changes).train()
    batch, found = labelled_batch(4, 7), []
    batch["attention_mask"][0, -3:] = 0
    for change in (accelerate, restore):
        outputs = change(model)(**batch, smoothing=0.1, output_hidden_states=True)
        outputs.loss.backward()
        found.append((outputs, gradients(model)))
    (fast, fast_gradients), (plain, plain_gradients) = found
    close(fast.loss, plain.loss)
    close(fast.logits, plain.logits)
    for states, expected in zip(fast.decoder_hidden_states, plain.decoder_hidden_states, strict=True):
        close(states, expected)
    close_gradients(fast_gradients, plain_gradients)


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 2}], ids=str)
def test_fast_decodes_as_plain(options):
    model, source = perturbed_model(), tokens(5, 8)
    fast = model.generate(source, max_new_tokens=12, **options)
    assert torch.equal(restore(model).generate(source, max_new_tokens=12, **options), fast)


def test_the_plain_loss_without_logits_returns_none():
    model, batch = restore(perturbed_model()), labelled_batch(2, 5)
    outputs = model(**batch, skip_logits=True)
    assert outputs.logits is None
    close(outputs.loss, model(**batch).loss)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_are_fast(copied):
    model, batch = perturbed_model(), labelled_batch(2, 5)
    other = copied(model)
    assert type(other) is type(model)
    assert torch.equal(other(**batch).loss, model(**batch).loss)


class Doubling(VanillaTransformerAttention):
    def forward(self, *args, **kwargs):
        out, weights = super().forward(*args, **kwargs)
        return 2 * out, weights


class Noisy(VanillaTransformerForConditionalGeneration):
    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.logits = outputs.logits + 1
        return outputs


class Counting(VanillaTransformerForConditionalGeneration):
    calls = 0

    def generate(self, *args, **kwargs):
        self.calls += 1
        return super().generate(*args, **kwargs)


class Loud(VanillaTransformerDecoderLayer):
    def forward(self, *args, **kwargs):
        return 3 * super().forward(*args, **kwargs)


def test_a_users_subclass_keeps_its_own_methods():
    plain = restore(perturbed_model())
    batch, state = labelled_batch(2, 5), plain.state_dict()
    model = Noisy(tiny_config())
    model.load_state_dict(state)
    assert isinstance(model, FastForConditionalGeneration) and str(type(model)) == str(Noisy)
    close(model.eval()(**batch).logits, plain.eval()(**batch).logits + 1)
    counting = Counting(tiny_config())
    counting.generate(tokens(2, 4), max_new_tokens=2)
    assert isinstance(counting, FastForConditionalGeneration) and counting.calls == 1
    # Where a replaced method is the user's own, the module stays plain.
    attention = Doubling(tiny_config(), 2, 0)
    assert type(accelerate(attention)) is Doubling
    layer = Loud(tiny_config(), 0)
    states = torch.randn(2, 3, layer.config.d_model)
    expected = layer.eval()(states, encoder_hidden_states=states)
    close(accelerate(layer)(states, encoder_hidden_states=states), expected)
