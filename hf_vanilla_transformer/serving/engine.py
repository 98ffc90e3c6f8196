"""Served models: each decodes concurrent requests together, in its own thread."""

import asyncio
import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice, repeat
from re import Pattern
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from ..errors import DataError, one_line
from ..inference.ctranslate2 import CTranslate2Model, check_settings
from ..inference.decoding import Hypothesis, decoding_session
from ..inference.glossary import Glossary, GlossaryError
from ..inference.preparation import Preparation, Prepared, PreparedText, SplitSentences
from ..inference.translator import Translator, join
from ..options import SearchOptions
from ..pretrained.languages import Direction, directions_of, has_tags, is_multilingual, is_zero_shot, set_languages
from ..text.sentences import TextLayout
from .batching import CLOSED, Batcher, Busy, InvalidRequest
from .limits import ModelLimits

# Batches of a model between returns of freed memory to the system.
BATCHES_BETWEEN_RELEASES = 256

# Maximum language pairs listed in a message.
MAX_LISTED = 50


class UnknownModel(ValueError):
    """No served model, or more than one, matches the requested name and languages."""


@dataclass(frozen=True)
class TranslationOptions(SearchOptions):
    """How to translate. Requests with equal options share batches."""

    with_scores: bool = False
    with_alignments: bool = False
    glossary: Glossary | None = None

    def generation_options(self) -> dict[str, Any]:
        """Return the settings for `generate()` that are not None."""
        names = ["num_beams", "length_penalty", "no_repeat_ngram_size", "max_new_tokens"]
        settings: dict[str, Any] = {}
        if self.do_sample:
            names += ["temperature", "top_k", "top_p"]
            # With the model's own beams, it would be beam-search sampling.
            settings = {"do_sample": True, "num_beams": 1}
        return settings | {name: value for name in names if (value := getattr(self, name)) is not None}


class Choice(NamedTuple):
    """A model and the languages to translate between, which are None if unknown."""

    model: "ServedModel"
    source: str | None
    target: str | None


@dataclass(frozen=True)
class TranslatedText:
    """A text and the hypotheses of each of its sentences."""

    text: PreparedText
    hypotheses: list[list[Hypothesis]]

    def joined(self, rank: int = 0) -> Hypothesis:
        """Join the sentences' hypotheses of a rank, where 0 is the best."""
        return self._ranked[rank] if self.hypotheses else Hypothesis(self.text.layout.fill([]), alignment=[])

    @cached_property
    def _ranked(self) -> list[Hypothesis]:
        return join(self.text.layout, self.hypotheses)


class _Key(NamedTuple):
    """Settings shared by the sentences of a batch; languages only if the tokenizer is set to one pair at a time."""

    options: TranslationOptions
    languages: tuple[str | None, str | None] = (None, None)


class _Input(NamedTuple):
    """A text, split into sentences, its languages, and whether it needs alignments."""

    layout: TextLayout
    source: str | None
    target: str | None
    is_aligned: bool


class ServedModel(Batcher):
    """A model that serves concurrent callers from one thread.

    Args:
        name: Name in requests.
        model: Any encoder-decoder with `generate()`.
        tokenizer: The tokenizer it was trained with.
        pairs: Language pairs it translates, source first; empty if unknown.
        max_tokens: Source tokens x beams decoded at once.
        max_queue: Maximum number of waiting sentences.
        patience: Seconds to wait for another sentence while there are fewer than in the last batch.
        source_prefix: Prefix of every sentence, such as "translate English to German: " for T5.
        protect: Regular expressions for more text to copy unchanged, besides links, emoji and the like.
        rules: Names of the rules for text that act; by default those that training found to help.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        pairs: Iterable[Direction] = (),
        *,
        max_tokens: int = ModelLimits.max_tokens,
        max_queue: int = ModelLimits.max_queue,
        patience: float = 0.02,
        source_prefix: str = "",
        protect: Iterable[str | Pattern[str]] = (),
        rules: Iterable[str] | None = None,
    ):
        self.name, self.model, self.tokenizer = name, model, tokenizer
        # An ordered set.
        self.pairs = dict.fromkeys(pairs).keys()
        self.max_tokens = max_tokens
        self.preparation = Preparation(model, tokenizer, protect, False, source_prefix, rules)
        self._mixes_directions = has_tags(tokenizer)
        self._is_set_to_languages = is_multilingual(tokenizer) and not self._mixes_directions
        self._translator = lru_cache(maxsize=64)(self._make_translator)
        # Called after each batch with its numbers of sentences and source tokens.
        self.observers: list[Callable[[int, int], None]] = []
        self._num_batches = 0
        # Last, as it starts the thread, which uses all of the above.
        super().__init__(f"model {name}", max_queue, patience)

    @property
    def num_beams(self) -> int:
        """The model's default number of beams."""
        return self._translator(TranslationOptions()).decoder.num_beams

    def is_zero_shot(self, source: str | None, target: str | None) -> bool:
        """Whether the model was trained on both languages but not on the pair; False if it serves a single pair."""
        if source is None or target is None or len(self.pairs) < 2:
            return False
        return is_zero_shot(self.tokenizer, source, target)

    def find_pairs(self, source: str | None, target: str | None) -> list[Direction]:
        """Return the pairs with these languages; None matches any."""
        if source is not None and target is not None:
            return [(source, target)] if (source, target) in self.pairs else []
        return [pair for pair in self.pairs if source in (None, pair[0]) and target in (None, pair[1])]

    async def translate(
        self,
        texts: Sequence[str],
        options: TranslationOptions | None = None,
        source: str | None = None,
        target: str | None = None,
        split_sentences: SplitSentences = "never",
        are_aligned: Iterable[bool] = repeat(True),
    ) -> list[TranslatedText]:
        """Translate texts in batches shared with other callers; canceling removes them from the queue.

        Multilingual models need the languages. Sentences that are too long are cut. With alignments, `are_aligned`
        tells which texts need them.

        Raises:
            InvalidRequest: An option is out of range, or the model does not support it.
            Busy: The queue is full or closed, or memory ran out on a single sentence.
            DecodingFailed: The model failed.
        """
        key = _Key(options or TranslationOptions(), *([(source, target)] if self._is_set_to_languages else ()))
        # Check the options; without the glossary, as only the model's thread may tokenize its translations.
        self._translator(replace(key.options, glossary=None))
        try:
            layouts = [self.preparation.split(text, split_sentences, source) for text in texts]
        except DataError as error:
            raise InvalidRequest(one_line(error)) from error
        inputs = [
            _Input(layout, source, target, is_aligned)
            for layout, is_aligned in zip(layouts, islice(are_aligned, len(layouts)), strict=True)
        ]
        num_sentences = sum(len(layout.sentences) for layout in layouts)
        if not num_sentences:
            return [TranslatedText(PreparedText(layout), []) for layout in layouts]
        results = await asyncio.wrap_future(self.submit(inputs, key, num_sentences))
        return [TranslatedText(*result) for result in results]

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in the model's thread, before its next batch, and return the result."""
        return await asyncio.wrap_future(self.call(function, *args))

    def session(self) -> AbstractContextManager[None]:
        """Return a context in which batches share facts derived from the model's weights."""
        return decoding_session(self.model)

    def prepare(self, inputs: Sequence[_Input], key: _Key) -> list[PreparedText]:
        """Return texts as prepared sentences; raise InvalidRequest if the glossary is not supported."""
        if self._is_set_to_languages:
            set_languages(self.tokenizer, *key.languages)
        layouts, sources, targets, are_aligned = zip(*inputs, strict=True)
        directions: Iterable[Direction | None] = repeat(None)
        if self._mixes_directions:
            directions, _ = directions_of(self.tokenizer, sources, targets, may_pivot=True)
        return self._translator(key.options).prepare(layouts, directions, are_aligned)

    def batch_size(self, longest: int, key: _Key) -> int:
        """Return how many sentences of at most `longest` tokens to decode at once."""
        return self._translator(key.options).decoder.batch_size(max(1, longest))

    def observe(self, num_sentences: int, num_tokens: int) -> None:
        """Notify the observers, and release memory every `BATCHES_BETWEEN_RELEASES` batches."""
        for observer in self.observers:
            observer(num_sentences, num_tokens)
        self._num_batches += 1
        if self._num_batches % BATCHES_BETWEEN_RELEASES == 0:
            release_memory()

    def decode(self, sentences: Sequence[Prepared], key: _Key) -> list[list[Hypothesis]]:
        """Translate a batch of sentences."""
        settings = set_languages(self.tokenizer, *key.languages) if self._is_set_to_languages else {}
        try:
            return self._translator(key.options, **settings).translate(sentences)
        except GlossaryError as error:
            raise InvalidRequest(one_line(error)) from error

    def _make_translator(self, options: TranslationOptions, **language_options: int) -> Translator:
        """Return a translator with these options; raise InvalidRequest if one is out of range or not supported."""
        settings = options.generation_options() | language_options
        try:
            if isinstance(self.model, CTranslate2Model):
                check_settings(settings)
            return Translator(
                self.model,
                self.tokenizer,
                self.preparation,
                num_hypotheses=options.num_hypotheses,
                max_tokens=self.max_tokens,
                with_scores=options.with_scores,
                with_alignments=options.with_alignments,
                glossary=options.glossary,
                split_sentences="never",
                **settings,
            )
        except ValueError as error:
            raise InvalidRequest(one_line(error)) from error


class Engine:
    """The models of a server, chosen by name or language pair.

    Args:
        models: At least one; names and language pairs must be unique.

    Raises:
        ValueError: There is no model, or two share a name or a pair.
    """

    def __init__(self, models: Iterable[ServedModel]):
        self.models: dict[str, ServedModel] = {}
        self.draining = False
        # Accepted requests not yet answered.
        self.num_running = 0
        by_pair: dict[Direction, ServedModel] = {}
        for model in models:
            if self.models.setdefault(model.name, model) is not model:
                raise ValueError(f"two models are called {model.name}; give each a unique name")
            for pair in model.pairs:
                if (other := by_pair.setdefault(pair, model)) is not model:
                    raise ValueError(f"{other.name} and {model.name} both translate {'-'.join(pair)}; leave one out")
        if not self.models:
            raise ValueError("no models given; give at least one")

    def choose(self, source: str | None = None, target: str | None = None, name: str | None = None) -> Choice:
        """Return the model with this name or these languages; any may be None if the rest leaves one pair.

        Raises:
            UnknownModel: Nothing matches, or several pairs do; the message lists what is available.
        """
        if name is not None and name not in self.models:
            raise UnknownModel(f"there is no model {name}; available: {', '.join(self.models)}")
        models = list(self.models.values()) if name is None else [self.models[name]]
        if len(models) == 1 and not models[0].pairs:
            return Choice(models[0], source, target)
        fitting = [Choice(model, *pair) for model in models for pair in model.find_pairs(source, target)]
        fitting = fitting or [Choice(model, source, target) for model in models if model.is_zero_shot(source, target)]
        if len(fitting) == 1:
            return fitting[0]
        problem = "several models or language pairs match" if fitting else "no model translates"
        raise UnknownModel(f"{problem} {source or 'any'}-{target or 'any'}; available: {_listed(models)}")

    def sources(self, target: str | None = None, name: str | None = None) -> list[str]:
        """Return the source languages for a target language and a model; None means any."""
        models = self.models.values() if name is None else [self.models[name]]
        return sorted({source for model in models for source, _ in model.find_pairs(None, target)})

    @contextmanager
    def admission(self) -> Iterator[None]:
        """Count a request as running; raise Busy if the server is shutting down, which waits for running requests."""
        if self.draining:
            raise Busy(CLOSED)
        self.num_running += 1
        try:
            yield
        finally:
            self.num_running -= 1

    @property
    def dead(self) -> list[str]:
        """Names of models whose threads have died."""
        return [name for name, model in self.models.items() if not model.is_alive]

    @property
    def is_idle(self) -> bool:
        """Whether no request is running and no model has work."""
        return not self.num_running and all(model.is_idle for model in self.models.values())

    def close(self, wait: bool = True) -> None:
        """Accept nothing new, and let every model finish its queue."""
        self.draining = True
        for model in self.models.values():
            model.close(wait=False)
        for model in self.models.values():
            model.close(wait)


def release_memory() -> None:
    """Return freed memory to the system with glibc, whose heap would otherwise fragment and grow."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def _listed(models: Iterable[ServedModel]) -> str:
    pairs = ["-".join(pair) for model in models for pair in model.pairs]
    shown = pairs[:MAX_LISTED] + ["..."] * (len(pairs) > MAX_LISTED)
    return ", ".join([*shown, *(f"model {model.name}" for model in models if not model.pairs)])
