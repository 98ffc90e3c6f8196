"""Serving with several processes or machines, using Ray Serve."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from hf_vanilla_transformer.serving.application import BodyLimit
from hf_vanilla_transformer.serving.engine import Engine

# Replicas a request may kill before it fails.
MAX_DEATHS = 3
# Ray's default is 5; here the models' queues are the limit.
MAX_REQUESTS = 2**14
QUIET = {"enable_access_log": False, "log_level": "WARNING"}
DEPLOYMENT: Any = {"max_ongoing_requests": MAX_REQUESTS, "logging_config": QUIET}


class Replica:
    """The application returned by `load`, called in-process without a socket."""

    def __init__(self, load: Callable[[], tuple[FastAPI, Engine]]) -> None:
        application, self._engine = load()
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://replica", timeout=None)

    async def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[bytes, int, Any]:
        """Return body, status and headers of the response to a request."""
        answer = await self._client.request(method, path, headers=headers, content=body)
        return answer.content, answer.status_code, dict(answer.headers)

    def check_health(self) -> None:
        """Raise an error if a model's thread has died: Ray then replaces the replica."""
        if dead := self._engine.dead:
            raise RuntimeError(f"the threads of these models have died: {', '.join(dead)}")


def front(max_body: int) -> Any:
    """Return the deployment that forwards requests to the replicas."""
    from ray import serve
    from ray.exceptions import RayActorError

    application = FastAPI(openapi_url=None)
    application.add_middleware(BodyLimit, limit=max_body)

    @serve.deployment(**DEPLOYMENT, ray_actor_options={"num_cpus": 0})
    @serve.ingress(application)
    class Front:
        def __init__(self, replicas: Any):
            self._replicas, self._is_draining, self._num_running = replicas, False, 0

        @application.api_route("/{path:path}", methods=["GET", "HEAD", "POST", "OPTIONS"])
        async def forward(self, request: Request) -> Response:
            if self._is_draining:
                return JSONResponse({"error": "the server is shutting down"}, 503, {"Retry-After": "1"})
            self._num_running += 1
            try:
                return await self._ask(request)
            finally:
                self._num_running -= 1

        async def _ask(self, request: Request) -> Response:
            path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            call = (request.method, path, dict(request.headers), await request.body())
            for _ in range(MAX_DEATHS):
                # A dead replica has not answered, and repeating a request is harmless.
                with suppress(RayActorError):
                    return Response(*await self._replicas.answer.remote(*call))
            return JSONResponse({"error": f"{MAX_DEATHS} replicas died on this request"}, 500)

        async def drain(self) -> None:
            """Accept nothing new, and return once all accepted requests are answered."""
            self._is_draining = True
            while self._num_running:
                await asyncio.sleep(0.05)
            # Let the responses leave the proxy.
            await asyncio.sleep(1)

    return Front


def serve_replicas(
    load: Callable[[], tuple[FastAPI, Engine]],
    host: str,
    port: int,
    max_body: int,
    *,
    replicas: int,
    cpus: int,
    gpus: float,
    address: str | None,
) -> None:
    """Serve until SIGINT or SIGTERM, then stop once all accepted requests are answered.

    Args:
        load: Returns the application and its engine; called in each replica.
        host: Address to listen on.
        port: Port to listen on.
        max_body: Maximum bytes of a request's body.
        replicas: Number of processes, each with all models.
        cpus: CPU threads per replica.
        gpus: GPUs per replica, such as 0.5.
        address: Ray cluster to join; "auto": the one running on this machine; None: a new one.
    """
    # Disable usage reports; Ray reads this on import.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray import serve

    new: Any = {"num_cpus": replicas * cpus, "include_dashboard": False}
    ray.init(address or "local", logging_level=logging.WARNING, **({} if address else new))
    serve.start(http_options={"host": host, "port": port}, logging_config=QUIET)
    options = {"num_cpus": cpus, "num_gpus": gpus}
    deployment: Any = serve.deployment(num_replicas=replicas, ray_actor_options=options, **DEPLOYMENT)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    running = serve.run(front(max_body).bind(deployment(Replica).bind(load)), name="translation")
    print(f"http://{host}:{port} ({replicas} replicas)", flush=True)
    ended.wait()
    running.drain.remote().result()
    serve.shutdown()
