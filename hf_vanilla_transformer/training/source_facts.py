"""Facts about a model's training sources that translation needs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import islice
from typing import Any

import datasets
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.batching import token_lengths
from ..data.encoding import PairCounts
from ..data.reading import PART_COLUMN
from ..inference.preparation import PLAIN_PUNCTUATION, Preparation
from ..text.casing import Case, case_of, usual_spellings
from ..text.sentences import split_sentences
from ..text.spelling import lexicon_of
from .text_splits import TextSplits, TokenizedSplits, part_numbers

# Pairs of a stream whose longest source counts as the longest of all.
STREAM_SAMPLE = 100_000

# Number of sources sampled, and of those split into sentences, which takes longer.
SAMPLE, SPLIT_SAMPLE = 20_000, 2000

# Minimum shares of sources with capitals or paragraphs to be common, and numbers or typographic marks to be learned.
COMMON_SHARE, NUMBER_SHARE, MARK_SHARE = 0.2, 0.05, 0.002

# Number of sources from which words are counted.
WORD_SAMPLE = 200_000

# Maximum number of words whose spelling is checked, and of spellings recorded.
MAX_WORDS, MAX_SPELLINGS = 10_000, 1000


def set_source_facts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: TextSplits, ids: TokenizedSplits
) -> None:
    """Record facts about the training sources, for a stream its first ones, in a model's generation settings.

    training_source_length: Maximum length in tokens, end token included.
    training_paragraphs: Whether many contain several sentences.
    training_capitals: Whether most begin with a capital.
    training_upper_case: Whether many are all in capitals.
    training_numbers: Whether at least one in twenty has a digit.
    training_marks: Typographic marks that are not rare.
    training_spellings: Frequent words whose usual case differs from what the vocabulary suggests.
    training_words: Frequent words, to correct typos.
    training_lookalikes: Rarer words that look like typos of them.

    The last three are dictionaries by source language if there are several directions.
    """
    length, sample, many = _read(text, ids)
    sources = [row["source"] for row in sample]
    split = sample[:: -(-len(sample) // SPLIT_SAMPLE)]
    paragraphs = [len(split_sentences(row["source"], text.part_of(row).source_lang).sentences) > 1 for row in split]
    marks = Counter(mark for source in sources for mark in PLAIN_PUNCTUATION.keys() & source)
    settings: Any = model.generation_config
    settings.training_source_length = length
    settings.training_paragraphs = _share(paragraphs) >= COMMON_SHARE
    settings.training_capitals = _share([source[:1].isupper() for source in sources]) >= 0.5
    settings.training_upper_case = _share([case_of(source) is Case.UPPER for source in sources]) >= COMMON_SHARE
    settings.training_numbers = _share([any(map(str.isdigit, source)) for source in sources]) >= NUMBER_SHARE
    settings.training_marks = "".join(sorted(mark for mark in marks if marks[mark] >= MARK_SHARE * len(sources)))
    lexicons = {language: lexicon_of(texts) for language, texts in _by_language(text, many).items()}
    recorded = partial(_recorded, by_language=text.has_several_directions)
    settings.training_words = recorded({language: lexicon.words for language, lexicon in lexicons.items()})
    settings.training_lookalikes = recorded({language: lexicon.lookalikes for language, lexicon in lexicons.items()})
    settings.training_spellings = None
    preparation = Preparation(model, tokenizer)
    located = ((row.get(PART_COLUMN, 0), row["source"]) for row in sample)
    settings.training_spellings = recorded(
        {language: _unusual_spellings(texts, preparation) for language, texts in _by_language(text, located).items()}
    )
    # Marked as coming from the configuration, settings lose names that transformers does not know.
    settings._from_model_config = False


def _read(text: TextSplits, ids: TokenizedSplits) -> tuple[int, list[Any], Iterable[tuple[int, str]]]:
    """Return the length of the longest source in tokens, some pairs, and more sources, with their part numbers."""
    if isinstance(ids.train, datasets.Dataset):
        size = len(text.train)
        pairs, more = (text.train.select(range(0, size, -(-size // most))) for most in (SAMPLE, WORD_SAMPLE))
        words = zip(part_numbers(more), more["source"][:], strict=True)
        return int(token_lengths(ids.train)[0].max()), list(pairs), words
    # Leave training's counts alone.
    stream = copy(ids.train)
    stream.counts, stream.resample = PairCounts(limits=stream.counts.limits), None
    length = max((len(row["input_ids"]) for row in islice(stream, STREAM_SAMPLE)), default=0)
    pairs = list(text.train.take(STREAM_SAMPLE))
    return length, pairs[:SAMPLE], [(pair.get(PART_COLUMN, 0), pair["source"]) for pair in pairs]


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found)


def _by_language(text: TextSplits, sources: Iterable[tuple[int, str]]) -> dict[str | None, list[str]]:
    """Return sources, given with their part numbers, by language."""
    found: defaultdict[str | None, list[str]] = defaultdict(list)
    for part, source in sources:
        found[text.parts[part].source_lang].append(source)
    return found


def _recorded(words: Mapping[str | None, Iterable[str]], by_language: bool) -> str | dict[str | None, str]:
    """Return the words of each language as a string; without `by_language`, of the only language."""
    texts = {language: " ".join(sorted(each)) for language, each in words.items()}
    return texts if by_language else " ".join(texts.values())


def _unusual_spellings(sources: Sequence[str], preparation: Preparation) -> list[str]:
    """Return words in their usual spelling where preparation of a text would spell them differently."""
    if not preparation.is_cased:
        return []
    words = islice(usual_spellings(sources).items(), MAX_WORDS)
    return [*islice((word for folded, word in words if preparation.spell(folded) != word), MAX_SPELLINGS)]
