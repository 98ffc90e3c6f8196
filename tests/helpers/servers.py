"""`vanilla-transformer serve` in a child process."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from processes import surroundings


@contextmanager
def running_server(*words: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield a server's process on a free port and its URL once it listens; kill it at the end."""
    command = [sys.executable, "-m", "hf_vanilla_transformer", "serve", "--port", "0", *map(str, words)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=surroundings(), **pipes) as process:
        try:
            lines = iter(process.stdout.readline, "")
            line = next((line for line in lines if line.startswith("http://")), None)
            assert line, process.stderr.read()
            yield process, line.split()[0]
        finally:
            process.kill()


def ask(url: str, body: Any = None, timeout: float | None = None) -> tuple[int, Any]:
    """Return the status and JSON of the response to a GET or, with a body, a POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
