"""Serve models from several processes or machines: the application of `vanilla-transformer serve` under Ray Serve.

    python scripts/serve_ray.py --model my-model --replicas 2
    python scripts/serve_ray.py --model my-model --replicas 8 --gpus_per_replica 1 --address auto --host 0.0.0.0

Each replica is a process with all models. Requests come in at a light process, which asks another replica where one
dies: no answer is lost, and Ray starts a new replica. --address auto joins the cluster that `ray start` began on this
machine; without it, one begins here. SIGTERM or Ctrl-C ends the server once it has answered what it took.
"""

import asyncio
import logging
import os
import signal
import threading
from argparse import Namespace
from contextlib import suppress
from typing import Any

from _imports import importing

with importing():
    from hf_vanilla_transformer.cli import options
    from hf_vanilla_transformer.cli.serve import KEY_VARIABLE, add_arguments, check_limits, load_application

    with options.importing("ray"):
        import httpx
        from fastapi import FastAPI, Request, Response
        from fastapi.responses import JSONResponse

        from hf_vanilla_transformer.serving.application import BodyLimit

# Replicas that may die of a request before it is given up.
MAX_DEATHS = 3
# Ray's own limit is 5; here the queues of the models are the limit.
MAX_REQUESTS = 2**14
QUIET = {"enable_access_log": False, "log_level": "WARNING"}
DEPLOYMENT: Any = {
    "max_ongoing_requests": MAX_REQUESTS,
    "logging_config": QUIET,
}


class Replica:
    """The application, without a socket."""

    def __init__(self, arguments: Namespace):
        application, self._engine = load_application(arguments)
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://replica", timeout=None)

    async def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[bytes, int, Any]:
        """Return body, status and headers of the answer to a request."""
        answer = await self._client.request(method, path, headers=headers, content=body)
        return answer.content, answer.status_code, dict(answer.headers)

    def check_health(self) -> None:
        """Raise an error where a model's thread has ended: Ray then replaces the replica."""
        if dead := [name for name, model in self._engine.models.items() if not model.is_alive]:
            raise RuntimeError(f"the threads of these models have ended: {', '.join(dead)}")


def front(max_body: int) -> Any:
    """Return the deployment that passes requests on to the replicas."""
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
                # A dead replica cannot have answered, and to ask twice does no harm.
                with suppress(RayActorError):
                    return Response(*await self._replicas.answer.remote(*call))
            return JSONResponse({"error": f"{MAX_DEATHS} replicas died of this request"}, 500)

        async def drain(self) -> None:
            """Take nothing new, and return once all that was taken is answered."""
            self._is_draining = True
            while self._num_running:
                await asyncio.sleep(0.05)
            # For the answers to leave the proxy.
            await asyncio.sleep(1)

    return Front


def main(argv: list[str] | None = None) -> None:
    """Serve until a signal comes."""
    parser = options.OneLineParser(description=__doc__)
    add_arguments(parser)
    group = parser.add_argument_group("replicas")
    group.add_argument("--replicas", type=int, default=2, help="Processes with all models (default: 2).")
    group.add_argument("--cpus_per_replica", type=int, default=1, help="Threads of each (default: 1).")
    group.add_argument("--gpus_per_replica", type=float, default=0, help="GPUs of each, such as 0.5 (default: 0).")
    group.add_argument("--address", help="Of a Ray cluster; auto: the one of this machine. Default: a new one.")
    parser.add_help_options()
    with options.one_line_errors(parser):
        arguments = parser.parse_args(argv)
        if arguments.page:
            raise ValueError("--page keeps the state of visitors in one process; leave it out")
        check_limits(arguments)
        run(arguments)


def run(arguments: Namespace) -> None:
    """Start the replicas, and end them at a signal."""
    # Ray reads it when it is imported; nothing is reported to anybody.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with options.importing("ray"):
        import ray
        from ray import serve
    arguments.api_key = arguments.api_key or os.environ.get(KEY_VARIABLE)
    new: Any = {"num_cpus": arguments.replicas * arguments.cpus_per_replica, "include_dashboard": False}
    ray.init(arguments.address or "local", logging_level=logging.WARNING, **({} if arguments.address else new))
    serve.start(http_options={"host": arguments.host, "port": arguments.port}, logging_config=QUIET)
    resources = {"num_cpus": arguments.cpus_per_replica, "num_gpus": arguments.gpus_per_replica}
    deployment: Any = serve.deployment(num_replicas=arguments.replicas, ray_actor_options=resources, **DEPLOYMENT)
    replicas = deployment(Replica).bind(arguments)
    ended = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: ended.set())
    running = serve.run(front(arguments.max_body).bind(replicas), name="translation")
    print(f"http://{arguments.host}:{arguments.port} ({arguments.replicas} replicas)", flush=True)
    ended.wait()
    running.drain.remote().result()
    serve.shutdown()


if __name__ == "__main__":
    main()
