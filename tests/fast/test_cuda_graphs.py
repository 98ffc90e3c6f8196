"""Which calls of `generate()` replay recorded steps, and whether these use the inputs that change between steps.

On a CPU a tape stands in for the graph; tests/gpu/test_decoding_cuda.py records on a GPU.
"""

import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from weakref import ref

import pytest
import torch
from torch import nn
from transformers import CompileConfig, EosTokenCriteria, MaxLengthCriteria
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from hf_vanilla_transformer.fast import accelerate, cuda_graphs, recorded_search, restore, static_search
from hf_vanilla_transformer.inference.decoding import RefuseNaN
from hf_vanilla_transformer.model.modeling_vanilla_transformer import (
    VanillaTransformerAttention,
    VanillaTransformerDecoder,
    VanillaTransformerForConditionalGeneration,
)
from hf_vanilla_transformer.search.beams import scores_only
from hf_vanilla_transformer.search.row_limits import RowLimits
from tape import Recorder
from tiny import padded_source, tiny_model

STEPS = 12
OPTIONS = {"max_new_tokens": STEPS, "do_sample": False}


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    for module in (cuda_graphs, recorded_search):
        monkeypatch.setattr(module, "record", recorder)
    return recorder


@pytest.fixture
def on_gpu(monkeypatch):
    """Make a model pass for one on a GPU."""

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


SEARCHES = {
    "greedy": {"num_beams": 1},
    "beams": {"num_beams": 4},
    "several": {"num_beams": 3, "num_return_sequences": 2, "early_stopping": True, "length_penalty": 0.6},
    "never": {"num_beams": 3, "early_stopping": "never", "length_penalty": 2},
    "endless": {"num_beams": 2, "eos_token_id": None},
    "static": {"num_beams": 4, "cache_implementation": "static"},
    "prefix": {"num_beams": 2, "decoder_input_ids": torch.tensor([[1, 7], [1, 8], [1, 9], [1, 7], [1, 5]])},
}
# Criteria of the caller, besides those of the configuration.
CRITERIA = {
    "a length": {"stopping_criteria": [MaxLengthCriteria(7)]},
    "a length, beams": {"stopping_criteria": [MaxLengthCriteria(7)], "num_beams": 3},
    "beyond the option": {"stopping_criteria": [MaxLengthCriteria(40)], "eos_token_id": None},
    "ends": {"stopping_criteria": [EosTokenCriteria(torch.tensor([9, 13])), EosTokenCriteria(torch.tensor([16, 21]))]},
}
LIMITS = [9, 5, 12, 6, 9]
# Options that a graph of a whole step does not support, such as other processors; only the forward pass is replayed.
STEPWISE = {
    "samples": {"do_sample": True, "num_return_sequences": 3},
    "processors": {"num_beams": 3, "no_repeat_ngram_size": 2},
    "greedy, processors": {"min_new_tokens": 5},
    "a prefix of int32": {"num_beams": 2, "decoder_input_ids": SEARCHES["prefix"]["decoder_input_ids"].int()},
}


EVERY_SEARCH = {**SEARCHES, **CRITERIA, **STEPWISE}


@pytest.mark.parametrize("name", EVERY_SEARCH)
@pytest.mark.parametrize("seed", [0, 1])
def test_recorded_steps_decode_the_same_tokens(recorder, on_gpu, name, seed):
    model, options = varied_model(seed), {**OPTIONS, "eos_token_id": [2, 5, 6], **EVERY_SEARCH[name]}
    sources, expected = two_sources(), []
    for source in sources:
        torch.manual_seed(3)
        expected.append(model.generate(**source, **{**options, "cache_implementation": "dynamic"}))
    on_gpu(model)
    # Searches of whole steps are kept for the second call.
    for source, tokens, recorded in zip(sources, expected, (1, 2 if name in STEPWISE else 1), strict=True):
        torch.manual_seed(3)
        replayed = recorder.replayed
        assert torch.equal(model.generate(**source, **options), tokens)
        assert recorder.recorded == recorded
        assert recorder.replayed > replayed + 1


def two_sources():
    """Sources of equal shapes with different tokens and padding."""
    source = padded_source(5)
    return source, {name: rows.flip(0) for name, rows in source.items()}


def varied_model(seed=0, **changes):
    """A model whose sentences end at different lengths, and whose beams are reordered."""
    model = tiny_model(tie_word_embeddings=False, **changes)
    torch.manual_seed(seed)
    with torch.no_grad():
        model.lm_head.weight.normal_()
    return model


def test_a_recorded_beam_search_returns_scores(recorder, on_gpu):
    model, sources = varied_model(), two_sources()
    options = {**BEAMS, "num_return_sequences": 2, "return_dict_in_generate": True}
    expected = [model.generate(**source, **options, output_scores=True) for source in sources]
    on_gpu(model)
    with scores_only():
        outputs = [model.generate(**source, **options) for source in sources]
    assert recorder.recorded == 1
    for output, other in zip(outputs, expected, strict=True):
        assert torch.equal(output.sequences, other.sequences)
        torch.testing.assert_close(output.sequences_scores, other.sequences_scores, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 3}, SEARCHES["never"]], ids=str)
@pytest.mark.parametrize("ends", [[2, 5, 6], None])
def test_a_recorded_search_keeps_the_limit_of_each_sentence(recorder, on_gpu, options, ends):
    model, source = varied_model(), padded_source(5)
    options = {"do_sample": False, "eos_token_id": ends, **options}
    alone = [
        model.generate(**{name: rows[i : i + 1] for name, rows in source.items()}, max_length=limit, **options)[0]
        for i, limit in enumerate(LIMITS)
    ]
    criteria = [RowLimits(torch.tensor(LIMITS), LIMITS)]
    found = on_gpu(model).generate(**source, max_length=max(LIMITS), stopping_criteria=criteria, **options)
    assert recorder.recorded == 1
    for row, limit, expected in zip(found, LIMITS, alone, strict=True):
        # The rest of a row is padding, of beam search or greedy search.
        assert torch.equal(row[: len(expected)], expected) and (ends is None or not (row[limit:] > 2).any())


@pytest.mark.parametrize(("options", "unrecorded"), [({}, 1), ({"num_beams": 4}, 1), ({"do_sample": True}, 2)])
def test_the_first_steps_are_not_replayed(recorder, on_gpu, options, unrecorded):
    """A step must load its kernels, and the prefill of a forward pass has other shapes."""
    on_gpu(tiny_model()).generate(**padded_source(), **{**OPTIONS, "eos_token_id": None, **options})
    assert (recorder.recorded, recorder.replayed) == (1, STEPS - unrecorded)


def test_the_host_learns_of_the_end_a_step_late(recorder, on_gpu):
    model, source = on_gpu(varied_model()), padded_source(1)
    row = model.generate(**source, **OPTIONS, eos_token_id=None)[0].tolist()
    end = next(i for i in range(5, len(row)) if row[i] not in row[:i])
    recorder.replayed = 0
    assert model.generate(**source, **OPTIONS, eos_token_id=row[end])[0].tolist() == row[: end + 1]
    # All tokens but that of the first step, and one too many.
    assert recorder.replayed == end - 1 + 1


@pytest.mark.parametrize("num_beams", [1, 3])
def test_scores_of_nan_are_noticed_after_a_recorded_search(recorder, on_gpu, num_beams):
    model, refuse = on_gpu(tiny_model()), RefuseNaN(at_once=False)
    options = {**OPTIONS, "num_beams": num_beams, "eos_token_id": None, "logits_processor": [refuse]}
    model.generate(**padded_source(), **options)
    refuse.check()
    assert recorder.recorded == 1
    recorder.before_replay = lambda: model.lm_head.weight.data.fill_(torch.nan) if recorder.replayed > STEPS else None
    model.generate(**padded_source(), **options)
    with pytest.raises(ValueError, match="a score is NaN"):
        refuse.check()


def test_a_cache_is_no_longer_than_its_call_needs(on_gpu, recorder, monkeypatch):
    model, lengths = on_gpu(tiny_model()), []
    prepare = model._prepare_static_cache

    def watch(*args, **kwargs):
        lengths.append((cache := prepare(*args, **kwargs)).get_max_length())
        return cache

    monkeypatch.setattr(model, "_prepare_static_cache", watch)
    for steps in (12, 6):
        model.generate(**padded_source(), max_new_tokens=steps)
    assert lengths == [12, 6]


# Options of most tests of kept searches.
BEAMS = {**OPTIONS, "num_beams": 3, "eos_token_id": [2, 5, 6]}


def in_place(model):
    model.lm_head.weight.data.normal_()


def replaced(model):
    model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))


def nan(model):
    """Fill the kept search with NaN."""
    weight = model.get_decoder().layers[0].self_attn.v_proj.weight.data
    before = weight.clone()
    model.generate(**padded_source(5), **BEAMS)
    weight.fill_(torch.nan)
    model.generate(**padded_source(5), **BEAMS)
    weight.copy_(before)


def check_tokens(model, source, **options):
    """Compare the tokens of replayed steps with those of ordinary ones."""
    found = model.generate(**source, **options)
    assert torch.equal(found, model.generate(**source, **options, disable_compile=True))


@pytest.mark.parametrize(("change", "recorded"), [(in_place, 1), (replaced, 2), (nan, 1)])
def test_a_kept_search_decodes_by_the_weights_of_today(recorder, on_gpu, change, recorded):
    model, source = on_gpu(varied_model()), padded_source(5)
    model.generate(**source, **BEAMS)
    change(model)
    check_tokens(model, source, **BEAMS)
    assert recorder.recorded == recorded


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_kept_search_takes_other_limits(recorder, on_gpu, num_beams):
    model, source = on_gpu(varied_model()), padded_source(5)
    for limits in (LIMITS, LIMITS[::-1], [4] * 5):
        options = {"num_beams": num_beams, "eos_token_id": None, "max_length": max(limits), "do_sample": False}
        check_tokens(model, source, **options, stopping_criteria=[RowLimits(torch.tensor(limits), limits)])
    assert recorder.recorded == 1


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_length_that_is_reached_already_leaves_one_token(on_gpu, recorder, num_beams):
    model, source = on_gpu(varied_model()), padded_source(5)
    options = {**OPTIONS, "num_beams": num_beams, "stopping_criteria": [MaxLengthCriteria(1)]}
    expected = model.generate(**source, **options, disable_compile=True)
    assert expected.shape == (5, 2) and torch.equal(model.generate(**source, **options), expected)


def test_a_kept_search_returns_as_many_hypotheses_as_a_call_asks_for(recorder, on_gpu):
    model, source = on_gpu(varied_model()), padded_source(5)
    for count in (1, 3, 2):
        check_tokens(model, source, **BEAMS, num_return_sequences=count)
    assert recorder.recorded == 1


def test_a_kept_search_has_the_candidates_of_its_end_tokens(recorder, on_gpu):
    """Ends by the caller's criterion leave fewer candidates than those of the configuration."""
    model, source, ends = on_gpu(varied_model(lm_head_bias=True)), padded_source(5), [5, 6, 9]
    model.lm_head.bias.data[ends] += 30
    options = {**BEAMS, "early_stopping": "never", "length_penalty": 5.0, "num_return_sequences": 3}
    criterion = {"eos_token_id": None, "stopping_criteria": [EosTokenCriteria(torch.tensor(ends))]}
    for how in (criterion, {"eos_token_id": ends}):
        check_tokens(model, source, **{**options, **how})


def test_beams_change_places_also_where_each_has_a_source_of_its_own(recorder, on_gpu):
    model, source = on_gpu(varied_model()), padded_source(5)
    states = model.get_encoder()(**source).last_hidden_state
    repeated = {"encoder_outputs": BaseModelOutput(states.repeat_interleave(3, 0))}
    repeated["attention_mask"] = source["attention_mask"].repeat_interleave(3, 0)
    check_tokens(model, {**source, **repeated}, **BEAMS)
    assert recorder.recorded == 1


class Adapter(nn.Linear):
    """Its output may depend on more than its weights."""


def adapted(model):
    head = Adapter(*reversed(model.lm_head.weight.shape), bias=False)
    head.weight = model.lm_head.weight
    model.lm_head = head


def fewer_tokens(model):
    """As if new weights were allocated at the old address."""
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.data[:-9])


def nothing(model):
    pass


# Changes of a model or of options, and the number of recordings in two more calls: 2 if no search is kept.
OTHERWISE = {
    "dropout": (lambda model: model.train(), {}, 2),
    "dropout of a layer": (lambda model: model.model.decoder.layers[0].train(), {}, 2),
    "adapters": (adapted, {}, 2),
    "fewer tokens": (fewer_tokens, {}, 1),
    "longer": (nothing, {"max_new_tokens": STEPS + static_search.ROOM}, 1),
    "more beams": (nothing, {"num_beams": 4}, 1),
    "length penalty": (nothing, {"length_penalty": 2.0}, 1),
    "early stopping": (nothing, {"early_stopping": True}, 1),
    "an end": (nothing, {"eos_token_id": 2}, 1),
}


@pytest.mark.parametrize(("change", "options", "recorded"), OTHERWISE.values(), ids=OTHERWISE)
def test_a_kept_search_serves_only_what_it_was_recorded_for(recorder, on_gpu, change, options, recorded):
    model = on_gpu(varied_model())
    model.generate(**padded_source(5), **BEAMS)
    change(model)
    for _ in range(2):
        model.generate(**padded_source(5), **{**BEAMS, **options})
    assert recorder.recorded == 1 + recorded


def test_a_kept_search_serves_only_the_settings_of_torch_it_was_recorded_with(recorder, on_gpu, monkeypatch):
    model, matmul = on_gpu(varied_model()), torch.backends.cuda.matmul
    before = matmul.fp32_precision
    model.generate(**padded_source(5), **BEAMS)
    try:
        # After this, `torch.get_float32_matmul_precision` raises.
        matmul.fp32_precision = "tf32"
        model.generate(**padded_source(5), **BEAMS)
    finally:
        matmul.fp32_precision = before
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    model.generate(**padded_source(5), **BEAMS)
    assert recorder.recorded == 3


def test_autocast_keeps_nothing(recorder, on_gpu):
    """Its copies of the weights are freed when it ends."""
    model = on_gpu(varied_model())
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            model.generate(**padded_source(5), **BEAMS)
    assert recorder.recorded == 2


def test_kept_searches_take_bounded_memory(recorder, on_gpu, monkeypatch):
    model, sizes, recorded = on_gpu(varied_model()), [], []
    for count in (5, 4, 3):
        model.generate(**padded_source(count), **BEAMS)
        sizes.append(sum(each.cache.nbytes for each in recorded_search._KEPT[model].values()))
    assert recorder.recorded == 3 and 0 < sizes[0] < sizes[1] < sizes[2]
    # The least recently used search is evicted.
    monkeypatch.setattr(recorded_search, "KEPT_BYTES", sizes[2] - 1)
    for count in (5, 4, 3, 3):
        model.generate(**padded_source(count), **BEAMS)
        recorded.append(recorder.recorded)
    assert recorded == [3, 4, 5, 5]


def test_kept_searches_are_of_a_bounded_number(recorder, on_gpu, monkeypatch):
    """Graphs take memory, too."""
    model = on_gpu(varied_model())
    monkeypatch.setattr(recorded_search, "MAX_KEPT", 2)
    for count in (5, 4, 3, 4, 5):
        model.generate(**padded_source(count), **BEAMS)
    assert recorder.recorded == 4


def test_a_restored_model_keeps_no_search(recorder, on_gpu):
    model = on_gpu(varied_model())
    model.generate(**padded_source(5), **BEAMS)
    restore(model)
    assert model not in recorded_search._KEPT


def test_a_kept_search_does_not_keep_its_model(recorder, monkeypatch):
    """Without the tape, which keeps the model; a GPU's graph does not."""
    monkeypatch.setattr(cuda_graphs, "DEVICE_TYPE", "cpu")
    monkeypatch.setattr(recorded_search, "record", lambda step, device: (step.func.__self__.undone, None))
    monkeypatch.setattr(recorded_search.RecordedSearch, "undone", lambda self: None, raising=False)
    model = tiny_model()
    model.generate(**padded_source(5), **BEAMS)
    assert len(recorded_search._KEPT[model]) == 1
    gone = ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_threads_do_not_share_a_search(recorder, on_gpu):
    model, sources = on_gpu(varied_model()), two_sources()
    expected = [model.generate(**each, **BEAMS, disable_compile=True) for each in sources]
    inside = Event()

    def pause():
        """Run the second search in the middle of the first."""
        if not inside.is_set():
            inside.set()
            with ThreadPoolExecutor() as pool:
                found.append(pool.submit(model.generate, **sources[1], **BEAMS).result())

    found = []
    model.generate(**sources[0], **BEAMS)
    recorder.before_replay = pause
    found.append(model.generate(**sources[0], **BEAMS))
    assert torch.equal(found[0], expected[1]) and torch.equal(found[1], expected[0])
    assert recorder.recorded == 2


class Subclass(nn.Parameter):
    pass


def hooked(model):
    model.model.decoder.layers[0].encoder_attn.register_forward_hook(lambda *args: None)


def patched(model):
    model.lm_head.forward = model.lm_head.forward


def with_another_tensor(model):
    model.lm_head.weight = Subclass(model.lm_head.weight.detach())


# Fields of the configuration, a change of the model, and options.
LEFT_ALONE = {
    "hooks": ({}, hooked, {}),
    "a patched forward": ({}, patched, {}),
    "tensors of another class": ({}, with_another_tensor, {}),
    "learned positions": ({"position_embedding_type": "learned"}, nothing, {}),
    "eager attention": ({"attn_implementation": "eager"}, nothing, {}),
    "kept outputs": ({}, nothing, {"return_dict_in_generate": True}),
    "kept scores": ({}, nothing, {"return_dict_in_generate": True, "output_scores": True, "num_beams": 3}),
    "a cache of the caller": ({}, nothing, {"past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())}),
    "a long cache": ({}, nothing, {"max_new_tokens": cuda_graphs.MAX_STATIC_LENGTH + 2, "max_time": 0.0}),
    "no cache": ({}, nothing, {"use_cache": False}),
    "no compilation": ({}, nothing, {"disable_compile": True}),
    "a padded prefix": ({}, nothing, {
        "decoder_input_ids": torch.tensor([[0, 1], [1, 7], [1, 8]]),
        "decoder_attention_mask": torch.tensor([[0, 1], [1, 1], [1, 1]]),
    }),
}  # fmt: skip  # a table


class OtherAttention(VanillaTransformerAttention):
    def forward(self, *args, **kwargs):
        out, weights = super().forward(*args, **kwargs)
        return 2 * out, weights


class OtherDecoder(VanillaTransformerDecoder):
    def forward(self, *args, **kwargs):
        outputs = super().forward(*args, **kwargs)
        outputs.last_hidden_state = outputs.last_hidden_state.flip(-1)
        return outputs


class PlainDecoder(VanillaTransformerDecoder):
    def _prepare_source(self, *args):
        return super()._prepare_source(*args)


class OtherModel(VanillaTransformerForConditionalGeneration):
    def prepare_inputs_for_generation(self, input_ids, *args, **kwargs):
        return super().prepare_inputs_for_generation(input_ids.clamp(max=20), *args, **kwargs)


def of_class(module, kind):
    module.__class__ = kind
    accelerate(module)


USERS = {
    "attention": lambda model: of_class(model.get_decoder().layers[0].self_attn, OtherAttention),
    "decoder": lambda model: of_class(model.get_decoder(), OtherDecoder),
    "decoder that stays plain": lambda model: of_class(model.get_decoder(), PlainDecoder),
    "model": lambda model: of_class(model, OtherModel),
    "restored decoder": lambda model: restore(model.get_decoder()),
    "restored attention": lambda model: restore(model.get_decoder().layers[0].self_attn),
}


@pytest.mark.parametrize("change", USERS.values(), ids=USERS)
def test_a_recorded_search_bypasses_no_method_of_a_user(recorder, on_gpu, change):
    model, source = varied_model(), padded_source(5)
    change(model)
    expected = model.generate(**source, **OPTIONS)
    assert torch.equal(on_gpu(model).generate(**source, **OPTIONS), expected)
    # The forward pass alone is recorded.
    assert recorder.recorded == 1


@pytest.mark.parametrize(("fields", "change", "options"), LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_a_replay_would_change_is_left_alone(recorder, on_gpu, fields, change, options):
    model = tiny_model(**fields, max_position_embeddings=cuda_graphs.MAX_STATIC_LENGTH + 8)
    change(model)
    on_gpu(model).generate(**padded_source(3), **{**OPTIONS, **options})
    assert recorder.recorded == 0


def test_a_cpu_records_nothing(recorder):
    tiny_model().generate(**padded_source(), **OPTIONS)
    assert recorder.recorded == 0
