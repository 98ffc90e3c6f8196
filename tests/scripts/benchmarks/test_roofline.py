import json

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.baselines import marian_like, our_model
from benchmarks.roofline import (
    decoding_flops_and_bytes,
    forward_flops,
    matmul_probes,
    measure_roofline,
    training_flops,
)


def test_peaks_are_the_best_of_all_tries():
    roofline = measure_roofline("cpu", ["float32", "bfloat16"], 0.0)
    assert set(roofline.rates) == set(roofline.probes) == {"float32", "bfloat16", "bandwidth"}
    for name, before in dict(roofline.rates).items():
        assert 0 < roofline.current_rate(name, 0.01) <= roofline.rates[name] and roofline.rates[name] >= before
    json.dumps(roofline.as_json())


def test_every_probe_gives_the_product():
    torch.manual_seed(0)
    probes = list(matmul_probes("cpu", "float32"))
    assert {probe.name.split(",")[0] for probe in probes} == {"a @ b", "oneDNN"}
    first, second = (probe.run() for probe in probes)
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
    assert all(probe.amount == 2 * 64**3 for probe in probes)


@pytest.mark.parametrize("changes", [{}, {"encoder_layers": 3}, {"encoder_ffn_dim": 96, "decoder_ffn_dim": 40}])
def test_flops_are_those_that_torch_counts(changes):
    ours = our_model("tiny", vocab_size=50, **changes)
    marian = marian_like(ours).train()
    # torch does not count the FLOPs of its fused attention on a CPU.
    marian.set_attn_implementation("eager")
    batch = {"input_ids": torch.randint(4, 50, (3, 9)), "labels": torch.randint(4, 50, (3, 5))}
    with FlopCounterMode(display=False) as counter:
        loss = marian(**batch).loss
        forward = counter.get_total_flops()
        loss.backward()
    assert counter.get_total_flops() == training_flops(ours.config, 3, 9, 5)
    assert forward == forward_flops(ours.config, 3, 9, 5)


def test_flops_of_several_lengths_add_up():
    config = our_model("tiny", vocab_size=50).config
    lengths = np.array([3.0, 8.0]), np.array([5.0, 2.0])
    expected = training_flops(config, 1, 3, 5) + training_flops(config, 1, 8, 2)
    assert training_flops(config, 1, *lengths).sum() == expected


def test_decoding_reads_each_weight_of_the_decoder_once_per_step():
    model = our_model("tiny", vocab_size=50)
    sizes = {"rows": 1, "beams": 1, "source_length": 4}
    first = decoding_flops_and_bytes(model.config, **sizes, new_tokens=1, itemsize=4)
    second = decoding_flops_and_bytes(model.config, **sizes, new_tokens=2, itemsize=4)
    step = sum(
        each.numel()
        for name, each in model.model.decoder.named_parameters()
        if each.ndim == 2 and not any(part in name for part in ("embed", "encoder_attn.k", "encoder_attn.v"))
    )
    step += model.lm_head.weight.numel()
    # The weights of a step, and keys and values of 4 source tokens and 2 target tokens in two layers.
    assert (second[1] - first[1]) / 4 == step + 2 * 256 * 4 + 2 * 256 * 2
    assert (second[0] - first[0]) / 2 == step + 2 * 256 * 4 + 2 * 256 * 2
    halves = decoding_flops_and_bytes(model.config, **sizes, new_tokens=1, itemsize=2)
    assert halves == (first[0], first[1] / 2)
