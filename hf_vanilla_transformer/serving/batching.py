"""Dynamic batching: sentences waiting at the same time are decoded together in one worker thread."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch

from ..errors import one_line

CLOSED = "the server is shutting down; try another one"
DEAD = "the thread of this model has died; restart the server"
OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)


class Busy(Exception):
    """The server cannot accept a request now; the message is one line."""


class InvalidRequest(ValueError):
    """A request is invalid; the message is one line."""


class DecodingFailed(Exception):
    """The model failed on a sentence; the message is one line."""


@dataclass(eq=False)
class _Request:
    key: Hashable
    inputs: Sequence[Any]
    # As expected at first, then as prepared.
    num_sentences: int
    future: Future[list[Any]] = field(default_factory=Future)
    texts: Sequence[Any] = ()
    results: dict[int, Any] = field(default_factory=dict)

    def accept(self, texts: Sequence[Any]) -> list["_Waiting"]:
        """Take the prepared texts, and return their sentences."""
        sentences = [sentence for text in texts for sentence in text.sentences]
        self.texts, self.num_sentences = texts, len(sentences)
        return [_Waiting(self, i, sentence) for i, sentence in enumerate(sentences)]

    def deliver(self, index: int, result: Any) -> None:
        self.results[index] = result
        if self.is_decoded and self.future.set_running_or_notify_cancel():
            results = iter([self.results[i] for i in range(self.num_sentences)])
            self.future.set_result([(text, list(islice(results, len(text.sentences)))) for text in self.texts])

    def fail(self, error: BaseException) -> None:
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return
        if isinstance(error, OUT_OF_MEMORY):
            error = Busy("out of memory; send shorter sentences or fewer beams")
        elif not isinstance(error, InvalidRequest | Busy):
            error = DecodingFailed(f"the model failed: {one_line(error)}")
        self.future.set_exception(error)

    @property
    def is_decoded(self) -> bool:
        return len(self.results) == self.num_sentences


@dataclass(eq=False)
class _Waiting:
    """A sentence in the queue."""

    request: _Request
    index: int
    sentence: Any

    @property
    def length(self) -> int:
        return len(self.sentence.ids)


class Batcher(ABC):
    """A queue of sentences and the worker thread that decodes them; subclasses define the decoding.

    The thread starts immediately. A batch consists of the longest-waiting sentence and those with the same key whose
    lengths are closest. This keeps padding low, and no sentence waits for more batches than there are sentences before
    it.

    Args:
        name: Name of the thread.
        max_queue: Maximum number of waiting sentences; a request that finds the queue empty is always accepted.
        patience: Seconds to wait for another sentence while there are fewer than in the last batch.
    """

    def __init__(self, name: str, max_queue: int, patience: float):
        self._max_queue, self._patience = max_queue, patience
        self._arrived: deque[_Request] = deque()
        self._functions: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._waiting: list[_Waiting] = []
        self._closed = self._is_working = self._is_dead = False
        # Futures of unfinished requests and functions.
        self._open: set[Future[Any]] = set()
        # Number of sentences in the last batch.
        self._last_size = 1
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def session(self) -> AbstractContextManager[Any]:
        """Return the context in which the thread runs, from start to end."""

    @abstractmethod
    def prepare(self, inputs: Sequence[Any], key: Any) -> Sequence[Any]:
        """Return each text with its `sentences`, which have `ids`."""

    @abstractmethod
    def batch_size(self, longest: int, key: Any) -> int:
        """Return how many sentences of at most `longest` tokens to decode at once."""

    @abstractmethod
    def decode(self, sentences: Sequence[Any], key: Any) -> list[Any]:
        """Return the result of each sentence; `key` holds the settings shared by the batch."""

    @abstractmethod
    def observe(self, num_sentences: int, num_tokens: int) -> None:
        """Called after each decoded batch."""

    @property
    def is_alive(self) -> bool:
        """Whether the worker thread is running."""
        return self._thread.is_alive()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is waiting or in progress."""
        return not (self._is_working or self._arrived or self._waiting or self._functions)

    @property
    def num_waiting(self) -> int:
        """Number of sentences in the queue."""
        return sum(request.num_sentences for request in list(self._arrived)) + len(self._waiting)

    def submit(self, inputs: Sequence[Any], key: Hashable, num_sentences: int) -> Future[list[tuple[Any, list[Any]]]]:
        """Queue texts and return the future of each as prepared and the results of its sentences, in order.

        Canceling the future removes them from the queue.

        Args:
            inputs: The texts, for `prepare`.
            key: Settings shared by the sentences of a batch.
            num_sentences: Number of their sentences, at least one; `prepare` may cut some into more.

        Raises:
            Busy: The queue is full or closed, or the thread has died; also from the future, if it dies later.
        """
        request = _Request(key, inputs, num_sentences)
        future = request.future
        with self._changed:
            self._check_open()
            self._check_room(self.num_waiting, num_sentences)
            self._arrived.append(request)
            self._open.add(future)
            self._changed.notify()
        future.add_done_callback(self._open.discard)
        future.add_done_callback(lambda _: self._forget(request))
        return future

    def call(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Call a function in the thread, before the next batch, and return the future of its result.

        Raises:
            Busy: The queue is closed, or the thread has died; also from the future, if it dies later.
        """
        future: Future[Any] = Future()
        with self._changed:
            self._check_open()
            self._functions.append((future, partial(function, *args)))
            self._open.add(future)
            self._changed.notify()
        future.add_done_callback(self._open.discard)
        return future

    def close(self, wait: bool = True) -> None:
        """Accept nothing new; the thread ends once the queue is empty, and `wait` blocks until then."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if wait:
            self._thread.join()

    def _check_open(self) -> None:
        if self._closed:
            raise Busy(DEAD if self._is_dead else CLOSED)

    def _check_room(self, num_waiting: int, num_sentences: int) -> None:
        if num_waiting and num_waiting + num_sentences > self._max_queue:
            raise Busy(f"the queue is full: {num_waiting} sentences are waiting; try again later")

    def _forget(self, request: _Request) -> None:
        """Remove the rest of an unfinished request from the queue."""
        if request.is_decoded:
            return
        with self._changed:
            if request in self._arrived:
                self._arrived.remove(request)
            self._waiting = [waiting for waiting in self._waiting if waiting.request is not request]

    def _work(self) -> None:
        try:
            with self.session():
                while self._wait():
                    if self._functions:
                        _call(*self._functions.popleft())
                        continue
                    self._prepare_arrived()
                    if batch := self._take_batch():
                        self._decode(batch)
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Fail everything waiting and reject new requests: the thread is dying."""
        with self._changed:
            self._closed = self._is_dead = True
            unanswered = list(self._open)
            self._functions.clear()
        for future in unanswered:
            if not future.done() and future.set_running_or_notify_cancel():
                future.set_exception(Busy(DEAD))
        self._is_working = False

    def _wait(self) -> bool:
        """Wait for work; return False once closed and nothing is left."""
        with self._changed:
            self._is_working = False
            self._changed.wait_for(lambda: self._closed or self._arrived or self._waiting or self._functions)
            self._wait_for_more()
            self._is_working = bool(self._arrived or self._waiting or self._functions)
            return self._is_working

    def _wait_for_more(self) -> None:
        """Wait for as many sentences as in the last batch, as long as they keep arriving.

        Clients answered together tend to send their next requests together, but one after another.
        """
        before = -1
        while before < (waiting := self.num_waiting) < self._last_size and not (self._closed or self._functions):
            before = waiting

            def is_over(waiting: int = waiting) -> bool:
                return self._closed or bool(self._functions) or self.num_waiting != waiting

            self._changed.wait_for(is_over, self._patience)

    def _prepare_arrived(self) -> None:
        with self._changed:
            arrived = list(self._arrived)
        for request in arrived:
            try:
                others = self.num_waiting - request.num_sentences
                waiting = request.accept(self.prepare(request.inputs, request.key))
                self._check_room(others, len(waiting))
            # A panic in the tokenizers library is not an Exception.
            except BaseException as error:
                request.fail(error)
                waiting = []
            with self._changed:
                # It may have been canceled in the meantime.
                if request in self._arrived:
                    self._arrived.remove(request)
                    self._waiting += waiting

    def _take_batch(self) -> list[_Waiting]:
        with self._changed:
            if not self._waiting:
                return []
            first = self._waiting[0]
            alike = [waiting for waiting in self._waiting if waiting.request.key == first.request.key]
            batch = self._around(first, sorted(alike, key=lambda waiting: waiting.length))
            self._last_size = len(batch)
            taken = set(batch)
            self._waiting = [waiting for waiting in self._waiting if waiting not in taken]
            return batch

    def _around(self, first: _Waiting, ordered: list[_Waiting]) -> list[_Waiting]:
        """Return the sentences closest in length to `first` that fit in one batch; `ordered` is sorted by length."""
        start = ordered.index(first)
        end = start + 1
        while start > 0 or end < len(ordered):
            shorter = first.length - ordered[start - 1].length if start > 0 else None
            longer = ordered[end].length - first.length if end < len(ordered) else None
            takes_longer = shorter is None or (longer is not None and longer < shorter)
            longest = ordered[end if takes_longer else end - 1].length
            if end - start + 1 > self.batch_size(longest, first.request.key):
                break
            start, end = (start, end + 1) if takes_longer else (start - 1, end)
        if end - start < len(ordered) <= 2 * (end - start):
            # The remainder would be a small batch with as many decoding steps as this one; balance the two instead.
            middle = len(ordered) // 2
            half = ordered[:middle] if ordered.index(first) < middle else ordered[middle:]
            if len(half) <= self.batch_size(half[-1].length, first.request.key):
                return half
        return ordered[start:end]

    def _decode(self, batch: list[_Waiting]) -> None:
        """Decode a batch; on failure, decode its halves, so that an error affects only the sentence that causes it."""
        batch = [waiting for waiting in batch if not waiting.request.future.done()]
        if not batch:
            return
        request = batch[0].request
        try:
            results = self.decode([waiting.sentence for waiting in batch], request.key)
        # A panic in the tokenizers library is not an Exception.
        except BaseException as error:
            if len(batch) == 1:
                request.fail(error)
                return
        else:
            self.observe(len(batch), sum(waiting.length for waiting in batch))
            for waiting, result in zip(batch, results, strict=True):
                waiting.request.deliver(waiting.index, result)
            return
        # Outside the handler, whose traceback keeps the tensors of the failed batch alive.
        self._decode(batch[: len(batch) // 2])
        self._decode(batch[len(batch) // 2 :])


def _call(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    # Any error goes to the caller waiting for the result.
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
