"""`POST /v1/translations`: translations with hypotheses, scores and alignments."""

from dataclasses import fields
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass as request_dataclass

from ..inference.decoding import Hypothesis
from ..options import NumBeams, SearchOptions
from .detection import choose
from .engine import TranslatedText, TranslationOptions
from .service import Service, Text, glossary_of

EXAMPLE: Any = {"text": "A dog runs.", "source": "en", "target": "es", "num_hypotheses": 2, "scores": True}
CONFIG = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]})


@request_dataclass(config=CONFIG, frozen=True, kw_only=True)
class TranslationRequest(SearchOptions):
    """Texts and how to translate them."""

    text: Text | list[Text] = Field(description="One or several texts.")
    source: Text | None = Field(
        None, description='Source language; optional if the rest determines it; "auto": detect it.'
    )
    target: Text | None = Field(None, description="Target language; optional if the rest determines it.")
    model: Text | None = Field(None, description="Name of a model, with or instead of languages.")
    num_beams: NumBeams | None = Field(
        None, description="Beams; 1: greedy. Default: the model's setting, at least `num_hypotheses`."
    )
    split_sentences: bool = Field(True, description="Split texts into sentences; false: each text is one sentence.")
    scores: bool = Field(False, description="Return the score of each hypothesis.")
    alignments: bool = Field(False, description="Return the word alignment of each hypothesis.")
    glossary: dict[Text, Text] | None = Field(None, description="Source terms and their required translations.")

    def options(self) -> TranslationOptions:
        """Return the translation options."""
        sampling = set() if self.do_sample else {"temperature", "top_k", "top_p"}
        search = {
            field.name: getattr(self, field.name) for field in fields(SearchOptions) if field.name not in sampling
        }
        outputs = {"with_scores": self.scores, "with_alignments": self.alignments}
        return TranslationOptions(**search, **outputs, glossary=glossary_of(self.glossary))


class HypothesisResponse(BaseModel):
    text: str = Field(description="A translation of the sentence.")
    score: float | None = Field(None, description="Log-probability in nats / number of tokens ** length penalty.")
    alignment: list[tuple[int, int]] | None = Field(
        None,
        description="Pairs of source and target indices of whitespace-separated words, counted from 0.",
    )


class SentenceResponse(BaseModel):
    source: str = Field(description="The sentence.")
    hypotheses: list[HypothesisResponse] = Field(description="Its translations, best first.")


class TextResponse(BaseModel):
    text: str = Field(description="The best translation, with the whitespace of the text.")
    sentences: list[SentenceResponse] = Field(description="The sentences of the text.")
    remarks: list[str] | None = Field(
        None,
        description="cut: a sentence was longer than any in training and was translated in pieces; corrected: typos "
        "were corrected; limit: a translation ended at the length limit; short: one is suspiciously short; loop: one "
        "repeats itself more than training text; tag and a space: that tag was unknown.",
    )
    pivot: str | None = Field(
        None, description="Language that the translation went through, if training had no pairs of the direction."
    )


class TranslationResponse(BaseModel):
    model: str = Field(description="Name of the model.")
    source: str | None = Field(None, description="Source language, if known.")
    translations: list[TextResponse] = Field(description="One for each text, in order.")


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["Translation"])

    @router.post("/translations", response_model=TranslationResponse, response_model_exclude_none=True)
    async def translations(body: TranslationRequest, request: Request) -> Any:
        """Translate texts, with optional hypotheses, scores and alignments."""
        service.check_key(request)
        texts = [body.text] if isinstance(body.text, str) else body.text
        service.check_length(texts)
        choice, _ = await choose(service.engine, body.source, body.target, texts, body.model)
        translated = await service.translate(request, texts, choice, body.options(), split=body.split_sentences)
        return TranslationResponse(
            model=choice.model.name, source=choice.source, translations=[_text_response(text) for text in translated]
        )

    return router


def _text_response(translated: TranslatedText) -> TextResponse:
    best = translated.joined()
    rows = zip(translated.text.layout.sentences, translated.hypotheses, strict=True)
    return TextResponse(
        text=best.text,
        remarks=best.remarks,
        pivot=best.pivot,
        sentences=[SentenceResponse(source=source, hypotheses=list(map(_response, row))) for source, row in rows],
    )


def _response(hypothesis: Hypothesis) -> HypothesisResponse:
    return HypothesisResponse(**vars(hypothesis))
