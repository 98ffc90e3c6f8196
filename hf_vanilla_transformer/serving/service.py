"""Shared by the routes: limits, API key and translation of multi-sentence texts."""

import asyncio
import hmac
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Annotated, Any

from pydantic import AfterValidator
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ..errors import lone_surrogate, one_line
from ..inference.glossary import Glossary
from .batching import InvalidRequest
from .engine import Choice, Engine, TranslatedText, TranslationOptions
from .limits import Limits


def _unicode(text: str) -> str:
    if surrogate := lone_surrogate(text):
        raise ValueError(f"{surrogate}; send valid Unicode")
    return text


# JSON can spell lone surrogates.
Text = Annotated[str, AfterValidator(_unicode)]


class FieldError(InvalidRequest):
    """A field of a request is invalid; the message starts with its name."""

    def __init__(self, name: str, problem: str):
        super().__init__(f"{name}: {problem}")


def glossary_of(terms: Mapping[str, str] | None) -> Glossary | None:
    """Return the glossary in a request's field `glossary`, if any."""
    try:
        return Glossary.of(terms) if terms else None
    except ValueError as error:
        raise FieldError("glossary", one_line(error)) from error


@dataclass
class Service:
    """Checks API key and limits, and translates."""

    engine: Engine
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None

    def check_key(self, request: Request, key: str | None = None) -> None:
        """Raise 401 unless the right key is in the body (`key`) or sent as `Authorization: Bearer KEY`."""
        if self.api_key is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        candidates = (key, token.strip() if scheme.lower() == "bearer" else None)
        if not any(self.accepts(candidate) for candidate in candidates if candidate):
            message = "the API key is missing or wrong; send it as api_key or as Authorization: Bearer"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    async def translate(
        self, request: Request, texts: Sequence[str], choice: Choice, options: TranslationOptions, **how: Any
    ) -> list[TranslatedText]:
        """Translate texts, canceling if the client disconnects; the body must have been read.

        Further arguments are those of `answer`.
        """
        return await while_connected(request, self.answer(texts, choice, options, **how))

    async def answer(
        self,
        texts: Sequence[str],
        choice: Choice,
        options: TranslationOptions,
        split: bool = True,
        are_aligned: Iterable[bool] = repeat(True),
    ) -> list[TranslatedText]:
        """Translate texts like `ServedModel.translate`, within the limits; without `split`, each is one sentence."""
        model, source, target = choice
        if options.num_beams is None and not options.do_sample:
            # Need at least as many beams as hypotheses.
            options = replace(options, num_beams=max(model.num_beams, options.num_hypotheses))
        self._check(texts, options)
        with self.engine.admission():
            return await model.translate(texts, options, source, target, "auto" if split else "never", are_aligned)

    def accepts(self, key: str) -> bool:
        """Whether the API key is correct."""
        sent, expected = (text.encode(errors="surrogatepass") for text in (key, self.api_key or ""))
        return self.api_key is not None and hmac.compare_digest(sent, expected)

    def check_length(self, texts: Iterable[str], name: str = "text") -> None:
        """Raise 413 for texts that are too long in total; an empty one counts as 1, as it also takes time."""
        limit = self.limits.max_text_length
        if (length := sum(max(1, len(text)) for text in texts)) > limit:
            raise HTTPException(413, f"the {name} has {length} characters, the limit is {limit}; send less at a time")

    def _check(self, texts: Sequence[str], options: TranslationOptions) -> None:
        self.check_length(texts)
        if options.glossary is not None:
            self.check_length(chain.from_iterable(options.glossary.entries), "glossary")
        for name, value, limit in (
            ("num_hypotheses", options.num_hypotheses, self.limits.max_hypotheses),
            ("num_beams", options.num_beams or 1, self.limits.max_beams),
            ("max_new_tokens", options.max_new_tokens or 1, self.limits.max_new_tokens),
        ):
            if value > limit:
                raise FieldError(name, f"{value} exceeds the limit of {limit}")


async def while_connected(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of the work; cancel it if the client disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            # Nobody reads the response; the status is for log and metrics.
            raise HTTPException(499, "the client closed the connection")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
