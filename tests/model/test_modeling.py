"""The model against torch's own layers with the same weights, and against itself computed another way."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from devices import TEST_DEVICE, on
from hf_vanilla_transformer import (
    VanillaTransformerDecoder,
    VanillaTransformerEncoder,
    VanillaTransformerForConditionalGeneration,
)
from hf_vanilla_transformer.model.masks_vanilla_transformer import mask_padding
from hf_vanilla_transformer.model.modeling_vanilla_transformer import (
    VanillaTransformerAttention,
    VanillaTransformerDecoderLayer,
    VanillaTransformerEncoderLayer,
)
from hf_vanilla_transformer.model.positions_vanilla_transformer import sinusoids
from tables import looped
from tiny import (
    SHAPES,
    TINY,
    VOCABULARIES,
    VOCABULARY,
    batch_with_padding,
    close,
    close_gradients,
    loss_and_gradients,
    one_layer_model,
    padded_source,
    perturbed_model,
    randomize,
    tiny_config,
    tiny_model,
    tokens,
)


def copy_attention(ours: VanillaTransformerAttention, theirs: nn.MultiheadAttention) -> None:
    projections = (ours.q_proj, ours.k_proj, ours.v_proj)
    theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
    theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


@torch.no_grad()
def copy_layer(ours: nn.Module, theirs: nn.Module) -> None:
    norms = ["self_attn_layer_norm", "final_layer_norm"]
    copy_attention(ours.self_attn, theirs.self_attn)
    if hasattr(ours, "encoder_attn"):
        copy_attention(ours.encoder_attn, theirs.multihead_attn)
        norms.insert(1, "encoder_attn_layer_norm")
    theirs.linear1.load_state_dict(ours.fc1.state_dict())
    theirs.linear2.load_state_dict(ours.fc2.state_dict())
    for number, norm in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(getattr(ours, norm).state_dict())


class TestLayers:
    def test_without_norms_a_layer_adds_its_sublayers(self):
        config = tiny_config(norm_position="none")
        config._attn_implementation = "eager"
        layer = VanillaTransformerDecoderLayer(config, 0)
        x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
        summed = x + layer.self_attn(x)[0]
        summed = summed + layer.encoder_attn(summed, memory)[0]
        summed = summed + layer.fc2(layer.fc1(summed).relu())
        close(layer(x, None, memory), summed)
        assert not any("norm" in name for name, _ in layer.named_parameters())

    @pytest.mark.parametrize("norm_position", ["post", "pre", "none"])
    def test_ffn_dim_0_omits_the_feed_forward(self, norm_position):
        config = tiny_config(norm_position=norm_position, encoder_ffn_dim=0)
        config._attn_implementation = "eager"
        layer, x = VanillaTransformerEncoderLayer(config, 0), torch.randn(2, 5, 16)
        names = {name.split(".")[0] for name, _ in layer.named_parameters()}
        assert names == ({"self_attn"} if norm_position == "none" else {"self_attn", "self_attn_layer_norm"})
        norm = layer.self_attn_layer_norm
        pre, post = (norm, nn.Identity()) if norm_position == "pre" else (nn.Identity(), norm)
        close(layer(x), post(x + layer.self_attn(pre(x))[0]))

    def test_dropout_is_where_the_paper_puts_it(self):
        """Section 5.4: on each sub-layer's output, and on embeddings plus positions."""
        model, source = tiny_model(dropout=0.5, norm_position="none").train(), tokens(1, 200)
        encoder = model.model.encoder
        with torch.no_grad():
            first = encoder(source, output_hidden_states=True).hidden_states[0]
            for layer in encoder.layers:
                layer.self_attn.out_proj.weight.zero_()
                layer.fc2.weight.zero_()
                layer.fc2.bias.fill_(1.0)
            states = encoder.layers[0](torch.zeros(1, 200, 16))
        assert 0.45 < (first == 0).float().mean() < 0.55
        # Attention gives 0 and feed-forward 1, which becomes 0 or 2 by dropout.
        assert set(states.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("norm_position", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_stacks_equal_those_of_torch(norm_position, activation):
    """Sections 3.1 and 3.3."""
    fields = {"norm_position": norm_position, "activation_function": activation, "layer_norm_eps": 0.1}
    model = tiny_model(**fields, attention_bias=True, encoder_attention_heads=2)
    randomize(model.model.encoder.layers)
    randomize(model.model.decoder.layers)
    pre = norm_position == "pre"
    kwargs = {"dropout": 0.0, "batch_first": True, "norm_first": pre, "layer_norm_eps": 0.1, "activation": activation}
    norms = [nn.LayerNorm(16, eps=0.1) if pre else None for _ in range(2)]
    encoder_layer = nn.TransformerEncoderLayer(16, 2, 32, **kwargs)
    encoder = nn.TransformerEncoder(encoder_layer, 2, norms[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 24, **kwargs), 3, norms[1])
    for ours, theirs in ((model.model.encoder, encoder), (model.model.decoder, decoder)):
        for layer, reference in zip(ours.layers, theirs.layers, strict=True):
            copy_layer(layer, reference)
    batch = batch_with_padding()
    batch["decoder_attention_mask"][:] = 1

    def embed(ids: Tensor) -> Tensor:
        return model.get_input_embeddings()(ids) * 4.0 + sinusoids(torch.arange(ids.shape[1]), 16, "interleaved")

    padding = batch["attention_mask"] == 0
    memory = encoder(embed(batch["input_ids"]), src_key_padding_mask=padding)
    causal = nn.Transformer.generate_square_subsequent_mask(5).isinf()
    states = decoder(embed(batch["decoder_input_ids"]), memory, tgt_mask=causal, memory_key_padding_mask=padding)
    close(model(**batch).logits, states @ model.lm_head.weight.T)


class TestEmbeddings:
    """Section 3.4."""

    def test_each_side_has_its_size(self):
        model = tiny_model(**VOCABULARIES["separate"])
        assert model.get_input_embeddings().num_embeddings == VOCABULARY
        assert model(tokens(2, 3), decoder_input_ids=torch.full((2, 4), 49)).logits.shape == (2, 4, 50)

    def test_the_output_bias(self):
        assert tiny_model().lm_head.bias is None
        model, batch = tiny_model(lm_head_bias=True), batch_with_padding()
        before = model(**batch).logits
        nn.init.ones_(model.lm_head.bias)
        close(model(**batch).logits, before + 1)

    def test_embeddings_are_scaled(self):
        batch = {"input_ids": tokens(1, 3), "output_hidden_states": True}
        scaled, plain = (tiny_model(scale_embedding=scale).model.encoder for scale in (True, False))
        raw = plain.embed_tokens(batch["input_ids"])
        positions = sinusoids(torch.arange(3), 16, "interleaved")
        close(scaled(**batch).hidden_states[0], raw * 16**0.5 + positions)
        close(plain(**batch).hidden_states[0], raw + positions)

    @pytest.mark.parametrize("side", ["encoder", "decoder"])
    def test_embeddings_plus_positions_are_normalized(self, side):
        stack = getattr(perturbed_model(embedding_layer_norm=True, layer_norm_eps=0.1).model, side)
        ids, norm = tokens(2, 3), stack.layernorm_embedding
        summed = stack.embed_tokens(ids) * 4 + sinusoids(torch.arange(3), 16, "interleaved")
        centred = summed - summed.mean(-1, keepdim=True)
        deviation = (centred.square().mean(-1, keepdim=True) + 0.1).sqrt()
        states = stack(ids, output_hidden_states=True).hidden_states[0]
        close(states, centred / deviation * norm.weight + norm.bias)
        # Dropout comes after the norm, as in BART.
        stack.config.dropout = 0.5
        dropped = stack.train()(ids, output_hidden_states=True).hidden_states[0]
        assert 0 < dropped.eq(0).sum() < dropped.numel()
        close(dropped[dropped != 0], 2 * states[dropped != 0])


class TestDecoding:
    """Decoding step by step, with and without cached keys and values."""

    @staticmethod
    def step_by_step(model: nn.Module, source: Tensor, target: Tensor, **encoder: Tensor) -> Tensor:
        outputs = model.model.encoder(source, **encoder)
        cache, logits = None, []
        for t in range(target.shape[1]):
            given = {"decoder_input_ids": target[:, t : t + 1], "past_key_values": cache}
            step = model(encoder_outputs=outputs, **given, **encoder)
            cache = step.past_key_values
            logits.append(step.logits)
        assert cache.get_seq_length() == target.shape[1]
        return torch.cat(logits, 1)

    @looped("implementation", ["eager", "sdpa"])
    @looped("changes", [*SHAPES.values(), {"head_dim": 6, "value_head_dim": 10}, {"decoder_ffn_dim": 0}])
    def test_cached_steps_equal_one_pass(self, changes, implementation):
        model, source, target = tiny_model(**changes), tokens(2, 5), tokens(2, 6)
        model.set_attn_implementation(implementation)
        mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
        whole = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        close(self.step_by_step(model, source, target, attention_mask=mask), whole)

    def test_cached_steps_beyond_the_cached_positions(self):
        model, source, target = tiny_model(max_position_embeddings=4), tokens(2, 9), tokens(2, 9)
        whole = model(input_ids=source, decoder_input_ids=target).logits
        close(self.step_by_step(model, source, target), whole)
        # With room for all positions the same weights give the same logits.
        roomy = tiny_model(max_position_embeddings=32)
        close(roomy(input_ids=source, decoder_input_ids=target).logits, whole)

    def test_several_tokens_at_a_time_over_a_padded_prefix(self):
        model, source, target = tiny_model(), tokens(2, 4), tokens(2, 6)
        mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
        whole = model(input_ids=source, decoder_input_ids=target, decoder_attention_mask=mask).logits
        first = model(input_ids=source, decoder_input_ids=target[:, :3], decoder_attention_mask=mask[:, :3])
        given = {"encoder_outputs": (first.encoder_last_hidden_state,), "past_key_values": first.past_key_values}
        second = model(**given, decoder_input_ids=target[:, 3:], decoder_attention_mask=mask)
        close(second.logits, whole[:, 3:])

    def test_encoder_keys_are_projected_once(self):
        model, source = tiny_model(), tokens(1, 4)
        calls = []
        model.model.decoder.layers[0].encoder_attn.k_proj.register_forward_hook(lambda *_: calls.append(1))
        self.step_by_step(model, source, tokens(1, 5))
        assert len(calls) == 1

    def test_when_a_cache_is_returned(self):
        model, batch = tiny_model(), {"input_ids": tokens(1, 3), "decoder_input_ids": tokens(1, 3)}
        assert isinstance(model(**batch).past_key_values, EncoderDecoderCache)
        assert model(**batch, use_cache=False).past_key_values is None
        assert model(**batch, labels=tokens(1, 3)).past_key_values is None
        assert tiny_model(use_cache=False)(**batch).past_key_values is None


# The second gives `d_model` rows, which must not be mistaken for the width.
@pytest.mark.parametrize("per_source", [3, TINY["d_model"] // 2])
def test_equal_repeated_sources(per_source):
    """Several rows of the target for each source, such as beams."""
    model, source, target = tiny_model(), tokens(2, 5), tokens(2 * per_source, 4)
    encoded = model.model.encoder(source)
    folded = model(encoder_outputs=encoded, decoder_input_ids=target).logits
    close(folded, model(source.repeat_interleave(per_source, 0), decoder_input_ids=target).logits)
    with pytest.raises(ValueError, match="5 rows for 2 encoded sources"):
        model(encoder_outputs=encoded, decoder_input_ids=tokens(5, 4))


class TestInputsAndOutputs:
    @pytest.mark.parametrize("norm_position", ["post", "pre"])
    def test_recorded_outputs(self, norm_position):
        model, batch = tiny_model(norm_position=norm_position), batch_with_padding()
        model.set_attn_implementation("eager")
        outputs = model(**batch, output_attentions=True, output_hidden_states=True)
        assert [a.shape for a in outputs.encoder_attentions] == [(2, 4, 6, 6)] * 2
        assert [a.shape for a in outputs.decoder_attentions] == [(2, 2, 5, 5)] * 3
        assert [a.shape for a in outputs.cross_attentions] == [(2, 2, 5, 6)] * 3
        assert [s.shape for s in outputs.encoder_hidden_states] == [(2, 6, 16)] * 3
        assert [s.shape for s in outputs.decoder_hidden_states] == [(2, 5, 16)] * 4
        for weights in (*outputs.encoder_attentions, *outputs.cross_attentions):
            close(weights.sum(-1), torch.ones(weights.shape[:-1]))
            assert (weights[1, :, :, 4:] == 0).all()
        # The second row's leading padding has no visible keys, and its weights are meaningless.
        assert all((weights[0].triu(1) == 0).all() for weights in outputs.decoder_attentions)
        close(outputs.encoder_hidden_states[-1], outputs.encoder_last_hidden_state, 0)
        close(outputs.decoder_hidden_states[-1] @ model.lm_head.weight.T, outputs.logits)

    @pytest.mark.parametrize("by_config", [False, True], ids=["argument", "configuration"])
    def test_tuples(self, by_config):
        model, batch = tiny_model(), {"input_ids": tokens(2, 4), "labels": tokens(2, 3)}
        named = model(**batch)
        model.config.return_dict = not by_config
        returned = model(**batch) if by_config else model(**batch, return_dict=False)
        assert isinstance(returned, tuple) and len(returned) == 3
        for actual, expected in zip(returned, named.to_tuple(), strict=True):
            close(actual, expected, 0)
        assert isinstance(model.model(tokens(2, 4), decoder_input_ids=tokens(2, 3), return_dict=False), tuple)
        assert isinstance(model.model.encoder(tokens(2, 4), return_dict=False), tuple)

    @pytest.mark.parametrize("kind", [tuple, BaseModelOutput])
    def test_encoder_outputs_replace_the_encoder(self, kind):
        model, batch = tiny_model(), batch_with_padding()
        expected = model(**batch).logits
        states = model.model.encoder(batch.pop("input_ids"), batch["attention_mask"]).last_hidden_state
        model.model.encoder.forward = None
        given = (states,) if kind is tuple else BaseModelOutput(last_hidden_state=states)
        outputs = model(**batch, encoder_outputs=given)
        close(outputs.logits, expected, 0)
        assert outputs.encoder_last_hidden_state is states

    @pytest.mark.parametrize(
        "changes", [{"pad_token_id": None}, {"eos_token_id": 0}, {"eos_token_id": [2, 0]}], ids=str
    )
    def test_ids_that_may_not_be_padding(self, changes):
        config, ids = tiny_config(), padded_source()["input_ids"]
        assert torch.equal(mask_padding(None, ids, config), ids.ne(0).long())
        for name, value in changes.items():
            setattr(config, name, value)
        assert mask_padding(None, ids, config) is None

    def test_ids_without_padding_need_no_mask(self):
        mask = mask_padding(None, tokens(2, 5), tiny_config())
        # Reading the ids would sync an accelerator.
        assert mask is None if TEST_DEVICE == "cpu" else mask.all()

    def test_labels_alone_are_enough(self):
        model, source, labels = tiny_model(), tokens(2, 4), tokens(2, 3)
        labels[1, 2] = -100
        shifted = torch.cat([torch.ones(2, 1, dtype=torch.long), labels[:, :2]], 1)
        alone = model(input_ids=source, labels=labels)
        spelt_out = model(input_ids=source, decoder_input_ids=shifted, labels=labels)
        close(alone.logits, spelt_out.logits, 0)
        close(alone.loss, spelt_out.loss, 0)
        assert model(input_ids=source, decoder_input_ids=shifted).loss is None

    @pytest.mark.parametrize("keep", [1, 2, torch.tensor([0, 3])], ids=["1", "2", "indices"])
    def test_logits_to_keep(self, keep):
        model, batch = tiny_model(), batch_with_padding()
        whole = model(**batch).logits
        expected = whole[:, -keep:] if isinstance(keep, int) else whole[:, keep]
        close(model(**batch, logits_to_keep=keep).logits, expected, 1e-6)
        # The loss needs all.
        assert model(tokens(2, 4), labels=tokens(2, 3), logits_to_keep=keep).logits.shape == (2, 3, VOCABULARY)

    def test_embeddings_instead_of_tokens(self):
        model, batch = tiny_model(**VOCABULARIES["tied"]), batch_with_padding()
        expected = model(**batch).logits
        source, target = batch.pop("input_ids"), batch.pop("decoder_input_ids")
        embeds = {"decoder_inputs_embeds": model.model.decoder.embed_tokens(target)}
        close(model(**batch, inputs_embeds=model.get_input_embeddings()(source), **embeds).logits, expected)

    def test_the_encoder_alone(self, tmp_path):
        encoder, source = VanillaTransformerEncoder(tiny_config()).eval(), tokens(2, 4)
        states = encoder(source).last_hidden_state
        assert states.shape == (2, 4, 16)
        encoder.save_pretrained(tmp_path)
        close(VanillaTransformerEncoder.from_pretrained(tmp_path)(source).last_hidden_state, states, 0)

    @pytest.mark.parametrize("source", [{}, {"encoder_hidden_states": torch.randn(2, 3, 16)}], ids=["alone", "cross"])
    def test_the_decoder_alone(self, source):
        decoder, target = VanillaTransformerDecoder(tiny_config()).eval(), tokens(2, 5)
        source = on(TEST_DEVICE, source)
        whole = decoder(target, **source).last_hidden_state
        assert whole.shape == (2, 5, 16)
        # A plain cache is for self-attention alone.
        for cache in (None, DynamicCache(config=decoder.config)):
            steps = []
            for t in range(5):
                step = decoder(target[:, t : t + 1], past_key_values=cache, use_cache=True, **source)
                cache = step.past_key_values
                steps.append(step.last_hidden_state)
            close(torch.cat(steps, 1), whole)
            assert cache.get_seq_length() == 5


# The oldest supported transformers lacks the method that replaces it.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(use_reentrant):
    model = tiny_model(dropout=0.2, norm_position="pre").train()
    batch, passes = {"input_ids": tokens(2, 5), "labels": tokens(2, 4)}, []
    model.model.decoder.layers[0].fc1.register_forward_hook(lambda *_: passes.append(1))
    torch.manual_seed(3)
    loss, expected = loss_and_gradients(model, batch)
    assert len(passes) == 1
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    torch.manual_seed(3)
    again, actual = loss_and_gradients(model, batch)
    # One forward pass, and one recomputation in the backward pass.
    assert len(passes) == 3
    close(again, loss)
    close_gradients(actual, expected)


class TestTransforms:
    """`torch.func`, fake tensors and `torch.export` give the same results as a call."""

    @staticmethod
    def loss_of(model: nn.Module, **options: Any) -> Callable[..., Tensor]:
        def loss(parameters: dict[str, Tensor], source: Tensor, labels: Tensor) -> Tensor:
            given = {"input_ids": source[None], "labels": labels[None], **options}
            return torch.func.functional_call(model, parameters, (), given).loss

        return loss

    @staticmethod
    def batch() -> tuple[Tensor, Tensor]:
        labels = tokens(3, 4)
        labels[1, :2], labels[2, 3] = -100, -100
        return tokens(3, 5), labels

    # PyTorch's fused attention loops over the examples under vmap.
    @pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
    @pytest.mark.parametrize("skip_logits", [False, True], ids=["logits", "skip_logits"])
    @pytest.mark.parametrize("kind", ["vmap(grad)", "grad", "jacrev"])
    def test_gradients(self, kind, skip_logits):
        model, (source, labels) = one_layer_model(), self.batch()
        loss = self.loss_of(model, smoothing=0.1, skip_logits=skip_logits)
        parameters = {name: weight.detach() for name, weight in model.named_parameters()}
        if kind == "vmap(grad)":
            found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, source, labels)
        else:
            single = getattr(torch.func, kind)(loss)
            rows = [single(parameters, *pair) for pair in zip(source, labels, strict=True)]
            found = {name: torch.stack([row[name] for row in rows]) for name in parameters}
        for row in range(3):
            batch = {"input_ids": source[row : row + 1], "labels": labels[row : row + 1]}
            _, expected = loss_and_gradients(model, batch, smoothing=0.1)
            close_gradients({name: grad[row] for name, grad in found.items()}, expected)

    # PyTorch builds its forward-mode rules with deprecated functions.
    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
    @pytest.mark.parametrize("skip_logits", [False, True], ids=["logits", "skip_logits"])
    def test_forward_mode_derivatives(self, skip_logits):
        # PyTorch's fused attention has no forward-mode derivative.
        model, (source, labels) = one_layer_model(attn_implementation="eager"), self.batch()
        loss = self.loss_of(model, skip_logits=skip_logits)
        parameters = {name: weight.detach() for name, weight in model.named_parameters()}
        tangents = {name: torch.randn_like(weight) for name, weight in parameters.items()}
        pair = source[1], labels[1]
        _, found = torch.func.jvp(lambda weights: loss(weights, *pair), (parameters,), (tangents,))
        expected = torch.func.grad(loss)(parameters, *pair)
        close(found, sum((expected[name] * tangents[name]).sum() for name in parameters), 1e-4)

    @pytest.mark.parametrize("skip_logits", [False, True], ids=["logits", "skip_logits"])
    @pytest.mark.parametrize("masked", [False, True], ids=["no mask", "masks"])
    def test_fake_tensors(self, masked, skip_logits):
        with FakeTensorMode():
            model = VanillaTransformerForConditionalGeneration(tiny_config(encoder_layers=1, decoder_layers=1))
            batch = {"input_ids": torch.ones(2, 5, dtype=torch.long), "labels": torch.ones(2, 4, dtype=torch.long)}
            if masked:
                batch |= {"attention_mask": torch.ones(2, 5), "decoder_attention_mask": torch.ones(2, 4)}
            outputs = model(**batch, skip_logits=skip_logits)
            outputs.loss.backward()
            assert skip_logits or outputs.logits.shape == (2, 4, VOCABULARY)
            assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())

    def test_an_exported_graph_takes_labels_padded_on_either_side(self):
        model, (source, labels) = one_layer_model(), self.batch()
        exported = torch.export.export(model, (source,), {"labels": tokens(3, 4)}).module()
        close(exported(source, labels=labels).loss, model(input_ids=source, labels=labels).loss)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_position": "pre", "attention_bias": True, "lm_head_bias": True},
        {**VOCABULARIES["separate"], "position_embedding_type": "learned"},
    ],
    ids=["paper", "pre-norm with biases", "separate vocabularies, learned positions"],
)
def test_every_weight_gets_a_gradient(changes):
    """A weight without influence on the loss would never be trained."""
    model = tiny_model(**changes)
    model(input_ids=tokens(2, 5), labels=tokens(2, 4)).loss.backward()
    for name, parameter in model.named_parameters():
        # A bias common to all keys does not change a softmax.
        if not name.endswith("k_proj.bias"):
            assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
