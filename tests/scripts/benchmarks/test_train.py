import numpy as np
import pytest
import torch

from benchmarking import results, small_arguments
from benchmarks import train
from benchmarks.baselines import marian_like, our_model
from benchmarks.run import run_benchmarks
from benchmarks.text import read_text
from benchmarks.train import train_benchmark
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration


@pytest.fixture(scope="module")
def measured(tmp_path_factory, some_pairs):
    folder = tmp_path_factory.mktemp("train")
    args = small_arguments(folder, vocab_size=[300], dtype=["bfloat16"], rounds=1)
    run_benchmarks({"train": train_benchmark}, args, some_pairs)
    return {each["name"]: each for each in results(folder)["measurements"]}


@pytest.mark.slow
def test_steps_on_identical_batches(measured):
    step = measured["step, tiny, vocabulary 300, 4 x 6, bfloat16"]
    assert set(step["ratios"]) == {"marian", "bart"} and set(step["utilization"]) == {"ours", "marian", "bart"}


def test_steps_on_real_text(measured):
    text = measured["real text, tiny, bfloat16"]
    assert set(text["ratios"]) == {"marian, Seq2SeqTrainer", "nn.Transformer, tutorial"}
    assert 0 < text["utilization"]["ours"] and "padded to 40" in text["notes"]
    # Two batches of at most 256 tokens, up to half of them padding; the rate is a mean over rounds.
    seconds, rate = np.array(text["costs"]["ours"]), text["rates"]["ours"]
    assert 0.5 * 256 < float(seconds[0] * rate) < 2 * 2 * 256


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"steps": 0, "tokens": 0}, []),
        ({"steps": 0, "baselines": ["marian"]}, ["step, tiny, vocabulary 300, 4 x 6, float32"]),
    ],
)
def test_parts_can_be_skipped(changes, names):
    cases = train_benchmark(small_arguments(vocab_size=[300], **changes), DataArguments())
    assert [case.name for case in cases] == names


def test_compiled_steps(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiled.append(type(model).__name__) or model)
    args = small_arguments(vocab_size=[300], steps=0, torch_compile=True)
    plain, case = train_benchmark(args, DataArguments())
    assert list(plain.implementations) == ["ours", "marian", "bart"]
    assert list(case.implementations) == ["ours", "marian"] and case.name.startswith("compiled step, tiny")
    assert compiled == ["VanillaTransformerForConditionalGeneration", "MarianMTModel"]
    case.implementations["ours"]()


def test_a_timed_call_may_be_several_steps(monkeypatch):
    """This is the default on a GPU."""
    monkeypatch.setitem(train.STEPS_PER_CALL, "cpu", 3)
    losses = []
    forward = VanillaTransformerForConditionalGeneration.forward
    count = lambda *args, **kwargs: losses.append(forward(*args, **kwargs)) or losses[-1]  # noqa: E731 - one line
    args = small_arguments(baselines=["marian"])
    case = train.step_case("tiny", 300, "float32", args)
    monkeypatch.setattr(VanillaTransformerForConditionalGeneration, "forward", count)
    case.implementations["ours"]()
    assert len(losses) == 3 and case.units == 3 * 2 * 4 * 6


def test_a_baseline_with_other_weights_is_not_timed(tmp_path, monkeypatch):
    def with_other_weights(model):
        torch.manual_seed(7)
        return marian_like(our_model("tiny", vocab_size=model.config.vocab_size))

    monkeypatch.setattr(train, "marian_like", with_other_weights)
    with pytest.raises(ValueError, match="train: marian and ours do not agree"):
        run_benchmarks({"train": train_benchmark}, small_arguments(tmp_path, baselines=["marian"]), DataArguments())
    assert not results(tmp_path)["measurements"]


@pytest.mark.slow  # trains twice with each Trainer; `test_steps_on_real_text` checks the counts of one round
def test_trainer_steps_are_on_fresh_batches_and_count_no_padding(tmp_path, some_pairs):
    args = small_arguments(tmp_path, baselines=["marian"])
    text = read_text(args, some_pairs)
    case = train.text_case(text, "tiny", "float32", args, tmp_path)
    for steps in case.implementations.values():
        first, second = steps(), steps()
        assert first.units != second.units
        for sample in (first, second):
            assert 0.5 * 256 < sample.units < 2 * 2 * 256 and sample.cost > 0
            assert sample.flops > 6 * sample.units * 128 * 128


@pytest.mark.slow  # trains four times
def test_packed_steps_count_the_same_tokens(tmp_path, some_pairs):
    args = small_arguments(tmp_path, baselines=["marian"], packing=True)
    case = train.text_case(read_text(args, some_pairs), "tiny", "float32", args, tmp_path)
    assert list(case.implementations) == ["ours", "ours, packed", "marian, Seq2SeqTrainer"]
    padded, packed = ([case.implementations[name]().units for _ in range(2)] for name in ("ours", "ours, packed"))
    assert padded == packed


@pytest.mark.slow
def test_multi30k_is_measured(shared_data, tmp_path):
    files = {
        f"train_{side}_file": f"{shared_data}/multi30k/train.{language}.gz"
        for side, language in (("source", "en"), ("target", "de"))
    }
    args = small_arguments(tmp_path, baselines=["marian"], tokens=0, text_vocab_size=1000, max_tokens=512)
    run_benchmarks({"train": train_benchmark}, args, DataArguments(**files, max_train_samples=200))
    (text,) = results(tmp_path)["measurements"]
    assert text["name"].startswith("real text") and text["notes"].startswith("train.en.gz, train.de.gz")
