"""What the routes share: limits, and translation of texts of several sentences."""

import asyncio
import hmac
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import Annotated, Any

from pydantic import AfterValidator
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ..errors import lone_surrogate
from ..inference.decoding import Hypothesis
from ..inference.translation import joined
from ..text.sentences import Layout
from .batching import InvalidRequest
from .engine import Choice, Engine, TranslationOptions
from .limits import Limits


def _unicode(text: str) -> str:
    if surrogate := lone_surrogate(text):
        raise ValueError(f"{surrogate}; send valid Unicode")
    return text


# JSON can spell lone surrogates.
Text = Annotated[str, AfterValidator(_unicode)]


class FieldError(InvalidRequest):
    """The value of a request's field cannot be used; the message begins with the name of the field."""

    def __init__(self, name: str, problem: str):
        super().__init__(f"{name}: {problem}")


@dataclass(frozen=True)
class TranslatedText:
    """A text, and the hypotheses of each of its sentences."""

    layout: Layout
    hypotheses: list[list[Hypothesis]]

    def joined(self, rank: int = 0) -> Hypothesis:
        """Return the hypotheses of a rank as one, the best being 0."""
        return self._ranked[rank] if self.hypotheses else Hypothesis(self.layout.fill([]), alignment=[])

    @cached_property
    def _ranked(self) -> list[Hypothesis]:
        return joined(self.layout, self.hypotheses)


@dataclass
class Service:
    """Answers requests within limits, which present the API key if there is one."""

    engine: Engine
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None

    def check_key(self, request: Request, given: str | None = None) -> None:
        """Refuse a request without the key, given in its body or as `Authorization: Bearer KEY`."""
        if self.api_key is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        candidates = (given, token.strip() if scheme.lower() == "bearer" else None)
        if not any(self.accepts(candidate) for candidate in candidates if candidate):
            message = "the API key is missing or wrong; send it as api_key or as Authorization: Bearer"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    async def translate(
        self, request: Request, texts: Sequence[str], choice: Choice, options: TranslationOptions, split: bool = True
    ) -> list[TranslatedText]:
        """Translate texts, unless the client of the request, whose body has been read, goes away meanwhile.

        Without `split`, a text is one sentence; too long ones are cut in any case.
        """
        return await while_connected(request, self.answer(texts, choice, options, split))

    async def answer(
        self, texts: Sequence[str], choice: Choice, options: TranslationOptions, split: bool = True
    ) -> list[TranslatedText]:
        """Translate texts as `translate` does, for a client whose connection is not known."""
        model, source, target = choice
        if options.num_beams is None and not options.do_sample:
            # Hypotheses need as many beams.
            options = replace(options, num_beams=max(model.num_beams, options.num_hypotheses))
        self._check(texts, options)
        with self.engine.admission():
            preparation = model.preparation
            layouts = [preparation.split(text, "auto" if split else "never", source) for text in texts]
            if any(map(preparation.may_be_long, layouts)):
                # Only the model's thread may tokenize.
                layouts = await model.run(lambda: list(map(preparation.fit, layouts)))
            sentences = [sentence for layout in layouts for sentence in layout.sentences]
            hypotheses = iter(await model.translate(sentences, options, source, target))
        return [TranslatedText(layout, list(islice(hypotheses, len(layout.sentences)))) for layout in layouts]

    def accepts(self, key: str) -> bool:
        """Whether a key is the one that requests must present."""
        given, wanted = (text.encode(errors="surrogatepass") for text in (key, self.api_key or ""))
        return self.api_key is not None and hmac.compare_digest(given, wanted)

    def check_length(self, texts: Iterable[str], name: str = "text") -> None:
        """Refuse texts that are too long together; an empty one counts too, as it takes time."""
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
                raise FieldError(name, f"{value} is more than the limit of {limit}")


async def while_connected(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of the work; cancel it when the client goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            # Nobody reads it; the status is for the log and the metrics.
            raise HTTPException(499, "the client closed the connection")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
