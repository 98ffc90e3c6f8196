"""Which calls of `generate()` replay recorded steps, and that these take what changes from step to step.

A CPU records nothing: here a recorded step is called again with the tensors of its recording.
tests/gpu/test_decoding_cuda.py records on a GPU.
"""

import pytest
import torch
from torch import nn
from transformers import CompileConfig
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import Seq2SeqLMOutput

from hf_vanilla_transformer.model import cuda_graphs_vanilla_transformer as cuda_graphs
from tiny import padded_source, tiny_model

STEPS = 12
OPTIONS = {"max_new_tokens": STEPS, "do_sample": False}


class Recorder:
    """Stands in for a GPU's graphs."""

    def __init__(self):
        self.recorded = self.replayed = 0

    def __call__(self, step):
        self.recorded += 1
        outputs = Seq2SeqLMOutput()

        def replay():
            self.replayed += 1
            for name, value in step().items():
                outputs[name] = value

        return replay, outputs


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(cuda_graphs, "record", recorder)
    return recorder


@pytest.fixture
def on_gpu(monkeypatch):
    """Let a model be taken for one on a GPU."""

    def pretend(model):
        monkeypatch.setattr(cuda_graphs, "DEVICE_TYPE", model.device.type)
        criteria = type(model)._valid_auto_compile_criteria

        def ask_as_on_a_gpu(inputs, options):
            options.compile_config = options.compile_config or CompileConfig()
            options.compile_config._compile_all_devices = True
            try:
                return criteria(model, inputs, options)
            finally:
                options.compile_config = None

        monkeypatch.setattr(model, "_valid_auto_compile_criteria", ask_as_on_a_gpu)
        return model

    return pretend


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 1},
        {"num_beams": 4},
        {"num_beams": 3, "num_return_sequences": 2, "early_stopping": True},
        {"num_beams": 1, "do_sample": True, "num_return_sequences": 3},
        {"num_beams": 4, "cache_implementation": "static"},
    ],
    ids=["greedy", "beams", "several", "samples", "static"],
)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_recorded_steps_decode_the_same_tokens(recorder, on_gpu, options, implementation):
    model, source = tiny_model(), padded_source(5)
    model.set_attn_implementation(implementation)
    options = {**OPTIONS, "eos_token_id": [2, 5, 6], **options}
    torch.manual_seed(3)
    expected = model.generate(**source, **{**options, "cache_implementation": "dynamic"})
    on_gpu(model)
    for calls in (1, 2):
        torch.manual_seed(3)
        assert torch.equal(model.generate(**source, **options), expected)
        assert recorder.recorded == calls
    assert recorder.replayed > calls


def test_the_first_steps_are_not_replayed(recorder, on_gpu):
    """The prefill has other shapes, and the step after it loads kernels."""
    on_gpu(tiny_model()).generate(**padded_source(), **OPTIONS, eos_token_id=None)
    assert (recorder.recorded, recorder.replayed) == (1, STEPS - 2)


def test_a_cache_is_no_longer_than_its_call_needs(on_gpu, recorder):
    model, lengths = on_gpu(tiny_model()), []
    prepare = model._prepare_static_cache

    def watch(*args, **kwargs):
        lengths.append((cache := prepare(*args, **kwargs)).get_max_length())
        return cache

    model._prepare_static_cache = watch
    for steps in (12, 6):
        model.generate(**padded_source(), max_new_tokens=steps)
    assert lengths == [12, 6]


def hooked(model):
    model.model.decoder.layers[0].encoder_attn.register_forward_hook(lambda *args: None)
    return {}


def empty_cache(model):
    config = model.config
    return {"past_key_values": EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))}


LEFT_ALONE = {
    "hooks": ({}, hooked),
    "a patched forward": ({}, lambda model: setattr(model.lm_head, "forward", model.lm_head.forward) or {}),
    "learned positions": ({"position_embedding_type": "learned"}, lambda model: {}),
    "another dtype of tensor": (
        {},
        lambda model: setattr(model.lm_head, "weight", Subclass(model.lm_head.weight.detach())) or {},
    ),
    "kept outputs": ({}, lambda model: {"return_dict_in_generate": True}),
    "a cache of the caller": ({}, empty_cache),
    "a long cache": ({}, lambda model: {"max_new_tokens": cuda_graphs.MAX_STATIC_LENGTH + 2, "max_time": 0.0}),
    "no cache": ({}, lambda model: {"use_cache": False}),
    "no compilation": ({}, lambda model: {"disable_compile": True}),
    "a padded prefix": (
        {},
        lambda model: {
            "decoder_input_ids": torch.tensor([[0, 1], [1, 7], [1, 8]]),
            "decoder_attention_mask": torch.tensor([[0, 1], [1, 1], [1, 1]]),
        },
    ),
}


class Subclass(nn.Parameter):
    pass


@pytest.mark.parametrize(("changes", "prepare"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_a_replay_would_change_is_left_alone(recorder, on_gpu, changes, prepare):
    model = tiny_model(**changes, max_position_embeddings=cuda_graphs.MAX_STATIC_LENGTH + 8)
    options = {**OPTIONS, **prepare(model)}
    on_gpu(model).generate(**padded_source(3), **options)
    assert recorder.recorded == 0


def test_a_cpu_records_nothing(recorder):
    tiny_model().generate(**padded_source(), **OPTIONS)
    assert recorder.recorded == 0
