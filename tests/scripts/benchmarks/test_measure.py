from types import SimpleNamespace

import pytest

from benchmarks import measure as measuring
from benchmarks.measure import Case, Sample, measure
from benchmarks.roofline import Roofline


class Clock:
    """A clock that runs only while an implementation works."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        fake = SimpleNamespace(perf_counter=lambda: self.now, sleep=lambda seconds: None)
        monkeypatch.setattr(measuring, "time", fake)

    def takes(self, *seconds):
        times = iter(seconds)

        def work():
            self.now += next(times)

        return work


def test_ratios_are_per_round(monkeypatch):
    clock = Clock(monkeypatch)
    # The first round is the warm-up; in the last one the machine is three times slower.
    implementations = {
        "ours": clock.takes(50, 1, 2, 3),
        "marian": clock.takes(1, 2, 3, 9),
        "bart": clock.takes(9, 1, 1, 3),
    }
    found = measure(Case("train", "case", implementations, units=6, unit="tokens"), rounds=3)
    assert found.costs == {"ours": [1, 2, 3], "marian": [2, 3, 9], "bart": [1, 1, 3]}
    assert found.ratios == pytest.approx({"marian": 2.0, "bart": 1.0})
    assert found.quartiles["marian"] == pytest.approx((1.75, 2.5))
    assert found.rates == pytest.approx({"ours": 3.0, "marian": 2.0, "bart": 6.0})
    assert not found.utilization


def test_implementations_alternate():
    order = []
    implementations = {name: lambda name=name: order.append(name) for name in ("ours", "marian")}
    measure(Case("train", "case", implementations), rounds=2)
    assert order == ["ours", "marian"] * 3


def test_samples_count_their_own_units():
    implementations = {"ours": lambda: Sample(2.0, 100.0), "marian": lambda: Sample(4.0, 50.0)}
    found = measure(Case("train", "case", implementations, unit="tokens"), rounds=1)
    assert found.ratios == {"marian": 4.0} and found.rates == {"ours": 50.0, "marian": 12.5}


def test_peak_of_a_gpus_memory_above_that_before(monkeypatch):
    monkeypatch.setattr(measuring, "synchronize", lambda device: None)
    peaks = iter([50, 70, 40])
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda: 10)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda: next(peaks))
    found = measure(Case("train", "case", {"ours": lambda: Sample(2.0, 6.0)}), 2, Roofline("cuda"))
    assert found.memory == {"ours": 60} and found.rates == {"ours": 3.0}


@pytest.mark.parametrize(("flops", "read", "utilization"), [(400.0, 0.0, 0.5), (0.0, 60.0, 0.75), (400.0, 60.0, 0.75)])
def test_utilization_is_of_the_binding_peak(monkeypatch, flops, read, utilization):
    roofline = Roofline("cpu", {"float32": 100.0, "bandwidth": 10.0})
    monkeypatch.setattr(roofline, "current_rate", lambda name, seconds: roofline.rates[name])
    clock = Clock(monkeypatch)
    implementations = {name: clock.takes(1, cost, cost) for name, cost in {"ours": 8, "marian": 16, "int8": 4}.items()}
    case = Case("train", "case", implementations, flops=flops, bytes=read, other_dtype=frozenset({"int8"}))
    assert measure(case, 2, roofline).utilization == pytest.approx({"ours": utilization, "marian": utilization / 2})
