"""Word alignments: the Pharaoh format, mapping words to tokens, and the error rate.

Words are separated by white space and numbered from 0. "0-0 1-2" links the first source word to the first target word,
and the second one to the third.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

from ..errors import DataError, shorten, unknown_words
from ..files import read_lines
from ..text.protection import Link

if TYPE_CHECKING:
    # Importing it takes seconds, and text alone does not need it.
    from transformers import PreTrainedTokenizerBase

# Enough digits for any sentence.
_LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the start and end offsets of each word of a sentence."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def words_and_ids(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, is_target: bool, max_length: int | None = None
) -> Iterator[tuple[list[list[int]], list[int]]]:
    """Tokenize sentences; yield for each the words that every token overlaps, and the token ids.

    A token of white space or without characters, such as the end token, belongs to no word, nor does a tag of a
    source; each byte of a character belongs to the character's word.
    """
    check_fast(tokenizer)
    if not texts:
        return
    side: dict[str, Any] = {"text_target" if is_target else "text": list(texts)}
    if max_length is not None:
        side.update(truncation=True, max_length=max_length)
    with unknown_words(tokenizer, *(((), texts) if is_target else (texts,))):
        encoded = tokenizer(**side, return_offsets_mapping=True, return_attention_mask=False, verbose=False)
    if not is_target and getattr(tokenizer, "init_kwargs", {}).get("feature_columns"):
        texts = [cast(Any, tokenizer).tokenized_form(text, hide_tags=True) for text in texts]
    for text, offsets, ids in zip(texts, encoded["offset_mapping"], encoded["input_ids"], strict=True):
        spans = word_spans(text)
        starts, ends = [start for start, _ in spans], [end for _, end in spans]
        words = [
            list(range(bisect_right(ends, start), bisect_left(starts, end))) if start < end else []
            for start, end in offsets
        ]
        yield words, ids


def check_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a DataError for a tokenizer without offsets."""
    if not tokenizer.is_fast:
        raise DataError(
            f"alignments need the offsets of tokens, which the slow tokenizer {type(tokenizer).__name__} lacks; "
            "convert the model with `vanilla-transformer convert`"
        )


def format_pharaoh(alignment: Iterable[Link]) -> str:
    """Return "0-0 1-2" for [(0, 0), (1, 2)]."""
    return " ".join(f"{source}-{target}" for source, target in alignment)


def parse_pharaoh(line: str, where: str = "alignment") -> list[Link]:
    """Return [(0, 0), (1, 2)] for "0-0 1-2", and [] for ""; `where` locates the line in errors."""
    links = []
    for text in line.split():
        if not (match := _LINK.fullmatch(text)):
            shown = shorten(repr(text), 40)
            raise DataError(f"{where}: {shown} is not a link; write pairs of source and target word such as 0-0 1-2")
        links.append((int(match[1]), int(match[2])))
    return links


def read_alignments(path: str, pairs: Sequence[tuple[str, str]]) -> Iterator[list[Link]]:
    """Yield the alignment of each sentence pair from a file, plain or .gz; line n aligns pair n."""
    for number, (line, pair) in enumerate(zip_longest(read_lines(path), pairs), start=1):
        if line is None or pair is None:
            has = f"has {number - 1} lines for" if line is None else "has more lines than"
            raise DataError(f"{path} {has} {len(pairs)} pairs; line n must align pair n")
        where = f"{path}, line {number}"
        links = parse_pharaoh(line, where)
        _check_words(links, pair, where)
        yield links


def _check_words(alignment: Iterable[Link], pair: tuple[str, str], where: str) -> None:
    """Raise a DataError if a link refers to a word beyond the end of its sentence."""
    sizes = {side: len(text.split()) for side, text in zip(("source", "target"), pair, strict=True)}
    for link in alignment:
        for number, (side, size) in zip(link, sizes.items(), strict=True):
            if number >= size:
                raise DataError(
                    f"{where}: {link[0]}-{link[1]} links {side} word {number}, but the {side} has {size} words, "
                    "counted from 0; align the same text, split at white space"
                )


def alignment_error_rate(
    alignments: Iterable[Collection[Link]], sure: Iterable[Collection[Link]], possible: Iterable[Collection[Link]]
) -> float:
    """Return the alignment error rate, 1 - (|A & S| + |A & P|) / (|A| + |S|), from 0 to 1. Och and Ney 2003, eq. 22.

    For each pair, A are the links found, S the sure gold links and P the possible ones; S need not be repeated in P.
    """
    matched = total = 0
    for links, must, may in zip(alignments, sure, possible, strict=True):
        own, must = set(links), set(must)
        matched += len(own & must) + len(own & (must | set(may)))
        total += len(own) + len(must)
    if not total:
        raise ValueError("without links the error rate is undefined; pass gold alignments with sure links")
    return 1 - matched / total
