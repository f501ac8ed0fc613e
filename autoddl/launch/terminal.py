"""Pass the ranks' output on to our own; stdlib only."""

from __future__ import annotations

import sys


class Terminal:
    """Write to our stdout and stderr until nobody reads them any more."""

    def __init__(self) -> None:
        self._closed: set[str] = set()

    def write(self, stream: str, text: str) -> None:
        """Write ``text`` to the stream named "stdout" or "stderr"."""
        if not text or stream in self._closed:
            return
        file = getattr(sys, stream)
        encoding = getattr(file, "encoding", None) or "utf-8"
        try:
            file.write(text.encode(encoding, "replace").decode(encoding))
            file.flush()
        except BrokenPipeError:  # `| head`; the ranks go on, their logs too
            self._closed.add(stream)
