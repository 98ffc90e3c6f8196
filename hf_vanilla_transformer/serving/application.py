"""FastAPI application: routes, one-line errors, limits, health and metrics."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from transformers.utils import logging

from .. import __version__
from ..errors import one_line, shorten
from . import libretranslate, v1
from .batching import Busy, DecodingFailed, InvalidRequest
from .engine import Engine, UnknownModel
from .limits import Limits
from .metrics import Metrics
from .service import Service

logger = logging.get_logger(__name__)

# Seconds after which a rejected client may retry.
RETRY_AFTER = 1

# HTTP status by exception of a route.
STATUSES: dict[type[Exception], int] = {UnknownModel: 400, InvalidRequest: 422, DecodingFailed: 500, Busy: 503}


def create_application(
    engine: Engine, *, limits: Limits | None = None, api_key: str | None = None, cors_origins: Iterable[str] = ()
) -> FastAPI:
    """Return the application that serves the models of an engine, which it closes on shutdown.

    Args:
        engine: The models.
        limits: Limits per request.
        api_key: Key required for translation requests, if not None.
        cors_origins: Websites whose pages may call the API; "*": all.
    """
    service = Service(engine, limits or Limits(), api_key)
    metrics = Metrics(engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(engine.close)

    # Ships the scripts of /docs, which FastAPI's own page loads from a CDN.
    application = FastAPIOffline(
        docs_url=None,
        redoc_url=None,
        title="Vanilla Transformer",
        version=__version__,
        description="Translation with encoder-decoder models: the LibreTranslate API and a native one.",
        lifespan=lifespan,
    )
    for error, status in STATUSES.items():
        application.add_exception_handler(error, _answer_error(status))
    application.add_exception_handler(RequestValidationError, _answer_invalid)
    application.add_exception_handler(HTTPException, _answer_http_error)
    application.add_exception_handler(Exception, _answer_unexpected)
    application.include_router(v1.routes(service))
    application.include_router(libretranslate.routes(service))
    _add_operation_routes(application, engine, metrics)
    application.add_middleware(BodyLimit, limit=service.limits.max_body)
    if origins := list(cors_origins):
        application.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    application.add_middleware(Measured, metrics=metrics)
    return application


def _add_operation_routes(application: FastAPI, engine: Engine, metrics: Metrics) -> None:
    @application.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        # Relative URLs work behind a proxy that serves the application under a path.
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=application.title,
            swagger_js_url="static-offline-docs/swagger-ui-bundle.js",
            swagger_css_url="static-offline-docs/swagger-ui.css",
            swagger_favicon_url="static-offline-docs/favicon.png",
        )

    @application.get("/health", tags=["Operation"])
    async def health() -> JSONResponse:
        """Whether the server accepts requests; 503 during shutdown or after a model's thread has died."""
        status = f"dead: {', '.join(engine.dead)}" if engine.dead else "ok"
        status = "draining" if engine.draining else status
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @application.get("/metrics", tags=["Operation"], summary="Metrics")
    async def figures() -> Response:
        """Metrics for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")


# Errors


def _error(status: int, message: str, headers: Any = None) -> JSONResponse:
    # Messages quote client input, which may be long or not encodable.
    text = shorten(" ".join(message.encode(errors="replace").decode().split()))
    busy = {"Retry-After": str(RETRY_AFTER)} if status == 503 else {}
    return JSONResponse({"error": text}, status, {**busy, **(headers or {})})


def _answer_error(status: int) -> Any:
    async def answer(_: Any, error: Exception) -> JSONResponse:
        return _error(status, one_line(error))

    return answer


async def _answer_http_error(_: Any, error: Any) -> JSONResponse:
    return _error(error.status_code, str(error.detail), error.headers)


async def _answer_invalid(_: Any, error: Any) -> JSONResponse:
    # For a field with several types, report the one whose validation got furthest.
    first = max(error.errors(), key=lambda fault: len(fault["loc"]))
    problem = first.get("ctx", {}).get("error", first["msg"])
    if first.get("type") == "json_invalid":
        return _error(422, f"body: not JSON: {problem}")
    names = [str(name) for name in first["loc"] if name not in ("body", "str") and "[" not in str(name)]
    return _error(422, f"{'.'.join(names) or 'body'}: {problem}")


async def _answer_unexpected(_: Any, error: Exception) -> JSONResponse:
    return _error(500, f"internal error: {type(error).__name__}; see the server log")


# Middleware


class BodyLimit:
    """Answer 413 to a request as soon as its body is too long, without reading the rest."""

    def __init__(self, application: ASGIApp, limit: int):
        self._application, self._limit = application, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limit:
            await _error(413, self._message())(scope, receive, send)
            return
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._limit:
                raise HTTPException(413, self._message())
            return message

        await self._application(scope, limited, send)

    def _message(self) -> str:
        return f"the body exceeds the limit of {self._limit} bytes; send less at a time"


class Measured:
    """Record number and latency of responses by route and status."""

    def __init__(self, application: ASGIApp, metrics: Metrics):
        self._application, self._metrics = application, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._application(scope, receive, noted)
        finally:
            # Group unknown paths, whose number is unbounded.
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.answered(route, status, time.perf_counter() - start)
