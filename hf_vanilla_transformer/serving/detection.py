"""The model of a request that leaves the source language open."""

import asyncio
from collections.abc import Collection, Iterable

from ..text.languages import detect, is_installed, is_known
from .engine import Choice, Engine

AUTO = "auto"


async def choose(
    engine: Engine, source: str | None, target: str | None, texts: Iterable[str], name: str | None = None
) -> tuple[Choice, float]:
    """Return a model and its languages, as `Engine.choose` does, and the probability of a detected source language.

    For the source "auto", it is the only one or, with a detector, the likeliest of the texts.
    """
    if source != AUTO:
        return engine.choose(source, target, name), 0.0
    language, probability = await detect_among(engine.sources(target, name), texts) or (None, 0.0)
    return engine.choose(language, target, name), probability


async def detect_among(languages: Collection[str], texts: Iterable[str]) -> tuple[str, float] | None:
    """Return the likeliest language of texts, and its probability; None if the languages cannot be told apart."""
    if not (known := detectable(languages)):
        return None
    # The first time, the detector is loaded.
    return await asyncio.to_thread(lambda: detect("\n".join(texts), known))


def detectable(languages: Collection[str]) -> list[str]:
    """Return those of several languages that can be told apart; none without a detector."""
    can_detect = len(languages) > 1 and is_installed()
    known = [language for language in languages if can_detect and is_known(language)]
    return known if len(known) > 1 else []
