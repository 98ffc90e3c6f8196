from dataclasses import replace

import pytest

from benchmarks.measure import Measurement
from benchmarks.power_law import fit_scaling
from benchmarks.report import results_table, table_rows, with_prefix
from benchmarks.roofline import Probe, Roofline

SPEED = Measurement(
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
MEMORY = Measurement("memory", "step", "calls", "float32", "bytes", {"ours": [2.5e9]}, {"ours": 1.0}, {}, {}, {})
GROWTH = [
    replace(SPEED, name=f"n {n}", axis=("n", n), costs={"ours": [n**2 / 7.0], "marian": [n**3.0]}) for n in (2, 4, 8)
]


def test_table_has_every_result():
    probes = {"float32": Probe("a @ b", 1.0, lambda: None), "bandwidth": Probe("copy", 1.0, lambda: None)}
    table = results_table([SPEED, MEMORY, *GROWTH], Roofline("cpu", {"float32": 2.5e11, "bandwidth": 2e10}, probes))
    lines = table.splitlines()
    speed = (
        "| train | step, small | 12.3 k tokens/s | 41% | marian: 6 k tokens/s | 20% | 1.75 (1.50 to 2.00) | a note |"
    )
    assert speed in lines
    assert "| memory | step | 2.5 GB |  |  |  |  |  |" in lines
    assert "| seconds, a note | n | 2.00 | marian 3.00 |" in lines
    assert "roofline of float32: 250 GFLOP/s (a @ b)" in table and "bandwidth: 20 GB/s (copy)" in table


def test_memory_of_a_gpu_is_a_note():
    (row,) = table_rows(replace(SPEED, memory={"ours": 7.3e9, "marian": 12.1e9}))
    assert row.endswith("| peak memory of ours 7.3 GB, peak memory of marian 12.1 GB, a note |")


def test_scaling_has_the_exponents_of_each():
    (fit,) = fit_scaling([SPEED, MEMORY, *GROWTH])
    assert (fit.axis, fit.sizes) == ("n", [2, 4, 8])
    assert fit.exponent == pytest.approx(2) and fit.baselines == pytest.approx({"marian": 3})


@pytest.mark.parametrize(("value", "text"), [(999.6e6, "1 GB"), (12.0, "12 B"), (3.14159e3, "3.14 kB")])
def test_prefixes(value, text):
    assert with_prefix(value, "B") == text
