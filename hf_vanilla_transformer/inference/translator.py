"""The way of a sentence: prepared once, searched once, restored once."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.alignments import check_fast
from ..data.features import Features
from ..options import Range, check_choice, check_range
from ..pretrained.languages import DIRECTLY, Direction, choose_pivot, recorded_pivots
from ..pretrained.output_limits import OutputLimits
from ..pretrained.teacher_forcing import position_limit, tightest_limit
from ..text.protection import Link
from ..text.sentences import TextLayout
from .alignment import word_alignments
from .decoding import Decoder, Hypothesis
from .glossary import Glossary
from .preparation import Preparation, Prepared, PreparedText, SplitSentences, is_suspicious

# Warning text for each remark of a hypothesis; "tag" is followed by a space and the tag.
REMARKS = {
    "cut": "had a sentence longer than any in training, which was cut",
    "corrected": "had typos, which were corrected",
    "limit": "ended at the length limit (`max_new_tokens` raises it)",
    "short": "came back suspiciously short",
    "loop": "came back with more repetition than training text has",
    "tag": "had the tag {}, which training did not show",
}

# Takes sentences and the hypotheses of each, and returns them sorted, best first.
Reranker = Callable[[Sequence[str], Sequence[Sequence[Hypothesis]]], list[list[Hypothesis]]]

# Most source tokens in a batch, by default.
MAX_TOKENS = 4096


class Translator:
    """Prepares texts, decodes their sentences, and restores the translations.

    Built once for a model and its settings. The preparation depends only on model, tokenizer and the rules for text,
    so that translators with other search settings may share it.

    ```python
    translator = Translator(*load("my-model"), num_beams=5)
    for text in translator.prepare(["A dog runs. A man sits."]):
        rows = translator.translate(text.sentences)  # decode, then restore
        print(translator.join(text, rows)[0].text)
    ```

    Args:
        model: Any encoder-decoder with `generate()`.
        tokenizer: The tokenizer it was trained with.
        preparation: How texts are prepared; by default by the model's own rules.
        num_hypotheses, max_tokens, max_source_length, with_scores, with_alignments, glossary, reranker,
            split_sentences, pivot: As for `translate_lines`.
        **generation_options: Passed on to `generate()`.

    Raises:
        ValueError: As for `translate_lines`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        preparation: Preparation | None = None,
        *,
        num_hypotheses: int = 1,
        max_tokens: int = MAX_TOKENS,
        max_source_length: int | None = None,
        with_scores: bool = False,
        with_alignments: bool = False,
        glossary: Glossary | None = None,
        reranker: Reranker | None = None,
        split_sentences: SplitSentences = "auto",
        pivot: str | None = None,
        **generation_options: Any,
    ) -> None:
        if with_alignments:
            check_fast(tokenizer)
        self.decoder = Decoder(
            model,
            tokenizer,
            num_hypotheses,
            max_tokens,
            with_scores or reranker is not None,
            generation_options,
            glossary,
        )
        if reranker is not None:
            if Features.of(tokenizer):
                raise ValueError("`reranker` cannot tell the tags of feature columns; leave it out")
            self.decoder.return_all_beams()
        check_range(Range(ge=2), max_source_length=max_source_length)
        check_choice(SplitSentences, split_sentences=split_sentences)
        self.preparation = preparation or Preparation(model, tokenizer)
        if self.preparation.raw and split_sentences == "always":
            raise ValueError("`raw` does not split sentences, but `split_sentences` is always; leave one of them out")
        if reranker is not None or (glossary is not None and glossary.entries):
            if pivot not in (None, DIRECTLY):
                raise ValueError(f"`pivot` {pivot} goes with neither glossary nor reranker; leave it out")
            pivot = DIRECTLY
        self._limits = OutputLimits(model)
        # Sentences of both legs, and those that were truncated.
        self.counts = Counter[str]()
        self._pivot_for = partial(choose_pivot, tokenizer, recorded_pivots(model), pivot)
        self.model, self.tokenizer, self.glossary, self.reranker = model, tokenizer, glossary, reranker
        self.num_hypotheses, self.with_alignments = num_hypotheses, with_alignments
        self.split_sentences = split_sentences
        self.max_source_length = tightest_limit(max_source_length, position_limit(model.config))

    def prepare(
        self,
        texts: Iterable[str | TextLayout],
        directions: Iterable[Direction | None] = repeat(None),
        are_aligned: Iterable[bool] = repeat(True),
    ) -> list[PreparedText]:
        """Return each text as prepared sentences; `texts` and `directions` are those of `Preparation.prepare`.

        A direction without training pairs is prepared for its first leg. `are_aligned` tells which texts need
        alignments, for a translator with alignments.
        """
        chosen = list(texts)
        routes = [_route(direction, self._pivot_for(direction)) for direction in islice(directions, len(chosen))]
        prepared = self.preparation.prepare(
            chosen,
            [direction for direction, _ in routes],
            split=self.split_sentences,
            glossary=self.glossary,
            max_source_length=self.max_source_length,
        )
        flags = [self.with_alignments and is_aligned for is_aligned in islice(are_aligned, len(chosen))]
        return [
            self._with_outputs(text, final_lang, is_aligned)
            for text, (_, final_lang), is_aligned in zip(prepared, routes, flags, strict=True)
        ]

    def _with_outputs(self, text: PreparedText, final_lang: str | None, is_aligned: bool) -> PreparedText:
        """Return a text whose sentences know what their translations must have."""
        sentences = text.sentences if final_lang else self.decoder.with_terms(text.sentences)
        if final_lang or is_aligned:
            sentences = [replace(sentence, final_lang=final_lang, is_aligned=is_aligned) for sentence in sentences]
        return replace(text, sentences=sentences, is_aligned=is_aligned)

    def translate(self, sentences: Sequence[Prepared], bar: tqdm | None = None) -> list[list[Hypothesis]]:
        """Return the translations of prepared sentences, best first; through another language if so prepared."""
        self.counts["sentences"] += len(sentences)
        self.counts["truncated"] += sum(sentence.is_truncated for sentence in sentences)
        outputs = self.decode(sentences, bar)
        if self.reranker is not None:
            outputs = self.reranker([sentence.input_text for sentence in sentences], outputs)
        num_kept = (1 if sentence.final_lang else self.num_hypotheses for sentence in sentences)
        rows = self.restore(sentences, [row[:number] for row, number in zip(outputs, num_kept, strict=True)])
        if halfway := [i for i, sentence in enumerate(sentences) if sentence.final_lang]:
            firsts = [rows[i][0] for i in halfway]
            for i, row in zip(halfway, self._second_leg([sentences[i] for i in halfway], firsts, bar), strict=True):
                rows[i] = row
        return rows

    def _second_leg(
        self, sentences: Sequence[Prepared], firsts: Sequence[Hypothesis], bar: tqdm | None
    ) -> Iterator[list[Hypothesis]]:
        """Yield the translations of sentences from those of their first leg; scores are those of the second."""
        legs: list[Any] = [(sentence.target_lang, sentence.final_lang) for sentence in sentences]
        texts = self.prepare([first.text for first in firsts], legs, [sentence.is_aligned for sentence in sentences])
        parts = [part for text in texts for part in text.sentences]
        if bar is not None and bar.total is not None:
            bar.total += len(parts)
        rows = iter(self.translate(parts, bar))
        for text, first, (pivot, _) in zip(texts, firsts, legs, strict=True):
            hypotheses = self.join(text, islice(rows, len(text.sentences)))
            yield [_after(first, hypothesis, pivot) for hypothesis in hypotheses]

    def join(self, text: PreparedText, rows: Iterable[Sequence[Hypothesis]]) -> list[Hypothesis]:
        """Return the translations of a text, given those of its sentences."""
        blank = Hypothesis("", 0.0 if self.decoder.with_scores else None, [] if text.is_aligned else None)
        return join(text.layout, list(rows)) or [blank] * self.num_hypotheses

    def decode(self, sentences: Sequence[Prepared], bar: tqdm | None = None) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence as the model writes them, best first."""
        return self.decoder.decode(sentences, bar)

    def restore(
        self, sentences: Sequence[Prepared], hypotheses: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Hypothesis]]:
        """Turn what the model wrote for prepared sentences into translations of the original ones.

        Other sentences than those with `is_aligned` are aligned only to place an item.
        """
        pairs = [
            (sentence, hypothesis) for sentence, row in zip(sentences, hypotheses, strict=True) for hypothesis in row
        ]
        links = self._links(pairs)
        rows = iter([self._restored(*pair, links.get(i, ())) for i, pair in enumerate(pairs)])
        return [list(islice(rows, len(row))) for row in hypotheses]

    def _links(self, pairs: Sequence[tuple[Prepared, Hypothesis]]) -> dict[int, list[Link]]:
        """Return word links by index for the pairs that need them."""
        chosen = {
            i: pair
            for i, pair in enumerate(pairs)
            if pair[0].is_aligned or (self.tokenizer.is_fast and pair[0].needs_links(pair[1].text))
        }
        alignments = (
            word_alignments(
                self.model,
                self.tokenizer,
                [sentence.input_text for sentence, _ in chosen.values()],
                [hypothesis.text for _, hypothesis in chosen.values()],
                max_tokens=self.decoder.max_tokens,
                max_source_length=self.max_source_length,
                directions=[sentence.direction for sentence, _ in chosen.values()],
            )
            if chosen
            else []
        )
        return dict(zip(chosen, alignments, strict=True))

    def _restored(self, sentence: Prepared, hypothesis: Hypothesis, links: Sequence[Link]) -> Hypothesis:
        text, alignment = sentence.restore(hypothesis.text, links)
        remarks = {*(hypothesis.remarks or ()), *(["corrected"] if "typos" in sentence.rules else ())}
        remarks |= {"short"} if is_suspicious(sentence.source, text) else set()
        remarks |= {"loop"} if self._limits.is_loop(sentence.source, text) else set()
        remarks |= {f"tag {tag}" for tag in sentence.unknown_tags}
        return replace(
            hypothesis,
            text=text,
            alignment=alignment if sentence.is_aligned else None,
            remarks=sorted_remarks(remarks) or None,
        )


def _route(direction: Direction | None, pivot: str | None) -> tuple[Direction | None, str | None]:
    """Return the direction of the first leg, and the language to go on to; None if there is a single leg."""
    return ((direction[0], pivot), direction[1]) if direction and pivot else (direction, None)


def _after(first: Hypothesis, second: Hypothesis, pivot: str) -> Hypothesis:
    """Return a translation of a first leg's translation as one of its source."""
    alignment = second.alignment
    if alignment is not None:
        alignment = composed(first.alignment or [], alignment)
    remarks = {*(first.remarks or ()), *(second.remarks or ())}
    return replace(second, pivot=pivot, alignment=alignment, remarks=sorted_remarks(remarks) or None)


def composed(first: Sequence[Link], second: Sequence[Link]) -> list[Link]:
    """Return the links between words that are linked to the same word in between."""
    return sorted({(source, target) for source, middle in first for start, target in second if start == middle})


def join(layout: TextLayout, hypotheses: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
    """Return the hypotheses of a text, joining those of its sentences rank by rank."""
    return [_joined(layout, rank) for rank in zip(*hypotheses, strict=True)]


def _joined(layout: TextLayout, hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    texts = [hypothesis.text for hypothesis in hypotheses]
    scores = [hypothesis.score for hypothesis in hypotheses if hypothesis.score is not None]
    # Sentences that were not translated have a score of 0.
    counted = list(filter(None, scores)) or scores[:1]
    remarks = {remark for hypothesis in hypotheses for remark in hypothesis.remarks or ()}
    if layout.is_cut:
        remarks.add("cut")
    alignment: list[Link] | None = None
    if hypotheses[0].alignment is not None:
        alignment, source, target = [], _WordCount(), _WordCount()
        gaps = zip(layout.gaps, layout.target_gaps(texts), strict=True)
        for (gap, target_gap), sentence, hypothesis in zip(gaps, layout.sentences, hypotheses, strict=False):
            firsts = source.add(gap, sentence), target.add(target_gap, hypothesis.text)
            alignment += [(firsts[0] + i, firsts[1] + k) for i, k in hypothesis.alignment or ()]
    return Hypothesis(
        layout.fill(texts),
        sum(counted) / len(counted) if counted else None,
        alignment,
        sorted_remarks(remarks) or None,
        next((hypothesis.pivot for hypothesis in hypotheses if hypothesis.pivot), None),
    )


def sorted_remarks(remarks: Iterable[str]) -> list[str]:
    order = [*REMARKS]
    return sorted(remarks, key=lambda remark: (order.index(remark.partition(" ")[0]), remark))


def remark_text(remark: str) -> str:
    """Return the warning text for a remark."""
    kind, _, name = remark.partition(" ")
    return REMARKS[kind].format(name)


class _WordCount:
    """Counts the words of a text as it is joined from pieces."""

    def __init__(self) -> None:
        self._count, self._is_open = 0, False

    def add(self, gap: str, piece: str) -> int:
        """Append a gap (white space and bullets) and a piece; return the index of the piece's first word."""
        goes_on = self._is_open and not gap and not piece[:1].isspace()
        first = self._count + len(gap.split()) - goes_on
        self._count = first + len(piece.split()) if piece else self._count
        self._is_open = not piece[-1].isspace() if piece else self._is_open and not gap
        return first
