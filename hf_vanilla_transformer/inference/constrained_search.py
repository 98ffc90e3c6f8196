"""Beam search for translations that contain required terms.

As in dynamic beam allocation (Post and Vilar, 2018), candidates are the best continuations of each hypothesis plus
those that advance a term, whatever their scores. One candidate dominates another if it has a better score and needs
no more tokens to complete its terms. The beams are the candidates dominated by the fewest others. While all need
equally many tokens, this is plain beam search; otherwise the best of those that have already paid for a term survive
too.

A hypothesis may end only with all of its terms: one for each occurrence in the source, without overlap, and as whole
words (after "gato", no token may make it "gatos"). Terms may use tokens that other settings forbid. Where the length
bound leaves room only for missing terms, nothing else may follow. Scores are those of beam search.

Shapes: B sentences, k beams, N = B * k rows, c candidates of a row or sentence, T target length, V target vocabulary.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..search.beams import MASKED_SCORE, Beams, blockwise_topk, end_tokens, search
from .glossary import GlossaryError, in_word

# Text before a term, on which its tokens depend: a space, nothing, an opening bracket. The first must succeed.
CONTEXTS = ("a ", "", "(")

# Size of the cache of tokenized terms.
MAX_PHRASES = 100_000

# Most readings of a hypothesis to follow; if terms contain each other, there are exponentially many.
MAX_READINGS = 16


@dataclass(frozen=True)
class Phrase:
    """A tokenized term."""

    # Alternative tokenizations; the first is for a term after a space, and so can follow anything.
    variants: tuple[tuple[int, ...], ...]
    # Whether a letter right before the term would join its first word, and one right after it its last.
    starts_word: bool
    ends_word: bool


class Edges(NamedTuple):
    """Whether the text of a token starts and ends inside a word; None if it has no text."""

    start: bool | None
    end: bool | None


NO_TEXT = Edges(None, None)


class TermVocabulary:
    """Properties of a tokenizer for constrained search: tokenized terms, and the word edges of tokens."""

    _of: "WeakKeyDictionary[PreTrainedTokenizerBase, TermVocabulary]" = WeakKeyDictionary()

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self._phrases: dict[str, Phrase] = {}
        size = 1 + max(getattr(tokenizer, "target_tokenizer", tokenizer).get_vocab().values())
        texts = tokenizer.batch_decode([[token] for token in range(size)], skip_special_tokens=True)
        # Decode each token after a word, so that the space before it is written.
        anchor = next((i for i, text in enumerate(texts) if text.strip() and all(map(in_word, text.strip()))), 0)
        pairs = tokenizer.batch_decode([[anchor, token] for token in range(size)], skip_special_tokens=True)
        rests = [text.removeprefix(texts[anchor]) for text in pairs]
        self.size = size
        self._edges = [Edges(in_word(text[0]), in_word(text[-1])) if text else NO_TEXT for text in rests]
        # For tokens with text: -2 if they start inside a word, else -1; negative, to differ from token ids.
        self.starts = {i: -1 - edges.start for i, edges in enumerate(self._edges) if edges.start is not None}

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "TermVocabulary":
        """Return the `TermVocabulary` of a tokenizer, built at the first call."""
        known = cls._of.get(tokenizer)
        if known is None or known.size < len(getattr(tokenizer, "target_tokenizer", tokenizer)):
            known = cls._of[tokenizer] = cls(tokenizer)
        return known

    def edges(self, token: int) -> Edges:
        return self._edges[token] if token < self.size else NO_TEXT

    def phrases(self, tokenizer: PreTrainedTokenizerBase, terms: Iterable[str]) -> list[Phrase]:
        """Return the phrase of each term; raise a GlossaryError if the vocabulary cannot write one exactly."""
        terms = list(terms)
        if len(self._phrases) > MAX_PHRASES:
            # A server sees ever new terms.
            self._phrases.clear()
        if missing := [term for term in dict.fromkeys(terms) if term not in self._phrases]:
            self._phrases.update(zip(missing, _phrases(tokenizer, missing), strict=True))
        return [self._phrases[term] for term in terms]


def _phrases(tokenizer: PreTrainedTokenizerBase, terms: list[str]) -> list[Phrase]:
    """Tokenize terms in every context."""

    def encode(texts: list[str]) -> list[list[int]]:
        rows: Any = tokenizer(text_target=texts, add_special_tokens=False)["input_ids"]
        return rows

    variants: list[list[tuple[int, ...]]] = [[] for _ in terms]
    for context in CONTEXTS:
        (before,) = encode([context.rstrip()]) if context else [[]]
        for i, row in enumerate(encode([context + term for term in terms])):
            # Else the term's first letters share a token with the context.
            if row[: len(before)] == before:
                tokens = row[len(before) :]
                if str(tokenizer.decode(before + tokens, skip_special_tokens=True)).endswith(terms[i]):
                    variants[i].append(tuple(tokens))
        if context == CONTEXTS[0]:
            for term, spellings in zip(terms, variants, strict=True):
                if not spellings:
                    text = tokenizer.decode(encode([term])[0], skip_special_tokens=True)
                    raise GlossaryError(
                        f"the glossary's translation {term!r} cannot be written with the model's vocabulary, which "
                        f"turns it into {text!r}; change it"
                    )
    return [
        Phrase(tuple(dict.fromkeys(spellings)), in_word(term[0]), in_word(term[-1]))
        for term, spellings in zip(terms, variants, strict=True)
    ]


class Reading(NamedTuple):
    """One way to find terms in a hypothesis."""

    # How many occurrences of each phrase have yet to begin.
    missing: tuple[int, ...]
    # The phrase being written, or written but still to be followed by a word edge; -1 if there is none.
    phrase: int = -1
    # Its variant, and how many of the variant's tokens are written.
    variant: int = 0
    written: int = 0


class State:
    """All readings of a hypothesis.

    Attributes:
        needed: Fewest tokens that would complete the terms.
        in_word: Whether the hypothesis ends inside a word.
        readings: The readings.
    """

    def __init__(self, needed: int, in_word: bool, readings: frozenset[Reading]):
        self.needed, self.in_word, self.readings = needed, in_word, readings
        # Caches, filled on demand. Next state by token, and by the edges of tokens in no term.
        self.moves: dict[Any, State] = {}
        # Tokens needed after a token: by the token if it is in a term, else by how it starts.
        self.costs: dict[int | None, int] = {}
        # Tokens after which fewer tokens are needed.
        self.advancing: list[int] | None = None
        # All terms are complete, whatever follows.
        self.is_final = all(reading.phrase < 0 and not any(reading.missing) for reading in readings)


class Terms:
    """The terms of one sentence, as states of its hypotheses."""

    def __init__(self, vocabulary: TermVocabulary, phrases: Sequence[Phrase]):
        self._vocabulary, self.phrases = vocabulary, list(phrases)
        self._phrases = list(dict.fromkeys(phrases))
        self._lengths = [len(phrase.variants[0]) for phrase in self._phrases]
        counts = tuple(phrases.count(phrase) for phrase in self._phrases)
        self._tokens = {token for phrase in self._phrases for variant in phrase.variants for token in variant}
        self._states: dict[Any, State] = {}
        self.start = self._state(False, {Reading(counts)})

    def after(self, state: State, token: int) -> State:
        """Return the state after one more token."""
        if state.is_final:
            return state
        if (following := state.moves.get(token)) is None:
            # Tokens in no term differ only in their edges.
            key: Any = token if token in self._tokens else self._vocabulary.edges(token)
            following = state.moves[token] = state.moves.get(key) or self._move(state, token)
            state.moves[key] = following
        return following

    def needed_after(self, state: State, tokens: Sequence[int]) -> list[int]:
        """Return the number of tokens needed after each of the tokens."""
        if state.is_final:
            return [0] * len(tokens)
        costs, of_terms, starts = state.costs, self._tokens, self._vocabulary.starts
        # For tokens in no term, only their start matters.
        keys = [token if token in of_terms else starts.get(token) for token in tokens]
        for key, token in zip(keys, tokens, strict=True):
            if key not in costs:
                # Do not build the state: few of the tokens are chosen.
                costs[key] = min(map(self._needed, self._readings(state, token)))
        return [costs[key] for key in keys]

    def advancing(self, state: State) -> list[int]:
        """Return the tokens after which fewer tokens are needed."""
        if state.advancing is not None:
            return state.advancing
        tokens: set[int] = set()
        for reading in state.readings:
            if reading.phrase >= 0:
                tokens.update(self._variant(reading)[reading.written : reading.written + 1])
            for phrase, count in zip(self._phrases, reading.missing, strict=True):
                tokens.update(variant[0] for variant in phrase.variants if count)
        ordered = sorted(tokens)
        costs = self.needed_after(state, ordered)
        state.advancing = [token for token, cost in zip(ordered, costs, strict=True) if cost < state.needed]
        return state.advancing

    def _move(self, state: State, token: int) -> State:
        edges = self._vocabulary.edges(token)
        return self._state(state.in_word if edges.end is None else edges.end, self._readings(state, token))

    def _readings(self, state: State, token: int) -> Collection[Reading]:
        """Return the readings after one more token."""
        edges = self._vocabulary.edges(token)
        if edges.start is None and token not in self._tokens:
            return state.readings
        joins = state.in_word and bool(edges.start)
        readings: set[Reading] = set()
        for reading in state.readings:
            if reading.phrase >= 0:
                variant = self._variant(reading)
                if reading.written < len(variant):
                    if variant[reading.written] == token:
                        readings.add(reading._replace(written=reading.written + 1))
                    continue
                if edges.start is None:
                    readings.add(reading)
                if edges.start is not False and self._phrases[reading.phrase].ends_word:
                    continue
            readings.add(Reading(reading.missing))
            readings.update(self._begun(reading.missing, token, joins))
        return readings

    def _begun(self, missing: tuple[int, ...], token: int, joins: bool) -> Iterable[Reading]:
        for i, phrase in enumerate(self._phrases):
            if missing[i] and not (joins and phrase.starts_word):
                rest = (*missing[:i], missing[i] - 1, *missing[i + 1 :])
                for j, variant in enumerate(phrase.variants):
                    if variant[0] == token:
                        yield Reading(rest, i, j, 1)

    def _state(self, in_word: bool, readings: Collection[Reading]) -> State:
        kept = frozenset(reading for reading in readings if not any(_covers(other, reading) for other in readings))
        if len(kept) > MAX_READINGS:
            ordered = sorted(kept, key=lambda reading: (self._needed(reading), reading))
            # Always keep one that any token can follow.
            between = next(reading for reading in ordered if reading.phrase < 0)
            kept = frozenset([between, *ordered[:MAX_READINGS]])
        key = (in_word, kept)
        if key not in self._states:
            self._states[key] = State(min(map(self._needed, kept)), in_word, kept)
        return self._states[key]

    def _needed(self, reading: Reading) -> int:
        needed = sum(map(mul, reading.missing, self._lengths))
        return needed + (len(self._variant(reading)) - reading.written if reading.phrase >= 0 else 0)

    def _variant(self, reading: Reading) -> tuple[int, ...]:
        return self._phrases[reading.phrase].variants[reading.variant]


def _covers(one: Reading, other: Reading) -> bool:
    """Whether a reading has found all the terms that another has, and can continue at least as well."""
    return (
        one != other
        and (one.phrase < 0 or one[1:] == other[1:])
        and all(a <= b for a, b in zip(one.missing, other.missing, strict=True))
    )


class ConstrainedBeams(Beams):
    """Beams whose hypotheses may end only with all of their terms."""

    def __init__(
        self, input_ids: Tensor, stopping_criteria: Any, options: Any, terms: Sequence[Terms], num_finished: int
    ):
        super().__init__(input_ids, stopping_criteria, options, num_finished)
        for sentence_terms, limit in zip(terms, self.row_limits.limits.tolist(), strict=True):
            if (needed := sentence_terms.start.needed) >= (room := limit - self.length):
                raise GlossaryError(
                    f"the glossary's translations in a sentence have {needed} tokens, but an output may have {room}, "
                    "end token included; raise `max_new_tokens`, or shorten the sentence"
                )
        self.terms = [sentence_terms for sentence_terms in terms for _ in range(self.num_beams)]
        self.states = [beam_terms.start for beam_terms in self.terms]
        self.ends = end_tokens(options)

    def extend(self, logits: Tensor, logits_processor: Any, input_ids: Tensor) -> Tensor:
        rows = super().extend(logits, logits_processor, input_ids)
        kept = rows.tolist()
        last = self.running[..., self.length - 1].flatten().tolist()
        self.terms = [self.terms[row] for row in kept]
        self.states = [
            terms.after(self.states[row], token) for terms, row, token in zip(self.terms, kept, last, strict=True)
        ]
        return rows

    def candidates(self, logits: Tensor, logits_processor: Any, input_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return scores, beams and tokens (B, c) of the candidates, least dominated first."""
        log_probs, tokens = self._row_candidates(logits, logits_processor, input_ids)
        needed = self._needed(tokens)
        sentences, per_beam = self.running.shape[0], tokens.shape[1]
        scores = self.running_scores.view(-1, 1) + log_probs + (needed < 0) * MASKED_SCORE
        scores, needed, tokens = (x.view(sentences, -1) for x in (scores, needed, tokens))
        dominated = ((needed[:, :, None] >= needed[:, None]) & (scores[:, :, None] < scores[:, None])).sum(2)
        turn = dominated * (needed.max() + 1) + needed
        turn = turn.where(scores > MASKED_SCORE / 2, torch.iinfo(turn.dtype).max)
        chosen = turn.topk(self.num_candidates, largest=False).indices
        self.candidates_needed = needed.gather(1, chosen)
        return scores.gather(1, chosen), chosen // per_beam, tokens.gather(1, chosen)

    def best_running(self, chosen: Tensor) -> Tensor:
        """Return the best score (B, 1) of the running hypotheses; once enough are finished, only of complete ones.

        Incomplete ones could prolong the search forever: they may not end, and repeated tokens cost little.
        """
        counts = (self.candidates_needed.gather(1, chosen) == 0) | ~self.is_finished.all(1, keepdim=True)
        return self.running_scores.where(counts, MASKED_SCORE).amax(1, keepdim=True)

    def _row_candidates(self, logits: Tensor, logits_processor: Any, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and tokens (N, c): the best of each row, and those that advance its terms."""
        raw = logits.log_softmax(-1, dtype=torch.float32)
        log_probs = logits_processor(input_ids, raw)
        values, tokens = blockwise_topk(log_probs, self.num_candidates)
        wanted = [
            [*terms.advancing(state), *([] if state.needed or state.is_final else self.ends)]
            for terms, state in zip(self.terms, self.states, strict=True)
        ]
        width = max(map(len, wanted))
        extra = torch.tensor([[*row, *[-1] * (width - len(row))] for row in wanted], device=tokens.device).long()
        is_new = (extra >= 0) & ((extra[:, :, None] != tokens[:, None]) | values.isinf()[:, None]).all(2)
        extra = extra.clamp(min=0)
        # Lift a ban on these tokens, unless only a single token is allowed, such as a language or end token.
        extra_values = log_probs.gather(1, extra)
        is_barred = extra_values.isinf() & values[:, 1:2].isfinite()
        extra_values = raw.gather(1, extra).where(is_barred, extra_values)
        return torch.cat((values, extra_values.where(is_new, MASKED_SCORE)), 1), torch.cat((tokens, extra), 1)

    def _needed(self, tokens: Tensor) -> Tensor:
        """Return the number of tokens needed after each candidate (N, c), -1 if it is not allowed."""
        rows = [
            terms.needed_after(state, row)
            for terms, state, row in zip(self.terms, self.states, tokens.tolist(), strict=True)
        ]
        needed = torch.tensor(rows, device=tokens.device)
        # The last position is reserved for the end token.
        room = (self.row_limits.of_rows(len(rows)) - self.length - 2).clamp(min=0)[:, None]
        return needed.masked_fill(needed > ~torch.isin(tokens, tokens.new_tensor(self.ends)) * room, -1)


def constrained_beam_search(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    terms: Sequence[Terms],
    num_finished: int,
    **model_kwargs: Any,
) -> Any:
    """Constrained beam search, as `custom_generate` for `generate()`.

    Its own arguments are `terms`, those of each sentence, and `num_finished`, the number of finished hypotheses that
    ends the search of a sentence.
    """
    beams = ConstrainedBeams(input_ids, stopping_criteria, generation_config, terms, num_finished)
    return search(model, beams, input_ids, logits_processor, model_kwargs)
