import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from hf_vanilla_transformer.serving.batching import Batcher, Busy, DecodingFailed


class Sent:
    """The future of a text, whose result is that of its sentences."""

    def __init__(self, future):
        self.future = future

    def __getattr__(self, name):
        return getattr(self.future, name)

    def result(self):
        ((_, results),) = self.future.result()
        return results


class Upper(Batcher):
    """Uppercases a batch each time `go` is released, and fails on demand."""

    def __init__(self, patience=0.0):
        self.batches, self.observed = [], []
        self.go, self.begun = threading.Semaphore(0), threading.Semaphore(0)
        super().__init__("test", max_queue=8, patience=patience)

    def session(self):
        return nullcontext()

    def send(self, sentences, key):
        """Submit a text of sentences, whose characters are their ids."""
        return Sent(self.submit([sentences], key, len(sentences)))

    def prepare(self, inputs, key):
        if "unmeasurable" in inputs[0]:
            raise ValueError("no\nsuch token")
        return [SimpleNamespace(sentences=[SimpleNamespace(ids=ids) for ids in inputs[0]])]

    def batch_size(self, longest, key):
        return max(1, 12 // longest)

    def decode(self, batch, key):
        sentences = [sentence.ids for sentence in batch]
        self.begun.release()
        self.go.acquire()
        self.batches.append(list(sentences))
        for sentence in sentences:
            if sentence == "nan":
                raise ValueError("a score is NaN")
            if sentence == "panic":
                raise BaseException("a panic")
        if sum(map(len, sentences)) > 10 or "huge" in sentences:
            raise torch.OutOfMemoryError("too much")
        return [sentence.upper() for sentence in sentences]

    def observe(self, num_sentences, num_tokens):
        self.observed.append((num_sentences, num_tokens))


@pytest.fixture
def occupied():
    """A batcher busy decoding a sentence until `go` is released."""
    batcher = Upper()
    batcher.send(["x"], "other")
    batcher.begun.acquire()
    yield batcher
    batcher.go.release(100)
    batcher.close()


def test_sentences_that_wait_share_batches_of_similar_length_with_equal_keys(occupied):
    futures = [
        occupied.send(["aaa", "b", "cccc"], 1),
        occupied.send(["dd"], 2),
        occupied.send(["ee"], 1),
    ]
    occupied.go.release(100)
    assert [future.result() for future in futures] == [["AAA", "B", "CCCC"], ["DD"], ["EE"]]
    # The budget of 12 does not fit all four: first the half with "aaa", the oldest, then the half with "b".
    assert occupied.batches[1:] == [["aaa", "cccc"], ["b", "ee"], ["dd"]]
    assert occupied.observed == [(1, 1), (2, 7), (2, 3), (1, 2)]


def test_sentences_for_many_batches_fill_them_around_the_oldest(occupied):
    lengths = (3, 1, 4, 2, 4, 4, 4)
    future = occupied.send(["a" * length for length in lengths], 1)
    occupied.go.release(100)
    assert future.result() == ["A" * length for length in lengths]
    assert [sorted(map(len, batch)) for batch in occupied.batches[1:]] == [[2, 3, 4], [1, 4], [4, 4]]


def test_the_oldest_sentence_is_in_the_next_batch(occupied):
    long = occupied.send(["l" * 10], 1)
    short = [occupied.send(["s"], 1) for _ in range(6)]
    occupied.go.release(100)
    assert long.result() == ["L" * 10]
    assert [future.result() for future in short] == [["S"]] * 6
    assert occupied.batches[1:] == [["l" * 10], ["s"] * 6]


def test_as_many_sentences_as_last_time_are_waited_for():
    # Patience so long that a timeout would hang the test.
    batcher = Upper(patience=1e6)
    batcher.go.release(100)
    assert batcher.send(["a"], 1).result() == ["A"]
    assert batcher.send(["b", "c"], 1).result() == ["B", "C"]
    waiting = batcher.send(["d"], 1)
    later = batcher.send(["e"], 1)
    assert (waiting.result(), later.result()) == (["D"], ["E"])
    assert batcher.batches == [["a"], ["b", "c"], ["d", "e"]]
    waiting = batcher.send(["f"], 1)
    batcher.close()
    assert waiting.result() == ["F"]


def test_a_full_queue_refuses_and_a_cancelled_request_frees_its_place(occupied):
    first = occupied.send(["a"] * 5, 1)
    with pytest.raises(Busy, match="the queue is full: 5 sentences are waiting; try again later"):
        occupied.send(["b"] * 4, 1)
    assert occupied.num_waiting == 5
    assert first.cancel()
    assert occupied.num_waiting == 0
    # More than the queue holds, but accepted because it is empty.
    second = occupied.send(["b"] * 9, 1)
    occupied.go.release(100)
    assert second.result() == ["B"] * 9
    assert occupied.batches == [["x"], ["b"] * 9]


def test_a_request_cancelled_while_it_is_decoded_has_no_effect_on_others(occupied):
    first, second = occupied.send(["a" * 7, "b"], 1), occupied.send(["c"], 1)
    occupied.go.release()
    occupied.begun.acquire()
    assert first.cancel()
    occupied.go.release(100)
    assert second.result() == ["C"]
    assert occupied.batches == [["x"], ["a" * 7], ["c"]]


@pytest.mark.parametrize("bad, message", [("nan", "a score is NaN"), ("panic", "a panic")])
def test_an_error_reaches_only_its_own_request(occupied, bad, message):
    good = [occupied.send(["a", "bb"], 1), occupied.send(["cc"], 1)]
    failing = occupied.send(["d", bad, "e"], 1)
    occupied.go.release(100)
    assert [future.result() for future in good] == [["A", "BB"], ["CC"]]
    with pytest.raises(DecodingFailed, match=f"the model failed: {message}"):
        failing.result()
    assert occupied.send(["f"], 1).result() == ["F"]
    assert occupied.num_waiting == 0


def test_what_cannot_be_tokenized_fails_alone(occupied):
    failing, good = occupied.send(["unmeasurable"], 1), occupied.send(["a"], 1)
    occupied.go.release(100)
    with pytest.raises(DecodingFailed, match="no such token"):
        failing.result()
    assert good.result() == ["A"]


def test_a_batch_too_large_for_the_memory_is_halved(occupied):
    fitting, huge = occupied.send(["aaa"] * 4, 1), occupied.send(["huge"], 2)
    occupied.go.release(100)
    assert fitting.result() == ["AAA"] * 4
    assert occupied.batches[1:4] == [["aaa"] * 4, ["aaa"] * 2, ["aaa"] * 2]
    with pytest.raises(Busy, match="out of memory; send shorter sentences or fewer beams"):
        huge.result()


def test_functions_run_before_the_next_batch_and_return_their_errors(occupied):
    order = []
    sentence = occupied.send(["a"], 1)
    sentence.add_done_callback(lambda _: order.append("sentence"))
    failing, returning = occupied.call(int, "x"), occupied.call(order.append, "function")
    cancelled = occupied.call(order.append, "cancelled")
    cancelled.cancel()
    occupied.go.release(100)
    assert sentence.result() == ["A"]
    assert order == ["function", "sentence"]
    assert returning.result() is None
    with pytest.raises(ValueError, match="invalid literal"):
        failing.result()


def test_closing_finishes_what_waits_and_takes_nothing_new(occupied):
    future = occupied.send(["a"], 1)
    assert not occupied.is_idle
    occupied.close(wait=False)
    for refused in (lambda: occupied.send(["b"], 1), lambda: occupied.call(print)):
        with pytest.raises(Busy, match="shutting down"):
            refused()
    occupied.go.release(100)
    occupied.close()
    assert future.result() == ["A"]
    assert occupied.is_idle and not occupied.is_alive


def test_when_the_thread_ends_by_an_error_nobody_waits_in_vain(occupied, monkeypatch):
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda ended: reported.append(ended.exc_value))
    error = RuntimeError("a defect")

    def batch_size(longest, key):
        raise error

    occupied.batch_size = batch_size
    cancelled = occupied.send(["c"], 1)
    waiting = [occupied.send(["a", "b"], 1), occupied.send(["c"], 2)]
    cancelled.cancel()
    occupied.go.release(100)
    for future in waiting:
        with pytest.raises(Busy, match="the thread of this model has died; restart the server"):
            future.result()
    occupied.close()
    for refused in (lambda: occupied.send(["b"], 1), lambda: occupied.call(print)):
        with pytest.raises(Busy, match="has died"):
            refused()
    assert occupied.is_idle and not occupied.is_alive and occupied.num_waiting == 0
    assert reported == [error]


def test_when_the_thread_ends_a_batch_that_was_taken_and_functions_are_refused(occupied, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda ended: None)

    def observe(num_sentences, num_tokens):
        raise RuntimeError("a defect")

    occupied.observe = observe
    sentence, function = occupied.send(["a"], 1), occupied.call(print)
    occupied.go.release(100)
    for future in (sentence, function):
        with pytest.raises(Busy, match="has died"):
            future.result()
    occupied.close()
    assert occupied.is_idle


def test_sentences_that_are_cut_may_not_overfill_the_queue(occupied, monkeypatch):
    prepare = occupied.prepare
    monkeypatch.setattr(occupied, "prepare", lambda inputs, key: prepare([list("".join(inputs[0]))], key))
    first, second = occupied.send(["aaaa"], 1), occupied.send(["bbbbbb"], 1)
    occupied.go.release(100)
    assert first.result() == ["A"] * 4
    with pytest.raises(Busy, match="the queue is full: 4 sentences are waiting"):
        second.result()
