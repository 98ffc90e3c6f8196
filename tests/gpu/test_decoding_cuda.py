"""Decoding on a GPU: the tokens of a CPU, greedy and with beams, compiled steps over a static cache, NaN, scores."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import CompileConfig

from devices import on
from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.fast import kernels
from hf_vanilla_transformer.fast.modules import FastDecoder
from hf_vanilla_transformer.inference.decoding import RefuseNaN
from hf_vanilla_transformer.inference.scoring import score
from hf_vanilla_transformer.inference.translation import load, translate
from hf_vanilla_transformer.search import beams
from steps import attended, random_step
from tiny import VOCABULARIES, counting_backend, padded_source, tiny_model
from translators import ENGLISH, SPANISH, build, save_translator

SEARCHES = {
    "greedy": {"num_beams": 1},
    "beams": {"num_beams": 4},
    "early stopping": {"num_beams": 4, "early_stopping": True, "length_penalty": 0.6},
    "several": {"num_beams": 3, "num_return_sequences": 2},
    "uncached": {"num_beams": 3, "use_cache": False},
}
ENDS = {"eos_token_id": [2, 5, 6, 7], "max_new_tokens": 12, "do_sample": False}


def varied_model(**changes):
    """Return a model with scores far apart, so that rounding does not reorder them."""
    model = tiny_model(**{**changes, "tie_word_embeddings": False})
    with torch.no_grad():
        model.lm_head.weight.mul_(4)
    return model


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize(
    "changes", [{}, {"position_embedding_type": "learned", **VOCABULARIES["separate"]}], ids=["paper", "learned"]
)
def test_tokens_are_those_of_a_cpu(device, options, changes):
    model, source = varied_model(**changes), padded_source(7)
    expected = model.generate(**source, **ENDS, **options)
    assert torch.equal(model.to(device).generate(**on(device, source), **ENDS, **options).cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_tokens_in_half_precision_are_mostly_those_of_float32(device, dtype):
    model, source = varied_model(), padded_source(7)
    options = {"num_beams": 4, "eos_token_id": None, "max_new_tokens": 8}
    expected = model.generate(**source, **options)
    found = model.to(device, dtype).generate(**on(device, source), **options).cpu()
    # One token changed by rounding changes all later ones.
    assert found.eq(expected).float().mean() > 0.6


@pytest.mark.parametrize("num_beams", [1, 4])
def test_steps_are_replayed(cuda, monkeypatch, num_beams):
    """Python runs two steps, to load kernels and to record, and none in later calls of the same shape."""
    step, calls = FastDecoder.decode_step, []

    def counting(*args):
        calls.append(1)
        return step(*args)

    monkeypatch.setattr(FastDecoder, "decode_step", counting)
    model, options = varied_model(), {**ENDS, "num_beams": num_beams, "eos_token_id": None}
    sources = [padded_source(rows) for rows in (7, 3, 7, 3)]
    expected = [model.generate(**source, **options) for source in sources]
    model.to(cuda)
    for source, tokens, steps in zip(sources, expected, (2, 2, 0, 0), strict=True):
        calls.clear()
        assert torch.equal(model.generate(**on(cuda, source), **options).cpu(), tokens)
        assert len(calls) == steps


@pytest.mark.parametrize("num_beams", [1, 4])
def test_threads_decode_at_the_same_time(device, num_beams):
    model, options = varied_model().to(device), {**ENDS, "num_beams": num_beams}
    sources = [on(device, padded_source(rows)) for rows in (7, 3, 7, 3, 7, 7)]
    expected = [model.generate(**source, **options) for source in sources]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            found = list(pool.map(lambda source: model.generate(**source, **options), sources))
            assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("widths", [(64, 64), (12, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_kernel_of_a_step_attends_as_the_definition_says(cuda, dtype, widths, moved):
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    for past in (0, 5, 32, 70):
        step = random_step(past, widths, moved, dtype=dtype, device=cuda)
        assert kernels.suits(step[3])
        # These must be neither read nor overwritten.
        step[3][:, :, past + 1 :], step[4][:, :, past + 1 :] = torch.nan, torch.nan
        expected = attended(*step)
        torch.testing.assert_close(kernels.attend(*step).float(), expected, rtol=tolerance, atol=tolerance)
        for new, kept in ((step[1], step[3]), (step[2], step[4])):
            assert torch.equal(kept[:, :, past], new[:, :, 0])
        assert step[3][:, :, past + 1 :].isnan().all()


def counting_config(device, graphs):
    """Compile with inductor on a GPU; on a CPU, collect graphs without generating code."""
    if device == "cuda":
        return CompileConfig(fullgraph=True, mode="reduce-overhead")
    config = CompileConfig(fullgraph=True, backend=counting_backend(graphs), mode=None)
    config._compile_all_devices = True
    return config


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 4])
def test_compiled_steps_over_a_static_cache(device, num_beams):
    model, source, graphs = varied_model().to(device), on(device, padded_source(7)), []
    options = {**ENDS, "num_beams": num_beams}
    expected = model.generate(**source, **options)
    static = {"cache_implementation": "static", "compile_config": counting_config(device, graphs)}
    for _ in range(2):
        assert torch.equal(model.generate(**source, **options, **static), expected)
    if device == "cpu":
        assert len(graphs) == 1, "one graph for all steps of all calls"


def test_beams_over_a_static_cache_are_reordered_in_place(device, monkeypatch):
    model, source, places = varied_model().to(device), on(device, padded_source(3)), set()
    reorder = beams.reorder_cache

    def watch(cache, rows):
        reorder(cache, rows)
        places.add(cache.self_attention_cache.layers[0].keys.data_ptr())

    monkeypatch.setattr(beams, "reorder_cache", watch)
    options = {**ENDS, "num_beams": 3, "cache_implementation": "static", "disable_compile": True}
    model.generate(**source, **options)
    assert len(places) == 1


@pytest.mark.parametrize("with_scores", [True, False])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_scores_of_nan_are_refused(device, num_beams, with_scores):
    model, tokenizer = build("shared")
    model.get_decoder().layers[-1].final_layer_norm.weight.data[3] = torch.nan
    with pytest.raises(ValueError, match="a score is NaN"):
        translate(model.to(device), tokenizer, ["a cat"], num_beams=num_beams, with_scores=with_scores, max_length=6)


def test_nan_is_told_after_a_search_that_must_not_wait(device):
    scores = torch.zeros(2, 34, device=device)
    late, at_once = RefuseNaN(at_once=False), RefuseNaN(at_once=True)
    for refuse in (late, at_once):
        refuse(None, scores)
        refuse.check()
    scores[:] = torch.nan
    assert late(None, scores) is scores
    late(None, torch.zeros_like(scores))
    with pytest.raises(ValueError, match="a score is NaN"):
        late.check()
    with pytest.raises(ValueError, match="a score is NaN"):
        at_once(None, scores)


def test_translations_and_scores_are_those_of_a_cpu(device):
    model, tokenizer = build("shared")
    options = {"num_beams": 3, "num_hypotheses": 2, "with_scores": True, "max_length": 8}
    expected = translate(model, tokenizer, ENGLISH, **options)
    expected_scores = score(model, tokenizer, ENGLISH, SPANISH)
    model.to(device)
    for ours, theirs in zip(translate(model, tokenizer, ENGLISH, **options), expected, strict=True):
        assert [each.text for each in ours] == [each.text for each in theirs]
        assert [each.score for each in ours] == pytest.approx([each.score for each in theirs], abs=1e-4)
    found = score(model, tokenizer, ENGLISH, SPANISH)
    assert [each.log_prob for each in found] == pytest.approx([each.log_prob for each in expected_scores], abs=1e-4)


def test_a_gpu_is_the_default(cuda, tmp_path):
    save_translator("shared", tmp_path)
    assert load(str(tmp_path))[0].device.type == cuda
    assert load(str(tmp_path), device="cpu")[0].device.type == "cpu"


def test_the_command_translates_on_a_device(device, tmp_path, capsys):
    save_translator("shared", tmp_path / "model")
    source = tmp_path / "source.txt"
    source.write_text("\n".join(ENGLISH) + "\n")
    words = ["translate", "--model", str(tmp_path / "model"), "--input", str(source), "--num_beams", "2"]
    printed = []
    for where in ("cpu", device):
        main([*words, "--device", where])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and len(printed[0].splitlines()) == len(ENGLISH)
