"""What a user sees: a pseudo-terminal as stderr, and a screen that follows its escape sequences."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Thread

import pytest

_PIECES = re.compile(r"\x1b\[\??(\d*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


@contextmanager
def terminal(patch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Make stderr a terminal; yield what ends that, and returns all that was written to it."""
    with _read() as (slave, written), os.fdopen(slave, "w") as stream, patch.context() as own:
        own.setenv("TERM", "xterm")
        own.setattr("sys.stderr", stream)
        yield lambda: (stream.close(), written())[1]  # type: ignore[func-returns-value]


def on_terminal(command: Sequence[str], **env: str) -> str:
    """Run a command whose stderr is a terminal, and return what it wrote there."""
    with _read() as (slave, written):
        environment = {**os.environ, "TERM": "xterm", **env}
        subprocess.run(command, stderr=slave, stdout=subprocess.PIPE, env=environment, check=True)
        os.close(slave)
        return written()


@contextmanager
def _read() -> Iterator[tuple[int, Callable[[], str]]]:
    master, slave = pty.openpty()
    parts: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(master, 1 << 16):
                parts.append(part)
        except OSError:  # its other end was closed
            return

    reader = Thread(target=read, daemon=True)
    reader.start()

    def written() -> str:
        reader.join(10)
        return b"".join(parts).decode()

    try:
        yield slave, written
    finally:
        os.close(master)


def screen(written: str) -> list[str]:
    """Return the lines that are left on a screen, without empty ones."""
    lines, row, column = [""], 0, 0
    for piece in _PIECES.finditer(written):
        text, (number, code) = piece[0], piece.groups()
        if text == "\r":
            column = 0
        elif text == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif code is None:
            lines[row] = lines[row].ljust(column)[:column] + text + lines[row][column + len(text) :]
            column += len(text)
        elif code == "A":
            row -= int(number or 1)
        elif code == "K":
            lines[row] = "" if number == "2" else lines[row][:column]
        elif code not in ("m", "h", "l"):
            raise AssertionError(f"unknown to this screen: {text!r}")
    return [line.rstrip() for line in lines if line.strip()]
