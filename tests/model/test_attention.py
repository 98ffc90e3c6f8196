"""Attention against loops over the formula, and its implementations and masks against each other."""

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_vanilla_transformer.model import modeling_vanilla_transformer
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerAttention
from processes import run_python
from tables import looped
from tiny import (
    VOCABULARY,
    batch_with_padding,
    close,
    close_gradients,
    gradients,
    one_layer_model,
    randomize,
    tiny_config,
    tiny_model,
    tokens,
)

WIDTHS = {
    "default": {},
    "d_k other than d_model / h": {"head_dim": 6, "value_head_dim": 6},
    "d_k other than d_v": {"head_dim": 6, "value_head_dim": 10},
}
EVERY_IMPLEMENTATION = pytest.mark.parametrize("implementation", ["eager", "sdpa"])


def logits_and_gradients(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the logits at tokens and the gradients of a loss."""
    seen = batch["decoder_attention_mask"].bool()
    logits = model(**batch).logits[seen]
    logits.log_softmax(-1)[:, 5].sum().backward()
    return logits, gradients(model)


def batch_with_an_empty_source(width: int = 6) -> dict[str, Tensor]:
    """A batch whose second source is all padding."""
    torch.manual_seed(1)
    batch = {"input_ids": tokens(3, 6)[:, :width], "labels": tokens(3, 5)}
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][1] = 0
    batch["attention_mask"][2, 2:] = 0
    return batch


class TestFormula:
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
                    visible_keys = [s for s in range(memory.shape[1]) if visible[b, t, s]]
                    scores = [query @ (attention.k_proj.weight[keys] @ memory[b, s]) / d_k**0.5 for s in visible_keys]
                    weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
                    read = torch.stack([attention.v_proj.weight[values] @ memory[b, s] for s in visible_keys])
                    heads.append(torch.einsum("s,sv->v", weights, read))
                rows.append(attention.out_proj.weight @ torch.cat(heads))
        return torch.stack(rows).view_as(x)

    @EVERY_IMPLEMENTATION
    @looped("widths", WIDTHS.values())
    @looped("cross", [False, True])
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


class TestImplementations:
    @looped("widths", WIDTHS.values())
    @looped("masked", [False, True])
    def test_sdpa_equals_eager_with_gradients(self, widths, masked):
        batch = batch_with_padding()
        if not masked:
            batch = {name: torch.ones_like(value) if "mask" in name else value for name, value in batch.items()}
        model = tiny_model(**widths, attn_implementation="eager")
        expected_logits, expected = logits_and_gradients(model, batch)
        model.set_attn_implementation("sdpa")
        logits, actual = logits_and_gradients(model, batch)
        close(logits, expected_logits)
        close_gradients(actual, expected)

    @pytest.mark.parametrize("name", ["a registered one", "the registered one"])
    def test_a_registered_one_does_every_step(self, name, monkeypatch):
        """Including steps where another is faster, such as a single query in many rows."""
        calls = []

        def attention(*args, **kwargs):
            calls.append(1)
            return modeling_vanilla_transformer.eager_attention(*args, **kwargs)

        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, name, attention)
        model = one_layer_model()
        model.set_attn_implementation(name)
        with torch.no_grad():
            model(tokens(40, 1), decoder_input_ids=tokens(40, 1))
        # Encoder self-attention, decoder self-attention, cross-attention.
        assert len(calls) == 3

    # Slow: compiles a kernel, for which transformers and torch call deprecated functions.
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.slow
    @pytest.mark.parametrize("make", [batch_with_padding, batch_with_an_empty_source])
    def test_flex_attention_equals_eager(self, make):
        model, batch = one_layer_model(), make()
        seen = batch.get("decoder_attention_mask", torch.ones(3, 5)).bool()
        with torch.no_grad():
            expected = model(**batch).logits[seen]
            model.set_attn_implementation("flex_attention")
            close(model(**batch).logits[seen], expected)

    # Slow: compiles a kernel, for which transformers and torch call deprecated functions.
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.slow
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's flex attention has no backward pass on the CPU")
    def test_flex_attention_equals_eager_with_gradients(self):
        # Flex attention on CUDA rejects heads narrower than 16.
        model = tiny_model(head_dim=16, value_head_dim=16).to("cuda")
        batch = {name: value.to("cuda") for name, value in batch_with_padding().items()}
        expected_logits, expected = logits_and_gradients(model, batch)
        model.set_attn_implementation("flex_attention")
        logits, actual = logits_and_gradients(model, batch)
        close(logits, expected_logits, 1e-4)
        close_gradients(actual, expected, 1e-4)


class TestMasks:
    """Padding, and section 3.2.3: no token sees a later one."""

    @EVERY_IMPLEMENTATION
    @looped("positions", ["sinusoidal", "learned"])
    @looped("side", ["left", "right"])
    def test_padding_has_no_effect(self, side, positions, implementation):
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
            torch.cat([tokens(1, 7), padded_source]),
            torch.cat([torch.ones_like(source_mask), source_mask]),
            torch.cat([tokens(1, 5), padded_target]),
            torch.cat([torch.ones_like(target_mask), target_mask]),
        )
        close(outputs.logits[1][target_mask[0].bool()], alone)
        encoded = model.model.encoder(source).last_hidden_state[0]
        close(outputs.encoder_last_hidden_state[1][source_mask[0].bool()], encoded)

    @pytest.mark.parametrize("attention_bias", [False, True], ids=["no bias", "bias"])
    @EVERY_IMPLEMENTATION
    def test_attention_to_padding_alone_gives_the_output_bias(self, implementation, attention_bias):
        """For any width of the batch."""
        model = tiny_model(attention_bias=attention_bias, attn_implementation=implementation)
        randomize(model.model)
        attention, outputs, logits = model.model.decoder.layers[-1].encoder_attn, [], []
        attention.register_forward_hook(lambda _, inputs, output: outputs.append(output[0][1]))
        nothing = attention.out_proj.bias if attention_bias else torch.zeros(16)
        for width in (6, 3):
            with torch.no_grad():
                logits.append(model(**batch_with_an_empty_source(width), use_cache=False).logits[1])
            close(outputs[-1], nothing.expand(5, -1), 1e-6)
        close(*logits)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_eager_equals_sdpa_on_a_source_of_padding(self, dtype):
        model, batch, found = tiny_model().to(dtype), batch_with_an_empty_source(), {}
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

    @EVERY_IMPLEMENTATION
    @looped("kind", ["boolean", "-inf", "lowest number"])
    def test_score_masks(self, kind, implementation):
        """Masks (B, 1, T, S) that hide all keys of the second row."""
        model, batch = tiny_model(), batch_with_an_empty_source()
        model.set_attn_implementation(implementation)
        expected = model(**batch).logits
        # One mask serves the encoder's queries and the decoder's.
        seen = batch["attention_mask"].bool()[:, None, None]
        low = -torch.inf if kind == "-inf" else torch.finfo(torch.float32).min
        mask = seen if kind == "boolean" else torch.zeros(seen.shape).masked_fill(~seen, low)
        close(model(**{**batch, "attention_mask": mask}).logits, expected)

    @EVERY_IMPLEMENTATION
    def test_left_padded_targets_give_no_nan(self, implementation):
        """In float16, where the lowest value plus a score overflows."""
        model, batch = tiny_model().half(), batch_with_padding()
        randomize(model.model.decoder.layers)
        model.set_attn_implementation(implementation)
        outputs = model(**batch)
        outputs.logits.float().log_softmax(-1)[..., 5].sum().backward()
        assert outputs.logits.isfinite().all() and all(grad.isfinite().all() for grad in gradients(model).values())

    @EVERY_IMPLEMENTATION
    def test_later_targets_do_not_change_earlier_logits(self, implementation):
        model, source, target = tiny_model(), tokens(2, 4), tokens(2, 6)
        model.set_attn_implementation(implementation)
        before = model(input_ids=source, decoder_input_ids=target).logits
        changed = target.clone()
        changed[:, 3:] = (changed[:, 3:] - 3) % VOCABULARY
        after = model(input_ids=source, decoder_input_ids=changed).logits
        close(after[:, :3], before[:, :3], 1e-6)
        assert not torch.allclose(after[:, 3:], before[:, 3:], atol=1e-3)


@pytest.mark.slow
def test_cudnn_is_left_out_unless_asked_for():
    """It builds a plan for every new shape, and attends to hidden keys if a query has no visible ones."""
    done = run_python("""
import torch
from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerModel

assert not torch.backends.cuda.cudnn_sdp_enabled()
torch.backends.cuda.enable_cudnn_sdp(True)
VanillaTransformerModel(VanillaTransformerConfig(vocab_size=8, d_model=8, encoder_layers=1, decoder_layers=1))
assert torch.backends.cuda.cudnn_sdp_enabled()
""")
    assert done.returncode == 0, done.stderr
