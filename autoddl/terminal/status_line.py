"""A line on the terminal that says what goes on, from the third second on, and goes away.

    with working("planning") as word:
        word("best so far 12.3 ms")

It is on stderr, and nowhere else: where that is no terminal, in files, pipes and notebooks, nothing is
written. What works inside of other work adds its words to that line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

from autoddl.errors import printable

PATIENCE_S = 2.0  # what takes longer shows that it goes on
DUMB = ("dumb", "unknown")  # terminals that can't take a line back


class _Shown:
    """The line, while there is one: its texts, the outermost work first."""

    def __init__(self, bar: Any) -> None:
        self.bar, self.texts = bar, list[str]()
        self.task = bar.add_task("")

    def show(self) -> None:
        """Write the line anew."""
        self.bar.update(self.task, description=printable(", ".join(self.texts)))


_shown: list[_Shown] = []


def on_terminal() -> bool:
    """Tell whether stderr is a terminal that can take a line back."""
    stream = sys.stderr
    known = os.environ.get("TERM", "").lower() not in DUMB
    return stream is not None and not stream.closed and stream.isatty() and known


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal, from the third second on, what goes on; yield what adds a word to it."""
    if not on_terminal():
        yield lambda word: None
    elif _shown:
        with _inside(_shown[0], text) as word:
            yield word
    else:
        shown = _Shown(_line())
        with _inside(shown, text) as word, _begun(shown):
            yield word


def _line() -> Any:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    return Progress(
        *columns, console=Console(file=sys.stderr), transient=True, redirect_stdout=False,
        redirect_stderr=False,
    )  # fmt: skip


@contextmanager
def _begun(shown: _Shown) -> Iterator[None]:
    """Show the line after a while, until the end."""
    begin = Timer(PATIENCE_S, shown.bar.start)
    begin.daemon = True
    _shown.append(shown)
    begin.start()
    try:
        yield
    finally:
        _shown.clear()
        begin.cancel()
        begin.join()
        shown.bar.stop()


@contextmanager
def _inside(shown: _Shown, text: str) -> Iterator[Callable[[str], None]]:
    """Add work to the line, until its end."""
    place = len(shown.texts)

    def word(told: str) -> None:
        shown.texts[place:] = [f"{text}, {told}"]
        shown.show()

    shown.texts.append(text)
    shown.show()
    try:
        yield word
    finally:
        del shown.texts[place:]
        shown.show()


def write(line: str) -> None:
    """Write a line to stderr, above the one that goes away."""
    if _shown and _shown[0].bar.live.is_started:
        _shown[0].bar.console.out(line, highlight=False)
    else:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
