import pytest
import torch
from matplotlib.image import imread

from hf_vanilla_transformer.data.arguments import DataArguments
from tutorials import complexity
from tutorials.common import TutorialArguments
from tutorials.complexity import Cost, measure_attention, reproduce_complexity, saved_bytes


def test_attention_saves_its_weights_and_its_inputs():
    (measured,) = measure_attention([(48, 8)])
    # The weights once, and queries, keys and values.
    assert measured.bytes == 4 * (48 * 48 + 3 * 48 * 8)
    assert measured.seconds > 0


@pytest.mark.parametrize(("function", "size"), [(lambda x: x * x, 40), (lambda x: x.exp(), 40), (lambda x: x + 1, 0)])
def test_saved_bytes_count_each_storage_once(function, size):
    assert saved_bytes(function, torch.randn(10, requires_grad=True)) == size


@pytest.mark.parametrize(("power", "reproduced"), [(1, True), (2, False)])
def test_exponents_are_compared_with_the_tables(monkeypatch, tmp_path, power, reproduced):
    costs = lambda sizes: [Cost(n, d, 1e-9 * n**2 * d**power, 4 * n**2) for n, d in sizes]  # noqa: E731 - a stand-in
    monkeypatch.setattr(complexity, "measure_attention", costs)
    result = reproduce_complexity(TutorialArguments(output_dir=str(tmp_path)), DataArguments())
    expected = {"time_n": 2, "time_d": power, "memory_n": 2, "memory_d": 0}
    assert result.figures["exponents"] == pytest.approx(expected, abs=1e-9)
    assert result.reproduced is reproduced


@pytest.mark.slow
def test_complexity_is_the_tables(run, tmp_path):
    exponents = run("complexity", tmp_path)["figures"]["exponents"]
    assert exponents["memory_n"] == pytest.approx(2, abs=0.1)
    assert exponents["time_n"] > 1.4 and exponents["time_d"] > 0.4, "a machine under load still shows growth"
    assert imread(tmp_path / "complexity" / "complexity.png").std() > 0.02
