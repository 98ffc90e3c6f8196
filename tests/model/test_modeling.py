"""The model against independent computations: formulas, loops, torch's own layers, and itself run another way."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerDecoder,
    VanillaTransformerEncoder,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
)
from hf_vanilla_transformer.model import attention_vanilla_transformer
from hf_vanilla_transformer.model.attention_vanilla_transformer import VanillaTransformerAttention
from hf_vanilla_transformer.model.modeling_vanilla_transformer import (
    VanillaTransformerDecoderLayer,
    VanillaTransformerEncoderLayer,
)
from hf_vanilla_transformer.model.positions_vanilla_transformer import (
    VanillaTransformerLearnedPositions,
    VanillaTransformerSinusoidalPositions,
    sinusoids,
)
from tiny import (
    EMBEDDINGS,
    VOCABULARIES,
    VOCABULARY,
    batch_with_padding,
    close,
    close_gradients,
    gradients,
    tiny_config,
    tiny_model,
    tokens,
)

WIDTHS = {
    "default": {},
    "d_k other than d_model / h": {"head_dim": 6, "value_head_dim": 6},
    "d_k other than d_v": {"head_dim": 6, "value_head_dim": 10},
}


class TestPositions:
    """Section 3.5."""

    @staticmethod
    def formula(position: int, d_model: int, layout: str) -> list[float]:
        angles = [position / 10000 ** (2 * i / d_model) for i in range(d_model // 2)]
        if layout == "concatenated":
            return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
        return [wave(angle) for angle in angles for wave in (math.sin, math.cos)]

    @pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
    def test_sinusoids_are_the_formula(self, layout):
        places = [0, 1, 31, 32, 1000, 5000]
        expected = torch.tensor([self.formula(place, 16, layout) for place in places])
        close(sinusoids(torch.tensor(places), 16, layout), expected, 1e-7)

    @pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
    @pytest.mark.parametrize(("past", "length"), [(0, 32), (5, 3), (30, 4), (31, 1), (5000, 2)])
    def test_cached_and_computed_positions_are_the_formula(self, layout, past, length):
        positions = VanillaTransformerSinusoidalPositions(tiny_config(sinusoidal_layout=layout))
        expected = torch.tensor([self.formula(past + i, 16, layout) for i in range(length)])
        close(positions(past, length, None), expected, 1e-7)
        close(positions(torch.tensor(past), length, None), expected, 1e-7)

    def test_padding_on_the_left_does_not_count(self):
        for kind in (VanillaTransformerSinusoidalPositions, VanillaTransformerLearnedPositions):
            positions = kind(tiny_config())
            padded = positions(0, 5, torch.tensor([[0], [2]]))
            close(padded[0], positions(0, 5, None))
            close(padded[1, 2:], positions(0, 3, None))

    def test_learned_positions_are_rows_of_a_trained_matrix(self):
        positions = VanillaTransformerLearnedPositions(tiny_config())
        assert positions.weight.shape == (32, 16) and positions.weight.requires_grad
        close(positions(3, 4, None), positions.weight[3:7], 0)

    @pytest.mark.parametrize("past", [30, torch.tensor(30)], ids=["int", "tensor"])
    def test_learned_positions_end(self, past):
        positions = VanillaTransformerLearnedPositions(tiny_config())
        assert positions(past, 2, None).shape == (2, 16)
        with pytest.raises(ValueError, match="33 tokens.*`max_position_embeddings`=32.*sinusoidal"):
            positions(past, 3, None)

    @pytest.mark.parametrize("side", ["input_ids", "decoder_input_ids"])
    def test_a_model_with_learned_positions_refuses_a_longer_sequence(self, side):
        inputs = {"input_ids": tokens(1, 3), "decoder_input_ids": tokens(1, 3), side: tokens(1, 33)}
        with pytest.raises(ValueError, match="33 tokens.*`max_position_embeddings`=32"):
            tiny_model(position_embedding_type="learned")(**inputs)

    def test_positions_tell_equal_tokens_apart(self):
        states = tiny_model().model.encoder(torch.full((1, 4), 7)).last_hidden_state[0]
        assert all(not torch.allclose(states[0], states[i], atol=1e-3) for i in range(1, 4))


class TestAttention:
    """Section 3.2."""

    @staticmethod
    def by_loops(attention: VanillaTransformerAttention, x: Tensor, memory: Tensor, visible: Tensor) -> Tensor:
        """Concat(head_1, ..., head_h) W^O with head_i = softmax(Q_i K_i^T / sqrt(d_k)) V_i, query by query."""
        d_k, d_v = attention.head_dim, attention.value_head_dim
        rows = []
        for b in range(len(x)):
            for t in range(x.shape[1]):
                heads = []
                for i in range(attention.q_proj.out_features // d_k):
                    keys, values = slice(i * d_k, (i + 1) * d_k), slice(i * d_v, (i + 1) * d_v)
                    query = attention.q_proj.weight[keys] @ x[b, t]
                    places = [s for s in range(memory.shape[1]) if visible[b, t, s]]
                    scores = [query @ (attention.k_proj.weight[keys] @ memory[b, s]) / d_k**0.5 for s in places]
                    weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
                    read = torch.stack([attention.v_proj.weight[values] @ memory[b, s] for s in places])
                    heads.append(torch.einsum("s,sv->v", weights, read))
                rows.append(attention.out_proj.weight @ torch.cat(heads))
        return torch.stack(rows).view_as(x)

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    @pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
    @pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
    def test_equals_the_formula(self, cross, widths, implementation):
        config = tiny_config(**widths)
        config._attn_implementation = implementation
        attention = VanillaTransformerAttention(config, heads=2, layer_idx=0)
        x = torch.randn(2, 4, 16)
        memory = torch.randn(2, 5, 16) if cross else x
        visible = torch.rand(2, 4, memory.shape[1]) > 0.4
        visible[..., 0] = True
        mask = torch.zeros(visible.shape).masked_fill(~visible, float("-inf"))[:, None]
        output, weights = attention(x, memory if cross else None, attention_mask=mask)
        close(output, self.by_loops(attention, x, memory, visible))
        if implementation == "eager":
            assert weights.shape == (2, 2, 4, memory.shape[1])
            close(weights.sum(-1), torch.ones(2, 2, 4))
            assert (weights[~visible[:, None].expand_as(weights)] == 0).all()

    @pytest.mark.parametrize("attention_bias", [False, True])
    def test_projections_have_biases_only_when_asked(self, attention_bias):
        attention = tiny_model(attention_bias=attention_bias).model.decoder.layers[0].encoder_attn
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
            assert (projection.bias is not None) == attention_bias


def run(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits at tokens, and the gradients of a loss of them."""
    seen = batch["decoder_attention_mask"].bool()
    logits = model(**batch).logits[seen]
    logits.log_softmax(-1)[:, 5].sum().backward()
    return logits, gradients(model)


@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("masked", [False, True], ids=["full", "padded"])
def test_sdpa_equals_eager_with_gradients(widths, masked):
    batch = batch_with_padding()
    if not masked:
        batch = {name: torch.ones_like(value) if "mask" in name else value for name, value in batch.items()}
    model = tiny_model(**widths)
    results = []
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        results.append(run(model, batch))
    close(results[1][0], results[0][0])
    close_gradients(results[1][1], results[0][1])


# transformers and torch use what torch has deprecated where they compile flex attention.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_flex_attention_equals_eager():
    model, batch = tiny_model(encoder_layers=1, decoder_layers=1), batch_with_padding()
    seen = batch["decoder_attention_mask"].bool()
    with torch.no_grad():
        expected = model(**batch).logits[seen]
        model.set_attn_implementation("flex_attention")
        close(model(**batch).logits[seen], expected)


# As above.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's flex attention has no backward pass on the CPU")
def test_flex_attention_equals_eager_with_gradients():
    # Heads narrower than 16 are refused by flex attention on CUDA.
    model = tiny_model(head_dim=16, value_head_dim=16).to("cuda")
    batch = {name: value.to("cuda") for name, value in batch_with_padding().items()}
    expected_logits, expected = run(model, batch)
    model.set_attn_implementation("flex_attention")
    logits, actual = run(model, batch)
    close(logits, expected_logits, 1e-4)
    for name, grad in expected.items():
        close(actual[name], grad, 1e-4)


class TestMasks:
    """Padding, and section 3.2.3: no token sees a later one."""

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    @pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_padding_changes_nothing(self, side, positions, implementation):
        model = tiny_model(position_embedding_type=positions)
        model.set_attn_implementation(implementation)
        source, target = tokens(1, 4), tokens(1, 3)
        alone = model(input_ids=source, decoder_input_ids=target).logits[0]

        def pad(row: Tensor, count: int) -> tuple[Tensor, Tensor]:
            blank, seen = torch.zeros(1, count, dtype=torch.long), torch.ones_like(row)
            pieces = ([blank, row], [blank, seen]) if side == "left" else ([row, blank], [seen, blank])
            return torch.cat(pieces[0], 1), torch.cat(pieces[1], 1)

        # The first row is not padded, as in any batch.
        (padded_source, source_mask), (padded_target, target_mask) = pad(source, 3), pad(target, 2)
        outputs = model(
            input_ids=torch.cat([tokens(1, 7), padded_source]),
            attention_mask=torch.cat([torch.ones(1, 7, dtype=torch.long), source_mask]),
            decoder_input_ids=torch.cat([tokens(1, 5), padded_target]),
            decoder_attention_mask=torch.cat([torch.ones(1, 5, dtype=torch.long), target_mask]),
        )
        close(outputs.logits[1][target_mask[0].bool()], alone)
        encoded = model.model.encoder(source).last_hidden_state[0]
        close(outputs.encoder_last_hidden_state[1][source_mask[0].bool()], encoded)

    @staticmethod
    def with_an_empty_source(width: int = 6) -> dict[str, Tensor]:
        """A batch whose second source is all padding."""
        torch.manual_seed(1)
        batch = {"input_ids": tokens(3, 6)[:, :width], "labels": tokens(3, 5)}
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        batch["attention_mask"][1] = 0
        batch["attention_mask"][2, 2:] = 0
        return batch

    @pytest.mark.parametrize("attention_bias", [False, True], ids=["no bias", "bias"])
    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_a_source_of_padding_is_attended_to_as_nothing(self, implementation, attention_bias):
        """What attention gives is the bias of its output projection, however wide the batch."""
        model = tiny_model(attention_bias=attention_bias)
        TestLayers.randomize(model.model)
        model.set_attn_implementation(implementation)
        found = {}
        for layer in model.model.decoder.layers:
            layer.encoder_attn.register_forward_hook(lambda _, inputs, output: found.update(out=output[0]))
        for width in (6, 3):
            with torch.no_grad():
                found[width] = model(**self.with_an_empty_source(width), use_cache=False).logits[1]
            bias = model.model.decoder.layers[-1].encoder_attn.out_proj.bias
            nothing = torch.zeros(16) if bias is None else bias
            close(found["out"][1], nothing.expand(5, -1), 1e-6)
        close(found[3], found[6])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_a_source_of_padding_gives_the_same_by_eager_and_sdpa(self, dtype):
        model, batch, found = tiny_model().to(dtype), self.with_an_empty_source(), {}
        for implementation in ("eager", "sdpa"):
            model.set_attn_implementation(implementation)
            outputs = model(**batch)
            outputs.loss.backward()
            found[implementation] = outputs.logits, gradients(model)
        (logits, expected), (other_logits, actual) = found["eager"], found["sdpa"]
        assert logits.isfinite().all() and all(grad.isfinite().all() for grad in expected.values())
        if dtype == torch.float32:
            close(other_logits, logits)
            close_gradients(actual, expected)
        else:
            close(other_logits.float(), logits.float(), 0.05)
            assert all(grad.isfinite().all() for grad in actual.values())

    def test_eager_gives_the_same_without_looking_at_the_mask(self, monkeypatch):
        model, batch, found = tiny_model(attn_implementation="eager"), self.with_an_empty_source(), []
        batch["attention_mask"][1, :3] = 1
        for looks in (True, False):
            if not looks:
                monkeypatch.setattr(attention_vanilla_transformer, "is_plain_cpu", lambda *_: False)
            outputs = model(**batch)
            outputs.loss.backward()
            found.append((outputs.logits, gradients(model)))
        close(found[0][0], found[1][0], 1e-6)
        close_gradients(found[0][1], found[1][1])

    # transformers and torch use what torch has deprecated where they compile flex attention.
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.slow
    def test_a_source_of_padding_gives_the_same_by_flex_attention(self):
        model, batch = tiny_model(encoder_layers=1, decoder_layers=1), self.with_an_empty_source()
        with torch.no_grad():
            expected = model(**batch).logits
            model.set_attn_implementation("flex_attention")
            close(model(**batch).logits, expected)

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    @pytest.mark.parametrize("kind", ["true where seen", "-inf", "lowest number"])
    def test_masks_of_scores(self, kind, implementation):
        """Ready-made masks (B, 1, T, S); the second row of each is hidden from everyone."""
        model, batch = tiny_model(), self.with_an_empty_source()
        model.set_attn_implementation(implementation)
        expected = model(**batch).logits
        # One mask serves the encoder's queries and the decoder's.
        seen = batch["attention_mask"].bool()[:, None, None]
        low = -torch.inf if kind == "-inf" else torch.finfo(torch.float32).min
        mask = seen if kind == "true where seen" else torch.zeros(seen.shape).masked_fill(~seen, low)
        close(model(**{**batch, "attention_mask": mask}).logits, expected)

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_padding_on_the_left_of_targets_gives_no_nan(self, implementation):
        """In float16 too, where the lowest number plus a score is beyond the range."""
        model, batch = tiny_model().half(), batch_with_padding()
        TestLayers.randomize(model.model.decoder.layers)
        model.set_attn_implementation(implementation)
        outputs = model(**batch)
        outputs.logits.float().log_softmax(-1)[..., 5].sum().backward()
        assert outputs.logits.isfinite().all() and all(grad.isfinite().all() for grad in gradients(model).values())

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    def test_later_targets_do_not_change_earlier_logits(self, implementation):
        model, source, target = tiny_model(), tokens(2, 4), tokens(2, 6)
        model.set_attn_implementation(implementation)
        before = model(input_ids=source, decoder_input_ids=target).logits
        changed = target.clone()
        changed[:, 3:] = (changed[:, 3:] - 3) % VOCABULARY
        after = model(input_ids=source, decoder_input_ids=changed).logits
        close(after[:, :3], before[:, :3], 1e-6)
        assert not torch.allclose(after[:, 3:], before[:, 3:], atol=1e-3)

    def test_every_source_token_is_seen_from_every_place(self):
        model, source = tiny_model(), tokens(1, 5)
        embeds = model.get_input_embeddings()(source).detach().requires_grad_()
        model.model.encoder(inputs_embeds=embeds).last_hidden_state[0, 0].square().sum().backward()
        assert (embeds.grad[0].abs().sum(-1) > 1e-6).all()


class TestLayers:
    """Sections 3.1 and 3.3 against torch's own layers with the same weights."""

    @staticmethod
    def copy_attention(ours: VanillaTransformerAttention, theirs: nn.MultiheadAttention) -> None:
        projections = (ours.q_proj, ours.k_proj, ours.v_proj)
        theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
        theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())

    @classmethod
    @torch.no_grad()
    def copy_layer(cls, ours: nn.Module, theirs: nn.Module) -> None:
        norms = ["self_attn_layer_norm", "final_layer_norm"]
        cls.copy_attention(ours.self_attn, theirs.self_attn)
        if hasattr(ours, "encoder_attn"):
            cls.copy_attention(ours.encoder_attn, theirs.multihead_attn)
            norms.insert(1, "encoder_attn_layer_norm")
        theirs.linear1.load_state_dict(ours.fc1.state_dict())
        theirs.linear2.load_state_dict(ours.fc2.state_dict())
        for number, norm in enumerate(norms, start=1):
            getattr(theirs, f"norm{number}").load_state_dict(getattr(ours, norm).state_dict())

    @staticmethod
    def randomize(module: nn.Module) -> None:
        """So that biases and norms count: they start at 0 and 1."""
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.3)

    @pytest.mark.parametrize("norm_position", ["post", "pre"])
    @pytest.mark.parametrize("activation", ["relu", "gelu"])
    def test_encoder_layer(self, norm_position, activation):
        config = tiny_config(norm_position=norm_position, attention_bias=True, activation_function=activation)
        config._attn_implementation = "eager"
        ours = VanillaTransformerEncoderLayer(config, 0)
        self.randomize(ours)
        theirs = nn.TransformerEncoderLayer(
            16, 4, 32, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_position == "pre"
        )
        self.copy_layer(ours, theirs)
        x = torch.randn(2, 5, 16)
        close(ours(x), theirs(x))

    @pytest.mark.parametrize("norm_position", ["post", "pre"])
    def test_decoder_layer(self, norm_position):
        config = tiny_config(norm_position=norm_position, attention_bias=True)
        config._attn_implementation = "eager"
        ours = VanillaTransformerDecoderLayer(config, 0)
        self.randomize(ours)
        theirs = nn.TransformerDecoderLayer(
            16, 2, 24, dropout=0.0, batch_first=True, norm_first=norm_position == "pre"
        )
        self.copy_layer(ours, theirs)
        x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
        causal = nn.Transformer.generate_square_subsequent_mask(5)
        close(ours(x, causal[None, None], memory), theirs(x, memory, tgt_mask=causal))

    def test_without_norms_a_layer_only_adds(self):
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
    def test_width_zero_leaves_the_feed_forward_out(self, norm_position):
        config = tiny_config(norm_position=norm_position, encoder_ffn_dim=0)
        config._attn_implementation = "eager"
        layer, x = VanillaTransformerEncoderLayer(config, 0), torch.randn(2, 5, 16)
        names = {name.split(".")[0] for name, _ in layer.named_parameters()}
        assert names == ({"self_attn"} if norm_position == "none" else {"self_attn", "self_attn_layer_norm"})
        norm = layer.self_attn_layer_norm
        if norm_position == "pre":
            expected = x + layer.self_attn(norm(x))[0]
        else:
            expected = norm(x + layer.self_attn(x)[0])
        close(layer(x), expected)

    def test_dropout_falls_where_the_paper_puts_it(self):
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
        # Attention gives 0 and feed-forward 1, which dropout makes 0 or 2.
        assert set(states.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_whole_stacks_equal_those_of_torch(norm_position):
    model = tiny_model(norm_position=norm_position, attention_bias=True, encoder_attention_heads=2, layer_norm_eps=0.1)
    TestLayers.randomize(model.model.encoder.layers)
    TestLayers.randomize(model.model.decoder.layers)
    pre = norm_position == "pre"
    kwargs = {"dropout": 0.0, "batch_first": True, "norm_first": pre, "layer_norm_eps": 0.1}
    norms = [nn.LayerNorm(16, eps=0.1) if pre else None for _ in range(2)]
    encoder_layer = nn.TransformerEncoderLayer(16, 2, 32, **kwargs)
    encoder = nn.TransformerEncoder(encoder_layer, 2, norms[0], enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 24, **kwargs), 3, norms[1])
    for ours, theirs in ((model.model.encoder, encoder), (model.model.decoder, decoder)):
        for layer, reference in zip(ours.layers, theirs.layers, strict=True):
            TestLayers.copy_layer(layer, reference)
        assert isinstance(ours.layer_norm, nn.LayerNorm) == pre
    batch = batch_with_padding()
    batch["decoder_attention_mask"][:] = 1

    def embed(ids: Tensor) -> Tensor:
        return model.get_input_embeddings()(ids) * 4.0 + sinusoids(torch.arange(ids.shape[1]), 16, "interleaved")

    padding = batch["attention_mask"] == 0
    memory = encoder(embed(batch["input_ids"]), src_key_padding_mask=padding)
    states = decoder(
        embed(batch["decoder_input_ids"]),
        memory,
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(5).isinf(),
        memory_key_padding_mask=padding,
    )
    close(model(**batch).logits, states @ model.lm_head.weight.T)


class TestVocabularies:
    """Section 3.4: one matrix for both embeddings and the output projection, or fewer of these together."""

    @pytest.mark.parametrize(
        ("changes", "together", "apart"),
        [
            (VOCABULARIES["shared"], [(*EMBEDDINGS, "lm_head.weight")], []),
            (VOCABULARIES["tied"], [(EMBEDDINGS[1], "lm_head.weight")], [EMBEDDINGS]),
            (VOCABULARIES["shared, untied"], [EMBEDDINGS], [(EMBEDDINGS[0], "lm_head.weight")]),
            (
                VOCABULARIES["separate"],
                [],
                [EMBEDDINGS, (EMBEDDINGS[1], "lm_head.weight")],
            ),
        ],
        ids=VOCABULARIES,
    )
    def test_which_matrices_are_one(self, changes, together, apart, tmp_path):
        model = tiny_model(**changes)
        model.save_pretrained(tmp_path)
        loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
        for each in (model, loaded):
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

    @pytest.mark.parametrize("changes", VOCABULARIES.values(), ids=VOCABULARIES)
    def test_a_reloaded_model_is_the_same(self, changes, tmp_path):
        model = tiny_model(**changes, lm_head_bias=True, norm_position="pre")
        nn.init.normal_(model.lm_head.bias)
        model.save_pretrained(tmp_path)
        loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
        batch = batch_with_padding()
        close(loaded(**batch).logits, model(**batch).logits, 0)
        assert loaded.config.to_dict() == {**model.config.to_dict(), "_name_or_path": str(tmp_path)}

    def test_each_side_has_its_size(self):
        model = tiny_model(**VOCABULARIES["separate"])
        assert model.model.encoder.embed_tokens.num_embeddings == VOCABULARY
        assert model.model.decoder.embed_tokens.num_embeddings == 50
        assert model.lm_head.out_features == 50
        logits = model(input_ids=tokens(2, 3), decoder_input_ids=torch.full((2, 4), 49)).logits
        assert logits.shape == (2, 4, 50)

    def test_the_projection_has_a_bias_only_when_asked(self):
        assert tiny_model().lm_head.bias is None
        model, batch = tiny_model(lm_head_bias=True), batch_with_padding()
        before = model(**batch).logits
        nn.init.ones_(model.lm_head.bias)
        close(model(**batch).logits, before + 1)

    def test_embeddings_are_scaled(self):
        batch = {"input_ids": tokens(1, 3), "output_hidden_states": True}
        scaled, plain = (tiny_model(scale_embedding=scale).model.encoder for scale in (True, False))
        raw = plain.embed_tokens(batch["input_ids"])
        places = sinusoids(torch.arange(3), 16, "interleaved")
        close(scaled(**batch).hidden_states[0], raw * 16**0.5 + places)
        close(plain(**batch).hidden_states[0], raw + places)

    @pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}], ids=["tied", "untied"])
    def test_a_shared_vocabulary_can_grow(self, changes, tmp_path):
        model, batch = tiny_model(**changes), batch_with_padding()
        before = model(**batch).logits
        model.resize_token_embeddings(VOCABULARY + 3, mean_resizing=False)
        after = model(**batch).logits
        assert after.shape[-1] == VOCABULARY + 3
        close(after[..., :VOCABULARY], before)
        model.save_pretrained(tmp_path)
        loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
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
        loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
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

    def test_a_shared_vocabulary_has_no_side_to_resize(self):
        with pytest.raises(ValueError, match="use `resize_token_embeddings`"):
            tiny_model().resize_decoder_token_embeddings(45)

    @pytest.mark.parametrize(
        "changes",
        [
            {"share_encoder_decoder_embeddings": False},
            {"tie_word_embeddings": False},
            {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
        ],
        ids=["sides apart", "output apart", "all apart"],
    )
    def test_weights_that_were_one_are_loaded_apart_with_their_values(self, changes, tmp_path):
        model, batch = tiny_model(), batch_with_padding()
        model.save_pretrained(tmp_path)
        loaded, info = VanillaTransformerForConditionalGeneration.from_pretrained(
            tmp_path, **changes, output_loading_info=True
        )
        assert not info["missing_keys"] and not info["unexpected_keys"]
        close(loaded(**batch).logits, model(**batch).logits, 0)
        encoder, decoder = loaded.model.encoder.embed_tokens.weight, loaded.model.decoder.embed_tokens.weight
        assert (encoder is decoder) == loaded.config.share_encoder_decoder_embeddings
        assert (loaded.lm_head.weight is decoder) == loaded.config.tie_word_embeddings
        loaded.save_pretrained(tmp_path / "apart")
        again = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "apart")
        close(again(**batch).logits, model(**batch).logits, 0)


class TestDecoding:
    """Decoding step by step, with and without cached keys and values."""

    @staticmethod
    def step_by_step(model: nn.Module, source: Tensor, target: Tensor, **encoder: Tensor) -> Tensor:
        outputs = model.model.encoder(source, **encoder)
        cache, logits = None, []
        for t in range(target.shape[1]):
            step = model(
                encoder_outputs=outputs, decoder_input_ids=target[:, t : t + 1], past_key_values=cache, **encoder
            )
            cache = step.past_key_values
            logits.append(step.logits)
        assert cache.get_seq_length() == target.shape[1]
        return torch.cat(logits, 1)

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    @pytest.mark.parametrize(
        "changes",
        [*WIDTHS.values(), {"norm_position": "pre"}, {"position_embedding_type": "learned"}, {"decoder_ffn_dim": 0}],
        ids=[*WIDTHS, "pre", "learned", "no feed-forward"],
    )
    def test_cached_steps_equal_one_pass(self, changes, implementation):
        model, source, target = tiny_model(**changes), tokens(2, 5), tokens(2, 6)
        model.set_attn_implementation(implementation)
        mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
        whole = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        close(self.step_by_step(model, source, target, attention_mask=mask), whole)

    def test_cached_steps_cross_the_border_of_cached_positions(self):
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
        second = model(
            encoder_outputs=(first.encoder_last_hidden_state,),
            decoder_input_ids=target[:, 3:],
            decoder_attention_mask=mask,
            past_key_values=first.past_key_values,
        )
        close(second.logits, whole[:, 3:])

    def test_encoder_keys_are_projected_once(self):
        model, source = tiny_model(), tokens(1, 4)
        calls = []
        model.model.decoder.layers[0].encoder_attn.k_proj.register_forward_hook(lambda *_: calls.append(1))
        self.step_by_step(model, source, tokens(1, 5))
        assert len(calls) == 1

    @pytest.mark.parametrize("num_beams", [1, 3], ids=["greedy", "beams"])
    @pytest.mark.parametrize(
        "changes", [{"decoder_layers": 2}, VOCABULARIES["tied"]], ids=["shared", "two vocabularies"]
    )
    def test_generate_with_and_without_cache(self, num_beams, changes):
        # Without tied weights an untrained model does not repeat its input for ever (with these sizes).
        model, source = tiny_model(**{**changes, "tie_word_embeddings": False}), tokens(3, 6)
        mask = torch.ones_like(source)
        mask[1, 4:] = 0
        options = {"attention_mask": mask, "max_new_tokens": 7, "num_beams": num_beams}
        cached = model.generate(source, use_cache=True, **options)
        assert len({tuple(row) for row in cached.tolist()}) == 3
        assert (cached[:, 0] == 1).all() and cached.shape[1] > 4
        assert torch.equal(model.generate(source, use_cache=False, **options), cached)
        if num_beams == 1:
            assert torch.equal(model.generate(source, cache_implementation="static", **options), cached)

    @pytest.mark.parametrize("changes", [{}, VOCABULARIES["tied"]], ids=["shared", "two vocabularies"])
    def test_transition_scores_add_up_to_the_scores_of_the_beams(self, changes):
        model = tiny_model(**{**changes, "tie_word_embeddings": False})
        options = {"max_new_tokens": 7, "num_beams": 3, "length_penalty": 0.0, "return_dict_in_generate": True}
        out = model.generate(tokens(3, 6), output_scores=True, **options)
        steps = model.compute_transition_scores(out.sequences, out.scores, out.beam_indices)
        close(steps.sum(-1), out.sequences_scores)

    def test_generate_is_the_greedy_choice(self):
        model, source = tiny_model(tie_word_embeddings=False), tokens(1, 6)
        chosen = [1]
        while len(chosen) < 9 and chosen[-1] != 2:
            logits = model(input_ids=source, decoder_input_ids=torch.tensor([chosen])).logits
            chosen.append(logits[0, -1].argmax().item())
        assert model.generate(source, max_new_tokens=8)[0].tolist() == chosen

    def test_no_cache_where_none_is_wanted(self):
        model, batch = tiny_model(), {"input_ids": tokens(1, 3), "decoder_input_ids": tokens(1, 3)}
        assert isinstance(model(**batch).past_key_values, EncoderDecoderCache)
        assert model(**batch, use_cache=False).past_key_values is None
        assert model(**batch, labels=tokens(1, 3)).past_key_values is None
        assert tiny_model(use_cache=False)(**batch).past_key_values is None


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
        # The second row's leading padding sees nothing at all, and its weights mean nothing.
        assert all((weights[0].triu(1) == 0).all() for weights in outputs.decoder_attentions)
        close(outputs.encoder_hidden_states[-1], outputs.encoder_last_hidden_state, 0)
        close(outputs.decoder_hidden_states[-1] @ model.lm_head.weight.T, outputs.logits)
        plain = model(**batch)
        assert plain.decoder_attentions is None and plain.encoder_hidden_states is None

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
    def test_encoder_outputs_spare_the_encoder(self, kind):
        model, batch = tiny_model(), batch_with_padding()
        expected = model(**batch).logits
        states = model.model.encoder(batch.pop("input_ids"), batch["attention_mask"]).last_hidden_state
        model.model.encoder.forward = None
        given = (states,) if kind is tuple else BaseModelOutput(last_hidden_state=states)
        outputs = model(**batch, encoder_outputs=given)
        close(outputs.logits, expected, 0)
        assert outputs.encoder_last_hidden_state is states

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

    def test_labels_want_all_logits(self):
        model, source, labels = tiny_model(), tokens(2, 4), tokens(2, 3)
        assert model(input_ids=source, labels=labels, logits_to_keep=1).logits.shape == (2, 3, VOCABULARY)

    def test_embeddings_stand_for_tokens(self):
        model, batch = tiny_model(**VOCABULARIES["tied"]), batch_with_padding()
        expected = model(**batch).logits
        source, target = batch.pop("input_ids"), batch.pop("decoder_input_ids")
        embeds = {
            "inputs_embeds": model.get_input_embeddings()(source),
            "decoder_inputs_embeds": model.model.decoder.embed_tokens(target),
        }
        close(model(**batch, **embeds).logits, expected)

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({}, "exactly one of `decoder_input_ids` and `decoder_inputs_embeds`"),
            ({"input_ids"}, "exactly one of `decoder_input_ids` and `decoder_inputs_embeds`"),
            ({"decoder_input_ids"}, "exactly one of `input_ids` and `inputs_embeds`"),
            ({"labels"}, "exactly one of `input_ids` and `inputs_embeds`"),
            ({"input_ids", "inputs_embeds", "labels"}, "exactly one of `input_ids` and `inputs_embeds`"),
            (
                {"input_ids", "decoder_input_ids", "decoder_inputs_embeds"},
                "exactly one of `decoder_input_ids` and `decoder_inputs_embeds`",
            ),
        ],
        ids=["none", "source only", "target only", "labels only", "source twice", "target twice"],
    )
    def test_missing_and_doubled_inputs_raise(self, inputs, message):
        given = {name: torch.randn(1, 3, 16) if "embeds" in name else tokens(1, 3) for name in inputs}
        with pytest.raises(ValueError, match=message):
            tiny_model()(**given)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"input_ids": torch.full((2, 6), 40)}, r"`input_ids` has 40 at \[0, 0\].*from 0 to 39.*tokenizer"),
            (
                {"decoder_input_ids": torch.tensor([[1, 2, -100, 4, 5]] * 2)},
                "`decoder_input_ids` has -100 at",
            ),
            ({"labels": torch.tensor([[1, 2, -100, 4, 99]] * 2)}, r"`labels` has 99 at \[0, 4\]"),
            ({"attention_mask": torch.ones(2, 5)}, r"`attention_mask` has shape \(2, 5\).*\(2, 6\)"),
            ({"attention_mask": torch.ones(1, 6)}, r"`attention_mask` has shape \(1, 6\).*\(2, 6\)"),
            (
                {"decoder_attention_mask": torch.ones(2, 7)},
                r"`decoder_attention_mask` has shape \(2, 7\).*\(2, 5\)",
            ),
            (
                {"attention_mask": torch.ones(2, 1, 1, 6, dtype=torch.long)},
                r"`attention_mask` has dtype torch.int64.*boolean.*or of floats",
            ),
            ({"attention_mask": torch.ones(2, 1, 6)}, r"`attention_mask` has shape \(2, 1, 6\).*\(2, 6\)"),
            ({"input_ids": torch.ones(2, 6)}, "`input_ids` has dtype torch.float32, but ids are integers"),
            ({"labels": torch.ones(2, 4, dtype=torch.long)}, r"`labels` have shape \(2, 4\).*\(2, 5\)"),
            (
                {"encoder_outputs": (torch.zeros(2, 4, 16),), "input_ids": None},
                r"`attention_mask` has shape \(2, 6\).*\(2, 4\)",
            ),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_inputs_that_do_not_fit_are_named(self, changes, message):
        with pytest.raises(ValueError, match=message):
            tiny_model()(**batch_with_padding() | changes)

    def test_a_mask_covers_the_cached_tokens_too(self):
        model, batch = tiny_model(), batch_with_padding()
        cache = model(**batch).past_key_values
        step = {**batch, "decoder_input_ids": tokens(2, 1), "past_key_values": cache}
        with pytest.raises(ValueError, match=r"`decoder_attention_mask` has shape \(2, 5\).*\(2, 6\), cached"):
            model(**step)

    def test_the_encoder_alone(self, tmp_path):
        encoder = VanillaTransformerEncoder(tiny_config()).eval()
        source = tokens(2, 4)
        states = encoder(source).last_hidden_state
        assert states.shape == (2, 4, 16)
        encoder.save_pretrained(tmp_path)
        close(VanillaTransformerEncoder.from_pretrained(tmp_path)(source).last_hidden_state, states, 0)

    def test_the_decoder_alone_is_a_language_model(self):
        decoder, target = VanillaTransformerDecoder(tiny_config()).eval(), tokens(2, 5)
        whole = decoder(target).last_hidden_state
        assert whole.shape == (2, 5, 16)
        # A plain cache is for self-attention alone.
        for cache in (None, DynamicCache(config=decoder.config)):
            steps = []
            for t in range(5):
                step = decoder(target[:, t : t + 1], past_key_values=cache, use_cache=True)
                cache = step.past_key_values
                steps.append(step.last_hidden_state)
            close(torch.cat(steps, 1), whole)

    def test_a_plain_cache_leaves_cross_attention_uncached(self):
        decoder, target, memory = VanillaTransformerDecoder(tiny_config()).eval(), tokens(2, 4), torch.randn(2, 3, 16)
        whole = decoder(target, encoder_hidden_states=memory).last_hidden_state
        cache = DynamicCache(config=decoder.config)
        steps = [
            decoder(target[:, t : t + 1], encoder_hidden_states=memory, past_key_values=cache).last_hidden_state
            for t in range(4)
        ]
        close(torch.cat(steps, 1), whole)
        assert cache.get_seq_length() == 4


class TestTrainingMachinery:
    # Its new name is not in all releases that this package supports.
    @pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_gradient_checkpointing_changes_no_gradient(self, use_reentrant):
        model = tiny_model(dropout=0.2, norm_position="pre").train()
        batch = {"input_ids": tokens(2, 5), "labels": tokens(2, 4)}

        def step() -> tuple[Tensor, dict[str, Tensor]]:
            torch.manual_seed(3)
            loss = model(**batch).loss
            loss.backward()
            return loss, gradients(model)

        passes = []
        model.model.decoder.layers[0].fc1.register_forward_hook(lambda *_: passes.append(1))
        loss, expected = step()
        assert len(passes) == 1
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        again, actual = step()
        # One pass forward, and one more while going back.
        assert len(passes) == 3
        close(again, loss)
        close_gradients(actual, expected)

    def test_compiled_forward_is_one_graph_and_equal(self):
        model, batch = tiny_model(), batch_with_padding()
        with torch.no_grad():
            expected = model(**batch, use_cache=False).logits
            actual = torch.compile(model, fullgraph=True, backend="aot_eager")(**batch, use_cache=False).logits
        close(actual, expected)

    @pytest.mark.slow
    def test_compiled_training_step_equals(self):
        model, batch = tiny_model(), {"input_ids": tokens(2, 5), "labels": tokens(2, 4), "smoothing": 0.1}
        loss = model(**batch).loss
        loss.backward()
        expected = gradients(model)
        compiled_loss = torch.compile(model, fullgraph=True, backend="aot_eager")(**batch).loss
        compiled_loss.backward()
        close(compiled_loss, loss)
        close_gradients(gradients(model), expected)


class TestTransforms:
    """What `torch.func` and fake tensors make of the model is what calling it gives."""

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

    # PyTorch's fused attention of several examples at once is a loop over them.
    @pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
    @pytest.mark.parametrize("skip_logits", [False, True], ids=["logits", "skip_logits"])
    @pytest.mark.parametrize("kind", ["vmap(grad)", "grad", "jacrev"])
    def test_gradients(self, kind, skip_logits):
        model, (source, labels) = tiny_model(), self.batch()
        loss = self.loss_of(model, smoothing=0.1, skip_logits=skip_logits)
        parameters = {name: weight.detach() for name, weight in model.named_parameters()}
        if kind == "vmap(grad)":
            found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, source, labels)
        else:
            single = getattr(torch.func, kind)(loss)
            rows = [single(parameters, *pair) for pair in zip(source, labels, strict=True)]
            found = {name: torch.stack([row[name] for row in rows]) for name in parameters}
        for row in range(3):
            model(input_ids=source[row : row + 1], labels=labels[row : row + 1], smoothing=0.1).loss.backward()
            close_gradients({name: grad[row] for name, grad in found.items()}, gradients(model))

    # PyTorch's own rules of such derivatives are made by what it has deprecated.
    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
    @pytest.mark.parametrize("skip_logits", [False, True], ids=["logits", "skip_logits"])
    def test_derivatives_forward(self, skip_logits):
        # PyTorch has none of its fused attention.
        model, (source, labels) = tiny_model(attn_implementation="eager"), self.batch()
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
            model = VanillaTransformerForConditionalGeneration(tiny_config())
            batch = {"input_ids": torch.ones(2, 5, dtype=torch.long), "labels": torch.ones(2, 4, dtype=torch.long)}
            if masked:
                batch |= {"attention_mask": torch.ones(2, 5), "decoder_attention_mask": torch.ones(2, 4)}
            outputs = model(**batch, skip_logits=skip_logits)
            outputs.loss.backward()
            assert skip_logits or outputs.logits.shape == (2, 4, VOCABULARY)
            assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())

    def test_the_meta_device(self):
        model = tiny_model().to("meta")
        source, labels = (ids.to("meta") for ids in self.batch())
        assert model(input_ids=source, labels=labels).logits.shape == (3, 4, VOCABULARY)

    def test_one_graph_for_labels_padded_on_either_side(self):
        model, (source, labels) = tiny_model(), self.batch()
        exported = torch.export.export(Labelled(model), (source, tokens(3, 4))).module()
        close(exported(source, labels), model(input_ids=source, labels=labels).loss)


class Labelled(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, labels: Tensor) -> Tensor:
        return self.model(input_ids=source, labels=labels).loss


class TestLoadingAndInitialWeights:
    @pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
    def test_buffers_are_right_after_loading(self, layout, tmp_path):
        tiny_model(sinusoidal_layout=layout).save_pretrained(tmp_path)
        loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
        expected = sinusoids(torch.arange(32), 16, layout)
        for side in (loaded.model.encoder, loaded.model.decoder):
            close(side.embed_positions.weight, expected, 0)
        assert not any("embed_positions" in name for name in loaded.state_dict())

    def test_buffers_are_right_after_the_meta_device(self):
        with torch.device("meta"):
            model = VanillaTransformerForConditionalGeneration(tiny_config())
        assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
        model.to_empty(device="cpu").init_weights()
        close(model.model.decoder.embed_positions.weight, sinusoids(torch.arange(32), 16, "interleaved"), 0)
        assert model.lm_head.weight is model.model.shared.weight
        assert model(**batch_with_padding()).logits.isfinite().all()

    @pytest.mark.parametrize(
        ("auto", "expected"),
        [
            (AutoModel, VanillaTransformerModel),
            (AutoModelForSeq2SeqLM, VanillaTransformerForConditionalGeneration),
        ],
    )
    def test_auto_classes(self, auto: Any, expected: type, tmp_path: Path):
        model = tiny_model()
        model.save_pretrained(tmp_path)
        assert type(AutoConfig.from_pretrained(tmp_path)) is VanillaTransformerConfig
        loaded = auto.from_pretrained(tmp_path)
        assert type(loaded) is expected and not loaded.training
        assert type(auto.from_config(tiny_config())) is expected
        batch = batch_with_padding()
        states = loaded(**batch)[0] if auto is AutoModel else loaded(**batch, output_hidden_states=True)
        states = states if auto is AutoModel else states.decoder_hidden_states[-1]
        close(states @ model.lm_head.weight.T, model(**batch).logits)

    def test_embeddings_start_with_unit_variance_once_scaled(self):
        model = tiny_model(vocab_size=3000, d_model=64)
        weight = model.model.shared.weight
        assert weight[1:].std().item() == pytest.approx(64**-0.5, rel=0.01)
        assert weight[1:].mean().item() == pytest.approx(0, abs=0.002)
        chosen = tiny_model(vocab_size=3000, d_model=64, init_std=0.5).model.shared.weight
        assert chosen[1:].std().item() == pytest.approx(0.5, rel=0.01)

    @pytest.mark.parametrize("changes", VOCABULARIES.values(), ids=VOCABULARIES)
    def test_the_padding_row_starts_at_zero(self, changes):
        model = tiny_model(**changes).model
        for embedding in (model.encoder.embed_tokens, model.decoder.embed_tokens):
            assert embedding.padding_idx == 0
            assert (embedding.weight[0] == 0).all() and (embedding.weight[1:] != 0).all()

    def test_loading_keeps_a_trained_padding_row(self, tmp_path):
        model = tiny_model()
        nn.init.ones_(model.model.shared.weight)
        model.save_pretrained(tmp_path)
        loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path)
        assert (loaded.model.shared.weight == 1).all()

    def test_weights_marked_as_loaded_are_not_drawn_again(self):
        model = tiny_model(attention_bias=True, position_embedding_type="learned")
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                nn.init.ones_(parameter)
                parameter._is_hf_initialized = True
        for module in model.modules():
            model._init_weights(module)
        assert all((parameter == 1).all() for parameter in model.parameters())

    def test_matrices_start_xavier_uniform_and_biases_at_zero(self):
        model = tiny_model(d_model=64, encoder_ffn_dim=256, attention_bias=True, lm_head_bias=True)
        layer = model.model.encoder.layers[0]
        for linear in (layer.self_attn.q_proj, layer.self_attn.out_proj, layer.fc1, layer.fc2):
            bound = math.sqrt(6 / (linear.in_features + linear.out_features))
            assert 0.99 * bound < linear.weight.abs().max() <= bound
            assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                assert (parameter == 0).all(), name
            elif "layer_norm" in name:
                assert (parameter == 1).all(), name


def test_every_weight_gets_a_gradient():
    """A weight that no output depends on would be trained by nobody."""
    builds: list[Callable[[], nn.Module]] = [
        lambda: tiny_model(),
        lambda: tiny_model(norm_position="pre", attention_bias=True, lm_head_bias=True),
        lambda: tiny_model(**VOCABULARIES["separate"], position_embedding_type="learned"),
    ]
    for build in builds:
        model = build()
        model(input_ids=tokens(2, 5), labels=tokens(2, 4)).loss.backward()
        for name, parameter in model.named_parameters():
            # A bias on all keys alike does not change a softmax.
            if not name.endswith("k_proj.bias"):
                assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
