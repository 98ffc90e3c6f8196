"""`POST /v1/translations`: everything that a model can tell about a translation."""

from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from ..errors import one_line
from ..inference.glossary import Glossary
from .engine import TranslationOptions
from .service import FieldError, Service, Text, TranslatedText, enough_beams

# Python's own numbers have no bound; those of a search are 64 bits wide.
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]


EXAMPLE: Any = {"text": "A dog runs.", "source": "en", "target": "es", "num_hypotheses": 2, "scores": True}


class TranslationRequest(BaseModel):
    """Texts, and how to translate them."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [EXAMPLE]})

    text: Text | list[Text] = Field(description="A text, or several.")
    source: Text | None = Field(None, description="Source language; may be left out where one model or pair remains.")
    target: Text | None = Field(None, description="Target language, likewise.")
    model: Text | None = Field(None, description="Name of a model, instead of languages.")
    split_sentences: bool = Field(True, description="Cut each text into sentences; false: it is a single one.")
    num_hypotheses: Count = Field(1, description="Translations of each sentence, best first.")
    num_beams: Count | None = Field(
        None, description="Beams; 1: greedy. Default: the model's, or more if `num_hypotheses` is."
    )
    length_penalty: float | None = Field(
        None, ge=-5, le=5, allow_inf_nan=False, description="Above 0 favours long translations. Default: the model's."
    )
    do_sample: bool = Field(False, description="Draw tokens at random.")
    temperature: float | None = Field(
        None, ge=0.01, le=100, allow_inf_nan=False, description="Of sampling; below 1 favours likely tokens."
    )
    top_k: Count | None = Field(None, description="Sample from this many tokens.")
    top_p: float | None = Field(None, gt=0, le=1, description="Sample from the likeliest tokens of this probability.")
    max_new_tokens: Count | None = Field(
        None, description="Most tokens of a translated sentence. Default: 50 more than its source has."
    )
    scores: bool = Field(False, description="Give the score of each hypothesis.")
    alignments: bool = Field(False, description="Give the word alignment of each hypothesis.")
    glossary: dict[Text, Text] | None = Field(None, description="Terms and the translations that they must get.")

    def options(self) -> TranslationOptions:
        """Return how to translate."""
        names = {"num_beams", "num_hypotheses", "length_penalty", "do_sample", "max_new_tokens"}
        if self.do_sample:
            names |= {"temperature", "top_k", "top_p"}
        return TranslationOptions(
            **self.model_dump(include=names),
            with_scores=self.scores,
            with_alignments=self.alignments,
            glossary=_glossary(self.glossary),
        )


def _glossary(translations: dict[str, str] | None) -> Glossary | None:
    try:
        return Glossary.of(translations) if translations else None
    except ValueError as error:
        raise FieldError("glossary", one_line(error)) from error


class HypothesisResponse(BaseModel):
    text: str = Field(description="A translation of the sentence.")
    score: float | None = Field(
        None,
        description="Log-probability in nats / number of tokens ** length penalty.",
    )
    alignment: list[tuple[int, int]] | None = Field(
        None,
        description="Pairs of a word of the sentence and a word of its translation, counted from 0; white space "
        "separates words.",
    )


class SentenceResponse(BaseModel):
    source: str = Field(description="The sentence.")
    hypotheses: list[HypothesisResponse] = Field(description="Its translations, best first.")


class TextResponse(BaseModel):
    text: str = Field(description="The best translation, with the spaces and line ends of the text.")
    sentences: list[SentenceResponse] = Field(description="The sentences of the text.")


class TranslationResponse(BaseModel):
    model: str = Field(description="Name of the model.")
    translations: list[TextResponse] = Field(description="One for each text, in order.")


def routes(service: Service) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1", tags=["Translation"])

    @router.post("/translations", response_model=TranslationResponse, response_model_exclude_none=True)
    async def translations(body: TranslationRequest, request: Request) -> Any:
        """Translate texts, with several hypotheses, scores and alignments."""
        service.check_key(request)
        choice = service.engine.choose(body.source, body.target, body.model)
        texts = [body.text] if isinstance(body.text, str) else body.text
        options = enough_beams(choice.model, body.options())
        translated = await service.translate(request, texts, choice, options, body.split_sentences)
        return TranslationResponse(model=choice.model.name, translations=[_text_response(each) for each in translated])

    return router


def _text_response(translated: TranslatedText) -> TextResponse:
    rows = zip(translated.layout.sentences, translated.hypotheses, strict=True)
    return TextResponse(
        text=translated.text(),
        sentences=[
            SentenceResponse(source=source, hypotheses=[HypothesisResponse(**vars(each)) for each in hypotheses])
            for source, hypotheses in rows
        ],
    )


__all__ = ["routes"]
