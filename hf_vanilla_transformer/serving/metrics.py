"""Prometheus metrics of a server."""

from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from .engine import Engine

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Metrics of a server, in their own registry."""

    def __init__(self, engine: Engine):
        self._registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "vanilla_transformer", "registry": self._registry}
        self._requests = Counter("requests", "Requests answered.", ["route", "status"], **own)
        self._seconds = Histogram(
            "request_seconds", "Time from request to response.", ["route"], buckets=SECONDS, **own
        )
        sentences = Counter("sentences", "Sentences translated.", ["model"], **own)
        tokens = Counter("source_tokens", "Source tokens translated.", ["model"], **own)
        sizes = Histogram("batch_sentences", "Sentences decoded together.", ["model"], buckets=BATCH_SIZES, **own)
        running = Gauge("running_requests", "Translation requests in progress.", **own)
        running.set_function(lambda: engine.num_running)
        waiting = Gauge("queue_sentences", "Sentences waiting in the queue.", ["model"], **own)
        for model in engine.models.values():
            waiting.labels(model.name).set_function(partial(getattr, model, "num_waiting"))
            by_model = (sentences.labels(model.name), tokens.labels(model.name), sizes.labels(model.name))
            model.observers.append(partial(_observe, *by_model))

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count a response."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)


def _observe(sentences: Counter, tokens: Counter, sizes: Histogram, num_sentences: int, num_tokens: int) -> None:
    sentences.inc(num_sentences)
    tokens.inc(num_tokens)
    sizes.observe(num_sentences)
