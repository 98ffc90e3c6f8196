"""Word alignments: their Pharaoh text, the tokens of words, and the error rate.

Words are separated by white space and numbered from 0. "0-0 1-2" links the first source word to the first target word,
and the second one to the third.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from ..errors import DataError, shorten, unknown_words
from ..files import read_lines

if TYPE_CHECKING:
    # Takes seconds, and text needs none of it.
    from transformers import PreTrainedTokenizerBase

Link = tuple[int, int]
"""Numbers of a source word and a target word."""

# Digits enough for any sentence.
_LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return where the words of a sentence begin and end."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def words_and_ids(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, is_target: bool, max_length: int | None = None
) -> Iterator[tuple[list[list[int]], list[int]]]:
    """Tokenize sentences; yield the numbers of the words that each token has characters of, and the ids.

    A token of white space or without characters, such as the end token, belongs to no word; each byte of a character
    to the character's word.
    """
    check_fast(tokenizer)
    if not texts:
        return
    side: dict[str, Any] = {"text_target" if is_target else "text": list(texts)}
    if max_length is not None:
        side.update(truncation=True, max_length=max_length)
    with unknown_words(tokenizer, *(((), texts) if is_target else (texts,))):
        encoded = tokenizer(**side, return_offsets_mapping=True, return_attention_mask=False, verbose=False)
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
            f"alignments need a tokenizer that tells where tokens begin and end, but {type(tokenizer).__name__} is "
            "a slow one; convert the model with `vanilla-transformer convert`"
        )


def format_pharaoh(alignment: Iterable[Link]) -> str:
    """Return "0-0 1-2" for [(0, 0), (1, 2)]."""
    return " ".join(f"{source}-{target}" for source, target in alignment)


def parse_pharaoh(line: str, where: str = "alignment") -> list[Link]:
    """Return [(0, 0), (1, 2)] for "0-0 1-2", and [] for ""; errors call the line `where`."""
    links = []
    for text in line.split():
        if not (match := _LINK.fullmatch(text)):
            shown = shorten(repr(text), 40)
            raise DataError(f"{where}: {shown} is no link; write pairs of source and target word such as 0-0 1-2")
        links.append((int(match[1]), int(match[2])))
    return links


def read_alignments(path: str, pairs: Sequence[tuple[str, str]]) -> Iterator[list[Link]]:
    """Yield the alignments that a file, plain or .gz, has for pairs of sentences, line n for pair n."""
    for number, (line, pair) in enumerate(zip_longest(read_lines(path), pairs), start=1):
        if line is None or pair is None:
            has = f"has {number - 1} lines for" if line is None else "has more lines than"
            raise DataError(f"{path} {has} {len(pairs)} pairs; line n must align pair n")
        where = f"{path}, line {number}"
        links = parse_pharaoh(line, where)
        _check_words(links, pair, where)
        yield links


def _check_words(alignment: Iterable[Link], pair: tuple[str, str], where: str) -> None:
    """Raise a DataError if a link names a word that a sentence lacks."""
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

    A are the links of each pair, S gold links that must be found, P those that may be; P has S without repeating them.
    """
    found = total = 0
    for links, must, may in zip(alignments, sure, possible, strict=True):
        own, must = set(links), set(must)
        found += len(own & must) + len(own & (must | set(may)))
        total += len(own) + len(must)
    if not total:
        raise ValueError("there are no links, so there is no error rate; pass gold alignments with sure links")
    return 1 - found / total
