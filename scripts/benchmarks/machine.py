"""The machine under measurement: description, precision, memory, and fresh Python processes."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PACKAGES = ("accelerate", "ctranslate2", "datasets", "numpy", "tokenizers", "torch", "transformers")


def synchronize(device: str) -> None:
    """Wait until all work queued on the device is done."""
    if device != "cpu":
        torch.accelerator.synchronize()


def timer(work: Callable[[], Any]) -> Timer:
    """Return a timer of `work` that keeps the number of threads, which `Timer` would set to 1."""
    return Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())


def autocast(device: str, dtype: str) -> AbstractContextManager:
    return nullcontext() if dtype == "float32" else torch.autocast(device, DTYPES[dtype])


def gpu_peak(work: Callable[[], Any], device: str) -> tuple[Any, int]:
    """Return the result of `work` and its peak bytes of GPU memory above those allocated before; 0 on a CPU."""
    if device != "cuda":
        return work(), 0
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    return work(), torch.cuda.max_memory_allocated() - before


def resident_bytes(process: int | str = "self") -> int:
    """Resident bytes of a process, by default this one; 0 where the system does not report them."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables with which a child process can import this package and the scripts' packages."""
    scripts = Path(__file__).resolve().parents[1]
    path = os.pathsep.join(filter(None, (str(scripts), str(scripts.parent), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **extra}


def run_python(program: str, *arguments: str, **environment: str) -> str:
    """Run Python source in a fresh process that can import this package; return the last line of its output."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=child_environment(environment), capture_output=True, text=True, check=False)
    printed = done.stdout.strip().splitlines()
    if done.returncode or not printed:
        errors = done.stderr.strip().splitlines() or [f"exit status {done.returncode} and no output"]
        raise OSError(f"a benchmark process failed: {errors[-1]}")
    return printed[-1]


def machine_info(device: str) -> dict[str, Any]:
    """Describe hardware and package versions, for a JSON file."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "device": device,
        "hardware": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capabilities": sorted(name for name, value in torch.cpu.get_capabilities().items() if value is True),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
