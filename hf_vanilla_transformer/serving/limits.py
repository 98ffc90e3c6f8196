"""Limits of a server and of each model."""

from dataclasses import dataclass

from ..options import Positive, option


@dataclass(frozen=True)
class Limits:
    """The most that one request may ask for."""

    max_text_length: Positive = option(
        20_000, "Characters of a request's texts, and as many of its glossary.", advanced=True
    )
    max_body: Positive = option(2**20, "Bytes of a request.", advanced=True)
    max_beams: Positive = option(16, "Beams that a request may ask for.", advanced=True)
    max_hypotheses: Positive = option(16, "Translations of a sentence that a request may ask for.", advanced=True)
    max_new_tokens: Positive = option(1024, "Tokens of a translated sentence.")


@dataclass(frozen=True)
class ModelLimits:
    """The most that a model decodes at once and keeps waiting."""

    max_tokens: Positive = option(8192, "Source tokens x beams decoded at once; lower it if memory runs out.")
    max_queue: Positive = option(1024, "Sentences that may wait; a full queue answers 503.", advanced=True)
