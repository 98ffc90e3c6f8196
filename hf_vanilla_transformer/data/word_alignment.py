"""Statistical word alignment of a parallel corpus.

IBM model 2 with a prior that favours the diagonal, as in "A Simple, Fast, and Effective Reparameterization of IBM
Model 2" (Dyer, Chahuneau and Smith 2013): expectation maximization in both directions, then intersection of the links.
"""

import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm.auto import tqdm

from ..text.protection import Link

ITERATIONS = 5

# The probability that a word has no counterpart, and the Dirichlet prior of a word's translations, which keeps rare
# words from explaining everything, are the paper's. The tension toward the diagonal is fixed instead of estimated: on
# the built-in corpus the paper's estimate is 10, with which 98.1 % of the links are right, against 99.1 % with 4 and
# 99.5 % with 2.
NULL_PROBABILITY = 0.08
CONCENTRATION = 0.01
TENSION = 2.0

# Maximum pairs to estimate probabilities from, and pairs to process at once, in a few hundred megabytes of memory.
MAX_ESTIMATION_PAIRS = 200_000
CHUNK = 5_000
# Longer sides are not aligned.
MAX_WORDS = 1_000
# Probability of a translation unseen in estimation.
UNSEEN = 1e-9

_PUNCTUATION = string.punctuation + "¡¿«»„“”‘’…–—"
NULL = 0
# Word ids, in text order.
Sentence = np.ndarray


def align_corpus(sources: Sequence[str], targets: Sequence[str], *, show_progress: bool = False) -> list[list[Link]]:
    """Align the words of each pair: links found in both directions, in the order of the target words.

    Precision is favoured over recall. A pair with more than `MAX_WORDS` on a side gets no links, since time and memory
    grow with the product of both lengths.
    """
    sides = _numbered(sources), _numbered(targets)
    passes = 2 * (ITERATIONS + 1)
    with tqdm(total=passes, desc="Aligning words", unit=" passes", disable=not show_progress) as bar:
        forward, backward = _align_one_way(*sides, bar), _align_one_way(*sides[::-1], bar)
    return [
        [(int(i), j) for j, i in enumerate(ahead) if i >= 0 and back[i] == j]
        for ahead, back in zip(forward, backward, strict=True)
    ]


def _numbered(sentences: Iterable[str]) -> list[Sentence]:
    """Map words to ids from 1, ignoring case and adjacent punctuation."""
    numbers: dict[str, int] = {}

    def number(word: str) -> int:
        return numbers.setdefault(word.strip(_PUNCTUATION).lower() or word, len(numbers) + 1)

    return [np.array([*map(number, sentence.split())], dtype=np.int64) for sentence in sentences]


@dataclass(frozen=True)
class _Candidates:
    """All candidate links of some pairs: for each target word, NULL and every source word."""

    # Ids of source and target word of each candidate, combined into one number.
    keys: np.ndarray
    # Start and number of the candidates of each target word.
    starts: np.ndarray
    sizes: np.ndarray
    # |i / m - j / n| of each; meaningless for NULL.
    distances: np.ndarray
    is_null: np.ndarray

    @classmethod
    def of(cls, sources: Sequence[Sentence], targets: Sequence[Sentence], num_targets: int) -> "_Candidates":
        source_lengths, target_lengths = (np.array([len(ids) for ids in side]) for side in (sources, targets))
        words = np.concatenate([np.concatenate([[NULL], source]) for source in sources])
        firsts = np.cumsum(source_lengths + 1) - source_lengths - 1
        # By target word
        sizes = np.repeat(source_lengths + 1, target_lengths)
        starts = np.cumsum(sizes) - sizes
        ends = np.repeat(np.cumsum(target_lengths), target_lengths)
        lengths = np.repeat(target_lengths, target_lengths)
        target_places = (np.arange(len(sizes)) - ends + lengths + 1) / lengths
        # By candidate
        places = np.arange(sizes.sum()) - np.repeat(starts, sizes)
        indices = np.repeat(np.repeat(firsts, target_lengths), sizes) + places
        keys = words[indices] * (num_targets + 1) + np.repeat(np.concatenate(targets), sizes)
        distances = np.abs(places / np.maximum(np.repeat(sizes - 1, sizes), 1) - np.repeat(target_places, sizes))
        return cls(keys, starts, sizes, distances.astype(np.float32), places == NULL)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sum over the candidates of each target word."""
        return np.add.reduceat(values, self.starts)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Repeat the value of each target word for its candidates."""
        return np.repeat(values, self.sizes)

    def prior(self) -> np.ndarray:
        """Return the prior probability of each candidate from its position, including NULL."""
        weights = np.where(self.is_null, 0, np.exp(-TENSION * self.distances))
        totals = np.maximum(self.sums(weights), np.finfo(np.float32).tiny)
        return np.where(self.is_null, NULL_PROBABILITY, (1 - NULL_PROBABILITY) * weights / self.spread(totals))


def _align_one_way(sources: Sequence[Sentence], targets: Sequence[Sentence], bar: tqdm) -> list[np.ndarray]:
    """Return for each pair the source position of every target word, -1 for none."""
    num_targets = max((int(target.max()) for target in targets if len(target)), default=0)

    def chunks(step: int) -> Iterator[tuple[list[int], _Candidates]]:
        sides = sources, targets
        rows = [i for i in range(0, len(sources), step) if all(0 < len(side[i]) <= MAX_WORDS for side in sides)]
        for first in range(0, len(rows), CHUNK):
            part = rows[first : first + CHUNK]
            yield part, _Candidates.of([sources[i] for i in part], [targets[i] for i in part], num_targets)

    sample = [candidates for _, candidates in chunks(1 + len(sources) // MAX_ESTIMATION_PAIRS)]
    model = _AlignmentModel.of(sample, num_targets, bar)
    positions = [np.full(len(target), -1) for target in targets]
    for rows, candidates in chunks(1):
        best = model.best(candidates)
        edges = np.cumsum([len(targets[i]) for i in rows])[:-1]
        for i, row in zip(rows, np.split(best, edges), strict=True):
            positions[i] = row
    bar.update()
    return positions


@dataclass
class _AlignmentModel:
    """Translation probabilities in one direction."""

    # Ids of source and target word of each translation seen, as in `_Candidates.keys`; sorted.
    keys: np.ndarray
    # p(target word | source word) of each translation.
    probabilities: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[_Candidates], num_targets: int, bar: tqdm) -> "_AlignmentModel":
        keys = np.unique(np.concatenate([np.unique(part.keys) for part in parts] or [np.empty(0, np.int64)]))
        model = cls(keys, np.ones(len(keys)))
        # Index of each candidate's translation
        indices = [np.searchsorted(keys, part.keys).astype(np.int32) for part in parts]
        _, owners = np.unique(keys // (num_targets + 1), return_inverse=True)
        for _ in range(ITERATIONS):
            model._step(parts, indices, owners)
            bar.update()
        return model

    def _step(self, parts: Sequence[_Candidates], indices: Sequence[np.ndarray], owners: np.ndarray) -> None:
        counts = np.zeros(len(self.keys))
        for part, index in zip(parts, indices, strict=True):
            posterior = self.probabilities[index] * part.prior()
            posterior /= part.spread(part.sums(posterior))
            counts += np.bincount(index, posterior, len(counts))
        self.probabilities = _posterior_mean(counts, owners)

    def best(self, candidates: _Candidates) -> np.ndarray:
        """Return for each target word the most likely source position, -1 for none."""
        index = np.minimum(np.searchsorted(self.keys, candidates.keys), len(self.keys) - 1)
        known = self.keys[index] == candidates.keys
        scores = np.where(known, self.probabilities[index], UNSEEN) * candidates.prior()
        is_best = scores == candidates.spread(np.maximum.reduceat(scores, candidates.starts))
        # The first of equal scores
        places = np.arange(len(scores)) - candidates.spread(candidates.starts)
        return np.minimum.reduceat(np.where(is_best, places, len(scores)), candidates.starts) - 1


def _posterior_mean(counts: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Return the posterior geometric mean of each translation's probability, under a sparse Dirichlet prior."""
    own = counts + CONCENTRATION
    totals = np.bincount(owners, own)[owners]
    logs = torch.digamma(torch.from_numpy(np.stack([own, totals]))).numpy()
    return np.exp(logs[0] - logs[1])
