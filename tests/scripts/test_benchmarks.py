import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import benchmark
from benchmarks import memory_and_startup as footprints
from benchmarks import model_benchmarks as suites
from benchmarks import roofline as machine
from benchmarks import text_benchmarks as text_suites
from benchmarks.baselines import (
    bart_like,
    check_agreement,
    check_tokens,
    ctranslate2_like,
    loss_and_gradients,
    marian_like,
    our_model,
    tutorial_like,
)
from benchmarks.benchmark import BenchmarkArguments, Case, Disagreement, Sample, measure, run_suites
from benchmarks.report import Measurement, amount, growths, lines, table
from benchmarks.roofline import Limits, decoding_work, measure_limits, training_flops
from hf_vanilla_transformer.data.arguments import DataArguments
from paths import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")

CUT_SHORT = {
    "preset": ["tiny"],
    "vocab_size": [300, 320],
    "text_vocab_size": 300,
    "rounds": 2,
    "batch_size": [1, 3],
    "num_beams": [1, 2],
    "length": 6,
    "tokens": 24,
    "memory_tokens": 24,
    "max_tokens": 256,
    "steps": 2,
    "tutorial_length": 40,
    "tutorial_batch_size": 2,
    "scales": [1, 2],
    "stream_pairs": 2000,
    "limit_seconds": 0.0,
}


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch):
    monkeypatch.setattr(machine, "CPU_PRODUCTS", ((64, 64, 64),))
    monkeypatch.setattr(machine, "CPU_BYTES", 2**20)
    monkeypatch.setattr(benchmark, "PEAK_SECONDS", 0.0)
    monkeypatch.setattr(benchmark, "SETTLE_SECONDS", 0.0)


def arguments(folder=Path("runs"), **changes) -> BenchmarkArguments:
    return BenchmarkArguments(output_dir=str(folder), **{**CUT_SHORT, **changes})


def pair_of_batches(rows=3, length=7, vocabulary=50):
    ids = torch.randint(4, vocabulary, (2, rows, length))
    mask = torch.ones_like(ids[0])
    ids[0, -1, 4:], mask[-1, 4:] = 0, 0
    labels = ids[1].clone()
    labels[-1, 5:] = -100
    return {"input_ids": ids[0], "attention_mask": mask, "labels": labels}


# Turns and ratios


class Clock:
    """A clock that goes only when a contestant works."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        fake = SimpleNamespace(perf_counter=lambda: self.now, sleep=lambda seconds: None)
        monkeypatch.setattr(benchmark, "time", fake)

    def takes(self, *seconds):
        turns = iter(seconds)

        def work():
            self.now += next(turns)

        return work


def test_ratios_are_those_of_each_turn(monkeypatch):
    clock = Clock(monkeypatch)
    # The first turn warms up; in the last one the machine is three times slower.
    contestants = {"ours": clock.takes(50, 1, 2, 3), "peer": clock.takes(1, 2, 3, 9), "other": clock.takes(9, 1, 1, 3)}
    found = measure(Case("train", "case", contestants, units=6, unit="tokens"), rounds=3)
    assert found.costs == {"ours": [1, 2, 3], "peer": [2, 3, 9], "other": [1, 1, 3]}
    assert found.ratios == pytest.approx({"peer": 2.0, "other": 1.0})
    assert found.quartiles["peer"] == pytest.approx((1.75, 2.5))
    assert found.rates == pytest.approx({"ours": 3.0, "peer": 2.0, "other": 6.0})
    assert not found.shares


def test_contestants_take_turns():
    order = []
    contestants = {name: lambda name=name: order.append(name) for name in ("ours", "peer")}
    measure(Case("train", "case", contestants), rounds=2)
    assert order == ["ours", "peer"] * 3


def test_samples_count_units_of_their_own():
    contestants = {"ours": lambda: Sample(2.0, 100.0), "peer": lambda: Sample(4.0, 50.0)}
    found = measure(Case("train", "case", contestants, unit="tokens"), rounds=1)
    assert found.ratios == {"peer": 4.0} and found.rates == {"ours": 50.0, "peer": 12.5}


def test_less_memory_is_better():
    contestants = {"ours": lambda: Sample(1e6), "peer": lambda: Sample(5e6)}
    found = measure(Case("memory", "case", contestants, quantity="bytes", rounds=1, warm_up=False), rounds=9)
    assert found.ratios == {"peer": 5.0} and found.costs["ours"] == [1e6]


@pytest.mark.parametrize(("flops", "read", "share"), [(400.0, 0.0, 0.5), (0.0, 60.0, 0.75), (400.0, 60.0, 0.75)])
def test_share_is_of_the_limit_that_binds(monkeypatch, flops, read, share):
    limits = Limits("cpu", {"float32": 100.0}, 10.0)
    monkeypatch.setattr(limits, "try_product", lambda dtype, seconds: 100.0)
    monkeypatch.setattr(limits, "try_memory", lambda seconds: 10.0)
    clock = Clock(monkeypatch)
    contestants = {"ours": clock.takes(1, 8, 8), "peer": clock.takes(1, 16, 16)}
    found = measure(Case("train", "case", contestants, flops=flops, bytes=read), 2, limits)
    assert found.shares == pytest.approx({"ours": share, "peer": share / 2})


def test_limits_are_the_best_of_all_tries():
    limits = measure_limits("cpu", ["float32", "bfloat16"], 0.0)
    assert set(limits.flops) == {"float32", "bfloat16"} and limits.bandwidth > 0
    for way in (*limits.flops, "bandwidth"):
        assert limits.ways[way]
    before = limits.flops["float32"]
    assert limits.try_product("float32", 0.01) <= limits.flops["float32"] and limits.flops["float32"] >= before
    assert limits.try_memory(0.01) <= limits.bandwidth
    json.dumps(limits.facts())


def test_every_way_to_multiply_gives_the_product():
    torch.manual_seed(0)
    ways = list(machine.products("cpu", "float32"))
    assert {name.split(",")[0] for name, _, _ in ways} == {"a @ b", "oneDNN"}
    first, second = (work() for _, _, work in ways)
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
    assert all(flops == 2 * 64**3 for _, flops, _ in ways)


# Operations and bytes


@pytest.mark.parametrize("changes", [{}, {"encoder_layers": 3}, {"encoder_ffn_dim": 96, "decoder_ffn_dim": 40}])
def test_operations_are_those_that_torch_counts(changes):
    config = our_model("tiny", vocab_size=50, **changes).config
    # Attention written out, since torch does not count that of its own on a CPU.
    marian = marian_like(our_model("tiny", vocab_size=50, **changes)).train()
    marian.set_attn_implementation("eager")
    batch = {"input_ids": torch.randint(4, 50, (3, 9)), "labels": torch.randint(4, 50, (3, 5))}
    with FlopCounterMode(display=False) as counter:
        loss = marian(**batch).loss
        forward = counter.get_total_flops()
        loss.backward()
    assert counter.get_total_flops() == training_flops(config, 3, 9, 5)
    assert forward == machine.forward_flops(config, 3, 9, 5)


def test_operations_of_many_lengths_add_up():
    config = our_model("tiny", vocab_size=50).config
    lengths = np.array([3.0, 8.0]), np.array([5.0, 2.0])
    expected = training_flops(config, 1, 3, 5) + training_flops(config, 1, 8, 2)
    assert training_flops(config, 1, *lengths).sum() == expected


def test_decoding_reads_each_weight_of_the_decoder_once_a_step():
    config = our_model("tiny", vocab_size=50).config
    first = decoding_work(config, rows=1, beams=1, source_length=4, new_tokens=1, itemsize=4)
    second = decoding_work(config, rows=1, beams=1, source_length=4, new_tokens=2, itemsize=4)
    model = our_model("tiny", vocab_size=50)
    stepped = sum(
        each.numel()
        for name, each in model.model.decoder.named_parameters()
        if each.ndim == 2 and not any(part in name for part in ("embed", "encoder_attn.k", "encoder_attn.v"))
    )
    stepped += model.lm_head.weight.numel()
    # The step's weights, the source's 4 keys and values in two layers, and those of two target tokens.
    assert (second[1] - first[1]) / 4 == stepped + 2 * 256 * 4 + 2 * 256 * 2
    assert (second[0] - first[0]) / 2 == stepped + 2 * 256 * 4 + 2 * 256 * 2
    halves = decoding_work(config, rows=1, beams=1, source_length=4, new_tokens=1, itemsize=2)
    assert halves == (first[0], first[1] / 2)


# Contestants agree


def test_marian_with_our_weights_agrees():
    ours = our_model("tiny", vocab_size=50)
    batch = pair_of_batches()
    found = loss_and_gradients(ours, batch, skip_logits=True)
    marian = marian_like(ours)
    check_agreement(found, loss_and_gradients(marian, batch), "marian", "float32")
    assert {"loss", "lm_head.weight", "model.decoder.layers.1.encoder_attn.q_proj.weight"} <= set(found)
    assert all(parameter.grad is None for parameter in ours.parameters())


@pytest.mark.parametrize(
    "weight", ["model.encoder.layers.0.self_attn.k_proj.weight", "model.decoder.layers.1.fc2.bias", "lm_head.weight"]
)
def test_other_weights_are_noticed(weight):
    ours, batch = our_model("tiny", vocab_size=50), pair_of_batches()
    marian = marian_like(ours)
    with torch.no_grad():
        parameter = dict(marian.named_parameters(remove_duplicate=False))[weight]
        parameter += 0.1 * torch.randn_like(parameter)
    found = loss_and_gradients(ours, batch, skip_logits=True)
    with pytest.raises(Disagreement, match="marian and ours do not compute the same in float32: the .* differs by"):
        check_agreement(found, loss_and_gradients(marian, batch), "marian", "float32")


def test_one_wrong_gradient_is_noticed():
    ours, batch = our_model("tiny", vocab_size=50), pair_of_batches()
    found = loss_and_gradients(ours, batch)
    name = "model.encoder.layers.1.fc1.bias"
    with pytest.raises(Disagreement, match=f"gradient of {name} differs by 1.0e-02"):
        check_agreement(found, {**found, name: found[name] * 1.01}, "peer", "float32")
    with pytest.raises(Disagreement, match=f"gradient of {name} differs by nan"):
        check_agreement(found, {**found, name: found[name] * torch.nan}, "peer", "bfloat16")
    with pytest.raises(Disagreement, match=f"peer has no gradient of {name}"):
        check_agreement(found, {each: value for each, value in found.items() if each != name}, "peer", "float32")


def test_other_tokens_are_noticed_in_float32():
    ours, peer = torch.ones(4, 10), torch.ones(4, 12)
    assert check_tokens(ours, ours, "peer", "float32") == 1
    with pytest.raises(Disagreement, match="peer and ours decode different tokens in float32: 83.3% are equal"):
        check_tokens(ours, peer, "peer", "float32")
    assert check_tokens(ours, peer, "peer", "bfloat16") == pytest.approx(10 / 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"norm_position": "pre"}, "post-norm"), ({"head_dim": 16, "value_head_dim": 16}, "without a head_dim")],
)
def test_marian_has_no_such_shape(changes, message):
    with pytest.raises(ValueError, match=message):
        marian_like(our_model("tiny", vocab_size=50, **changes))


def test_bart_has_our_sizes():
    ours = our_model("tiny", vocab_size=50)
    bart = bart_like(ours)
    assert bart.config.d_model == 128 and bart(**pair_of_batches()).loss > 0


def test_the_tutorials_model_computes_what_ours_does():
    ours, tutorial = tutorial_like(our_model("tiny", vocab_size=50).config, length=9)
    rows = [{"input_ids": [5, 6, 7, 2], "labels": [8, 2]}, {"input_ids": [9, 2], "labels": [5, 6, 7, 2]}]
    batch = tutorial.collate(rows)
    assert {name: tuple(each.shape) for name, each in batch.items()} == dict.fromkeys(batch, (2, 9))
    assert batch["decoder_input_ids"][0].tolist() == [1, 8] + [0] * 7
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["input_ids"].ne(0).long()}
    inputs["labels"] = batch["labels"].masked_fill(batch["labels"] == 0, -100)
    found = tutorial.loss_and_gradients(batch)
    check_agreement(loss_and_gradients(ours, inputs), found, "tutorial", "float32")
    assert len(found) == 1 + len([1 for _ in ours.named_parameters()])
    assert tutorial.training


def test_ctranslate2_decodes_our_tokens(tmp_path):
    pytest.importorskip("ctranslate2", reason="compared with where it is installed, by the extra `export`")
    ours = our_model("tiny", vocab_size=50).eval()
    ids = torch.randint(4, 50, (5, 7))
    decoder = ctranslate2_like(ours, tmp_path, "cpu")
    for num_beams in (1, 4):
        expected = suites.generation(ours, ids, num_beams)()
        assert check_tokens(expected, decoder(ids, num_beams, 7)(), "ctranslate2", "float32") == 1
        assert expected.shape == (5, 8)


def test_without_ctranslate2_the_rest_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("hf_vanilla_transformer.inference.ctranslate2.find_spec", lambda name: None)
    case = suites.decoding_case("tiny", 2, 1, "float32", arguments(), tmp_path)
    assert list(case.contestants) == ["ours", "marian"]
    assert capsys.readouterr().err.startswith("ctranslate2: not measured, it is not installed; `pip install")


# Training on text


@pytest.mark.slow
def test_trainer_turns_count_tokens_without_padding(tmp_path):
    args = arguments(tmp_path, peers=["marian"])
    text = text_suites.read_text(args, DataArguments(toy_corpus=True, max_train_samples=60))
    case = text_suites.text_training_case(text, "tiny", "float32", args, tmp_path)
    for turns in case.contestants.values():
        first, second = turns(), turns()
        assert first.units != second.units
        # Two batches of at most 256 tokens, or of the mean, of which half may be padding.
        for sample in (first, second):
            assert 0.5 * 256 < sample.units < 2 * 2 * 256 and sample.cost > 0
            assert sample.flops > 6 * sample.units * 128 * 128


def test_peers_batches_hold_as_many_tokens_as_ours(tmp_path):
    args = arguments(tmp_path, max_tokens=512)
    text = text_suites.read_text(args, DataArguments(toy_corpus=True, max_train_samples=300))
    ours = text_suites.sampler_of(text, args)
    size = text_suites.equal_batch_size(text, args)
    assert size * text.tokens_a_pair == pytest.approx(text.tokens_a_pair * 300 / len(ours), rel=0.1)
    batches = [list(range(start, min(300, start + size))) for start in range(0, 300, size)]
    assert text_suites.padding_share(text, list(ours)) < text_suites.padding_share(text, batches) < 1


def test_streaming_has_no_size():
    with pytest.raises(ValueError, match="--streaming has no number of pairs"):
        text_suites.read_text(arguments(), DataArguments(train_file="pairs.tsv", streaming=True))


# Fresh processes


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux's /proc")
def test_the_peak_of_memory_is_seen():
    program = """
import numpy as np
from benchmarks.memory_and_startup import peak_bytes, reset_peak
from benchmarks.roofline import resident_bytes
np.ones(200_000_000, dtype=np.uint8)
before = resident_bytes()
reset_peak()
np.ones(100_000_000, dtype=np.uint8)
print(peak_bytes() - before)
"""
    assert float(footprints.run_python(program, **footprints.MALLOC)) == pytest.approx(1e8, rel=0.03)


def test_a_process_that_fails_says_why():
    with pytest.raises(OSError, match="a process of the benchmark failed: ValueError: no such thing"):
        footprints.run_python("raise ValueError('no such thing')")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux's /proc")
def test_memory_of_a_step_holds_its_logits(tmp_path):
    args = arguments(tmp_path, memory_tokens=2048, length=32, vocab_size=[20_000], peers=["marian"])
    (case,) = footprints.memory_suite(args, DataArguments())
    found = measure(case, rounds=1)
    logits = 4 * 2048 * 20_000
    # At least the logits and their gradient, which ours never has.
    assert median_cost(found, "marian") > 2 * logits > median_cost(found, "ours")


def median_cost(found: Measurement, name: str) -> float:
    return float(np.median(found.costs[name]))


# Results


def some_measurements() -> list[Measurement]:
    speed = Measurement(
        "train",
        "step, small",
        "tokens",
        "float32",
        "seconds",
        {"ours": [1.0, 1.0], "marian": [2.0, 1.5]},
        {"ours": 12345.0, "marian": 6000.0},
        {"marian": 1.75},
        {"marian": (1.5, 2.0)},
        {"ours": 0.41, "marian": 0.2},
        notes="a note",
    )
    memory = Measurement("memory", "step", "calls", "float32", "bytes", {"ours": [2.5e9]}, {"ours": 1.0}, {}, {}, {})
    grown = [
        replace(speed, name=f"n {n}", axis=("n", n), costs={"ours": [n**2 / 7.0], "marian": [n**3.0]})
        for n in (2, 4, 8)
    ]
    return [speed, memory, *grown]


def test_table_tells_everything():
    limits = Limits("cpu", {"float32": 2.5e11}, 2e10, ways={"float32": "a @ b", "bandwidth": "copy"})
    text = table(some_measurements(), limits)
    row = "| train | step, small | 12.3 k tokens/s | 41% | marian: 6 k tokens/s | 20% | 1.75 (1.50 to 2.00) | a note |"
    assert row in text.splitlines()
    assert "| memory | step | 2.5 GB |  |  |  |  |  |" in text.splitlines()
    assert "| seconds, a note | n | 2.00 | marian 3.00 |" in text.splitlines()
    assert "float32 products 250 GFLOP/s (a @ b)" in text and "memory 20 GB/s (copy)" in text
    columns = {line.count("|") for line in text.splitlines() if line.startswith(("| train", "| memory", "| suite"))}
    assert columns == {9}


def test_lines_name_peer_ratio_and_share():
    first, second, note = lines(some_measurements()[0])
    assert "ours 12.3 k tokens/s (41% of the machine's limit)" in first
    assert "1.75 times marian (6 k tokens/s), quartiles 1.50 to 2.00" in second and note.endswith("a note")


def test_growth_has_the_exponent_of_each():
    (grown,) = growths(some_measurements())
    assert (grown.axis, grown.sizes) == ("n", [2, 4, 8])
    assert grown.exponent == pytest.approx(2) and grown.peers == pytest.approx({"marian": 3})


def test_amounts_are_short():
    assert [amount(value, "B") for value in (999.6e6, 12.0, 3.14159e3)] == ["1 GB", "12 B", "3.14 kB"]


def fake_case(name, ours=lambda: None, **options):
    return Case("train", name, {"ours": ours, "peer": lambda: None}, **options)


def results(folder):
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_results_say_where_they_come_from(tmp_path):
    run_suites(
        ["fake"], {"fake": lambda args, data_args: iter([fake_case("one")])}, arguments(tmp_path), DataArguments()
    )
    found = results(tmp_path)
    assert found["machine"]["versions"]["torch"] == torch.__version__
    assert found["machine"]["threads"] == torch.get_num_threads() and found["machine"]["hardware"]
    assert found["limits"]["flops"]["float32"] > 0 and found["limits"]["bandwidth"] > 0
    assert found["arguments"]["rounds"] == 2 and found["data"]["on_long"] == "drop"
    (one,) = found["measurements"]
    assert len(one["costs"]["peer"]) == 2 and set(one["ratios"]) == {"peer"}
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "table.md", "train.png"}


def test_an_interrupted_run_keeps_what_was_measured(tmp_path):
    def interrupted():
        raise KeyboardInterrupt

    def suite(args, data_args):
        yield fake_case("one")
        yield fake_case("two", interrupted)

    with pytest.raises(KeyboardInterrupt):
        run_suites(["fake"], {"fake": suite}, arguments(tmp_path), DataArguments())
    assert [each["name"] for each in results(tmp_path)["measurements"]] == ["one"]
    assert "| train | one |" in (tmp_path / "table.md").read_text(encoding="utf-8")
    assert (tmp_path / "train.png").is_file()


def test_a_suite_that_fails_keeps_none_from_being_measured(tmp_path):
    def failing(args, data_args):
        raise Disagreement("they differ")
        yield

    suites = {"bad": failing, "good": lambda args, data_args: iter([fake_case("one")])}
    with pytest.raises(ValueError, match="bad: they differ"):
        run_suites(["bad", "good"], suites, arguments(tmp_path), DataArguments())
    found = results(tmp_path)
    assert found["failed"] == ["bad: they differ"] and len(found["measurements"]) == 1


def test_a_peer_of_other_weights_is_not_timed(tmp_path, monkeypatch):
    def other(model):
        torch.manual_seed(7)
        return marian_like(our_model("tiny", vocab_size=model.config.vocab_size))

    monkeypatch.setattr("benchmarks.model_benchmarks.marian_like", other)
    with pytest.raises(ValueError, match="train: marian and ours do not compute the same"):
        run_suites(["train"], {"train": suites.train_suite}, arguments(tmp_path, peers=["marian"]), DataArguments())
    assert not results(tmp_path)["measurements"]


# The program


def words(**changes):
    listed = []
    for name, value in {**CUT_SHORT, **changes}.items():
        listed += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return listed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": ["float8"]}, "--dtype float8 is unknown; use some of float32, bfloat16"),
        ({"peers": ["fairseq"]}, "--peers fairseq is unknown"),
        ({"device": "tpu"}, "--device tpu is unknown; use one of cpu, cuda"),
        ({"rounds": 0}, "--rounds 0 is too small; set at least 1"),
        ({"batch_size": [8, -1]}, "--batch_size -1 is too small"),
        ({"preset": ["huge"]}, "unknown preset 'huge'"),
    ],
)
def test_bad_arguments_end_in_one_line(changes, message, load_script, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        load_script("benchmark").main(["train", *words(**changes), "--output_dir", str(tmp_path)])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and message in error and error.count("\n") == 1


def test_interrupting_the_program_says_where_the_results_are(load_script, tmp_path, capsys, monkeypatch):
    script = load_script("benchmark")

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "run_suites", interrupted)
    with pytest.raises(SystemExit) as ended:
        script.main(["train", *words(), "--output_dir", str(tmp_path)])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted; what was measured is in the output folder\n"


def test_cuda_needs_a_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--device cuda: torch finds no such device; use --device cpu"):
        arguments(device="cuda")


def run_script(load_script, folder, *suites, **changes):
    load_script("benchmark").main(
        [*suites, *words(**changes), "--max_train_samples", "60", "--output_dir", str(folder)]
    )
    return {each["name"]: each for each in results(folder)["measurements"]}


def test_train_suite(load_script, tmp_path, capsys):
    found = run_script(load_script, tmp_path, "train", vocab_size=[300], dtype=["bfloat16"])
    step = found["step, tiny, vocabulary 300, 4 x 6, bfloat16"]
    assert set(step["ratios"]) == {"marian", "bart"} and set(step["shares"]) == {"ours", "marian", "bart"}
    real = found["real text, tiny, bfloat16"]
    assert set(real["ratios"]) == {"marian, Seq2SeqTrainer", "nn.Transformer, tutorial"}
    assert 0 < real["shares"]["ours"] and "padded to 40" in real["notes"]
    assert capsys.readouterr().out.count("real text, tiny") == 1
    assert (tmp_path / "train.png").is_file()


def test_parts_of_the_train_suite(load_script, tmp_path):
    assert not run_script(load_script, tmp_path, "train", steps=0, tokens=0)
    (name,) = run_script(load_script, tmp_path, "train", steps=0, vocab_size=[300], peers=["marian"])
    assert name.startswith("step, tiny")


def test_data_suite(load_script, tmp_path):
    found = run_script(load_script, tmp_path, "data")
    assert set(found) == {"tokenizing", "tokenizing once more", "choosing batches", "making batches"}
    assert set(found["tokenizing"]["ratios"]) == {"map, batches", "map, one by one"}
    assert "then from the cache" in found["tokenizing once more"]["notes"]
    assert "padding" in found["choosing batches"]["notes"]


def test_generate_suite(load_script, tmp_path):
    pytest.importorskip("ctranslate2", reason="compared with where it is installed, by the extra `export`")
    found = run_script(load_script, tmp_path, "generate", dtype=["float32", "bfloat16"])
    assert len(found) == 8
    beam = found["beam 2, tiny, 3 x 6, float32"]
    assert set(beam["ratios"]) == {"marian", "ctranslate2 float32", "ctranslate2 int8"} and 0 < beam["shares"]["ours"]
    assert beam["notes"].startswith("100.0% of marian's tokens")
    sizes = re.search(r"ctranslate2 float32 takes (.*) MB, ctranslate2 int8 takes (.*) MB$", beam["notes"]).groups()
    assert 0 < float(sizes[1]) < 0.6 * float(sizes[0])
    # That of bfloat16 is not the limit of a contestant in float32.
    assert set(found["beam 2, tiny, 3 x 6, bfloat16"]["shares"]) == {"ours", "marian"}
    assert set(beam["shares"]) == {"ours", "marian", "ctranslate2 float32"}


@pytest.mark.slow
def test_scaling_suite(load_script, tmp_path):
    run_script(load_script, tmp_path, "scaling", peers=["marian"])
    grown = {each["axis"]: each for each in results(tmp_path)["growth"]}
    assert set(grown) == {"source length", "vocabulary", "layers", "batch", "beams", "pairs streamed"}
    assert grown["source length"]["sizes"] == [32, 64] and set(grown["batch"]["peers"]) == {"marian"}
    assert len(grown["pairs streamed"]["sizes"]) == 7 and grown["pairs streamed"]["sizes"][-1] == 2000
    assert (tmp_path / "scaling.png").is_file()


@pytest.mark.slow
def test_memory_and_startup_suites(load_script, tmp_path):
    found = run_script(load_script, tmp_path, "memory", "startup", rounds=1)
    assert set(found) == {
        "step, tiny, vocabulary 320, 4 x 6, float32",
        "import",
        "first translation, tiny, float32",
    }
    assert set(found["step, tiny, vocabulary 320, 4 x 6, float32"]["ratios"]) == {"marian", "bart"}


@pytest.mark.slow
def test_the_program_answers_a_new_users_questions():
    root = ROOT
    done = subprocess.run(
        [sys.executable, str(root / "scripts" / "benchmark.py"), "--help"], capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr
    for word in ("train", "startup", "--device", "--preset", "results.json", "Ctrl-C", "--train_source_file"):
        assert word in done.stdout


@pytest.mark.slow
def test_multi30k_is_measured(load_script, shared_data, tmp_path):
    files = [f"--train_{side}_file={shared_data}/multi30k/train.{language}.gz" for side, language in FILES]
    load_script("benchmark").main(
        [
            "train",
            *words(peers=["marian"], vocab_size=[300], text_vocab_size=1000, max_tokens=512),
            *files,
            "--max_train_samples=200",
            f"--output_dir={tmp_path}",
        ]
    )
    (real,) = (each for each in results(tmp_path)["measurements"] if each["name"].startswith("real text"))
    assert real["notes"].startswith("train.en.gz, train.de.gz")


FILES = (("source", "en"), ("target", "de"))
