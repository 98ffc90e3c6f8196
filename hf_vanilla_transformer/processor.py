"""CPU identification."""

import torch


def processor() -> str:
    """Return vendor and instruction set of this CPU, as far as they decide which kernel is fastest.

    The vendor matters because MKL checks it: on AMD it leaves half of AVX-512 unused.
    """
    capabilities = torch.cpu.get_capabilities()
    name = str(capabilities.get("cpu_name", ""))
    vendor = next((vendor for vendor in ("AMD", "Intel") if vendor in name), "other")
    sets = {"AMX": "amx_bf16", "AVX-512 BF16": "avx512_bf16", "AVX-512": "avx512_f", "AVX2": "avx2"}
    return f"{vendor} {next((name for name, flag in sets.items() if capabilities.get(flag)), 'basic')}"
