"""Pass rank 0's output on to our own, without the engine's noise; stdlib only."""

from __future__ import annotations

import sys

from autoddl.launch.output import LineFilter


class Terminal:
    """Show rank 0's output until it is stopped or nobody reads it any more."""

    def __init__(self, *, shown: bool) -> None:
        self._filters = {"stdout": LineFilter(), "stderr": LineFilter()} if shown else {}

    def feed(self, local_rank: int, stream: str, data: bytes) -> None:
        """Take what a rank wrote to the stream named "stdout" or "stderr"."""
        if local_rank == 0 and stream in self._filters:
            self._write(stream, self._filters[stream].feed(data))

    def flush(self) -> None:
        """Show unfinished lines too, such as progress bars; nothing has come for a while."""
        for stream, line_filter in list(self._filters.items()):
            self._write(stream, line_filter.flush())

    def stop(self) -> None:
        """Pass nothing more on: rank 0 only complains that it lost the rank that failed."""
        self.flush()
        self._filters = {}

    def _write(self, stream: str, text: str) -> None:
        file = getattr(sys, stream)
        encoding = getattr(file, "encoding", None) or "utf-8"
        try:
            if text:
                file.write(text.encode(encoding, "replace").decode(encoding))
                file.flush()
        except BrokenPipeError:  # `| head`; the ranks go on, their logs too
            del self._filters[stream]
