"""Accelerator faults that show without an accelerator: device syncs, and ops that mix in CPU tensors.

"meta" includes backward passes; "cuda" takes a GPU's code paths, without backward passes.
"""

from contextlib import contextmanager

import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn
from torch.nn.attention import varlen
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    StoppingCriteriaList,
)

pytest.importorskip("datasets", reason="the extra `train` installs it")


from devices import on
from fake_accelerators import FAKE_DEVICES, NEEDS_CUDA_BUILD, WITH_BACKWARD, fake_accelerator
from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.data.batching import dense_alignments
from hf_vanilla_transformer.fast import chunked_loss, packing
from hf_vanilla_transformer.model.compat_vanilla_transformer import CACHE
from hf_vanilla_transformer.search.beams import top_log_probs
from hf_vanilla_transformer.training import (
    VanillaTransformerTrainer,
    VanillaTransformerTrainingArguments,
    guided_alignment,
)
from hf_vanilla_transformer.training.guided_alignment import AlignmentHead
from hf_vanilla_transformer.training.moving_average import MovingAverage
from hf_vanilla_transformer.training.muon import MuonWithAdam
from packed import packed, token_pairs
from tiny import VOCABULARY, batch_with_padding, labelled_batch, padded_source, tiny_config, tokens
from trainers import TOKENIZER, At, Killed, id_pairs, train_args, trainable_model

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
# Earlier releases build eager attention's masks with `torch.tensor(0.0, device=...)`, which copies from the host.
EAGER_MASKS_COPY = Version(transformers.__version__) < Version("5.23")

# Head widths that PyTorch's kernel for packed sequences supports.
WIDE = {"head_dim": 8, "value_head_dim": 8}


@pytest.fixture
def varlen_calls(monkeypatch):
    """Dtypes in the calls of PyTorch's kernel for packed sequences, which only half precision uses."""
    made, kernel = [], varlen.varlen_attn

    def spy(query, *args, **kwargs):
        made.append(query.dtype)
        return kernel(query, *args, **kwargs)

    monkeypatch.setattr(varlen, "varlen_attn", spy)
    # The original asks the driver.
    monkeypatch.setattr(packing, "has_varlen_attention", lambda device, dtype: dtype == torch.bfloat16)
    return made


@pytest.fixture(scope="module")
def pairs():
    return id_pairs()


@pytest.fixture(params=FAKE_DEVICES)
def fake_device(request):
    return request.param


def build(device, dtype=torch.float32, **changes):
    config = tiny_config(**{"encoder_layers": 1, "decoder_layers": 1, **changes})
    with torch.device(device):
        return VanillaTransformerForConditionalGeneration._from_config(config, dtype=dtype)


def copied(accelerator, batch):
    return accelerator.copying_in(on)(accelerator.device, batch)


@contextmanager
def cuda_autocast(dtype):
    """Like `torch.autocast`, which disables itself without a GPU."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


def check_step(model, loss):
    """Check a loss and, where backward passes run, the gradients of all weights."""
    device = next(model.parameters()).device.type
    assert loss.shape == () and loss.dtype == torch.float32 and loss.device.type == device
    if device != WITH_BACKWARD:
        assert loss.requires_grad
        return
    loss.backward()
    for weight in model.parameters():
        assert weight.grad.device.type == device
        assert (weight.grad.shape, weight.grad.dtype) == (weight.shape, weight.dtype)
    model.zero_grad()


@DTYPES
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_model(fake_device, dtype, attention):
    with fake_accelerator(fake_device) as accelerator:
        model = build(fake_device, dtype, attn_implementation=attention)
        assert {x.device.type for x in (*model.parameters(), *model.buffers())} == {fake_device}
        padded, labelled = (copied(accelerator, make()) for make in (batch_with_padding, labelled_batch))
        accelerator.may_copy_in = attention == "eager" and EAGER_MASKS_COPY
        outputs = model.eval()(**padded)
        assert outputs.logits.shape == (2, 5, VOCABULARY) and outputs.logits.dtype == dtype
        assert outputs.logits.device.type == fake_device
        for skip_logits in (False, True):
            check_step(model, model.train()(**labelled, smoothing=0.1, skip_logits=skip_logits).loss)


@DTYPES
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_decoding_steps(fake_device, dtype, attention):
    beams = 2
    with fake_accelerator(fake_device) as accelerator, torch.no_grad():
        model = build(fake_device, dtype, attn_implementation=attention).eval()
        source = copied(accelerator, {**padded_source(), "decoder_input_ids": tokens(3 * beams, 1)})
        accelerator.may_copy_in = attention == "eager" and EAGER_MASKS_COPY
        cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
        source["encoder_outputs"] = model.get_encoder()(source.pop("input_ids"), source["attention_mask"])
        for _ in range(3):
            logits = model(**source, past_key_values=cache).logits
        assert logits.shape == (3 * beams, 1, VOCABULARY) and logits.dtype == dtype
        model._reorder_cache(cache, torch.arange(3 * beams, device=fake_device).flip(0))
    assert cache.get_seq_length() == 3
    own, cross = cache.self_attention_cache.layers[0].keys, cache.cross_attention_cache.layers[0].keys
    assert (len(own), len(cross)) == (3 * beams, 3) and own.device.type == cross.device.type == fake_device


@pytest.mark.parametrize("bias", [False, True])
@DTYPES
def test_inside_the_loss_without_logits(monkeypatch, fake_device, dtype, bias):
    """Fake tensors skip the body of our custom op, and Triton kernels do not accept them."""
    monkeypatch.setattr(chunked_loss, "suits", lambda weight: False)
    with fake_accelerator(fake_device), torch.device(fake_device), torch.no_grad():
        states, head, labels = torch.randn(6, 8, dtype=dtype), nn.Linear(8, 13, bias, dtype=dtype), torch.arange(6)
        loss, *grads = chunked_loss.chunked_cross_entropy._init_fn(states, head.weight, head.bias, labels, 0.1, True)
    assert loss.shape == () and [grad.shape for grad in grads] == [states.shape, head.weight.shape, (13,)]
    assert {grad.device.type for grad in grads} == {fake_device}


@NEEDS_CUDA_BUILD
@pytest.mark.parametrize("make", [labelled_batch, lambda: packed(token_pairs())], ids=["padded", "packed"])
def test_autocast(make, varlen_calls):
    with fake_accelerator("cuda") as accelerator:
        model = build("cuda", **WIDE).train()
        batch = copied(accelerator, make())
        with cuda_autocast(torch.bfloat16):
            check_step(model, model(**batch, smoothing=0.1, skip_logits=True).loss)
            assert model(**batch).logits.dtype == torch.bfloat16
    assert bool(varlen_calls) == ("packing" in batch) and set(varlen_calls) <= {torch.bfloat16}


@pytest.mark.parametrize(("dtype", "calls"), [(torch.float32, 0), (torch.bfloat16, 3)], ids=["plain way", "kernel"])
def test_packed_pairs(fake_device, dtype, calls, varlen_calls):
    with fake_accelerator(fake_device) as accelerator:
        model = build(fake_device, dtype, **WIDE).train()
        check_step(model, model(**copied(accelerator, packed(token_pairs())), skip_logits=True).loss)
    assert varlen_calls == [dtype] * calls


@DTYPES
def test_guided_alignment(fake_device, dtype):
    with fake_accelerator(fake_device) as accelerator:
        model, batch = build(fake_device, dtype).train(), labelled_batch()
        links = [[0, 0, 1, 1]] * len(batch["labels"])
        batch["alignments"] = dense_alignments(links, batch["labels"], batch["attention_mask"])
        model.generation_config.alignment_heads = [[0, 1]]
        batch, head = copied(accelerator, batch), AlignmentHead.of(model)
        head.attach()
        loss = model(**{name: x for name, x in batch.items() if name != "alignments"}, skip_logits=True).loss
        check_step(model, loss + 0.1 * head.loss(batch))


# Values read by a search: whether each step was the last, then the length of the longest hypothesis.
READ_BY_BEAMS = [0, 0, 1, 5]


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_beam_search_reads_once_a_step(fake_device, early_stopping):
    options = GenerationConfig(
        num_beams=3, num_return_sequences=2, max_length=8, length_penalty=1.0, early_stopping=early_stopping,
        pad_token_id=0, eos_token_id=1,
    )  # fmt: skip  # one name a line would say no more
    with fake_accelerator(fake_device, READ_BY_BEAMS) as accelerator, torch.device(fake_device), torch.no_grad():
        model = build(fake_device).eval()
        # Drawn on the CPU, then copied to the default device.
        source = accelerator.copying_in(padded_source)(2)
        end = torch.ones(1).long()
        ends = StoppingCriteriaList([MaxLengthCriteria(8), EosTokenCriteria(end)])
        found = model._beam_search(
            torch.ones(2 * 3, 1, dtype=torch.long),
            LogitsProcessorList([MinLengthLogitsProcessor(3, end, fake_device)]),
            ends,
            options,
            encoder_outputs=model.get_encoder()(**source),
            attention_mask=source["attention_mask"],
            **{CACHE: (cache := EncoderDecoderCache(DynamicCache(), DynamicCache()))},
            use_cache=True,
        )
    assert cache.get_seq_length() == 3
    assert found.shape == (2 * 2, 5) and found.device.type == fake_device and accelerator.answers == []


def test_selecting_among_many_tokens(fake_device):
    with fake_accelerator(fake_device), torch.device(fake_device):
        values, indices = top_log_probs(torch.randn(6, 3000), 8, None, torch.ones(6, 2, dtype=torch.long))
    assert values.shape == indices.shape == (6, 8) and values.device.type == indices.device.type == fake_device


@DTYPES
def test_optimizer_and_moving_average(fake_device, dtype):
    with fake_accelerator(fake_device):
        model = build(fake_device, dtype)
        parameters = [*model.parameters()]
        for each in parameters:
            each.grad = torch.zeros_like(each)
        matrices = [each for each in parameters if each.dim() == 2]
        others = [each for each in parameters if each.dim() != 2]
        optimizer = MuonWithAdam([{"params": matrices}], [{"params": others}], 0.1)
        average = MovingAverage(parameters, 0.9)
        versions = [each._version for each in parameters]
        for step in range(2):
            optimizer.step()
            average.update(step)
        with average.applied() as trained:
            assert {x.device.type for x in (*trained, *average.averages)} == {fake_device}
    assert all(each._version > before for each, before in zip(parameters, versions, strict=True))


class FakeDeviceArguments(VanillaTransformerTrainingArguments):
    # The model is already on its device.
    place_model_on_device = False

    @property
    def device(self):
        assert super().device.type == "cpu"
        return torch.device(WITH_BACKWARD)


STEPS = 2


def train(folder, pairs, answers=(), **options):
    """Take steps that change every weight, then stop; return the moving average, or an empty list."""
    schedule = {"optim": "adamw_torch", "max_steps": 8, "logging_steps": 8, "logging_first_step": False}
    schedule |= {"max_tokens": 128, "warmup_steps": 4}
    # Fake tensors have no memory to pin.
    machine = {"use_cpu": True, "dataloader_pin_memory": False}
    args = train_args(folder, FakeDeviceArguments, **schedule, **machine, **options)
    averages = []
    with fake_accelerator(WITH_BACKWARD, answers) as accelerator:
        with torch.device(WITH_BACKWARD):
            model = trainable_model()
        model.generation_config.alignment_heads = [[0, 1]]
        trainer = VanillaTransformerTrainer(model, args, train_dataset=pairs, processing_class=TOKENIZER)
        trainer.accelerator.device_placement = False
        for name in ("get_batch_samples", "_prepare_inputs"):
            setattr(trainer, name, accelerator.copying_in(getattr(trainer, name)))
        versions = [each._version for each in model.parameters()]

        def stop(**kwargs):
            averages.extend(trainer._average.averages if trainer._average else ())
            # A regular end would read the loss.
            raise Killed

        trainer.add_callback(At(STEPS, stop))
        with pytest.raises(Killed):
            trainer.train()
    assert accelerator.answers == []
    assert all(each._version > before for each, before in zip(model.parameters(), versions, strict=True))
    assert {x.device.type for x in (*model.parameters(), *averages)} == {WITH_BACKWARD}
    return averages


TRAINING = {
    "accumulation": {"gradient_accumulation_steps": 2},
    "packing": {"packing": True},
    "Muon": {"muon": True},
    "moving average": {"ema_decay": 0.9},
    # Reads once per step whether it is finite.
    "skipping bad steps": {"on_nonfinite": "skip", "answers": [0] * STEPS},
}


@pytest.mark.parametrize("options", TRAINING.values(), ids=TRAINING)
def test_steps_of_the_trainer(tmp_path, pairs, options):
    assert bool(train(tmp_path, pairs, **options)) == ("ema_decay" in options)


def test_a_step_with_guided_alignment(tmp_path, pairs, monkeypatch):
    aligned, weights = pairs.map(lambda row: {"alignments": [0, 0]}), []
    plain = guided_alignment.summed_alignment_loss
    monkeypatch.setattr(
        guided_alignment, "summed_alignment_loss", lambda *args: weights.append(args[0].device.type) or plain(*args)
    )
    train(tmp_path, aligned, guided_alignment_weight=0.1)
    assert weights == [WITH_BACKWARD] * STEPS


READS, MIXES = "aten._local_scalar_dense", "cpu"
REFUSED = {
    "number": (lambda x: x.sum().item(), READS),
    "mask": (lambda x: x[x > 0], "aten.nonzero"),
    "comparison": (lambda x: torch.equal(x, x + 1), "aten.equal"),
    "tensor of the CPU": (lambda x: x + torch.ones(3), MIXES),
    "copy to the CPU": (lambda x: x.cpu(), MIXES),
    "copy from the CPU": (lambda x: torch.ones(3).to(x.device), MIXES),
}


@pytest.mark.parametrize(("work", "message"), REFUSED.values(), ids=REFUSED)
def test_what_waits_or_mixes_is_refused(fake_device, work, message):
    """Otherwise the tests above would be vacuous."""
    with fake_accelerator(fake_device) as accelerator:
        x = torch.zeros(3, device=fake_device)
        with pytest.raises(RuntimeError, match=message):
            work(x)
        indexed, copied = x[torch.arange(2, device=fake_device)], accelerator.copying_in(torch.ones(3).to)(x.device)
    assert {each.device.type for each in (x * torch.tensor(2.0), indexed, copied)} == {fake_device}


def test_a_fault_of_the_trainer_is_noticed(tmp_path, pairs, monkeypatch):
    monkeypatch.setattr(MovingAverage, "update", lambda self, step: self.averages[0].sum().item())
    with pytest.raises(RuntimeError, match=READS):
        train(tmp_path, pairs, ema_decay=0.9)
