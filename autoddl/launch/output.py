"""Pass a rank's output on without the engine's noise; stdlib only."""

from __future__ import annotations

import codecs
import re
import sys

# What OneFlow 0.9 prints in every process where there is no GPU or InfiniBand; nothing else.
_NOISE = re.compile(
    r"libibverbs not available, ibv_fork_init skipped"
    r"|[IWE]\d{8} \d\d:\d\d:\d\d\.\d+ +\d+ "
    r"cuda_device_(descriptor_class|manager_factory)\.cpp:\d+\] "
    r".*CUDA driver version is insufficient for CUDA runtime version"
)


def is_noise(line: str) -> bool:
    """Say whether ``line`` is one that the engine prints in every process."""
    return _NOISE.fullmatch(line.strip()) is not None


def last_lines(text: str, count: int) -> tuple[str, ...]:
    """Give the last ``count`` lines of ``text`` that are neither empty nor noise."""
    lines = [line.rstrip() for line in text.splitlines()]
    return tuple([line for line in lines if line and not is_noise(line)][-count:])


class LineFilter:
    """Turn a stream of bytes into text, whole lines at a time, leaving noise out."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._held = ""  # the start of a line whose end has not come yet
        self._passed_start = False  # the start of the present line has been given out already

    def feed(self, data: bytes) -> str:
        """Take ``data`` and give the text that may be shown now."""
        pieces = (self._held + self._decode(data)).splitlines(keepends=True)
        # "\r" ends a line too (progress bars), but may yet turn out to be the start of "\r\n".
        ended = bool(pieces) and pieces[-1].endswith("\n")
        self._held = "" if ended or not pieces else pieces.pop()
        if not pieces:
            return ""
        first = pieces[0] if self._passed_start or not is_noise(pieces[0]) else ""
        self._passed_start = False
        return first + "".join(piece for piece in pieces[1:] if not is_noise(piece))

    def flush(self) -> str:
        """Give what is held back; call it when nothing has come for a while and at the end."""
        text = self._held
        if not text or (not self._passed_start and is_noise(text)):
            return ""
        self._held = ""
        self._passed_start = not text.endswith(("\n", "\r"))
        return text


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
