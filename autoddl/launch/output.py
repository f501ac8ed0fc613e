"""Pass a rank's output on without the engine's noise; stdlib only."""

from __future__ import annotations

import codecs
import re

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
