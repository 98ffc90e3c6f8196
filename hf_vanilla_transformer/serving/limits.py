"""Limits per request and per model."""

from dataclasses import dataclass

from ..options import Positive, option


@dataclass(frozen=True)
class Limits:
    """Limits per request."""

    max_text_length: Positive = option(
        20_000, "Maximum characters of a request's texts, and of its glossary.", advanced=True
    )
    max_body: Positive = option(2**20, "Maximum bytes of a request.", advanced=True)
    max_beams: Positive = option(16, "Maximum beams of a request.", advanced=True)
    max_hypotheses: Positive = option(16, "Maximum translations per sentence.", advanced=True)
    max_new_tokens: Positive = option(1024, "Maximum tokens per translated sentence.")


@dataclass(frozen=True)
class ModelLimits:
    """Limits of a model's batches and queue."""

    max_tokens: Positive = option(8192, "Source tokens x beams decoded at once; lower it if memory runs out.")
    max_queue: Positive = option(1024, "Maximum waiting sentences per model; a full queue answers 503.", advanced=True)
