"""Programs that tests start in child processes, some in two, like a user with two devices."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from paths import ROOT

# --multi_gpu means several processes; without a GPU they communicate with gloo.
ACCELERATE_LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
ACCELERATE_LAUNCH += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
# Port 0 is any free port.
ACCELERATE_LAUNCH += ["--main_process_port", "0"]


def surroundings() -> dict[str, str]:
    """Return environment variables for a child: no proxy, no GPU, one thread, this package, the loopback device."""
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "tests" / "helpers"), inherited.get("PYTHONPATH"))))
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback, "CUDA_VISIBLE_DEVICES": ""}
    return {**inherited, **own}


def worlds(size: int) -> list[dict[str, str]]:
    """Return the environment variables with which each of several processes finds the others."""
    # Port 0 is any free port.
    with socket.create_server(("localhost", 0)) as free:
        world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **world} for rank in range(size)]


def print_to(log: Path) -> None:
    """Append the output of this process to a file."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def run_python(program: str, *words: object, environment: Mapping[str, str] | None = None) -> Any:
    """Run Python source with these arguments, and variables besides `surroundings()`, to its end."""
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.run(command, env={**surroundings(), **(environment or {})}, capture_output=True, text=True)


def interpret_triton(program: str) -> None:
    """Run Python source with Triton kernels interpreted on a CPU; it must print only "passed"."""
    done = run_python(program, environment={"TRITON_INTERPRET": "1"})
    assert done.stdout == "passed\n", done.stderr


def run_in_two(program: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a Python program in two processes to its end; if it fails, the test fails with its output."""
    command = [*ACCELERATE_LAUNCH, str(program), *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=surroundings(), start_new_session=True, **pipes) as launcher:
        try:
            out, err = launcher.communicate()
        except BaseException:
            # Killing only the launcher would leave its processes behind.
            os.killpg(launcher.pid, signal.SIGKILL)
            raise
    assert launcher.returncode == 0, f"{program.name} ended with {launcher.returncode}\n{out}\n{err}"
    return subprocess.CompletedProcess(command, launcher.returncode, out, err)


def leave() -> None:
    """Wait for all processes, then exit without any teardown.

    Destroying the process group can deadlock (torch 2.13): it waits for gloo's thread while holding the GIL, which
    that thread may need to free the tensors of the last collective.
    """
    dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
