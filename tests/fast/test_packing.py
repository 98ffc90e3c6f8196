"""Packed batches against padded ones: losses, gradients and states, with internal padding and with each kernel."""

import pytest
import torch
from torch.nn.attention import varlen
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_vanilla_transformer import VanillaTransformerForSequenceClassification
from hf_vanilla_transformer.fast import packing as packing_module
from hf_vanilla_transformer.fast.packing import Packing, has_varlen_attention, packed_mask, stays_packed
from packed import LENGTHS, attention_by_sequence, packed, padded, reference_varlen_attn, token_pairs, without_padding
from tables import looped
from tiny import (
    SHAPES,
    close,
    close_gradients,
    counting_backend,
    gradients,
    loss_and_gradients,
    one_layer_model,
    perturbed_model,
    tiny_config,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("one_thread")

ALL_SHAPES = {
    **SHAPES,
    "unequal widths": {"head_dim": 8, "value_head_dim": 4},
    "biases": {"attention_bias": True, "lm_head_bias": True},
    "few cached positions": {"max_position_embeddings": 3},
}
# Heads as wide as the kernels require.
KERNEL_SHAPES = [{"encoder_attention_heads": 2, **changes} for changes in SHAPES.values()]
KERNEL_SHAPES.append({"head_dim": 16, "value_head_dim": 16})
EVERY_KERNEL_SHAPE = pytest.mark.parametrize("changes", KERNEL_SHAPES, ids=str)
CHECKPOINTING_IS_RENAMED = pytest.mark.filterwarnings(
    "ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning"
)
# Options of the loss in evaluation and in training.
EVERY_LOSS = pytest.mark.parametrize(
    "options", [{}, {"smoothing": 0.1, "skip_logits": True}], ids=["plain", "training"]
)


def compare(model, pairs, **options):
    """Check loss, gradients and states of a packed batch against those of a padded one."""
    reference, results = padded(pairs), []
    for batch in (reference, packed(pairs)):
        outputs = model(**batch, output_hidden_states=True, **options)
        outputs.loss.backward()
        results.append((outputs, gradients(model)))
    (expected, expected_gradients), (found, found_gradients) = results
    close(found.loss, expected.loss)
    close_gradients(found_gradients, expected_gradients)
    masks = {"encoder": reference["attention_mask"], "decoder": reference["labels"].ne(-100)}
    for side, mask in masks.items():
        states = getattr(found, f"{side}_hidden_states")
        assert len(states) == getattr(model.config, f"{side}_layers") + 1
        for actual, whole in zip(states, getattr(expected, f"{side}_hidden_states"), strict=True):
            close(actual, without_padding(whole, mask))
    close(found.encoder_last_hidden_state, without_padding(expected.encoder_last_hidden_state, masks["encoder"]))
    if found.logits is not None:
        close(found.logits, without_padding(expected.logits, masks["decoder"]))


@pytest.fixture
def calls():
    """Calls of a kernel's stand-in: whether causal, and the numbers of queries and keys."""
    return []


@pytest.fixture
def varlen_kernel(monkeypatch, calls):
    """Let packed layers run on a CPU, with a stand-in for PyTorch's kernel."""

    def stand_in(*args, **kwargs):
        calls.append((kwargs["window_size"] == (-1, 0), len(args[0]), len(args[1])))
        return reference_varlen_attn(*args, **kwargs)

    monkeypatch.setattr(packing_module, "has_varlen_attention", lambda device, dtype: True)
    monkeypatch.setattr(varlen, "varlen_attn", stand_in)


def test_positions_sequences_mask_and_padding():
    packing = Packing(torch.tensor([0, 2, 3, 6], dtype=torch.int32), 4, 6)
    assert packing.positions().tolist() == [0, 1, 0, 0, 1, 2]
    assert packing.sequences().tolist() == [0, 0, 1, 2, 2, 2]
    assert packing.mask().long().tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]]
    ids = torch.arange(1, 7)[None]
    assert packing.pad(ids).tolist() == [[1, 2, 0, 0], [3, 0, 0, 0], [4, 5, 6, 0]]
    assert torch.equal(packing.unpad(packing.pad(ids)), ids)


class TestPlainWay:
    @EVERY_LOSS
    @pytest.mark.parametrize("changes", ALL_SHAPES.values(), ids=ALL_SHAPES)
    def test_equals_padded(self, changes, options):
        compare(perturbed_model(**changes), token_pairs(), **options)

    def test_eager_attention(self):
        compare(perturbed_model(attn_implementation="eager"), token_pairs())

    def test_a_single_pair(self):
        compare(perturbed_model(), token_pairs(([4], [3])))

    def test_accumulated_batches(self):
        pairs = token_pairs()
        model, count = perturbed_model(), sum(LENGTHS[1])
        _, expected = loss_and_gradients(model, padded(pairs), num_items_in_batch=count)
        for part in (pairs[:2], pairs[2:]):
            model(**packed(part), num_items_in_batch=count).loss.backward()
        close_gradients(gradients(model), expected)

    def test_ignored_labels(self):
        pairs = token_pairs()
        for pair in pairs:
            pair["labels"][1:2] = [-100] * len(pair["labels"][1:2])
        model = perturbed_model()
        close(model(**packed(pairs)).loss, model(**padded(pairs)).loss)

    def test_autocast(self):
        model, pairs = perturbed_model(), token_pairs()
        with torch.autocast("cpu", torch.bfloat16):
            close(model(**packed(pairs)).loss, model(**padded(pairs)).loss, 1e-2)

    def test_embeddings_instead_of_ids(self):
        model, batch = perturbed_model(), packed(token_pairs())
        expected = model(**batch).logits
        source = model.model.encoder.embed_tokens(batch.pop("input_ids"))
        target = packing_module.shift_packed_right(batch.pop("labels"), batch["packing"], model.config)
        target = model.model.decoder.embed_tokens(target)
        close(model(inputs_embeds=source, decoder_inputs_embeds=target, **batch).logits, expected)

    def test_the_encoder_alone(self):
        model, pairs = perturbed_model(), token_pairs()
        reference, batch = padded(pairs), packed(pairs)
        encoder = model.get_encoder()
        packing = {"packing": {name: batch["packing"][name] for name in ("cu_seq_lens", "max_length")}}
        expected = encoder(reference["input_ids"], reference["attention_mask"]).last_hidden_state
        expected = without_padding(expected, reference["attention_mask"])
        close(encoder(batch["input_ids"], **packing).last_hidden_state, expected)
        (states,) = encoder(batch["input_ids"], **packing, return_dict=False)
        close(states, expected)
        # Given the encoder's output, the model needs no source.
        close(model(encoder_outputs=(states,), **{**batch, "input_ids": None}).loss, model(**batch).loss)

    @CHECKPOINTING_IS_RENAMED
    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_gradient_checkpointing(self, use_reentrant):
        model, batch = perturbed_model().train(), packed(token_pairs())
        _, expected = loss_and_gradients(model, batch)
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        _, found = loss_and_gradients(model, batch)
        close_gradients(found, expected)

    @pytest.mark.slow
    def test_compiled_for_all_shapes(self):
        torch._dynamo.reset()
        model, graphs = one_layer_model(), []
        compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counting_backend(graphs))
        for lengths in (LENGTHS, ([2, 9, 4], [8, 3, 5]), ([6, 6], [2, 7])):
            batch = packed(token_pairs(lengths))
            with torch.no_grad():
                close(compiled(**batch).loss, model(**batch).loss)
        torch._dynamo.reset()
        assert len(graphs) == 1


class TestVariableLengthKernel:
    @EVERY_LOSS
    @EVERY_KERNEL_SHAPE
    def test_equals_padded(self, changes, options, varlen_kernel, calls):
        model = perturbed_model(**changes)
        compare(model, token_pairs(), **options)
        sources, targets = map(sum, LENGTHS)
        decoder = [(True, targets, targets), (False, targets, sources)] * 3
        assert calls == [(False, sources, sources)] * 2 + decoder

    @CHECKPOINTING_IS_RENAMED
    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_dropout_and_checkpointing(self, use_reentrant, varlen_kernel, calls):
        model, batch = perturbed_model(encoder_attention_heads=2, dropout=0.5).train(), packed(token_pairs())
        torch.manual_seed(1)
        _, expected = loss_and_gradients(model, batch)
        once = len(calls)
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        torch.manual_seed(1)
        _, found = loss_and_gradients(model, batch)
        close_gradients(found, expected)
        # Checkpointing calls the kernel again in the backward pass.
        assert len(calls) == 3 * once

    def test_autocast(self, varlen_kernel, calls):
        model, pairs = perturbed_model(encoder_attention_heads=2), token_pairs()
        with torch.autocast("cpu", torch.bfloat16):
            expected = model(**padded(pairs)).loss
            close(model(**packed(pairs)).loss, expected, 2e-2)
        assert calls

    def test_learned_positions_end(self, varlen_kernel):
        model = tiny_model(position_embedding_type="learned", encoder_attention_heads=2, max_position_embeddings=6)
        with pytest.raises(ValueError, match="has 7 tokens, but the learned positions end"):
            model(**packed(token_pairs()))

    # Heads of width 4 in the encoder alone, of unequal widths, and too wide.
    @pytest.mark.parametrize("widths", [(None, None), (16, 8), (264, 264)], ids=str)
    def test_the_plain_way_where_the_kernel_does_not_go(self, widths, varlen_kernel, calls):
        model = perturbed_model(head_dim=widths[0], value_head_dim=widths[1])
        assert model(**packed(token_pairs())).loss.isfinite()
        assert not any(queries == keys and not causal for causal, queries, keys in calls), (
            "the encoder took the kernel"
        )

    def test_attention_dropout_and_eager_take_the_plain_way(self, varlen_kernel, calls):
        model, batch = perturbed_model(encoder_attention_heads=2, attention_dropout=0.1), packed(token_pairs())
        model.train()(**batch)
        assert not calls
        model.eval()(**batch)
        assert calls
        calls.clear()
        model.set_attn_implementation("eager")
        model(**batch)
        assert not calls


def test_which_devices_have_the_kernel(monkeypatch):
    for name in ("is_flash_attention_available", "flash_sdp_enabled"):
        monkeypatch.setattr(torch.backends.cuda, name, lambda: True)
    capability = [(8, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    cuda = torch.device("cuda", 0)
    assert has_varlen_attention(cuda, torch.bfloat16) and has_varlen_attention(cuda, torch.float16)
    assert not has_varlen_attention(cuda, torch.float32)
    assert not has_varlen_attention(torch.device("cpu"), torch.bfloat16)
    capability[0] = (7, 5)
    assert not has_varlen_attention(cuda, torch.bfloat16)
    capability[0] = (9, 0)
    monkeypatch.setattr(torch.backends.cuda, "flash_sdp_enabled", lambda: False)
    assert not has_varlen_attention(cuda, torch.bfloat16)


def test_the_kernel_is_asked_for_the_dtype_of_autocast(monkeypatch):
    asked = []
    monkeypatch.setattr(packing_module, "has_varlen_attention", lambda device, dtype: asked.append(dtype))
    model, ids = tiny_model(encoder_attention_heads=2), torch.ones(1, 3, dtype=torch.long)
    stays_packed(model, 2, ids)
    with torch.autocast("cpu", torch.bfloat16):
        stays_packed(model, 2, ids)
    stays_packed(model.half(), 2, ids)
    assert asked == [torch.float32, torch.bfloat16, torch.float16]


class TestOtherAttention:
    @EVERY_KERNEL_SHAPE
    def test_flash_attention_gets_the_lengths(self, changes, monkeypatch):
        """A stand-in under the name of transformers' own function takes the arguments of `FlashAttentionKwargs`."""
        calls = []

        def stand_in(module, query, key, value, attention_mask, scaling, dropout, **kwargs):
            assert attention_mask is None and query.shape[0] == 1
            assert kwargs["max_length_q"] in map(max, LENGTHS) and kwargs["max_length_k"] in map(max, LENGTHS)
            calls.append(module.is_causal)
            edges = (kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"])
            parts = (x[0].transpose(0, 1) for x in (query, key, value))
            return attention_by_sequence(*parts, *edges, scaling, module.is_causal)[None], None

        monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "flash_attention_2", stand_in)
        model, pairs = perturbed_model(**changes), token_pairs()
        loss, expected = loss_and_gradients(model, padded(pairs))
        for each in (model, model.get_encoder(), model.get_decoder()):
            each.config._attn_implementation = "flash_attention_2"
        found_loss, found = loss_and_gradients(model, packed(pairs))
        close(found_loss, loss)
        close_gradients(found, expected)
        assert calls == [False] * 2 + [True, False] * 3

    def test_the_mask_of_flex_attention(self):
        queries = Packing(torch.tensor([0, 1, 4], dtype=torch.int32), 3, 4)
        keys = Packing(torch.tensor([0, 2, 3], dtype=torch.int32), 2, 3)
        config, states = tiny_config(), torch.zeros(1, 4, 16)

        def create_mask(config, states, attention_mask, and_mask_function, past_key_values):
            assert attention_mask is None and past_key_values == "a cache"
            return and_mask_function(0, 0, torch.arange(4)[:, None], torch.arange(3))

        def mask():
            return packed_mask(create_mask, config, states, queries, keys, past_key_values="a cache")

        assert mask() is None
        config._attn_implementation = "flex_attention"
        assert mask().long().tolist() == [[1, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]]

    # Slow: compiles a kernel, for which transformers and torch call deprecated functions.
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.slow
    def test_flex_attention_keeps_pairs_apart(self):
        model, pairs = perturbed_model(encoder_layers=1, decoder_layers=1), token_pairs()
        expected = model(**padded(pairs)).loss
        model.set_attn_implementation("flex_attention")
        with torch.no_grad():
            close(model(**packed(pairs)).loss, expected)


IDS = torch.full((1, 22), 4)
PAIR = {"cu_seq_lens": torch.tensor([0, 2]), "max_length": 2}


class TestErrors:
    @looped(
        ("message", "changes"),
        [
            ("`cu_seq_lens` goes from 0 to 20 in steps of at least 1, but the input has 22", {"input_ids": IDS}),
            ("goes from 1 to 20", {"cu_seq_lens": torch.tensor([1, 4, 20])}),
            ("steps of at least 0", {"cu_seq_lens": torch.tensor([0, 4, 4, 20])}),
            (r"`cu_seq_lens` has shape \(1, 2\)", {"cu_seq_lens": torch.tensor([[0, 20]])}),
            ("dtype torch.float32", {"cu_seq_lens": torch.tensor([0.0, 20.0])}),
            ("`cu_seq_lens` is of type list", {"cu_seq_lens": [0, 20]}),
            ("`max_length` is 6, but a sequence has 7 tokens", {"max_length": 6}),
            ("`decoder_max_length` is of type Tensor; pass a Python int", {"decoder_max_length": torch.tensor(6)}),
            ("needs both `cu_seq_lens` and `max_length`", {"max_length": None}),
            ("needs both `decoder_cu_seq_lens` and", {"decoder_cu_seq_lens": None, "decoder_max_length": None}),
            ("edges of 1 sequences, but `decode.* of 6", {"cu_seq_lens": torch.tensor([0, 20]), "max_length": 20}),
            ("`attention_mask` is set, but does not apply to packed", {"attention_mask": torch.ones(1, 20)}),
            ("`position_ids` is set, but does not apply to packed", {"position_ids": torch.arange(20)[None]}),
            ("`output_attentions` is set", {"output_attentions": True}),
            (r"input of shape \(2, 10\); packed sequences share one row", {"input_ids": IDS[0, :20].view(2, 10)}),
            ("`input_ids` has 40 at", {"input_ids": IDS[:, :20] + 36}),
        ],
    )
    def test_inputs_that_describe_no_pairs(self, message, changes):
        batch = packed(token_pairs())
        for name, value in changes.items():
            (batch["packing"] if name in batch["packing"] else batch)[name] = value
        with pytest.raises(ValueError, match=message) as error:
            tiny_model()(**batch)
        assert "\n" not in str(error.value)

    def test_a_cache(self):
        batch = packed(token_pairs())
        batch["decoder_input_ids"] = batch.pop("labels")
        with pytest.raises(ValueError, match="`use_cache` is set"):
            tiny_model()(**batch, use_cache=True)
        assert tiny_model()(**batch).past_key_values is None

    @pytest.mark.parametrize(
        ("ids", "packing", "message"),
        [
            (None, PAIR, "`cu_seq_lens` is given without the ids or embeddings"),
            (IDS[:, :2], [0, 2], "`packing` is of type list; pass a mapping"),
            (IDS[:, :2], {"cu_seq_len": PAIR["cu_seq_lens"]}, "`packing` has 'cu_seq_len', but takes"),
        ],
    )
    def test_what_describes_no_input(self, ids, packing, message):
        with pytest.raises(ValueError, match=message):
            tiny_model().get_encoder()(ids, packing=packing)

    def test_where_packed_sequences_are_not_taken(self):
        with pytest.raises(ValueError, match="classifiers do not support packed sequences"):
            VanillaTransformerForSequenceClassification(tiny_config())(IDS[:, :2], packing=PAIR)
        with pytest.raises(ValueError, match=r"`generate\(\)` does not support packed sequences; pad them"):
            tiny_model().generate(IDS[:, :2], packing=PAIR)
