"""Decode prepared sentences in batches of a token budget into n-best lists with scores.

Shape legend: N rows (hypotheses), T target length, V target vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import distributed
from tqdm.auto import tqdm
from transformers import GenerationMixin, LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase

from ..batches import greedy_batches
from ..options import POSITIVE, SearchOptions, check_range, ranges
from ..pretrained.output_limits import OutputLimits, check_bounds, given_bounds, row_limit_options
from ..pretrained.teacher_forcing import evaluation_mode, position_limit
from ..search.beams import beam_search, can_search, scores_only
from ..text.protection import Link
from .constrained_search import Terms, TermVocabulary, constrained_beam_search
from .glossary import Glossary, GlossaryError
from .preparation import Prepared

NAN_SCORE = "a score is NaN: activations overflow the model's dtype; compute in float32"

# Source lengths are padded to a multiple, by device type: on a GPU, a CUDA graph is captured for each shape.
PADDED_TO = {"cuda": 8}

# Fewest beams for a sentence with glossary terms.
MIN_CONSTRAINED_BEAMS = 4

# Tokens whose scores are checked for NaN: NaN activations make the scores of all tokens NaN.
CHECKED_TOKENS = 64

# Greedy search: without beams, `generate()` warns about each of these that the model has set.
NO_BEAM_SEARCH = {"num_beams": 1, "length_penalty": None, "early_stopping": None}


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence.

    Attributes:
        text: The translation.
        score: The ranking score of beam search: log-probability / length ** length_penalty, in nats, where the length
            counts generated tokens including the end token. 0 for a blank sentence; None if not requested. For a
            sample, the model's own probabilities count, whatever the temperature. A reranker replaces it.
        alignment: Links (source word, target word) between words separated by white space, counted from 0; None if
            not requested.
        remarks: "cut" if the source had a sentence longer than any in training, which was translated in pieces;
            "corrected" if typos in it were corrected; "limit" if the translation ended at the length limit; "short" if
            it is empty or much shorter than its source; "loop" if it repeats itself more than the targets of training
            and its source do; "tag X" if training did not show the tag X. None if there are no remarks.
        pivot: The language that the translation went through; None if it was translated directly.
    """

    text: str
    score: float | None = None
    alignment: list[Link] | None = None
    remarks: list[str] | None = None
    pivot: str | None = None


class Generated(NamedTuple):
    """Target ids of a hypothesis, start token included, its score, and whether it ended before the length limit."""

    ids: list[int]
    score: float | None = None
    is_whole: bool = True

    def hypothesis(self, text: str) -> Hypothesis:
        return Hypothesis(text, self.score, remarks=None if self.is_whole else ["limit"])


def checked_scores(scores: list[float]) -> list[float]:
    """Return the scores; raise a ValueError if one is NaN, since the search result is then meaningless."""
    if any(map(math.isnan, scores)):
        raise ValueError(NAN_SCORE)
    return scores


class RefuseNaN(LogitsProcessor):
    """Raises a ValueError if scores (N, V) are NaN, which would decode to garbage.

    Either at once, or when `check` is called after the search, to avoid a device sync at each step.
    """

    # Lets our beam search pass a few rows at a time.
    only_reads = True

    def __init__(self, at_once: bool) -> None:
        self.at_once, self.may_be_recorded = at_once, not at_once
        self._is_nan: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        # Several tokens, because some may be masked to -inf.
        is_nan = scores[:, :: 1 + scores.shape[1] // CHECKED_TOKENS].isnan().any()
        # In place, because a recorded step writes to the same tensor.
        self._is_nan = is_nan if self._is_nan is None else self._is_nan.logical_or_(is_nan)
        if self.at_once:
            self.check()
        return scores

    def fresh(self) -> "RefuseNaN":
        """Return a new instance for a search to be recorded."""
        return RefuseNaN(self.at_once)

    def restart(self) -> None:
        """Reset, before a recorded search runs again."""
        if self._is_nan is not None:
            self._is_nan.zero_()

    def adopt(self, recorded: "RefuseNaN") -> None:
        """Take over the result of a recorded search."""
        if recorded._is_nan is not None:
            self._is_nan = recorded._is_nan.clone() if self._is_nan is None else self._is_nan | recorded._is_nan

    def check(self) -> None:
        """Raise a ValueError if a score so far was NaN."""
        if self._is_nan is not None and self._is_nan:
            raise ValueError(NAN_SCORE)


def _longest_output(bounds: dict[str, Any]) -> int:
    """Return the most tokens of an output, start token included, by the caller's bounds."""
    new = bounds.get("max_new_tokens")
    return int(bounds["max_length"] if new is None else new + 1)


def decoding_session(model: Any) -> AbstractContextManager[None]:
    """Return a context in which calls of `generate()` share what is computed from the model's weights, if possible."""
    return model.decoding_session() if hasattr(model, "decoding_session") else nullcontext()


class Decoder:
    """Decodes prepared sentences with fixed settings; arguments as for `translate_lines`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        num_hypotheses: int,
        max_tokens: int,
        with_scores: bool,
        options: dict[str, Any],
        glossary: Glossary | None = None,
    ) -> None:
        if "generation_config" in options:
            raise ValueError("`generation_config` is not accepted; pass its settings by name, such as num_beams=4")
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self._output_limit = OutputLimits(model)
        # PreTrainedModel hides the type of `generate`.
        self.generate: Any = model.generate
        self.num_hypotheses, self.max_tokens, self.with_scores = num_hypotheses, max_tokens, with_scores
        self.num_beams = num_beams = self._setting("num_beams", 1)
        check_range(POSITIVE, num_hypotheses=num_hypotheses, max_tokens=max_tokens, num_beams=num_beams)
        check_bounds(options)
        for name in ("length_penalty", "no_repeat_ngram_size"):
            check_range(ranges(SearchOptions)[name], **{name: self._setting(name, None)})
        if num_hypotheses > num_beams and (num_beams > 1 or not self._setting("do_sample", False)):
            raise ValueError(
                f"{num_hypotheses} hypotheses need as many beams, but `num_beams` is {num_beams}; raise it"
            )
        # PEFT wraps models.
        self._base: Any = getattr(model, "get_base_model", lambda: model)()
        self._takes_processors = isinstance(self._base, GenerationMixin)
        # Whether terms can be required.
        self._is_searched = isinstance(model, GenerationMixin) and not self._setting("do_sample", False)
        self._glossary, self._vocabulary = glossary, None
        if glossary is not None and glossary.entries:
            if not isinstance(model, GenerationMixin):
                raise ValueError(
                    "a glossary needs a model of transformers; leave it out, or use `backend=transformers`"
                )
            if self._setting("do_sample", False):
                raise ValueError("a glossary needs beam search, not sampling; leave out `do_sample`")
            self._vocabulary = TermVocabulary.of(tokenizer)
            self._vocabulary.phrases(tokenizer, glossary.translations())

    def return_all_beams(self) -> None:
        """Return all hypotheses of the beams, for a reranker."""
        self.num_hypotheses = max(self.num_hypotheses, self.num_beams)
        if self.num_hypotheses == 1:
            raise ValueError("reranking needs several hypotheses, but `num_beams` is 1; raise it")

    def with_terms(self, sentences: Sequence[Prepared]) -> Sequence[Prepared]:
        """Return sentences with the terms that the glossary requires."""
        if self._vocabulary is None:
            return sentences
        return [replace(sentence, terms=self._terms(sentence)) for sentence in sentences]

    def _terms(self, sentence: Prepared) -> Terms | None:
        if self._glossary is None or self._vocabulary is None or not sentence.ids:
            return None
        text = sentence.input_text
        # Skip terms that were truncated.
        if sentence.is_truncated:
            source_tokenizer = getattr(self.tokenizer, "source_tokenizer", self.tokenizer)
            text = str(source_tokenizer.decode(list(sentence.ids), skip_special_tokens=True))
        phrases = self._vocabulary.phrases(self.tokenizer, self._glossary.translations_in(text))
        return Terms(self._vocabulary, phrases) if phrases else None

    def decode(self, sentences: Sequence[Prepared], bar: tqdm | None = None) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, as the model writes them."""
        blank = Hypothesis("", 0.0 if self.with_scores else None)
        results = [[blank] * self.num_hypotheses for _ in sentences]
        progress = tqdm(disable=True) if bar is None else bar
        progress.update(sum(not sentence.ids for sentence in sentences))
        with decoding_session(self.model):
            for indices in self._batches(sentences):
                outputs = self.decode_batch([sentences[i] for i in indices])
                rows = [generated.ids for row in outputs for generated in row]
                texts = iter(self.tokenizer.batch_decode(rows, skip_special_tokens=True))
                for i, row in zip(indices, outputs, strict=True):
                    results[i] = [generated.hypothesis(next(texts)) for generated in row]
                progress.update(len(indices))
        return results

    def _batches(self, sentences: Sequence[Prepared]) -> Iterator[list[int]]:
        """Yield the indices of sentences to decode together; those with terms are grouped by number of beams."""
        groups: dict[int, list[int]] = {}
        for i, sentence in enumerate(sentences):
            if sentence.ids:
                groups.setdefault(self._constrained_beams(sentence.terms), []).append(i)
        for num_beams, group in sorted(groups.items()):
            # Longest first: if memory runs out, it does so at once.
            order = sorted(group, key=lambda i: -len(sentences[i].ids))
            sizes = [self.batch_size(len(sentences[i].ids), num_beams) for i in order]
            yield from (order[batch] for batch in greedy_batches(len(order), sizes.__getitem__))

    def _constrained_beams(self, terms: Terms | None) -> int:
        """Return the number of beams for a search with terms; 0 if there are no terms."""
        if terms is None:
            return 0
        num_beams = max(self.num_beams, MIN_CONSTRAINED_BEAMS)
        # Hypotheses at different stages of the terms share the beams. Only two sizes, to keep batches few.
        return num_beams if terms.start.needed <= num_beams else num_beams + num_beams // 2

    def _setting(self, name: str, default: Any) -> Any:
        """Return the setting `generate()` uses: the option, else the model's own, else the default."""
        candidates = (self.options.get(name), getattr(self.model.generation_config, name, None))
        return next((value for value in candidates if value is not None), default)

    def batch_size(self, longest: int, num_beams: int = 0) -> int:
        """Return the batch size for sources of at most `longest` tokens; `num_beams` is 0 if they have no terms."""
        bounds = filter(None, given_bounds(self.options, self.model.config).values())
        keeps_steps = self.with_scores and self._takes_processors and not (num_beams or self._can_search_beams)
        outputs = max(bounds, default=self._output_limit(longest)) if keeps_steps else 0
        rows = max(self.num_beams, self.num_hypotheses)
        return max(1, self.max_tokens // (max(rows, num_beams) * max(longest, outputs)))

    def _padded(self, longest: int) -> int:
        """Return the padded length of a batch whose longest source has `longest` tokens."""
        multiple = PADDED_TO.get(self.model.device.type, 1)
        padded = -(-longest // multiple) * multiple
        return max(longest, min(padded, position_limit(self.model.config) or padded))

    def decode_batch(self, sentences: Sequence[Prepared]) -> list[list[Generated]]:
        """Return the hypotheses of non-blank sentences, either all with terms or all without.

        Where a translation lacks a placeholder, the search is repeated with the placeholders as terms.
        """
        outputs = self._search(sentences)
        pairs = enumerate(zip(sentences, outputs, strict=True))
        again = [i for i, pair in pairs if self._is_searched and self._lacks_placeholder(*pair)]
        if not again:
            return outputs
        required = [self._with_placeholders_as_terms(sentences[i]) for i in again]
        # Batched again, as terms need more beams.
        for batch in self._batches(required):
            # On a GlossaryError there is no room for them, and the first translation stays.
            with suppress(GlossaryError):
                for i, hypotheses in zip(batch, self._search([required[i] for i in batch]), strict=True):
                    outputs[again[i]] = hypotheses
        return outputs

    def _lacks_placeholder(self, sentence: Prepared, hypotheses: Sequence[Generated]) -> bool:
        side = getattr(self.tokenizer, "target_tokenizer", self.tokenizer)
        wanted = {side.convert_tokens_to_ids(name) for name in sentence.placeholders}
        return bool(wanted) and any(wanted.difference(hypothesis.ids) for hypothesis in hypotheses)

    def _with_placeholders_as_terms(self, sentence: Prepared) -> Prepared:
        vocabulary = TermVocabulary.of(self.tokenizer)
        own = sentence.terms.phrases if sentence.terms else []
        required = vocabulary.phrases(self.tokenizer, sentence.placeholders)
        return replace(sentence, terms=Terms(vocabulary, [*own, *required]))

    def _search(self, sentences: Sequence[Prepared]) -> list[list[Generated]]:
        ids = [sentence.ids for sentence in sentences]
        terms = [sentence.terms for sentence in sentences if sentence.terms]
        bounds: dict[str, Any] = given_bounds(self.options, self.model.config)
        limits: list[int] = []
        if not bounds:
            extras = [sentence_terms.start.needed for sentence_terms in terms] or [0] * len(ids)
            limits = [self._output_limit(len(row), extra) for row, extra in zip(ids, extras, strict=True)]
        # Sampling from NaN is a device-side assert, after which the process cannot use the GPU.
        refuse_nan = RefuseNaN(at_once=self.model.device.type == "cpu" or self._setting("do_sample", False))
        options, forced_end = self._search_options(terms), None
        if self._takes_processors:
            # Last, after the caller's processors.
            options["logits_processor"] = [*(options.get("logits_processor") or ()), refuse_nan]
            forced_end = self._setting("forced_eos_token_id", None)
        if limits:
            bounds = row_limit_options(limits, self.model.device, forced_end, **options)
        with evaluation_mode(self.model), scores_only():
            output = self.generate(**self._inputs(ids), num_return_sequences=self.num_hypotheses, **options | bounds)
        refuse_nan.check()
        sequences = output.sequences if self.with_scores else output
        # Without an end token, a row runs on until the longest has ended.
        rows = torch.tensor(limits or [_longest_output(bounds)] * len(ids)).repeat_interleave(self.num_hypotheses)
        is_output = (torch.arange(sequences.shape[1]) < rows[:, None]).to(sequences.device)
        scores = checked_scores(self._scores(output, is_output)) if self.with_scores else [None] * len(sequences)
        are_whole = self._are_whole(sequences, rows - int(forced_end is not None))
        padding = self.tokenizer.pad_token_id or 0
        hypotheses = map(Generated, sequences.where(is_output, padding).tolist(), scores, are_whole)
        return [list(islice(hypotheses, self.num_hypotheses)) for _ in ids]

    def _inputs(self, ids: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """Return padded ids and their mask, (B, S) each."""
        padding, width = self.tokenizer.pad_token_id or 0, self._padded(max(map(len, ids)))
        input_ids = torch.tensor([[*row, *[padding] * (width - len(row))] for row in ids])
        self._check_ids(int(input_ids.max()))
        mask = torch.arange(width) < torch.tensor([[len(row)] for row in ids])
        device = self.model.device
        return {"input_ids": input_ids.to(device), "attention_mask": mask.long().to(device)}

    def _search_options(self, terms: Sequence[Terms]) -> dict[str, Any]:
        """Return the options of `generate()` for sentences with these terms, but for processors and limits."""
        num_beams = max(map(self._constrained_beams, terms), default=self.num_beams)
        options = self.options | (NO_BEAM_SEARCH if num_beams == 1 else {})
        options["return_dict_in_generate"] = self.with_scores
        if terms:
            # Beams added for terms do not prolong the search.
            num_finished = max(self.num_beams, MIN_CONSTRAINED_BEAMS)
            search: dict[str, Any] = {"custom_generate": constrained_beam_search, "terms": terms}
            return options | search | {"num_beams": num_beams, "num_finished": num_finished}
        if self.with_scores and not self._can_search_beams:
            return options | {"output_logits" if num_beams == 1 else "output_scores": True}
        if self.with_scores and not getattr(self._base, "returns_beam_scores", False):
            return options | {"custom_generate": beam_search}
        return options

    @cached_property
    def _can_search_beams(self) -> bool:
        """Whether our beam search finds hypotheses and scores, so that nothing is kept of the steps."""
        settings = copy(self.model.generation_config)
        for name, value in {**self.options, "return_dict_in_generate": self.with_scores}.items():
            if value is not None and hasattr(settings, name):
                setattr(settings, name, value)
        # Processes may have to step together.
        is_alone = not (distributed.is_available() and distributed.is_initialized())
        is_own = self._takes_processors and "custom_generate" not in self.options
        with scores_only():
            return is_own and is_alone and can_search(settings)

    def _are_whole(self, sequences: torch.Tensor, limits: torch.Tensor) -> list[bool]:
        """Return whether each output (N, T) has an end token among its first tokens, as many as its limit (N)."""
        ends = self._setting("eos_token_id", None)
        if ends is None:
            return [True] * len(sequences)
        is_end = torch.isin(sequences, torch.tensor(ends, dtype=sequences.dtype, device=sequences.device))
        # The start token may be an end token, as in BART.
        is_end &= (torch.arange(sequences.shape[1]) < limits[:, None]).to(sequences.device)
        return is_end[:, 1:].any(1).tolist()

    def _check_ids(self, largest: int) -> None:
        embeddings: Any = self.model.get_input_embeddings() if isinstance(self.model, PreTrainedModel) else None
        if embeddings is not None and largest >= (size := len(embeddings.weight)):
            raise ValueError(
                f"`tokenizer` produced id {largest}, but `model` has only {size} source tokens; use the tokenizer "
                "that the model was trained with"
            )

    def _scores(self, output: Any, is_output: torch.Tensor) -> list[float]:
        """Return the ranking scores of beam search, also without beams; tokens count where `is_output` (N, T)."""
        if getattr(output, "sequences_scores", None) is not None:
            return output.sequences_scores.tolist()
        # `compute_transition_scores` would mistake the source's vocabulary size for the target's.
        tokens = output.sequences[:, -len(output.logits) :]
        steps = zip(output.logits, tokens.split(1, dim=1), strict=True)
        log_probs = torch.cat([logits.float().log_softmax(-1).gather(1, token) for logits, token in steps], dim=1)
        forced = self._setting("forced_bos_token_id", None)
        if forced is not None and output.sequences.shape[1] == tokens.shape[1] + 1:
            # A forced token right after the start token counts as certain, as in beam search.
            log_probs[:, 0] = log_probs[:, 0].masked_fill(tokens[:, 0] == forced, 0.0)
        ends = torch.tensor(self._setting("eos_token_id", []), dtype=tokens.dtype, device=tokens.device)
        is_end = torch.isin(tokens, ends).long()
        generated = (is_end.cumsum(1) == is_end) & is_output[:, -tokens.shape[1] :]  # through the first end token
        total = log_probs.masked_fill(~generated, 0.0).sum(1)
        return (total / generated.sum(1) ** self._setting("length_penalty", 1.0)).tolist()
