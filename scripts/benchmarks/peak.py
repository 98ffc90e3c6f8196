"""Peak memory of a function, measured in a fresh process."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .machine import gpu_peak, resident_bytes, run_python, synchronize
from .measure import Sample

# Return freed memory to the system at once, so that resident memory is memory in use. glibc otherwise keeps blocks of
# up to 32 MiB, and a step's peak would hide in those left over from building the model.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def fresh_peak(function: Callable[..., int], **arguments: Any) -> Callable[[], Sample]:
    """Return a function that calls a module-level function, which returns bytes, in a fresh process.

    Its arguments must be JSON-serializable; `threads`, the current number of threads, is added.
    """
    module, name = function.__module__, function.__name__
    program = f"import sys, json; from {module} import {name}; print({name}(**json.loads(sys.argv[1])))"
    encoded = json.dumps({**arguments, "threads": torch.get_num_threads()})
    return lambda: Sample(float(run_python(program, encoded, **MALLOC)))


def peak_above_idle(work: Callable[[], Any], device: str) -> int:
    """Return the peak bytes of `work` above those in use before; call it in a fresh process.

    On a CPU it is the system's high-water mark of resident memory, which, unlike torch's profiler, includes the
    scratch memory of the matrix product libraries. Run `work` once on small inputs first. On a GPU torch allocates
    everything.
    """
    gc.collect()
    synchronize(device)
    if device == "cuda":
        return gpu_peak(work, device)[1]
    idle = resident_bytes()
    reset_peak()
    work()
    return peak_bytes() - idle


def reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError as error:
        raise OSError(
            f"measuring memory on a CPU needs Linux's /proc ({error.strerror}); set `device` to cuda"
        ) from error


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in status if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])
