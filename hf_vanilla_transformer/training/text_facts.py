"""Learn the facts about a model's text from the training pairs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.arguments import NONE
from ..data.augmentation import has_placeholders, parse_shares, split_shares
from ..data.batching import token_lengths
from ..data.encoding import PairCounts
from ..data.features import without_features
from ..data.reading import spread
from ..inference.preparation import Preparation
from ..pretrained.alphabet import PLAIN_PUNCTUATION
from ..pretrained.output_limits import EXTRA_OUTPUT_TOKENS
from ..pretrained.text_facts import set_facts, vocabulary_digest, vocabulary_sizes
from ..text.casing import usual_spellings
from ..text.facts import Decision, TextFacts
from ..text.premises import MOST, Evidence, evidence_of, learned_items, noise_faults, rules_of
from ..text.repetition import usual_repeats
from ..text.spelling import MAX_CORRECTED, Lexicon, corrected_share, lexicon_of
from .text_splits import TextSplits, TokenizedSplits, part_numbers

# Pairs of a stream that stand for all.
STREAM_SAMPLE = 100_000

# Pairs in which rules are counted, and sources from which words are counted.
SAMPLE, WORD_SAMPLE = 20_000, 200_000

# Share of the sources in which a typographic mark is frequent enough to be learned.
MARK_SHARE = 0.002

# Maximum number of words whose spelling is checked, and of spellings and items recorded.
MAX_WORDS, MAX_SPELLINGS, MAX_ITEMS = 10_000, 1000, 1000

# Sources of lengths up to this factor apart share the length of their longest target; of this many sources, of the
# second longest.
LENGTH_FACTOR, MANY = 1.1, 200


@dataclass(frozen=True)
class TrainingText:
    """The training pairs without features, for a stream the first ones, as far as facts are learned from them."""

    text: TextSplits

    @cached_property
    def without_repeats(self) -> "TrainingText":
        return TrainingText(self.text.without_repeats)

    @cached_property
    def pairs(self) -> Any:
        train = self.text.train
        if isinstance(train, datasets.Dataset):
            pairs = train.select(range(0, len(train), -(-len(train) // WORD_SAMPLE)))
        else:
            pairs = datasets.Dataset.from_list(list(train.take(STREAM_SAMPLE)))
        return without_features(pairs, self.text.features)

    @cached_property
    def sample(self) -> Any:
        return spread(self.pairs, SAMPLE)

    @cached_property
    def evidence(self) -> Evidence:
        return evidence_of(zip(self.sample["source"][:], self.sample["target"][:], strict=True))

    def sources_by_language(self) -> dict[str, list[str]]:
        """Return sources by language; if there is a single direction, by ""."""
        sources: defaultdict[str, list[str]] = defaultdict(list)
        for part, source in zip(part_numbers(self.pairs), self.pairs["source"][:], strict=True):
            language = self.text.parts[part].source_lang if self.text.has_several_directions else ""
            sources[language or ""].append(source)
        return sources


def supported_noise(augment: str, evidence: Evidence) -> tuple[str, dict[str, str]]:
    """Return the setting `augment`, its default noise reduced to what the pairs support, and why it is reduced."""
    has_default, given = split_shares(augment)
    faults = noise_faults(evidence) if has_default else {}
    faults = {kind: why for kind, why in faults.items() if kind not in given}
    if not faults:
        return augment, {}
    shares = {kind: share for kind, share in parse_shares(augment).items() if kind not in faults}
    return ",".join(f"{kind}={share}" for kind, share in shares.items()) or NONE, faults


def learn_facts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, training: TrainingText, ids: TokenizedSplits
) -> TextFacts:
    """Learn the facts of the training pairs, and save them in a model's generation settings."""
    rules = rules_of(training.evidence, has_placeholders(tokenizer))
    sources = training.sources_by_language()
    lexicons = {language: lexicon_of(texts) for language, texts in sources.items()}
    if rules["typos"].is_on:
        rules["typos"] = _typos_rule(sources, lexicons)
    sizes = vocabulary_sizes(tokenizer)
    source_lengths, target_lengths = _lengths(ids)
    facts = TextFacts(
        rules=rules,
        usual_case=training.evidence.usual_case,
        has_capitals=training.evidence.share("capital") >= MOST,
        marks=_marks(training.sample["source"][:]),
        items=learned_items(training.evidence, has_placeholders(tokenizer))[:MAX_ITEMS],
        source_length=int(source_lengths.max(initial=0)),
        target_lengths=_target_lengths(source_lengths, target_lengths),
        repeats=usual_repeats(training.sample["target"]),
        words={language: _joined(lexicon.words) for language, lexicon in lexicons.items()},
        lookalikes={language: _joined(lexicon.lookalikes) for language, lexicon in lexicons.items()},
        vocabulary_sizes=sizes,
        vocabulary_digest=vocabulary_digest(tokenizer, sizes),
    )
    set_facts(model.generation_config, facts)
    preparation = Preparation(model, tokenizer)
    spellings = {language: _joined(_unusual_spellings(texts, preparation)) for language, texts in sources.items()}
    facts = replace(facts, spellings=spellings)
    set_facts(model.generation_config, facts)
    return facts


def _joined(words: Iterable[str]) -> str:
    return " ".join(sorted(words))


def _typos_rule(sources: Mapping[str, Sequence[str]], lexicons: Mapping[str, Lexicon]) -> Decision:
    """Return the rule for typos: words can be told from typos, and training text itself needs no correction."""
    if not any(lexicon.words for lexicon in lexicons.values()):
        return Decision(False, "the words of the sources are too few, or too similar")
    share = max(corrected_share(texts[:: -(-len(texts) // SAMPLE)]) for texts in sources.values())
    why = f"words of half of the sources change {share:.2%} of those of the other half"
    return Decision(share <= MAX_CORRECTED, why)


def _marks(sources: Sequence[str]) -> str:
    """Return the typographic marks that are not rare in sources, and the plain ones that occur."""
    counts = Counter(mark for source in sources for mark in PLAIN_PUNCTUATION.keys() & source)
    plain = {*"".join(PLAIN_PUNCTUATION.values())} & {*chain.from_iterable(sources)} - {" "}
    return "".join(sorted({mark for mark, number in counts.items() if number >= MARK_SHARE * len(sources)} | plain))


def _unusual_spellings(sources: Sequence[str], preparation: Preparation) -> list[str]:
    """Return words in their usual spelling where preparation of a text would spell them differently."""
    if not preparation.is_cased or preparation.facts.usual_case != "sentence":
        return []
    words = islice(usual_spellings(sources).items(), MAX_WORDS)
    return [*islice((word for folded, word in words if preparation.spell(folded) != word), MAX_SPELLINGS)]


def _lengths(ids: TokenizedSplits) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of sources and targets in tokens, end tokens included."""
    if isinstance(ids.train, datasets.Dataset):
        return token_lengths(ids.train)
    # Leave training's counts alone.
    stream = copy(ids.train)
    stream.counts, stream.resample = PairCounts(limits=stream.counts.limits), None
    rows = [(len(row["input_ids"]), len(row["labels"])) for row in islice(stream, STREAM_SAMPLE)]
    sources, targets = np.array(rows, np.int32).reshape(-1, 2).T
    return sources, targets


def _target_lengths(sources: np.ndarray, targets: np.ndarray) -> list[list[int]]:
    """Group sources of similar length; return the length of the longest source and target of each group, sorted."""
    steps: list[list[int]] = []
    order = np.argsort(sources, kind="stable")
    sources, targets = sources[order], targets[order]
    start = 0
    while start < len(sources):
        longest = int(max(sources[start] + 1, sources[start] * LENGTH_FACTOR))
        stop = int(np.searchsorted(sources, longest, "right"))
        group = np.sort(targets[start:stop])
        # A single pair of many may be wrong.
        steps.append([int(sources[stop - 1]), int(group[-2 if len(group) >= MANY else -1])])
        start = stop
    return steps


def long_targets(ids: TokenizedSplits) -> int:
    """Return how many training targets exceed the paper's output limit, the source's length plus 50 tokens."""
    if not isinstance(ids.train, datasets.Dataset):
        return 0
    sources, targets = _lengths(ids)
    # The limit counts the start token.
    return int((targets + 1 > sources + EXTRA_OUTPUT_TOKENS).sum())
