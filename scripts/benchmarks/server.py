"""A server in a separate process, started with the users' command."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from .machine import child_environment, resident_bytes

COMMAND = (sys.executable, "-m", "hf_vanilla_transformer", "serve", "--port", "0")


class Server(NamedTuple):
    """A running server: its process and base URL."""

    process: "subprocess.Popen[str]"
    url: str

    @property
    def resident_bytes(self) -> int:
        return resident_bytes(self.process.pid)


@contextmanager
def running_server(
    *options: str, command: Sequence[str] = COMMAND, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start a server, wait until it listens, and end it with SIGTERM.

    The command prints the server's URL at the start of a line once it listens.
    """
    env = child_environment({"HF_HUB_OFFLINE": "1", **(environment or {})})
    with subprocess.Popen([*command, *options], env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Server(process, _read_url(process))
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.communicate()
    if process.returncode:
        raise OSError(f"the server ended with status {process.returncode}; see its output above")


def _read_url(process: "subprocess.Popen[str]") -> str:
    for line in process.stdout or ():
        if line.startswith("http"):
            return line.split()[0]
    raise OSError("the server did not start; see its output above")
