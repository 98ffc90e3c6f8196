"""A served page, and Chromium to view it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from processes import surroundings

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def serving(*words: object) -> Iterator[str]:
    """Run `vanilla-transformer serve` with these arguments on a free port, and yield its address."""
    command = [sys.executable, "-m", "hf_vanilla_transformer", "serve", "--port", "0", *map(str, words)]
    environment = {**surroundings(), "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            lines = iter(server.stdout.readline, "")
            address = next((line.split()[0] for line in lines if line.startswith("http://")), None)
            assert address, f"the server ended with {server.wait()}"
            yield address
        finally:
            if server.poll() is None:
                os.kill(server.pid, signal.SIGTERM)
