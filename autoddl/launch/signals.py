"""Put off signals that would end us until there is nothing left to clean up; stdlib only."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP instead of dying; those we were told to ignore stay so."""
    caught: list[int] = []
    previous = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                previous[signum] = signal.signal(signum, lambda got, _: caught.append(got))
    try:
        yield caught
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
