"""Clients of a translation server; each sends one request at a time.

They run in a separate process and share the cores with the server, so this module imports nothing heavy.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from multiprocessing import get_context
from typing import Any, NamedTuple

import aiohttp

# Status if the connection was refused or broke.
NO_ANSWER = 0

JSON = {"Content-Type": "application/json"}


class Answer(NamedTuple):
    """The response to a request, or the error."""

    # HTTP status, or `NO_ANSWER`.
    status: int
    body: str
    # Seconds from the start of the load to the request, and from the request to its response.
    sent: float
    seconds: float

    def json(self) -> Any:
        return json.loads(self.body)


class Load(NamedTuple):
    """The responses in request order, and the seconds from the first request to the last response."""

    answers: list[Answer]
    seconds: float


def run_load(url: str, bodies: Sequence[Any], num_clients: int, seconds: float | None = None) -> Load:
    """Send each request once, from concurrent clients; with `seconds`, repeat the requests until they have passed."""
    return asyncio.run(_run_load(url, bodies, num_clients, seconds))


async def _run_load(url: str, bodies: Sequence[Any], num_clients: int, seconds: float | None) -> Load:
    encoded = [json.dumps(body).encode() for body in bodies]
    pending = enumerate(encoded if seconds is None else cycle(encoded))
    answers: dict[int, Answer] = {}
    start = time.perf_counter()

    async def client(session: aiohttp.ClientSession) -> None:
        for number, body in pending:
            sent = time.perf_counter()
            if seconds is not None and sent - start >= seconds:
                return
            status, text = await _post(session, url, body)
            answers[number] = Answer(status, text, sent - start, time.perf_counter() - sent)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        await asyncio.gather(*(client(session) for _ in range(num_clients)))
    return Load([answers[number] for number in sorted(answers)], time.perf_counter() - start)


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> tuple[int, str]:
    try:
        async with session.post(url, data=body, headers=JSON) as response:
            return response.status, await response.text()
    except (aiohttp.ClientError, OSError) as error:
        return NO_ANSWER, f"{type(error).__name__}: {error}"


@contextmanager
def own_process() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield process
