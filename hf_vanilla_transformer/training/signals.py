"""Ctrl-C and SIGTERM, deferred until a checkpoint is saved."""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

from torch import distributed

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class DeferredSignals:
    """Defers SIGINT and SIGTERM inside a `with` block, until `deliver` or the end of the block.

    A second Ctrl-C is delivered at once, except under `torchrun` and `accelerate launch`, which send one of their own.
    Ignored signals stay ignored. Only the main thread can defer signals; in other threads, this does nothing.

    Attributes:
        pending: Number of the deferred signal; 0: none.
    """

    def __init__(self) -> None:
        self.pending = 0
        self._handlers: dict[int, Any] = {}
        self._process = os.getpid()

    def __enter__(self) -> "DeferredSignals":
        self.pending, self._process = 0, os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # None: a handler that was not installed from Python.
                if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                    self._handlers[number] = handler
                    signal.signal(number, self._defer)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._restore()
        if self.pending and error is None:
            self.deliver(self.pending)

    def deliver(self, number: int) -> None:
        """Deliver a signal, this process's or another's, as if it arrived now."""
        self._restore()
        self.pending = 0
        signal.raise_signal(signal.Signals(number))

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}

    def _defer(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            self._in_worker(number)
        elif self.pending and number == signal.SIGINT and not distributed.is_torchelastic_launched():
            self.deliver(number)
        elif not self.pending:
            self.pending = number
            if sys.stderr.isatty():
                # Unlike `print`, this is safe in the middle of another write.
                os.write(sys.stderr.fileno(), b"\nsaving a checkpoint after this step; Ctrl-C again stops at once\n")

    def _in_worker(self, number: int) -> None:
        """In a forked worker, ignore Ctrl-C, which reaches the whole process group: the training process ends it."""
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
