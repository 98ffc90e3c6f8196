"""Rules for the routines of known processors, and none for others."""

import pytest
import torch

from hf_vanilla_transformer.fast import routines as cpu_routines
from hf_vanilla_transformer.fast.routines import ROUTINES, Routine, Routines


@pytest.mark.parametrize(
    ("capabilities", "name"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True, "avx2": True}, "AMD AVX-512 BF16"),
        ({"cpu_name": "Intel(R) Xeon(R)", "amx_bf16": True, "avx512_bf16": True}, "Intel AMX"),
        ({"cpu_name": "Intel(R) Xeon(R)", "avx512_f": True, "avx2": True}, "Intel AVX-512"),
        ({"cpu_name": "Intel(R) Core(TM)", "avx2": True}, "Intel AVX2"),
        ({"cpu_name": "Neoverse"}, "other basic"),
        ({}, "other basic"),
    ],
)
def test_processors(monkeypatch, capabilities, name):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    assert cpu_routines.processor() == name
    assert cpu_routines.this_processor() == ROUTINES.get(name, Routines({}, {}))


@pytest.mark.parametrize("name", ROUTINES)
def test_no_rule_is_hidden_by_an_earlier_one(name):
    for rules in ROUTINES[name].products.values():
        for i, rule in enumerate(rules):
            # Weights that change are never packed.
            earlier = [each for each in rules[:i] if each.routine != Routine.PACKED or rule.routine == Routine.PACKED]
            assert not any(rule.rows <= each.rows and rule.numbers >= each.numbers for each in earlier)


def test_rules_fall_away_without_bfloat16_in_onednn_or_without_onednn(monkeypatch):
    name = next(iter(ROUTINES))
    monkeypatch.setattr(cpu_routines, "processor", lambda: name)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    found = cpu_routines.this_processor()
    assert found.products.keys() == ROUTINES[name].products.keys() - {torch.bfloat16}
    assert found.attention == ROUTINES[name].attention
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert cpu_routines.this_processor() == Routines({}, {})
