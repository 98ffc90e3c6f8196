"""Choosing a model when the source language is to be detected."""

import asyncio
from collections.abc import Collection, Iterable

from ..text.languages import detect, is_installed, is_known
from .engine import Choice, Engine

AUTO = "auto"


async def choose(
    engine: Engine, source: str | None, target: str | None, texts: Iterable[str], name: str | None = None
) -> tuple[Choice, float]:
    """Return a model and its languages, like `Engine.choose`, and the probability of the detected source language.

    With the source "auto", the language is the only one possible or, with a detector, the likeliest for the texts. The
    probability is 0 if nothing was detected.
    """
    if source != AUTO:
        return engine.choose(source, target, name), 0.0
    language, probability = await detect_among(engine.sources(target, name), texts) or (None, 0.0)
    return engine.choose(language, target, name), probability


async def detect_among(languages: Collection[str], texts: Iterable[str]) -> tuple[str, float] | None:
    """Return the likeliest language of the texts and its probability; None if detection is impossible."""
    if not (known := detectable(languages)):
        return None
    # In a thread: the first call loads the detector.
    return await asyncio.to_thread(lambda: detect("\n".join(texts), known))


def detectable(languages: Collection[str]) -> list[str]:
    """Return the languages that can be detected: at least two of the given ones, or none."""
    can_detect = len(languages) > 1 and is_installed()
    known = [language for language in languages if can_detect and is_known(language)]
    return known if len(known) > 1 else []
