"""LibreTranslate's API, so that its clients work unchanged."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import PurePath
from secrets import token_urlsafe
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, WithJsonSchema
from starlette.datastructures import UploadFile
from transformers.models.whisper.tokenization_whisper import LANGUAGES

from ..documents import KINDS, Document, Segment, kind_of, open_document
from ..documents.segments import unprotect
from ..errors import DataError, one_line
from .detection import AUTO, choose, detect_among
from .engine import TranslationOptions
from .service import FieldError, Service, Text, glossary_of

# Translated documents kept for download.
MAX_FILES = 32
FILE_TYPE = "application/octet-stream"
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


@dataclass(frozen=True)
class File:
    """An uploaded file; not a tuple, which would pass as a list of texts."""

    name: str
    content: bytes


def _one_file(value: Any) -> File:
    if not isinstance(value, File):
        raise ValueError("expected one file, sent as multipart/form-data")
    return value


def _from_form(terms: Any) -> Any:
    """Parse a form's glossary, an object as JSON; an empty field is none."""
    if not isinstance(terms, str):
        return terms
    try:
        return json.loads(terms) if terms else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error


class _KeyedRequest(BaseModel):
    api_key: Text | None = Field(None, description="The server's key, if it has one.")


class _TranslationRequest(_KeyedRequest):
    source: Text = Field(
        description='Source language; "auto": the only one for the target language, or detected if there are several.'
    )
    target: Text = Field(description="Target language.")
    # Not in LibreTranslate's API.
    glossary: Annotated[dict[Text, Text] | None, BeforeValidator(_from_form)] = Field(
        None, description="Source terms and their required translations; in a form, the object as JSON."
    )


class TranslateRequest(_TranslationRequest):
    """One or several texts and their languages."""

    q: Text | list[Text] = Field(description="One or several texts.")
    format: Literal["text", "html"] = Field(
        "text", description="html: markup is kept, and inline tags move with their words."
    )
    alternatives: Annotated[int, Field(ge=0)] = Field(0, description="Number of further translations per text.")


class TranslateFileRequest(_TranslationRequest):
    """A document and its languages."""

    file: Annotated[Any, BeforeValidator(_one_file), WithJsonSchema({"type": "string", "format": "binary"})] = Field(
        description=f"The document: {', '.join(KINDS)}, by file extension."
    )


class TranslateFileResponse(BaseModel):
    translatedFileUrl: str = Field(description="URL of the translation.")  # noqa: N815 - LibreTranslate's


class DetectRequest(_KeyedRequest):
    """A text of unknown language."""

    q: Text = Field(description="A text.")


class DetectedLanguage(BaseModel):
    language: str = Field(description="A source language of the models.")
    confidence: float = Field(description="In percent; 0: not detected, but the only possible language.")


class TranslateResponse(BaseModel):
    translatedText: str | list[str] = Field(description="The translation of each text.")  # noqa: N815 - LibreTranslate's
    alternatives: list[Any] | None = Field(None, description="Further translations of each text.")
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = Field(  # noqa: N815 - LibreTranslate's
        None, description="Source language of each text, if `source` is auto."
    )


class Language(BaseModel):
    code: str = Field(description="Code, as in `source` and `target`.")
    name: str = Field(description="English name.")
    targets: list[str] = Field(description="Codes of the languages it can be translated to.")


def _body_of(kind: type[BaseModel], types: Sequence[str] = ("application/json", *FORMS)) -> dict[str, Any]:
    """Return the OpenAPI schema of a request body, by default JSON or a form."""
    schema = kind.model_json_schema()
    content = {media_type: {"schema": schema} for media_type in types}
    return {"requestBody": {"required": True, "content": content}}


async def _read(request: Request, kind: type[BaseModel]) -> Any:
    """Parse the body of a request, JSON or a form."""
    if request.headers.get("content-type", "").lower().startswith(FORMS):
        async with request.form() as form:
            # A field may be repeated, for several texts.
            lists = {name: [await _content(value) for value in form.getlist(name)] for name in form}
        payload: Any = {name: values[0] if len(values) == 1 else values for name, values in lists.items()}
    else:
        try:
            payload = json.loads(await request.body())
        except (ValueError, RecursionError) as error:
            raise RequestValidationError([{"loc": ("body",), "msg": f"not JSON: {error}"}]) from error
    try:
        return kind.model_validate(payload)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


async def _content(value: str | UploadFile) -> str | File:
    return value if isinstance(value, str) else File(PurePath(value.filename or "").name, await value.read())


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["LibreTranslate"])
    files: OrderedDict[str, File] = OrderedDict()

    @router.post(
        "/translate",
        response_model=TranslateResponse,
        response_model_exclude_none=True,
        openapi_extra=_body_of(TranslateRequest),
    )
    async def translate(request: Request) -> Any:
        """Translate one or several texts."""
        body = await _read(request, TranslateRequest)
        service.check_key(request, body.api_key)
        if (count := 1 + body.alternatives) > (limit := service.limits.max_hypotheses):
            raise FieldError("alternatives", f"{count} translations exceed the limit of {limit}")
        texts = [body.q] if isinstance(body.q, str) else body.q
        service.check_length(texts)
        read = partial(open_document, kind="html", target_lang=body.target) if body.format == "html" else _whole
        documents = [read(text) for text in texts]
        ranked, source, probability = await _translate(service, request, body, documents, count)
        answer: dict[str, list[Any]] = {"translatedText": [best for best, *_ in ranked]}
        if body.alternatives:
            answer["alternatives"] = [others for _, *others in ranked]
        if body.source == AUTO and source:
            answer["detectedLanguage"] = [_detected(source, probability)] * len(texts)
        return answer if isinstance(body.q, list) else {name: values[0] for name, values in answer.items()}

    @router.post(
        "/translate_file",
        response_model=TranslateFileResponse,
        openapi_extra=_body_of(TranslateFileRequest, FORMS[1:]),
    )
    async def translate_file(request: Request) -> Any:
        """Translate a document, whose format is given by its file extension; returns the URL of the translation."""
        body = await _read(request, TranslateFileRequest)
        service.check_key(request, body.api_key)
        name, content = body.file.name, body.file.content
        if (kind := kind_of(name)) is None:
            raise FieldError("file", f"{name!r} has no supported file extension; supported: {', '.join(KINDS)}")
        try:
            document = open_document(content, kind, name=name, target_lang=body.target)
        except DataError as error:
            raise FieldError("file", one_line(error)) from error
        service.check_length([segment.text for segment in document.segments], "document")
        ((translation,),), *_ = await _translate(service, request, body, [document])
        # Unguessable, so that only the requester finds the file.
        path = token_urlsafe(16) + PurePath(name).suffix
        files[path] = File(name, cast(bytes, translation))
        while len(files) > MAX_FILES:
            files.popitem(last=False)
        return {"translatedFileUrl": str(request.url_for("download_file", name=path))}

    @router.get("/download_file/{name}")
    async def download_file(name: str) -> Response:
        """Download a translated document."""
        if name not in files:
            raise HTTPException(404, "no such file; only the most recent ones are kept")
        disposition = f"attachment; filename*=UTF-8''{quote(files[name].name)}"
        return Response(files[name].content, media_type=FILE_TYPE, headers={"Content-Disposition": disposition})

    @router.post("/detect", openapi_extra=_body_of(DetectRequest))
    async def detect(request: Request) -> list[DetectedLanguage]:
        """Detect the language of a text among the source languages of the models."""
        body = await _read(request, DetectRequest)
        service.check_key(request, body.api_key)
        if (detected := await detect_among(service.engine.sources(), [body.q])) is None:
            raise HTTPException(400, "this server cannot detect languages; give `source`")
        return [_detected(*detected)]

    @router.get("/languages")
    async def languages() -> list[Language]:
        """List the languages of the models, except models whose languages are unknown."""
        targets: dict[str, list[str]] = {}
        for model in service.engine.models.values():
            for source, target in model.pairs:
                targets.setdefault(source, []).append(target)
        return [
            Language(code=code, name=LANGUAGES.get(code, code).title(), targets=sorted(codes))
            for code, codes in sorted(targets.items())
        ]

    return router


def _whole(text: str) -> Document:
    """Return a plain text as a document with a single segment."""
    return Document((Segment(text),), lambda filled: unprotect(*filled))


def _detected(language: str, probability: float) -> DetectedLanguage:
    return DetectedLanguage(language=language, confidence=round(100 * probability))


async def _translate(
    service: Service, request: Request, body: _TranslationRequest, documents: Sequence[Document], count: int = 1
) -> tuple[list[list[str | bytes]], str | None, float]:
    """Return the `count` best translations per document, the source language, and its probability if detected.

    Inline tags move with their words.
    """
    segments = [segment for document in documents for segment in document.segments]
    texts = [segment.text for segment in segments]
    choice, probability = await choose(service.engine, body.source, body.target, texts)
    has_tags = [bool(segment.tags) for segment in segments]
    options = TranslationOptions(
        num_hypotheses=count,
        with_alignments=any(has_tags) and choice.model.tokenizer.is_fast,
        glossary=glossary_of(body.glossary),
    )
    translated = iter(await service.translate(request, texts, choice, options, are_aligned=has_tags))
    ranked: list[list[str | bytes]] = []
    for document in documents:
        parts = list(islice(translated, len(document.segments)))
        rows = ([part.joined(rank) for part in parts] for rank in range(count))
        ranked.append([document.fill((part.text, part.alignment) for part in row) for row in rows])
    return ranked, choice.source, probability
