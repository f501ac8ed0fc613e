"""Kill the ranks' process groups when their launcher dies; stdlib only.

The launcher runs this file as a process of its own and keeps the other end of its stdin. Lines are
ids of process groups, or ``done`` when nothing is left to guard. If the stream ends without it, the
launcher was killed: the kernel ends the ranks (see main.py), this ends what the ranks had started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def main(lines: Iterable[str]) -> None:
    """Read group ids until the stream ends; kill those groups unless the last line is ``done``."""
    groups: list[int] = []
    for line in lines:
        if line.strip() == "done":
            return
        groups.append(int(line))
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.stdin)
