"""Run the application in one process with graceful shutdown."""

import asyncio
import logging
import os
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ..errors import one_line
from ..inference.translation import remarks_logger
from .engine import Engine

# Seconds for the last responses to reach their clients; pages still open are then disconnected.
LAST_ANSWERS = 3


class Server(uvicorn.Server):
    """On a signal, stops once all accepted requests are answered, rejecting new ones with 503; on a second, exits."""

    def __init__(self, config: uvicorn.Config, engine: Engine):
        super().__init__(config)
        self._engine = engine

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signal handler: stop accepting requests, or exit if already stopping."""
        if self._engine.draining:
            os._exit(128 + sig)
        self._engine.draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and print the URL."""
        await super().startup(sockets)
        for listening in sockets or ():
            print(f"{address(listening)} (routes at /docs)", flush=True)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop."""
        self.should_exit = self.should_exit or (self._engine.draining and self._engine.is_idle)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the last responses, then close remaining connections."""
        asyncio.get_running_loop().call_later(LAST_ANSWERS, self._hang_up)
        await super().shutdown(sockets)

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket bound to a port, or any free one if 0; it refuses connections until the server starts.

    Raises:
        ValueError: The address cannot be used.
    """
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise ValueError(f"`host` {host}, `port` {port} cannot be used: {one_line(error)}; choose others") from error
    return listening


def address(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(application: FastAPI, engine: Engine, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    # Responses have remarks on what was cut, corrected or short; a line for each batch would flood the log.
    remarks_logger.setLevel(logging.ERROR)
    config = uvicorn.Config(application, log_level="warning", access_log=False, lifespan="on")
    Server(config, engine).run(sockets=[listening])
