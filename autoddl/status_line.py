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

PATIENCE_S = 2.0  # what takes longer shows that it goes on
DUMB = ("dumb", "unknown")  # terminals that can't take a line back


class _Shown:
    """The line, while there is one: its texts, the outermost work first."""

    def __init__(self, bar: Any) -> None:
        self.bar, self.texts = bar, list[str]()
        self.task = bar.add_task("")

    def show(self) -> None:
        """Write the line anew."""
        self.bar.update(self.task, description=", ".join(filter(None, self.texts)))


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
        yield from _inside(_shown[0], text)
    else:
        yield from _alone(text)


def _alone(text: str) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    bar = Progress(
        *columns, console=Console(file=sys.stderr), transient=True, redirect_stdout=False,
        redirect_stderr=False,
    )  # fmt: skip
    begin = Timer(PATIENCE_S, bar.start)
    begin.daemon = True
    shown = _Shown(bar)
    _shown.append(shown)
    begin.start()
    try:
        yield from _inside(shown, text)
    finally:
        _shown.clear()
        begin.cancel()
        begin.join()
        bar.stop()


def _inside(shown: _Shown, text: str) -> Iterator[Callable[[str], None]]:
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


def say_once(text: str) -> None:
    """Write a line that stays, on a terminal, above the one that goes away."""
    if not on_terminal():
        return
    if _shown and _shown[0].bar.live.is_started:
        _shown[0].bar.console.print(text, markup=False, highlight=False)
    else:
        print(text, file=sys.stderr, flush=True)
