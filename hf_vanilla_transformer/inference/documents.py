"""Translation of documents, whose structure and inline tags stay."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..documents import Document
from .decoding import Hypothesis


def translate_document(
    translate: Callable[..., Iterable[Sequence[Hypothesis]]], document: Document, **options: Any
) -> str | bytes:
    """Translate a document.

    Args:
        translate: `translate_lines` with a model, its tokenizer and options; called with the texts of the document,
            and `with_alignments` for those with inline tags, which go with their words.
        document: What `open_document` returned.
        **options: Further options of `translate`.

    Returns:
        The translation, text or bytes as the document was.

    Raises:
        ValueError: As `translate_lines`.
    """
    filled: dict[int, str] = {}
    for has_tags in (False, True):
        chosen = {i: each for i, each in enumerate(document.segments) if bool(each.tags) is has_tags}
        texts = [segment.text for segment in chosen.values()]
        translations = translate(texts, with_alignments=has_tags, **options)
        for (i, segment), (best, *_) in zip(chosen.items(), translations, strict=True):
            filled[i] = segment.fill(best.text, best.alignment)
    return document.render(filled[i] for i in range(len(filled)))
